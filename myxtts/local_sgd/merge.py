"""One run out of several that began with the same weights: the mean of what they learnt.

Each part counts by the speech that it was trained on, as in federated averaging (McMahan et al. 2017). That a mean is
of any use rests on the common start: from there the parts mostly stay in one basin of the loss (Frankle et al. 2020).
"""

import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from myxtts.config.load import dump
from myxtts.config.schema import Config, LocalSGDConfig, RunConfig
from myxtts.data.dataset import audio_root_of, manifest_of
from myxtts.data.manifest import Manifest, report_rejected
from myxtts.data.metadata_file import read_corpora, read_corpus
from myxtts.errors import ConfigError, DataError
from myxtts.files import fsync_folder, write_whole
from myxtts.local_sgd.averaging import normalised, weighted_mean
from myxtts.local_sgd.layer_distance import layer_distances, table_of_layers
from myxtts.local_sgd.merge_inputs import MergeInput, check_compatible, given_weights, read_inputs
from myxtts.tasks.length_rules import length_rule_of
from myxtts.training.checkpoint_files import (
    checkpoint_of,
    digest_of,
    opened_arrays,
    partial_of,
    read_metadata,
    write_checkpoint,
)
from myxtts.training.select_checkpoint import vocabulary_of

log = logging.getLogger(__name__)


class Corpora(NamedTuple):
    """What the merged run has in the place of its first part's corpora; each as its flag takes it."""

    train_data: str | None = None
    val_data: str | None = None
    audio_root: str | None = None


def merge(
    checkpoints: Sequence[Path],
    output: Path,
    corpora: Corpora,
    weights: Sequence[float] | None = None,
    force: bool = False,
) -> bool:
    """Write a run with the mean of some checkpoints' weights; say of what, and with validation data what it is worth.

    Args:
        checkpoints: folders of runs, whose best or newest checkpoint is taken, or of checkpoints; 2 or more.
        output: folder of the new run.
        corpora: with `val_data`, all parts and their mean are measured on it.
        weights: of each part, 0 or more; by default the speech that it was trained on.
        force: merge parts with other speakers or another start, too.

    Returns:
        whether the run has the mean: not where the best part was measured to be better, whose weights it then has.

    Raises:
        UserError: a part, a corpus or the output cannot be used; there is no output then.
    """
    check_output(output)
    parts = read_inputs(checkpoints)
    weights = given_weights(parts, weights)
    check_compatible(parts, force)
    configs = [merged_config(part.config, output, corpora) for part in parts]
    check_readable(configs[0], corpora)
    held_out = read_held_out(configs[0], parts[0], output) if corpora.val_data is not None else None
    tell(parts, normalised(weights), configs)
    with new_run(output) as folder:
        write_whole(folder / "config.yaml", dump(configs[0]).encode())
        written = write_mean(folder, parts, weights, configs[0], output)
        print(table_of_layers(layer_distances([part.used for part in parts])))
        better = None
        if held_out is not None:
            better = better_part(parts, normalised(weights), held_out, configs[0], folder)
        if better is not None:
            shutil.rmtree(folder / "checkpoints")
            only = [float(place == better) for place in range(len(parts))]
            written = write_mean(folder, parts, only, configs[0], output, kept=parts[better])
    log.info("%-14s %s", "wrote", output / written.relative_to(folder))
    return better is None


def check_output(output: Path) -> None:
    """Raises ConfigError where something is there already, or a run cannot have such a name."""
    try:
        RunConfig(run=output.name)
    except ValidationError as error:
        raise ConfigError(
            f"--output {output} was given, but the name of a run has letters, digits and . _ - only, and begins with "
            "a letter or digit. Give another name."
        ) from error
    if os.path.lexists(output):
        raise ConfigError(f"--output {output} was given, but it exists already. Give another name, or remove it.")


def merged_config(config: Config, output: Path, corpora: Corpora) -> Config:
    """The settings of a part as those of the merged run.

    It goes on as the part would, but alone and to the end. So it keeps `freeze`, which the moments are of, and
    `init_from`, without which `freeze` is refused; the base itself is never read again.
    """
    given = {name: value for name, value in corpora._asdict().items() if value is not None}
    changed = {
        "data": config.data.model_copy(update=given),
        "training": config.training.model_copy(update={"stop_at_step": None}),
        "run": config.run.model_copy(update={"run": output.name, "runs_dir": str(output.parent), "resume": False}),
        "local_sgd": LocalSGDConfig(),
    }
    return config.model_copy(update=changed)


def check_readable(config: Config, corpora: Corpora) -> None:
    """Raises DataError where a corpus or folder that was given is none, before minutes are spent."""
    if corpora.audio_root is not None and not Path(corpora.audio_root).is_dir():
        raise DataError(
            f"--audio-root {corpora.audio_root} was given, but there is no such folder. Name where the audio lies."
        )
    if corpora.train_data is not None:
        read_corpus(Path(corpora.train_data), config.data.language, audio_root_of(config.data))


def read_held_out(config: Config, part: MergeInput, output: Path) -> Manifest:
    """The utterances to measure on, those that the merged run validates on.

    Raises:
        DataError: they cannot be used. Rows that cannot are listed beside the output.
    """
    path, data = Path(config.data.val_data), config.data
    _, rows, _ = read_corpora(path, path, data.language, 0.0, config.training.seed, audio_root_of(config.data))
    manifest, _, rejected = manifest_of(rows, data, length_rule_of(config), vocabulary_of(part.metadata))
    if unusable := [*rows.rejected, *rejected]:
        output.parent.mkdir(parents=True, exist_ok=True)
        listing = output.with_name(f"{output.name}-rejected.csv")
        report_rejected(unusable, [(rows, manifest)], data.max_rejected, listing)
    return manifest


def tell(parts: Sequence[MergeInput], shares: Sequence[float], configs: Sequence[Config]) -> None:
    """The parts, and the settings that the merged run has of the first of them because they differ."""
    for part, share in zip(parts, shares, strict=True):
        metadata = part.metadata
        heard = f"step {metadata['step']}, {metadata['audio_s']:.1f} s of speech, share {share:.4f}"
        log.info("%-14s %s: %s", "part", part.checkpoint, heard)
    documents = [config.model_dump(mode="json") for config in configs]
    for section, settings in documents[0].items():
        for name, first in settings.items():
            values = [document[section][name] for document in documents]
            if any(value != first for value in values):
                log.info("%-14s %s is %s; it stays %s", "differs", name, ", ".join(map(str, values)), first)


@contextmanager
def new_run(output: Path) -> Iterator[Path]:
    """A folder that becomes `output` where the scope ends well, and else does not stay."""
    partial = partial_of(output)
    if partial.exists():  # a kill left it
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
    parts: Sequence[MergeInput],
    weights: Sequence[float],
    config: Config,
    run: Path,
    kept: MergeInput | None = None,
) -> Path:
    """Write the checkpoint of a merged run.

    Args:
        folder: of the run while it is not complete.
        config: of the run.
        run: its folder after that.
        kept: the only part that the checkpoint is of, where it is not of all.

    Returns:
        the checkpoint.
    """
    # In this order rounding does not depend on the order of the parts.
    ordered = sorted(zip(parts, weights, strict=True), key=lambda one: str(one[0].checkpoint.resolve()))
    contents = [(part, weight) for part, weight in ordered if kept in (None, part)]
    abouts = [part.metadata for part, _ in contents]
    step, starts = max(metadata["step"] for metadata in abouts), {metadata["start"] for metadata in abouts}
    metadata = {
        "step": step,
        "position": [0, 0, []],
        "replicas": 1,
        "audio_s": math.fsum(metadata["audio_s"] for metadata in abouts),
        "audio_s_since_sync": 0.0,
        "settings": config.model_dump(mode="json"),
        **(vocabulary := tables_of_all(parts)),
        "corpus": None,
        "best": None,
        "parts": inputs_for_json(parts, normalised(weights)),
        "kept": str(kept.checkpoint) if kept else None,
    }
    target = checkpoint_of(folder / "checkpoints", step)
    write_checkpoint(target, mean_groups(contents, config), metadata)
    with opened_arrays(target / "model.npz") as arrays:
        digest = digest_of(arrays)
    rows = {table: len(names) for table, names in vocabulary.items()}
    metadata |= {
        "ancestor": {"run": str(run), "step": step, "weights": digest, **rows},
        "start": starts.pop() if len(starts) == 1 else digest,
    }
    write_whole(
        target / "state.json", json.dumps(read_metadata(target) | metadata, ensure_ascii=False, indent=1).encode()
    )
    return target


def tables_of_all(parts: Sequence[MergeInput]) -> dict[str, list[str]]:
    """The tables of the parts, in which only speakers may differ."""
    speakers = dict.fromkeys(name for part in parts for name in part.metadata["speakers"])
    first = parts[0].metadata
    return {"symbols": first["symbols"], "languages": first["languages"], "speakers": list(speakers)}


def inputs_for_json(parts: Sequence[MergeInput], shares: Sequence[float]) -> list[dict[str, Any]]:
    """What a merged checkpoint keeps of its parts."""
    return [
        {
            "checkpoint": str(part.checkpoint),
            "step": part.metadata["step"],
            "audio_s": part.metadata["audio_s"],
            "share": share,
        }
        for part, share in zip(parts, shares, strict=True)
    ]


def mean_groups(contents: Sequence[tuple[MergeInput, float]], config: Config) -> Iterator[tuple[str, Iterator]]:
    """The archives of a merged checkpoint, one after another, each the mean of its like, as in a round.

    The moments belong to the trained weights, and the averages trail these. So what the run is used with is the mean of
    what its parts are used with, and what it goes on from is what they would have gone on from.
    """
    parts, weights = zip(*contents, strict=True)
    groups = {"model": [part.checkpoint / "model.npz" for part in parts]}
    groups["averages" if config.training.ema_decay else "model"] = [part.used for part in parts]
    groups["optimizer"] = [part.checkpoint / "optimizer.npz" for part in parts]
    for group, archives in groups.items():
        yield group, weighted_mean(archives, weights)


def better_part(
    parts: Sequence[MergeInput], shares: Sequence[float], held_out: Manifest, config: Config, folder: Path
) -> int | None:
    """Measure the parts, their mean and what lies between; gives the place of a part that is better than the mean."""
    from myxtts.local_sgd.interpolation import measure  # imports TensorFlow, which takes seconds

    line = measure(parts, tuple(shares), held_out, config, folder)
    print(line.table())
    log.log(logging.WARNING if line.better is not None else logging.INFO, "%-14s %s", "verdict", line.verdict())
    return line.better
