"""Late imports, which each fork would repeat, are done before it.

The first run records them, and the process that forks repeats them from the record; none of them
starts a device.
"""

import atexit
import contextlib
import gc
import importlib
import json
import sys
from pathlib import Path


def record_in(path: Path) -> None:
    """Record in a file, at the end of this process, what it imports from now on."""
    before = set(sys.modules)
    atexit.register(lambda: path.write_text(json.dumps(sorted(set(sys.modules) - before))))


def repeat(path: Path) -> None:
    """Import what a process recorded."""
    for name in json.loads(path.read_text()):
        # Of a module that cannot be imported by itself: its importer does it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that the collector does not copy shared memory in each fork
