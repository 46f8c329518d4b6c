"""Conditional flow matching (Lipman et al. 2023): from noise to data along straight lines.

At time t in [0, 1] the optimal-transport path stands at x_t = (1 - t) · noise + t · data and moves with the velocity
v = data - noise. The network estimates the data from x_t; (estimate - x_t) / (1 - t) is its velocity.

There is a guess of the data before the flow begins. Were the data spread around it as a normal distribution, the best
estimate would be known (Wiener); the network adds to that one, in units of its standard deviation, so that its task is
of one size at all times (Karras et al. 2022).
"""

import tensorflow as tf

MIN_NOISE = 1e-3  # what is taken to be left at t = 1, where the network's unit would be 0


def sample_noise(seed, shape):
    """float32 [B, T, D] of unit variance from a seed, int32 [2]."""
    return tf.random.stateless_normal(shape, seed)


def sample_times(seed, rows):
    """float32 [rows], uniform over [0, 1) and spread evenly over the rows (as Kingma et al. 2021 draw theirs)."""
    first = tf.random.stateless_uniform([], seed)
    return tf.math.floormod(first + tf.cast(tf.range(rows), tf.float32) / tf.cast(rows, tf.float32), 1.0)


def interpolate_path(noise, data, time):
    """x_t: float32 [B, T, D] of two ends and a time for each row, [B]."""
    return noise + time[:, None, None] * (data - noise)


def wiener_estimate(x, time, guess, spread):
    """The best estimate that needs no network, and how far off it is.

    Args:
        x: x_t, float32 [B, T, D].
        time: float32 [B].
        guess: of the data, float32 [B, T, D].
        spread: standard deviation of the data around the guess, float32 [B].

    Returns:
        Estimate float32 [B, T, D]; its standard deviation float32 [B, 1, 1];
        what x_t tells beyond the guess, with unit variance, float32 [B, T, D].
    """
    time, spread = time[:, None, None], spread[:, None, None]
    left = tf.maximum(1.0 - time, MIN_NOISE)
    deviation = tf.sqrt(tf.square(time * spread) + tf.square(left))  # of x_t - t · guess
    news = (x - time * guess) / deviation
    return guess + (time * spread**2 / deviation) * news, spread * left / deviation, news


def integrate(estimate_data, noise, steps):
    """Follow the velocity from noise to data in equal steps (Euler).

    Args:
        estimate_data: x_t float32 [B, T, D], t float32 [B] -> estimate of the data.
        noise: float32 [B, T, D].
        steps: int32 scalar, at least 1.

    Returns:
        float32 [B, T, D]: the last estimate.
    """
    rows = tf.shape(noise)[0]

    def advance(number, x):
        time = tf.cast(number, tf.float32) / tf.cast(steps, tf.float32)
        # A step of 1/steps at a velocity of (estimate - x) / (1 - time).
        return number + 1, x + (estimate_data(x, tf.fill([rows], time)) - x) / tf.cast(steps - number, tf.float32)

    _, data = tf.while_loop(lambda number, _: number < steps, advance, (0, noise))
    return data
