"""Everything that a run changes: weights, optimizer, averages, and where it stands."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf

from myxtts.data.plan_iterator import PlannedStep, Position
from myxtts.placement.audit import require_device
from myxtts.placement.replicas import Replicas
from myxtts.tf_internals import AdamWOnReducedGradients

UNDECAYED = ["bias", "gamma", "beta", "embeddings"]  # names of variables, which do not hold those of their layers


class TrainingState:
    """Model, optimizer, moving average and position of a run, all on the device of each replica.

    Build it inside `replicas.scope()`: Keras' optimizer would put its own counters elsewhere.

    Args:
        model: built, that is called once.
        optimizer: as `make_optimizer` gives it.
        averaged: keep a moving average of the weights.
        replicas: which have the same values after each step.
        frozen: components of the model, by its `component_layers()`, that keep their weights.

    Attributes:
        trained: the model's variables that are not frozen: those that gradients, optimizer and averages are of.
        audio_s: seconds of speech trained on, since the start or the fork.
        audio_s_since_sync: the same since the last sync with other jobs (local SGD).
        began: step and position that steps were taken from one after another, without a jump.

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
        layers = [layer for part in frozen for layer in model.component_layers()[part]]
        kept = {v.path for layer in layers for v in layer.variables}
        for layer in layers:
            if layer.non_trainable_variables:  # statistics of batches, which are kept then, too
                layer.trainable = False
        self.trained = [v for v in model.trainable_variables if v.path not in kept]
        require_device(
            self.device, ((v.path, replicas.local_results(v.value)[0]) for v in model.variables)
        )  # or Keras fails
        optimizer.build(self.trained)
        self.averages = [tf.Variable(v.value, trainable=False) for v in self.trained] if averaged else []
        self.bad_step = tf.Variable(0, dtype=tf.int64, trainable=False)  # the first one with a non-finite loss
        self.step = 0
        self.audio_s = self.audio_s_since_sync = 0.0
        self.position = Position()
        self.began = 0, Position()
        self.require_devices()

    def require_devices(self) -> None:
        """Raises PlacementError where a variable is on another device than its replica."""
        for place, device in enumerate(self.replicas.devices):
            require_device(device, self._named(place))

    @property
    def device(self) -> str:
        """Of the replica that validates and speaks for all."""
        return self.replicas.device

    def _named(self, place: int) -> Iterator[tuple[str, tf.Variable]]:
        """Every variable of one replica."""
        for v in (*self.model.variables, *self.optimizer.variables):
            yield v.path, self.replicas.local_results(v.value)[place]
        for v in (*self.averages, self.bad_step):
            yield "moving average", self.replicas.local_results(v)[place]

    def advance(self, planned: PlannedStep) -> None:
        """After a step."""
        self.step += 1
        self.audio_s += planned.audio_s
        self.audio_s_since_sync += planned.audio_s
        self.position = planned.next_position

    def variables(self) -> dict[str, dict[str, tf.Variable]]:
        """What a checkpoint holds: group -> name -> variable."""
        groups = {
            "model": {v.path: v.value for v in self.model.variables},
            "optimizer": {v.path: v.value for v in self.optimizer.variables},
        }
        if self.averages:
            weights = {v.path: v.value for v in self.model.variables}  # what is not trained is its own average
            averages = zip((v.path for v in self.trained), self.averages, strict=True)
            groups["averages"] = weights | dict(averages)
        return groups

    def arrays(self, group: str) -> Iterator[tuple[str, np.ndarray]]:
        """The values of a group of `variables`, by name, each read from the first replica when it is asked for."""
        return ((name, self.replicas.local_results(v)[0].numpy()) for name, v in self.variables()[group].items())

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """The model with its averaged weights, for validation and speech; the trained ones come back after."""
        trained = [v.value for v in self.trained] if self.averages else []
        with tf.device(self.device):
            kept = [tf.identity(v) for v in trained]
            for variable, average in zip(trained, self.averages, strict=True):
                variable.assign(average)
            try:
                yield
            finally:
                for variable, weights in zip(trained, kept, strict=True):
                    variable.assign(weights)


def make_optimizer(weight_decay: float, precision: str) -> keras.optimizers.Optimizer:
    """AdamW (Loshchilov & Hutter 2019); with a scaled loss where the precision is mixed_float16.

    Gradients come to it summed over all replicas. The learning rate is set at each step. Names are fixed, as
    checkpoints go by them: Keras' own count the optimizers of a process.
    """
    # 0.99: the second moment follows within 100 steps, which short runs need; Adam's own 0.999 takes 1,000.
    optimizer = AdamWOnReducedGradients(1e-3, weight_decay=weight_decay, beta_1=0.9, beta_2=0.99, name="adamw")
    optimizer.exclude_from_weight_decay(var_names=UNDECAYED)
    return keras.optimizers.LossScaleOptimizer(optimizer, name="scaled") if precision == "mixed_float16" else optimizer
