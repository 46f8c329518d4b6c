"""The checkpoints to merge: read, weighted and checked for compatibility. No TensorFlow."""

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
from myxtts.training.runs import (
    audio_format_of,
    select_checkpoint,
    settings_of,
    vocabulary_of,
    weights_group,
)

TASK_SETTINGS = {  # by task: (section, setting) that features or weights depend on
    "tts": (("data", "reference_seconds"),),
    "asr": (("asr", "encoder"), ("asr", "subsampling")),
    "vocoder": (("vocoder", "discriminators"),),
}
FORCEABLE = (
    "speakers",
    "start",
)  # no weights depend on these, so --force allows inputs to differ in them


@dataclass(frozen=True, eq=False)
class MergeInput:
    """A checkpoint to merge.

    Attributes:
        metadata: its state.json.
        config: its settings.
    """

    checkpoint: Path
    metadata: dict[str, Any]
    config: Config

    @property
    def weights(self) -> tuple[Path, str]:
        """Checkpoint and group of the weights that inference uses."""
        return self.checkpoint, weights_group(self.metadata)

    @property
    def signature(self) -> dict[str, Any]:
        """What the arrays of the checkpoint depend on, by name. All inputs must have the same
        signature.
        """
        config, metadata = self.config, self.metadata
        task = config.model.task
        return {
            "task": task,
            "model_size": config.model.model_size,
            **{
                name: getattr(getattr(config, section), name)
                for section, name in TASK_SETTINGS[task]
            },
            "text_frontend": config.data.text_frontend,
            "audio_format": audio_format_of(metadata),
            "teacher": (metadata.get("teacher") or {"weights": "none"})["weights"],
            # The optimizer state covers the trained variables and, with mixed_float16, the loss
            # scale.
            "freeze": " ".join(sorted(config.training.freeze)) or "nothing",
            "precision": (
                "mixed_float16" if config.training.precision == "mixed_float16" else "another"
            ),
            **{name: metadata[name] for name in ("symbols", "languages", "speakers", "start")},
        }


def read_inputs(paths: Sequence[Path]) -> list[MergeInput]:
    """Read the inputs of a merge.

    Raises:
        CheckpointError: one of them cannot be read.
        ConfigError: there are not two or more different ones.
    """
    inputs = [read_input(path) for path in paths]
    resolved = [merge_input.checkpoint.resolve() for merge_input in inputs]
    if repeated := next((path for path in resolved if resolved.count(path) > 1), None):
        raise ConfigError(
            f"a merge needs different checkpoints, but {repeated} was given twice. Name each one"
            " once."
        )
    if len(inputs) < 2:
        raise ConfigError(
            f"a merge needs two or more checkpoints, but {len(inputs)} was given. Name at least"
            " two."
        )
    return inputs


def read_input(path: Path) -> MergeInput:
    """Read a checkpoint by its folder or by the folder of its run. Raises CheckpointError if it
    cannot be read.
    """
    is_checkpoint = path.is_dir() and (
        (path / "state.json").exists() or re.fullmatch(r"step-\d+", path.name)
    )
    checkpoint = path if is_checkpoint else select_checkpoint(path)
    metadata = read_metadata(checkpoint)
    config = settings_of(checkpoint, metadata)
    vocabulary_of(metadata)
    metadata["settings"] = config.model_dump(mode="json")
    return MergeInput(checkpoint, metadata, config)


def merge_weights(inputs: Sequence[MergeInput], given: Sequence[float] | None) -> list[float]:
    """Return the given weights, or else the seconds of audio that each input was trained on.

    Raises:
        CheckpointError: the seconds of audio are no weights.
        ConfigError: the given weights are no weights, or too few or too many.
    """
    if given is None:
        weights = [float(merge_input.metadata["audio_s"]) for merge_input in inputs]
        if not all(0 <= weight < math.inf for weight in weights):
            raise CheckpointError(
                "the state.json files say that the inputs were trained on"
                f" {' '.join(map(str, weights))} seconds of speech. Give --weights."
            )
        return weights
    if len(given) != len(inputs):
        raise ConfigError(
            f"--weights has {len(given)} numbers for {len(inputs)} checkpoints. Give one for each."
        )
    if not all(0 <= weight < math.inf for weight in given) or not 0 < sum(given) < math.inf:
        raise ConfigError(
            f"--weights {' '.join(map(str, given))} was given. Give numbers of 0 or more, not all"
            " of them 0."
        )
    return list(given)


def check_compatible(inputs: Sequence[MergeInput], force: bool) -> None:
    """Verify that all inputs have the same signature.

    Raises:
        CheckpointError: two inputs differ; names the first difference.
    """
    first, signature = inputs[0], inputs[0].signature
    for merge_input in inputs[1:]:
        values = merge_input.signature
        differences = (name for name in signature if signature[name] != values[name])
        if name := next((name for name in differences if not (force and name in FORCEABLE)), None):
            raise CheckpointError(
                f"{first.checkpoint} and {merge_input.checkpoint} cannot be merged:"
                f" {describe_difference(name, signature[name], values[name])}. Leave one of them"
                f" out{', or merge them anyway with --force' * (name in FORCEABLE)}."
            )


def describe_difference(name: str, first: Any, second: Any) -> str:
    """Return in words how two inputs differ."""
    if name == "start":
        return (
            f"they did not start from the same weights ({first[:12]}…, {second[:12]}…): their mean"
            " is rarely useful"
        )
    if not isinstance(first, list):
        return f"{name} is {first} in the first and {second} in the second"
    row, pair = next(
        (row, pair) for row, pair in enumerate(zip_longest(first, second), 1) if pair[0] != pair[1]
    )
    left, right = ("missing" if entry is None else repr(entry) for entry in pair)
    return (
        f"their {name} are not the same ({len(first)} and {len(second)}): number {row} is {left} in"
        f" the first and {right} in the second"
    )
