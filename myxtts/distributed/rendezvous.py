"""The workers of a job wait for each other before TensorFlow starts, and see that they are about to do the same.

TensorFlow would wait, too, but in silence and without heeding Ctrl-C. Here the chief listens on its own port, the
others tell it who they are, and it sends all of them on together. The lines of JSON are not encrypted, as all that
follows is not: a cluster needs a private network.
"""

import json
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress

from myxtts.distributed.cluster import Cluster, split_address
from myxtts.errors import PlacementError

START_TIMEOUT_S = 600.0  # a node may have an image to fetch first
FIRST_WORD_S = 5.0  # of waiting, before it is spoken of
WORD_EVERY_S = 30.0
RETRY_S = 0.5
VISITOR_TIMEOUT_S = 2.0  # it speaks at once, or is none of ours
CHIEF_TIMEOUT_S = 30.0  # it speaks every RETRY_S, if no strangers keep it
LONGEST_LINE = 1 << 20

log = logging.getLogger(__name__)


def rendezvous(
    cluster: Cluster,
    metadata: Mapping[str, str],
    timeout_s: float = START_TIMEOUT_S,
    tell: Callable[[str], None] = log.info,
) -> None:
    """Wait until all workers are here, saying for whom; leaves the port free for TensorFlow's server.

    Args:
        about: what has to be the same on all workers, by its name in messages, such as `GPUs`.
        timeout_s: the most to wait.
        tell: takes a line for the log.

    Raises:
        PlacementError: a worker did not come in time, is there twice, or differs from the chief; the port is taken.
    """
    wait = _Wait(timeout_s, tell)
    with _own_port(cluster) as transcriber:
        if cluster.is_chief:
            _receive(cluster, dict(metadata), transcriber, wait)
        else:
            _visit(cluster, dict(metadata), wait)


class _Wait:
    """How long it has been, and when to speak of it."""

    def __init__(self, timeout_s: float, tell: Callable[[str], None]):
        self._began_s = time.monotonic()
        self._timeout_s, self._tell = timeout_s, tell
        self._next_word_s = FIRST_WORD_S

    def check(self, whom: str) -> None:
        """Say now and then for whom it waits. Raises PlacementError when the time is over."""
        waited_s = time.monotonic() - self._began_s
        if waited_s >= self._timeout_s:
            raise PlacementError(
                f"all workers were to start together, but {whom} did not come within {self._timeout_s:g} s. Look at "
                "the log there; the hosts have to reach each other by the names and ports of the cluster."
            )
        if waited_s >= self._next_word_s:
            self._tell(f"waiting        for {whom}, {waited_s:.0f} s of at most {self._timeout_s:g} s")
            self._next_word_s += WORD_EVERY_S


def _own_port(cluster: Cluster) -> socket.socket:
    """A socket on this worker's port, so that a port which is taken is found now; the chief's listens."""
    host, port = split_address(cluster.address)
    is_local = host == "localhost" or host.startswith("127.")
    transcriber = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    transcriber.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        transcriber.bind(("127.0.0.1" if is_local else "", port))
        if cluster.is_chief:
            transcriber.listen(cluster.count + 16)
    except OSError as error:
        transcriber.close()
        raise PlacementError(
            f"this process is {cluster.name()}, but port {port} cannot be had here: {error.strerror}. "
            "End what uses it, or give the workers other ports."
        ) from error
    return transcriber


def _receive(cluster: Cluster, metadata: dict, transcriber: socket.socket, wait: _Wait) -> None:
    """The chief's part: wait for all others, and send them on."""
    arrived: dict[int, socket.socket] = {}
    transcriber.settimeout(RETRY_S)
    with ExitStack() as opened:
        opened.callback(lambda: [one.close() for one in arrived.values()])
        while len(arrived) < cluster.count - 1:
            arrived = {index: one for index, one in arrived.items() if not _has_left(one)}
            whom = " and ".join(cluster.name(index) for index in range(1, cluster.count) if index not in arrived)
            _say(arrived.values(), {"waiting": whom})
            try:
                wait.check(whom)
            except PlacementError as error:
                _say(arrived.values(), {"refused": str(error)})
                raise
            try:
                visitor, _ = transcriber.accept()
            except TimeoutError:
                continue
            told = _hear(visitor, VISITOR_TIMEOUT_S)
            index = told.get("worker")
            if not isinstance(index, int) or not isinstance(told.get("about"), dict):  # a port scanner, a probe
                visitor.close()
                continue
            fault = _fault(cluster, metadata, told, arrived)
            if fault:
                with visitor:
                    _say([visitor, *arrived.values()], {"refused": fault})
                raise PlacementError(fault)
            arrived[index] = visitor
        _say(arrived.values(), {"go": True})


def _fault(cluster: Cluster, metadata: dict, told: dict, arrived: Mapping[int, socket.socket]) -> str:
    """Why a worker cannot take part; empty if it can."""
    index = told["worker"]
    if told.get("workers") != list(cluster.workers):
        return (
            f"worker {index} was told of the cluster {told.get('workers')}, but worker 0 of {list(cluster.workers)}. "
            "Give all of them the same addresses, in the same order."
        )
    if not 1 <= index < cluster.count or index in arrived:
        return f"two processes say that they are worker {index}. Give each an index of its own."
    for name in sorted({*metadata, *told["about"]}):
        here, there = metadata.get(name), told["about"].get(name)
        if here != there:
            return (
                f"{cluster.name(index)} has {name} {there}, but {cluster.name(0)} has {here}. "
                "All workers have to be the same in that."
            )
    return ""


def _visit(cluster: Cluster, metadata: dict, wait: _Wait) -> None:
    """The part of all others: tell the chief, and wait for its word."""
    whom = cluster.name(0)
    while True:
        wait.check(whom)
        try:
            chief = socket.create_connection(split_address(cluster.workers[0]), timeout=RETRY_S)
        except OSError:  # it does not listen yet, or has no name yet
            time.sleep(RETRY_S)
            continue
        with chief:
            _say([chief], {"worker": cluster.index, "workers": cluster.workers, "about": metadata})
            while told := _hear(chief, CHIEF_TIMEOUT_S):
                if "refused" in told:
                    raise PlacementError(told["refused"])
                if "go" in told:
                    return
                whom = str(told.get("waiting"))
                wait.check(whom)
        whom = cluster.name(0)
        time.sleep(RETRY_S)  # the chief has left; perhaps it is started again


def _say(others: Iterable[socket.socket], words: dict) -> None:
    for other in others:
        with suppress(OSError):  # that it has left is noticed elsewhere
            other.settimeout(VISITOR_TIMEOUT_S)
            other.sendall(json.dumps(words).encode() + b"\n")


def _hear(other: socket.socket, timeout_s: float) -> dict:
    """The next line as an object; empty where the other has left, is silent or talks of something else."""
    other.settimeout(timeout_s)
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
            received = other.recv(1)
            if not received:
                return {}
            line += received
        told = json.loads(line)
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _has_left(other: socket.socket) -> bool:
    other.setblocking(False)
    try:
        return other.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
