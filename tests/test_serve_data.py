"""A server of a data service ends at its signal, whatever TensorFlow does at that time."""

import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from tests.fixtures import DEADLINE_S, ends

ROOT = Path(__file__).parents[1]
# TensorFlow starts and stops a server with Python's global lock held; PyDLL holds it during a call,
# too.
HOLDS_LOCK = f"""
import ctypes, os, sys
sys.path.insert(0, {str(ROOT)!r})
from myxtts.commands import serve_data

def hold_lock(options):
    print(os.getpid(), flush=True)
    ctypes.PyDLL(None).sleep(600)

serve_data.start_server = hold_lock
sys.exit(serve_data.main(["dispatcher"]))
"""


class ClosedStdoutTest(unittest.TestCase):
    def test_a_mistake_is_one_message_with_exit_code_2(self):
        command = [sys.executable, "-m", "myxtts", "serve-data", "dispatcher", "--host", "no host"]
        closed = {"preexec_fn": lambda: os.close(1)}
        program = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **closed)
        self.assertEqual(program.returncode, 2, program.stderr)
        self.assertRegex(program.stderr, r"\Aerror: --host is 'no host', but must be .*\n\Z")


class SignalTest(unittest.TestCase):
    def started(self) -> tuple[subprocess.Popen, int]:
        """Start a program that holds the lock; return it and the PID of the holder."""
        command = [sys.executable, "-c", HOLDS_LOCK]
        # As by `command &`
        background = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **background)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        return program, int(program.stdout.readline())

    def test_sigint_and_sigterm_end_a_server_that_holds_the_lock(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                program, holder = self.started()
                program.send_signal(number)
                self.assertEqual(program.wait(DEADLINE_S), code)
                self.assertTrue(ends(holder))

    @unittest.skipUnless(sys.platform == "linux", "needs PR_SET_PDEATHSIG")
    def test_server_dies_with_a_killed_program(self):
        program, holder = self.started()
        program.kill()
        self.assertTrue(ends(holder))


if __name__ == "__main__":
    unittest.main()
