"""--init-from: the pretrained run that another run starts from, its vocabulary, its weights and its
fixed settings.

Rows of embeddings are matched by name: the vocabulary of the new run begins with that of the
pretrained run, so that each symbol and language of the pretrained run keeps its weights, whether
the new corpus has it or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from myxtts.config.schema import Config
from myxtts.data.manifest import Vocabulary
from myxtts.errors import CheckpointError, ConfigError
from myxtts.models.loss_groups import NETWORK, loss_groups_of
from myxtts.tasks.registry import task_of
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable
from myxtts.training.checkpoint_files import digest_of, further_groups, read_arrays, read_metadata
from myxtts.training.runs import select_checkpoint, vocabulary_of, weights_group

LISTED_NAMES = 12


@dataclass(frozen=True, eq=False)
class Pretrained:
    """The checkpoint of another run, in memory.

    Attributes:
        run: folder of that run, as --init-from gives it.
        checkpoint: its best checkpoint, or the newest if none is best.
        metadata: of the checkpoint.
        weights: by name, the averaged ones if the run has them.
        further: weights of the groups that only training needs, by group and name.
    """

    run: Path
    checkpoint: Path
    metadata: dict[str, Any]
    weights: dict[str, np.ndarray]
    further: Mapping[str, dict[str, np.ndarray]] = field(default_factory=dict)

    @property
    def vocabulary(self) -> Vocabulary:
        """Symbols and languages of the run. Speakers have no weights: each run names its own."""
        return replace(vocabulary_of(self.metadata), speakers=())

    def ancestor(self) -> dict[str, Any]:
        """Return what the new run's checkpoints record; runs with equal `weights` started from the
        same weights.

        `weights` is a SHA-256. `symbols`, `languages` and `speakers` count the first rows of the
        new run's vocabulary, which come from the pretrained run.
        """
        return {
            "run": str(self.run),
            "step": self.metadata["step"],
            "weights": digest_of(self.weights),
            "symbols": len(self.metadata["symbols"]),
            "languages": len(self.metadata["languages"]),
            "speakers": 0,
        }

    def describe(self, vocabulary: Vocabulary, groups: Sequence[str] = ()) -> str:
        """Return a line on what a run with this vocabulary and further loss groups keeps of the
        pretrained run.
        """
        symbols = describe_rows(
            "symbol", self.vocabulary.symbols.symbols, vocabulary.symbols.symbols
        )
        languages = describe_rows("language", self.vocabulary.languages, vocabulary.languages)
        origins = (
            f", {name} {'kept' if name in self.further else 'from random weights'}"
            for name in groups
        )
        return f"{self.run} step {self.metadata['step']}: {symbols}, {languages}{''.join(origins)}"


def read_pretrained(run: Path, folder: Path) -> Pretrained:
    """Read the pretrained run of a new run.

    Args:
        run: folder of the pretrained run.
        folder: of the new run.

    Raises:
        ConfigError: both are the same run.
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    if run.resolve() == folder.resolve():
        raise ConfigError(
            f"{folder} cannot start from its own weights (--init-from {run}). Resume a run with"
            " --resume, or give the new run another name with --run."
        )
    checkpoint = select_checkpoint(run)
    metadata = read_metadata(checkpoint)
    further = {group: read_arrays(checkpoint, group) for group in further_groups(checkpoint)}
    weights = read_arrays(checkpoint, weights_group(metadata))
    return Pretrained(run, checkpoint, metadata, weights, further)


def inherited_vocabulary(metadata: dict[str, Any]) -> Vocabulary | None:
    """Return the rows that a run took over from its teacher, its pretrained run, or the run that it
    was forked from.

    Args:
        metadata: of one of the run's checkpoints.

    Returns:
        None if the run started from the seed, without a teacher.
    """
    ancestor, vocabulary = metadata["ancestor"], vocabulary_of(metadata)
    if metadata.get("teacher") is not None:
        return replace(
            vocabulary, speakers=vocabulary.speakers[: ancestor["speakers"]] if ancestor else ()
        )
    if ancestor is None:
        return None
    symbols = vocabulary.symbols.symbols[: ancestor["symbols"]]
    return Vocabulary(
        SymbolTable(symbols),
        vocabulary.speakers[: ancestor["speakers"]],
        vocabulary.languages[: ancestor["languages"]],
    )


def check_freeze(config: Config) -> None:
    """Raise ConfigError if --freeze names unknown components, random weights, or everything."""
    frozen, components = config.training.freeze, task_of(config).components
    listed = ", ".join(frozen)
    if unknown := set(frozen).difference(components):
        raise ConfigError(
            f"--freeze names {', '.join(sorted(unknown))}, but the network of --task"
            f" {config.model.task} has {', '.join(components)}. Name some of these."
        )
    if frozen and config.training.init_from is None:
        raise ConfigError(
            f"--freeze names {listed}, but the run starts from random weights, and these components"
            " would stay random. Name a trained run with --init-from, or leave out --freeze."
        )
    if set(frozen) == set(components):
        raise ConfigError(
            f"--freeze names every component ({listed}), so nothing is left to train. Leave one"
            " out."
        )


def load_pretrained(
    pretrained: Pretrained, network: keras.Model, vocabulary: Vocabulary, freeze: Sequence[str] = ()
) -> None:
    """Give a new network the weights of a pretrained run.

    A row that the pretrained run lacks becomes the mean of its named rows plus the network's own
    small random row (Hewitt 2021, "Initializing new word embeddings"): the next layers expect a row
    there, and new rows differ.

    Weights of further loss groups, such as discriminators, are taken over where both have the
    group. Layers that the network has in addition, see `added_layers`, keep their initial weights.

    Args:
        network: with initial weights from the seed of its run.
        vocabulary: of the new run; it begins with that of the pretrained run.
        freeze: components that will keep their weights.

    Raises:
        CheckpointError: the weights belong to another architecture.
        ConfigError: rows of new symbols would stay random.
    """
    known = pretrained.vocabulary
    new_symbols = known.symbols.unknown(vocabulary.symbols.symbols)
    components = network.component_layers() if freeze else {}
    frozen = {
        v.path: name for name in freeze for layer in components[name] for v in layer.variables
    }
    rows_by_table = {
        "symbols": (known.symbols.symbols, vocabulary.symbols.symbols, FIRST_SYMBOL_ID),
        "languages": (known.languages, vocabulary.languages, 0),
    }
    groups = {
        name: {v.path: v.value for v in group.variables}
        for name, group in loss_groups_of(network).items()
    }
    variables = groups.pop(NETWORK)
    shapes, row_variables = (
        {path: tuple(v.shape) for path, v in variables.items()},
        network.vocabulary_variables(),
    )
    for path, (table, axis) in row_variables.items():
        if table == "symbols" and new_symbols and path in frozen:
            raise ConfigError(
                f"--freeze {frozen[path]} was given, but the corpus has symbols that"
                f" {pretrained.run} does not have ({list_names(new_symbols)}), and these would"
                f" never be learnt. Leave {frozen[path]} out of --freeze."
            )
        known_names, _, special = rows_by_table[table]
        shapes[path] = (*shapes[path][:axis], special + len(known_names), *shapes[path][axis + 1 :])
    added = {v.path for layer in added_layers_of(network) for v in layer.variables}.difference(
        pretrained.weights
    )
    variables = {path: variable for path, variable in variables.items() if path not in added}
    check_shapes(
        pretrained.checkpoint, pretrained.weights, {path: shapes[path] for path in variables}
    )
    for path, variable in variables.items():
        weights = pretrained.weights[path]
        if path in row_variables:
            table, axis = row_variables[path]
            initial = np.moveaxis(variable.numpy(), axis, 0)
            weights = np.moveaxis(
                extend_rows(np.moveaxis(weights, axis, 0), initial, *rows_by_table[table]), 0, axis
            )
        variable.assign(weights)
    for name in groups.keys() & pretrained.further.keys():
        further = pretrained.further[name]
        check_shapes(
            pretrained.checkpoint,
            further,
            {path: tuple(v.shape) for path, v in groups[name].items()},
        )
        for path, variable in groups[name].items():
            variable.assign(further[path])


def added_layers_of(network: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that a pretrained run of the same task may lack."""
    return network.added_layers() if hasattr(network, "added_layers") else []


def check_shapes(
    checkpoint: Path, weights: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise CheckpointError if the weights of a checkpoint do not have the expected shapes, by
    name.
    """
    shapes = {name: array.shape for name, array in weights.items()}
    if shapes != expected:
        name = min(
            name
            for name in shapes.keys() | expected.keys()
            if shapes.get(name) != expected.get(name)
        )
        raise CheckpointError(
            f"a run cannot start from {checkpoint}: its '{name}' has shape {shapes.get(name)}, and"
            f" this version's has {expected.get(name)}. Use the version of MyXTTS that wrote it, or"
            " another --init-from."
        )


def extend_rows(
    known: np.ndarray,
    initial: np.ndarray,
    known_names: Sequence[str],
    names: Sequence[str],
    special: int,
) -> np.ndarray:
    """Return a known row for each known name, and for each new name the mean of the named rows plus
    its initial row.

    Args:
        known: float32 [special + K, …], special rows and rows of `known_names`.
        initial: float32 [special + N, …], special rows and random rows of `names`.
        special: rows without a name. They are copied, and not part of the mean: the row of the
            padding is never learnt.

    Returns:
        float32 [special + N, …], special rows and rows of `names`.
    """
    row_of = {name: row for row, name in enumerate(known_names, special)}
    rows = known[special:].mean(axis=0) + initial
    rows[:special] = known[:special]
    for row, name in enumerate(names, special):
        if name in row_of:
            rows[row] = known[row_of[name]]
    return rows


def describe_rows(noun: str, known: Sequence[str], names: Sequence[str]) -> str:
    """Return a text such as "41 symbols kept, 7 new (ə ʁ …)"."""
    new = [name for name in names if name not in known]
    counts = f"{len(known)} {noun}{'s' if len(known) != 1 else ''} kept, {len(new)} new"
    return f"{counts} ({list_names(new)})" if new else counts


def list_names(names: Sequence[str]) -> str:
    """Return the first names in one line."""
    return " ".join([*names[:LISTED_NAMES], *(["…"] if len(names) > LISTED_NAMES else [])])
