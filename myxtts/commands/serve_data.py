"""`myxtts serve-data`: a dispatcher or a worker of a tf.data service, until a signal ends it.

A shell shows exit code 130 after Ctrl-C and 143 after SIGTERM. docs/guides/data_service.md
describes a set-up with several machines.
"""

import argparse
import logging
import signal
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

from myxtts.commands.parser import CommandParser, add_flag, bounded
from myxtts.distributed.cluster import host_and_port, is_host
from myxtts.errors import ConfigError

NAME = "serve-data"
HELP = "Read and decode batches for training runs in other processes or on other machines."
DISPATCHER_PORT = 5050

log = logging.getLogger("myxtts.data_service")


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP, epilog="Stop it with Ctrl-C or SIGTERM.")
    kind = (
        "a dispatcher distributes batches over the workers, one for a run; workers read and decode,"
        " on any machine that has the corpus"
    )
    add_flag(parser, "kind", kind, choices=("dispatcher", "worker"))
    address = "address of the dispatcher, for a worker"
    add_flag(parser, "--dispatcher", address, metavar="HOST:PORT")
    port = f"port to listen on; 0, the default of a worker, a free one (default {DISPATCHER_PORT})"
    add_flag(parser, "--port", port, bounded(int, 0, 65535), "N")
    host = "name or address at which other machines reach this one (default: this machine alone)"
    add_flag(parser, "--host", host, metavar="HOST", default="127.0.0.1")
    options = parser.parse(argv)
    if (options.kind == "worker") != (options.dispatcher is not None):
        raise ConfigError("--dispatcher HOST:PORT is for a worker, which needs it.")
    if options.port is None:
        options.port = DISPATCHER_PORT if options.kind == "dispatcher" else 0
    return options


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    # TensorFlow holds Python's global lock while it starts a server, which takes forever if the
    # dispatcher does not answer, and while it stops one: no handler in Python would run. A server
    # has no state to lose. SIGINT is ignored where a shell started it in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if not is_host(options.host):
        raise ConfigError(
            f"--host is {options.host[:80]!r}, but must be a name, an IPv4 address or [IPv6]."
        )
    with start_server(options) as port:
        log.info("%s of the data service listens on port %d", options.kind, port)
        if options.kind == "dispatcher":
            workers = "workers: --dispatcher %s:%d; training: --data-service grpc://%s:%d"
            log.info(workers, *2 * (options.host, port))
        threading.Event().wait()
    return 0


def start_server(options: argparse.Namespace) -> AbstractContextManager[int]:
    if options.kind == "worker":
        name, number = host_and_port(options.dispatcher, "--dispatcher")
    # Imports TensorFlow, which takes seconds.
    from myxtts.data import service

    if options.kind == "worker":
        return service.worker(name, number, options.host, options.port)
    return service.dispatcher(options.host, options.port)
