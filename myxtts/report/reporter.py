"""What a run reports: to the console and log.txt, to metrics.jsonl and to TensorBoard."""

import errno
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tqdm import tqdm

from myxtts.audio.format import sample_rate_hz
from myxtts.base.clock import FIRST_STEP, Interval, format_duration
from myxtts.base.files import tolerate_full_disk
from myxtts.report.metrics import MetricsFile, validation_scores

PACKAGE = logging.getLogger("myxtts")
# A shorter pause would be shown as 0.0 s.
MIN_SHOWN_PAUSE_S = 0.05

log = logging.getLogger(__name__)


class Reporter:
    """Writes reports, and a progress bar on a terminal, from `step` on; a context manager."""

    def __init__(self, metrics_path: Path, tensorboard_folder: Path, step: int, total_steps: int):
        self.tensorboard = TensorBoard(tensorboard_folder)
        self._file = MetricsFile(metrics_path, step)
        done = {"total": total_steps, "initial": step}
        self._bar = tqdm(**done, unit="step", disable=None, dynamic_ncols=True)

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()
        self._file.close()
        with tolerate_full_disk("the last metrics"):
            self.tensorboard.close()

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Write metrics of a step, of training, validation or both; any thread may call it."""
        self._file.write({"step": step, **metrics})
        with tolerate_full_disk(f"the scalars of step {step}"):
            self.tensorboard.scalars(step, metrics)
        self._bar.update(max(step - self._bar.n, 0))
        if "loss" in metrics:
            log.info("%s", console_line(step, metrics))
        if "validation_loss" in metrics:
            loss = f"validation loss {metrics['validation_loss']:.3f}"
            log.info("step %6d | %s", step, " | ".join([loss, *validation_scores(metrics)]))


def console_line(step: int, metrics: dict[str, Any]) -> str:
    """Return the line of a report on the console; its end names the stage that the model waits for.

    `step   1200 | loss 2.310 | … | 12 min left | feed keeps up`, or `bottleneck read, 71 % of …`
    """
    wait_share = 1.0 - metrics["accelerator_utilisation"]
    pause_share = metrics["pause_s"] / max(metrics["step_s"] + metrics["pause_s"], 1e-9)
    stage = metrics["bottleneck"]
    bottleneck = "feed keeps up"
    if stage != "step":
        making_s = metrics["read_s"] + metrics["produce_s"]
        share = metrics[f"{stage}_s"] / making_s if making_s else 1.0
        bottleneck = f"bottleneck {stage}, {100 * share:.0f} % of making a batch"
    parts = [
        f"step {step:6d}",
        f"loss {metrics['loss']:.3f}",
        f"{metrics['steps_per_s']:.1f} steps/s",
        f"wait {100 * wait_share:.1f} %",
        f"pause {100 * pause_share:.1f} %",
        f"{format_duration(metrics['remaining_s'])} left",
        bottleneck,
    ]
    if metrics.get("skipped_updates"):
        parts.append(f"{metrics['skipped_updates']:.0f} updates skipped")
    return " | ".join(parts)


def time_line(elapsed_s: float, total: Interval, pauses_s: Mapping[str, float]) -> str:
    """Return where the time of a run went, since the start of the program.

    `8.9 min: start and first step 21 s, training 8.2 min, …, pauses 17 s (…)`
    """
    pauses = {kind: pause_s for kind, pause_s in pauses_s.items() if kind != FIRST_STEP}
    start_s = elapsed_s - total.busy_s - sum(pauses.values())
    shown = {kind: pause_s for kind, pause_s in pauses.items() if pause_s >= MIN_SHOWN_PAUSE_S}
    line = (
        f"{format_duration(elapsed_s)}: start and first step {format_duration(start_s)}, training"
        f" {format_duration(total.busy_s - total.wait_s)}, waiting for batches"
        f" {format_duration(total.wait_s)}, pauses {format_duration(sum(shown.values()))}"
    )
    kinds = ", ".join(f"{kind} {format_duration(pause_s)}" for kind, pause_s in shown.items())
    if kinds:
        line += f" ({kinds})"
    return line


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise a refusal of the disk as an OSError that names the folder."""
    # TensorFlow has one class for a full disk and full memory, and an unknown error for a fault.
    try:
        yield
    except tf.errors.OpError as error:
        for number in errno.errorcode:
            if os.strerror(number) in (error.message or ""):
                raise OSError(number, os.strerror(number), str(folder)) from error
        raise


class TensorBoard:
    """Scalars, pictures and sounds under runs/<name>/tensorboard.

    The methods raise OSError if the disk refuses. Each gives TensorFlow its step as a NumPy number:
    of each Python number it keeps a tensor, 600 bytes, for ever.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        with disk_errors(folder):
            self._writer = tf.summary.create_file_writer(str(folder))

    def scalars(self, step: int, values: dict[str, float | str]) -> None:
        # One event for all takes a tenth of the time of one for each.
        numbers = [
            scalar_pb(name, value).value[0]
            for name, value in values.items()
            if not isinstance(value, str)
        ]
        with self._events(step):
            summary = Summary(value=numbers).SerializeToString()
            tf.summary.experimental.write_raw_pb(summary, np.int64(step))

    def picture(self, step: int, name: str, image: np.ndarray) -> None:
        """Write an image, uint8 [height, width, 3]."""
        with self._events(step):
            tf.summary.image(name, image[None])

    def sound(self, step: int, name: str, wave: np.ndarray) -> None:
        """Write a sound, float32 [samples] in [-1, 1]."""
        with self._events(step):
            tf.summary.audio(name, wave[None, :, None], sample_rate_hz())

    @contextmanager
    def _events(self, step: int) -> Iterator[None]:
        writer = self._writer.as_default(np.int64(step))
        with disk_errors(self._folder), tf.device("/CPU:0"), writer:
            yield

    def close(self) -> None:
        with disk_errors(self._folder):
            self._writer.close()


class RunLog(MemoryHandler):
    """Appends the lines of the package's log to log.txt; a context manager.

    Keeps them in memory until `open` names the file. Its last line is the error that ends it.
    """

    def __init__(self) -> None:
        super().__init__(capacity=1, flushLevel=logging.NOTSET)

    def __enter__(self) -> "RunLog":
        PACKAGE.addHandler(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            message = f"ended by {type(error).__name__}: {error}"
            self.emit(PACKAGE.makeRecord(PACKAGE.name, logging.ERROR, "", 0, message, (), None))
        PACKAGE.removeHandler(self)
        if self.target is not None:
            with suppress(OSError):
                # The disk may be full; the console has the lines.
                self.target.close()

    def open(self, path: Path) -> None:
        """Write the lines so far, and from now on each line at once, to a file."""
        # Names of files need not be UTF-8.
        file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
        file.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        self.setTarget(file)
        self.flush()


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        # A full disk must not fill the console with tracebacks.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
