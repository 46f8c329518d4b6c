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

from myxtts.base.clock import MODEL, Interval
from myxtts.base.console import report_errors
from myxtts.commands import profile as profile_command
from myxtts.config.schema import DataConfig, PlacementConfig, TrainingConfig
from myxtts.devicefeed.times import Span
from myxtts.placement.bound import STAGES
from myxtts.placement.settings import plan_routes
from myxtts.report import assess as assess_module
from myxtts.run.schedule import Schedule
from myxtts.trial import profile as profiler
from myxtts.trial import steps as measure
from myxtts.trial.stages import StageTimes
from tests.tiny import Workspace, small_models, toy_models

DATA = "/CPU:0"  # lane of the data device
TRACED_RUN = measure.TracedRun(
    total=Interval(4, 2.5, 0.25, 40.0, 50.0, 0.0, 0.0, 0.5),
    step_s=np.array([0.5, 0.5, 0.75, 0.75]),
    spans=(),
)
PRODUCED = TRACED_RUN._replace(
    spans=[Span(DATA, "produce", 0.0, 0.25, batch) for batch in range(4)]
)
DUAL = {"data_gpu": 0, "model_gpu": 1}
TURNS = {"data_gpus": (0, 1), "model_gpu": 2}
SINGLE: dict = {}


def measured(read=0.1, produce=0.2, transfer=0.05, step=0.5, settings=DUAL, **fields):
    """Return four batches of 10 s of speech, padded to 12.5 s."""
    stages_s = read, produce, transfer, step
    defaults = {
        "work": np.full(4, 10.0),
        "padded_work": np.full(4, 12.5),
        "isolated": StageTimes(*(np.full(4, seconds) for seconds in stages_s)),
        "untraced_s": (2.0, 2.5),
        "traced": (TRACED_RUN, TRACED_RUN._replace(total=replace(TRACED_RUN.total, busy_s=2.0))),
        "placement": plan_routes(PlacementConfig(**settings), 3),
        "devices": 2,
    }
    return profiler.Measurement(**defaults | fields)


def figures_of(measurement: profiler.Measurement, data: DataConfig | None = None) -> dict:
    figures = {}
    for row in profiler.analyze(measurement, data or DataConfig()):
        figures |= row.figures
    return figures


def report_of(measurement: profiler.Measurement) -> str:
    return "\n".join(row.line for row in profiler.analyze(measurement, DataConfig()) if row.text)


class AnalysisTest(unittest.TestCase):
    """Figures of an analysis, each computed by hand."""

    def assert_figures(self, measurement: profiler.Measurement, **expected):
        figures = figures_of(measurement)
        for name, value in expected.items():
            self.assertAlmostEqual(figures[name], value, msg=name)

    def rates(self, measurement: profiler.Measurement) -> list[float]:
        stages = figures_of(measurement)["stages"]
        return [stages[stage]["audio_seconds_per_s"] for stage in STAGES]

    def test_rates_are_work_over_the_time_of_all_batches(self):
        np.testing.assert_allclose(self.rates(measured()), [100, 50, 200, 20])
        self.assert_figures(
            measured(), ceiling=20.0, achieved=40 / 2.25, efficiency=2.0 / 2.25, noise=0.5 / 2.25
        )

    def test_a_transfer_overlaps_producing_and_the_step(self):
        figures = figures_of(measured(produce=0.45, transfer=0.4))
        self.assertAlmostEqual(figures["ceiling"], 10 / 0.5)
        self.assertEqual(figures["bottleneck"], "step")

    def test_fractions_come_from_the_traced_runs(self):
        self.assert_figures(
            measured(),
            accelerator_utilisation=4.0 / 4.5,
            wait_fraction=0.5 / 4.5,
            blocked_fraction=1.0 / 4.5,
            tracing_overhead=0.0,
            padding=0.2,
        )

    def test_step_times_are_those_of_the_traced_runs(self):
        # 0.125 of 0.625
        self.assert_figures(
            measured(), step_mean_s=0.625, step_p50_s=0.625, step_p95_s=0.75, step_variation=0.2
        )

    def test_bottleneck_is_the_slowest_stage(self):
        for stage in STAGES:
            self.assertEqual(figures_of(measured(**{stage: 0.6}))["bottleneck"], stage)

    def test_producers_that_take_turns_share_reading_and_producing(self):
        turns = measured(read=0.6, produce=0.8, settings=TURNS)
        np.testing.assert_allclose(self.rates(turns), [10 / 0.3, 10 / 0.4, 200, 20])
        self.assert_figures(turns, ceiling=20.0)
        self.assertEqual(figures_of(turns)["bottleneck"], "step")
        bottleneck = figures_of(measured(produce=1.2, settings=TURNS))["bottleneck"]
        self.assertEqual(bottleneck, "produce")

    def test_the_share_of_a_teacher_is_the_time_of_producing_that_is_missing_without_it(self):
        measurement = measured(produce=0.2, produce_without_teacher_s=np.full(4, 0.05))
        self.assert_figures(measurement, teacher_share=0.75)
        self.assertIn("teacher        75% of producing", report_of(measurement))
        self.assertIsNone(figures_of(measured())["teacher_share"])

    def test_stage_without_time_has_no_rate(self):
        measurement = measured(read=0.0, transfer=0.0)
        self.assertIsNone(self.rates(measurement)[0])
        self.assertEqual(figures_of(measurement)["stages"]["transfer"]["variation"], 0.0)
        self.assertIn("no time", report_of(measurement))

    def test_assessment_has_the_times_of_a_step_and_the_utilisation_of_both_devices(self):
        run = PRODUCED._replace(step_s=np.array([1.25, 1.25]))
        measurement = measured(traced=(run,))
        assessment = profiler.assess_profile(measurement)
        self.assertAlmostEqual(assessment.model_busy, 2.25 / 2.5)
        self.assertAlmostEqual(assessment.data_busy, 4 * 0.25 / 2.5)
        self.assertAlmostEqual(assessment.interval_s, 2.25 / 2)  # of two batches
        longer = 2.25 / (2 * 1.0)  # as measured, than by arithmetic
        self.assertAlmostEqual(assessment.placements_s["single"], longer * 2 * 0.7)
        self.assertAlmostEqual(assessment.placements_s["replicas"], longer * 0.7)
        self.assertIsNone(profiler.assess_profile(measured(settings=SINGLE)).data_busy)

    def test_usage_by_the_driver_is_a_line_for_each_gpu_or_the_reason_why_there_is_none(self):
        known = {"utilisation": 0.9, "least_utilisation": 0.5, "memory_mib": 2048.0, "watts": 0.0}
        for figures, reason, expected in (
            ({}, "no driver", ["GPUs           no usage from the driver: no driver"]),
            (
                {0: known, 1: known | {"watts": 312.0}},
                "",
                [
                    "GPU 0          90% busy, 50% in the least busy second, 2048 MiB",
                    "GPU 1          90% busy, 50% in the least busy second, 312 W, 2048 MiB",
                ],
            ),
        ):
            usage = SimpleNamespace(figures=lambda figures=figures: figures, reason=reason)
            rows = [*profiler.usage_rows(usage)]
            self.assertEqual([row.line for row in rows if row.text], expected)
            self.assertEqual(rows[-1].figures["gpu_usage"], figures)


class RecommendationTest(unittest.TestCase):
    """Recommended flags and their gain in a simulation of the pipeline."""

    def gains(self, data=None, untraced_s=(2.0, 2.0), **times) -> dict[str, float]:
        changes = profiler.recommend(measured(untraced_s=untraced_s, **times), data or DataConfig())
        return {change.flags: round(change.gain, 2) for change in changes}

    def test_second_device_halves_the_time_of_equally_long_stages(self):
        times = {"read": 0.01, "produce": 0.5, "transfer": 0.0}
        gains = self.gains(**times, settings=SINGLE)
        self.assertEqual(gains["--data-gpu 0 --model-gpu 1"], 1.0)
        self.assertEqual(self.gains(**times, settings=SINGLE, devices=1), {})
        self.assertEqual(self.gains(**times, settings=DUAL), {})

    def test_another_producer_halves_the_time_where_producing_takes_twice_as_long_as_the_step(self):
        times = {"read": 0.01, "produce": 1.0, "transfer": 0.0}
        self.assertEqual(self.gains(**times, devices=3), {"--data-gpus 0 1 --model-gpu 2": 1.0})
        self.assertEqual(self.gains(**times, devices=3, settings=TURNS), {})

    def test_a_transfer_longer_than_both_stages_is_faster_on_one_device(self):
        gains = self.gains(produce=0.2, transfer=2.0, step=0.2)
        self.assertEqual(gains["--data-gpu 0 --model-gpu 0"], 4.0)

    def test_model_that_never_waits_gains_nothing_from_faster_batches(self):
        self.assertEqual(self.gains(), {})

    def test_slow_reading_gains_from_more_workers_and_from_a_cache(self):
        with mock.patch.object(assess_module, "core_count", lambda: 64):
            gains = self.gains(read=0.8)
            self.assertEqual(gains, {"--num-workers 4": 0.6, "--cache-dataset": 0.6})  # then C
            gains = self.gains(read=0.8, data=DataConfig(cache_dataset=True))
            self.assertEqual(gains, {"--num-workers 4": 0.6})

    def test_gain_within_the_noise_is_not_recommended(self):
        times = {"read": 0.01, "produce": 0.5, "transfer": 0.0, "settings": SINGLE}
        self.assertEqual(self.gains(untraced_s=(1.0, 4.0), **times), {})

    def test_dual_placement_that_uses_both_devices_is_left_as_it_is(self):
        # 42 % busy, where 40 % is too little.
        busier = PRODUCED._replace(spans=[span._replace(end_s=0.26) for span in PRODUCED.spans])
        report = report_of(measured(traced=(busier,), all_reduce_s=9.0))
        self.assertIn("recommended    nothing", report)
        self.assertTrue(report.endswith(" Recommended: this placement."), report)


SPANS = (
    Span(DATA, "read", 10.0, 10.5, 7),
    Span(DATA, "read", 10.25, 10.75, 8),  # by another worker at the same time
    Span(DATA, "produce", 10.5, 10.75, 7),
    Span(MODEL, "step", 11.0, 12.0, 7),
    Span(DATA, "read", 10.5, 11.0, 9),
)


class TimelineTest(unittest.TestCase):
    def test_spans_of_a_row_do_not_overlap(self):
        rows = {
            name: [span.number for span in row]
            for name, row in profiler.timeline_rows(SPANS).items()
        }
        self.assertEqual(rows, {"read 1": [7, 9], "read 2": [8], "produce": [7], "step": [7]})

    def test_chrome_trace_has_complete_events_in_microseconds_and_named_rows(self):
        trace = profiler.chrome_trace(SPANS, "dual")
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

            def __call__(self, microbatches, *_):
                lengths.append(len(microbatches))

            def synchronize(self, outcome):
                pass

        config = SimpleNamespace(training=TrainingConfig(gradient_accumulation=3))
        schedule = Schedule(1, 1, 0, lambda step: 1.0, lambda step: 0.9)
        setup = SimpleNamespace(config=config, state=SimpleNamespace(step=0), schedule=schedule)
        numbers = np.repeat(np.arange(measure.WARM_UP + 2), 3)
        ones = np.ones(len(numbers))
        window = measure.MeasurementWindow(numbers, np.zeros_like(numbers), ones, ones)
        actual = len(
            measure.time_steps(setup, CountingStep(), window, {0: [{"mel": tf.zeros([1])}]})
        )
        self.assertEqual(actual, 6)
        self.assertEqual(lengths, [2, 3, 3])


class MistakesTest(unittest.TestCase):
    def test_user_errors_are_reported_before_the_measurement(self):
        for flags, message in (
            ("--json no/such/folder/file.json", "no folder"),
            ("--trace .", "that is a folder"),
            ("--num-steps 1", "--num-steps is '1'"),
            ("--num-step 5", "Did you mean --num-steps"),
            ("--batch-size 0", "--batch-size is 0"),
            ("--emulate produce=1,step=1", "throughput is planned or measured"),
            ("--real-time", "throughput is planned or measured"),
            ("--picture lanes.png", "Use --trace FILE"),
        ):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = report_errors(lambda flags=flags: profile_command.main(flags.split()))
            with self.subTest(flags=flags):
                self.assertEqual((code, out.getvalue()), (2, ""))
                self.assertIn(message, err.getvalue())
                self.assertNotIn("Traceback", err.getvalue())


class ProfileTest(unittest.TestCase):
    """A profile of a tiny run on devices that share cores: which figures it has, not how fast."""

    @classmethod
    def setUpClass(cls):
        workspace = Workspace.temporary(cls.addClassCleanup)
        json_file, trace_file = workspace.folder / "profile.json", workspace.folder / "trace.json"
        flags = ["--data-gpu", "0", "--model-gpu", "1", "--num-steps", "6"]
        flags += ["--json", str(json_file), "--trace", str(trace_file)]
        argv = workspace.argv("never", *flags)
        out = io.StringIO()
        with small_models(), toy_models(), contextlib.redirect_stdout(out):
            cls.code = report_errors(lambda: profile_command.main(argv))
        cls.out, cls.run_folder = out.getvalue(), workspace.run_dir("never")
        cls.figures = json.loads(json_file.read_text())
        cls.trace = json.loads(trace_file.read_text())

    def test_every_stage_is_timed_and_the_step_traced_once(self):
        self.assertEqual(self.code, 0)
        self.assertEqual(self.figures["step_traces"], 1)
        for stage in STAGES:
            self.assertGreater(self.figures["stages"][stage]["audio_seconds_per_s"], 0)
        self.assertTrue(0 < self.figures["accelerator_utilisation"] <= 1)
        ratio = self.figures["achieved"] / self.figures["ceiling"]
        self.assertAlmostEqual(self.figures["efficiency"], ratio, places=6)

    def test_trace_has_every_stage_of_each_measured_step(self):
        kinds = [event["cat"] for event in self.trace["traceEvents"] if event["ph"] == "X"]
        self.assertEqual([kinds.count(kind) for kind in ("read", "produce", "step")], [6, 6, 6])

    def test_each_part_is_announced_before_it_is_measured(self):
        announced = [line for line in self.out.splitlines() if line.startswith("measuring")]
        self.assertEqual(len(announced), 3)
        self.assertIn("pass 2 of 2", announced[-1])
        self.assertLess(self.out.index(announced[-1]), self.out.index("ceiling"))

    def test_report_notes_shared_cores_and_the_run_folder_is_untouched(self):
        self.assertIn("share the cores of one CPU", self.out)
        self.assertFalse(self.run_folder.exists())
