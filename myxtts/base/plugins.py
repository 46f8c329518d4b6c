"""The door: where the program finds what it can do without, its own extras and packages of others.

A group has names and objects, which are imported when they are used. plugins.yaml has ours; an
installed package adds its own as entry points of `myxtts.GROUP`.

    commands   a module with NAME, HELP, main(argv, prog), and EXTRA if it needs an extra
    corpora    reader(CorpusOptions) -> Layout, Rows or None for another layout
    hooks      make(TrainingSetup, Checkpoints, StopRequest) -> Hook or None; before the feed opens
    stores     open(url) -> Store, or None for a URL that another one opens
    speakers   open(source, voice) -> CorpusSpeaker, or None for a source of another kind
    frontends  make(options) -> text.readers.Reader; by the name in `text_frontend`
"""

import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from myxtts.base.errors import ConfigError
from myxtts.base.files import table_beside

# The first object of a group that takes something is used: packages of others come before these.
GROUPS: dict[str, dict[str, str]] = table_beside(__file__, "plugins.yaml")

log = logging.getLogger(__name__)


def load(group: str) -> Iterator[Any]:
    """Yield the objects of a group. Raises ConfigError if one of a package cannot be imported."""
    for point in _points(group).values():
        yield _object(group, point)


def load_one(group: str, name: str) -> Any:
    """Return an object of a group; raise as `load`."""
    return _object(group, _points(group)[name])


def _object(group: str, point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        if point.name in GROUPS[group]:
            raise
        raise ConfigError(
            f"{point.name!r} ({point.value}), which a package has added to {point.group}, cannot be"
            f" loaded: {error}. Update or remove the package."
        ) from error


def names(group: str) -> list[str]:
    """Return the names in a group; other packages come first, so that they are tried first."""
    return [*_points(group)]


# An extra whose folder was removed has no module, and its entries are left out. An entry of another
# package cannot replace a built-in one of the same name.
def _points(group: str) -> dict[str, EntryPoint]:
    entries = f"myxtts.{group}"
    own = {
        name: EntryPoint(name, value, entries)
        for name, value in GROUPS[group].items()
        if _is_there(value.partition(":")[0])
    }
    others = {point.name: point for point in entry_points(group=entries)}
    for name in own.keys() & others.keys():
        log.warning("%s of %s is ignored: it has the name of a built-in one", others[name], entries)
    return {name: point for name, point in others.items() if name not in own} | own


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
