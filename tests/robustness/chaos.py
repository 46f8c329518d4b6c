"""Damage the real program at random, again and again, and look at what it does.

    python tests/robustness/chaos.py --minutes 60 --seed 0
    python tests/robustness/chaos.py --seed 0 --repeat 17    # one case, with its outputs in --out
    python tests/robustness/chaos.py --list

Each case is a function of the seed and its number alone: which scenario, faults and settings, and
at which moments: at a named point such as the second rename of a file, at a line of the log, or
after a random time. The programs are forks of this process, which has imported TensorFlow and
started no device. They run train_main.py with its smallest settings, and train a toy.

After each program: its exit code is 0, 2 with one message on what to do, 130 or 143, or that of the
signal sent; no output has a traceback; it ends within a time limit and leaves no process behind.
No checkpoint that was complete is lost; and where a run goes on to its end, its losses and weights
are those of an undisturbed run, bit for bit. Linux only.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.base.console import filter_stderr, report_errors
from myxtts.base.files import check_writable, make_folder, write_json
from myxtts.config.parser import bounded
from myxtts.devicefeed.errors import PlacementError
from tests.robustness.faults.case import SCENARIOS, Settings
from tests.robustness.faults.injection import compile_shim
from tests.robustness.faults.report import describe, failed

# Environment variable: the folder of this test, over the start with the shim.
FOLDER = "MYXTTS_CHAOS_FOLDER"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    if options.list:
        print("\n".join(scenario.line() for scenario in SCENARIOS))
        return 0
    if sys.platform != "linux" or not shutil.which("cc"):
        raise PlacementError("the chaos test needs Linux and a C compiler, cc.")
    check_writable("--json", options.json)
    folder = prepare_folder(options.out)
    os.environ.update({"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"})
    filter_stderr()
    from tests.robustness.faults.driver import run_cases  # imports TensorFlow, which takes seconds

    names = {*Settings._fields} & {*vars(options)}
    given = {name: getattr(options, name) for name in names}
    result = run_cases(Settings(**given, folder=folder))
    if options.json is not None:
        write_json(options.json, result)
    print(describe(result))
    return int(failed(result))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Exit code: 0 if no case failed, else 1; 2 for wrong use. Folders of failed cases"
        " are kept.",
    )
    add = parser.add_argument
    minutes = bounded(float, 0.1, 10_000.0)
    add("--minutes", type=minutes, default=10.0, help="after the undisturbed runs; default 10")
    add("--cases", metavar="N", type=bounded(int, 1), default=0, help="end after N cases")
    add("--seed", type=bounded(int, 0), default=0, help="of all cases (default 0)")
    chosen = {"metavar": "NAME", "choices": names, "default": names}
    add("--scenarios", nargs="+", help="some of --list", **chosen)
    add("--list", action="store_true", help="list the scenarios and exit")
    add("--repeat", metavar="CASE", type=bounded(int, 0), help="the number of the only case to run")
    add("--jobs", metavar="N", type=bounded(int, 1, 64), default=2, help="at a time (default 2)")
    add("--json", metavar="FILE", type=Path, help="write all cases and failures as JSON")
    add("--out", metavar="DIR", type=Path, help="parent of the test's folder")
    return parser.parse_args(argv)


def prepare_folder(parent: Path | None) -> Path:
    """Return a new folder; start this program again with the shim preloaded."""
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    if parent is not None:
        make_folder(parent, "--out")
    folder = Path(tempfile.mkdtemp(prefix="myxtts-chaos-", dir=parent)).resolve()
    preloaded = filter(None, (str(compile_shim(folder)), os.environ.get("LD_PRELOAD")))
    os.environ |= {FOLDER: str(folder), "LD_PRELOAD": " ".join(preloaded)}
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    sys.exit(report_errors(main))
