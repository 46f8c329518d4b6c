"""Lines of JSON between a chief and a worker: bounded in length, and signed if the two share a
secret. No TensorFlow.

    chief                                               worker
    {"nonce": N}                                 →
                                                 ←      {"nonce": M, "body": "…", "mac": "…"}
    {"body": "…", "mac": "…"}, …                 →

Each body is a message as JSON, and each mac its HMAC-SHA256 (RFC 2104) with the secret as key, over
the sender, both nonces, the number of the line and the body. So each side proves that it has the
secret by signing the other's random nonce, the worker first, as in Python's
`multiprocessing.connection`. A recorded line is worth nothing in another connection, at another
place or in the other direction. Without a secret each mac is empty.
"""

import hashlib
import hmac
import json
import re
import secrets
import socket
from typing import Any, Literal

RECEIVE_BYTES = 1 << 16

Role = Literal["chief", "worker"]


NO_TOKEN = "without the job token"
UNEXPECTED_TOKEN = "with a job token that is not asked for"
OTHER_TOKEN = "with another job token"
MALFORMED = "malformed"


class Stranger(Exception):
    """The other end of a connection is no worker of this job; the message is the reason."""


class TokenRefused(Stranger):
    """The other end has another job token, or only one of the two has one."""


class LineReader:
    """Receives lines of JSON objects from a socket, which may be non-blocking or have a timeout.

    Args:
        max_bytes: maximum length of a line.
    """

    def __init__(self, connection: socket.socket, max_bytes: int):
        self._connection, self._max_bytes, self._received = connection, max_bytes, bytearray()

    def read(self) -> dict[str, Any] | None:
        """Receive once, unless there is a line already; return it, or None if it is not complete
        yet.

        Raises:
            Stranger: the line is too long or no object, or the connection has ended.
        """
        if b"\n" not in self._received and not self._receive():
            return None
        line, newline, rest = self._received.partition(b"\n")
        if len(line) > self._max_bytes:
            raise Stranger(f"a line of more than {self._max_bytes:,} bytes")
        if not newline:
            return None
        self._received = rest
        return _parsed(line)

    def _receive(self) -> bool:
        """Receive what is there; return whether there was something."""
        try:
            block = self._connection.recv(RECEIVE_BYTES)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            block = b""
        if not block:
            raise Stranger("closed early")
        self._received += block
        return True


def new_nonce() -> str:
    return secrets.token_hex(32)


def nonce_in(fields: dict[str, Any]) -> str:
    """Return the nonce of the other end. Raises Stranger if there is none."""
    nonce = fields.get("nonce")
    if not isinstance(nonce, str) or not re.fullmatch(r"[0-9a-f]{64}", nonce):
        raise Stranger(MALFORMED)
    return nonce


class SignedLines:
    """Signs the lines of one end of a connection, and verifies those of the other.

    Args:
        token: the shared secret; empty without one.
        role: of this end.
        chief_nonce, worker_nonce: of this connection.
    """

    def __init__(self, token: str, role: Role, chief_nonce: str, worker_nonce: str):
        self._token, self._role, self._nonces = token, role, (chief_nonce, worker_nonce)
        self._sent = self._received = 0

    def pack(self, message: dict[str, Any]) -> dict[str, str]:
        """Return the fields of the next line of this end."""
        body = json.dumps(message)
        mac = self._mac(self._role, self._sent, body)
        self._sent += 1
        return {"body": body, "mac": mac}

    def unpack(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the message of the next line of the other end.

        Raises:
            TokenRefused: it is not signed with the token of this end.
            Stranger: it is malformed.
        """
        body, mac = fields.get("body"), fields.get("mac")
        if not isinstance(body, str) or not isinstance(mac, str):
            raise Stranger(MALFORMED)
        expected = self._mac("worker" if self._role == "chief" else "chief", self._received, body)
        if not hmac.compare_digest(expected.encode(), _encoded(mac)):
            raise TokenRefused(
                UNEXPECTED_TOKEN if not expected else OTHER_TOKEN if mac else NO_TOKEN
            )
        self._received += 1
        return _parsed(_encoded(body))

    def _mac(self, sender: Role, number: int, body: str) -> str:
        if not self._token:
            return ""
        signed = "\n".join((sender, *self._nonces, str(number), body))
        return hmac.new(self._token.encode(), _encoded(signed), hashlib.sha256).hexdigest()


def encode(fields: dict[str, Any]) -> bytes:
    """Return a line with these fields."""
    return json.dumps(fields).encode() + b"\n"


def _parsed(line: bytes | bytearray) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Stranger(MALFORMED)
    return fields


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON may contain half of a surrogate pair
