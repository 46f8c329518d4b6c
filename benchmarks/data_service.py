"""What reading by a data service costs and gains, against reading in the training's own process.

    python benchmarks/data_service.py
    python benchmarks/data_service.py --train-data CORPUS --workers 1 2 --batches 2000

The service is started for it on this machine, where its workers share the cores with the reader. So the batches a
second are a lower bound of what workers on other machines give. The processor time of this process is the same there:
it is what a training has to spare for its batches. The first batches of both ways are compared, bit for bit.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors
from myxtts.config.schema import Config, DataConfig

SERVER = Path(__file__).resolve().parents[1] / "utilities" / "data_service.py"
REFERENCE_SAMPLES = 65_536
WARM_UP = 600  # batches before the clock starts, so that the jobs are long ones
COMPARED = 64


class Measured(NamedTuple):
    """Of one way to read."""

    batches_per_s: float
    mib_per_s: float
    cpu_ms: float  # of this process, for a batch
    growth_mib: float  # of the dispatcher
    first: list[dict]


def main() -> int:
    asked = parse()
    read_here, read_by = readers(asked)
    print("| read by | batches/s | MiB/s | processor time here, ms a batch | dispatcher grows, MiB per 1,000 batches |")
    print("|---|---|---|---|---|")
    here = measured(read_here, asked.batches)
    print(row("this process", here, "–"), flush=True)
    for workers in asked.workers:
        with service(workers) as (address, dispatcher):
            served = measured(lambda address=address: read_by(address), asked.batches, dispatcher)
        growth = f"{served.growth_mib * 1000 / asked.batches:.1f}"
        print(row(f"{workers} worker{'s' * (workers > 1)}", served, growth), flush=True)
        if not same(here.first, served.first):
            print("error: the service gave other batches", file=sys.stderr)
            return 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--train-data", metavar="CORPUS", default=None, help="as train_main.py takes it (demo corpus)")
    parser.add_argument("--workers", type=bounded(int, 1, 64), nargs="+", default=[1, 2], help="of the service")
    parser.add_argument("--batches", type=bounded(int, 100), default=1000, help="batches that are timed")
    parser.add_argument(
        "--batch-size", type=bounded(int, 1, 1024), default=DataConfig().batch_size, help="utterances in one"
    )
    return parser.parse_args()


def readers(asked: argparse.Namespace) -> tuple[Callable[[], Iterator[dict]], Callable[[str], Iterator[dict]]]:
    """The batches of a voice without end, as this process reads them, and as the service at an address does."""
    from myxtts.batch import TTS_INPUTS
    from myxtts.data.dataset import demo_corpus, load_corpora
    from myxtts.data.plan_iterator import Position, planned_batches
    from myxtts.data.readers.files import rows_from_files, wave_batches
    from myxtts.data.readers.service import DataService

    data = DataConfig(
        train_data=asked.train_data or str(demo_corpus()),
        batch_size=asked.batch_size,
        validation_fraction=0.0,
        text_frontend="characters",
    )
    with tempfile.TemporaryDirectory() as folder:
        corpus, _, _ = load_corpora(Config(data=data), Path(folder))
    depths = (data.num_workers, data.buffer_size, "/CPU:0", data.prefetch_buffer_size)

    def planned():
        return planned_batches(corpus.plan, corpus.manifest, Position(), 0, REFERENCE_SAMPLES)

    def read_here():
        read_rows = rows_from_files(corpus.manifest, native_loading=True)
        return iter(wave_batches(planned, read_rows, REFERENCE_SAMPLES, *depths, TTS_INPUTS))

    def read_by(address):
        return DataService(address).batches(planned(), corpus.manifest, TTS_INPUTS, REFERENCE_SAMPLES, *depths)

    return read_here, read_by


def measured(read: Callable[[], Iterator[dict]], batches: int, dispatcher: int | None = None) -> Measured:
    source = read()
    first = list(islice(source, COMPARED))
    for _ in islice(source, WARM_UP - COMPARED):
        pass
    before_mib = memory_mib(dispatcher)
    started_s, cpu_s = time.perf_counter(), cpu_seconds()
    read_bytes = sum(wave[name].numpy().nbytes for wave in islice(source, batches) for name in ("pcm", "reference_pcm"))
    elapsed_s, cpu_s = time.perf_counter() - started_s, cpu_seconds() - cpu_s
    if hasattr(source, "close"):
        source.close()
    growth_mib = memory_mib(dispatcher) - before_mib
    return Measured(batches / elapsed_s, read_bytes / elapsed_s / 2**20, 1e3 * cpu_s / batches, growth_mib, first)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def service(workers: int) -> Iterator[tuple[str, int]]:
    """A data service on this machine: its address, and the process of its dispatcher."""
    programs = []

    def start(*arguments: str) -> int:
        command = [sys.executable, "-u", SERVER, *arguments]
        programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return next(int(line.split()[-1]) for line in programs[-1].stdout if "listens on port" in line)

    try:
        port = start("dispatcher", "--port", "0")
        for _ in range(workers):
            start("worker", "--dispatcher", f"127.0.0.1:{port}")
        yield f"grpc://127.0.0.1:{port}", programs[0].pid
    finally:
        for program in programs:
            program.kill()
            program.wait()


def memory_mib(process: int | None) -> float:
    if process is None:
        return 0.0
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def same(first: list[dict], other: list[dict]) -> bool:
    def bytes_of(batch: dict) -> dict[str, bytes]:
        return {name: value.numpy().tobytes() for name, value in batch.items()}

    return all(bytes_of(one) == bytes_of(two) for one, two in zip(first, other, strict=True))


def row(name: str, found: Measured, growth: str) -> str:
    return f"| {name} | {found.batches_per_s:.0f} | {found.mib_per_s:.0f} | {found.cpu_ms:.1f} | {growth} |"


if __name__ == "__main__":
    sys.exit(report_errors(main))
