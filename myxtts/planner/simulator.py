"""Throughput of a placement by simulation: queues with a bound between stages whose times vary. No TensorFlow.

One event after the other, in the order of time: each reader, producer, model device and the trainer is a generator
that yields what it waits for (seconds, or a place in a queue).
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from myxtts.config.schema import DataConfig

STAGES = ("read", "produce", "transfer", "step")
FREE = object()  # what lies in the queue of a device that nobody uses


@dataclass(frozen=True, eq=False)
class Stages:
    """Seconds of each batch in each stage, float64 [batches] each.

    Attributes:
        read_s: a reader reads and decodes it; the upload to the data device is part of it.
        produce_s: the data device makes its features.
        transfer_s: they go to the model device; not counted where that is the data device.
        step_s: the model device trains on it.

    Raises:
        ValueError: the lengths differ, there is no batch, or a time is negative or not finite.
    """

    read_s: np.ndarray
    produce_s: np.ndarray
    transfer_s: np.ndarray
    step_s: np.ndarray

    def __post_init__(self):
        for name in ("read_s", "produce_s", "transfer_s", "step_s"):
            times = np.asarray(getattr(self, name), np.float64)
            if times.shape != (len(self),) or not len(self):
                raise ValueError(
                    f"{name} has shape {times.shape}, and step_s {np.shape(self.step_s)}: one time a batch"
                )
            if not np.all(np.isfinite(times) & (times >= 0)):
                raise ValueError(f"{name} holds a time that is negative or not finite")
            object.__setattr__(self, name, times)

    def __len__(self) -> int:
        return len(self.step_s)

    @classmethod
    def constant(
        cls,
        n: int,
        read_s: float,
        produce_s: float,
        transfer_s: float,
        step_s: float,
        variation: float = 0.0,
        seed: int = 0,
    ) -> "Stages":
        """Times of these means; where `variation` is above 0 they vary as `varying` says, each stage by itself."""
        random = np.random.default_rng(seed)
        return cls(*(varying(random, mean_s, variation, n) for mean_s in (read_s, produce_s, transfer_s, step_s)))


def varying(random: np.random.Generator, mean_s: float, variation: float, n: int) -> np.ndarray:
    """`n` gamma distributed times of exactly this mean and exactly this standard deviation over mean.

    A sample of n has another deviation than its distribution, so its times are raised to the power that mends this, and
    then scaled.

    Raises:
        ValueError: n times cannot vary so much; the most is sqrt(n - 1), where all but one are 0.
    """
    if variation == 0.0:
        return np.full(n, mean_s)
    if variation > 0.9 * np.sqrt(n - 1):
        raise ValueError(f"{n} times cannot have a standard deviation of {variation:g} times their mean")
    times = random.gamma(variation**-2, size=n)
    times /= times.max()
    low, high = 0.0, 1.0
    while _variation(times**high) < variation:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _variation(times**middle) < variation else (low, middle)
    times **= high
    return times * (mean_s / times.mean())


def _variation(times: np.ndarray) -> float:
    return times.std() / times.mean()


@dataclass(frozen=True)
class Depths:
    """How many batches may be ready between two stages, and how many are read at a time.

    Attributes:
        device: rounds in each feed (`--prefetch-buffer-size`).
        uploaded: batches on each data device (the same setting).
        host: batches on the host for each data device (`--buffer-size`).
        workers: readers of each data device (`--num-workers`).

    Raises:
        ValueError: one is below 1.
    """

    device: int = 3
    uploaded: int = 3
    host: int = 8
    workers: int = 2

    @classmethod
    def of(cls, data: DataConfig) -> "Depths":
        return cls(data.prefetch_buffer_size, data.prefetch_buffer_size, data.buffer_size, data.num_workers)

    def __post_init__(self):
        if min(self.device, self.uploaded, self.host, self.workers) < 1:
            raise ValueError(f"each depth and the number of workers is at least 1, not {self}")


USUAL = Depths()  # the defaults of the settings


@dataclass(frozen=True)
class Outcome:
    """What a run of a placement came to, from empty queues to the end of the last step.

    Attributes:
        seconds: from the first batch's reading on.
        rounds: steps of all replicas together.
        batches: rounds times replicas.
        wait_s: time without a batch, summed over the model devices.
        blocked_s: time that producers stood before a full feed, summed over them.
        busy_s: of each device, the time that it produced or stepped; all-reduce and waiting for other replicas are
            no part of it.
    """

    seconds: float
    rounds: int
    batches: int
    wait_s: float
    blocked_s: float
    busy_s: dict[str, float]
    model_devices: tuple[str, ...]

    @property
    def batches_per_s(self) -> float:
        return self.batches / self.seconds

    @property
    def utilisation(self) -> float:
        """Share of the time that model devices work, their mean."""
        return sum(self.busy_s[device] for device in self.model_devices) / (self.seconds * len(self.model_devices))


def simulate(
    routes: Sequence[tuple[str, str]],
    stages: Stages,
    depths: Depths = USUAL,
    all_reduce_s: float = 0.0,
    link_s: float = 0.0,
) -> Outcome:
    """Run batches along routes, in a model of time.

    Batches go to the routes in turn. Each data device has readers of its own, which deliver in order, and a producer
    that serves all its routes: it takes their batches of a round one after the other, and puts them into its feed. The
    trainer takes a round from every feed; all model
    devices step, and then add up their gradients. A device does one thing at a time, whoever asked first; it is held
    while it waits for the other replicas and during the all-reduce.

    Args:
        routes: (data device, model device) of each replica.
        stages: batches beyond a whole number of rounds are left out.
        all_reduce_s: after each round of more than one replica.
        link_s: of each batch on a link that all readers share, one batch at a time.

    Raises:
        ValueError: no routes, a model device twice, or fewer batches than routes.
    """
    rounds = Rounds(routes, stages)
    world = _World(rounds, stages, depths, all_reduce_s, link_s)
    world.run()
    return rounds.outcome(world.ended_s, world.wait_s, world.blocked_s, world.busy_s)


class Rounds:
    """Which batch goes where: common to the simulation and the emulation.

    Attributes:
        count: how many.
        feeds: route numbers of each data device, in the order of the data devices' first routes.
    """

    def __init__(self, routes: Sequence[tuple[str, str]], stages: Stages):
        self.routes = tuple((data, model) for data, model in routes)
        self.model_devices = tuple(model for _, model in self.routes)
        if not self.routes or len(set(self.model_devices)) < len(self.routes):
            raise ValueError(f"one route for each of some different model devices is needed, not {self.routes}")
        self.count = len(stages) // len(self.routes)
        if not self.count:
            raise ValueError(f"{len(stages)} batches are less than a round of {len(self.routes)} routes")
        self.batches = self.count * len(self.routes)
        self.feeds: dict[str, list[int]] = {}
        for number, (data, _) in enumerate(self.routes):
            self.feeds.setdefault(data, []).append(number)
        self.devices = tuple(dict.fromkeys(device for route in self.routes for device in route))

    def batch(self, round_: int, route: int) -> int:
        return round_ * len(self.routes) + route

    def batches_of(self, data: str) -> list[int]:
        """The batches that a data device makes, in order."""
        return [self.batch(round_, route) for round_ in range(self.count) for route in self.feeds[data]]

    def outcome(self, seconds: float, wait_s: float, blocked_s: float, busy_s: dict[str, float]) -> Outcome:
        return Outcome(seconds, self.count, self.batches, wait_s, blocked_s, busy_s, self.model_devices)


Process = Generator[Any, Any, None]


class _Queue:
    """Items with a bound; who gets or puts first is served first. A device is a queue of one that holds FREE."""

    __slots__ = ("bound", "getters", "items", "putters")

    def __init__(self, bound: int = 1, *items: Any):
        self.bound, self.items = bound, deque(items)
        self.getters: deque[Process] = deque()
        self.putters: deque[tuple[Process, Any]] = deque()


class _World:
    """The processes of a run, and their time.

    A process yields seconds (float) to pass, a queue to get from, or (queue, item) to put.
    """

    def __init__(self, rounds: Rounds, stages: Stages, depths: Depths, all_reduce_s: float, link_s: float):
        self.now_s = self.ended_s = self.wait_s = self.blocked_s = 0.0
        self.busy_s = dict.fromkeys(rounds.devices, 0.0)
        self._due: list[tuple[float, int, Process, Any]] = []
        self._order = count()
        self._rounds, self._all_reduce_s, self._link_s = rounds, float(all_reduce_s), float(link_s)
        self._device = {device: _Queue(1, FREE) for device in rounds.devices}
        self._read = {data: _Queue(depths.host + depths.uploaded) for data in rounds.feeds}
        self._feed = {data: _Queue(depths.device) for data in rounds.feeds}
        self._link = _Queue(1, FREE)
        columns = (stages.read_s, stages.produce_s, stages.transfer_s, stages.step_s)
        read_s, produce_s, transfer_s, step_s = (column.tolist() for column in columns)
        for data in rounds.feeds:
            for reader in self._readers(data, depths.workers, read_s):
                self._start(reader)
            self._start(self._producer(data, produce_s, transfer_s))
        self._start(self._trainer(step_s))

    def run(self) -> None:
        while self._due:
            self.now_s, _, process, value = heappop(self._due)
            self._advance(process, value)

    def _start(self, process: Process) -> None:
        self._resume(process, None, 0.0)

    def _resume(self, process: Process, value: Any, in_s: float = 0.0) -> None:
        heappush(self._due, (self.now_s + in_s, next(self._order), process, value))

    def _advance(self, process: Process, value: Any) -> None:
        """Run a process until it has to wait."""
        while True:
            try:
                wish = process.send(value)
            except StopIteration:
                return
            if isinstance(wish, float):
                return self._resume(process, None, wish)
            if isinstance(wish, _Queue):
                if not wish.items:
                    return wish.getters.append(process)
                value = self._take(wish)
            else:
                queue, item = wish
                if len(queue.items) == queue.bound:
                    return queue.putters.append((process, item))
                self._lay(queue, item)
                value = None

    def _take(self, queue: _Queue) -> Any:
        item = queue.items.popleft()
        if queue.putters:
            putter, waiting = queue.putters.popleft()
            queue.items.append(waiting)
            self._resume(putter, None)
        return item

    def _lay(self, queue: _Queue, item: Any) -> None:
        if queue.getters:
            self._resume(queue.getters.popleft(), item)
        else:
            queue.items.append(item)

    def _readers(self, data: str, workers: int, read_s: list[float]) -> Iterator[Process]:
        """Those of a data device. Each reads every workers-th of its batches."""
        batches, turns = self._rounds.batches_of(data), [_Queue() for _ in range(workers)]
        turns[0].items.append(FREE)
        for worker, turn in enumerate(turns):
            following = turns[(worker + 1) % workers]
            yield self._reader(data, batches[worker::workers], read_s, turn, following)

    def _reader(self, data: str, batches: list[int], read_s: list[float], turn: _Queue, following: _Queue) -> Process:
        """A batch may leave in its turn only, as from a `Dataset.map` that keeps the order."""
        for batch in batches:
            yield read_s[batch]
            if self._link_s:
                yield self._link
                yield self._link_s
                yield self._link, FREE
            yield turn
            yield self._read[data], batch
            yield following, FREE

    def _producer(self, data: str, produce_s: list[float], transfer_s: list[float]) -> Process:
        rounds, device = self._rounds, self._device[data]
        for round_ in range(rounds.count):
            for route in rounds.feeds[data]:
                batch = yield self._read[data]
                yield device
                yield produce_s[batch]
                yield device, FREE
                self.busy_s[data] += produce_s[batch]
                if rounds.model_devices[route] != data:
                    yield transfer_s[batch]
            made_s = self.now_s
            yield self._feed[data], round_
            self.blocked_s += self.now_s - made_s

    def _trainer(self, step_s: list[float]) -> Process:
        rounds, devices = self._rounds, [self._device[model] for model in self._rounds.model_devices]
        done = _Queue(len(devices))
        for round_ in range(rounds.count):
            idle_s = self.now_s
            for data in rounds.feeds:
                yield self._feed[data]
            self.wait_s += (self.now_s - idle_s) * len(devices)
            for route in range(len(devices)):
                self._start_step(route, step_s[rounds.batch(round_, route)], done)
            for _ in devices:
                yield done
            if len(devices) > 1:
                yield self._all_reduce_s
            for device in devices:
                yield device, FREE
        self.ended_s = self.now_s

    def _start_step(self, route: int, step_s: float, done: _Queue) -> None:
        self._resume(self._step(self._rounds.model_devices[route], step_s, done), None)

    def _step(self, model: str, step_s: float, done: _Queue) -> Process:
        yield self._device[model]
        yield step_s
        self.busy_s[model] += step_s
        yield done, FREE
