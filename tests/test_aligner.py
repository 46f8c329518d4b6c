"""The learnt aligner: what its loss and its prior are, and that it learns which sound is which."""

import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

from fakes.copies import find_copies
from myxtts.tasks.asr.ctc import ctc_losses_by_recursion
from myxtts.tasks.tts import aligner
from myxtts.tasks.tts.aligner import Aligner, diagonal_prior, normalised_bands
from myxtts.tasks.tts.alignment import path_losses, search_by_frames, sum_over_paths
from tests.two_devices import MODEL


class Prior(unittest.TestCase):
    def test_it_is_highest_on_the_diagonal_and_impossible_behind_the_text(self):
        real = tf.constant([[1.0] * 6, [1.0] * 3 + [0.0] * 3])
        scores = diagonal_prior(real, tf.constant([3, 2]), 4).numpy()
        self.assertEqual(scores[0, :, :3].argmax(axis=1).tolist(), [0, 0, 1, 1, 2, 2])
        self.assertEqual(scores[1, [0, 2]].argmax(axis=1).tolist(), [0, 1])
        # Frame 0 of 6 and token 0 of 3: 1/12 and 1/6.
        self.assertAlmostEqual(scores[0, 0, 0], -np.log1p((1 / 12 / 0.05) ** 2), places=5)
        self.assertEqual(scores[0, 0, 3], aligner.PADDING_SCORE)


class Bands(unittest.TestCase):
    def test_level_and_colour_of_a_room_padding_and_bands_without_sound_change_nothing(self):
        random = np.random.default_rng(0)
        mel = random.normal(size=(2, 50, 4)).astype(np.float32)
        mel[..., 3] = -2.0
        real = np.ones([2, 50], np.float32)
        real[1, 30:] = 0.0
        bands = normalised_bands(mel, real).numpy()
        np.testing.assert_array_equal(bands[1, 30:], 0.0)
        np.testing.assert_array_equal(bands[..., 3], 0.0)
        for row, frames in enumerate((50, 30)):
            of_row = bands[row, :frames, :3]
            np.testing.assert_allclose(of_row.mean(axis=0), 0.0, atol=1e-5)
            np.testing.assert_allclose(of_row.std(axis=0), 1.0, atol=0.02)
        room = mel + random.normal(size=[2, 1, 4]).astype(np.float32)
        np.testing.assert_allclose(normalised_bands(room, real), bands, atol=1e-5)
        none = normalised_bands(mel, np.zeros([2, 50], np.float32))
        np.testing.assert_array_equal(none, 0.0)


class Losses(unittest.TestCase):
    """Of two rows: one of 2 tokens and 3 frames, one without text."""

    REAL = np.array([[1.0, 1.0, 1.0, 0.0], [0.0] * 4], np.float32)
    COUNT = np.array([2, 0], np.int32)

    def losses_and_gradient(self, scores):
        scores = tf.cast(scores, tf.float32)
        with tf.device(MODEL), tf.GradientTape() as tape:
            tape.watch(scores)
            losses = path_losses(scores, self.REAL, self.COUNT, sum_over_paths)
        return losses.numpy(), tape.gradient(losses, scores).numpy()

    def test_no_frame_waits_for_a_gpu_where_xla_compiles_nothing(self):
        specs = [tf.TensorSpec(shape) for shape in ([None] * 3, [None] * 2)]
        function = tf.function(sum_over_paths, autograph=False)
        copies = find_copies(
            function.get_concrete_function(*specs, tf.TensorSpec([None], tf.int32))
        )
        self.assertEqual([copy for copy in copies if copy.to_host], [])

    def test_the_loss_is_that_of_ctc_with_the_tokens_as_labels(self):
        random = np.random.default_rng(0)
        scores = tf.nn.log_softmax(random.normal(size=(2, 4, 2)))
        logits = tf.cast(tf.pad(scores, [[0, 0], [0, 0], [1, 0]], constant_values=-1.0), tf.float32)
        labels = tf.constant([[1, 2], [0, 0]])
        with tf.GradientTape() as tape:
            tape.watch(logits)
            expected = ctc_losses_by_recursion(
                tf.nn.log_softmax(logits)[:1], tf.constant([3]), labels[:1], tf.constant([2])
            )
        losses, gradient = self.losses_and_gradient(scores)
        np.testing.assert_allclose(losses, [expected[0], 0.0], rtol=1e-5)
        # The gradient is minus the probability that a frame belongs to a token.
        normalised = tf.nn.softmax(logits)[0, :3].numpy()
        occupancy = normalised - tape.gradient(expected, logits)[0, :3].numpy()
        np.testing.assert_allclose(gradient[0, :3], -occupancy[:, 1:], atol=1e-5)
        self.assertEqual(np.abs(gradient[0, 3]).max() + np.abs(gradient[1]).max(), 0.0)

    def test_scores_of_padding_change_nothing(self):
        scores = np.random.default_rng(0).normal(size=(2, 4, 2))
        before = self.losses_and_gradient(scores)
        scores[0, 3], scores[1] = 50.0, -7.0
        for left, right in zip(before, self.losses_and_gradient(scores), strict=True):
            np.testing.assert_array_equal(left, right)

    def test_the_gradient_is_that_of_differences(self):
        random = np.random.default_rng(2)
        scores = tf.nn.log_softmax(random.normal(size=(2, 4, 2))).numpy()
        _, gradient = self.losses_and_gradient(scores)
        direction = random.normal(size=scores.shape)
        ahead, _ = self.losses_and_gradient(scores + 1e-2 * direction)
        behind, _ = self.losses_and_gradient(scores - 1e-2 * direction)
        slope = (ahead - behind).sum() / 2e-2
        self.assertAlmostEqual(slope, (gradient * direction).sum(), delta=1e-2)


class Contexts(unittest.TestCase):
    def setUp(self):
        random = np.random.default_rng(3)
        self.mel = random.normal(size=(1, 40, 80)).astype(np.float32)
        self.real = np.array([[1.0] * 30 + [0.0] * 10], np.float32)
        self.model = Aligner(9, contexts=True)
        self.symbols = tf.range(9)[None, :]
        self.products()

    def products(self):
        return self.model.products(self.mel, self.real, self.symbols).numpy()[0, :30]

    def give_weights(self):
        random = np.random.default_rng(4)
        for context in self.model.contexts:
            kernel = context.out.kernel
            kernel.assign(random.normal(size=kernel.shape))

    def test_three_frames_alone_decide_before_they_are_taught_and_a_run_does_not_teach_them(self):
        self.assertFalse([v for v in self.model.trainable_variables if "context" in v.path])
        before = self.products()
        self.model.contexts = []
        np.testing.assert_array_equal(self.products(), before)

    def test_then_seven_frames_on_each_side_are_heard_and_padding_is_not(self):
        self.give_weights()
        before = self.products()
        self.mel[0, 30:] = 5.0
        np.testing.assert_array_equal(self.products(), before)
        # Normalisation to the recording's mean and deviation would tell every frame of a change.
        unchanged = mock.patch.object(aligner, "normalised_bands", lambda mel, real: mel)
        with unchanged:
            before = self.products()
            self.mel[0, 15] += 1.0
            heard = np.abs(self.products() - before).max(axis=1) > 1e-6
        self.assertEqual(np.flatnonzero(heard).tolist(), [*range(8, 23)])


class Learning(unittest.TestCase):
    def test_it_finds_tokens_of_uneven_length_in_noise(self):
        random = np.random.default_rng(1)
        sounds = random.normal(size=(9, 80)).astype(np.float32)
        tokens = np.stack([1 + random.permutation(8)[:6] for _ in range(32)]).astype(np.int32)
        durations = random.integers(2, 14, (32, 6))
        durations[:, -1] += 60 - durations.sum(axis=1)
        paths = np.stack([np.repeat(np.arange(6), row) for row in durations])
        mel = sounds[np.take_along_axis(tokens, paths, axis=1)]
        mel += 0.5 * random.normal(size=mel.shape).astype(np.float32)
        count, real = tf.fill([32], 6), tf.ones([32, 60])
        with tf.device(MODEL):
            model = Aligner(9)
            model(mel, real, tokens, count)
            variables = [v.value for v in model.trainable_variables]
            moments = [tf.Variable(tf.zeros_like(v)) for v in variables]

            @tf.function(autograph=False)
            def step():
                with tf.GradientTape() as tape:
                    scores, _ = model(mel, real, tokens, count)
                    loss = tf.reduce_mean(path_losses(scores, real, count, sum_over_paths))
                for v, m, g in zip(variables, moments, tape.gradient(loss, variables), strict=True):
                    g = tf.convert_to_tensor(g)
                    m.assign(0.9 * m + 0.1 * tf.square(g))
                    v.assign_sub(0.003 * g / (tf.sqrt(m) + 1e-6))
                return scores

            for _ in range(120):
                scores = step()
            found = search_by_frames(scores, count, tf.fill([32], 60)).numpy()
        self.assertGreater((found == paths).mean(), 0.8)
