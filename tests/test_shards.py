"""Shards of a corpus: disjoint, complete, balanced, reproducible, and readable as a corpus."""

import csv
import io
import unittest
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.errors import DataError
from myxtts.batches.corpora import load_corpora
from myxtts.config.schema import Config, DataConfig, TeacherConfig
from myxtts.corpus.manifest import LengthRule
from myxtts.extras.jobs import shard_command as shard
from myxtts.extras.jobs.shards import CorpusShards, assign_shards, split_corpus
from tests.fixtures import FolderCase
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


class Split(FolderCase):
    def test_texts_held_out_with_symbols_of_their_own_are_left_out(self):
        """There is no run whose validation would need them."""
        corpus = self.folder / "corpus/corpus.csv"
        header, *lines = corpus.read_text(encoding="utf-8").splitlines()
        rare = [line.replace(",", f",{chr(0x10D0 + n)}", 1) for n, line in enumerate(lines)]
        corpus.write_text("\n".join([header, *rare]) + "\n", encoding="utf-8")
        flags = f"--input {corpus} --out {self.folder}/out --validation-fraction 0.1"
        with redirect_stdout(io.StringIO()) as out:
            code = shard.main(flags.split())
        self.assertEqual(code, 0)
        self.assertIn("--validate-every 0", out.getvalue())

    def setUp(self):
        super().setUp()
        write_corpus(self.folder / "corpus", [0.4 + 0.01 * i for i in range(23)], speakers=3)

    def config(self, **data) -> Config:
        given = {"train_data": str(self.folder / "corpus/corpus.csv")}
        return Config(data=DataConfig(**{"text_frontend": "characters"} | given | data))

    def split(self, name: str = "shards", count: int = 2, **data) -> CorpusShards:
        """Split the corpus; `shards`, `train` and `held_out` are then the rows of the files."""
        split = split_corpus(self.config(**data), self.folder / name, count)
        self.shards = [self.rows(path) for path in sorted((self.folder / name).glob("shard-*"))]
        self.train = self.rows(self.folder / name / "train.csv")
        held_out = self.folder / name / "held_out.csv"
        self.held_out = self.rows(held_out) if held_out.exists() else None
        return split

    def rows(self, path: Path) -> list[tuple[str, ...]]:
        with open(path, encoding="utf-8", newline="") as file:
            return [tuple(row.values()) for row in csv.DictReader(file)]

    def test_shards_are_disjoint_and_cover_all_but_the_held_out_rows(self):
        self.split(count=3, validation_fraction=0.2)
        rows = [row for shard in self.shards for row in shard]
        self.assertEqual(len(rows), 18)
        self.assertEqual(sorted(rows), sorted(self.train))
        self.assertEqual(len({row[0] for row in (*rows, *self.held_out)}), 23)
        config = self.config(validation_fraction=0.2)
        corpora = load_corpora(config, self.folder / "run", LengthRule())[:2]
        names = [{Path(path).name for path in part.manifest.paths} for part in corpora]
        self.assertEqual([{row[0] for row in part} for part in (rows, self.held_out)], names)

    def test_stretches_of_a_recording_stay_stretches(self):
        wave = np.random.default_rng(0).normal(0, 0.1, 5 * SAMPLE_RATE_HZ)
        soundfile.write(self.folder / "long.flac", wave, SAMPLE_RATE_HZ)
        times = [f"long.flac,abc,{0.37 * n},{0.37 * n + 0.35}" for n in range(12)]
        table = self.write("list.csv", "\n".join(["path,text,start,end", *times]))
        split = self.split(train_data=str(table), validation_fraction=0.0)
        whole = self.config(train_data=str(table), validation_fraction=0.0)
        shards = self.config(
            train_data=str(self.folder / "shards/train.csv"),
            audio_root=str(split.audio_root),
            validation_fraction=0.0,
        )
        before, after = (
            load_corpora(config, self.folder / "run", LengthRule())[0].manifest
            for config in (whole, shards)
        )
        for name in ("ids", "paths", "starts", "samples"):
            self.assertEqual(list(getattr(after, name)), list(getattr(before, name)), name)

    def test_texts_of_a_teacher_are_not_read(self):
        teacher = TeacherConfig(teacher="runs/voice", texts="missing.txt")
        config = self.config().model_copy(update={"teacher": teacher})
        split_corpus(config, self.folder / "taught", 2)
        self.split("plain")
        self.assertEqual(self.rows(self.folder / "taught/train.csv"), self.train)

    def test_files_that_are_no_shards_are_never_replaced(self):
        corpus = self.folder / "corpus" / "corpus.csv"
        table = corpus.rename(corpus.with_name("train.csv"))
        content = table.read_bytes()
        with self.assertRaisesRegex(DataError, "train.csv there is not of the same split"):
            self.split("corpus", train_data=str(table))
        held_out = self.write("other/held_out.csv", "of somebody else")
        with self.assertRaisesRegex(DataError, "held_out.csv there is not of the same split"):
            self.split("other", train_data=str(table))
        self.assertEqual((table.read_bytes(), held_out.read_text()), (content, "of somebody else"))

    def test_a_second_split_leaves_no_held_out_rows_and_no_shards_of_the_first(self):
        self.split(validation_fraction=0.2)
        self.assertIsNotNone(self.held_out)
        self.split(validation_fraction=0.0)
        self.assertIsNone(self.held_out)
        self.split("three", 3)
        with self.assertRaisesRegex(DataError, "shard-2.csv there is not of the same split"):
            self.split("three", 2)

    def test_shard_files_do_not_depend_on_the_output_folder(self):
        written = []
        for name in ("one", "elsewhere/two"):
            self.split(name)
            files = (self.folder / name).glob("*.csv")
            written.append({path.name: path.read_bytes() for path in files})
        self.assertEqual(*written)

    def test_a_run_reads_a_shard_from_any_folder(self):
        root = {"audio_root": str(self.split("elsewhere").audio_root)}
        elsewhere = self.folder / "elsewhere"
        for number, rows in enumerate(self.shards):
            data = {"train_data": str(elsewhere / f"shard-{number}.csv")}
            config = self.config(val_data=str(elsewhere / "held_out.csv"), **data, **root)
            corpus, held_out, _ = load_corpora(config, self.folder / "run", LengthRule())
            found = (len(corpus.manifest), len(held_out.manifest))
            self.assertEqual(found, (len(rows), len(self.held_out)))
        train = self.train
        data = {"train_data": str(elsewhere / "train.csv"), "validation_fraction": 0.0}
        self.split("again", **data, **root)
        self.assertEqual(self.train, train)

    def test_separators_quotes_and_other_scripts_are_preserved(self):
        corpus = self.folder / "odd"
        (corpus / "wavs").mkdir(parents=True)
        texts = ['he said "no, no"', "a;b|c,d", "გამარჯობა", "one\ttwo"]
        rows = [(f"wavs/u, {number}.wav", text, "a,b") for number, text in enumerate(texts)]
        for name, _, _ in rows:
            write_sound(corpus / name, sine(300, 1.0))
        with open(corpus / "list.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("path", "text", "speaker"), *rows])
        train = str(corpus / "list.csv")
        self.split("odd/p", train_data=train, validation_fraction=0.0)
        written = sorted(row for shard in self.shards for row in shard)
        self.assertEqual(written, [(*row, "en") for row in rows])
        self.assertIsNone(self.held_out)

    def test_shard_of_a_language_with_a_space_is_described(self):
        rows = "path,text,language\na.wav,abc,old english\nb.wav,abd,old english\n"
        table = self.write("two/list.csv", rows)
        for name in "ab":
            write_sound(self.folder / f"two/{name}.wav", sine(300, 1.5))
        corpus_shards = self.split(train_data=str(table), validation_fraction=0.0)
        header, _, *lines = corpus_shards.table.splitlines()
        self.assertTrue(header.endswith("| old english |"))
        self.assertEqual([line.split(" | ")[1:3] for line in lines], [["1", "0.03"]] * 2)

    def test_an_ljspeech_folder_is_split(self):
        corpus = self.folder / "lj"
        (corpus / "wavs").mkdir(parents=True)
        for name in "ab":
            write_sound(corpus / f"wavs/{name}.wav", sine(300, 1.0))
        (corpus / "metadata.csv").write_text("a|abc\nb|abd\n")
        self.split(train_data=str(corpus), validation_fraction=0.0)
        actual = [shard[0][:2] for shard in self.shards]
        self.assertEqual(actual, [("wavs/a.wav", "abc"), ("wavs/b.wav", "abd")])

    def test_a_common_voice_corpus_is_split_by_the_program(self):
        corpus, out = self.folder / "cv", self.folder / "shards"
        (corpus / "clips").mkdir(parents=True)
        lines = ["client_id\tpath\tsentence\tlocale"]
        for name in "abcd":
            write_sound(corpus / f"clips/{name}.mp3", sine(300, 1.0))
            lines.append(f'anna\t{name}.wav\t"Ab" {name}.\tka')
        (corpus / "train.tsv").write_text("\n".join(lines))
        flags = f"--input {corpus}/train.tsv --shards 2 --out {out} --validation-fraction 0"
        with (
            redirect_stdout(io.StringIO()),
            self.assertLogs("myxtts.corpus.layouts", "INFO") as logs,
        ):
            self.assertEqual(shard.main(flags.split()), 0)
        rows = sorted(row for number in (0, 1) for row in self.rows(out / f"shard-{number}.csv"))
        expected = [(f"clips/{name}.mp3", f'"Ab" {name}.', "anna", "ka") for name in "abcd"]
        self.assertEqual(rows, expected)
        columns = "client_id, path, sentence, locale"
        form = f"corpus form    table with tabs, columns {columns}; 4 rows"
        self.assertIn(form, logs.output[0])

    def test_more_shards_than_utterances_are_rejected(self):
        reason = "24 shards were requested, but there are 22 usable utterances"
        with self.assertRaisesRegex(DataError, reason):
            self.split(count=24)

    def test_a_missing_audio_root_is_named(self):
        with self.assertRaisesRegex(DataError, "--audio-root nowhere does not exist"):
            load_corpora(self.config(audio_root="nowhere"), self.folder / "run", LengthRule())
