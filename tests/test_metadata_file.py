"""Metadata files become rows; unusable paths and files are rejected with a helpful message."""

import random
import tempfile
import unittest
from pathlib import Path

from myxtts.data.metadata_file import DEFAULT_SPEAKER, Row, Rows, hold_out, read_corpora, read_corpus
from myxtts.errors import DataError


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def ljspeech(self, content, name="metadata.csv"):
        (self.folder / "wavs").mkdir(exist_ok=True)
        self.write(name, content)
        return self.folder

    def assert_rejected(self, pattern, path, language="en"):
        before = sorted(self.folder.rglob("*"))
        with self.assertRaisesRegex(DataError, pattern):
            read_corpus(path, language)
        self.assertEqual(sorted(self.folder.rglob("*")), before)


class LJSpeech(Case):
    def test_the_normalised_text_is_preferred(self):
        rows = read_corpus(self.ljspeech("a|Dr. A|Doctor A\nb|Only this\nc|Kept|\n"), "en")
        self.assertEqual([row.text for row in rows.rows], ["Doctor A", "Only this", "Kept"])
        self.assertEqual(rows.folder, self.folder / "wavs")

    def test_ids_match_files_with_or_without_a_suffix(self):
        rows = read_corpus(self.ljspeech("LJ001.0001|x\nb.wav|x\nc.FLAC|x\nsub/d|x\n"), "en").rows
        self.assertEqual([row.audio for row in rows], ["LJ001.0001.wav", "b.wav", "c.FLAC", "sub/d.wav"])

    def test_quotes_and_unicode_line_separators_are_text(self):
        rows = read_corpus(self.ljspeech('a|"Hello, he said.\r\nb|one\u2028two\x85three\n'), "en").rows
        self.assertEqual(
            [(row.line, row.text) for row in rows], [(1, '"Hello, he said.'), (2, "one\u2028two\x85three")]
        )

    def test_malformed_rows_are_rejected_with_their_line(self):
        rows = read_corpus(self.ljspeech("a|fine\n\njust words\n|no id\na|b|c|d\n"), "en")
        self.assertEqual([row.id for row in rows.rows], ["a.wav"])
        self.assertEqual([(row.line, row.reason) for row in rows.rejected], [(n, "malformed row") for n in (3, 4, 5)])

    def test_a_metadata_file_can_be_given_directly(self):
        self.ljspeech("a|x\n", "metadata_train.csv")
        self.assertEqual(len(read_corpus(self.folder / "metadata_train.csv", "en").rows), 1)

    def test_a_folder_with_train_and_eval_metadata_provides_both_corpora(self):
        self.ljspeech("a|x\nb|x\nbad\n", "metadata_train.csv")
        self.ljspeech("c|x\n|bad\n", "metadata_eval.csv")
        train, validation, rejected = read_corpora(self.folder, None, "en", 0.5, seed=0)
        self.assertEqual(
            [[row.id for row in part.rows] for part in (train, validation)], [["a.wav", "b.wav"], ["c.wav"]]
        )
        self.assertEqual([Path(row.metadata).name for row in rejected], ["metadata_train.csv", "metadata_eval.csv"])

    def test_without_validation_data_rows_are_held_out_and_malformed_rows_listed_once(self):
        train, validation, rejected = read_corpora(
            self.ljspeech("a|x\nb|x\nc|x\nd|x\nbad\n|bad\n"), None, "en", 0.25, 0
        )
        self.assertEqual((len(train.rows), len(validation.rows), len(rejected)), (3, 1, 2))
        self.assertEqual(len(train.rejected) + len(validation.rejected), 2)

    def test_a_given_validation_corpus_overrides_the_one_in_the_folder(self):
        self.ljspeech("a|x\n", "metadata_train.csv")
        self.ljspeech("c|x\n", "metadata_eval.csv")
        table = self.write("other.csv", "path,text\nd.wav,x\n")
        _, validation, _ = read_corpora(self.folder, table, "en", 0.5, seed=0)
        self.assertEqual([row.id for row in validation.rows], ["d.wav"])


class Tables(Case):
    def test_every_separator_is_detected(self):
        for separator in ",;\t|":
            path = self.write("list.txt", separator.join(["path", "text"]) + "\n" + separator.join(["a.wav", "hi"]))
            self.assertEqual(
                read_corpus(path, "ka").rows, (Row(2, "a.wav", "a.wav", "hi", DEFAULT_SPEAKER, "ka"),), separator
            )

    def test_columns_are_found_by_name_in_any_order(self):
        path = self.write(
            "list.csv", "\ufefflanguage, Text ,minutes,speaker,PATH\nfa,hi,3,anna,x/a.wav\n,ho,4,,b.wav\n"
        )
        expected = (
            Row(2, "x/a.wav", "x/a.wav", "hi", "anna", "fa"),
            Row(3, "b.wav", "b.wav", "ho", DEFAULT_SPEAKER, "en"),
        )
        self.assertEqual(read_corpus(path, "en").rows, expected)

    def test_quoted_line_breaks_count_as_lines(self):
        path = self.write("list.csv", 'path,text\r\na.wav,"one, ""two""\r\nthree"\r\n\r\nb.wav,four\r\n')
        rows = read_corpus(path, "en").rows
        self.assertEqual([(row.line, row.text) for row in rows], [(2, 'one, "two"\r\nthree'), (5, "four")])

    def test_rows_with_the_wrong_number_of_fields_are_rejected(self):
        rows = read_corpus(self.write("list.csv", "path,text,speaker\na.wav,x,s\nb.wav,x\nc.wav,x,s,t\n ,x,s\n"), "en")
        self.assertEqual([row.id for row in rows.rows], ["a.wav"])
        self.assertEqual([(row.line, row.audio) for row in rows.rejected], [(3, "b.wav"), (4, "c.wav"), (5, "")])

    def test_an_unclosed_quote_affects_only_its_row(self):
        self.assert_rejected("line 3 is not", self.write("list.csv", 'path,text\na.wav,x\nb.wav,"x\nc.wav,x\n'))
        self.assert_rejected("line 2 is not", self.write("list.csv", 'path,text\na.wav,"x' + "y" * 200_000 + '"\n'))

    def test_paths_that_name_the_same_file_have_the_same_id(self):
        rows = read_corpus(self.write("list.csv", "path,text\na.wav,x\n./b/../a.wav,x\n"), "en").rows
        self.assertEqual({row.id for row in rows}, {"a.wav"})


class Rejected(Case):
    def test_a_missing_path_is_rejected_and_not_created(self):
        self.assert_rejected("does not exist", self.folder / "missing")
        self.assert_rejected("does not exist", self.folder / ("x" * 300))

    def test_a_folder_without_metadata_or_wavs_is_rejected(self):
        self.assert_rejected("no metadata.csv", self.folder)
        self.write("metadata.csv", "a|x\n")
        self.assert_rejected("no folder wavs/", self.folder)

    def test_a_device_file_is_rejected(self):
        self.assert_rejected("neither a folder nor a file", Path("/dev/zero"))

    def test_a_header_without_path_or_text_is_rejected(self):
        for header in ("file,text", "path,words", "path,path,text", "path", "a.wav,hello"):
            self.assert_rejected("header that names path and text", self.write("list.csv", header + "\na,b,c\n"))

    def test_a_file_without_utterances_is_rejected(self):
        self.assert_rejected("is empty", self.write("list.csv", b""))
        self.assert_rejected("is empty", self.write("list.csv", " \n\n"))
        self.assert_rejected("no utterances", self.write("list.csv", "path,text\n\n"))

    def test_a_file_that_is_not_utf_8_text_is_rejected(self):
        self.assert_rejected("binary or UTF-16", self.write("list.csv", b"RIFF\0\0\0\0WAVE"))
        self.assert_rejected("binary or UTF-16", self.write("list.csv", "path,text\na.wav,x\n".encode("utf-16")))
        self.assert_rejected(
            "line 3 has the byte 0xe9", self.write("list.csv", "path,text\na,x\nb,\xe9t\xe9\n".encode("latin-1"))
        )


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
        self.assertEqual([row.id for row in train.rows], [id_ for id_ in ids if id_ not in self.ids(validation)])

    def test_the_split_depends_on_the_seed_but_not_on_the_row_order(self):
        ids = [f"u{n}" for n in range(200)]
        _, validation = hold_out(self.rows(ids), 0.1, seed=0)
        random.Random(1).shuffle(ids)
        self.assertEqual(self.ids(hold_out(self.rows(ids), 0.1, seed=0)[1]), self.ids(validation))
        self.assertNotEqual(self.ids(hold_out(self.rows(ids), 0.1, seed=1)[1]), self.ids(validation))

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
