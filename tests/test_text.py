import signal
import time
import unicodedata
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from myxtts.base.errors import DataError
from myxtts.text import espeak
from myxtts.text.espeak import PAUSE, WORD_GAP, EspeakVoice
from myxtts.text.frontend import normalise_text, symbols_of
from myxtts.text.symbols import SymbolTable

# What was quadratic took minutes.
LIMIT_S = 30.0


class Normalisation(unittest.TestCase):
    def test_whitespace_collapses_and_invisible_characters_are_removed(self):
        self.assertEqual(normalise_text(" a\t\nb\u200b\u00adc\0 \ufeffd\ud800 "), "a bc d")

    def test_quotes_dashes_and_ellipses_have_one_spelling(self):
        actual = normalise_text("„Don’t“ – «wait»... well‑known—no")
        self.assertEqual(actual, '"Don\'t" — "wait"… well-known — no')

    def test_punctuation_of_other_scripts_becomes_latin_punctuation(self):
        self.assertEqual(normalise_text("سلام، حال؛ چطور؟"), "سلام, حال; چطور?")
        self.assertEqual(normalise_text("你好，世界。"), "你好, 世界.")

    def test_composed_and_decomposed_letters_are_the_same(self):
        self.assertEqual(normalise_text("cafe\u0301"), "café")

    def test_joiner_inside_a_persian_word_is_kept(self):
        self.assertIn("\u200c", normalise_text("می\u200cروم"))

    def test_compatibility_characters_and_digits_of_any_script_are_plain_ones(self):
        for written, plain in {
            "The ｄｏｇ，１２：３０！": "The dog, 12:30!",
            "eﬃcient ﬁre, Ⅷ ⅷ ①": "efficient fire, VIII viii 1",
            "𝕕𝕠𝕘 𝓭𝓸𝓰 ⓓⓞⓖ ᵈᵒᵍ 🄳🄾🄶": "dog dog dog dog DOG",
            "5℃ 3㎞ 2㎏ 4㎡ 5㎛": "5°C 3km 2kg 4m² 5µm",
            "Ĳsbeer ǆep ŉ ſo": "IJsbeer džep 'n so",
            "١٢٣ ۱۲۳ १२३ ১২৩ 𝟙𝟚𝟛 ۳٫۵ ۵٪": "123 123 123 123 123 3.5 5%",
            "ｶﾞ ㍿ ﷺ": "ガ 株式会社 صلى الله عليه وسلم",
            # What a later stage reads, letters of Thai and Korean, and phonemes.
            "½ x² H₂O №5 Acme™ 1.º 5 µm … ﷼": "½ x² H₂O №5 Acme™ 1.º 5 µm… ﷼",
            "น้ำ ㅋㅋ don´t [[kʰˈæt２]]": "น้ำ ㅋㅋ don´t [[kʰˈæt２]]",
        }.items():
            self.assertEqual(normalise_text(written), plain)
            self.assertEqual(normalise_text(plain), plain)

    def test_no_part_of_an_emoji_is_left(self):
        for emoji in "❤️ ❤ 😀 👍🏽 👨‍👩‍👧 🏳️‍🌈 🇩🇪 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☎️ ©️ 👩‍⚕️ 🆗 ✅ ⭐ ⏰ ‼️".split():
            self.assertEqual(normalise_text(f"I {emoji} you{emoji}."), "I you.", ascii(emoji))
        self.assertEqual(normalise_text("5️⃣ C♯ © ™"), "5 C♯ © ™")

    def test_normalisation_takes_linear_time(self):
        began_s = time.process_time()
        self.assertEqual(normalise_text("a" + " \u00ad" * 50_000 + "b"), "a b")
        self.assertLess(time.process_time() - began_s, LIMIT_S)


class Phonemes(unittest.TestCase):
    def test_symbols_are_ipa_stress_length_spaces_and_punctuation(self):
        actual = "|".join(symbols_of("Hello, see?", "en", "phonemes"))
        self.assertEqual(actual, "h|ə|l|ˈ|o|ʊ|,| |s|ˈ|i|ː|?")

    def test_combining_mark_belongs_to_its_base(self):
        self.assertIn("n\u0329", symbols_of("button", "en", "phonemes"))  # syllabic n

    def test_each_language_of_the_demo_corpus_has_phonemes(self):
        self.assertEqual("".join(symbols_of("„გამარჯობა“!", "ka", "phonemes")), "ɡˈamardʒˌoba!")
        self.assertEqual("".join(symbols_of("سلام؟", "fa", "phonemes")), "salˈɑm?")

    def test_marks_inside_numbers_and_times_end_no_clause(self):
        for text in ("3.14", "10:30", "1,000"):
            self.assertFalse(set(symbols_of(text, "en", "phonemes")) & set(".,:"), text)

    def test_a_dash_is_a_pause_and_a_hyphen_is_not(self):
        self.assertIn(",", symbols_of("one — two", "en", "phonemes"))
        self.assertNotIn(",", symbols_of("well-known", "en", "phonemes"))

    def test_marks_on_a_letter_are_read_alike_in_every_order(self):
        for language, written, ipa in (
            ("ar", "مُحَمَّد", "muħˈammad"),
            ("ar", "إِنَّ", "ʔˈinna"),
            ("fa", "محمَّد", "mahˈamad"),
            ("he", "שָׁלוֹם", "ʃˈalom"),
            ("he", "פִּיל", "pˈijl"),
            ("he", "יִשְׂרָאֵֽל", "isrˈaʔel"),
            ("he", "בְּרֵאשִׁ֖ית", "bərˈeʔʃit"),
            ("vi", "Tiếng", "t̪ˈiɛɜŋ"),
            ("bn", "বাড়িয়া", "bˈar.iˌa"),
            ("ko", "안녕", "ˈɐnnjʌŋ"),
        ):
            for form in ("NFC", "NFD"):
                given = unicodedata.normalize(form, written)
                self.assertEqual("".join(symbols_of(given, language, "phonemes")), ipa, written)
            # As it was typed.
            self.assertEqual("".join(symbols_of(written, language, "phonemes")), ipa, written)
            self.assertEqual(
                *(
                    symbols_of(unicodedata.normalize(form, written), language, "characters")
                    for form in ("NFC", "NFD")
                )
            )

    def test_language_switch_leaves_no_mark(self):
        self.assertEqual("".join(symbols_of("hello سلام", "fa", "phonemes")), "həlˈəʊ salˈɑm")

    def test_text_without_letters_and_digits_has_no_symbols(self):
        for frontend in ("phonemes", "characters"):
            for text in ("", "  ", "?!…", "—", '"', "\0", "\ud800"):
                self.assertEqual(symbols_of(text, "en", frontend), [], (frontend, text))

    def test_error_for_an_english_name_or_a_locale_names_the_code(self):
        meant = {
            "en": ("english", "English", "en_US.UTF-8"),
            "fa": ("persian", "fa-IR"),
            "de": ("German", "de-DE"),
            "zh": ("zh-CN",),
            "hy": ("armenian",),
        }
        for code, names in meant.items():
            for name in names:
                with self.assertRaisesRegex(DataError, f"'{name}'.*Did you mean {code}[?]"):
                    symbols_of("a", name, "phonemes")

    def test_any_other_unknown_language_and_one_without_a_dictionary_are_errors(self):
        for language in ("enn", "xex"):
            with self.assertRaisesRegex(DataError, f"'{language}'.*Use a code such as en"):
                symbols_of("a", language, "phonemes")

    def test_locales_that_espeak_knows_are_accepted_in_any_spelling(self):
        phonemes = espeak.shared().phonemes
        for pair in ("en_GB en-gb", "en-US en-us", "pt_BR pt-br", "FA fa"):
            locale, code = pair.split()
            self.assertEqual(phonemes("a", locale), phonemes("a", code))

    def test_phonemes_do_not_depend_on_earlier_calls(self):
        texts = [("The old sailor slept.", "en"), ("გუშინ თოვდა.", "ka"), ("دیروز برف آمد.", "fa")]
        copy = espeak.shared()
        first = [copy.phonemes(*text) for text in texts]
        copy.synthesize("Something else, quickly!", EspeakVoice("en", "m3", 70, 200))
        self.assertEqual([copy.phonemes(*text) for text in reversed(texts)], first[::-1])

    def test_espeak_gets_no_long_number_with_dots(self):
        for text, given in (
            ("1." * 15 + "1, 192.168.100.100", "1 " * 15 + "1, 192.168.100.100"),
            ("3.14159265358979323846 ", "3.14159265358979323846 "),
        ):
            self.assertEqual(espeak._utf8(text).decode(), given)
        self.assertTrue(symbols_of("1." * 500, "ka", "phonemes"))

    def test_threads_get_the_same_phonemes_as_one_thread(self):
        texts = [("thirty three thieves", "en"), ("ოცდაათი", "ka")] * 100
        alone = [espeak.shared().phonemes(*text) for text in texts]
        with ThreadPoolExecutor(3) as pool:
            together = pool.map(lambda text: espeak.shared().phonemes(*text), texts)
        self.assertEqual(list(together), alone)


class Characters(unittest.TestCase):
    def test_symbols_are_lower_case_characters_in_any_language(self):
        self.assertEqual(symbols_of("Ab, გ?", "zz", "characters"), ["a", "b", ",", " ", "გ", "?"])


class Speech(unittest.TestCase):
    def test_events_are_in_the_order_of_the_text(self):
        samples, events = espeak.shared().synthesize("See, two.", EspeakVoice("en"))
        self.assertEqual(samples.dtype, np.int16)
        actual = [symbol for _, symbol in events if symbol != PAUSE]
        self.assertEqual(actual, ["s", "ˈiː", WORD_GAP, "t", "ˈuː"])
        starts_s = [start_s for start_s, _ in events]
        self.assertEqual(starts_s, sorted(starts_s))
        self.assertLessEqual(starts_s[-1], len(samples) / espeak.SAMPLE_RATE_HZ)

    def test_rate_and_pitch_of_the_voice_are_applied(self):
        settings = ({"rate_wpm": 100}, {"rate_wpm": 200}, {"pitch": 20}, {"pitch": 80})
        slow, fast, low, high = (
            espeak.shared().synthesize("One two three.", EspeakVoice("en", **of))[0]
            for of in settings
        )
        self.assertGreater(len(slow), 1.5 * len(fast))
        self.assertGreater(_first_peak_hz(high), 1.3 * _first_peak_hz(low))

    def test_isolated_copies_return_equal_samples(self):
        spoken = []
        for _ in range(2):
            with espeak.isolated_copy() as copy:
                waves = [copy.synthesize("Once more.", EspeakVoice("en"))[0] for _ in range(2)]
                spoken.append([wave.tobytes() for wave in waves])
        self.assertEqual(*spoken)

    def test_a_language_switch_is_not_an_event(self):
        _, events = espeak.shared().synthesize("hello سلام", EspeakVoice("fa"))
        self.assertFalse([symbol for _, symbol in events if "(" in symbol])

    def test_ctrl_c_during_synthesis_is_not_lost(self):
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, former)
        with espeak.isolated_copy() as copy:
            collect = copy._collect

            def interrupt(event) -> None:
                # In a callback of the library, where ctypes ignores exceptions.
                signal.raise_signal(signal.SIGINT)
                collect(event)

            copy._collect = interrupt
            with self.assertRaises(KeyboardInterrupt):
                copy.synthesize("One.", EspeakVoice("en"))
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_unknown_variant_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "zzz"):
            espeak.shared().synthesize("a", EspeakVoice("en", "zzz"))


class Symbols(unittest.TestCase):
    def setUp(self):
        self.table = SymbolTable.from_sequences([["b", "a"], ["ˈ", "a"]])

    def test_ids_start_after_padding_begin_and_end_in_code_point_order(self):
        self.assertEqual(self.table.symbols, ("a", "b", "ˈ"))
        ids = self.table.encode(["ˈ", "a"])
        self.assertEqual((ids.tolist(), ids.dtype), ([1, 5, 3, 2], np.int32))
        self.assertEqual(len(self.table), 6)

    def test_symbols_do_not_depend_on_the_order_of_the_corpus(self):
        self.assertEqual(self.table, SymbolTable.from_sequences([["a", "ˈ"], [], ["b"]]))

    def test_each_unknown_symbol_is_named_once(self):
        self.assertEqual(self.table.unknown(["z", "a", "ʒ", "z"]), ["z", "ʒ"])
        with self.assertRaisesRegex(DataError, r"'\\u0292' \(ʒ\)"):
            self.table.encode(["a", "ʒ"])


def _first_peak_hz(samples: np.ndarray) -> float:
    """Return the fundamental frequency by the highest autocorrelation peak, 60 to 400 Hz."""
    middle = samples[len(samples) // 4 : len(samples) // 4 + 8192].astype(float)
    correlation = np.fft.irfft(np.abs(np.fft.rfft(middle, 16384)) ** 2)
    shortest, longest = espeak.SAMPLE_RATE_HZ // 400, espeak.SAMPLE_RATE_HZ // 60
    return espeak.SAMPLE_RATE_HZ / (shortest + np.argmax(correlation[shortest:longest]))
