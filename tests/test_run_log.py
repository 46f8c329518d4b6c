"""The log file of a run: lines from before it is open, and the error that ends the run."""

import logging
import unittest

from myxtts.errors import DataError
from myxtts.observe.run_log import RunLog
from tests.fixtures import temporary_folder

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
        return [
            line[len("2026-01-31 12:00:00 ") :]
            for line in self.path.read_text(encoding="utf-8").splitlines()
        ]

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


if __name__ == "__main__":
    unittest.main()
