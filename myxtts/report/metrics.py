"""Metrics of a run, written to metrics.jsonl and TensorBoard."""

import errno
import json
import logging
import math
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.files import FULL, name_in_errors, replaced_file, write_whole
from myxtts.report.metrics_reader import parse_report, read_lines

READ_BYTES = 1 << 15  # of metrics.jsonl, from its end: some tens of lines
COPIED_BYTES = 1 << 20  # at a time

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
    """metrics.jsonl: one JSON object a line, one line a report. One thread writes, and another one
    may amend.

    Args:
        path: the file. Lines after `step` are dropped first, so that a resumed run leaves one line
            for each step, and so are damaged ones, whose number is logged.
        step: the step from which the run continues.
    """

    def __init__(self, path: Path, step: int):
        found = read_lines(path)
        if damaged := found.count(None):
            log.warning(
                "%d of %d lines of %s were damaged and are dropped", damaged, len(found), path
            )
        lines = [line for line in found if line is not None and line["step"] <= step]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
        self._path = path
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._lock = threading.Lock()

    def write(self, metrics: dict[str, float | str]) -> None:
        """Write one line. A number that is not finite (a skipped float16 step has one) becomes
        null, as in JSON.
        """
        with (
            name_in_errors(self._path),
            self._lock,
        ):  # what a full disk refuses stays in the buffer, and follows later
            self._file.write(json.dumps(_finite(metrics)) + "\n")
            self._file.flush()

    def amend(self, step: int, metrics: dict[str, float]) -> None:
        """Add metrics to the line of an earlier step, or insert a line; the file is replaced as a
        whole.

        Lines before it are copied while the other thread goes on; its writes wait for those after
        it alone. Of 100,000 lines (30 MB), that takes 15 to 25 ms of processor time, and 0.2 s on a
        busy disk.
        """
        with name_in_errors(self._path), self._lock:
            self._file.flush()
            end = self._path.stat().st_size
        with ExitStack() as held:
            with open(self._path, "rb") as former, replaced_file(self._path) as file:
                start, line = _find_line(former, end, step)
                amended = {"step": step, **(json.loads(line) if line else {}), **_finite(metrics)}
                _copy_begin(former, file, start)
                held.enter_context(self._lock)
                self._file.flush()
                former.seek(start + len(line))
                file.write(json.dumps(amended).encode() + b"\n" + former.read())
            self._file.close()
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run

    def close(self) -> None:
        with name_in_errors(self._path):
            self._file.close()


def _find_line(file: BinaryIO, end: int, step: int) -> tuple[int, bytes]:
    """Return where the line of a step or else of the next later one begins, and the line if it is
    of that step.

    Args:
        end: of the last line; the search begins there.
    """
    offset, lines, length = end, [b""], READ_BYTES
    while offset and not _begins_before(step, lines):
        start = max(0, end - length)
        file.seek(start)
        offset, length = start + len(file.readline() if start else b""), 2 * length
        lines = file.read(max(0, end - offset)).splitlines(keepends=True)
    for line in lines:
        report = parse_report(line)
        if report is not None and report["step"] >= step:
            return offset, line if report["step"] == step else b""
        offset += len(line)
    return offset, b""


def _begins_before(step: int, lines: list[bytes]) -> bool:
    """Whether the first of some lines that is not damaged is of an earlier step."""
    first = next(filter(None, map(parse_report, lines)), None)
    return first is not None and first["step"] < step


def _copy_begin(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copy the first bytes of a file, to the disk."""
    source.seek(0)
    while target.tell() < size:
        target.write(source.read(min(size - target.tell(), COPIED_BYTES)))
    target.flush()
    os.fsync(target.fileno())


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
