"""The bound of a placement: what its stages allow, from their mean times. No TensorFlow.

Reading, producing, transfer and step are stages in a row. Each serves batches in order, and hands
them on through queues.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

import numpy as np

from myxtts.devicefeed.routes import Route

STAGES = ("read", "produce", "transfer", "step")
LETTERS = {"read": "R", "produce": "P", "transfer": "T", "step": "C"}  # of the stages in formulas


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


def ring_all_reduce_s(two_replicas_s: float, replicas: int) -> float:
    """Return the all-reduce time of k replicas: in a ring, each device sends 2 (k - 1) / k of the
    gradient.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    return two_replicas_s * 2 * (replicas - 1) / replicas


# `_loads` lists for each resource how often it does what in a step. Each list becomes a term in
# letters, such as `2 P + C`, and a number of seconds. The largest number is the bound of the step;
# divided by the replicas, it is the bound of a batch. The formula shows all terms, then all
# numbers.
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
    V is the time of validation and samples in a step of all replicas.

    Args:
        mean_s: of a batch, by stage: read (by one worker), produce, transfer, step.
        workers: readers of each data device.
        observe_s: V.
        observer: device that validates during training; empty if all model devices wait for the
            first one.
        work: by default all devices are equal.

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


# For each route: its data devices make their parts of its batches, and copies leave those that do
# not train. Its model device takes a step and reduces gradients. A second entry, "first", is the
# chain that a model device cannot overlap: its own first batch, the step, the all-reduce. Then the
# observer adds validation to its device, and readers are counted by data device. Last, loads that
# another load contains are dropped, since they can never decide.
def _loads(
    routes: Sequence[Route], workers: int, observer: str, seconds: Mapping[str, float], work: Work
) -> list[dict[str, Fraction]]:
    """Return how often each resource does what in a step, by letter; without what takes no time.

    A device that trains makes its first batch of a step before it trains, and others while
    gradients are reduced. Transfers of data devices that take turns do not overlap, since each
    begins with the step before its own.
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
    product = letter
    if n.numerator != 1:
        product = f"{n.numerator} {letter}"
    if n.denominator == 1:
        return product
    return f"{product} / {n.denominator}"


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
        # Batches per second of each GPU, if it did nothing else.
        made = np.divide(self.produce, max(mean_s["produce"], 1e-9))
        trained = np.divide(self.step, max(mean_s["step"], 1e-9))
        # How to divide the work is a linear program, and this is its dual. Making a batch earns a
        # price, training on it the rest of 1, and each GPU does what earns more. The right price is
        # the one at which all GPUs together earn least. At that price some GPU earns the same by
        # both, so only these prices are tried.
        price = (trained / (made + trained))[:, None]
        return 1.0 / float(np.maximum(price * made, (1.0 - price) * trained).sum(axis=1).min())
