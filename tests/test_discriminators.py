"""Discriminators of a vocoder, and the second stage of its training: train, resume, export."""

import contextlib
import shutil
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

from fakes.copies import find_copies
from myxtts.config.checks import check_settings
from myxtts.config.schema import Config, ModelConfig, TrainingConfig, VocoderConfig
from myxtts.errors import ConfigError
from myxtts.models import discriminators
from myxtts.models.discriminators import Discriminators, ResolutionDiscriminator
from myxtts.placement.audit import audit
from myxtts.report.metrics import read_metrics
from myxtts.synthesis.export import vocoder_export, write_export
from myxtts.tasks.vocoder import VocoderTask
from myxtts.training.step import Step
from tests.long import long
from tests.tiny import arrays_of, on_device, run_at, take_step, training_state
from tests.tiny_vocoder import build, small_vocoders, vocoder_features, vocoder_run
from tests.two_devices import MODEL

SETTINGS = discriminators.AdversarialSettings(0.1, 0.5, warmup_steps=4, learning_rate_ratio=2.0)


def few_discriminators() -> contextlib.AbstractContextManager:
    """Return a context in which there is one small discriminator of each kind, also for runs."""
    periods = {"PERIODS": (3,), "PERIOD_CHANNELS": (4, 4)}
    return mock.patch.multiple(discriminators, **periods, RESOLUTIONS=(512,), RESOLUTION_CHANNELS=4)


class Layers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.random = np.random.default_rng(0)

    def wave(self, rows=2, samples=4096):
        return tf.constant(self.random.normal(0.0, 0.1, (rows, samples)), tf.float32)

    def test_length_of_a_kernel_is_its_gamma(self):
        conv = discriminators.WeightNormConv(2, (1, 1), (1, 1))
        x = tf.constant(self.random.normal(size=(1, 3, 3, 4)), tf.float32)
        conv(x)
        conv.kernel.assign(100.0 * conv.kernel)
        conv.gamma.assign([2.0, 3.0])
        conv.bias.assign([0.0, 1.0])
        kernel = conv.kernel.numpy()[0, 0]
        expected = x.numpy() @ (kernel / np.linalg.norm(kernel, axis=0) * [2.0, 3.0]) + [0.0, 1.0]
        np.testing.assert_allclose(conv(x), expected, rtol=1e-5, atol=1e-5)

    def test_leaky_relu_has_the_gradient_of_its_definition(self):
        x = tf.constant([-2.0, -0.5, 0.5, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = discriminators.leaky_relu(x)
        np.testing.assert_allclose(y, [-0.2, -0.05, 0.5, 3.0])
        np.testing.assert_allclose(tape.gradient(y, x), [0.1, 0.1, 1.0, 1.0])

    def test_a_period_keeps_its_samples_apart(self):
        judge, wave = discriminators.PeriodDiscriminator(3), self.wave(1, 400)
        picture = judge.picture(wave).numpy()
        self.assertEqual(picture.shape, (1, 133, 3, 1))
        np.testing.assert_array_equal(picture[0, :5, 1, 0], wave[0, 1:16:3])
        scores, _ = judge(wave)
        other, _ = judge(wave + tf.constant([0.0, 0.0, 1.0] * 133 + [0.0]))  # every third sample
        np.testing.assert_array_equal(scores[:, :, :2], other[:, :, :2])
        self.assertGreater(np.abs(scores - other)[:, :, 2].min(), 0.0)

    def test_a_resolution_sees_magnitudes_alone(self):
        judge, wave = ResolutionDiscriminator(512), self.wave()
        self.assertEqual(judge.picture(wave).shape, (2, 29, 257, 1))
        np.testing.assert_allclose(judge.picture(wave), judge.picture(-wave), rtol=1e-6)

    def test_a_resolution_sees_noise_of_unit_power_at_unit_power(self):
        for size in (512, 2048):
            power = np.square(ResolutionDiscriminator(size).picture(10.0 * self.wave(4, 16384)))
            self.assertAlmostEqual(power.mean(), 1.0, delta=0.1)

    def test_hidden_values_are_those_of_the_layers(self):
        wave = self.wave(1)
        features = [layer for judge in Discriminators().judges for layer in judge(wave)[1]]
        self.assertEqual(sum(int(tf.size(x)) for x in features), discriminators.hidden_values(4096))

    def test_relative_distance_does_not_depend_on_the_scale(self):
        real, other = tf.constant(self.random.normal(size=(2, 2, 3, 4, 5)), tf.float32)
        expected = np.abs(real - other).mean(axis=(1, 2, 3)) / np.abs(real).mean(axis=(1, 2, 3))
        for scale in (1.0, 100.0):
            distance = discriminators.relative_distance(scale * real, scale * other)
            np.testing.assert_allclose(distance, expected, rtol=1e-3)

    def test_losses_are_the_hinge_of_the_scores(self):
        class Known:
            """Scores 0.5 and 3 for recordings, -0.25 and -4 for others."""

            def __call__(self, wave):
                scores = tf.where(wave[:, :1] > 0.0, [[0.5, 3.0]], [[-0.25, -4.0]])
                return scores[:, :, None, None], [wave[:, :, None, None]]

        real = tf.fill([1, 8], 2.0)
        losses = Discriminators._losses_of(Known(), real, -real)
        names = (*Discriminators.LOSS_NAMES, *Discriminators.NETWORK_LOSSES)
        self.assertEqual(tuple(losses), names)
        actual = [float(loss[0]) for loss in losses.values()]
        np.testing.assert_allclose(actual, [0.25, 0.375, 3.125, 2.0], rtol=1e-3)


class SecondStageStep(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with few_discriminators():
            model = build("mixed_float16", adversarial=SETTINGS)
            cls.state = training_state(model, "mixed_float16")
            cls.step = Step(cls.state, 1.0, 1, static_shapes=False, compile_xla=False)
            cls.batch = on_device(vocoder_features([30, 20]))
            cls.outcome = cls.step.read(take_step(cls.step, [[cls.batch]], 1, 1e-3, 0.9))
            cls.functions = cls.step.functions([cls.batch])

    def test_both_sides_train_and_report_their_losses_and_norms(self):
        self.assertEqual(int(self.state.bad_step), 0)
        self.assertEqual([int(group.optimizer.iterations) for group in self.state.groups], [1, 1])
        names = "adversarial feature_matching discriminator_real discriminator_generated loss"
        names += " gradient_norm loss_discriminators gradient_norm_discriminators skipped_updates"
        self.assertEqual(list(self.outcome), [*self.state.model.LOSS_NAMES, *names.split()])
        self.assertTrue(np.isfinite([*self.outcome.values()]).all())
        total = self.outcome["discriminator_real"] + self.outcome["discriminator_generated"]
        self.assertAlmostEqual(self.outcome["loss_discriminators"], total, 5)
        # The first step has no adversarial weight.
        spectral = sum(self.outcome[name] for name in self.state.model.LOSS_NAMES)
        self.assertAlmostEqual(self.outcome["loss"] / spectral, 1.0, 5)

    def test_validation_and_inference_take_no_discriminator(self):
        with tf.device(MODEL):
            losses, _ = self.state.model(self.batch, training=False)
        self.assertEqual(tuple(losses), self.state.model.LOSS_NAMES)
        names = {v.path for v in build().variables}
        self.assertEqual(set(self.state.variables()["model"]), names)
        self.assertEqual(set(self.state.variables()["averages"]), names)

    def test_a_gpu_runs_every_operation_and_never_waits_for_a_shape(self):
        for function in self.functions:
            self.assertEqual(audit(function).host_only, ())
            # The loss scale of float16 decides on the host whether to update.
            waits = [copy.source for copy in find_copies(function) if copy.to_host]
            self.assertEqual([source for source in waits if source.startswith("models/")], [])


class Settings(unittest.TestCase):
    def test_memory_of_discriminators_is_forecast(self):
        sizes = {"batch": 16, "segment_frames": 64, "segment_samples": 64 * 256}
        task, model = VocoderTask(), ModelConfig(task="vocoder", model_size="tiny")
        settings = (VocoderConfig(discriminators=flag) for flag in (False, True))
        configs = (Config(model=model, vocoder=vocoder) for vocoder in settings)
        without, judged = (task.activation_bytes(config, sizes) for config in configs)
        self.assertAlmostEqual((judged - without) / 2**30, 1.3, delta=0.2)  # GiB

    def test_discriminators_need_a_trained_vocoder(self):
        sections = {"model": ModelConfig(task="vocoder")}
        sections["vocoder"] = VocoderConfig(discriminators=True)
        with self.assertRaisesRegex(ConfigError, "ame its run with --init-from"):
            check_settings(Config(**sections))
        check_settings(Config(**sections, training=TrainingConfig(init_from="runs/vocoder")))


class SecondStageRun(unittest.TestCase):
    """In dual placement. Two replicas with loss groups are in test_loss_groups."""

    DUAL = "--data-gpu 0 --model-gpu 1 --max-steps 4 --checkpoint-every 2".split()

    @classmethod
    def setUpClass(cls):
        first = vocoder_run()
        cls.workspace = first.workspace
        flags = "--validation-fraction 0.25 --vocoder-segment-seconds 0.2 --task vocoder"
        flags += f" --discriminators --adversarial-warmup-steps 3 --init-from {first.folder}"
        cls.flags = flags.split()
        with small_vocoders(), few_discriminators():
            cls.whole = cls.train("gan", *cls.DUAL, "--validate-every", "4")

    @classmethod
    def train(cls, name, *flags):
        return cls.workspace.train(name, *cls.flags, *flags)

    @classmethod
    def checkpoint(cls, name, step):
        return cls.workspace.run_dir(name) / f"checkpoints/step-{step:06d}"

    def test_the_vocoder_is_kept_and_the_discriminators_start_from_random_weights(self):
        self.assertEqual(self.whole.code, 0, self.whole)
        log = self.whole.out + self.whole.err
        self.assertIn("discriminators from random weights", log)
        self.assertRegex(log, r"parameters, [\d,]+ of the discriminators")

    @long
    def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(self):
        """In test_loss_groups, a state of two loss groups is resumed in a second."""
        self.workspace.copy_run("gan", "gan_resumed", self.addCleanup)
        shutil.rmtree(self.checkpoint("gan_resumed", 4))
        with small_vocoders(), few_discriminators():
            resumed = self.train("gan_resumed", *self.DUAL, "--validate-every", "0", "--resume")
        self.assertEqual(resumed.code, 0, resumed)
        runs = ("gan", "gan_resumed")
        expected, result = (dict(arrays_of(self.checkpoint(name, 4))) for name in runs)
        self.assertTrue(any(name.startswith("discriminators/") for name in expected))
        np.testing.assert_equal(result, expected)

    def test_validation_goes_by_the_losses_of_the_first_stage(self):
        lines = read_metrics(self.workspace.run_dir("gan") / "metrics.jsonl")
        names = {name for name in lines[-1] if name.startswith("validation_")}
        self.assertFalse({"validation_adversarial", "validation_feature_matching"} & names)
        self.assertIn("validation_spectral", names)
        self.assertIn("adversarial", lines[-1])
        self.assertIn("loss discriminators", self.whole.out + self.whole.err)

    def test_the_exported_vocoder_has_no_discriminators(self):
        checkpoint = self.checkpoint("gan", 4)
        out = self.workspace.folder / "export"
        with small_vocoders(), tf.device(MODEL):
            write_export(vocoder_export(run_at(checkpoint), MODEL), out)
        saved = tf.train.list_variables(str(out / "variables/variables"))
        saved = sorted(tuple(shape) for name, shape in saved if "weights" in name)
        arrays = arrays_of(checkpoint)
        weights = sorted(array.shape for name, array in arrays if name.startswith("averages/"))
        self.assertEqual(saved, weights)

    def test_discriminators_cannot_be_turned_off_within_a_run(self):
        flags = f"--run gan --runs-dir {self.workspace.folder / 'runs'} --resume"
        with small_vocoders():
            finished = self.workspace.main(*flags.split(), "--no-discriminators")
        self.assertEqual(finished.code, 2, finished)
        self.assertIn("vocoder.discriminators is False", finished.err)
