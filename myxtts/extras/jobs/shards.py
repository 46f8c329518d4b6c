"""Disjoint shards of a corpus, alike in length, speakers and languages. No TensorFlow."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from myxtts.audio.audio_file import WHOLE
from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import DataError
from myxtts.base.files import write_csv
from myxtts.batches.corpora import corpus_folder, load_corpora
from myxtts.config.flags import with_values
from myxtts.config.schema import Config
from myxtts.corpus.manifest import Manifest, Vocabulary
from myxtts.tasks.registry import length_rule_of

COLUMNS = ("path", "text", "speaker", "language")
STRETCH = ("start", "end")

TRAIN = "train.csv"
HELD_OUT = "held_out.csv"


@dataclass(frozen=True)
class CorpusShards:
    """The folder that paths in a split corpus start from, and a table of what its shards hold."""

    audio_root: Path
    table: str


def shard_file(shard: int) -> str:
    return f"shard-{shard}.csv"


# Files of an earlier, other split are an error, since shards must be disjoint. The corpus is loaded
# as a run would, its utterances are assigned, and each shard is written as a table that `train`
# reads, with paths relative to one common folder.
def split_corpus(config: Config, folder: Path, count: int) -> CorpusShards:
    """Write `count` shards of a run's corpus as CSV files; the same arguments give the same files.

    The folder also gets TRAIN, all rows to train on; HELD_OUT, the rows to validate on, if there
    are any; and rejected.csv with unusable rows. Raises DataError if the corpus cannot be used, or
    the folder has shards of another split or other files of these names.
    """
    names = [*map(shard_file, range(count))]
    # Shards must be disjoint, and a corpus named train.csv may be there.
    others = {path.name for path in folder.glob("shard-*.csv")}.difference(names)
    is_corpus = (folder / TRAIN).resolve() == Path(config.data.train_data or "").resolve()
    if is_corpus or not (folder / names[0]).exists():
        others.update(name for name in (*names, TRAIN, HELD_OUT) if (folder / name).exists())
    if others:
        raise DataError(
            f"{count} shards cannot be written to {folder}: {min(others)} there is not of the same"
            " split. Give another folder, or remove this one."
        )
    # One of a previous split may be there, and this one may hold none out.
    (folder / HELD_OUT).unlink(missing_ok=True)
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
    current_root = Path(config.data.audio_root or corpus_folder(config.data.train_data))
    audio_root = Path(os.path.commonpath([os.path.abspath(current_root), *folders]))
    shard_of = assign_shards(manifest.samples, manifest.speaker, manifest.language, count)
    for shard, name in enumerate(names):
        rows = np.flatnonzero(shard_of == shard)
        _write_rows(folder / name, manifest, rows, vocabulary, audio_root)
    _write_rows(folder / TRAIN, manifest, range(len(manifest)), vocabulary, audio_root)
    if held_out:
        every_row = range(len(held_out.manifest))
        _write_rows(folder / HELD_OUT, held_out.manifest, every_row, vocabulary, audio_root)
    return CorpusShards(audio_root, _shard_table(manifest, shard_of, vocabulary, count))


def assign_shards(
    samples: np.ndarray, speaker: np.ndarray, language: np.ndarray, count: int
) -> np.ndarray:
    """Return the shard of each utterance; all arrays are int32 [utterances].

    Shards differ by at most one utterance of each speaker and language, and by less audio than the
    longest utterance.
    """
    # Within each speaker and language, utterances are dealt out from the longest to the shortest,
    # one to each shard per turn. The longest one of a turn goes to the shard with the least audio.
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
    """Write some utterances of a manifest as a CSV file."""
    has_stretches = np.any(manifest.starts != WHOLE)
    # The header has STRETCH, in seconds, only if some are not whole files.
    header = COLUMNS + STRETCH if has_stretches else COLUMNS
    lines: list[Sequence[str]] = [header]
    for row in rows:
        audio = os.path.relpath(manifest.paths[row], audio_root)
        fields = [audio, manifest.texts[row], *manifest.names_of(row, vocabulary)]
        if has_stretches:
            start = max(int(manifest.starts[row]), 0)
            end = start + int(manifest.samples[row])
            fields += [str(start / sample_rate_hz()), str(end / sample_rate_hz())]
        lines.append(fields)
    write_csv(path, lines)


def _shard_table(
    manifest: Manifest, shard_of: np.ndarray, vocabulary: Vocabulary, count: int
) -> str:
    """Return a Markdown table with a row for each shard and a column for each language."""
    header = ["shard", "utterances", "minutes", "speakers", *vocabulary.languages]
    lines = [header, ["---:"] * len(header)]
    for shard in range(count):
        rows = shard_of == shard
        minutes = manifest.samples[rows].sum() / sample_rate_hz() / 60
        speakers = len(np.unique(manifest.speaker[rows]))
        per_language = np.bincount(manifest.language[rows], minlength=len(vocabulary.languages))
        cells = (shard, np.count_nonzero(rows), f"{minutes:.2f}", speakers, *per_language)
        lines.append([*map(str, cells)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
