"""The throughput of a placement by arithmetic on mean stage times. No TensorFlow."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

DeviceRoutes = Sequence[tuple[str, str]]  # (data device, model device) of each replica

LETTERS = {"read": "R", "produce": "P", "transfer": "T", "step": "C"}  # of the stages in formulas


def ring_all_reduce_s(two_replicas_s: float, replicas: int) -> float:
    """Return the all-reduce time of k replicas: in a ring, each device sends 2 (k - 1) / k of the gradient.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    return two_replicas_s * 2 * (replicas - 1) / replicas


def analytic_bound(
    routes: DeviceRoutes, mean_s: Mapping[str, float], workers: int, all_reduce_s: float = 0.0
) -> tuple[str, float]:
    """Return the mean seconds per batch where no time varies and all queues are deep: the busiest resource decides.

    Resources are each device, the stream of each data device that copies batches to other devices (TensorFlow has one
    for each GPU that sends), and the readers of each data device. R, P, T, C and A are the seconds to read, produce,
    transfer, train on (consume) and all-reduce.

    Args:
        mean_s: of a batch, by stage: read (by one worker), produce, transfer, step.
        workers: readers of each data device.

    Returns:
        The formula in words, such as `max(P, T, C) = max(20, 2, 22) = 22 ms`, and the seconds.
    """
    replicas = len(routes)
    seconds = {letter: mean_s[stage] for stage, letter in LETTERS.items()} | {"A": all_reduce_s}
    loads_s = {
        _format_sum(counts): sum(n * seconds[letter] for letter, n in counts.items())
        for counts in _resource_loads(routes, seconds)
    }
    for n in Counter(data for data, _ in routes).values() if seconds["R"] else ():
        loads_s[f"{_format_term(n, 'R')} / {workers}"] = n * seconds["R"] / workers
    bound_s = max(loads_s.values()) / replicas
    numbers = [f"{1e3 * load_s:.4g}" for load_s in loads_s.values()]
    if len(loads_s) == 1 and replicas == 1:
        return f"{next(iter(loads_s))} = {numbers[0]} ms", bound_s
    formula = f"max({', '.join(loads_s)})" if len(loads_s) > 1 else f"({next(iter(loads_s))})"
    values = f"max({', '.join(numbers)})" if len(loads_s) > 1 else numbers[0]
    divisor = f" / {replicas}" if replicas > 1 else ""
    return f"{formula}{divisor} = {values}{divisor} = {1e3 * bound_s:.4g} ms", bound_s


def _resource_loads(routes: DeviceRoutes, seconds: dict[str, float]) -> Iterator[dict[str, int]]:
    """Yield how often each stage runs on each device and copy stream in a step; without stages that take no time."""
    models = {model for _, model in routes}
    step = {"C": 1} | ({"A": 1} if len(routes) > 1 and seconds["A"] else {})
    data_devices = dict.fromkeys(data for data, _ in routes)
    for device in data_devices:
        consumers = [model for data, model in routes if data == device]
        transfers = len([model for model in consumers if model != device])
        yield {"P": len(consumers)} | (step if device in models else {})
        if transfers and seconds["T"]:
            yield {"T": transfers}
    if not models & set(data_devices):
        yield step


def _format_sum(counts: dict[str, int]) -> str:
    return " + ".join(_format_term(n, letter) for letter, n in counts.items())


def _format_term(n: int, letter: str) -> str:
    return letter if n == 1 else f"{n} {letter}"
