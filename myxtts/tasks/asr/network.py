"""Speech recognition with CTC: log-mel spectrogram in, symbols out.

mel → normalisation → subsampling convolutions → bidirectional LMU or GRU blocks → logits

Shape legend: B batch, T frames, T' frames after subsampling, C channels, V symbols.
"""

from dataclasses import dataclass

import keras
import tensorflow as tf

from myxtts.tasks import layers
from myxtts.tasks.asr.ctc import ctc_labels, ctc_losses
from myxtts.tasks.asr.lmu import LegendreMemory
from myxtts.tasks.contract import ASR_FEATURES
from myxtts.tasks.layers import normalised_mel
from myxtts.text.symbols import subsampled_length


@dataclass(frozen=True)
class ASRSize:
    """Dimensions; an LMU block has `memory` channels of order `order` in each direction."""

    channels: int
    blocks: int
    memory: int
    order: int


SIZES = {
    "tiny": ASRSize(channels=192, blocks=4, memory=48, order=8),
    "small": ASRSize(channels=256, blocks=6, memory=64, order=8),
    "normal": ASRSize(channels=352, blocks=7, memory=104, order=8),
    "big": ASRSize(channels=512, blocks=12, memory=128, order=8),
}
STRIDES = {1: (1, 1), 2: (2, 1), 4: (2, 2)}  # of each convolution, by mel frames per encoder frame
KERNEL_SIZE = 5
# The span of each memory, 0.37 s. With 32 frames the character error rate was twice as high after
# 300 steps.
WINDOW_FRAMES = 16


class ASRModel(keras.Model):
    """The CTC network, of `symbols` classes, including the blank, BLANK_ID.

    `encoder` is a key of ENCODERS, which have equal numbers of parameters within 5 % in one size,
    and `subsampling` one of STRIDES.
    """

    BATCH_FIELDS = ASR_FEATURES
    LOSS_NAMES = ("ctc",)

    def __init__(
        self, size: ASRSize, symbols: int, encoder: str, subsampling: int = 2, dropout: float = 0.0
    ):
        # The mel stays float32 in mixed precision; the layers cast their own inputs.
        super().__init__(name="asr", autocast=False)
        self.subsampling = subsampling
        options = {"kernel_size": KERNEL_SIZE, "activation": "silu"}
        self.convs = [
            keras.layers.Conv1D(size.channels, strides=stride, name=f"subsampling_{i}", **options)
            for i, stride in enumerate(STRIDES[subsampling])
        ]
        names = [f"{encoder}_{i}" for i in range(size.blocks)]
        self.blocks = [ENCODERS[encoder](size, dropout, name=name) for name in names]
        self.out_norm = layers.LayerNormalization(name="out_norm")
        self.out = layers.Dense(symbols, name="out")

    def vocabulary_variables(self) -> dict[str, tuple[str, int]]:
        """Return the variables with a row for each symbol: path -> (vocabulary, axis)."""
        return {self.out.kernel.path: ("symbols", 1), self.out.bias.path: ("symbols", 0)}

    def component_layers(self) -> dict[str, list[keras.layers.Layer]]:
        """Return the layers of each component that --freeze names."""
        output = [self.out_norm, self.out]
        return {"subsampling": [*self.convs], "encoder": [*self.blocks], "output": output}

    def build(self, shape):
        """Create no variables; see `CompositeLayer`."""

    def call(self, batch, training=False):
        """Compute the loss of a batch of ASR_FEATURES, as a fraction of the whole step's loss.

        Its sum over all batches and replicas of a step is the mean over that step's tokens. Empty
        rows and rows without labels add nothing. On the CPU, a row of fewer frames than
        `LengthRule.frames_needed` is an InvalidArgumentError. Outputs: `logits` float32 [B, T', V];
        `frames` int32 [B], their real frames.
        """
        seed = batch["seed"] if training else None
        logits, frames = self.compute_logits(batch["mel"], batch["frames"], seed)
        labels, count = ctc_labels(batch["tokens"], batch["token_count"])
        loss = tf.reduce_sum(ctc_losses(logits, frames, labels, count)) / batch["step_tokens"]
        return {"ctc": loss}, {"logits": logits, "frames": frames}

    # The convolutions shorten the mel, and `frames` with it. After them the mask is 1 on frames
    # that belong to the utterance, so that no block carries padding into them.
    def compute_logits(self, mel, frames, seed=None):
        """Map log-mels [B, T, 80] and frames int32 [B] to logits [B, T', V] and their frames."""
        x = normalised_mel(mel)
        for conv in self.convs:
            x = layers.strided_convolution(conv, x, frames)
            frames = subsampled_length(frames, conv.strides[0])
        mask = layers.length_mask(frames, tf.shape(x)[1], x.dtype)
        for block in self.blocks:
            x = block(x, mask, frames, seed)
        return tf.cast(self.out(self.out_norm(x)), tf.float32), frames


def build_asr(
    size: str, symbols: int, encoder: str, subsampling: int, precision: str = "float32", **settings
) -> ASRModel:
    """Build ASRModel of a key of SIZES; `settings` are its arguments. See `build_network`."""
    return layers.build_network(
        precision, lambda: ASRModel(SIZES[size], symbols, encoder, subsampling, **settings)
    )


class LMUBlock(layers.CompositeLayer):
    """Residual bidirectional Legendre memory of a few channels, mixed back into the input."""

    def __init__(self, size: ASRSize, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.LayerNormalization(name="norm")
        self.write = layers.Dense(2 * size.memory, use_bias=False, name="write")
        self.past = LegendreMemory(size.order, WINDOW_FRAMES, name="past")
        self.future = LegendreMemory(size.order, WINDOW_FRAMES, backward=True, name="future")
        self.mix = layers.Dense(size.channels, activation="silu", name="mix")
        self.dropout = layers.SeededDropout(dropout, seed_name=self.name, name="dropout")
        self.out = layers.Dense(size.channels, name="out")

    def call(self, x, mask, frames, seed=None):
        """x [B, T, C], mask [B, T, 1], frames int32 [B] -> [B, T, C]."""
        normed = self.norm(x)
        before, after = tf.split(self.write(normed) * mask, 2, axis=2)
        memory = tf.concat([self.past(before), self.future(after)], axis=2)
        hidden = self.mix(tf.concat([normed, tf.cast(memory, normed.dtype)], axis=2))
        return x + self.out(self.dropout(hidden, seed))


class GRUBlock(keras.layers.Layer):
    """Residual bidirectional GRU (Cho et al. 2014), both directions in one loop over time.

    Keras' layer is not used: it holds a random generator whose name depends on how many the process
    has created, and with cuDNN it rejects rows without frames.
    """

    def __init__(self, size: ASRSize, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.units = gru_units(size)
        self.norm = layers.LayerNormalization(name="norm")
        self.write = layers.Dense(6 * self.units, name="write")
        self.dropout = layers.SeededDropout(dropout, seed_name=self.name, name="dropout")
        self.out = layers.Dense(size.channels, name="out")

    def build(self, shape):
        units = self.units
        self.recurrent = [
            self.add_weight((units, 3 * units), "orthogonal", name=f"recurrent_{direction}")
            for direction in ("past", "future")
        ]
        self.recurrent_bias = self.add_weight((2, 1, units), "zeros", name="recurrent_bias")

    def call(self, x, mask, frames, seed=None):
        """x [B, T, C], mask [B, T, 1], frames int32 [B] -> [B, T, C]."""
        forward, backward = tf.split(self.write(self.norm(x)), 2, axis=2)
        # Only real frames are reversed, so padding stays at the end and cannot reach them.
        both = tf.stack([forward, tf.reverse_sequence(backward, frames, seq_axis=1)])
        recurrent = tf.stack([tf.cast(weight, both.dtype) for weight in self.recurrent])
        bias = tf.cast(self.recurrent_bias, both.dtype)

        def next_state(state, gates):
            update, reset, candidate = tf.split(gates, 3, axis=2)
            products = tf.split(tf.matmul(state, recurrent), 3, axis=2)
            update_state, reset_state, candidate_state = products
            update, reset = tf.sigmoid(update + update_state), tf.sigmoid(reset + reset_state)
            candidate = tf.tanh(candidate + reset * (candidate_state + bias))
            return update * state + (1 - update) * candidate

        start = tf.zeros([2, tf.shape(x)[0], self.units], both.dtype)
        states = tf.scan(next_state, tf.transpose(both, [2, 0, 1, 3]), start)  # [T, 2, B, units]
        past, future = tf.unstack(tf.transpose(states, [1, 2, 0, 3]))
        hidden = tf.concat([past, tf.reverse_sequence(future, frames, seq_axis=1)], axis=2)
        return x + self.out(self.dropout(hidden, seed))


ENCODERS: dict[str, type] = {"lmu": LMUBlock, "gru": GRUBlock}


def gru_units(size: ASRSize) -> int:
    """Return the units U of a GRU block with as many parameters as an LMU block.

    A GRU block has 2 C + 6 U (C + 1) + 6 U² + 2 U + (2 U + 1) C of them.
    """
    c = size.channels
    coefficients = 2 * size.memory * size.order
    lmu_parameters = 2 * c + 2 * c * size.memory + (c + coefficients + 1) * c + (c + 1) * c
    linear = 8 * c + 8
    constant = 3 * c - lmu_parameters
    return round((-linear + (linear**2 - 24 * constant) ** 0.5) / 12)
