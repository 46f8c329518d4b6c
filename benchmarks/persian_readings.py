"""How many Persian words are read rightly, whose short vowels and ezafe are not written.

    pip install g2p2 g2p2-group-iranian PersianG2p gruut-lang-fa libwapiti
    python benchmarks/persian_readings.py Kasre_test.csv

The file has sentences and their phonemes: Kasre_test.csv or Homograph_test.csv of GE2PE (repository
saeedzou/GE2PE, MIT, the folder Data). Words are counted with the ezafe and without. The sentences
are 60, evenly spaced, of 4 to 30 words; vowels and kasra are written into them by their phonemes.
The lexicons give espeak-ng words: of the other sentences, and of Tihu's dictionary in PersianG2p.
"ezafe by gruut" adds it to what espeak-ng reads, where the tagger of gruut-lang-fa sees one.
"""

import csv
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._words import (
    aligned,
    commonest,
    evenly,
    heard,
    replaced,
    rules_of,
    sample_arguments,
)

# IPA in the letters of GE2PE, without glottal stops, doubled consonants and glides behind i.
ALIKE = (("[@2]", ""), ("i(?=[/aeou])", "y"), (r"(.)\1", r"\1"))
GE2PE = rules_of(
    "[\u0300-\u036fːˈˌʰʲ.ʔ12]= [ɒɑ]=A [aæ]=/ A=a tʃ=c dʒ=J j=y J=j ʃ=$ ʒ=; χ=x [ɣɢ]=q [ɾɹ]=r ɡ=g"
    " w=v ou|oʊ|ov(?![/aeiou])=o ʊ=u"
)
TIHU = rules_of(r"[\s^_]= a=/ A=a S=$ C=c Z=; \?=@")
IPA = rules_of(r"[12]= a=ɑ /=a @=ʔ y=J j=dʒ J=j c=tʃ \$=ʃ ;=ʒ")
# Sounds of letters, and marks of short vowels.
LETTERS = dict(
    pair.split("=")
    for pair in "آ=a,@a ا=,@,a,@a ب=b پ=p ت=t ث=s ج=j چ=c ح=h خ=x د=d ذ=z ر=r ز=z ژ=; س=s ش=$ ص=s"
    " ض=z ط=t ظ=z ع=@, غ=q ف=f ق=q ک=k ك=k گ=g ل=l م=m ن=n و=v,u,,o ه=h,,e ی=y,i,iy ي=y,i,iy"
    " ئ=@,y, أ=@,@a ؤ=@,".split()
)
MARKS = {"/": "َ", "e": "ِ", "o": "ُ"}
CLOSED = "بپتثجچحخدذرزژسشصضطظعغفقکكگلمن"


def main() -> None:
    args = sample_arguments(__doc__)
    with args.file.open(encoding="utf-8") as file:
        rows = [(r["Grapheme"].replace("|", "،"), r["Phoneme"]) for r in csv.DictReader(file)]
    test, others = evenly(rows, lambda row: row[0], args.count)
    print("| tool | words | without ezafe | ms a sentence |")
    for name, read in tools(test, others).items():
        counts: Counter = Counter()
        for text, phonemes in test:
            start = time.perf_counter()
            sounds = replaced(read(text), (*GE2PE, *ALIKE))
            counts["seconds"] += time.perf_counter() - start
            compare(phonemes, sounds, counts)
        shares = " | ".join(f"{100 * counts[k] / counts['all']:.1f} %" for k in ("words", "stems"))
        print(f"| {name} | {shares} | {1000 * counts['seconds'] / len(test):.0f} |")
    print(f"{counts['all']} words")


def tools(
    test: list[tuple[str, str]], others: list[tuple[str, str]]
) -> dict[str, Callable[[str], str]]:
    """Return what reads a text as IPA, by name."""
    espeak = partial(heard, language="fa")
    vowelled = {text: vowels(text, phonemes) for text, phonemes in test}
    marks = "".join(MARKS.values())
    last = {text: re.sub(f"[{marks}ْ](?!\\s|$)", "", made) for text, made in vowelled.items()}
    rows = [(text.split(), phonemes.split()) for text, phonemes in others]
    pairs = (pair for row in rows if len(row[0]) == len(row[1]) for pair in zip(*row, strict=True))
    own = {word: f"[[{replaced(read, IPA)}]]" for word, read in commonest(pairs).items()}
    made: dict[str, Callable[[str], str]] = {
        "espeak-ng": espeak,
        "espeak-ng, ezafe written": lambda text: espeak(last[text]),
        "espeak-ng, all vowels written": lambda text: espeak(vowelled[text]),
        "espeak-ng, lexicon": partial(heard, language="fa", lexicon=own),
    }
    if spec := find_spec("PersianG2p"):
        file = Path(str(spec.origin)).parent / "data/tihudictBIG.json"
        words = json.loads(file.read_text("utf-8")).items()
        tihu = {word: f"[[{replaced(read, (*TIHU, *IPA))}]]" for word, read in words}
        made["espeak-ng, Tihu"] = partial(heard, language="fa", lexicon=tihu)
    if find_spec("wapiti") and find_spec("gruut_lang_fa"):
        made["espeak-ng, ezafe by gruut"] = ezafe_by_gruut()
    if find_spec("g2p2"):
        made["g2p2"] = by_words(partial(import_module("g2p2").phonemize, language="fa"))
    if find_spec("g2p_fa") and find_spec("torch"):
        made["g2p-fa"] = by_words(import_module("g2p_fa").G2P_Fa())
    return made


def by_words(read: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: " ".join(read(word) for word in re.findall(r"\w+", text))


def ezafe_by_gruut() -> Callable[[str], str]:
    folder = Path(str(import_module("gruut_lang_fa").__file__)).parent
    model = import_module("wapiti").Model(model=str(folder / "pos/postagger.model"))

    def read(text: str) -> str:
        words = re.findall(r"[\w\u200c]+|[^\w\s\u200c]", text.replace("ي", "ی").replace("ك", "ک"))
        tags = model.label_sequence("\n".join(words)).decode().split()
        tagged = [pair for pair in zip(words, tags, strict=True) if pair[0][0].isalpha()]
        sounds = heard(" ".join(words), "fa").split()
        if len(sounds) != len(tagged):
            sounds = [heard(word, "fa") for word, _ in tagged]
        return " ".join(map(with_ezafe, sounds, *zip(*tagged, strict=True)))

    return read


def with_ezafe(sound: str, word: str, tag: str) -> str:
    """Return a reading with the ezafe of a tag that ends in e; ai and ui write its glide."""
    if not tag.endswith("e"):
        return sound
    return (
        f"{sound}je" if sound[-1] in "ɑiueoː" and not word.endswith(("ای", "وی")) else f"{sound}e"
    )


def vowels(text: str, phonemes: str) -> str:
    """Return a text with the marks of its short vowels, and sukun between consonants."""
    phonemes = re.sub("[12]", "", phonemes)

    @cache
    def best(letter: int, place: int) -> tuple[int, str]:
        """Return the fewest sounds and letters left over from there, and the rest of the text."""
        if letter == len(text) and place == len(phonemes):
            return 0, ""
        ways = []
        if place < len(phonemes):
            cost, rest = best(letter, place + 1)
            mark = MARKS.get(phonemes[place], "")
            ways.append((cost + (0 if mark or phonemes[place] in " @" else 2), mark + rest))
        if letter < len(text):
            cost, rest = best(letter + 1, place)
            ways.append((cost + (0 if text[letter] in " \u200c" else 2), text[letter] + rest))
            for sound in LETTERS.get(text[letter], text[letter]).split(","):
                if phonemes.startswith(sound, place):
                    cost, rest = best(letter + 1, place + len(sound))
                    ways.append((cost + (0 if sound else 1), text[letter] + rest))
        return min(ways, key=lambda way: way[0])

    return re.sub(f"([{CLOSED}])(?=[{CLOSED}])", r"\1ْ", best(0, 0)[1])


def compare(phonemes: str, sounds: str, counts: Counter) -> None:
    """Count the words of a sentence that were read rightly."""
    words = [replaced(word, ALIKE) for word in phonemes.split()]
    whole = [word.replace("1", "") for word in words]
    options = [
        {full, re.sub("y?e1$", "", word), f"{full}e", f"{full}ye"}
        for full, word in zip(whole, words, strict=True)
    ]
    letters = sounds.replace(" ", "")
    ends = {len(sounds[:place].replace(" ", "")) for place in range(len(sounds) + 1)
            if sounds[place : place + 1] in ("", " ")}  # fmt: skip
    places = aligned(options, letters, ends)[1]
    for full, of_word, (start, end) in zip(whole, options, places, strict=True):
        counts["all"] += 1
        counts["words"] += letters[start:end] == full
        counts["stems"] += letters[start:end] in of_word


if __name__ == "__main__":
    main()
