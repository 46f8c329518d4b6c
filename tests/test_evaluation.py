"""Evaluation: metrics of signals with known answers, and a complete evaluation of a small run."""

import contextlib
import io
import json
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

from myxtts.training.runs import TrainedRun
from tests.fixtures import rewrite_state
from tests.two_devices import MODEL, TWO

# isort: split

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.mel import SILENCE
from myxtts.audio.vocoder import GriffinLim
from myxtts.commands import evaluate
from myxtts.config.schema import ModelConfig
from myxtts.errors import CheckpointError, ConfigError, DataError
from myxtts.evaluation.boundaries import Phoneme, plant_errors, planted_errors_note, word_spans
from myxtts.evaluation.evaluate import evaluate_run
from myxtts.evaluation.held_out import load_held_out, output_folder
from myxtts.evaluation.metrics import (
    MCD_FACTOR,
    MIN_UNMATCHED_S,
    AcousticFeatures,
    corpus_metrics,
    longest_unmatched_s,
    mel_cepstrum,
    utterance_metrics,
    warping_path,
)
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.speech import (
    SpeakerClassifier,
    acoustic_features,
    speaker_embedding,
    vocode_mels,
)
from myxtts.evaluation.table import METRICS, ColumnScore, Metrics, metrics_by_group
from myxtts.evaluation.tts import (
    COPY_METRICS,
    Column,
    column_metrics,
    override,
    score_in_run,
    score_tts,
    shuffle_texts,
)
from myxtts.models.xtts import SynthesisOptions
from myxtts.tasks.tts import synthesis_options
from myxtts.training.runs import RunFolder, VocoderChoice
from myxtts.training.setup import RunCorpora
from tests.fixtures import temporary_folder, working_in
from tests.tiny import SECONDS, arrays_of, cached_network, cached_networks, utterance, whole_run
from tests.tiny_asr import asr_run, cached_transcriber, cached_transcribers

TTS_SCORE = "myxtts.evaluation.tts"
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
    return acoustic_features([wave.astype(np.float32) for wave in waves], MODEL)


def metrics_of(
    recorded: AcousticFeatures, synthesized: AcousticFeatures
) -> dict[str, float | None]:
    return corpus_metrics([utterance_metrics(recorded, synthesized)])


class DistortionTest(unittest.TestCase):
    def test_a_wave_has_no_distance_from_itself(self):
        (sound,) = features(glide())
        self.assertEqual(
            metrics_of(sound, sound),
            {
                "mel_cepstral_distortion": 0.0,
                "log_f0_rmse": 0.0,
                "voicing_error": 0.0,
                "duration_ratio": 1.0,
                "duration_within_bounds": 1.0,
                "utterances_with_deletions": 0,
                "utterances_with_insertions": 0,
            },
        )

    def test_a_known_difference_of_one_coefficient_has_the_known_distortion(self):
        # c3 is 0.5 higher in all frames: log|H| gains 0.5 cos(3ω), and the distortion is 10√2/ln 10
        # · 0.5 dB.
        (sound,) = features(glide())
        ripple = 0.5 * np.cos(np.pi * 3 * (np.arange(80) + 0.5) / 80)
        rippled = AcousticFeatures(
            (sound.mel + ripple).astype(np.float32), sound.f0_hz, sound.voiced
        )
        difference = mel_cepstrum(rippled.mel) - mel_cepstrum(sound.mel)
        np.testing.assert_allclose(
            difference, np.eye(13)[[2]].repeat(len(sound.mel), 0) * 0.5, atol=1e-5
        )
        self.assertAlmostEqual(MCD_FACTOR * 0.5, 3.0709, places=4)
        self.assertAlmostEqual(
            MCD_FACTOR * np.linalg.norm(difference, axis=1).mean(), 3.0709, places=3
        )
        # Warping can only reduce it.
        self.assertLessEqual(utterance_metrics(sound, rippled).mcd_db, 3.0710)

    def test_distortion_over_all_coefficients_is_the_rms_difference_in_decibels(self):
        x, y = np.random.default_rng(0).normal(0, 1, (2, 1, 80))
        x, y = x - x.mean(), y - y.mean()
        decibels = 20 / np.log(10) * np.sqrt(np.mean((x - y) ** 2))
        self.assertAlmostEqual(
            MCD_FACTOR * np.linalg.norm(mel_cepstrum(x, 1, 79) - mel_cepstrum(y, 1, 79)), decibels
        )

    def test_distortion_does_not_depend_on_loudness(self):
        (sound,) = features(glide())
        louder = AcousticFeatures(sound.mel + np.float32(np.log(2)), sound.f0_hz, sound.voiced)
        self.assertAlmostEqual(utterance_metrics(sound, louder).mcd_db, 0.0, places=4)

    def test_a_stretched_copy_has_a_low_distortion_and_its_duration_ratio(self):
        sound, slow = features(glide(), glide(seconds=1.5))
        metrics = utterance_metrics(sound, slow)
        self.assertLess(metrics.mcd_db, 0.5)
        self.assertAlmostEqual(metrics.duration_ratio, 1.5, delta=0.02)

    def test_copy_synthesis_is_closer_than_noise_and_silence(self):
        random = np.random.default_rng(0)
        (sound,) = features(glide())
        copy, noise, silence = features(
            *vocode_mels(GriffinLim(), [sound.mel], MODEL),
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
        x, y = np.array([[0.0], [1.0], [5.0]]), np.array([[0.0], [0.0], [1.0], [5.0]])
        np.testing.assert_array_equal(warping_path(x, y), [[0, 0], [0, 1], [1, 2], [2, 3]])


class PitchErrorTest(unittest.TestCase):
    def test_a_semitone_is_a_twelfth_of_the_logarithm_of_two(self):
        (sound,) = features(glide())
        higher = AcousticFeatures(sound.mel, sound.f0_hz * 2 ** (1 / 12), sound.voiced)
        self.assertAlmostEqual(metrics_of(sound, higher)["log_f0_rmse"], np.log(2) / 12, places=5)

    def test_a_wave_a_semitone_higher_has_that_error(self):
        sound, higher = features(glide(swing_hz=0.0), glide(semitones=1.0, swing_hz=0.0))
        self.assertAlmostEqual(
            metrics_of(sound, higher)["log_f0_rmse"], np.log(2) / 12, delta=0.002
        )

    def test_voicing_error_is_the_fraction_of_pairs_that_differ(self):
        mel = np.random.default_rng(0).normal(-5, 2, (4, 80)).astype(np.float32)
        voiced = np.array([True, True, False, False])
        shifted = np.array([True, False, True, False])
        first, second = (
            AcousticFeatures(mel, np.where(v, 100.0, 0.0), v) for v in (voiced, shifted)
        )
        self.assertEqual(metrics_of(first, second)["voicing_error"], 0.5)
        self.assertEqual(len(utterance_metrics(first, second).log_f0_errors), 1)

    def test_durations_outside_the_bounds_are_counted(self):
        mel = np.full((100, 80), SILENCE, np.float32)
        sounds = [AcousticFeatures(mel[:n], np.zeros(n), np.zeros(n, bool)) for n in (100, 96, 94)]
        metrics = corpus_metrics([utterance_metrics(sounds[0], sound) for sound in sounds])
        self.assertAlmostEqual(metrics["duration_ratio"], (1 + 0.96 + 0.94) / 3)
        self.assertAlmostEqual(metrics["duration_within_bounds"], 2 / 3)


class SpeakerTest(unittest.TestCase):
    def test_three_speakers_are_distinguished(self):
        random = np.random.default_rng(0)
        timbre = random.normal(0, 1, (3, 80))
        mels = [
            (timbre[i % 3] + random.normal(-5, 1, (50, 80))).astype(np.float32) for i in range(18)
        ]
        speakers = np.arange(18) % 3 + 4
        embeddings = np.stack([speaker_embedding(mel) for mel in mels])
        classifier = SpeakerClassifier(embeddings[:12], speakers[:12])
        self.assertEqual(classifier.accuracy(mels[12:], speakers[12:]), 1.0)
        self.assertEqual(classifier.accuracy(mels[12:], np.roll(speakers[12:], 1)), 0.0)


class DeletionInsertionTest(unittest.TestCase):
    """Ten vowels of 0.1 s with different timbres; the recording has each vowel once."""

    @classmethod
    def setUpClass(cls):
        random = np.random.default_rng(0)
        cls.vowels = (
            random.normal(0, 1.5, (10, 1, 80)) - 5 + random.normal(0, 0.1, (10, 9, 80))
        ).astype(np.float32)
        cls.recorded = cls.sound(cls.vowels)

    @staticmethod
    def sound(vowels) -> AcousticFeatures:
        mel = np.concatenate(list(vowels))
        return AcousticFeatures(mel, np.zeros(len(mel)), np.zeros(len(mel), bool))

    def errors(self, vowels) -> tuple[bool, bool]:
        metrics = utterance_metrics(self.recorded, self.sound(vowels))
        return metrics.has_deletion, metrics.has_insertion

    def test_a_missing_vowel_is_a_deletion_and_a_doubled_vowel_an_insertion(self):
        self.assertEqual(self.errors(self.vowels), (False, False))
        self.assertEqual(self.errors(np.delete(self.vowels, 4, axis=0)), (True, False))
        self.assertEqual(
            self.errors([*self.vowels[:5], self.vowels[3], *self.vowels[4:]]), (False, True)
        )

    def test_longer_and_shorter_vowels_are_neither_deletions_nor_insertions(self):
        shorter = [vowel[: 4 + 5 * (number % 2)] for number, vowel in enumerate(self.vowels)]
        longer = [
            np.repeat(vowel, 1 + number % 2, axis=0) for number, vowel in enumerate(self.vowels)
        ]
        self.assertEqual(self.errors(shorter), (False, False))
        self.assertEqual(self.errors(longer), (False, False))

    def test_a_missing_pause_is_not_a_deletion(self):
        pause = np.full((30, 80), SILENCE, np.float32)
        with_pause = self.sound([*self.vowels[:5], pause, *self.vowels[5:]])
        self.assertLess(
            utterance_metrics(with_pause, self.recorded).deleted_s, MIN_UNMATCHED_S / 10
        )
        self.assertLess(
            utterance_metrics(self.recorded, with_pause).inserted_s, MIN_UNMATCHED_S / 10
        )

    def test_the_longest_unmatched_stretch_has_the_known_length(self):
        # Frames 1 and 2 of the first have no counterpart, at 30 dB and 3 dB from their match; frame
        # 3 is silent.
        path = np.array([[0, 0], [1, 0], [2, 0], [3, 0], [4, 1]])
        distortion_db = np.array([2.0, 30.0, 3.0, 30.0, 2.0])
        loud = np.array([True, True, True, False, True])
        self.assertAlmostEqual(
            longest_unmatched_s(path, distortion_db, loud), 1.5 * HOP_SAMPLES / SAMPLE_RATE_HZ
        )
        self.assertEqual(longest_unmatched_s(path[:, ::-1], distortion_db, loud), 0.0)

    def test_planted_errors_delete_and_insert_a_word_at_its_time(self):
        wave = np.repeat(np.float32([0, 1, 0, 2, 0]), SAMPLE_RATE_HZ // 10)
        phonemes = [
            Phoneme(*span)
            for span in (("", 0, 0.1), ("a", 0.1, 0.2), (" ", 0.2, 0.3), ("e", 0.3, 0.4))
        ]
        self.assertEqual(word_spans(phonemes), [(0.1, 0.2), (0.3, 0.4)])
        (deleted,), (inserted,) = plant_errors([wave], [phonemes])
        word = next(level for level in (1, 2) if level not in deleted)
        self.assertEqual(len(wave) - len(deleted), SAMPLE_RATE_HZ // 10)
        self.assertEqual(np.count_nonzero(inserted == word), 2 * np.count_nonzero(wave == word))

    def test_utterances_without_words_are_left_out(self):
        utterances = [
            utterance(name, np.zeros(0, int), np.arange(10)) for name in ("x.wav", "y.wav")
        ]
        wave = glide(seconds=0.5)
        recorded = features(wave, wave)
        alignments = {
            "x": [Phoneme("", 0.0, 0.5)],
            "y": [Phoneme("", 0.0, 0.1), Phoneme("a", 0.1, 0.3)],
        }
        note = planted_errors_note(utterances, recorded, [wave] * 2, alignments, MODEL)
        self.assertIn("of 1 copies with a word deleted", note)
        alignments["y"] = []
        self.assertIn(
            "is not tested",
            planted_errors_note(utterances, recorded, [wave] * 2, alignments, MODEL),
        )


class ColumnScoreTest(unittest.TestCase):
    def test_fractions_are_percentages_in_the_table_only(self):
        columns = ("synthesized", "copy_synthesis", "shuffled_texts")
        metrics = {"voicing_error": {"synthesized": 0.125, "copy_synthesis": 0.0625}}
        groups = {
            "languages": {
                "ka": {"utterances_with_deletions": {"synthesized": 3, "copy_synthesis": 0}}
            }
        }
        score = ColumnScore("runs/x", "step-000001", 2, columns, metrics, groups, ("a note",))
        self.assertIn("| voicing error | 12.5 | 6.2 | – | % |", score.table())
        self.assertIn("| ka: utterances with deletions | 3 | 0 | – | count |", score.table())
        self.assertIn("- a note", score.table())
        self.assertEqual(
            score.to_json()["metrics"]["voicing_error"],
            {
                "synthesized": 0.125,
                "copy_synthesis": 0.0625,
                "shuffled_texts": None,
                "unit": "fraction",
            },
        )
        self.assertEqual(
            score.to_json()["languages"]["ka"]["utterances_with_deletions"]["unit"], "count"
        )


class ColumnMetricsTest(unittest.TestCase):
    """Two utterances in two languages; the second is transcribed with a wrong letter of four."""

    @classmethod
    def setUpClass(cls):
        cls.recorded = features(glide(seconds=0.5), glide(seconds=0.4))
        cls.hypotheses = {
            "synthesized": ["ab", "abcx"],
            "copy_synthesis": ["ab", "abcd"],
            "shuffled_texts": ["abcd", "ab"],
        }

    def measure(self, rows) -> Metrics:
        columns = {name: self.column(texts) for name, texts in self.hypotheses.items()}
        return column_metrics(rows, columns, {}, ["ab", "abcd"])

    def column(self, texts=()) -> Column:
        return Column([], self.recorded, [utterance_metrics(of, of) for of in self.recorded], texts)

    def test_each_column_is_compared_with_the_references(self):
        metrics = self.measure([0, 1])
        self.assertEqual(list(metrics["character_error_rate"].values()), [1 / 6, 0.0, 4 / 6])
        self.assertEqual(list(metrics["word_error_rate"].values()), [1 / 2, 0.0, 1.0])
        self.assertEqual(metrics["mel_cepstral_distortion"]["synthesized"], 0.0)

    def test_each_language_has_its_own_metrics(self):
        by_language = metrics_by_group(("ka", "en"), self.measure)
        self.assertEqual(list(by_language), ["en", "ka"])
        self.assertEqual(by_language["ka"]["character_error_rate"]["synthesized"], 0.0)
        self.assertEqual(by_language["en"]["character_error_rate"]["synthesized"], 1 / 4)
        self.assertEqual(metrics_by_group(("ka",), self.measure), {})

    def test_without_a_recogniser_there_are_no_error_rates(self):
        columns = dict.fromkeys(("synthesized", "copy_synthesis"), self.column())
        self.assertNotIn("character_error_rate", column_metrics([0], columns, {}, []))


class CompleteEvaluation(unittest.TestCase):
    """A complete run on 13 sinusoids of two speakers, 3 of them held out."""

    @classmethod
    def setUpClass(cls):
        cls.workspace, cls.run_folder = whole_run().workspace, whole_run().folder
        cls.plots = temporary_folder(cls.addClassCleanup) / "plots"
        cls.checkpoint = TrainedRun.open(cls.run_folder).checkpoint.path
        cls.score = cls.measure(asr_run=asr_run().folder)

    @classmethod
    def measure(cls, run: Path | None = None, plots: Path | None = None, **options) -> ColumnScore:
        run, plots = run or cls.run_folder, plots or cls.plots
        with (
            cached_networks(),
            cached_transcribers("myxtts.evaluation.tts"),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            evaluation_options = EvaluationOptions(**{"ode_steps": 1, **options})
            return score_tts(TrainedRun.open(run), evaluation_options, TWO.routes[0], plots)

    def copy_run(self, name: str) -> Path:
        return self.workspace.copy_run("whole", name, self.addCleanup)

    def test_every_metric_is_present_and_finite(self):
        expected = {
            key for key in METRICS if not key.startswith(("boundary", "speaker_accuracy_unseen"))
        }
        self.assertEqual(set(self.score.metrics), expected)
        self.assertEqual(
            (self.score.utterances, self.score.checkpoint),
            (round(0.25 * len(SECONDS)), self.checkpoint.name),
        )
        for key, metric in self.score.metrics.items():
            # An untrained network may synthesize no voiced frame, and sinusoids are no speech.
            if key not in ("log_f0_rmse", "pesq_wb", "stoi"):
                column = "copy_synthesis" if key in COPY_METRICS else "synthesized"
                self.assertTrue(np.isfinite(metric[column]), key)
        self.assertTrue(json.loads(json.dumps(self.score.to_json())))

    def test_copy_synthesis_is_better_than_an_untrained_network(self):
        distortion = self.score.metrics["mel_cepstral_distortion"]
        self.assertLess(distortion["copy_synthesis"], distortion["synthesized"])
        self.assertLess(distortion["copy_synthesis"], distortion["shuffled_texts"])
        self.assertEqual(self.score.metrics["duration_within_bounds"]["copy_synthesis"], 1.0)
        self.assertEqual(self.score.metrics["mel_cepstral_distortion_ratio"]["copy_synthesis"], 1.0)

    def test_notes_name_the_recogniser_and_its_bias(self):
        table = self.score.table()
        self.assertIn("| character error rate, by the recogniser | ", table)
        self.assertRegex(
            table,
            r"the recogniser is .*asr, step-000000; on the recordings .* of \d+\.\d% and a word",
        )
        self.assertIn("its error rates are optimistic", table)

    def test_a_tts_run_as_recogniser_is_rejected(self):
        options = EvaluationOptions(asr_run=self.run_folder)
        with (
            cached_networks(),
            self.assertRaisesRegex(CheckpointError, "Give a run that was trained with --task asr"),
        ):
            score_tts(
                TrainedRun.open(self.run_folder),
                options,
                TWO.routes[0],
                self.plots.with_name("refused"),
            )

    def test_a_language_unknown_to_the_recogniser_is_rejected_before_synthesis(self):
        run = asr_run().folder
        transcriber = cached_transcriber(run)
        foreign = replace(transcriber.vocabulary, languages=("ka",))
        with (
            mock.patch.object(transcriber, "vocabulary", foreign),
            mock.patch("myxtts.evaluation.tts.predict_mels") as synthesis,
            self.assertRaisesRegex(
                DataError, "the text has language 'en', but .*asr was trained on ka"
            ),
        ):
            self.measure(asr_run=run, plots=self.plots.with_name("foreign"))
        synthesis.assert_not_called()

    def test_an_asr_run_is_measured_by_error_rates(self):
        run, file = asr_run().folder, self.plots.with_name("rates.json")
        with (
            cached_transcribers("myxtts.evaluation.asr"),
            # This process has configured its devices.
            mock.patch("myxtts.placement.devices.configure"),
            contextlib.redirect_stdout(io.StringIO()) as output,
        ):
            evaluate.main(["--run", str(run), "--json", str(file), "--utterances", "2"])
        self.assertIn("| all | 2 |", output.getvalue())
        self.assertEqual(json.loads(file.read_text(encoding="utf-8"))["checkpoint"], "step-000000")
        with self.assertRaisesRegex(
            ConfigError, "--ode-steps, --asr was given, but .* is a recogniser"
        ):
            evaluate_run(run, None, EvaluationOptions(ode_steps=4, asr_run=run))

    def test_plots_are_written(self):
        names = sorted(path.name for path in self.plots.iterdir())
        self.assertEqual(len(names), 6)
        self.assertTrue(names[0].startswith("1-u") and names[0].endswith("-f0.png"), names)

    def test_a_second_evaluation_has_the_same_metrics(self):
        again = self.measure().metrics
        del again["real_time_factor"]
        self.assertEqual(again, {key: again[key] and self.score.metrics[key] for key in again})

    def test_a_single_utterance_has_no_shuffled_texts(self):
        score = self.measure(utterances=1)
        self.assertIsNone(score.to_json()["metrics"]["mel_cepstral_distortion"]["shuffled_texts"])
        self.assertIn("shuffled texts are left out", score.table())

    def test_beside_a_trained_vocoder_griffin_lim_has_columns_of_its_own(self):
        one_iteration = GriffinLim(1)  # in place of a trained vocoder
        with (
            mock.patch.object(
                TrainedRun, "select_vocoder", return_value=VocoderChoice(mock.sentinel.run)
            ),
            mock.patch.object(VocoderChoice, "load", return_value=one_iteration),
        ):
            score = self.measure(utterances=2)
        self.assertEqual(
            score.columns[3:], ("synthesized_griffin_lim", "copy_synthesis_griffin_lim")
        )
        error = score.metrics["log_mel_error"]
        self.assertGreater(error["copy_synthesis"], error["copy_synthesis_griffin_lim"])
        self.assertIsNone(error["synthesized"])  # whose frames are of other times
        ratio = score.metrics["mel_cepstral_distortion_ratio"]
        self.assertEqual((ratio["copy_synthesis"], ratio["copy_synthesis_griffin_lim"]), (1.0, 1.0))
        self.assertEqual(
            list(score.metrics["real_time_factor"]), ["synthesized", "synthesized_griffin_lim"]
        )
        self.assertIn(
            "by Griffin-Lim, 1 iterations, and in columns of their own by Griffin-Lim, 30",
            score.table(),
        )

    def test_scores_in_a_run_are_measured_in_another_thread_and_are_those_of_evaluate(self):
        trained = TrainedRun.open(self.run_folder)
        measured = load_held_out(trained, self.run_folder)
        config = measured.config
        run = config.run.model_copy(
            update={"evaluate_every": 1, "evaluate_asr": str(asr_run().folder)}
        )
        config = config.model_copy(
            update={"run": run, "model": config.model.model_copy(update={"ode_steps": 1})}
        )
        corpora = RunCorpora(
            mock.Mock(), mock.Mock(manifest=measured.manifest), mock.Mock(), self.run_folder
        )
        setup = mock.Mock(config=config, corpora=corpora, record=trained.record)
        network, batches = cached_network(self.checkpoint, MODEL), []
        with cached_transcribers(TTS_SCORE):
            score_weights = score_in_run(
                setup, network, MODEL, RunFolder(self.run_folder), GriffinLim
            )
        # Nothing is traced there.
        with mock.patch(TRACE, side_effect=AssertionError("traced")), ThreadPoolExecutor(1) as pool:
            score = pool.submit(
                score_weights, self.checkpoint.name, lambda: batches.append(None)
            ).result()
        # Each synthesis, wave and comparison.
        self.assertGreater(len(batches), 3 * len(score.columns))
        self.assertEqual(score.columns, ("synthesized", "copy_synthesis"))
        for key, metric in score.metrics.items():
            for column in score.columns:
                self.assertEqual(
                    metric.get(column), self.score.metrics[key].get(column), (key, column)
                )
        missing = {"real_time_factor", "speaker_accuracy_seen", "pesq_wb", "stoi"}
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
            ("that is a file", {"out": self.run_folder / "config.yaml"}),
        ):
            with self.assertRaisesRegex(ConfigError, message):
                evaluate_run(self.run_folder, None, EvaluationOptions(**options))

    def test_a_changed_corpus_is_rejected(self):
        text = self.workspace.corpus.read_text(encoding="utf-8")
        self.addCleanup(self.workspace.corpus.write_text, text, encoding="utf-8")
        self.workspace.corpus.write_text(text.replace("abc,", "cba,"), encoding="utf-8")
        with self.assertRaisesRegex(CheckpointError, "another corpus"):
            self.measure(self.copy_run("changed"))

    def test_changed_held_out_utterances_are_rejected(self):
        manifest = load_held_out(TrainedRun.open(self.run_folder), self.run_folder).manifest
        text = self.workspace.corpus.read_text(encoding="utf-8")
        row = next(
            line for line in text.splitlines() if line.startswith(Path(manifest.paths[0]).name)
        )
        path, said, speaker = row.split(",")
        self.addCleanup(self.workspace.corpus.write_text, text, encoding="utf-8")
        self.workspace.corpus.write_text(
            text.replace(row, f"{path},{said}a,{speaker}"), encoding="utf-8"
        )
        with self.assertRaisesRegex(CheckpointError, "was validated on have changed since"):
            self.measure(self.copy_run("changed_held_out"))

    def test_speakers_who_are_only_held_out_are_known_by_name(self):
        """A merged run keeps the speakers of its inputs, and may be validated on another corpus."""
        others = self.workspace.corpus.with_name("unseen.csv")
        others.write_text("path,text,speaker\nu0.wav,ab,unseen\nu1.wav,abc,s1\n", encoding="utf-8")
        run = self.copy_run("merged")
        self.rewrite(
            run, lambda settings: settings["data"].update(val_data=str(others)), corpus=None
        )
        measured = load_held_out(TrainedRun.open(run), run)
        names = [measured.vocabulary.speakers[speaker] for speaker in measured.manifest.speaker]
        self.assertEqual(sorted(names), ["s1", "unseen"])

    def test_a_missing_demo_corpus_is_named_and_not_made(self):
        run = self.copy_run("demo")
        self.rewrite(run, lambda settings: settings["data"].update(train_data=None))
        folder = temporary_folder(self.addCleanup)
        with working_in(folder):
            with self.assertRaisesRegex(
                DataError, "was trained on data/demo, which does not exist under"
            ):
                load_held_out(TrainedRun.open(run), run)
            self.assertEqual(list(folder.iterdir()), [])

    def test_each_corpus_has_a_folder_of_its_own(self):
        root = temporary_folder(self.addCleanup)
        tables = [root / name / "test" / "metadata.csv" for name in ("ljs", "vctk")]
        for table in tables:
            table.parent.mkdir(parents=True)
            table.touch()
        folders = [
            output_folder(Path("run"), Path("step-000005"), EvaluationOptions(data=data))
            for data in (*tables, *(table.parent for table in tables))
        ]
        ends = ["ljs-test-metadata", "vctk-test-metadata", "ljs-test", "vctk-test"]
        self.assertEqual(folders, [Path(f"run/evaluation/step-000005-{end}") for end in ends])

    def test_a_missing_corpus_is_named(self):
        away = self.workspace.corpus.with_name("elsewhere.csv")
        self.workspace.corpus.rename(away)
        self.addCleanup(away.rename, self.workspace.corpus)
        with self.assertRaisesRegex(DataError, "does not exist under"):
            self.measure(self.copy_run("gone"))

    def test_a_run_without_held_out_utterances_is_rejected(self):
        run = self.copy_run("all")
        self.rewrite(
            run, lambda settings: settings["data"].update(validation_fraction=0.0), corpus=None
        )
        with self.assertRaisesRegex(DataError, "held none out"):
            self.measure(run)

    def test_another_corpus_is_measured_and_its_speakers_are_unseen(self):
        lines = self.workspace.corpus.read_text(encoding="utf-8").splitlines()
        speaker = lines[0].split(",").index("speaker")
        rows = [line.split(",") for line in lines[1:7]]
        others = [
            [*row[:speaker], f"new-{number % 2}", *row[speaker + 1 :]]
            for number, row in enumerate(rows)
        ]
        file = self.workspace.corpus.with_name("others.csv")
        file.write_text("\n".join([lines[0], *map(",".join, others)]), encoding="utf-8")
        score = self.measure(plots=self.plots.with_name("others"), data=file, utterances=2)
        self.assertEqual(score.utterances, 2)
        self.assertIn(f"2 utterances of {file}", score.notes[0])
        self.assertIn("speaker_accuracy_unseen", score.metrics)
        self.assertNotIn("speaker_accuracy_seen", score.metrics)
        self.assertIn("among 4 speakers (chance 25.0%)", score.table())
        with self.assertRaisesRegex(DataError, "does not exist"):
            self.measure(data=file.with_name("nowhere"))
        file.write_text(
            "\n".join([lines[0], *map(",".join, others)]).replace("abc", "xyz"), encoding="utf-8"
        )
        with self.assertRaisesRegex(DataError, "symbol unknown to the training corpus"):
            self.measure(plots=self.plots.with_name("unknown"), data=file)

    def test_ode_steps_and_guidance_default_to_those_of_the_run(self):
        run_options = synthesis_options(ModelConfig(ode_steps=5, guidance=2.0))
        self.assertEqual(
            override(run_options, EvaluationOptions()), SynthesisOptions(ode_steps=5, guidance=2.0)
        )
        given = EvaluationOptions(ode_steps=3, guidance=1.0)
        self.assertEqual(override(run_options, given), SynthesisOptions(ode_steps=3, guidance=1.0))

    def test_flags_out_of_bounds_are_rejected(self):
        for flag, value in (
            *(
                ("--ode-steps", "0"),
                ("--ode-steps", "1001"),
                ("--guidance", "-1"),
                ("--guidance", "11"),
            ),
            *(("--guidance", "nan"), ("--utterances", "0")),
        ):
            with self.subTest(flag=flag, value=value), self.assertRaises(ConfigError):
                evaluate.parse(["--run", "x", flag, value])

    def test_an_audio_root_without_a_corpus_is_rejected(self):
        with self.assertRaisesRegex(ConfigError, "there is no --data"):
            evaluate.main(["--run", "x", "--audio-root", "x"])

    def test_settings_of_another_version_are_named(self):
        run = self.copy_run("other")
        self.rewrite(run, lambda settings: settings["data"].update(echo=1))
        with self.assertRaisesRegex(CheckpointError, "data.echo"):
            self.measure(run)

    @staticmethod
    def rewrite(run: Path, change, **metadata) -> None:
        """Change the settings in the checkpoint of a run, and the rest of its metadata."""

        def change_all(state: dict) -> None:
            state.update(metadata)
            change(state["settings"])

        rewrite_state(TrainedRun.open(run).checkpoint.path, change_all)


class ShuffledTextsTest(unittest.TestCase):
    def test_every_utterance_gets_another_text_of_its_language_if_possible(self):
        class Named:
            def __init__(self, name: str, language: int):
                self.name, self.language = name, language

        for languages, of_same_language in (
            ((0, 1, 0, 0, 1), 5),
            ((0, 1, 2, 0), 2),
            ((0, 0, 1), 2),
            ((0, 1, 2), 0),
        ):
            with self.subTest(languages=languages):
                utterances = [
                    Named("abcde"[number], language) for number, language in enumerate(languages)
                ]
                pairs = list(zip(utterances, shuffle_texts(utterances), strict=True))
                self.assertTrue(all(utterance.name != source.name for utterance, source in pairs))
                equal = sum(utterance.language == source.language for utterance, source in pairs)
                self.assertEqual(equal, of_same_language)


if __name__ == "__main__":
    unittest.main()
