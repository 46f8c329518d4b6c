"""Waves from log-mels: Griffin-Lim (Griffin & Lim 1984), or a trained vocoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from myxtts.audio.format import FFT_SAMPLES, HOP_SAMPLES, PAD_SAMPLES, mel_bands, sample_rate_hz
from myxtts.audio.loudness import limited
from myxtts.audio.mel import inverse_mel_filters, mel_filters, stft
from myxtts.audio.spectral import scaled
from myxtts.base.errors import CheckpointError, check_packages
from myxtts.base.portable_ops import (
    float32_matmul,
    function_per_device_type,
    grid_padding,
    stateless_uniform,
)

# Copy synthesis with 30 iterations has 1.27 dB of mel-cepstral distortion. With 60 it has 1.24 dB,
# and takes 1.8 times as long.
ITERATIONS = 30
NNLS_STEPS = 16
MOMENTUM = 0.99


class VocoderProtocol(Protocol):
    """Computes waves from log-mels: `GriffinLim`, or a trained run.

        wave = vocoder.synthesize(log_mel, tf.constant([0, 0]))

    Callers choose the device, and pad no row: see `vocode`.
    """

    description: str  # for the log, such as "runs/vocoder, step 4000"
    metadata: dict[str, Any]  # for JSON files, such as {"run": "runs/vocoder", "step": 4000}
    variables: list[tf.Variable]  # that `synthesize` reads

    def synthesize(self, log_mel, seed):
        """Compute waves on the current device, eagerly or as a part of a graph.

        float32 [batch, frames, 80], seed int32 [2] -> float32 [batch, frames * 256] in [-1, 1].
        """
        ...


LoadVocoder = Callable[[], VocoderProtocol]


class NetworkVocoder:
    """A trained network as a vocoder, with its compiled `synthesize` and `copy`; see `vocode`."""

    def __init__(self, network: Any, description: str, metadata: dict[str, Any]):
        # A tf.function holds no reference to the object that it is a method of.
        self._network = network
        self.description = description
        self.metadata = metadata
        self.variables = list(network.synthesize.get_concrete_function().variables)
        self.synthesize, self.copy = network.synthesize, network.copy


class OnnxVocoder:
    """A vocoder in a file of ONNX, from log-mels of our format to waves; see `VocoderProtocol`.

    As HiFi-GAN and Vocos are published: one input, float32 [1, 80, frames] or [1, frames, 80], and
    the wave as the first output. It runs eagerly, by onnxruntime. Raises ConfigError if the file or
    the package is missing, and CheckpointError if the file is another one.
    """

    def __init__(self, path: Path):
        check_packages(f"--vocoder {path}", "onnxruntime")
        import onnxruntime

        try:
            self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # classes of its own, without a common one
            raise CheckpointError(f"{path} cannot be read as ONNX: {error}") from error
        inputs = {node.name: node.shape for node in self._session.get_inputs()}
        self.name, shape = next(iter(inputs.items()))
        axes = [axis for axis, size in enumerate(shape) if size == mel_bands()]
        if len(inputs) != 1 or len(shape) != 3 or axes not in ([1], [2]):
            raise CheckpointError(
                f"{path} takes {inputs}, but a vocoder must take a single log-mel of {mel_bands()}"
                " bands. Give a vocoder of log-mels such as HiFi-GAN or Vocos."
            )
        made_hz = self._session.get_modelmeta().custom_metadata_map.get("sample_rate")
        if made_hz not in (None, str(sample_rate_hz())):
            raise CheckpointError(
                f"{path} makes {made_hz} Hz, but the voice has {sample_rate_hz()} Hz. Give a"
                " vocoder of this rate."
            )
        self.path = path
        self.order = (0, 2, 1) if axes == [1] else (0, 1, 2)
        self.description = str(path)
        self.metadata = {"file": str(path)}
        self.variables: list[tf.Variable] = []

    def synthesize(self, log_mel, seed):
        mel = np.ascontiguousarray(np.asarray(log_mel).transpose(self.order))
        wave = self._session.run(None, {self.name: mel})[0].reshape(1, -1)
        samples = mel.size // mel_bands() * HOP_SAMPLES
        if wave.size != samples:
            raise CheckpointError(
                f"{self.path} makes {wave.size} samples of {samples // HOP_SAMPLES} frames, but"
                f" must make {samples}. Give a vocoder at {sample_rate_hz()} Hz with hops of"
                f" {HOP_SAMPLES}."
            )
        return tf.constant(wave)


def vocode(
    vocoder: VocoderProtocol,
    log_mel,
    frames,
    seed: tuple[int, int] = (0, 0),
    recorded: bool = False,
) -> list[np.ndarray]:
    """Return the waves of a batch of mels [batch, frames, 80] of `frames` int32 [batch].

    The mels are of a voice, or `recorded`: a vocoder may have another way, `copy`, for these.

    Each row, float32 [frames * 256], is computed alone, without its padding, so padding changes no
    sample. All have the same seed.
    """
    rows = zip(np.asarray(log_mel), np.asarray(frames), strict=True)
    seed_of_rows = np.array(seed, np.int32)
    synthesize = vocoder.synthesize
    if recorded:
        synthesize = getattr(vocoder, "copy", synthesize)
    waves = (synthesize(row[None, :length], seed_of_rows) for row, length in rows)
    return [wave.numpy()[0] for wave in waves]


def inverse_mel_scale(log_mel):
    """Return the non-negative STFT magnitudes whose mel is closest to the given one.

    float32 [batch, frames, 80] -> [batch, frames, 513]; 1e-6 in the bins above the highest band.

    Uses multiplicative updates for non-negative least squares (Lee & Seung 2001), which keep every
    magnitude positive; the pseudo-inverse alone returns negative ones. The exponent of the updates
    is 1.5. They are stable between 0 and 2 (Badeau, Bertin & Vincent 2010), and 16 steps end closer
    than 32 steps with exponent 1.
    """
    bins = inverse_mel_filters().shape[1]
    filters = tf.constant(mel_filters()[:bins])  # [bins, bands]
    frames = tf.shape(log_mel)[1]
    mel = tf.exp(tf.pad(log_mel, [[0, 0], [0, grid_padding(frames)], [0, 0]]))
    target = float32_matmul(mel, filters, transpose_b=True)
    magnitude = tf.maximum(float32_matmul(mel, inverse_mel_filters()), 1e-6)
    for _ in range(NNLS_STEPS):
        # Two products are a third of the work of one with filters · filtersᵀ.
        estimate = float32_matmul(float32_matmul(magnitude, filters), filters, transpose_b=True)
        ratio = target / tf.maximum(estimate, 1e-10)
        magnitude *= ratio * tf.sqrt(ratio)
    above = [[0, 0], [0, 0], [0, FFT_SAMPLES // 2 + 1 - bins]]
    return tf.pad(magnitude[:, :frames], above, constant_values=1e-6)


@function_per_device_type(
    tf.TensorSpec([None, None, None], tf.float32),
    tf.TensorSpec([], tf.int32),
    tf.TensorSpec([2], tf.int32),
)
def griffin_lim(log_mel, iterations, seed):
    """Compute fast Griffin-Lim (Perraudin, Balazs & Søndergaard 2013) on the current device.

    The momentum is applied to waves instead of spectra. The results are equal because the transform
    is linear, and waves have a quarter of the numbers. The seed draws the initial phases.

    float32 [batch, frames, 80], padded with silence -> [batch, frames * 256] in [-1, 1].
    """
    magnitude = inverse_mel_scale(log_mel)
    phase = stateless_uniform(tf.shape(magnitude), seed, 0.0, 2.0 * np.pi)
    frames = tf.shape(log_mel)[1]
    # Frames of magnitude 0 add nothing to the wave.
    grid = [[0, 0], [0, grid_padding(frames)], [0, 0]]
    magnitude, phase = tf.pad(magnitude, grid), tf.pad(phase, grid)
    wave = _istft(tf.complex(magnitude * tf.cos(phase), magnitude * tf.sin(phase)))

    def iterate(number, wave, previous):
        spectrum = stft(wave + MOMENTUM * (wave - previous))
        real, imaginary = tf.math.real(spectrum), tf.math.imag(spectrum)
        gain = magnitude / tf.sqrt(real * real + imaginary * imaginary + 1e-20)
        return number + 1, _istft(scaled(spectrum, gain)), wave

    _, wave, _ = tf.while_loop(lambda number, *_: number < iterations, iterate, (0, wave, wave))
    wave = wave[:, PAD_SAMPLES : PAD_SAMPLES + HOP_SAMPLES * frames]
    return limited(wave)


class GriffinLim:
    """Griffin-Lim as a vocoder, see `VocoderProtocol`."""

    def __init__(self, iterations: int = ITERATIONS):
        self._iterations = iterations
        self.description = f"Griffin-Lim, {iterations} iterations"
        self.metadata = {"name": "griffin-lim", "iterations": iterations}
        self.variables: list[tf.Variable] = []

    def synthesize(self, log_mel, seed):
        return griffin_lim(log_mel, tf.constant(self._iterations), seed)


def _istft(spectrum):
    """Invert `stft` by least squares: complex64 [B, T, bins] -> float32 [B, samples]."""
    window = tf.signal.inverse_stft_window_fn(HOP_SAMPLES, forward_window_fn=tf.signal.hann_window)
    return tf.signal.inverse_stft(spectrum, FFT_SAMPLES, HOP_SAMPLES, FFT_SAMPLES, window)
