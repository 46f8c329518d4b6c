"""The desk that HTTP and Wyoming share: it speaks, transcribes, and bounds what is done at once."""

import asyncio
import errno
import logging
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from myxtts.audio.audio_file import RECORDING, read_recording
from myxtts.base.errors import ConfigError, DataError
from myxtts.devicefeed.errors import UserError
from myxtts.speak.player import Speaker

log = logging.getLogger(__name__)

MAX_CHARACTERS = 4096  # of a text, as OpenAI's
MAX_BODY_BYTES = 25_000_000
MAX_REQUESTS = 64  # that are spoken or wait
SPOOLED_BYTES = 1_000_000  # of a body in memory; the rest waits on disk
# Advice about a flag, which a client of the server does not have.
_FLAG = re.compile(r"(, and [^,.]*)? with --[\w-]+")
Transcribe = Callable[[np.ndarray], str]


class Refused(UserError):
    """Too much is requested: 413 or 429 in HTTP."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def check_size(size: int) -> None:
    """Raise Refused for a request of too many bytes."""
    if size > MAX_BODY_BYTES:
        limit = f"{MAX_BODY_BYTES / 1e6:g} MB"
        raise Refused(f"the request has more than {limit}. Send {limit} at most.", 413)


class Desk:
    """Speaks and transcribes for all connections, a sentence at a time in each thread."""

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

    # The text is encoded in a thread, and so is each sentence, on demand: between two sentences
    # other requests have their turn.
    async def speak(self, text: str, **options: Any) -> AsyncIterator[np.ndarray]:
        """Yield the waves of sentences; raises UserError. See `Speaker.speak`."""
        if len(text) > MAX_CHARACTERS:
            raise DataError(f"the text has {len(text)} characters. Give {MAX_CHARACTERS} at most.")
        sentences = await self.run(lambda: self.speaker.speak(text, **options))
        while (sentence := await self.run(next, sentences, None)) is not None:
            yield sentence.wave

    async def transcribe(self, recording: bytes) -> str:
        """Return the text of the content of a sound file; raises UserError."""
        transcriber = self.transcriber
        if transcriber is None:
            raise ConfigError("this server has no recogniser. Start it with --recogniser RUN.")
        with self.place(), sent_file(recording) as path:
            return await self.run(lambda: transcriber(read_recording(path, RECORDING)))


@contextmanager
def sent_file(content: bytes) -> Iterator[Path]:
    """Write what a client has sent into a file, whose path stays out of the messages of errors."""
    with tempfile.NamedTemporaryFile(prefix="myxtts-") as file:
        Path(file.name).write_bytes(content)
        try:
            yield Path(file.name)
        except DataError as error:
            raise DataError(str(error).replace(f" {file.name}", "")) from error


def message_of(error: Exception, what: str = "the request") -> str:
    """Return what a client, which has no flags, is told; and log an error that is not its own."""
    if isinstance(error, ValidationError):
        mistake = error.errors()[0]
        field = ".".join(map(str, mistake["loc"])) or what
        return f"{field}: {mistake['msg']}. See docs/guides/serving.md."
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, UserError):
        return _FLAG.sub("", str(error))
    log.error("%s cannot be used: %r", what, error)
    return f"{what} cannot be used: {error!r}"


def listen(host: str, port: int, flag: str) -> socket.socket:
    """Return a socket that listens, of IPv4 where a name has both; `::` takes both.

    Raises ConfigError, which names the flag of the port, if the host or the port cannot be used.
    """
    try:
        family, _, _, _, address = min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=is_dual)
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", error)).partition(" (while")[0]
        if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
            found = f"{flag} {port} cannot be used on {host}: {reason}. Give another {flag}."
            raise ConfigError(found) from error
        raise ConfigError(
            f"--host {host} cannot be used: {reason}. Give a name or an address of this machine"
            " alone, without http:// and port, such as 127.0.0.1, ::1 or 0.0.0.0."
        ) from error
