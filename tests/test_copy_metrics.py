"""Metrics of copies of recordings: signals with known answers."""

import re
import unittest
from itertools import chain
from pathlib import Path
from unittest import mock

from tests.sine_corpus import noise, vowels
from tests.two_devices import MODEL

# isort: split

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.tasks.evaluation.metrics import (
    MAX_PESQ_S,
    MCD_FACTOR,
    PACKAGES,
    AcousticFeatures,
    CopyMetrics,
    log_mel_error_db,
    mean_copy_metrics,
    measure_copies,
    pesq_wb,
    stoi,
)
from myxtts.tasks.evaluation.recognisers import POCKETSPHINX
from myxtts.tasks.evaluation.speech import features_in_16_bits

ROOT = Path(__file__).parents[1]


def measure(recordings, copies) -> list[CopyMetrics]:
    features = (features_in_16_bits(of, MODEL) for of in (recordings, copies))
    return measure_copies(*features, perceptual=True)


class CopyMetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.wave = vowels()
        noises = [noise(len(cls.wave), level) for level in (0.01, 0.05)]
        copies = [cls.wave, 2 * cls.wave, *(cls.wave + each for each in noises)]
        copies = [copy.astype(np.float32) for copy in copies]
        measured = measure([cls.wave] * len(copies), copies)
        cls.same, cls.louder, cls.noisy, cls.noisier = (
            mean_copy_metrics([metrics]) for metrics in measured
        )

    def test_a_wave_is_the_best_copy_of_itself(self):
        names = ("log_mel_error", "mel_cepstral_distortion", "log_f0_rmse", "voicing_error")
        best = dict.fromkeys(names, 0.0)
        self.assertEqual(self.same, self.same | best)
        # The highest value of P.862.2.
        self.assertAlmostEqual(self.same["pesq_wb"], 4.644, places=3)
        self.assertAlmostEqual(self.same["stoi"], 1.0, places=6)

    def test_double_amplitude_is_an_error_of_6_db_and_no_distortion(self):
        self.assertAlmostEqual(self.louder["log_mel_error"], 20 * np.log10(2), delta=0.01)
        self.assertAlmostEqual(self.louder["mel_cepstral_distortion"], 0.0, delta=0.01)
        self.assertAlmostEqual(self.louder["log_f0_rmse"], 0.0, delta=1e-3)
        # It equalizes levels.
        self.assertAlmostEqual(self.louder["pesq_wb"], self.same["pesq_wb"], delta=0.02)

    def test_noise_makes_every_score_worse(self):
        for score in ("pesq_wb", "stoi"):
            self.assertGreater(self.same[score], self.noisy[score])
            self.assertGreater(self.noisy[score], self.noisier[score])
        for error in ("log_mel_error", "mel_cepstral_distortion"):
            self.assertLess(self.noisy[error], self.noisier[error])

    def test_frames_of_silence_have_no_log_mel_error(self):
        recorded, copied = np.zeros((2, 4, 80), np.float32)
        recorded[2:] = copied[2:] = -11.5
        copied[1] += 1.0  # one of two loud frames is e times as loud
        copied[3] += 3.0
        self.assertAlmostEqual(log_mel_error_db(recorded, copied), 20 / np.log(10) / 2, places=5)

    def test_frames_are_compared_with_the_frame_of_the_same_time(self):
        # c3 is 0.5 higher in the second frame; the warping path of `align` would compare it with
        # another frame.
        recorded = np.stack([np.zeros(80), np.zeros(80)])
        ripple = 0.5 * np.cos(np.pi * 3 * (np.arange(80) + 0.5) / 80)
        voiced = np.zeros(2, bool)
        recording, copy = (
            [AcousticFeatures(np.zeros(2), mel, np.zeros(2), voiced)]
            for mel in (recorded, recorded + [[0], [1]] * ripple)
        )
        (metrics,) = measure_copies(recording, copy, perceptual=False)
        self.assertAlmostEqual(metrics.mcd_db, MCD_FACTOR * 0.5 / 2)
        self.assertEqual(metrics.scores, {})

    def test_copies_are_compared_as_16_bit_samples(self):
        wave = np.resize(np.float32([-2, 0.1 / 32768, 1]), 390)
        (rounded,) = features_in_16_bits([wave], MODEL)
        np.testing.assert_array_equal(rounded.wave[:3], np.float32([-1, 0, 32767 / 32768]))

    def test_pesq_and_stoi_of_short_long_and_silent_recordings_are_not_defined(self):
        silence, short = np.zeros_like(self.wave), self.wave[:3000]
        for recording, copy in ((silence, self.wave), (self.wave, silence), (short, short)):
            self.assertIsNone(pesq_wb(recording, copy))
        for recording in (silence, short, np.pad(self.wave[:6000], (0, 9000))):
            self.assertIsNone(stoi(recording, recording))
        # 55 stretches of speech with pauses, for which the package has no room: it would end the
        # process.
        period = np.concatenate([self.wave[:4700], silence[:4700]])
        many = np.tile(period, 55)
        self.assertGreater(len(many), MAX_PESQ_S * SAMPLE_RATE_HZ)
        self.assertIsNone(pesq_wb(many, many))
        self.assertIsNotNone(pesq_wb(*[np.tile(period, 46)] * 2))

    def test_without_the_packages_everything_else_is_measured(self):
        with mock.patch("myxtts.tasks.evaluation.metrics.find_spec", return_value=None):
            (metrics,) = measure([self.wave], [self.wave])
        self.assertEqual(metrics.scores, {"pesq_wb": None, "stoi": None})
        self.assertEqual(metrics.mcd_db, 0.0)

    def test_the_extra_names_the_packages_of_the_scores(self):
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        extra = re.search(r"^evaluation = \[(.+?)\]$", project, re.MULTILINE)
        required = re.findall(r'"(.+?)"', extra[1])
        packages = [*chain.from_iterable(PACKAGES.values()), POCKETSPHINX]
        self.assertEqual([item.split(">=")[0] for item in required], packages)
