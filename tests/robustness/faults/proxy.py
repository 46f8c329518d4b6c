"""A proxy on this machine that drops, delays or garbles what it passes on. No TensorFlow."""

import os
import random
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import Literal, NamedTuple

from tests.robustness.faults.children import die_with

CHUNK = 1 << 16


class Disturbance(NamedTuple):
    """What happens to the network: it drops all connections, delays them once, or garbles a byte of
    each chunk.
    """

    kind: Literal["drop", "delay", "garble"]  # of all connections; `delay` holds all bytes once
    after_bytes: int  # of all connections together, before it begins
    seconds: float = 0.0  # of a delay

    def __str__(self) -> str:
        for_s = f" for {self.seconds:.1f} s" if self.kind == "delay" else ""
        return f"the network {self.kind}s{for_s} after {self.after_bytes:,} bytes"


class Proxy:
    """A process that listens on a port of its own for each of some ports, and passes on what it
    gets; `ports` maps each port to that of the proxy.
    """

    def __init__(self, targets: list[int], disturbance: Disturbance, seed: int):
        listeners = {target: socket.create_server(("127.0.0.1", 0)) for target in targets}
        self.ports = {target: server.getsockname()[1] for target, server in listeners.items()}
        parent, self.pid = os.getpid(), os.fork()
        if self.pid == 0:
            try:
                die_with(parent)
                _Network(disturbance, seed).serve(listeners)
            finally:
                os._exit(0)
        for listener in listeners.values():
            listener.close()

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class _Network:
    def __init__(self, disturbance: Disturbance, seed: int):
        self._disturbance, self._random = disturbance, random.Random(seed)
        self._passed, self._lock = 0, threading.Lock()
        self._end_of_delay_s = 0.0

    def serve(self, listeners: dict[int, socket.socket]) -> None:
        for target, listener in listeners.items():
            threading.Thread(target=self._accept, args=(target, listener), daemon=True).start()
        threading.Event().wait()

    def _accept(self, target: int, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", target), timeout=10.0)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := self._disturbed(source.recv(CHUNK)):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _disturbed(self, data: bytes) -> bytes:
        """Return the bytes to pass on; none closes the connection."""
        kind, after_bytes, seconds = self._disturbance
        with self._lock:
            self._passed += len(data)
            if not data or self._passed <= after_bytes:
                return data
            if kind == "drop":
                return b""
            if kind == "garble":
                place = self._random.randrange(len(data))
                changed = data[place] ^ self._random.randint(1, 255)
                return data[:place] + bytes([changed]) + data[place + 1 :]
            self._end_of_delay_s = self._end_of_delay_s or time.monotonic() + seconds
            wait_s = self._end_of_delay_s - time.monotonic()
        time.sleep(max(0.0, wait_s))
        return data
