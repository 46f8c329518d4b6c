"""SpecAugment: position, width and value of the masks."""

import unittest

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import SILENCE, log_mel
from myxtts.batches.contract import TEXT
from myxtts.config.schema import ASRConfig, Config
from myxtts.devicefeed.contract import check_batch
from myxtts.tasks.asr.task import ASRTask
from myxtts.tasks.augmentation import spec_augment
from myxtts.tasks.contract import empty_batch
from tests.two_devices import DATA

FRAMES = np.array([100, 40, 3, 0, 100], np.int32)
OFF = {"time_masks": 0, "frequency_masks": 0}
SETTINGS = {"time_masks": 2, "frequency_masks": 2}
SETTINGS |= {"time_mask_fraction": 0.2, "frequency_mask_bands": 20}


def log_mels():
    mel = np.random.default_rng(0).normal(-5.5, 2.1, (len(FRAMES), 110, 80)).astype(np.float32)
    mel[np.arange(110)[None, :] >= FRAMES[:, None]] = SILENCE
    return mel


def augment(mel, seed=(1, 2), frames=FRAMES, **settings):
    with tf.device(DATA):
        arguments = map(tf.constant, (mel, frames, seed))
        return spec_augment(*arguments, ASRConfig(**OFF | settings)).numpy()


class SpecAugment(unittest.TestCase):
    def setUp(self):
        self.mel = log_mels()

    def masked(self, **options):
        return augment(self.mel, **options) != self.mel

    def test_masks_cover_whole_frames_and_whole_bands(self):
        masked = self.masked(**SETTINGS)
        for row, frames in zip(masked, FRAMES, strict=True):
            real = row[:frames]
            time, bands = real.all(axis=1), real.all(axis=0)
            np.testing.assert_array_equal(real, time[:, None] | bands[None, :])
        self.assertTrue(masked[0].any() and masked[1].any())

    def test_padding_is_never_masked(self):
        for seed in range(5):
            masked = self.masked(seed=(seed, 0), **SETTINGS)
            self.assertFalse(masked[np.arange(110)[None, :] >= FRAMES[:, None]].any())

    def test_masks_have_all_widths_up_to_the_largest_and_all_positions(self):
        frames = np.full(2000, 50, np.int32)
        mel = np.random.default_rng(0).normal(size=(2000, 50, 80)).astype(np.float32)
        masked = augment(mel, frames=frames, time_masks=1, time_mask_fraction=0.2) != mel
        time = masked.all(axis=2)
        widths = time.sum(axis=1)
        self.assertEqual((widths.min(), widths.max()), (0, 10))
        self.assertAlmostEqual(widths.mean(), 5.0, delta=0.3)
        self.assertTrue((np.abs(np.diff(time, axis=1)).sum(axis=1) <= 2).all())  # one span
        self.assertTrue(time.any(axis=0).all())
        masked = augment(mel, frames=frames, frequency_masks=1, frequency_mask_bands=80) != mel
        widths = masked.all(axis=1).sum(axis=1)
        self.assertEqual((widths.min(), widths.max()), (0, 80))

    def test_a_masked_value_is_the_mean_of_its_band(self):
        mel = augment(self.mel, **SETTINGS)
        for row, frames in enumerate(FRAMES):
            mean = np.broadcast_to(self.mel[row, : max(frames, 1)].mean(axis=0), (110, 80))
            masked = mel[row] != self.mel[row]
            np.testing.assert_allclose(mel[row][masked], mean[masked], rtol=1e-5)

    def test_masks_depend_on_the_seed_and_differ_between_rows(self):
        first = self.masked(**SETTINGS)
        np.testing.assert_array_equal(first, self.masked(**SETTINGS))
        self.assertFalse(np.array_equal(first, self.masked(seed=(1, 3), **SETTINGS)))
        self.assertFalse(np.array_equal(first[0], first[4]))

    def test_padding_does_not_change_the_masks(self):
        longer = np.pad(self.mel, [(0, 0), (0, 13), (0, 0)], constant_values=SILENCE)
        masked = augment(longer, **SETTINGS)[:, :110]
        np.testing.assert_array_equal(masked, augment(self.mel, **SETTINGS))

    def test_no_masks_leave_the_mel_unchanged(self):
        self.assertFalse(self.masked().any())


class TaskTest(unittest.TestCase):
    def test_only_training_batches_are_masked_and_all_have_the_contract(self):
        samples = np.array([22_016], np.int32)
        pcm = np.random.default_rng(0).integers(-9_000, 9_000, (1, 22_016), np.int16)
        with tf.device(DATA):
            waves = empty_batch(TEXT) | {"pcm": tf.constant(pcm), "samples": tf.constant(samples)}
            plain = log_mel(tf.cast(waves["pcm"], tf.float32) / 32768.0, waves["samples"]).numpy()
            cases = ({}, True, True), ({}, False, False), (OFF, True, False)
            for asr, training, changed in cases:
                extractor = ASRTask().extractor(Config(asr=ASRConfig(**asr)), training)
                produced = extractor.produce(waves)
                check_batch(waves, extractor.inputs, "reading")
                check_batch(produced, extractor.features, "producing")
                self.assertEqual((produced["mel"].numpy() != plain).any(), changed)
