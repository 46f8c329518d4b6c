"""The launcher of workers, with instant programs as workers."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
import unittest
from functools import partial
from itertools import islice
from pathlib import Path

from myxtts.commands import launch
from myxtts.commands.console import report_errors
from myxtts.distributed.processes import MAX_READS, READ_BYTES, ChildProcess, OutputReader
from myxtts.distributed.signals import REPEAT_S
from tests.fixtures import DEADLINE_S, FolderCase, ends

ROOT = Path(__file__).parents[1]
LAUNCHER = ROOT / "utilities" / "launch_workers.py"
INDEX = (
    "import json, os, signal, sys, time\nindex ="
    " json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
)


class LauncherTest(FolderCase):
    def command(self, source: str, *flags: str) -> list[str]:
        """Return a command that launches workers of this source, which has `index`."""
        program = self.folder / "program.py"
        program.write_text(INDEX + source)
        flags = flags or ("--workers", "2")
        return [
            sys.executable,
            str(LAUNCHER),
            "--logs",
            str(self.folder / "logs"),
            *flags,
            "--",
            str(program),
            "--x",
        ]

    def run_workers(self, source: str, *flags: str, **environ: str) -> subprocess.CompletedProcess:
        return run(self.command(source, *flags), **environ)

    def test_each_worker_has_its_index_in_the_cluster(self):
        done = self.run_workers("print(os.environ['TF_CONFIG'], sys.argv[1:])", "--workers", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(done.stdout.splitlines())
        ports = set()
        for index, line in enumerate(lines):
            name, _, rest = line.partition("] ")
            self.assertEqual(name, f"[worker {index}")
            self.assertIn(f'"task": {{"type": "worker", "index": {index}}}', rest)
            self.assertTrue(rest.endswith("['--x']"))
            ports.add(rest.partition("]")[0])
        self.assertEqual((len(lines), len(ports)), (3, 1))  # all workers have the same cluster

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
        source = (
            "print('at step', 7)\n"
            + "if index == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
            + NOTICES
        )
        done = self.run_workers(source)
        self.assertEqual(done.returncode, 128 + signal.SIGKILL)
        self.assertRegex(
            done.stderr,
            r"error: worker 1 \(127\.0\.0\.1:\d+\) was killed by SIGKILL; its last lines",
        )
        self.assertIn("\n  | at step 7\n", done.stderr)
        self.assertIn(str(self.folder / "logs" / "worker-1.log"), done.stderr)

    def test_defect_is_reported_as_the_cause_not_the_workers_that_lost_their_peer(self):
        done = self.run_workers(
            "if index == 1:\n    time.sleep(1.0)\n    raise ValueError('17')\n" + NOTICES
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: worker 1", done.stderr)
        self.assertIn("  | ValueError: 17", done.stderr)

    def test_user_error_is_shown_once(self):
        done = self.run_workers(
            "print('error: no such corpus', file=sys.stderr)\nsys.exit(2)", "--workers", "3"
        )
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stdout.count("no such corpus"), 1)
        self.assertRegex(
            done.stderr, r"^error: worker \d \(\S+\) ended with exit code 2; its message is above"
        )

    def test_descendants_of_a_dead_worker_are_killed(self):
        source = (
            "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid,"
            " flush=True)\nsys.exit(3)"
        )
        done = self.run_workers(source, "--workers", "1")
        self.assertEqual(done.returncode, 3)
        self.assertTrue(ends(int(done.stdout.split()[-1])))

    def test_ctrl_c_sigterm_and_a_closed_session_let_all_workers_save(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            with self.subTest(signal=number), self.started(SAVES) as launcher:
                # A shell and the kernel each send one.
                for _ in range(2 if number == signal.SIGHUP else 1):
                    launcher.send_signal(number)
                output, _ = launcher.communicate(timeout=DEADLINE_S)
                self.assertEqual(launcher.returncode, code)
                actual = sorted(output.splitlines())
                self.assertEqual(actual, ["[worker 0] saved", "[worker 1] saved"])

    def test_a_signal_that_comes_twice_at_once_kills_nobody(self):
        with self.started(
            SAVES.replace("print('saved')", "time.sleep(0.5); print('saved')")
        ) as launcher:
            for _ in range(2):
                launcher.send_signal(signal.SIGTERM)
                time.sleep(0.02)
            output, _ = launcher.communicate(timeout=DEADLINE_S)
        self.assertEqual(launcher.returncode, 143)
        self.assertEqual(sorted(output.splitlines()), ["[worker 0] saved", "[worker 1] saved"])

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
        actual = [(self.folder / f"saved-{index}").exists() for index in (0, 1)]
        self.assertEqual(actual, [True, True])

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

    @unittest.skipUnless(sys.platform == "linux", "needs PR_SET_PDEATHSIG")
    def test_workers_die_with_a_killed_launcher(self):
        with self.started(STUCK) as launcher:
            launcher.kill()
            launcher.communicate(timeout=DEADLINE_S)
        self.assertTrue(all(ends(pid) for pid in self.pids))

    def started(self, source: str, *prefix: str) -> subprocess.Popen:
        """Start a launcher; return it when its workers have run this source and sleep."""
        command = [*prefix, *self.command(source + "\nprint('pid', os.getpid())\ntime.sleep(600)")]
        # These tests may run under nohup.
        heed_hangup = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        launcher = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed_hangup,
        )
        self.pids = []
        while len(self.pids) < 2:
            words = launcher.stdout.readline().split()
            self.pids += [int(words[3])] if words[2:3] == ["pid"] else []
        return launcher

    @unittest.skipUnless(hasattr(os, "sched_setaffinity"), "cannot pin")
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
        self.assertIn("sees 1 GPUs", done.stderr)


class OutputReaderTest(unittest.TestCase):
    def test_a_child_that_prints_without_end_does_not_keep_its_reader(self):
        """Otherwise no one would see that another child has ended, or that its time is up."""
        with open(os.devnull, "wb") as log, OutputReader() as output:
            child = ChildProcess(["yes"], log, "endless", {})
            self.addCleanup(child.kill)
            output.add(child)
            for _ in range(2):
                lines = sum(1 for _ in islice(output.lines(DEADLINE_S), READ_BYTES * MAX_READS))
                self.assertTrue(0 < lines <= READ_BYTES * MAX_READS / len("y\n"), lines)

    def test_a_line_that_is_written_again_and_again_takes_no_memory(self):
        program = (
            "import sys\nfor n in range(99_999): sys.stdout.write(f'\\r{n} %')\nprint('\\rdone',"
            " end='\\r\\n')"
        )
        with open(os.devnull, "wb") as log, OutputReader() as output:
            child = ChildProcess([sys.executable, "-c", program], log, "bar", {})
            self.addCleanup(child.kill)
            output.add(child)
            lines = []
            while not lines:
                lines += [line for _, line in output.lines(DEADLINE_S)]
                self.assertLessEqual(len(child._partial), READ_BYTES + 1)
        self.assertEqual(lines[0], "done")

    def test_letters_that_stdout_lacks_are_escaped(self):
        environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
        code = (
            "from myxtts.commands.console import report_errors; report_errors(lambda:"
            " print('caf\\xe9'))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=LAUNCHER.parents[1], env=environ, capture_output=True
        )
        self.assertEqual((done.stdout, done.stderr), (b"caf\\xe9\n", b""))


class MistakeTest(unittest.TestCase):
    def test_mistakes_are_explained(self):
        mistakes = {
            "no program was given": ["--workers", "2"],
            "there is no such file": ["--workers", "2", "--", "nowhere.py"],
            "there is no such module": ["--workers", "2", "--", "-m", "nowhere"],
            "--workers is '0', but must be a whole number from 1 to 1000.": [
                "--workers",
                "0",
                "--",
                str(LAUNCHER),
            ],
            "not allowed with": ["--workers", "2", "--nodes", "a:1", "--", str(LAUNCHER)],
            "--node-rank is missing": ["--nodes", "a:1,b:2", "--", str(LAUNCHER)],
            "--node-rank is 2": ["--nodes", "a:1,b:2", "--node-rank", "2", "--", str(LAUNCHER)],
            "without --nodes": ["--node-rank", "0", "--", str(LAUNCHER)],
            "'a:1' 2 times": ["--nodes", "a:1,a:1", "--node-rank", "0", "--", str(LAUNCHER)],
            f"the folder {LAUNCHER} cannot be made: File exists. Choose another --logs.": [
                *("--logs", str(LAUNCHER), "--", str(LAUNCHER))
            ],
            f"the folder {LAUNCHER}/logs cannot be made: Not a directory. Choose another --logs.": [
                *("--logs", f"{LAUNCHER}/logs", "--", str(LAUNCHER))
            ],
        }
        for message, flags in mistakes.items():
            with self.subTest(message=message):
                err = io.StringIO()
                with contextlib.redirect_stderr(err):
                    self.assertEqual(report_errors(lambda flags=flags: launch.main(flags)), 2)
                self.assertIn(message, err.getvalue())
                self.assertNotIn("Traceback", err.getvalue())


NOTICES = "time.sleep(0.5)\nprint('error: worker 1 is gone', file=sys.stderr)\nsys.exit(2)"
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


if __name__ == "__main__":
    unittest.main()
