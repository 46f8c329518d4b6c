"""Corpora with one metadata file: tables, lines, JSON lines and prompts.

What comes in is a metadata file. READERS lists its possible forms, and the first reader that takes
the file makes a Table of it: the fields of each line, and the meaning of each column. Which one
does depends on the name of the file and its first line, never on the values of its rows. Then each
line becomes a Row (`row_of`), or a rejected row. What goes out is a Layout.
"""

import csv
import errno
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Sequence
from functools import cache
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.base.errors import DataError
from myxtts.base.files import decode_text
from myxtts.corpus import audio_folder
from myxtts.corpus.audio_folder import suffix_of
from myxtts.corpus.rows import (
    METADATA,
    CorpusOptions,
    Layout,
    RejectedRow,
    Row,
    folders_of,
    is_missing,
    malformed,
    shortened,
)
from myxtts.text import espeak

METADATA_NAMES = METADATA["files"].split()
OTHER_SUFFIXES = (".srt", ".vtt", ".parquet", ".trans.txt")
MAX_SECONDS = 1e6

SEPARATORS = {"|": "|", "\t": "tabs", ";": "semicolons", ",": "commas"}
# Files with these separators follow no rules of CSV: each line is a row, and a quote is a
# character, except for quotes around a whole field of a table.
LITERAL = "|\t"
# The separator of JSON lines, whose fields are values of the objects.
JSON = "{"

COLUMN_NAMES = {meaning: names.split() for meaning, names in METADATA["columns"].items()}
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
# A column is checked for repetition if it has at least so many values. Fewer say too little.
MIN_CHECKED_ROWS = 4


def read_table(options: CorpusOptions) -> Layout | None:
    """Read a metadata file, or the one in a folder, of the preferred name if there is one."""
    candidates = [options.path]
    if os.path.isdir(options.path):
        candidates = [options.path / name for name in (options.preferred, *METADATA_NAMES)]
    metadata = next(filter(os.path.exists, candidates), None)
    if metadata is None or metadata.name.lower().endswith(OTHER_SUFFIXES):
        return None
    table = _read_table(metadata, options.needs_text, options.columns)
    rows = [row_of(line, fields, table, metadata) for line, fields in table.records]
    folders = _audio_folders(table, rows, metadata, options.root)
    return Layout(table.form, metadata, rows, folders)


class _File(NamedTuple):
    """A metadata file, its first line that is not empty, and how to read it."""

    path: Path
    text: str
    first: str
    needs_text: bool
    named_columns: Sequence[str]


class Table(NamedTuple):
    """The number and fields of each line of a metadata file; the header is empty without one.

    The meaning of each column is a key of COLUMN_NAMES, or empty. JSON has fields of any type.
    """

    separator: str
    columns: tuple[str, ...]
    records: Sequence[tuple[int, list[Any]]]
    header: tuple[str, ...] = ()
    name: str = ""

    @property
    def form(self) -> str:
        """The form in words, such as "table with |, columns audio_file, text"."""
        if self.name:
            return self.name
        kind = "table" if self.header else "lines"
        columns = ", ".join(compress(self.header or self.columns, self.columns))
        if self.separator == JSON:
            return f"JSON lines, keys {columns}"
        return f"{kind} with {SEPARATORS.get(self.separator, 'one field')}, columns {columns}"


# Spreadsheets write files in many forms. So line ends and a line `sep=;` are put in order first.
# Then the readers are asked one after another.
def _read_table(path: Path, needs_text: bool, columns: Sequence[str]) -> Table:
    text = read_text(path)
    # UTF-16 without a byte order mark can pass as UTF-8, and no name of a file can have a NUL.
    if "\0" in text:
        fault = "it is binary or UTF-16. Save it as UTF-8."
        raise DataError(f"{path} should be UTF-8 text, but {fault} {FORMATS}")
    if not re.search(r'[^\s,;"]', text):
        raise DataError(f"{path} is empty, or has nothing but separators. {FORMATS}")
    if "\n" not in text:
        # The line end of Excel's "CSV (Macintosh)".
        text = text.replace("\r", "\n")
    # Excel's line `sep=;` is no row, and the next line shows the separator as well.
    text = re.sub(r'\A"?sep=[^\w\n]*\n', "\n", text, flags=re.IGNORECASE)
    first = text.lstrip("\r\n").partition("\n")[0].rstrip("\r")
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


def read_text(path: Path) -> str:
    """Return the text of a file, also of a compressed one (.gz). Raises DataError."""
    return decode_text(lambda: decompressed(path.read_bytes(), path.name), str(path))


def decompressed(content: bytes, name: str) -> bytes:
    """Return the content of a file, decompressed if it is *.gz. Raises OSError."""
    if not name.endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise OSError(errno.EINVAL, f"it is no complete gzip file ({error})") from error


def _with_header(file: _File) -> Table | None:
    """A first line that names the columns; a separator of , ; tab or |."""
    for separator in SEPARATORS:
        fields = (field.strip().strip('"').strip().lower() for field in file.first.split(separator))
        header = tuple(field.replace(" ", "_").replace("-", "_") for field in fields)
        if columns := meanings(header, file.needs_text):
            _, *records = _records(file.text, separator)
            if separator in LITERAL:
                records = [(line, [*map(_unquoted, fields)]) for line, fields in records]
            return Table(separator, columns, records, header)
    return None


def _with_named_columns(file: _File) -> Table | None:
    """No header; the setting `columns` names the columns."""
    names = file.named_columns
    if not names:
        return None
    columns = meanings(names, file.needs_text)
    separator = _separator_of(file.first) or "\n"
    records = _records(file.text, separator)
    fields = records[0][1]
    if columns is None or not _width(fields) <= len(fields) <= len(names) <= _width(fields) + 1:
        raise DataError(
            f"--columns {' '.join(names)} should name path and text once, and the other columns of"
            f" {file.path}, whose first line has {len(fields)}: {file.first[:80]!r}. Name each"
            " column in its order, and those that are not needed 'ignored'."
        )
    return Table(separator, columns, records)


def _ljspeech(file: _File) -> Table | None:
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
        values = [fields[column] for fields in rows if not is_missing(fields[column])]
        if len(values) >= MIN_CHECKED_ROWS and 2 * len({*values}) <= len(values):
            raise DataError(
                f"{file.path} should have lines of id|text|normalised text, but column {column + 1}"
                f" has {len({*values})} values in {len(values)} rows, as if it named speakers."
                f" {NAME_THE_COLUMNS}; --columns path text normalized_text if it has texts."
            )
    columns = ("path", "text", "normalised text") if rows else ("path", "text")
    return Table(separator, columns, records)


def _pairs(file: _File) -> Table | None:
    """Lines of a path and a text with any separator, or of a path alone if no texts are needed."""
    separator = _separator_of(file.first) or "\n"
    records = _records(file.text, separator)
    if separator == "\n":
        return None if file.needs_text else Table(separator, ("path",), records)
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
    return Table(separator, ("path", "text"), records)


def _festvox(file: _File) -> Table | None:
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
    return Table("\n", ("path", "text"), records, name=f"Festvox prompts{note}")


def _named_texts(file: _File) -> Table | None:
    """Lines of name: text, and comments that begin with a semicolon."""
    records = _records(file.text, "\n")
    records = [(line, fields) for line, fields in records if not fields[0].startswith(";")]
    if not records or not NAMED_TEXT.fullmatch(records[0][1][0]):
        return None
    for row, (line, fields) in enumerate(records):
        records[row] = line, [field.strip() for field in fields[0].split(":", 1)]
    return Table(":", ("path", "text"), records, name="lines of name: text")


def _json_lines(file: _File) -> Table | None:
    """An object in each line: of NeMo, Hugging Face, or a cut of Lhotse."""
    if not file.first.lstrip().startswith(("{", "[")):
        return None
    entries = list[tuple[int, dict[str, Any]]]()
    for line, fields in _records(file.text, "\n"):
        entries += [(line, entry) for entry in objects_of(fields[0])]
    if entries[0][1] and (table := table_of(entries, file.needs_text)):
        return table
    advice = "Write it as JSON lines, each with a key path and a key text."
    if '"segments"' in file.text:
        advice = "Of Whisper's transcripts, give subtitles (--output_format srt) beside the audio."
    raise DataError(
        f"{file.path} should have one JSON object in each line, but begins with"
        f" {file.first[:80]!r}. {advice}"
    )


def table_of(entries: Sequence[tuple[int, dict[str, Any]]], needs_text: bool) -> Table | None:
    """Return lines and their objects as a table; None if no keys name the audio and the text."""
    header = tuple(dict.fromkeys(chain.from_iterable(entry for _, entry in entries)))
    columns = meanings(header, needs_text)
    if columns is None:
        return None
    records = [(line, [*map(entry.get, header)]) for line, entry in entries]
    return Table(JSON, columns, records, header)


def objects_of(text: str) -> list[dict[str, Any]]:
    """Return the objects of a line, one for each supervision of a cut; an empty one if it cannot be
    used. The path of a cut in a Lhotse Shar, which is the whole of a file in a tar file, is its id.
    """
    try:
        entry = json.loads(text)
        if not isinstance(entry, dict) or "supervisions" not in entry:
            return [entry] if isinstance(entry, dict) else [{}]
        (source,) = entry["recording"]["sources"]
        is_packed = source["type"] == "shar"
        # Several channels are rejected: another channel than the cut's must not be heard.
        if not is_packed and (source["type"] != "file" or len(source["channels"]) != 1):
            return [{}]
        rows = []
        for said in entry["supervisions"] or [{}]:
            row = {name: said.get(name) for name in ("text", "speaker")}
            row["language"] = _language_code(said.get("language"))
            row["duration"] = said.get("duration", entry.get("duration"))
            row["path"] = entry["id"] if is_packed else source["source"]
            # A supervision may begin before its cut.
            rows.append(row | {"start": max(entry["start"] + said.get("start", 0.0), 0.0)})
        return rows
    except (ValueError, KeyError, TypeError, AttributeError):
        return [{}]


@cache
def _language_code(name: str | None) -> str | None:
    """Return the code of a language that Lhotse names in English, or else the name itself."""
    if not name:
        return None
    try:
        return espeak.shared().probable_code(name) or name
    except DataError:
        # Without espeak-ng there are no phonemes, and characters need no code.
        return name


READERS = (
    *(_json_lines, _with_header, _with_named_columns, _festvox, _named_texts, _ljspeech, _pairs),
)


# A table is recognised by its header: some name in it must mean the audio, and another one the text
# if the task needs texts. If two names mean the same, the form is another one.
def meanings(names: Sequence[str], needs_text: bool) -> tuple[str, ...] | None:
    """Return the meaning of each column, a key of COLUMN_NAMES or empty.

    None unless they name the audio and the text, and nothing twice.
    """
    used: dict[str, str] = {}
    for meaning, known in COLUMN_NAMES.items():
        name = next((name for name in known if name in names), None)
        # A duration without a start is the duration of the whole file, and cuts nothing.
        if name and (meaning != "duration" or "start" in used.values()):
            used[name] = meaning
    columns = tuple(used.get(name, "") for name in names)
    has_text = "text" in columns or "normalised text" in columns
    is_complete = "path" in columns and (has_text or not needs_text)
    if not is_complete or len(list(filter(None, columns))) != len(used):
        return None
    return columns


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
    if not is_quoted:
        return field
    return field[1:-1].replace('""', '"')


def row_of(line: int, fields: Sequence[Any], table: Table, metadata: Path) -> Row | RejectedRow:
    """Return a row, whose audio is the name in the metadata."""
    given = dict(zip(table.columns, fields, strict=False))
    # Hugging Face's audio is {"path": …}.
    if isinstance(given.get("path"), dict):
        given["path"] = given["path"].get("path")
    values = {name: str(value).strip() for name, value in given.items() if value is not None}
    path = values.get("path", "")
    most = len(table.columns)
    may_lack_last = not table.header and table.columns[-1] == "normalised text"
    # Spreadsheets write empty fields at the end of rows.
    if not path or len(fields) < most - may_lack_last or any(fields[most:]):
        fault = f"{len(fields)} fields, not {most}" if path else "no path"
        return malformed(metadata, line, path, fault)
    for meaning, value in given.items():
        # NaN is a placeholder. 7.0 is no text: it may have been 7 in a column with NaN.
        is_number = isinstance(value, float) and ("text" not in meaning or value != value)
        if meaning and not is_number and type(value) not in (str, int, type(None)):
            fault = f"the {meaning} should be a text, but is {value!r}"
            return malformed(metadata, line, path, shortened(fault))
    try:
        start_s, end_s = _times(values)
    except ValueError as error:
        return malformed(metadata, line, path, f"no number of seconds: {error}")
    # Lines without a header have ids.
    audio = path
    if not (table.header or suffix_of(path)):
        audio += ".wav"
    speaker, language = (values.get(meaning, "") for meaning in ("speaker", "language"))
    normalised = values.get("normalised text", "")
    text = values.get("text", normalised)
    return Row(line, "", audio, text, speaker, language, start_s, end_s, normalised=normalised)


def _times(values: dict[str, str]) -> tuple[float, float | None]:
    """Return where a row starts and ends, in seconds; the end is None without one."""
    start_s = float(values.get("start") or 0)
    end_s = None
    if values.get("end"):
        end_s = float(values["end"])
    elif values.get("start") and values.get("duration"):
        end_s = start_s + float(values["duration"])
    if not (0 <= start_s < MAX_SECONDS and (end_s is None or 0 < end_s < MAX_SECONDS)):
        raise ValueError(f"{start_s} to {end_s}")
    return start_s, end_s


def _audio_folders(
    table: Table, rows: Sequence[Row | RejectedRow], metadata: Path, root: Path | None
) -> list[Path]:
    """Return the folders to search: ids are usually in a subfolder."""
    if table.separator == JSON:
        return folders_of([row.audio for row in rows], metadata.parent, root)
    home = metadata.parent
    if home.name == "etc":
        home = home.parent
    places = [root, home]
    if table.header:
        places = [root or metadata.parent]
    folders: list[Path] = []
    for place in filter(None, places):
        subfolders = audio_folder.audio_subfolders(place)
        folders += [place, *subfolders] if table.header else [*subfolders, place]
    return folders
