"""Make texts in Japanese or Chinese, and what a recogniser should write for them: kana or pinyin.

    python benchmarks/east_asian_texts.py ja data/ja ita-corpus/*_transcript_utf8.txt
    python benchmarks/east_asian_texts.py zh data/zh chatterbot_corpus/data/chinese/*.yml
    for texts in validation train; do
        python -m myxtts corpus --speaker ja=kokoro-js-1.2.1.tgz#jf_alpha --utterances 520 \
            --texts data/ja/$texts.txt --text-frontend piper-plus --out data/ja/$texts
    done
    python benchmarks/east_asian_texts.py ja data/ja

The first two write judging.txt, validation.txt and train.txt, and judging.tsv with the readings
behind a tab, for `benchmarks/speakers.py`. The last, without sources, writes validation.csv and
train.csv: the clips that were spoken with their readings, on which a recogniser is trained.

Japanese is that of the ITA corpus (public domain; github.com/mmorise/ita-corpus), whose readings
are published; sentences for training are those that OpenJTalk reads alike. Chinese is that of
chatterbot-corpus (BSD-3-Clause; github.com/gunthercox/chatterbot-corpus), read by pypinyin.
"""

import argparse
import csv
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from utilities.english_texts import digest

PARTS = {"judging": 20, "validation": 20, "train": 520}
VOWELS = {
    "a": "アカサタナハマヤラワガザダバパァャヮ",
    "i": "イキシチニヒミリギジビピィ",
    "u": "ウクスツヌフムユルグズブプゥュヴ",
    "e": "エケセテネヘメレゲゼデベペェ",
    "o": "オコソトノホモヨロゴゾドボポォョ",
}
VOWEL_OF = {kana: vowel for vowel, row in VOWELS.items() for kana in row}
LENGTHENED = {"a": "ア", "i": "イ", "u": "ウ", "e": "エイ", "o": "オウ"}
HAN = "[\u4e00-\u9fff]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("language", choices=("ja", "zh"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("sources", type=Path, nargs="*")
    options = parser.parse_args()
    readings = options.folder / "readings.json"
    if options.sources:
        make = japanese if options.language == "ja" else chinese
        options.folder.mkdir(parents=True, exist_ok=True)
        rows = write_texts(options.folder, make(options.sources))
        readings.write_text(json.dumps(rows, ensure_ascii=False, indent=0), "utf-8")
        return
    known = json.loads(readings.read_text("utf-8"))
    for part in PARTS:
        if (options.folder / part).exists():
            write_readings(options.folder / part, known)


def japanese(sources: list[Path]) -> list[tuple[str, str, bool]]:
    """Return sentences of lines `NAME:text,READING`, their kana, and whether those are sure."""
    import pyopenjtalk

    rows = []
    for source in sources:
        for line in source.read_text("utf-8").splitlines():
            text, _, kana = line.partition(":")[2].rpartition(",")
            text = re.sub(r"\([^)]*\)", "", text).strip()  # readings of single characters
            if not re.search(r"[0-9A-Za-z０-９]", text):
                is_sure = as_spoken(pyopenjtalk.g2p(text, kana=True)) == as_spoken(kana)
                rows.append((text, as_spoken(kana), is_sure))
    return rows


def as_spoken(kana: str) -> str:
    """Return katakana of a sentence with one way of writing each sound, and without pauses."""
    kana = re.sub(r"[^ァ-ヴー]", "", kana).translate(str.maketrans("ヂヅヲ", "ジズオ"))
    spoken, vowel = "", ""
    for letter in kana:
        if vowel and letter in LENGTHENED[vowel]:
            spoken += "ー"
        else:
            spoken += letter
            vowel = vowel if letter == "ー" else VOWEL_OF.get(letter, "")
    return spoken


def chinese(sources: list[Path]) -> list[tuple[str, str, bool]]:
    """Return sentences of the files of chatterbot-corpus, their pinyin with tones, and True."""
    import jieba
    from pypinyin import Style, lazy_pinyin

    marks = str.maketrans({**dict.fromkeys(",;；:：、", "，"), "?": "？", "!": "！", ".": "。"})
    rows = []
    for source in sources:
        for line in source.read_text("utf-8").splitlines():
            line = re.sub(r"^[-\s]+|[\s'\"]", "", line).translate(marks)
            for sentence in re.findall("[^。！？]+[。！？]?", line):
                count = len(re.findall(HAN, sentence))
                if 6 <= count <= 36 and re.fullmatch(f"(?:{HAN}|[，。！？])+", sentence):
                    text = sentence if sentence[-1] in "。！？" else f"{sentence}。"
                    words = [word for word in jieba.lcut(text) if re.match(HAN, word)]
                    style = {"style": Style.TONE3, "neutral_tone_with_five": True}
                    read = "".join("".join(lazy_pinyin(word, **style)) for word in words)
                    rows.append((text, read, True))
    return rows


def write_texts(folder: Path, rows: list[tuple[str, str, bool]]) -> dict[str, str]:
    """Write the texts of each part; return all readings. Held out are those of least SHA-256."""
    rows = sorted({row[0]: row for row in rows}.values(), key=lambda row: digest(row[0]))
    begin = 0
    for part, count in PARTS.items():
        of_part = [row for row in rows[begin:] if row[2] or part != "train"][:count]
        (folder / f"{part}.txt").write_text("".join(f"{text}\n" for text, *_ in of_part), "utf-8")
        if part == "judging":
            lines = "".join(f"{text}\t{reading}\n" for text, reading, _ in of_part)
            (folder / "judging.tsv").write_text(lines, "utf-8")
        begin += count
    print(f"{folder}: {len(rows)} sentences, {sum(row[2] for row in rows)} with sure readings")
    return {text: reading for text, reading, _ in rows}


def write_readings(corpus: Path, readings: dict[str, str]) -> None:
    with open(corpus / "metadata.csv", encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    for row in rows:
        row |= {"text": readings[row["text"]], "path": f"{corpus.name}/{row['path']}"}
    with open(corpus.with_suffix(".csv"), "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
