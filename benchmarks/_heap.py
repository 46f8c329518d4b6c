"""train_main.py, which also writes how much memory it has in use: by malloc, and of tensors.

The memory that a process occupies has more: malloc keeps what it was given back, and returns it to the system at times.
In a run of benchmarks/soak.py that comes and goes by 90 MiB, and hides whether anything grows. TensorFlow does the same
with its tensors on a CPU: it takes regions from malloc, each as large as all before, and keeps them. So what malloc has
handed out grows by one of 128 MiB when the tensors at one time are more than ever before, and by 4 MiB for its table: 8
bytes for each 256 of a region (AllocationRegion in xla/tsl/framework/bfc_allocator.h). The system maps pieces of 32 MiB
and more apart from malloc's arenas, and what is used of the regions is the number of the tensors. So there are three
numbers: what malloc has handed out in its arenas, without the tables, what it has mapped apart, and the tensors.

    python benchmarks/_heap.py heap.txt --simulate-gpus 2 --data-gpu 0 --model-gpu 1 --max-steps 20

adds the bytes to heap.txt four times a second, as a line `ARENAS MAPPED TENSORS`. It needs the GNU C library from
version 2.33.
"""

import ctypes
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import train
from myxtts.commands.console import report_errors

EVERY_S = 0.25  # memory differs by 9 MiB within a step, so only the mean of many lines shows growth
MAPPED_BYTES = 32 << 20  # of a piece that is mapped apart: malloc raises its limit up to this by itself
M_MMAP_THRESHOLD = -3  # malloc.h
TABLE_SHARE = 8 / 256  # of a region, for its table


class Mallinfo2(ctypes.Structure):
    """The result of mallinfo2(3), for all arenas together."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def bytes_in_use() -> int:
    """Return the bytes that malloc has handed out."""
    return sum(malloc_bytes())


def without_tables(arenas: int, mapped: int) -> int:
    """Return the bytes in the arenas without the tables of the regions, which are what is mapped apart."""
    return round(arenas - TABLE_SHARE * mapped)


def malloc_bytes() -> tuple[int, int]:
    """Return the bytes that malloc has handed out in its arenas, and as mappings of their own."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    info = mallinfo2()
    return info.uordblks, info.hblkhd


def tensor_bytes() -> int:
    """Return the bytes of the tensors of all CPU devices together; 0 before TensorFlow has started."""
    has_started = getattr(sys.modules.get("myxtts.tf_internals"), "has_started", bool)  # another thread imports it
    if not has_started():
        return 0
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("CPU:0")["current"]


def write_bytes_in_use(path: str) -> None:
    """Add a line every EVERY_S, as long as the process lives."""
    never = threading.Event()
    with open(path, "a", buffering=1, encoding="ascii") as file:  # each line at once
        while not never.wait(EVERY_S):
            arenas, mapped = malloc_bytes()
            file.write(f"{without_tables(arenas, mapped)} {mapped} {tensor_bytes()}\n")


def main() -> int:
    path, *argv = sys.argv[1:]
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    threading.Thread(target=write_bytes_in_use, args=(path,), daemon=True).start()
    return train.main(argv)


if __name__ == "__main__":
    sys.exit(report_errors(main))
