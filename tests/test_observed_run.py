"""Validation beside the training: its results are those of a blocking validation, each exactly once."""

import contextlib
import signal
import threading
import unittest
from unittest import mock

from benchmarks.proof.toy import Toy
from myxtts.errors import DataError
from myxtts.observe.metrics import MetricsFile
from myxtts.observe.metrics_reader import read_metrics
from myxtts.training.checkpoint import Checkpoints
from myxtts.training.checkpoint_files import list_checkpoints, read_best, read_metadata
from myxtts.training.observer import Observer, ObserverFailed
from myxtts.training.validation import Validation
from tests.kill_points import Killed, KillPoints, RealKillPoints
from tests.long import long
from tests.test_resume import DUAL
from tests.tiny import Workspace, arrays_of, train_in_fork, whole_run

KILLS = 30


class ObservationPoints(KillPoints):
    """The batches of observations, and what their results change on the disk; not the writing of checkpoints.

    Args:
        name: end at the first call whose name begins so; else at the one of index `at`.
    """

    def __init__(self, at: int | None = None, name: str = ""):
        super().__init__(at)
        self._name, self._is_recording, self._has_ended = name, False, False

    def reach(self, call, path):
        if self._has_ended:
            raise Killed  # whichever thread it is
        thread = threading.current_thread().name
        if thread == "myxtts-observer" or (thread == "background writer" and self._is_recording):
            super().reach(call, path)
            if self._name and self.names[-1].startswith(self._name):
                self.end(call, path)

    def end(self, call, path):
        self._has_ended = True
        raise Killed

    @contextlib.contextmanager
    def active(self):
        pace, record, write = Observer._pace, Checkpoints._record, MetricsFile.write

        def reach_batch(observer):
            pace(observer)
            self.reach("make", "batch")

        def record_result(checkpoints, *args):
            self._is_recording = True
            record(checkpoints, *args)
            self._is_recording = False

        def write_report(file, metrics):
            self.reach("append", "metrics.jsonl")
            write(file, metrics)

        with (
            super().active(),
            mock.patch.object(Observer, "_pace", reach_batch),
            mock.patch.object(Checkpoints, "_record", record_result),
            mock.patch.object(MetricsFile, "write", write_report),
        ):
            yield self


class RealObservationPoints(ObservationPoints, RealKillPoints):
    """Kills the process."""

    end = RealKillPoints.end


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

    def assert_same_as_blocking(self, name, blocking="blocking"):
        """Check that losses, checkpoints and the best of them are equal bit for bit."""
        expected, run = (self.workspace.run_dir(run) for run in (blocking, name))
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

    def test_an_observation_that_is_killed_is_repeated_once(self):
        resume = []
        for name in ("make batch", "replace .metrics.jsonl.", "replace .state.json."):
            with self.assertRaises((Killed, ObserverFailed)), ObservationPoints(name=name).active() as points:
                self.workspace.train("cut", *self.flags, *resume)
            self.assertTrue(points.names[-1].startswith(name), points.names)
            resume = ["--resume"]
        self.assertEqual(self.workspace.train("cut", *self.flags, "--resume").code, 0)
        self.assert_same_as_blocking("cut")

    @long
    def test_a_run_killed_30_times_inside_observations_equals_a_blocking_run(self):
        steps = 2 * KILLS + 10
        flags = (*DUAL, "--validate-every", "1", "--checkpoint-every", "1", "--max-steps", str(steps))
        self.assertEqual(self.workspace.train("calm", *flags, "--observer", "model").code, 0)
        with ObservationPoints().active() as points:
            self.assertEqual(self.workspace.train("listed", *flags).code, 0)
        in_one, names = len(points.names) // steps, set()
        for kill in range(KILLS):
            at = in_one + kill * in_one // KILLS  # in the second observation of the process
            argv = self.workspace.argv("worn", *flags, "--resume")
            self.assertEqual(train_in_fork(RealObservationPoints(at), argv), -signal.SIGKILL)
            names.add(points.names[at])
        self.assertGreater(len(names), min(5, KILLS // 2))
        self.assertEqual(self.workspace.train("worn", *flags, "--resume").code, 0)
        self.assert_same_as_blocking("worn", "calm")


if __name__ == "__main__":
    unittest.main()
