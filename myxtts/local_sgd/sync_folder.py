"""The layout of --sync-dir; see sync.py. No TensorFlow."""

from pathlib import Path


def sync_folders(sync_dir: Path) -> list[Path]:
    """Return the folder of each sync, by step."""
    folders = (path for path in sync_dir.glob("sync-*") if path.name.removeprefix("sync-").isdecimal())
    return sorted(folders, key=sync_step)


def sync_step(sync_folder: Path) -> int:
    """Return the step of a sync by its folder."""
    return int(sync_folder.name.removeprefix("sync-"))


def newest_average(sync_dir: Path) -> Path | None:
    """Return the newest averaged checkpoint, if there is one."""
    averages = (path / "averaged" for path in reversed(sync_folders(sync_dir)))
    return next((path for path in averages if path.exists()), None)
