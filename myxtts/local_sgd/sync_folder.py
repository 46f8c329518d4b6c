"""The folder by which jobs merge, as others see it: see exchange.py. No TensorFlow."""

from pathlib import Path


def rounds_in(exchange: Path) -> list[Path]:
    """Folders of the rounds, by the step they end at."""
    found = (path for path in exchange.glob("round-*") if path.name.removeprefix("round-").isdecimal())
    return sorted(found, key=end_of)


def end_of(round_folder: Path) -> int:
    """The step at which a round ends."""
    return int(round_folder.name.removeprefix("round-"))


def newest_merge(exchange: Path) -> Path | None:
    """The newest merge, if there is one."""
    return next((path / "merged" for path in reversed(rounds_in(exchange)) if (path / "merged").exists()), None)
