"""A proxy on this machine that drops, delays or garbles what it passes on. No TensorFlow."""

import os
import random
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from tests.robustness.faults.children import die_with

CHUNK = 1 << 16


@dataclass(frozen=True)
class Disturbance:
    """What happens to the network.

    Attributes:
        kind: `drop` closes each connection, also later ones; `delay` holds all bytes once; `garble`
            changes one byte of each chunk.
        after_bytes: passed on, of all connections together, before it begins.
        seconds: of a delay.
    """

    kind: Literal["drop", "delay", "garble"]
    after_bytes: int
    seconds: float = 0.0

    def __str__(self) -> str:
        for_s = f" for {self.seconds:.1f} s" if self.kind == "delay" else ""
        return f"the network {self.kind}s{for_s} after {self.after_bytes:,} bytes"


class Proxy:
    """A process that listens on a port of its own for each of some ports, and passes on what it
    gets.

    Attributes:
        ports: port of a program -> port of the proxy.
    """

    def __init__(self, targets: list[int], disturbance: Disturbance, seed: int):
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in targets]
        self.ports = {
            target: listener.getsockname()[1]
            for target, listener in zip(targets, listeners, strict=True)
        }
        parent, self._pid = os.getpid(), os.fork()
        if self._pid == 0:
            try:
                die_with(parent)
                _Network(disturbance, seed).serve(dict(zip(targets, listeners, strict=True)))
            finally:
                os._exit(0)
        for listener in listeners:
            listener.close()

    @property
    def pid(self) -> int:
        return self._pid

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


class _Network:
    def __init__(self, disturbance: Disturbance, seed: int):
        self._disturbance, self._random = disturbance, random.Random(seed)
        self._passed, self._lock = 0, threading.Lock()
        self._end_of_delay_s: float | None = None

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
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                data = self._disturbed(data)
                if not data:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _disturbed(self, data: bytes) -> bytes:
        """Return the bytes to pass on; none closes the connection."""
        with self._lock:
            self._passed += len(data)
            if self._passed <= self._disturbance.after_bytes:
                return data
            if self._disturbance.kind == "drop":
                return b""
            if self._disturbance.kind == "garble":
                place = self._random.randrange(len(data))
                return (
                    data[:place]
                    + bytes([data[place] ^ self._random.randint(1, 255)])
                    + data[place + 1 :]
                )
            self._end_of_delay_s = (
                self._end_of_delay_s or time.monotonic() + self._disturbance.seconds
            )
            wait_s = self._end_of_delay_s - time.monotonic()
        time.sleep(max(0.0, wait_s))
        return data
