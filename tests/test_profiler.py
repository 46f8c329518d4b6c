"""The profiler: its analysis against hand-computed figures, and a profile of a tiny run."""

import contextlib
import io
import json
import unittest
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.clock import MODEL, Interval, Span
from myxtts.commands import profile as profile_command
from myxtts.commands.console import report_errors
from myxtts.config.schema import DataConfig, TrainingConfig
from myxtts.throughput import assess as assess_module
from myxtts.throughput import measure
from myxtts.throughput.analysis import (
    Measurement,
    TracedRun,
    Trials,
    analyze,
    assess,
    chrome_trace,
    timeline_rows,
)
from myxtts.throughput.hardware import GpuSampler
from myxtts.throughput.measure import MeasurementWindow, time_steps
from myxtts.throughput.model import STAGES, StageTimes
from myxtts.training.schedule import Schedule
from tests.tiny import Workspace, small_models, toy_models

DATA = "/CPU:0"  # lane of the data device
TRACED_RUN = TracedRun(
    total=Interval(4, 2.5, 0.25, 40.0, 50.0, 0.0, 0.0, 0.5),
    step_s=np.array([0.5, 0.5, 0.75, 0.75]),
    spans=(),
)


def measured(read=0.1, produce=0.2, transfer=0.05, step=0.5, **fields) -> Measurement:
    """Return four batches of 10 s of speech, padded to 12.5 s, in buckets of two."""
    trials = {name: fields.pop(name) for name in Trials._fields if name in fields}
    defaults = {
        "work": np.full(4, 10.0),
        "padded_work": np.full(4, 12.5),
        "isolated": StageTimes(
            *(np.full(4, seconds) for seconds in (read, produce, transfer, step))
        ),
        "untraced_s": (2.0, 2.5),
        "traced": (TRACED_RUN, TRACED_RUN._replace(total=replace(TRACED_RUN.total, busy_s=2.0))),
        "step_bucket": np.array([0, 0, 1, 1]),
        "single_device": False,
        "devices": 2,
        "trials": Trials(**trials),
    }
    return Measurement(**defaults | fields)


def figures_of(measurement: Measurement, data: DataConfig | None = None) -> dict:
    figures = {}
    for row in analyze(measurement, data or DataConfig()):
        figures |= row.figures
    return figures


def lines_of(measurement: Measurement) -> list[str]:
    return [row.line for row in analyze(measurement, DataConfig()) if row.text]


class AnalysisTest(unittest.TestCase):
    """Figures of an analysis, each computed by hand."""

    def test_rates_are_work_over_the_time_of_all_batches(self):
        figures = figures_of(measured())
        rates = [figures["stages"][stage]["audio_seconds_per_s"] for stage in STAGES]
        np.testing.assert_allclose(rates, [100, 50, 200, 20])
        self.assertAlmostEqual(figures["ceiling"], 20.0)
        self.assertAlmostEqual(figures["achieved"], 40 / 2.25)
        self.assertAlmostEqual(figures["efficiency"], 2.0 / 2.25)
        self.assertAlmostEqual(figures["serial"], 40 / 3.0)
        self.assertAlmostEqual(figures["speedup"], 3.0 / 2.25)
        self.assertAlmostEqual(figures["ideal_speedup"], 1.5)
        self.assertAlmostEqual(figures["noise"], 0.5 / 2.25)

    def test_a_transfer_overlaps_producing_and_the_step(self):
        figures = figures_of(measured(produce=0.45, transfer=0.4))
        self.assertAlmostEqual(figures["ceiling"], 10 / 0.5)
        self.assertAlmostEqual(figures["serial"], 10 / 1.35)
        self.assertEqual(figures["bottleneck"], "step")

    def test_serial_time_includes_reading_only_if_reading_is_slowest(self):
        self.assertAlmostEqual(figures_of(measured(read=2.0))["serial"], 5.0)

    def test_fractions_come_from_the_traced_runs(self):
        figures = figures_of(measured())
        self.assertAlmostEqual(figures["accelerator_utilisation"], 4.0 / 4.5)
        self.assertAlmostEqual(figures["wait_fraction"], 0.5 / 4.5)
        self.assertAlmostEqual(figures["blocked_fraction"], 1.0 / 4.5)
        self.assertAlmostEqual(figures["tracing_overhead"], 0.0)
        self.assertAlmostEqual(figures["padding"], 0.2)

    def test_step_variation_is_reported_with_and_within_buckets(self):
        figures = figures_of(measured())
        self.assertAlmostEqual(figures["step_mean_s"], 0.625)
        self.assertAlmostEqual(figures["step_variation"], 0.2)  # 0.125 of 0.625
        self.assertAlmostEqual(figures["step_variation_in_bucket"], 0.0)

    def test_bottleneck_is_the_slowest_stage_with_a_reason(self):
        for times in ({"read": 0.6}, {"produce": 0.6}, {"transfer": 0.6}, {"step": 0.6}):
            (stage,) = times
            with self.subTest(stage=stage):
                figures = figures_of(measured(**times))
                self.assertEqual(figures["bottleneck"], stage)
                self.assertRegex(
                    figures["reason"],
                    rf"^{stage}: per batch in isolation, [a-z ]* takes 600\.0 ms; ",
                )

    def test_producers_that_take_turns_share_reading_and_producing(self):
        figures = figures_of(measured(read=0.6, produce=0.8, gpus=(0, 1, 2)))
        np.testing.assert_allclose(
            [figures["stages"][stage]["audio_seconds_per_s"] for stage in STAGES],
            [10 / 0.3, 10 / 0.4, 200, 20],
        )
        self.assertEqual((figures["bottleneck"], round(figures["ceiling"], 9)), ("step", 20.0))
        self.assertAlmostEqual(figures["serial"], 10 / 1.35)
        self.assertIn("producing takes 800.0 ms on each of 2 data devices", figures["reason"])
        bottleneck = figures_of(measured(produce=1.2, gpus=(0, 1, 2)))["bottleneck"]
        self.assertEqual(bottleneck, "produce")

    def test_the_share_of_a_teacher_is_the_time_of_producing_that_is_missing_without_it(self):
        measurement = measured(produce=0.2, produce_without_teacher_s=np.full(4, 0.05))
        figures = figures_of(measurement)
        self.assertAlmostEqual(figures["teacher_share"], 0.75)
        message = lines_of(measurement)
        self.assertIn("teacher        75% of producing: 150.00 of 200.00 ms per batch", message)
        self.assertIsNone(figures_of(measured())["teacher_share"])

    def test_stage_without_time_has_no_rate(self):
        measurement = measured(read=0.0, transfer=0.0)
        stages = figures_of(measurement)["stages"]
        actual = (stages["read"]["audio_seconds_per_s"], stages["transfer"]["variation"])
        self.assertEqual(actual, (None, 0.0))
        self.assertIn("no time", "\n".join(lines_of(measurement)))

    def test_assessment_has_the_times_of_a_step_and_the_utilisation_of_both_devices(self):
        spans = [Span(DATA, "produce", 0.0, 0.25, batch) for batch in range(4)]
        run = TRACED_RUN._replace(spans=spans, step_s=np.array([1.25, 1.25]))
        assessment = assess(measured(traced=(run,), step_bucket=np.zeros(2, int)))
        self.assertAlmostEqual(assessment.model_busy, 2.25 / 2.5)
        self.assertAlmostEqual(assessment.data_busy, 4 * 0.25 / 2.5)
        self.assertAlmostEqual(assessment.interval_s, 2.25 / 2)  # of two batches
        longer = 2.25 / (2 * 1.0)  # as measured, than by arithmetic
        self.assertAlmostEqual(assessment.placements_s["single"], longer * 2 * 0.7)
        self.assertAlmostEqual(assessment.placements_s["replicas"], longer * 0.7)
        self.assertIsNone(assess(measured(single_device=True)).data_busy)


class RecommendationTest(unittest.TestCase):
    """Recommended flags and their gain in a simulation of the pipeline."""

    def gains(self, data=None, untraced_s=(2.0, 2.0), **times) -> dict[str, float]:
        figures = figures_of(measured(untraced_s=untraced_s, **times), data)
        return {change["flags"]: round(change["gain"], 2) for change in figures["recommendations"]}

    def test_second_device_halves_the_time_of_equally_long_stages(self):
        times = {"read": 0.01, "produce": 0.5, "transfer": 0.0}
        self.assertEqual(self.gains(**times, single_device=True)["--data-gpu 0 --model-gpu 1"], 1.0)
        self.assertEqual(self.gains(**times, single_device=True, devices=1), {})
        self.assertEqual(self.gains(**times, single_device=False), {})

    def test_another_producer_halves_the_time_where_producing_takes_twice_as_long_as_the_step(self):
        times = {"read": 0.01, "produce": 1.0, "transfer": 0.0}
        self.assertEqual(self.gains(**times, devices=3), {"--data-gpus 0 1 --model-gpu 2": 1.0})
        self.assertEqual(self.gains(**times, devices=3, gpus=(0, 1, 2)), {})

    def test_model_that_never_waits_gains_nothing_from_faster_batches(self):
        self.assertEqual(self.gains(), {})

    def test_slow_reading_gains_from_a_cache_and_from_the_tried_number_of_workers(self):
        with mock.patch.object(assess_module, "core_count", lambda: 64):
            gains = self.gains(read=1.0, more_workers_s=0.8)
            self.assertAlmostEqual(gains["--num-workers 4"], 0.25)  # 1.0 / 0.8
            self.assertAlmostEqual(gains["--cache-dataset"], 1.0)  # then the step is slowest
            self.assertEqual(self.gains(read=1.0, more_workers_s=1.0).keys(), {"--cache-dataset"})
            actual = self.gains(read=1.0, more_workers_s=1.0, data=DataConfig(cache_dataset=True))
            self.assertEqual(actual, {})

    def test_static_shapes_gain_the_measured_ratio(self):
        self.assertAlmostEqual(self.gains(static_shapes_ratio=0.8)["--enable-static-shapes"], 0.25)
        self.assertEqual(self.gains(static_shapes_ratio=0.99), {})

    def test_doubled_batch_saves_half_of_the_fixed_part_of_the_step(self):
        times = {"read": 0.0, "produce": 0.0, "transfer": 0.0}
        # 2 s for two: now 1.5.
        self.assertEqual(self.gains(**times, fixed_fraction=0.5), {"--batch-size 32": 0.33})
        self.assertEqual(self.gains(**times, fixed_fraction=0.0), {})

    def test_gain_within_the_noise_is_not_recommended(self):
        self.assertEqual(self.gains(untraced_s=(2.0, 3.0), static_shapes_ratio=0.8), {})

    def test_dual_placement_that_uses_both_devices_is_left_as_it_is(self):
        # 40 % busy.
        run = TRACED_RUN._replace(
            spans=[Span(DATA, "produce", 0.0, 0.25, batch) for batch in range(4)]
        )
        lines = lines_of(measured(traced=(run,), all_reduce_s=9.0))
        self.assertIn("recommended    nothing", "\n".join(lines))
        self.assertTrue(lines[-1].endswith(" Recommended: this placement."), lines[-1])


SPANS = (
    Span(DATA, "read", 10.0, 10.5, 7),
    Span(DATA, "read", 10.25, 10.75, 8),  # by another worker at the same time
    Span(DATA, "produce", 10.5, 10.75, 7),
    Span(MODEL, "step", 11.0, 12.0, 7),
    Span(DATA, "read", 10.5, 11.0, 9),
)


class TimelineTest(unittest.TestCase):
    def test_spans_of_a_row_do_not_overlap(self):
        rows = {name: [span.number for span in row] for name, row in timeline_rows(SPANS).items()}
        self.assertEqual(rows, {"read 1": [7, 9], "read 2": [8], "produce": [7], "step": [7]})

    def test_chrome_trace_has_complete_events_in_microseconds_and_named_rows(self):
        trace = chrome_trace(SPANS, "dual")
        events = json.loads(json.dumps(trace))["traceEvents"]
        (step,) = [event for event in events if event["name"] == "step 7"]
        actual = (step["ph"], step["ts"], step["dur"], step["args"])
        self.assertEqual(actual, ("X", 1e6, 1e6, {"batch": 7}))
        names = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["name"] == "thread_name"
        }
        self.assertEqual(list(names.values()), ["read 1", "read 2", "produce", "step"])
        self.assertEqual(names[step["tid"]], "step")
        self.assertLessEqual({event["tid"] for event in events if event["ph"] == "X"}, set(names))


class StepTimesTest(unittest.TestCase):
    def test_timed_steps_do_not_trace(self):
        """With accumulation, the batches of a step but the last have a trace of their own."""
        lengths = []

        class CountingStep:
            def hand_over(self, features):
                return features

            def __call__(self, first, following, *_):
                lengths.append(len(following))
                return None, first

            def synchronize(self, outcome):
                pass

        config = SimpleNamespace(training=TrainingConfig(gradient_accumulation=3))
        schedule = Schedule(1, 1, 0, lambda step: 1.0, lambda step: 0.9)
        setup = SimpleNamespace(config=config, state=SimpleNamespace(step=0), schedule=schedule)
        numbers = np.repeat(np.arange(measure.WARM_UP + 2), 3)
        ones = np.ones(len(numbers))
        window = MeasurementWindow(numbers, np.zeros_like(numbers), ones, ones)
        actual = len(time_steps(setup, CountingStep(), window, {0: [{"mel": tf.zeros([1])}]}))
        self.assertEqual(actual, 6)
        self.assertEqual(lengths, [2, 3, 3])


class MistakesTest(unittest.TestCase):
    def test_user_errors_are_reported_before_the_measurement(self):
        cases = {
            ("--json", "no/such/folder/file.json"): "no folder",
            ("--trace", "."): "that is a folder",
            ("--num-steps", "1"): "--num-steps is '1'",
            ("--num-step", "5"): "Did you mean --num-steps",
            ("--batch-size", "0"): "--batch-size is 0",
            ("--emulate", "produce=1,step=1"): "`myxtts plan` predicts",
            ("--real-time",): "Leave it out.",
            ("--picture", "lanes.png"): "Give --trace FILE",
        }
        for argv, message in cases.items():
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = report_errors(lambda argv=argv: profile_command.main(argv))
            with self.subTest(argv=argv):
                self.assertEqual((code, out.getvalue()), (2, ""))
                self.assertIn(message, err.getvalue())
                self.assertNotIn("Traceback", err.getvalue())


class GpuSamplerTest(unittest.TestCase):
    def test_without_a_gpu_there_is_no_usage_but_a_reason(self):
        sampler = GpuSampler([])
        with sampler.sampling():
            pass
        self.assertEqual((sampler.usage(), sampler.reason), ({}, "the model is not on a GPU"))

    def test_usage_is_the_mean_utilisation_and_the_maximum_memory(self):
        sampler = GpuSampler([])
        sampler.samples[0] = [(0.5, 100.0), (1.0, 300.0)]
        figures = sampler.usage()[0]
        self.assertEqual(figures["utilisation"], 0.75)
        self.assertAlmostEqual(figures["utilisation_variation"], 1 / 3)
        self.assertEqual(figures["memory_mib"], 300.0)


class ProfileTest(unittest.TestCase):
    """A profile of a tiny run on devices that share cores: which figures it has, not how fast."""

    @classmethod
    def setUpClass(cls):
        workspace = Workspace.temporary(cls.addClassCleanup)
        json_file, trace_file = workspace.folder / "profile.json", workspace.folder / "trace.json"
        argv = workspace.argv("never", "--data-gpu", "0", "--model-gpu", "1", "--num-steps", "6")
        out = io.StringIO()
        with small_models(), toy_models(), contextlib.redirect_stdout(out):
            cls.code = report_errors(
                lambda: profile_command.main(
                    [*argv, "--json", str(json_file), "--trace", str(trace_file)]
                )
            )
        cls.out, cls.run_folder = out.getvalue(), workspace.run_dir("never")
        cls.figures = json.loads(json_file.read_text())
        cls.trace = json.loads(trace_file.read_text())

    def test_every_stage_is_timed_and_the_step_traced_once(self):
        self.assertEqual(self.code, 0)
        self.assertEqual(self.figures["step_traces"], 1)
        for stage in STAGES:
            self.assertGreater(self.figures["stages"][stage]["audio_seconds_per_s"], 0)
        self.assertGreater(self.figures["model_flops_per_s"], 0)
        self.assertTrue(0 < self.figures["model_flops_utilisation"] < 1)
        self.assertTrue(0 < self.figures["accelerator_utilisation"] <= 1)
        self.assertAlmostEqual(
            self.figures["efficiency"], self.figures["achieved"] / self.figures["ceiling"], places=6
        )

    def test_trace_has_every_stage_of_each_measured_step(self):
        kinds = [event["cat"] for event in self.trace["traceEvents"] if event["ph"] == "X"]
        self.assertEqual([kinds.count(kind) for kind in ("read", "produce", "step")], [6, 6, 6])

    def test_each_part_is_announced_before_it_is_measured(self):
        announced = [line for line in self.out.splitlines() if line.startswith("measuring")]
        self.assertEqual(len(announced), 4)
        self.assertIn("pass 2 of 2", announced[-1])
        self.assertLess(self.out.index(announced[-1]), self.out.index("ceiling"))

    def test_report_notes_shared_cores_and_the_run_folder_is_untouched(self):
        self.assertIn("share the cores of one CPU", self.out)
        self.assertFalse(self.run_folder.exists())


if __name__ == "__main__":
    unittest.main()
