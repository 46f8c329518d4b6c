"""Train a TTS voice from scratch for some minutes, evaluate it and compare the figures with
targets.

    python benchmarks/voice.py one --minutes 15 --seeds 0 1 2
    python benchmarks/voice.py many --minutes 45
    python benchmarks/voice.py one --minutes 15 --only measure
    python benchmarks/voice.py one --minutes 15 --name wide -- --batch-size 8 --learning-rate 1e-3

`one` is configs/voice.yaml: one English voice. `many` is configs/voices.yaml: eight speakers of
English, Georgian and Persian, and two more that are not in the training data. Existing results are
reused: the corpora under data/, and the runs under runs/, which continue where they were stopped.
Arguments after -- are passed to train_main.py, and only to a new run: use another --name for
another run. A new run is in dual placement on two simulated GPUs, and on real ones with `--
--simulate-gpus 0`.

A short probe run measures the step time, which gives the number of steps that fit into the minutes;
the learning rate schedule ends after these steps. The minutes exclude the first step, which is
traced, and checkpoints; there are no validation and no samples. The table shows the actual time.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._timed_runs import (
    DUAL,
    RUNS,
    TRAINING,
    Target,
    check_unused_flags,
    parse_options,
    print_table,
    run_script,
    train_for,
    training_figures,
    write_figures,
)
from myxtts.base.console import report_errors
from myxtts.config.parser import bounded

ROOT = Path(__file__).resolve().parents[1]
PROBE_STEPS = 150
UTTERANCES = 50
ITERATIONS = 30
TIMED_STEPS = 15


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        corpora: arguments of `myxtts corpus` for each folder.
        unseen: recordings of speakers that are not in the training data.
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
                *("--utterances", "120", *LANGUAGES, "--first-speaker", "8"),
                *("--speakers", "2", "--seed", "1"),
            ),
        },
        unseen="data/voices_unseen/corpus.csv",
    ),
}


def targets(kind: str, minutes: float) -> dict[str, Target]:
    """Return the targets by the key of their figure, in the order of the table."""
    distortion = "mel-cepstral distortion, times copy synthesis"
    if kind == "one":
        best = 1.9 if minutes >= 45 else 2.8
        median = Target("phoneme boundaries, absolute median error", "ms", maximum=15)
        voice = {
            "mel_cepstral_distortion_ratio": Target(distortion, "×", maximum=best),
            "duration_ratio": Target("length ratio", "s/s", minimum=0.98, maximum=1.02),
            "boundary_absolute_median": median,
            "boundary_within_20_ms": Target("phoneme boundaries within 20 ms", "%", minimum=0.7),
        }
    else:
        known, others = (
            "eight speakers of the training data",
            "two speakers not in the training data",
        )
        voice = {
            "speaker_accuracy_seen": Target(f"speaker accuracy, {known}", "%", minimum=0.9),
            "speaker_accuracy_unseen": Target(f"speaker accuracy, {others}", "%", minimum=0.6),
        }
        for code in LANGUAGES[1:]:
            of_language = Target(f"{code}: {distortion}", "×", maximum=3)
            voice[f"{code}_mel_cepstral_distortion_ratio"] = of_language
    one, eight = "one sentence after another", "batches of 8"
    return voice | {
        "real_time_factor_single": Target(f"real-time factor, {one}", "s/s", maximum=0.1),
        "real_time_factor_batch": Target(f"real-time factor, {eight}", "s/s", maximum=0.1),
        "rate_share": Target("the step's share of the matrix-product rate", "%", minimum=0.5),
        "step_gflop": Target("matrix products of a step, forward and backward", "GFLOP"),
        "matmul_gflops": Target("matrix-product rate of this machine", "GFLOP/s"),
        **TRAINING,
    }


def main() -> int:
    options = parse()
    os.chdir(ROOT)  # corpora, runs and the paths in a run's settings are relative to it
    kind = KINDS[options.kind]
    name = f"{options.name or Path(kind.config).stem}-{options.minutes:g}min"
    runs = {seed: RUNS / f"{name}-seed{seed}" for seed in options.seeds}
    check_unused_flags(runs.values(), options.train_flags)
    figures = []
    for seed, run in runs.items():
        if options.only != "measure":
            make_corpora(kind)
            train(kind, run, seed, options.minutes, options.train_flags)
        if options.only != "train":
            figures.append({"run": run.name, "seed": seed} | measure(kind, run))
    if figures:
        goals = targets(options.kind, options.minutes)
        print(f"\n{', '.join(run['run'] for run in figures)}")
        print_table(goals, figures)
        write_figures(figures, options.json or RUNS / f"{name}.json")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("kind", choices=KINDS, help="one voice, or many speakers and languages")
    minutes = bounded(float, 0.1, 1e5)
    add("--minutes", type=minutes, default=15.0, help="minutes of training steps (default 15)")
    add("--name", help="name of the runs, without minutes and seed (default: the configuration's)")
    return parse_options(parser)


def make_corpora(kind: Kind) -> None:
    for folder, arguments in kind.corpora.items():
        run_script("-m", "myxtts", "corpus", "--out", folder, *arguments)


def train(kind: Kind, run: Path, seed: int, minutes: float, flags: Sequence[str]) -> None:
    """Train a run whose steps take the given minutes, or resume it."""
    of_run = "--config", kind.config, *DUAL, "--seed", str(seed), *flags
    train_for(run, minutes, PROBE_STEPS, of_run)


def measure(kind: Kind, run: Path) -> dict[str, float]:
    """Return all figures of a run, by the keys of `targets`."""
    score = evaluate(run)
    figures = voices(score["metrics"])
    for language, metrics in score["languages"].items():
        figures |= {f"{language}_{key}": value for key, value in voices(metrics).items()}
    if kind.unseen:
        unseen = voices(evaluate(run, "--data", kind.unseen)["metrics"])
        figures["speaker_accuracy_unseen"] = unseen["speaker_accuracy_unseen"]
        figures |= {f"unseen_{key}": value for key, value in unseen.items()}
    from benchmarks._boundaries import run_figures  # imports TensorFlow
    from benchmarks._speed import speed_of

    if kind is KINDS["one"]:
        figures |= run_figures(run, UTTERANCES)[0]
    return figures | training_figures(run) | speed_of(run, UTTERANCES, ITERATIONS, TIMED_STEPS)


def evaluate(run: Path, *flags: str) -> dict:
    file = run / f"score{'-unseen' if flags else ''}.json"
    flags = ("--run", str(run), "--utterances", str(UTTERANCES), "--json", str(file), *flags)
    run_script("-m", "myxtts", "evaluate", *flags)
    return json.loads(file.read_text(encoding="utf-8"))


def voices(metrics: dict[str, dict]) -> dict[str, float]:
    """Return the figures of synthesized speech, and how far it is from what the vocoder can do."""
    distortion = metrics["mel_cepstral_distortion"]
    ratio = distortion["synthesized"] / distortion["copy_synthesis"]
    figures = {key: metric.get("synthesized") for key, metric in metrics.items()}
    figures["mel_cepstral_distortion_ratio"] = ratio
    return {key: value for key, value in figures.items() if value is not None}


if __name__ == "__main__":
    sys.exit(report_errors(main))
