"""Recognisers of speech: a run of this program, models of onnx-asr, or pocketsphinx for English."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from tqdm import tqdm

from myxtts.audio.audio_file import to_pcm
from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import ConfigError, check_packages
from myxtts.placement import devices
from myxtts.tasks.asr.transcriber import Transcriber
from myxtts.tasks.base import Throttle, no_throttle

POCKETSPHINX, ONNX = "pocketsphinx", "onnx:"
RATE_HZ = 16_000  # of both


class OutsideRecogniser:
    """A recogniser of a package, a judge from outside. It knows words alone, and no numbers.

    Attributes:
        run, checkpoint: name and version, in place of what a `Transcriber` has.
        language: of what it hears, at its beginning; any if empty.
    """

    language = ""

    def __init__(self, name: str, package: str) -> None:
        self.run, self.checkpoint = Path(name), Path(version(package))

    def normalise_reference(self, text: str, language: str) -> str:
        """Return the words in small letters; empty for another language, or with digits."""
        # What is read for digits is not known here.
        if not language.startswith(self.language) or re.search(r"\d", text):
            return ""
        return " ".join(re.findall(r"[^\W_]+(?:'\w+)*", text.lower().replace("’", "'")))

    def transcribe(
        self, waves: Iterable[np.ndarray], throttle: Throttle = no_throttle
    ) -> Iterator[str]:
        """Yield the text of each wave, float32 [samples]."""
        return (text for text, _ in self.transcribe_scored(waves, throttle))

    def transcribe_scored(
        self, waves: Iterable[np.ndarray], throttle: Throttle = no_throttle
    ) -> Iterator[tuple[str, float]]:
        """Yield the text of each wave, and how sure it is, from 0 to 1."""
        # It takes about as long as the speech.
        for wave in tqdm(waves, str(self.run), leave=False, disable=None, unit="utt"):
            throttle()
            yield self.transcribe_one(soxr.resample(wave, sample_rate_hz(), RATE_HZ))

    def transcribe_one(self, wave: np.ndarray) -> tuple[str, float]:
        """Return the text of a wave at RATE_HZ, and the mean probability of its words."""
        raise NotImplementedError


class Pocketsphinx(OutsideRecogniser):
    """CMU Pocketsphinx with the models of US English that its package has."""

    language = "en"

    def __init__(self) -> None:
        check_packages(f"--asr {POCKETSPHINX}", POCKETSPHINX)
        from pocketsphinx import Decoder

        super().__init__(POCKETSPHINX, POCKETSPHINX)
        self._decoder = Decoder(loglevel="FATAL")

    def transcribe_one(self, wave: np.ndarray) -> tuple[str, float]:
        decoder = self._decoder
        decoder.start_utt()
        decoder.process_raw(to_pcm(wave).astype("<i2").tobytes(), full_utt=True)
        decoder.end_utt()
        if (hypothesis := decoder.hyp()) is None:
            return "", 0.0
        # Silence and noise stand in brackets.
        sureties = [of.prob for of in decoder.seg() if of.word[:1] not in "<["]
        return hypothesis.hypstr, float(np.mean(sureties or [0.0]))


class OnnxAsr(OutsideRecogniser):
    """A model of onnx-asr by its name there, perhaps with =FOLDER of its files."""

    def __init__(self, model: str) -> None:
        check_packages(f"--asr {ONNX}{model}", "onnx_asr")
        import onnx_asr

        super().__init__(f"{ONNX}{model}", "onnx-asr")
        name, _, folder = model.partition("=")
        try:
            self._model: Any = onnx_asr.load_model(name, folder or None).with_timestamps()
        except Exception as error:
            raise ConfigError(
                f"onnx-asr cannot load {name!r}: {error}. Give a model of its list, which it"
                f" fetches at the first use, or {ONNX}NAME=FOLDER with the folder of its files."
            ) from error

    def transcribe_one(self, wave: np.ndarray) -> tuple[str, float]:
        heard = self._model.recognize(wave, sample_rate=RATE_HZ)
        # Some models tell no probabilities: then all that they hear is as sure.
        return heard.text, exp(np.mean(heard.logprobs or [0.0]))


def open_recogniser(asr: Path, device: str | None = None) -> Transcriber | OutsideRecogniser:
    """Open a run, or the recogniser that has this name; raises UserError if it cannot be used.

    It is on GPU 0, or else the CPU, if no device is given.
    """
    if str(asr) == POCKETSPHINX:
        return Pocketsphinx()
    if str(asr).startswith(ONNX):
        return OnnxAsr(str(asr).removeprefix(ONNX))
    return Transcriber(asr, device or devices.configure_default().routes[0].model)
