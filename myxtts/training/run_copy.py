"""The copy of a run in an object store: --runs-dir s3://BUCKET/RUNS.

A run is written to a local folder, as any other, and what is complete there is copied. A
checkpoint in the store is complete if it has its state.json, which is copied last and removed
first. A run that resumes on another machine takes the complete ones from the store.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

from myxtts import files
from myxtts.config.schema import RunConfig
from myxtts.distributed.cluster import Cluster
from myxtts.errors import ConfigError, DataError
from myxtts.stores import is_url, open_store
from myxtts.training.checkpoint_files import STATE, latest, step_of
from myxtts.training.runs import RunFolder

CHECKPOINTS = "checkpoints/"
# Caches, other workers' files, and what is not complete.
NOT_COPIED = ("manifest-*", "pcm-*", "worker-*", ".*")

log = logging.getLogger(__name__)


@contextmanager
def run_copy(
    config: RunConfig, folder: RunFolder, cluster: Cluster | None = None
) -> Iterator[Callable[[], None]]:
    """Fetch a run, and yield what copies its files to the store, for the chief alone, which also
    does so at the end. Does nothing if --runs-dir is no URL. Raises what `fetch_run` does.
    """
    copy = fetch_run(config, folder)
    if copy is None or (cluster is not None and not cluster.is_chief):
        yield lambda: None
        return
    log.info("run copy       %s, of the folder %s", copy.url, folder.path)
    try:
        yield copy.update
    except Exception:
        with suppress(DataError):
            copy.update()
        raise
    copy.update()


def fetch_run(config: RunConfig, folder: RunFolder) -> "RunCopy | None":
    """Bring a run that resumes to this machine; None if --runs-dir is no URL.

    Raises ConfigError if the store has a run of that name, unless it resumes, and DataError if the
    store cannot be used.
    """
    if not is_url(config.runs_dir):
        return None
    copy = RunCopy(f"{config.runs_dir.rstrip('/')}/{config.run}", folder)
    with files.locked_file(folder.path.with_name(f".{config.run}.fetch")):
        copy.fetch(config.resume)
    return copy


class RunCopy:
    """A run in a store and its local folder."""

    def __init__(self, url: str, folder: RunFolder):
        self.url, self._folder = url, folder
        self._store = open_store(url)
        folder.path.mkdir(parents=True, exist_ok=True)
        # As they were when they were copied.
        self._copied: dict[str, files.FileStamp | None] = {}

    def fetch(self, resume: bool = True) -> None:
        """Bring the complete checkpoints and the other files of the run here, if one of them is
        newer than those of this machine.
        """
        names = self._store.list()
        if names and not resume:
            raise ConfigError(
                f"the run cannot be started: {self.url} already holds one. Resume it with --resume,"
                " or choose another name with --run."
            )
        complete = {Path(name).parent for name in names if _is_state(name)}
        newest = max(map(step_of, complete), default=0)
        own = latest(self._folder.checkpoints)
        if not complete or (own is not None and step_of(own) >= newest):
            return
        for checkpoint in complete:
            target = self._folder.path / checkpoint
            if not target.exists():
                with files.new_folder(target) as partial:
                    for name in names:
                        if Path(name).parent == checkpoint:
                            self._store.fetch(name, partial / Path(name).name)
        for name in names:
            if not name.startswith(CHECKPOINTS):
                self._store.fetch(name, self._folder.path / name)
        stamps = self._stamps()
        self._copied = {name: stamps[name] for name in names if name in stamps}
        log.info("run copy       step %d was fetched from %s", newest, self.url)

    def update(self) -> None:
        """Copy what has changed since the last update; remove checkpoints that are gone."""
        stamps, stored = self._stamps(), self._store.list()
        changed = [name for name in stamps if self._copied.get(name) != stamps[name]]
        # Until all of a rewritten checkpoint are there, it is none.
        rewritten = {str(Path(name).with_name(STATE)) for name in changed if not _is_state(name)}
        self._store.delete([name for name in stored if name in rewritten])
        # With a checkpoint that counts, the metrics until then are there.
        for name in sorted(changed, key=_is_state):
            # A file may be replaced by another thread meanwhile.
            with suppress(FileNotFoundError):
                self._store.put(name, self._folder.path / name)
                self._copied[name] = stamps[name]
        gone = [name for name in stored if name.startswith(CHECKPOINTS) and name not in stamps]
        self._store.delete(sorted(gone, key=_is_state, reverse=True))

    def _stamps(self) -> dict[str, files.FileStamp | None]:
        """Return the files that are copied, by name."""
        paths = sorted(path for path in self._folder.path.rglob("*") if path.is_file())
        names = (path.relative_to(self._folder.path) for path in paths)
        return {
            str(name): files.file_stamp(self._folder.path / name)
            for name in names
            if not any(fnmatch(*each) for each in product(name.parts, NOT_COPIED))
        }


def _is_state(name: str) -> bool:
    return name.endswith(f"/{STATE}")
