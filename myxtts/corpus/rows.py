"""Rows of a corpus, and what the reader of a layout takes and returns: all that it needs to know.

A layout of others is a function from CorpusOptions to a Layout, or None for another layout, in the
entry-point group `myxtts.corpora`.
"""

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.base.files import table_beside
from myxtts.base.names import alike, canonical_name

DEFAULT_SPEAKER = "default"
SHOWN_CHARACTERS = 500
METADATA = table_beside(__file__, "metadata.yaml")
PLACEHOLDERS = frozenset(METADATA["placeholders"].split())

log = logging.getLogger(__name__)


class Row(NamedTuple):
    """One row of a corpus: a file, or the stretch of it from `start_s` to `end_s`.

    `audio` is relative to the folder of its Rows, or an absolute name in it, and unchecked. `end_s`
    is None at the end of the file. `metadata` is the file of the row if its Rows have another one.
    Readers leave `id` empty, and also a speaker or language that is not named. They may give a
    `normalised` text, which is used instead of the text.
    """

    line: int
    id: str
    audio: str
    text: str
    speaker: str
    language: str
    start_s: float = 0.0
    end_s: float | None = None
    metadata: str = ""
    normalised: str = ""


class RejectedRow(NamedTuple):
    """A row that cannot be used: the kind of fault (`reason`), and the details of this row."""

    metadata: str
    line: int
    audio: str
    reason: str
    detail: str


class RowTuple(tuple[Row, ...]):
    """Rows in memory."""

    @property
    def ids(self) -> Iterable[str]:
        return (row.id for row in self)

    def where(self, is_kept: np.ndarray) -> "RowTuple":
        return RowTuple(compress(self, is_kept))


class Rows(NamedTuple):
    """The rows of one corpus, whose audio must be in `folder`; and its form in words."""

    metadata: Path
    folder: Path
    rows: Any  # RowTuple, or PackedRows of packed.py
    rejected: tuple[RejectedRow, ...] = ()
    form: str = ""

    def where(self, is_kept: np.ndarray) -> "Rows":
        """Return the rows with True."""
        return self._replace(rows=self.rows.where(is_kept))

    def rejecting(self, row: Row, reason: str, detail: str) -> RejectedRow:
        """Return the entry of rejected.csv for a row of these."""
        metadata = row.metadata or str(self.metadata)
        return RejectedRow(metadata, row.line, shortened(row.audio), reason, shortened(detail))


class CorpusOptions(NamedTuple):
    """A file or folder that exists, and how to read it; see `read_corpus`."""

    path: Path
    language: str
    root: Path | None = None
    needs_text: bool = True
    preferred: str = "metadata_train.csv"
    columns: Sequence[str] = ()


class Layout(NamedTuple):
    """A corpus as its reader understands it.

    Attributes:
        form: the form in words, for the log.
        metadata: the file of the rows, or the folder of several files.
        rows: also the malformed ones; the audio is in the first of `folders` that has any of it.
    """

    form: str
    metadata: Path
    rows: Sequence[Row | RejectedRow]
    folders: Sequence[Path]


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def malformed(metadata: Path, line: int, audio: str, detail: str) -> RejectedRow:
    return RejectedRow(str(metadata), line, shortened(audio), "malformed row", detail)


def is_missing(value: str) -> bool:
    """Return whether a value of a column is none: a placeholder, or no letter and no digit."""
    return value in PLACEHOLDERS or not any(map(str.isalnum, value))


# First the texts are read, and every value that looks like a placeholder is counted. Then it is
# decided whether a word such as "None" is one: as a text it is rare, like other texts, but a
# placeholder repeats. Then speakers and languages without a value get the default. At the end the
# log says how many rows had placeholders, and which names differ in their spelling only.
def with_values(rows: Sequence[Row], language: str, metadata: Path) -> list[Row]:
    """Return the rows of a file with their texts, one spelling of each name, and no placeholders.

    metadata.yaml says what stands for a placeholder; the log says how many there are. A word that
    is no more frequent than other texts is a text: somebody says "None".
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)

    def given(column: str, value: str, default: str) -> str:
        is_none = is_missing(value)
        found[column][value] += is_none
        return default if is_none else value

    texts = [given("normalised text", row.normalised or "", row.text or "") for row in rows]
    counts = Counter(texts)
    usual = [count for text, count in counts.items() if not is_missing(text)] or [1]
    for word in sorted(PLACEHOLDERS & counts.keys()):
        is_text = word.isalpha() and counts[word] * len(usual) < 2 * sum(usual)
        column = "word" if is_text else "text"
        found[column][word] = counts[word]
    filled = []
    for row, text in zip(rows, texts, strict=True):
        text = "" if text in found["text"] else text
        speaker = given("speaker", canonical_name(row.speaker or ""), DEFAULT_SPEAKER)
        code = given("language", canonical_name(row.language or ""), language)
        filled.append(row._replace(text=text, speaker=speaker, language=code, normalised=""))
    for column, answer in METADATA["answers"].items():
        # If no row names a speaker, the corpus has one, and the empty column is no placeholder.
        is_named = column == "speaker" and len({row.speaker for row in filled}) > 1
        values = +found[column] if is_named else +found[column] - Counter({"": len(rows)})
        if values:
            kinds = ", ".join(value or "nothing" for value in values)
            found_in = f"{values.total()} of {len(rows)} rows of {metadata}"
            log.warning("%s have %s for a %s: %s", found_in, kinds, column, answer)
    for column in ("speaker", "language"):
        for names in alike({getattr(row, column) for row in filled}):
            line = "the %ss %s of %s differ in case, spaces or form only: give them one spelling"
            log.warning(line, column, " and ".join(map(repr, names)), metadata)
    return filled


def without_capitals(form: str, rows: list[Row | RejectedRow]) -> str:
    """Put the texts into lower case if all are capitals; return the form, which then says so.

    LibriSpeech is such a corpus. The text front end would spell "IT" and "US".
    """
    texts = [row.text for row in rows if isinstance(row, Row) and not is_missing(row.text)]
    if not any(map(str.isupper, texts)) or any(text != text.upper() for text in texts):
        return form
    for number, row in enumerate(rows):
        if isinstance(row, Row):
            rows[number] = row._replace(text=row.text.lower())
    return f"{form}, texts in lower case"


def folders_of(audios: Iterable[str], folder: Path, root: Path | None) -> list[Path]:
    """Return where audio may be that a toolkit has listed: `root`, or else several folders.

    These are `folder`, the two above it, where recipes run, and the folder of all absolute names.
    """
    if root is not None:
        return [root]
    absolute = [os.path.dirname(audio) for audio in audios if os.path.isabs(audio)]
    folders = [folder, *folder.absolute().parents[:2]]
    if absolute:
        folders.append(Path(os.path.commonpath(absolute)))
    return folders
