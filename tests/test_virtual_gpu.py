"""Virtual GPUs do what GPUs do, and a run on them trains as one on simulated GPUs."""

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import contextlib
import io
import json
import unittest
from pathlib import Path
from unittest import mock

from myxtts.checkpoints.files import list_checkpoints
from tests.fixtures import temporary_folder
from tests.sine_corpus import write_corpus
from tests.tiny import Workspace
from tests.virtual_gpu import Unavailable, environment, unavailable
from tests.virtual_gpu.__main__ import main
from tests.virtual_gpu.forks import Forks, Program

LIMIT_S = 3600.0  # of what takes half a minute on an idle machine
GPUS = 4
# TensorFlow leaves so much to the system: `MinSystemMemory` in pluggable_device_factory.cc.
SYSTEM_MIB = 255
CHECKS = "import unittest; unittest.main('tests.virtual_gpu.checks')"
NUMERICS = "import unittest; unittest.main('tests.virtual_gpu.numerics')"
# Prints when each step was called, by the clock of the plug-in.
TRAIN_TOY = """
import sys
import time
from unittest import mock
from fakes.toy_models import toy_models
from myxtts.commands import train
from myxtts.base.console import report_errors
from myxtts.run.step import Step

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
# A fork has not started TensorFlow, which reads the flags once; those of TF_XLA_FLAGS earlier, when
# it loads the plug-in.
FLAGS_OF_XLA = """
import os
from myxtts.base.console import report_errors
from myxtts.placement.devices import check_xla_flags

for given in (
    "XLA_FLAGS=--xla_cpu_enable_fast_math=false TF_XLA_FLAGS=--tf_xla_clustering_debug=false",
    "XLA_FLAGS=--xla_gone=true",
    "XLA_FLAGS=--xla_gpu_autotune_level=high",
    "XLA_FLAGS=no_file",
):
    flags = dict(item.split("=", 1) for item in given.split())
    os.environ.update({"XLA_FLAGS": "", "TF_XLA_FLAGS": ""} | flags)
    check_xla_flags.cache_clear()
    print(report_errors(lambda: check_xla_flags() or 0))
"""
DUAL = ("--data-gpu", "3", "--model-gpu", "1")
# Utterances of half a second, and some of LONG_S: of 12 + 5, one is held out.
LONG_S = 20.0
SECONDS = (*(0.4 + 0.01 * i for i in range(12)), *[LONG_S] * 5)
# GPUs 1 and 3 are /GPU:0 and /GPU:1. What one of them has is too little for a batch of LONG_S: the
# memory of each of the four, and the message.
# An operation without an output of its own, or a copy, names no device.
DOES_NOT_FIT = (
    "(OOM when allocating tensor with shape.* on .*device:GPU:{} by allocator .*_bfc"
    "|(failed|unable) to allocate (memory|output tensor).*)"
)
FULL = {
    "model_full": (
        (4096, SYSTEM_MIB + 8, 4096, 4096),
        r"at step 3, with a batch of 4 utterances of up to 20\.0 s.*: " + DOES_NOT_FIT.format(0),
    ),
    "data_full": ((4096, 4096, 4096, SYSTEM_MIB + 20), ": " + DOES_NOT_FIT.format(1)),
    "observer_full": (
        (4096, 4096, 4096, SYSTEM_MIB + 24),
        "on /GPU:1: " + DOES_NOT_FIT.format(1) + r"\. Resume with another --observer",
    ),
}


@unittest.skipIf(unavailable(), unavailable())
class VirtualGpuTest(unittest.TestCase):
    """All programs on virtual GPUs are forks of one process."""

    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.with_toy_models(cls.addClassCleanup)
        folder = temporary_folder(cls.addClassCleanup)
        cls.stats, cls.trace = folder / "stats", folder / "trace"
        write_corpus(cls.workspace.folder / "long", SECONDS)
        counted = {"chaos": 1, "stats": str(cls.stats), "trace": str(cls.trace)}
        full = {
            name: Program(TRAIN_TOY, cls.argv_of_long(name), {"memory_mib": memory_mib})
            for name, (memory_mib, _) in FULL.items()
        }
        programs = full | {
            "virtual": Program(TRAIN_TOY, cls.argv("virtual", *DUAL), counted),
            "checks": Program(CHECKS, settings={"memory_mib": (4096, 4096, 4096, 600)}),
            "numerics": Program(NUMERICS, settings={"tf32": True}),
            # Which take all memory when they start.
            "read by host": Program(READ_BY_HOST, settings={"memory_mib": 400}),
            "out of range": Program(OUT_OF_RANGE, settings={"memory_mib": 400}),
            "flags of XLA": Program(FLAGS_OF_XLA),
        }
        forks = Forks(folder, programs, GPUS)
        # Meanwhile, what one of them is compared with.
        code = cls.workspace.train("simulated", *DUAL).code
        cls.finished = forks.wait(LIMIT_S)
        assert code == 0

    @classmethod
    def argv(cls, name: str, *flags: str) -> tuple[str, ...]:
        return tuple(cls.workspace.argv(name, "--simulate-gpus", "0", *flags))

    @classmethod
    def argv_of_long(cls, name: str) -> tuple[str, ...]:
        """Return flags of a run with long utterances: in its third step, or in validation."""
        long = str(cls.workspace.folder / "long" / "corpus.csv")
        argv = cls.workspace.argv(name, "--simulate-gpus", "0", "--checkpoint-every", "1", *DUAL)
        if name != "observer_full":
            return *argv, "--train-data", long, "--seed", "1"
        of_split = argv.index("--validation-fraction")
        del argv[of_split : of_split + 2]
        return *argv, "--val-data", long, "--validate-every", "4"

    def assert_ended(self, name: str, code: int, message: str) -> None:
        finished = self.finished[name]
        self.assertEqual(finished.returncode, code, finished.stdout + finished.stderr)
        self.assertIn(message, finished.stderr)

    def test_checks(self):
        for name in ("checks", "numerics"):
            self.assert_ended(name, 0, "OK")

    def test_an_error_ends_the_program_as_with_cuda(self):
        self.assert_ended("read by host", -11, "host code touched device memory")
        message = "GatherV2 failed on GPU 0: indices[0] = 9 is not in [0, 4)"
        self.assert_ended("out of range", -6, message)

    def test_flags_of_xla_that_would_end_the_process_are_named(self):
        self.assert_ended("flags of XLA", 0, "")
        finished = self.finished["flags of XLA"]
        self.assertEqual(finished.stdout.split(), ["0", "2", "2", "2"])
        faults = (
            r"has XLA_FLAGS=--xla_gone=true, .* \(Unknown flag in XLA_FLAGS: --xla_gone=true\)\. ",
            r"\(Couldn't interpret value high for flag xla_gpu_autotune_level\)\. Correct or unset",
            r"XLA_FLAGS=no_file, .* \(Could not open file .no_file. to read",
        )
        messages = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
        for message, fault in zip(messages, faults, strict=True):
            self.assertRegex(message, fault)

    def test_memory_that_the_host_lacks_gets_a_message(self):
        for settings, needed in (
            ({"memory_mib": (1000, 3000)}, "7,000"),
            ({"memory_mib": 3000}, "9,000"),
        ):
            with (
                mock.patch("tests.virtual_gpu.available_memory_mib", return_value=6000.5),
                self.assertRaisesRegex(
                    Unavailable, rf"3 GPUs with {needed} MiB .* Give --memory-mib 2000 or"
                ),
            ):
                environment(3, **settings)

    def test_a_gpu_without_memory_ends_a_run_with_a_message_and_costs_no_step(self):
        for name, (_, message) in FULL.items():
            with self.subTest(name):
                self.assert_ended(name, 2, "error: ")
                finished = self.finished[name]
                self.assertRegex(finished.stderr, f"out of memory ?{message}")
                self.assertNotIn("Traceback", finished.stderr)
                taken = finished.stdout.count("called ") - (name == "model_full")
                newest = list_checkpoints(self.workspace.run_dir(name) / "checkpoints")[-1]
                self.assertEqual(newest.name, f"step-{taken:06d}")

    def test_wrong_use_gets_a_message(self):
        for argv in (("--gpus", "0", "--", "train_main.py"), ()):
            with (
                mock.patch("sys.argv", ["virtual_gpu", *argv]),
                contextlib.redirect_stderr(io.StringIO()),
                self.assertRaises(SystemExit) as ended,
            ):
                main()
            self.assertEqual(ended.exception.code, 2)

    def test_a_run_on_virtual_gpus_trains_as_one_on_simulated_gpus(self):
        self.assert_ended("virtual", 0, "")
        self.assertEqual(
            *(
                [line["loss"] for line in self.metrics(self.workspace.run_dir(name))]
                for name in ("simulated", "virtual")
            )
        )
        counted = [line.split("\t") for line in self.stats.read_text().splitlines()]
        self.assertEqual([name for kind, name, count in counted if kind == "drains"], [])
        lines = self.finished["virtual"].stdout.splitlines()
        called = [float(line.split()[1]) for line in lines if line.startswith("called ")]
        self.assert_copies_precede_steps(called)

    def assert_copies_precede_steps(self, called: list[float]) -> None:
        """Check that the copies for a step are issued before the step before it has a kernel."""
        copies, kernels = [], []
        for line in self.trace.read_text().splitlines():
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
