"""Reads the metadata of a corpus: the audio file, text, speaker and language of each row.

There are two formats:
    LJSpeech folder   metadata.csv (or metadata_train.csv, metadata_eval.csv) with lines `id|text[|normalised text]`,
                      no header, quotes are literal; audio in wavs/, the id with or without `.wav`
    CSV/TSV file      a header with path,text[,speaker][,language], separated by , ; tab or |; quoted fields;
                      paths are relative to the file's folder, or to a given root

This module reads no other files than the metadata and writes none.
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
FORMATS = (
    "Give an LJSpeech folder (metadata.csv with id|text lines, audio in wavs/) "
    "or a CSV/TSV file whose header names path and text."
)


class Row(NamedTuple):
    """One row of the metadata. `audio` is relative to the folder of its Rows and unchecked."""

    line: int
    id: str
    audio: str
    text: str
    speaker: str
    language: str


class RejectedRow(NamedTuple):
    """A row that cannot be used. `reason` names the kind of fault, `detail` is specific to the row."""

    metadata: str
    line: int
    audio: str
    reason: str
    detail: str


class Rows(NamedTuple):
    """The rows of one metadata file, whose audio must be in `folder`."""

    metadata: Path
    folder: Path
    rows: tuple[Row, ...]
    rejected: tuple[RejectedRow, ...] = ()


def read_corpora(
    train: Path, validation: Path | None, language: str, validation_fraction: float, seed: int, root: Path | None = None
) -> tuple[Rows, Rows, list[RejectedRow]]:
    """Read the training rows, the validation rows, and the malformed rows of both.

    The validation rows come from `validation` if it is given, else from metadata_eval.csv beside metadata_train.csv,
    else they are held out from the training rows.

    Args:
        root: see `read_corpus`; for both corpora.

    Raises:
        DataError: a corpus cannot be read.
    """
    if validation is not None:
        rows = read_corpus(train, language, root), _read(_metadata_of(validation, "metadata_eval.csv"), language, root)
    elif all(os.path.isfile(train / name) for name in ("metadata_train.csv", "metadata_eval.csv")):
        rows = read_corpus(train, language, root), _read(train / "metadata_eval.csv", language, root)
    else:
        rows = hold_out(read_corpus(train, language, root), validation_fraction, seed)
    return *rows, [rejected for corpus in rows for rejected in corpus.rejected]


def read_corpus(path: Path, language: str, root: Path | None = None) -> Rows:
    """Read the rows of a corpus.

    Args:
        path: an LJSpeech folder or a metadata file.
        language: of rows without a language.
        root: folder to which the paths in CSV and TSV files are relative; by default the folder of the file.

    Raises:
        DataError: the corpus cannot be read, or has another format.
    """
    return _read(_metadata_of(path, "metadata_train.csv"), language, root)


def hold_out(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows into training and validation rows by ids; the choice depends only on (seed, id), not on the order.

    With a fraction above 0 and at least two ids, each part has at least one.
    """
    ids = sorted({row.id for row in rows.rows}, key=lambda id_: _sort_key(seed, id_))
    count = min(max(round(fraction * len(ids)), 1), len(ids) - 1) if fraction > 0 and ids else 0
    held_out = set(ids[:count])
    return (
        rows._replace(rows=tuple(row for row in rows.rows if row.id not in held_out)),
        rows._replace(rows=tuple(row for row in rows.rows if row.id in held_out), rejected=()),
    )


def _sort_key(seed: int, id_: str) -> bytes:
    return hashlib.blake2b(f"{seed}:{id_}".encode(), digest_size=16).digest()


def _metadata_of(path: Path, preferred: str) -> Path:
    """The metadata file of a corpus: `path` itself, or in a folder `preferred` or else metadata.csv."""
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        fault = "is neither a folder nor a file" if os.path.exists(path) else "does not exist"
        raise DataError(f"the corpus {path} {fault}. {FORMATS}")
    for name in (preferred, "metadata.csv"):
        if os.path.isfile(path / name):
            return path / name
    raise DataError(f"the corpus folder {path} has no metadata.csv. {FORMATS}")


def _read(metadata: Path, language: str, root: Path | None) -> Rows:
    text = _text_of(metadata)
    first = text.split("\n", 1)[0].strip()
    if separator := _separator(first):
        folder, parsed = root or metadata.parent, _table_rows(text, separator, metadata, language)
    elif "|" in first:
        folder, parsed = metadata.parent / "wavs", _ljspeech_rows(text, metadata, language)
    else:
        raise DataError(
            f"{metadata} should have a header that names path and text, but it begins with {first[:80]!r}. {FORMATS}"
        )
    if not os.path.isdir(folder):
        if folder == root:
            raise DataError(f"--audio-root {root} does not exist. Give the folder of the audio files.")
        raise DataError(f"{metadata} has LJSpeech lines, but there is no folder wavs/ beside it. {FORMATS}")
    rows = tuple(parsed)
    if not rows:
        raise DataError(f"{metadata} has no utterances. {FORMATS}")
    usable = tuple(row for row in rows if isinstance(row, Row))
    return Rows(metadata, folder, usable, tuple(row for row in rows if isinstance(row, RejectedRow)))


def _text_of(metadata: Path) -> str:
    try:
        blob = metadata.read_bytes()
    except OSError as error:
        raise DataError(f"{metadata} cannot be read: {error.strerror}. Check the path and its permissions.") from error
    if not blob.strip():
        raise DataError(f"{metadata} is empty. {FORMATS}")
    if b"\0" in blob:
        raise DataError(f"{metadata} should be UTF-8 text, but it is binary or UTF-16. Save it as UTF-8. {FORMATS}")
    try:
        return blob.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = blob.count(b"\n", 0, error.start) + 1, blob[error.start]
        raise DataError(
            f"{metadata} should be UTF-8 text, but line {line} has the byte 0x{byte:02x}. Save it as UTF-8."
        ) from error


def _separator(header: str) -> str:
    """The separator by which the header names path and text, each once; empty if there is none."""
    for separator in SEPARATORS:
        names = _names(header.split(separator))
        if names.count("path") == names.count("text") == 1:
            return separator
    return ""


def _names(fields: list[str]) -> list[str]:
    return [field.strip().strip('"').lower() for field in fields]


def _ljspeech_rows(text: str, metadata: Path, language: str) -> Iterator[Row | RejectedRow]:
    for line, content in enumerate(
        text.split("\n"), 1
    ):  # splitlines() would also split at U+2028 and similar characters
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
            f"{metadata} should be CSV, but the row that begins at line {line} is not: {error}. "
            'Close each quote, and write a quote inside a quoted field as "".'
        ) from error


def _table_row(fields: list[str], names: list[str], metadata: Path, line: int, language: str) -> Row | RejectedRow:
    values = dict(zip(names, (field.strip() for field in fields), strict=False))
    path = values.get("path", "")
    if len(fields) != len(names):
        return _malformed(metadata, line, path, f"{len(fields)} fields, but the header names {len(names)}")
    if not path:
        return _malformed(metadata, line, path, "no path")
    speaker = values.get("speaker") or DEFAULT_SPEAKER
    return Row(line, os.path.normpath(path), path, values["text"], speaker, values.get("language") or language)


def _malformed(metadata: Path, line: int, audio: str, detail: str) -> RejectedRow:
    return RejectedRow(str(metadata), line, audio, "malformed row", detail)
