"""Transcription: chunks of long waves, the Transcriber, the command, and error rates."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from myxtts.checkpoints.trained_run import TrainedRun
from tests.fixtures import rewrite_state
from tests.two_devices import MODEL

# isort: split

import numpy as np

from myxtts.audio.audio_file import speech_span
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.errors import CheckpointError, DataError
from myxtts.commands import transcribe
from myxtts.tasks.asr.evaluation import error_rates_by
from myxtts.tasks.asr.transcriber import (
    BATCH_S,
    BUCKETS_S,
    MAX_CHUNK_S,
    Transcriber,
    bucket_batches,
    group_waves,
    quietest_point,
    split_wave,
)
from myxtts.tasks.evaluation.evaluate import evaluate_run
from myxtts.tasks.evaluation.held_out import EvaluationOptions
from myxtts.text.error_rates import error_rates
from tests.fixtures import reported, temporary_folder
from tests.sine_corpus import sine, write_sound
from tests.tiny_asr import asr_run, cached_transcriber, cached_transcribers

ROOT = Path(__file__).parents[1]


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    """Return float32 noise whose level varies seven times a second."""
    wave = np.random.default_rng(seed).normal(0, 0.1, round(seconds * SAMPLE_RATE_HZ))
    return (wave * np.abs(np.sin(np.arange(len(wave)) / 1000))).astype(np.float32)


class ChunkTest(unittest.TestCase):
    def test_chunks_are_bounded_and_complete(self):
        for seconds in (0.0, 20.0, 20.1, 41.0, 130.0):
            wave = noise(seconds)
            chunks = split_wave(wave)
            np.testing.assert_array_equal(np.concatenate(chunks), wave)
            self.assertLessEqual(max(map(len, chunks)), MAX_CHUNK_S * SAMPLE_RATE_HZ)
            if len(chunks) > 1:
                self.assertGreaterEqual(min(map(len, chunks)), 6.6 * SAMPLE_RATE_HZ)

    def test_a_wave_is_split_in_the_middle_of_its_pause(self):
        wave = noise(30.0)
        wave[int(13.0 * SAMPLE_RATE_HZ) : int(14.0 * SAMPLE_RATE_HZ)] = 0.0
        wave[:SAMPLE_RATE_HZ] = 0.0  # equally quiet, but too close to the start
        first, _ = split_wave(wave)
        self.assertAlmostEqual(len(first) / SAMPLE_RATE_HZ, 13.5, delta=0.02)

    def test_a_click_in_a_pause_is_avoided(self):
        wave = np.full(3 * SAMPLE_RATE_HZ, 0.1, np.float32)
        wave[SAMPLE_RATE_HZ : 2 * SAMPLE_RATE_HZ] = 0.0
        wave[int(1.2 * SAMPLE_RATE_HZ)] = 1.0
        self.assertAlmostEqual(quietest_point(wave) / SAMPLE_RATE_HZ, 1.6, delta=0.03)

    def test_each_chunk_is_in_one_batch_of_few_shapes(self):
        seconds = np.random.default_rng(0).uniform(0, MAX_CHUNK_S, 200)
        lengths = [0, 1, *(np.append(seconds, MAX_CHUNK_S) * SAMPLE_RATE_HZ).astype(int)]
        batches = list(bucket_batches(lengths))
        indices = np.concatenate([indices for indices, _ in batches])
        self.assertEqual(sorted(indices), list(range(len(lengths))))
        bounds = {round(seconds * SAMPLE_RATE_HZ) for seconds in BUCKETS_S}
        self.assertEqual({padded for _, padded in batches}, bounds)
        for indices, padded in batches:
            self.assertLessEqual(max(lengths[index] for index in indices), padded)
            self.assertLessEqual(len(indices) * padded, BATCH_S * SAMPLE_RATE_HZ)

    def test_groups_are_bounded_and_in_order(self):
        waves = [np.zeros(samples) for samples in (12, 3, 3, 5, 12, 1)]
        lengths = [[len(wave) for wave in group] for group in group_waves(iter(waves), 10)]
        self.assertEqual(lengths, [[12], [3, 3], [5], [12], [1]])
        self.assertEqual(list(group_waves(iter(()), 10)), [])


class RecogniserCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workspace, cls.run_folder = asr_run()
        cls.transcriber = cached_transcriber(cls.run_folder)

    def transcribe(self, *waves: np.ndarray) -> list[str]:
        return list(self.transcriber.transcribe(waves))

    def run_of_another_task(self) -> Path:
        folder = temporary_folder(self.addCleanup)
        run = Path(shutil.copytree(self.run_folder, folder / "run"))
        checkpoint = TrainedRun.open(run).checkpoint.path
        rewrite_state(checkpoint, lambda state: state["settings"]["model"].update(task="tts"))
        return run


class TranscriberTest(RecogniserCase):
    def test_other_waves_do_not_change_a_text(self):
        waves = [noise(seconds, seed) for seed, seconds in enumerate((0.5, 3.0, 1.0, 6.0, 2.4))]
        batched = self.transcribe(*waves)
        self.assertEqual(len(set(batched)), len(waves))
        self.assertEqual(batched, [text for wave in waves for text in self.transcribe(wave)])
        self.assertEqual(batched[::-1], self.transcribe(*waves[::-1]))

    def test_padding_changes_no_text(self):
        texts = set()
        for seconds in (2.0, 3.0, MAX_CHUNK_S):
            with mock.patch("myxtts.tasks.asr.transcriber.BUCKETS_S", (seconds,)):
                texts.update(self.transcribe(noise(2.0)))
        self.assertEqual(len(texts), 1)

    def test_a_long_wave_is_transcribed_in_chunks(self):
        wave = noise(45.0)
        chunks = split_wave(wave)
        self.assertGreater(len(chunks), 2)
        self.assertEqual(self.transcribe(noise(1.0), wave)[1], " ".join(self.transcribe(*chunks)))

    def test_times_of_chunks_are_those_in_the_wave(self):
        wave = noise(45.0)
        ((_, sentences, _),) = self.transcriber.transcribe_timed([wave])
        starts_s = np.cumsum([0, *map(len, split_wave(wave))]) / SAMPLE_RATE_HZ
        self.assertEqual(len(sentences), len(starts_s) - 1)
        for words, start_s, end_s in zip(sentences, starts_s[:-1], starts_s[1:], strict=True):
            self.assertTrue(start_s <= words[0].start_s < words[-1].end_s <= end_s + 0.03)

    def test_silence_at_the_ends_is_cut_off_if_it_was_in_training(self):
        speech, silence = noise(2.0), np.zeros(SAMPLE_RATE_HZ, np.float32)
        wave = np.concatenate([silence, speech, silence])
        first, end = speech_span(wave, 40.0)
        with mock.patch.object(self.transcriber, "_trim", 40.0):
            (within,), (alone,) = (
                [*self.transcriber.transcribe_timed([of])] for of in (wave, wave[first:end])
            )
        self.assertEqual(within[0], alone[0])
        for words, expected in zip(within[1], alone[1], strict=True):
            moved = [word.start_s - first / SAMPLE_RATE_HZ for word in words]
            np.testing.assert_allclose(moved, [word.start_s for word in expected], atol=1e-6)
        self.assertNotEqual(self.transcribe(wave), [within[0]])

    def test_waves_shorter_than_a_mel_frame_are_padded_with_silence(self):
        texts = self.transcribe(*(np.zeros(samples, np.float32) for samples in (0, 1, 384, 385)))
        self.assertEqual(texts, texts[-1:] * 4)
        self.assertNotEqual(texts[-1], "")
        self.assertEqual(self.transcribe(), [])

    def test_waves_are_read_when_their_texts_are_needed(self):
        read = []

        def waves():
            for number in range(3):
                read.append(number)
                yield noise(1.0, number)

        with mock.patch("myxtts.tasks.asr.transcriber.GROUP_S", 1.0):
            texts = self.transcriber.transcribe(waves())
            first = next(texts)
            self.assertEqual(read, [0, 1])  # the second did not fit in the group
            self.assertEqual([first, *texts], self.transcribe(*waves()))

    def test_beam_search_mostly_agrees_with_greedy_decoding(self):
        # These weights are so confident that one path usually has nearly all of the probability.
        transcriber = cached_transcriber(self.run_folder, 8)
        waves = [noise(3.0, seed) for seed in range(4)]
        rates = error_rates(self.transcribe(*waves), list(transcriber.transcribe(waves)))
        self.assertLess(rates["character_error_rate"], 0.2)
        self.assertIn("width 8", transcriber.decoding)

    def test_references_are_normalised_to_the_notation_of_the_run(self):
        self.assertEqual(self.transcriber.normalise_reference("ABC", "en"), "abc")
        with self.assertRaisesRegex(DataError, "language 'ka', but .* trained on en"):
            self.transcriber.normalise_reference("abc", "ka")
        with self.assertRaisesRegex(DataError, r"'z' \(z\)"):
            self.transcriber.normalise_reference("abz", "en")

    def test_another_task_and_a_missing_checkpoint_are_errors(self):
        with self.assertRaisesRegex(CheckpointError, "--task asr"):
            Transcriber(self.run_of_another_task(), MODEL)
        with self.assertRaisesRegex(CheckpointError, "step-000009.*has step-000000"):
            Transcriber(self.run_folder, MODEL, "step-000009")
        with self.assertRaisesRegex(CheckpointError, "has no checkpoint"):
            Transcriber(self.workspace.folder, MODEL)


class CommandTest(RecogniserCase):
    def transcribe(self, *flags: str) -> tuple[int, str, str]:
        """Return the exit code, the output and the message."""
        out = io.StringIO()
        with (
            mock.patch("myxtts.placement.devices.configure"),  # this process has its devices
            cached_transcribers("myxtts.tasks.asr.transcriber", "myxtts.tasks.asr.evaluation"),
            contextlib.redirect_stdout(out),
        ):
            argv = ["--run", str(self.run_folder), *flags]
            code, message = reported(lambda: transcribe.main(argv))
        return code, out.getvalue(), message

    def test_files_are_transcribed_as_lines_and_as_json(self):
        wave, folder = noise(2.0), self.workspace.folder
        names = [str(folder / name) for name in ("a.wav", "b.flac", "two channels.wav")]
        write_sound(Path(names[0]), wave)
        write_sound(Path(names[1]), sine(300.0, 1.0, 44_100), 44_100)
        write_sound(Path(names[2]), np.stack([wave, wave], axis=1))
        code, output, _ = self.transcribe(*names, "--json", str(folder / "texts.json"))
        self.assertEqual(code, 0)
        lines = [line.split("\t") for line in output.splitlines()]
        self.assertEqual([name for name, _ in lines], names)
        self.assertEqual(lines[0][1], lines[2][1])
        self.assertNotEqual(lines[0][1], lines[1][1])
        times = folder / "times"
        flags = "--times", "json", "--out", str(times)
        self.assertEqual(self.transcribe(*names, *flags)[:2], (0, output))
        timed = json.loads((times / "b.json").read_text(encoding="utf-8"))
        self.assertEqual(timed["duration"], 1.0)
        for segment in timed["segments"]:
            spoken = [(of["start"], of["end"]) for of in segment["words"]]
            self.assertEqual(sorted(spoken), spoken)
        document = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        self.assertEqual([[item["file"], item["text"]] for item in document["files"]], lines)
        self.assertEqual([item["seconds"] for item in document["files"]], [2.0, 1.0, 2.0])

    def test_mistakes_are_messages_with_exit_code_2(self):
        folder, good = self.workspace.folder, str(self.workspace.corpus.with_name("u0.wav"))
        (folder / "empty.wav").touch()
        (folder / "text.wav").write_text("no sound")
        write_sound(folder / "short.wav", sine(220.0, 0.05))
        write_sound(folder / "nan.wav", np.full(9000, np.nan, np.float32), subtype="FLOAT")
        for flags, expected in (
            ((good, str(folder / "none.wav")), "missing file"),
            ((good, str(folder / "empty.wav")), "empty file"),
            ((str(folder / "text.wav"),), "unreadable"),
            ((str(folder / "short.wav"),), "has 0.05 s"),
            ((str(folder / "nan.wav"),), "not finite"),
            ((str(folder),), "not a file"),
            ((), "are required: FILE"),
            ((good, "--corpus", "x"), "evaluate` with --data"),
            ((good, "--out", "x"), "--out needs --times"),
            ((good, "--json", str(folder / "none" / "x.json")), "there is no folder"),
            ((good, "--json", "a.wav"), "that is the name of a recording"),
            ((good, "--times", "srt", "--beam-width", "4"), "greedy decoding"),
            ((good, good, "--times", "srt", "--out", str(folder)), "have the same name"),
            ((good, "--times", "srt", "--out", good), "cannot be used"),
        ):
            with (
                self.subTest(flags=flags),
                mock.patch("myxtts.tasks.asr.transcriber.Transcriber") as transcriber,
            ):
                argv = ["--run", "r", *flags]
                code, message = reported(lambda argv=argv: transcribe.main(argv))
                self.assertEqual(code, 2)
                self.assertIn(expected, message)
                transcriber.assert_not_called()

    def test_files_are_checked_before_tensorflow_is_imported(self):
        code = "import sys; from myxtts.commands import transcribe\n"
        code += "try: transcribe.main(['--run', 'r', 'none.wav'])\n"
        code += "except Exception as error: print(error)\nassert 'tensorflow' not in sys.modules"
        output = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
        self.assertIn("missing file", output)

    def evaluate(self, options: EvaluationOptions) -> str:
        with (
            mock.patch("myxtts.placement.devices.configure"),
            cached_transcribers("myxtts.tasks.asr.evaluation"),
            contextlib.redirect_stdout(io.StringIO()) as output,
        ):
            evaluate_run(self.run_folder, None, options)
        return output.getvalue()

    def test_a_corpus_has_a_table_of_error_rates(self):
        file = self.workspace.folder / "rates.json"
        corpus = str(self.workspace.corpus)
        output = self.evaluate(EvaluationOptions(data=Path(corpus), json_file=file))
        rows = (
            r"\| all \| 13 \| [\d.]+ \| [\d.]+ \|\n\| speaker s0 \| 7 \|.*\n\| speaker s1 \| 6 \|"
        )
        self.assertRegex(output, rows)
        self.assertIn(f"13 utterances of {corpus}", output)
        document = json.loads(file.read_text(encoding="utf-8"))
        texts = [[of["reference"], of["hypothesis"]] for of in document["transcripts"]]
        references, hypotheses = zip(*texts, strict=True)
        self.assertEqual(references[:2], ("a", "ab"))
        expected = {"utterances": 13, **error_rates(references, hypotheses)}
        self.assertEqual(document["overall"], expected)
        self.assertEqual(document["languages"], {})

    def test_held_out_utterances_of_the_run_are_the_default(self):
        file = self.workspace.folder / "held_out.json"
        options = EvaluationOptions(json_file=file, noise_snr_db=(0.0,), rt60=(0.3,))
        output = self.evaluate(options)
        self.assertIn("3 held-out utterances", output)
        document = json.loads(file.read_text(encoding="utf-8"))
        self.assertEqual(document["overall"]["utterances"], 3)
        self.assertEqual(list(document["distorted"]), ["room, RT60 0.3 s", "noise, SNR 0 dB"])
        self.assertRegex(output, r"\| noise, SNR 0 dB \| 3 \| [\d.]+ \| [\d.]+ \|\n")
        rates = [document["overall"], *document["distorted"].values()]
        self.assertEqual(len({rate["character_error_rate"] for rate in rates}), 3)


class RateTest(unittest.TestCase):
    def test_rates_are_over_all_characters_and_words(self):
        # One of the 3 characters and one of the 2 words of "a b" are wrong, none of the 2 and 1 of
        # "cd": 1/5 and 1/3.
        self.assertEqual(
            error_rates(["a b", "cd"], ["a c", "cd"]),
            {"character_error_rate": 0.2, "word_error_rate": 1 / 3},
        )

    def test_rates_are_grouped_only_if_there_are_several_groups(self):
        rows = (("s1", "ab", "ab"), ("s0", "ab", "a"), ("s0", "abcd", ""))
        names = ("speaker", "reference", "hypothesis")
        transcripts = [dict(zip(names, row, strict=True), language="en") for row in rows]
        self.assertEqual(error_rates_by("language", transcripts), {})
        expected = {
            "s0": {"utterances": 2, "character_error_rate": 5 / 6, "word_error_rate": 1.0},
            "s1": {"utterances": 1, "character_error_rate": 0.0, "word_error_rate": 0.0},
        }
        self.assertEqual(error_rates_by("speaker", transcripts), expected)
