"""What the profiler makes of times: by hand, with stages that sleep, and in a tiny run."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import numpy as np
import tensorflow as tf
from PIL import Image

from myxtts.commands import profile as profiler
from myxtts.commands.console import report_errors
from myxtts.config.schema import DataConfig, TrainingConfig
from myxtts.observe import advice
from myxtts.planner.emulator import EmulatedRun, Span
from myxtts.planner.simulator import RunResult
from myxtts.planner.stage_times import STAGES, StageTimes
from myxtts.profiling import measure
from myxtts.profiling.analysis import Measurement, TracedRun, Trials, analyze, grade
from myxtts.profiling.emulation import WARM_UP, emulated_placement, without_warm_up
from myxtts.profiling.nvml import GpuSampler, GpuUsage
from myxtts.profiling.report import report_lines
from myxtts.profiling.timeline import chrome_trace, timeline_excerpt, timeline_rows
from tests.tiny import Workplace, small_models, toy_models

ROOT = Path(__file__).parents[1]
TRACED_RUN = TracedRun(
    duration_s=2.5, wait_s=0.25, blocked_s=0.5, busy_s=2.0, step_s=np.array([0.5, 0.5, 0.75, 0.75]), spans=()
)


def measured(read=0.1, produce=0.2, transfer=0.05, step=0.5, **fields) -> Measurement:
    """Return four batches of 10 s of speech, padded to 12.5 s, in buckets of two, with constant stage times."""
    trials = {name: fields.pop(name) for name in Trials._fields if name in fields}
    defaults = {
        "work": np.full(4, 10.0),
        "padded_work": np.full(4, 12.5),
        "isolated": StageTimes.constant(4, read, produce, transfer, step),
        "untraced_s": (2.0, 2.5),
        "traced": (TRACED_RUN, replace(TRACED_RUN, duration_s=2.0, busy_s=1.6)),
        "step_bucket": np.array([0, 0, 1, 1]),
        "single_device": False,
        "devices": 2,
        "trials": Trials(**trials),
    }
    return Measurement(**defaults | fields)


class AnalysisTest(unittest.TestCase):
    """Figures of a verdict, each computed by hand."""

    def test_rates_are_work_over_the_time_of_all_batches(self):
        verdict = analyze(measured(), DataConfig())
        rates = [verdict.rates[stage] for stage in STAGES]
        np.testing.assert_allclose(rates, [100, 50, 200, 20])
        self.assertAlmostEqual(verdict.ceiling, 20.0)
        self.assertAlmostEqual(verdict.achieved, 40 / 2.25)
        self.assertAlmostEqual(verdict.efficiency, 2.0 / 2.25)
        self.assertAlmostEqual(verdict.serial, 40 / 3.0)
        self.assertAlmostEqual(verdict.speedup, 3.0 / 2.25)
        self.assertAlmostEqual(verdict.ideal_speedup, 1.5)
        self.assertAlmostEqual(verdict.noise, 0.5 / 2.25)

    def test_producing_and_transfer_share_a_thread_and_so_a_place_in_the_ceiling(self):
        verdict = analyze(measured(produce=0.4, transfer=0.35), DataConfig())
        self.assertAlmostEqual(verdict.ceiling, 10 / 0.75)
        self.assertEqual(verdict.bottleneck, "produce")

    def test_reading_runs_ahead_so_serial_has_it_only_where_it_is_slowest(self):
        self.assertAlmostEqual(analyze(measured(read=2.0), DataConfig()).serial, 5.0)

    def test_shares_are_those_of_the_watched_rounds(self):
        verdict = analyze(measured(), DataConfig())
        self.assertAlmostEqual(verdict.accelerator_utilisation, 3.6 / 4.5)
        self.assertAlmostEqual(verdict.wait_fraction, 0.5 / 4.5)
        self.assertAlmostEqual(verdict.blocked_fraction, 1.0 / 4.5)
        self.assertAlmostEqual(verdict.tracing_overhead, 0.0)
        self.assertAlmostEqual(verdict.padding, 0.2)

    def test_where_watching_is_free_its_passes_are_the_run(self):
        verdict = analyze(measured(untraced_s=[]), DataConfig())
        self.assertAlmostEqual(verdict.achieved, 40 / 2.25)
        self.assertIsNone(verdict.tracing_overhead)

    def test_steps_vary_by_their_bucket_or_by_themselves(self):
        verdict = analyze(measured(), DataConfig())
        self.assertAlmostEqual(verdict.step_mean_s, 0.625)
        self.assertAlmostEqual(verdict.step_variation, 0.2)  # 0.125 of 0.625
        self.assertAlmostEqual(verdict.step_variation_in_bucket, 0.0)

    def test_bottleneck_is_the_slowest_stage_and_said_in_a_sentence(self):
        for times in ({"read": 0.6}, {"produce": 0.6}, {"transfer": 0.6}, {"step": 0.6}):
            (stage,) = times
            with self.subTest(stage=stage):
                verdict = analyze(measured(**times), DataConfig())
                self.assertEqual(verdict.bottleneck, stage)
                self.assertRegex(
                    verdict.reason, rf"^{stage}: per batch in isolation, .*600\.0|^(produce|transfer): .* (80|65)0\.0"
                )

    def test_a_stage_without_time_has_no_rate(self):
        verdict = analyze(measured(read=0.0, transfer=0.0), DataConfig())
        self.assertEqual((verdict.rates["read"], verdict.variations["transfer"]), (None, 0.0))
        self.assertIn("no time", "\n".join(report_lines(verdict, "audio s/s")))

    def test_grades_need_both_bounds(self):
        cases = {(0.95, 0.1): "excellent", (0.95, 0.25): "good", (0.85, 0.1): "good", (0.75, 0.1): "minimum"}
        cases |= {(0.95, 0.39): "minimum", (0.95, 0.4): "below minimum", (0.7, 0.1): "below minimum"}
        self.assertEqual({case: grade(*case) for case in cases}, cases)


class RecommendationTest(unittest.TestCase):
    """Flags, by what the simulation of the queue says they gain."""

    def gains(self, data=None, untraced_s=(2.0, 2.0), **times) -> dict[str, float]:
        verdict = analyze(measured(untraced_s=untraced_s, **times), data or DataConfig())
        return {one.flags: round(one.gain, 2) for one in verdict.recommendations}

    def test_two_devices_halve_the_time_where_both_stages_take_as_long(self):
        times = {"read": 0.01, "produce": 0.5, "transfer": 0.0}
        self.assertEqual(self.gains(**times, single_device=True)["--data-gpu 0 --model-gpu 1"], 1.0)
        self.assertEqual(self.gains(**times, single_device=True, devices=1), {})
        self.assertEqual(self.gains(**times, single_device=False), {})

    def test_a_model_that_never_waits_gains_nothing_by_faster_batches(self):
        self.assertEqual(self.gains(), {})

    def test_reading_that_is_slowest_gains_by_a_cache_and_by_as_many_workers_as_were_tried(self):
        with mock.patch.object(advice.os, "sched_getaffinity", lambda _: range(64)):
            gains = self.gains(read=1.0, more_workers_s=0.8)
            self.assertAlmostEqual(gains["--num-workers 4"], 0.25)  # 1.0 / 0.8
            self.assertAlmostEqual(gains["--cache-dataset"], 1.0)  # then the step is slowest
            self.assertEqual(self.gains(read=1.0, more_workers_s=1.0).keys(), {"--cache-dataset"})
            self.assertEqual(self.gains(read=1.0, more_workers_s=1.0, data=DataConfig(cache_dataset=True)), {})

    def test_static_shapes_gain_what_was_measured(self):
        self.assertAlmostEqual(self.gains(static_shapes_ratio=0.8)["--enable-static-shapes"], 0.25)
        self.assertEqual(self.gains(static_shapes_ratio=0.99), {})

    def test_larger_batches_gain_half_of_what_a_step_takes_beside_its_rows(self):
        times = {"read": 0.0, "produce": 0.0, "transfer": 0.0}
        self.assertEqual(self.gains(**times, fixed_fraction=0.5), {"--batch-size 32": 0.33})  # 2 s for two: now 1.5
        self.assertEqual(self.gains(**times, fixed_fraction=0.0), {})

    def test_a_gain_within_the_noise_is_none(self):
        self.assertEqual(self.gains(untraced_s=(2.0, 3.0), static_shapes_ratio=0.8), {})
        text = "\n".join(report_lines(analyze(measured(), DataConfig()), "audio s/s"))
        self.assertIn("recommended    nothing", text)


SPANS = (
    Span("read", 7, 10.0, 10.5),
    Span("read", 8, 10.25, 10.75),  # by another worker, at the same time
    Span("produce", 7, 10.5, 10.75),
    Span("step", 7, 11.0, 12.0),
    Span("read", 9, 10.5, 11.0),
)


class TimelineTest(unittest.TestCase):
    def test_spans_of_a_row_do_not_overlap(self):
        rows = {name: [span.batch for span in row] for name, row in timeline_rows(SPANS).items()}
        self.assertEqual(rows, {"read 1": [7, 9], "read 2": [8], "produce": [7], "step": [7]})

    def test_chrome_trace_has_complete_events_in_microseconds_and_names_its_rows(self):
        trace = chrome_trace(SPANS, "dual")
        events = json.loads(json.dumps(trace))["traceEvents"]
        (step,) = [event for event in events if event["name"] == "step 7"]
        self.assertEqual((step["ph"], step["ts"], step["dur"], step["args"]), ("X", 1e6, 1e6, {"batch": 7}))
        names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertEqual(list(names.values()), ["read 1", "read 2", "produce", "step"])
        self.assertEqual(names[step["tid"]], "step")
        self.assertLessEqual({event["tid"] for event in events if event["ph"] == "X"}, set(names))

    def test_a_picture_shows_some_steps_of_the_middle_and_what_happens_meanwhile(self):
        steps = [Span("step", n, n, n + 0.5) for n in range(100)]
        long = Span("read", 50, 40.0, 60.0)
        shown = timeline_excerpt([*steps, long], batches=4)
        self.assertEqual([span.batch for span in shown if span.stage == "step"], [48, 49, 50, 51])
        self.assertEqual((shown[-1].start_s, shown[-1].end_s), (48.0, 51.5))


class EmulatedPipeline(unittest.TestCase):
    """The script, with stages that sleep."""

    def run_script(self, *argv) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = report_errors(lambda: profiler.main(argv))
        return code, out.getvalue(), err.getvalue()

    def test_files_hold_what_was_found_and_tensorflow_is_not_imported(self):
        with tempfile.TemporaryDirectory() as name:
            files = {flag: Path(name) / flag for flag in ("json", "picture", "trace")}
            source = (
                f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
                "from myxtts.commands import profile as profiler\n"
                "code = profiler.main(sys.argv[1:])\n"
                "sys.exit(7 if {'tensorflow', 'keras'} & set(sys.modules) else code)"
            )
            flags = [part for flag, path in files.items() for part in (f"--{flag}", str(path))]
            emulate = ("--emulate", "read=0.010,produce=0.020,transfer=0.002,step=0.020", "--num-steps", "30")
            done = subprocess.run([sys.executable, "-c", source, *emulate, *flags], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            figures = json.loads(files["json"].read_text())
            picture = np.asarray(Image.open(files["picture"]))
            trace = json.loads(files["trace"].read_text())
        self.assertGreater(figures["efficiency"], 0.5)  # on a quiet machine 0.98; see docs/guides/profiling.md
        self.assertAlmostEqual(figures["speedup"] / figures["ideal_speedup"], figures["efficiency"])
        self.assertAlmostEqual(figures["ideal_speedup"], 42 / 22, delta=0.1)
        self.assertEqual(figures["bottleneck"], "produce")
        self.assertEqual(figures["recommendations"], [])
        self.assertEqual(set(figures["stages"]), set(STAGES))
        self.assertAlmostEqual(figures["stages"]["transfer"]["mean_s"], 0.002, delta=0.001)
        self.assertEqual(picture.shape[2], 3)
        self.assertEqual(sum(event["ph"] == "X" for event in trace["traceEvents"]), 4 * 30)

    def test_no_trace_is_made_in_a_timed_step(self):
        """The batches of a step but the last have a trace of their own, where gradients are accumulated."""
        taken = []

        def step(batches, *_):
            taken.append(len(batches))
            return tf.zeros([1])

        training = TrainingConfig(gradient_accumulation=3)
        bench = SimpleNamespace(config=SimpleNamespace(training=training), state=SimpleNamespace(step=0))
        numbers = np.repeat(np.arange(measure.WARM_UP + 2), 3)
        stretch = measure.MeasurementWindow(
            numbers, np.zeros_like(numbers), np.ones(len(numbers)), np.ones(len(numbers))
        )
        self.assertEqual(len(measure.time_steps(bench, step, stretch, {0: [{}]})), 6)
        self.assertEqual(taken, [2, 3, 3])

    def test_a_pass_is_counted_from_the_end_of_the_warm_up(self):
        steps = [Span("step", n, n + 0.25, n + 1.0) for n in range(WARM_UP + 3)]
        begin_s = float(WARM_UP)
        blocked = [(0.0, begin_s - 1.0), (begin_s - 0.5, begin_s + 0.25), (begin_s + 1.0, begin_s + 1.25)]
        found = without_warm_up(EmulatedRun(RunResult(99.0, 99, 99, 9.0, 9.0, {}, ("1",)), steps, blocked))
        self.assertEqual((found.duration_s, found.busy_s, found.wait_s, found.blocked_s), (3.0, 2.25, 0.75, 0.5))
        self.assertEqual((found.step_s.tolist(), len(found.spans)), ([1.0, 1.0, 1.0], 3))

    def test_emulated_devices_need_not_be_there_and_are_two_where_none_is_named(self):
        cases = {
            "": (0, 1),
            "--data-gpu 5 --model-gpu 6": (5, 6),
            "--model-gpus 3": (3, 3),
            "--simulate-gpus 4": (0, 1),
        }
        for flags, (data, model) in cases.items():
            with self.subTest(flags=flags):
                config, _ = profiler.parse(flags.split())
                (route,) = emulated_placement(config).routes
                self.assertEqual((route.data, route.model), (f"/CPU:{data}", f"/CPU:{model}"))

    def test_what_the_user_can_mend_is_said_before_anything_is_measured(self):
        cases = {
            ("--json", "no/such/folder/file.json"): "no folder",
            ("--picture", "."): "that is a folder",
            ("--emulate", "produce=fast,step=1"): "produce=fast",
            ("--emulate", "produce=0.01,step=0.01", "--model-gpus", "1", "2", "--data-gpu", "0"): "plan_placement.py",
            ("--num-steps", "1"): "--num-steps is '1'",
            ("--num-step", "5"): "Did you mean --num-steps",
            ("--batch-size", "0"): "--batch-size is 0",
        }
        for argv, message in cases.items():
            with self.subTest(argv=argv):
                code, out, err = self.run_script(*argv)
                self.assertEqual((code, out), (2, ""))
                self.assertIn(message, err)
                self.assertNotIn("Traceback", err)


class GpuSamplerTest(unittest.TestCase):
    def test_without_a_gpu_there_are_no_figures_and_a_reason(self):
        watch = GpuSampler([])
        with watch.sampling():
            pass
        self.assertEqual((watch.usage, watch.reason), ({}, "the model is on no GPU"))

    def test_usage_is_the_mean_share_and_the_most_memory(self):
        figures = GpuUsage([0.5, 1.0], [100.0, 300.0]).to_json()
        self.assertEqual(figures["utilisation"], 0.75)
        self.assertAlmostEqual(figures["utilisation_variation"], 1 / 3)
        self.assertEqual(figures["memory_mib"], 300.0)


class ProfileTest(unittest.TestCase):
    """A tiny run, on devices that share this machine's cores: what is found, not how fast it is."""

    @classmethod
    def setUpClass(cls):
        place = Workplace.temporary(cls.addClassCleanup)
        cls.json_file = place.folder / "profile.json"
        argv = place.argv("never", "--data-gpu", "0", "--model-gpu", "1", "--num-steps", "6")
        out = io.StringIO()
        with small_models(), toy_models(), contextlib.redirect_stdout(out):
            cls.code = report_errors(lambda: profiler.main([*argv, "--json", str(cls.json_file)]))
        cls.out, cls.run_folder = out.getvalue(), place.run_dir("never")
        cls.figures = json.loads(cls.json_file.read_text())

    def test_every_stage_was_timed_and_the_step_was_traced_once(self):
        self.assertEqual(self.code, 0)
        self.assertEqual(self.figures["step_traces"], 1)
        for stage in STAGES:
            self.assertGreater(self.figures["stages"][stage]["audio_seconds_per_s"], 0)
        self.assertGreater(self.figures["model_flops_per_s"], 0)
        self.assertTrue(0 < self.figures["model_flops_utilisation"] < 1)
        self.assertTrue(0 < self.figures["accelerator_utilisation"] <= 1)
        self.assertAlmostEqual(self.figures["efficiency"], self.figures["achieved"] / self.figures["ceiling"], places=6)

    def test_shared_cores_are_named_and_the_run_folder_is_left_alone(self):
        self.assertIn("share the cores of one CPU", self.out)
        self.assertFalse(self.run_folder.exists())


if __name__ == "__main__":
    unittest.main()
