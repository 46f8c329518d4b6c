"""How far a run is, in the files of its checkpoints: its position, and observations to make."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

EpochHistory = tuple[tuple[int, int], ...]
"""(replicas, steps) pairs: so many steps of the epoch were taken with so many replicas."""


class Position(NamedTuple):
    """The next step of a run: the state of the data in a checkpoint.

    `step` counts within the part of the epoch that `history` has left, which is empty unless the
    number of replicas changed during this epoch.
    """

    epoch: int = 0
    step: int = 0
    history: EpochHistory = ()

    def after_resize(self, previous_replicas: int) -> "Position":
        """Return this position for a run that continues with another number of replicas."""
        if not self.step:
            return self
        return Position(self.epoch, 0, (*self.history, (previous_replicas, self.step)))


class Observation(NamedTuple):
    """Work on the weights of a step whose results are not known yet."""

    step: int
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{join_and(self.parts)} of step {self.step}"


def join_and(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def without(observations: Iterable[Observation], step: int) -> tuple[Observation, ...]:
    """Return the observations of all other steps."""
    return tuple(observation for observation in observations if observation.step != step)
