"""Slopes of sampled values over time, with confidence intervals."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import NamedTuple

CONFIDENCE = 0.95
LEAST_SAMPLES = 6
LEAST_EFFECTIVE = 6.0


class Slope(NamedTuple):
    """A slope by ordinary least squares, in units of y per unit of t."""

    value: float  # sum (t - mean t) (y - mean y) / sum (t - mean t)^2
    half_width: float  # of the confidence interval; see `fit`
    samples: int
    correlation: float  # of a residual with the one before it

    @property
    def low(self) -> float:
        return self.value - self.half_width

    @property
    def high(self) -> float:
        return self.value + self.half_width


def fit(t: Sequence[float], y: Sequence[float]) -> Slope | None:
    """Fit y = a + b t to samples at even intervals; return None if there are fewer than six, or all
    at one time.

    The standard error of b is sqrt(r^2 / (n - 2) / sum (t - mean t)^2), with r^2 the sum of the
    squared residuals. It holds for residuals that do not depend on each other. Samples of a process
    do, so n is replaced by the effective number n (1 - c) / (1 + c), where c is the correlation of
    neighbouring residuals, at least 0 (Santer et al. 2000, J. Geophys. Res. 105, 7337, equations 4
    to 6), and at least 6. The interval is b ± t(0.975) times that error.
    """
    n = len(t)
    mean_t, mean_y = (fmean(values) if values else 0.0 for values in (t, y))
    spread = sum((value - mean_t) ** 2 for value in t)
    if n < LEAST_SAMPLES or not spread:
        return None
    slope = sum((t[i] - mean_t) * (y[i] - mean_y) for i in range(n)) / spread
    residuals = [y[i] - mean_y - slope * (t[i] - mean_t) for i in range(n)]
    squares = sum(residual**2 for residual in residuals)
    if squares <= 1e-12 * max(1.0, mean_y**2) * n:  # rounding
        return Slope(slope, 0.0, n, 0.0)
    correlation = max(0.0, sum(residuals[i] * residuals[i - 1] for i in range(1, n)) / squares)
    effective = max(LEAST_EFFECTIVE, n * (1.0 - correlation) / (1.0 + correlation))
    error = math.sqrt(squares / (effective - 2.0) / spread)
    return Slope(slope, t_quantile(0.5 + CONFIDENCE / 2.0, effective - 2.0) * error, n, correlation)


def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution, within 1 % from 4 degrees of freedom on.

    The expansion around the normal quantile, Abramowitz and Stegun 26.7.5; below 4 degrees it is
    too small.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4.0,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96.0,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384.0,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
