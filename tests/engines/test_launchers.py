"""Launchers that tell a process its rank, the number of processes and the host of rank 0: two
workers train as those that know all addresses.
"""

import shutil
import subprocess
import sys
import unittest

from tests.engines.runs import ROOT, STEPS, TOY, losses
from tests.fixtures import temporary_folder
from tests.sine_corpus import write_corpus

PACKAGES = {"torchrun": "python3-torch", "mpirun": "openmpi-bin"}


def install(program: str) -> None:
    """Install a launcher unless it is there; raise an error if that is impossible."""
    if not shutil.which(program):
        command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", PACKAGES[program]]
        subprocess.run(command, check=True)


class LauncherTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        write_corpus(cls.folder / "corpus", [0.5] * 24)
        launch = [sys.executable, "-m", "myxtts", "launch", "--workers", "2", "--logs"]
        cls.expected = cls.train("expected", *launch, str(cls.folder / "logs"), "--")

    @classmethod
    def train(cls, run: str, *launcher: str) -> dict[int, float]:
        """Return the losses of a run that a launcher starts, by step."""
        corpus = ("--train-data", str(cls.folder / "corpus/corpus.csv"))
        flags = (*corpus, "--runs-dir", str(cls.folder), "--run", run)
        done = subprocess.run((*launcher, *TOY, *flags), cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        # The other worker writes its own metrics.
        assert (cls.folder / run / "worker-1" / "metrics.jsonl").exists(), done.stdout
        return losses(cls.folder / run)

    def check(self, *launcher: str) -> None:
        install(launcher[0])
        self.assertEqual(len(self.expected), STEPS)
        self.assertEqual(self.train(launcher[0], *launcher, sys.executable), self.expected)

    def test_torchrun(self):
        # Without --redirects, Debian's 1.13 fails under Python 3.11, whose flags list no zero.
        logs = ("--redirects", "1", "--tee", "1", "--log_dir", str(self.folder / "torchrun-logs"))
        self.check("torchrun", "--nproc_per_node", "2", *logs, "--no_python")

    def test_mpirun(self):
        self.check("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
