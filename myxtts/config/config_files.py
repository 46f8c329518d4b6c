"""Configuration files that cannot be read: what there is instead."""

from pathlib import Path

from myxtts.config.settings import nearest

SHIPPED = Path("configs")
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


def _hint(path: Path, folder: Path) -> str:
    """Return the configurations of a folder, or those of configs/ if it has none, and the nearest to a path."""
    folder = folder if _yaml_files(folder) else SHIPPED
    files = {name.rpartition(".")[0]: name for name in _yaml_files(folder)}
    if not files:
        return f"Paths are relative to {Path.cwd()}."
    near = nearest(path.stem.strip(), files)
    listed = [*list(files.values())[:MAX_LISTED], *["…"] * (len(files) > MAX_LISTED)]
    return f"{f'Did you mean {folder / files[near]}? ' if near else ''}Files in {folder}: {', '.join(listed)}."


def _yaml_files(folder: Path) -> list[str]:
    """Return the names of the YAML files of a folder."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.suffix in (".yaml", ".yml") and path.is_file())
    except OSError:
        return []
