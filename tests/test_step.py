"""The training step: accumulation, clipping, averages, loss scale, traces and non-finite values."""

import contextlib
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.handover import LookAhead
from myxtts.run.loop import NonFiniteLoss, require_finite
from myxtts.run.observation import Snapshot, Validation
from myxtts.run.schedule import ConstantRates
from myxtts.run.step import TABLE_STEPS, Controls, Step
from myxtts.tasks.tts.contract import TTS_FEATURES
from tests import tiny
from tests.long import long
from tests.tiny import FeedOf, Toy, build_model, build_toy, features, on_device, rows_of, take_step
from tests.two_devices import DATA, MODEL

ROWS = [(5, 13), (8, 24), (3, 3), (4, 9)]  # tokens and frames


def make_step(model=None, clip=0.0, accumulation=1, static=False, xla=False, **options):
    """Return (state, step) of a model, by default the toy."""
    precision = options.get("precision", "float32")
    state = tiny.training_state(model or build_toy(precision), **options)
    return state, Step(state, clip, accumulation, static, xla)


def run_step(step, *batches, number=1, learning_rate=1e-2, ema_decay=0.9):
    microbatches = [[on_device(batch)] for batch in batches]
    return step.read(take_step(step, microbatches, number, learning_rate, ema_decay))


def assert_close(left, right, **tolerances):
    for first, second in zip(left, right, strict=True):
        np.testing.assert_allclose(first, second, **{"rtol": 0.0, "atol": 0.0, **tolerances})


def snapshot_of(state):
    return Snapshot(build_toy(), state.inference_variables(), MODEL)


def weights(state):
    return [variable.numpy() for variable in state.model.trainable_variables]


def norm_of(arrays):
    return float(np.sqrt(sum(np.sum(np.square(array, dtype=np.float64)) for array in arrays)))


class FailedStep(unittest.TestCase):
    """Steps that lack memory, or wait for a worker that is lost."""

    @staticmethod
    def failing(tensor):
        """Return a tensor whose computation fails after all else that can run has run."""

        def fail(value):
            time.sleep(0.2)
            raise MemoryError("nothing left")

        failed = tf.numpy_function(fail, [tensor], tensor.dtype)
        return tf.ensure_shape(failed, tensor.shape)

    def fail(self):
        """Take a step that fails; return it, and whether it has changed what is saved."""
        model = build_toy()
        state, step = make_step(model, clip=0.0)
        variables = [*model.variables, *state.averages]
        variables += [v for v in state.optimizer.variables if v.name != "learning_rate"]
        before = [variable.numpy() for variable in variables]
        with self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "nothing left"):
            run_step(step, features(ROWS))
        pairs = zip(variables, before, strict=True)
        return step, any((variable.numpy() != values).any() for variable, values in pairs)

    def test_one_that_has_no_gradient_yet_changes_nothing_that_is_saved(self):
        def all_reduce(_, tensors):
            return [self.failing(tensors[0]), *tensors[1:]]

        with mock.patch("myxtts.placement.replicas.Replicas.all_reduce_sum", all_reduce):
            step, is_changed = self.fail()
        self.assertEqual((step.left_unchanged(), is_changed), (True, False))

    def test_one_that_has_begun_to_update_says_so(self):
        apply = keras.optimizers.AdamW.apply

        def apply_most(optimizer, gradients, variables):
            apply(optimizer, [*gradients[:-1], self.failing(gradients[-1])], variables)

        with mock.patch.object(keras.optimizers.AdamW, "apply", apply_most):
            step, is_changed = self.fail()
        self.assertEqual((step.left_unchanged(), is_changed), (False, True))


class Accumulation(unittest.TestCase):
    def test_accumulated_microbatches_match_one_large_batch(self):
        batch = features(ROWS)
        state, whole = make_step(clip=1.0)
        accumulated, parts = make_step(clip=1.0, accumulation=3)
        cuts = [slice(0, 1), slice(1, 3), slice(3, 4)]
        for number in (1, 2, 3):
            expected = run_step(whole, batch, number=number)
            result = run_step(parts, *(rows_of(batch, cut) for cut in cuts), number=number)
            for name, value in expected.items():
                np.testing.assert_allclose(result[name], value, rtol=1e-5, err_msg=name)
        assert_close(weights(state), weights(accumulated), atol=1e-5)

    def test_incomplete_step_uses_only_its_own_batches(self):
        state, step = make_step(accumulation=3)
        run_step(step, *[features(ROWS)] * 3)  # no gradient remains
        again, whole = make_step()
        for variable, value in zip(again.model.trainable_variables, weights(state), strict=True):
            variable.assign(value)
        expected = run_step(whole, features(ROWS, seed=1))
        result = run_step(step, features(ROWS, seed=1))
        np.testing.assert_allclose(list(result.values()), list(expected.values()), rtol=1e-5)

    def test_non_finite_gradient_of_a_microbatch_is_found(self):
        state, step = make_step(accumulation=2)
        bad = features(ROWS)
        bad["mel"][0, 0, 0] = np.nan
        run_step(step, bad, features(ROWS), number=1)
        self.assertEqual(state.bad_step.numpy(), 1)


class Gradient(unittest.TestCase):
    def first_moment(self, clip):
        """Return (reported norm, norm of the gradient that the optimizer received) of one step."""
        state, step = make_step(clip=clip)
        norm = run_step(step, features(ROWS))["gradient_norm"]
        # Adam's first moment after one step is (1 - 0.9) times the gradient.
        moments = [v.numpy() for v in state.optimizer.variables if "momentum" in v.path]
        self.assertEqual(len(moments), len(weights(state)))
        return norm, norm_of(moments) / 0.1

    def test_gradient_is_clipped_once_to_the_given_norm(self):
        norm, used = self.first_moment(clip=0.5)
        self.assertGreater(norm, 5.0)
        self.assertAlmostEqual(used, 0.5, 4)

    def test_gradient_is_not_clipped_by_0_or_a_larger_norm(self):
        for clip in (0.0, 1e9):
            norm, used = self.first_moment(clip)
            self.assertAlmostEqual(used / norm, 1.0, 4)

    def test_weight_decay_applies_to_kernels_only(self):
        state = tiny.training_state(build_model())
        state.optimizer.learning_rate = 1.0
        for variable in state.model.trainable_variables:
            variable.assign(tf.ones_like(variable.value))
        with tf.device(MODEL):
            state.optimizer.apply([tf.zeros_like(v.value) for v in state.model.trainable_variables])
        for variable in state.model.trainable_variables:
            expected = 0.99 if variable.path.endswith("/kernel") else 1.0
            np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6, err_msg=variable.path)


class StepArguments(unittest.TestCase):
    def test_given_learning_rate_is_used(self):
        state, step = make_step()
        for number, rate in enumerate((1e-2, 3e-4), 1):
            before = weights(state)
            run_step(step, features(ROWS), number=number, learning_rate=rate)
            largest = max(np.abs(a - b).max() for a, b in zip(weights(state), before, strict=True))
            # Adam moves a weight by about the rate.
            self.assertAlmostEqual(largest / rate, 1.0, delta=0.15)
            self.assertAlmostEqual(float(state.optimizer.learning_rate), rate, 8)

    def test_given_ema_decay_is_used(self):
        state, step = make_step()
        expected = weights(state)
        for number, decay in enumerate((0.1, 0.9), 1):
            run_step(step, features(ROWS), number=number, ema_decay=decay)
            pairs = zip(expected, weights(state), strict=True)
            expected = [decay * mean + (1 - decay) * weight for mean, weight in pairs]
            assert_close([average.numpy() for average in state.averages], expected, atol=1e-6)

    def test_a_snapshot_has_the_averaged_weights_or_the_weights_and_changes_none(self):
        for averaged in (True, False):
            state, step = make_step(averaged=averaged)
            run_step(step, features(ROWS))
            before = weights(state)
            expected = [average.numpy() for average in state.averages] or before
            snapshot = snapshot_of(state)
            snapshot.take()
            assert_close([v.numpy() for v in snapshot.network.trainable_variables], expected)
            assert_close(before, weights(state))
            self.assertEqual(len(state.averages), len(before) if averaged else 0)


class HandOverTest(unittest.TestCase):
    """Batches that threads hand over ahead train bit for bit as those handed over before a step."""

    RATES = ConstantRates(1e-2, 0.9)

    def steps_of(self, accumulation, steps=4):
        """Return steps of microbatches on the data device; one is incomplete, shapes change."""
        made = []
        for number in range(steps):
            microbatches = 1 if number == 1 else accumulation
            padded = (8 + number // 2, 24 + number // 2)
            batches = [features(ROWS, padded, seed=9 * number + i) for i in range(microbatches)]
            made.append([[on_device(batch, DATA)] for batch in batches])
        return made

    def ahead(self, step, steps):
        """Take the steps as the loop does; return their outcomes."""
        feed = FeedOf(steps)
        ahead, outcomes = LookAhead(feed, step.hand_over), []
        for number, microbatches in enumerate(steps, 1):
            batches = ahead.take(None, steps_left=len(steps) - number + 1)
            self.assertEqual(len(batches), len(microbatches))
            outcome = step(batches, number, self.RATES)
            require_device(MODEL, [*batches.newest[0].items(), ("outcome", outcome)])
            outcomes.append(outcome.numpy())
        return outcomes

    def assert_same(self, traces, accumulation=1, **settings):
        state, step = make_step(clip=1.0, accumulation=accumulation, **settings)
        groups = [variable for group in state.variables().values() for variable in group.values()]
        first_values, steps = [variable.numpy() for variable in groups], self.steps_of(accumulation)
        expected = [
            take_step(step, microbatches, number, 1e-2, 0.9).numpy()
            for number, microbatches in enumerate(steps, 1)
        ]
        weights_then = weights(state)
        for variable, value in zip(groups, first_values, strict=True):
            variable.assign(value)
        np.testing.assert_array_equal(self.ahead(step, steps), expected)
        np.testing.assert_equal(weights(state), weights_then)
        self.assertEqual(step.traces, traces)

    def test_plain_and_accumulated_steps_are_the_same_with_one_trace(self):
        self.assert_same(traces=1)
        self.assert_same(traces=1, accumulation=2)

    def test_static_shapes_are_traced_once_for_each_shape_whatever_follows(self):
        self.assert_same(traces=2, static=True)  # 4 steps of 2 shapes

    def test_steps_compiled_by_xla_are_the_same(self):
        self.assert_same(traces=2, static=True, xla=True)

    def test_a_step_passes_only_tensors_that_exist(self):
        """A tensor made on a busy GPU would wait until the GPU is done."""
        _, step = make_step(accumulation=2)
        handed, passed = step.hand_over([on_device(features(ROWS), DATA)]), []
        outcome = step([handed, handed], 1, self.RATES)
        for key, function in step._traced.items():
            step._traced[key] = lambda *arguments, function=function: (
                passed.append(arguments) or function(*arguments)
            )
        later, made = step._controls, AssertionError("a tensor was made")
        with mock.patch("myxtts.run.step.tf.constant", side_effect=made):
            for number, stop in ((2, False), (3, True), (4, False)):
                kept = [later._table, later._stop, later._flags, later._steps_done_on_device]
                kept.append(handed)
                known = {id(tensor) for tensor in tf.nest.flatten(kept)}
                outcome = step([handed, handed], number, self.RATES, stop)
                accumulated, finished = passed[-2:]
                self.assertLessEqual(set(map(id, tf.nest.flatten(accumulated))), known)
                actual = set(map(id, tf.nest.flatten(finished)))
                self.assertLessEqual(actual, known)
                self.assertEqual(step.stop_requested(outcome), stop)


class RatesTest(unittest.TestCase):
    """Rates come from a table on the device, by a counter on the device."""

    def test_rates_are_those_of_the_number_of_the_step_wherever_it_starts_or_jumps(self):
        state, step = make_step()
        falling = SimpleNamespace(
            learning_rate=lambda done: 1e-3 / (1 + done), ema_decay=lambda done: done / 1e4
        )
        batches = step.hand_over([on_device(features(ROWS), DATA)])
        around = range(TABLE_STEPS - 1, TABLE_STEPS + 3)
        # A resumed run starts anywhere, and a sync may move a run to a later step.
        for number in (1, 2, 3, *around, 5, 2 * TABLE_STEPS, 7):
            before = state.averages[0].numpy()
            step([batches], number, falling)
            rate = state.optimizer.learning_rate.numpy()
            self.assertEqual(rate, np.float32(falling.learning_rate(number - 1)), number)
            decay = np.float32(falling.ema_decay(number - 1))
            expected = before - (1 - decay) * (before - state.trained[0].numpy())
            assert_close([state.averages[0].numpy()], [expected], rtol=1e-5, atol=1e-7)

    def test_changed_rates_are_used_from_the_next_step_on(self):
        state, step = make_step()
        batches = step.hand_over([on_device(features(ROWS), DATA)])
        for number, rate in ((1, 1e-3), (2, 5e-4), (3, 1e-3)):
            step([batches], number, ConstantRates(rate, 0.9))
            self.assertEqual(state.optimizer.learning_rate.numpy(), np.float32(rate))

    def test_tables_are_made_once_for_many_steps(self):
        made = []
        rates = SimpleNamespace(
            learning_rate=lambda done: made.append(done) or 1e-3, ema_decay=lambda done: 0.9
        )
        controls = Controls(MODEL)
        for number in range(3, TABLE_STEPS + 3):
            arguments = controls.of_step(number, rates, stop=False)
            self.assertEqual(arguments["steps_done"].numpy(), number - 1)
            controls.advance(arguments["steps_done"] + 1)
        self.assertEqual(made, [*range(TABLE_STEPS), *range(TABLE_STEPS, 2 * TABLE_STEPS)])


class TrainedDifferently(Toy):
    """A toy whose loss depends on `training`, as that of dropout does, and its statistics, too."""

    def __init__(self, symbols: int):
        super().__init__(symbols)
        self.calls = 0
        self.batches = self.add_weight((), "zeros", trainable=False, name="batches")

    def call(self, batch, training=False):
        self.calls += 1
        losses, outputs = super().call(batch, training)
        if training:
            self.batches.assign_add(1.0)
            losses["mel"] *= 2.0
        return losses, outputs


class ValidationTest(unittest.TestCase):
    def test_losses_are_those_of_inference_with_the_averages_and_nothing_changes(self):
        with mock.patch("fakes.toy.Toy", TrainedDifferently):
            state, step = make_step()
            snapshot = snapshot_of(state)
        run_step(step, features(ROWS))
        batch, halves = features(ROWS, seed=3), (slice(0, 2), slice(2, 4))
        held_out = [on_device(rows_of(batch, rows)) for rows in halves]
        held_out.append(on_device(features([(2, 30)], padded=(2, 30))))  # of another shape
        feed = contextlib.nullcontext([(SimpleNamespace(features=batch),) for batch in held_out])
        before = {group: dict(state.arrays(group)) for group in state.variables()}
        snapshot.take()
        network = snapshot.network
        with tf.device(MODEL):
            expected = [network(batch, training=False)[0] for batch in held_out]
        calls = network.calls
        losses = Validation(network, MODEL, lambda: feed).evaluate()
        self.assertEqual(network.calls, calls + 1, "traced more than once")
        for name in Toy.LOSS_NAMES:
            actual = losses[name] / sum(float(share[name]) for share in expected)
            self.assertAlmostEqual(actual, 1.0, 5)
        self.assertEqual(losses["loss"], losses["mel"] + losses["duration"])
        for group, arrays in before.items():
            assert_close(dict(state.arrays(group)).values(), arrays.values())

    def test_a_metric_gets_each_batch_with_the_outputs_and_starts_anew_in_each_pass(self):
        class FrameError:
            def __init__(self):
                self.errors = []

            @staticmethod
            def measure(batch, outputs):
                return {"error": abs(outputs["frame"] - batch["mel"][:, :1])}

            def update(self, batch, measured):
                self.errors.append(measured["error"].numpy().sum())

            def result(self):
                return {"frame_errors": len(self.errors), "frame_error": float(sum(self.errors))}

        class Speaking(Toy):
            def call(self, batch, training=False):
                return super().call(batch, training)[0], {"frame": batch["mel"][:, :1]}

        with mock.patch("fakes.toy.Toy", Speaking):
            state, _ = make_step()
        held_out = [on_device(rows_of(features(ROWS), rows)) for rows in (slice(0, 2), slice(2, 4))]
        feed = contextlib.nullcontext([(SimpleNamespace(features=batch),) for batch in held_out])
        validation = Validation(state.model, MODEL, lambda: feed, FrameError)
        for _ in range(2):
            figures = validation.evaluate()
            self.assertEqual((figures["frame_errors"], figures["frame_error"]), (2, 0.0))
            self.assertEqual(set(figures), {*Toy.LOSS_NAMES, "loss", "frame_errors", "frame_error"})


class Root(keras.Model):
    """A model with the loss √0 = 0, whose gradient is infinite."""

    LOSS_NAMES = ("root",)
    BATCH_FIELDS = TTS_FEATURES

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(1,), initializer="zeros", name="weight")

    def call(self, batch, training=False):
        return {"root": tf.sqrt(self.weight.value[0])}, {}


class NonFinite(unittest.TestCase):
    def test_first_step_with_a_non_finite_loss_is_reported(self):
        state, step = make_step()
        bad = features(ROWS)
        bad["mel"][1, 3, 5] = np.inf
        for number, batch in enumerate((features(ROWS), bad, features(ROWS)), 1):
            take_step(step, [[on_device(batch)]], number, 1e-2, 0.9)
        with self.assertRaises(NonFiniteLoss) as caught:
            require_finite(state)
        self.assertEqual(caught.exception.step, 2)

    def test_non_finite_gradient_of_a_finite_loss_is_found(self):
        with tiny.replicas_on(MODEL).scope():
            root = Root()
        state, step = make_step(root)
        outcome = run_step(step, features(ROWS), number=4)
        self.assertEqual(outcome["loss"], 0.0)
        self.assertEqual(state.bad_step.numpy(), 4)


class LossScale(unittest.TestCase):
    """mixed_float16: the loss is scaled, and updates with an overflowing gradient are skipped."""

    def setUp(self):
        self.state, self.step = make_step(precision="mixed_float16", clip=1.0)
        self.optimizer = self.state.optimizer

    def test_overflowing_step_changes_no_weight_and_is_no_error(self):
        before = weights(self.state)
        self.optimizer.dynamic_scale.assign(3e38)
        outcome = run_step(self.step, features(ROWS), number=1)
        assert_close(before, weights(self.state))
        self.assertTrue(np.isfinite(outcome["loss"]))
        self.assertFalse(np.isfinite(outcome["gradient_norm"]))
        self.assertEqual(self.state.bad_step.numpy(), 0)
        self.assertEqual(self.optimizer.iterations.numpy(), 0)
        np.testing.assert_allclose(self.optimizer.dynamic_scale.numpy(), 1.5e38)

    def test_skipped_updates_are_counted(self):
        skipped = []
        for number, scale in enumerate((3e38, 1.0, 3e38, 1.0), 1):
            self.optimizer.dynamic_scale.assign(scale)
            skipped.append(run_step(self.step, features(ROWS), number=number)["skipped_updates"])
        self.assertEqual(skipped, [1, 1, 2, 2])
        self.assertEqual(self.optimizer.iterations.numpy(), 2)
        self.assertNotIn("skipped_updates", run_step(make_step()[1], features(ROWS)))

    def test_non_finite_loss_is_an_error_with_loss_scaling(self):
        bad = features(ROWS)
        bad["mel"][0, 0, 0] = np.nan
        run_step(self.step, bad, number=5)
        self.assertEqual(self.state.bad_step.numpy(), 5)

    def test_reported_norm_and_clipping_use_the_unscaled_gradient(self):
        expected = run_step(make_step()[1], features(ROWS))["gradient_norm"]
        for scale in (1.0, 1024.0):
            self.setUp()
            self.optimizer.dynamic_scale.assign(scale)
            norm = run_step(self.step, features(ROWS))["gradient_norm"]
            np.testing.assert_allclose(norm, expected, rtol=0.01)
            moments = [v.numpy() for v in self.optimizer.variables if "momentum" in v.path]
            self.assertAlmostEqual(norm_of(moments) / 0.1, 1.0, 2)

    def test_norm_is_correct_in_the_step_that_changes_the_scale(self):
        self.optimizer.dynamic_scale.assign(8.0)
        self.optimizer.step_counter.assign(self.optimizer.dynamic_growth_steps - 1)
        first, second = (run_step(self.step, features(ROWS), learning_rate=0.0) for _ in range(2))
        self.assertEqual(self.optimizer.dynamic_scale.numpy(), 16.0)
        np.testing.assert_allclose(first["gradient_norm"], second["gradient_norm"], rtol=1e-3)


class Traces(unittest.TestCase):
    SHAPES = ((8, 24), (9, 31), (10, 24), (8, 24))

    def traces(self, accumulation, static):
        _, step = make_step(accumulation=accumulation, static=static)
        for shape in self.SHAPES:
            run_step(step, *[features(ROWS, shape)] * accumulation)
        return step.traces

    def test_dynamic_shapes_are_traced_once(self):
        self.assertEqual(self.traces(accumulation=2, static=False), 1)

    def test_static_shapes_are_traced_once_each(self):
        self.assertEqual(self.traces(accumulation=1, static=True), 3)


class CompiledByXla(unittest.TestCase):
    """The whole step of the toy, and the network's gradients, whose step takes 10 s more."""

    def test_compiled_step_matches_the_plain_step(self):
        state, step = make_step(clip=0.5)
        compiled_state, compiled = make_step(clip=0.5, static=True, xla=True)
        for number in (1, 2):
            expected = run_step(step, features(ROWS), number=number)
            result = run_step(compiled, features(ROWS), number=number)
            for name, value in expected.items():
                np.testing.assert_allclose(result[name], value, rtol=1e-5, err_msg=name)
        assert_close(weights(state), weights(compiled_state), atol=1e-5)
        averages = ([v.numpy() for v in each.averages] for each in (state, compiled_state))
        assert_close(*averages, atol=1e-5)

    @long
    def test_compiled_network_has_the_same_losses_and_finite_gradients(self):
        """The flow loss differs, since XLA draws other random numbers from a seed."""
        model = build_model(segment_frames=24, gradient_checkpointing=True)
        _, step = make_step(model, averaged=False)
        batch = on_device(features(ROWS))
        with tf.device(MODEL):
            plain = tf.nest.map_structure(lambda loss: loss.numpy(), model(batch, training=True)[0])
            losses, gradients = tf.function(step._gradients, jit_compile=True)(batch)
        compiled = dict(zip(step.loss_names, losses.numpy(), strict=True))
        for name in ("mel", "prior", "alignment", "duration", "pitch", "energy"):
            self.assertAlmostEqual(compiled[name] / plain[name], 1.0, 3, name)
        self.assertNotEqual(compiled["flow"], plain["flow"])
        self.assertTrue(np.isfinite(tf.linalg.global_norm(gradients)))


class Network(unittest.TestCase):
    def test_network_learns_a_batch_with_one_trace(self):
        state, step = make_step(build_model(), clip=1.0, averaged=False)
        batches = [features(ROWS, (8 + i % 3, 24 + i % 3)) for i in range(12)]
        losses = [run_step(step, batch, number=i)["loss"] for i, batch in enumerate(batches, 1)]
        self.assertTrue(np.isfinite(losses).all())
        self.assertLess(losses[-1], 0.8 * losses[0])
        self.assertEqual(step.traces, 1)
        require_finite(state)
        names = *state.model.LOSS_NAMES, *state.model.OBSERVED_NAMES
        actual = list(run_step(step, features(ROWS)))
        self.assertEqual(actual, [*names, "loss", "gradient_norm"])

    @long
    def test_network_learns_in_float16(self):
        model = build_model("mixed_float16")
        state, step = make_step(model, clip=1.0, precision="mixed_float16", averaged=False)
        outcomes = [run_step(step, features(ROWS), number=i + 1) for i in range(12)]
        self.assertLess(outcomes[-1]["loss"], 0.8 * outcomes[0]["loss"])
        self.assertTrue(np.isfinite(outcomes[-1]["gradient_norm"]))
        require_finite(state)
