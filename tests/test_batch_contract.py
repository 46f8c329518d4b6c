"""The batch contract: valid batches pass, and every violation is named."""

import unittest

from tests.sine_corpus import tones
from tests.two_devices import DATA

# isort: split

import numpy as np
import tensorflow as tf

from fakes.toy import traced_once
from myxtts.audio.mel import log_mel, warped_mel_filters
from myxtts.batches.contract import TEXT, TTS_INPUTS
from myxtts.devicefeed.contract import check_batch
from myxtts.tasks.features import VTLP_COSINES, tts_features, vtlp_warp
from myxtts.tasks.tts.contract import TTS_FEATURES
from myxtts.tasks.tts.features import tts_extractor

SIZES = {"batch": 2, "tokens": 5, "samples": 2_560, "reference_samples": 1_280}
SIZES |= {"frames": 10, "reference_frames": 5}


def batch_of(fields, **changes) -> dict[str, np.ndarray]:
    """Return zeros that satisfy the contract, with changes; None removes a field."""
    batch = {
        name: np.zeros([SIZES.get(dim, dim) for dim in field.dims], field.dtype)
        for name, field in fields.items()
    }
    return {name: value for name, value in (batch | changes).items() if value is not None}


class StagesTest(unittest.TestCase):
    def test_producing_turns_waves_into_features_and_keeps_the_text(self):
        waves = batch_of(TTS_INPUTS, tokens=np.arange(10, dtype=np.int32).reshape(2, 5))
        features = tts_features(constants(waves))
        check_batch(features, TTS_FEATURES, "producing")
        for name in TEXT:
            np.testing.assert_array_equal(features[name], waves[name])

    def test_outputs_of_the_traced_function_match_the_contract(self):
        for vtlp in (0.0, 0.1):
            outputs = traced_once(DATA, tts_extractor(vtlp)).structured_outputs[0]
            check_batch(outputs, TTS_FEATURES, "producing")
            for name, field in TTS_FEATURES.items():
                self.assertEqual(outputs[name].shape.as_list(), field.shape, name)

    def test_f0_is_the_pitch_of_the_target_and_zero_in_padding(self):
        hz = tts_features(tones())["f0_hz"].numpy()
        self.assertEqual(hz.shape, (4, 40))
        np.testing.assert_allclose(hz[:3, 4:20], 200.0, rtol=0.002)
        for row, samples in zip(hz, (10_240, 8_000, 6_000, 0), strict=True):
            np.testing.assert_array_equal(row[samples // 256 :], 0.0)


def constants(waves) -> dict[str, tf.Tensor]:
    return {name: tf.constant(value) for name, value in waves.items()}


def factors(features: dict) -> np.ndarray:
    """Return the factor by which the pitch of each tone was multiplied, float32 [3]."""
    return np.median(features["f0_hz"].numpy()[:3, 4:20], axis=1) / 200.0


class VTLPTest(unittest.TestCase):
    VTLP = 0.3

    def test_a_range_of_0_leaves_the_features_unchanged(self):
        waves = tones()
        features = tts_features(waves, 0.0)
        for mel, prefix in (("mel", ""), ("reference", "reference_")):
            wave = waves[f"{prefix}pcm"].astype(np.float32) / 32_768
            expected = log_mel(wave, waves[f"{prefix}samples"])
            np.testing.assert_array_equal(features[mel], expected)

    def test_target_reference_and_pitch_of_a_row_are_warped_by_the_same_factor(self):
        waves = tones()
        features = tts_features(waves, self.VTLP)
        check_batch(features, TTS_FEATURES, "producing")
        factor, filters = vtlp_warp(tf.constant(waves["seed"]), 4, self.VTLP)
        np.testing.assert_allclose(factors(features), factor[:3], rtol=0.002)
        for mel, prefix in (("mel", ""), ("reference", "reference_")):
            wave = waves[f"{prefix}pcm"].astype(np.float32) / 32_768
            expected = log_mel(wave, waves[f"{prefix}samples"], filters)
            np.testing.assert_allclose(features[mel], expected, atol=1e-4)
        np.testing.assert_array_equal(features["f0_hz"] > 0, tts_features(waves)["f0_hz"] > 0)

    def test_the_spectral_gain_is_a_smooth_curve_of_bounded_height(self):
        seeds = [tf.constant([seed, 0], tf.int32) for seed in range(20)]
        gains = []
        for seed in seeds:
            factor, filters = vtlp_warp(seed, 4, self.VTLP)
            plain = warped_mel_filters(factor).numpy()
            audible = plain > 1e-4
            raised = np.where(audible, filters / np.where(audible, plain, 1.0), np.nan)
            gains.append(np.log(np.nanmean(raised, axis=1)))
            highest, lowest = np.nanmax(raised, axis=1), np.nanmin(raised, axis=1)
            np.testing.assert_allclose(highest, lowest, rtol=1e-3)
        gains = np.concatenate(gains)  # [80, 80]
        actual = np.abs(np.diff(gains, axis=1)).max()
        self.assertLess(actual, 2 * self.VTLP * sum(range(VTLP_COSINES)) * np.pi / 80)
        heights = 2 / 80 * gains @ np.cos(np.pi * np.outer(np.arange(80) + 0.5, np.arange(12)) / 80)
        np.testing.assert_allclose(heights[:, VTLP_COSINES:], 0.0, atol=1e-3)
        uniform = 2 * self.VTLP / np.sqrt(3)
        np.testing.assert_allclose(heights[:, 1:VTLP_COSINES].std(), uniform, rtol=0.1)
        np.testing.assert_allclose(heights[:, 0].std() / 2, uniform, rtol=0.3)

    def test_factors_cover_the_range_and_differ_between_rows_and_batches(self):
        traced = traced_once(DATA, tts_extractor(self.VTLP))
        measured = np.log([factors(traced(constants(tones(seed)))[0]) for seed in range(30)])
        self.assertEqual(len(np.unique(measured)), measured.size)
        self.assertLess(np.abs(measured).max(), self.VTLP + 0.01)
        self.assertLess(measured.min(), -0.25)
        self.assertGreater(measured.max(), 0.25)
        self.assertLess(abs(measured.mean()), 0.06)  # 3 standard errors of a uniform distribution

    def test_factors_depend_on_the_seed_but_not_on_padding_or_later_rows(self):
        waves = tones(3)
        expected = factors(tts_features(waves, self.VTLP))
        whole = ("seed", "step_frames", "step_tokens")
        fewer = waves | {name: v[:3] for name, v in waves.items() if name not in whole}
        traced, _ = traced_once(DATA, tts_extractor(self.VTLP))(constants(waves))
        others = [tts_features(w, self.VTLP) for w in (tones(3, padded=20_480), fewer)]
        for features in (*others, traced):
            np.testing.assert_allclose(factors(features), expected, rtol=1e-5)
