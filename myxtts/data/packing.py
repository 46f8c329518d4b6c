"""Packs a corpus: tar shards, and an index of them, each slice of a corpus on its own.

OUT/
    index.arrow                     see packed.py
    index-00003-of-00016.arrow      of a slice, until all slices are joined
    shards/recording.00300000.tar   KEY.flac and KEY.json of each utterance, of slice 3
    shards/cuts.00300000.jsonl.gz   its texts, speakers and languages: shards/ is a Lhotse Shar

Samples of 16 bits become FLAC; a stretch of a longer recording becomes FLAC of what training reads,
and any other file keeps its bytes. What is in a tar shard already stays where it is.
"""

import gzip
import io
import json
import logging
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from tqdm import tqdm

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.flags import with_values
from myxtts.config.schema import MAX_SECONDS, MIN_SECONDS, Config
from myxtts.data.audio_file import WHOLE, open_audio, open_sound, read_pcm
from myxtts.data.dataset import audio_root_of, check_languages
from myxtts.data.manifest import CHUNK_ROWS, LengthRule, Manifest, build_manifest, frontend_of
from myxtts.data.metadata_file import corpus_path, leave_out, read_corpus
from myxtts.data.packed import FORMAT, INDEX, METADATA, NO_SYMBOLS, Index, reading_of
from myxtts.data.parquet import load_pyarrow
from myxtts.data.rows import RejectedRow, Rows, shortened
from myxtts.errors import DataError
from myxtts.files import make_folder
from myxtts.stores import Store, member_of, open_store
from myxtts.text import espeak

# How many frames a text needs depends on the task, and is checked in training.
ANY_LENGTH = LengthRule(subsampling=0)
SHARDS_OF_SLICE = 100_000
SLICE = re.compile(r"index-(\d{5})-of-(\d{5})\.arrow")

log = logging.getLogger(__name__)


class Sound(NamedTuple):
    """The file of an utterance in a shard; none if it is in a shard of others."""

    content: bytes
    suffix: str
    rate_hz: int
    samples: int
    channels: int


def pack(config: Config, out: str, part: int, parts: int, shard_bytes: int) -> None:
    """Pack one of so many slices of a corpus. Raises DataError if it cannot be read, or there is a
    packed corpus already.
    """
    store = open_store(out)
    if store.version(INDEX):
        raise DataError(f"{out} already holds a packed corpus. Give another --out, or remove it.")
    if store.staging is not None:
        make_folder(Path(store.staging), "--out")
    data, needs_text = config.data, config.model.task != "vocoder"
    root = audio_root_of(data)
    rows = read_corpus(
        corpus_path(str(data.train_data)), data.language, root, needs_text, columns=data.columns
    )
    (rows,), _ = leave_out(data.exclude, rows)
    log.info("corpus form    %s", rows.form)
    first, end = (len(rows.rows) * number // parts for number in (part, part + 1))
    # The first slice has all malformed rows.
    malformed = () if part else rows.rejected
    rows = rows._replace(rows=rows.rows[first:end])
    frontend = frontend_of(data)
    if needs_text and frontend.kind == "phonemes":
        check_languages(rows.rows, data.max_rejected)
    # Training rejects by length, too.
    limits = {"min_seconds": MIN_SECONDS, "max_seconds": MAX_SECONDS}
    rule = ANY_LENGTH if needs_text else None
    manifest, vocabulary, rejected = build_manifest(
        rows, with_values(config, limits).data, rule, frontend=frontend
    )
    info = {
        "format": FORMAT,
        "form": rows.form,
        "reading": reading_of(data, frontend, needs_text),
        "espeakng_loader": espeak.installed_version(),
        "malformed": malformed,
    }
    names = {"speaker": vocabulary.speakers, "language": vocabulary.languages}
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=store.staging) as folder:
        writer = ShardWriter(store, Path(folder), part * SHARDS_OF_SLICE, shard_bytes)
        columns = _columns(rows, manifest, rejected, [*writer.add(manifest, names)])
        columns["tokens"] = (*NO_SYMBOLS, *vocabulary.symbols.symbols), columns["tokens"]
        index = Path(folder) / INDEX
        _write_index(index, _table(columns, names), info)
        store.put(INDEX if parts == 1 else f"index-{part:05d}-of-{parts:05d}.arrow", index)
    hours = manifest.samples.sum(dtype=np.int64) / SAMPLE_RATE_HZ / 3600
    line = "packed         %d utterances, %.2f h, in %s; %d rows cannot be used"
    log.info(line, len(manifest), hours, out, len(rejected) + len(malformed))


def join(out: str) -> None:
    """Join the indices of all slices of a packed corpus; raise DataError if that is impossible."""
    store = open_store(out)
    slices = [found for found in map(SLICE.fullmatch, store.list()) if found]
    missing = set(range(int(slices[0][2]))) - {int(found[1]) for found in slices} if slices else {0}
    if missing or len({found[2] for found in slices}) > 1:
        raise DataError(
            f"--join was given, but {out} has {len(slices)} slices, without"
            f" {', '.join(map(str, sorted(missing)[:16])) or 'those of one packing'}. Pack each"
            " slice with --slice I/N, from 0/N on, into a folder or bucket of its own corpus."
        )
    with tempfile.TemporaryDirectory(prefix=".joining-", dir=store.staging) as folder:
        paths = [store.fetch(found[0], Path(folder) / found[0]) for found in slices]
        indices = [*map(Index, paths)]
        readings = [index.info["reading"] for index in indices]
        if any(reading != readings[0] for reading in readings):
            raise DataError(f"{out} has slices of different settings: {readings}. Pack them again.")
        pyarrow = load_pyarrow(paths[0])
        from pyarrow import compute

        table = pyarrow.concat_tables([index.table for index in indices])
        table = table.unify_dictionaries().combine_chunks()
        ids = table.filter(compute.field("samples") > 0).column("id")
        if len(ids.unique()) < len(ids):
            counts = ids.value_counts().to_pylist()
            twice = next(count["values"] for count in counts if count["counts"] > 1)
            raise DataError(f"two slices of {out} have {twice!r}. Remove one of its rows.")
        index = Path(folder) / INDEX
        _write_index(index, table, indices[0].info)
        store.put(INDEX, index)
    store.delete([found[0] for found in slices])
    log.info("joined         %d rows of %d slices in %s", table.num_rows, len(slices), out)


class ShardWriter:
    """Writes the shards of a slice, one after the other."""

    def __init__(self, store: Store, folder: Path, number: int, shard_bytes: int):
        self._store, self._folder = store, folder
        self._number, self._shard_bytes = number, shard_bytes
        self._tar: tarfile.TarFile | None = None
        self._cuts: list[dict] = []

    def add(
        self, manifest: Manifest, names: dict[str, tuple[str, ...]]
    ) -> Iterator[tuple[str, int, int, int]]:
        """Yield the shard, first byte, size and first sample of each utterance."""
        columns = manifest.paths, manifest.starts.tolist(), manifest.samples.tolist()
        utterances = [*zip(*columns, strict=True)]
        bar = tqdm(total=len(utterances), desc="pack", unit="utt", disable=None, leave=False)
        with ThreadPoolExecutor(os.cpu_count()) as pool, bar:
            # A chunk at a time is in memory.
            for first in range(0, len(utterances), CHUNK_ROWS):
                chunk = utterances[first : first + CHUNK_ROWS]
                sounds = pool.map(lambda utterance: _sound_of(*utterance), chunk)
                for row, sound in enumerate(sounds, first):
                    bar.update()
                    path, start, _ = utterances[row]
                    if sound is None:
                        member = member_of(path)
                        assert member is not None
                        yield member.tar, member.begin, member.size, start
                    else:
                        words = {
                            name: values[getattr(manifest, name)[row]]
                            for name, values in names.items()
                        }
                        words["text"] = manifest.texts[row]
                        yield *self._write(sound, words, manifest.ids[row]), WHOLE
        self._close()

    def _write(self, sound: Sound, words: dict[str, str], id_: str) -> tuple[str, int, int]:
        if self._tar is None:
            path = self._folder / "shard.tar"
            self._tar = tarfile.TarFile(path, "w", format=tarfile.USTAR_FORMAT)
        key = f"{self._number:08d}-{len(self._cuts):06d}"
        begin = self._tar.offset + tarfile.BLOCKSIZE
        cut = _cut(key, sound, words, id_)
        contents = {sound.suffix: sound.content, "json": json.dumps(cut["recording"]).encode()}
        for suffix, content in contents.items():
            header = tarfile.TarInfo(f"{key}.{suffix}")
            header.size = len(content)
            self._tar.addfile(header, io.BytesIO(content))
        self._cuts.append(cut)
        shard = f"shards/recording.{self._number:08d}.tar"
        if self._tar.offset >= self._shard_bytes:
            self._close()
        return shard, begin, len(sound.content)

    def _close(self) -> None:
        if self._tar is None:
            return
        self._tar.close()
        self._store.put(f"shards/recording.{self._number:08d}.tar", Path(str(self._tar.name)))
        lines = "".join(json.dumps(cut, ensure_ascii=False) + "\n" for cut in self._cuts)
        cuts = self._folder / "cuts"
        cuts.write_bytes(gzip.compress(lines.encode(), mtime=0))
        self._store.put(f"shards/cuts.{self._number:08d}.jsonl.gz", cuts)
        self._tar, self._cuts, self._number = None, [], self._number + 1


def _sound_of(path: str, start: int, samples: int) -> Sound | None:
    """Return the file that is packed of an utterance; raise DataError if it cannot be read."""
    if member_of(path):
        return None
    if start != WHOLE:
        return _flac(read_pcm(path, samples, start=start)[:, None], SAMPLE_RATE_HZ)
    try:
        with open_audio(path) as file, open_sound(file) as sound:
            if sound.subtype == "PCM_16" and sound.format != "FLAC":
                return _flac(sound.read(dtype="int16", always_2d=True), sound.samplerate)
            file.seek(0)
            suffix = "mp3" if sound.format == "MPEG" else sound.format.lower()
            return Sound(file.read(), suffix, sound.samplerate, sound.frames, sound.channels)
    except (OSError, soundfile.LibsndfileError) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore the file.") from error


def _flac(pcm: np.ndarray, rate_hz: int) -> Sound:
    file = io.BytesIO()
    soundfile.write(file, pcm, rate_hz, "PCM_16", format="FLAC")
    return Sound(file.getvalue(), "flac", rate_hz, *pcm.shape)


def _cut(key: str, sound: Sound, words: dict[str, str], id_: str) -> dict[str, Any]:
    """Return an utterance as Lhotse describes it."""
    channels = [*range(sound.channels)]
    channel = channels if sound.channels > 1 else 0
    kind = "MultiCut" if sound.channels > 1 else "MonoCut"
    place = {"start": 0.0, "duration": sound.samples / sound.rate_hz, "channel": channel}
    recording = {
        "id": key,
        "sources": [{"type": "shar", "channels": channels, "source": ""}],
        "sampling_rate": sound.rate_hz,
        "num_samples": sound.samples,
        "duration": place["duration"],
        "channel_ids": channels,
    }
    supervisions = [{"id": key, "recording_id": key, **place, **words}]
    cut = {"id": key, **place, "supervisions": supervisions, "recording": recording}
    return {**cut, "custom": {"utterance": id_}, "type": kind}


def _columns(
    rows: Rows,
    manifest: Manifest,
    rejected: Sequence[RejectedRow],
    places: Sequence[tuple[str, int, int, int]],
) -> dict[str, Any]:
    """Return the columns of an index: all rows in order, also those that cannot be used."""
    faults: dict[tuple, list[RejectedRow]] = {}
    for fault in rejected:
        faults.setdefault(fault[:3], []).append(fault)
    fault_of: list[str | None] = []
    rows_of: list[int] = []
    usable = 0
    for row in rows.rows:
        if usable < len(manifest) and manifest.ids[usable] == row.id:
            rows_of.append(usable)
            fault_of.append(None)
            usable += 1
        else:
            key = row.metadata or str(rows.metadata), row.line, shortened(row.audio)
            rows_of.append(-1)
            fault_of.append(json.dumps(faults[key].pop(0)))
    assert usable == len(manifest)
    # The last place of each column is that of the rows that cannot be used.
    numbers = zip(*places, ("", 0, 0, WHOLE), strict=True)
    columns: dict[str, Any] = dict(zip(("shard", "begin", "size", "start"), numbers, strict=True))
    columns = {name: np.array(column)[rows_of] for name, column in columns.items()}
    for name in ("samples", "speaker", "language", "token_counts"):
        columns[name] = np.append(getattr(manifest, name), 0)[rows_of].astype(np.int32)
    columns["tokens"] = columns.pop("token_counts"), manifest.joined_tokens(slice(None))
    strings = {"id": [row.id for row in rows.rows], "text": [row.text for row in rows.rows]}
    return columns | strings | {"fault": fault_of}


def _table(columns: dict[str, Any], names: dict[str, tuple[str, ...]]) -> Any:
    """Return an index as an Arrow table."""
    pyarrow = load_pyarrow(Path(INDEX))
    symbols, (counts, tokens) = columns["tokens"]
    tables: dict[str, Any] = {**names}
    tables["shard"], columns["shard"] = np.unique(columns["shard"], return_inverse=True)
    try:
        for name in ("id", "text", "fault"):
            columns[name] = pyarrow.array(columns[name], pyarrow.large_string())
    except (UnicodeEncodeError, pyarrow.ArrowException) as error:
        raise DataError(f"a name or text is not Unicode: {error}. Rename the file.") from error

    def named(numbers: np.ndarray, values: Sequence[str], kind: str = "int32") -> Any:
        return pyarrow.DictionaryArray.from_arrays(numbers.astype(kind), [*map(str, values)])

    for name, values in tables.items():
        columns[name] = named(columns[name], values)
    bounds = np.append(0, np.cumsum(counts, dtype=np.int64))
    columns["tokens"] = pyarrow.LargeListArray.from_arrays(bounds, named(tokens, symbols, "int16"))
    return pyarrow.table(columns)


def _write_index(path: Path, table: Any, info: dict[str, Any]) -> None:
    pyarrow = load_pyarrow(path)
    table = table.replace_schema_metadata({METADATA: json.dumps(info)})
    with pyarrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
