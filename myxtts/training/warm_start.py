"""--init-from: the pretrained run that another run starts from: its vocabulary and its weights.

Rows of embeddings are matched by name: the vocabulary of the new run begins with that of the
pretrained run, so that each symbol and language of the pretrained run keeps its weights, whether
the new corpus has it or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import keras
import numpy as np

from myxtts.config.schema import Config
from myxtts.data.manifest import Vocabulary
from myxtts.errors import CheckpointError, ConfigError
from myxtts.models.loss_groups import NETWORK, loss_groups_of
from myxtts.tasks.registry import task_of
from myxtts.text.symbols import FIRST_SYMBOL_ID
from myxtts.training.checkpoint_files import Ancestor
from myxtts.training.checkpoints import Groups, assign_arrays
from myxtts.training.runs import TrainedRun

MAX_LISTED_NAMES = 12


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A pretrained run with its weights in memory: it may go on training, and prune checkpoints.

    Attributes:
        run: at its best checkpoint, or the newest if none is best.
        groups: the weights of the network (the averaged ones if the run has them), and those of the
            groups that only training needs.
    """

    run: TrainedRun
    groups: Groups

    @property
    def vocabulary(self) -> Vocabulary:
        return self.run.inheritable_vocabulary

    @property
    def ancestor(self) -> Ancestor:
        """What the checkpoints of the new run record."""
        record = self.run.record
        return Ancestor(
            **self.run.source.model_dump(),
            symbols=len(record.symbols),
            languages=len(record.languages),
            speakers=0,
        )

    def describe(self, vocabulary: Vocabulary, groups: Sequence[str] = ()) -> str:
        """Say what a run with this vocabulary and further loss groups keeps of the pretrained run.

        In one line.
        """
        known = self.vocabulary
        kept = [
            describe_rows("symbol", known.symbols.symbols, vocabulary.symbols.symbols),
            describe_rows("language", known.languages, vocabulary.languages),
        ]
        for name in groups:
            origin = "kept" if name in self.groups else "from random weights"
            kept.append(f"{name} {origin}")
        return f"{self.run.path} step {self.run.record.step}: {', '.join(kept)}"


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
    trained = TrainedRun.open(run)
    checkpoint = trained.checkpoint
    groups = {group: checkpoint.arrays(group) for group in checkpoint.further_groups}
    return Pretrained(trained, {NETWORK: trained.weights(), **groups})


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
    check_frozen_rows(pretrained, network, vocabulary, freeze)
    known = pretrained.vocabulary
    rows_by_table = {
        "symbols": (known.symbols.symbols, vocabulary.symbols.symbols, FIRST_SYMBOL_ID),
        "languages": (known.languages, vocabulary.languages, 0),
    }
    row_variables = network.vocabulary_variables()
    # Everything is checked before the first variable is changed.
    assignments = []
    for name, group in loss_groups_of(network).items():
        if name not in pretrained.groups:
            continue
        weights = pretrained.groups[name]
        variables = {v.path: v.value for v in group.variables}
        for path in added_variables(network).difference(weights):
            variables.pop(path, None)
        expected = {path: tuple(variable.shape) for path, variable in variables.items()}
        for path, (table, axis) in row_variables.items():
            if path in expected:
                known_names, _, special = rows_by_table[table]
                shape = list(expected[path])
                shape[axis] = special + len(known_names)
                expected[path] = tuple(shape)
        check_shapes(pretrained.run.checkpoint.path, weights, expected)
        values = dict(weights)
        for path, (table, axis) in row_variables.items():
            if path in values:
                initial = np.moveaxis(variables[path].numpy(), axis, 0)
                known_rows = np.moveaxis(values[path], axis, 0)
                rows = extend_rows(known_rows, initial, *rows_by_table[table])
                values[path] = np.moveaxis(rows, 0, axis)
        assignments.append((variables, values))
    for variables, values in assignments:
        assign_arrays(variables, values)


def check_frozen_rows(
    pretrained: Pretrained, network: keras.Model, vocabulary: Vocabulary, freeze: Sequence[str]
) -> None:
    """Raise ConfigError if rows of new symbols would be frozen as random ones."""
    new_symbols = pretrained.vocabulary.symbols.unknown(vocabulary.symbols.symbols)
    if not freeze or not new_symbols:
        return
    components = network.component_layers()
    tables = network.vocabulary_variables()
    for name in freeze:
        variables = chain.from_iterable(layer.variables for layer in components[name])
        paths = {variable.path for variable in variables}
        if any(tables[path][0] == "symbols" for path in paths.intersection(tables)):
            raise ConfigError(
                f"--freeze {name} was given, but the corpus has symbols that"
                f" {pretrained.run.path} does not have ({list_names(new_symbols)}), and these would"
                f" never be learnt. Leave {name} out of --freeze."
            )


def added_variables(network: keras.Model) -> set[str]:
    """Return the paths of the variables that a pretrained run of the same task may lack."""
    layers = network.added_layers() if hasattr(network, "added_layers") else []
    variables = chain.from_iterable(layer.variables for layer in layers)
    return {variable.path for variable in variables}


def check_shapes(
    checkpoint: Path, weights: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise CheckpointError unless weights have the expected shapes, by name."""
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
    """Return the known rows in a new order, with rows for new names.

    A new row is the mean of the known rows that have names plus its initial row.

    Args:
        known: float32 [special + K, …], special rows and rows of `known_names`.
        initial: float32 [special + N, …], special rows and random rows of `names`.
        special: number of rows without a name. They are copied, and not part of the mean: the row
            of the padding is never learnt.

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
    plural = "" if len(known) == 1 else "s"
    counts = f"{len(known)} {noun}{plural} kept, {len(new)} new"
    return f"{counts} ({list_names(new)})" if new else counts


def list_names(names: Sequence[str]) -> str:
    """Return the first names in one line."""
    listed = list(names[:MAX_LISTED_NAMES])
    if len(names) > MAX_LISTED_NAMES:
        listed.append("…")
    return " ".join(listed)
