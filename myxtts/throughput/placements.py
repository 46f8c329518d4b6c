"""All placements that a number of GPUs allows, with their predicted throughput. No TensorFlow."""

from collections.abc import Callable, Iterator, Sequence
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
        is_shared = not set(named_data_gpus(self.settings)).isdisjoint(models)
        if is_shared and len(models) > 1:
            return f"{self.placement.name}, data GPU trains too"
        return self.placement.name

    @property
    def routes(self) -> tuple[Route, ...]:
        return self.placement.routes

    @property
    def replicas(self) -> int:
        return len(self.routes)

    @property
    def producers(self) -> int:
        """Data devices that take turns for each replica."""
        return len(self.routes[0].data_devices)

    @property
    def gpus(self) -> int:
        return len(self.placement.devices)

    @property
    def flags(self) -> str:
        """Flags of `myxtts train` that select this placement."""
        data = named_data_gpus(self.settings)
        models = self.settings.model_gpus
        if not data and models == (0,):
            return "none"
        # One device that is not the first needs both flags.
        if not data and len(models) == 1:
            data = models
        words = []
        for role, gpus in (("data", data), ("model", models)):
            if gpus:
                flag = f"--{role}-gpus" if len(gpus) > 1 else f"--{role}-gpu"
                words += [flag, *map(str, gpus)]
        return " ".join(words)


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
    sample: Callable[[int], StageTimes] | None = None,
) -> list[Prediction]:
    """Return a prediction for each placement that fits the memory, in the order of `rank`.

    Placements whose last producer gains nothing are left out, by the arithmetic on mean times.

    Args:
        times: the same sequence of batches for all placements.
        all_reduce_s: between two replicas; see `ring_all_reduce_s`.
        observe_s: of validation, samples and evaluation, in a step of all replicas.
        sample: returns the batches of so many replicas, where they are not those of `times`.
    """
    mean_s = times.mean_s()
    predictions = []
    for candidate in candidates:
        if candidate.memory_shortage:
            continue
        reduce_s = ring_all_reduce_s(all_reduce_s, candidate.replicas)
        if candidate.producers > 1:
            fewer = [replace(r, further_data=r.further_data[:-1]) for r in candidate.routes]
            _, bound_s = analytic_bound(candidate.routes, mean_s, depths.workers, reduce_s)
            _, fewer_s = analytic_bound(fewer, mean_s, depths.workers, reduce_s)
            if bound_s >= (1.0 - TIE_TOLERANCE) * fewer_s:
                continue
        sampled = times if sample is None else sample(candidate.replicas)
        predictions.append(predict(candidate, sampled, depths, all_reduce_s, observe_s))
    return rank(predictions)


def predict(
    candidate: Candidate,
    times: StageTimes,
    depths: QueueDepths = DEFAULT_DEPTHS,
    all_reduce_s: float = 0.0,
    observe_s: float = 0.0,
) -> Prediction:
    """Predict the throughput of a placement; see `predict_all` for the arguments."""
    reduce_s = ring_all_reduce_s(all_reduce_s, candidate.replicas)
    formula, bound_s = analytic_bound(
        candidate.routes,
        times.mean_s(),
        depths.workers,
        reduce_s,
        observe_s,
        candidate.placement.observer,
    )
    observed = with_observation(times, candidate, observe_s)
    result = simulate(candidate.routes, observed, depths, reduce_s)
    return Prediction(candidate, formula, bound_s, result)


def rank(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Sort by throughput; within TIE_TOLERANCE fewer GPUs come first, and then fewer replicas."""
    remaining = sorted(predictions, key=lambda prediction: -prediction.batches_per_s)
    ranked = []
    while remaining:
        least_per_s = (1.0 - TIE_TOLERANCE) * remaining[0].batches_per_s
        tied = [prediction for prediction in remaining if prediction.batches_per_s >= least_per_s]
        best = min(tied, key=lambda tie: (tie.candidate.gpus, tie.candidate.replicas))
        ranked.append(best)
        remaining.remove(best)
    return ranked


def with_observation(times: StageTimes, candidate: Candidate, observe_s: float) -> StageTimes:
    """Return the times with those of validation and samples, spread evenly over the batches of
    their device.

    Several data devices that take turns share them here, although the first one observes. A device
    that does nothing else works on them in the time of the steps, and bounds these.

    Args:
        times: of the replicas in turn.
        observe_s: in a step of all replicas.
    """
    routes = candidate.routes
    observer = candidate.placement.observer
    if not observer:
        return replace(times, step_s=times.step_s + observe_s)
    fed = [number for number, route in enumerate(routes) if observer in route.data_devices]
    trained = [number for number, route in enumerate(routes) if observer == route.model]
    produce_s = times.produce_s.copy()
    step_s = times.step_s.copy()
    for number in fed:
        produce_s[number :: len(routes)] += observe_s / len(fed)
    if not fed:
        for number in trained:
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
    candidates = []
    for data, models in _role_assignments(gpus, memory):
        settings = PlacementConfig(data_gpus=data, model_gpus=models, observer=observer)
        shortage = _memory_shortage(data, models, memory) if memory else ""
        candidates.append(Candidate(settings, plan_routes(settings, gpus), shortage))
    return candidates


def _role_assignments(
    gpus: int, memory: MemoryBudget | None
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (data GPUs, model GPUs); there are no data GPUs where each replica makes its own
    batches.
    """
    produce_mib = memory.produce_mib if memory else 0.0
    replica_mib = memory.replica_mib if memory else 0.0
    both_mib = produce_mib + replica_mib
    for replicas in range(1, gpus + 1):
        yield (), _assign_gpus([both_mib] * replicas, gpus, memory)
    for producers in range(1, gpus):
        for replicas in range(1, gpus - producers + 1):
            needs_mib = [produce_mib] * producers + [replica_mib] * replicas
            assigned = _assign_gpus(needs_mib, gpus, memory)
            yield assigned[:producers], assigned[producers:]
    for replicas in range(2, gpus + 1):
        shared = _assign_gpus([both_mib] + [replica_mib] * (replicas - 1), gpus, memory)
        yield shared[:1], shared


def _assign_gpus(needs_mib: list[float], gpus: int, memory: MemoryBudget | None) -> tuple[int, ...]:
    """Return a GPU for each need: in order where all fit, otherwise the largest GPU for the largest
    need.
    """
    limits = memory.limits_mib if memory else (0.0,) * gpus
    in_order = range(len(needs_mib))
    if all(needs_mib[number] <= limits[number] for number in in_order):
        return tuple(in_order)
    largest_gpus = sorted(range(gpus), key=lambda gpu: -limits[gpu])
    largest_needs = sorted(in_order, key=lambda number: -needs_mib[number])
    by_need = dict(zip(largest_needs, largest_gpus, strict=False))
    return tuple(by_need[number] for number in in_order)


def _memory_shortage(data: tuple[int, ...], models: tuple[int, ...], memory: MemoryBudget) -> str:
    for gpu in sorted({*models, *data}):
        needs_mib = {}
        if gpu in (data or models):
            needs_mib["to produce"] = memory.produce_mib
        if gpu in models:
            needs_mib["to train"] = memory.replica_mib
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
    names_by_shortage: dict[str, list[str]] = {}
    for candidate in candidates:
        if candidate.memory_shortage:
            names = names_by_shortage.setdefault(candidate.memory_shortage, [])
            if candidate.name not in names:
                names.append(candidate.name)
    if not ranked:
        raise PlacementError(
            f"no placement fits the memory: {'; '.join(names_by_shortage)}. Lower the batch size or"
            " use larger GPUs."
        )
    rows = [("placement", "flags", "batches/s", "of bound", "busy", "time per batch")]
    for prediction in ranked:
        rows.append(
            (
                prediction.candidate.name,
                prediction.candidate.flags,
                f"{prediction.batches_per_s:.2f}",
                f"{prediction.efficiency:.1%}",
                f"{prediction.result.utilisation:.1%}",
                prediction.formula,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, flags, *numbers, formula in rows:
        left = f"{name:<{widths[0]}}  {flags:<{widths[1]}}"
        right = "  ".join(
            f"{text:>{width}}" for text, width in zip(numbers, widths[2:5], strict=True)
        )
        lines.append(f"{left}  {right}  {formula}")
    for shortage, names in names_by_shortage.items():
        lines.append(f"left out: {'; '.join(names)}: {shortage}")
    best = ranked[0]
    return [
        *lines,
        f"best: {best.candidate.name}, {best.batches_per_s:.2f} batches/s (flags:"
        f" {best.candidate.flags})",
    ]
