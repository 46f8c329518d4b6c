"""Merging: one run with the mean weights of several runs that started from the same weights.

By default each input is weighted by the audio it was trained on, as in federated averaging (McMahan
et al. 2017). Averaging weights relies on the common start: from there, the runs mostly stay in one
basin of the loss (Frankle et al. 2020).
"""

import logging
import math
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from myxtts.config.checks import check_settings
from myxtts.config.load import check_storable, dump
from myxtts.config.schema import Config, LocalSGDConfig, RunConfig
from myxtts.data.dataset import audio_root_of, manifest_of
from myxtts.data.manifest import Manifest, report_rejected
from myxtts.data.metadata_file import read_corpus
from myxtts.errors import CheckpointError, ConfigError, DataError
from myxtts.files import fsync_folder, partial_folder_of, write_whole
from myxtts.local_sgd.averaging import normalised, weighted_mean
from myxtts.tasks.length_rules import length_rule_of
from myxtts.training.checkpoint_files import (
    checkpoint_of,
    digest_of,
    groups_of,
    opened_arrays,
    read_metadata,
    update_metadata,
    write_checkpoint,
)
from myxtts.training.runs import (
    audio_format_of,
    select_checkpoint,
    settings_of,
    vocabulary_of,
    weights_group,
)

log = logging.getLogger(__name__)


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


LOW_COSINE = 0.5  # below this cosine, layers have little in common


class LayerDistance(NamedTuple):
    """The largest difference between any two checkpoints in one layer.

    Attributes:
        cosine: cosine similarity, the lowest of all pairs.
        distance: Euclidean distance relative to the larger norm, the largest of all pairs.
    """

    cosine: float
    distance: float


def layer_distances(groups: Sequence[tuple[Path, str]]) -> dict[str, LayerDistance]:
    """Return the distance of each layer, holding one variable of each checkpoint in memory at a
    time.

    A layer is the set of variables whose names share the first two parts. Integers count as equal.

    Args:
        groups: checkpoint and group of arrays; all have the same names, shapes and types.
    """
    pairs = list(combinations(range(len(groups)), 2))
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((len(pairs), 4)))
    with ExitStack() as opened:
        contents = [opened.enter_context(opened_arrays(*group)) for group in groups]
        for name in contents[0]:
            sums["/".join(name.split("/")[:2])] += _pair_products(
                [arrays[name] for arrays in contents], pairs
            )
    return {layer: _layer_distance(products) for layer, products in sums.items()}


def _pair_products(arrays: Sequence[np.ndarray], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return `_products` of each pair, float64 [pairs, 4]; zeros for integers."""
    if not np.issubdtype(arrays[0].dtype, np.floating):
        return np.zeros((len(pairs), 4))
    return np.array([_products(arrays[left], arrays[right]) for left, right in pairs])


def _products(left: np.ndarray, right: np.ndarray) -> list[float]:
    """Return the inner product, both squared norms and the squared norm of the difference."""
    x, y = left.astype(np.float64).ravel(), right.astype(np.float64).ravel()
    products = [float(x @ y), float(x @ x), float(y @ y)]
    x -= y
    return [*products, float(x @ x)]


def _layer_distance(products: np.ndarray) -> LayerDistance:
    """Return the distance by the sums of `_products`, [pairs, 4].

    Two layers of zeros have cosine 1; a layer of zeros and another layer have cosine 0.
    """
    cosines, distances = [], []
    for inner, x_squared, y_squared, squared in products.tolist():
        norms = math.sqrt(x_squared) * math.sqrt(y_squared)
        cosines.append(inner / norms if norms else float(squared == 0.0))
        distances.append(math.sqrt(squared / max(x_squared, y_squared)) if squared else 0.0)
    return LayerDistance(min(cosines), max(distances))


def layer_table(layers: Mapping[str, LayerDistance]) -> str:
    """Return a Markdown table, followed by the names of the layers with a low cosine."""
    lines = ["| layer | cosine, lowest | distance, largest |", "|---|---|---|"]
    lines += [
        f"| {layer} | {cosine:.4f} | {distance:.4f} |"
        for layer, (cosine, distance) in layers.items()
    ]
    if low := [layer for layer, (cosine, _) in layers.items() if cosine < LOW_COSINE]:
        names = ", ".join(low)
        lines += [
            "",
            f"- the inputs have little in common (cosine below {LOW_COSINE}) in {names}: try"
            " --val-data",
        ]
    return "\n".join([*lines, ""])


class CorpusOverrides(NamedTuple):
    """Corpora of the merged run in place of its first input's corpora, as their flags take them."""

    train_data: str | None = None
    val_data: str | None = None
    audio_root: str | None = None


def merge(
    checkpoints: Sequence[Path],
    output: Path,
    corpora: CorpusOverrides,
    weights: Sequence[float] | None = None,
    force: bool = False,
) -> bool:
    """Write a run with the mean weights of some checkpoints; with validation data, measure it.

    Args:
        checkpoints: folders of runs, which stand for their best or newest checkpoint, or of
            checkpoints; 2 or more.
        output: folder of the new run.
        corpora: with `val_data`, all inputs and their mean are measured on it.
        weights: of each input, 0 or more; by default the audio that it was trained on.
        force: also merge inputs with different speakers or initial weights.

    Returns:
        whether the run has the mean weights. If the best input was measured to be better, the run
        has its weights.

    Raises:
        UserError: an input, a corpus or the output cannot be used; nothing is written then.
    """
    for checkpoint in checkpoints:
        check_storable(str(checkpoint), "--checkpoints")
    for name, path in {"output": output, **corpora._asdict()}.items():
        check_storable(str(path), f"--{name.replace('_', '-')}")
    check_output(output)
    inputs = read_inputs(checkpoints)
    weights = merge_weights(inputs, weights)
    coefficients = normalised(weights)
    check_compatible(inputs, force)
    configs = [merged_config(source.config, output, corpora) for source in inputs]
    check_settings(configs[0])
    check_corpora(configs[0], corpora)
    held_out = (
        read_held_out(configs[0], inputs[0], output) if corpora.val_data is not None else None
    )
    log_inputs(inputs, coefficients, configs)
    with new_run_folder(output) as folder:
        write_whole(folder / "config.yaml", dump(configs[0]).encode())
        checkpoint = write_mean(folder, inputs, weights, configs[0], output)
        print(layer_table(layer_distances([source.weights for source in inputs])))
        better = None
        if held_out is not None:
            better = find_better_input(inputs, coefficients, held_out, configs[0], folder)
        if better is not None:
            shutil.rmtree(folder / "checkpoints")
            one_hot = [float(index == better) for index in range(len(inputs))]
            checkpoint = write_mean(
                folder, inputs, one_hot, configs[0], output, kept_input=inputs[better]
            )
    log.info("%-14s %s", "wrote", output / checkpoint.relative_to(folder))
    return better is None


def check_output(output: Path) -> None:
    """Raise ConfigError if the output exists or its name cannot be the name of a run."""
    try:
        RunConfig(run=output.name)
    except ValidationError as error:
        raise ConfigError(
            f"--output {output} was given, but the name of a run has only letters, digits and . _"
            " -, and starts with a letter or digit. Give another name."
        ) from error
    if os.path.lexists(output):
        raise ConfigError(
            f"--output {output} was given, but it exists already. Give another name, or remove it."
        )


def merged_config(config: Config, output: Path, corpora: CorpusOverrides) -> Config:
    """Return the settings of the merged run from those of an input.

    The merged run can continue like the input, but as a single job and to the end. It keeps
    `freeze`, which the optimizer state depends on, and `init_from`, without which `freeze` is
    rejected; the pretrained run is not read again.
    """
    given = {name: value for name, value in corpora._asdict().items() if value is not None}
    changes = {
        "data": config.data.model_copy(update=given),
        "training": config.training.model_copy(update={"stop_at_step": None}),
        "run": config.run.model_copy(
            update={"run": output.name, "runs_dir": str(output.parent), "resume": False}
        ),
        "local_sgd": LocalSGDConfig(),
    }
    return config.model_copy(update=changes)


def check_corpora(config: Config, corpora: CorpusOverrides) -> None:
    """Raise DataError if a given corpus or folder cannot be read, before any time is spent on
    merging.
    """
    if corpora.audio_root is not None and not Path(corpora.audio_root).is_dir():
        raise DataError(
            f"--audio-root {corpora.audio_root} was given, but there is no such folder. Give the"
            " folder of the audio."
        )
    if corpora.train_data is not None:
        root, needs_text = audio_root_of(config.data), length_rule_of(config) is not None
        read_corpus(
            Path(corpora.train_data),
            config.data.language,
            root,
            needs_text,
            columns=config.data.columns,
        )


def read_held_out(config: Config, first: MergeInput, output: Path) -> Manifest:
    """Read the utterances that the merged run validates on; unusable rows are listed in a file
    beside the output.

    Raises:
        DataError: they cannot be used.
    """
    path, data, length_rule = Path(str(config.data.val_data)), config.data, length_rule_of(config)
    root, needs_text = audio_root_of(data), length_rule is not None
    rows = read_corpus(
        path, data.language, root, needs_text, preferred="metadata_eval.csv", columns=data.columns
    )
    log.info("%-14s %s", "corpus form", rows.form)
    manifest, _, rejected = manifest_of(rows, data, length_rule, vocabulary_of(first.metadata))
    if unusable := [*rows.rejected, *rejected]:
        output.parent.mkdir(parents=True, exist_ok=True)
        listing = output.with_name(f"{output.name}-rejected.csv")
        report_rejected(unusable, [(rows, manifest)], data.max_rejected, listing)
    return manifest


def log_inputs(
    inputs: Sequence[MergeInput], coefficients: Sequence[float], configs: Sequence[Config]
) -> None:
    """Log the inputs, and the settings in which they differ; the merged run takes those of the
    first input.
    """
    for source, coefficient in zip(inputs, coefficients, strict=True):
        step, audio_s = source.metadata["step"], source.metadata["audio_s"]
        details = f"step {step}, {audio_s:.1f} s of speech, coefficient {coefficient:.4f}"
        log.info("%-14s %s: %s", "input", source.checkpoint, details)
    documents = [config.model_dump(mode="json") for config in configs]
    for section, settings in documents[0].items():
        for name, first in settings.items():
            values = [document[section][name] for document in documents]
            if any(value != first for value in values):
                log.info(
                    "%-14s %s: %s; the merged run has %s",
                    "difference",
                    name,
                    ", ".join(map(str, values)),
                    first,
                )


@contextmanager
def new_run_folder(output: Path) -> Iterator[Path]:
    """Yield a folder that is renamed to `output` if the scope ends without an error, and removed
    otherwise.
    """
    partial = partial_folder_of(output)
    if partial.exists():  # left by a killed process
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, output)
        fsync_folder(output.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_mean(
    folder: Path,
    inputs: Sequence[MergeInput],
    weights: Sequence[float],
    config: Config,
    run: Path,
    kept_input: MergeInput | None = None,
) -> Path:
    """Write the checkpoint of a merged run.

    Args:
        folder: of the run while it is incomplete.
        config: of the run.
        run: the run's final folder.
        kept_input: the input whose weights the checkpoint has, if it does not have the mean.

    Returns:
        the checkpoint.
    """
    # A fixed order makes rounding independent of the order of the inputs.
    pairs = sorted(
        zip(inputs, weights, strict=True), key=lambda pair: str(pair[0].checkpoint.resolve())
    )
    used = [(source, weight) for source, weight in pairs if kept_input in (None, source)]
    input_metadata = [source.metadata for source, _ in used]
    step, starts = (
        max(entry["step"] for entry in input_metadata),
        {entry["start"] for entry in input_metadata},
    )
    metadata = {
        "step": step,
        "position": [0, 0, []],
        "replicas": 1,
        "audio_s": math.fsum(entry["audio_s"] for entry in input_metadata),
        "audio_s_since_sync": 0.0,
        "settings": config.model_dump(mode="json"),
        **(vocabulary := merged_vocabulary(inputs)),
        "corpus": None,
        "audio_format": audio_format_of(inputs[0].metadata),
        "teacher": inputs[0].metadata.get("teacher"),
        "texts": inputs[0].metadata.get("texts"),
        "best": None,
        "merge_inputs": inputs_for_json(inputs, normalised(weights)),
        "kept_input": str(kept_input.checkpoint) if kept_input else None,
    }
    target = checkpoint_of(folder / "checkpoints", step)
    write_checkpoint(target, averaged_groups(used, config), metadata)
    with opened_arrays(target, "model") as arrays:
        digest = digest_of(arrays)
    rows = {table: len(names) for table, names in vocabulary.items()}
    metadata |= {
        "ancestor": {"run": str(run), "step": step, "weights": digest, **rows},
        "start": starts.pop() if len(starts) == 1 else digest,
    }
    update_metadata(target, metadata)
    return target


def merged_vocabulary(inputs: Sequence[MergeInput]) -> dict[str, list[str]]:
    """Return the vocabulary of the merged run: inputs may differ in speakers only."""
    speakers = dict.fromkeys(name for source in inputs for name in source.metadata["speakers"])
    first = inputs[0].metadata
    return {
        "symbols": first["symbols"],
        "languages": first["languages"],
        "speakers": list(speakers),
    }


def inputs_for_json(
    inputs: Sequence[MergeInput], coefficients: Sequence[float]
) -> list[dict[str, Any]]:
    """Return what a merged checkpoint records about its inputs."""
    return [
        {
            "checkpoint": str(source.checkpoint),
            "step": source.metadata["step"],
            "audio_s": source.metadata["audio_s"],
            "coefficient": coefficient,
        }
        for source, coefficient in zip(inputs, coefficients, strict=True)
    ]


def averaged_groups(
    used: Sequence[tuple[MergeInput, float]], config: Config
) -> Iterator[tuple[str, Iterable[tuple[str, np.ndarray]]]]:
    """Yield the groups of a merged checkpoint: the mean of the corresponding groups, as in a sync.

    The optimizer state belongs to the trained weights, and the moving averages follow these
    weights. So inference with the merged run uses the mean of what inference with the inputs uses,
    and training continues from the mean of what training of the inputs would continue from.
    """
    inputs, weights = zip(*used, strict=True)
    groups = {
        group: [(source.checkpoint, group) for source in inputs]
        for group in groups_of(inputs[0].checkpoint)
        if group != "averages"
    }
    groups["averages" if config.training.ema_decay else "model"] = [
        source.weights for source in inputs
    ]
    for group, sources in groups.items():
        yield group, weighted_mean(sources, weights)


def find_better_input(
    inputs: Sequence[MergeInput],
    coefficients: Sequence[float],
    held_out: Manifest,
    config: Config,
    folder: Path,
) -> int | None:
    """Measure the inputs, their mean and points between; return the index of an input that is
    better than the mean.
    """
    from myxtts.local_sgd.interpolation import (
        measure_interpolation,
    )  # imports TensorFlow, which takes seconds

    line = measure_interpolation(inputs, tuple(coefficients), held_out, config, folder)
    print(line.table())
    level = logging.INFO if line.better_input is None else logging.WARNING
    log.log(level, "%-14s %s", "verdict", line.verdict())
    return line.better_input
