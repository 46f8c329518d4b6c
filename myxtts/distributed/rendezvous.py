"""Wait until all workers have started, and verify that they have the same settings. No TensorFlow.

TensorFlow would wait silently and without reacting to Ctrl-C. Here the chief listens on its port,
each other worker connects and introduces itself, and the chief releases all of them together:

    worker                                                   chief
    {"worker": 1, "workers": […], "settings": {…}}    →
                                                      ←      {"waiting": "worker 2 (…)"}, …
                                                      ←      {"go": true} or {"error": "…"}

Other programs may also connect. A connection that does not introduce itself as a worker of this
job in time is dropped and counted. Nothing is encrypted or signed, like all later communication:
a cluster needs a private network.
"""

import asyncio
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from myxtts.distributed.cluster import Cluster, is_loopback, split_address
from myxtts.errors import PlacementError

# A node may have to fetch an image first.
START_TIMEOUT_S = 600.0
FIRST_REPORT_S = 5.0
REPORT_EVERY_S = 30.0
# The chief sends a message every RETRY_S, so one that is silent for CHIEF_TIMEOUT_S has left.
RETRY_S = 0.5
CHIEF_TIMEOUT_S = 30.0
# What a connection may take before it has introduced itself. A worker does that at once, in a few
# hundred bytes; besides one connection of each worker MAX_PENDING may wait.
INTRODUCTION_S = 5.0
LINE_BYTES = 1 << 20
MAX_PENDING = 32
SHOWN_CHARACTERS = 1000
MALFORMED = "malformed"

log = logging.getLogger(__name__)


class UnknownPeer(Exception):
    """The other end of a connection is no worker of this job; the message is the reason."""


def rendezvous(
    cluster: Cluster,
    settings: Mapping[str, str],
    timeout_s: float = START_TIMEOUT_S,
    report: Callable[[str], None] = log.info,
) -> None:
    """Wait until all workers have started, and verify that all workers have the same settings.

    The worker's port is free again on return, for TensorFlow's server.

    Args:
        settings: values that must be the same on all workers, by their names in messages, such as
            `GPUs`.
        report: receives a log line about the missing workers now and then.

    Raises:
        PlacementError: a worker did not arrive in time, has started twice or has other settings
            than the chief; the chief has other addresses; or the port is in use.
    """
    wait = _Wait(timeout_s, report)
    with _bind_port(cluster) as listener:
        if cluster.is_chief:
            asyncio.run(_ChiefServer(cluster, dict(settings)).release_all(listener, wait))
        else:
            _join_chief(cluster, dict(settings), wait)


class _Wait:
    """Measures the waiting time, and reports it."""

    def __init__(self, timeout_s: float, report: Callable[[str], None]):
        self._start_s = time.monotonic()
        self._timeout_s = timeout_s
        self._report = report
        self._next_report_s = FIRST_REPORT_S

    def check(self, missing: str) -> None:
        """Report the missing workers if a report is due. Raise PlacementError after the timeout."""
        waited_s = time.monotonic() - self._start_s
        if waited_s >= self._timeout_s:
            raise PlacementError(
                f"all workers must start together, but {missing} did not arrive within"
                f" {self._timeout_s:g} s. Look at the log there; the hosts must reach each other at"
                " the addresses of the cluster."
            )
        if waited_s >= self._next_report_s:
            self._report(
                f"waiting        for {missing}, {waited_s:.0f} s of at most {self._timeout_s:g} s"
            )
            self._next_report_s += REPORT_EVERY_S


def _bind_port(cluster: Cluster) -> socket.socket:
    """Return a socket on this worker's port, which shows that the port is free.

    The chief's socket listens.
    """
    host, port = split_address(cluster.address)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        interface = host if is_loopback(host) else ""
        listener.bind((interface, port))
        if cluster.is_chief:
            listener.listen(cluster.count + 16)
    except OSError as error:
        listener.close()
        raise PlacementError(
            f"this process is {cluster.name()}, but it cannot use port {port}: {error.strerror}. "
            "End the process that uses the port, or give the workers other ports."
        ) from error
    return listener


class _ChiefServer:
    """The chief's side: the workers that have joined, and the connections that are pending.

    A pending connection has not introduced itself yet. No connection keeps another one waiting.
    """

    def __init__(self, cluster: Cluster, settings: dict[str, str]):
        self._cluster = cluster
        self._settings = settings
        # Dictionaries keep the order of insertion, so the first pending connection is the oldest.
        self._pending: dict[asyncio.StreamReader, asyncio.StreamWriter] = {}
        self._joined: dict[int, asyncio.StreamWriter] = {}
        self._dropped: Counter[str] = Counter()
        self._mismatch = ""
        self._has_news = asyncio.Event()

    async def release_all(self, listener: socket.socket, wait: _Wait) -> None:
        """Wait for all other workers, and release them."""
        server = await asyncio.start_server(self._on_connection, sock=listener, limit=LINE_BYTES)
        try:
            while missing := self._missing():
                wait.check(missing)
                self._send_all({"waiting": missing})
                try:
                    await asyncio.wait_for(self._has_news.wait(), RETRY_S)
                except asyncio.TimeoutError:
                    continue
                self._has_news.clear()
                if self._mismatch:
                    raise PlacementError(self._mismatch)
            self._send_all({"go": True})
        except PlacementError as error:
            self._send_all({"error": str(error)})
            raise
        finally:
            server.close()
            await self._close()

    def _missing(self) -> str:
        absent = (index for index in range(1, self._cluster.count) if index not in self._joined)
        return " and ".join(map(self._cluster.name, absent))

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection from its introduction to its end."""
        self._pending[reader] = writer
        if len(self._pending) > MAX_PENDING + self._cluster.count:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.set_exception(UnknownPeer("too many at once"))
        try:
            introduction = await _next_message(reader, INTRODUCTION_S)
            if error := self._join(introduction, writer):
                writer.write(_encode({"error": error}))
                return
        except UnknownPeer as error:
            self._drop(writer, str(error))
            return
        finally:
            self._pending.pop(reader, None)
            if writer not in self._joined.values():
                writer.close()
        # A worker sends nothing else, so it has left if there is anything to receive.
        with suppress(OSError):
            await reader.read(1)
        self._joined = {i: joined for i, joined in self._joined.items() if joined is not writer}
        writer.close()

    def _join(self, introduction: dict[str, Any], writer: asyncio.StreamWriter) -> str:
        """Let a worker in; return an error message if it has another job or other settings.

        Raises:
            UnknownPeer: the message is no introduction.
        """
        index, workers, settings = map(introduction.get, ("worker", "workers", "settings"))
        if (
            type(index) is not int
            or not isinstance(workers, list)
            or not isinstance(settings, dict)
        ):
            raise UnknownPeer(MALFORMED)
        if workers != list(self._cluster.workers):
            self._drop(writer, "of another job")
            return _printable(
                f"worker {index} has the cluster {workers}, but worker 0 has"
                f" {list(self._cluster.workers)}. Give all workers the same addresses, in the same"
                " order."
            )
        self._has_news.set()
        self._mismatch = self._mismatch or self._find_mismatch(index, settings)
        if not self._mismatch:
            self._joined[index] = writer
        return self._mismatch

    def _find_mismatch(self, index: int, settings: dict[str, Any]) -> str:
        """Return why a worker of this job cannot take part; empty if it can."""
        if not 1 <= index < self._cluster.count or index in self._joined:
            return f"two processes claim to be worker {index}. Give each process its own index."
        for name in sorted({*self._settings, *settings}):
            expected = self._settings.get(name)
            value = settings.get(name)
            if expected != value:
                return _printable(
                    f"{self._cluster.name(index)} has {name} {value}, but {self._cluster.name(0)}"
                    f" has {expected}. Give all workers the same value."
                )
        return ""

    def _send_all(self, message: dict[str, Any]) -> None:
        for writer in self._joined.values():
            writer.write(_encode(message))

    def _drop(self, writer: asyncio.StreamWriter, reason: str) -> None:
        """Count a connection that is not a worker's; the log reports the first one."""
        if not self._dropped:
            # None if the connection has already ended.
            address, _ = writer.get_extra_info("peername") or ("an unknown address", 0)
            log.warning(
                "rendezvous     a connection from %s was dropped (%s). Only the workers of this job"
                " should reach port %d: close it to others. If this was a worker, give all workers"
                " the same addresses and version of MyXTTS.",
                address,
                reason,
                split_address(self._cluster.address)[1],
            )
        self._dropped[reason] += 1

    async def _close(self) -> None:
        """Close all connections, and log how many were dropped if there was more than one."""
        for writer in (*self._pending.values(), *self._joined.values()):
            writer.close()
        # The connections are closed by the event loop, which ends with this coroutine.
        await asyncio.sleep(0)
        if self._dropped.total() > 1:
            reasons = ", ".join(
                f"{count} {reason}" for reason, count in self._dropped.most_common()
            )
            log.warning(
                "rendezvous     %d connections were dropped: %s", self._dropped.total(), reasons
            )


def _join_chief(cluster: Cluster, settings: dict[str, str], wait: _Wait) -> None:
    """Introduce this worker to the chief, and wait until the chief releases it."""
    reasons: set[str] = set()
    while True:
        wait.check(cluster.name(0))
        try:
            chief = socket.create_connection(split_address(cluster.workers[0]), timeout=RETRY_S)
        # It does not listen yet, or its name does not resolve yet.
        except OSError:
            time.sleep(RETRY_S)
            continue
        with chief:
            try:
                asyncio.run(_wait_for_release(cluster, settings, chief, wait))
                return
            # The chief has left, and may be restarted; or another program listens there.
            except UnknownPeer as peer:
                if str(peer) not in reasons:
                    log.warning(
                        "rendezvous     %s has ended a connection (%s)", cluster.name(0), peer
                    )
                reasons.add(str(peer))
        time.sleep(RETRY_S)


async def _wait_for_release(
    cluster: Cluster, settings: dict[str, str], chief: socket.socket, wait: _Wait
) -> None:
    """Introduce this worker on a connection, and wait until the chief releases it.

    Raises:
        UnknownPeer: the other end is not the chief, or has left.
        PlacementError: the chief has rejected this worker, or has given up.
    """
    reader, writer = await asyncio.open_connection(sock=chief, limit=LINE_BYTES)
    writer.write(
        _encode({"worker": cluster.index, "workers": cluster.workers, "settings": settings})
    )
    timeout_s = INTRODUCTION_S
    try:
        while True:
            message = await _next_message(reader, timeout_s)
            if "error" in message:
                raise PlacementError(_printable(str(message["error"])))
            if "go" in message:
                return
            wait.check(_printable(str(message.get("waiting"))))
            timeout_s = CHIEF_TIMEOUT_S
    finally:
        writer.close()


async def _next_message(reader: asyncio.StreamReader, timeout_s: float) -> dict[str, Any]:
    """Return the next line of the other end, a JSON object.

    Raises:
        UnknownPeer: the line is too late, too long or no object, or the connection has ended.
    """
    try:
        line = await asyncio.wait_for(reader.readline(), timeout_s)
    except asyncio.TimeoutError:
        raise UnknownPeer("too slow") from None
    except ValueError:
        raise UnknownPeer(f"a line of more than {LINE_BYTES:,} bytes") from None
    except OSError:
        line = b""
    if not line.endswith(b"\n"):
        raise UnknownPeer("closed early")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise UnknownPeer(MALFORMED)
    return message


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _printable(text: str) -> str:
    """Return the text of another process for a terminal: short, without control characters."""
    start = text[:SHOWN_CHARACTERS]
    for letter in set(start):
        if not letter.isprintable():
            start = start.replace(letter, "?")
    return start
