"""The model of a placement: what its stages allow, from their times. No TensorFlow.

Reading, producing, transfer and step are stages in a row. Each serves batches in order, and hands
them on through bounded queues. `analytic_bound` is the limit of mean times, as a formula;
`simulate` follows times that vary through the queues.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf

import numpy as np

from myxtts.placement.routes import Route

STAGES = ("read", "produce", "transfer", "step")
LETTERS = {"read": "R", "produce": "P", "transfer": "T", "step": "C"}  # of the stages in formulas


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Seconds that each batch takes in each stage, float64 [batches] each; `times["read"]` is
    `times.read_s`.

    Attributes:
        read_s: reading, decoding and uploading to the data device.
        produce_s: computing features on the data device.
        transfer_s: copying features to the model device; ignored where both are the same device.
        step_s: training on the model device.

    Raises:
        ValueError: the lengths differ, there is no batch, or a time is negative or not finite.
    """

    read_s: np.ndarray
    produce_s: np.ndarray
    transfer_s: np.ndarray
    step_s: np.ndarray

    def __post_init__(self):
        for stage in STAGES:
            times = np.asarray(self[stage], np.float64)
            if times.shape != (len(self),) or not len(self):
                raise ValueError(
                    f"{stage}_s has shape {times.shape} and step_s has shape"
                    f" {np.shape(self.step_s)}: each needs one time per batch"
                )
            if not np.all(np.isfinite(times) & (times >= 0)):
                raise ValueError(f"{stage}_s contains a negative or non-finite time")
            object.__setattr__(self, f"{stage}_s", times)

    def __len__(self) -> int:
        return len(self.step_s)

    def __getitem__(self, stage: str) -> np.ndarray:
        return getattr(self, f"{stage}_s")

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "StageTimes":
        """Return the results of a function of the times of each stage."""
        return StageTimes(*(function(self[stage]) for stage in STAGES))

    def mean_s(self) -> dict[str, float]:
        return {stage: float(self[stage].mean()) for stage in STAGES}


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


# The defaults of the settings.
DEFAULT_DEPTHS = QueueDepths()


@dataclass(frozen=True)
class RunResult:
    """Figures of a run of a placement, from empty queues to the end of the last step.

    Attributes:
        duration_s: from the start of the first read.
        steps: steps of all replicas together.
        batches: steps times replicas.
        busy_s: time that each device produced or stepped, without the all-reduce and without
            waiting for other replicas.
    """

    duration_s: float
    steps: int
    batches: int
    busy_s: dict[str, float]
    model_devices: tuple[str, ...]

    @property
    def batches_per_s(self) -> float:
        return self.batches / self.duration_s

    @property
    def utilisation(self) -> float:
        """Fraction of the time that model devices are busy, averaged over them."""
        busy_s = sum(self.busy_s[device] for device in self.model_devices)
        return busy_s / (self.duration_s * len(self.model_devices))


def simulate(
    routes: Sequence[Route],
    times: StageTimes,
    depths: QueueDepths = DEFAULT_DEPTHS,
    all_reduce_s: float = 0.0,
) -> RunResult:
    """Return the figures of a run of these batches along the routes.

    A stage is first in, first out: a batch ends at `max(ready, previous end, free place) + time`,
    so the times follow from each other step by step. Only a device that makes batches and also
    trains serves two streams. It serves them in the order of their requests, and a producer before
    a step that asks at the same time.

    Each data device has its own readers, which deliver in order, and one producer, which makes a
    batch for each of its routes and then puts all of them into its feed. The host takes the batches
    of a step from all feeds and queues the previous step, which hands them over: their transfer
    begins when that step begins, and the host goes on when it is done. A data device copies one
    batch at a time, also while it produces. All model devices step, and then reduce their
    gradients; they stay occupied until the last one is done.

    Args:
        times: batches beyond a whole number of steps are left out.
        all_reduce_s: after each step of more than one replica.

    Raises:
        ValueError: no routes, a model device twice, fewer batches than routes, or two routes that
            share some but not all of their data devices.
    """
    models = [route.model for route in routes]
    steps = _step_count(models, len(times))
    # Routes take batches in turn.
    batches = np.arange(steps * len(models)).reshape(steps, -1)
    makers = _makers(routes, batches, times, depths)
    shared = [makers[model] for model in models if model in makers]
    step_s = times.step_s[batches]
    free_s = {device: 0.0 for device in (*makers, *models)}
    host_s = ended_s = 0.0
    # The host takes the batches of a step, and then the previous step begins.
    for step in range(steps + 1):
        senders = [maker for maker in makers.values() if step < steps and maker.makes(step)]
        for maker in senders:
            host_s = maker.take(host_s, free_s)
        begin_s = host_s
        if step:
            begin_s = max(host_s, ended_s)
            for maker in shared:
                maker.make_until(begin_s, free_s)
            begins_s = [max(begin_s, free_s[model]) for model in models]
            ended_s = float(np.max(begins_s + step_s[step - 1]))
            if len(models) > 1:
                ended_s += all_reduce_s
            free_s.update(dict.fromkeys(models, ended_s))
        host_s = begin_s + max((maker.transfer_s(step) for maker in senders), default=0.0)
    busy_s = dict(zip(models, step_s.sum(axis=0).tolist(), strict=True))
    for device, maker in makers.items():
        busy_s[device] = busy_s.get(device, 0.0) + maker.busy_s
    return RunResult(ended_s, steps, steps * len(models), busy_s, tuple(models))


def _step_count(models: Sequence[str], batches: int) -> int:
    if not models or len(set(models)) < len(models):
        raise ValueError(
            f"at least one route is needed, each with a model device of its own: {models}"
        )
    if batches < len(models):
        raise ValueError(f"{batches} batches are not enough for a step on {len(models)} routes")
    return batches // len(models)


def _makers(
    routes: Sequence[Route], batches: np.ndarray, times: StageTimes, depths: QueueDepths
) -> dict[str, "_Maker"]:
    """Return the data devices of the routes by name, in the order of their first routes."""
    fed: dict[str, list[int]] = {}
    turns: dict[str, tuple[int, int]] = {}
    for number, route in enumerate(routes):
        for turn, data in enumerate(route.data_devices):
            fed.setdefault(data, []).append(number)
            place = turn, len(route.data_devices)
            if turns.setdefault(data, place) != place:
                raise ValueError(
                    f"data device {data} takes turns with others for some of its routes only:"
                    f" {routes}"
                )
    makers = {}
    for data, numbers in fed.items():
        first, producers = turns[data]
        sends = [routes[number].model != data for number in numbers]
        own = batches[first::producers, numbers]
        makers[data] = _Maker(data, turns[data], own, sends, times, depths)
    return makers


class _Maker:
    """The readers and the producer of a data device. Its lists are in the order of its batches or
    steps.

    Args:
        turn: the number of its first step, and how many steps the next one is later.
        batches: int [steps, routes], that it makes.
        sends: for each route, whether its batches go to another device.

    Attributes:
        busy_s: time that it produces.
    """

    def __init__(
        self,
        device: str,
        turn: tuple[int, int],
        batches: np.ndarray,
        sends: Sequence[bool],
        times: StageTimes,
        depths: QueueDepths,
    ):
        self.busy_s = float(times.produce_s[batches].sum())
        self._device = device
        self._first_step, self._producers = turn
        self._depths = depths
        self._step_batches = len(sends)
        self._read_s = times.read_s[batches].ravel().tolist()
        self._produce_s = times.produce_s[batches].ravel().tolist()
        self._transfer_s = times.transfer_s[batches[:, list(sends)]].sum(axis=1).tolist()
        self._delivered_s: list[float] = []
        self._received_s: list[float] = []
        self._made_s: list[float] = []
        self._entered_s: list[float] = []
        self._taken_s: list[float] = []

    def makes(self, step: int) -> bool:
        """Return whether this device makes the batches of a step."""
        return step % self._producers == self._first_step

    def transfer_s(self, step: int) -> float:
        """Return the seconds in which the batches of a step go to other devices, one by one."""
        return self._transfer_s[step // self._producers]

    def take(self, host_s: float, free_s: dict[str, float]) -> float:
        """Make the next step of the feed, and return when the host has taken it."""
        number = len(self._taken_s)
        while len(self._made_s) < (number + 1) * self._step_batches:
            self._make(free_s)
        self._enter(number)
        self._taken_s.append(max(host_s, self._entered_s[number]))
        return self._taken_s[number]

    def make_until(self, end_s: float, free_s: dict[str, float]) -> None:
        """Make the batches for which the producer asks its device until then."""
        while len(self._made_s) < len(self._read_s) and self._request_s() <= end_s:
            self._make(free_s)

    def _make(self, free_s: dict[str, float]) -> None:
        received_s = self._request_s()
        self._received_s.append(received_s)
        end_s = max(received_s, free_s[self._device]) + self._produce_s[len(self._made_s)]
        free_s[self._device] = end_s
        self._made_s.append(end_s)

    def _request_s(self) -> float:
        """Return when the producer receives its next batch and asks for the device; inf while its
        feed is full.
        """
        number = len(self._made_s)
        if len(self._delivered_s) == number:
            self._deliver(number)
        idle_s = 0.0
        if number % self._step_batches:
            idle_s = self._made_s[-1]
        elif number:
            idle_s = self._enter(number // self._step_batches - 1)
        return max(idle_s, self._delivered_s[number])

    def _deliver(self, number: int) -> None:
        """Read a batch: by the worker whose turn it is, in order, into a place that is free."""
        workers = self._depths.workers
        places = self._depths.host + self._depths.uploaded
        end_s = self._read_s[number]
        if number >= workers:
            end_s += self._delivered_s[number - workers]
        if number:
            end_s = max(end_s, self._delivered_s[-1])
        if number >= places:
            end_s = max(end_s, self._received_s[number - places])
        self._delivered_s.append(end_s)

    def _enter(self, step: int) -> float:
        """Return when a step that is made enters the feed; inf until its place is known."""
        if step == len(self._entered_s):
            made_s = self._made_s[(step + 1) * self._step_batches - 1]
            freed = step - self._depths.feed
            if freed >= len(self._taken_s):
                return inf
            self._entered_s.append(max(made_s, self._taken_s[freed]) if freed >= 0 else made_s)
        return self._entered_s[step]


def ring_all_reduce_s(two_replicas_s: float, replicas: int) -> float:
    """Return the all-reduce time of k replicas: in a ring, each device sends 2 (k - 1) / k of the
    gradient.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    return two_replicas_s * 2 * (replicas - 1) / replicas


def analytic_bound(
    routes: Sequence[Route],
    mean_s: Mapping[str, float],
    workers: int,
    all_reduce_s: float = 0.0,
    observe_s: float = 0.0,
    observer: str = "",
) -> tuple[str, float]:
    """Return the mean seconds per batch where no time varies and all queues are deep: the busiest
    resource decides.

    Resources are each device, the stream of each data device that copies batches to other devices
    (TensorFlow has one for each GPU that sends), and the readers of each data device. R, P, T, C
    and A are the seconds to read, produce, transfer, train on (consume) and all-reduce; V are those
    of validation and samples in a step of all replicas. Of k data devices that take turns, each
    makes a k-th of the batches. Their transfers do not overlap, since each begins with the step
    before its own.

    Args:
        mean_s: of a batch, by stage: read (by one worker), produce, transfer, step.
        workers: readers of each data device.
        observe_s: V.
        observer: device that validates during training; empty if all model devices wait for the
            first one.

    Returns:
        The formula in words, such as `max(P, T, C) = max(20, 2, 22) = 22 ms`, and the seconds.
    """
    seconds = {letter: mean_s[stage] for stage, letter in LETTERS.items()}
    seconds |= {"A": all_reduce_s, "V": observe_s}
    if len(routes) == 1:
        seconds["A"] = 0.0
    # The term of a resource -> its seconds in a step; equal terms are one.
    loads_s: dict[str, float] = {}
    for counts, divisor in _resource_loads(routes, seconds, workers, observer):
        term = " + ".join(_format_term(n, letter, divisor) for letter, n in counts.items())
        loads_s[term] = sum(float(n) * seconds[letter] for letter, n in counts.items()) / divisor
    bound_s = max(loads_s.values()) / len(routes)
    formula = ", ".join(loads_s)
    values = ", ".join(f"{1e3 * load_s:.4g}" for load_s in loads_s.values())
    if len(loads_s) > 1:
        formula = f"max({formula})"
        values = f"max({values})"
    elif len(routes) > 1:
        formula = f"({formula})"
    if len(routes) > 1:
        formula += f" / {len(routes)}"
        values += f" / {len(routes)}"
    if len(loads_s) == len(routes) == 1:
        return f"{formula} = {values} ms", bound_s
    return f"{formula} = {values} = {1e3 * bound_s:.4g} ms", bound_s


def _resource_loads(
    routes: Sequence[Route], seconds: Mapping[str, float], workers: int, observer: str
) -> Iterator[tuple[dict[str, Fraction], int]]:
    """Yield what each resource does in a step: how often by letter, and the divisor of the whole;
    without stages that take no time.
    """
    once = Fraction(1)
    models = {route.model for route in routes}
    step = {"C": once}
    if seconds["A"]:
        step["A"] = once
    observed = {"V": once} if seconds["V"] else {}
    if not observer:
        step |= observed
    # Data devices that take turns -> the model devices that they feed.
    groups: dict[tuple[str, ...], list[str]] = {}
    for route in routes:
        groups.setdefault(route.data_devices, []).append(route.model)
    for data_devices, fed in groups.items():
        for device in data_devices:
            load = {"P": Fraction(len(fed), len(data_devices))}
            if device in models:
                load |= step
            if device == observer:
                load |= observed
            yield load, 1
        # The model devices that each data device sends to, in as many steps as there are devices.
        sent = sum(len(fed) - fed.count(device) for device in data_devices)
        if sent and seconds["T"]:
            yield {"T": Fraction(sent, len(data_devices))}, 1
    producers = set().union(*groups)
    if observed and observer in models - producers:
        yield step | observed, 1
    elif not models & producers:
        yield step, 1
    if observed and observer and observer not in models | producers:
        yield observed, 1
    if seconds["R"]:
        for data_devices, fed in groups.items():
            yield {"R": Fraction(len(fed), len(data_devices))}, workers


def _format_term(n: Fraction, letter: str, divisor: int) -> str:
    """Return n times a letter, divided: `2 P`, `P / 2`, `2 R / 2`."""
    product = letter if n.numerator == 1 else f"{n.numerator} {letter}"
    divisor *= n.denominator
    return product if divisor == 1 else f"{product} / {divisor}"
