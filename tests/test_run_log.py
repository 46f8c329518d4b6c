"""The log file of a run: lines from before it is open, and the error that ends the run."""

import io
import logging
import os
import unittest
from contextlib import redirect_stderr, redirect_stdout

from myxtts.base.console import printable, report_errors
from myxtts.base.errors import DataError
from myxtts.report.reporter import RunLog
from tests.fixtures import FolderCase, temporary_folder

log = logging.getLogger("myxtts.tests")


class RunLogTest(unittest.TestCase):
    def setUp(self):
        self.path = temporary_folder(self.addCleanup) / "log.txt"
        package = logging.getLogger("myxtts")
        level, propagate = package.level, package.propagate
        self.addCleanup(setattr, package, "propagate", propagate)
        self.addCleanup(package.setLevel, level)
        package.setLevel(logging.INFO)
        package.propagate = False

    def lines(self) -> list[str]:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [line[len("2026-01-31 12:00:00 ") :] for line in lines]

    def test_lines_from_before_the_file_is_open_come_first(self):
        with RunLog() as run_log:
            log.info("devices")
            log.info("corpus %d", 3)
            self.assertFalse(self.path.exists())
            run_log.open(self.path)
            self.assertEqual(self.lines(), ["devices", "corpus 3"])
            log.info("step")
            self.assertEqual(self.lines(), ["devices", "corpus 3", "step"])
        log.info("after the run")
        self.assertEqual(self.lines(), ["devices", "corpus 3", "step"])

    def test_the_error_that_ends_a_run_is_the_last_line(self):
        with self.assertRaises(DataError), RunLog() as run_log:
            run_log.open(self.path)
            log.info("step")
            raise DataError("utterance 'a' cannot be read")
        self.assertEqual(self.lines(), ["step", "ended by DataError: utterance 'a' cannot be read"])

    def test_a_run_that_ends_before_the_file_is_open_writes_none(self):
        with self.assertRaises(DataError), RunLog():
            raise DataError("no corpus")
        self.assertFalse(self.path.exists())


class Printable(FolderCase):
    def test_what_a_terminal_would_act_on_is_escaped(self):
        for text, shown in (
            ("a\x1b[2Jb", "a\\x1b[2Jb"),
            ("a\rb\x85", "a\\rb\\x85"),
            ("gpj\u202e.wav", "gpj\\u202e.wav"),
            ("\udcff\ud800", "\\udcff\\ud800"),
            ("\u2028", "\\u2028"),
            ("line\n\tline", "line\n\tline"),
            ("می\u200cخواهم ძველი 👍🏿\u00a0é", "می\u200cخواهم ძველი 👍🏿\u00a0é"),
        ):
            with self.subTest(text=ascii(text)):
                self.assertEqual(printable(text), shown)

    def test_names_that_are_not_utf8_are_logged_and_reported(self):
        name = os.fsdecode(b"\xff\x1b.wav")
        package = logging.getLogger("myxtts")
        for name_of_value in ("handlers", "propagate"):
            value = getattr(package, name_of_value)
            self.addCleanup(setattr, package, name_of_value, value)
        self.addCleanup(package.setLevel, package.level)

        def program() -> int:
            package.warning("file %s", name)
            raise DataError(f"{name} cannot be read.")

        streams = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        out, errors = streams
        with redirect_stdout(out), redirect_stderr(errors):
            self.assertEqual(report_errors(program), 2)
        self.assertEqual(out.buffer.getvalue(), b"file \\udcff\\x1b.wav\n")
        self.assertEqual(errors.buffer.getvalue(), b"error: \\udcff\\x1b.wav cannot be read.\n")

    def test_names_that_are_not_utf8_reach_the_log_file(self):
        with redirect_stderr(io.StringIO()) as errors, RunLog() as run_log:
            run_log.open(self.folder / "log.txt")
            logging.getLogger("myxtts").error("file %s", os.fsdecode(b"\xff"))
        self.assertEqual(errors.getvalue(), "")
        self.assertIn("file \\udcff", (self.folder / "log.txt").read_text(encoding="utf-8"))
