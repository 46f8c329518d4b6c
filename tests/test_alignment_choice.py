"""The choice of the alignment search on devices with and without XLA, whose absence is emulated."""

import contextlib
import re
import unittest
from functools import partial
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.base.errors import ConfigError
from myxtts.placement import devices
from myxtts.tasks.tts import alignment_choice
from myxtts.tasks.tts.alignment import search_by_frames
from myxtts.tasks.tts.alignment_choice import HOST, choose_alignment_search
from myxtts.trial.preflight.kernels import audit
from tests.tiny import Workspace, alignment_rows
from tests.two_devices import MODEL

GPU = "/GPU:0"
SIZES = {"batch": 2, "frames": 9, "tokens": 4}
# What XLA raises on a GPU without ptxas.
NO_PTXAS = "No PTX compilation provider is available. Neither ptxas/nvlink nor nvjtlink"
NO_PTXAS += " is available"
REASON = f"UnavailableError: {NO_PTXAS}"


@contextlib.contextmanager
def without_xla():
    """Let XLA fail on every device with the error that TensorFlow raises on a GPU without ptxas."""

    def fail(x):
        message = f"{NO_PTXAS}.\nAs a fallback you can enable JIT compilation"
        raise tf.errors.UnavailableError(None, None, message)

    devices.xla_failure.cache_clear()
    with mock.patch.object(devices, "_loop", fail):
        yield
    devices.xla_failure.cache_clear()


def failing_on(*devices: str):
    """Let XLA fail on some devices."""
    failures = dict.fromkeys(devices, REASON)
    return mock.patch.object(alignment_choice, "xla_failure", failures.get)


class Choice(unittest.TestCase):
    def line(self, device: str, setting: str = "auto", compile_step: bool = False) -> str:
        return choose_alignment_search(setting, compile_step, device, SIZES)[1]

    def test_on_a_cpu_it_is_xla_without_measuring(self):
        with mock.patch.object(alignment_choice, "_milliseconds", side_effect=AssertionError):
            for device in (MODEL, HOST, "/job:worker/replica:0/task:1/device:CPU:0"):
                with failing_on():
                    self.assertEqual(self.line(device), "xla")

    def test_on_a_gpu_the_fastest_is_taken_and_named_with_the_times(self):
        for times_ms, line in (([1.94, 3.1], "xla, 1.9 ms "), ([4.0, 3.1], "host, 3.1 ms ")):
            with (
                failing_on(),
                mock.patch.object(alignment_choice, "_milliseconds", side_effect=times_ms),
                mock.patch.object(tf, "device", lambda device: contextlib.nullcontext()),
            ):
                slower = "host 3.1 ms" if line.startswith("xla") else "xla 4.0 ms"
                self.assertEqual(self.line(GPU), f"{line}for 2 x 9 frames x 4 tokens ({slower})")

    def test_a_gpu_without_xla_searches_on_the_host_and_says_why(self):
        with failing_on(GPU):
            self.assertEqual(self.line(GPU), f"host: XLA does not work on {GPU} ({REASON})")

    def test_a_machine_without_xla_searches_in_a_loop_and_says_why(self):
        with failing_on(GPU, HOST):
            search, line = choose_alignment_search("auto", False, GPU, SIZES)
        self.assertIs(search, search_by_frames)
        fails = "XLA does not work on"
        self.assertEqual(line, f"loop: {fails} {GPU} ({REASON}); {fails} {HOST} ({REASON})")

    def test_a_step_that_xla_compiles_contains_the_search(self):
        with failing_on():
            self.assertEqual(self.line(GPU, compile_step=True), "xla")

    def test_the_search_that_is_asked_for_is_taken_or_rejected(self):
        with failing_on(GPU):
            self.assertEqual(self.line(GPU, "loop"), "loop")
            self.assertEqual(self.line(GPU, "host"), "host")
            reason = re.escape(f"XLA does not work on {GPU} ({REASON})")
            with self.assertRaisesRegex(ConfigError, reason):
                self.line(GPU, "xla")

    def test_measured_searches_find_the_same_path(self):
        rows = [tf.constant(values) for values in alignment_rows(0, 20, 4)]
        for name in ("xla", "host", "loop"):
            with tf.device(MODEL):
                path = alignment_choice.search_of(name, MODEL)(*rows)
            np.testing.assert_array_equal(path, search_by_frames(*rows))
            self.assertTrue(path.device.endswith(MODEL[1:]), name)
        search = partial(alignment_choice.search_of("loop", MODEL), *rows)
        actual = alignment_choice._milliseconds(search)
        self.assertGreater(actual, 0.0)

    def test_each_search_has_gpu_kernels(self):
        counts = tf.TensorSpec([None], tf.int32)
        specs = tf.TensorSpec([None] * 3), counts, counts
        for name in ("xla", "host", "loop"):
            with self.subTest(name=name):
                function = tf.function(alignment_choice.search_of(name, GPU), autograph=False)
                self.assertEqual(audit(function.get_concrete_function(*specs)).host_only, ())


class Probe(unittest.TestCase):
    def test_a_cpu_compiles_a_step(self):
        self.assertIsNone(devices.xla_failure(MODEL, whole_step=True))

    def test_the_reason_is_tensorflows_error_in_one_line(self):
        with without_xla():
            self.assertEqual(devices.xla_failure(MODEL), REASON)

    def test_an_operation_that_xla_cannot_compile_is_a_failure(self):
        devices.xla_failure.cache_clear()

        def unsupported(x):
            return tf.py_function(lambda x: x, [x], tf.float32)

        with mock.patch.object(devices, "_loop", unsupported):
            message = devices.xla_failure(MODEL)
        self.assertIn("InvalidArgumentError: Detected unsupported operations", message)
        devices.xla_failure.cache_clear()


class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.with_toy_models(cls.addClassCleanup)

    def test_training_without_xla_says_which_search_it_takes(self):
        with without_xla():
            finished = self.workspace.train("loop", "--stop-at-step=0")
        self.assertEqual(finished.code, 0, finished.err)
        reason = rf"XLA does not work on /\w+:\d \({re.escape(REASON)}\)"
        self.assertRegex(finished.out, f"alignment      loop: {reason}")

    def test_requiring_xla_without_xla_is_an_error_with_the_reason(self):
        for flags in (["--alignment-search=xla"], ["--compile=xla", "--enable-static-shapes"]):
            with self.subTest(flags=flags), without_xla():
                finished = self.workspace.train("xla", *flags)
                self.assertEqual(finished.code, 2)
                flag = flags[0].replace("=", " ")
                self.assertIn(f"{flag} was given, but XLA does not work on", finished.err)
                self.assertIn(REASON, finished.err)

    def test_a_compiled_step_cannot_search_on_the_host(self):
        flags = ("--compile=xla", "--enable-static-shapes", "--alignment-search=host")
        finished = self.workspace.train("host", *flags)
        self.assertEqual(finished.code, 2)
        self.assertIn("alignment_search is 'host'", finished.err)
