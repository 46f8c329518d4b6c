"""Measure how `myxtts align` finds the sentences of a plain text in long recordings.

    python utilities/human/corpora.py festvox-ru
    python benchmarks/long_recordings.py data/human/festvox-ru/metadata_train.csv --language ru \
        --labels FESTVOX/lab

Clips are joined to some recordings with one text each. Some of the texts are not in the recording,
and some clips not in the text. What was found is compared with where the clips were put: from the
first to the last phone of their labels, or, without labels, the first to the last sound that is not
40 dB below the loudest; with 50 ms at each end.
"""

import argparse
import csv
import json
import random
import re
import shutil
import sys
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from rapidfuzz.distance import Levenshtein

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.word_times import read_labels
from myxtts.audio.audio_file import read_wave, speech_span
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.console import report_errors
from myxtts.base.errors import DataError
from myxtts.config.parser import bounded
from myxtts.corpus.layouts import read_corpus

BELOW_DB = 40.0
CLOSE_S, MARGIN_S = 0.1, 0.05
SENTENCES_IN_PARAGRAPH = 5


class Clip(NamedTuple):
    recording: str
    text: str
    start_s: float
    end_s: float
    in_text: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("corpus", type=Path, help="recordings with texts")
    parser.add_argument("--language", default="en")
    parser.add_argument("--minutes", type=bounded(float, 1.0), default=60.0)
    parser.add_argument("--files", type=bounded(int, 1), default=6)
    parser.add_argument("--missing", type=bounded(float, 0.0, 0.5), default=0.05)
    parser.add_argument("--labels", type=Path, help="folder of .lab files, as of Festvox")
    parser.add_argument("--asr", type=Path, help="write the texts by this recogniser instead")
    parser.add_argument("--run", type=Path, help="run of a voice to start from")
    parser.add_argument("--out", type=Path, default=Path("long"), help="folder for all files")
    options = parser.parse_args()
    # These import TensorFlow.
    from myxtts.extras.align.recordings import align_recordings
    from myxtts.extras.align.transcribed import transcribe_recordings

    clips = join(options)
    audio, text, corpus = (options.out / name for name in ("audio", "text", "corpus"))
    if options.asr:
        transcribe_recordings(audio, corpus, options.asr, options.language, keep=1.0)
        report_heard(read_lines(corpus), clips)
        return 0
    align_recordings(audio, text, corpus, options.run, language=options.language)
    report(read_lines(corpus), clips)
    with open(corpus / "left_out.csv", encoding="utf-8", newline="") as file:
        reasons = [row["reason"].split(":")[0] for row in csv.DictReader(file)]
    print({reason: reasons.count(reason) for reason in sorted(set(reasons))})
    return 0


def read_lines(corpus: Path) -> list[dict]:
    with open(corpus / "metadata.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def join(options: argparse.Namespace) -> list[Clip]:
    """Write the recordings and their texts; return the clips that are in a recording."""
    corpus = read_corpus(options.corpus, options.language)
    labels = dict(read_labels(options.labels)) if options.labels else {}

    def speech_of(name: str, wave: np.ndarray) -> tuple[float, float]:
        sounds = [of for of in labels.get(Path(name).stem, []) if of[0]]
        if sounds:
            return sounds[0][1] - MARGIN_S, sounds[-1][2] + MARGIN_S
        first, end = speech_span(wave, BELOW_DB)
        return first / SAMPLE_RATE_HZ, end / SAMPLE_RATE_HZ

    source, rows = random.Random(1), iter(corpus.rows)
    clips = []
    for name in ("audio", "text"):
        # An earlier call may have made more recordings.
        shutil.rmtree(options.out / name, ignore_errors=True)
        (options.out / name).mkdir(parents=True)
    for number in range(options.files):
        waves, texts, end = [], [], 0
        while end < 60 * options.minutes * SAMPLE_RATE_HZ / options.files:
            row, chance = next(rows, None), source.random()
            if row is None:
                raise DataError(f"{options.corpus} is too short. Give fewer --minutes.")
            is_said, is_in_text = chance >= options.missing, chance < 1.0 - options.missing
            if is_said:
                waves.append(read_wave(corpus.folder / row.audio))
                first_s, end_s = speech_of(row.audio, waves[-1])
                text = " ".join(row.text.split())
                times = end / SAMPLE_RATE_HZ + first_s, end / SAMPLE_RATE_HZ + end_s
                clips.append(Clip(f"{number}.flac", text, times[0], times[1], is_in_text))
                end += len(waves[-1])
            if is_in_text:
                texts.append(row.text)
        path = options.out / "audio" / f"{number}.flac"
        soundfile.write(path, np.concatenate(waves), SAMPLE_RATE_HZ)
        firsts = range(0, len(texts), SENTENCES_IN_PARAGRAPH)
        paragraphs = [" ".join(texts[of : of + SENTENCES_IN_PARAGRAPH]) for of in firsts]
        (options.out / "text" / f"{number}.txt").write_text("\n\n".join(paragraphs), "utf-8")
    return clips


# Words that were heard are aligned with all words of the clips of a recording, so that each error
# belongs to a stretch: a word that was left out, to the one of the next word that was heard.
def report_heard(rows: list[dict], clips: list[Clip]) -> None:
    judged = []  # surety, errors and words of each stretch
    for recording in sorted({clip.recording for clip in clips}):
        said = words_of(" ".join(clip.text for clip in clips if clip.recording == recording))
        of = [row for row in rows if Path(row["audio_filepath"]).name == recording]
        heard = [words_of(row["text"]) for row in of]
        owner = np.repeat(np.arange(len(of)), [len(words) for words in heard])
        errors, counts = np.zeros(len(of)), np.zeros(len(of))
        for tag, first, last, begin, end in Levenshtein.opcodes(said, [*chain(*heard)]):
            wrong = owner[begin:end] if end > begin else owner[[min(begin, len(owner) - 1)]]
            if tag == "delete":
                errors[wrong] += last - first
                counts[wrong] += last - first
            else:
                np.add.at(counts, wrong, float(tag != "insert"))
                np.add.at(errors, wrong, float(tag != "equal"))
        judged += zip((row["surety"] for row in of), errors, counts, strict=True)
    table = np.array(sorted(judged, key=lambda of: -of[0]))
    print("| kept | stretches | word errors |\n|---|---|---|")
    for keep in (1.0, 0.7, 0.5, 0.3, 0.2):
        kept = table[: round(keep * len(table))]
        print(f"| {keep:.0%} | {len(kept)} | {kept[:, 1].sum() / kept[:, 2].sum():.1%} |")


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:'\w+)*", text.lower().replace("’", "'"))


# A clip may have several sentences: only the ends that it shares with one are compared.
def report(rows: list[dict], clips: list[Clip]) -> None:
    found, wrong, errors_s = set(), [], []
    for row in rows:
        recording = Path(row["audio_filepath"]).name
        middle = (row["start"] + row["end"]) / 2
        at = [of for of in clips if of.recording == recording and of.start_s < middle < of.end_s]
        if not at or row["text"] not in at[0].text:
            wrong.append(row)
            continue
        clip = at[0]
        found.add(clip)
        errors_s.append(
            (
                row["start"] - clip.start_s if clip.text.startswith(row["text"]) else None,
                row["end"] - clip.end_s if clip.text.endswith(row["text"]) else None,
            )
        )
    spoken = [clip for clip in clips if clip.in_text]
    print(f"sentences {len(rows)}, of {len(found)} of {len(spoken)} clips; wrong: {len(wrong)}")
    for row in wrong:
        print(f"  wrong: {row}")
    both = [all(of is None or abs(of) < CLOSE_S for of in pair) for pair in errors_s]
    print(f"within {CLOSE_S:g} s at both ends: {np.mean(both):.1%}")
    for name, errors in zip(("start", "end"), zip(*errors_s, strict=True), strict=True):
        known = np.array([error for error in errors if error is not None])
        close = (np.abs(known) < CLOSE_S).mean()
        line = f"{name}: median {np.median(known):+.3f} s, within {CLOSE_S:g} s {close:.1%}"
        print(f"{line}, worst {np.round(known[np.argsort(-np.abs(known))[:5]], 2).tolist()}")


if __name__ == "__main__":
    sys.exit(report_errors(main))
