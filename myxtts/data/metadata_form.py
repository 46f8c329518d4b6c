"""Recognises the form of a metadata file: its separator, its header if it has one, and the meaning
of each column.

No I/O. The names of columns are those of Coqui TTS (audio_file|text|speaker_name), Common Voice
(client_id, path, sentence, locale), Hugging Face (file_name, transcription), DeepSpeech
(wav_filename, transcript) and LJSpeech (id).
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SEPARATORS = "|\t;,"
UNQUOTED = "|\t"  # separators of files in which a quote is often no more than a character
SEPARATOR_NAMES = {"|": "|", "\t": "tabs", ";": "semicolons", ",": "commas"}
COLUMN_NAMES = {  # meaning: names, of which the first that a header has is used
    "path": (
        *(
            "path",
            "audio_file",
            "audio_path",
            "audio_filepath",
            "audio_filename",
            "audio",
            "file",
            "file_path",
        ),
        *(
            "filepath",
            "file_name",
            "filename",
            "wav",
            "wav_file",
            "wav_path",
            "wav_filename",
            "clip",
        ),
        *("id", "utt_id", "utterance_id"),
    ),
    "normalised text": (
        *("normalized_text", "normalised_text", "text_normalized", "text_normalised"),
        *(
            "normalized_transcript",
            "normalised_transcript",
            "transcript_normalized",
            "transcript_normalised",
        ),
        *("normalized_transcription", "normalised_transcription"),
        *("transcription_normalized", "transcription_normalised"),
    ),
    "text": (
        "text",
        "sentence",
        "transcript",
        "transcription",
        "raw_text",
        "text_original",
        "original_text",
    ),
    "speaker": ("speaker", "speaker_name", "speaker_id", "spk", "spk_id", "client_id"),
    "language": ("language", "lang", "locale", "language_code"),
}
EXAMPLE_HEADER = ("path", "text", "speaker", "language")
MAX_HEADER_CHARACTERS = 10_000
MIN_SPEAKER_ROWS = 4  # fewer rows say too little about which column repeats


_NO_LINE_END = re.compile(r"[^\r\n]")


class Record(NamedTuple):
    line: int
    fields: list[str]


class Table(NamedTuple):
    """The lines of a metadata file, as fields.

    Attributes:
        columns: meaning of each column: a key of COLUMN_NAMES, or empty.
        header: name of each column; empty if the file has no header.
    """

    separator: str
    columns: tuple[str, ...]
    header: tuple[str, ...]
    records: list[Record]

    def describe(self) -> str:
        """Return the form in words, such as "table with |, columns audio_file=path, text"."""
        if not self.header:
            return f"lines of {self.line_form()}, no header"
        pairs = list(zip(self.header, self.columns, strict=True))
        used = ", ".join(
            name if name == meaning else f"{name}={meaning}" for name, meaning in pairs if meaning
        )
        known = {name for names in COLUMN_NAMES.values() for name in names}
        others = ", ".join(name for name, meaning in pairs if name in known and not meaning)
        return f"table with {SEPARATOR_NAMES[self.separator]}, columns {used}" + (
            f" (not {others})" if others else ""
        )

    def line_form(self) -> str:
        """Return the form of a line without a header, such as id|text|normalised text."""
        separator = "<tab>" if self.separator == "\t" else self.separator
        return separator.join("id" if meaning == "path" else meaning for meaning in self.columns)


def table_with_header(text: str, needs_text: bool = True) -> Table | None:
    """Return the table of a file whose header names the audio and the text; None if it has no such
    header.

    Args:
        needs_text: whether the header must name the text; the same holds for the functions below.

    Raises:
        csv.Error: the file breaks the rules of CSV; the message names the line.
    """
    first = first_line(text)
    for separator in SEPARATORS:
        header = header_of(first, separator)
        columns = meanings(header)
        used = [meaning for meaning in columns if meaning]
        if _is_complete(columns, needs_text) and len(used) == len(
            set(used)
        ):  # a name that stands twice is ambiguous
            _, *records = _records(text, separator)
            return Table(separator, columns, header, records)
    return None


def tables_without_header(text: str, needs_text: bool = True) -> Iterator[Table]:
    """Yield the tables that a file without a header may be, most likely first.

    With | or tabs, lines have two or three fields: id, text and normalised text; or id, speaker and
    text in any order if one column repeats as speakers do. A comma or semicolon may belong to the
    text, so that all lines must have two fields, or three of which one is a speaker. Without texts,
    each line may be a name alone.
    """
    first = first_line(text)
    if not needs_text and not any(separator in first for separator in SEPARATORS):
        yield Table(SEPARATORS[0], ("path",), (), _literal_records(text, "\n"))
    for separator in SEPARATORS:
        if separator in first and (records := _records_without_header(text, separator)):
            widths = {len(record.fields) for record in records}
            columns = _columns_without_header(records, separator)
            if columns and (widths == {len(columns)} or separator in UNQUOTED):
                yield Table(separator, columns, (), records)


def first_line(text: str) -> str:
    """Return the first line that is not empty, or the beginning of a line that is longer than any
    header.
    """
    match = _NO_LINE_END.search(text)
    begin = match.start() if match else len(text)
    end = text.find("\n", begin)
    return text[begin : min(len(text) if end < 0 else end, begin + MAX_HEADER_CHARACTERS)].rstrip(
        "\r"
    )


def header_of(line: str, separator: str) -> tuple[str, ...]:
    """Return the names in a header, in lower case, with _ for spaces and hyphens."""
    fields = (field.strip().strip('"').strip().lower() for field in line.split(separator))
    return tuple(field.replace(" ", "_").replace("-", "_") for field in fields)


def meanings(header: Sequence[str]) -> tuple[str, ...]:
    """Return the meaning of each column; of several with the same meaning, only the first in
    COLUMN_NAMES has it.
    """
    present = set(header)
    used = {
        next((name for name in names if name in present), ""): meaning
        for meaning, names in COLUMN_NAMES.items()
    }
    return tuple(used.get(name, "") if name else "" for name in header)


def explain(text: str) -> str:
    """Return why a file has no form that this module recognises."""
    first = first_line(text)
    if first.lstrip().startswith(("{", "[")):
        return (
            "it is JSON, which is not read: write its entries as CSV lines under the header"
            " path,text"
        )
    if fault := fault_of_header(text):
        return fault
    separators = [separator for separator in SEPARATORS if separator in first]
    if not separators:
        return "its first line has no separator: |, tab, semicolon or comma"
    separator = max(separators, key=first.count)
    name, records = SEPARATOR_NAMES[separator], _records_without_header(text, separator)
    if not records:
        return f"it is separated by {name}, with quotes that are not closed"
    width = len(records[0].fields)
    for line, fields in records:
        if len(fields) != width:
            return (
                f"it has no header, and is separated by {name} into {width} fields in line"
                f" {records[0].line}, but {len(fields)} in line {line}: separate id and text by |,"
                " or quote each text that has a comma"
            )
    return (
        f"it has {width} columns separated by {name}, and no header that tells which is which: "
        f"add a first line that names them, such as {separator.join(EXAMPLE_HEADER[:width])}"
    )


def fault_of_header(text: str, needs_text: bool = True) -> str:
    """Return what a first line that names some columns lacks; empty for a line that names none, or
    all.
    """
    first = first_line(text)
    separator = max(
        SEPARATORS, key=lambda separator: len(set(meanings(header_of(first, separator))))
    )
    header = header_of(first, separator)
    columns, name = meanings(header), SEPARATOR_NAMES[separator]
    for column, meaning in zip(header, columns, strict=True):
        if meaning and header.count(column) > 1:
            return f"its header, separated by {name}, names {column} twice"
    if len(header) == 1 or not any(columns) or _is_complete(columns, needs_text):
        return ""
    known = ", ".join(column for column, meaning in zip(header, columns, strict=True) if meaning)
    return (
        f"its header, separated by {name}, names {known} but no"
        f" {'text' if 'path' in columns else 'audio file'}"
    )


def _is_complete(columns: Sequence[str], needs_text: bool) -> bool:
    return "path" in columns and (
        not needs_text or "text" in columns or "normalised text" in columns
    )


def _columns_without_header(records: Sequence[Record], separator: str) -> tuple[str, ...]:
    """The meaning of the columns; empty if it is not clear."""
    usual = [record.fields for record in records if len(record.fields) in (2, 3)]
    complete = [fields for fields in usual if len(fields) == 3 and all(fields)]
    if not complete:
        return (
            ("path", "text")
            if (usual and len(usual[0]) == 2) or (separator in UNQUOTED and usual)
            else ()
        )
    second, third = (_repeats([fields[column] for fields in complete]) for column in (1, 2))
    if second != third and len(complete) >= MIN_SPEAKER_ROWS:
        return ("path", "speaker", "text") if second else ("path", "text", "speaker")
    return ("path", "text", "normalised text") if separator in UNQUOTED else ()


def _repeats(values: Sequence[str]) -> bool:
    """Whether a value stands in two rows on average, as a speaker does and a text does not."""
    return 2 * len(set(values)) <= len(values)


def _records_without_header(text: str, separator: str) -> list[Record]:
    """The records without empty fields behind the text; none if they break the rules of CSV."""
    if separator == "|" and not first_line(text).startswith('"'):
        records = _literal_records(text, separator)
    else:
        try:
            records = _records(text, separator)
        except csv.Error:
            return []
    for _, fields in records:
        while (
            len(fields) > 2 and not fields[-1]
        ):  # spreadsheets write separators at the end of lines
            fields.pop()
    return records


def _records(text: str, separator: str) -> list[Record]:
    try:
        records = list(_csv_records(text, separator))
    except csv.Error:
        if separator not in UNQUOTED:
            raise
    else:
        holds_rows = any(
            _holds_rows(field, separator, len(row)) for _, row in records for field in row
        )
        if separator not in UNQUOTED or not holds_rows:
            return records
    return [
        Record(line, [_unquoted(field) for field in fields])
        for line, fields in _literal_records(text, separator)
    ]


def _holds_rows(field: str, separator: str, width: int) -> bool:
    """Whether a quoted field goes from the quotation mark of one text to that of a later one, over
    the rows between.

    Each line break in such a field comes with the separators of one row.
    """
    breaks = field.count("\n")
    return breaks > 0 and field.count(separator) == breaks * (width - 1)


def _csv_records(text: str, separator: str) -> Iterator[Record]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for fields in reader:
            fields = [field.strip() for field in fields]
            if any(fields):
                yield Record(line, fields)
            line = reader.line_num + 1
    except csv.Error as error:
        raise csv.Error(f"the row that begins at line {line} is not: {error}") from error


def _literal_records(text: str, separator: str) -> list[Record]:
    lines = enumerate(
        text.split("\n"), 1
    )  # splitlines() would also split at U+2028 and similar characters
    return [
        Record(line, [field.strip() for field in content.split(separator)])
        for line, content in lines
        if content.strip()
    ]


def _unquoted(field: str) -> str:
    """The field without its quotes, if it is quoted as in CSV."""
    inner = field[1:-1].replace('""', "")
    is_quoted = len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner
    return field[1:-1].replace('""', '"') if is_quoted else field
