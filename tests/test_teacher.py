"""A frozen voice in the producer: its mels, and runs of a vocoder that learns from them."""

import shutil
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.audio.mel import SILENCE
from myxtts.base.errors import ConfigError
from myxtts.checkpoints.files import Checkpoint, read_record
from myxtts.checkpoints.inherited import inherit_settings
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.schema import Config, DataConfig, ModelConfig, TeacherConfig
from myxtts.corpus.manifest import Vocabulary
from myxtts.devicefeed.contract import FeatureExtractor, check_batch
from myxtts.devicefeed.producer import trace_produce
from myxtts.report.metrics import read_metrics
from myxtts.run.warm_start import Pretrained, load_pretrained
from myxtts.tasks.tts.features import tts_extractor
from myxtts.tasks.tts.teacher import NullTeacher
from myxtts.tasks.vocoder.contract import CONTEXT_FRAMES, TAUGHT_VOCODER_FEATURES
from myxtts.tasks.vocoder.features import vocoder_extractor
from myxtts.tasks.vocoder.network import Vocoder, fluctuation
from myxtts.text.symbols import SymbolTable
from tests.fixtures import entered, make_record, replace_arrays
from tests.long import long
from tests.tiny import Workspace, assert_same_arrays, features, on_device
from tests.tiny_teacher import (
    check_operations,
    merge_evaluator,
    produced,
    spoken_inputs,
    untrained_teacher,
    write_voice,
)
from tests.tiny_vocoder import FRAMES, SEGMENT, build, small_vocoders, vocoder, vocoder_features
from tests.two_devices import DATA, MODEL

ROWS = [(3, 20), (5, 24), (0, 0)]


class TaughtFeatures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.batch = spoken_inputs()
        cls.teachers = {device: untrained_teacher(device) for device in (DATA, MODEL)}
        cls.extractor = vocoder_extractor(SEGMENT, True, cls.teachers.__getitem__)
        cls.produce = trace_produce(DATA, cls.extractor)
        cls.taught = produced(DATA, cls.extractor, cls.batch, cls.produce)

    def test_every_operation_has_a_gpu_kernel_and_no_value_returns_to_the_host(self):
        check_operations(self, self.produce)

    def test_the_mel_alone_differs_from_the_features_without_a_teacher(self):
        check_batch(self.taught, TAUGHT_VOCODER_FEATURES, "test")
        plain = produced(DATA, vocoder_extractor(SEGMENT, True), self.batch)
        for name, value in plain.items():
            taught = self.taught["target_mel" if name == "mel" else name]
            # Beside a segment, the F0 of whole utterances is another one, and the phase of a frame
            # depends on it. Some CPUs round a mel otherwise in another batch.
            tolerance = 0.02 if name == "pulse_phasor" else 1e-5
            np.testing.assert_allclose(taught, value, atol=tolerance, err_msg=name)
        difference = np.abs(self.taught["mel"] - plain["mel"])
        self.assertGreater(difference[0, CONTEXT_FRAMES:-CONTEXT_FRAMES].mean(), 0.1)

    def test_the_mels_are_the_stretches_of_what_the_teacher_makes_of_the_whole_utterances(self):
        """A frame is found by the recordings' own mel, of which no two frames are equal."""
        whole = produced(DATA, tts_extractor(), self.batch)
        mel = self.teachers[DATA].teacher_forced_mel(on_device(whole, DATA)).numpy()
        for row, frames in enumerate(FRAMES):
            number_of = {whole["mel"][row, frame].tobytes(): frame for frame in range(frames)}
            target, taught = self.taught["target_mel"][row], self.taught["mel"][row]
            real = np.any(target != np.float32(SILENCE), axis=1)
            numbers = [number_of[frame.tobytes()] for frame in target[real]]
            self.assertGreaterEqual(len(numbers), min(frames, SEGMENT))
            np.testing.assert_allclose(taught[real], mel[row, numbers], rtol=1e-5, atol=1e-5)
            self.assertTrue((taught[~real] == np.float32(SILENCE)).all())

    def test_without_the_teachers_network_the_mel_is_the_recordings(self):
        without = replace(self.extractor, load_frozen=lambda _: NullTeacher())
        for name, value in produced(DATA, without, self.batch).items():
            expected = self.taught["target_mel" if name == "mel" else name]
            np.testing.assert_array_equal(value, expected, name)

    def test_features_are_equal_bit_for_bit_on_each_device(self):
        for name, value in produced(MODEL, self.extractor, self.batch).items():
            np.testing.assert_array_equal(value, self.taught[name], name)

    def test_the_noise_is_a_function_of_the_batchs_seed(self):
        def mel(seed):
            batch = features(ROWS) | {"seed": np.array([seed, 7], np.int32)}
            return self.teachers[DATA].teacher_forced_mel(on_device(batch, DATA))

        first, again, other = mel(0), mel(0), mel(1)
        np.testing.assert_array_equal(first, again)
        self.assertGreater(np.abs(first - other)[0, :20].mean(), 0.05)

    def test_frames_after_the_end_are_silent(self):
        mel = self.teachers[DATA].teacher_forced_mel(on_device(features(ROWS), DATA)).numpy()
        self.assertTrue((mel[0, 20:] == np.float32(SILENCE)).all())
        self.assertTrue((mel[2] == np.float32(SILENCE)).all())
        self.assertTrue(np.isfinite(mel).all())

    def test_an_extractor_without_a_frozen_network_is_its_own_function(self):
        extractor = FeatureExtractor({}, {}, len)
        self.assertIs(extractor.produce_on(DATA), len)


class MelHead(unittest.TestCase):
    def test_an_untrained_head_changes_no_mel(self):
        """So a vocoder may start from one without a head, and gives the same waves at first."""
        plain, taught = vocoder(), build(refine_mel=True, seed=1)
        weights = {v.path: v.numpy() for v in plain.variables}
        vocabulary = Vocabulary(SymbolTable(()), (), ())
        record = make_record(symbols=(), speakers=(), languages=())
        trained = TrainedRun(Path(), Checkpoint(Path(), record))
        load_pretrained(Pretrained(trained, weights), taught, vocabulary)
        mel = np.random.default_rng(0).normal(-5.5, 2.0, (1, 20, 80)).astype(np.float32)
        mel = on_device({"mel": mel})["mel"]
        seed = tf.constant([0, 1])
        synthesize = Vocoder.synthesize.python_function  # eager: tracing both takes 4 s
        with tf.device(MODEL):
            waves = synthesize(taught, mel, seed), synthesize(plain, mel, seed)
        np.testing.assert_array_equal(*waves)
        further = len(taught.variables) - len(plain.variables)
        self.assertEqual(further, len(taught.mel_head.variables))

    def test_mixed_precision_is_close_to_float32_and_sees_the_mel_in_float32(self):
        batch = vocoder_features([20, 15])
        batch = on_device(batch | {"target_mel": batch["mel"] + np.float32(0.1)})

        def losses(precision):
            model = build(precision, refine_mel=True)
            watched = mock.patch("myxtts.tasks.vocoder.network.fluctuation", wraps=fluctuation)
            with tf.device(MODEL), watched as seen:
                losses, _ = model(batch, training=False)
            self.assertEqual(seen.call_args.args[0].dtype, tf.float32)
            return losses

        expected = losses("float32")
        for precision in ("mixed_bfloat16", "mixed_float16"):
            for name, loss in losses(precision).items():
                np.testing.assert_allclose(loss, expected[name], rtol=0.03, err_msg=name)

    def test_the_mel_loss_compares_with_the_recording(self):
        taught = build(refine_mel=True)
        self.assertEqual(dict(taught.BATCH_FIELDS), TAUGHT_VOCODER_FEATURES)
        spoken = vocoder_features([20])
        # Above all mels of a wave, so that the error is their mean.
        target_mel = np.full_like(spoken["mel"], 50.0)
        batches = [on_device(spoken | {"target_mel": target_mel + offset}) for offset in (0.0, 1.0)]
        with tf.device(MODEL):
            (first, _), (second, _) = (taught(batch, training=False) for batch in batches)
        self.assertGreater(second["mel"] - first["mel"], 0.0)
        for name in first.keys() - {"mel"}:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.temporary(cls.addClassCleanup)
        entered(cls.addClassCleanup, small_vocoders())
        cls.voice = write_voice(cls.workspace)
        flags = f"--task vocoder --teacher {cls.voice} --vocoder-segment-seconds 0.2 --max-steps 4"
        flags += " --validation-fraction 0.25 --checkpoint-every 2 --validate-every 4"
        cls.flags = [*flags.split(), "--sample-every", "4"]
        cls.finished = cls.taught("taught", "--data-gpu 0 --model-gpu 1")
        cls.folder = cls.workspace.run_dir("taught")

    @classmethod
    def taught(cls, name, *flags):
        return cls.workspace.train(name, *cls.flags, *flags)

    def test_the_teacher_is_on_the_data_device_and_recorded(self):
        self.assertEqual((self.finished.code, self.finished.err), (0, ""))
        line = rf"teacher        {self.voice}, step 0, on /\S*CPU:0: tts, tiny, .* float32"
        self.assertRegex(self.finished.out, line)
        self.assertEqual(self.finished.out.count("\nteacher "), 1)
        teacher = read_record(self.folder / "checkpoints/step-000004").teacher
        source = (teacher.run, teacher.step, len(teacher.weights))
        self.assertEqual(source, (str(self.voice), 0, 64))
        metrics = read_metrics(self.folder / "metrics.jsonl")
        self.assertTrue(all(0.0 < line["loss"] < 100.0 for line in metrics if "loss" in line))
        self.assertEqual(len(list((self.folder / "samples/step-000004").glob("*.vocoder.wav"))), 3)

    def test_a_merge_measures_held_out_utterances_with_the_teacher(self):
        self.assertTrue(0.0 < merge_evaluator(self.folder)((0.5, 0.5)).loss < 100.0)

    @long
    def test_a_resumed_run_repeats_bit_for_bit_with_the_devices_exchanged(self):
        self.check_resumed_run("--data-gpu", "1", "--model-gpu", "0", teachers=1)

    @long
    def test_a_resumed_run_repeats_bit_for_bit_with_two_producers(self):
        self.check_resumed_run("--data-gpus", "1", "2", "--model-gpu", "0", teachers=2)

    def check_resumed_run(self, *placement, teachers):
        copy = self.workspace.copy_run("taught", "taught_resumed", self.addCleanup)
        shutil.rmtree(copy / "checkpoints/step-000004")
        silent = "--resume --validate-every=0 --sample-every=0"
        finished = self.taught("taught_resumed", *placement, silent)
        self.assertEqual(finished.code, 0, finished.err)
        self.assertEqual(finished.out.count("\nteacher "), teachers)  # one on each data device
        newest = "checkpoints/step-000004"
        assert_same_arrays(self.folder / newest, copy / newest)

    def test_a_run_resumes_only_with_the_teacher_that_it_has_had(self):
        no_teacher = [flag for flag in self.flags if flag not in ("--teacher", str(self.voice))]
        refused = self.workspace.train("taught", *no_teacher, "--resume")
        self.assertEqual(refused.code, 2)
        self.assertIn("was trained with --teacher", refused.err)
        self.workspace.copy_run("voice", "other_voice", self.addCleanup)
        (copy,) = self.workspace.run_dir("other_voice").glob("checkpoints/step-*")
        arrays = Checkpoint.read(copy).arrays("model")
        replace_arrays(copy, "averages", {name: array + 1.0 for name, array in arrays.items()})
        other = self.workspace.run_dir("other_voice")
        refused = self.taught("taught", f"--teacher {other} --resume")
        self.assertEqual(refused.code, 2)
        self.assertIn("has other weights than the teacher of", refused.err)

    def test_the_weights_of_a_tuned_vocoder_need_a_teacher_and_know_no_symbols(self):
        no_teacher = [flag for flag in self.flags if flag not in ("--teacher", str(self.voice))]
        refused = self.workspace.train("refused", *no_teacher, f"--init-from {self.folder}")
        self.assertEqual(refused.code, 2)
        self.assertIn("no --teacher was given, but the run starts from", refused.err)
        trained = TrainedRun.open(self.folder, "step-000004")
        with self.assertRaisesRegex(ConfigError, "no --teacher was given"):
            inherit_settings(Config(), trained)  # the task is inherited, too
        vocoder, teacher = ModelConfig(task="vocoder"), TeacherConfig(teacher="a voice of phonemes")
        config = Config(model=vocoder, teacher=teacher, data=DataConfig(text_frontend="phonemes"))
        inherited = inherit_settings(config, trained)  # whose voice had characters
        self.assertEqual((inherited.data, inherited.model.model_size), (config.data, "tiny"))

    def test_a_teacher_that_cannot_be_used_is_named_before_anything_is_built(self):
        corpus, folder = self.workspace.corpus.parent, self.workspace.folder / "audio"
        audio = shutil.copytree(corpus, folder, ignore=shutil.ignore_patterns("*.csv"))
        self.addCleanup(shutil.rmtree, audio)
        cases = {
            "no checkpoint": (f"--teacher {self.workspace.folder}",),
            "was trained with --task vocoder": (f"--teacher {self.folder}",),
            "text_frontend phonemes was given": ("--text-frontend phonemes",),
            "no metadata": (f"--train-data {audio}",),
            "--produce-precision": ("--produce-precision float64",),
            "it has an effect only with --task vocoder": ("--task asr",),
        }
        for message, flags in cases.items():
            with self.subTest(message):
                finished = self.taught("refused", *flags)
                self.assertEqual(finished.code, 2)
                self.assertIn(message, finished.err)
                self.assertFalse(Path(self.workspace.run_dir("refused"), "checkpoints").exists())
