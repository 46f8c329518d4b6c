"""Measure the library of myxtts/devicefeed on its own example, against one device and other ways.

    python benchmarks/device_feed.py
    python benchmarks/device_feed.py --on virtual
    python benchmarks/device_feed.py --pixels 64 --repeats 7

Each way has a process of its own and takes turns with the others (A B C D A B C D); medians are
shown. All train the same network by the functions of examples/device_feed.py, and the losses of
their first steps are compared bit for bit. `--pixels` is the size of the images: it chooses how
long the frozen part takes (P), without a change of the step (C).

Nothing sleeps: a device is a logical device of the CPU that computes on one core, as in
benchmarks/second_device.py. The host has no core of its own, so there `map` computes on the data
device without a detour.
`two programs at once` are two independent processes with one device each: what the cores allow.

On virtual GPUs kernels and copies last as the table of costs says and compute nothing, so that the
order of work is that of GPUs, and the times hold however busy this machine is: launches are free,
and all others are multiplied until the host is no limit. The losses are of a run that computes.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._one_core import compute_on_one_core, run_functions_in_one_thread
from myxtts.base.console import report_errors
from myxtts.config.parser import bounded

ROOT = Path(__file__).resolve().parents[1]
ONE, FEED, MAP, BY_HAND, TOGETHER = (
    *("`DeviceFeed`, one device", "`DeviceFeed`, two devices", "`map` and `prefetch_to_device`"),
    *("plain loop (`by_hand.py`), two devices", "two programs at once, one device each"),
)
SECOND_PROGRAM, P, C = "second program", "P", "C"
COMPARED_STEPS, WARM_UP_STEPS = 20, 10
COSTS = ("--costs-only", "--scale", "250", "--launch-us", "0")
# On virtual GPUs the frozen part takes as long as its 400 kernels, whatever the images: there the
# step is made as long.
VIRTUAL_UNITS = 11_264
# Each turn of a second or more; they differ by less than 1 %.
VIRTUAL_TURNS = ("--steps", "8", "--repeats", "2")
_running: dict[str, tuple] = {}
"""What `start` made in this process, by way: batches, step, produce with an element."""


def main() -> int:
    options = parse()
    if options.measure:
        print(json.dumps(measure_virtual(options)))
        return 0
    print(f"Load before: {Path('/proc/loadavg').read_text().split()[0]}")
    measure = {"simulated": measure_simulated, "virtual": measure_on_virtual_gpus}
    figures = {name: measure[name](options) for name in options.on}
    for name, found in figures.items():
        print_table(name, found)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add, count = parser.add_argument, bounded(int, 1, 9_999)
    add("--pixels", type=bounded(int, 32, 512), default=96, help="size of the images (default 96)")
    add("--steps", type=count, default=40, help="timed in each turn (default 40)")
    add("--repeats", type=count, default=5, help="turns of each way (default 5)")
    places = {"choices": ("simulated", "virtual"), "default": ["simulated"]}
    add("--on", nargs="+", help="simulated devices, virtual GPUs or both", **places)
    add("--json", type=Path, help="output file for the figures")
    add("--measure", choices=("losses", "times"), help=argparse.SUPPRESS)
    return parser.parse_args()


def measure_simulated(options: argparse.Namespace) -> dict:
    """Return the seconds of a step by way and turn, those of the stages alone, and the losses."""
    spawn = multiprocessing.get_context("spawn")
    cores = {ONE: 0, FEED: None, MAP: None, BY_HAND: None, SECOND_PROGRAM: 1}
    pools = {name: ProcessPoolExecutor(1, spawn) for name in cores}
    call = lambda name, *work: pools[name].submit(*work)  # noqa: E731
    seconds: dict[str, list[float]] = {name: [] for name in (ONE, FEED, MAP, BY_HAND, TOGETHER)}
    losses = {}
    try:
        for name, core in cores.items():
            way = ONE if name == SECOND_PROGRAM else name
            call(name, configure_simulated, core).result()
            losses[name] = call(name, start, way, "CPU", {"pixels": options.pixels}).result()
        stages_s = call(ONE, time_stages, options.steps).result()
        for _ in range(options.repeats):
            for name in (ONE, FEED, MAP, BY_HAND):
                seconds[name].append(call(name, take, name, options.steps).result())
            both = [call(name, take, ONE, options.steps) for name in (ONE, SECOND_PROGRAM)]
            seconds[TOGETHER].append(1.0 / sum(1.0 / one.result() for one in both))
    finally:
        for pool in pools.values():
            pool.shutdown()
    return {"seconds": seconds, "stages_s": stages_s, "losses": losses}


def configure_simulated(core: int | None) -> None:
    """Split the CPU of this process in two devices; all that computes is on a core, if given."""
    run_functions_in_one_thread()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    parts = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    if core is not None:
        compute_on_one_core(core)


def measure_on_virtual_gpus(options: argparse.Namespace) -> dict:
    """Return the same figures of virtual GPUs; the losses are of a program that computes."""
    found = {}
    for measure, costs in (("times", COSTS), ("losses", ())):
        pixels = ("--pixels", str(options.pixels))
        program = ("benchmarks/device_feed.py", "--measure", measure, *pixels, *VIRTUAL_TURNS)
        command = [sys.executable, "-m", "tests.virtual_gpu", "--gpus", "2", *costs, "--", *program]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def measure_virtual(options: argparse.Namespace) -> dict:
    """Return times or losses of this process, which has virtual GPUs."""
    names = (ONE, FEED, MAP, BY_HAND)
    sizes = {"pixels": options.pixels}
    if options.measure == "times":
        sizes["units"] = VIRTUAL_UNITS
    losses = {name: start(name, "GPU", sizes) for name in names}
    if options.measure == "losses":
        return {"losses": losses}
    stages_s = time_stages(options.steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.repeats):
        for name in names:
            seconds[name].append(take(name, options.steps))
    return {"seconds": seconds, "stages_s": stages_s}


def start(way: str, kind: str, sizes: dict[str, int]) -> list[float]:
    """Begin to train in this process; return the losses of the first steps."""
    import tensorflow as tf

    from examples.by_hand import batches as by_hand
    from examples.device_feed import make

    data, model = f"/{kind}:0", f"/{kind}:1"
    if way == ONE:
        model = data
    dataset, produce, step = make(data, model, **sizes)

    def placed_step(**batch: Any) -> Any:
        # A single-threaded executor has one device, also for what the function takes and returns.
        with tf.device(model):
            return step(**batch)

    made = {ONE: fed, FEED: fed, MAP: mapped, BY_HAND: by_hand}[way]
    _running[way] = made(dataset, produce, data, model), placed_step, dataset, produce
    batches = islice(_running[way][0], COMPARED_STEPS)
    return [placed_step(**batch).numpy().item() for batch in batches]


def fed(dataset: Any, produce: Callable, data: str, model: str) -> Iterator[dict]:
    from myxtts.devicefeed import DeviceFeed

    with DeviceFeed(dataset, produce, data, model) as feed:
        yield from feed


def mapped(dataset: Any, produce: Callable, data: str, model: str) -> Iterator[dict]:
    import tensorflow as tf

    def produce_there(*element: Any) -> dict:
        # Its results return to the host.
        with tf.device(data):
            return produce(*element)

    upload = tf.data.experimental.prefetch_to_device(model, buffer_size=3)
    yield from dataset.map(produce_there).prefetch(3).apply(upload)


def take(way: str, steps: int) -> float:
    """Return the mean seconds of a step, after some that empty the queues."""
    batches, step, *_ = _running[way]
    train(batches, step, WARM_UP_STEPS)
    began_s = time.perf_counter()
    train(batches, step, steps)
    return (time.perf_counter() - began_s) / steps


def train(batches: Iterable[dict], step: Callable, steps: int) -> None:
    for batch in islice(batches, steps):
        loss = step(**batch)
    loss.numpy()


def time_stages(steps: int) -> tuple[float, float]:
    """Return the mean seconds of producing a batch and of a step, P and C, each alone."""
    from examples.by_hand import batches as by_hand

    batches, step, dataset, produce = _running[ONE]
    batch = next(batches)
    device = batch["features"].backing_device
    _running[P] = by_hand(dataset.take(1).repeat(), produce, device, device), first_feature
    _running[C] = repeat(batch), step
    # The feed is full then, and rests.
    time.sleep(2.0)
    return take(P, steps), take(C, steps)


def first_feature(features: Any, **others: Any) -> Any:
    from tensorflow import reshape

    return reshape(features, [-1])[0]


def print_table(name: str, found: dict) -> None:
    produce_s, step_s = found["stages_s"]
    law = (produce_s + step_s) / max(produce_s, step_s)
    stages = f"P {1e3 * produce_s:.1f} ms, C {1e3 * step_s:.1f} ms"
    print(f"\n{name} devices: {stages}, each alone; (P + C) / max(P, C) = {law:.2f}\n")
    print("| way | ms a batch, median (of all turns) | times as fast as one device | losses |")
    print("|---|---:|---:|---|")
    one_s = median(found["seconds"][ONE])
    for way, seconds in found["seconds"].items():
        turns = ", ".join(f"{1e3 * each:.1f}" for each in sorted(seconds))
        is_equal = found["losses"].get(way) == found["losses"][FEED]
        equal = ("equal" if is_equal else "**differ**") if way in found["losses"] else ""
        ratio = one_s / median(seconds)
        print(f"| {way} | {1e3 * median(seconds):.1f} ({turns}) | {ratio:.2f} | {equal} |")


if __name__ == "__main__":
    sys.exit(report_errors(main))
