"""Rows -> manifest: checks every row, and keeps the result until something changes.

What comes in are the rows of the metadata. If no file has changed since the last time, the manifest
comes from the cache. Otherwise threads open every audio file and check its form and duration, and
the main thread makes symbols of every text. What goes out are the usable rows as columns, their
vocabulary, and the rejected rows with reasons.
"""

import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from tqdm import tqdm

from myxtts.audio.audio_file import (
    TRIMMED_S,
    WHOLE,
    check_finite,
    read_pcm,
    resampled_length,
    speech_span,
)
from myxtts.audio.format import frame_count, sample_rate_hz, use_sample_rate
from myxtts.audio.sound_header import AudioHeader, UnusableAudio, read_header
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.files import FileStamp, file_stamp, write_csv
from myxtts.base.members import is_url, member_of
from myxtts.base.names import canonical_code, canonical_name
from myxtts.config.schema import DataConfig
from myxtts.corpus.manifest import (
    CHUNK_ROWS,
    LengthRule,
    Manifest,
    Vocabulary,
    load_manifest,
    save_manifest,
)
from myxtts.corpus.rows import RejectedRow, Row, Rows, RowTuple
from myxtts.text.frontend import TextFrontend, read_lexicon
from myxtts.text.named import ADVICE
from myxtts.text.symbols import SymbolTable

Reject = Callable[[Row, str, str], None]
"""(row, reason, detail): notes that a row is unusable."""
Result = TypeVar("Result")

log = logging.getLogger(__name__)

# A change of the columns or the checks must increase it, so that no older manifest is taken.
CACHE_FORMAT = 7
# There may be more threads than cores, since they mostly wait for the disk.
HEADER_THREADS = 8
# Twice the frames of the longest utterance, which is more than its symbols.
MAX_TEXT_CHARACTERS = 20_000
# The times of subtitles, and of some Kaldi segments, exceed the recording a little.
MAX_EXCESS_S = 0.5
# Durations in metadata are rounded.
MAX_REST_S = 0.02
UNKNOWN_LANGUAGE = "language unknown to the training corpus"
UNKNOWN_SYMBOL = "symbol unknown to the training corpus"


class _Audio(NamedTuple):
    """A usable file, by the name in the metadata and without links."""

    row: Row
    path: str
    real_path: str
    start: int
    samples: int
    native: bool


# First the languages get one spelling. Then the key of the cache is computed: a digest of
# everything that the manifest depends on, with the size and the times of every file. If it is equal
# to the saved one, the result is there. Otherwise the audio is checked before the texts, since the
# time that a text needs is compared with the length of its recording. The vocabulary comes last:
# it holds what the usable rows have.
def build_manifest(
    rows: Rows,
    data: DataConfig,
    length_rule: LengthRule | None,
    vocabulary: Vocabulary | None = None,
    *,
    grow: bool = False,
    cache: Path | None = None,
    frontend: TextFrontend | None = None,
) -> tuple[Manifest, Vocabulary, list[RejectedRow]]:
    """Check every row, and collect the usable ones as columns.

    Args:
        length_rule: utterances with fewer frames than it needs are rejected. If None, no text is
            read: utterances have no tokens.
        vocabulary: of the training manifest, for a validation corpus: rows with another symbol or
            language are rejected, other speakers are appended. With `grow`, their symbols and
            languages are appended, too. If None, it is made from the usable rows.
        cache: file for the result, valid until a file, a row or an argument changes.
        frontend: of the run; by default as the settings say.

    Returns the manifest, which may be empty, its vocabulary, and the rejected rows by line, without
    those in `rows.rejected`.
    """
    frontend = frontend or frontend_of(data)
    use_sample_rate(data.sample_rate, "--sample-rate")
    if not isinstance(rows.rows, RowTuple):
        return rows.rows.manifest(data, length_rule, vocabulary, grow, frontend)
    # Characters need no language, so that any name is one.
    spell = canonical_code if length_rule and frontend.reader.has_phonemes else canonical_name
    codes = {row.language: spell(row.language) for row in rows.rows}
    # An earlier run keeps its spelling.
    if vocabulary:
        known = {spell(name): name for name in vocabulary.languages}
        codes = {name: known.get(code, code) for name, code in codes.items()}
    spelled = RowTuple(row._replace(language=codes[row.language]) for row in rows.rows)
    rows = rows._replace(rows=spelled)
    key = ""
    if cache:
        reading = frontend.kind, frontend.normaliser, sorted(frontend.lexicon.items())
        limits = data.sample_rate, data.min_seconds, data.max_seconds, data.trim
        settings = (*limits, *reading, length_rule, grow)
        key = _cache_key(rows, settings, vocabulary)
        if cached := load_manifest(cache, key):
            return cached
    rejected: list[RejectedRow] = []

    def reject(row: Row, reason: str, detail: str) -> None:
        rejected.append(rows.rejecting(row, reason, detail))

    audio = _usable_audio(rows, reject, data)
    usable = [(utterance, list[str]()) for utterance in audio]
    if length_rule is not None:
        allowed = None if grow else vocabulary
        usable = list(_usable_text(audio, reject, frontend, length_rule, allowed))
    manifest, vocabulary = _columns(usable, vocabulary)
    rejected.sort(key=lambda row: (row.metadata, row.line))
    if cache:
        save_manifest(cache, key, manifest, vocabulary, rejected)
    return manifest, vocabulary, rejected


def frontend_of(data: DataConfig) -> TextFrontend:
    """Return the front end of a new run.

    Raises DataError for an unusable --lexicon, and ConfigError for an unknown front end, or one
    that reads no words of a lexicon.
    """
    lexicon = read_lexicon(Path(data.lexicon) if data.lexicon is not None else None)
    frontend = TextFrontend(data.text_frontend, data.text_normaliser, lexicon)
    if not frontend.reader.has_phonemes and lexicon:
        raise ConfigError(
            f"--lexicon {data.lexicon} was given, but with --text-frontend {data.text_frontend}"
            " words are not read. Leave out one of them."
        )
    return frontend


def report_rejected(
    rejected: Sequence[RejectedRow],
    corpora: Sequence[tuple[Rows, Manifest]],
    max_rejected: float,
    listing: Path,
    unneeded: Sequence[RejectedRow] = (),
) -> None:
    """Write the rejected rows to the CSV file `listing`, by line, and log a summary.

    Raises DataError if more than the fraction `max_rejected` of all rows of the corpora is
    rejected, or a corpus has no usable row. The unneeded rows are listed and do not count.
    """
    write_csv(listing, [RejectedRow._fields, *sorted([*rejected, *unneeded])])
    if not rejected:
        return
    counts = Counter(row.reason for row in rejected).most_common(5)
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts)
    total = sum(len(rows.rows) + len(rows.rejected) for rows, _ in corpora)
    first = f"the first is {rejected[0].audio}: {rejected[0].detail or rejected[0].reason}"
    found = f"{len(rejected)} of {total} utterances cannot be used ({reasons}; {first})"
    summary = f"{found}; {listing} lists them"
    for rows, manifest in corpora:
        if not len(manifest) and (rows.rows or rows.rejected):
            raise DataError(f"{rows.metadata} has no usable utterances: {summary}. Fix these rows.")
    if len(rejected) > max_rejected * total:
        raise DataError(
            f"at most {max_rejected:.1%} of the utterances may be unusable, but {summary}. Fix or"
            " remove these rows, or raise --max-rejected."
        )
    log.warning("%s", summary)


# Threads examine the files, and this thread takes the results in the order of the rows. So the
# first of two rows that name the same stretch is kept, whichever thread was faster.
def _usable_audio(rows: Rows, reject: Reject, data: DataConfig) -> list[_Audio]:
    usable: list[_Audio] = []
    line_of: dict[tuple[str, int, int], int] = {}
    # Many rows may be stretches of one file.
    files = lru_cache(64)(read_header), lru_cache(64)(check_finite)
    examine = partial(_examine, folder=os.path.abspath(rows.folder), data=data, files=files)
    for row, audio in _in_threads(examine, rows.rows, "headers"):
        if isinstance(audio, UnusableAudio):
            reject(row, audio.reason, audio.detail)
            continue
        place = audio.real_path, audio.start, audio.samples
        if place in line_of:
            reject(row, "duplicate path", f"line {line_of[place]} also names it")
        else:
            line_of[place] = row.line
            usable.append(audio)
    return usable


def _examine(
    row: Row,
    folder: str,
    data: DataConfig,
    files: tuple[Callable[[str], AudioHeader], Callable[[str], None]],
) -> _Audio | UnusableAudio:
    """Check the file of a row; `files` are read_header and check_finite, which may be cached."""
    read_header, check_finite = files
    is_member = member_of(row.audio) is not None
    path = row.audio
    if not is_url(path):
        path = os.path.normpath(os.path.join(folder, path))
    real_path = os.path.realpath(path)
    # Links may lead anywhere: in caches of Hugging Face, DVC and git-annex all files are links. The
    # second condition accepts absolute names that start with the target of a linked folder.
    roots = (os.path.join(folder, ""), os.path.join(os.path.realpath(folder), ""))
    try:
        if not (is_member or path.startswith(roots[0]) or real_path.startswith(roots[1])):
            advice = "--audio-root can name a folder that contains it"
            raise UnusableAudio("outside the corpus folder", f"{path}; {advice}")
        header = read_header(path)
        length = resampled_length(header.samples, header.rate_hz)
        start, samples = _stretch(row, length)
        # Much longer stretches are rejected below, without decoding hours of sound.
        if data.trim is not None and samples <= (data.max_seconds + TRIMMED_S) * sample_rate_hz():
            start, samples = _trimmed(path, start, samples, data.trim)
        if fault := duration_fault(samples, data):
            raise fault
        # This reads all samples. Only samples of 32 bits can be not finite, or on another scale.
        if header.wide:
            check_finite(path)
    except UnusableAudio as error:
        return error
    # Native decoding reads the whole file, which is wasted if the stretch is less than half of it.
    return _Audio(row, path, real_path, start, samples, header.native and 2 * samples >= length)


def duration_fault(samples: int, data: DataConfig) -> UnusableAudio | None:
    """Return the error of an utterance that is shorter or longer than the settings allow."""
    # Rounded away from the limit, so that the message does not seem to contradict it.
    ms = 1000 * samples / sample_rate_hz()
    if samples < data.min_seconds * sample_rate_hz():
        limit = f"at least {data.min_seconds} s (--min-seconds)"
        return UnusableAudio("too short", f"{math.floor(ms) / 1000:.3f} s, {limit}")
    if samples > data.max_seconds * sample_rate_hz():
        limit = f"at most {data.max_seconds} s (--max-seconds)"
        return UnusableAudio("too long", f"{math.ceil(ms) / 1000:.3f} s, {limit}")
    return None


def _stretch(row: Row, length: int) -> tuple[int, int]:
    """Return the first sample of a row, or WHOLE, and its number of samples."""
    if row.end_s is None and not row.start_s:
        return WHOLE, length
    start = round(row.start_s * sample_rate_hz())
    end = length
    if row.end_s is not None:
        end = round(row.end_s * sample_rate_hz())
    if end - length > MAX_EXCESS_S * sample_rate_hz() or start >= min(end, length):
        stretch = f"{row.start_s:.3f} s to {end / sample_rate_hz():.3f} s"
        detail = f"{stretch}, but the file has {length / sample_rate_hz():.3f} s"
        raise UnusableAudio("not in the recording", detail)
    end = min(end, length)
    if start == 0 and length - end <= MAX_REST_S * sample_rate_hz():
        return WHOLE, length
    return start, end - start


def _trimmed(path: str, start: int, samples: int, below_db: float) -> tuple[int, int]:
    """Return a stretch without the silence at its ends; raise UnusableAudio if it is unreadable."""
    try:
        first, end = speech_span(read_pcm(path, samples, start=start), below_db)
    except DataError as error:
        raise UnusableAudio("unreadable", str(error)) from error
    if end - first == samples:
        return start, samples
    return max(start, 0) + first, end - first


def _in_threads(
    examine: Callable[[Row], Result], rows: Sequence[Row], label: str
) -> Iterator[tuple[Row, Result]]:
    chunks = [rows[begin : begin + CHUNK_ROWS] for begin in range(0, len(rows), CHUNK_ROWS)]
    with ThreadPoolExecutor(HEADER_THREADS) as pool, _bar(len(rows), label) as bar:
        try:
            examined = pool.map(lambda chunk: [examine(row) for row in chunk], chunks)
            for chunk, results in zip(chunks, examined, strict=True):
                yield from zip(chunk, results, strict=True)
                bar.update(len(chunk))
        finally:
            # Ctrl-C must not wait for the rest of the corpus.
            pool.shutdown(cancel_futures=True)


def _bar(total: int, label: str) -> tqdm:
    """Return a progress bar, which is shown on a terminal only."""
    return tqdm(total=total, desc=label, unit="utt", leave=False, disable=None)


def _usable_text(
    audio: Sequence[_Audio],
    reject: Reject,
    frontend: TextFrontend,
    length_rule: LengthRule,
    vocabulary: Vocabulary | None,
) -> Iterator[tuple[_Audio, list[str]]]:
    """Yield the utterances whose text can be spoken and aligned, with their symbols.

    At the end, log the words that are left to espeak-ng.
    """
    left: Counter[str] = Counter()
    named: Counter[str] = Counter()
    texts = 0
    with _bar(len(audio), "text") as bar:
        for utterance in audio:
            bar.update()
            row = utterance.row
            if len(row.text) > MAX_TEXT_CHARACTERS:
                limit = f"{len(row.text):,} characters, at most {MAX_TEXT_CHARACTERS:,}"
                reject(row, "text too long", limit)
                continue
            try:
                stages = frontend.stages(row.text, row.language)
            except DataError as error:
                reject(row, "text cannot be read", str(error))
                continue
            symbols = stages.symbols
            left.update(stages.left)
            texts += bool(stages.left)
            named.update(stages.named)
            if not symbols:
                reject(row, "no text", row.text)
            elif fault := text_fault(
                symbols, row.language, utterance.samples, length_rule, vocabulary
            ):
                reject(row, *fault)
            else:
                yield utterance, symbols
    if left:
        most = ", ".join(word for word, _ in left.most_common(8))
        line = "left           %d of %d texts have emoji or what is read in a way of its own: %s"
        log.info(line, texts, len(audio), most)
    if named:
        most = ", ".join(word for word, _ in named.most_common(8))
        line = "named          %d words whose letters espeak-ng names, not reads: %s. %s"
        log.warning(line, named.total(), most, ADVICE)


def text_fault(
    symbols: Sequence[str],
    language: str,
    samples: int,
    rule: LengthRule,
    vocabulary: Vocabulary | None,
) -> tuple[str, str] | None:
    """Return why an utterance cannot be trained on: reason and detail; None if it can."""
    if vocabulary and language not in vocabulary.languages:
        return UNKNOWN_LANGUAGE, language
    if vocabulary and (unknown := vocabulary.symbols.unknown(symbols)):
        return UNKNOWN_SYMBOL, " ".join(unknown)
    frames, needed = frame_count(samples), rule.frames_needed(symbols)
    if frames < needed:
        detail = f"{frames} frames, but {len(symbols)} symbols need {needed}"
        return "audio too short for its text", detail
    return None


def _columns(
    usable: Sequence[tuple[_Audio, list[str]]], vocabulary: Vocabulary | None
) -> tuple[Manifest, Vocabulary]:
    rows = [audio.row for audio, _ in usable]
    new = Vocabulary(
        SymbolTable.from_sequences(symbols for _, symbols in usable),
        tuple(sorted({row.speaker for row in rows})),
        tuple(sorted({row.language for row in rows})),
    )
    vocabulary = vocabulary.extended_by(new) if vocabulary else new
    speaker_rows = {name: number for number, name in enumerate(vocabulary.speakers)}
    language_rows = {name: number for number, name in enumerate(vocabulary.languages)}
    tokens = [np.zeros(0, np.int32)] * len(usable)
    for row, (_, symbols) in enumerate(usable):
        if symbols:
            tokens[row] = vocabulary.symbols.encode(symbols)
    counts = np.array([*map(len, tokens)], np.int32)
    manifest = Manifest(
        ids=tuple(row.id for row in rows),
        paths=tuple(audio.path for audio, _ in usable),
        texts=tuple(row.text for row in rows),
        starts=np.array([audio.start for audio, _ in usable], np.int64),
        samples=np.array([audio.samples for audio, _ in usable], np.int32),
        native=np.array([audio.native for audio, _ in usable], bool),
        tokens=np.concatenate([np.zeros(0, np.int32), *tokens]),
        token_start=np.cumsum(counts, dtype=np.int64) - counts,
        token_counts=counts,
        speaker=np.array([speaker_rows[row.speaker] for row in rows], np.int32),
        language=np.array([language_rows[row.language] for row in rows], np.int32),
    )
    return manifest, vocabulary


def _cache_key(rows: Rows, settings: tuple, vocabulary: Vocabulary | None) -> str:
    """Return the SHA-256 of the rows, the arguments, and the sizes and times of all files."""
    known = vocabulary and vocabulary.lists
    paths = str(rows.metadata), os.path.realpath(rows.folder)
    digest = hashlib.sha256(json.dumps([CACHE_FORMAT, *paths, settings, known]).encode())

    def stamp_of(row: Row) -> FileStamp | None:
        if member := member_of(row.audio):
            return file_stamp(member.tar)
        return file_stamp(os.path.join(rows.folder, row.audio))

    for row, stamp in _in_threads(stamp_of, rows.rows, "files"):
        digest.update(json.dumps([row, stamp]).encode())
    return digest.hexdigest()
