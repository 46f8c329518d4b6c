"""Observations: what is to be done with held-out utterances and the weights of a step. No
TensorFlow.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

VALIDATION, SAMPLES, EVALUATION = "validation", "samples", "evaluation"

Pace = Callable[[], None]
"""Waits until the feed is full; to be called between two batches, when nothing is queued on the
device.
"""


def no_pace() -> None:
    """Stands in for a pace where nothing else uses the device."""


class Observation(NamedTuple):
    """Work on the weights of a step whose results are not known yet.

    Attributes:
        parts: some of VALIDATION, SAMPLES and EVALUATION, in this order.
    """

    step: int
    parts: tuple[str, ...]

    def __str__(self) -> str:
        """Return `validation, samples and evaluation of step 500`."""
        return f"{enumerated(self.parts)} of step {self.step}"


def enumerated(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def observations_of(metadata: dict) -> tuple[Observation, ...]:
    """Return the observations that were due up to a checkpoint and whose results it does not know,
    oldest first.
    """
    return tuple(Observation(step, tuple(parts)) for step, parts in metadata.get("observing", ()))


def without_part(
    observations: Iterable[Observation], step: int, part: str
) -> tuple[Observation, ...]:
    """Return the observations without a part of those of a step."""
    left = []
    for observation in observations:
        parts = tuple(
            name for name in observation.parts if (observation.step, name) != (step, part)
        )
        left += [observation._replace(parts=parts)] if parts else []
    return tuple(left)


def without(observations: Iterable[Observation], step: int) -> tuple[Observation, ...]:
    """Return the observations of all other steps."""
    return tuple(observation for observation in observations if observation.step != step)
