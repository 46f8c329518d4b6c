"""check-distributed: a run with two workers, and its checks of given measurements."""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from myxtts.base.errors import ConfigError
from myxtts.commands import check_distributed
from myxtts.trial.preflight import distributed
from myxtts.trial.preflight.distributed import ClusterResult
from tests.fixtures import FolderCase
from tests.long import long
from tests.sine_corpus import write_corpus

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "utilities" / "check_distributed.py"
TRAINER = ROOT / "train_main.py"
GOOD = ClusterResult(2, 2, "CPU", 0.0, {1 << 20: 0.002}, (1e-7, 2e-7), 0.2)
TRAINING = (
    "--train-data corpus/corpus.csv --text-frontend characters --model-size tiny --batch-size 2"
    " --run two --validate-every 0 --sample-every 0"
)
# Worker 1 cannot make its seventh batch.
UNREADABLE = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from fakes.toy_models import toy_models
from myxtts.commands import train
from myxtts.base.console import report_errors
from myxtts.batches.pipeline import ReplicaFeed
from myxtts.distributed.cluster import find_cluster
from myxtts.base.errors import DataError

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
class TwoWorkersTest(FolderCase):
    def run_here(self, *command) -> subprocess.CompletedProcess:
        """Run a command in the folder of the test, for its logs."""
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, capture_output=True, text=True, timeout=600
        )

    def launch(self, *program) -> subprocess.CompletedProcess:
        return self.run_here("-m", "myxtts", "launch", "--workers", "2", "--", *program)

    def test_digests_of_two_workers_are_compared(self):
        self.write("program.py", COMPARE)
        done = self.launch("program.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for worker in (0, 1):
            self.assertIn(f"[worker {worker}] compared True False", done.stdout)

    def test_two_workers_match_one_process(self):
        done = self.run_here(SCRIPT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("[worker 0] 2 workers, 2 replicas, each on a CPU", done.stdout)
        self.assertEqual(done.stdout.count("✅"), 2)
        row = re.compile(r"^\[worker 0\] +([\d,]+) +([\d.]+) ms +([\d.]+)$", re.MULTILINE)
        sizes, milliseconds, _ = zip(*row.findall(done.stdout), strict=True)
        sizes = [int(size.replace(",", "")) for size in sizes]
        self.assertEqual(sizes, list(distributed.REPETITIONS))
        self.assertGreater(min(map(float, milliseconds)), 0)

    def test_two_workers_train_each_on_its_share_of_a_step(self):
        write_corpus(self.folder / "corpus", [0.5] * 12)
        done = self.launch(TRAINER, *TRAINING.split(), "--max-steps=2", "--batch-shares", "1", "3")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((self.folder / "runs/two/checkpoints/step-000002").is_dir())
        self.assertIn("in 1 x (1 + 3) rows", done.stdout)

    def test_unreadable_utterance_of_a_worker_costs_no_step(self):
        write_corpus(self.folder / "corpus", [0.5] * 12)
        self.write("program.py", UNREADABLE)
        done = self.launch("program.py", *TRAINING.split(), "--max-steps=9")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        checkpoints = (self.folder / "runs/two/checkpoints").iterdir()
        self.assertEqual([path.name for path in checkpoints], ["step-000006"])
        self.assertIn("[worker 1] error: utterance 'u3' cannot be read", done.stdout)
        error = r"\[worker 0\] error: worker 1 \(\S+\) gave up: utterance 'u3' cannot be read"
        self.assertRegex(done.stdout, error)
        self.assertNotIn("Traceback", done.stdout + done.stderr)


class ClusterResultTest(unittest.TestCase):
    def failed(self, **faults) -> list[str]:
        checks = distributed.cluster_checks(GOOD._replace(**faults))
        return [check.name for check in checks if check.status == "failed"]

    def test_each_fault_fails_its_check(self):
        self.assertEqual(self.failed(), [])
        self.assertEqual(self.failed(sum_error=1.0), ["all-reduce"])
        for differences in ((1e-7, 2e-5), (float("nan"), 0.0), (0.0, float("nan"))):
            self.assertEqual(self.failed(weight_differences=differences), ["training"])
        # Unchanged weights would be equal too.
        self.assertEqual(self.failed(largest_update=0.0), ["training"])

    def test_speed_is_for_the_size_of_the_tensor(self):
        actual = list(distributed.all_reduce_table(GOOD))[1].split()
        self.assertEqual(actual, ["1,048,576", "2.00", "ms", "0.524"])


class MistakeTest(unittest.TestCase):
    def test_mistakes_are_explained(self):
        cluster = {"worker": ["a:1", "b:2"]}
        task = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
        mistakes = [
            ("one worker was requested.* with --workers 2", ["--workers", "1"], {}),
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
