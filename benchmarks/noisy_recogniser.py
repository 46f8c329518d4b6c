"""Train recognisers without and with augmentation for some minutes each, and compare their error
rates in noise.

    python benchmarks/noisy_recogniser.py
    python benchmarks/noisy_recogniser.py --minutes 20 --seeds 0 1 2
    python benchmarks/noisy_recogniser.py --only measure
    python benchmarks/noisy_recogniser.py --name babble -- --babble-fraction 1

Both have the settings of configs/asr_voice.yaml, a tiny recogniser of one espeak-ng voice; one has
the augmentation of configs/asr_noisy.yaml in addition. They are measured on the held-out sentences
as they are, in noise, and in rooms. These noises and rooms are fixed, and of other kinds than those
of training (myxtts/tasks/asr/evaluation.py). P and C are the times in which a batch is produced and
a step is taken, each stage alone on all cores.

Existing results are reused: the corpus under data/, and the runs under runs/, which continue where
they were stopped. The minutes are those of the steps, as in benchmarks/vocoder.py: a probe run
gives their number. Augmentation takes time from the steps where both devices share cores, as here,
so its run has fewer of them. Arguments after -- are passed to train_main.py for the run with
augmentation, and only to a new one.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._timed_runs import (
    DUAL,
    RUNS,
    check_unused_flags,
    parse_options,
    run_script,
    settings_of,
    train_for,
    training_figures,
    write_figures,
)
from myxtts.base.console import report_errors
from myxtts.config.flags import SETTINGS
from myxtts.config.load import load
from myxtts.config.parser import bounded
from myxtts.config.schema import AugmentationConfig

ROOT = Path(__file__).resolve().parents[1]
CONFIG, AUGMENTATION = "configs/asr_voice.yaml", Path("configs/asr_noisy.yaml")
CORPUS, SENTENCES = Path("data/asr"), 1500  # of this configuration
NOTHING_ELSE = ("--validate-every", "0", "--sample-every", "0")
PROBE_STEPS = 60
PROFILE_STEPS = 20
SNRS_DB, RT60S_S = ("20", "10", "5", "0"), ("0.3", "0.6")
KINDS = "without", "with"  # augmentation
CLEAN, JUDGED = "clean", "noise, SNR 5 dB"
MIN_REDUCTION, MAX_CLEAN_LOSS = 0.3, 0.003  # relative, and of the rate itself


def main() -> int:
    options = parse()
    os.chdir(ROOT)  # the corpus, the runs and the paths in a run's settings are relative to it
    runs = {kind: [run_of(options, kind, seed) for seed in options.seeds] for kind in KINDS}
    check_unused_flags(runs["with"], options.train_flags)
    if options.only != "measure":
        train(options, runs)
    if options.only == "train":
        return 0
    figures = {kind: [measure(run) for run in of_kind] for kind, of_kind in runs.items()}
    print_figures(figures)
    write_figures(figures, options.json or RUNS / f"{options.name}-{options.minutes:g}min.json")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    minutes = bounded(float, 0.1, 1e5)
    add("--minutes", type=minutes, default=9.0, help="minutes of steps of each run (default 9)")
    add("--name", default="noisy", help="first part of the names of the runs (default noisy)")
    return parse_options(parser)


def run_of(options: argparse.Namespace, kind: str, seed: int) -> Path:
    return RUNS / f"{options.name}-{kind}-{options.minutes:g}min-seed{seed}"


def train(options: argparse.Namespace, runs: dict[str, list[Path]]) -> None:
    run_script("-m", "myxtts", "corpus", "--out", str(CORPUS), "--utterances", str(SENTENCES))
    flags = {"without": (), "with": (*augmentation_flags(), *options.train_flags)}
    for number, seed in enumerate(options.seeds):
        for kind in KINDS:
            common = ("--config", CONFIG, *DUAL, *NOTHING_ELSE, "--seed", str(seed), *flags[kind])
            train_for(runs[kind][number], options.minutes, PROBE_STEPS, common)


def augmentation_flags() -> list[str]:
    """Return the augmentation of the configuration as flags."""
    settings, defaults = load(AUGMENTATION).augmentation, AugmentationConfig()
    return [
        text
        for name, value in settings.model_dump().items()
        if value != getattr(defaults, name)
        for text in (SETTINGS[name].flag, str(value))
    ]


def measure(run: Path) -> dict:
    """Return the error rates of a run by condition, its number of steps, and P and C in seconds."""
    score, profile = run / "score.json", run / "profile.json"
    noise = ("--noise-snr-db", *SNRS_DB, "--rt60", *RT60S_S)
    run_script("-m", "myxtts", "evaluate", "--run", str(run), "--json", str(score), *noise)
    if not profile.exists():
        flags = "--config", str(settings_of(run)), "--num-steps", str(PROFILE_STEPS)
        script = "utilities/dual_gpu_bottleneck_profiler.py"
        run_script(script, *flags, "--json", str(profile))
    rates = json.loads(score.read_text(encoding="utf-8"))
    stages = json.loads(profile.read_text(encoding="utf-8"))["stages"]
    return {
        "run": run.name,
        "rates": {CLEAN: rates["overall"]} | rates["distorted"],
        "produce_s": stages["produce"]["mean_s"],
        "step_s": stages["step"]["mean_s"],
        **training_figures(run),
    }


def print_figures(figures: dict[str, list[dict]]) -> None:
    """Print the medians over the seeds, and whether the targets are reached."""
    print(f"\n{', '.join(run['run'] for kind in KINDS for run in figures[kind])}\n")
    print("| | without augmentation | with augmentation | change |\n|---|---|---|---|")
    conditions = figures["with"][0]["rates"]
    rates = {name: [rate_of(figures[kind], name) for kind in KINDS] for name in conditions}
    for condition, (without, augmented) in rates.items():
        change = f"{100 * (augmented / without - 1):+.0f} %" if without else "–"
        both = f"{100 * without:.2f} % | {100 * augmented:.2f} %"
        print(f"| character error rate, {condition} | {both} | {change} |")
    for key, name, factor, unit in (
        ("produce_s", "P, producing a batch", 1e3, "ms"),
        ("step_s", "C, a step", 1e3, "ms"),
        ("steps", "steps", 1, ""),
        ("training_minutes", "time of the steps", 1, "min"),
    ):
        medians = (factor * median(run[key] for run in figures[kind]) for kind in KINDS)
        cells = [f"{value:.4g} {unit}".strip() for value in medians]
        print(f"| {name} | {' | '.join(cells)} | |")
    reduction = 1 - rates[JUDGED][1] / rates[JUDGED][0]
    loss = rates[CLEAN][1] - rates[CLEAN][0]
    reduced, higher = f"{MIN_REDUCTION:.0%}", f"{100 * MAX_CLEAN_LOSS:g} points"
    print("\n| target | result | reached |\n|---|---|---|")
    for target, result, reached in (
        (f"errors at 5 dB reduced by ≥ {reduced}", f"{reduction:.1%}", reduction >= MIN_REDUCTION),
        (f"clean rate higher by ≤ {higher}", f"{100 * loss:+.2f}", loss <= MAX_CLEAN_LOSS),
    ):
        print(f"| {target} | {result} | {'yes' if reached else 'no'} |")


def rate_of(runs: Sequence[dict], condition: str) -> float:
    return median(run["rates"][condition]["character_error_rate"] for run in runs)


if __name__ == "__main__":
    sys.exit(report_errors(main))
