"""Wait until all workers have started, and verify that they have the same settings, and GPUs of
their own. No TensorFlow.

TensorFlow would wait silently and without reacting to Ctrl-C. Here the chief listens on its port,
each other worker connects and introduces itself, and the chief releases all of them together:

    worker                                                    chief
    {"worker": 1, "cluster": "…", "address": "…", …}    →
                                                        ←     {"waiting": "worker 2 (…)"}, …
                                                        ←     {"go": true} or {"error": "…"}

A worker whose launcher told it the chief's address alone takes a free port on the interface from
which it reaches the chief; then `go` comes with the addresses of all workers.

Other programs may also connect: a connection that does not introduce itself as a worker of this
job in time is dropped. Nothing is encrypted or signed, like all later communication: a cluster
needs a private network.
"""

import asyncio
import hashlib
import json
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from myxtts.base.errors import PeerLost
from myxtts.devicefeed.errors import PlacementError, UserError
from myxtts.distributed.cluster import Cluster, check_addresses, is_loopback, split_address

FIRST_REPORT_S = 5.0
REPORT_EVERY_S = 30.0
RETRY_S = 0.2
# The other end may be silent for so long. A worker introduces itself at once, in a few hundred
# bytes, and the chief sends a message every RETRY_S, which names few of the missing workers.
SILENCE_S = 10.0
NAMED_WORKERS = 8
CLOSE_S = 5.0
LINE_BYTES = 1 << 20

log = logging.getLogger(__name__)


class UnknownPeer(Exception):
    """The other end of a connection is no worker of this job; the message is the reason."""


class _Introduction(BaseModel):
    model_config = ConfigDict(strict=True)

    worker: int
    cluster: str
    address: str
    settings: dict[str, str]
    gpus: list[str] = []


class _Answer(BaseModel):
    go: bool = False
    workers: list[str] = []
    waiting: str = ""
    error: str = ""
    is_mistake: bool = True


_Message = TypeVar("_Message", _Introduction, _Answer)


def rendezvous(
    cluster: Cluster, settings: Mapping[str, str], timeout_s: float, gpus: Sequence[str] = ()
) -> Cluster:
    """Wait until all workers have started, and verify that all workers have the same settings.

    Returns the cluster with the addresses of all workers. The worker's port is free again then, for
    TensorFlow's server. Raises PeerLost if a worker did not arrive in time, and PlacementError if
    one has started twice or has other addresses or settings than the chief, if two use the same of
    these `gpus`, which have names that no other GPU has, or if the port is in use. The settings are
    named as in messages, such as `GPUs`.
    """
    wait = _Wait(timeout_s)
    with _bind_port(cluster) as listener:
        if cluster.is_chief:
            chief = _Chief(cluster, dict(settings), gpus)
            workers = asyncio.run(chief.release_all(listener, wait))
        else:
            port = listener.getsockname()[1]
            workers = asyncio.run(_join_chief(cluster, port, dict(settings), gpus, wait))
    return replace(cluster, workers=check_addresses(workers, "the rendezvous"))


class _Wait:
    """Measures the waiting time, and reports it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._start_s = time.monotonic()
        self._next_report_s = FIRST_REPORT_S

    def check(self, missing: str) -> None:
        """Report the missing workers if a report is due. Raise PeerLost after the timeout."""
        waited_s = time.monotonic() - self._start_s
        if waited_s >= self._timeout_s:
            raise PeerLost(
                f"all workers must start together, but {missing} did not arrive within"
                f" {self._timeout_s:g} s (--start-timeout). Look at the log and the network there."
            )
        if waited_s >= self._next_report_s:
            log.info(
                "waiting        for %s, %.0f s of at most %g s", missing, waited_s, self._timeout_s
            )
            self._next_report_s += REPORT_EVERY_S


def _bind_port(cluster: Cluster) -> socket.socket:
    """Return a socket on this worker's port, which shows that the port is free; without an address,
    on any port that is.
    """
    host = split_address(cluster.address or cluster.workers[0])[0]
    port = split_address(cluster.address)[1] if cluster.address else 0
    interface = host if is_loopback(host) else ""
    family = socket.AF_INET
    # Without an interface, both protocols: a name may have addresses of either.
    if ":" in interface or (not interface and socket.has_dualstack_ipv6()):
        family = socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
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


class _Chief:
    """The chief's side: no connection keeps another one waiting."""

    def __init__(self, cluster: Cluster, settings: dict[str, str], gpus: Sequence[str] = ()):
        self._cluster = cluster
        self._settings = settings
        self._users = dict.fromkeys(gpus, 0)
        self._connections: dict[asyncio.Task, asyncio.StreamWriter] = {}
        self._joined: dict[int, asyncio.StreamWriter] = {}
        self._addresses = list(cluster.workers)
        self._drop_reasons: set[str] = set()
        self._mismatch = ""

    async def release_all(self, listener: socket.socket, wait: _Wait) -> list[str]:
        """Wait for all other workers, and release them; return the addresses of all."""
        server = await asyncio.start_server(self._on_connection, sock=listener, limit=LINE_BYTES)
        try:
            while missing := self._missing():
                wait.check(missing)
                self._send_all(_Answer(waiting=missing))
                await asyncio.sleep(RETRY_S)
                if self._mismatch:
                    raise PlacementError(self._mismatch)
            are_new = self._addresses != list(self._cluster.workers)
            self._send_all(_Answer(go=True, workers=self._addresses if are_new else []))
            return self._addresses
        except UserError as error:
            self._send_all(_Answer(error=str(error), is_mistake=type(error) is not PeerLost))
            raise
        finally:
            server.close()
            for writer in self._connections.values():
                writer.close()
            # The event loop closes the connections; it ends with this coroutine.
            if self._connections:
                await asyncio.wait(self._connections, timeout=CLOSE_S)

    def _missing(self) -> str:
        absent = [index for index in range(1, self._cluster.count) if index not in self._joined]
        names = [*map(self._cluster.name, absent[:NAMED_WORKERS])]
        if further := len(absent) - len(names):
            names.append(f"{further} others")
        return " and ".join(names)

    def _send_all(self, answer: _Answer) -> None:
        line = _encode(answer)
        for writer in self._joined.values():
            writer.write(line)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection from its introduction to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            introduction = await _next_message(reader, _Introduction)
            if error := self._find_mismatch(introduction, writer):
                writer.write(_encode(_Answer(error=error)))
            else:
                self._joined[introduction.worker] = writer
                self._addresses[introduction.worker] = introduction.address
                # A worker sends nothing else, so it has left if there is anything to receive.
                with suppress(OSError):
                    await reader.read(1)
                del self._joined[introduction.worker]
        except UnknownPeer as reason:
            self._warn_of_drop(writer, str(reason))
        finally:
            writer.close()
            del self._connections[task]

    def _find_mismatch(self, introduction: _Introduction, writer: asyncio.StreamWriter) -> str:
        """Return why a worker cannot take part; empty if it can. One of this job ends the job."""
        index = introduction.worker
        if introduction.cluster != _digest(self._cluster):
            self._warn_of_drop(writer, "of another job")
            return (
                f"worker {index} has other addresses than worker 0, which has"
                f" {list(self._cluster.workers)}. Give all workers the same, in the same order."
            )
        if not 1 <= index < self._cluster.count or index in self._joined:
            self._mismatch = (
                f"two processes claim to be worker {index}. Give each process its own index."
            )
        for name in sorted({*self._settings, *introduction.settings}):
            expected = self._settings.get(name)
            value = introduction.settings.get(name)
            if expected != value and not self._mismatch:
                self._mismatch = (
                    f"{self._cluster.name(index)} has {name} {value}, but {self._cluster.name(0)}"
                    f" has {expected}. Give all workers the same value."
                )
        for gpu in introduction.gpus:
            user = self._users.setdefault(gpu, index)
            if user != index and not self._mismatch:
                self._mismatch = (
                    f"{self._cluster.name(index)} and {self._cluster.name(user)} both use {gpu}."
                    " Start no more workers on a host than it has GPUs, with LOCAL_RANK or"
                    " CUDA_VISIBLE_DEVICES of their own; or a single process, which trains on"
                    " several GPUs with --model-gpus 0 1."
                )
        return self._mismatch

    def _warn_of_drop(self, writer: asyncio.StreamWriter, reason: str) -> None:
        """Log a connection that is not a worker's: the first one for each reason."""
        if reason not in self._drop_reasons:
            # None if the connection has already ended.
            address, *_ = writer.get_extra_info("peername") or ("an unknown address",)
            line = "rendezvous     a connection from %s was dropped (%s): no worker of this job"
            log.warning(line, address.removeprefix("::ffff:"), reason)
        self._drop_reasons.add(reason)


async def _join_chief(
    cluster: Cluster, port: int, settings: dict[str, str], gpus: Sequence[str], wait: _Wait
) -> list[str]:
    """Introduce this worker to the chief, and wait until the chief releases it; return the
    addresses of all workers.
    """
    reasons: set[str] = set()
    chief_host, chief_port = split_address(cluster.workers[0])
    while True:
        wait.check(cluster.name(0))
        try:
            opening = asyncio.open_connection(chief_host, chief_port, limit=LINE_BYTES)
            reader, writer = await asyncio.wait_for(opening, SILENCE_S)
            with closing(writer):
                host = writer.get_extra_info("sockname")[0]
                if ":" in host:
                    host = f"[{host}]"
                introduction = _Introduction(
                    worker=cluster.index,
                    cluster=_digest(cluster),
                    address=cluster.address or f"{host}:{port}",
                    settings=settings,
                    gpus=[*gpus],
                )
                writer.write(_encode(introduction))
                while not (answer := await _next_message(reader, _Answer)).go:
                    if answer.error and answer.is_mistake:
                        raise PlacementError(answer.error)
                    if answer.error:
                        raise PeerLost(answer.error)
                    wait.check(answer.waiting)
                return answer.workers or list(cluster.workers)
        # The chief has left, and may be restarted; or another program listens there.
        except UnknownPeer as reason:
            if str(reason) not in reasons:
                log.warning("rendezvous     the chief has ended a connection (%s)", reason)
            reasons.add(str(reason))
        # It does not listen yet, or its name does not resolve yet.
        except (OSError, asyncio.TimeoutError):
            pass
        await asyncio.sleep(RETRY_S)


def _digest(cluster: Cluster) -> str:
    """Return a hash of all addresses, which would be long in each introduction."""
    return hashlib.sha256(json.dumps(cluster.workers).encode()).hexdigest()


async def _next_message(reader: asyncio.StreamReader, kind: type[_Message]) -> _Message:
    """Return the next line of the other end; raise UnknownPeer if it is too late or malformed."""
    try:
        line = await asyncio.wait_for(reader.readline(), SILENCE_S)
    except asyncio.TimeoutError:
        raise UnknownPeer("too slow") from None
    except ValueError:
        raise UnknownPeer(f"a line of more than {LINE_BYTES:,} bytes") from None
    except OSError:
        line = b""
    if not line.endswith(b"\n"):
        raise UnknownPeer("closed early")
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        raise UnknownPeer("malformed") from None


def _encode(message: BaseModel) -> bytes:
    return message.model_dump_json().encode() + b"\n"
