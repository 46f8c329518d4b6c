"""Conditional flow matching (Lipman et al. 2023): from noise to data along straight lines.

At time t in [0, 1] the optimal-transport path is at x_t = (1 - t) · noise + t · data and has the
velocity v = data - noise. The network estimates the data from x_t; the velocity is then (estimate -
x_t) / (1 - t).

The flow has a prior: a guess of the data from elsewhere. If the data were normally distributed
around that guess, the best estimate from x_t would have a closed form (Wiener). The network
predicts a correction to it, in units of its standard deviation, so that the network's target has
the same scale at all times (Karras et al. 2022).
"""

import tensorflow as tf

from myxtts.base.portable_ops import stateless_uniform

# Noise assumed to remain at t = 1, where the network's unit would otherwise be 0.
MIN_NOISE = 1e-3


def sample_times(seed, rows):
    """Draw float32 [rows] in [0, 1), evenly spaced over the rows (Kingma et al. 2021)."""
    position = tf.cast(tf.range(rows), tf.float32) / tf.cast(rows, tf.float32)
    return tf.math.floormod(stateless_uniform([], seed) + position, 1.0)


def interpolate_path(noise, data, time):
    """Return x_t, float32 [B, T, D], between noise and data at the time of each row, [B]."""
    return noise + time[:, None, None] * (data - noise)


def wiener_estimate(x, time, prior_mean, prior_std):
    """Return the best estimate of the data if it were normally distributed around the prior's mean.

    From x_t [B, T, D], t [B], the guess of the data [B, T, D] and the standard deviation of the
    data around it [B] -> estimate float32 [B, T, D]; its standard deviation [B, 1, 1]; and the part
    of x_t that the prior does not explain, with unit variance, [B, T, D].
    """
    time, prior_std = time[:, None, None], prior_std[:, None, None]
    noise_left = tf.maximum(1.0 - time, MIN_NOISE)
    deviation = tf.sqrt(tf.square(time * prior_std) + tf.square(noise_left))  # of x - t · mean
    innovation = (x - time * prior_mean) / deviation
    estimate = prior_mean + (time * prior_std**2 / deviation) * innovation
    return estimate, prior_std * noise_left / deviation, innovation


def euler_solve(estimate_data, noise, steps):
    """Solve the flow's ODE from noise to data in equal Euler steps.

    `estimate_data` estimates the data from x_t, float32 [B, T, D], and t, float32 [B]. The steps
    are an int32 scalar, or a number, by which they are unrolled.
    """
    rows = tf.shape(noise)[0]

    def advance(step, x):
        time = tf.cast(step, tf.float32) / tf.cast(steps, tf.float32)
        difference = estimate_data(x, tf.fill([rows], time)) - x
        # A step of 1/steps at a velocity of (estimate - x) / (1 - time).
        return step + 1, x + difference / tf.cast(steps - step, tf.float32)

    if isinstance(steps, int):
        data = noise
        for step in range(steps):
            _, data = advance(step, data)
        return data
    _, data = tf.while_loop(lambda step, _: step < steps, advance, (0, noise))
    return data
