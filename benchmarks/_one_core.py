"""Hold each device of a process to one core: logical devices of the CPU then compute as separate
devices would.

TensorFlow's logical CPU devices share one pool of threads, so that each of them takes all cores
that the others leave idle, and a second device gains nothing. Here each call of a function runs its
operations one after the other in one thread (TensorFlow's single-threaded executor; an operation
uses one thread by --intra-op-threads 1). A producer and a step then keep one core each busy. One
device that does both is held to one core by the affinity of its threads. Two replicas keep two
cores busy whatever the executor; theirs is the usual one, since an all-reduce between devices of
one thread each would wait for itself.

As a program it is train_main.py with each of two devices held to one core:

    python benchmarks/_one_core.py --simulate-gpus 2 --data-gpu 0 --model-gpu 1 --max-steps 20
"""

import os
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.commands import train

COMPUTING = (  # name of the threads of TensorFlow's inter-op pool, which run the functions
    "tf_Compute"
)
THREADS = ("--intra-op-threads", "1", "--inter-op-threads", "4")


def run_functions_in_one_thread() -> None:
    """Make the single-threaded executor the default of this process, in all threads."""
    from tensorflow.python.eager import context

    # tf.experimental.function_executor_type is for one thread, and is forgotten when devices are
    # configured.
    context.FunctionCallOptions.__init__.__defaults__ = ("SINGLE_THREADED_EXECUTOR", None)


def run_functions_in_the_pool() -> AbstractContextManager[None]:
    """Return a scope in which this thread calls functions as TensorFlow usually does."""
    import tensorflow as tf

    return tf.experimental.function_executor_type("")


def compute_on_one_core(index: int = 0) -> None:
    """Keep all threads that compute on one core, also those that start later; the others on the
    remaining cores.

    So reading, launching and whatever else the host does take no time from the device.

    Args:
        index: of the core among those that this process may use.
    """
    others = sorted(os.sched_getaffinity(0))
    core = others.pop(index % len(others))

    def pin() -> None:
        while True:
            for task in Path("/proc/self/task").iterdir():
                try:
                    computes = (task / "comm").read_text().strip() == COMPUTING
                    os.sched_setaffinity(
                        int(task.name), {core} if computes else set(others or [core])
                    )
                except (FileNotFoundError, ProcessLookupError):
                    continue  # the thread has ended
            time.sleep(0.2)

    threading.Thread(target=pin, daemon=True).start()


def main() -> int:
    run_functions_in_one_thread()
    return train.main([*sys.argv[1:], *THREADS])


if __name__ == "__main__":
    sys.exit(report_errors(main))
