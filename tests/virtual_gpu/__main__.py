"""Run a program of this checkout on virtual GPUs, in its own process and with its exit code:

python -m tests.virtual_gpu --gpus 4 -- train_main.py --data-gpu 3 --model-gpu 2 …
python -m tests.virtual_gpu --chaos 1 -- -m unittest tests.test_dual_gpu_device_placement
"""

import argparse
import os
import sys

from tests.virtual_gpu import Unavailable, environment

# Times of an A100 on PCIe 4.0, rounded; only ratios of times mean something.
COSTS = {
    "launch_us": (4, "host time of a launch"),
    "kernel_us": (3, "least time of a kernel"),
    "gflops": (15_000, "speed of products and convolutions"),
    "memory_gbps": (1_300, "speed of a device's memory"),
    "copy_us": (10, "least time of a copy"),
    "link_gbps": (20, "speed of copies"),
}


def main() -> int:
    parser = make_parser()
    options = parser.parse_args()
    program = options.program[options.program[:1] == ["--"] :]
    if not program:
        parser.error("no program given; write it after --, such as -- train_main.py --help")
    if options.gpus < 1:
        parser.error(f"--gpus {options.gpus}: give at least 1")
    settings = vars(options)
    del settings["program"]
    if not (settings.pop("costs") or settings["costs_only"]):
        settings = {name: value for name, value in settings.items() if name not in COSTS}
    try:
        environ = environment(**settings)
    except Unavailable as reason:
        print(f"virtual GPUs: {reason}", file=sys.stderr)
        return 2
    if "VIRTUAL_GPU_KERNEL_US" in environ:
        print(f"virtual GPUs: times are those of the costs x {options.scale}", file=sys.stderr)
    os.execve(sys.executable, [sys.executable, *program], environ)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.virtual_gpu", description="Run a program on virtual GPUs."
    )
    add = parser.add_argument
    add("--gpus", type=int, default=2, metavar="N", help="how many (default: 2)")
    add(
        "--memory-mib",
        type=int,
        nargs="+",
        metavar="MIB",
        default=None,
        help="memory of each GPU; the last one counts for the others (default: 4096)",
    )
    add(
        "--speeds",
        type=float,
        nargs="+",
        metavar="X",
        default=None,
        help="speed of each GPU, which divides the times of kernels (default: 1)",
    )
    add("--chaos", type=int, metavar="SEED", help="delay streams, launches and copies at random")
    add(
        "--no-poison",
        dest="poison",
        action="store_false",
        help="leave memory as it is that is not allocated, instead of filling it with NaN",
    )
    add("--tf32", action="store_true", help="round the factors of products to TF32")
    add("--costs", action="store_true", help="let kernels and copies last as the costs say")
    add("--costs-only", action="store_true", help="the same, and compute nothing")
    add("--scale", type=float, default=1.0, help="multiply all times (default: 1)")
    for name, (value, meaning) in COSTS.items():
        add(
            "--" + name.replace("_", "-"),
            type=float,
            default=value,
            metavar="X",
            help=f"{meaning} (default: {value})",
        )
    add("--stats", metavar="FILE", help="write what was counted: launches, copies, host waits")
    add("--trace", metavar="FILE", help="write a line for each launch and copy")
    add(
        "program",
        nargs=argparse.REMAINDER,
        metavar="-- PROGRAM [ARGUMENT ...]",
        help="arguments of Python",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
