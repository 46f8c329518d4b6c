"""Configuration files that cannot be read: what there is instead."""

from collections.abc import Sequence
from pathlib import Path

from myxtts.config.settings import nearest

SHIPPED = Path("configs")
OF_RUN = "config.yaml"
MAX_LISTED = 16


def describe(path: Path, error: OSError) -> str:
    """Return why a configuration cannot be read, and what to give instead."""
    if isinstance(error, IsADirectoryError):
        return f"it is a folder. {_hint(path / 'config.yaml', path)}"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"there is no such file. {_hint(path, path.parent)}"
    if isinstance(error, PermissionError):
        return f"{error.strerror}. Fix the permissions of the file or of its folder."
    return f"{error.strerror}. Give another file."


def listed(names: Sequence[str], most: int = MAX_LISTED) -> str:
    """Return the first names for a message, with a mark if there are more."""
    return ", ".join([*names[:most], *["…"] * (len(names) > most)])


def config_of_run(run: str, runs_dir: str) -> Path | None:
    """Return the settings that a run has recorded; None if it has none."""
    file = Path(runs_dir, run, OF_RUN)
    return file if file.is_file() else None


def is_config_of_run(path: Path) -> bool:
    """Whether a configuration is that of a run, which the run has written itself."""
    return path.name == OF_RUN and any(
        (path.parent / name).exists() for name in (".lock", "checkpoints")
    )


def is_misspelt(run: str, runs_dir: str) -> bool:
    """Whether there is no folder of a run, but a run with a similar name."""
    return not Path(runs_dir, run).exists() and nearest(run, _runs(runs_dir)) is not None


def describe_missing_run(run: str, runs_dir: str) -> str:
    """Return why a run cannot be resumed by its name alone, and what to give instead."""
    runs = _runs(runs_dir)
    near = nearest(run, runs)
    hint = f"Did you mean --run {near}? " if near else ""
    return (
        "--resume was given without the settings of a run, but there is no"
        f" {Path(runs_dir, run, OF_RUN)} to read. {hint}Runs in {runs_dir}:"
        f" {listed(runs) or 'none'}. Name a run with --run and --runs-dir, or give the settings of"
        " a new one."
    )


def _runs(runs_dir: str) -> list[str]:
    return sorted(file.parent.name for file in Path(runs_dir).glob(f"*/{OF_RUN}"))


def _hint(path: Path, folder: Path) -> str:
    """Return the configurations of a folder, or those of configs/ if it has none, and the nearest
    to a path.
    """
    folder = folder if _yaml_files(folder) else SHIPPED
    files = {name.rpartition(".")[0]: name for name in _yaml_files(folder)}
    if not files:
        return f"Paths are relative to {Path.cwd()}."
    near = nearest(path.stem.strip(), files)
    return (
        f"{f'Did you mean {folder / files[near]}? ' if near else ''}Files in {folder}:"
        f" {listed(list(files.values()))}."
    )


def _yaml_files(folder: Path) -> list[str]:
    """Return the names of the YAML files of a folder."""
    try:
        return sorted(
            path.name
            for path in folder.iterdir()
            if path.suffix in (".yaml", ".yml") and path.is_file()
        )
    except OSError:
        return []
