"""Cut the sentences of a corpus at their pauses, as volunteers record: 1.4 s in the median.

    python -m myxtts align --run RUN --train-data data/human/festvox-ru/metadata_train.csv \\
        --times json --out times
    python utilities/human/clips.py data/human/festvox-ru times data/human/festvox-ru-clips

RUN is a voice of the language. A pause is one of 80 ms or more behind a word, half a second or more
into a clip; the clip gets up to 0.1 s of it. Clips of half a second to eight seconds are kept, in a
random order, until there are --minutes. The output is a folder with `metadata.csv` and `wavs/`.
"""

import argparse
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import soundfile

from myxtts.base.console import report_errors
from myxtts.base.errors import DataError
from utilities.human.corpora import TABLES, read_tables, write_tables

PAUSE_S, KEPT_OF_PAUSE_S = 0.08, 0.1
CLIP_S = 0.5, 8.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=Path, help="a folder of utilities/human/corpora.py")
    parser.add_argument("times", type=Path, help="output of `align --times json` for its training")
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=27.0)
    options = parser.parse_args()
    rows = read_tables(options.corpus)[TABLES[0]]
    clips = [clip for row in rows for clip in clips_of(row, options.times)]
    if not clips:
        raise DataError(
            f"{options.times} has no times of {options.corpus / TABLES[0]}. Make them with `align"
            " --times json`."
        )
    (options.out / "wavs").mkdir(parents=True, exist_ok=True)
    random.Random(0).shuffle(clips)
    table, left_s = [], 60 * options.minutes
    for row, start_s, end_s in clips:
        if left_s > 0:
            recording = options.corpus / row["path"]
            rate_hz = soundfile.info(recording).samplerate
            first, behind = int(start_s * rate_hz), int(end_s * rate_hz)
            wave, _ = soundfile.read(recording, start=first, stop=behind)
            path = Path("wavs") / f"{recording.stem}_{round(1000 * start_s)}.wav"
            soundfile.write(options.out / path, wave, rate_hz)
            table.append(row | {"path": str(path)})
            left_s -= end_s - start_s
    write_tables(options.out, {"metadata.csv": table})
    print(f"{len(table)} clips, {options.minutes - left_s / 60:.1f} min in {options.out}")
    return 0


def clips_of(row: dict[str, str], times: Path) -> list[tuple[dict[str, str], float, float]]:
    """Return rows of the clips of a recording, with start and end; none of one without times."""
    file = (times / row["path"]).with_suffix(".json")
    if not file.exists():
        return []
    segments = json.loads(file.read_text(encoding="utf-8"))["segments"]
    words = [word for segment in segments for word in segment["words"]]
    clips, clip, earliest_s = [], [], 0.0
    starts_s = [word["start"] for word in words]
    for word, next_s in zip(words, [*starts_s[1:], math.inf], strict=False):
        clip.append(word)
        pause_s = next_s - word["end"]
        is_long = word["end"] - clip[0]["start"] >= CLIP_S[0]
        if pause_s == math.inf or (pause_s >= PAUSE_S and is_long):
            start_s = max(clip[0]["start"] - KEPT_OF_PAUSE_S, earliest_s)
            end_s = word["end"] + min(KEPT_OF_PAUSE_S, pause_s / 2)
            if CLIP_S[0] <= end_s - start_s <= CLIP_S[1]:
                clips.append((row | {"text": sentence(clip)}, start_s, end_s))
            clip, earliest_s = [], end_s
    return clips


def sentence(words: list[dict[str, Any]]) -> str:
    """Write words as a sentence: a capital letter, and a mark at the end."""
    text = " ".join(word["word"] for word in words).strip(" ,;:-—")
    text += "" if text[-1:] in ".?!" else "."
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    sys.exit(report_errors(main))
