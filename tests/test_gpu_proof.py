"""The proof for machines with GPUs: all sections on simulated GPUs; sections that fail or hang."""

import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from tests.two_devices import MODEL

# isort: split

import numpy as np
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks import gpu_proof
from benchmarks.proof import hardware, operations, stages, trace
from benchmarks.proof.runner import Run, failed, run_sections
from benchmarks.proof.section import Figure, Scope, Section, SectionResult, table
from myxtts.corpus.demo_corpus import make_demo_corpus
from myxtts.placement.gpu_memory import DriverUnavailable
from myxtts.trial.preflight.checks import recommended
from tests.fixtures import entered, reported, temporary_folder
from tests.long import LONG, long

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "proof_good": """
        figures = [Figure("1 + 1", "2", "2", "met")]
        return SectionResult("Good", ["a line"], figures, {"infinite": float("inf")})
    """,
    "proof_unmet": """
        return SectionResult("Unmet", [], [Figure("1 + 1", "3", "2", "not met")])
    """,
    "proof_raising": """
        scope.record(SectionResult("Raising", ["before the error"], [Figure("a", "1", "1", "met")]))
        raise ValueError("the cable is loose\\nand more")
    """,
    "proof_hanging": """
        scope.record(SectionResult("Hanging", ["before the hang"]))
        subprocess.Popen(["sleep", "1000"])
        time.sleep(1000)
    """,
    "proof_killed": """
        print("the last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """,
    "proof_silent": """
        os._exit(0)
    """,
}


def planned(name: str, number: int = 1, share: float = 1.0) -> Section:
    return Section(number, name, name.removeprefix("proof_"), share)


# A background job of a shell ignores SIGINT.
HANGING_PROOF = """
import signal, sys
from benchmarks import gpu_proof
from benchmarks.proof.section import Section
from myxtts.base.console import report_errors
signal.signal(signal.SIGINT, signal.default_int_handler)
gpu_proof.SECTIONS = (Section(1, "proof_hanging", "hanging", 1.0),)
gpu_proof.make_demo_corpus = lambda *arguments, **settings: True
flags = ["--out", sys.argv[1], "--simulate-gpus", "2"]
sys.exit(report_errors(lambda: gpu_proof.main(flags)))
"""


class SectionsTest(unittest.TestCase):
    """Made-up sections in processes of their own."""

    @classmethod
    def setUpClass(cls):
        cls.modules = temporary_folder(cls.addClassCleanup)
        header = "import os, signal, subprocess, time\n"
        header += "from benchmarks.proof.section import Figure, SectionResult\n\ndef run(scope):"
        for name, body in SECTIONS.items():
            (cls.modules / f"{name}.py").write_text(header + body, "utf-8")
        entered(cls.addClassCleanup, mock.patch.dict(os.environ, PYTHONPATH=str(cls.modules)))

    def setUp(self):
        self.out = temporary_folder(self.addCleanup)

    def run_sections(self, *sections: Section, end_s: float = 0.0, gpus: int = 2) -> list[dict]:
        run = Run(gpus=gpus, simulated=True, small=True, out=self.out, corpus=self.out)
        with contextlib.redirect_stdout(io.StringIO()):
            return run_sections(run, sections, end_s or time.monotonic() + 3600.0)

    def page(self) -> str:
        return (self.out / "proof.md").read_text(encoding="utf-8")

    def result(self, number: int) -> dict:
        return json.loads((self.out / f"section-{number}.json").read_text(encoding="utf-8"))

    def test_a_section_is_reported_with_its_claims(self):
        (outcome,) = self.run_sections(planned("proof_good"))
        self.assertEqual(outcome["status"], "complete")
        self.assertFalse(failed(outcome))
        self.assertEqual(self.result(1)["data"], {"infinite": "inf"})
        self.assertEqual(self.page().count("| 1 | 1 + 1 | 2 | 2 | met |"), 1)
        self.assertIn("1 claims: 1 met, 0 not met, 0 not shown.", self.page())

    def test_sections_that_fail_leave_the_others_alone(self):
        names = ["proof_raising", "proof_killed", "proof_silent", "proof_good"]
        outcomes = self.run_sections(*map(planned, names, range(1, 5)))
        raised, killed, silent, _ = outcomes
        status = [outcome["status"] for outcome in outcomes]
        self.assertEqual(status, ["failed", "killed", "failed", "complete"])
        found = raised["error"], raised["lines"], silent["error"]
        error, ended = "ValueError: the cable is loose", "the process ended without a result"
        self.assertEqual(found, (error, ["before the error"], ended))
        self.assertRegex(killed["error"], r"(?s)was killed by SIGKILL.*the last words")
        self.assertEqual([failed(outcome) for outcome in outcomes], [True, True, True, False])
        message = (self.out / "section-1" / "log.txt").read_text()
        self.assertIn("ValueError: the cable is loose", message)
        self.assertEqual(self.page().count("runs to its end"), 3)

    def test_a_section_ends_at_its_limit_with_what_it_found(self):
        sections = planned("proof_hanging", 1, share=1.0), planned("proof_good", 2, share=9.0)
        recorded = self.out / "section-1" / "result.json"
        now = lambda: 3.0 if recorded.exists() else 0.0  # noqa: E731
        clock = SimpleNamespace(monotonic=now, sleep=time.sleep)
        with mock.patch("benchmarks.proof.runner.time", clock):
            hanging, good = self.run_sections(*sections, end_s=30.0)
        self.assertEqual((hanging["status"], hanging["limit_s"]), ("out of time", 3.0))
        self.assertEqual((good["status"], good["limit_s"]), ("complete", 27.0))
        self.assertEqual(hanging["lines"], ["before the hang"])
        self.assertIn("**out of time**", self.page())

    def test_a_claim_that_is_not_met_fails(self):
        self.assertTrue(failed(self.run_sections(planned("proof_unmet"))[0]))

    def test_other_sections_stay_on_the_page_unless_the_gpus_differ(self):
        self.run_sections(planned("proof_good", 1))
        self.run_sections(planned("proof_unmet", 2))
        self.assertIn("## 1. Good", self.page())
        self.run_sections(planned("proof_unmet", 2), gpus=4)
        self.assertNotIn("## 1. Good", self.page())

    def test_a_damaged_result_of_an_earlier_run_is_discarded(self):
        (self.out / "section-1.json").write_text("{", encoding="utf-8")
        self.assertEqual(self.run_sections(planned("proof_good", 2))[0]["status"], "complete")
        self.assertFalse((self.out / "section-1.json").exists())

    def test_ctrl_c_keeps_what_was_found(self):
        environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(self.modules)])}
        command = [sys.executable, "-c", HANGING_PROOF, str(self.out)]
        process = subprocess.Popen(command, env=environ, cwd=self.out)
        self.addCleanup(process.kill)
        result = self.out / "section-1" / "result.json"
        while not result.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(120), 130)
        self.assertEqual(self.result(1)["status"], "stopped")
        self.assertIn("before the hang", self.page())


class CommandLineTest(unittest.TestCase):
    def run_program(self, *flags: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()):
            return reported(lambda: gpu_proof.main(flags))

    def test_wrong_use_returns_2(self):
        for flags in ("--sections 9", "--minutes 0", "--simulate-gpus -1", "--unknown"):
            with self.subTest(flags=flags), self.assertRaises(SystemExit) as stopped:
                self.run_program(*flags.split())
            self.assertEqual(stopped.exception.code, 2)

    def test_a_machine_without_a_gpu_is_told_what_to_do(self):
        found = SimpleNamespace(stdout="GPUs 0\n", stderr="\nno driver\n")
        with tempfile.TemporaryDirectory() as out, mock.patch("subprocess.run", return_value=found):
            code, error = self.run_program("--out", out)
        self.assertEqual(code, 2)
        self.assertRegex(error, "sees none; it reports: no driver.*--simulate-gpus 2 --small")

    def test_an_out_that_is_a_file_is_an_error(self):
        code, error = self.run_program("--out", __file__, "--simulate-gpus", "2")
        self.assertEqual(code, 2)
        self.assertIn("--out", error)


class SimulatedTest(unittest.TestCase):
    """The program on two simulated GPUs, in its own process; `make test-long` runs it whole."""

    # 4, 6 and 7 train whole runs, and take half of the time.
    NUMBERS = tuple(one.number for one in gpu_proof.SECTIONS if LONG or one.number in (1, 2, 3, 5))

    @classmethod
    def setUpClass(cls):
        folder = temporary_folder(cls.addClassCleanup)
        cls.out = folder / "proof"
        flags = f"--simulate-gpus 2 --small --in-process --minutes 60 --out {cls.out} --sections"
        script = str(ROOT / "benchmarks/gpu_proof.py")
        command = [sys.executable, script, *flags.split(), *map(str, cls.NUMBERS)]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        settings = {"cwd": folder, "env": environ, "capture_output": True, "text": True}
        cls.finished = subprocess.run(command, **settings)
        cls.outcomes = {}
        for number in cls.NUMBERS:
            file = cls.out / f"section-{number}.json"
            if file.exists():
                cls.outcomes[number] = json.loads(file.read_text(encoding="utf-8"))

    def test_every_section_is_complete_and_no_claim_unmet(self):
        ends = {number: (one["status"], one["error"]) for number, one in self.outcomes.items()}
        complete = dict.fromkeys(self.NUMBERS, ("complete", ""))
        self.assertEqual(ends, complete, self.finished.stdout[-3000:])
        for outcome in self.outcomes.values():
            verdicts = [figure["verdict"] for figure in outcome["figures"]]
            self.assertNotIn("not met", verdicts, outcome["figures"])
        self.assertEqual(self.finished.returncode, 0)

    def test_the_page_has_every_section_and_every_claim(self):
        page = (self.out / "proof.md").read_text(encoding="utf-8")
        for outcome in self.outcomes.values():
            self.assertIn(f"## {outcome['section']}. {outcome['title']}", page)
            for figure in outcome["figures"]:
                self.assertIn(f"| {figure['claim']} |", page)
        self.assertRegex(page.rstrip().splitlines()[-1], rf"^\| {self.NUMBERS[-1]} \|")
        self.assertIn("2 simulated GPUs", page)

    def test_what_needs_a_gpu_is_not_shown(self):
        for number in {2, 3, 6} & {*self.NUMBERS}:
            figures = self.outcomes[number]["figures"]
            self.assertGreater(len(figures), 3)
            self.assertEqual({figure["verdict"] for figure in figures}, {"not shown"}, number)

    def test_both_devices_compute_the_same(self):
        for operation in self.outcomes[2]["data"]["operations"]:
            with self.subTest(operation["name"]):
                self.assertEqual(operation["error"], "")
                self.assertEqual(operation["host_only"], [])
                if "float16" not in operation["name"]:
                    self.assertEqual(set(operation["errors"].values()), {0.0})

    def test_no_producer_copies_to_the_host(self):
        found = self.outcomes[2]["data"]["operations"]
        producers = [item for item in found if item["name"].startswith(operations.PRODUCER)]
        self.assertEqual([item["to_host"] for item in producers], [[]] * 4)

    def test_stages_have_times(self):
        for model in self.outcomes[3]["data"]["models"]:
            with self.subTest(model["size"]):
                self.assertEqual(model["error"], "")
                times = ("produce_s", "transfer_s", "step_s", "half_step_s")
                for name in (*times, "forecast_mib", "flops", "operations"):
                    self.assertGreater(model[name], 0, name)


@long
class LongestOperationsTest(unittest.TestCase):
    def test_what_the_smallest_proof_leaves_out_is_the_same_on_both_devices(self):
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder, "corpus")
            make_demo_corpus(corpus, gpu_proof.SMALL_UTTERANCES, ["en"], speakers=2, seed=0)
            scope = Scope(2, True, True, 3600.0, Path(folder), corpus)
            inputs = operations.AllInputs.read(scope)
            of_voices = operations.voice_operations(scope, inputs)
            for operation in (*of_voices, *operations.longest_operations(scope, inputs)):
                with self.subTest(operation.name):
                    compared = operations.compare(operation, MODEL)
                    self.assertTrue(compared.met, compared.here)
                    self.assertEqual(compared.host_only, [])


class HardwareTest(unittest.TestCase):
    def test_fields_that_the_driver_does_not_know_are_left_out(self):
        def nvidia_smi(query: str, *_form: str) -> str | None:
            names = query.removeprefix("--query-gpu=").split(",")
            if "mig.mode.current" in names:
                return None
            return "\n".join(", ".join([name] * len(names)) for name in "ab")

        with mock.patch("myxtts.trial.preflight.prerequisites.nvidia_smi", nvidia_smi):
            first, second = hardware.queried_gpus()
        self.assertEqual(set(first), set(hardware.GPU_FIELDS) - {"mig.mode.current"})
        self.assertEqual((first["name"], second["name"]), ("a", "b"))

    def test_libraries_are_asked_for_their_versions(self):
        actual = hardware.library_version("libc.so.6", "getpid", by_argument=False)
        self.assertEqual(actual, os.getpid())
        for names in (("libc.so.6", "no_such_function"), ("libmissing.so.1", "version")):
            self.assertIsNone(hardware.library_version(*names, by_argument=True))
        loaded = ["/opt/cuda/libcudnn.so.9.8", "/usr/lib/libm.so.6"]
        with mock.patch.object(hardware, "mapped_files", lambda: iter(loaded)):
            versions = hardware.library_versions("/CPU:0")
        actual = versions["libcudnn.so.9.8"]
        self.assertEqual(actual, {"path": "/opt/cuda/libcudnn.so.9.8", "version": None})
        self.assertNotIn("libm.so.6", versions)

    def test_the_driver_says_whether_two_gpus_read_each_others_memory(self):
        def ask_driver(gpus, question):
            return [question(driver, f"handle {gpu}") for gpu in gpus]

        for status, text in ((0, "yes"), (5, "no (status 5 of the driver)")):
            driver = mock.Mock(NVML_P2P_CAPS_INDEX_READ=0)
            driver.nvmlDeviceGetP2PStatus.return_value = status
            with mock.patch.object(hardware, "ask_driver", ask_driver):
                self.assertEqual(hardware.gpu_peer_access(2, 3), text)
            driver.nvmlDeviceGetP2PStatus.assert_called_once_with("handle 2", "handle 3", 0)
        error = DriverUnavailable("no driver")
        with mock.patch.object(hardware, "ask_driver", side_effect=error):
            self.assertEqual(hardware.gpu_peer_access(0, 1), "unknown: no driver")

    def test_a_machine_with_gpus_is_described(self):
        def nvidia_smi(query: str, *_arguments: str) -> str:
            if query == "topo":
                return "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
            names = query.removeprefix("--query-gpu=").split(",")
            row = ", ".join("12" if "memory" in name else "{}" for name in names)
            return "\n".join(row.replace("{}", gpu) for gpu in ("A100", "H100"))

        def checked(placement):
            is_native = len(placement.routes) == 2
            yield recommended(is_native, "kernels", "native", "native")
            yield recommended(False, "XLA", "", "none")

        here = {
            "gpu_peer_access": lambda first, second: "no",
            "check_gpu_software": checked,
            "sees_gpus": lambda count: count == 2,
            "library_versions": lambda: {"libcudnn.so.9": {"path": "/x", "version": 9}},
        }
        driver = mock.patch("myxtts.trial.preflight.prerequisites.nvidia_smi", nvidia_smi)
        with driver, mock.patch.multiple(hardware, **here):
            result = hardware.run(Scope(2, False, False, 60.0, Path(), Path()))
        page = "\n".join(result.lines)
        rows = ("| name | A100 | H100 |", "| libcudnn.so.9 | 9 | /x |")
        for line in (*rows, "Peer access of GPUs 0-1: no."):
            self.assertIn(line, page)
        met = ("kernels", "nothing else uses the GPUs", "TensorFlow sees the GPUs")
        expected = dict.fromkeys(met, "met") | {"XLA": "not met"}
        verdicts = {figure.claim: figure.verdict for figure in result.figures}
        self.assertEqual(verdicts, verdicts | expected)


class VerdictsTest(unittest.TestCase):
    """What the sections conclude on real GPUs, from made-up figures."""

    SCOPE = Scope(2, False, False, 60.0, Path(), Path())

    def test_a_producer_that_copies_to_the_host_is_found(self):
        for name, to_host, verdict in (
            ("producer", [], "met"),
            ("producer", ["tasks/features.py:1"], "not met"),
            ("step", ["models/x.py:1"], "not shown"),
        ):
            compared = operations.Comparison(name, {"mel": 0.0}, {"mel": 1.0}, "", 9, [], to_host)
            figures = operations.result_of(self.SCOPE, "/GPU:0", [compared]).figures
            (figure,) = (one for one in figures if one.claim.startswith("no producer waits"))
            self.assertEqual(figure.verdict, verdict)

    def test_an_operation_that_differs_or_fails_is_found(self):
        def run_on(device: str, value=None):
            if value is None and device != operations.CPU:
                raise ValueError("no kernel")
            return {"x": np.array([1.0, 2.0 if device == operations.CPU else value])}, []

        limits = {"x": ("absolute", 0.1)}
        values = {"equal": 2.0, "near": 2.05, "far": 2.2, "garbage": np.nan, "fails": None}
        compared = []
        for name, value in values.items():
            operation = operations.Operation(name, partial(run_on, value=value), limits)
            compared.append(operations.compare(operation, "/GPU:0"))
        compared.append(operations.Comparison("late", {}, {}, operations.NO_TIME, None, []))
        result = operations.result_of(self.SCOPE, "/GPU:0", compared)
        verdicts = [figure.verdict for figure in result.figures]
        self.assertEqual(verdicts[:6], ["met", "met", "not met", "not met", "not met", "not shown"])
        self.assertEqual(result.figures[4].here, "on /GPU:0: ValueError: no kernel")

    def test_a_gradient_of_ctc_behind_the_end_of_a_row_is_found(self):
        operation = operations.ctc("CTC", [20, 11, 0], [4, 3, 0])

        def without_masks(device: str):
            outputs, functions = operation.run(operations.CPU)
            behind = outputs["behind the end"] + (0.0 if device == operations.CPU else 1e-20)
            return outputs | {"behind the end": behind}, functions

        self.assertFalse(operations.compare(operation._replace(run=without_masks), "/GPU:0").met)

    def test_errors_are_measured_by_hand_computed_figures(self):
        here, reference = np.array([3.0, 4.4]), np.array([3.0, 4.0])
        self.assertAlmostEqual(operations.norm_error(here, reference), 0.08)
        self.assertAlmostEqual(operations.each_error(here, reference), 0.1)
        self.assertAlmostEqual(operations.absolute_error(here, reference), 0.4)
        self.assertEqual(operations.unequal_fraction(here, reference), 0.5)
        self.assertEqual(operations.unequal_fraction(here[:1], reference), 1.0)
        self.assertEqual(operations.norm_error(np.array([np.nan]), np.array([1.0])), float("inf"))

    def test_limits_of_short_formats_are_twice_the_error_of_the_cpu(self):
        exact = {"losses": np.array([1.0]), "gradient": np.array([1.0, 0.0])}
        rounded = {"losses": np.array([1.1]), "gradient": np.array([1.0, 0.001])}
        limits = operations.twice(rounded, exact)
        self.assertAlmostEqual(limits["losses"][1], 0.2)
        self.assertEqual(limits["gradient"], operations.FLOOR["gradient"])

    def test_kernels_and_copies_are_counted_in_a_trace(self):
        space = xplane_pb2.XSpace()
        gpu, host = space.planes.add(name="/device:GPU:0"), space.planes.add(name="/host:CPU")
        names = ["gemm", "MemcpyD2H", "MemcpyH2D", "Memset", "GpuCompiler::RunBackend", "step"]
        for plane in (gpu, host):
            for number, name in enumerate(names):
                plane.event_metadata[number].name = name
        stream, derived = gpu.lines.add(name="Stream #7(Compute)"), gpu.lines.add(name="XLA Ops")
        for number in (0, 0, 0, 0, 1, 2, 2, 3):
            stream.events.add(metadata_id=number, duration_ps=10**11)
        derived.events.add(metadata_id=0, duration_ps=10**11)
        thread = host.lines.add(name="python")
        for number in (4, 5, 5):
            thread.events.add(metadata_id=number)
        activity = trace.activity(space.planes, calls=2, seconds=0.8)
        self.assertEqual((activity.kernels, activity.compilations), (2.0, 1))
        self.assertAlmostEqual(activity.busy, 0.5)
        expected = {"to_host": 0.5, "to_device": 1.0, "on_device": 0.0, "between_devices": 0.0}
        self.assertEqual(activity.copies, expected)
        self.assertEqual(trace.activity([host], 2, 0.8), trace.Activity(None, {}, None, 1))

    def test_the_peak_leaves_out_what_was_used_before(self):
        mib = ({"current": 5, "peak": 9}, {"current": 6, "peak": 12})
        used = iter([{name: number * 2**20 for name, number in of.items()} for of in mib])
        with (
            mock.patch("tensorflow.config.experimental.reset_memory_stats") as reset,
            mock.patch("tensorflow.config.experimental.get_memory_info", lambda name: next(used)),
        ):
            self.assertEqual(stages.PeakMemory("/GPU:1").peak_mib(), 7.0)
            reset.assert_called_once_with("GPU:1")
        self.assertIsNone(stages.PeakMemory("/CPU:1").peak_mib())

    def test_the_stages_of_a_gpu_have_verdicts(self):
        activity = trace.Activity(900.0, {"to_host": 1.0}, 0.7, 0)
        times = {"step_s": 0.1, "half_step_s": 0.09, "transfer_s": 0.01, "produce_s": 0.01}
        memory = {"peak_mib": 900.0, "forecast_mib": 600.0}
        others = {"activity": activity, "copies_to_host": 0}
        good = stages.StageFigures("tts", "big", **times, **memory, **others)
        busier = activity._replace(copies={"to_host": 9.0}, compilations=2)
        bad = dataclasses.replace(good, transfer_s=0.2, peak_mib=1300.0, activity=busier)
        failed_model = stages.StageFigures("tts", "big", error="ResourceExhaustedError: OOM")
        late = stages.StageFigures("tts", "big", error=stages.NO_TIME)
        for item, *verdicts in (
            (good, *["met"] * 4),
            (bad, *["not met"] * 4),
            (failed_model, "not met"),
            (late, "not shown"),
        ):
            figures = stages.figures_of(self.SCOPE, item)
            self.assertEqual([figure.verdict for figure in figures], verdicts)
        self.assertEqual(good.bound, "launches")
        result = stages.result_of(self.SCOPE, stages.Rates(1e12, 2e12, 4e12), [good, failed_model])
        self.assertIn("| tts big | ResourceExhaustedError: OOM |", "\n".join(result.lines))


class TypesTest(unittest.TestCase):
    def test_a_claim_without_evidence_is_not_shown(self):
        for met, verdict in ((True, "met"), (False, "not met"), (None, "not shown")):
            self.assertEqual(Figure.of("claim", "here", "expected", met).verdict, verdict)

    def test_cells_cannot_break_a_table(self):
        self.assertEqual(table(["a"], [["x|y\nz"]]), ["", "| a |", "|---|", "| x\\|y z |", ""])

    def test_a_budget_runs_out(self):
        scope = Scope(1, True, True, 10.0, Path(), Path(), started_s=5.0)
        with mock.patch("time.monotonic", lambda: 17.0):
            self.assertEqual(scope.left_s, -2.0)

    def test_results_are_recorded_before_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            scope = Scope(1, True, True, 10.0, Path(folder), Path())
            scope.record(SectionResult("title", ["line"]))
            recorded = json.loads((Path(folder) / "result.json").read_text())
        self.assertEqual((recorded["title"], recorded["complete"]), ("title", False))
