"""The grade of a placement: utilisation of devices, and throughput of others, by hand."""

import unittest
from dataclasses import replace

from myxtts.base.clock import Interval
from myxtts.config.schema import PlacementConfig
from myxtts.devicefeed.routes import Placement
from myxtts.placement.settings import plan_routes
from myxtts.report.assess import Assessment, assess_run, grade, has_two_devices


def stages(produce=0.0, transfer=0.0, step=0.0, read=0.0) -> dict[str, float]:
    return {"read": read, "produce": produce, "transfer": transfer, "step": step}


IDLE = Assessment(24.0, stages(1.0, 0.5, 24.0), model_busy=1.0, data_busy=1 / 24)
EQUAL = Assessment(20.0, stages(20.0, 0.0, 20.0), model_busy=1.0, data_busy=1.0)
SINGLE = Assessment(40.0, stages(10.0, 0.0, 30.0), model_busy=0.75, data_busy=None)


class AssessmentTest(unittest.TestCase):
    def test_grade_requires_all_limits_that_are_known(self):
        for model_busy, data_busy, step_variation, expected in (
            (0.91, 0.65, 0.19, "excellent"),
            (0.91, 1.00, None, "excellent"),
            (0.95, None, None, "excellent"),
            (0.90, 0.65, 0.19, "good"),
            (0.95, 0.60, 0.10, "good"),
            (0.95, 0.65, 0.20, "good"),
            (0.75, 0.65, 0.10, "minimum"),
            (0.95, 0.45, 0.10, "minimum"),
            (0.95, 0.65, 0.39, "minimum"),
            (0.70, 0.65, 0.10, "below minimum"),
            (0.95, 0.40, 0.10, "below minimum"),
            (0.95, None, 0.40, "below minimum"),
        ):
            self.assertEqual(grade(model_busy, data_busy, step_variation), expected)

    def test_line_grades_each_figure(self):
        line = replace(EQUAL, model_busy=0.75, data_busy=0.65, step_variation=0.25).line
        expected = (
            "minimum: model device busy 75 % (minimum), data device busy 65 % (excellent), steps"
            " vary by 25 % (good); 2.00 x single"
        )
        self.assertTrue(line.startswith(expected), line)

    def test_dual_is_compared_with_single_and_with_two_replicas(self):
        self.assertEqual(IDLE.placements_s, {"single": 25.0, "dual": 24.0, "replicas": 12.5})
        self.assertEqual(IDLE.gains, {"single": 25 / 24, "replicas": 12.5 / 24})

    def test_idle_data_device_is_not_excellent_alone(self):
        """The model device is fed, but the second device gains next to nothing."""
        self.assertEqual(IDLE.grade, "below minimum")
        replicas, single, work = IDLE.recommended
        self.assertEqual(replicas, "--model-gpus 0 1, if its all-reduce is short")
        self.assertTrue(single.startswith("single placement"))
        self.assertTrue(work.startswith("more work for the data device"))
        self.assertIn("1.04 x single, 0.52 x 2 replicas without their all-reduce.", IDLE.line)
        busy = "below minimum: model device busy 100 % (excellent), data device busy 4 % (below"
        self.assertTrue(IDLE.line.startswith(busy), IDLE.line)

    def test_known_all_reduce_decides_between_replicas_and_dual(self):
        fast, slow = (replace(IDLE, all_reduce_s=seconds) for seconds in (3.0, 23.0))
        self.assertEqual(fast.placements_s["replicas"], 14.0)
        self.assertIn("--model-gpus 0 1", fast.recommended)
        self.assertNotIn("without", fast.line)
        self.assertNotIn("--model-gpus", slow.line)

    def test_dual_is_right_where_both_stages_take_equally_long(self):
        self.assertEqual(EQUAL.gains, {"single": 2.0, "replicas": 1.0})
        self.assertEqual(EQUAL.recommended, [])
        self.assertIn("Recommended: this placement.", EQUAL.line)

    def test_slower_producer_leaves_room_for_a_larger_model(self):
        slow = replace(EQUAL, interval_s=28.0, mean_s=stages(28.0, 2.0, 20.0), all_reduce_s=12.0)
        self.assertEqual(slow.placements_s, {"single": 48.0, "dual": 28.0, "replicas": 30.0})
        for stage_s in ((28.0, 2.0, 20.0), (20.0, 28.0, 20.0)):
            (change,) = replace(slow, mean_s=stages(*stage_s), all_reduce_s=20.0).recommended
            self.assertIn("a larger --model-size", change)
        # A transfer overlaps; 0.5 % is no difference.
        for stage_s in ((18.0, 18.0, 20.0), (20.1, 0.0, 20.0)):
            equal = replace(EQUAL, mean_s=stages(*stage_s), all_reduce_s=20.0)
            self.assertEqual(equal.recommended, [])

    def test_producers_that_take_turns_are_compared_with_as_many_replicas(self):
        turns = replace(EQUAL, mean_s=stages(40.0, 0.0, 20.0), gpus=(0, 1, 2))
        self.assertEqual(turns.placements_s, {"single": 60.0, "dual": 20.0, "replicas": 20.0})
        self.assertEqual(turns.recommended, [])
        self.assertIn("3.00 x single, 1.00 x 3 replicas without their all-reduce", turns.line)
        faster = replace(turns, mean_s=stages(10.0, 0.0, 20.0))
        self.assertIn("--model-gpus 0 1 2, if its", faster.recommended[0])
        replicas = replace(faster, all_reduce_s=3.0).placements_s["replicas"]
        self.assertEqual(replicas, (10.0 + 20.0 + 4.0) / 3)

    def test_single_placement_says_what_a_second_device_would_bring(self):
        self.assertEqual(SINGLE.placements_s, {"single": 40.0, "dual": 30.0, "replicas": 20.0})
        self.assertEqual(SINGLE.gains, {"dual": 40 / 30, "replicas": 2.0})
        self.assertEqual(SINGLE.recommended[1], "--data-gpu 0 --model-gpu 1")
        self.assertIn("1.33 x as data device, 2.00 x in two replicas without", SINGLE.line)

    def test_a_step_longer_than_by_arithmetic_is_as_much_longer_in_the_other_placements(self):
        self.assertEqual(replace(SINGLE, interval_s=80.0).gains, SINGLE.gains)
        placements_s = replace(EQUAL, interval_s=30.0).placements_s
        self.assertEqual(placements_s, {"single": 60.0, "dual": 30.0, "replicas": 30.0})

    def test_no_flag_is_recommended_that_would_be_rejected(self):
        self.assertEqual(replace(SINGLE, second_device=False).recommended, [])
        self.assertNotIn("--model-gpus", replace(IDLE, can_replicate=False).line)
        recommended = replace(SINGLE, can_replicate=False).recommended
        self.assertEqual(recommended, ["--data-gpu 0 --model-gpu 1"])
        self.assertIn("--model-gpus 3 2,", replace(IDLE, gpus=(3, 2)).line)

    def test_slow_reading_comes_before_any_placement(self):
        for assessment in (IDLE, SINGLE):
            slow = replace(assessment, interval_s=50.0, mean_s=assessment.mean_s | {"read": 50.0})
            (change,) = slow.recommended
            self.assertIn("faster reading", change)


DUAL, ONE = PlacementConfig(data_gpu=0, model_gpu=1), PlacementConfig()
SPLIT = PlacementConfig(data_gpu=0, model_gpu=0, data_gpu_memory=4096, model_gpu_memory=8192)


def placement(settings: PlacementConfig, simulated=0, gpus=2) -> Placement:
    return plan_routes(settings.model_copy(update={"simulate_gpus": simulated}), gpus)


def run(placement: Placement, replicas=1, produce_s=100.0, **times) -> Assessment:
    """Return the assessment of 10 steps in 250 s."""
    total = Interval(steps=10, busy_s=250.0, produce_s=produce_s, **times)
    return assess_run(total, placement, replicas, devices=2, can_replicate=True)


class RunTest(unittest.TestCase):
    """What a run knows from its clock."""

    def test_dual_run_knows_the_time_of_each_stage(self):
        assessed = run(placement(DUAL))
        actual = (assessed.interval_s, assessed.model_busy, assessed.data_busy, assessed.note)
        self.assertEqual(actual, (25.0, 1.0, 0.4, ""))
        self.assertEqual(assessed.placements_s, {"single": 35.0, "dual": 25.0, "replicas": 17.5})

    def test_a_device_that_waits_works_in_the_rest_of_its_step(self):
        for simulated in (0, 2):
            assessed = run(placement(DUAL, simulated), wait_s=50.0, produce_s=240.0)
            self.assertEqual((assessed.model_busy, assessed.mean_s), (0.8, stages(24.0, 0.0, 20.0)))
            self.assertIn("a larger --model-size", assessed.line)

    def test_a_producer_that_never_pauses_may_hide_waits_of_a_gpu(self):
        unknown = run(placement(DUAL), produce_s=245.0)
        self.assertEqual((unknown.mean_s, unknown.recommended), ({}, []))
        self.assertIn("gain of a second device unknown", unknown.line)
        self.assertTrue(run(placement(DUAL), wait_s=50.0, produce_s=245.0).mean_s)
        self.assertTrue(run(placement(DUAL, simulated=2), produce_s=245.0).mean_s)

    def test_simulated_devices_share_cores_and_parts_of_a_gpu_share_it(self):
        for settings, simulated, gpus in ((DUAL, 2, 2), (SPLIT, 0, 1)):
            line = run(placement(settings, simulated, gpus)).line
            self.assertRegex(line, "Note: .* share one CPU or GPU, so two GPUs may gain more or")
        for settings, two in ((SPLIT, False), (DUAL, True), (ONE, False)):
            self.assertEqual(has_two_devices(placement(settings)), two)

    def test_single_run_knows_its_producer_only_on_the_cpu(self):
        self.assertEqual(run(placement(ONE)).mean_s, {})
        assessed = run(placement(ONE, gpus=0))
        # The device did one after the other.
        self.assertEqual(assessed.mean_s, stages(10.0, 0.0, 15.0))
        self.assertAlmostEqual(assessed.gains["dual"], 25 / 15)

    def test_starved_producer_takes_as_long_to_read_as_for_the_rest_of_its_time(self):
        assessed = run(placement(DUAL, simulated=2), wait_s=200.0, read_s=150.0)
        self.assertEqual(assessed.mean_s["read"], 25.0)
        self.assertIn("faster reading", assessed.line)

    def test_producers_that_take_turns_have_their_mean_time_in_the_clock(self):
        turns = PlacementConfig(data_gpus=(0, 1), model_gpu=2)
        # 10 s a step and producer: each makes every other batch in 20 s.
        assessed = run(placement(turns, gpus=3))
        actual = (assessed.gpus, assessed.data_busy, assessed.mean_s["produce"])
        self.assertEqual(actual, ((0, 1, 2), 0.4, 20.0))
        self.assertEqual(assessed.placements_s, {"single": 45.0, "dual": 25.0, "replicas": 15.0})

    def test_a_run_that_knows_the_speeds_says_how_far_it_is_from_the_bound_of_its_devices(self):
        words = ", 80% of what these devices would do if none ever waited; "
        for bound_s, is_known in ((20.0, True), (None, False)):
            assessed = replace(run(placement(DUAL)), bound_s=bound_s)
            self.assertEqual(words in assessed.line, is_known)

    def test_replicas_are_not_compared_but_their_utilisation_is_known(self):
        models = PlacementConfig(data_gpu=0, model_gpus=(1, 2))
        assessed = run(placement(models, gpus=3), replicas=2)
        self.assertEqual((assessed.data_busy, assessed.gains), (0.4, {}))
        self.assertIn("`python -m myxtts plan` compare", assessed.line)
