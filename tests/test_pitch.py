"""F0 by YIN: tones of known pitch, sounds without pitch, and librosa as the reference."""

import unittest

from tests.two_devices import MODEL

# isort: split

import librosa
import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.pitch import DECIMATION, F0_MAX_HZ, F0_MIN_HZ, f0, in_octave_of_neighbours
from tests.sine_corpus import sine

EDGE = 4  # frames whose window reaches the end of the wave


def vowel(hz: float, seconds: float = 0.5, strongest: int = 1) -> np.ndarray:
    """Return harmonics with level 0.15 / k, one of them 8 dB or more louder, as at a formant."""
    levels = {k: 0.15 / k for k in range(1, 21) if hz * k < 8_000} | {strongest: 0.4}
    return sum(sine(hz * k, seconds, level=level) for k, level in levels.items())


def pitch(wave: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hz, voiced = f0(wave[None].astype(np.float32), tf.constant([len(wave)]))
    return hz.numpy()[0], voiced.numpy()[0]


def semitones(hz: np.ndarray, expected) -> np.ndarray:
    return np.abs(12 * np.log2(hz / expected))


class ToneTest(unittest.TestCase):
    def assert_pitch(self, wave, hz, tolerance):
        f0_hz, voiced = pitch(wave)
        self.assertTrue(voiced[EDGE:-EDGE].all(), hz)
        self.assertLess(semitones(f0_hz[EDGE:-EDGE], hz).max(), tolerance, hz)

    def test_the_f0_of_a_sinusoid_is_its_frequency(self):
        for hz in (62.0, 80.0, 110.0, 155.5, 220.0, 333.3, 440.0, 590.0):
            self.assert_pitch(sine(hz, 0.5), hz, 0.05)

    def test_the_f0_of_a_vowel_is_its_fundamental_whichever_harmonic_is_strongest(self):
        for hz in (65.0, 100.0, 147.0, 210.0, 300.0):
            for strongest in (1, 2, 3, 4):
                self.assert_pitch(vowel(hz, strongest=strongest), hz, 0.1)

    def test_a_high_pitch_with_a_fractional_period_has_no_octave_error(self):
        # In decimated samples: twice the lag is an integer, which fits better.
        for hz in SAMPLE_RATE_HZ / DECIMATION / np.array([10.5, 11.5, 12.5]):
            self.assert_pitch(vowel(hz, strongest=3), hz, 0.1)

    def test_noise_with_a_tenth_of_the_power_causes_no_octave_error(self):
        clean = vowel(120.0, 1.0, strongest=2)
        noise = np.random.default_rng(0).normal(0, np.std(clean) * 10**-0.5, len(clean))
        f0_hz, voiced = pitch(clean + noise)
        self.assertGreater(voiced.mean(), 0.9)
        self.assertLess(semitones(f0_hz[EDGE:-EDGE][voiced[EDGE:-EDGE]], 120.0).max(), 1.0)

    def test_a_glide_is_tracked_on_the_frame_grid_of_the_mel(self):
        seconds = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
        # 100 Hz, rising by 100 Hz per second.
        f0_hz, _ = pitch(0.5 * np.sin(2 * np.pi * (100 * seconds + 50 * seconds**2)))
        middle_s = (np.arange(len(f0_hz)) + 0.5) * HOP_SAMPLES / SAMPLE_RATE_HZ
        self.assertLess(np.abs(f0_hz - (100 + 100 * middle_s))[EDGE:-EDGE].max(), 1.0)

    def test_f0_does_not_depend_on_a_constant_offset(self):
        np.testing.assert_allclose(pitch(vowel(150.0) + 0.2)[0][EDGE:-EDGE], 150.0, rtol=0.005)


class VoicingTest(unittest.TestCase):
    def test_silence_constants_hum_and_noise_are_unvoiced(self):
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, SAMPLE_RATE_HZ)
        for name, wave, share in (
            ("silence", np.zeros(SAMPLE_RATE_HZ), 0.0),
            ("constant", np.full(SAMPLE_RATE_HZ, 0.5), 0.0),
            ("inaudible tone", sine(120.0, 1.0, level=5e-4), 0.0),
            ("white noise", noise, 0.05),
        ):
            f0_hz, voiced = pitch(wave)
            with self.subTest(name):
                self.assertLessEqual(voiced[EDGE:-EDGE].mean(), share)
                np.testing.assert_array_equal(f0_hz[~voiced], 0.0)

    def test_voiced_frames_are_at_the_voiced_part_of_the_wave(self):
        wave = np.zeros(SAMPLE_RATE_HZ)
        wave[40 * HOP_SAMPLES : 60 * HOP_SAMPLES] = vowel(120.0, 1.0)[: 20 * HOP_SAMPLES]
        voiced = np.flatnonzero(pitch(wave)[1])
        self.assertLessEqual(np.abs(voiced[[0, -1]] - [40, 59]).max(), 2)
        self.assertEqual(len(voiced), voiced[-1] - voiced[0] + 1)

    def test_rounding_before_a_loud_sound_is_unvoiced(self):
        wave = np.random.default_rng(0).uniform(-1, 1, SAMPLE_RATE_HZ)
        wave[: 40 * HOP_SAMPLES] = 0.0
        self.assertFalse(pitch(wave)[1][:40].any())

    def test_f0_is_within_the_bounds(self):
        for hz in (20.0, 1_000.0, 3_000.0):
            f0_hz, voiced = pitch(vowel(hz))
            self.assertTrue(np.all((f0_hz[voiced] >= F0_MIN_HZ) & (f0_hz[voiced] <= F0_MAX_HZ)))


class ReferenceTest(unittest.TestCase):
    def test_f0_matches_librosa_yin(self):
        seconds = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
        hz = 140 + 40 * np.sin(2 * np.pi * 0.5 * seconds)
        phase = 2 * np.pi * np.cumsum(hz) / SAMPLE_RATE_HZ
        wave = sum(0.3 / k * np.sin(k * phase) for k in range(1, 12))
        f0_hz, voiced = pitch(wave)
        # librosa's frames have 1140 samples; the padding moves them to start with ours.
        padded = np.pad(wave, (356, 1140))
        grid = {"frame_length": 1140, "hop_length": HOP_SAMPLES, "center": False}
        reference = librosa.yin(padded, fmin=60, fmax=600, sr=SAMPLE_RATE_HZ, **grid)
        inner = slice(EDGE, len(f0_hz) - EDGE)
        self.assertTrue(voiced[inner].all())
        self.assertLess(np.median(semitones(f0_hz[inner], reference[inner])), 0.1)
        self.assertLess(semitones(f0_hz[inner], reference[inner]).max(), 0.5)


class BatchTest(unittest.TestCase):
    def test_padding_and_other_rows_change_no_f0(self):
        lengths = [0, 5_000, 8_191, 12_000]
        rows = [vowel(100.0 + 20 * i, 1.0)[:n].astype(np.float32) for i, n in enumerate(lengths)]
        for garbage in (0.0, 1.0, np.nan):
            batch = np.full((4, 12_000), garbage, np.float32)
            for target, row in zip(batch, rows, strict=True):
                target[: len(row)] = row
            hz, voiced = (value.numpy() for value in f0(batch, tf.constant(lengths)))
            self.assertEqual((hz.shape, hz.dtype, voiced.dtype), ((4, 46), np.float32, np.bool_))
            for row, row_hz, row_voiced in zip(rows, hz, voiced, strict=True):
                frames = len(row) // HOP_SAMPLES
                self.assertFalse(row_voiced[frames:].any())
                if frames:
                    alone, alone_voiced = pitch(row)
                    np.testing.assert_array_equal(row_voiced[:frames], alone_voiced)
                    np.testing.assert_allclose(row_hz[:frames], alone, rtol=1e-4)

    def test_eager_and_traced_with_unknown_dimensions_agree(self):
        wave, samples = vowel(130.0)[None].astype(np.float32), tf.constant([9_000])
        specs = tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32)
        traced = tf.function(f0, input_signature=specs)
        np.testing.assert_allclose(traced(wave, samples)[0], f0(wave, samples)[0], rtol=1e-4)

    # A voice that is heard an octave off for three frames, and one that leaps by an octave.
    def test_frames_are_in_the_octave_of_their_neighbours(self):
        hz = np.full([1, 60], 110.0, np.float32)
        hz[0, 10:13], hz[0, 20:23], hz[0, 30:34] = 55.5, 221.0, 0.0
        expected = np.where(hz == 0.0, 0.0, np.where(hz < 100.0, 111.0, np.minimum(hz, 110.5)))
        np.testing.assert_allclose(in_octave_of_neighbours(tf.constant(hz)), expected)
        leap = np.repeat([[100.0, 200.0]], 30, axis=1).astype(np.float32)
        np.testing.assert_array_equal(in_octave_of_neighbours(tf.constant(leap)), leap)

    def test_f0_runs_on_the_current_device(self):
        with tf.device(MODEL):
            hz, voiced = f0(tf.zeros([1, 4_096]), tf.constant([4_096]))
        self.assertTrue(hz.device.endswith(MODEL[1:]) and voiced.device.endswith(MODEL[1:]))
