"""Front ends of others: what reads texts, in a run and in the voice that it exports."""

import json
import sys
import unittest
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from myxtts.base.errors import ConfigError, DataError
from myxtts.checkpoints.files import Record
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import frontend_of
from myxtts.extras.frontends.characters import readable
from myxtts.text.frontend import TextFrontend
from myxtts.text.readers import Reader, reader_of, warn_of_other_version
from myxtts.text.words import words_of_text
from tests.fixtures import FolderCase, temporary_folder

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/frontend"
ENTRY_POINTS = """
[myxtts.frontends]
esperanto = myxtts_esperanto:Esperanto
"""


def read(frontend: str, text: str, language: str) -> str:
    return "".join(TextFrontend(frontend).stages(text, language).symbols)


class OtherPackage(FolderCase):
    def setUp(self):
        super().setUp()
        source = (EXAMPLE / "myxtts_esperanto.py").read_text("utf-8")
        site = self.write_package("myxtts_esperanto", source, ENTRY_POINTS)
        path = mock.patch.object(sys, "path", [str(site), *sys.path])
        path.start()
        self.addCleanup(path.stop)
        self.addCleanup(sys.modules.pop, "myxtts_esperanto", None)
        self.addCleanup(reader_of.cache_clear)
        reader_of.cache_clear()
        invalidate_caches()

    def test_its_front_end_reads_words_marks_phonemes_and_a_lexicon(self):
        actual = read("esperanto", "Saluton, [[ˈoka]] aŭ", "eo")
        self.assertEqual(actual, "salˈuton, ˈoka ˈaw")
        frontend = TextFrontend("esperanto", lexicon={"kaj": "[[kai]]"})
        self.assertEqual("".join(frontend.symbols("Ni kaj vi!", "eo")), "nˈi kai vˈi!")
        words = words_of_text("Ni estas.", "eo", frontend, frontend.symbols("Ni estas.", "eo"))
        self.assertEqual([word.text for word in words], ["Ni", "estas."])

    def test_what_it_does_not_read_is_an_error(self):
        with self.assertRaisesRegex(DataError, "no x: 'xilo' cannot be read"):
            read("esperanto", "Bona xilo.", "eo")
        with self.assertRaisesRegex(DataError, "'fr' was requested, but the front end reads eo"):
            read("esperanto", "Bona.", "fr")
        with self.assertRaisesRegex(ConfigError, "the options 'slow', but this front end takes"):
            read("esperanto:slow", "Bona.", "eo")

    def test_the_example_is_a_package_of_at_most_60_lines(self):
        lines = [line for file in EXAMPLE.iterdir() for line in file.read_text().splitlines()]
        self.assertLessEqual(len(lines), 60)
        self.assertIn(ENTRY_POINTS.split()[-1].strip(), " ".join(lines))

    def test_what_is_no_reader_or_makes_no_symbols_is_named(self):
        for made in (lambda options: object(), lambda: None):
            with (
                mock.patch("myxtts.base.plugins.load_one", return_value=made),
                self.assertRaisesRegex(ConfigError, "'esperanto' of another package makes"),
            ):
                reader_of.__wrapped__("esperanto")
        with (
            mock.patch.object(type(reader_of("esperanto")), "read", lambda *_: ["whole"]),
            self.assertRaisesRegex(DataError, "made the symbol 'whole'"),
        ):
            read("esperanto", "ho", "eo")


class Unknown(unittest.TestCase):
    def test_a_front_end_that_is_not_installed_is_named_with_those_that_are(self):
        with self.assertRaisesRegex(
            ConfigError, "'klingon' is to read .*installed are phonemes, c"
        ):
            read("klingon", "a", "en")

    def test_an_exported_voice_of_such_a_front_end_says_what_is_missing(self):
        from myxtts.speak.player import ExportedSpeaker

        with mock.patch("myxtts.speak.player.open_voice") as opened:
            shipped = Path(__file__).resolve().parents[1] / "voices/myxtts_voices/en/onnx"
            document = json.loads((shipped / "en-int8.onnx.json").read_text("utf-8"))
            document["myxtts_frontend"]["kind"] = "klingon"
            opened.return_value = shipped / "en-int8.onnx", document
            with self.assertRaisesRegex(ConfigError, "'klingon' is to read texts"):
                ExportedSpeaker(shipped)


class Versions(unittest.TestCase):
    def test_a_checkpoint_and_a_voice_of_version_0_1_keep_the_version(self):
        old = TextFrontend.of_document({"kind": "phonemes", "espeakng_loader": "0.2.4"})
        self.assertEqual(old.version, "0.2.4")
        field = Record.model_fields["frontend_version"]
        self.assertIn("espeakng_loader", field.validation_alias.choices)

    def test_another_version_is_a_warning(self):
        with self.assertLogs("myxtts.text.readers", "WARNING") as log:
            warn_of_other_version("some-g2p", "2.0", "1.0")
        self.assertIn("pip install some-g2p==1.0", log.output[0])
        self.assertEqual((Reader.package, reader_of("characters").version), ("", ""))


class Characters(unittest.TestCase):
    def test_what_would_be_left_out_is_an_error_and_accents_are_plain_letters(self):
        self.assertEqual(readable("idé, ok!", "abcdefghijklmno".__contains__, "sv"), "ide, ok!")
        for text, unread in {"Hi 你好": "你 好", "5 ‰": "5 ‰", "aß": "ß"}.items():
            with self.assertRaisesRegex(DataError, f"does not read {unread} in"):
                readable(text, "abcHi".__contains__, "en")

    def test_a_lexicon_needs_a_front_end_that_reads_words(self):
        path = temporary_folder(self.addCleanup) / "lexicon.tsv"
        path.write_text("tea\t[[tiː]]\n", "utf-8")
        with self.assertRaisesRegex(ConfigError, "--text-frontend characters words are not"):
            frontend_of(DataConfig(text_frontend="characters", lexicon=str(path)))
        self.assertTrue(frontend_of(DataConfig(lexicon=str(path))).lexicon)


@unittest.skipUnless(find_spec("hibari"), "hibari-tts")
class English(unittest.TestCase):
    def test_heteronyms_numbers_and_dialects_are_read(self):
        actual = read("english", 'He read it in 2019, "didn\'t" he? It cost $5.', "en")
        self.assertEqual(
            actual, "hˌi ɹˈɛd ɪt ɪn twˈɛnti nˌIntˈin, dˈɪdnt hi? ˌɪt kˈɔst fˈIv dˈɑləɹz."
        )
        self.assertNotEqual(read("english", "bath", "en"), read("english", "bath", "en-gb"))
        self.assertEqual(read("english", "a—[b](c)", "EN"), read("english", "a, (b) (c)", "en"))
        for text in ("Hi 你好", "50 ‰", "ð"):
            with self.assertRaisesRegex(DataError, "does not read"):
                read("english", text, "en")


@unittest.skipUnless(find_spec("text2tashkeel"), "text2tashkeel")
class Arabic(unittest.TestCase):
    def test_vowels_that_are_not_written_are_read_and_those_that_are_stay(self):
        self.assertEqual(read("arabic", "كتب الولد", "ar"), read("phonemes", "كَتَبَ الوَلَدَ", "ar"))
        self.assertEqual(
            read("arabic", "كُتِبَ، [[ta]]!", "ar"), read("phonemes", "كُتِبَ، [[ta]]!", "ar")
        )
        with self.assertRaisesRegex(DataError, "reads ar"):
            read("arabic", "سلام", "fa")


@unittest.skipUnless(find_spec("piper_plus_g2p"), "piper-plus-g2p")
class PiperPlus(unittest.TestCase):
    def test_japanese_and_chinese_are_read_with_accents_and_tones(self):
        self.assertEqual(read("piper-plus", "東京に行きますか？", "ja"), "to↑okyoonii↑kima↓sUka?")
        self.assertEqual(read("piper-plus", "你好，北京。", "zh"), "ni²xaʊ³, peɪ³tɕiŋ¹.")
        self.assertEqual(read("piper-plus", "はい。そう！", "JA")[-1], "!")
        self.assertEqual(read("piper-plus", "idé", "sv"), read("piper-plus", "ide", "sv"))
        unread = {"他有3个苹果。": "zh", "三十％": "zh", "안녕です": "ja", "Łódź": "es", "𠀀": "zh"}
        for text, language in unread.items():
            with self.assertRaisesRegex(DataError, "does not (read|know)", msg=text):
                read("piper-plus", text, language)
        frontend = TextFrontend("piper-plus")
        words = words_of_text(
            "你好，北京。", "zh", frontend, frontend.symbols("你好，北京。", "zh")
        )
        self.assertEqual([word.text for word in words], ["你", "好，", "北", "京。"])


if __name__ == "__main__":
    unittest.main()
