"""Discrete-event simulation of a placement: bounded queues between stages whose times vary. No
TensorFlow.

Each reader, producer, step and the trainer is a generator that yields what it waits for: seconds,
or a place in a queue. The simulation resumes them in the order of simulated time.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from myxtts.placement.routes import Route
from myxtts.throughput.stage_times import StageTimes

TOKEN = object()  # in the queue of a free device


@dataclass(frozen=True)
class QueueDepths:
    """Capacities of the queues between stages, and the number of readers.

    Attributes:
        feed: steps in each feed, on the data device (`--prefetch-buffer-size`).
        uploaded: batches on each data device (the same setting).
        host: batches on the host for each data device (`--buffer-size`).
        workers: readers for each data device (`--num-workers`).

    Raises:
        ValueError: one is below 1.
    """

    feed: int = 3
    uploaded: int = 3
    host: int = 8
    workers: int = 2

    @classmethod
    def from_settings(
        cls, prefetch_buffer_size: int, buffer_size: int, num_workers: int
    ) -> "QueueDepths":
        return cls(prefetch_buffer_size, prefetch_buffer_size, buffer_size, num_workers)

    def __post_init__(self):
        if min(self.feed, self.uploaded, self.host, self.workers) < 1:
            raise ValueError(f"each depth and the number of workers must be at least 1: {self}")


DEFAULT_DEPTHS = QueueDepths()  # the defaults of the settings


@dataclass(frozen=True)
class RunResult:
    """Figures of a run of a placement, from empty queues to the end of the last step.

    Attributes:
        duration_s: from the start of the first read.
        steps: steps of all replicas together.
        batches: steps times replicas.
        wait_s: time in which no step ran, summed over the model devices.
        blocked_s: time that producers were blocked on a full feed, summed over them.
        busy_s: time that each device produced or stepped, without the all-reduce and without
            waiting for other replicas.
    """

    duration_s: float
    steps: int
    batches: int
    wait_s: float
    blocked_s: float
    busy_s: dict[str, float]
    model_devices: tuple[str, ...]

    @property
    def batches_per_s(self) -> float:
        return self.batches / self.duration_s

    @property
    def utilisation(self) -> float:
        """Fraction of the time that model devices are busy, averaged over them."""
        return sum(self.busy_s[device] for device in self.model_devices) / (
            self.duration_s * len(self.model_devices)
        )


def simulate(
    routes: Sequence[Route],
    times: StageTimes,
    depths: QueueDepths = DEFAULT_DEPTHS,
    all_reduce_s: float = 0.0,
    link_s: float = 0.0,
) -> RunResult:
    """Simulate a run of these batches along the routes.

    Routes take batches in turn. Each data device has its own readers, which deliver in order, and
    one producer, which makes a batch for each of its routes and then puts all of them into its
    feed; of several data devices of a route, each does so for every k-th step. The host takes the
    batches of a step from all feeds and queues the step before it, which hands them over: their
    transfer begins when that step begins, and the host goes on when it is done. A data device
    copies one batch at a time, also while it produces. All model devices step, and then reduce
    their gradients. A device does one thing at a time, in the order of requests; a model device
    stays occupied while it waits for other replicas and during the all-reduce.

    Args:
        times: batches beyond a whole number of steps are left out.
        all_reduce_s: after each step of more than one replica.
        link_s: per batch on a link that all readers share, one batch at a time.

    Raises:
        ValueError: no routes, a model device twice, fewer batches than routes, or two routes that
            share some but not all of their data devices.
    """
    assignment = BatchAssignment(routes, len(times))
    simulation = _Simulation(assignment, times, depths, all_reduce_s, link_s)
    simulation.run()
    return assignment.result(
        simulation.ended_s, simulation.wait_s, simulation.blocked_s, simulation.busy_s
    )


class BatchAssignment:
    """Which route takes which batch; common to the simulator and the emulator.

    Attributes:
        steps: steps of all replicas together.
        feeds: route numbers of each data device, in the order of the data devices' first routes.
    """

    def __init__(self, routes: Sequence[Route], batches: int):
        self.routes = tuple(routes)
        self.model_devices = tuple(route.model for route in self.routes)
        if not self.routes or len(set(self.model_devices)) < len(self.routes):
            raise ValueError(
                f"at least one route is needed, each with a model device of its own: {self.routes}"
            )
        self.steps = batches // len(self.routes)
        if not self.steps:
            raise ValueError(
                f"{batches} batches are not enough for one step on {len(self.routes)} routes"
            )
        self.batches = self.steps * len(self.routes)
        self.feeds: dict[str, list[int]] = {}
        self._turns: dict[
            str, tuple[int, int]
        ] = {}  # number of each data device among those that take turns
        for number, route in enumerate(self.routes):
            for turn, data in enumerate(route.data_devices):
                self.feeds.setdefault(data, []).append(number)
                if self._turns.setdefault(data, (turn, len(route.data_devices))) != (
                    turn,
                    len(route.data_devices),
                ):
                    raise ValueError(
                        f"data device {data} takes turns with others for some of its routes only:"
                        f" {routes}"
                    )
        self._transfers = {
            data: [number for number in numbers if self.routes[number].model != data]
            for data, numbers in self.feeds.items()
        }
        self.devices = tuple(
            dict.fromkeys(
                device for route in self.routes for device in (*route.data_devices, route.model)
            )
        )

    def steps_of(self, data: str) -> range:
        """Return the steps whose batches a data device makes."""
        first, producers = self._turns[data]
        return range(first, self.steps, producers)

    def data_devices(self, step: int) -> list[str]:
        """Return the data devices that make the batches of a step."""
        return [data for data, (turn, producers) in self._turns.items() if step % producers == turn]

    def transfers(self, step: int) -> dict[str, list[int]]:
        """Return the routes on which batches of a step travel to another device, for each data
        device that sends.
        """
        routes = {data: self._transfers[data] for data in self.data_devices(step)}
        return {data: numbers for data, numbers in routes.items() if numbers}

    def batch(self, step: int, route: int) -> int:
        return step * len(self.routes) + route

    def batches_from(self, data: str) -> list[int]:
        """Return the batches that a data device makes, in order."""
        return [
            self.batch(step, route) for step in self.steps_of(data) for route in self.feeds[data]
        ]

    def result(
        self, duration_s: float, wait_s: float, blocked_s: float, busy_s: dict[str, float]
    ) -> RunResult:
        return RunResult(
            duration_s, self.steps, self.batches, wait_s, blocked_s, busy_s, self.model_devices
        )


Process = Generator[Any, Any, None]


class _Queue:
    """A bounded queue that serves requests in order. A device is a queue of one; it contains TOKEN
    while free.
    """

    __slots__ = ("bound", "getters", "items", "putters")

    def __init__(self, bound: int = 1, *items: Any):
        self.bound, self.items = bound, deque(items)
        self.getters: deque[Process] = deque()
        self.putters: deque[tuple[Process, Any]] = deque()


class _Simulation:
    """The processes of a run, and their time.

    A process yields seconds (float) to pass, a queue to get from, or (queue, item) to put.
    """

    def __init__(
        self,
        assignment: BatchAssignment,
        times: StageTimes,
        depths: QueueDepths,
        all_reduce_s: float,
        link_s: float,
    ):
        self.now_s = self.ended_s = self.wait_s = self.blocked_s = 0.0
        self.busy_s = dict.fromkeys(assignment.devices, 0.0)
        self._events: list[tuple[float, int, Process, Any]] = []
        self._event_numbers = count()
        self._assignment, self._all_reduce_s, self._link_s = (
            assignment,
            float(all_reduce_s),
            float(link_s),
        )
        self._device = {device: _Queue(1, TOKEN) for device in assignment.devices}
        self._read = {data: _Queue(depths.host + depths.uploaded) for data in assignment.feeds}
        self._feed = {data: _Queue(depths.feed) for data in assignment.feeds}
        self._queued, self._handed = _Queue(), _Queue(1 + len(assignment.feeds))
        self._link = _Queue(1, TOKEN)
        columns = (times.read_s, times.produce_s, times.transfer_s, times.step_s)
        read_s, produce_s, transfer_s, step_s = (column.tolist() for column in columns)
        for data in assignment.feeds:
            for reader in self._readers(data, depths.workers, read_s):
                self._resume(reader)
            self._resume(self._producer(data, produce_s))
        self._resume(self._host(transfer_s))
        self._resume(self._trainer(step_s, transfer_s))

    def run(self) -> None:
        while self._events:
            self.now_s, _, process, value = heappop(self._events)
            self._advance(process, value)

    def _resume(self, process: Process, value: Any = None, in_s: float = 0.0) -> None:
        heappush(self._events, (self.now_s + in_s, next(self._event_numbers), process, value))

    def _advance(self, process: Process, value: Any) -> None:
        """Run a process until it has to wait."""
        while True:
            try:
                request = process.send(value)
            except StopIteration:
                return
            if isinstance(request, float):
                return self._resume(process, None, request)
            if isinstance(request, _Queue):
                if not request.items:
                    return request.getters.append(process)
                value = self._get(request)
            else:
                queue, item = request
                if len(queue.items) == queue.bound:
                    return queue.putters.append((process, item))
                self._put(queue, item)
                value = None

    def _get(self, queue: _Queue) -> Any:
        item = queue.items.popleft()
        if queue.putters:
            putter, waiting = queue.putters.popleft()
            queue.items.append(waiting)
            self._resume(putter)
        return item

    def _put(self, queue: _Queue, item: Any) -> None:
        if queue.getters:
            self._resume(queue.getters.popleft(), item)
        else:
            queue.items.append(item)

    def _readers(self, data: str, workers: int, read_s: list[float]) -> Iterator[Process]:
        """The readers of a data device; each reads every `workers`-th of its batches."""
        batches, turns = self._assignment.batches_from(data), [_Queue() for _ in range(workers)]
        turns[0].items.append(TOKEN)
        for worker, turn in enumerate(turns):
            next_turn = turns[(worker + 1) % workers]
            yield self._reader(data, batches[worker::workers], read_s, turn, next_turn)

    def _reader(
        self, data: str, batches: list[int], read_s: list[float], turn: _Queue, next_turn: _Queue
    ) -> Process:
        """Deliver each batch only in its turn, as a `Dataset.map` that keeps the order."""
        for batch in batches:
            yield read_s[batch]
            if self._link_s:
                yield self._link
                yield self._link_s
                yield self._link, TOKEN
            yield turn
            yield self._read[data], batch
            yield next_turn, TOKEN

    def _producer(self, data: str, produce_s: list[float]) -> Process:
        assignment, device = self._assignment, self._device[data]
        for step in assignment.steps_of(data):
            for _ in assignment.feeds[data]:
                batch = yield self._read[data]
                yield device
                yield produce_s[batch]
                yield device, TOKEN
                self.busy_s[data] += produce_s[batch]
            ready_s = self.now_s
            yield self._feed[data], step
            self.blocked_s += self.now_s - ready_s

    def _host(self, transfer_s: list[float]) -> Process:
        """Queue each step when its batches are transferred and those of the next step are taken."""
        assignment, steps = self._assignment, self._assignment.steps
        for step in range(steps):
            for data in assignment.data_devices(step):
                yield self._feed[data]
            if step:
                yield self._queued, step - 1
            else:
                self._hand_over(step, transfer_s)
            for _ in range(1 + len(assignment.transfers(step))):
                yield self._handed
        yield self._queued, steps - 1

    def _hand_over(self, step: int, transfer_s: list[float]) -> None:
        """Begin the transfers of a step, and tell the host that the step before it has begun."""
        self._put(self._handed, TOKEN)
        for routes in self._assignment.transfers(step).values():
            self._resume(
                self._transfer(
                    [transfer_s[self._assignment.batch(step, route)] for route in routes]
                )
            )

    def _transfer(self, times_s: list[float]) -> Process:
        yield from times_s
        yield self._handed, TOKEN

    def _trainer(self, step_s: list[float], transfer_s: list[float]) -> Process:
        assignment = self._assignment
        devices = [self._device[model] for model in assignment.model_devices]
        done = _Queue(len(devices))
        for step in range(assignment.steps):
            idle_since_s = self.now_s
            yield self._queued
            self.wait_s += (self.now_s - idle_since_s) * len(devices)
            if step + 1 < assignment.steps:
                self._hand_over(step + 1, transfer_s)
            for route, model in enumerate(assignment.model_devices):
                self._resume(self._step(model, step_s[assignment.batch(step, route)], done))
            for _ in devices:
                yield done
            if len(devices) > 1:
                yield self._all_reduce_s
            for device in devices:
                yield device, TOKEN
        self.ended_s = self.now_s

    def _step(self, model: str, step_s: float, done: _Queue) -> Process:
        yield self._device[model]
        yield step_s
        self.busy_s[model] += step_s
        yield done, TOKEN
