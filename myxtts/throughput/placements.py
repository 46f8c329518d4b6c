"""All placements that a number of GPUs allows, with the throughput that the simulator predicts. No
TensorFlow.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from myxtts.config.schema import ObserverPlace, PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement.routes import Placement, Route, named_data_gpus, plan_routes
from myxtts.throughput.model import (
    DEFAULT_DEPTHS,
    QueueDepths,
    RunResult,
    StageTimes,
    analytic_bound,
    ring_all_reduce_s,
    simulate,
)

# A smaller difference decides nothing: the predicted ratio of dual placement to two replicas was
# off by 5.6 % in the median of 11 measured tasks (docs/experiments/placement.md).
TIE_TOLERANCE = 0.06


@dataclass(frozen=True)
class MemoryBudget:
    """Memory that a placement needs and that the GPUs have, in MiB.

    Attributes:
        produce_mib: needed on a GPU that makes batches, including those in its feed.
        replica_mib: needed on a GPU that trains a replica, including its batch and the next one.
        limits_mib: of each GPU.
    """

    produce_mib: float
    replica_mib: float
    limits_mib: tuple[float, ...]


@dataclass(frozen=True)
class Candidate:
    """A placement to predict.

    Attributes:
        settings: what `plan_routes` makes the placement from.
        memory_shortage: which GPU lacks how much memory; "" where the placement fits.
    """

    settings: PlacementConfig
    placement: Placement
    memory_shortage: str = ""

    @property
    def name(self) -> str:
        models = self.settings.model_gpus
        shared = not set(named_data_gpus(self.settings)).isdisjoint(models) and len(models) > 1
        return self.placement.name + (", data GPU trains too" if shared else "")

    @property
    def routes(self) -> tuple[Route, ...]:
        return self.placement.routes

    @property
    def replicas(self) -> int:
        return len(self.placement.routes)

    @property
    def producers(self) -> int:
        """Data devices that take turns for each replica."""
        return len(self.placement.routes[0].data_devices)

    @property
    def gpus(self) -> int:
        return len(self.placement.devices)

    @property
    def flags(self) -> str:
        """Flags of `myxtts train` that select this placement."""
        data, models = named_data_gpus(self.settings), self.settings.model_gpus
        if not data and models == (0,):
            return "none"
        if not data and len(models) == 1:
            data = models
        return " ".join(
            _flag(role, gpus) for role, gpus in (("data", data), ("model", models)) if gpus
        )


@dataclass(frozen=True)
class Prediction:
    """Predicted throughput of a placement.

    Attributes:
        formula: the analytic bound in words; see `analytic_bound`.
        bound_s: its value, in seconds per batch.
        result: of the simulated run.
    """

    candidate: Candidate
    formula: str
    bound_s: float
    result: RunResult

    @property
    def batches_per_s(self) -> float:
        return self.result.batches_per_s

    @property
    def efficiency(self) -> float:
        """Fraction of the throughput that the analytic bound allows."""
        return self.batches_per_s * self.bound_s


def predict_all(
    candidates: Sequence[Candidate],
    times: StageTimes,
    depths: QueueDepths = DEFAULT_DEPTHS,
    all_reduce_s: float = 0.0,
    observe_s: float = 0.0,
) -> list[Prediction]:
    """Return a prediction for each placement that fits the memory, in the order of `rank`.

    Args:
        times: the same sequence of batches for all placements.
        all_reduce_s: between two replicas; see `ring_all_reduce_s`.
        observe_s: of validation, samples and evaluation, in a step of all replicas.
    """
    fitting = [candidate for candidate in candidates if not candidate.memory_shortage]
    useful = without_idle_producers(fitting, times.mean_s(), depths, all_reduce_s)
    return rank(predict(candidate, times, depths, all_reduce_s, observe_s) for candidate in useful)


def without_idle_producers(
    candidates: Iterable[Candidate],
    mean_s: Mapping[str, float],
    depths: QueueDepths,
    all_reduce_s: float,
) -> list[Candidate]:
    """Return the candidates without those whose last producer gains nothing, by the arithmetic on
    mean times.

    Args:
        mean_s: see `analytic_bound`.
    """

    def bound_s(routes: Sequence[Route]) -> float:
        return analytic_bound(
            routes, mean_s, depths.workers, ring_all_reduce_s(all_reduce_s, len(routes))
        )[1]

    useful = []
    for candidate in candidates:
        fewer = [replace(route, further_data=route.further_data[:-1]) for route in candidate.routes]
        if candidate.producers == 1 or bound_s(candidate.routes) < (1.0 - TIE_TOLERANCE) * bound_s(
            fewer
        ):
            useful.append(candidate)
    return useful


def rank(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Sort by throughput; within TIE_TOLERANCE fewer GPUs come first, and then fewer replicas."""
    remaining = sorted(predictions, key=lambda prediction: -prediction.batches_per_s)
    ranked = []
    while remaining:
        least_per_s = (1.0 - TIE_TOLERANCE) * remaining[0].batches_per_s
        tied = [prediction for prediction in remaining if prediction.batches_per_s >= least_per_s]
        ranked.append(
            min(
                tied,
                key=lambda prediction: (prediction.candidate.gpus, prediction.candidate.replicas),
            )
        )
        remaining.remove(ranked[-1])
    return ranked


def predict(
    candidate: Candidate,
    times: StageTimes,
    depths: QueueDepths = DEFAULT_DEPTHS,
    all_reduce_s: float = 0.0,
    observe_s: float = 0.0,
) -> Prediction:
    """Predict the throughput of a placement; see `predict_all` for the arguments."""
    reduce_s, observer = (
        ring_all_reduce_s(all_reduce_s, candidate.replicas),
        candidate.placement.observer,
    )
    formula, bound_s = analytic_bound(
        candidate.routes, times.mean_s(), depths.workers, reduce_s, observe_s, observer
    )
    observed = with_observation(times, candidate, observe_s)
    return Prediction(
        candidate, formula, bound_s, simulate(candidate.routes, observed, depths, reduce_s)
    )


def with_observation(times: StageTimes, candidate: Candidate, observe_s: float) -> StageTimes:
    """Return the times with those of validation and samples, spread evenly over the batches of
    their device.

    Several data devices that take turns share them here, although the first one observes. A device
    that does nothing else works on them in the time of the steps, and bounds these.

    Args:
        times: of the replicas in turn.
        observe_s: in a step of all replicas.
    """
    routes, observer = candidate.routes, candidate.placement.observer
    if not observer:
        return replace(times, step_s=times.step_s + observe_s)
    fed = [number for number, route in enumerate(routes) if observer in route.data_devices]
    trained = [number for number, route in enumerate(routes) if observer == route.model]
    produce_s, step_s = times.produce_s.copy(), times.step_s.copy()
    for number in fed:
        produce_s[number :: len(routes)] += observe_s / len(fed)
    for number in trained if not fed else ():
        step_s[number :: len(routes)] += observe_s
    if not fed and not trained:
        step_s = np.maximum(step_s, observe_s)
    return replace(times, produce_s=produce_s, step_s=step_s)


def candidate_placements(
    gpus: int, memory: MemoryBudget | None = None, observer: ObserverPlace = "auto"
) -> list[Candidate]:
    """Return every placement that flags can select on a number of equal GPUs, one for each way to
    share the roles.

    Where the roles do not fit the GPUs in order, those that need more memory go to GPUs that have
    more.

    Args:
        observer: value of --observer.
    """
    return [
        _candidate(data, models, gpus, memory, observer)
        for data, models in _role_assignments(gpus, memory)
    ]


def _flag(role: str, gpus: Sequence[int]) -> str:
    return f"--{role}-gpu{'s' * (len(gpus) > 1)} {' '.join(map(str, gpus))}"


def _role_assignments(
    gpus: int, memory: MemoryBudget | None
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (data GPUs, model GPUs); there are no data GPUs where each replica makes its own
    batches.
    """
    produce_mib, replica_mib = (memory.produce_mib, memory.replica_mib) if memory else (0.0, 0.0)
    both_mib = produce_mib + replica_mib
    for replicas in range(1, gpus + 1):
        yield (), _assign_gpus([both_mib] * replicas, gpus, memory)
    for producers in range(1, gpus):
        for replicas in range(1, gpus - producers + 1):
            assigned = _assign_gpus(
                [produce_mib] * producers + [replica_mib] * replicas, gpus, memory
            )
            yield assigned[:producers], assigned[producers:]
    for replicas in range(2, gpus + 1):
        shared = _assign_gpus([both_mib] + [replica_mib] * (replicas - 1), gpus, memory)
        yield shared[:1], shared


def _assign_gpus(needs_mib: list[float], gpus: int, memory: MemoryBudget | None) -> tuple[int, ...]:
    """Return a GPU for each need: in order where all fit, otherwise the largest GPU for the largest
    need.
    """
    limits = memory.limits_mib if memory else (0.0,) * gpus
    if all(need <= limit for need, limit in zip(needs_mib, limits, strict=False)):
        return tuple(range(len(needs_mib)))
    largest = sorted(range(gpus), key=lambda gpu: -limits[gpu])[: len(needs_mib)]
    by_role = dict(
        zip(sorted(range(len(needs_mib)), key=lambda role: -needs_mib[role]), largest, strict=True)
    )
    return tuple(by_role[role] for role in range(len(needs_mib)))


def _candidate(
    data: tuple[int, ...],
    models: tuple[int, ...],
    gpus: int,
    memory: MemoryBudget | None,
    observer: ObserverPlace,
) -> Candidate:
    settings = PlacementConfig(data_gpus=data, model_gpus=models, observer=observer)
    shortage = _memory_shortage(data, models, memory) if memory else ""
    return Candidate(settings, plan_routes(settings, gpus), shortage)


def _memory_shortage(data: tuple[int, ...], models: tuple[int, ...], memory: MemoryBudget) -> str:
    for gpu in sorted({*models, *data}):
        produces, trains = gpu in (data or models), gpu in models
        needs_mib = {
            "to produce": memory.produce_mib * produces,
            "to train": memory.replica_mib * trains,
        }
        need_mib = sum(needs_mib.values())
        if need_mib > memory.limits_mib[gpu]:
            roles = " and ".join(f"{mib:g} {role}" for role, mib in needs_mib.items() if mib)
            return f"GPU {gpu} has {memory.limits_mib[gpu]:g} MiB and needs {need_mib:g} ({roles})"
    return ""


def format_table(ranked: Sequence[Prediction], candidates: Sequence[Candidate]) -> list[str]:
    """Return lines with the predictions, the candidates that do not fit the memory, and the best
    placement.

    Raises:
        PlacementError: there is no prediction.
    """
    excluded = [candidate for candidate in candidates if candidate.memory_shortage]
    shortages = list(dict.fromkeys(candidate.memory_shortage for candidate in excluded))
    if not ranked:
        raise PlacementError(
            f"no placement fits the memory: {'; '.join(shortages)}. Lower the batch size or use"
            " larger GPUs."
        )
    rows = [("placement", "flags", "batches/s", "of bound", "busy", "time per batch")]
    for prediction in ranked:
        candidate = prediction.candidate
        percentages = f"{prediction.efficiency:.1%}", f"{prediction.result.utilisation:.1%}"
        rate = f"{prediction.batches_per_s:.2f}"
        rows.append((candidate.name, candidate.flags, rate, *percentages, prediction.formula))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        left = "  ".join(
            f"{text:<{width}}" for text, width in zip(row[:2], widths[:2], strict=True)
        )
        right = "  ".join(
            f"{text:>{width}}" for text, width in zip(row[2:5], widths[2:], strict=True)
        )
        lines.append(f"{left}  {right}  {row[5]}")
    for shortage in shortages:
        names = dict.fromkeys(
            candidate.name for candidate in excluded if candidate.memory_shortage == shortage
        )
        lines.append(f"left out: {'; '.join(names)}: {shortage}")
    best = ranked[0]
    return [
        *lines,
        f"best: {best.candidate.name}, {best.batches_per_s:.2f} batches/s (flags:"
        f" {best.candidate.flags})",
    ]
