"""Augmentation: distortions of signals with known answers, and what a batch keeps."""

import unittest

import numpy as np
import tensorflow as tf

from fakes.copies import find_copies
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.mel import log_mel
from myxtts.base.errors import ConfigError
from myxtts.base.portable_ops import fold_in
from myxtts.config.checks import check_settings
from myxtts.config.schema import AugmentationConfig, Config
from myxtts.corpus.manifest import LengthRule
from myxtts.devicefeed.contract import check_batch
from myxtts.devicefeed.producer import trace_produce
from myxtts.tasks import augmentation
from myxtts.tasks.asr.features import asr_extractor, fewest_samples
from myxtts.tasks.asr.task import ASRTask
from myxtts.tasks.augmentation import augment, band_pass_gain, impulse_response, mu_law
from myxtts.tasks.contract import ASR_FEATURES
from myxtts.tasks.features import tts_features
from myxtts.tasks.tts.features import tts_extractor
from myxtts.text.symbols import BEGIN_ID, END_ID, PADDING_ID
from myxtts.trial.preflight.kernels import audit
from tests.sine_corpus import tones
from tests.tiny import on_device
from tests.two_devices import DATA, MODEL

SAMPLES = np.array([6000, 4000, 2000, 0], np.int32)
SEED = (1, 2)
KINDS = ("reverb", "noise", "equaliser", "band_limit", "codec")
PROBABILITIES = {f"{kind}_probability": 0.5 for kind in KINDS}
ALL = AugmentationConfig(**PROBABILITIES, reverb_max_rt60=0.2)


def waves(padded: int = 6000) -> np.ndarray:
    """Return rows of different tones with garbage behind their ends, float32 [4, padded]."""
    hz = np.array([[200], [300], [500], [700]])
    cycles = hz * np.arange(padded) / SAMPLE_RATE_HZ
    return (0.3 * np.sin(2 * np.pi * cycles)).astype(np.float32)


def augmented(rows=None, samples=SAMPLES, seed=SEED, device=DATA, **settings) -> np.ndarray:
    settings = AugmentationConfig(**settings) if settings else ALL
    with tf.device(device):
        rows = tf.constant(waves() if rows is None else rows)
        return augment(rows, tf.constant(samples), tf.constant(seed), settings).numpy()


def real(rows: np.ndarray) -> np.ndarray:
    return np.where(np.arange(rows.shape[1]) < SAMPLES[:, None], rows, 0.0)


def energy(rows: np.ndarray) -> np.ndarray:
    return np.square(rows, dtype=np.float64).sum(axis=-1)


def constants(*values: float) -> tuple[tf.Tensor, ...]:
    return tuple(tf.constant([[value]], tf.float32) for value in values)


class BatchTest(unittest.TestCase):
    def test_nothing_is_changed_if_all_is_off(self):
        rows = tf.constant(waves())
        actual = augment(rows, tf.constant(SAMPLES), tf.constant(SEED), AugmentationConfig())
        self.assertIs(actual, rows)

    def test_padding_is_silent_and_all_values_are_finite(self):
        for seed in range(4):
            rows = augmented(seed=(seed, 0))
            np.testing.assert_array_equal(rows, real(rows))
            self.assertTrue(np.isfinite(rows).all())
            self.assertTrue((energy(rows[:3]) > 0.0).all())

    def test_the_seed_decides_and_rows_differ(self):
        rows = np.repeat(waves()[:1], 4, axis=0)
        settings = {"noise_probability": 1.0, "babble_fraction": 0.0}
        first, again, other = (
            augmented(rows, seed=seed, **settings) for seed in (SEED, SEED, (1, 3))
        )
        np.testing.assert_array_equal(first, again)
        self.assertFalse(np.array_equal(first[0], other[0]))
        self.assertFalse(np.array_equal(first[0, :2000], first[1, :2000]))

    def test_neither_the_device_nor_what_lies_behind_a_row_matters(self):
        np.testing.assert_array_equal(augmented(), augmented(device=MODEL))
        np.testing.assert_array_equal(augmented(), augmented(real(waves())))

    def test_what_is_drawn_for_a_row_depends_neither_on_later_rows_nor_on_padding(self):
        settings = {"reverb_probability": 1.0, "equaliser_probability": 1.0}
        settings["band_limit_probability"] = 0.5
        longer = augmented(np.pad(waves()[:2], [(0, 0), (0, 500)]), SAMPLES[:2], **settings)
        np.testing.assert_allclose(longer[:, :6000], augmented(**settings)[:2], atol=1e-5)

    def test_probabilities_are_fractions_of_the_rows(self):
        rows, samples = np.repeat(waves(500)[:1], 400, axis=0), np.full(400, 500, np.int32)
        for setting in PROBABILITIES:
            changed = augmented(rows, samples, **{setting: 0.25})
            fraction = (np.abs(changed - rows).max(axis=1) > 1e-5).mean()
            self.assertAlmostEqual(fraction, 0.25, delta=0.07, msg=setting)


class NoiseTest(unittest.TestCase):
    def test_noise_has_the_drawn_ratio_to_speech(self):
        settings = {"noise_probability": 1.0, "noise_min_snr_db": 5.0, "noise_max_snr_db": 5.0}
        speech = real(waves())
        for babble in (0.0, 1.0):
            rows = augmented(babble_fraction=babble, **settings)
            snr_db = 10 * np.log10(energy(speech)[:3] / energy(rows - speech)[:3])
            np.testing.assert_allclose(snr_db, 5.0, atol=0.01)

    def test_babble_is_a_sum_of_the_other_rows(self):
        rows = augmented(noise_probability=1.0, babble_fraction=1.0)
        speech = real(waves()).astype(np.float64)
        for row in range(3):
            others = np.delete(speech[:3], row, axis=0)[:, : SAMPLES[row]]
            noise = (rows - speech)[row, : SAMPLES[row]]
            weights, *_ = np.linalg.lstsq(others.T, noise, rcond=None)
            np.testing.assert_allclose(weights @ others, noise, atol=1e-5)

    def test_a_row_alone_gets_coloured_noise(self):
        rows = augmented(waves()[:1], SAMPLES[:1], noise_probability=1.0, babble_fraction=1.0)
        self.assertGreater(energy(rows - waves()[:1])[0], 0.0)

    def test_the_amplitude_of_brown_noise_halves_with_each_octave(self):
        hz = tf.constant([0.0, 50.0, 100.0, 200.0])
        gain = augmentation.noise_gain(hz, tf.constant([[0.0], [1.0]]))
        np.testing.assert_allclose(gain, [[1, 1, 1, 1], [1, 1, 0.5, 0.25]], rtol=1e-5)


class RoomTest(unittest.TestCase):
    def test_the_tail_falls_by_60_db_in_the_reverberation_time(self):
        noise = tf.random.stateless_normal([1, 9000], SEED)
        response = impulse_response(noise, *constants(0.3, 6.0), tf.constant([[True]])).numpy()[0]
        self.assertEqual(response[0], 1.0)
        self.assertAlmostEqual(-10 * np.log10(energy(response[1:])), 6.0, places=3)
        levels_db = 10 * np.log10(energy(response[1:6601].reshape(-1, 300)))
        slope_db, _ = np.polyfit(np.arange(len(levels_db)) * 300 / SAMPLE_RATE_HZ, levels_db, 1)
        self.assertAlmostEqual(slope_db * 0.3, -60.0, delta=2.0)

    def test_a_click_stays_where_it_is_and_rings_only_afterwards(self):
        click = np.zeros((4, 6000), np.float32)
        click[:, 1000] = 1.0
        rows = augmented(click, reverb_probability=1.0)
        np.testing.assert_allclose(rows[:3, :1000], 0.0, atol=1e-6)
        np.testing.assert_allclose(rows[:3, 1000], 1.0, atol=1e-5)
        self.assertTrue((energy(rows[:2, 1001:]) > 0.01).all())

    def test_a_row_without_a_room_is_unchanged(self):
        response = impulse_response(tf.ones([1, 9]), *constants(0.3, 0.0), tf.constant([[False]]))
        np.testing.assert_array_equal(response, [[1] + 8 * [0]])


class ChannelTest(unittest.TestCase):
    def test_a_sine_gets_the_gain_of_its_frequency(self):
        settings = {"equaliser_probability": 1.0, "band_limit_probability": 1.0}
        rows = augmented(np.tile(waves()[1], (4, 1)), np.full(4, 6000, np.int32), **settings)
        draws = augmentation.Draws(fold_in(tf.constant(SEED), "augmentation"), 4)
        settings = AugmentationConfig(**settings)
        gain = augmentation._channel(draws, tf.constant([300.0]), settings).numpy()[:, 0]
        middle = slice(2000, 4000)
        measured = np.sqrt(energy(rows[:, middle]) / energy(waves()[1, middle]))
        np.testing.assert_allclose(measured, gain, rtol=0.02)
        self.assertGreater(np.ptp(gain), 0.1)

    def test_a_peak_has_its_gain_at_its_centre_and_less_at_one_deviation(self):
        centre, octaves, gain_db = constants(1000.0, 1.0, 6.0)
        hz = tf.constant([0.0, 1000.0, 2000.0])
        gain = augmentation.equaliser_gain(hz, centre, gain_db, octaves)
        np.testing.assert_allclose(20 * np.log10(gain), [[0.0, 6.0, 6.0 * np.exp(-0.5)]], atol=1e-4)

    def test_band_limits_have_3_db_at_their_edges_and_36_db_an_octave(self):
        hz = tf.constant([150.0, 300.0, 1000.0, 3400.0, 6800.0])
        gain_db = 20 * np.log10(band_pass_gain(hz, *constants(300.0, 3400.0))[0])
        np.testing.assert_allclose(gain_db, [-36.12, -3.01, 0.0, -3.01, -36.12], atol=0.01)
        off = band_pass_gain(tf.constant([0.0, 5000.0]), *constants(0.0, np.inf))
        np.testing.assert_array_equal(off, [[1, 1]])

    def test_no_filter_reaches_around_the_end_of_the_transform(self):
        # The longest filters, at the lowest and the narrowest frequencies, of a click at the end.
        hz = tf.range(32769.0) * SAMPLE_RATE_HZ / 65536
        response = np.abs(np.fft.irfft(band_pass_gain(hz, *constants(60.0, 2500.0))[0]))
        margin = augmentation.MARGIN_SAMPLES
        self.assertLess(response[margin:-margin].max(), 1e-4 * response[0])


class CodecTest(unittest.TestCase):
    def test_mu_law_has_the_levels_of_its_bits(self):
        ramp = np.linspace(-1.1, 1.1, 40_001, dtype=np.float32)
        for bits in (4, 8):
            quantised = mu_law(ramp[None], *constants(bits)).numpy()[0]
            self.assertEqual(len(np.unique(quantised)), 2**bits - 1)
            np.testing.assert_allclose(quantised[[0, 20_000, -1]], [-1, 0, 1], atol=1e-6)
            again = mu_law(quantised[None], *constants(bits))[0]
            np.testing.assert_allclose(again, quantised, atol=1e-6)
            np.testing.assert_allclose(quantised, -quantised[::-1], atol=1e-6)

    def test_8_bits_have_an_error_of_2_percent_at_most(self):
        wave = np.linspace(0.05, 1.0, 1000, dtype=np.float32)
        np.testing.assert_allclose(mu_law(wave[None], *constants(8))[0], wave, rtol=0.0235)


class SpeedTest(unittest.TestCase):
    LIMIT = 0.1

    def changed(self, fewest=0, seed=SEED, limit=LIMIT):
        with tf.device(DATA):
            batch = tf.constant(waves()), tf.constant(SAMPLES), tf.fill([4], fewest)
            rows, samples = augmentation.perturb_speed(*batch, tf.constant(seed), limit)
        return rows.numpy(), samples.numpy()

    def test_the_pitch_of_a_tone_is_multiplied_and_its_length_divided_by_the_speed(self):
        rows, samples = self.changed()
        self.assertEqual(rows.shape, (4, 6667))
        self.assertEqual(samples[3], 0)
        speeds = SAMPLES[:3] / samples[:3]
        self.assertTrue((np.abs(speeds - 1.0) <= 0.1001).all() and np.ptp(speeds) > 0.01, speeds)
        for row, hz, speed, length in zip(rows, (200, 300, 500), speeds, samples, strict=False):
            expected = 0.3 * np.sin(2 * np.pi * hz * speed * np.arange(length) / SAMPLE_RATE_HZ)
            np.testing.assert_allclose(row[10 : length - 10], expected[10:-10], atol=1e-3)
            np.testing.assert_array_equal(row[length:], 0.0)

    def test_speeds_cover_the_range_and_depend_on_the_seed(self):
        samples = [self.changed(seed=(seed, 0))[1][:3] for seed in range(20)]
        speeds = SAMPLES[:3] / np.array(samples)
        self.assertTrue(speeds.min() < 0.92 and speeds.max() > 1.08)
        self.assertGreater(len(np.unique(speeds)), 50)  # of 60; lengths are whole numbers

    def test_no_row_becomes_shorter_than_the_fewest_samples(self):
        for seed in range(5):
            rows, samples = self.changed(fewest=5000, seed=(seed, 0))
            self.assertGreaterEqual(samples[0], 5000)
            self.assertTrue((samples[1:] >= SAMPLES[1:]).all())
            unchanged = samples == SAMPLES
            np.testing.assert_allclose(rows[unchanged, :6000], real(waves())[unchanged], atol=1e-6)

    def test_the_fewest_samples_are_those_of_the_length_rule(self):
        texts = ["aab", "abcabc", "aaaa", "", "a"]
        ids = [[BEGIN_ID, *map(ord, text), END_ID] for text in texts]
        counts = np.array([len(row) for row in ids], np.int32)
        tokens = np.array([row + [PADDING_ID] * (8 - len(row)) for row in ids], np.int32)
        for subsampling in (1, 2, 4):
            rule = LengthRule(ctc=True, subsampling=subsampling)
            needed = [rule.frames_needed(list(text)) * HOP_SAMPLES for text in texts]
            np.testing.assert_array_equal(fewest_samples(tokens, counts, subsampling), needed)


class TaskTest(unittest.TestCase):
    def test_a_recogniser_learns_from_distorted_waves_and_is_validated_on_the_recordings(self):
        batch = {name: value for name, value in tones().items() if not name.startswith("reference")}
        plain = log_mel(batch["pcm"].astype(np.float32) / 32768, batch["samples"])
        config = Config(augmentation=ALL.model_copy(update={"speed_perturbation": 0.2}))
        batch = on_device(batch, DATA)
        with tf.device(DATA):
            features = ASRTask().extractor(config, training=True).produce(batch)
            for extractor in (ASRTask().extractor(config, training=False), asr_extractor()):
                np.testing.assert_array_equal(extractor.produce(batch)["mel"], plain)
        check_batch(features, ASR_FEATURES, "producing")
        self.assertEqual(features["mel"].shape[1], 50)  # 40 frames, at 0.8 times the speed
        self.assertTrue(np.any(features["frames"][:3] != batch["samples"][:3] // 256))

    def test_of_a_voice_only_the_reference_is_distorted(self):
        plain, features = tts_features(tones()), tts_features(tones(), augmentation=ALL)
        for name in plain:
            self.assertEqual(np.array_equal(plain[name], features[name]), name != "reference", name)

    def test_the_lowest_ratio_must_not_be_above_the_highest(self):
        config = Config(augmentation=AugmentationConfig(noise_min_snr_db=30.0))
        with self.assertRaisesRegex(ConfigError, "noise_min_snr_db 30 .*noise_max_snr_db 20"):
            check_settings(config)

    def test_every_operation_has_a_gpu_kernel_and_no_value_returns_to_the_host(self):
        speed = ALL.model_copy(update={"speed_perturbation": 0.1})
        extractors = tts_extractor(augmentation=ALL), asr_extractor(augmentation=speed)
        for extractor, to_gpu in zip(extractors, (21, 19), strict=True):
            function = trace_produce(DATA, extractor)
            copies = find_copies(function)
            self.assertEqual(audit(function).host_only, ())
            self.assertEqual([copy for copy in copies if copy.to_host], [])
            self.assertLessEqual(len(copies), to_gpu)
