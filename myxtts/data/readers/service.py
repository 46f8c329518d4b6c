"""Stage B on other machines: workers of a tf.data service read and decode, in place of this one.

The plan stays here. The service is asked for one stretch of it after another, each as a job, and deals the batches to
its workers as these ask for them. They come back in any order and are put into that of the plan. The service gives
each batch at most once, and never what a worker had when it died: what does not come is read here. So no batch is
missing, and none comes twice.
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
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.batch import Field
from myxtts.config.address import service_address
from myxtts.data.feed import Feed
from myxtts.data.manifest import Manifest
from myxtts.data.plan_iterator import PlannedBatch
from myxtts.data.readers.files import ReadRows, rows_from_files
from myxtts.errors import DataError

JOB_BATCHES = 256  # to make a job's graph takes 0.14 s, so that shorter jobs cost more of each batch
TRIAL_BATCHES = 8  # of the first jobs of a run, which show whether the service can do it
WINDOW = 4  # times buffer_size: how many batches may wait for an earlier one before that is read here
CONNECT_S = 5.0
CLOSE_S = 2.0

Waves = dict[str, tf.Tensor]

log = logging.getLogger(__name__)


class DataService:
    """A tf.data service, as a run uses it: one for all of its feeds.

    What fails in its first job is an error, since it is a mistake in how the service was started. Later on a run does
    not end because the service does: it reads here what does not come, says so, and asks the service again.

    Args:
        address: grpc://HOST:PORT of the dispatcher.
        start_s: longest time to wait for the first batch.
        stall_s: longest time to wait for a batch later on.

    Attributes:
        proven: whether it has served a job.

    Raises:
        ConfigError: it is no such address.
    """

    def __init__(self, address: str, start_s: float = 60.0, stall_s: float = 10.0):
        self.address = address
        self.proven = False
        self._host_and_port = service_address(address)
        self._start_s, self._stall_s = start_s, stall_s
        self._unanswered: _Job | None = None

    @property
    def patience_s(self) -> float:
        return self._stall_s if self.proven else self._start_s

    def batches(
        self,
        planned: Iterable[PlannedBatch],
        manifest: Manifest,
        fields: dict[str, Field],
        reference_samples: int,
        num_workers: int,
        buffer_size: int,
        device: str,
        prefetch_buffer_size: int,
    ) -> Iterator[Waves]:
        """Waves on a device, one batch for each planned one, in their order: what `wave_batches` gives, bit for bit.

        Args:
            planned: the plan; it is read up to 2 * JOB_BATCHES ahead.
            num_workers: batches that each worker of the service reads at the same time.
            buffer_size: batches kept ready on the host; as many are asked of the workers at the same time.
            manifest, fields, reference_samples, device, prefetch_buffer_size: see `wave_batches`.

        Raises:
            DataError: files that TensorFlow's operations cannot decode, at once; at the first batch, a service that
                cannot be reached, has no workers, or whose workers do not find the corpus.
            tf.errors.OpError: an utterance cannot be read here either, at its batch.
        """
        foreign = np.flatnonzero(~manifest.native)
        if len(foreign):
            raise DataError(
                f"The workers of {self.address} read 16-bit mono WAV at {SAMPLE_RATE_HZ} Hz, but {len(foreign)} of "
                f"{len(manifest)} files are of another kind, the first {manifest.paths[foreign[0]]}. "
                "Convert them, or leave out --data-service."
            )
        request = _Request(manifest, fields, reference_samples, num_workers, buffer_size)
        return self._stream(_Reading(self, planned, request), fields, device, prefetch_buffer_size)

    def _stream(self, reading: "_Reading", fields, device: str, prefetch_buffer_size: int) -> Iterator[Waves]:
        uploaded = (_upload(waves, plan, fields, device) for plan, waves in reading)
        with Feed(uploaded, prefetch_buffer_size) as feed, closing(reading):  # so that closing wakes up the feed
            yield from feed

    def connect(self) -> None:
        """Raises OSError where nothing answers at the address, or where the last request was not answered at all."""
        if self._unanswered is not None and not self._unanswered.answered_within(CONNECT_S):
            raise TimeoutError("it has not answered the last request")
        socket.create_connection(self._host_and_port, CONNECT_S).close()

    def note(self, job: "_Job") -> None:
        """See a job that is over for its reader; a job without an answer is waited for before the next is begun."""
        if job.read_here and (self.proven or job.arrived):
            counts = (job.read_here, len(job.batches))
            log.warning("data service %s: %d of %d batches were read on this machine", self.address, *counts)
        self.proven |= job.arrived > 0
        if not job.arrived and not job.answered_within(0.0):
            self._unanswered = job


class _Request(NamedTuple):
    """What the batches of a plan are read from, and how."""

    manifest: Manifest
    fields: dict[str, Field]
    reference_samples: int
    num_workers: int
    buffer_size: int

    @property
    def columns(self) -> tuple[str, ...]:
        """The planned arrays that reading needs, one number for each row of a batch."""
        reference = ("reference_row", "reference_start", "reference_samples")
        return ("row", "samples", *(reference if "reference_pcm" in self.fields else ()))

    def read(self, columns: dict, padded_samples: tf.Tensor, read_rows: ReadRows) -> Waves:
        """What has to be read of one batch."""
        starts = tf.zeros_like(columns["row"])
        waves = {"pcm": read_rows(columns["row"], starts, columns["samples"], padded_samples)}
        if "reference_pcm" in self.fields:
            stretches = (columns[name] for name in ("reference_row", "reference_start", "reference_samples"))
            waves["reference_pcm"] = read_rows(*stretches, self.reference_samples)
        return waves

    def dataset(self, batches: list[PlannedBatch], job: int) -> tf.data.Dataset:
        """What has to be read of these batches, by operations without Python: each with its place and the job's number.

        Of the manifest it holds just the files of these batches, since it is sent to the workers.
        """
        sizes = [len(batch.arrays["row"]) for batch in batches]
        table = {name: np.zeros((len(batches), max(sizes)), np.int32) for name in self.columns}
        for name, column in table.items():
            for to, batch, size in zip(column, batches, sizes, strict=True):
                to[:size] = batch.arrays[name]
        rows = [name for name in ("row", "reference_row") if name in table]
        used, numbers = np.unique(np.stack([table[name] for name in rows]), return_inverse=True)
        numbers = numbers.reshape(len(rows), *table["row"].shape).astype(np.int32)
        table |= dict(zip(rows, numbers, strict=True))
        read_rows = rows_from_files(_part(self.manifest, used), native_loading=True)

        def read(place, size, padded_samples, columns):
            columns = {name: column[:size] for name, column in columns.items()}
            return {"job": tf.constant(job, tf.int64), "place": place} | self.read(columns, padded_samples, read_rows)

        padded = np.array([batch.arrays["padded_samples"] for batch in batches], np.int32)
        elements = (np.arange(len(batches)), np.array(sizes), padded, table)
        dataset = tf.data.Dataset.from_tensor_slices(elements)
        dataset = dataset.map(read, num_parallel_calls=self.num_workers, deterministic=False)
        options = tf.data.Options()
        options.autotune.enabled = False  # every depth and width is a setting
        return dataset.with_options(options)


def _part(manifest: Manifest, rows: np.ndarray) -> Manifest:
    """A manifest of some rows, with those columns alone that reading looks at."""
    paths = tuple(manifest.paths[row] for row in rows)
    return replace(manifest, paths=paths, samples=manifest.samples[rows], native=manifest.native[rows])


class _Reading:
    """The batches of a plan with what was read of them, in order: as the service gives it, or read here.

    Iterated in one thread; `close` may be called from another, and ends the iteration soon.
    """

    def __init__(self, service: DataService, planned: Iterable[PlannedBatch], request: _Request):
        self._service, self._planned, self._request = service, iter(planned), request
        self._jobs: list[_Job] = []  # the present one and the next
        self._closed = False

    def __iter__(self) -> Iterator[tuple[PlannedBatch, Waves]]:
        self._begin_next()
        while self._jobs:
            job = self._jobs[0]
            for place, plan in enumerate(job.batches):
                if len(self._jobs) == 1 and len(job.batches) - place <= WINDOW * self._request.buffer_size:
                    self._begin_next()
                waves = job.take(place, self._service.patience_s)
                if self._closed:
                    return
                if waves is None:
                    job.read_here += 1
                    self._explain(job, place)
                    waves = self._read_here(plan)
                yield plan, waves
            self._jobs.remove(job)
            job.close()
            self._service.note(job)

    def close(self) -> None:
        self._closed = True
        for job in tuple(self._jobs):
            job.close(CLOSE_S)
            self._service.note(job)

    def _begin_next(self) -> None:
        batches = list(islice(self._planned, JOB_BATCHES if self._service.proven else TRIAL_BATCHES))
        if batches and not self._closed:
            depth = self._request.buffer_size
            job = _Job(batches, lambda number: self._open(batches, number), depth, WINDOW * depth)
            self._jobs.append(job)
            if self._closed:  # meanwhile, without this one
                job.close()

    def _open(self, batches: list[PlannedBatch], number: int) -> tf.data.Iterator:
        self._service.connect()  # TensorFlow itself would try without end
        service = tf.data.experimental.service
        distributed = service.distribute(
            service.ShardingPolicy.DYNAMIC,
            self._service.address,
            max_outstanding_requests=self._request.buffer_size,
            compression=None,
        )
        return iter(self._request.dataset(batches, number).apply(distributed))

    def _read_here(self, plan: PlannedBatch) -> Waves:
        columns = {name: plan.arrays[name] for name in self._request.columns}
        return self._read_locally(columns, plan.arrays["padded_samples"])

    @cached_property
    def _read_locally(self) -> Callable[[dict, tf.Tensor], Waves]:
        read_rows = rows_from_files(self._request.manifest, native_loading=True)
        columns = {name: tf.TensorSpec([None], tf.int32) for name in self._request.columns}
        read = tf.function(lambda columns, padded_samples: self._request.read(columns, padded_samples, read_rows))
        return read.get_concrete_function(columns, tf.TensorSpec([], tf.int32))

    def _explain(self, job: "_Job", place: int) -> None:
        """Say why a batch is read here, or raise DataError where it is a mistake in how the service was started."""
        address, error = self._service.address, job.error
        if error is not None and not isinstance(error, tf.errors.OpError | OSError):
            raise error
        if self._service.proven or (error is None and job.arrived):
            if job.read_here == 1:
                reason = _in_short(error) if error else "a batch did not come; a worker died or is late"
                log.warning("data service %s: %s. What does not come is read on this machine", address, reason)
        elif isinstance(error, OSError):
            raise DataError(
                f"data_service is {address}, but nothing answers there: {_in_short(error)}. Start `python "
                "utilities/data_service.py dispatcher` on that machine, or leave out --data-service."
            )
        elif error is None:
            raise DataError(
                f"The data service {address} gave no batch within {self._service.patience_s:g} s: it has no worker "
                "that this machine can reach, or is something else. Start `python utilities/data_service.py worker "
                f"--dispatcher {address.removeprefix('grpc://')}`, or leave out --data-service."
            )
        elif self._can_be_read_here(job.batches[place:]):
            raise DataError(
                f"A worker of the data service {address} could not read what this machine can: {_in_short(error)}. "
                "Give all of them the corpus under the same path, or leave out --data-service."
            )

    def _can_be_read_here(self, batches: Iterable[PlannedBatch]) -> bool:
        try:
            for plan in batches:
                self._read_here(plan)
        except tf.errors.OpError:
            return False  # raised again at its batch
        return True


class _Job:
    """A stretch of the plan that the service is asked for, in a thread, and what has come of it.

    At most `depth` batches are held ready, and `window` while an earlier one has not come.

    Attributes:
        batches: the stretch.
        arrived: batches that came.
        read_here: batches that did not come in time, as its reader counts them.
        number: its own among all jobs of all trainings.
        error: why no more will come, if that is known.
    """

    def __init__(self, batches: list[PlannedBatch], open_job: Callable[[int], Iterator[dict]], depth: int, window: int):
        self.batches, self.arrived, self.read_here = batches, 0, 0
        self.number = secrets.randbits(62)
        self.error: BaseException | None = None
        self._open, self._depth, self._window = open_job, depth, window
        self._held: dict[int, Waves] = {}
        self._wanted = 0  # all before were taken, or given up
        self._waiting_since_s: float | None = time.monotonic()  # None while nothing is asked for
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="myxtts-data-service", daemon=True)
        self._thread.start()

    def answered_within(self, timeout_s: float) -> bool:
        """Whether the service owes no answer any more; nothing else ends a request to it."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take(self, place: int, patience_s: float) -> Waves | None:
        """The batch of a place, each of which is asked for once and in order; None if it is to be read elsewhere.

        It is given up when nothing has come for `patience_s`, nothing more will, or `window` later ones wait for it.
        """
        with self._changed:
            self._wanted = place
            self._changed.notify_all()
            while place not in self._held and not self._over and len(self._held) < self._window:
                left_s = patience_s - (time.monotonic() - (self._waiting_since_s or time.monotonic()))
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            self._wanted = place + 1
            self._changed.notify_all()
            return self._held.pop(place, None)

    def close(self, timeout_s: float = 0.0) -> None:
        """Ask for no more; wait some time for what was asked for."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._pull(self._open(self.number))
        except (tf.errors.OpError, OSError) as error:
            self.error = error.with_traceback(None)  # whose frames would keep the job on the workers
        except BaseException as error:  # a defect
            self.error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _pull(self, source: Iterator[dict]) -> None:
        while self._wait_for_room():
            waves = next(source, None)
            if waves is None:  # the service has no more, whatever is missing
                return
            place = int(waves.pop("place"))
            if int(waves.pop("job")) != self.number:  # a new dispatcher gives the numbers of the old one's jobs again
                raise ConnectionError("its dispatcher was started anew")
            with self._changed:
                self.arrived += 1
                if place >= self._wanted and not self._over:
                    self._held[place] = waves
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """Wait until one more may be asked for; False when no more are needed."""
        with self._changed:
            self._waiting_since_s = None
            self._changed.wait_for(lambda: self._over or self._complete or self._has_room)
            self._waiting_since_s = time.monotonic()
            return not self._over and not self._complete

    @property
    def _complete(self) -> bool:
        return self._wanted + len(self._held) == len(self.batches)

    @property
    def _has_room(self) -> bool:
        late = self._wanted not in self._held
        return len(self._held) < (self._window if late else self._depth)


def _upload(read: Waves, plan: PlannedBatch, fields: dict[str, Field], device: str) -> Waves:
    waves = {name: plan.arrays[name] for name in fields if name in plan.arrays} | read
    with tf.device(device):
        return {name: tf.identity(value) for name, value in waves.items()}


def _in_short(error: Exception) -> str:
    """An error in one line; of TensorFlow's, without the places in its graph."""
    if isinstance(error, tf.errors.OpError):
        return " ".join(re.sub(r"\{\{.*?\}\}", "", error.message.partition("\n")[0]).split())[:500]
    return getattr(error, "strerror", None) or str(error)
