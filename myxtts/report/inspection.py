"""The page of an inspected corpus: its measures, and the worst clips of each fault to hear."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soxr

from myxtts.files import write_whole
from myxtts.report.overview import document
from myxtts.report.samples import EMBEDDED_BYTES, sound_url

SHOWN_CLIPS, SHOWN_S = 5, 12
# The page does not change, so an open one need not reload itself.
RELOAD_S = 1e9
RATE_HZ = 22_050

ReadSound = Callable[[str], tuple[np.ndarray, int]]
"""A clip, by its id: float32 [samples] in [-1, 1], and the rate."""


class FaultyClip(NamedTuple):
    id: str
    detail: str
    text: str


def write_page(
    path: Path,
    name: str,
    facts: Mapping[str, str],
    measures: Sequence[Sequence[Any]],
    faults: Mapping[str, Sequence[FaultyClip]],
    read: ReadSound,
) -> None:
    """Write a page without a server: `faults` has the clips of each, the worst first.

    The first seconds of SHOWN_CLIPS of each are a part of the page, up to EMBEDDED_BYTES.
    """
    room = EMBEDDED_BYTES
    sections = []
    for fault, clips in faults.items():
        shown = []
        for clip in clips[:SHOWN_CLIPS]:
            wave, rate_hz = read(clip.id)
            # MP3 has no rates above 48 kHz.
            wave = soxr.resample(wave[: SHOWN_S * rate_hz], rate_hz, RATE_HZ)
            url = sound_url(wave, RATE_HZ)
            room -= len(url)
            sound = {"src": url} if room > 0 else {}
            shown.append({**clip._asdict(), **sound})
        sections.append([fault, len(clips), shown])
    page = {"name": name, "facts": facts, "measures": measures, "faults": sections}
    write_whole(path, document("inspection", page, RELOAD_S))
