"""Reads the metadata of a corpus: the audio file, text, speaker and language of each row.

There are two kinds of metadata (docs/guides/data.md lists all forms):
    lines     metadata.csv (or metadata_train.csv, metadata_eval.csv) with lines
    `id|text[|normalised text]`, as in
              LJSpeech; no header; audio in wavs/, the id with or without suffix
    table     a header that names audio, text[, speaker][, language], separated by , ; tab or |;
    quoted fields;
              paths are relative to the file's folder, or to a given root

A task that needs no texts also takes lines `id`, a table without text, and a folder of audio
without metadata.

This module reads the metadata, lists the folders of the audio files, and writes nothing.
"""

import csv
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PureWindowsPath
from shlex import quote
from typing import NamedTuple

from myxtts.data.audio_folder import (
    AUDIO_SUBFOLDERS,
    AUDIO_SUFFIXES,
    AudioFolder,
    audio_files,
    audio_subfolders,
    suffix_of,
    walk_folders,
)
from myxtts.data.metadata_form import (
    Record,
    Table,
    explain,
    fault_of_header,
    first_line,
    table_with_header,
    tables_without_header,
)
from myxtts.errors import DataError

DEFAULT_SPEAKER = "default"
UNREADABLE = (".m4a", ".aac", ".mp4", ".webm", ".wma", ".amr")  # libsndfile has no decoder
METADATA_NAMES = ("metadata.csv", "metadata.tsv", "metadata.txt")
MAX_BYTES = 1 << 31  # of a metadata file: ten million rows
BLOCK_BYTES = 1 << 20
MAX_LINE_CHARACTERS = 1 << 20
MAX_PATH_CHARACTERS = 4096  # PATH_MAX of Linux
SHOWN_CHARACTERS = 500  # of a path or another text of the file in a message
FORMATS = (
    "Give an LJSpeech folder (metadata.csv with id|text lines, audio in wavs/) "
    "or a CSV/TSV file whose header names path and text; docs/guides/data.md has all forms."
)

log = logging.getLogger(__name__)


class Row(NamedTuple):
    """One row of the metadata. `audio` is relative to the folder of its Rows and unchecked."""

    line: int
    id: str
    audio: str
    text: str
    speaker: str
    language: str


class RejectedRow(NamedTuple):
    """A row that cannot be used. `reason` names the kind of fault, `detail` is specific to
    the row.
    """

    metadata: str
    line: int
    audio: str
    reason: str
    detail: str


class Rows(NamedTuple):
    """The rows of one metadata file, whose audio must be in `folder`. `form` describes how the file
    was understood.
    """

    metadata: Path
    folder: Path
    rows: tuple[Row, ...]
    rejected: tuple[RejectedRow, ...] = ()
    form: str = ""


def read_corpora(
    train: Path,
    validation: Path | None,
    language: str,
    validation_fraction: float,
    seed: int,
    root: Path | None = None,
    needs_text: bool = True,
) -> tuple[Rows, Rows, list[RejectedRow]]:
    """Read the training rows, the validation rows, and the malformed rows of both.

    The validation rows come from `validation` if it is given, else from metadata_eval.csv beside
    metadata_train.csv, else they are held out from the training rows.

    Args:
        root, needs_text: see `read_corpus`; for both corpora.

    Raises:
        DataError: a corpus cannot be read.
    """
    read = partial(read_corpus, language=language, root=root, needs_text=needs_text)
    folder = train.parent if train.name == "metadata_train.csv" else train
    if validation is not None:
        rows = read(train), read(validation, preferred="metadata_eval.csv")
        if os.path.samefile(rows[0].metadata, rows[1].metadata):
            raise DataError(
                f"--train-data {train} and --val-data {validation} are both {rows[0].metadata}, so"
                " validation would measure what was trained on. Leave out --val-data to hold out"
                " some utterances, or give other ones."
            )
    elif all(os.path.isfile(folder / name) for name in ("metadata_train.csv", "metadata_eval.csv")):
        rows = read(folder / "metadata_train.csv"), read(folder / "metadata_eval.csv")
    else:
        rows = hold_out(read(train), validation_fraction, seed)
    for form in dict.fromkeys(corpus.form for corpus in rows):
        log.info("%-14s %s", "corpus form", form)
    return *rows, [rejected for corpus in rows for rejected in corpus.rejected]


def read_corpus(
    path: Path,
    language: str,
    root: Path | None = None,
    needs_text: bool = True,
    preferred: str = "metadata_train.csv",
) -> Rows:
    """Read the rows of a corpus.

    Args:
        path: a folder with metadata.csv, or a metadata file.
        language: of rows without a language.
        root: folder to which the paths in tables are relative, by default the folder of the file.
            The audio of lines without a header is searched there first.
        needs_text: whether the task needs texts; without, a folder of audio is a corpus, too.
        preferred: name of the metadata file of a folder, if it has one of this name.

    Raises:
        DataError: the corpus cannot be read, or has another format.
    """
    is_audio = not needs_text and os.path.isdir(path) and not _metadata_in(path, preferred)
    metadata = None if is_audio else _metadata_of(path, preferred)
    if root is not None and not os.path.isdir(root):
        raise DataError(f"--audio-root {root} does not exist. Give the folder of the audio files.")
    if metadata is None:
        return _rows_of_folder(path, language)
    return _read(metadata, language, root, needs_text)


def _rows_of_folder(folder: Path, language: str) -> Rows:
    """The audio files in a folder and below it as rows without texts; the speaker is the name of
    the subfolder.
    """
    rows, rejected = [], []
    for line, audio in enumerate(audio_files(folder, UNREADABLE), 1):
        if not suffix_of(audio):
            detail = "this format cannot be read; convert it to WAV or FLAC"
            rejected.append(RejectedRow(str(folder), line, audio, "unreadable format", detail))
            continue
        folder_name = os.path.basename(os.path.dirname(audio))
        parent = os.fsencode(folder_name).decode(
            errors="backslashreplace"
        )  # checkpoints name the speakers in UTF-8
        speaker = DEFAULT_SPEAKER if parent.lower() in ("", *AUDIO_SUBFOLDERS) else parent
        rows.append(Row(line, audio, audio, "", speaker, language))
    if not rows:
        found = f", only {rejected[0].audio} ({rejected[0].detail})" if rejected else ""
        raise DataError(
            f"the corpus folder {folder} has neither metadata.csv nor audio"
            f" ({', '.join(AUDIO_SUFFIXES)}){found}. Give a folder of audio files, or a metadata"
            " file that names them."
        )
    form = f"audio files without metadata; {_count_formats(rows)} in {folder}"
    return Rows(folder, folder, tuple(rows), tuple(rejected), form)


def hold_out(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows into training and validation rows by ids; the choice depends only on (seed, id),
    not on the order.

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
    return hashlib.blake2b(
        f"{seed}:{id_}".encode(errors="surrogateescape"), digest_size=16
    ).digest()


def _metadata_of(path: Path, preferred: str) -> Path:
    """The metadata file of a corpus: `path` itself, or in a folder `preferred` or else one of
    METADATA_NAMES.
    """
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        place = "" if path.is_absolute() else f" in {Path.cwd()}"
        fault = (
            "is neither a folder nor a file" if os.path.exists(path) else f"does not exist{place}"
        )
        stripped = str(path).strip()
        if os.path.exists(stripped) and stripped != str(path):
            raise DataError(
                f"the corpus {str(path)!r} does not exist, but {stripped!r} does. Leave out the"
                " spaces."
            )
        raise DataError(f"the corpus {path} {fault}. {FORMATS}")
    if metadata := _metadata_in(path, preferred):
        return metadata
    if odd := next(
        (path / name for name in (preferred, *METADATA_NAMES) if os.path.lexists(path / name)), None
    ):
        raise DataError(
            f"{odd} is a folder, a pipe, a device or a link to nothing, and no file. {FORMATS}"
        )
    raise DataError(f"the corpus folder {path} has no metadata.csv{_alternative(path)}")


def _metadata_in(folder: Path, preferred: str) -> Path | None:
    return next(
        (folder / name for name in (preferred, *METADATA_NAMES) if os.path.isfile(folder / name)),
        None,
    )


def _alternative(folder: Path) -> str:
    """What a folder without metadata.csv has instead, and what to do."""
    names = sorted(os.listdir(folder), key=lambda name: (not name.startswith("train"), name))
    if tables := [name for name in names if _is_table(folder / name)]:
        return (
            f", but it has {', '.join(tables[:4])}. Give the one with the texts, such as"
            f" {folder / tables[0]}."
        )
    if json := next((name for name in names if name.lower().endswith((".jsonl", ".json"))), None):
        return (
            f", and JSON such as {json} is not read. Write its entries as CSV lines under the"
            " header path,text."
        )
    with os.scandir(folder) as entries:
        subfolders = sorted(entry.path for entry in entries if entry.is_dir())
    for path in (folder.parent, *map(Path, subfolders)):
        if os.path.isfile(path / METADATA_NAMES[0]):
            return f", but {path} has one. Give that folder."
    for path, files in walk_folders(folder):
        if audio := next(filter(suffix_of, files), None):
            name = (path / audio).relative_to(folder)
            speaker = name.parts[-2] if len(name.parts) > 1 else "SPEAKER"
            return (
                f", only audio such as {name}. Write a metadata.csv with the header"
                f" path,text,speaker and a line for each file, such as {name},TEXT,{speaker};"
                " docs/guides/data.md shows how."
            )
    return f". {FORMATS}"


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv", ".txt") and os.path.isfile(path)


def _read(metadata: Path, language: str, root: Path | None, needs_text: bool) -> Rows:
    table, folder = _located(_text_of(metadata), metadata, root, needs_text)
    rows = tuple(_row(record, table, folder, metadata, language) for record in table.records)
    usable = tuple(row for row in rows if isinstance(row, Row))
    rejected = tuple(row for row in rows if isinstance(row, RejectedRow))
    return Rows(metadata, folder.path, usable, rejected, _describe(metadata, table, folder, usable))


def _located(
    text: str, metadata: Path, root: Path | None, needs_text: bool
) -> tuple[Table, AudioFolder]:
    """The table of a metadata file, and the first folder that has a file of the table."""
    try:
        headed = table_with_header(text, needs_text)
    except csv.Error as error:
        raise DataError(
            f"{metadata} should be CSV, but {error}. Close each quote, and write a quote inside a"
            ' quoted field as "".'
        ) from error
    first = None
    for table in (headed,) if headed else tables_without_header(text, needs_text):
        first = first or table
        for path in _folders_of(table, metadata, root):
            folder = AudioFolder(path)
            if any(folder.find(name) for name in _names(table)) and not _is_header(
                table, folder, text, needs_text
            ):
                return table, folder
    if first is None or (not headed and fault_of_header(text, needs_text)):
        raise DataError(
            f"the form of {metadata} is not recognised: {explain(text)}. "
            f"It begins with {first_line(text)[:80]!r}. {FORMATS}"
        )
    raise _no_audio(first, metadata, root)


def _is_header(table: Table, folder: AudioFolder, text: str, needs_text: bool) -> bool:
    """Whether the first of the lines without a header is a faulty header, and no utterance."""
    return (
        not table.header
        and bool(fault_of_header(text, needs_text))
        and not folder.find(next(_names(table)))
    )


def _text_of(metadata: Path) -> str:
    try:
        blob = _content(metadata)
    except OSError as error:
        raise DataError(
            f"{metadata} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    if not blob.strip():
        raise DataError(f"{metadata} is empty. {FORMATS}")
    if b"\0" in blob:
        raise DataError(
            f"{metadata} should be UTF-8 text, but it is binary or UTF-16. Save it as UTF-8."
            f" {FORMATS}"
        )
    try:
        text = blob.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = blob.count(b"\n", 0, error.start) + 1, blob[error.start]
        raise DataError(
            f"{metadata} should be UTF-8 text, but line {line} has the byte 0x{byte:02x}. Save it"
            " as UTF-8."
        ) from error
    text = (
        text if "\n" in text else text.replace("\r", "\n")
    )  # the line end of Excel's "CSV (Macintosh)"
    _check_lines(text, metadata)
    return text


def _content(metadata: Path) -> bytes:
    """The bytes of a metadata file, up to the first megabyte with a NUL: a sparse file may promise
    terabytes of them.

    Raises:
        DataError: the file is too large.
    """
    blocks: list[bytes] = []
    with metadata.open("rb") as file:
        while (block := file.read(BLOCK_BYTES)) and (not blocks or b"\0" not in blocks[-1]):
            blocks.append(block)
            if len(blocks) * BLOCK_BYTES > MAX_BYTES:
                size = metadata.stat().st_size
                raise DataError(
                    f"{metadata} has {size:,} bytes, but metadata may have {MAX_BYTES:,}. Split the"
                    " corpus."
                )
    return b"".join(blocks)


def _check_lines(text: str, metadata: Path) -> None:
    """Raise DataError if a line is longer than any utterance needs: its fields could fill the
    memory.
    """
    begin, line = 0, 1
    while begin < len(text):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        if end - begin > MAX_LINE_CHARACTERS:
            raise DataError(
                f"line {line} of {metadata} has {end - begin:,} characters, but a line may have "
                f"{MAX_LINE_CHARACTERS:,}. Write one utterance in a line."
            )
        begin, line = end + 1, line + 1


def _folders_of(table: Table, metadata: Path, root: Path | None) -> list[Path]:
    """The folders that the audio of a table may be in: ids are usually in a subfolder, paths are
    usually not.
    """
    if table.header:
        base = root or metadata.parent
        return [base, *audio_subfolders(base)]
    bases = [root, metadata.parent] if root else [metadata.parent]
    return [folder for base in bases for folder in (*audio_subfolders(base), base)]


def _names(table: Table) -> Iterator[str]:
    """The names of audio files, without those that are empty or longer than any."""
    column = table.columns.index("path")
    for record in table.records:
        if column < len(record.fields) and 0 < len(record.fields[column]) <= MAX_PATH_CHARACTERS:
            yield _audio_name(record.fields[column], table)


def _audio_name(name: str, table: Table) -> str:
    return name if table.header or suffix_of(name) else f"{name}.wav"


def _row(
    record: Record, table: Table, folder: AudioFolder, metadata: Path, language: str
) -> Row | RejectedRow:
    line, fields = record
    values = dict(zip(table.columns, fields, strict=False))
    path = values.get("path", "")
    if fault := _fault(fields, path, table):
        return RejectedRow(str(metadata), line, shortened(path), "malformed row", fault)
    name = _audio_name(path, table)
    audio = folder.find(name) or name
    text = values.get("normalised text") or values.get("text", "")
    speaker = values.get("speaker") or DEFAULT_SPEAKER
    return Row(
        line, os.path.normpath(audio), audio, text, speaker, values.get("language") or language
    )


def _fault(fields: Sequence[str], path: str, table: Table) -> str:
    """What makes a row unusable; empty if nothing does."""
    if len(path) > MAX_PATH_CHARACTERS:
        return (
            f"a path of {len(path):,} characters, but a file name has at most"
            f" {MAX_PATH_CHARACTERS:,}"
        )
    if path and len(fields) == len(table.columns):
        return ""
    count, most = len(fields), len(table.columns)
    least = most - (not table.header and table.columns[-1] == "normalised text")
    if count < least or any(fields[most:]):  # spreadsheets write empty fields at the end
        return f"{count} fields, " + (
            f"but the header names {most}" if table.header else f"not {table.line_form()}"
        )
    return "" if path else "no path"


def shortened(text: str) -> str:
    """Return a text for a message."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _describe(metadata: Path, table: Table, folder: AudioFolder, rows: Sequence[Row]) -> str:
    """The form in one line, for the log."""
    return (
        f"{table.describe()}; {len(rows)} row{'s' * (len(rows) != 1)} in {metadata}; audio in"
        f" {folder.path}: {_count_formats(rows)}"
    )


def _count_formats(rows: Sequence[Row]) -> str:
    suffixes = Counter(suffix_of(row.audio) or "others" for row in rows)
    return ", ".join(f"{count} {suffix}" for suffix, count in sorted(suffixes.items()))


def _no_audio(table: Table, metadata: Path, root: Path | None) -> DataError:
    names = list(_names(table))
    if not names:
        return DataError(f"{metadata} has no utterances. {FORMATS}")
    places = ", ".join(map(str, _folders_of(table, metadata, root)))
    return DataError(
        f"none of the {len(names)} audio files of {metadata} ({table.describe()}) was found: "
        f"{shortened(names[0])!r} is not in {places}. {_remedy(names, root or metadata.parent)}"
    )


def _remedy(names: Sequence[str], base: Path) -> str:
    name, stem = names[0], os.path.splitext(os.path.basename(names[0]))[0]
    if PureWindowsPath(name).drive:
        return f"It is a path of a Windows computer: write paths relative to {base}."
    if os.path.isabs(name) and os.path.exists(name):
        root = os.path.commonpath([os.path.dirname(path) for path in names if os.path.isabs(path)])
        return (
            f"It is outside of {base}: give a folder that has all audio, such as --audio-root"
            f" {quote(root)}."
        )
    if os.path.isabs(name):
        return f"There is no such file on this computer: write paths relative to {base}."
    if os.path.exists(name):
        return "It is relative to the current folder: give --audio-root ."
    for folder, files in walk_folders(base):
        if AudioFolder(folder).find(name):
            return f"It is in {folder}: give --audio-root {quote(str(folder))}."
        if other := next(
            (file for file in files if os.path.splitext(file) in ((stem, x) for x in UNREADABLE)),
            None,
        ):
            return (
                f"{folder} has {other}, which cannot be read: convert it to WAV or FLAC, for"
                " instance by ffmpeg."
            )
    return "Correct the names, or give the folder of the audio as --audio-root."
