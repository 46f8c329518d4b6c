"""Observations: what is to be done with held-out utterances and the weights of a step. No TensorFlow."""

from collections.abc import Iterable
from typing import NamedTuple

VALIDATION, SAMPLES = "validation", "samples"


class Observation(NamedTuple):
    """Work on the weights of a step whose results are not known yet.

    Attributes:
        parts: VALIDATION, SAMPLES or both.
    """

    step: int
    parts: tuple[str, ...]


def observations_of(metadata: dict) -> tuple[Observation, ...]:
    """Return the observations that were due up to a checkpoint and whose results it does not know, oldest first."""
    return tuple(Observation(step, tuple(parts)) for step, parts in metadata.get("observing", ()))


def without(observations: Iterable[Observation], step: int) -> tuple[Observation, ...]:
    """Return the observations of all other steps."""
    return tuple(observation for observation in observations if observation.step != step)
