"""The smallest corpora, batches larger than them, and utterances too long or short."""

import unittest

from pydantic import ValidationError

from myxtts.base.errors import DataError
from myxtts.batches.corpora import batch_exceeds_corpus_warning, load_corpora
from myxtts.config import schema
from myxtts.config.schema import Config, DataConfig, RunConfig, TrainingConfig
from myxtts.corpus.layouts import hold_out, read_corpus
from myxtts.tasks.registry import length_rule_of
from tests.fixtures import temporary_folder
from tests.sine_corpus import sine, write_sound

TRAINING_ONLY = RunConfig(validate_every=0, sample_every=0)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        self.metadata = self.folder / "corpus.csv"

    def write(self, texts, seconds):
        lines = ["path,text"]
        for number, (text, length_s) in enumerate(zip(texts, seconds, strict=True)):
            write_sound(self.folder / f"u{number}.wav", sine(300, length_s))
            lines.append(f"u{number}.wav,{text}")
        self.metadata.write_text("\n".join(lines), encoding="utf-8")

    def load(self, run=TRAINING_ONLY, accumulation=1, replicas=1, **data):
        data = {"train_data": str(self.metadata), "text_frontend": "characters"} | data
        training = TrainingConfig(gradient_accumulation=accumulation)
        config = Config(data=DataConfig(**data), run=run, training=training)
        return load_corpora(config, self.folder / "run", length_rule_of(config), replicas=replicas)

    def held_out_alone_has_another_symbol(self):
        """Write five utterances, of which only the one that is held out has the letter q."""
        self.write("abcde", [1.0] * 5)
        held_out = hold_out(read_corpus(self.metadata, "en"), 0.05, 0)[1].rows
        self.assertEqual(len(held_out), 1)
        names = [f"u{number}.wav" for number in range(5)]
        self.write(["q" if name == held_out[0].audio else "a" for name in names], [1.0] * 5)


class HeldOut(Case):
    def test_one_utterance_trains_without_validation(self):
        self.write(["ab"], [1.0])
        corpus, held_out, _ = self.load()
        self.assertEqual((len(corpus.manifest), held_out), (1, None))

    def test_held_out_symbols_that_training_lacks_are_an_error_that_says_how_to_train(self):
        self.held_out_alone_has_another_symbol()
        found = r"the 1 of 5 utterances held out have symbols that the other 4 lack \(u\d\.wav: q\)"
        advice = "--validation-fraction 0 --validate-every 0 --sample-every 0"
        with self.assertRaisesRegex(DataError, f"{found}.* fewer than 30 utterances .*{advice}"):
            self.load(run=RunConfig())

    def test_held_out_symbols_that_training_lacks_are_a_warning_without_validation(self):
        self.held_out_alone_has_another_symbol()
        with self.assertLogs("myxtts.batches.corpora", "WARNING") as logs:
            corpus, held_out, _ = self.load()
        self.assertEqual((len(corpus.manifest), held_out), (4, None))
        self.assertIn("--validation-fraction 0 trains on all", logs.output[0])
        message = (self.folder / "run" / "rejected.csv").read_text()
        self.assertIn("symbol unknown to the training corpus", message)

    def test_another_fault_of_the_held_out_utterances_is_still_an_error(self):
        self.held_out_alone_has_another_symbol()
        for path in self.folder.glob("*.wav"):
            path.write_bytes(b"")
        with self.assertRaisesRegex(DataError, "5 empty file"):
            self.load()


class LargeBatches(Case):
    def setUp(self):
        super().setUp()
        self.write(["ab"] * 9, [1.0 + 0.1 * number for number in range(9)])

    def load_capped(self, **settings):
        """Return the plan, and the line that a run logs."""
        corpus, _, _ = self.load(validation_fraction=0.0, **settings)
        return corpus.plan, batch_exceeds_corpus_warning(corpus)

    def test_a_batch_has_no_more_rows_than_the_corpus_and_one_line_says_so(self):
        plan, line = self.load_capped(batch_size=4096)
        self.assertEqual(plan.shape(0)[0], 9)
        self.assertLess(plan.padding, 0.25)
        expected = "ask for 4096 utterances in a step, but the corpus has 9: each step is the whole"
        self.assertIn(expected, line)

    def test_replicas_and_accumulation_share_the_corpus(self):
        plan, line = self.load_capped(replicas=4, batch_size=8)
        self.assertEqual(plan.shape(0)[0], 3)
        self.assertIn("ask for 32 ", line)
        plan, line = self.load_capped(accumulation=8, batch_size=4)
        self.assertEqual((plan.shape(0)[0], plan.epoch(0).microbatches[0]), (4, 3))
        self.assertIn("ask for 32 ", line)

    def test_batch_seconds_are_capped_too(self):
        plan, line = self.load_capped(batch_seconds=8000.0)
        self.assertEqual(plan.batch_sizes.max(), 9)
        self.assertIn("the corpus has 9", line)

    def test_a_batch_that_fits_is_not_changed_and_not_mentioned(self):
        plan, line = self.load_capped(batch_size=9)
        self.assertEqual((plan.shape(0)[0], line), (9, ""))


class Lengths(Case):
    def rejection(self, seconds, **data):
        self.write(["ab"] * len(seconds), seconds)
        with self.assertRaises(DataError) as raised:
            self.load(validation_fraction=0.0, **data)
        return str(raised.exception)

    def test_lengths_beyond_a_limit_name_its_flag_and_are_rounded_away_from_it(self):
        for seconds, found in (
            (20.0002, "20.001 s, at most 20.0 s (--max-seconds)"),
            (0.29995, "0.299 s, at least 0.3 s (--min-seconds)"),
        ):
            self.assertIn(found, self.rejection([1.0, seconds]))

    def test_the_bounds_are_those_of_the_settings(self):
        low_s, high_s = schema.MIN_SECONDS, schema.MAX_SECONDS
        DataConfig(min_seconds=low_s, max_seconds=high_s)
        for beyond in ({"min_seconds": low_s - 0.01}, {"max_seconds": high_s + 0.01}):
            with self.assertRaises(ValidationError):
                DataConfig(**beyond)
