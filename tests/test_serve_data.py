"""A server of a data service ends at its signal, whatever TensorFlow does at that time."""

import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from tests.fixtures import DEADLINE_S

ROOT = Path(__file__).parents[1]
# TensorFlow starts and stops a server with Python's global lock held; PyDLL holds it during a call,
# too.
HOLDS_LOCK = f"""
import ctypes, sys
sys.path.insert(0, {str(ROOT)!r})
from myxtts.commands import serve_data

def hold_lock(options):
    print("holds the lock", flush=True)
    ctypes.PyDLL(None).sleep(600)

serve_data.start_server = hold_lock
sys.exit(serve_data.main(["dispatcher"]))
"""


class ServeDataTest(unittest.TestCase):
    def test_a_mistake_is_one_message_with_exit_code_2(self):
        command = [sys.executable, "-m", "myxtts", "serve-data", "dispatcher"]
        closed = {"preexec_fn": lambda: os.close(1)}
        for flags, words in (
            (["--host", "no host"], "--host is 'no host', but must be "),
            (["--dispatcher", "a:1"], "--dispatcher HOST:PORT is for a worker"),
        ):
            program = subprocess.run(
                command + flags, cwd=ROOT, stderr=subprocess.PIPE, text=True, **closed
            )
            self.assertEqual(program.returncode, 2, program.stderr)
            self.assertRegex(program.stderr, rf"\Aerror: {words}.*\n\Z")

    def test_sigint_and_sigterm_end_a_server_that_holds_the_lock(self):
        command = [sys.executable, "-c", HOLDS_LOCK]
        # As by `command &`
        background = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        for number in (signal.SIGINT, signal.SIGTERM):
            with (
                self.subTest(number),
                subprocess.Popen(command, stdout=subprocess.PIPE, **background) as program,
            ):
                self.addCleanup(program.kill)
                program.stdout.readline()
                program.send_signal(number)
                self.assertEqual(program.wait(DEADLINE_S), -number)
