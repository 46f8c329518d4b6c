"""The preflight: it holds where a run would work, and each thing that does not hold is a line that says so."""

import contextlib
import io
import json
import math
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.clock import Clock
from myxtts.commands import preflight
from myxtts.commands.console import report_errors
from myxtts.config.load import load as load_config
from myxtts.config.schema import Config, PlacementConfig
from myxtts.data.batch_plan import Plan
from myxtts.data.features import tts_extractor
from myxtts.data.producer import trace_produce
from myxtts.errors import PlacementError
from myxtts.placement import devices
from myxtts.placement.audit import has_gpu_kernels
from myxtts.preflight import nvidia, transfer
from myxtts.preflight.checks import Check, Report, check, lines, refused, remark
from myxtts.preflight.corpus import check_corpus, load, silent_characters
from myxtts.preflight.model import Taken, check_update, device_memory_mib, heaviest_buckets, magnitudes_of
from myxtts.preflight.overlap import Flow, check_operations, check_overlap, overlap_s
from myxtts.preflight.placement import check_placement, found_devices
from myxtts.preflight.prerequisites import check_packages, fault_of_writing, needed_gpus
from myxtts.preflight.validate import try_load, with_dual
from myxtts.training.start import Start
from tests.sine_corpus import manifest_of, write_corpus
from tests.tiny import Finished, Workplace, build_toy, small_models, training_state
from tests.two_devices import DATA, SIMULATED, TWO

PEERS = """ \tGPU0\tGPU1\tGPU2\t
 GPU0\tX\tOK\tNS\t
 GPU1\tOK\tX\tNS\t
 GPU2\tNS\tNS\tX\t

Legend:
  X    = Self
  OK   = Status Ok
"""
LINKS = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0
GPU1\tNV12\t X \tSYS\tPXB\t0-31\t0
GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1
NIC0\tPXB\tPXB\tSYS\t X \t\t

Legend:
"""


def validated(*argv: str) -> Finished:
    out, err = io.StringIO(), io.StringIO()
    with small_models(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = report_errors(lambda: preflight.main(argv))
    return Finished(code, out.getvalue(), err.getvalue())


def setUpModule():
    """One whole preflight, which the tests look at."""
    global PLACE, WHOLE, TOLD
    PLACE = Workplace.temporary(unittest.addModuleCleanup)
    file = PLACE.folder / "preflight.json"
    WHOLE = validated(*PLACE.argv("new"), "--steps=6", "--json", str(file))
    TOLD = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


class Whole(unittest.TestCase):
    def found(self, title: str, name: str) -> dict:
        section = next(section for section in TOLD["sections"] if section["title"] == title)
        return next(one for one in section["checks"] if one["name"].startswith(name))

    def test_holds_on_simulated_gpus_and_leaves_nothing(self):
        self.assertEqual((WHOLE.code, WHOLE.err), (0, ""), WHOLE.out)
        self.assertRegex(WHOLE.out.splitlines()[-1], r"^all holds \(\d+ ✅, 0 ❌, \d+ ⚠️\)$")
        self.assertFalse(PLACE.run_dir("new").exists())

    def test_json_says_the_same(self):
        self.assertTrue(TOLD["holds"])
        titles = [f"{section['number']}  {section['title']}" for section in TOLD["sections"]]
        self.assertEqual(titles, [line for line in WHOLE.out.splitlines() if line[:1].isdigit()])
        self.assertEqual([title[0] for title in titles], list("123456"))
        for section in TOLD["sections"]:
            for one in section["checks"]:
                for line in lines(Check(**one)):
                    self.assertIn(line, WHOLE.out)

    def test_gpus_0_and_1_are_meant_where_none_is_named(self):
        self.assertEqual(self.found("Placement", "GPUs asked for")["expected"], "batches on GPU 0, model on GPU 1")
        self.assertIn("dual", self.found("Placement", "GPUs asked for")["found"])

    def test_batches_are_made_while_the_model_is_trained(self):
        self.assertEqual(self.found("Pipeline and audit", "overlap")["state"], "holds")

    def test_heaviest_batch_is_the_longest_bucket(self):
        name = self.found("Model", "heaviest step")["name"]
        self.assertIn("1 x 4 utterances of up to 0.8 s", name)  # the longest has 0.76 s, in hops of 12 ms

    @unittest.skipUnless(has_gpu_kernels(), "this build of TensorFlow has no GPU kernels to look up")
    def test_no_operation_lacks_a_gpu_kernel(self):
        for name in ("audit of the producer", "audit of the step"):
            self.assertRegex(self.found("Pipeline and audit", name)["found"], r"^0 of [\d,]+ operations lack one$")

    def test_a_model_elsewhere_does_not_hold(self):
        with mock.patch("myxtts.tasks.tts.build_xtts", return_value=build_toy(device=DATA)):
            finished = validated(*PLACE.argv("stray"), "--json", str(PLACE.folder / "stray.json"))
        self.assertEqual(finished.code, 1)
        self.assertIn("but found toy/", finished.out)
        self.assertIn("not run: the model could not be trained", finished.out)


@unittest.skipIf(devices.gpu_count(), "there are GPUs here")
class WithoutGpu(unittest.TestCase):
    def test_asked_for_gpus_the_placement_fails_and_the_corpus_is_looked_at_all_the_same(self):
        finished = validated(
            "--train-data", str(PLACE.corpus), "--text-frontend", "characters", "--validation-fraction=0.1"
        )
        self.assertEqual((finished.code, finished.err), (1, ""))
        self.assertIn("❌ GPUs asked for: data GPU 0 was asked for, but TensorFlow sees no GPU", finished.out)
        self.assertEqual(finished.out.count("⚠️ not run: the placement cannot be had"), 3)
        self.assertIn("✅ durations: 13 utterances of 0.40 to 0.76 s", finished.out)
        self.assertRegex(finished.out.splitlines()[-1], "^does not hold: begin with ")


class WrongCalls(unittest.TestCase):
    def test_end_with_2_before_anything_is_looked_at(self):
        for argv, told in (
            (["--data-gpu", "0"], "--data-gpu was given without --model-gpu"),
            (["--simulate-gpus", "2", "--data-gpu", "0", "--model-gpu", "5"], "makes GPUs 0 to 1"),
            (["--stepps", "9"], "Did you mean --steps?"),
            (["--batch-sise", "9"], "Did you mean --batch-size?"),
            (["--steps", "1"], "1 is not from 4 to 1000"),
            (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
            (["--config", "nowhere.yaml"], "cannot be read"),
            (["--init-from", "nowhere"], "nowhere"),
            (["--placement", "auto"], "train_main.py alone can do"),
        ):
            with self.subTest(argv=argv):
                finished = validated(*argv)
                self.assertEqual((finished.code, finished.out), (2, ""))
                self.assertIn(told, finished.err)
                self.assertEqual(finished.err.count("\n"), 1)


class Checks(unittest.TestCase):
    def test_marks_and_what_to_do(self):
        self.assertEqual(list(lines(check(True, "n", "e", "f", "d"))), ["   ✅ n: f", "      expected: e"])
        self.assertEqual(
            list(lines(check(False, "n", "e", "f", "d"))), ["   ❌ n: f", "      expected: e", "      do: d"]
        )
        self.assertEqual(next(lines(remark(False, "n", "e", "f", "d"))), "   ⚠️ n: f")

    def test_message_of_a_user_error_is_parted(self):
        made = refused("n", "e", PlacementError("GPU 1 was asked for, but\n there is none. Buy one. Or do without."))
        self.assertEqual(made[3:], ("GPU 1 was asked for, but there is none", "Buy one. Or do without."))

    def run_quietly(self, report: Report, *arguments):
        with contextlib.redirect_stdout(io.StringIO()):
            return report.run(*arguments)

    def test_error_ends_a_section_and_not_the_report(self):
        def broken() -> Iterator[Check]:
            yield check(True, "first", "", "")
            raise PlacementError("lost")

        def whole() -> Iterator[Check]:
            yield remark(False, "second", "", "")
            return 7

        report = Report()
        self.assertIsNone(self.run_quietly(report, "A", broken()))
        self.assertEqual(self.run_quietly(report, "B", whole()), 7)
        self.assertIsNone(self.run_quietly(report, "C", broken(), "B is missing"))
        self.assertEqual(
            [[one.state for one in section.checks] for section in report.sections],
            [["holds", "fails"], ["unknown"], ["unknown"]],
        )
        self.assertFalse(report.holds)
        self.assertEqual(report.summary(), "does not hold: begin with 'done to its end' (1 ✅, 1 ❌, 2 ⚠️)")

    def test_defect_is_raised(self):
        def broken() -> Iterator[Check]:
            yield check(True, "first", "", "")
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.run_quietly(Report(), "A", broken())


class Prerequisites(unittest.TestCase):
    def test_gpus_needed_are_those_up_to_the_highest_index(self):
        for asked, needed in (
            ({}, 0),
            ({"data_gpu": 2, "model_gpu": 3}, 4),
            ({"data_gpu": 2, "model_gpu": 3, "simulate_gpus": 4}, 0),
            ({"model_gpus": (0, 1)}, 2),
        ):
            self.assertEqual(needed_gpus(PlacementConfig(**asked)), needed)

    def test_folder_that_cannot_be_written_is_found_by_writing(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(fault_of_writing(Path(folder)), "")
            self.assertEqual(fault_of_writing(Path(folder) / "not there"), ": No such file or directory")

    def test_missing_and_old_packages_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "requirements.txt"
            file.write_text("# list\nnumpy>=1.0  # fine\nkeras>=1000\nno-such-package>=1\n")
            made = check_packages(file)
        self.assertEqual(made.state, "fails")
        self.assertRegex(made.found, r"^keras is [\d.]+, not >=1000, no-such-package is missing$")


class Places(unittest.TestCase):
    def placed(self, **asked) -> list[Check]:
        checks = []
        generator = check_placement(with_dual(Config(placement=PlacementConfig(**asked))))
        with contextlib.suppress(StopIteration), contextlib.redirect_stdout(io.StringIO()):
            while True:
                checks.append(next(generator))
        return checks

    def test_mapping_is_shown_whichever_way_round(self):
        for data, model in ((0, 1), (1, 0)):
            checks = {made.name: made for made in self.placed(simulate_gpus=SIMULATED, data_gpu=data, model_gpu=model)}
            self.assertEqual({made.state for made in checks.values()}, {"holds"})
            self.assertEqual(checks["batches are made"].found, f"on /CPU:{data}, simulated GPU {data}")
            self.assertEqual(checks["the model is trained"].found, f"on /CPU:{model}, simulated GPU {model}")

    def test_devices_that_tensorflow_did_not_make_do_not_hold(self):
        with mock.patch("myxtts.preflight.placement.found_devices", lambda placement: found_devices(placement)[:1]):
            found = self.placed(simulate_gpus=SIMULATED)
        self.assertEqual(
            [made.name for made in found if made.state == "fails"], [f"device /CPU:{n}" for n in (1, 2, 3)]
        )

    def test_soft_placement_does_not_hold(self):
        def configured(config):
            tf.config.set_soft_device_placement(True)
            return TWO

        with mock.patch("myxtts.preflight.placement.configure_devices", configured):
            found = self.placed(simulate_gpus=SIMULATED)
        tf.config.set_soft_device_placement(False)
        self.assertEqual([made.name for made in found if made.state == "fails"], ["soft placement"])


class Peers(unittest.TestCase):
    def test_matrices_of_nvidia_smi(self):
        self.assertEqual(nvidia.matrix_entry(PEERS, 0, 1), "OK")
        self.assertEqual(nvidia.matrix_entry(PEERS, 2, 1), "NS")
        self.assertEqual(nvidia.matrix_entry(LINKS, 1, 0), "NV12")
        self.assertEqual(nvidia.matrix_entry(LINKS, 0, 2), "SYS")
        for matrix, row, column in ((PEERS, 0, 3), (PEERS, 3, 0), ("", 0, 1), ("No devices were found", 0, 1)):
            self.assertIsNone(nvidia.matrix_entry(matrix, row, column))

    def test_gpus_are_those_that_cuda_counts(self):
        told = {("topo", "-p2p", "r"): PEERS, ("topo", "-m"): LINKS}
        with mock.patch("myxtts.preflight.nvidia._nvidia_smi", lambda *arguments: told[arguments]):
            for visible, expected in (
                ("", (True, "OK, joined by NV12")),
                ("0,2", (False, "NS, joined by SYS")),
                ("GPU-8932f937,GPU-1", (None, "CUDA_VISIBLE_DEVICES names GPUs by UUID, nvidia-smi by number")),
            ):
                with mock.patch.dict("os.environ", CUDA_VISIBLE_DEVICES=visible):
                    self.assertEqual(nvidia.peer_access(0, 1), expected)

    def test_without_nvidia_smi_it_is_not_known(self):
        with mock.patch.dict("os.environ", PATH=""):
            self.assertEqual(nvidia.peer_access(0, 1), (None, "nvidia-smi is not there or tells no topology"))


class Models(unittest.TestCase):
    def plan(self, batch_seconds: float) -> Plan:
        """Utterances of 1 s and of 1.6 s, in buckets of just these lengths."""
        samples = np.array([22_050] * 8 + [35_280] * 4, np.int32)
        ones = np.ones(12, np.int32)
        bounds = np.array([22_050, 35_280], np.int32)
        return Plan(samples, ones, ones, bounds=bounds, batch_size=4, batch_seconds=batch_seconds, seed=0)

    def test_heaviest_buckets(self):
        self.assertEqual(heaviest_buckets(self.plan(0.0)), [1])
        self.assertEqual(heaviest_buckets(self.plan(3.2)), [1])  # 3 x 1 s against 2 x 1.6 s
        self.assertEqual(heaviest_buckets(self.plan(3.0)), [1, 0])  # 3 x 1 s against 1 x 1.6 s

    def test_memory_of_a_device_is_what_tensorflow_says(self):
        self.assertEqual(device_memory_mib(DATA), 256)  # its figure for any CPU
        with self.assertRaises(LookupError):
            device_memory_mib("/GPU:7")

    def test_update_that_moves_nothing_or_is_not_finite_does_not_hold(self):
        state = training_state(build_toy())
        before = magnitudes_of(state)
        self.assertEqual(check_update(state, Taken({"loss": 1.0}, 2.0, 1.0), before, "").state, "fails")
        self.assertEqual(check_update(state, Taken({"loss": 1.0}, 2.0, 1.0), before + 1.0, "").state, "holds")
        self.assertEqual(check_update(state, Taken({"loss": math.nan}, 2.0, 1.0), before + 1.0, "").state, "fails")
        state.trained[0].assign(tf.fill(state.trained[0].shape, math.inf))
        self.assertEqual(check_update(state, Taken({"loss": 1.0}, 2.0, 1.0), before, "").state, "fails")


class Transfers(unittest.TestCase):
    def test_a_bit_that_changes_on_the_way_is_found(self):
        copied = transfer.copied

        def flipped(tensor, device):
            copy = copied(tensor, device)
            return tf.bitwise.invert(copy) if tensor.dtype == tf.int32 else copy

        with mock.patch("myxtts.preflight.transfer.copied", flipped):  # there and back: inverted twice is the same
            self.assertEqual(transfer.check_integrity(TWO.routes[0]).state, "holds")
        turns = iter([False, True] * 100)
        with mock.patch(
            "myxtts.preflight.transfer.copied", lambda t, d: flipped(t, d) if next(turns) else copied(t, d)
        ):
            made = transfer.check_integrity(TWO.routes[0])
        self.assertEqual(made.state, "fails")
        self.assertIn("1 x int32, 4095 x int32, 1000003 x int32 came back changed", made.found)


class Overlap(unittest.TestCase):
    def flow(self, made, trained, worked=None) -> Flow:
        return Flow(made, worked or made, trained, [1.0], Clock(now=lambda: 0.0).report())

    def test_waiting_for_a_reader_beside_a_step_is_no_making(self):
        waited = self.flow([(0, 1), (1, 10)], [(1, 9), (10, 12)], worked=[(0, 1), (9, 10)])
        self.assertEqual((waited.hidden_s, waited.steps_beside), (0, 0))
        self.assertEqual(check_overlap(waited, dual=True).state, "fails")

    def test_seconds_that_two_lists_have_in_common(self):
        self.assertEqual(overlap_s([(0.0, 2.0), (3.0, 5.0)], [(1.0, 4.0)]), 2.0)
        self.assertEqual(overlap_s([(0.0, 1.0)], [(1.0, 2.0)]), 0.0)
        self.assertEqual(overlap_s([], [(1.0, 2.0)]), 0.0)

    def test_one_after_the_other_does_not_hold(self):
        serial = self.flow([(0, 1), (3, 4), (6, 7)], [(1, 3), (4, 6), (7, 9)])
        self.assertEqual((serial.hidden_s, serial.steps_beside, serial.window_s), (0, 0, 8))
        self.assertEqual((serial.made_s, serial.trained_s, serial.efficiency), (2, 6, 0.75))
        for dual in (True, False):
            self.assertEqual(check_overlap(serial, dual).state, "fails")

    def test_at_the_same_time_holds(self):
        beside = self.flow([(0, 1), (1, 2), (3, 4)], [(1, 3), (3, 5), (5, 7)])
        self.assertEqual((beside.hidden_s, beside.steps_beside, beside.efficiency), (2, 2, 1.0))
        made = check_overlap(beside, dual=True)
        self.assertEqual((made.state, made.found[:34]), ("holds", "in 2 of 3 steps; 2.00 s, which hid"))

    def test_a_slow_producer_hides_what_the_steps_leave_it(self):
        starved = self.flow([(0, 3), (3, 6), (6, 9)], [(3, 4), (6, 7), (9, 10)])
        self.assertEqual((starved.hidden_s, starved.trained_s), (2, 3))
        self.assertEqual(check_overlap(starved, dual=True).state, "holds")

    def test_a_little_of_it_is_enough_for_one_device_only(self):
        little = self.flow([(0, 1), (2, 4)], [(1, 2.2), (4, 5)])
        self.assertEqual(check_overlap(little, dual=True).state, "fails")
        self.assertEqual(check_overlap(little, dual=False).state, "holds")


@unittest.skipUnless(has_gpu_kernels(), "this build of TensorFlow has no GPU kernels to look up")
class Operations(unittest.TestCase):
    def test_planted_host_operation_in_the_producer_does_not_hold(self):
        with mock.patch(
            "myxtts.data.features.f0", lambda wave, samples: (tf.numpy_function(abs, [wave], "float32"), 0)
        ):
            made = check_operations("audit", [trace_produce(DATA, tts_extractor())])
        self.assertEqual(made.state, "fails")
        self.assertRegex(made.found, r"^1 of \d+ operations lack one: PyFunc 'PyFunc' in .*produce_on_device")

    def test_without_gpu_kernels_it_is_not_known(self):
        with mock.patch("myxtts.preflight.overlap.has_gpu_kernels", lambda: False):
            self.assertEqual(check_operations("audit", []).state, "unknown")


class Corpora(unittest.TestCase):
    def test_what_is_in_it(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_corpus(folder / "corpus", [0.5 + 0.1 * i for i in range(10)])
            metadata = folder / "corpus" / "corpus.csv"
            metadata.write_text(metadata.read_text(encoding="utf-8") + "\nmissing.wav,abc,s0\n", encoding="utf-8")
            settings = {"train_data": str(metadata), "text_frontend": "characters", "max_rejected": 0.5}
            config = load_config(None, {**settings, "validation_fraction": 0.2, "batch_size": 4})
            with self.assertLogs("myxtts.data", "WARNING"):
                loaded = load(config, Start(), folder)
            checks = {made.name: made for made in check_corpus(loaded)}
        rejected = checks["rejected utterances"]
        self.assertEqual((rejected.state, rejected.found.split(" (")[0]), ("unknown", "1 of 11"))
        self.assertIn("line 12 missing.wav", rejected.found)
        self.assertIn("10 utterances of 0.50 to 1.40 s, median 0.95 s", checks["durations"].found)
        self.assertEqual(checks["characters unknown to the text front end"].found, "none")
        self.assertRegex(checks["padding"].found, r"^\d+\.\d % in \d buckets$")

    def test_one_that_no_run_could_start_on_names_its_first_rows(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            metadata = folder / "corpus.csv"
            metadata.write_text("path,text\n" + "\n".join(f"gone{i}.wav,abc" for i in range(4)), encoding="utf-8")
            loaded, faults = try_load(load_config(None, {"train_data": str(metadata)}), Start(), folder, None)
        self.assertIsNone(loaded)
        self.assertEqual([made.name for made in faults], ["corpus", "rejected utterances"])
        self.assertNotIn("rejected.csv", faults[0].found)
        self.assertRegex(
            faults[1].found, r"^4 \(4 missing file\)\. The first: line 2 gone0\.wav: missing file; line 3 "
        )

    def test_characters_that_change_nothing(self):
        with tempfile.TemporaryDirectory() as name:
            manifest = write_corpus(Path(name), [0.5, 0.5])
            manifest = manifest_of(Path(name) / "corpus.csv")
        manifest.__dict__["texts"] = ("one ^ two, “three”", "a ^ b − 7 \ue000")
        self.assertEqual(silent_characters([manifest], ("en",), "phonemes"), {"^": 2, "\ue000": 1})
        self.assertEqual(silent_characters([manifest], ("en",), "characters"), {})


if __name__ == "__main__":
    unittest.main()
