"""Waves as bytes of a sound file, sentence by sentence."""

import tempfile
from typing import NamedTuple

import numpy as np
import soxr

from myxtts.audio.audio_file import BlockwiseFile
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import wav_header
from myxtts.extras.serve.desk import SPOOLED_BYTES


class Form(NamedTuple):
    """A form of sound, as libsndfile names it; 24 kHz is what Opus and clients of OpenAI take.

    Without a rate, it is the voice's. A form that is not streamed has its length at the beginning.
    """

    media_type: str
    container: str
    subtype: str
    rate_hz: int | None = None
    is_streamed: bool = True


FORMS = {
    "mp3": Form("audio/mpeg", "MP3", "MPEG_LAYER_III"),
    "wav": Form("audio/wav", "RAW", "PCM_16"),
    "flac": Form("audio/flac", "FLAC", "PCM_16", is_streamed=False),
    "opus": Form("audio/ogg", "OGG", "OPUS", 24_000),
    "pcm": Form("audio/pcm", "RAW", "PCM_16", 24_000),
}


class Encoder:
    """Turns waves into the bytes of one sound file; keeps FLAC alone until its end."""

    def __init__(self, name: str):
        self._form = form = FORMS[name]
        self._rate_hz = form.rate_hz or sample_rate_hz()
        self._sink = tempfile.SpooledTemporaryFile(SPOOLED_BYTES)  # noqa: SIM115 - `end` closes it
        self._taken = 0
        if name == "wav":
            self._sink.write(wav_header())
        kind = {"format": form.container, "subtype": form.subtype, "channels": 1}
        if name == "mp3":  # the other modes write the number of frames at the beginning
            kind |= {"bitrate_mode": "CONSTANT", "compression_level": 0.7}
        self._file = BlockwiseFile(self._sink, "w", self._rate_hz, **kind)

    def encode(self, wave: np.ndarray) -> bytes:
        """Return the bytes that a wave, float32 [samples], adds; there may be none."""
        self._file.write(soxr.resample(wave, sample_rate_hz(), self._rate_hz))
        if not self._form.is_streamed:
            return b""
        return self._take()

    def end(self) -> bytes:
        """Return the last bytes."""
        self._file.close()
        with self._sink:
            return self._take()

    # At its end libsndfile goes back to the beginning of an MP3, which was taken already.
    def _take(self) -> bytes:
        self._sink.seek(self._taken)
        new = self._sink.read()
        self._taken += len(new)
        return new
