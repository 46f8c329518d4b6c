"""Everything that a run changes: weights, optimizer, averages, and the position in the plan."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf

from myxtts.data.plan_iterator import PlannedStep, Position
from myxtts.placement.audit import require_device
from myxtts.placement.replicas import Replicas
from myxtts.tf_internals import AdamWOnReducedGradients

UNDECAYED = ["bias", "gamma", "beta", "embeddings"]  # names of variables, without those of their layers


class TrainingState:
    """Model, optimizer, moving average and position of a run, all on the device of each replica.

    Build it inside `replicas.scope()`: Keras' optimizer would put its own counters elsewhere.

    Args:
        model: built, i.e. called once.
        optimizer: from `make_optimizer`.
        averaged: whether to keep a moving average of the weights.
        replicas: of the model; they have the same values after each step.
        frozen: components of the model, by its `component_layers()`, that keep their weights.

    Attributes:
        trained: the model's variables that are not frozen; gradients, optimizer and averages cover these.
        bad_step: the first step with a non-finite loss or gradient; 0 if there is none.
        audio_s: seconds of speech trained on since the start or the fork.
        audio_s_since_sync: the same since the last sync with other jobs (local SGD).
        began: step and position from which every step of the plan was taken, without a jump.

    Raises:
        PlacementError: a variable is on another device.
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
        components = model.component_layers() if frozen else {}
        layers = [layer for name in frozen for layer in components[name]]
        frozen_paths = {v.path for layer in layers for v in layer.variables}
        for layer in layers:
            if layer.non_trainable_variables:  # batch statistics, which stay as they are, too
                layer.trainable = False
        self.trained = [v for v in model.trainable_variables if v.path not in frozen_paths]
        variables = ((v.path, replicas.local_results(v.value)[0]) for v in model.variables)
        require_device(self.device, variables)  # before Keras' optimizer fails with a message of its own
        optimizer.build(self.trained)
        self.averages = [tf.Variable(v.value, trainable=False) for v in self.trained] if averaged else []
        self.bad_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.step = 0
        self.audio_s = self.audio_s_since_sync = 0.0
        self.position = Position()
        self.began = 0, Position()
        self.require_devices()

    def require_devices(self) -> None:
        """Raise PlacementError if a variable is on another device than its replica."""
        for replica, device in enumerate(self.replicas.devices):
            require_device(device, self._named_variables(replica))

    @property
    def device(self) -> str:
        """Device of the first replica, which validates and writes samples for all."""
        return self.replicas.device

    def _named_variables(self, replica: int) -> Iterator[tuple[str, tf.Variable]]:
        """Yield every variable of a replica of this process with its name."""
        for v in (*self.model.variables, *self.optimizer.variables):
            yield v.path, self.replicas.local_results(v.value)[replica]
        for v in (*self.averages, self.bad_step):
            yield "moving average", self.replicas.local_results(v)[replica]

    def advance(self, planned: PlannedStep) -> None:
        """Count a step that was taken."""
        self.step += 1
        self.audio_s += planned.audio_s
        self.audio_s_since_sync += planned.audio_s
        self.position = planned.next_position

    def variables(self) -> dict[str, dict[str, tf.Variable]]:
        """Return what a checkpoint holds: group -> name -> variable."""
        groups = {
            "model": {v.path: v.value for v in self.model.variables},
            "optimizer": {v.path: v.value for v in self.optimizer.variables},
        }
        if self.averages:
            weights = {
                v.path: v.value for v in self.model.variables
            }  # a variable that is not trained is its own average
            averages = zip((v.path for v in self.trained), self.averages, strict=True)
            groups["averages"] = weights | dict(averages)
        return groups

    def arrays(self, group: str) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and value of each variable of a group; each value is copied when it is taken."""
        for name, variable in self.variables()[group].items():
            yield name, self.replicas.local_results(variable)[0].numpy()

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Give the model its averaged weights for the scope, as validation and samples need them."""
        trained = [v.value for v in self.trained] if self.averages else []
        with tf.device(self.device):
            saved = [tf.identity(v) for v in trained]
            for variable, average in zip(trained, self.averages, strict=True):
                variable.assign(average)
            try:
                yield
            finally:
                for variable, weights in zip(trained, saved, strict=True):
                    variable.assign(weights)


def make_optimizer(weight_decay: float, precision: str) -> keras.optimizers.Optimizer:
    """Return AdamW (Loshchilov & Hutter 2019), with a scaled loss if the precision is mixed_float16.

    It expects gradients that are summed over all replicas. Each step sets the learning rate. Names are fixed because
    checkpoints use them: Keras' default names count the optimizers of a process.
    """
    # 0.99: the second moment follows within 100 steps, which short runs need; Adam's default of 0.999 takes 1,000.
    optimizer = AdamWOnReducedGradients(1e-3, weight_decay=weight_decay, beta_1=0.9, beta_2=0.99, name="adamw")
    optimizer.exclude_from_weight_decay(var_names=UNDECAYED)
    return keras.optimizers.LossScaleOptimizer(optimizer, name="scaled") if precision == "mixed_float16" else optimizer
