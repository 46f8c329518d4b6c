"""The stages of a text: numbers as words, readings of a lexicon, phonemes in the text."""

import contextlib
import io
import itertools
import random
import time
import unittest
from importlib import metadata
from unittest import mock

from fakes.spoken_forms import LANGUAGES, is_right, sentences
from myxtts.base.errors import ConfigError, DataError
from myxtts.checkpoints.files import read_record, write_record
from myxtts.checkpoints.inherited import keep_normaliser
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.commands import text
from myxtts.config.flags import with_values
from myxtts.config.schema import Config, DataConfig
from myxtts.corpus.build import build_manifest, frontend_of
from myxtts.corpus.demo_corpus import load_grammar
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule
from myxtts.text import normalisers
from myxtts.text.frontend import TextFrontend, normalise_text, read_lexicon, symbols_of
from myxtts.text.sentences import split_text
from tests.fixtures import FolderCase, make_record, reported, rewrite_state
from tests.sine_corpus import write_corpus

# What is read wrongly; docs/guides/text.md has how.
MISREAD = {
    "en": {"Call 555-0123 before 5 pm."},
    "de": {
        "Es ist ihr 2. Versuch.",
        "Sie trafen sich am 3.1.2024.",
        "Der Flug am 4. März 2021 kostete 199,99 €.",
    },
    "ru": {"В книге 342 страницы."},
}
LIMIT_S = 60.0


class Words(unittest.TestCase):
    def words(self, text, language):
        return normalisers.words_of(normalise_text(text), language)

    def test_fifty_sentences_of_each_language_have_the_expected_words(self):
        for language, is_unseen in itertools.product(LANGUAGES, (False, True)):
            misread = set()
            for row in sentences(language, is_unseen):
                if not is_right(self.words(row["text"], language), row["spoken"], language):
                    misread.add(row["text"])
            expected = set() if is_unseen else MISREAD.get(language, set())
            self.assertEqual(misread, expected, language)

    def test_synthesis_reads_what_training_reads(self):
        frontend = TextFrontend(normaliser="words-1")
        rows = [(code, row["text"], 1) for code in LANGUAGES for row in sentences(code)]
        for language, written, count in (
            *rows,
            (
                "en",
                "It is 5 p.m. We saw Dr. Lee on Jan. 5. Modern art. Peter left in Sept. Then?",
                5,
            ),
            ("en", "He paid $5 [[ɐ. Bb! Cc]] to Acme Inc. Peter. A4 is No. One.", 2),
            ("en", "On May 5, 2024, at 6 a.m. sharp, " * 20 + "he left.", 4),
            (
                "de",
                "Es kostet 5 Mio. Euro, z. B. am 3. Oktober. Dann kam er. Er wurde 3. Sie auch.",
                4,
            ),
            ("es", "En EE. UU. viven 5. Vamos al mar. Pedro nada, Ud. Debe.", 3),
            ("fr", "Le 1er janv. Demain, p. ex. Paris, M. Dupont. Il a 5 m. Paul dort.", 3),
            ("ru", "Он жил на ул. Ленина в 1990 г. Москва, 5 тыс. Рублей и т. д. Потом домой.", 3),
            ("fa", "سال ۱۹۷۹ م. بود. پلاک ش. ۷ است.", 2),
        ):
            with self.subTest(written=written[:60]):
                parts = [part for part, _ in split_text(written, language)]
                read = [frontend.stages(part, language).normalised for part in parts]
                self.assertEqual(" ".join(read), frontend.stages(written, language).normalised)
                self.assertEqual(len(parts), count)

    def test_a_single_letter_stays_a_letter_and_a_word_a_word(self):
        frontend = TextFrontend(normaliser="words-1")
        for language, written, expected in (
            ("en", "at 6:30 AM, 6 a.m. sharp", "æt sˈɪks θˈɜːɾi ˌeɪˈɛm, sˈɪks ˌeɪˈɛm ʃˈɑːɹp"),
            ("en", "A4, the A380, a4, 3a up", "ˈeɪ fˈɔːɹ, ðə ˈeɪ θɹˈiː hˈʌndɹɪd ænd ˈeɪɾi"),
            ("en", 'Fig. A is, "a" is, A+ is', "fˈɪɡ. ˈeɪ ɪz, ˈeɪ ɪz, ˈeɪ plˈʌs ɪz"),
            ("en", "a) two, A major", "ˈeɪ tˈuː, ˈeɪ mˈeɪdʒɚ"),
            ("en", "Vitamin A is. A 5 A fuse", "vˈaɪɾəmɪn ˈeɪ ɪz. ɐ fˈaɪv ˈeɪ fjˈuːz"),
            ("en", "A dog. Once Upon A Time I", "ɐ dˈɑːɡ. wˈʌns əpˌɑːn ɐ tˈaɪm ˈaɪ"),
            ("fr", "le Y est, Y4, il y a", "lə- iɡʁˈɛk ˈɛ, iɡʁˈɛk kˈatʁ, il i ˈa"),
            ("ru", "В12, витамин С есть, в дом", "vˈɛ dvʲinˈɑttsʌtʲ, vʲitamʲˈin ˈɛs jestʲ, v dˈom"),
            ("pt", "A4 e o plano E vai", "ˈa kwˈatɹu i ʊ plˈɐ̃nʊ ˈɛ vˈaɪ"),
            ("pl", "W12 w domu", "vɨ dvanˈaɕtɕɛ w dˈɔmu"),
            ("cs", "V8 v domu", "vˈeː ˈosum v dˈomu"),
            ("da", "3. maj, 3 maj", "tʁˈɛdjə mˈ?ɑj, tʁˈʔe mˈ?ɑj"),
        ):
            with self.subTest(written=written):
                self.assertIn(expected, "".join(frontend.symbols(written, language)))

    def test_the_country_of_a_language_reads_dates_and_numbers(self):
        for language, written, spoken in (
            ("en", "3/4/2024", "March fourth twenty twenty four"),
            ("en-US", "03-04-2024", "March fourth twenty twenty four"),
            ("en_GB", "3/4/2024", "the third of April twenty twenty four"),
            ("en-us", "3/4/24", "March fourth, twenty four"),
            ("en", "25/12/2024", "the twenty fifth of December twenty twenty four"),
            ("en", "12/25/2024", "December twenty fifth twenty twenty four"),
            ("en-gb", "12/25/2024", "the twenty fifth of December twenty twenty four"),
            ("es", "12/25/2024", "veinticinco de diciembre de dos mil veinticuatro"),
            ("ru", "3/4/2024", "третьего апреля две тысячи двадцать четвёртого года"),
            ("en", "13/13/2024 and 3/4", "13/13/2024 and three quarters"),
            ("fr", "71, 77, 95", "soixante et onze, soixante-dix-sept, quatre-vingt-quinze"),
            ("fr-be", "71, 77, 95", "septante et un, septante-sept, nonante-cinq"),
        ):
            self.assertEqual(self.words(written, language), spoken)

    def test_sentences_of_the_demo_corpus_keep_their_symbols(self):
        for language in ("en", "fa", "ka"):
            grammar = load_grammar(language)
            for sentence in grammar.draw(40, random.Random(0)):
                before = symbols_of(sentence, language, "phonemes")
                after = TextFrontend(normaliser="words-1").symbols(sentence, language)
                self.assertEqual(after, before, sentence)

    def test_russian_stress_marks_stay_accents(self):
        for written in ("вол+ос", "воло\u0301с"):
            self.assertEqual(self.words(f"{written}, 5", "ru"), "воло\u0301с, пять")

    def test_abbreviations_keep_the_dot_that_ends_a_sentence(self):
        for written, spoken in {
            "It is on Oak Rd.": "It is on Oak Road.",
            "Oak Rd. is long.": "Oak Road is long.",
            "See p. 5, pp. 6-7.": "See page five, pages six to seven.",
        }.items():
            self.assertEqual(self.words(written, "en"), spoken)

    def test_persian_numbers(self):
        for written, spoken in {
            "۰٫۰۵٪": "صفر ممیز صفر پنج درصد",
            "۲٫۵۰": "دو و نیم",
            "۰۰۷": "صفر صفر هفت",
            "۳۰ تیر": "سی‌ام تیر",
            "۱۴۰۰/۱۳/۰۲": "هزار و چهارصد/سیزده/صفر دو",
            "۲۰۰۱/۹/۲": "دوم سپتامبر دو هزار و یک",
            "۱۲:۰۰": "دوازده",
            "9" * 24: " ".join(["نه"] * 24),
        }.items():
            self.assertEqual(self.words(written, "fa"), spoken)

    def test_a_language_without_a_library_and_no_normaliser_keep_the_text(self):
        self.assertEqual(self.words("მე ვარ 5", "ka"), "მე ვარ 5")
        stages = TextFrontend(normaliser="none").stages("It costs $5.", "en")
        self.assertEqual(stages.normalised, "It costs $5.")
        self.assertEqual(stages.symbols, symbols_of("It costs $5.", "en", "phonemes"))
        for written, left in {
            "at 5-3, #4 and more": ["5-3,", "#4"],
            "King Komma ılık ſo → ∞ \ue000": ["→", "∞", "\ue000"],
            "well [laughs]": ["[laughs]"],
            "воло\u0301с во́лос, волос": ["воло\u0301с", "во́лос,"],
        }.items():
            self.assertEqual(normalisers.unread(written), left)

    def test_long_texts_of_numbers_take_linear_time(self):
        for language in LANGUAGES:
            began_s = time.process_time()
            self.words("12 , 4:5 $ " * 400, language)
            self.assertLess(time.process_time() - began_s, LIMIT_S, language)

    def test_a_missing_library_and_another_version_are_named(self):
        self.addCleanup(normalisers._loaded.cache_clear)
        for language in LANGUAGES:
            normalisers._loaded.cache_clear()
            library = normalisers.LIBRARIES[language]
            missing = mock.patch("importlib.import_module", side_effect=ImportError("none"))
            message = f"reads '{language}' with {library.requirement}, .*pip install"
            with missing, self.assertRaisesRegex(ConfigError, message):
                self.words("5", language)
            self.assertEqual(metadata.version(library.package), library.version)
            with (
                mock.patch("importlib.metadata.version", return_value="99"),
                self.assertLogs("myxtts.text", "WARNING") as logs,
            ):
                self.words("5", language)
            self.assertIn("but version 99 is installed", logs.output[0])

    def test_a_library_that_fails_is_a_message(self):
        broken = mock.Mock(side_effect=IndexError("no rule"))
        with (
            mock.patch.object(normalisers, "_loaded", return_value=broken),
            self.assertRaisesRegex(DataError, "damga cannot read the text '5': IndexError no rule"),
        ):
            self.words("5", "en")


class Readings(FolderCase):
    def test_phonemes_in_the_text_and_readings_of_words_become_symbols(self):
        words = {"myxtts": "my voice", "tomato": "[[təmˈɑːtoʊ]]"}
        frontend = TextFrontend(normaliser="words-1", lexicon=words)
        for written, spoken in {
            "Two [[həlˈoʊ]], two.": "tˈuː həlˈoʊ, tˈuː.",
            "[[ a  b ]]!": "a b!",
            "A tomato!": "ɐ təmˈɑːtoʊ!",
            "MyXTTS: 2 (Tomato)": "maɪ vˈɔɪs: tˈuː təmˈɑːtoʊ",
        }.items():
            self.assertEqual("".join(frontend.symbols(written, "en")), spoken)
        self.assertEqual(frontend.stages("A tomato", "en").lexicon, "A [[təmˈɑːtoʊ]]")
        self.assertEqual(frontend.symbols("[[5]]", "en"), ["5"])
        self.assertEqual(TextFrontend("characters").symbols("[[A]]", "en"), list("[[a]]"))

    def test_a_lexicon_is_read_or_its_fault_is_named(self):
        path = self.write("words.tsv", "# mine\n\nTomato\t[[t]]\nTOMATO\t [[t]]\nnaïve\tsimple\n")
        self.assertEqual(read_lexicon(path), {"tomato": "[[t]]", "naïve": "simple"})
        self.assertEqual(read_lexicon(None), {})
        for content, message in {
            "tomato [[t]]": "line 1 .*must be one word .*, but is 'tomato ",
            "\na b\tc": "line 2 .*must be one word",
            "a\t[[b": "must be one word",
            "a\tb\nA\tc": "line 2 .* gives 'a' the reading 'c', but an earlier line has 'b'",
        }.items():
            with self.assertRaisesRegex(DataError, message):
                read_lexicon(self.write("words.tsv", content))
        with self.assertRaisesRegex(DataError, "missing.tsv cannot be read"):
            read_lexicon(self.folder / "missing.tsv")


class InCheckpoints(FolderCase):
    def run_with(self, **values):
        settings = with_values(Config(), values)
        words = frontend_of(settings.data).lexicon
        folder = self.folder / "run/checkpoints/step-000000"
        folder.mkdir(parents=True)
        write_record(folder, make_record(settings=settings, lexicon=words))
        return folder

    def test_a_run_keeps_its_normaliser_and_the_words_of_its_lexicon(self):
        lexicon = self.write("words.tsv", "tomato\t[[t]]")
        folder = self.run_with(lexicon=str(lexicon))
        lexicon.unlink()
        frontend = read_record(folder).frontend
        self.assertEqual(frontend, TextFrontend("phonemes", "words-1", {"tomato": "[[t]]"}))
        with self.assertRaisesRegex(DataError, "words.tsv cannot be read"):
            frontend_of(read_record(folder).settings.data)

    def test_another_espeak_ng_than_that_of_the_run_is_named_once(self):
        folder = self.run_with()
        rewrite_state(folder, lambda values: values.update(frontend_version="0.0.1"))
        frontend = read_record(folder).frontend
        with self.assertLogs("myxtts.text", "WARNING") as logs:
            frontend.symbols("One.", "en")
            frontend.with_words({"a": "b"}).symbols("Two.", "en")
        (line,) = logs.output
        self.assertRegex(line, "trained with espeakng-loader 0.0.1, but .* pip install")

    def test_a_run_from_before_the_normaliser_goes_on_without_one(self):
        folder = self.run_with()
        rewrite_state(folder, lambda values: values["settings"]["data"].pop("text_normaliser"))
        self.assertEqual(read_record(folder).frontend, TextFrontend())
        run = TrainedRun.newest(self.folder / "run")
        self.assertEqual(keep_normaliser(Config(), run).data.text_normaliser, "none")
        given = with_values(Config(), {"text_normaliser": "words-1"})
        with self.assertRaisesRegex(ConfigError, "words-1 was given, but .* has none"):
            keep_normaliser(given, run)


class InCorpora(FolderCase):
    def test_what_is_left_to_espeak_ng_is_logged(self):
        write_corpus(self.folder, [1.0, 1.1])
        table = self.write("list.csv", "path,text\nu0.wav,Well [laughs].\nu1.wav,I paid $5.\n")
        with self.assertLogs("myxtts.corpus.build", "INFO") as logs:
            build_manifest(read_corpus(table, "en"), DataConfig(), LengthRule())
        self.assertIn(
            "1 of 2 texts have emoji or what is read in a way of its own: [l", logs.output[0]
        )


class Named(unittest.TestCase):
    """What espeak-ng names, or leaves out, instead of reading it."""

    def test_words_whose_letters_are_named_are_listed(self):
        for language, written, named in (
            (
                "en",
                "She said 你好 and Москва to Nguyễn, my friend",
                ["你", "好", "Москва", "Nguyễn"],
            ),
            ("ru", "Нгуен Nguyễn пришёл домой", ["Nguyễn"]),
            ("ja", "hello です ね ありがとう", ["hello"]),
            ("vi", "Tiếng Việt ąęć", ["ąęć"]),
            ("de", "Der Ort Привет ist schön", ["Привет"]),
            ("ka", "აქ 5½ კმ გზაა", ["5½"]),
            ("en", "A smile 😀 and [[ʃˈuː]] 水" + " again" * 9, ["水"]),
        ):
            stages = TextFrontend().stages(written, language)
            self.assertEqual(stages.named, named, written)
            self.assertTrue(stages.symbols)

    def test_what_can_be_read_is_no_fault(self):
        for language, written in (
            ("en", "BBC DVD GmbH hmm, café naïve Straße Erdoğan Łódź, the α and λ calculus"),
            ("en", "Where is Ceaușescu"),
            ("de", "Łódź, γεια, 안녕, BBC, GmbH"),
            ("ru", "Я люблю Windows, iPhone, Wi-Fi и BBC"),
            ("fa", "سلام hello ۱۲۳ Windows NT"),
            ("ka", "გამარჯობა hello Привет"),
            ("ja", "みずをマレーシアから、ファイル 12 BBC"),
            ("cmn", "你好，世界 OK hello 123"),
            ("he", "שָׁלוֹם עוֹלָם"),
            ("ar", "ذهب الأولاد إلى المدرسة في الصباح"),
            ("hr", "Crv, vrt, prst, krv"),
            ("hi", "लड़का पानी १२३"),
            ("bn", "ছেলে বাড়ি যায়"),
            ("th", "[[sawatdiː]]"),
        ):
            self.assertEqual(TextFrontend().stages(written, language).named, [], written)

    def test_a_text_that_is_mostly_named_or_partly_lost_is_an_error(self):
        for language, written, message in (
            ("en", "Привет мир", "cannot read Привет, мир as 'en'"),
            ("en", "你好", "cannot read 你, 好"),
            ("en", "She said ❶ and went", "cannot read ❶"),
            ("ja", "水をマレーシアから買わなくてはならない", "cannot read 水, 買 as 'ja'.*kana"),
            ("hak", "你好", "cannot read 你"),
            ("kk", "تەرەزە اشىق", "cannot read تەرەزە"),
            ("kok", "पाणी आनी देव", "cannot read पाणी"),
            ("fa-latn", "salâm nân", "as English"),
            ("cv", "123", "cannot read 123"),
            ("th", "สวัสดี", "no usable rules for 'th'.*--text-frontend characters"),
            ("he", "הילדים הלכו לבית הספר בבוקר", "3 of 5 words of 'he' without a vowel"),
        ):
            with self.assertRaisesRegex(DataError, message):
                TextFrontend().stages(written, language)
            self.assertTrue(TextFrontend("characters").stages(written, language).symbols)

    def test_a_reading_in_the_lexicon_is_used_instead(self):
        frontend = TextFrontend(lexicon={"你好": "[[niːhˈaʊ]]"})
        self.assertEqual("".join(frontend.stages("你好", "en").symbols), "niːhˈaʊ")

    def test_emoji_are_left_out_and_listed(self):
        for frontend in (TextFrontend(), TextFrontend("characters")):
            stages = frontend.stages("I ❤️ you 👍🏽 5️⃣", "en")
            self.assertEqual(stages.symbols, frontend.symbols("I you 5", "en"))
            self.assertEqual(stages.left[:2], ["❤️", "👍🏽"])


class Command(FolderCase):
    def test_each_stage_is_printed(self):
        words = self.write("words.tsv", "cat\tdog")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            text.main(["2 cats. 1 cat at #4.", "--lexicon", str(words)])
        for line in (
            "text        2 cats.",
            "normalised  two cats. (damga 1.0.5)",
            "phonemes    tˈuː kˈæts.",
            "lexicon     one dog at #4. (1 words)",
            "left        #4. (in a way of its own;",
        ):
            self.assertIn(line, out.getvalue())

    def test_mistakes_are_messages(self):
        for arguments, message in {
            ("...",): "no letter and no digit",
            ("a", "--language", "xx"): "language 'xx' was requested",
            ("a", "--lexicon", "missing.tsv"): "missing.tsv cannot be read",
            ("a", "--run", str(self.folder)): "has no checkpoint",
        }.items():
            status, printed = reported(lambda given=arguments: text.main(given))
            self.assertEqual(status, 2)
            self.assertIn(message, printed)
            self.assertNotIn("Traceback", printed)


if __name__ == "__main__":
    unittest.main()
