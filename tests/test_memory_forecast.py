"""The forecast of host memory: parts that can be counted by hand, and the run that does not fit."""

import unittest
from unittest import mock

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.errors import ConfigError
from myxtts.batches.plan import Plan
from myxtts.config import schema
from myxtts.config.schema import Config, DataConfig, ModelConfig, RunConfig, TrainingConfig
from myxtts.devicefeed.routes import Route
from myxtts.run.memory import (
    EVALUATED_BYTES,
    PRODUCE_BYTES,
    MemoryForecast,
    check_memory,
    forecast_memory,
)
from myxtts.tasks.registry import task_of
from tests.tiny import Workspace

ROWS, SAMPLES, TOKENS, REFERENCE = 4, 40 * 256, 7, 258 * 256  # a reference of 3 s has 258 frames
PCM = ROWS * (SAMPLES + REFERENCE) * 2
TEXT = ROWS * (TOKENS + 2) * 4 + 2 * 4 + 2 * 4
WAVES = PCM + TEXT + 2 * ROWS * 4
FEATURES = TEXT + ROWS * (40 * 81 + 258 * 80 + 2) * 4
GPUS = (Route("/GPU:0", "/GPU:1"),)
CPUS = (Route("/CPU:0", "/CPU:1"), Route("/CPU:0", "/CPU:2"))


def forecast(
    routes, parameters=1000, teacher_parameters=0, load_teacher=None, observer="", **sections
):
    utterances = np.full(8, SAMPLES, np.int32), np.full(8, TOKENS), np.zeros(8, int)
    plan = Plan(*utterances, bounds=[SAMPLES], batch_size=ROWS, seed=0)
    config = Config(**sections)
    extractor = task_of(config).extractor(config, True, load_teacher)
    return forecast_memory(
        config, plan, routes, parameters, extractor, teacher_parameters, observer
    )


class Parts(unittest.TestCase):
    def test_on_gpus_the_host_holds_the_batches_that_are_read_and_a_checkpoint(self):
        # With moments and averages.
        expected = {"for 10 batches of audio": 10 * WAVES / 2**20, "to write a checkpoint": 16.0}
        self.assertEqual(forecast(GPUS, parameters=2**20).parts_mib, expected)

    def test_each_data_device_has_buffers_of_its_own(self):
        data = DataConfig(num_workers=1, buffer_size=3)
        parts = forecast(
            (Route("/GPU:0", "/GPU:0"), Route("/GPU:1", "/GPU:1")), data=data
        ).parts_mib
        self.assertEqual(parts["for 8 batches of audio"], 8 * WAVES / 2**20)

    def test_devices_on_the_cpu_take_their_memory_from_the_host(self):
        parts = forecast(CPUS).parts_mib
        self.assertEqual(parts["for 13 batches of audio"], 13 * WAVES / 2**20)  # uploaded ones, too
        # Of two replicas.
        self.assertEqual(parts["for 14 batches of features"], 14 * FEATURES / 2**20)
        self.assertEqual(set(parts), {*parts, "to make a batch", "for the step"})

    def test_each_producer_has_a_feed_and_readers_of_its_own(self):
        parts = forecast((Route("/CPU:0", "/CPU:2", ("/CPU:1",)),)).parts_mib
        self.assertIn("for 26 batches of audio", parts)
        self.assertIn("for 11 batches of features", parts)  # 2 x (3 + 1) + 3

    def test_a_teacher_is_on_each_data_device_and_takes_whole_utterances(self):
        model = ModelConfig(task="vocoder")
        plain = forecast(CPUS[:1], model=model).parts_mib
        taught = forecast(
            CPUS[:1], teacher_parameters=2**20, load_teacher=str, model=model
        ).parts_mib
        self.assertEqual(taught["for the teacher"], 4.0)
        # references, too.
        self.assertGreater(taught["for 13 batches of audio"], plain["for 13 batches of audio"])
        routes = (Route("/CPU:0", "/CPU:2", ("/CPU:1",)),)
        taught = forecast(routes, teacher_parameters=2**20, load_teacher=str, model=model).parts_mib
        self.assertEqual(taught["for the teacher"], 8.0)

    def test_an_observer_has_a_snapshot_and_buffers_of_its_own(self):
        beside, without = (
            forecast(CPUS[:1], 2**20, observer=observer) for observer in ("/CPU:0", "")
        )
        self.assertIn("for 23 batches of audio", beside.parts_mib)  # 13 + 2 workers and 8 buffered
        observing_mib = beside.parts_mib["for the observer"]
        self.assertGreater(observing_mib, 4.0 + without.parts_mib["to make a batch"])
        on_gpu = forecast(GPUS, 2**20, observer="/GPU:0")
        actual = set(on_gpu.parts_mib)
        self.assertEqual(actual, {"for 20 batches of audio", "to write a checkpoint"})
        self.assertEqual(without.parts_mib["for the snapshot"], 4.0)
        off = RunConfig(validate_every=0, sample_every=0)
        self.assertNotIn("for the snapshot", forecast(CPUS[:1], run=off).parts_mib)

    def test_an_evaluation_has_utterances_and_perhaps_a_network_of_its_own_wherever_it_runs(self):
        plain, run = RunConfig(), RunConfig(evaluate_every=5, evaluate_utterances=2)
        needed = 2 * SAMPLES * (EVALUATED_BYTES + PRODUCE_BYTES / SAMPLE_RATE_HZ) / 2**20
        half = TrainingConfig(precision="mixed_bfloat16")
        for training, network_mib in ((TrainingConfig(), 0.0), (half, 4.0)):
            parts = forecast(CPUS[:1], 2**20, run=run, training=training).parts_mib
            self.assertAlmostEqual(parts["for the evaluation"], needed + network_mib)
        with_it, without = (
            forecast(CPUS[:1], 2**20, observer="/CPU:0", run=each) for each in (run, plain)
        )
        observing = [each.parts_mib["for the observer"] for each in (with_it, without)]
        self.assertAlmostEqual(observing[0] - observing[1], needed)
        on_gpu = forecast(GPUS, 2**20, observer="/GPU:0", run=run)
        self.assertAlmostEqual(on_gpu.evaluation_mib, needed)
        for each in (with_it, on_gpu):
            self.assertNotIn("for the evaluation", each.parts_mib)

    def test_gradients_and_their_sums_grow_with_the_model(self):
        def growth(accumulation):
            training = TrainingConfig(gradient_accumulation=accumulation)
            small, large = (
                forecast(CPUS[:1], count, training=training).parts_mib for count in (0, 2**20)
            )
            return large["for the step"] - small["for the step"]

        self.assertAlmostEqual(growth(1), 4.0)
        self.assertAlmostEqual(growth(2), 8.0)

    def test_activations_grow_with_the_model_and_shrink_with_precision_and_checkpointing(self):
        def step(precision="float32", **model):
            training, model = TrainingConfig(precision=precision), ModelConfig(**model)
            return forecast(CPUS[:1], 0, model=model, training=training).parts_mib["for the step"]

        for task in ("tts", "asr"):
            actual = step(task=task, model_size="big")
            self.assertGreater(actual, step(task=task, model_size="tiny"))
        self.assertGreater(step(), step(segment_seconds=0.25))
        self.assertGreater(step(), step(precision="mixed_bfloat16"))
        self.assertGreater(step(), step(gradient_checkpointing=True))

    def test_a_lower_speed_needs_memory_for_more_frames(self):
        def features(speed):
            model = ModelConfig(task="asr")
            augmentation = schema.AugmentationConfig(speed_perturbation=speed)
            parts = forecast(CPUS[:1], model=model, augmentation=augmentation).parts_mib
            return parts["for 7 batches of features"] * 2**20 / 7 - (TEXT + ROWS * 4)

        self.assertAlmostEqual(features(0.0), ROWS * 40 * 80 * 4)
        self.assertAlmostEqual(features(0.2), ROWS * 50 * 80 * 4)


class TooMuch(unittest.TestCase):
    def test_a_forecast_that_fits_is_accepted(self):
        with mock.patch("myxtts.run.memory.available_memory_mib", lambda: 100.0):
            check_memory(MemoryForecast({"for the step": 100.0}, 1, 1.0))

    def test_a_run_that_does_not_fit_ends_before_it_reads_with_figures_and_flags(self):
        workspace = Workspace.with_toy_models(self.addCleanup)
        with mock.patch("myxtts.run.memory.available_memory_mib", lambda: 2.0):
            finished = workspace.train("large")
        self.assertEqual(finished.code, 2, finished)
        parts = r"[0-9,]+ MiB \([0-9]+ for 13 batches of audio, "
        self.assertRegex(finished.err, f"^error: the run needs about {parts}")
        largest = "of host memory, but 2 MiB are available. Its largest batch has 4 rows of up to"
        self.assertIn(f"{largest} 0.8 s", finished.err)
        flags = "--batch-size --batch-seconds --max-seconds --buffer-size --prefetch-buffer-size"
        for flag in flags.split():
            self.assertIn(flag, finished.err)
        self.assertFalse((workspace.run_dir("large") / "checkpoints").exists())

    def test_a_run_logs_its_forecast(self):
        finished = Workspace.with_toy_models(self.addCleanup).train("small", "--max-steps 1")
        self.assertRegex(finished.out, r"\nhost memory    about [0-9,]+ MiB \(\d+ for 13 batches")

    def test_the_check_raises_config_error(self):
        available = mock.patch("myxtts.run.memory.available_memory_mib", lambda: 1.0)
        with available, self.assertRaises(ConfigError):
            check_memory(MemoryForecast({"for the step": 100.0}, 1, 1.0))
