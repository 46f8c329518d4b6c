"""Metadata files become rows; unusable paths and files are rejected with a helpful message."""

import os
import random
import shutil
import unittest
from pathlib import Path
from unittest import mock

from myxtts.data import metadata_file
from myxtts.data.metadata_file import (
    COLUMN_NAMES,
    DEFAULT_SPEAKER,
    MAX_LINE_CHARACTERS,
    Row,
    Rows,
    hold_out,
    read_corpora,
    read_corpus,
)
from myxtts.errors import DataError
from tests.fixtures import FolderCase


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

    def assert_rejected(self, pattern, path, language="en"):
        before = sorted(self.folder.rglob("*"))
        with self.assertRaisesRegex(DataError, pattern):
            read_corpus(path, language)
        self.assertEqual(sorted(self.folder.rglob("*")), before)


class WithoutText(Case):
    def rows(self, path):
        rows = read_corpus(path, "en", needs_text=False)
        return [(row.audio, row.text, row.speaker) for row in rows.rows]

    def test_a_folder_of_audio_is_a_corpus(self):
        self.audio(
            "b.flac", "wavs/a.wav", "anna/c.WAV", ".cache/d.wav", "anna/._c.wav", "anna/notes.txt"
        )
        expected = [
            ("b.flac", "", DEFAULT_SPEAKER),
            ("anna/c.WAV", "", "anna"),
            ("wavs/a.wav", "", DEFAULT_SPEAKER),
        ]
        self.assertEqual(self.rows(self.folder), expected)
        # For a task with texts.
        self.assert_rejected("no metadata.csv, only audio such as b.flac", self.folder)

    def test_files_of_other_formats_are_rejected_and_listed(self):
        self.audio("a.wav", "b.m4a")
        rows = read_corpus(self.folder, "en", needs_text=False)
        actual = [(row.audio, row.reason) for row in rows.rejected]
        self.assertEqual(actual, [("b.m4a", "unreadable format")])

    def test_a_folder_without_audio_says_what_it_has(self):
        for names, pattern in (
            ((), "neither metadata.csv nor audio"),
            (("x/b.m4a",), "only x/b.m4a .this format can"),
        ):
            self.audio(*names)
            with self.assertRaisesRegex(DataError, pattern):
                read_corpus(self.folder, "en", needs_text=False)

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
        with (
            mock.patch("os.scandir", side_effect=denied),
            self.assertRaisesRegex(
                DataError, "^the folder anna cannot be read: Permission denied. Fix its"
            ),
        ):
            read_corpus(self.folder, "en", needs_text=False)

    def test_a_missing_audio_root_is_an_error(self):
        self.audio("b.wav")
        with self.assertRaisesRegex(DataError, "--audio-root .*none does not exist"):
            read_corpus(self.folder, "en", root=self.folder / "none", needs_text=False)

    def test_metadata_needs_no_column_of_texts(self):
        for content in (
            "path,speaker\na.wav,anna\nb.wav,berta\n",
            "path|speaker|text\na.wav|anna|\nb.wav|berta|\n",
        ):
            table = self.table(content, "a.wav", "b.wav")
            self.assertEqual(self.rows(table), [("a.wav", "", "anna"), ("b.wav", "", "berta")])
        names = self.ljspeech("a\nb.wav\n", audio=("a.wav", "b.wav"))
        actual = self.rows(names)
        self.assertEqual(actual, [("a.wav", "", DEFAULT_SPEAKER), ("b.wav", "", DEFAULT_SPEAKER)])

    def test_metadata_with_texts_is_read_as_ever(self):
        folder = self.ljspeech("a|Dr. A|Doctor A\n")
        self.assertEqual(self.rows(folder), [("a.wav", "Doctor A", DEFAULT_SPEAKER)])


class LJSpeech(Case):
    def test_the_normalised_text_is_preferred(self):
        rows = read_corpus(self.ljspeech("a|Dr. A|Doctor A\nb|Only this\nc|Kept|\n"), "en")
        self.assertEqual([row.text for row in rows.rows], ["Doctor A", "Only this", "Kept"])
        self.assertEqual(rows.folder, self.folder / "wavs")

    def test_ids_match_files_with_or_without_a_suffix(self):
        rows = read_corpus(
            self.ljspeech("LJ001.0001|x\nb.wav|x\nc.FLAC|x\nsub/d|x\n", audio=["b.wav"]), "en"
        ).rows
        audios = [row.audio for row in rows]
        self.assertEqual(audios, ["LJ001.0001.wav", "b.wav", "c.FLAC", "sub/d.wav"])

    def test_quotes_and_unicode_line_separators_are_text(self):
        rows = read_corpus(
            self.ljspeech('a|"Hello, he said.\r\nb|one\u2028two\x85three\n'), "en"
        ).rows
        actual = [(row.line, row.text) for row in rows]
        self.assertEqual(actual, [(1, '"Hello, he said.'), (2, "one\u2028two\x85three")])

    def test_malformed_rows_are_rejected_with_their_line(self):
        rows = read_corpus(self.ljspeech("a|fine\n\njust words\n|no id\na|b|c|d\n"), "en")
        self.assertEqual([row.id for row in rows.rows], ["a.wav"])
        actual = [(row.line, row.reason) for row in rows.rejected]
        self.assertEqual(actual, [(n, "malformed row") for n in (3, 4, 5)])

    def test_a_metadata_file_can_be_given_directly(self):
        self.ljspeech("a|x\n", "metadata_train.csv")
        self.assertEqual(len(read_corpus(self.folder / "metadata_train.csv", "en").rows), 1)

    def test_a_folder_with_train_and_eval_metadata_provides_both_corpora(self):
        self.ljspeech("a|x\nb|x\nbad\n", "metadata_train.csv")
        self.ljspeech("c|x\n|bad\n", "metadata_eval.csv", audio=["c.wav"])
        train, validation, rejected = read_corpora(self.folder, None, "en", 0.5, seed=0)
        actual = [[row.id for row in part.rows] for part in (train, validation)]
        self.assertEqual(actual, [["a.wav", "b.wav"], ["c.wav"]])
        names = [Path(row.metadata).name for row in rejected]
        self.assertEqual(names, ["metadata_train.csv", "metadata_eval.csv"])
        by_file = read_corpora(self.folder / "metadata_train.csv", None, "en", 0.5, seed=0)
        self.assertEqual(by_file, (train, validation, rejected))

    def test_validation_on_the_training_corpus_by_another_name_is_an_error(self):
        corpus, table = self.ljspeech("a|x\nb|x\n"), self.table("path,text\nd.wav,x\n", "d.wav")
        linked = self.folder / "linked.csv"
        linked.symlink_to(table)
        for train, other in ((corpus, corpus / "metadata.csv"), (table, linked)):
            with (
                self.subTest(other),
                self.assertRaisesRegex(DataError, "are both .* measure what was trained on"),
            ):
                read_corpora(train, other, "en", 0.5, seed=0)

    def test_without_validation_data_rows_are_held_out_and_malformed_rows_listed_once(self):
        train, validation, rejected = read_corpora(
            self.ljspeech("a|x\nb|x\nc|x\nd|x\nbad\n|bad\n"), None, "en", 0.25, 0
        )
        self.assertEqual((len(train.rows), len(validation.rows), len(rejected)), (3, 1, 2))
        self.assertEqual(len(train.rejected) + len(validation.rejected), 2)

    def test_a_given_validation_corpus_overrides_the_one_in_the_folder(self):
        self.ljspeech("a|x\n", "metadata_train.csv")
        self.ljspeech("c|x\n", "metadata_eval.csv")
        table = self.table("path,text\nd.wav,x\n", "d.wav")
        _, validation, _ = read_corpora(self.folder, table, "en", 0.5, seed=0)
        self.assertEqual([row.id for row in validation.rows], ["d.wav"])


class Tables(Case):
    def test_every_separator_is_detected(self):
        for separator in ",;\t|":
            path = self.table(
                separator.join(["path", "text"]) + "\n" + separator.join(["a.wav", "hi"]), "a.wav"
            )
            expected = (Row(2, "a.wav", "a.wav", "hi", DEFAULT_SPEAKER, "ka"),)
            self.assertEqual(read_corpus(path, "ka").rows, expected, separator)

    def test_columns_are_found_by_name_in_any_order(self):
        path = self.table(
            "\ufefflanguage, Text ,minutes,speaker,PATH\nfa,hi,3,anna,x/a.wav\n,ho,4,,b.wav\n",
            "b.wav",
        )
        expected = (
            Row(2, "x/a.wav", "x/a.wav", "hi", "anna", "fa"),
            Row(3, "b.wav", "b.wav", "ho", DEFAULT_SPEAKER, "en"),
        )
        self.assertEqual(read_corpus(path, "en").rows, expected)

    def test_quoted_line_breaks_count_as_lines(self):
        path = self.table(
            'path,text\r\na.wav,"one, ""two""\r\nthree"\r\n\r\nb.wav,four\r\n', "a.wav"
        )
        rows = read_corpus(path, "en").rows
        actual = [(row.line, row.text) for row in rows]
        self.assertEqual(actual, [(2, 'one, "two"\r\nthree'), (5, "four")])

    def test_rows_with_the_wrong_number_of_fields_are_rejected(self):
        path = self.table("path,text,speaker\na.wav,x,s\nb.wav,x\nc.wav,x,s,t\n ,x,s\n", "a.wav")
        rows = read_corpus(path, "en")
        self.assertEqual([row.id for row in rows.rows], ["a.wav"])
        actual = [(row.line, row.audio) for row in rows.rejected]
        self.assertEqual(actual, [(3, "b.wav"), (4, "c.wav"), (5, "")])

    def test_an_unclosed_quote_affects_only_its_row(self):
        self.assert_rejected(
            "line 3 is not", self.write("list.csv", 'path,text\na.wav,x\nb.wav,"x\nc.wav,x\n')
        )
        self.assert_rejected(
            "line 2 is not", self.write("list.csv", 'path,text\na.wav,"x' + "y" * 200_000 + '"\n')
        )

    def test_between_bars_and_tabs_each_line_is_a_row(self):
        quotation = 'a.wav|"Where?|anna\nb.wav|He asked.|anna\nc.wav|I go home."|anna\n'
        for separator in "|\t":
            content = f"path|text|speaker\n{quotation}".replace("|", separator)
            rows = read_corpus(self.table(content, "a.wav", "b.wav", "c.wav"), "en").rows
            texts = [row.text for row in rows]
            self.assertEqual(texts, ['"Where?', "He asked.", 'I go home."'], content)
        broken = 'path|text|speaker\na.wav|"one\ntwo"|x\nc.wav|six|x\n'
        rows = read_corpus(self.table(broken), "en")
        self.assertEqual([row.text for row in rows.rows], ["six"])
        self.assertEqual([row.line for row in rows.rejected], [2, 3])

    def test_paths_that_name_the_same_file_have_the_same_id(self):
        self.audio("b/c.wav")
        rows = read_corpus(
            self.table("path,text\na.wav,x\n./b/../a.wav,x\na,x\n", "a.wav"), "en"
        ).rows
        self.assertEqual({row.id for row in rows}, {"a.wav"})


class WithoutHeader(Case):
    def forms(self, content, *audio):
        """Return (text, speaker) of each row."""
        self.audio(*(f"wavs/{name}" for name in audio or ("a.wav",)))
        return [(row.text, row.speaker) for row in read_corpus(self.table(content), "en").rows]

    def test_lines_of_two_fields_may_have_any_separator(self):
        for content in (
            "a\tOne, two\nb\tThree\n",
            "a;One, two\nb;Three\n",
            'a,"One, two"\nb,Three\n',
        ):
            actual = [text for text, _ in self.forms(content)]
            self.assertEqual(actual, ["One, two", "Three"], content)

    def test_texts_with_unquoted_commas_are_rejected_with_the_separator_that_is_wanted(self):
        self.audio("wavs/a.wav")
        path = self.write("list.csv", "a,One\nb,Two, three\n")
        self.assert_rejected(
            r"by commas into 2 fields in line 1, but 3 in line 2: separate id and text by \|", path
        )

    def test_the_first_separator_counts_but_bars_and_tabs_come_first(self):
        for content in ("a,One; two\n", "a;One; two\n".replace("; ", ", "), "a|One, two; three\n"):
            with self.subTest(content):
                self.assertEqual(len(self.forms(content)), 1)

    def test_three_columns_need_the_flag_that_names_them(self):
        expected = [(f"Text {n}", f"s{n % 2}") for n in range(4)]
        for separator in "|\t;,":
            for columns in (("path", "speaker", "text"), ("path", "text", "speaker")):
                rows = [
                    {"path": f"u{n}", "speaker": speaker, "text": text}
                    for n, (text, speaker) in enumerate(expected)
                ]
                content = "\n".join(separator.join(row[name] for name in columns) for row in rows)
                with self.subTest(content):
                    path = self.table(content, "wavs/u1.wav")
                    self.assert_rejected("3 columns .* --columns path text speaker", path)
                    found = read_corpus(path, "en", columns=columns).rows
                    self.assertEqual([(row.text, row.speaker) for row in found], expected)

    def test_columns_may_be_ignored_and_must_fit_the_file(self):
        self.audio("wavs/a.wav")
        path = self.write("list.csv", "7|a|One|en|\n8|b|Two|ka|3\n")
        columns = ("ignored", "path", "text", "language", "ignored")
        rows = read_corpus(path, "de", columns=columns)
        actual = [(row.text, row.language) for row in rows.rows]
        self.assertEqual(actual, [("One", "en"), ("Two", "ka")])
        self.assertIn("lines of ignored|id|text|language|ignored, no header", rows.form)
        for wrong, pattern in (
            (("path", "text"), r"names 2 columns .* has 5: '7\|a\|One"),
            (("path", "text", "text", "language", "ignored"), "should name path and text once"),
            (("path", "speaker"), "should name path and text once"),
        ):
            with self.subTest(wrong), self.assertRaisesRegex(DataError, f"--columns .*{pattern}"):
                read_corpus(path, "en", columns=wrong)

    def test_a_header_counts_more_than_named_columns(self):
        path = self.table("text,path\nOne,a.wav\n", "a.wav")
        rows = read_corpus(path, "en", columns=("path", "text")).rows
        self.assertEqual([row.text for row in rows], ["One"])

    def test_a_file_named_metadata_has_texts_and_normalised_texts(self):
        lines = [f"u{n}|{n}|norm {n}" for n in range(4)]
        rows = read_corpus(self.ljspeech("\n".join(lines), audio=["u1.wav"]), "en").rows
        self.assertEqual([row.text for row in rows], [f"norm {n}" for n in range(4)])
        self.assert_rejected(
            "3 columns separated by tabs", self.table("\n".join(lines).replace("|", "\t"))
        )

    def test_speakers_are_not_taken_for_texts(self):
        for form in ("u{n}|anna|Text {n}", "u{n}|Text {n}|anna"):
            with self.subTest(form):
                lines = "\n".join(form.format(n=n) for n in range(4))
                corpus = self.ljspeech(lines, audio=["u1.wav"])
                self.assert_rejected("1 values in 4 rows, as if it named speakers", corpus)

    def test_four_columns_need_names(self):
        self.audio("wavs/a.wav")
        for name in ("list.csv", "metadata.csv"):
            self.assert_rejected(
                r"4 columns .* --columns path text speaker", self.write(name, "a|anna|en|One\n")
            )

    def test_separators_at_the_end_of_lines_are_ignored(self):
        actual = self.forms("a|One|\nb|Two||\nc|Three|||\n")
        self.assertEqual(actual, [(t, "default") for t in ("One", "Two", "Three")])
        self.assertEqual(self.forms("a,One,,\nb,Two,,\n"), [("One", "default"), ("Two", "default")])

    def test_line_ends_may_be_of_any_system(self):
        for end in ("\n", "\r\n", "\r"):
            actual = self.forms(f"\ufeffa|One{end}b|Two{end}")
            self.assertEqual(actual, [("One", "default"), ("Two", "default")])

    def test_json_is_named(self):
        self.assert_rejected(
            "is JSON, .* CSV header path,text",
            self.write("m.jsonl", '{"audio_filepath": "a.wav"}\n'),
        )


class Headers(Case):
    def test_the_headers_of_other_programs_are_known(self):
        expected = [("a.wav", "Hi", "anna", "ka")]
        for header, line in {
            "audio_file|text|speaker_name|language": "a.wav|Hi|anna|ka",  # Coqui TTS
            # Common Voice.
            "client_id\tpath\tsentence_id\tsentence\tlocale\tsegment": ("anna\ta.wav\t7\tHi\tka\t"),
            "file_name,transcription,speaker_id,lang": "a.wav,Hi,anna,ka",  # Hugging Face
            # DeepSpeech.
            "wav_filename,wav_filesize,transcript,Speaker,LANGUAGE": ("a.wav,9,Hi,anna,ka"),
            '"Audio File";"Text";"speaker-name";"lang"': '"a.wav";"Hi";"anna";"ka"',
            ",id,text,spk,language": "0,a,Hi,anna,ka",  # pandas with its index
            # A spreadsheet with empty columns.
            "path,text,speaker,language,,": ("a.wav,Hi,anna,ka,,"),
        }.items():
            rows = read_corpus(self.table(f"{header}\n{line}\n", "a.wav"), "en").rows
            actual = [(row.audio, row.text, row.speaker, row.language) for row in rows]
            self.assertEqual(actual, expected, header)

    def test_of_two_columns_with_one_meaning_the_first_name_in_the_documentation_is_used(self):
        path = self.table("file,audio_file,sentence,text\nx.wav,a.wav,no,yes\n", "a.wav", "x.wav")
        rows = read_corpus(path, "en")
        self.assertEqual([(row.audio, row.text) for row in rows.rows], [("a.wav", "yes")])
        self.assertIn("columns audio_file=path, text (not file, sentence); 1 row in", rows.form)

    def test_a_normalised_text_is_preferred_unless_it_is_empty(self):
        path = self.table("id|text|normalized_text\na|5|five\nb|six|\n", "wavs/a.wav")
        self.assertEqual([row.text for row in read_corpus(path, "en").rows], ["five", "six"])

    def test_quotes_between_tabs_are_text_unless_they_enclose_a_field(self):
        path = self.table(
            'path\tsentence\na.wav\t"No," he said.\nb.wav\t"""Yes"" and no"\nc.wav\t"open\n',
            "a.wav",
        )
        texts = [row.text for row in read_corpus(path, "en").rows]
        self.assertEqual(texts, ['"No," he said.', '"Yes" and no', '"open'])

    def test_empty_lines_of_a_spreadsheet_are_no_rows(self):
        rows = read_corpus(self.table("\n\npath,text\na.wav,x\n,\n , \n", "a.wav"), "en")
        self.assertEqual(([row.line for row in rows.rows], rows.rejected), ([4], ()))

    def test_separators_at_the_end_of_rows_are_ignored(self):
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
        self.audio("wavs/a.WAV", "wavs/a.txt")
        self.assertEqual(self.found(corpus), ["wavs/a.WAV", "wavs/a.mp3", "wavs/a.WAV"])
        self.audio("wavs/a.wav")
        self.assertEqual(self.found(corpus), ["wavs/a.wav", "wavs/a.mp3", "wavs/a.wav"])

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
        path = self.table("client_id\tpath\tsentence\ns\ta.mp3\tx\n", "clips/a.mp3")
        self.assertEqual(self.found(path), ["clips/a.mp3"])
        self.audio("a.mp3")
        self.assertEqual(self.found(path), ["a.mp3"])

    def test_unicode_forms_of_names_are_equal(self):
        composed, decomposed = "\u00e9", "e\u0301"
        for written, asked in ((composed, decomposed), (decomposed, composed)):
            self.audio(f"wavs/{written}.flac")
            self.assertEqual(self.found(self.table(f"{asked}|x\n")), [f"wavs/{written}.flac"])
            shutil.rmtree(self.folder / "wavs")

    def test_a_backslash_separates_folders_unless_a_name_has_it(self):
        path = self.table("path,text\nsub\\a.wav,x\n", "sub/a.wav")
        self.assertEqual(self.found(path), ["sub/a.wav"])
        self.audio("sub\\a.wav")
        self.assertEqual(self.found(path), ["sub\\a.wav"])

    def test_absolute_paths_in_the_folder_are_found_with_any_suffix(self):
        path = self.table(
            f"path,text\n{self.folder}/a.wav,x\n{self.folder}/b.wav,x\n", "a.wav", "b.flac"
        )
        self.assertEqual(self.found(path), ["a.wav", "b.flac"])

    def test_paths_elsewhere_are_explained(self):
        self.audio("data/one/a.wav", "data/two/b.wav", "corpus/d.m4a")
        for path, pattern in {
            f"{self.folder}/data/one/a.wav": rf"outside of .*--audio-root {self.folder}/data\.",
            "/nowhere/a.wav": "no such file on this computer: write paths relative to",
            "C:\\data\\a.wav": "path of a Windows computer: write paths relative to",
            os.path.relpath(
                self.folder / "data/one/a.wav"
            ): r"relative to the current folder: give --audio-root \.",
            "d.wav": "corpus has d.m4a, which cannot be read: convert it",
            "nowhere.wav": "Correct the names, or give the folder",
        }.items():
            table = self.table(
                f"path,text\n{path},x\n{self.folder}/data/two/b.wav,x\n", name="corpus/list.csv"
            )
            self.assert_rejected(rf"none of the 2 audio files of (?s:.*){pattern}", table)

    def test_the_audio_root_is_searched_first(self):
        corpus = self.ljspeech("a|x\n", audio=["a.wav"])
        self.audio("other/a.flac", "third/clips/a.mp3", "fourth/b.wav")
        for root, expected in {
            "other": "other/a.flac",
            "third": "third/clips/a.mp3",
            "fourth": "wavs/a.wav",
        }.items():
            self.assertEqual(self.found(corpus, root=self.folder / root), [expected])
        self.assert_rejected("no metadata", self.folder / "other")

    def test_a_folder_is_listed_once_for_all_rows(self):
        corpus = self.ljspeech(
            "".join(f"u{n}|x\n" for n in range(1_000)), audio=[f"u{n}.flac" for n in range(1_000)]
        )
        with (
            mock.patch("os.listdir", side_effect=os.listdir) as listdir,
            mock.patch("os.stat", side_effect=os.stat),
        ):
            self.assertEqual(len(self.found(corpus)), 1_000)
            self.assertEqual(listdir.call_count, 2)


class Form(Case):
    def test_the_log_names_the_form_of_each_metadata_file_once(self):
        self.ljspeech("a|x\nb|x\nc|x\n", audio=["a.flac", "b.flac", "c.mp3"])
        with self.assertLogs("myxtts.data.metadata_file", "INFO") as logs:
            read_corpora(self.folder, None, "en", 0.5, seed=0)
        place = (
            f"3 rows in {self.folder}/metadata.csv; audio in {self.folder}/wavs: 2 .flac, 1 .mp3"
        )
        expected = [f"corpus form    lines of id|text, no header; {place}"]
        self.assertEqual([record.getMessage() for record in logs.records], expected)
        with self.assertLogs("myxtts.data.metadata_file", "INFO") as logs:
            read_corpora(self.folder, self.table("audio_file;text\na.flac;x\n"), "en", 0.5, seed=0)
        message = logs.records[1].getMessage()
        self.assertIn("table with semicolons, columns audio_file=path, text; 1 row in", message)


class Guide(Case):
    guide = (Path(__file__).parents[1] / "docs" / "guides" / "data.md").read_text(encoding="utf-8")

    def test_it_lists_all_column_names_in_their_order(self):
        for names in COLUMN_NAMES.values():
            self.assertIn("| " + ", ".join(f"`{name}`" for name in names) + " |", self.guide)

    def test_its_program_writes_a_table_of_vctk(self):
        corpus = self.folder / "VCTK-Corpus-0.92"
        self.audio(
            *(
                f"{corpus.name}/wav48_silence_trimmed/p225/p225_{n}_mic{n % 2 + 1}.flac"
                for n in range(4)
            )
        )
        for n in range(4):
            self.write(f"{corpus.name}/txt/p225/p225_{n}.txt", f"Text, {n}\n")
        program = self.guide.split("```python\n")[1].split("```")[0]
        exec(program.replace(f'"{corpus.name}"', repr(str(corpus))))
        rows = read_corpus(corpus, "en").rows
        actual = [(row.text, row.speaker) for row in rows]
        self.assertEqual(actual, [("Text, 0", "p225"), ("Text, 2", "p225")])
        actual = self.found(corpus)[0]
        self.assertEqual(actual, f"{corpus.name}/wav48_silence_trimmed/p225/p225_0_mic1.flac")


class Alternatives(Case):
    def rejected_with(self, pattern, *names):
        for name in names:
            self.write(name, "a|x\n")
        self.assert_rejected(f"no metadata.csv{pattern}", self.folder)
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def test_a_folder_without_metadata_csv_is_told_what_it_has(self):
        self.rejected_with(
            r", but it has train.tsv, dev.tsv\. .*such as .*/train.tsv",
            "dev.tsv",
            "train.tsv",
            "clips/a.mp3",
        )
        self.rejected_with(
            ", and JSON such as metadata.jsonl is not read", "metadata.jsonl", "wavs/a.wav"
        )
        self.rejected_with(", but .*/LJSpeech-1.1 has one", "LJSpeech-1.1/metadata.csv")
        self.rejected_with(
            ", only audio such as p225/a.flac.*path,text,speaker.*p225/a.flac,TEXT,p225",
            "p225/a.flac",
        )

    def test_the_audio_folder_instead_of_the_corpus_is_named(self):
        self.assert_rejected(f"but {self.folder} has one", self.ljspeech("a|x\n") / "wavs")

    def test_metadata_may_be_a_tsv_or_text_file(self):
        for name in ("metadata.txt", "metadata.tsv"):
            self.ljspeech("a\tx\n", name)
            self.assertEqual(read_corpus(self.folder, "en").metadata.name, name)


class Rejected(Case):
    def test_a_missing_path_is_rejected_and_not_created(self):
        self.assert_rejected("does not exist", self.folder / "missing")
        self.assert_rejected("does not exist", self.folder / ("x" * 300))
        self.assert_rejected(f"does not exist in {Path.cwd()}", Path("nowhere/corpus"))
        self.assert_rejected(
            f"but '{self.folder}' does. Leave out the spaces", Path(f"{self.folder} ")
        )

    def test_an_empty_folder_is_rejected(self):
        self.assert_rejected("no metadata.csv", self.folder)

    def test_a_device_file_is_rejected(self):
        self.assert_rejected("neither a folder nor a file", Path("/dev/zero"))

    def test_a_header_without_audio_or_text_is_rejected(self):
        faults = {
            "path,words": "names path but no text",
            "speaker,text": "names speaker, text but no audio file",
            "path,path,text": "names path twice",
            "path": "has no separator",
        }
        self.audio("a.wav")
        for header, fault in faults.items():
            row = ",".join(["a.wav", "b", "c"][: header.count(",") + 1])
            self.assert_rejected(
                f"not recognised: .*{fault}", self.write("list.csv", f"{header}\n{row}\n")
            )

    def test_a_file_without_utterances_is_rejected(self):
        self.assert_rejected("is empty", self.write("list.csv", b""))
        self.assert_rejected("is empty", self.write("list.csv", " \n\n"))
        self.assert_rejected("no utterances", self.write("list.csv", "path,text\n\n"))

    def test_a_file_that_is_not_utf_8_text_is_rejected(self):
        self.assert_rejected("binary or UTF-16", self.write("list.csv", b"RIFF\0\0\0\0WAVE"))
        self.assert_rejected(
            "binary or UTF-16", self.write("list.csv", "path,text\na.wav,x\n".encode("utf-16"))
        )
        self.assert_rejected(
            "line 3 has the byte 0xe9",
            self.write("list.csv", "path,text\na,x\nb,\xe9t\xe9\n".encode("latin-1")),
        )


class BrokenFiles(Case):
    def error_of(self, content: str | bytes) -> str:
        path = self.write("metadata.csv", content)
        with self.assertRaises(DataError) as caught:
            read_corpus(path, "en")
        self.assertLess(len(str(caught.exception)), 2_000)
        return str(caught.exception)

    def test_a_line_of_megabytes_is_rejected_by_its_number(self):
        message = self.error_of("path,text\na.wav,a\n" + "," * (MAX_LINE_CHARACTERS + 1))
        self.assertIn("line 3 of ", message)
        self.assertIn("1,048,577 characters", message)

    def test_a_sparse_file_of_a_terabyte_is_not_read(self):
        path = self.write("metadata.csv", "path,text\n")
        os.truncate(path, 1 << 40)
        with self.assertRaisesRegex(DataError, "has 1,099,511,627,776 bytes"):
            read_corpus(path, "en")
        with (
            mock.patch.object(metadata_file, "MAX_BYTES", 0),
            self.assertRaisesRegex(DataError, "may have 0. Split"),
        ):
            read_corpus(self.write("metadata.csv", "path,text\na.wav,a\n"), "en")

    def test_a_name_longer_than_any_path_is_a_malformed_row(self):
        self.write("a.wav")
        rows = read_corpus(
            self.write("metadata.csv", f"path,text\na.wav,a\n{'a/' * 50_000},b\n"), "en"
        )
        self.assertEqual([row.audio for row in rows.rows], ["a.wav"])
        self.assertIn("a path of 100,000 characters", rows.rejected[0].detail)
        self.assertLess(len(rows.rejected[0].audio), 1_000)
        self.error_of(f"path,text\n{'a/' * 50_000},b\n")

    def test_metadata_that_is_no_file_is_named(self):
        os.mkfifo(self.folder / "metadata.csv")
        with self.assertRaisesRegex(
            DataError, "metadata.csv is a folder, a pipe, a device or a link to nothing"
        ):
            read_corpus(self.folder, "en")

    def test_a_speaker_whose_folder_is_not_utf8_has_a_name_that_can_be_written(self):
        self.write(f"corpus/{os.fsdecode(b'caf%c' % 0xE9)}/a.wav")
        rows = read_corpus(self.folder / "corpus", "en", needs_text=False)
        self.assertEqual([row.speaker for row in rows.rows], [r"caf\xe9"])

    def test_file_names_that_are_not_utf8_can_be_held_out(self):
        for name in (b"\xff.wav", b"\xfe.wav"):
            self.write(f"corpus/{os.fsdecode(name)}")
        rows = read_corpus(self.folder / "corpus", "en", needs_text=False)
        self.assertEqual([len(part.rows) for part in metadata_file.hold_out(rows, 0.5, 0)], [1, 1])


class HoldOut(unittest.TestCase):
    def rows(self, ids):
        rows = tuple(Row(line, id_, f"{id_}.wav", "x", "s", "en") for line, id_ in enumerate(ids))
        return Rows(Path("metadata.csv"), Path("wavs"), rows)

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

    def test_a_fraction_of_0_holds_nothing_out(self):
        self.assertEqual(hold_out(self.rows("abc"), 0.0, seed=0)[1].rows, ())

    def test_rows_with_the_same_id_stay_together(self):
        train, validation = hold_out(self.rows("aabbccdd"), 0.5, seed=0)
        self.assertEqual((len(train.rows), len(validation.rows)), (4, 4))
        self.assertFalse(self.ids(train) & self.ids(validation))


if __name__ == "__main__":
    unittest.main()
