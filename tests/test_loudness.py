"""--loudness and --trim: what they measure, and that training and references have the same; and
the limiter of synthesis.
"""

import importlib.util
import unittest

import numpy as np
import tensorflow as tf

from fakes.copies import find_copies
from myxtts.audio import k_weighting
from myxtts.audio.audio_file import read_pcm, speech_span
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.loudness import LIMITER_SAMPLES, gated_power, limited, with_loudness
from myxtts.batches.pcm_cache import open_cache, rows_from_cache
from myxtts.batches.reading import rows_from_files
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.corpus.sound import read_row
from myxtts.devicefeed.producer import trace_produce
from myxtts.tasks.features import at_loudness
from myxtts.tasks.tts.features import tts_extractor
from myxtts.tasks.vocoder.features import vocoder_extractor
from myxtts.trial.preflight.kernels import audit
from tests.fixtures import FolderCase
from tests.sine_corpus import noise, sine, write_sound
from tests.two_devices import DATA

SILENCE = np.zeros(22_050)


def loudness(wave, samples):
    """Return the loudness of each row in LUFS, -inf of silence."""
    with np.errstate(divide="ignore"):
        return k_weighting.OFFSET_DB + 10.0 * np.log10(gated_power(wave, samples).numpy())


def loudness_of(*waves: np.ndarray) -> np.ndarray:
    samples = np.array([len(wave) for wave in waves], np.int32)
    padded = [np.pad(wave, (0, samples.max() - len(wave))) for wave in waves]
    return loudness(tf.constant(np.array(padded, np.float32)), tf.constant(samples))


def speech(seconds: float) -> np.ndarray:
    """Return noise and tones of several levels with pauses, float64 [samples]."""
    wave = noise(round(seconds * SAMPLE_RATE_HZ), 0.02) + sine(180.0, seconds, level=0.1)
    return wave * (1.0 + np.sin(2.0 * np.arange(len(wave)) / SAMPLE_RATE_HZ)) ** 3 / 8.0


class LoudnessTest(unittest.TestCase):
    def test_a_tone_of_full_scale_has_the_loudness_of_the_standard(self):
        # BS.1770-4: a sine of 997 Hz at 0 dB has -3.01 LUFS; half the amplitude 6.02 less.
        tone = sine(997.0, 2.0, level=1.0)
        short = tone[:4_000]
        np.testing.assert_allclose(
            loudness_of(tone, tone / 2, short, np.concatenate([tone, SILENCE]), SILENCE),
            [-3.01, -9.03, -3.01, -3.3, -np.inf],
            atol=0.1,
        )

    @unittest.skipUnless(importlib.util.find_spec("pyloudnorm"), "needs pyloudnorm")
    def test_of_a_batch_and_of_a_wave_it_is_that_of_pyloudnorm(self):
        from pyloudnorm import Meter

        meter = Meter(SAMPLE_RATE_HZ)
        waves = [speech(seconds) for seconds in (0.4, 0.44, 0.46, 1.0, 3.21, 7.0)]
        waves += [np.concatenate([SILENCE, speech(2.0), SILENCE, 0.1 * speech(1.0)])]
        expected = [meter.integrated_loudness(wave) for wave in waves]
        np.testing.assert_allclose(loudness_of(*waves), expected, atol=0.1)
        alone = [k_weighting.loudness(wave, SAMPLE_RATE_HZ) for wave in waves]
        np.testing.assert_allclose(loudness_of(*waves), alone, atol=0.01)

    def test_rows_get_a_loudness_without_clipping_and_silence_stays(self):
        click = np.concatenate([np.ones(1), 0.01 * speech(2.0)])
        rows = np.array([speech(2.0), 0.1 * speech(2.0), click[:-1], 0 * click[:-1]], np.float32)
        samples = tf.constant([44_100, 20_000, 44_100, 0])
        rows[1, 20_000:] = 0.0
        changed = with_loudness(tf.constant(rows), -20.0, samples)
        np.testing.assert_allclose(loudness(changed, samples)[:2], -20.0, atol=0.01)
        np.testing.assert_array_equal(changed[2:], rows[2:])
        self.assertIs(with_loudness(changed, None), changed)

    def test_features_do_not_depend_on_the_level_of_the_recording(self):
        # Above the floor of the logarithm at all levels.
        pcm = np.rint(20_000 * noise(11_025, 0.2)).astype(np.int16)
        rows = np.stack([pcm, pcm // 4, 0 * pcm])
        waves = {"pcm": rows, "samples": np.array([11_025, 11_025, 0], np.int32)}
        waves |= {f"reference_{name}": value for name, value in waves.items()}
        waves |= {"seed": np.zeros(2, np.int32)} | dict.fromkeys(
            ("tokens", "token_count", "language", "step_frames", "step_tokens"), 0
        )
        features = at_loudness(tts_extractor(), -23.0).produce(
            {name: tf.constant(value) for name, value in waves.items()}
        )
        for name in ("mel", "reference"):
            self.assertLess(np.abs(features[name][0] - features[name][1]).max(), 0.05, name)
            self.assertTrue(np.isfinite(features[name]).all())

    def test_every_operation_has_a_gpu_kernel_and_no_value_returns_to_the_host(self):
        for extractor in (tts_extractor(), vocoder_extractor(20)):
            function = trace_produce(DATA, at_loudness(extractor, -23.0))
            self.assertEqual(audit(function).host_only, ())
            self.assertEqual([copy for copy in find_copies(function) if copy.to_host], [])


class LimiterTest(unittest.TestCase):
    def test_a_click_is_turned_down_and_the_rest_of_the_wave_is_not(self):
        rest = np.stack([sine(300.0, 1.0), sine(90.0, 1.0)])[:, : 300 * LIMITER_SAMPLES]
        wave = rest.astype(np.float32)
        wave[0, 9_000] = -6.0
        out = limited(wave).numpy()
        np.testing.assert_allclose(out[0, 9_000], -1.0, atol=0.02)
        far = np.abs(np.arange(wave.shape[1]) - 9_000) > 2.5 * LIMITER_SAMPLES
        np.testing.assert_array_equal(out[0, far], wave[0, far])
        np.testing.assert_array_equal(out[1], wave[1])

    def test_no_sample_is_beyond_full_scale(self):
        wave = np.random.default_rng(0).normal(0, 2, (2, 50 * LIMITER_SAMPLES)).astype(np.float32)
        self.assertLessEqual(np.abs(limited(wave)).max(), 1.0)


class TrimTest(FolderCase):
    def test_spans_end_with_the_speech(self):
        tone, hiss = sine(300.0, 1.0), noise(22_050, 0.5 * 10 ** (-45 / 20))
        quiet = tone * 10 ** (-35 / 20)
        # Within a piece of 512 samples, 1,024 are kept on each side.
        for parts, begin, end in (
            ((SILENCE, tone, SILENCE), 21_026, 45_124),
            ((hiss, tone, hiss), 21_026, 45_124),
            ((quiet, tone), 0, 44_100),
            ((tone, SILENCE), 0, 23_074),
            ((SILENCE,), 0, 22_050),
            ((tone[:100],), 0, 100),
        ):
            wave = np.concatenate(parts)
            first, last = speech_span(wave, 40.0)
            self.assertTrue(abs(first - begin) < 512 and abs(last - end) < 512, (first, last))
            self.assertEqual(speech_span(wave[first:last], 40.0), (0, last - first))

    def manifest(self, **settings):
        data = DataConfig(text_frontend="characters", **settings)
        rows = read_corpus(self.folder / "list.csv", "en")
        return build_manifest(rows, data, LengthRule())

    def test_the_plan_and_all_readers_have_the_trimmed_utterances(self):
        lines = ["path,text"]
        for number, suffix in enumerate((".wav", ".flac", ".wav")):
            wave = np.concatenate([SILENCE[: 4_000 * number], sine(300.0, 1.0), SILENCE[:9_000]])
            write_sound(self.folder / f"{number}{suffix}", wave)
            lines.append(f"{number}{suffix},abc")
        write_sound(self.folder / "3.wav", np.concatenate([SILENCE, sine(300.0, 0.1), SILENCE]))
        self.write("list.csv", "\n".join([*lines, "3.wav,abc"]))
        whole, _, _ = self.manifest()
        trimmed, _, rejected = self.manifest(trim=40.0)
        self.assertEqual([(row.line, row.reason) for row in rejected], [(5, "too short")])
        self.assertNotEqual(whole.fingerprint, trimmed.fingerprint)
        self.assertEqual(trimmed.native.tolist(), [True, False, True])
        self.assertTrue((trimmed.samples < 26_000).all())
        rows, zeros = [0, 1, 2], [0, 0, 0]
        place = zip(trimmed.paths, trimmed.starts.tolist(), trimmed.samples.tolist(), strict=True)
        expected = np.zeros((3, 26_000), np.int16)
        for row, (path, start, count) in enumerate(place):
            expected[row, :count] = read_pcm(path)[start : start + count]
            np.testing.assert_array_equal(
                read_row(trimmed, row) * 32768.0, expected[row, :count].astype(np.float32)
            )
        cache = open_cache(trimmed, self.folder / "cache", 2)
        for read_rows in (
            rows_from_files(trimmed, native_loading=True),
            rows_from_files(trimmed, native_loading=False),
            rows_from_cache(trimmed, cache),
        ):
            arguments = (rows, zeros, trimmed.samples, 26_000)
            read = tf.function(read_rows, autograph=False)(
                *(tf.constant(value, tf.int32) for value in arguments)
            )
            np.testing.assert_array_equal(read, expected)
