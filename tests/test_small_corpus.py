"""The smallest corpora, batches larger than them, and utterances too long or short."""

import unittest

from pydantic import ValidationError

from myxtts.config.schema import (
    MAX_SECONDS,
    MIN_SECONDS,
    Config,
    DataConfig,
    RunConfig,
    TrainingConfig,
)
from myxtts.data.dataset import batch_exceeds_corpus_warning, load_corpora
from myxtts.data.metadata_file import hold_out, read_corpus
from myxtts.errors import DataError
from myxtts.tasks.length_rules import length_rule_of
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
        self.config = Config(data=DataConfig(**data), run=run, training=training)
        return load_corpora(
            self.config, self.folder / "run", length_rule_of(self.config), replicas=replicas
        )

    def held_out_alone_has_another_symbol(self):
        """Write five utterances, of which only the one that is held out has the letter q."""
        self.write("abcde", [1.0] * 5)
        held_out = hold_out(read_corpus(self.metadata, "en"), 0.05, 0)[1].rows
        self.assertEqual(len(held_out), 1)
        self.write(
            ["q" if f"u{number}.wav" == held_out[0].audio else "a" for number in range(5)],
            [1.0] * 5,
        )


class HeldOut(Case):
    def test_one_utterance_trains_without_validation(self):
        self.write(["ab"], [1.0])
        corpus, held_out, _ = self.load()
        self.assertEqual((len(corpus.manifest), held_out), (1, None))

    def test_held_out_symbols_that_training_lacks_are_an_error_that_says_how_to_train(self):
        self.held_out_alone_has_another_symbol()
        with self.assertRaises(DataError) as raised:
            self.load(run=RunConfig())
        message = str(raised.exception)
        self.assertRegex(
            message,
            r"the 1 of 5 utterances held out have symbols that the other 4 lack \(u\d\.wav: q\)",
        )
        self.assertIn("fewer than 30 utterances", message)
        self.assertIn("--validation-fraction 0 --validate-every 0 --sample-every 0", message)

    def test_held_out_symbols_that_training_lacks_are_a_warning_without_validation(self):
        self.held_out_alone_has_another_symbol()
        with self.assertLogs("myxtts.data.dataset", "WARNING") as logs:
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
        return corpus.plan, batch_exceeds_corpus_warning(corpus, self.config)

    def test_a_batch_has_no_more_rows_than_the_corpus_and_one_line_says_so(self):
        plan, line = self.load_capped(batch_size=4096)
        self.assertEqual(plan.shape(0)[0], 9)
        self.assertLess(plan.padding, 0.25)
        expected = (
            "--batch-size 4096 asks for 4096 utterances in a step, but the corpus has 9: each step"
            " is the whole "
        )
        self.assertEqual(line, expected + "corpus, in 1 x 9 rows")

    def test_replicas_share_the_corpus(self):
        plan, line = self.load_capped(replicas=4, batch_size=8)
        self.assertEqual(plan.shape(0)[0], 3)
        self.assertIn("--batch-size 8 x 4 replicas asks for 32", line)
        self.assertIn("in 1 x 3 rows of each replica", line)

    def test_accumulation_beyond_the_corpus_is_named(self):
        plan, line = self.load_capped(accumulation=8, batch_size=4)
        self.assertEqual((plan.shape(0)[0], plan.epoch(0).microbatches(0)), (4, 3))
        self.assertIn("--batch-size 4 x --gradient-accumulation 8 asks for 32", line)

    def test_batch_seconds_are_capped_too(self):
        plan, line = self.load_capped(batch_seconds=8000.0)
        self.assertEqual(plan.batch_sizes.max(), 9)
        self.assertIn("--batch-seconds 8000 asks for", line)

    def test_a_batch_that_fits_is_not_changed_and_not_mentioned(self):
        plan, line = self.load_capped(batch_size=9)
        self.assertEqual((plan.shape(0)[0], line), (9, ""))


class Lengths(Case):
    def rejection(self, seconds, **data):
        self.write(["ab"] * len(seconds), seconds)
        with self.assertRaises(DataError) as raised:
            self.load(validation_fraction=0.0, **data)
        return str(raised.exception)

    def test_too_long_utterances_name_the_flag_and_the_value_that_accepts_all(self):
        message = self.rejection([1.0, 2.2, 3.1], max_seconds=2.0)
        self.assertIn("2.200 s, at most 2.0 s (--max-seconds)", message)
        self.assertIn(
            "--max-seconds 4 accepts all that are too long; it may be up to 120. Fix", message
        )
        corpus, _, _ = self.load(validation_fraction=0.0, max_seconds=4.0, batch_size=2)
        self.assertEqual(len(corpus.manifest), 3)

    def test_utterances_beyond_the_upper_bound_are_to_be_split(self):
        message = self.rejection([1.0, 2.2, 121.0], max_seconds=2.0)
        self.assertIn(
            "--max-seconds 120, its upper bound, accepts 1 of the 2 that are too long; split",
            message,
        )

    def test_too_short_utterances_name_the_flag_and_the_value_that_accepts_all(self):
        message = self.rejection([0.25, 0.219, 1.0])
        self.assertIn("(--min-seconds)", message)
        self.assertIn("--min-seconds 0.21 accepts all that are too short.", message)

    def test_lengths_just_beyond_a_limit_are_rounded_away_from_it(self):
        message = self.rejection([1.0, 20.0002], max_seconds=20.0)
        self.assertIn("20.001 s, at most 20.0 s", message)
        self.assertIn("--max-seconds 21 accepts all", message)
        message = self.rejection([0.29995, 1.0])
        self.assertIn("0.299 s, at least 0.3 s", message)
        self.assertIn("--min-seconds 0.29 accepts all", message)

    def test_other_reasons_name_no_limit(self):
        self.write(["ab"] * 3, [1.0, 1.0, 30.0])
        for name in ("u0.wav", "u1.wav"):
            (self.folder / name).unlink()
        with self.assertRaises(DataError) as raised:
            self.load(validation_fraction=0.0)
        self.assertNotIn("accepts", str(raised.exception))

    def test_the_bounds_are_those_of_the_settings(self):
        DataConfig(min_seconds=MIN_SECONDS, max_seconds=MAX_SECONDS)
        for beyond in ({"min_seconds": MIN_SECONDS - 0.01}, {"max_seconds": MAX_SECONDS + 0.01}):
            with self.assertRaises(ValidationError):
                DataConfig(**beyond)


if __name__ == "__main__":
    unittest.main()
