"""A long text as pieces that a model can say at once: sentences, and parts of the longest ones.

Free of language models: a few rules on Unicode punctuation and a short list of abbreviations. A boundary that is missed
makes a longer piece, and one too many a pause; neither loses a character that is spoken.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

# LJSpeech's longest clip has 10.1 s and 187 characters. At 10 characters a second, which is slow, 200 of
# them are 20 s, the longest utterance of the default settings (`max_seconds`).
MAX_CHARACTERS = 200


class Boundary(Enum):
    """What stands behind a piece."""

    CLAUSE = "clause"
    SENTENCE = "sentence"
    PARAGRAPH = "paragraph"


class TextChunk(NamedTuple):
    """What is said at once: its text without line breaks, and what it ends."""

    text: str
    end: Boundary


_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_OPENING = r"\"'“„‘‚«‹(\[{¿¡—–-"
_CLOSING = r"\"'”“’»›)\]}」』）"
_STOPS = ".!?…؟۔؞։።।॥჻"
_WIDE_STOPS = "。！？"  # of Chinese and Japanese, which put no space behind them
# The look-behind keeps a long run of stops from being tried at each of its places.
_STOP = re.compile(rf"(?<![{_STOPS}])[{_STOPS}]+[{_CLOSING}]*(?=\s|$)|[{_WIDE_STOPS}]+[{_CLOSING}]*")
_NEXT_WORD = re.compile(rf"\s*[{_OPENING}]*(\w)?")
_LAST_WORD = re.compile(rf"[^\s{_OPENING}]*$")
_LONGEST_WORD = 40  # that is looked back at; longer ones are no abbreviation
_DOTTED = re.compile(r"\w(\.\w)+")  # e.g, z.B, U.S, a.m, ე.ი
# Abbreviations that stand before a name or within a sentence, whose dot says nothing about its end. Those that often
# end one (etc., Jr., Inc.) are left out.
_BEFORE_A_WORD = re.compile(
    "mr|mrs|ms|mx|messrs|dr|prof|st|rev|hon|gen|col|capt|lt|sgt|cpl|adm|sen|rep|gov|pres|supt|mt|ft|vs|cf|viz|"
    "hr|fr|bzw|ca|evtl|ggf|vgl|dipl|ing|mme|mlle|mgr|sr|sra|იხ|მაგ",
    re.IGNORECASE,
)
_BEFORE_A_NUMBER = re.compile(
    "no|nos|nr|vol|figs?|eq|ch|sec|art|pp?|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|გვ", re.IGNORECASE
)
_BREAKS = tuple(re.compile(pattern) for pattern in (r"[;:؛]\s|[；：]", r"[,،]\s|\s[—–-]+\s|—|[，、]", r"\s"))


def split_text(text: str, longest: int = MAX_CHARACTERS) -> Iterator[TextChunk]:
    """Pieces of a text in order, each with something to say and at most `longest` characters.

    Where a text has blank lines, these end its paragraphs, and its other line breaks are spaces (as in a file that is
    wrapped at 72 columns). Where it has none, each line is a paragraph.
    """
    for paragraph in _paragraphs(text):
        sentences = [sentence for sentence in _sentences(paragraph) if _is_spoken(sentence)]
        for number, sentence in enumerate(sentences, 1):
            *clauses, last = [part for part in _parts(sentence, longest) if _is_spoken(part)]
            yield from (TextChunk(clause, Boundary.CLAUSE) for clause in clauses)
            yield TextChunk(last, Boundary.PARAGRAPH if number == len(sentences) else Boundary.SENTENCE)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs with single spaces."""
    text = "\n".join(text.splitlines()).strip()  # one kind of line break; Unicode has ten
    blocks = _BLANK_LINE.split(text) if _BLANK_LINE.search(text) else text.split("\n")
    return (" ".join(block.split()) for block in blocks)


def _sentences(paragraph: str) -> Iterator[str]:
    begin = 0
    for stop in _STOP.finditer(paragraph):
        if _ends_sentence(paragraph, begin, stop):
            yield paragraph[begin : stop.end()].strip()
            begin = stop.end()
    yield paragraph[begin:].strip()


def _ends_sentence(paragraph: str, begin: int, stop: re.Match) -> bool:
    """Whether a stop ends the sentence that begins at `begin`."""
    following = _NEXT_WORD.match(paragraph, stop.end())[1] or ""
    if following != following.title():  # "Stop!" he said. (Georgian letters are lower case, but begin sentences)
        return False
    if not stop[0].startswith(".") or stop[0].startswith(".."):
        return True
    before = paragraph[max(begin, stop.start() - _LONGEST_WORD) : stop.start()].strip()
    word = _LAST_WORD.search(before)[0]
    if word == before and (word.isdecimal() or len(word) == 1):  # 1. First
        return False
    if _BEFORE_A_NUMBER.fullmatch(word):
        return not following.isdecimal()
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    is_dotted = _DOTTED.fullmatch(word) and not word.endswith(("a.m", "p.m"))
    return not (is_initial or is_dotted or _BEFORE_A_WORD.fullmatch(word))


def _parts(sentence: str, longest: int) -> Iterator[str]:
    """The sentence, halved until each part is short enough."""
    if len(sentence) <= longest:
        yield sentence
        return
    at = _middle_break(sentence)
    yield from _parts(sentence[:at].strip(), longest)
    yield from _parts(sentence[at:].strip(), longest)


def _middle_break(sentence: str) -> int:
    """Where to halve: at the best kind of mark that the middle half has, there at the one nearest to the middle."""
    middle = len(sentence) / 2
    for kind in _BREAKS:
        ends = [found.end() for found in kind.finditer(sentence)]
        near = [end for end in ends if middle / 2 <= end <= middle * 3 / 2]
        if near:
            return min(near, key=lambda end: abs(end - middle))
    return len(sentence) // 2  # a word without end


def _is_spoken(text: str) -> bool:
    return any(character.isalnum() for character in text)
