"""All placements that a number of GPUs allows, ranked by their bounds. No TensorFlow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from myxtts.batches.plan import deal_rows, water_fill
from myxtts.config.schema import ObserverPlace, PlacementConfig
from myxtts.devicefeed.routes import Placement
from myxtts.placement.bound import Speeds, Work, analytic_bound, parts_of, ring_all_reduce_s
from myxtts.placement.settings import named_data_gpus, plan_routes
from myxtts.report.assess import flags_of

# Bounds within this fraction of each other count as equal; the simpler placement wins.
TIE_TOLERANCE = 0.02

# Up to this number of GPUs, every order of them is tried in the roles of a placement. With more,
# four orders are tried: by number and by speed, each forwards and backwards.
MAX_PERMUTED = 5


@dataclass(frozen=True)
class Candidate:
    """A placement, the settings it is made from, the speeds of the GPUs, and rows by replica."""

    settings: PlacementConfig
    placement: Placement
    speeds: Speeds
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        name, models = self.placement.name, self.settings.model_gpus
        if len(models) > 1 and set(models) & set(named_data_gpus(self.settings)):
            name += ", data GPU trains too"
        if self.shares:
            name += ", unequal shares"
        return name

    @property
    def shares(self) -> tuple[int, ...]:
        """The rows, if they are unequal."""
        return _if_unequal(self.rows)

    @property
    def work(self) -> Work:
        batches = [Fraction(n * self.replicas, sum(self.rows)) for n in self.rows]
        produce, step, fixed = (
            {device.name: of_gpus[device.physical or 0] for device in self.placement.devices}
            for of_gpus in self.speeds
        )
        return Work(batches, produce, step, fixed)

    def bound(
        self, mean_s: Mapping[str, float], workers: int, all_reduce_s: float, observe_s: float = 0.0
    ) -> "Estimate":
        """Return the placement's `analytic_bound`; `all_reduce_s` is the time of two replicas."""
        placed, reduce_s = self.placement, ring_all_reduce_s(all_reduce_s, self.replicas)
        formula, batch_s = analytic_bound(
            placed.routes, mean_s, workers, reduce_s, observe_s, placed.observer, self.work
        )
        return Estimate(self, formula, batch_s)

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
        data, settings = named_data_gpus(self.settings), self.settings
        chosen: dict[str, Any] = {}
        for role, gpus in (("data_gpu", data), ("model_gpu", settings.model_gpus)):
            if len(gpus) > 1 or not data:
                role += "s"
            chosen[role] = gpus
        chosen["data_shares"] = [f"{share:g}" for share in settings.data_shares]
        chosen["batch_shares"] = self.shares
        flags = flags_of({name: values for name, values in chosen.items() if values})
        return "none" if flags == "--model-gpus 0" else flags


def _if_unequal(shares: tuple) -> tuple:
    return shares if len({*shares}) > 1 else ()


class Estimate(NamedTuple):
    """The bound of a placement: seconds per batch if no time varies, and its formula."""

    candidate: Candidate
    formula: str
    batch_s: float


# Roles come first: how many GPUs make all batches, and how many train. Each pair of roles is a
# placement that flags can select. Then GPUs are dealt to the roles, in every order or in four, and
# orders that give a role the same GPUs count once. Each such assignment gets shares of producing by
# speed, and rows by `_rows_of`. Of each pair of roles, the assignment with the lowest bound is
# kept.
def candidate_placements(
    speeds: Speeds,
    mean_s: Mapping[str, float],
    batch_rows: int,
    workers: int = 2,
    all_reduce_s: float = 0.0,
    observer: ObserverPlace = "auto",
) -> list[Candidate]:
    """Return every placement that flags can select, one for each way to share the roles: the one
    with the lowest bound. Placements that leave a replica no row are left out.

    Args:
        mean_s: of a batch, by stage, as `analytic_bound` takes it.
        batch_rows: of a replica's batch with equal shares.
        workers: readers of each data device.
        all_reduce_s: of two replicas.
    """
    gpus, candidates = len(speeds.step), list[Candidate]()
    # Places in an order of the GPUs: of those that make all batches, if any, and that train.
    places = [(range(0), range(replicas)) for replicas in range(1, gpus + 1)]
    for data in range(1, gpus):
        places += [(range(data), range(data, end)) for end in range(data + 1, gpus + 1)]
    places += [(range(1), range(replicas)) for replicas in range(2, gpus + 1)]
    figures = np.array([range(gpus), speeds.step])
    orders = np.argsort([*figures, *-figures], axis=1, kind="stable").tolist()
    if gpus <= MAX_PERMUTED:
        orders = list(permutations(range(gpus)))

    def bound_s(candidate: Candidate) -> float:
        return candidate.bound(mean_s, workers, all_reduce_s).batch_s

    def assigned(data: tuple[int, ...], models: tuple[int, ...]) -> Candidate:
        shares = _if_unequal(tuple(float(f"{speeds.produce[gpu]:.3g}") for gpu in data))
        settings = PlacementConfig(
            data_gpus=data, data_shares=shares, model_gpus=models, observer=observer
        )
        rows = (batch_rows,) * len(models)
        equal = Candidate(settings, plan_routes(settings, gpus), speeds, rows)
        return replace(equal, rows=_rows_of(equal, mean_s))

    for roles in places:
        pairs = dict.fromkeys(
            tuple(tuple(sorted(order[place] for place in role)) for role in roles)
            for order in orders
        )
        found = (
            assigned(data, models)
            for data, models in pairs
            if all(speeds.step[gpu] for gpu in models)
        )
        candidates += sorted((each for each in found if 0 not in each.rows), key=bound_s)[:1]
    return candidates


# A replica's step has a part that grows with its rows and a part that does not. Batches that it
# makes for itself alone grow with its rows as well. `water_fill` divides the rows of a step so that
# the sum of both parts is equal on all replicas, and `deal_rows` rounds to whole rows.
def _rows_of(candidate: Candidate, mean_s: Mapping[str, float]) -> tuple[int, ...]:
    """Return rows with which all replicas work equally long in a step."""
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
    batches = water_fill(fixed_s, np.maximum(batch_s, 1e-9), len(routes)).tolist()
    return tuple(deal_rows(np.array([sum(rows)]), batches)[0].tolist())


def rank(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Sort by bound; within TIE_TOLERANCE fewer GPUs come first, then fewer replicas, and then
    those that make their own batches.
    """
    remaining = sorted(estimates, key=lambda estimate: estimate.batch_s)
    ranked = []
    # The lowest bound opens a group of all that are within the tolerance; the simplest of them is
    # ranked next, and the others compete again in the next group.
    while remaining:
        most_s = remaining[0].batch_s / (1.0 - TIE_TOLERANCE)
        tied = [estimate for estimate in remaining if estimate.batch_s <= most_s]
        best = min(tied, key=lambda tie: tie.candidate.simplicity)
        ranked.append(best)
        remaining.remove(best)
    return ranked


def format_table(ranked: Sequence[Estimate]) -> list[str]:
    """Return lines with the bounds, and the best placement."""
    rows = [("placement", "flags", "batches/s", "time per batch")]
    for candidate, formula, batch_s in ranked:
        rows.append((candidate.name, candidate.flags, f"{1.0 / batch_s:.2f}", formula))
    columns = [*zip(*rows, strict=True)]
    name_width, flags_width, rate_width = (max(map(len, texts)) for texts in columns[:3])
    lines = [
        f"{name:<{name_width}}  {flags:<{flags_width}}  {rate:>{rate_width}}  {formula}"
        for name, flags, rate, formula in rows
    ]
    best = ranked[0].candidate
    rate = f"at most {1.0 / ranked[0].batch_s:.2f} batches/s"
    return [*lines, f"best: {best.name}, {rate} (flags: {best.flags})"]


def describe_bound(ranked: Sequence[Estimate], bound_s: float) -> str:
    """Return how far the best placement is from the bound of all GPUs; see `Speeds.bound_s`."""
    return f"{bound_s / ranked[0].batch_s:.0%} of what all GPUs would do if none ever waited"
