"""Reads the metadata of a corpus: the audio file, text, speaker and language of each row.

Which reader a file gets depends on its name and its first line, never on the values of its rows:

    table     the first line names the columns: a separator of , ; tab or |
    columns   no header; the setting `columns` names them
    LJSpeech  no header; a file named metadata* with lines id|text or id|text|normalised text
    pairs     no header; lines of a path and a text, with any separator
    names     no header; lines of a path alone, for a task that needs no texts
    folder    no metadata; the audio files of a folder, for a task that needs no texts

docs/guides/data.md lists all forms. This module reads the metadata, lists the folders of the audio
files, and writes nothing.
"""

import csv
import hashlib
import io
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
)
from myxtts.errors import DataError

DEFAULT_SPEAKER = "default"
# libsndfile has no decoder for these.
UNREADABLE = (".m4a", ".aac", ".mp4", ".webm", ".wma", ".amr")
METADATA_NAMES = ("metadata.csv", "metadata.tsv", "metadata.txt")
# Of a metadata file: ten million rows.
MAX_BYTES = 1 << 31
MAX_LINE_CHARACTERS = 1 << 20
# PATH_MAX of Linux.
MAX_PATH_CHARACTERS = 4096
# Of a path or another text of the file in a message.
SHOWN_CHARACTERS = 500

SEPARATORS = {"|": "|", "\t": "tabs", ";": "semicolons", ",": "commas"}
LITERAL = "|\t"
"""Separators of files that follow no rules of CSV: each line is a row, and a quote is a character,
but for the quotes around a whole field of a table.
"""

# Meaning: names, of which the first that a header has is used.
COLUMN_NAMES = {
    "path": (
        *("path", "audio_file", "audio_path", "audio_filepath", "audio_filename", "audio"),
        *("file", "file_path", "filepath", "file_name", "filename"),
        *("wav", "wav_file", "wav_path", "wav_filename", "clip"),
        *("id", "utt_id", "utterance_id"),
    ),
    "normalised text": (
        *("normalized_text", "normalised_text", "text_normalized", "text_normalised"),
        *("normalized_transcript", "normalised_transcript"),
        *("transcript_normalized", "transcript_normalised"),
        *("normalized_transcription", "normalised_transcription"),
        *("transcription_normalized", "transcription_normalised"),
    ),
    "text": (
        *("text", "sentence", "transcript", "transcription", "raw_text", "text_original"),
        "original_text",
    ),
    "speaker": ("speaker", "speaker_name", "speaker_id", "spk", "spk_id", "client_id"),
    "language": ("language", "lang", "locale", "language_code"),
}
LJSPEECH = ("path", "text", "normalised text")
FORMATS = (
    "Give an LJSpeech folder (metadata.csv with id|text lines, audio in wavs/) "
    "or a CSV/TSV file whose header names path and text; docs/guides/data.md has all forms."
)
JSON_TO_CSV = "Write its entries under the CSV header path,text"
NAME_THE_COLUMNS = (
    "Name the columns in their order, such as --columns path text speaker, or in a first line"
)
# Fewer rows say too little about whether a column repeats.
MIN_CHECKED_ROWS = 4

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
    """A row that cannot be used: the kind of fault, and what is specific to the row."""

    metadata: str
    line: int
    audio: str
    reason: str
    detail: str


class Rows(NamedTuple):
    """The rows of one metadata file, whose audio must be in `folder`; and its form in words."""

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
    columns: Sequence[str] = (),
) -> tuple[Rows, Rows, list[RejectedRow]]:
    """Read the training rows, the validation rows, and the malformed rows of both.

    The validation rows come from `validation` if it is given, else from metadata_eval.csv next to
    metadata_train.csv, else they are held out from the training rows.

    Args:
        root, needs_text, columns: see `read_corpus`; for both corpora.

    Raises:
        DataError: a corpus cannot be read.
    """
    read = partial(
        read_corpus, language=language, root=root, needs_text=needs_text, columns=columns
    )
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
    return *rows, [*rows[0].rejected, *rows[1].rejected]


def read_corpus(
    path: Path,
    language: str,
    root: Path | None = None,
    needs_text: bool = True,
    preferred: str = "metadata_train.csv",
    columns: Sequence[str] = (),
) -> Rows:
    """Read the rows of a corpus.

    Args:
        path: a folder with metadata.csv, or a metadata file.
        language: of rows without a language.
        root: folder to which the paths in tables are relative, by default the folder of the file.
            The audio of lines without a header is searched there first.
        needs_text: whether the task needs texts; without, a folder of audio is also a corpus.
        preferred: name of the metadata file of a folder, if it has one of this name.
        columns: names of the columns of files without a header.

    Raises:
        DataError: the corpus cannot be read, or has another format.
    """
    metadata = _metadata_of(path, preferred, needs_text)
    if root is not None and not os.path.isdir(root):
        raise DataError(f"--audio-root {root} does not exist. Give the folder of the audio files.")
    if metadata is None:
        return _rows_of_folder(path, language)
    text = _text_of(metadata)
    try:
        table = _table_of(text, metadata, needs_text, columns)
    except csv.Error as error:
        raise DataError(
            f"{metadata} should be CSV, but {error}. Close each quote, and write a quote inside a"
            ' quoted field as "".'
        ) from error
    folder = _audio_folder_of(table, metadata, root, text, needs_text)
    rows = tuple(_row(record, table, folder, metadata, language) for record in table.records)
    usable = tuple(row for row in rows if isinstance(row, Row))
    rejected = tuple(row for row in rows if isinstance(row, RejectedRow))
    noun = "row" if len(usable) == 1 else "rows"
    form = (
        f"{table.describe()}; {len(usable)} {noun} in {metadata}; audio in {folder.path}:"
        f" {_count_formats(usable)}"
    )
    return Rows(metadata, folder.path, usable, rejected, form)


def hold_out(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows into training and validation rows by (seed, id), whatever their order.

    With a fraction above 0 and at least two ids, each part has at least one.
    """

    def rank(id_: str) -> bytes:
        text = f"{seed}:{id_}".encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=16).digest()

    ids = sorted({row.id for row in rows.rows}, key=rank)
    count = min(max(round(fraction * len(ids)), 1), len(ids) - 1) if fraction > 0 and ids else 0
    held_out = set(ids[:count])
    return (
        rows._replace(rows=tuple(row for row in rows.rows if row.id not in held_out)),
        rows._replace(rows=tuple(row for row in rows.rows if row.id in held_out), rejected=()),
    )


# The metadata file of a corpus


def _metadata_of(path: Path, preferred: str, needs_text: bool) -> Path | None:
    """Return `path` itself, or in a folder `preferred` or else one of METADATA_NAMES.

    None is a folder without metadata, for a task that needs no texts.
    """
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise DataError(f"the corpus {_why_missing(path)}")
    candidates = [path / name for name in (preferred, *METADATA_NAMES)]
    metadata = next(filter(os.path.isfile, candidates), None)
    if metadata or not needs_text:
        return metadata
    if irregular := next(filter(os.path.lexists, candidates), None):
        fault = "is a folder, a pipe, a device or a link to nothing, and no file"
        raise DataError(f"{irregular} {fault}. {FORMATS}")
    raise DataError(f"the corpus folder {path} has no metadata.csv{_alternative(path)}")


def _why_missing(path: Path) -> str:
    stripped = str(path).strip()
    if os.path.exists(stripped) and stripped != str(path):
        return f"{str(path)!r} does not exist, but {stripped!r} does. Leave out the spaces."
    if os.path.exists(path):
        return f"{path} is neither a folder nor a file. {FORMATS}"
    place = "" if path.is_absolute() else f" in {Path.cwd()}"
    return f"{path} does not exist{place}. {FORMATS}"


def _alternative(folder: Path) -> str:
    """What a folder without metadata.csv has instead, and what to do."""
    names = sorted(os.listdir(folder), key=lambda name: (not name.startswith("train"), name))
    tables = [name for name in names if name.lower().endswith((".csv", ".tsv", ".txt"))]
    if tables:
        found = ", ".join(tables[:4])
        return f", but it has {found}. Give the one with the texts, such as {folder / tables[0]}."
    json = next((name for name in names if name.lower().endswith((".jsonl", ".json"))), None)
    if json:
        return f", and JSON such as {json} is not read. {JSON_TO_CSV}."
    for path in (folder.parent, *(folder / name for name in names)):
        if os.path.isfile(path / METADATA_NAMES[0]):
            return f", but {path} has one. Give that folder."
    audio = next(audio_files(folder), None)
    if audio is None:
        return f". {FORMATS}"
    speaker = os.path.basename(os.path.dirname(audio)) or "SPEAKER"
    return (
        f", only audio such as {audio}. Write a metadata.csv with the header path,text,speaker and"
        f" a line for each file, such as {audio},TEXT,{speaker}; docs/guides/data.md shows how."
    )


def _text_of(metadata: Path) -> str:
    try:
        size = metadata.stat().st_size
        if size > MAX_BYTES:
            limit = f"metadata may have {MAX_BYTES:,}. Split the corpus."
            raise DataError(f"{metadata} has {size:,} bytes, but {limit}")
        blob = metadata.read_bytes()
    except OSError as error:
        raise DataError(
            f"{metadata} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    if not blob.strip():
        raise DataError(f"{metadata} is empty. {FORMATS}")
    advice = f"Save it as UTF-8. {FORMATS}"
    if b"\0" in blob:
        raise DataError(f"{metadata} should be UTF-8 text, but it is binary or UTF-16. {advice}")
    try:
        text = blob.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = blob.count(b"\n", 0, error.start) + 1
        fault = f"line {line} has the byte 0x{blob[error.start]:02x}"
        raise DataError(f"{metadata} should be UTF-8 text, but {fault}. {advice}") from error
    if "\n" not in text:
        # The line end of Excel's "CSV (Macintosh)".
        text = text.replace("\r", "\n")
    for line, content in enumerate(text.split("\n"), 1):
        if len(content) > MAX_LINE_CHARACTERS:
            raise DataError(
                f"line {line} of {metadata} has {len(content):,} characters, but a line may have"
                f" {MAX_LINE_CHARACTERS:,}. Write one utterance in a line."
            )
    return text


# The forms of a metadata file


class _Record(NamedTuple):
    line: int
    fields: list[str]


class _Table(NamedTuple):
    """The lines of a metadata file, as fields.

    Attributes:
        columns: meaning of each column: a key of COLUMN_NAMES, or empty.
        header: name of each column; empty if the file has no header.
    """

    separator: str
    columns: tuple[str, ...]
    header: tuple[str, ...]
    records: list[_Record]

    def describe(self) -> str:
        """Return the form in words, such as "table with |, columns audio_file=path, text"."""
        if not self.header:
            return f"lines of {self.line_form()}, no header"
        known = set().union(*COLUMN_NAMES.values())
        used = []
        unused = []
        for name, meaning in zip(self.header, self.columns, strict=True):
            if meaning:
                used.append(name if name == meaning else f"{name}={meaning}")
            elif name in known:
                unused.append(name)
        note = f" (not {', '.join(unused)})" if unused else ""
        return f"table with {SEPARATORS[self.separator]}, columns {', '.join(used)}{note}"

    def line_form(self) -> str:
        """Return the form of a line without a header, such as id|text|normalised text."""
        separator = "<tab>" if self.separator == "\t" else self.separator
        names = {"path": "id", "": "ignored"}
        return separator.join(names.get(meaning, meaning) for meaning in self.columns)

    def audio_name(self, name: str) -> str:
        """Return the name of an audio file: .wav is added to the ids of lines without a header."""
        return name if self.header or suffix_of(name) else f"{name}.wav"


def _table_of(text: str, metadata: Path, needs_text: bool, columns: Sequence[str]) -> _Table:
    """Read the table of a metadata file by the reader of its form.

    Raises:
        DataError: no reader takes it.
        csv.Error: it breaks the rules of CSV; the message names the line.
    """
    first = _first_line(text)
    for separator in SEPARATORS:
        header = _header_of(first, separator)
        meanings = _meanings(header)
        if _is_complete(meanings, needs_text):
            _, *records = _records(text, separator)
            if separator in LITERAL:
                records = [_Record(line, [*map(_unquoted, fields)]) for line, fields in records]
            return _Table(separator, meanings, header, records)
    if columns:
        return _table_of_columns(text, metadata, needs_text, columns)
    if first.lstrip().startswith(("{", "[")):
        raise _unrecognised(metadata, text, f"it is JSON, which is not read. {JSON_TO_CSV}")
    separator = _separator_of(first)
    if not separator:
        if needs_text:
            fault = "its first line has no separator: |, tab, semicolon or comma"
            raise _unrecognised(metadata, text, fault)
        return _Table("\n", ("path",), (), _records(text, "\n"))
    records = _records(text, separator)
    width = _width(records[0])
    name = SEPARATORS[separator]
    if width <= 3 and separator in LITERAL and metadata.name.startswith("metadata"):
        return _table_of_ljspeech(separator, records, metadata)
    if width != 2:
        fault = f"it has {width} columns separated by {name}, and no header. {NAME_THE_COLUMNS}"
        raise _unrecognised(metadata, text, _fault_of_header(text, needs_text) or fault)
    for record in records:
        # A comma or semicolon may belong to a text, which would lose its end in silence.
        if separator not in LITERAL and _width(record) != 2:
            fault = (
                f"it has no header, and is separated by {name} into 2 fields in line"
                f" {records[0].line}, but {_width(record)} in line {record.line}: separate id and"
                " text by |, or quote each text that has a comma"
            )
            raise _unrecognised(metadata, text, fault)
    return _Table(separator, ("path", "text"), (), records)


def _table_of_ljspeech(separator: str, records: list[_Record], metadata: Path) -> _Table:
    rows = [record.fields for record in records if _width(record) == 3]
    # Piper has id|speaker|text in a file of this name, and others id|text|speaker. Either would
    # train on names instead of texts. So a column that repeats as speakers do is an error.
    for column in (1, 2):
        values = {fields[column] for fields in rows}
        if len(rows) >= MIN_CHECKED_ROWS and 2 * len(values) <= len(rows):
            raise DataError(
                f"{metadata} should have lines of id|text|normalised text, but column {column + 1}"
                f" has {len(values)} values in {len(rows)} rows, as if it named speakers."
                f" {NAME_THE_COLUMNS}; --columns path text normalized_text if it has texts."
            )
    return _Table(separator, LJSPEECH if rows else LJSPEECH[:2], (), records)


def _table_of_columns(text: str, metadata: Path, needs_text: bool, names: Sequence[str]) -> _Table:
    """Read a file without a header, whose columns have names as in a header."""
    meanings = _meanings(names)
    first = _first_line(text)
    if not _is_complete(meanings, needs_text):
        wanted = "path and text" if needs_text else "path"
        raise DataError(
            f"--columns {' '.join(names)} should name {wanted} once. Name each column of"
            f" {metadata} in its order, such as path text speaker."
        )
    separator = _separator_of(first) or "\n"
    records = _records(text, separator)
    if records[0].fields[len(names) :] or _width(records[0]) < len(names) - 1:
        raise DataError(
            f"--columns names {len(names)} columns ({' '.join(names)}), but the first line of"
            f" {metadata} has {len(records[0].fields)}: {first[:80]!r}. Name each column, and those"
            " that are not needed 'ignored'."
        )
    return _Table(separator, meanings, (), records)


def _unrecognised(metadata: Path, text: str, fault: str) -> DataError:
    return DataError(
        f"the form of {metadata} is not recognised: {fault}. It begins with"
        f" {_first_line(text)[:80]!r}. {FORMATS}"
    )


def _fault_of_header(text: str, needs_text: bool) -> str:
    """Return what a first line that names some columns lacks; empty if it names none."""
    first = _first_line(text)
    headers = [_header_of(first, separator) for separator in SEPARATORS]
    header = max(headers, key=lambda header: len(set(_meanings(header))))
    meanings = _meanings(header)
    known = [name for name, meaning in zip(header, meanings, strict=True) if meaning]
    if len(header) == 1 or not known or _is_complete(meanings, needs_text):
        return ""
    for name in known:
        if known.count(name) > 1:
            return f"its header names {name} twice"
    lacking = "text" if "path" in meanings else "audio file"
    return f"its header names {', '.join(known)} but no {lacking}"


def _is_complete(meanings: Sequence[str], needs_text: bool) -> bool:
    """Whether columns name the audio and the text, and nothing twice."""
    used = [meaning for meaning in meanings if meaning]
    has_text = "text" in used or "normalised text" in used
    return "path" in used and (has_text or not needs_text) and len(used) == len(set(used))


def _first_line(text: str) -> str:
    """Return the first line that is not empty."""
    return text.lstrip("\r\n").partition("\n")[0].rstrip("\r")


def _separator_of(line: str) -> str:
    """Return the separator of a line without a header; empty if there is none.

    It is | or a tab, else the first ; or comma, since later ones belong to the text.
    """
    for separator in LITERAL:
        if separator in line:
            return separator
    return next((character for character in line if character in ";,"), "")


def _header_of(line: str, separator: str) -> tuple[str, ...]:
    """Return the names in a header, in lower case, with _ for spaces and hyphens."""
    fields = (field.strip().strip('"').strip().lower() for field in line.split(separator))
    return tuple(field.replace(" ", "_").replace("-", "_") for field in fields)


def _meanings(header: Sequence[str]) -> tuple[str, ...]:
    """Return the meaning of each column; of several, the first in COLUMN_NAMES has it."""
    meanings = [""] * len(header)
    for meaning, names in COLUMN_NAMES.items():
        used = next((name for name in names if name in header), None)
        for column, name in enumerate(header):
            if name == used:
                meanings[column] = meaning
    return tuple(meanings)


def _records(text: str, separator: str) -> list[_Record]:
    """Return the fields of each row that is not empty; raise csv.Error with the line of a fault."""
    records = []
    if separator not in SEPARATORS or separator in LITERAL:
        # splitlines() would also split at U+2028 and similar characters.
        for line, content in enumerate(text.split("\n"), 1):
            if content.strip():
                records.append(_Record(line, [field.strip() for field in content.split(separator)]))
        return records
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for fields in reader:
            fields = [field.strip() for field in fields]
            if any(fields):
                records.append(_Record(line, fields))
            line = reader.line_num + 1
    except csv.Error as error:
        raise csv.Error(f"the row that begins at line {line} is not: {error}") from error
    return records


def _width(record: _Record) -> int:
    """Return the number of fields, without the empty ones that spreadsheets write after two."""
    last = max((number for number, field in enumerate(record.fields, 1) if field), default=0)
    return max(last, min(len(record.fields), 2))


def _unquoted(field: str) -> str:
    """Return a field without its quotes, if it is quoted as in CSV."""
    inner = field[1:-1].replace('""', "")
    is_quoted = len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner
    return field[1:-1].replace('""', '"') if is_quoted else field


# The audio files of a table


def _audio_folder_of(
    table: _Table, metadata: Path, root: Path | None, text: str, needs_text: bool
) -> AudioFolder:
    """Return the first folder that has a file of the table."""
    names = list(_names(table))
    folders = map(AudioFolder, _folders_of(table, metadata, root))
    folder = next((folder for folder in folders if any(map(folder.find, names))), None)
    # A first line that names some columns may also be an utterance, if there is its file.
    is_utterance = table.header or (folder and folder.find(names[0]))
    if not is_utterance and (fault := _fault_of_header(text, needs_text)):
        raise _unrecognised(metadata, text, fault)
    if folder:
        return folder
    if not names:
        raise DataError(f"{metadata} has no utterances. {FORMATS}")
    places = ", ".join(map(str, _folders_of(table, metadata, root)))
    raise DataError(
        f"none of the {len(names)} audio files of {metadata} ({table.describe()}) was found: "
        f"{shortened(names[0])!r} is not in {places}. {_remedy(names, root or metadata.parent)}"
    )


def _folders_of(table: _Table, metadata: Path, root: Path | None) -> list[Path]:
    """Return the folders that may hold the audio: ids are usually in a subfolder, paths are not."""
    if table.header:
        base = root or metadata.parent
        return [base, *audio_subfolders(base)]
    folders = [*audio_subfolders(metadata.parent), metadata.parent]
    return [*audio_subfolders(root), root, *folders] if root else folders


def _names(table: _Table) -> Iterator[str]:
    """The names of audio files, without those that are empty or longer than any."""
    column = table.columns.index("path")
    for _, fields in table.records:
        if column < len(fields) and 0 < len(fields[column]) <= MAX_PATH_CHARACTERS:
            yield table.audio_name(fields[column])


def _row(
    record: _Record, table: _Table, folder: AudioFolder, metadata: Path, language: str
) -> Row | RejectedRow:
    line, fields = record
    values = dict(zip(table.columns, fields, strict=False))
    path = values.get("path", "")
    if fault := _fault_of_row(fields, path, table):
        return RejectedRow(str(metadata), line, shortened(path), "malformed row", fault)
    name = table.audio_name(path)
    audio = folder.find(name) or name
    text = values.get("normalised text") or values.get("text", "")
    speaker = values.get("speaker") or DEFAULT_SPEAKER
    return Row(
        line, os.path.normpath(audio), audio, text, speaker, values.get("language") or language
    )


def _fault_of_row(fields: Sequence[str], path: str, table: _Table) -> str:
    """Return what makes a row unusable; empty if nothing does."""
    if len(path) > MAX_PATH_CHARACTERS:
        return f"a path of {len(path):,} characters, but it may have {MAX_PATH_CHARACTERS:,}"
    most = len(table.columns)
    may_lack_last = not table.header and table.columns[-1] == "normalised text"
    # Spreadsheets write empty fields at the end of rows.
    if len(fields) >= most - may_lack_last and not any(fields[most:]):
        return "" if path else "no path"
    if table.header:
        return f"{len(fields)} fields, but the header names {most}"
    return f"{len(fields)} fields, not {table.line_form()}"


def shortened(text: str) -> str:
    """Return a text for a message."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _count_formats(rows: Sequence[Row]) -> str:
    suffixes = Counter(suffix_of(row.audio) or "others" for row in rows)
    return ", ".join(f"{count} {suffix}" for suffix, count in sorted(suffixes.items()))


def _remedy(names: Sequence[str], base: Path) -> str:
    name = names[0]
    absolute = [path for path in names if os.path.isabs(path)]
    exists = os.path.exists(name)
    if PureWindowsPath(name).drive:
        return f"It is a path of a Windows computer: write paths relative to {base}."
    if name in absolute and not exists:
        return f"There is no such file on this computer: write paths relative to {base}."
    if name in absolute:
        root = quote(os.path.commonpath([os.path.dirname(path) for path in absolute]))
        advice = f"give a folder that has all audio, such as --audio-root {root}"
        return f"It is outside of {base}: {advice}."
    if exists:
        return "It is relative to the current folder: give --audio-root ."
    stem = os.path.splitext(name)[0]
    for suffix in UNREADABLE:
        if os.path.exists(base / f"{stem}{suffix}"):
            advice = "convert it to WAV or FLAC, for instance by ffmpeg"
            return f"{base} has {stem}{suffix}, which cannot be read: {advice}."
    return "Correct the names, or give the folder of the audio as --audio-root."


# A folder of audio without metadata


def _rows_of_folder(folder: Path, language: str) -> Rows:
    """Return the audio files in and below a folder as rows; subfolders name the speakers."""
    rows = []
    rejected = []
    for line, audio in enumerate(audio_files(folder, UNREADABLE), 1):
        if not suffix_of(audio):
            detail = "this format cannot be read; convert it to WAV or FLAC"
            rejected.append(RejectedRow(str(folder), line, audio, "unreadable format", detail))
            continue
        # Checkpoints name the speakers in UTF-8.
        parent = os.fsencode(os.path.basename(os.path.dirname(audio)))
        speaker = parent.decode(errors="backslashreplace")
        if speaker.lower() in ("", *AUDIO_SUBFOLDERS):
            speaker = DEFAULT_SPEAKER
        rows.append(Row(line, audio, audio, "", speaker, language))
    if not rows:
        others = f", only {rejected[0].audio} ({rejected[0].detail})" if rejected else ""
        raise DataError(
            f"the corpus folder {folder} has neither metadata.csv nor audio"
            f" ({', '.join(AUDIO_SUFFIXES)}){others}. Give a folder of audio files, or a metadata"
            " file that names them."
        )
    form = f"audio files without metadata; {_count_formats(rows)} in {folder}"
    return Rows(folder, folder, tuple(rows), tuple(rejected), form)
