"""The servers of a data service: a dispatcher of batches, and workers that read them.

A worker runs any operation that it receives, with the permissions of its user, and nothing is
encrypted. TensorFlow's servers listen on every network interface; this module restricts them to the
loopback interface by default.
"""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from myxtts.distributed.cluster import bind_to_loopback, is_loopback
from myxtts.errors import ConfigError, DataError
from myxtts.tf_internals import dispatcher_config, worker_server_port

# Interval at which a worker learns which jobs have ended.
HEARTBEAT_S = 2
# The dispatcher ends jobs that no client has read for this time.
CLEAN_UP_S = 10
# The dispatcher forgets trainers without a heartbeat for this time.
TRAINER_TIMEOUT_S = 60
DISPATCHER_WAIT_S = 60

log = logging.getLogger(__name__)


@contextmanager
def dispatcher(host: str, port: int) -> Iterator[int]:
    """Run a dispatcher; the context is its port.

    Leaving it waits for open requests, with Python's global lock held.

    Args:
        host: name of this machine for trainers and workers; a loopback address restricts the
            dispatcher to it.
        port: 0 chooses a free port.

    Raises:
        ConfigError: the port is in use, or this system cannot restrict the dispatcher to the
            loopback interface.
    """
    _check_port_free(port)
    server = tf.data.experimental.service.DispatchServer(
        dispatcher_config(port, CLEAN_UP_S, TRAINER_TIMEOUT_S)
    )
    try:
        port = int(server.target.rpartition(":")[2])
        _restrict_to_loopback_or_warn("dispatcher", host, port)
        yield port
    finally:
        server.stop()


@contextmanager
def worker(dispatcher_host: str, dispatcher_port: int, host: str, port: int) -> Iterator[int]:
    """Run a worker of a dispatcher; the context is its port. Leaving it waits as for a dispatcher.

    Args:
        dispatcher_host, dispatcher_port: address of the dispatcher, which may start up to
            DISPATCHER_WAIT_S later.
        host: name of this machine for trainers and the dispatcher; a loopback address restricts the
            worker to it.
        port: 0 chooses a free port.

    Raises:
        ConfigError: see `dispatcher`; or other machines cannot reach this worker by its host.
        DataError: the dispatcher does not answer.
    """
    if is_loopback(host) and not is_loopback(dispatcher_host):
        raise ConfigError(
            f"the dispatcher is on {dispatcher_host}, but this worker is on {host}, where other"
            " machines cannot reach it. Give the name or address of this machine with --host."
        )
    if host == "0.0.0.0":
        raise ConfigError(
            "--host is 0.0.0.0, but trainers need an address to reach this worker. Give the address"
            " of this machine."
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
        _restrict_to_loopback_or_warn("worker", host, port)
        yield port
    finally:
        server.stop()


def _check_port_free(port: int) -> None:
    """Raise ConfigError if the port is in use: TensorFlow would share it."""
    with socket.socket() as probe:
        # Succeeds after a server that has just ended.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be used: {error.strerror}. Give another port, or 0 for a"
                " free one."
            ) from None


def _wait_for(host: str, port: int) -> None:
    deadline_s = time.monotonic() + DISPATCHER_WAIT_S
    logged = False
    while True:
        try:
            socket.create_connection((host, port), 5.0).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > deadline_s:
            raise DataError(
                f"no dispatcher has answered at {host}:{port} within {DISPATCHER_WAIT_S} s:"
                f" {reason}. Start `myxtts serve-data dispatcher` there first."
            )
        if not logged:
            log.info("waiting for the dispatcher at %s:%d (%s)", host, port, reason)
            logged = True
        time.sleep(0.5)


def _restrict_to_loopback_or_warn(role: str, host: str, port: int) -> None:
    if not is_loopback(host):
        log.warning(
            "Other machines can reach this %s through every network interface, without encryption"
            " or a password, and can then read and write files as this user. Use it only in private"
            " networks.",
            role,
        )
    elif not bind_to_loopback(port):
        raise ConfigError(
            f"this system cannot restrict the {role} to the loopback interface. Close port {port}"
            " with a firewall, and give the name of this machine with --host."
        )
