"""Loss groups: two optimizers in one state, on a model whose gradients are computed by hand."""

import logging
import unittest
from types import SimpleNamespace
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.batch import TTS_FEATURES
from myxtts.config.schema import Config
from myxtts.local_sgd.merge import averaged_groups
from myxtts.models.loss_groups import LossGroup, loss_groups_of
from myxtts.placement.replicas import make_replicas
from myxtts.placement.routes import Route
from myxtts.training.checkpoint_files import Checkpoint
from myxtts.training.checkpoints import restore, write_state
from myxtts.training.runs import TrainedRun
from myxtts.training.state import TrainingState, make_optimizers
from myxtts.training.step import Step
from tests.fixtures import make_record, temporary_folder
from tests.test_sync import Job, sync_both
from tests.tiny import features, on_device, replicas_on, rows_of, take_step
from tests.two_devices import MODEL

RATIO, RISE_STEPS = 2.0, 4
X, A, B = 3.0, 0.5, -0.25  # input; weights of the network and of its critic
ROWS = [(5, 12), (8, 24), (3, 4), (4, 8)]  # frames add up to 48


class Pair(keras.Model):
    """A network a·x and a critic b·(a·x), which have opposite goals; x is 3 at every row.

    fit = mean (a·x)², fool = mean b·(a·x), judge = mean (b·(a·x) − 1)², over the frames of a step.
    """

    LOSS_NAMES = ("fit",)
    BATCH_FIELDS = TTS_FEATURES

    def __init__(self, rise_steps=0):
        super().__init__(name="pair", autocast=False)
        self.rise_steps = rise_steps
        scalar = keras.initializers.Constant
        self.network = self.add_weight(shape=(), initializer=scalar(A), name="network")
        self.critic = self.add_weight(shape=(), initializer=scalar(B), name="critic")
        self.built = True

    def loss_groups(self):
        network = LossGroup(("fit", "fool"), [self.network], ("fool",), self.rise_steps)
        critic = LossGroup(("judge",), [self.critic], learning_rate_ratio=RATIO, beta_1=0.8)
        return {"model": network, "critic": critic}

    def call(self, batch, training=False):
        weight = tf.reduce_sum(tf.cast(batch["frames"], tf.float32)) / batch["step_frames"]
        out = self.network * X
        losses = {"fit": weight * tf.square(out)}
        if training:
            score = self.critic * out
            losses |= {"fool": weight * score, "judge": weight * tf.square(score - 1.0)}
        return losses, {}


FIT, FOOL, JUDGE = 2 * A * X * X, B * X, 2 * (B * A * X - 1.0) * A * X  # gradients, by hand


def built(clip=0.0, accumulation=1, rise_steps=0, precision="float32", replicas=None):
    replicas = replicas or replicas_on(MODEL)
    with replicas.scope():
        model = Pair(rise_steps)
        state = TrainingState(model, make_optimizers(model, 0.0, precision), True, replicas)
    return state, Step(state, clip, accumulation, static_shapes=False, compile_xla=False)


def run(step, *batches, number=1, learning_rate=1e-3):
    microbatches = [[on_device(batch)] for batch in batches]
    return step.read(take_step(step, microbatches, number, learning_rate, 0.9))


def gradients_of(state) -> list[float]:
    """Return what each optimizer received in its first step, from Adam's first moment."""
    return [float(moment_of(group).numpy()) / (1 - group.spec.beta_1) for group in state.groups]


def moment_of(group):
    return next(v for v in group.optimizer.variables if "momentum" in v.path)


class Gradients(unittest.TestCase):
    def test_each_group_gets_the_gradient_of_its_own_losses_only(self):
        state, step = built()
        outcome = run(step, features(ROWS))
        np.testing.assert_allclose(gradients_of(state), [FIT + FOOL, JUDGE], rtol=1e-5)
        names = "fit fool judge loss gradient_norm loss_critic gradient_norm_critic"
        self.assertEqual(list(outcome), names.split())
        score = B * A * X
        expected = [(A * X) ** 2, score, (score - 1) ** 2, (A * X) ** 2 + score, abs(FIT + FOOL)]
        expected += [(score - 1) ** 2, abs(JUDGE)]
        np.testing.assert_allclose([*outcome.values()], expected, rtol=1e-5)

    def test_both_groups_are_updated_from_the_same_forward_pass_at_their_own_rates(self):
        state, step = built()
        run(step, features(ROWS), learning_rate=1e-3)
        # Adam's first step is the rate against the sign of the gradient: both judged the weights
        # before the step.
        change = [float(state.model.network) - A, float(state.model.critic) - B]
        expected = [-1e-3 * np.sign(FIT + FOOL), -RATIO * 1e-3 * np.sign(JUDGE)]
        np.testing.assert_allclose(change, expected, rtol=1e-3)

    def test_each_group_is_clipped_by_its_own_norm(self):
        state, step = built(clip=2.5)
        run(step, features(ROWS))
        np.testing.assert_allclose(gradients_of(state), [2.5, max(JUDGE, -2.5)], rtol=1e-5)

    def test_accumulated_microbatches_and_replicas_match_one_batch(self):
        batch = features(ROWS)
        second = make_replicas((Route("/CPU:0", "/CPU:0"), Route("/CPU:1", "/CPU:1")))
        halves = [rows_of(batch, slice(0, 1)), rows_of(batch, slice(1, 4))]
        for rise_steps in (0, RISE_STEPS):
            state, step = built(rise_steps=rise_steps)
            expected = [*run(step, batch, number=3).values(), *gradients_of(state)]
            state, step = built(accumulation=2, rise_steps=rise_steps)
            parts = [*run(step, *halves, number=3).values(), *gradients_of(state)]
            np.testing.assert_allclose(parts, expected, rtol=1e-5)
            state, step = built(rise_steps=rise_steps, replicas=second)
            pair = [*map(on_device, halves, second.devices)]
            outcome = step.read(take_step(step, [pair], 3, 1e-3, 0.9))
            replicated = [*outcome.values(), *gradients_of(state)]
            np.testing.assert_allclose(replicated, expected, rtol=1e-5)

    def test_rising_losses_count_in_proportion_to_the_steps_done(self):
        for number, weight in ((1, 0.0), (3, 0.5), (5, 1.0), (100, 1.0)):
            state, step = built(rise_steps=RISE_STEPS)
            outcome = run(step, features(ROWS), number=number)
            np.testing.assert_allclose(gradients_of(state), [FIT + weight * FOOL, JUDGE], rtol=1e-5)
            self.assertAlmostEqual(outcome["fool"], B * A * X, 5)  # reported without the weight
            self.assertAlmostEqual(outcome["loss"], (A * X) ** 2 + weight * B * A * X, 5)


class LossScales(unittest.TestCase):
    def test_an_overflow_of_one_group_skips_the_update_of_this_group_alone(self):
        state, step = built(precision="mixed_float16")
        network, critic = state.groups
        critic.optimizer.dynamic_scale.assign(3e38)
        outcome = run(step, features(ROWS))
        self.assertEqual(state.bad_step.numpy(), 0)
        updates = [int(group.optimizer.iterations) for group in state.groups]
        self.assertEqual(updates, [1, 0])
        self.assertAlmostEqual(outcome["gradient_norm"], abs(FIT + FOOL), 3)
        self.assertFalse(np.isfinite(outcome["gradient_norm_critic"]))
        self.assertEqual(float(network.optimizer.dynamic_scale), 2.0**15)
        self.assertLess(float(critic.optimizer.dynamic_scale), 3e38)
        self.assertEqual(outcome["skipped_updates"], 1)

    def test_a_loss_that_is_not_finite_in_any_group_ends_training(self):
        state, step = built()
        state.model.critic.assign(np.inf)
        run(step, features(ROWS), number=7)
        self.assertEqual(state.bad_step.numpy(), 7)


class State(unittest.TestCase):
    def test_the_network_alone_is_averaged_and_kept_apart_in_checkpoints(self):
        state, _ = built()
        names = {group: sorted(variables) for group, variables in state.variables().items()}
        self.assertEqual((names["model"], names["critic"]), (["pair/network"], ["pair/critic"]))
        self.assertEqual(names["averages"], ["pair/network"])
        self.assertIn("adamw/pair_network_momentum", names["optimizer"])
        self.assertIn("adamw_critic/pair_critic_momentum", names["optimizer"])

    def test_groups_that_are_no_partition_are_an_error(self):
        model = Pair()
        network = {"model": LossGroup(("fit",), [model.network])}
        for groups in (
            network,
            {"critic": LossGroup(("judge",), [model.critic]), **network},
            {**network, "critic": LossGroup(("judge",), model.variables)},
        ):
            model.loss_groups = lambda groups=groups: groups
            with self.assertRaisesRegex(AssertionError, "not a partition"):
                loss_groups_of(model)


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def written(self, name: str, learning_rate: float = 1e-3):
        state, step = built(rise_steps=RISE_STEPS)
        run(step, features(ROWS), learning_rate=learning_rate)
        state.step = 1
        write_state(self.folder / name, state, make_record(settings=Config()))
        return state, step

    def test_a_resumed_state_repeats_the_next_step_bit_for_bit(self):
        state, step = self.written("first")
        resumed, again = built(rise_steps=RISE_STEPS)
        restore(Checkpoint.read(self.folder / "first"), resumed)
        outcomes = [run(each, features(ROWS, seed=1), number=2) for each in (step, again)]
        self.assertEqual(*outcomes)
        for name in state.variables():
            self.assertEqual(dict(state.arrays(name)), dict(resumed.arrays(name)))

    def test_a_merge_averages_every_group(self):
        states = [self.written(name, rate)[0] for name, rate in (("first", 1e-3), ("second", 3e-3))]
        checkpoints = [Checkpoint.read(self.folder / name) for name in ("first", "second")]
        inputs = [(TrainedRun(self.folder, checkpoint), 1.0) for checkpoint in checkpoints]
        config = SimpleNamespace(training=SimpleNamespace(ema_decay=0.9))
        groups = {name: dict(arrays) for name, arrays in averaged_groups(inputs, config)}
        self.assertEqual(set(groups), {"model", "critic", "averages", "optimizer"})
        for group in ("model", "critic", "averages"):
            name = "pair/critic" if group == "critic" else "pair/network"
            mean = np.mean([dict(state.arrays(group))[name] for state in states])
            self.assertAlmostEqual(float(groups[group][name]), mean, 6)

    def synced(self, name: str, **options) -> Job:
        """Return the first of two synced jobs: 1 and 3 were added to their weights."""

        def build(seed):
            with replicas_on(MODEL).scope():
                return Pair()

        with mock.patch("tests.test_sync.build_toy", build):
            first, second = (Job(self.folder / name, number, **options) for number in (0, 1))
        for job, value in ((first, 1.0), (second, 3.0)):
            job.train(10, value)
            for variable in (v for group in job.state.groups for v in group.optimizer.variables):
                variable.assign(np.full(variable.shape, value, variable.dtype))
        sync_both(first, second)
        return first

    def test_a_sync_averages_the_weights_of_every_group_and_treats_their_optimizers_alike(self):
        for optimizer, expected in (("keep", 1.0), ("average", 2.0), ("reset", 0.0)):
            job = self.synced(optimizer, sync_optimizer=optimizer)
            np.testing.assert_allclose(job.weights, [A + 2.0, B + 2.0])
            for group in job.state.groups:
                self.assertEqual(float(moment_of(group).numpy()), expected)

    def test_the_outer_optimizer_moves_every_group(self):
        job = self.synced("outer", outer_learning_rate=0.5, outer_momentum=0.5)
        # See the same test in test_sync.py.
        np.testing.assert_allclose(job.weights, [A + 1.5, B + 1.5])
