"""Hostile texts for speech, through the front ends and, some of them, through a synthesizer with
random weights.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.hostile.bytes_and_files import encoded, write_odd_file
from benchmarks.hostile.case import Call, Place
from myxtts.commands.synthesize import read_text
from myxtts.data.manifest import MAX_TEXT_CHARACTERS, Vocabulary
from myxtts.data.texts import read_texts
from myxtts.errors import DataError
from myxtts.text.frontend import symbols_of
from myxtts.text.sentences import empty_text_message, split_text
from myxtts.text.symbols import SymbolTable

LANGUAGES = (
    "en",
    "en",
    "de",
    "fr",
    "ru",
    "ka",
    "fa",
    "ar",
    "hi",
    "cmn",
    "ja",
    "ko",
    "tr",
    "am",
    "xx",
    "",
    "en-" * 50,
)
SENTENCES = (
    "Dr. Smith paid $4.50 for 3.5 kg on Jan. 5, 1999 at 10:30 a.m. – didn't he?",
    "Der alte Lehrer sang ein ruhiges Lied, z.B. am 3. Mai; und wir hörten zu!",
    "ძველი მასწავლებელი მღეროდა წყნარ სიმღერას. ე.ი. ჩვენ ვუსმენდით",
    "معلم پیر آهنگ آرامی خواند، و ما گوش دادیم؟ می‌خواهم ۱۲۳",
    "老教師唱了一首安靜的歌。我們聽了！「真的嗎？」",
    "Старый учитель пел тихую песню: «да», — сказал он…",
    "बूढ़े शिक्षक ने एक शांत गीत गाया। हमने सुना॥",
    "옛 선생님이 조용한 노래를 불렀다.",
)
MARKUP = (
    "<speak><break time='3s'/><prosody rate='x-fast'>hello</prosody></speak>",
    "<audio src='file:///etc/passwd'/>",
    "<!DOCTYPE x [<!ENTITY a '&b;&b;'>]><x>&a;</x>",
    "[[h@l'oU]] {{#if}} ${jndi:ldap://x} %s %n %x $(touch pwned) `id`",
    "**bold** # title\n| a | b |\n|---|---|\n```code```",
    "\\frac{1}{2} \\input{/etc/passwd}",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#0; &#x110000;",
    "http://example.com/a?b=c&d=%00 me@example.com C:\\Windows\\..\\x",
    "\x1b[2J\x1b]0;title\x07\x1b[31mred",
)
EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏿", "🇬🇪", "😀", "1️⃣", "❤️", "🫠", "👁️‍🗨️")
MARKS = ("\u0301", "\u0323", "\u0327", "\u0315", "\u20dd", "\u05b0", "\u0e38", "\u3099", "\u1dc4")
INVISIBLE = (
    "\u200b",
    "\u00ad",
    "\u2060",
    "\ufeff",
    "\u202e",
    "\u2066",
    "\u200f",
    "\u200d",
    "\u2028",
    "\x85",
    "\u061c",
    "\U000e0041",
)
SCRIPTS = (
    *(
        (0x12000, 0x123FF),
        (0x10300, 0x1032F),
        (0x1F00, 0x1FFF),
        (0xA000, 0xA48C),
        (0x0F00, 0x0FFF),
        (0x1800, 0x18AF),
    ),
    *(
        (0xE000, 0xF8FF),
        (0x20000, 0x2A6DF),
        (0x1D400, 0x1D7FF),
        (0x0590, 0x06FF),
        (0x0B80, 0x0DFF),
        (0x2500, 0x2BFF),
    ),
    *(
        (0xFFF0, 0xFFFF),
        (0x10FF00, 0x10FFFF),
        (0x0000, 0x001F),
        (0x0080, 0x009F),
        (0xD800, 0xDFFF),
        (0, 0x10FFFF),
    ),
)
PIECES = (
    *SENTENCES,
    *MARKUP,
    *EMOJI,
    *MARKS,
    *INVISIBLE,
    " ",
    "\n",
    "\n\n",
    "\t",
    "\0",
    "...",
    "?!",
    "—",
    '"',
    "٫",
    "½",
)
LONG = 100_000


def _words(draw: random.Random) -> str:
    return "".join(draw.choices(PIECES, k=draw.choice((1, 3, 20, 200))))


def _script(draw: random.Random) -> str:
    first, last = draw.choice(SCRIPTS)
    return "".join(chr(draw.randint(first, last)) for _ in range(draw.choice((1, 10, 300, 3000))))


def _repeated(draw: random.Random) -> str:
    """A short unit until the text is long: what is quadratic takes minutes."""
    unit = "".join(
        draw.choices(
            (*PIECES, "a", "1", ".", ",", "-", " -", "!)", "a.", "x ", "Mr. ", "1.", "'"),
            k=draw.randint(1, 3),
        )
    )
    return (unit * (LONG // len(unit) + 1))[:LONG]


def _long(draw: random.Random) -> str:
    sentences = draw.choices(SENTENCES, k=4)
    return (draw.choice((" ", "\n", "")).join(sentences) * 1000)[:LONG]


def _marks(draw: random.Random) -> str:
    return draw.choice(("e", "", "ა")) + "".join(
        draw.choices(draw.sample(MARKS, 3), k=draw.choice((50, 5_000, LONG)))
    )


def _invisible(draw: random.Random) -> str:
    unit = draw.choice(("", " ")) + draw.choice(INVISIBLE)
    return (
        "word"
        + unit * draw.choice((1, 1000, LONG // len(unit)))
        + draw.choice(("", "word", ".", "—"))
    )


def _random(draw: random.Random) -> str:
    return "".join(chr(draw.randrange(0x110000)) for _ in range(draw.choice((1, 5, 50, 2000))))


def _empty(draw: random.Random) -> str:
    return draw.choice(
        ("", " ", "\n", "\0", "\ufeff", "...", "\u200b", "!?", "\ud800", "\udcff\udc80", "—")
    )


def _surrogates(draw: random.Random) -> str:
    characters = list(draw.choice(SENTENCES))
    for _ in range(draw.randint(1, 20)):
        characters.insert(draw.randrange(len(characters) + 1), chr(draw.randint(0xD800, 0xDFFF)))
    return "".join(characters)


def _mutated(draw: random.Random) -> str:
    characters = list(draw.choice((*SENTENCES, *MARKUP)))
    for _ in range(draw.choice((1, 5, 30))):
        at = draw.randrange(len(characters) + 1)
        characters[at : at + draw.randint(0, 3)] = draw.choice(
            (*PIECES, "", chr(draw.randrange(0x110000)))
        )
    return "".join(characters)


def _number(draw: random.Random) -> str:
    return draw.choice(("9", "1.", "1,000,", "0x", "-", "١", "１", "½", "1e", "10:")) * draw.choice(
        (5, 500, 20_000)
    )


TEXTS: tuple[Callable[[random.Random], str], ...] = (
    *(
        _words,
        _words,
        _script,
        _repeated,
        _long,
        _marks,
        _invisible,
        _random,
        _empty,
        _surrogates,
        _mutated,
        _number,
    ),
)


def hostile_text(draw: random.Random, longest: int = LONG) -> str:
    return draw.choice(TEXTS)(draw)[:longest]


def prepare(draw: random.Random, place: Place) -> Call:
    route = _route(draw)
    return route(draw, place, hostile_text(draw))


def is_spoken(draw: random.Random) -> bool:
    """Whether the case goes through the synthesizer, which takes seconds to build."""
    return _route(draw) is _spoken


def _route(draw: random.Random) -> Callable[[random.Random, Place, str], Call]:
    return draw.choices(ROUTES, weights=WEIGHTS)[0]


def _given(draw: random.Random, place: Place, text: str) -> Call:
    """As `myxtts synthesize --text`, up to the network; and as the text of a row of a corpus."""
    return partial(_read, text, draw.choice(LANGUAGES), draw.choice(("phonemes", "characters")))


def _from_file(draw: random.Random, place: Place, text: str) -> Call:
    """As `myxtts synthesize --text-file`."""
    path = _write(draw, place, text)
    language, frontend = draw.choice(LANGUAGES), draw.choice(("phonemes", "characters"))
    return lambda: _read(read_text(None, path), language, frontend)


def _for_a_teacher(draw: random.Random, place: Place, text: str) -> Call:
    """As `--texts` of a run with a teacher."""
    symbols = tuple(" .,abcdefghijklmnopqrstuvwxyzəɛɪɔʊˈˌː")
    vocabulary = Vocabulary(SymbolTable(symbols), ("one",), ("en", "ka"))
    language, frontend = draw.choice(("en", "ka", "de")), draw.choice(("phonemes", "characters"))
    path, longest = _write(draw, place, text), draw.choice((20, 1000))
    return partial(read_texts, path, language, frontend, symbols_of, vocabulary, longest)


def _spoken(draw: random.Random, place: Place, text: str) -> Call:
    """As `myxtts synthesize`, through a network; of long texts the first two sentences."""
    from benchmarks.hostile.untrained import first_waves, untrained_synthesizer

    untrained_synthesizer()
    return partial(first_waves, text, draw.choice(("en", None, "de")))


ROUTES = (_given, _from_file, _for_a_teacher, _spoken)
WEIGHTS = (50, 25, 15, 10)


def _write(draw: random.Random, place: Place, text: str) -> Path:
    path = place.corpus / "text.txt"
    if draw.random() < 0.2:
        write_odd_file(draw, path, place, encoded(draw, text), named=True)
    else:
        path.write_bytes(encoded(draw, text))
    return path


def _read(text: str, language: str, frontend: str) -> None:
    """Take the symbols of each chunk as the synthesizer does, and of the whole text as a row of a
    corpus.
    """
    chunks = list(split_text(text))
    for chunk in chunks:
        symbols_of(chunk.text, language, frontend)
    symbols_of(text[:MAX_TEXT_CHARACTERS], language, frontend)
    if not chunks:
        raise DataError(empty_text_message(text))
