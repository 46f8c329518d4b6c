"""Metrics of a run, written to metrics.jsonl and TensorBoard."""

import errno
import json
import logging
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.files import FULL, name_in_errors, write_whole
from myxtts.report.metrics_reader import merge_lines, read_lines

log = logging.getLogger(__name__)
REFUSALS = (
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
)  # beside a full disk


class MetricsFile:
    """metrics.jsonl: one JSON object a line. Any thread may write.

    A step may have several lines, which the reader merges: an observation during training ends
    after later steps were reported.

    Args:
        path: the file. It is rewritten first with one line for each step up to `step`, so that a
            resumed run repeats none. Damaged lines are dropped, and their number is logged.
        step: the step from which the run continues.
    """

    def __init__(self, path: Path, step: int):
        lines = read_lines(path)
        if damaged := lines.count(None):
            log.warning(
                "%d of %d lines of %s were damaged and are dropped", damaged, len(lines), path
            )
        reports = [report for report in merge_lines(lines) if report["step"] <= step]
        write_whole(path, "".join(json.dumps(report) + "\n" for report in reports).encode())
        self._path = path
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._lock = threading.Lock()

    def write(self, metrics: dict[str, float | str]) -> None:
        """Append a line. A number that is not finite (a skipped float16 step has one) becomes null,
        as in JSON.
        """
        # What a full disk refuses stays in the buffer, and follows with a later line.
        with name_in_errors(self._path), self._lock:
            self._file.write(json.dumps(_finite(metrics)) + "\n")
            self._file.flush()

    def close(self) -> None:
        with name_in_errors(self._path):
            self._file.close()


def _finite(metrics: dict[str, Any]) -> dict[str, Any]:
    return {n: v if isinstance(v, str) or math.isfinite(v) else None for n, v in metrics.items()}


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise what a disk refuses as an OSError that names the folder.

    TensorFlow has one class for a full disk and for full memory, and an unknown error for a fault.
    """
    try:
        yield
    except tf.errors.OpError as error:
        for number in (*FULL, *REFUSALS):
            if os.strerror(number) in (error.message or ""):
                raise OSError(number, os.strerror(number), str(folder)) from error
        raise


class TensorBoard:
    """Scalars, pictures and sounds under runs/<name>/tensorboard. The methods raise OSError if the
    disk refuses.

    Each gives TensorFlow its step as a NumPy number: of each Python number it keeps a tensor, 600
    bytes, for ever.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        with disk_errors(folder):
            self._writer = tf.summary.create_file_writer(str(folder))

    def scalars(self, step: int, values: dict[str, float | str]) -> None:
        """Write the numbers among the values, as one event, which takes a tenth of the time of one
        for each.
        """
        numbers = (
            scalar_pb(name, value) for name, value in values.items() if not isinstance(value, str)
        )
        summary = Summary(value=[number.value[0] for number in numbers]).SerializeToString()
        with disk_errors(self._folder), tf.device("/CPU:0"), self._writer.as_default():
            tf.summary.experimental.write_raw_pb(summary, np.int64(step))

    def picture(self, step: int, name: str, image: np.ndarray) -> None:
        """Write an image, uint8 [height, width, 3]."""
        with (
            disk_errors(self._folder),
            tf.device("/CPU:0"),
            self._writer.as_default(np.int64(step)),
        ):
            tf.summary.image(name, image[None])

    def sound(self, step: int, name: str, wave: np.ndarray) -> None:
        """Write a sound, float32 [samples] in [-1, 1]."""
        with (
            disk_errors(self._folder),
            tf.device("/CPU:0"),
            self._writer.as_default(np.int64(step)),
        ):
            tf.summary.audio(name, wave[None, :, None], SAMPLE_RATE_HZ)

    def close(self) -> None:
        with disk_errors(self._folder):
            self._writer.close()
