"""The tf.data service returns the same batches in order, each once, even if servers fail."""

import itertools
import logging
import signal
import socket
import subprocess
import sys
import threading
import unittest
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from unittest import mock

from tests.two_devices import DATA

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.batch import ASR_INPUTS, TTS_INPUTS, check_batch
from myxtts.config.schema import DataConfig
from myxtts.data import service
from myxtts.data.batch_plan import Pass, Position, planned_batches
from myxtts.data.reading import LocalReader, rows_from_files
from myxtts.data.service import ServiceReader, _Job, dispatcher, worker
from myxtts.distributed.cluster import host_and_port, is_loopback, listening_sockets
from myxtts.errors import ConfigError, DataError
from tests.fixtures import entered, temporary_folder
from tests.long import long
from tests.sine_corpus import planned_corpus, write_corpus

PROGRAM = Path(__file__).parents[1] / "utilities" / "data_service.py"
REFERENCE_SAMPLES = 6_400
BEGINNING = Position()
service_address = partial(host_and_port, name="data_service", scheme="grpc://")


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-u", PROGRAM, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def port_said_by(program: subprocess.Popen) -> int:
    for line in program.stdout:
        if "listens on port" in line:
            return int(line.split()[-1])
    raise AssertionError("the program ended without listening")


class Corpus:
    """Utterances of 0.3 to 0.5 s with a plan of batches of 4 and 3."""

    def __init__(self, folder: Path):
        self.manifest = write_corpus(folder, [0.3 + 0.01 * i for i in range(22)])
        self.plan = planned_corpus(self.manifest, DataConfig(batch_seconds=1.7, buckets=2)).plan

    def planned(self, epochs: int, start=BEGINNING):
        numbers = {"seed": 3, "reference_samples": REFERENCE_SAMPLES}
        return planned_batches(self.plan, self.manifest, Pass(start, epochs), **numbers)

    def read_here(self, epochs: int, fields=TTS_INPUTS, start=BEGINNING):
        rows = rows_from_files(self.manifest, native_loading=True)
        reader = LocalReader(self.manifest, fields, REFERENCE_SAMPLES, DataConfig(), rows)
        return reader.read(self.planned(epochs, start), DATA)

    def service(self, address: str, fields=TTS_INPUTS, **times_s) -> ServiceReader:
        data = DataConfig(num_workers=2, buffer_size=2, prefetch_buffer_size=1)
        return ServiceReader(address, self.manifest, fields, REFERENCE_SAMPLES, data, **times_s)

    def read_by_service(self, address, epochs: int, fields=TTS_INPUTS, start=BEGINNING, **times_s):
        reader = self.service(address, fields, **times_s)
        return reader.read(self.planned(epochs, start), DATA)


class ServiceCase(unittest.TestCase):
    """Jobs have 8 batches, so that 4 epochs are several jobs and no job ends with an epoch."""

    @classmethod
    def setUpClass(cls):
        cls.corpus = Corpus(temporary_folder(cls.addClassCleanup, "with space "))

    def setUp(self):
        sizes = mock.patch.multiple(service, JOB_BATCHES=8, TRIAL_BATCHES=2)
        entered(self.addCleanup, sizes)
        # Modules that ran before in this process may keep what hands their batches over.
        self.before = set(threading.enumerate())
        self.addCleanup(self.assert_no_thread)

    def assert_no_thread(self):
        new = set(threading.enumerate()) - self.before
        ours = [thread for thread in new if thread.name.startswith("myxtts")]
        for thread in ours:
            thread.join(120.0)
        self.assertFalse([thread.name for thread in ours if thread.is_alive()])

    @staticmethod
    def servers(add_cleanup, workers: int = 2) -> tuple[ExitStack, str]:
        servers = ExitStack()
        add_cleanup(servers.close)
        port = servers.enter_context(dispatcher("127.0.0.1", 0))
        for _ in range(workers):
            servers.enter_context(worker("127.0.0.1", port, "127.0.0.1", 0))
        return servers, f"grpc://127.0.0.1:{port}"

    def assert_same(self, received, expected, fields=TTS_INPUTS):
        received, expected = list(received), list(expected)
        self.assertEqual(len(received), len(expected))
        for (planned, batch), (plan, expected_batch) in zip(received, expected, strict=True):
            self.assertEqual(planned.step.position, plan.step.position)
            np.testing.assert_array_equal(planned.rows, plan.rows)
            check_batch(batch, fields, "reading")
            for name in fields:
                value, expected_value = batch[name], expected_batch[name]
                self.assertEqual(value.device, expected_value.device)
                np.testing.assert_array_equal(value, expected_value, name, strict=True)


class OrderTest(ServiceCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.address = cls.servers(cls.addClassCleanup)[1]

    def test_batches_equal_locally_read_batches_in_order(self):
        for fields in (TTS_INPUTS, ASR_INPUTS):
            with self.subTest(len(fields)), self.assertNoLogs("myxtts", "WARNING"):
                received = self.corpus.read_by_service(self.address, 4, fields, stall_s=60.0)
                self.assert_same(received, self.corpus.read_here(4, fields), fields)

    def test_reading_can_start_at_any_position(self):
        start = Position(1, 4)
        with self.assertNoLogs("myxtts", "WARNING"):
            received = self.corpus.read_by_service(self.address, 3, start=start, stall_s=60.0)
            self.assert_same(received, self.corpus.read_here(3, start=start))

    def test_no_python_runs_on_a_worker(self):
        dataset = self.corpus.service(self.address).job_dataset(list(self.corpus.planned(1)), 0)
        graph = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
        nodes = itertools.chain(graph.node, *(f.node_def for f in graph.library.function))
        types = {node.op for node in nodes}
        self.assertIn("DecodeWav", types)
        self.assertFalse([name for name in types if "PyFunc" in name])

    def test_closing_in_the_middle_leaves_no_thread(self):
        for taken in (0, 1, 4):
            with closing(self.corpus.read_by_service(self.address, 4, stall_s=60.0)) as batches:
                self.assertEqual(len(list(islice(batches, taken))), taken)
            self.assert_no_thread()

    def test_error_counts_files_that_tensorflow_cannot_decode_and_names_the_first(self):
        manifest = self.corpus.manifest
        self.addCleanup(setattr, self.corpus, "manifest", manifest)
        self.corpus.manifest = replace(manifest, native=np.arange(22) < 19)
        message = "but 3 of 22 utterances are in other ones, the first in .*/u19.wav"
        with self.assertRaisesRegex(DataError, message):
            self.corpus.service(self.address)

    def test_a_missing_utterance_is_named_at_its_batch(self):
        planned = list(self.corpus.planned(4))
        row = planned[9].rows[0]
        path = Path(self.corpus.manifest.paths[row])
        users = [row in (*plan.rows, *plan.arrays["reference_row"]) for plan in planned]
        self.addCleanup(path.with_suffix(".away").rename, path)
        path.rename(path.with_suffix(".away"))
        taken = []
        message = f"utterance '.*' .*{path.name} cannot be read: No such file"
        with self.assertRaisesRegex(DataError, message):
            taken.extend(self.corpus.read_by_service(self.address, 4, stall_s=60.0))
        self.assertEqual(len(taken), users.index(True))

    def test_error_names_a_file_that_workers_cannot_find(self):
        select = service._select_rows

        def elsewhere(manifest, rows):
            return replace(select(manifest, rows), paths=("/nowhere/u.wav",) * len(rows))

        named = self.assertRaisesRegex(DataError, "/nowhere/u.wav; No such file.* the same path")
        with mock.patch.object(service, "_select_rows", elsewhere), named:
            list(self.corpus.read_by_service(self.address, 1, stall_s=60.0))


class LossTest(ServiceCase):
    """A request to a lost server ends when a new one takes its address, so each test has one."""

    def test_without_workers_this_machine_reads_the_batches_with_a_warning(self):
        servers, address = self.servers(self.addCleanup, workers=0)
        with (
            closing(self.corpus.read_by_service(address, 8, stall_s=0.2)) as batches,
            self.assertLogs("myxtts.data", "WARNING") as logs,
        ):
            with worker(*service_address(address), "127.0.0.1", 0) as port:
                received = list(islice(batches, 10))
            received += batches
        self.assert_same(received, self.corpus.read_here(8))
        self.assertRegex("\n".join(logs.output), r"this machine read [1-8] of [2-8] batches")
        # Only a worker at the same address ends the requests to the lost worker.
        servers.enter_context(worker(*service_address(address), "127.0.0.1", port))
        self.assert_no_thread()

    def test_a_restarted_dispatcher_is_used_again(self):
        servers, address = self.servers(self.addCleanup)
        port = service_address(address)[1]
        reader = self.corpus.service(address, stall_s=0.2)
        with (
            closing(reader.read(self.corpus.planned(9), DATA)) as batches,
            self.assertLogs("myxtts.data", "WARNING"),
            mock.patch.object(reader, "note", wraps=reader.note) as noted,
        ):
            received = list(islice(batches, 10))
            servers.close()
            received += islice(batches, 20)
            with dispatcher("127.0.0.1", port), worker("127.0.0.1", port, "127.0.0.1", 0):
                if reader.unanswered is not None:
                    reader.unanswered._thread.join(60.0)
                reader.stall_s, before = 60.0, noted.call_count
                received += batches
                late = [call.args[0] for call in noted.call_args_list[before:]]
                self.assertTrue(any(job.arrived == len(job.batches) for job in late))
                self.assert_no_thread()
        self.assert_same(received, self.corpus.read_here(9))

    def test_error_is_immediate_if_nothing_listens_at_the_address(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, but not listening
            address = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
            message = "gives no batches: Connection refused. Start `myxtts"
            with self.assertRaisesRegex(DataError, message):
                list(self.corpus.read_by_service(address, 1))

    def test_a_dispatcher_without_workers_is_an_error_after_the_timeout(self):
        servers, address = self.servers(self.addCleanup, workers=0)
        with self.assertRaisesRegex(DataError, "did not arrive within 0.3 s. Start .* workers"):
            list(self.corpus.read_by_service(address, 1, start_s=0.3))
        servers.enter_context(worker(*service_address(address), "127.0.0.1", 0))
        self.assert_no_thread()


class JobTest(unittest.TestCase):
    """One job whose batches arrive in a given order."""

    def job(self, places, depth=2, window=4, batches=8) -> _Job:
        self.requested = []

        def come(number):
            for place in places:
                self.requested.append(place)
                if callable(place):
                    place()
                else:
                    further, place = place if isinstance(place, tuple) else (0, place)
                    yield {"job": number + further, "place": place, "pcm": place}

        job = _Job([None] * batches, come, depth, window)
        self.addCleanup(job.close, 60.0)
        return job

    def taken(self, job, patience_s=60.0) -> list[int | None]:
        return [(job.take(place, patience_s) or {}).get("pcm") for place in range(len(job.batches))]

    def test_batches_come_in_order_but_for_those_that_are_missing_or_too_late(self):
        for places, expected in (
            ([1, 0, 3, 2, 5, 7, 6, 4], list(range(8))),
            # Later than a window of others; then it is dropped.
            ([1, 2, 3, 4, 0, 5, 6, 7], [None, 1, 2, 3, 4, 5, 6, 7]),
            ([0, 2, 3, 4, 6, 7], [0, None, 2, 3, 4, None, 6, 7]),
        ):
            self.assertEqual(self.taken(self.job(places)), expected)

    def test_late_batches_are_given_up_after_a_single_wait(self):
        requested, held = threading.Event(), threading.Event()
        job = self.job([0, 1, lambda: (requested.set(), held.wait())], depth=3)
        self.addCleanup(held.set)
        self.assertTrue(requested.wait(60.0))  # two batches are ready
        self.assertEqual(self.taken(job, patience_s=0.05), [0, 1] + [None] * 6)
        self.assertFalse(job.answered_within(0.0))

    def test_requests_run_ahead_no_further_than_the_depth(self):
        job = self.job(range(8))
        self.assertEqual(job.take(0, 60.0)["pcm"], 0)
        job._thread.join(0.1)
        # One taken, two ready, and one requested before.
        self.assertLessEqual(len(self.requested), 4)
        self.assertEqual([job.take(place, 60.0)["pcm"] for place in range(1, 8)], list(range(1, 8)))

    def test_an_error_ends_the_job_after_the_batches_before_it(self):
        def fail():
            raise tf.errors.NotFoundError(None, None, "gone")

        job = self.job([1, 0, fail])
        self.assertEqual(self.taken(job), [0, 1] + [None] * 6)
        self.assertIsInstance(job.error, tf.errors.NotFoundError)

    def test_batches_of_another_job_are_rejected(self):
        """A restarted dispatcher may send them to a client that waits for batches of the old."""
        job = self.job([0, (1, 1), 2])  # the second belongs to the next job
        self.assertEqual(self.taken(job), [0] + [None] * 7)
        self.assertIn("restarted", str(job.error))

    def test_a_job_ends_after_its_last_batch_without_another_request(self):
        job = self.job([*range(8), self.fail])
        self.taken(job)
        self.assertTrue(job.answered_within(60.0))
        self.assertIsNone(job.error)


def interfaces(port: int) -> set[bytes]:
    """Return the interfaces that this process listens on; an empty name means all interfaces."""
    option = socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16
    return {listening.getsockopt(*option).rstrip(b"\0") for listening in listening_sockets(port)}


class ServerTest(unittest.TestCase):
    def test_a_port_in_use_is_rejected(self):
        with dispatcher("127.0.0.1", 0) as port:
            for server in (dispatcher, partial(worker, "127.0.0.1", port)):
                message = f"--port {port} .*Address already in use"
                with self.assertRaisesRegex(ConfigError, message), server("127.0.0.1", port):
                    pass

    def test_a_server_on_a_loopback_address_listens_on_the_loopback_interface_only(self):
        with dispatcher("127.0.0.1", 0) as port:
            self.assertEqual(interfaces(port), {b"lo"})
            socket.create_connection(("127.0.0.1", port), 60.0).close()

    def test_a_server_for_other_machines_warns(self):
        with self.assertLogs("myxtts.data", "WARNING") as logs, dispatcher("0.0.0.0", 0) as port:
            self.assertEqual(interfaces(port), {b""})
        self.assertIn("without a password", logs.output[0])

    def test_an_unreachable_worker_address_is_rejected(self):
        places = ("node1", "127.0.0.1"), ("10.0.0.1", "localhost"), ("10.0.0.1", "0.0.0.0")
        for at, host in places:
            with self.assertRaisesRegex(ConfigError, "--host"):
                worker(at, 5050, host, 0)

    def test_loopback_addresses_are_recognised(self):
        self.assertTrue(all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "127.1", "localhost"))))
        others = "0.0.0.0", "10.0.0.1", "10.1", "node1", "127.0.0.1.example.org", "127.0.0.1 node1"
        self.assertFalse(any(map(is_loopback, (*others, ""))))


class ProgramTest(ServiceCase):
    @long
    def test_killing_a_worker_loses_no_batch_and_signals_end_the_other_servers(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        names = ["dispatcher", "--port", address[10:]], *[["worker", "--dispatcher", address]] * 2
        dealer, reader, victim = programs = [start(*arguments) for arguments in names]
        for program in programs:
            self.addCleanup(program.stdout.close)
            self.addCleanup(program.wait)
            self.addCleanup(program.kill)
        ports = [port_said_by(program) for program in programs]
        self.assertEqual(ports[0], int(address[10:]))
        self.assertIn(f"--data-service grpc://{address}", dealer.stdout.readline())

        logging.getLogger("myxtts.data").addHandler(quiet := logging.NullHandler())
        self.addCleanup(logging.getLogger("myxtts.data").removeHandler, quiet)
        reading = self.corpus.read_by_service(f"grpc://{address}", 8, stall_s=2.0)
        with closing(reading) as batches:
            received = list(islice(batches, 16))
            victim.kill()
            received += batches
        self.assert_same(received, self.corpus.read_here(8))

        victim.wait()
        # Ends the requests to the killed worker.
        with worker(*service_address(f"grpc://{address}"), "127.0.0.1", ports[2]):
            self.assert_no_thread()
        for program, number in ((reader, signal.SIGINT), (dealer, signal.SIGTERM)):
            program.send_signal(number)
            self.assertEqual(program.wait(120.0), -number)

    def test_command_line_errors_are_reported_without_importing_tensorflow(self):
        for arguments, message in (
            (("worker", "--dispatcher", "node1"), "--dispatcher is 'node1', but must be HOST:PORT"),
            (("dispatcher", "--host", "a b"), "--host is 'a b', but must be a host name"),
        ):
            command = [sys.executable, PROGRAM, *arguments]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
            actual = (ended.returncode, ended.stderr.startswith(f"error: {message}"))
            self.assertEqual(actual, (2, True), ended.stderr)


class AddressTest(unittest.TestCase):
    def test_an_address_is_a_host_and_a_port(self):
        for host in ("node-1.example.org", "10.0.0.1", "node_1.a-b.lan.", "[::1]"):
            self.assertEqual(service_address(f"grpc://{host}:5050"), (host, 5050))

    def test_any_other_address_is_rejected(self):
        for text in (
            *("", "grpc://", "node1:5050", "http://node1:5050", "grpc://node1", "grpc://:5050"),
            *("grpc://node1:", "grpc://node1:0", "grpc://node1:65536", "grpc://node1:5050/"),
            *("grpc://a b:1", "grpc://node1:5050\n"),
            *("grpc://node1..lan:5050", f"grpc://{'a' * 64}:5050", "grpc://.node1:5050"),
            *("grpc://node1:٥٠٥٠", "grpc://::1:5050", "grpc://grpc://node1:1"),
        ):
            message = "data_service is .* must be grpc://HOST:PORT"
            with self.subTest(text), self.assertRaisesRegex(ConfigError, message):
                service_address(text)
