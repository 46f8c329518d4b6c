"""Puts the arrays of a checkpoint into variables.

First all arrays are read and compared with all variables, and only then the first variable changes.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from myxtts.base.errors import CheckpointError
from myxtts.checkpoints import files as checkpoint_files
from myxtts.checkpoints.files import Checkpoint

Groups = dict[str, dict[str, np.ndarray]]
"""Group of arrays -> name -> array."""


def load_variables(
    checkpoint: Checkpoint,
    groups: Mapping[str, Mapping[str, tf.Variable]],
    values: Groups | None = None,
) -> None:
    """Set the variables of some groups, from `values` or the arrays of the checkpoint.

    All weights that come from files enter a network here. Raises CheckpointError for a damaged
    checkpoint or the first difference of names, shapes or types; no variable is changed then.
    """
    if values is None:
        values = {group: checkpoint.arrays(group) for group in groups}
    for group, variables in groups.items():
        arrays = values[group]
        for name in sorted(arrays.keys() | variables.keys()):
            found = wanted = "nothing"
            if name in arrays:
                found = f"{arrays[name].dtype} {arrays[name].shape}"
            if name in variables:
                variable = variables[name]
                wanted = f"{variable.dtype.name} {tuple(variable.shape)}"
            if found != wanted:
                raise CheckpointError(
                    f"{checkpoint_files.archive_of(checkpoint.path, group)}: '{name}' is {found},"
                    f" but the model has {wanted}. Use the settings and the version of its run."
                )
    for group, variables in groups.items():
        for name, variable in variables.items():
            variable.assign(values[group][name])
