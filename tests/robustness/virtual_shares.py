"""Time the placements of unlike virtual GPUs, which compute nothing and take the time that a table
of costs says, and compare them with the planner's predictions and with the bound of these GPUs:

    python tests/robustness/virtual_shares.py
    python tests/robustness/virtual_shares.py --tasks asr --speeds "1 0.5" --scale 400
    python tests/robustness/virtual_shares.py --tasks asr --slow-down 60 --batch-size 16

P, C, the part F of C that does not depend on rows and the all-reduce A are measured as `--placement
auto` does, at the speed of each GPU. Its planner then ranks the placements with their shares, and
those that may be the fastest are timed: all with a predicted throughput of at least SLOWEST of the
best one, and what there is without shares, which is a single GPU, dual placement and equal replicas
with at least SLOWEST_SIMPLE. A network has few layers and many channels, so that it traces in
seconds and most of a step is work that rows divide. Each group of roles is traced once; between two
measurements the speeds of the GPUs change.

`of bound` is the throughput divided by that of the bound: all GPUs share by their speeds what takes
P + C on GPU 0, none waits, and a step of several replicas takes A more. `with F` is that with the
least time of these roles by P, C, F and A, in whole rows. `error` is that of the predicted time of
a step. `host` is the processor time of the process, relative to two cores.

With --slow-down it trains on two GPUs with `--batch-shares auto` instead, of which GPU 1 has half
of its speed after so many steps, and prints the median of the reports with the same shares.
"""

import argparse
import ctypes
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.robustness.virtual_times import COSTS, FLAGS, FLAGS_OF  # noqa: E402

SETS = ("1 1", "1 0.7", "1 0.5", "1 0.3", "1 0.5 0.25")
CHANNELS = {"tts": 576, "asr": 384, "vocoder": 96}
# A warm-up, and two runs whose difference counts.
STEPS = 2, 2, 8
SLOWEST, SLOWEST_SIMPLE = 0.9, 0.6
SECONDS = tuple(1.2 + 0.1 * i for i in range(13))


class Job(NamedTuple):
    """A placement to time: the GPUs in their roles, their speeds, and rows."""

    data: tuple[int, ...]
    data_shares: tuple[float, ...]
    models: tuple[int, ...]
    speeds: tuple[tuple[int, float], ...]
    rows: tuple[int, ...]

    @property
    def flags(self) -> str:
        words = ["--model-gpus", *self.models]
        words += ["--data-gpus", *self.data] if self.data else []
        words += ["--data-shares", *self.data_shares] if self.data_shares else []
        return " ".join(map(str, words))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=FLAGS_OF, default=[*FLAGS_OF])
    parser.add_argument("--speeds", nargs="+", default=SETS)
    parser.add_argument("--scale", type=float, default=100.0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=0, help="default: of CHANNELS")
    parser.add_argument("--slow-down", type=int, default=0, metavar="STEP")
    options = parser.parse_args()
    options.channels = {task: options.channels or CHANNELS[task] for task in FLAGS_OF}
    arguments = ["-m", "tests.virtual_gpu", "--gpus", "3", "--memory-mib", "65536", "--", "-c"]
    command = [sys.executable, *arguments, CHILD, json.dumps(vars(options))]
    return subprocess.run(command, cwd=ROOT).returncode


CHILD = """
import argparse, json, sys
from tests.robustness.virtual_shares import run_all
run_all(argparse.Namespace(**json.loads(sys.argv[1])))
"""


def run_all(options: argparse.Namespace) -> None:
    import myxtts.trial.steps  # noqa: F401 - before the forks
    from tests.sine_corpus import write_corpus
    from tests.virtual_gpu import variables

    run = slow_down if options.slow_down else compare
    # An epoch of about 96 steps, or of a few.
    utterances = (200 if options.slow_down else 12) * options.batch_size
    costs = COSTS | {"kernel_us": 0.05, "copy_us": 0.1, "link_gbps": 200, "scale": options.scale}
    os.environ.update(variables(costs))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "corpus", [SECONDS[i % 13] for i in range(utterances)])
        for task in options.tasks:
            run(task, folder, options)


def argv_of(task: str, folder: Path, options: argparse.Namespace) -> str:
    argv = f"--task {task} --train-data {folder}/corpus/corpus.csv {FLAGS} {FLAGS_OF[task]}"
    # No time varies, and a shallow feed is sooner as full as in a long run.
    return f"{argv} --batch-size {options.batch_size} --prefetch-buffer-size 1 "


def compare(task: str, folder: Path, options: argparse.Namespace) -> None:
    """Print the figures of a task on all sets of GPUs."""
    from myxtts.commands import train

    sets = [tuple(map(float, of_gpus.split())) for of_gpus in options.speeds]
    speeds = sorted({speed for of_gpus in sets for speed in of_gpus}, reverse=True)
    argv = argv_of(task, folder, options)
    profiles = in_fork(folder, profile_all, argv, options.channels[task], speeds)
    for speed, profile in profiles.items():
        means = ", ".join(f"{stage} {s:.3f} s" for stage, s in profile.times.mean_s().items())
        print(f"{task}, speed {speed:g}: {means}, F {profile.fixed:.1%}", file=sys.stderr)
    ranked = {}
    jobs: dict[str, dict[Job, None]] = {}
    for of_gpus in sets:
        config = train.parse([*argv.split(), "--placement", "auto"])[0]
        ranked[of_gpus] = rank(config, profiles, of_gpus)
        for job, _, _ in ranked[of_gpus][1]:
            jobs.setdefault(job.flags, {})[job] = None
    header = "task | speeds | P | C | F | A | placement | rows | step, s | of bound | with F"
    print(f"| {header} | error | host |\n{'|---' * 13}|", flush=True)
    times: dict[Job, tuple[float, float]] = {}
    for flags, of_flags in jobs.items():
        times |= in_fork(folder, time_all, argv + flags, options.channels[task], [*of_flags])
    for of_gpus, (means, placements) in ranked.items():
        print_set(task, of_gpus, means, placements, times)


def in_fork(folder: Path, function, *arguments):
    """Return what a function returns, called in a fork: each starts TensorFlow's devices anew."""
    result = folder / "result"
    fork = os.fork()
    if not fork:
        try:
            result.write_bytes(pickle.dumps(function(*arguments)))
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(fork, 0)[1] == 0, arguments
    return pickle.loads(result.read_bytes())


@contextmanager
def wide_networks(channels: int) -> Iterator[None]:
    """Let the networks of size tiny have few layers and many channels; losses that are not finite,
    since nothing is computed, are no errors.
    """
    from myxtts.run import loop
    from myxtts.tasks.asr import network as asr
    from myxtts.tasks.tts import network as xtts
    from myxtts.tasks.vocoder import network as vocoder

    voice = xtts.XTTSSize(channels, 1, 1, flow_blocks=1, heads=4, latents=4)
    small = vocoder.VocoderSize(channels, blocks=1, pitch_channels=64, pitch_blocks=1)
    heard = asr.ASRSize(channels, blocks=1, memory=96, order=8)
    with ExitStack() as stack:
        for module, size in ((xtts, voice), (vocoder, small), (asr, heard)):
            stack.enter_context(mock.patch.dict(module.SIZES, tiny=size))
        stack.enter_context(mock.patch.object(loop, "require_finite"))
        yield


@contextmanager
def opened(argv: str, channels: int) -> Iterator:
    """Open a run on one replica or several."""
    from myxtts.commands import train
    from myxtts.trial import steps as measure

    with (
        wide_networks(channels),
        measure.open_run(train.parse(argv.split())[0], max_replicas=sys.maxsize) as run,
    ):
        yield run


def set_speeds(speeds: Mapping[int, float]) -> None:
    """Set the speeds of GPUs of a run, by their numbers; TensorFlow makes no others."""
    library = ctypes.CDLL(os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"])
    for gpu, speed in speeds.items():
        library.virtual_gpu_set_speed(gpu, ctypes.c_double(speed))


def profile_all(argv: str, channels: int, speeds: Sequence[float]) -> dict:
    """Return the profiles of GPUs of these speeds, with the all-reduce with a GPU of speed 1."""
    from myxtts.trial import steps as measure
    from myxtts.trial.stages import StageProfile

    profiles = {}
    with opened(argv + "--data-gpu 0 --model-gpu 1", channels) as run:
        pipeline = run.setup.training_pipeline(synchronize=run.setup.between_devices)
        window = measure.measurement_window(pipeline, 3)
        for speed in speeds:
            set_speeds({0: speed, 1: speed})
            times, features = measure.measure_isolated(run, pipeline, window)
            fixed = measure.measure_fixed(run, window, features, times)
            set_speeds({0: 1.0, 1: speed})
            reduce_s = measure.measure_all_reduce(run)
            profiles[speed] = StageProfile(times, reduce_s, fixed=fixed)
    return profiles


def rank(config, profiles: dict, speeds: tuple[float, ...]):
    """Return mean seconds, and the placements to time: the job, its prediction, and whether it is
    one without shares. The planner's choice comes first.
    """
    from dataclasses import replace

    from myxtts.trial import auto

    def of_pair(_, placed):
        made, trained = (
            profiles[speeds[getattr(placed.placement, gpu)]] for gpu in ("data_gpu", "model_gpu")
        )
        times = replace(trained.times, read_s=made.times.read_s, produce_s=made.times.produce_s)
        return trained._replace(times=times)

    with mock.patch.object(auto, "in_subprocess", of_pair):
        profile, relative = auto.measure_gpus(None, config, len(speeds))
    ranked = auto.rank_placements(profile, relative, config)
    data = config.data
    mean_s = profile.times.mean_s(data.num_workers)

    def equal(prediction):
        rows = (data.batch_size,) * prediction.candidate.replicas
        candidate = replace(prediction.candidate, rows=rows, speeds=relative)
        return candidate.bound(mean_s, data.num_workers, profile.all_reduce_s)

    simple, timed = [], []
    for prediction in ranked:
        name = prediction.candidate.name
        if name in ("single", "dual"):
            simple.append(prediction)
        elif name.startswith("replicated"):
            replicas = equal(prediction)
            if SLOWEST_SIMPLE * replicas.batch_s <= ranked[0].batch_s:
                simple.append(replicas)
        if SLOWEST * prediction.batch_s <= ranked[0].batch_s:
            timed.append(prediction)
    fastest = profiles[speeds[0]]
    means = fastest.times.mean_s() | {"fixed": fastest.fixed, "all_reduce": profile.all_reduce_s}
    placements: dict[Job, tuple] = {}
    for group, is_simple in ((timed, False), (simple, True)):
        for each in group:
            settings = each.candidate.settings
            data, models = settings.data_gpus, settings.model_gpus
            of_gpus = tuple((gpu, speeds[gpu]) for gpu in sorted({*data, *models}))
            job = Job(data, settings.data_shares, models, of_gpus, each.candidate.rows)
            placements[job] = (each, is_simple or each in simple)
    return means, [(job, *of_job) for job, of_job in placements.items()]


def time_all(argv: str, channels: int, jobs: Sequence[Job]) -> dict[Job, tuple[float, float]]:
    """Return the seconds of a step of each job, which have the same roles, and the processor time
    in it.
    """
    from dataclasses import replace

    from myxtts.batches.plan import Pass
    from myxtts.trial import steps as measure

    times = {}
    with opened(argv, channels) as run:
        setup = run.setup
        pipeline = setup.training_pipeline(synchronize=setup.between_devices)
        rate = measure.profile_learning_rate
        schedule = replace(setup.schedule, log_every=sys.maxsize, learning_rate=rate)
        for job in jobs:
            set_speeds(dict(job.speeds))
            setup.corpora.training.plan.deal(job.rows if len(job.rows) > 1 else ())
            busy_s = []
            with pipeline.open_feed(Pass()) as feed:
                for steps in STEPS:
                    # The first step traces and does not count. Feeds are full when each of the last
                    # two begins, so that what they save at first is not in the difference.
                    began_s = time.process_time()
                    total = measure.train_steps(setup, run.step, feed, schedule, 1 + steps)
                    busy_s.append(total.busy_s)
                    host_s = (time.process_time() - began_s) / (1 + steps)
            times[job] = (busy_s[2] - busy_s[1]) / (STEPS[2] - STEPS[1]), host_s
    return times


def print_set(task, speeds, means, placements, times) -> None:
    produce_s, step_s = means["produce"], means["step"]
    rates = {}
    for job, prediction, is_simple in placements:
        seconds, host_s = times[job]
        replicas = len(job.models)
        rates[job] = replicas / seconds, is_simple
        reduce_s = means["all_reduce"] * 2 * (replicas - 1) / replicas
        bound_s = replicas * (produce_s + step_s) / sum(speeds) + reduce_s
        columns = (
            f"{produce_s:.3f} | {step_s:.3f} | {means['fixed']:.1%} | {means['all_reduce']:.3f}",
            prediction.candidate.flags + (", chosen" if not rates or len(rates) == 1 else ""),
            " + ".join(map(str, job.rows)),
            f"{seconds:.3f} | {bound_s / seconds:.3f}",
            f"{replicas * prediction.batch_s / seconds:.3f}",
            f"{host_s / 2 / seconds:.2f}",
        )
        of_gpus = " ".join(f"{speed:g}" for speed in speeds)
        print(f"| {task} | {of_gpus} | {' | '.join(columns)} |", flush=True)
    chosen, *_ = rates.values()
    fastest = max(rate for rate, _ in rates.values())
    simple = max(rate for rate, is_simple in rates.values() if is_simple)
    print(
        f"{task}, {speeds}: chosen / fastest {chosen[0] / fastest:.3f}, chosen / fastest without"
        f" shares {chosen[0] / simple:.3f}",
        file=sys.stderr,
        flush=True,
    )


def slow_down(task: str, folder: Path, options: argparse.Namespace) -> None:
    """Train through a change of speed, and print the steps of each part of the run."""
    argv = argv_of(task, folder, options)
    profiles = in_fork(folder, profile_all, argv, options.channels[task], (1.0, 0.5))
    mean_s = profiles[1.0].times.mean_s()
    alone_s = mean_s["produce"] + mean_s["step"]
    argv += f"--runs-dir {folder}/runs --run {task} --model-gpus 0 1 --batch-shares auto"
    argv += f" --log-every 5 --max-steps {options.slow_down + 110}"
    in_fork(folder, train_through, argv, options.channels[task], options.slow_down)
    # By the rows of GPU 0 and the speed of GPU 1: the first step and seconds of the reports.
    parts: dict[tuple[int, float], tuple[int, list[float]]] = {}
    before, metrics = 0, (folder / "runs" / task / "metrics.jsonl").read_text()
    for line in map(json.loads, metrics.splitlines()):
        if "steps_per_s" in line:
            speed = 0.5 if before >= options.slow_down else 1.0
            rows = round(2 * options.batch_size * line.get("batch_share_0", 0.5))
            parts.setdefault((rows, speed), (before + 1, []))[1].append(1 / line["steps_per_s"])
            before = line["step"]
    print(f"| task | from step | rows | step, s | of bound |\n{'|---' * 5}|")
    for (rows, speed), (first, times_s) in parts.items():
        bound_s = 2 * alone_s / (1.0 + speed) + profiles[0.5].all_reduce_s
        step_s, others = median(times_s), 2 * options.batch_size - rows
        print(f"| {task} | {first} | {rows} + {others} | {step_s:.3f} | {bound_s / step_s:.3f} |")


def train_through(argv: str, channels: int, steps: int) -> None:
    from myxtts.commands import train
    from myxtts.trial.auto import train_placed

    with wide_networks(channels):
        assert train_placed(train.parse(argv.split())[0], [SlowDown(steps)]) == 0


class SlowDown(NamedTuple):
    """A hook of the training loop: GPU 1 has half of its speed after so many steps."""

    steps: int
    pause_kind: str = "slow down"

    def is_due(self, end) -> bool:
        return end.step == self.steps

    def __call__(self, end) -> None:
        set_speeds({1: 0.5})


if __name__ == "__main__":
    sys.exit(main())
