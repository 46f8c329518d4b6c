"""Where the sentences of a text are in a long recording, which may lack some, and have others.

One search over all frames and tokens (Viterbi 1967), whose memory does not grow with the recording:
a state knows when its sentence began, and which sentence was before it.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

IMPOSSIBLE = -1e9
# A sentence must gain this much over no sentence to be heard at all, and a sentence that is left
# out costs as much as chance gains by a few tokens.
ENTRY, SKIP = 8.0, 6.0
# So many tokens are searched at the same time, most of them ahead: half an hour of speech.
BAND_TOKENS = 24_000
BAND_FRAMES = 512
BEHIND = 0.25


class Placed(NamedTuple):
    """A sentence, and its frames in the recording, with the pauses that may be around it."""

    sentence: int
    first: int
    end: int


# Each frame belongs to a token of a sentence or to none. The gain of the best path to each token
# moves on, or stays, and takes that of the frame. Where a sentence ends with more than what the
# path without it has, an entry notes it, and the entry before it. Any sentences may be skipped
# between two. At the end the entries are followed back.
def place(gains: Iterable[np.ndarray], sentences: Sequence[np.ndarray]) -> list[Placed]:
    """Return the sentences that are spoken, in their order.

    Blocks of `SymbolScorer.gains`, float32 [frames, symbols], and tokens, int32 [N] each.
    """
    tokens = np.concatenate(sentences)
    counts = np.array([len(sentence) for sentence in sentences])
    ends = np.cumsum(counts) - 1
    starts = ends - counts + 1
    skipped = SKIP * np.arange(len(sentences) + 1)
    # In float64: the gains of hours are millions, of which float32 has no tenths.
    best = np.full(len(tokens), IMPOSSIBLE)
    # The frame at which the sentence of a token began, and the entry before it, in one number.
    origin = np.zeros(len(tokens), np.int64)
    # Those of the paths that are between two sentences: before sentence n.
    between, last = -skipped, np.full(len(skipped), -1, np.int64)
    entries = [array("q") for _ in range(4)]
    low, high = 0, len(sentences)
    frame = 0
    for block in gains:
        for gain in block:
            if frame % BAND_FRAMES == 0:
                low, high = _band(best, between, starts, ends)
            band = slice(starts[low], ends[high - 1] + 1)
            heads, tails = starts[low:high] - band.start, ends[low:high] - band.start
            before = np.concatenate([[IMPOSSIBLE], best[band][:-1]])
            before[heads] = between[low:high] - ENTRY
            source = np.concatenate([[0], origin[band][:-1]])
            source[heads] = (frame << 32) | (last[low:high] + 1)
            origin[band] = np.where(before > best[band], source, origin[band])
            best[band] = np.maximum(before, best[band]) + gain[tokens[band]]
            _leave(best[band][tails], origin[band][tails], low, frame, between, last, entries)
            _skip(between, last, skipped)
            frame += 1
    return _followed(entries, int(last[-1]))


def _band(best, between, starts, ends) -> tuple[int, int]:
    """Return the first and the end of the sentences that are searched around the best path."""
    place = starts[min(int(np.argmax(between)), len(starts) - 1)]
    if best.max() > between.max():
        place = int(np.argmax(best))
    low = np.searchsorted(starts, place - BEHIND * BAND_TOKENS, side="right") - 1
    high = np.searchsorted(ends, place + (1.0 - BEHIND) * BAND_TOKENS)
    return max(int(low), 0), min(int(high) + 1, len(ends))


def _leave(best, origin, low, frame, between, last, entries) -> None:
    """Let paths end their sentences where that is better, and note them as entries."""
    rows = np.flatnonzero(best > between[low + 1 : low + 1 + len(best)])
    if not len(rows):
        return
    began, before = origin[rows] >> 32, (origin[rows] & 0xFFFFFFFF) - 1
    between[low + 1 + rows] = best[rows]
    last[low + 1 + rows] = len(entries[0]) + np.arange(len(rows))
    ends = np.full(len(rows), frame + 1)
    for column, values in zip(entries, (low + rows, began, ends, before), strict=True):
        column.extend(values.tolist())


def _skip(between, last, skipped) -> None:
    """Let paths between two sentences leave out the next ones."""
    reached = between + skipped
    most = np.maximum.accumulate(reached)
    source = np.maximum.accumulate(np.where(reached >= most, np.arange(len(most)), 0))
    between[:], last[:] = most - skipped, last[source]


def _followed(entries: Sequence[array], entry: int) -> list[Placed]:
    placed = []
    sentence, first, end, before = entries
    while entry >= 0:
        placed.append(Placed(sentence[entry], first[entry], end[entry]))
        entry = before[entry]
    return placed[::-1]
