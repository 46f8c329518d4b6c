"""Building blocks of the network.

Shape legend: B batch, N tokens, T frames, L any length, C channels, S style, H heads.
Masks are float [B, L, 1]: 1 on real positions. A block never lets a padded position change a real one.
Dropout takes a seed, int32 [2], and happens only where one is given: a step's randomness is a function of
its batch, so a resumed run needs no generator state.
"""

from zlib import crc32

import keras
import tensorflow as tf
from keras import layers


def length_mask(lengths, padded, dtype):
    """int32 [B] -> [B, padded, 1]."""
    return tf.sequence_mask(lengths, padded, dtype)[:, :, None]


class SeededDropout(layers.Layer):
    """Dropout that draws from the given seed and its own name."""

    def __init__(self, rate: float, salt: str, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.salt = crc32(salt.encode()) & 0x7FFFFFFF

    def call(self, x, seed):
        """Any shape; the identity where the seed is None or the rate 0."""
        if seed is None or self.rate == 0.0:
            return x
        own = tf.random.experimental.stateless_fold_in(seed, self.salt)
        return tf.nn.experimental.stateless_dropout(x, self.rate, own)


class StyledNorm(layers.Layer):
    """Layer normalisation whose scale and shift come from the style (FiLM, Perez et al. 2018)."""

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.LayerNormalization(center=False, scale=False, name="norm")
        self.film = layers.Dense(2 * channels, kernel_initializer="zeros", name="film")

    def call(self, x, style):
        """x [B, L, C], style [B, S] -> [B, L, C]."""
        scale, shift = tf.split(self.film(style)[:, None, :], 2, axis=-1)
        return self.norm(x) * (1 + scale) + shift


class ConvBlock(layers.Layer):
    """Residual convolution over the length, conditioned on the style."""

    def __init__(self, channels: int, kernel: int, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.norm = StyledNorm(channels, name="norm")
        self.conv = layers.Conv1D(channels, kernel, padding="same", activation="silu", name="conv")
        self.dropout = SeededDropout(dropout, salt=self.name, name="dropout")
        self.out = layers.Dense(channels, name="out")

    def call(self, x, style, mask, seed=None):
        """x [B, L, C], style [B, S], mask [B, L, 1] -> [B, L, C]."""
        hidden = self.conv(self.norm(x, style) * mask)
        return x + self.out(self.dropout(hidden, seed))


class AttentionBlock(layers.Layer):
    """Residual self-attention with rotary positions (Su et al. 2021)."""

    def __init__(self, channels: int, heads: int, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.norm = StyledNorm(channels, name="norm")
        self.query_key_value = layers.Dense(3 * channels, use_bias=False, name="query_key_value")
        self.dropout = SeededDropout(dropout, salt=self.name, name="dropout")
        self.out = layers.Dense(channels, name="out")

    def call(self, x, style, mask, seed=None):
        """x [B, L, C], style [B, S], mask [B, L, 1] -> [B, L, C]."""
        batch, length, channels = tf.shape(x)[0], tf.shape(x)[1], x.shape[2]
        joint = self.query_key_value(self.norm(x, style))
        joint = tf.transpose(tf.reshape(joint, [batch, length, 3, self.heads, channels // self.heads]), [2, 0, 3, 1, 4])
        query, key, value = rotate(joint[0]), rotate(joint[1]), joint[2]  # [B, H, L, C/H]
        scores = tf.matmul(query, key, transpose_b=True) * (channels // self.heads) ** -0.5
        # A finite bias, so that a row without any token gives numbers; float16 ends at 65,504.
        scores += tf.transpose(1 - mask, [0, 2, 1])[:, None] * tf.cast(-3e4, scores.dtype)
        mixed = tf.matmul(tf.nn.softmax(scores), value)
        mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [batch, length, channels])
        return x + self.dropout(self.out(mixed), seed)


def rotate(x):
    """Rotary positions: pairs of channels of [B, H, L, D] turn by position × 10000^(-2i/D)."""
    half = x.shape[-1] // 2
    position = tf.cast(tf.range(tf.shape(x)[2]), tf.float32)[:, None]
    angle = position * tf.constant([10_000.0 ** (-i / half) for i in range(half)])[None, :]
    cos, sin = tf.cast(tf.cos(angle), x.dtype), tf.cast(tf.sin(angle), x.dtype)
    left, right = x[..., :half], x[..., half:]
    return tf.concat([left * cos - right * sin, left * sin + right * cos], axis=-1)


class ReferenceEncoder(layers.Layer):
    """A stretch of speech -> one style vector: convolutions, then attention pooling."""

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        self.convs = [layers.Conv1D(channels, 5, strides=2, activation="silu", name=f"conv_{i}") for i in range(3)]
        self.norms = [layers.LayerNormalization(name=f"norm_{i}") for i in range(3)]
        self.weight = layers.Dense(1, name="weight")
        self.out = layers.Dense(channels, name="out")

    def call(self, mel, frames):
        """mel [B, T, 80], frames int32 [B] -> [B, S]."""
        x, lengths = mel, frames
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x * length_mask(lengths, tf.shape(x)[1], x.dtype)
            # Not padding="same": with strides it begins one frame earlier or later as the padded length is odd or even.
            x = norm(conv(tf.pad(x, [[0, 0], [2, 2], [0, 0]])))
            lengths = (lengths + 1) // 2
        mask = length_mask(lengths, tf.shape(x)[1], x.dtype)
        weight = tf.nn.softmax(self.weight(x) + (1 - mask) * tf.cast(-3e4, x.dtype), axis=1)
        return self.out(tf.reduce_sum(weight * x, axis=1))


def parameter_count(model: keras.Model) -> int:
    """Trainable parameters."""
    return sum(int(variable.value.shape.num_elements()) for variable in model.trainable_variables)
