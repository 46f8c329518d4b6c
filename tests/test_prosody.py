"""Duration, pitch and energy of tokens, against values worked out by hand."""

import unittest

import numpy as np
import tensorflow as tf

from myxtts.models.prosody import (
    MAX_TOKEN_FRAMES,
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
            mel = tf.constant(np.array([[1, 3, 5, 7, 9, 9]], np.float32))[:, :, None] * tf.ones(
                [80]
            )
            f0_hz = tf.constant([[0.0, 150.0, 300.0, 0.0, 0.0, 600.0]])
            path = tf.constant([[0, 0, 0, 1, 1, -1]])
            target, frames = target_prosody(mel, f0_hz, path, 3)
        self.assertEqual(frames.numpy().tolist(), [[3.0, 2.0, 0.0]])
        np.testing.assert_allclose(target.log_duration[0], np.log([3, 2, 1]), rtol=1e-6)
        np.testing.assert_allclose(target.voiced[0], [2 / 3, 0, 0], rtol=1e-6)
        # 0 and 12 semitones: 6, in units of 3.
        np.testing.assert_allclose(target.pitch[0], [2.0, 0, 0], atol=1e-6)
        np.testing.assert_allclose(target.energy[0], [3.0, 8.0, 0.0], rtol=1e-6)

    def test_features_hide_the_pitch_of_unvoiced_tokens(self):
        inputs = prosody(voiced=[0.0, 0.5], pitch=[7.0, 7.0], energy=[1.0, 2.0]).features().numpy()
        self.assertEqual(inputs.tolist(), [[[0.0, 0.0, 1.0], [0.5, 3.5, 2.0]]])


class Errors(unittest.TestCase):
    def test_pitch_errors_are_weighted_by_the_voiced_fraction(self):
        target = prosody(
            log_duration=[1.0, 1.0], voiced=[0.0, 0.5], pitch=[0.0, 1.0], energy=[0.0, 2.0]
        )
        predicted = prosody(
            log_duration=[1.0, 3.0], voiced=[0.0, 0.5], pitch=[9.0, 3.0], energy=[1.0, 2.0]
        )
        errors = {
            name: error.numpy().tolist()
            for name, error in prosody_errors(predicted, target).items()
        }
        expected = {"duration": [[0.0, 4.0]], "pitch": [[0.0, 2.0]], "energy": [[1.0, 0.0]]}
        self.assertEqual(errors, expected)

    def test_a_wrong_voiced_fraction_is_an_error_of_the_pitch(self):
        errors = prosody_errors(prosody(voiced=[0.25]), prosody(voiced=[0.75]))
        self.assertEqual(errors["pitch"].numpy().tolist(), [[0.25]])


class FrameEnds(unittest.TestCase):
    def test_ends_are_rounded_without_accumulating_errors(self):
        log_duration = tf.math.log(tf.fill([1, 10], 2.4))
        ends = token_ends(log_duration, tf.ones([1, 10]), 1.0).numpy()
        self.assertEqual(ends[0].tolist(), [2, 5, 7, 10, 12, 14, 17, 19, 22, 24])

    def test_a_half_is_always_rounded_up_so_that_no_token_is_left_out(self):
        ends = token_ends(tf.math.log([[1.5, 1.0, 1.0, 1.0]]), tf.ones([1, 4]), 1.0).numpy()
        self.assertEqual(ends.tolist(), [[2, 3, 4, 5]])

    def test_speed_divides_and_padding_adds_nothing(self):
        ends = token_ends(
            tf.math.log([[4.0, 8.0, 8.0]]), tf.constant([[1.0, 1.0, 0.0]]), 2.0
        ).numpy()
        self.assertEqual(ends.tolist(), [[2, 6, 6]])

    def test_durations_are_clipped_to_1_and_the_maximum(self):
        ends = token_ends(tf.constant([[-9.0, 99.0]]), tf.ones([1, 2]), 1.0).numpy()
        self.assertEqual(ends.tolist(), [[1, 1 + MAX_TOKEN_FRAMES]])

    def test_ends_within_a_limit_leave_each_token_a_frame(self):
        log_duration, mask = tf.math.log([[10.0] * 6 + [1.0] * 4]), tf.ones([1, 10])
        for limit in (55, 48, 40, 20, 10):
            ends = token_ends_within(log_duration, mask, float(limit)).numpy()[0]
            self.assertEqual(ends[-1], limit)
            self.assertTrue((np.diff(ends, prepend=0.0) >= 1.0).all(), ends)
        np.testing.assert_array_equal(
            token_ends_within(log_duration, mask, 64.0), token_ends(log_duration, mask, 1.0)
        )
