"""The noises and rooms of evaluations: their levels, and that they are always the same."""

import unittest

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.errors import ConfigError
from myxtts.tasks.asr.evaluation import EARLY_S, KINDS, convolve, distortions, noise, room_response
from myxtts.tasks.evaluation.held_out import EvaluationOptions, check_options
from tests.sine_corpus import sine

WAVE = sine(300.0, 0.5).astype(np.float32)


def energy(wave: np.ndarray) -> float:
    return float(np.sum(np.square(wave, dtype=np.float64)))


def slope_db(wave: np.ndarray, low_hz: float, high_hz: float) -> float:
    """Return the change of the level per octave between two frequencies."""
    power, hz = np.abs(np.fft.rfft(wave)) ** 2, np.fft.rfftfreq(len(wave), 1 / SAMPLE_RATE_HZ)
    bands = ((hz > centre / 1.2) & (hz < centre * 1.2) for centre in (low_hz, high_hz))
    low, high = (power[band].mean() for band in bands)
    return 10 * np.log10(high / low) / np.log2(high_hz / low_hz)


class NoiseTest(unittest.TestCase):
    def test_noise_has_its_ratio_to_speech_and_is_always_the_same(self):
        (distort,) = distortions([5.0], []).values()
        for index in range(2 * len(KINDS)):
            noisy = distort(WAVE, index)
            self.assertEqual((noisy.dtype, noisy.shape), (np.float32, WAVE.shape))
            snr_db = 10 * np.log10(energy(WAVE) / energy(noisy - WAVE))
            self.assertAlmostEqual(snr_db, 5.0, places=2)
            np.testing.assert_array_equal(noisy, distort(WAVE, index))
        self.assertFalse(np.array_equal(distort(WAVE, 0), distort(WAVE, len(KINDS))))

    def test_colours_are_not_those_of_training(self):
        # From 0 to -6 dB an octave in training.
        for kind, low_hz, expected_db in (("blue", 500.0, 3.0), ("speech-shaped", 1000.0, -9.0)):
            wave = noise(4 * SAMPLE_RATE_HZ, KINDS.index(kind))
            self.assertAlmostEqual(slope_db(wave, low_hz, 8000.0), expected_db, delta=0.4)

    def test_modulated_noise_has_pauses(self):
        pieces = noise(SAMPLE_RATE_HZ, KINDS.index("modulated"))[:22_000].reshape(-1, 220)
        levels = np.square(pieces).mean(axis=1)
        self.assertLess(levels.min(), 0.01 * levels.max())


class RoomTest(unittest.TestCase):
    def test_direct_sound_and_reflections_have_equal_energies_and_the_tail_decays(self):
        response = room_response(0.4, 0)
        self.assertEqual(response[0], 1.0)
        self.assertAlmostEqual(energy(response[1:]), 1.0)
        self.assertTrue((response[1 : int(EARLY_S[0] * SAMPLE_RATE_HZ)] == 0.0).all())
        late, later = (response[int(s * SAMPLE_RATE_HZ) :][:1000] for s in (0.1, 0.2))
        decay_db = 10 * np.log10(energy(late) / energy(later))
        self.assertAlmostEqual(decay_db, 60.0 * 0.1 / 0.4, delta=1.5)

    def test_a_wave_keeps_its_length_and_its_beginning(self):
        (distort,) = distortions([], [0.3]).values()
        wave = distort(WAVE, 3)
        self.assertEqual((wave.dtype, wave.shape), (np.float32, WAVE.shape))
        np.testing.assert_allclose(wave[:60], WAVE[:60], atol=1e-6)
        self.assertFalse(np.allclose(wave, WAVE, atol=1e-2))
        echo = convolve(WAVE, np.array([1.0, 0.0, 0.5]))
        np.testing.assert_allclose(echo[2:], WAVE[2:] + 0.5 * WAVE[:-2], atol=1e-6)


class OptionTest(unittest.TestCase):
    def test_only_a_recogniser_is_measured_in_noise(self):
        options = EvaluationOptions(noise_snr_db=(5.0,), rt60=(0.3,))
        check_options("run", "asr", options)
        message = "--noise-snr-db, --rt60 was given, but run is a voice"
        with self.assertRaisesRegex(ConfigError, message):
            check_options("run", "tts", options)
