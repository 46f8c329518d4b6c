"""train_main.py, which also writes how much memory it has in use: what it has asked malloc for and not given back.

The memory that a process occupies has more: malloc keeps what it was given back, and returns it to the system at times.
In a run of benchmarks/soak.py that comes and goes by 90 MiB, and hides whether anything grows.

    python benchmarks/_heap.py heap.txt --simulate-gpus 2 --data-gpu 0 --model-gpu 1 --max-steps 20

adds the bytes to heap.txt as a line, once a second. It needs the GNU C library from version 2.33.
"""

import ctypes
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import train
from myxtts.commands.console import report_errors

EVERY_S = 1.0


class Mallinfo2(ctypes.Structure):
    """The result of mallinfo2(3), for all arenas together."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def bytes_in_use() -> int:
    """Return the bytes that malloc has handed out, in its arenas and as mappings of their own."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def write_bytes_in_use(path: str) -> None:
    """Add a line every second, as long as the process lives."""
    never = threading.Event()
    with open(path, "a", buffering=1, encoding="ascii") as file:  # each line at once
        while not never.wait(EVERY_S):
            file.write(f"{bytes_in_use()}\n")


def main() -> int:
    path, *argv = sys.argv[1:]
    threading.Thread(target=write_bytes_in_use, args=(path,), daemon=True).start()
    return train.main(argv)


if __name__ == "__main__":
    sys.exit(report_errors(main))
