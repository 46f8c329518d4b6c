"""Rendezvous: wait until all workers have started, and verify that all workers have the same settings. No TensorFlow.

TensorFlow would wait too, but silently and without reacting to Ctrl-C. Here the chief listens on its port, each other
worker connects and introduces itself, and the chief releases all of them together. The messages are lines of JSON. They
are not encrypted, like all later communication: a cluster needs a private network.
"""

import json
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress

from myxtts.distributed.cluster import Cluster, split_address
from myxtts.errors import PlacementError

START_TIMEOUT_S = 600.0  # a node may have to fetch an image first
FIRST_REPORT_S = 5.0  # waiting time before the first log line
REPORT_EVERY_S = 30.0
RETRY_S = 0.5
INTRODUCTION_TIMEOUT_S = 2.0  # a worker introduces itself at once
CHIEF_TIMEOUT_S = 30.0  # the chief sends a message every RETRY_S, unless strangers keep it busy
MAX_LINE_BYTES = 1 << 20

log = logging.getLogger(__name__)


def rendezvous(
    cluster: Cluster,
    settings: Mapping[str, str],
    timeout_s: float = START_TIMEOUT_S,
    report: Callable[[str], None] = log.info,
) -> None:
    """Wait until all workers have started, and verify that all workers have the same settings.

    The worker's port is free again on return, for TensorFlow's server.

    Args:
        settings: values that must be the same on all workers, by their names in messages, such as `GPUs`.
        timeout_s: maximum time to wait.
        report: receives a log line about the missing workers now and then.

    Raises:
        PlacementError: a worker did not arrive in time, has started twice or has other settings than the chief; or the
            port is in use.
    """
    wait = _Wait(timeout_s, report)
    with _bind_port(cluster) as listener:
        if cluster.is_chief:
            _gather_workers(cluster, dict(settings), listener, wait)
        else:
            _join_chief(cluster, dict(settings), wait)


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
                f"all workers must start together, but {missing} did not arrive within {self._timeout_s:g} s. Look at "
                "the log there; the hosts must reach each other at the addresses of the cluster."
            )
        if waited_s >= self._next_report_s:
            self._report(f"waiting        for {missing}, {waited_s:.0f} s of at most {self._timeout_s:g} s")
            self._next_report_s += REPORT_EVERY_S


def _bind_port(cluster: Cluster) -> socket.socket:
    """Return a socket on this worker's port, which shows that the port is free; the chief's socket listens."""
    host, port = split_address(cluster.address)
    is_local = host == "localhost" or host.startswith("127.")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1" if is_local else "", port))
        if cluster.is_chief:
            listener.listen(cluster.count + 16)
    except OSError as error:
        listener.close()
        raise PlacementError(
            f"this process is {cluster.name()}, but it cannot use port {port}: {error.strerror}. "
            "End the process that uses the port, or give the workers other ports."
        ) from error
    return listener


def _gather_workers(cluster: Cluster, settings: dict, listener: socket.socket, wait: _Wait) -> None:
    """Wait as the chief for all other workers, and release them."""
    arrived: dict[int, socket.socket] = {}
    listener.settimeout(RETRY_S)
    with ExitStack() as resources:
        resources.callback(lambda: _close(arrived.values()))
        while len(arrived) < cluster.count - 1:
            arrived = {index: worker for index, worker in arrived.items() if not _has_left(worker)}
            missing = " and ".join(cluster.name(index) for index in range(1, cluster.count) if index not in arrived)
            _send(arrived.values(), {"waiting": missing})
            try:
                wait.check(missing)
            except PlacementError as error:
                _send(arrived.values(), {"error": str(error)})
                raise
            try:
                visitor, _ = listener.accept()
            except TimeoutError:
                continue
            introduction = _receive(visitor, INTRODUCTION_TIMEOUT_S)
            index = introduction.get("worker")
            if not isinstance(index, int) or not isinstance(introduction.get("settings"), dict):  # a port scanner
                visitor.close()
                continue
            if mismatch := _mismatch(cluster, settings, introduction, arrived):
                with visitor:
                    _send([visitor, *arrived.values()], {"error": mismatch})
                raise PlacementError(mismatch)
            arrived[index] = visitor
        _send(arrived.values(), {"go": True})


def _mismatch(cluster: Cluster, settings: dict, introduction: dict, arrived: Mapping[int, socket.socket]) -> str:
    """Return why a worker cannot take part; empty if it can."""
    index = introduction["worker"]
    if introduction.get("workers") != list(cluster.workers):
        return (
            f"worker {index} has the cluster {introduction.get('workers')}, but worker 0 has {list(cluster.workers)}. "
            "Give all workers the same addresses, in the same order."
        )
    if not 1 <= index < cluster.count or index in arrived:
        return f"two processes claim to be worker {index}. Give each process its own index."
    for name in sorted({*settings, *introduction["settings"]}):
        expected, value = settings.get(name), introduction["settings"].get(name)
        if expected != value:
            return (
                f"{cluster.name(index)} has {name} {value}, but {cluster.name(0)} has {expected}. "
                "Give all workers the same value."
            )
    return ""


def _join_chief(cluster: Cluster, settings: dict, wait: _Wait) -> None:
    """Introduce this worker to the chief, and wait until the chief releases it."""
    missing = cluster.name(0)
    while True:
        wait.check(missing)
        try:
            chief = socket.create_connection(split_address(cluster.workers[0]), timeout=RETRY_S)
        except OSError:  # it does not listen yet, or its name does not resolve yet
            time.sleep(RETRY_S)
            continue
        with chief:
            _send([chief], {"worker": cluster.index, "workers": cluster.workers, "settings": settings})
            while message := _receive(chief, CHIEF_TIMEOUT_S):
                if "error" in message:
                    raise PlacementError(message["error"])
                if "go" in message:
                    return
                missing = str(message.get("waiting"))
                wait.check(missing)
        missing = cluster.name(0)
        time.sleep(RETRY_S)  # the chief has left; it may be restarted


def _send(peers: Iterable[socket.socket], message: dict) -> None:
    for peer in peers:
        with suppress(OSError):  # `_has_left` notices a broken connection
            peer.settimeout(INTRODUCTION_TIMEOUT_S)
            peer.sendall(json.dumps(message).encode() + b"\n")


def _receive(peer: socket.socket, timeout_s: float) -> dict:
    """Return the next line as an object; empty if the peer has left, is silent or sends anything else."""
    peer.settimeout(timeout_s)
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            received = peer.recv(1)
            if not received:
                return {}
            line += received
        message = json.loads(line)
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}


def _has_left(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _close(peers: Iterable[socket.socket]) -> None:
    for peer in peers:
        peer.close()
