"""The layout of --sync-dir, and whether a run owes a sync; see sync.py. No TensorFlow."""

from pathlib import Path


def owes_sync(sync_every: int, audio_s_since_sync: float) -> bool:
    """Return whether a run that has all its steps still owes the last sync, since it was stopped
    while it waited.

    Args:
        sync_every: steps between two syncs; 0 is off.
    """
    return bool(sync_every) and audio_s_since_sync > 0


def sync_folders(sync_dir: Path) -> list[Path]:
    """Return the folder of each sync, by step."""
    folders = (
        path for path in sync_dir.glob("sync-*") if path.name.removeprefix("sync-").isdecimal()
    )
    return sorted(folders, key=sync_step)


def sync_step(sync_folder: Path) -> int:
    """Return the step of a sync by its folder."""
    return int(sync_folder.name.removeprefix("sync-"))


def newest_average(sync_dir: Path) -> Path | None:
    """Return the newest averaged checkpoint, if there is one."""
    averages = (path / "averaged" for path in reversed(sync_folders(sync_dir)))
    return next((path for path in averages if path.exists()), None)
