"""Simulation of placements against hand-computed times, and their ranking."""

import contextlib
import io
import json
import time
import unittest
from pathlib import Path

import numpy as np

from myxtts.base.console import report_errors
from myxtts.base.errors import ConfigError
from myxtts.commands import plan as plan_command
from myxtts.commands import train
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.routes import Route
from myxtts.placement import bound as model
from myxtts.placement.bound import STAGES, QueueDepths, RunResult, Speeds, StageTimes, simulate
from myxtts.placement.settings import plan_routes
from myxtts.trial import candidates as planner
from myxtts.trial.candidates import Candidate, StageStatistics, candidate_placements, predict_all
from myxtts.trial.stages import resample_steps
from myxtts.trial.steps import check_one_replica
from tests.fixtures import FolderCase

PROFILED = {"produce": {"mean_s": 0.02}, "step": {"mean_s": 0.02}, "read": {"mean_s": 0.005}}
SINGLE, DUAL = [Route("0", "0")], [Route("0", "1")]
REPLICATED = [Route("0", "0"), Route("1", "1")]
ONE_FOR_TWO = [Route("0", "1"), Route("0", "2")]
ONE_FOR_THREE = [Route("0", model) for model in "123"]
TRAINS_TOO = [Route("0", "0"), Route("0", "1")]
TURNS = [Route("0", "2", ("1",))]  # two producers
TURNS_FOR_TWO = [Route("0", "2", ("1",)), Route("0", "3", ("1",))]


def stages(produce_s, step_s, transfer_s=0.0, read_s=0.0) -> StageTimes:
    """Return times of batches; a number applies to all, and without a list there are 12."""
    columns = read_s, produce_s, transfer_s, step_s
    n = max((len(column) for column in columns if np.ndim(column)), default=12)
    return StageTimes(*(np.full(n, column, float) for column in columns))


def varied(n: int, *means_s, variation: float = 0.0) -> StageTimes:
    """Return `n` batches with the mean times of reading, producing, transfer and step, whose stages
    vary independently.
    """
    statistics = {s: StageStatistics(t, variation) for s, t in zip(STAGES, means_s, strict=True)}
    return planner.sample_stage_times(statistics, n)


def seconds(routes, times: StageTimes, *args, **kwargs) -> float:
    return simulate(routes, times, *args, **kwargs).duration_s


def equal_gpus(gpus: int, times: StageTimes | None = None, **options) -> list[Candidate]:
    """Return the placements that so many equal GPUs allow."""
    return candidate_placements(Speeds.of([1.0] * gpus), times or stages(1, 20), 16, **options)


def formulas(predictions) -> dict[str, str]:
    return {prediction.candidate.name: prediction.formula for prediction in predictions}


def names(predictions) -> list[str]:
    return [prediction.candidate.name for prediction in predictions]


class SimulationTest(unittest.TestCase):
    """12 batches with times that can be added up by hand."""

    def test_single_takes_the_sum_of_both_stages(self):
        self.assertAlmostEqual(seconds(SINGLE, stages(2, 3)), 12 * (2 + 3))

    def test_dual_takes_the_slower_stage_plus_filling_the_pipeline(self):
        # A step is queued when the batch of the next one is there: the first waits for two, the
        # last but one for all.
        for produce_s, step_s, expected_s in (
            (2, 2, 2 * 2 + 24),
            (0.1, 3, 2 * 0.1 + 36),
            (3, 0.5, 36 + 2 * 0.5),
        ):
            with self.subTest(produce_s=produce_s):
                self.assertAlmostEqual(seconds(DUAL, stages(produce_s, step_s)), expected_s)

    def test_transfer_overlaps_produce_and_step_and_is_free_on_one_device(self):
        for produce_s, step_s, expected_s in (
            (2, 4, 2 + 3 + 12 * 4),
            (1, 2, 1 + 12 * 3 + 2),
            (4, 1, 12 * 4 + 3 + 1),
        ):
            with self.subTest(produce_s=produce_s, step_s=step_s):
                outcome = simulate(DUAL, stages(produce_s, step_s, transfer_s=3))
                self.assertAlmostEqual(outcome.duration_s, expected_s)
                self.assertAlmostEqual(outcome.utilisation, 12 * step_s / expected_s)
                self.assertAlmostEqual(outcome.busy_s["0"], 12 * produce_s)
        self.assertAlmostEqual(seconds(SINGLE, stages(2, 1, transfer_s=3)), 36)

    def test_transfer_begins_with_the_step_before_although_the_batch_was_ready_sooner(self):
        times = stages(0, [1, 5, 1, 1], transfer_s=[0, 0, 3, 0])
        # Steps 0 and 1 end at 1 and 6. The transfer of batch 2 takes from 1 to 4; from 0 it would
        # cost nothing, too.
        self.assertAlmostEqual(seconds(DUAL, times), 8)
        times = stages(0, [5, 1, 1, 1], transfer_s=[0, 0, 3, 0])
        self.assertAlmostEqual(seconds(DUAL, times), 5 + 3 + 1 + 1)

    def test_deep_feed_hides_a_slow_batch_that_a_shallow_feed_does_not(self):
        times = stages([1] * 7 + [8], 2)
        # Deep: the last batch is ready at 15, and step 6, which hands it over, could have begun at
        # 14. Of depth 1, batch 6 finds batch 5 in the feed from 7 to 8: the last is ready at 16.
        self.assertEqual(seconds(DUAL, times, QueueDepths(prefetch_buffer_size=8)), 15 + 4)
        self.assertEqual(seconds(DUAL, times, QueueDepths(prefetch_buffer_size=1)), 16 + 4)

    def test_replicated_placement_shares_the_work_and_pays_the_all_reduce(self):
        actual = seconds(REPLICATED, stages(2, 3), all_reduce_s=0.5)
        self.assertAlmostEqual(actual, 6 * (2 + 3 + 0.5))

    def test_two_replicas_take_batches_alternately(self):
        outcome = simulate(REPLICATED, stages([1, 5] * 6, [2, 3] * 6))
        self.assertEqual(outcome.busy_s, {"0": 6 * (1 + 2), "1": 6 * (5 + 3)})

    def test_one_producer_for_three_replicas_makes_three_batches_per_step(self):
        actual = seconds(ONE_FOR_THREE, stages(2, 3, transfer_s=1))
        self.assertAlmostEqual(actual, 4 * 3 * 2 + 3 + 3)
        actual = seconds(ONE_FOR_THREE, stages(0.5, 3), all_reduce_s=1)
        self.assertAlmostEqual(actual, 2 * 1.5 + 4 * (3 + 1))

    def test_data_device_copies_one_batch_at_a_time(self):
        actual = seconds(ONE_FOR_THREE, stages(0, 3, transfer_s=2))
        self.assertAlmostEqual(actual, 4 * 3 * 2 + 3)
        actual = seconds([Route("0", "1"), Route("2", "3")], stages(0, 1, transfer_s=2))
        self.assertAlmostEqual(actual, 6 * 2 + 1)

    def test_two_producers_for_four_replicas_are_two_pairs(self):
        routes = [Route("0", "2"), Route("0", "3"), Route("1", "4"), Route("1", "5")]
        self.assertAlmostEqual(seconds(routes, stages(2, 3)), 3 * 2 * 2 + 2 * 3)

    def test_producers_that_take_turns_share_the_batches(self):
        outcome = simulate(TURNS, stages(4, 2, transfer_s=1))
        # Two batches at a time are ready, the last two at 24. Step 9 begins when batch 10 is there
        # and has handed over.
        self.assertAlmostEqual(outcome.duration_s, 24 + 3 * 2)
        self.assertEqual(outcome.busy_s, {"0": 24, "1": 24, "2": 24})
        self.assertAlmostEqual(seconds(TURNS, stages(1, 3)), 1 + 12 * 3)
        self.assertAlmostEqual(seconds(TURNS_FOR_TWO, stages(3, 1)), 3 * 6 + 3)

    def test_transfers_of_producers_that_take_turns_do_not_overlap(self):
        self.assertAlmostEqual(seconds(TURNS, stages(0, 1, transfer_s=3)), 12 * 3 + 1)

    def test_data_device_that_also_trains_does_one_thing_at_a_time(self):
        outcome = simulate(TRAINS_TOO, stages(1, 3))
        self.assertAlmostEqual(outcome.busy_s["0"], 12 + 18)
        self.assertGreaterEqual(outcome.duration_s, 30)

    def test_replicas_wait_for_the_slowest(self):
        routes = [Route("0", "1"), Route("2", "3")]
        self.assertAlmostEqual(seconds(routes, stages(0, [1, 4, 5, 2])), 4 + 5)

    def test_readers_run_in_parallel_and_deliver_in_order(self):
        times = stages(0, 1, read_s=[6, 1, 1, 1])
        # Two readers: the second batch is read at 1 but leaves after the first, at 6; then comes
        # the fourth, at 7.
        self.assertAlmostEqual(seconds(DUAL, times, QueueDepths(num_workers=2)), 6 + 4)
        # Two batches at a time: the last two are there at 24, and three steps are left.
        actual = seconds(DUAL, stages(0, 1, read_s=4), QueueDepths(num_workers=2))
        self.assertAlmostEqual(actual, 6 * 4 + 3)

    def test_each_data_device_has_its_own_readers(self):
        for routes, expected_s in (
            (REPLICATED, 6 * 4 + 2),
            (TURNS, 6 * 4 + 3),
            (ONE_FOR_TWO, 12 * 4 + 2),
            # Each round waits for the two that are read for 0.
            ([*ONE_FOR_TWO, Route("3", "3")], 8 * 4 + 2),
        ):
            with self.subTest(routes=routes):
                actual = seconds(routes, stages(0, 1, read_s=4), QueueDepths(num_workers=1))
                self.assertAlmostEqual(actual, expected_s)

    def test_batches_beyond_the_last_step_are_left_out(self):
        outcome = simulate([Route("0", model) for model in "12345"], stages(1, 1))
        self.assertEqual(outcome.batches, 10)

    def test_utilisation_is_the_mean_busy_fraction_of_model_devices(self):
        outcome = RunResult(10.0, 2, {"0": 10.0, "1": 8.0, "2": 4.0}, ("1", "2"))
        self.assertAlmostEqual(outcome.utilisation, 0.6)
        self.assertAlmostEqual(outcome.batches_per_s, 0.2)

    def test_simulation_of_a_thousand_devices_takes_seconds(self):
        devices = [str(device) for device in range(1024)]
        times = varied(20 * 1024, 0.0, 0.002, 0.0, 0.02, variation=0.25)
        start_s = time.process_time()
        outcome = simulate([Route(device, device) for device in devices], times)
        self.assertLess(time.process_time() - start_s, 60.0)  # 0.4 s on 2 cores
        self.assertEqual(outcome.batches, 20 * 1024)


class StageTimesTest(unittest.TestCase):
    def test_times_have_exactly_the_requested_mean_and_variation(self):
        for variation in (0.0, 1e-160, 1e-17, 0.25, 1.0, 3.0):
            step_s = varied(60, 0.0, 0.01, 0.0, 0.02, variation=variation).step_s
            with self.subTest(variation=variation):
                self.assertAlmostEqual(step_s.mean(), 0.02)
                self.assertAlmostEqual(step_s.std() / step_s.mean(), variation)
                self.assertGreaterEqual(step_s.min(), 0.0)

    def test_stages_vary_independently_and_alike_in_each_call(self):
        first, repeated = (varied(60, 0.01, 0.01, 0.01, 0.01, variation=0.5) for _ in range(2))
        np.testing.assert_array_equal(first.step_s, repeated.step_s)
        self.assertFalse(np.allclose(first.step_s, first.produce_s))

    def test_sampled_stages_have_their_own_statistics(self):
        statistics = {"produce": StageStatistics(2.0, 0.5), "step": StageStatistics(3.0)}
        sample = planner.sample_stage_times(statistics, 100)
        self.assertAlmostEqual(sample.produce_s.std(), 1.0)
        self.assertEqual((sample.step_s.std(), sample.read_s.max()), (0.0, 0.0))

    def test_resampled_batches_keep_their_times_together(self):
        n = np.arange(5.0)
        times = StageTimes(n, 2 * n, 3 * n, 4 * n)
        sample = resample_steps(times, np.zeros(5, int), replicas=3, steps=100)
        np.testing.assert_array_equal(sample.step_s, 4 * sample.read_s)
        self.assertEqual(set(sample.read_s), set(n))

    def test_resampled_steps_have_one_bucket_and_start_with_every_batch_equally_often(self):
        times, bucket = stages(0, np.arange(5.0)), np.array([2, 0, 2, 1, 2])
        for replicas in (1, 2, 4):
            # 98 is not a multiple of 5.
            sample = resample_steps(times, bucket, replicas, steps=98).step_s.astype(int)
            sample = sample.reshape(-1, replicas)
            self.assertEqual(np.bincount(sample[:, 0]).tolist(), [20] * 5)
            self.assertTrue((bucket[sample] == bucket[sample[:, :1]]).all())
            self.assertEqual(set(sample[bucket[sample] == 2].tolist()), {0, 2, 4})


class PlannerTest(unittest.TestCase):
    def test_candidates_are_all_placements_that_the_gpus_allow(self):
        expected = """
            single | none
            replicated | --model-gpus 0 1
            replicated | --model-gpus 0 1 2
            dual | --data-gpu 0 --model-gpu 1
            dual, 2 replicas | --data-gpu 0 --model-gpus 1 2
            dual, 2 producers | --data-gpus 0 1 --model-gpu 2
            dual, 2 replicas, data GPU trains too | --data-gpu 0 --model-gpus 0 1
            dual, 3 replicas, data GPU trains too | --data-gpu 0 --model-gpus 0 1 2
        """
        # Producing takes less than a row of a step does.
        candidates = [f"{each.name} | {each.flags}" for each in equal_gpus(3, stages(0.01, 20))]
        self.assertCountEqual(candidates, map(str.strip, expected.strip().splitlines()))
        self.assertEqual([candidate.name for candidate in equal_gpus(1)], ["single"])

    def test_flags_select_the_simulated_placement(self):
        for candidate in equal_gpus(4):
            with self.subTest(flags=candidate.flags):
                config, _ = train.parse(candidate.flags.replace("none", "").split())
                routes = plan_routes(config.placement, 4).routes
                self.assertEqual(routes, candidate.placement.routes)

    def test_dual_beats_two_replicas_if_the_all_reduce_per_batch_exceeds_half_the_stage_difference(
        self,
    ):
        for produce_s, step_s in ((1, 3), (3, 1), (2, 2), (0.5, 5)):
            times = varied(400, 0.0, produce_s, 0.0, step_s)
            crossing_s = abs(produce_s - step_s) / 2
            for of_batch_s in {0.8 * crossing_s, 1.2 * crossing_s + 0.01} - {0.0}:
                with self.subTest(times=(produce_s, step_s), all_reduce_of_a_batch_s=of_batch_s):
                    ranked = predict_all(equal_gpus(2), times, all_reduce_s=2 * of_batch_s)
                    expected = "dual" if of_batch_s > crossing_s else "replicated"
                    ordered = [name for name in names(ranked) if name in ("dual", "replicated")]
                    self.assertEqual(ordered[0], expected)

    def test_unlike_gpus_share_a_step_by_speed(self):
        times = varied(400, 0.0, 0.008, 0.0, 0.1)
        for speeds, rows in (((1.0, 0.5), (21, 11)), ((0.3, 1.0), (7, 25)), ((1.0, 1.0), ())):
            found = candidate_placements(Speeds.of(speeds), times, 16)
            ranked = predict_all(found, times)
            best = next(each for each in ranked if each.candidate.name.startswith("replicated"))
            self.assertEqual(best.candidate.shares, rows)
            slowest_s = 0.108 * max(
                n / 16 / s for n, s in zip(rows or (16, 16), speeds, strict=True)
            )
            self.assertAlmostEqual(best.batches_per_s, 2 / slowest_s, delta=0.01)
            self.assertAlmostEqual(best.bound_s, slowest_s / 2)
        flags = "--model-gpus 0 1 --batch-shares 21 11"
        found = candidate_placements(Speeds.of((1.0, 0.5)), times, 16)
        self.assertIn(flags, [candidate.flags for candidate in found])

    def test_what_a_step_takes_without_rows_goes_to_the_shares_and_the_prediction(self):
        # 20 + 80 b ms, and on the slow GPU 40 + 160 (2 - b), are equal with b = 22.7 rows of 16.
        times = varied(400, 0.0, 0.0, 0.0, 0.1)
        (best, *_) = predict_all(candidate_placements(Speeds.of((1.0, 0.5), 0.2), times, 16), times)
        self.assertEqual(best.candidate.rows, (23, 9))
        self.assertAlmostEqual(best.batches_per_s, 2 / (0.02 + 0.08 * 23 / 16), delta=0.1)
        (equal, *_) = predict_all(equal_gpus(2, times), times)
        self.assertAlmostEqual(equal.batches_per_s, 20.0, delta=0.1)

    def test_unlike_gpus_have_the_roles_that_suit_them(self):
        # GPU 0 is slow in training alone.
        speeds, times = Speeds((1.0, 1.0), (0.1, 1.0), (0.0, 0.0)), varied(400, 0.0, 0.08, 0.0, 0.1)
        found = candidate_placements(speeds, times, 16)
        by_name = {candidate.name: candidate.flags for candidate in found}
        self.assertEqual(by_name["dual"], "--data-gpu 0 --model-gpu 1")
        self.assertEqual(by_name["single"], "--model-gpus 1")
        self.assertEqual(predict_all(found, times)[0].candidate.name, "dual")

    def test_a_replica_that_could_take_no_row_is_no_candidate(self):
        times = varied(400, 0.0, 0.008, 0.0, 0.1)
        found = candidate_placements(Speeds.of((1.0, 0.01)), times, 16)
        self.assertEqual({candidate.replicas for candidate in found}, {1})

    def test_bound_of_the_gpus_lets_each_do_what_it_does_relatively_fast(self):
        mean_s = {"produce": 0.02, "step": 0.1}
        for speeds, expected_s in (
            (Speeds.of((1.0,)), 0.12),
            (Speeds.of((1.0, 0.5)), 0.12 / 1.5),
            # GPU 0 makes 50 batches a second at most and trains on none; GPU 1 trains on 10.
            (Speeds((1.0, 1.0), (1e-9, 1.0), (0.0, 0.0)), 0.1),
            # GPU 1 trains on all x = 10 f of them and makes none: 50 (1 - f) + 50 = x, f > 1.
            (Speeds.of((1.0, 1.0)), 0.06),
        ):
            self.assertAlmostEqual(speeds.bound_s(mean_s), expected_s)

    def test_second_producer_is_chosen_where_producing_takes_longer_than_the_step(self):
        slow, fast = (
            predict_all(equal_gpus(3), varied(1200, 0.0, produce_s, 0.0, 1.0), all_reduce_s=0.1)
            for produce_s in (2.0, 0.5)
        )
        self.assertEqual(slow[0].candidate.flags, "--data-gpus 0 1 --model-gpu 2")
        # One would be idle.
        self.assertEqual(names(fast)[-3:], ["dual", "dual, 2 producers", "single"])
        formula = formulas(predict_all(equal_gpus(4), stages(4, 1)))["dual, 3 producers"]
        self.assertEqual(formula, "max(P / 3, C) = max(1333, 1000) = 1333 ms")

    def test_unlike_producers_make_batches_by_their_speeds(self):
        times, speeds = varied(1200, 0.0, 0.2, 0.0, 0.1), Speeds.of((1.0, 0.5, 1.0))
        ranked = predict_all(candidate_placements(speeds, times, 16), times, all_reduce_s=1.0)
        self.assertEqual(
            ranked[0].candidate.flags, "--data-gpus 0 1 --model-gpu 2 --data-shares 1 0.5"
        )
        self.assertIn("max(2 P / 3, C)", ranked[0].formula)
        self.assertGreater(ranked[0].efficiency, 0.99)

    def test_the_observer_takes_time_of_the_data_device_and_validation_of_the_model_device(self):
        times = varied(400, 0.0, 0.02, 0.002, 0.03)
        ranked = predict_all(equal_gpus(2), times, observe_s=0.009)
        expected = {
            "dual": "max(P + V, T, C) = max(29, 2, 30) = 30 ms",
            "single": "P + C + V = 59 ms",
            "replicated": "(P + C + V) / 2 = 59 / 2 = 29.5 ms",
        }
        self.assertEqual(formulas(ranked) | expected, formulas(ranked))
        for prediction in ranked:
            if prediction.candidate.name in expected:
                self.assertAlmostEqual(prediction.efficiency, 1.0, delta=0.02)
        mean_s = {"read": 0.0, "produce": 0.02, "transfer": 0.0, "step": 0.03}
        third, _ = model.analytic_bound(DUAL, mean_s, 2, 0.0, 0.04, "2")
        self.assertEqual(third, "max(P, C, V) = max(20, 30, 40) = 40 ms")

    def test_an_observer_that_makes_no_batches_of_the_first_replica_takes_its_time_too(self):
        times = varied(1200, 0.0, 0.010, 0.0, 0.022)
        on_last = predict_all(
            equal_gpus(2, observer=1), times, all_reduce_s=0.0005, observe_s=0.012
        )
        rates = {prediction.candidate.name: prediction.batches_per_s for prediction in on_last}
        self.assertAlmostEqual(rates["replicated"], 2 / 0.0445, delta=0.5)
        self.assertAlmostEqual(rates["dual"], 1 / 0.034, delta=0.5)
        idle = predict_all(equal_gpus(3, observer=2), times, observe_s=0.2)
        for prediction in (*on_last, *idle):
            self.assertLess(prediction.efficiency, 1.02, prediction.candidate.flags)
        (both,) = (p for p in idle if p.candidate.flags == "--data-gpu 0 --model-gpus 1 2")
        self.assertIn("C + V", both.formula)

    def test_a_tie_goes_to_the_smaller_step_and_to_fewer_gpus(self):
        # P = C and A = 0: except for filling the queues, both take 1 s per batch.
        ranked = predict_all(equal_gpus(2), varied(4000, 0.0, 1, 0.0, 1))
        self.assertEqual(names(ranked)[:2], ["dual", "replicated"])
        ranked = predict_all(equal_gpus(2), varied(600, 0.0, 0.0, 0.0, 1))
        self.assertEqual(names(ranked)[-2:], ["single", "dual"])
        self.assertAlmostEqual(ranked[-1].batches_per_s, ranked[-2].batches_per_s)
        rates = [prediction.batches_per_s for prediction in ranked]
        self.assertEqual(rates, sorted(rates, reverse=True))

    def test_difference_below_the_error_of_a_prediction_keeps_the_step(self):
        times = varied(400, 0.0, 0.548, 0.0, 0.527)
        ranked = predict_all(equal_gpus(2), times, all_reduce_s=0.010)
        self.assertEqual(names(ranked)[:2], ["dual", "replicated"])
        self.assertAlmostEqual(ranked[1].batches_per_s / ranked[0].batches_per_s, 1.01, delta=9e-3)

    def test_analytic_bound_has_a_formula_and_bounds_the_simulation(self):
        times = varied(400, 0.0, 0.02, 0.002, 0.02)
        for routes, expected in (
            (SINGLE, "P + C = 40 ms"),
            (DUAL, "max(P, T, C) = max(20, 2, 20) = 20 ms"),
            (REPLICATED, "(P + C + A) / 2 = 44 / 2 = 22 ms"),
            (ONE_FOR_TWO, "max(2 P, 2 T, C + A) / 2 = max(40, 4, 24) / 2 = 20 ms"),
            (TURNS, "max(P / 2, T, C) = max(10, 2, 20) = 20 ms"),
            (TURNS_FOR_TWO, "max(P, 2 T, C + A) / 2 = max(20, 4, 24) / 2 = 12 ms"),
            ([Route("0", "1", ("1",))], "max(T / 2, P / 2 + C) = max(1, 30) = 30 ms"),
            (TRAINS_TOO, "max(2 P + C, P + C + A, T) / 2 = max(60, 44, 2) / 2 = 30 ms"),
        ):
            with self.subTest(expected=expected):
                formula, bound_s = model.analytic_bound(routes, times.mean_s(), 2, 0.004)
                self.assertEqual(formula, expected)
                rate = simulate(routes, times, all_reduce_s=0.004).batches_per_s
                self.assertLessEqual(rate * bound_s, 1.0 + 1e-9)

    def test_readers_are_a_resource_of_each_data_device(self):
        mean_s = {"read": 0.09, "produce": 0.02, "transfer": 0.0, "step": 0.02}
        for routes, expected in (
            (DUAL, "max(P, C, R / 2) = max(20, 20, 45) = 45 ms"),
            (REPLICATED, "max(P + C, R / 2) / 2 = max(40, 45) / 2 = 22.5 ms"),
            (
                [*ONE_FOR_TWO, Route("3", "3")],
                "max(2 P, P + C, R) / 3 = max(40, 40, 90) / 3 = 30 ms",
            ),
        ):
            self.assertEqual(model.analytic_bound(routes, mean_s, 2)[0], expected)

    def test_deep_queues_reach_the_bound_if_times_do_not_vary(self):
        times = varied(2400, 0.0, 0.005, 0.001, 0.02)
        for prediction in predict_all(equal_gpus(4), times, all_reduce_s=0.004):
            if "trains too" not in prediction.candidate.name:
                self.assertGreater(prediction.efficiency, 0.99, prediction.candidate.flags)

    def test_ring_sends_twice_the_gradient_minus_one_share(self):
        actual = [model.ring_all_reduce_s(1.0, replicas) for replicas in (1, 2, 4)]
        self.assertEqual(actual, [0.0, 1.0, 1.5])

    def test_a_profile_of_several_replicas_is_rejected_with_the_command_that_compares_them(self):
        (replicated,) = (p for p in equal_gpus(2) if p.flags == "--model-gpus 0 1")
        with self.assertRaisesRegex(PlacementError, "`myxtts plan` compares"):
            check_one_replica(replicated.placement)

    def test_table_ends_with_the_best_placement_and_its_flags(self):
        ranked = predict_all(equal_gpus(4), varied(400, 0.0, 1, 0.0, 4))
        lines = planner.format_table(ranked)
        self.assertRegex(lines[-1], "^best: replicated, .*--model-gpus 0 1 2 3")
        self.assertEqual(len(lines), 1 + len(ranked) + 1)


class PlanCommandTest(FolderCase):
    """The command `plan`, called in this process."""

    def run_plan(self, arguments: str) -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = report_errors(lambda: plan_command.main(arguments.split()))
        return code, out.getvalue()

    def profile(self, content) -> str:
        text = content if isinstance(content, str) else json.dumps(content)
        return str(self.write("profile.json", text))

    def test_times_from_a_profile_and_from_flags_give_the_same_prediction(self):
        file = self.folder / "placements.json"
        path = self.profile({"stages": PROFILED, "num_workers": 2})
        from_profile = self.run_plan(f"--gpus 2 --profile {path} --json {file}")
        # Two readers: each takes twice the interval of both.
        from_flags = self.run_plan("--gpus 2 --produce-ms 20 --step-ms 20 --read-ms 10")
        self.assertEqual(from_profile, from_flags)
        self.assertEqual(from_profile[0], 0)
        bounds_s = {p["name"]: p["bound_s"] for p in json.loads(file.read_text())["placements"]}
        # A data GPU that is busy for the whole step takes no rows.
        self.assertEqual(set(bounds_s), {"single", "dual", "replicated"})
        self.assertAlmostEqual(bounds_s["single"], 0.04)

    def test_readers_of_the_plan_are_as_fast_as_those_of_the_profile(self):
        # One reader takes 40 ms.
        path = self.profile({"stages": PROFILED, "num_workers": 8})
        times = "--gpus 2 --produce-ms 20 --step-ms 20 --read-ms 40 --num-workers"
        for flags, workers in (("", 8), ("--num-workers 4", 4)):
            planned = self.run_plan(f"--gpus 2 --profile {path} {flags}")
            self.assertEqual(planned, self.run_plan(f"{times} {workers}"))

    def test_the_time_of_a_read_that_is_given_has_no_variation_of_arrivals(self):
        stages = PROFILED | {"read": {"mean_s": 0.005, "variation": 2.0}}
        path = self.profile({"stages": stages, "num_workers": 1})
        flags = "--gpus 2 --read-ms 18 --num-workers 1"
        planned = self.run_plan(f"{flags} --profile {path}")
        self.assertEqual(planned, self.run_plan(f"{flags} --produce-ms 20 --step-ms 20"))

    def test_times_that_a_profile_does_not_have_are_required(self):
        stages = PROFILED | {"transfer": {"mean_s": 0.0}}
        path = self.profile({"stages": stages, "num_workers": 2, "single_device": True})
        code, output = self.run_plan(f"--gpus 2 --profile {path}")
        self.assertEqual(code, 2)
        self.assertIn("of one device, so the time to transfer a batch", output)
        for flags in ("--gpus 2 --transfer-ms 1", "--gpus 1"):
            self.assertEqual(self.run_plan(f"{flags} --profile {path}")[0], 0)
        path = self.profile({"stages": stages})
        code, output = self.run_plan(f"--gpus 2 --profile {path}")
        self.assertEqual(code, 2)
        self.assertIn("needs --num-workers", output)

    def test_flags_override_the_profile(self):
        varying = {"mean_s": 0.02, "variation": 0.5}
        path = self.profile({"stages": {"produce": varying, "step": varying}})
        _, output = self.run_plan(f"--gpus 1 --profile {path} --step-ms 30 --variation 0")
        self.assertIn("P + C = 50 ms", output)

    def test_faulty_profiles_are_rejected(self):
        stage = {"mean_s": 0.02}

        def produce(value):
            return {"stages": {"produce": value, "step": stage}}

        for message, content in (
            ("is no profile: the file: Invalid JSON", "nothing"),
            ("should be an object", [1]),
            ("has no stages", {"efficiency": 1}),
            ("lacks produce or step", {"stages": {"step": stage}}),
            ("stages.produce.mean_s: .*valid number", produce({"mean_s": "much"})),
            ("stages.produce.mean_s: .*less than or equal to 60", produce({"mean_s": np.nan})),
            ("stages.produce.mean_s: .*valid number", produce({"mean_s": True})),
            ("stages.produce: ", produce(1)),
            ("num_workers: .*greater than or equal to 1", produce(stage) | {"num_workers": 0}),
            ("stages.produce.variation: ", produce({"mean_s": 1, "variation": -1})),
        ):
            with self.subTest(message=message), self.assertRaisesRegex(ConfigError, message):
                planner.read_profile(Path(self.profile(content)))
        with self.assertRaisesRegex(ConfigError, "cannot be read"):
            planner.read_profile(self.folder)

    def test_placements_that_lack_memory_are_left_out_and_roles_follow_the_memory(self):
        times = "--produce-ms 5 --step-ms 20 --produce-memory-mib 3000 --replica-memory-mib 22000"
        file = self.folder / "fitting.json"
        code, output = self.run_plan(f"--gpus 2 {times} --memory-mib 4000 24000 --json {file}")
        self.assertEqual(code, 0)
        self.assertIn("best: dual, 49.99 batches/s (flags: --data-gpu 0 --model-gpu 1)", output)
        self.assertIn("GPU 1 has 24000 MiB and needs 25000", output)
        figures = json.loads(file.read_text())
        names = [[each["name"] for each in figures[key]] for key in ("placements", "left_out")]
        others = ["single", "replicated", "dual, 2 replicas, data GPU trains too, unequal shares"]
        self.assertEqual(names, [["dual"], others])
        _, swapped = self.run_plan(f"--gpus 2 {times} --memory-mib 24000 4000")
        self.assertIn("--data-gpu 1 --model-gpu 0", swapped)
        _, enough = self.run_plan(f"--gpus 2 {times} --memory-mib 25000")
        self.assertNotIn("left out", enough)

    def test_a_small_gpu_takes_the_rows_that_fit(self):
        times = "--produce-ms 5 --step-ms 20 --replica-memory-mib 4000 --row-memory-mib 500"
        for memory in ("24000 8100", "16000 8100"):
            _, output = self.run_plan(f"--gpus 2 {times} --memory-mib {memory}")
            self.assertIn(" --model-gpus 0 1 --batch-shares 24 8)", output)
        _, output = self.run_plan(f"--gpus 2 {times} --memory-mib 15900 8100")
        self.assertRegex(output, "left out: replicated, unequal shares; .*: GPU 0 has 15900 MiB")

    def test_speeds_give_shares_and_the_distance_to_the_bound(self):
        flags = "--gpus 2 --speeds 1 0.5 --produce-ms 8 --step-ms 100 --batch-size 15"
        code, out = self.run_plan(flags)
        self.assertEqual(code, 0, out)
        self.assertIn("--model-gpus 0 1 --batch-shares 20 10)", out)
        self.assertIn("busy: GPU 0 100%, GPU 1 100%; 100% of what all GPUs would do", out)
        code, out = self.run_plan("--gpus 2 --speeds 1 --produce-ms 8 --step-ms 100")
        self.assertEqual(code, 2)
        self.assertIn("--speeds has 1 numbers for 2 GPUs. Give one for each.", out)

    def test_user_errors_exit_with_code_2(self):
        times = "--produce-ms 20 --step-ms 20"
        for message, flags in (
            ("Give --produce-ms and --step-ms", "--gpus 2"),
            ("nothing can be compared. Give one", "--gpus 2 --produce-ms 0 --step-ms 0"),
            ("no placement fits", f"--gpus 2 {times} --memory-mib 1 --produce-memory-mib 2"),
            ("--memory-mib is missing", f"--gpus 2 {times} --produce-memory-mib 2"),
            ("3 numbers for 2 GPUs", f"--gpus 2 {times} --memory-mib 1 2 3"),
            ("there is no folder", f"--gpus 1 {times} --json {self.folder}/none/x.json"),
        ):
            with self.subTest(message=message):
                code, output = self.run_plan(flags)
                self.assertEqual(code, 2)
                self.assertIn(message, output)
