"""--init-from: the vocabulary and the weights of a pretrained run, for a run that starts from it.

What comes in is the folder of the pretrained run. Its weights are read at once, in the main thread.
Later, when the new network is built, `load_pretrained` matches rows of embeddings by name. The new
vocabulary begins with the pretrained one, and its symbols and languages keep their weights, also if
the new corpus lacks them. What goes out is the new network with these weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import keras
import numpy as np

from myxtts.base.errors import ConfigError
from myxtts.base.names import base_language
from myxtts.checkpoints.files import MODEL, Ancestor
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.checkpoints.variables import load_variables
from myxtts.config.flags import join_names
from myxtts.config.schema import Config
from myxtts.corpus.manifest import Vocabulary
from myxtts.tasks.registry import task_of
from myxtts.text.symbols import FIRST_SYMBOL_ID


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A pretrained run with its weights in memory: it may go on training, and prune checkpoints."""

    run: TrainedRun
    weights: dict[str, np.ndarray]  # the ones that inference uses

    @property
    def vocabulary(self) -> Vocabulary:
        return self.run.inheritable_vocabulary

    @property
    def ancestor(self) -> Ancestor:
        """The entry for the pretrained run in the checkpoints of the new run."""
        record, source = self.run.record, self.run.source.model_dump()
        symbols, languages = len(record.symbols), len(record.languages)
        return Ancestor(**source, symbols=symbols, languages=languages, speakers=0)

    def describe(self, vocabulary: Vocabulary) -> str:
        """Say in one line what a run with this vocabulary keeps."""
        known = self.vocabulary
        kept = []
        for noun, before, now in (
            ("symbols", known.symbols.symbols, vocabulary.symbols.symbols),
            ("languages", known.languages, vocabulary.languages),
        ):
            new = [name for name in now if name not in before]
            names = ""
            if new:
                names = f" ({join_names(new)})"
            kept.append(f"{noun} {len(before)} kept, {len(new)} new{names}")
        return f"{self.run.path} step {self.run.record.step}: {', '.join(kept)}"


def read_pretrained(run: Path, folder: Path) -> Pretrained:
    """Read the pretrained run of a new run in `folder`; raise ConfigError if they are the same."""
    if run.resolve() == folder.resolve():
        raise ConfigError(
            f"{folder} cannot start from its own weights (--init-from {run}). Resume a run with"
            " --resume, or give the new run another name with --run."
        )
    trained = TrainedRun.open(run)
    return Pretrained(trained, trained.weights())


def check_freeze(config: Config) -> None:
    """Raise ConfigError if --freeze names unknown components, random weights, or everything."""
    frozen, components = config.training.freeze, task_of(config).components
    fault = ""
    if unknown := set(frozen).difference(components):
        fault = f"it has no {', '.join(sorted(unknown))}"
    elif frozen and config.training.init_from is None:
        fault = "without --init-from these components would stay random"
    elif set(frozen) == set(components):
        fault = "nothing would be left to train"
    if fault:
        raise ConfigError(
            f"--freeze {' '.join(frozen)} was given, but {fault}. Name some of"
            f" {', '.join(components)}, and a trained run with --init-from, or leave it out."
        )


# Each table of embeddings gets the rows of the new vocabulary: known names keep their row, and new
# names get one (`extend_rows`). All other weights are taken as they are. The variables of layers
# that only the new network has are left out, unless the pretrained run has weights of that name.
# Then all variables are set together, which also finds a missing one or a wrong shape.
def load_pretrained(
    pretrained: Pretrained, network: keras.Model, vocabulary: Vocabulary, freeze: Sequence[str] = ()
) -> None:
    """Give a new network, with initial weights from its seed, the weights of a pretrained run.

    A row that the pretrained run lacks becomes the mean of its named rows plus the network's own
    small random row (Hewitt 2021, "Initializing new word embeddings"): the next layers expect a row
    there, and new rows differ. A language is taken from the same one of other regions, if there are
    such rows (`en` from `en-us`). Layers that are `added_layers` keep their initial weights.

    Raises CheckpointError if the weights belong to another architecture, and ConfigError if a
    component of `freeze` has rows of new symbols, which would stay random.
    """
    check_frozen_rows(pretrained, network, vocabulary, freeze)
    known = pretrained.vocabulary
    rows_by_table = {
        "symbols": (known.symbols.symbols, vocabulary.symbols.symbols, FIRST_SYMBOL_ID),
        "languages": (known.languages, vocabulary.languages, 0),
    }
    added: Sequence[keras.Layer] = ()
    if hasattr(network, "added_layers"):
        added = network.added_layers()
    added_paths = {v.path for v in chain.from_iterable(layer.variables for layer in added)}
    weights = dict(pretrained.weights)
    without_weights = added_paths.difference(weights)
    variables = {v.path: v.value for v in network.variables if v.path not in without_weights}
    for path, (table, axis) in network.vocabulary_variables().items():
        if path not in weights:
            continue
        initial = np.moveaxis(variables[path].numpy(), axis, 0)
        known_rows = np.moveaxis(weights[path], axis, 0)
        known_names, names, special = rows_by_table[table]
        # Rows of another architecture are left as they are, and rejected below.
        if known_rows.shape == (special + len(known_names), *initial.shape[1:]):
            kind = base_language if table == "languages" else str
            rows = extend_rows(known_rows, initial, known_names, names, special, kind)
            weights[path] = np.moveaxis(rows, 0, axis)
    load_variables(pretrained.run.checkpoint, {MODEL: variables}, {MODEL: weights})


def check_frozen_rows(
    pretrained: Pretrained, network: keras.Model, vocabulary: Vocabulary, freeze: Sequence[str]
) -> None:
    """Raise ConfigError if rows of new symbols would be frozen as random ones."""
    new_symbols = pretrained.vocabulary.symbols.unknown(vocabulary.symbols.symbols)
    if not new_symbols:
        return
    tables = network.vocabulary_variables()
    for name in freeze:
        layers = network.component_layers()[name]
        paths = {v.path for v in chain.from_iterable(layer.variables for layer in layers)}
        if any(tables[path][0] == "symbols" for path in paths.intersection(tables)):
            raise ConfigError(
                f"--freeze {name} was given, but {pretrained.run.path} lacks symbols of the corpus"
                f" ({join_names(new_symbols)}), which would never be learnt. Leave {name} out."
            )


def extend_rows(
    known: np.ndarray,
    initial: np.ndarray,
    known_names: Sequence[str],
    names: Sequence[str],
    special: int,
    kind: Callable[[str], str] = str,
) -> np.ndarray:
    """Return the known rows in a new order, with rows for new names: float32 [special + N, …].

    A new row is its initial row plus the mean of the known rows whose names are of its `kind`, or
    else of all that have names. The `special` rows have no names. They are copied, and not part of
    the mean: the row of the padding is not learnt.

    Args:
        known: float32 [special + K, …], special rows and rows of `known_names`.
        initial: float32 [special + N, …], special rows and random rows of `names`.
    """
    row_of = {name: row for row, name in enumerate(known_names, special)}
    rows = known[special:].mean(axis=0) + initial
    rows[:special] = known[:special]
    for row, name in enumerate(names, special):
        if name in row_of:
            rows[row] = known[row_of[name]]
        elif akin := [row_of[other] for other in known_names if kind(other) == kind(name)]:
            rows[row] = known[akin].mean(axis=0) + initial[row]
    return rows
