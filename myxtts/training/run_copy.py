"""The copy of a run in an object store: --runs-dir s3://BUCKET/RUNS.

A run is written to a local folder, as any other, and what is complete there is copied. A
checkpoint in the store is complete if it has its state.json, which is copied last and removed
first. A run that resumes on another machine takes the newest complete one from the store.
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
from myxtts.training.checkpoint_files import (
    STATE,
    checkpoint_of,
    latest,
    list_checkpoints,
    read_record,
    step_of,
)
from myxtts.training.runs import RunFolder

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
        self._names = {*self._store.list()}
        # As they were when they were copied.
        self._copied: dict[str, files.FileStamp | None] = {}

    def fetch(self, resume: bool = True) -> None:
        """Bring the newest complete checkpoint here if it is newer than those of this machine, with
        the others that it names, and the files of the run.
        """
        if self._names and not resume:
            raise ConfigError(
                f"the run cannot be started: {self.url} already holds one. Resume it with --resume,"
                " or choose another name with --run."
            )
        steps = [step_of(Path(name).parent) for name in self._names if name.endswith(f"/{STATE}")]
        own = latest(self._folder.checkpoints)
        if not steps or (own is not None and step_of(own) >= max(steps)):
            return
        self._fetch_checkpoint(max(steps))
        record = read_record(checkpoint_of(self._folder.checkpoints, max(steps)))
        needed = {observation.step for observation in record.pending_observations}
        if record.best is not None:
            needed.add(record.best.step)
        for step in needed.intersection(steps):
            self._fetch_checkpoint(step)
        for name in self._names:
            if not name.startswith("checkpoints/"):
                self._store.fetch(name, self._folder.path / name)
        log.info("run copy       step %d was fetched from %s", max(steps), self.url)

    def _fetch_checkpoint(self, step: int) -> None:
        target = checkpoint_of(self._folder.checkpoints, step)
        if target.exists():
            return
        names = [name for name in self._names if Path(name).parent.name == target.name]
        with files.new_folder(target) as partial:
            for name in names:
                self._store.fetch(name, partial / Path(name).name)
        self._copied |= {name: files.file_stamp(self._folder.path / name) for name in names}

    def update(self) -> None:
        """Copy what has changed since the last update; remove checkpoints that are gone."""
        checkpoints = list_checkpoints(self._folder.checkpoints)
        kept = {checkpoint.name for checkpoint in checkpoints}
        gone = [
            name
            for name in self._names
            if name.startswith("checkpoints/") and Path(name).parent.name not in kept
        ]
        # With a checkpoint that counts, the metrics until then are there.
        for path in self._folder.path.rglob("*"):
            parts = path.relative_to(self._folder.path).parts
            is_copied = not any(fnmatch(*each) for each in product(parts, NOT_COPIED))
            if path.is_file() and is_copied and parts[0] != "checkpoints":
                self._copy([path])
        for checkpoint in checkpoints:
            self._copy(sorted(checkpoint.iterdir(), key=lambda path: path.name == STATE))
        self._delete(gone)

    def _copy(self, paths: list[Path]) -> None:
        """Copy files that have changed, in this order."""
        names = [path.relative_to(self._folder.path).as_posix() for path in paths]
        stamps = {name: files.file_stamp(path) for name, path in zip(names, paths, strict=True)}
        changed = [name for name in names if self._copied.get(name) != stamps[name]]
        if len(changed) > 1:
            # Until all of a checkpoint are there, it is none.
            self._delete([names[-1]])
            changed = [*dict.fromkeys([*changed, names[-1]])]
        for name in changed:
            # A file may be replaced by another thread meanwhile.
            with suppress(FileNotFoundError):
                self._store.put(name, self._folder.path / name)
                self._copied[name] = stamps[name]
                self._names.add(name)

    def _delete(self, names: list[str]) -> None:
        present = [name for name in names if name in self._names]
        self._store.delete(sorted(present, key=lambda name: not name.endswith(STATE)))
        self._names -= {*present}
