"""Stage A, the plan: the utterances of each step, a pure function of (seed, epoch, replicas).

NumPy only: no files, no TensorFlow. The plan has no state between epochs, so a run resumes by
starting at a step. It may resume with another number of replicas, which share the utterances left
in the epoch.

Utterances of similar length share a bucket, and a bucket has one padded length. Sorted by length,
the utterances of a bucket are contiguous: a bucket takes as many whole steps as it can, and the
longest utterances left over move up into the next bucket. So only the last bucket may end in an
incomplete step, and every epoch has the same number of steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ, frame_count
from myxtts.data.manifest import Manifest
from myxtts.data.texts import TeacherRows

# Lengths among which the bounds are chosen.
CANDIDATES = 256

EpochHistory = tuple[tuple[int, int], ...]
"""(replicas, steps) pairs: so many steps of the epoch were taken with so many replicas."""


def bucket_bounds(samples: np.ndarray, buckets: int, step_utterances: int = 1) -> np.ndarray:
    """Choose padded lengths of at most `buckets` buckets such that the total padding is least.

    The minimum over the candidates is exact: dynamic programming over the longest utterance of each
    bucket, as for optimal histograms (Jagadish et al. 1998). Candidates are the lengths at which a
    whole number of steps is full, with the utterances sorted by length, so that few utterances have
    to move up. If there are many, the candidates are the longest in each of CANDIDATES equal
    intervals.

    Args:
        samples: int [N], N ≥ 1.
        buckets: maximum number of buckets.
        step_utterances: utterances in a complete step, if all buckets have the same number.

    Returns:
        int32 [at most `buckets`], ascending multiples of HOP_SAMPLES; the last is not below the
        longest utterance.
    """
    hops = np.sort(-(-np.asarray(samples, np.int64) // HOP_SAMPLES))
    counts = np.append(np.arange(step_utterances, len(hops), step_utterances), len(hops))
    intervals = (hops[counts - 1] - hops[0]) * CANDIDATES // (hops[-1] - hops[0] + 1)
    # The last of each interval.
    counts = counts[np.append(intervals[1:] != intervals[:-1], True)]
    edges = hops[counts - 1]
    return (edges[_cheapest_cuts(counts, edges, buckets)] * HOP_SAMPLES).astype(np.int32)


def _cheapest_cuts(counts: np.ndarray, edges: np.ndarray, buckets: int) -> list[int]:
    """Return the candidates at which buckets end if at most `buckets` have the least padding.

    Ascending, with the last one.

    Args:
        counts: int [C], utterances up to each candidate.
        edges: int [C], length of each candidate.
    """
    before = np.concatenate([[0], counts[:-1]])
    # cost[i, j]: padded length of a bucket from candidate i to candidate j, both included
    cost = np.where(np.tri(len(counts), dtype=bool).T, (counts - before[:, None]) * edges, np.inf)
    # least[j] is the total up to candidate j. Each entry of firsts says where the last bucket then
    # begins.
    least = cost[0]
    firsts = []
    for _ in range(buckets - 1):
        totals = np.concatenate([[0.0], least[:-1]])[:, None] + cost
        firsts.append(totals.argmin(axis=0))
        least = totals.min(axis=0)
    cuts = [len(counts) - 1]
    while firsts and (last := int(firsts.pop()[cuts[0]]) - 1) >= 0:
        cuts.insert(0, last)
    return cuts


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One epoch. N utterances, S steps.

    Attributes:
        order: int32 [N], a permutation of the utterances.
        references: int32 [N], for each entry of `order` another utterance of its speaker, or the
            utterance itself if the speaker has no other.
        step_start: int64 [S + 1], step s has order[step_start[s]:step_start[s + 1]].
        step_bucket: int32 [S].
        batch_sizes: int64 [buckets], utterances in a full batch.
        replicas: number of replicas that share each step.
    """

    order: np.ndarray
    references: np.ndarray
    step_start: np.ndarray
    step_bucket: np.ndarray
    batch_sizes: np.ndarray
    replicas: int

    @property
    def steps(self) -> int:
        return len(self.step_bucket)

    def utterances(self, step: int) -> np.ndarray:
        """Return the utterances of a step, over all replicas: int32."""
        return self.order[self.step_start[step] : self.step_start[step + 1]]

    def microbatches(self, step: int) -> int:
        """Return the number of batches of each replica in a step."""
        utterances = int(self.step_start[step + 1] - self.step_start[step])
        share = -(-utterances // self.replicas)
        return -(-share // int(self.batch_sizes[self.step_bucket[step]]))

    def batches(self, step: int, replica: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the microbatches of a replica in a step, each as (utterances, references), int32.

        In a complete step each replica has `accumulation` full batches. The incomplete step is
        shared evenly: some batches may be shorter or empty, but the first of replica 0 has an
        utterance.
        """
        begin = int(self.step_start[step])
        utterances = int(self.step_start[step + 1]) - begin
        # Rounded up, so that replica 0 has the longest share and is never empty.
        first = begin - (-utterances * replica // self.replicas)
        last = begin - (-utterances * (replica + 1) // self.replicas)
        size = int(self.batch_sizes[self.step_bucket[step]])
        batches = []
        for number in range(self.microbatches(step)):
            start = min(first + number * size, last)
            cut = slice(start, min(start + size, last))
            batches.append((self.order[cut], self.references[cut]))
        return batches


class Plan:
    """The epochs of a corpus of N utterances.

    Attributes:
        bounds: int32 [buckets], padded length of each bucket in samples.
        batch_sizes: int64 [buckets], rows of a batch: no more than each replica's share of the
            corpus.
        step_sizes: int64 [buckets], utterances that a step was asked to have, which may be more
            than the corpus has.
        samples: int [N], length of each utterance.
        replicas: number of replicas that share each step.
        steps_per_epoch: the same in every epoch, since it depends only on the lengths.
    """

    def __init__(
        self,
        samples: np.ndarray,
        token_counts: np.ndarray,
        speakers: np.ndarray,
        *,
        bounds: np.ndarray,
        batch_size: int,
        seed: int,
        batch_seconds: float = 0.0,
        accumulation: int = 1,
        replicas: int = 1,
    ):
        """Lay out the steps of an epoch.

        Args:
            samples, token_counts, speakers: int [N], columns of the manifest; N ≥ 1.
            bounds: padded lengths as by `bucket_bounds`; the last is not below the longest
                utterance.
            seed: source of all randomness, together with the epoch.
            batch_seconds: replaces batch_size by seconds of audio in a batch, padding included; 0
                turns it off.
            accumulation: batches of each replica in one step.
        """
        if samples.max() > bounds[-1]:
            raise ValueError(
                f"an utterance has {samples.max()} samples, but the longest bucket {bounds[-1]}"
            )
        self.bounds = bounds
        asked = np.full(len(bounds), batch_size, np.int64)
        if batch_seconds:
            asked = np.maximum((batch_seconds * SAMPLE_RATE_HZ / bounds).astype(np.int64), 1)
        self.batch_sizes = np.minimum(asked, -(-len(samples) // replicas))
        self.step_sizes = asked * accumulation * replicas
        self.samples = samples
        self.replicas = replicas
        self._seed = seed
        self._replica_step_sizes = asked * accumulation
        # By length.
        self._ranked = np.argsort(samples, kind="stable").astype(np.int32)
        up_to_bound = np.searchsorted(samples[self._ranked], bounds, side="right")
        longest_text = np.maximum.accumulate(token_counts[self._ranked])
        self._padded_tokens = np.concatenate([[0], longest_text])[up_to_bound]
        self._speakers = _Speakers(speakers)

    @cached_property
    def steps_per_epoch(self) -> int:
        return len(self._layout(self._ranked, self.replicas)[1])

    def shape(self, bucket: int) -> tuple[int, int, int]:
        """Return (utterances, samples, tokens) of the batches in a bucket, padding included."""
        columns = (self.batch_sizes, self.bounds, self._padded_tokens)
        rows, samples, tokens = (int(column[bucket]) for column in columns)
        return rows, samples, tokens

    def epoch(self, epoch: int, history: EpochHistory = ()) -> EpochPlan:
        """Plan an epoch, counted from 0, or the rest of one that other numbers of replicas began.

        Args:
            history: the steps taken so far, in their order; their utterances are left out.
        """
        left = self._ranked
        for number, (replicas, steps) in enumerate(history):
            begun = self._shuffle(left, replicas, [epoch, *np.ravel(history[:number])])
            left = left[np.isin(left, begun.order[begun.step_start[steps] :])]
        return self._shuffle(left, self.replicas, [epoch, *np.ravel(history)])

    def _layout(self, ranked: np.ndarray, replicas: int) -> tuple[np.ndarray, np.ndarray]:
        """Divide utterances, int32 and sorted by length, into steps.

        Returns:
            int64 [S + 1], first utterance of each step, then their number; int32 [S], bucket of
            each step.
        """
        up_to_bound = np.searchsorted(self.samples[ranked], self.bounds, side="right")
        step_sizes = self._replica_step_sizes * replicas
        starts = []
        buckets = []
        begin = 0
        for bucket, (end, size) in enumerate(zip(up_to_bound, step_sizes, strict=True)):
            whole_end = end
            if bucket < len(step_sizes) - 1:
                whole_end = begin + (end - begin) // size * size
            starts.append(np.arange(begin, whole_end, size, dtype=np.int64))
            buckets.append(np.full(len(starts[-1]), bucket, np.int32))
            begin = whole_end
        return np.concatenate([*starts, [begin]]), np.concatenate(buckets)

    def _shuffle(self, ranked: np.ndarray, replicas: int, source: list) -> EpochPlan:
        """Shuffle utterances; the order depends on the seed and the integers in `source`."""
        random = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence([self._seed, *map(int, source)]))
        )
        starts, buckets = self._layout(ranked, replicas)
        shuffled = ranked.copy()
        for bucket in np.unique(buckets):
            steps = np.flatnonzero(buckets == bucket)
            random.shuffle(shuffled[starts[steps[0]] : starts[steps[-1] + 1]])
        steps = random.permutation(len(buckets))
        sizes = np.diff(starts)[steps]
        step_start = np.concatenate([[0], np.cumsum(sizes)])
        shift = np.repeat(starts[steps] - step_start[:-1], sizes)
        order = shuffled[np.arange(len(shuffled)) + shift]
        references = self._speakers.draw_others(order, random)
        return EpochPlan(order, references, step_start, buckets[steps], self.batch_sizes, replicas)

    @cached_property
    def padding(self) -> float:
        """Fraction of an epoch's samples that are padding, including empty rows and batches."""
        epoch = self.epoch(0)
        padded = sum(self.padded_samples(epoch, step) for step in range(epoch.steps))
        return 1 - int(self.samples.sum(dtype=np.int64)) / padded

    @cached_property
    def buckets(self) -> list[tuple[int, int, int, float]]:
        """Return (padded length in samples, rows of a batch, utterances, padding) of each bucket.

        The padding is a fraction of the samples of the bucket's steps in an epoch, as in `padding`.
        """
        epoch = self.epoch(0)
        count = len(self.bounds)
        real = np.zeros(count, np.int64)
        padded = np.zeros(count, np.int64)
        utterances = np.zeros(count, np.int64)
        for step, bucket in enumerate(epoch.step_bucket):
            rows = epoch.utterances(step)
            real[bucket] += self.samples[rows].sum(dtype=np.int64)
            padded[bucket] += self.padded_samples(epoch, step)
            utterances[bucket] += len(rows)
        padding = 1 - real / np.maximum(padded, 1)
        columns = (self.bounds, self.batch_sizes, utterances, padding)
        return [row for row in zip(*map(np.ndarray.tolist, columns), strict=True) if row[2]]

    def padded_samples(self, epoch: EpochPlan, step: int) -> int:
        """Return the samples of all batches of a step, padding included."""
        rows, samples, _ = self.shape(epoch.step_bucket[step])
        return rows * samples * epoch.microbatches(step) * epoch.replicas


class _Speakers:
    """Utterances by speaker, for drawing references."""

    def __init__(self, speakers: np.ndarray):
        _, self._group, self._counts = np.unique(speakers, return_inverse=True, return_counts=True)
        self._members = np.argsort(self._group, kind="stable").astype(np.int32)
        self._first = np.cumsum(self._counts) - self._counts
        self._rank = np.empty(len(speakers), np.int64)
        self._rank[self._members] = np.arange(len(speakers)) - np.repeat(self._first, self._counts)

    def draw_others(self, utterances: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draw another utterance of the speaker of each, or itself if there is no other: int32."""
        group = self._group[utterances]
        others = self._counts[group] - 1
        rank = random.integers(0, np.maximum(others, 1))
        rank += (rank >= self._rank[utterances]) & (others > 0)
        return self._members[self._first[group] + rank]


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
        if not self.step:
            return self
        return Position(self.epoch, 0, (*self.history, (previous_replicas, self.step)))


class Pass(NamedTuple):
    """A way through the plan.

    Attributes:
        start: position of the first step.
        epochs: the last epoch plus 1; endless if None.
        mean_over: what the losses are averaged over; with `epoch` the losses of all batches add up
            to the mean of the corpus.
    """

    start: Position = Position()
    epochs: int | None = None
    mean_over: Literal["step", "epoch"] = "step"


HELD_OUT_PASS = Pass(epochs=1, mean_over="epoch")


class Turn(NamedTuple):
    """Which microbatches one of several producers makes, counted from where the feed begins.

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
) -> Iterator[tuple[EpochPlan, PlannedStep]]:
    """Yield the steps from a position on, to the end of `epochs` epochs or endlessly."""
    planned_epochs = count(start.epoch) if epochs is None else range(start.epoch, epochs)
    for epoch in planned_epochs:
        first = start if epoch == start.epoch else Position(epoch)
        epoch_plan = plan.epoch(epoch, first.history)
        for step in range(first.step, epoch_plan.steps):
            utterances = epoch_plan.utterances(step)
            next_position = first._replace(step=step + 1)
            if next_position.step == epoch_plan.steps:
                next_position = Position(epoch + 1)
            planned_step = PlannedStep(
                position=first._replace(step=step),
                next_position=next_position,
                utterances=utterances,
                bucket=int(epoch_plan.step_bucket[step]),
                microbatches=epoch_plan.microbatches(step),
                audio_s=float(plan.samples[utterances].sum(dtype=np.int64)) / SAMPLE_RATE_HZ,
                padded_s=plan.padded_samples(epoch_plan, step) / SAMPLE_RATE_HZ,
            )
            yield epoch_plan, planned_step


def steps_left(plan: Plan, start: Position, epochs: int) -> int:
    """Return the number of steps from a position to the end of `epochs` epochs."""
    if start.epoch >= epochs:
        return 0
    steps = plan.epoch(start.epoch, start.history).steps - start.step
    return steps + (epochs - start.epoch - 1) * plan.steps_per_epoch


def planned_batches(
    plan: Plan,
    manifest: Manifest,
    corpus_pass: Pass,
    *,
    seed: int,
    reference_samples: int,
    replicas: Sequence[int] = (0,),
    turn: Turn = ALL_TURNS,
    teacher_rows: TeacherRows | None = None,
) -> Iterator[PlannedBatch]:
    """Yield the batches of some replicas: by step, then by microbatch, then by replica.

    A batch is the same whoever makes it, and whatever the turns are.

    Args:
        reference_samples: longest stretch of a reference.
        replicas: numbers of the replicas within the plan.
        turn: which microbatches to yield.
        teacher_rows: which rows a teacher speaks. They count as the utterances whose place they
            take.
    """
    microbatches = count()
    for epoch_plan, step in planned_steps(plan, corpus_pass.start, corpus_pass.epochs):
        epoch, number, history = step.position
        averaged_rows = step.utterances
        if corpus_pass.mean_over == "epoch":
            averaged_rows = epoch_plan.order
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
                random = np.random.default_rng([seed, epoch, number, place, *np.ravel(history)])
                arrays = _arrays(manifest, rows, references, shape, reference_samples, random)
                arrays |= totals
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
