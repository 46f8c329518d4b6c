"""Which normaliser reads numbers, dates, money and abbreviations best, for each language.

python benchmarks/text_normalisers.py

The sentences and their words are in tests/spoken_forms. A reading is right if its letters, or the
phonemes that espeak-ng gives to it without stress, are those of an expected reading. "espeak-ng"
reads the sentence as it is written, "words-1" as training does, and "synthesis" as synthesis does:
after it was split into sentences. Candidates that are not installed are left out.
"""

import argparse
import importlib
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.spoken_forms import LANGUAGES, is_right, sentences
from myxtts.text.frontend import TextFrontend
from myxtts.text.sentences import split_text

Normalise = Callable[[str], str]


def _kitten(language: str) -> Normalise:
    module = importlib.import_module("kitten_text_processing")
    return lambda text: module.normalize_text(text, locale=language)


def _damga(language: str) -> Normalise:
    return importlib.import_module("damga").TextNormalizer(lang=language).normalize


def _normt2s(language: str) -> Normalise:
    return importlib.import_module("normt2s").Normalizer(language).normalize


def _verbalis(language: str) -> Normalise:
    return importlib.import_module("verbalis").Verbalizer(language).process


def _voxnorm(language: str) -> Normalise:
    module = importlib.import_module("voxnorm")
    return lambda text: module.normalize(text, language)


def _spokenform(language: str) -> Normalise:
    module = importlib.import_module("spokenform")
    return lambda text: module.prepare(text, language=language).spoken_text


def _ru_normalizr(language: str) -> Normalise:
    if language != "ru":
        raise ValueError
    return importlib.import_module("ru_normalizr").normalize


def _rutextnorm(language: str) -> Normalise:
    if language != "ru":
        raise ValueError
    return importlib.import_module("rutextnorm").normalize_russian


def _num2words(language: str) -> Normalise:
    """As coqui uses it: each number alone, with the separators of the language removed."""
    module = importlib.import_module("num2words")
    group, decimal = {"en": (",", "."), "fa": ("٬", "٫")}.get(language, (".", ","))

    def words(match: re.Match) -> str:
        number = float(match[0].replace(group, "").replace(decimal, "."))
        return module.num2words(int(number) if number.is_integer() else number, lang=language)

    number = re.compile(rf"\d+(?:[{group}{decimal}]\d+)*")
    return lambda text: number.sub(words, unicodedata.normalize("NFKC", text))


def _words_1(language: str) -> Normalise:
    frontend = TextFrontend(normaliser="words-1")
    return lambda text: frontend.stages(text, language).normalised


def _synthesis(language: str) -> Normalise:
    read = _words_1(language)
    return lambda text: " ".join(read(part) for part, _ in split_text(text, language))


CLASSES = ("numbers", "dates", "money", "abbreviations", "mixed")
CANDIDATES = {
    "espeak-ng": lambda language: lambda text: text,
    "num2words": _num2words,
    "kitten": _kitten,
    "damga": _damga,
    "normt2s": _normt2s,
    "verbalis": _verbalis,
    "voxnorm": _voxnorm,
    "spokenform": _spokenform,
    "ru_normalizr": _ru_normalizr,
    "rutextnorm": _rutextnorm,
    "words-1": _words_1,
    "synthesis": _synthesis,
}


def measure(name: str, language: str, is_unseen: bool, is_verbose: bool) -> None:
    """Print how many sentences a candidate reads right, by class; nothing if it cannot."""
    try:
        normalise = CANDIDATES[name](language)
        normalise("a 1")
    # Not installed, or not for this language.
    except Exception as error:
        if is_verbose:
            print(f"{language} {name:13} {type(error).__name__}: {error}"[:100])
        return
    counts = Counter()
    for row in sentences(language, is_unseen):
        try:
            text = normalise(row["text"])
        # A reading of nothing is wrong.
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        counts["all"] += 1
        if is_right(text, row["spoken"], language):
            counts.update(("right", row.get("class", "unseen")))
        elif is_verbose:
            print(f"    {row['text']} -> {text}")
    classes = ("unseen",) if is_unseen else CLASSES
    figures = "".join(f"{counts[key]:5}" for key in (*classes, "right"))
    print(f"{language} {name:13}{figures} of {counts['all']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--languages", nargs="+", default=LANGUAGES)
    parser.add_argument("--candidates", nargs="+", default=[*CANDIDATES])
    parser.add_argument("--unseen", action="store_true", help="the sentences written afterwards")
    parser.add_argument("--verbose", action="store_true", help="print what is read wrongly")
    options = parser.parse_args()
    print("columns:", "unseen" if options.unseen else ", ".join(CLASSES), "and all that is right")
    for language in options.languages:
        for name in options.candidates:
            measure(name, language, options.unseen, options.verbose)


if __name__ == "__main__":
    main()
