"""Stage A of a batch's life, made concrete: what each batch holds, before anything is read.

Numpy only. The same arguments give the same batches, so any position can be started from at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ, frame_count
from myxtts.data.batch_plan import EpochHistory, EpochPlan, Plan
from myxtts.data.manifest import Manifest


class Position(NamedTuple):
    """The next step of a run's plan: what a checkpoint keeps of the data.

    Attributes:
        epoch: counted from 0.
        step: within the epoch, or within what `history` has left of it.
        history: (replicas, steps) that the epoch was begun with, where the number of replicas has changed since.
    """

    epoch: int = 0
    step: int = 0
    history: EpochHistory = ()

    def after_resize(self, before: int) -> "Position":
        """The same position for those who go on where `before` replicas stopped."""
        return Position(self.epoch, 0, (*self.history, (before, self.step))) if self.step else self


class PlannedStep(NamedTuple):
    """One step, as all replicas share it.

    Attributes:
        position: of the step.
        next_position: the position after it.
        utterances: int32, manifest rows of all its batches.
        bucket: index of the bucket, which fixes the shape of its batches.
        rounds: batches that each replica takes in it.
        audio_s: seconds of speech in it.
        padded_s: seconds of its batches' shapes, padding included.
    """

    position: Position
    next_position: Position
    utterances: np.ndarray
    bucket: int
    microbatches: int
    audio_s: float
    padded_s: float


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of one replica before it is read.

    Attributes:
        step: that it belongs to.
        last: whether it is the replica's last one in its step.
        rows: int32 [utterances], manifest rows; the batch is filled up with empty rows.
        audio_s: seconds of speech in it.
        padded_s: seconds of its shape, padding included.
        arrays: what reading needs, see `planned_batches`.
    """

    step: PlannedStep
    last: bool
    rows: np.ndarray
    audio_s: float
    padded_s: float
    arrays: dict[str, np.ndarray]


def planned_steps(
    plan: Plan, start: Position, epochs: int | None = None
) -> Iterator[tuple[EpochPlan, int, PlannedStep]]:
    """Steps from a position on, in the plan's order, each with its epoch's plan and its number therein.

    Args:
        start: the first step to give.
        epochs: the epoch before which to end; never ends where it is None.
    """
    for epoch in count(start.epoch) if epochs is None else range(start.epoch, epochs):
        first, history = (start.step, start.history) if epoch == start.epoch else (0, ())
        epoch_plan = plan.epoch(epoch, history)
        for step in range(first, epoch_plan.steps):
            ends = step + 1 == epoch_plan.steps
            utterances = epoch_plan.utterances(step)
            yield (
                epoch_plan,
                step,
                PlannedStep(
                    position=Position(epoch, step, history),
                    next_position=Position(epoch + 1) if ends else Position(epoch, step + 1, history),
                    utterances=utterances,
                    bucket=int(epoch_plan.step_bucket[step]),
                    microbatches=epoch_plan.microbatches(step),
                    audio_s=float(plan.samples[utterances].sum(dtype=np.int64)) / SAMPLE_RATE_HZ,
                    padded_s=plan.padded_samples(epoch_plan, step) / SAMPLE_RATE_HZ,
                ),
            )


def steps_left(plan: Plan, start: Position, epochs: int) -> int:
    """Steps from a position to the end of `epochs` epochs, counted from the first."""
    if start.epoch >= epochs:
        return 0
    return plan.epoch(start.epoch, start.history).steps - start.step + (epochs - start.epoch - 1) * plan.steps_per_epoch


def planned_batches(
    plan: Plan,
    manifest: Manifest,
    start: Position,
    *,
    seed: int,
    reference_samples: int,
    epochs: int | None = None,
    mean_over: Literal["step", "epoch"] = "step",
    replicas: Sequence[int] = (0,),
) -> Iterator[PlannedBatch]:
    """The batches of some replicas from a position on: round by round, in each one of every replica.

    Args:
        start, epochs: see `planned_steps`.
        reference_samples: longest stretch of a reference.
        mean_over: what losses are a mean of; `epoch` makes the losses of all batches add up to the corpus' mean.
        replicas: whose batches, of those that the plan counts.
    """
    for epoch_plan, number, step in planned_steps(plan, start, epochs):
        averaged = step.utterances if mean_over == "step" else epoch_plan.order
        totals = {
            "step_frames": np.float32(frame_count(manifest.samples[averaged]).sum()),
            "step_tokens": np.float32(manifest.token_counts[averaged].sum()),
        }
        shape = plan.shape(step.bucket)
        shares = [epoch_plan.batches(number, replica) for replica in replicas]
        for round_ in range(step.microbatches):
            for replica, share in zip(replicas, shares, strict=True):
                rows, references = share[round_]
                # Its place in the step: accumulated or shared by replicas, the same batches draw the same numbers.
                place = replica * step.microbatches + round_
                random = np.random.default_rng(
                    [seed, step.position.epoch, number, place, *np.ravel(step.position.history)]
                )
                arrays = _arrays(manifest, rows, references, shape, reference_samples, random) | totals
                yield PlannedBatch(
                    step=step,
                    last=round_ == step.microbatches - 1,
                    rows=rows,
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
