"""Disjoint shards of a corpus, alike in length, speakers and languages. No TensorFlow."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.flags import with_values
from myxtts.config.schema import Config
from myxtts.data.dataset import audio_root_of, corpus_folder, load_corpora
from myxtts.data.manifest import Manifest, Vocabulary
from myxtts.errors import DataError
from myxtts.files import write_whole
from myxtts.tasks.registry import length_rule_of

COLUMNS = ("path", "text", "speaker", "language")


@dataclass(frozen=True)
class CorpusShards:
    """CSV files of a split corpus.

    Attributes:
        train: all rows to train on.
        shards: the same rows, each row in one shard.
        held_out: rows to validate on, if there are any.
        audio_root: folder that the paths in these files start from.
        table: what each shard holds, for the console.
    """

    train: Path
    shards: tuple[Path, ...]
    held_out: Path | None
    audio_root: Path
    table: str

    def in_folder(self, folder: Path) -> "CorpusShards":
        """Return these shards with their files in a folder, to which they were moved."""
        return replace(
            self,
            train=folder / self.train.name,
            shards=tuple(folder / shard.name for shard in self.shards),
            held_out=self.held_out and folder / self.held_out.name,
        )


def split_corpus(config: Config, folder: Path, count: int) -> CorpusShards:
    """Write `count` shards of a run's corpus as CSV files; the same arguments give the same files.

    Args:
        config: of the run: corpus, length limits, text front end, validation fraction.
        folder: gets shard-0.csv, shard-1.csv, …, train.csv, held_out.csv, and rejected.csv with
            unusable rows.

    Raises:
        DataError: the corpus cannot be used or has fewer utterances than shards, or the folder has
            shards of another split or other files of these names.
    """
    shard_files = [folder / f"shard-{shard}.csv" for shard in range(count)]
    train, held_out_file = folder / "train.csv", folder / "held_out.csv"
    # Shards must be disjoint, and a corpus named train.csv may be there.
    others = set(folder.glob("shard-*.csv")).difference(shard_files)
    if (
        not shard_files[0].exists()
        or train.resolve() == Path(config.data.train_data or "").resolve()
    ):
        others.update(path for path in (*shard_files, train, held_out_file) if path.exists())
    if others:
        raise DataError(
            f"{count} shards cannot be written to {folder}: {min(others).name} there is not of the"
            " same split. Give another folder, or remove this one."
        )
    # One of a previous split may be there, and this one may hold none out.
    held_out_file.unlink(missing_ok=True)
    # The texts of a teacher are in symbols and languages of its own.
    config = with_values(config, {"teacher_fraction": 0.0})
    corpus, held_out, vocabulary = load_corpora(config, folder, length_rule_of(config))
    manifest = corpus.manifest
    if len(manifest) < count:
        raise DataError(
            f"{count} shards were requested, but there are {len(manifest)} usable utterances to"
            " train on. Request fewer shards, or give a larger corpus."
        )
    folders = [*map(os.path.dirname, manifest.paths)]
    if held_out:
        folders += map(os.path.dirname, held_out.manifest.paths)
    current_root = audio_root_of(config.data) or corpus_folder(config.data.train_data)
    audio_root = Path(os.path.commonpath([os.path.abspath(current_root), *folders]))
    shard_of = assign_shards(manifest.samples, manifest.speaker, manifest.language, count)
    for shard, path in enumerate(shard_files):
        _write_rows(path, manifest, np.flatnonzero(shard_of == shard), vocabulary, audio_root)
    _write_rows(train, manifest, range(len(manifest)), vocabulary, audio_root)
    if held_out:
        rows = range(len(held_out.manifest))
        _write_rows(held_out_file, held_out.manifest, rows, vocabulary, audio_root)
    return CorpusShards(
        train=train,
        shards=tuple(shard_files),
        held_out=held_out_file if held_out else None,
        audio_root=audio_root,
        table=_shard_table(manifest, shard_of, vocabulary, count),
    )


def assign_shards(
    samples: np.ndarray, speaker: np.ndarray, language: np.ndarray, count: int
) -> np.ndarray:
    """Return the shard of each utterance.

    Within each speaker and language, utterances are dealt out from the longest to the shortest, one
    to each shard per turn; the longest one of a turn goes to the shard with the least audio so far.
    Shards therefore differ by at most one utterance of each speaker and language, and by less audio
    than the longest utterance.

    Args:
        samples, speaker, language: int32 [utterances].

    Returns:
        int32 [utterances], from 0 to count - 1.
    """
    shard_of = np.zeros(len(samples), np.int32)
    audio_samples = np.zeros(count, np.int64)
    order = np.lexsort((np.arange(len(samples)), -samples.astype(np.int64), language, speaker))
    is_new = (np.diff(speaker[order]) != 0) | (np.diff(language[order]) != 0)
    for stratum in np.split(order, np.flatnonzero(is_new) + 1):
        for begin in range(0, len(stratum), count):
            turn = stratum[begin : begin + count]
            shards = np.argsort(audio_samples, kind="stable")[: len(turn)]
            shard_of[turn] = shards
            audio_samples[shards] += samples[turn]
    return shard_of


def _write_rows(
    path: Path,
    manifest: Manifest,
    rows: Sequence[int] | np.ndarray,
    vocabulary: Vocabulary,
    audio_root: Path,
) -> None:
    """Write some utterances of a manifest as a CSV file with the header COLUMNS."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in rows:
        audio = os.path.relpath(manifest.paths[row], audio_root)
        speaker = vocabulary.speakers[manifest.speaker[row]]
        language = vocabulary.languages[manifest.language[row]]
        writer.writerow((audio, manifest.texts[row], speaker, language))
    write_whole(path, text.getvalue().encode(errors="surrogateescape"))


def _shard_table(
    manifest: Manifest, shard_of: np.ndarray, vocabulary: Vocabulary, count: int
) -> str:
    """Return a table with a row for each shard and a column for each language."""
    lines = [["shard", "utterances", "minutes", "speakers", *vocabulary.languages]]
    for shard in range(count):
        rows = shard_of == shard
        minutes = manifest.samples[rows].sum() / SAMPLE_RATE_HZ / 60
        speakers = len(np.unique(manifest.speaker[rows]))
        per_language = np.bincount(manifest.language[rows], minlength=len(vocabulary.languages))
        cells = (shard, np.count_nonzero(rows), f"{minutes:.2f}", speakers, *per_language)
        lines.append([*map(str, cells)])
    return "\n".join(align_columns(lines))


def align_columns(rows: Sequence[Sequence[str]], words: int = 0) -> list[str]:
    """Return the lines of a table: the first columns are words, and numbers stand on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [*map(str.ljust, row[:words], widths), *map(str.rjust, row[words:], widths[words:])]
        lines.append("  ".join(cells))
    return lines
