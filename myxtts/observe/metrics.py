"""Metrics of a run, written to metrics.jsonl and TensorBoard."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.files import FULL, name_in_errors, write_whole


class MetricsFile:
    """metrics.jsonl: one JSON object a line, one line a report.

    Args:
        path: the file. Lines after `step` are dropped first, so that a resumed run leaves one line for each
            step, and so is a line that a kill cut short.
        step: the step from which the run continues.
    """

    def __init__(self, path: Path, step: int):
        lines = [line for line in read_metrics(path) if line["step"] <= step]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
        self._path = path
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run

    def write(self, metrics: dict[str, float | str]) -> None:
        """Write one line. A number that is not finite (a skipped float16 step has one) becomes null, as in JSON."""
        with name_in_errors(self._path):  # what a full disk refuses stays in the buffer, and follows later
            self._file.write(json.dumps(_finite(metrics)) + "\n")
            self._file.flush()

    def amend(self, step: int, metrics: dict[str, float]) -> None:
        """Add metrics to the line of an earlier step, or insert a line; the file is replaced as a whole."""
        with name_in_errors(self._path):
            self._file.flush()
        lines = self._path.read_bytes().splitlines(keepends=True)
        place: int = len(lines)
        line: dict[str, Any] = {}
        while place and not line and (last := json.loads(lines[place - 1]))["step"] >= step:
            place -= 1
            line = last if last["step"] == step else {}
        amended = json.dumps({"step": step, **line, **_finite(metrics)}).encode() + b"\n"
        content = [*lines[:place], amended, *lines[place + bool(line) :]]
        write_whole(self._path, b"".join(content))
        self._file.close()
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run

    def close(self) -> None:
        with name_in_errors(self._path):
            self._file.close()


def _finite(metrics: dict[str, Any]) -> dict[str, Any]:
    return {n: v if isinstance(v, str) or math.isfinite(v) else None for n, v in metrics.items()}


def read_metrics(path: Path) -> list[dict]:
    """Return the complete lines of a metrics.jsonl; none if there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]  # text after the last newline was cut short


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise a full disk as an OSError that names the folder: TensorFlow has one class for that and for full memory."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        for number in FULL:
            if os.strerror(number) in error.message:
                raise OSError(number, os.strerror(number), str(folder)) from error
        raise


class TensorBoard:
    """Scalars, pictures and sounds under runs/<name>/tensorboard. The methods raise OSError if the disk is full."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._writer = tf.summary.create_file_writer(str(folder))

    def scalars(self, step: int, values: dict[str, float | str]) -> None:
        """Write the numbers among the values."""
        with disk_errors(self._folder), tf.device("/CPU:0"), self._writer.as_default(step=step):
            for name, value in values.items():
                if not isinstance(value, str):
                    tf.summary.scalar(name, value)

    def picture(self, step: int, name: str, image: np.ndarray) -> None:
        """Write an image, uint8 [height, width, 3]."""
        with disk_errors(self._folder), tf.device("/CPU:0"), self._writer.as_default(step=step):
            tf.summary.image(name, image[None])

    def sound(self, step: int, name: str, wave: np.ndarray) -> None:
        """Write a sound, float32 [samples] in [-1, 1]."""
        with disk_errors(self._folder), tf.device("/CPU:0"), self._writer.as_default(step=step):
            tf.summary.audio(name, wave[None, :, None], SAMPLE_RATE_HZ)

    def close(self) -> None:
        with disk_errors(self._folder):
            self._writer.close()
