"""Step, wait and pause times with an injected clock, and warnings about long waits."""

import logging
import unittest

from myxtts.base.clock import Clock, Interval, format_duration, step_variation
from myxtts.config.schema import DataConfig
from myxtts.devicefeed.times import Timeline, Times
from myxtts.report.assess import InputBoundWarning, candidates, flags_of
from myxtts.report.reporter import time_line
from tests.fixtures import ManualTime


class ClockTest(unittest.TestCase):
    def setUp(self):
        self.time = ManualTime()
        self.clock = Clock(self.time)

    def step(self, wait_s=0.0, work_s=1.0, audio_s=3.0, padded_s=4.0, batches=()):
        with self.clock.wait():
            self.time.advance(wait_s)
        self.time.advance(work_s)
        self.clock.finish_step(audio_s, padded_s, batches)

    def pause(self, kind: str, seconds: float):
        with self.clock.pause(kind):
            self.time.advance(seconds)

    def test_an_interval_counts_steps_waits_and_audio(self):
        for _ in range(4):
            self.step(wait_s=0.25, work_s=0.75)
        self.assertEqual(self.clock.report(), Interval(4, 4.0, 1.0, 12.0, 16.0))

    def test_pauses_are_not_part_of_any_step(self):
        self.step()
        self.pause("validation", 100.0)
        self.step()
        self.assertEqual(self.clock.report().busy_s, 2.0)

    def test_time_before_the_first_step_is_no_span_of_a_step(self):
        timeline = Timeline()
        self.clock = Clock(self.time, timeline=timeline)
        self.time.advance(1.0)
        self.step(wait_s=1.0, batches=[Times(1.0, 1.0, 2.0)])
        steps = [span for span in timeline.newest() if span.kind == "step"]
        self.assertEqual([span.number for span in steps], [1])

    def test_each_report_starts_a_new_interval(self):
        self.step(wait_s=0.5)
        self.pause("validation", 9.0)
        self.clock.report()
        self.step(work_s=2.0)
        self.assertEqual(self.clock.report(), Interval(1, 2.0, 0.0, 3.0, 4.0))

    def test_total_covers_all_reports_and_pauses_are_summed_by_kind(self):
        self.step(wait_s=0.5)
        self.pause("validation", 5.0)
        self.clock.report()
        self.step(work_s=2.0)
        for kind in ("samples", "validation"):
            self.pause(kind, 10.0)
        self.assertEqual(self.clock.total(), Interval(2, 3.5, 0.5, 6.0, 8.0, pause_s=25.0))
        self.assertEqual(self.clock.pauses_s, {"validation": 15.0, "samples": 10.0})

    def test_forgotten_time_is_the_first_step_and_of_no_interval(self):
        self.step(work_s=60.0, batches=[Times(0.0, 0.0, 1_000.0)])
        self.pause("checkpoints", 2.0)
        self.assertEqual(self.clock.forget().busy_s, 60.0)
        self.assertEqual(self.clock.pauses_s, {"first step": 60.0, "checkpoints": 2.0})
        self.step(work_s=2.0, batches=[Times(1_063.0, 1_063.0, 1_063.0)])
        self.assertEqual(self.clock.total(), Interval(1, 2.0, 0.0, 3.0, 4.0, blocked_s=1.0))

    def test_remaining_time_is_that_of_the_newest_steps_with_the_mean_pause_so_far(self):
        self.step(work_s=60.0)
        self.clock.forget()
        for work_s in (4.0, 2.0):
            self.step(work_s=work_s)
            newest = self.clock.report()
            self.pause("samples", 1.0)
        self.assertEqual(newest.pause_s, 1.0)
        self.assertEqual(self.clock.remaining_s(newest, 10), 10 * (2.0 + 1.0))
        self.assertEqual(self.clock.remaining_s(newest, 0), 0.0)

    def test_a_pause_after_a_report_is_excluded_from_the_next_interval(self):
        self.step()
        self.clock.report()
        self.pause("validation", 50.0)
        self.step()
        self.assertEqual(self.clock.report().busy_s, 1.0)

    def test_metrics_are_means_over_the_interval(self):
        for _ in range(4):
            self.step(wait_s=0.25, work_s=0.25)
        expected = {"step_s": 0.5, "wait_s": 0.25, "steps_per_s": 2.0, "audio_seconds_per_s": 6.0}
        expected |= dict.fromkeys(("read_s", "produce_s", "blocked_s", "pause_s"), 0.0)
        expected |= {"padding": 0.25, "accelerator_utilisation": 0.5, "bottleneck": "produce"}
        self.assertEqual(self.clock.report().metrics(), expected)

    def test_waits_and_work_add_up_to_the_interval(self):
        for wait_s, work_s in ((0.5, 0.125), (0.0, 2.0), (0.25, 0.0)):
            self.step(wait_s, work_s)
        interval = self.clock.report()
        self.assertEqual((interval.wait_s, interval.busy_s), (0.75, 2.875))

    def test_an_empty_interval_has_finite_metrics(self):
        metrics = self.clock.report().metrics()
        expected = {"steps_per_s": 0.0, "wait_s": 0.0, "padding": 0.0, "bottleneck": "step"}
        self.assertEqual(metrics, metrics | expected | {"accelerator_utilisation": 1.0})

    def test_producer_time_is_split_by_stage(self):
        self.step(work_s=4.0, batches=[Times(0.0, 1.0, 3.5), Times(4.0, 4.25, 7.0)])
        metrics = self.clock.report().metrics()
        actual = [metrics[f"{name}_s"] for name in ("read", "produce", "blocked")]
        self.assertEqual(actual, [1.25, 5.25, 0.5])

    def test_blocked_time_is_counted_between_batches_and_across_reports(self):
        self.step(batches=[Times(0.0, 0.0, 1.0)])
        self.assertEqual(self.clock.report().blocked_s, 0.0)
        self.step(batches=[Times(3.0, 3.0, 3.0)])
        self.assertEqual(self.clock.report().blocked_s, 2.0)

    def test_blocked_time_excludes_pauses(self):
        self.step(batches=[Times(990.0, 990.0, 1_000.0)])  # the clock is at 1001
        self.pause("validation", 100.0)
        self.step(batches=[Times(1_103.0, 1_103.0, 1_104.0)])
        self.assertEqual(self.clock.report().blocked_s, 3.0)

    def test_times_of_producers_that_take_turns_are_means_over_them(self):
        clock = Clock(self.time, producers=2)
        turns = ("/GPU:0", 0.0), ("/GPU:1", 2.0), ("/GPU:0", 4.0), ("/GPU:1", 6.0)
        # Each waits 1 s, makes a batch in 2 s, and is blocked for 1 s.
        for device, began_s in turns:
            self.time.advance(2.0)
            clock.finish_step(3.0, 4.0, [Times(began_s, began_s + 1.0, began_s + 3.0, device)])
        metrics = clock.report().metrics()
        actual = [metrics[f"{name}_s"] for name in ("step", "read", "produce", "blocked")]
        # Blocked for twice 1 s by two producers in four steps.
        self.assertEqual(actual, [2.0, 0.5, 1.0, 0.25])

    def test_bottleneck_is_the_stage_that_the_others_wait_for(self):
        for stage, times in (
            # The model hardly waits, regardless of the producer.
            ("step", {"wait_s": 0.04, "read_s": 0.9}),
            # Producing takes longer, but has to wait.
            ("read", {"wait_s": 0.06, "read_s": 0.3, "produce_s": 0.7}),
            ("produce", {"wait_s": 0.06, "read_s": 0.1, "produce_s": 0.9}),
        ):
            self.assertEqual(Interval(1, 1.0, audio_s=1.0, **times).bottleneck, stage)

    def test_the_variation_of_steps_leaves_out_pauses_and_what_traced(self):
        timeline = Timeline()
        self.clock = Clock(self.time, timeline=timeline)
        for work_s in (60.0, 1.0, 3.0, 1.0, 3.0, 2.0):
            self.step(0.25 * work_s, 0.75 * work_s, batches=[Times(0.0, 0.0, 0.0)])
            traced_s = 1_050.0
            self.pause("validation", 100.0)
            self.time.advance(0.25)
        variation = step_variation(timeline.newest(), traced_s, ahead=0)
        # Of 1.25, 3.25, 1.25, 3.25 and 2.25 s: what is done between two steps belongs to a step.
        self.assertAlmostEqual(variation, 0.8**0.5 / 2.25)
        self.assertIsNone(step_variation(timeline.newest(), self.time(), ahead=0))

    def test_the_variation_of_steps_leaves_out_how_far_the_host_runs_ahead_of_a_gpu(self):
        """The device takes 2 s a step, and the call of a step waits for the one three before it."""
        timeline, done_s = Timeline(), [1_000.0] * 3
        self.clock = Clock(self.time, timeline=timeline)
        for number in range(1, 21):
            self.step(0.0, max(done_s[-3] - self.time.s, 0.0) + 0.01, batches=[Times(0, 0, 0)])
            done_s.append(max(self.time.s, done_s[-1]) + 2.0)
            if number % 10 == 0:
                self.time.s = max(self.time.s, done_s[-1])
                self.pause("reports", 1.0)
        spans = timeline.newest()
        self.assertLess(step_variation(spans, 0.0, ahead=3), 0.01)
        self.assertGreater(step_variation(spans, 0.0, ahead=0), 0.5)

    def test_default_clock_measures_real_time(self):
        clock = Clock()
        with clock.wait():
            sum(range(1_000))
        clock.finish_step(1.0, 1.0, ())
        interval = clock.report()
        self.assertTrue(0.0 < interval.wait_s <= interval.busy_s)


class TimeLineTest(unittest.TestCase):
    """The line that sums up where the time of a run went."""

    def test_durations_have_the_unit_that_suits_them(self):
        cases = {0.0: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 89.0: "89 s", 90.0: "1.5 min"}
        cases |= {5_399.0: "90 min", 5_400.0: "1.5 h", 100_000.0: "28 h", 172_800.0: "2.0 days"}
        self.assertEqual({seconds: format_duration(seconds) for seconds in cases}, cases)

    def test_times_add_up_to_that_of_the_program(self):
        total = Interval(100, 494.0, 2.0, pause_s=17.0)
        pauses_s = {"first step": 11.0, "validation": 5.1, "samples": 9.9, "checkpoints": 2.0}
        pauses_s["reports"] = 0.01
        self.assertEqual(
            time_line(532.01, total, pauses_s),
            "8.9 min: start and first step 21 s, training 8.2 min, waiting for batches 2.0 s,"
            " pauses 17 s (validation 5.1 s, samples 9.9 s, checkpoints 2.0 s)",
        )
        without = time_line(505.0, total, {"first step": 11.0})
        self.assertTrue(without.endswith(", waiting for batches 2.0 s, pauses 0.0 s"), without)


class InputBoundWarningTest(unittest.TestCase):
    """Warnings about waits, from the reports of a run."""

    def setUp(self):
        data = DataConfig(num_workers=1)
        self.input_bound_warning = InputBoundWarning(0, data, single=True, devices=1)

    def warnings_for(self, *reports, **metrics) -> list[str]:
        """Return the warnings after reports of (step, wait share)."""
        metrics = {"step_s": 1.0, "blocked_s": 0.0, "bottleneck": "produce"} | metrics
        with self.assertLogs("myxtts", "WARNING") as logs:
            logging.getLogger("myxtts").warning("end")  # assertLogs fails without any message
            for step, wait_share in reports:
                metrics["accelerator_utilisation"] = 1.0 - wait_share
                self.input_bound_warning(step, metrics)
        return [record.getMessage() for record in logs.records[1:]]

    def test_200_steps_of_waiting_are_reported_once(self):
        self.assertEqual(self.warnings_for((50, 0.2), (100, 0.3), (150, 0.11), (199, 0.2)), [])
        (message,) = self.warnings_for((200, 0.25), (250, 0.9), (1_000, 0.9))
        self.assertIn("for 200 steps", message)
        self.assertIn("now 25 %", message)

    def test_steps_without_waits_restart_the_count(self):
        self.assertEqual(self.warnings_for((150, 0.2), (160, 0.09), (310, 0.2), (350, 0.2)), [])
        self.assertEqual(len(self.warnings_for((360, 0.2))), 1)

    def test_a_report_of_validation_only_is_ignored(self):
        self.input_bound_warning(500, {"validation_loss": 1.0})
        self.assertEqual(self.warnings_for((150, 0.2)), [])

    def test_message_names_the_flags_for_the_slow_stage(self):
        (message,) = self.warnings_for((200, 0.5), bottleneck="read")
        self.assertIn("--cache-dataset", message)
        self.assertNotIn("--data-gpu", message)

    def test_deeper_buffers_are_suggested_if_both_sides_wait_alternately(self):
        (message,) = self.warnings_for((200, 0.5), blocked_s=0.2)
        self.assertIn("--prefetch-buffer-size 6; --buffer-size 16", message)

    def test_settings_already_in_use_are_not_suggested(self):
        data = DataConfig(num_workers=10_000, cache_dataset=True)
        self.assertEqual(candidates("read", data, single=True, devices=2), [])

    def test_a_second_gpu_is_suggested_only_if_available(self):
        for single, devices, producers, flags in (
            (True, 2, 1, ["--data-gpu 0 --model-gpu 1"]),
            (True, 1, 1, []),
            (False, 2, 1, []),
            (False, 3, 1, ["--data-gpus 0 1 --model-gpu 2"]),
            (False, 3, 2, []),
        ):
            changes = candidates("produce", DataConfig(), single, devices, producers)
            self.assertEqual(list(map(flags_of, changes)), flags)
        (message,) = self.warnings_for((200, 0.5), bottleneck="produce")
        self.assertIn("Try, one at a time: a faster device", message)
