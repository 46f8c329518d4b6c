"""The utterances that a run is measured on."""

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.config.flags import turned_off
from myxtts.config.schema import OFF_IN_EVALUATION, Config
from myxtts.data.audio_file import read_wave
from myxtts.data.batch_plan import Pass
from myxtts.data.dataset import DEMO_FOLDER, Corpus, load_corpora, manifest_of, single_bucket_corpus
from myxtts.data.hand_over import compile_hand_over
from myxtts.data.manifest import Manifest, Vocabulary, report_rejected
from myxtts.data.metadata_file import DEFAULT_SPEAKER, read_corpus
from myxtts.data.pipeline import held_out_pipeline
from myxtts.errors import CheckpointError, ConfigError, DataError
from myxtts.evaluation.options import EvaluationOptions
from myxtts.models.xtts import XTTS
from myxtts.placement.routes import Route
from myxtts.report.samples import EVALUATION_FOLDER
from myxtts.tasks.length_rules import length_rule_of
from myxtts.tasks.registry import task_of
from myxtts.training.observation import Throttle, no_throttle
from myxtts.training.runs import TrainedRun, check_same_corpus

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Utterance:
    """A recording that the run was not trained on.

    Attributes:
        id, text: from the corpus.
        language, speaker: indices in the vocabulary.
        tokens: int32 [N].
        wave: float32 [samples] in [-1, 1].
        mel: float32 [frames, 80].
        reference: float32 [reference frames, 80], another utterance of the speaker if there is one.
        path: int [frames], the model's alignment: token of each frame; empty before
            `align_utterances`.
    """

    id: str
    text: str
    language: int
    speaker: int
    tokens: np.ndarray
    wave: np.ndarray
    mel: np.ndarray
    reference: np.ndarray
    path: np.ndarray


class HeldOut(NamedTuple):
    """Utterances to measure.

    Attributes:
        batches: features of the utterances on the device of the network, with the number of
            utterances of each; the last ones may be beyond those to measure.
    """

    utterances: list[Utterance]
    batches: list[tuple[dict[str, tf.Tensor], int]]


class MeasuredCorpus(NamedTuple):
    """The utterances of an evaluation.

    Attributes:
        vocabulary: that of the run, with new speakers of the utterances.
        config: settings of the run, for evaluation.
        training: what the run was trained on; None if another corpus is measured without it.
        trained_speakers: names of the speakers that the run was trained on.
        source: description of the utterances, for the notes.
    """

    manifest: Manifest
    vocabulary: Vocabulary
    config: Config
    training: Corpus | None
    trained_speakers: set[str]
    source: str = "held-out utterances"


def load_measured(
    run: TrainedRun, options: EvaluationOptions, folder: Path, needs_training: bool = False
) -> MeasuredCorpus:
    """Load the held-out utterances of a checkpoint, or those of --data.

    Args:
        folder: gets rejected.csv.
        needs_training: load the corpus that the run was trained on in any case.

    Raises:
        DataError: a corpus is missing or cannot be used, nothing was held out, or too many rows of
            --data cannot be used.
        CheckpointError: the corpus or the held-out utterances have changed since.
    """
    if options.data is None:
        return load_held_out(run, folder)
    record = run.record
    config = for_evaluation(record.settings)
    known = record.vocabulary
    training = None
    if needs_training:
        training, _, known = load_training(run, config, folder)
    length_rule = length_rule_of(config)
    rows = read_corpus(
        options.data,
        config.data.language,
        options.audio_root,
        needs_text=length_rule is not None,
        columns=options.columns,
    )
    log.info("%-14s %s", "corpus form", rows.form)
    manifest, vocabulary, rejected = manifest_of(rows, config.data, length_rule, known)
    folder.mkdir(parents=True, exist_ok=True)
    all_rejected = [*rows.rejected, *rejected]
    limit = config.data.max_rejected
    report_rejected(all_rejected, [(rows, manifest)], limit, folder / "rejected.csv")
    # The checkpoint knows its speakers, so the corpus of the run may be missing.
    speakers = set(record.speakers) - {DEFAULT_SPEAKER}
    source = f"utterances of {options.data}"
    return MeasuredCorpus(manifest, vocabulary, config, training, speakers, source)


def load_held_out(run: TrainedRun, listing: Path) -> MeasuredCorpus:
    """Return the held-out utterances of a checkpoint; raises as `load_measured`.

    Args:
        listing: folder for files, if that of the run cannot be written to.
    """
    config = for_evaluation(run.record.settings)
    training, held_out, vocabulary = load_training(run, config, listing)
    if held_out is None:
        raise DataError(
            f"an evaluation needs utterances that the run was not trained on, but {run.path} held"
            f" none out (validation_fraction {config.data.validation_fraction}). Train with"
            " --validation-fraction or --val-data, or give another corpus with --data."
        )
    manifest = held_out.manifest
    record = run.record
    # A fork or merge has no corpus of its own yet.
    if record.corpus is not None and record.held_out not in (None, manifest.fingerprint):
        raise CheckpointError(
            f"the utterances that {run.checkpoint.path} was validated on have changed since."
            " Restore them, or give them as another corpus with --data."
        )
    speakers = speakers_of(training.manifest, vocabulary)
    return MeasuredCorpus(manifest, vocabulary, config, training, speakers)


def load_training(
    run: TrainedRun, config: Config, listing: Path
) -> tuple[Corpus, Corpus | None, Vocabulary]:
    """Load what a checkpoint was trained and validated on; see `load_corpora`.

    The vocabulary is that of both corpora: speakers who are only held out may be missing in that of
    the checkpoint.

    Raises:
        DataError: a corpus is missing.
        CheckpointError: the training corpus has changed since.
    """
    data = config.data
    # Without --train-data, training makes the demo corpus. An evaluation of a new one would say
    # nothing of the run.
    for path in filter(None, (data.train_data or str(DEMO_FOLDER), data.val_data, data.audio_root)):
        if not Path(path).exists():
            raise DataError(
                f"{run.path} was trained on {path}, which does not exist under {Path.cwd()}."
                " Restore it, or work in the folder in which the run was started."
            )
    # The run has the manifests of its corpus, which take minutes to make for a large one.
    folder = run.path if os.access(run.path, os.W_OK | os.X_OK) else listing
    known = run.record.inherited_vocabulary
    training, held_out, vocabulary = load_corpora(config, folder, length_rule_of(config), known)
    check_same_corpus(run.checkpoint, vocabulary, training.manifest.fingerprint)
    return training, held_out, vocabulary


def speakers_of(manifest: Manifest, vocabulary: Vocabulary) -> set[str]:
    """Return the names of the speakers of a manifest."""
    return {vocabulary.speakers[speaker] for speaker in np.unique(manifest.speaker)}


def for_evaluation(config: Config) -> Config:
    """Return the settings of a run to measure it with."""
    # How batches were read depended on the machine, and texts of a teacher are only trained on.
    return turned_off(config, OFF_IN_EVALUATION)


def load_utterances(
    network: XTTS, manifest: Manifest, config: Config, route: Route, folder: Path, count: int
) -> HeldOut:
    """Return at most `count` utterances, selected by the run's seed."""
    extractor = task_of(config).extractor(config, training=False)
    corpus = single_bucket_corpus(manifest, config)
    pipeline = held_out_pipeline(corpus, route, extractor, config, folder)
    # The same copies between devices as in training, so a batch lies where the network expects it.
    hand_over = compile_hand_over(network.BATCH_FIELDS, [route.model])
    utterances: list[Utterance] = []
    batches = []
    with pipeline.open_feed(Pass(epochs=1)) as feed:
        for ((planned, features, _),) in feed:
            (batch,) = hand_over([features])
            batches.append((batch, len(planned.rows)))
            arrays = {name: value.numpy() for name, value in batch.items()}
            utterances += [
                _utterance(manifest, arrays, number, row) for number, row in enumerate(planned.rows)
            ]
            if len(utterances) >= count:
                break
    return HeldOut(utterances[:count], batches)


def align_utterances(
    network: XTTS, held_out: HeldOut, device: str, throttle: Throttle = no_throttle
) -> list[Utterance]:
    """Return the utterances with the alignments of the network, which is on the device."""
    paths: list[np.ndarray] = []
    with tf.device(device):
        for batch, count in held_out.batches:
            throttle()
            paths += list(network.compiled_align(batch).numpy()[:count])
    rows = zip(held_out.utterances, paths, strict=False)
    return [replace(utterance, path=path[: len(utterance.mel)]) for utterance, path in rows]


def _utterance(
    manifest: Manifest, arrays: dict[str, np.ndarray], number: int, row: int
) -> Utterance:
    frames = int(arrays["frames"][number])
    return Utterance(
        id=manifest.ids[row],
        text=manifest.texts[row],
        language=int(manifest.language[row]),
        speaker=int(manifest.speaker[row]),
        tokens=arrays["tokens"][number, : arrays["token_count"][number]],
        wave=read_row(manifest, row),
        mel=arrays["mel"][number, :frames],
        reference=arrays["reference"][number, : arrays["reference_frames"][number]],
        path=np.zeros(0, np.int64),
    )


def read_row(manifest: Manifest, row: int) -> np.ndarray:
    """Read the wave of an utterance, float32 [samples]; raise DataError if it cannot be read."""
    return read_wave(manifest.paths[row], int(manifest.samples[row]))


def evenly_spaced(rows: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` evenly spaced rows: a corpus may be sorted by language."""
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)]


def output_folder(run: Path, checkpoint: Path, options: EvaluationOptions) -> Path:
    """Return --out, or else the folder of the run for this checkpoint and corpus.

    Raises:
        ConfigError: it is a file.
    """
    suffix = ""
    if options.data:
        # Several folders may be called `test`, and a folder may have several tables.
        data = Path(options.data).resolve()
        names = data.with_suffix("").parts[-3:] if data.is_file() else data.parts[-2:]
        suffix = "".join(f"-{name}" for name in names if name != data.anchor)
    folder = options.out or run / EVALUATION_FOLDER / f"{checkpoint.name}{suffix}"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} was given, but that is a file. Name a folder.")
    return folder
