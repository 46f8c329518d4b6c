"""Verdicts of the GPU proof on placements and on the whole program, on figures that are made up;
and its section on threads finds a batch in which one bit is wrong.
"""

import dataclasses
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from benchmarks._flops import contraction_flops
from benchmarks.proof import page, placements, threads, whole
from benchmarks.proof.placements import Case, Findings
from benchmarks.proof.runs import KILLED, NO_TIME, run_script
from benchmarks.proof.section import Scope, SectionResult, write_json
from fakes.copies import find_copies
from myxtts.commands import train
from myxtts.config.schema import Config, PlacementConfig
from myxtts.corpus.demo_corpus import make_demo_corpus
from myxtts.devicefeed.producer import Producer
from myxtts.placement.settings import plan_routes
from myxtts.tasks.tts.contract import TTS_FEATURES
from myxtts.trial.preflight.kernels import audit
from myxtts.trial.stages import StageProfile, StageTimes
from tests.tiny import features, on_device
from tests.two_devices import MODEL, SIMULATED

CORRUPTED = 2  # number of the batch


def scope(gpus: int = 2, simulated: bool = False, out: str = "unused") -> Scope:
    return Scope(gpus, simulated, small=False, budget_s=60.0, out=Path(out), corpus=Path("unused"))


def stages(produce_s: float, step_s: float) -> StageProfile:
    times_s = (0.0, produce_s, 0.001, step_s)
    times = StageTimes(*(np.full(40, seconds) for seconds in times_s))
    return StageProfile(times, 0.004)


class PlacementsTest(unittest.TestCase):
    def verdict(self, claim: str, figures) -> str:
        (found,) = [figure.verdict for figure in figures if claim in figure.claim]
        return found

    def findings(self, produce_s: float = 0.03, step_s: float = 0.1, **figures) -> Findings:
        """Return findings of dual placement whose bound is the slower stage."""
        settings = {"data_gpu": 0, "model_gpu": 1}
        case = Case("dual", settings, **{"predicted_s": max(produce_s, step_s)} | figures)
        return Findings(placements.length_of(scope()), [case], stages(produce_s, step_s))

    def test_placements_that_need_more_gpus_say_so(self):
        of_three = ["dual, 2 replicas", "dual, 2 producers"]
        # All but single and split.
        of_two = ["dual", "2 replicas", "dual, the other way round"]
        for gpus, missing in ((1, of_two + of_three), (2, of_three), (3, [])):
            cases = placements.cases_of(scope(gpus))
            self.assertEqual([case.name for case in cases if case.problem], missing)
        self.assertEqual(placements.cases_of(scope(3))[-1].flags, ["--model-gpus", "0", "1", "2"])

    def test_all_simulated_placements_have_the_same_devices(self):
        for gpus in (1, 2, 3):
            cases = placements.cases_of(scope(gpus, simulated=True))
            settings = [PlacementConfig(**case.settings) for case in cases if not case.problem]
            placed = [plan_routes(placement, gpu_count=0) for placement in settings]
            self.assertEqual({len(placement.devices) for placement in placed}, {gpus})
            self.assertEqual(len(placed), {1: 1, 2: 5, 3: 8}[gpus])

    def test_wait_period_and_prediction_are_held_against_their_limits(self):
        for claim, good, bad in (
            ("does not wait", {"wait": 0.009}, {"wait": 0.011}),
            ("max(P, C)", {"period_s": 0.104}, {"period_s": 0.106}),
            ("bound", {"predicted_s": 0.109}, {"predicted_s": 0.089}),
        ):
            for figures, verdict in ((good, "met"), (bad, "not met")):
                usual = {"period_s": 0.1, "wait": 0.0, "predicted_s": 0.1}
                found = self.findings(**usual | figures)
                real = placements.time_figures(scope(), found)
                self.assertEqual(self.verdict(claim, real), verdict, figures)
                simulated = placements.time_figures(scope(simulated=True), found)
                self.assertEqual(self.verdict(claim, simulated), "not shown")

    def test_wait_is_not_held_against_a_slow_producer(self):
        found = self.findings(produce_s=0.2, step_s=0.1, period_s=0.2, wait=0.5)
        figures = placements.time_figures(scope(), found)
        self.assertEqual(self.verdict("does not wait", figures), "not shown")

    def test_predictions_follow_the_arithmetic(self):
        profile = stages(produce_s=0.03, step_s=0.1)
        dual, turns = {"data_gpu": 0, "model_gpu": 1}, {"data_gpus": (0, 1), "model_gpu": 2}
        for settings, expected_s in (({}, 0.13), (dual, 0.1), (turns, 0.1)):
            case = Case("", settings)
            self.assertAlmostEqual(placements.bound_s(profile, Config(), case), expected_s)

    def test_predictions_take_the_stages_of_section_3(self):
        times = {"produce_s": 0.03, "transfer_s": 0.001, "step_s": 0.1}
        tiny, small = ({"task": "tts", "error": "", "size": size} for size in ("tiny", "small"))
        single = Case("single", {})
        two = Case("2 replicas", {"model_gpus": (0, 1)})
        with tempfile.TemporaryDirectory() as folder:
            file, section = Path(folder) / "section-3.json", scope(out=f"{folder}/section-4")
            self.assertIsNone(placements.stages_of_section_3(section, "small"))
            write_json(file, {"data": {"models": [tiny | times | {"error": "out of memory"}]}})
            self.assertIsNone(placements.stages_of_section_3(section, "tiny"))
            write_json(file, {"data": {"models": [tiny | times, small | times]}})
            placements.predict_periods(section, self.findings(), [single, two])
        self.assertAlmostEqual(single.predicted_s, 0.13)
        self.assertIsNone(two.predicted_s)  # section 3 has no all-reduce

    def test_weights_must_be_equal_bit_for_bit(self):
        first, other = {"w": np.zeros(3, np.float32)}, {"w": np.float32([0, 0, 1e-9])}
        self.assertEqual(placements.largest_difference(first, first), 0.0)
        self.assertAlmostEqual(placements.largest_difference(other, first), 1e-9)
        self.assertEqual(placements.largest_difference({"v": first["w"]}, first), float("inf"))
        for difference, verdict in ((0.0, "met"), (1e-9, "not met")):
            found = self.findings()
            found.differences = {"dual": difference}
            figures = placements.weight_figures(scope(), found)
            self.assertEqual(self.verdict("placements of one replica", figures), verdict)

    def test_a_run_that_fails_is_not_met_and_one_without_time_is_not_shown(self):
        late = f"{NO_TIME} after 9 s"
        for problem, verdict in (("exit code 2: error: no", "not met"), (late, "not shown")):
            found = self.findings(problem=problem)
            (figure,) = placements.run_figures(found)
            self.assertEqual(figure.verdict, verdict)


class ProcessesTest(unittest.TestCase):
    def run_code(self, code: str, limit_s: float = 120.0, stop=None):
        with tempfile.TemporaryDirectory() as folder:
            return run_script(["-c", code], Path(folder) / "log", limit_s, stop)

    def test_a_process_is_killed_at_a_line(self):
        code = "import time; print('step 1'); print('step 2'); time.sleep(600)"
        finished = self.run_code(code, stop=lambda line: line == "step 2")
        self.assertEqual((finished.code, finished.ended), (-9, KILLED))
        self.assertEqual(finished.lines, ["step 1", "step 2"])

    def test_a_process_is_killed_at_its_limit(self):
        finished = self.run_code("import time; time.sleep(600)", limit_s=0.1)
        self.assertEqual((finished.code, finished.reason), (-9, f"{NO_TIME} after 0 s"))

    def test_a_failure_has_the_message_of_the_program(self):
        finished = self.run_code("print('error: no GPU 1'); print('and more'); raise SystemExit(2)")
        self.assertEqual(finished.reason, "exit code 2: error: no GPU 1")
        self.assertEqual(self.run_code("print('fine')").reason, "")


class PreflightTest(unittest.TestCase):
    def test_simulated_gpus_need_not_overlap(self):
        def report(**statuses: str) -> dict:
            checks = [{"name": name, "status": status} for name, status in statuses.items()]
            return {"sections": [{"checks": checks}, {"checks": []}]}

        good = report(driver="passed", overlap="warning")
        bad = report(driver="failed", overlap="failed")
        for simulated in (True, False):
            self.assertIs(whole.is_ready(good, simulated), True)
            self.assertIs(whole.is_ready(bad, simulated), False)
        without_overlap = report(driver="passed", overlap="failed")
        self.assertIs(whole.is_ready(without_overlap, shares_cores=False), False)
        self.assertIsNone(whole.is_ready(without_overlap, shares_cores=True))


class ResumeTest(unittest.TestCase):
    def figure(self, resumed: dict[int, float], problem: str = ""):
        killed = {step: {"loss": loss} for step, loss in resumed.items()}
        losses = {"whole": {1: {"loss": 3.0}, 2: {"loss": 2.0}}, "killed": killed}
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "runs/whole/log.txt"
            log.parent.mkdir(parents=True)
            log.write_text("2026-11-22 08:13:39 step      2 | loss 2.000\n")
            found = SectionResult(whole.TITLE)
            values = {"run_thrice": lambda *_: problem, "losses_of": lambda _, name: losses[name]}
            with mock.patch.multiple(whole, **values):
                whole.check_resume(scope(out=folder), found)
        return found.figures[0]

    def test_a_resumed_run_must_have_the_losses_of_the_undisturbed_one(self):
        self.assertEqual(self.figure({1: 3.0, 2: 2.0}).verdict, "met")
        different = self.figure({1: 3.0, 2: 2.25})
        self.assertEqual(different.verdict, "not met")
        self.assertEqual(different.here, "1 of 2 reports differ, from step 2, by up to 2.5e-01")
        self.assertEqual(self.figure({1: 3.0}).verdict, "not met")

    def test_times_and_padding_since_the_last_report_may_differ(self):
        losses = {"step": 10, "loss": 3.0, "learning_rate": 1e-3}
        report = losses | {"padding": 0.1, "step_s": 0.2, "remaining_s": 9.0}
        with mock.patch.object(whole, "read_reports", lambda scope, name: [report]):
            self.assertEqual(whole.losses_of(scope(), "whole"), {10: losses})

    def test_a_run_without_time_is_not_shown(self):
        self.assertEqual(self.figure({}, NO_TIME).verdict, "not shown")
        self.assertEqual(self.figure({}, "exit code 1: it printed nothing").verdict, "not met")


class ContractionTest(unittest.TestCase):
    """The operations of a step, for section 3."""

    def test_products_and_convolutions_are_counted_with_their_gradients(self):
        weights, kernel = tf.zeros([4, 5]), tf.zeros([3, 4, 6])

        def gradients(x):
            with tf.GradientTape() as tape:
                tape.watch([x, weights, kernel])
                loss = tf.reduce_sum(tf.square(tf.matmul(tf.reshape(x, [20, 4]), weights)))
                loss += tf.reduce_sum(tf.square(tf.nn.conv1d(x, kernel, 1, "SAME")))
            return tape.gradient(loss, [x, weights, kernel])

        actual = contraction_flops(gradients, tf.zeros([2, 10, 4]))
        self.assertEqual(actual, 3 * 2 * 20 * 4 * 5 + 3 * 2 * 20 * 3 * 4 * 6)

    def test_depthwise_convolutions_and_einsums_are_counted_but_additions_are_not(self):
        kernel, weights = tf.zeros([1, 3, 4, 1]), tf.zeros([4, 7])
        for function, expected in (
            (lambda x: tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "SAME"), 2 * 20 * 4 * 3),
            (lambda x: tf.einsum("abtc,cd->abtd", x, weights), 2 * 20 * 4 * 7),
            (lambda x: x + 1.0, 0),
        ):
            self.assertEqual(contraction_flops(function, tf.zeros([2, 1, 10, 4])), expected)

    def test_a_product_in_a_loop_is_rejected(self):
        def in_loop(x):
            return tf.map_fn(lambda row: tf.linalg.matmul(row, row), x)

        with self.assertRaisesRegex(ValueError, "cannot be counted"):
            contraction_flops(in_loop, tf.zeros([2, 3, 3]))


def flip_lowest_bit(tensor: tf.Tensor) -> tf.Tensor:
    bits = tensor.numpy().view(np.int32)
    bits.flat[-1] ^= 1
    with tf.device(tensor.device):
        return tf.constant(bits.view(np.float32))


class ChecksumTest(unittest.TestCase):
    def test_checksum_runs_on_a_gpu_without_waiting_for_it_and_where_the_batch_is(self):
        checksums = threads.Checksums(TTS_FEATURES)
        self.assertTrue(checksums(on_device(features([(5, 13)])), MODEL).device.endswith(MODEL[1:]))
        function = checksums._compute.get_concrete_function()
        self.assertEqual(audit(function).host_only, ())
        # Each would wait for the GPU.
        self.assertEqual([copy for copy in find_copies(function) if copy.to_host], [])

    def test_checksum_differs_for_elements_that_trade_places(self):
        def checksum(values):
            return int(threads.checksum(tf.constant(values, tf.float32)))

        values = np.arange(24.0).reshape(2, 3, 4)
        flipped = (values[::-1], values[:, ::-1], values[..., ::-1])
        for other in (*flipped, values.reshape(3, 2, 4).swapaxes(0, 1)):
            self.assertNotEqual(checksum(other), checksum(values))
        self.assertEqual(checksum(values.copy()), checksum(values))


class VirtualGpuTest(unittest.TestCase):
    VIRTUAL = dataclasses.replace(scope(3), virtual=True)

    def test_virtual_gpus_show_numbers_but_neither_times_nor_memory_limits(self):
        problems = {case.name: case.problem for case in placements.cases_of(self.VIRTUAL)}
        self.assertIn("memory limits", problems.pop("one GPU split in two"))
        self.assertEqual({*problems.values()}, {""})
        found = Findings(placements.length_of(self.VIRTUAL), [], differences={"dual": 0.0})
        verdicts = [figure.verdict for figure in placements.figures_of(self.VIRTUAL, found)]
        self.assertEqual(verdicts.count("met"), 2)
        self.assertEqual(verdicts.count("not shown"), 4)

    def test_the_page_says_that_gpus_are_virtual(self):
        settings = {"gpus": 3, "simulated": False, "virtual": True, "small": False}
        self.assertIn("On 3 virtual GPUs", page.setting_lines(settings)[0])


class RoutesTest(unittest.TestCase):
    def routes(self, gpus: int) -> dict[str, tuple[int, int]]:
        """Return the physical GPUs of each route."""
        scope = Scope(gpus, False, False, 60.0, Path("unused"), Path("unused"))
        config, _ = train.parse(threads.flags_of(scope))
        placement = plan_routes(config.placement, gpus)
        gpu_of = {device.name: device.physical for device in placement.devices}
        routes = threads.routes_of(scope, placement)
        return {name: (gpu_of[route.data], gpu_of[route.model]) for name, route in routes}

    def test_routes_cover_one_gpu_its_parts_and_both_directions_between_two(self):
        one = {"one GPU": (0, 0), "one GPU split in two": (0, 0)}
        self.assertEqual(self.routes(1), one)
        two = {"two GPUs": (0, 1), **one, "two GPUs, the other way round": (1, 0)}
        self.assertEqual(self.routes(2), two)
        self.assertEqual(self.routes(3), two)


class CorruptedBatchTest(unittest.TestCase):
    def run_section(self):
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder) / "corpus"
            make_demo_corpus(corpus, 12, ["en"], speakers=2, seed=0)
            return threads.run(Scope(SIMULATED, True, True, 3600.0, Path(folder), corpus))

    def test_wrong_bit_is_found_in_every_place_behind_it(self):
        produce = Producer.replica_batches

        def corrupted(producer, *arguments):
            for number, (batch,) in enumerate(produce(producer, *arguments)):
                if number == CORRUPTED and threading.current_thread().name == "feed-producer":
                    mel = flip_lowest_bit(batch.features["mel"])
                    batch = batch._replace(features=batch.features | {"mel": mel})
                yield (batch,)

        with mock.patch.object(Producer, "replica_batches", corrupted):
            result = self.run_section()
        figure, operations = result.figures
        self.assertEqual((figure.here, figure.verdict), ("3 of 16 checksums differ", "not met"))
        # On simulated GPUs no thread gets the results of another, and nothing is shown.
        default = "0 of 20; 0 by TensorFlow's default"
        self.assertEqual((operations.here, operations.verdict), (default, "not shown"))
        actual = result.data["checks"][0]["different"]
        self.assertEqual(actual, [f"batch {CORRUPTED}, {place}: mel" for place in threads.PLACES])
