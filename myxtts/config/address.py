"""Addresses of servers."""

import re

from myxtts.errors import ConfigError

EXAMPLE = "127.0.0.1:5050"
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?"
)  # labels: RFC 1035, 2.3.4
_PORT = re.compile(r"[0-9]{1,5}")


def host_and_port(text: str, name: str, scheme: str = "") -> tuple[str, int]:
    """Split `HOST:PORT`; the host is a name or an IPv4 address.

    Args:
        name: the flag or setting, for the message.
        scheme: prefix before the host, such as grpc://.

    Raises:
        ConfigError: the text has another form.
    """
    address = parse_address(text.removeprefix(scheme)) if text.startswith(scheme) else None
    if address is None:
        raise ConfigError(
            f"{name} is {text[:80]!r}, but must be {scheme}HOST:PORT, such as {scheme}{EXAMPLE}, "
            "with a host name or IPv4 address and a port from 1 to 65535."
        )
    return address


def parse_address(text: str) -> tuple[str, int] | None:
    """Return host and port of `HOST:PORT`; None for any other text."""
    host, _, port = text.rpartition(":")
    return (
        (host, int(port))
        if is_host(host) and _PORT.fullmatch(port) and 1 <= int(port) <= 65535
        else None
    )


def is_host(text: str) -> bool:
    """Return whether a text can be a host name or an IPv4 address."""
    return bool(_HOST.fullmatch(text))


def service_address(text: str) -> tuple[str, int]:
    """Return host and port of the setting `data_service`: grpc://HOST:PORT."""
    return host_and_port(text, "data_service", "grpc://")
