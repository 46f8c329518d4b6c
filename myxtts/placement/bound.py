"""The model of a placement: what its stages allow, from their times. No TensorFlow.

Reading, producing, transfer and step are stages in a row. Each serves batches in order, and hands
them on through bounded queues. `analytic_bound` is the limit of mean times, as a formula;
`simulate` follows times that vary through the queues.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, islice
from math import inf
from typing import NamedTuple

import numpy as np

from myxtts.devicefeed.routes import Route

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
    """

    read_s: np.ndarray
    produce_s: np.ndarray
    transfer_s: np.ndarray
    step_s: np.ndarray

    def __len__(self) -> int:
        return len(self.step_s)

    def __getitem__(self, stage: str) -> np.ndarray:
        return getattr(self, f"{stage}_s")

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "StageTimes":
        """Return the results of a function of the times of each stage."""
        return StageTimes(*(function(self[stage]) for stage in STAGES))

    def mean_s(self) -> dict[str, float]:
        return {stage: float(self[stage].mean()) for stage in STAGES}

    def per_reader(self, num_workers: int) -> "StageTimes":
        """Return the times with the mean that one of `num_workers` readers takes for a batch, from
        the times between two batches of all readers together, which arrive in bursts.
        """
        mean_s = num_workers * float(self.read_s.mean())
        return replace(self, read_s=np.full_like(self.read_s, mean_s))


class Work(NamedTuple):
    """How unlike devices share the work of a step.

    Attributes:
        batches: of each route; in sum one for each.
        produce, step: speeds of the devices in these stages, relative to the measured times.
        fixed: fraction of a step of each device that does not depend on its rows.
    """

    batches: Sequence[Fraction]
    produce: Mapping[str, float]
    step: Mapping[str, float]
    fixed: Mapping[str, float]

    @classmethod
    def equal(cls, routes: Sequence[Route]) -> "Work":
        devices = chain.from_iterable((*route.data_devices, route.model) for route in routes)
        speeds = dict.fromkeys(devices, 1.0)
        return cls([Fraction(1)] * len(routes), speeds, speeds, dict.fromkeys(speeds, 0.0))

    def steps(self, number: int, device: str) -> Fraction:
        """Return how long a device trains on the rows of a route, in measured steps."""
        fixed = _fraction(self.fixed[device])
        return (fixed + (1 - fixed) * self.batches[number]) / _fraction(self.step[device])


def scaled(times: StageTimes, routes: Sequence[Route], work: Work) -> StageTimes:
    """Return the times of the batches of the routes in turn as unlike devices take them."""
    result = times.map(np.copy)
    for number, route in enumerate(routes):
        for stage in ("read", "produce", "transfer"):
            result[stage][number :: len(routes)] *= float(work.batches[number])
        result.step_s[number :: len(routes)] *= float(work.steps(number, route.model))
        produce_s = result.produce_s[number :: len(routes)]
        produce_s /= [work.produce[device] for device in islice(route.turns(), len(produce_s))]
    return result


class QueueDepths(NamedTuple):
    """The settings of a run that say how far its stages run ahead; each is at least 1.

    Attributes:
        prefetch_buffer_size: steps in each feed, and as many batches of audio on its data device.
        buffer_size: batches on the host for each data device.
        num_workers: readers for each data device.
    """

    prefetch_buffer_size: int = 3
    buffer_size: int = 8
    num_workers: int = 2


DEFAULT_DEPTHS = QueueDepths()


class RunResult(NamedTuple):
    """Figures of a run of a placement, from empty queues to the end of the last step.

    Attributes:
        batches: steps times replicas.
        busy_s: time that each device produced or stepped, without the all-reduce and without
            waiting for other replicas.
    """

    duration_s: float
    batches: int
    busy_s: dict[str, float]
    model_devices: Sequence[str]

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
    """Return the figures of a run of these batches along the routes, which take them in turn.

    A stage is first in, first out: a batch ends at `max(ready, previous end, free place) + time`,
    so the times follow from each other step by step. Only a device that makes batches and also
    trains serves two streams. It serves them in the order of their requests, and a producer before
    a step that asks at the same time.

    Each data device has its own readers, which deliver in order, and one producer, which makes a
    batch for each of its routes and then puts all of them into its feed. The host takes the batches
    of a step from all feeds and queues the previous step, which hands them over: their transfer
    begins when that step begins, and the host goes on when it is done. A data device copies one
    batch at a time, also while it produces. All model devices step, and then reduce their
    gradients; a device that makes batches as well does so while it waits for them.

    Args:
        times: at least a batch for each route; those beyond a whole number of steps are left out.
        all_reduce_s: after each step of more than one replica.
    """
    models = [route.model for route in routes]
    steps = len(times) // len(models)
    batches = np.arange(steps * len(models)).reshape(steps, -1)
    makers: dict[str, _Maker] = {}
    for route in routes:
        for device in route.data_devices:
            if device not in makers:
                makers[device] = _Maker(device, routes, batches, times, depths)
    shared = [makers[model] for model in models if model in makers]
    step_s = times.step_s[batches]
    free_s = dict.fromkeys((*makers, *models), 0.0)
    host_s = ended_s = 0.0
    # One turn more than steps, since a step begins once the host has the batches of the next.
    for step in range(steps + 1):
        senders = [maker for maker in makers.values() if step < steps and maker.makes(step)]
        for maker in senders:
            host_s = maker.take(step, host_s, free_s)
        begin_s = host_s
        if step:
            begin_s = max(host_s, ended_s)
            for maker in shared:
                maker.make_until(begin_s, free_s)
            begins_s = [max(begin_s, free_s[model]) for model in models]
            ends_s = begins_s + step_s[step - 1]
            ended_s = float(np.max(ends_s))
            if len(models) > 1:
                ended_s += all_reduce_s
            free_s.update(zip(models, ends_s.tolist(), strict=True))
            for maker in shared:
                maker.make_until(ended_s, free_s, is_waiting=True)
            free_s.update({model: max(free_s[model], ended_s) for model in models})
        host_s = begin_s + max((maker.transfer_s(step) for maker in senders), default=0.0)
    busy_s = dict(zip(models, step_s.sum(axis=0).tolist(), strict=True))
    for device, maker in makers.items():
        busy_s[device] = busy_s.get(device, 0.0) + maker.busy_s
    return RunResult(ended_s, steps * len(models), busy_s, models)


class _Maker:
    """The readers and the producer of a data device, with the times when its batches and steps
    pass the stages.

    Lists of times are in order. Those of stages that limit an earlier one begin with a 0 for each
    place that is free at the start, so that entry n is the time that batch or step n waits for.

    Args:
        batches: int [steps, routes], of all routes.

    Attributes:
        busy_s: time that it produces.
    """

    def __init__(
        self,
        device: str,
        routes: Sequence[Route],
        batches: np.ndarray,
        times: StageTimes,
        depths: QueueDepths,
    ):
        fed = [number for number, route in enumerate(routes) if device in route.data_devices]
        data_devices = routes[fed[0]].data_devices
        # All routes of a data device share it with the same others, in the same turns.
        assert all(routes[number].data_devices == data_devices for number in fed)
        turns = enumerate(islice(routes[fed[0]].turns(), len(batches)))
        steps = np.array([step for step, turn in turns if turn == device], int)
        self._number_of = {step: number for number, step in enumerate(steps.tolist())}
        made = batches[steps][:, fed]
        sends = [routes[number].model != device for number in fed]
        self.busy_s = float(times.produce_s[made].sum())
        self._device = device
        self._step_batches = len(fed)
        self._read_s = times.read_s[made].ravel().tolist()
        self._produce_s = times.produce_s[made].ravel().tolist()
        self._transfer_s = times.transfer_s[made[:, sends]].sum(axis=1).tolist()
        self._workers = depths.num_workers
        self._delivered_s = [0.0] * depths.num_workers
        self._received_s = [0.0] * (depths.buffer_size + depths.prefetch_buffer_size)
        self._made_s: list[float] = []
        self._entered_s: list[float] = []
        self._taken_s = [0.0] * depths.prefetch_buffer_size

    def makes(self, step: int) -> bool:
        """Return whether this device makes the batches of a step."""
        return step in self._number_of

    def transfer_s(self, step: int) -> float:
        """Return the seconds in which the batches of a step go to other devices, one by one."""
        return self._transfer_s[self._number_of[step]]

    def take(self, step: int, host_s: float, free_s: dict[str, float]) -> float:
        """Make a step, and return when the host has taken it from the feed."""
        number = self._number_of[step]
        while len(self._made_s) < (number + 1) * self._step_batches:
            self._make(free_s)
        self._taken_s.append(max(host_s, self._enter(number)))
        return self._taken_s[-1]

    def make_until(self, end_s: float, free_s: dict[str, float], is_waiting: bool = False) -> None:
        """Make the batches for which the producer asks its device until then; while it waits for
        gradients, those that follow the first one of a step.
        """
        while len(self._made_s) < len(self._read_s) and self._request_s() <= end_s:
            if is_waiting and not len(self._made_s) % self._step_batches:
                break
            self._make(free_s)

    def _make(self, free_s: dict[str, float]) -> None:
        self._received_s.append(self._request_s())
        start_s = max(self._received_s[-1], free_s[self._device])
        free_s[self._device] = start_s + self._produce_s[len(self._made_s)]
        self._made_s.append(free_s[self._device])

    def _request_s(self) -> float:
        """Return when the producer receives its next batch and asks for the device; inf while its
        feed is full.
        """
        number = len(self._made_s)
        delivered = len(self._delivered_s) - self._workers
        if delivered == number:
            # A worker reads on once its batch is delivered: in order, into a place that is free.
            end_s = self._delivered_s[number] + self._read_s[number]
            self._delivered_s.append(max(end_s, self._delivered_s[-1], self._received_s[number]))
        idle_s = 0.0
        if number % self._step_batches:
            idle_s = self._made_s[-1]
        elif number:
            idle_s = self._enter(number // self._step_batches - 1)
        return max(idle_s, self._delivered_s[-1])

    def _enter(self, number: int) -> float:
        """Return when a step that is made enters the feed; inf until its place is known."""
        if number == len(self._entered_s):
            if number >= len(self._taken_s):
                return inf
            made_s = self._made_s[(number + 1) * self._step_batches - 1]
            self._entered_s.append(max(made_s, self._taken_s[number]))
        return self._entered_s[number]


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
    work: Work | None = None,
) -> tuple[str, float]:
    """Return the mean seconds per batch where no time varies and all queues are deep: the busiest
    resource decides.

    R, P, T, C and A are the seconds to read, produce, transfer, train on (consume) and all-reduce;
    V are those of validation and samples in a step of all replicas.

    Args:
        mean_s: of a batch, by stage: read (by one worker), produce, transfer, step.
        workers: readers of each data device.
        observe_s: V.
        observer: device that validates during training; empty if all model devices wait for the
            first one.
        work: the default is that of equal devices.

    Returns:
        The formula in words, such as `max(P, T, C) = max(20, 2, 22) = 22 ms`, and the seconds.
    """
    seconds = {letter: mean_s[stage] for stage, letter in LETTERS.items()}
    seconds |= {"A": all_reduce_s, "V": observe_s}
    if len(routes) == 1:
        seconds["A"] = 0.0
    loads_s: dict[str, float] = {}
    for load in _loads(routes, workers, observer, seconds, work or Work.equal(routes)):
        term = " + ".join(_format_term(n, letter) for letter, n in load.items())
        loads_s[term] = sum(float(n) * seconds[letter] for letter, n in load.items())
    bound_s = max(loads_s.values()) / len(routes)
    formula = ", ".join(loads_s)
    values = ", ".join(f"{1e3 * load_s:.4g}" for load_s in loads_s.values())
    if len(loads_s) > 1:
        formula, values = f"max({formula})", f"max({values})"
    elif len(routes) > 1:
        formula = f"({formula})"
    if len(routes) > 1:
        formula, values = (f"{text} / {len(routes)}" for text in (formula, values))
    if len(loads_s) > 1 or len(routes) > 1:
        values += f" = {1e3 * bound_s:.4g}"
    return f"{formula} = {values} ms", bound_s


def _loads(
    routes: Sequence[Route], workers: int, observer: str, seconds: Mapping[str, float], work: Work
) -> list[dict[str, Fraction]]:
    """Return how often each resource does what in a step, by letter; without what takes no time,
    and without resources that do no more than another one.

    Resources are each device, the copies from data devices that take turns, and the readers of
    each data device. A device that trains makes its first batch of a step before it trains, and
    others while gradients are reduced: so it is a resource by all its work, and by what it does
    one after the other. Data devices that take turns make their shares of the batches. Their
    transfers do not overlap, since each begins with the step before its own.
    """
    loads: defaultdict[object, defaultdict[str, Fraction]]
    loads = defaultdict(lambda: defaultdict(Fraction))
    for number, (count, route) in enumerate(zip(work.batches, routes, strict=True)):
        for device, part in parts_of(route).items():
            made = count * part / _fraction(work.produce[device])
            loads[device]["P"] += made
            loads["first", device].setdefault("P", made)
            if device != route.model:
                loads[route.data_devices]["T"] += count * part
        loads[route.model]["C"] = step = work.steps(number, route.model)
        loads["first", route.model] |= {"C": step, "A": Fraction(1)}
    observing = [observer] if observer else [route.model for route in routes]
    for device in observing:
        loads[device]["V"] = loads["first", device]["V"] = Fraction(1)
    for count, route in zip(work.batches, routes, strict=True):
        for device, part in parts_of(route).items():
            loads["readers", device]["R"] += count * part / workers
    kept: list[dict[str, Fraction]] = []
    for load in loads.values():
        taking = {letter: n for letter, n in load.items() if letter in "PC" or seconds[letter]}
        if taking and not any(_is_within(taking, other) for other in kept):
            kept = [other for other in kept if not _is_within(other, taking)]
            kept.append(taking)
    return kept


def parts_of(route: Route) -> dict[str, Fraction]:
    """Return the fraction of the batches of a route that each data device makes."""
    shares = [*map(_fraction, route.data_shares)] or [Fraction(1)] * len(route.data_devices)
    parts = [share / sum(shares) for share in shares]
    return dict(zip(route.data_devices, parts, strict=True))


def _is_within(load: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> bool:
    return all(n <= other.get(letter, 0) for letter, n in load.items())


def _fraction(speed: float) -> Fraction:
    return Fraction(speed).limit_denominator(10_000)


def _format_term(n: Fraction, letter: str) -> str:
    """Return n times a letter: `2 P`, `P / 2`, `1.31 P`."""
    if n.numerator > 1 and n.denominator > 4:
        return f"{float(n):.3g} {letter}"
    product = letter if n.numerator == 1 else f"{n.numerator} {letter}"
    return product if n.denominator == 1 else f"{product} / {n.denominator}"


class Speeds(NamedTuple):
    """Speeds of the GPUs, by their numbers, relative to the measured times of the stages, and the
    fraction of a step of each that does not depend on its rows, such as the weights' update. A
    GPU whose speed of a step is 0 does not train.
    """

    produce: tuple[float, ...]
    step: tuple[float, ...]
    fixed: tuple[float, ...]

    @classmethod
    def of(cls, speeds: Sequence[float], fixed: float = 0.0) -> "Speeds":
        return cls(tuple(speeds), tuple(speeds), (fixed,) * len(speeds))

    def bound_s(self, mean_s: Mapping[str, float]) -> float:
        """Return the least seconds per batch of these GPUs, in whatever placement: none ever waits,
        and each makes batches or trains on them by what it does relatively fast.
        """
        # Batches a second, of each GPU.
        made = np.divide(self.produce, max(mean_s["produce"], 1e-9))
        trained = np.divide(self.step, max(mean_s["step"], 1e-9))
        # The dual of a linear program: making a batch earns a price and training on it the rest of
        # 1, each GPU does what earns more, and of the prices the right one earns least in all. It
        # is one at which a GPU earns the same by both.
        price = (trained / (made + trained))[:, None]
        return 1.0 / float(np.maximum(price * made, (1.0 - price) * trained).sum(axis=1).min())
