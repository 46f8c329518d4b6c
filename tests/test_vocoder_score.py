"""Evaluation of a vocoder: the program with initial weights, and the summary of figures."""

import contextlib
import io
import json
import re
import unittest
from pathlib import Path
from unittest import mock

from myxtts.run.setup import run_record
from tests.two_devices import MODEL

# isort: split

import keras
import numpy as np
import soundfile

from myxtts.base.errors import ConfigError, DataError
from myxtts.batches.corpora import load_corpora
from myxtts.commands import evaluate
from myxtts.config.schema import Config
from myxtts.tasks.evaluation.evaluate import evaluate_run
from myxtts.tasks.evaluation.held_out import EvaluationOptions
from myxtts.tasks.evaluation.metrics import (
    SCORES,
    CopyMetrics,
    missing_packages,
    score_notes,
    with_common_scores,
)
from myxtts.tasks.registry import length_rule_of, task_of
from myxtts.tasks.vocoder.evaluation import medians, metrics_of_rows
from tests.fixtures import entered, temporary_folder
from tests.sine_corpus import sine, vowels, write_sound
from tests.tiny import replicas_on, save_checkpoint, training_state
from tests.tiny_vocoder import small_vocoders

SPEAKERS = ("s0", "s1")


def write_vowels(folder: Path, speakers=SPEAKERS, languages=("en",)) -> Path:
    """Write 4 utterances for each speaker and language, and a short one; return the metadata."""
    folder.mkdir()
    lines = ["path,speaker,language"]
    for number in range(4 * len(speakers) * len(languages)):
        write_sound(folder / f"u{number}.wav", vowels(0.8 + 0.05 * number), subtype="PCM_16")
        language = languages[number // len(speakers) % len(languages)]
        lines.append(f"u{number}.wav,{speakers[number % len(speakers)]},{language}")
    write_sound(folder / "short.wav", sine(200.0, 0.31), subtype="PCM_16")
    lines.append(f"short.wav,{speakers[0]},{languages[0]}")
    (folder / "corpus.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "corpus.csv"


def untrained_run(folder: Path, corpus: Path) -> Path:
    """Save the initial weights of the smallest vocoder as a run; a third is held out."""
    data = {"train_data": str(corpus), "validation_fraction": 0.34}
    config = Config(data=data, model={"task": "vocoder", "model_size": "tiny"})
    loaded, _, vocabulary = load_corpora(config, folder, length_rule_of(config))
    keras.utils.set_random_seed(0)
    with replicas_on(MODEL).scope():
        network = task_of(config).build(config, vocabulary)
    record = run_record(config, loaded, vocabulary, start="")
    save_checkpoint(folder, record, training_state(network))
    return folder


class VocoderEvaluation(unittest.TestCase):
    """The command on a run, and on another corpus of two languages and one more speaker."""

    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        for context in (small_vocoders(), mock.patch("myxtts.placement.devices.configure")):
            entered(cls.addClassCleanup, context)
        cls.run_folder = untrained_run(cls.folder / "vocoder", write_vowels(cls.folder / "train"))
        cls.table, cls.score = cls.evaluate("score.json", "--seeds", "0", "1")
        other = write_vowels(cls.folder / "other", ("s1", "new"), ("en", "ka"))
        cls.other_table, cls.other_score = cls.evaluate(
            "other.json", "--seeds", "5", "--data", str(other), "--utterances", "6"
        )

    @classmethod
    def evaluate(cls, name: str, *flags: str) -> tuple[str, dict]:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            evaluate.main(["--run", str(cls.run_folder), "--json", str(cls.folder / name), *flags])
        return output.getvalue(), json.loads((cls.folder / name).read_text(encoding="utf-8"))

    def test_the_table_has_the_vocoder_griffin_lim_and_the_recordings(self):
        self.assertIn("| metric | neural | Griffin-Lim | recordings | unit |", self.table)
        metrics = self.score["metrics"]
        self.assertAlmostEqual(metrics["pesq_wb"]["recordings"], 4.644, places=3)
        self.assertEqual(metrics["log_mel_error"]["recordings"], 0.0)
        # It is untrained: its mel is right, by the projections, and its phases are not.
        self.assertLess(metrics["pesq_wb"]["neural"], metrics["pesq_wb"]["griffin_lim"])
        self.assertGreater(metrics["real_time_factor"]["neural"], 0.0)
        self.assertIsNone(metrics["real_time_factor"]["recordings"])

    def test_the_seeds_and_the_cores_are_named(self):
        self.assertIn("the median over the seeds 0, 1 of the mean over utterances", self.table)
        note = r"median of 6 times from mel to wave, one utterance at a time, on /.*, CPU cores: \d"
        self.assertRegex(self.table, note)
        self.assertEqual(self.score["seeds"], [0, 1])
        self.assertNotEqual(*self.score["by_seed"]["griffin_lim"])
        by_seed = [seed["log_mel_error"] for seed in self.score["by_seed"]["neural"]]
        error = self.score["metrics"]["log_mel_error"]["neural"]
        self.assertAlmostEqual(error, np.median(by_seed))

    def test_speakers_and_languages_have_rows_of_their_own(self):
        for group in ("en: ", "ka: ", "seen speakers: ", "unseen speakers: "):
            self.assertIn(f"| {group}PESQ-WB |", self.other_table)
        self.assertEqual(list(self.other_score["speakers"]), ["seen", "unseen"])
        note = r"- (\d+) utterances are of speakers seen in training, (\d+) of other"
        seen, unseen = map(int, re.search(note, self.other_table).groups())
        self.assertEqual(seen + unseen, self.other_score["utterances"])
        self.assertGreater(min(seen, unseen), 0)
        self.assertNotIn("seen speakers: ", self.table)

    def test_sounds_and_pictures_of_the_first_utterances_are_written(self):
        folder = self.run_folder / "evaluation" / "step-000000"
        self.assertEqual(len(list(folder.glob("*.png"))), 3)
        (copy,), (recording,) = (
            folder.glob(f"1-*.{column}.wav") for column in ("neural", "recordings")
        )
        self.assertEqual(soundfile.info(copy).frames, soundfile.info(recording).frames)

    def test_options_of_other_tasks_and_an_empty_corpus_are_rejected(self):
        options = EvaluationOptions(guidance=2.0, vocoder="griffin-lim")
        message = "--guidance, --vocoder was given, but .* is a vocoder, and only .* voice"
        with self.assertRaisesRegex(ConfigError, message):
            evaluate_run(self.run_folder, None, options)
        (self.folder / "empty").mkdir()
        with self.assertRaises(DataError):
            evaluate_run(self.run_folder, None, EvaluationOptions(data=self.folder / "empty"))


def copy_with(error: float, pesq_wb: float | None, stoi: float) -> CopyMetrics:
    scores = {"pesq_wb": pesq_wb, "stoi": stoi}
    log_f0 = np.array([[0.0, 0.0], [error, error]])
    return CopyMetrics(error, log_f0, np.array([True, False]), error, scores)


class SummaryTest(unittest.TestCase):
    def test_a_figure_is_the_median_over_seeds_of_the_mean_over_utterances(self):
        seeds = [[copy_with(error + more, None, 0.5) for more in (0, 2)] for error in (1, 7, 2)]
        metrics = metrics_of_rows({"neural": seeds}, range(2))
        self.assertEqual(metrics["log_mel_error"]["neural"], 3.0)  # of 2, 8 and 3
        self.assertEqual(metrics["voicing_error"]["neural"], 0.5)
        self.assertIsNone(metrics["pesq_wb"]["neural"])
        of_second = metrics_of_rows({"neural": seeds}, [1])
        self.assertEqual(of_second["mel_cepstral_distortion"]["neural"], 4.0)

    def test_medians_leave_out_what_is_not_measured(self):
        items = [{"a": value, "b": None} for value in (1.0, 2.0, 9.0, None)]
        self.assertEqual(medians(items), {"a": 2.0, "b": None})

    def test_an_utterance_without_a_score_in_one_column_has_it_in_none(self):
        columns = {
            "neural": [[copy_with(0.0, 2.0, 0.9), copy_with(0.0, None, 0.8)]],
            "griffin_lim": [[copy_with(0.0, 3.0, 0.9), copy_with(0.0, 4.0, 0.7)]],
        }
        (common,) = with_common_scores(columns)["griffin_lim"]
        expected = [{"pesq_wb": 3.0, "stoi": 0.9}, {"pesq_wb": None, "stoi": 0.7}]
        self.assertEqual([copy.scores for copy in common], expected)
        (note,) = score_notes(common)
        expected = "PESQ-WB is without 1 of 2 utterances: it needs 0.25 to 20 s with speech"
        self.assertIn(expected, note)

    def test_a_note_has_the_command_that_installs_what_is_missing(self):
        expected = "to measure PESQ-WB and STOI, install: pip install pesq pystoi"
        with mock.patch("myxtts.tasks.evaluation.metrics.find_spec", return_value=None):
            self.assertEqual(missing_packages(SCORES), [expected])
