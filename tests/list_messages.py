"""List the texts that the program shows: errors, log lines, check results and --help.

python -m tests.list_messages    writes docs/reference/messages.md
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "messages.md"
HEADING = """\
# Messages

The texts of the program: errors, log lines, results of the preflight and `--help`, by module and function.
Left out are the pages `report.html` and `index.html`, and the advice about names of other trainers. `{name}` stands for
a value. Written by `python -m tests.list_messages`: change the sources, then run it again.
"""
OMITTED = (
    "config/document.py",
    "config/foreign_names.py",
)  # a page of the documentation, and a table of names
# Modules in which other sentences are of a page, or names of random draws: only what is raised or
# logged counts.
WITH_OTHER_TEXTS = (
    "observe/run_page.py",
    "observe/page/*.py",
    "audio/augmentation.py",
    "audio/spec_augment.py",
)
CALLS = {"print", "info", "warning", "error", "exception", "write", "add_parser"}
KEYWORDS = {"help", "description", "epilog", "title", "expected", "advice"}
NAMES = {"prog", "metavar"}
WORD = re.compile(r"(?<![%{\w])[^\W\d_]{2,}(?![^{}]*\})")  # outside of {…}


def page() -> str:
    sections = [HEADING]
    omitted, mixed = matching(OMITTED), matching(WITH_OTHER_TEXTS)
    for path in sorted(set((ROOT / "myxtts").rglob("*.py")) - omitted):
        found = messages(ast.parse(path.read_text(encoding="utf-8")))
        lines = [
            entry(function, text) for function, text, shown in found if shown or path not in mixed
        ]
        if lines:
            sections.append(
                "\n".join([f"## {path.relative_to(ROOT).as_posix()}\n", "```text", *lines, "```\n"])
            )
    return "\n".join(sections)


def matching(patterns: tuple[str, ...]) -> set[Path]:
    return {path for pattern in patterns for path in (ROOT / "myxtts").glob(pattern)}


def entry(function: str, text: str) -> str:
    return f"{function}: " + text.rstrip("\n").replace("\n", "\n    ")


def messages(
    node: ast.AST, function: str = "module", shown: bool = False
) -> Iterator[tuple[str, str, bool]]:
    """(function, text, shown) of each sentence in the code, and of each string that is raised,
    logged or a help.
    """
    text = text_of(node)
    if text is not None:
        if WORD.search(text) and (" " in text.strip() or shown):
            yield function, text, shown
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile":
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = node.name if function == "module" else f"{function}.{node.name}"
    for child in ast.iter_child_nodes(node):
        if not is_docstring(child) and not (isinstance(child, ast.keyword) and child.arg in NAMES):
            yield from messages(child, function, is_shown(node, child))


def text_of(node: ast.AST | None) -> str | None:
    """The text of a string, an f-string or a sum of them; {expression} for each value. None for any
    other node.
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        conversion = f"!{chr(node.conversion)}" if node.conversion > 0 else ""
        return f"{{{ast.unparse(node.value)}{conversion}{':' * bool(node.format_spec)}{text_of(node.format_spec) or ''}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = text_of(node.left), text_of(node.right)
        if sides != (None, None):
            return "".join(
                f"{{{ast.unparse(part)}}}" if side is None else side
                for part, side in zip((node.left, node.right), sides, strict=True)
            )
    return None


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_shown(node: ast.AST, child: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in KEYWORDS
    if not isinstance(node, ast.Call) or child is node.func:
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in CALLS or name.endswith("Error")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
