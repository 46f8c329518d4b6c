"""The form of the package's lines."""

import ast
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "myxtts").rglob("*.py"))
# Lines of a function, without its decorators. The run on one page has a limit of its own.
LIMITS = {"myxtts/run/page.py": 150}
LIMIT = 60
COMMENTS_PER_1000 = 20
# Names of booleans that do not look like one.
BOOLEANS = "skips rises wide several exact small clips average open limits".split()


def multiplied_booleans(paths: list[Path]) -> Iterator[str]:
    """Yield strings, lists and tuples that are multiplied by a boolean."""
    for path, node in _nodes(paths, ast.BinOp):
        pairs = ((node.left, node.right), (node.right, node.left))
        found = any(_is_sequence(left) and _is_boolean(right) for left, right in pairs)
        if isinstance(node.op, ast.Mult) and found:
            yield _place(path, node)


def nested_comprehensions(paths: list[Path]) -> Iterator[str]:
    """Yield comprehensions with two or more loops, and comprehensions within others' elements."""
    kinds = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    for path, node in _nodes(paths, kinds):
        if len(node.generators) > 1:
            yield _place(path, node)


def inner_conditions(paths: list[Path]) -> Iterator[str]:
    """Yield conditional expressions that are a part of another expression.

    They may be a whole right side, argument, return value or default.
    """
    whole = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Call | ast.keyword
    whole |= ast.arguments | ast.Expr | ast.Yield | ast.Lambda | ast.withitem
    for path, parent in _nodes(paths, ast.AST):
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.IfExp) and not isinstance(parent, whole):
                yield _place(path, child)


def _nodes(paths: list[Path], kind: Any) -> Iterator[tuple[Path, Any]]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield path, node


def _place(path: Path, node: ast.expr) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


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


class StyleTest(unittest.TestCase):
    def test_functions_fit_a_screen(self):
        for path, node in _nodes(PACKAGE, ast.FunctionDef | ast.AsyncFunctionDef):
            name = str(path.relative_to(ROOT))
            with self.subTest(f"{name}:{node.lineno}: {node.name}"):
                lines = node.end_lineno - node.lineno + 1
                self.assertLessEqual(lines, LIMITS.get(name, LIMIT))

    def test_nothing_is_multiplied_by_a_boolean(self):
        self.assertEqual([*multiplied_booleans(PACKAGE)], [])

    def test_no_comprehension_has_two_loops(self):
        self.assertEqual([*nested_comprehensions(PACKAGE)], [])

    def test_a_condition_is_a_whole_right_side_argument_or_return_value(self):
        self.assertEqual([*inner_conditions(PACKAGE)], [])

    def test_comments_give_reasons_throughout(self):
        lines = "".join(path.read_text() for path in PACKAGE).splitlines()
        comments = sum(line.lstrip().startswith("#") for line in lines)
        self.assertGreaterEqual(1000 * comments / len(lines), COMMENTS_PER_1000)

    def test_the_counters_find_what_they_look_for(self):
        source = 'x = "s" * (n > 1)\ny = [a for b in c for a in b]\nz = 1 + (2 if n else 3)\n'
        with mock.patch("pathlib.Path.read_text", return_value=source):
            for counter in (multiplied_booleans, nested_comprehensions, inner_conditions):
                self.assertEqual(len(list(counter([ROOT]))), 1, counter.__name__)
