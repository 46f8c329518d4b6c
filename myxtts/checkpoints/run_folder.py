"""The folder of a run: its files, and the lock that one process holds."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from myxtts.base import files
from myxtts.base.errors import ConfigError

LOCK = ".lock"


class RunFolder:
    """Paths of a run, and the lock on it."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.samples = path / "samples"
        self.tensorboard = path / "tensorboard"

    def check_not_existing(self, resume: bool) -> None:
        """Raise ConfigError if there is a run in this folder, unless `resume` is on."""
        if not resume and (self.config.exists() or self.checkpoints.exists()):
            raise ConfigError(
                f"run '{self.path.name}' cannot be started: {self.path} already holds a run. "
                "Resume it with --resume, or choose another name with --run."
            )

    @contextmanager
    def locked(self, lock: bool = True) -> Iterator[None]:
        """Keep other processes out of this run for as long as the scope or the process lasts.

        Makes the folder, removes partial files of killed processes, and an empty folder again.
        Raises ConfigError where it cannot be locked. Without `lock` other processes stay unknown.
        """
        with ExitStack() as scope:
            try:
                files.make_folder(self.path, "--runs-dir")
                scope.enter_context(files.locked_file(self.path / LOCK, wait=False, lock=lock))
            # FileNotFoundError: the other process has just failed, and removed the folder.
            except (BlockingIOError, FileNotFoundError) as error:
                raise ConfigError(
                    f"run '{self.path.name}' cannot be trained: another process is training it in"
                    f" {self.path}. Wait for it or stop it, or choose another name with --run."
                ) from error
            except OSError as error:
                if error.errno not in files.NO_LOCKS:
                    raise
                raise ConfigError(
                    f"{self.path / LOCK} cannot be locked: {error.strerror}. Mount it with locks"
                    " (Lustre: -o flock), or give --no-lock, and start the run only once."
                ) from error
            files.remove_partial_files(self.path)
            try:
                yield
            finally:
                if [path.name for path in self.path.iterdir()] == [LOCK]:
                    # Another start may have made files since.
                    with suppress(OSError):
                        (self.path / LOCK).unlink()
                        self.path.rmdir()
