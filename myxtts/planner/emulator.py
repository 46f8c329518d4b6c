"""Placements run for real, with threads and the project's own Feed, but with stages that only sleep. No TensorFlow.

What is emulated are the times; the hand-off is not. MLPerf Storage measures in this way, too: the accelerator sleeps.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import Queue
from typing import NamedTuple

from myxtts.data.feed import Feed
from myxtts.errors import ConfigError
from myxtts.planner.simulator import USUAL, Depths, Outcome, Rounds, Stages

# On a busy 2-core machine `time.sleep` comes back 65 to 88 µs late in the median, and with its last part spent in a
# loop 2 to 6 µs, for 1 % of a core at stages of 20 ms.
SPIN_S = 200e-6
LONGEST_S = 60.0
MOST_VARIATION = 3.0


class Span(NamedTuple):
    """When a stage worked on a batch, in seconds since the run began.

    Attributes:
        lane: read, produce, transfer, step or all-reduce.
        batch: its number in the sequence; an all-reduce has the first of its round.
        device: where; the model device for a transfer; "" for reading and all-reduce.
    """

    lane: str
    batch: int
    start_s: float
    end_s: float
    device: str = ""


class Emulation(NamedTuple):
    """`spans` are in the order in which they ended; `blocked` are seconds from which, until which a feed was full."""

    outcome: Outcome
    spans: list[Span]
    blocked: list[tuple[float, float]]


def parse_emulation(text: str) -> dict[str, float]:
    """`produce=0.020,transfer=0.002,step=0.020` → the arguments of `Stages.constant` beside `n` and `seed`.

    `read=` and `transfer=` (seconds) and `variation=` may be left out and are 0 then.

    Raises:
        ConfigError: another name, one twice, none for produce or step, or a number out of bounds.
    """
    names = {"read": "read_s", "produce": "produce_s", "transfer": "transfer_s", "step": "step_s"}
    names["variation"] = "variation"
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in names or names[name] in found:
            fault = "names a stage twice" if name in names else f"has {name!r} for a stage"
            raise ConfigError(f"--emulate {text!r} {fault}. {_EXAMPLE}")
        found[names[name]] = _seconds(text, name, number)
    missing = [name for name in ("produce", "step") if not found.get(names[name])]
    if missing:
        raise ConfigError(f"--emulate {text!r} gives no time to {' and '.join(missing)}. {_EXAMPLE}")
    return dict.fromkeys(names.values(), 0.0) | found


_EXAMPLE = (
    "Write seconds as in produce=0.020,transfer=0.002,step=0.020; read= and variation= (standard deviation over "
    "mean) may follow."
)


def _seconds(text: str, name: str, number: str) -> float:
    most = MOST_VARIATION if name == "variation" else LONGEST_S
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= most:
        raise ConfigError(f"--emulate {text!r} has {name}={number}, not a number from 0 to {most:g}. {_EXAMPLE}")
    return value


def sleep(seconds: float) -> None:
    """Sleep more exactly than `time.sleep`, which comes back late; see SPIN_S."""
    end_s = time.perf_counter() + seconds
    if seconds > SPIN_S:
        time.sleep(seconds - SPIN_S)
    while time.perf_counter() < end_s:
        pass


@contextmanager
def real_time() -> Iterator[None]:
    """Run this thread, and those started in it, before all that has an ordinary priority.

    Devices that are emulated do not share the cores with the other programs of the machine. On 2 cores beside three
    trainings a sleep of 20 ms came back 0.6 to 2.2 ms late in the mean, and with this 5 µs.

    Raises:
        ConfigError: the system does not allow it, or has no such thing.
    """
    if not hasattr(os, "sched_setscheduler"):
        raise ConfigError(
            "Real-time priority was asked for, and this system has none. Leave it out, on a quiet machine."
        )
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError as error:
        raise ConfigError(
            "Real-time priority was asked for; this user may not have it. Run as root, or leave it out, on a quiet "
            "machine."
        ) from error
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def emulate(
    routes: Sequence[tuple[str, str]],
    stages: Stages,
    depths: Depths = USUAL,
    all_reduce_s: float = 0.0,
) -> Emulation:
    """Run batches along routes, in real time; the arguments are those of `simulate`.

    Reading has threads of its own only where it takes time.

    Raises:
        ValueError: as `simulate`.
    """
    return _Emulated(Rounds(routes, stages), stages, depths, all_reduce_s).run()


class _Turns:
    """A lock that goes to who asked first, as a device does; any thread may release it."""

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
        """From now on let everyone pass: nobody may be left waiting for a run that was broken off."""
        with self._mutex:
            self._open = True
            while self._waiting:
                self._waiting.popleft().release()


class _Reading:
    """Threads that read the batches of a data device in order, into a queue with a bound."""

    def __init__(self, batches: list[int], depths: Depths, read: Callable[[int], None]):
        self._batches, self._read = batches, read
        self._ready = Queue(depths.host + depths.uploaded)
        self._stopping = threading.Event()
        self._turns = [threading.Semaphore(0) for _ in range(depths.workers)]
        self._turns[0].release()
        self._threads = [threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(depths.workers)]

    def __enter__(self) -> "_Reading":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stopping.set()
        for turn in self._turns:
            turn.release()
        while any(thread.is_alive() for thread in self._threads):
            while not self._ready.empty():
                self._ready.get_nowait()  # frees a reader that is blocked on a full queue
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


class _Emulated:
    """One run: its devices, its feeds and what was measured."""

    def __init__(self, rounds: Rounds, stages: Stages, depths: Depths, all_reduce_s: float):
        self._rounds, self._stages, self._depths, self._all_reduce_s = rounds, stages, depths, all_reduce_s
        self._device = {device: _Turns() for device in rounds.devices}
        self._spans: list[Span] = []  # list.append is atomic
        self._wait_s = 0.0
        self._blocked: list[tuple[float, float]] = []
        self._start_s = 0.0

    def run(self) -> Emulation:
        rounds = self._rounds
        replicas = len(rounds.routes)
        with ExitStack() as opened:
            in_parallel = opened.enter_context(ThreadPoolExecutor(replicas)).map if replicas > 1 else map
            self._start_s = time.perf_counter()
            take = dict.fromkeys(rounds.feeds)
            if self._stages.read_s.any():
                for data in rounds.feeds:
                    reading = _Reading(rounds.batches_of(data), self._depths, self._read)
                    take[data] = opened.enter_context(reading).take
            produced = [self._produced(data, take[data]) for data in rounds.feeds]
            feeds = [opened.enter_context(Feed(batches, self._depths.device)) for batches in produced]
            for device in self._device.values():
                opened.callback(device.open)
            self._train(feeds, in_parallel)
            seconds = self._now_s()
        blocked_s = sum(end_s - start_s for start_s, end_s in self._blocked)
        return Emulation(rounds.outcome(seconds, self._wait_s, blocked_s, self._busy_s()), self._spans, self._blocked)

    def _train(self, feeds: list[Feed], in_parallel: Callable) -> None:
        rounds = self._rounds
        for round_ in range(rounds.count):
            idle_s = self._now_s()
            for feed in feeds:
                next(feed)
            self._wait_s += (self._now_s() - idle_s) * len(rounds.routes)
            batches = [rounds.batch(round_, route) for route in range(len(rounds.routes))]
            list(in_parallel(self._step, rounds.model_devices, batches))
            if len(rounds.routes) > 1 and self._all_reduce_s:
                self._work("all-reduce", batches[0], self._all_reduce_s)
            for model in rounds.model_devices:
                self._device[model].release()

    def _step(self, model: str, batch: int) -> None:
        self._device[model].acquire()  # released after the all-reduce
        self._work("step", batch, self._stages.step_s[batch], model)

    def _produced(self, data: str, take: Callable[[], None] | None) -> Iterator[int]:
        rounds, stages = self._rounds, self._stages
        for round_ in range(rounds.count):
            for route in rounds.feeds[data]:
                batch, model = rounds.batch(round_, route), rounds.model_devices[route]
                if take:
                    take()
                self._device[data].acquire()
                self._work("produce", batch, stages.produce_s[batch], data)
                self._device[data].release()
                if model != data:
                    self._work("transfer", batch, stages.transfer_s[batch], model)
            made_s = self._now_s()
            yield round_
            self._blocked.append((made_s, self._now_s()))

    def _read(self, batch: int) -> None:
        self._work("read", batch, self._stages.read_s[batch])

    def _work(self, lane: str, batch: int, seconds: float, device: str = "") -> None:
        start_s = self._now_s()
        sleep(seconds)
        self._spans.append(Span(lane, batch, start_s, self._now_s(), device))

    def _now_s(self) -> float:
        return time.perf_counter() - self._start_s

    def _busy_s(self) -> dict[str, float]:
        busy_s = dict.fromkeys(self._rounds.devices, 0.0)
        for span in self._spans:
            if span.lane in ("produce", "step"):
                busy_s[span.device] += span.end_s - span.start_s
        return busy_s
