"""The folder of a run: its layout, and whether a run may start or resume in it.

runs/<name>/
    config.yaml       resolved settings; loads back
    run.json          corpus, buckets, devices, versions and commit
    metrics.jsonl     one object per report
    timeline.json     what the threads did in the last seconds
    log.txt           the lines of the console, with timestamps
    checkpoints/      see checkpoint_files.py
    samples/          step-000500/*.wav and *.png
    evaluation/       step-000500/scores.md
    tensorboard/
    report.html       how the run is doing, on one page; ../index.html has all runs
    rejected.csv      unusable rows of the corpus
    manifest-*.npz    cached manifests
    pcm-*.int16       the decoded corpus, with --cache-dataset
    .lock             held by the process that trains the run
    worker-N/         caches, metrics and log of worker N of several
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from myxtts.config.effects import values_of, without_effect
from myxtts.config.schema import Config
from myxtts.errors import CheckpointError, ConfigError
from myxtts.files import (
    PARTIAL_FILES,
    is_being_written,
    locked_file,
    make_folder,
    write_json,
    write_whole,
)
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.inherited_settings import INHERITED

# Settings that determine the plan, the symbols and the weights: they cannot change within a run.
FIXED = {
    "data": (
        *("text_frontend", "batch_size", "batch_seconds", "buckets", "reference_seconds"),
        *("validation_fraction", "min_seconds", "max_seconds"),
    ),
    "model": INHERITED["model"],
    "asr": INHERITED["asr"],
    "vocoder": ("discriminators",),
    "teacher": ("teacher_fraction", "produce_precision"),
    # A checkpoint holds moments and averages of the trained weights only, so `freeze` is fixed,
    # too.
    "training": ("seed", "gradient_accumulation", "precision", "ema_decay", "init_from", "freeze"),
    "local_sgd": ("sync_every", "jobs", "job"),
}


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

    def of_process(self, process: int) -> Path:
        """Return the folder for caches and the log of a process; the chief is process 0."""
        return self.path / f"worker-{process}" if process else self.path

    def write_config(self, text: str) -> None:
        write_whole(self.config, text.encode())

    def write_description(self, description: Mapping[str, Any]) -> None:
        """Write run.json."""
        write_json(self.path / "run.json", description)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of this run for as long as the scope or the process lasts.

        Makes the folder, removes what killed processes left of files that they wrote, and removes
        the folder again if nothing was written to it.

        Raises:
            ConfigError: another process trains this run, or the folder cannot be made.
        """
        with ExitStack() as scope:
            try:
                make_folder(self.path, "--runs-dir")
                scope.enter_context(locked_file(self.path / LOCK, wait=False))
            except (
                BlockingIOError,
                FileNotFoundError,
            ) as error:  # or it has just failed, and removed the folder
                raise ConfigError(
                    f"run '{self.path.name}' cannot be trained: another process is training it in"
                    f" {self.path}. Wait for it or stop it, or choose another name with --run."
                ) from error
            for partial in self.path.glob(PARTIAL_FILES):
                if not is_being_written(partial):
                    partial.unlink(missing_ok=True)
            scope.callback(self._remove_if_empty)
            yield

    def _remove_if_empty(self) -> None:
        if [path.name for path in self.path.iterdir()] == [LOCK]:
            with suppress(OSError):  # another start has made files since
                (self.path / LOCK).unlink()
                self.path.rmdir()


def check_same_settings(checkpoint: Path, saved: Config, requested: Config) -> None:
    """Raise CheckpointError if a run is to resume with another value of a fixed setting that has an
    effect.
    """
    useless = {
        setting.name
        for config in (saved, requested)
        for setting in without_effect(values_of(config))
    }
    for section, names in FIXED.items():
        for name in names:
            before, now = (getattr(getattr(config, section), name) for config in (saved, requested))
            if name not in useless and _without_order(before) != _without_order(now):
                raise CheckpointError(
                    f"{section}.{name} is {_shown(now)}, but {checkpoint} was written with"
                    f" {_shown(before)}, and it cannot change within a run. Set it to"
                    f" {_shown(before)}, or take all settings from the run with --config"
                    f" {checkpoint.parents[1] / 'config.yaml'}, or start another run with --run."
                )


def _shown(value: Any) -> str:
    """Return a value as a flag takes it."""
    return (
        (" ".join(value) or "nothing")
        if isinstance(value, tuple)
        else "null"
        if value is None
        else str(value)
    )


def _without_order(value: Any) -> Any:
    """Return a value to compare: the only list among the FIXED settings, `freeze`, has no order."""
    return set(value) if isinstance(value, tuple) else value


def check_same_texts(checkpoint: Path, metadata: dict[str, Any]) -> None:
    """Raise CheckpointError if the teacher of a run would speak other texts; the arguments are as
    below.
    """
    if read_metadata(checkpoint).get("texts") != metadata["texts"]:
        raise CheckpointError(
            f"{checkpoint} was trained on other texts without recordings. Give the --texts that the"
            " run was started with, or start another run with --run."
        )


def check_same_corpus(checkpoint: Path, metadata: dict[str, Any]) -> None:
    """Raise CheckpointError if a checkpoint was trained on another corpus, or with other symbols or
    languages.

    Args:
        metadata: of the checkpoints that the run would write now.
    """
    saved, current = read_metadata(checkpoint), json.loads(json.dumps(metadata))
    vocabulary = (
        ("symbols", "languages") if current["symbols"] else ()
    )  # a vocoder's weights know no languages
    for name in (*vocabulary, "corpus"):
        if (
            saved[name] != current[name] and saved[name] is not None
        ):  # a fork or merge has no corpus of its own yet
            raise CheckpointError(
                f"{checkpoint} was trained on another corpus (different {name}). "
                "Give the corpus that the run was started with, or start another run with --run."
            )
