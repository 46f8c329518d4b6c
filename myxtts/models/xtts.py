"""XTTS: text and a reference of the speaker in, log-mel spectrogram out.

text → embedding and one convolution → mean mel of each token → monotonic alignment search → durations
       └→ encoder, repeated by durations → decoder → mel

The reference conditions every block. Sources: the search and the prior loss are those of Glow-TTS
(Kim et al. 2020); repeating the encoder's output by durations is FastSpeech's (Ren et al. 2019).
"""

from dataclasses import dataclass

import keras
import tensorflow as tf
from keras import layers

from myxtts.audio.format import MEL_BANDS
from myxtts.audio.mel import SILENCE
from myxtts.models.alignment import monotonic_path, path_durations
from myxtts.models.layers import AttentionBlock, ConvBlock, ReferenceEncoder, length_mask

# Mean and standard deviation of log-mel over speech (Matcha-TTS gives -5.54 and 2.12 for LJSpeech):
# the network works on values of about unit variance.
MEL_MEAN, MEL_STD = -5.5, 2.1
LONGEST_TOKEN_FRAMES = 200.0  # 2.3 s: bounds what an untrained duration predictor may ask for


@dataclass(frozen=True)
class Size:
    channels: int
    encoder_blocks: int
    decoder_blocks: int
    heads: int


SIZES = {
    "tiny": Size(channels=144, encoder_blocks=3, decoder_blocks=5, heads=2),
    "small": Size(channels=256, encoder_blocks=4, decoder_blocks=8, heads=4),
    "normal": Size(channels=368, encoder_blocks=5, decoder_blocks=11, heads=4),
    "big": Size(channels=592, encoder_blocks=6, decoder_blocks=14, heads=8),
}
KERNEL = 5
# The mean mel sees a token and its two neighbours. Where it saw the whole text, it learnt to predict
# the mel of a token some places on, and the alignment drifted.
LOCAL_KERNEL = 3
FOLD = 2  # the decoder works on pairs of frames: half the positions, at 23 ms each


class XTTS(keras.Model):
    """The network.

    Args:
        size: dimensions, see SIZES.
        symbols: rows of the symbol table.
        languages: rows of the language table.
        dropout: share of activations dropped in training.
    """

    LOSSES = ("mel", "prior", "duration")

    def __init__(self, size: Size, symbols: int, languages: int, dropout: float):
        # Targets stay float32 in mixed precision; the layers cast their own inputs.
        super().__init__(name="xtts", autocast=False)
        channels = size.channels
        self.reference_encoder = ReferenceEncoder(channels, name="reference_encoder")
        self.language_embedding = layers.Embedding(languages, channels, name="language_embedding")
        self.symbol_embedding = layers.Embedding(symbols, channels, name="symbol_embedding")
        self.local = ConvBlock(channels, LOCAL_KERNEL, dropout, name="local_conv")
        self.attention = [
            AttentionBlock(channels, size.heads, dropout, name=f"encoder_attention_{i}")
            for i in range(size.encoder_blocks)
        ]
        self.encoder = self._conv_blocks("encoder", size.encoder_blocks, channels, dropout)
        self.mean_mel = layers.Dense(MEL_BANDS, name="mean_mel")
        self.duration = self._conv_blocks("duration", 2, channels, dropout)
        self.log_duration = layers.Dense(1, name="log_duration")
        self.decoder_in = layers.Dense(channels, name="decoder_in")
        self.decoder = self._conv_blocks("decoder", size.decoder_blocks, channels, dropout)
        self.decoder_out = layers.Dense(FOLD * MEL_BANDS, kernel_initializer="zeros", name="decoder_out")

    @staticmethod
    def _conv_blocks(name, count, channels, dropout):
        return [ConvBlock(channels, KERNEL, dropout, name=f"{name}_conv_{i}") for i in range(count)]

    def call(self, batch, training=False):
        """Losses of a batch of FEATURES, each a share of the whole step's.

        The sum over all batches and replicas of a step is the mean over that step's real frames
        (tokens for the duration): nothing is averaged over batches of different sizes.

        Returns:
            Losses: float32 scalars `mel` (mean absolute error), `prior` (half the squared error of
            the mean mel) and `duration` (squared error of log frames), all on the normalised mel.
            Outputs: `path` int32 [B, T] and `mel` float32 [B, T, 80], the log-mel that was predicted.
        """
        seed = batch["seed"] if training else None
        target = (batch["mel"] - MEL_MEAN) / MEL_STD
        frames, token_count = batch["frames"], batch["token_count"]
        style = self._style(batch["reference"], batch["reference_frames"], batch["language"])
        encoded, mean, mask = self._encode(batch["tokens"], token_count, style, seed)

        path = tf.stop_gradient(monotonic_path(-0.5 * squared_distance(target, mean), token_count, frames))
        log_duration = self._log_duration(encoded, style, mask, seed)
        real = length_mask(frames, tf.shape(target)[1], tf.float32)
        mean_of_frame = gather_tokens(mean, path)
        predicted = mean_of_frame + self._decode(encoded, path, frames, style, seed)

        true_log_duration = tf.math.log(tf.maximum(path_durations(path, tf.shape(mean)[1]), 1.0))
        token_error = tf.square(log_duration - true_log_duration) * tf.cast(mask[:, :, 0], tf.float32)
        per_frame = batch["step_frames"] * MEL_BANDS
        losses = {
            "mel": tf.reduce_sum(tf.abs(predicted - target) * real) / per_frame,
            "prior": 0.5 * tf.reduce_sum(tf.square(mean_of_frame - target) * real) / per_frame,
            "duration": tf.reduce_sum(token_error) / batch["step_tokens"],
        }
        return losses, {"path": path, "mel": predicted * MEL_STD + MEL_MEAN}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None, None, MEL_BANDS], tf.float32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([], tf.float32),
        ]
    )
    def speak(self, tokens, token_count, language, reference, reference_frames, speed):
        """Log-mel of a batch of texts.

        Args:
            tokens: int32 [B, N], padded with 0; token_count: int32 [B]; language: int32 [B].
            reference: float32 [B, R, 80] log-mel of the voice; reference_frames: int32 [B].
            speed: float32 scalar; 2 halves every duration.

        Returns:
            mel float32 [B, T, 80], silence behind the end; frames int32 [B]; path int32 [B, T].
        """
        style = self._style(reference, reference_frames, language)
        encoded, mean, mask = self._encode(tokens, token_count, style, None)
        log_duration = self._log_duration(encoded, style, mask, None)
        duration = tf.clip_by_value(tf.exp(log_duration) / speed, 1.0, LONGEST_TOKEN_FRAMES)
        # Ends are rounded, not durations, so that no rounding error adds up over a sentence.
        ends = tf.cast(tf.round(tf.cumsum(duration * tf.cast(mask[:, :, 0], tf.float32), axis=1)), tf.int32)
        frames = ends[:, -1]
        path = token_of_frame(ends, token_count, frames)
        mel = gather_tokens(mean, path) + self._decode(encoded, path, frames, style, None)
        real = length_mask(frames, tf.shape(mel)[1], tf.bool)
        return tf.where(real, mel * MEL_STD + MEL_MEAN, SILENCE), frames, path

    def _style(self, reference, reference_frames, language):
        normalised = (reference - MEL_MEAN) / MEL_STD
        return self.reference_encoder(normalised, reference_frames) + self.language_embedding(language)

    def _encode(self, tokens, token_count, style, seed):
        """Encoder output [B, N, C], mean mel of each token float32 [B, N, 80], mask [B, N, 1]."""
        encoded = self.symbol_embedding(tokens)
        mask = length_mask(token_count, tf.shape(tokens)[1], encoded.dtype)
        encoded = self.local(encoded, style, mask, seed)
        mean = tf.cast(self.mean_mel(encoded), tf.float32)
        for attention, conv in zip(self.attention, self.encoder, strict=True):
            encoded = conv(attention(encoded, style, mask, seed), style, mask, seed)
        return encoded, mean, mask

    def _log_duration(self, encoded, style, mask, seed):
        """Natural logarithm of frames, float32 [B, N]; its gradient does not reach the encoder."""
        hidden, style = tf.stop_gradient(encoded), tf.stop_gradient(style)
        for conv in self.duration:
            hidden = conv(hidden, style, mask, seed)
        return tf.cast(self.log_duration(hidden), tf.float32)[:, :, 0]

    def _decode(self, encoded, path, frames, style, seed):
        """What the decoder adds to the mean mel: float32 [B, T, 80], normalised."""
        batch, padded = tf.unstack(tf.shape(path))
        place = place_in_token(path, tf.shape(encoded)[1])
        hidden = tf.concat([gather_tokens(encoded, path), tf.cast(place, encoded.dtype)], axis=-1)
        pairs = (padded + FOLD - 1) // FOLD
        hidden = tf.pad(hidden, [[0, 0], [0, pairs * FOLD - padded], [0, 0]])
        hidden = self.decoder_in(tf.reshape(hidden, [batch, pairs, FOLD * hidden.shape[-1]]))
        mask = length_mask((frames + FOLD - 1) // FOLD, pairs, hidden.dtype)
        for conv in self.decoder:
            hidden = conv(hidden, style, mask, seed)
        unfolded = tf.reshape(self.decoder_out(hidden), [batch, pairs * FOLD, MEL_BANDS])
        return tf.cast(unfolded[:, :padded], tf.float32)


def squared_distance(x, y):
    """Squared Euclidean distance of each pair: [B, T, D], [B, N, D] -> [B, T, N]."""
    cross = tf.matmul(x, y, transpose_b=True)
    return tf.reduce_sum(x * x, -1)[:, :, None] - 2.0 * cross + tf.reduce_sum(y * y, -1)[:, None, :]


def gather_tokens(values, path):
    """Values of the token of each frame: [B, N, D], int32 [B, T] -> [B, T, D]; zeros behind the end."""
    chosen = tf.gather(values, tf.maximum(path, 0), batch_dims=1)
    return chosen * tf.cast(path >= 0, values.dtype)[:, :, None]


def place_in_token(path, tokens):
    """Where each frame stands, float32 [B, T, 2]: share of its token that has passed, and log frames of the token."""
    duration = path_durations(path, tokens)
    start = tf.cumsum(duration, axis=1, exclusive=True)
    own = tf.gather(tf.stack([start, tf.maximum(duration, 1.0)], axis=-1), tf.maximum(path, 0), batch_dims=1)
    frame = tf.cast(tf.range(tf.shape(path)[1]), tf.float32)
    place = tf.stack([(frame - own[:, :, 0] + 0.5) / own[:, :, 1], tf.math.log(own[:, :, 1])], axis=-1)
    return place * tf.cast(path >= 0, tf.float32)[:, :, None]


def token_of_frame(ends, token_count, frames):
    """Path of given token ends: int32 [B, N] -> int32 [B, max frames]; -1 behind the end."""
    frame = tf.range(tf.reduce_max(frames))[None, :]
    frame = tf.tile(frame, [tf.shape(ends)[0], 1])
    path = tf.minimum(tf.searchsorted(ends, frame, side="right"), token_count[:, None] - 1)
    return tf.where(frame < frames[:, None], path, -1)
