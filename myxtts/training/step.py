"""One optimizer step: forward, loss, gradient, clip, apply. The same function for every placement."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from myxtts.batch import tensor_specs
from myxtts.placement.audit import require_device
from myxtts.training.state import TrainingState

SCALAR = tf.TensorSpec([], tf.float32)
CONTROLS_SPEC = {"number": tf.TensorSpec([], tf.int64), "learning_rate": SCALAR, "ema_decay": SCALAR, "stop": SCALAR}


class Step:
    """The training step of a state, on all its replicas.

        outcome = step(microbatches, number=1, learning_rate=1e-3, ema_decay=0.9)
        step.read(outcome)  # {"mel": …, "prior": …, "duration": …, "loss": …, "gradient_norm": …}

    Each of the `microbatches` has a batch for each replica of this process. Gradients are summed over microbatches
    and replicas. Since each loss is a share of the loss of the whole step, the sum is the gradient of one large batch.

    Args:
        state: what the step changes. Its model's call returns (losses, outputs) for a batch with the contract
            `model.BATCH_FIELDS`; `model.LOSS_NAMES` names the losses.
        gradient_clip: largest global norm; 0 does not clip.
        accumulation: microbatches of a complete step.
        static_shapes: trace once for each shape instead of once for all shapes.
        compile_xla: compile with XLA; for one replica only.
    """

    def __init__(
        self, state: TrainingState, gradient_clip: float, accumulation: int, static_shapes: bool, compile_xla: bool
    ):
        self._state = state
        self._clip = gradient_clip
        self._variables = [v.value for v in state.trained]
        replicas = state.replicas
        with replicas.scope():
            self._sums = [self._sum_of(v) for v in self._variables if accumulation > 1]
        self._no_losses = []
        for device in replicas.devices:
            with tf.device(device):
                self._no_losses.append(tf.zeros([len(state.model.LOSS_NAMES)]))
        for replica, device in enumerate(replicas.devices):
            require_device(device, (("sum of gradients", replicas.local_results(v)[replica]) for v in self._sums))
        batches = [tensor_specs(state.model.BATCH_FIELDS)] * len(replicas.devices)
        losses = [tf.TensorSpec(zeros.shape, zeros.dtype) for zeros in self._no_losses]
        self._accumulate = self._traced(self._add_microbatch, [batches, losses], static_shapes, compile_xla)
        self._finish = self._traced(
            self._take_last_microbatch, [batches, losses, CONTROLS_SPEC], static_shapes, compile_xla
        )

    @staticmethod
    def _sum_of(variable):
        """Make a variable of zeros on each replica, to which the replica adds its own gradients."""
        return tf.Variable(
            tf.zeros_like(variable),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    @staticmethod
    def _traced(function, signature, static_shapes, compile_xla):
        signature = None if static_shapes else signature
        return tf.function(function, input_signature=signature, jit_compile=True if compile_xla else None)

    def __call__(
        self,
        microbatches: Sequence[Sequence[dict]],
        number: int,
        learning_rate: float,
        ema_decay: float,
        stop: bool = False,
    ) -> tf.Tensor:
        """Take step `number`; return its outcome, a float32 vector on the first model device (see `read`).

        Args:
            stop: whether this process has a request to stop; see `stop_requested`.
        """
        with tf.device(self._state.device):
            controls = self._controls(number, learning_rate, ema_decay, stop)
            losses = self._no_losses
            for batches in microbatches[:-1]:
                losses = self._accumulate(list(batches), losses)
            return self._finish(list(microbatches[-1]), losses, controls)

    @staticmethod
    def _controls(number: int, learning_rate: float, ema_decay: float, stop: bool) -> dict[str, tf.Tensor]:
        return {
            "number": tf.constant(number, tf.int64),
            "learning_rate": tf.constant(learning_rate, tf.float32),
            "ema_decay": tf.constant(ema_decay, tf.float32),
            "stop": tf.constant(float(stop), tf.float32),
        }

    def functions(self, batches: Sequence[dict]) -> list:
        """Return the concrete functions that a step runs on such batches, one batch per replica; for the audit.

        Takes no step. A function that was traced for such batches is not traced again.
        """
        with tf.device(self._state.device):
            finish = self._finish.get_concrete_function(
                list(batches), self._no_losses, self._controls(0, 0.0, 0.0, False)
            )
            if not self._sums:
                return [finish]
            return [self._accumulate.get_concrete_function(list(batches), self._no_losses), finish]

    def read(self, outcome: tf.Tensor) -> dict[str, float]:
        """Return the losses, their sum and the gradient norm of an outcome by name; waits for the device."""
        names = (*self._state.model.LOSS_NAMES, "loss", "gradient_norm")
        return dict(zip(names, outcome[:-1].numpy().tolist(), strict=True))

    @staticmethod
    def stop_requested(outcome: tf.Tensor) -> bool:
        """Return whether any process had a request to stop at the step; the same on all. Waits for the device."""
        return bool(outcome[-1].numpy() > 0)

    @property
    def traces(self) -> int:
        """How often the step was traced."""
        return self._finish.experimental_get_tracing_count()

    def _add_microbatch(self, batches, losses_so_far):
        """On all replicas: add the gradients of a microbatch; return the losses so far of each replica."""
        replicas = self._state.replicas
        arguments = replicas.per_replica(batches), replicas.per_replica(losses_so_far)
        return list(replicas.local_results(replicas.strategy.run(self._accumulate_on_replica, arguments)))

    def _take_last_microbatch(self, batches, losses_so_far, controls):
        """On all replicas: compute the last gradients of the step and update the weights; return the outcome."""
        state, replicas = self._state, self._state.replicas
        set_learning_rate(state.optimizer, controls["learning_rate"])
        arguments = replicas.per_replica(batches), replicas.per_replica(losses_so_far)
        outcome, is_finite = replicas.strategy.run(self._finish_on_replica, (*arguments, controls["stop"]))
        outcome, is_finite = replicas.local_results(outcome)[0], replicas.local_results(is_finite)[0]
        self._update_moving_averages(controls["ema_decay"])
        first_bad = ~is_finite & (state.bad_step == 0)
        state.bad_step.assign(tf.where(first_bad, controls["number"], state.bad_step))
        return outcome

    def _update_moving_averages(self, decay):
        """On all replicas: let the exponential moving averages follow the weights."""
        state, strategy = self._state, self._state.replicas.strategy

        def follow(average, variable):
            average.assign_sub((1.0 - decay) * (average - variable))

        for average, variable in zip(state.averages, self._variables, strict=bool(state.averages)):
            strategy.extended.update(average, follow, (variable,), group=False)

    def _gradients(self, batch):
        """On one replica: return the losses, float32 [losses], and the gradients of their (scaled) sum."""
        # Only trained variables are watched, so that no gradient is computed for frozen layers before them.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            by_name, _ = self._state.model(batch, training=True)
            losses = tf.stack([by_name[name] for name in self._state.model.LOSS_NAMES])
            scaled = self._state.optimizer.scale_loss(tf.reduce_sum(losses))
        gradients = tape.gradient(scaled, self._variables)
        shapes = [variable.shape for variable in self._variables]  # some gradients have no static shape
        return losses, [tf.ensure_shape(gradient, shape) for gradient, shape in zip(gradients, shapes, strict=True)]

    def _accumulate_on_replica(self, batch, losses_so_far):
        """On one replica: add the gradients of a batch; return the losses so far."""
        losses, gradients = self._gradients(batch)
        for total, gradient in zip(self._sums, gradients, strict=True):
            total.assign_add(gradient)
        return losses_so_far + losses

    def _finish_on_replica(self, batch, losses_so_far, stop):
        """On one replica: update the weights; return the outcome of all replicas and whether it is finite."""
        optimizer = self._state.optimizer
        losses, gradients = self._gradients(batch)
        losses += losses_so_far
        if self._sums:
            gradients = [total + gradient for total, gradient in zip(self._sums, gradients, strict=True)]
            for total in self._sums:
                total.assign(tf.zeros_like(total))
        packed = tf.concat([losses, [stop]], axis=0)
        packed, *gradients = self._state.replicas.all_reduce_sum([packed, *gradients])
        losses, stop = packed[:-1], packed[-1]

        scale = loss_scale(optimizer)
        norm = tf.linalg.global_norm(gradients)
        if self._clip:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip * scale, use_norm=norm)
        optimizer.apply(gradients, self._state.trained)

        loss = tf.reduce_sum(losses)
        # A scaled loss overflows now and then: the optimizer skips that update and halves the scale. This is an
        # error only when the scale falls below 1.
        overflows = is_scaled(optimizer) & (scale >= 1.0)
        is_finite = tf.math.is_finite(loss) & (tf.math.is_finite(norm) | overflows)
        return tf.concat([losses, [loss, norm / scale, stop]], axis=0), is_finite


def is_scaled(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the optimizer scales the loss, as mixed_float16 needs it."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def loss_scale(optimizer: keras.optimizers.Optimizer):
    """Return the present factor on the gradients, float32; applying gradients may change it."""
    return tf.identity(optimizer.dynamic_scale.value) if is_scaled(optimizer) else 1.0


def set_learning_rate(optimizer: keras.optimizers.Optimizer, learning_rate: tf.Tensor) -> None:
    """Set the learning rate of the optimizer, or of the one inside a loss scale."""
    inner = optimizer.inner_optimizer if is_scaled(optimizer) else optimizer
    inner.learning_rate = learning_rate
