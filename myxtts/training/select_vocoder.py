"""The vocoder of a voice: the requested one, or the one that its run names, and whether it fits. No
TensorFlow.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.config.schema import ModelConfig
from myxtts.errors import CheckpointError, ConfigError
from myxtts.training.checkpoint_files import latest, read_metadata
from myxtts.training.missing_run import describe_missing
from myxtts.training.select_checkpoint import audio_format_of, select_checkpoint, settings_of

GRIFFIN_LIM = "griffin-lim"  # in place of a run folder
_ADVICE = (
    f"Give the run of a vocoder with --vocoder, or use Griffin-Lim with --vocoder {GRIFFIN_LIM}."
)


class VocoderRun(NamedTuple):
    """A checkpoint of a vocoder, with its metadata; `run` is the folder of its run as it
    was given.
    """

    run: Path
    checkpoint: Path
    metadata: dict[str, Any]


class VocoderChoice(NamedTuple):
    """The vocoder to load.

    Attributes:
        trained: None is Griffin-Lim.
        iterations: of Griffin-Lim; None is its default.
        note: what the log adds to the description.
    """

    trained: VocoderRun | None = None
    iterations: int | None = None
    note: str = ""


def select_vocoder(
    voice: Path,
    metadata: Mapping[str, Any],
    requested: str | Path | None = None,
    iterations: int | None = None,
) -> VocoderChoice:
    """Choose the vocoder of a voice: the requested one, or else the one that its settings name, or
    else Griffin-Lim.

    Args:
        voice: folder of the voice's run.
        metadata: `settings` and `audio_format` of the voice, as in its checkpoints.
        requested: folder of a vocoder's run, relative to the working folder, or "griffin-lim".
        iterations: requested iterations of Griffin-Lim.

    Raises:
        CheckpointError: the run is missing, has no checkpoint, is no vocoder, or its audio format
            is not the voice's.
        ConfigError: iterations were requested for another vocoder than Griffin-Lim.
    """
    model = ModelConfig(**metadata["settings"]["model"])
    vocoder = model.vocoder if requested is None else str(requested)
    if vocoder is None or vocoder == GRIFFIN_LIM:
        return VocoderChoice(
            iterations=iterations, note="" if vocoder else " (no --vocoder was given)"
        )
    source = (
        f"{voice} has the setting vocoder {vocoder}"
        if requested is None
        else f"--vocoder {vocoder} was given"
    )
    if iterations is not None:
        raise ConfigError(
            f"--iterations {iterations} was given, which is for Griffin-Lim, but {source}. Leave"
            f" out --iterations, or add --vocoder {GRIFFIN_LIM}."
        )
    run = Path(vocoder)
    if latest(run / "checkpoints") is None:
        raise CheckpointError(f"{source}, but {_describe_missing(run, voice)}")
    trained = read_vocoder_run(run)
    task = settings_of(trained.checkpoint, trained.metadata).model.task
    if task != "vocoder":
        raise CheckpointError(
            f"{source}, but that run was trained with --task {task}, and is no vocoder. {_ADVICE}"
        )
    _check_format(source, audio_format_of(trained.metadata), audio_format_of(metadata))
    return VocoderChoice(trained)


def read_vocoder_run(run: Path, checkpoint: str | None = None) -> VocoderRun:
    """Return the named checkpoint of a run, by default its best; raises CheckpointError as
    `select_checkpoint` does.
    """
    selected = select_checkpoint(run, checkpoint)
    return VocoderRun(run, selected, read_metadata(selected))


def _check_format(source: str, of_vocoder: dict[str, Any], of_voice: dict[str, Any]) -> None:
    names = [name for name in of_voice | of_vocoder if of_vocoder.get(name) != of_voice.get(name)]
    if names:
        takes, makes = (
            ", ".join(f"{name} {values.get(name)}" for name in names)
            for values in (of_vocoder, of_voice)
        )
        raise CheckpointError(
            f"{source}, which takes mels with {takes}, but the voice makes mels with {makes}."
            f" {_ADVICE}"
        )


def _describe_missing(run: Path, voice: Path) -> str:
    beside = voice.parent / run.name
    if not run.is_absolute() and latest(beside / "checkpoints"):
        return (
            f"there is no such run in the working folder {Path.cwd()}. Did you mean --vocoder"
            f" {beside}? Paths of runs are relative to the working folder."
        )
    return f"{describe_missing(run)} Griffin-Lim needs no run: --vocoder {GRIFFIN_LIM}."
