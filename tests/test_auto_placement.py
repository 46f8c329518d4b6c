"""--placement auto: the choice from measured times, and the errors of the measurement."""

import multiprocessing
import os
import tempfile
import unittest
from functools import partial
from pathlib import Path
from unittest import mock

from tests import two_devices  # noqa: F401 - before TensorFlow starts
from tests.fixtures import make_record

# isort: split

import numpy as np

from myxtts.base.errors import DataError, OutOfMemory
from myxtts.checkpoints.files import write_checkpoint
from myxtts.commands.train import parse
from myxtts.config.schema import Config, DataConfig, PlacementConfig, RunConfig, TrainingConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.distributed.cluster import Cluster
from myxtts.placement.bound import Speeds
from myxtts.placement.settings import plan_routes
from myxtts.trial import auto
from myxtts.trial.auto import choose_placement, in_subprocess, observe_per_step_s, rank_placements
from myxtts.trial.stages import StageProfile, StageTimes
from myxtts.trial.steps import measure_stage_times, time_batches
from tests.fixtures import temporary_folder
from tests.kill_points import terminate_parent
from tests.tiny import Workspace, toy_models

PAIR = Speeds.of([1.0, 1.0])


def profile(
    read_ms: float, produce_ms: float, transfer_ms: float, step_ms, all_reduce_ms: float = 0.0
) -> StageProfile:
    """Return a profile of 20 batches."""
    columns_ms = read_ms, produce_ms, transfer_ms, step_ms
    times = StageTimes(*(np.full(20, column_ms / 1e3) for column_ms in columns_ms))
    return StageProfile(times, all_reduce_ms / 1e3)


def fail(error: Exception, config: Config, steps: int) -> StageProfile:
    raise error


class RankPlacementsTest(unittest.TestCase):
    def best(self, *milliseconds, gpus: int = 2, **training):
        config = Config(training=TrainingConfig(**training))
        return rank_placements(profile(*milliseconds), Speeds.of([1.0] * gpus), config)[0]

    def test_replicas_win_if_the_all_reduce_is_cheap(self):
        best = self.best(1, 5, 2, 22, 3)
        self.assertEqual(best.candidate.flags, "--model-gpus 0 1")
        self.assertAlmostEqual(best.batch_s, 0.030 / 2)
        self.assertEqual(self.best(1, 5, 2, 22, 3, gpus=4).candidate.flags, "--model-gpus 0 1 2 3")

    def test_dual_wins_if_the_all_reduce_takes_longer_than_the_stage_difference(self):
        best = self.best(1, 20, 2, 22, 5)
        self.assertEqual(best.candidate.flags, "--data-gpu 0 --model-gpu 1")
        self.assertAlmostEqual(best.batch_s, 0.022 / 1)

    def test_microbatches_of_a_step_share_one_all_reduce(self):
        self.assertEqual(self.best(1, 16, 2, 22, 8).candidate.name, "dual")
        best = self.best(1, 16, 2, 22, 8, gradient_accumulation=8)
        self.assertEqual(best.candidate.flags, "--model-gpus 0 1")
        self.assertAlmostEqual(best.batch_s, 0.039 / 2)

    def test_microbatches_of_a_step_share_one_validation(self):
        measured = profile(1, 10, 2, 22, 4)._replace(samples_s=6.0)
        run = RunConfig(validate_every=0, sample_every=500)
        for accumulation, name in ((1, "dual"), (8, "replicated")):
            training = TrainingConfig(gradient_accumulation=accumulation)
            ranked = rank_placements(measured, PAIR, Config(run=run, training=training))
            self.assertEqual(ranked[0].candidate.name, name)

    def test_single_wins_if_a_second_gpu_gains_nothing(self):
        best = self.best(1, 5, 40, 20, 60)
        self.assertEqual(best.candidate.name, "single")
        self.assertAlmostEqual(best.batch_s, 0.025 / 1)

    def test_each_gpu_that_makes_batches_has_its_own_readers(self):
        # The interval between batches from all readers of one data GPU.
        best = self.best(60, 5, 1, 20, 0)
        self.assertEqual(best.candidate.name, "replicated")
        self.assertAlmostEqual(best.batch_s, 0.060 / 2)

    def test_two_producers_win_if_producing_takes_twice_as_long_as_the_step(self):
        best = self.best(1, 40, 2, 20, 4, gpus=3)
        self.assertEqual(best.candidate.flags, "--data-gpus 0 1 --model-gpu 2")
        self.assertAlmostEqual(best.batch_s, 0.020 / 1)
        self.assertNotIn("producers", self.best(1, 10, 2, 20, 4, gpus=3).candidate.name)

    def test_validation_takes_time_of_the_data_device_in_dual_placement_only(self):
        measured, run = profile(1, 10, 2, 22, 9), RunConfig(validate_every=100)
        measured = measured._replace(held_out_batches=15)
        never = {"validate_every": 0, "sample_every": 0, "evaluate_every": 0}
        for fields, settings, expected_s in (
            ({}, {"validate_every": 100}, 0.15 * (0.010 + 0.022 / 3)),
            ({"samples_s": 3.0}, {"sample_every": 500}, 0.006),
            ({"evaluation_s": 4.0}, {"evaluate_every": 500}, 0.008),
        ):
            config = Config(run=RunConfig(**never | settings))
            actual_s = observe_per_step_s(measured._replace(**fields), config)
            self.assertAlmostEqual(actual_s, expected_s)
        self.assertEqual(rank_placements(measured, PAIR, Config())[0].candidate.name, "replicated")
        validated = rank_placements(measured, PAIR, Config(run=run))[0]
        self.assertEqual(validated.candidate.name, "dual")
        self.assertAlmostEqual(validated.batch_s, 0.022)
        named = Config(run=run, placement=PlacementConfig(placement="auto", observer="model"))
        dual = next(p for p in rank_placements(measured, PAIR, named) if p.candidate.name == "dual")
        self.assertIn("C + V", dual.formula)

    def test_xla_allows_one_replica_only(self):
        config = Config(training=TrainingConfig(compile="xla"))
        ranked = rank_placements(profile(1, 5, 2, 22), Speeds.of([1.0] * 4), config)
        self.assertEqual({estimate.candidate.replicas for estimate in ranked}, {1})


def not_called(config: Config, steps: int):
    raise AssertionError("a run was measured")


def timed(config: Config, steps: int) -> float:
    """Stand for the seconds per batch of a replica: by default every placement is as fast."""
    return float(len(config.placement.model_gpus) or 1)


def measured_as(profiles, time_batches=timed):
    """Return what stands for `in_subprocess`: a profile after the other, and times of batches."""

    def measure(function, config):
        if function is timed:
            return time_batches(config, 40)
        found = next(profiles)
        if isinstance(found, Exception):
            raise found
        return found

    return measure


class ChoosePlacementTest(unittest.TestCase):
    AUTO = Config(placement=PlacementConfig(placement="auto", simulate_gpus=2))

    def chosen(self, gpus: int, *milliseconds) -> PlacementConfig:
        """Return the placement that is chosen by these times."""
        config = Config(placement=PlacementConfig(placement="auto", simulate_gpus=gpus))
        profiles = iter([profile(*milliseconds)])
        with mock.patch.object(auto, "in_subprocess", measured_as(profiles)):
            return choose_placement(config, not_called, timed).placement

    def test_choice_of_replicas_logs_the_larger_step(self):
        with self.assertLogs("myxtts", "INFO") as logged:
            chosen = self.chosen(2, 1, 5, 2, 22, 3)
        self.assertEqual(chosen, PlacementConfig(model_gpus=(0, 1), simulate_gpus=2))
        lines = "\n".join(logged.output)
        self.assertIn("R 2, P 5, T 2, C 22, A 3", lines)
        self.assertIn("a step of 2 replicas has 2 times the utterances", lines)
        self.assertIn("placement auto these devices share one CPU", lines)

    def test_bounds_that_are_close_are_decided_by_steps_of_both(self):
        # By the bounds dual takes 22 ms, and two replicas 23.5.
        times_ms = 1, 20, 2, 22, 5
        for dual_s, replicated_s, expected in ((0.022, 0.060, ()), (0.022, 0.040, (0, 1))):

            def time_batches(config, steps, times=(dual_s, replicated_s)):
                return times[len(config.placement.model_gpus) == 2]

            measure = measured_as(iter([profile(*times_ms)]), time_batches)
            with (
                mock.patch.object(auto, "in_subprocess", measure),
                self.assertLogs("myxtts", "INFO") as logged,
            ):
                chosen = choose_placement(self.AUTO, not_called, timed).placement
            self.assertEqual(chosen.model_gpus if len(chosen.model_gpus) > 1 else (), expected)
            lines = "\n".join(logged.output)
            self.assertIn("measuring 40 steps of dual (--data-gpu 0 --model-gpu 1)", lines)
            self.assertIn("measuring 40 steps of replicated (--model-gpus 0 1)", lines)

    def chosen_on_gpus(self, *profiles: StageProfile | Exception, pairs=(), **data) -> Config:
        """Return the choice by what was measured with each pair of real GPUs; by default each GPU
        makes batches for the next one.
        """
        config = Config(placement=PlacementConfig(placement="auto"), data=DataConfig(**data))
        measured = mock.Mock(side_effect=measured_as(iter(profiles)))
        gpus = len({*map(max, pairs)} or profiles)
        with (
            mock.patch("myxtts.placement.devices.gpu_count", return_value=gpus),
            mock.patch.object(auto, "in_subprocess", measured),
        ):
            chosen = choose_placement(config, not_called, timed)
        actual = [
            (call.args[1].placement.data_gpu, call.args[1].placement.model_gpu)
            for call in measured.mock_calls
            if call.args[0] is not_called
        ]
        self.assertEqual(actual, [*pairs] or [(i, (i + 1) % gpus) for i in range(gpus)])
        return chosen

    def test_unlike_gpus_are_each_measured_and_share_the_steps(self):
        # GPU 1 trains and makes batches at half the speed of GPU 0.
        profiles = (
            profile(1, 8, 0, 200)._replace(batch_rows=64),
            profile(1, 16, 0, 100)._replace(batch_rows=64),
        )
        with self.assertLogs("myxtts", "INFO") as logged:
            # With --batch-seconds, the batches that were measured say how many rows there are.
            chosen = self.chosen_on_gpus(*profiles, batch_seconds=100.0)
        self.assertEqual(chosen.placement, PlacementConfig(model_gpus=(0, 1)))
        self.assertEqual(chosen.data.batch_shares, (85.0, 43.0))
        self.assertIn("what all GPUs would do if none ever waited", "\n".join(logged.output))
        chosen = self.chosen_on_gpus(*profiles, batch_shares="auto")
        self.assertEqual(chosen.data.batch_shares, "auto")

    def test_gpus_that_differ_by_chance_share_equally(self):
        chosen = self.chosen_on_gpus(profile(1, 8, 0, 100), profile(1, 8, 0, 103))
        self.assertEqual((chosen.placement.model_gpus, chosen.data.batch_shares), ((0, 1), ()))

    def test_a_gpu_that_is_too_small_for_a_step_makes_the_batches(self):
        error = OutOfMemory("out of memory: no step")
        profiles = error, profile(1, 16, 0, 100), profile(1, 8, 0, 100)
        with self.assertLogs("myxtts", "INFO") as logged:
            chosen = self.chosen_on_gpus(*profiles, pairs=((0, 1), (0, 0), (1, 0)))
        self.assertEqual(chosen.placement, PlacementConfig(data_gpus=(1,), model_gpus=(0,)))
        self.assertIn("GPU 1 is left out of training: out of memory", "\n".join(logged.output))
        with self.assertRaises(OutOfMemory):
            self.chosen_on_gpus(error, error)

    def test_named_shares_are_rejected(self):
        config = self.AUTO.model_copy(update={"data": DataConfig(batch_shares=(1.0, 2.0))})
        with self.assertRaisesRegex(PlacementError, "together with --batch-shares"):
            choose_placement(config, not_called, not_called)

    def test_a_run_that_resumes_keeps_its_placement(self):
        runs = temporary_folder(self.addCleanup)
        started = Config(placement=PlacementConfig(simulate_gpus=2, data_gpu=0, model_gpu=1))
        checkpoint = runs / "own" / "checkpoints" / "step-000005"
        write_checkpoint(checkpoint, [], make_record(settings=started))
        run = RunConfig(run="own", runs_dir=str(runs), resume=True)
        for shares in ((), "auto", (1.0, 2.0)):
            if shares == (1.0, 2.0):
                # As of two replicas of unequal shares, which config.yaml names.
                started = Config(
                    placement=PlacementConfig(simulate_gpus=2, model_gpus=(0, 1)),
                    data=DataConfig(batch_shares=shares),
                )
                checkpoint = runs / "own" / "checkpoints" / "step-000006"
                write_checkpoint(checkpoint, [], make_record(settings=started, step=6))
            update = {"run": run, "data": DataConfig(batch_shares=shares)}
            chosen = choose_placement(self.AUTO.model_copy(update=update), not_called, not_called)
            self.assertEqual(chosen.placement, started.placement)
            # One replica shares nothing.
            expected = shares if len(started.placement.model_gpus) > 1 else ()
            self.assertEqual(chosen.data.batch_shares, expected)
        update["data"] = DataConfig(batch_shares=(2.0, 1.0))
        with self.assertRaisesRegex(PlacementError, "together with --batch-shares"):
            choose_placement(self.AUTO.model_copy(update=update), not_called, not_called)

    def test_several_producers_can_be_chosen(self):
        expected = PlacementConfig(data_gpus=(0, 1), model_gpus=(2,), simulate_gpus=3)
        self.assertEqual(self.chosen(3, 1, 40, 2, 20, 4), expected)

    def test_single_device_needs_no_measurement(self):
        placement = PlacementConfig(placement="auto", simulate_gpus=1)
        config = Config(placement=placement, data=DataConfig(batch_shares="auto"))
        chosen = choose_placement(config, not_called, not_called)
        self.assertEqual(chosen.placement, PlacementConfig(simulate_gpus=1))
        self.assertEqual(chosen.data.batch_shares, ())

    def test_named_placement_is_rejected(self):
        for named in ({"data_gpu": 0, "model_gpu": 1}, {"model_gpus": (0,)}):
            config = Config(placement=PlacementConfig(placement="auto", simulate_gpus=2, **named))
            with (
                self.subTest(**named),
                self.assertRaisesRegex(PlacementError, "together with .*--model-gpu"),
            ):
                choose_placement(config, not_called, not_called)

    def test_one_of_several_workers_is_rejected(self):
        worker = {"TF_CONFIG": Cluster(("a:20000", "b:20000"), 1).tf_config()}
        with (
            mock.patch.dict(os.environ, worker),
            self.assertRaisesRegex(PlacementError, "worker 1 .* of 2"),
        ):
            choose_placement(self.AUTO, not_called, not_called)

    def test_auto_has_no_routes_until_a_placement_is_chosen(self):
        with self.assertRaisesRegex(PlacementError, "only `myxtts train`"):
            plan_routes(PlacementConfig(placement="auto"), 2)


class MeasureTest(unittest.TestCase):
    def test_measurement_has_all_stage_times_that_a_prediction_needs(self):
        workspace = Workspace.temporary(self.addCleanup)
        flags = "--data-gpu 0 --model-gpu 1 --sample-every 500 --evaluate-every 500"
        argv = workspace.argv("measured", *flags.split())
        # In its own process: TensorFlow treats the all-reduce of another strategy there as a part
        # of this one.
        with multiprocessing.get_context("spawn").Pool(1) as process:
            measured = process.apply(measure_toy_run, (argv,))
        self.assertEqual(len(measured.times), 4)
        times_s = measured.times.mean_s()
        for name in ("all_reduce_s", "samples_s", "evaluation_s"):
            times_s[name] = getattr(measured, name)
        self.assertEqual([name for name, seconds in times_s.items() if seconds <= 0.0], [])
        self.assertTrue(0.0 <= measured.fixed <= 1.0, measured.fixed)
        self.assertEqual(measured.batch_rows, parse(argv)[0].data.batch_size)

    def test_the_batches_of_a_placement_are_timed_in_its_training_loop(self):
        workspace = Workspace.temporary(self.addCleanup)
        argv = workspace.argv("timed", "--model-gpus", "0", "1")
        with multiprocessing.get_context("spawn").Pool(1) as process:
            self.assertGreater(process.apply(time_toy_run, (argv,)), 0.0)

    def test_an_error_in_the_measuring_process_is_raised(self):
        # Without TensorFlow, whose import takes 5 s.
        for error in (DataError("no corpus"), FileNotFoundError("nowhere")):
            with self.assertRaisesRegex(type(error), str(error)):
                in_subprocess(partial(fail, error), Config())

    def test_a_stop_while_measuring_leaves_no_process_and_no_folder_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(SystemExit) as stopped:
                in_subprocess(partial(terminate_parent, Path(folder)), Config())
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual(stopped.exception.code, 143)
        self.assertEqual(multiprocessing.active_children(), [])


def measure_toy_run(argv: list[str]) -> StageProfile:
    sampler = mock.patch("myxtts.trial.steps.make_sampler", return_value=mock.MagicMock())
    evaluator = mock.patch("myxtts.run.observing.open_evaluator", return_value=mock.MagicMock())
    with toy_models(), sampler, evaluator:
        return measure_stage_times(parse(argv)[0], steps=4)


def time_toy_run(argv: list[str]) -> float:
    with toy_models():
        return time_batches(parse(argv)[0], steps=4)
