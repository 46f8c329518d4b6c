"""Compare reading through a data service with reading in the training process.

    python benchmarks/data_service.py
    python benchmarks/data_service.py --train-data CORPUS --workers 1 2 --batches 2000

The benchmark starts the service on this machine, where its workers share the cores with the reader,
so the batches per second are a lower bound for workers on other machines. The processor time of
this process is the same with remote workers: it is the cost of reading during training. The
benchmark also compares the first batches of both readers bit for bit.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.config.schema import Config, DataConfig
from myxtts.errors import TrainingError

if TYPE_CHECKING:  # these import TensorFlow, which takes seconds
    from myxtts.data.reading import ReadBatches, Reader

SERVER = Path(__file__).resolve().parents[1] / "utilities" / "data_service.py"
REFERENCE_SAMPLES = 65_536
WARM_UP = 600  # batches before the measurement, so that it covers long jobs
COMPARED = 64


class Measurement(NamedTuple):
    """Figures of one reader.

    Attributes:
        cpu_ms: processor time of this process per batch.
        growth_mib: growth of the dispatcher's memory.
        first: the first batches, for comparison.
    """

    batches_per_s: float
    mib_per_s: float
    cpu_ms: float
    growth_mib: float
    first: list[dict]


def main() -> int:
    arguments = parse()
    read_locally, read_by_service = open_readers(arguments)
    print(
        "| read by | batches/s | MiB/s | processor time here, ms per batch | dispatcher grows, MiB"
        " per 1,000 batches |"
    )
    print("|---|---|---|---|---|")
    local = measure(read_locally, arguments.batches)
    print(row("this process", local, "–"), flush=True)
    for workers in arguments.workers:
        with service(workers) as (address, dispatcher):
            served = measure(
                lambda address=address: read_by_service(address), arguments.batches, dispatcher
            )
        growth = f"{served.growth_mib * 1000 / arguments.batches:.1f}"
        print(row(f"{workers} worker{'s' * (workers > 1)}", served, growth), flush=True)
        if not are_equal(local.first, served.first):
            print("error: the service delivered different batches", file=sys.stderr)
            return 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--train-data",
        metavar="CORPUS",
        default=None,
        help="corpus, as for train_main.py (default: the demo corpus)",
    )
    parser.add_argument(
        "--workers",
        type=bounded(int, 1, 64),
        nargs="+",
        default=[1, 2],
        help="numbers of workers to measure",
    )
    parser.add_argument(
        "--batches", type=bounded(int, 100), default=1000, help="number of batches to time"
    )
    parser.add_argument(
        "--batch-size",
        type=bounded(int, 1, 1024),
        default=DataConfig().batch_size,
        help="utterances in a batch",
    )
    return parser.parse_args()


def open_readers(
    arguments: argparse.Namespace,
) -> "tuple[Callable[[], ReadBatches], Callable[[str], ReadBatches]]":
    """Return two functions that read TTS batches endlessly: in this process, and by the service."""
    from myxtts.batch import TTS_INPUTS
    from myxtts.data.batch_plan import Pass, planned_batches
    from myxtts.data.dataset import ensure_demo_corpus, load_corpora
    from myxtts.data.manifest import LengthRule
    from myxtts.data.reading import LocalReader, rows_from_files
    from myxtts.data.service import ServiceReader

    data = DataConfig(
        train_data=arguments.train_data or str(ensure_demo_corpus()),
        batch_size=arguments.batch_size,
        validation_fraction=0.0,
        text_frontend="characters",
    )
    with tempfile.TemporaryDirectory() as folder:
        corpus, _, _ = load_corpora(Config(data=data), Path(folder), LengthRule())
    settings = (corpus.manifest, TTS_INPUTS, REFERENCE_SAMPLES, data)

    def read(reader: "Reader") -> "ReadBatches":
        planned = planned_batches(
            corpus.plan, corpus.manifest, Pass(), seed=0, reference_samples=REFERENCE_SAMPLES
        )
        return reader.read(planned, "/CPU:0")

    def read_locally() -> "ReadBatches":
        return read(LocalReader(*settings, rows_from_files(corpus.manifest, native_loading=True)))

    return read_locally, lambda address: read(ServiceReader(address, *settings))


def measure(
    read: "Callable[[], ReadBatches]", batches: int, dispatcher: int | None = None
) -> Measurement:
    """Time some batches after a warm-up.

    Args:
        dispatcher: process id.
    """
    with closing(read()) as source:
        first = [waves for _, waves in islice(source, COMPARED)]
        for _ in islice(source, WARM_UP - COMPARED):
            pass
        before_mib = memory_mib(dispatcher)
        started_s, cpu_s = time.perf_counter(), cpu_seconds()
        read_bytes = sum(
            waves[name].numpy().nbytes
            for _, waves in islice(source, batches)
            for name in ("pcm", "reference_pcm")
        )
        elapsed_s, cpu_s = time.perf_counter() - started_s, cpu_seconds() - cpu_s
    growth_mib = memory_mib(dispatcher) - before_mib
    return Measurement(
        batches / elapsed_s,
        read_bytes / elapsed_s / 2**20,
        1e3 * cpu_s / batches,
        growth_mib,
        first,
    )


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def service(workers: int) -> Iterator[tuple[str, int]]:
    """Start a data service on this machine; yield its address and the process id of its dispatcher.

    Raises:
        TrainingError: a server ends before it listens.
    """
    with ExitStack() as resources:

        def start(*arguments: str) -> tuple[int, int]:
            """Return the port and the process id of a server."""
            errors = resources.enter_context(tempfile.TemporaryFile("w+"))
            command = [sys.executable, "-u", SERVER, *arguments]
            program = resources.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            )
            resources.callback(program.kill)
            for line in program.stdout:
                if "listens on port" in line:
                    return int(line.split()[-1]), program.pid
            errors.seek(0)
            raise TrainingError(
                f"the {arguments[0]} ended with code {program.wait()} before it"
                f" listened:\n{errors.read()}"
            )

        port, dispatcher = start("dispatcher", "--port", "0")
        for _ in range(workers):
            start("worker", "--dispatcher", f"127.0.0.1:{port}")
        yield f"grpc://127.0.0.1:{port}", dispatcher


def memory_mib(process: int | None) -> float:
    if process is None:
        return 0.0
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def are_equal(left: list[dict], right: list[dict]) -> bool:
    """Return whether two lists of batches are equal, bit for bit."""

    def bytes_of(batch: dict) -> dict[str, bytes]:
        return {name: np.asarray(value).tobytes() for name, value in batch.items()}

    return all(bytes_of(a) == bytes_of(b) for a, b in zip(left, right, strict=True))


def row(name: str, measured: Measurement, growth: str) -> str:
    rates = f"{measured.batches_per_s:.0f} | {measured.mib_per_s:.0f} | {measured.cpu_ms:.1f}"
    return f"| {name} | {rates} | {growth} |"


if __name__ == "__main__":
    sys.exit(report_errors(main))
