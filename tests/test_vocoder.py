"""The vocoder: segments and their features, network, losses, synthesis, and runs of the task."""

import os
import shutil
import tempfile
import unittest
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import keras
import numpy as np
import soundfile
import tensorflow as tf

from myxtts.audio.excitation import (
    UNVOICED_HZ,
    interpolate_unvoiced,
    pulse_phasor,
    pulse_train,
    smoothed_phasor,
)
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.mel import SILENCE, log_mel
from myxtts.audio.pitch import f0
from myxtts.audio.spectral import inverse_short_time_spectrum, magnitude, short_time_spectrum
from myxtts.batch import CONTEXT_FRAMES, VOCODER_FEATURES, check_batch, tensor_specs
from myxtts.config.schema import Config, ModelConfig, VocoderConfig
from myxtts.data.features import vocoder_extractor
from myxtts.data.pipeline import trace_produce
from myxtts.models.vocoder import Vocoder, mel_and_spectrum, project
from myxtts.placement.audit import audit, find_copies, has_gpu_kernels
from myxtts.report.metrics import read_metrics
from myxtts.tasks.base import Examples
from myxtts.tasks.vocoder import VocoderSampler
from myxtts.training.description import segment_exceeds_utterances_warning
from tests.tiny import arrays_of, on_device, rows_of
from tests.tiny_vocoder import (
    FRAMES,
    SEGMENT,
    build,
    small_vocoders,
    vocoder,
    vocoder_features,
    vocoder_inputs,
    vocoder_run,
)
from tests.two_devices import DATA, MODEL

EXTRACTORS = {
    "random": vocoder_extractor(SEGMENT, at_random=True),
    "middle": vocoder_extractor(SEGMENT, at_random=False),
    "whole": vocoder_extractor(),
}


@cache
def producer(name):
    """Trace the producer of one of EXTRACTORS once for all tests."""
    return trace_produce(DATA, EXTRACTORS[name])


def produce(name, batch):
    features, _ = producer(name)(batch)
    return {field: value.numpy() for field, value in features.items()}


class Segments(unittest.TestCase):
    def test_features_of_a_segment_are_those_of_the_whole_utterance(self):
        """Bit for bit, also at the ends of an utterance, which a segment's context exceeds."""
        batch = vocoder_inputs()
        wave = tf.cast(batch["pcm"], tf.float32) / 32768.0
        mel, hz = log_mel(wave, batch["samples"]).numpy(), f0(wave, batch["samples"])[0].numpy()
        for seed in range(3):
            segment = produce("random", batch | {"seed": tf.constant([seed, 3])})
            starts = [
                self.start_of(segment["wave"][row], wave[row].numpy(), FRAMES[row])
                for row in range(4)
            ]
            self.assertTrue(
                all(0 <= s <= max(n - SEGMENT, 0) for s, n in zip(starts, FRAMES, strict=True)),
                starts,
            )
            for row, start in enumerate(starts):
                for i, frame in enumerate(
                    range(start - CONTEXT_FRAMES, start + SEGMENT + CONTEXT_FRAMES)
                ):
                    inside = 0 <= frame < FRAMES[row]
                    np.testing.assert_array_equal(
                        segment["mel"][row, i], mel[row, frame] if inside else np.float32(SILENCE)
                    )
                    np.testing.assert_array_equal(
                        segment["f0_hz"][row, i], hz[row, frame] if inside else 0.0
                    )
                    length = np.linalg.norm(segment["pulse_phasor"][row, i])
                    self.assertAlmostEqual(length, float(segment["f0_hz"][row, i] > 0.0), places=5)
        self.assertGreater((segment["f0_hz"] > 0.0).mean(), 0.3)

    def start_of(self, segment, wave, frames):
        """Return the first frame of a segment without context, found by its samples."""
        samples = np.zeros((frames + 2 * (SEGMENT + CONTEXT_FRAMES)) * HOP_SAMPLES, np.float32)
        first = SEGMENT + CONTEXT_FRAMES
        samples[first * HOP_SAMPLES :][: frames * HOP_SAMPLES] = wave[: frames * HOP_SAMPLES]
        places = range(frames + SEGMENT)
        windows = (samples[(place + SEGMENT) * HOP_SAMPLES :][: len(segment)] for place in places)
        return next(
            place
            for place, window in zip(places, windows, strict=True)
            if np.array_equal(window, segment)
        )

    def test_segments_are_a_function_of_the_seed_and_without_training_in_the_middle(self):
        batch = vocoder_inputs()
        waves = [
            produce("random", batch | {"seed": tf.constant([seed, 3])})["wave"]
            for seed in (0, 0, 1)
        ]
        np.testing.assert_array_equal(waves[0], waves[1])
        self.assertGreater(np.abs(waves[1] - waves[2]).max(), 0.01)
        cut = produce("middle", batch)["wave"][
            0, CONTEXT_FRAMES * HOP_SAMPLES : -CONTEXT_FRAMES * HOP_SAMPLES
        ]
        whole = batch["pcm"][0, 14 * HOP_SAMPLES : 26 * HOP_SAMPLES].numpy() / np.float32(32768.0)
        np.testing.assert_array_equal(cut, whole)

    def test_padding_of_the_batch_changes_no_feature(self):
        for kind in ("random", "whole"):
            less, more = (produce(kind, vocoder_inputs(padded=padded)) for padded in (41, 60))
            for name, value in less.items():
                longest = value.shape[1] if value.ndim > 1 else None
                np.testing.assert_array_equal(
                    value, more[name][:, :longest] if longest else more[name], name
                )

    def test_features_follow_their_contract_and_sizes(self):
        extractor, features = EXTRACTORS["random"], produce("random", vocoder_inputs())
        check_batch(features, VOCODER_FEATURES, "test")
        self.assertEqual(features["mel"].shape[1], extractor.sizes["segment_frames"])
        self.assertEqual(features["wave"].shape[1], extractor.sizes["segment_samples"])
        np.testing.assert_array_equal(features["frames"], FRAMES)
        actual = (np.abs(features["wave"][2]).max(), features["f0_hz"][2].max())
        self.assertEqual(actual, (0.0, 0.0))


class Spectra(unittest.TestCase):
    def test_inverse_returns_the_wave(self):
        wave = np.random.default_rng(0).normal(size=(2, 4096)).astype(np.float32)
        back = inverse_short_time_spectrum(
            short_time_spectrum(tf.constant(wave), 1024), 1024
        ).numpy()
        np.testing.assert_allclose(back[:, 768:-768], wave[:, 768:-768], atol=1e-5)

    def test_gradients_are_those_of_tensorflow(self):
        random = np.random.default_rng(0)
        wave, weight = (
            tf.constant(random.normal(size=shape), tf.float32) for shape in ((2, 2048), (2, 5, 513))
        )

        def gradient(transform):
            with tf.GradientTape() as tape:
                tape.watch(wave)
                spectrum = transform(wave)
                value = tf.reduce_sum(magnitude(spectrum, 1e-9) * weight)
            return tape.gradient(value, wave)

        def reference(wave):
            return tf.signal.stft(wave, 1024, 256, 1024)

        np.testing.assert_allclose(
            gradient(lambda w: short_time_spectrum(w, 1024)), gradient(reference), atol=2e-4
        )

        def there_and_back(wave):
            return short_time_spectrum(
                inverse_short_time_spectrum(short_time_spectrum(wave, 1024), 1024), 1024
            )

        def there_and_back_reference(wave):
            frames = tf.signal.irfft(reference(wave)) * (tf.signal.hann_window(1024) / 1.5)
            return reference(tf.signal.overlap_and_add(frames, 256))

        np.testing.assert_allclose(
            gradient(there_and_back), gradient(there_and_back_reference), atol=2e-4
        )

    def test_projection_moves_a_wave_to_a_mel(self):
        random = np.random.default_rng(0)
        noise = tf.constant(random.normal(0.0, 0.1, (1, 40 * HOP_SAMPLES)), tf.float32)
        target = mel_and_spectrum(noise)[0] + np.linspace(-1.0, 1.0, 80, dtype=np.float32)
        before, after = (
            np.abs(mel_and_spectrum(w)[0] - target)[:, 3:-3].mean()
            for w in (noise, project(noise, target))
        )
        self.assertGreater(before, 0.45)
        self.assertLess(after, 0.15 * before)


class Excitation(unittest.TestCase):
    def test_pulse_train_has_unit_power_and_equal_harmonics_below_half_the_rate(self):
        wave = pulse_train(tf.fill([1, 87], 210.0), tf.zeros([1, 87, 2])).numpy()[0][
            : 105 * 200
        ]  # 200 whole periods
        self.assertAlmostEqual(float(np.square(wave).mean()), 1.0, places=2)
        spectrum = np.abs(np.fft.rfft(wave))
        harmonics = spectrum[200::200].copy()
        self.assertLess(harmonics.std() / harmonics.mean(), 0.02)
        spectrum[::200] = 0.0
        self.assertLess(spectrum.max(), 0.02 * harmonics.mean())

    def test_phase_keeps_its_precision_over_minutes(self):
        frames = 60 * SAMPLE_RATE_HZ // HOP_SAMPLES
        # A period of exactly 105 samples.
        wave = pulse_train(tf.fill([1, frames], 210.0), tf.zeros([1, frames, 2])).numpy()[0]
        np.testing.assert_allclose(wave[-1050:], wave[len(wave) % 105 :][:1050], atol=0.02)

    def test_pulses_follow_the_phase_of_a_recording(self):
        """A tone whose F0 is not exact: pulses at its measured phase have its peaks."""
        seconds = np.arange(60 * HOP_SAMPLES) / SAMPLE_RATE_HZ
        wave = tf.constant(np.cos(2 * np.pi * (120.0 * seconds + 0.3))[None], tf.float32)
        wrong_hz = tf.fill([1, 60], 119.0)
        pulses = pulse_train(wrong_hz, pulse_phasor(wave, wrong_hz)).numpy()[0]
        first, last = 4 * HOP_SAMPLES, 56 * HOP_SAMPLES
        phase = 120.0 * seconds + 0.3
        peaks = phase[first:last][pulses[first:last] > 0.6 * pulses.max()]
        self.assertLess(np.abs(peaks - np.round(peaks)).max(), 0.02)  # cycles
        free = pulse_train(wrong_hz, tf.zeros([*wrong_hz.shape, 2])).numpy()[0]
        self.assertGreater(np.abs(phase - np.round(phase))[free > 0.6 * free.max()].max(), 0.4)

    def test_unvoiced_frames_have_no_phase(self):
        wave = tf.constant(np.random.default_rng(0).normal(size=(1, 8 * HOP_SAMPLES)), tf.float32)
        phasor = pulse_phasor(
            wave, tf.constant([[0, 0, 100, 110, 0, 0, 120, 0]], tf.float32)
        ).numpy()
        np.testing.assert_allclose(
            np.linalg.norm(phasor, axis=2), [[0, 0, 1, 1, 0, 0, 1, 0]], atol=1e-5
        )

    def test_smoothing_follows_certain_phasors(self):
        """The short phasors, which point elsewhere, are outvoted by the long ones around them."""
        hz = tf.fill([1, 40], 101.0)
        centres = (np.arange(40) + 0.5) * HOP_SAMPLES / SAMPLE_RATE_HZ
        angle = 2 * np.pi * (101.0 * centres + 0.2)
        certain = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        phasor = np.where((np.arange(40) % 4 == 0)[:, None], -0.1 * certain, certain)[None].astype(
            np.float32
        )
        smooth = smoothed_phasor(tf.constant(phasor), hz, 9).numpy()[0]
        cosines = (smooth * certain).sum(1) / np.linalg.norm(smooth, axis=1)
        self.assertGreater(cosines.min(), 0.999)

    def test_unvoiced_frames_are_interpolated(self):
        hz = tf.constant([[0, 100, 0, 0, 160, 0], [0, 0, 0, 0, 0, 0]], tf.float32)
        filled = interpolate_unvoiced(hz)
        np.testing.assert_allclose(
            filled, [[100, 100, 120, 140, 160, 160], [UNVOICED_HZ] * 6], rtol=1e-6
        )

    def test_unvoiced_frames_are_interpolated_over_any_distance(self):
        random = np.random.default_rng(0)
        hz = np.where(
            random.random((3, 300)) < [[0.5], [0.01], [0.1]],
            random.uniform(80.0, 300.0, (3, 300)),
            0.0,
        )
        hz[2, 40:260] = 0.0
        expected = [
            np.interp(np.arange(300), *(column[row > 0.0] for column in (np.arange(300), row)))
            for row in hz
        ]
        np.testing.assert_allclose(
            interpolate_unvoiced(tf.constant(hz, tf.float32)), expected, rtol=1e-5
        )


def losses_of(model, batch, **options):
    with tf.device(MODEL):
        return {name: float(value) for name, value in model(on_device(batch), **options)[0].items()}


class Network(unittest.TestCase):
    def test_microbatch_losses_add_up_to_those_of_the_whole_batch(self):
        batch = vocoder_features((40, 9, 60))
        # The noise is drawn for a batch, so that all rows but the first have other noise in a
        # microbatch.
        with mock.patch("tensorflow.random.stateless_normal", lambda shape, _: tf.zeros(shape)):
            whole = losses_of(vocoder(), batch)
            parts = [
                losses_of(vocoder(), rows_of(batch, rows)) for rows in (slice(0, 1), slice(1, 3))
            ]
        for name, loss in whole.items():
            self.assertAlmostEqual(sum(part[name] for part in parts), loss, places=4)

    def test_empty_rows_add_nothing(self):
        batch = vocoder_features((40, 9))
        with_empty = {
            name: np.concatenate([value, empty]) if name not in ("seed", "step_frames") else value
            for (name, value), empty in zip(
                batch.items(), vocoder_features((0, 0)).values(), strict=True
            )
        }
        with mock.patch("tensorflow.random.stateless_normal", lambda shape, _: tf.zeros(shape)):
            full, padded = (losses_of(vocoder(), features) for features in (batch, with_empty))
        for name, loss in full.items():
            self.assertAlmostEqual(padded[name], loss, places=5)

    def test_gradients_of_empty_rows_are_finite_and_zero(self):
        model = vocoder()
        with tf.device(MODEL), tf.GradientTape() as tape:
            loss = sum(model(on_device(vocoder_features((0, 0))), training=True)[0].values())
        self.assertEqual(float(loss), 0.0)
        for gradient in tape.gradient(loss, [v.value for v in model.trainable_variables]):
            self.assertEqual(float(np.abs(tf.convert_to_tensor(gradient)).max()), 0.0)

    def test_each_layer_is_in_one_component_and_gets_a_gradient(self):
        model = vocoder()
        layers = [layer for part in model.component_layers().values() for layer in part]
        paths = [variable.path for layer in layers for variable in layer.trainable_variables]
        self.assertEqual(sorted(paths), sorted(v.path for v in model.trainable_variables))
        variables = [v.value for v in model.trainable_variables]
        with tf.device(MODEL), tf.GradientTape() as tape:
            loss = sum(model(on_device(vocoder_features((40,))), training=True)[0].values())
        gradients = tape.gradient(loss, variables)
        still = [
            v.name
            for v, g in zip(variables, gradients, strict=True)
            if not np.any(tf.convert_to_tensor(g))
        ]
        self.assertEqual(still, [])

    def test_mixed_precision_is_close_to_float32(self):
        batch = vocoder_features((40, 9))
        expected = losses_of(vocoder(), batch)
        for precision in ("mixed_bfloat16", "mixed_float16"):
            model = build(precision)
            for name, loss in losses_of(model, batch).items():
                actual = abs(loss - expected[name])
                self.assertLess(actual, 0.03 * expected[name], (precision, name))
            self.assertEqual({v.dtype for v in model.variables}, {"float32"})

    def test_gradient_checkpointing_changes_no_gradient(self):
        batch = on_device(vocoder_features((40, 9)))

        def gradients(model):
            with tf.device(MODEL), tf.GradientTape() as tape:
                loss = sum(model(batch, training=True)[0].values())
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        results = []
        for flag in (False, True):
            with mock.patch("keras.remat", wraps=keras.remat) as recomputed:
                results.append(gradients(build(gradient_checkpointing=flag)))
            self.assertEqual(recomputed.called, flag)
        for left, right in zip(*results, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


class Synthesis(unittest.TestCase):
    def test_wave_has_the_frames_of_the_mel_and_stays_within_full_scale(self):
        mel = vocoder_features((40, 40))["mel"] + 12.0
        with tf.device(MODEL):
            wave = vocoder().synthesize(mel, tf.constant([0, 0])).numpy()
        self.assertEqual(wave.shape, (2, mel.shape[1] * HOP_SAMPLES))
        self.assertLessEqual(np.abs(wave).max(), 1.0)

    def test_samples_of_recordings_with_any_names_are_written(self):
        ids = [os.fsdecode(b"caf\xe9.wav"), "ა" * 80 + ".wav"]
        examples = Examples(on_device(vocoder_features((20, 16))), ids, ["", ""], ids)
        with tempfile.TemporaryDirectory() as folder:
            sampler = VocoderSampler(vocoder(), examples, Path(folder), mock.Mock())
            with tf.device(MODEL):
                sampler(1)
            kinds = sorted(
                path.name.partition(".")[2] for path in Path(folder).glob("step-000001/*")
            )
        expected = sorted(2 * ["png", "recording.wav", "vocoder.wav", "griffin-lim.wav"])
        self.assertEqual(kinds, expected)

    def test_noise_is_a_function_of_the_seed(self):
        mel = vocoder_features((40,))["mel"]
        with tf.device(MODEL):
            first, again, other = (
                vocoder().synthesize(mel, tf.constant(seed)) for seed in ([0, 0], [0, 0], [1, 0])
            )
        np.testing.assert_array_equal(first, again)
        self.assertGreater(np.abs(first - other).max(), 1e-4)


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.whole = vocoder_run()
        cls.workspace, cls.folder = cls.whole.workspace, cls.whole.folder

    def test_a_folder_of_audio_is_trained_on_validated_and_sampled(self):
        self.assertEqual((self.whole.finished.code, self.whole.finished.err), (0, ""))
        self.assertIn("audio files without metadata; 13 .wav", self.whole.finished.out)
        message = self.whole.finished.out
        self.assertIn(" in 1 x 4 rows, of each utterance a segment of 0.2 s\n", message)
        newest = read_metrics(self.folder / "metrics.jsonl")[-1]
        for name in (*Vocoder.LOSS_NAMES, "loss", "validation_loss", "validation_log_mel_error_db"):
            self.assertTrue(0.0 < newest[name] < 100.0, (name, newest[name]))

    def test_segments_longer_than_most_utterances_are_announced(self):
        corpus = SimpleNamespace(
            manifest=SimpleNamespace(samples=np.array([0.4, 0.5, 0.7]) * SAMPLE_RATE_HZ)
        )
        for task, segment_s, announced in (
            ("vocoder", 0.5, False),
            ("vocoder", 0.6, True),
            ("tts", 0.6, False),
        ):
            config = Config(
                model=ModelConfig(task=task),
                vocoder=VocoderConfig(vocoder_segment_seconds=segment_s),
            )
            self.assertEqual(
                "half of the utterances are shorter than 0.5 s"
                in segment_exceeds_utterances_warning(config, corpus),
                announced,
            )

    def test_samples_are_recording_vocoder_and_griffin_lim_of_one_length(self):
        for picture in (self.folder / "samples/step-000004").glob("*.png"):
            kinds = ("recording", "vocoder", "griffin-lim")
            waves = [soundfile.read(picture.with_suffix(f".{kind}.wav"))[0] for kind in kinds]
            self.assertEqual(len({len(wave) for wave in waves}), 1)
            self.assertEqual(len(waves[0]) % HOP_SAMPLES, 0)
            self.assertTrue(all(np.abs(wave).max() > 0.001 for wave in waves))
        self.assertEqual(len(list((self.folder / "samples/step-000004").iterdir())), 3 * 4)

    def test_a_resumed_run_repeats_bit_for_bit(self):
        copy = self.workspace.copy_run("whole", "resumed", self.addCleanup)
        shutil.rmtree(copy / "checkpoints/step-000004")
        with small_vocoders():
            finished = self.workspace.train(
                "resumed", *self.whole.flags, "--resume", "--sample-every=0", "--validate-every=0"
            )
        self.assertEqual(finished.code, 0, finished.err)
        for (name, first), (_, again) in zip(
            *(arrays_of(folder / "checkpoints/step-000004") for folder in (self.folder, copy)),
            strict=True,
        ):
            np.testing.assert_array_equal(first, again, name)


class Placement(unittest.TestCase):
    def test_every_operation_has_a_gpu_kernel_and_no_value_returns_to_the_host(self):
        if not has_gpu_kernels():
            self.skipTest("this TensorFlow holds no GPU kernels")
        model = vocoder()

        @tf.function(input_signature=[tensor_specs(VOCODER_FEATURES)])
        def step(batch):
            with tf.GradientTape() as tape:
                loss = tf.add_n(list(model(batch, training=True)[0].values()))
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        with tf.device(MODEL):
            functions = {
                "step": step.get_concrete_function(),
                "synthesis": model.synthesize.get_concrete_function(),
                "producer": producer("random"),
                "whole utterances": producer("whole"),
            }
        for name, function in functions.items():
            with self.subTest(name):
                self.assertEqual(audit(function).host_only, ())
                self.assertEqual([copy for copy in find_copies(function) if copy.to_host], [])
