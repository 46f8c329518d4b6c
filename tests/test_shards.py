"""Shards of a corpus: disjoint, complete, balanced, reproducible, and readable as a corpus."""

import csv
import io
import unittest
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np

from myxtts.commands import shard
from myxtts.config.schema import Config, DataConfig, TeacherConfig
from myxtts.data.dataset import load_corpora
from myxtts.data.manifest import LengthRule
from myxtts.errors import DataError
from myxtts.local_sgd.shards import assign_shards, split_corpus
from tests.fixtures import temporary_folder
from tests.sine_corpus import sine, write_corpus, write_sound


class Assign(unittest.TestCase):
    def test_the_longest_of_each_group_goes_to_the_shard_with_the_least_audio(self):
        samples = np.array([50, 10, 40, 20, 30])  # sorted: 50 40 | 30 20 | 10
        shard_of = assign_shards(samples, np.zeros(5), np.zeros(5), 2)
        # 50 to 0, 40 to 1; then 1 has less: 30 to 1, 20 to 0; both have 70: 10 to 0
        self.assertEqual(shard_of.tolist(), [0, 0, 1, 0, 1])

    def test_shards_are_balanced_by_speaker_language_and_audio(self):
        random = np.random.default_rng(0)
        for count in (2, 3, 7):
            samples = random.integers(1000, 90_000, 500)
            speaker, language = random.integers(0, 9, 500), random.integers(0, 3, 500)
            shard_of = assign_shards(samples, speaker, language, count)
            for stratum in range(27):
                counts = np.bincount(shard_of[speaker * 3 + language == stratum], minlength=count)
                self.assertLessEqual(np.ptp(counts), 1)
            audio = np.bincount(shard_of, weights=samples, minlength=count)
            self.assertLess(np.ptp(audio), samples.max())

    def test_lengths_do_not_overflow(self):
        samples = np.full(4000, 2**20, np.int32)  # 4 * 2**30 in total
        audio = np.bincount(
            assign_shards(samples, np.zeros(4000), np.zeros(4000), 3), weights=samples
        )
        self.assertLessEqual(np.ptp(audio), 2**20)


class Split(unittest.TestCase):
    def test_texts_held_out_with_symbols_of_their_own_are_left_out(self):
        """There is no run whose validation would need them."""
        corpus = self.folder / "corpus/corpus.csv"
        lines = corpus.read_text(encoding="utf-8").splitlines()
        rare = [
            line.replace(",", f",{chr(0x10D0 + number)}", 1)
            for number, line in enumerate(lines[1:])
        ]
        corpus.write_text("\n".join([lines[0], *rare]) + "\n", encoding="utf-8")
        with redirect_stdout(io.StringIO()) as out:
            code = shard.main(
                [
                    "--input",
                    str(corpus),
                    "--out",
                    str(self.folder / "out"),
                    "--validation-fraction=0.1",
                ]
            )
        self.assertEqual(code, 0)
        self.assertIn("--validate-every 0", out.getvalue())

    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        write_corpus(self.folder / "corpus", [0.4 + 0.01 * i for i in range(23)], speakers=3)

    def config(self, **data) -> Config:
        given = {
            "train_data": str(self.folder / "corpus/corpus.csv"),
            "text_frontend": "characters",
        }
        return Config(data=DataConfig(**given | data))

    def rows(self, path: Path) -> list[tuple[str, ...]]:
        with open(path, encoding="utf-8", newline="") as file:
            return [tuple(row.values()) for row in csv.DictReader(file)]

    def test_shards_are_disjoint_and_cover_all_but_the_held_out_rows(self):
        config = self.config(validation_fraction=0.2)
        corpus_shards = split_corpus(config, self.folder / "shards", 3)
        rows = [row for path in corpus_shards.shards for row in self.rows(path)]
        self.assertEqual(len(rows), 18)
        self.assertEqual(sorted(rows), sorted(self.rows(corpus_shards.train)))
        self.assertEqual(
            len({row[0] for row in rows} | {row[0] for row in self.rows(corpus_shards.held_out)}),
            23,
        )
        corpus, held_out, _ = load_corpora(config, self.folder / "run", LengthRule())
        names = [{Path(path).name for path in part.manifest.paths} for part in (corpus, held_out)]
        self.assertEqual(
            [
                {row[0] for row in self.rows(path)}
                for path in (corpus_shards.train, corpus_shards.held_out)
            ],
            names,
        )

    def test_texts_of_a_teacher_are_not_read(self):
        teacher = TeacherConfig(teacher="runs/voice", texts="missing.txt")
        config = self.config().model_copy(update={"teacher": teacher})
        self.assertEqual(
            self.rows(split_corpus(config, self.folder / "taught", 2).train),
            self.rows(split_corpus(self.config(), self.folder / "plain", 2).train),
        )

    def test_files_that_are_no_shards_are_never_replaced(self):
        corpus = self.folder / "corpus" / "corpus.csv"
        table = corpus.rename(corpus.with_name("train.csv"))
        content = table.read_bytes()
        with self.assertRaisesRegex(DataError, "train.csv there is the corpus itself"):
            split_corpus(self.config(train_data=str(table)), table.parent, 2)
        other = self.folder / "other"
        other.mkdir()
        (other / "held_out.csv").write_text("of somebody else")
        with self.assertRaisesRegex(DataError, "held_out.csv there is not of an earlier split"):
            split_corpus(self.config(train_data=str(table)), other, 2)
        actual = (table.read_bytes(), (other / "held_out.csv").read_text())
        self.assertEqual(actual, (content, "of somebody else"))

    def test_a_second_split_leaves_no_held_out_rows_of_the_first(self):
        self.assertIsNotNone(
            split_corpus(self.config(validation_fraction=0.2), self.folder / "shards", 2).held_out
        )
        self.assertIsNone(
            split_corpus(self.config(validation_fraction=0.0), self.folder / "shards", 2).held_out
        )
        self.assertFalse((self.folder / "shards" / "held_out.csv").exists())

    def test_shard_files_do_not_depend_on_the_output_folder(self):
        written = []
        for name in ("one", "elsewhere/two"):
            split_corpus(self.config(), self.folder / name, 2)
            written.append(
                {
                    path.name: path.read_bytes()
                    for path in sorted((self.folder / name).glob("*.csv"))
                }
            )
        self.assertEqual(*written)

    def test_a_run_reads_a_shard_from_any_folder(self):
        corpus_shards = split_corpus(self.config(), self.folder / "elsewhere", 2)
        fields = {
            "val_data": str(corpus_shards.held_out),
            "audio_root": str(corpus_shards.audio_root),
        }
        for path in corpus_shards.shards:
            shard, held_out, _ = load_corpora(
                self.config(train_data=str(path), **fields), self.folder / "run", LengthRule()
            )
            self.assertEqual(len(shard.manifest), len(self.rows(path)))
            self.assertEqual(len(held_out.manifest), len(self.rows(corpus_shards.held_out)))
        again = self.config(
            train_data=str(corpus_shards.train),
            validation_fraction=0.0,
            audio_root=str(corpus_shards.audio_root),
        )
        actual = self.rows(split_corpus(again, self.folder / "again", 2).train)
        self.assertEqual(actual, self.rows(corpus_shards.train))

    def test_separators_quotes_and_other_scripts_are_preserved(self):
        corpus = self.folder / "odd"
        (corpus / "wavs").mkdir(parents=True)
        texts = ['he said "no, no"', "a;b|c,d", "გამარჯობა", "one\ttwo"]
        for number, _ in enumerate(texts):
            write_sound(corpus / f"wavs/u, {number}.wav", sine(300, 1.0))
        with open(corpus / "list.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerows(
                [
                    ("path", "text", "speaker"),
                    *((f"wavs/u, {i}.wav", t, "a,b") for i, t in enumerate(texts)),
                ]
            )
        corpus_shards = split_corpus(
            self.config(train_data=str(corpus / "list.csv"), validation_fraction=0.0),
            corpus / "p",
            2,
        )
        rows = sorted(row for path in corpus_shards.shards for row in self.rows(path))
        expected = [(f"wavs/u, {i}.wav", text, "a,b", "en") for i, text in enumerate(texts)]
        self.assertEqual(rows, expected)
        self.assertIsNone(corpus_shards.held_out)

    def test_shard_of_a_language_with_a_space_is_described(self):
        (self.folder / "two").mkdir()
        for name in "ab":
            write_sound(self.folder / f"two/{name}.wav", sine(300, 1.5))
        (self.folder / "two/list.csv").write_text(
            "path,text,language\na.wav,abc,old english\nb.wav,abd,old english\n"
        )
        config = self.config(train_data=str(self.folder / "two/list.csv"), validation_fraction=0.0)
        corpus_shards = split_corpus(config, self.folder / "shards", 2)
        actual = [corpus_shards.describe(shard) for shard in (0, 1)]
        self.assertEqual(actual, ["1 utterances, 0.03 minutes"] * 2)

    def test_an_ljspeech_folder_is_split(self):
        corpus = self.folder / "lj"
        (corpus / "wavs").mkdir(parents=True)
        for name in "ab":
            write_sound(corpus / f"wavs/{name}.wav", sine(300, 1.0))
        (corpus / "metadata.csv").write_text("a|abc\nb|abd\n")
        corpus_shards = split_corpus(
            self.config(train_data=str(corpus), validation_fraction=0.0), self.folder / "shards", 2
        )
        actual = [self.rows(path)[0][:2] for path in corpus_shards.shards]
        self.assertEqual(actual, [("wavs/a.wav", "abc"), ("wavs/b.wav", "abd")])

    def test_a_common_voice_corpus_is_split_by_the_program(self):
        corpus, out = self.folder / "cv", self.folder / "shards"
        (corpus / "clips").mkdir(parents=True)
        lines = ["client_id\tpath\tsentence\tlocale"]
        for name in "abcd":
            write_sound(corpus / f"clips/{name}.mp3", sine(300, 1.0))
            lines.append(f'anna\t{name}.wav\t"Ab" {name}.\tka')
        (corpus / "train.tsv").write_text("\n".join(lines))
        argv = [
            "--input",
            str(corpus / "train.tsv"),
            "--shards",
            "2",
            "--out",
            str(out),
            "--validation-fraction",
            "0",
        ]
        with (
            redirect_stdout(io.StringIO()),
            self.assertLogs("myxtts.data.metadata_file", "INFO") as logs,
        ):
            self.assertEqual(shard.main(argv), 0)
        rows = sorted(row for number in (0, 1) for row in self.rows(out / f"shard-{number}.csv"))
        expected = [(f"clips/{name}.mp3", f'"Ab" {name}.', "anna", "ka") for name in "abcd"]
        self.assertEqual(rows, expected)
        form = (
            "table with tabs, columns client_id=speaker, path, sentence=text, locale=language; 4"
            " rows"
        )
        self.assertIn(f"corpus form    {form}", logs.output[0])

    def test_more_shards_than_utterances_are_rejected(self):
        with self.assertRaisesRegex(
            DataError, "24 shards were requested, but there are 22 usable utterances"
        ):
            split_corpus(self.config(), self.folder / "shards", 24)

    def test_a_missing_audio_root_is_named(self):
        with self.assertRaisesRegex(DataError, "--audio-root nowhere does not exist"):
            load_corpora(self.config(audio_root="nowhere"), self.folder / "run", LengthRule())


if __name__ == "__main__":
    unittest.main()
