"""Reads the metadata of a corpus: the audio file, text, speaker and language of each row.

What comes in is the name of a folder, a file or a URL. The first reader of the group `corpora`
(`base/plugins`) that takes it reads it. Then placeholders are answered, and each audio file is
looked for. What goes out are rows that name existing files as far as possible; no sound is opened
yet. A folder of audio needs no metadata for a task without texts. docs/guides/data.md lists all
forms.
"""

import csv
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from myxtts.base import plugins
from myxtts.base.errors import DataError
from myxtts.base.members import is_url, member_of, stand_in
from myxtts.base.names import canonical_name
from myxtts.config.schema import DataConfig
from myxtts.corpus import audio_folder
from myxtts.corpus.audio_folder import AudioFolder, suffix_of
from myxtts.corpus.rows import (
    CorpusOptions,
    Layout,
    RejectedRow,
    Row,
    Rows,
    RowTuple,
    shortened,
    with_values,
)
from myxtts.corpus.tables import FORMATS

RANK_BYTES = 16

log = logging.getLogger(__name__)


def read_rows(
    data: DataConfig, train: str | Path, fraction: float, seed: int, needs_text: bool = True
) -> tuple[Rows, Rows, list[RejectedRow]]:
    """Read the training rows, the validation rows, and the malformed rows of both.

    The validation rows come from --val-data if it is given, else from metadata_eval.csv next to
    metadata_train.csv, else a fraction of the training rows. Raises as `read_corpus`.
    """
    read = partial(read_as_configured, data, needs_text=needs_text)
    folder = Path(train)
    if folder.name == "metadata_train.csv":
        folder = folder.parent
    if data.val_data is not None:
        rows = read(train), read(data.val_data, preferred="metadata_eval.csv")
        if os.path.samefile(rows[0].metadata, rows[1].metadata):
            raise DataError(
                f"--train-data {train} and --val-data {data.val_data} are both {rows[0].metadata}."
                " Leave out --val-data to hold out some utterances, or give other ones."
            )
    elif all(os.path.isfile(folder / name) for name in ("metadata_train.csv", "metadata_eval.csv")):
        rows = read(folder / "metadata_train.csv"), read(folder / "metadata_eval.csv")
    else:
        rows = hold_out(read(train), fraction, seed)
    for form in dict.fromkeys(corpus.form for corpus in rows):
        log.info("%-14s %s", "corpus form", form)
    return *rows, [*rows[0].rejected, *rows[1].rejected]


def read_as_configured(
    data: DataConfig, corpus: str | Path, needs_text: bool, preferred: str = "metadata_train.csv"
) -> Rows:
    """Read the rows of a corpus as the settings of a run say; see `read_corpus`."""
    root = Path(data.audio_root) if data.audio_root is not None else None
    return read_corpus(corpus, data.language, root, needs_text, preferred, data.columns)


def read_corpus(
    corpus: str | Path,
    language: str,
    root: Path | None = None,
    needs_text: bool = True,
    preferred: str = "metadata_train.csv",
    columns: Sequence[str] = (),
) -> Rows:
    """Read the rows of a corpus. Raises DataError if it cannot be read, or has another form.

    Args:
        corpus: its folder, URL or metadata file; a folder may have several: see `preferred`.
        language: the language of rows without one.
        root: folder to which the paths in tables are relative, by default the folder of the file.
            The audio of lines without a header is searched there first.
        columns: names of the columns of files without a header.
    """
    if root is not None and not os.path.isdir(root):
        raise DataError(f"--audio-root {root} does not exist. Give the folder of the audio files.")
    # A local folder stands for an object store.
    path = stand_in(str(corpus)) if is_url(corpus) else Path(corpus)
    if not os.path.exists(path):
        raise DataError(f"the corpus {path} does not exist in {Path.cwd()}. {FORMATS}")
    options = CorpusOptions(path, language, root, needs_text, preferred, columns)
    readers = plugins.load("corpora")
    layout = next((layout for reader in readers if (layout := reader(options))), None)
    if isinstance(layout, Rows):
        return layout
    if layout is None:
        raise DataError(f"the corpus folder {path} has no metadata.csv or other layout. {FORMATS}")
    usable = [row for row in layout.rows if isinstance(row, Row)]
    usable = with_values(usable, canonical_name(language), layout.metadata)
    rejected = tuple(row for row in layout.rows if isinstance(row, RejectedRow))
    folder = _audio_folder(layout, usable)
    for number, row in enumerate(usable):
        audio = folder.find(row.audio) or row.audio
        usable[number] = row._replace(id=_id_of(row, audio), audio=audio)
    place = f"{len(usable)} rows in {layout.metadata}; audio in {folder.path}"
    suffixes = Counter(suffix_of(row.audio) or "others" for row in usable)
    formats = ", ".join(f"{count} {suffix}" for suffix, count in sorted(suffixes.items()))
    form = f"{layout.form}; {place}: {formats}"
    return Rows(layout.metadata, folder.path, RowTuple(usable), rejected, form)


def _audio_folder(layout: Layout, rows: Sequence[Row]) -> AudioFolder:
    """Return the first folder of a layout that has any of its audio."""
    for folder in map(AudioFolder, layout.folders):
        if not rows or any(folder.find(row.audio) for row in rows):
            return folder
    raise DataError(
        f"none of the {len(rows)} audio files of {layout.metadata} ({layout.form}) was found:"
        f" {shortened(rows[0].audio)!r} is not in {', '.join(map(str, layout.folders))}. Correct"
        " the names, or give the folder of the audio as --audio-root."
    )


def _id_of(row: Row, audio: str) -> str:
    member = member_of(audio)
    if member is not None:
        audio = f"{os.path.basename(member.tar)}/{member.name}"
    name = os.path.normpath(audio)
    if row.end_s is None and not row.start_s:
        return name
    end = "" if row.end_s is None else f"{row.end_s:.3f}"
    return f"{name}@{row.start_s:.3f}-{end}"


def hold_out(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows into training and validation rows by (seed, id), whatever their order.

    With a fraction above 0 and at least two ids, each part has at least one.
    """

    # A row's rank depends on its id alone. So a row that is added or moved changes no other rank,
    # and rows with equal ids are never divided.
    def rank(id_: str) -> bytes:
        text = f"{seed}:{id_}".encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=RANK_BYTES).digest()

    ranks = np.fromiter(map(rank, rows.rows.ids), f"S{RANK_BYTES}", len(rows.rows))
    ordered = np.unique(ranks)
    total = len(ordered)
    is_held_out = np.zeros(len(ranks), bool)
    if fraction > 0 and total > 1:
        count = min(max(round(fraction * total), 1), total - 1)
        is_held_out = ranks <= ordered[count - 1]
    return rows.where(~is_held_out), rows.where(is_held_out)._replace(rejected=())


def leave_out(listing: str | None, *corpora: Rows) -> tuple[list[Rows], list[RejectedRow]]:
    """Return corpora without the rows that a CSV file names in its column `path`, and these rows.

    A path is the `id` of a row. The column `reason` is kept, if there is one. Logs how many rows it
    names; without a file, all are kept. Raises DataError if the file cannot be read, has no such
    column or leaves no row.
    """
    if listing is None:
        return [*corpora], []
    try:
        with open(listing, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            table = csv.DictReader(file)
            columns = table.fieldnames or ()
            reasons = {row.get("path") or "": row.get("reason") or "" for row in table}
    except (OSError, csv.Error) as error:
        message = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"--exclude {listing} was given, but cannot be read: {message}. Give the excluded.csv"
            " of `myxtts inspect`, or leave it out."
        ) from error
    if "path" not in columns:
        found = ", ".join(columns) or "none"
        raise DataError(
            f"--exclude {listing} was given, but has no column path (its columns: {found}). Give a"
            " CSV file with the columns path and reason, as `myxtts inspect` writes."
        )
    excluded, kept = [], []
    for rows in corpora:
        is_named = np.fromiter((name in reasons for name in rows.rows.ids), bool, len(rows.rows))
        kept.append(rows.where(~is_named))
        for row in rows.where(is_named).rows:
            excluded.append(rows.rejecting(row, "excluded", reasons[row.id]))
    total = sum(len(rows.rows) for rows in corpora)
    if excluded and not kept[0].rows:
        raise DataError(
            f"--exclude {listing} names all {len(corpora[0].rows)} rows of {corpora[0].metadata}."
            " Leave it out, or remove rows from it."
        )
    level = logging.INFO if excluded or not reasons else logging.WARNING
    line = "exclude        %d of %d rows, of %d paths in %s; rejected.csv lists them"
    log.log(level, line, len(excluded), total, len(reasons), listing)
    return kept, excluded


def read_folder(options: CorpusOptions) -> Layout | None:
    """Read the audio files in and below a folder; subfolders name the speakers."""
    folder = options.path
    if options.needs_text or not os.path.isdir(folder):
        return None
    rows = []
    for line, audio in enumerate(filter(suffix_of, audio_folder.files_below(folder)), 1):
        # Checkpoints name the speakers in UTF-8.
        parent = os.fsencode(os.path.basename(os.path.dirname(audio)))
        speaker = parent.decode(errors="backslashreplace")
        if speaker.lower() in audio_folder.AUDIO_SUBFOLDERS:
            speaker = ""
        rows.append(Row(line, "", audio, "", speaker, ""))
    if not rows:
        raise DataError(
            f"the corpus folder {folder} has neither metadata.csv nor audio"
            f" ({', '.join(audio_folder.SUFFIXES)}). Give audio files or a metadata file."
        )
    return Layout("audio files without metadata", folder, rows, [folder])
