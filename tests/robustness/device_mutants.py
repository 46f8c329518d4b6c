"""Mutation testing of placement and hand-over: plant known defects, one at a time, and see whether
a test on virtual GPUs fails.

    python tests/robustness/device_mutants.py
    python tests/robustness/device_mutants.py --only "limits of the other GPU"

The defects are those of `mutants.py` in kind, and of its form, but chosen: a wrong device, a lost
copy, a tensor of the host in a step, a lock that is missing, limits that are swapped. The tests
are `tests/virtual_gpu/runs.py`.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.robustness.mutants import SLOW_IMPORTS, path_of, run
from tests.virtual_gpu import Unavailable, environment

RUNS = "virtual_gpu.runs"
GPUS = 4
LIMIT_S = 1800.0  # of what takes ten seconds on an idle machine


class Planted(NamedTuple):
    """A text of a module, which occurs there once, and what replaces it.

    Of the interface of `mutants.Mutant`, it has what a run of tests needs.
    """

    name: str
    kind: str
    module: str
    old: str
    new: str
    test: str  # a class of RUNS that fails with it

    @property
    def id(self) -> str:
        return f"{self.name} ({self.kind}, {self.module})"

    def source(self) -> str:
        original = path_of(self.module).read_text(encoding="utf-8")
        assert original.count(self.old) == 1, f"{self.id}: the text is there not once"
        return original.replace(self.old, self.new)

    def diff(self) -> str:
        return f"-{self.old}\n+{self.new}"


DEVICE, COPY, HOST = "wrong device", "lost copy", "host tensor in a step"
LOCK, LIMITS = "missing lock", "swapped limits"
COPY_ON_DEVICE = """\
                with tf.device(device):
                    copies.append("""
MUTANTS = (
    Planted(
        *("copies go to the first replica", DEVICE, "devicefeed/handover.py"),
        COPY_ON_DEVICE,
        COPY_ON_DEVICE.replace("(device)", "(devices[0])"),
        "Replicated",
    ),
    Planted(
        *("batches are made on the first GPU", DEVICE, "devicefeed/producer.py"),
        """reach the operations.
        with tf.device(device):""",
        """reach the operations.
        with tf.device("/GPU:0"):""",
        "Dual",
    ),
    Planted(
        *("the step runs where batches are made", DEVICE, "run/step.py"),
        """reach the operations.
            with tf.device(self._state.device):""",
        """reach the operations.
            with tf.device("/GPU:1"):""",
        "Dual",
    ),
    Planted(
        *("other GPUs than named are visible", DEVICE, "placement/devices.py"),
        '[physical[i] for i in placement.gpus], "GPU"',
        'physical[: len(placement.gpus)], "GPU"',
        "Dual",
    ),
    Planted(
        *("the GPU that trains observes", DEVICE, "placement/settings.py"),
        '{"auto": data,',
        '{"auto": "",',
        "Dual",
    ),
    Planted(
        *("batches stay where they are made", COPY, "devicefeed/handover.py"),
        "{name: tf.identity(value) for",
        "{name: value for",
        "Dual",
    ),
    Planted(
        *("the newest batch comes first", COPY, "devicefeed/handover.py"),
        "self._taken.popleft() for",
        "self._taken.pop() for",
        "Dual",
    ),
    Planted(
        *("a microbatch is taken twice", COPY, "devicefeed/handover.py"),
        "            del self._coming[0]\n",
        "",
        "Dual",
    ),
    Planted(
        *("replicas get the batches of each other", COPY, "devicefeed/producer.py"),
        "for index in self._order)",
        "for index in reversed(self._order))",
        "Replicated",
    ),
    Planted(
        *("copies go to the host", HOST, "devicefeed/handover.py"),
        COPY_ON_DEVICE,
        COPY_ON_DEVICE.replace("(device)", '("/CPU:0")'),
        "Dual",
    ),
    Planted(
        *("rates stay on the host", HOST, "run/step.py"),
        """steps_done = number - 1
        with tf.device(self._device):""",
        """steps_done = number - 1
        with tf.device("/CPU:0"):""",
        "Dual",
    ),
    Planted(
        *("the request to stop stays on the host", HOST, "run/step.py"),
        """with tf.device(device):
            self._stop =""",
        """with tf.device("/CPU:0"):
            self._stop =""",
        "Dual",
    ),
    Planted(
        *("threads share a rendezvous", LOCK, "batches/pipeline.py"),
        "        run_operations_as_kernels()\n",
        "",
        "Threads",
    ),
    Planted(
        *("threads share an iterator", LOCK, "devicefeed/upload.py"),
        """with self._lock:
            while self._next""",
        """if True:
            while self._next""",
        "Threads",
    ),
    Planted(
        *("limits of the other role", LIMITS, "placement/settings.py"),
        'return {"data": data or DEFAULT_DATA_MEMORY_MIB, "model": model or',
        'return {"data": model or DEFAULT_DATA_MEMORY_MIB, "model": data or',
        "Limits",
    ),
    Planted(
        *("limits of the other GPU", LIMITS, "placement/devices.py"),
        "if device.physical == i]",
        "if device.physical != i]",
        "Limits",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these")
    help_ = f"try so many at the same time (default: {os.cpu_count()}, one on each core)"
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help=help_)
    options = parser.parse_args()
    mutants = {mutant.name: mutant for mutant in MUTANTS}
    names = options.only or mutants
    if unknown := set(names) - set(mutants):
        parser.error(f"--only {unknown} is no mutant: {', '.join(mutants)}")
    chosen = [mutants[name] for name in names]
    if "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" not in os.environ:
        try:
            environ = environment(GPUS)
        except Unavailable as reason:
            print(f"not shown: {reason}")
            return 0
        # TensorFlow loads the plug-in when it is imported.
        os.execve(sys.executable, [sys.executable, *sys.argv], environ)
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    unchanged = [(test, None) for test in sorted({mutant.test for mutant in chosen})]
    print("| mutant | kind | verdict | by | what it said |\n|---|---|---|---|---|", flush=True)
    if not succeed(unchanged, options.jobs):
        return 1
    return 0 if succeed([(mutant.test, mutant) for mutant in chosen], options.jobs) else 1


def succeed(cases: Sequence[tuple[str, Planted | None]], jobs: int) -> bool:
    """Run tests with defects or None, some at the same time; whether they fail just with those."""
    forks = []
    for first in range(jobs):
        fork = os.fork()
        if not fork:
            os._exit(0 if all([*starmap(is_as_expected, cases[first::jobs])]) else 1)
        forks.append(fork)
    return not any([os.waitpid(fork, 0)[1] for fork in forks])


def is_as_expected(test: str, mutant: Planted | None) -> bool:
    """Run a test and print a row of the table; whether it fails just with a defect."""
    outcome = run(f"{RUNS}.{test}", mutant, LIMIT_S)
    name, kind = (mutant.name, mutant.kind) if mutant else ("none", "")
    by = outcome.by.removeprefix(f"{RUNS}.") or test
    print(f"| {name} | {kind} | {outcome.verdict} | {by} | {outcome.reason} |", flush=True)
    return (outcome.verdict == "killed") == (mutant is not None)


if __name__ == "__main__":
    sys.exit(main())
