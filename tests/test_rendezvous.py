"""The rendezvous of the workers of a job, and what else may connect to its port."""

import json
import re
import socket
import time
import unittest
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from unittest import mock

from myxtts.base.errors import PeerLost
from myxtts.devicefeed.errors import PlacementError, UserError
from myxtts.distributed import rendezvous as rendezvous_module
from myxtts.distributed.cluster import Cluster, split_address
from myxtts.distributed.launcher import local_workers
from myxtts.distributed.rendezvous import rendezvous

DEADLINE_S = 120.0  # of what takes milliseconds
TIMEOUT_S = 600.0
ENCODE = rendezvous_module._encode


class RendezvousTest(unittest.TestCase):
    def join(
        self, settings, workers=None, present=None, timeout_s=TIMEOUT_S, gpus=()
    ) -> dict[int, str]:
        """Return the error message of each present worker, or an empty string."""
        workers = workers or local_workers(len(settings))
        self.clusters, self.errors = {}, {}

        def attend(index: int) -> str:
            try:
                own = gpus[index] if gpus else ()
                joined = rendezvous(Cluster(workers, index), settings[index], timeout_s, own)
            except UserError as error:
                self.errors[index] = error
                return str(error)
            self.clusters[index] = joined
            return ""

        present = range(len(workers)) if present is None else present
        with ThreadPoolExecutor(len(present)) as pool:
            return dict(zip(present, pool.map(attend, present), strict=True))

    def test_all_workers_are_released_and_so_are_their_ports(self):
        workers = local_workers(3)
        for _ in range(2):
            self.assertEqual(self.join([{"GPUs": "0"}] * 3, workers), {0: "", 1: "", 2: ""})
            self.assertEqual(self.clusters, {i: Cluster(workers, i) for i in range(3)})

    def test_the_address_of_the_chief_alone_is_enough(self):
        chief = local_workers(1)[0]
        self.assertEqual(set(self.join([{}] * 3, (chief, "", "")).values()), {""})
        workers = self.clusters[0].workers
        self.assertEqual(workers[0], chief)
        self.assertEqual({split_address(worker)[0] for worker in workers}, {"127.0.0.1"})
        self.assertEqual(len(set(workers)), 3)
        self.assertEqual(self.clusters, {i: Cluster(workers, i) for i in range(3)})

    def test_workers_meet_at_addresses_of_ipv6(self):
        if not socket.has_dualstack_ipv6():
            self.skipTest("this machine has no IPv6")
        port = split_address(local_workers(1)[0])[1]
        for workers in ((f"[::1]:{port}", f"[::1]:{port + 1}"), (f"[::1]:{port}", "")):
            self.assertEqual(self.join([{}] * 2, workers), {0: "", 1: ""})
            self.assertEqual(split_address(self.clusters[0].workers[1])[0], "::1")

    def test_many_workers_meet_with_few_messages_and_name_few_of_the_missing(self):
        chief, count = local_workers(1)[0], 40
        sent = []

        def encode(message):
            sent.append(len(line := ENCODE(message)))
            return line

        with mock.patch.object(rendezvous_module, "_encode", encode):
            ends = self.join([{}] * count, (chief, *[""] * (count - 1)))
        self.assertEqual(set(ends.values()), {""})
        # The longest one, which has all addresses, is sent once.
        self.assertEqual(max(sent), sent[-1])
        self.assertLess(sorted(sent)[-2], 300)
        missing = rendezvous_module._Chief(Cluster((chief, *[""] * 99), 0), {})._missing()
        self.assertRegex(missing, "^worker 1 and worker 2 and .* worker 8 and 91 others$")

    def test_missing_worker_is_named_by_all_others(self):
        workers = local_workers(3)

        class AgingWait(rendezvous_module._Wait):
            """Most of a timeout passes when worker 2 alone is missing: once for worker 1."""

            is_chief = has_aged = False

            def check(self, missing):
                self.is_chief |= missing.startswith("worker 1 ")
                if missing == f"worker 2 ({workers[2]})" and (self.is_chief or not self.has_aged):
                    self.has_aged = True
                    self._start_s -= 0.7 * TIMEOUT_S
                super().check(missing)

        changes = {"FIRST_REPORT_S": 360.0, "_Wait": AgingWait}
        with (
            mock.patch.multiple(rendezvous_module, **changes),
            self.assertLogs("myxtts", "INFO") as logs,
        ):
            ends = self.join([{}] * 3, workers, present=(0, 1))
        for index in (0, 1):
            self.assertIn(f"worker 2 ({workers[2]}) did not arrive within 600 s", ends[index])
            self.assertIsInstance(self.errors[index], PeerLost)
        actual = [record.getMessage().split(",")[0] for record in logs.records]
        self.assertEqual(actual, [f"waiting        for worker 2 ({workers[2]})"] * 2)

    def test_missing_chief_is_named(self):
        workers = local_workers(2)
        ends = self.join([{}] * 2, workers, present=(1,), timeout_s=0.5)
        self.assertIn(f"worker 0 ({workers[0]}) did not arrive", ends[1])

    def test_differing_setting_is_reported_by_both(self):
        ends = self.join([{"--batch-size": "8"}, {"--batch-size": "16"}])
        for end in ends.values():
            self.assertRegex(end, r"worker 1 \(.*\) has --batch-size 16, but worker 0 \(.*\) has 8")
        self.assertEqual({type(error) for error in self.errors.values()}, {PlacementError})

    def test_two_workers_with_the_same_gpu_are_named_by_both(self):
        for gpus in ([("a", "b"), ("c", "b")], [("b",), ("b",)]):
            for end in self.join([{}] * 2, gpus=gpus).values():
                self.assertRegex(end, r"worker 1 \(.*\) and worker 0 \(.*\) both use b\. Start ")
                self.assertIn("with --model-gpus 0 1", end)
        ends = self.join([{}] * 3, gpus=[("a",), ("b",), ("b",)])
        self.assertRegex(ends[0], r"worker [12] \(.*\) and worker [12] \(.*\) both use b\. ")
        self.assertEqual(set(self.join([{}] * 3, gpus=[("a",), ("b",), ("c",)]).values()), {""})

    def test_only_local_addresses_are_bound_to_the_loopback_interface(self):
        bounds = {"localhost": "127.0.0.1", "127.1": "127.0.0.1", "127.0.1.1": "127.0.1.1"}
        every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        for host, bound in (bounds | {"127.0.0.1.example.org": every}).items():
            port = local_workers(1)[0].rpartition(":")[2]
            cluster = Cluster((f"{host}:{port}", "node1:2222"), 0)
            with rendezvous_module._bind_port(cluster) as listener:
                self.assertEqual(listener.getsockname()[0], bound, host)

    def test_port_in_use_is_named(self):
        workers = local_workers(2)
        with socket.create_server(split_address(workers[1])):
            ends = self.join([{}] * 2, workers, present=(1,))
        self.assertIn(f"cannot use port {split_address(workers[1])[1]}", ends[1])


class UnknownPeerTest(unittest.TestCase):
    """A chief, worker 1 and whoever else connects to the chief's port."""

    timeout_s = TIMEOUT_S

    def setUp(self):
        self.workers = local_workers(2)
        self.opened = ExitStack()
        self.addCleanup(self.opened.close)
        # Nothing is dropped for being slow.
        changes = {"RETRY_S": 0.1, "LINE_BYTES": 10_000, "SILENCE_S": DEADLINE_S}
        self.opened.enter_context(mock.patch.multiple(rendezvous_module, **changes))
        self.pool = self.opened.enter_context(ThreadPoolExecutor())

    def start(self, index: int) -> Future:
        return self.pool.submit(rendezvous, Cluster(self.workers, index), {}, self.timeout_s)

    def introduction(self) -> dict:
        digest = rendezvous_module._digest(Cluster(self.workers, 1))
        return {"worker": 1, "cluster": digest, "address": self.workers[1], "settings": {}}

    def connect(self) -> socket.socket:
        while True:
            try:
                peer = socket.create_connection(split_address(self.workers[0]), timeout=DEADLINE_S)
            except ConnectionRefusedError:  # the chief does not listen yet
                continue
            return self.opened.enter_context(peer)

    def send(self, line: bytes) -> None:
        """Send something to the chief, and wait until it closes the connection."""
        peer = self.connect()
        peer.sendall(line)
        peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while peer.recv(4096):
                pass

    def assert_dropped(self, visit: Callable[[], None], reason: str) -> None:
        """Assert that the chief drops what visits it, says so once, and goes on."""
        with self.assertLogs("myxtts", "WARNING") as logs:
            chief = self.start(0)
            visit()
            self.assertFalse(chief.done())
            for worker in (self.start(1), chief):
                self.assertEqual(worker.result(DEADLINE_S).workers, self.workers)
        (line,) = [record.getMessage() for record in logs.records]
        dropped = rf"from 127.0.0.1 was dropped \({re.escape(reason)}\): no worker of this job"
        self.assertRegex(line, dropped)

    def test_one_byte_now_and_then_does_not_hold_the_chief(self):
        rendezvous_module.SILENCE_S = 0.3

        def visit():
            peer = self.connect()
            peer.settimeout(0.02)
            with self.assertRaises(ConnectionError):
                while True:
                    peer.send(b" ")
                    with suppress(TimeoutError):
                        if peer.recv(4096) == b"":
                            raise ConnectionError
            rendezvous_module.SILENCE_S = DEADLINE_S  # the worker may be slow

        self.assert_dropped(visit, "too slow")

    def test_garbage_is_dropped(self):
        words = (b"GET / HTTP/1.1", b"", b"[]", b"\xff\xfe", b"[" * 9000, b'{"worker": 1}')
        introduction = self.introduction()
        wrong = [{"worker": worker} for worker in (True, "1", None)]
        wrong += [{"cluster": "\ud800"}, {"settings": []}]
        lines = [*words, *(json.dumps(introduction | change).encode() for change in wrong)]
        for reason, sent in (
            ("malformed", [line + b"\n" for line in lines]),
            ("a line of more than 10,000 bytes", [b"x" * 20_000]),
            ("closed early", [b'{"worker"', b""]),
        ):
            with self.subTest(reason):
                self.assert_dropped(lambda sent=sent: [self.send(line) for line in sent], reason)

    def test_many_connections_at_once_keep_no_worker_out(self):
        peers = []
        self.assert_dropped(lambda: peers.extend(self.connect() for _ in range(40)), "closed early")
        self.assertEqual({peer.recv(1) for peer in peers}, {b""})

    def test_worker_of_another_job_is_sent_away(self):
        def visit():
            other = Cluster((self.workers[0], *local_workers(1)), 1)
            with self.assertRaisesRegex(PlacementError, "the same, in the same order"):
                rendezvous(other, {}, TIMEOUT_S)

        self.assert_dropped(visit, "of another job")

    def test_worker_that_has_left_may_come_again(self):
        self.workers = local_workers(3)
        chief = self.start(0)
        introduction = self.introduction()
        with self.connect() as first:
            first.sendall(json.dumps(introduction).encode() + b"\n")
            self.assertIn("worker 2", json.loads(first.makefile("rb").readline())["waiting"])
        workers = [self.start(index) for index in (1, 2)]
        for worker in (chief, *workers):
            self.assertEqual(worker.result(DEADLINE_S).workers, self.workers)

    def test_slow_chief_does_not_hold_a_worker(self):
        self.timeout_s = 0.5
        with (
            socket.create_server(split_address(self.workers[0])) as listener,
            mock.patch.object(rendezvous_module, "SILENCE_S", 0.3),
            self.assertLogs("myxtts", "WARNING"),
        ):
            worker = self.start(1)
            connection = self.opened.enter_context(listener.accept()[0])
            with suppress(ConnectionError):
                while not worker.done():
                    connection.send(b" ")
                    time.sleep(0.02)
            with self.assertRaisesRegex(PeerLost, "did not arrive within 0.5 s"):
                worker.result(DEADLINE_S)
