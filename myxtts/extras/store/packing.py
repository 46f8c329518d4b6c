"""Packs a corpus: tar shards, and an index of them, each slice of a corpus on its own.

OUT/
    index.arrow                     see packed.py
    index-00003-of-00016.arrow      of a slice, until all slices are joined
    rejected.csv                    rows that cannot be used; rejected-00003-of-00016.csv of a slice
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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from tqdm import tqdm

from myxtts.audio.audio_file import WHOLE, read_pcm
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import open_audio, open_sound
from myxtts.base.errors import DataError
from myxtts.base.files import make_folder
from myxtts.base.members import is_url, member_of, store_of
from myxtts.batches.corpora import check_languages
from myxtts.config.flags import with_values
from myxtts.config.schema import MAX_SECONDS, MIN_SECONDS, Config
from myxtts.corpus.build import build_manifest, frontend_of, report_rejected
from myxtts.corpus.layouts import read_as_configured
from myxtts.corpus.manifest import CHUNK_ROWS, LengthRule, Manifest, Vocabulary
from myxtts.corpus.rows import Row
from myxtts.extras.store.packed import INDEX, METADATA, NO_SYMBOLS, PackedRows, reading_of
from myxtts.extras.store.parquet import load_pyarrow
from myxtts.extras.store.stores import Store

# How many frames a text needs depends on the task, and is checked in training.
ANY_LENGTH = LengthRule(subsampling=0)
SHARD_BYTES = 1_000_000_000
SHARDS_OF_SLICE = 100_000
SLICE = re.compile(r"index-(\d{5})-of-(\d{5})\.arrow")

log = logging.getLogger(__name__)


# The corpus is read and checked as for training, but with the widest limits of duration. This slice
# of its rows is written as shards; then the index, in which unusable rows have no samples, so that
# row numbers stay those of the corpus.
def pack(config: Config, out: str, part: int, parts: int) -> None:
    """Pack a slice of a corpus; raises DataError if it is unreadable, or `out` has a packed one."""
    if not is_url(out):
        make_folder(Path(out), "--out")
    store = store_of(out)
    if store.version(INDEX):
        raise DataError(f"{out} already holds a packed corpus. Give another --out, or remove it.")
    data, needs_text = config.data, config.model.task != "vocoder"
    rows = read_as_configured(data, str(data.train_data), needs_text)
    log.info("corpus form    %s", rows.form)
    count = len(rows.rows)
    rows = rows.where(np.arange(count) * parts // max(count, 1) == part)
    if part:
        # The first slice has all malformed rows.
        rows = rows._replace(rejected=())
    frontend = frontend_of(data)
    if needs_text and frontend.reader.has_phonemes:
        check_languages(rows.rows, frontend, data.max_rejected)
    # Training rejects by length, too.
    limits = {"min_seconds": MIN_SECONDS, "max_seconds": MAX_SECONDS}
    rule = ANY_LENGTH if needs_text else None
    manifest, vocabulary, rejected = build_manifest(
        rows, with_values(config, limits).data, rule, frontend=frontend
    )
    rejected += rows.rejected
    name = "" if parts == 1 else f"-{part:05d}-of-{parts:05d}"
    folder = Path(tempfile.mkdtemp(prefix="myxtts-pack-") if is_url(out) else out)
    listing = folder / f"rejected{name}.csv"
    report_rejected(rejected, [(rows, manifest)], data.max_rejected, listing)
    if is_url(out):
        store.put(listing.name, listing)
    places = pack_shards(store, manifest, vocabulary, part * SHARDS_OF_SLICE)
    reading = reading_of(data, frontend, needs_text)
    reading["version"] = frontend.reader.version
    table = index_of(records(rows.rows, manifest, vocabulary, places))
    write_index(store, f"index{name}.arrow", table, reading)
    hours = manifest.samples.sum(dtype=np.int64) / sample_rate_hz() / 3600
    line = "packed         %d utterances, %.2f h, in %s; %d rows cannot be used"
    log.info(line, len(manifest), hours, out, len(rejected))


def join(out: str) -> None:
    """Join the indices of all slices of a packed corpus; raise DataError if that is impossible."""
    store = store_of(out)
    slices = [found for found in map(SLICE.fullmatch, store.list()) if found]
    with tempfile.TemporaryDirectory() as folder:
        indices = [PackedRows(store.fetch(found[0], Path(folder, found[0]))) for found in slices]
        kinds = {(found[2], str(each.reading)) for found, each in zip(slices, indices, strict=True)}
        if len(kinds) != 1 or len(slices) != int(slices[0][2]):
            raise DataError(
                f"--join was given, but {out} has {', '.join(found[0] for found in slices)}: not"
                " all slices of one packing. Pack each slice with --slice I/N, from 0/N on, with"
                " the same settings, into a folder or bucket of its own corpus."
            )
        pyarrow = load_pyarrow(Path(INDEX))
        table = pyarrow.concat_tables([index.table for index in indices])
        table = table.unify_dictionaries().combine_chunks()
        ids = table.column("id").filter(pyarrow.compute.greater(table.column("samples"), 0))
        twice = [each["values"] for each in ids.value_counts().to_pylist() if each["counts"] > 1]
        if twice:
            raise DataError(f"two slices of {out} have {twice[0]!r}. Remove one of its rows.")
        write_index(store, INDEX, table, indices[0].reading)
    store.delete([found[0] for found in slices])
    log.info("joined         %d rows of %d slices in %s", table.num_rows, len(slices), out)


# Threads read and compress the files ahead, chunk by chunk. The main thread writes them into the
# current shard in order, with their places, and closes it when it is full or the rows end. Audio
# that is in a tar already keeps its place.
def pack_shards(
    store: Store, manifest: Manifest, vocabulary: Vocabulary, number: int
) -> list[tuple[str, int, int, int]]:
    """Write shards from a number on; return each row's shard, first byte, size and first sample."""
    members = [*map(member_of, manifest.paths)]
    starts = manifest.starts.tolist()
    places = {row: (*member[:3], starts[row]) for row, member in enumerate(members) if member}
    rows = [row for row, member in enumerate(members) if not member]
    cuts: list[dict] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool, ExitStack() as shard:
        chunks = (rows[first : first + CHUNK_ROWS] for first in range(0, len(rows), CHUNK_ROWS))
        contents = chain.from_iterable(
            pool.map(lambda row: _packed_file(manifest, row), chunk) for chunk in chunks
        )
        bar = tqdm(rows, desc="pack", unit="utt", disable=None, leave=False)
        for row, content in zip(bar, contents, strict=True):
            if not cuts:
                name = f"shards/recording.{number:08d}.tar"
                file = shard.enter_context(store.writer(name))
                form = tarfile.USTAR_FORMAT
                tar = shard.enter_context(tarfile.open(fileobj=file, mode="w|", format=form))
            sound = soundfile.info(io.BytesIO(content))
            cut = _cut(f"{number:08d}-{len(cuts):06d}", sound, manifest, vocabulary, row)
            places[row] = name, tar.offset + tarfile.BLOCKSIZE, len(content), WHOLE
            suffix = "mp3" if sound.format == "MPEG" else sound.format.lower()
            _add(tar, f"{cut['id']}.{suffix}", content)
            _add(tar, f"{cut['id']}.json", json.dumps(cut["recording"]).encode())
            cuts.append(cut)
            if tar.offset >= SHARD_BYTES or row == rows[-1]:
                shard.close()
                lines = "".join(json.dumps(cut, ensure_ascii=False) + "\n" for cut in cuts)
                with store.writer(f"shards/cuts.{number:08d}.jsonl.gz") as file:
                    file.write(gzip.compress(lines.encode(), mtime=0))
                cuts, number = [], number + 1
    return [places[row] for row in range(len(manifest))]


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    tar.addfile(header, io.BytesIO(content))


def _packed_file(manifest: Manifest, row: int) -> bytes:
    """Return the file that is packed of an utterance; raise DataError if it cannot be read."""
    path, start = manifest.paths[row], int(manifest.starts[row])
    if start != WHOLE:
        return _flac(read_pcm(path, int(manifest.samples[row]), start=start), sample_rate_hz())
    try:
        with open_audio(path) as file, open_sound(file) as sound:
            if sound.subtype == "PCM_16" and sound.format != "FLAC":
                return _flac(sound.read(dtype="int16"), sound.samplerate)
            file.seek(0)
            return file.read()
    except (OSError, soundfile.LibsndfileError) as error:
        raise DataError(f"{path} cannot be read: {error}. Restore the file.") from error


def _flac(pcm: np.ndarray, rate_hz: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, pcm, rate_hz, "PCM_16", format="FLAC")
    return file.getvalue()


def _cut(
    key: str, sound: Any, manifest: Manifest, vocabulary: Vocabulary, row: int
) -> dict[str, Any]:
    """Return an utterance as Lhotse describes it; `sound` is soundfile's information of it."""
    channels = [*range(sound.channels)]
    duration_s = sound.frames / sound.samplerate
    kind, channel = ("MultiCut", channels) if sound.channels > 1 else ("MonoCut", 0)
    place = {"id": key, "start": 0.0, "duration": duration_s, "channel": channel}
    recording = {
        "id": key,
        "sources": [{"type": "shar", "channels": channels, "source": ""}],
        "sampling_rate": sound.samplerate,
        "num_samples": sound.frames,
        "duration": duration_s,
        "channel_ids": channels,
    }
    speaker, language = manifest.names_of(row, vocabulary)
    words = {"text": manifest.texts[row], "speaker": speaker, "language": language}
    return {
        **place,
        "supervisions": [{**place, "recording_id": key, **words}],
        "recording": recording,
        "custom": {"utterance": manifest.ids[row]},
        "type": kind,
    }


# Rows come in the order of the corpus, and the manifest has the usable ones in the same order, so
# one counter is enough.
def records(
    rows: Iterable[Row],
    manifest: Manifest,
    vocabulary: Vocabulary,
    places: Sequence[tuple[str, int, int, int]],
) -> Iterator[tuple]:
    """Yield the values of an index for each row, in order, also if it cannot be used."""
    symbols = (*NO_SYMBOLS, *vocabulary.symbols.symbols)
    number = 0
    for row in rows:
        if number < len(manifest) and manifest.ids[number] == row.id:
            tokens = [symbols[token] for token in manifest.tokens_of(number)]
            samples = int(manifest.samples[number])
            words = manifest.names_of(number, vocabulary)
            yield row.id, row.text, tokens, *places[number], samples, *words
            number += 1
        else:
            yield row.id, row.text, [], "", 0, 0, WHOLE, 0, "", ""
    assert number == len(manifest)


def index_of(rows: Iterable[tuple]) -> Any:
    """Return an index as an Arrow table; `records` yields its rows."""
    pyarrow = load_pyarrow(Path(INDEX))
    named = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    token = pyarrow.dictionary(pyarrow.int16(), pyarrow.string())
    kinds = {"id": pyarrow.large_string(), "text": pyarrow.large_string()}
    kinds |= {"tokens": pyarrow.large_list(token), "shard": named}
    kinds |= dict.fromkeys(("begin", "size", "start"), pyarrow.int64())
    kinds |= {"samples": pyarrow.int32(), "speaker": named, "language": named}
    rows = [*rows]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(kinds)}
    try:
        return pyarrow.table(columns, pyarrow.schema(kinds))
    except UnicodeEncodeError as error:
        raise DataError(f"a name or text is not Unicode: {error}. Rename the file.") from error


def write_index(store: Store, name: str, table: Any, reading: dict[str, Any]) -> None:
    pyarrow = load_pyarrow(Path(INDEX))
    sink = pyarrow.BufferOutputStream()
    table = table.replace_schema_metadata({METADATA: json.dumps(reading)})
    with pyarrow.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    with store.writer(name) as file:
        file.write(memoryview(sink.getvalue()).cast("B"))
