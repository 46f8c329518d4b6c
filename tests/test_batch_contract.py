"""The batch contract: valid batches pass, and every violation is named."""

import unittest

from tests.sine_corpus import tones
from tests.two_devices import DATA

# isort: split

import numpy as np
import tensorflow as tf

from fakes.toy import traced_once
from myxtts.audio.format import MEL_BANDS
from myxtts.audio.mel import log_mel, warped_mel_filters
from myxtts.batch import TEXT, TTS_FEATURES, TTS_INPUTS, check_batch
from myxtts.data.features import VTLP_COSINES, tts_extractor, tts_features, vtlp_warp

SIZES = {
    "batch": 2,
    "tokens": 5,
    "samples": 2_560,
    "reference_samples": 1_280,
    "frames": 10,
    "reference_frames": 5,
}


def batch_of(fields) -> dict[str, np.ndarray]:
    """Return zeros that satisfy the contract."""
    return {
        name: np.zeros([SIZES.get(dim, dim) for dim in field.dims], field.dtype)
        for name, field in fields.items()
    }


class CheckTest(unittest.TestCase):
    def test_valid_arrays_tensors_and_symbolic_tensors_pass(self):
        for fields in (TTS_INPUTS, TTS_FEATURES):
            check_batch(batch_of(fields), fields, "test")
            check_batch(
                {name: tf.constant(array) for name, array in batch_of(fields).items()},
                fields,
                "test",
            )
            check_batch(
                {name: tf.TensorSpec(field.shape, field.dtype) for name, field in fields.items()},
                fields,
                "test",
            )

    def test_missing_field_is_rejected(self):
        for name in TTS_FEATURES:
            batch = batch_of(TTS_FEATURES)
            del batch[name]
            with self.assertRaisesRegex(TypeError, f"^batch after test: {name} is missing$"):
                check_batch(batch, TTS_FEATURES, "test")

    def test_unknown_field_is_rejected(self):
        with self.assertRaisesRegex(TypeError, "pitch is unknown"):
            check_batch(batch_of(TTS_FEATURES) | {"pitch": np.zeros(2)}, TTS_FEATURES, "test")

    def test_wrong_dtype_is_named(self):
        for name, field in TTS_FEATURES.items():
            batch = batch_of(TTS_FEATURES)
            batch[name] = batch[name].astype(np.float64)
            with self.assertRaisesRegex(TypeError, f"{name} is float64, not {field.dtype}"):
                check_batch(batch, TTS_FEATURES, "test")
        with self.assertRaisesRegex(TypeError, "mel is bfloat16, not float32"):
            check_batch(
                batch_of(TTS_FEATURES) | {"mel": tf.zeros([2, 10, MEL_BANDS], tf.bfloat16)},
                TTS_FEATURES,
                "test",
            )

    def test_wrong_rank_is_named(self):
        for name in TTS_FEATURES:
            batch = batch_of(TTS_FEATURES)
            batch[name] = batch[name][None]
            with self.assertRaisesRegex(TypeError, f"{name} has shape"):
                check_batch(batch, TTS_FEATURES, "test")

    def test_a_named_dimension_must_have_one_size_in_all_fields(self):
        with self.assertRaisesRegex(TypeError, "has [23] batch, not [23]"):
            check_batch(
                batch_of(TTS_FEATURES) | {"frames": np.zeros(3, np.int32)}, TTS_FEATURES, "test"
            )

    def test_a_fixed_dimension_must_have_its_size(self):
        for name, shape in (("mel", (2, 10, 79)), ("reference", (2, 5, 81))):
            with self.assertRaisesRegex(TypeError, f"{name} has {shape[2]} 80, not 80"):
                check_batch(
                    batch_of(TTS_FEATURES) | {name: np.zeros(shape, np.float32)},
                    TTS_FEATURES,
                    "test",
                )

    def test_all_violations_are_listed_in_one_error(self):
        batch = batch_of(TTS_INPUTS) | {
            "pcm": np.zeros((2, 3), np.float32),
            "seed": np.zeros(3, np.int32),
        }
        del batch["tokens"]
        with self.assertRaisesRegex(
            TypeError, "pcm is float32, not int16; seed has 3 2, not 2; tokens is missing"
        ):
            check_batch(batch, TTS_INPUTS, "test")

    def test_values_are_not_checked(self):
        with tf.device(DATA):
            check_batch(
                {
                    name: tf.fill(array.shape, array.dtype.type(7))
                    for name, array in batch_of(TTS_INPUTS).items()
                },
                TTS_INPUTS,
                "",
            )


class StagesTest(unittest.TestCase):
    def test_producing_turns_waves_into_features_and_keeps_the_text(self):
        waves = batch_of(TTS_INPUTS) | {"tokens": np.arange(10, dtype=np.int32).reshape(2, 5)}
        features = tts_features({name: tf.constant(array) for name, array in waves.items()})
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


def factors(features: dict) -> np.ndarray:
    """Return the factor by which the pitch of each tone was multiplied, float32 [3]."""
    return np.median(features["f0_hz"].numpy()[:3, 4:20], axis=1) / 200.0


class VTLPTest(unittest.TestCase):
    VTLP = 0.3

    def test_a_range_of_0_leaves_the_features_unchanged(self):
        waves = tones()
        features = tts_features(waves, 0.0)
        for mel, pcm, samples in (
            ("mel", "pcm", "samples"),
            ("reference", "reference_pcm", "reference_samples"),
        ):
            expected = log_mel(waves[pcm].astype(np.float32) / 32_768, waves[samples])
            np.testing.assert_array_equal(features[mel], expected)

    def test_target_reference_and_pitch_of_a_row_are_warped_by_the_same_factor(self):
        waves = tones()
        features = tts_features(waves, self.VTLP)
        check_batch(features, TTS_FEATURES, "producing")
        factor, filters = vtlp_warp(tf.constant(waves["seed"]), 4, self.VTLP)
        np.testing.assert_allclose(factors(features), factor[:3], rtol=0.002)
        for mel, pcm, samples in (
            ("mel", "pcm", "samples"),
            ("reference", "reference_pcm", "reference_samples"),
        ):
            expected = log_mel(waves[pcm].astype(np.float32) / 32_768, waves[samples], filters)
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
            np.testing.assert_allclose(
                np.nanmax(raised, axis=1), np.nanmin(raised, axis=1), rtol=1e-3
            )
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
        batches = (
            {name: tf.constant(value) for name, value in tones(seed).items()} for seed in range(30)
        )
        measured = np.log([factors(traced(batch)[0]) for batch in batches])
        self.assertEqual(len(np.unique(measured)), measured.size)
        self.assertLess(np.abs(measured).max(), self.VTLP + 0.01)
        self.assertLess(measured.min(), -0.25)
        self.assertGreater(measured.max(), 0.25)
        self.assertLess(abs(measured.mean()), 0.06)  # 3 standard errors of a uniform distribution

    def test_factors_depend_on_the_seed_but_not_on_padding_or_later_rows(self):
        waves = tones(3)
        expected = factors(tts_features(waves, self.VTLP))
        np.testing.assert_allclose(
            factors(tts_features(tones(3, padded=20_480), self.VTLP)), expected, rtol=1e-5
        )
        fewer = {
            n: v if n in ("seed", "step_frames", "step_tokens") else v[:3] for n, v in waves.items()
        }
        np.testing.assert_allclose(factors(tts_features(fewer, self.VTLP)), expected, rtol=1e-5)
        traced = traced_once(DATA, tts_extractor(self.VTLP))
        features, _ = traced({name: tf.constant(value) for name, value in waves.items()})
        np.testing.assert_allclose(factors(features), expected, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()
