"""Groups of losses with variables and an optimizer each: a GAN has two."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import keras

NETWORK = "model"  # the first group of every model: what inference uses


class LossGroup(NamedTuple):
    """The losses of a group and the variables, trained or not, that receive their gradient alone.

    The losses are in the order of reports. The model returns them in training; without training it
    may leave out those that are not in its LOSS_NAMES. The weight of those that are `rising` rises
    linearly to 1 over the first `rise_steps` steps. Those that are `observed` are reported alone.
    """

    losses: tuple[str, ...]
    variables: Sequence[keras.Variable]
    rising: tuple[str, ...] = ()
    rise_steps: int = 0
    observed: tuple[str, ...] = ()
    learning_rate_ratio: float = 1.0  # of the learning rate to that of the network
    beta_1: float = 0.9  # of Adam


def loss_groups_of(model: keras.Model) -> dict[str, LossGroup]:
    """Return the groups of a model by name: its `loss_groups()`, or one with everything.

    They are a partition of its variables. The first is NETWORK, and the others are for training.
    """
    if not hasattr(model, "loss_groups"):
        observed = observed_names(model)
        losses = *model.LOSS_NAMES, *observed
        return {NETWORK: LossGroup(losses, model.variables, observed=observed)}
    groups: dict[str, LossGroup] = model.loss_groups()
    paths = [v.path for v in itertools.chain(*(group.variables for group in groups.values()))]
    is_partition = sorted(paths) == sorted(variable.path for variable in model.variables)
    assert next(iter(groups)) == NETWORK and is_partition, f"{model.name}: not a partition"
    return groups


def observed_names(model: keras.Model) -> tuple[str, ...]:
    """Return the names of what a model reports among its losses, but does not minimise."""
    names: tuple[str, ...] = getattr(model, "OBSERVED_NAMES", ())
    return names


def network_variables(model: keras.Model) -> Sequence[keras.Variable]:
    """Return the variables that inference uses, without those for training only."""
    return loss_groups_of(model)[NETWORK].variables
