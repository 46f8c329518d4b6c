"""The form of the package's lines; `python -m tests.code_size` counts them."""

import unittest
from unittest import mock

from tests import code_size

# Lines of a function, without its decorators. The run on one page has a limit of its own.
LIMITS = {"myxtts/train.py": 150}
LIMIT = 60
COMMENTS_PER_1000 = 20


class StyleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.package = code_size.python_files()

    def test_no_line_is_longer_than_100_characters(self):
        # ruff skips lines without spaces, such as addresses.
        self.assertEqual(list(map(str, code_size.long_lines(self.package))), [])

    def test_functions_fit_a_screen(self):
        for length, place in code_size.functions(self.package):
            with self.subTest(str(place)):
                self.assertLessEqual(length, LIMITS.get(place.path, LIMIT))

    def test_nothing_is_multiplied_by_a_boolean(self):
        self.assertEqual(list(map(str, code_size.multiplied_booleans(self.package))), [])

    def test_no_comprehension_has_two_loops(self):
        self.assertEqual(list(map(str, code_size.nested_comprehensions(self.package))), [])

    def test_a_condition_is_a_whole_right_side_argument_or_return_value(self):
        self.assertEqual(list(map(str, code_size.inner_conditions(self.package))), [])

    def test_comments_give_reasons_throughout(self):
        lines = code_size.line_count(self.package)
        share = 1000 * code_size.comment_count(self.package) / lines
        self.assertGreaterEqual(share, COMMENTS_PER_1000)

    def test_the_counters_find_what_they_look_for(self):
        source = 'x = "s" * (n > 1)\ny = [a for b in c for a in b]\nz = 1 + (2 if n else 3)\n'
        path = code_size.ROOT / "tests" / "test_style.py"
        with mock.patch("pathlib.Path.read_text", return_value=source):
            for counter in (
                code_size.multiplied_booleans,
                code_size.nested_comprehensions,
                code_size.inner_conditions,
            ):
                self.assertEqual(len(list(counter([path]))), 1, counter.__name__)
