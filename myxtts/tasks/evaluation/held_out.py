"""What an evaluation measures: its options, and the utterances that a run was not trained on."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.batches import corpora
from myxtts.checkpoints.files import Record
from myxtts.checkpoints.trained_run import TrainedRun, check_same_corpus
from myxtts.config.flags import turned_off
from myxtts.config.schema import OFF_IN_EVALUATION, Config
from myxtts.corpus.build import build_manifest, report_rejected
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import Manifest, Vocabulary
from myxtts.corpus.rows import DEFAULT_SPEAKER, Rows
from myxtts.devicefeed.routes import Route
from myxtts.report.samples import EVALUATION_FOLDER
from myxtts.tasks.registry import TASKS, length_rule_of, task_named

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationOptions:
    """What to measure, how, and where to write the result; None is the default of the flag."""

    data: Path | None = None  # another corpus than the held-out utterances, as training takes it
    audio_root: Path | None = None
    columns: tuple[str, ...] = ()
    utterances: int | None = None  # at most
    ode_steps: int | None = None
    guidance: float | None = None
    variety: float | None = None
    vocoder: str | None = None
    asr: Path | None = None  # run of a recogniser that transcribes the synthesized speech
    beam_width: int | None = None
    noise_snr_db: tuple[float, ...] | None = None
    rt60: tuple[float, ...] | None = None  # s
    seeds: tuple[int, ...] | None = None
    perceptual: bool = True  # measure PESQ and STOI, if their packages are installed
    json_file: Path | None = None
    out: Path | None = None  # folder for plots and the list of unusable rows


def check_options(run: Path, task: str, options: EvaluationOptions) -> None:
    """Raise ConfigError if an option was given that the evaluation of this task does not have."""
    # An option without an effect would let a user believe that it had one.
    for owner in map(task_named, TASKS):
        given = [field for field in owner.options if getattr(options, field) is not None]
        if given and owner.name != task:
            flags = ", ".join(f"--{field.replace('_', '-')}" for field in given)
            product = task_named(task).product
            raise ConfigError(
                f"{flags} was given, but {run} is {product}, and only the evaluation of"
                f" {owner.product} has that option. Leave it out."
            )


@dataclass(frozen=True, eq=False)
class Utterance:
    """A recording that the run was not trained on."""

    id: str
    text: str
    language: int  # as the speaker, an index in the vocabulary
    speaker: int
    tokens: np.ndarray  # int32 [N]
    wave: np.ndarray  # float32 [samples] in [-1, 1]
    mel: np.ndarray  # float32 [frames, 80]
    reference: np.ndarray  # float32 [R, 80], another utterance of the speaker if there is one
    path: np.ndarray  # int [frames], token of each frame; empty if it was not aligned


class MeasuredCorpus(NamedTuple):
    """The utterances of an evaluation."""

    manifest: Manifest
    vocabulary: Vocabulary  # of the run, with new speakers of the utterances
    config: Config  # of the run, for evaluation
    training: corpora.Corpus | None  # None if another corpus is measured without it
    trained_speakers: set[str]
    source: str = "held-out utterances"

    def names_of(self, row: int) -> dict[str, str]:
        """Return id, speaker and language of an utterance."""
        speaker, language = self.manifest.names_of(row, self.vocabulary)
        return {"id": self.manifest.ids[row], "speaker": speaker, "language": language}


class Evaluation(NamedTuple):
    """What is measured of the weights of a run, how, and on which devices."""

    run: Path
    record: Record  # of one of its checkpoints
    corpus: MeasuredCorpus
    options: EvaluationOptions
    route: Route


# Without --data, these are the utterances that the run held out, read from its own corpus. With
# --data they come from another corpus; the corpus of the run is then only needed for a voice, whose
# speakers are told apart by its recordings. Either way the settings are those of the run, with what
# belongs to training turned off.
def load_measured(run: TrainedRun, options: EvaluationOptions, folder: Path) -> MeasuredCorpus:
    """Load the held-out utterances of a checkpoint, or those of --data; `folder` gets rejected.csv.

    Raises DataError if a corpus is missing or unusable, or nothing was held out, and
    CheckpointError if what the run was trained or validated on has changed since.
    """
    if options.data is None:
        return load_held_out(run, folder)
    config = for_evaluation(run.record.settings)
    known = run.record.vocabulary
    training = None
    if run.task == "tts":
        training, _, known = _load_training(run, config, folder)
    reading: dict[str, Any] = {"root": options.audio_root, "columns": options.columns}
    limit = config.data.max_rejected
    _, manifest, vocabulary = load_other(run, options.data, folder, limit, known, **reading)
    # The checkpoint knows its speakers, so the corpus of the run may be missing.
    speakers = set(run.record.speakers) - {DEFAULT_SPEAKER}
    source = f"utterances of {options.data}"
    return MeasuredCorpus(manifest, vocabulary, config, training, speakers, source)


def load_other(
    run: TrainedRun,
    corpus: Path,
    folder: Path,
    max_rejected: float,
    known: Vocabulary,
    language: str | None = None,
    **reading: Any,
) -> tuple[Rows, Manifest, Vocabulary]:
    """Load a corpus that a run need not know, and list the rejected rows in a folder.

    New speakers are appended to `known`, the vocabulary of the run. `language` is for rows without
    one, by default the run's; `reading` has other options of `read_corpus`. Raises DataError if the
    corpus cannot be read, or more than a fraction of its rows.
    """
    config = for_evaluation(run.record.settings)
    rule = length_rule_of(config)
    language = language or config.data.language
    rows = read_corpus(corpus, language, needs_text=rule is not None, **reading)
    log.info("%-14s %s", "corpus form", rows.form)
    manifest, vocabulary, rejected = build_manifest(
        rows, config.data, rule, known, frontend=run.record.frontend
    )
    folder.mkdir(parents=True, exist_ok=True)
    rejected = [*rows.rejected, *rejected]
    report_rejected(rejected, [(rows, manifest)], max_rejected, folder / "rejected.csv")
    return rows, manifest, vocabulary


def load_held_out(run: TrainedRun, listing: Path) -> MeasuredCorpus:
    """Return the held-out utterances of a checkpoint; raises as `load_measured`.

    Files that the folder of the run cannot get go to `listing`.
    """
    config = for_evaluation(run.record.settings)
    training, held_out, vocabulary = _load_training(run, config, listing)
    if held_out is None:
        raise DataError(
            f"an evaluation needs utterances that the run was not trained on, but {run.path} held"
            f" none out (validation_fraction {config.data.validation_fraction}). Train with"
            " --validation-fraction or --val-data, or give another corpus with --data."
        )
    manifest, record = held_out.manifest, run.record
    # A fork or merge has no corpus of its own yet.
    if record.corpus is not None and record.held_out not in (None, manifest.fingerprint):
        raise CheckpointError(
            f"the utterances that {run.checkpoint.path} was validated on have changed since."
            " Restore them, or give them as another corpus with --data."
        )
    return held_out_corpus(training, held_out, vocabulary, config)


def _load_training(
    run: TrainedRun, config: Config, listing: Path
) -> tuple[corpora.Corpus, corpora.Corpus | None, Vocabulary]:
    """Load what a checkpoint was trained and validated on, and the vocabulary of both."""
    data = config.data
    # Without --train-data, training makes the demo corpus. An evaluation of a new one would say
    # nothing of the run.
    trained_on = data.train_data or str(corpora.DEMO_FOLDER)
    for path in filter(None, (trained_on, data.val_data, data.audio_root)):
        if not Path(path).exists():
            raise DataError(
                f"{run.path} was trained on {path}, which does not exist under {Path.cwd()}."
                " Restore it, or work in the folder in which the run was started."
            )
    # The run has the manifests of its corpus, which take minutes to make for a large one.
    folder = run.path if os.access(run.path, os.W_OK | os.X_OK) else listing
    known = run.record.inherited_vocabulary
    loaded = corpora.load_corpora(
        config, folder, length_rule_of(config), known, frontend=run.record.frontend
    )
    training, _, vocabulary = loaded
    check_same_corpus(run.checkpoint, vocabulary, training.manifest, run.record.texts)
    return loaded


def held_out_corpus(
    training: corpora.Corpus, held_out: corpora.Corpus, vocabulary: Vocabulary, config: Config
) -> MeasuredCorpus:
    """Return the held-out utterances of a run, with its settings for evaluation."""
    speakers = {vocabulary.speakers[row] for row in np.unique(training.manifest.speaker)}
    return MeasuredCorpus(held_out.manifest, vocabulary, config, training, speakers)


def for_evaluation(config: Config) -> Config:
    """Return the settings of a run to measure it with."""
    # How batches were read depended on the machine, and texts of a teacher are only trained on.
    return turned_off(config, OFF_IN_EVALUATION)


def evenly_spaced(rows: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` evenly spaced rows: a corpus may be sorted by language."""
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)]


def output_folder(run: Path, checkpoint: Path, options: EvaluationOptions) -> Path:
    """Return --out, or else the folder of the run for this checkpoint and corpus."""
    if options.out or not options.data:
        return options.out or run / EVALUATION_FOLDER / checkpoint.name
    # Several folders may be called `test`, and a folder may have several tables.
    data = Path(options.data).resolve()
    names = data.with_suffix("").parts[-3:] if data.is_file() else data.parts[-2:]
    corpus = "-".join(name for name in names if name != data.anchor)
    return run / EVALUATION_FOLDER / f"{checkpoint.name}-{corpus}"
