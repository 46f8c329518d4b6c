"""The servers of a data service: the dispatcher, which deals batches out, and workers, which read and decode them.

A worker runs whatever operations it is sent, with the rights of its user, and nothing is encrypted. TensorFlow's
servers listen on every network interface; here a server is kept to the loopback interface unless it is told otherwise.
"""

import ipaddress
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from myxtts.errors import ConfigError, DataError
from myxtts.tf_internals import dispatcher_config, worker_server_port

HEARTBEAT_S = 2  # of a worker, after which it knows of jobs that are no longer read
CLEAN_UP_S = 10  # the dispatcher ends jobs that nobody has read for so long
TRAINER_TIMEOUT_S = 60  # a trainer that says nothing for so long is gone
DISPATCHER_WAIT_S = 60
STOP_S = 10.0

log = logging.getLogger(__name__)


@contextmanager
def dispatcher(host: str, port: int) -> Iterator[int]:
    """A dispatcher for as long as the context lasts, with the port that it listens on.

    Args:
        host: as trainers and workers name this machine; a loopback address keeps the dispatcher to it.
        port: 0 takes a free one.

    Raises:
        ConfigError: the port is taken, or this system cannot keep the dispatcher to its machine.
    """
    _check_port_free(port)
    server = tf.data.experimental.service.DispatchServer(dispatcher_config(port, CLEAN_UP_S, TRAINER_TIMEOUT_S))
    try:
        port = int(server.target.rpartition(":")[2])
        _keep_to_loopback_or_warn("dispatcher", host, port)
        yield port
    finally:
        _stop(server)


@contextmanager
def worker(dispatcher_host: str, dispatcher_port: int, host: str, port: int) -> Iterator[int]:
    """A worker of a dispatcher for as long as the context lasts, with the port that it listens on.

    Args:
        dispatcher_host, dispatcher_port: of the dispatcher, which may start up to DISPATCHER_WAIT_S later.
        host: as trainers and the dispatcher name this machine; a loopback address keeps the worker to it.
        port: 0 takes a free one.

    Raises:
        ConfigError: as for `dispatcher`, or nobody elsewhere could reach this worker under its host.
        DataError: no dispatcher is there.
    """
    if is_loopback(host) and not is_loopback(dispatcher_host):
        raise ConfigError(
            f"The dispatcher is on {dispatcher_host}, but this worker on {host}, where trainers elsewhere do not find "
            "it. Give --host the name or address of this machine."
        )
    if host == "0.0.0.0":
        raise ConfigError(
            "A worker is reached by its --host, which cannot be 0.0.0.0. Give the address of this machine."
        )
    _check_port_free(port)
    _wait_for(dispatcher_host, dispatcher_port)
    server = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(
            dispatcher_address=f"{dispatcher_host}:{dispatcher_port}",
            worker_address=f"{host}:%port%",
            port=port,
            heartbeat_interval_ms=HEARTBEAT_S * 1000,
        )
    )
    try:
        port = worker_server_port(server)
        _keep_to_loopback_or_warn("worker", host, port)
        yield port
    finally:
        _stop(server)


def _stop(server) -> None:
    """Stop a server; it loses nothing where it is left, so not for longer than STOP_S.

    Now and then a worker did not end within 60 s of its signal, in runs of all tests; why was not found.
    """
    stopping = threading.Thread(target=server.stop, name="stop of a data service", daemon=True)
    stopping.start()
    stopping.join(STOP_S)
    if stopping.is_alive():
        log.warning("this server has not stopped within %.0f s: it is left as it is", STOP_S)


def is_loopback(host: str) -> bool:
    """Whether a host name or IPv4 address means the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_port_free(port: int) -> None:
    """TensorFlow shares the port with a server that already listens there, and each gets some of the requests."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a server that has just ended
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(
                f"--port {port} was asked for, but cannot be had: {error.strerror}. Give another, or 0 for a free one."
            ) from None


def _wait_for(host: str, port: int) -> None:
    waited_until_s = time.monotonic() + DISPATCHER_WAIT_S
    told = False
    while True:
        try:
            socket.create_connection((host, port), 5.0).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > waited_until_s:
            raise DataError(
                f"No dispatcher answers at {host}:{port} within {DISPATCHER_WAIT_S} s: {reason}. "
                "Start `python utilities/data_service.py dispatcher` there first."
            )
        if not told:
            log.info("waiting for the dispatcher at %s:%d (%s)", host, port, reason)
            told = True
        time.sleep(0.5)


def _keep_to_loopback_or_warn(what: str, host: str, port: int) -> None:
    if not is_loopback(host):
        log.warning(
            "This %s can be reached from other machines, through every network interface, without encryption and "
            "without a password. Who reaches it can read and write files as this user: private networks only.",
            what,
        )
    elif not _bind_to_loopback(port):
        raise ConfigError(
            f"This system cannot keep the {what} to its own machine. Close port {port} by a firewall, and give --host "
            "the name of this machine."
        )


def _bind_to_loopback(port: int) -> bool:
    """Make this process' listening sockets of a port deaf to all but the loopback interface (Linux 5.7 and later)."""
    if not hasattr(socket, "SO_BINDTODEVICE"):
        return False
    bound = False
    for own in listening_sockets(port):
        try:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        except PermissionError:
            return False
        bound = True
    return bound


def listening_sockets(port: int) -> Iterator[socket.socket]:
    """Those of this process that listen on a port, whoever made them; each is closed when the next is asked for."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            own = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed since the listing, as that itself
            continue
        with own:
            internet = own.family in (socket.AF_INET, socket.AF_INET6)
            if internet and own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and own.getsockname()[1] == port:
                yield own
