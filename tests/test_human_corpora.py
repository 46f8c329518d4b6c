"""The programs that make corpora of people, and the page of `make real`. No TensorFlow."""

import contextlib
import gzip
import io
import json
import unittest
from unittest import mock

import numpy as np
import soundfile

from myxtts.audio import format as audio_format
from myxtts.base.errors import DataError
from myxtts.checkpoints.files import Checkpoint
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.schema import Config
from tests.fixtures import FolderCase, make_record
from tests.html_checker import Checker
from tests.sine_corpus import sine
from utilities.human import clips, corpora, page, people


class CorporaTest(FolderCase):
    def setUp(self):
        super().setUp()
        share = self.folder / "from/usr/share"
        voice = share / corpora.CORPORA["festvox-ru"].folder
        (share / "doc/festvox-ru").mkdir(parents=True)
        for number in range(22):
            name = f"ru_{number:04d}"
            self.write(f"{voice}/wav/{name}.wav")
            soundfile.write(voice / "wav" / f"{name}.wav", sine(100, 1.0), 22_050)
        lines = [f'( ru_{number:04d} "Она{number}, в+олос." )' for number in range(21)]
        lines.append('( ru_0021 "' + "а" * 30 + '" )')
        self.write(f"{voice}/etc/txt.done.data", "\n".join(lines) + "\n")

    def make(self, name="festvox-ru", source="from", held_out=None, fold=0):
        out = self.folder / "out"
        store = self.folder / "packages"
        corpora.make_corpus(name, out, self.folder / source, store, held_out, fold)
        return corpora.read_tables(out)

    def test_every_20th_sentence_is_held_out_and_texts_too_long_for_their_speech_are_left_out(self):
        training, held_out = (tables := self.make()).values()
        self.assertEqual(
            [row["path"] for row in held_out], ["wavs/ru_0000.wav", "wavs/ru_0020.wav"]
        )
        self.assertEqual(len(training), 19)
        first = {"path": "wavs/ru_0001.wav", "text": "Она1, волос."}
        self.assertEqual(training[0], first | {"speaker": "nsh", "language": "ru"})
        self.assertEqual(self.make(), tables)

    def test_a_folder_without_the_package_is_an_error_that_says_what_to_give(self):
        with self.assertRaisesRegex(DataError, "festvox-ru was requested.*Give another folder"):
            self.make(source="packages")

    def test_prompts_with_digits_or_brackets_have_no_text(self):
        lines = "\ufeff; English\n\na/b: Hello.\nc:press 1\nd: (beep)\ne: ...\nf: Dial: now \n"
        file = self.write("texts.gz", gzip.compress(lines.encode()))
        self.assertEqual(corpora.prompt_texts(file), {"a/b": "Hello.", "f": "Dial: now"})

    def test_prompts_of_subfolders_are_found_and_missing_ones_left_out(self):
        sounds = self.folder / "from/usr/share" / corpora.CORPORA["prompts-en"].folder
        soundfile.write(self.write(f"{sounds}/a/b.wav"), sine(100, 1.0), 22_050)
        for package in ("asterisk-core-sounds-en", "asterisk-core-sounds-en-g722"):
            (self.folder / "from/usr/share/doc" / package).mkdir()
        soundfile.write(self.write(f"{sounds}/d.wav"), sine(100, 2.0), 22_050)
        soundfile.write(self.write(f"{sounds}/e.wav"), sine(100, 2.0), 22_050)
        texts = b"a/b: Hello.\nc: Missing.\nd: This is a sentence.\ne: And this is another."
        lines = gzip.compress(texts)
        self.write("from/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz", lines)
        training, held_out = self.make("prompts-en").values()
        self.assertEqual(
            ([row["path"] for row in training], held_out[0]["path"]),
            (["wavs/d.wav", "wavs/e.wav"], "wavs/a/b.wav"),
        )
        for fold, path in enumerate(("wavs/d.wav", "wavs/e.wav")):
            training, held_out = self.make("prompts-en", held_out=1, fold=fold).values()
            self.assertEqual([row["path"] for row in held_out], [path])
            self.assertEqual((len(training), training[0]["path"]), (2, "wavs/a/b.wav"))

    def test_an_existing_corpus_is_divided_anew_only_where_the_number_is_given(self):
        places = ["--out", str(self.folder / "out"), "--from", str(self.folder / "from")]
        for words, held_out in (([], 2), (["--held-out", "0"], 0), ([], 0)):
            said = io.StringIO()
            with (
                mock.patch("sys.argv", ["corpora.py", "festvox-ru", *places, *words]),
                contextlib.redirect_stdout(said),
            ):
                self.assertEqual(corpora.main(), 0)
            self.assertIn(f"{21 - held_out} utterances, {held_out} held out", said.getvalue())

    def test_another_fold_needs_the_number_of_sentences(self):
        words = ["corpora.py", "prompts-en", "--fold", "1"]
        said = io.StringIO()
        with (
            mock.patch("sys.argv", words),
            contextlib.redirect_stderr(said),
            self.assertRaises(SystemExit) as ended,
        ):
            corpora.main()
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("--fold needs --held-out", said.getvalue())


class PageTest(FolderCase):
    def test_the_page_is_well_formed_and_has_each_sound_and_the_newest_table(self):
        row = {"text": '<b> & "Да"', "language": "ru"}
        waves = {"recording": sine(100, 0.5), "voice": sine(120, 0.5)}
        self.write("evaluation/step-000010/scores.md", "| a < b |")
        content = page.render(self.folder, [page.Sounds(row, waves)] * 2)
        Checker(self, content)
        self.assertEqual(content.count("data:audio/ogg"), 4)
        self.assertIn("&lt;b&gt; &amp; &quot;Да&quot;", content)
        self.assertIn("| a &lt; b |", content)

    def test_waves_become_equally_loud_whatever_their_pauses_and_do_not_clip(self):
        wave = sine(200, 1.0)
        padded = np.concatenate([wave, np.zeros(22_050)])
        loud = [page.equally_loud(of) for of in (0.01 * wave, wave, padded)]
        for of in loud[:2]:
            np.testing.assert_allclose(of, loud[2][: len(of)], atol=2e-3)
        click = np.zeros(22_050)
        click[100] = 1.0
        self.assertAlmostEqual(np.abs(page.equally_loud(click)).max(), page.PEAK, places=5)

    def test_the_page_has_the_sample_rate_of_the_voice_whatever_that_of_the_recordings(self):
        def speak(run, vocoder, corpus, rows):
            self.assertEqual((run.path, len(rows)), (self.folder, 1))
            return [page.Sounds(rows[0], {"voice": sine(100, 0.5)})]

        rows = [{"path": "a.wav", "text": "Да", "language": "ru"}]
        soundfile.write(self.folder / "a.wav", sine(100, 3.0), 22_050)
        corpora.write_tables(self.folder, dict.fromkeys(corpora.TABLES, rows))
        record = make_record(settings=Config(data={"sample_rate": 24_000}))
        run = TrainedRun(self.folder, Checkpoint(self.folder, record))
        words = ["page.py", "--run", str(self.folder), "--corpus", str(self.folder)]
        with (
            mock.patch.object(audio_format, "_used", None),
            mock.patch.object(TrainedRun, "open", return_value=run),
            mock.patch.object(page, "speak", speak),
            mock.patch("sys.argv", words),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            self.assertEqual(page.main(), 0)
            self.assertEqual(audio_format.sample_rate_hz(), 24_000)

    def test_sentences_come_from_the_table_of_held_out_ones(self):
        rows = [{"path": f"{n}.ogg", "text": str(n)} for n in range(5)]
        corpora.write_tables(self.folder, dict.fromkeys(corpora.TABLES, rows))
        for n in range(5):
            soundfile.write(self.folder / f"{n}.ogg", sine(100, 1.0 + n), 22_050)
        chosen = page.choose_sentences(self.folder, 3)
        self.assertEqual([row["text"] for row in chosen], ["1", "3", "4"])
        with self.assertRaisesRegex(DataError, "does not exist. Make the corpus with"):
            page.choose_sentences(self.folder / "none", 3)


class PeopleTest(FolderCase):
    def setUp(self):
        super().setUp()
        for name, corpus in corpora.CORPORA.items():
            sound = self.write(f"{name}/wavs/a/b.wav")
            soundfile.write(sound, sine(100, 1.0), 22_050)
            row = {"path": "wavs/a/b.wav", "text": "Text.", "speaker": corpus.speaker}
            rows = [row | {"language": corpus.language}]
            corpora.write_tables(self.folder / name, dict.fromkeys(corpora.TABLES, rows * 90))

    def test_one_corpus_has_all_people_but_one_each_for_the_given_minutes(self):
        tables = people.read_people(self.folder)
        with contextlib.redirect_stdout(io.StringIO()):
            people.make_corpus(self.folder, tables, "menardi", 1.0)
        out = self.folder / "people-without-menardi"
        training, held_out = corpora.read_tables(out).values()
        self.assertEqual((len(training), len(held_out)), (7 * 60, 7 * 60))
        self.assertEqual(len({row["speaker"] for row in training}), 6)
        self.assertTrue((out / training[0]["path"]).exists())

    def test_a_missing_corpus_is_an_error_that_names_the_command(self):
        (self.folder / "armelle" / corpora.TABLES[1]).unlink()
        with self.assertRaisesRegex(DataError, "lacks armelle. Run: .*corpora.py armelle --out"):
            people.read_people(self.folder)

    def test_the_nearest_centroid_decides_and_the_language_is_one_never_spoken(self):
        centroids = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}
        spoken = [people.Spoken("own", "a", np.array(wave)) for wave in ((0.9, 0.1), (0.2, 0.8))]
        table = people.nearest_table(spoken, centroids)
        self.assertIn("| own | 2 | 50 % | 0.55, 0.45 |", table)
        for own, foreign in (({"ru"}, "en"), ({"en", "es"}, "fr"), ({"fr"}, "it")):
            self.assertEqual(people.foreign_to(own), foreign)

    def test_the_treble_of_each_speaker_is_relative_to_what_is_below(self):
        low, high = sine(1000, 1.0), sine(6000, 1.0)
        spoken = [
            people.Spoken("recordings", "a", low + 0.1 * high),
            people.Spoken("own, noisy", "a", high),
            people.Spoken("recordings", "b", low + 2 * high),
        ]
        table = people.treble_table(spoken)
        self.assertIn("| speaker | recordings |\n|---|---|\n| a | -20 |\n| b | 6 |\n", table)


class ClipsTest(FolderCase):
    def cut(self, *flags):
        places = [str(self.folder / name) for name in ("corpus", "times", "out")]
        with mock.patch("sys.argv", ["clips.py", *places, *flags]):
            return clips.main()

    def test_sentences_are_cut_at_pauses_behind_half_a_second(self):
        spoken = ("она,", 0.2, 0.5), ("шла", 0.6, 1.0), ("-", 1.06, 1.1), ("домой", 1.5, 2.2)
        words = [dict(zip(("word", "start", "end"), word, strict=True)) for word in spoken]
        self.write("times/wavs/a.json", json.dumps({"segments": [{"words": words}]}))
        rows = [dict(path=f"wavs/{name}.wav", text="", speaker="x", language="ru") for name in "ab"]
        self.write("corpus/wavs/a.wav")
        wave = sine(100, 2.4)
        soundfile.write(self.folder / "corpus/wavs/a.wav", wave, 22_050)
        corpora.write_tables(self.folder / "corpus", dict.fromkeys(corpora.TABLES, rows))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.cut()
        self.assertIn("2 clips, 0.0 min", printed.getvalue())
        table = (self.folder / "out/metadata.csv").read_text("utf-8")
        for name, text, start_s, end_s in (
            ("a_100", "Она, шла.", 0.1, 1.2),
            ("a_1400", "Домой.", 1.4, 2.3),
        ):
            self.assertIn(f"wavs/{name}.wav|{text}|x|ru\n", table)
            samples = soundfile.info(self.folder / f"out/wavs/{name}.wav").frames
            self.assertAlmostEqual(samples / 22_050, end_s - start_s, delta=1e-3)

    def test_times_of_another_corpus_are_an_error(self):
        self.write("corpus/x")
        rows = [dict(path="wavs/a.wav", text="", speaker="x", language="ru")]
        corpora.write_tables(self.folder / "corpus", dict.fromkeys(corpora.TABLES, rows))
        with self.assertRaisesRegex(DataError, "no times of .*metadata_train.csv"):
            self.cut()


if __name__ == "__main__":
    unittest.main()
