"""Stage A: the content of each batch, before anything is read.

NumPy only. The same arguments give the same batches, so a run can start at any position at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ, frame_count
from myxtts.data.batch_plan import EpochHistory, EpochPlan, Plan
from myxtts.data.manifest import Manifest
from myxtts.data.texts import TeacherRows


class Position(NamedTuple):
    """The next step of a run: the state of the data in a checkpoint.

    Attributes:
        epoch: counted from 0.
        step: within the epoch, or within the part of it that `history` has left.
        history: see `Plan.epoch`; empty unless the number of replicas changed during this epoch.
    """

    epoch: int = 0
    step: int = 0
    history: EpochHistory = ()

    def after_resize(self, previous_replicas: int) -> "Position":
        """Return this position for a run that continues with another number of replicas."""
        return (
            Position(self.epoch, 0, (*self.history, (previous_replicas, self.step)))
            if self.step
            else self
        )


class Turn(NamedTuple):
    """Which microbatches one of several producers makes, counted from the position where the feed
    begins.

    Attributes:
        number: of the producer, from 0; microbatch n is made by number n mod `producers`.
        producers: that take turns.
    """

    number: int = 0
    producers: int = 1


ALL_TURNS = Turn()


class PlannedStep(NamedTuple):
    """One optimizer step over all replicas.

    Attributes:
        position: of this step.
        next_position: of the step after it.
        utterances: int32, manifest rows of all batches.
        bucket: index of the bucket, which determines the shape of the batches.
        microbatches: batches of each replica in this step (gradient accumulation).
        audio_s: seconds of speech.
        padded_s: seconds of speech and padding.
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
    """One batch of one replica, before it is read.

    Attributes:
        step: the step of this batch.
        last: whether it is the replica's last batch in the step.
        rows: int32 [utterances], manifest rows; the batch is filled up with empty rows.
        audio_s: seconds of speech.
        padded_s: seconds of speech and padding.
        arrays: the arrays by which it is read; see `_arrays`.
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
    """Yield the steps from a position on, each as (plan of its epoch, index in the epoch, step).

    Args:
        start: position of the first step.
        epochs: the last epoch plus 1; endless if None.
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
                    next_position=(
                        Position(epoch + 1) if ends else Position(epoch, step + 1, history)
                    ),
                    utterances=utterances,
                    bucket=int(epoch_plan.step_bucket[step]),
                    microbatches=epoch_plan.microbatches(step),
                    audio_s=float(plan.samples[utterances].sum(dtype=np.int64)) / SAMPLE_RATE_HZ,
                    padded_s=plan.padded_samples(epoch_plan, step) / SAMPLE_RATE_HZ,
                ),
            )


def steps_left(plan: Plan, start: Position, epochs: int) -> int:
    """Return the number of steps from a position to the end of `epochs` epochs, counted from the
    first.
    """
    if start.epoch >= epochs:
        return 0
    return (
        plan.epoch(start.epoch, start.history).steps
        - start.step
        + (epochs - start.epoch - 1) * plan.steps_per_epoch
    )


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
    turn: Turn = ALL_TURNS,
    teacher_rows: TeacherRows | None = None,
) -> Iterator[PlannedBatch]:
    """Yield the batches of some replicas from a position on: by step, then by microbatch, then by
    replica.

    A batch is the same whoever makes it, and whatever the turns are.

    Args:
        start, epochs: see `planned_steps`.
        seed: source of the batches' randomness.
        reference_samples: longest stretch of a reference.
        mean_over: what the losses are averaged over; with `epoch` the losses of all batches add up
            to the mean of the corpus.
        replicas: numbers of the replicas within the plan.
        turn: which microbatches to yield.
        teacher_rows: which rows a teacher speaks. They count as the utterances whose place they
            take.
    """
    microbatches = count()
    for epoch_plan, number, step in planned_steps(plan, start, epochs):
        averaged_rows = step.utterances if mean_over == "step" else epoch_plan.order
        totals = {
            "step_frames": np.array(frame_count(manifest.samples[averaged_rows]).sum(), np.float32),
            "step_tokens": np.array(manifest.token_counts[averaged_rows].sum(), np.float32),
        }
        shape = plan.shape(step.bucket)
        shares = [epoch_plan.batches(number, replica) for replica in replicas]
        for microbatch in range(step.microbatches):
            if next(microbatches) % turn.producers != turn.number:
                continue
            for replica, share in zip(replicas, shares, strict=True):
                rows, references = share[microbatch]
                # The same batches draw the same numbers, whether one replica accumulates them or
                # several share them.
                place = replica * step.microbatches + microbatch
                random = np.random.default_rng(
                    [seed, step.position.epoch, number, place, *np.ravel(step.position.history)]
                )
                arrays = (
                    _arrays(manifest, rows, references, shape, reference_samples, random) | totals
                )
                if teacher_rows is not None:
                    arrays = teacher_rows.replace(
                        arrays, len(rows), manifest, reference_samples, random
                    )
                yield PlannedBatch(
                    step=step,
                    last=microbatch == step.microbatches - 1,
                    rows=rows,
                    audio_s=float(manifest.samples[rows].sum(dtype=np.int64)) / SAMPLE_RATE_HZ,
                    padded_s=shape[0] * shape[1] / SAMPLE_RATE_HZ,
                    arrays=arrays,
                )


def _arrays(manifest, rows, references, shape, reference_samples, random) -> dict[str, np.ndarray]:
    """The arrays of one batch: manifest rows with the stretch to read of each, and the text."""
    size, padded_samples, padded_tokens = shape
    reference_length = np.minimum(manifest.samples[references], reference_samples)
    latest_start = manifest.samples[references] - reference_length
    columns = {
        "row": rows,
        "samples": manifest.samples[rows],
        "frames": frame_count(manifest.samples[rows]),
        "reference_row": references,
        "reference_start": (random.random(len(rows)) * (latest_start + 1)).astype(np.int32),
        "reference_samples": reference_length,
        "token_count": manifest.token_counts[rows],
        "utterance_tokens": manifest.token_counts[rows],
        "language": manifest.language[rows],
    }
    filled = {name: np.resize(np.int32(0), size) for name in columns}
    for name, column in columns.items():
        filled[name][: len(rows)] = column
    return filled | {
        "tokens": manifest.padded_tokens(rows, size, padded_tokens),
        "padded_samples": np.array(padded_samples, np.int32),
        "seed": random.integers(-(2**31), 2**31, 2, dtype=np.int32),
    }
