"""One optimizer step: forward, loss, gradient, clip, apply. The same for every placement.

What comes in are the microbatches of a step on the model devices, one batch for each replica, with
the number of the step and the rates. The main thread calls one compiled function for each
microbatch: `_add_microbatch` adds up gradients, and `_take_last_microbatch` adds the last ones,
sums them over the replicas and updates the weights. Both run `_gradients` on every replica. What
goes out is the outcome: losses, gradient norm and the stop flag in one tensor on the first model
device. It is returned while the devices still compute it.
"""

import logging
import time
from collections.abc import Iterable, Sequence, Sized
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from myxtts.base.portable_ops import assign_elementwise, packed_on_gpu
from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.contract import Batch, tensor_specs
from myxtts.devicefeed.handover import HandOver
from myxtts.run.optimizer import is_scaled, unscaled
from myxtts.run.schedule import Rates
from myxtts.run.state import TrainingState
from myxtts.tasks.layers import loss_names

# A table on the model device has the rates of so many steps, so that a step makes no tensor there.
TABLE_STEPS = 1024

HOST = "/CPU:0"
# Waiting times are measured in every fourth step. In between, the host runs ahead again.
IDLE_STEPS = 4

SKIPPED = "skipped_updates"  # metric: updates that a loss scale has skipped

log = logging.getLogger(__name__)

# What the last microbatch of a step takes besides the batches; see `Controls`.
CONTROLS_SPEC = {
    "steps_done": tf.TensorSpec([], tf.int64),
    "learning_rate": tf.TensorSpec([TABLE_STEPS], tf.float32),
    "ema_decay": tf.TensorSpec([TABLE_STEPS], tf.float32),
    "stop": tf.TensorSpec([], tf.float32),
    "measures_idle": tf.TensorSpec([], tf.int32),  # in host memory
}


class Microbatches(Iterable[Sequence[Batch]], Sized, Protocol):
    """The microbatches of a step, with a batch for each replica."""


class Step:
    """The training step of a state, on all its replicas.

        microbatches = [step.hand_over(batches) for batches in features]
        outcome = step(microbatches, number=1, rates=schedule)
        step.read(outcome)["gradient_norm"]

    A microbatch has a batch for each replica of this process. Gradients are summed over
    microbatches and replicas. Since each loss is a share of the loss of the whole step, the sum is
    the gradient of one large batch.

    A call creates no tensor on the model devices: it passes tensors that are there. The compiled
    functions return nothing. A returned value would make the first device wait until every replica
    has finished its update.

    Args:
        gradient_clip: largest global norm of the gradient; 0 does not clip.
        accumulation: microbatches of a complete step.
        static_shapes: trace once for each shape instead of once for all shapes.
        compile_xla: compile with XLA; for one replica only.
        can_measure_idle: whether `measures_idle` may be set.

    Attributes:
        traced_s: `time.perf_counter` at the end of the newest tracing.
        loss_names: the losses in the order of reports; see `tasks.layers.loss_names`.
        hand_over: copies a microbatch to the model devices, one batch for each replica.
        measures_idle: whether to add up how long each replica waits for the gradients of the
            slowest, in every IDLE_STEPS-th step. The call of such a step waits for the gradients.
    """

    def __init__(
        self,
        state: TrainingState,
        gradient_clip: float,
        accumulation: int,
        static_shapes: bool,
        compile_xla: bool,
        can_measure_idle: bool = False,
    ):
        self._state = state
        self._clip = gradient_clip
        self._variables = [v.value for v in state.trained]
        self.loss_names = loss_names(state.model)
        self._outcome_names = [*self.loss_names, "loss", "gradient_norm"]
        if is_scaled(state.optimizer):
            self._outcome_names.append(SKIPPED)
        # Figures that are only observed have the weight 0.
        self._loss_weights = [float(name in state.model.LOSS_NAMES) for name in self.loss_names]
        self._static_shapes = static_shapes
        replicas = state.replicas
        # Each replica has its own copy of these variables, and reads and writes it alone.
        kinds = {
            "trainable": False,
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.SUM,
        }
        self._sums = []
        with replicas.scope():
            # The newest step whose update has begun; see `left_unchanged`.
            self._updating = tf.Variable(tf.zeros([], tf.int64), **kinds)
            if accumulation > 1:
                # Sums over the microbatches: of the losses, and of each gradient.
                for value in (tf.zeros([len(self.loss_names)]), *self._variables):
                    self._sums.append(tf.Variable(tf.zeros_like(value), **kinds))
        for variable in self._sums:
            copies = replicas.local_results(variable)
            for device, copy in zip(replicas.devices, copies, strict=True):
                require_device(device, [("sum of gradients", copy)])
        with tf.device(state.device):
            self._outcome = tf.Variable(tf.zeros([len(self._outcome_names) + 1]), trainable=False)
        self.measures_idle = False
        self._idle_s = None
        if can_measure_idle:
            with tf.device(HOST):
                idle_s = tf.zeros([len(replicas.devices)], tf.float64)
                self._idle_s = tf.Variable(idle_s, trainable=False)
        self._controls = Controls(state.device)
        self._batch_specs = [tensor_specs(state.model.BATCH_FIELDS)] * len(replicas.devices)
        self.hand_over = HandOver(state.model.BATCH_FIELDS, replicas.devices)
        self._accumulate = self._compiled(self._add_microbatch, compile_xla)
        self._finish = self._compiled(self._take_last_microbatch, compile_xla)
        self._traced: dict[tuple, Any] = {}  # by function and shapes of a microbatch
        self.traced_s = 0.0

    def _compiled(self, function, compile_xla):
        if compile_xla:
            function = tf.function(function, jit_compile=True, autograph=False)

        def on_device(*arguments):
            # The scope is entered here: one around the tracing does not reach the operations.
            with tf.device(self._state.device):
                return function(*arguments)

        return tf.function(on_device, autograph=False)

    # The microbatches are taken one after the other, because taking one waits until it was copied
    # to the model devices. All but the last add to the sums of gradients. The last one also gets
    # the controls, updates the weights and writes the outcome to a variable. The function for each
    # is traced at its first call. Finally the number of steps done, which the step has written to
    # `_updating`, becomes the argument of the next step, without a way through the host.
    def __call__(
        self, microbatches: Microbatches, number: int, rates: Rates, stop: bool = False
    ) -> tf.Tensor:
        """Take step `number`; return its outcome.

        Each microbatch, on the model devices, is taken when its turn comes. Unless the rates have
        changed, `rates` equals the argument of the previous step. For `stop` see `stop_requested`.
        """
        with tf.device(self._state.device):
            measures_idle = self.measures_idle and number % IDLE_STEPS == 0
            controls = self._controls.of_step(number, rates, stop, measures_idle)
            for count, batches in enumerate(map(list, microbatches), 1):
                if count < len(microbatches):
                    self._concrete(self._accumulate, batches)(batches)
                else:
                    self._concrete(self._finish, batches)(batches, controls)
            self._controls.advance(self._begun[0].read_value())
            return self._outcome.read_value()

    @property
    def _begun(self):
        """The variable `_updating` of each replica."""
        return self._state.replicas.local_results(self._updating)

    def left_unchanged(self) -> bool:
        """Whether a failed call left the state as it was: no replica had begun to update it."""
        return all(int(step.numpy()) <= self._controls.steps_done for step in self._begun)

    def _concrete(self, function, batches: Sequence[Batch]):
        """Return the concrete function for such microbatches."""
        specs, shapes = self._batch_specs, ()
        if self._static_shapes:
            specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, list(batches))
            shapes = tuple(spec.shape for spec in tf.nest.flatten(specs))
        key = function, shapes
        if key not in self._traced:
            work = "the gradients of a microbatch"
            signature: list[Any] = [specs]
            if function is self._finish:
                work = "the step"
                signature.append(CONTROLS_SPEC)
            each = ""
            if shapes:
                each = ", for one shape of batches (--enable-static-shapes)"
            on = " and ".join(self._state.replicas.devices)
            log.info("tracing        %s on %s%s: it takes seconds to minutes", work, on, each)
            self._traced[key] = function.get_concrete_function(*signature)
            self.traced_s = time.perf_counter()
        return self._traced[key]

    def functions(self, batches: Sequence[Batch]) -> list:
        """Return the concrete functions of a step on such batches, for the audit."""
        used = [self._accumulate, self._finish] if self._sums else [self._finish]
        with tf.device(self._state.device):
            return [self._concrete(function, batches) for function in used]

    def synchronize(self, outcome: tf.Tensor) -> None:
        """Wait until the first model device has finished the step of an outcome."""
        outcome.numpy()

    def read(self, outcome: tf.Tensor) -> dict[str, float]:
        """Wait; return losses, their sum, the gradient norm, and with a loss scale SKIPPED."""
        return dict(zip(self._outcome_names, outcome.numpy()[:-1].tolist(), strict=True))

    @staticmethod
    def stop_requested(outcome: tf.Tensor) -> bool:
        """Whether any process was asked to stop before the step; waits for the device."""
        return bool(outcome.numpy()[-1] > 0)

    def idle_s(self) -> np.ndarray:
        """Return how long each replica waited in all measuring steps so far: float64 [replicas]."""
        assert self._idle_s is not None
        return self._idle_s.numpy()

    @property
    def traces(self) -> int:
        """How often the step was traced."""
        return self._finish.experimental_get_tracing_count()

    def _add_microbatch(self, batches):
        """On all replicas: add the losses and gradients of a microbatch."""
        replicas = self._state.replicas
        replicas.strategy.run(self._accumulate_on_replica, (replicas.per_replica(batches),))

    # This function is traced once, and runs on all replicas of the process. The rates are looked up
    # in the table. Then each replica computes its gradients, sums them with all others and updates
    # its weights (`_finish_on_replica`). All replicas return the same outcome, so the first one's
    # counts. The moving average follows the new weights. Then the process counts skipped updates,
    # and notes the first step that was not finite. The host reads these notes when a report is due.
    def _take_last_microbatch(self, batches, controls):
        """On all replicas: update the weights, and the outcome."""
        state, replicas, steps_done = self._state, self._state.replicas, controls["steps_done"]
        learning_rate = tf.gather(controls["learning_rate"], steps_done % TABLE_STEPS)
        ema_decay = tf.gather(controls["ema_decay"], steps_done % TABLE_STEPS)
        unscaled(state.optimizer).learning_rate = learning_rate
        local = replicas.per_replica(batches)
        arguments = local, steps_done, controls["stop"], controls["measures_idle"]
        results = replicas.strategy.run(self._finish_on_replica, arguments)
        results = [replicas.local_results(result) for result in results]
        if self._idle_s is not None:
            with tf.device(HOST):
                ready_s = tf.stack(results.pop())
                self._idle_s.assign_add(tf.reduce_max(ready_s) - ready_s)
        outcome, is_finite, *skipped = (result[0] for result in results)

        def followed(average, variable):
            return (average - (1.0 - ema_decay) * (average - variable),)

        def follow(_, averages, variables):
            assign_elementwise(followed, (averages,), (variables,))

        # There are no averages, or one of each trained variable.
        if state.averages:
            trained = tuple(variable.value for variable in state.trained)
            # One call updates all averages, since tracing a call takes longer than the update.
            pairs = tuple(state.averages), trained
            replicas.strategy.extended.update(state.averages[0], follow, pairs, group=False)
        for count in skipped:
            total = state.skipped_updates + count
            state.skipped_updates.assign(total)
            outcome = tf.concat([outcome[:-1], [tf.cast(total, tf.float32)], outcome[-1:]], axis=0)
        first_bad = ~is_finite & (state.bad_step == 0)
        state.bad_step.assign(tf.where(first_bad, steps_done + 1, state.bad_step))
        self._outcome.assign(outcome)

    def _gradients(self, batch):
        """On one replica: return the losses, float32 [L], and gradients of their (scaled) total."""
        state = self._state
        # Only trained variables are watched, so that no gradient is computed for frozen layers
        # before them.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            by_name, _ = state.model(batch, training=True)
            losses = tf.stack([by_name[name] for name in self.loss_names])
            total = state.optimizer.scale_loss(self._total(losses))
        gradients = tape.gradient(total, self._variables)
        # Some gradients have no static shape.
        gradients = [
            tf.ensure_shape(gradient, variable.shape)
            for gradient, variable in zip(gradients, self._variables, strict=True)
        ]
        return [losses, *gradients]

    def _total(self, losses):
        """Return the minimised loss: the sum without figures that are only observed."""
        return tf.reduce_sum(losses * self._loss_weights)

    def _accumulate_on_replica(self, batch):
        """On one replica: add the losses and gradients of a batch."""
        for total, value in zip(self._sums, self._gradients(batch), strict=True):
            total.assign_add(value)

    # First the gradients of this batch are computed, and the sums of the earlier microbatches are
    # added and set to zero. Where waits are measured, the host then notes the time at which the
    # gradients are ready. One all-reduce sums the losses, the stop flag and all gradients over the
    # replicas of all processes: here every replica waits for the slowest one. From there on all
    # replicas have the same values, and each updates its own copy of the weights with them. Before
    # the update, `_updating` takes the number of this step. If the all-reduce fails, the number is
    # still the former one, and the state may be saved.
    def _finish_on_replica(self, batch, steps_done, stop, measures_idle):
        """On one replica: update the weights; return the outcome, and whether it is finite.

        With a scaled loss, also return whether the update was skipped, as int64; with
        `can_measure_idle`, the time in s at which the gradients were ready, or 0 if not measured.
        """
        optimizer, replicas = self._state.optimizer, self._state.replicas
        losses, *gradients = self._gradients(batch)
        if self._sums:
            pairs = zip(self._sums, (losses, *gradients), strict=True)
            losses, *gradients = (total + value for total, value in pairs)
            for total in self._sums:
                total.assign(tf.zeros_like(total))
        measured = []
        if self._idle_s is not None:
            with tf.control_dependencies(gradients):
                # One number, which the device computes after all gradients.
                last = tf.reduce_max(gradients[0])
            zero_s = tf.zeros([], tf.float64)
            ready_s = tf.cond(measures_idle > 0, lambda: _host_time_s(last), lambda: zero_s)
            measured.append(ready_s)
        packed = tf.concat([losses, [stop]], axis=0)
        reduced = replicas.all_reduce_sum([packed, *gradients])
        packed, *gradients = reduced
        losses, stop = packed[:-1], packed[-1]

        # Weight decay and the number of updates need no gradient. Without these dependencies they
        # would also change in a step that fails, whose state is saved (see `left_unchanged`). And
        # where memory is lacking, each of them would wait ten seconds for it, one after another.
        with tf.control_dependencies(reduced):
            begun = self._updating.assign(steps_done + 1, read_value=False)
        with tf.control_dependencies([begun]):
            norm, scale, is_skipped = self._update(gradients)
        loss = self._total(losses)
        # A scaled loss overflows now and then: the optimizer skips that update and halves the
        # scale. This is an error only when the scale falls below 1.
        overflows = is_scaled(optimizer) & (scale >= 1.0)
        is_finite = tf.math.is_finite(loss) & (tf.math.is_finite(norm) | overflows)
        results = [tf.concat([losses, [loss, norm / scale, stop]], axis=0), is_finite]
        if is_scaled(optimizer):
            results.append(tf.cast(is_skipped, tf.int64))
        return results + measured

    def _update(self, gradients) -> tuple:
        """On one replica: update; return the scaled norm, the scale, and if it was skipped."""
        optimizer = self._state.optimizer
        # The scale is copied first, because applying gradients may change it.
        scale = 1.0
        if is_scaled(optimizer):
            scale = tf.identity(optimizer.dynamic_scale.value)
        packed, unpack = packed_on_gpu(gradients)
        norm = tf.linalg.global_norm(packed)
        if self._clip:
            packed, _ = tf.clip_by_global_norm(packed, self._clip * scale, use_norm=norm)
            gradients = unpack(packed)
        is_skipped = ~optimizer.check_finite(gradients) if is_scaled(optimizer) else False
        optimizer.apply(gradients, self._state.trained)
        return norm, scale, is_skipped


def _host_time_s(element):
    """Return when the host has received an element from its device, in seconds: float64."""
    with tf.device(HOST):
        on_host = tf.abs(element)
        with tf.control_dependencies([on_host]):
            now_s = tf.timestamp()
        # The result must use the copy: TensorFlow drops an unused value, and with it the wait.
        return tf.where(on_host < 0.0, tf.zeros([], tf.float64), now_s)


class Controls:
    """The arguments of a step besides batches, on the device of the first replica.

        arguments = controls.of_step(number, rates, stop=False)
        controls.advance(steps_done)

    A table has the rates of TABLE_STEPS steps, and each step returns the number of steps done for
    the next one. So a new tensor is made only at its end, and where numbers jump or rates change.
    """

    def __init__(self, device: str):
        self._device = device
        with tf.device(device):
            self._stop = tf.constant(0.0), tf.constant(1.0)
        self._flags = tf.constant(0), tf.constant(1)
        self._rates: Rates | None = None
        self._table: dict[str, tf.Tensor] = {}
        self._table_number = -1
        self.steps_done = -1
        self._steps_done_on_device: tf.Tensor | None = None

    def of_step(
        self, number: int, rates: Rates, stop: bool, measures_idle: bool = False
    ) -> dict[str, tf.Tensor]:
        """Return the arguments of step `number`."""
        steps_done = number - 1
        with tf.device(self._device):
            if steps_done != self.steps_done:
                self.steps_done = steps_done
                self._steps_done_on_device = tf.constant(steps_done, tf.int64)
            if rates != self._rates or steps_done // TABLE_STEPS != self._table_number:
                self._rates = rates
                self._table_number = steps_done // TABLE_STEPS
                first = self._table_number * TABLE_STEPS
                for name in ("learning_rate", "ema_decay"):
                    values = map(getattr(rates, name), range(first, first + TABLE_STEPS))
                    self._table[name] = tf.constant(list(values), tf.float32)
        flags = {"stop": self._stop[stop], "measures_idle": self._flags[measures_idle]}
        return {"steps_done": self._steps_done_on_device, **self._table, **flags}

    def advance(self, steps_done: tf.Tensor) -> None:
        """Count a step, with the number of steps done that it returned."""
        self.steps_done += 1
        self._steps_done_on_device = steps_done
