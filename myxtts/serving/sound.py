"""Waves as bytes of a sound file, sentence by sentence."""

import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import soundfile
import soxr

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.synthesis.speech_file import BLOCK_SAMPLES, WavStream


class Form(NamedTuple):
    """A form of sound, as libsndfile names it; 24 kHz is what Opus and clients of OpenAI take.

    A form that is not streamed has its length at the beginning.
    """

    media_type: str
    container: str
    subtype: str
    rate_hz: int
    is_streamed: bool = True


FORMS = {
    "mp3": Form("audio/mpeg", "MP3", "MPEG_LAYER_III", SAMPLE_RATE_HZ),
    "wav": Form("audio/wav", "WAV", "PCM_16", SAMPLE_RATE_HZ),
    "flac": Form("audio/flac", "FLAC", "PCM_16", SAMPLE_RATE_HZ, is_streamed=False),
    "opus": Form("audio/ogg", "OGG", "OPUS", 24_000),
    "pcm": Form("audio/pcm", "RAW", "PCM_16", 24_000),
}


class Encoder:
    """Turns waves into the bytes of one sound file."""

    def __init__(self, name: str):
        self._form = FORMS[name]
        self._sink = io.BytesIO()
        self._taken = 0
        self._write: Callable[[np.ndarray], None]
        self._close: Callable[[], None] = lambda: None
        if name == "wav":
            self._write = WavStream(self._sink).write
            return
        form = {"format": self._form.container, "subtype": self._form.subtype, "channels": 1}
        if name == "mp3":  # the other modes write the number of frames at the beginning
            form |= {"bitrate_mode": "CONSTANT", "compression_level": 0.7}
        file = soundfile.SoundFile(self._sink, "w", self._form.rate_hz, **form)
        self._write, self._close = file.write, file.close

    def encode(self, wave: np.ndarray) -> bytes:
        """Return the bytes that a wave, float32 [samples] at 22,050 Hz, adds; there may be none."""
        wave = soxr.resample(wave, SAMPLE_RATE_HZ, self._form.rate_hz)
        for first in range(0, len(wave), BLOCK_SAMPLES):
            self._write(wave[first : first + BLOCK_SAMPLES])
        return self._new_bytes() if self._form.is_streamed else b""

    def end(self) -> bytes:
        """Return the last bytes."""
        self._close()
        return self._new_bytes()

    def _new_bytes(self) -> bytes:
        content = self._sink.getvalue()[self._taken :]
        self._taken += len(content)
        return content
