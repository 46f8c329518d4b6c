"""Learning rate, EMA decay and number of steps, at every step up to the end and after it."""

import itertools
import math
import unittest

from myxtts.run.schedule import ema_decay, learning_rate, run_length


class LearningRate(unittest.TestCase):
    def test_learning_rate_is_finite_and_bounded_at_every_step(self):
        for total, warmup, final in itertools.product(
            (1, 2, 9, 10, 11, 40_000), (0, 1, 10, 500), (0.0, 0.05, 1.0)
        ):
            rates = [learning_rate(step, total, 1e-3, warmup, final) for step in range(total + 600)]
            self.assertTrue(all(math.isfinite(rate) for rate in rates))
            self.assertLessEqual(max(rates), 1e-3 * (1 + 1e-12))
            actual = min(rates[:total])
            self.assertGreaterEqual(actual, min(1e-3 * final, 1e-3 / max(warmup, 1)) - 1e-12)

    def test_learning_rate_rises_to_the_peak_and_falls_to_its_final_fraction(self):
        rates = [learning_rate(step, 1000, 2e-3, 100, 0.05) for step in range(1000)]
        self.assertAlmostEqual(rates[0], 2e-5)
        self.assertAlmostEqual(rates[100], 2e-3)
        self.assertAlmostEqual(rates[99], 2e-3)
        self.assertAlmostEqual(rates[549], 2e-3 * 0.525, delta=2e-6)  # half of the cosine
        self.assertAlmostEqual(rates[999], 1e-4)
        self.assertEqual(rates[:100], sorted(rates[:100]))
        self.assertEqual(rates[100:], sorted(rates[100:], reverse=True))

    def test_learning_rate_reaches_its_final_fraction_in_the_last_step_and_not_before(self):
        rates = [learning_rate(step, 5, 1.0, 2, 0.0) for step in range(5)]
        for rate, expected in zip(rates, (0.5, 1.0, 1.0, 0.5, 0.0), strict=True):
            self.assertAlmostEqual(rate, expected)
        self.assertAlmostEqual(learning_rate(3, 4, 1.0, 2, 0.0), 0.0)  # one step after the peak

    def test_learning_rate_stays_constant_after_the_last_step(self):
        for step in (1000, 1001, 31_501, 10**9):
            self.assertAlmostEqual(learning_rate(step, 1000, 2e-3, 100, 0.05), 1e-4)

    def test_learning_rate_is_positive_if_the_final_ratio_is_positive(self):
        for step in range(20):
            self.assertGreater(learning_rate(step, 10, 1e-3, 30, 0.1), 0.0)


class EmaDecay(unittest.TestCase):
    def test_ema_decay_rises_to_the_setting_and_stays_below_1(self):
        for decay in (0.0, 0.9, 0.999, 0.999999):
            decays = [ema_decay(step, decay) for step in range(20_000)]
            self.assertEqual(decays, sorted(decays))
            self.assertLessEqual(decays[-1], decay)
        self.assertEqual(ema_decay(0, 0.999), 0.1)
        self.assertEqual(ema_decay(10**9, 0.999), 0.999)


class TotalSteps(unittest.TestCase):
    def test_run_length_is_the_smaller_limit_and_0_means_no_limit(self):
        cases = {(100, 0): 100, (0, 21): 21, (100, 21): 21, (20, 21): 20, (1, 1): 1}
        for limits, expected in cases.items():
            self.assertEqual(run_length(*limits), expected)
