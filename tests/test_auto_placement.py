"""--placement auto: what is measured decides, and what cannot be measured is said."""

import multiprocessing
import os
import unittest
from unittest import mock

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import numpy as np

from myxtts.commands.cli import parse
from myxtts.config.schema import Config, PlacementConfig, TrainingConfig
from myxtts.distributed.cluster import Cluster
from myxtts.errors import DataError, PlacementError
from myxtts.placement.routes import plan_routes
from myxtts.profiling import auto
from myxtts.profiling.auto import choose_placement, measure_apart, rank
from myxtts.profiling.measure import StageTimes, measure_stage_times
from tests.tiny import Workplace, toy_models


def times(read_ms: float, produce_ms: float, transfer_ms: float, step_ms, all_reduce_ms: float = 0.0) -> StageTimes:
    """Of 20 batches; those with the same `step_ms`, where it is a list, share a bucket."""
    named = {"read": read_ms, "produce": produce_ms, "transfer": transfer_ms, "step": step_ms}
    stages_s = {name: np.resize(milliseconds, 20) / 1e3 for name, milliseconds in named.items()}
    _, bucket = np.unique(stages_s["step"], return_inverse=True)
    return StageTimes(stages_s, bucket, all_reduce_ms / 1e3)


class RankTest(unittest.TestCase):
    def best(self, *milliseconds, gpus: int = 2, **training):
        return rank(times(*milliseconds), gpus, Config(training=TrainingConfig(**training)))[0]

    def test_replicas_where_the_all_reduce_costs_little(self):
        best = self.best(1, 5, 2, 22, 3)
        self.assertEqual(best.candidate.flags, "--model-gpus 0 1")
        self.assertAlmostEqual(best.batches_per_s, 2 / 0.030, delta=0.2)
        self.assertEqual(self.best(1, 5, 2, 22, 3, gpus=4).candidate.flags, "--model-gpus 0 1 2 3")

    def test_dual_where_the_all_reduce_costs_more_than_producing_differs_from_training(self):
        best = self.best(1, 20, 2, 22, 5)
        self.assertEqual(best.candidate.flags, "--data-gpu 0 --model-gpu 1")
        self.assertAlmostEqual(best.batches_per_s, 1 / 0.022, delta=0.2)

    def test_all_reduce_is_shared_by_the_rounds_of_a_step(self):
        best = self.best(1, 20, 2, 22, 8, gradient_accumulation=8)
        self.assertEqual(best.candidate.flags, "--model-gpus 0 1")
        self.assertAlmostEqual(best.batches_per_s, 2 / 0.043, delta=0.2)

    def test_single_where_a_second_gpu_gains_nothing(self):
        best = self.best(1, 5, 40, 20, 60)
        self.assertEqual(best.candidate.name, "single")
        self.assertAlmostEqual(best.batches_per_s, 1 / 0.025, delta=0.2)

    def test_each_gpu_that_makes_batches_reads_for_itself(self):
        best = self.best(60, 5, 1, 20, 0)  # the pace of all readers of one data GPU together
        self.assertEqual(best.candidate.name, "replicated")
        self.assertAlmostEqual(best.batches_per_s, 2 / 0.060, delta=0.2)

    def test_replicas_of_a_step_have_batches_of_one_bucket(self):
        best = self.best(0, 0, 0, [10, 30])
        self.assertEqual(best.candidate.flags, "--model-gpus 0 1")
        self.assertAlmostEqual(best.batches_per_s, 2 / 0.020, delta=0.2)  # each by itself: 2 / 0.025

    def test_one_replica_where_xla_compiles_the_step(self):
        ranked = rank(times(1, 5, 2, 22), 4, Config(training=TrainingConfig(compile="xla")))
        self.assertEqual({one.candidate.replicas for one in ranked}, {1})


class ChoosePlacementTest(unittest.TestCase):
    AUTO = Config(placement=PlacementConfig(placement="auto", simulate_gpus=2))

    def test_replicas_are_chosen_with_a_word_on_the_step_that_they_make_larger(self):
        with (
            mock.patch.object(auto, "measure_apart", lambda config: times(1, 5, 2, 22, 3)),
            self.assertLogs("myxtts", "INFO") as logged,
        ):
            chosen = choose_placement(self.AUTO)
        self.assertEqual(chosen.placement, PlacementConfig(model_gpus=(0, 1), simulate_gpus=2))
        told = "\n".join(logged.output)
        self.assertIn("R 2, P 5, T 2, C 22, A 3", told)
        self.assertIn("a step of 2 replicas has 2 times the utterances", told)

    def test_one_device_needs_no_measuring(self):
        chosen = choose_placement(Config(placement=PlacementConfig(placement="auto", simulate_gpus=1)))
        self.assertEqual(chosen.placement, PlacementConfig(simulate_gpus=1))

    def test_a_named_placement_is_refused(self):
        for named in ({"data_gpu": 0, "model_gpu": 1}, {"model_gpus": (0,)}):
            with self.subTest(**named), self.assertRaisesRegex(PlacementError, "--model-gpu.* as well"):
                choose_placement(Config(placement=PlacementConfig(placement="auto", simulate_gpus=2, **named)))

    def test_one_of_several_workers_is_refused(self):
        worker = {"TF_CONFIG": Cluster(("a:20000", "b:20000"), 1).tf_config()}
        with mock.patch.dict(os.environ, worker), self.assertRaisesRegex(PlacementError, "worker 1 .* of 2"):
            choose_placement(self.AUTO)

    def test_unsettled_it_is_no_placement(self):
        with self.assertRaisesRegex(PlacementError, "train_main.py alone"):
            plan_routes(PlacementConfig(placement="auto"), 2)


class MeasureTest(unittest.TestCase):
    def test_all_that_a_prediction_needs_is_measured(self):
        place = Workplace.made(self.addCleanup)
        argv = place.argv("measured", "--data-gpu", "0", "--model-gpu", "1")
        # In a process of its own: TensorFlow takes the all-reduce of another strategy there for a part of this one.
        with multiprocessing.get_context("spawn").Pool(1) as process:
            alone = process.apply(measured_toy, (argv,))
        self.assertEqual({len(seconds) for seconds in (*alone.stages_s.values(), alone.bucket)}, {4})
        for part in (*alone.stages_s.values(), alone.all_reduce_s):
            self.assertGreater(np.sum(part), 0.0)

    def test_what_stops_the_measuring_is_raised_here(self):
        with self.assertRaisesRegex(DataError, "nowhere"):
            measure_apart(parse(["--train-data", "nowhere"]).config)


def measured_toy(argv: list[str]) -> StageTimes:
    with toy_models():
        return measure_stage_times(parse(argv).config, steps=4)


if __name__ == "__main__":
    unittest.main()
