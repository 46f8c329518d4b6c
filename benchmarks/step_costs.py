"""Show where the time of a training step goes, and how far it is from what the processor can do.

    python -m myxtts corpus --out data/demo
    python benchmarks/step_costs.py --tasks tts vocoder asr --sizes tiny small
    python benchmarks/step_costs.py --kernels            # counted on a virtual GPU; needs g++

Each network is measured in a process of its own, on one batch of medium length: the median of the
step, its matrix products and their rate, beside the rate of large products on all cores in the same
process; the bytes that its operations read and write, beside the rate of a large addition; and the
operations by time in a trace of TensorFlow's profiler. An operation is attributed to its type in
equal parts with all that run at the same time. With --kernels: launches of a step on a virtual GPU,
which computes, without the loops over frames of `tts`, that XLA compiles on real GPUs, and without
operations that launch nothing there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.machine import usable_cores
from myxtts.config.parser import bounded

ROOT = Path(__file__).resolve().parents[1]
PRODUCT_SIZE, ADDED_VALUES = 1536, 1 << 24
TRACED_STEPS = 5
COUNTED = 2, 6  # steps of the two runs whose launches are subtracted
# An assignment on a GPU takes the memory of its value.
NO_KERNEL = {"AssignVariableOp", "ReadVariableOp"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--train-data", default="data/demo", help="corpus (default data/demo)")
    add("--tasks", nargs="+", default=["tts", "vocoder", "asr"], help="(default: all)")
    add("--sizes", nargs="+", default=["tiny"], help="of the networks (default: tiny)")
    add("--batch-size", type=bounded(int, 1, 999), default=8, help="utterances (default 8)")
    add("--sample-rate", type=int, default=22050, help="in Hz (default 22050)")
    add("--steps", type=bounded(int, 1, 9_999), default=40, help="timed (default 40)")
    add("--shown", type=bounded(int, 0, 99), default=12, help="types of operations (default 12)")
    add("--kernels", action="store_true", help="count kernels on a virtual GPU, and time nothing")
    add("--measure", choices=("times", "launches"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure = {"times": measure_times, "launches": take_steps}[options.measure]
        with open_steps(options) as steps:
            figures = measure(steps, options)
        print(json.dumps(figures))
        return 0
    for task in options.tasks:
        for size in options.sizes:
            named = ["--tasks", task, "--sizes", size, "--train-data", options.train_data]
            named += ["--batch-size", str(options.batch_size)]
            named += ["--sample-rate", str(options.sample_rate)]
            if options.kernels:
                print_kernels(f"{task} {size}", count_kernels(named))
            else:
                timed = ["--measure", "times", "--steps", str(options.steps), *named]
                print_times(f"{task} {size}", run(timed), options.shown)
    return 0


def run(arguments: list[str], before: Iterable[str] = ()) -> dict:
    """Run this program in another process, behind a program before it; return its figures."""
    command = [sys.executable, *before, str(Path("benchmarks", Path(__file__).name)), *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def open_steps(options: argparse.Namespace) -> Iterator["Steps"]:
    """Open a new run on one device; yield its step, on a batch of medium length."""
    from benchmarks._speed import medium_batch
    from myxtts.checkpoints.run_folder import RunFolder
    from myxtts.config.load import load
    from myxtts.run.setup import open_run
    from myxtts.run.start import resolve_start

    given = {"task": options.tasks[0], "model_size": options.sizes[0], "run": "costs"}
    given |= {name: getattr(options, name) for name in ("train_data", "batch_size", "sample_rate")}
    config = load(None, given | {"validate_every": 0, "sample_every": 0})
    with tempfile.TemporaryDirectory(prefix="myxtts-costs-") as name:
        folder = Path(name)
        with open_run(resolve_start(config, RunFolder(folder))) as opened:
            setup = opened.set_up(opened.read_corpora())
            route = opened.placement.routes[0]
            features = medium_batch(config, setup.corpora.training, route, folder).features
            yield Steps(setup.state, setup.make_step(), features)


class Steps:
    """Steps on the same batch, each of which waits for its device."""

    def __init__(self, state, step, features):
        from myxtts.run.schedule import ConstantRates

        self.state, self.step, self.batches = state, step, step.hand_over([features])
        self._rates, self._number = ConstantRates(1e-6, 0.999), 0

    def __call__(self, count: int) -> list[float]:
        """Take some steps; return the seconds of each."""
        seconds = []
        for _ in range(count):
            self._number += 1
            started_s = time.perf_counter()
            self.step.synchronize(self.step([self.batches], self._number, self._rates))
            seconds.append(time.perf_counter() - started_s)
        return seconds


def measure_times(steps: Steps, options: argparse.Namespace) -> dict:
    """Return the figures of one network, without counting launches."""
    import tensorflow as tf

    from benchmarks._flops import step_bytes, step_flops

    steps(5)
    before_s = time.process_time()
    seconds = steps(options.steps)
    processor_s = (time.process_time() - before_s) / len(seconds)
    with tf.device(steps.state.device):
        rates = {"product_flops_per_s": product_rate(), "memory_bytes_per_s": memory_rate()}
    batch = steps.batches[0]
    flops, moved_bytes = step_flops(steps.state, batch), step_bytes(steps.state, batch)
    # The optimizer reads gradient, weight, moments and average, and writes all but the first.
    trained = sum(v.value.shape.num_elements() for v in steps.state.trained)
    figures = {"step_s": median(seconds), "processor_s": processor_s, "flops": flops, **rates}
    return {**figures, "bytes": moved_bytes + 9 * 4 * trained, **trace(steps)}


def product_rate() -> float:
    """Return the operations per second of as many large products as there are cores."""
    import tensorflow as tf

    cores = len(usable_cores())
    factor = tf.random.stateless_normal([PRODUCT_SIZE, PRODUCT_SIZE], [0, 0])

    @tf.function(autograph=False)
    def products(factor):
        return [tf.matmul(factor + float(i), factor)[0, 0] for i in range(cores)]

    return 2 * PRODUCT_SIZE**3 * cores / least_s(lambda: products(factor)[-1].numpy())


def memory_rate() -> float:
    """Return the bytes per second that large additions on all cores read and write."""
    import tensorflow as tf

    cores = len(usable_cores())
    values = tf.random.stateless_normal([ADDED_VALUES], [0, 0])

    @tf.function(autograph=False)
    def added(values):
        return [(values + float(i))[0] for i in range(cores)]

    return 2 * 4 * ADDED_VALUES * cores / least_s(lambda: added(values)[-1].numpy())


def least_s(call) -> float:
    seconds = []
    for _ in range(10):
        started_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started_s)
    return min(seconds)


def trace(steps: Steps) -> dict:
    """Return operations a step, the share of the time in which one ran, and time by type."""
    import tensorflow as tf

    from benchmarks.proof.trace import HOST_PLANE, read_planes

    with tempfile.TemporaryDirectory(prefix="myxtts-trace-") as folder:
        tf.profiler.experimental.start(folder)
        total_s = sum(steps(TRACED_STEPS))
        tf.profiler.experimental.stop()
        planes = list(read_planes(Path(folder)))
    edges = []  # time in s, +1 or -1, type
    for plane in planes:
        if plane.name.startswith(HOST_PLANE):
            names = {number: item.name for number, item in plane.event_metadata.items()}
            for line in plane.lines:
                for event in line.events:
                    name, _, kind = names[event.metadata_id].rpartition(":")
                    if name and kind.isidentifier() and not name.endswith(":"):
                        start_s = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                        edges.append((start_s, 1, kind))
                        edges.append((start_s + event.duration_ps / 1e12, -1, kind))
    by_kind, running, then_s = Counter(), Counter(), 0.0
    for now_s, change, kind in sorted(edges):
        parallel = running.total()
        for each, count in running.items():
            by_kind[each] += (now_s - then_s) * count / max(parallel, 1)
        running[kind] += change
        then_s = now_s
    share = {kind: seconds / total_s for kind, seconds in by_kind.most_common() if seconds}
    operations = len(edges) / 2 / TRACED_STEPS
    return {"operations": operations, "attributed": sum(share.values()), "share": share}


def print_times(name: str, figures: dict, shown: int) -> None:
    step_s, flops, moved = figures["step_s"], figures["flops"], figures["bytes"]
    by_products_s = flops / figures["product_flops_per_s"]
    by_memory_s = moved / figures["memory_bytes_per_s"]
    gflops, gib = figures["product_flops_per_s"] / 1e9, figures["memory_bytes_per_s"] / 2**30
    print(f"\n{name}: {1e3 * step_s:.1f} ms a step, {figures['operations']:,.0f} operations")
    print(f"  processor  {1e3 * figures['processor_s']:.0f} ms")
    print(f"  products   {by_products_s / step_s:.0%}: {flops / 1e9:.2f} GFLOP at {gflops:.0f}/s")
    print(f"  memory     {by_memory_s / step_s:.0%}: {moved / 2**20:.0f} MiB at {gib:.1f} GiB/s")
    print(f"  attributed {figures['attributed']:.0%} of the time of a traced step:")
    for kind, share in list(figures["share"].items())[:shown]:
        print(f"    {share:6.1%}  {kind.removeprefix('_Mkl').removeprefix('Native')}")


def take_steps(steps: Steps, options: argparse.Namespace) -> dict:
    """Take steps in this process, which has a virtual GPU; return nothing of interest."""
    import tensorflow as tf

    model = steps.state.model
    if options.tasks[0] == "tts":
        # In place of what XLA compiles: results of the same shape, by two kernels.
        model.sum_over_paths = lambda score, *_: (score[:, 0, 0], tf.nn.softmax(score))
        model.alignment_search = lambda score, *_: tf.cast(score[:, :, 0] > 0.0, tf.int32)
    steps(options.steps)
    return {}


def count_kernels(named: list[str]) -> Counter:
    """Return the kernels and copies of a step, by their names."""
    counts = []
    with tempfile.TemporaryDirectory(prefix="myxtts-costs-") as folder:
        for steps in COUNTED:
            file = Path(folder, f"{steps}.tsv")
            before = ["-m", "tests.virtual_gpu", "--gpus", "1", "--stats", str(file), "--"]
            run(["--measure", "launches", "--steps", str(steps), *named], before)
            rows = (line.split("\t") for line in file.read_text("utf-8").splitlines())
            counts.append({(kind, what): int(count) for kind, what, count in rows})
    fewer, more = counts
    taken = COUNTED[1] - COUNTED[0]
    return Counter({key: (count - fewer.get(key, 0)) / taken for key, count in more.items()})


def print_kernels(name: str, counts: Counter) -> None:
    launches = Counter({what: n for (kind, what), n in counts.items() if kind == "launches"})
    launches = Counter({what: n for what, n in launches.items() if what not in NO_KERNEL})
    to_device = counts[("copies", "to device")]
    print(f"\n{name}: {launches.total():,.0f} kernels a step, {to_device:.0f} copies to the GPU")
    print("  " + ", ".join(f"{n:.0f} {what}" for what, n in launches.most_common(10)))


if __name__ == "__main__":
    sys.exit(main())
