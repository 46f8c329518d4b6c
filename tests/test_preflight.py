"""The preflight passes where a run would work, and reports each fault as a failed check."""

import contextlib
import io
import json
import math
import os
import signal
import tempfile
import threading
import unittest
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf
from packaging.requirements import Requirement

from fakes.copies import find_copies
from myxtts.base.clock import MODEL
from myxtts.base.console import report_errors
from myxtts.base.errors import DataError
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Plan
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.commands import main, preflight, profile
from myxtts.config.load import load as load_config
from myxtts.config.schema import Config, PlacementConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.producer import produced_batches, trace_produce
from myxtts.devicefeed.times import Span
from myxtts.placement import devices
from myxtts.run.observation import Validation
from myxtts.run.setup import load_run_corpora
from myxtts.run.start import Start
from myxtts.tasks.tts.features import tts_extractor
from myxtts.trial.preflight import devices as preflight_devices
from myxtts.trial.preflight import first_steps as trial
from myxtts.trial.preflight import prerequisites, validate
from myxtts.trial.preflight.checks import (
    Check,
    Report,
    check_lines,
    failed_by,
    recommended,
    required,
)
from myxtts.trial.preflight.kernels import audit
from myxtts.trial.steps import SynchronousStep
from tests.devicefeed.feeds import TIMEOUT_S, wait_until
from tests.fixtures import FolderCase, entered
from tests.sine_corpus import write_corpus
from tests.tiny import Finished, Workspace, build_toy, small_models, training_state
from tests.two_devices import DATA, SIMULATED, TWO


def preflight_of(*argv: str) -> Finished:
    out, err = io.StringIO(), io.StringIO()
    with small_models(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = report_errors(lambda: preflight.main(argv))
    return Finished(code, out.getvalue(), err.getvalue())


def setUpModule():
    """Run one complete preflight, which several tests examine."""
    global PLACE, WHOLE, DOCUMENT, AUDITED, OBSERVED
    PLACE = Workspace.temporary(unittest.addModuleCleanup)
    file = PLACE.folder / "preflight.json"

    def step_until_full(*arguments):
        """Take a step in which the producer fills the feed, however late its thread runs."""
        in_step.set()
        outcome = take_step(*arguments)
        wait_until(lambda: feeds[-1].is_full)
        taken.append(outcome)
        if len(taken) < steps:
            in_step.clear()
        return outcome

    def produced_in_steps(read, device, extractor, produce, synchronize=False):
        def produce_in_step(waves):
            in_step.wait(TIMEOUT_S)
            return produce(waves)

        return produced_batches(read, device, extractor, produce_in_step, synchronize)

    take_step = SynchronousStep.__call__
    in_step, steps, taken = threading.Event(), 6, []
    in_step.set()  # the first batches are produced before the first step
    feeds, open_feed = [], Pipeline.open_feed
    AUDITED, OBSERVED = [], []

    evaluate = Validation.evaluate

    def recorded(*arguments):
        OBSERVED.append(evaluate(*arguments))
        return OBSERVED[-1]

    with (
        mock.patch.object(Validation, "evaluate", recorded),
        mock.patch("myxtts.devicefeed.producer.produced_batches", produced_in_steps),
        mock.patch.object(
            Pipeline, "open_feed", lambda *args: feeds.append(open_feed(*args)) or feeds[-1]
        ),
        mock.patch.object(SynchronousStep, "__call__", step_until_full),
        mock.patch(
            "myxtts.trial.preflight.first_steps.audit", lambda f: AUDITED.append(f) or audit(f)
        ),
        # How long it lasts depends on the machine.
        mock.patch("myxtts.trial.preflight.first_steps.MIN_OVERLAP", 0.0),
        mock.patch("myxtts.trial.preflight.first_steps.MIN_FREE_MIB", 1),
    ):
        argv = PLACE.argv("new", "--validate-every=4")
        WHOLE = preflight_of(*argv, f"--steps={steps}", "--json", str(file))
    DOCUMENT = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


class CompletePreflight(unittest.TestCase):
    def check(self, title: str, name: str) -> dict:
        section = next(section for section in DOCUMENT["sections"] if section["title"] == title)
        return next(check for check in section["checks"] if check["name"].startswith(name))

    def test_passes_on_simulated_gpus_and_leaves_no_files(self):
        self.assertEqual((WHOLE.code, WHOLE.err), (0, ""), WHOLE.out)
        self.assertRegex(WHOLE.out.splitlines()[-1], r"^all checks passed \(\d+ ✅, 0 ❌, \d+ ⚠️\)$")
        self.assertFalse(PLACE.run_dir("new").exists())

    def test_json_has_the_same_checks(self):
        self.assertTrue(DOCUMENT["passed"])
        titles = [f"{section['number']}  {section['title']}" for section in DOCUMENT["sections"]]
        self.assertEqual(titles, [line for line in WHOLE.out.splitlines() if line[:1].isdigit()])
        self.assertEqual([title[0] for title in titles], list("123456"))
        for section in DOCUMENT["sections"]:
            for check in section["checks"]:
                for line in check_lines(Check(**check)):
                    self.assertIn(line, WHOLE.out)

    def test_gpus_0_and_1_are_the_default(self):
        actual = self.check("Placement", "requested devices")["expected"]
        self.assertEqual(actual, "batches on GPU 0, model on GPU 1")
        self.assertIn("dual", self.check("Placement", "requested devices")["found"])

    def test_batches_are_produced_during_steps(self):
        self.assertEqual(self.check("Pipeline and audit", "overlap")["status"], "passed")

    def test_heaviest_step_uses_the_longest_bucket(self):
        name = self.check("Model", "heaviest step")["name"]
        # The longest has 0.76 s, in hops of 12 ms.
        self.assertIn(" with a batch of 4 utterances of up to 0.8 s", name)

    def test_a_held_out_batch_is_validated(self):
        (losses,) = OBSERVED
        self.assertTrue(all(map(math.isfinite, losses.values())), losses)

    def test_no_operation_lacks_a_gpu_kernel(self):
        for name in ("audit of the producer", "audit of the step"):
            found = self.check("Pipeline and audit", name)["found"]
            self.assertRegex(found, r"^0 of [\d,]+ operations have no GPU kernel$")

    def test_neither_producer_nor_step_waits_for_a_copy_to_the_host(self):
        self.assertEqual(len(AUDITED), 2)
        for function, most in zip(AUDITED, (15, 80), strict=True):
            copies = find_copies(function)
            self.assertEqual([copy for copy in copies if copy.to_host], [])
            self.assertLessEqual(len(copies), most)

    def test_a_model_on_another_device_fails(self):
        with mock.patch("myxtts.tasks.tts.task.build_xtts", return_value=build_toy(device=DATA)):
            finished = preflight_of(*PLACE.argv("stray"))
        self.assertEqual(finished.code, 1)
        self.assertIn("but found toy/", finished.out)
        self.assertIn("section skipped: the model could not be trained", finished.out)


@unittest.skipIf(devices.gpu_count(), "there are GPUs here")
class WithoutGpu(unittest.TestCase):
    def test_the_placement_fails_and_the_corpus_is_checked_anyway(self):
        flags = "--text-frontend characters --validation-fraction 0.1".split()
        finished = preflight_of("--train-data", str(PLACE.corpus), *flags)
        self.assertEqual((finished.code, finished.err), (1, ""))
        expected = "❌ requested devices: data GPU 0 was requested, but TensorFlow sees no GPU"
        self.assertIn(expected, finished.out)
        actual = finished.out.count("⚠️ section skipped: the requested devices are not available")
        self.assertEqual(actual, 3)
        self.assertIn("✅ durations: 13 utterances of 0.40 to 0.76 s", finished.out)
        self.assertRegex(finished.out.splitlines()[-1], r"^\d+ failed: start with ")


class Stopped(unittest.TestCase):
    def test_a_sigterm_ends_it_and_the_profiler_with_their_temporary_folders(self):
        for program, work in (
            (preflight, "myxtts.trial.preflight.validate.validate"),
            (profile, "myxtts.trial.profile.profile"),
        ):
            with tempfile.TemporaryDirectory() as folder, self.subTest(work):

                def terminated(*_, folder=folder):
                    with tempfile.TemporaryDirectory(dir=folder):
                        os.kill(os.getpid(), signal.SIGTERM)

                with mock.patch(work, terminated), self.assertRaises(SystemExit) as stopped:
                    main.run([program.NAME])
                self.assertEqual((stopped.exception.code, os.listdir(folder)), (143, []))
                self.assertEqual(signal.getsignal(signal.SIGTERM), self.handler)

    def setUp(self):
        self.handler = signal.getsignal(signal.SIGTERM)


class Mistakes(unittest.TestCase):
    def test_mistakes_exit_with_2_before_any_check(self):
        for flags, expected in (
            ("--data-gpu 0", "only one of --data-gpu and --model-gpu was given"),
            ("--simulate-gpus 2 --data-gpu 0 --model-gpu 5", "makes 2 GPUs, numbers 0 and 1"),
            ("--stepps 9", "Did you mean --steps?"),
            ("--batch-sise 9", "Did you mean --batch-size?"),
            ("--steps 1", "from 4 to 1000"),
            ("--json /nowhere/at/all.json", "there is no folder /nowhere/at"),
            ("--config nowhere.yaml", "cannot be read"),
            ("--init-from nowhere", "nowhere"),
            ("--placement auto", "only `myxtts train` measures"),
        ):
            with self.subTest(flags=flags):
                finished = preflight_of(*flags.split())
                self.assertEqual((finished.code, finished.out), (2, ""))
                self.assertIn(expected, finished.err)
                self.assertEqual(finished.err.count("\n"), 1)


class Checks(unittest.TestCase):
    def test_failed_checks_are_printed_with_a_solution(self):
        for check, lines in (
            (required(True, "n", "e", "f", "d"), ["   ✅ n: f", "      expected: e"]),
            (required(False, "n", "e", "f"), ["   ❌ n: f", "      expected: e"]),
            (recommended(False, "n", "e", "f", "d"), ["   ⚠️ n: f", "      expected: e"]),
        ):
            to_do = ["      to do: d"] if check.to_do else []
            self.assertEqual(list(check_lines(check)), lines + to_do)
        self.assertEqual(required(True, "n", "e", "f", "d").to_do, "")

    def test_names_that_a_terminal_would_act_on_or_cannot_show_are_escaped(self):
        check = required(False, "rejected", "none", "caf\udce9 \x1b[2J.wav", "")
        stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.redirect_stdout(stdout):
            Report().run("Corpus", iter([check]))
        stdout.flush()
        self.assertIn(rb"caf\udce9 \x1b[2J.wav", stdout.buffer.getvalue())

    def test_message_of_a_user_error_is_split(self):
        error = PlacementError("GPU 1 was requested, but\n there is none. Buy one. Or do without.")
        found_and_to_do = failed_by(error, "n", "e")[3:]
        expected = ("GPU 1 was requested, but there is none", "Buy one. Or do without.")
        self.assertEqual(found_and_to_do, expected)

    def run_quietly(self, report: Report, title: str, checks: Iterator[Check]):
        with contextlib.redirect_stdout(io.StringIO()):
            return report.run(title, checks)

    def test_an_error_ends_its_section_but_not_the_report(self):
        def broken() -> Iterator[Check]:
            yield required(True, "first", "", "")
            raise PlacementError("lost")

        def complete() -> Iterator[Check]:
            yield recommended(False, "second", "", "")
            return 7

        report = Report()
        self.assertIsNone(self.run_quietly(report, "A", broken()))
        self.assertEqual(self.run_quietly(report, "B", complete()), 7)
        with contextlib.redirect_stdout(io.StringIO()):
            report.skip("C", "B is missing")
        status = [[check.status for check in checks] for checks in report.sections.values()]
        self.assertEqual(status, [["passed", "failed"], ["warning"], ["warning"]])
        self.assertFalse(report.passed)
        actual = report.summary()
        self.assertEqual(actual, "1 failed: start with 'section completed' (1 ✅, 1 ❌, 2 ⚠️)")

    def test_a_defect_is_raised(self):
        def broken() -> Iterator[Check]:
            yield required(True, "first", "", "")
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.run_quietly(Report(), "A", broken())


class Prerequisites(unittest.TestCase):
    def test_required_gpus_include_the_highest_index(self):
        for settings, count in (
            ({}, 0),
            ({"data_gpu": 2, "model_gpu": 3}, 4),
            ({"data_gpu": 2, "model_gpu": 3, "simulate_gpus": 4}, 0),
            ({"model_gpus": (0, 1)}, 2),
        ):
            _, gpus, *_ = prerequisites.check_prerequisites(Config(placement=settings))
            expected = f"sees {count} GPUs" if count else "none is needed"
            self.assertIn(expected, gpus.expected)

    def test_gpus_are_named(self):
        gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
        details = {"device_name": "NVIDIA L4", "compute_capability": (8, 9)}
        with (
            mock.patch.object(tf.config, "list_physical_devices", return_value=[gpu]),
            mock.patch.object(tf.config.experimental, "get_device_details", return_value=details),
        ):
            first, second = prerequisites.check_gpus(1), prerequisites.check_gpus(2)
        self.assertEqual((first.status, second.status), ("passed", "failed"))
        self.assertEqual(first.found, "0: NVIDIA L4 (compute capability 8.9)")
        self.assertTrue(
            second.to_do.startswith("To make batches and train on one GPU: --data-gpu 0 ")
        )

    def test_write_error_is_found_by_writing(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(prerequisites.write_error(Path(folder)), "")
            error = prerequisites.write_error(Path(folder) / "missing")
        self.assertEqual(error, "No such file or directory")

    def test_missing_and_old_packages_are_named(self):
        requirements = map(Requirement, ("numpy>=1.0", "keras>=1000", "no-such-package>=1"))
        check = prerequisites.check_packages([*requirements])
        self.assertEqual(check.status, "failed")
        self.assertRegex(check.found, r"^keras>=1000 is [\d.]+, no-such-package>=1 is missing$")
        self.assertIn('pip install "keras>=1000" "no-such-package>=1"', check.to_do)

    def test_requirements_are_read_from_the_package_or_else_from_the_checkout(self):
        lines = ["numpy>=1.26", "nvidia-ml-py>=12; extra == 'gpu'"]
        with mock.patch.object(metadata, "requires", return_value=lines):
            self.assertEqual(list(map(str, prerequisites.package_requirements())), ["numpy>=1.26"])
        with mock.patch.object(metadata, "requires", side_effect=metadata.PackageNotFoundError):
            names = [requirement.name for requirement in prerequisites.package_requirements()]
            self.assertIn("tensorflow", names)


class Devices(unittest.TestCase):
    def placement_checks(self, **settings) -> dict[str, Check]:
        checks = {}
        config = Config(placement=PlacementConfig(simulate_gpus=SIMULATED, **settings))
        resources = entered(self.addCleanup, contextlib.ExitStack())
        with contextlib.redirect_stdout(io.StringIO()):
            start = Start(config, RunFolder(Path()))
            for check in preflight_devices.check_placement(start, resources):
                checks[check.name] = check
        return checks

    def failed(self) -> list[str]:
        checks = self.placement_checks(data_gpu=0, model_gpu=1)
        return [check.name for check in checks.values() if check.status == "failed"]

    def test_gpus_that_nobody_named_are_explained(self):
        named = PlacementConfig(simulate_gpus=1, data_gpu=0, model_gpu=1)
        advice = "tries GPUs 0 and 1; on one GPU give --data-gpu 0 --model-gpu 0"
        with self.assertRaisesRegex(PlacementError, advice):
            validate.validate(Config(placement=PlacementConfig(simulate_gpus=1)), 1)
        with self.assertRaises(PlacementError) as raised:
            validate.validate(Config(placement=named), 1)
        self.assertNotIn("tries GPUs", str(raised.exception))

    def test_each_device_is_described_and_computes(self):
        for data, model in ((0, 1), (1, 0)):
            checks = self.placement_checks(data_gpu=data, model_gpu=model)
            self.assertEqual({check.status for check in checks.values()}, {"passed"})
            request = f"batches on GPU {data}, model on GPU {model}"
            self.assertEqual(checks["requested devices"].expected, request)
            for gpu in (data, model):
                expected = f"simulated GPU {gpu}; a matrix product is correct there"
                self.assertEqual(checks[f"device /CPU:{gpu}"].expected, expected)

    def test_devices_that_tensorflow_lacks_fail(self):
        first = [TWO.devices[0]]
        with mock.patch.object(preflight_devices, "existing_devices", return_value=first):
            self.assertEqual(self.failed(), [f"device /CPU:{n}" for n in (1, 2, 3)])

    def test_soft_placement_fails(self):
        self.addCleanup(tf.config.set_soft_device_placement, False)

        def configured(config, cluster):
            tf.config.set_soft_device_placement(True)
            return TWO

        with mock.patch("myxtts.run.setup.configure_devices", configured):
            self.assertEqual(self.failed(), ["device policy"])


class Models(unittest.TestCase):
    def plan(self, batch_seconds: float) -> Plan:
        """Return a plan of utterances of 1 s and 1.6 s, with buckets of these lengths."""
        samples = np.array([22_050] * 8 + [35_280] * 4, np.int32)
        ones = np.ones(12, np.int32)
        bounds = np.array([22_050, 35_280], np.int32)
        return Plan(
            samples, ones, ones, bounds=bounds, batch_size=4, batch_seconds=batch_seconds, seed=0
        )

    def test_heaviest_buckets_have_the_longest_utterances_or_the_most_samples(self):
        for batch_seconds, buckets in (
            (0.0, [1]),
            # 3 x 1 s is less than 2 x 1.6 s,
            (3.2, [1]),
            # but more than 1 x 1.6 s.
            (3.0, [1, 0]),
        ):
            self.assertEqual(trial.heaviest_buckets(self.plan(batch_seconds)), buckets)

    def test_memory_of_a_device_is_tensorflows_figure(self):
        self.assertEqual(trial.device_memory_mib(DATA), 256)  # TensorFlow's figure for any CPU
        with self.assertRaises(LookupError):
            trial.device_memory_mib("/GPU:7")

    def test_an_update_that_changes_nothing_or_is_not_finite_fails(self):
        state = training_state(build_toy())
        before = trial.magnitudes_of(state)

        def status(loss, magnitudes):
            return trial.check_update(state, {"loss": loss}, [2.0, 1.0], magnitudes, "").status

        self.assertEqual(status(1.0, before), "failed")
        self.assertEqual(status(1.0, before + 1.0), "passed")
        self.assertEqual(status(math.nan, before + 1.0), "failed")
        state.trained[0].assign(tf.fill(state.trained[0].shape, math.inf))
        self.assertEqual(status(1.0, before), "failed")


class Transfers(unittest.TestCase):
    def test_changed_bits_are_found(self):
        (route,) = TWO.routes
        with tf.device(route.model):
            batch = {"mel": tf.constant([1.0, math.nan]), "tokens": tf.constant([1, 2, 3])}
        self.assertEqual(preflight_devices.check_integrity(route, batch).status, "passed")

        def flipped(tensor, device):
            if device == route.data and tensor.dtype == tf.int32:
                return tf.bitwise.invert(tensor)
            return tensor

        with mock.patch.object(preflight_devices, "copy_to", flipped):
            check = preflight_devices.check_integrity(route, batch)
        self.assertEqual((check.status, check.found), ("failed", "tokens changed"))


class Overlap(unittest.TestCase):
    def check(self, producing, training, dual=True, bottleneck="step") -> Check:
        spans = [Span(DATA, "produce", *period, i) for i, period in enumerate(producing)]
        spans += [Span(MODEL, "step", *period, i) for i, period in enumerate(training)]
        # Neither another producer nor what follows a step counts.
        spans += [Span("other", "produce", 1.0, 9.0, 2), Span(MODEL, "wait", 0.0, 0.5)]
        spans.append(Span(MODEL, "step", training[0][1], training[0][1] + 0.1, 0))
        return trial.check_overlap(spans, DATA, bottleneck, dual)

    def test_overlap_is_the_common_time_of_producing_and_steps(self):
        for producing, training, dual, status, found in (
            # Alternating stages.
            ([(0, 1), (3, 4), (6, 7)], [(1, 3), (4, 6), (7, 9)], True, "failed", "0 of 3 steps; 0"),
            ([(0, 1), (3, 4), (6, 7)], [(1, 3), (4, 6), (7, 9)], False, "failed", "0 of 3 steps"),
            # Simultaneous ones: making began before the first step.
            ([(0, 2), (2, 3)], [(1, 3), (3, 5)], True, "passed", "1 of 2 steps; 2.00 s of 2.00 s"),
            # A slow producer may hide only the time of the steps.
            ([(0, 3), (3, 6), (6, 9)], [(3, 4), (6, 7), (9, 10)], True, "passed", "2.00 s of 6.00"),
            # A short overlap is enough on one device.
            ([(0, 1), (2, 4)], [(1, 2.2), (4, 5)], True, "failed", "0.20 s of 2.00 s"),
            ([(0, 1), (2, 4)], [(1, 2.2), (4, 5)], False, "passed", "1 of 2 steps"),
            # A producer that waited for samples.
            ([(0, 1), (9, 10)], [(1, 9), (10, 12)], True, "failed", "0 of 2 steps"),
        ):
            check = self.check(producing, training, dual)
            with self.subTest(producing=producing, dual=dual):
                self.assertEqual(check.status, status)
                self.assertIn(found, check.found)

    def test_too_little_overlap_is_a_warning_if_reading_is_the_slowest_stage(self):
        check = self.check([(0, 1), (9, 10)], [(1, 9), (10, 12)], bottleneck="read")
        self.assertEqual(check.status, "warning")
        self.assertIn("raise --num-workers", check.to_do)


class Operations(unittest.TestCase):
    def test_a_host_operation_in_the_producer_fails(self):
        def f0(wave, samples):
            return tf.numpy_function(abs, [wave], "float32"), 0

        with mock.patch("myxtts.tasks.features.f0", f0):
            check = trial.check_operations("audit", [trace_produce(DATA, tts_extractor())])
        self.assertEqual(check.status, "failed")
        found = r"^1 of \d+ operations have no GPU kernel; PyFunc 'PyFunc' in .*produce_on_device"
        self.assertRegex(check.found, found)


class Corpora(FolderCase):
    def test_corpus_contents_are_reported(self):
        write_corpus(self.folder / "corpus", [0.5 + 0.1 * i for i in range(10)])
        metadata = self.folder / "corpus" / "corpus.csv"
        self.write("corpus/corpus.csv", metadata.read_text("utf-8") + "\nmissing.wav,abc,s0\n")
        settings = {"text_frontend": "characters", "max_rejected": 0.5, "validation_fraction": 0.2}
        config = load_config(None, {"train_data": str(metadata), "batch_size": 4, **settings})
        with self.assertLogs("myxtts.corpus", "WARNING"):
            start = Start(config, RunFolder(self.folder))
            corpora = load_run_corpora(start, self.folder, 1)
        checks = {check.name: check for check in validate.check_corpus(start, corpora)}
        rejected = checks["rejected utterances"]
        self.assertEqual((rejected.status, rejected.found[:3]), ("warning", "1 ("))
        self.assertIn("line 12 missing.wav", rejected.found)
        self.assertIn("10 utterances of 0.50 to 1.40 s, median 0.95 s", checks["durations"].found)
        self.assertRegex(checks["padding"].found, r"^\d+\.\d % in \d buckets$")

    def test_an_unusable_corpus_is_reported_with_its_first_rows(self):
        names = [f"empty{i}.wav" for i in range(4)]
        rows = "\n".join(f"{self.write(name).name},abc" for name in names)
        metadata = self.write("corpus.csv", f"path,text\n{rows}")
        start = Start(load_config(None, {"train_data": str(metadata)}), RunFolder(self.folder))
        with self.assertRaises(DataError) as unusable:
            load_run_corpora(start, self.folder, 1)
        corpus, rejected = validate.unusable_corpus(unusable.exception, start)
        self.assertEqual((corpus.name, rejected.name), ("corpus", "rejected utterances"))
        self.assertNotIn(str(self.folder / "rejected.csv"), corpus.found)
        first = r"^4 \(4 empty file\)\. The first: line 2 empty0\.wav: empty file; line 3 "
        self.assertRegex(rejected.found, first)
