"""Building blocks of the networks.

Shape legend: B batch, N tokens, T frames, L any length, C channels, S style, H heads. Masks are
float [B, L, 1]: 1 on real positions. Padded positions never change the output at real ones. Dropout
takes a seed, int32 [2], and is off without one. A step's randomness is a function of its batch, so
a resumed run needs no generator state.
"""

from collections.abc import Callable

import keras
import tensorflow as tf
from keras import initializers, layers

from myxtts.audio.format import DECIBELS_PER_NEPER, TOP_DB
from myxtts.base.portable_ops import fold_in, indices, on_host, stateless_bytes
from myxtts.tasks.contract import empty_batch


def build_network(precision: str, create: Callable[[], keras.Model]):
    """Build a network with all its variables, on the device or replicas in whose scope we are.

    `precision` is the Keras dtype policy of every layer, but variables stay float32.
    """
    policy_before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        model = create()
        # Keras creates variables at the first call: eagerly, in this scope.
        model(empty_batch(model.BATCH_FIELDS))
    finally:
        keras.config.set_dtype_policy(policy_before)
    return model


def loss_names(model: keras.Model) -> tuple[str, ...]:
    """Return the names of the losses that a model reports, those that it only observes last."""
    return *model.LOSS_NAMES, *getattr(model, "OBSERVED_NAMES", ())


def length_mask(lengths, padded, dtype):
    """Return the mask of `lengths`: int32 [B] -> [B, padded, 1]."""
    return tf.sequence_mask(lengths, padded, dtype)[:, :, None]


def sum_over(x, axes):
    """Return `tf.reduce_sum(x, axes)`, whose own gradient would wait for a GPU's shape."""
    return tf.squeeze(tf.reduce_sum(x, axes, keepdims=True), axes)


def mean_of_rows(x):
    """Return the mean of each row, [B, …, C] -> [B]; see `sum_over`."""
    shape = tf.shape(x)[1:]
    with on_host():
        values = tf.reduce_prod(shape)
    # As an index, so that it is not copied to a GPU.
    values = tf.cast(indices(1, values), tf.float32)
    return sum_over(x, list(range(1, x.shape.rank))) / values


@tf.custom_gradient
def standardised(x):
    """Return float32 [B, L, C] with mean 0 and variance 1 over the channels (Ba et al. 2016).

    Knowing the number of channels, its gradient has a third of the operations of that of Keras.
    """
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    inverse_std = tf.math.rsqrt(variance + 1e-3)  # as in Keras
    y = centred * inverse_std

    def gradient(upstream):
        along = y * tf.reduce_mean(upstream * y, axis=-1, keepdims=True)
        across = upstream - tf.reduce_mean(upstream, axis=-1, keepdims=True)
        return (across - along) * inverse_std

    return y, gradient


class LayerNormalization(layers.LayerNormalization):
    """Keras' layer normalisation of the last axis, with the gradient of `standardised`."""

    def call(self, inputs):
        """[B, L, C] -> [B, L, C]."""
        y = standardised(tf.cast(inputs, tf.float32)) * self.gamma.value + self.beta.value
        return tf.cast(y, self.compute_dtype)


class SeededDropout(layers.Layer):
    """Stateless dropout: its mask depends on the seed of the call and on `seed_name` only.

    The rate is rounded to a multiple of 1/256, so that an element takes a byte of random numbers.
    """

    def __init__(self, rate: float, seed_name: str, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.seed_name = seed_name

    def call(self, x, seed):
        """Drop elements of a tensor [..., C]; the identity without a seed or with rate 0."""
        if seed is None or self.rate == 0.0:
            return x
        dropped = max(round(256 * self.rate), 1)
        keeps = stateless_bytes(x, fold_in(seed, self.seed_name)) >= dropped
        return tf.where(keeps, x * (256 / (256 - dropped)), tf.zeros([], x.dtype))


class Dense(layers.Dense):
    """Keras' dense layer, bit for bit, for inputs of rank 2 or more and of unknown shape.

    Keras calls `tf.tensordot`, which computes shapes on the GPU: the host waited three times in
    each call. Here shapes stay on the host.
    """

    def call(self, inputs, training=None):
        kernel = tf.convert_to_tensor(self.kernel)  # in the layer's precision
        rows = tf.matmul(tf.reshape(inputs, [-1, kernel.shape[0]]), kernel)
        # The minimum changes no shape, but hides from Grappler which are equal: it would add some
        # gradients in another order, and a run would not repeat the losses that it had before.
        outer = tf.minimum(tf.shape(inputs)[:-1], tf.int32.max)
        x = tf.reshape(rows, tf.concat([outer, [self.units]], axis=0))
        x.set_shape([*inputs.shape[:-1], self.units])
        if self.use_bias:
            x = keras.ops.add(x, self.bias)
        return x if self.activation is None else self.activation(x)


class Embedding(layers.Embedding):
    """Embedding without negative rows, which Keras would copy from the GPU and back."""

    def call(self, rows):
        return tf.cast(tf.gather(tf.convert_to_tensor(self.embeddings), rows), self.compute_dtype)


class CompositeLayer(layers.Layer):
    """A layer of layers, each of which creates its variables at its first call, which is eager.

    Without `build`, Keras would trace `call` to find them, at every level of nesting: twice the
    time of construction.
    """

    def build(self, shape):
        """Create no variables."""


class AdaptiveLayerNorm(CompositeLayer):
    """Layer normalisation whose scale and shift follow the style (FiLM, Perez et al. 2018)."""

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        self.film = Dense(2 * channels, kernel_initializer="zeros", name="film")

    def call(self, x, style):
        """x [B, L, C], style [B, S] -> [B, L, C]."""
        scale, shift = tf.split(self.film(style)[:, None, :], 2, axis=-1)
        return tf.cast(standardised(tf.cast(x, tf.float32)), x.dtype) * (1 + scale) + shift


class ConvBlock(CompositeLayer):
    """Residual 1-D convolution, conditioned on the style."""

    def __init__(self, channels: int, kernel: int, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.norm = AdaptiveLayerNorm(channels, name="norm")
        self.conv = layers.Conv1D(channels, kernel, padding="same", activation="silu", name="conv")
        self.dropout = SeededDropout(dropout, seed_name=self.name, name="dropout")
        self.out = Dense(channels, name="out")

    def call(self, x, style, mask, seed=None):
        """x [B, L, C], style [B, S], mask [B, L, 1] -> [B, L, C]."""
        hidden = self.conv(self.norm(x, style) * mask)
        return x + self.out(self.dropout(hidden, seed))


class Attention(CompositeLayer):
    """Multi-head attention, optionally with rotary position embeddings (Su et al. 2021)."""

    def __init__(self, channels: int, heads: int, rotary: bool, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.rotary = rotary
        self.query = Dense(channels, use_bias=False, name="query")
        self.key_value = Dense(2 * channels, use_bias=False, name="key_value")
        self.out = Dense(channels, name="out")

    def call(self, x, context, mask):
        """Attend: x [B, Q, C], context [B, L, C] and its mask [B, L, 1] -> [B, Q, C]."""
        query = self._heads(self.query(x))
        key, value = (self._heads(x) for x in tf.split(self.key_value(context), 2, axis=-1))
        if self.rotary:
            query, key = apply_rotary(query), apply_rotary(key)
        scores = tf.matmul(query, key, transpose_b=True) * query.shape[-1] ** -0.5
        # The bias is finite so that a row without tokens stays finite; the largest float16 is
        # 65,504.
        scores += tf.transpose(1 - mask, [0, 2, 1])[:, None] * tf.cast(-3e4, scores.dtype)
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
        channels = mixed.shape[2] * mixed.shape[3]
        return self.out(tf.reshape(mixed, tf.concat([tf.shape(x)[:2], [channels]], axis=0)))

    def _heads(self, x):
        """[B, L, C] -> [B, H, L, C/H]."""
        shape = [tf.shape(x)[0], tf.shape(x)[1], self.heads, x.shape[2] // self.heads]
        return tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])


class AttentionBlock(CompositeLayer):
    """Residual self-attention, or cross-attention to a context, conditioned on the style."""

    def __init__(self, channels: int, heads: int, dropout: float, rotary: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.norm = AdaptiveLayerNorm(channels, name="norm")
        self.attention = Attention(channels, heads, rotary, name="attention")
        self.dropout = SeededDropout(dropout, seed_name=self.name, name="dropout")

    def call(self, x, style, mask, seed=None, context=None):
        """x [B, L, C], style [B, S], mask of the keys [B, K, 1], context [B, K, C] -> [B, L, C]."""
        normed = self.norm(x, style)
        context = normed if context is None else context
        return x + self.dropout(self.attention(normed, context, mask), seed)


def apply_rotary(x):
    """Rotate channel pairs of [B, H, L, D] by position × 10000^(-2i/D) (rotary embedding)."""
    half = x.shape[-1] // 2
    position = tf.cast(indices(tf.shape(x)[2]), tf.float32)[:, None]
    angle = position * _frequencies(half)
    cos, sin = tf.cast(tf.cos(angle), x.dtype), tf.cast(tf.sin(angle), x.dtype)
    left, right = tf.split(x, 2, axis=-1)
    return tf.concat([left * cos - right * sin, left * sin + right * cos], axis=-1)


class ReferenceEncoder(CompositeLayer):
    """Speaker encoder: reference speech of any length -> one speaker embedding and a few latents.

    A perceiver resampler (Jaegle et al. 2021; Flamingo, Alayrac et al. 2022), whose first query
    becomes the speaker embedding and the others the latents. Statistics of the spectrum are added
    to the embedding (statistics pooling, Snyder et al. 2018): what is learned alone collapses.
    """

    def __init__(self, channels: int, heads: int, latents: int, **kwargs):
        super().__init__(**kwargs)
        conv = {"strides": 2, "activation": "silu"}
        self.convs = [layers.Conv1D(channels, 3, name=f"conv_{i}", **conv) for i in range(3)]
        self.norms = [LayerNormalization(name=f"norm_{i}") for i in range(3)]
        self.attention = Attention(channels, heads, rotary=True, name="attention")
        self.resampler = Attention(channels, heads, rotary=False, name="resampler")
        self.out_norm = LayerNormalization(name="out_norm")
        # The embedding begins with a norm near 1. With one of 12, a step of Adam moves the FiLM of
        # each block by 0.3, and the embedding collapses to one dimension before it is of use.
        small = initializers.VarianceScaling(1.0 / channels, "fan_avg", "uniform")
        self.out = Dense(channels, kernel_initializer=small, name="out")
        self.statistics = Dense(channels, name="statistics")
        self.queries = Embedding(1 + latents, channels, name="query_embedding")
        self.no_reference = Embedding(1 + latents, channels, name="no_reference_embedding")

    # The convolutions shorten the reference to an eighth, and attention relates its parts. Then 1 +
    # K learned queries each collect what they look for. Rows with `keep` 0 take the learned values.
    def call(self, mel, frames, statistics, keep):
        """mel [B, T, 80], frames int32 [B], statistics [B, S], keep [B] -> [B, C], [B, K, C].

        `statistics` are those of `spectral_statistics`. Rows whose `keep` is 0 are ignored.
        """
        x, lengths = mel, frames
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(strided_convolution(conv, x, lengths))
            lengths = (lengths + 1) // 2
        mask = length_mask(lengths, tf.shape(x)[1], x.dtype)
        x = x + self.attention(x, x, mask)
        rows = tf.range(self.queries.input_dim)
        queries = self.queries(rows)[None]
        shape = tf.concat([tf.shape(mel)[:1], queries.shape[1:]], axis=0)
        queries = tf.broadcast_to(queries, shape)
        resampled = self.out(self.out_norm(queries + self.resampler(queries, x, mask)))
        statistics = self.statistics(statistics)[:, None]
        resampled += tf.pad(statistics, [[0, 0], [0, self.queries.input_dim - 1], [0, 0]])
        keep = tf.cast(keep, resampled.dtype)[:, None, None]
        resampled = keep * resampled + (1 - keep) * self.no_reference(rows)[None]
        return resampled[:, 0], resampled[:, 1:]


def strided_convolution(conv, x, lengths):
    """Apply a `Conv1D` to the real frames of x [B, T, C], padded by half of its kernel.

    Not padding="same": with strides its first window depends on whether the padded length is odd or
    even.
    """
    x = x * length_mask(lengths, tf.shape(x)[1], x.dtype)
    margin = conv.kernel_size[0] // 2
    return conv(tf.pad(x, [[0, 0], [margin, margin], [0, 0]]))


def time_embedding(time, count: int):
    """Return sinusoidal embeddings of times (Vaswani et al. 2017): [B] -> [B, count]."""
    angle = 1000.0 * time[:, None] * _frequencies(count // 2)
    return tf.concat([tf.sin(angle), tf.cos(angle)], axis=-1)


def _frequencies(count: int):
    """Return float32 [1, count], from 1 down towards 1/10,000."""
    return tf.constant([10_000.0 ** (-i / count) for i in range(count)])[None, :]


def parameter_count(layer: layers.Layer) -> int:
    """Return the number of values in the trainable variables of a layer or model."""
    return sum(int(v.value.shape.num_elements()) for v in layer.trainable_variables)


# Mean and standard deviation of log-mel over speech (Matcha-TTS has -5.54 and 2.12 for LJSpeech).
MEL_MEAN = -5.5
MEL_STD = 2.1
TYPICAL_DEVIATION = 0.8  # of a band in the loud frames of a normalised log-mel


def normalised_mel(log_mel):
    """Return log-mels with about mean 0 and unit variance over speech."""
    return (log_mel - MEL_MEAN) / MEL_STD


def long_term_spectrum(mel, frames):
    """Return mean and deviation of the loud frames of normalised log-mels [B, T, 80]: each [B, 80].

    The mean, 0 without frames, carries most of what distinguishes speakers. The network predicts
    mels relative to the reference's, so that it extends to speakers not seen in training.
    """
    real = length_mask(frames, tf.shape(mel)[1], tf.float32)
    level = tf.reduce_mean(mel, axis=2, keepdims=True)
    loudest = tf.reduce_max(tf.where(real > 0.0, level, level.dtype.min), axis=1, keepdims=True)
    loud = real * tf.cast(level > loudest - TOP_DB / (DECIBELS_PER_NEPER * MEL_STD), tf.float32)
    count = tf.maximum(tf.reduce_sum(loud, axis=1), 1.0)
    mean = tf.reduce_sum(mel * loud, axis=1) / count
    variance = tf.reduce_sum(tf.square(mel - mean[:, None]) * loud, axis=1) / count
    return mean, tf.sqrt(variance + 1e-4)


def spectral_statistics(mean, deviation):
    """Return what `long_term_spectrum` returns, centred and without the level: [B, 160]."""
    level = tf.reduce_mean(mean, axis=1, keepdims=True)
    # Deviations of speakers differ half as much as their means.
    return tf.concat([mean - level, 2.0 * (deviation - TYPICAL_DEVIATION)], axis=1)
