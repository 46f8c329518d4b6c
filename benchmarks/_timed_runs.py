"""Training runs that take a given time, started by the commands that a user types; resumable."""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from myxtts.base.errors import ConfigError
from myxtts.config.parser import bounded
from myxtts.report.metrics import read_metrics

RUNS = Path("runs")
DUAL = ("--simulate-gpus", "2", "--data-gpu", "0", "--model-gpu", "1")
PROBE_REPORTS = 3  # the first one is ignored


@dataclass(frozen=True)
class Target:
    """Target of a figure.

    Attributes:
        name, unit: as shown; fractions are shown in %.
        minimum, maximum: None without a limit on that side.
    """

    name: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None

    def __str__(self) -> str:
        bounds = ("≥", self.minimum), ("≤", self.maximum)
        shown = (f"{sign} {self._format(of)}" for sign, of in bounds if of is not None)
        return " ".join(shown)

    def row(self, values: Sequence[float]) -> str:
        value = median(values)
        high_enough = self.minimum is None or value >= self.minimum
        reached = high_enough and (self.maximum is None or value <= self.maximum)
        several = f" ({', '.join(map(self._format, values))})" if len(values) > 1 else ""
        verdict = ("yes" if reached else "no") if str(self) else "–"
        return f"| {self.name} | {str(self) or '–'} | {self._format(value)}{several} | {verdict} |"

    def _format(self, value: float) -> str:
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        return f"{value:.3g} {self.unit}".rstrip()


# How a run went, as `training_figures` has it.
TRAINING = {
    "wait_share": Target("wait share in dual placement", "%", maximum=0.01),
    "steps": Target("steps"),
    "steps_per_s": Target("steps per second"),
    "training_minutes": Target("time of the steps", "min"),
}


def parse_options(parser: argparse.ArgumentParser, parts: Sequence[str] = ()) -> argparse.Namespace:
    """Parse the command line, also with --seeds, --only and --json, which these benchmarks share.
    `train_flags` are the arguments after --, which are for train_main.py.

    Args:
        parts: further values of --only.
    """
    parser.epilog = "Arguments after -- are passed to train_main.py."
    seed, parts = bounded(int, 0, 2**31 - 1), (*parts, "train", "measure")
    add = parser.add_argument
    add("--seeds", type=seed, nargs="+", default=[0], help="of the runs; medians are shown")
    add("--only", choices=parts, help="only train, or only measure existing runs, and the like")
    of_json = "output file for the figures (default: beside the runs)"
    add("--json", metavar="FILE", type=absolute, help=of_json)
    arguments, train_flags = split_arguments(sys.argv[1:])
    options = parser.parse_args(arguments)
    options.train_flags = train_flags
    if train_flags and options.only == "measure":
        parser.error("arguments after -- are for train_main.py, which --only measure does not run")
    return options


def write_figures(figures: object, out: Path) -> None:
    """Write the figures of a benchmark as JSON, and print where."""
    out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"\n{out}")


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of a benchmark, and those after --, which are for train_main.py."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), list(arguments[end + 1 :])


def absolute(path: str) -> Path:
    return Path(path).absolute()


def check_unused_flags(runs: Iterable[Path], flags: Sequence[str]) -> None:
    """Raise ConfigError if training flags are given for an existing run, which has its own."""
    existing = [run.name for run in runs if settings_of(run).exists()]
    if flags and existing:
        raise ConfigError(
            f"{' '.join(flags)} was given, but {', '.join(existing)} already exists and keeps its"
            " own settings. Start another run with --name, or leave out the arguments after --."
        )


def run_script(script: str, *arguments: str) -> None:
    """Run a script of this project; exit if it fails."""
    process = subprocess.run([sys.executable, script, *arguments])
    if process.returncode:
        sys.exit(process.returncode)


def settings_of(run: Path) -> Path:
    return run / "config.yaml"


def train_for(
    run: Path,
    minutes: float,
    probe_steps: int,
    common: Sequence[str],
    script: str = "train_main.py",
) -> None:
    """Train a run whose steps take the given minutes, or resume it. A finished run is not trained
    again.

    A short run measures the step time first, which gives the number of steps.

    Args:
        common: arguments of train_main.py, for both runs.
        script: train_main.py, or another with its arguments.
    """
    if settings_of(run).exists():
        return run_script(script, "--resume", "--run", run.name, "--runs-dir", str(run.parent))
    probe = RUNS / f"{run.name}-probe-{int(time.time())}"
    length = ("--max-steps", str(probe_steps), "--log-every", str(probe_steps // PROBE_REPORTS))
    try:
        run_script(script, *common, "--run", probe.name, *length, "--checkpoint-every", "0")
        step_s = median(line["step_s"] for line in metrics_of(probe)[1:])
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    steps = max(round(60 * minutes / step_s), 1)
    return run_script(script, *common, "--run", run.name, "--max-steps", str(steps))


def metrics_of(run: Path) -> list[dict]:
    """Return the training reports in order."""
    return [report for report in read_metrics(run / "metrics.jsonl") if "step_s" in report]


def training_figures(run: Path) -> dict[str, float]:
    """Return the run's times from its own reports, without the first step, which is traced."""
    reports = metrics_of(run)
    if not reports or reports[-1]["step"] < 2:
        raise ConfigError(
            f"{run} has no report of a second step. Train it first, or give more --minutes."
        )
    steps, busy_s, wait_s, previous_step = 0, 0.0, 0.0, 1
    for report in reports:
        count = report["step"] - previous_step
        steps, previous_step = steps + count, report["step"]
        busy_s, wait_s = busy_s + count * report["step_s"], wait_s + count * report["wait_s"]
    return {
        "steps": reports[-1]["step"],
        "steps_per_s": steps / busy_s,
        "training_minutes": busy_s / 60,
        "wait_share": wait_s / busy_s,
    }


def print_table(goals: dict[str, Target], figures: Sequence[dict]) -> None:
    """Print the median of each figure over the runs, with their values and the target."""
    print("\n| figure | target | result | target reached |\n|---|---|---|---|")
    for key, target in goals.items():
        values = [run[key] for run in figures if key in run]
        if values:
            print(target.row(values))
        else:
            print(f"| {target.name} | {str(target) or '–'} | not measured | no |")
