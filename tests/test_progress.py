"""What a launcher of jobs shows: their table, progress and time left."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from myxtts.local_sgd.status import Display, read_last_report, read_progress, table_rows


class Terminal(io.StringIO):
    def isatty(self):
        return True


class DisplayTest(unittest.TestCase):
    def test_terminal_table_replaces_the_last_one_below_lines_that_stay(self):
        now_s, out = [0.0], Terminal()
        with contextlib.redirect_stdout(out):
            display = Display(every_s=30.0, clock_s=lambda: now_s[0])
            self.assertFalse(display.is_due())
            now_s[0] = 1.0
            self.assertTrue(display.is_due())
            display.show_table(["a", "b"])
            self.assertFalse(display.is_due())
            display.print("stays")
            display.show_table(["c"])
            display.show_table(["d"])
        self.assertEqual(out.getvalue(), "a\nb\n\x1b[2F\x1b[Jstays\nc\n\x1b[1F\x1b[Jd\n")

    def test_closed_terminal_raises_no_error(self):
        out = open("/dev/full", "w")  # noqa: SIM115 - closed below, where it fails once more
        with contextlib.redirect_stdout(out):
            Display(every_s=30.0).print("to nobody")
        with mock.patch("sys.stdout", None):  # as by `>&-` in a shell
            Display(every_s=30.0).print("to nobody")
        with contextlib.suppress(OSError):
            out.close()

    def test_table_is_printed_periodically_without_a_terminal(self):
        now_s, out = [0.0], io.StringIO()
        with contextlib.redirect_stdout(out):
            display = Display(every_s=30.0, clock_s=lambda: now_s[0])
            now_s[0] = 29.0
            self.assertFalse(display.is_due())
            display.show_table(["a"])
            display.show_table(["b"])
        self.assertEqual(out.getvalue(), "a\nb\n")

    def test_progress_is_read_from_the_last_complete_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics.jsonl"
            self.assertEqual(read_last_report(path), {})
            path.write_text(
                '{"step": 1, "loss": 3.0}\n{"step": 2, "validation_loss": 1.0}\n{"step": 3, "lo'
            )
            self.assertEqual(read_last_report(path)["step"], 1)
            path.write_text(
                json.dumps({"step": 4, "loss": 1.0, "x": "y" * (1 << 17)})
                + "\n"
                + '{"step": 5, "loss": null}\n'
            )
            self.assertEqual(read_last_report(path), {"step": 5, "loss": None})
            self.assertIsNone(read_progress(Path(folder)).loss)

    def test_time_left_is_that_of_the_newest_report_with_its_pauses(self):
        report = {"step": 10, "loss": 1.0, "steps_per_s": 2.0, "remaining_s": 187.0}
        process = SimpleNamespace(state="running", restarts=0)
        immutable = SimpleNamespace(warmstart_steps=0)
        state = SimpleNamespace(processes={"job-0": process}, total_steps=110, immutable=immutable)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "job-0").mkdir()
            (Path(folder) / "job-0" / "metrics.jsonl").write_text(json.dumps(report) + "\n")
            (row,) = table_rows(Path(folder), state)
        self.assertEqual(row, ("job-0", "running", "10 of 110", "1.000", "2.00", "3.1 min", "0"))


if __name__ == "__main__":
    unittest.main()
