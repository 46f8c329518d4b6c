"""A package of somebody else adds a command, a hook and a store, by entry points alone."""

import contextlib
import io
import sys
import unittest
from importlib import invalidate_caches
from importlib.util import find_spec
from unittest import mock

from myxtts.base.members import store_of
from myxtts.commands import main
from tests.fixtures import FolderCase
from tests.tiny import Workspace

MODULE = """
from myxtts.config.parser import CommandParser, add_flag

NAME, HELP = "greet", "Greet a person."


def main(argv, prog="myxtts greet"):
    parser = CommandParser(prog, HELP)
    add_flag(parser, "--person", "who is greeted", required=True)
    print("hello", parser.parse(argv).person)
    return 0


class Note:
    pause_kind = "note"

    def __init__(self, folder):
        self.folder = folder

    def is_due(self, end):
        return end.state.step == 2

    def __call__(self, end):
        (self.folder / "noted").touch()


def make_hook(setup, checkpoints, request):
    return Note(setup.run.folder.path)


def open_store(url):
    return "a toy" if url.startswith("toy:") else None
"""
ENTRY_POINTS = """
[myxtts.commands]
greet = of_others
[myxtts.hooks]
note = of_others:make_hook
[myxtts.stores]
toy = of_others:open_store
"""


class OtherPackage(FolderCase):
    def setUp(self):
        super().setUp()
        site = self.write_package("of_others", MODULE, ENTRY_POINTS)
        path = mock.patch.object(sys, "path", [str(site), *sys.path])
        path.start()
        self.addCleanup(path.stop)
        self.addCleanup(sys.modules.pop, "of_others", None)
        invalidate_caches()

    def printed(self, *argv: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(main.run(argv), 0)
        return out.getvalue()

    def test_its_command_is_listed_and_runs(self):
        self.assertRegex(self.printed("--help"), r"\n  greet +Greet a person\.\n")
        self.assertEqual(self.printed("greet", "--person", "anna"), "hello anna\n")

    @unittest.skipUnless(find_spec("shtab"), "shtab")
    def test_a_shell_completes_the_flags_of_its_command(self):
        self.assertIn("--person", self.printed("--print-completion", "bash"))

    def test_its_hook_runs_between_two_steps_of_a_run(self):
        workspace = Workspace.with_toy_models(self.addCleanup)
        finished = workspace.train("noting", "--max-steps 2 --log-every 2")
        self.assertEqual((finished.code, finished.err), (0, ""))
        self.assertTrue((workspace.run_dir("noting") / "noted").exists())

    def test_its_store_opens_the_urls_that_it_takes(self):
        self.addCleanup(store_of.cache_clear)
        self.assertEqual(store_of("toy://corpus"), "a toy")
