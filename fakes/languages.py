"""Everyday words of the languages of espeak-ng, and whether the front end reads them."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from myxtts.base import plugins
from myxtts.base.errors import DataError
from myxtts.text import espeak
from myxtts.text.frontend import TextFrontend
from myxtts.text.languages import letters_by_script, names_of, scripts_of
from myxtts.text.readers import Reader

WORDS = Path(__file__).resolve().parents[1] / "tests/common_words.tsv"
NUMBERS = "1 2 3 10 24 123"
FRONTEND = TextFrontend()


class Verdict(NamedTuple):
    """What became of the words of a language in one script."""

    code: str
    script: str
    words: int
    result: str
    digits: str
    others: str  # front ends that read it without espeak-ng


def word_lists() -> Iterator[tuple[str, str]]:
    """Yield a code and the words of each line."""
    for line in WORDS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            code, words = line.split("\t")
            yield code, words


def codes() -> list[str]:
    """Return the codes that a run accepts."""
    accepted = []
    for code in sorted(espeak.shared()._voices):
        try:
            espeak.shared().check_language(code)
            accepted.append(code)
        except DataError:
            continue
    return accepted


def verdict(code: str, words: str) -> Verdict:
    """Return whether a text of these words is read."""
    script = names_of(letters_by_script([words]))
    count = len(words.split())
    try:
        named = FRONTEND.stages(words, code).named
        result = f"yes, but for {', '.join(named)}" if named else "yes"
    except DataError as error:
        result = f"refused: {str(error).partition('. ')[0]}"
    return Verdict(code, script, count, result, _digits(code), _others(code))


@cache
def _readers() -> dict[str, type[Reader]]:
    """Return the front ends of this project, without installed packages of others."""
    names = [name for name in plugins.names("frontends") if name in plugins.GROUPS["frontends"]]
    return {name: plugins.load_one("frontends", name) for name in names}


def _others(code: str) -> str:
    return ", ".join(f"`{name}`" for name, of in _readers().items() if code in of.languages)


def _digits(code: str) -> str:
    try:
        FRONTEND.stages(NUMBERS, code)
    except DataError:
        return "no"
    return "yes"


def verdicts() -> Iterator[Verdict]:
    """Yield a verdict for each code and script; a dialect has the words of its language."""
    lists = [*word_lists()]
    for code in codes():
        own = [words for base, words in lists if base == code]
        base = code.split("-")[0]
        texts = own or [words for other, words in lists if other == base]
        base = {"zh": "cmn", "no": "nb", "hbs": "sr"}.get(base, base)
        texts = texts or [words for other, words in lists if other == base]
        yield from (verdict(code, words) for words in texts)
        if not texts:
            script = names_of(scripts_of(code))
            yield Verdict(code, script, 0, "no words known", _digits(code), _others(code))


def line(row: Verdict) -> str:
    """Return the line of the table."""
    return "| `{}` | {} | {} | {} | {} | {} |".format(*row)
