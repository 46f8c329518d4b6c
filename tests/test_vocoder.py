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

from fakes.copies import find_copies
from myxtts.audio import excitation
from myxtts.audio.excitation import interpolate_unvoiced, pulse_phasor, pulse_train
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.mel import SILENCE, log_mel
from myxtts.audio.pitch import f0
from myxtts.audio.spectral import inverse_short_time_spectrum, magnitude, short_time_spectrum
from myxtts.audio.vocoder import vocode
from myxtts.config.schema import Config, ModelConfig, VocoderConfig
from myxtts.devicefeed.contract import check_batch, tensor_specs
from myxtts.devicefeed.producer import trace_produce
from myxtts.report.metrics import read_metrics
from myxtts.run.description import segment_exceeds_utterances_warning
from myxtts.tasks.base import Examples
from myxtts.tasks.registry import task_of
from myxtts.tasks.vocoder import network as vocoder_network
from myxtts.tasks.vocoder.contract import CONTEXT_FRAMES, VOCODER_FEATURES
from myxtts.tasks.vocoder.features import vocoder_extractor
from myxtts.tasks.vocoder.network import Vocoder, mel_and_spectrum, project
from myxtts.tasks.vocoder.task import VocoderSampler
from myxtts.trial.preflight.kernels import audit
from tests import tiny_vocoder
from tests.tiny import arrays_of, check_components, on_device, rows_of
from tests.tiny_vocoder import FRAMES, SEGMENT, vocoder, vocoder_features, vocoder_inputs
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
        """Also at the ends of an utterance, which a segment's context exceeds.

        Some CPUs round a mel otherwise in another batch.
        """
        batch = vocoder_inputs()
        wave = tf.cast(batch["pcm"], tf.float32) / 32768.0
        around = [(0, 0), (SEGMENT + CONTEXT_FRAMES,) * 2]
        mel = log_mel(wave, batch["samples"]).numpy()
        mel = np.pad(mel, [*around, (0, 0)], constant_values=SILENCE)
        f0_hz = np.pad(f0(wave, batch["samples"])[0].numpy(), around)
        for seed in range(3):
            segment = produce("random", batch | {"seed": tf.constant([seed, 3])})
            for row, frames in enumerate(FRAMES):
                start = self.start_of(segment["wave"][row], wave[row].numpy(), frames)
                self.assertTrue(0 <= start <= max(frames - SEGMENT, 0), start)
                cut = slice(start + SEGMENT, start + 2 * SEGMENT + 2 * CONTEXT_FRAMES)
                np.testing.assert_allclose(segment["mel"][row], mel[row, cut], atol=1e-5)
                np.testing.assert_allclose(segment["f0_hz"][row], f0_hz[row, cut], rtol=1e-6)
                length = np.linalg.norm(segment["pulse_phasor"][row], axis=1)
                np.testing.assert_allclose(length, segment["f0_hz"][row] > 0.0, atol=1e-5)
        self.assertGreater((segment["f0_hz"] > 0.0).mean(), 0.3)

    def start_of(self, segment, wave, frames):
        """Return the first frame of a segment without context, found by its samples."""
        around = (SEGMENT + CONTEXT_FRAMES) * HOP_SAMPLES
        samples = np.pad(wave[: frames * HOP_SAMPLES], around)
        for place in range(frames + SEGMENT):
            first = (place + SEGMENT) * HOP_SAMPLES
            if np.array_equal(samples[first : first + len(segment)], segment):
                return place
        return -1

    def test_segments_are_a_function_of_the_seed_and_without_training_in_the_middle(self):
        batch = vocoder_inputs()
        seeds = ({"seed": tf.constant([seed, 3])} for seed in (0, 0, 1))
        first, again, other = (produce("random", batch | seed)["wave"] for seed in seeds)
        np.testing.assert_array_equal(first, again)
        self.assertGreater(np.abs(first - other).max(), 0.01)
        context = CONTEXT_FRAMES * HOP_SAMPLES
        whole = batch["pcm"][0, 14 * HOP_SAMPLES : 26 * HOP_SAMPLES].numpy() / np.float32(32768.0)
        cut = produce("middle", batch)["wave"][0, context:-context]
        np.testing.assert_array_equal(cut, whole)

    def test_padding_of_the_batch_changes_no_feature(self):
        for kind in ("random", "whole"):
            less, more = (produce(kind, vocoder_inputs(padded=padded)) for padded in (41, 60))
            for name, value in less.items():
                same = more[name][:, : value.shape[1]] if value.ndim > 1 else more[name]
                np.testing.assert_array_equal(value, same, name)

    def test_features_follow_their_contract_and_sizes(self):
        extractor, features = EXTRACTORS["random"], produce("random", vocoder_inputs())
        check_batch(features, VOCODER_FEATURES, "test")
        self.assertEqual(features["mel"].shape[1], extractor.sizes["segment_frames"])
        self.assertEqual(features["wave"].shape[1], extractor.sizes["segment_samples"])
        np.testing.assert_array_equal(features["frames"], FRAMES)
        self.assertFalse(features["wave"][2].any() or features["f0_hz"][2].any())


class Spectra(unittest.TestCase):
    def test_inverse_returns_the_wave(self):
        wave = np.random.default_rng(0).normal(size=(2, 4096)).astype(np.float32)
        back = inverse_short_time_spectrum(short_time_spectrum(tf.constant(wave), 1024), 1024)
        np.testing.assert_allclose(back[:, 768:-768], wave[:, 768:-768], atol=1e-5)

    def test_gradients_are_those_of_tensorflow(self):
        random = np.random.default_rng(0)
        wave = tf.constant(random.normal(size=(2, 2048)), tf.float32)
        weight = tf.constant(random.normal(size=(2, 5, 513)), tf.float32)

        def gradient(transform):
            with tf.GradientTape() as tape:
                tape.watch(wave)
                value = tf.reduce_sum(magnitude(transform(wave), 1e-9) * weight)
            return tape.gradient(value, wave)

        def transform(wave):
            return short_time_spectrum(wave, 1024)

        def reference(wave):
            return tf.signal.stft(wave, 1024, 256, 1024)

        def there_and_back(wave):
            return transform(inverse_short_time_spectrum(transform(wave), 1024))

        def there_and_back_reference(wave):
            frames = tf.signal.irfft(reference(wave)) * (tf.signal.hann_window(1024) / 1.5)
            return reference(tf.signal.overlap_and_add(frames, 256))

        for ours, expected in ((transform, reference), (there_and_back, there_and_back_reference)):
            np.testing.assert_allclose(gradient(ours), gradient(expected), atol=2e-4)

    def test_projection_moves_a_wave_to_a_mel(self):
        random = np.random.default_rng(0)
        noise = tf.constant(random.normal(0.0, 0.1, (1, 40 * HOP_SAMPLES)), tf.float32)
        target = mel_and_spectrum(noise)[0] + np.linspace(-1.0, 1.0, 80, dtype=np.float32)
        mels = (mel_and_spectrum(wave)[0] for wave in (noise, project(noise, target)))
        before, after = (np.abs(mel - target)[:, 3:-3].mean() for mel in mels)
        self.assertGreater(before, 0.45)
        self.assertLess(after, 0.15 * before)


class Excitation(unittest.TestCase):
    def test_pulse_train_has_unit_power_and_equal_harmonics_below_half_the_rate(self):
        wave = pulse_train(tf.fill([1, 87], 210.0), tf.zeros([1, 87, 2])).numpy()[0]
        wave = wave[: 105 * 200]  # 200 whole periods
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
        hz = tf.constant([[0, 0, 100, 110, 0, 0, 120, 0]], tf.float32)
        length = np.linalg.norm(pulse_phasor(wave, hz), axis=2)
        np.testing.assert_allclose(length, [[0, 0, 1, 1, 0, 0, 1, 0]], atol=1e-5)

    def test_smoothing_follows_certain_phasors(self):
        """The short phasors, which point elsewhere, are outvoted by the long ones around them."""
        hz = tf.fill([1, 40], 101.0)
        centres = (np.arange(40) + 0.5) * HOP_SAMPLES / SAMPLE_RATE_HZ
        angle = 2 * np.pi * (101.0 * centres + 0.2)
        certain = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        phasor = np.where((np.arange(40) % 4 == 0)[:, None], -0.1 * certain, certain)[None]
        smooth = excitation.smoothed_phasor(tf.constant(phasor, tf.float32), hz, 9).numpy()[0]
        cosines = (smooth * certain).sum(1) / np.linalg.norm(smooth, axis=1)
        self.assertGreater(cosines.min(), 0.999)

    def test_unvoiced_frames_are_interpolated(self):
        hz = tf.constant([[0, 100, 0, 0, 160, 0], [0, 0, 0, 0, 0, 0]], tf.float32)
        expected = [[100, 100, 120, 140, 160, 160], [100] * 6]
        np.testing.assert_allclose(interpolate_unvoiced(hz), expected, rtol=1e-6)

    def test_unvoiced_frames_are_interpolated_over_any_distance(self):
        random = np.random.default_rng(0)
        voiced = random.random((3, 300)) < [[0.5], [0.01], [0.1]]
        hz = np.where(voiced, random.uniform(80.0, 300.0, (3, 300)), 0.0)
        hz[2, 40:260] = 0.0
        frame = np.arange(300)
        expected = [np.interp(frame, frame[row > 0.0], row[row > 0.0]) for row in hz]
        filled = interpolate_unvoiced(tf.constant(hz, tf.float32))
        np.testing.assert_allclose(filled, expected, rtol=1e-5)


def losses_of(model, batch, **options):
    with tf.device(MODEL):
        return {name: float(value) for name, value in model(on_device(batch), **options)[0].items()}


class Network(unittest.TestCase):
    def test_microbatch_losses_add_up_to_those_of_the_whole_batch(self):
        batch = vocoder_features((40, 9, 60))
        # The noise is drawn for a batch, so that all rows but the first have other noise in a
        # microbatch.
        with mock.patch(
            "myxtts.tasks.vocoder.network.stateless_normal", lambda shape, _: tf.zeros(shape)
        ):
            whole = losses_of(vocoder(), batch)
            rows = (rows_of(batch, slice(*ends)) for ends in ((0, 1), (1, 3)))
            first, second = (losses_of(vocoder(), part) for part in rows)
        for name, loss in whole.items():
            self.assertAlmostEqual(first[name] + second[name], loss, places=4)

    def test_empty_rows_add_nothing(self):
        batch, empty = vocoder_features((40, 9)), vocoder_features((0, 0))
        by_row = [name for name in batch if name not in ("seed", "step_frames")]
        with_empty = batch | {name: np.concatenate([batch[name], empty[name]]) for name in by_row}
        with mock.patch(
            "myxtts.tasks.vocoder.network.stateless_normal", lambda shape, _: tf.zeros(shape)
        ):
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
        check_components(self, model)
        variables = [v.value for v in model.trainable_variables]
        with tf.device(MODEL), tf.GradientTape() as tape:
            loss = sum(model(on_device(vocoder_features((40,))), training=True)[0].values())
        gradients = tape.gradient(loss, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            self.assertTrue(np.any(tf.convert_to_tensor(gradient)), variable.name)

    def test_mixed_precision_is_close_to_float32(self):
        batch = vocoder_features((40, 9))
        expected = losses_of(vocoder(), batch)
        for precision in ("mixed_bfloat16", "mixed_float16"):
            model = tiny_vocoder.build(precision)
            for name, loss in losses_of(model, batch).items():
                self.assertAlmostEqual(loss, expected[name], delta=0.03 * expected[name], msg=name)
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
                results.append(gradients(tiny_vocoder.build(gradient_checkpointing=flag)))
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
            files = Path(folder).glob("step-000001/*")
            kinds = sorted(path.name.partition(".")[2] for path in files)
        expected = 2 * ["png", "recording.wav", "vocoder.wav", "griffin-lim.wav"]
        self.assertEqual(kinds, sorted(expected))

    def test_a_voice_is_projected_twice_and_a_recording_twelve_times(self):
        mel, network = vocoder_features((40,))["mel"], vocoder()
        with tf.device(MODEL), mock.patch.object(vocoder_network, "project", side_effect=project):
            for function, expected in ((network.synthesize, 2), (network.copy, 12)):
                vocoder_network.project.reset_mock()
                function.python_function(tf.constant(mel), tf.constant([0, 0]))
                self.assertEqual(vocoder_network.project.call_count, expected)

    def test_recorded_mels_are_copied_by_vocoders_that_can(self):
        def waves_of(**functions):
            named = SimpleNamespace(
                **{
                    name: lambda mel, _, at=at: tf.fill([1, 4], at)
                    for name, at in functions.items()
                }
            )
            rows = np.zeros((1, 2, 80), np.float32), [2]
            return [vocode(named, *rows, recorded=recorded)[0][0] for recorded in (False, True)]

        self.assertEqual(waves_of(synthesize=1.0, copy=2.0), [1.0, 2.0])
        self.assertEqual(waves_of(synthesize=1.0), [1.0, 1.0])

    def test_noise_is_a_function_of_the_seed(self):
        mel = vocoder_features((40,))["mel"]
        with tf.device(MODEL):
            seeds = (tf.constant([seed, 0]) for seed in (0, 0, 1))
            first, again, other = (vocoder().synthesize(mel, seed) for seed in seeds)
        np.testing.assert_array_equal(first, again)
        self.assertGreater(np.abs(first - other).max(), 1e-4)


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.whole = tiny_vocoder.vocoder_run()
        cls.workspace, cls.folder = cls.whole.workspace, cls.whole.folder

    def test_a_folder_of_audio_is_trained_on_validated_and_sampled(self):
        code, out, err = self.whole.finished
        self.assertEqual((code, err), (0, ""))
        self.assertIn("audio files without metadata; 13 rows in", out)
        self.assertIn(" in 1 x 4 rows, of each utterance a segment of 0.2 s\n", out)
        newest = read_metrics(self.folder / "metrics.jsonl")[-1]
        for name in (*Vocoder.LOSS_NAMES, "loss", "validation_loss", "validation_log_mel_error_db"):
            self.assertTrue(0.0 < newest[name] < 100.0, (name, newest[name]))

    def test_segments_longer_than_most_utterances_are_announced(self):
        manifest = SimpleNamespace(samples=np.array([0.4, 0.5, 0.7]) * SAMPLE_RATE_HZ)
        corpus = SimpleNamespace(manifest=manifest)
        cases = ("vocoder", 0.5, False), ("vocoder", 0.6, True), ("tts", 0.6, False)
        for task, length_s, announced in cases:
            segment = VocoderConfig(vocoder_segment_seconds=length_s)
            config = Config(model=ModelConfig(task=task), vocoder=segment)
            segment_s = task_of(config).segment_s(config)
            warning = segment_exceeds_utterances_warning(segment_s, corpus)
            is_announced = "half of the utterances are shorter than 0.5 s" in warning
            self.assertEqual(is_announced, announced)

    def test_samples_are_recording_vocoder_and_griffin_lim_of_one_length(self):
        kinds, files = ("recording", "vocoder", "griffin-lim"), self.folder / "samples/step-000004"
        for picture in files.glob("*.png"):
            waves = [soundfile.read(picture.with_suffix(f".{kind}.wav"))[0] for kind in kinds]
            self.assertEqual(len({len(wave) for wave in waves}), 1)
            self.assertEqual(len(waves[0]) % HOP_SAMPLES, 0)
            self.assertTrue(all(np.abs(wave).max() > 0.001 for wave in waves))
        self.assertEqual(len(list(files.iterdir())), 3 * 4)

    def test_a_resumed_run_repeats_bit_for_bit(self):
        copy = self.workspace.copy_run("whole", "resumed", self.addCleanup)
        shutil.rmtree(copy / "checkpoints/step-000004")
        flags = (*self.whole.flags, "--resume", "--sample-every=0", "--validate-every=0")
        with tiny_vocoder.small_vocoders():
            finished = self.workspace.train("resumed", *flags)
        self.assertEqual(finished.code, 0, finished.err)
        runs = (arrays_of(folder / "checkpoints/step-000004") for folder in (self.folder, copy))
        np.testing.assert_equal(*map(dict, runs))


class Placement(unittest.TestCase):
    def test_every_operation_has_a_gpu_kernel_and_no_value_returns_to_the_host(self):
        model = vocoder()

        @tf.function(input_signature=[tensor_specs(VOCODER_FEATURES)], autograph=False)
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
