"""Where the time of a training run goes, and what would make it faster.

python utilities/dual_gpu_bottleneck_profiler.py --batch-size 16 --num-steps 100 --data-gpu 0 --model-gpu 1
python utilities/dual_gpu_bottleneck_profiler.py --config configs/demo.yaml --num-steps 50 --picture lanes.png
python utilities/dual_gpu_bottleneck_profiler.py --emulate produce=0.020,transfer=0.002,step=0.020

It takes every setting of train_main.py, measures a run with them on the first steps of its plan, and changes nothing.
"""

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, read_settings, report_errors, settings_parser
from myxtts.config.schema import Config
from myxtts.errors import ConfigError
from myxtts.files import check_writable, write_whole
from myxtts.observe.plots import lanes, png_bytes
from myxtts.planner.emulator import parse_emulation, real_time_priority
from myxtts.profiling.analysis import analyze
from myxtts.profiling.emulation import measure_emulation
from myxtts.profiling.report import analysis_figures, report_lines
from myxtts.profiling.timeline import chrome_trace, timeline_excerpt, timeline_rows


def parse(arguments: list[str] | None) -> tuple[Config, argparse.Namespace]:
    parser = settings_parser(
        prog="utilities/dual_gpu_bottleneck_profiler.py",
        description="Measure where the time of a training run goes, and say what would make it faster.",
    )
    own = parser.add_argument_group("profile", "What is measured, and what is written.")
    own.add_argument(
        "--num-steps",
        metavar="N",
        type=bounded(int, 2, 1e6),
        default=100,
        help="steps to measure, after a warm-up (default 100)",
    )
    own.add_argument("--json", dest="json_file", metavar="FILE", type=Path, help="file for the figures")
    own.add_argument("--picture", metavar="FILE", type=Path, help="PNG file: what worked when, for some batches")
    own.add_argument("--trace", metavar="FILE", type=Path, help="the same of all batches, to open in ui.perfetto.dev")
    own.add_argument(
        "--emulate",
        metavar="STAGES",
        help="sleep instead of working: produce=0.020,transfer=0.002,step=0.020 in seconds",
    )
    own.add_argument(
        "--real-time", action="store_true", help="with --emulate: before all other programs of a busy machine"
    )
    return read_settings(parser, sys.argv[1:] if arguments is None else arguments)


def main(arguments: list[str] | None = None) -> int:
    config, asked = parse(arguments)
    outputs = {"--json": asked.json_file, "--picture": asked.picture, "--trace": asked.trace}
    for flag, path in outputs.items():
        check_writable(flag, path)
    if asked.real_time and asked.emulate is None:
        raise ConfigError("--real-time was given without --emulate, which it is for. Leave it out.")
    if asked.emulate is not None:
        with real_time_priority() if asked.real_time else nullcontext():
            measurement, placement = measure_emulation(parse_emulation(asked.emulate), config, asked.num_steps)
        unit, findings = "batches/s", None
    else:
        from myxtts.profiling.measure import profile  # imports TensorFlow, which takes seconds

        measurement, findings, placement = profile(config, asked.num_steps)
        unit = "audio s/s"
    verdict = analyze(measurement, config.data)
    name = f"{placement.name}{', emulated' if findings is None else ''}, {asked.num_steps} steps"
    print("\n".join([f"{'profile':<14} {name}", *report_lines(verdict, unit), *(findings.lines() if findings else ())]))
    write(outputs, measurement, verdict, findings, name, unit)
    return 0


def write(outputs, measurement, verdict, findings, name: str, unit: str) -> None:
    """The files that were asked for."""
    spans = measurement.watched[-1].spans
    if outputs["--json"]:
        figures = {"profile": name, **analysis_figures(verdict, unit), **(findings.figures() if findings else {})}
        write_whole(outputs["--json"], (json.dumps(figures, indent=1) + "\n").encode())
    if outputs["--picture"]:
        rows = {row: [one[1:4] for one in own] for row, own in timeline_rows(timeline_excerpt(spans)).items()}
        title = f"{name}: efficiency {verdict.efficiency:.1%}, model device works {verdict.accelerator_utilisation:.1%}"
        write_whole(outputs["--picture"], png_bytes(lanes(rows, title)))
    if outputs["--trace"]:
        write_whole(outputs["--trace"], json.dumps(chrome_trace(spans, name)).encode())
    for path in filter(None, outputs.values()):
        print(f"{'wrote':<14} {path}")


if __name__ == "__main__":
    sys.exit(report_errors(main))
