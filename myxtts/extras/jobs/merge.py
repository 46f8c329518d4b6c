"""Merging: one run with the mean weights of several runs that started from the same weights.

By default each input is weighted by the audio it was trained on, as in federated averaging (McMahan
et al. 2017). Averaging weights relies on the common start: from there, the runs mostly stay in one
basin of the loss (Frankle et al. 2020).

The syncs of jobs (sync.py) take the same mean. No TensorFlow, but for validation.
"""

import logging
import math
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, combinations, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.base.files import fsync_folder, new_folder, write_whole
from myxtts.checkpoints import files as checkpoint_files
from myxtts.checkpoints.files import Ancestor, Checkpoint, MergedInput, Record
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.checks import check_settings
from myxtts.config.flags import Setting, marked, turned_off, values_of, with_values
from myxtts.config.load import check_storable, dump
from myxtts.config.schema import IN_MERGE, OFF_IN_MERGE, Config, LocalSGDConfig, RunConfig
from myxtts.corpus.build import build_manifest, report_rejected
from myxtts.corpus.layouts import leave_out, read_as_configured
from myxtts.corpus.manifest import Manifest
from myxtts.extras.jobs.mean import Group, normalised, weighted_mean, weights_group
from myxtts.tasks.registry import length_rule_of

# No weights depend on these, so --force allows inputs to differ in them.
FORCEABLE = ("speakers", "initial weights")
LOW_COSINE = 0.5


log = logging.getLogger(__name__)


def sync_folders(sync_dir: Path) -> list[Path]:
    """Return the folder of each sync in a --sync-dir, by step."""
    return sorted(sync_dir.glob("sync-[0-9]*"), key=sync_step)


def sync_step(sync_folder: Path) -> int:
    return int(sync_folder.name.removeprefix("sync-"))


def newest_average(sync_dir: Path) -> Path | None:
    """Return the newest averaged checkpoint, if there is one."""
    averages = (path / "averaged" for path in reversed(sync_folders(sync_dir)))
    return next((path for path in averages if path.exists()), None)


def merge_settings(task: str) -> list[Setting]:
    """Return the settings of a task that features or weights depend on."""
    values = values_of(Config()) | {"task": task}
    return [setting for setting in marked(IN_MERGE) if setting.needs.is_met(values)]


def signature_of(record: Record) -> dict[str, Any]:
    """Return what the arrays of an input depend on, by name; the same for all inputs."""
    config = record.settings
    task = config.model.task
    return {
        "task": task,
        "model_size": config.model.model_size,
        **{setting.name: setting.of(config) for setting in merge_settings(task)},
        "text_frontend": config.data.text_frontend,
        "text_normaliser": config.data.text_normaliser,
        "lexicon": record.lexicon,
        "audio_format": record.audio_format,
        "teacher": record.teacher and record.teacher.weights,
        # The optimizer state covers the trained variables and, with mixed_float16, the loss scale.
        "freeze": tuple(sorted(config.training.freeze)),
        "precision mixed_float16": config.training.precision == "mixed_float16",
        "symbols": record.symbols,
        "languages": record.languages,
        "speakers": record.speakers,
        "initial weights": record.start[:12],
    }


def read_inputs(paths: Sequence[Path]) -> list[TrainedRun]:
    """Read the inputs of a merge, two or more. Raises UserError if that is not possible."""
    inputs = [read_input(path) for path in paths]
    resolved = {source.checkpoint.path.resolve() for source in inputs}
    if len(resolved) < max(2, len(inputs)):
        raise ConfigError(
            f"--checkpoints names {len(inputs)}, but a merge needs two different checkpoints or"
            " more. Name each one once."
        )
    return inputs


def read_input(path: Path) -> TrainedRun:
    """Read a checkpoint by its folder or its run's. Raises CheckpointError if it is damaged."""
    is_checkpoint = path.is_dir() and (
        (path / "state.json").exists() or re.fullmatch(r"step-\d+", path.name)
    )
    if is_checkpoint:
        return TrainedRun(path.parent.parent, Checkpoint.read(path))
    return TrainedRun.open(path)


def merge_weights(inputs: Sequence[TrainedRun], given: Sequence[float] | None) -> list[float]:
    """Return the given weights, or else the seconds of audio that each input was trained on."""
    weights = [source.record.audio_s for source in inputs] if given is None else list(given)
    is_mean = all(0 <= weight < math.inf for weight in weights) and sum(weights) < math.inf
    if not is_mean or len(weights) != len(inputs) or (given is not None and not sum(given)):
        raise ConfigError(
            f"the {len(inputs)} checkpoints have the weights {' '.join(map(str, weights))}. Give"
            " --weights with a number of 0 or more for each, not all of them 0."
        )
    return weights


# The first difference is reported with both values; of a tuple, the first place at which they
# differ.
def check_compatible(inputs: Sequence[TrainedRun], force: bool) -> None:
    """Raise CheckpointError, with the first difference, if two inputs have other signatures."""
    signature = signature_of(inputs[0].record)
    for other in inputs[1:]:
        values = signature_of(other.record)
        for name, value in signature.items():
            if value == values[name] or (force and name in FORCEABLE):
                continue
            pairs = [(value, values[name])]
            if isinstance(value, tuple):
                pairs = list(zip_longest(value, values[name]))
            left, right = next(pair for pair in pairs if pair[0] != pair[1])
            raise CheckpointError(
                f"{inputs[0].checkpoint.path} and {other.checkpoint.path} cannot be merged: {name}"
                f" is {left} in the first and {right} in the second. Leave one of them out; --force"
                f" allows other {' and '.join(FORCEABLE)}."
            )


# Variables are read name by name, one of each input at a time. Inner products of each pair are
# added up by layer, and cosine and distance follow from the sums.
def layer_distances(groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
    """Return the lowest cosine similarity and the largest distance of any two groups, by layer.

    A layer is the variables whose names share the first two parts. The distance is Euclidean,
    relative to the larger norm. Integers count as equal. All groups have the same names and shapes.
    """
    pairs = list(combinations(range(len(groups)), 2))
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
        distances[layer_name] = (float(cosine.min()), float(np.sqrt(ratio.max())))
    return distances


def layer_table(layers: Mapping[str, tuple[float, float]]) -> str:
    """Return a Markdown table, followed by the names of the layers with a low cosine."""
    lines = ["| layer | cosine, lowest | distance, largest |", "|---|---|---|"]
    for layer, (cosine, distance) in layers.items():
        lines.append(f"| {layer} | {cosine:.4f} | {distance:.4f} |")
    if low := ", ".join(layer for layer, (cosine, _) in layers.items() if cosine < LOW_COSINE):
        found = f"- the inputs have little in common (cosine below {LOW_COSINE}) in {low}"
        lines += ["", f"{found}: try --val-data"]
    return "\n".join([*lines, ""])


# All inputs and paths are checked before anything is written. The mean is written into a hidden
# folder with the settings of the first input. With --val-data, the inputs and the mean are
# measured; if an input is better, its weights replace the mean. Then the folder gets its name.
def merge(
    checkpoints: Sequence[Path],
    output: Path,
    corpora: Mapping[str, str],
    weights: Sequence[float] | None = None,
    force: bool = False,
) -> bool:
    """Write a run with the mean weights of some checkpoints; with validation data, measure it.

    Returns whether the run has the mean weights, and not those of an input that was measured to be
    better. Raises UserError if an input, a corpus or the output cannot be used.

    Args:
        checkpoints: 2 folders or more, of checkpoints, or of runs at their best or newest one.
        corpora: `train_data`, `val_data`, `audio_root` and `exclude` of the new run, where they
            differ from its first input.
    """
    for checkpoint in checkpoints:
        check_storable(str(checkpoint), "--checkpoints")
    for name, path in {"output": output, **corpora}.items():
        check_storable(str(path), f"--{name.replace('_', '-')}")
    check_output(output)
    if (root := corpora.get("audio_root")) and not Path(root).is_dir():
        raise DataError(f"--audio-root {root} was given, but that is no folder. Give another.")
    inputs = read_inputs(checkpoints)
    weights = merge_weights(inputs, weights)
    check_compatible(inputs, force)
    configs = [merged_config(source.record.settings, output, corpora) for source in inputs]
    check_settings(configs[0])
    if "train_data" in corpora:
        needs_text = length_rule_of(configs[0]) is not None
        read_as_configured(configs[0].data, corpora["train_data"], needs_text)
    held_out = read_held_out(configs[0], inputs[0], output) if "val_data" in corpora else None
    log_inputs(inputs, weights, configs)
    with new_folder(output) as folder:
        write_whole(folder / "config.yaml", dump(configs[0]).encode())
        checkpoint = write_mean(folder, inputs, weights, configs[0], output)
        print(layer_table(layer_distances([*map(weights_group, inputs)])))
        better = None
        if held_out is not None:
            # This imports TensorFlow, which takes seconds.
            from myxtts.extras.jobs.verdict import judge

            better = judge(inputs, normalised(weights), held_out, configs[0], folder)
        if better is not None:
            shutil.rmtree(folder / "checkpoints")
            weights = [float(index == better) for index in range(len(inputs))]
            kept = inputs[better]
            checkpoint = write_mean(folder, inputs, weights, configs[0], output, kept)
    fsync_folder(output.parent)
    log.info("wrote          %s", output / checkpoint.relative_to(folder))
    return better is None


def check_output(output: Path) -> None:
    """Raise ConfigError if the output exists or its name cannot be the name of a run."""
    try:
        RunConfig(run=output.name)
        is_free = not os.path.lexists(output)
    except ValidationError:
        is_free = False
    if not is_free:
        raise ConfigError(
            f"--output {output} was given, but it exists already, or cannot be the name of a run."
            " Give another name: letters, digits and . _ -, the first one a letter or digit."
        )


def merged_config(config: Config, output: Path, corpora: Mapping[str, str]) -> Config:
    """Return the settings of the merged run from those of an input.

    The merged run can continue like the input, but as a single job and to the end. It keeps
    `freeze`, which the optimizer state depends on, and `init_from`, without which `freeze` is
    rejected; the pretrained run is not read again.
    """
    run = {"run": output.name, "runs_dir": str(output.parent)}
    config = with_values(turned_off(config, OFF_IN_MERGE), {**corpora, **run})
    return config.model_copy(update={"local_sgd": LocalSGDConfig()})


def read_held_out(config: Config, first: TrainedRun, output: Path) -> Manifest:
    """Read the utterances to validate on; list unusable rows in a file next to the output."""
    rule = length_rule_of(config)
    corpus = str(config.data.val_data)
    rows = read_as_configured(config.data, corpus, rule is not None, "metadata_eval.csv")
    log.info("corpus form    %s", rows.form)
    (rows,), excluded = leave_out(config.data.exclude, rows)
    manifest, _, rejected = build_manifest(
        rows, config.data, rule, first.record.vocabulary, frontend=first.record.frontend
    )
    unusable = [*rows.rejected, *rejected]
    if unusable or excluded:
        output.parent.mkdir(parents=True, exist_ok=True)
        listing = output.with_name(f"{output.name}-rejected.csv")
        report_rejected(unusable, [(rows, manifest)], config.data.max_rejected, listing, excluded)
    return manifest


def log_inputs(
    inputs: Sequence[TrainedRun], weights: Sequence[float], configs: Sequence[Config]
) -> None:
    """Log the inputs, and the settings in which they differ."""
    for source, coefficient in zip(inputs, normalised(weights), strict=True):
        line = "input          %s: step %d, %.1f s of speech, coefficient %.4f"
        record = source.record
        log.info(line, source.checkpoint.path, record.step, record.audio_s, coefficient)
    all_values = [values_of(config) for config in configs]
    for name, first in all_values[0].items():
        if any(values[name] != first for values in all_values):
            given = ", ".join(str(values[name]) for values in all_values)
            log.info("difference     %s: %s; the merged run has %s", name, given, first)


def write_mean(
    folder: Path,
    inputs: Sequence[TrainedRun],
    weights: Sequence[float],
    config: Config,
    run: Path,
    kept: TrainedRun | None = None,
) -> Path:
    """Write the mean, or the input that is kept, to the incomplete folder of a run; return it."""
    # A fixed order makes rounding independent of the order of the inputs.
    pairs = zip(inputs, weights, strict=True)
    used = sorted(pairs, key=lambda pair: str(pair[0].checkpoint.path.resolve()))
    used = [pair for pair in used if kept in (None, pair[0])]
    step = max(source.record.step for source, _ in used)
    starts = {source.record.start for source, _ in used}
    first = inputs[0].record
    # Inputs may differ in speakers only.
    speakers = dict.fromkeys(chain.from_iterable(source.record.speakers for source in inputs))
    merged_inputs = [
        MergedInput(
            checkpoint=str(source.checkpoint.path),
            step=source.record.step,
            audio_s=source.record.audio_s,
            coefficient=coefficient,
        )
        for source, coefficient in zip(inputs, normalised(weights), strict=True)
    ]
    languages = {source.record.language for source, _ in used}
    record = fresh_record(
        first,
        language=languages.pop() if len(languages) == 1 else None,
        settings=config,
        speakers=tuple(speakers),
        start="",
        step=step,
        audio_s=math.fsum(source.record.audio_s for source, _ in used),
        merge_inputs=tuple(merged_inputs),
        kept_input=str(kept.checkpoint.path) if kept else None,
    )
    target = checkpoint_files.checkpoint_of(folder / "checkpoints", step)
    checkpoint = checkpoint_files.write_checkpoint(target, averaged_groups(used, config), record)
    digest = checkpoint.record.digests[checkpoint_files.MODEL]
    # The merged run is the start of itself where its inputs started differently.
    start = starts.pop() if len(starts) == 1 else digest
    checkpoint.update(ancestor=ancestor_of(record, run, digest), start=start)
    return target


def fresh_record(source: Record, **changes: Any) -> Record:
    """Return the record of a run that starts from a checkpoint, and has done nothing itself."""
    of_texts = "symbols languages language speakers lexicon frontend_version teacher texts".split()
    kept = *of_texts, "audio_format", "start", "step"
    return Record(**{name: getattr(source, name) for name in kept} | changes)


def ancestor_of(record: Record, run: Path, digest: str) -> Ancestor:
    """Return what a run records of the checkpoint that it starts from, with this digest."""
    return Ancestor(
        run=str(run),
        step=record.step,
        weights=digest,
        symbols=len(record.symbols),
        languages=len(record.languages),
        speakers=len(record.speakers),
    )


def averaged_groups(
    used: Sequence[tuple[TrainedRun, float]], config: Config
) -> Iterator[tuple[str, Iterable[tuple[str, np.ndarray]]]]:
    """Yield the groups of a merged checkpoint: the mean of the corresponding groups, as in a sync.

    So inference with the merged run uses the mean of what inference with the inputs uses, and
    training continues from the mean of what training of the inputs would continue from.
    """
    inputs, weights = zip(*used, strict=True)
    groups = {
        group: [(source.checkpoint, group) for source in inputs]
        for group in inputs[0].checkpoint.groups
        if group != checkpoint_files.AVERAGES
    }
    group = checkpoint_files.AVERAGES if config.training.ema_decay else checkpoint_files.MODEL
    groups[group] = [*map(weights_group, inputs)]
    for group, sources in groups.items():
        yield group, weighted_mean(sources, weights)
