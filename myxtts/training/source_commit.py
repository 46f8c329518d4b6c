"""The commit of a source tree. No TensorFlow."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 5.0
DIGITS = 12


@cache
def source_commit(root: Path = ROOT) -> str:
    """Return the commit of a git checkout, with `-dirty` where files were changed; empty for any
    other folder.

    Without git, as on many machines with GPUs, the commit is read from the files of the checkout.
    Then it is unknown whether others were changed, and it ends in `-unverified`.
    """
    if not (root / ".git").exists():
        return ""
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--dirty",
        f"--abbrev={DIGITS}",
        "--exclude",
        "*",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        head = _read_head(root / ".git")
        return f"{head[:DIGITS]}-unverified" if head else ""


def _read_head(git: Path) -> str:
    """Return the commit that is checked out, by the files of git; empty if they do not say."""
    try:
        if git.is_file():  # a linked worktree
            git = git.parent / git.read_text(encoding="utf-8").partition(":")[2].strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        common = (
            git / (git / "commondir").read_text(encoding="utf-8").strip()
            if (git / "commondir").exists()
            else git
        )
        if (common / name).exists():
            return (common / name).read_text(encoding="utf-8").strip()
        packed = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")
    except OSError:
        return ""
