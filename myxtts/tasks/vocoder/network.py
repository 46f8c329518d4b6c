"""The vocoder: log-mel spectrogram in, wave out.

log-mel ┬> pitch head ─> F0, phase ─> pulse train ┐
        │                              noise ─────┴> STFT ─> filters ─> sum ─> inverse STFT ─> mel
        projections ─> wave └> blocks ─────────────────────────────────────────────┘

A harmonic-plus-noise model in the STFT domain. docs/reference/model.md has the sources.

In training the pulses have the phase of the recording, so that the wave can be compared with it
sample by sample. In synthesis the pitch head estimates the phase from the mel: a window of 46 ms
holds few periods of a low voice, and the mel depends slightly on where they are. Shape legend: B
batch, T frames, C channels, R filters in a frame, F bins of a filter.
"""

from dataclasses import dataclass
from functools import cache

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from myxtts.audio import spectral
from myxtts.audio.excitation import interpolate_unvoiced, pulse_train, smoothed_phasor
from myxtts.audio.format import (
    FFT_SAMPLES,
    HOP_SAMPLES,
    LOG_FLOOR,
    PAD_SAMPLES,
    frames_in,
    mel_bands,
)
from myxtts.audio.loudness import limited
from myxtts.audio.mel import SILENCE, inverse_mel_filters, mel_filters
from myxtts.audio.pitch import F0_MAX_HZ, F0_MIN_HZ
from myxtts.base.portable_ops import fold_in, stateless_normal
from myxtts.tasks.layers import (
    CompositeLayer,
    Dense,
    LayerNormalization,
    build_network,
    mean_of_rows,
    sum_over,
)
from myxtts.tasks.vocoder.contract import CONTEXT_FRAMES, TAUGHT_VOCODER_FEATURES, VOCODER_FEATURES

# Window of the filters, half that of the mel: they change more often than the mel.
FILTER_SAMPLES = 512
FILTERS_PER_FRAME = spectral.OVERLAP * HOP_SAMPLES // FILTER_SAMPLES
BINS = FILTER_SAMPLES // 2 + 1
EDGE_SAMPLES = (spectral.OVERLAP - 1) * FILTER_SAMPLES // (2 * spectral.OVERLAP)  # at each end
WINDOW_NORM = float(np.sqrt(np.square(np.hanning(FILTER_SAMPLES)).sum()))  # of noise of power 1
# Rough: the network corrects it.
ENVELOPE_OFFSET = 0.5 * float(np.log(FILTER_SAMPLES / FFT_SAMPLES)) - float(np.log(2.0))
SOURCE_FLOOR = 1e-2
NOISE_LEVEL = -1.0  # of the noise filter before training, in nepers
MIN_LOG_GAIN, MAX_LOG_GAIN = -14.0, 6.0
MAX_PROJECTION = 3.0  # nepers by which a projection changes a band
KERNEL_SIZE = 5
MEL_BLOCKS = 4
PITCH_BINS = 96
MAX_FLUCTUATION = 3.0
PITCH_NEIGHBOURS = 3  # on each side of the likeliest bin, over which F0 is averaged
# A person's phases are estimated with an error of 0.15 cycles in the median, and a longer window
# averages it out. At each rate this is an odd number of frames.
PHASE_WINDOW_S = 0.59
# In training, in synthesis and in copies of recordings. Each pulls a wave to the given mel, and to
# the smoothness of that of a voice, which DNSMOS rates 0.11 lower with twelve than with two.
TRAINED_PROJECTIONS, PROJECTIONS, COPY_PROJECTIONS = 1, 2, 12
MOMENTUM = 0.9  # of projections; with 1.3 they diverge
MEL_WEIGHT, PITCH_WEIGHT, VOICING_WEIGHT, PHASE_WEIGHT = 2.0, 0.3, 0.2, 0.5

STFT_SAMPLES, COMPLEX_STFT_SAMPLES = (512, 1024, 2048), (512, 1024)  # of a frame, in the losses
COMPRESSION = 0.3
# Keeps the ratio of a silent row finite.
COMPRESSED_FLOOR = 1e-2
# Below the 1e-8 of rounding to 16 bits in a frame of 512.
POWER_FLOOR = 1e-9
MAGNITUDE_FLOOR = 1e-4

SYNTHESIS_SIGNATURE = (
    tf.TensorSpec([None, None, None], tf.float32, "log_mel"),
    tf.TensorSpec([2], tf.int32, "seed"),
)


@dataclass(frozen=True)
class VocoderSize:
    channels: int
    blocks: int
    pitch_channels: int
    pitch_blocks: int


SIZES = {
    "tiny": VocoderSize(channels=192, blocks=5, pitch_channels=160, pitch_blocks=5),
    "small": VocoderSize(channels=288, blocks=6, pitch_channels=192, pitch_blocks=5),
    "normal": VocoderSize(channels=384, blocks=8, pitch_channels=256, pitch_blocks=6),
    "big": VocoderSize(channels=512, blocks=12, pitch_channels=320, pitch_blocks=8),
}


class Vocoder(keras.Model):
    """The vocoder network; with `refine_mel` it first moves a voice's mels towards recordings'."""

    LOSS_NAMES = ("spectral", "complex", "mel", "pitch", "voicing", "phase")

    def __init__(
        self, size: VocoderSize, gradient_checkpointing: bool = False, refine_mel: bool = False
    ):
        # Signals stay float32 in mixed precision; the layers cast their own inputs.
        super().__init__(name="vocoder", autocast=False)
        self.gradient_checkpointing = gradient_checkpointing
        self.pitch_head = PitchHead(size.pitch_channels, size.pitch_blocks, name="pitch_head")
        self.mel_in = layers.Conv1D(size.channels, 7, padding="same", name="mel_in")
        self.magnitude_in = Dense(size.channels, name="magnitude_in")
        self.source_in = Dense(size.channels, name="source_in")
        self.blocks = [FilterBlock(size.channels, name=f"block_{i}") for i in range(size.blocks)]
        self.out_norm = LayerNormalization(name="out_norm")
        small = keras.initializers.RandomNormal(stddev=0.002)
        self.filters = Dense(4 * FILTERS_PER_FRAME * BINS, kernel_initializer=small, name="filters")
        self.mel_head = MelHead(size.pitch_channels, name="mel_head") if refine_mel else None
        self.BATCH_FIELDS = TAUGHT_VOCODER_FEATURES if refine_mel else VOCODER_FEATURES

    def vocabulary_variables(self) -> dict[str, tuple[str, int]]:
        """Return no variables: none has a row for each vocabulary entry."""
        return {}

    def component_layers(self) -> dict[str, list[layers.Layer]]:
        """Return the layers of each component that --freeze names."""
        inputs = [self.mel_in, self.magnitude_in, self.source_in]
        filters = [*inputs, *self.blocks, self.out_norm, self.filters, *self.added_layers()]
        return {"pitch_head": [self.pitch_head], "filter": filters}

    def added_layers(self) -> list[layers.Layer]:
        """Return the layers that a pretrained run may lack: initially they change nothing."""
        return [] if self.mel_head is None else [self.mel_head]

    def build(self, shape):
        """Create no variables; see `CompositeLayer`."""

    def call(self, batch, training=False):
        """Compute the losses of VOCODER_FEATURES, as fractions of the whole step's losses.

        Their sum over all batches and replicas of a step is the mean over that step's frames: a row
        counts as many times as its utterance has frames. The CONTEXT_FRAMES at the ends do not
        count. `mel` is the mean absolute error of the log-mel. Outputs: `wave` float32 [B, T *
        256].
        """
        mel = target_mel = batch["mel"]
        target = batch["wave"]
        weight = tf.cast(batch["frames"], tf.float32) / batch["step_frames"]
        if self.mel_head is not None:
            mel = self.mel_head(mel)
            target_mel = batch["target_mel"]
        harmonic = pulse_train(interpolate_unvoiced(batch["f0_hz"]), batch["pulse_phasor"])
        wave = self._generate(mel, harmonic, batch["seed"], TRAINED_PROJECTIONS)
        context = CONTEXT_FRAMES
        samples = CONTEXT_FRAMES * HOP_SAMPLES
        mel_error = tf.abs(mel_and_spectrum(wave)[0] - target_mel)[:, context:-context]
        estimate, true = wave[:, samples:-samples], target[:, samples:-samples]
        pitch, voicing, phase = self.pitch_head.losses_of(
            mel, batch["f0_hz"], batch["pulse_phasor"]
        )
        by_row = {
            "spectral": multi_resolution_stft_loss(estimate, true),
            "complex": complex_stft_loss(estimate, true),
            "mel": MEL_WEIGHT * mean_of_rows(mel_error),
            "pitch": PITCH_WEIGHT * pitch,
            "voicing": VOICING_WEIGHT * voicing,
            "phase": PHASE_WEIGHT * phase,
        }
        return {name: tf.reduce_sum(loss * weight) for name, loss in by_row.items()}, {"wave": wave}

    @tf.function(input_signature=SYNTHESIS_SIGNATURE, autograph=False)
    def synthesize(self, log_mel, seed):
        """Compute waves in [-1, 1]: log-mels [B, T, 80] of a voice, seed int32 [2] -> [B, T * 256].

        Silence is added around the mel as around the segments of training. The noise is a function
        of the seed and of B and T.
        """
        return self._waves(log_mel, seed, PROJECTIONS)

    @tf.function(input_signature=SYNTHESIS_SIGNATURE, autograph=False)
    def copy(self, log_mel, seed):
        """Do the same as `synthesize` for log-mels of recordings."""
        return self._waves(log_mel, seed, COPY_PROJECTIONS)

    def _waves(self, log_mel, seed, projections: int):
        log_mel.set_shape([None, None, mel_bands()])
        samples = CONTEXT_FRAMES * HOP_SAMPLES
        # tf.pad reads the value on the host.
        silence = tf.fill([tf.shape(log_mel)[0], CONTEXT_FRAMES, mel_bands()], SILENCE)
        mel = tf.concat([silence, log_mel, silence], axis=1)
        if self.mel_head is not None:
            mel = self.mel_head(mel)
        f0_hz, voicing, phasor = self.pitch_head.estimate(mel)
        phasor = voicing[:, :, None] * phasor
        phasor = smoothed_phasor(phasor, f0_hz, frames_in(PHASE_WINDOW_S))
        harmonic = pulse_train(f0_hz, phasor)
        wave = self._generate(mel, harmonic, seed, projections)[:, samples:-samples]
        return limited(wave)

    # Two sources are transformed: pulses with their harmonics, and noise. The network reads the mel
    # and the pulses and returns a complex filter for the pulses and a gain for the noise, as
    # corrections of the mel's rough envelope. The filtered sum is transformed back. Projections
    # then pull the mel of the wave towards the given mel; copies have twelve, with momentum.
    def _generate(self, mel, harmonic, seed, projections: int):
        """Return the wave of a log-mel [B, T, 80] and a harmonic source: float32 [B, T * 256]."""
        noise = stateless_normal(tf.shape(harmonic), fold_in(seed, "noise"))
        harmonic, noise = source_spectrum(harmonic), source_spectrum(noise)
        envelope = log_envelope(mel)
        gain, real, imaginary, noise_gain = self._filters(mel, envelope, harmonic)
        gain, noise_gain = (
            tf.exp(tf.clip_by_value(correction + envelope, MIN_LOG_GAIN, MAX_LOG_GAIN))
            for correction in (gain, noise_gain + NOISE_LEVEL)
        )
        # No change of phase before training.
        real += 1.0
        gain *= tf.math.rsqrt(tf.square(real) + tf.square(imaginary) + 1e-6)
        filtered = harmonic * tf.complex(gain * real, gain * imaginary)
        spectrum = filtered + spectral.scaled(noise, noise_gain)
        wave = spectral.inverse_short_time_spectrum(spectrum, FILTER_SAMPLES)
        wave = wave[:, EDGE_SAMPLES:-EDGE_SAMPLES]
        projected = previous = project(wave, mel)
        # As in the fast Griffin-Lim algorithm (Perraudin, Balazs & Søndergaard 2013).
        for _ in range(projections - 1):
            ahead = projected + MOMENTUM * (projected - previous)
            previous, projected = projected, project(ahead, mel)
        return projected

    def _filters(self, mel, envelope, harmonic):
        """Return log gain, real and imaginary filters, and noise gain: [B, T * R, F] each."""
        shape = [tf.shape(mel)[0], -1, FILTERS_PER_FRAME * BINS]
        source = tf.reshape(tf.math.log(tf.abs(harmonic) + SOURCE_FLOOR), shape)
        envelope = tf.reshape(envelope, shape)
        x = self.mel_in(normalised(mel)) + self.magnitude_in(normalised(envelope))
        x += self.source_in(source)
        for block in self.blocks:
            x = keras.remat(block)(x) if self.gradient_checkpointing else block(x)
        parts = tf.split(tf.cast(self.filters(self.out_norm(x)), tf.float32), 4, axis=2)
        return [tf.reshape(part, tf.shape(harmonic)) for part in parts]


def build_vocoder(size: str, precision: str = "float32", **settings) -> Vocoder:
    """Build Vocoder of a key of SIZES; `settings` are its arguments. See `build_network`."""
    return build_network(precision, lambda: Vocoder(SIZES[size], **settings))


class FilterBlock(CompositeLayer):
    """Residual convolution and two dense layers (ConvNeXt, Liu et al. 2022)."""

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        self.conv = layers.Conv1D(channels, KERNEL_SIZE, padding="same", name="conv")
        self.norm = LayerNormalization(name="norm")
        self.expand = Dense(2 * channels, activation="gelu", name="expand")
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.out = Dense(channels, kernel_initializer=small, name="out")

    def call(self, x):
        """[B, T, C] -> [B, T, C]."""
        return x + self.out(self.expand(self.norm(self.conv(x))))


class MelHead(CompositeLayer):
    """Moves a voice's mel towards a recording's: a residual network, first the identity."""

    def __init__(self, channels: int, **kwargs):
        # The layers cast their own inputs.
        super().__init__(autocast=False, **kwargs)
        self.conv_in = layers.Conv1D(channels, 5, padding="same", name="conv_in")
        self.blocks = [FilterBlock(channels, name=f"block_{i}") for i in range(MEL_BLOCKS)]
        self.out_norm = LayerNormalization(name="out_norm")
        self.out = Dense(mel_bands(), kernel_initializer="zeros", name="out")

    def call(self, mel):
        """float32 [B, T, 80] -> [B, T, 80]."""
        x = self.conv_in(normalised(mel))
        for block in self.blocks:
            x = block(x)
        return mel + tf.cast(self.out(self.out_norm(x)), tf.float32)


class PitchHead(CompositeLayer):
    """Estimates F0, voicing and the phase of the pulses from a log-mel.

    F0 is a distribution over bins (CREPE, Kim et al. 2018). The phase is a phasor, fitted to one of
    unit length by least squares, so that it becomes shorter where the mel does not tell the phase.
    """

    def __init__(self, channels: int, blocks: int, **kwargs):
        # bfloat16 would round away most of the fluctuation.
        super().__init__(autocast=False, **kwargs)
        self.conv_in = layers.Conv1D(channels, 5, padding="same", name="conv_in")
        self.norms = [LayerNormalization(name=f"norm_{i}") for i in range(blocks)]
        self.convs = [
            layers.Conv1D(channels, 3, padding="same", activation="gelu", name=f"conv_{i}")
            for i in range(blocks)
        ]
        self.outs = [Dense(channels, name=f"out_{i}") for i in range(blocks)]
        self.out_norm = LayerNormalization(name="out_norm")
        self.out = Dense(PITCH_BINS + 3, name="out")

    def call(self, mel):
        """Return logits of bins [B, T, PITCH_BINS] and voicing [B, T], and phasor [B, T, 2]."""
        x = self.conv_in(tf.concat([normalised(mel), fluctuation(mel)], axis=2))
        for norm, conv, out in zip(self.norms, self.convs, self.outs, strict=True):
            x = x + out(conv(norm(x)))
        out = tf.cast(self.out(self.out_norm(x)), tf.float32)
        return out[:, :, :PITCH_BINS], out[:, :, PITCH_BINS], out[:, :, PITCH_BINS + 1 :]

    def estimate(self, mel):
        """Return F0 in Hz [B, T], also where unvoiced, P(voiced) [B, T] and phasor [B, T, 2]."""
        logits, voicing, phasor = self(mel)
        likeliest = tf.argmax(logits, axis=2)
        distance = np.arange(PITCH_BINS) - likeliest[:, :, None]
        near = tf.nn.softmax(tf.where(tf.abs(distance) <= PITCH_NEIGHBOURS, logits, -1e9))
        # Relative to the likeliest bin, and in float64: the phase of the highest harmonic has 100
        # times the error of the integrated F0.
        width = pitch_centres()[1] - pitch_centres()[0]
        log_ratio = tf.cast(sum_over(near * (tf.cast(distance, tf.float32) * width), 2), tf.float64)
        hz = tf.gather(np.exp(pitch_centres().astype(np.float64)), likeliest) * tf.exp(log_ratio)
        return tf.cast(hz, tf.float32), tf.sigmoid(voicing), phasor

    # The target over bins is a triangle around the recorded F0, so that F0 between two bins is no
    # error.
    def losses_of(self, mel, f0_hz, pulse_phasor):
        """Return the losses of pitch, voicing and phase, float32 [B] each.

        Pitch and voicing are cross-entropies, and phase is a squared error. Pitch and phase are
        means over voiced frames, or 0 without any; voicing is a mean over all.
        """
        logits, voicing, phasor = self(mel)
        voiced = tf.cast(f0_hz > 0.0, tf.float32)
        distance = tf.math.log(tf.maximum(f0_hz, F0_MIN_HZ))[:, :, None] - pitch_centres()
        width = 1.5 * (pitch_centres()[1] - pitch_centres()[0])
        near = tf.nn.relu(1.0 - tf.abs(distance) / width)
        target = near / tf.reduce_sum(near, axis=2, keepdims=True)
        pitch = tf.nn.softmax_cross_entropy_with_logits(target, logits)
        phase = sum_over(tf.square(phasor - pulse_phasor), 2)
        voicing = tf.nn.sigmoid_cross_entropy_with_logits(voiced, voicing)
        count = tf.maximum(sum_over(voiced, 1), 1.0)
        pitch, phase = (sum_over(voiced * loss, 1) / count for loss in (pitch, phase))
        return pitch, mean_of_rows(voicing[:, :, None]), phase


@cache
def pitch_centres() -> np.ndarray:
    """Return the log frequencies of the bins' centres, float32 [PITCH_BINS]."""
    return np.linspace(np.log(F0_MIN_HZ), np.log(F0_MAX_HZ), PITCH_BINS, dtype=np.float32)


def normalised(log):
    """Scale log magnitudes to about unit variance."""
    return 0.2 * log + 1.0


def fluctuation(mel):
    """Return each frame's difference from its neighbours' mean: [B, T, 80] -> [B, T, 80].

    This is where the phase of the pulses shows. With it the pitch head learns the phase in a third
    of the steps.
    """
    ends = tf.concat([mel[:, :1], mel, mel[:, -1:]], axis=1)
    difference = 4.0 * mel - 2.0 * (ends[:, :-2] + ends[:, 2:])
    return tf.clip_by_value(difference, -MAX_FLUCTUATION, MAX_FLUCTUATION)


def source_spectrum(source):
    """Return the STFT of a source of unit power: float32 [B, T * 256] -> [B, T * R, F]."""
    padded = tf.pad(source, [[0, 0], [EDGE_SAMPLES, EDGE_SAMPLES]])
    return spectral.short_time_spectrum(padded, FILTER_SAMPLES) / WINDOW_NORM


def log_envelope(mel):
    """Return rough log magnitudes of a log-mel, by the pseudo-inverse (FreeV, Lv et al. 2024).

    [B, T, 80] -> [B, T * R, F]. No bin is below the quietest band, and bins above the last filter
    continue it. The filters of a frame are equal.
    """
    inverse = inverse_mel_filters()[:, :: FFT_SAMPLES // FILTER_SAMPLES]
    floor = tf.maximum(tf.exp(tf.reduce_min(mel, axis=2, keepdims=True)), LOG_FLOOR)
    envelope = tf.math.log(tf.maximum(_times(tf.exp(mel), inverse), floor)) + ENVELOPE_OFFSET
    above = envelope[:, :, -1:] + tf.zeros([BINS - inverse.shape[1]])
    return tf.repeat(tf.concat([envelope, above], axis=2), FILTERS_PER_FRAME, axis=1)


# The wave's own mel is computed and compared with the wanted one. The ratio of both, which has a
# value for each band, is spread over the bins of the bands and multiplied onto the spectrum.
def project(wave, mel):
    """Multiply a wave's STFT by the interpolated ratio of the mel to the wave's own mel."""
    own_mel, spectrum = mel_and_spectrum(wave)
    correction = tf.clip_by_value(mel - own_mel, -MAX_PROJECTION, MAX_PROJECTION)
    spectrum = spectral.scaled(spectrum, tf.exp(_times(correction, _interpolation())))
    return spectral.inverse_short_time_spectrum(spectrum, FFT_SAMPLES)[:, PAD_SAMPLES:-PAD_SAMPLES]


def mel_and_spectrum(wave):
    """Return the log-mel in float32, for losses, [B, T * 256] -> [B, T, 80], and the STFT."""
    padded = tf.pad(wave, [[0, 0], [PAD_SAMPLES, PAD_SAMPLES]], mode="REFLECT")
    spectrum = spectral.short_time_spectrum(padded, FFT_SAMPLES)
    mel = _times(spectral.magnitude(spectrum, 1e-12), mel_filters())
    return tf.math.log(tf.maximum(mel, LOG_FLOOR)), spectrum


@cache
def _interpolation() -> np.ndarray:
    """Return the weights of the bands in each bin, which sum to 1: float32 [bands, bins]."""
    total = mel_filters().sum(axis=1, keepdims=True)
    return (mel_filters() / np.maximum(total, 1e-12)).T.astype(np.float32)


def _times(x, matrix: np.ndarray):
    """Multiply the last axis: [B, T, N] and [N, M] -> [B, T, M]; see `layers.Dense`."""
    rows = tf.matmul(tf.reshape(x, [-1, matrix.shape[0]]), matrix)
    product = tf.reshape(rows, tf.concat([tf.shape(x)[:2], [matrix.shape[1]]], axis=0))
    product.set_shape([*x.shape[:2], matrix.shape[1]])
    return product


def multi_resolution_stft_loss(wave, target):
    """Compute spectral convergence plus the mean error of log magnitudes, over STFT_SAMPLES.

    (Yamamoto, Song & Kim 2020, Parallel WaveGAN, section 2.2; Arik, Jun & Diamos 2018.) float32 [B,
    samples] twice, at least 2048 samples -> float32 [B].
    """

    def loss(size):
        estimate, true = (spectral.magnitude(x, POWER_FLOOR) for x in _spectra(wave, target, size))
        logs = tf.math.log(estimate + MAGNITUDE_FLOOR) - tf.math.log(true + MAGNITUDE_FLOOR)
        return _ratio(tf.square(estimate - true), tf.square(true)) + mean_of_rows(tf.abs(logs))

    return tf.add_n([loss(size) for size in STFT_SAMPLES]) / len(STFT_SAMPLES)


def complex_stft_loss(wave, target):
    """Compute the spectral convergence of complex spectra over COMPLEX_STFT_SAMPLES.

    The magnitudes are raised to COMPRESSION, so that quiet parts also count (Braun & Tashev 2021).
    float32 [B, samples] twice, at least 1024 samples -> float32 [B], about 1 for a silent wave.
    """

    def convergence(size):
        estimate, true = (_compressed(spectrum) for spectrum in _spectra(wave, target, size))
        return _ratio(_power(estimate - true), _power(true) + COMPRESSED_FLOOR)

    return tf.add_n(list(map(convergence, COMPLEX_STFT_SAMPLES))) / len(COMPLEX_STFT_SAMPLES)


def _spectra(wave, target, size):
    hop = size // spectral.OVERLAP
    whole = tf.shape(wave)[1] // hop * hop
    return [spectral.short_time_spectrum(x[:, :whole], size) for x in (wave, target)]


def _compressed(spectrum):
    """Raise magnitudes to COMPRESSION, keep phases; proportional below about 3e-3."""
    # Not tf.pow: its gradient is another power.
    gain = tf.exp(0.5 * (COMPRESSION - 1.0) * tf.math.log(_power(spectrum) + 1e-5))
    return spectral.scaled(spectrum, gain)


def _power(spectrum):
    return tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum))


def _ratio(error, power):
    """Return the square root of the ratio of sums: float32 [B, T, F] each -> [B]."""
    return tf.sqrt((sum_over(error, [1, 2]) + POWER_FLOOR) / (sum_over(power, [1, 2]) + 1e-3))
