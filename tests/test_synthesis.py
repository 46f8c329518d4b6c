"""Synthesis with a trained run: the Synthesizer, sound files, the program and its errors."""

import contextlib
import io
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import unittest
import wave as wavfile
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import numpy as np
import soundfile
import tensorflow as tf

from myxtts.checkpoints.files import write_record
from myxtts.checkpoints.trained_run import TrainedRun
from tests.fixtures import make_record, rewrite_state
from tests.two_devices import MODEL

# isort: split

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.sound_header import HEADER_BYTES, wav_header
from myxtts.audio.vocoder import ITERATIONS as ITERATIONS_OF_SPEECH
from myxtts.audio.vocoder import GriffinLim, vocode
from myxtts.base.console import report_errors, sound_on_stdout
from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.checkpoints.files import write_checkpoint
from myxtts.commands import synthesize
from myxtts.config.schema import Config, ModelConfig
from myxtts.speak.chunks import FADE_S, PAUSES_S, encode_text, fade_ends, pause_between
from myxtts.speak.sound_file import WavStream, sound_file, wav_stream
from myxtts.tasks.base import Examples
from myxtts.tasks.tts.speech_file import write_speech
from myxtts.tasks.tts.synthesizer import BATCH_CHUNKS, Synthesizer
from myxtts.tasks.tts.task import TTSSampler
from myxtts.text.languages import choose_language
from myxtts.text.sentences import Boundary
from tests.fixtures import FolderCase, reported, temporary_folder
from tests.sine_corpus import sine, vowels, write_sound
from tests.tiny import cached_networks, features, on_device, small_models, whole_run

ROOT = Path(__file__).parents[1]
ITERATIONS = 2
FADE_SAMPLES = round(FADE_S * SAMPLE_RATE_HZ)


folder: Path
run_folder: Path
synthesizer: Synthesizer


def setUpModule():
    """Load the synthesizer of the whole run once for all tests of this file."""
    global folder, run_folder, synthesizer
    folder, run_folder = temporary_folder(unittest.addModuleCleanup), whole_run().folder
    logging.getLogger("myxtts").handlers = [logging.NullHandler()]  # not the console of that run
    with cached_networks():
        synthesizer = Synthesizer(run_folder, MODEL, iterations=ITERATIONS)


def sound(name: str, hz: float, seconds: float) -> Path:
    path = folder / name
    write_sound(path, sine(hz, seconds, 44_100), 44_100, "PCM_16")
    return path


class Case(unittest.TestCase):
    """A text of known letters, and a reference."""

    @classmethod
    def setUpClass(cls):
        cls.synthesizer, cls.run_folder = synthesizer, run_folder
        cls.text = 2 * "".join(filter(str.isalpha, synthesizer._vocabulary.symbols.symbols))
        cls.reference = sound("reference.flac", 220.0, 1.0)

    def synthesize(self, text: str | None = None, references=None, **options) -> np.ndarray:
        """Synthesize with options instead of those of the run."""
        references = [self.reference] if references is None else references
        changed = replace(synthesizer.options, **options)
        return synthesizer.synthesize(text or self.text, references, options=changed)

    def assert_error(self, expected: str, *text, **options) -> None:
        with self.assertRaises(DataError) as caught:
            # Raised by the call, before the first sentence.
            self.synthesizer.speak(*text, **options)
        self.assertIn(expected, str(caught.exception))


class Synthesis(Case):
    def test_a_wave_has_whole_frames_and_is_audible(self):
        wave = self.synthesize()
        self.assertEqual((wave.dtype, wave.ndim, len(wave) % HOP_SAMPLES), (np.float32, 1, 0))
        # A frame or more for each token.
        self.assertGreater(len(wave), HOP_SAMPLES * len(self.text))
        self.assertTrue(np.isfinite(wave).all() and 0.0 < np.abs(wave).max() <= 1.0)

    def test_a_wave_that_is_not_finite_is_an_error(self):
        waves = [np.array([0.0, np.nan], np.float32)], [np.zeros(1, np.int32)]
        with (
            mock.patch.object(type(synthesizer), "_synthesize_batch", return_value=waves),
            self.assertRaisesRegex(DataError, "guidance 1 is not finite. Lower --guidance"),
        ):
            self.synthesize()

    def test_waves_depend_on_the_seed(self):
        first, again, other_seed = (self.synthesize(seed=seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        self.assertFalse(np.array_equal(first, other_seed))

    def test_slower_speech_is_longer(self):
        self.assertGreater(len(self.synthesize(speed=0.25)), 2 * len(self.synthesize()))

    def test_default_options_are_the_settings_of_the_run(self):
        options = self.synthesizer.options
        self.assertEqual((options.ode_steps, options.guidance, options.seed), (2, 1.0, 0))

    def test_each_option_changes_the_wave(self):
        plain = self.synthesize()
        options = {"ode_steps": 4, "guidance": 2.0, "pitch_semitones": 5.0, "variety": 0.0}
        for option, value in options.items():
            with self.subTest(option):
                self.assertFalse(np.array_equal(self.synthesize(**{option: value}), plain))

    def test_number_of_references_changes_the_wave(self):
        second = sound("second.wav", 330.0, 0.6)
        paths = [self.reference, second]
        waves = [self.synthesize(references=paths[:count]) for count in range(3)]
        for wave in waves:
            self.assertTrue(np.isfinite(wave).all() and np.abs(wave).max() > 0.0)
        for pair in itertools.pairwise(waves):
            self.assertFalse(np.array_equal(*pair))

    def test_reference_mels_are_limited_in_length_and_concatenated(self):
        long = sound("long.wav", 330.0, 4.0)
        both, first, second = (
            synthesizer._reference_mel(paths)
            for paths in ([self.reference, long], [self.reference], [long])
        )
        self.assertEqual(len(second), 3 * SAMPLE_RATE_HZ // HOP_SAMPLES)  # reference_seconds is 3
        np.testing.assert_array_equal(both, np.concatenate([first, second]))

    def test_references_are_trimmed_and_as_loud_as_in_training(self):
        loud, silence = 0.4 * vowels(1.0), np.zeros(12_800)
        quiet = np.concatenate([silence, loud / 4, silence])
        paths = [folder / "loud.wav", folder / "quiet.wav"]
        for path, wave in zip(paths, (loud, quiet), strict=True):
            write_sound(path, wave, subtype="PCM_16")
        as_trained = synthesizer._data.model_copy(update={"trim": 40.0, "loudness": -23.0})
        with mock.patch.object(synthesizer, "_data", as_trained):
            first, second = (synthesizer._reference_mel([path]) for path in paths)
        # 1,024 samples are left on each side, and the rest of the last piece of 512.
        self.assertIn(len(second) - len(first), (8, 9, 10))
        np.testing.assert_allclose(second[10:70], first[6:66], atol=0.3)

    def test_untrained_language_is_an_error(self):
        message = "language 'ka' was given, but this run was trained on en"
        self.assert_error(message, self.text, language="ka")

    def test_the_network_gets_the_language_of_the_accent(self):
        two = replace(synthesizer._vocabulary, languages=("en", "it"))
        silence = [np.zeros(HOP_SAMPLES, np.float32)], [np.zeros(1, np.int32)]
        for accent, row, strength in ((None, 0, 1.0), ("IT", 1, 1.5)):
            compute = mock.Mock(return_value=silence)
            with mock.patch.multiple(synthesizer, _vocabulary=two, _synthesize_batch=compute):
                synthesizer.synthesize(self.text, language="en", accent=accent)
            self.assertEqual(compute.call_args.args[2], row)
            self.assertEqual(compute.call_args.args[3].accent_strength, strength)

    def test_unusable_references_are_errors(self):
        text = folder / "notes.wav"
        text.write_text("no audio")
        for path, expected in (
            (sound("short.wav", 220.0, 0.3), "has 0.30 s"),
            (text, "cannot be used: unreadable"),
            (folder, "cannot be used: not a file"),
            (folder / "none.wav", "cannot be used: missing file"),
        ):
            with self.subTest(path=path.name):
                self.assert_error(expected, self.text, [self.reference, path])


class UnknownSymbols(Case):
    def test_a_few_unknown_symbols_are_skipped_with_one_warning_each(self):
        text = f"{self.text * 3}ჰ.\n{self.text}.\n{self.text * 4}ჰ漢ჰ."
        with self.assertLogs("myxtts", "WARNING") as logs:
            self.synthesizer.speak(text)
        named = [line.rpartition(": ")[2] for line in logs.output if "left out" in line]
        self.assertEqual(named, ["ჰ (sentence 1, 3)", ". (sentence 1, 2, 3)", "漢 (sentence 3)"])

    def test_too_many_unknown_symbols_in_a_sentence_are_an_error(self):
        message = "symbols of sentence 2, '漢字 ჰაერი' (unknown: "
        self.assert_error(message, f"{self.text}\n漢字 ჰაერი")
        self.assert_error("the training corpus has only", "漢字 ჰაერი")

    def test_a_sentence_in_which_nothing_is_spoken_is_left_out_with_a_warning(self):
        def symbols_of(text, language, frontend):
            return [] if "ℹ️" in text else list(text)

        def encode(text):
            table = self.synthesizer._vocabulary.symbols
            return encode_text(text, "en", self.synthesizer._frontend, table)

        with mock.patch("myxtts.text.frontend.symbols_of", symbols_of):
            with self.assertLogs("myxtts", "WARNING") as logs:
                chunks = encode(f"{self.text}\nℹ️\n{self.text}")
            self.assertEqual(len(chunks), 2)
            self.assertIn("sentence 2 left out, since nothing in it is spoken: 'ℹ️'", logs.output[0])
            with self.assertRaisesRegex(DataError, "no letter and no digit"):
                encode("ℹ️")

    def test_a_text_without_letters_is_an_error(self):
        for text in ("", "  ", "...", "\n* * *\n"):
            with self.subTest(text=text):
                self.assert_error("no letter and no digit", text)


class LongTexts(Case):
    """Sentences are synthesized in batches and concatenated."""

    COUNT = BATCH_CHUNKS + 3

    def lines(self) -> list[str]:
        """Return lines of different lengths, more than a batch has."""
        return [self.text[: 3 + number] for number in range(self.COUNT)]

    def waves(self, text: str, **options) -> list[np.ndarray]:
        sentences = self.synthesizer.speak(text, [self.reference], **options)
        return [sentence.wave for sentence in sentences]

    def test_synthesize_concatenates_the_waves_of_the_sentences(self):
        text = "\n".join(self.lines())
        waves = self.waves(text)
        self.assertEqual(len(waves), self.COUNT)
        np.testing.assert_array_equal(np.concatenate(waves), self.synthesize(text))

    def test_words_have_the_times_of_their_sentence(self):
        text = "\n".join(self.lines())
        for speed in (1.0, 2.0):
            options = replace(synthesizer.options, speed=speed)
            start_s = 0.0
            for line, sentence in zip(
                self.lines(), synthesizer.speak(text, options=options), strict=True
            ):
                (word,) = sentence.times()
                self.assertEqual(word.text, line)
                self.assertEqual([phone.text for phone in word.phones], [*line])
                wave = np.append(sentence.wave, 0.0)
                silence_s = np.flatnonzero(wave)[0] / SAMPLE_RATE_HZ
                end_s = start_s + len(sentence.wave) / SAMPLE_RATE_HZ
                # Begin and end have a frame each at least.
                self.assertGreater(word.start_s, start_s + silence_s)
                self.assertLess(word.end_s, end_s)
                start_s = end_s

    def test_sentences_are_synthesized_when_iterated(self):
        batch = mock.Mock(wraps=synthesizer._synthesize_batch)
        with mock.patch.object(synthesizer, "_synthesize_batch", batch):
            sentences = synthesizer.speak("\n".join(self.lines()))
            self.assertEqual(batch.call_count, 0)
            next(sentences)
            self.assertEqual(batch.call_count, 1)
            list(sentences)
            self.assertEqual([len(call.args[0]) for call in batch.call_args_list], [1, 2, 4, 4])

    def test_other_sentences_do_not_change_a_wave(self):
        batched = self.waves("\n".join(self.lines()))
        for line, wave in zip(self.lines(), batched, strict=True):
            alone = self.synthesize(line)
            # Rounding depends on the shape of the batch, and each iteration of Griffin-Lim
            # amplifies it.
            np.testing.assert_allclose(wave[-len(alone) :], alone, atol=1e-3)
            self.assertFalse(wave[: -len(alone)].any())  # the pause

    def test_there_are_no_clicks_between_sentences(self):
        speech = self.synthesize("\n".join(self.lines()))
        waves = self.waves("\n".join(self.lines()))
        loudest_jump = np.abs(np.diff(speech)).max()
        for boundary in np.cumsum([len(wave) for wave in waves])[:-1]:
            around = speech[boundary - 10 : boundary + 10]
            self.assertEqual(speech[boundary - 1], 0.0)
            self.assertLess(np.abs(np.diff(around)).max(), 0.05 * loudest_jump)

    def test_pauses_depend_on_the_boundary_and_the_speed(self):
        def second(text: str, speed: float = 1.0) -> int:
            return len(self.waves(text, options=replace(synthesizer.options, speed=speed))[1])

        paragraph = second(f"{self.text}.\n{self.text}.")
        sentence = second(f"{self.text}. {self.text.title()}.")
        difference_s = PAUSES_S[Boundary.PARAGRAPH] - PAUSES_S[Boundary.SENTENCE]
        self.assertEqual(paragraph - sentence, round(difference_s * SAMPLE_RATE_HZ))
        self.assertLess(second(f"{self.text}.\n{self.text}.", speed=4.0), paragraph)


class Waves(unittest.TestCase):
    """Griffin-Lim inversion of a batch of mels."""

    def test_padding_and_other_rows_change_no_sample(self):
        mels = np.random.default_rng(0).normal(-5.5, 2.1, (3, 20, 80)).astype(np.float32)
        frames = [20, 7, 1]
        waves = vocode(GriffinLim(4), tf.constant(mels), frames, (5, 0))
        self.assertEqual([len(wave) for wave in waves], [HOP_SAMPLES * length for length in frames])
        for mel, length, wave in zip(mels, frames, waves, strict=True):
            (alone,) = vocode(GriffinLim(4), tf.constant(mel[None, :length]), [length], (5, 0))
            np.testing.assert_array_equal(alone, wave)

    def test_help_has_the_default_number_of_iterations(self):
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout), self.assertRaises(SystemExit):
            synthesize.parse(["--help"])
        default = f"Griffin-Lim (default {ITERATIONS_OF_SPEECH})"
        self.assertIn(default, " ".join(stdout.getvalue().split()))


class Concatenation(unittest.TestCase):
    def test_a_fade_reaches_zero_and_does_not_change_the_middle(self):
        wave = np.ones(1_000, np.float32)
        faded = fade_ends(wave)
        self.assertEqual((faded[0], faded[-1], faded.dtype), (0.0, 0.0, np.float32))
        np.testing.assert_array_equal(faded[FADE_SAMPLES:-FADE_SAMPLES], 1.0)
        np.testing.assert_array_equal(faded, faded[::-1])
        self.assertLess(np.abs(np.diff(faded)).max(), np.pi / 2 / FADE_SAMPLES + 1e-6)

    def test_a_wave_of_very_few_samples_fades_to_silence(self):
        for samples in (0, 1, 2, 3):
            faded = fade_ends(np.ones(samples, np.float32))
            self.assertFalse(np.any([faded[:1], faded[-1:]]))
            self.assertEqual(len(faded), samples)

    def test_silence_of_the_waves_counts_towards_the_pause(self):
        quiet, loud = np.full(1_000, 0.001, np.float32), np.full(2_000, 0.5, np.float32)
        wave = np.concatenate([quiet, loud, quiet])
        pause = round(PAUSES_S[Boundary.SENTENCE] * SAMPLE_RATE_HZ)
        silence = np.zeros(1_000, np.float32)
        for before, after, left in (
            *((loud, loud, pause), (wave, loud, pause - 1_000), (wave, wave, pause - 2_000)),
            (silence, silence[:0], pause - 1_000),
        ):
            self.assertEqual(len(pause_between(before, Boundary.SENTENCE, after, 1.0)), left)
        self.assertEqual(len(pause_between(wave, Boundary.CLAUSE, wave, 4.0)), 0)


class SoundFile(FolderCase):
    def test_the_file_appears_when_it_is_complete(self):
        for name in ("a.wav", "a.FLAC", "a.ogg"):
            with sound_file(self.folder / name) as file:
                for _ in range(3):
                    file.write(np.zeros(1_000, np.float32))
                self.assertFalse((self.folder / name).exists())
            self.assertEqual(soundfile.info(self.folder / name).frames, 3_000)

    def test_long_sentences_fit_into_the_stack(self):
        """libvorbis puts a whole write on the stack: 120 s at once are a segmentation fault."""
        wave = np.random.default_rng(0).uniform(-0.5, 0.5, 120 * SAMPLE_RATE_HZ).astype(np.float32)
        code = (
            "import numpy, pathlib; from myxtts.speak.sound_file import sound_file\n"
            f"with sound_file(pathlib.Path({str(self.folder / 'a.ogg')!r})) as file:\n"
            f"    file.write(numpy.zeros({120 * SAMPLE_RATE_HZ}, numpy.float32))\n"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        self.assertEqual(soundfile.info(self.folder / "a.ogg").frames, 120 * SAMPLE_RATE_HZ)
        with sound_file(self.folder / "a.wav") as file:
            file.write(wave)
        soundfile.write(self.folder / "b.wav", wave, SAMPLE_RATE_HZ)
        self.assertEqual((self.folder / "a.wav").read_bytes(), (self.folder / "b.wav").read_bytes())

    def test_a_name_may_have_bytes_that_are_not_utf_8(self):
        path = Path(os.fsdecode(os.fsencode(self.folder) + b"/caf\xe9.wav"))
        with sound_file(path) as file:
            file.write(np.zeros(1_000, np.float32))
        self.assertEqual(list(self.folder.iterdir()), [path])

    def test_an_interrupted_write_leaves_the_old_file(self):
        path = self.folder / "a.wav"
        path.write_text("old content")
        for stop in (KeyboardInterrupt, ZeroDivisionError):
            with self.assertRaises(stop), sound_file(path) as file:
                file.write(np.zeros(1_000, np.float32))
                raise stop
        self.assertEqual([*self.folder.iterdir()], [path])
        self.assertEqual(path.read_text(), "old content")

    def test_a_full_disk_is_an_error_that_names_the_file(self):
        code = (
            "import resource, signal, numpy, pathlib; from myxtts.speak.sound_file import"
            " sound_file\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
            " resource.setrlimit(resource.RLIMIT_FSIZE, (9_999, 9_999))\nwith"
            f" sound_file(pathlib.Path({str(self.folder / 'a.wav')!r})) as file:"
            " file.write(numpy.zeros(99_999))\n"
        )
        run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        self.assertRegex(run.stderr, "DataError: .*a.wav cannot be written")
        self.assertEqual(list(self.folder.iterdir()), [])


class Pipe(unittest.TestCase):
    """WAV of unknown length."""

    def setUp(self):
        self.path = temporary_folder(self.addCleanup) / "x.wav"
        random = np.random.default_rng(0)
        self.waves = [
            np.append(random.uniform(-1.0, 1.0, 999), [1.0, -1.0]).astype(np.float32)
            for _ in range(3)
        ]

    def written(self, mode: str, end: bool = True) -> np.ndarray:
        """Write the waves to the file; return the samples that soundfile reads."""
        with open(self.path, mode) as file:
            stream = WavStream(file)
            for wave in self.waves:
                stream.write(wave)
            if end:
                stream.end()
        return soundfile.read(self.path, dtype="int16")[0]

    def test_samples_equal_those_of_a_sound_file(self):
        with sound_file(self.path) as file:
            file.write(np.concatenate(self.waves))
        expected = self.path.read_bytes()
        samples = soundfile.read(self.path, dtype="int16")[0]
        np.testing.assert_array_equal(self.written("wb", end=False), samples)
        np.testing.assert_array_equal(self.written("wb"), samples)
        self.assertEqual(self.path.read_bytes(), expected)

    def test_the_length_is_written_where_it_can_be(self):
        self.written("wb")
        with wavfile.open(str(self.path)) as sound:
            self.assertEqual(sound.getnframes(), 3_003)
        self.path.unlink()
        np.testing.assert_array_equal(self.written("ab"), self.written("wb", end=False))
        self.path.write_bytes(b"before")
        with open(self.path, "r+b") as file:
            file.seek(6)
            stream = WavStream(file)
            stream.write(self.waves[0])
            stream.end()
        self.assertEqual(self.path.read_bytes()[:10], b"beforeRIFF")
        with wavfile.open(io.BytesIO(self.path.read_bytes()[6:])) as sound:
            self.assertEqual(sound.getnframes(), 1_001)

    def test_each_wave_leaves_at_once_and_nothing_without_a_wave(self):
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        with (
            open(reading, "rb", buffering=0) as reader,
            open(writing, "wb") as pipe,
            wav_stream(pipe) as stream,
        ):
            self.assertIsNone(reader.read(1))
            stream.write(self.waves[0])
            self.assertEqual(len(reader.read(10_000)), HEADER_BYTES + 2 * 1_001)
            stream.write(self.waves[1])
            self.assertEqual(len(reader.read(10_000)), 2 * 1_001)
        with open(self.path, "wb") as file, wav_stream(file):
            pass
        self.assertEqual(self.path.read_bytes(), b"")

    def test_more_than_4_gib_have_the_header_of_an_unknown_length(self):
        self.assertEqual(wav_header(2**33), wav_header())


class Constant:
    """A trained vocoder whose waves have a single value."""

    description, metadata, variables = "constant", {}, [None]

    def synthesize(self, log_mel, seed):
        return tf.fill([tf.shape(log_mel)[0], tf.shape(log_mel)[1] * HOP_SAMPLES], 0.25)


class Training(Case):
    """The vocoder of a voice while it is trained."""

    def test_samples_are_waves_of_the_vocoder(self):
        batch = features([(5, 13), (8, 24)])
        # That the run knows.
        batch |= {"language": np.zeros(2, np.int32), "tokens": np.minimum(batch["tokens"], 10)}
        recordings = [read_wave(self.reference)] * 2
        ids = ["a/x.wav", "b/x.wav"]
        examples = Examples(on_device(batch), ids, ["one", "two"], recordings)
        # A resumed run repeats a step.
        old = folder / "samples/step-000007/old.wav"
        old.parent.mkdir(parents=True)
        old.touch()
        with tf.device(MODEL):
            network, options = synthesizer._network, synthesizer.options
            output = network, examples, folder / "samples", mock.Mock()
            sampler = TTSSampler(options, Constant(), *output)
            sampler(7)
        self.assertFalse(old.exists())
        constant = {"": True, ".vocoder": True, ".griffin-lim": False, ".recording": False}
        for name in ("1-x", "2-x"):
            for kind, is_constant in constant.items():
                path = folder / "samples" / "step-000007" / f"{name}{kind}.wav"
                samples, _ = soundfile.read(path)
                self.assertGreater(len(samples), 0)
                self.assertEqual(bool((samples == 0.25).all()), is_constant, kind)

    def test_a_missing_vocoder_ends_a_run_before_it_starts(self):
        workspace = whole_run().workspace
        with mock.patch.object(logging.getLogger("myxtts"), "handlers", []):  # restored afterwards
            finished = workspace.train("early", "--vocoder", "runs/none")
        self.assertEqual(finished.code, 2)
        message = "has the setting vocoder runs/none, but runs/none has no checkpoint"
        self.assertIn(message, finished.err)
        self.assertFalse(workspace.run_dir("early").exists())


class Checkpoint(Case):
    def test_the_best_is_selected_or_else_the_newest(self):
        run = folder / "selected"
        for step, best, selected in ((5, None, 5), (7, (7, 0.5), 7), (9, (7, 0.5), 7)):
            record = make_record(step=step, best=best)
            write_checkpoint(run / f"checkpoints/step-{step:06d}", [], record)
            found = TrainedRun.open(run).checkpoint.path
            self.assertEqual(found.name, f"step-{selected:06d}")
        shutil.rmtree(run / "checkpoints/step-000007")
        with self.assertLogs("myxtts", "WARNING"):
            self.assertEqual(TrainedRun.open(run).checkpoint.path.name, "step-000009")

    def test_settings_of_another_version_are_an_error(self):
        run = folder / "other_version"
        write_checkpoint(run / "checkpoints/step-000001", [], make_record())

        def change(state):
            state["settings"]["model"] = {"no_such_setting": 1}

        rewrite_state(run / "checkpoints/step-000001", change)
        with self.assertRaisesRegex(CheckpointError, "no_such_setting.*Use the version"):
            Synthesizer(run, MODEL)

    def test_a_folder_without_a_run_is_an_error(self):
        with self.assertRaisesRegex(CheckpointError, "has no checkpoint"):
            TrainedRun.open(folder)


class Writing(Case):
    def test_the_file_has_the_synthesized_waves_and_repeats_bit_for_bit(self):
        text = "\n".join([self.text, self.text[::-1]] * BATCH_CHUNKS)
        out, again = folder / "out.wav", folder / "again.wav"
        options = {"language": "en", "iterations": ITERATIONS, "speed": 2.0, "ode_steps": None}
        options["times"] = folder / "out.json"
        with mock.patch("myxtts.placement.devices.configure"):  # this process has its devices
            with small_models():
                write_speech(self.run_folder, text, [self.reference], out, **options)
            # The synthesizer of this module was loaded separately.
            with mock.patch("myxtts.tasks.tts.synthesizer.Synthesizer", return_value=synthesizer):
                write_speech(self.run_folder, text, [self.reference], again, **options)
        self.assertEqual(out.read_bytes(), again.read_bytes())
        wave, rate_hz = soundfile.read(out, dtype="float32")
        self.assertEqual(rate_hz, SAMPLE_RATE_HZ)
        expected = self.synthesize(text, speed=2.0)
        np.testing.assert_allclose(wave, expected, atol=1.1 / 32768)
        document = json.loads((folder / "out.json").read_text())
        self.assertEqual([of["text"] for of in document["segments"]], text.split())
        self.assertAlmostEqual(document["duration"], len(wave) / rate_hz, places=3)


class Streaming(Case):
    """`synthesize --stream`."""

    def stream(self, stdout: BinaryIO, text: str) -> tuple[int, str]:
        """Run the program with a stdout, without loading weights; return exit code and stderr."""
        stderr = io.StringIO()
        argv = f"--run {self.run_folder} --reference {self.reference} --stream --text".split()
        with (
            mock.patch("myxtts.placement.devices.configure"),
            mock.patch("myxtts.tasks.tts.synthesizer.Synthesizer", return_value=synthesizer),
            mock.patch.object(logging.getLogger("myxtts"), "handlers", []),  # restored afterwards
            contextlib.redirect_stdout(io.TextIOWrapper(stdout)) as console,
            contextlib.redirect_stderr(stderr),
        ):
            code = report_errors(lambda: synthesize.main([*argv, text]))
            console.detach()
        return code, stderr.getvalue()

    def test_stdout_has_the_sound_of_the_file_and_nothing_else(self):
        text = "\n".join([self.text, self.text[::-1], self.text])
        with open(folder / "stream.wav", "w+b") as file:
            code, log = self.stream(file, text)
        self.assertEqual(code, 0, log)
        with sound_file(folder / "file.wav") as file:
            file.write(self.synthesize(text))
        self.assertEqual((folder / "stream.wav").read_bytes(), (folder / "file.wav").read_bytes())
        self.assertRegex(log, r"first sound    after \d+\.\d\d s, and \d+\.\d s of loading\n")
        self.assertRegex(log, r"stream: \d+\.\d\d s of speech")

    def test_a_reader_that_ends_early_ends_the_program_without_a_message(self):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "wb", buffering=0) as pipe:
            code, log = self.stream(pipe, self.text)
        self.assertEqual(code, 128 + signal.SIGPIPE)
        self.assertNotIn("error", log)
        self.assertNotIn("Traceback", log)


class Languages(unittest.TestCase):
    def test_the_only_language_is_the_default(self):
        self.assertEqual(choose_language(None, ["en"]), "en")
        self.assertEqual(choose_language("ka", ["en", "ka"]), "ka")
        requested = {None: "no language", "": "language ''", "fa": "language 'fa'"}
        for language, expected in requested.items():
            message = f"^{expected} was given, but .* on en, ka. Give one of these with"
            with self.assertRaisesRegex(DataError, message):
                choose_language(language, ["en", "ka"])

    def test_the_name_as_it_is_goes_before_other_spellings_of_the_language(self):
        for language, expected in (("en", "en"), ("EN", "EN"), ("eN", "EN")):
            self.assertEqual(choose_language(language, ["EN", "en"]), expected)


class Program(unittest.TestCase):
    """Errors found before TensorFlow is imported, for which a run without weights is enough."""

    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        for run, task, languages in (
            *(("run", "tts", ("en",)), ("several", "tts", ("en", "ka"))),
            ("vocoder", "vocoder", ()),
        ):
            checkpoint = self.folder / run / "checkpoints" / "step-000004"
            checkpoint.mkdir(parents=True)
            settings = Config(model=ModelConfig(task=task))
            write_record(checkpoint, make_record(settings=settings, languages=languages))
        write_sound(self.folder / "short.wav", sine(220.0, 0.3), SAMPLE_RATE_HZ, "PCM_16")

    def argv(self, *flags: str) -> list[str]:
        out = [] if "--stream" in flags else ["--out", str(self.folder / "x.wav")]
        return ["--run", str(self.folder / "run"), *out, *flags]

    def test_mistakes_are_messages_with_exit_code_2(self):
        (self.folder / "folder.wav").mkdir()
        os.mkfifo(self.folder / "pipe.wav")
        (self.folder / "latin.txt").write_bytes(b"caf\xe9")
        (self.folder / "empty.txt").write_text("\n")
        for flags, expected in (
            ("--out {}/x.mp4", "unknown file name extension"),
            ("--out {}/none/x.wav", "no folder"),
            ("--out {}/folder.wav", "is a folder"),
            ("--out {}/pipe.wav", "is a pipe or a device"),
            ("--times {}/x.txt", "times are written as srt, vtt, json, TextGrid"),
            ("--times {}/none/x.srt", "no folder"),
            ("--run {}", "has no checkpoint"),
            ("--language ka", "language 'ka' was given, but this run was trained on en"),
            ("--run {}/several", "no language was given, but"),
            ("--run {}/several --language en --accent fa", "these with --accent"),
            ("--reference {}/none.wav", "missing file"),
            ("--reference {}/short.wav", "has 0.30 s"),
            ("--text ...", "no letter and no digit"),
            ("--text ... --stream", "no letter and no digit"),
            ("--vocoder {}/none", "none was given, but"),
            ("--run {}/vocoder", "cannot be used for the task tts"),
            ("--text-file {}/empty.txt", "no letter and no digit"),
            ("--text-file {}/none.txt", "No such file"),
            ("--text-file {}/latin.txt", "not UTF-8 at byte 3"),
            ("--text caf\udce9", "the text in --text cannot be read: it is not UTF-8 at byte 3"),
        ):
            flags = flags.format(self.folder).split()
            if not {"--text", "--text-file"} & set(flags):
                flags += ["--text", "hello"]
            with self.subTest(flags=flags):
                code, message = reported(lambda flags=flags: synthesize.main(self.argv(*flags)))
                self.assertEqual(code, 2)
                self.assertIn(expected, message)

    def test_the_output_never_replaces_a_reference(self):
        write_sound(self.folder / "x.wav", sine(220.0, 1.0), SAMPLE_RATE_HZ, "PCM_16")
        (self.folder / "link.wav").symlink_to(self.folder / "x.wav")
        before = (self.folder / "x.wav").read_bytes()
        for name in ("x.wav", "link.wav"):
            flags = f"--text hello --reference {self.folder}/x.wav --out {self.folder}/{name}"
            flags = flags.split()
            code, message = reported(lambda flags=flags: synthesize.main(self.argv(*flags)))
            self.assertEqual(code, 2)
            self.assertIn(f"{name} is one of the recordings of --reference", message)
        self.assertEqual((self.folder / "x.wav").read_bytes(), before)

    def test_the_parser_rejects_flags_out_of_range(self):
        one_flag = "--speed=0.2 --speed=nan --pitch=13 --energy=-13 --guidance=-1 --variety=3"
        one_flag += " --seed=1.5 --ode-steps=0 --iterations=0 --text-file=both.txt --reference"
        for flags in (*one_flag.split(), "--stream --out speech.wav"):
            with self.subTest(flags=flags), self.assertRaises(ConfigError):
                synthesize.parse(self.argv("--text", "hello", *flags.split()))

    def test_the_text_is_read_from_the_flag_the_file_or_stdin(self):
        file = self.folder / "text.txt"
        file.write_text("სალამი", encoding="utf-8-sig")
        self.assertEqual(synthesize.read_text("hello", None), "hello")
        self.assertEqual(synthesize.read_text(None, file), "სალამი")
        with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO("سلام".encode()), "ascii")):
            self.assertEqual(synthesize.read_text(None, None), "سلام")
        for stdin in (None, mock.Mock(**{"isatty.return_value": True})):
            error = self.assertRaisesRegex(DataError, "there is no text")
            with mock.patch("sys.stdin", stdin), error:
                synthesize.read_text(None, None)

    def test_a_closed_stdout_takes_no_sound(self):
        with (
            mock.patch("sys.stdout", None),
            self.assertRaisesRegex(ConfigError, "stdout is a terminal or closed"),
            sound_on_stdout(),
        ):
            pass

    def test_reference_takes_several_files(self):
        both = [Path("a.wav"), Path("b.wav")]
        for flags, references in (
            ("--reference a.wav b.wav --speed 2", both),
            ("--reference a.wav --reference b.wav", both),
            ("", []),
        ):
            arguments = synthesize.parse(self.argv("--text", "a", *flags.split()))
            self.assertEqual(arguments.references, references)
