"""A minute of a person's speech, and the programs that make and degrade corpora of people."""

import shutil
import unittest
from pathlib import Path

from tests.two_devices import MODEL

# isort: split

import numpy as np
import soundfile
import tensorflow as tf

from myxtts.audio.mel import log_mel
from myxtts.audio.pitch import f0
from myxtts.config.schema import Config, DataConfig, RunConfig
from myxtts.data.audio_file import read_wave
from myxtts.data.dataset import load_corpora
from myxtts.errors import DataError
from myxtts.tasks.registry import length_rule_of
from tests.fixtures import FolderCase
from tests.sine_corpus import sine
from utilities.human import corpora, degrade

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


class CorporaTest(FolderCase):
    def setUp(self):
        super().setUp()
        share = self.folder / "from/usr/share"
        voice = share / corpora.CORPORA["festvox-ru"].folder
        (share / "doc/festvox-ru").mkdir(parents=True)
        for number in range(22):
            name = f"ru_{number:04d}"
            self.write(f"{voice}/wav/{name}.wav")
            soundfile.write(voice / "wav" / f"{name}.wav", sine(100, 1.0), 22_050)
        lines = [f'( ru_{number:04d} "Она{number}, в+олос." )' for number in range(21)]
        lines.append('( ru_0021 "' + "а" * 30 + '" )')
        self.write(f"{voice}/etc/txt.done.data", "\n".join(lines) + "\n")

    def make(self, name="festvox-ru", source="from"):
        out = self.folder / "out"
        corpora.make_corpus(name, out, self.folder / source, self.folder / "packages")
        return corpora.read_tables(out)

    def test_every_20th_sentence_is_held_out_and_texts_too_long_for_their_speech_are_left_out(self):
        training, held_out = (tables := self.make()).values()
        self.assertEqual(
            [row["path"] for row in held_out], ["wavs/ru_0000.wav", "wavs/ru_0020.wav"]
        )
        self.assertEqual(len(training), 19)
        first = {"path": "wavs/ru_0001.wav", "text": "Она1, волос."}
        self.assertEqual(training[0], first | {"speaker": "festvox-ru", "language": "ru"})
        self.assertEqual(self.make(), tables)

    def test_a_folder_without_the_package_is_an_error_that_says_what_to_give(self):
        with self.assertRaisesRegex(DataError, "festvox-ru was requested.*Give another folder"):
            self.make(source="packages")

    def test_prompts_with_digits_or_brackets_have_no_text(self):
        lines = "\ufeff; English\n\na/b: Hello.\nc:press 1\nd: (beep)\ne: ...\nf: Dial: now \n"
        file = self.write("texts.gz", corpora.gzip.compress(lines.encode()))
        self.assertEqual(corpora.prompt_texts(file), {"a/b": "Hello.", "f": "Dial: now"})

    @unittest.skipUnless(shutil.which("ffmpeg"), "needs ffmpeg")
    def test_prompts_of_subfolders_are_decoded_and_missing_ones_left_out(self):
        soundfile.write(self.write("sounds/a/b.wav"), sine(100, 1.0), 22_050)
        texts = {"a/b": "Hello.", "c": "Missing."}
        decoded = corpora.decode_prompts(texts, self.folder / "sounds", self.folder / "wavs")
        self.assertEqual(decoded, {"a_b": "Hello."})
        self.assertEqual(soundfile.info(self.folder / "wavs/a_b.wav").samplerate, 16_000)


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
