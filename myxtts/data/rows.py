"""Rows of a corpus, and what the reader of a layout takes and returns: all that it needs to know.

A layout of others is a function from CorpusOptions to a Layout, or None for another layout, in the
entry-point group `myxtts.corpora`.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DEFAULT_SPEAKER = "default"
SHOWN_CHARACTERS = 500


class Row(NamedTuple):
    """One row of a corpus: a file, or the stretch of it from `start_s` to `end_s`.

    `audio` is relative to the folder of its Rows, or an absolute name in it, and unchecked. `end_s`
    is None at the end of the file. `metadata` is the file of the row if it is not that of its Rows.
    Readers leave `id` empty.
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


class RejectedRow(NamedTuple):
    """A row that cannot be used: the kind of fault, and what is specific to the row."""

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


class CorpusOptions(NamedTuple):
    """A file or folder that exists, and what is asked of it; see `read_corpus`."""

    path: Path
    language: str
    root: Path | None = None
    needs_text: bool = True
    preferred: str = "metadata_train.csv"
    columns: Sequence[str] = ()


class Layout(NamedTuple):
    """A corpus as its reader understands it.

    Attributes:
        form: in words, for the log.
        metadata: the file of the rows, or the folder of several.
        rows: also the malformed ones; the audio is in the first of `folders` that has any of it.
    """

    form: str
    metadata: Path
    rows: Sequence[Row | RejectedRow]
    folders: Sequence[Path]


LayoutReader = Callable[[CorpusOptions], Layout | None]


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def malformed(metadata: Path, line: int, audio: str, detail: str) -> RejectedRow:
    return RejectedRow(str(metadata), line, shortened(audio), "malformed row", detail)


def without_capitals(form: str, rows: list[Row | RejectedRow]) -> str:
    """Put the texts into lower case if all of them are capitals, as in LibriSpeech: the text front
    end would spell "IT" and "US". Returns the form, which then says so.
    """
    texts = [row.text for row in rows if isinstance(row, Row)]
    if not any(map(str.isupper, texts)) or any(text != text.upper() for text in texts):
        return form
    for number, row in enumerate(rows):
        if isinstance(row, Row):
            rows[number] = row._replace(text=row.text.lower())
    return f"{form}, texts in lower case"


def folders_of(audios: Iterable[str], folder: Path, root: Path | None) -> list[Path]:
    """Return where audio may be that a toolkit has listed: `root`, or else `folder`, the two above
    it, where recipes run, or the folder of all absolute names.
    """
    if root is not None:
        return [root]
    absolute = [os.path.dirname(audio) for audio in audios if os.path.isabs(audio)]
    common = [Path(os.path.commonpath(absolute))] if absolute else []
    return [folder, *folder.absolute().parents[:2], *common]
