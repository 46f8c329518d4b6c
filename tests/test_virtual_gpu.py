"""Virtual GPUs do what GPUs do, and a run on them trains as one on simulated GPUs."""

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import json
import subprocess
import sys
import unittest
from pathlib import Path

from tests.fixtures import FolderCase
from tests.tiny import Workspace
from tests.virtual_gpu import unavailable

ROOT = Path(__file__).parents[1]
LIMIT_S = 600.0  # of a process that takes ten seconds on an idle machine
# Prints when each step was called, by the clock of the plug-in.
TRAIN_TOY = """
import sys
import time
from unittest import mock
from fakes.toy_models import toy_models
from myxtts.commands import train
from myxtts.commands.console import report_errors
from myxtts.training.step import Step

call = Step.__call__

def timed(*arguments):
    print("called", 1e6 * time.monotonic())
    return call(*arguments)

with toy_models(), mock.patch.object(Step, "__call__", timed):
    sys.exit(report_errors(lambda: train.main(sys.argv[1:])))
"""
ON_GPU = "import tensorflow as tf\nwith tf.device('/GPU:0'):\n"
READ_BY_HOST = f"""{ON_GPU}    x = tf.ones([4])
import ctypes

address = ctypes.pythonapi.PyCapsule_GetPointer
address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
tensor = address(tf.experimental.dlpack.to_dlpack(x), b"dltensor")
print(ctypes.c_float.from_address(ctypes.c_void_p.from_address(tensor).value).value)
"""
OUT_OF_RANGE = f"{ON_GPU}    tf.gather(tf.ones([4]), tf.ones([1], tf.int64) * 9).numpy()\n"


def on_virtual_gpus(*argv: str) -> subprocess.CompletedProcess:
    """Run `python -m tests.virtual_gpu`; compile the plug-in at the first time."""
    command = [sys.executable, "-m", "tests.virtual_gpu", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


@unittest.skipIf(unavailable(), unavailable())
class VirtualGpuTest(FolderCase):
    def test_checks(self):
        memory = ("--memory-mib", "4096", "4096", "4096", "600")
        program = ("--", "-m", "unittest", "tests.virtual_gpu.checks")
        finished = on_virtual_gpus("--gpus", "4", *memory, *program)
        self.assertEqual(finished.returncode, 0, finished.stderr)
        self.assertIn("OK", finished.stderr)

    def test_an_error_ends_the_program_as_with_cuda(self):
        for program, code, message in (
            (READ_BY_HOST, -11, "host code touched device memory"),
            (OUT_OF_RANGE, -6, "GatherV2 failed on GPU 0: indices[0] = 9 is not in [0, 4)"),
        ):
            with self.subTest(message):
                finished = on_virtual_gpus("--", "-c", program)
                self.assertEqual(finished.returncode, code, finished.stderr)
                self.assertIn(message, finished.stderr)

    def test_wrong_use_gets_a_message(self):
        for argv in (("--gpus", "0", "--", "train_main.py"), ()):
            finished = on_virtual_gpus(*argv)
            self.assertEqual(finished.returncode, 2)
            self.assertNotIn("Traceback", finished.stderr)

    def test_a_run_on_virtual_gpus_trains_as_one_on_simulated_gpus(self):
        workspace = Workspace.with_toy_models(self.addCleanup)
        route = ("--data-gpu", "3", "--model-gpu", "1")
        self.assertEqual(workspace.train("simulated", *route).code, 0)
        argv = workspace.argv("virtual", "--simulate-gpus", "0", *route)
        stats, trace = self.folder / "stats", self.folder / "trace"
        options = ("--gpus", "4", "--chaos", "1", "--stats", str(stats), "--trace", str(trace))
        finished = on_virtual_gpus(*options, "--", "-c", TRAIN_TOY, *argv)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        self.assertEqual(
            *(
                [line["loss"] for line in self.metrics(workspace.run_dir(name))]
                for name in ("simulated", "virtual")
            )
        )
        counted = [line.split("\t") for line in stats.read_text().splitlines()]
        self.assertEqual([name for kind, name, count in counted if kind == "drains"], [])
        lines = finished.stdout.splitlines()
        called = [float(line.split()[1]) for line in lines if line.startswith("called ")]
        self.assert_copies_precede_steps(called, trace)

    def assert_copies_precede_steps(self, called: list[float], trace: Path) -> None:
        """Check that the copies for a step are issued before the step before it has a kernel."""
        copies, kernels = [], []
        for line in trace.read_text().splitlines():
            time_us, event, gpu, _, kind, name, _ = line.split("\t")
            if event == "issued" and (kind, gpu) == ("kernel", "1"):
                kernels.append(float(time_us))
            if event == "issued" and name == "between devices":
                copies.append(float(time_us))
        self.assertEqual(len(copies) % len(called), 0)
        of_a_step = len(copies) // len(called)
        for number in range(2, len(called)):
            last = sorted(copies)[of_a_step * (number + 1) - 1]
            first = min(kernel for kernel in kernels if kernel > called[number - 1])
            self.assertLess(last, first, f"step {number + 1}")

    @staticmethod
    def metrics(folder: Path) -> list[dict]:
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if "loss" in line]
