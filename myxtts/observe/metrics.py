"""Metrics of a run, written to metrics.jsonl and TensorBoard."""

import json
import math
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.files import write_whole


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
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run

    def write(self, metrics: dict[str, float | str]) -> None:
        """Write one line. A number that is not finite (a skipped float16 step has one) becomes null, as in JSON."""
        finite = {n: v if isinstance(v, str) or math.isfinite(v) else None for n, v in metrics.items()}
        self._file.write(json.dumps(finite) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict]:
    """Return the complete lines of a metrics.jsonl; none if there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]  # text after the last newline was cut short


class TensorBoard:
    """Scalars, pictures and sounds under runs/<name>/tensorboard."""

    def __init__(self, folder: Path):
        self._writer = tf.summary.create_file_writer(str(folder))

    def scalars(self, step: int, values: dict[str, float | str]) -> None:
        """Write the numbers among the values."""
        with tf.device("/CPU:0"), self._writer.as_default(step=step):
            for name, value in values.items():
                if not isinstance(value, str):
                    tf.summary.scalar(name, value)

    def picture(self, step: int, name: str, image: np.ndarray) -> None:
        """Write an image, uint8 [height, width, 3]."""
        with tf.device("/CPU:0"), self._writer.as_default(step=step):
            tf.summary.image(name, image[None])

    def sound(self, step: int, name: str, wave: np.ndarray) -> None:
        """Write a sound, float32 [samples] in [-1, 1]."""
        with tf.device("/CPU:0"), self._writer.as_default(step=step):
            tf.summary.audio(name, wave[None, :, None], SAMPLE_RATE_HZ)

    def close(self) -> None:
        self._writer.close()
