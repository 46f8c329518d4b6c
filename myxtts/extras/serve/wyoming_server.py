"""Wyoming, the protocol of Home Assistant's voices, for a desk."""

import asyncio
import io
import wave
from contextlib import suppress
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from wyoming.asr import Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_read_event, async_write_event
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
from wyoming.tts import Synthesize

from myxtts.audio.audio_file import to_pcm
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import RATE_LIMITS_HZ
from myxtts.base.errors import DataError
from myxtts.extras.serve.desk import (
    MAX_BODY_BYTES,
    SPOOLED_BYTES,
    Desk,
    check_size,
    listen,
    message_of,
)


def _pcm_format() -> dict[str, int]:
    return {"rate": sample_rate_hz(), "width": 2, "channels": 1}


async def start_wyoming(desk: Desk, host: str, port: int) -> asyncio.Server:
    """Serve connections from now on, in the running event loop; raises ConfigError as `listen`."""
    listening = listen(host, port, "--wyoming-port")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _Connection(desk, reader, writer).run()

    return await asyncio.start_server(connected, sock=listening)


class AudioFormat(BaseModel):
    """PCM of 1 to 4 bytes; a single byte has no sign, as in WAV."""

    rate: int = Field(ge=RATE_LIMITS_HZ[0], le=RATE_LIMITS_HZ[1])
    width: int = Field(ge=1, le=4)
    channels: int = Field(ge=1, le=255)


class _Connection:
    def __init__(self, desk: Desk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._desk, self._reader, self._writer = desk, reader, writer
        self.readline = reader.readline
        self._recorded, self._size = bytearray(), 0
        # None from an error to the end of the recording.
        self._format: AudioFormat | None = AudioFormat(**_pcm_format())

    async def run(self) -> None:
        """Handle events until the client leaves, which also ends what is done or waits for it."""
        handling = asyncio.create_task(asyncio.sleep(0))
        try:
            # The next event is awaited meanwhile, to notice the end of the connection.
            while event := await async_read_event(self):  # type: ignore[arg-type]
                await handling
                handling = asyncio.create_task(self._handle(event))
                await asyncio.sleep(0)  # what needs no waiting is done even if nothing follows
            if not self._reader.at_eof():
                raise DataError("an event is a line of JSON of up to 64 KiB.")
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        except Exception as error:
            with suppress(ConnectionError):
                await self._send(Error(message_of(error, "an event")))
        finally:
            handling.cancel()
            self._writer.close()

    async def readexactly(self, size: int) -> bytearray:
        """Read for `async_read_event` as a StreamReader does, but keep little beyond the limit."""
        read, self._size = bytearray(), len(self._recorded) + size
        # Clients send all before they read, so all is read; the next fields are kept at the limit.
        for first in range(0, size, SPOOLED_BYTES):
            part = await self._reader.readexactly(min(size - first, SPOOLED_BYTES))
            if self._size <= MAX_BODY_BYTES + SPOOLED_BYTES:
                read += part
        return read

    async def _handle(self, event: Event) -> None:
        with suppress(ConnectionError):  # the client has left
            try:
                await self._answer(event)
            except Exception as error:
                self._recorded, self._format = bytearray(), None
                await self._send(Error(message_of(error, event.type)))

    async def _send(self, event: Eventable) -> None:
        await async_write_event(event.event(), self._writer)

    # A recording arrives as audio-start, chunks and audio-stop. After an error the rest of it is
    # ignored, because clients send all of it before they read the answer.
    async def _answer(self, event: Event) -> None:
        if Describe.is_type(event.type):
            await self._send(self._info())
        elif Synthesize.is_type(event.type):
            await self._speak(Synthesize.from_event(event))
        elif AudioStart.is_type(event.type):
            self._recorded, self._size = bytearray(), 0
            self._format = AudioFormat.model_validate(event.data)
        elif AudioChunk.is_type(event.type) and self._format:
            if event.data and (given := AudioFormat.model_validate(event.data)) != self._format:
                raise DataError(f"audio-start had {self._format}, but audio-chunk has {given}.")
            check_size(self._size)
            self._recorded += event.payload or b""
        elif AudioStop.is_type(event.type):
            await self._transcribe()

    async def _speak(self, request: Synthesize) -> None:
        name = request.voice.speaker if request.voice else None
        with self._desk.place():
            waves = self._desk.speak(request.text, speaker=name or "")
            first = await anext(waves)
            await self._send(AudioStart(**_pcm_format()))
            await self._send(_chunk(first))
            async for samples in waves:
                await self._send(_chunk(samples))
            await self._send(AudioStop())

    async def _transcribe(self) -> None:
        sound, self._format = self._format, AudioFormat(**_pcm_format())
        content, self._recorded = self._recorded, bytearray()
        if sound is None:  # the client knows why
            return
        if len(content) % (sound.width * sound.channels):
            raise DataError(f"{len(content)} bytes are no whole samples of {sound}.")
        wav = io.BytesIO()
        with wave.open(wav, "wb") as file:
            file.setparams((sound.channels, sound.width, sound.rate, 0, "NONE", ""))
            file.writeframes(content)
        await self._send(Transcript(await self._desk.transcribe(wav.getvalue())))

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


def _chunk(samples: np.ndarray) -> AudioChunk:
    return AudioChunk(**_pcm_format(), audio=to_pcm(samples).tobytes())
