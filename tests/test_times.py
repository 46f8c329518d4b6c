"""Words of a text and their symbols, and files of times, read back by the libraries of others."""

import json
import unittest
from pathlib import Path

import numpy as np
import webvtt
from praatio import textgrid

from myxtts.base.errors import ConfigError
from myxtts.text.frontend import TextFrontend
from myxtts.text.times import check_times_file, time_words, write_times
from myxtts.text.words import phonemes_of, words_of_symbols, words_of_text
from tests.fixtures import temporary_folder


def split(text: str, frontend: TextFrontend, language: str = "en", without: str = "") -> str:
    symbols = [of for of in frontend.symbols(text, language) if of not in without]
    words = words_of_text(text, language, frontend, symbols)
    return "|".join(f"{name}={''.join(of.text for of in phones)}" for name, phones in words)


class WordsTest(unittest.TestCase):
    def test_marks_belong_to_their_phoneme(self):
        for symbols, phonemes in (
            *(("tˈuː kɪt", "t ˈuː k ɪ t"), ("mʲˈesʲtʲɪ?", "mʲ ˈe sʲ tʲ ɪ")),
            *((", a.", "a"), ("", ""), (" .", "")),
        ):
            found = phonemes_of(symbols)
            self.assertEqual([of.text for of in found], phonemes.split())
            self.assertTrue(all(symbols[of.first : of.end] == of.text for of in found))

    def test_words_of_symbols_stand_between_separators(self):
        words = words_of_symbols(", ab c. ˈd!")
        self.assertEqual([word.text for word in words], ["ab", "c", "ˈd"])

    def test_words_are_as_written_however_they_are_read(self):
        phonemes, words_1 = TextFrontend(), TextFrontend(normaliser="words-1")
        lexicon = TextFrontend(lexicon={"tea": "[[tˈiː]]", "mr": "mister"})
        for frontend, text, expected in (
            (phonemes, "Hello, world!", "Hello,=həlˈoʊ|world!=wˈɜːld"),
            # Two words that espeak-ng joins; and an "a" that nothing is left of.
            (phonemes, "of the end of a day", "of=ʌv|the=ðɪ|end=ˈɛnd|of a=əvə|day=dˈeɪ"),
            (words_1, "it cost $5 million.", "it=ɪt|cost=kˈɔst|$5=fˈaɪvmˈɪliən|million.=dˈɑːlɚz"),
            (words_1, "On Jan. 3 — I", "On=ˌɔn|Jan.=dʒˈænjuːˌɛɹi|3 —=θˈɜːd|I=ˈaɪ"),
            (lexicon, "mr [[tɛst wɜːd]] tea", "mr=mˈɪstɚ|[[tɛst wɜːd]]=tɛstwɜːd|tea=tˈiː"),
            (TextFrontend("characters"), "A b—c.", "A=a|b—=b—|c.=c"),
            (phonemes, "- At it", "- At=ˈæɾ|it=ɪt"),
        ):
            with self.subTest(text):
                self.assertEqual(split(text, frontend), expected)

    def test_symbols_that_a_voice_lacks_take_no_word_with_them(self):
        self.assertEqual(
            split("one two ten", TextFrontend("characters"), without="o"), "one=ne|two=tw|ten=ten"
        )
        self.assertEqual(
            split("to o ten", TextFrontend("characters"), without="o"), "to o=t|ten=ten"
        )

    def test_russian_words_are_all_found(self):
        text = "Вот-вот, раскроется какой-то, немыслимый свет? - Не радость, и 25 печалей."
        names = [word.split("=")[0] for word in split(text, TextFrontend(), "ru").split("|")]
        self.assertEqual(" ".join(names), text)


class TimesTest(unittest.TestCase):
    #         a  b  ␣  c  ␣  d: the first space is a frame, the second one a pause
    EDGES_S = np.array([0.3, 0.4, 0.5, 0.52, 0.7, 1.0, 1.25])

    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
        symbols = list("ab c d")
        frontend = TextFrontend("characters")
        words = words_of_text("AB <c> d", "en", frontend, symbols)
        first = time_words(words, self.EDGES_S)
        second = time_words(words, self.EDGES_S + 3600.0)
        self.sentences = first, second

    def write(self, form: str) -> Path:
        path = self.folder / f"out.{form}"
        write_times(path, self.sentences, 3602.0)
        return path

    def test_words_meet_unless_there_is_a_pause(self):
        times = [(word.text, word.start_s, word.end_s) for word in self.sentences[0]]
        self.assertEqual(times, [("AB", 0.3, 0.51), ("<c>", 0.51, 0.7), ("d", 1.0, 1.25)])

    def test_srt_and_webvtt(self):
        for captions in (webvtt.from_srt(self.write("srt")), webvtt.read(self.write("vtt"))):
            times = [(cue.start, cue.end, cue.text) for cue in captions]
            last = "01:00:00.300", "01:00:01.250"
            self.assertEqual([time[:2] for time in times], [("00:00:00.300", "00:00:01.250"), last])
        self.assertIn("AB <00:00:00.510>&lt;c&gt; <00:00:01.000>d", self.write("vtt").read_text())

    def test_textgrid(self):
        grid = textgrid.openTextgrid(str(self.write("TextGrid")), includeEmptyIntervals=True)
        self.assertEqual((grid.tierNames, grid.maxTimestamp), (("words", "phones"), 3602.0))
        words = [(of.label, of.start, of.end) for of in grid.getTier("words").entries][:5]
        spans = [("", 0, 0.3), ("AB", 0.3, 0.51), ("<c>", 0.51, 0.7), ("", 0.7, 1.0)]
        self.assertEqual(words, [*spans, ("d", 1.0, 1.25)])
        phones = [of.label for of in grid.getTier("phones").entries if of.label]
        self.assertEqual(phones, list("abcd") * 2)

    def test_json(self):
        document = json.loads(self.write("json").read_text())
        self.assertEqual([of["text"] for of in document["segments"]], ["AB <c> d"] * 2)
        word = document["segments"][0]["words"][1]
        phones = [{"phone": "c", "start": 0.51, "end": 0.7}]
        self.assertEqual(word, {"word": "<c>", "start": 0.51, "end": 0.7, "phones": phones})

    def test_a_long_sentence_has_several_subtitles(self):
        self.sentences = [[*self.sentences[0] * 12]]
        self.assertEqual(len(webvtt.from_srt(self.write("srt"))), 2)

    def test_another_form_is_an_error(self):
        for name in ("out.txt", "out", "missing/out.srt"):
            with self.assertRaisesRegex(ConfigError, "--times .*(srt, vtt, json|no folder)"):
                check_times_file(self.folder / name)
        for name in ("out.SRT", "out.textgrid"):
            check_times_file(self.folder / name)


if __name__ == "__main__":
    unittest.main()
