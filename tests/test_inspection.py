"""Faults of recordings and corpora that are planted, and what a command makes of them."""

import contextlib
import csv
import io
import unittest
from collections.abc import Callable
from unittest import mock

import numpy as np
import soxr

from myxtts.base.errors import DataError
from myxtts.batches.corpora import load_corpora
from myxtts.commands import train
from myxtts.corpus.layouts import leave_out, read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.extras.inspect import inspect_command as inspect
from myxtts.extras.inspect import inspection
from myxtts.extras.inspect.quality import Quality, measure
from tests.fixtures import FolderCase, reported, temporary_folder
from tests.html_checker import Checker
from tests.sine_corpus import write_sound

RATE_HZ = 16_000


def speech(seconds: float = 2.4, pitch_hz: float = 120.0, seed: int = 0) -> np.ndarray:
    """Return syllables of a third of a second with pauses, in faint noise: float64."""
    random = np.random.default_rng(seed)
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    glide = 1 + 0.25 * np.sin(2 * np.pi * (0.9 * time_s + random.random()))
    phase = 2 * np.pi * np.cumsum(pitch_hz * glide) / RATE_HZ
    timbre = 5 + 3 * np.sin(2 * np.pi * (1.7 * time_s + random.random()))
    voice = sum(
        np.sin(k * phase + k * k) * (np.exp(-((k - timbre) ** 2) / 9) + 0.02) for k in range(1, 30)
    )
    hiss = random.standard_normal(len(time_s)) * (np.sin(2 * np.pi * 1.5 * time_s) > 0.95)
    syllables = (time_s % 0.33 < 0.22) & (time_s > 0.1) & (time_s < seconds - 0.1)
    wave = 0.1 * (voice + 0.3 * hiss) * np.convolve(syllables, np.hanning(160) / 80, "same")
    return wave + 1e-4 * random.standard_normal(len(wave))


def tones(*hz: float, samples: int) -> np.ndarray:
    time_s = np.arange(samples) / RATE_HZ
    return sum(np.sin(2 * np.pi * tone * time_s) for tone in hz)


def repeated(wave: np.ndarray) -> np.ndarray:
    return wave + 0.4 * np.roll(wave, round(0.2 * RATE_HZ))


def in_room(wave: np.ndarray) -> np.ndarray:
    time_s = np.arange(RATE_HZ) / RATE_HZ
    response = np.random.default_rng(1).standard_normal(RATE_HZ) * 10 ** (-3 * time_s)
    response[0] = 5.0
    return 0.05 * np.convolve(wave, response)[: len(wave)]


def quality_of(wave: np.ndarray) -> Quality:
    return measure(wave.astype(np.float32), RATE_HZ)


PLANTED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "clipping": lambda wave: np.clip(4 * wave, -0.3, 0.3),
    "music": lambda wave: wave + 0.03 * tones(440, 554, 659, 880, samples=len(wave)),
    "hum": lambda wave: wave + 0.005 * tones(50, 100, samples=len(wave)),
    "echo": repeated,
    "silence": lambda wave: np.pad(wave, (2 * RATE_HZ, 0)),
    "cut off": lambda wave: wave[: round(2.1 * RATE_HZ)],
    "bandwidth": lambda wave: soxr.resample(soxr.resample(wave, 4, 1), 1, 4),
    "noise": lambda wave: wave + 0.05 * np.random.default_rng(0).standard_normal(len(wave)),
    "loudness": lambda wave: 0.1 * wave,
}


class QualityTest(unittest.TestCase):
    def faults(self, wave: np.ndarray) -> list[str]:
        clip = mock.Mock(quality=quality_of(wave))
        return [of.fault for of in inspection._sound_faults(clip, 7_000.0, -17.0)]

    def test_each_planted_fault_is_found_and_no_other(self):
        for seed in range(3):
            self.assertEqual(self.faults(speech(seed=seed)), [])
        for fault, plant in {**PLANTED, "room": in_room}.items():
            with self.subTest(fault):
                expected = "echo" if fault == "room" else fault
                self.assertEqual(self.faults(plant(speech())), [expected])

    def test_measures_are_those_of_signals_with_known_ones(self):
        tone = 0.5 * tones(997, samples=2 * RATE_HZ)
        # A full-scale sinusoid of 997 Hz has -3.01 LUFS (ITU-R BS.1770-4).
        self.assertAlmostEqual(quality_of(tone).loudness, -3.01 - 6.02, delta=0.1)
        of = quality_of(np.pad(tone, RATE_HZ))
        self.assertAlmostEqual(of.peak, 0.5, places=3)
        self.assertEqual((of.seconds, of.rate_hz), (4.0, RATE_HZ))
        for seconds in (of.leading_s, of.trailing_s):
            self.assertAlmostEqual(seconds, 1.0, delta=0.05)
        self.assertAlmostEqual(quality_of(speech(pitch_hz=180.0)).f0_hz, 180.0, delta=12.0)

    def test_hum_is_found_between_silences_and_a_held_note_of_a_voice_is_no_music(self):
        hum = PLANTED["hum"](speech())
        self.assertEqual(self.faults(np.pad(hum, RATE_HZ)), ["hum"])
        self.assertEqual(self.faults(speech() + 0.03 * tones(440, samples=len(hum))), [])

    def test_what_an_ordinary_room_and_microphone_do_is_no_fault(self):
        clip = speech(2.0)
        wander = 0.05 * tones(18, samples=len(clip))
        clicked, faded = clip.copy(), clip[: round(1.9 * RATE_HZ)].copy()
        clicked[-400:-390] += 0.3
        faded[-320:] *= np.linspace(1, 0, 320) ** 2
        time_s = np.arange(round(0.35 * RATE_HZ)) / RATE_HZ
        phase = 2 * np.pi * 150 * np.cumsum(1 + 0.04 * time_s) / RATE_HZ
        vowel = sum(np.sin(k * phase) / k for k in range(1, 20))
        word = np.pad(0.3 * vowel * np.hanning(len(time_s)), round(0.3 * RATE_HZ))
        word += 1e-4 * np.random.default_rng(1).standard_normal(len(word))
        # The vowel has nothing above 2.9 kHz.
        word += 0.003 * np.random.default_rng(1).standard_normal(len(word)) * (np.abs(word) > 0.05)
        for name, wave in {
            "a held vowel in a clip of one word": word,
            "wind": clip + wander,
            "an offset": clip + 0.1,
            "a click of the key that ends the recording": clicked,
            "a fade": faded,
        }.items():
            with self.subTest(name):
                self.assertEqual(self.faults(wave), [])

    def test_odd_recordings_can_be_measured(self):
        for wave, rate_hz in (
            *((np.zeros(50, np.float32), RATE_HZ), (np.zeros(RATE_HZ, np.float32), RATE_HZ)),
            *((np.ones(900, np.float32), 1_000), (np.ones(96_000, np.float32), 192_000)),
        ):
            self.assertEqual(measure(wave, rate_hz).rate_hz, rate_hz)


FAULTS = {
    *(("05.wav", "clipping"), ("07.wav", "speaker"), ("23.wav", "length")),
    *(("12.wav", "language"), ("24.wav", "duplicate")),
}


class InspectionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Write a corpus of 24 clips, four of which have faults, and a copy of one."""
        cls.folder = temporary_folder(cls.addClassCleanup)
        table = [["path", "text", "speaker"]]
        for number in range(25):
            source = 3 if number == 24 else number
            wave = speech(1.6 + 0.04 * source, 200.0 if number == 7 else 120.0, source)
            if number == 5:
                wave = PLANTED["clipping"](wave)
            text = (3 * "abcdefgh")[: 11 + source]
            text = {23: "abcde", 12: "აბგდეაბგდეაბგდეაბგდეაბგ", 24: text[::-1]}.get(number, text)
            table.append([f"{number:02d}.wav", text, "anna"])
            write_sound(cls.folder / table[-1][0], wave, RATE_HZ, "PCM_16")
        with open(cls.folder / "corpus.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)

    def test_faults_are_found_listed_shown_and_left_out(self):
        out, corpus = self.folder / "out", str(self.folder / "corpus.csv")
        flags = ["--train-data", corpus, "--text-frontend", "characters", "--out", str(out)]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self.assertEqual(reported(lambda: inspect.main(flags)), (0, ""))
        printed = output.getvalue()
        for text in (
            *("25 in 0.01 h", "1: anna (25)", "clipping            1  05.wav", "excluded.csv"),
            "duplicate           1  24.wav: the recording of 03.wav, with another text",
        ):
            self.assertIn(text, printed)
        with open(out / "excluded.csv", newline="", encoding="utf-8") as file:
            listed = {
                (row["path"], row["reason"].partition(":")[0]) for row in csv.DictReader(file)
            }
        self.assertEqual(listed, FAULTS)
        page = (out / "inspection.html").read_text(encoding="utf-8")
        Checker(self, page)
        self.assertEqual(page.count("data:audio/mpeg"), len(FAULTS))
        with self.assertLogs("myxtts", "INFO") as logged:
            rows = read_corpus(self.folder / "corpus.csv", "en")
            (kept,), excluded = leave_out(str(out / "excluded.csv"), rows)
        self.assertIn("5 of 25 rows", logged.output[-1])
        self.assertEqual((len(kept.rows), len(excluded)), (20, 5))
        self.assertEqual({row.audio for row in excluded}, {path for path, _ in FAULTS})
        self.assertEqual({row.reason for row in excluded}, {"excluded"})

    def test_a_recogniser_finds_a_text_that_it_hears_otherwise(self):
        out, corpus = self.folder / "heard", str(self.folder / "corpus.csv")
        texts = [row.text for row in read_corpus(corpus, "en").rows]
        texts[8] = "quite another one"
        judge = mock.Mock(normalise_reference=lambda text, language: text)
        judge.transcribe.side_effect = lambda waves: [texts[n] for n, _ in enumerate(waves)]
        flags = ["--train-data", corpus, "--text-frontend", "characters", "--out", str(out)]
        printed = io.StringIO()
        with (
            mock.patch("myxtts.extras.inspect.heard.open_recogniser", return_value=judge),
            contextlib.redirect_stdout(printed),
        ):
            self.assertEqual(reported(lambda: inspect.main([*flags, "--asr", "judge"])), (0, ""))
        self.assertRegex(printed.getvalue(), r"heard otherwise +1  08.wav: 'quite another one', ")
        self.assertIn('08.wav,"heard otherwise', (out / "excluded.csv").read_text("utf-8"))

    def test_a_fault_of_most_clips_excludes_none_and_other_faults_still_do(self):
        clips = [mock.Mock(id=str(number)) for number in range(10)]
        for faults, excluded in (
            ({"hum": "01234567", "clipping": "89"}, "89"),
            ({"hum": "01234567", "clipping": "78"}, "78"),
            ({"hum": "01234", "clipping": "1"}, "01234"),
            ({"hum": "0123456789"}, ""),
            ({}, ""),
        ):
            found = [inspection.Finding(i, f, "", 0.0) for f, ids in faults.items() for i in ids]
            with self.subTest(faults):
                of = inspection.Inspection(clips, [], found).excluded()
                self.assertEqual("".join(sorted(of)), excluded)

    def test_bad_input_ends_with_a_message(self):
        for flags, message in (
            ([], "none was given"),
            (["--train-data", str(self.folder / "nothing")], "does not exist"),
            (["--train-data", ".", "--checkpoint", "step-1"], "without --run"),
            (["--train-data", "x", "--out", "/dev/null"], "Choose another --out"),
            (["--train-data", str(self.folder / "corpus.csv"), "--max-seconds", "1"], "too long"),
        ):
            with self.subTest(message):
                code, error = reported(lambda flags=flags: inspect.main(flags))
                self.assertEqual(code, 2)
                self.assertIn(message, error)


class ExcludeTest(FolderCase):
    def test_what_is_excluded_is_listed_and_does_not_count_as_unusable(self):
        for name in "abc":
            write_sound(self.folder / f"{name}.wav", speech(1.0), RATE_HZ)
        self.write("metadata.csv", "a|one\nb|one\nc|one\n")
        listing = self.write("excluded.csv", "path,reason\nb.wav,music: loud\n")
        flags = "--validation-fraction 0 --text-frontend characters --max-rejected 0"
        corpus = ["--train-data", str(self.folder), "--exclude", str(listing)]
        config, _ = train.parse([*flags.split(), *corpus])
        training, _, _ = load_corpora(config, self.folder / "run", LengthRule())
        self.assertEqual(training.manifest.ids, ("a.wav", "c.wav"))
        rejected = (self.folder / "run" / "rejected.csv").read_text()
        self.assertIn("2,b.wav,excluded,music: loud", rejected)

    def test_a_listing_that_names_no_row_or_every_row_is_not_taken_in_silence(self):
        self.write("metadata.csv", "a|one\nb|two\n")
        for name in "ab":
            write_sound(self.folder / f"{name}.wav", speech(1.0), RATE_HZ)
        rows = read_corpus(self.folder, "en")
        for content, message in (
            *((None, "cannot be read"), ("clip\na.wav\n", "no column path")),
            ("path\na.wav\nb.wav\n", "names all 2 rows"),
        ):
            listing = self.folder / "excluded.csv"
            if content:
                listing.write_text(content)
            with self.subTest(message), self.assertRaisesRegex(DataError, message):
                leave_out(str(listing), rows)
        listing.write_text("path,reason\nz.wav,music\n")
        with self.assertLogs("myxtts", "WARNING"):
            self.assertEqual(leave_out(str(listing), rows), ([rows], []))


if __name__ == "__main__":
    unittest.main()
