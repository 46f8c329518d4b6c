"""A run that is stopped, killed or moved equals an uninterrupted run bit for bit."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from fakes.toy import shared_traces
from myxtts.checkpoints.files import latest, read_record
from myxtts.commands import train
from myxtts.report.metrics import read_metrics
from myxtts.run.page import train as train_config
from myxtts.run.stop_request import StopRequest
from tests.fixtures import DUAL, REVERSED, SINGLE, entered, signal_at
from tests.kill_points import KillPoints, RealKillPoints
from tests.long import long
from tests.tiny import Workspace, assert_same_arrays, train_in_fork, whole_run
from tests.tiny_teacher import write_voice

ROOT = Path(__file__).parents[1]
# Measured since the last report.
TIMES = "step_s wait_s steps_per_s audio_seconds_per_s padding accelerator_utilisation read_s"
TIMES += " produce_s blocked_s bottleneck pause_s remaining_s"
CHILD = """
import signal, sys
from myxtts.base.console import filter_stderr, set_environment
set_environment()
filter_stderr()
from myxtts.commands import train
from myxtts.base.console import report_errors
from tests.fixtures import signal_at
from tests import tiny
with getattr(tiny, sys.argv[1])(), signal_at(int(sys.argv[2]), signal.SIGKILL):
    sys.exit(report_errors(lambda: train.main(sys.argv[3:])))
"""


def killed_at(step: int, argv: list[str], models: str = "toy_models") -> subprocess.Popen:
    """Start a run as the program does, in its own process, which is killed when it reports a step;
    `models` names a context of tests/tiny.py, in which it runs.
    """
    command = [sys.executable, "-c", CHILD, models, str(step), *argv]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TF_CPP")}
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environ, text=True, **streams)


class Case(unittest.TestCase):
    def assert_same_run(self, workspace, name, expected_name):
        """Check that the last checkpoints and metrics of two runs are equal bit for bit."""
        run, expected = workspace.run_dir(name), workspace.run_dir(expected_name)
        assert_same_arrays(*(latest(folder / "checkpoints") for folder in (run, expected)))
        self.assertEqual(*(training_metrics(folder) for folder in (run, expected)))


def training_metrics(run: Path) -> list[dict]:
    """Return the metrics of a run but for times and validation."""
    lines = read_metrics(run / "metrics.jsonl")
    left_out = (*TIMES.split(), "validation_", "best_step_")
    return [{k: v for k, v in line.items() if not k.startswith(left_out)} for line in lines]


class NetworkRun(Case):
    @long
    def test_run_resumed_on_other_devices_within_an_epoch_equals_an_uninterrupted_run(self):
        whole = whole_run()
        workspace = whole.workspace
        broken = workspace.copy_run("whole", "broken", self.addCleanup)
        shutil.rmtree(broken / "checkpoints/step-000008")
        newest = latest(broken / "checkpoints")
        self.assertEqual((newest.name, read_record(newest).position), ("step-000005", (1, 2, ())))
        silent = ("--validate-every 0 --sample-every 0",)
        resumed = workspace.train("broken", "--resume", *whole.flags, *silent, *REVERSED)
        self.assertEqual((resumed.code, resumed.err), (0, ""))
        self.assertIn("  route        batches made on /CPU:1, trained on /CPU:0\n", resumed.out)
        self.assert_same_run(workspace, "broken", "whole")


class TaughtRun(Case):
    @long
    def test_fifty_steps_with_a_teacher_are_equal_in_every_placement_and_after_sigkill(self):
        workspace = Workspace.temporary(self.addCleanup)
        voice = write_voice(workspace)
        texts = workspace.folder / "texts.txt"
        symbols = read_record(voice / "checkpoints/step-000000").symbols
        lines = [f"{symbols[0] * 3}{symbol * 3}\n" for symbol in symbols if symbol.strip()]
        texts.write_text("".join(lines))
        flags = ("--teacher", str(voice), f"--texts {texts} --max-steps 50")
        argv = workspace.argv("killed", *flags, *DUAL, "--resume")
        with killed_at(27, argv, "small_models") as killed:
            for name, placement in (("single", SINGLE), ("dual", DUAL), ("reversed", REVERSED)):
                finished = workspace.train(name, *flags, *placement)
                self.assertEqual((finished.code, finished.err), (0, ""))
            _, err = killed.communicate()
        self.assertEqual((killed.returncode, err), (-signal.SIGKILL, ""))
        finished = workspace.train("killed", *flags, *DUAL, "--resume")
        self.assertEqual(finished.code, 0, finished.err)
        self.assertIn("resumed        ", finished.out)
        for name in ("dual", "reversed", "killed"):
            self.assert_same_run(workspace, name, "single")


class StopAt:
    """The hook of an engine, which stops the run after a step."""

    pause_kind = "engine"

    def __init__(self, step: int, request: StopRequest):
        self._step, self._request = step, request

    def is_due(self, end) -> bool:
        return end.step == self._step

    def __call__(self, end) -> None:
        self._request.stop()


class ToyRuns(Case):
    """Interrupted runs of the toy, compared with an uninterrupted one."""

    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.with_toy_models(cls.addClassCleanup)
        # Without a checkpoint, --resume starts a new run.
        cls.killed = entered(
            cls.addClassCleanup, killed_at(7, cls.workspace.argv("killed", *DUAL, "--resume"))
        )
        cls.whole = cls.workspace.train("whole", *DUAL)

    def test_resuming_reads_the_state_of_the_newest_checkpoint_twice_and_of_no_other(self):
        flags = ("--checkpoint-every 2 --keep-checkpoints 3 --validate-every 0",)
        begun = self.workspace.train("counted", *flags, "--max-steps 6")
        self.assertEqual((begun.code, begun.err), (0, ""))
        opened = []
        read_bytes = Path.read_bytes

        def counted(path):
            if path.name == "state.json":
                opened.append(path.parent.name)
            return read_bytes(path)

        with mock.patch.object(Path, "read_bytes", counted):
            resumed = self.workspace.train("counted", *flags, "--resume --max-steps 7")
        self.assertEqual((resumed.code, resumed.err), (0, ""))
        self.assertEqual(opened, ["step-000006"] * 2)

    def test_killed_and_terminated_run_resumed_on_other_placements_equals_a_whole_run(self):
        self.assertEqual((self.whole.code, self.whole.err), (0, ""))
        checkpoints = self.workspace.run_dir("killed") / "checkpoints"
        _, err = self.killed.communicate()
        # Without TensorFlow's usual lines.
        self.assertEqual((self.killed.returncode, err), (-signal.SIGKILL, ""))
        survived = latest(checkpoints)
        # That of step 6 waited for that of step 3.
        self.assertIn(survived.name, ("step-000003", "step-000006"))
        started = f"new run        --resume finds no checkpoint in {checkpoints.parent}: training"
        self.assertIn(started, (checkpoints.parent / "log.txt").read_text(encoding="utf-8"))
        with signal_at(7, signal.SIGTERM):
            # Changes nothing.
            stopped = self.workspace.train("killed", *REVERSED, "--resume --validate-every 4")
        self.assertEqual(stopped.code, 128 + signal.SIGTERM, stopped.err)
        self.assertIn(f"resumed        {survived}", stopped.out)
        self.assertIn("stopped        by SIGTERM at step 7, after a checkpoint;", stopped.out)
        self.assertEqual(latest(checkpoints).name, "step-000007")
        # An epoch has 3 steps.
        self.assertEqual(read_record(latest(checkpoints)).position, (2, 1, ()))

        finished = self.workspace.train("killed", *SINGLE, "--resume")
        self.assertEqual((finished.code, finished.err), (0, ""))
        self.assert_same_run(self.workspace, "killed", "whole")
        lines = read_metrics(checkpoints.parent / "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, 9)))

    def test_metrics_after_the_checkpoint_and_a_truncated_line_are_written_again(self):
        broken = self.workspace.copy_run("whole", "broken", self.addCleanup)
        newest = latest(broken / "checkpoints")
        newest.rename(newest.with_name(".partial-step-000008"))
        with open(broken / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 9, "lo')
        resumed = self.workspace.train("broken", *DUAL, "--resume")
        self.assertEqual(resumed.code, 0)
        self.assertIn(f"resumed        {broken / 'checkpoints/step-000006'}", resumed.out)
        self.assert_same_run(self.workspace, "broken", "whole")

    def test_run_in_a_thread_that_a_hook_stops_resumes_and_equals_an_uninterrupted_run(self):
        request = StopRequest()
        config, _ = train.parse(self.workspace.argv("threaded", *DUAL))
        engine = StopAt(4, request)
        quiet = contextlib.redirect_stdout(io.StringIO())
        with quiet, shared_traces(), ThreadPoolExecutor(1) as pool:
            code = pool.submit(train_config, config, request, more=[engine]).result()
        self.assertEqual(code, 128 + signal.SIGTERM)
        newest = latest(self.workspace.run_dir("threaded") / "checkpoints")
        self.assertEqual(newest.name, "step-000004")
        self.assertEqual(self.workspace.train("threaded", *DUAL, "--resume").code, 0)
        self.assert_same_run(self.workspace, "threaded", "whole")

    def test_run_with_accumulation_and_loss_scaling_resumes_after_ctrl_c_within_an_epoch(self):
        flags = ("--batch-size 2 --gradient-accumulation 2 --precision mixed_float16", *DUAL)
        self.assertEqual(self.workspace.train("scaled", *flags).code, 0)
        with signal_at(5, signal.SIGINT):
            self.assertEqual(self.workspace.train("stopped", *flags).code, 128 + signal.SIGINT)
        stopped_at = latest(self.workspace.run_dir("stopped") / "checkpoints")
        self.assertEqual(stopped_at.name, "step-000005")
        self.assertEqual(read_record(stopped_at).position, (1, 2, ()))
        self.assertEqual(self.workspace.train("stopped", "--resume", *flags).code, 0)
        self.assert_same_run(self.workspace, "stopped", "scaled")

    def test_run_of_two_producers_resumed_with_three_equals_a_run_of_one(self):
        two = ("--data-gpus 0 1 --model-gpu 2 --data-shares 3 1",)
        three = ("--data-gpus 2 0 3 --model-gpu 1",)
        with signal_at(4, signal.SIGTERM):
            stopped = self.workspace.train("turns", *two)
        self.assertEqual(stopped.code, 128 + signal.SIGTERM, stopped.err)
        self.assertIn("placement      dual, 2 producers", stopped.out)
        route = "batches made on /CPU:0 and /CPU:1 in turn, with shares 3 : 1, trained on /CPU:2"
        self.assertIn(f"  route        {route}\n", stopped.out)
        newest = latest(self.workspace.run_dir("turns") / "checkpoints")
        self.assertEqual((newest.name, read_record(newest).position), ("step-000004", (1, 1, ())))
        self.assertEqual(self.workspace.train("turns", *three, "--resume").code, 0)
        self.assert_same_run(self.workspace, "turns", "whole")

    @long
    def test_run_killed_30_times_inside_a_checkpoint_equals_an_uninterrupted_run(self):
        flags = (*DUAL, "--checkpoint-every 1 --keep-checkpoints 2 --max-steps 40")
        with KillPoints(thread="background writer").active() as points:
            self.assertEqual(self.workspace.train("written", *flags).code, 0)
        in_one_write, names = len(points.names) // 40, set()
        for kill in range(30):
            # In the second write of the process: the first one counts.
            at = in_one_write + kill * in_one_write // 30
            points = RealKillPoints(at, thread="background writer")
            code = train_in_fork(points, self.workspace.argv("worn", *flags, "--resume"))
            self.assertEqual(code, -signal.SIGKILL)
            parts = self.workspace.run_dir("worn").glob("checkpoints/.partial-*")
            names |= {path.name for path in parts}
        self.assertGreater(len(names), 15)  # most kills left a part of a checkpoint
        self.assertEqual(self.workspace.train("worn", *flags, "--resume").code, 0)
        self.assert_same_run(self.workspace, "worn", "written")
