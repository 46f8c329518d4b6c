"""Where a run starts from, decided before the corpus is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.audio.format import AUDIO_FORMAT
from myxtts.config.checks import check_worker_count
from myxtts.config.schema import Config
from myxtts.data.dataset import DEMO_FOLDER
from myxtts.data.manifest import Vocabulary
from myxtts.distributed.cluster import Cluster
from myxtts.errors import ConfigError
from myxtts.training.checkpoint_files import latest, put_back_former, read_metadata
from myxtts.training.inherited_settings import inherit_settings, taught_settings
from myxtts.training.init_from import (
    Pretrained,
    check_freeze,
    inherited_vocabulary,
    read_pretrained,
)
from myxtts.training.run_folder import RunFolder, check_same_settings
from myxtts.training.select_checkpoint import settings_of
from myxtts.training.select_vocoder import select_vocoder
from myxtts.training.teacher import Teacher, read_teacher

# Settings that may differ between the workers of a job: paths, and how batches are read.
PER_MACHINE = {
    *(
        "train_data",
        "val_data",
        "audio_root",
        "num_workers",
        "use_tf_native_loading",
        "data_service",
    ),
    *("buffer_size", "prefetch_buffer_size", "cache_dataset", "model_start_delay"),
}


@dataclass(frozen=True)
class Start:
    """The source of a run's first weights: its own checkpoint, a pretrained run, or the seed if
    there is neither.

    Attributes:
        vocabulary: rows that the run's vocabulary begins with.
        ancestor: what the run's checkpoints record of the pretrained run.
        digest: of the run's first weights, if it has a checkpoint.
        teacher: the frozen voice that makes part of the features.
    """

    checkpoint: Path | None = None
    pretrained: Pretrained | None = None
    vocabulary: Vocabulary | None = None
    ancestor: dict[str, Any] | None = None
    digest: str | None = None
    teacher: Teacher | None = None


def resolve_start(config: Config, folder: RunFolder) -> tuple[Config, Start]:
    """Return the settings, with those that the weights of a pretrained run fix, and the start of
    the run.

    Reads no corpus, so that a mistake is found at once; and no pretrained run if the run has a
    checkpoint of its own.

    Raises:
        ConfigError, CheckpointError: the settings do not fit the checkpoint, the pretrained run or
            the teacher, or the vocoder cannot be used.
    """
    select_vocoder(
        folder.path, {"settings": config.model_dump(mode="json"), "audio_format": AUDIO_FORMAT}
    )
    put_back_former(folder.checkpoints)
    checkpoint = latest(folder.checkpoints) if config.run.resume else None
    teacher = read_teacher(config, checkpoint)
    if teacher is not None:
        config = taught_settings(config, teacher.run, teacher.settings)
    init_from = config.training.init_from
    pretrained = None
    if init_from is not None:
        pretrained = None if checkpoint else read_pretrained(Path(init_from), folder.path)
        weights = pretrained.checkpoint if pretrained else checkpoint
        assert weights is not None  # one of the two is there
        config = inherit_settings(config, weights)
    if checkpoint is None:
        check_freeze(config)
        known = teacher or pretrained
        vocabulary, ancestor = (
            known.vocabulary if known else None,
            pretrained.ancestor() if pretrained else None,
        )
        return config, Start(None, pretrained, vocabulary, ancestor, teacher=teacher)
    metadata = read_metadata(checkpoint)
    check_same_settings(checkpoint, settings_of(checkpoint, metadata), config)
    check_freeze(config)
    vocabulary = inherited_vocabulary(metadata)
    return config, Start(
        checkpoint, None, vocabulary, metadata["ancestor"], metadata["start"], teacher
    )


def shared_settings(config: Config, start: Start) -> dict[str, str]:
    """Return what all workers of a job must have in common: the settings that a step depends on,
    and the start.
    """
    excluded: dict[str, Any] = {
        "placement": True,
        "data": PER_MACHINE,
        "model": {"vocoder"},
        "teacher": {"teacher", "texts"},
        "training": {"init_from"},
        "run": {"runs_dir"},
    }
    sections = config.model_dump(mode="json", exclude=excluded)
    names = ((section, name) for section, settings in sections.items() for name in settings)
    settings = {f"{section}.{name}": str(sections[section][name]) for section, name in names}
    checkpoint = start.checkpoint.name if start.checkpoint else "none"
    return settings | {
        "checkpoint": checkpoint,
        "teacher": start.teacher.digest if start.teacher else "none",
    }


def check_workers_settings(config: Config, cluster: Cluster | None) -> None:
    """Raise ConfigError where several workers cannot do what the settings ask for."""
    if cluster is not None and config.data.train_data is None and not DEMO_FOLDER.exists():
        raise ConfigError(
            f"{cluster.count} workers were started without --train-data, and there is no"
            f" {DEMO_FOLDER}, which a single process must make. Run `myxtts corpus --out"
            f" {DEMO_FOLDER}` on every host first, or give a corpus."
        )
    if cluster is not None:
        check_worker_count(config, cluster.count)
