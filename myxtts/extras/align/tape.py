"""Long recordings as one sequence of frames, read in pieces, and the corpus of their stretches."""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.audio.audio_file import read_wave, resampled_length
from myxtts.audio.format import HOP_SAMPLES, frames_in, sample_rate_hz
from myxtts.audio.sound_header import UnusableAudio, read_header
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.files import make_folder, write_csv, write_json, write_whole
from myxtts.corpus.ancestry import ANCESTRY

METADATA, LEFT_OUT = "metadata.jsonl", "left_out.csv"
BLOCK_S = 20.0
# Quiet frames are 40 dB below the loudest, or in the lowest part of the range of a noisy recording.
# Shorter stretches are stops of speech.
QUIET_DB, QUIET_SHARE = 40.0, 0.3
PAUSE_FRAMES = 8

log = logging.getLogger(__name__)


class Stretch(NamedTuple):
    """A stretch of a tape with its text, how sure it is, at most 1, and why it is left out."""

    first: int
    end: int
    text: str
    surety: float = 0.0
    reason: str = ""


class Tape:
    """Recordings, one after the other. The last frame of each is of no speech.

    Raises DataError if one cannot be used.
    """

    def __init__(self, files: Sequence[Path]):
        self.files = files
        self._frames = [_frames_of(file) for file in files]
        self._firsts = np.cumsum([0, *self._frames])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def hours(self) -> float:
        return len(self) * HOP_SAMPLES / sample_rate_hz() / 3600

    @cached_property
    def quiet(self) -> np.ndarray:
        """Whether each frame is in a pause, bool [T]."""
        levels = []
        for _, _, wave in self.blocks():
            power = np.square(wave.reshape(-1, HOP_SAMPLES)).mean(axis=1)
            levels.append(10.0 * np.log10(power + 1e-12))
        return quiet_frames(np.concatenate(levels))

    def blocks(self) -> Iterator[tuple[int, bool, np.ndarray]]:
        """Yield the first frame of each piece, whether it ends a recording, and its wave."""
        most = frames_in(BLOCK_S)
        for first, frames in zip(self._firsts.tolist(), self._frames, strict=False):
            # Equal pieces: a mel needs some frames.
            edges = np.linspace(0, frames, -(-frames // most) + 1).round().astype(int) + first
            for begin, end in itertools.pairwise(edges):
                yield int(begin), end == edges[-1], self.wave(begin, end)

    def wave(self, first: int, end: int) -> np.ndarray:
        """Read a stretch that is in one recording: float32 [samples]."""
        file, frame = self._place(first)
        return read_wave(file, int(end - first) * HOP_SAMPLES, start=frame * HOP_SAMPLES)

    def times(self, first: int, end: int) -> tuple[Path, float, float]:
        """Return the recording of a stretch, and its times there in seconds."""
        file, frame = self._place(first)
        frame_s = HOP_SAMPLES / sample_rate_hz()
        return file, round(frame * frame_s, 3), round((frame + end - first) * frame_s, 3)

    def _place(self, frame: int) -> tuple[Path, int]:
        number = int(np.searchsorted(self._firsts, frame, side="right")) - 1
        return self.files[number], int(frame - self._firsts[number])


def _frames_of(file: Path) -> int:
    try:
        header = read_header(str(file))
    except UnusableAudio as error:
        raise DataError(f"the recording {file} cannot be used: {error}") from error
    frames = int(resampled_length(header.samples, header.rate_hz)) // HOP_SAMPLES
    if frames < frames_in(1.0):
        raise DataError(f"the recording {file} has less than a second. Give long recordings.")
    return frames


def quiet_frames(levels_db: np.ndarray) -> np.ndarray:
    """Return which frames of a recording are in a pause, bool [T], by their levels in dB [T]."""
    low, high = np.quantile(levels_db, [0.02, 0.98])
    quiet = levels_db < max(high - QUIET_DB, low + QUIET_SHARE * (high - low))
    for first, end in runs(quiet):
        quiet[first:end] = end - first >= PAUSE_FRAMES
    return quiet


def runs(flags: np.ndarray) -> np.ndarray:
    """Return the first frame and the end of each run of true flags: int [runs, 2]."""
    edges = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    return np.flatnonzero(edges).reshape(-1, 2)


def make_corpus_folder(out: Path) -> None:
    """Make the folder of a corpus; raise ConfigError if it has files of another one."""
    make_folder(out, "--out")
    others = {path.name for path in out.iterdir()} - {METADATA, LEFT_OUT, ANCESTRY}
    if others:
        raise ConfigError(
            f"--out {out} has other files, such as {min(others)}, and the corpus is to be alone"
            " there. Give a new folder."
        )


def write_corpus(
    out: Path,
    found: Sequence[tuple[Tape, Sequence[Stretch]]],
    names: dict[str, str],
    facts: dict[str, Any],
) -> None:
    """Write the stretches as a corpus, those that are left out as a list, and what was done.

    `names` are columns of all rows, `facts` are for corpus.json.
    """
    lines, left = [], [("recording", "start", "end", "surety", "reason", "text")]
    for tape, stretches in found:
        for of in stretches:
            file, start_s, end_s = tape.times(of.first, of.end)
            if of.reason:
                times = (f"{start_s:.2f}", f"{end_s:.2f}") if of.end > of.first else ("", "")
                left.append((file.name, *times, f"{of.surety:.2f}", of.reason, of.text))
                continue
            row = {"audio_filepath": str(file.resolve()), "start": start_s, "end": end_s}
            row |= {"text": of.text, "surety": round(of.surety, 3), **names}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    reasons = Counter(row[4].split(":")[0] for row in left[1:])
    hours = sum(tape.hours for tape, _ in found)
    facts = facts | {"hours": round(hours, 3), "rows": len(lines), "left_out": reasons}
    write_csv(out / LEFT_OUT, left)
    write_json(out / ANCESTRY, {"recordings": facts})
    write_whole(out / METADATA, "".join(lines).encode())
    others = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "nothing"
    log.info("corpus         %d rows of %.2f h in %s", len(lines), hours, out / METADATA)
    log.info("left out       %s; %s lists them", others, out / LEFT_OUT)
