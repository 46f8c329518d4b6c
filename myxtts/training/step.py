"""One optimizer step: forward, loss, gradient, clip, apply. The same function for every placement."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from myxtts.batch import FEATURES
from myxtts.placement.audit import require_device
from myxtts.training.state import TrainingState

FEATURES_SPEC = {name: tf.TensorSpec(field.shape, field.dtype, name=name) for name, field in FEATURES.items()}
SCALAR = tf.TensorSpec([], tf.float32)
CONTROLS_SPEC = {"number": tf.TensorSpec([], tf.int64), "learning_rate": SCALAR, "ema_decay": SCALAR}


class Step:
    """The training step of a state.

        outcome = step(batches, number=1, learning_rate=1e-3, ema_decay=0.9)
        step.read(outcome)  # {"mel": …, "prior": …, "duration": …, "loss": …, "gradient_norm": …}

    `batches` are the step's FEATURES, one for each accumulated batch. Their gradients are summed,
    and since each loss is already a share of the whole step's, the sum is that of one large batch.

    Args:
        state: what the step changes. Its model's call gives (losses, outputs), the losses by `model.LOSSES`.
        gradient_clip: largest global norm; 0 does not clip.
        accumulation: batches of a full step.
        static_shapes: trace once for each shape instead of once for all.
        compile_xla: compile with XLA.
    """

    def __init__(
        self, state: TrainingState, gradient_clip: float, accumulation: int, static_shapes: bool, compile_xla: bool
    ):
        self._state = state
        self._clip = gradient_clip
        self._variables = [v.value for v in state.trained]
        with tf.device(state.device):
            self._sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self._variables if accumulation > 1]
            self._no_losses = tf.zeros([len(state.model.LOSSES)])
        require_device(state.device, (("sum of gradients", v) for v in self._sums))
        specs = [FEATURES_SPEC, tf.TensorSpec(self._no_losses.shape, tf.float32), CONTROLS_SPEC]
        self._accumulate = self._traced(self._add_gradients, specs[:2], static_shapes, compile_xla)
        self._finish = self._traced(self._apply_gradients, specs, static_shapes, compile_xla)

    @staticmethod
    def _traced(function, specs, static_shapes, compile_xla):
        signature = None if static_shapes else specs
        return tf.function(function, input_signature=signature, jit_compile=True if compile_xla else None)

    def __call__(self, batches: Sequence[dict], number: int, learning_rate: float, ema_decay: float) -> tf.Tensor:
        """Take step `number`; gives a float32 vector on the model device, which `read` names."""
        with tf.device(self._state.device):
            controls = self._controls(number, learning_rate, ema_decay)
            losses = self._no_losses
            for batch in batches[:-1]:
                losses = self._accumulate(batch, losses)
            return self._finish(batches[-1], losses, controls)

    @staticmethod
    def _controls(number: int, learning_rate: float, ema_decay: float) -> dict[str, tf.Tensor]:
        return {
            "number": tf.constant(number, tf.int64),
            "learning_rate": tf.constant(learning_rate, tf.float32),
            "ema_decay": tf.constant(ema_decay, tf.float32),
        }

    def functions(self, batch: dict) -> list:
        """The concrete functions that steps on such a batch run, for the audit; takes no step.

        One that such a step has run is not traced again.
        """
        with tf.device(self._state.device):
            finish = self._finish.get_concrete_function(batch, self._no_losses, self._controls(0, 0.0, 0.0))
            if not self._sums:
                return [finish]
            return [self._accumulate.get_concrete_function(batch, self._no_losses), finish]

    def read(self, outcome: tf.Tensor) -> dict[str, float]:
        """The values of an outcome, in one copy to the host; waits for the device."""
        names = (*self._state.model.LOSSES, "loss", "gradient_norm")
        return dict(zip(names, outcome.numpy().tolist(), strict=True))

    @property
    def traces(self) -> int:
        return self._finish.experimental_get_tracing_count()

    def _gradients(self, batch):
        """Losses float32 [losses] and gradients of their (scaled) sum."""
        # Only what is trained is watched, so that no gradient passes through what lies before it and is frozen.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            by_name, _ = self._state.model(batch, training=True)
            losses = tf.stack([by_name[name] for name in self._state.model.LOSSES])
            scaled = self._state.optimizer.scale_loss(tf.reduce_sum(losses))
        gradients = tape.gradient(scaled, self._variables)
        return losses, [tf.convert_to_tensor(gradient) for gradient in gradients]  # embeddings give slices

    def _add_gradients(self, batch, losses_so_far):
        losses, gradients = self._gradients(batch)
        for total, gradient in zip(self._sums, gradients, strict=True):
            total.assign_add(gradient)
        return losses_so_far + losses

    def _apply_gradients(self, batch, losses_so_far, controls):
        state = self._state
        losses, gradients = self._gradients(batch)
        losses += losses_so_far
        if self._sums:
            gradients = [total + gradient for total, gradient in zip(self._sums, gradients, strict=True)]
            for total in self._sums:
                total.assign(tf.zeros_like(total))

        scale = loss_scale(state.optimizer)
        norm = tf.linalg.global_norm(gradients)
        if self._clip:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip * scale, use_norm=norm)
        set_learning_rate(state.optimizer, controls["learning_rate"])
        state.optimizer.apply(gradients, state.trained)
        for average, variable in zip(state.averages, self._variables, strict=bool(state.averages)):
            average.assign_sub((1.0 - controls["ema_decay"]) * (average - variable))

        loss = tf.reduce_sum(losses)
        # A scaled loss overflows now and then: the optimizer skips that update and halves the scale, which is no
        # error until nothing is left to halve.
        overflows = is_scaled(state.optimizer) & (scale >= 1.0)
        fine = tf.math.is_finite(loss) & (tf.math.is_finite(norm) | overflows)
        first_bad = ~fine & (state.bad_step == 0)
        state.bad_step.assign(tf.where(first_bad, controls["number"], state.bad_step))
        return tf.concat([losses, [loss, norm / scale]], axis=0)


def is_scaled(optimizer: keras.optimizers.Optimizer) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def loss_scale(optimizer: keras.optimizers.Optimizer):
    """The factor on the gradients, float32, as it is now: applying them may change it."""
    return tf.identity(optimizer.dynamic_scale.value) if is_scaled(optimizer) else 1.0


def set_learning_rate(optimizer: keras.optimizers.Optimizer, learning_rate: tf.Tensor) -> None:
    inner = optimizer.inner_optimizer if is_scaled(optimizer) else optimizer
    inner.learning_rate = learning_rate
