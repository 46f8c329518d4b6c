"""Stage A of a batch's life, the plan: which utterances each step takes.

What comes in are the lengths, token counts and speakers of a manifest. At the start of a run, the
main thread chooses padded lengths (`bucket_bounds`) and divides the rows of a step among the
replicas (`Plan`). Then, some steps ahead of training, `planned_batches` shuffles an epoch, follows
it step by step and makes the arrays of each batch. What goes out are these arrays, in the order of
training. The threads of tf.data ask for them, one at a time. Nothing here needs TensorFlow.

The plan is a pure function of (seed, epoch, replicas), without state between epochs. So a run
resumes by starting at a step, also with another number of replicas, which share the utterances left
in the epoch. The share of each replica only changes who takes which rows of a step.

Utterances of similar length share a bucket, and a bucket has one padded length. Only the last
bucket may end in an incomplete step, and every epoch has the same number of steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, repeat
from typing import Literal, NamedTuple

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, frame_count, sample_rate_hz
from myxtts.base.errors import ConfigError
from myxtts.base.progress import EpochHistory, Position
from myxtts.corpus.manifest import Manifest
from myxtts.corpus.texts import TeacherRows

# `bucket_bounds` makes a square table of costs, which takes 512 KiB for so many candidates.
CANDIDATES = 256


# The lengths are counted in hops and sorted, so a bucket is a stretch of the sorted utterances, and
# only its end is to be chosen. First the candidates for such ends are picked. Then cost[i, j] is
# the padded total of a bucket that begins behind candidate i - 1 and ends with candidate j. Each
# further bucket is one round of the recurrence: the best total up to j is the best total up to some
# earlier candidate plus the cost of the last bucket. Every round remembers where its last bucket
# begins. Finally the bounds are read off backwards, from the longest utterance to the shortest.
def bucket_bounds(samples: np.ndarray, buckets: int, step_utterances: int = 1) -> np.ndarray:
    """Choose padded lengths of at most `buckets` buckets such that the total padding is least.

    The minimum over the candidates is exact: dynamic programming over the longest utterance of each
    bucket, as for optimal histograms (Jagadish et al. 1998). Candidates are the lengths at which a
    whole number of steps of `step_utterances` is full, with the utterances sorted by length, so
    that few of them have to move up. Where there are too many, each of CANDIDATES equal intervals
    keeps its longest.

    Returns int32 [at most `buckets`], ascending multiples of HOP_SAMPLES; the last is not below the
    longest utterance.
    """
    hops = np.sort(-(-np.asarray(samples, np.int64) // HOP_SAMPLES))
    counts = np.append(np.arange(step_utterances, len(hops), step_utterances), len(hops))
    intervals = (hops[counts - 1] - hops[0]) * CANDIDATES // (hops[-1] - hops[0] + 1)
    counts = counts[np.append(intervals[1:] != intervals[:-1], True)]
    edges = hops[counts - 1]
    before = np.concatenate([[0], counts[:-1]])
    cost = np.where(np.tri(len(counts), dtype=bool).T, (counts - before[:, None]) * edges, np.inf)
    # least[j] is the least total up to candidate j. A stretch that ends before it begins costs inf.
    least = cost[0]
    firsts = []
    for _ in range(buckets - 1):
        totals = np.concatenate([[0.0], least[:-1]])[:, None] + cost
        firsts.append(totals.argmin(axis=0))
        least = totals.min(axis=0)
    ends = [len(counts) - 1]
    while firsts and (last := int(firsts.pop()[ends[0]]) - 1) >= 0:
        ends.insert(0, last)
    return (edges[ends] * HOP_SAMPLES).astype(np.int32)


def deal_rows(rows: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Deal numbers of rows in proportion to shares, by largest remainder: int64 [rows, shares].

    Where remainders are equal, the first shares get a row.
    """
    exact = np.outer(rows, np.divide(shares, np.sum(shares)))
    # Everybody gets the whole rows. A share of exactly n rows may be computed as slightly less.
    dealt = np.floor(exact + 1e-9)
    # The rows left over, fewer than the shares, go to those who lost most by rounding down.
    left = rows - dealt.sum(axis=1)
    rank = np.argsort(np.argsort(dealt - exact, axis=1, kind="stable"), axis=1)
    return (dealt + (rank < left[:, None])).astype(np.int64)


# Each level of the water tells how much everybody takes to reach it. That amount grows with the
# level, in straight lines between the levels at which somebody begins or is full. So the amounts at
# these corners are computed, and the level of the wanted amount lies on the line between two.
def water_fill(
    fixed: np.ndarray, each: np.ndarray, amount: float, most: np.ndarray | float = np.inf
) -> np.ndarray:
    """Divide `amount` so that the largest cost `fixed + each × share` is as small as possible.

    No share exceeds `most`, so a part of a large amount may be left over. Returns float64 [n].
    """
    most = np.minimum(most, amount)
    levels = np.sort([fixed, fixed + each * most], axis=None)

    def taken(level):
        return np.clip((level - fixed) / each, 0.0, most)

    return taken(np.interp(amount, taken(levels[:, None]).sum(axis=1), levels))


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The order of one epoch: N utterances in S steps.

        for step in range(epoch_plan.steps):
            for rows, references in epoch_plan.batches(step, replica=0):

    Attributes:
        order: int32 [N], a permutation of the utterances.
        references: int32 [N], for each entry of `order` another utterance of its speaker, or the
            utterance itself if the speaker has no other.
        step_start: int64 [S + 1], step s has order[step_start[s]:step_start[s + 1]].
        step_bucket: int32 [S].
        batch_sizes: int64 [buckets, replicas], utterances in a full batch.
    """

    order: np.ndarray
    references: np.ndarray
    step_start: np.ndarray
    step_bucket: np.ndarray
    batch_sizes: np.ndarray

    @property
    def steps(self) -> int:
        return len(self.step_bucket)

    def utterances(self, step: int) -> np.ndarray:
        return self.order[self.step_start[step] : self.step_start[step + 1]]

    @cached_property
    def _share_start(self) -> np.ndarray:
        """int64 [S, replicas + 1], where the share of each replica begins in `order`.

        The incomplete step is shared in proportion to the batch sizes of the replicas. The ends are
        rounded up, so that the first replica with rows is never empty.
        """
        ends = np.cumsum(self.batch_sizes, axis=1)[self.step_bucket]
        utterances = np.diff(self.step_start)[:, None]
        ends = self.step_start[:-1, None] - (-utterances * ends // ends[:, -1:])
        return np.column_stack([self.step_start[:-1], ends])

    @cached_property
    def microbatches(self) -> np.ndarray:
        """int64 [S], batches of each replica in a step: as many as the fullest replica needs."""
        sizes = np.maximum(self.batch_sizes, 1)[self.step_bucket]
        return (-(-np.diff(self._share_start) // sizes)).max(axis=1)

    def batches(self, step: int, replica: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the microbatches of a replica in a step, each as (utterances, references), int32.

        Some batches of the incomplete step may be shorter or empty.
        """
        first, last = self._share_start[step, replica : replica + 2].tolist()
        size = int(self.batch_sizes[self.step_bucket[step], replica])
        batches = []
        for number in range(self.microbatches[step]):
            start = min(first + number * size, last)
            cut = slice(start, min(start + size, last))
            batches.append((self.order[cut], self.references[cut]))
        return batches


class Plan:
    """The epochs of a corpus of N ≥ 1 utterances.

        plan = Plan(samples, token_counts, speakers, bounds=bounds, batch_size=16, seed=0)
        for epoch_plan, step in planned_steps(plan, Position(), epochs=2):

    `samples`, `token_counts` and `speakers` are columns of the manifest, and `bucket_bounds` gives
    `bounds`. Seed and epoch are the source of all randomness. `batch_seconds` of audio, padding
    included, replace batch_size unless they are 0. For `shares` see `deal`.

    Attributes:
        batch_sizes: int64 [buckets, replicas], rows of a batch. Together the replicas have no more
            than the corpus, rounded up to the same number for each.
        shares: the share of each replica, or empty for equal shares.
        step_sizes: int64 [buckets], utterances that a step was asked to have, which may be more
            than the corpus has.
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
        shares: Sequence[float] = (),
    ):
        assert samples.max() <= bounds[-1]
        self.bounds = bounds
        asked = np.full(len(bounds), batch_size, np.int64)
        if batch_seconds:
            asked = np.maximum((batch_seconds * sample_rate_hz() / bounds).astype(np.int64), 1)
        self._dealt_rows = replicas * np.minimum(asked, -(-len(samples) // replicas))
        self.step_sizes = asked * accumulation * replicas
        self.samples = samples
        self.replicas = replicas
        self._seed = seed
        self._speakers = speakers
        self._replica_step_sizes = asked * accumulation
        self._by_length = np.argsort(samples, kind="stable").astype(np.int32)
        # The longest text up to a bound also covers shorter utterances, which may move up.
        up_to_bound = np.searchsorted(samples[self._by_length], bounds, side="right")
        longest_text = np.maximum.accumulate(token_counts[self._by_length])
        self._padded_tokens = np.concatenate([[0], longest_text])[up_to_bound]
        self.deal(shares)

    def deal(self, shares: Sequence[float]) -> None:
        """Deal the rows of a step in proportion to the shares of the replicas; () deals equally.

        This holds for epochs that are planned from now on. A replica may get no row of a small
        batch. Raises ConfigError if it never gets one.
        """
        equal = [1.0] * self.replicas
        batch_sizes = deal_rows(self._dealt_rows, shares or equal)
        for replica in np.flatnonzero(~batch_sizes.any(axis=0)):
            raise ConfigError(
                f"--batch-shares {' '.join(f'{share:g}' for share in shares)} leaves replica"
                f" {replica} none of the {self._dealt_rows.max()} rows that all replicas take at a"
                " time. Give it a larger share, leave its GPU out, or raise --batch-size."
            )
        self.shares, self.batch_sizes = tuple(shares), batch_sizes

    @cached_property
    def steps_per_epoch(self) -> int:
        """The same in every epoch, since it depends only on the lengths."""
        return len(self._layout(self._by_length, self.replicas)[1])

    def describe_rows(self) -> str:
        """Return the rows of the batches of each replica: `5 + 11`, or `2 to 5 + 4 to 11`."""
        ranges = []
        sizes = self.batch_sizes
        for low, high in zip(sizes.min(axis=0), sizes.max(axis=0), strict=True):
            ranges.append(f"{low} to {high}" if low < high else f"{high}")
        return " + ".join(ranges)

    def shape(self, bucket: int) -> tuple[int, int, int]:
        """Return (utterances, samples, tokens) of the largest batch in a bucket, with padding.

        It belongs to the replica with the most rows.
        """
        columns = (self.batch_sizes.max(axis=1), self.bounds, self._padded_tokens)
        rows, samples, tokens = (int(column[bucket]) for column in columns)
        return rows, samples, tokens

    # A run that was resumed with other replicas within an epoch has a history: with so many
    # replicas it took so many steps, and then with so many. Each of these parts is planned again,
    # as it was planned then, and the utterances of its steps are struck off. What is left is
    # planned for the replicas of today. The history is a part of the seed, so that every part of an
    # epoch is shuffled in its own way.
    def epoch(self, epoch: int, history: EpochHistory = ()) -> EpochPlan:
        """Plan an epoch, counted from 0, or the rest of it after the steps of `history`."""
        left = self._by_length
        for number, (replicas, steps) in enumerate(history):
            begun = self._shuffle(left, replicas, [epoch, *np.ravel(history[:number])])
            left = left[np.isin(left, begun.order[begun.step_start[steps] :])]
        return self._shuffle(left, self.replicas, [epoch, *np.ravel(history)])

    # The buckets are filled from the shortest. Each cuts its utterances, with those that the bucket
    # before left over, into whole steps. The rest, which are its longest, begin the next bucket.
    # Only the last bucket also cuts its rest into a step, the incomplete one.
    def _layout(self, ranked: np.ndarray, replicas: int) -> tuple[np.ndarray, np.ndarray]:
        """Divide utterances, sorted by length, into steps: as `step_start` and `step_bucket`."""
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

    # What comes in is sorted by length. First the utterances of each bucket are shuffled among
    # themselves, which makes the steps. Then the steps of all buckets are shuffled: every step
    # moves as a block, by `shift` places, to its new start. Finally each utterance draws its
    # reference. All draws come from one generator in this order, which must stay as it is: the
    # order of an epoch depends on it, and so does a resumed run.
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
        references = self._draw_references(order, random)
        return EpochPlan(order, references, step_start, buckets[steps], self.batch_sizes)

    # `members` lists the utterances speaker by speaker, and `rank_of` the place of each within its
    # speaker. A speaker of n utterances has n - 1 others, so a rank below n - 1 is drawn. Ranks
    # from the utterance's own on are raised by one, which leaves out itself and nothing else.
    def _draw_references(self, utterances: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draw another utterance of the speaker of each, or itself if there is no other: int32."""
        _, group, counts = np.unique(self._speakers, return_inverse=True, return_counts=True)
        members = np.argsort(group, kind="stable").astype(np.int32)
        first = np.cumsum(counts) - counts
        rank_of = np.empty(len(group), np.int64)
        rank_of[members] = np.arange(len(group)) - np.repeat(first, counts)
        group = group[utterances]
        others = counts[group] - 1
        rank = random.integers(0, np.maximum(others, 1))
        rank += (rank >= rank_of[utterances]) & (others > 0)
        return members[first[group] + rank]

    def padded_samples(self, epoch: EpochPlan) -> np.ndarray:
        """Return the samples of all batches of each step, padding included: int64 [S]."""
        shapes = np.maximum(epoch.batch_sizes, 1).sum(axis=1) * self.bounds
        return shapes[epoch.step_bucket] * epoch.microbatches

    @cached_property
    def padding(self) -> float:
        """Fraction of an epoch's samples that are padding, including empty rows and batches."""
        padded = self.padded_samples(self.epoch(0)).sum()
        return float(1 - self.samples.sum(dtype=np.int64) / padded)

    @cached_property
    def buckets(self) -> list[tuple[int, int, int, float]]:
        """Return (padded samples, rows of the largest batch, utterances, padding) by bucket."""
        epoch = self.epoch(0)
        count = len(self.bounds)
        bucket = np.repeat(epoch.step_bucket, np.diff(epoch.step_start))
        utterances = np.bincount(bucket, minlength=count)
        real = np.bincount(bucket, self.samples[epoch.order], count)
        padded = np.bincount(epoch.step_bucket, self.padded_samples(epoch), count)
        padding = 1 - real / np.maximum(padded, 1)
        rows = zip(
            self.bounds.tolist(),
            self.batch_sizes.max(axis=1).tolist(),
            utterances.tolist(),
            padding.tolist(),
            strict=True,
        )
        return [row for row in rows if row[2]]


class Pass(NamedTuple):
    """A way through the plan: from a position to the end of `epochs` epochs, or endlessly.

    A loss averaged over the epoch is a share: the shares of all batches add up to the mean of the
    corpus.
    """

    start: Position = Position()
    epochs: int | None = None
    mean_over: Literal["step", "epoch"] = "step"


HELD_OUT_PASS = Pass(epochs=1, mean_over="epoch")


class PlannedStep(NamedTuple):
    """One optimizer step over all replicas: `utterances` are the manifest rows of all batches."""

    position: Position
    next_position: Position
    utterances: np.ndarray
    bucket: int
    microbatches: int
    audio_s: float
    padded_s: float


@dataclass(frozen=True)
class PlannedBatch:
    """One batch of one replica, perhaps its last in the step, and the arrays by which it is read.

    `rows` are rows of the manifest, int32 [utterances]. The batch is filled up with empty rows.
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
        padded_s = plan.padded_samples(epoch_plan) / sample_rate_hz()
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
                microbatches=int(epoch_plan.microbatches[step]),
                audio_s=_seconds_of(plan.samples[utterances]),
                padded_s=float(padded_s[step]),
            )
            yield epoch_plan, planned_step


def _seconds_of(samples: np.ndarray) -> float:
    return float(samples.sum(dtype=np.int64)) / sample_rate_hz()


def steps_left(plan: Plan, start: Position, epochs: int) -> int:
    """Return the number of steps from a position to the end of `epochs` epochs."""
    if start.epoch >= epochs:
        return 0
    steps = plan.epoch(start.epoch, start.history).steps - start.step
    return steps + (epochs - start.epoch - 1) * plan.steps_per_epoch


# For each step, first come the totals by which its losses are divided: they cover all batches of
# all replicas, also of other processes, so that each loss is a share of the loss of the step. Then
# the sizes of the batches and the share of each replica are looked up, and the batches follow,
# microbatch by microbatch, replica by replica. Each batch gets a generator of its own, seeded by
# its place in the run. So a batch does not depend on who makes it, or on batches before it. A
# microbatch whose turn is false belongs to another producer of the same replicas, and is skipped.
def planned_batches(
    plan: Plan,
    manifest: Manifest,
    corpus_pass: Pass,
    *,
    seed: int,
    reference_samples: int,
    replicas: Sequence[int] = (0,),
    turns: Iterable[bool] | None = None,
    teacher_rows: TeacherRows | None = None,
) -> Iterator[PlannedBatch]:
    """Yield the batches of some replicas: by step, then by microbatch, then by replica.

    A batch is the same whoever makes it. `turns` says which microbatches of the pass to yield, by
    default all. A row that a teacher speaks counts as the utterance whose place it takes. A
    reference has at most `reference_samples`.
    """
    turns = iter(turns or repeat(True))
    for epoch_plan, step in planned_steps(plan, corpus_pass.start, corpus_pass.epochs):
        epoch, number, history = step.position
        averaged_rows = step.utterances
        if corpus_pass.mean_over == "epoch":
            averaged_rows = epoch_plan.order
        totals = {
            "step_frames": np.array(frame_count(manifest.samples[averaged_rows]).sum(), np.float32),
            "step_tokens": np.array(manifest.token_counts[averaged_rows].sum(), np.float32),
        }
        # The sizes are the epoch's, since the main thread may deal the plan anew meanwhile. Each
        # batch has a row, which may be empty.
        sizes = np.maximum(epoch_plan.batch_sizes[step.bucket], 1)[[*replicas]].tolist()
        shapes = [(size, *plan.shape(step.bucket)[1:]) for size in sizes]
        shares = [epoch_plan.batches(number, replica) for replica in replicas]
        for microbatch in range(step.microbatches):
            if not next(turns):
                continue
            for replica, shape, share in zip(replicas, shapes, shares, strict=True):
                rows, references = share[microbatch]
                # One replica that accumulates n batches counts them like n replicas with one each,
                # so both draw the same numbers.
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
                    audio_s=_seconds_of(manifest.samples[rows]),
                    padded_s=shape[0] * shape[1] / sample_rate_hz(),
                    arrays=arrays,
                )


# Every column has an entry for each utterance of the batch, and is filled up with zeros to the size
# of the bucket's batches. A row of 0 samples is empty: reading makes silence of it, and losses
# ignore it. Each reference begins at a random place that leaves it its full length. The seed is
# drawn last, for the random operations of the model.
def _arrays(manifest, rows, references, shape, reference_samples, random) -> dict[str, np.ndarray]:
    """Return the arrays of one batch: which stretch to read of which utterance, and the text."""
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
