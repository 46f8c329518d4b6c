"""Restricts servers to the loopback interface. No TensorFlow, but made for it: its servers listen
on all interfaces.
"""

import os
import socket
import stat
from collections.abc import Iterator


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback IPv4 address, also abbreviated as in
    `127.1`.

    No name is resolved.
    """
    try:
        address = socket.inet_aton(host)
    except OSError:
        return host == "localhost"
    return address[0] == 127 and host.split() == [host]  # inet_aton ignores what follows a space


def bind_to_loopback(port: int) -> bool:
    """Bind the sockets by which this process listens on a port to the loopback interface (Linux 5.7
    and later).

    Returns:
        whether this was possible.
    """
    if not hasattr(socket, "SO_BINDTODEVICE"):
        return False
    bound = False
    for listening in listening_sockets(port):
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        except PermissionError:
            return False
        bound = True
    return bound


def listening_sockets(port: int) -> Iterator[socket.socket]:
    """Yield copies of all sockets by which this process listens on a port; each is closed before
    the next.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            opened = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed since the listing, or the listing itself
            continue
        with opened:
            internet = opened.family in (socket.AF_INET, socket.AF_INET6)
            if (
                internet
                and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and opened.getsockname()[1] == port
            ):
                yield opened
