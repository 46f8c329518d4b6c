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
from itertools import chain, combinations, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from myxtts.config.checks import check_settings
from myxtts.config.flags import Setting, marked, turned_off, values_of, with_values
from myxtts.config.load import check_storable, dump
from myxtts.config.schema import IN_MERGE, OFF_IN_MERGE, Config, LocalSGDConfig, RunConfig
from myxtts.data.dataset import audio_root_of, manifest_of
from myxtts.data.manifest import Manifest, report_rejected
from myxtts.data.metadata_file import read_corpus
from myxtts.errors import CheckpointError, ConfigError, DataError
from myxtts.files import fsync_folder, partial_folder_of, write_whole
from myxtts.local_sgd.averaging import normalised, weighted_mean
from myxtts.tasks.registry import length_rule_of
from myxtts.training.checkpoint_files import (
    MODEL,
    Ancestor,
    Checkpoint,
    MergedInput,
    Record,
    checkpoint_of,
    write_checkpoint,
)
from myxtts.training.runs import TrainedRun

# No weights depend on these, so --force allows inputs to differ in them.
FORCEABLE = ("speakers", "start")
# Below this cosine, layers have little in common.
LOW_COSINE = 0.5

log = logging.getLogger(__name__)


def merge_settings(task: str) -> list[Setting]:
    """Return the settings of a task that features or weights depend on."""
    values = values_of(Config()) | {"task": task}
    return [setting for setting in marked(IN_MERGE) if setting.needs.is_met(values)]


@dataclass(frozen=True, eq=False)
class MergeInput:
    """A checkpoint to merge."""

    run: TrainedRun

    @property
    def checkpoint(self) -> Checkpoint:
        return self.run.checkpoint

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @property
    def record(self) -> Record:
        return self.checkpoint.record

    @property
    def config(self) -> Config:
        return self.record.settings

    @property
    def weights(self) -> tuple[Checkpoint, str]:
        """Checkpoint and group of the weights that inference uses."""
        return self.checkpoint, self.record.weights_group

    @property
    def signature(self) -> dict[str, Any]:
        """What the arrays of the checkpoint depend on, by name; the same for all inputs."""
        config = self.config
        record = self.record
        task = config.model.task
        # The optimizer state covers the trained variables and, with mixed_float16, the loss scale.
        is_scaled = config.training.precision == "mixed_float16"
        precision = "mixed_float16" if is_scaled else "another"
        teacher = record.teacher.weights if record.teacher else "none"
        return {
            "task": task,
            "model_size": config.model.model_size,
            **{setting.name: setting.of(config) for setting in merge_settings(task)},
            "text_frontend": config.data.text_frontend,
            "audio_format": record.audio_format,
            "teacher": teacher,
            "freeze": " ".join(sorted(config.training.freeze)) or "nothing",
            "precision": precision,
            "symbols": record.symbols,
            "languages": record.languages,
            "speakers": record.speakers,
            "start": record.start,
        }


def read_inputs(paths: Sequence[Path]) -> list[MergeInput]:
    """Read the inputs of a merge.

    Raises:
        CheckpointError: one of them cannot be read.
        ConfigError: there are not two or more different ones.
    """
    inputs = [read_input(path) for path in paths]
    resolved = [merge_input.path.resolve() for merge_input in inputs]
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
    """Read a checkpoint by its folder or its run's. Raises CheckpointError if it is damaged."""
    is_checkpoint = path.is_dir() and (
        (path / "state.json").exists() or re.fullmatch(r"step-\d+", path.name)
    )
    if is_checkpoint:
        return MergeInput(TrainedRun(path.parent.parent, Checkpoint.read(path)))
    return MergeInput(TrainedRun.open(path))


def merge_weights(inputs: Sequence[MergeInput], given: Sequence[float] | None) -> list[float]:
    """Return the given weights, or else the seconds of audio that each input was trained on.

    Raises:
        CheckpointError: the seconds of audio are no weights.
        ConfigError: the given weights are no weights, or too few or too many.
    """
    if given is None:
        weights = [merge_input.record.audio_s for merge_input in inputs]
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
    """Raise CheckpointError, with the first difference, if two inputs have other signatures."""
    first = inputs[0]
    signature = first.signature
    for other in inputs[1:]:
        values = other.signature
        for name, value in signature.items():
            if value == values[name] or (force and name in FORCEABLE):
                continue
            to_do = "Leave one of them out"
            if name in FORCEABLE:
                to_do += ", or merge them anyway with --force"
            raise CheckpointError(
                f"{first.path} and {other.path} cannot be merged:"
                f" {describe_difference(name, value, values[name])}. {to_do}."
            )


def describe_difference(name: str, first: Any, second: Any) -> str:
    """Return in words how two inputs differ."""
    if name == "start":
        return (
            f"they did not start from the same weights ({first[:12]}…, {second[:12]}…): their mean"
            " is rarely useful"
        )
    if not isinstance(first, tuple):
        return f"{name} is {first} in the first and {second} in the second"
    rows = enumerate(zip_longest(first, second), 1)
    row, pair = next((row, pair) for row, pair in rows if pair[0] != pair[1])
    left = "missing" if pair[0] is None else repr(pair[0])
    right = "missing" if pair[1] is None else repr(pair[1])
    return (
        f"their {name} are not the same ({len(first)} and {len(second)}): number {row} is {left} in"
        f" the first and {right} in the second"
    )


class LayerDistance(NamedTuple):
    """The largest difference between any two checkpoints in one layer.

    Attributes:
        cosine: cosine similarity, the lowest of all pairs.
        distance: Euclidean distance relative to the larger norm, the largest of all pairs.
    """

    cosine: float
    distance: float


def layer_distances(groups: Sequence[tuple[Checkpoint, str]]) -> dict[str, LayerDistance]:
    """Return the distance of each layer: the variables whose names share the first two parts.

    One variable of each checkpoint is in memory at a time. Integers count as equal.

    Args:
        groups: checkpoint and group of arrays; all have the same names, shapes and types.
    """
    pairs = list(combinations(range(len(groups)), 2))
    # Of each pair: the inner product, both squared norms and that of the difference.
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((4, len(pairs))))
    with ExitStack() as opened:
        contents = [opened.enter_context(checkpoint.opened(group)) for checkpoint, group in groups]
        for name in contents[0]:
            layer = sums["/".join(name.split("/")[:2])]
            arrays = [content[name] for content in contents]
            if not np.issubdtype(arrays[0].dtype, np.floating):
                continue
            for number, (left, right) in enumerate(pairs):
                x = arrays[left].astype(np.float64).ravel()
                y = arrays[right].astype(np.float64).ravel()
                difference = x - y
                layer[:, number] += (x @ y, x @ x, y @ y, difference @ difference)
    distances = {}
    for layer_name, (inner, x_squared, y_squared, squared) in sums.items():
        # Two layers of zeros have cosine 1; a layer of zeros and another layer have cosine 0.
        cosine = (squared == 0).astype(np.float64)
        norms = np.sqrt(x_squared) * np.sqrt(y_squared)
        np.divide(inner, norms, out=cosine, where=norms > 0)
        larger = np.maximum(x_squared, y_squared)
        ratio = np.divide(squared, larger, out=np.zeros_like(larger), where=squared > 0)
        distances[layer_name] = LayerDistance(float(cosine.min()), float(np.sqrt(ratio.max())))
    return distances


def layer_table(layers: Mapping[str, LayerDistance]) -> str:
    """Return a Markdown table, followed by the names of the layers with a low cosine."""
    lines = ["| layer | cosine, lowest | distance, largest |", "|---|---|---|"]
    lines += [
        f"| {layer} | {cosine:.4f} | {distance:.4f} |"
        for layer, (cosine, distance) in layers.items()
    ]
    if low := [layer for layer, (cosine, _) in layers.items() if cosine < LOW_COSINE]:
        lines.append("")
        lines.append(
            f"- the inputs have little in common (cosine below {LOW_COSINE}) in {', '.join(low)}:"
            " try --val-data"
        )
    return "\n".join([*lines, ""])


class CorpusOverrides(NamedTuple):
    """Corpora of the merged run instead of those of its first input, as their flags take them."""

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
    held_out = None
    if corpora.val_data is not None:
        held_out = read_held_out(configs[0], inputs[0], output)
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
    log.info("wrote          %s", output / checkpoint.relative_to(folder))
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
    values = {name: value for name, value in corpora._asdict().items() if value is not None}
    values |= {"run": output.name, "runs_dir": str(output.parent)}
    config = with_values(turned_off(config, OFF_IN_MERGE), values)
    return config.model_copy(update={"local_sgd": LocalSGDConfig()})


def check_corpora(config: Config, corpora: CorpusOverrides) -> None:
    """Raise DataError if a given corpus or folder cannot be read, before any merging."""
    if corpora.audio_root is not None and not Path(corpora.audio_root).is_dir():
        raise DataError(
            f"--audio-root {corpora.audio_root} was given, but there is no such folder. Give the"
            " folder of the audio."
        )
    if corpora.train_data is not None:
        read_corpus(
            Path(corpora.train_data),
            config.data.language,
            audio_root_of(config.data),
            length_rule_of(config) is not None,
            columns=config.data.columns,
        )


def read_held_out(config: Config, first: MergeInput, output: Path) -> Manifest:
    """Read the utterances to validate on; list unusable rows in a file next to the output.

    Raises:
        DataError: they cannot be used.
    """
    data = config.data
    length_rule = length_rule_of(config)
    rows = read_corpus(
        Path(str(data.val_data)),
        data.language,
        audio_root_of(data),
        length_rule is not None,
        preferred="metadata_eval.csv",
        columns=data.columns,
    )
    log.info("corpus form    %s", rows.form)
    manifest, _, rejected = manifest_of(rows, data, length_rule, first.record.vocabulary)
    if unusable := [*rows.rejected, *rejected]:
        output.parent.mkdir(parents=True, exist_ok=True)
        listing = output.with_name(f"{output.name}-rejected.csv")
        report_rejected(unusable, [(rows, manifest)], data.max_rejected, listing)
    return manifest


def log_inputs(
    inputs: Sequence[MergeInput], coefficients: Sequence[float], configs: Sequence[Config]
) -> None:
    """Log the inputs, and the settings in which they differ."""
    for source, coefficient in zip(inputs, coefficients, strict=True):
        log.info(
            "input          %s: step %d, %.1f s of speech, coefficient %.4f",
            source.path,
            source.record.step,
            source.record.audio_s,
            coefficient,
        )
    documents = [config.model_dump(mode="json") for config in configs]
    for section, settings in documents[0].items():
        for name, first in settings.items():
            values = [document[section][name] for document in documents]
            if any(value != first for value in values):
                given = ", ".join(map(str, values))
                log.info("difference     %s: %s; the merged run has %s", name, given, first)


@contextmanager
def new_run_folder(output: Path) -> Iterator[Path]:
    """Yield a folder that is renamed to `output` at the end, and removed after an error."""
    partial = partial_folder_of(output)
    # A killed process may have left one.
    shutil.rmtree(partial, ignore_errors=True)
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
    """Write the checkpoint of a merged run, and return it.

    Args:
        folder: of the run while it is incomplete.
        run: the run's final folder.
        kept_input: the input whose weights the checkpoint has, if it does not have the mean.
    """
    # A fixed order makes rounding independent of the order of the inputs.
    pairs = sorted(zip(inputs, weights, strict=True), key=lambda pair: str(pair[0].path.resolve()))
    used = [(source, weight) for source, weight in pairs if kept_input in (None, source)]
    records = [source.record for source, _ in used]
    step = max(record.step for record in records)
    starts = {record.start for record in records}
    first = inputs[0].record
    # Inputs may differ in speakers only.
    speakers = dict.fromkeys(chain.from_iterable(source.record.speakers for source in inputs))
    target = checkpoint_of(folder / "checkpoints", step)
    record = Record(
        settings=config,
        symbols=first.symbols,
        languages=first.languages,
        speakers=tuple(speakers),
        audio_format=first.audio_format,
        start="",
        teacher=first.teacher,
        texts=first.texts,
        step=step,
        audio_s=math.fsum(record.audio_s for record in records),
        merge_inputs=merged_inputs(inputs, normalised(weights)),
        kept_input=str(kept_input.path) if kept_input else None,
    )
    # The merged run is the start of itself where its inputs started differently.
    checkpoint = write_checkpoint(target, averaged_groups(used, config), record)
    digest = checkpoint.record.digests[MODEL]
    ancestor = Ancestor(
        run=str(run),
        step=step,
        weights=digest,
        symbols=len(record.symbols),
        languages=len(record.languages),
        speakers=len(record.speakers),
    )
    checkpoint.update(ancestor=ancestor, start=starts.pop() if len(starts) == 1 else digest)
    return target


def merged_inputs(
    inputs: Sequence[MergeInput], coefficients: Sequence[float]
) -> tuple[MergedInput, ...]:
    """Return what a merged checkpoint records about its inputs."""
    return tuple(
        MergedInput(
            checkpoint=str(source.path),
            step=source.record.step,
            audio_s=source.record.audio_s,
            coefficient=coefficient,
        )
        for source, coefficient in zip(inputs, coefficients, strict=True)
    )


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
        for group in inputs[0].checkpoint.groups
        if group != "averages"
    }
    used_group = "averages" if config.training.ema_decay else "model"
    groups[used_group] = [source.weights for source in inputs]
    for group, sources in groups.items():
        yield group, weighted_mean(sources, weights)


def find_better_input(
    inputs: Sequence[MergeInput],
    coefficients: Sequence[float],
    held_out: Manifest,
    config: Config,
    folder: Path,
) -> int | None:
    """Measure the inputs, their mean and points between; return an input that is better, if any."""
    # This imports TensorFlow, which takes seconds.
    from myxtts.local_sgd.interpolation import measure_interpolation

    line = measure_interpolation(inputs, tuple(coefficients), held_out, config, folder)
    print(line.table())
    level = logging.INFO if line.better_input is None else logging.WARNING
    log.log(level, "verdict        %s", line.verdict())
    return line.better_input
