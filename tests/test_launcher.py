"""The launcher of workers, with instant programs as workers."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from functools import partial
from pathlib import Path
from unittest import mock

from myxtts.base.console import report_errors
from myxtts.base.processes import (
    READ_BYTES,
    REPEAT_S,
    ChildProcess,
    ProgramSpec,
    StopSignals,
    Supervisor,
)
from myxtts.commands import launch
from tests.fixtures import DEADLINE_S, FolderCase, ends, reported

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "train_main.py"
INDEX = (
    "import json, os, signal, sys, time\nindex ="
    " json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
)


class LauncherTest(FolderCase):
    def argv(self, source: str, *flags: str) -> list[str]:
        """Return the arguments that launch workers of this source, which has `index`."""
        program = self.folder / "program.py"
        program.write_text(INDEX + source)
        flags = flags or ("--workers", "2")
        logs = ("--logs", str(self.folder / "logs"))
        return [*logs, *flags, "--", str(program), "--x"]

    def run_workers(self, source: str, *flags: str, **environ: str) -> subprocess.CompletedProcess:
        """Launch workers from this process: a launcher of its own takes 0.4 s to start."""
        argv, out, err = self.argv(source, *flags), io.StringIO(), io.StringIO()
        streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with mock.patch.dict(os.environ, environ), streams[0], streams[1]:
            code = report_errors(lambda: launch.main(argv))
        return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())

    def test_each_worker_has_its_index_in_the_cluster(self):
        done = self.run_workers("print(os.environ['TF_CONFIG'], sys.argv[1:])", "--workers", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(done.stdout.splitlines())
        clusters = set()
        for index, line in enumerate(lines):
            expected = rf'\[worker {index}\] (.*), "task": .* "index": {index}}}}} \[\'--x\'\]$'
            self.assertRegex(line, expected)
            clusters.add(re.match(expected, line)[1])
        self.assertEqual((len(lines), len(clusters)), (3, 1))

    def test_node_rank_starts_one_worker(self):
        nodes = ("--nodes", "node1:2222, node2:2222", "--node-rank", "1")
        done = self.run_workers("print(os.environ['TF_CONFIG'])", *nodes)
        self.assertEqual(
            done.stdout,
            '[worker 1] {"cluster": {"worker": ["node1:2222", "node2:2222"]}, '
            '"task": {"type": "worker", "index": 1}}\n',
        )

    def test_logs_are_appended_to(self):
        for word in ("first", "second"):
            self.run_workers(f"print('{word}', index)")
        for index in (0, 1):
            lines = (self.folder / "logs" / f"worker-{index}.log").read_text().splitlines()
            self.assertEqual(lines[1::2], [f"first {index}", f"second {index}"])
            self.assertTrue(all(line.startswith("=== ") for line in lines[::2]))

    def test_carriage_returns_and_missing_newline_are_shown_as_on_a_terminal(self):
        done = self.run_workers(r"sys.stdout.write('10 %\r90 %\r100 %\nend')", "--workers", "1")
        self.assertEqual(done.stdout, "[worker 0] 100 %\n[worker 0] end\n")

    def test_killed_worker_ends_all_and_is_named_with_its_last_lines(self):
        source = "print('at step', 7)\nif index == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        done = self.run_workers(source + NOTICES)
        self.assertEqual(done.returncode, 128 + signal.SIGKILL)
        worker = r"error: worker 1 \(127\.0\.0\.1:\d+\) was killed by SIGKILL; its last lines"
        self.assertRegex(done.stderr, worker)
        self.assertIn("\n  | at step 7\n", done.stderr)
        self.assertIn(str(self.folder / "logs" / "worker-1.log"), done.stderr)

    def test_defect_is_reported_as_the_cause_not_the_workers_that_lost_their_peer(self):
        source = "if index == 1:\n    time.sleep(1.0)\n    raise ValueError('17')\n"
        done = self.run_workers(source + NOTICES)
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: worker 1", done.stderr)
        self.assertIn("  | ValueError: 17", done.stderr)

    def test_user_error_is_shown_once(self):
        source = "print('error: no such corpus', file=sys.stderr)\nsys.exit(2)"
        done = self.run_workers(source, "--workers", "3")
        self.assertEqual((done.returncode, done.stdout.count("no such corpus")), (2, 1))
        worker = r"^error: worker \d \(\S+\) ended with exit code 2; its message is above"
        self.assertRegex(done.stderr, worker)

    def test_loss_of_a_worker_elsewhere_has_its_own_exit_code(self):
        done = self.run_workers(NOTICES, "--workers", "1")
        self.assertEqual(done.returncode, 138)
        self.assertIn("ended with exit code 138; its message is above", done.stderr)

    def test_mistake_of_a_worker_is_reported_rather_than_its_loss(self):
        source = "if index == 1:\n    print('error: no such corpus', file=sys.stderr)\n"
        done = self.run_workers(source + "    sys.exit(2)\n" + NOTICES)
        self.assertEqual(done.returncode, 2)
        self.assertIn("error: worker 1", done.stderr)

    def test_supervisor_restarts_a_program_that_lost_another_one_and_no_mistake(self):
        log = self.folder / "log"
        outcomes = {}
        for code in (138, 2):
            source = f"echo >> {self.folder}/{code}; [ $(wc -l < {self.folder}/{code}) = 3 ]"
            program = ProgramSpec(
                "a", ("sh", "-c", f"{source} || exit {code}"), log, max_restarts=2
            )
            with StopSignals() as stop:
                (ended,) = Supervisor(stop, end_together=False).run([program])
            outcomes[code] = ended.outcome
        self.assertEqual(outcomes, {138: "done", 2: "rejected"})

    def test_descendants_of_a_dead_worker_are_killed(self):
        source = (
            "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
            "sys.exit(3)"
        )
        done = self.run_workers(source, "--workers", "1")
        self.assertEqual(done.returncode, 3)
        self.assertTrue(ends(int(done.stdout.split()[-1])))

    def test_ctrl_c_sigterm_and_a_closed_session_let_all_workers_save(self):
        saves = SAVES.replace("print('saved')", "time.sleep(0.3); print('saved')")
        # Slurm sends a SIGTERM twice, and of a closed session a shell and the kernel each send one.
        for name, code, count in (("INT", 130, 1), ("TERM", 143, 2), ("HUP", 129, 2)):
            number = signal.Signals[f"SIG{name}"]
            with self.subTest(signal=number), self.started(saves) as launcher:
                for _ in range(count):
                    launcher.send_signal(number)
                    time.sleep(0.02)
                output, _ = launcher.communicate(timeout=DEADLINE_S)
                self.assertEqual(launcher.returncode, code)
                saved = ["[worker 0] saved", "[worker 1] saved"]
                self.assertEqual(sorted(output.splitlines()), saved)

    def test_flags_of_a_program_stay_as_typed(self):
        program = ["my.py", "--my_flag", "a_b", "--x_y=1"]
        self.assertEqual(launch.parse(["--workers", "1", *program]).program, program)

    def test_nohup_is_respected(self):
        with self.started("", "nohup") as launcher:
            launcher.send_signal(signal.SIGHUP)
            launcher.send_signal(signal.SIGTERM)
            launcher.communicate(timeout=DEADLINE_S)
        self.assertEqual(launcher.returncode, 143)  # 129 if the hangup had been the first request

    def test_a_closed_terminal_does_not_keep_workers_from_saving(self):
        saving = f"print('asked'); time.sleep(0.5); open(f'{self.folder}/saved-{{index}}', 'w')"
        with self.started(SAVES.replace("print('saved')", saving)) as launcher:
            launcher.stdout.close()
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(DEADLINE_S)
        self.assertEqual(len(list(self.folder.glob("saved-*"))), 2)

    def test_a_full_disk_under_a_log_ends_no_worker(self):
        (self.folder / "logs").mkdir()
        (self.folder / "logs/worker-0.log").symlink_to("/dev/full")
        done = self.run_workers("for line in 'ab': print(line, flush=True)")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("[worker 0] a", "[worker 0] b", "[worker 1] b"):
            self.assertIn(line, done.stdout)
        actual = (done.stdout + done.stderr).count("worker-0.log cannot be written: No space left")
        self.assertEqual(actual, 1)

    def test_worker_that_fails_to_save_is_named(self):
        with self.started(SAVES.replace("print('saved')", "1 / index")) as launcher:
            launcher.send_signal(signal.SIGINT)
            output, _ = launcher.communicate(timeout=DEADLINE_S)
        self.assertEqual(launcher.returncode, 1)
        self.assertIn("error: worker 0", output)

    def test_second_ctrl_c_kills(self):
        with self.started(STUCK) as launcher:
            launcher.send_signal(signal.SIGINT)
            self.assertIn("asked", launcher.stdout.readline())
            time.sleep(REPEAT_S)  # what follows within this time is the same request
            launcher.send_signal(signal.SIGINT)
            launcher.communicate(timeout=DEADLINE_S)
        self.assertEqual(launcher.returncode, 130)
        self.assertTrue(all(ends(pid) for pid in self.pids))

    def test_workers_die_with_a_killed_launcher(self):
        with self.started(STUCK) as launcher:
            launcher.kill()
            launcher.communicate(timeout=DEADLINE_S)
        self.assertTrue(all(ends(pid) for pid in self.pids))

    def started(self, source: str, *prefix: str) -> subprocess.Popen:
        """Start a launcher; return it when its workers have run this source and sleep."""
        argv = self.argv(source + "\nprint('pid', os.getpid())\ntime.sleep(600)")
        command = [*prefix, sys.executable, "-m", "myxtts", "launch", *argv]
        # These tests may run under nohup.
        heed_hangup = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        launcher = subprocess.Popen(command, **output, preexec_fn=heed_hangup)
        self.pids = []
        while len(self.pids) < 2:
            words = launcher.stdout.readline().split()
            self.pids += [int(words[3])] if words[2:3] == ["pid"] else []
        return launcher

    def test_workers_are_pinned_to_their_own_cores(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("one core")
        flags = ("--workers", "2", "--cores-per-worker", "1")
        done = self.run_workers("print(*os.sched_getaffinity(0))", *flags)
        actual = sorted(done.stdout.splitlines())
        self.assertEqual(actual, [f"[worker {i}] {cores[i]}" for i in (0, 1)])
        done = self.run_workers("", "--workers", "2", "--cores-per-worker", str(len(cores)))
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"may use {len(cores)} cores", done.stderr)

    def test_workers_see_their_own_gpus(self):
        source = "print(os.environ['CUDA_VISIBLE_DEVICES'])"
        for each, seen in (("2", ["4,5", "6,7"]), ("0", ["-1", "-1"])):
            flags = ("--workers", "2", "--gpus-per-worker", each)
            done = self.run_workers(source, *flags, CUDA_VISIBLE_DEVICES="4,5,6,7")
            actual = sorted(done.stdout.splitlines())
            self.assertEqual(actual, [f"[worker {i}] {seen[i]}" for i in (0, 1)])
        done = self.run_workers(source, "--gpus-per-worker", "1", CUDA_VISIBLE_DEVICES="4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("may use 1 gpus", done.stderr)


class OutputTest(unittest.TestCase):
    def child(self, *command: str) -> ChildProcess:
        child = ChildProcess(ProgramSpec("child", command, Path(os.devnull)))
        # The last one first: what has ended is read to its end.
        self.addCleanup(child.read_lines)
        self.addCleanup(child.kill)
        return child

    def test_a_child_that_prints_without_end_does_not_keep_its_reader(self):
        """Otherwise no one would see that another child has ended, or that its time is up."""
        child = self.child("yes")
        for _ in range(2):
            while not (lines := child.read_lines()):
                time.sleep(0.01)
            self.assertLessEqual(len(lines), 2 * READ_BYTES / len("y\n"))

    def test_a_line_that_is_written_again_and_again_takes_little_memory(self):
        bar = "import sys\nfor n in range(999_999): sys.stdout.write(f'\\r{n} %')\nprint('\\rdone',"
        child = self.child(sys.executable, "-c", bar + " end='\\r\\n')")
        while not (lines := child.read_lines()):
            self.assertLessEqual(len(child._partial), READ_BYTES)
            time.sleep(0.01)
        self.assertEqual(lines, ["done"])

    def test_letters_that_stdout_lacks_are_escaped(self):
        code = (
            "from myxtts.base.console import report_errors; report_errors(lambda:"
            " print('caf\\xe9'))"
        )
        done = run([sys.executable, "-c", code], PYTHONIOENCODING="ascii")
        self.assertEqual((done.stdout, done.stderr), ("caf\\xe9\n", ""))


class MistakeTest(unittest.TestCase):
    def test_mistakes_are_explained(self):
        folder = f"the folder {PROGRAM}"
        mistakes = {
            "no program was given": "--workers 2",
            "--workers is '0', but must be a whole number from 1 to 1000.": "--workers 0 -- FILE",
            "not allowed with": "--workers 2 --nodes a:1 -- FILE",
            "--node-rank is missing": "--nodes a:1,b:2 -- FILE",
            "--node-rank is 2": "--nodes a:1,b:2 --node-rank 2 -- FILE",
            "without --nodes": "--node-rank 0 -- FILE",
            "names the workers a:1, a:1": "--nodes a:1,a:1 --node-rank 0 -- FILE",
            f"{folder} cannot be used: File exists. Choose another --logs.": "--logs FILE -- FILE",
            f"{folder}/logs cannot be used: Not a directory.": "--logs FILE/logs -- FILE",
        }
        for message, flags in mistakes.items():
            with self.subTest(message=message):
                argv = flags.replace("FILE", str(PROGRAM)).split()
                code, err = reported(lambda argv=argv: launch.main(argv))
                self.assertEqual(code, 2)
                self.assertIn(message, err)
                self.assertNotIn("Traceback", err)


NOTICES = "time.sleep(0.5)\nprint('error: worker 1 is gone', file=sys.stderr)\nsys.exit(138)"
ON_SIGNALS = """
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, handler)
"""
SAVES = "def handler(number, frame):\n    print('saved')\n    sys.exit(128 + number)" + ON_SIGNALS
STUCK = "def handler(number, frame):\n    print('asked')\n    time.sleep(600)" + ON_SIGNALS


def run(command: list[str], **environ: str) -> subprocess.CompletedProcess:
    env = {**os.environ, **environ}
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=DEADLINE_S
    )
