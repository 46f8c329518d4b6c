"""Duration, pitch and energy of tokens, against values worked out by hand."""

import unittest

import numpy as np
import tensorflow as tf

from myxtts.models.prosody import (
    CORRELATIONS,
    Prosody,
    ProsodyDistribution,
    correlated_noise,
    target_prosody,
    token_ends,
    token_ends_within,
)
from tests.two_devices import MODEL


def prosody(**values) -> Prosody:
    return Prosody(*(tf.constant([values.get(name, [0.0])]) for name in Prosody._fields))


class Target(unittest.TestCase):
    def test_target_is_the_mean_over_the_frames_of_a_token(self):
        with tf.device(MODEL):
            mel = tf.constant([[1.0, 3.0, 5.0, 7.0, 9.0, 9.0]])[:, :, None] * tf.ones([80])
            f0_hz = tf.constant([[0.0, 150.0, 300.0, 0.0, 0.0, 600.0]])
            path = tf.constant([[0, 0, 0, 1, 1, -1]])
            target, frames = target_prosody(mel, f0_hz, path, 3)
        self.assertEqual(frames.numpy().tolist(), [[3.0, 2.0, 0.0]])
        # The pitches are 0 and 12 semitones: 6, in units of 3.
        expected = np.log([3, 2, 1]), [2 / 3, 0, 0], [2.0, 0, 0], [3.0, 8.0, 0.0]
        np.testing.assert_allclose(tf.stack(target)[:, 0], np.stack(expected), atol=1e-6)

    def test_features_hide_the_pitch_of_unvoiced_tokens(self):
        inputs = prosody(voiced=[0.0, 0.5], pitch=[7.0, 7.0], energy=[1.0, 2.0]).features().numpy()
        self.assertEqual(inputs.tolist(), [[[0.0, 0.0, 1.0], [0.5, 3.5, 2.0]]])


def distribution(stds=(0.1, 0.1, 0.1), **means) -> ProsodyDistribution:
    zero = tf.constant([[0.0]])
    duration, pitch, energy = (tf.constant([[std]]) for std in stds)
    return ProsodyDistribution(prosody(**means), Prosody(duration, zero, pitch, energy))


class Distribution(unittest.TestCase):
    def test_outputs_of_zero_are_a_mean_of_zero_and_one_deviation(self):
        of = ProsodyDistribution.of_outputs(tf.zeros([1, 2, 7]))
        np.testing.assert_allclose(tf.stack(of.mean)[:, 0, 0], [0.0, 0.5, 0.0, 0.0])
        deviation = 0.05 + np.log(2.0)
        np.testing.assert_allclose(
            tf.stack(of.std)[:, 0, 0], [deviation, 0.0, deviation, deviation], rtol=1e-6
        )

    def test_errors_are_likelihoods_of_a_normal_distribution_that_outliers_cannot_rule(self):
        for name, loss in (("log_duration", "duration"), ("energy", "energy")):
            for value, expected in (
                (0.0, 0.0),
                (0.1, 0.5),
                (-0.3, 4.5),
                # A hundred deviations: 5,000 as a square.
                (10.0, 300.0 - 4.5),
            ):
                errors = distribution().errors(prosody(**{name: [value]}))
                expected += np.log(0.1 / 0.05)
                np.testing.assert_allclose(errors[loss], [[expected]], rtol=1e-5)

    def test_pitch_counts_by_the_voiced_fraction_whose_error_is_added(self):
        predicted = distribution(voiced=[0.25])
        errors = predicted.errors(prosody(voiced=[0.75], pitch=[0.1]))
        np.testing.assert_allclose(
            errors["pitch"], [[0.75 * (np.log(2.0) + 0.5) + 0.25]], rtol=1e-5
        )
        self.assertEqual(predicted.errors(prosody(voiced=[0.25]))["duration"].shape, (1, 1))

    def test_the_average_duration_is_the_mean_of_what_is_sampled(self):
        tokens = 2_000
        mean = prosody(log_duration=[2.0] * tokens)
        std = mean._replace(log_duration=tf.fill([1, tokens], 0.6))
        of = ProsodyDistribution(mean, std)
        average = float(tf.exp(of.average().log_duration)[0, 0])
        self.assertAlmostEqual(average, np.exp(2.0 + 0.18), places=4)
        for variety in (0.0, 0.5, 1.0):
            drawn = of.sample(variety, [3, 4], tf.ones([1, tokens], tf.int32))
            durations = tf.exp(drawn.log_duration).numpy()
            self.assertAlmostEqual(durations.mean() / average, 1.0, delta=0.05)
        self.assertGreater(durations.std(), 4.0)

    def test_variety_is_a_fraction_of_the_deviation_and_a_function_of_the_text(self):
        zeros = tf.zeros([3, 4000])
        texts = tf.repeat([[1], [2], [1]], 4000, axis=1)
        mean = Prosody(*(zeros for _ in Prosody._fields))
        of = ProsodyDistribution(mean, Prosody(*(zeros + 2.0 for _ in Prosody._fields)))
        full, half = (of.sample(variety, [5, 6], texts) for variety in (1.0, 0.5))
        np.testing.assert_array_equal(full.pitch[0], full.pitch[2])
        self.assertLess(abs(np.corrcoef(full.pitch[0], full.pitch[1])[0, 1]), 0.1)
        np.testing.assert_allclose(half.energy, 0.5 * full.energy, rtol=1e-5)
        for name, correlation in CORRELATIONS.items():
            noise = (getattr(full, name) - getattr(of.average(), name)).numpy()[0]
            noise -= noise.mean()
            self.assertAlmostEqual(noise.std(), 2.0, delta=0.2)
            neighbours = np.corrcoef(noise[:-1], noise[1:])[0, 1]
            self.assertAlmostEqual(neighbours, correlation, delta=0.06)

    def test_noise_of_a_token_does_not_depend_on_padding(self):
        text = tf.constant([[4, 7, 2]])
        short, long = (
            correlated_noise(tf.pad(text, [[0, 0], [0, padding]]), 0.8, [7, 8]).numpy()
            for padding in (0, 30)
        )
        np.testing.assert_allclose(short[0], long[0, :3], atol=1e-6)


class FrameEnds(unittest.TestCase):
    def test_ends_are_rounded_without_accumulating_errors_and_within_bounds(self):
        far = np.exp([[-9.0, 80.0]]).tolist()
        for name, durations, mask, speed, expected in (
            ("no error adds up", [[2.4] * 5], 1.0, 1.0, [2, 5, 7, 10, 12]),
            ("halves are rounded up", [[1.5, 1.0, 1.0, 1.0]], 1.0, 1.0, [2, 3, 4, 5]),
            ("padding adds nothing", [[4.0, 8.0, 8.0]], [[1.0, 1.0, 0.0]], 2.0, [2, 6, 6]),
            ("durations are clipped", far, 1.0, 1.0, [1, 201]),
        ):
            with self.subTest(name):
                ends = token_ends(tf.math.log(durations), tf.constant(mask), speed).numpy()
                self.assertEqual(ends[0].tolist(), expected)

    def test_ends_within_a_limit_leave_each_token_a_frame(self):
        log_duration, mask = tf.math.log([[10.0] * 6 + [1.0] * 4]), tf.ones([1, 10])
        for limit in (55, 48, 40, 20, 10):
            ends = token_ends_within(log_duration, mask, float(limit)).numpy()[0]
            self.assertEqual(ends[-1], limit)
            self.assertTrue((np.diff(ends, prepend=0.0) >= 1.0).all(), ends)
        np.testing.assert_array_equal(
            token_ends_within(log_duration, mask, 64.0), token_ends(log_duration, mask, 1.0)
        )
