"""Duration, pitch and energy of tokens, against values worked out by hand."""

import unittest

import numpy as np
import tensorflow as tf

from myxtts.models.prosody import (
    Prosody,
    prosody_errors,
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


class Errors(unittest.TestCase):
    def test_pitch_errors_are_weighted_by_the_voiced_fraction(self):
        # Duration, voiced fraction, pitch and energy of two tokens.
        values = [[1.0, 1.0], [0.0, 0.5], [0.0, 1.0], [0.0, 2.0]]
        target = Prosody(*tf.constant(values)[:, None])
        values = [[1.0, 3.0], [0.0, 0.5], [9.0, 3.0], [1.0, 2.0]]
        predicted = Prosody(*tf.constant(values)[:, None])
        errors = prosody_errors(predicted, target)
        expected = {"duration": [[0.0, 4.0]], "pitch": [[0.0, 2.0]], "energy": [[1.0, 0.0]]}
        self.assertEqual({name: error.numpy().tolist() for name, error in errors.items()}, expected)

    def test_a_wrong_voiced_fraction_is_an_error_of_the_pitch(self):
        errors = prosody_errors(prosody(voiced=[0.25]), prosody(voiced=[0.75]))
        self.assertEqual(errors["pitch"].numpy().tolist(), [[0.25]])


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
