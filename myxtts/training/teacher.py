"""--teacher: the frozen voice that the producer runs, decided before TensorFlow's devices are set
up.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from myxtts.audio.format import AUDIO_FORMAT
from myxtts.config.schema import Config
from myxtts.data.manifest import Vocabulary
from myxtts.errors import CheckpointError
from myxtts.training.checkpoint_files import checkpoint_of, digest_of, read_arrays, read_metadata
from myxtts.training.select_checkpoint import (
    audio_format_of,
    check_task,
    select_checkpoint,
    settings_of,
    vocabulary_of,
    weights_group,
)


@dataclass(frozen=True, eq=False)
class Teacher:
    """A checkpoint of a voice.

    Attributes:
        run: folder of its run, as --teacher gives it.
        digest: SHA-256 of the weights to use.
        parameters: number of these weights.
    """

    run: Path
    checkpoint: Path
    metadata: dict[str, Any]
    digest: str
    parameters: int

    @property
    def settings(self) -> Config:
        return settings_of(self.checkpoint, self.metadata)

    @property
    def vocabulary(self) -> Vocabulary:
        """Symbols and languages that the teacher knows: the run has the same, and no others."""
        return replace(vocabulary_of(self.metadata), speakers=())

    def record(self) -> dict[str, Any]:
        """Return what the run's checkpoints record of the teacher."""
        return {"run": str(self.run), "step": self.metadata["step"], "weights": self.digest}


def read_teacher(config: Config, own_checkpoint: Path | None) -> Teacher | None:
    """Return the teacher that the settings name, if they name one.

    A run that resumes takes the checkpoint that it has had, also if the teacher's run has a better
    one by now.

    Args:
        own_checkpoint: from which the run resumes.

    Raises:
        CheckpointError: the teacher is missing, damaged, no voice or of another audio format, or it
            is not the one that the resumed run has had.
    """
    recorded = read_metadata(own_checkpoint).get("teacher") if own_checkpoint else None
    path = config.teacher.teacher
    if own_checkpoint and (recorded is None) != (path is None):
        had, given = (
            (f"--teacher {recorded['run']}", "no --teacher")
            if recorded
            else ("none", f"--teacher {path}")
        )
        raise CheckpointError(
            f"{given} was given, but {own_checkpoint} was trained with {had}, and this cannot"
            " change within a run. Take all settings from the run with --config, or start another"
            " run with --run."
        )
    if path is None:
        return None
    run = Path(path)
    checkpoint = select_checkpoint(run)
    if recorded:
        checkpoint = checkpoint_of(checkpoint.parent, recorded["step"])
    if not checkpoint.exists():
        raise CheckpointError(
            f"--teacher {run} was given, but it has no {checkpoint.name}, with which"
            f" {own_checkpoint} was trained. Restore that checkpoint, or start another run with"
            " --run."
        )
    metadata = read_metadata(checkpoint)
    check_task(checkpoint, settings_of(checkpoint, metadata).model.task, "tts")
    if audio_format_of(metadata) != AUDIO_FORMAT:
        raise CheckpointError(
            f"--teacher {run} was given, but {checkpoint} was trained on mels of another format"
            " than this version makes. Train it again with this version."
        )
    weights = read_arrays(checkpoint, weights_group(metadata))
    digest = digest_of(weights)
    if recorded and recorded["weights"] != digest:
        raise CheckpointError(
            f"{checkpoint} has other weights than the teacher of {own_checkpoint}. Restore that"
            " teacher, or start another run with --run."
        )
    return Teacher(run, checkpoint, metadata, digest, sum(array.size for array in weights.values()))
