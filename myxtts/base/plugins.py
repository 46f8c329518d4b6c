"""The door: where the program finds what it can do without, its own extras and packages of others.

A group has names and objects, which are imported when they are used. GROUPS has ours; an installed
package adds its own as entry points of `myxtts.GROUP`. An extra whose folder was removed is left
out.

    commands   a module with NAME, HELP, main(argv, prog), and EXTRA if it needs an extra
    corpora    reader(CorpusOptions) -> Layout, Rows or None for another layout
    hooks      make(TrainingSetup, Checkpoints, StopRequest) -> Hook or None; before the feed opens
    stores     open(url) -> Store, or None for a URL that another one opens
    speakers   open(source, voice) -> CorpusSpeaker, or None for a source of another kind
"""

import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from myxtts.base.errors import ConfigError

# The first object of a group that takes something is used: packages of others come before these.
GROUPS: dict[str, dict[str, str]] = {
    "commands": {
        "train": "myxtts.commands.train",
        "preflight": "myxtts.commands.preflight",
        "profile": "myxtts.commands.profile",
        "plan": "myxtts.commands.plan",
        "say": "myxtts.commands.say",
        "voices": "myxtts.commands.voices",
        "synthesize": "myxtts.commands.synthesize",
        "evaluate": "myxtts.commands.evaluate",
        "transcribe": "myxtts.commands.transcribe",
        "export": "myxtts.extras.export.export_command",
        "launch": "myxtts.commands.launch",
        "jobs": "myxtts.extras.jobs.jobs_command",
        "merge": "myxtts.extras.jobs.merge_command",
        "shard": "myxtts.extras.jobs.shard_command",
        "corpus": "myxtts.extras.speakers.corpus_command",
        "text": "myxtts.commands.text",
        "align": "myxtts.extras.align.align_command",
        "inspect": "myxtts.extras.inspect.inspect_command",
        "pack": "myxtts.extras.store.pack_command",
        "voice": "myxtts.extras.voice.voice_command",
        "serve": "myxtts.extras.serve.serve_command",
        "publish": "myxtts.extras.publish.publish_command",
        "check-distributed": "myxtts.commands.check_distributed",
    },
    "corpora": {
        "packed": "myxtts.extras.store.packed:read_packed",
        "table": "myxtts.corpus.tables:read_table",
        "kaldi": "myxtts.extras.layouts.trees:read_kaldi",
        "parquet": "myxtts.extras.store.parquet:read_parquet",
        "tree": "myxtts.extras.layouts.trees:read_tree",
        "tar_shards": "myxtts.extras.store.tar_shards:read_tar_shards",
        "audio": "myxtts.corpus.layouts:read_folder",
    },
    "hooks": {"sync": "myxtts.extras.jobs.hook:make"},
    "stores": {"obstore": "myxtts.extras.store.stores:open_store"},
    "speakers": {
        "hibari": "myxtts.extras.speakers.speaker:open_hibari",
        "kokoro": "myxtts.extras.speakers.speaker:open_kokoro",
        "route": "myxtts.extras.speakers.speaker:open_route",
        "voice": "myxtts.extras.speakers.speaker:open_voice",
    },
}

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
