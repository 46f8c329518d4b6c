"""The run that another one starts from: its tables, its weights, and the settings that these fix.

Rows are matched by name: the tables of the new run begin with those of its base, so that each symbol and language
that the base knows keeps its weights, whether the new corpus has it or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from myxtts.config.schema import Config
from myxtts.data.manifest import Vocabulary
from myxtts.errors import CheckpointError, ConfigError
from myxtts.tasks.registry import task_of
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable
from myxtts.training.checkpoint_files import digest_of, read_arrays, read_metadata
from myxtts.training.select_checkpoint import INHERITED, select_checkpoint, settings_of, vocabulary_of, weights_file

SHOWN_NAMES = 12


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A checkpoint of another run, read.

    Attributes:
        run: its folder, as it was asked for.
        checkpoint: its best checkpoint, or the newest where none is best.
        about: its state.json.
        weights: the averaged ones where the run has them, by name.
    """

    run: Path
    checkpoint: Path
    metadata: dict[str, Any]
    weights: dict[str, np.ndarray]

    @property
    def vocabulary(self) -> Vocabulary:
        """Its symbols and languages. Speakers have no weights: each run names its own."""
        return replace(vocabulary_of(self.metadata), speakers=())

    def ancestor(self) -> dict[str, Any]:
        """What a run that starts here keeps of it: two runs with equal `weights` started from the same ones.

        `weights` is a SHA-256; `symbols`, `languages` and `speakers` count the first rows of the run's tables, which it
        took over.
        """
        return {
            "run": str(self.run),
            "step": self.metadata["step"],
            "weights": digest_of(self.weights),
            "symbols": len(self.metadata["symbols"]),
            "languages": len(self.metadata["languages"]),
            "speakers": 0,
        }

    def describe(self, vocabulary: Vocabulary) -> str:
        """What of it a run with these tables keeps."""
        symbols = describe_rows("symbol", self.vocabulary.symbols.symbols, vocabulary.symbols.symbols)
        languages = describe_rows("language", self.vocabulary.languages, vocabulary.languages)
        return f"{self.run} step {self.metadata['step']}: {symbols}, {languages}"


def read_pretrained(run: Path, folder: Path) -> Pretrained:
    """The base of a new run.

    Args:
        run: folder of the base.
        folder: of the new run.

    Raises:
        ConfigError: it would start from itself.
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    if run.resolve() == folder.resolve():
        raise ConfigError(
            f"{folder} was asked to start from itself by --init-from {run}. Go on with a run by --resume, or give the "
            "new one another name by --run."
        )
    checkpoint = select_checkpoint(run)
    metadata = read_metadata(checkpoint)
    return Pretrained(run, checkpoint, metadata, read_arrays(weights_file(checkpoint, metadata)))


def inherited_vocabulary(metadata: dict[str, Any]) -> Vocabulary | None:
    """The rows that a run took over from its base, or from the run that it was forked from; None where it had none.

    Args:
        about: state.json of one of its checkpoints.
    """
    ancestor = metadata["ancestor"]
    if ancestor is None:
        return None
    vocabulary = vocabulary_of(metadata)
    symbols = vocabulary.symbols.symbols[: ancestor["symbols"]]
    return Vocabulary(
        SymbolTable(symbols), vocabulary.speakers[: ancestor["speakers"]], vocabulary.languages[: ancestor["languages"]]
    )


def inherit_settings(config: Config, checkpoint: Path) -> Config:
    """The configuration with those settings that the weights of a checkpoint fix.

    Args:
        checkpoint: of the base, or of the run itself, which goes on from it.

    Raises:
        ConfigError: it names another value of one of them.
    """
    settings, changed = settings_of(checkpoint, read_metadata(checkpoint)).model_dump(mode="json"), {}
    own = checkpoint.is_relative_to(Path(config.run.runs_dir, config.run.run))
    start, other = ("goes on", "start another run by --run") if own else ("starts", "start from another by --init-from")
    for section, names in INHERITED.items():
        asked = getattr(config, section)
        found = {name: settings[section][name] for name in names}
        for name in asked.model_fields_set.intersection(names):
            if getattr(asked, name) != found[name]:
                raise ConfigError(
                    f"{name} {getattr(asked, name)} was asked for, but the run {start} from {checkpoint}, which has "
                    f"{found[name]}. Leave {name} out, or {other}."
                )
        changed[section] = asked.model_copy(update=found)
    return config.model_copy(update=changed)


def check_freeze(config: Config) -> None:
    """Raises ConfigError where weights were to be kept that are random or not there, or where none is left to train."""
    asked, components = ", ".join(config.training.freeze), task_of(config).components
    if unknown := set(config.training.freeze).difference(components):
        raise ConfigError(
            f"--freeze was asked for with {', '.join(sorted(unknown))}, but a {config.model.task} has "
            f"{', '.join(components)}. Name some of these."
        )
    if asked and config.training.init_from is None:
        raise ConfigError(
            f"--freeze was asked for ({asked}), but the run starts from nothing, and these parts would stay random. "
            "Name the run that they come from by --init-from, or leave --freeze out."
        )
    if set(config.training.freeze) == set(components):
        raise ConfigError(
            f"--freeze was asked for with every part ({asked}), so that nothing is left to train. Leave one out."
        )


def load_pretrained(base: Pretrained, network: keras.Model, vocabulary: Vocabulary, freeze: Sequence[str] = ()) -> None:
    """Give a new network the weights of its base.

    A row that the base lacks becomes the mean of the base's named rows and its own small random row (Hewitt 2021,
    "Initializing new word embeddings"): it lies where the layers behind it expect one, and apart from other new ones.

    Args:
        network: as Keras made it, from the seed of its run.
        tables: of the new run; they begin with the base's.
        freeze: parts that are to keep their weights.

    Raises:
        CheckpointError: the weights are those of another architecture.
        ConfigError: rows of new symbols would stay random.
    """
    known = base.vocabulary
    new = known.symbols.unknown(vocabulary.symbols.symbols)
    frozen = {v.path: part for part in freeze for layer in network.component_layers()[part] for v in layer.variables}
    named = {
        "symbols": (known.symbols.symbols, vocabulary.symbols.symbols, FIRST_SYMBOL_ID),
        "languages": (known.languages, vocabulary.languages, 0),
    }
    variables = {v.path: v.value for v in network.variables}
    shapes, rows = {path: tuple(v.shape) for path, v in variables.items()}, network.vocabulary_variables()
    for path, (table, axis) in rows.items():
        if table == "symbols" and new and path in frozen:
            raise ConfigError(
                f"--freeze {frozen[path]} was asked for, but the corpus has symbols that {base.run} does not know "
                f"({shown(new)}), and these would never be learnt. Leave {frozen[path]} out of --freeze."
            )
        old, _, special = named[table]
        shapes[path] = (*shapes[path][:axis], special + len(old), *shapes[path][axis + 1 :])
    check_shapes(base, shapes)
    for path, variable in variables.items():
        weights = base.weights[path]
        if path in rows:
            table, axis = rows[path]
            fresh = np.moveaxis(variable.numpy(), axis, 0)
            weights = np.moveaxis(extend_rows(np.moveaxis(weights, axis, 0), fresh, *named[table]), 0, axis)
        variable.assign(weights)


def check_shapes(base: Pretrained, expected: dict[str, tuple[int, ...]]) -> None:
    found = {name: array.shape for name, array in base.weights.items()}
    if found != expected:
        name = min(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise CheckpointError(
            f"{base.checkpoint} was to be started from, but its '{name}' has shape {found.get(name)}, and this "
            f"version's has {expected.get(name)}. Use the version of MyXTTS that wrote it, or another --init-from."
        )


def extend_rows(
    known: np.ndarray, fresh: np.ndarray, known_names: Sequence[str], names: Sequence[str], special: int
) -> np.ndarray:
    """The known rows by name, and the mean of the named ones plus the fresh one for each other name.

    Args:
        known: float32 [special + K, …], rows of `known_names` behind the special ones.
        fresh: float32 [special + N, …], random rows of `names` behind the special ones.
        special: rows without a name, which stay and are not in the mean: that of the padding is never learnt.

    Returns:
        float32 [special + N, …], rows of `names` behind the special ones.
    """
    place = {name: row for row, name in enumerate(known_names, special)}
    rows = known[special:].mean(axis=0) + fresh
    rows[:special] = known[:special]
    for row, name in enumerate(names, special):
        if name in place:
            rows[row] = known[place[name]]
    return rows


def describe_rows(noun: str, known: Sequence[str], names: Sequence[str]) -> str:
    """Such as "41 symbols kept, 7 new (ə ʁ …)"."""
    new = [name for name in names if name not in known]
    kept = f"{len(known)} {noun}{'s' if len(known) != 1 else ''} kept, {len(new)} new"
    return f"{kept} ({shown(new)})" if new else kept


def shown(names: Sequence[str]) -> str:
    return " ".join([*names[:SHOWN_NAMES], *(["…"] if len(names) > SHOWN_NAMES else [])])
