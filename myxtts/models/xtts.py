"""XTTS: text and a reference of the speaker in, log-mel spectrogram out.

text → embedding → mean mel of each token → monotonic alignment search → durations
       └→ encoder → prosody of each token: duration, pitch, energy
                  └→ repeated by durations → decoder: mel, smooth → flow: noise → mel

The reference conditions every block. docs/reference/model.md has the figure and the sources.
"""

from dataclasses import dataclass
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import layers

from myxtts.audio.format import DECIBELS_PER_NEPER, MEL_BANDS, TOP_DB
from myxtts.audio.mel import SILENCE
from myxtts.batch import TTS_FEATURES
from myxtts.models import flow
from myxtts.models.alignment import (
    durations_of_path,
    frame_token_scores,
    gather_rows,
    monotonic_alignment_search,
    path_from_ends,
    position_in_token,
    random_segment,
)
from myxtts.models.layers import AttentionBlock, ConvBlock, ReferenceEncoder, length_mask, time_features
from myxtts.models.prosody import PITCH_UNIT_SEMITONES, Prosody, prosody_errors, target_prosody, token_ends
from myxtts.seeds import fold_in

# Mean and standard deviation of log-mel over speech (Matcha-TTS gives -5.54 and 2.12 for LJSpeech):
# the network works on values of about unit variance.
MEL_MEAN, MEL_STD = -5.5, 2.1


@dataclass(frozen=True)
class XTTSSize:
    channels: int
    encoder_blocks: int
    decoder_blocks: int
    flow_blocks: int
    heads: int
    latents: int


SIZES = {
    "tiny": XTTSSize(channels=144, encoder_blocks=3, decoder_blocks=4, flow_blocks=2, heads=2, latents=4),
    "small": XTTSSize(channels=256, encoder_blocks=4, decoder_blocks=5, flow_blocks=3, heads=4, latents=8),
    "normal": XTTSSize(channels=368, encoder_blocks=5, decoder_blocks=6, flow_blocks=4, heads=4, latents=16),
    "big": XTTSSize(channels=592, encoder_blocks=6, decoder_blocks=8, flow_blocks=5, heads=8, latents=32),
}
KERNEL = 5
FOLD = 2  # the decoder works on pairs of frames: half the positions, at 23 ms each
TIME_FEATURES = 64
TEMPERATURE = 0.5  # of the noise that speech starts from; with 1, what the flow has not learnt yet is heard as noise
DECODER_ERROR = 0.3  # what the decoder's mel is off by after some hundred steps, in normalised units


@dataclass(frozen=True)
class SynthesisOptions:
    """How a text is said.

    Attributes:
        speed: 2 halves every duration.
        pitch_semitones: added to the pitch.
        energy_db: added to the level of each token, which also changes its sound as a louder voice does.
        ode_steps: from noise to speech.
        guidance: how far to go beyond what text and voice ask for (Ho & Salimans 2021); 1 is plain.
        seed: of the noise.
    """

    speed: float = 1.0
    pitch_semitones: float = 0.0
    energy_db: float = 0.0
    ode_steps: int = 4
    guidance: float = 1.0
    seed: int = 0


SYNTHESIS_SIGNATURE = (
    tf.TensorSpec([None, None], tf.int32, "tokens"),
    tf.TensorSpec([None], tf.int32, "token_count"),
    tf.TensorSpec([None], tf.int32, "language"),
    tf.TensorSpec([None, None, MEL_BANDS], tf.float32, "reference"),
    tf.TensorSpec([None], tf.int32, "reference_frames"),
    tf.TensorSpec([], tf.float32, "speed"),
    tf.TensorSpec([], tf.float32, "pitch_semitones"),
    tf.TensorSpec([], tf.float32, "energy_db"),
    tf.TensorSpec([], tf.int32, "ode_steps"),
    tf.TensorSpec([], tf.float32, "guidance"),
    tf.TensorSpec([2], tf.int32, "seed"),
)
"""What speech is made of, in the order of `synthesize_mel`: texts, their voices, and a Manner."""


class SpeakerCondition(NamedTuple):
    """Who speaks, and in which language.

    Attributes:
        style: [B, C].
        latents: [B, K, C].
        level: float32 [B, 80], see `long_term_average_spectrum`; 0 without a reference.
    """

    style: tf.Tensor
    latents: tf.Tensor
    level: tf.Tensor


class FlowCondition(NamedTuple):
    """What the flow is told of each utterance.

    Attributes:
        hidden: [B, T / FOLD, C], the decoder's output.
        style: [B, C].
        mel: float32 [B, T, 80], the decoder's mel, which is the flow's first guess.
        spread: float32 [B], standard deviation of the data around that guess.
        real: bool [B, T].
    """

    hidden: tf.Tensor
    style: tf.Tensor
    mel: tf.Tensor
    spread: tf.Tensor
    real: tf.Tensor


class XTTS(keras.Model):
    """The network.

    Args:
        size: dimensions, see SIZES.
        symbols: rows of the symbol table.
        languages: rows of the language table.
        dropout: share of activations dropped in training.
        reference_dropout: share of utterances trained without their reference.
        cfg_dropout: share of utterances whose flow is trained without text and voice.
        segment_frames: of the random stretch of an utterance that decoder and flow are trained on.
        gradient_checkpointing: compute the blocks' activations again in the backward pass instead of keeping them.
    """

    BATCH_FIELDS = TTS_FEATURES
    LOSS_NAMES = ("mel", "flow", "prior", "duration", "pitch", "energy")

    def __init__(
        self,
        size: XTTSSize,
        symbols: int,
        languages: int,
        dropout: float = 0.0,
        reference_dropout: float = 0.0,
        cfg_dropout: float = 0.0,
        segment_frames: int = 128,
        gradient_checkpointing: bool = False,
    ):
        # Targets stay float32 in mixed precision; the layers cast their own inputs.
        super().__init__(name="xtts", autocast=False)
        channels, heads = size.channels, size.heads
        self.reference_dropout = reference_dropout
        self.cfg_dropout = cfg_dropout
        self.segment_frames = -(-segment_frames // FOLD) * FOLD  # a whole number of pairs
        self.gradient_checkpointing = gradient_checkpointing
        self.reference_encoder = ReferenceEncoder(channels, heads, size.latents, name="reference_encoder")
        self.language_embedding = layers.Embedding(languages, channels, name="language_embedding")
        self.symbol_embedding = layers.Embedding(symbols, channels, name="symbol_embedding")
        # The mean mel sees its own token and no other. Where it saw its neighbours, too, it could learn to predict
        # the mel of the next one, and whole alignments were a token off.
        self.token = ConvBlock(channels, 1, dropout, name="token_conv")
        self.mean_mel = layers.Dense(MEL_BANDS + 1, name="mean_mel")  # and the share of the voice's level in it
        self.voice_attention = AttentionBlock(channels, heads, dropout, rotary=False, name="voice_attention")
        self.encoder_attention = [
            AttentionBlock(channels, heads, dropout, name=f"encoder_attention_{i}") for i in range(size.encoder_blocks)
        ]
        self.encoder = self._conv_blocks("encoder", size.encoder_blocks, channels, dropout)
        self.prosody = self._conv_blocks("prosody", 2, channels, dropout, kernel=3)
        self.prosody_out = layers.Dense(4, kernel_initializer="zeros", name="prosody_out")
        self.prosody_in = layers.Dense(channels, name="prosody_in")
        self.decoder_in = layers.Dense(channels, name="decoder_in")
        self.decoder = self._conv_blocks("decoder", size.decoder_blocks, channels, dropout)
        self.decoder_out = layers.Dense(FOLD * MEL_BANDS, kernel_initializer="zeros", name="decoder_out")
        self.time_in = layers.Dense(channels, activation="silu", name="time_in")
        self.time_out = layers.Dense(channels, name="time_out")
        self.unconditional = layers.Embedding(1, channels, name="unconditional_embedding")
        self.noisy_in = layers.Dense(channels, name="noisy_in")
        self.flow = self._conv_blocks("flow", size.flow_blocks, channels, dropout)
        self.flow_out = layers.Dense(FOLD * MEL_BANDS, kernel_initializer="zeros", name="flow_out")

    @staticmethod
    def _conv_blocks(name, count, channels, dropout, kernel=KERNEL):
        return [ConvBlock(channels, kernel, dropout, name=f"{name}_conv_{i}") for i in range(count)]

    def vocabulary_variables(self) -> dict[str, tuple[str, int]]:
        """The variables with a row for each name of a table: path -> table, axis of its rows."""
        return {
            self.symbol_embedding.embeddings.path: ("symbols", 0),
            self.language_embedding.embeddings.path: ("languages", 0),
        }

    def component_layers(self) -> dict[str, list[layers.Layer]]:
        """The layers of each part that can be frozen; each layer is in one."""
        return {
            "reference_encoder": [self.reference_encoder],
            "text_encoder": [
                *(self.language_embedding, self.symbol_embedding, self.token, self.mean_mel, self.voice_attention),
                *self.encoder_attention,
                *self.encoder,
            ],
            "prosody": [*self.prosody, self.prosody_out],
            "decoder": [
                *(self.prosody_in, self.decoder_in, *self.decoder, self.decoder_out),
                *(self.time_in, self.time_out, self.unconditional, self.noisy_in, *self.flow, self.flow_out),
            ],
        }

    def call(self, batch, training=False):
        """Losses of a batch of TTS_FEATURES, each a share of the whole step's.

        The sum over all batches and replicas of a step is the mean over that step's real frames
        (tokens for the prosody): nothing is averaged over batches of different sizes.

        In training decoder and flow see a random segment of each utterance, which stands for all of its frames, and
        each row has its own noise and its own time on the way from noise to speech. Otherwise they see all frames,
        and all rows have the same noise and time.

        Returns:
            Losses, float32 scalars: `mel`, mean absolute error of the decoder's mel, and `prior`, half the squared
            error of the mean mel, both of the normalised mel; `flow`, squared error of the estimate in units of what
            it could be off (see `wiener_estimate`); `duration`, `pitch` and `energy` (see `prosody_errors`).
            Outputs: `path` int32 [B, T], the token of each frame.
        """
        seed = batch["seed"] if training else None
        target = (batch["mel"] - MEL_MEAN) / MEL_STD
        frames, token_count = batch["frames"], batch["token_count"]
        heard = keep_mask(batch["reference_frames"], self.reference_dropout, seed, "reference")
        voice = self._hear(batch["reference"], batch["reference_frames"], batch["language"], heard)
        style = voice.style
        encoded, mean, mask = self._encode(batch["tokens"], token_count, voice, seed)

        path = tf.stop_gradient(monotonic_alignment_search(frame_token_scores(target, mean), token_count, frames))
        above_level = target - voice.level[:, None, :]
        prosody, durations = target_prosody(above_level, batch["f0_hz"], path, tf.shape(mean)[1])
        errors = prosody_errors(self._prosody(encoded, style, mask, seed), prosody)

        frame = self._segment(frames, tf.shape(path)[1], seed)
        segment = tf.where(frame >= 0, tf.gather(path, tf.maximum(frame, 0), batch_dims=1), -1)
        condition = self._decode(encoded, mean, prosody, durations, segment, frame, style, seed)
        target_segment = gather_rows(target, frame)
        mel_error = tf.reduce_sum(tf.abs(condition.mel - target_segment), axis=2)
        flow_error = self._flow_errors(target_segment, condition, batch["seed"], seed)

        real = length_mask(frames, tf.shape(path)[1], tf.float32)
        real_segment = tf.cast(condition.real, tf.float32)
        frames_in_segment = tf.maximum(tf.reduce_sum(real_segment, axis=1), 1.0)
        stands_for = real_segment * (tf.cast(frames, tf.float32) / frames_in_segment)[:, None]
        per_frame = batch["step_frames"] * MEL_BANDS
        losses = {
            "mel": tf.reduce_sum(mel_error * stands_for) / per_frame,
            "flow": tf.reduce_sum(flow_error * stands_for) / per_frame,
            "prior": 0.5 * tf.reduce_sum(tf.square(gather_rows(mean, path) - target) * real) / per_frame,
        }
        token = tf.cast(mask, tf.float32)[:, :, 0]
        losses |= {name: tf.reduce_sum(error * token) / batch["step_tokens"] for name, error in errors.items()}
        return losses, {"path": path}

    def synthesize(self, tokens, token_count, language, reference, reference_frames, options: SynthesisOptions):
        """Log-mel of a batch of texts. A row is the same whatever stands beside it.

        Args:
            tokens: int32 [B, N], padded with 0; token_count: int32 [B]; language: int32 [B].
            reference: float32 [B, R, 80] log-mel of the voice.
            reference_frames: int32 [B]; a row of 0 has no reference, and is said in a voice that the model chooses.

        Returns:
            mel float32 [B, T, 80], silence behind the end; frames int32 [B]; path int32 [B, T].
        """
        return self.synthesize_mel(
            *(tokens, token_count, language, reference, reference_frames),
            tf.constant(options.speed, tf.float32),
            tf.constant(options.pitch_semitones, tf.float32),
            tf.constant(options.energy_db, tf.float32),
            tf.constant(options.ode_steps, tf.int32),
            tf.constant(options.guidance, tf.float32),
            tf.constant([options.seed, 0], tf.int32),
        )

    @tf.function(input_signature=SYNTHESIS_SIGNATURE)
    def synthesize_mel(
        self,
        tokens,
        token_count,
        language,
        reference,
        reference_frames,
        speed,
        pitch_semitones,
        energy_db,
        ode_steps,
        guidance,
        seed,
    ):
        """`speak` with a Manner in tensors."""
        heard = keep_mask(reference_frames, 0.0, None, "reference")
        voice = self._hear(reference, reference_frames, language, heard)
        style = voice.style
        encoded, mean, mask = self._encode(tokens, token_count, voice, None)
        prosody = self._prosody(encoded, style, mask, None)
        prosody = prosody._replace(
            pitch=prosody.pitch + pitch_semitones / PITCH_UNIT_SEMITONES,
            energy=prosody.energy + energy_db / (DECIBELS_PER_NEPER * MEL_STD),
        )
        ends = token_ends(prosody.log_duration, tf.cast(mask, tf.float32)[:, :, 0], speed)
        path = path_from_ends(ends, token_count)

        durations = durations_of_path(path, tf.shape(tokens)[1])
        frame = self._segment(ends[:, -1], tf.shape(path)[1], None)
        condition = self._decode(encoded, mean, prosody, durations, path, frame, style, None)
        none = self._unconditional(condition, tf.zeros([tf.shape(tokens)[0]]))

        def estimate(noisy, time):
            asked, _ = self._denoise(noisy, time, condition)
            return tf.cond(
                guidance == 1.0,
                lambda: asked,
                lambda: asked + (guidance - 1.0) * (asked - self._denoise(noisy, time, none)[0]),
            )

        noise = TEMPERATURE * flow.sample_noise(fold_in(seed, "noise"), tf.shape(condition.mel)[1:])
        mel = flow.integrate(estimate, tf.broadcast_to(noise, tf.shape(condition.mel)), ode_steps)
        mel = tf.where(condition.real[:, :, None], mel * MEL_STD + MEL_MEAN, SILENCE)
        return mel, ends[:, -1], path

    def _hear(self, reference, reference_frames, language, heard):
        """The Voice of each row."""
        normalised = (reference - MEL_MEAN) / MEL_STD
        vector, latents = self.reference_encoder(normalised, reference_frames, heard)
        level = long_term_average_spectrum(normalised, reference_frames) * heard[:, None]
        return SpeakerCondition(vector + self.language_embedding(language), latents, level)

    def _encode(self, tokens, token_count, voice, seed):
        """Encoder output [B, N, C], mean mel of each token float32 [B, N, 80], mask [B, N, 1]."""
        style, latents = voice.style, voice.latents
        encoded = self.symbol_embedding(tokens)
        mask = length_mask(token_count, tf.shape(tokens)[1], encoded.dtype)
        encoded = self.token(encoded, style, mask, seed)
        above_level, share = tf.split(tf.cast(self.mean_mel(encoded), tf.float32), [MEL_BANDS, 1], axis=2)
        mean = above_level + tf.sigmoid(share) * voice.level[:, None, :]  # silence has no share in it
        encoded = self.voice_attention(encoded, style, tf.ones_like(latents[:, :, :1]), seed, latents)
        for attention, conv in zip(self.encoder_attention, self.encoder, strict=True):
            encoded = self._block(attention, encoded, style, mask, seed)
            encoded = self._block(conv, encoded, style, mask, seed)
        return encoded, mean, mask

    def _prosody(self, encoded, style, mask, seed):
        """Predicted Prosody."""
        for conv in self.prosody:
            encoded = self._block(conv, encoded, style, mask, seed)
        log_duration, voiced, pitch, energy = tf.unstack(tf.cast(self.prosody_out(encoded), tf.float32), axis=-1)
        return Prosody(log_duration, tf.sigmoid(voiced), pitch, energy)

    def _segment(self, frames, padded, seed):
        """Numbers of the frames that the decoder sees, int32 [B, S]; -1 behind the end."""
        if seed is None:
            every = tf.range(padded)[None, :]
            return tf.where(every < frames[:, None], every, -1)
        return random_segment(frames, padded, self.segment_frames, fold_in(seed, "segment"))

    def _decode(self, encoded, mean, prosody, durations, path, frame, style, seed):
        """Condition of the frames [B, S] that `path` and `frame` name."""
        tokens = encoded + self.prosody_in(prosody.features())
        place = position_in_token(path, frame, durations)
        of_frame = tf.concat([gather_rows(tokens, path), tf.cast(place, tokens.dtype)], axis=-1)
        hidden = self.decoder_in(fold(of_frame))
        mask = tf.cast(path[:, ::FOLD, None] >= 0, hidden.dtype)
        for conv in self.decoder:
            hidden = self._block(conv, hidden, style, mask, seed)
        mel = gather_rows(mean, path) + unfold(self.decoder_out(hidden), tf.shape(path)[1])
        return FlowCondition(hidden, style, mel, tf.fill(tf.shape(path)[:1], DECODER_ERROR), path >= 0)

    def _unconditional(self, condition, keep):
        """The condition where `keep`, float32 [B], is 1; where it is 0, no text, no prosody and no voice."""
        hidden_keep = tf.cast(keep, condition.hidden.dtype)[:, None]
        nothing = self.unconditional(tf.zeros([1], tf.int32))
        return condition._replace(
            hidden=condition.hidden * hidden_keep[:, :, None],
            style=condition.style * hidden_keep + nothing * (1 - hidden_keep),
            mel=condition.mel * keep[:, None, None],
            spread=condition.spread * keep + (1 - keep),  # that of the normalised mel, around 0
        )

    def _flow_errors(self, target, condition, batch_seed, seed):
        """The flow's squared error of each frame in its own unit, float32 [B, S].

        Its gradient does not reach the decoder, whose mel would be pulled from a median to a mean.
        """
        condition = tf.nest.map_structure(tf.stop_gradient, condition)
        rows, *size = tf.unstack(tf.shape(target))
        noise_seed, time_seed = fold_in(batch_seed, "noise"), fold_in(batch_seed, "time")
        if seed is None:
            noise, time = flow.sample_noise(noise_seed, size), tf.repeat(flow.sample_times(time_seed, 1), rows)
        else:
            noise, time = flow.sample_noise(noise_seed, [rows, *size]), flow.sample_times(time_seed, rows)
        condition = self._unconditional(condition, keep_mask(tf.ones([rows]), self.cfg_dropout, seed, "condition"))
        estimate, unit = self._denoise(flow.interpolate_path(noise, target, time), time, condition, seed)
        return tf.reduce_sum(tf.square((estimate - target) / unit), axis=2)

    def _denoise(self, noisy, time, condition, seed=None):
        """Estimate of the normalised mel from `noisy` at `time`: float32 [B, T, 80]; and its unit, [B, 1, 1]."""
        estimate, unit, news = flow.wiener_estimate(noisy, time, condition.mel, condition.spread)
        hidden = condition.hidden + self.noisy_in(fold(news * tf.cast(condition.real, tf.float32)[:, :, None]))
        style = condition.style + self.time_out(self.time_in(time_features(time, TIME_FEATURES)))
        mask = tf.cast(condition.real[:, ::FOLD, None], hidden.dtype)
        for conv in self.flow:
            hidden = self._block(conv, hidden, style, mask, seed)
        return estimate + unit * unfold(self.flow_out(hidden), tf.shape(noisy)[1]), unit

    def _block(self, block, hidden, style, mask, seed):
        """The block's output; in training, where asked for, without keeping what is inside."""
        if seed is None or not self.gradient_checkpointing:
            return block(hidden, style, mask, seed)
        return keras.remat(lambda hidden, style: block(hidden, style, mask, seed))(hidden, style)


def long_term_average_spectrum(mel, frames):
    """Mean of the loud frames of normalised log-mels [B, T, 80] of `frames` int32 [B]: float32 [B, 80], 0 without any.

    The long-term average spectrum is most of what tells speakers apart, and one sentence shows it: what the network
    says lies around that of the reference, so that it need not have heard such a voice before.
    """
    real = length_mask(frames, tf.shape(mel)[1], tf.float32)
    level = tf.reduce_mean(mel, axis=2, keepdims=True)
    loudest = tf.reduce_max(tf.where(real > 0.0, level, level.dtype.min), axis=1, keepdims=True)
    loud = real * tf.cast(level > loudest - TOP_DB / (DECIBELS_PER_NEPER * MEL_STD), tf.float32)
    return tf.reduce_sum(mel * loud, axis=1) / tf.maximum(tf.reduce_sum(loud, axis=1), 1.0)


def keep_mask(present, dropped, seed, name):
    """Float32 [B]: 1 where `present` [B] is not 0, but for a random share `dropped` where there is a seed."""
    keep = tf.cast(present > 0, tf.float32)
    if seed is None or not dropped:
        return keep
    drawn = tf.random.stateless_uniform(tf.shape(keep), fold_in(seed, name))
    return keep * tf.cast(drawn >= dropped, tf.float32)


def fold(x):
    """FOLD neighbours in one place: [B, T, D] -> [B, T / FOLD, FOLD · D], the last ones filled with zeros."""
    pairs = (tf.shape(x)[1] + FOLD - 1) // FOLD
    x = tf.pad(x, [[0, 0], [0, pairs * FOLD - tf.shape(x)[1]], [0, 0]])
    return tf.reshape(x, [tf.shape(x)[0], pairs, FOLD * x.shape[2]])


def unfold(x, length):
    """The inverse of `fold`, in float32: [B, P, FOLD · D] -> [B, length, D]."""
    x = tf.reshape(x, [tf.shape(x)[0], FOLD * tf.shape(x)[1], x.shape[2] // FOLD])
    return tf.cast(x[:, :length], tf.float32)
