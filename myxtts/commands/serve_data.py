"""`myxtts serve-data`: a dispatcher or a worker of a tf.data service, until a signal ends it.

Exit code 130 after Ctrl-C, 143 after SIGTERM.

docs/guides/data_service.md describes a set-up with several machines.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import NoReturn

from myxtts.commands.console import report_errors
from myxtts.commands.parser import CommandParser, bounded
from myxtts.distributed.cluster import host_and_port, is_host
from myxtts.distributed.processes import child_setup
from myxtts.errors import ConfigError

NAME = "serve-data"
HELP = "Read and decode batches for training runs in other processes or on other machines."

log = logging.getLogger("myxtts.data_service")


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(
        prog=prog, description=HELP, epilog="Stop it with Ctrl-C (exit code 130) or SIGTERM (143)."
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    dispatcher = kinds.add_parser(
        "dispatcher", help="distributes batches over the workers; one for a run"
    )
    dispatcher.add_argument(
        "--port",
        metavar="N",
        type=bounded(int, 0, 65535),
        default=5050,
        help="port to listen on; 0 chooses a free one",
    )
    worker = kinds.add_parser(
        "worker", help="reads and decodes; one or more, on any machine that has the corpus"
    )
    worker.add_argument(
        "--dispatcher", metavar="HOST:PORT", required=True, help="address of the dispatcher"
    )
    worker.add_argument(
        "--port",
        metavar="N",
        type=bounded(int, 0, 65535),
        default=0,
        help="port to listen on; 0 chooses a free one",
    )
    for server in (dispatcher, worker):
        server.add_argument(
            "--host",
            metavar="HOST",
            default="127.0.0.1",
            help=(
                "name or address at which other machines reach this one; by default, only this"
                " machine can connect"
            ),
        )
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    return run_until_signal(lambda: report_errors(lambda: serve(options)))


def run_until_signal(program: Callable[[], int]) -> int:
    """Run a program in a child process, and kill it at the first SIGINT or SIGTERM.

    TensorFlow holds Python's global lock while it starts a server, which takes forever if the
    dispatcher does not answer, and while it stops one, which waits for all open requests. No
    handler of a signal and no other thread runs meanwhile. The parent has no TensorFlow and nothing
    to wait for. A server has no state to lose.

    Returns:
        the exit code of the program, or 128 + the number of the signal that ended it.
    """
    received, child = 0, 0

    def end(number, _frame) -> None:
        nonlocal received
        received = received or number
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    # Set even where SIGINT was ignored, as a shell does for commands in the background.
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    die_with_parent = child_setup(os.getpid())
    child = os.fork()
    if not child:
        _run_child(program, die_with_parent)
    # Before the handler knew the child.
    if received:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    for number, handler in before.items():
        signal.signal(number, handler)
    if received:
        return 128 + received
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _run_child(program: Callable[[], int], die_with_parent: Callable[[], None]) -> NoReturn:
    """Run a program, and end this process with its exit code."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            # A signal to the whole group ends this process without Python.
            signal.signal(number, signal.SIG_DFL)
        die_with_parent()
        code = program()
    except BaseException:
        # Nothing may reach the code of the parent, which a fork returns into.
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: `>&-` in a shell
            with suppress(OSError):
                stream.flush()
        os._exit(code)


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal ends this process."""
    if not is_host(options.host):
        raise ConfigError(
            f"--host is {options.host[:80]!r}, but must be a host name or an IPv4 address."
        )
    with start_server(options) as port:
        log.info("%s of the data service listens on port %d", options.kind, port)
        if options.kind == "dispatcher":
            address = f"{options.host}:{port}"
            log.info(
                "workers: --dispatcher %s; training: --data-service grpc://%s", address, address
            )
        threading.Event().wait()
    return 0


def start_server(options: argparse.Namespace) -> AbstractContextManager[int]:
    dispatcher = (
        host_and_port(options.dispatcher, "--dispatcher") if options.kind == "worker" else None
    )
    # Imports TensorFlow, which takes seconds.
    from myxtts.data import service_server

    if dispatcher is None:
        return service_server.dispatcher(options.host, options.port)
    return service_server.worker(*dispatcher, options.host, options.port)
