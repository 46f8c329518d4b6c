"""The server: OpenAI's interface for speech and the page over HTTP, and Wyoming on its own port.

All of them share one `Desk`, which bounds what is done at the same time.
"""

import asyncio
import logging
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import uvicorn
from pydantic import Base64Bytes, BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from myxtts.data.audio_file import RECORDING, REFERENCE, check_recording, read_recording
from myxtts.errors import ConfigError, DataError, UserError
from myxtts.serving.sound import FORMS, Encoder
from myxtts.serving.speakers import Speaker
from myxtts.synthesis.page import PAGE

MAX_CHARACTERS = 4096  # of a text, as OpenAI's
MAX_BODY_BYTES = 25_000_000
MAX_REQUESTS = 64  # that are spoken or wait
REFRESH_S = 5.0
SHUTDOWN_S = 5  # for what is being spoken

Transcribe = Callable[[np.ndarray], str]

log = logging.getLogger(__name__)


class Refused(UserError):
    """Too much is requested: 413 or 429 in HTTP."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class SpeechRequest(BaseModel):
    """The body of `/v1/audio/speech`; `reference` is not OpenAI's: a recording in base64."""

    input: str = Field(min_length=1, max_length=MAX_CHARACTERS)
    voice: str = ""
    speed: float = Field(1.0, ge=0.25, le=4.0)
    response_format: Literal[tuple(FORMS)] = "mp3"  # type: ignore[valid-type]
    reference: Base64Bytes | None = None


class Desk:
    """Speaks and transcribes for all connections: as many sentences at a time as there are threads.

    The sentences of several requests take turns.
    """

    def __init__(self, speaker: Speaker, transcribe: Transcribe | None = None):
        self.speaker, self.transcriber = speaker, transcribe
        self._threads = ThreadPoolExecutor(speaker.threads, "speak")
        self._requests = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold the place of a request. Raises Refused if there is none."""
        if self._requests >= MAX_REQUESTS:
            raise Refused(f"{MAX_REQUESTS} requests are served or wait. Try it again later.", 429)
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def run(self, function: Callable, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def speak(self, text: str, **options: Any) -> AsyncIterator[np.ndarray]:
        """Yield the waves of sentences; raises UserError. See `Speaker.speak`."""
        if len(text) > MAX_CHARACTERS:
            raise DataError(f"the text has {len(text)} characters. Give {MAX_CHARACTERS} at most.")
        sentences = await self.run(lambda: self.speaker.speak(text, **options))
        while (wave := await self.run(next, sentences, None)) is not None:
            yield wave

    async def transcribe(self, recording: bytes) -> str:
        """Return the text of the content of a sound file; raises UserError."""
        transcriber = self.transcriber
        if transcriber is None:
            raise ConfigError("this server has no recogniser. Start it with --recogniser RUN.")
        with self.place(), tempfile.NamedTemporaryFile(prefix="myxtts-") as file:
            path = Path(file.name)
            path.write_bytes(recording)

            def text() -> str:
                check_recording(path, *RECORDING)
                return transcriber(read_recording(path, *RECORDING))

            return await self.run(text)


class Web:
    """The HTTP endpoints of a desk."""

    def __init__(self, desk: Desk):
        self._desk = desk

    def application(self) -> Starlette:
        routes = [
            Route("/", self.page),
            Route("/v1/models", self.models),
            Route("/v1/audio/speech", self.speech, methods=["POST"]),
            Route("/v1/audio/transcriptions", self.transcriptions, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={UserError: user_error})

    async def page(self, request: Request) -> Response:
        return Response(PAGE.read_bytes(), media_type="text/html")

    async def models(self, request: Request) -> Response:
        speaker = self._desk.speaker
        model = {"id": speaker.name, "object": "model", "created": 0, "owned_by": "myxtts"}
        model |= {"voices": [*speaker.speakers], "language": speaker.language}
        model |= {"takes_reference": speaker.takes_reference}
        return JSONResponse({"object": "list", "data": [model]})

    async def speech(self, request: Request) -> Response:
        try:
            body = SpeechRequest.model_validate_json(await whole_body(request))
        except ValidationError as error:
            mistake = error.errors()[0]
            field = ".".join(map(str, mistake["loc"])) or "the request"
            raise DataError(f"{field}: {mistake['msg']}. See docs/guides/serving.md.") from error
        parts = self._encoded(body)
        # Errors come before the first part, and so before the status 200.
        first = await anext(parts)

        async def whole() -> AsyncIterator[bytes]:
            yield first
            async for part in parts:
                yield part

        return StreamingResponse(whole(), media_type=FORMS[body.response_format].media_type)

    async def _encoded(self, body: SpeechRequest) -> AsyncIterator[bytes]:
        """Yield the bytes of sentences, in the place of a request."""
        reference = None
        with self._desk.place(), tempfile.NamedTemporaryFile(prefix="reference-") as file:
            if body.reference is not None:
                reference = Path(file.name)
                reference.write_bytes(body.reference)
                check_recording(reference, *REFERENCE)
            options = {"speaker": body.voice, "speed": body.speed, "reference": reference}
            encoder = Encoder(body.response_format)
            async for wave in self._desk.speak(body.input, **options):
                yield encoder.encode(wave)
            yield encoder.end()

    async def transcriptions(self, request: Request) -> Response:
        check_size(int(request.headers.get("content-length", 0)))
        async with request.form(max_files=1, max_part_size=MAX_BODY_BYTES) as form:
            upload = form.get("file")
            if upload is None or isinstance(upload, str):
                raise DataError("there is no recording. Give it as the form's field `file`.")
            text = await self._desk.transcribe(await upload.read())
            form_of_answer = form.get("response_format", "json")
        return PlainTextResponse(text) if form_of_answer == "text" else JSONResponse({"text": text})


async def user_error(request: Request, error: Exception) -> Response:
    """Return what the `openai` client shows."""
    document = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
    status = getattr(error, "status", 400)
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse({"error": document}, status, headers)


def check_size(size: int) -> None:
    """Raise Refused for a body of too many bytes."""
    if size > MAX_BODY_BYTES:
        limit = f"{MAX_BODY_BYTES / 1e6:.0f} MB"
        raise Refused(f"the request has {size / 1e6:.0f} MB. Send {limit} at most.", 413)


async def whole_body(request: Request) -> bytes:
    """Return the body of a request; raises Refused if it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        check_size(len(body))
    return bytes(body)


def serve(desk: Desk, host: str, port: int, wyoming_port: int) -> None:
    """Serve until SIGINT or SIGTERM; raises ConfigError if a port cannot be used. 0 is no port."""
    asyncio.run(_serve(desk, host, port, wyoming_port))


async def _serve(desk: Desk, host: str, port: int, wyoming_port: int) -> None:
    listening = _listen(host, port, "--port")
    app = Web(desk).application()
    options: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"}
    config = uvicorn.Config(app, timeout_graceful_shutdown=SHUTDOWN_S, **options)
    if wyoming_port:
        from myxtts.serving.wyoming_server import start_wyoming

        _listen(host, wyoming_port, "--wyoming-port").close()
        await start_wyoming(desk, host, wyoming_port)
        log.info("wyoming        tcp://%s:%d", host, wyoming_port)
    refreshing = asyncio.create_task(_refresh(desk.speaker))
    log.info("serving        http://%s:%d", *listening.getsockname()[:2])
    try:
        await uvicorn.Server(config).serve([listening])
    finally:
        refreshing.cancel()


def _listen(host: str, port: int, flag: str) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"{flag} {port} cannot be used on {host}: {error.strerror}. Give another {flag}."
        ) from error


async def _refresh(speaker: Speaker) -> None:
    """Take each new checkpoint of a run, beside what is spoken."""
    while True:
        await asyncio.sleep(REFRESH_S)
        try:
            await asyncio.to_thread(speaker.refresh)
        except UserError as error:
            log.warning("the newest checkpoint is not used: %s", error)
