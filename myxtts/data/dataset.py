"""Load the training corpus and the validation corpus of a run."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from myxtts.config.schema import Config, DataConfig
from myxtts.data.batch_plan import Plan, bucket_bounds
from myxtts.data.demo_corpus import make_demo_corpus
from myxtts.data.language_check import check_languages, with_canonical_codes
from myxtts.data.manifest import LengthRule, Manifest, Vocabulary, build_manifest, report_rejected
from myxtts.data.metadata_file import RejectedRow, Rows, read_corpora
from myxtts.files import make_folder
from myxtts.text.frontend import symbols_of

DEMO_FOLDER = Path("data/demo")
HEADER_THREADS = 8  # more than cores, since they mostly wait for the disk

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """A manifest and the plan of its batches."""

    manifest: Manifest
    plan: Plan


def manifest_of(
    rows: Rows,
    data: DataConfig,
    length_rule: LengthRule,
    vocabulary: Vocabulary | None,
    *,
    grow: bool = False,
    cache: Path | None = None,
) -> tuple[Manifest, Vocabulary, list[RejectedRow]]:
    """Call `build_manifest` with the settings of a run."""
    if data.text_frontend == "phonemes":  # characters need no language, so that any name is one
        rows = with_canonical_codes(rows, vocabulary.languages if vocabulary else ())
    return build_manifest(
        rows,
        min_seconds=data.min_seconds,
        max_seconds=data.max_seconds,
        frontend=data.text_frontend,
        symbols_of=symbols_of,
        length_rule=length_rule,
        vocabulary=vocabulary,
        grow=grow,
        cache=cache,
        workers=HEADER_THREADS,
    )


def load_corpora(
    config: Config, folder: Path, length_rule: LengthRule, known: Vocabulary | None = None, replicas: int = 1
) -> tuple[Corpus, Corpus | None, Vocabulary]:
    """Load the training corpus and the validation corpus, if there is one, with a common vocabulary.

    Args:
        config: the settings of the run.
        folder: gets the cached manifests and rejected.csv.
        length_rule: utterances with fewer frames than it needs are rejected.
        known: vocabulary to extend, of the run that this one starts from.
        replicas: number of replicas that share each training step.

    Raises:
        DataError: the corpus cannot be used.
        ConfigError: the folder cannot be made.
    """
    data, seed, accumulation = config.data, config.training.seed, config.training.gradient_accumulation
    train_path = Path(data.train_data) if data.train_data is not None else ensure_demo_corpus()
    validation_path = Path(data.val_data) if data.val_data is not None else None
    train_rows, validation_rows, malformed = read_corpora(
        train_path, validation_path, data.language, data.validation_fraction, seed, audio_root_of(data)
    )
    if data.text_frontend == "phonemes":
        check_languages([train_rows, validation_rows], data.max_rejected)
    make_folder(folder, "--runs-dir")
    cache = folder / "manifest-train.npz"
    train, vocabulary, unusable = manifest_of(train_rows, data, length_rule, known, grow=True, cache=cache)
    cache = folder / "manifest-validation.npz"
    validation, vocabulary, unusable_validation = manifest_of(
        validation_rows, data, length_rule, vocabulary, cache=cache
    )
    report_rejected(
        [*malformed, *unusable, *unusable_validation],
        [(train_rows, train), (validation_rows, validation)],
        data.max_rejected,
        folder / "rejected.csv",
    )
    # For the step of one replica, so that shapes do not depend on the number of replicas.
    bounds = bucket_bounds(train.samples, data.buckets, 1 if data.batch_seconds else data.batch_size * accumulation)
    train_plan = make_plan(train, bounds, config, accumulation, replicas)
    if not len(validation):
        return Corpus(train, train_plan), None, vocabulary
    longest = bucket_bounds(validation.samples, 1)
    if longest[-1] > bounds[-1]:
        bounds = np.append(bounds, longest[-1])
    return Corpus(train, train_plan), Corpus(validation, make_plan(validation, bounds, config)), vocabulary


def corpus_folder(corpus: str | Path | None) -> Path:
    """Return the folder of a corpus that is given by its folder or its metadata file; the demo corpus by default."""
    path = Path(corpus or DEMO_FOLDER)
    return path if path.is_dir() else path.parent


def audio_root_of(data: DataConfig) -> Path | None:
    return Path(data.audio_root) if data.audio_root is not None else None


def make_plan(manifest: Manifest, bounds: np.ndarray, config: Config, accumulation: int = 1, replicas: int = 1) -> Plan:
    return Plan(
        manifest.samples,
        manifest.token_counts,
        manifest.speaker,
        bounds=bounds,
        batch_size=config.data.batch_size,
        batch_seconds=config.data.batch_seconds,
        seed=config.training.seed,
        accumulation=accumulation,
        replicas=replicas,
    )


def ensure_demo_corpus() -> Path:
    """Return the demo corpus' folder; make the corpus if it is missing."""
    if not (DEMO_FOLDER / "metadata.csv").exists():
        log.info("no --train-data: making the demo corpus in %s with espeak-ng, which takes a few seconds", DEMO_FOLDER)
        make_demo_corpus(DEMO_FOLDER, utterances=400, languages=["en"], speakers=1, seed=0)
    log.info("no --train-data: training on the demo corpus in %s", DEMO_FOLDER)
    return DEMO_FOLDER
