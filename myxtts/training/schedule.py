"""Learning rate, decay of the moving average and length of a run, as plain numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Protocol


class Rates(Protocol):
    """Learning rate and decay of the moving average, by the number of steps done before."""

    def learning_rate(self, steps_done: int, /) -> float: ...

    def ema_decay(self, steps_done: int, /) -> float: ...


@dataclass(frozen=True)
class ConstantRates:
    """The same rates at all steps."""

    rate: float
    decay: float

    def learning_rate(self, _: int, /) -> float:
        return self.rate

    def ema_decay(self, _: int, /) -> float:
        return self.decay


@dataclass(frozen=True)
class Schedule:
    """The length of a run, its periods, and its rates.

    Attributes:
        total_steps: length of the run.
        log_every: steps between two reports.
        checkpoint_every: steps between two checkpoints; 0 writes only those that hooks ask for, and
            one at the end.
        learning_rate, ema_decay: by the number of steps done before.
    """

    total_steps: int
    log_every: int
    checkpoint_every: int
    learning_rate: Callable[[int], float]
    ema_decay: Callable[[int], float]


def learning_rate(
    step: int, total_steps: int, peak: float, warmup_steps: int, final_ratio: float
) -> float:
    """Return the rate of linear warm-up to the peak, then a cosine to `final_ratio` of it
    (Loshchilov & Hutter 2017).

    Args:
        step: steps done so far; any number from 0 on, also beyond `total_steps`.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    passed = min((step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1), 1.0)
    return peak * (final_ratio + (1.0 - final_ratio) * 0.5 * (1.0 + cos(pi * passed)))


def ema_decay(step: int, decay: float) -> float:
    """Return the decay of the moving average, low at first so that it soon forgets the initial
    weights.
    """
    return min(decay, (1.0 + step) / (10.0 + step))


def run_length(max_steps: int, by_epochs: int) -> int:
    """Return the length of a run in steps: the smaller of the two limits; 0 means no limit."""
    return min(limit for limit in (max_steps, by_epochs) if limit)
