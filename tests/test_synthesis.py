"""A trained run speaks: the voice, the program around it, and what both refuse."""

import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.errors import CheckpointError, ConfigError, DataError
from myxtts.synthesis.speech import write_speech
from myxtts.synthesis.voice import Voice
from myxtts.training.checkpoint import list_checkpoints
from myxtts.training.trained import choose_checkpoint
from tests.sine_corpus import sine, write_sound
from tests.tiny import Workplace, small_models
from tests.two_devices import MODEL

TEXT = "aaeab"


class Case(unittest.TestCase):
    """A run of 4 steps with validation after 2 and 4, and its voice."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.place = Workplace(Path(folder.name))
        finished = cls.place.train("voice", "--max-steps", "4", "--validate-every", "2")
        assert finished.code == 0, finished
        cls.run_folder = cls.place.run("voice")
        cls.reference = cls.place.folder / "reference.flac"
        write_sound(cls.reference, sine(220.0, 1.0, 44_100), 44_100, "PCM_16")
        with small_models():
            cls.voice = Voice(cls.run_folder, MODEL)
        cls.text = cls.known_text()

    @classmethod
    def known_text(cls) -> str:
        """Text of symbols that the run knows."""
        return "".join(symbol for symbol in cls.voice._symbols.symbols if symbol.isalpha()) * 2


class Speaking(Case):
    def test_wave_has_whole_frames_and_a_level(self):
        wave = self.voice.speak(self.text, self.reference)
        self.assertEqual((wave.dtype, wave.ndim, len(wave) % HOP_SAMPLES), (np.float32, 1, 0))
        self.assertGreater(len(wave), HOP_SAMPLES * len(self.text))  # a frame or more for each token
        self.assertTrue(np.isfinite(wave).all() and 0.0 < np.abs(wave).max() <= 1.0)

    def test_same_seed_gives_the_same_wave_and_another_one_other_phases(self):
        first, again, other = (self.voice.speak(self.text, self.reference, seed=seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        self.assertEqual(first.shape, other.shape)
        self.assertTrue((first != other).any())

    def test_slower_is_longer(self):
        plain, slow = (len(self.voice.speak(self.text, self.reference, speed=speed)) for speed in (1.0, 0.25))
        self.assertGreater(slow, 2 * plain)

    def test_unknown_symbols_are_named_and_few_of_them_left_out(self):
        with self.assertLogs("myxtts", "WARNING") as logs:
            self.voice.speak(self.text * 3 + "ჰ", self.reference)
        self.assertIn("ჰ", logs.output[0])

    def test_text_of_unknown_symbols_is_refused(self):
        for text, said in (
            ("漢字 ჰაერი", "the training corpus does not have"),
            ("", "0 of the 0"),
            ("  ", "0 of the 0"),
        ):
            with self.subTest(text=text), self.assertRaises(DataError) as caught:
                self.voice.speak(text, self.reference)
            self.assertIn(said, str(caught.exception))

    def test_language_of_another_run_is_refused(self):
        with self.assertRaisesRegex(DataError, "language 'ka' was asked for, but this run was trained on en"):
            self.voice.speak(self.text, self.reference, language="ka")

    def test_reference_that_is_no_speech_is_refused(self):
        short, text = self.place.folder / "short.wav", self.place.folder / "notes.wav"
        write_sound(short, sine(220.0, 0.3), SAMPLE_RATE_HZ, "PCM_16")
        text.write_text("no audio")
        for path, said in ((short, "has 0.30 s"), (text, "cannot be read"), (self.place.folder, "cannot be read")):
            with self.subTest(path=path.name), self.assertRaises(DataError) as caught:
                self.voice.speak(self.text, path)
            self.assertIn(said, str(caught.exception))
            self.assertNotIn("row", str(caught.exception))


class Checkpoint(Case):
    def test_the_best_one_speaks_and_the_newest_where_it_is_gone(self):
        copied = self.place.folder / "copied"
        shutil.copytree(self.run_folder, copied)
        best = choose_checkpoint(copied)
        self.assertIn(best, list_checkpoints(copied / "checkpoints"))
        newest = list_checkpoints(copied / "checkpoints")[-1]
        if best != newest:
            shutil.rmtree(best)
            with self.assertLogs("myxtts", "WARNING"):
                self.assertEqual(choose_checkpoint(copied), newest)

    def test_a_folder_without_a_run_is_refused(self):
        with self.assertRaisesRegex(CheckpointError, "has no checkpoint"):
            choose_checkpoint(self.place.folder)


class Program(Case):
    def write(self, out: Path) -> None:
        with small_models():
            write_speech(self.run_folder, self.text, self.reference, out, None, 1.0, 0)

    def test_output_that_cannot_be_is_refused_before_anything_is_computed(self):
        folder = self.place.folder
        (folder / "folder.wav").mkdir()
        for name, said in (("x.mp4", "no known ending"), ("none/x.wav", "no folder"), ("folder.wav", "is a folder")):
            with self.subTest(name=name), self.assertRaisesRegex(ConfigError, said):
                self.write(folder / name)

    def test_file_has_the_wave_that_the_voice_gives(self):
        out = self.place.folder / "out.wav"
        with mock.patch("myxtts.synthesis.speech.devices.configure"):  # this process has its devices
            self.write(out)
        wave, rate_hz = soundfile.read(out, dtype="float32")
        self.assertEqual(rate_hz, SAMPLE_RATE_HZ)
        np.testing.assert_allclose(wave, self.voice.speak(self.text, self.reference), atol=1.1 / 32768)
        self.assertEqual([path.name for path in out.parent.glob(".*")], [])


if __name__ == "__main__":
    unittest.main()
