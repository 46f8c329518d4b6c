"""What happens after which step: rates, the length of a run, and observations. No TensorFlow.

What comes in are settings and the number of a step. These are pure functions: `setup` puts them
together to the Schedule of a run, the loop asks it what is due, and the step looks up its rates,
both in the main thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, pi

from myxtts.config.schema import RunConfig

VALIDATION = "validation"
SAMPLES = "samples"
EVALUATION = "evaluation"
FLAGS = {VALIDATION: "--validate-every", SAMPLES: "--sample-every", EVALUATION: "--evaluate-every"}


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
    """The length of a run in steps, its periods, and rates by the number of steps done before."""

    total_steps: int
    log_every: int
    checkpoint_every: int
    learning_rate: Callable[[int], float]
    ema_decay: Callable[[int], float]


Rates = Schedule | ConstantRates


def learning_rate(
    step: int, total_steps: int, peak: float, warmup_steps: int, final_ratio: float
) -> float:
    """Return linear warm-up to the peak, then a cosine (Loshchilov & Hutter 2017)."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    passed = min((step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1), 1.0)
    return peak * (final_ratio + (1.0 - final_ratio) * 0.5 * (1.0 + cos(pi * passed)))


def ema_decay(step: int, decay: float) -> float:
    """Return the decay of the moving average: low at first, to forget the initial weights."""
    return min(decay, (1.0 + step) / (10.0 + step))


def run_length(max_steps: int, by_epochs: int) -> int:
    """Return the length of a run in steps: the smaller of the two limits; 0 means no limit."""
    return min(limit for limit in (max_steps, by_epochs) if limit)


def is_due(every: int, step: int, is_last: bool) -> bool:
    """Whether a step is a multiple of `every` steps, or the last step; never if `every` is 0."""
    return every > 0 and (is_last or step % every == 0)


def periods_of(run: RunConfig) -> dict[str, int]:
    """Return the periods of the parts of an observation in steps; 0 turns one off."""
    every = (run.validate_every, run.sample_every, run.evaluate_every)
    return dict(zip((VALIDATION, SAMPLES, EVALUATION), every, strict=True))


def due_parts(periods: Mapping[str, int], step: int, is_last: bool) -> tuple[str, ...]:
    """Return the parts of an observation that are due after a step."""
    return tuple(part for part, every in periods.items() if is_due(every, step, is_last))
