"""log_mel compared with librosa in float64, and its inversion to a wave."""

import unittest
from unittest import mock

from tests.sine_corpus import librosa_log_mel, signals
from tests.two_devices import MODEL

# isort: split

import librosa
import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, LOG_FLOOR, SAMPLE_RATE_HZ, mel_bands
from myxtts.audio.mel import SILENCE, log_mel, mel_filters, warped_mel_filters
from myxtts.audio.vocoder import _istft, griffin_lim, inverse_mel_scale
from myxtts.base.portable_ops import float32_matmul
from tests.sine_corpus import frequency, sine


def pcm(wave: np.ndarray) -> np.ndarray:
    """Round a wave to 16-bit PCM; returns float32 in [-1, 1]."""
    return (np.clip(np.rint(wave * 32768.0), -32768, 32767) / 32768.0).astype(np.float32)


class LogMelTest(unittest.TestCase):
    def test_log_mel_matches_librosa(self):
        for name, signal in signals().items():
            for kind, wave in (("float", signal.astype(np.float32)), ("pcm", pcm(signal))):
                with self.subTest(name, kind=kind):
                    mel = log_mel(wave[None])[0]
                    np.testing.assert_allclose(mel, librosa_log_mel(wave), rtol=0, atol=1e-5)

    def test_digital_silence_is_at_the_floor(self):
        self.assertAlmostEqual(SILENCE, np.log(1e-5))
        mel = log_mel(np.zeros((1, 2_560), np.float32))
        self.assertEqual(mel.shape, (1, 10, 80))
        # A unit in the last place of the logarithm.
        np.testing.assert_allclose(mel, SILENCE, rtol=2e-7)

    def test_a_sinusoid_is_loudest_in_the_band_around_its_frequency(self):
        centres = librosa.mel_frequencies(mel_bands() + 2, fmin=0.0, fmax=8_000.0)[1:-1]
        bands = np.arange(10, mel_bands())  # lower ones are narrower than the window's main lobe
        waves = np.stack([sine(centres[band], 0.3) for band in bands]).astype(np.float32)
        loudest = log_mel(waves)[:, 12].numpy().argmax(axis=1)
        np.testing.assert_array_equal(loudest, bands)

    def test_the_magnitude_of_a_sinusoid_matches_its_hann_window(self):
        # Under a Hann window, a tone of level a on bin k has |X[k]| = a * 1024 / 4, and half of it
        # in both neighbours.
        tone = sine(100 * SAMPLE_RATE_HZ / 1024, 0.3).astype(np.float32)
        expected = np.maximum(128 * np.array([0.5, 1.0, 0.5]) @ mel_filters()[99:102], 1e-5)
        magnitude = np.exp(log_mel(tone[None])[0, 12])
        np.testing.assert_allclose(magnitude, expected, rtol=1e-4, atol=1e-6)

    def test_a_wave_has_one_frame_per_256_samples(self):
        for samples in (385, 511, 512, 513, 1_023, 1_024, 1_025, 6_615, 7_000):
            wave = np.random.default_rng(samples).uniform(-1, 1, (1, samples)).astype(np.float32)
            mel = log_mel(wave)[0].numpy()
            self.assertEqual(mel.shape, (samples // 256, 80))
            np.testing.assert_allclose(mel, librosa_log_mel(wave[0]), atol=1e-5)

    def test_padding_and_other_rows_do_not_change_a_mel(self):
        lengths = [385, 6_615, 7_936, 10_240]
        rows = [np.random.default_rng(n).uniform(-1, 1, n).astype(np.float32) for n in lengths]
        for garbage in (0.0, 1.0, np.nan):  # the values of the padding do not matter
            batch = np.full((4, 10_240), garbage, np.float32)
            for target, row in zip(batch, rows, strict=True):
                target[: len(row)] = row
            mel = log_mel(batch, tf.constant(lengths)).numpy()
            for row_mel, row in zip(mel, rows, strict=True):
                frames = len(row) // 256
                # Some CPUs round otherwise in another batch.
                np.testing.assert_allclose(row_mel[:frames], log_mel(row[None])[0], atol=2e-6)
                np.testing.assert_array_equal(row_mel[frames:], np.float32(SILENCE))

    def test_an_empty_row_is_silent(self):
        for samples in ([0, 5_120], [0, 0]):
            mel = log_mel(np.ones((2, 5_120), np.float32), tf.constant(samples))
            np.testing.assert_array_equal(mel[0], np.full((20, 80), SILENCE, np.float32))

    def test_eager_and_traced_with_unknown_dimensions_agree(self):
        wave = np.random.default_rng(0).uniform(-1, 1, (2, 5_000)).astype(np.float32)
        samples = tf.constant([5_000, 4_000])
        specs = tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32)
        traced = tf.function(log_mel, input_signature=specs)
        np.testing.assert_allclose(traced(wave, samples), log_mel(wave, samples), atol=1e-6)

    def test_a_cpu_takes_one_row_at_a_time_and_a_gpu_all_at_once(self):
        specs = tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32)
        filters = tf.TensorSpec([None, *mel_filters().shape])
        for given in (specs, (*specs, filters)):
            for device, loops in (("/CPU:0", 1), ("/GPU:0", 0)):
                with tf.device(device):
                    graph = tf.function(log_mel).get_concrete_function(*given).graph
                found = sum(op.type in ("While", "StatelessWhile") for op in graph.get_operations())
                self.assertEqual(found, loops, device)


def voice(hz: float, formants: tuple[float, ...]) -> np.ndarray:
    """Return 0.5 s of harmonics to 7.9 kHz, loud near formants a tenth of their frequency wide."""
    harmonics = hz * np.arange(1, int(7_900 / hz))
    levels = sum(1 / (1 + ((harmonics - centre) / (0.1 * centre)) ** 2) for centre in formants)
    return sum(sine(f, 0.5, level=0.1 * level) for f, level in zip(harmonics, levels, strict=True))


class WarpedMelFiltersTest(unittest.TestCase):
    """Mel filters that scale all frequencies of a voice (VTLP)."""

    FACTORS = (np.exp(-0.3), 0.87, 1.0, 1.15, np.exp(0.3))  # the bounds of the setting

    def frames(self, wave: np.ndarray, factor: float | None = None) -> np.ndarray:
        filters = None if factor is None else warped_mel_filters(tf.constant([factor], tf.float32))
        return log_mel(wave[None].astype(np.float32), None, filters)[0].numpy()

    def mel(self, wave: np.ndarray, factor: float | None = None) -> np.ndarray:
        """Return the middle frame, float32 [80]."""
        mel = self.frames(wave, factor)
        return mel[len(mel) // 2]

    def test_factor_1_returns_the_fixed_filters(self):
        filters = warped_mel_filters(tf.ones([1]))[0]
        np.testing.assert_allclose(filters, mel_filters(), rtol=0, atol=1e-6)
        for name, wave in signals().items():
            with self.subTest(name):
                mels = self.frames(wave, 1.0), self.frames(wave)
                np.testing.assert_allclose(*mels, rtol=0, atol=1e-4)

    def test_a_tone_moves_to_the_factor_times_its_frequency(self):
        for factor in self.FACTORS:
            for hz in (200.0, 400.0, 700.0, 1_000.0, 2_000.0, 3_000.0, 5_000.0, 5_900.0):
                warped, expected = self.mel(sine(hz, 0.5), factor), self.mel(sine(factor * hz, 0.5))
                with self.subTest(factor=factor, hz=hz):
                    # 1.7 dB: narrow bands are uneven.
                    self.assertAlmostEqual(warped.max(), expected.max(), delta=0.2)
                    self.assertLessEqual(abs(int(warped.argmax()) - int(expected.argmax())), 1)

    def test_harmonics_and_formants_of_a_voice_move_together(self):
        formants = (500.0, 1_500.0, 2_500.0)
        high_hz = librosa.mel_frequencies(mel_bands() + 2, fmin=0.0, fmax=8_000.0)[2:]
        plain = self.mel(voice(120.0, formants))
        for factor in self.FACTORS:
            warped = self.mel(voice(120.0, formants), factor)
            moved = voice(120.0 * factor, tuple(factor * centre for centre in formants))
            expected = self.mel(moved)
            covered = high_hz < 7_900.0 * min(factor, 1.0)
            with self.subTest(factor=factor):
                self.assertLess(np.abs(warped - expected)[covered].mean(), 0.3)
                if factor != 1.0:
                    self.assertGreater(np.abs(plain - expected)[covered].mean(), 0.7)

    def test_the_highest_band_is_complete_at_the_lowest_factor(self):
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, 2 * SAMPLE_RATE_HZ)
        warped, plain = self.frames(noise, np.exp(-0.3)), self.frames(noise)
        level = np.exp(warped).mean(axis=0) / np.exp(plain).mean(axis=0)
        # Wider filters, at the same gain.
        np.testing.assert_allclose(level[-5:], np.exp(0.3), rtol=0.1)

    def test_timing_does_not_change_and_silence_stays_silent(self):
        wave = np.stack([signals()["a tone in digital silence"], np.ones(11_025)])
        rows = wave.astype(np.float32), tf.constant([11_025, 0])
        mel, plain = log_mel(*rows, warped_mel_filters(tf.constant([1.3, 0.8]))), log_mel(*rows)
        np.testing.assert_array_equal(mel[1], plain[1])
        loud, plain_loud = (np.max(mels[0], axis=1) > -2.0 for mels in (mel, plain))
        np.testing.assert_array_equal(loud, plain_loud)

    def test_each_row_has_its_own_factor(self):
        tone, factors = sine(1_000.0, 0.3), (0.8, 1.0, 1.25)
        waves = np.stack([tone] * 3).astype(np.float32)
        mel = log_mel(waves, None, warped_mel_filters(tf.constant(factors))).numpy()
        for row, factor in zip(mel, factors, strict=True):
            np.testing.assert_allclose(row, self.frames(tone, factor), atol=1e-5)
        self.assertEqual(len({int(row[12].argmax()) for row in mel}), 3)


class InversionTest(unittest.TestCase):
    def test_magnitudes_are_positive_and_their_mel_is_the_input(self):
        noise = np.random.default_rng(0).uniform(-0.3, 0.3, 11_025)
        mel = log_mel(np.stack([sine(440, 0.5), noise]).astype(np.float32))
        magnitude = inverse_mel_scale(mel).numpy()
        self.assertEqual(magnitude.shape, (2, 43, 513))
        self.assertTrue(np.all(magnitude >= 0) and np.isfinite(magnitude).all())
        again = np.log(np.maximum(magnitude @ mel_filters(), LOG_FLOOR))
        audible = mel.numpy() > np.log(1e-2)
        self.assertGreater(audible.sum(), 1_000)
        self.assertLess(np.abs(again - mel)[audible].mean(), 0.02)

    def test_mels_of_many_lengths_are_inverted_by_products_of_few_shapes(self):
        mel = np.random.default_rng(2).normal(-5.0, 1.0, (1, 130, 80)).astype(np.float32)
        shapes = set()
        whole = inverse_mel_scale(mel).numpy()

        def product(a, b, **keywords):
            shapes.add((*a.shape, *b.shape))
            return float32_matmul(a, b, **keywords)

        with mock.patch("myxtts.audio.vocoder.float32_matmul", product):
            for n in (1, 17, 64, 65, 127, 128):
                np.testing.assert_allclose(inverse_mel_scale(mel[:, :n]), whole[:, :n], rtol=1e-3)
        self.assertEqual({shape[1] for shape in shapes}, {64, 128})

    def test_transforms_have_few_lengths_and_the_wave_does_not_depend_on_them(self):
        def inverse(spectrum):
            rows.add(spectrum.shape[1])
            return _istft(spectrum)

        def waves():
            return [griffin_lim.__wrapped__(mel[:, :n], 2, [0, 0]).numpy() for n in (1, 65, 100)]

        mel = np.random.default_rng(0).uniform(-8.0, 0.0, (2, 100, 80)).astype(np.float32)
        rows: set[int] = set()
        with mock.patch("myxtts.audio.vocoder._istft", inverse):
            padded = waves()
            self.assertEqual(rows, {64, 128})
            with mock.patch("myxtts.audio.vocoder.grid_padding", lambda frames: 0):
                for wave, alone in zip(padded, waves(), strict=True):
                    np.testing.assert_allclose(wave, alone, rtol=0, atol=1e-4)
        self.assertEqual(rows, {64, 128, 1, 65, 100})

    def test_a_sinusoid_keeps_its_frequency_and_level(self):
        # Wide bands blur a tone.
        for hz, tolerance_db in ((220.0, 1.0), (440.0, 1.0), (1_000.0, 1.0), (3_000.0, 6.0)):
            wave = invert(sine(hz, 0.7, level=0.3))
            self.assertAlmostEqual(frequency(wave), hz, delta=0.02 * hz + 5)
            decibels = 20 * np.log10(rms(wave) / rms(sine(hz, 0.7, level=0.3)))
            self.assertLess(abs(decibels), tolerance_db)

    def test_the_mel_of_the_inverted_wave_is_the_input(self):
        vowel = sum(sine(150.0 * k, 0.7, level=0.3 / k) for k in range(1, 20))
        wave = invert(vowel)
        expected = librosa_log_mel(vowel[: len(wave)])
        difference = np.abs(librosa_log_mel(wave) - expected)[4:-4]
        self.assertLess(difference[expected[4:-4] > -5.0].mean(), 0.25)  # 2 dB

    def test_silence_stays_silent(self):
        self.assertLess(np.abs(invert(np.zeros(8_192))).max(), 1e-3)

    def test_a_wave_has_256_samples_per_frame_within_full_scale(self):
        loud = np.random.default_rng(0).uniform(-1, 1, (2, 5_000)).astype(np.float32)
        wave = griffin_lim(log_mel(loud) + 2.0, 5, [0, 0]).numpy()
        self.assertEqual((wave.shape, wave.dtype), ((2, 19 * HOP_SAMPLES), np.float32))
        self.assertLessEqual(np.abs(wave).max(), 1.0)

    def test_output_depends_on_the_seed(self):
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, 8_192)
        first, again, other = (invert(noise, seed=seed).tobytes() for seed in (3, 3, 4))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_more_iterations_reduce_the_error(self):
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, 8_192)
        target = librosa_log_mel(noise)
        mels = (librosa_log_mel(invert(noise, iterations=n)) for n in (0, 30))
        first, last = (np.abs(mel - target).mean() for mel in mels)
        self.assertLess(last, 0.5 * first)

    def test_griffin_lim_runs_on_the_current_device(self):
        with tf.device(MODEL):
            wave = griffin_lim(tf.fill([1, 8, 80], SILENCE), 1, [0, 0])
        self.assertTrue(wave.device.endswith(MODEL[1:]), wave.device)


def invert(wave: np.ndarray, iterations: int = 30, seed: int = 0) -> np.ndarray:
    return griffin_lim(log_mel(wave[None].astype(np.float32)), iterations, [seed, 1]).numpy()[0]


def rms(wave: np.ndarray) -> float:
    return float(np.sqrt(np.mean(wave**2)))
