"""The folder by which jobs merge, as others see it: see exchange.py. No TensorFlow."""

from pathlib import Path


def sync_folders(exchange: Path) -> list[Path]:
    """Folders of the rounds, by the step they end at."""
    found = (path for path in exchange.glob("sync-*") if path.name.removeprefix("sync-").isdecimal())
    return sorted(found, key=sync_step)


def sync_step(round_folder: Path) -> int:
    """The step at which a round ends."""
    return int(round_folder.name.removeprefix("sync-"))


def newest_merge(exchange: Path) -> Path | None:
    """The newest merge, if there is one."""
    return next((path / "merged" for path in reversed(sync_folders(exchange)) if (path / "merged").exists()), None)
