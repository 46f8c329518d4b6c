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
        utterances, minutes: of each shard.
    """

    train: Path
    shards: tuple[Path, ...]
    held_out: Path | None
    audio_root: Path
    table: str
    utterances: tuple[int, ...]
    minutes: tuple[float, ...]

    def in_folder(self, folder: Path) -> "CorpusShards":
        """Return these shards with their files in a folder, to which they were moved."""
        return replace(
            self,
            train=folder / self.train.name,
            shards=tuple(folder / shard.name for shard in self.shards),
            held_out=self.held_out and folder / self.held_out.name,
        )

    def describe(self, shard: int) -> str:
        """Return what a shard holds, such as "190 utterances, 10.25 minutes"."""
        return f"{self.utterances[shard]} utterances, {self.minutes[shard]:.2f} minutes"


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
    names = [f"shard-{shard}.csv" for shard in range(count)]
    if stale := sorted({path.name for path in folder.glob("shard-*.csv")}.difference(names)):
        raise DataError(
            f"{count} shards cannot be written to {folder}: it already holds {stale[0]} of another"
            " split, and shards must be disjoint. Give another folder, or remove this one."
        )
    _check_replaced(folder, names, config.data.train_data)
    # One of a previous split may be there, and this one may hold none out.
    (folder / "held_out.csv").unlink(missing_ok=True)
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
    utterances = np.bincount(shard_of, minlength=count)
    minutes = np.bincount(shard_of, weights=manifest.samples, minlength=count) / SAMPLE_RATE_HZ / 60

    def write(name: str, source: Manifest, is_used: np.ndarray | None = None) -> Path:
        rows = range(len(source)) if is_used is None else np.flatnonzero(is_used)
        _write_rows(folder / name, source, rows, vocabulary, audio_root)
        return folder / name

    shards = [write(name, manifest, shard_of == shard) for shard, name in enumerate(names)]
    return CorpusShards(
        train=write("train.csv", manifest),
        shards=tuple(shards),
        held_out=write("held_out.csv", held_out.manifest) if held_out else None,
        audio_root=audio_root,
        table=_shard_table(manifest, shard_of, vocabulary, utterances, minutes),
        utterances=tuple(utterances.tolist()),
        minutes=tuple(minutes.tolist()),
    )


def _check_replaced(folder: Path, shards: Sequence[str], corpus: str | None) -> None:
    """Raise DataError if a file to write is the corpus itself, or not of a previous split."""
    is_split = (folder / shards[0]).exists()
    for path in (folder / name for name in (*shards, "train.csv", "held_out.csv")):
        if not path.exists():
            continue
        is_corpus = corpus is not None and os.path.exists(corpus) and path.samefile(corpus)
        if is_corpus or not is_split:
            found = "is the corpus itself" if is_corpus else "is not of an earlier split"
            raise DataError(
                f"shards cannot be written to {folder}: {path.name} there {found}, and would be"
                " replaced. Give another folder."
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
    manifest: Manifest,
    shard_of: np.ndarray,
    vocabulary: Vocabulary,
    utterances: np.ndarray,
    minutes: np.ndarray,
) -> str:
    """Return a table with a row for each shard and a column for each language."""
    lines = [["shard", "utterances", "minutes", "speakers", *vocabulary.languages]]
    for shard, (count, length) in enumerate(zip(utterances, minutes, strict=True)):
        rows = shard_of == shard
        per_language = np.bincount(manifest.language[rows], minlength=len(vocabulary.languages))
        speakers = len(np.unique(manifest.speaker[rows]))
        lines.append([*map(str, (shard, count, f"{length:.2f}", speakers, *per_language))])
    return "\n".join(align_columns(lines))


def align_columns(rows: Sequence[Sequence[str]], words: int = 0) -> list[str]:
    """Return the lines of a table: the first columns are words, and numbers stand on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [*map(str.ljust, row[:words], widths), *map(str.rjust, row[words:], widths[words:])]
        lines.append("  ".join(cells))
    return lines
