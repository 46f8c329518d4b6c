"""Reads a packed corpus: shards of audio and an index, from which a manifest is made at once.

The index is one Arrow table with a row for each row of the corpus, in its order. It is mapped into
memory, which all processes of a host share. `packing` writes it. Columns:

    id, text                    strings
    shard, speaker, language    from dictionaries; a shard is relative to the corpus, or has a place
    begin, size                 bytes of the audio in its shard
    start, samples              as in a manifest; no samples of a row that cannot be used
    tokens                      lists from a dictionary, which begins with NO_SYMBOLS
    fault                       fields of a RejectedRow as JSON, of a row that cannot be used
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ, frame_count
from myxtts.config.schema import DataConfig, flag_of
from myxtts.data.audio_file import UnusableAudio
from myxtts.data.manifest import (
    CHUNK_ROWS,
    UNKNOWN_LANGUAGE,
    UNKNOWN_SYMBOL,
    LengthRule,
    Manifest,
    Vocabulary,
    check_duration,
    flat_indices,
    too_short_for_text,
)
from myxtts.data.parquet import load_pyarrow
from myxtts.data.rows import RejectedRow, Row, Rows, StoredRows, shortened
from myxtts.errors import DataError
from myxtts.stores import Member, base_of, is_url, place_of
from myxtts.text import espeak
from myxtts.text.frontend import TextFrontend
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable

FORMAT = 1
INDEX = "index.arrow"
METADATA = "myxtts"  # key of a JSON object: format, form, reading, espeakng_loader, malformed
NO_SYMBOLS = ("", "<begin>", "<end>")


def reading_of(data: DataConfig, frontend: TextFrontend, needs_text: bool) -> dict[str, Any]:
    """Return the settings that decide what an index holds."""
    reading: dict[str, Any] = {"trim": data.trim}
    if needs_text:
        reading["text_frontend"] = frontend.kind
        if frontend.kind == "phonemes":
            reading["text_normaliser"] = frontend.normaliser
            reading["lexicon"] = dict(frontend.lexicon)
    return reading


class Index:
    """The mapped index of a packed corpus; `info` is its JSON object."""

    def __init__(self, path: Path):
        pyarrow = load_pyarrow(path)
        try:
            self.table = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()
            self.info = json.loads(self.table.schema.metadata[METADATA.encode()])
        except (OSError, KeyError, TypeError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} cannot be read: {error}. Pack the corpus again.") from error
        if self.info["format"] != FORMAT:
            found = f"format {self.info['format']}, but this version of MyXTTS reads {FORMAT}"
            raise DataError(f"{path} has {found}. Pack the corpus again.")
        self.base = base_of(path.parent)
        self.cache = path.parent if is_url(self.base) else None

    def column(self, name: str) -> Any:
        """Return a column of numbers, or the numbers of names; they stay on the disk."""
        column = self.table.column(name).chunk(0)
        return getattr(column, "indices", column).to_numpy(zero_copy_only=True)

    def names(self, name: str) -> list[str]:
        return self.table.column(name).chunk(0).dictionary.to_pylist()

    @cached_property
    def tokens(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens of all rows, and where those of each row begin and end."""
        column = self.table.column("tokens").chunk(0)
        bounds = column.offsets.to_numpy(zero_copy_only=True)
        return column.values.indices.to_numpy(zero_copy_only=True), bounds[:-1], bounds[1:]

    @cached_property
    def symbols(self) -> list[str]:
        dictionary = self.table.column("tokens").chunk(0).values.dictionary
        return dictionary.to_pylist()[FIRST_SYMBOL_ID:]

    @cached_property
    def tars(self) -> list[str]:
        """The shards, each with its folder or URL."""
        return [place_of(self.base, name) for name in self.names("shard")]

    def strings(self, name: str, rows: np.ndarray) -> list[str]:
        return self.table.column(name).take(rows).to_pylist()

    def addresses(self, rows: np.ndarray) -> list[str]:
        columns = (self.column(name)[rows].tolist() for name in ("shard", "begin", "size"))
        places = zip(*columns, self.strings("id", rows), strict=True)
        return [Member(self.tars[shard], *place).address for shard, *place in places]


class Column(Sequence[str]):
    """Strings of some rows of an index, each read when it is used."""

    def __init__(self, values: Callable[[np.ndarray], list[str]], rows: np.ndarray):
        self._values, self._rows = values, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._values(self._rows[place])
        return self._values(self._rows[[place]])[0]

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), CHUNK_ROWS):
            yield from self[first : first + CHUNK_ROWS]


def read_packed(path: Path) -> Rows | None:
    """Return the rows of a packed corpus, by its folder or its index; None for another corpus."""
    path = path / INDEX if path.is_dir() else path
    if path.suffix != ".arrow" or not path.exists():
        return None
    index = Index(path)
    malformed = tuple(RejectedRow(*row) for row in index.info["malformed"])
    form = f"packed in {index.base}: {index.table.num_rows} rows ({index.info['form']})"
    rows = PackedRows(index, np.arange(index.table.num_rows))
    return Rows(path, path.parent, rows, malformed, form)


class PackedRows(StoredRows):
    """Some rows of an index."""

    def __init__(self, index: Index, rows: np.ndarray):
        self._index, self._rows = index, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return PackedRows(self._index, self._rows[place])
        index, row = self._index, self._rows[place]
        (address,), (name,), (text,) = (
            values(np.array([row]))
            for values in (index.addresses, self._values("id"), self._values("text"))
        )
        words = (index.names(kind)[index.column(kind)[row]] for kind in ("speaker", "language"))
        return Row(int(row) + 1, name, address, text, *words)

    def _values(self, name: str) -> Callable[[np.ndarray], list[str]]:
        return partial(self._index.strings, name)

    def ids(self) -> Iterator[str]:
        return iter(Column(self._values("id"), self._rows))

    def where(self, is_kept: np.ndarray) -> "PackedRows":
        return PackedRows(self._index, self._rows[is_kept])

    @property
    def languages(self) -> list[str]:
        return self._index.names("language")

    def manifest(
        self,
        data: DataConfig,
        rule: LengthRule | None,
        vocabulary: Vocabulary | None,
        grow: bool,
        frontend: TextFrontend,
    ) -> tuple[Manifest, Vocabulary, list[RejectedRow]]:
        """Return what `build_manifest` does. Raises DataError if it was packed otherwise."""
        index = self._index
        self._check_reading(reading_of(data, frontend, rule is not None))
        rejected = self._faults()
        rows = self._of_usable_length(data, rejected)
        symbols: list[str] = []
        if rule is not None:
            if frontend.kind == "phonemes":
                espeak.warn_of_other_version(index.info["espeakng_loader"])
            rows, symbols = self._usable_texts(rows, rule, None if grow else vocabulary, rejected)
        rejected.sort(key=lambda row: (row.metadata, row.line))
        numbers = {kind: index.column(kind)[rows] for kind in ("speaker", "language")}
        used = (
            sorted(index.names(kind)[number] for number in np.unique(column))
            for kind, column in numbers.items()
        )
        new = Vocabulary(SymbolTable(tuple(sorted(symbols))), *map(tuple, used))
        vocabulary = vocabulary.extended_by(new) if vocabulary else new
        tables = {"speaker": vocabulary.speakers, "language": vocabulary.languages}
        for kind, table in tables.items():
            numbers[kind] = _places_in(table, index.names(kind))[numbers[kind]]
        tokens, begin, end = index.tokens
        symbol_ids = _places_in(vocabulary.symbols.symbols, index.symbols) + FIRST_SYMBOL_ID
        counts = (end - begin)[rows]
        if rule is None:
            counts[:] = 0
        manifest = Manifest(
            ids=Column(self._values("id"), rows),
            paths=Column(index.addresses, rows),
            texts=Column(self._values("text"), rows),
            starts=index.column("start")[rows],
            samples=index.column("samples")[rows],
            native=np.zeros(len(rows), bool),
            tokens=tokens,
            token_start=begin[rows],
            token_counts=counts.astype(np.int32),
            **numbers,
            token_ids=np.append(np.arange(FIRST_SYMBOL_ID), symbol_ids).astype(np.int32),
            shard_cache=index.cache,
        )
        return manifest, vocabulary, rejected

    def _check_reading(self, reading: dict[str, Any]) -> None:
        packed = self._index.info["reading"]
        for name, value in reading.items():
            if name not in packed:
                found = "packed without texts"
            elif packed[name] != value:
                found = f"packed with {packed[name]}"
            else:
                continue
            raise DataError(
                f"{flag_of(name)} {value} was requested, but the corpus {self._index.base} was"
                f" {found}. Give the settings that it was packed with, or pack it again."
            )

    def _faults(self) -> list[RejectedRow]:
        rows = self._rows[self._index.column("samples")[self._rows] == 0]
        return [RejectedRow(*json.loads(fault)) for fault in self._index.strings("fault", rows)]

    def _rejected(self, row: int, reason: str, detail: str) -> RejectedRow:
        (name,) = self._index.strings("id", np.array([row]))
        return RejectedRow(self._index.base, row + 1, shortened(name), reason, shortened(detail))

    def _of_usable_length(self, data: DataConfig, rejected: list[RejectedRow]) -> np.ndarray:
        samples = self._index.column("samples")[self._rows]
        low, high = (seconds * SAMPLE_RATE_HZ for seconds in (data.min_seconds, data.max_seconds))
        # Rows with a fault have no samples.
        is_usable = (samples >= low) & (samples <= high)
        for row, count in zip(self._rows[~is_usable], samples[~is_usable], strict=True):
            try:
                check_duration(int(count), data)
            except UnusableAudio as error:
                if count:
                    rejected.append(self._rejected(int(row), error.reason, error.detail))
        return self._rows[is_usable]

    def _usable_texts(
        self,
        rows: np.ndarray,
        rule: LengthRule,
        vocabulary: Vocabulary | None,
        rejected: list[RejectedRow],
    ) -> tuple[np.ndarray, list[str]]:
        """Return the rows whose texts can be spoken and aligned, and their symbols."""
        symbols, languages = self._index.symbols, self._index.names("language")
        tokens, begin, end = self._index.tokens
        is_known = np.ones(len(symbols) + FIRST_SYMBOL_ID, bool)
        speaks = np.ones(len(languages), bool)
        if vocabulary:
            is_known[FIRST_SYMBOL_ID:] = np.isin(symbols, vocabulary.symbols.symbols)
            speaks = np.isin(languages, vocabulary.languages)
        is_used = np.zeros(len(is_known), bool)
        usable = []
        for first in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[first : first + CHUNK_ROWS]
            counts = end[chunk] - begin[chunk]
            found = tokens[flat_indices(begin[chunk], counts)]
            firsts = np.cumsum(counts) - counts
            knows = np.logical_and.reduceat(is_known[found], firsts)
            equal = np.add.reduceat(np.append(found[1:] == found[:-1], False).astype(int), firsts)
            needed = rule.frames_needed_for(counts - 2, equal)
            frames = frame_count(self._index.column("samples")[chunk])
            speaks_row = speaks[self._index.column("language")[chunk]]
            is_usable = speaks_row & knows & (frames >= needed)
            is_used[found[np.repeat(is_usable, counts)]] = True
            usable.append(chunk[is_usable])
            for place in np.flatnonzero(~is_usable):
                row = int(chunk[place])
                if not speaks_row[place]:
                    language = languages[self._index.column("language")[row]]
                    fault = UNKNOWN_LANGUAGE, language
                elif not knows[place]:
                    unknown = found[firsts[place] : firsts[place] + counts[place]]
                    unknown = dict.fromkeys(unknown[~is_known[unknown]].tolist())
                    names = (symbols[token - FIRST_SYMBOL_ID] for token in unknown)
                    fault = UNKNOWN_SYMBOL, " ".join(names)
                else:
                    fault = too_short_for_text(frames[place], counts[place] - 2, needed[place])
                rejected.append(self._rejected(row, *fault))
        used = [symbols[place] for place in np.flatnonzero(is_used[FIRST_SYMBOL_ID:])]
        return np.concatenate([rows[:0], *usable]), used


def _places_in(table: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the place of each name in a table; -1 if it lacks the name."""
    places = {name: place for place, name in enumerate(table)}
    return np.array([places.get(name, -1) for name in names], np.int32)
