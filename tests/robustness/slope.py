"""Slopes of sampled values over time, with confidence intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student_t

CONFIDENCE = 0.95
LEAST_SAMPLES = 6
LEAST_EFFECTIVE = 6.0


class Slope(NamedTuple):
    """A slope by ordinary least squares, in units of y per unit of t."""

    value: float
    half_width: float  # of the confidence interval; see `fit`

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
    if n < LEAST_SAMPLES or not np.ptp(t):
        return None
    slope, start = np.polyfit(t, y, 1)
    residuals = y - (start + slope * np.asarray(t))
    squares = residuals @ residuals
    correlation = max(0.0, residuals[1:] @ residuals[:-1] / max(squares, 1e-300))
    effective = max(LEAST_EFFECTIVE, n * (1.0 - correlation) / (1.0 + correlation))
    error = np.sqrt(squares / (effective - 2.0) / (n * np.var(t)))
    quantile = student_t.ppf(0.5 + CONFIDENCE / 2.0, effective - 2.0)
    return Slope(float(slope), float(quantile * error))
