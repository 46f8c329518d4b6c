"""Merging: one run with the mean weights of several runs that started from the same weights.

By default each input is weighted by the audio it was trained on, as in federated averaging (McMahan
et al. 2017). Averaging weights relies on the common start: from there, the runs mostly stay in one
basin of the loss (Frankle et al. 2020).
"""

import logging
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from myxtts.errors import ConfigError, DataError
from myxtts.files import fsync_folder, partial_folder_of, write_whole
from myxtts.local_sgd.averaging import normalised, weighted_mean
from myxtts.local_sgd.layer_distance import layer_distances, layer_table
from myxtts.local_sgd.merge_inputs import MergeInput, check_compatible, merge_weights, read_inputs
from myxtts.tasks.length_rules import length_rule_of
from myxtts.training.checkpoint_files import (
    checkpoint_of,
    digest_of,
    groups_of,
    opened_arrays,
    update_metadata,
    write_checkpoint,
)
from myxtts.training.runs import audio_format_of, vocabulary_of

log = logging.getLogger(__name__)


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
