"""The languages of a corpus: scripts, the spelling of codes, and early rejections."""

import logging
import unittest
from pathlib import Path

from fakes import languages
from myxtts.base.errors import DataError
from myxtts.batches.corpora import load_corpora
from myxtts.config.schema import Config, DataConfig
from myxtts.tasks.registry import length_rule_of
from myxtts.text import espeak
from myxtts.text.languages import choose_language, letters_by_script, scripts_of
from tests.fixtures import temporary_folder
from tests.sine_corpus import sine, write_sound

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/languages.md"
TEXTS = {
    "en": "The window is open.",
    "fa": "پنجره باز است.",
    "ru": "Окно открыто.",
    "ka": "ფანჯარა ღიაა.",
    "ja": "まどがアイテいる。",
    "zh": "窗户开着。",
    "ko": "창문이 열려 있다.",
    "hi": "खिड़की खुली है।",
    "sr": "Prozor je otvoren. Прозор је отворен.",
    "uz": "Deraza ochiq. Дераза очиқ.",
    "az": "Pəncərə açıqdır.",
    "kk": "Терезе ашық.",
}


class Scripts(unittest.TestCase):
    def test_every_language_of_espeak_has_scripts(self):
        with espeak.isolated_copy() as copy:
            unknown = [code for code in copy._voices if not scripts_of(code)]
        self.assertEqual(unknown, ["xex"])  # a test voice without a dictionary

    def test_a_script_in_the_code_is_added(self):
        self.assertEqual(scripts_of("fa"), {"Arab"})
        self.assertEqual(scripts_of("fa-latn"), {"Arab", "Latn"})

    def test_digits_punctuation_and_shared_letters_are_not_counted(self):
        actual = letters_by_script(["a1, б! ー ʼ", "Б窓"])
        self.assertEqual(actual, {"Latn": 1, "Cyrl": 2, "Hani": 1})


class Listed(unittest.TestCase):
    def test_the_page_has_what_became_of_the_words_of_each_language(self):
        page = PAGE.read_text(encoding="utf-8")
        found = [*languages.verdicts()]
        self.assertEqual({row.code for row in found}, {*languages.codes()})
        for row in found:
            self.assertIn(languages.line(row), page)


class Corpus(unittest.TestCase):
    """A CSV corpus of which every row names the same sound length."""

    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        logging.disable(logging.WARNING)
        self.addCleanup(logging.disable, logging.NOTSET)

    def load(self, rows, **data):
        """Load a corpus of (text, language) rows."""
        lines = ["path,text,language"]
        for number, (text, language) in enumerate(rows):
            write_sound(self.folder / f"u{number}.wav", sine(300, 4.0))
            lines.append(f'u{number}.wav,"{text}",{language}')
        (self.folder / "corpus.csv").write_text("\n".join(lines), encoding="utf-8")
        data = {"train_data": str(self.folder / "corpus.csv"), "validation_fraction": 0.0} | data
        config = Config(data=DataConfig(**data))
        return load_corpora(config, self.folder / "run", length_rule_of(config))

    def test_texts_in_a_script_of_their_language_are_accepted(self):
        rows = [(text, language) for language, text in TEXTS.items()]
        _, _, vocabulary = self.load(rows, max_rejected=0.0)
        self.assertEqual(vocabulary.languages, tuple(sorted(TEXTS)))

    def test_texts_in_another_script_are_an_error_that_names_both_scripts_and_a_row(self):
        with self.assertRaises(DataError) as raised:
            self.load([(TEXTS["en"], "")] * 3, language="fa")
        message = (
            "'fa' was requested, .* in Arabic letters, but 100 % of the letters in its 3 rows are"
        )
        message += " Latin. An example is u0.wav: 'The window is open.'"
        self.assertRegex(str(raised.exception), message)
        with self.assertRaisesRegex(DataError, "100 % .* are Georgian"):
            self.load([(TEXTS["ka"], "")])  # without --language
        self.assertFalse((self.folder / "run").exists())  # before anything is written

    def test_each_language_is_checked_alone(self):
        with self.assertRaisesRegex(DataError, "'ru'.*its 1 rows are"):
            self.load([(TEXTS["en"], "en"), (TEXTS["en"], "ru"), (TEXTS["fa"], "fa")])

    def test_loan_words_and_acronyms_are_accepted(self):
        self.load([("پنجره باز است و سیستم Windows NT هم باز است.", "fa")])
        with self.assertRaisesRegex(DataError, "'fa'"):
            self.load([("Windows NT 3.1 باز است.", "fa")])

    def test_a_language_that_cannot_be_read_is_an_error_before_anything_is_read(self):
        kanji, points = "窓が開いている。", "הילדים הלכו לבית הספר בבוקר."
        for text, language, message in (
            (kanji, "ja", "cannot read 窓, 開 as 'ja'.*kana.* 2 of 2 texts that were tried"),
            (points, "he", "without a vowel"),
            ("สวัสดีครับ", "th", "--text-frontend characters"),
        ):
            with self.assertRaisesRegex(DataError, message):
                self.load([(text, language)] * 2)
            self.assertFalse((self.folder / "run").exists())
        self.load([(kanji, "ja")], text_frontend="characters")

    def test_a_few_rows_that_cannot_be_read_are_rejected_by_name(self):
        rows = [
            (text, "ja") for text in (TEXTS["ja"], TEXTS["ja"], TEXTS["ja"], "窓があいている。")
        ]
        corpus, _, _ = self.load(rows, max_rejected=0.5)
        self.assertEqual(len(corpus.manifest), 3)
        listing = (self.folder / "run" / "rejected.csv").read_text()
        self.assertRegex(listing, "text cannot be read,.*cannot read 窓")

    def test_characters_accept_any_script_and_any_name(self):
        _, _, vocabulary = self.load([(TEXTS["en"], "Persian")], text_frontend="characters")
        self.assertEqual(vocabulary.languages, ("Persian",))

    def test_spellings_of_a_code_are_one_language(self):
        rows = [(TEXTS["en"], language) for language in ("en_GB", "en-gb", "EN-GB")]
        self.assertEqual(self.load(rows)[2].languages, ("en-gb",))

    def test_an_unknown_language_is_an_error_before_anything_is_read(self):
        message = r"mean en\? .* 2 of 2 rows have this language\. An example is u0.wav"
        with self.assertRaisesRegex(DataError, message):
            self.load([(TEXTS["en"], "")] * 2, language="english")
        self.assertFalse((self.folder / "run").exists())

    def test_a_few_rows_of_an_unknown_language_are_rejected_alone(self):
        rows = [(TEXTS["en"], language) for language in ("English", "en", "en", "en")]
        corpus, _, _ = self.load(rows, max_rejected=0.25)
        self.assertEqual(len(corpus.manifest), 3)
        self.assertIn("text cannot be read", (self.folder / "run" / "rejected.csv").read_text())


class ChosenLanguage(unittest.TestCase):
    def test_any_spelling_of_a_trained_language_is_accepted(self):
        self.assertEqual(choose_language("en_US", ["en-us", "fa"]), "en-us")
        self.assertEqual(choose_language("en-us", ["en_US"]), "en_US")  # of an earlier version
        with self.assertRaisesRegex(DataError, "'english'"):
            choose_language("english", ["en"])
