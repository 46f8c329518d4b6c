"""A folder that is no run with a checkpoint: why, and what to give or to do instead. No
TensorFlow.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from myxtts.config.config_files import SHIPPED, listed
from myxtts.config.load import load
from myxtts.config.schema import Config
from myxtts.config.scripts import command_line
from myxtts.config.settings import nearest
from myxtts.errors import ConfigError
from myxtts.training.checkpoint_files import latest, list_checkpoints

MAX_LISTED = 12
RUNS = Path("runs")
_CORPUS_COMMAND = re.compile(
    r"^# (python utilities/make_demo_corpus\.py .*)$", re.MULTILINE
)  # in a shipped file


def describe_missing(run: Path) -> str:
    """Return the message that a run has no checkpoint."""
    return f"{run} has no checkpoint: {_reason(run)}"


def _reason(run: Path) -> str:
    for parent in run.parents:
        if checkpoints := list_checkpoints(parent / "checkpoints"):
            names = ", ".join(path.name for path in checkpoints[-MAX_LISTED:])
            return f"it is a path inside the run {parent}, which has {names}. Give {parent}."
    if run.is_file():
        return (
            "it is a file. Give the folder of a run of MyXTTS; weights of other programs cannot be"
            " read."
        )
    if (run / "config.yaml").is_file():
        return f"the run ended before its first. Resume it with `{_resume(run)}`."
    state = "it is not the folder of a run." if run.is_dir() else "there is no such folder."
    folder = run.parent if _runs_in(run.parent) else RUNS
    advice = [*_listed(run.name, folder, _runs_in(folder)), *_commands(run)]
    return " ".join([state, *(advice or [f"`{command_line('train')}` trains a run."])])


def _listed(name: str, folder: Path, runs: list[str]) -> Iterator[str]:
    """Yield sentences about the runs in a folder, and the nearest to a name."""
    near = nearest(name, runs)
    if near:
        yield f"Did you mean {folder / near}?"
    if runs:
        yield f"Runs in {folder}: {listed(runs, MAX_LISTED)}."


def _runs_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if latest(path / "checkpoints"))
    except OSError:
        return []


def _commands(run: Path) -> Iterator[str]:
    """Yield the commands of each shipped configuration that trains a run of this name."""
    for file in sorted(SHIPPED.glob("*.yaml")):
        try:
            config = load(file)
        except ConfigError:
            continue  # a file of the user's own, which nobody asked for
        if config.run.run == run.name:
            yield "\n  ".join(
                ["These commands train it:", *_corpus_commands(file, config), _train(file)]
            )


def _corpus_commands(file: Path, config: Config) -> list[str]:
    """Return the command that makes the corpus of a shipped configuration, if the corpus is
    missing.
    """
    corpus = config.data.train_data
    has_corpus = corpus is None or Path(corpus).exists()
    return [] if has_corpus else _CORPUS_COMMAND.findall(file.read_text(encoding="utf-8"))[:1]


def _resume(run: Path) -> str:
    runs_dir = "" if run.parent == RUNS else f" --runs-dir {run.parent}"
    return f"{command_line('train')} --resume --run {run.name}{runs_dir}"


def _train(file: Path) -> str:
    return f"{command_line('train')} --config {file}"
