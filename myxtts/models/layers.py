"""Building blocks of the network.

Shape legend: B batch, N tokens, T frames, L any length, C channels, S style, H heads.
Masks are float [B, L, 1]: 1 on real positions. A block never lets a padded position change a real one.
Dropout takes a seed, int32 [2], and happens only where one is given: a step's randomness is a function of
its batch, so a resumed run needs no generator state.
"""

import keras
import tensorflow as tf
from keras import layers

from myxtts.seeds import fold_in


def length_mask(lengths, padded, dtype):
    """int32 [B] -> [B, padded, 1]."""
    return tf.sequence_mask(lengths, padded, dtype)[:, :, None]


class SeededDropout(layers.Layer):
    """Dropout that draws from the given seed under a name."""

    def __init__(self, rate: float, seed_name: str, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.seed_name = seed_name

    def call(self, x, seed):
        """Any shape; the identity where the seed is None or the rate 0."""
        if seed is None or self.rate == 0.0:
            return x
        return tf.nn.experimental.stateless_dropout(x, self.rate, fold_in(seed, self.seed_name))


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
        self.dropout = SeededDropout(dropout, seed_name=self.name, name="dropout")
        self.out = layers.Dense(channels, name="out")

    def call(self, x, style, mask, seed=None):
        """x [B, L, C], style [B, S], mask [B, L, 1] -> [B, L, C]."""
        hidden = self.conv(self.norm(x, style) * mask)
        return x + self.out(self.dropout(hidden, seed))


class Attention(layers.Layer):
    """Attention of one sequence to another or to itself, with rotary positions (Su et al. 2021) or without any."""

    def __init__(self, channels: int, heads: int, rotary: bool, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.rotary = rotary
        self.query = layers.Dense(channels, use_bias=False, name="query")
        self.key_value = layers.Dense(2 * channels, use_bias=False, name="key_value")
        self.out = layers.Dense(channels, name="out")

    def call(self, x, context, mask):
        """x [B, Q, C], context [B, L, C] and its mask [B, L, 1] -> [B, Q, C]."""
        query = self._heads(self.query(x))
        key, value = (self._heads(part) for part in tf.split(self.key_value(context), 2, axis=-1))  # [B, H, L, C/H]
        if self.rotary:
            query, key = rotate(query), rotate(key)
        scores = tf.matmul(query, key, transpose_b=True) * query.shape[-1] ** -0.5
        # A finite bias, so that a row without any token gives numbers; float16 ends at 65,504.
        scores += tf.transpose(1 - mask, [0, 2, 1])[:, None] * tf.cast(-3e4, scores.dtype)
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
        return self.out(tf.reshape(mixed, tf.concat([tf.shape(x)[:2], [mixed.shape[2] * mixed.shape[3]]], axis=0)))

    def _heads(self, x):
        """[B, L, C] -> [B, H, L, C/H]."""
        split = tf.reshape(x, [tf.shape(x)[0], tf.shape(x)[1], self.heads, x.shape[2] // self.heads])
        return tf.transpose(split, [0, 2, 1, 3])


class AttentionBlock(layers.Layer):
    """Residual attention, conditioned on the style: to itself, or to a context where one is given."""

    def __init__(self, channels: int, heads: int, dropout: float, rotary: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.norm = StyledNorm(channels, name="norm")
        self.attention = Attention(channels, heads, rotary, name="attention")
        self.dropout = SeededDropout(dropout, seed_name=self.name, name="dropout")

    def call(self, x, style, mask, seed=None, context=None):
        """x [B, L, C], style [B, S], mask [B, L, 1] of what is attended to, context [B, K, C] -> [B, L, C]."""
        normed = self.norm(x, style)
        return x + self.dropout(self.attention(normed, normed if context is None else context, mask), seed)


def rotate(x):
    """Rotary positions: pairs of channels of [B, H, L, D] turn by position × 10000^(-2i/D)."""
    half = x.shape[-1] // 2
    position = tf.cast(tf.range(tf.shape(x)[2]), tf.float32)[:, None]
    angle = position * _frequencies(half)
    cos, sin = tf.cast(tf.cos(angle), x.dtype), tf.cast(tf.sin(angle), x.dtype)
    left, right = x[..., :half], x[..., half:]
    return tf.concat([left * cos - right * sin, left * sin + right * cos], axis=-1)


class ReferenceEncoder(layers.Layer):
    """A stretch of speech -> one voice vector and a few latents.

    Convolutions to an eighth of the frames, attention, then a perceiver resampler (Jaegle et al. 2021; Flamingo,
    Alayrac et al. 2022): learned queries attend to the frames. The first of them becomes the voice vector, the
    others the latents. A row that is not heard gets learned values in their place.
    """

    def __init__(self, channels: int, heads: int, latents: int, **kwargs):
        super().__init__(**kwargs)
        self.convs = [layers.Conv1D(channels, 3, strides=2, activation="silu", name=f"conv_{i}") for i in range(3)]
        self.norms = [layers.LayerNormalization(name=f"norm_{i}") for i in range(3)]
        self.attention = Attention(channels, heads, rotary=True, name="attention")
        self.resampler = Attention(channels, heads, rotary=False, name="resampler")
        self.out_norm = layers.LayerNormalization(name="out_norm")
        self.out = layers.Dense(channels, name="out")
        self.queries = layers.Embedding(1 + latents, channels, name="query_embedding")
        self.unheard = layers.Embedding(1 + latents, channels, name="no_reference_embedding")

    def call(self, mel, frames, heard):
        """mel [B, T, 80], frames int32 [B], heard float32 [B], 0 where it is left out -> [B, C], [B, K, C]."""
        x, lengths = mel, frames
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x * length_mask(lengths, tf.shape(x)[1], x.dtype)
            # Not padding="same": with strides it begins one frame earlier or later as the padded length is odd or even.
            x = norm(conv(tf.pad(x, [[0, 0], [1, 1], [0, 0]])))
            lengths = (lengths + 1) // 2
        mask = length_mask(lengths, tf.shape(x)[1], x.dtype)
        x = x + self.attention(x, x, mask)
        every = tf.range(self.queries.input_dim)
        queries = tf.tile(self.queries(every)[None], [tf.shape(mel)[0], 1, 1])
        resampled = self.out(self.out_norm(queries + self.resampler(queries, x, mask)))
        heard = tf.cast(heard, resampled.dtype)[:, None, None]
        resampled = heard * resampled + (1 - heard) * self.unheard(every)[None]
        return resampled[:, 0], resampled[:, 1:]


def time_features(time, count):
    """Time in [0, 1], float32 [B] -> sines and cosines [B, count] of its multiples (Vaswani et al. 2017)."""
    angle = 1000.0 * time[:, None] * _frequencies(count // 2)
    return tf.concat([tf.sin(angle), tf.cos(angle)], axis=-1)


def _frequencies(count):
    """Float32 [1, count], from 1 down towards 1/10,000."""
    return tf.constant([10_000.0 ** (-i / count) for i in range(count)])[None, :]


def parameter_count(model: keras.Model) -> int:
    """Trainable parameters."""
    return sum(int(variable.value.shape.num_elements()) for variable in model.trainable_variables)
