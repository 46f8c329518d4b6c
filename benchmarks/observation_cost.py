"""Measure what an observation costs in each task, beside what --placement auto takes it to cost.

    python benchmarks/observation_cost.py
    python benchmarks/observation_cost.py --tasks asr --batches 20

The device is a logical device of the CPU that is held to one core (see benchmarks/_one_core.py),
and all figures are processor time, which other programs do not change much: P and C of a batch, the
losses of a batch without gradient (`forward`; the planner assumes a third of C), a validation with
reading, and a set of samples. Of the last two the second one counts. V / C is what validation every
100 steps and samples every 500 steps take of the data device, in steps: `planned` by --placement
auto, and `measured`, with the real validation in place of its estimate.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._one_core import THREADS, run_functions_in_one_thread
from benchmarks._timed_runs import DUAL, run_script
from benchmarks.second_device import ASR, CORPUS, ROOT, VOCODER, in_process, train_quietly
from myxtts.commands import train
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded

if TYPE_CHECKING:
    from myxtts.data.hand_over import Batch
    from myxtts.training.validation import Validation

TASKS = {
    "tts, Griffin-Lim": (),
    "tts, trained vocoder": ("--vocoder", "{vocoder}"),
    "asr": ASR,
    "vocoder": VOCODER,
}
PERIODS = ("--validate-every", "100", "--sample-every", "500")
COMMON = ("--model-size", "tiny", "--buckets", "1", *PERIODS, *THREADS, *DUAL)


class Cost(NamedTuple):
    """Processor seconds; V is of a step."""

    produce: float
    step: float
    forward: float
    held_out_batches: int
    validation: float
    samples: float
    planned_v: float
    v: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS, metavar="TASK")
    parser.add_argument(
        "--batches", type=bounded(int, 1), default=10, help="of which P and C are the means"
    )
    options = parser.parse_args()
    run_script(str(ROOT / "utilities" / "make_demo_corpus.py"), "--out", str(CORPUS))
    print(
        "| task | P, ms | C, ms | forward, ms | forward / C | held-out batches | validation, s |"
        " samples, s | V / C: planned | measured |"
    )
    print("|---" * 10 + "|")
    with tempfile.TemporaryDirectory() as name:
        vocoder = Path(name) / "vocoder"
        for task in options.tasks:
            flags = [flag.format(vocoder=vocoder) for flag in TASKS[task]]
            if "--vocoder" in flags:
                in_process(make_vocoder, vocoder)
            cost = in_process(
                measure, [*flags, "--train-data", str(CORPUS), *COMMON], options.batches
            )
            print(f"| {task} | {' | '.join(cells(cost))} |", flush=True)
    return 0


def cells(cost: Cost) -> list[str]:
    milliseconds = (f"{1e3 * value:.0f}" for value in (cost.produce, cost.step, cost.forward))
    seconds = (f"{value:.2f}" for value in (cost.validation, cost.samples))
    shares = (f"{value / cost.step:.1%}" for value in (cost.planned_v, cost.v))
    return [
        *milliseconds,
        f"{cost.forward / cost.step:.2f}",
        str(cost.held_out_batches),
        *seconds,
        *shares,
    ]


def make_vocoder(run: Path) -> None:
    """Make the run of an untrained vocoder: what it computes does not depend on its weights."""
    flags = (
        *VOCODER,
        "--model-size",
        "tiny",
        "--train-data",
        str(CORPUS),
        "--runs-dir",
        str(run.parent),
    )
    train_quietly(
        (
            *flags,
            "--run",
            run.name,
            "--stop-at-step",
            "0",
            "--validate-every",
            "0",
            "--sample-every",
            "0",
        )
    )


def measure(flags: Sequence[str], batches: int) -> Cost:
    run_functions_in_one_thread()
    from myxtts.evaluation.in_run import open_evaluator
    from myxtts.report.metrics import TensorBoard
    from myxtts.throughput import isolated_stages as isolated
    from myxtts.throughput.auto import observe_per_step_s
    from myxtts.throughput.profiled_run import measurement_window, open_run
    from myxtts.throughput.stage_times import StageProfile
    from myxtts.training.held_out import held_out_work
    from myxtts.training.run_folder import RunFolder

    config, _ = train.parse(flags)
    with (
        redirect_stdout(sys.stderr),
        mock.patch("time.perf_counter", time.process_time),
        open_run(config) as run,
        tempfile.TemporaryDirectory() as name,
    ):
        pipeline = run.setup.training_pipeline(synchronize=True)
        window = measurement_window(pipeline, batches)
        times, features = isolated.measure_isolated(run, pipeline, window)
        held_out_batches = run.setup.corpora.held_out.plan.steps_per_epoch
        profile = StageProfile(
            times, window.measured_buckets, 0.0, held_out_batches, isolated.time_samples(run.setup)
        )
        folder = RunFolder(Path(name))
        with closing(TensorBoard(folder.tensorboard)) as tensorboard:
            state = run.setup.state
            work = held_out_work(
                run.setup, state.model, state.device, folder, tensorboard, open_evaluator, False
            )
            work.trace()
            validation_s = second_call_s(work.validation.evaluate)
            forward_s, _ = isolated.time_stage(
                window, features, lambda batch: losses_of(work.validation, batch)
            )
    v = validation_s / config.run.validate_every + profile.samples_s / config.run.sample_every
    return Cost(
        produce=times.produce_s.mean(),
        step=times.step_s.mean(),
        forward=forward_s.mean(),
        held_out_batches=held_out_batches,
        validation=validation_s,
        samples=profile.samples_s,
        planned_v=observe_per_step_s(profile, config),
        v=v,
    )


def losses_of(validation: "Validation", features: "Batch") -> "Batch":
    """Compute the losses of a batch as a validation does, and wait for them."""
    _, losses, measured = validation.measure(features)
    losses.numpy()
    return measured


def second_call_s(function: Callable[[], object]) -> float:
    """Return the processor seconds of the second call; the first one prepares functions."""
    function()
    started_s = time.process_time()
    function()
    return time.process_time() - started_s


if __name__ == "__main__":
    sys.exit(report_errors(main))
