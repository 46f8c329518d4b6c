"""The checkpoints that are to be merged: read, weighed, and held against each other."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from myxtts.config.schema import Config
from myxtts.errors import CheckpointError, ConfigError
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.select_checkpoint import select_checkpoint, settings_of, vocabulary_of, weights_file

KINDS = {  # what is used of a state.json
    **dict.fromkeys(("symbols", "languages", "speakers"), list),
    **{"settings": dict, "start": str, "step": int, "audio_s": (int, float)},
}
FORCED = ("speakers", "start")  # no weights go by these, so that parts that differ in them can be merged


@dataclass(frozen=True, eq=False)
class MergeInput:
    """A checkpoint that is to be merged.

    Attributes:
        about: its state.json.
        config: its settings.
    """

    checkpoint: Path
    metadata: dict[str, Any]
    config: Config

    @property
    def used(self) -> Path:
        """The archive of the weights that it is used with."""
        return weights_file(self.checkpoint, self.metadata)

    @property
    def meaning(self) -> dict[str, Any]:
        """By name, what its arrays depend on; parts have to have the same."""
        config, metadata = self.config, self.metadata
        of_task = {
            "tts": {"reference_seconds": config.data.reference_seconds},
            "asr": {"encoder": config.asr.encoder, "subsampling": config.asr.subsampling},
        }
        return {
            "task": config.model.task,
            "model_size": config.model.model_size,
            **of_task[config.model.task],
            "text_frontend": config.data.text_frontend,
            # The optimizer has moments of what is trained, and with mixed_float16 the scale of the loss.
            "freeze": " ".join(sorted(config.training.freeze)) or "nothing",
            "precision": "mixed_float16" if config.training.precision == "mixed_float16" else "another",
            **{name: metadata[name] for name in ("symbols", "languages", "speakers", "start")},
        }


def read_inputs(paths: Sequence[Path]) -> list[MergeInput]:
    """Raises CheckpointError where one cannot be read, and ConfigError where there are not two different ones."""
    parts = [read_input(path) for path in paths]
    places = [part.checkpoint.resolve() for part in parts]
    if len(parts) < 2 or len(set(places)) < len(places):
        twice = next((part.checkpoint for part, at in zip(parts, places, strict=True) if places.count(at) > 1), None)
        found = f"{twice} was given twice" if twice else f"{len(parts)} was given"
        raise ConfigError(f"A merge is of two or more different checkpoints, but {found}. Name each part once.")
    return parts


def read_input(path: Path) -> MergeInput:
    """A part by the folder of its run or checkpoint."""
    is_checkpoint = path.is_dir() and ((path / "state.json").exists() or re.fullmatch(r"step-\d+", path.name))
    checkpoint = path if is_checkpoint else select_checkpoint(path)
    metadata = read_metadata(checkpoint)
    for name, kind in KINDS.items():
        if not isinstance(metadata.get(name), kind):
            raise CheckpointError(
                f"{checkpoint} was to be merged, but its state.json has no usable '{name}'. Give a checkpoint of a run."
            )
    config = settings_of(checkpoint, metadata)
    vocabulary_of(metadata)
    return MergeInput(checkpoint, metadata | {"settings": config.model_dump(mode="json")}, config)


def given_weights(parts: Sequence[MergeInput], given: Sequence[float] | None) -> list[float]:
    """Those that are given, or the audio seconds of each part. Raises ConfigError where they make no mean."""
    if given is None:
        weights = [float(part.metadata["audio_s"]) for part in parts]
        if not all(0 <= weight < math.inf for weight in weights):
            raise CheckpointError(
                f"The parts have {' '.join(map(str, weights))} seconds of speech by their state.json. Give --weights."
            )
        return weights
    if len(given) != len(parts):
        raise ConfigError(f"--weights has {len(given)} numbers for {len(parts)} checkpoints. Give one for each.")
    if not all(0 <= weight < math.inf for weight in given) or not 0 < sum(given) < math.inf:
        raise ConfigError(
            f"--weights {' '.join(map(str, given))} was given. Give numbers of 0 or more, not all of them 0."
        )
    return list(given)


def check_compatible(parts: Sequence[MergeInput], force: bool) -> None:
    """Raises CheckpointError where the arrays of two parts do not mean the same; names the first difference."""
    first, meaning = parts[0], parts[0].meaning
    for part in parts[1:]:
        other = part.meaning
        differing = (name for name in meaning if meaning[name] != other[name] and not (force and name in FORCED))
        if name := next(differing, None):
            what, instead = "Leave one of them out", ", or merge them all the same by --force" * (name in FORCED)
            raise CheckpointError(
                f"{first.checkpoint} and {part.checkpoint} were to be merged, but "
                f"{difference(name, meaning[name], other[name])}. {what}{instead}."
            )


def difference(name: str, one: Any, other: Any) -> str:
    """What tells two parts apart, in words."""
    if name == "start":
        return f"they did not begin with the same weights ({one[:12]}…, {other[:12]}…): their mean is seldom of any use"
    if not isinstance(one, list):
        return f"{name} is {one} in the first and {other} in the second"
    row, pair = next((row, pair) for row, pair in enumerate(zip_longest(one, other), 1) if pair[0] != pair[1])
    left, right = ("missing" if entry is None else repr(entry) for entry in pair)
    return (
        f"their {name} are not the same ({len(one)} and {len(other)}): number {row} is {left} in the first and {right} "
        "in the second"
    )
