"""Where the sentences of a text are in a long recording, which may lack some, and have others.

One search over all frames and tokens (Viterbi 1967), whose memory does not grow with the recording:
a state knows when its sentence began, and which sentence was before it.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

IMPOSSIBLE = np.float32(-1e9)
# A sentence must gain this much over no sentence to be heard at all. A token that is left out costs
# more than chance gains by jumping to later text, where some sentence fits a little better.
ENTRY, SKIP = np.float32(8.0), 1.0
# So many tokens are searched at the same time, most of them ahead: half an hour of speech.
BAND_TOKENS = 24_000
BAND_FRAMES = 512
BEHIND = 0.25
# Entries that no path comes from are dropped when there are so many: 32 MB.
MOST_ENTRIES = 1 << 20


class Placed(NamedTuple):
    """A sentence, and its frames in the recording, with the pauses that may be around it."""

    sentence: int
    first: int
    end: int


def place(gains: Iterable[np.ndarray], sentences: Sequence[np.ndarray]) -> list[Placed]:
    """Return the sentences that are spoken, in their order.

    Blocks of `SymbolScorer.gains`, float32 [frames, symbols], and tokens, int32 [N] each.
    """
    search = _Search(sentences)
    for frame, gain in enumerate(chain.from_iterable(gains)):
        if frame % BAND_FRAMES == 0:
            search.move_band()
        search.hear(frame, gain)
    return search.placed()


# Each frame belongs to a token of a sentence or to none. The gain of the best path to each token
# moves on, or stays, and takes that of the frame. Where a sentence ends with more than what the
# path without it has, an entry notes it, and the entry before it. Any sentences may be skipped
# between two. At the end the entries are followed back.
class _Search:
    """The best paths to the tokens of a band, and to the places between any two sentences."""

    def __init__(self, sentences: Sequence[np.ndarray]):
        self._tokens = np.concatenate(sentences)
        counts = np.array([len(sentence) for sentence in sentences])
        self._ends = np.cumsum(counts) - 1
        self._starts = self._ends - counts + 1
        self._skipped = SKIP * np.concatenate([[0], np.cumsum(counts)])
        self._best = np.full(len(self._tokens), IMPOSSIBLE)
        # The frame at which the sentence of a token began, and the entry before it, in one number.
        self._origin = np.zeros(len(self._tokens), np.int64)
        # Those of the paths that are between two sentences: before sentence n.
        self._between = -self._skipped.astype(np.float32)
        self._last = np.full(len(counts) + 1, -1, np.int64)
        # Sentence, first frame, end, and the entry before it, in pieces.
        self._entries, self._count = [np.zeros([0, 4], np.int64)], 0

    def move_band(self) -> None:
        """Search around the best path from here on. Its gain is 0 then: float32 has few digits."""
        _skip(self._between, self._last, self._skipped)
        place = self._starts[min(int(np.argmax(self._between)), len(self._starts) - 1)]
        top = self._between.max()
        if self._best.max() > top:
            place, top = int(np.argmax(self._best)), self._best.max()
        self._best -= top
        self._between -= top
        low = np.searchsorted(self._starts, place - BEHIND * BAND_TOKENS, side="right") - 1
        high = np.searchsorted(self._ends, place + (1.0 - BEHIND) * BAND_TOKENS)
        low, high = max(int(low), 0), min(int(high) + 1, len(self._ends))
        self._low, self._edges = low, slice(low, high + 1)
        self._band = band = slice(self._starts[low], self._ends[high - 1] + 1)
        self._heads = self._starts[low:high] - band.start
        self._tails = self._ends[low:high] - band.start
        self._best[: band.start] = self._best[band.stop :] = IMPOSSIBLE
        if self._count > MOST_ENTRIES:
            self._drop_entries()

    def hear(self, frame: int, gain: np.ndarray) -> None:
        """Move all paths by a frame, whose gains are float32 [symbols]."""
        best, origin = self._best[self._band], self._origin[self._band]
        between, last = self._between[self._edges], self._last[self._edges]
        before, source = np.empty_like(best), np.empty_like(origin)
        before[1:], source[1:] = best[:-1], origin[:-1]
        before[self._heads] = between[:-1] - ENTRY
        source[self._heads] = (frame << 32) | (last[:-1] + 1)
        np.copyto(origin, source, where=before > best)
        np.maximum(best, before, out=best)
        best += gain[self._tokens[self._band]]
        said = np.flatnonzero(best[self._tails] > between[1:])
        if len(said):
            tails = self._tails[said]
            ends = np.full(len(said), frame + 1)
            rows = (self._low + said, origin[tails] >> 32, ends, _before(origin[tails]))
            self._entries.append(np.stack(rows, axis=1))
            between[1 + said] = best[tails]
            last[1 + said] = self._count + np.arange(len(said))
            self._count += len(said)
            _skip(between, last, self._skipped[self._edges])

    def placed(self) -> list[Placed]:
        """Return the sentences of the best path over all that was heard.

        It may end before any sentence, without a cost: otherwise paths to an early end of a
        recording would leave out as many as those that jumped ahead, and jumps would be free.
        """
        entries = np.concatenate(self._entries)
        placed, entry = [], int(self._last[np.argmax(self._between)])
        while entry >= 0:
            sentence, first, end, entry = entries[entry].tolist()
            placed.append(Placed(sentence, first, end))
        return placed[::-1]

    def _drop_entries(self) -> None:
        """Keep the entries that the paths of the band come from, under new numbers."""
        entries, origin = np.concatenate(self._entries), self._origin[self._band]
        is_kept = np.zeros(self._count, bool)
        reached = np.concatenate([self._last, _before(origin)])
        while len(reached := np.unique(reached[reached >= 0])):
            reached = reached[~is_kept[reached]]
            is_kept[reached] = True
            reached = entries[reached, 3]
        # Behind the last number is that of no entry, which is -1.
        number = np.append(np.where(is_kept, np.cumsum(is_kept) - 1, -1), -1)
        entries = entries[is_kept]
        entries[:, 3] = number[entries[:, 3]]
        self._entries, self._count = [entries], len(entries)
        self._last[:] = number[self._last]
        origin[:] = (origin >> 32 << 32) | (number[_before(origin)] + 1)


def _before(origin: np.ndarray) -> np.ndarray:
    """Return the entry before a sentence by its origin, or -1."""
    return (origin & 0xFFFFFFFF) - 1


def _skip(between: np.ndarray, last: np.ndarray, skipped: np.ndarray) -> None:
    """Let paths between two sentences leave out the next ones."""
    reached = between + skipped
    most = np.maximum.accumulate(reached)
    source = np.maximum.accumulate(np.where(reached >= most, np.arange(len(most)), 0))
    between[:], last[:] = most - skipped, last[source]
