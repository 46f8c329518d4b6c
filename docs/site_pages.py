"""Lay out the pages of the site: `make site`.

The site begins at the README of the project. What it links to, and what these pages link to, is
copied into `build/pages` under the same paths, so that each relative link works as it does in the
repository. `zensical.toml` makes the site of this folder.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"

LINK = re.compile(r"\]\(([^)\s#]+)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def linked_files(page: Path) -> Iterator[Path]:
    """Yield the files of the project to which a page links."""
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if ":" not in link:
            yield (page.parent / link).resolve()


def reachable(start: Path) -> set[Path]:
    """Return a page, and all files that it or a page among them links to."""
    found, waiting = {start}, [start]
    while waiting:
        new = set(linked_files(waiting.pop())) - found
        found |= new
        waiting += [path for path in new if path.suffix == ".md"]
    return found


def main() -> None:
    """Copy all files of the site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    files = sorted(reachable(ROOT / "README.md"))
    for path in files:
        target = PAGES / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    print(f"{len(files)} files in {PAGES.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
