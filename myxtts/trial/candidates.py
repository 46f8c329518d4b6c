"""All placements that a number of GPUs allows, with the throughput that the model of the stages
predicts from given or measured times. No TensorFlow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from math import inf
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pydantic
from pydantic import Field

from myxtts.base.errors import ConfigError
from myxtts.batches.plan import deal_rows, water_fill
from myxtts.config.schema import ObserverPlace, PlacementConfig
from myxtts.devicefeed.routes import Placement
from myxtts.placement import bound as model
from myxtts.placement.bound import DEFAULT_DEPTHS, STAGES, QueueDepths, Speeds, StageTimes, parts_of
from myxtts.placement.settings import named_data_gpus, plan_routes

# A smaller difference decides nothing; on virtual GPUs most predictions are as close
# (docs/experiments/placement.md).
TIE_TOLERANCE = 0.02

MAX_STAGE_S = 60.0
MAX_VARIATION = 10.0
# Below it times are equal: a float64 has no more digits for the correction.
MIN_VARIATION = 1e-9

# Of more GPUs, not every order of them is tried in the roles of a placement.
MAX_PERMUTED = 5


@dataclass(frozen=True)
class Candidate:
    """A placement to predict, the settings that `plan_routes` makes it from, the speeds of the
    GPUs, and the rows of each replica in a step.
    """

    settings: PlacementConfig
    placement: Placement
    speeds: Speeds
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        name, models = self.placement.name, self.settings.model_gpus
        if len(models) > 1 and set(models) & set(named_data_gpus(self.settings)):
            name += ", data GPU trains too"
        return f"{name}, unequal shares" if self.shares else name

    @property
    def shares(self) -> tuple[int, ...]:
        """The rows, if they are unequal."""
        return _if_unequal(self.rows)

    @property
    def work(self) -> model.Work:
        batches = [Fraction(n * self.replicas, sum(self.rows)) for n in self.rows]
        by_device = (
            {device.name: of_gpus[device.physical or 0] for device in self.placement.devices}
            for of_gpus in self.speeds
        )
        return model.Work(batches, *by_device)

    def bound(
        self, mean_s: Mapping[str, float], workers: int, all_reduce_s: float, observe_s: float = 0.0
    ) -> tuple[str, float]:
        """Return the formula and the value of `analytic_bound`; the all-reduce is that of two
        replicas.
        """
        reduce_s = model.ring_all_reduce_s(all_reduce_s, self.replicas)
        costs = workers, reduce_s, observe_s, self.placement.observer, self.work
        return model.analytic_bound(self.placement.routes, mean_s, *costs)

    @property
    def replicas(self) -> int:
        return len(self.placement.routes)

    @property
    def gpus(self) -> int:
        return len(self.placement.devices)

    @property
    def simplicity(self) -> tuple[int, int, int]:
        """A smaller one is simpler: fewer GPUs, replicas, and data GPUs."""
        return self.gpus, self.replicas, len(named_data_gpus(self.settings))

    @property
    def flags(self) -> str:
        """Flags of `myxtts train` that select this placement."""
        words = []
        for role, gpus in (
            ("data", named_data_gpus(self.settings)),
            ("model", self.settings.model_gpus),
        ):
            if gpus:
                flag = f"--{role}-gpu"
                if len(gpus) > 1 or not named_data_gpus(self.settings):
                    flag += "s"
                words += [flag, *map(str, gpus)]
        if self.settings.data_shares:
            words += ["--data-shares", *(f"{share:g}" for share in self.settings.data_shares)]
        if self.shares:
            words += ["--batch-shares", *map(str, self.shares)]
        return "none" if words == ["--model-gpus", "0"] else " ".join(words)


def _if_unequal(shares: tuple) -> tuple:
    return shares if len({*shares}) > 1 else ()


class Memory(NamedTuple):
    """MiB that each GPU has, that making batches needs, and that a replica needs, besides those for
    each of its rows.
    """

    limits: tuple[float, ...]
    produce: float = 0.0
    replica: float = 0.0
    row: float = 0.0

    def without_rows(self, settings: PlacementConfig, gpu: int) -> float:
        """Return the MiB that a GPU needs in its roles, without those for rows."""
        data, models = named_data_gpus(settings), settings.model_gpus
        # Without data GPUs each replica makes its own batches.
        produce = self.produce if gpu in (data or models) else 0.0
        replica = self.replica if gpu in models else 0.0
        return produce + replica

    def most_rows(self, settings: PlacementConfig) -> list[float]:
        """Return how many rows each replica may take: a whole number or inf, and at least 1."""
        if not self.row:
            return [inf] * len(settings.model_gpus)
        left = (self.limits[gpu] - self.without_rows(settings, gpu) for gpu in settings.model_gpus)
        return [max(mib // self.row, 1.0) for mib in left]

    def shortage(self, candidate: Candidate) -> tuple[float, str]:
        """Return the most MiB that a GPU lacks, and which it is; (0, "") if the placement fits."""
        settings = candidate.settings
        rows = dict(zip(settings.model_gpus, candidate.rows, strict=True))
        lacking = [(0.0, "")]
        for gpu in dict.fromkeys((*named_data_gpus(settings), *rows)):
            need = self.without_rows(settings, gpu) + self.row * rows.get(gpu, 0)
            if need > (has := self.limits[gpu]):
                lacking.append((need - has, f"GPU {gpu} has {has:g} MiB and needs {need:g}"))
        return max(lacking, key=lambda each: each[0])


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
    result: model.RunResult

    @property
    def batches_per_s(self) -> float:
        return self.result.batches_per_s

    @property
    def efficiency(self) -> float:
        """Fraction of the throughput that the analytic bound allows."""
        return self.batches_per_s * self.bound_s


def candidate_placements(
    speeds: Speeds,
    times: StageTimes,
    batch_rows: int,
    depths: QueueDepths = DEFAULT_DEPTHS,
    all_reduce_s: float = 0.0,
    memory: Memory | None = None,
    observer: ObserverPlace = "auto",
) -> list[Candidate]:
    """Return every placement that flags can select, one for each way to share the roles, without
    those that leave a replica no row. The GPUs of the roles, and the rows, are those of the lowest
    bound that fit into the memory.

    Args:
        batch_rows: of a replica's batch with equal shares.
    """
    gpus, mean_s, candidates = len(speeds.step), times.mean_s(), []
    memory = memory or Memory((inf,) * gpus)
    # Places in an order of the GPUs: of those that make all batches, if any, and that train.
    places = [(range(0), range(replicas)) for replicas in range(1, gpus + 1)]
    for data in range(1, gpus):
        places += [(range(data), range(data, end)) for end in range(data + 1, gpus + 1)]
    places += [(range(1), range(replicas)) for replicas in range(2, gpus + 1)]
    figures = np.array([range(gpus), speeds.step, memory.limits])
    orders = np.argsort([*figures, *-figures], axis=1, kind="stable").tolist()
    if gpus <= MAX_PERMUTED:
        orders = list(permutations(range(gpus)))

    def cost(candidate: Candidate) -> tuple[float, float]:
        bound = candidate.bound(mean_s, depths.num_workers, all_reduce_s)
        return memory.shortage(candidate)[0], bound[1]

    def assigned(data: tuple[int, ...], models: tuple[int, ...]) -> Candidate:
        shares = _if_unequal(tuple(float(f"{speeds.produce[gpu]:.3g}") for gpu in data))
        settings = PlacementConfig(
            data_gpus=data, data_shares=shares, model_gpus=models, observer=observer
        )
        rows = (batch_rows,) * len(models)
        equal = Candidate(settings, plan_routes(settings, gpus), speeds, rows)
        return replace(equal, rows=_rows_of(equal, mean_s, memory))

    for roles in places:
        pairs = dict.fromkeys(
            tuple(tuple(sorted(order[place] for place in role)) for role in roles)
            for order in orders
        )
        found = (assigned(*pair) for pair in pairs if all(speeds.step[gpu] for gpu in pair[1]))
        candidates += sorted((each for each in found if 0 not in each.rows), key=cost)[:1]
    return candidates


def _rows_of(candidate: Candidate, mean_s: Mapping[str, float], memory: Memory) -> tuple[int, ...]:
    """Return rows with which all replicas work equally long in a step, as far as they fit."""
    routes, work, rows = candidate.placement.routes, candidate.work, candidate.rows
    # What a device makes for others, too, does not depend on its share.
    fixed_s, batch_s = np.zeros(len(routes)), np.zeros(len(routes))
    makes_own = all(route.data_devices == (route.model,) for route in routes)
    for number, route in enumerate(routes):
        step_s, fixed = mean_s["step"] / work.step[route.model], work.fixed[route.model]
        fixed_s[number], batch_s[number] = fixed * step_s, (1.0 - fixed) * step_s
        part = float(parts_of(route).get(route.model, 0))
        produce_s = part * mean_s["produce"] / work.produce[route.model]
        if makes_own:
            batch_s[number] += produce_s
        else:
            fixed_s[number] += len(routes) * produce_s
    most = np.divide(memory.most_rows(candidate.settings), rows[0])
    batches = water_fill(fixed_s, np.maximum(batch_s, 1e-9), len(routes), most).tolist()
    return tuple(deal_rows(np.array([sum(rows)]), batches)[0].tolist())


def predict_all(
    candidates: Sequence[Candidate],
    times: StageTimes,
    depths: QueueDepths = DEFAULT_DEPTHS,
    all_reduce_s: float = 0.0,
    observe_s: float = 0.0,
    sample: Callable[[int], StageTimes] | None = None,
) -> list[Prediction]:
    """Return a prediction for each placement, of the same batches, in the order of `rank`.

    Args:
        all_reduce_s: between two replicas; see `ring_all_reduce_s`.
        observe_s: of validation, samples and evaluation, in a step of all replicas.
        sample: returns the batches of so many replicas, where they are not those of `times`.
    """
    predictions = []
    for candidate in candidates:
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
    placement = candidate.placement
    costs = depths.num_workers, all_reduce_s, observe_s
    formula, bound_s = candidate.bound(times.mean_s(), *costs)
    times = model.scaled(times, placement.routes, candidate.work)
    observed = with_observation(times, placement, observe_s)
    reduce_s = model.ring_all_reduce_s(all_reduce_s, candidate.replicas)
    result = model.simulate(placement.routes, observed, depths, reduce_s)
    return Prediction(candidate, formula, bound_s, result)


def rank(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Sort by throughput; within TIE_TOLERANCE fewer GPUs come first, then fewer replicas, and then
    those that make their own batches.
    """
    remaining = sorted(predictions, key=lambda prediction: -prediction.batches_per_s)
    ranked = []
    while remaining:
        least_per_s = (1.0 - TIE_TOLERANCE) * remaining[0].batches_per_s
        tied = [prediction for prediction in remaining if prediction.batches_per_s >= least_per_s]
        best = min(tied, key=lambda tie: tie.candidate.simplicity)
        ranked.append(best)
        remaining.remove(best)
    return ranked


def with_observation(times: StageTimes, placement: Placement, observe_s: float) -> StageTimes:
    """Return the times with those of validation and samples, spread evenly over the batches of
    their device.

    Several data devices that take turns share them here, although the first one observes. A device
    that does nothing else works on them in the time of the steps, and bounds these. The times are
    of the replicas in turn, and `observe_s` is that in a step of all.
    """
    routes = placement.routes
    observer = placement.observer
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


def format_table(ranked: Sequence[Prediction]) -> list[str]:
    """Return lines with the predictions, and the best placement."""
    rows = [("placement", "flags", "batches/s", "of bound", "busy", "time per batch")]
    for prediction in ranked:
        row = (
            prediction.candidate.name,
            prediction.candidate.flags,
            f"{prediction.batches_per_s:.2f}",
            f"{prediction.efficiency:.1%}",
            f"{prediction.result.utilisation:.1%}",
            prediction.formula,
        )
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, flags, *numbers, formula in rows:
        texts = [name.ljust(widths[0]), flags.ljust(widths[1])]
        texts += [text.rjust(width) for text, width in zip(numbers, widths[2:5], strict=True)]
        lines.append("  ".join((*texts, formula)))
    best = ranked[0].candidate
    rate = f"{ranked[0].batches_per_s:.2f} batches/s"
    return [*lines, f"best: {best.name}, {rate} (flags: {best.flags})"]


def describe_best(ranked: Sequence[Prediction], bound_s: float) -> str:
    """Return what each GPU does in the best placement, and how far that is from the bound of all
    GPUs, in seconds per batch; see `Speeds.bound_s`.
    """
    best, result = ranked[0].candidate, ranked[0].result
    busy = (
        f"GPU {device.physical} {result.busy_s[device.name] / result.duration_s:.0%}"
        for device in best.placement.devices
        if device.name in result.busy_s
    )
    reached = ranked[0].batches_per_s * bound_s
    return f"busy: {', '.join(busy)}; {reached:.0%} of what all GPUs would do if none ever waited"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(strict=True))
class StageStatistics:
    """Mean seconds of a stage, and its coefficient of variation (deviation over mean)."""

    mean_s: Annotated[float, Field(ge=0.0, le=MAX_STAGE_S)]
    variation: Annotated[float, Field(ge=0.0, le=MAX_VARIATION)] = 0.0


class Profile(pydantic.BaseModel):
    """What `plan` reads of a file that the profiler wrote.

    Attributes:
        stages: statistics by stage; the time to read is that between two batches from all workers
            together.
        num_workers: readers of the profiled run; None if the file does not say.
        single_device: one device made the batches and trained, so the time to transfer a batch is
            unknown.
    """

    model_config = pydantic.ConfigDict(strict=True)

    stages: dict[str, StageStatistics] = {}
    num_workers: Annotated[int, Field(ge=1)] | None = None
    single_device: bool = False


def read_profile(path: Path) -> Profile:
    """Read a file that the profiler wrote with --json; raise ConfigError if it is none."""
    source = f"--profile {path}"
    advice = "Give a file that `myxtts profile --json` wrote."
    try:
        profile = Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}. {advice}") from error
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "the file"
        raise ConfigError(f"{source} is no profile: {place}: {fault['msg']}. {advice}") from error
    if not {"produce", "step"} <= set(profile.stages):
        raise ConfigError(f"{source} has no stages, or lacks produce or step. {advice}")
    return profile


def sample_stage_times(statistics: Mapping[str, StageStatistics], n: int) -> StageTimes:
    """Return `n` batches whose stages vary independently; a stage that is missing takes no time."""
    random = np.random.default_rng(0)
    by_stage = (statistics.get(stage, StageStatistics(0.0)) for stage in STAGES)
    return StageTimes(
        *(gamma_times(random, stage.mean_s, stage.variation, n) for stage in by_stage)
    )


def gamma_times(random: np.random.Generator, mean_s: float, variation: float, n: int) -> np.ndarray:
    """Return `n` gamma distributed times with exactly this mean and coefficient of variation.

    The deviation of a finite sample differs from that of its distribution, so the sample is raised
    to the power that corrects the difference and then scaled.

    Args:
        variation: below sqrt(n - 1), where all times but one are 0.
    """
    if variation < MIN_VARIATION:
        return np.full(n, mean_s)
    times = random.gamma(variation**-2, size=n)
    times /= times.max()
    low = 0.0
    high = 1.0
    while coefficient_of_variation(times**high) < variation:
        low = high
        high *= 2
    # 50 bisections leave no digit of a float64 open.
    for _ in range(50):
        middle = (low + high) / 2
        if coefficient_of_variation(times**middle) < variation:
            low = middle
        else:
            high = middle
    times **= high
    return times * (mean_s / times.mean())


def coefficient_of_variation(times_s: np.ndarray) -> float:
    """Return the standard deviation over the mean, 0 where all times are 0."""
    return float(times_s.std() / times_s.mean()) if times_s.any() else 0.0
