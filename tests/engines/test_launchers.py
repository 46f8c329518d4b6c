"""What starts several workers on one host: each trains on a GPU of its own, with the losses of one
process that has all GPUs. The GPUs are virtual.
"""

import os
import re
import shutil
import subprocess
import sys
import unittest
from collections.abc import Mapping

from tests import virtual_gpu
from tests.engines.runs import ROOT, STEPS, TOY, losses
from tests.engines.slurm import slurm
from tests.fixtures import temporary_folder
from tests.sine_corpus import write_corpus

PACKAGES = {"torchrun": "python3-torch", "mpirun": "openmpi-bin"}
ON_TWO_GPUS = ("-m", "tests.virtual_gpu", "--gpus", "2", "--")


def install(program: str) -> None:
    """Install a launcher unless it is there; raise an error if that is impossible."""
    if not shutil.which(program):
        command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", PACKAGES[program]]
        subprocess.run(command, check=True)


@unittest.skipIf(virtual_gpu.unavailable(), virtual_gpu.unavailable())
class LauncherTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        virtual_gpu.library()
        cls.folder = temporary_folder(cls.addClassCleanup)
        write_corpus(cls.folder / "corpus", [0.5] * 24)
        cls.train("expected", sys.executable, flags=("--model-gpus", "0", "1"))
        cls.expected = losses(cls.folder / "expected")

    @classmethod
    def train(
        cls, run: str, *launcher: str, flags: tuple[str, ...] = (), environ: Mapping[str, str] = {}
    ) -> str:
        """Train with what a launcher starts; return the output of all processes."""
        corpus = str(cls.folder / "corpus/corpus.csv")
        flags += ("--train-data", corpus, "--runs-dir", str(cls.folder), "--run", run)
        done = subprocess.run(
            (*launcher, *ON_TWO_GPUS, *TOY, *flags),
            cwd=ROOT,
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def check(self, *launcher: str, environ: Mapping[str, str] = {}) -> None:
        """Check the losses of two workers, and that each has a GPU of its own."""
        run = os.path.basename(launcher[0])
        output = self.train(run, *launcher, environ=environ)
        self.assertEqual(sorted(re.findall(r"device +GPU (\d) is /GPU:0", output)), ["0", "1"])
        # The other worker writes its own metrics.
        self.assertTrue((self.folder / run / "worker-1" / "metrics.jsonl").exists(), output)
        self.assertEqual(len(self.expected), STEPS)
        self.assertEqual(losses(self.folder / run), self.expected)

    def test_own_launcher(self):
        launch = ("-m", "myxtts", "launch", "--workers", "2", "--logs", str(self.folder / "logs"))
        self.check(sys.executable, *launch, "--")

    def test_torchrun(self):
        install("torchrun")
        # Without --redirects, Debian's 1.13 fails under Python 3.11, whose flags list no zero.
        # Without --, 2.13 takes --run for an abbreviation of its own flags.
        logs = ("--redirects", "1", "--tee", "1", "--log_dir", str(self.folder / "torchrun-logs"))
        processes = ("--nproc_per_node", "2", "--no_python", "--", sys.executable)
        self.check("torchrun", *logs, *processes)

    def test_mpirun(self):
        install("mpirun")
        self.check("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable)

    def test_srun(self):
        with slurm() as environ:
            self.check("srun", "-n", "2", sys.executable, environ=environ)
