"""Servers that read and decode for a training on another machine, or in another process.

python utilities/data_service.py dispatcher
python utilities/data_service.py worker --dispatcher 127.0.0.1:5050
python train_main.py --train-data CORPUS --data-service grpc://127.0.0.1:5050

docs/guides/data_service.md tells how to use several machines.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors
from myxtts.config.address import host_and_port, is_host
from myxtts.errors import ConfigError

log = logging.getLogger("myxtts.data_service")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Servers that read and decode for a training on another machine, or in another process.",
        epilog="They run until Ctrl-C (exit code 130) or SIGTERM (143).",
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("dispatcher", help="deals batches out to the workers: one for a training")
    one.add_argument("--port", metavar="N", type=bounded(int, 0, 65535), default=5050, help="0 takes a free one")
    many = kinds.add_parser("worker", help="reads and decodes: one or more, on any machine that has the corpus")
    many.add_argument("--dispatcher", metavar="HOST:PORT", required=True, help="where the dispatcher listens")
    many.add_argument("--port", metavar="N", type=bounded(int, 0, 65535), default=0, help="0 takes a free one")
    for kind in (one, many):
        kind.add_argument(
            "--host",
            metavar="HOST",
            default="127.0.0.1",
            help="name or address of this machine for the others; the default keeps the server to this machine",
        )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    if not is_host(asked.host):
        raise ConfigError(f"--host is {asked.host[:80]!r}, but must be a host name or an IPv4 address.")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with server(asked) as port:
        log.info("%s of the data service listens on port %d", asked.kind, port)
        if asked.kind == "dispatcher":
            address = f"{asked.host}:{port}"
            log.info("workers: --dispatcher %s; training: --data-service grpc://%s", address, address)
        threading.Event().wait()
    return 0


def server(asked: argparse.Namespace) -> AbstractContextManager[int]:
    dispatcher = host_and_port(asked.dispatcher, "--dispatcher") if asked.kind == "worker" else None
    from myxtts.data.readers import service_server  # imports TensorFlow, which takes seconds

    if dispatcher is None:
        return service_server.dispatcher(asked.host, asked.port)
    return service_server.worker(*dispatcher, asked.host, asked.port)


def exit_code() -> int:
    try:
        return report_errors(main)
    except SystemExit as error:  # of SIGTERM, or --help
        return error.code


if __name__ == "__main__":
    code = exit_code()
    sys.stdout.flush()
    os._exit(code)  # a server that could not be stopped would keep the process
