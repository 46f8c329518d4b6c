"""Everything that a run changes: weights, optimizer, averages, and the position in the plan.

What comes in are a model and its optimizer, built within the scope of the replicas: each variable
has a copy on the device of each replica. The step changes the variables on the devices, and the
main thread counts the step here. What goes out are named variables, which checkpoints copy to the
host, observers copy to their network, and `run.saving.restore` sets.
"""

from collections.abc import Collection, Iterator
from itertools import chain

import keras
import numpy as np
import tensorflow as tf

from myxtts.base.progress import Observation, Position
from myxtts.batches.plan import PlannedStep
from myxtts.checkpoints.files import AVERAGES, MODEL, OPTIMIZER
from myxtts.devicefeed.audit import require_device
from myxtts.placement.replicas import Replicas


class TrainingState:
    """Model, optimizer, moving average and position of a run, all on the device of each replica.

    Build it inside `replicas.scope()`: Keras' optimizer would put its own counters elsewhere.
    Raises PlacementError if a variable is on another device.

    Args:
        model: a network that was called once, so that it has its variables.
        averaged: whether to keep a moving average of the weights.
        frozen: components of the model that keep their weights.

    Attributes:
        trained: the variables that are not frozen; gradients and the optimizer cover these.
        bad_step: the first step with a non-finite loss or gradient; 0 if there is none.
        skipped_updates: updates that mixed_float16 skipped since this process started.
        session_start: step and position since which no step of the plan was left out.
        audio_s, audio_s_since_sync, batch_shares, pending_observations: see `Record`.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        averaged: bool,
        replicas: Replicas,
        frozen: Collection[str] = (),
    ):
        self.model = model
        self.optimizer = optimizer
        self.replicas = replicas
        frozen_paths = set()
        if frozen:
            components = model.component_layers()
            for layer in chain.from_iterable(components[name] for name in frozen):
                frozen_paths |= {v.path for v in layer.variables}
        self.trained = [v for v in model.trainable_variables if v.path not in frozen_paths]
        # The devices are checked before Keras' optimizer would fail with another message.
        variables = ((v.path, replicas.local_results(v.value)[0]) for v in model.variables)
        require_device(self.device, variables)
        optimizer.build(self.trained)
        self.averages = [tf.Variable(v.value, trainable=False) for v in self.trained if averaged]
        self.bad_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.skipped_updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.step = 0
        self.audio_s = 0.0
        self.audio_s_since_sync = 0.0
        self.position = Position()
        self.batch_shares: tuple[float, ...] = ()
        self.session_start = 0, Position()
        self.pending_observations: tuple[Observation, ...] = ()
        self.require_devices()

    def require_devices(self) -> None:
        """Raise PlacementError if a variable is on another device than its replica."""
        for replica, device in enumerate(self.replicas.devices):
            require_device(device, self._named_variables(replica))

    @property
    def device(self) -> str:
        """Device of the first replica; see `Replicas.device`."""
        return self.replicas.device

    def _named_variables(self, replica: int) -> Iterator[tuple[str, tf.Variable]]:
        """Yield every variable of a replica of this process with its name."""
        for v in chain(self.model.variables, self.optimizer.variables):
            yield v.path, self.replicas.local_results(v.value)[replica]
        for v in self.averages:
            yield "moving average", self.replicas.local_results(v)[replica]
        yield "bad step", self.replicas.local_results(self.bad_step)[replica]
        yield "skipped updates", self.replicas.local_results(self.skipped_updates)[replica]

    def advance(self, planned: PlannedStep) -> None:
        """Count a step that was taken."""
        self.step += 1
        self.audio_s += planned.audio_s
        self.audio_s_since_sync += planned.audio_s
        self.position = planned.next_position

    def variables(self) -> dict[str, dict[str, tf.Variable]]:
        """Return the variables that a checkpoint holds: group -> name -> variable."""
        groups = {
            MODEL: {v.path: v.value for v in self.model.variables},
            OPTIMIZER: {v.path: v.value for v in self.optimizer.variables},
        }
        if self.averages:
            # A variable that is not trained is its own average.
            trained = [v.path for v in self.trained]
            groups[AVERAGES] = groups[MODEL] | dict(zip(trained, self.averages, strict=True))
        return groups

    def inference_variables(self) -> dict[str, tf.Variable]:
        """Return the variables of the model, averaged if possible, on the first replica."""
        group = AVERAGES if self.averages else MODEL
        variables = self.variables()[group]
        return {name: self.replicas.local_results(v)[0] for name, v in variables.items()}

    def arrays(self, group: str) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and value of each variable of a group, as `host_value` returns it."""
        for name, variable in self.variables()[group].items():
            yield name, self.host_value(variable)

    def host_value(self, variable: tf.Variable) -> np.ndarray:
        """Return the value of a variable in host memory, read-only; later steps do not change it.

        On a CPU the array is the memory of the variable until that changes: TensorFlow changes a
        variable in place only while nothing else holds its value.
        """
        local = self.replicas.local_results(variable)[0]
        # One raw operation does it, since `read_value` takes five times as long.
        array = np.asarray(tf.raw_ops.ReadVariableOp(resource=local.handle, dtype=local.dtype))
        array.flags.writeable = False
        return array
