"""Measure what a second device gains in each task: its bound, and run.

    python benchmarks/second_device.py
    python benchmarks/second_device.py --rows tts-tiny-small-teacher --repeats 5
    python benchmarks/second_device.py --list

Nothing sleeps and nothing is emulated: a device is a logical device of the CPU that is held to one
core (see benchmarks/_one_core.py), and the placements are runs of train_main.py's own program,
which take turns (A B C A B C). P and C are the means of producing a batch and of a step, each
alone, in wall and in processor time; a device that computes in one thread has the same figure for
both. All batches have the same padded length (one bucket).

The planner predicts from the stages measured with one core each, with the code of --placement auto.
It chooses right if no placement that ran is faster than its choice by more than --tolerance.

`two runs at once` are two independent runs in single placement, each on a core of its own: what the
cores allow two devices that never wait for each other. `both cores` is single placement with
TensorFlow's usual executor, which runs the operations of a batch on either core, as it does for
replicas. Their processor time shows what that costs.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._one_core import (
    THREADS,
    compute_on_one_core,
    run_functions_in_one_thread,
    run_functions_in_the_pool,
)
from benchmarks._timed_runs import metrics_of, run_script
from myxtts.base.console import report_errors
from myxtts.base.errors import ConfigError
from myxtts.commands import train
from myxtts.config.parser import bounded

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "data" / "demo"
SIMULATED = ("--simulate-gpus", "2")
PLACEMENTS = {  # the name of the planner: flags
    "single": (),
    "dual": ("--data-gpu", "0", "--model-gpu", "1"),
    "replicated": ("--model-gpus", "0", "1"),
}
SINGLE, DUAL, REPLICATED = PLACEMENTS
TWO_RUNS, BOTH_CORES = "two runs at once", "both cores"  # not placements
NO_EXTRAS = "--buckets 1 --validate-every 0 --sample-every 0 --checkpoint-every 0"
COMMON = (*NO_EXTRAS.split(), *THREADS)
WARM_UP_STEPS = 4  # not measured: the first is traced, and the feed fills


@dataclass(frozen=True)
class Row:
    """A task to measure.

    Attributes:
        teacher: size of an untrained voice as --teacher; what it computes does not depend on its
            weights.
        steps: measured in a run; fewer where they take long.
    """

    flags: tuple[str, ...]
    teacher: str = ""
    steps: int = 24


ASR = ("--task", "asr", "--text-frontend", "characters")
NOISY = ("--config", "configs/asr_noisy.yaml")
VOCODER = ("--task", "vocoder")
TAUGHT = ("--model-size", "tiny", "--teacher-fraction")
ROWS = {
    "tts-tiny": Row(("--model-size", "tiny")),
    "tts-small": Row(("--model-size", "small"), steps=12),
    "tts-normal": Row(("--model-size", "normal"), steps=6),
    "asr-tiny": Row((*ASR, "--model-size", "tiny")),
    "asr-normal": Row((*ASR, "--model-size", "normal"), steps=6),
    "asr-tiny-noisy": Row((*NOISY, "--model-size", "tiny")),
    "vocoder-tiny": Row((*VOCODER, "--model-size", "tiny")),
    "vocoder-tiny-tiny-teacher": Row((*VOCODER, "--model-size", "tiny"), "tiny"),
    "vocoder-tiny-small-teacher": Row((*VOCODER, "--model-size", "tiny"), "small", 16),
    "tts-tiny-small-teacher": Row((*TAUGHT, "0.5"), "small", 16),
    "tts-tiny-normal-teacher": Row((*TAUGHT, "0.25"), "normal", 16),
}


@dataclass(frozen=True)
class Throughput:
    """What a run reached after its first steps.

    Attributes:
        processor_s: of all threads, for a batch.
    """

    batches_per_s: float
    processor_s: float


@dataclass(frozen=True)
class Stages:
    """Stages of a row, each alone on one core.

    Attributes:
        produce_s, step_s, transfer_s, all_reduce_s: mean seconds of a batch.
        produce_cpu_s, step_cpu_s: processor seconds.
        predicted: batches per second by placement, the planner's first choice first.
    """

    produce_s: float
    produce_cpu_s: float
    step_s: float
    step_cpu_s: float
    transfer_s: float
    all_reduce_s: float
    predicted: dict[str, float]


def main() -> int:
    options = parse()
    if options.list:
        for name, row in ROWS.items():
            print(f"{name:28} {' '.join(row.flags)}{row.teacher and f' --teacher {row.teacher}'}")
        return 0
    run_script("-m", "myxtts", "corpus", "--out", str(CORPUS))
    print(
        "| task | P, ms (processor) | C, ms (processor) | P/C | A, ms | dual / single: predicted |"
        " measured | dual / two replicas: predicted | measured | chosen | fastest | agrees | two"
        " replicas / two runs at once | processor, ms for a batch: single | dual | two replicas |"
        " two runs | both cores |\n" + "|---" * 18 + "|"
    )
    results, misses = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.rows:
            stages, runs = measure_row(ROWS[name], Path(folder), options.repeats)
            misses += not print_row(name, stages, runs, options.tolerance)
            measured = {placement: [*map(asdict, repeats)] for placement, repeats in runs.items()}
            results[name] = asdict(stages) | {"measured": measured}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if misses else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Exit code 1 if a choice of the planner is not the fastest.",
    )
    add, share = parser.add_argument, bounded(float, 0.0, 1.0)
    rows = {"choices": ROWS, "default": list(ROWS), "metavar": "ROW"}
    add("--rows", nargs="+", help="default: all", **rows)
    add("--list", action="store_true", help="print the rows and their flags")
    add("--repeats", type=bounded(int, 1, 99), default=1, help="of each placement (default 1)")
    add("--tolerance", type=share, default=0.03, help="loss of a choice that counts as none")
    add("--json", type=Path, help="output file for the figures")
    return parser.parse_args()


def measure_row(row: Row, folder: Path, repeats: int) -> tuple[Stages, dict[str, list[Throughput]]]:
    """Return the stages, and what each placement, two runs at once and both cores reached."""
    flags = (*row.flags, "--train-data", str(CORPUS), *SIMULATED, *COMMON)
    if row.teacher:
        flags = (*flags, "--teacher", str(untrained(row.teacher, folder)))
    stages = in_process(measure_stages, flags, row.steps)
    runs: dict[str, list[Throughput]] = {name: [] for name in (*PLACEMENTS, TWO_RUNS, BOTH_CORES)}
    for _ in range(repeats):
        for name in PLACEMENTS:
            runs[name].append(in_process(throughput, flags, name, row.steps))
        runs[TWO_RUNS].append(two_runs_at_once(flags, row.steps))
        runs[BOTH_CORES].append(in_process(throughput, flags, SINGLE, row.steps, None))
    return stages, runs


def two_runs_at_once(flags: Sequence[str], steps: int) -> Throughput:
    with ThreadPoolExecutor(2) as pool:
        train_on = lambda core: in_process(throughput, flags, SINGLE, steps, core)  # noqa: E731
        both = list(pool.map(train_on, range(2)))
    processor_s = fmean(run.processor_s for run in both)
    return Throughput(sum(run.batches_per_s for run in both), processor_s)


def untrained(size: str, folder: Path) -> Path:
    """Return the run of an untrained voice of a size; make it if there is none."""
    run = folder / f"untrained-{size}"
    if not run.exists():
        places = ("--train-data", str(CORPUS), "--runs-dir", str(folder), "--run", run.name)
        length = "--stop-at-step 0 --validate-every 0 --sample-every 0"
        in_process(train_quietly, ("--model-size", size, *places, *length.split()))
    return run


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, called in a process of its own, as devices cannot change."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def train_quietly(flags: Sequence[str]) -> None:
    with redirect_stdout(sys.stderr):
        if code := train.main(flags):
            raise ConfigError(f"training with {' '.join(flags)} ended with exit code {code}")


def throughput(flags: Sequence[str], placement: str, steps: int, core: int | None = 0):
    """Train in a placement, each device on one core; return the throughput after the first steps.

    Args:
        core: index of the core on which a single device computes; None for both.
    """
    if placement != REPLICATED and core is not None:
        run_functions_in_one_thread()
    if placement == SINGLE and core is not None:
        compute_on_one_core(core)
    length = ("--max-steps", str(WARM_UP_STEPS + steps), "--log-every", str(WARM_UP_STEPS))
    with tempfile.TemporaryDirectory() as folder:
        with processor_time_at_steps() as at_steps_s:
            place = ("--runs-dir", folder, "--run", "run")
            train_quietly((*flags, *PLACEMENTS[placement], *length, *place))
        reports = metrics_of(Path(folder) / "run")
    step_s = median(report["step_s"] for report in reports if report["step"] > WARM_UP_STEPS)
    batches = 2 if placement == REPLICATED else 1
    counted_s = at_steps_s[WARM_UP_STEPS:]
    processor_s = (counted_s[-1] - counted_s[0]) / (len(counted_s) - 1)
    return Throughput(batches / step_s, processor_s / batches)


@contextmanager
def processor_time_at_steps() -> Iterator[list[float]]:
    """Yield a list that receives the processor seconds of all threads at the start of each step."""
    from myxtts.run.step import Step

    at_steps_s: list[float] = []

    def timed_call(self: Step, *arguments: Any, **named: Any) -> Any:
        at_steps_s.append(time.process_time())
        return call(self, *arguments, **named)

    call, Step.__call__ = Step.__call__, timed_call  # type: ignore[method-assign]
    try:
        yield at_steps_s
    finally:
        Step.__call__ = call  # type: ignore[method-assign]


def measure_stages(flags: Sequence[str], steps: int) -> Stages:
    """Measure the stages of a row alone, each on a core; predict placements on two devices."""
    run_functions_in_one_thread()
    from myxtts.placement.bound import Speeds
    from myxtts.trial import steps as isolated
    from myxtts.trial.auto import rank_placements
    from myxtts.trial.stages import StageProfile
    from myxtts.trial.steps import measurement_window, open_run

    config, _ = train.parse([*flags, *PLACEMENTS[DUAL]])
    with redirect_stdout(sys.stderr), open_run(config) as run:
        pipeline = run.setup.training_pipeline(synchronize=run.setup.between_devices)
        window = measurement_window(pipeline, steps)
        times, features = isolated.measure_isolated(run, pipeline, window)
        _, waves = isolated.time_reading(pipeline, window)
        produce = isolated.produce_on(run.route.data, pipeline.producers[0].produce)
        with processor_time() as produce_cpu_s:
            isolated.time_stage(window, waves, produce)
        with processor_time() as step_cpu_s:
            isolated.time_steps(run.setup, run.step, window, features)
        with run_functions_in_the_pool():
            all_reduce_s = isolated.measure_all_reduce(run)
    profile = StageProfile(times, all_reduce_s)
    predictions = rank_placements(profile, Speeds.of([1.0, 1.0]), config)
    mean_s, measured = times.mean_s(), len(times)
    # Batches and steps that the processor time has in addition.
    warm_up = (sum(map(len, waves.values())), len(features))
    return Stages(
        produce_s=mean_s["produce"],
        produce_cpu_s=produce_cpu_s[0] / (measured + warm_up[0]),
        step_s=mean_s["step"],
        step_cpu_s=step_cpu_s[0] / (measured + warm_up[1]),
        transfer_s=mean_s["transfer"],
        all_reduce_s=all_reduce_s,
        predicted={one.candidate.name: 1.0 / one.batch_s for one in predictions},
    )


@contextmanager
def processor_time() -> Iterator[list[float]]:
    """Yield a list that has the processor seconds of the scope, all threads, at its end."""
    started_s, seconds = time.process_time(), []
    yield seconds
    seconds.append(time.process_time() - started_s)


def print_row(
    name: str, stages: Stages, runs: dict[str, list[Throughput]], tolerance: float
) -> bool:
    """Print a line of the table; return whether the planner's choice is the fastest."""
    measured = {}
    for placement, repeats in runs.items():
        measured[placement] = median(run.batches_per_s for run in repeats)
    chosen, fastest = next(iter(stages.predicted)), max(PLACEMENTS, key=measured.__getitem__)
    agrees = measured.get(chosen, 0.0) >= (1.0 - tolerance) * measured[fastest]

    def milliseconds(wall_s: float, processor_s: float) -> str:
        return f"{1e3 * wall_s:.0f} ({1e3 * processor_s:.0f})"

    def gains(over: str) -> list[str]:
        return [f"{rate[DUAL] / rate[over]:.2f}" for rate in (stages.predicted, measured)]

    cells = (
        name,
        milliseconds(stages.produce_s, stages.produce_cpu_s),
        milliseconds(stages.step_s, stages.step_cpu_s),
        f"{stages.produce_s / stages.step_s:.2f}",
        f"{1e3 * stages.all_reduce_s:.0f}",
        *gains(SINGLE),
        *gains(REPLICATED),
        chosen,
        fastest,
        "yes" if agrees else "no",
        f"{measured[REPLICATED] / measured[TWO_RUNS]:.2f}",
        *(f"{1e3 * median(run.processor_s for run in runs[placement]):.0f}" for placement in runs),
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    return agrees


if __name__ == "__main__":
    sys.exit(report_errors(main))
