"""Duration, pitch and energy of tokens, against values worked out by hand."""

import unittest

import numpy as np
import tensorflow as tf

from myxtts.tasks.tts.prosody import (
    CORRELATIONS,
    DURATION_VARIETY,
    OUTPUTS,
    Prosody,
    ProsodyDistribution,
    correlated_noise,
    pitch_hz,
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


def distribution(
    std=0.1, pause=(-999.0, 0.0, 1.0), tokens=1, pitch_range=((-99.0, 99.0),), **means
) -> ProsodyDistribution:
    """Return the distribution of tokens that are no pauses unless `pause` has other log-odds."""

    def filled(value):
        return tf.fill([1, tokens], tf.constant(value, tf.float32))

    mean = Prosody(*(filled(means.get(name, 0.0)) for name in Prosody._fields))
    stds = Prosody(*(filled(std) for _ in Prosody._fields))
    return ProsodyDistribution(mean, stds, *map(filled, pause), *tf.split(pitch_range, 2, axis=1))


class Distribution(unittest.TestCase):
    def test_outputs_of_zero_are_a_mean_of_zero_and_one_deviation(self):
        of = ProsodyDistribution.of_outputs(tf.zeros([1, 2, OUTPUTS]), tf.zeros([1, 2]))
        np.testing.assert_allclose(tf.stack(of.mean)[:, 0, 0], [0.0, 0.5, 0.0, 0.0])
        deviation = 0.05 + np.log(2.0)
        np.testing.assert_allclose(
            tf.stack(of.std)[:, 0, 0], [deviation, 0.0, deviation, deviation], rtol=1e-6
        )
        np.testing.assert_allclose(tf.stack(of[2:5])[:, 0, 0], [-2.0, 3.0, deviation], rtol=1e-6)
        # 60 to 600 Hz, all that is looked for in recordings.
        limits = tf.concat([of.lowest_pitch, of.highest_pitch], axis=1)
        np.testing.assert_allclose(pitch_hz(limits), [[60.0, 600.0]], rtol=1e-5)

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
        predicted = distribution(voiced=0.25, pitch_range=[[-1.0, 1.0]])
        errors = predicted.errors(prosody(voiced=[0.75], pitch=[0.1]))
        np.testing.assert_allclose(
            errors["pitch"], [[0.75 * (np.log(2.0) + 0.5 + 0.02) + 0.25]], rtol=1e-5
        )
        self.assertEqual(predicted.errors(prosody(voiced=[0.25]))["duration"].shape, (1, 1))

    def test_a_duration_is_that_of_a_sound_or_of_a_pause(self):
        # One of four tokens is a pause: 20 frames, the others 2.
        pause = np.log(1 / 3), np.log(20.0), 0.1
        of = distribution(0.1, pause, log_duration=np.log(2.0))
        for frames, probability in ((2.0, 0.75), (20.0, 0.25)):
            errors = of.errors(prosody(log_duration=[float(np.log(frames))]))
            np.testing.assert_allclose(
                errors["duration"], [[np.log(2.0) - np.log(probability)]], rtol=1e-4
            )
        of = distribution(0.1, pause, 4_000, log_duration=np.log(2.0))
        texts = tf.ones([1, 4_000], tf.int32)
        frames = tf.exp(of.sample(1.0 / DURATION_VARIETY, [3, 4], texts).log_duration).numpy()
        self.assertAlmostEqual((frames > 10).mean(), 0.25, delta=0.03)
        self.assertEqual(((frames > 4) & (frames < 12)).sum(), 0)

    def test_the_average_duration_is_the_mean_of_what_is_sampled(self):
        tokens = 2_000
        pause = np.log(1 / 3), np.log(20.0), 0.6
        of = distribution(0.6, pause, tokens, log_duration=2.0)
        average = float(tf.exp(of.average().log_duration)[0, 0])
        expected = (0.75 * np.exp(2.0) + 0.25 * 20.0) * np.exp(0.18)
        self.assertAlmostEqual(average, expected, places=4)
        for variety in (0.0, 1.0, 2.0):
            drawn = of.sample(variety, [3, 4], tf.ones([1, tokens], tf.int32))
            durations = tf.exp(drawn.log_duration).numpy()
            self.assertAlmostEqual(durations.mean() / average, 1.0, delta=0.05)
        self.assertGreater(durations.std(), 4.0)

    def test_a_padded_token_of_any_outputs_leaves_the_ends_of_its_row_finite(self):
        # Its deviation is never trained: exp(20^2 / 2) is infinite.
        of = distribution(std=20.0, pause=(40.0, 11.0, 20.0))
        drawn = of.sample(1.0, tf.constant([0, 0]), tf.constant([[0]]))
        for log_duration in (of.average().log_duration, drawn.log_duration):
            ends = token_ends(log_duration, tf.constant([[0.0]]), 1.0)
            self.assertEqual(ends.numpy().tolist(), [[0.0]])

    def test_variety_is_a_fraction_of_the_deviation_and_a_function_of_the_text(self):
        texts = tf.repeat([[1], [2], [1]], 4000, axis=1)
        of = tf.nest.map_structure(
            lambda x: tf.repeat(x, 3, axis=0), distribution(2.0, tokens=4000)
        )
        full, half = (of.sample(variety, [5, 6], texts) for variety in (1.0, 0.5))
        np.testing.assert_array_equal(full.pitch[0], full.pitch[2])
        self.assertLess(abs(np.corrcoef(full.pitch[0], full.pitch[1])[0, 1]), 0.1)
        np.testing.assert_allclose(half.energy, 0.5 * full.energy, rtol=1e-5)
        # All of the variety of durations.
        full = full._replace(log_duration=of.sample(2.0, [5, 6], texts).log_duration)
        for name, correlation in (CORRELATIONS | {"log_duration": 0.0}).items():
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


class PitchRange(unittest.TestCase):
    def test_the_range_that_costs_least_holds_98_percent_of_the_voiced_pitches(self):
        pitches = np.random.default_rng(1).normal(2.0, 1.0, 5_000).astype(np.float32)
        # Octave errors of a creaky voice, and unvoiced tokens, whose pitch is 0.
        pitches[:25] += 4.0
        target = prosody(
            pitch=pitches.tolist() + [0.0] * 5_000, voiced=[1.0] * 5_000 + [0.0] * 5_000
        )
        pitch_range = tf.Variable([[-5.0, 8.0]])
        for _ in range(400):
            with tf.GradientTape() as tape:
                errors = distribution(1.0, pitch_range=pitch_range).errors(target)
                loss = tf.reduce_mean(errors["pitch"])
            pitch_range.assign_sub(20.0 * tape.gradient(loss, pitch_range))
        expected = np.quantile(pitches, [0.01, 0.99])
        np.testing.assert_allclose(pitch_range[0], expected, atol=0.1)

    def test_a_drawn_pitch_stays_in_the_range_and_a_mean_where_it_is(self):
        texts = tf.ones([1, 4_000], tf.int32)
        for mean, lowest, highest in ((2.0, 1.5, 2.75), (4.0, 1.5, 4.0), (1.0, 1.0, 2.75)):
            of = distribution(2.0, tokens=4_000, pitch_range=[[1.5, 2.75]], pitch=mean)
            drawn = of.sample(1.0, [5, 6], texts).pitch.numpy()
            self.assertEqual((drawn.min(), drawn.max()), (lowest, highest))
            np.testing.assert_array_equal(of.sample(0.0, [5, 6], texts).pitch, of.mean.pitch)


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
