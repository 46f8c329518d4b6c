"""Recognisers of synthesized speech: a run of this program, or pocketsphinx for English."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import soxr
from tqdm import tqdm

from myxtts.audio.audio_file import to_pcm
from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import check_packages
from myxtts.tasks.asr.transcriber import Transcriber
from myxtts.tasks.base import Throttle, no_throttle

POCKETSPHINX = "pocketsphinx"
POCKETSPHINX_RATE_HZ = 16_000


class Pocketsphinx:
    """CMU Pocketsphinx with the models of US English that its package has, a judge from outside."""

    def __init__(self) -> None:
        check_packages(f"--asr {POCKETSPHINX}", POCKETSPHINX)
        from pocketsphinx import Decoder

        self._decoder = Decoder(loglevel="FATAL")
        # Name and version, in place of what a `Transcriber` has.
        self.run, self.checkpoint = Path(POCKETSPHINX), Path(version(POCKETSPHINX))

    def normalise_reference(self, text: str, language: str) -> str:
        """Return the words in small letters; empty for another language, or with digits."""
        # Its dictionary has words alone: what is read for digits is not known here.
        if not language.startswith("en") or re.search(r"\d", text):
            return ""
        return " ".join(re.findall(r"[\w']+", text.lower().replace("’", "'")))

    def transcribe(
        self, waves: Iterable[np.ndarray], throttle: Throttle = no_throttle
    ) -> Iterator[str]:
        """Yield the text of each wave, float32 [samples]."""
        # It takes about as long as the speech.
        for wave in tqdm(waves, POCKETSPHINX, leave=False, disable=None, unit="utt"):
            throttle()
            samples = to_pcm(soxr.resample(wave, sample_rate_hz(), POCKETSPHINX_RATE_HZ))
            self._decoder.start_utt()
            self._decoder.process_raw(samples.astype("<i2").tobytes(), full_utt=True)
            self._decoder.end_utt()
            hypothesis = self._decoder.hyp()
            yield hypothesis.hypstr if hypothesis else ""


def open_recogniser(asr: Path, device: str) -> Transcriber | Pocketsphinx:
    """Open a run, or the recogniser that has this name; raises UserError if it cannot be used."""
    if str(asr) == POCKETSPHINX:
        return Pocketsphinx()
    return Transcriber(asr, device)
