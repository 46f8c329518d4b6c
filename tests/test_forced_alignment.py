"""Forced alignment of a corpus: times in its recordings, and texts that are elsewhere."""

import csv
import json
import unittest
from functools import cache
from unittest import mock

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.extras.align import align_command as align
from myxtts.extras.align import alignment as forced_alignment
from myxtts.extras.align.alignment import Fit, fit_corpus
from tests.fixtures import FolderCase, reported
from tests.sine_corpus import manifest_of, write_sound
from tests.tiny import cached_networks, whole_run

# Traced once for a network.
ALIGNER = cache(forced_alignment.Aligner)


class CommandTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.run_folder = whole_run().folder
        symbols = TrainedRun.open(self.run_folder).record.vocabulary.symbols.symbols
        letters = [*filter(str.isalpha, symbols)]
        self.text = "".join(letters[:4])
        noise = np.random.default_rng(0).normal(0.0, 0.1, 4 * SAMPLE_RATE_HZ)
        write_sound(self.folder / "talk.wav", noise.astype(np.float32))
        cue = "1\n00:00:00,500 --> 00:00:01,500\n{0}\n\n2\n00:00:02,000 --> 00:00:03,000\n{0}\n"
        (self.folder / "talk.srt").write_text(cue.format(self.text), "utf-8")

    def align(self, *flags: str) -> tuple[int, str]:
        argv = ["--run", str(self.run_folder), "--out", str(self.folder / "out"), *flags]
        with (
            mock.patch("myxtts.placement.devices.configure"),
            mock.patch.object(forced_alignment, "Aligner", ALIGNER),
            cached_networks(),
        ):
            return reported(lambda: align.main(argv))

    def test_times_are_those_in_the_recording(self):
        corpus = str(self.folder / "talk.srt")
        with mock.patch.object(forced_alignment, "LEAST_EVIDENCE", -np.inf):
            code, _ = self.align("--train-data", corpus, "--times", "json")
        self.assertEqual(code, 0)
        document = json.loads((self.folder / "out/talk.json").read_text("utf-8"))
        self.assertEqual((document["text"], document["duration"]), (f"{self.text} {self.text}", 4))
        for segment, start in zip(document["segments"], (0.5, 2.0), strict=True):
            self.assertTrue(start < segment["start"] < segment["end"] <= start + 1.0)
            self.assertEqual([of["word"] for of in segment["words"]], self.text.split())
        with open(self.folder / "out/alignment.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        names = {"talk.wav@0.500-1.500", "talk.wav@2.000-3.000"}
        self.assertEqual({row["id"] for row in rows}, names)

    def test_texts_that_do_not_fit_have_no_times(self):
        with mock.patch.object(forced_alignment, "LEAST_EVIDENCE", 2.0):
            code, _ = self.align("--train-data", str(self.folder), "--times", "srt")
        self.assertEqual((code, (self.folder / "out/talk.srt").read_text()), (0, ""))

    def test_mistakes_are_messages_with_exit_code_2(self):
        (self.folder / "file").write_text("")
        write_sound(self.folder / "talk.flac", np.zeros(SAMPLE_RATE_HZ, np.float32))
        (self.folder / "two.csv").write_text(
            "path,text\n" + "".join(f"talk.{of},{self.text}\n" for of in ("wav", "flac"))
        )
        for flags, expected in (
            ("--train-data {}/none", "does not exist"),
            ("--train-data {} --times txt", "invalid choice"),
            ("--train-data {} --out {}/file", "cannot be used"),
            ("--train-data {} --run {}", "has no checkpoint"),
            ("--train-data {}/two.csv", "the same name but for the extension"),
        ):
            with self.subTest(flags):
                code, message = self.align(*flags.replace("{}", str(self.folder)).split())
                self.assertEqual(code, 2)
                self.assertIn(expected, message)


class ShiftTest(FolderCase):
    """An aligner that hears a text where the wave is 1."""

    def fits(self, spoken_s: float) -> list[Fit]:
        wave = np.zeros(20 * SAMPLE_RATE_HZ, np.float32)
        start = round(spoken_s * SAMPLE_RATE_HZ)
        wave[start : start + 2 * SAMPLE_RATE_HZ] = 0.9
        write_sound(self.folder / "talk.wav", wave)

        def aligner(waves, *_):
            return [Fit(np.zeros(1, int), float(np.mean(of > 0.5)) - 0.05) for of in waves]

        self.write("talk.srt", "1\n00:00:08,000 --> 00:00:10,000\nabc\n")
        return fit_corpus(aligner, manifest_of(self.folder / "talk.srt"))

    def test_a_text_is_found_where_it_is_spoken(self):
        for spoken_s, shift_s in (
            *((8.0, 0.0), (10.0, 2.0), (6.5, -1.5), (5.0, -3.0)),
            *((8.4, 0.0), (13.5, 0.0)),
        ):
            (fit,) = self.fits(spoken_s)
            self.assertAlmostEqual(fit.shift_s, shift_s, places=3, msg=str(spoken_s))


if __name__ == "__main__":
    unittest.main()
