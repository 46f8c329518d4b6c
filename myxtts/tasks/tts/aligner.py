"""The learnt aligner of a voice: how well each frame of a recording fits each token of its text.

A token's mean mel cannot tell phonemes apart in a room with echo or in music, so frames and tokens
are encoded first, and their products are trained to explain the recording by its text (forward-sum
loss: Shih et al. 2021, RAD-TTS; Badlani et al. 2022, "One TTS Alignment To Rule Them All").
"""

from collections.abc import Collection

import tensorflow as tf
from keras import layers

from myxtts.base.portable_ops import indices
from myxtts.tasks.layers import CompositeLayer, Dense, Embedding, LayerNormalization

CHANNELS = 96
# The encoder of frames sees 3 of them. With 9, times of phonemes were 4 to 12 ms late, and neither
# loss nor search could tell. What has heard rooms adds 15 frames, see `Context`.
KERNEL_SIZE = 3
CONTEXT_KERNEL_SIZE = 5
CONTEXT_DILATIONS = 1, 2
CONTEXT_CHANNELS = 40
CONTEXT = "context"  # in the names of these layers
# Products of frames and tokens are multiplied by this and by 1/√CHANNELS: embeddings begin near 0.
SCALE = 4.0
# Width of the prior towards the diagonal, as a fraction of the text.
PRIOR_WIDTH = 0.05
PADDING_SCORE = -1e4


class Aligner(CompositeLayer):
    """Frames and tokens in one space, in float32.

    A token is encoded without its neighbours. With them in view, whole alignments could be one
    token off.
    """

    def __init__(self, symbols: int, contexts: bool = False, **kwargs):
        super().__init__(dtype="float32", **kwargs)
        options = {"activation": "silu", "dtype": "float32"}
        self.conv = layers.Conv1D(CHANNELS, KERNEL_SIZE, padding="same", name="conv", **options)
        self.hidden = Dense(CHANNELS, name="hidden", **options)
        self.norm = LayerNormalization(name="norm", dtype="float32")
        self.contexts: list[Context] = []
        if contexts:
            self.contexts = [Context(n, name=f"{CONTEXT}_{n}") for n in CONTEXT_DILATIONS]
        self.out = Dense(CHANNELS, name="out", dtype="float32")
        self.symbol_embedding = Embedding(symbols, CHANNELS, name="symbols", dtype="float32")

    def call(self, mel, real, tokens, token_count):
        """Return the log-probability of each token at each frame, and that of the prior alone.

        Normalised mel float32 [B, T, 80]; `real`, float32 [B, T], 0 for padding; tokens int32 [B,
        N], token_count int32 [B] -> float32 [B, T, N] twice.
        """
        prior = diagonal_prior(real, token_count, tf.shape(tokens)[1])
        scores = self.products(mel, real, tokens) + prior
        return tf.nn.log_softmax(scores), tf.nn.log_softmax(prior)

    def products(self, mel, real, symbols):
        """Return how alike frames and symbols, int32 [B or 1, N], are: float32 [B, T, N]."""
        hidden = self.norm(self.hidden(self.conv(normalised_bands(mel, real))))
        for context in self.contexts:
            hidden = context(hidden, real)
        products = tf.matmul(self.out(hidden), self.symbol_embedding(symbols), transpose_b=True)
        return products * (SCALE * CHANNELS**-0.5)


class Context(CompositeLayer):
    """Residual convolution in float32 that adds what utilities/base/aligner.py has learnt.

    Three frames cannot tell phonemes apart in rooms with music. But the forward-sum loss would use
    more of them to be late, so a run leaves these weights as they are: true paths have taught them.
    A run from nothing, and a voice that started from one without them, has no such layer.
    """

    def __init__(self, dilation: int, **kwargs):
        super().__init__(dtype="float32", **kwargs)
        fixed = {"dtype": "float32", "trainable": False}
        conv = {"padding": "same", "activation": "silu", "dilation_rate": dilation, **fixed}
        self.norm = LayerNormalization(name="norm", **fixed)
        self.conv = layers.Conv1D(CONTEXT_CHANNELS, CONTEXT_KERNEL_SIZE, name="conv", **conv)
        self.out = Dense(CHANNELS, kernel_initializer="zeros", name="out", **fixed)

    def call(self, x, real):
        """float32 [B, T, C]; `real` as in `Aligner.call` -> [B, T, C]."""
        return x + self.out(self.conv(self.norm(x) * real[:, :, None]))


def has_contexts(weights: Collection[str]) -> bool:
    """Return whether weights with these paths are of an aligner with `Context`."""
    return any(f"/{CONTEXT}_" in path for path in weights)


def normalised_bands(mel, real):
    """Return each band of each recording with mean 0 and deviation 1, against rooms and noise.

    Arguments as in `Aligner.call`. Padding, and a band without sound, become 0.
    """
    real = real[:, :, None]
    frames = tf.maximum(tf.reduce_sum(real, 1, keepdims=True), 1.0)
    mel = (mel - tf.reduce_sum(mel * real, 1, keepdims=True) / frames) * real
    # 0.01, since a band above a band limit has no variance.
    return mel * tf.math.rsqrt(0.01 + tf.reduce_sum(tf.square(mel), 1, keepdims=True) / frames)


def diagonal_prior(real, token_count, padded_tokens):
    """Return scores that fall off with the distance from the diagonal: float32 [B, T, N].

    It is narrow, so that a small corpus in rooms and noise aligns at all; but its tails are those
    of a Cauchy distribution, so that a sentence with long pauses may be far from the diagonal.
    """

    def middles(count, padded):
        count = tf.maximum(tf.cast(count, tf.float32), 1.0)[:, None]
        return (tf.cast(indices(padded), tf.float32)[None, :] + 0.5) / count

    token = middles(token_count, padded_tokens)
    frame = middles(tf.reduce_sum(real, axis=1), tf.shape(real)[1])
    distance = frame[:, :, None] - token[:, None, :]
    # The middle of a padded token lies behind the end of the text.
    is_token = (token < 1.0)[:, None, :]
    return tf.where(is_token, -tf.math.log1p(tf.square(distance / PRIOR_WIDTH)), PADDING_SCORE)
