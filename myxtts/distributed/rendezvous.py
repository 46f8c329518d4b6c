"""Rendezvous: wait until all workers have started, and verify that all workers have the same
settings. No TensorFlow.

TensorFlow would wait too, but silently and without reacting to Ctrl-C. Here the chief listens on
its port, each other worker connects and introduces itself, and the chief releases all of them
together. Other programs may connect as well: whoever does not introduce itself as a worker of this
job in time is dropped and counted. With a job token the messages are signed (`signed_lines`). They
are not encrypted, like all later communication: a cluster needs a private network.
"""

import logging
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from myxtts.distributed.cluster import Cluster, split_address
from myxtts.distributed.job_token import VARIABLE
from myxtts.distributed.loopback import is_loopback
from myxtts.distributed.signed_lines import (
    MALFORMED,
    NO_TOKEN,
    UNEXPECTED_TOKEN,
    LineReader,
    SignedLines,
    Stranger,
    TokenRefused,
    encode,
    new_nonce,
    nonce_in,
)
from myxtts.errors import PlacementError

START_TIMEOUT_S = 600.0  # a node may have to fetch an image first
FIRST_REPORT_S = 5.0  # waiting time before the first log line
REPORT_EVERY_S = 30.0
RETRY_S = 0.5
SEND_TIMEOUT_S = 2.0
CHIEF_TIMEOUT_S = 30.0  # the chief sends a message every RETRY_S
SHOWN_CHARACTERS = 1000  # of a message from another process

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a connection may take before it has introduced itself.

    Attributes:
        introduction_s: time from the connection to the end of the introduction; a worker introduces
            itself at once.
        line_bytes: length of a line.
        connections: how many at once, beside one of each worker.
    """

    introduction_s: float = 5.0
    line_bytes: int = 1 << 20
    connections: int = 32


def rendezvous(
    cluster: Cluster,
    settings: Mapping[str, str],
    timeout_s: float = START_TIMEOUT_S,
    report: Callable[[str], None] = log.info,
    limits: Limits = Limits(),
) -> None:
    """Wait until all workers have started, and verify that all workers have the same settings.

    The worker's port is free again on return, for TensorFlow's server.

    Args:
        settings: values that must be the same on all workers, by their names in messages, such as
            `GPUs`.
        timeout_s: maximum time to wait.
        report: receives a log line about the missing workers now and then.
        limits: of connections that may not be those of workers.

    Raises:
        PlacementError: a worker did not arrive in time, has started twice or has other settings
            than the chief; the chief has other addresses or another job token; or the port is in
            use.
    """
    wait = _Wait(timeout_s, report)
    with _bind_port(cluster) as listener:
        if cluster.is_chief:
            with _Gathering(cluster, dict(settings), listener, limits) as gathering:
                gathering.run(wait)
        else:
            _join_chief(cluster, dict(settings), wait, limits)


class _Wait:
    """Measures the waiting time, and reports it."""

    def __init__(self, timeout_s: float, report: Callable[[str], None]):
        self._start_s = time.monotonic()
        self._timeout_s, self._report = timeout_s, report
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
    """Return a socket on this worker's port, which shows that the port is free; the chief's socket
    listens.
    """
    host, port = split_address(cluster.address)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host if is_loopback(host) else "", port))
        if cluster.is_chief:
            listener.listen(cluster.count + 16)
    except OSError as error:
        listener.close()
        raise PlacementError(
            f"this process is {cluster.name()}, but it cannot use port {port}: {error.strerror}. "
            "End the process that uses the port, or give the workers other ports."
        ) from error
    return listener


@dataclass
class _Visitor:
    """A connection that has not introduced itself yet."""

    connection: socket.socket
    address: str
    nonce: str
    reader: LineReader
    deadline_s: float


@dataclass
class _Arrived:
    """A worker that has introduced itself."""

    connection: socket.socket
    lines: SignedLines

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; return whether the worker has taken it."""
        return _send(self.connection, self.lines.pack(message))


class _Gathering:
    """The chief's side: the workers that have arrived, and the connections that have not introduced
    themselves.

    No connection keeps another one waiting: the sockets do not block, and one that is not done in
    time is dropped.
    """

    def __init__(
        self, cluster: Cluster, settings: dict[str, str], listener: socket.socket, limits: Limits
    ):
        self._cluster, self._settings, self._limits = cluster, settings, limits
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._visitors: list[_Visitor] = []  # oldest first
        self._arrived: dict[int, _Arrived] = {}
        self._dropped: Counter[str] = Counter()  # by reason
        self._next_message_s = 0.0

    def __enter__(self) -> "_Gathering":
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        return self

    def __exit__(self, *_error: object) -> None:
        visitors = (visitor.connection for visitor in self._visitors)
        for connection in (*visitors, *(worker.connection for worker in self._arrived.values())):
            connection.close()
        self._selector.close()
        if self._dropped.total() > 1:  # the first one was logged at once
            reasons = ", ".join(
                f"{count} {reason}" for reason, count in self._dropped.most_common()
            )
            log.warning(
                "rendezvous     %d connections were dropped: %s", self._dropped.total(), reasons
            )

    def run(self, wait: _Wait) -> None:
        """Wait for all other workers, and release them."""
        while missing := self._missing():
            try:
                wait.check(missing)
            except PlacementError as error:
                self._send_all({"error": str(error)})
                raise
            if time.monotonic() >= self._next_message_s:
                self._send_all({"waiting": missing})
                self._next_message_s = time.monotonic() + RETRY_S
            for key, _ in self._selector.select(self._pause_s()):
                key.data()
            for visitor in self._late():
                self._drop(visitor, "too slow")
        self._send_all({"go": True})

    def _missing(self) -> str:
        absent = (index for index in range(1, self._cluster.count) if index not in self._arrived)
        return " and ".join(map(self._cluster.name, absent))

    def _pause_s(self) -> float:
        """Return how long to wait for a connection or a line."""
        due_s = min([self._next_message_s, *(visitor.deadline_s for visitor in self._visitors)])
        return max(0.0, due_s - time.monotonic())

    def _late(self) -> list[_Visitor]:
        return [visitor for visitor in self._visitors if visitor.deadline_s <= time.monotonic()]

    def _accept(self) -> None:
        try:
            connection, (address, _) = self._listener.accept()
        except OSError:  # it has ended before
            return
        connection.setblocking(False)
        reader = LineReader(connection, self._limits.line_bytes)
        deadline_s = time.monotonic() + self._limits.introduction_s
        visitor = _Visitor(connection, address, new_nonce(), reader, deadline_s)
        self._visitors.append(visitor)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._hear, visitor))
        _send(connection, {"nonce": visitor.nonce})
        if len(self._visitors) > self._limits.connections + self._cluster.count:
            self._drop(self._visitors[0], "too many at once")

    def _hear(self, visitor: _Visitor) -> None:
        """Receive what a visitor has sent, and let it in if that is the introduction of a
        worker.
        """
        if visitor not in self._visitors:  # dropped since its event
            return
        try:
            fields = visitor.reader.read()
            if fields is None:
                return
            lines = SignedLines(self._cluster.token, "chief", visitor.nonce, nonce_in(fields))
            introduction = _introduction(lines.unpack(fields))
        except Stranger as stranger:
            if isinstance(stranger, TokenRefused):
                _send(visitor.connection, {"refused": str(stranger)})
            self._drop(visitor, str(stranger))
            return
        self._receive(visitor, lines, introduction)

    def _receive(self, visitor: _Visitor, lines: SignedLines, introduction: dict[str, Any]) -> None:
        """Let a worker in.

        Raises:
            PlacementError: two processes claim to be this worker, or it has other settings.
        """
        worker, index = _Arrived(visitor.connection, lines), introduction["worker"]
        before = self._arrived.get(index)
        if before is not None and _has_ended(before.connection):
            self._lose(index, before)
        if error := _other_job(self._cluster, introduction):
            worker.send({"error": error})
            self._drop(visitor, "of another job")
            return
        if mismatch := _mismatch(self._cluster, self._settings, introduction, self._arrived):
            worker.send({"error": mismatch})
            self._send_all({"error": mismatch})
            raise PlacementError(mismatch)
        self._visitors.remove(visitor)
        self._arrived[index] = worker
        self._selector.modify(
            worker.connection, selectors.EVENT_READ, partial(self._lose, index, worker)
        )
        self._next_message_s = 0.0

    def _send_all(self, message: dict[str, Any]) -> None:
        for index, worker in list(self._arrived.items()):
            if not worker.send(message):
                self._lose(index, worker)

    def _lose(self, index: int, worker: _Arrived) -> None:
        """Forget a worker that has left; it sends nothing else, so it has left if there is
        something to receive.
        """
        if self._arrived.get(index) is worker:
            del self._arrived[index]
            self._close(worker.connection)

    def _drop(self, visitor: _Visitor, reason: str) -> None:
        """Close a connection that is not a worker's, and count it; the log says so once."""
        if not self._dropped:
            log.warning(
                "rendezvous     a connection from %s was dropped (%s). Only the workers of this job"
                " should reach port %d: close it to others. If this was a worker, give all workers"
                " the same addresses, job token and version of MyXTTS.",
                visitor.address,
                reason,
                split_address(self._cluster.address)[1],
            )
        self._dropped[reason] += 1
        self._visitors.remove(visitor)
        self._close(visitor.connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()


def _introduction(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message if it is an introduction. Raises Stranger otherwise."""
    index, workers, settings = (
        message.get("worker"),
        message.get("workers"),
        message.get("settings"),
    )
    if type(index) is not int or not isinstance(workers, list) or not isinstance(settings, dict):
        raise Stranger(MALFORMED)
    return message


def _other_job(cluster: Cluster, introduction: dict[str, Any]) -> str:
    """Return why a worker does not belong to this job; empty if it does."""
    if introduction["workers"] == list(cluster.workers):
        return ""
    return _shown(
        f"worker {introduction['worker']} has the cluster {introduction['workers']}, but worker 0"
        f" has {list(cluster.workers)}. Give all workers the same addresses, in the same order."
    )


def _mismatch(
    cluster: Cluster,
    settings: dict[str, str],
    introduction: dict[str, Any],
    arrived: Mapping[int, _Arrived],
) -> str:
    """Return why a worker of this job cannot take part; empty if it can."""
    index = introduction["worker"]
    if not 1 <= index < cluster.count or index in arrived:
        return f"two processes claim to be worker {index}. Give each process its own index."
    for name in sorted({*settings, *introduction["settings"]}):
        expected, value = settings.get(name), introduction["settings"].get(name)
        if expected != value:
            return _shown(
                f"{cluster.name(index)} has {name} {value}, but {cluster.name(0)} has {expected}. "
                "Give all workers the same value."
            )
    return ""


def _join_chief(cluster: Cluster, settings: dict[str, str], wait: _Wait, limits: Limits) -> None:
    """Introduce this worker to the chief, and wait until the chief releases it."""
    reasons: set[str] = set()  # of connections that have failed
    while True:
        wait.check(cluster.name(0))
        try:
            chief = socket.create_connection(split_address(cluster.workers[0]), timeout=RETRY_S)
        except OSError:  # it does not listen yet, or its name does not resolve yet
            time.sleep(RETRY_S)
            continue
        with chief:
            try:
                _wait_for_release(cluster, settings, chief, wait, limits)
                return
            # the chief has left, and may be restarted; or another program listens there
            except Stranger as stranger:
                if str(stranger) not in reasons:
                    log.warning(
                        "rendezvous     %s has ended a connection (%s)", cluster.name(0), stranger
                    )
                reasons.add(str(stranger))
        time.sleep(RETRY_S)


def _wait_for_release(
    cluster: Cluster, settings: dict[str, str], chief: socket.socket, wait: _Wait, limits: Limits
) -> None:
    """Introduce this worker on a connection, and wait until the chief releases it.

    Raises:
        Stranger: what listens there is not the chief, or has left.
        PlacementError: the chief has rejected this worker, or has given up.
    """
    reader, missing = LineReader(chief, limits.line_bytes), cluster.name(0)
    chief_nonce = nonce_in(_next_line(chief, reader, limits.introduction_s, wait, missing))
    nonce = new_nonce()
    lines = SignedLines(cluster.token, "worker", chief_nonce, nonce)
    introduction = {"worker": cluster.index, "workers": cluster.workers, "settings": settings}
    _send(chief, {"nonce": nonce, **lines.pack(introduction)})
    while True:
        fields = _next_line(chief, reader, CHIEF_TIMEOUT_S, wait, missing)
        if "refused" in fields:
            raise PlacementError(_refusal(cluster, str(fields["refused"])))
        message = lines.unpack(fields)
        if "error" in message:
            raise PlacementError(_shown(str(message["error"])))
        if "go" in message:
            return
        missing = _shown(str(message.get("waiting")))


def _refusal(cluster: Cluster, reason: str) -> str:
    """Return the message of a worker that the chief has refused."""
    found = {
        NO_TOKEN: "it has a job token, and this worker has none",
        UNEXPECTED_TOKEN: "this worker has a job token, and it has none",
    }.get(reason, "the two have different job tokens")
    return (
        f"{cluster.name(0)} refused {cluster.name()}: {found}. Give all workers the same one, with"
        f" --job-token of the launcher or in {VARIABLE}."
    )


def _next_line(
    chief: socket.socket, reader: LineReader, timeout_s: float, wait: _Wait, missing: str
) -> dict[str, Any]:
    """Return the next line of the chief. Raises Stranger if it takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        wait.check(missing)
        chief.settimeout(RETRY_S)
        fields = reader.read()
        if fields is not None:
            return fields
    raise Stranger("too slow")


def _send(connection: socket.socket, fields: dict[str, Any]) -> bool:
    """Send a line; return whether the other end has taken it within SEND_TIMEOUT_S."""
    timeout_s = connection.gettimeout()
    try:
        connection.settimeout(SEND_TIMEOUT_S)
        connection.sendall(encode(fields))
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(timeout_s)


def _has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _shown(text: str) -> str:
    """Return what another process has said without control characters and shortened, for a
    terminal.
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:SHOWN_CHARACTERS]
