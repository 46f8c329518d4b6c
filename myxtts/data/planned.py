"""Stage A of a batch's life, made concrete: what each batch holds, before anything is read.

Numpy only. The same arguments give the same batches, so any position can be started from at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ, frame_count
from myxtts.data.manifest import Manifest
from myxtts.data.plan import Plan


class Position(NamedTuple):
    """The next step of a run's plan: what a checkpoint keeps of the data."""

    epoch: int = 0
    step: int = 0  # within the epoch


@dataclass(frozen=True)
class PlannedBatch:
    """One batch before it is read.

    Attributes:
        position: the step that it belongs to.
        last: whether it completes its step.
        following: the position after that step.
        rows: int32 [utterances], manifest rows; the batch is filled up with empty rows.
        bucket: index of the bucket, which fixes the shape.
        audio_s: seconds of speech in it.
        padded_s: seconds of its shape, padding included.
        arrays: what reading needs, see `planned_batches`.
    """

    position: Position
    last: bool
    following: Position
    rows: np.ndarray
    bucket: int
    audio_s: float
    padded_s: float
    arrays: dict[str, np.ndarray]


def planned_batches(
    plan: Plan,
    manifest: Manifest,
    start: Position,
    seed: int,
    reference_samples: int,
    epochs: int | None = None,
    mean_over: Literal["step", "epoch"] = "step",
) -> Iterator[PlannedBatch]:
    """Batches from a position on, in the plan's order.

    Args:
        start: the first step to give.
        reference_samples: longest stretch of a reference.
        epochs: the epoch before which to end; never ends where it is None.
        mean_over: what losses are a mean of; `epoch` makes the losses of all batches add up to the corpus' mean.
    """
    for epoch in count(start.epoch) if epochs is None else range(start.epoch, epochs):
        epoch_plan = plan.epoch(epoch)
        first = start.step if epoch == start.epoch else 0
        for step in range(first, epoch_plan.steps):
            following = Position(epoch, step + 1) if step + 1 < epoch_plan.steps else Position(epoch + 1, 0)
            batches = epoch_plan.batches(step)
            bucket = int(epoch_plan.step_bucket[step])
            averaged = epoch_plan.utterances(step) if mean_over == "step" else epoch_plan.order
            totals = {
                "step_frames": np.float32(frame_count(manifest.samples[averaged]).sum()),
                "step_tokens": np.float32(manifest.token_counts[averaged].sum()),
            }
            for number, (rows, references) in enumerate(batches):
                random = np.random.default_rng([seed, epoch, step, number])
                shape = plan.shape(bucket)
                arrays = _arrays(manifest, rows, references, shape, reference_samples, random) | totals
                yield PlannedBatch(
                    position=Position(epoch, step),
                    last=number == len(batches) - 1,
                    following=following,
                    rows=rows,
                    bucket=bucket,
                    audio_s=float(arrays["samples"].sum()) / SAMPLE_RATE_HZ,
                    padded_s=shape[0] * shape[1] / SAMPLE_RATE_HZ,
                    arrays=arrays,
                )


def _arrays(manifest, rows, references, shape, reference_samples, random) -> dict[str, np.ndarray]:
    """What reading needs of one batch: rows of files with the stretch to take of each, and the text."""
    size, padded_samples, padded_tokens = shape
    reference_length = np.minimum(manifest.samples[references], reference_samples)
    latest_start = manifest.samples[references] - reference_length
    columns = {
        "row": rows,
        "samples": manifest.samples[rows],
        "reference_row": references,
        "reference_start": (random.random(len(rows)) * (latest_start + 1)).astype(np.int32),
        "reference_samples": reference_length,
        "token_count": manifest.token_counts[rows],
        "language": manifest.language[rows],
    }
    filled = {name: np.resize(np.int32(0), size) for name in columns}
    for name, column in columns.items():
        filled[name][: len(rows)] = column
    return filled | {
        "tokens": manifest.padded_tokens(rows, size, padded_tokens),
        "padded_samples": np.int32(padded_samples),
        "seed": random.integers(-(2**31), 2**31, 2, dtype=np.int32),
    }
