"""Splits a text into sentences, and overlong ones into parts, by rules on punctuation.

A missed boundary makes a longer chunk, and a wrong one an extra pause; no character is lost.
"""

import math
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache

from myxtts.base.files import table_beside
from myxtts.base.names import base_language

# The longest clip of LJSpeech has 10.1 s and 187 characters. At 10 characters a second, which is
# slow, 200 characters take 20 s, the longest utterance of the default settings (`max_seconds`).
MAX_CHARACTERS = 200
MAX_SHIFT = 2_000


class Boundary(Enum):
    """Kind of the boundary after a chunk."""

    CLAUSE = "clause"
    SENTENCE = "sentence"
    PARAGRAPH = "paragraph"


_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_OPENING = r"\"'“„‘‚«‹(\[{¿¡—–-"
_CLOSING = r"\"'”“’»›)\]}」』）"
_STOPS = ".!?…؟۔؞։።।॥჻"
# Chinese and Japanese have no space after them.
_WIDE_STOPS = "。！？"
# The look-behind prevents a match attempt at each position of a long run of stops.
_STOP = re.compile(
    rf"(?<![{_STOPS}])[{_STOPS}]+[{_CLOSING}]*(?=\s|$)|[{_WIDE_STOPS}]+[{_CLOSING}]*"
)
_NEXT_WORD = re.compile(rf"[{_CLOSING}]*\s*[{_OPENING}]*(\w*\.?)")
PHONEMES = r"\[\[.*?\]\]"
_BEFORE_A_SUFFIX = r"[!?](?=\s(?:Inc|Ltd|Corp|Co)\.)"  # Yahoo! Inc.
_EUROPEAN = [*map(chr, range(0x530))]
CAPITAL, SMALL = (f"[{''.join(filter(kind, _EUROPEAN))}]" for kind in (str.isupper, str.islower))
# A dotted word (U.S.), and an ordinal.
_DOTTED, _ORDINAL = r"\w(?:\.[^\W\d_])+", r"|\d\d?|[IVXLC]+"
_NUMBER = re.compile(r"\d.*|(?!I\.?$)(?:[IVXLC]+|[A-Z])\.?")  # "I" is a word
_ITEM = re.compile(r"\s*(\d+|\w)")  # 1. First
# Words beside a digit or a dot are read together: the last place to halve a sentence.
_BETWEEN_WORDS = r"(?<![\d.])\s(?!\d)"
_BREAKS = tuple(
    re.compile(kind)
    for kind in (r"[;:؛]\s|[；：]", r"[,،]\s(?!\d)|\s[—–-]+\s|—|[，、]", _BETWEEN_WORDS, r"\s")
)


def split_text(
    text: str, language: str = "", max_characters: int = MAX_CHARACTERS
) -> Iterator[tuple[str, Boundary]]:
    """Yield chunks of a text that have something to speak, and the boundary after each.

    Blank lines separate paragraphs, and the other line breaks are spaces (as in a file wrapped at
    72 columns). In a text without blank lines each line is a paragraph. Without a language, a dot
    that would belong to an abbreviation or an ordinal in any language ends no sentence.
    """
    # splitlines() knows all ten line breaks of Unicode.
    text = "\n".join(text.splitlines()).strip()
    line_break = _BLANK_LINE if _BLANK_LINE.search(text) else re.compile("\n")
    for paragraph in line_break.split(text):
        sentences = [*filter(_is_spoken, sentences_of(" ".join(paragraph.split()), language))]
        for number, sentence in enumerate(sentences, 1):
            *clauses, last = filter(_is_spoken, clauses_of(sentence, max_characters))
            yield from ((clause, Boundary.CLAUSE) for clause in clauses)
            is_last = number == len(sentences)
            boundary = Boundary.PARAGRAPH if is_last else Boundary.SENTENCE
            yield last, boundary


def empty_text_message(text: str) -> str:
    return f"the text {text[:60]!r} has no letter and no digit that is spoken. Give another text."


# Dots of abbreviations and ordinals are hidden first, in a copy of equal length. Then each stop of
# the copy ends a sentence of the original, unless it follows the number of a list item, or the next
# word begins in lower case.
def sentences_of(paragraph: str, language: str) -> Iterator[str]:
    """Yield the sentences of a paragraph."""
    shown = _without_dots(paragraph, base_language(language))
    begin = 0
    for stop in _STOP.finditer(shown):
        is_item = stop[0][0] == "." and _ITEM.fullmatch(shown, begin, stop.start())
        following = next(_NEXT_WORD.finditer(shown, stop.end()))[1][:1]
        # "Stop!" he said. (Georgian sentences begin with lower case).
        if not is_item and following == following.title():
            yield paragraph[begin : stop.end()].strip()
            begin = stop.end()
    if rest := paragraph[begin:].strip():
        yield rest


# One pattern finds phonemes and whatever a dot may belong to. The kind of an abbreviation, the word
# behind it and the text before it decide whether its dot also ends the sentence.
def _without_dots(text: str, language: str) -> str:
    """Hide phonemes, and dots that end no sentence by abbreviations.yaml; the length stays."""
    pattern, kinds, starts = _abbreviations(language)

    def hidden(found: re.Match) -> str:
        if found["word"] is None:
            return "W" * len(found[0])
        kind = kinds.get("".join(found["word"].split()).lower(), "either")
        following = next(_NEXT_WORD.finditer(text, found.end()))[1]
        is_closed = text[found.end() : found.end() + 1].strip() != ""  # "z. B." Dann
        ends = kind == "ends" or ((kind != "within" or is_closed) and following in starts)
        before = text[max(found.start() - 2, 0) : found.start()]
        is_name = found[0][0].isupper() and before[1:] == " " and before[0] not in _STOPS  # No. One
        if kind == "numbered":
            ends = not _NUMBER.fullmatch(following) and (ends or not is_name)
        last = "." if ends else "_"
        return found[0][:-1].replace(".", "_") + last

    return pattern.sub(hidden, text)


@cache
def _abbreviations(language: str) -> tuple[re.Pattern, dict[str, str], set[str]]:
    """Return what a dot may belong to, its kinds by name, and the words that begin sentences."""
    table = table_beside(__file__, "abbreviations.yaml")
    ordinal = _ORDINAL if language in ("", *table.pop("ordinals").split()) else ""
    sections = [table[language]] if language in table else [*table.values()]

    def words(kind: str) -> list[str]:
        return " ".join(section.get(kind, "") for section in sections).split()

    kinds: dict[str, str] = {}
    for kind in ("ends", "numbered", "either", "within"):
        kinds |= dict.fromkeys(words(kind), kind)
    # In any language, a single letter begins no sentence: it is an initial in most.
    starts = {word for word in words("starts") if language in table or len(word) > 1}
    names = sorted(kinds, key=len, reverse=True)
    long = "|".join(re.escape(name) for name in names if len(name) > 1)
    letter = "".join(name for name in names if len(name) == 1)
    # Neither within a word, nor a part of a number (1,5. or 12:30. or $5.), nor its unit (5 m.).
    letter = rf"(?:(?<!\d )|(?!{SMALL})|(?=.\. \d))[{letter}]"
    word = rf"{_DOTTED}|(?i:{long})|{letter}|{CAPITAL}{ordinal}"
    word = word.replace(r"\.", r"\.\s?").replace(r"\*", r"\w*")
    word = rf"(?<![\w,:/°$€£¥])(?<!\d\.)(?P<word>{word})\.(?!\.)"
    return re.compile(rf"{PHONEMES}|{_BEFORE_A_SUFFIX}|{word}"), kinds, starts


def clauses_of(sentence: str, max_characters: int) -> Iterator[str]:
    """Halve a sentence until each part is short enough, but for phonemes."""
    if len(sentence) <= max_characters or not (ends := _breaks(sentence)):
        yield sentence
        return
    middle = min(ends, key=lambda end: abs(end - len(sentence) / 2))
    for half in (sentence[:middle], sentence[middle:]):
        yield from clauses_of(half.strip(), max_characters)


def _breaks(sentence: str) -> list[int]:
    """Return where to halve: at the strongest marks in the middle half, or at any space."""
    shown = re.sub(PHONEMES, lambda phonemes: "W" * len(phonemes[0]), sentence)
    middle = len(sentence) / 2
    # In a sentence of thousands of characters, only marks near the middle, in linear time.
    shift = min(middle / 2, MAX_SHIFT)
    for kind in _BREAKS:
        near = kind.finditer(shown, max(math.ceil(middle - shift) - 1, 0), int(middle + shift))
        if ends := [mark.end() for mark in near]:
            return ends
    spaces = [space.end() for space in re.finditer(" ", shown)]
    return spaces if spaces or shown != sentence else [int(middle)]


def _is_spoken(text: str) -> bool:
    return any(character.isalnum() for character in text)
