"""check-distributed: a run with two workers, and its checks of given measurements."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from myxtts.commands import check_distributed
from myxtts.errors import ConfigError
from myxtts.preflight.distributed import (
    REPETITIONS,
    AllReduceTime,
    ClusterResult,
    all_reduce_table,
    cluster_checks,
)
from tests.long import long
from tests.sine_corpus import write_corpus

ROOT = Path(__file__).parents[1]
SCRIPT, LAUNCHER = (
    ROOT / "utilities" / "check_distributed.py",
    ROOT / "utilities" / "launch_workers.py",
)
TRAINER = ROOT / "train_main.py"
GOOD = ClusterResult(2, 2, "CPU", 0.0, (AllReduceTime(1 << 20, 0.002),), (1e-7, 2e-7), 0.2)
# Worker 1 cannot make its seventh batch.
UNREADABLE = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from fakes.toy_models import toy_models
from myxtts.commands import train
from myxtts.commands.console import report_errors
from myxtts.data.pipeline import ReplicaFeed
from myxtts.distributed.cluster import find_cluster
from myxtts.errors import DataError

taken, take = [], ReplicaFeed.__next__

def take_readable(feed):
    taken.append(feed)
    if len(taken) == 7 and find_cluster(os.environ).index == 1:
        raise DataError("utterance 'u3' cannot be read: No such file or directory. Restore it.")
    return take(feed)

ReplicaFeed.__next__ = take_readable
with toy_models():
    sys.exit(report_errors(lambda: train.main(sys.argv[1:])))
"""

# Both workers compare one digest, and then digests of which the last digit differs.
COMPARE = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from myxtts.distributed.cluster import find_cluster
from myxtts.placement import devices
from myxtts.placement.replicas import open_replicas

cluster = find_cluster(os.environ)
with open_replicas(devices.configure_default(), cluster) as replicas:
    same = replicas.all_equal("a" * 64)
    different = replicas.all_equal("a" * 63 + str(cluster.index))
    print("compared", same, different, flush=True)
"""


@long
class TwoWorkersTest(unittest.TestCase):
    def test_digests_of_two_workers_are_compared(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "program.py").write_text(COMPARE)
            command = [sys.executable, LAUNCHER, "--workers", "2", "--", "program.py"]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=600.0
            )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for worker in (0, 1):
            self.assertIn(f"[worker {worker}] compared True False", done.stdout)

    def test_two_workers_match_one_process(self):
        with tempfile.TemporaryDirectory() as folder:  # for its logs
            done = subprocess.run(
                [sys.executable, SCRIPT], cwd=folder, capture_output=True, text=True, timeout=600.0
            )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("[worker 0] 2 workers, 2 replicas, each on a CPU", done.stdout)
        self.assertEqual(done.stdout.count("✅"), 2)
        rows = re.findall(
            r"^\[worker 0\] +([\d,]+) +([\d.]+) ms +([\d.]+)$", done.stdout, re.MULTILINE
        )
        self.assertEqual([int(row[0].replace(",", "")) for row in rows], list(REPETITIONS))
        self.assertTrue(all(float(row[1]) > 0 for row in rows))

    def test_two_workers_train(self):
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder, "corpus"), [0.5] * 12)
            flags = (
                "--train-data corpus/corpus.csv --text-frontend characters --model-size tiny"
                " --batch-size 2"
            )
            flags += " --max-steps 2 --run two --validate-every 0 --sample-every 0"
            command = [sys.executable, LAUNCHER, "--workers", "2", "--", TRAINER, *flags.split()]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=600.0
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertTrue(Path(folder, "runs/two/checkpoints/step-000002").is_dir())
        self.assertIn("in 2 replicas with ", done.stdout)

    def test_unreadable_utterance_of_a_worker_costs_no_step(self):
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder, "corpus"), [0.5] * 12)
            Path(folder, "program.py").write_text(UNREADABLE)
            flags = (
                "--train-data corpus/corpus.csv --text-frontend characters --model-size tiny"
                " --batch-size 2"
            )
            flags += " --max-steps 9 --run two --validate-every 0 --sample-every 0"
            command = [
                sys.executable,
                LAUNCHER,
                "--workers",
                "2",
                "--",
                "program.py",
                *flags.split(),
            ]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=600.0
            )
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            checkpoints = [path.name for path in Path(folder, "runs/two/checkpoints").iterdir()]
        self.assertEqual(checkpoints, ["step-000006"])
        self.assertIn("[worker 1] error: utterance 'u3' cannot be read", done.stdout)
        self.assertRegex(
            done.stdout,
            r"\[worker 0\] error: worker 1 \(\S+\) gave up: utterance 'u3' cannot be read",
        )
        self.assertNotIn("Traceback", done.stdout + done.stderr)


class ClusterResultTest(unittest.TestCase):
    def test_exact_results_pass(self):
        self.assertTrue(GOOD.passed)

    def test_each_fault_fails_its_check(self):
        faults = {
            "all-reduce": {"sum_error": 1.0},
            "training": {"weight_differences": (1e-7, 2e-5)},  # of one replica
        }
        for name, fault in faults.items():
            result = GOOD._replace(**fault)
            self.assertFalse(result.passed)
            names = [check.name for check in cluster_checks(result) if check.status == "failed"]
            self.assertEqual(names, [name])
        self.assertFalse(GOOD._replace(weight_differences=(float("nan"), 0.0)).passed)
        # Unchanged weights would be equal too.
        self.assertFalse(GOOD._replace(largest_update=0.0).passed)

    def test_speed_is_for_the_size_of_the_tensor(self):
        self.assertEqual(GOOD.all_reduce_times[0].bytes_per_s, (1 << 20) / 0.002)
        actual = list(all_reduce_table(GOOD))[1].split()
        self.assertEqual(actual, ["1,048,576", "2.00", "ms", "0.524"])


class MistakeTest(unittest.TestCase):
    def test_mistakes_are_explained(self):
        task = json.dumps(
            {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
        )
        mistakes = [
            ("one worker was requested", ["--workers", "1"], {}),
            ("--node-rank is missing", ["--nodes", "a:1,b:2"], {}),
            (r"this is worker 1 \(b:2\) of 2", ["--workers", "2"], {"TF_CONFIG": task}),
        ]
        for message, flags, environ in mistakes:
            with (
                self.subTest(message=message),
                mock.patch.dict(os.environ, environ),
                self.assertRaisesRegex(ConfigError, message),
            ):
                check_distributed.main(flags)


if __name__ == "__main__":
    unittest.main()
