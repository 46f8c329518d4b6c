"""The soak test fits slopes and compares them with their limits."""

import itertools
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from myxtts.base.errors import TrainingError
from myxtts.commands.train import parse
from tests.devicefeed.feeds import wait_until
from tests.long import long
from tests.robustness import soak
from tests.robustness.heap import bytes_in_use
from tests.robustness.slope import fit
from tests.robustness.soak import Sample, last_report, means_of_last_lines, table, train, verdict

ROOT = Path(__file__).parents[1]
TRAINER = """
import pathlib, signal, sys, time
pathlib.Path(sys.argv[1]).write_text("2097152 4194304\\n" * 9)
runs, name = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--runs-dir", "--run"))
run = pathlib.Path(runs, name)
run.mkdir(parents=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
(run / "metrics.jsonl").write_text('{"step": 7, "step_s": 0.5}\\n')
time.sleep(600)
"""

# 250,000 strings are more than a table that was not grown has room for.
MEMORY = """
import os, sys
from tests.robustness import soak
from tests.robustness.heap import ENVIRON, bytes_in_use, bytes_occupied, grow_interned
os.environ.update(ENVIRON)
import tensorflow as tf
grow_interned()
before = bytes_in_use()
for number in range(250_000):
    sys.intern(f"part {number}")
print(before, bytes_in_use())
held = [tf.ones([9])]
print(bytes_in_use(), bytes_occupied())
held += [tf.ones([1 << 18]) for _ in range(80)]
print(bytes_in_use(), bytes_occupied())
del held[1:-1]
print(bytes_in_use(), bytes_occupied())
"""


class SlopeTest(unittest.TestCase):
    def test_a_line_has_its_slope_without_doubt(self):
        slope = fit([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [7.0, 9.0, 11.0, 13.0, 15.0, 17.0])
        self.assertAlmostEqual(slope.value, 2.0)
        self.assertAlmostEqual(slope.half_width, 0.0)

    def test_95_of_100_intervals_contain_the_slope_also_where_residuals_depend_on_each_other(self):
        for persistence, least in ((0.0, 0.92), (0.8, 0.88)):
            source, hits = random.Random(1), 0
            for _ in range(300):
                noise, y = 0.0, []
                for i in range(200):
                    noise = persistence * noise + source.gauss(0.0, 1.0)
                    y.append(0.01 * i + noise)
                slope = fit(range(200), y)
                hits += slope.low <= 0.01 <= slope.high
            self.assertGreater(hits / 300, least)

    def test_too_few_samples_have_no_slope(self):
        self.assertIsNone(fit([0.0, 1.0], [1.0, 2.0]))
        self.assertIsNone(fit([1.0] * 9, range(9)))


class SoakTest(unittest.TestCase):
    # Of memory, threads and descriptors, files, and the report.
    BASE = Sample(0, 0.0, 600.0, 800.0, 900.0, 30, 50, 10.0, 8.0, step=0, step_s=0.5)

    def samples(self, growth: float) -> list[Sample]:
        """Return samples of two processes whose memory grows by `growth` MiB an hour."""
        samples = []
        for process, i in itertools.product(range(2), range(60)):
            memory = {"in_use_mib": 600.0 + growth * i / 60.0, "run_mib": 10.0 + i}
            place = {"process": process, "seconds": 60.0 * i, "step": 10 * i}
            samples.append(self.BASE._replace(**place, **memory))
        return samples

    def test_only_growth_beyond_the_limit_is_not_met(self):
        for growth, expected in ((0.1, "met"), (20.0, "not met")):
            rows = table(self.samples(growth))
            by_name = {row["name"]: row for row in rows}
            memory = by_name["memory in use, MiB"]
            self.assertAlmostEqual(memory["slope"], growth, places=3)
            self.assertEqual(memory["verdict"], expected)
            verdicts = {by_name[name]["verdict"] for name in ("threads", "file descriptors")}
            self.assertEqual(verdicts, {"met"})
            self.assertEqual(len(memory["means"]), 2)
        self.assertIn("+20 ± ", "\n".join(soak.describe(self.samples(growth), rows)))

    def test_a_checkpoint_in_the_making_is_no_growth(self):
        for an_hour in (0.0, 60.0):
            samples = []
            for i in range(300):
                mib = 8.0 + an_hour * i / 360.0 + 4.0 * (i % 3 == 0)
                samples.append(self.BASE._replace(seconds=10.0 * i, checkpoints_mib=mib, step=i))
            (row,) = (row for row in table(samples) if row["name"].startswith("checkpoints"))
            self.assertAlmostEqual(row["slope"], an_hour, places=2)
            if not an_hour:
                self.assertEqual((row["first"], row["last"]), (8.0, 8.0))

    def test_an_interval_that_holds_the_limit_shows_nothing(self):
        source = random.Random(0)
        slope = fit(range(50), [source.gauss(0.0, 100.0) for _ in range(50)])
        self.assertEqual(verdict(slope, 1.0, 3600.0), "not shown")
        self.assertEqual(verdict(slope, 1.0, 60.0), "too short")
        actual = (verdict(None, 1.0, 0.0), verdict(slope, None, 0.0))
        self.assertEqual(actual, ("not measured", "–"))

    def test_a_run_is_sampled_until_it_is_stopped(self):
        wait_for_end = soak.wait_for_end

        def wait_for_report(child, end_s):
            metrics = Path(name, "runs", "soak", "metrics.jsonl")
            wait_until(lambda: child.has_ended() or last_report(metrics)[0])
            return wait_for_end(child, end_s)

        with (
            tempfile.TemporaryDirectory() as name,
            mock.patch.multiple(
                "tests.robustness.soak", SCRIPT=("-c", TRAINER), wait_for_end=wait_for_report
            ),
        ):
            samples = train(Path(name), process=1, seconds=0.3, every_s=0.1, seed=0)
        actual = [(sample.process, sample.step, sample.step_s) for sample in samples]
        self.assertEqual(actual, [(1, 7, 0.5)] * 3)
        for sample in samples:
            self.assertEqual((sample.in_use_mib, sample.anonymous_mib), (2.0, 4.0))
            self.assertTrue(sample.rss_mib > 1.0 and sample.threads and sample.descriptors)

    def test_a_run_that_ends_by_itself_or_reports_nothing_fails(self):
        # The first ends long before its time, also on a machine where others compute.
        for program, seconds, expected in (
            ("exit(2)", 60.0, "ended with code 2"),
            ("import time; time.sleep(9)", 0.3, "without a report"),
        ):
            with (
                tempfile.TemporaryDirectory() as name,
                mock.patch("tests.robustness.soak.SCRIPT", ("-c", program)),
                self.assertRaisesRegex(TrainingError, expected),
            ):
                train(Path(name), process=0, seconds=seconds, every_s=0.1, seed=0)

    def test_the_settings_are_those_of_a_run(self):
        config, _ = parse(soak.SETTINGS)
        self.assertEqual((config.model.model_size, config.run.keep_checkpoints), ("tiny", 2))

    def test_the_last_report_and_the_size_of_a_folder_are_read_while_a_run_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "metrics.jsonl")
            self.assertEqual(last_report(path), (0, 0.0))
            path.write_text(
                '{"step": 5, "step_s": 0.5}\n{"step": 6, "validation_loss": 1}\n{"step": 7, "st'
            )
            self.assertEqual(last_report(path), (5, 0.5))
            self.assertEqual(soak.size_of(Path(folder)), path.stat().st_size)

    def test_the_memory_in_use_is_written_and_read(self):
        with tempfile.TemporaryDirectory() as folder:
            heap = Path(folder, "heap.txt")
            self.assertEqual(means_of_last_lines(heap, 2), [0.0, 0.0])
            before = bytes_in_use()
            held = bytearray(1 << 26)
            self.assertGreater(bytes_in_use() - before, len(held) - (1 << 20))
            heap.write_text("9 0\n1 5\n4 6\n")
            self.assertEqual(means_of_last_lines(heap, 2), [2.5, 5.5])

    @long
    def test_neither_interned_strings_nor_freed_tensors_take_further_memory(self):
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-c", MEMORY]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [list(map(int, line.split())) for line in done.stdout.splitlines()]
        interned, before, held, after = lines
        self.assertLess(interned[1] - interned[0], 1 << 20)
        for i in range(2):
            self.assertGreater(held[i] - before[i], 79 << 20)
            # The last tensor lies behind the freed ones.
            self.assertLess(after[i] - before[i], 8 << 20)
