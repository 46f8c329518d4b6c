"""Validation during training: its results are those of a blocking validation, each exactly once."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from fakes.toy import Toy
from myxtts.audio.format import HOP_SAMPLES
from myxtts.base.errors import DataError
from myxtts.checkpoints.files import list_checkpoints, read_record
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.devicefeed.contract import tensor_specs
from myxtts.report.metrics import MetricsFile, read_metrics
from myxtts.run.observation import Observer, ObserverFailed, Validation
from myxtts.run.saving import Checkpoints
from myxtts.tasks.evaluation.evaluate import evaluate_run
from myxtts.tasks.evaluation.held_out import EvaluationOptions
from myxtts.tasks.evaluation.table import ColumnScore
from myxtts.tasks.tts.network import SYNTHESIS_SIGNATURE
from tests.fixtures import DUAL, REVERSED, entered, files_below, temporary_folder
from tests.kill_points import Killed, KillPoints, RealKillPoints
from tests.long import long
from tests.tiny import Workspace, assert_same_arrays, small_models, train_in_fork, whole_run

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 1800.0
SPOKEN_FRAMES = 20
ONE_THREAD = threading.Lock()
# of an observation of two batches, which writes samples of one utterance; and how many of each
# there are
CALLS = {
    "make batch": 4,  # before the first, between the two, after them, and before the samples
    "mkdir .partial-step-": 1,
    "write 1-": 4,  # three sounds and a picture
    "rename .partial-step-": 1,
    "append metrics.jsonl": 2,  # before the line of the result, and after it
    "record result": 1,  # the main thread has the result; metrics.jsonl, but no checkpoint, has it
    "fsync .state.json.": 1,
    "replace .state.json.": 1,
}


LATE_OBSERVER = """
import sys, time
from pathlib import Path
from unittest import mock
from fakes.toy_models import toy_models
from myxtts.commands import train
from myxtts.base.console import report_errors
from myxtts.report.metrics import read_metrics

metrics = Path(sys.argv[sys.argv.index("--runs-dir") + 1]) / "data/worker-1/metrics.jsonl"

def main():
    from myxtts.run.observation import HeldOutWork
    observe = HeldOutWork.observe

    def observe_when_worker_1_is_ahead(work, observation, throttle=None):
        while throttle is not None and newest_step() < min(observation.step + 1, 8):
            time.sleep(0.01)  # for ever, if the other worker waits for this observation
        return observe(work, observation, throttle)

    with toy_models(), mock.patch.object(HeldOutWork, "observe", observe_when_worker_1_is_ahead):
        return train.main(sys.argv[1:])

def newest_step():
    return max((line["step"] for line in read_metrics(metrics)), default=0)

sys.exit(report_errors(main))
"""


class Hum:
    """A vocoder that takes no time."""

    description, metadata, variables = "hum", {}, ()

    def __init__(self, iterations=0):
        pass

    def synthesize(self, log_mel, seed):
        return tf.repeat(tf.tanh(tf.reduce_mean(log_mel, axis=2)), HOP_SAMPLES, axis=1)


@tf.function(input_signature=SYNTHESIS_SIGNATURE, autograph=False)
def synthesize_mel(toy, tokens, token_count, *_):
    mel = toy.dense(tf.reduce_sum(toy.embedding(tokens), axis=1, keepdims=True))
    return (
        tf.repeat(mel, SPOKEN_FRAMES, axis=1),
        tf.fill(tf.shape(token_count), SPOKEN_FRAMES),
        token_count,
    )


@tf.function(input_signature=[tensor_specs(Toy.BATCH_FIELDS)], autograph=False)
def align(self, batch):
    return tf.zeros(tf.shape(batch["mel"])[:2], tf.int64)


@contextlib.contextmanager
def speaking_toys():
    """Let runs of the toy write samples of a voice, which depend on their weights; no time."""
    with (
        mock.patch.object(Toy, "synthesize_mel", synthesize_mel, create=True),
        mock.patch.object(Toy, "compiled_align", align, create=True),
        mock.patch("myxtts.tasks.tts.task.GriffinLim", Hum),
        mock.patch("myxtts.audio.vocoder.GriffinLim", Hum),
        mock.patch(
            "myxtts.tasks.tts.task.mel_and_alignment", lambda *_: np.zeros((2, 2, 3), np.uint8)
        ),
    ):
        yield


class ObservationPoints(KillPoints):
    """The batches of observations, and what they and their results change on the disk; not the
    writing of checkpoints.

    Args:
        name: end at a call whose name begins so; empty only lists.
        skip: so many of these calls before.
    """

    def __init__(self, name: str = "", skip: int = 0):
        super().__init__()
        self._name, self._skip = name, skip
        self._is_recording = self._has_ended = False

    def reach(self, call, path):
        if self._has_ended:
            raise Killed  # whichever thread it is
        thread = threading.current_thread().name
        if (
            thread == "myxtts-observer"
            or (thread == "background writer" and self._is_recording)
            or call == "record"
        ):
            with ONE_THREAD:  # `names` ends with its call
                super().reach(call, path)
                if self._name and self.names[-1].startswith(self._name):
                    self._skip -= 1
                    if self._skip < 0:
                        self.end(call, path)

    def end(self, call, path):
        self._has_ended = True
        raise Killed

    @contextlib.contextmanager
    def active(self):
        throttle, write_line, write_bytes = Observer._throttle, MetricsFile.write, Path.write_bytes
        record, begin_record = Checkpoints._write_result, Checkpoints.record

        def reach_batch(observer):
            throttle(observer)
            self.reach("make", "batch")

        def reach_record(checkpoints, *args):
            self.reach("record", "result")
            begin_record(checkpoints, *args)

        def record_result(checkpoints, *args):
            self._is_recording = True
            record(checkpoints, *args)
            self._is_recording = False

        def write_report(file, metrics):
            self.reach("append", "metrics.jsonl")
            write_line(file, metrics)
            self.reach("append", "metrics.jsonl")

        def write_sample(path, content):
            path.touch()  # a killed process leaves an empty file
            self.reach("write", path)
            return write_bytes(path, content)

        with (
            super().active(),
            speaking_toys(),
            mock.patch.object(Observer, "_throttle", reach_batch),
            mock.patch.object(Checkpoints, "record", reach_record),
            mock.patch.object(Checkpoints, "_write_result", record_result),
            mock.patch.object(MetricsFile, "write", write_report),
            mock.patch.object(Path, "write_bytes", write_sample),
        ):
            yield self


class RealObservationPoints(ObservationPoints, RealKillPoints):
    """Kills the process, and notes the name of the call in a file."""

    def __init__(self, name: str, skip: int, notes: Path):
        super().__init__(name, skip)
        self._notes = notes

    def end(self, call, path):
        with open(self._notes, "a", encoding="utf-8") as file:
            file.write(f"{self.names[-1]}\n")
        RealKillPoints.end(self, call, path)


def score_toy(evaluation, network, load):
    """Stand in for the scores of a voice: a figure of the weights, measured in two parts."""

    def score(checkpoint, throttle):
        total = 0.0
        for variable in network.variables:
            throttle()
            total += float(np.abs(variable.numpy()).sum(dtype=np.float64))
        figures = {"voicing_error": {"synthesized": total}}
        return ColumnScore("toy", checkpoint, 1, ("synthesized",), figures, {}, ())

    return score


def assert_same_files(left, right):
    first, second = files_below(left), files_below(right)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def results_of(folder):
    """Return the steps and the results of the lines of a run."""
    lines = read_metrics(folder / "metrics.jsonl")
    return [(line["step"], {k: v for k, v in line.items() if is_result(k)}) for line in lines]


def is_result(name):
    return "loss" in name or name.startswith("evaluation_")


def scores_of(folder):
    """Return the tables of a run by checkpoint."""
    tables = sorted(folder.glob("evaluation/*/scores.md"))
    return {path.parent.name: path.read_text() for path in tables}


class NetworkRun(unittest.TestCase):
    @long
    def test_scores_are_those_of_a_run_that_pauses_and_of_evaluate(self):
        whole = whole_run()
        flags, evaluations = (*whole.flags, "--evaluate-every 4 --keep-checkpoints 9"), []
        for name, observer in (("beside", "data"), ("between", "model")):
            finished = whole.workspace.train(name, *flags, "--observer", observer)
            self.assertEqual((finished.code, finished.err), (0, ""))
            folder = whole.workspace.run_dir(name)
            scores = {}
            for line in read_metrics(folder / "metrics.jsonl"):
                figures = {key: line[key] for key in line if key.startswith("evaluation_")}
                scores |= {line["step"]: figures} if figures else {}
            evaluations.append((scores, scores_of(folder)))
        self.assertEqual(*evaluations)
        self.assertEqual(list(scores), [4, 8])
        file = whole.workspace.folder / "scores.json"
        with (
            small_models(),
            # This process has configured its devices.
            mock.patch("myxtts.placement.devices.configure"),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            options = EvaluationOptions(json_file=file, out=file.with_name("out"))
            evaluate_run(folder, "step-000004", options)
        metrics = json.loads(file.read_text(encoding="utf-8"))["metrics"]
        for name, value in scores[4].items():
            self.assertEqual(value, metrics[name.removeprefix("evaluation_")]["synthesized"], name)

    @long
    def test_losses_and_samples_are_those_of_a_run_that_pauses_for_them(self):
        whole = whole_run()
        paused = whole.workspace.train("paused", *whole.flags, "--observer model")
        self.assertEqual((paused.code, paused.err), (0, ""))
        folders = (whole.folder, whole.workspace.run_dir("paused"))
        assert_same_files(*(folder / "samples" for folder in folders))
        lines = [read_metrics(folder / "metrics.jsonl") for folder in folders]
        self.assertEqual(*([line.get("validation_loss") for line in each] for each in lines))


class ToyRuns(unittest.TestCase):
    """Runs of the toy whose data device observes."""

    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.with_toy_models(cls.addClassCleanup)
        entered(
            cls.addClassCleanup, mock.patch("myxtts.tasks.tts.evaluation.score_in_run", score_toy)
        )
        cls.flags = (*DUAL, "--validate-every 2 --evaluate-every 4")
        cls.blocking = cls.workspace.train("blocking", *cls.flags, "--observer model")

    def assert_same_as_blocking(self, name, blocking="blocking"):
        """Check that losses, scores, checkpoints and the best of them are equal bit for bit."""
        expected, run = (self.workspace.run_dir(run) for run in (blocking, name))
        self.assertEqual(results_of(run), results_of(expected))
        self.assertEqual(scores_of(run), scores_of(expected))
        left, right = (list_checkpoints(folder / "checkpoints") for folder in (run, expected))
        self.assertEqual([path.name for path in left], [path.name for path in right])
        for path, other in zip(left, right, strict=True):
            self.assertEqual(read_record(path).best, read_record(other).best)
            self.assertEqual(read_record(path).pending_observations, ())
        assert_same_arrays(left[-1], right[-1])

    def test_losses_and_checkpoints_are_those_of_a_blocking_validation(self):
        threads = set()

        def call(toy, batch, training=False):
            threads.add(threading.current_thread())
            return call_of_toy(toy, batch, training)

        call_of_toy = Toy.call
        with mock.patch.object(Toy, "call", call):
            observed = self.workspace.train("observed", *self.flags)
        # Keras layers are called and traced by no other.
        self.assertEqual(threads, {threading.main_thread()})
        for finished in (self.blocking, observed):
            self.assertEqual((finished.code, finished.err), (0, ""))
        place = "validation, samples and evaluation on /CPU:0, during training"
        self.assertIn(f"  observer     {place}", observed.out)
        self.assert_same_as_blocking("observed")
        scores = scores_of(self.workspace.run_dir("observed"))
        self.assertEqual(list(scores), ["step-000004", "step-000008"])
        self.assertIn("step      4 | voicing error ", observed.out)

    def test_the_same_checkpoint_is_selected_and_ends_the_run_early_in_both_ways_and_after_kills(
        self,
    ):
        # That of step 10 would be the best.
        rated = dict(zip((2, 4, 6, 8, 10, 12), (3.0, 3.5, 3.4, 3.3, 4.0, 3.9), strict=True))

        def rate(evaluation, network, load):
            def score(checkpoint, throttle):
                throttle()
                figures = {"dnsmos_mean": {"synthesized": rated[int(checkpoint[5:])]}}
                return ColumnScore("toy", checkpoint, 1, ("synthesized",), figures, {}, ())

            return score

        flags = "--evaluate-every 2 --select-by dnsmos --patience 2 --max-steps 12"
        flags = (*DUAL, flags, "--keep-checkpoints 1")
        with mock.patch("myxtts.tasks.tts.evaluation.score_in_run", rate):
            for name, observer in (("heard", "model"), ("heard_beside", "data")):
                run = self.workspace.train(name, *flags, "--observer", observer)
                self.assertEqual((run.code, run.err), (0, ""))
                self.assertIn("best           step-000004, DNSMOS 3.5; then 2 no better", run.out)
                self.assertRegex(run.out, r"stopped        by --patience at step \d+, after a che")
                self.assertEqual(self.selected(name), (4, [2, 4, 4, 4]))
            resume = ()
            for name in ("append metrics", "replace .state.json", "record result", "make batch"):
                observations = ObservationPoints(name=name)
                with self.assertRaises((Killed, ObserverFailed)), observations.active():
                    self.workspace.train("heard_cut", *flags, *resume)
                resume = ("--resume",)
            run = self.workspace.train("heard_cut", *flags, *resume)
            self.assertEqual((run.code, run.err), (0, ""))
            self.assertEqual(self.selected("heard_cut"), (4, [2, 4, 4, 4]))
            again = self.workspace.train("heard_cut", *flags, *resume)
            self.assertIn(
                "nothing to do  --patience ended run heard_cut; give a higher one. The", again.out
            )
            longer = self.workspace.train("heard_cut", *flags, *resume, "--patience 3")
        self.assertIn("best           step-000010, DNSMOS 4; then 1 no better", longer.out)
        self.assertEqual(longer.code, 0)

    def selected(self, name):
        """Return the step of the checkpoint that others use, and the best step of each score."""
        folder = self.workspace.run_dir(name)
        lines = [line.get("best_step_by_dnsmos") for line in read_metrics(folder / "metrics.jsonl")]
        return TrainedRun.open(folder).record.step, [step for step in lines if step is not None]

    def test_an_observation_that_failed_is_repeated_once_when_the_run_is_resumed(self):
        evaluate = Validation.evaluate

        def failing(validation, throttle):
            if failures:
                raise failures.pop()
            return evaluate(validation, throttle)

        failures = [DataError("held-out file")]
        with mock.patch.object(Validation, "evaluate", failing):
            broken = self.workspace.train("broken", *self.flags)
        self.assertEqual((broken.code, broken.err), (2, "error: held-out file\n"))
        folder = self.workspace.run_dir("broken")
        newest = list_checkpoints(folder / "checkpoints")[-1]
        self.assertEqual(read_record(newest).pending_observations[0], (2, ("validation",)))
        resumed = self.workspace.train("broken", *self.flags, "--resume")
        self.assertEqual((resumed.code, resumed.err), (0, ""))
        self.assert_same_as_blocking("broken")

    def test_an_observation_that_is_killed_is_repeated_once(self):
        resume = []
        for name in ("make batch", "append metrics", "replace .state.json", "replace .scores.md"):
            observations = ObservationPoints(name=name)
            with self.assertRaises((Killed, ObserverFailed)), observations.active() as points:
                self.workspace.train("cut", *self.flags, *resume)
            self.assertTrue(points.names[-1].startswith(name), points.names)
            resume = ["--resume"]
        self.assertEqual(self.workspace.train("cut", *self.flags, "--resume").code, 0)
        self.assert_same_as_blocking("cut")

    @long
    def test_a_run_killed_30_times_inside_observations_equals_a_blocking_run(self):
        flags = (*DUAL, "--validate-every 1 --sample-every 1 --checkpoint-every 1 --max-steps 40")
        flags += ("--validation-fraction 0.4",)
        with speaking_toys():
            self.assertEqual(self.workspace.train("calm", *flags, "--observer model").code, 0)
        kills = []
        for call, count in CALLS.items():
            # Each in the second observation of a process, and in its repetition, the first one of
            # the next process.
            for at in range(count):
                kills += [(call, at + count), (call, at)]
        notes = self.workspace.folder / "kills.txt"
        for call, skip in kills:
            points = RealObservationPoints(call, skip, notes)
            code = train_in_fork(points, self.workspace.argv("worn", *flags, "--resume"))
            self.assertEqual(code, -signal.SIGKILL, (call, skip))
        killed = notes.read_text(encoding="utf-8").splitlines()
        self.assertEqual(len(killed), 30)
        for (call, _), name in zip(kills, killed, strict=True):
            self.assertTrue(name.startswith(call), (call, name))
        with speaking_toys():
            self.assertEqual(self.workspace.train("worn", *flags, "--resume").code, 0)
        self.assert_same_as_blocking("worn", "calm")
        worn, calm = (self.workspace.run_dir(name) / "samples" for name in ("worn", "calm"))
        self.assertEqual(len(list(calm.rglob("*.wav"))), 3 * 40)
        assert_same_files(worn, calm)


class Workers(unittest.TestCase):
    @long
    def test_other_workers_train_on_while_the_chief_observes(self):
        workspace = Workspace(temporary_folder(self.addCleanup))
        program = workspace.folder / "program.py"
        program.write_text(LATE_OBSERVER, encoding="utf-8")
        for name in ("model", "data"):
            argv = workspace.argv(
                name, *REVERSED, "--validate-every 2 --observer", name, "--batch-size 2"
            )
            command = (
                f"{sys.executable} -m myxtts launch --workers 2 --logs {workspace.folder}/logs --"
            )
            done = subprocess.run(
                [*command.split(), str(program), *argv],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        blocking, observed = (results_of(workspace.run_dir(name)) for name in ("model", "data"))
        self.assertEqual(observed, blocking)
        validated = [step for step, results in observed if "validation_loss" in results]
        self.assertEqual(validated, [2, 4, 6, 8])
