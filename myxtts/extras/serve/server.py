"""The server: OpenAI's interface for speech and the page over HTTP, and Wyoming on its own port.

All of them share one `Desk`, which bounds what is done at the same time.
"""

import asyncio
import logging
import re
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from ipaddress import ip_address
from typing import Annotated, Any, Literal

import uvicorn
from pydantic import Base64Bytes, BaseModel, Field, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import DataError
from myxtts.config.synthesis import bounds_of
from myxtts.devicefeed.errors import UserError
from myxtts.extras.serve.desk import (
    MAX_BODY_BYTES,
    MAX_CHARACTERS,
    SPOOLED_BYTES,
    Desk,
    Refused,
    check_size,
    listen,
    message_of,
    sent_file,
)
from myxtts.extras.serve.sound import FORMS, Encoder
from myxtts.speak.page import PAGE
from myxtts.speak.player import Speaker

REFRESH_S = 5.0
SHUTDOWN_S = 5  # for what is being spoken

# Names of fields that, on other servers, change the form of an answer.
_OF_THE_ANSWER = re.compile("format|timestamp|include|encoding|codec|sample_rate|bitrate")


log = logging.getLogger(__name__)


class AnyRequest(BaseModel, extra="allow"):
    """Fields that are unknown here are ignored, unless they ask for another form of the answer."""

    @model_validator(mode="after")
    def _check_form(self) -> "AnyRequest":
        for name, value in (self.model_extra or {}).items():
            if value and _OF_THE_ANSWER.search(name):
                raise DataError(f"{name} asks for an answer that is unknown here. Leave it out.")
        return self


class SpeechRequest(AnyRequest):
    """The body of `/v1/audio/speech`; `reference` is not OpenAI's: a recording in base64."""

    input: str = Field(min_length=1, max_length=MAX_CHARACTERS)
    voice: str = ""
    speed: Annotated[float, bounds_of("speed")] = 1.0
    response_format: Literal[tuple(FORMS)] = "mp3"  # type: ignore[valid-type]
    stream_format: Literal["audio"] | None = None
    reference: Base64Bytes | None = None


class TranscriptionRequest(AnyRequest):
    """The form of `/v1/audio/transcriptions` without its file."""

    response_format: Literal["json", "text"] = "json"
    stream: Literal["false", "False"] = "false"


class Gate:
    """The way of a request to an application of ASGI, and its end if the client leaves."""

    def __init__(self, app: ASGIApp):
        self._app = app

    # The body is received into a file and counted, whatever its headers say. Then the application
    # answers, with the body replayed. Meanwhile the next message is awaited: it can only be that
    # the client has left, which cancels the answer.
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        with tempfile.SpooledTemporaryFile(SPOOLED_BYTES) as body:
            message: Message = {"more_body": True}
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body.write(message.get("body", b""))
                try:
                    check_size(body.tell())
                except Refused as error:
                    return await (await refuse(Request(scope), error))(scope, receive, send)
            body.seek(0)
            messages: list[Message] = [{"type": "http.request", "body": body.read()}]
        leaving = asyncio.ensure_future(receive())

        async def replay() -> Message:
            if messages:
                return messages.pop()
            return await asyncio.shield(leaving)

        answering = asyncio.ensure_future(self._app(scope, replay, send))
        try:
            await asyncio.wait((leaving, answering), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering


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
        handlers = {UserError: refuse, ValidationError: refuse}
        return Starlette(False, routes, [Middleware(Gate)], handlers)

    async def page(self, request: Request) -> Response:
        return Response(PAGE.read_bytes(), media_type="text/html")

    async def models(self, request: Request) -> Response:
        speaker = self._desk.speaker
        model = {"id": speaker.name, "object": "model", "created": 0, "owned_by": "myxtts"}
        model |= {"voices": [*speaker.speakers], "language": speaker.language}
        model |= {"takes_reference": speaker.takes_reference, "sample_rate": sample_rate_hz()}
        return JSONResponse({"object": "list", "data": [model]})

    async def speech(self, request: Request) -> Response:
        body = SpeechRequest.model_validate_json(await request.body())
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
        with self._desk.place(), sent_file(body.reference or b"") as path:
            reference = path if body.reference is not None else None
            options = {"speaker": body.voice, "speed": body.speed, "reference": reference}
            encoder = Encoder(body.response_format)
            async for wave in self._desk.speak(body.input, **options):
                yield encoder.encode(wave)
            yield encoder.end()

    async def transcriptions(self, request: Request) -> Response:
        async with request.form(max_files=1, max_part_size=MAX_BODY_BYTES) as form:
            fields = {name: value for name, value in form.items() if name != "file"}
            asked = TranscriptionRequest.model_validate(fields)
            upload = form.get("file")
            if upload is None or isinstance(upload, str):
                raise DataError("there is no recording. Give it as the form's field `file`.")
            text = await self._desk.transcribe(await upload.read())
        if asked.response_format == "text":
            return PlainTextResponse(text)
        return JSONResponse({"text": text})


async def refuse(request: Request, error: Exception) -> Response:
    """Return what the `openai` client shows."""
    document = {"message": message_of(error), "type": "invalid_request_error"}
    status = getattr(error, "status", 400)
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse({"error": document | {"param": None, "code": None}}, status, headers)


# HTTP listens first, then Wyoming, so that a port in use is reported before the server seems to
# run. Both share the event loop with a task that looks for new checkpoints.
async def serve(desk: Desk, host: str, port: int, wyoming_port: int) -> None:
    """Serve until SIGINT or SIGTERM; raises ConfigError if a port cannot be used. 0 is no port."""
    listening = listen(host, port, "--port")
    app = Web(desk).application()
    options: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"}
    config = uvicorn.Config(app, timeout_graceful_shutdown=SHUTDOWN_S, **options)
    if wyoming_port:
        from myxtts.extras.serve.wyoming_server import start_wyoming

        wyoming = await start_wyoming(desk, host, wyoming_port)
        log.info("wyoming        tcp://%s", _address(wyoming.sockets[0]))
    refreshing = asyncio.create_task(_refresh(desk.speaker))
    log.info("serving        http://%s", _address(listening))
    if not ip_address(listening.getsockname()[0]).is_loopback:
        warning = "--host %s: whoever reaches this address can use the voice, without a password"
        log.warning(warning, host)
    try:
        await uvicorn.Server(config).serve([listening])
    finally:
        refreshing.cancel()


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    return f"{host}:{port}"


async def _refresh(speaker: Speaker) -> None:
    """Take each new checkpoint of a run, beside what is spoken."""
    while True:
        await asyncio.sleep(REFRESH_S)
        try:
            await asyncio.to_thread(speaker.refresh)
        except UserError as error:
            log.warning("the newest checkpoint is not used: %s", error)
