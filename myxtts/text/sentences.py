"""Splits a text into sentences, and overlong ones into parts, by rules on punctuation.

A missed boundary makes a longer chunk, and a wrong one an extra pause; no character is lost.
"""

import re
from collections.abc import Iterator
from enum import Enum

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
_NEXT_WORD = re.compile(rf"\s*[{_OPENING}]*(\w)?")
_LAST_WORD = re.compile(rf"[^\s{_OPENING}]*$")
# No abbreviation is longer, and the search for one takes the same time in any text.
_LONGEST_WORD = 40
_DOTTED = re.compile(r"\w(\.\w)+")  # e.g, z.B, U.S, a.m, ე.ი
# A name or the rest of the sentence follows these. Those that often end one (etc., Jr., Inc.) are
# left out.
_BEFORE_A_WORD = re.compile(
    "mr|mrs|ms|mx|messrs|dr|prof|st|rev|hon|gen|col|capt|lt|sgt|cpl|adm|sen|rep|gov|pres|supt|"
    "mt|ft|vs|cf|viz|hr|fr|bzw|ca|evtl|ggf|vgl|dipl|ing|mme|mlle|mgr|sr|sra|იხ|მაგ",
    re.IGNORECASE,
)
_BEFORE_A_NUMBER = re.compile(
    "no|nos|nr|vol|figs?|eq|ch|sec|art|pp?|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|გვ",
    re.IGNORECASE,
)
_BREAKS = tuple(
    re.compile(pattern) for pattern in (r"[;:؛]\s|[；：]", r"[,،]\s|\s[—–-]+\s|—|[，、]", r"\s")
)


def split_text(text: str, max_characters: int = MAX_CHARACTERS) -> Iterator[tuple[str, Boundary]]:
    """Yield chunks of a text that have something to speak, and the boundary after each.

    Blank lines separate paragraphs, and the other line breaks are spaces (as in a file wrapped at
    72 columns). In a text without blank lines each line is a paragraph.
    """
    # splitlines() knows all ten line breaks of Unicode.
    text = "\n".join(text.splitlines()).strip()
    line_break = _BLANK_LINE if _BLANK_LINE.search(text) else re.compile("\n")
    for paragraph in line_break.split(text):
        sentences = [*filter(_is_spoken, _sentences(" ".join(paragraph.split())))]
        for number, sentence in enumerate(sentences, 1):
            *clauses, last = filter(_is_spoken, _clauses(sentence, max_characters))
            yield from ((clause, Boundary.CLAUSE) for clause in clauses)
            is_last = number == len(sentences)
            boundary = Boundary.PARAGRAPH if is_last else Boundary.SENTENCE
            yield last, boundary


def empty_text_message(text: str) -> str:
    return f"the text {text[:60]!r} has no letter and no digit that is spoken. Give another text."


def _sentences(paragraph: str) -> Iterator[str]:
    begin = 0
    for stop in _STOP.finditer(paragraph):
        if _ends_sentence(paragraph, begin, stop):
            yield paragraph[begin : stop.end()].strip()
            begin = stop.end()
    yield paragraph[begin:].strip()


def _ends_sentence(paragraph: str, begin: int, stop: re.Match) -> bool:
    """Return whether a stop ends the sentence that begins at `begin`."""
    next_word = _NEXT_WORD.match(paragraph, stop.end())
    following = (next_word and next_word[1]) or ""
    # "Stop!" he said. (Georgian sentences begin with lower case).
    if following != following.title():
        return False
    if not stop[0].startswith(".") or stop[0].startswith(".."):
        return True
    before = paragraph[max(begin, stop.start() - _LONGEST_WORD) : stop.start()].strip()
    word = _LAST_WORD.findall(before)[0]
    if word == before and (word.isdecimal() or len(word) == 1):  # 1. First
        return False
    if _BEFORE_A_NUMBER.fullmatch(word):
        return not following.isdecimal()
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    is_dotted = _DOTTED.fullmatch(word) and not word.endswith(("a.m", "p.m"))
    return not (is_initial or is_dotted or _BEFORE_A_WORD.fullmatch(word))


def _clauses(sentence: str, max_characters: int) -> Iterator[str]:
    """Halve a sentence until each part is short enough."""
    if len(sentence) <= max_characters:
        yield sentence
        return
    middle = _middle_break(sentence)
    for half in (sentence[:middle], sentence[middle:]):
        yield from _clauses(half.strip(), max_characters)


def _middle_break(sentence: str) -> int:
    """Return where to halve: at the strongest mark in the middle half, near the middle."""
    middle = len(sentence) / 2
    # In a sentence of thousands of characters, only marks near the middle, in linear time.
    shift = min(middle / 2, MAX_SHIFT)
    first = max(int(middle - shift) - MAX_SHIFT, 0)
    last = int(middle + shift) + MAX_SHIFT
    for kind in _BREAKS:
        ends = [match.end() for match in kind.finditer(sentence, first, last)]
        near = [end for end in ends if middle - shift <= end <= middle + shift]
        if near:
            return min(near, key=lambda end: abs(end - middle))
    return len(sentence) // 2  # no break at all


def _is_spoken(text: str) -> bool:
    return any(character.isalnum() for character in text)
