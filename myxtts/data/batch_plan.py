"""The plan: which utterances make up each step of an epoch, a pure function of (seed, epoch, replicas).

Numpy only, no files, no TensorFlow. Nothing is kept between epochs, so resuming is starting at a step; also with
another number of replicas, which share what the steps taken so far have left of the epoch.

Utterances of like length share a bucket, and a bucket has one padded length. With the utterances sorted by
length, each bucket is a stretch of them: it takes as many whole steps as it can, and the longest that are
left over move up into the next bucket. So only the last bucket may end in an incomplete step, and the number of
steps is the same in every epoch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ

CANDIDATES = 256  # lengths among which the bounds are chosen

EpochHistory = tuple[tuple[int, int], ...]


def bucket_bounds(samples: np.ndarray, buckets: int, step_utterances: int = 1) -> np.ndarray:
    """Padded lengths of at most `buckets` buckets such that all utterances together are padded least.

    The least is exact among the candidates: dynamic programming over the longest utterance of each bucket, as for
    optimal histograms (Jagadish et al. 1998). Candidates are the lengths at which, with the utterances sorted by
    length, a whole number of steps is full, so that few utterances have to move up; of many, the longest in
    each of CANDIDATES equal intervals.

    Args:
        samples: int [N], N ≥ 1.
        buckets: the most that there may be.
        step_utterances: utterances in a complete step, where it is the same for all buckets.

    Returns:
        int32 [at most `buckets`], ascending multiples of HOP_SAMPLES; the last is not below the longest utterance.
    """
    hops = np.sort(-(-np.asarray(samples, np.int64) // HOP_SAMPLES))
    held = np.append(np.arange(step_utterances, len(hops), step_utterances), len(hops))
    intervals = (hops[held - 1] - hops[0]) * CANDIDATES // (hops[-1] - hops[0] + 1)
    held = held[np.append(intervals[1:] != intervals[:-1], True)]  # the last of each interval
    edges = hops[held - 1]
    return (edges[_cheapest_cuts(held, edges, buckets)] * HOP_SAMPLES).astype(np.int32)


def _cheapest_cuts(held: np.ndarray, edges: np.ndarray, buckets: int) -> list[int]:
    """Candidates, ascending and with the last one, at which at most `buckets` buckets end and are padded least.

    Args:
        held: int [C], utterances up to each candidate.
        edges: int [C], its length.
    """
    before = np.concatenate([[0], held[:-1]])
    # cost[i, j]: padded length of one bucket with what lies between candidates i and j, both included
    cost = np.where(np.tri(len(held), dtype=bool).T, (held - before[:, None]) * edges, np.inf)
    least, firsts = cost[0], []  # least[j]: of all up to candidate j; firsts: where the last bucket then begins
    for _ in range(buckets - 1):
        totals = np.concatenate([[0.0], least[:-1]])[:, None] + cost
        firsts.append(totals.argmin(axis=0))
        least = totals.min(axis=0)
    cuts = [len(held) - 1]
    while firsts and (last := int(firsts.pop()[cuts[0]]) - 1) >= 0:
        cuts.insert(0, last)
    return cuts


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One epoch. N utterances, S steps.

    Attributes:
        order: int32 [N], a permutation of the utterances.
        reference: int32 [N], for each entry of `order` another utterance of its speaker, or itself where the
            speaker has one only.
        step_start: int64 [S + 1], step s has order[step_start[s]:step_start[s + 1]].
        step_bucket: int32 [S].
        batch_sizes: int64 [buckets], utterances in a full batch.
        replicas: how many share each step.
    """

    order: np.ndarray
    reference: np.ndarray
    step_start: np.ndarray
    step_bucket: np.ndarray
    batch_sizes: np.ndarray
    replicas: int

    @property
    def steps(self) -> int:
        return len(self.step_bucket)

    def utterances(self, step: int) -> np.ndarray:
        """int32: all utterances of a step, those of all replicas."""
        return self.order[self.step_start[step] : self.step_start[step + 1]]

    def microbatches(self, step: int) -> int:
        """Batches that each replica takes in a step."""
        utterances = int(self.step_start[step + 1] - self.step_start[step])
        share = -(-utterances // self.replicas)
        return -(-share // int(self.batch_sizes[self.step_bucket[step]]))

    def batches(self, step: int, replica: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
        """One replica's batches of a step, one for each round, each as (utterances, references), int32.

        A complete step gives each replica `accumulation` full batches. The incomplete one is shared evenly: some
        batches may be shorter or without an utterance, but the first of replica 0 always has one.
        """
        begin, end = self.step_start[step], self.step_start[step + 1]
        first, last = (int(begin - (begin - end) * part // self.replicas) for part in (replica, replica + 1))  # ceil
        size = int(self.batch_sizes[self.step_bucket[step]])
        starts = [min(first + round_ * size, last) for round_ in range(self.microbatches(step))]
        cuts = [slice(at, min(at + size, last)) for at in starts]
        return [(self.order[cut], self.reference[cut]) for cut in cuts]


class Plan:
    """The epochs of one corpus under one setting. N utterances.

    Attributes:
        bounds: int32 [buckets], padded length of each bucket in samples.
        batch_sizes: int64 [buckets], utterances in a batch.
        samples: int [N], length of each utterance.
        replicas: how many share each step.
        steps_per_epoch: the same in every epoch, since it follows from the lengths alone.
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
        """Lays out the steps of an epoch.

        Args:
            samples, token_counts, speakers: int [N], columns of the manifest; N ≥ 1.
            bounds: as by `bucket_bounds`, the last not below the longest utterance.
            batch_size: utterances in a batch.
            seed: with the epoch, the source of all randomness.
            batch_seconds: audio seconds in a batch, padding included, instead of batch_size; 0 is off.
            accumulation: batches that a replica takes in one step.
            replicas: how many share each step.
        """
        if samples.max() > bounds[-1]:
            raise ValueError(f"an utterance has {samples.max()} samples, but the longest bucket {bounds[-1]}")
        self.bounds = bounds
        self.batch_sizes = np.full(len(bounds), batch_size, np.int64)
        if batch_seconds:
            self.batch_sizes = np.maximum((batch_seconds * SAMPLE_RATE_HZ / bounds).astype(np.int64), 1)
        self.samples, self.replicas = samples, replicas
        self._seed, self._accumulation = seed, accumulation
        self._ranked = np.argsort(samples, kind="stable").astype(np.int32)  # by length
        up_to_bound = np.searchsorted(samples[self._ranked], bounds, side="right")
        longest_text = np.maximum.accumulate(token_counts[self._ranked])
        self._padded_tokens = np.concatenate([[0], longest_text])[up_to_bound]
        self._speakers = _Speakers(speakers)

    @cached_property
    def steps_per_epoch(self) -> int:
        return len(self._laid_out(self._ranked, self.replicas)[1])

    def shape(self, bucket: int) -> tuple[int, int, int]:
        """(utterances, samples, tokens) of every batch in a bucket, padding included."""
        return int(self.batch_sizes[bucket]), int(self.bounds[bucket]), int(self._padded_tokens[bucket])

    def epoch(self, epoch: int, history: EpochHistory = ()) -> EpochPlan:
        """The plan of one epoch, counted from 0; of what is left of it where it was begun by others.

        Args:
            history: (replicas, steps) of those that began it, in their order: so many steps were taken by so many
                replicas, and none of their utterances is in the plan.
        """
        left = self._ranked
        for number, (replicas, steps) in enumerate(history):
            begun = self._drawn(left, replicas, [epoch, *np.ravel(history[:number])])
            left = left[np.isin(left, begun.order[begun.step_start[steps] :])]
        return self._drawn(left, self.replicas, [epoch, *np.ravel(history)])

    def _laid_out(self, ranked: np.ndarray, replicas: int) -> tuple[np.ndarray, np.ndarray]:
        """`_lay_out` of some utterances, int32 and sorted by length, for a number of replicas."""
        up_to_bound = np.searchsorted(self.samples[ranked], self.bounds, side="right")
        return _lay_out(up_to_bound, self.batch_sizes * self._accumulation * replicas)

    def _drawn(self, ranked: np.ndarray, replicas: int, source: list) -> EpochPlan:
        """Some utterances in an order that is a function of the seed and of `source`, whole numbers."""
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, *map(int, source)])))
        starts, buckets = self._laid_out(ranked, replicas)
        shuffled = ranked.copy()
        for bucket in np.unique(buckets):
            steps = np.flatnonzero(buckets == bucket)
            random.shuffle(shuffled[starts[steps[0]] : starts[steps[-1] + 1]])
        steps = random.permutation(len(buckets))
        sizes = np.diff(starts)[steps]
        step_start = np.concatenate([[0], np.cumsum(sizes)])
        shift = np.repeat(starts[steps] - step_start[:-1], sizes)
        order = shuffled[np.arange(len(shuffled)) + shift]
        reference = self._speakers.others(order, random)
        return EpochPlan(order, reference, step_start, buckets[steps], self.batch_sizes, replicas)

    @cached_property
    def padding(self) -> float:
        """Share of an epoch's samples that are padding, rows and batches left empty included."""
        epoch = self.epoch(0)
        padded = sum(self.padded_samples(epoch, step) for step in range(epoch.steps))
        return 1 - int(self.samples.sum(dtype=np.int64)) / padded

    def padded_samples(self, epoch: EpochPlan, step: int) -> int:
        """Samples of all batches of a step, padding included."""
        rows, samples, _ = self.shape(epoch.step_bucket[step])
        return rows * samples * epoch.microbatches(step) * epoch.replicas


def _lay_out(up_to_bound: np.ndarray, step_sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the utterances, sorted by length, into steps.

    Args:
        up_to_bound: int [buckets], utterances that fit each bucket; the last is N.
        step_sizes: int [buckets], utterances in a complete step.

    Returns:
        int64 [S + 1], first utterance of each step, and N; int32 [S], bucket of each step.
    """
    starts, buckets, begin = [], [], 0
    for bucket, (end, size) in enumerate(zip(up_to_bound, step_sizes, strict=True)):
        whole_end = end if bucket == len(step_sizes) - 1 else begin + (end - begin) // size * size
        starts.append(np.arange(begin, whole_end, size, dtype=np.int64))
        buckets.append(np.full(len(starts[-1]), bucket, np.int32))
        begin = whole_end
    return np.concatenate([*starts, [begin]]), np.concatenate(buckets)


class _Speakers:
    """The utterances of each speaker, for drawing references."""

    def __init__(self, speakers: np.ndarray):
        _, self._group, self._counts = np.unique(speakers, return_inverse=True, return_counts=True)
        self._members = np.argsort(self._group, kind="stable").astype(np.int32)
        self._first = np.cumsum(self._counts) - self._counts
        self._rank = np.empty(len(speakers), np.int64)
        self._rank[self._members] = np.arange(len(speakers)) - np.repeat(self._first, self._counts)

    def others(self, utterances: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """int32: for each utterance a random other one of its speaker, or itself where there is none."""
        group = self._group[utterances]
        others = self._counts[group] - 1
        drawn = random.integers(0, np.maximum(others, 1))
        drawn += (drawn >= self._rank[utterances]) & (others > 0)
        return self._members[self._first[group] + drawn]
