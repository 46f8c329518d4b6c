"""The modules and tests of mutants, and the copy of the checkout in which they are tested."""

import ast
import unittest
from pathlib import Path

from tests.robustness.device_mutants import MUTANTS
from tests.robustness.mutants import COPIED, TESTS, module_and_case, path_of
from tests.run import path_of_module

ROOT = Path(__file__).parents[1]


class Tests(unittest.TestCase):
    def test_every_module_and_test_exists(self):
        for module, tests in TESTS.items():
            self.assertTrue(path_of(module).exists(), module)
            for test in tests:
                module, case = module_and_case(test)
                source = path_of_module(module).read_text(encoding="utf-8")
                self.assertIn(f"class {case}", source, test)

    def test_every_text_that_a_planted_defect_replaces_is_there_once(self):
        for planted in MUTANTS:
            with self.subTest(planted.id):
                self.assertNotEqual(planted.source(), path_of(planted.module).read_text("utf-8"))


class Copy(unittest.TestCase):
    def test_it_has_every_package_that_tests_import(self):
        imported = set()
        for path in ROOT.glob("tests/*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                imported |= {name.split(".")[0] for name in names if name}
        packages = {name for name in imported if (ROOT / name).is_dir()}
        self.assertIn("myxtts", packages)
        self.assertLessEqual(packages, set(COPIED))
