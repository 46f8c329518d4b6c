"""A corpus on disk as rows: which audio file says what, by whom, in which language.

Two forms are read:
    LJSpeech folder   metadata.csv (or metadata_train.csv, metadata_eval.csv) with lines `id|text[|normalised text]`,
                      no header, quotes are literal; audio in wavs/, the id with or without `.wav`
    CSV/TSV file      a header with path,text[,speaker][,language], separated by , ; tab or |; quotes quote;
                      paths are relative to the file's folder, or to a root that is given

Nothing is opened here but the metadata, and nothing is ever made.
"""

import csv
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from myxtts.errors import DataError

DEFAULT_SPEAKER = "default"
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3")
SEPARATORS = ",;\t|"
FORMS = (
    "Give an LJSpeech folder (metadata.csv with id|text lines, audio in wavs/) "
    "or a CSV/TSV file whose header names path and text."
)


class Row(NamedTuple):
    """One utterance as the metadata names it. `audio` is relative to the folder of its Rows, and not yet trusted."""

    line: int
    id: str
    audio: str
    text: str
    speaker: str
    language: str


class RejectedRow(NamedTuple):
    """A row that cannot be used: `reason` is the same for all rows of its kind, `detail` is the row's own."""

    metadata: str
    line: int
    audio: str
    reason: str
    detail: str


class Rows(NamedTuple):
    """The rows of one metadata file; their audio must lie in `folder`."""

    metadata: Path
    folder: Path
    rows: tuple[Row, ...]
    rejected: tuple[RejectedRow, ...] = ()


def read_corpora(
    train: Path, validation: Path | None, language: str, validation_fraction: float, seed: int, root: Path | None = None
) -> tuple[Rows, Rows, list[RejectedRow]]:
    """Training rows, validation rows, and the rows of both whose form is wrong.

    Validation is `validation` where it is given, else metadata_eval.csv beside metadata_train.csv, else held out of
    the training rows. `root` is that of `read_corpus`, for both. Raises DataError.
    """
    if validation is not None:
        parts = read_corpus(train, language, root), _read(_metadata_of(validation, "metadata_eval.csv"), language, root)
    elif all(os.path.isfile(train / name) for name in ("metadata_train.csv", "metadata_eval.csv")):
        parts = read_corpus(train, language, root), _read(train / "metadata_eval.csv", language, root)
    else:
        parts = hold_out(read_corpus(train, language, root), validation_fraction, seed)
    return *parts, [row for part in parts for row in part.rejected]


def read_corpus(path: Path, language: str, root: Path | None = None) -> Rows:
    """The rows of the corpus at `path`, those without a language in `language`.

    Args:
        root: folder that paths of CSV and TSV files start from; that of the file where it is not given.

    Raises:
        DataError: it cannot be read, or is no corpus.
    """
    return _read(_metadata_of(path, "metadata_train.csv"), language, root)


def hold_out(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Splits off about `share` of the ids, chosen by (seed, id) alone: the order of the rows does not matter.

    With a share above 0 and at least two ids, each part gets one or more.
    """
    ids = sorted({row.id for row in rows.rows}, key=lambda id_: _lot(seed, id_))
    count = min(max(round(share * len(ids)), 1), len(ids) - 1) if share > 0 and ids else 0
    held = set(ids[:count])
    return (
        rows._replace(rows=tuple(row for row in rows.rows if row.id not in held)),
        rows._replace(rows=tuple(row for row in rows.rows if row.id in held), rejected=()),
    )


def _lot(seed: int, id_: str) -> bytes:
    return hashlib.blake2b(f"{seed}:{id_}".encode(), digest_size=16).digest()


def _metadata_of(path: Path, preferred: str) -> Path:
    """The metadata file of the corpus at `path`: the file itself, or in a folder `preferred` before metadata.csv."""
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        found = "that is neither a folder nor a file" if os.path.exists(path) else "nothing can be found there"
        raise DataError(f"The corpus {path} was asked for, but {found}. {FORMS}")
    for name in (preferred, "metadata.csv"):
        if os.path.isfile(path / name):
            return path / name
    raise DataError(f"The folder {path} was given as a corpus, but it has no metadata.csv. {FORMS}")


def _read(metadata: Path, language: str, root: Path | None) -> Rows:
    text = _text_of(metadata)
    first = text.split("\n", 1)[0].strip()
    if separator := _separator(first):
        folder, found = root or metadata.parent, _table_rows(text, separator, metadata, language)
    elif "|" in first:
        folder, found = metadata.parent / "wavs", _ljspeech_rows(text, metadata, language)
    else:
        raise DataError(f"{metadata} should have a header that names path and text, but begins {first[:80]!r}. {FORMS}")
    if not os.path.isdir(folder):
        if folder == root:
            raise DataError(f"--audio-root {root} was given, but there is no such folder. Name where the audio lies.")
        raise DataError(f"{metadata} has LJSpeech lines, but there is no folder wavs/ beside it. {FORMS}")
    found = tuple(found)
    if not found:
        raise DataError(f"{metadata} was given as a corpus, but it has no utterances. {FORMS}")
    rows = tuple(row for row in found if isinstance(row, Row))
    return Rows(metadata, folder, rows, tuple(row for row in found if isinstance(row, RejectedRow)))


def _text_of(metadata: Path) -> str:
    try:
        blob = metadata.read_bytes()
    except OSError as error:
        raise DataError(f"{metadata} was to be read, but: {error.strerror}. Check the path and its rights.") from error
    if not blob.strip():
        raise DataError(f"{metadata} was given as a corpus, but it is empty. {FORMS}")
    if b"\0" in blob:
        raise DataError(f"{metadata} should be UTF-8 text, but it is binary or UTF-16. Save it as UTF-8. {FORMS}")
    try:
        return blob.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = blob.count(b"\n", 0, error.start) + 1, blob[error.start]
        raise DataError(
            f"{metadata} should be UTF-8 text, but line {line} has the byte 0x{byte:02x}. Save it as UTF-8."
        ) from error


def _separator(header: str) -> str:
    """The separator with which this line names path and text, each once; nothing where none does."""
    for separator in SEPARATORS:
        names = _names(header.split(separator))
        if names.count("path") == names.count("text") == 1:
            return separator
    return ""


def _names(fields: list[str]) -> list[str]:
    return [field.strip().strip('"').lower() for field in fields]


def _ljspeech_rows(text: str, metadata: Path, language: str) -> Iterator[Row | RejectedRow]:
    for line, content in enumerate(text.split("\n"), 1):  # splitlines() would also break at U+2028 and the like
        if not content.strip():
            continue
        id_, *texts = (field.strip() for field in content.split("|"))
        if id_ and len(texts) in (1, 2):
            audio = id_ if id_.lower().endswith(AUDIO_SUFFIXES) else f"{id_}.wav"
            yield Row(line, os.path.normpath(audio), audio, texts[-1] or texts[0], DEFAULT_SPEAKER, language)
        else:
            yield _malformed(metadata, line, id_, f"{len(texts) + 1} fields, not id|text[|normalised text]")


def _table_rows(text: str, separator: str, metadata: Path, language: str) -> Iterator[Row | RejectedRow]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        names = _names(next(reader))
        line = reader.line_num + 1
        for fields in reader:
            if fields:
                yield _table_row(fields, names, metadata, line, language)
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{metadata} should be CSV, but what begins at line {line} is not: {error}. "
            'Close each quote, and write a quote inside a quoted field as "".'
        ) from error


def _table_row(fields: list[str], names: list[str], metadata: Path, line: int, language: str) -> Row | RejectedRow:
    values = dict(zip(names, (field.strip() for field in fields), strict=False))
    path = values.get("path", "")
    if len(fields) != len(names):
        return _malformed(metadata, line, path, f"{len(fields)} fields, the header names {len(names)}")
    if not path:
        return _malformed(metadata, line, path, "no path")
    speaker, spoken = values.get("speaker") or DEFAULT_SPEAKER, values.get("language") or language
    return Row(line, os.path.normpath(path), path, values["text"], speaker, spoken)


def _malformed(metadata: Path, line: int, audio: str, detail: str) -> RejectedRow:
    return RejectedRow(str(metadata), line, audio, "malformed row", detail)
