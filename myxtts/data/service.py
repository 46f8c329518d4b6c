"""A tf.data service: reads batches on other machines, and the servers that do so.

The plan stays in the process that trains. It asks the service for one section of the plan after
another, each as a job, and the service distributes the batches of a job among its workers. Batches
arrive in any order and are sorted into the order of the plan. The service delivers each batch at
most once, and loses the batches of a worker that dies; the training process reads what does not
arrive. So no batch is missing and none comes twice.

A worker runs any operation that it receives, with the permissions of its user, and nothing is
encrypted. TensorFlow's servers listen on every network interface; this module restricts them to the
loopback interface by default.
"""

import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.batch import Batch, Field
from myxtts.config.schema import DataConfig
from myxtts.data import reading
from myxtts.data.batch_plan import PlannedBatch
from myxtts.data.feed import Feed
from myxtts.data.manifest import Manifest
from myxtts.data.reading import READ_ERRORS, ReadBatches, fixed_options
from myxtts.distributed.cluster import bind_to_loopback, host_and_port, is_loopback
from myxtts.errors import ConfigError, DataError
from myxtts.tf_internals import dispatcher_config, worker_server_port

# Making a job's graph takes 0.14 s, so that shorter jobs cost more for each batch.
JOB_BATCHES = 256
# Enough in the first jobs of a run, which show whether the service works.
TRIAL_BATCHES = 8
# Bounds the memory: when WINDOW * buffer_size batches wait for one, this process reads that one.
WINDOW = 4
CONNECT_S = 5.0
CLOSE_S = 2.0

# Only by a heartbeat does a worker learn which jobs have ended.
HEARTBEAT_S = 2
# A trainer that is killed does not sign off: the dispatcher ends jobs that nobody has read for
# this time, and forgets trainers without a heartbeat for the other.
CLEAN_UP_S = 10
TRAINER_TIMEOUT_S = 60
DISPATCHER_WAIT_S = 60

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ServiceReader:
    """Reads by a tf.data service; one object for all feeds of a pipeline.

    A failure in its first job is an error, since the service was then started wrongly. A later
    failure, when it is proven, does not end the run: this process reads what does not arrive, logs
    it, and asks the service again. Each worker reads `num_workers` batches at the same time;
    `buffer_size` batches are requested at the same time, and as many are kept ready on the host.
    The longest waits are `start_s` for the first batch and `stall_s` for a later one. Raises
    ConfigError if the address is malformed, and DataError if TensorFlow cannot decode some files.
    """

    address: str
    manifest: Manifest
    fields: dict[str, Field]
    reference_samples: int
    data: DataConfig
    proven: bool = False
    start_s: float = 60.0
    stall_s: float = 10.0
    unanswered: "_Job | None" = None

    def __post_init__(self):
        self._host_and_port = host_and_port(self.address, "data_service", "grpc://")
        foreign = np.flatnonzero(~self.manifest.native)
        if len(foreign):
            raise DataError(
                f"the workers of {self.address} read whole files, 16-bit mono WAV at"
                f" {SAMPLE_RATE_HZ} Hz, but {len(foreign)} of {len(self.manifest)} utterances are"
                f" in other ones, the first in {self.manifest.paths[foreign[0]]}. Convert them, or"
                " leave out --data-service."
            )

    @property
    def patience_s(self) -> float:
        return self.stall_s if self.proven else self.start_s

    def read(self, planned: Iterable[PlannedBatch], device: str) -> ReadBatches:
        """See `Reader.read`; the plan is read up to 2 * JOB_BATCHES ahead."""
        on_device = {name for name, field in self.fields.items() if not field.on_host}

        def upload(batch: PlannedBatch, waves: Batch) -> Batch:
            totals = {name: batch.arrays[name] for name in on_device & batch.arrays.keys()}
            with tf.device(device):
                uploaded = {name: tf.identity(value) for name, value in (waves | totals).items()}
            return reading.with_host_fields(uploaded, batch, self.fields)

        batches = _OrderedBatches(self, planned)
        uploaded = ((batch, upload(batch, waves)) for batch, waves in batches)
        # `batches` is closed first, which ends the wait of the feed's thread.
        with (
            Feed(uploaded, self.data.prefetch_buffer_size, "myxtts-upload") as feed,
            closing(batches),
        ):
            yield from feed

    def note(self, job: "_Job") -> None:
        """Record the outcome of a job whose batches were all taken."""
        if job.read_here and (self.proven or job.arrived):
            counts = f"{job.read_here} of {len(job.batches)}"
            log.warning("data service %s: this machine read %s batches", self.address, counts)
        self.proven |= job.arrived > 0
        if not job.arrived and not job.answered_within(0.0):
            # The next job waits for it.
            self.unanswered = job

    def open_job(self, batches: list[PlannedBatch], number: int) -> Iterator[dict]:
        """Ask the service for some batches; raise OSError if nothing answers there."""
        # TensorFlow itself would retry for ever.
        if self.unanswered is not None and not self.unanswered.answered_within(CONNECT_S):
            raise TimeoutError("it has not answered the last request")
        host, port = self._host_and_port
        socket.create_connection((host.strip("[]"), port), CONNECT_S).close()
        service = tf.data.experimental.service
        distributed = service.distribute(
            service.ShardingPolicy.DYNAMIC,
            self.address,
            max_outstanding_requests=self.data.buffer_size,
            compression=None,
        )
        dataset = self.job_dataset(batches, number).apply(distributed)
        return iter(dataset.with_options(fixed_options()))

    def job_dataset(self, batches: list[PlannedBatch], number: int) -> tf.data.Dataset:
        """Read batches by operations without Python; each has its place and the job's number.

        The dataset is sent to the workers, so it holds only the part of the manifest that these
        batches need.
        """
        sizes = [len(batch.arrays["row"]) for batch in batches]
        names = reading.wave_columns(self.fields)
        table = {name: np.zeros((len(batches), max(sizes)), np.int32) for name in names}
        for name, column in table.items():
            for row, batch, size in zip(column, batches, sizes, strict=True):
                row[:size] = batch.arrays[name]
        row_columns = [name for name in ("row", "reference_row") if name in table]
        rows = np.stack([table[name] for name in row_columns])
        used, indices = np.unique(rows, return_inverse=True)
        indices = indices.reshape(rows.shape).astype(np.int32)
        table |= dict(zip(row_columns, indices, strict=True))
        read_rows = reading.rows_from_files(_select_rows(self.manifest, used), native_loading=True)

        @tf.autograph.experimental.do_not_convert
        def read(place, size, padded_samples, columns):
            columns = {name: column[:size] for name, column in columns.items()}
            lengths = padded_samples, self.fields, self.reference_samples
            waves = reading.read_waves(columns, *lengths, read_rows)
            return {"job": tf.constant(number, tf.int64), "place": place} | waves

        padded = np.array([batch.arrays["padded_samples"] for batch in batches], np.int32)
        elements = (np.arange(len(batches)), np.array(sizes), padded, table)
        dataset = tf.data.Dataset.from_tensor_slices(elements)
        dataset = dataset.map(read, num_parallel_calls=self.data.num_workers, deterministic=False)
        return dataset.with_options(fixed_options())

    def read_here(self, batch: PlannedBatch) -> Batch:
        """Read one batch in this process; raise tf.errors.OpError if a file cannot be read."""
        columns = {name: batch.arrays[name] for name in reading.wave_columns(self.fields)}
        return self._read_here(columns, batch.arrays["padded_samples"])

    @cached_property
    def _read_here(self) -> Callable[[dict, tf.Tensor], Batch]:
        read_rows = reading.rows_from_files(self.manifest, native_loading=True)
        names = reading.wave_columns(self.fields)

        @tf.function(autograph=False)
        def read(columns: dict, padded_samples: tf.Tensor) -> Batch:
            lengths = padded_samples, self.fields, self.reference_samples
            return reading.read_waves(columns, *lengths, read_rows)

        columns = {name: tf.TensorSpec([None], tf.int32) for name in names}
        return read.get_concrete_function(columns, tf.TensorSpec([], tf.int32))


def _select_rows(manifest: Manifest, rows: np.ndarray) -> Manifest:
    """A manifest with some rows, in which only the columns that reading uses are selected."""
    paths = tuple(manifest.paths[row] for row in rows)
    columns = {name: getattr(manifest, name)[rows] for name in ("starts", "samples", "native")}
    return replace(manifest, paths=paths, **columns)


class _OrderedBatches:
    """Planned batches with their waves on the host, in order, read by the service or here.

    One thread iterates; another may call `close`, which soon ends the iteration.
    """

    def __init__(self, reader: ServiceReader, planned: Iterable[PlannedBatch]):
        self._reader = reader
        self._planned = iter(planned)
        # The next one begins before the current one ends, since its graph takes time.
        self._jobs: list[_Job] = []
        self._closed = False

    def __iter__(self) -> Iterator[tuple[PlannedBatch, Batch]]:
        window = WINDOW * self._reader.data.buffer_size
        self._begin_next()
        while self._jobs:
            job = self._jobs[0]
            for place, batch in enumerate(job.batches):
                if len(self._jobs) == 1 and len(job.batches) - place <= window:
                    self._begin_next()
                waves = job.take(place, self._reader.patience_s)
                if self._closed:
                    return
                if waves is None:
                    job.read_here += 1
                    self._explain(job, place)
                    try:
                        waves = self._reader.read_here(batch)
                    except READ_ERRORS as error:
                        raise reading.unreadable(self._reader.manifest, batch, error) from error
                yield batch, waves
            self._jobs.remove(job)
            job.close()
            self._reader.note(job)

    def close(self) -> None:
        self._closed = True
        for job in tuple(self._jobs):
            job.close(CLOSE_S)
            self._reader.note(job)

    def _begin_next(self) -> None:
        batches = list(islice(self._planned, JOB_BATCHES if self._reader.proven else TRIAL_BATCHES))
        if batches and not self._closed:
            depth = self._reader.data.buffer_size
            open_job = self._reader.open_job
            job = _Job(batches, lambda number: open_job(batches, number), depth, WINDOW * depth)
            self._jobs.append(job)
            # By another thread, which did not see this job.
            if self._closed:
                job.close()

    def _can_read(self, batches: Iterable[PlannedBatch]) -> bool:
        with suppress(tf.errors.OpError):
            for batch in batches:
                self._reader.read_here(batch)
            return True
        return False

    def _explain(self, job: "_Job", place: int) -> None:
        """Log why this process reads a batch; raise DataError if the service is set up wrongly."""
        reader = self._reader
        error = job.error
        if error is not None and not isinstance(error, (*READ_ERRORS, OSError)):
            raise error
        reason = f"a batch did not arrive within {reader.patience_s:g} s"
        if isinstance(error, tf.errors.OpError):
            # {{…}} are places in TensorFlow's graph, which tell a user nothing.
            message = re.sub(r"\{\{.*?\}\}", "", error.message.partition("\n")[0])
            reason = " ".join(message.split())[:500]
        elif error is not None:
            reason = getattr(error, "strerror", None) or str(error)
        if reader.proven or (error is None and job.arrived):
            if job.read_here == 1:
                text = "data service %s: %s. This machine reads the missing batches"
                log.warning(text, reader.address, reason)
        # Else the error of the file at fault follows.
        elif error is None or isinstance(error, OSError) or self._can_read(job.batches[place:]):
            raise DataError(
                f"the data service {reader.address} gives no batches: {reason}. Start `myxtts"
                " serve-data dispatcher` there, and workers that this machine can reach and that"
                " have the whole corpus under the same path, or leave out --data-service."
            )


class _Job:
    """Some batches of the plan, requested from the service in a thread.

    At most `depth` batches are held ready, or `window` while an earlier one is missing. The number
    identifies the job among all jobs of all trainings. The consumer counts the batches that it
    read itself; the error is why no more will arrive, if that is known.
    """

    def __init__(
        self,
        batches: list[PlannedBatch],
        open_job: Callable[[int], Iterator[dict]],
        depth: int,
        window: int,
    ):
        self.batches = batches
        self.arrived = 0
        self.read_here = 0
        self.number = secrets.randbits(62)
        self.error: BaseException | None = None
        self._open = open_job
        self._depth = depth
        self._window = window
        self._ready: dict[int, Batch] = {}
        # Batches of earlier places come too late: they were taken or given up.
        self._wanted = 0
        # None while no request is open, when the service is not to blame for the wait.
        self._waiting_since_s: float | None = time.monotonic()
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="myxtts-data-service", daemon=True)
        self._thread.start()

    def answered_within(self, timeout_s: float) -> bool:
        """Whether the service has answered every request; nothing else ends a request."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take(self, place: int, patience_s: float) -> Batch | None:
        """Return the batch of the next place, or None if it must be read elsewhere.

        A batch is given up when nothing has arrived for `patience_s`, when no more batches will
        arrive, or when `window` later ones wait for it.
        """
        with self._changed:
            self._wanted = place
            self._changed.notify_all()
            while place not in self._ready and not self._over and len(self._ready) < self._window:
                now_s = time.monotonic()
                left_s = patience_s - (now_s - (self._waiting_since_s or now_s))
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            self._wanted = place + 1
            self._changed.notify_all()
            return self._ready.pop(place, None)

    def close(self, timeout_s: float = 0.0) -> None:
        """Stop requesting, and wait some time for the open request."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._pull(self._open(self.number))
        except (*READ_ERRORS, OSError) as error:
            # Its frames would keep the job alive on the workers.
            self.error = error.with_traceback(None)
        except BaseException as error:
            # Unexpected, so the consumer raises it.
            self.error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _pull(self, source: Iterator[dict]) -> None:
        while self._wait_for_room():
            waves = next(source, None)
            # The service has no more, even if a worker's death left some missing.
            if waves is None:
                return
            place = int(waves.pop("place"))
            # A restarted dispatcher reuses the ids of earlier jobs.
            if int(waves.pop("job")) != self.number:
                raise ConnectionError("its dispatcher was restarted")
            with self._changed:
                self.arrived += 1
                if place >= self._wanted and not self._over:
                    self._ready[place] = waves
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """Wait until another batch may be requested; False if no more are needed."""

        def is_complete() -> bool:
            return self._over or self._wanted + len(self._ready) == len(self.batches)

        def has_room() -> bool:
            limit = self._depth if self._wanted in self._ready else self._window
            return len(self._ready) < limit

        with self._changed:
            self._waiting_since_s = None
            self._changed.wait_for(lambda: is_complete() or has_room())
            self._waiting_since_s = time.monotonic()
            return not is_complete()


def dispatcher(host: str, port: int) -> AbstractContextManager[int]:
    """Run a dispatcher; the context is its port. Leaving it waits for open requests, with the GIL.

    The host is the name of this machine for trainers and workers; a loopback address restricts the
    dispatcher to it, or raises ConfigError. Port 0 chooses a free one.
    """
    config = dispatcher_config(port, CLEAN_UP_S, TRAINER_TIMEOUT_S)

    def start() -> tuple[Any, int]:
        server = tf.data.experimental.service.DispatchServer(config)
        return server, int(server.target.rpartition(":")[2])

    return _serving("dispatcher", host, port, start)


def worker(
    dispatcher_host: str, dispatcher_port: int, host: str, port: int
) -> AbstractContextManager[int]:
    """Run a worker of a dispatcher, which may start DISPATCHER_WAIT_S later; see `dispatcher`.

    Raises ConfigError also if other machines cannot reach this worker by its host, and DataError if
    the dispatcher does not answer.
    """
    if host == "0.0.0.0" or (is_loopback(host) and not is_loopback(dispatcher_host)):
        raise ConfigError(
            f"the dispatcher is on {dispatcher_host}, but other machines cannot reach this worker"
            f" at {host}. Give the name or address of this machine with --host."
        )
    _wait_for(dispatcher_host, dispatcher_port)

    def start() -> tuple[Any, int]:
        service = tf.data.experimental.service
        config = service.WorkerConfig(
            dispatcher_address=f"{dispatcher_host}:{dispatcher_port}",
            worker_address=f"{host}:%port%",
            port=port,
            heartbeat_interval_ms=HEARTBEAT_S * 1000,
        )
        server = service.WorkerServer(config)
        return server, worker_server_port(server)

    return _serving("worker", host, port, start)


@contextmanager
def _serving(
    role: str, host: str, port: int, start: Callable[[], tuple[Any, int]]
) -> Iterator[int]:
    # TensorFlow would share a port that is in use.
    with socket.socket() as probe:
        # Succeeds after a server that has just ended.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be used: {error.strerror}. Give another port, or 0 for a"
                " free one."
            ) from None
    server, port = start()
    try:
        if not is_loopback(host):
            found = f"other machines can reach this {role} without a password, and use files as you"
            log.warning("data service: %s. Use it only in private networks.", found)
        elif not bind_to_loopback(port):
            raise ConfigError(
                f"this system cannot restrict the {role} to the loopback interface. Close port"
                f" {port} with a firewall, and give the name of this machine with --host."
            )
        yield port
    finally:
        server.stop()


def _wait_for(host: str, port: int) -> None:
    deadline_s = time.monotonic() + DISPATCHER_WAIT_S
    while True:
        try:
            socket.create_connection((host, port), 5.0).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > deadline_s:
            raise DataError(
                f"no dispatcher has answered at {host}:{port} within {DISPATCHER_WAIT_S} s:"
                f" {reason}. Start `myxtts serve-data dispatcher` there first."
            )
        log.info("waiting for the dispatcher at %s:%d (%s)", host, port, reason)
        time.sleep(2.0)
