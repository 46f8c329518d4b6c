"""Reads batches on other machines, by the workers of a tf.data service.

The plan stays in this process. It asks the service for one section of the plan after another, each
as a job, and the service distributes the batches of a job among its workers. Batches arrive in any
order and are sorted into the order of the plan. The service delivers each batch at most once, and
loses the batches of a worker that dies; this process reads what does not arrive. So no batch is
missing and none comes twice.
"""

import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import islice

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.batch import Batch, Field
from myxtts.config.schema import DataConfig
from myxtts.data.batch_plan import PlannedBatch
from myxtts.data.feed import Feed
from myxtts.data.manifest import Manifest
from myxtts.data.reading import (
    READ_ERRORS,
    ReadBatches,
    fixed_options,
    read_waves,
    rows_from_files,
    unreadable,
    wave_columns,
    with_host_fields,
)
from myxtts.distributed.cluster import host_and_port
from myxtts.errors import DataError

# Making a job's graph takes 0.14 s, so that shorter jobs cost more for each batch.
JOB_BATCHES = 256
# In the first jobs of a run, which show whether the service works.
TRIAL_BATCHES = 8
# times buffer_size: batches that may wait for an earlier one before this process reads that one
WINDOW = 4
CONNECT_S = 5.0
CLOSE_S = 2.0

log = logging.getLogger(__name__)


def service_address(text: str) -> tuple[str, int]:
    """Return host and port of the setting `data_service`: grpc://HOST:PORT."""
    return host_and_port(text, "data_service", "grpc://")


class ServiceReader:
    """Reads by a tf.data service; one object for all feeds of a pipeline.

    A failure in its first job is an error, since the service was then started wrongly. A later
    failure does not end the run: this process reads what does not arrive, logs it, and asks the
    service again.

    Args:
        address: grpc://HOST:PORT of the dispatcher.
        manifest: of the corpus.
        fields: contract of the waves.
        reference_samples: padded length of the references.
        data: `num_workers` is the number of batches that each worker reads at the same time;
            `buffer_size` batches are requested at the same time, and as many are kept ready on the
            host.
        start_s: longest wait for the first batch.
        stall_s: longest wait for a later batch.

    Attributes:
        proven: whether the service has completed a job.

    Raises:
        ConfigError: the address is malformed.
        DataError: TensorFlow's operations cannot decode some files.
    """

    def __init__(
        self,
        address: str,
        manifest: Manifest,
        fields: dict[str, Field],
        reference_samples: int,
        data: DataConfig,
        *,
        start_s: float = 60.0,
        stall_s: float = 10.0,
    ):
        self.address, self.manifest, self.fields = address, manifest, fields
        self.reference_samples, self.data = reference_samples, data
        self.proven = False
        self._host_and_port = service_address(address)
        self._start_s, self._stall_s = start_s, stall_s
        self._unanswered: _Job | None = None
        foreign = np.flatnonzero(~manifest.native)
        if len(foreign):
            raise DataError(
                f"the workers of {address} read 16-bit mono WAV at {SAMPLE_RATE_HZ} Hz, but"
                f" {len(foreign)} of {len(manifest)} files have another format, the first is"
                f" {manifest.paths[foreign[0]]}. Convert them, or leave out --data-service."
            )

    @property
    def patience_s(self) -> float:
        return self._stall_s if self.proven else self._start_s

    def read(self, planned: Iterable[PlannedBatch], device: str) -> ReadBatches:
        """See `Reader.read`; the plan is read up to 2 * JOB_BATCHES ahead.

        Raises:
            DataError: also at the first batch, if the service cannot be reached, has no workers, or
                its workers do not find the corpus.
        """
        batches = _OrderedBatches(self, planned)
        uploaded = ((batch, self._upload(batch, waves, device)) for batch, waves in batches)
        # `batches` is closed first, which ends the wait of the feed's thread.
        with (
            Feed(uploaded, self.data.prefetch_buffer_size, "myxtts-upload") as feed,
            closing(batches),
        ):
            yield from feed

    def _upload(self, batch: PlannedBatch, waves: Batch, device: str) -> Batch:
        on_device = {name for name, field in self.fields.items() if not field.on_host}
        totals = {name: batch.arrays[name] for name in on_device & batch.arrays.keys()}
        with tf.device(device):
            uploaded = {name: tf.identity(value) for name, value in (waves | totals).items()}
        return with_host_fields(uploaded, batch, self.fields)

    def connect(self) -> None:
        """Raise OSError if nothing answers there, or never answered the last request."""
        if self._unanswered is not None and not self._unanswered.answered_within(CONNECT_S):
            raise TimeoutError("it has not answered the last request")
        socket.create_connection(self._host_and_port, CONNECT_S).close()

    def note(self, job: "_Job") -> None:
        """Record the outcome of a job whose batches were all taken."""
        if job.read_here and (self.proven or job.arrived):
            counts = (job.read_here, len(job.batches))
            log.warning(
                "data service %s: this machine read %d of %d batches", self.address, *counts
            )
        self.proven |= job.arrived > 0
        if not job.arrived and not job.answered_within(0.0):
            # The next job waits for it.
            self._unanswered = job

    def open_job(self, batches: list[PlannedBatch], number: int) -> Iterator[dict]:
        """Ask the service for some batches.

        Raises:
            OSError: see `connect`.
        """
        # TensorFlow itself would retry for ever.
        self.connect()
        service = tf.data.experimental.service
        distributed = service.distribute(
            service.ShardingPolicy.DYNAMIC,
            self.address,
            max_outstanding_requests=self.data.buffer_size,
            compression=None,
        )
        return iter(
            self.job_dataset(batches, number).apply(distributed).with_options(fixed_options())
        )

    def job_dataset(self, batches: list[PlannedBatch], number: int) -> tf.data.Dataset:
        """Read batches by operations without Python; each has its place and the job's number.

        The dataset is sent to the workers, so it holds only the part of the manifest that these
        batches need.
        """
        sizes = [len(batch.arrays["row"]) for batch in batches]
        table = {
            name: np.zeros((len(batches), max(sizes)), np.int32)
            for name in wave_columns(self.fields)
        }
        for name, column in table.items():
            for row, batch, size in zip(column, batches, sizes, strict=True):
                row[:size] = batch.arrays[name]
        row_columns = [name for name in ("row", "reference_row") if name in table]
        used, indices = np.unique(
            np.stack([table[name] for name in row_columns]), return_inverse=True
        )
        indices = indices.reshape(len(row_columns), *table["row"].shape).astype(np.int32)
        table |= dict(zip(row_columns, indices, strict=True))
        read_rows = rows_from_files(_select_rows(self.manifest, used), native_loading=True)

        @tf.autograph.experimental.do_not_convert
        def read(place, size, padded_samples, columns):
            columns = {name: column[:size] for name, column in columns.items()}
            waves = read_waves(
                columns, padded_samples, self.fields, self.reference_samples, read_rows
            )
            return {"job": tf.constant(number, tf.int64), "place": place} | waves

        padded = np.array([batch.arrays["padded_samples"] for batch in batches], np.int32)
        elements = (np.arange(len(batches)), np.array(sizes), padded, table)
        dataset = tf.data.Dataset.from_tensor_slices(elements)
        dataset = dataset.map(read, num_parallel_calls=self.data.num_workers, deterministic=False)
        return dataset.with_options(fixed_options())

    def read_here(self, batch: PlannedBatch) -> Batch:
        """Read one batch in this process.

        Raises:
            tf.errors.OpError: a file cannot be read.
        """
        columns = {name: batch.arrays[name] for name in wave_columns(self.fields)}
        return self._read_here(columns, batch.arrays["padded_samples"])

    @cached_property
    def _read_here(self) -> Callable[[dict, tf.Tensor], Batch]:
        read_rows = rows_from_files(self.manifest, native_loading=True)
        columns = {name: tf.TensorSpec([None], tf.int32) for name in wave_columns(self.fields)}

        @tf.function(autograph=False)
        def read(columns: dict, padded_samples: tf.Tensor) -> Batch:
            return read_waves(
                columns, padded_samples, self.fields, self.reference_samples, read_rows
            )

        return read.get_concrete_function(columns, tf.TensorSpec([], tf.int32))


def _select_rows(manifest: Manifest, rows: np.ndarray) -> Manifest:
    """A manifest with some rows, in which only the columns that reading uses are selected."""
    paths = tuple(manifest.paths[row] for row in rows)
    return replace(
        manifest, paths=paths, samples=manifest.samples[rows], native=manifest.native[rows]
    )


class _OrderedBatches:
    """Planned batches with their waves on the host, in order, read by the service or here.

    One thread iterates; another may call `close`, which soon ends the iteration.
    """

    def __init__(self, reader: ServiceReader, planned: Iterable[PlannedBatch]):
        self._reader = reader
        self._planned = iter(planned)
        # The current one and the next.
        self._jobs: list[_Job] = []
        self._closed = False

    def __iter__(self) -> Iterator[tuple[PlannedBatch, Batch]]:
        self._begin_next()
        while self._jobs:
            job = self._jobs[0]
            for place, batch in enumerate(job.batches):
                if (
                    len(self._jobs) == 1
                    and len(job.batches) - place <= WINDOW * self._reader.data.buffer_size
                ):
                    self._begin_next()
                waves = job.take(place, self._reader.patience_s)
                if self._closed:
                    return
                if waves is None:
                    job.read_here += 1
                    self._explain(job, place)
                    waves = self._read_here(batch)
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
            job = _Job(
                batches,
                lambda number: self._reader.open_job(batches, number),
                depth,
                WINDOW * depth,
            )
            self._jobs.append(job)
            # By another thread, which did not see this job.
            if self._closed:
                job.close()

    def _read_here(self, batch: PlannedBatch) -> Batch:
        try:
            return self._reader.read_here(batch)
        except tf.errors.ResourceExhaustedError:
            raise
        except READ_ERRORS as error:
            raise unreadable(self._reader.manifest, batch, error) from error

    def _explain(self, job: "_Job", place: int) -> None:
        """Log why this process reads a batch; raise DataError if the service is set up wrongly."""
        address = self._reader.address
        error = job.error
        if error is not None and not isinstance(error, (*READ_ERRORS, OSError)):
            raise error
        if self._reader.proven or (error is None and job.arrived):
            if job.read_here == 1:
                reason = (
                    _summarize(error)
                    if error
                    else "a batch did not arrive; a worker died or is late"
                )
                log.warning(
                    "data service %s: %s. This machine reads the missing batches", address, reason
                )
        elif isinstance(error, OSError):
            raise DataError(
                f"data_service is {address}, but nothing answers there: {_summarize(error)}. "
                "Start `myxtts serve-data dispatcher` on that machine, or leave out --data-service."
            )
        elif error is None:
            raise DataError(
                f"the data service {address} gave no batch within {self._reader.patience_s:g} s: it"
                " has no worker that this machine can reach, or another program listens there."
                f" Start `myxtts serve-data worker --dispatcher {address.removeprefix('grpc://')}`,"
                " or leave out --data-service."
            )
        elif self._can_read_here(job.batches[place:]):
            raise DataError(
                f"a worker of the data service {address} could not read files that this machine can"
                f" read: {_summarize(error)}. Give all of them the corpus under the same path, or"
                " leave out --data-service."
            )

    def _can_read_here(self, batches: Iterable[PlannedBatch]) -> bool:
        try:
            for batch in batches:
                self._reader.read_here(batch)
        except tf.errors.OpError:
            # Raised again at its batch.
            return False
        return True


class _Job:
    """Some batches of the plan, requested from the service in a thread.

    At most `depth` batches are held ready, or `window` while an earlier one is missing.

    Attributes:
        batches: the planned batches.
        arrived: number of batches that arrived.
        read_here: number of batches that did not arrive in time, counted by the consumer.
        number: identifies the job among all jobs of all trainings.
        error: the reason why no more batches will arrive, if it is known.
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
        self._open, self._depth, self._window = open_job, depth, window
        self._ready: dict[int, Batch] = {}
        # All earlier places were taken or given up.
        self._wanted = 0
        # None while no request is open.
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
        """Return the batch of a place, or None if it must be read elsewhere.

        Each place is requested once, in order.

        A batch is given up when nothing has arrived for `patience_s`, when no more batches will
        arrive, or when `window` later ones wait for it.
        """
        with self._changed:
            self._wanted = place
            self._changed.notify_all()
            while place not in self._ready and not self._over and len(self._ready) < self._window:
                left_s = patience_s - (
                    time.monotonic() - (self._waiting_since_s or time.monotonic())
                )
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
            # Raised by the consumer: an unexpected exception.
            self.error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _pull(self, source: Iterator[dict]) -> None:
        while self._wait_for_room():
            waves = next(source, None)
            # The service has no more batches, even if some are missing.
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
        with self._changed:
            self._waiting_since_s = None
            self._changed.wait_for(lambda: self._over or self._complete or self._has_room)
            self._waiting_since_s = time.monotonic()
            return not self._over and not self._complete

    @property
    def _complete(self) -> bool:
        return self._wanted + len(self._ready) == len(self.batches)

    @property
    def _has_room(self) -> bool:
        is_late = self._wanted not in self._ready
        limit = self._window if is_late else self._depth
        return len(self._ready) < limit


def _summarize(error: Exception) -> str:
    """An error in one line; of TensorFlow's errors, without the places in its graph."""
    if isinstance(error, tf.errors.OpError):
        return " ".join(re.sub(r"\{\{.*?\}\}", "", error.message.partition("\n")[0]).split())[:500]
    return getattr(error, "strerror", None) or str(error)
