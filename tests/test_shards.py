"""A corpus in parts: disjoint, complete, alike; the same every time; and what a run makes of them."""

import csv
import tempfile
import unittest
from pathlib import Path

import numpy as np

from myxtts.config.schema import Config, DataConfig
from myxtts.data.dataset import load_corpora
from myxtts.errors import DataError
from myxtts.local_sgd.shards import assign, split_corpus
from tests.sine_corpus import sine, write_corpus, write_sound


class Assign(unittest.TestCase):
    def test_the_longest_of_each_turn_goes_to_the_part_with_the_least_audio(self):
        samples = np.array([50, 10, 40, 20, 30])  # sorted: 50 40 | 30 20 | 10
        part_of = assign(samples, np.zeros(5), np.zeros(5), 2)
        # 50 to 0, 40 to 1; then 1 has less: 30 to 1, 20 to 0; both have 70: 10 to 0
        self.assertEqual(part_of.tolist(), [0, 0, 1, 0, 1])

    def test_parts_differ_by_one_utterance_of_a_speaker_and_language_and_by_less_than_the_longest(self):
        random = np.random.default_rng(0)
        for parts in (2, 3, 7):
            samples = random.integers(1000, 90_000, 500)
            speaker, language = random.integers(0, 9, 500), random.integers(0, 3, 500)
            part_of = assign(samples, speaker, language, parts)
            for stratum in range(27):
                counts = np.bincount(part_of[speaker * 3 + language == stratum], minlength=parts)
                self.assertLessEqual(np.ptp(counts), 1)
            audio = np.bincount(part_of, weights=samples, minlength=parts)
            self.assertLess(np.ptp(audio), samples.max())

    def test_lengths_do_not_overflow(self):
        samples = np.full(4000, 2**20, np.int32)  # 4 * 2**30 in all
        audio = np.bincount(assign(samples, np.zeros(4000), np.zeros(4000), 3), weights=samples)
        self.assertLessEqual(np.ptp(audio), 2**20)


class Split(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        write_corpus(self.folder / "corpus", [0.4 + 0.01 * i for i in range(23)], speakers=3)

    def config(self, **data) -> Config:
        given = {"train_data": str(self.folder / "corpus/corpus.csv"), "text_frontend": "characters"}
        return Config(data=DataConfig(**given | data))

    def rows(self, path: Path) -> list[tuple[str, ...]]:
        with open(path, encoding="utf-8", newline="") as file:
            return [tuple(row.values()) for row in csv.DictReader(file)]

    def test_parts_are_disjoint_and_cover_what_is_not_held_out(self):
        config = self.config(validation_fraction=0.2)
        found = split_corpus(config, self.folder / "parts", 3)
        parts = [row for path in found.parts for row in self.rows(path)]
        self.assertEqual(len(parts), 18)
        self.assertEqual(sorted(parts), sorted(self.rows(found.train)))
        self.assertEqual(len({row[0] for row in parts} | {row[0] for row in self.rows(found.held_out)}), 23)
        corpus, held_out, _ = load_corpora(config, self.folder / "run")
        names = [{Path(path).name for path in one.manifest.paths} for one in (corpus, held_out)]
        self.assertEqual([{row[0] for row in self.rows(path)} for path in (found.train, found.held_out)], names)

    def test_the_same_corpus_gives_the_same_files_wherever_they_are_written(self):
        written = []
        for name in ("one", "elsewhere/two"):
            split_corpus(self.config(), self.folder / name, 2)
            written.append({path.name: path.read_bytes() for path in sorted((self.folder / name).glob("*.csv"))})
        self.assertEqual(*written)

    def test_a_run_reads_a_part_from_any_folder(self):
        parts = split_corpus(self.config(), self.folder / "elsewhere", 2)
        fields = {"val_data": str(parts.held_out), "audio_root": str(parts.audio_root)}
        for path in parts.parts:
            part, held_out, _ = load_corpora(self.config(train_data=str(path), **fields), self.folder / "run")
            self.assertEqual(len(part.manifest), len(self.rows(path)))
            self.assertEqual(len(held_out.manifest), len(self.rows(parts.held_out)))
        again = self.config(train_data=str(parts.train), validation_fraction=0.0, audio_root=str(parts.audio_root))
        self.assertEqual(self.rows(split_corpus(again, self.folder / "again", 2).train), self.rows(parts.train))

    def test_texts_and_names_with_separators_quotes_and_other_letters_come_through(self):
        corpus = self.folder / "odd"
        (corpus / "wavs").mkdir(parents=True)
        texts = ['he said "no, no"', "a;b|c,d", "გამარჯობა", "one\ttwo"]
        for number, _ in enumerate(texts):
            write_sound(corpus / f"wavs/u, {number}.wav", sine(300, 1.0))
        with open(corpus / "list.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerows(
                [("path", "text", "speaker"), *((f"wavs/u, {i}.wav", t, "a,b") for i, t in enumerate(texts))]
            )
        found = split_corpus(self.config(train_data=str(corpus / "list.csv"), validation_fraction=0.0), corpus / "p", 2)
        rows = sorted(row for path in found.parts for row in self.rows(path))
        self.assertEqual(rows, [(f"wavs/u, {i}.wav", text, "a,b", "en") for i, text in enumerate(texts)])
        self.assertIsNone(found.held_out)

    def test_an_ljspeech_folder_is_split_as_well(self):
        corpus = self.folder / "lj"
        (corpus / "wavs").mkdir(parents=True)
        for name in "ab":
            write_sound(corpus / f"wavs/{name}.wav", sine(300, 1.0))
        (corpus / "metadata.csv").write_text("a|abc\nb|abd\n")
        found = split_corpus(self.config(train_data=str(corpus), validation_fraction=0.0), self.folder / "parts", 2)
        self.assertEqual(
            [self.rows(path)[0][:2] for path in found.parts], [("wavs/a.wav", "abc"), ("wavs/b.wav", "abd")]
        )

    def test_more_parts_than_utterances_are_refused(self):
        with self.assertRaisesRegex(DataError, "24 parts were asked for, but there are 22 usable utterances"):
            split_corpus(self.config(), self.folder / "parts", 24)

    def test_a_root_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(DataError, "--audio-root nowhere was given, but there is no such folder"):
            load_corpora(self.config(audio_root="nowhere"), self.folder / "run")


if __name__ == "__main__":
    unittest.main()
