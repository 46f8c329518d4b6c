"""Train a vocoder from scratch for some minutes, evaluate it and compare the figures with targets.

    python benchmarks/vocoder.py --minutes 15 --seeds 0 1 2
    python benchmarks/vocoder.py --minutes 5 15 45
    python benchmarks/vocoder.py --minutes 30 --speakers 8 --languages en ka fa
    python benchmarks/vocoder.py --minutes 15 --only measure
    python benchmarks/vocoder.py --minutes 15 --name wide -- --model-size normal

The corpus is made by espeak-ng: by default one English voice of 54 minutes. With several speakers,
two more that are not in the training data are measured, too. Existing results are reused: the
corpora under data/, and the runs under runs/, which continue where they were stopped. Arguments
after -- are passed to train_main.py, and only to a new run: use another --name for another run. A
new run is in dual placement on two simulated GPUs, and on real ones with `-- --simulate-gpus 0`.

A short probe run measures the step time, which gives the number of steps that fit into the minutes;
the learning rate schedule ends after these steps. The minutes exclude the first step, which is
traced, and checkpoints; there are no validation and no samples. The table shows the actual time.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._timed_runs import (
    DUAL,
    RUNS,
    TRAINING,
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
CONFIG = "configs/vocoder.yaml"
NOTHING_ELSE = ("--validate-every", "0", "--sample-every", "0")
PROBE_STEPS = 60
UTTERANCES = 1100
UNSEEN_SPEAKERS = 2
UNSEEN_UTTERANCES = 120
NOT_WORSE = "log_mel_error", "mel_cepstral_distortion"  # than Griffin-Lim
SCORES = "pesq_wb", "stoi", *NOT_WORSE, "log_f0_rmse", "voicing_error"
COLUMNS = "neural", "griffin_lim", "recordings"


class Corpus(NamedTuple):
    """A corpus for training and, with several speakers, one of other speakers."""

    folder: Path
    unseen: Path | None


def main() -> int:
    options = parse()
    os.chdir(ROOT)  # corpora, runs and the paths in a run's settings are relative to it
    corpus = corpus_of(options)
    pairs = itertools.product(options.minutes, options.seeds)
    runs = {pair: RUNS / "{}-{:g}min-seed{}".format(run_name(options), *pair) for pair in pairs}
    check_unused_flags(runs.values(), options.train_flags)
    if options.only != "measure":
        make_corpora(corpus, options)
    flags = "--config", CONFIG, "--train-data", str(corpus.folder), *DUAL, *NOTHING_ELSE
    all_figures = {}
    for minutes in options.minutes:
        figures = []
        for seed in options.seeds:
            run = runs[minutes, seed]
            if options.only != "measure":
                of_run = *flags, "--seed", str(seed), *options.train_flags
                train_for(run, minutes, PROBE_STEPS, of_run)
            if options.only != "train":
                scores = {"run": run.name, "seed": seed, "scores": scores_of(run, corpus)}
                figures.append(scores | training_figures(run))
        if figures:
            print_figures(figures, minutes, many=corpus.unseen is not None)
            all_figures[f"{minutes:g}"] = figures
    if all_figures:
        write_figures(all_figures, options.json or RUNS / f"{run_name(options)}.json")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    minutes = {"type": bounded(float, 0.1, 1e5), "nargs": "+", "default": [15.0]}
    add("--minutes", **minutes, help="minutes of steps (default 15)")
    add("--speakers", type=bounded(int, 1, 48), default=1, help="speakers to train on (default 1)")
    add("--languages", nargs="+", default=["en"], help="languages of the corpus (default en)")
    of_utterances = f"utterances to train on (default {UTTERANCES}: 54 min of en)"
    add("--utterances", type=bounded(int, 20), default=UTTERANCES, help=of_utterances)
    add("--name", default="vocoder", help="first part of the names of the runs (default vocoder)")
    return parse_options(parser)


def corpus_name(options: argparse.Namespace) -> str:
    return "-".join([str(options.speakers), *options.languages])


def run_name(options: argparse.Namespace) -> str:
    size = "" if options.utterances == UTTERANCES else f"-{options.utterances}"
    return f"{options.name}-{corpus_name(options)}{size}"


def corpus_of(options: argparse.Namespace) -> Corpus:
    folder = Path("data") / f"vocoder-{corpus_name(options)}-{options.utterances}"
    unseen = folder.with_name(f"{folder.name}-unseen")
    return Corpus(folder, unseen if options.speakers > 1 else None)


def make_corpora(corpus: Corpus, options: argparse.Namespace) -> None:
    speakers, languages = str(options.speakers), ("--languages", *options.languages)
    command = "-m", "myxtts", "corpus"
    size = ("--utterances", str(options.utterances), "--speakers", speakers)
    run_script(*command, "--out", str(corpus.folder), *size, *languages)
    if corpus.unseen:
        others = f"--first-speaker {speakers} --speakers {UNSEEN_SPEAKERS} --seed 1"
        others += f" --out {corpus.unseen} --utterances {UNSEEN_UTTERANCES}"
        run_script(*command, *others.split(), *languages)


def scores_of(run: Path, corpus: Corpus) -> dict[str, dict]:
    """Return the metrics of held-out utterances, and of unseen speakers if there are any."""
    if not corpus.unseen:
        return groups_of(evaluate(run), "")
    seen, unseen = evaluate(run), evaluate(run, "--data", str(corpus.unseen))
    return groups_of(seen, "seen speakers") | groups_of(unseen, "unseen speakers")


def groups_of(score: dict, name: str) -> dict[str, dict]:
    languages = {f"{name}, {language}": metrics for language, metrics in score["languages"].items()}
    return {name: score["metrics"]} | languages


def evaluate(run: Path, *flags: str) -> dict:
    file = run / f"score{'-unseen' if flags else ''}.json"
    run_script("-m", "myxtts", "evaluate", "--run", str(run), "--json", str(file), *flags)
    return json.loads(file.read_text(encoding="utf-8"))


def print_figures(figures: Sequence[dict], minutes: float, many: bool) -> None:
    """Print the scores, medians over the runs with their values, and the figures of training."""
    print(f"\n{', '.join(run['run'] for run in figures)}\n")
    header = "score | target | neural | Griffin-Lim | recordings | target reached"
    print(f"| {header} |\n{'|---' * 6}|")
    for group in figures[0]["scores"]:
        # A language has its PESQ only.
        keys = SCORES[:1] if "," in group else (*SCORES, "real_time_factor")
        for key in keys:
            metrics = [run["scores"][group][key] for run in figures]
            print(score_row(group, key, metrics, minutes, many))
    print_table(TRAINING, figures)


def score_row(group: str, key: str, metrics: Sequence[dict], minutes: float, many: bool) -> str:
    from myxtts.tasks.evaluation.table import METRICS

    shown = METRICS[key]
    values = {name: [of[name] for of in metrics if of[name] is not None] for name in COLUMNS}

    def cell(of_column: Sequence[float]) -> str:
        if not of_column:
            return "–"
        values = f" ({', '.join(map(shown.show, of_column))})" if len(of_column) > 1 else ""
        return f"{shown.show(median(of_column))}{values}"

    limit = limit_of(group, key, minutes, many)
    if limit is None and key in NOT_WORSE:
        limit = median(values["griffin_lim"])
    target, verdict = "–", "–"
    if limit is not None:
        sign = "≥" if key == "pesq_wb" else "≤"
        target = f"{sign} {limit:.2f}"
        verdict = "not measured"
        if values["neural"]:
            difference = median(values["neural"]) - limit
            verdict = "yes" if difference == 0 or (difference > 0) == (sign == "≥") else "no"
    name = f"{group.removeprefix(', ')}: {shown.label}" if group else shown.label
    cells = " | ".join(map(cell, values.values()))
    return f"| {name}, {shown.unit} | {target} | {cells} | {verdict} |"


def limit_of(group: str, key: str, minutes: float, many: bool) -> float | None:
    """Return the lowest PESQ or highest real-time factor asked for; None without a target."""
    if key == "real_time_factor":
        return 0.02
    if key != "pesq_wb" or "," in group:  # a language
        return None
    if many:
        return {"seen speakers": 3.2, "unseen speakers": 2.9}.get(group) if minutes >= 30 else None
    return 3.7 if minutes >= 45 else 3.4 if minutes >= 15 else None


if __name__ == "__main__":
    sys.exit(report_errors(main))
