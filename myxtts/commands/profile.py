"""`myxtts profile`: measure a run on the first steps of its plan, without changing its weights or
its folder.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from myxtts.commands.parser import bounded, read_settings, settings_parser
from myxtts.config.schema import Config
from myxtts.errors import ConfigError
from myxtts.files import check_writable, write_whole

NAME = "profile"
HELP = "Measure where the time of a training run goes, and recommend faster settings."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    parser = settings_parser(prog, HELP, NAME)
    group = parser.add_argument_group("profile", "What to measure and what to write.")
    group.add_argument(
        "--num-steps",
        metavar="N",
        type=bounded(int, 2, 1e6),
        default=100,
        help="steps to measure, after a warm-up (default 100)",
    )
    group.add_argument(
        "--json", dest="json_file", metavar="FILE", type=Path, help="write the figures as JSON"
    )
    group.add_argument(
        "--picture",
        metavar="FILE",
        type=Path,
        help="write a PNG with a timeline of each device, for some batches",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write a trace of all batches for ui.perfetto.dev",
    )
    group.add_argument(
        "--emulate",
        metavar="STAGES",
        help="sleep these seconds instead of computing: produce=0.020,transfer=0.002,step=0.020",
    )
    group.add_argument(
        "--real-time",
        action="store_true",
        help="with --emulate: run with real-time priority, for a busy machine",
    )
    return read_settings(parser, argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    outputs = {"--json": options.json_file, "--picture": options.picture, "--trace": options.trace}
    for flag, path in outputs.items():
        check_writable(flag, path)
    if options.real_time and options.emulate is None:
        raise ConfigError(
            "--real-time was given without --emulate. Leave it out, or add --emulate."
        )
    if options.emulate is not None:
        from myxtts.planner.emulator import parse_emulation, real_time_priority
        from myxtts.profiling.emulation import measure_emulation

        with real_time_priority() if options.real_time else nullcontext():
            measurement, placement = measure_emulation(
                parse_emulation(options.emulate), config, options.num_steps
            )
        unit, device_metrics = "batches/s", None
    else:
        from myxtts.profiling.measure import profile  # imports TensorFlow, which takes seconds

        measurement, device_metrics, placement = profile(config, options.num_steps)
        unit = "audio s/s"
    from myxtts.profiling.analysis import analyze
    from myxtts.profiling.report import report_lines

    analysis = analyze(measurement, config.data)
    name = (
        f"{placement.name}{', emulated' if device_metrics is None else ''}, {options.num_steps}"
        " steps"
    )
    device_lines = device_metrics.lines() if device_metrics else ()
    print("\n".join([f"{'profile':<14} {name}", *report_lines(analysis, unit), *device_lines]))
    write_outputs(
        outputs, measurement, analysis, device_metrics, name, unit, config.data.num_workers
    )
    return 0


def write_outputs(
    outputs: Mapping[str, Path | None],
    measurement: Any,
    analysis: Any,
    device_metrics: Any,
    name: str,
    unit: str,
    num_workers: int,
) -> None:
    """Write the requested files."""
    from myxtts.profiling.report import analysis_to_json
    from myxtts.profiling.timeline import chrome_trace, timeline_excerpt, timeline_rows
    from myxtts.report.plots import png_bytes, timeline_picture

    spans = measurement.traced[-1].spans
    json_file, picture, trace = outputs["--json"], outputs["--picture"], outputs["--trace"]
    if json_file:
        figures = {
            "profile": name,
            "num_workers": num_workers,
            "single_device": measurement.single_device,
        }
        figures |= analysis_to_json(analysis, unit)
        figures |= device_metrics.to_json() if device_metrics else {}
        write_whole(json_file, (json.dumps(figures, indent=1) + "\n").encode())
    if picture:
        rows = {
            row: [span[1:4] for span in spans]
            for row, spans in timeline_rows(timeline_excerpt(spans)).items()
        }
        title = (
            f"{name}: efficiency {analysis.efficiency:.1%}, model device busy"
            f" {analysis.accelerator_utilisation:.1%}"
        )
        write_whole(picture, png_bytes(timeline_picture(rows, title)))
    if trace:
        write_whole(trace, json.dumps(chrome_trace(spans, name)).encode())
    for path in filter(None, outputs.values()):
        print(f"{'wrote':<14} {path}")
