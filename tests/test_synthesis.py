"""A trained run speaks: the voice, the joints of long texts, the program around it, and what each refuses."""

import contextlib
import io
import logging
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile
import tensorflow as tf

from tests.two_devices import MODEL

# isort: split

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.griffin_lim import ITERATIONS as ITERATIONS_OF_SPEECH
from myxtts.audio.griffin_lim import griffin_lim_waves
from myxtts.commands import synthesize
from myxtts.commands.console import report_errors
from myxtts.errors import CheckpointError, ConfigError, DataError
from myxtts.synthesis.concatenation import FADE_S, PAUSES_S, fade_ends, pause_between
from myxtts.synthesis.language import choose_language, trained_languages
from myxtts.synthesis.speech_file import sound_file, write_speech
from myxtts.synthesis.synthesizer import BATCH_PIECES, Synthesizer
from myxtts.text.sentences import Boundary
from myxtts.training.checkpoint_files import list_checkpoints
from myxtts.training.select_checkpoint import select_checkpoint
from tests.sine_corpus import sine, write_sound
from tests.tiny import loaded_once, small_models, whole_run

ROOT = Path(__file__).parents[1]
ITERATIONS = 2
FADE_SAMPLES = round(FADE_S * SAMPLE_RATE_HZ)


folder: Path
run_folder: Path
synthesizer: Synthesizer


def setUpModule():
    """The voice of the whole run, and a folder: for all tests of this file."""
    global folder, run_folder, synthesizer
    temporary = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(temporary.cleanup)
    folder, run_folder = Path(temporary.name), whole_run().folder
    logging.getLogger("myxtts").handlers = [logging.NullHandler()]  # not the console of that run
    with loaded_once("myxtts.synthesis.synthesizer"):
        synthesizer = Synthesizer(run_folder, MODEL)


def sound(name: str, hz: float, seconds: float) -> Path:
    path = folder / name
    write_sound(path, sine(hz, seconds, 44_100), 44_100, "PCM_16")
    return path


class Case(unittest.TestCase):
    """A text of letters that the run knows, and a reference."""

    @classmethod
    def setUpClass(cls):
        cls.synthesizer, cls.run_folder = synthesizer, run_folder
        cls.text = "".join(symbol for symbol in synthesizer._tables.symbols.symbols if symbol.isalpha()) * 2
        cls.reference = sound("reference.flac", 220.0, 1.0)

    def synthesize(self, text: str | None = None, references=None, **asked) -> np.ndarray:
        references = [self.reference] if references is None else references
        return self.synthesizer.synthesize(text or self.text, references, iterations=ITERATIONS, **asked)

    def refused(self, said: str, *text, **asked) -> None:
        with self.assertRaises(DataError) as caught:
            self.synthesizer.synthesize_sentences(
                *text, **asked
            )  # at the call, not when the first sentence is asked for
        self.assertIn(said, str(caught.exception))


class Speaking(Case):
    def test_wave_has_whole_frames_and_a_level(self):
        wave = self.synthesize()
        self.assertEqual((wave.dtype, wave.ndim, len(wave) % HOP_SAMPLES), (np.float32, 1, 0))
        self.assertGreater(len(wave), HOP_SAMPLES * len(self.text))  # a frame or more for each token
        self.assertTrue(np.isfinite(wave).all() and 0.0 < np.abs(wave).max() <= 1.0)

    def test_same_seed_gives_the_same_wave_and_another_one_another(self):
        first, again, other = (
            self.synthesize(options=replace(self.synthesizer.options, seed=seed)) for seed in (1, 1, 2)
        )
        np.testing.assert_array_equal(first, again)
        self.assertEqual(first.shape, other.shape)
        self.assertTrue((first != other).any())

    def test_slower_is_longer(self):
        plain, slow = (
            len(self.synthesize(options=replace(self.synthesizer.options, speed=speed))) for speed in (1.0, 0.25)
        )
        self.assertGreater(slow, 2 * plain)

    def test_the_runs_own_manner_is_that_of_its_settings(self):
        self.assertEqual(
            (self.synthesizer.options.ode_steps, self.synthesizer.options.guidance, self.synthesizer.options.seed),
            (2, 1.0, 0),
        )

    def test_each_knob_of_the_manner_is_heard(self):
        plain = self.synthesize()
        for knob in ({"ode_steps": 4}, {"guidance": 2.0}, {"pitch_semitones": 5.0}, {"energy_db": 6.0}):
            with self.subTest(knob):
                other = self.synthesize(options=replace(self.synthesizer.options, **knob))
                self.assertTrue(other.shape != plain.shape or (other != plain).any())

    def test_it_speaks_without_a_reference_and_with_several(self):
        second = sound("second.wav", 330.0, 0.6)
        waves = [self.synthesize(references=paths) for paths in ([], [self.reference], [self.reference, second])]
        for wave in waves:
            self.assertTrue(np.isfinite(wave).all() and np.abs(wave).max() > 0.0)
        for one, other in ((0, 1), (1, 2)):
            self.assertFalse(np.array_equal(waves[one], waves[other]))

    def test_references_are_heard_one_after_the_other_each_to_the_setting(self):
        long = sound("long.wav", 330.0, 4.0)
        heard = self.synthesizer._hear([self.reference, long])
        first, second = self.synthesizer._hear([self.reference]), self.synthesizer._hear([long])
        self.assertEqual(len(second), 3 * SAMPLE_RATE_HZ // HOP_SAMPLES)  # reference_seconds is 3
        np.testing.assert_array_equal(heard, np.concatenate([first, second]))

    def test_language_of_another_run_is_refused(self):
        self.refused("language 'ka' was asked for, but this run was trained on en", self.text, language="ka")

    def test_reference_that_is_no_speech_is_refused(self):
        text = folder / "notes.wav"
        text.write_text("no audio")
        for path, said in (
            (sound("short.wav", 220.0, 0.3), "has 0.30 s"),
            (text, "cannot be used: unreadable"),
            (folder, "cannot be used: not a file"),
            (folder / "none.wav", "cannot be used: missing file"),
        ):
            with self.subTest(path=path.name):
                self.refused(said, self.text, [self.reference, path])


class UnknownSymbols(Case):
    def test_few_of_them_are_left_out_and_each_is_named_once_with_its_sentences(self):
        text = f"{self.text * 3}ჰ.\n{self.text}.\n{self.text * 4}ჰ漢ჰ."
        with self.assertLogs("myxtts", "WARNING") as logs:
            self.synthesizer.synthesize_sentences(text)
        named = [line for line in logs.output if "left out" in line]
        self.assertEqual([line for line in named if "ჰ" in line], [line for line in named if "sentences 1, 3" in line])
        self.assertEqual(sum("漢 (sentence 3)" in line for line in named), 1)

    def test_a_sentence_of_them_is_refused_by_its_number(self):
        self.refused("symbols of sentence 2, '漢字 ჰაერი', can be said", f"{self.text}\n漢字 ჰაერი")
        self.refused("the training corpus does not have", "漢字 ჰაერი")

    def test_a_text_without_a_letter_is_refused(self):
        for text in ("", "  ", "...", "\n* * *\n"):
            with self.subTest(text=text):
                self.refused("has nothing to say", text)


class LongTexts(Case):
    """Sentences are spoken in batches, and joined."""

    COUNT = BATCH_PIECES + 3

    def lines(self) -> list[str]:
        """Lines of different lengths, more than a batch holds."""
        return [self.text[: 3 + number] for number in range(self.COUNT)]

    def waves(self, text: str, **asked) -> list[np.ndarray]:
        return list(self.synthesizer.synthesize_sentences(text, [self.reference], iterations=ITERATIONS, **asked))

    def test_waves_come_sentence_by_sentence_and_speak_is_their_sum(self):
        text = "\n".join(self.lines())
        waves = self.waves(text)
        self.assertEqual(len(waves), self.COUNT)
        np.testing.assert_array_equal(np.concatenate(waves), self.synthesize(text))

    def test_nothing_is_spoken_before_it_is_asked_for(self):
        with mock.patch.object(self.synthesizer, "_say", wraps=self.synthesizer._say) as say:
            waves = self.synthesizer.synthesize_sentences("\n".join(self.lines()), iterations=ITERATIONS)
            self.assertEqual(say.call_count, 0)
            next(waves)
            self.assertEqual(say.call_count, 1)
            self.assertEqual(len(say.call_args.args[0]), BATCH_PIECES)

    def test_a_sentence_sounds_as_if_it_stood_alone(self):
        together = self.waves("\n".join(self.lines()))
        for line, wave in zip(self.lines(), together, strict=True):
            alone = self.synthesize(line)
            # Rounding differs with the shape of a batch, and each iteration of Griffin-Lim lets it grow.
            np.testing.assert_allclose(wave[-len(alone) :], alone, atol=1e-3)
            self.assertFalse(wave[: -len(alone)].any())  # the pause

    def test_there_is_no_click_at_any_joint(self):
        joined = self.synthesize("\n".join(self.lines()))
        waves = self.waves("\n".join(self.lines()))
        loudest_jump = np.abs(np.diff(joined)).max()
        for joint in np.cumsum([len(wave) for wave in waves])[:-1]:
            around = joined[joint - 10 : joint + 10]
            self.assertEqual(joined[joint - 1], 0.0)
            self.assertLess(np.abs(np.diff(around)).max(), 0.05 * loudest_jump)

    def test_pauses_are_longer_behind_paragraphs_and_shorter_in_fast_speech(self):
        def second(text: str, speed: float = 1.0) -> int:
            return len(self.waves(text, options=replace(self.synthesizer.options, speed=speed))[1])

        paragraph, fast = second(f"{self.text}.\n{self.text}."), second(f"{self.text}.\n{self.text}.", speed=4.0)
        sentence = second(f"{self.text}. {self.text.title()}.")
        self.assertEqual(
            paragraph - sentence, round((PAUSES_S[Boundary.PARAGRAPH] - PAUSES_S[Boundary.SENTENCE]) * SAMPLE_RATE_HZ)
        )
        self.assertLess(fast, paragraph)


class Waves(unittest.TestCase):
    """Griffin-Lim of a batch of mels."""

    def test_a_row_has_the_same_samples_alone_and_padded_in_a_batch(self):
        mels = np.random.default_rng(0).normal(-5.5, 2.1, (3, 20, 80)).astype(np.float32)
        frames = [20, 7, 1]
        waves = griffin_lim_waves(tf.constant(mels), frames, (5, 0), iterations=4)
        self.assertEqual([len(wave) for wave in waves], [HOP_SAMPLES * length for length in frames])
        for mel, length, wave in zip(mels, frames, waves, strict=True):
            (alone,) = griffin_lim_waves(tf.constant(mel[None, :length]), [length], (5, 0), iterations=4)
            np.testing.assert_array_equal(alone, wave)

    def test_the_help_tells_the_default_number_of_iterations(self):
        told = io.StringIO()
        with contextlib.redirect_stdout(told), self.assertRaises(SystemExit):
            synthesize.parse(["--help"])
        self.assertIn(f"Griffin-Lim ({ITERATIONS_OF_SPEECH} by default)", " ".join(told.getvalue().split()))


class Joints(unittest.TestCase):
    def test_a_fade_reaches_zero_and_leaves_the_middle(self):
        wave = np.ones(1_000, np.float32)
        faded = fade_ends(wave)
        self.assertEqual((faded[0], faded[-1], faded.dtype), (0.0, 0.0, np.float32))
        np.testing.assert_array_equal(faded[FADE_SAMPLES:-FADE_SAMPLES], 1.0)
        np.testing.assert_array_equal(faded, faded[::-1])
        self.assertLess(np.abs(np.diff(faded)).max(), np.pi / 2 / FADE_SAMPLES + 1e-6)

    def test_a_fade_of_hardly_any_samples_is_silence(self):
        for samples in (0, 1, 2, 3):
            self.assertFalse(fade_ends(np.ones(samples, np.float32))[[0, -1]].any() if samples else False)
            self.assertEqual(len(fade_ends(np.ones(samples, np.float32))), samples)

    def test_a_pause_is_filled_up_by_what_the_waves_leave_of_it(self):
        quiet, loud = np.full(1_000, 0.001, np.float32), np.full(2_000, 0.5, np.float32)
        wave = np.concatenate([quiet, loud, quiet])
        wanted = round(PAUSES_S[Boundary.SENTENCE] * SAMPLE_RATE_HZ)
        for before, after, left in ((loud, loud, wanted), (wave, loud, wanted - 1_000), (wave, wave, wanted - 2_000)):
            self.assertEqual(len(pause_between(before, Boundary.SENTENCE, after, 1.0)), left)
        self.assertEqual(len(pause_between(wave, Boundary.CLAUSE, wave, 4.0)), 0)

    def test_silent_waves_count_as_pauses(self):
        silence = np.zeros(1_000, np.float32)
        wanted = round(PAUSES_S[Boundary.PARAGRAPH] * SAMPLE_RATE_HZ)
        self.assertEqual(len(pause_between(silence, Boundary.PARAGRAPH, silence[:0], 1.0)), wanted - 1_000)


class SoundFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_it_has_its_name_only_when_it_is_whole(self):
        for name in ("a.wav", "a.FLAC", "a.ogg"):
            with sound_file(self.folder / name) as file:
                for _ in range(3):
                    file.write(np.zeros(1_000, np.float32))
                self.assertFalse((self.folder / name).exists())
            self.assertEqual(soundfile.info(self.folder / name).frames, 3_000)

    def test_nothing_is_left_of_one_that_was_stopped_and_the_old_one_stays(self):
        path = self.folder / "a.wav"
        path.write_text("the old one")
        for stop in (KeyboardInterrupt, ZeroDivisionError):
            with self.assertRaises(stop), sound_file(path) as file:
                file.write(np.zeros(1_000, np.float32))
                raise stop
        self.assertEqual(
            [(found.name, found.read_text()) for found in self.folder.iterdir()], [("a.wav", "the old one")]
        )

    def test_a_full_disk_is_told(self):
        code = (
            "import resource, signal, numpy, pathlib; from myxtts.synthesis.speech_file import sound_file\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (9_999, 9_999))\n"
            f"with sound_file(pathlib.Path({str(self.folder / 'a.wav')!r})) as file: file.write(numpy.zeros(99_999))\n"
        )
        told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stderr
        self.assertIn("DataError", told)
        self.assertIn("a.wav cannot be written", told)
        self.assertEqual(list(self.folder.iterdir()), [])


class Checkpoint(Case):
    def test_the_best_one_speaks_and_the_newest_where_it_is_gone(self):
        copied = folder / "copied"
        shutil.copytree(self.run_folder, copied)
        best = select_checkpoint(copied)
        self.assertIn(best, list_checkpoints(copied / "checkpoints"))
        newest = list_checkpoints(copied / "checkpoints")[-1]
        if best != newest:
            shutil.rmtree(best)
            with self.assertLogs("myxtts", "WARNING"):
                self.assertEqual(select_checkpoint(copied), newest)

    def test_a_folder_without_a_run_is_refused(self):
        with self.assertRaisesRegex(CheckpointError, "has no checkpoint"):
            select_checkpoint(folder)


class Writing(Case):
    def test_file_has_the_waves_that_the_voice_gives_and_the_same_bytes_again(self):
        text = "\n".join([self.text, self.text[::-1]] * BATCH_PIECES)
        out, again = folder / "out.wav", folder / "again.wav"
        asked = {"language": "en", "iterations": ITERATIONS, "speed": 2.0, "ode_steps": None}
        with mock.patch("myxtts.placement.devices.configure"):  # this process has its devices
            with small_models():
                write_speech(self.run_folder, text, [self.reference], out, **asked)
            with mock.patch(
                "myxtts.synthesis.synthesizer.Synthesizer", return_value=synthesizer
            ):  # loaded another time
                write_speech(self.run_folder, text, [self.reference], again, **asked)
        self.assertEqual(out.read_bytes(), again.read_bytes())
        wave, rate_hz = soundfile.read(out, dtype="float32")
        self.assertEqual(rate_hz, SAMPLE_RATE_HZ)
        expected = self.synthesize(text, options=replace(synthesizer.options, speed=2.0))
        np.testing.assert_allclose(wave, expected, atol=1.1 / 32768)


class Languages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, step: str, text: str) -> None:
        checkpoint = self.folder / "checkpoints" / step
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text(text, encoding="utf-8")

    def test_the_only_one_is_the_default_and_one_of_several_is_not_guessed(self):
        self.assertEqual(choose_language(None, ["en"]), "en")
        self.assertEqual(choose_language("ka", ["en", "ka"]), "ka")
        for asked, said in ((None, "no language"), ("", "language ''"), ("fa", "language 'fa'")):
            with self.assertRaisesRegex(DataError, f"^{said} was asked for, but .* on en, ka. Give one of these by"):
                choose_language(asked, ["en", "ka"])

    def test_those_of_a_run_are_read_from_its_newest_checkpoint(self):
        self.write("step-999999", "{")
        self.write("step-1000000", '{"languages": ["en", "ka"]}')
        self.assertEqual(trained_languages(self.folder), ["en", "ka"])

    def test_a_damaged_checkpoint_is_named(self):
        for step, text in enumerate(("{", "[]", "{}", '{"languages": 1}')):
            self.write(f"step-{step:06d}", text)
            with self.assertRaisesRegex(CheckpointError, f"step-{step:06d}/state.json cannot be read"):
                trained_languages(self.folder)


class Program(unittest.TestCase):
    """What is refused before TensorFlow is imported: in this process, where a run with no weights is enough."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for run, languages in (("run", '["en"]'), ("several", '["en", "ka"]')):
            checkpoint = self.folder / run / "checkpoints" / "step-000004"
            checkpoint.mkdir(parents=True)
            (checkpoint / "state.json").write_text(f'{{"languages": {languages}}}')
        write_sound(self.folder / "short.wav", sine(220.0, 0.3), SAMPLE_RATE_HZ, "PCM_16")

    def argv(self, *flags: str) -> list[str]:
        return ["--run", str(self.folder / "run"), "--out", str(self.folder / "x.wav"), *flags]

    def test_mistakes_are_messages_with_exit_code_2(self):
        (self.folder / "folder.wav").mkdir()
        (self.folder / "latin.txt").write_bytes(b"caf\xe9")
        (self.folder / "empty.txt").write_text("\n")
        hello = ("--text", "hello")
        for flags, said in (
            ((*hello, "--out", str(self.folder / "x.mp4")), "no known ending"),
            ((*hello, "--out", str(self.folder / "none/x.wav")), "no folder"),
            ((*hello, "--out", str(self.folder / "folder.wav")), "is a folder"),
            ((*hello, "--run", str(self.folder)), "has no checkpoint"),
            ((*hello, "--language", "ka"), "language 'ka' was asked for, but this run was trained on en"),
            ((*hello, "--run", str(self.folder / "several")), "no language was asked for, but"),
            ((*hello, "--reference", str(self.folder / "none.wav")), "missing file"),
            ((*hello, "--reference", str(self.folder / "short.wav")), "has 0.30 s"),
            (("--text", " ... "), "nothing to say"),
            (("--text-file", str(self.folder / "empty.txt")), "nothing to say"),
            (("--text-file", str(self.folder / "none.txt")), "No such file"),
            (("--text-file", str(self.folder / "latin.txt")), "not UTF-8 at byte 3"),
        ):
            with self.subTest(flags=flags):
                code, told = reported(lambda flags=flags: synthesize.main(self.argv(*flags)))
                self.assertEqual(code, 2)
                self.assertIn(said, told)

    def test_flags_out_of_bounds_are_refused_by_the_parser(self):
        hello = ("--text", "hello")
        for flags in (
            *(
                (*hello, *pair)
                for pair in (("--speed", "0.2"), ("--speed", "nan"), ("--pitch", "13"), ("--energy", "-13"))
            ),
            *(
                (*hello, *pair)
                for pair in (("--guidance", "-1"), ("--seed", "1.5"), ("--ode-steps", "0"), ("--iterations", "0"))
            ),
            (*hello, "--text-file", "both.txt"),
        ):
            with self.subTest(flags=flags), self.assertRaises(ConfigError):
                synthesize.parse(self.argv(*flags))

    def test_the_text_comes_from_the_flag_the_file_or_stdin(self):
        file = self.folder / "text.txt"
        file.write_text("სალამი", encoding="utf-8-sig")
        self.assertEqual(synthesize.read_text("hello", None), "hello")
        self.assertEqual(synthesize.read_text(None, file), "სალამი")
        with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO("سلام".encode()), "ascii")):
            self.assertEqual(synthesize.read_text(None, None), "سلام")
        with mock.patch("sys.stdin.isatty", return_value=True), self.assertRaisesRegex(DataError, "there is no text"):
            synthesize.read_text(None, None)

    def test_several_references_may_follow_the_flag(self):
        asked = synthesize.parse(self.argv("--text", "a", "--reference", "a.wav", "b.wav", "--speed", "2"))
        self.assertEqual((asked.references, asked.speed), ([Path("a.wav"), Path("b.wav")], 2.0))
        self.assertEqual(synthesize.parse(self.argv("--text", "a")).references, [])


def reported(program: Callable[[], int]) -> tuple[int, str]:
    """Exit code and message of a program of the command line."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told), mock.patch("myxtts.commands.console.log_to_console"):
        return report_errors(program), told.getvalue()


if __name__ == "__main__":
    unittest.main()
