"""What a launcher of jobs shows: its lines, and the progress and time left of its jobs."""

import contextlib
import json
from unittest import mock

from myxtts.extras.jobs.launcher import say
from myxtts.extras.jobs.status import (
    LauncherState,
    ProcessState,
    progress_lines,
    read_last_report,
    read_progress,
)
from tests.fixtures import FolderCase


class ProgressTest(FolderCase):
    def test_closed_terminal_raises_no_error(self):
        out = open("/dev/full", "w")  # noqa: SIM115 - closed below, where it fails once more
        with contextlib.redirect_stdout(out):
            say("to nobody")
        with mock.patch("sys.stdout", None):  # as by `>&-` in a shell
            say("to nobody")
        with contextlib.suppress(OSError):
            out.close()

    def test_progress_is_read_from_the_last_complete_line(self):
        path = self.folder / "metrics.jsonl"
        self.assertEqual(read_last_report(path), {})
        lines = '{"step": 1, "loss": 3.0}\n{"step": 2, "validation_loss": 1.0}\n{"step": 3, "lo'
        path.write_text(lines)
        self.assertEqual(read_last_report(path)["step"], 1)
        long_line = json.dumps({"step": 4, "loss": 1.0, "x": "y" * (1 << 17)})
        path.write_text(f'{long_line}\n{{"step": 5, "loss": null}}\n')
        self.assertEqual(read_last_report(path), {"step": 5, "loss": None})
        self.assertIsNone(read_progress(self.folder)["loss"])

    def test_a_line_has_the_newest_report_and_the_time_left(self):
        report = {"step": 10, "loss": 1.0, "remaining_s": 187.0}
        immutable = {"gpus": [0], "warmstart_steps": 0, "sync_every": 0, "corpus": {}}
        state = LauncherState(host="", immutable=immutable, total_steps=110)
        state.processes["job-0"] = ProcessState(state="running", pid=42)
        state.processes["job-1"] = ProcessState(state="done", pid=43, restarts=1)
        self.write("job-0/metrics.jsonl", json.dumps(report) + "\n")
        running, done = progress_lines(self.folder, state)
        expected = "job-0          running, step 10 of 110, loss 1.000, process 42, 3.1 min left"
        self.assertEqual(running, expected)
        # The PID of a process that has ended may be another one's.
        self.assertEqual(done, "job-1          done, step 0 of 110, restarts: 1")
