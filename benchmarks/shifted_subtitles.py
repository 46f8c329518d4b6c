"""Measure which shifted subtitles `myxtts align` finds in half an hour of speech.

    python utilities/human/corpora.py festvox-ru
    python benchmarks/shifted_subtitles.py runs/ru data/human/festvox-ru/metadata.csv --language ru

Recordings are joined to one, with a subtitle each, of which some are shifted forwards and backwards
in turn, by each of several shifts. `runs/ru` is a voice, such as that of `make real`.
"""

import argparse
import csv
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.console import report_errors
from myxtts.config.parser import bounded
from myxtts.corpus.layouts import read_corpus
from myxtts.text.times import TimedWord, write_times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="run of a voice")
    parser.add_argument("corpus", type=Path, help="recordings with texts")
    parser.add_argument("--language", default="en")
    parser.add_argument("--minutes", type=bounded(float, 1.0), default=30.0)
    parser.add_argument("--planted", type=bounded(int, 1), default=20, help="shifted subtitles")
    parser.add_argument("--shifts", type=float, nargs="+", default=[2.0, 1.0, 0.6], help="seconds")
    options = parser.parse_args()
    from myxtts.extras.align.alignment import align_corpus  # imports TensorFlow

    corpus = read_corpus(options.corpus, options.language)
    waves, cues, end = [], [], 0
    for row in random.Random(0).sample(corpus.rows, len(corpus.rows)):
        if end >= 60 * options.minutes * SAMPLE_RATE_HZ:
            break
        waves.append(read_wave(corpus.folder / row.audio))
        start, end = end, end + len(waves[-1])
        cues.append(TimedWord(row.text, start / SAMPLE_RATE_HZ, end / SAMPLE_RATE_HZ, []))
    planted = random.Random(1).sample(range(2, len(cues) - 2), options.planted)
    print("| shift, s | subtitles | shifted | found | within 0.5 s | false alarms |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        soundfile.write(folder / "talk.flac", np.concatenate(waves), SAMPLE_RATE_HZ)
        for shift_s in options.shifts:
            shifts = {index: (-1) ** turn * shift_s for turn, index in enumerate(planted)}
            moved = [shifted(cue, shifts.get(index, 0.0)) for index, cue in enumerate(cues)]
            write_times(folder / "talk.srt", [[cue] for cue in moved], end / SAMPLE_RATE_HZ)
            talk, out = folder / "talk.srt", folder / "out"
            align_corpus(options.run, talk, out, "srt", language=options.language)
            with open(out / "alignment.csv", newline="", encoding="utf-8") as file:
                found = {row["text"]: float(row["shift_s"]) for row in csv.DictReader(file)}
            back = {index: found[" ".join(cues[index].text.split())] for index in range(len(cues))}
            near = [abs(back[index] + shifts[index]) <= 0.5 for index in planted if back[index]]
            alarms = sum(bool(back[index]) for index in set(back) - set(planted))
            figures = len(cues), len(planted), len(near), sum(near), alarms
            print(f"| {shift_s:g} | {' | '.join(map(str, figures))} |", flush=True)
    return 0


def shifted(cue: TimedWord, shift_s: float) -> TimedWord:
    return cue._replace(start_s=cue.start_s + shift_s, end_s=cue.end_s + shift_s)


if __name__ == "__main__":
    sys.exit(report_errors(main))
