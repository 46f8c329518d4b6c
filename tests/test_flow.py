"""Flow matching: the path, the closed-form estimate, and integration from noise to data."""

import unittest

import numpy as np
import tensorflow as tf

from myxtts.tasks.tts.flow import euler_solve, interpolate_path, sample_times, wiener_estimate
from tests.two_devices import MODEL


class Flow(unittest.TestCase):
    def setUp(self):
        device = tf.device(MODEL)
        device.__enter__()
        self.addCleanup(device.__exit__, None, None, None)

    def test_the_path_interpolates_linearly_from_noise_to_data(self):
        noise, data = tf.constant([[[1.0]]] * 3), tf.constant([[[5.0]]] * 3)
        x = interpolate_path(noise, data, tf.constant([0.0, 0.25, 1.0])).numpy()
        self.assertEqual(x[:, 0, 0].tolist(), [1.0, 2.0, 5.0])

    def test_the_estimate_is_the_prior_at_time_0_and_the_data_at_time_1(self):
        random = np.random.default_rng(0)
        x, prior_mean = random.normal(size=(2, 2, 5, 4)).astype(np.float32)
        estimate, unit, innovation = wiener_estimate(
            x, tf.constant([0.0, 1.0]), prior_mean, tf.constant([0.5, 0.5])
        )
        np.testing.assert_allclose(estimate[0], prior_mean[0], atol=1e-6)
        np.testing.assert_allclose(innovation[0], x[0], atol=1e-6)
        np.testing.assert_allclose(estimate[1], x[1], atol=1e-3)
        np.testing.assert_allclose(tf.reshape(unit, [2]), [0.5, 1e-3], rtol=1e-4)

    def test_the_estimate_is_optimal_for_normal_data_and_its_error_is_the_unit(self):
        random, mean, std = np.random.default_rng(0), 2.0, 0.3
        data, noise = mean + std * random.normal(size=200_000), random.normal(size=200_000)
        data, noise = (x.astype(np.float32)[None, :, None] for x in (data, noise))
        for time in (0.2, 0.5, 0.9):
            with self.subTest(time=time):
                times = tf.constant([time])
                x = interpolate_path(tf.constant(noise), tf.constant(data), times)
                estimate, unit, innovation = wiener_estimate(
                    x, times, tf.fill([1, 1, 1], mean), tf.constant([std])
                )
                error = (estimate - data).numpy().ravel() / np.squeeze(unit)
                innovation = np.ravel(innovation)
                np.testing.assert_allclose(np.std([error, innovation], axis=1), 1.0, atol=0.01)
                self.assertAlmostEqual(np.corrcoef(error, innovation)[0, 1], 0.0, delta=0.01)

    def test_integrating_the_closed_form_estimate_gives_normal_data(self):
        noise = tf.random.stateless_normal([1, 20_000, 1], tf.constant([3, 3]))
        mean, std = tf.fill([1, 20_000, 1], 2.0), tf.constant([0.3])

        def estimate(x, time):
            return wiener_estimate(x, time, mean, std)[0]

        data = euler_solve(estimate, noise, tf.constant(200)).numpy()
        np.testing.assert_allclose([data.mean(), data.std()], [2.0, 0.3], atol=0.01)

    def test_times_are_evenly_spaced_over_the_rows(self):
        for seed in range(5):
            times = np.sort(sample_times(tf.constant([seed, 0]), 10).numpy())
            self.assertTrue(times[0] >= 0.0 and times[-1] < 1.0)
            np.testing.assert_allclose(np.diff(times), 0.1, atol=1e-5)
        first = [float(sample_times(tf.constant([seed, 0]), 1)[0]) for seed in range(500)]
        self.assertAlmostEqual(np.mean(first), 0.5, delta=0.05)

    def test_a_constant_estimate_is_reached_in_any_number_of_steps(self):
        data = tf.constant(np.random.default_rng(1).normal(size=(2, 7, 3)).astype(np.float32))
        noise = tf.random.stateless_normal([2, 7, 3], tf.constant([1, 2]))
        for steps in (1, 2, 7):
            result = euler_solve(lambda x, time: data, noise, tf.constant(steps)).numpy()
            np.testing.assert_allclose(result, data, atol=1e-5)

    def test_integration_turns_noise_into_the_distribution_of_the_data(self):
        """Data is -1 (1/4) or 3 (3/4), so E[data | x_t] is known by Bayes' theorem."""

        def estimate(x, time):
            noise_left = tf.maximum(1.0 - time[0], 1e-3)
            high, low = (
                tf.exp(-0.5 * ((x - time[0] * value) / noise_left) ** 2) * weight
                for value, weight in ((3.0, 0.75), (-1.0, 0.25))
            )
            return (3.0 * high - low) / (high + low + 1e-30)

        noise = tf.random.stateless_normal([1, 20_000, 1], tf.constant([0, 0]))
        result = euler_solve(estimate, noise, tf.constant(64)).numpy().ravel()
        self.assertAlmostEqual(np.mean(result > 1.0), 0.75, delta=0.02)
        self.assertLess(np.mean(np.minimum(abs(result - 3), abs(result + 1))), 0.05)
        one_step = euler_solve(estimate, noise, tf.constant(1)).numpy()
        np.testing.assert_allclose(one_step, 2.0, atol=1e-4)  # the mean of the data
