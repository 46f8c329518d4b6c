"""The throughput of a placement by arithmetic on mean stage times. No TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from myxtts.placement.routes import Route

LETTERS = {"read": "R", "produce": "P", "transfer": "T", "step": "C"}  # of the stages in formulas


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
    replicas = len(routes)
    seconds = {letter: mean_s[stage] for stage, letter in LETTERS.items()} | {
        "A": all_reduce_s,
        "V": observe_s,
    }
    loads_s = dict(_resource_loads(routes, seconds, workers, observer))
    bound_s = max(loads_s.values()) / replicas
    numbers = [f"{1e3 * load_s:.4g}" for load_s in loads_s.values()]
    if len(loads_s) == 1 and replicas == 1:
        return f"{next(iter(loads_s))} = {numbers[0]} ms", bound_s
    formula = f"max({', '.join(loads_s)})" if len(loads_s) > 1 else f"({next(iter(loads_s))})"
    values = f"max({', '.join(numbers)})" if len(loads_s) > 1 else numbers[0]
    divisor = f" / {replicas}" if replicas > 1 else ""
    return f"{formula}{divisor} = {values}{divisor} = {1e3 * bound_s:.4g} ms", bound_s


def _resource_loads(
    routes: Sequence[Route], seconds: Mapping[str, float], workers: int, observer: str
) -> Iterator[tuple[str, float]]:
    """Yield each resource's load in a step, in words and in seconds; without stages that take no
    time.
    """
    models = {route.model for route in routes}
    step = {
        letter: Fraction(1)
        for letter in ("C", "A")
        if letter == "C" or (len(routes) > 1 and seconds["A"])
    }
    observed = {"V": Fraction(1)} if seconds["V"] else {}
    step |= {} if observer else observed
    # Data devices that take turns -> the model devices that they feed.
    groups: dict[tuple[str, ...], list[str]] = {}
    for route in routes:
        groups.setdefault(route.data_devices, []).append(route.model)
    for data_devices, fed in groups.items():
        made = Fraction(len(fed), len(data_devices))  # by each data device
        for device in data_devices:
            own = observed if device == observer else {}
            yield _load({"P": made} | (step if device in models else {}) | own, seconds)
        # In as many steps as devices.
        sent = [model for device in data_devices for model in fed if model != device]
        if sent and seconds["T"]:
            yield _load({"T": Fraction(len(sent), len(data_devices))}, seconds)
    producers = {device for data_devices in groups for device in data_devices}
    if observed and observer in models - producers:
        yield _load(step | observed, seconds)
    elif not models & producers:
        yield _load(step, seconds)
    if observed and observer and observer not in models | producers:
        yield _load(observed, seconds)
    for data_devices, fed in groups.items() if seconds["R"] else ():
        yield _load({"R": Fraction(len(fed), len(data_devices))}, seconds, workers)


def _load(
    counts: Mapping[str, Fraction], seconds: Mapping[str, float], divisor: int = 1
) -> tuple[str, float]:
    text = " + ".join(_format_term(n, letter, divisor) for letter, n in counts.items())
    return text, sum(float(n) * seconds[letter] for letter, n in counts.items()) / divisor


def _format_term(n: Fraction, letter: str, divisor: int) -> str:
    """Return n times a letter, divided: `2 P`, `P / 2`, `2 R / 2`."""
    product = letter if n.numerator == 1 else f"{n.numerator} {letter}"
    divisor *= n.denominator
    return product if divisor == 1 else f"{product} / {divisor}"
