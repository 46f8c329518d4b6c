"""Reads a packed corpus: shards of audio and an index, from which a manifest is made at once.

The index is one Arrow table with a row for each row of the corpus, in its order. It is mapped into
memory, which all processes of a host share. `packing` writes it. Columns:

    id, text                    strings
    shard, speaker, language    from dictionaries; a shard is relative to the corpus, or has a place
    begin, size                 bytes of the audio in its shard
    start, samples              as in a manifest; no samples of a row that cannot be used
    tokens                      lists from a dictionary, which also has NO_SYMBOLS
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ, frame_count, sample_rate_hz
from myxtts.base.errors import DataError
from myxtts.base.members import INDEX, Member, base_of, is_url
from myxtts.config.schema import DataConfig, flag_of
from myxtts.corpus.build import duration_fault, text_fault
from myxtts.corpus.manifest import CHUNK_ROWS, LengthRule, Manifest, Vocabulary, flat_indices
from myxtts.corpus.rows import CorpusOptions, RejectedRow, Row, Rows, shortened
from myxtts.extras.store.parquet import load_pyarrow
from myxtts.text.frontend import TextFrontend
from myxtts.text.readers import warn_of_other_version
from myxtts.text.symbols import SymbolTable

METADATA = b"myxtts-2"  # format, and key of a JSON object: reading_of, and the version
NO_SYMBOLS = ("", "<begin>", "<end>")


def reading_of(data: DataConfig, frontend: TextFrontend, needs_text: bool) -> dict[str, Any]:
    """Return the settings that decide what an index holds."""
    reading: dict[str, Any] = {"trim": data.trim, "sample_rate": data.sample_rate}
    if needs_text:
        reading["text_frontend"] = frontend.kind
        if frontend.reader.has_phonemes:
            reading["text_normaliser"] = frontend.normaliser
            reading["lexicon"] = dict(frontend.lexicon)
    return reading


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


def read_packed(options: CorpusOptions) -> Rows | None:
    """Return the rows of a packed corpus by its folder; None for another corpus."""
    index = options.path / INDEX
    if not index.exists():
        return None
    rows = PackedRows(index)
    return Rows(index, options.path, rows, form=f"packed in {rows.base}: {len(rows)} rows")


class PackedRows(Sequence[Row]):
    """Rows of a packed corpus, each read when it is used; `reading` is what it was packed with."""

    def __init__(self, path: Path):
        pyarrow = load_pyarrow(path)
        try:
            self.table = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()
            self.reading = json.loads(self.table.schema.metadata[METADATA])
        except (OSError, KeyError, TypeError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} cannot be read: {error}. Pack the corpus again.") from error
        self.base = base_of(path.parent)
        self._cache = path.parent if is_url(self.base) else None
        self._rows = np.arange(self.table.num_rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        row = self._rows[[place]]
        speaker, language = (
            self._names(name)[self._column(name)[row][0]] for name in ("speaker", "language")
        )
        (id_,), (text,) = (self._strings(name, row) for name in ("id", "text"))
        return Row(int(row[0]) + 1, id_, self._addresses(row)[0], text, speaker, language)

    @property
    def ids(self) -> Sequence[str]:
        return Column(partial(self._strings, "id"), self._rows)

    def where(self, is_kept: np.ndarray) -> "PackedRows":
        part = copy(self)
        part._rows = self._rows[is_kept]
        return part

    def _column(self, name: str) -> Any:
        """Return a column of numbers, or the numbers of names; they stay on the disk."""
        column = self.table.column(name).chunk(0)
        return getattr(column, "indices", column).to_numpy(zero_copy_only=True)

    def _names(self, name: str) -> list[str]:
        return self.table.column(name).chunk(0).dictionary.to_pylist()

    @cached_property
    def _tokens(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """The tokens of all rows, where each row begins and ends among them, and their symbols."""
        column = self.table.column("tokens").chunk(0)
        bounds = column.offsets.to_numpy(zero_copy_only=True)
        tokens = column.values.indices.to_numpy(zero_copy_only=True)
        return tokens, bounds[:-1], bounds[1:], column.values.dictionary.to_pylist()

    @cached_property
    def _tars(self) -> list[str]:
        """The shards, each with its folder or URL; a URL stays as it is."""
        names = self._names("shard")
        return [os.path.join("" if is_url(name) else self.base, name) for name in names]

    def _strings(self, name: str, rows: np.ndarray) -> list[str]:
        return self.table.column(name).take(rows).to_pylist()

    def _addresses(self, rows: np.ndarray) -> list[str]:
        shards, begins, sizes = (
            self._column(name)[rows].tolist() for name in ("shard", "begin", "size")
        )
        places = zip(shards, begins, sizes, self._strings("id", rows), strict=True)
        return [
            Member(self._tars[shard], begin, size, id_).address
            for shard, begin, size, id_ in places
        ]

    # The numbers of the index are used as they are, mapped into memory. Only what depends on this
    # run is computed: which rows it can use, and which number of its vocabulary each name and
    # symbol of the index has. Strings are read when somebody asks for them.
    def manifest(
        self,
        data: DataConfig,
        rule: LengthRule | None,
        vocabulary: Vocabulary | None,
        grow: bool,
        frontend: TextFrontend,
    ) -> tuple[Manifest, Vocabulary, list[RejectedRow]]:
        """Return what `build_manifest` does. Raises DataError if it was packed otherwise."""
        self._check_reading(reading_of(data, frontend, rule is not None))
        if rule is not None:
            reader = frontend.reader
            packed_with = self.reading.get("version") or self.reading.get("espeakng_loader", "")
            warn_of_other_version(reader.package, reader.version, packed_with)
        rows, symbols, rejected = self._usable(data, rule, None if grow else vocabulary)
        speaker, language = (self._column(kind)[rows] for kind in ("speaker", "language"))
        speakers, languages = map(self._names, ("speaker", "language"))
        used = zip((speakers, languages), (speaker, language), strict=True)
        spoken, written = (
            tuple(sorted(names[number] for number in np.unique(of))) for names, of in used
        )
        new = Vocabulary(SymbolTable(tuple(symbols)), spoken, written)
        vocabulary = vocabulary.extended_by(new) if vocabulary else new
        tokens, begin, end, names = self._tokens
        token_ids = _places_in((*NO_SYMBOLS, *vocabulary.symbols.symbols), names)
        counts = (end - begin)[rows] if rule else np.zeros(len(rows))
        manifest = Manifest(
            ids=Column(partial(self._strings, "id"), rows),
            paths=Column(self._addresses, rows),
            texts=Column(partial(self._strings, "text"), rows),
            starts=self._column("start")[rows],
            samples=self._column("samples")[rows],
            native=np.zeros(len(rows), bool),
            tokens=tokens,
            token_start=begin[rows],
            token_counts=counts.astype(np.int32),
            speaker=_places_in(vocabulary.speakers, speakers)[speaker],
            language=_places_in(vocabulary.languages, languages)[language],
            token_ids=token_ids,
            shard_cache=self._cache,
        )
        return manifest, vocabulary, rejected

    def _check_reading(self, reading: dict[str, Any]) -> None:
        for name, value in reading.items():
            packed = ({"sample_rate": SAMPLE_RATE_HZ} | self.reading).get(name, "no texts")
            if packed != value:
                raise DataError(
                    f"{flag_of(name)} {value} was requested, but the corpus {self.base} was"
                    f" packed with {packed}. Give that, or pack the corpus again."
                )

    # Rows are taken in chunks, so that an index of millions fits. Duration is checked for all; with
    # texts, also that language and symbols are known and that the frames suffice. The tokens of a
    # chunk are one flat array, and `reduceat` sums over the tokens of each row.
    def _usable(
        self, data: DataConfig, rule: LengthRule | None, vocabulary: Vocabulary | None
    ) -> tuple[np.ndarray, list[str], list[RejectedRow]]:
        """Return the rows that can be used, the symbols of their texts, and the other rows, without
        those that the corpus' own `rejected.csv` lists, which have no samples.
        """
        tokens, begin, end, symbols = self._tokens
        languages = self._names("language")
        is_known, speaks = np.ones(len(symbols), bool), np.ones(len(languages), bool)
        if vocabulary:
            is_known = np.isin(symbols, (*NO_SYMBOLS, *vocabulary.symbols.symbols))
            speaks = np.isin(languages, vocabulary.languages)
        low, high = (seconds * sample_rate_hz() for seconds in (data.min_seconds, data.max_seconds))
        is_used = np.zeros(len(symbols), bool)
        packed = self._rows[self._column("samples")[self._rows] > 0]
        usable, rejected = [packed[:0]], list[RejectedRow]()
        for first in range(0, len(packed), CHUNK_ROWS):
            chunk = packed[first : first + CHUNK_ROWS]
            samples, language = (self._column(name)[chunk] for name in ("samples", "language"))
            is_usable = (samples >= low) & (samples <= high)
            if rule is not None:
                counts = end[chunk] - begin[chunk]
                found = tokens[flat_indices(begin[chunk], counts)]
                firsts = np.cumsum(counts) - counts
                is_equal = np.append(found[1:] == found[:-1], False).astype(int)
                needed = rule.frames_needed_for(counts - 2, np.add.reduceat(is_equal, firsts))
                is_usable &= speaks[language] & np.logical_and.reduceat(is_known[found], firsts)
                is_usable &= frame_count(samples) >= needed
                is_used[found[np.repeat(is_usable, counts)]] = True
            usable.append(chunk[is_usable])
            rejected += [
                self._rejected(int(row), data, rule, vocabulary) for row in chunk[~is_usable]
            ]
        used = {symbols[place] for place in np.flatnonzero(is_used)}.difference(NO_SYMBOLS)
        return np.concatenate(usable), sorted(used), rejected

    def _rejected(
        self, row: int, data: DataConfig, rule: LengthRule | None, vocabulary: Vocabulary | None
    ) -> RejectedRow:
        samples = int(self._column("samples")[row])
        fault = duration_fault(samples, data)
        reason = (fault.reason, fault.detail) if fault else None
        if rule is not None and reason is None:
            tokens, begin, end, symbols = self._tokens
            text = [symbols[token] for token in tokens[begin[row] + 1 : end[row] - 1]]
            language = self._names("language")[self._column("language")[row]]
            reason = text_fault(text, language, samples, rule, vocabulary)
        assert reason is not None
        (id_,) = self._strings("id", np.array([row]))
        return RejectedRow(self.base, row + 1, shortened(id_), reason[0], shortened(reason[1]))


def _places_in(table: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the place of each name in a table; -1 if it lacks the name."""
    places = {name: place for place, name in enumerate(table)}
    return np.array([places.get(name, -1) for name in names], np.int32)
