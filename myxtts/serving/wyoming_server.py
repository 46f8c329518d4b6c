"""Wyoming, the protocol of Home Assistant's voices, for a desk."""

import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile
from wyoming.asr import Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import (
    AsrModel,
    AsrProgram,
    Attribution,
    Describe,
    Info,
    TtsProgram,
    TtsVoice,
    TtsVoiceSpeaker,
)
from wyoming.server import AsyncEventHandler, AsyncTcpServer
from wyoming.tts import Synthesize

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.audio_file import to_pcm
from myxtts.errors import UserError

if TYPE_CHECKING:
    from myxtts.serving.server import Desk

FORMAT = {"rate": SAMPLE_RATE_HZ, "width": 2, "channels": 1}


async def start_wyoming(desk: "Desk", host: str, port: int) -> None:
    """Serve connections from now on, in the running event loop."""
    await AsyncTcpServer(host, port).start(partial(_Connection, desk))


class _Connection(AsyncEventHandler):
    def __init__(self, desk: "Desk", *streams):
        super().__init__(*streams)
        self._desk = desk
        self._recorded = bytearray()
        self._recording = AudioStart(**FORMAT)

    async def handle_event(self, event: Event) -> bool:
        try:
            if Describe.is_type(event.type):
                await self.write_event(self._info().event())
            elif Synthesize.is_type(event.type):
                await self._speak(Synthesize.from_event(event))
            elif AudioStart.is_type(event.type):
                self._recording = AudioStart.from_event(event)
                self._recorded.clear()
            elif AudioChunk.is_type(event.type):
                self._recorded += event.payload or b""
            elif AudioStop.is_type(event.type):
                await self._transcribe()
        except UserError as error:
            await self.write_event(Error(str(error)).event())
        return True

    async def _speak(self, request: Synthesize) -> None:
        name = request.voice.speaker if request.voice else None
        with self._desk.place():
            waves = self._desk.speak(request.text, speaker=name or "")
            first = await anext(waves)
            await self.write_event(AudioStart(**FORMAT).event())
            await self.write_event(_chunk(first))
            async for wave in waves:
                await self.write_event(_chunk(wave))
            await self.write_event(AudioStop().event())

    async def _transcribe(self) -> None:
        sound, wav = self._recording, io.BytesIO()
        samples = np.frombuffer(bytes(self._recorded), np.int16).reshape(-1, sound.channels)
        soundfile.write(wav, samples, sound.rate, format="WAV")
        text = await self._desk.transcribe(wav.getvalue())
        await self.write_event(Transcript(text).event())

    def _info(self) -> Info:
        speaker = self._desk.speaker
        program: dict[str, Any] = {"attribution": Attribution("MyXTTS", ""), "installed": True}
        program |= {"description": speaker.name, "version": None}
        names = [TtsVoiceSpeaker(name) for name in speaker.speakers]
        voice = TtsVoice(speaker.name, languages=[speaker.language], speakers=names, **program)
        info = Info(tts=[TtsProgram("myxtts", voices=[voice], **program)])
        if self._desk.transcriber is not None:
            model = AsrModel("recogniser", languages=[speaker.language], **program)
            info.asr = [AsrProgram("myxtts", models=[model], **program)]
        return info


def _chunk(wave: np.ndarray) -> Event:
    return AudioChunk(**FORMAT, audio=to_pcm(wave).tobytes()).event()
