"""Every placement that some GPUs allow, with the throughput that a simulation predicts for each. No TensorFlow."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.config import schema
from myxtts.errors import ConfigError, PlacementError
from myxtts.placement.routes import Placement, plan_routes
from myxtts.planner.simulator import STAGES, USUAL, Depths, Outcome, Stages, simulate, varying

MOST_MS = 60_000.0
MOST_VARIATION = 10.0
ALIKE = 0.01  # no GPU is worth less, and no prediction this near


class Cost(NamedTuple):
    """Mean seconds of a stage, and their standard deviation over it."""

    seconds: float
    variation: float = 0.0


@dataclass(frozen=True)
class Memory:
    """What a placement needs on its GPUs, and what these have, in MiB.

    Attributes:
        produce_mib: needed where batches are made.
        replica_mib: needed where a replica trains, batches in its feed included.
        limits_mib: of each GPU.
    """

    produce_mib: float
    replica_mib: float
    limits_mib: tuple[float, ...]


@dataclass(frozen=True)
class Candidate:
    """A placement, and why it cannot be had ("" where it can).

    Attributes:
        settings: from which `plan_routes` makes it.
        lack: of memory, in words.
    """

    settings: schema.PlacementConfig
    placement: Placement
    lack: str = ""

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
        """What asks train_main.py for it."""
        data, models = self.settings.data_gpu, self.settings.model_gpus
        if data is None and models == (0,):
            return "none"
        told = f"--model-gpu {models[0]}" if len(models) == 1 else f"--model-gpus {' '.join(map(str, models))}"
        if data is None and len(models) == 1:
            data = models[0]
        return told if data is None else f"--data-gpu {data} {told}"


@dataclass(frozen=True)
class Forecast:
    """What the simulation predicts for a placement.

    Attributes:
        arithmetic: seconds for a batch where nothing varies and all queues are deep, in words.
        bound_s: their value.
    """

    candidate: Candidate
    arithmetic: str
    bound_s: float
    outcome: Outcome

    @property
    def batches_per_s(self) -> float:
        return self.outcome.batches_per_s

    @property
    def efficiency(self) -> float:
        """Share of the throughput that the arithmetic allows."""
        return self.batches_per_s * self.bound_s


def forecasts(
    candidates: Sequence[Candidate], stages: Stages, depths: Depths = USUAL, all_reduce_s: float = 0.0
) -> list[Forecast]:
    """A forecast of each placement that can be had, in the order of `fastest_first`.

    Args:
        stages: the same sequence of batches for all placements.
        all_reduce_s: between two replicas; see `ring_s`.
    """
    return fastest_first(
        forecast(candidate, stages, depths, all_reduce_s) for candidate in candidates if not candidate.lack
    )


def fastest_first(found: Iterable[Forecast]) -> list[Forecast]:
    """The fastest first; of those within ALIKE, that with fewer GPUs and then that with the smaller step."""
    left = sorted(found, key=lambda one: -one.batches_per_s)
    ranked = []
    while left:
        alike = [one for one in left if one.batches_per_s >= (1.0 - ALIKE) * left[0].batches_per_s]
        ranked.append(min(alike, key=lambda one: (one.candidate.gpus, one.candidate.replicas)))
        left.remove(ranked[-1])
    return ranked


def forecast(candidate: Candidate, stages: Stages, depths: Depths = USUAL, all_reduce_s: float = 0.0) -> Forecast:
    reduce_s = ring_s(all_reduce_s, candidate.replicas)
    words, bound_s = arithmetic(candidate.routes, stages, depths, reduce_s)
    return Forecast(candidate, words, bound_s, simulate(candidate.routes, stages, depths, reduce_s))


def ring_s(of_two_s: float, replicas: int) -> float:
    """All-reduce of k replicas from that of two: each device of a ring sends 2 (k - 1) / k of the gradient.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    return of_two_s * 2 * (replicas - 1) / replicas


def candidates(gpus: int, memory: Memory | None = None) -> list[Candidate]:
    """Every placement that flags can ask for on so many equal GPUs, one for each way to share the roles.

    Where the memory of the GPUs does not allow the roles in order, those that need more go to GPUs that have more.
    """
    return [_candidate(data, models, gpus, memory) for data, models in _shapes(gpus, memory)]


def _shapes(gpus: int, memory: Memory | None) -> Iterator[tuple[int | None, tuple[int, ...]]]:
    """(data GPU or None for each replica its own, model GPUs)."""
    needs = (memory.produce_mib, memory.replica_mib) if memory else (0.0, 0.0)
    both = sum(needs)
    for replicas in range(1, gpus + 1):
        yield None, _assigned([both] * replicas, gpus, memory)
    for replicas in range(1, gpus):
        data, *models = _assigned([needs[0]] + [needs[1]] * replicas, gpus, memory)
        yield data, tuple(models)
    for replicas in range(2, gpus + 1):
        models = _assigned([both] + [needs[1]] * (replicas - 1), gpus, memory)
        yield models[0], models


def _assigned(needs_mib: list[float], gpus: int, memory: Memory | None) -> tuple[int, ...]:
    """A GPU for each need: in order where they fit so, and else the largest GPU for the largest need."""
    limits = memory.limits_mib if memory else (0.0,) * gpus
    if all(need <= limit for need, limit in zip(needs_mib, limits, strict=False)):
        return tuple(range(len(needs_mib)))
    largest = sorted(range(gpus), key=lambda gpu: -limits[gpu])[: len(needs_mib)]
    chosen = dict(zip(sorted(range(len(needs_mib)), key=lambda role: -needs_mib[role]), largest, strict=True))
    return tuple(chosen[role] for role in range(len(needs_mib)))


def _candidate(data: int | None, models: tuple[int, ...], gpus: int, memory: Memory | None) -> Candidate:
    settings = schema.PlacementConfig(data_gpu=data, model_gpus=models)
    return Candidate(settings, plan_routes(settings, gpus), _lack(data, models, memory) if memory else "")


def _lack(data: int | None, models: tuple[int, ...], memory: Memory) -> str:
    for gpu in sorted({*models, *(() if data is None else (data,))}):
        produces, trains = gpu == data or (data is None and gpu in models), gpu in models
        need = memory.produce_mib * produces + memory.replica_mib * trains
        if need > memory.limits_mib[gpu]:
            needs = {"to produce": memory.produce_mib * produces, "to train": memory.replica_mib * trains}
            told = " and ".join(f"{need_mib:g} {role}" for role, need_mib in needs.items() if need_mib)
            return f"GPU {gpu} has {memory.limits_mib[gpu]:g} MiB and needs {need:g} ({told})"
    return ""


def arithmetic(
    routes: Sequence[tuple[str, str]], stages: Stages, depths: Depths = USUAL, all_reduce_s: float = 0.0
) -> tuple[str, float]:
    """Mean seconds for a batch where nothing varies and all queues are deep: the busiest part of a round decides.

    Parts are each device, each producer's thread (which waits for the transfer, too), and the readers of each data
    device.
    R, P, T, C and A are the seconds of reading, producing, transfer, step (to consume) and all-reduce.

    Returns:
        The formula in words, such as `max(P + T, C) = max(22, 20) = 22 ms`, and the seconds.
    """
    replicas = len(routes)
    seconds = {letter: float(getattr(stages, f"{name}_s").mean()) for letter, name in zip("RPTC", STAGES, strict=True)}
    seconds["A"] = all_reduce_s
    parts = {
        _sum(counts): sum(n * seconds[letter] for letter, n in counts.items()) for counts in _parts(routes, seconds)
    }
    for n in Counter(data for data, _ in routes).values() if seconds["R"] else ():
        parts[f"{_times(n, 'R')} / {depths.workers}"] = n * seconds["R"] / depths.workers
    bound_s = max(parts.values()) / replicas
    numbers = [f"{1e3 * part_s:.4g}" for part_s in parts.values()]
    if len(parts) == 1 and replicas == 1:
        return f"{next(iter(parts))} = {numbers[0]} ms", bound_s
    formula = f"max({', '.join(parts)})" if len(parts) > 1 else f"({next(iter(parts))})"
    values = f"max({', '.join(numbers)})" if len(parts) > 1 else numbers[0]
    share = f" / {replicas}" if replicas > 1 else ""
    return f"{formula}{share} = {values}{share} = {1e3 * bound_s:.4g} ms", bound_s


def _parts(routes: Sequence[tuple[str, str]], seconds: dict[str, float]) -> Iterator[dict[str, int]]:
    """How often each stage falls to each device and each thread in a round; a stage without time is left out."""
    models = {model for _, model in routes}
    step = {"C": 1} | ({"A": 1} if len(routes) > 1 and seconds["A"] else {})
    sources = dict.fromkeys(data for data, _ in routes)
    for source in sources:
        made = [model for data, model in routes if data == source]
        away = len([model for model in made if model != source])
        if source in models:
            yield {"P": len(made)} | step
        if away:
            yield {"P": len(made)} | ({"T": away} if seconds["T"] else {})
    if not models & set(sources):
        yield step


def _sum(counts: dict[str, int]) -> str:
    return " + ".join(_times(n, letter) for letter, n in counts.items())


def _times(n: int, letter: str) -> str:
    return letter if n == 1 else f"{n} {letter}"


def stages_of(costs: dict[str, Cost], n: int, seed: int = 0) -> Stages:
    """`n` batches of stages that vary each by itself; a stage that is not named takes no time."""
    random = np.random.default_rng(seed)
    named = (costs.get(name, Cost(0.0)) for name in STAGES)
    return Stages(*(varying(random, cost.seconds, cost.variation, n) for cost in named))


def resampled(stages: Stages, buckets: np.ndarray, replicas: int, rounds: int, seed: int = 0) -> Stages:
    """Rounds of batches drawn from measured ones; the times of a batch stay together.

    The batches of a round are of one bucket, as the plan has them. The first of them are all measured batches, each
    equally often and in random order, so that the mean of what is drawn depends on chance only within a bucket.

    Args:
        buckets: int [batches], of the measured batches.
        rounds: at least so many.
    """
    random = np.random.default_rng(seed)
    first = random.permutation(np.tile(np.arange(len(stages)), -(-rounds // len(stages))))
    by_bucket = np.argsort(buckets, kind="stable")
    begin, end = (np.searchsorted(buckets[by_bucket], buckets[first], side)[:, None] for side in ("left", "right"))
    others = by_bucket[random.integers(begin, end, (len(first), replicas - 1))]
    drawn = np.column_stack([first, others]).ravel()
    return Stages(*(getattr(stages, f"{name}_s")[drawn] for name in STAGES))


def read_profile(path: Path) -> dict[str, Cost]:
    """The costs of stages in what the profiler wrote with --json.

    Its seconds of reading are the pace of all workers together.

    Raises:
        ConfigError: the file is missing, no profile, or holds impossible numbers.
    """
    asked = f"--profile {path}"
    advice = "Give what utilities/dual_gpu_bottleneck_profiler.py writes with --json."
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{asked} cannot be read: {error.strerror}. {advice}") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise ConfigError(f"{asked} is no JSON: {error}. {advice}") from error
    stages = found.get("stages") if isinstance(found, dict) else None
    if not isinstance(stages, dict) or not {"produce", "step"} <= set(stages):
        raise ConfigError(f"{asked} has no stages, or none for produce or step. {advice}")
    return {name: _cost(asked, name, stages[name]) for name in STAGES if name in stages}


def _cost(asked: str, name: str, figures: Any) -> Cost:
    figures = figures if isinstance(figures, dict) else {}
    seconds, variation = figures.get("seconds"), figures.get("variation", 0.0)
    for key, value, most in (("seconds", seconds, MOST_MS / 1e3), ("variation", variation, MOST_VARIATION)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= most:
            raise ConfigError(f"{asked} has {value!r} for {key} of {name}, not a number from 0 to {most:g}.")
    return Cost(float(seconds), float(variation))


def table(ranked: Sequence[Forecast], all_candidates: Sequence[Candidate]) -> list[str]:
    """The forecasts as lines, the placements that memory does not allow, and which is the best.

    Raises:
        PlacementError: there is none.
    """
    lacking = [candidate for candidate in all_candidates if candidate.lack]
    if not ranked:
        reasons = "; ".join(dict.fromkeys(candidate.lack for candidate in lacking))
        raise PlacementError(f"No placement fits the memory: {reasons}. Lower the batch size or use larger GPUs.")
    rows = [("placement", "flags", "batches/s", "of bound", "busy", "seconds for a batch")]
    for one in ranked:
        candidate = one.candidate
        shares = f"{one.efficiency:.1%}", f"{one.outcome.utilisation:.1%}"
        rows.append((candidate.name, candidate.flags, f"{one.batches_per_s:.2f}", *shares, one.arithmetic))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        left = "  ".join(f"{text:<{width}}" for text, width in zip(row[:2], widths[:2], strict=True))
        right = "  ".join(f"{text:>{width}}" for text, width in zip(row[2:5], widths[2:], strict=True))
        lines.append(f"{left}  {right}  {row[5]}")
    for lack in dict.fromkeys(candidate.lack for candidate in lacking):
        names = dict.fromkeys(candidate.name for candidate in lacking if candidate.lack == lack)
        lines.append(f"left out: {'; '.join(names)}: {lack}")
    best = ranked[0]
    return [*lines, f"best: {best.candidate.name}, {best.batches_per_s:.2f} batches/s (flags: {best.candidate.flags})"]
