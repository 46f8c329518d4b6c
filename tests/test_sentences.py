"""Splitting long texts: where sentences end, where they do not, and how overlong ones are split."""

import time
import unittest

from myxtts.text.sentences import MAX_CHARACTERS, split_text

# What was quadratic took minutes.
LIMIT_S = 30.0


def texts(text: str, **options) -> list[str]:
    return [chunk for chunk, _ in split_text(text, **options)]


def boundaries(text: str, **options) -> str:
    """Return the first letter of the boundary after each chunk."""
    return "".join(boundary.value[0] for _, boundary in split_text(text, **options))


def letters(text: str) -> str:
    return "".join(character for character in text if character.isalnum())


class Stops(unittest.TestCase):
    def test_a_stop_ends_a_sentence_and_belongs_to_it(self):
        for text, expected in (
            ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
            ("What?! No... Yes.", ["What?!", "No...", "Yes."]),
            ("სად არის? აქ არის. კარგი!", ["სად არის?", "აქ არის.", "კარგი!"]),
            ("سلام؟ خوبم۔ بله. نه", ["سلام؟", "خوبم۔", "بله.", "نه"]),
            ("यह है। वह है।", ["यह है।", "वह है।"]),
            ("你好。我很好！真的", ["你好。", "我很好！", "真的"]),
        ):
            with self.subTest(text=text):
                self.assertEqual(texts(text), expected)

    def test_quotes_and_brackets_after_the_stop_belong_to_the_sentence(self):
        sentences = texts('"Go!" She went. (He stayed.) «Why?» So.')
        self.assertEqual(sentences, ['"Go!"', "She went.", "(He stayed.)", "«Why?»", "So."])

    def test_a_word_in_lower_case_continues_the_sentence(self):
        for text in ('"Stop!" he said.', "Really... not now.", "Born in ca. 1900 and so on."):
            self.assertEqual(texts(text), [text])

    def test_dots_within_a_sentence_do_not_end_it(self):
        for text in (
            "Mr. Smith met Dr. Brown and Prof. Gray.",
            "J. S. Bach and Jean-J. Rousseau never met.",
            "It costs 3.14 dollars at 10.30 in room No. 5, see Fig. 3.",
            "Some fruit, e.g. Pears, i.e. these.",
            "The U.S. Army came.",
            "1. First of all.",
            "See www.example.org for more.",
            "მაგ. ეს.",
        ):
            with self.subTest(text=text):
                self.assertEqual(texts(text), [text])

    def test_words_that_look_like_abbreviations_end_a_sentence(self):
        for text, expected in (
            ("He said no. Five came.", ["He said no.", "Five came."]),
            ("No. Peter came.", ["No.", "Peter came."]),
            ("Modern art. Peter likes it.", ["Modern art.", "Peter likes it."]),
            ("He ran 5 m. Peter ran 3.", ["He ran 5 m.", "Peter ran 3."]),
            ("I have 3. Peter has 4.", ["I have 3.", "Peter has 4."]),
            ("Choose plan B. It is better.", ["Choose plan B.", "It is better."]),
            ("It was I. You know.", ["It was I.", "You know."]),
            ("It begins at 5 p.m. We wait.", ["It begins at 5 p.m.", "We wait."]),
            ("In the year 1999. Then.", ["In the year 1999.", "Then."]),
        ):
            with self.subTest(text=text):
                self.assertEqual(texts(text, language="en"), expected)

    def test_abbreviations_and_ordinals_of_a_language_end_a_sentence_before_its_first_words(self):
        for language, one, two in (
            ("en", "At 5 p.m. Monday, No. One met Ms. Lee, e.g. Ann.", "At 5 p.m. We wait."),
            (
                "en",
                "J. R. R. Tolkien and J. I. Lee in Fig. A and Art. II.",
                "In Sept. Then he left.",
            ),
            ("en", "Yahoo! Inc. is here, approx. Ten lb. Heavy.", "The U.S. He left it."),
            ("en", "It is No. One, vol. II, p. Five.", "It costs 5 p. Peter pays."),
            (
                "de",
                "Am 3. Oktober, am 24. 12. 1990, im XX. Jahrhundert.",
                "Er wurde 3. Dann ging er.",
            ),
            (
                "de",
                "Obst, z. B. Birnen, d. h. Obst u. a. Herr Dr. Lee.",
                "Im Jahr 1990. Peter ging.",
            ),
            ("de", "Es kostet 5 Mio. Euro, i. d. R. Geld, v. Chr. Geburt.", "Das ist Max. Er kam."),
            ("es", "D. Juan, Ud. Ana, p. ej. Hoy, los EE. UU. Mexicanos.", "Al mar. Pedro nada."),
            ("fr", "M. Dupont, p. ex. Paris, av. J.-C. Rome, no. Cinq.", "Il fait 5 m. Paul dort."),
            (
                "ru",
                "Он жил на ул. Ленина, т. е. А. С. Пушкин, 5 тыс. Рублей.",
                "Это не я. Пётр знает.",
            ),
            ("ru", "В III в. до н. э. Рим, г. Москва.", "В 1990 г. Москва росла."),
            ("it", "Il Sig. Rossi, p. es. Cesare, nel 44 a. C. Roma.", "Sì, è. Marco sa."),
            ("nl", "Fruit, bijv. Appels, d.w.z. Elstar, 5 mln. Euro.", "Hij is 3. Piet is 4."),
            ("pl", "Dnia 3. Maja na ul. Długiej, m.in. Jan.", "W 1990 r. Polska wygrała."),
            ("cs", "Dne 28. Října, např. Praha, Karel IV. Lucemburský.", "Mám 3. Ona má 4."),
            ("pt", "O Sr. Silva, p. ex. Hoje, a Dra. Costa.", "São dez. Pedro dorme."),
            ("sv", "T. ex. Anna, bl. a. Erik, 300 f. Kr. Rom.", "Jag har 3. Hon har 4."),
            ("fi", "Hän syntyi 3. Lokakuuta, esim. Turku.", "Vuonna 1990. Hän lähti."),
            ("hu", "1990. Október 3. Szerda, pl. Budapest.", "Ez az 5. Most megy."),
            ("tr", "Dr. Ali 3. Sokakta, No. 5.", "Saat 5. Ben gidiyorum."),
            ("no", "Den 3. Mai, f.eks. Anna.", "Jeg er 3. Hun er 4."),
            ("vi", "J. S. Bach.", "Vâng ạ. Tôi."),
        ):
            with self.subTest(one=one, two=two):
                self.assertEqual(len(texts(one, language=language)), 1)
                self.assertEqual(texts(one), [one])
                self.assertEqual(len(texts(two, language=language)), 2)

    def test_phonemes_are_one_word(self):
        self.assertEqual(texts("See [[ɐ. Bb! Cc]]. [[ɐ]] Go."), ["See [[ɐ. Bb! Cc]].", "[[ɐ]] Go."])
        for text in ("ab [[c d; e, f]] gh", "[[c d; e, f, g]]"):
            self.assertEqual("".join(texts(text, max_characters=9)).count("[[c d; e, f"), 1)

    def test_text_without_letters_and_digits_is_dropped(self):
        for text in ("", " \n\t ", "...", "* * *", "—", "؟"):
            self.assertEqual(texts(text), [], text)
        self.assertEqual(texts("One.\n\n* * *\n\nTwo."), ["One.", "Two."])


class Paragraphs(unittest.TestCase):
    def test_only_the_last_sentence_has_a_paragraph_boundary(self):
        self.assertEqual(boundaries("One. Two.\n\nThree. Four. Five."), "spssp")

    def test_blank_lines_turn_other_line_breaks_into_spaces(self):
        actual = texts("A line that\nis wrapped.\n  \nAnother one.")
        self.assertEqual(actual, ["A line that is wrapped.", "Another one."])

    def test_without_blank_lines_each_line_is_a_paragraph(self):
        for break_ in ("\n", "\r\n", "\r", "\u2028", "\u2029"):
            actual = (texts(f"one{break_}two{break_}"), boundaries(f"one{break_}two"))
            self.assertEqual(actual, (["one", "two"], "pp"))

    def test_an_ornament_is_not_the_last_sentence(self):
        self.assertEqual(boundaries("One. Two. ***"), "sp")


class LongSentences(unittest.TestCase):
    def test_chunks_are_within_the_limit_and_lose_no_letter(self):
        parts = {"word ": 500, "x": 1_001, "one, two; ": 100}
        for part, times in (parts | {"你好": 300, "a-b—c ": 200, "კარგი, ": 90}).items():
            text = part * times
            with self.subTest(part):
                chunks = texts(text)
                self.assertLessEqual(max(map(len, chunks)), MAX_CHARACTERS)
                self.assertEqual(letters("".join(chunks)), letters(text))
                self.assertEqual(boundaries(text), "c" * (len(chunks) - 1) + "p")

    def test_a_short_sentence_is_not_split(self):
        actual = texts("One, two; three: four.", max_characters=22)
        self.assertEqual(actual, ["One, two; three: four."])

    def test_a_long_sentence_is_split_at_the_strongest_mark_near_its_middle(self):
        for text, expected in (
            ("one two, three; four five, six", ["one two, three;", "four five, six"]),
            ("one two three, four five six", ["one two three,", "four five six"]),
            ("one two — three four", ["one two —", "three four"]),
            ("سلام دوست من، چطوری امروز", ["سلام دوست من،", "چطوری امروز"]),
            ("one two three four", ["one two", "three four"]),
            # The semicolon is too close to the start.
            ("a; bcdefgh ijklmn opqrstuv", ["a; bcdefgh", "ijklmn opqrstuv"]),
            ("cost 1,000,000, or even more", ["cost 1,000,000,", "or even more"]),
        ):
            with self.subTest(text=text):
                actual = texts(text, max_characters=25 if len(text) > 25 else len(text) - 1)
                self.assertEqual(actual, expected)

    def test_adversarial_texts_take_linear_time(self):
        stops = ("." * 100_000 + "x", '!"' * 50_000 + "x", "A. " * 30_000, "1. " * 30_000)
        for text in (*stops, "\n \na" * 20_000, "a" * 1_000_000):
            began_s = time.process_time()
            self.assertEqual(letters("".join(texts(text))), letters(text))
            self.assertLess(time.process_time() - began_s, LIMIT_S, text[:5])
