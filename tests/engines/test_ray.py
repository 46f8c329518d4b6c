"""Ray Train itself, on two nodes that are processes of this machine."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, Result, RunConfig, ScalingConfig

from myxtts.base.errors import ConfigError, DataError
from myxtts.extras.ray import ray_train
from tests.engines.runs import FLAGS, STEPS, losses, make_corpus, train, train_by_tf_config
from tests.fixtures import temporary_folder

NODE = {"object_store_memory": 100_000_000, "include_dashboard": False}
# As long as a busy machine needs for TensorFlow's import. Ray also waits START_TIMEOUT for a worker
# on a node that is gone: it counts the nodes every 20 s, and may plan with one that has just gone.
PATIENCE = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "180",
    "RAY_worker_register_timeout_seconds": "900",
    "RAY_health_check_failure_threshold": "60",
    "RAY_worker_niceness": "0",
}


class RayCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ.update(PATIENCE)
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.corpus = cls.folder / "corpus"
        make_corpus(cls.corpus)

    def fit(self, run: str, corpus: Path, workers: int | tuple[int, int] = 2, *more: str) -> Result:
        storage = str(self.folder / "ray")
        failures = FailureConfig(max_failures=3)
        return ray_train.fit(
            [*FLAGS, *self.places(corpus), "--run", run, *more],
            ScalingConfig(num_workers=workers),
            RunConfig(storage_path=storage, failure_config=failures),
        )

    def at_step(self, step: int, run: str, action: Callable[[], object]) -> None:
        """Act when a run has reported a step."""
        metrics = self.folder / run / "metrics.jsonl"

        def watch() -> None:
            while not (metrics.exists() and f'"step": {step},' in metrics.read_text()):
                time.sleep(0.2)
            action()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        self.addCleanup(watcher.join, 1.0)

    def train_by_tf_config(self, run: str, *flags: str) -> None:
        logs = self.folder / "logs"
        train_by_tf_config(*self.places(self.corpus), "--run", run, *flags, logs=logs)

    def places(self, corpus: Path) -> tuple[str, ...]:
        return ("--runs-dir", str(self.folder), "--train-data", str(corpus))


class KilledWorkerTest(RayCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.addClassCleanup(ray.shutdown)
        # A cluster that another test left behind is not used.
        ray.init(address="local", num_cpus=2, **NODE)

    def test_run_whose_worker_is_killed_ends_with_the_losses_of_an_undisturbed_one(self):
        self.at_step(STEPS // 2, "killed", lambda: os.kill(max(train_workers()), signal.SIGKILL))
        result = self.fit("killed", self.corpus)
        self.assertEqual(result.return_value["step"], STEPS)
        self.train_by_tf_config("whole")
        self.assertEqual(losses(self.folder / "killed"), losses(self.folder / "whole"))
        self.assertEqual(len(resumed_steps(self.folder / "killed")), 1)

    def test_mistake_ends_the_run_without_a_restart(self):
        with self.assertRaisesRegex(DataError, "nowhere"):
            self.fit("mistaken", self.folder / "nowhere")


class LostNodeTest(RayCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 1})
        cls.addClassCleanup(cls.cluster.shutdown)
        # Cleanups run from the last one on; a cluster is not shut down before its client.
        cls.addClassCleanup(ray.shutdown)
        cls.second_node = cls.cluster.add_node(num_cpus=1)
        ray.init(address=cls.cluster.address)

    def test_run_whose_node_is_taken_away_saves_in_time_and_goes_on_with_one_worker(self):
        self.at_step(4, "elastic", self.take_second_node)
        result = self.fit("elastic", self.corpus, (1, 2), "--checkpoint-every", "1000")
        self.assertEqual(result.return_value["step"], STEPS)
        (resumed,) = resumed_steps(self.folder / "elastic")
        self.train_by_tf_config("expected", "--stop-at-step", str(resumed))
        train(*self.places(self.corpus), "--run", "expected", "--resume")
        self.assertEqual(losses(self.folder / "elastic"), losses(self.folder / "expected"))

    def take_second_node(self) -> None:
        """Take a node away, some seconds after Ray is told, as a cloud does with spot machines."""
        seconds = 15
        options = {
            "address": self.cluster.address,
            "node-id": self.second_node.node_id,
            "reason": "DRAIN_NODE_REASON_PREEMPTION",
            "reason-message": "spot",
            "deadline-remaining-seconds": seconds,
        }
        command = [Path(sys.executable).with_name("ray"), "drain-node"]
        command += [f"--{name}={value}" for name, value in options.items()]
        subprocess.run(command, check=True)
        time.sleep(seconds)
        self.cluster.remove_node(self.second_node, allow_graceful=False)


class PathTest(unittest.TestCase):
    def test_relative_paths_are_rejected_before_ray_starts(self):
        for flags in (
            ["--train-data", "corpus"],
            ["--train-data", "/corpus", "--runs-dir", "runs"],
        ):
            with self.assertRaisesRegex(ConfigError, "absolute path"):
                ray_train.fit(flags, ScalingConfig(num_workers=2))


def train_workers() -> list[int]:
    """Return the processes of Ray's workers that train, of the nodes that this process started."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if "RayTrainWorker" in title(pid) and os.getpid() in parents(pid)]


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def parents(pid: int) -> Iterator[int]:
    while pid:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def resumed_steps(run: Path) -> list[int]:
    """Return the steps at which a run was resumed."""
    lines = (run / "log.txt").read_text().splitlines()
    resumed = [line for line in lines if "resumed        " in line]
    return [int(line.rpartition("step-")[2][:6]) for line in resumed]
