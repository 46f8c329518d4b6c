"""The diagnosis of a lost worker."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import tensorflow as tf

from myxtts.base.errors import DataError, PeerLost, TrainingError
from myxtts.base.processes import exit_at_sigterm
from myxtts.distributed.cluster import Cluster
from myxtts.placement.worker_group import (
    END_TIMEOUT_S,
    _in_one_line,
    diagnose_lost_worker,
    worker_group,
)
from tests.fixtures import entered

ROOT = Path(__file__).parents[1]
THREE = Cluster(("a:1", "b:2", "c:3"), 2)
BROKEN = (
    "Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error"
    " information from remote target /job:worker/replica:0/task:{} while calling"
    " /tensorflow.WorkerService/RecvBuf:\n:UNKNOWN:Error received from peer  {{grpc_status:14,"
    ' grpc_message:"recvmsg:Connection reset by peer"}}\nThe error could be from a previous'
    " operation. Restart your program to reset.\n"
)
SILENT = (
    "Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are"
    " unhealthy (stopped sending"
    " heartbeats):\n/job:worker/replica:0/task:0\n/job:worker/replica:0/task:1\nThe tasks have"
    " crashed. Check"
)
LATE = (
    "Barrier timed out. Id: {}::0. This usually happens because a task triggered the barrier too"
    " early or too slowly. Please look at the task logs (both timed out and first task) to debug"
    " further.\n# of tasks that reached the barrier: 1/2.\nThe first task at the barrier:"
    " /job:worker/replica:0/task:2. Some timed out task"
    " names:\n/job:worker/replica:0/task:1\n\n\nRPC: /tensorflow.CoordinationService/Barrier"
)
ENDING = (
    "Barrier failed because: task is set to ERROR: UNAVAILABLE: Task /job:worker/replica:0/task:1"
    " heartbeat timeout. This indicates that the remote task has failed. Barrier Id: end::0, Task:"
    " /job:worker/replica:0/task:1\n\nRPC: /tensorflow.CoordinationService/Barrier"
)
IS_GONE = r"^worker 1 \(b:2\) is gone: its connection"
DIES = """
import os, signal, socket, sys, time
sys.path.insert(0, {root!r})
from myxtts.base.console import report_errors
from myxtts.distributed.cluster import find_cluster, listening_sockets, split_address

def main():
    from myxtts.placement.worker_group import tf, worker_group
    cluster = find_cluster(os.environ)
    tf.config.set_visible_devices([], "GPU")
    with worker_group(cluster, gpus=0) as strategy:
        for listening in listening_sockets(split_address(cluster.address)[1]):
            device = listening.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
            print("listens on", device[:2].decode())

        @tf.function
        def add():
            return strategy.run(share)

        def share():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", tf.fill([1000], cluster.index + 1.0))

        for count in range(1000):
            print("sum", float(add()[0]))
            if cluster.index == 1 and count == 3:
                # The other worker is in the next sum and notices without the heartbeat.
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGTERM)  # TensorFlow's own handler would ignore it

code = report_errors(main)
print("ends with", code)
sys.exit(code)
"""


def aborted(reason: str) -> tf.errors.OpError:
    return tf.errors.AbortedError(None, None, f"Collective ops is aborted by: {reason}")


class DiagnosisTest(unittest.TestCase):
    """Messages as TensorFlow 2.21 writes them."""

    def lost(self, text: str, kind=tf.errors.UnavailableError) -> str | None:
        return diagnose_lost_worker(kind(None, None, text), THREE)

    def setUp(self):
        self.report = mock.patch("myxtts.base.tf_internals.report_error_to_cluster")

    def group(self):
        """Enter the group of THREE without the other workers."""
        names = ("rendezvous", "worker_strategy", "_restrict_to_machine")
        patched = dict.fromkeys(names, mock.DEFAULT) | {"rendezvous": lambda *_: THREE}
        entered(self.addCleanup, mock.patch.multiple("myxtts.placement.worker_group", **patched))
        return worker_group(THREE, 0)

    def test_lost_worker_is_named_with_what_shows_its_loss(self):
        reason = "worker 1 (b:2) gave up: no such file"
        silent_chief = r"^worker 0 \(a:1\) sent no heartbeat"
        late = LATE.format("[Init]Wait_for_all_tasks_to_register")
        for text, expected in (
            # The first one is the cause.
            (BROKEN.format(1) + BROKEN.format(0), IS_GONE),
            (SILENT, r"^worker 0 \(a:1\) and worker 1 \(b:2\) sent no heartbeat within"),
            (ENDING, r"^worker 1 \(b:2\) sent no heartbeat"),
            ("Deadline\n\nRPC: /tensorflow.CoordinationService/Heartbeat", silent_chief),
            ("Failed to send RPC to coordination service. Either", silent_chief),
            (LATE.format("end"), rf"^worker 1 \(b:2\) did not finish within {END_TIMEOUT_S} s"),
            (late + BROKEN.format(0), r"^worker 1 \(b:2\) did not start within --register-timeout"),
            # Another worker forwards it.
            (f"is aborted by: <<{reason}>>\nThe{BROKEN.format(0)}", f"^{re.escape(reason)}$"),
        ):
            with self.subTest(expected):
                self.assertRegex(self.lost(text), expected)
        self.assertIsNone(self.lost("Graph execution error:\n\nassertion failed: [bad batch]"))
        # Validation and samples of the last step are a part of the end.
        self.assertGreater(END_TIMEOUT_S, 12 * 3600)

    def test_connection_that_breaks_with_another_status_is_named(self):
        # Of a garbled stream.
        for kind in (tf.errors.UnknownError, tf.errors.ResourceExhaustedError):
            text = "Collective ops is aborted by: Stream removed\n" + BROKEN.format(1)
            self.assertRegex(self.lost(text, kind), IS_GONE)
            group = self.group()
            with self.report, self.assertRaises(PeerLost), group:
                raise kind(None, None, text)

    def test_a_stop_while_waiting_for_the_others_at_the_end_loses_no_worker(self):
        waited = []

        def wait(*_):
            os.kill(os.getpid(), signal.SIGTERM)
            waited.append(time.sleep(0.01))

        with (
            mock.patch("myxtts.base.tf_internals.wait_at_barrier", wait),
            exit_at_sigterm(),
            self.group(),
        ):
            pass
        self.assertEqual(len(waited), 1)

    def test_connection_that_breaks_with_a_garbled_message_is_named(self):
        def garbled(text: str) -> UnicodeDecodeError:
            return UnicodeDecodeError("utf-8", b"\xfe" + text.encode(), 0, 1, "invalid start byte")

        self.assertRegex(diagnose_lost_worker(garbled(BROKEN.format(1)), THREE), IS_GONE)
        self.assertIsNone(diagnose_lost_worker(garbled(""), THREE))
        self.assertIsNone(diagnose_lost_worker(ValueError(BROKEN.format(1)), THREE))

    def test_a_worker_that_gives_up_reports_its_reason_or_that_of_the_worker_it_lost(self):
        mistake = "<<worker 1 (b:2) gave up: no such file>>"
        defect = "<<worker 1 (b:2) failed: ValueError: 17>>"
        for text, error, kind in (
            ("<<worker 2 (c:3) gave up: no such file>>", DataError("no such file"), DataError),
            ("<<worker 2 (c:3) failed: ValueError: 17>>", ValueError("17"), ValueError),
            ("<<worker 2 (c:3) failed: late>>", PeerLost("late"), PeerLost),
            (mistake, aborted(mistake), TrainingError),
            (defect, aborted(defect), PeerLost),
        ):
            group = self.group()
            with self.report as reported, self.assertRaises(kind), group:
                raise error
            reported.assert_called_once_with(text)

    def test_error_is_shortened_to_one_line(self):
        self.assertEqual(_in_one_line(DataError("a\n  b")), "a b")
        self.assertEqual(_in_one_line(ValueError("17")), "ValueError: 17")
        self.assertEqual(_in_one_line(KeyboardInterrupt()), "KeyboardInterrupt")
        text = (
            'Graph execution error:\n\n  File "x.py"\n\nassertion failed: [bad batch]\n\t [[{{node'
            " Assert}}]]"
        )
        short = _in_one_line(tf.errors.InvalidArgumentError(None, None, text))
        self.assertEqual(short, "InvalidArgumentError: assertion failed: [bad batch]")


class KilledWorkerTest(unittest.TestCase):
    def test_surviving_worker_ends_and_names_the_killed_one(self):
        with tempfile.TemporaryDirectory() as name:
            program = Path(name) / "dies.py"
            program.write_text(DIES.format(root=str(ROOT)))
            launcher = [sys.executable, "-m", "myxtts", "launch", "--logs", name]
            done = subprocess.run(
                [*launcher, "--", program], capture_output=True, text=True, timeout=600.0
            )
        for worker in (0, 1):
            self.assertIn(f"[worker {worker}] listens on lo\n", done.stdout)
        self.assertIn("[worker 0] sum 3.0", done.stdout)
        self.assertRegex(done.stdout, r"\[worker 0\] error: worker 1 \(127\.0\.0\.1:\d+\) is gone")
        self.assertIn("[worker 0] ends with 138", done.stdout)
        self.assertRegex(done.stderr, r"error: worker 1 \S+ was killed by SIGTERM")
        self.assertEqual(done.returncode, 128 + signal.SIGTERM)
