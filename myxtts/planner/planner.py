"""All placements that a number of GPUs allows, with the throughput that the simulator predicts. No TensorFlow."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from myxtts.config.schema import PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement.arithmetic import analytic_bound, ring_all_reduce_s
from myxtts.placement.routes import Placement, plan_routes
from myxtts.planner.simulator import DEFAULT_DEPTHS, QueueDepths, RunResult, simulate
from myxtts.planner.stage_times import StageTimes

TIE_TOLERANCE = 0.01  # a smaller difference is not worth another GPU, and below the accuracy of a prediction


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
        shared = self.settings.data_gpu in self.settings.model_gpus and len(self.settings.model_gpus) > 1
        return self.placement.name + (", data GPU trains too" if shared else "")

    @property
    def routes(self) -> tuple[tuple[str, str], ...]:
        return tuple((route.data, route.model) for route in self.placement.routes)

    @property
    def replicas(self) -> int:
        return len(self.placement.routes)

    @property
    def gpus(self) -> int:
        return len(self.placement.devices)

    @property
    def flags(self) -> str:
        """Flags of `myxtts train` that select this placement."""
        data, models = self.settings.data_gpu, self.settings.model_gpus
        if data is None and models == (0,):
            return "none"
        model_flag = f"--model-gpu {models[0]}" if len(models) == 1 else f"--model-gpus {' '.join(map(str, models))}"
        if data is None and len(models) == 1:
            data = models[0]
        return model_flag if data is None else f"--data-gpu {data} {model_flag}"


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
) -> list[Prediction]:
    """Return a prediction for each placement that fits the memory, in the order of `rank`.

    Args:
        times: the same sequence of batches for all placements.
        all_reduce_s: between two replicas; see `ring_all_reduce_s`.
    """
    fitting = (candidate for candidate in candidates if not candidate.memory_shortage)
    return rank(predict(candidate, times, depths, all_reduce_s) for candidate in fitting)


def rank(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Sort by throughput; within TIE_TOLERANCE fewer GPUs come first, and then fewer replicas."""
    remaining = sorted(predictions, key=lambda prediction: -prediction.batches_per_s)
    ranked = []
    while remaining:
        least_per_s = (1.0 - TIE_TOLERANCE) * remaining[0].batches_per_s
        tied = [prediction for prediction in remaining if prediction.batches_per_s >= least_per_s]
        ranked.append(min(tied, key=lambda prediction: (prediction.candidate.gpus, prediction.candidate.replicas)))
        remaining.remove(ranked[-1])
    return ranked


def predict(
    candidate: Candidate, times: StageTimes, depths: QueueDepths = DEFAULT_DEPTHS, all_reduce_s: float = 0.0
) -> Prediction:
    reduce_s = ring_all_reduce_s(all_reduce_s, candidate.replicas)
    formula, bound_s = analytic_bound(candidate.routes, times.mean_s(), depths.workers, reduce_s)
    return Prediction(candidate, formula, bound_s, simulate(candidate.routes, times, depths, reduce_s))


def candidate_placements(gpus: int, memory: MemoryBudget | None = None) -> list[Candidate]:
    """Return every placement that flags can select on a number of equal GPUs, one for each way to share the roles.

    Where the roles do not fit the GPUs in order, those that need more memory go to GPUs that have more.
    """
    return [_candidate(data, models, gpus, memory) for data, models in _role_assignments(gpus, memory)]


def _role_assignments(gpus: int, memory: MemoryBudget | None) -> Iterator[tuple[int | None, tuple[int, ...]]]:
    """Yield (data GPU, model GPUs); the data GPU is None where each replica makes its own batches."""
    produce_mib, replica_mib = (memory.produce_mib, memory.replica_mib) if memory else (0.0, 0.0)
    both_mib = produce_mib + replica_mib
    for replicas in range(1, gpus + 1):
        yield None, _assign_gpus([both_mib] * replicas, gpus, memory)
    for replicas in range(1, gpus):
        data, *models = _assign_gpus([produce_mib] + [replica_mib] * replicas, gpus, memory)
        yield data, tuple(models)
    for replicas in range(2, gpus + 1):
        shared = _assign_gpus([both_mib] + [replica_mib] * (replicas - 1), gpus, memory)
        yield shared[0], shared


def _assign_gpus(needs_mib: list[float], gpus: int, memory: MemoryBudget | None) -> tuple[int, ...]:
    """Return a GPU for each need: in order where all fit, otherwise the largest GPU for the largest need."""
    limits = memory.limits_mib if memory else (0.0,) * gpus
    if all(need <= limit for need, limit in zip(needs_mib, limits, strict=False)):
        return tuple(range(len(needs_mib)))
    largest = sorted(range(gpus), key=lambda gpu: -limits[gpu])[: len(needs_mib)]
    by_role = dict(zip(sorted(range(len(needs_mib)), key=lambda role: -needs_mib[role]), largest, strict=True))
    return tuple(by_role[role] for role in range(len(needs_mib)))


def _candidate(data: int | None, models: tuple[int, ...], gpus: int, memory: MemoryBudget | None) -> Candidate:
    settings = PlacementConfig(data_gpu=data, model_gpus=models)
    shortage = _memory_shortage(data, models, memory) if memory else ""
    return Candidate(settings, plan_routes(settings, gpus), shortage)


def _memory_shortage(data: int | None, models: tuple[int, ...], memory: MemoryBudget) -> str:
    for gpu in sorted({*models, *(() if data is None else (data,))}):
        produces, trains = gpu == data or (data is None and gpu in models), gpu in models
        needs_mib = {"to produce": memory.produce_mib * produces, "to train": memory.replica_mib * trains}
        need_mib = sum(needs_mib.values())
        if need_mib > memory.limits_mib[gpu]:
            roles = " and ".join(f"{mib:g} {role}" for role, mib in needs_mib.items() if mib)
            return f"GPU {gpu} has {memory.limits_mib[gpu]:g} MiB and needs {need_mib:g} ({roles})"
    return ""


def format_table(ranked: Sequence[Prediction], candidates: Sequence[Candidate]) -> list[str]:
    """Return lines with the predictions, the candidates that do not fit the memory, and the best placement.

    Raises:
        PlacementError: there is no prediction.
    """
    excluded = [candidate for candidate in candidates if candidate.memory_shortage]
    shortages = list(dict.fromkeys(candidate.memory_shortage for candidate in excluded))
    if not ranked:
        raise PlacementError(
            f"no placement fits the memory: {'; '.join(shortages)}. Lower the batch size or use larger GPUs."
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
        left = "  ".join(f"{text:<{width}}" for text, width in zip(row[:2], widths[:2], strict=True))
        right = "  ".join(f"{text:>{width}}" for text, width in zip(row[2:5], widths[2:], strict=True))
        lines.append(f"{left}  {right}  {row[5]}")
    for shortage in shortages:
        names = dict.fromkeys(candidate.name for candidate in excluded if candidate.memory_shortage == shortage)
        lines.append(f"left out: {'; '.join(names)}: {shortage}")
    best = ranked[0]
    return [*lines, f"best: {best.candidate.name}, {best.batches_per_s:.2f} batches/s (flags: {best.candidate.flags})"]
