"""From recordings to texts: pieces, the transcriber, the command, and error rates of a corpus."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tests.two_devices import MODEL

# isort: split

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.commands import transcribe
from myxtts.errors import CheckpointError, DataError
from myxtts.evaluation.asr_score import Transcript, rates_by, write_asr_score
from myxtts.recognition.audio_chunks import BATCH_S, LONGEST_S, PADDED_S, batches, cut, groups, quietest
from myxtts.recognition.transcriber import Transcriber
from myxtts.text.edit_distance import error_rates
from myxtts.training.select_checkpoint import select_checkpoint
from tests.sine_corpus import sine, write_sound
from tests.test_synthesis import reported
from tests.tiny_asr import recogniser_run, transcriber_of, transcribers_loaded_once

ROOT = Path(__file__).parents[1]


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    """float32, louder and softer seven times a second."""
    wave = np.random.default_rng(seed).normal(0, 0.1, round(seconds * SAMPLE_RATE_HZ))
    return (wave * np.abs(np.sin(np.arange(len(wave)) / 1000))).astype(np.float32)


class PieceTest(unittest.TestCase):
    def test_the_parts_of_a_wave_are_bounded_and_make_it_up(self):
        for seconds in (0.0, 20.0, 20.1, 41.0, 130.0):
            wave = noise(seconds)
            parts = cut(wave)
            np.testing.assert_array_equal(np.concatenate(parts), wave)
            self.assertLessEqual(max(map(len, parts)), LONGEST_S * SAMPLE_RATE_HZ)
            if len(parts) > 1:
                self.assertGreaterEqual(min(map(len, parts)), 6.6 * SAMPLE_RATE_HZ)

    def test_a_wave_is_cut_in_the_middle_of_its_pause(self):
        wave = noise(30.0)
        wave[int(13.0 * SAMPLE_RATE_HZ) : int(14.0 * SAMPLE_RATE_HZ)] = 0.0
        wave[:SAMPLE_RATE_HZ] = 0.0  # as quiet, and too near to the beginning
        first, _ = cut(wave)
        self.assertAlmostEqual(len(first) / SAMPLE_RATE_HZ, 13.5, delta=0.02)

    def test_a_click_in_a_pause_is_passed_over(self):
        wave = np.full(3 * SAMPLE_RATE_HZ, 0.1, np.float32)
        wave[SAMPLE_RATE_HZ : 2 * SAMPLE_RATE_HZ] = 0.0
        wave[int(1.2 * SAMPLE_RATE_HZ)] = 1.0
        self.assertAlmostEqual(quietest(wave) / SAMPLE_RATE_HZ, 1.6, delta=0.03)

    def test_each_piece_is_in_one_batch_of_few_shapes(self):
        seconds = np.random.default_rng(0).uniform(0, LONGEST_S, 200)
        lengths = [0, 1, round(LONGEST_S * SAMPLE_RATE_HZ), *(seconds * SAMPLE_RATE_HZ).astype(int)]
        found = list(batches(lengths))
        self.assertEqual(sorted(np.concatenate([places for places, _ in found])), list(range(len(lengths))))
        self.assertEqual({padded for _, padded in found}, {round(s * SAMPLE_RATE_HZ) for s in PADDED_S})
        for places, padded in found:
            self.assertLessEqual(max(lengths[place] for place in places), padded)
            self.assertLessEqual(len(places) * padded, BATCH_S * SAMPLE_RATE_HZ)

    def test_groups_are_bounded_and_keep_the_order(self):
        waves = [np.zeros(samples) for samples in (12, 3, 3, 5, 12, 1)]
        found = [[len(wave) for wave in group] for group in groups(iter(waves), 10)]
        self.assertEqual(found, [[12], [3, 3], [5], [12], [1]])
        self.assertEqual(list(groups(iter(()), 10)), [])


class RunOfRecogniser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place, cls.run_folder = recogniser_run()
        cls.transcriber = transcriber_of(cls.run_folder)

    def transcribe(self, *waves: np.ndarray) -> list[str]:
        return list(self.transcriber.transcribe(waves))

    def changed(self, change) -> Path:
        """A copy of the run whose settings are others."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        run = Path(shutil.copytree(self.run_folder, Path(folder.name) / "run"))
        file = select_checkpoint(run) / "state.json"
        metadata = json.loads(file.read_text(encoding="utf-8"))
        change(metadata)
        file.write_text(json.dumps(metadata), encoding="utf-8")
        return run


class ListenerTest(RunOfRecogniser):
    def test_a_text_depends_on_its_own_wave_alone(self):
        waves = [noise(seconds, seed) for seed, seconds in enumerate((0.5, 3.0, 1.0, 6.0, 2.4))]
        together = self.transcribe(*waves)
        self.assertEqual(len(set(together)), len(waves))
        self.assertEqual(together, [text for wave in waves for text in self.transcribe(wave)])
        self.assertEqual(together[::-1], self.transcribe(*waves[::-1]))

    def test_padding_changes_no_text(self):
        texts = set()
        for seconds in (2.0, 3.0, LONGEST_S):
            with mock.patch("myxtts.recognition.audio_chunks.PADDED_S", (seconds,)):
                texts.update(self.transcribe(noise(2.0)))
        self.assertEqual(len(texts), 1)

    def test_a_long_wave_is_heard_part_by_part(self):
        wave = noise(45.0)
        parts = cut(wave)
        self.assertGreater(len(parts), 2)
        self.assertEqual(self.transcribe(noise(1.0), wave)[1], " ".join(self.transcribe(*parts)))

    def test_what_is_shorter_than_a_mel_is_heard_with_silence_behind_it(self):
        texts = self.transcribe(*(np.zeros(samples, np.float32) for samples in (0, 1, 384, 385)))
        self.assertEqual(texts, texts[-1:] * 4)
        self.assertNotEqual(texts[-1], "")
        self.assertEqual(self.transcribe(), [])

    def test_waves_are_taken_as_their_texts_are_asked_for(self):
        taken = []

        def waves():
            for number in range(3):
                taken.append(number)
                yield noise(1.0, number)

        with mock.patch("myxtts.recognition.transcriber.GROUP_S", 1.0):
            texts = self.transcriber.transcribe(waves())
            first = next(texts)
            self.assertEqual(taken, [0, 1])  # the second did not fit into the group any more
            self.assertEqual([first, *texts], self.transcribe(*(noise(1.0, number) for number in range(3))))

    def test_a_beam_finds_the_text_of_the_greatest_probability(self):
        # With weights this sure of themselves one path has nearly all of it, mostly.
        transcriber = transcriber_of(self.run_folder, 8)
        waves = [noise(3.0, seed) for seed in range(4)]
        rates = error_rates(self.transcribe(*waves), list(transcriber.transcribe(waves)))
        self.assertLess(rates["character_error_rate"], 0.2)
        self.assertIn("width 8", transcriber.decoding)

    def test_texts_have_the_form_of_the_run(self):
        self.assertEqual(self.transcriber.normalise_reference("ABC", "en"), "abc")
        with self.assertRaisesRegex(DataError, "'ka' was to be heard.*trained on en"):
            self.transcriber.normalise_reference("abc", "ka")
        with self.assertRaisesRegex(DataError, r"'z' \(U\+007A\)"):
            self.transcriber.normalise_reference("abz", "en")

    def test_a_voice_and_a_missing_checkpoint_are_refused(self):
        with self.assertRaisesRegex(CheckpointError, "it is a voice"):
            Transcriber(self.changed(lambda metadata: metadata["settings"]["model"].update(task="tts")), MODEL)
        with self.assertRaisesRegex(CheckpointError, "step-000009.*has step-000000"):
            Transcriber(self.run_folder, MODEL, "step-000009")
        with self.assertRaisesRegex(CheckpointError, "has no checkpoint"):
            Transcriber(self.place.folder, MODEL)


class CommandTest(RunOfRecogniser):
    def transcribe(self, *flags: str) -> tuple[int, str, str]:
        """Exit code, what is printed, and the message."""
        out = io.StringIO()
        with (
            mock.patch("myxtts.placement.devices.configure"),  # this process has its devices
            transcribers_loaded_once("myxtts.recognition.transcriber", "myxtts.evaluation.asr_score"),
            contextlib.redirect_stdout(out),
        ):
            code, told = reported(lambda: transcribe.main(["--run", str(self.run_folder), *flags]))
        return code, out.getvalue(), told

    def test_each_file_gives_a_line_and_the_same_as_json(self):
        wave, folder = noise(2.0), self.place.folder
        names = [str(folder / name) for name in ("a.wav", "b.flac", "two channels.wav")]
        write_sound(Path(names[0]), wave)
        write_sound(Path(names[1]), sine(300.0, 1.0, 44_100), 44_100)
        write_sound(Path(names[2]), np.stack([wave, wave], axis=1))
        code, told, _ = self.transcribe(*names, "--json", str(folder / "texts.json"))
        self.assertEqual(code, 0)
        lines = [line.split("\t") for line in told.splitlines()]
        self.assertEqual([name for name, _ in lines], names)
        self.assertEqual(lines[0][1], lines[2][1])
        self.assertNotEqual(lines[0][1], lines[1][1])
        document = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        self.assertEqual([[one["file"], one["text"]] for one in document["files"]], lines)
        self.assertEqual([one["seconds"] for one in document["files"]], [2.0, 1.0, 2.0])

    def test_mistakes_are_messages_with_exit_code_2(self):
        folder, good = self.place.folder, str(self.place.corpus.with_name("u0.wav"))
        (folder / "empty.wav").touch()
        (folder / "text.wav").write_text("no sound")
        write_sound(folder / "short.wav", sine(220.0, 0.05))
        write_sound(folder / "nan.wav", np.full(9000, np.nan, np.float32), subtype="FLOAT")
        for flags, said in (
            ((good, str(folder / "none.wav")), "missing file"),
            ((good, str(folder / "empty.wav")), "empty file"),
            ((str(folder / "text.wav"),), "unreadable"),
            ((str(folder / "short.wav"),), "has 0.05 s"),
            ((str(folder / "nan.wav"),), "not finite"),
            ((str(folder),), "not a file"),
            ((), "neither was given"),
            ((good, "--corpus", "x"), "both were given"),
            (("--corpus", str(folder / "none")), "nothing can be found"),
            ((good, "--json", str(folder / "none" / "x.json")), "there is no folder"),
        ):
            with self.subTest(flags=flags), mock.patch("myxtts.recognition.transcriber.Transcriber") as transcriber:
                code, told = reported(lambda flags=flags: transcribe.main(["--run", "r", *flags]))
                self.assertEqual(code, 2)
                self.assertIn(said, told)
                transcriber.assert_not_called()

    def test_files_are_looked_at_before_tensorflow_is_imported(self):
        code = "import sys; from myxtts.commands import transcribe\ntry: transcribe.main(['--run', 'r', 'none.wav'])\n"
        code += "except Exception as error: print(error)\nassert 'tensorflow' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("missing file", done.stdout)

    def test_a_corpus_gives_error_rates(self):
        file = self.place.folder / "rates.json"
        code, told, _ = self.transcribe("--corpus", str(self.place.corpus), "--json", str(file))
        self.assertEqual(code, 0)
        self.assertRegex(told, r"\| all \| 13 \| [\d.]+ \| [\d.]+ \|\n\| speaker s0 \| 7 \|.*\n\| speaker s1 \| 6 \|")
        self.assertIn(f"13 utterances of {self.place.corpus}", told)
        document = json.loads(file.read_text(encoding="utf-8"))
        true, heard = zip(*((one["text"], one["heard"]) for one in document["transcripts"]), strict=True)
        self.assertEqual(true[:2], ("a", "ab"))
        self.assertEqual(document["rates"], {"utterances": 13, **error_rates(true, heard)})
        self.assertEqual(document["languages"], {})

    def test_held_out_utterances_are_those_of_the_run(self):
        file = self.place.folder / "held_out.json"
        with (
            mock.patch("myxtts.placement.devices.configure"),
            transcribers_loaded_once("myxtts.evaluation.asr_score"),
            contextlib.redirect_stdout(io.StringIO()) as told,
        ):
            write_asr_score(self.run_folder, json_file=file)
        self.assertIn("3 held-out utterances", told.getvalue())
        self.assertEqual(json.loads(file.read_text(encoding="utf-8"))["rates"]["utterances"], 3)


class RateTest(unittest.TestCase):
    def test_rates_are_of_all_characters_and_words_together(self):
        # "a b" of 3 characters and 2 words has one of each wrong, "cd" of 2 and 1 none: 1/5 and 1/3.
        self.assertEqual(
            error_rates(["a b", "cd"], ["a c", "cd"]), {"character_error_rate": 0.2, "word_error_rate": 1 / 3}
        )

    def test_groups_are_shown_where_there_are_several(self):
        ones = [
            Transcript("1", "s1", "en", "ab", "ab"),
            Transcript("2", "s0", "en", "ab", "a"),
            Transcript("3", "s0", "en", "abcd", ""),
        ]
        self.assertEqual(rates_by("language", ones), {})
        found = rates_by("speaker", ones)
        self.assertEqual(list(found), ["s0", "s1"])
        self.assertEqual([one.utterances for one in found.values()], [2, 1])
        self.assertAlmostEqual(found["s0"].character_error_rate, 5 / 6)
        self.assertEqual(found["s1"].word_error_rate, 0.0)


if __name__ == "__main__":
    unittest.main()
