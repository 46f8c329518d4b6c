"""A voice from nothing: train for some minutes, measure, and compare with what is to be reached.

    python benchmarks/voice.py one --minutes 15 --seeds 0 1 2
    python benchmarks/voice.py many --minutes 45
    python benchmarks/voice.py one --minutes 15 --only measure
    python benchmarks/voice.py one --minutes 15 --name wide -- --batch-size 8 --learning-rate 1e-3

`one` is configs/voice.yaml: one English voice. `many` is configs/voices.yaml: eight speakers of English, Georgian and
Persian, and two more that training never hears. What is there already is not done again: the corpora under data/, the
runs under runs/, which go on where they were stopped. What follows -- goes to train_main.py, and only to a new run:
another one needs another --name.

A first run of some steps tells the time of a step, and so how many fit into the minutes: the learning rate ends with
them. The minutes are those of the steps: neither the first step, which is traced, nor checkpoints are in them, and
there are no validations and samples. The table shows the time that they took in the end.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path("runs")
PROBE_STEPS = 150
PROBE_LOG_EVERY = 50  # the first of three reports is left out
UTTERANCES = 50
ITERATIONS = 30
TIMED_STEPS = 15


@dataclass(frozen=True)
class Kind:
    """A run to be made.

    Attributes:
        corpora: arguments of utilities/make_demo_corpus.py by folder.
        unseen: recordings of speakers that training never hears.
    """

    config: str
    corpora: dict[str, tuple[str, ...]]
    unseen: str | None = None


LANGUAGES = ("--languages", "en", "ka", "fa")
KINDS = {
    "one": Kind("configs/voice.yaml", {"data/voice": ("--utterances", "1500")}),
    "many": Kind(
        "configs/voices.yaml",
        {
            "data/voices": ("--utterances", "1200", *LANGUAGES, "--speakers", "8"),
            "data/voices_unseen": (
                *("--utterances", "120", *LANGUAGES, "--first-speaker", "8", "--speakers", "2", "--seed", "1"),
            ),
        },
        unseen="data/voices_unseen/corpus.csv",
    ),
}


@dataclass(frozen=True)
class Target:
    """What a figure is to reach.

    Attributes:
        name, unit: as shown; shares are shown in %.
        least, most: None where that side is free.
    """

    name: str
    unit: str = ""
    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        bounds = [f"≥ {self._shown(self.least)}"] if self.least is not None else []
        return " ".join([*bounds, f"≤ {self._shown(self.most)}"] if self.most is not None else bounds)

    def line(self, values: Sequence[float]) -> str:
        middle = median(values)
        fine = (self.least is None or middle >= self.least) and (self.most is None or middle <= self.most)
        several = f" ({', '.join(map(self._shown, values))})" if len(values) > 1 else ""
        verdict = ("yes" if fine else "no") if str(self) else "–"
        return f"| {self.name} | {str(self) or '–'} | {self._shown(middle)}{several} | {verdict} |"

    def _shown(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.unit == "%" else f"{value:.3g}{self.unit and ' ' + self.unit}"


def targets(kind: str, minutes: float) -> dict[str, Target]:
    """By the key of a figure, in the order of the table."""
    distortion = "mel-cepstral distortion, times copy synthesis"
    if kind == "one":
        best = 1.9 if minutes >= 45 else 2.8
        voice = {
            "relative_distortion": Target(distortion, "×", most=best),
            "duration_ratio": Target("duration ratio", "s/s", least=0.95, most=1.05),
            "utterances_with_deletions": Target(f"with deletions, of {UTTERANCES} sentences", most=0),
            "utterances_with_insertions": Target(f"with insertions, of {UTTERANCES} sentences", most=0),
            "boundary_absolute_median": Target("phoneme boundaries, absolute median error", "ms", most=15),
            "boundary_within_20_ms": Target("phoneme boundaries within 20 ms", "%", least=0.7),
        }
    else:
        voice = {
            "speaker_accuracy_seen": Target("speaker accuracy, eight speakers of the training", "%", least=0.9),
            "speaker_accuracy_unseen": Target("speaker accuracy, two that were never heard", "%", least=0.6),
            **{f"{code}_relative_distortion": Target(f"{code}: {distortion}", "×", most=3) for code in LANGUAGES[1:]},
            "utterances_with_deletions": Target(f"with deletions, of {UTTERANCES} sentences"),
            "utterances_with_insertions": Target(f"with insertions, of {UTTERANCES} sentences"),
        }
    return voice | {
        "real_time_factor_single": Target("real-time factor, one sentence after another", "s/s", most=0.1),
        "real_time_factor_batch": Target("real-time factor, batches of 8", "s/s", most=0.1),
        "wait_share": Target("wait share in dual placement", "%", most=0.01),
        "rate_share": Target("the step's share of the matrix-product rate", "%", least=0.5),
        "step_gflop": Target("matrix products of that step, forward and backward", "GFLOP"),
        "matmul_gflops": Target("matrix-product rate of this machine", "GFLOP/s"),
        "steps": Target("steps"),
        "steps_per_s": Target("steps a second"),
        "training_minutes": Target("time of the steps", "min"),
    }


def main() -> int:
    asked = parse()
    os.chdir(ROOT)  # where corpora, runs and the paths in a run's settings are
    kind = KINDS[asked.kind]
    name = f"{asked.name or Path(kind.config).stem}-{asked.minutes:g}min"
    runs = {seed: RUNS / f"{name}-seed{seed}" for seed in asked.seeds}
    check_lost_flags(runs.values(), asked.train_flags)
    figures = []
    for seed, run in runs.items():
        if asked.only != "measure":
            make_corpora(kind)
            train(kind, run, seed, asked.minutes, asked.train_flags)
        if asked.only != "train":
            figures.append({"run": run.name, "seed": seed} | measure(kind, run))
    if figures:
        wanted = targets(asked.kind, asked.minutes)
        print_table(wanted, figures)
        out = asked.json or RUNS / f"{name}.json"
        out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(f"\n{out}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="What follows -- goes to train_main.py, over the configuration."
    )
    parser.add_argument("kind", choices=KINDS, help="one voice, or many speakers and languages")
    parser.add_argument("--minutes", type=bounded(float, 0.1, 1e5), default=15.0, help="of training steps (default 15)")
    parser.add_argument(
        "--seeds", type=bounded(int, 0, 2**31 - 1), nargs="+", default=[0], help="a run each; the table shows medians"
    )
    parser.add_argument("--only", choices=("train", "measure"), help="one half of it")
    parser.add_argument("--name", help="of the runs, without minutes and seed; by default that of the configuration")
    parser.add_argument(
        "--json", metavar="FILE", type=absolute, help="file for the figures; by default beside the runs"
    )
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    asked = parser.parse_args(arguments[:end])
    asked.train_flags = arguments[end + 1 :]
    if asked.train_flags and asked.only == "measure":
        parser.error("what follows -- goes to train_main.py, which --only measure leaves out")
    return asked


def absolute(path: str) -> Path:
    return Path(path).absolute()


def check_lost_flags(runs: Iterable[Path], flags: Sequence[str]) -> None:
    """Raises ConfigError where flags of training are given for a run that is there: it keeps its own settings."""
    there = [run.name for run in runs if settings_of(run).exists()]
    if flags and there:
        raise ConfigError(
            f"{' '.join(flags)} was asked for, but {', '.join(there)} is there and goes on with its own settings. "
            "Make another run by --name, or leave out what follows --."
        )


def program(script: str, *arguments: str) -> None:
    """Run a script of this project; ends this one where it fails."""
    done = subprocess.run([sys.executable, script, *arguments])
    if done.returncode:
        sys.exit(done.returncode)


def make_corpora(kind: Kind) -> None:
    for folder, arguments in kind.corpora.items():
        program("utilities/make_demo_corpus.py", "--out", folder, *arguments)


def settings_of(run: Path) -> Path:
    return run / "config.yaml"


def train(kind: Kind, run: Path, seed: int, minutes: float, flags: Sequence[str]) -> None:
    """A run whose steps take so many minutes; one that was begun goes on."""
    if settings_of(run).exists():
        return program("train_main.py", "--config", str(settings_of(run)), "--resume")
    common = ("--config", kind.config, "--seed", str(seed), *flags)
    probe = RUNS / f"{run.name}-probe-{int(time.time())}"
    program(
        "train_main.py",
        *(*common, "--run", probe.name, "--max-steps", str(PROBE_STEPS), "--log-every", str(PROBE_LOG_EVERY)),
        *("--checkpoint-every", "0"),
    )
    step_s = median(line["step_s"] for line in metrics_of(probe)[1:])
    shutil.rmtree(probe)
    steps = max(round(60 * minutes / step_s), 1)
    return program("train_main.py", *common, "--run", run.name, "--max-steps", str(steps))


def metrics_of(run: Path) -> list[dict]:
    """The reports of the training in order."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if "step_s" in line]


def measure(kind: Kind, run: Path) -> dict[str, float]:
    """All figures of a run, by the keys of `targets`."""
    score = evaluate(run)
    figures = voices(score["metrics"])
    for language, metrics in score["languages"].items():
        figures |= {f"{language}_{key}": value for key, value in voices(metrics).items()}
    if kind.unseen:
        unseen = voices(evaluate(run, "--data", kind.unseen)["metrics"])
        figures["speaker_accuracy_unseen"] = unseen["speaker_accuracy_unseen"]
        figures |= {f"unseen_{key}": value for key, value in unseen.items()}
    from benchmarks._speed import speed_of  # imports TensorFlow

    return figures | training_figures(run) | speed_of(run, UTTERANCES, ITERATIONS, TIMED_STEPS)


def evaluate(run: Path, *flags: str) -> dict:
    file = run / f"score{'-unseen' if flags else ''}.json"
    flags = ("--run", str(run), "--utterances", str(UTTERANCES), "--json", str(file), *flags)
    program("utilities/evaluate.py", *flags)
    return json.loads(file.read_text(encoding="utf-8"))


def voices(metrics: dict[str, dict]) -> dict[str, float]:
    return {key: metric["voice"] for key, metric in metrics.items() if metric["voice"] is not None}


def training_figures(run: Path) -> dict[str, float]:
    """What the run's own reports say of its time. The first step, which is traced, is in none of them."""
    reports = metrics_of(run)
    steps, busy_s, wait_s, before = 0, 0.0, 0.0, 1
    for report in reports:
        count = report["step"] - before
        steps, before = steps + count, report["step"]
        busy_s, wait_s = busy_s + count * report["step_s"], wait_s + count * report["wait_s"]
    return {
        "steps": reports[-1]["step"],
        "steps_per_s": steps / busy_s,
        "training_minutes": busy_s / 60,
        "wait_share": wait_s / busy_s,
    }


def print_table(wanted: dict[str, Target], figures: Sequence[dict]) -> None:
    print(f"\n{', '.join(one['run'] for one in figures)}\n")
    print("| figure | target | reached | as wanted |\n|---|---|---|---|")
    for key, target in wanted.items():
        values = [one[key] for one in figures if key in one]
        if values:
            print(target.line(values))
        else:
            print(f"| {target.name} | {str(target) or '–'} | not measured | no |")


if __name__ == "__main__":
    sys.exit(report_errors(main))
