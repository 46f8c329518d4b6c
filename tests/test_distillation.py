"""A voice learns from a frozen one: its texts, its features, and runs."""

import contextlib
import io
import shutil
import tempfile
import unittest
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import SILENCE
from myxtts.base.console import report_errors
from myxtts.base.errors import ConfigError, DataError
from myxtts.batches.corpora import teacher_rows_of
from myxtts.checkpoints.files import Checkpoint, read_record
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.commands import profile
from myxtts.config.schema import Config, TeacherConfig
from myxtts.config.synthesis import SynthesisOptions
from myxtts.corpus.build import MAX_TEXT_CHARACTERS
from myxtts.corpus.manifest import Vocabulary
from myxtts.corpus.texts import TeacherRows, Texts, read_texts, teacher_row_count
from myxtts.devicefeed.contract import check_batch
from myxtts.devicefeed.producer import trace_produce
from myxtts.run.setup import OpenRun
from myxtts.run.start import Start
from myxtts.tasks.tts.contract import TAUGHT_TTS_FEATURES, TTS_FEATURES
from myxtts.tasks.tts.features import tts_extractor
from myxtts.tasks.tts.network import TEXT_INPUTS, XTTS, option_tensors
from myxtts.tasks.tts.teacher import NullTeacher, TeacherModel
from myxtts.text.frontend import TextFrontend
from myxtts.text.symbols import SymbolTable
from tests.fixtures import replace_arrays
from tests.long import LONG, long
from tests.tiny import Workspace, assert_same_arrays, build_model, features, on_device, small_models
from tests.tiny_teacher import (
    check_operations,
    merge_evaluator,
    produced,
    spoken_inputs,
    untrained_teacher,
    write_voice,
)
from tests.two_devices import DATA, MODEL, TWO

ROWS = [(3, 20), (5, 24), (0, 0)]
VOCABULARY = Vocabulary(SymbolTable(tuple("abcdefgh")), (), ("en",))


def texts(counts):
    """Return texts with so many tokens; the tokens of text i are all i."""
    tokens = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return Texts(tokens, np.cumsum([0, *counts], dtype=np.int64), language=1)


class FreeTexts(unittest.TestCase):
    def read(self, content, language="en", longest=99):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "texts.txt")
            path.write_bytes(content)
            return read_texts(path, language, TextFrontend("characters"), VOCABULARY, longest)

    def test_sentences_that_are_too_long_are_left_out(self):
        content = b"ab\n" + b"a" * (MAX_TEXT_CHARACTERS + 1)
        self.assertEqual(len(self.read(content)), 1)

    def test_usable_sentences_are_sorted_by_length(self):
        """Blank lines, a byte order mark and sentences with unknown symbols are left out."""
        found = self.read("\ufeffabc\n\n  \nde\nabxyz\n".encode())
        self.assertEqual((len(found), found.counts.tolist(), found.language), (2, [4, 5], 0))
        np.testing.assert_array_equal(found.tokens, [1, 6, 7, 2, 1, 3, 4, 5, 2])

    def test_mistakes_are_named(self):
        for content, message in (
            (b"", "none of them"),
            (b"xyz", "none of them"),
            (b"a\xff", "not UTF-8 at byte 1"),
        ):
            with self.assertRaisesRegex(DataError, message):
                self.read(content)
        with self.assertRaisesRegex(DataError, "was trained on en. .*--texts"):
            self.read(b"abc", language="ka")
        with self.assertRaisesRegex(DataError, "cannot be read"):
            read_texts(Path("missing.txt"), "en", TextFrontend("characters"), VOCABULARY, 99)
        with self.assertRaisesRegex(DataError, "none of them has at most 1 symbols"):
            self.read(b"abc\nde", longest=3)

    def test_sentences_that_no_place_can_take_count_as_left_out(self):
        with self.assertLogs("myxtts.corpus.texts") as logs:
            self.read(b"abc\nde\nxyz\nabcde", longest=5)
        self.assertIn("2 sentences without recordings", logs.output[0])
        left_out = ", 2 left out (too long or not readable, or no or unknown symbols)"
        self.assertIn(left_out, logs.output[0])

    def test_a_fraction_of_less_than_one_row_is_named(self):
        def rows_of(fraction, *batch_sizes):
            config = Config(teacher=TeacherConfig(teacher="runs/voice", teacher_fraction=fraction))
            plan = mock.Mock(batch_sizes=np.array(batch_sizes)[:, None])
            return teacher_rows_of(config, VOCABULARY, None, plan, TextFrontend())

        with self.assertRaisesRegex(ConfigError, "0.05 is less .* has 16. Give at least 0.063"):
            rows_of(0.05, 16, 8)
        self.assertEqual(teacher_row_count(16, 0.063), 1)
        with self.assertLogs("myxtts.batches.corpora", "WARNING") as logs:
            self.assertEqual(rows_of(0.1, 16, 8, 4).fraction, 0.1)
        self.assertIn("of the batches of 2 of 3 buckets, where", logs.output[0])
        with self.assertNoLogs("myxtts.batches.corpora"):
            rows_of(0.5, 16, 2)

    def test_a_text_has_the_length_of_the_utterance_whose_place_it_takes(self):
        pool = texts([4, 5, 6, 8, 20])
        for uniform in (0.0, 0.5, 0.999):
            near = pool.near(np.array([5, 8, 40, 3]), 24, np.full(4, uniform))
            self.assertTrue(4 <= pool.counts[near[0]] <= 6)
            self.assertEqual((near[1], near[2], near[3]), (3, 4, -1))
        self.assertEqual(pool.near(np.array([30]), 6, np.array([0.9]))[0], 2)

    def test_utterances_longer_than_all_texts_draw_from_the_longest_texts(self):
        pool = texts([4, 16, 17, 18, 19, 20])
        drawn = pool.near(np.full(5, 60), 99, np.arange(5) / 5)
        self.assertEqual(drawn.tolist(), [1, 2, 3, 4, 5])
        self.assertEqual(pool.near(np.full(3, 60), 3, np.arange(3) / 3).tolist(), [-1, -1, -1])

    def test_workers_with_other_texts_are_named(self):
        corpus = mock.MagicMock()
        corpus.teacher_rows.fingerprint = "texts of this worker"
        replicas = mock.Mock(process=0, all_equal=lambda digest: digest != "texts of this worker")
        corpora = (corpus, corpus, VOCABULARY)
        loaded = mock.patch("myxtts.run.setup.load_corpora", return_value=corpora)
        with loaded, self.assertRaisesRegex(DataError, "all workers must read the same --texts"):
            config = Config(teacher=TeacherConfig(teacher="runs/voice", texts="runs/a.txt"))
            OpenRun(Start(config, RunFolder(Path())), TWO, replicas).read_corpora()

    def test_the_last_rows_of_a_batch_are_spoken_and_not_read(self):
        self.assertEqual([teacher_row_count(size, 0.5) for size in (1, 4, 5)], [0, 2, 2])
        sevens = ("row", "samples", "reference_row", "reference_samples")
        sixes = ("reference_start", "token_count", "language", "frames")
        arrays = {name: np.full(4, 7, np.int32) for name in sevens}
        arrays |= {name: np.full(4, 6, np.int32) for name in sixes}
        arrays["utterance_tokens"] = arrays["token_count"]
        arrays["tokens"] = np.full((4, 8), 9, np.int32)

        class Manifest:
            samples = np.array([500, 2000], np.int32)

            def __len__(self):
                return 2

        random = np.random.default_rng(0)
        changed = TeacherRows(0.5, texts([5])).replace(arrays, 3, Manifest(), 1000, random)
        self.assertEqual(changed["samples"].tolist(), [7, 7, 0, 7])  # the fourth row is empty
        self.assertEqual(changed["token_count"].tolist(), [6, 6, 5, 6])
        self.assertEqual(changed["tokens"][2].tolist(), [0, 0, 0, 0, 0, 0, 0, 0])
        self.assertEqual(changed["frames"].tolist(), arrays["frames"].tolist())
        self.assertEqual(changed["utterance_tokens"].tolist(), [6, 6, 6, 6])
        self.assertIn(changed["reference_samples"][2], (500, 1000))
        self.assertTrue((arrays["samples"] == 7).all())


class Networks(unittest.TestCase):
    """The methods of a teacher, with the smallest network and random weights."""

    @classmethod
    def setUpClass(cls):
        cls.network = build_model()
        cls.taught = build_model(taught=True)
        for network in (cls.network, cls.taught):
            bias = next(v for v in network.prosody_out.variables if v.name == "bias")
            # Tokens of four frames, with the least deviation, and no pauses.
            bias.assign([np.log(4.0), 0.0, 0.0, 0.0, -999.0, 0.0, -9.0, -9.0, -9.0, -9.0])
        cls.batch = on_device(features(ROWS))
        cls.batch["utterance_tokens"] = cls.batch["token_count"]

    def test_a_path_that_is_given_has_the_losses_of_the_same_path_found(self):
        path = self.network.align(self.batch)
        for training in (False, True):
            found, _ = self.network(self.batch, training=training)
            given, _ = self.taught(self.batch | {"path": path}, training=training)
            for name, loss in found.items():
                np.testing.assert_allclose(given[name], loss, rtol=1e-6, err_msg=name)

    def test_a_teacher_speaks_as_in_synthesis_and_within_the_frames(self):
        texts = [self.batch[name] for name in TEXT_INPUTS]
        synthesize_mel = XTTS.synthesize_mel.python_function  # eager: tracing it takes 2 s
        _, frames, path = synthesize_mel(
            self.network, *texts, *option_tensors(SynthesisOptions(variety=0.0))
        )
        longest = int(tf.reduce_max(frames))
        teacher = TeacherModel(self.network, ode_steps=2, guidance=1.0)
        mel, f0_hz, spoken = teacher.speak(self.batch, tf.constant(longest + 3))
        np.testing.assert_array_equal(spoken[:, :longest], path)
        self.assertTrue((spoken[:, longest:] == -1).numpy().all())
        self.assertEqual((mel.shape[1], f0_hz.shape[1]), (longest + 3, longest + 3))
        shorter = longest * 2 // 3
        _, _, spoken = teacher.speak(self.batch, tf.constant(shorter))
        for row, (tokens, _) in enumerate(ROWS):
            self.assertEqual(set(spoken[row].numpy().tolist()) - {-1}, set(range(tokens)))

    def test_a_spoken_row_counts_as_the_utterance_whose_place_it_takes(self):
        """With half of its frames, and the same errors in each, a row has the same loss."""
        silent = self.batch | {"mel": tf.fill(self.batch["mel"].shape, -5.5)}
        path = tf.constant(np.where(np.arange(24) < np.array([[20], [24], [0]]), 0, -1))
        half = tf.where(tf.range(24)[None, :] % 24 < tf.constant([[10], [12], [0]]), path, -1)
        whole, _ = self.taught(silent | {"path": path})
        spoken, _ = self.taught(silent | {"path": half})
        np.testing.assert_allclose(spoken["prior"], whole["prior"], rtol=1e-5)

    def test_a_shorter_text_counts_as_the_text_whose_place_it_takes(self):
        path = self.network.align(self.batch)
        longer = {"path": path, "utterance_tokens": 3 * self.batch["token_count"]}
        once, _ = self.taught(self.batch | {"path": path})
        thrice, _ = self.taught(self.batch | longer)
        for name in ("duration", "pitch", "energy"):
            np.testing.assert_allclose(3.0 * once[name], thrice[name], rtol=1e-5)
        self.assertEqual(float(once["mel"]), float(thrice["mel"]))


class TaughtFeatures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        teacher_on = cache(partial(untrained_teacher, ode_steps=1, guidance=1.5))
        frames = np.array([40, 9, 30, 26], np.int32)
        counts = tf.constant([4, 3, 5, 5])
        cls.batch = spoken_inputs() | {"frames": frames, "token_count": counts}
        cls.batch["utterance_tokens"] = counts
        cls.extractor = tts_extractor(0.1, load_teacher=teacher_on, teacher_fraction=0.5)
        cls.produce = trace_produce(DATA, cls.extractor)
        cls.taught = produced(DATA, cls.extractor, cls.batch, cls.produce)

    def test_the_first_rows_are_recordings_and_the_others_are_spoken(self):
        check_batch(self.taught, TAUGHT_TTS_FEATURES, "test")
        plain = produced(DATA, tts_extractor(0.1), self.batch)
        padded = plain["mel"].shape[1]
        self.assertEqual(self.taught["mel"].shape[1], padded + padded // 4)
        for name in ("mel", "f0_hz"):
            np.testing.assert_array_equal(self.taught[name][:2, :padded], plain[name][:2])
        for row, tokens in enumerate((4, 3, 5, 5)):
            path = self.taught["path"][row]
            real = path >= 0
            has_mel = (self.taught["mel"][row] != np.float32(SILENCE)).any(axis=1)
            np.testing.assert_array_equal(real, has_mel)
            if row < 2:
                self.assertEqual(real.sum(), (40, 9)[row])
            self.assertEqual((path[0], path[real][-1]), (0, tokens - 1))
            self.assertTrue(set(np.diff(path[real])) <= {0, 1})
            self.assertTrue((self.taught["f0_hz"][row][~real] == 0.0).all())

    def test_without_the_teachers_network_the_rest_of_the_batch_is_the_same(self):
        """So the difference of the times is the network's."""
        without = replace(self.extractor, load_frozen=lambda _: NullTeacher())
        rest = produced(DATA, without, self.batch)
        check_batch(rest, TAUGHT_TTS_FEATURES, "test")
        for name, value in rest.items():
            # recordings.
            rows = slice({"mel": 2, "f0_hz": 2, "path": 0}.get(name))
            expected = np.atleast_1d(self.taught[name])[rows]
            np.testing.assert_array_equal(np.atleast_1d(value)[rows], expected, name)

    def test_every_operation_has_a_gpu_kernel_and_no_value_returns_to_the_host(self):
        check_operations(self, self.produce)

    @long
    def test_features_are_equal_bit_for_bit_on_each_device(self):
        for name, value in produced(MODEL, self.extractor, self.batch).items():
            np.testing.assert_array_equal(value, self.taught[name], name)


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.temporary(cls.addClassCleanup)
        cls.voice = write_voice(cls.workspace)
        cls.texts = cls.workspace.folder / "texts.txt"
        symbols = read_record(cls.voice / "checkpoints/step-000000").symbols
        lines = [f"{symbols[0] * 3}{symbol * 3}\n" for symbol in symbols if symbol.strip()]
        cls.texts.write_text("".join(lines))
        cls.flags = [
            f"--teacher {cls.voice} --texts {cls.texts} --max-steps 4 --checkpoint-every 2"
        ]
        cls.finished = cls.workspace.train("student", *cls.flags, "--data-gpu 0 --model-gpu 1")
        cls.folder = cls.workspace.run_dir("student")

    def test_the_log_names_the_teacher_and_the_texts(self):
        self.assertEqual((self.finished.code, self.finished.err), (0, ""))
        self.assertIn(f"sentences without recordings in {self.texts}", self.finished.out)
        self.assertIn("alignment      by the teacher", self.finished.out)
        teacher = rf"teacher        {self.voice}, step 0, on /\S*CPU:0: tts, tiny"
        self.assertRegex(self.finished.out, teacher)

    @long
    def test_a_resumed_run_repeats_bit_for_bit_with_the_devices_exchanged(self):
        copy = self.workspace.copy_run("student", "student_resumed", self.addCleanup)
        shutil.rmtree(copy / "checkpoints/step-000004")
        exchanged = ("--data-gpu 1 --model-gpu 0 --resume",)
        finished = self.workspace.train("student_resumed", *self.flags, *exchanged)
        self.assertEqual(finished.code, 0, finished.err)
        newest = "checkpoints/step-000004"
        assert_same_arrays(self.folder / newest, copy / newest)

    def test_a_merge_measures_held_out_utterances_without_the_teacher(self):
        with mock.patch("myxtts.batches.pipeline.Pipeline") as pipeline:
            merge_evaluator(self.folder)
        self.assertEqual(pipeline.call_args.args[2].features, TTS_FEATURES)
        if LONG:
            # Between two checkpoints that are two steps apart, the loss is nearly linear.
            evaluate = merge_evaluator(self.folder)
            first, mean, last = (evaluate(c).loss for c in ((1, 0), (0.5, 0.5), (0, 1)))
            np.testing.assert_allclose(mean, (first + last) / 2, rtol=0.02)

    def test_other_texts_are_rejected(self):
        other = self.workspace.folder / "other.txt"
        other.write_text(self.texts.read_text()[:-8])
        refused = self.workspace.train(
            "student", *self.flags, f"--texts {other} --max-steps 6 --resume"
        )
        self.assertEqual(refused.code, 2)
        self.assertIn("different texts", refused.err)

    def test_missing_texts_are_named_before_the_corpus_is_read(self):
        with mock.patch("myxtts.batches.corpora.read_rows", side_effect=AssertionError):
            refused = self.workspace.train("refused", *self.flags, "--texts missing.txt")
        self.assertEqual(refused.code, 2)
        self.assertIn("missing.txt", refused.err)

    def test_a_teacher_of_another_architecture_leaves_no_run(self):
        other = self.workspace.copy_run("voice", "other", self.addCleanup)
        checkpoint = other / "checkpoints/step-000000"
        arrays = Checkpoint.read(checkpoint).arrays("averages")
        renamed = {f"former_{name}": array for name, array in arrays.items()}
        replace_arrays(checkpoint, "averages", renamed)
        refused = self.workspace.train("refused", *self.flags, f"--teacher {other}")
        self.assertEqual(refused.code, 2)
        self.assertIn(str(other), refused.err)
        self.assertFalse((self.workspace.run_dir("refused") / "config.yaml").exists())

    def test_a_teachers_checkpoint_that_is_gone_is_named(self):
        other = self.workspace.copy_run("voice", "other", self.addCleanup)
        checkpoint = (other / "checkpoints/step-000000").rename(other / "checkpoints/step-000009")
        arrays = Checkpoint.read(checkpoint).arrays("model")
        replace_arrays(checkpoint, "averages", {name: array + 1 for name, array in arrays.items()})
        refused = self.workspace.train("student", *self.flags, f"--teacher {other} --resume")
        self.assertEqual(refused.code, 2)
        self.assertRegex(refused.err, r"step-000009 has other weights than .*student.* step 0\.")
        refused = self.workspace.train("student", *self.flags, "--teacher runs/voise --resume")
        self.assertEqual(refused.code, 2)
        self.assertIn("runs/voise has no checkpoint", refused.err)

    @long
    def test_a_profile_has_the_share_of_the_teacher(self):
        out = io.StringIO()
        flags = [*self.flags, "--data-gpu 0 --model-gpu 1 --num-steps 2"]
        with small_models(), contextlib.redirect_stdout(out):
            code = report_errors(lambda: profile.main(self.workspace.argv("never", *flags)))
        self.assertEqual(code, 0)
        # On a busy machine so small a teacher may cost nothing that can be measured.
        self.assertRegex(out.getvalue(), r"\nteacher        \d+% of producing")

    def test_settings_of_a_teacher_need_one(self):
        for flags in ([f"--texts {self.texts}"], ["--teacher-fraction 0.3"]):
            refused = self.workspace.train("refused", *flags)
            self.assertEqual(refused.code, 2)
            self.assertIn("only with --task tts and with --teacher", refused.err)
            self.assertIn("--teacher is null. Leave it out", refused.err)
