"""Emulation of a placement: real threads and the project's own Feed, with stages that only sleep.

The stage times are emulated; the hand-over between stages is real. MLPerf Storage measures in the
same way: its accelerator sleeps.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import Queue
from typing import NamedTuple

from myxtts.clock import Span
from myxtts.data.feed import Feed
from myxtts.errors import ConfigError
from myxtts.placement.routes import Route
from myxtts.throughput.simulator import DEFAULT_DEPTHS, BatchAssignment, QueueDepths, RunResult
from myxtts.throughput.stage_times import StageTimes

# On a busy 2-core machine `time.sleep` returns 65 to 88 µs late in the median. With its last part
# spent in a loop it is 2 to 6 µs, for 1 % of a core at stages of 20 ms.
SPIN_S = 200e-6


class EmulatedRun(NamedTuple):
    """A run whose stages slept.

    Attributes:
        spans: in the order of their ends, in seconds since the run began. The lane is the device,
            for a transfer the model device, and "" for a read and an all-reduce. The kind is a
            stage or `all-reduce`. The number is that of the batch, from 0; for an all-reduce that
            of the first batch of its step.
    """

    result: RunResult
    spans: list[Span]


def precise_sleep(seconds: float) -> None:
    """Sleep more precisely than `time.sleep`, which returns late; see SPIN_S."""
    end_s = time.perf_counter() + seconds
    if seconds > SPIN_S:
        time.sleep(seconds - SPIN_S)
    while time.perf_counter() < end_s:
        pass


@contextmanager
def real_time_priority() -> Iterator[None]:
    """Run this thread, and threads started in it, before all programs of ordinary priority.

    Emulated devices do not share the cores with the other programs of the machine. On 2 cores
    beside three trainings, a sleep of 20 ms returned 0.6 to 2.2 ms late on average, and 5 µs late
    with this priority.

    Raises:
        ConfigError: the system does not support or not permit it.
    """
    if not hasattr(os, "sched_setscheduler"):
        raise ConfigError(
            "--real-time was given, but this system has no real-time priority. Leave the flag out"
            " and use an idle machine."
        )
    previous = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError as error:
        raise ConfigError(
            "--real-time was given, but this user may not set a real-time priority. Run as root, or"
            " leave the flag out and use an idle machine."
        ) from error
    try:
        yield
    finally:
        os.sched_setscheduler(0, *previous)


def emulate(
    routes: Sequence[Route],
    times: StageTimes,
    depths: QueueDepths = DEFAULT_DEPTHS,
    all_reduce_s: float = 0.0,
) -> EmulatedRun:
    """Run batches along the routes in real time; the arguments are those of `simulate`.

    Reader threads exist only where reading takes time.

    Raises:
        ValueError: as `simulate`.
    """
    return _Emulator(BatchAssignment(routes, len(times)), times, depths, all_reduce_s).run()


class _FifoLock:
    """A lock that serves requests in order, as a device does; any thread may release it."""

    def __init__(self):
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._held = self._open = False

    def acquire(self) -> None:
        with self._mutex:
            if self._open or not self._held:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()

    def release(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False

    def open(self) -> None:
        """Let every thread pass from now on, so that no thread keeps waiting in an
        interrupted run.
        """
        with self._mutex:
            self._open = True
            while self._waiting:
                self._waiting.popleft().release()


class _ReaderPool:
    """Threads that read the batches of a data device, in order, into a bounded queue."""

    def __init__(self, batches: list[int], depths: QueueDepths, read: Callable[[int], None]):
        self._batches, self._read = batches, read
        self._ready: Queue[int] = Queue(depths.host + depths.uploaded)
        self._stopping = threading.Event()
        self._turns = [threading.Semaphore(0) for _ in range(depths.workers)]
        self._turns[0].release()
        self._threads = [
            threading.Thread(target=self._work, args=(n,), daemon=True)
            for n in range(depths.workers)
        ]

    def __enter__(self) -> "_ReaderPool":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stopping.set()
        for turn in self._turns:
            turn.release()
        while any(thread.is_alive() for thread in self._threads):
            while not self._ready.empty():
                self._ready.get_nowait()  # unblocks a reader that waits on the full queue
            time.sleep(0.001)

    def take(self) -> None:
        self._ready.get()

    def _work(self, worker: int) -> None:
        for batch in self._batches[worker :: len(self._turns)]:
            self._read(batch)
            self._turns[worker].acquire()
            if self._stopping.is_set():
                return
            self._ready.put(batch)
            self._turns[(worker + 1) % len(self._turns)].release()


class _Emulator:
    """One run: its devices, its feeds and its measurements."""

    def __init__(
        self,
        assignment: BatchAssignment,
        times: StageTimes,
        depths: QueueDepths,
        all_reduce_s: float,
    ):
        self._assignment, self._times, self._depths, self._all_reduce_s = (
            assignment,
            times,
            depths,
            all_reduce_s,
        )
        self._device = {device: _FifoLock() for device in assignment.devices}
        self._started = threading.Semaphore(0)  # released at the start of each step
        self._spans: list[Span] = []  # list.append is atomic
        self._wait_s = 0.0
        self._blocked_s = 0.0
        self._start_s = 0.0

    def run(self) -> EmulatedRun:
        assignment = self._assignment
        replicas = len(assignment.routes)
        with ExitStack() as stack:
            in_parallel: Callable = map
            if replicas > 1:
                in_parallel = stack.enter_context(
                    ThreadPoolExecutor(replicas + len(assignment.feeds))
                ).map
            self._start_s = time.perf_counter()
            take: dict[str, Callable[[], None] | None] = dict.fromkeys(assignment.feeds)
            if self._times.read_s.any():
                for data in assignment.feeds:
                    readers = _ReaderPool(assignment.batches_from(data), self._depths, self._read)
                    take[data] = stack.enter_context(readers).take
            producers = {data: self._produce(data, take[data]) for data in assignment.feeds}
            feeds = {
                data: stack.enter_context(Feed(producer, self._depths.feed))
                for data, producer in producers.items()
            }
            queued = stack.enter_context(
                Feed(self._hand_over(feeds, in_parallel), depth=1, thread_name="host")
            )
            stack.callback(
                self._started.release, assignment.steps
            )  # no thread keeps waiting in an interrupted run
            for device in self._device.values():
                stack.callback(device.open)
            self._train(queued, in_parallel)
            duration_s = self._now_s()
        result = assignment.result(duration_s, self._wait_s, self._blocked_s, self._busy_s())
        return EmulatedRun(result, self._spans)

    def _train(self, queued: Iterator[int], in_parallel: Callable) -> None:
        assignment = self._assignment
        replicas = len(assignment.routes)
        idle_since_s = self._now_s()
        for step in queued:
            self._wait_s += (self._now_s() - idle_since_s) * replicas
            batches = [assignment.batch(step, route) for route in range(replicas)]
            done = in_parallel(self._step, assignment.model_devices, batches)
            self._started.release()  # only now, so that the host's thread delays no step
            list(done)
            if replicas > 1 and self._all_reduce_s:
                self._work("all-reduce", batches[0], self._all_reduce_s)
            for model in assignment.model_devices:
                self._device[model].release()
            idle_since_s = self._now_s()

    def _hand_over(self, feeds: Mapping[str, Feed], in_parallel: Callable) -> Iterator[int]:
        """Yield each step when its batches are transferred and those of the next step are taken;
        the host's thread.
        """
        assignment, steps = self._assignment, self._assignment.steps
        for step in range(steps):
            for data in assignment.data_devices(step):
                next(feeds[data])
            if step:
                yield step - 1
                self._started.acquire()
            transfers = assignment.transfers(step)
            each = in_parallel if len(transfers) > 1 else map
            list(each(self._transfer, [step] * len(transfers), transfers.values()))
        yield steps - 1

    def _transfer(self, step: int, routes: Sequence[int]) -> None:
        assignment = self._assignment
        for route in routes:
            batch = assignment.batch(step, route)
            self._work(
                "transfer", batch, self._times.transfer_s[batch], assignment.model_devices[route]
            )

    def _step(self, model: str, batch: int) -> None:
        self._device[model].acquire()  # released after the all-reduce
        self._work("step", batch, self._times.step_s[batch], model)

    def _produce(self, data: str, take: Callable[[], None] | None) -> Iterator[int]:
        assignment, times = self._assignment, self._times
        for step in assignment.steps_of(data):
            for route in assignment.feeds[data]:
                batch = assignment.batch(step, route)
                if take:
                    take()
                self._device[data].acquire()
                self._work("produce", batch, times.produce_s[batch], data)
                self._device[data].release()
            ready_s = self._now_s()
            yield step
            self._blocked_s += self._now_s() - ready_s

    def _read(self, batch: int) -> None:
        self._work("read", batch, self._times.read_s[batch])

    def _work(self, stage: str, batch: int, seconds: float, device: str = "") -> None:
        start_s = self._now_s()
        precise_sleep(seconds)
        self._spans.append(Span(device, stage, start_s, self._now_s(), batch))

    def _now_s(self) -> float:
        return time.perf_counter() - self._start_s

    def _busy_s(self) -> dict[str, float]:
        busy_s = dict.fromkeys(self._assignment.devices, 0.0)
        for span in self._spans:
            if span.kind in ("produce", "step"):
                busy_s[span.lane] += span.end_s - span.start_s
        return busy_s
