"""Count what the conventions limit: `python -m tests.code_size` prints a table.

`tests/test_style.py` holds the limits.
"""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
WIDTH = 100


class Place(NamedTuple):
    """A place in a file that breaks a rule."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def tracked(*folders: str) -> list[Path]:
    """Return the files that git tracks in some folders."""
    command = ["git", "ls-files", "-z", "--", *folders]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in names.decode().split("\0") if name and (ROOT / name).exists()]


def python_files(folder: str = "myxtts") -> list[Path]:
    return [path for path in tracked(folder) if path.suffix == ".py"]


def line_count(paths: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def package_texts() -> list[Path]:
    """Return the tracked files of the package, without the grammars of the demo corpus."""
    return [path for path in tracked("myxtts") if "grammars" not in path.parts]


def comment_count(paths: list[Path]) -> int:
    """Count the lines that hold a comment alone."""
    lines = (line for path in paths for line in path.read_text().splitlines())
    return sum(line.lstrip().startswith("#") for line in lines)


def long_lines(paths: list[Path]) -> Iterator[Place]:
    """Yield the lines of more than WIDTH characters."""
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > WIDTH:
                yield Place(_name(path), number, f"{len(line)} characters")


def functions(paths: list[Path]) -> Iterator[tuple[int, Place]]:
    """Yield the length in lines of each function, without its decorators, and its place."""
    for path, node in _nodes(paths, ast.FunctionDef | ast.AsyncFunctionDef):
        yield (node.end_lineno or 0) - node.lineno + 1, Place(_name(path), node.lineno, node.name)


def multiplied_booleans(paths: list[Path]) -> Iterator[Place]:
    """Yield strings, lists and tuples that are multiplied by a boolean."""
    for path, node in _nodes(paths, ast.BinOp):
        pairs = ((node.left, node.right), (node.right, node.left))
        found = any(_is_sequence(left) and _is_boolean(right) for left, right in pairs)
        if isinstance(node.op, ast.Mult) and found:
            yield _place(path, node)


def nested_comprehensions(paths: list[Path]) -> Iterator[Place]:
    """Yield comprehensions with two or more loops, and comprehensions within others' elements."""
    kinds = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    for path, node in _nodes(paths, kinds):
        if len(node.generators) > 1:
            yield _place(path, node)


def inner_conditions(paths: list[Path]) -> Iterator[Place]:
    """Yield conditional expressions that are a part of another expression.

    They may be a whole right side, argument, return value or default.
    """
    whole = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Call | ast.keyword
    whole |= ast.arguments | ast.Expr | ast.Yield | ast.Lambda | ast.withitem
    for path, parent in _nodes(paths, ast.AST):
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.IfExp) and not isinstance(parent, whole):
                yield _place(path, child)


def tuple_assignments(paths: list[Path]) -> Iterator[Place]:
    """Yield assignments of several values to as many names."""
    for path, node in _nodes(paths, ast.Assign):
        if isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple):
            yield _place(path, node)


def _nodes(paths: list[Path], kind: Any) -> Iterator[tuple[Path, Any]]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield path, node


def _place(path: Path, node: ast.expr | ast.stmt) -> Place:
    return Place(_name(path), node.lineno, ast.unparse(node))


def _is_sequence(node: ast.expr) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return is_text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


def _is_boolean(node: ast.expr) -> bool:
    """Whether an expression looks like a boolean: by its operator, or by its name."""
    if isinstance(node, ast.Compare | ast.BoolOp):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        return called in ("bool", "any", "all", "startswith", "endswith")
    name = ""
    if isinstance(node, ast.Name):
        name = node.id
    elif isinstance(node, ast.Attribute):
        name = node.attr
    return name.lstrip("_") in BOOLEANS or name.lstrip("_").startswith(("is_", "has_", "can_"))


# Names of booleans that do not look like one.
BOOLEANS = "skips rises wide several exact small clips average open limits".split()


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def main() -> None:
    """Print each figure with its limit."""
    package = python_files()
    lines = line_count(package)
    proof = tracked("benchmarks/proof", "benchmarks/gpu_proof.py")
    benchmarks = [path for path in tracked("benchmarks") if path not in proof]
    lengths = sorted(functions(package), reverse=True)
    page = [place for place in lengths if place[1].path in ("myxtts/train.py",)]
    loop = [length for length, place in lengths if _is_loop(place)]
    others = [place for place in lengths if place not in page and not _is_loop(place[1])]
    rows: list[tuple[str, object, str]] = [
        ("lines of tracked text under myxtts/", line_count(package_texts()), "≤ 30,000"),
        ("modules under myxtts/", len(package), "≤ 165"),
        ("lines of myxtts/train.py", line_count(tracked("myxtts/train.py")), "≤ 450"),
        ("longest function of myxtts/train.py", page[0][0] if page else "–", "≤ 150"),
        ("lines of loop.train", loop[0] if loop else "–", "≤ 60"),
        ("longest other function", f"{others[0][0]} ({others[0][1]})", "≤ 60"),
        ("lines of tests", line_count(tracked("tests")), "≤ 30,000"),
        ("lines of benchmarks without the proof", line_count(benchmarks), "≤ 4,000"),
        ("lines of the GPU proof", line_count(proof), "≤ 3,500"),
        ("lines of docs", line_count([p for p in tracked("docs") if p.suffix == ".md"]), "≤ 6,500"),
        ("sequences multiplied by booleans", len(list(multiplied_booleans(package))), "0"),
        ("comprehensions with two loops", len(list(nested_comprehensions(package))), "0"),
        ("conditions inside expressions", len(list(inner_conditions(package))), "0"),
        ("tuple assignments per 1,000 lines", _per_1000(tuple_assignments(package), lines), ""),
        ("lines over 100 characters", len(list(long_lines(package))), "0"),
        ("comments per 1,000 lines", f"{1000 * comment_count(package) / lines:.1f}", "≥ 20"),
    ]
    for name, value, limit in rows:
        print(f"{name:<40} {value!s:>8}   {limit}")


def _is_loop(place: Place) -> bool:
    return place.path == "myxtts/training/loop.py" and place.what == "train"


def _per_1000(places: Iterator[Place], lines: int) -> str:
    return f"{1000 * len(list(places)) / lines:.1f}"


if __name__ == "__main__":
    main()
