"""Validation beside the training: its results are those of a blocking validation, each exactly once."""

import threading
import unittest
from unittest import mock

from benchmarks.proof.toy import Toy
from myxtts.errors import DataError
from myxtts.observe.metrics import read_metrics
from myxtts.training.checkpoint_files import list_checkpoints, read_best, read_metadata
from myxtts.training.validation import Validation
from tests.long import long
from tests.test_resume import DUAL
from tests.tiny import Workspace, arrays_of, whole_run


class NetworkRun(unittest.TestCase):
    @long
    def test_losses_and_samples_are_those_of_a_run_that_pauses_for_them(self):
        whole = whole_run()
        paused = whole.workspace.train("paused", *whole.flags, "--observer", "model")
        self.assertEqual((paused.code, paused.err), (0, ""))
        beside, between = (
            {
                str(path.relative_to(folder)): path.read_bytes()
                for path in (folder / "samples").rglob("*")
                if path.is_file()
            }
            for folder in (whole.folder, whole.workspace.run_dir("paused"))
        )
        self.assertEqual(set(beside), set(between))
        self.assertEqual([name for name in beside if beside[name] != between[name]], [])
        losses = [
            [line.get("validation_loss") for line in read_metrics(folder / "metrics.jsonl")]
            for folder in (whole.folder, whole.workspace.run_dir("paused"))
        ]
        self.assertEqual(*losses)


class ToyRuns(unittest.TestCase):
    """Runs of the toy whose data device observes."""

    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.with_toy_models(cls.addClassCleanup)
        cls.flags = (*DUAL, "--validate-every", "2")
        cls.blocking = cls.workspace.train("blocking", *cls.flags, "--observer", "model")

    def assert_same_as_blocking(self, name):
        """Check that losses, checkpoints and the best of them are equal bit for bit."""
        expected, run = (self.workspace.run_dir(run) for run in ("blocking", name))
        lines, expected_lines = (
            [
                (line["step"], {name: value for name, value in line.items() if "loss" in name})
                for line in read_metrics(folder / "metrics.jsonl")
            ]
            for folder in (run, expected)
        )
        self.assertEqual(lines, expected_lines)
        left, right = (list_checkpoints(folder / "checkpoints") for folder in (run, expected))
        self.assertEqual([path.name for path in left], [path.name for path in right])
        for path, other in zip(left, right, strict=True):
            self.assertEqual(read_best(path), read_best(other))
            self.assertEqual(read_metadata(path)["observing"], [])
        arrays, expected_arrays = (dict(arrays_of(paths[-1])) for paths in (left, right))
        for key, array in arrays.items():
            self.assertEqual(array.tobytes(), expected_arrays[key].tobytes(), key)

    def test_losses_and_checkpoints_are_those_of_a_blocking_validation(self):
        threads = set()

        def call(toy, batch, training=False):
            threads.add(threading.current_thread())
            return call_of_toy(toy, batch, training)

        call_of_toy = Toy.call
        with mock.patch.object(Toy, "call", call):
            observed = self.workspace.train("observed", *self.flags)
        self.assertEqual(threads, {threading.main_thread()})  # Keras layers are called and traced by no other
        self.assertEqual((self.blocking.code, self.blocking.err, observed.code, observed.err), (0, "", 0, ""))
        self.assertIn("  observer     validation and samples on /CPU:0, beside the training\n", observed.out)
        self.assert_same_as_blocking("observed")

    def test_an_observation_that_failed_is_repeated_once_when_the_run_is_resumed(self):
        evaluate = Validation.evaluate

        def failing(validation, pace):
            if failures:
                raise failures.pop()
            return evaluate(validation, pace)

        failures = [DataError("held-out file")]
        with mock.patch.object(Validation, "evaluate", failing):
            broken = self.workspace.train("broken", *self.flags)
        self.assertEqual((broken.code, broken.err), (2, "error: held-out file\n"))
        folder = self.workspace.run_dir("broken")
        newest = list_checkpoints(folder / "checkpoints")[-1]
        self.assertEqual(read_metadata(newest)["observing"][0], [2, ["validation"]])
        resumed = self.workspace.train("broken", *self.flags, "--resume")
        self.assertEqual((resumed.code, resumed.err), (0, ""))
        self.assert_same_as_blocking("broken")


if __name__ == "__main__":
    unittest.main()
