"""Sentences of a plain text in long recordings: where they are, and what is left out."""

import csv
import json
import unittest
from pathlib import Path
from unittest import mock

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import numpy as np
import soundfile

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.base.errors import DataError
from myxtts.corpus.demo_corpus import demo_texts
from myxtts.corpus.layouts import read_corpus
from myxtts.extras.align import align_command, placing, recordings, transcribed
from myxtts.extras.align.placing import Placed, place
from myxtts.extras.align.scorer import SymbolScorer
from myxtts.extras.align.tape import quiet_frames
from myxtts.tasks.tts.aligner import Aligner
from myxtts.text.espeak import EspeakVoice, isolated_copy
from tests.fixtures import FolderCase, reported

SYMBOLS = 12
FRAME_S = HOP_SAMPLES / SAMPLE_RATE_HZ


def gains_of(tokens: np.ndarray, frames_each: int, source: np.random.Generator) -> np.ndarray:
    """Return gains that fit the tokens, with noise: float32 [frames, symbols]."""
    said = np.repeat(tokens, frames_each)
    gains = source.normal(-2.0, 0.5, (len(said), SYMBOLS)).astype(np.float32)
    gains[np.arange(len(said)), said] = 2.0
    return gains


class Placing(unittest.TestCase):
    def setUp(self):
        self.source = np.random.default_rng(0)
        sentences = [self.source.integers(0, SYMBOLS, 20) for _ in range(12)]
        self.sentences = [
            np.where(np.diff(of, append=-1) == 0, (of + 1) % SYMBOLS, of) for of in sentences
        ]

    def test_sentences_are_placed_and_what_has_no_other_half_is_skipped(self):
        noise = self.source.normal(-2.0, 0.5, (100, SYMBOLS)).astype(np.float32)
        blocks = [
            noise,
            gains_of(self.sentences[0], 4, self.source),
            gains_of(self.sentences[2], 4, self.source),
            noise,
            gains_of(self.sentences[3], 4, self.source),
        ]
        expected = [Placed(0, 100, 180), Placed(2, 180, 260), Placed(3, 360, 440)]
        self.assertEqual(place(blocks, self.sentences[:4]), expected)
        # The same in one block: nothing depends on where the recording is cut.
        self.assertEqual(place([np.concatenate(blocks)], self.sentences[:4]), expected)
        self.assertEqual(place([noise], self.sentences[:4]), [])

    def test_a_band_moves_with_the_speech(self):
        blocks = [gains_of(of, 4, self.source) for of in self.sentences]
        whole = place(blocks, self.sentences)
        self.assertEqual([of.sentence for of in whole], [*range(12)])
        with mock.patch.multiple(placing, BAND_TOKENS=80, BAND_FRAMES=16, MOST_ENTRIES=4):
            self.assertEqual(place(blocks, self.sentences), whole)

    def test_a_beginning_is_not_placed_in_later_text_that_says_the_same(self):
        text = [*self.sentences[:4], *self.sentences[2:]]
        found = place([gains_of(of, 4, self.source) for of in self.sentences[:4]], text)
        self.assertEqual([of.sentence for of in found], [0, 1, 2, 3])

    def test_a_short_stop_is_no_pause(self):
        levels = np.full(100, -20.0)
        levels[10:13], levels[50:70] = -80.0, -80.0
        self.assertEqual(np.flatnonzero(quiet_frames(levels)).tolist(), [*range(50, 70)])


class ScorerTest(unittest.TestCase):
    def test_few_lessons_are_not_learnt_by_heart(self):
        aligner = SymbolScorer(Aligner(SYMBOLS), np.full(SYMBOLS, 1.0 / SYMBOLS), "/CPU:0")
        lesson = np.zeros(SAMPLE_RATE_HZ, np.float32), np.arange(5, dtype=np.int32)
        with mock.patch.object(aligner, "_learn") as learn:
            aligner.learn([lesson] * 10, 120)
            self.assertEqual(learn.call_count, 5)
            aligner.learn([lesson] * 1_000, 120)
            self.assertEqual(learn.call_count, 125)


class CommandTest(FolderCase):
    def align(self, *flags: str) -> tuple[int, str]:
        with mock.patch("myxtts.placement.devices.configure"):
            return reported(lambda: align_command.main(["--out", str(self.folder / "out"), *flags]))

    # Demo sentences are spoken, so that it is known where each begins. One is not in the text, and
    # one of the text is not spoken.
    def test_a_corpus_is_made_of_a_recording_and_its_text(self):
        texts = demo_texts("en", 16)
        pause = np.zeros(SAMPLE_RATE_HZ // 2, np.float32)
        waves, starts, end = [], {}, 0
        with isolated_copy() as espeak:
            for number, text in enumerate(texts):
                if number != 5:
                    wave, _ = espeak.synthesize(text, EspeakVoice("en", "m3"))
                    waves += [pause, wave.astype(np.float32) / 32768.0]
                    starts[text] = (end + len(pause)) / SAMPLE_RATE_HZ
                    end += len(pause) + len(wave)
        soundfile.write(self.folder / "book.flac", np.concatenate(waves), SAMPLE_RATE_HZ)
        said = [text for number, text in enumerate(texts) if number != 9]
        self.write("book.txt", " ".join(said))
        audio, text = str(self.folder / "book.flac"), str(self.folder / "book.txt")
        with mock.patch.multiple(recordings, SPOKEN_STEPS=60, ROUND_STEPS=20):
            code, log = self.align("--audio", audio, "--text", text, "--language", "en")
        self.assertEqual(code, 0, log)
        rows = [*read_corpus(self.folder / "out", "en").rows]
        self.assertEqual([row.text for row in rows], [of for of in said if of != texts[5]])
        for row in rows:
            self.assertAlmostEqual(row.start_s, starts[row.text], delta=0.1)
        with open(self.folder / "out/left_out.csv", newline="", encoding="utf-8") as file:
            left = {row["reason"]: row for row in csv.DictReader(file)}
        self.assertEqual({*left}, {"not said", "speech without text"})
        self.assertEqual(left["not said"]["text"], texts[5])
        unsaid = left["speech without text"]
        self.assertAlmostEqual(float(unsaid["start"]), starts[texts[9]], delta=0.2)
        document = json.loads((self.folder / "out/corpus.json").read_text("utf-8"))
        self.assertEqual(document["recordings"]["rows"], 14)

    def test_the_stretches_that_a_recogniser_is_sure_of_are_kept(self):
        noise = np.random.default_rng(0).normal(0.0, 0.2, 3 * SAMPLE_RATE_HZ)
        pause = np.zeros(SAMPLE_RATE_HZ)
        spoken = np.concatenate([pause, noise, pause, noise, pause, noise[: SAMPLE_RATE_HZ // 2]])
        soundfile.write(self.folder / "talk.flac", spoken, SAMPLE_RATE_HZ)
        judge = mock.Mock(language="en", run="judge", checkpoint=Path("1.0"))
        judge.transcribe_scored.side_effect = lambda waves: (
            (f"{len(of)}", n / 10) for n, of in enumerate(waves, 8)
        )
        with mock.patch.object(transcribed, "open_recogniser", return_value=judge):
            code, log = self.align("--audio", str(self.folder / "talk.flac"), "--asr", "judge")
        self.assertEqual(code, 0, log)
        (row,) = read_corpus(self.folder / "out", "en").rows
        self.assertAlmostEqual(row.start_s, 5.0, delta=0.1)
        self.assertAlmostEqual(row.end_s, 8.0, delta=0.1)
        heard_s = int(row.text) / SAMPLE_RATE_HZ
        self.assertAlmostEqual(heard_s, row.end_s - row.start_s, delta=0.002)
        left = (self.folder / "out/left_out.csv").read_text("utf-8")
        self.assertIn("0.80,heard unsurely,", left)
        facts = json.loads((self.folder / "out/corpus.json").read_text("utf-8"))["recordings"]
        self.assertEqual(facts["texts"], "heard by judge 1.0, guessed")

    def test_mistakes_are_messages_with_exit_code_2(self):
        self.write("text/a.txt", "One two three.")
        self.write("text/b.txt", "One two three.")
        self.write("empty.txt", "…")
        for name in ("audio/a.wav", "audio/c.wav"):
            self.write(name)
            soundfile.write(self.folder / name, np.zeros(SAMPLE_RATE_HZ), SAMPLE_RATE_HZ)
        for flags, expected in (
            ("--audio {}/audio", "one of the arguments"),
            ("--audio {}/audio --text {}/none --language en", "does not exist"),
            ("--audio {}/audio --text {}/text", "as --language"),
            ("--audio {}/audio --text {}/text --language en", "no single other one"),
            ("--audio {}/audio --text {}/text --times srt", "--times was given"),
            ("--audio {}/audio --text {}/empty.txt --language en", "no sentence that can be read"),
            ("--text {}/text", "--audio is needed"),
            ("--audio {}/audio --text {}/text --keep 0.5", "--keep was given"),
            ("--audio {}/text --text {}/text --language en", "no file of its kind"),
            ("--train-data {}", "--run is needed"),
            ("--train-data {} --run {} --text {}", "not allowed with"),
            ("--train-data {} --run {} --audio {}", "--audio was given"),
            ("--audio {}/audio --text {}/empty.txt --out {} --language en", "has other files"),
            ("--audio {}/audio --asr onnx:none", "needs onnx_asr"),
        ):
            with self.subTest(flags):
                code, message = self.align(*flags.replace("{}", str(self.folder)).split())
                self.assertEqual(code, 2, message)
                self.assertIn(expected, message)

    def test_files_of_a_folder_are_in_the_order_of_their_numbers(self):
        for number in (10, 2, 1):
            self.write(f"audio/chapter {number}.mp3")
        text = self.write("book.txt")
        ((files, _),) = recordings.pairs_of(self.folder / "audio", text)
        self.assertEqual([of.stem for of in files], ["chapter 1", "chapter 2", "chapter 10"])
        with self.assertRaisesRegex(DataError, "no file of its kind"):
            recordings.pairs_of(self.write("other/a.txt").parent, text)
