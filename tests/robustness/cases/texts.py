"""Texts: what they are read as, in training and in synthesis, or why they are refused."""

import unicodedata
from collections.abc import Iterator

from myxtts.text.frontend import Stages, TextFrontend
from myxtts.text.sentences import split_text
from tests.robustness.cases import Case, Lab

FRONTEND = TextFrontend(normaliser="words-1")

# Kind: language, text, and another text that sounds the same.
READ_AS = {
    "compatibility characters": (
        ("en", "The 𝕕𝕠𝕘 barked.", "The dog barked."),
        ("en", "The ｄｏｇ barked １２ times.", "The dog barked twelve times."),
        ("en", "eﬃcient ﬁnally ﬂoor oﬀ", "efficient finally floor off"),
        ("en", "Henry Ⅷ", "Henry the eighth"),
        ("en", "①, ②", "one, two"),
        ("en", "３㎞ and 5 ㎏ at 20 ℃", "three kilometers and five kilograms at twenty degrees Celsius"),
        ("en", "½ cup, x² and H₂O", "one half cup, x two and H two O"),
        ("en", "⅛ cup and 1⅜ cups", "one eighth cup and one and three eighths cups"),
        ("nl", "Ĳsbeer", "IJsbeer"),
        ("hr", "ǆep", "džep"),
        ("de", "ﬂießend ﬁnden ſo", "fließend finden so"),
        ("ru", "№ ５", "номер пять"),
    ),
    "letters of another script that look alike": (
        ("uk", "Bін і вiн, їх iм'я", "Він і він, їх ім'я"),
        ("kk", "Сəлем", "Сәлем"),
        ("cv", "çăкăр", "ҫӑкӑр"),
        ("en", "Тhe сat", "The cat"),
        ("ur", "كتاب ميں", "کتاب میں"),
        ("ar", "کیف حالک", "كيف حالك"),
    ),
    "digits": (
        ("en", "١٢٣ apples", "one hundred and twenty three apples"),
        ("en", "१२ and ১২ and ๑๒", "twelve and twelve and twelve"),
        ("fa", "سلام ۱۲۳", "سلام صد و بیست و سه"),
        ("ar", "مرحبا ١٢٣", "مرحبا 123"),
        ("hi", "नमस्ते १२३", "नमस्ते 123"),
        ("en", "9" * 60, " ".join(["nine"] * 60)),
        ("en", "0.5, .5, -5, 007", "zero point five, point five, minus five, zero zero seven"),
        ("en", "1st 2nd 3rd 21st", "first second third twenty first"),
    ),
    "letters": (
        ("en", "Wake me at 6:30 AM.", "Wake me at six thirty [[ˌeɪˈɛm]]."),
        ("en", "Use A4 paper.", "Use [[ˈeɪ]] four paper."),
        ("en", "The A380 is at Gate A12.", "The [[ˈeɪ]] three hundred and eighty is at Gate [[ˈeɪ]] twelve."),
        ("en", "See Fig. A and Eq. B.", "See Fig. [[ˈeɪ]] and Eq. B."),
        ("en", "A lamp and a cat.", "a lamp and a cat."),
        ("fr", "Le plan A est bon.", "Le plan [[a]] est bon."),
    ),
    "invisible characters": (
        ("en", "co\u00adop\u00ader\u00adation", "cooperation"),
        ("en", "He\u200bllo\u2060 wor\u200bld.\ufeff", "Hello world."),
        ("en", "It starts at 12:00\u202fAM sharp.", "It starts at 12:00 AM sharp."),
        ("en", "A\tcat\nsat\r\ndown\0.", "A cat sat down."),
        ("en", "caf\u0065\u0301 na\u0069\u0308ve", "café naïve"),
        ("de", "u\u0308ber A\u0308rger", "über Ärger"),
        ("ru", "и\u0306од", "йод"),
        ("vi", "Tie\u0302\u0301ng Vie\u0323\u0302t", "Tiếng Việt"),
        ("ko", "\u110b\u1161\u11ab\u1102\u1167\u11bc", "안녕"),
        ("fa", "می\u200cخواهم", "می\u200cخواهم"),
    ),
    "quotes and dashes": (
        ("en", "Don’t say “never” … it’s ‘fine’—really.", "Don't say \"never\"… it's 'fine' — really."),
        ("en", "Don`t. Don´t. Don′t. Donʼt.", "Don't. Don't. Don't. Don't."),
        ("en", "re-enter, co-op", "re-enter, co-op"),
        ("en", "--help", "help"),
        ("es", "¿Qué? ¡Sí!", "Qué? Sí!"),
        ("en", "(one) [two] {six}", "one two six"),
    ),
    "emoji": (
        ("en", "I ❤️ you 😀 very much 👍🏽", "I you very much"),
        ("en", "I ❤ you 🇩🇪 👨\u200d👩\u200d👧 so", "I you so"),
        ("ru", "Да 👍", "Да"),
    ),
    "dates": (
        ("en-us", "Due on 3/4/2024.", "Due on March fourth twenty twenty four."),
        ("en", "On 12/25/2024.", "On December twenty fifth twenty twenty four."),
        ("en-gb", "Due on 3/4/2024.", "Due on the third of April twenty twenty four."),
        ("en-gb", "On 12/25/2024.", "On the twenty fifth of December twenty twenty four."),
        ("de", "Am 3. Oktober 1990.", "Am dritten Oktober neunzehnhundertneunzig."),
        ("es", "El 1.º de mayo", "El primero de mayo"),
        ("fr", "Le 1er janv. 2024", "Le premier janvier deux mille vingt-quatre"),
        ("ru", "В 1990 году", "В тысяча девятьсот девяностом году"),
        ("en", "In 1999 and the '90s.", "In nineteen ninety nine and the nineties."),
        ("en", "10:05, 0:30", "ten oh five, zero thirty"),
    ),
    "abbreviations": (
        ("de", "Obst, z. B. Birnen, ist gesund.", "Obst, zum Beispiel Birnen, ist gesund."),
        ("de", "Es kostet 5 Mio. Euro.", "Es kostet fünf Millionen Euro."),
        ("ru", "Он жил на ул. Ленина.", "Он жил на улице Ленина."),
        ("es", "en EE. UU. Ahora", "en Estados Unidos Ahora"),
        ("en", "Mr. Fox, e.g. this, etc.", "mister Fox, for example this, et cetera."),
        ("en", "St. James St. near Dr. King", "saint James Street near doctor King"),
        ("fr", "M. Dupont, p. ex. Paul", "monsieur Dupont, par exemple Paul"),
    ),
    "money and units": (
        ("en", "$1.5bn, €3k", "one point five billion dollars, three thousand euros"),
        ("en", "50% of 20 mph", "fifty percent of twenty miles per hour"),
        ("en", "½ cup", "one half cup"),
        ("de", "1.000,50 €", "tausend Euro fünfzig"),
        ("fr", "1 234,56 €", "mille deux cent trente-quatre euros cinquante-six"),
        ("es", "1.234,56 €", "mil doscientos treinta y cuatro euros con cincuenta y seis céntimos"),
        ("ru", "5 кг", "пять килограмм"),
        ("en", "Call +1 (555) 010-0199.", "Call plus one, five five five, zero one zero, zero one nine nine."),
        ("en", "Mail a.lee@example.com.", "Mail a dot lee at example dot com."),
    ),
    "words of programs": tuple(("en", word, word.lower()) for word in ("None", "Null", "Undefined")),
    "capitals": (
        ("en", "Louis XIV met in Act IV.", "Louis the fourteenth met in Act four."),
        ("tr", "İstanbul IŞIK", "istanbul ışık"),
        ("ka", "ᲒᲐᲛᲐᲠᲯᲝᲑᲐ", "გამარჯობა"),
    ),
}  # fmt: skip

# Language, word with several marks on a letter, and its phonemes, in each order of the marks.
MARKS = (
    ("ar", "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f", "muħˈammad"),
    ("fa", "\u0645\u062d\u0645\u0651\u064e\u062f", "mahˈamad"),
    ("he", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "ʃˈalom"),
    ("he", "\u05e4\u05bc\u05b4\u05d9\u05dc", "pˈijl"),
    ("he", "\u05db\u05bc\u05b7\u05d1\u05bc\u05b7\u05d0\u05d9", "kabˈaʔi"),
    ("he", "\u05e1\u05b5\u05e4\u05b6\u05e8", "sˈefer"),
    ("he", "\u05d0\u05b4\u05e9\u05c1\u05bc\u05b8\u05d4", "ʔˈiʃah"),
    ("vi", "Tiếng", "t̪ˈiɛɜŋ"),
)

# Language, text, and a pattern of what is refused or listed.
UNREAD = (
    ("en", "Привет мир", "error: .*cannot read Привет, мир as 'en'.*"),
    ("en", "你好", "error: .*cannot read 你, 好 as 'en'.*"),
    ("ja", "東京 2020", "error: .*cannot read 東, 京 as 'ja'.*kana.*"),
    ("ja", "水をマレーシアから買わなくてはならないのです。", "error: .*cannot read 水, 買.*"),
    ("th", "สวัสดีครับ", "error: .*no usable rules for 'th'.*"),
    ("he", "הילדים הלכו לבית הספר בבוקר", "error: .*without a vowel.*"),
    ("en", "She went ❶ home", "error: .*cannot read ❶.*"),
    ("en", "the word Москва here", "read; listed: Москва"),
    ("en", "A hundred oil lamps 你好.", "read; listed: 你 好"),
    ("en", "I ❤️ you 😀", "read; listed: ❤️ 😀"),
    ("en", "well [laughs]", r"read; listed: \[laughs\]"),
    ("ru", "Я люблю Windows", "read; listed: "),
    ("cmn", "你好，世界。", "read; listed: "),
    *(("en", text, "nothing is spoken") for text in ("", "   ", "...", "?!", "-", "😀")),
)  # fmt: skip

# Language, sentences, and text: with how many ends of sentences it is read.
SENTENCES = (
    ("de", 1, "Am 3. Oktober 1990 war es so weit."), ("de", 1, "Er kommt am 24. Dezember."),
    ("de", 1, "Der 1. FC Köln gewann."), ("de", 1, "Sie wohnt im 2. Stock."),
    ("de", 1, "Obst, z. B. Birnen, ist gesund."), ("de", 1, "Obst, z.B. Birnen, ist gesund."),
    ("de", 1, "Er kam u. a. Montag."), ("de", 1, "Das heißt, d. h. Anna kommt."),
    ("de", 1, "Karl V. und Ludwig XIV. Frankreichs König."),
    ("de", 1, "Die Nr. Fünf, ca. Zehn, St. Pauli, Abs. Drei."),
    ("de", 1, "Es kostet 5 Mio. Euro."), ("de", 1, "Die Dr.-Meyer-Str. Nord."),
    ("ru", 2, "Он родился в 1990 г. Москва встретила его."), ("ru", 1, "Он жил на ул. Ленина."),
    ("ru", 2, "Хлеб, молоко и т. д. Потом домой."), ("ru", 1, "Это стоит 5 тыс. Рублей."),
    ("ru", 1, "Им. Пушкина."), ("fr", 1, "Il habite au no. Cinq, p. ex. Paris."),
    ("fr", 1, "M. Dupont et Mme. Durand et Mlle. Petit."), ("fr", 1, "Le 1er janv. Demain."),
    ("fr", 1, "Il vit av. Foch."), ("es", 1, "La Sra. López y el Dr. García en EE. UU. Ahora."),
    ("es", 1, "Vive en la av. Libertad, n.º 5."), ("es", 1, "Ud. Debe venir."),
    ("en", 2, "He moved to St. Louis in Sept. Then he left."), ("en", 1, "See Fig. A and Eq. B."),
    ("en", 1, "Acme Inc. Announces results."),
    ("en", 1, "The U.S. Army and Gov. Lee met at 5 p.m. Monday."),
    ("en", 1, "On Jan. 5 she met Lt. Cmdr. Data."), ("en", 1, "J. R. R. Tolkien wrote it."),
    ("en", 1, "He weighs approx. Ten lb. Heavy."), ("en", 2, "I have 3. She has 4."),
    ("en", 1, "Yahoo! Inc. is here."), ("en", 1, "It was No. One, vol. II, p. Five."),
    ("nl", 1, "Hij is geb. Amsterdam, d.w.z. Noord."), ("pl", 1, "Mieszka na ul. Długiej 3. Maja."),
    ("cs", 1, "Dne 3. Října 1990, tj. Středa."), ("hu", 1, "1990. Október 3. Szerda."),
    ("fi", 1, "Hän syntyi 3. Lokakuuta."), ("tr", 1, "Dr. Ali 3. Sokakta oturur."),
)  # fmt: skip


def cases(lab: Lab) -> Iterator[Case]:
    for kind, rows in READ_AS.items():
        for language, text, other in rows:
            yield Case(kind, text, other, lambda r=(text, other, language): _same(*r))
    for language, word, ipa in MARKS:
        for form in ("", "NFC", "NFD"):
            given = unicodedata.normalize(form, word) if form else word
            yield Case("marks", given, ipa, lambda r=(given, language): _ipa(*r))
    for language, text, expected in UNREAD:
        yield Case(
            "letters that are not read", text, expected, lambda r=(text, language): _read(*r)
        )
    for language, count, text in SENTENCES:
        expected = f"{count}, as in training"
        yield Case("sentences", text, expected, lambda r=(text, language): _split(*r))


def _stages(text: str, language: str) -> Stages:
    return FRONTEND.stages(text, language)


def _ipa(text: str, language: str) -> str:
    return "".join(_stages(text, language).symbols)


def _same(text: str, other: str, language: str) -> str:
    """Return the other text if both have the same phonemes, in synthesis as well."""
    stages = _stages(text, language)
    if (spoken := _ipa(other, language)) != "".join(stages.symbols):
        return f"{''.join(stages.symbols)}, not {spoken}, of {stages.normalised}"
    parts = _parts(text, language)
    return other if parts == stages.normalised else f"in synthesis {parts}"


def _parts(text: str, language: str) -> str:
    parts = split_text(text, language)
    return " ".join(_stages(part, language).normalised for part, _ in parts)


def _read(text: str, language: str) -> str:
    stages = _stages(text, language)
    if not stages.symbols:
        return "nothing is spoken"
    return f"read; listed: {' '.join(stages.left + stages.named)}"


def _split(text: str, language: str) -> str:
    count = len([*split_text(text, language)])
    parts, whole = _parts(text, language), _stages(text, language).normalised
    return f"{count}, as in training" if parts == whole else f"{count}: {parts}, not {whole}"
