"""XTTS: text and a reference of the speaker in, log-mel spectrogram out.

text → aligner with the recording's mel → monotonic alignment search → durations
   └→ embedding → mean mel of each token ────────┘
            └→ encoder → distribution of each token's prosody: duration, pitch, energy
                     └→ repeated by durations → decoder: smooth mel → flow: noise → mel

Every block is conditioned on the reference. docs/reference/model.md has the figure and the sources.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import keras
import tensorflow as tf

from myxtts.audio.format import DECIBELS_PER_NEPER, mel_bands
from myxtts.audio.mel import SILENCE
from myxtts.base.portable_ops import fold_in, grid_padding, stateless_normal, stateless_uniform
from myxtts.config.synthesis import SynthesisOptions
from myxtts.devicefeed.contract import tensor_specs
from myxtts.tasks import layers
from myxtts.tasks.layers import MEL_MEAN, MEL_STD, normalised_mel
from myxtts.tasks.tts import alignment, flow, prosody
from myxtts.tasks.tts.aligner import Aligner
from myxtts.tasks.tts.alignment import gather_rows
from myxtts.tasks.tts.contract import TAUGHT_TTS_FEATURES, TTS_FEATURES


@dataclass(frozen=True)
class XTTSSize:
    channels: int
    encoder_blocks: int
    decoder_blocks: int
    flow_blocks: int
    heads: int
    latents: int


SIZES = {
    "tiny": XTTSSize(144, 3, 4, 2, heads=2, latents=4),
    "small": XTTSSize(256, 4, 5, 3, heads=4, latents=8),
    "normal": XTTSSize(368, 5, 6, 4, heads=4, latents=16),
    "big": XTTSSize(592, 6, 8, 5, heads=8, latents=32),
}
KERNEL_SIZE = 5
# Frames stacked into one decoder position (Wang et al. 2017, Tacotron): 23 ms each.
REDUCTION_FACTOR = 2
TIME_EMBEDDING = 64
# scale of synthesis' initial noise; with 1, the error of a half-trained flow is audible as noise
TEMPERATURE = 0.5
# The predictor of prosody has five times the dropout of other blocks, but at most half, as in
# FastSpeech 2 (Ren et al. 2021). An hour of speech has few sentences to learn their melody from.
PROSODY_DROPOUT = 5.0
# The decoder's mel has this error after some hundred steps, in normalised units.
DECODER_STD = 0.3


TEXT_INPUTS = "tokens", "token_count", "language", "reference", "reference_frames"
"""The fields of TTS_FEATURES that synthesis needs: texts, languages and references."""

SYNTHESIS_SIGNATURE = (
    *(
        tf.TensorSpec([None] * len(TTS_FEATURES[name].dims), TTS_FEATURES[name].dtype, name)
        for name in TEXT_INPUTS
    ),
    tf.TensorSpec([], tf.float32, "accent_strength"),
    tf.TensorSpec([], tf.float32, "speed"),
    tf.TensorSpec([], tf.float32, "pitch_semitones"),
    tf.TensorSpec([], tf.float32, "energy_db"),
    tf.TensorSpec([], tf.float32, "variety"),
    tf.TensorSpec([], tf.int32, "ode_steps"),
    tf.TensorSpec([], tf.float32, "guidance"),
    tf.TensorSpec([2], tf.int32, "seed"),
)
"""Input signature of `XTTS.synthesize_mel`: TEXT_INPUTS and SynthesisOptions."""


def option_tensors(options: SynthesisOptions) -> list[tf.Tensor]:
    """Return options on the current device, in the order of SYNTHESIS_SIGNATURE."""
    values = vars(options) | {"seed": [options.seed, 0]}
    specs = SYNTHESIS_SIGNATURE[len(TEXT_INPUTS) :]
    return [tf.constant(values[spec.name], spec.dtype) for spec in specs]


class SpeakerCondition(NamedTuple):
    """Conditioning on speaker and language."""

    voice: tf.Tensor  # [B, C], speaker embedding
    style: tf.Tensor  # [B, C], with the language embedding
    latents: tf.Tensor  # [B, K, C], of the reference
    average_spectrum: tf.Tensor  # [B, 80], see `long_term_spectrum`; 0 without a reference


class FlowCondition(NamedTuple):
    """Conditioning of the flow."""

    hidden: tf.Tensor  # [B, T / REDUCTION_FACTOR, C], the decoder's output
    voice: tf.Tensor  # [B, C]
    mel: tf.Tensor  # float32 [B, T, 80], the decoder's mel, which is the flow's prior
    mel_std: tf.Tensor  # float32 [B], standard deviation of the data around `mel`
    mask: tf.Tensor  # bool [B, T], true on real frames


class XTTS(keras.Model):
    """The XTTS network.

    `alignment_search` and `sum_over_paths` may be replaced by others with the same results before
    `call` is traced.

    Args:
        symbols, languages: rows of the embeddings.
        reference_dropout: fraction of utterances trained without their reference.
        cfg_dropout: fraction of utterances whose flow is trained without its condition
            (classifier-free guidance).
        segment_frames: length of the random segment of an utterance on which decoder and flow are
            trained; rounded up to a multiple of REDUCTION_FACTOR.
        taught: batches have the path of each row, so that nothing is aligned.
        contexts: the aligner has what utilities/base/aligner.py has taught one.
    """

    LOSS_NAMES = ("mel", "flow", "prior", "alignment", "duration", "pitch", "energy")
    OBSERVED_NAMES = ("alignment_evidence", "one_frame_tokens")

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
        taught: bool = False,
        contexts: bool = False,
    ):
        # Targets stay float32 in mixed precision; the layers cast their own inputs.
        super().__init__(name="xtts", autocast=False)
        self.reference_dropout, self.cfg_dropout = reference_dropout, cfg_dropout
        self.segment_frames = -(-segment_frames // REDUCTION_FACTOR) * REDUCTION_FACTOR
        self.gradient_checkpointing = gradient_checkpointing
        self.alignment_search = alignment.search_by_frames
        self.sum_over_paths = alignment.sum_over_paths
        self.BATCH_FIELDS = TAUGHT_TTS_FEATURES if taught else TTS_FEATURES
        channels, heads = size.channels, size.heads
        mel_outputs, zeros = REDUCTION_FACTOR * mel_bands(), {"kernel_initializer": "zeros"}
        prosody_dropout = min(PROSODY_DROPOUT * dropout, 0.5)

        def attention(name, dropout=dropout, **options):
            return layers.AttentionBlock(channels, heads, dropout, name=name, **options)

        def convs(part, count, kernel=KERNEL_SIZE, dropout=dropout):
            names = [f"{part}_conv_{i}" for i in range(count)]
            return [layers.ConvBlock(channels, kernel, dropout, name=name) for name in names]

        self.reference_encoder = layers.ReferenceEncoder(
            channels, heads, size.latents, name="reference_encoder"
        )
        self.language_embedding = layers.Embedding(languages, channels, name="language_embedding")
        self.symbol_embedding = layers.Embedding(symbols, channels, name="symbol_embedding")
        # The mean mel sees its own token only: with neighbours in view it could learn their mels.
        self.token_conv = layers.ConvBlock(channels, 1, dropout, name="token_conv")
        # One output more is the weight of the average spectrum, which silence learns to be 0.
        self.mean_mel = layers.Dense(mel_bands() + 1, name="mean_mel")
        self.voice_attention = attention("voice_attention", rotary=False)
        names = [f"encoder_attention_{i}" for i in range(size.encoder_blocks)]
        self.encoder_attention = [attention(name) for name in names]
        self.encoder_convs = convs("encoder", size.encoder_blocks)
        self.aligner = Aligner(symbols, contexts, name="aligner")
        self.prosody_attention = attention("prosody_attention", prosody_dropout)
        self.prosody_convs = convs("prosody", 2, 3, prosody_dropout)
        self.prosody_out = layers.Dense(prosody.OUTPUTS, name="prosody_out", **zeros)
        self.pitch_range = layers.Dense(2, name="pitch_range", **zeros)
        self.prosody_in = layers.Dense(channels, name="prosody_in")
        self.decoder_in = layers.Dense(channels, name="decoder_in")
        self.decoder_convs = convs("decoder", size.decoder_blocks)
        self.decoder_out = layers.Dense(mel_outputs, name="decoder_out", **zeros)
        self.time_in = layers.Dense(channels, activation="silu", name="time_in")
        self.time_out = layers.Dense(channels, name="time_out")
        self.no_condition = layers.Embedding(1, channels, name="unconditional_embedding")
        self.noisy_in = layers.Dense(channels, name="noisy_in")
        self.flow_convs = convs("flow", size.flow_blocks)
        self.flow_out = layers.Dense(mel_outputs, name="flow_out", **zeros)

    def vocabulary_variables(self) -> dict[str, tuple[str, int]]:
        """Return the variables with a row for each entry: path -> (vocabulary, axis)."""
        return {
            self.symbol_embedding.embeddings.path: ("symbols", 0),
            self.aligner.symbol_embedding.embeddings.path: ("symbols", 0),
            self.language_embedding.embeddings.path: ("languages", 0),
        }

    def component_layers(self) -> dict[str, list[keras.layers.Layer]]:
        """Return the layers of each component that --freeze names; each layer is in one."""
        text = [self.language_embedding, self.symbol_embedding, self.token_conv, self.mean_mel]
        encoder = [self.voice_attention, *self.encoder_attention, *self.encoder_convs, self.aligner]
        decoder = [self.prosody_in, self.decoder_in, *self.decoder_convs, self.decoder_out]
        time = [self.time_in, self.time_out, self.no_condition]
        prosody_out = [self.prosody_out, self.pitch_range]
        return {
            "reference_encoder": [self.reference_encoder],
            "text_encoder": [*text, *encoder],
            "prosody": [self.prosody_attention, *self.prosody_convs, *prosody_out],
            "decoder": [*decoder, *time, self.noisy_in, *self.flow_convs, self.flow_out],
        }

    def build(self, shape):
        """Create no variables; see `CompositeLayer`."""

    # 1. References and texts are encoded: speaker, tokens, and a rough mean mel for each token.
    # 2. The aligner scores tokens by frames, and the search finds the token of each frame: the
    # path.
    # 3. The path gives the recorded prosody of each token, which the predictor learns.
    # 4. A random segment of the path is decoded from the tokens with their recorded prosody.
    # 5. The flow learns to turn noise into the recorded mel of that segment, given the decoder's.
    # 6. Each loss is weighted so that all frames of a step count equally, whatever their batch.
    def call(self, batch, training=False):
        """Compute the losses of a batch of BATCH_FIELDS, as fractions of the whole step's.

        Their sum over all batches and replicas of a step is the mean over that step's real frames
        (tokens for the prosody losses).

        In training, decoder and flow see a random segment of each utterance, and each row has its
        own noise and flow time. Otherwise they see all frames, and all rows share noise and time.

        Returns:
            Losses, float32 scalars: `mel`, mean absolute error of the decoder's mel; `prior`, half
            the squared error of the mean mel, both on the normalised mel; `flow`, squared error of
            the flow's estimate in units of its expected deviation (see `wiener_estimate`);
            `alignment` and its evidence, see `Aligner`; and others, see `ProsodyDistribution`.
            Outputs: `path` int64 [B, T], the token of each frame.
        """
        seed = batch["seed"] if training else None
        target = normalised_mel(batch["mel"])
        speaker, encoded, mean, mask = self.encode_texts(batch, seed)
        scores, prior = self.score_tokens(batch)
        path = self.search_path(batch, scores, mean)
        token_prosody, durations = self.recorded_prosody(batch, path, speaker)
        frames = batch["frames"]
        row_frames = tf.cast(frames, tf.float32)
        real = tf.cast(path >= 0, tf.float32)
        # Rows of a teacher differ in length; they weigh as much as the utterance they replace.
        if "path" in batch:
            spoken = layers.sum_over(real, 1)
            frames = tf.cast(spoken, tf.int64)
            real *= (row_frames / tf.maximum(spoken, 1.0))[:, None]
        predicted = self.predict_prosody(encoded, speaker, mask, seed)
        by_token = predicted.errors(token_prosody)
        by_token["one_frame_tokens"] = tf.cast(durations <= 1.0, tf.float32)
        frame = alignment.frame_indices(path)
        if training:
            padded, segment_seed = tf.shape(path)[1], fold_in(seed, "segment")
            frame = alignment.random_segment(frames, padded, self.segment_frames, segment_seed)
        segment_path = tf.where(frame >= 0, tf.gather(path, tf.maximum(frame, 0), batch_dims=1), -1)
        condition = self.decode(
            encoded, mean, token_prosody, durations, segment_path, frame, speaker.voice, seed
        )
        target_segment = gather_rows(target, frame)
        mel_error = layers.sum_over(tf.abs(condition.mel - target_segment), 2)
        flow_error = self._flow_errors(target_segment, condition, batch["seed"], seed)
        # The frames of a segment stand for all frames of their utterance.
        real_segment = tf.cast(condition.mask, tf.float32)
        frames_in_segment = tf.maximum(tf.reduce_sum(real_segment, axis=1), 1.0)
        weight = real_segment * (row_frames / frames_in_segment)[:, None]
        step_values = batch["step_frames"] * mel_bands()
        losses = {
            "mel": tf.reduce_sum(mel_error * weight) / step_values,
            "flow": tf.reduce_sum(flow_error * weight) / step_values,
        }
        token_weight = _token_weights(batch, mask)
        prior_error = tf.square(gather_rows(mean, path) - target)
        losses["prior"] = 0.5 * tf.reduce_sum(prior_error * real[:, :, None]) / step_values
        losses |= self._alignment_losses(batch, scores, prior, path)
        for name, value in by_token.items():
            losses[name] = tf.reduce_sum(value * token_weight) / batch["step_tokens"]
        return losses, {"path": path}

    def synthesize(self, *texts_and_options):
        """Synthesize the log-mels of TEXT_INPUTS with SynthesisOptions, the last argument.

        A row of 0 reference frames gets the model's learned default voice. Returns the mel float32
        [B, T, 80], padded with silence; frames int32 [B]; and path int32 [B, T].
        """
        *texts, options = texts_and_options
        return self.synthesize_mel(*texts, *option_tensors(options))

    @tf.function(input_signature=SYNTHESIS_SIGNATURE, autograph=False)
    def synthesize_mel(self, *inputs):
        """Do the same as `synthesize`, with the options as tensors: see SYNTHESIS_SIGNATURE."""
        texts = dict(zip(TEXT_INPUTS, inputs, strict=False))
        texts["reference"].set_shape([None, None, mel_bands()])
        keep = keep_mask(texts["reference_frames"], 0.0, None, "reference")
        speaker = self.speaker_condition(texts, keep)
        strength, *options = inputs[len(TEXT_INPUTS) :]
        embed = self.language_embedding
        mean = tf.reduce_mean(embed(tf.range(embed.input_dim)), axis=0)
        further = tf.cast(strength - 1.0, mean.dtype) * (embed(texts["language"]) - mean)
        speaker = speaker._replace(style=speaker.style + further)
        return self.mel_of_texts(speaker, texts, *options)

    # The texts are encoded as in training. Prosody is drawn from its distribution, and the caller's
    # pitch and energy are added. Rounded ends of tokens make the path that in training comes from
    # the recording. The decoder turns it into a smooth mel, and the flow, from noise, into the
    # final one. Frames are padded to a grid, so that oneDNN prepares few shapes, and cut to the
    # longest row at the end.
    def mel_of_texts(
        self,
        speaker,
        texts,
        speed,
        pitch_semitones,
        energy_db,
        variety,
        ode_steps,
        guidance,
        seed,
        temperature=TEMPERATURE,
        padding=grid_padding,
    ):
        """Do the same as `synthesize` for a SpeakerCondition, with options as tensors or numbers.

        `texts` has `tokens` and `token_count`, `temperature` scales the noise; see `grid_padding`.
        """
        encoded, mean, mask = self._encode(texts, speaker)
        predicted = self.predict_prosody(encoded, speaker, mask)
        spoken = predicted.sample(variety, fold_in(seed, "prosody"), texts["tokens"])
        spoken = spoken._replace(
            pitch=spoken.pitch + pitch_semitones / prosody.PITCH_UNIT_SEMITONES,
            energy=spoken.energy + energy_db / (DECIBELS_PER_NEPER * MEL_STD),
        )
        real_token = tf.cast(mask, tf.float32)[:, :, 0]
        ends = tf.cast(prosody.token_ends(spoken.log_duration, real_token, speed), tf.int32)
        frames = ends[:, -1]
        longest = tf.reduce_max(frames)
        path = alignment.path_from_ends(ends, texts["token_count"], longest + padding(longest))

        durations = alignment.durations_of_path(path, tf.shape(mean)[1])
        frame = alignment.frame_indices(path)
        condition = self.decode(encoded, mean, spoken, durations, path, frame, speaker.voice)
        noise = stateless_normal(tf.shape(condition.mel)[1:], fold_in(seed, "noise"))
        # Without variety, the flow begins at its mean as well.
        scale = temperature * tf.minimum(variety, 1.0)
        noise = tf.broadcast_to(scale * noise, tf.shape(condition.mel))
        mel = self.solve_flow(condition, noise, ode_steps, guidance)
        return mel[:, :longest], frames, path[:, :longest]

    def align(self, batch):
        """Align the texts of TTS_FEATURES with their recordings; return the path, int64 [B, T]."""
        scores, _ = self.score_tokens(batch)
        *_, mean, _ = self.encode_texts(batch)
        return self.search_path(batch, scores, mean)

    @cached_property
    def compiled_align(self):
        signature = [tensor_specs(self.BATCH_FIELDS)]
        return tf.function(self.align, input_signature=signature, autograph=False)

    def encode_texts(self, batch, seed=None):
        """Encode texts and references; a seed turns on dropout.

        Returns SpeakerCondition, encoder output [B, N, C], mean mel of each token float32 [B, N,
        80], and mask [B, N, 1].
        """
        keep = keep_mask(batch["reference_frames"], self.reference_dropout, seed, "reference")
        speaker = self.speaker_condition(batch, keep)
        return speaker, *self._encode(batch, speaker, seed)

    def solve_flow(self, condition, noise, ode_steps, guidance):
        """Solve the flow from noise, float32 [B, T, 80]; return the log-mel, padded with silence.

        `ode_steps` and `guidance` are tensors or numbers; see `SynthesisOptions`.
        """
        no_condition = self._drop_condition(condition, tf.zeros(tf.shape(noise)[:1]))

        # Classifier-free guidance (Ho & Salimans 2021).
        def guided_estimate(noisy, time):
            conditional, _ = self._denoise(noisy, time, condition)

            def guide():
                unconditional, _ = self._denoise(noisy, time, no_condition)
                return conditional + (guidance - 1.0) * (conditional - unconditional)

            if isinstance(guidance, float):
                return conditional if guidance == 1.0 else guide()
            return tf.cond(guidance == 1.0, lambda: conditional, guide)

        mel = flow.euler_solve(guided_estimate, noise, ode_steps)
        # Guidance enlarges all contrasts: a sentence, loud sounds above all, would be 4 dB louder.
        mel += _log_level(condition.mel, condition.mask) - _log_level(mel, condition.mask)
        return tf.where(condition.mask[:, :, None], mel * MEL_STD + MEL_MEAN, SILENCE)

    def speaker_condition(self, batch, keep):
        """Return the SpeakerCondition; rows where `keep`, float32 [B], is 0 have no reference."""
        reference, frames = normalised_mel(batch["reference"]), batch["reference_frames"]
        average_spectrum, deviation = layers.long_term_spectrum(reference, frames)
        statistics = layers.spectral_statistics(average_spectrum, deviation)
        embedding, latents = self.reference_encoder(reference, frames, statistics, keep)
        style = embedding + self.language_embedding(batch["language"])
        return SpeakerCondition(embedding, style, latents, average_spectrum * keep[:, None])

    def _encode(self, batch, speaker, seed=None):
        style, latents = speaker.style, speaker.latents
        encoded = self.symbol_embedding(batch["tokens"])
        mask = layers.length_mask(batch["token_count"], tf.shape(batch["tokens"])[1], encoded.dtype)
        encoded = self.token_conv(encoded, style, mask, seed)
        mean = tf.cast(self.mean_mel(encoded), tf.float32)
        relative_mean, weight = tf.split(mean, [mel_bands(), 1], axis=2)
        # Silence learns weight 0.
        mean = relative_mean + tf.sigmoid(weight) * speaker.average_spectrum[:, None, :]
        all_latents = tf.ones_like(latents[:, :, :1])
        encoded = self.voice_attention(encoded, style, all_latents, seed, latents)
        for attention, conv in zip(self.encoder_attention, self.encoder_convs, strict=True):
            encoded = self._checkpointed(attention, encoded, style, mask, seed)
            encoded = self._checkpointed(conv, encoded, style, mask, seed)
        return encoded, mean, mask

    def score_tokens(self, batch):
        """Return the log-probabilities of tokens by frames, and those of the prior: `Aligner`."""
        real = layers.length_mask(batch["frames"], tf.shape(batch["mel"])[1], tf.float32)[:, :, 0]
        if "path" in batch:
            real = tf.cast(batch["path"] >= 0, tf.float32)
        mel = normalised_mel(batch["mel"])
        return self.aligner(mel, real, batch["tokens"], batch["token_count"])

    def _alignment_losses(self, batch, scores, prior, path):
        real = tf.cast(path >= 0, tf.float32)
        losses = alignment.path_losses(scores, real, batch["token_count"], self.sum_over_paths)
        evidence = alignment.evidence(scores, prior, path)
        evidence *= tf.cast(batch["frames"], tf.float32)
        figures = {"alignment": losses, "alignment_evidence": evidence}
        return {name: tf.reduce_sum(x) / batch["step_frames"] for name, x in figures.items()}

    def search_path(self, batch, scores, mean):
        """Return the path that the batch has, or else the best one: int64 [B, T].

        The aligner's scores know phonemes, and the mean mels of the tokens where each one ends.
        """
        if "path" in batch:
            return batch["path"]
        scores += alignment.mean_mel_scores(normalised_mel(batch["mel"]), mean)
        scores = tf.stop_gradient(scores)
        path = self.alignment_search(scores, batch["token_count"], batch["frames"])
        return tf.cast(path, tf.int64)

    def recorded_prosody(self, batch, path, speaker):
        """Return the Prosody of each token of a path, and its frames, float32 [B, N]."""
        relative_mel = normalised_mel(batch["mel"]) - speaker.average_spectrum[:, None, :]
        tokens = tf.shape(batch["tokens"])[1]
        return prosody.target_prosody(relative_mel, batch["f0_hz"], path, tokens)

    def predict_prosody(self, encoded, speaker, mask, seed=None):
        """Return the ProsodyDistribution of tokens of a SpeakerCondition.

        Its losses, larger than all others on people, do not reach the encoder. They reach the
        reference encoder: nothing else asks it how high somebody speaks, since the decoder knows.
        """
        encoded, style = tf.stop_gradient(encoded), speaker.style
        hidden = self._checkpointed(self.prosody_attention, encoded, style, mask, seed)
        for conv in self.prosody_convs:
            hidden = self._checkpointed(conv, hidden, style, mask, seed)
        outputs = tf.cast(self.prosody_out(hidden), tf.float32)
        # Without the language: a speaker keeps the range in one that he never spoke.
        pitch_range = tf.cast(self.pitch_range(speaker.voice), tf.float32)
        return prosody.ProsodyDistribution.of_outputs(outputs, pitch_range)

    def decode(self, encoded, mean, token_prosody, durations, path, frame, voice, seed=None):
        """Decode frames [B, S], given tokens `path` and indices `frame`; return FlowCondition.

        It knows the voice without the language, which would tell it who speaks where a language has
        few speakers.
        """
        tokens = encoded + self.prosody_in(token_prosody.features())
        position = alignment.position_in_token(path, frame, durations)
        inputs = [gather_rows(tokens, path), tf.cast(position, tokens.dtype)]
        hidden = self.decoder_in(stack_frames(tf.concat(inputs, axis=-1)))
        # LiteRT has no slice that adds an axis behind two others; only whole ones are replaced.
        mask = tf.cast(tf.expand_dims(path[:, ::REDUCTION_FACTOR], 2) >= 0, hidden.dtype)
        for conv in self.decoder_convs:
            hidden = self._checkpointed(conv, hidden, voice, mask, seed)
        mel = gather_rows(mean, path) + unstack_frames(self.decoder_out(hidden), tf.shape(path)[1])
        mel_std = tf.fill(tf.shape(path)[:1], DECODER_STD)
        return FlowCondition(hidden, voice, mel, mel_std, path >= 0)

    def _drop_condition(self, condition, keep):
        """Remove text, prosody and speaker from rows where `keep`, float32 [B], is 0."""
        keep_hidden = tf.cast(keep, condition.hidden.dtype)[:, None]
        no_style = self.no_condition(tf.zeros([1], tf.int32))
        return condition._replace(
            hidden=condition.hidden * keep_hidden[:, :, None],
            voice=condition.voice * keep_hidden + no_style * (1 - keep_hidden),
            mel=condition.mel * keep[:, None, None],
            # The normalised mel has mean 0 and deviation 1.
            mel_std=condition.mel_std * keep + (1 - keep),
        )

    def _flow_errors(self, target, condition, batch_seed, seed):
        """Return the squared error of the flow's estimate, in its unit: float32 [B, S].

        The gradient stops before the decoder. Otherwise it would pull the decoder's mel from a
        median to a mean.
        """
        condition = tf.nest.map_structure(tf.stop_gradient, condition)
        rows, *size = tf.unstack(tf.shape(target))
        noise_seed, time_seed = fold_in(batch_seed, "noise"), fold_in(batch_seed, "time")
        if seed is None:
            noise = stateless_normal(size, noise_seed)
            time = tf.repeat(flow.sample_times(time_seed, 1), rows)
        else:
            noise = stateless_normal([rows, *size], noise_seed)
            time = flow.sample_times(time_seed, rows)
        keep = keep_mask(tf.ones([rows]), self.cfg_dropout, seed, "condition")
        condition = self._drop_condition(condition, keep)
        noisy = flow.interpolate_path(noise, target, time)
        estimate, unit = self._denoise(noisy, time, condition, seed)
        return layers.sum_over(tf.square((estimate - target) / unit), 2)

    def _denoise(self, noisy, time, condition, seed=None):
        """Estimate the mel from `noisy` at `time`: float32 [B, T, 80], and its unit [B, 1, 1]."""
        estimate, unit, innovation = flow.wiener_estimate(
            noisy, time, condition.mel, condition.mel_std
        )
        innovation *= tf.cast(condition.mask, tf.float32)[:, :, None]
        hidden = condition.hidden + self.noisy_in(stack_frames(innovation))
        embedding = layers.time_embedding(time, TIME_EMBEDDING)
        style = condition.voice + self.time_out(self.time_in(embedding))
        # No slice that adds the axis: as in `decode`.
        mask = tf.cast(tf.expand_dims(condition.mask[:, ::REDUCTION_FACTOR], 2), hidden.dtype)
        for conv in self.flow_convs:
            hidden = self._checkpointed(conv, hidden, style, mask, seed)
        return estimate + unit * unstack_frames(self.flow_out(hidden), tf.shape(noisy)[1]), unit

    def _checkpointed(self, block, hidden, style, mask, seed):
        """Apply a block, without keeping activations in training with gradient checkpointing."""
        if seed is None or not self.gradient_checkpointing:
            return block(hidden, style, mask, seed)
        return keras.remat(lambda hidden, style: block(hidden, style, mask, seed))(hidden, style)


def build_xtts(size: str, symbols: int, languages: int, precision="float32", **settings) -> XTTS:
    """Build XTTS of a key of SIZES; `settings` are for training only. See `build_network`."""
    return layers.build_network(
        precision, lambda: XTTS(SIZES[size], symbols, languages, **settings)
    )


def _token_weights(batch, mask):
    """Return the weight of each token in the prosody losses: mask [B, N, 1] -> float32 [B, N]."""
    weights = tf.cast(mask, tf.float32)[:, :, 0]
    # A teacher's text, however long, weighs as much as the utterance that it replaces.
    if "path" in batch:
        token_count = tf.maximum(tf.cast(batch["token_count"], tf.float32), 1.0)
        weights *= (tf.cast(batch["utterance_tokens"], tf.float32) / token_count)[:, None]
    return weights


def _log_level(mel, mask):
    """Return the log of the summed magnitudes of real frames, in the mel's unit.

    Normalised log-mel, float32 [B, T, 80] -> [B, 1, 1].
    """
    log = tf.where(mask[:, :, None], MEL_STD * mel, -1e9)
    # As in tf.reduce_logsumexp, some of whose operations the exports lack.
    largest = tf.reduce_max(log, axis=[1, 2], keepdims=True)
    total = tf.reduce_sum(tf.exp(log - largest), axis=[1, 2], keepdims=True)
    return (largest + tf.math.log(total)) / MEL_STD


def keep_mask(present, rate, seed, name):
    """Return float32 [B]: 1 where `present` > 0, but for a random fraction `rate` with a seed."""
    keep = tf.cast(present > 0, tf.float32)
    if seed is None or not rate:
        return keep
    uniform = stateless_uniform(tf.shape(keep), fold_in(seed, name))
    return keep * tf.cast(uniform >= rate, tf.float32)


def stack_frames(x):
    """Stack R = REDUCTION_FACTOR frames into each position: [B, T, D] -> [B, P, R · D]."""
    positions = (tf.shape(x)[1] + REDUCTION_FACTOR - 1) // REDUCTION_FACTOR
    x = tf.pad(x, [[0, 0], [0, positions * REDUCTION_FACTOR - tf.shape(x)[1]], [0, 0]])
    return tf.reshape(x, [tf.shape(x)[0], positions, REDUCTION_FACTOR * x.shape[2]])


def unstack_frames(x, length):
    """Invert `stack_frames`, in float32: [B, P, R · D] -> [B, length, D]."""
    shape = [tf.shape(x)[0], REDUCTION_FACTOR * tf.shape(x)[1], x.shape[2] // REDUCTION_FACTOR]
    return tf.cast(tf.reshape(x, shape)[:, :length], tf.float32)
