"""The manifest: the usable utterances of a corpus as columns, and the file that keeps them."""

import hashlib
import io
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.audio.audio_file import WHOLE
from myxtts.audio.format import sample_rate_hz
from myxtts.base.files import write_whole
from myxtts.corpus.rows import RejectedRow, shortened
from myxtts.text.symbols import SymbolTable

BEFORE = ".before.npz"  # the manifest that another one has replaced
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
        symbols, speakers, languages = (
            tuple(dict.fromkeys(own + new))
            for own, new in zip(self.lists, other.lists, strict=True)
        )
        return Vocabulary(SymbolTable(symbols), speakers, languages)

    @property
    def lists(self) -> tuple[tuple[str, ...], ...]:
        """Return symbols, speakers and languages, each as JSON takes them."""
        return self.symbols.symbols, self.speakers, self.languages


class LengthRule(NamedTuple):
    """The minimum number of mel frames for a text, which the network first subsamples.

    CTC needs a frame for each symbol and for the blank between equal neighbours (Graves et al.
    2006): with fewer the loss is infinite, and a single step on it destroys the weights. An
    alignment needs a frame for each symbol, and for begin and end.
    """

    ctc: bool = False
    subsampling: int = 1

    def frames_needed(self, symbols: Sequence[str]) -> int:
        labels = np.asarray(symbols)
        return self.frames_needed_for(len(labels), np.count_nonzero(labels[1:] == labels[:-1]))

    def frames_needed_for(self, count, equal_neighbours):
        """Return the same for numbers of symbols and of equal neighbours; integers or arrays."""
        needed = count + equal_neighbours if self.ctc else count + 2
        return (needed - 1) * self.subsampling + 1


@dataclass(frozen=True, eq=False)
class Manifest:
    """The N usable utterances of one corpus, in the order of its metadata.

    Attributes:
        ids, paths, texts: N strings each; paths are absolute, through links as in the metadata.
        starts: int64 [N], first sample at sample_rate_hz() of a stretch of a file; or else WHOLE.
        samples: int32 [N], length at sample_rate_hz(), after resampling.
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


def save_manifest(
    cache: Path, key: str, manifest: Manifest, vocabulary: Vocabulary, rejected: list[RejectedRow]
) -> None:
    """Write an .npz file followed by its SHA-256, which np.load and zip tools ignore."""
    values = vars(manifest).items()
    columns = {name: value for name, value in values if isinstance(value, np.ndarray)}
    document: dict[str, Any] = {name: getattr(manifest, name) for name in STRING_COLUMNS}
    document |= {"key": key, "tables": vocabulary.lists, "rejected": rejected}
    body = io.BytesIO()
    columns["document"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
    np.savez(body, **columns)  # type: ignore[arg-type]
    write_whole(cache, body.getvalue() + hashlib.sha256(body.getvalue()).digest())


def load_manifest(cache: Path, key: str) -> tuple[Manifest, Vocabulary, list[RejectedRow]] | None:
    """Read a result that was saved under `key`; None if there is none or the file is damaged."""
    saved = _read(cache)
    if saved is None or saved[0] == key:
        return saved and saved[1:]
    log.info("the corpus or its settings have changed: rebuilding %s", cache)
    os.replace(cache, cache.with_suffix(BEFORE))
    return None


def difference(cache: Path, fingerprint: str, now: Manifest) -> str:
    """Return in words how a corpus differs from the rows of a run with this fingerprint.

    The run's manifest must still be there. If another corpus has replaced it, it is put back.
    """

    def rows(manifest: Manifest) -> list[str]:
        texts = (" ".join(text.split()) for text in manifest.texts)
        columns = zip(manifest.ids, manifest.samples / sample_rate_hz(), texts, strict=True)
        return [f"{name} ({seconds:.3f} s, {text!r})" for name, seconds, text in columns]

    for path in (cache.with_suffix(BEFORE), cache):
        saved = read_manifest(path)
        if saved and saved[0].fingerprint == fingerprint:
            os.replace(path, cache)
            old, new = rows(saved[0]), rows(now)
            found = f"{len(new)} training rows, and {len(old)} before"
            if sorted(old) == sorted(new):
                found = f"the same {len(new)} training rows in another order"
            for number, pair in enumerate(zip_longest(old, new, fillvalue="none"), 1):
                if pair[0] != pair[1]:
                    was, is_now = map(shortened, pair)
                    return f": {found}; row {number} was {was} and is {is_now}"
            return ": the same rows have other speakers, languages, lengths or symbols"
    return ""


def read_manifest(cache: Path) -> tuple[Manifest, Vocabulary] | None:
    """Read a manifest whatever has become of its corpus; None without the file, or if damaged."""
    saved = _read(cache)
    return saved and saved[1:3]


def _read(cache: Path) -> tuple[str, Manifest, Vocabulary, list[RejectedRow]] | None:
    try:
        blob = cache.read_bytes()
    except FileNotFoundError:
        return None
    body = blob[:-DIGEST_BYTES]
    if hashlib.sha256(body).digest() != blob[-DIGEST_BYTES:]:
        log.warning("%s is damaged and will be rebuilt", cache)
        return None
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        columns = dict(arrays)
    document = json.loads(columns.pop("document").tobytes())
    columns |= {name: tuple(document[name]) for name in STRING_COLUMNS if name in document}
    required = {field.name for field in fields(Manifest) if field.default is MISSING}
    if columns.keys() != required:
        log.info("%s is of another version of MyXTTS and will be rebuilt", cache)
        return None
    symbols, speakers, languages = document["tables"]
    vocabulary = Vocabulary(SymbolTable(tuple(symbols)), tuple(speakers), tuple(languages))
    rejected = [RejectedRow._make(row) for row in document["rejected"]]
    return document["key"], Manifest(**columns), vocabulary, rejected
