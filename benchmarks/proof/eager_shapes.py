"""Eager operations on shapes from several Python threads on one device: does this TensorFlow
corrupt them?

    python -m benchmarks.proof.eager_shapes --seconds 10
    python -m benchmarks.proof.eager_shapes --seconds 2 --simulate-gpus 1

On a GPU, `tf.boolean_mask` and `tf.transpose` in several threads are reported to fail at random,
because the small eager operations on shapes inside them (Shape, StridedSlice, Pack, ConcatV2) get
wrong inputs: TensorFlow issues 123980 and 124017, pull request 123993. Prints one line of JSON.
"""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded

THREADS = 2


@dataclass
class Stress:
    """Operations of all threads, those with a wrong result, and errors by their messages."""

    operations: int = 0
    wrong: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def faults(self) -> int:
        return self.wrong + sum(self.errors.values())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=bounded(float, 0.01, 3600.0), default=10.0)
    parser.add_argument("--simulate-gpus", type=bounded(int, 0, 8), default=0)
    options = parser.parse_args(argv)

    from myxtts.config.schema import PlacementConfig
    from myxtts.placement import devices
    from myxtts.placement.routes import plan_routes

    placement = plan_routes(
        PlacementConfig(simulate_gpus=options.simulate_gpus), devices.gpu_count()
    )
    devices.configure(placement)
    print(json.dumps(asdict(stress(placement.routes[0].model, options.seconds))))
    return 0


def stress(device: str, seconds: float, thread_count: int = THREADS) -> Stress:
    """Run eager operations on shapes in several threads on one device, each at least once."""
    result, lock, end_s = Stress(), threading.Lock(), time.monotonic() + seconds
    threads = [
        threading.Thread(target=_run, args=(device, end_s, seed, result, lock))
        for seed in range(thread_count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result


def _run(device: str, end_s: float, seed: int, result: Stress, lock: threading.Lock) -> None:
    """Repeat the operations of one thread; each thread has shapes of its own."""
    import tensorflow as tf

    operations, wrong, errors = 0, 0, Counter[str]()
    with tf.device(device):
        cases = _cases(np.random.default_rng(seed), seed)
        while not operations or time.monotonic() < end_s:
            for operation, expected in cases:
                operations += 1
                try:
                    wrong += not np.array_equal(operation().numpy(), expected)
                except tf.errors.OpError as error:
                    errors[error.message.splitlines()[0][:160]] += 1
    with lock:
        result.operations += operations
        result.wrong += wrong
        result.errors += errors


def _cases(random: np.random.Generator, seed: int) -> list[tuple[Callable, np.ndarray]]:
    """Return operations that compute with shapes, and their results by NumPy."""
    import tensorflow as tf

    shape = (8 + 3 * seed, 7 + seed, 5, 3)
    values = random.normal(size=shape).astype(np.float32)
    mask = random.random(shape[:3]) < 0.5
    tensor, mask_tensor = tf.constant(values), tf.constant(mask)

    def transposed():
        rank = tf.rank(tensor)
        return tf.transpose(tensor, tf.concat([[rank - 1], tf.range(rank - 1)], axis=0))

    def flattened():
        dynamic = tf.shape(tensor)
        return tf.reshape(tensor, tf.concat([dynamic[:1] * dynamic[1], dynamic[2:]], axis=0))

    return [
        (lambda: tf.boolean_mask(tensor, mask_tensor), values[mask]),
        (transposed, np.moveaxis(values, -1, 0)),
        (flattened, values.reshape(-1, *shape[2:])),
    ]


if __name__ == "__main__":
    sys.exit(report_errors(main))
