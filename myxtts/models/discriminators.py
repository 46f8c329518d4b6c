"""Discriminators of a vocoder: which of two waves is a recording?

Multi-period (HiFi-GAN, Kong, Kim & Bae 2020): every p-th sample side by side, for some primes p.
Multi-resolution (UnivNet, Jang et al. 2021): magnitudes of the STFT at some resolutions.

Both are smaller than in the papers (3.0 million weights, where HiFi-GAN has 41 million for its
periods alone), so that they suit a small network. Shape legend: B batch, S samples, P period,
T frames, F bins, C channels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from myxtts.audio.spectral import OVERLAP, magnitude, short_time_spectrum
from myxtts.models.layers import CompositeLayer, mean_of_rows

# Primes, so that the samples of two periods overlap as little as possible.
PERIODS = (2, 3, 5, 7, 11)
PERIOD_CHANNELS = (32, 64, 128, 256, 256)
PERIOD_KERNEL, PERIOD_STRIDE = 5, 3
RESOLUTIONS = (512, 1024, 2048)  # samples of a frame
RESOLUTION_CHANNELS = 32
RESOLUTION_STRIDES = (1, 2, 2, 2, 1)  # over bins
POWER_FLOOR = 1e-9
SLOPE = 0.1  # of the leaky ReLU
MIN_FEATURE = 1e-4


class AdversarialSettings(NamedTuple):
    """How a network is trained against discriminators.

    While these learn, its two losses rise from 0 to their weights.
    """

    adversarial_weight: float
    feature_matching_weight: float
    warmup_steps: int
    learning_rate_ratio: float  # of the learning rate of the discriminators to that of the network


class Discriminators(CompositeLayer):
    """All discriminators, and the losses of both sides."""

    LOSS_NAMES = ("discriminator_real", "discriminator_generated")
    NETWORK_LOSSES = ("adversarial", "feature_matching")  # of the network that generates

    def __init__(self, **kwargs):
        # Waves stay float32 in mixed precision; the convolutions cast their own inputs.
        super().__init__(autocast=False, **kwargs)
        self.judges = [PeriodDiscriminator(period, name=f"period_{period}") for period in PERIODS]
        for size in RESOLUTIONS:
            self.judges.append(ResolutionDiscriminator(size, name=f"resolution_{size}"))

    def call(self, real, generated):
        """Return each row's losses, means over discriminators: float32 [B, S] twice -> [B] each.

        discriminator_real, discriminator_generated: hinge losses of the discriminators (Lim & Ye
        2017), 1 each while they tell nothing. adversarial: hinge loss of the network that
        generates: how far its waves are from being taken for recordings. feature_matching: distance
        of the discriminators' hidden layers between both waves, relative to the size of those of
        the recording (EnCodec, Défossez et al. 2022).

        The gradients of the first two belong to the discriminators' variables, and of the others to
        the network's.
        """
        by_judge = [self._losses_of(judge, real, generated) for judge in self.judges]
        return {
            name: tf.add_n([losses[name] for losses in by_judge]) / len(by_judge)
            for name in by_judge[0]
        }

    @staticmethod
    def _losses_of(judge, real, generated):
        # Two passes: together, the way back to the network would lead through the recordings as
        # well.
        real_score, real_features = judge(real)
        score, features = judge(generated)
        distances = [relative_distance(*pair) for pair in zip(real_features, features, strict=True)]
        return {
            "discriminator_real": mean_of_rows(tf.nn.relu(1.0 - real_score)),
            "discriminator_generated": mean_of_rows(tf.nn.relu(1.0 + score)),
            "adversarial": mean_of_rows(tf.nn.relu(1.0 - score)),
            "feature_matching": tf.add_n(distances) / len(distances),
        }


def hidden_values(samples: int) -> int:
    """Return the number of values in the hidden layers of all discriminators for a wave."""
    total = 0
    with tf.device("/CPU:0"):
        for judge in Discriminators().judges:
            _, height, width, _ = judge.picture(tf.zeros([1, samples])).shape
            for conv in judge.convs:
                height, width = -(-height // conv.strides[0]), -(-width // conv.strides[1])
                total += height * width * conv.channels
    return total


class Judge(CompositeLayer):
    """A stack of 2-D convolutions over the `picture` that a subclass makes of a wave.

    Channels, kernels and strides are those of each hidden layer.
    """

    def __init__(
        self,
        channels: Sequence[int],
        kernels: Sequence[tuple[int, int]],
        strides: Sequence[tuple[int, int]],
        last_kernel: tuple[int, int],
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        self.convs = [
            WeightNormConv(*settings, name=f"conv_{i}")
            for i, settings in enumerate(zip(channels, kernels, strides, strict=True))
        ]
        self.out = WeightNormConv(1, last_kernel, (1, 1), name="out")

    def call(self, wave):
        """float32 [B, S] -> scores float32 [B, …], and the output of each hidden layer."""
        x = self.picture(wave)
        features = []
        for conv in self.convs:
            x = leaky_relu(conv(x))
            features.append(x)
        return tf.cast(self.out(x), tf.float32), features


class PeriodDiscriminator(Judge):
    """Sees every p-th sample, and never mixes samples that are no multiple of p apart."""

    def __init__(self, period: int, **kwargs):
        count = len(PERIOD_CHANNELS)
        strides = [(PERIOD_STRIDE, 1)] * (count - 1) + [(1, 1)]
        super().__init__(PERIOD_CHANNELS, [(PERIOD_KERNEL, 1)] * count, strides, (3, 1), **kwargs)
        self.period = period

    def picture(self, wave):
        """float32 [B, S] -> [B, S / p, p, 1]; up to p - 1 samples at the end are left out."""
        rows = tf.shape(wave)[1] // self.period
        return tf.reshape(wave[:, : rows * self.period], [tf.shape(wave)[0], rows, self.period, 1])


class ResolutionDiscriminator(Judge):
    """Sees the magnitudes of an STFT."""

    def __init__(self, fft_samples: int, **kwargs):
        count = len(RESOLUTION_STRIDES)
        kernels = [(3, 9)] * (count - 1) + [(3, 3)]
        strides = [(1, stride) for stride in RESOLUTION_STRIDES]
        super().__init__([RESOLUTION_CHANNELS] * count, kernels, strides, (3, 3), **kwargs)
        self.fft_samples = fft_samples
        # Makes noise as loud at all resolutions.
        self.norm = float(np.sqrt(np.square(np.hanning(fft_samples)).sum()))

    def picture(self, wave):
        """float32 [B, S] -> [B, T, F, 1]; less than a hop at the end is left out."""
        hop = self.fft_samples // OVERLAP
        whole = tf.shape(wave)[1] // hop * hop
        spectrum = short_time_spectrum(wave[:, :whole], self.fft_samples)
        return (magnitude(spectrum, POWER_FLOOR) / self.norm)[:, :, :, None]


class WeightNormConv(layers.Layer):
    """2-D convolution with weight normalisation (Salimans & Kingma 2016): gamma · v / ‖v‖.

    The kernel is computed in float32, whose squares do not overflow.
    """

    def __init__(self, channels: int, kernel: tuple[int, int], strides: tuple[int, int], **kwargs):
        super().__init__(**kwargs)
        self.channels, self.kernel_size, self.strides = channels, kernel, strides

    def build(self, shape):
        def weight(name, shape, initializer):
            return self.add_weight(shape, initializer, autocast=False, name=name)

        fan = (*self.kernel_size, shape[-1], self.channels)
        self.kernel = weight("kernel", fan, "he_normal")
        # Keeps the variance through a ReLU, as He et al. (2015) do by the kernel itself.
        root_2 = keras.initializers.Constant(2**0.5)
        self.gamma = weight("gamma", (self.channels,), root_2)
        self.bias = weight("bias", (self.channels,), "zeros")

    def call(self, x):
        """[B, height, width, C] -> [B, height / stride, width / stride, channels]."""
        kernel = tf.convert_to_tensor(self.kernel)
        gain = self.gamma * tf.math.rsqrt(tf.reduce_sum(tf.square(kernel), [0, 1, 2]) + 1e-12)
        kernel = tf.cast(kernel * gain, self.compute_dtype)
        x = tf.nn.conv2d(tf.cast(x, self.compute_dtype), kernel, self.strides, "SAME")
        return tf.nn.bias_add(x, tf.cast(self.bias, self.compute_dtype))


@tf.custom_gradient
def leaky_relu(x):
    """Return x where it is positive, else SLOPE · x.

    Its gradient depends on the output alone: TensorFlow's own keeps x as well, and hinders Grappler
    from fusing it with the convolution before ("remapper failed").
    """
    y = tf.nn.leaky_relu(x, SLOPE)
    return y, lambda upstream: tf.raw_ops.LeakyReluGrad(gradients=upstream, features=y, alpha=SLOPE)


def relative_distance(real, generated):
    """Return mean |difference| / mean |real| of features: [B, H, W, C] -> float32 [B]."""
    real, generated = tf.cast(real, tf.float32), tf.cast(generated, tf.float32)
    return mean_of_rows(tf.abs(real - generated)) / (mean_of_rows(tf.abs(real)) + MIN_FEATURE)
