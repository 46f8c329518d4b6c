"""The manifest: the usable utterances of a corpus as columns, and why other rows are unusable."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.audio_file import WHOLE
from myxtts.text.symbols import SymbolTable, frames_needed

DIGEST_BYTES = 32
CHUNK_ROWS = 256
STRING_COLUMNS = ("ids", "paths", "texts")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vocabulary:
    """Meaning of the integers in the columns `tokens`, `speaker` and `language` of a manifest."""

    symbols: SymbolTable
    speakers: tuple[str, ...]
    languages: tuple[str, ...]

    def extended_by(self, other: "Vocabulary") -> "Vocabulary":
        return Vocabulary(
            SymbolTable(tuple(dict.fromkeys(self.symbols.symbols + other.symbols.symbols))),
            tuple(dict.fromkeys(self.speakers + other.speakers)),
            tuple(dict.fromkeys(self.languages + other.languages)),
        )


class LengthRule(NamedTuple):
    """The minimum number of mel frames for a text, which the network first subsamples.

    CTC needs a frame for each symbol and for the blank between equal neighbours (Graves et al.
    2006). An alignment needs a frame for each symbol, and for begin and end.
    """

    ctc: bool = False
    subsampling: int = 1

    def frames_needed(self, symbols: Sequence[str]) -> int:
        labels = np.asarray(symbols)
        return self.frames_needed_for(len(labels), frames_needed(labels) - len(labels))

    def frames_needed_for(self, count, equal_neighbours):
        """Return the same for numbers of symbols and of equal neighbours; integers or arrays."""
        needed = count + equal_neighbours if self.ctc else count + 2
        return (needed - 1) * self.subsampling + 1


@dataclass(frozen=True, eq=False)
class Manifest:
    """The N usable utterances of one corpus, in the order of its metadata.

    Attributes:
        ids, paths, texts: N strings each; paths are absolute, through links as in the metadata.
        starts: int64 [N], first sample at SAMPLE_RATE_HZ of a stretch of a file; or else WHOLE.
        samples: int32 [N], length at SAMPLE_RATE_HZ, after resampling.
        native: bool [N], whether `tf.audio.decode_wav` returns exactly the samples of its file, of
            which these are at least half.
        tokens: integers [all tokens], begin and end included; utterance i has token_counts[i] from
            token_start[i] on, which is 0 for a task that needs no texts.
        token_start: int64 [N].
        token_counts: int32 [N].
        speaker, language: int32 [N].
        token_ids: what each integer in `tokens` stands for, int32; None if it is the token itself.
        shard_cache: folder for utterances that were read of shards in an object store.
    """

    ids: Sequence[str]
    paths: Sequence[str]
    texts: Sequence[str]
    starts: np.ndarray
    samples: np.ndarray
    native: np.ndarray
    tokens: np.ndarray
    token_start: np.ndarray
    token_counts: np.ndarray
    speaker: np.ndarray
    language: np.ndarray
    token_ids: np.ndarray | None = None
    shard_cache: Path | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def names_of(self, row: int, vocabulary: Vocabulary) -> tuple[str, str]:
        """Return the speaker and the language of an utterance."""
        return vocabulary.speakers[self.speaker[row]], vocabulary.languages[self.language[row]]

    def tokens_of(self, row: int) -> np.ndarray:
        """Return the tokens of an utterance, int32."""
        return self.joined_tokens(slice(row, row + 1))

    def joined_tokens(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the tokens of some utterances, one after the other, int32."""
        tokens = self.tokens[flat_indices(self.token_start[rows], self.token_counts[rows])]
        if self.token_ids is None:
            return tokens.astype(np.int32)
        return self.token_ids[tokens]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of ids, stretches, tokens, speakers and languages, but not of paths."""
        digest = hashlib.sha256(b"[")
        firsts = range(0, len(self), CHUNK_ROWS)
        # The digest takes a chunk at a time: the columns of a large corpus stay on the disk.
        for first in firsts:
            names = json.dumps([*self.ids[first : first + CHUNK_ROWS]])[1:-1]
            if first:
                digest.update(b", ")
            digest.update(names.encode())
        digest.update(b"]")
        # Corpora of whole files keep the fingerprint that they had before there were stretches.
        if np.any(self.starts != WHOLE):
            digest.update(self.starts.tobytes())
        bounds = np.append(0, np.cumsum(self.token_counts, dtype=np.int64))
        digest.update(self.samples.tobytes() + bounds.tobytes())
        for first in firsts:
            digest.update(self.joined_tokens(slice(first, first + CHUNK_ROWS)).tobytes())
        digest.update(self.speaker.tobytes() + self.language.tobytes())
        return digest.hexdigest()

    def padded_tokens(self, rows: np.ndarray, size: int, length: int) -> np.ndarray:
        """Return the tokens of `rows`, then empty rows: int32 [size, length], padded with 0."""
        padded = np.zeros((size, length), np.int32)
        is_token = np.arange(length) < self.token_counts[rows][:, None]
        padded[: len(rows)][is_token] = self.joined_tokens(rows)
        return padded


def flat_indices(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the places of `counts` elements from each of `starts` on, one after the other."""
    shifts = starts - np.cumsum(counts, dtype=np.int64) + counts
    return np.repeat(shifts, counts) + np.arange(counts.sum(dtype=np.int64))
