"""Metadata files become rows; unusable paths and files are rejected with a helpful message."""

import gzip
import os
import random
import shutil
import unittest
from pathlib import Path
from unittest import mock

from myxtts.base.errors import DataError
from myxtts.config.schema import DataConfig
from myxtts.corpus import tables
from myxtts.corpus.layouts import hold_out, read_corpus, read_rows
from myxtts.corpus.rows import DEFAULT_SPEAKER, Row, Rows, RowTuple, log
from tests.fixtures import FolderCase

# What a file shows: its name, its content and the texts that are read. The audio is wavs/a.wav.
TEXTS = {
    "the normalised text is preferred": (
        *("metadata.csv", "a|Dr. A|Doctor A\nb|Only this\nc|Kept|\n"),
        ["Doctor A", "Only this", "Kept"],
    ),
    "a column of normalised texts, too, unless it is empty": (
        *("list.csv", "id|text|normalized_text\na|5|five\nb|six|\n", ["five", "six"]),
    ),
    "quotes and line separators of Unicode are text": (
        *("metadata.csv", 'a|"Hello, he said.\r\nb|one\u2028two\x85three\n'),
        ['"Hello, he said.', "one\u2028two\x85three"],
    ),
    "quotes between tabs are text unless they enclose a field": (
        *("list.csv", 'id\tsentence\na\t"No," he said.\nb\t"""Yes"" and no"\nc\t"open\n'),
        ['"No," he said.', '"Yes" and no', '"open'],
    ),
    "two fields may have tabs": ("list.csv", "a\tOne, two\nb\tThree\n", ["One, two", "Three"]),
    "or semicolons": ("list.csv", "a;One, two\nb;Three\n", ["One, two", "Three"]),
    "or commas": ("list.csv", 'a,"One, two"\nb,Three\n', ["One, two", "Three"]),
    "the first separator counts": ("list.csv", "a;One, two\n", ["One, two"]),
    "the first counts again": ("list.csv", "a,One; two\n", ["One; two"]),
    "but bars come first": ("list.csv", "a|One, two; three\n", ["One, two; three"]),
    "separators may end a line": ("list.csv", "a|1 a|\nb|Two||\nc|3 c|||\n", ["1 a", "Two", "3 c"]),
    "commas may end a line": ("list.csv", "a,One,,\nb,Two,,\n", ["One", "Two"]),
    "line ends of Linux": ("list.csv", "\ufeffa|One\nb|Two\n", ["One", "Two"]),
    "line ends of Windows": ("list.csv", "\ufeffa|One\r\nb|Two\r\n", ["One", "Two"]),
    "line ends of old Macintoshes": ("list.csv", "\ufeffa|One\rb|Two\r", ["One", "Two"]),
}

HEADER = "path,text,speaker,language"
# What programs write: the files, the rows as text/speaker/language, and a pattern of what is said
# of them in the log, in the form or in rejected rows. Without rows it is that of the error.
WRITTEN = {
    "no normalised text": (
        {"metadata.csv": "a|One|nan\nb|Two|two\nc|5|-\nd|Three|None\n"},
        ["One/default/en", "two/default/en", "5/default/en", "Three/default/en"],
        "3 of 4 rows of .* have nan, -, None for a normalised text: the text is used",
    ),
    "a column of them that looks like names of speakers": (
        {"metadata.csv": "a|One|nan\nb|Two|nan\nc|Six|nan\nd|Ten|nan\n"},
        ["One/default/en", "Two/default/en", "Six/default/en", "Ten/default/en"],
        "4 of 4 rows .* have nan",
    ),
    "more placeholders than texts that are alike": (
        {"list.csv": "path,text\na.wav,One\nb.wav,nan\nc.wav,nan\nd.wav,<NA>\n"},
        ["One/default/en", "/default/en", "/default/en", "/default/en"],
        "3 of 4 rows .* have .*nan.* for a text: these rows have no text",
    ),
    "one text that is a word": (
        {"list.csv": "path,text\na.wav,One\nb.wav,None\nc.wav,Null\n"},
        ["One/default/en", "None/default/en", "Null/default/en"],
        "1 of 3 rows .* have None for a word: it is read as a text",
    ),
    "a word that is as frequent as others": (
        {"list.csv": "path,text\na.wav,null\nb.wav,eins\nc.wav,null\nd.wav,eins\n"},
        ["null/default/en", "eins/default/en", "null/default/en", "eins/default/en"],
        "2 of 4 rows .* have null for a word",
    ),
    "speakers and languages": (
        {"list.csv": f"{HEADER}\na.wav,x,Nan,ka\nb.wav,y,nan,NULL\nc.wav,z,,\nd.wav,t,?,N/A\n"},
        ["x/Nan/ka", "y/default/en", "z/default/en", "t/default/en"],
        "3 of 4 .* have nan, nothing, . for a speaker: .* 'default'(.|\n)* NULL, N/A for a",
    ),
    "JSON": (
        {
            "list.json": '{"path": "a.wav", "text": null, "speaker": NaN}\n'
            '{"path": "b.wav", "text": NaN, "speaker": 7}\n'
            '{"path": "c.wav", "text": 12, "speaker": "None"}\n'
            '{"path": "d.wav", "text": 7.0, "speaker": "x"}\n'
        },
        ["/default/en", "nan/7/en", "12/default/en"],
        "have nan, None for a speaker(.|\n)*the text should be a text, but is 7.0",
    ),
    "Kaldi, whose other texts are capitals": (
        {
            "text": "a ONE\nb nan\nc nan\n",
            "wav.scp": "a a.wav\nb b.wav\nc c.wav\n",
            "utt2spk": "a anna\nb nan\n",
        },
        ["one/anna/en", "/default/en", "/default/en"],
        "2 of 3 rows .* for a text(.|\n)*2 of 3 rows .* have nan, nothing for a speaker",
    ),
    "names in several spellings": (
        {"list.csv": f"{HEADER}\na.wav,x,\xe9,e\xf1\nb.wav,y, \u200be\u0301\ufeff,en\u0303\n"},
        ["x/\xe9/e\xf1", "y/\xe9/e\xf1"],
        r"2 \.wav\Z",
    ),
    "names that are alike": (
        {"list.csv": f"{HEADER}\na.wav,x,Anna B,en\nb.wav,y,annab,en\nc.wav,z,\uff21nnaB,EN\n"},
        ["x/Anna B/en", "y/annab/en", "z/\uff21nnaB/EN"],
        "the speakers 'Anna B' and 'annab' and .* differ in case(.|\n)* languages 'EN' and 'en'",
    ),
    "a joiner within a name": (
        {"list.csv": f"{HEADER}\na.wav,x,a\u200cb\u200d,en\nb.wav,y,ab,en\n"},
        ["x/a\u200cb/en", "y/ab/en"],
        "speakers 'ab' and .* differ",
    ),
    "Excel's first line": (
        {"list.csv": "\ufeffsep=;;\r\npath;text\r\na.wav;One, two\r\n"},
        ["One, two/default/en"],
        "table with semicolons, columns path, text; 1 rows",
    ),
    "Excel's first line without a header": (
        {"metadata.csv": '"sep=|"\na|One\nb|Two\n'},
        ["One/default/en", "Two/default/en"],
        "lines with \\|",
    ),
    "values that are no text": (
        {
            "list.jsonl": '{"audio": {"path": "a.wav"}, "text": "One"}\n'
            '{"audio": "b.wav", "text": ["Two"]}\n{"audio": "c.wav", "text": {"en": "Six"}}\n'
            '{"audio": "d.wav", "text": true}\n{"audio": ["d.wav"], "text": "x"}\n'
        },
        ["One/default/en"],
        r"the text should be a text, but is \['Two'\]\n.*\{'en': 'Six'\}\n.*True\n.*the path ",
    ),
    "a transcript of Whisper": (
        {"a.json": '{"text": " Hi", "segments": [{"start": 0.0, "text": " Hi"}]}'},
        [],
        "Of Whisper's transcripts, give subtitles",
    ),
    "keys without a path": ({"a.jsonl": '{"words": "x", "clipname": "a.wav"}\n'}, [], "a key path"),
}
# A line of a space is within some of the cues.
ROLLING = """WEBVTT
Kind: captions

00:00.000 --> 00:02.390 align:start position:0%
_
the<00:00:00.400><c> hungry</c><00:00:00.800><c> goat</c>

00:02.390 --> 00:02.400
the hungry goat
_

00:02.400 --> 00:04.790
the hungry goat
the<00:00:02.800><c> bushes</c>

00:04.790 --> 00:04.800
the bushes
_
""".replace("_", " ")
# Cues of 0 to 1, 1 to 2 … seconds; what is read of them, and a pattern as above.
CUES = {
    "lines of spaces": ([" \nOne\n\t\ntwo\n  "], ["One two"], "^subtitles;"),
    "marks of other formats": ([r"{\an8}One\Ntwo <i>six</i>"], ["One two six"], "^subtitles;"),
    "lines that roll": (
        ["one two", "one two\nseven", "seven\nten"],
        ["one two", "seven", "ten"],
        "without 2 lines that roll;",
    ),
    "dialogues do not": (["no", "no way", "way out", "A B", "A B"], None, "^subtitles;"),
    "sounds": (
        ["[Music]", "\u266a la\nla \u266a", "(LAUGHS)", "He (still) ate", "(SIGHS) Yes. [noise]"],
        ["He (still) ate", "Yes."],
        "^subtitles without 5 sounds;",
    ),
    "names": (
        ["MAN: One: two", "&gt;&gt; Note: six", "- ANNA: Me.\n- BOB: You?", "- Hi.\n- Ho.", "x"],
        ["One: two", "Note: six", "Me. You?", "- Hi. - Ho.", "x"],
        "^subtitles without 3 names;",
    ),
    "a hidden word": (["One", "two [\xa0__\xa0] six"], ["One"], "not written: two \\[ __ \\] six"),
}


def rows_of(train: Path, validation: Path | None = None, fraction: float = 0.5):
    data = DataConfig(val_data=str(validation) if validation else None)
    return read_rows(data, train, fraction, seed=0)


class Case(FolderCase):
    def audio(self, *names):
        for name in names:
            self.write(name, b"RIFF")

    def ljspeech(self, content, name="metadata.csv", audio=("a.wav",)):
        """Write lines without a header, of which the audio in wavs/ is there."""
        self.audio(*(f"wavs/{name}" for name in audio))
        self.write(name, content)
        return self.folder

    def table(self, content, *audio, name="list.csv"):
        self.audio(*audio)
        return self.write(name, content)

    def found(self, path, **root):
        """Return the audio files of a corpus, relative to the test's folder."""
        rows = read_corpus(path, "en", **root)
        return [(rows.folder / row.audio).relative_to(self.folder).as_posix() for row in rows.rows]

    def assert_texts(self, path, *expected, **options):
        self.assertEqual([row.text for row in read_corpus(path, "en", **options).rows], [*expected])

    def assert_malformed(self, rows, *lines):
        expected = [(line, "malformed row") for line in lines]
        self.assertEqual([(row.line, row.reason) for row in rows.rejected], expected)

    def assert_rejected(self, pattern, path, **options):
        before = sorted(self.folder.rglob("*"))
        with self.assertRaisesRegex(DataError, pattern):
            read_corpus(path, "en", **options)
        self.assertEqual(sorted(self.folder.rglob("*")), before)


class Prompts(Case):
    def test_festvox_prompts_lose_their_stress_marks(self):
        lines = (
            '( ru_1 "Прядь вол+ос, +окна." )',
            '(ru_2 "He said \\"no\\", 1+1." )',
            *("( ru_3 )", "", '( ru_4 "" )'),
        )
        prompts = self.write("voice/etc/txt.done.data", "\n".join(lines))
        self.audio("voice/wav/ru_1.wav", "voice/wav/ru_2.wav")
        for path in (prompts, self.folder / "voice"):
            rows = read_corpus(path, "ru")
            self.assert_texts(path, "Прядь волос, окна.", 'He said "no", 1+1.', "")
            self.assertEqual(self.found(path)[0], "voice/wav/ru_1.wav")
            self.assert_malformed(rows, 3)
            self.assertIn("Festvox prompts without their 2 stress marks (+); 3 rows in", rows.form)

    def test_lists_of_names_and_texts_may_have_comments_and_be_compressed(self):
        content = "; Sounds\n\na: Dial 1: now, please; or not\ndigits/b.wav: Two | three\nno text\n"
        self.audio("sounds/a.g722", "sounds/digits/b.WAV")
        root = self.folder / "sounds"
        for name in ("list.txt", "list.txt.gz"):
            text = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
            path = self.write(name, text)
            self.assert_texts(path, "Dial 1: now, please; or not", "Two | three", root=root)
            self.assertEqual(self.found(path, root=root), ["sounds/a.g722", "sounds/digits/b.WAV"])
            rows = read_corpus(path, "en", root=root)
            self.assert_malformed(rows, 5)
            self.assertIn("lines of name: text; 2 rows", rows.form)
        self.assert_rejected("no complete gzip file", self.write("b.txt.gz", text[:-9]))

    def test_a_colon_in_a_text_does_not_make_a_list_of_names(self):
        for separator in "|\t":
            self.assert_texts(self.ljspeech(f"a{separator}Note: this\n"), "Note: this")


class WithoutText(Case):
    def rows(self, path):
        rows = read_corpus(path, "en", needs_text=False)
        return [(row.audio, row.text, row.speaker) for row in rows.rows]

    def test_a_folder_of_audio_is_a_corpus(self):
        hidden_and_others = ".cache/d.wav", "anna/._c.wav", "anna/notes.txt"
        self.audio("b.m4a", "wavs/a.wav", "anna/c.WAV", *hidden_and_others)
        default = ("b.m4a", "", DEFAULT_SPEAKER), ("wavs/a.wav", "", DEFAULT_SPEAKER)
        expected = [default[0], ("anna/c.WAV", "", "anna"), default[1]]
        self.assertEqual(self.rows(self.folder), expected)
        # For a task with texts.
        self.assert_rejected(
            "no metadata.csv or other layout. Give an LJSpeech folder", self.folder
        )

    def test_a_folder_without_audio_is_an_error(self):
        self.write("x/b.txt", "")
        self.assert_rejected("neither metadata.csv nor audio", self.folder, needs_text=False)

    def test_links_to_files_and_folders_are_followed_once(self):
        self.audio("other/b.wav", "corpus/c.wav")
        corpus = self.folder / "corpus"
        (corpus / "anna").symlink_to(self.folder / "other")
        (corpus / "d.wav").symlink_to(self.folder / "other" / "b.wav")
        (self.folder / "other" / "up").symlink_to(corpus)
        expected = [("c.wav", DEFAULT_SPEAKER), ("d.wav", DEFAULT_SPEAKER), ("anna/b.wav", "anna")]
        self.assertEqual([(audio, speaker) for audio, _, speaker in self.rows(corpus)], expected)

    def test_an_unreadable_folder_is_not_left_out_in_silence(self):
        denied = PermissionError(13, "Permission denied", "anna")
        with mock.patch("os.scandir", side_effect=denied), self.assertRaises(DataError) as caught:
            read_corpus(self.folder, "en", needs_text=False)
        self.assertIn("the folder anna cannot be read: Permission denied", str(caught.exception))

    def test_metadata_needs_no_column_of_texts(self):
        for content in (
            "path,speaker\na.wav,anna\nb.wav,berta\n",
            "path|speaker|text\na.wav|anna|\nb.wav|berta|\n",
        ):
            table = self.table(content, "a.wav", "b.wav")
            self.assertEqual(self.rows(table), [("a.wav", "", "anna"), ("b.wav", "", "berta")])
        names = self.ljspeech("a\nb.wav\n", audio=("a.wav", "b.wav"))
        expected = [("a.wav", "", DEFAULT_SPEAKER), ("b.wav", "", DEFAULT_SPEAKER)]
        self.assertEqual(self.rows(names), expected)
        with_texts = self.ljspeech("a|Dr. A|Doctor A\n")
        self.assertEqual(self.rows(with_texts), [("a.wav", "Doctor A", DEFAULT_SPEAKER)])

    def test_names_that_are_not_utf8_can_be_held_out_and_written(self):
        for name in (b"caf\xe9/\xff.wav", b"caf\xe9/\xfe.wav"):
            self.audio(f"corpus/{os.fsdecode(name)}")
        rows = read_corpus(self.folder / "corpus", "en", needs_text=False)
        self.assertEqual({row.speaker for row in rows.rows}, {r"caf\xe9"})
        self.assertEqual([len(part.rows) for part in hold_out(rows, 0.5, 0)], [1, 1])


class LJSpeech(Case):
    def test_the_texts_of_a_file(self):
        for case, (name, content, texts) in TEXTS.items():
            with self.subTest(case):
                path = self.ljspeech(content, name) / name
                self.assert_texts(path, *texts)
                rows = read_corpus(path, "en")
                speakers = {row.speaker for row in rows.rows}
                self.assertEqual((rows.folder.name, speakers), ("wavs", {DEFAULT_SPEAKER}))

    def test_ids_match_files_with_or_without_a_suffix(self):
        content = "LJ001.0001|x\nb.wav|x\nc.FLAC|x\nsub/d|x\n"
        rows = read_corpus(self.ljspeech(content, audio=["b.wav"]), "en").rows
        audios = [row.audio for row in rows]
        self.assertEqual(audios, ["LJ001.0001.wav", "b.wav", "c.FLAC", "sub/d.wav"])

    def test_malformed_rows_are_rejected_with_their_line(self):
        rows = read_corpus(self.ljspeech("a|fine\n\njust words\n|no id\na|b|c|d\n"), "en")
        self.assertEqual([row.id for row in rows.rows], ["a.wav"])
        self.assert_malformed(rows, 3, 4, 5)

    def test_metadata_may_be_a_tsv_or_text_file_or_given_directly(self):
        for name in ("metadata.txt", "metadata.tsv", "metadata_train.csv"):
            self.ljspeech("a\tx\n", name)
            for path in (self.folder, self.folder / name):
                self.assertEqual(read_corpus(path, "en").metadata.name, name)

    def test_a_folder_with_train_and_eval_metadata_provides_both_corpora(self):
        self.ljspeech("a|x\nb|x\nbad\n", "metadata_train.csv")
        self.ljspeech("c|x\n|bad\n", "metadata_eval.csv", audio=["c.wav"])
        train, validation, rejected = rows_of(self.folder)
        actual = [[row.id for row in part.rows] for part in (train, validation)]
        self.assertEqual(actual, [["a.wav", "b.wav"], ["c.wav"]])
        names = [Path(row.metadata).name for row in rejected]
        self.assertEqual(names, ["metadata_train.csv", "metadata_eval.csv"])
        by_file = rows_of(self.folder / "metadata_train.csv")
        self.assertEqual(by_file, (train, validation, rejected))

    def test_validation_on_the_training_corpus_by_another_name_is_an_error(self):
        corpus, table = self.ljspeech("a|x\nb|x\n"), self.table("path,text\nd.wav,x\n", "d.wav")
        linked = self.folder / "linked.csv"
        linked.symlink_to(table)
        for train, other in ((corpus, corpus / "metadata.csv"), (table, linked)):
            with self.subTest(other), self.assertRaisesRegex(DataError, "are both .*Leave out"):
                rows_of(train, other)

    def test_without_validation_data_rows_are_held_out_and_malformed_rows_listed_once(self):
        corpus = self.ljspeech("a|x\nb|x\nc|x\nd|x\nbad\n|bad\n")
        train, validation, rejected = rows_of(corpus, fraction=0.25)
        self.assertEqual((len(train.rows), len(validation.rows), len(rejected)), (3, 1, 2))
        self.assertEqual(len(train.rejected) + len(validation.rejected), 2)

    def test_a_given_validation_corpus_overrides_the_one_in_the_folder(self):
        self.ljspeech("a|x\n", "metadata_train.csv")
        self.ljspeech("c|x\n", "metadata_eval.csv")
        table = self.table("path,text\nd.wav,x\n", "d.wav")
        _, validation, _ = rows_of(self.folder, table)
        self.assertEqual([row.id for row in validation.rows], ["d.wav"])


class Tables(Case):
    def test_every_separator_is_detected(self):
        for separator in ",;\t|":
            path = self.table("path,text\na.wav,hi".replace(",", separator), "a.wav")
            expected = (Row(2, "a.wav", "a.wav", "hi", DEFAULT_SPEAKER, "ka"),)
            self.assertEqual(read_corpus(path, "ka").rows, expected, separator)

    def test_columns_are_found_by_name_in_any_order(self):
        content = "\ufefflanguage, Text ,minutes,speaker,PATH\nfa,hi,3,anna,x/a.wav\n,ho,4,,b.wav\n"
        expected = (
            Row(2, "x/a.wav", "x/a.wav", "hi", "anna", "fa"),
            Row(3, "b.wav", "b.wav", "ho", DEFAULT_SPEAKER, "en"),
        )
        path = self.table(content, "b.wav")
        self.assertEqual(read_corpus(path, "en").rows, expected)
        # A header counts more than named columns.
        self.assertEqual(read_corpus(path, "en", columns=("path", "text")).rows, expected)

    def test_quoted_line_breaks_count_as_lines(self):
        content = 'path,text\r\na.wav,"one, ""two""\r\nthree"\r\n\r\nb.wav,four\r\n'
        rows = read_corpus(self.table(content, "a.wav"), "en").rows
        actual = [(row.line, row.text) for row in rows]
        self.assertEqual(actual, [(2, 'one, "two"\r\nthree'), (5, "four")])

    def test_rows_with_the_wrong_number_of_fields_are_rejected(self):
        path = self.table("path,text,speaker\na.wav,x,s\nb.wav,x\nc.wav,x,s,t\n ,x,s\n", "a.wav")
        rows = read_corpus(path, "en")
        self.assertEqual([row.id for row in rows.rows], ["a.wav"])
        self.assert_malformed(rows, 3, 4, 5)
        self.assertEqual([row.audio for row in rows.rejected], ["b.wav", "c.wav", ""])

    def test_an_unclosed_quote_is_an_error_that_names_its_line(self):
        for line, rows in ((3, 'a.wav,x\nb.wav,"x\nc.wav,x\n'), (2, f'a.wav,"x{"y" * 200_000}"\n')):
            self.assert_rejected(f"line {line} is not", self.table(f"path,text\n{rows}"))

    def test_between_bars_and_tabs_each_line_is_a_row(self):
        content = 'path|text|speaker\na.wav|"Where?|anna\nb.wav|He asked.|anna\nc.wav|Home."|anna\n'
        for separator in "|\t":
            path = self.table(content.replace("|", separator), "a.wav", "b.wav", "c.wav")
            self.assert_texts(path, '"Where?', "He asked.", 'Home."')
        broken = self.table('path|text|speaker\na.wav|"one\ntwo"|x\nc.wav|six|x\n')
        self.assert_texts(broken, "six")
        self.assert_malformed(read_corpus(broken, "en"), 2, 3)

    def test_paths_that_name_the_same_file_have_the_same_id(self):
        self.audio("b/c.wav")
        path = self.table("path,text\na.wav,x\n./b/../a.wav,x\na,x\n", "a.wav")
        self.assertEqual({row.id for row in read_corpus(path, "en").rows}, {"a.wav"})


class WithoutHeader(Case):
    def test_texts_with_unquoted_commas_are_rejected_with_the_separator_that_is_wanted(self):
        path = self.table("a,One\nb,Two, three\n", "wavs/a.wav")
        self.assert_rejected(r"line 2 .* 3 fields between commas. Separate .* by \|", path)

    def test_three_columns_need_the_flag_that_names_them(self):
        expected = [(f"Text {n}", f"s{n % 2}") for n in range(4)]
        for separator in "|\t;,":
            for columns, form in (
                (("path", "speaker", "text"), "u{n}|s{speaker}|Text {n}\n"),
                (("path", "text", "speaker"), "u{n}|Text {n}|s{speaker}\n"),
            ):
                lines = "".join(form.format(n=n, speaker=n % 2) for n in range(4))
                with self.subTest(columns, separator=separator):
                    path = self.table(lines.replace("|", separator), "wavs/u1.wav")
                    self.assert_rejected("not recognised.* --columns path text speaker", path)
                    found = read_corpus(path, "en", columns=columns).rows
                    self.assertEqual([(row.text, row.speaker) for row in found], expected)

    def test_columns_may_be_ignored_and_must_fit_the_file(self):
        path = self.table("7|a|One|en|\n8|b|Two|ka|3\n", "wavs/a.wav")
        columns = ("ignored", "path", "text", "language", "ignored")
        rows = read_corpus(path, "de", columns=columns)
        actual = [(row.text, row.language) for row in rows.rows]
        self.assertEqual(actual, [("One", "en"), ("Two", "ka")])
        self.assertIn("lines with |, columns path, text, language", rows.form)
        for wrong in ("path text", "path text text language ignored", "path speaker"):
            message = rf"--columns {wrong} should name path and text once.* has 5: '7\|a\|One"
            self.assert_rejected(message, path, columns=wrong.split())

    def test_a_file_named_metadata_has_texts_and_normalised_texts(self):
        lines = "\n".join(f"u{n}|{n}|norm {n}" for n in range(4))
        corpus = self.ljspeech(lines, audio=["u1.wav"])
        self.assert_texts(corpus, *(f"norm {n}" for n in range(4)))
        self.assert_rejected("not recognised", self.table(lines.replace("|", "\t")))

    def test_speakers_are_not_taken_for_texts(self):
        for form in ("u{n}|anna|Text {n}", "u{n}|Text {n}|anna"):
            with self.subTest(form):
                lines = "\n".join(form.format(n=n) for n in range(4))
                corpus = self.ljspeech(lines, audio=["u1.wav"])
                self.assert_rejected("1 values in 4 rows, as if it named speakers", corpus)

    def test_four_columns_need_names(self):
        self.audio("wavs/a.wav")
        for name in ("list.csv", "metadata.csv"):
            path = self.write(name, "a|anna|en|One\n")
            self.assert_rejected(r"begins with 'a.* --columns path text speaker", path)


class Written(Case):
    def read(self, path):
        """Return the rows of a corpus, and what is said of it; an error says everything."""
        with mock.patch.object(log, "warning") as warning:
            try:
                found = read_corpus(path, "en")
            except DataError as error:
                return [], str(error)
        said = [call.args[0] % call.args[1:] for call in warning.call_args_list]
        return found.rows, "\n".join([found.form, *said, *(row.detail for row in found.rejected)])

    def test_what_programs_write_for_nothing_is_answered(self):
        for case, (files, expected, pattern) in WRITTEN.items():
            with self.subTest(case):
                place = Path(case)
                self.audio(*(f"{place}/{name}.wav" for name in "abcd"))
                paths = [self.write(f"{place}/{name}", text) for name, text in files.items()]
                found, said = self.read(paths[0].parent if len(paths) > 1 else paths[0])
                actual = [f"{row.text}/{row.speaker}/{row.language}" for row in found]
                self.assertEqual(actual, expected)
                self.assertRegex(said, pattern)

    def test_subtitles_are_what_is_spoken(self):
        for case, (cues, expected, pattern) in CUES.items():
            with self.subTest(case):
                self.audio("a.wav")
                blocks = (
                    f"{number + 1}\n00:00:0{number},000 --> 00:00:0{number + 1},000\n{cue}\n"
                    for number, cue in enumerate(cues)
                )
                path = self.write("a.srt", "\n".join(blocks))
                found, said = self.read(path)
                self.assertEqual([row.text for row in found], expected or cues)
                self.assertRegex(said, pattern)

    def test_rolling_captions_are_a_row_for_each_line(self):
        self.audio("a.wav")
        found, said = self.read(self.write("a.vtt", ROLLING))
        actual = [(row.start_s, row.end_s, row.text) for row in found]
        self.assertEqual(actual, [(0.0, 2.39, "the hungry goat"), (2.4, 4.79, "the bushes")])
        self.assertIn("subtitles without 1 lines that roll; 2 rows in", said)


class Headers(Case):
    def test_the_headers_of_other_programs_are_known(self):
        expected = [("a.wav", "Hi", "anna", "ka")]
        for header, line in {
            "audio_file|text|speaker_name|language": "a.wav|Hi|anna|ka",  # Coqui TTS
            # Common Voice.
            "client_id\tpath\tsentence_id\tsentence\tlocale\tsegment": "anna\ta.wav\t7\tHi\tka\t",
            "file_name,transcription,speaker_id,lang": "a.wav,Hi,anna,ka",  # Hugging Face
            # DeepSpeech.
            "wav_filename,wav_filesize,transcript,Speaker,LANGUAGE": "a.wav,9,Hi,anna,ka",
            '"Audio File";"Text";"speaker-name";"lang"': '"a.wav";"Hi";"anna";"ka"',
            ",id,text,spk,language": "0,a,Hi,anna,ka",  # pandas with its index
            # A spreadsheet with empty columns.
            "path,text,speaker,language,,": "a.wav,Hi,anna,ka,,",
        }.items():
            rows = read_corpus(self.table(f"{header}\n{line}\n", "a.wav"), "en").rows
            actual = [(row.audio, row.text, row.speaker, row.language) for row in rows]
            self.assertEqual(actual, expected, header)

    def test_of_two_columns_with_one_meaning_the_first_name_in_the_documentation_is_used(self):
        path = self.table("file,audio_file,sentence,text\nx.wav,a.wav,no,yes\n", "a.wav", "x.wav")
        rows = read_corpus(path, "en")
        self.assertEqual([(row.audio, row.text) for row in rows.rows], [("a.wav", "yes")])
        self.assertIn("columns audio_file, text; 1 rows in", rows.form)

    def test_what_a_spreadsheet_leaves_empty_is_no_row_and_no_field(self):
        rows = read_corpus(self.table("\n\npath,text\na.wav,x\n,\n , \n", "a.wav"), "en")
        self.assertEqual(([row.line for row in rows.rows], rows.rejected), ([4], ()))
        self.assertEqual(self.found(self.table("path,text\na.wav,x,,\n", "a.wav")), ["a.wav"])


class AudioFiles(Case):
    def test_a_file_with_another_suffix_is_found(self):
        for suffix in (".flac", ".ogg", ".opus", ".mp3", ".WAV", ".Mp3"):
            name = f"wavs/v1.0{suffix}"
            with self.subTest(suffix):
                corpus = self.ljspeech("v1.0|x\nv1.0.wav|x\nv1.0.flac|x\n", audio=[f"v1.0{suffix}"])
                self.assertEqual(self.found(corpus), [name] * 3)
                actual = self.found(self.table("path,text\nwavs/v1.0.aiff,x\nwavs/v1.0,x\n"))[1]
                self.assertEqual(actual, name)
            (self.folder / name).unlink()

    def test_of_several_files_the_first_in_the_order_of_suffixes_is_taken(self):
        corpus = self.ljspeech("a|x\na.mp3|x\na.opus|x\n", audio=["a.mp3", "a.flac", "a.ogg"])
        self.assertEqual(self.found(corpus), ["wavs/a.flac", "wavs/a.mp3", "wavs/a.flac"])
        for name in ("wavs/a.WAV", "wavs/a.wav"):
            self.audio(name, "wavs/a.txt")
            self.assertEqual(self.found(corpus), [name, "wavs/a.mp3", name])

    def test_the_audio_folder_of_lines_may_have_other_names(self):
        self.write("metadata.csv", "a|x\n")
        # Each is preferred to the ones before.
        for place in ("", "clips/", "Audio/", "wav/", "wavs/"):
            self.audio(f"{place}a.mp3")
            self.assertEqual(self.found(self.folder), [f"{place}a.mp3"])

    def test_lines_may_have_paths_instead_of_ids(self):
        self.audio("wavs/a.flac")
        self.assertEqual(self.found(self.table("wavs/a.wav|x\nwavs\\a|x\n")), ["wavs/a.flac"] * 2)

    def test_the_paths_of_a_table_may_lack_the_audio_folder(self):
        path = self.table("client_id\tpath\tsentence\ns\ta.mp3\tx\n")
        for name in ("clips/a.mp3", "a.mp3"):
            self.audio(name)
            self.assertEqual(self.found(path), [name])

    def test_unicode_forms_of_names_are_equal(self):
        composed, decomposed = "\u00e9", "e\u0301"
        for written, asked in ((composed, decomposed), (decomposed, composed)):
            self.audio(f"wavs/{written}.flac")
            self.assertEqual(self.found(self.table(f"{asked}|x\n")), [f"wavs/{written}.flac"])
            shutil.rmtree(self.folder / "wavs")

    def test_a_backslash_separates_folders_unless_a_name_has_it(self):
        path = self.table("path,text\nsub\\a.wav,x\n")
        for name in ("sub/a.wav", "sub\\a.wav"):
            self.audio(name)
            self.assertEqual(self.found(path), [name])

    def test_absolute_paths_in_the_folder_are_found_with_any_suffix(self):
        content = f"path,text\n{self.folder}/a.wav,x\n{self.folder}/b.wav,x\n"
        self.assertEqual(self.found(self.table(content, "a.wav", "b.flac")), ["a.wav", "b.flac"])

    def test_audio_elsewhere_is_an_error_that_names_the_flag(self):
        self.audio("data/a.wav")
        for path in (f"{self.folder}/data/a.wav", "C:\\data\\a.wav", "../data/a.wav", "a.wav"):
            table = self.table(f"path,text\n{path},x\n", name="corpus/list.csv")
            self.assert_rejected("none of the 1 audio files of .* is not in .*--audio-root", table)

    def test_the_audio_root_is_searched_first(self):
        corpus = self.ljspeech("a|x\n", audio=["a.wav"])
        self.audio("other/a.flac", "third/clips/a.mp3", "fourth/b.wav")
        for root, expected in (
            *(("other", "other/a.flac"), ("third", "third/clips/a.mp3")),
            ("fourth", "wavs/a.wav"),
        ):
            self.assertEqual(self.found(corpus, root=self.folder / root), [expected])
        none = self.folder / "none"
        self.assert_rejected("--audio-root .*none does not exist", corpus, root=none)

    def test_a_folder_is_listed_once_for_all_rows(self):
        names = [f"u{n}" for n in range(1_000)]
        corpus = self.ljspeech("|x\n".join([*names, ""]), audio=[f"{name}.flac" for name in names])
        with mock.patch("os.listdir", side_effect=os.listdir) as listdir:
            self.assertEqual(len(self.found(corpus)), 1_000)
        listed = [str(call.args[0]) for call in listdir.call_args_list if call.args]
        here = str(self.folder)
        self.assertEqual(len([name for name in listed if name.startswith(here)]), 2)


class Form(Case):
    def test_the_log_names_the_form_of_each_metadata_file_once(self):
        self.ljspeech("a|x\nb|x\nc|x\n", audio=["a.flac", "b.flac", "c.mp3"])
        with self.assertLogs("myxtts.corpus.layouts", "INFO") as logs:
            rows_of(self.folder)
        place = f"{self.folder}/metadata.csv; audio in {self.folder}/wavs: 2 .flac, 1 .mp3"
        expected = [f"corpus form    lines with |, columns path, text; 3 rows in {place}"]
        self.assertEqual([record.getMessage() for record in logs.records], expected)
        with self.assertLogs("myxtts.corpus.layouts", "INFO") as logs:
            rows_of(self.folder, self.table("audio_file;text\na.flac;x\n"))
        message = logs.records[1].getMessage()
        self.assertIn("table with semicolons, columns audio_file, text; 1 rows in", message)


class Guide(Case):
    guide = (Path(__file__).parents[1] / "docs" / "guides" / "data.md").read_text(encoding="utf-8")

    def test_it_lists_all_column_names_in_their_order(self):
        for names in tables.COLUMN_NAMES.values():
            self.assertIn("| " + ", ".join(f"`{name}`" for name in names) + " |", self.guide)


class Rejected(Case):
    def test_a_missing_path_is_rejected_and_not_created(self):
        for path in (self.folder / "missing", self.folder / ("x" * 300), Path("nowhere/corpus")):
            self.assert_rejected(f"does not exist in {Path.cwd()}. Give an LJSpeech folder", path)

    def test_a_file_of_no_known_form_is_rejected(self):
        self.audio("a.wav")
        for content in (
            *("path,words,minutes\na.wav,x,y\n", "path,path,text\na.wav,b,x\n", "path\na.wav\n"),
            *("a.wav\n", "RIFF WAVE"),
        ):
            self.assert_rejected("not recognised. It begins with", self.write("list.csv", content))

    def test_json_that_is_not_json_lines_is_rejected(self):
        entry = '{"audio_filepath": "a.wav", "text": "x"}'
        for content in (f"[{entry}]", f"[\n{entry}\n]\n", "{\n}\n", "{a: 1}", "{} {}"):
            for name in ("list.jsonl", "metadata.csv"):
                path = self.write(name, content)
                self.assert_rejected("one JSON object in each line, but begins with", path)

    def test_a_file_without_utterances_is_rejected(self):
        for content in ("path,text\n\n", "path|text\n", "path,text\n,\n"):
            self.assert_rejected("no utterances", self.write("list.csv", content))
        for content in ("", " \n\n", "\t\t\n\t\n", ",,\n", ";", '"",""\n'):
            for name in ("list.csv", "metadata.csv"):
                self.assert_rejected("is empty, or has nothing but", self.write(name, content))

    def test_a_file_that_is_not_utf_8_text_is_rejected(self):
        for content in ("path,text\na.wav,x\n".encode("utf-16"), "a,\xe9\n".encode("latin-1")):
            self.assert_rejected("not UTF-8", self.write("list.csv", content))
        for content in ("path,text\na\0.wav,x\n", "RIFF\0\0WAVE", "a|x\n".encode("utf-16-le")):
            self.assert_rejected("binary or UTF-16", self.write("list.csv", content))

    def test_a_name_longer_than_any_path_is_shown_in_part(self):
        path = self.write("list.csv", f"path,text\n{'a/' * 50_000},b\n")
        with self.assertRaisesRegex(DataError, "none of the 1 audio files") as caught:
            read_corpus(path, "en")
        self.assertLess(len(str(caught.exception)), 2_000)


class HoldOut(unittest.TestCase):
    def rows(self, ids):
        rows = tuple(Row(line, id_, f"{id_}.wav", "x", "s", "en") for line, id_ in enumerate(ids))
        return Rows(Path("metadata.csv"), Path("wavs"), RowTuple(rows))

    def ids(self, part):
        return {row.id for row in part.rows}

    def test_both_parts_are_disjoint_and_complete_with_the_requested_size(self):
        ids = [f"u{n}" for n in range(200)]
        train, validation = hold_out(self.rows(ids), 0.05, seed=3)
        self.assertEqual(len(validation.rows), 10)
        actual = [row.id for row in train.rows]
        self.assertEqual(actual, [id_ for id_ in ids if id_ not in self.ids(validation)])

    def test_the_split_depends_on_the_seed_but_not_on_the_row_order(self):
        ids = [f"u{n}" for n in range(200)]
        _, validation = hold_out(self.rows(ids), 0.1, seed=0)
        random.Random(1).shuffle(ids)
        self.assertEqual(self.ids(hold_out(self.rows(ids), 0.1, seed=0)[1]), self.ids(validation))
        actual = self.ids(hold_out(self.rows(ids), 0.1, seed=1)[1])
        self.assertNotEqual(actual, self.ids(validation))

    def test_each_part_of_two_or_more_utterances_is_not_empty(self):
        for share, ids in ((0.001, "ab"), (0.999, "ab"), (0.5, "abc")):
            train, validation = hold_out(self.rows(ids), share, seed=0)
            self.assertTrue(train.rows and validation.rows, (share, ids))
        self.assertEqual(len(hold_out(self.rows("a"), 0.5, seed=0)[0].rows), 1)
        self.assertEqual(hold_out(self.rows("abc"), 0.0, seed=0)[1].rows, ())

    def test_rows_with_the_same_id_stay_together(self):
        train, validation = hold_out(self.rows("aabbccdd"), 0.5, seed=0)
        self.assertEqual((len(train.rows), len(validation.rows)), (4, 4))
        self.assertFalse(self.ids(train) & self.ids(validation))
