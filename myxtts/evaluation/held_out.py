"""The utterances that a run is measured on, with what its model finds in them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.config.schema import Config
from myxtts.data.audio_file import read_wave
from myxtts.data.batch_plan import bucket_bounds
from myxtts.data.dataset import Corpus, load_corpora, make_plan, manifest_of
from myxtts.data.manifest import Manifest, Vocabulary, report_rejected
from myxtts.data.metadata_file import read_corpus
from myxtts.data.pipeline import Pipeline
from myxtts.data.plan_iterator import Position
from myxtts.errors import DataError
from myxtts.models.xtts import XTTS
from myxtts.placement.routes import Route
from myxtts.tasks.length_rules import length_rule_of
from myxtts.tasks.registry import task_of
from myxtts.training.init_from import inherited_vocabulary
from myxtts.training.run_folder import check_same_corpus
from myxtts.training.select_checkpoint import settings_of, vocabulary_of
from myxtts.training.setup import run_metadata


@dataclass(frozen=True, eq=False)
class Utterance:
    """A recording that was not trained on.

    Attributes:
        id, text: of the corpus.
        language, speaker: indices in the run's tables.
        tokens: int32 [N].
        wave: float32 [samples] in [-1, 1].
        mel: float32 [frames, 80].
        reference: float32 [reference frames, 80], another utterance of the speaker where there is one.
        path: int32 [frames], the token that the model aligned each frame to.
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


def load_again(
    checkpoint: Path, metadata: dict[str, Any], run: Path, needs_held_out: bool = True
) -> tuple[Config, Corpus, Corpus | None]:
    """The settings, the training corpus and the held-out corpus that a checkpoint was made with.

    Raises:
        DataError: the corpus is gone, or nothing was held out of it where that is needed.
        CheckpointError: it has changed since.
    """
    config = settings_of(checkpoint, metadata)
    # How its batches were read was a matter of the machine.
    data = config.data.model_copy(update={"data_service": None, "cache_dataset": False})
    config = config.model_copy(update={"data": data})
    for path in filter(None, (data.train_data, data.val_data, data.audio_root)):
        if not Path(path).exists():
            raise DataError(
                f"{run} was trained on {path}, which is not found from {Path.cwd()}. Put it back, or work in "
                "the folder in which the run was started."
            )
    known = inherited_vocabulary(metadata)
    corpus, held_out, vocabulary = load_corpora(config, run, length_rule_of(config), known)
    if needs_held_out and held_out is None:
        raise DataError(
            f"{run} is to be measured on utterances that it was not trained on, but none was held out "
            f"(validation_fraction {data.validation_fraction}). Train with --validation-fraction or --val-data, or "
            "give other recordings by --data."
        )
    check_same_corpus(checkpoint, run_metadata(config, corpus, vocabulary, metadata["ancestor"], metadata["start"]))
    return config, corpus, held_out


def other_recordings(path: Path, config: Config, metadata: dict[str, Any], folder: Path) -> tuple[Manifest, Vocabulary]:
    """The recordings of another corpus, and the tables of a run with speakers that it never heard behind its own.

    Args:
        path: as of --train-data.
        folder: gets rejected.csv.

    Raises:
        DataError: the corpus cannot be used, or too many of its rows.
    """
    data = config.data
    rows = read_corpus(path, data.language)
    manifest, vocabulary, rejected = manifest_of(rows, config.data, length_rule_of(config), vocabulary_of(metadata))
    folder.mkdir(parents=True, exist_ok=True)
    report_rejected([*rows.rejected, *rejected], [(rows, manifest)], data.max_rejected, folder / "rejected.csv")
    return manifest, vocabulary


def read_utterances(
    network: XTTS, manifest: Manifest, config: Config, route: Route, folder: Path, most: int
) -> list[Utterance]:
    """At most `most` utterances, drawn by the run's seed and aligned by the network."""
    data, seed = config.data, config.training.seed
    # One bucket: XLA compiles the search once.
    plan = make_plan(manifest, bucket_bounds(manifest.samples, 1), config)
    extractor = task_of(config).extractor(config, training=False)
    pipeline = Pipeline(Corpus(manifest, plan), [route], extractor, data, seed=seed, cache_folder=folder)
    found: list[Utterance] = []
    with pipeline.open_feed(Position(), epochs=1) as feed:
        for ((planned, batch, _),) in feed:
            with tf.device(route.model):
                _, outputs = network(batch, training=False)
            arrays = {name: value.numpy() for name, value in (batch | {"path": outputs["path"]}).items()}
            found += [_utterance(manifest, arrays, number, row) for number, row in enumerate(planned.rows)]
            if len(found) >= most:
                break
    return found[:most]


def _utterance(manifest: Manifest, arrays: dict[str, np.ndarray], number: int, row: int) -> Utterance:
    frames = int(arrays["frames"][number])
    return Utterance(
        id=manifest.ids[row],
        text=manifest.texts[row],
        language=int(manifest.language[row]),
        speaker=int(manifest.speaker[row]),
        tokens=arrays["tokens"][number, : arrays["token_count"][number]],
        wave=wave_of(manifest, row),
        mel=arrays["mel"][number, :frames],
        reference=arrays["reference"][number, : arrays["reference_frames"][number]],
        path=arrays["path"][number, :frames],
    )


def wave_of(manifest: Manifest, row: int) -> np.ndarray:
    """float32 [samples] in [-1, 1]. Raises DataError where the file cannot be read."""
    return read_wave(manifest.paths[row], int(manifest.samples[row]))


def natural_speech(manifest: Manifest, rows: np.ndarray, each: int) -> tuple[list[np.ndarray], np.ndarray]:
    """At most `each` waves of every speaker of these rows, spread over them, and int [waves], their speakers."""
    chosen = [spread(rows[manifest.speaker[rows] == one], each) for one in np.unique(manifest.speaker[rows])]
    chosen = np.concatenate([np.zeros(0, int), *chosen])
    return [wave_of(manifest, row) for row in chosen], manifest.speaker[chosen]


def spread(rows: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the rows, evenly spaced: a corpus may be ordered by language."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)]
