"""train_main.py, which also writes how much memory it has in use and occupies.

    python tests/robustness/heap.py heap.txt --simulate-gpus 2 --model-gpu 1 --max-steps 20

adds a line `IN_USE OCCUPIED` to heap.txt four times a second: bytes that malloc has handed out, and
bytes of anonymous memory. It needs Linux and the GNU C library from version 2.33.

Growth is hard to see in what a process usually occupies, since two allocators keep what they were
given back. malloc_trim(3) returns that of the C library before each measurement. TensorFlow keeps
the memory of its tensors on a CPU for good, in regions that double; by
TF_ONEDNN_USE_SYSTEM_ALLOCATOR tensors have memory of the C library instead.

One growth is taken ahead, since it happens once: pathlib interns each part of a path, and Python's
table of interned strings (some 100,000 with TensorFlow) has places for 174,762, of which a string
that is gone keeps its place. After some 12,000 steps it would become larger, by 3.7 MiB.
"""

import ctypes
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.base.console import report_errors
from myxtts.commands import train
from tests.devicefeed.heap import bytes_in_use

# Memory differs by 10 MiB within a step, so only the mean of many lines shows growth.
EVERY_S = 0.25
ENVIRON = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
# more than are free in the table of interned strings, and fewer than are in the next larger one
STRINGS = 200_000


def bytes_occupied() -> int:
    """Return the bytes of anonymous memory after malloc returned what it can; 0 if unknown."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))


def write_memory(path: str) -> None:
    """Add a line every EVERY_S, as long as the process lives."""
    never = threading.Event()
    with open(path, "a", buffering=1, encoding="ascii") as file:  # each line at once
        while not never.wait(EVERY_S):
            file.write(f"{bytes_in_use()} {bytes_occupied()}\n")


def grow_interned() -> None:
    """Make Python's table of interned strings as large as it becomes in a long run; see above."""

    strings = [sys.intern(f"interned {number}") for number in range(STRINGS)]
    strings.clear()


def main() -> int:
    path, *argv = sys.argv[1:]
    os.environ.update(ENVIRON)
    grow_interned()
    threading.Thread(target=write_memory, args=(path,), daemon=True).start()
    return train.main(argv)


if __name__ == "__main__":
    sys.exit(report_errors(main))
