"""Damaged lines of metrics.jsonl are dropped, and a run says how many."""

import json
import unittest

from myxtts.extras.jobs.status import read_progress
from myxtts.report.metrics import History, MetricsFile, parse_report, read_last_report, read_metrics
from tests.fixtures import temporary_folder

WHOLE = [
    {"step": step, "loss": 1.0 / step, "mel": None, "bottleneck": "step"} for step in (1, 2, 3, 4)
]
DAMAGED = {
    "NULs": b"\0" * 40,
    "half a line": b'{"step": 3, "lo',
    "bytes that are not UTF-8": b'{"step": 3, "loss": 1.0, "bottleneck": "\xff\xfe"}',
    "a number": b"3",
    "text": b'"step and loss"',
    "a list": b'["step", "loss"]',
    "null": b"null",
    "no step": b'{"loss": 1.0}',
    "a step that is text": b'{"step": "3", "loss": 1.0}',
    "a step that is no whole number": b'{"step": 3.5, "loss": 1.0}',
    "a negative step": b'{"step": -3, "loss": 1.0}',
    "a step with 400 digits": b'{"step": ' + b"9" * 400 + b', "loss": 1.0}',
    "a step with 5000 digits": b'{"step": ' + b"9" * 5000 + b"}",
    "a loss that is text": b'{"step": 3, "loss": "low"}',
    "a loss that is true": b'{"step": 3, "loss": true}',
    "a loss that is a list": b'{"step": 3, "loss": [1.0]}',
    "a loss that is NaN": b'{"step": 3, "loss": NaN}',
    "a loss that overflows": b'{"step": 3, "loss": 1e999}',
    "a stage that is a number": b'{"step": 3, "loss": 1.0, "bottleneck": 7}',
    "30,000 brackets": b"[" * 30_000,
}


def written(*lines: bytes) -> bytes:
    return b"".join(line + b"\n" for line in lines)


class DamagedMetricsTest(unittest.TestCase):
    def setUp(self):
        self.path = temporary_folder(self.addCleanup) / "metrics.jsonl"

    def damage(self) -> None:
        """Write two whole lines, all damaged ones, and two more whole ones."""
        first, second, *rest = (json.dumps(report).encode() for report in WHOLE)
        self.path.write_bytes(written(first, second, *DAMAGED.values(), *rest))

    def test_each_kind_of_damage_is_found(self):
        for name, line in DAMAGED.items():
            with self.subTest(name):
                self.assertIsNone(parse_report(line))

    def test_a_run_resumes_with_the_whole_lines_and_says_how_many_it_dropped(self):
        self.damage()
        with self.assertLogs("myxtts.report.metrics", "WARNING") as logs:
            file = MetricsFile(self.path, 3)
        file.write({"step": 5, "loss": 0.2})
        file.close()
        count = len(DAMAGED)
        expected = f"{count} of {count + 4} lines of {self.path} were damaged and are dropped"
        self.assertEqual([record.getMessage() for record in logs.records], [expected])
        reports = list(map(json.loads, self.path.read_text(encoding="utf-8").splitlines()))
        self.assertEqual(reports, [*WHOLE[:3], {"step": 5, "loss": 0.2}])

    def test_a_file_of_NULs_alone_is_written_anew(self):
        self.path.write_bytes(b"\0" * 4096)
        with self.assertLogs("myxtts.report.metrics", "WARNING"):
            file = MetricsFile(self.path, 3)
        file.close()
        self.assertEqual(self.path.read_bytes(), b"")

    def test_whole_files_are_resumed_without_a_warning(self):
        self.path.write_bytes(written(*(json.dumps(report).encode() for report in WHOLE)))
        with self.assertNoLogs("myxtts.report.metrics"):
            MetricsFile(self.path, 2).close()
        self.assertEqual(read_metrics(self.path), WHOLE[:2])

    def test_metrics_of_a_step_are_merged_across_damaged_lines(self):
        file = MetricsFile(self.path, 0)
        for step in (1, 2):
            file.write({"step": step, "loss": 1.0})
        with open(self.path, "ab") as other:
            other.write(written(*DAMAGED.values()))
        file.write({"step": 2, "validation_loss": 2.0})
        file.close()
        expected = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0, "validation_loss": 2.0}]
        self.assertEqual(read_metrics(self.path), expected)

    def test_pages_and_the_launcher_show_the_whole_lines(self):
        self.damage()
        history = History(self.path)
        history.update()
        means = [point.mean for point in history.points("loss")]
        self.assertEqual(means, [round(report["loss"], 5) for report in WHOLE])
        self.path.write_bytes(written(json.dumps(WHOLE[0]).encode(), *DAMAGED.values()))
        self.assertEqual(read_last_report(self.path), WHOLE[0])
        self.assertEqual(read_progress(self.path.parent)["step"], 1)
