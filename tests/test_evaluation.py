"""Evaluation: metrics of signals with known answers, and a complete evaluation of a small run."""

import contextlib
import io
import json
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.synthesis import SynthesisOptions
from myxtts.text.espeak import EspeakVoice, isolated_copy
from tests.fixtures import rewrite_state
from tests.two_devices import MODEL, TWO

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import GriffinLim
from myxtts.base.errors import CheckpointError, ConfigError, DataError
from myxtts.checkpoints.trained_run import VocoderChoice
from myxtts.commands import evaluate
from myxtts.config.schema import DataConfig, ModelConfig
from myxtts.devicefeed.routes import Route
from myxtts.extras.inspect.with_run import inspect_with_run
from myxtts.tasks import loading
from myxtts.tasks.asr.transcriber import Transcriber
from myxtts.tasks.evaluation import metrics, speech
from myxtts.tasks.evaluation.evaluate import evaluate_run
from myxtts.tasks.evaluation.held_out import (
    Evaluation,
    EvaluationOptions,
    load_held_out,
    load_measured,
    output_folder,
)
from myxtts.tasks.evaluation.metrics import AcousticFeatures, utterance_metrics
from myxtts.tasks.evaluation.recognisers import open_recogniser
from myxtts.tasks.evaluation.table import METRICS, ColumnScore, Means, Metrics, metrics_by_group
from myxtts.tasks.tts import evaluation as tts
from myxtts.tasks.tts.alignment import evidence
from myxtts.tasks.tts.task import synthesis_options
from tests.fixtures import temporary_folder, working_in
from tests.tiny import SECONDS, arrays_of, cached_network, cached_networks, whole_run
from tests.tiny_asr import asr_run, cached_transcriber, cached_transcribers

RECOGNISERS = "myxtts.tasks.evaluation.recognisers"
# A rating takes half a second.
RATING = {"dnsmos_p808": 3.0, "dnsmos_overall": 2.0, "dnsmos_mean": 2.5}
RATED = ("myxtts.tasks.evaluation.metrics.dnsmos", lambda wave: RATING)
TRACE = "tensorflow.python.framework.func_graph.func_graph_from_py_func"


def glide(semitones: float = 0.0, seconds: float = 1.0, swing_hz: float = 40.0) -> np.ndarray:
    """Return a vowel that goes from 100 to 140 Hz and back while its timbre changes; float32."""
    position = np.arange(round(seconds * SAMPLE_RATE_HZ)) / (seconds * SAMPLE_RATE_HZ)
    hz = (100 + swing_hz * np.sin(np.pi * position)) * 2 ** (semitones / 12)
    phase = 2 * np.pi * np.cumsum(hz) / SAMPLE_RATE_HZ
    wave = sum(
        np.sin(k * phase) * np.exp(-((k - 4 - 6 * position) ** 2) / 20) for k in range(1, 21)
    )
    return (0.1 * wave).astype(np.float32)


def features(*waves: np.ndarray) -> list[AcousticFeatures]:
    return speech.acoustic_features([wave.astype(np.float32) for wave in waves], MODEL)


def unvoiced(mel: np.ndarray) -> AcousticFeatures:
    return AcousticFeatures(
        np.zeros(len(mel) * HOP_SAMPLES), mel, np.zeros(len(mel)), np.zeros(len(mel), bool)
    )


def metrics_of(recorded: AcousticFeatures, synthesized: AcousticFeatures) -> Means:
    return metrics.corpus_metrics([utterance_metrics(recorded, synthesized)])


class DistortionTest(unittest.TestCase):
    def test_a_wave_has_no_distance_from_itself(self):
        (sound,) = features(glide())
        zeros = "mel_cepstral_distortion log_f0_rmse log_f0_difference voicing_error"
        zeros += " duration_ratio_deviation"
        ones = "log_f0_correlation log_f0_spread_ratio"
        ones += " duration_ratio duration_ratio_mean duration_within_bounds"
        expected = dict.fromkeys(zeros.split(), 0.0) | dict.fromkeys(ones.split(), 1.0)
        measured = metrics_of(sound, sound)
        self.assertEqual({key: round(value, 6) for key, value in measured.items()}, expected)

    def test_a_known_difference_of_one_coefficient_has_the_known_distortion(self):
        # c3 is 0.5 higher in all frames: log|H| gains 0.5 cos(3ω), and the distortion is 10√2/ln 10
        # · 0.5 dB.
        (sound,) = features(glide())
        ripple = 0.5 * np.cos(np.pi * 3 * (np.arange(80) + 0.5) / 80)
        rippled = replace(sound, mel=(sound.mel + ripple).astype(np.float32))
        cepstra = [metrics.mel_cepstrum(of.mel) for of in (rippled, sound)]
        expected = np.eye(13)[[2]].repeat(len(sound.mel), 0) * 0.5
        np.testing.assert_allclose(cepstra[0] - cepstra[1], expected, atol=1e-5)
        self.assertAlmostEqual(metrics.distortion_db(*cepstra).mean(), 3.0709, places=3)
        # Warping can only reduce it.
        self.assertLessEqual(utterance_metrics(sound, rippled).mcd_db, 3.0710)

    def test_distortion_over_all_coefficients_is_the_rms_difference_in_decibels(self):
        x, y = np.random.default_rng(0).normal(0, 1, (2, 1, 80))
        x, y = x - x.mean(), y - y.mean()
        decibels = 20 / np.log(10) * np.sqrt(np.mean((x - y) ** 2))
        cepstra = [metrics.mel_cepstrum(of, 1, 79) for of in (x, y)]
        self.assertAlmostEqual(metrics.distortion_db(*cepstra)[0], decibels)

    def test_distortion_does_not_depend_on_loudness(self):
        (sound,) = features(glide())
        louder = replace(sound, mel=sound.mel + np.float32(np.log(2)))
        self.assertAlmostEqual(utterance_metrics(sound, louder).mcd_db, 0.0, places=4)

    def test_a_stretched_copy_has_a_low_distortion_and_its_duration_ratio(self):
        measured = utterance_metrics(*features(glide(), glide(seconds=1.5)))
        self.assertLess(measured.mcd_db, 0.5)
        self.assertAlmostEqual(measured.synthesized_s / measured.recorded_s, 1.5, delta=0.02)

    def test_copy_synthesis_is_closer_than_noise_and_silence(self):
        random = np.random.default_rng(0)
        (sound,) = features(glide())
        copy, noise, silence = features(
            *speech.vocode_mels(GriffinLim(), [sound.mel], MODEL),
            random.uniform(-0.3, 0.3, SAMPLE_RATE_HZ),
            np.zeros(SAMPLE_RATE_HZ),
        )
        copied = utterance_metrics(sound, copy).mcd_db
        self.assertGreater(copied, 0.0)
        self.assertGreater(utterance_metrics(sound, noise).mcd_db, 3 * copied)
        self.assertGreater(utterance_metrics(sound, silence).mcd_db, 3 * copied)
        self.assertGreater(metrics_of(sound, noise)["voicing_error"], 0.8)
        self.assertIsNone(metrics_of(sound, silence)["log_f0_rmse"])

    def test_the_warping_path_connects_both_starts_and_both_ends(self):
        mels = np.random.default_rng(0).normal(-5, 2, (3, 80))
        path, pair_db = metrics.align(mels, mels[[0, 0, 1, 2]])
        np.testing.assert_array_equal(path, [[0, 0], [0, 1], [1, 2], [2, 3]])
        np.testing.assert_allclose(pair_db, 0.0, atol=1e-12)


class PitchErrorTest(unittest.TestCase):
    def test_a_semitone_is_a_twelfth_of_the_logarithm_of_two(self):
        (sound,) = features(glide())
        higher = replace(sound, f0_hz=sound.f0_hz * 2 ** (1 / 12))
        self.assertAlmostEqual(metrics_of(sound, higher)["log_f0_rmse"], np.log(2) / 12, places=5)

    def test_a_wave_a_semitone_higher_has_that_error(self):
        waves = [glide(semitones, swing_hz=0.0) for semitones in (0.0, 1.0)]
        error = metrics_of(*features(*waves))["log_f0_rmse"]
        self.assertAlmostEqual(error, np.log(2) / 12, delta=0.002)

    def test_voicing_error_is_the_fraction_of_pairs_that_differ(self):
        mel = np.random.default_rng(0).normal(-5, 2, (4, 80)).astype(np.float32)
        voiced = np.array([[True, True, False, False], [True, False, True, False]])
        pair = [replace(unvoiced(mel), f0_hz=np.where(of, 100.0, 0.0), voiced=of) for of in voiced]
        self.assertEqual(metrics_of(*pair)["voicing_error"], 0.5)
        self.assertEqual(utterance_metrics(*pair).log_f0_pairs.shape, (2, 1))

    def test_a_flat_copy_has_little_spread_and_a_shifted_one_another_mean(self):
        (sound,) = features(glide())
        log_f0 = np.log(np.where(sound.voiced, sound.f0_hz, 1.0))
        mean = log_f0[sound.voiced].mean()
        for flatness, shift, sign in ((0.5, 0.0, 1.0), (1.0, 0.2, 1.0), (0.25, -0.1, -1.0)):
            with self.subTest(flatness=flatness, shift=shift, sign=sign):
                contour = mean + shift + sign * flatness * (log_f0 - mean)
                other = replace(sound, f0_hz=np.where(sound.voiced, np.exp(contour), 0.0))
                measured = metrics_of(sound, other)
                self.assertAlmostEqual(measured["log_f0_spread_ratio"], flatness, places=5)
                self.assertAlmostEqual(measured["log_f0_difference"], shift, places=5)
                self.assertAlmostEqual(measured["log_f0_correlation"], sign, places=5)

    def test_lengths_are_of_the_sums_and_of_each_utterance(self):
        compared = [
            replace(utterance_metrics(*features(glide(), glide())), recorded_s=of, synthesized_s=1)
            for of in (1.0, 1.25, 4.0)
        ]
        measured = metrics.corpus_metrics(compared)
        self.assertAlmostEqual(measured["duration_ratio"], 3 / 6.25)
        self.assertAlmostEqual(measured["duration_ratio_mean"], (1 + 0.8 + 0.25) / 3)
        self.assertAlmostEqual(measured["duration_ratio_deviation"], np.std([1, 0.8, 0.25]))
        self.assertAlmostEqual(measured["duration_within_bounds"], 1 / 3)

    def test_silence_at_the_ends_is_no_speech(self):
        room = np.random.default_rng(0).normal(0, 1e-4, SAMPLE_RATE_HZ)
        sound, longer = features(glide(), np.concatenate([room, glide(), room]))
        compared = utterance_metrics(*map(metrics.trimmed, (sound, longer)))
        self.assertAlmostEqual(compared.synthesized_s, compared.recorded_s, delta=0.1)
        self.assertGreater(utterance_metrics(sound, longer).mcd_db, 4 * compared.mcd_db)


class OthersTest(unittest.TestCase):
    """What networks and programs of others make of waves, where their packages are installed."""

    @unittest.skipUnless(metrics.is_installed("dnsmos_p808"), "needs speechmos and onnxruntime")
    def test_dnsmos_rates_a_vowel_above_noise(self):
        noise = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE_HZ).astype(np.float32)
        # DNSMOS doubles a wave until it has 9 s, and then rates it anew from each second on: a wave
        # of 1 s seven times, one of 5 s once.
        vowel, noisy = (metrics.dnsmos(np.tile(of, 5)) for of in (glide(), noise))
        self.assertEqual(list(vowel), ["dnsmos_p808", "dnsmos_overall", "dnsmos_mean"])
        self.assertGreater(vowel["dnsmos_p808"], noisy["dnsmos_p808"])

    def test_without_its_packages_there_is_no_dnsmos(self):
        with mock.patch("myxtts.tasks.evaluation.metrics.find_spec", return_value=None):
            self.assertEqual(metrics.dnsmos(glide()), {})

    @unittest.skipUnless(find_spec("pocketsphinx"), "needs pocketsphinx")
    def test_pocketsphinx_writes_small_letters_and_knows_english_without_digits(self):
        recogniser = open_recogniser(Path("pocketsphinx"), MODEL)
        with isolated_copy() as espeak:
            wave, _ = espeak.synthesize("The old man went home.", EspeakVoice("en"))
        ((text, surety),) = recogniser.transcribe_scored([wave.astype(np.float32) / 32768.0])
        self.assertRegex(text, r"^[a-z' .]*$")
        self.assertTrue(0.0 < surety < 1.0, surety)
        for text, language, expected in (
            ("It’s Hello, World!", "en-us", "it's hello world"),
            *(("at 7", "en", ""), ("Ciao", "it", "")),
        ):
            self.assertEqual(recogniser.normalise_reference(text, language), expected)

    # What onnx-asr returns: a text, and the log-probability of each of its tokens.
    def test_a_model_of_onnx_asr_is_asked_at_its_rate_and_says_how_sure_it_is(self):
        heard = mock.Mock(text="hello", logprobs=[np.log(0.5), np.log(0.5)])
        package = mock.MagicMock()
        model = package.load_model.return_value.with_timestamps.return_value
        model.recognize.return_value = heard
        modules = mock.patch.dict("sys.modules", {"onnx_asr": package})
        found = mock.patch("myxtts.base.errors.find_spec")
        with modules, found, mock.patch(f"{RECOGNISERS}.version", return_value="0.9"):
            recogniser = open_recogniser(Path("onnx:whisper-base=folder"), MODEL)
            ((text, surety),) = recogniser.transcribe_scored([glide()])
            heard.logprobs = None
            ((_, unknown),) = recogniser.transcribe_scored([glide()])
            package.load_model.assert_called_once_with("whisper-base", "folder")
            package.load_model.side_effect = ValueError("no such model")
            with self.assertRaisesRegex(ConfigError, "cannot load 'none': no such model"):
                open_recogniser(Path("onnx:none"), MODEL)
        self.assertEqual((text, unknown), ("hello", 1.0))
        self.assertAlmostEqual(surety, 0.5)
        samples = len(model.recognize.call_args.args[0])
        self.assertAlmostEqual(samples / 16_000, len(glide()) / SAMPLE_RATE_HZ, delta=0.01)
        self.assertEqual(model.recognize.call_args.kwargs, {"sample_rate": 16_000})
        self.assertEqual(recogniser.normalise_reference("Ça va, “toi” ?", "fr"), "ça va toi")

    def test_a_missing_recogniser_is_named(self):
        with (
            mock.patch("myxtts.base.errors.find_spec", return_value=None),
            self.assertRaisesRegex(ConfigError, "pip install pocketsphinx"),
        ):
            open_recogniser(Path("pocketsphinx"), MODEL)


class SpeakerTest(unittest.TestCase):
    def test_three_speakers_are_distinguished(self):
        random = np.random.default_rng(0)
        timbre, noise = random.normal(0, 1, (3, 80)), random.normal(-5, 1, (18, 50, 80))
        mels = [(timbre[i % 3] + noise[i]).astype(np.float32) for i in range(18)]
        speakers = np.arange(18) % 3 + 4
        # Cosines only with embeddings of unit length.
        with mock.patch("myxtts.tasks.evaluation.metrics.find_spec", return_value=None):
            embeddings = speech.speaker_embeddings(map(unvoiced, mels))
            known = embeddings[:12], speakers[:12]
            names, similarity = speech.similarities(*known, embeddings[12:])
        np.testing.assert_array_equal(names[similarity.argmax(axis=1)], speakers[12:])
        with mock.patch("myxtts.tasks.evaluation.metrics.find_spec"):
            _, cosines = speech.similarities(np.eye(3), np.arange(3), np.eye(3)[:1] * 2)
        np.testing.assert_allclose(cosines, [[1.0, 0.0, 0.0]])

    @unittest.skipUnless(metrics.is_installed("speaker_cosine"), "needs Resemblyzer")
    def test_resemblyzer_tells_a_vowel_from_noise(self):
        noise = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE_HZ)
        embeddings = speech.speaker_embeddings(features(glide(), glide(4.0), noise))
        cosines = embeddings @ embeddings[0]
        self.assertAlmostEqual(cosines[0], 1.0, places=5)
        self.assertGreater(cosines[1], cosines[2])


class ColumnScoreTest(unittest.TestCase):
    def test_fractions_are_percentages_in_the_table_only(self):
        columns = ("synthesized", "copy_synthesis", "recordings")
        values = {"synthesized": 0.125, "copy_synthesis": 0.0625}
        counts = {"dnsmos_p808": {"synthesized": 3, "copy_synthesis": 4}}
        metrics = {"voicing_error": values, **counts}
        score = ColumnScore(
            *("runs/x", "step-000001", 2, columns, metrics),
            *({"languages": {"ka": counts}}, ("a note",)),
        )
        line = "voicing error 12.5 % | DNSMOS P.808 3.00 of 5"
        self.assertEqual(score.console_line(), line)
        table, document = score.table(), score.to_json()
        self.assertIn("| voicing error | 12.5 | 6.2 | – | % |", table)
        self.assertIn("| ka: DNSMOS P.808 | 3.00 | 4.00 | – | 1 to 5 |", table)
        self.assertIn("- a note", table)
        expected = values | {"recordings": None, "unit": "fraction"}
        self.assertEqual(document["metrics"]["voicing_error"], expected)
        self.assertEqual(document["languages"]["ka"]["dnsmos_p808"]["unit"], "1 to 5")


class ColumnMetricsTest(unittest.TestCase):
    """Two utterances in two languages; the second is transcribed with a wrong letter of four."""

    references = ("ab", "abcd")

    @classmethod
    def setUpClass(cls):
        recorded = features(glide(seconds=0.5), glide(seconds=0.4))
        compared = [utterance_metrics(of, of) for of in recorded]
        ratings = [{"dnsmos_p808": 2.0}, {"dnsmos_p808": 3.0}]
        cls.columns = {
            name: tts.Column(recorded, compared, texts, ratings, [(1, 0), (2, 3)])
            for name, texts in {
                "synthesized": ["ab", "abcx"],
                "copy_synthesis": ["ab", "abcd"],
                "recordings": ["abcd", "ab"],
            }.items()
        }

    def measure(self, rows) -> Metrics:
        return tts.column_metrics(rows, self.columns, {}, self.references)

    def test_each_column_is_compared_with_the_references(self):
        measured = self.measure([0, 1])
        rates = [1 / 6, 0.0, 4 / 6]
        self.assertEqual(list(measured["character_error_rate"].values()), rates)
        self.assertEqual(list(measured["word_error_rate"].values()), [1 / 2, 0.0, 1.0])
        self.assertEqual(measured["mel_cepstral_distortion"]["synthesized"], 0.0)
        self.assertEqual(measured["dnsmos_p808"]["synthesized"], 2.5)
        self.assertEqual(measured["words_left_out"]["synthesized"], 3)
        self.assertEqual(measured["words_repeated"]["synthesized"], 3)

    def test_each_language_has_its_own_metrics(self):
        by_language = metrics_by_group(("ka", "en"), self.measure)
        rates = [of["character_error_rate"]["synthesized"] for of in by_language.values()]
        self.assertEqual((list(by_language), rates), (["en", "ka"], [1 / 4, 0.0]))
        self.assertEqual(metrics_by_group(("ka",), self.measure), {})

    def test_without_a_recogniser_there_are_no_error_rates(self):
        measured = tts.column_metrics([0], self.columns, {}, [])
        self.assertNotIn("character_error_rate", measured)

    def test_texts_that_the_recogniser_cannot_know_are_left_out(self):
        measured = tts.column_metrics([0, 1], self.columns, {}, ["ab", ""])
        self.assertEqual(measured["character_error_rate"]["synthesized"], 0.0)


class CompleteEvaluation(unittest.TestCase):
    """A complete run on 13 sinusoids of two speakers, 3 of them held out."""

    @classmethod
    def setUpClass(cls):
        cls.workspace, cls.run_folder = whole_run().workspace, whole_run().folder
        cls.plots = temporary_folder(cls.addClassCleanup) / "plots"
        cls.checkpoint = TrainedRun.open(cls.run_folder).checkpoint.path
        cls.score = cls.measure(asr=asr_run().folder)

    @classmethod
    def measure(cls, run: Path | None = None, plots: str = "plots", **options) -> ColumnScore:
        trained = TrainedRun.open(run or cls.run_folder)
        folder = cls.plots.with_name(plots)
        with cached_networks(), cached_transcribers(RECOGNISERS), mock.patch(*RATED):
            evaluation = cls.evaluation(trained, folder, TWO.routes[0], **options)
            return tts.score_run(trained, evaluation, folder)

    @staticmethod
    def evaluation(trained: TrainedRun, folder: Path, route: Route, **options) -> Evaluation:
        options = EvaluationOptions(**{"ode_steps": 1, **options})
        corpus = load_measured(trained, options, folder)
        return Evaluation(trained.path, trained.record, corpus, options, route)

    def copy_run(self, name: str) -> Path:
        return self.workspace.copy_run("whole", name, self.addCleanup)

    def rewritten(self, name: str, data: dict, **metadata) -> Path:
        """Copy the run with other settings of its data, and other metadata."""

        def change(state: dict) -> None:
            state.update(metadata)
            state["settings"]["data"].update(data)

        run = self.copy_run(name)
        rewrite_state(TrainedRun.open(run).checkpoint.path, change)
        return run

    def test_every_metric_is_present_and_finite(self):
        expected = {key for key in METRICS if not key.startswith("speaker_accuracy_unseen")}
        expected -= {score for score in ("speaker_cosine",) if not metrics.is_installed(score)}
        self.assertEqual(set(self.score.metrics), expected)
        self.assertEqual(self.score.utterances, round(0.25 * len(SECONDS)))
        self.assertEqual(self.score.checkpoint, self.checkpoint.name)
        for key, metric in self.score.metrics.items():
            # An untrained network may synthesize no voiced frame, and sinusoids are no speech.
            if key not in ("log_f0_rmse", "pesq_wb", "stoi"):
                column = "copy_synthesis" if key in tts.COPY_METRICS else "synthesized"
                self.assertTrue(np.isfinite(metric[column]), key)
        self.assertTrue(json.loads(json.dumps(self.score.to_json())))

    def test_copy_synthesis_is_better_than_an_untrained_network(self):
        distortion = self.score.metrics["mel_cepstral_distortion"]
        self.assertLess(distortion["copy_synthesis"], distortion["synthesized"])
        self.assertEqual(self.score.metrics["duration_within_bounds"]["copy_synthesis"], 1.0)

    def test_notes_name_the_recogniser_and_its_bias(self):
        table = self.score.table()
        self.assertIn("| character error rate, by the recogniser | ", table)
        note = r"the recogniser is .*asr, step-000000; it knows .* of 3 of 3 texts"
        self.assertRegex(table, note)
        self.assertIn("its error rates are optimistic", table)

    def test_a_tts_run_as_recogniser_is_rejected(self):
        with (
            mock.patch("tests.tiny_asr.cached_transcriber", Transcriber),
            self.assertRaisesRegex(CheckpointError, "Give a run of --task asr"),
        ):
            self.measure(asr=self.run_folder, plots="refused")

    def test_a_language_unknown_to_the_recogniser_is_rejected_before_synthesis(self):
        run = asr_run().folder
        transcriber = cached_transcriber(run)
        foreign = replace(transcriber.vocabulary, languages=("ka",))
        message = "the text has language 'en', but .*asr was trained on ka"
        with (
            mock.patch.object(transcriber, "vocabulary", foreign),
            mock.patch("myxtts.tasks.tts.evaluation.predict_mels") as synthesis,
            self.assertRaisesRegex(DataError, message),
        ):
            self.measure(asr=run, plots="foreign")
        synthesis.assert_not_called()

    def test_an_asr_run_is_measured_by_error_rates(self):
        run, file = asr_run().folder, self.plots.with_name("rates.json")
        with (
            cached_transcribers("myxtts.tasks.asr.evaluation"),
            # This process has configured its devices.
            mock.patch("myxtts.placement.devices.configure"),
            contextlib.redirect_stdout(io.StringIO()) as output,
        ):
            evaluate.main(["--run", str(run), "--json", str(file), "--utterances", "2"])
        self.assertIn("| all | 2 |", output.getvalue())
        self.assertEqual(json.loads(file.read_text(encoding="utf-8"))["checkpoint"], "step-000000")
        message = "--ode-steps, --asr was given, but .* is a recogniser"
        with self.assertRaisesRegex(ConfigError, message):
            evaluate_run(run, None, EvaluationOptions(ode_steps=4, asr=run))

    def test_plots_are_written(self):
        names = sorted(path.name for path in self.plots.iterdir())
        self.assertEqual(len(names), 6)
        self.assertTrue(names[0].startswith("1-u") and names[0].endswith("-f0.png"), names)

    def test_a_second_evaluation_has_the_same_metrics(self):
        again = self.measure().metrics
        del again["real_time_factor"]
        self.assertEqual(again, {key: again[key] and self.score.metrics[key] for key in again})

    def test_beside_a_trained_vocoder_griffin_lim_has_columns_of_its_own(self):
        choice = VocoderChoice(mock.sentinel.run)
        with (
            mock.patch.object(TrainedRun, "select_vocoder", return_value=choice),
            # Stands for a trained vocoder.
            mock.patch.object(loading, "load_vocoder", return_value=GriffinLim(1)),
        ):
            score = self.measure(utterances=2)
        added = ("synthesized_griffin_lim", "copy_synthesis_griffin_lim")
        self.assertEqual(score.columns, (*tts.COLUMNS, *added))
        error = score.metrics["log_mel_error"]
        self.assertGreater(error["copy_synthesis"], error["copy_synthesis_griffin_lim"])
        self.assertIsNone(error["synthesized"])  # whose frames are of other times
        self.assertEqual(list(score.metrics["real_time_factor"]), ["synthesized", added[0]])
        vocoders = "by Griffin-Lim, 1 iterations, and in columns of their own by Griffin-Lim, 30"
        self.assertIn(vocoders, score.table())

    def test_scores_in_a_run_are_measured_in_another_thread_and_are_those_of_evaluate(self):
        network, batches = cached_network(self.checkpoint, MODEL), []
        with cached_transcribers(RECOGNISERS), mock.patch(*RATED):
            evaluation = self.evaluation(
                *(TrainedRun.open(self.run_folder), self.plots, Route(MODEL, MODEL)),
                **{"asr": asr_run().folder, "perceptual": False},
            )
            score_weights = tts.score_in_run(evaluation, network, GriffinLim)
        # Nothing is traced there.
        traced = mock.patch(TRACE, side_effect=AssertionError("traced"))
        with traced, mock.patch(*RATED), ThreadPoolExecutor(1) as pool:
            throttle = mock.Mock(side_effect=lambda: batches.append(None))
            score = pool.submit(score_weights, self.checkpoint.name, throttle).result()
        # Each synthesis, wave and comparison.
        self.assertGreater(len(batches), 3 * len(score.columns))
        self.assertEqual(score.columns, ("synthesized", "copy_synthesis", "recordings"))
        for key, metric in score.metrics.items():
            for column in score.columns:
                expected = self.score.metrics[key].get(column)
                self.assertEqual(metric.get(column), expected, (key, column))
        missing = {"real_time_factor", "speaker_accuracy_seen", "pesq_wb", "stoi"}
        missing |= {"words_left_out", "words_repeated"}
        missing |= {score for score in ("speaker_cosine",) if metrics.is_installed(score)}
        self.assertEqual(set(self.score.metrics) - set(score.metrics), missing)
        self.assertIn("mel-cepstral distortion ", score.console_line())

    def test_the_averaged_weights_are_loaded(self):
        network, saved = cached_network(self.checkpoint, MODEL), dict(arrays_of(self.checkpoint))
        for variable in network.trainable_variables:
            np.testing.assert_array_equal(variable.numpy(), saved[f"averages/{variable.path}"])

    def test_a_checkpoint_is_selected_by_name(self):
        selected = TrainedRun.open(self.run_folder, "step-000005")
        self.assertEqual(selected.checkpoint.path.name, "step-000005")
        for wrong in ("step-000003", "../checkpoints/step-000005", "", "config.yaml"):
            with self.assertRaisesRegex(CheckpointError, "step-000005, step-000008"):
                TrainedRun.open(self.run_folder, wrong)
        with self.assertRaisesRegex(CheckpointError, "has no checkpoint"):
            TrainedRun.open(self.run_folder / "checkpoints")

    def test_unusable_outputs_are_rejected_first(self):
        for message, options in (
            ("there is no folder", {"json_file": self.run_folder / "no" / "score.json"}),
            ("that is a folder", {"json_file": self.run_folder}),
            ("config.yaml cannot be used", {"out": self.run_folder / "config.yaml"}),
        ):
            with self.assertRaisesRegex(ConfigError, message):
                evaluate_run(self.run_folder, None, EvaluationOptions(**options))

    def change_corpus(self, old: str, new: str) -> None:
        text = self.workspace.corpus.read_text(encoding="utf-8")
        self.addCleanup(self.workspace.corpus.write_text, text, encoding="utf-8")
        self.workspace.corpus.write_text(text.replace(old, new), encoding="utf-8")

    def test_a_changed_corpus_is_rejected(self):
        self.change_corpus("abc,", "cba,")
        with self.assertRaisesRegex(CheckpointError, "another corpus .* training rows.* 'abc'"):
            self.measure(self.copy_run("changed"))

    def test_changed_held_out_utterances_are_rejected(self):
        manifest = load_held_out(TrainedRun.open(self.run_folder), self.run_folder).manifest
        name = Path(manifest.paths[0]).name
        self.change_corpus(f"{name},", f"{name},a")
        with self.assertRaisesRegex(CheckpointError, "was validated on have changed since"):
            self.measure(self.copy_run("changed_held_out"))

    def test_speakers_who_are_only_held_out_are_known_by_name(self):
        """A merged run keeps the speakers of its inputs, and may be validated on another corpus."""
        others = self.workspace.corpus.with_name("unseen.csv")
        others.write_text("path,text,speaker\nu0.wav,ab,unseen\nu1.wav,abc,s1\n", encoding="utf-8")
        run = self.rewritten("merged", {"val_data": str(others)}, corpus=None)
        measured = load_held_out(TrainedRun.open(run), run)
        names = [measured.vocabulary.speakers[speaker] for speaker in measured.manifest.speaker]
        self.assertEqual(sorted(names), ["s1", "unseen"])

    def test_a_missing_demo_corpus_is_named_and_not_made(self):
        run = self.rewritten("demo", {"train_data": None})
        folder = temporary_folder(self.addCleanup)
        message = "was trained on data/demo, which does not exist under"
        with working_in(folder):
            with self.assertRaisesRegex(DataError, message):
                load_held_out(TrainedRun.open(run), run)
            self.assertEqual(list(folder.iterdir()), [])

    def test_each_corpus_has_a_folder_of_its_own(self):
        root = temporary_folder(self.addCleanup)
        tables = [root / name / "test" / "metadata.csv" for name in ("ljs", "vctk")]
        for table in tables:
            table.parent.mkdir(parents=True)
            table.touch()
        ends = ["ljs-test-metadata", "vctk-test-metadata", "ljs-test", "vctk-test"]
        for data, end in zip([*tables, *(table.parent for table in tables)], ends, strict=True):
            folder = output_folder(Path("run"), Path("step-000005"), EvaluationOptions(data=data))
            self.assertEqual(folder, Path(f"run/evaluation/step-000005-{end}"))

    def test_a_missing_corpus_is_named(self):
        away = self.workspace.corpus.with_name("elsewhere.csv")
        self.workspace.corpus.rename(away)
        self.addCleanup(away.rename, self.workspace.corpus)
        with self.assertRaisesRegex(DataError, "does not exist under"):
            self.measure(self.copy_run("gone"))

    def test_a_run_without_held_out_utterances_is_rejected(self):
        run = self.rewritten("all", {"validation_fraction": 0.0}, corpus=None)
        with self.assertRaisesRegex(DataError, "held none out"):
            self.measure(run)

    def test_another_corpus_is_measured_and_its_speakers_are_unseen(self):
        lines = self.workspace.corpus.read_text(encoding="utf-8").splitlines()
        speaker = lines[0].split(",").index("speaker")
        rows = [line.split(",") for line in lines[1:7]]
        for number, row in enumerate(rows):
            row[speaker] = f"new-{number % 2}"
        text = "\n".join([lines[0], *map(",".join, rows)])
        file = self.workspace.corpus.with_name("others.csv")
        file.write_text(text, encoding="utf-8")
        score = self.measure(plots="others", data=file, utterances=2)
        self.assertEqual(score.utterances, 2)
        self.assertIn(f"2 utterances of {file}", score.notes[0])
        self.assertIn("speaker_accuracy_unseen", score.metrics)
        self.assertNotIn("speaker_accuracy_seen", score.metrics)
        self.assertIn(", 4 of them (chance 25.0%)", score.table())
        with self.assertRaisesRegex(DataError, "does not exist"):
            self.measure(data=file.with_name("nowhere"))
        file.write_text(text.replace("abc", "xyz"), encoding="utf-8")
        with self.assertRaisesRegex(DataError, "symbol unknown to the training corpus"):
            self.measure(plots="unknown", data=file)

    def test_ode_steps_and_guidance_default_to_those_of_the_run(self):
        run_options = synthesis_options(ModelConfig(ode_steps=5, guidance=2.0))
        for given, expected in (
            ({}, {"ode_steps": 5, "guidance": 2.0}),
            (
                {"ode_steps": 3, "guidance": 1.0, "variety": 0.0},
                {"ode_steps": 3, "guidance": 1.0, "variety": 0.0},
            ),
        ):
            options = tts.override(run_options, EvaluationOptions(**given))
            self.assertEqual(options, SynthesisOptions(**expected))

    def test_flags_out_of_bounds_are_rejected(self):
        flags = (
            "--ode-steps=0 --ode-steps=1001 --guidance=-1 --guidance=11 --guidance=nan --variety=3"
        )
        for flag in (*flags.split(), "--utterances=0"):
            with self.subTest(flag=flag), self.assertRaises(ConfigError):
                evaluate.parse(["--run", "x", flag])

    def test_an_audio_root_without_a_corpus_is_rejected(self):
        with self.assertRaisesRegex(ConfigError, "need --data"):
            evaluate.main(["--run", "x", "--audio-root", "x"])

    def test_settings_of_another_version_are_named(self):
        with self.assertRaisesRegex(CheckpointError, "data.echo"):
            self.measure(self.rewritten("other", {"echo": 1}))


class InspectionTest(unittest.TestCase):
    def test_the_aligner_judges_each_text_as_in_training(self):
        run, corpus = whole_run().folder, str(whole_run().workspace.corpus)
        data = DataConfig(train_data=corpus, text_frontend="characters")
        least = "myxtts.extras.align.alignment.LEAST_EVIDENCE"
        with cached_networks(), mock.patch(least, 2.0):
            found = inspect_with_run(data, run, "step-000008", MODEL)
        self.assertEqual(set(found.evidence), {clip.id for clip in found.clips})
        self.assertEqual(
            {of.id for of in found.findings if of.fault == "text"}, set(found.evidence)
        )
        network = cached_network(run / "checkpoints" / "step-000008", MODEL)
        record = TrainedRun.open(run, "step-000008").record
        clip = found.clips[-1]
        mel = log_mel(read_wave(clip.path)[None])
        tokens = record.vocabulary.symbols.encode(list(clip.text))[None]
        frames, language = tf.constant([mel.shape[1]]), tf.constant([0])
        batch = {"mel": mel, "frames": frames, "reference": mel, "reference_frames": frames}
        count = tf.constant([tokens.shape[1]])
        batch |= {"tokens": tokens, "token_count": count, "language": language}
        scores, prior = network.score_tokens(batch)
        expected = evidence(scores, prior, network.align(batch))
        np.testing.assert_allclose(found.evidence[clip.id], expected.numpy()[0], atol=1e-4)
