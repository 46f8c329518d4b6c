"""A run that was stopped, killed and moved to other devices ends bit for bit as if nothing had happened."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from myxtts.observe.metrics import read_metrics
from myxtts.training.checkpoint import latest, read_about
from tests.tiny import Workplace, arrays_of, toy_models

ROOT = Path(__file__).parents[1]
STEPS = 60
TIMES = {"step_s", "wait_s", "steps_per_s", "audio_seconds_per_s", "padding"}  # of the steps since the last report
LENGTH = ("--max-steps", str(STEPS), "--checkpoint-every", "7")
SINGLE, DUAL, REVERSED = (("--data-gpu", data, "--model-gpu", model) for data, model in ("00", "01", "10"))
CHILD = """
import sys
from tests.tiny import small_models
from myxtts import cli
with small_models():
    sys.exit(cli.main(sys.argv[1:]))
"""


@contextlib.contextmanager
def signal_at(step: int, number: int):
    """Send this process a signal when the run in it reports a step."""

    class Sender(logging.Handler):
        def emit(self, record):
            if record.getMessage().startswith(f"step {step:6d} |"):
                os.kill(os.getpid(), number)

    sender, logger = Sender(), logging.getLogger("myxtts.observe.report")
    logger.addHandler(sender)
    try:
        yield
    finally:
        logger.removeHandler(sender)


def run_until(step: int, number: int, argv: list[str]) -> int:
    """Run in a process of its own, which gets a signal when it has reported a step; its exit code."""
    command = [sys.executable, "-c", CHILD, *argv]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        for line in child.stdout:
            if line.startswith(f"step {step:6d} |"):
                child.send_signal(number)
    return child.returncode


class Case(unittest.TestCase):
    def assert_same_run(self, place, name, other):
        """All variables of the last checkpoints, and all measured values of each step, are equal bit for bit."""
        left, right = (dict(arrays_of(latest(place.run(run) / "checkpoints"))) for run in (name, other))
        self.assertEqual(left.keys(), right.keys())
        self.assertEqual({key.split("/")[0] for key in left}, {"model", "optimizer", "averages"})
        for key, array in left.items():
            self.assertEqual(array.tobytes(), right[key].tobytes(), key)
        found, expected = (
            [without_times(line) for line in read_metrics(place.run(run) / "metrics.jsonl")] for run in (name, other)
        )
        self.assertEqual(found, expected)

    def temporary_workplace(self):
        return Workplace.made(self.addCleanup)


def without_times(line: dict) -> dict:
    return {name: value for name, value in line.items() if name not in TIMES}


class Interrupted(Case):
    def test_by_a_kill_and_a_signal_on_all_placements_equals_an_uninterrupted_run(self):
        place = self.temporary_workplace()
        checkpoints = place.run("broken") / "checkpoints"
        killed = []
        argv = place.argv("broken", *LENGTH, *DUAL, "--resume")  # with nothing to resume it starts anew
        killing = threading.Thread(target=lambda: killed.append(run_until(20, signal.SIGKILL, argv)))
        killing.start()
        whole = place.train("whole", *LENGTH, *DUAL)
        killing.join()
        self.assertEqual((whole.code, whole.err), (0, ""))
        self.assertEqual(killed, [-signal.SIGKILL])
        self.assertFalse((checkpoints / f"step-{STEPS:06d}").exists())

        survived = latest(checkpoints)
        with signal_at(44, signal.SIGTERM):
            stopped = place.train("broken", *LENGTH, *REVERSED, "--resume")
        self.assertEqual(stopped.code, 128 + signal.SIGTERM, stopped.err)
        self.assertIn(f"resumed        {survived}", stopped.out)
        self.assertIn("stopped by SIGTERM at step 44, after a checkpoint; --resume goes on", stopped.out)
        self.assertEqual(latest(checkpoints).name, "step-000044")
        self.assertEqual(read_about(latest(checkpoints))["position"], [14, 2])  # of 3 steps an epoch

        finished = place.train("broken", *LENGTH, *SINGLE, "--resume")
        self.assertEqual((finished.code, finished.err), (0, ""))
        self.assert_same_run(place, "broken", "whole")
        steps = [line["step"] for line in read_metrics(place.run("broken") / "metrics.jsonl")]
        self.assertEqual(steps, list(range(1, STEPS + 1)))


class SmallerStops(Case):
    def test_ctrl_c_with_accumulation_and_a_scaled_loss_in_the_middle_of_an_epoch(self):
        place = self.temporary_workplace()
        flags = ("--batch-size", "2", "--gradient-accumulation", "2", "--precision", "mixed_float16", *DUAL)
        with toy_models():
            self.assertEqual(place.train("whole", *flags).code, 0)
            with signal_at(5, signal.SIGINT):
                self.assertEqual(place.train("broken", *flags).code, 128 + signal.SIGINT)
            stopped_at = latest(place.run("broken") / "checkpoints")
            self.assertEqual((stopped_at.name, read_about(stopped_at)["position"]), ("step-000005", [1, 2]))
            self.assertEqual(place.train("broken", "--resume", *flags).code, 0)
        self.assert_same_run(place, "broken", "whole")

    def test_a_line_that_a_kill_cut_short_and_those_behind_the_checkpoint_are_written_again(self):
        place = self.temporary_workplace()
        with toy_models():
            self.assertEqual(place.train("whole").code, 0)
            shutil.copytree(place.run("whole"), place.run("broken"))
            newest = latest(place.run("broken") / "checkpoints")
            newest.rename(newest.with_name(".partial-step-000008"))
            with open(place.run("broken") / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write('{"step": 9, "lo')
            resumed = place.train("broken", "--resume")
        self.assertEqual(resumed.code, 0)
        self.assertIn("resumed        " + str(place.run("broken") / "checkpoints/step-000006"), resumed.out)
        self.assert_same_run(place, "broken", "whole")


if __name__ == "__main__":
    unittest.main()
