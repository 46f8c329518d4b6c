"""A corpus in disjoint parts of about equal length, alike in speakers and languages. No TensorFlow."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import Config
from myxtts.data.dataset import audio_root_of, folder_of, load_corpora
from myxtts.data.manifest import Manifest, Vocabulary
from myxtts.errors import DataError
from myxtts.files import write_whole

COLUMNS = ("path", "text", "speaker", "language")


@dataclass(frozen=True)
class CorpusShards:
    """CSV files of a corpus that was split.

    Attributes:
        train: all rows to train on.
        parts: the same rows, each in one of them.
        held_out: rows to validate on, if there are any.
        audio_root: folder that their paths start from.
        table: what each part holds, to print.
    """

    train: Path
    parts: tuple[Path, ...]
    held_out: Path | None
    audio_root: Path
    table: str


def split_corpus(config: Config, folder: Path, parts: int, known: Vocabulary | None = None) -> CorpusShards:
    """Write the parts of a run's corpus as CSV files; the same arguments give the same files.

    Args:
        config: of the run: corpus, bounds of length, text front end, what is held out.
        folder: gets shard-0.csv, part-1.csv, …, train.csv, held_out.csv, and rejected.csv of unusable rows.
        parts: how many.
        known: rows that the run's tables begin with.

    Raises:
        DataError: the corpus cannot be used, has fewer utterances than there are to be parts, or the folder has parts
            of another split.
    """
    wanted = {f"part-{part}.csv" for part in range(parts)}
    if stale := sorted({path.name for path in folder.glob("part-*.csv")} - wanted):
        raise DataError(
            f"{parts} parts were to be written into {folder}, but {stale[0]} of another split is there, and parts have "
            "to be disjoint. Give another folder, or remove it."
        )
    corpus, held, vocabulary = load_corpora(config, folder, known)
    manifest = corpus.manifest
    if len(manifest) < parts:
        raise DataError(
            f"{parts} parts were asked for, but there are {len(manifest)} usable utterances to train on. "
            "Ask for fewer parts, or give a larger corpus."
        )
    audio = [path for one in (corpus, held) if one for path in one.manifest.paths]
    now = os.path.realpath(audio_root_of(config.data) or folder_of(config.data.train_data))
    root = Path(os.path.commonpath([now, *map(os.path.dirname, audio)]))
    part_of = assign(manifest.samples, manifest.speaker, manifest.language, parts)

    def write(name: str, one: Manifest, rows: Sequence[int]) -> Path:
        write_rows(folder / name, one, rows, vocabulary, root)
        return folder / name

    return CorpusShards(
        train=write("train.csv", manifest, range(len(manifest))),
        parts=tuple(write(f"part-{part}.csv", manifest, np.flatnonzero(part_of == part)) for part in range(parts)),
        held_out=write("held_out.csv", held.manifest, range(len(held.manifest))) if held else None,
        audio_root=root,
        table=described(manifest, part_of, vocabulary),
    )


def assign(samples: np.ndarray, speaker: np.ndarray, language: np.ndarray, parts: int) -> np.ndarray:
    """Which part each utterance goes to.

    Within each speaker and language, utterances are dealt out from the longest to the shortest, one to each part in
    turn, the longest of them to the part with the least audio so far. So parts differ by at most one utterance of each
    speaker and language, and by less audio than the longest utterance.

    Args:
        samples, speaker, language: int32 [utterances].

    Returns:
        int32 [utterances], from 0 to parts - 1.
    """
    part_of, total = np.zeros(len(samples), np.int32), np.zeros(parts, np.int64)
    order = np.lexsort((np.arange(len(samples)), -samples.astype(np.int64), language, speaker))
    same = (speaker[order][1:] == speaker[order][:-1]) & (language[order][1:] == language[order][:-1])
    for stratum in np.split(order, np.flatnonzero(~same) + 1):
        for first in range(0, len(stratum), parts):
            dealt = stratum[first : first + parts]
            to = np.argsort(total, kind="stable")[: len(dealt)]
            part_of[dealt] = to
            total[to] += samples[dealt]
    return part_of


def write_rows(path: Path, manifest: Manifest, rows: Sequence[int], vocabulary: Vocabulary, root: Path) -> None:
    """Some utterances of a manifest as a CSV file with the header of COLUMNS."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in rows:
        speaker, language = vocabulary.speakers[manifest.speaker[row]], vocabulary.languages[manifest.language[row]]
        writer.writerow((os.path.relpath(manifest.paths[row], root), manifest.texts[row], speaker, language))
    write_whole(path, text.getvalue().encode(errors="surrogateescape"))


def described(manifest: Manifest, part_of: np.ndarray, vocabulary: Vocabulary) -> str:
    """A table: a row for each part, a column for each language."""
    heads = ["part", "utterances", "minutes", "speakers", *vocabulary.languages]
    lines = [heads]
    for part in range(part_of.max() + 1):
        rows = np.flatnonzero(part_of == part)
        minutes = manifest.samples[rows].sum(dtype=np.int64) / SAMPLE_RATE_HZ / 60
        of_languages = np.bincount(manifest.language[rows], minlength=len(vocabulary.languages))
        speakers = len(np.unique(manifest.speaker[rows]))
        lines.append([*map(str, (part, len(rows))), f"{minutes:.2f}", str(speakers), *map(str, of_languages)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
