"""`myxtts serve-data`: a dispatcher or a worker of a tf.data service, until Ctrl-C (exit code 130) or SIGTERM (143).

docs/guides/data_service.md describes a set-up with several machines.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from myxtts.commands.console import report_errors
from myxtts.commands.parser import CommandParser, bounded
from myxtts.config.address import host_and_port, is_host
from myxtts.errors import ConfigError

NAME = "serve-data"
HELP = "Read and decode batches for training runs in other processes or on other machines."

log = logging.getLogger("myxtts.data_service")


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog=prog, description=HELP, epilog="Stop it with Ctrl-C (exit code 130) or SIGTERM (143).")
    kinds = parser.add_subparsers(dest="kind", required=True)
    dispatcher = kinds.add_parser("dispatcher", help="distributes batches over the workers; one for a run")
    dispatcher.add_argument(
        "--port", metavar="N", type=bounded(int, 0, 65535), default=5050, help="port to listen on; 0 chooses a free one"
    )
    worker = kinds.add_parser("worker", help="reads and decodes; one or more, on any machine that has the corpus")
    worker.add_argument("--dispatcher", metavar="HOST:PORT", required=True, help="address of the dispatcher")
    worker.add_argument(
        "--port", metavar="N", type=bounded(int, 0, 65535), default=0, help="port to listen on; 0 chooses a free one"
    )
    for server in (dispatcher, worker):
        server.add_argument(
            "--host",
            metavar="HOST",
            default="127.0.0.1",
            help="name or address at which other machines reach this one; by default, only this machine can connect",
        )
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> NoReturn:
    """Serve until a signal arrives; never returns, because a server that does not stop would keep the process alive."""
    options = parse(argv, prog)
    try:
        code = report_errors(lambda: serve(options))
    except SystemExit as stop:  # from SIGTERM
        code = int(stop.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(options: argparse.Namespace) -> int:
    if not is_host(options.host):
        raise ConfigError(f"--host is {options.host[:80]!r}, but must be a host name or an IPv4 address.")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with start_server(options) as port:
        log.info("%s of the data service listens on port %d", options.kind, port)
        if options.kind == "dispatcher":
            address = f"{options.host}:{port}"
            log.info("workers: --dispatcher %s; training: --data-service grpc://%s", address, address)
        threading.Event().wait()
    return 0


def start_server(options: argparse.Namespace) -> AbstractContextManager[int]:
    dispatcher = host_and_port(options.dispatcher, "--dispatcher") if options.kind == "worker" else None
    from myxtts.data.readers import service_server  # imports TensorFlow, which takes seconds

    if dispatcher is None:
        return service_server.dispatcher(options.host, options.port)
    return service_server.worker(*dispatcher, options.host, options.port)
