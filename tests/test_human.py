"""A minute of a person's speech, and the program that degrades corpora."""

import unittest
from pathlib import Path

from tests.two_devices import MODEL

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.audio.audio_file import read_wave
from myxtts.audio.mel import log_mel
from myxtts.audio.pitch import f0
from myxtts.batches.corpora import load_corpora
from myxtts.config.schema import Config, DataConfig, RunConfig
from myxtts.tasks.registry import length_rule_of
from tests.fixtures import FolderCase
from utilities.human import degrade

MINUTE = Path(__file__).parent / "human"


class MinuteTest(FolderCase):
    def test_the_minute_loads_whole(self):
        data = DataConfig(train_data=str(MINUTE / "metadata.csv"), validation_fraction=0)
        run = RunConfig(validate_every=0, sample_every=0)
        config = Config(data=data, run=run)
        corpus, _, vocabulary = load_corpora(config, self.folder, length_rule_of(config))
        self.assertEqual(len(corpus.manifest), 11)
        self.assertEqual(vocabulary.languages, ("ru",))

    def test_its_mel_and_f0_are_finite_and_of_a_man(self):
        for path in sorted(MINUTE.glob("*.ogg"))[:3]:
            wave = read_wave(path)
            with tf.device(MODEL):
                mel = log_mel(tf.constant(wave[None])).numpy()
                hz, voiced = f0(wave[None], tf.constant([len(wave)]))
            self.assertTrue(np.isfinite(mel).all(), path)
            self.assertTrue(np.isfinite(hz.numpy()).all(), path)
            self.assertTrue(80 < np.median(hz.numpy()[voiced.numpy()]) < 160, path)


class DegradeTest(unittest.TestCase):
    def test_a_name_decides_what_happens_and_the_length_stays(self):
        wave = read_wave(MINUTE / "ru_0063.ogg")
        ways = [degrade.degrade(wave, name) for name in ("a", "a", "b")]
        self.assertEqual([len(way) for way in ways], [len(wave)] * 3)
        np.testing.assert_array_equal(ways[0], ways[1])
        self.assertGreater(np.abs(ways[0] - ways[2]).max(), 0.1)

    def test_opus_does_not_move_the_wave(self):
        wave = read_wave(MINUTE / "ru_0063.ogg")
        products = [np.dot(np.roll(degrade.opus(wave), shift), wave) for shift in range(-9, 10)]
        self.assertLessEqual(abs(int(np.argmax(products)) - 9), 1)


if __name__ == "__main__":
    unittest.main()
