"""Say before a run whether it will work: does on a small scale what train_main.py does, with the same settings.

python validate_dual_gpu_pipeline.py --data-gpu 0 --model-gpu 1                      on two GPUs
python validate_dual_gpu_pipeline.py --simulate-gpus 2                               on a machine without GPU
python validate_dual_gpu_pipeline.py --config configs/dual_gpu.yaml --train-data CORPUS --json preflight.json

Exit codes: 0 all holds, 1 something does not, 2 a mistake in the call that the message explains.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.cli import bounded, read_settings, report_errors, settings_parser
from myxtts.config.schema import Config
from myxtts.files import check_writable, write_whole


def parse(argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    parser = settings_parser(
        prog="validate_dual_gpu_pipeline.py",
        description="Say before a run whether it will work. "
        "Without --data-gpu and --model-gpu: batches on GPU 0, model on GPU 1.",
    )
    parser.add_argument("--json", dest="json_file", metavar="FILE", type=Path, help="file for the same, as JSON")
    parser.add_argument(
        "--steps", metavar="N", type=bounded(int, 4, 1000), default=12, help="the most to take (4 to 1000, default 12)"
    )
    config, own = read_settings(parser, argv)
    check_writable("--json", own.json_file)
    return config, own


def main(argv: Sequence[str] | None = None) -> int:
    config, own = parse(sys.argv[1:] if argv is None else argv)
    from myxtts.preflight.validate import validate  # imports TensorFlow, which takes seconds

    report = validate(config, own.steps)
    print(f"\n{report.summary()}")
    if own.json_file is not None:
        write_whole(own.json_file, json.dumps(report.to_json(), ensure_ascii=False, indent=1).encode())
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(report_errors(main))
