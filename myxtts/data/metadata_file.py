"""Reads the metadata of a corpus: the audio file, text, speaker and language of each row.

READERS lists the forms of a metadata file; the first that takes it reads it. Which one does depends
on the name of the file and its first line, never on the values of its rows. A folder of audio needs
no metadata for a task that needs no texts. docs/guides/data.md lists all forms.
"""

import csv
import errno
import gzip
import hashlib
import io
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.data import audio_folder
from myxtts.data.audio_folder import AudioFolder, suffix_of
from myxtts.errors import DataError
from myxtts.files import decode_text, read_bounded, read_file

DEFAULT_SPEAKER = "default"
PROMPTS = os.path.join("etc", "txt.done.data")
METADATA_NAMES = ("metadata.csv", "metadata.tsv", "metadata.txt", PROMPTS)
# Ten million rows of 200 bytes.
MAX_BYTES = 1 << 31
SHOWN_CHARACTERS = 500

SEPARATORS = {"|": "|", "\t": "tabs", ";": "semicolons", ",": "commas"}
# Files with these follow no rules of CSV: each line is a row, and a quote is a character, but for
# the quotes around a whole field of a table.
LITERAL = "|\t"

NAMES_BY_MEANING = {
    "path": (
        "path audio_file audio_path audio_filepath audio_filename audio file file_path filepath"
        " file_name filename wav wav_file wav_path wav_filename clip id utt_id utterance_id"
    ),
    "normalised text": (
        "normalized_text normalised_text text_normalized text_normalised normalized_transcript"
        " normalised_transcript transcript_normalized transcript_normalised"
        " normalized_transcription normalised_transcription transcription_normalized"
        " transcription_normalised"
    ),
    "text": "text sentence transcript transcription raw_text text_original original_text",
    "speaker": "speaker speaker_name speaker_id spk spk_id client_id",
    "language": "language lang locale language_code",
}
COLUMN_NAMES = {meaning: names.split() for meaning, names in NAMES_BY_MEANING.items()}
# ( arctic_a0001 "Author of the danger trail, Philip Steels, etc." )
PROMPT = re.compile(r'\(\s*(\S+)\s+"(.*)"\s*\)')
# agent-pass: Please enter your password.
NAMED_TEXT = re.compile(r"([^\s:|,;]+):\s+(\S.*)")
STRESS_MARK = re.compile(r"\+(?=[^\W\d_])")
FORMATS = (
    "Give an LJSpeech folder (metadata.csv with id|text lines, audio in wavs/) "
    "or a CSV/TSV file whose header names path and text; docs/guides/data.md has all forms."
)
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


def read_rows(
    train: Path,
    validation: Path | None,
    language: str,
    validation_fraction: float,
    seed: int,
    **options: Any,
) -> tuple[Rows, Rows, list[RejectedRow]]:
    """Read the training rows, the validation rows, and the malformed rows of both.

    The validation rows come from `validation` if it is given, else from metadata_eval.csv next to
    metadata_train.csv, else they are held out from the training rows. The options and errors are
    those of `read_corpus`.
    """

    def read(path: Path, **more: Any) -> Rows:
        return read_corpus(path, language, **options, **more)

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
    """Read the rows of a corpus. Raises DataError if it cannot be read, or has another form.

    Args:
        path: a metadata file, or a folder with one, if possible of the name `preferred`.
        language: of rows without a language.
        root: folder to which the paths in tables are relative, by default the folder of the file.
            The audio of lines without a header is searched there first.
        columns: names of the columns of files without a header.
    """
    if root is not None and not os.path.isdir(root):
        raise DataError(f"--audio-root {root} does not exist. Give the folder of the audio files.")
    if not os.path.exists(path):
        raise DataError(f"the corpus {path} does not exist in {Path.cwd()}. {FORMATS}")
    candidates = [path]
    if os.path.isdir(path):
        candidates = [path / name for name in (preferred, *METADATA_NAMES)]
    metadata = next(filter(os.path.exists, candidates), None)
    if metadata is None and not needs_text:
        return _rows_of_folder(path, language)
    if metadata is None:
        raise DataError(f"the corpus folder {path} has no metadata.csv. {FORMATS}")
    table = _read_table(metadata, needs_text, columns)
    rows = [_row(*record, table, metadata, language) for record in table.records]
    usable = [row for row in rows if isinstance(row, Row)]
    rejected = tuple(row for row in rows if isinstance(row, RejectedRow))
    folder = _audio_folder(table, usable, metadata, root)
    for number, row in enumerate(usable):
        audio = folder.find(row.audio) or row.audio
        usable[number] = row._replace(id=os.path.normpath(audio), audio=audio)
    formats = _count_formats(usable)
    form = f"{table.form}; {len(usable)} rows in {metadata}; audio in {folder.path}: {formats}"
    return Rows(metadata, folder.path, tuple(usable), rejected, form)


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


class _File(NamedTuple):
    """A metadata file, its first line that is not empty, and what is asked of it."""

    path: Path
    text: str
    first: str
    needs_text: bool
    named_columns: Sequence[str]


class _Table(NamedTuple):
    """The number and fields of each line of a metadata file; the header is empty without one.

    The meaning of each column is a key of COLUMN_NAMES, or empty.
    """

    separator: str
    columns: tuple[str, ...]
    records: list[tuple[int, list[str]]]
    header: tuple[str, ...] = ()
    name: str = ""

    @property
    def form(self) -> str:
        """The form in words, such as "table with |, columns audio_file, text"."""
        if self.name:
            return self.name
        kind = "table" if self.header else "lines"
        columns = ", ".join(compress(self.header or self.columns, self.columns))
        return f"{kind} with {SEPARATORS.get(self.separator, 'one field')}, columns {columns}"


def _read_table(path: Path, needs_text: bool, columns: Sequence[str]) -> _Table:
    text = decode_text(lambda: _content(path), str(path))
    # UTF-16 without a byte order mark can pass as UTF-8, and no name of a file can have a NUL.
    if "\0" in text:
        fault = "it is binary or UTF-16. Save it as UTF-8."
        raise DataError(f"{path} should be UTF-8 text, but {fault} {FORMATS}")
    if not re.search(r'[^\s,;"]', text):
        raise DataError(f"{path} is empty, or has nothing but separators. {FORMATS}")
    if "\n" not in text:
        # The line end of Excel's "CSV (Macintosh)".
        text = text.replace("\r", "\n")
    first = text.lstrip("\r\n").partition("\n")[0].rstrip("\r")
    # The commas of an object would make it a path and a text.
    if not columns and first.lstrip().startswith(("{", "[")):
        advice = "Write its entries under the CSV header path,text."
        raise DataError(f"{path} is JSON, which is not read. {advice} {FORMATS}")
    file = _File(path, text, first, needs_text, columns)
    try:
        table = next((table for reader in READERS if (table := reader(file))), None)
    except csv.Error as error:
        raise DataError(
            f"{path} should be CSV, but {error}. Close each quote, and write a quote inside a"
            ' quoted field as "".'
        ) from error
    if table is None:
        raise DataError(
            f"the form of {path} is not recognised. It begins with {first[:80]!r}."
            f" {NAME_THE_COLUMNS}. {FORMATS}"
        )
    if not table.records:
        raise DataError(f"{path} has no utterances. {FORMATS}")
    return table


def _content(path: Path) -> bytes:
    """Return the content of a file, decompressed if it is *.gz."""
    content = read_file(path, MAX_BYTES)
    if path.suffix != ".gz":
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return read_bounded(file, MAX_BYTES, str(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise OSError(errno.EINVAL, f"it is no complete gzip file ({error})") from error


def _with_header(file: _File) -> _Table | None:
    """A first line that names the columns; a separator of , ; tab or |."""
    for separator in SEPARATORS:
        fields = (field.strip().strip('"').strip().lower() for field in file.first.split(separator))
        header = tuple(field.replace(" ", "_").replace("-", "_") for field in fields)
        if columns := _meanings(header, file.needs_text):
            _, *records = _records(file.text, separator)
            if separator in LITERAL:
                records = [(line, [*map(_unquoted, fields)]) for line, fields in records]
            return _Table(separator, columns, records, header)
    return None


def _with_named_columns(file: _File) -> _Table | None:
    """No header; the setting `columns` names the columns."""
    names = file.named_columns
    if not names:
        return None
    columns = _meanings(names, file.needs_text)
    separator = _separator_of(file.first) or "\n"
    records = _records(file.text, separator)
    fields = records[0][1]
    if columns is None or not _width(fields) <= len(fields) <= len(names) <= _width(fields) + 1:
        raise DataError(
            f"--columns {' '.join(names)} should name path and text once, and the other columns of"
            f" {file.path}, whose first line has {len(fields)}: {file.first[:80]!r}. Name each"
            " column in its order, and those that are not needed 'ignored'."
        )
    return _Table(separator, columns, records)


def _ljspeech(file: _File) -> _Table | None:
    """A file named metadata*, with lines of id|text or id|text|normalised text."""
    separator = _separator_of(file.first)
    if separator not in tuple(LITERAL) or not file.path.name.startswith("metadata"):
        return None
    records = _records(file.text, separator)
    if _width(records[0][1]) > 3:
        return None
    rows = [fields for _, fields in records if _width(fields) == 3]
    # Piper has id|speaker|text in a file of this name, and others id|text|speaker. Either would
    # train on names instead of texts. So a column that repeats as speakers do is an error.
    for column in (1, 2):
        values = {fields[column] for fields in rows}
        if len(rows) >= MIN_CHECKED_ROWS and 2 * len(values) <= len(rows):
            raise DataError(
                f"{file.path} should have lines of id|text|normalised text, but column {column + 1}"
                f" has {len(values)} values in {len(rows)} rows, as if it named speakers."
                f" {NAME_THE_COLUMNS}; --columns path text normalized_text if it has texts."
            )
    columns = ("path", "text", "normalised text") if rows else ("path", "text")
    return _Table(separator, columns, records)


def _pairs(file: _File) -> _Table | None:
    """Lines of a path and a text with any separator, or of a path alone if no texts are needed."""
    separator = _separator_of(file.first) or "\n"
    records = _records(file.text, separator)
    if separator == "\n":
        return None if file.needs_text else _Table(separator, ("path",), records)
    if _width(records[0][1]) != 2:
        return None
    for line, fields in records:
        # A comma or semicolon may belong to a text, which would lose its end in silence.
        if separator not in LITERAL and _width(fields) != 2:
            raise DataError(
                f"line {line} of {file.path} should have an id and a text, but has {_width(fields)}"
                f" fields between {SEPARATORS[separator]}. Separate id and text by |, or quote each"
                " text that has a comma."
            )
    return _Table(separator, ("path", "text"), records)


def _festvox(file: _File) -> _Table | None:
    """Prompts of Festvox and CMU ARCTIC: lines of ( id "text" ), with a + before a stressed vowel.

    The marks are removed, since the text front end does not know them.
    """
    if not PROMPT.fullmatch(file.first.strip()):
        return None
    records = []
    marks = 0
    for line, fields in _records(file.text, "\n"):
        if prompt := PROMPT.fullmatch(fields[0]):
            text, removed = STRESS_MARK.subn("", prompt[2].replace('\\"', '"'))
            marks += removed
            fields = [prompt[1], text]
        records.append((line, fields))
    note = f" without their {marks} stress marks (+)" if marks else ""
    return _Table("\n", ("path", "text"), records, name=f"Festvox prompts{note}")


def _named_texts(file: _File) -> _Table | None:
    """Lines of name: text, and comments that begin with a semicolon."""
    records = _records(file.text, "\n")
    records = [(line, fields) for line, fields in records if not fields[0].startswith(";")]
    if not records or not NAMED_TEXT.fullmatch(records[0][1][0]):
        return None
    for row, (line, fields) in enumerate(records):
        records[row] = line, [field.strip() for field in fields[0].split(":", 1)]
    return _Table(":", ("path", "text"), records, name="lines of name: text")


READERS = (_with_header, _with_named_columns, _festvox, _named_texts, _ljspeech, _pairs)


def _meanings(names: Sequence[str], needs_text: bool) -> tuple[str, ...] | None:
    """Return the meaning of each column, a key of COLUMN_NAMES or empty.

    None unless they name the audio and the text, and nothing twice.
    """
    used = {}
    for meaning, known in COLUMN_NAMES.items():
        if name := next((name for name in known if name in names), None):
            used[name] = meaning
    columns = tuple(used.get(name, "") for name in names)
    has_text = "text" in columns or "normalised text" in columns
    is_complete = "path" in columns and (has_text or not needs_text)
    return columns if is_complete and len(list(filter(None, columns))) == len(used) else None


def _separator_of(line: str) -> str:
    """Return | or a tab of a line, else the first ; or comma: later ones belong to the text."""
    for separator in LITERAL:
        if separator in line:
            return separator
    return next((character for character in line if character in ";,"), "")


def _records(text: str, separator: str) -> list[tuple[int, list[str]]]:
    """Return the line and fields of each row that is not empty; csv.Error names a line at fault."""
    records = []
    if separator not in (";", ","):
        # splitlines() would also split at U+2028 and similar characters.
        for line, content in enumerate(text.split("\n"), 1):
            if content.strip():
                fields = [field.strip() for field in content.split(separator)]
                records.append((line, fields))
        return records
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for fields in reader:
            if any(map(str.strip, fields)):
                records.append((line, [field.strip() for field in fields]))
            line = reader.line_num + 1
    except csv.Error as error:
        raise csv.Error(f"the row that begins at line {line} is not: {error}") from error
    return records


def _width(fields: Sequence[str]) -> int:
    """Return the number of fields, without the empty ones that spreadsheets write after two."""
    last = max((number for number, field in enumerate(fields, 1) if field), default=0)
    return max(last, min(len(fields), 2))


def _unquoted(field: str) -> str:
    """Return a field without its quotes, if it is quoted as in CSV."""
    inner = field[1:-1].replace('""', "")
    is_quoted = len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner
    return field[1:-1].replace('""', '"') if is_quoted else field


def _row(
    line: int, fields: list[str], table: _Table, metadata: Path, language: str
) -> Row | RejectedRow:
    """Return a row, whose audio is the name in the metadata."""
    values = dict(zip(table.columns, fields, strict=False))
    path = values.get("path", "")
    most = len(table.columns)
    may_lack_last = not table.header and table.columns[-1] == "normalised text"
    # Spreadsheets write empty fields at the end of rows.
    if not path or len(fields) < most - may_lack_last or any(fields[most:]):
        fault = f"{len(fields)} fields, not {most}" if path else "no path"
        return RejectedRow(str(metadata), line, shortened(path), "malformed row", fault)
    # Lines without a header have ids.
    audio = path if table.header or suffix_of(path) else f"{path}.wav"
    text = values.get("normalised text") or values.get("text", "")
    speaker = values.get("speaker") or DEFAULT_SPEAKER
    return Row(line, audio, audio, text, speaker, values.get("language") or language)


def _audio_folder(
    table: _Table, rows: Sequence[Row], metadata: Path, root: Path | None
) -> AudioFolder:
    """Return the first folder that has a file of the table: ids are usually in a subfolder."""
    home = metadata.parent.parent if metadata.parent.name == "etc" else metadata.parent
    places = [root, home]
    if table.header:
        places = [root or metadata.parent]
    folders: list[Path] = []
    for place in filter(None, places):
        subfolders = audio_folder.audio_subfolders(place)
        folders += [place, *subfolders] if table.header else [*subfolders, place]
    for folder in map(AudioFolder, folders):
        if not rows or any(folder.find(row.audio) for row in rows):
            return folder
    raise DataError(
        f"none of the {len(rows)} audio files of {metadata} ({table.form}) was found:"
        f" {shortened(rows[0].audio)!r} is not in {', '.join(map(str, folders))}. Correct the"
        " names, or give the folder of the audio as --audio-root."
    )


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _count_formats(rows: Sequence[Row]) -> str:
    suffixes = Counter(suffix_of(row.audio) or "others" for row in rows)
    return ", ".join(f"{count} {suffix}" for suffix, count in sorted(suffixes.items()))


def _rows_of_folder(folder: Path, language: str) -> Rows:
    """Return the audio files in and below a folder as rows; subfolders name the speakers."""
    rows = []
    for line, audio in enumerate(audio_folder.audio_files(folder), 1):
        # Checkpoints name the speakers in UTF-8.
        parent = os.fsencode(os.path.basename(os.path.dirname(audio)))
        speaker = parent.decode(errors="backslashreplace")
        if speaker.lower() in ("", *audio_folder.AUDIO_SUBFOLDERS):
            speaker = DEFAULT_SPEAKER
        rows.append(Row(line, audio, audio, "", speaker, language))
    if not rows:
        raise DataError(
            f"the corpus folder {folder} has neither metadata.csv nor audio"
            f" ({', '.join(audio_folder.SUFFIXES)}). Give a folder of audio files, or a metadata"
            " file that names them."
        )
    form = f"audio files without metadata; {_count_formats(rows)} in {folder}"
    return Rows(folder, folder, tuple(rows), form=form)
