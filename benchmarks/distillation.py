"""Train small voices without and with a teacher, from 5 and from 45 minutes of recordings, and compare them.

    python benchmarks/distillation.py
    python benchmarks/distillation.py --minutes 20 --seeds 0 1 2
    python benchmarks/distillation.py --only measure

The corpus has eight espeak-ng voices of English. The teacher, of --model-size small, learns from 45 minutes of it;
the students, tiny, from the same 45 minutes or from their first 5. A student with a teacher also hears it speak
sentences of which nobody has a recording. All students train for the same time, in dual placement on simulated GPUs
that share the cores, so a student with a teacher takes fewer steps. They are measured on 50 sentences that none of the
corpora has, by the speakers of the corpus and by two others, with a recogniser that learned from the whole corpus.

Existing results are reused: the corpora under data/, and the runs under runs/, which continue where they were stopped.
A probe run gives the number of steps, as in benchmarks/voice.py. Arguments after -- are passed to train_main.py for the
students with a teacher, and only to new ones.
"""

import argparse
import csv
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import soundfile

from benchmarks._timed_runs import (
    DUAL,
    RUNS,
    check_unused_flags,
    parse_options,
    run_script,
    train_for,
    training_figures,
)
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.data.demo_corpus import load_grammar

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "configs/voices.yaml"
CORPORA = {
    "data/distillation": ("--utterances", "1400", "--speakers", "8"),
    "data/distillation_held_out": ("--utterances", "80", "--speakers", "8", "--seed", "1"),
    "data/distillation_unseen": ("--utterances", "60", "--first-speaker", "8", "--speakers", "2", "--seed", "1"),
}
WHOLE, HELD_OUT, UNSEEN = (Path(folder) for folder in CORPORA)
TEXTS, SENTENCES = Path("data/distillation/texts.txt"), 5000
FEW, MANY = 5, 45  # minutes of recordings
KINDS = "without", "with"  # a teacher
PROBE_STEPS = 60
UTTERANCES = 50
ASR_STEPS = 900
MIN_REDUCTION = 0.2  # of the distortion
FIGURES = {  # key of evaluate.py, or of `measure`: (name, unit, factor)
    "mel_cepstral_distortion_ratio": ("mel-cepstral distortion, times copy synthesis", " ×", 1),
    "character_error_rate": ("character error rate", " %", 100),
    "word_error_rate": ("word error rate", " %", 100),
    "utterances_with_deletions": (f"sentences with deletions, of {UTTERANCES}", "", 1),
    "utterances_with_insertions": (f"sentences with insertions, of {UTTERANCES}", "", 1),
    "speaker_accuracy_seen": ("speaker accuracy, speakers of the corpus", " %", 100),
    "speaker_accuracy_unseen": ("speaker accuracy, two others", " %", 100),
    "unseen_mel_cepstral_distortion_ratio": ("mel-cepstral distortion, two others", " ×", 1),
    "unseen_character_error_rate": ("character error rate, two others", " %", 100),
    "steps": ("steps", "", 1),
    "training_minutes": ("time of the steps", " min", 1),
}


def main() -> int:
    options = parse()
    os.chdir(ROOT)  # the corpora, the runs and the paths in a run's settings are relative to it
    students = {
        (minutes, kind): [
            RUNS / f"{options.name}-{minutes}-{kind}-{options.minutes:g}min-seed{seed}" for seed in options.seeds
        ]
        for minutes in (FEW, MANY)
        for kind in KINDS
    }
    teacher, asr = RUNS / f"{options.name}-teacher-{options.teacher_minutes:g}min", RUNS / f"{options.name}-asr"
    check_unused_flags(
        [run for (_, kind), runs in students.items() if kind == "with" for run in runs], options.train_flags
    )
    if options.only != "measure":
        train(options, teacher, asr, students)
    if options.only == "train":
        return 0
    figures = {
        "teacher": [measure(teacher, asr)],
        **{f"{minutes} min, {kind}": [measure(run, asr) for run in runs] for (minutes, kind), runs in students.items()},
    }
    print_figures(figures)
    out = options.json or RUNS / f"{options.name}-{options.minutes:g}min.json"
    out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"\n{out}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    minutes = bounded(float, 0.1, 1e5)
    parser.add_argument("--minutes", type=minutes, default=10.0, help="minutes of steps of each student (default 10)")
    parser.add_argument("--teacher-minutes", type=minutes, default=25.0, help="those of the teacher (default 25)")
    parser.add_argument(
        "--seeds",
        type=bounded(int, 0, 2**31 - 1),
        nargs="+",
        default=[0],
        help="four students for each; medians are shown",
    )
    parser.add_argument(
        "--name", default="distillation", help="first part of the names of the runs (default distillation)"
    )
    return parse_options(parser)


def train(options: argparse.Namespace, teacher: Path, asr: Path, students: dict[tuple[int, str], list[Path]]) -> None:
    recordings = make_corpora()
    common = ("--config", CONFIG, *DUAL)
    flags = ("--train-data", str(recordings[MANY]), "--model-size", "small")
    train_for(teacher, options.teacher_minutes, PROBE_STEPS, (*common, *flags))
    if not asr.exists():
        length = ("--max-steps", str(ASR_STEPS), "--validate-every", "0", "--sample-every", "0")
        flags = ("--config", "configs/asr_voice.yaml", "--train-data", str(WHOLE / "corpus.csv"), "--run", asr.name)
        run_script("train_main.py", *flags, *length)
    with_teacher = ("--teacher", str(teacher), "--texts", str(TEXTS), *options.train_flags)
    for number, seed in enumerate(options.seeds):
        for (minutes, kind), runs in students.items():
            flags = ("--train-data", str(recordings[minutes]), "--seed", str(seed))
            further = with_teacher if kind == "with" else ()
            train_for(runs[number], options.minutes, PROBE_STEPS, (*common, *flags, *further))


def make_corpora() -> dict[int, Path]:
    """Make the corpora and the texts; return the metadata of the recordings by their minutes."""
    for folder, arguments in CORPORA.items():
        run_script("utilities/make_demo_corpus.py", "--out", folder, *arguments)
    rows = rows_of(WHOLE / "corpus.csv")
    recordings = {minutes: WHOLE / f"{minutes}min.csv" for minutes in (FEW, MANY)}
    for minutes, path in recordings.items():
        write_rows(path, first_minutes(rows, minutes))
    recorded = {row["text"] for row in rows}
    write_rows(held_out(HELD_OUT), [row for row in rows_of(HELD_OUT / "corpus.csv") if row["text"] not in recorded])
    write_rows(held_out(UNSEEN), [row for row in rows_of(UNSEEN / "corpus.csv") if row["text"] not in recorded])
    measured = {row["text"] for folder in (HELD_OUT, UNSEEN) for row in rows_of(folder / "corpus.csv")}
    sentences = load_grammar("en").draw(SENTENCES, random.Random(2))
    TEXTS.write_text("\n".join(text for text in sentences if text not in measured) + "\n", encoding="utf-8")
    return recordings


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def first_minutes(rows: Iterable[dict[str, str]], minutes: float) -> list[dict[str, str]]:
    """Return as many rows as the minutes need."""
    chosen, seconds = [], 0.0
    for row in rows:
        if seconds >= 60 * minutes:
            break
        chosen.append(row)
        seconds += soundfile.info(WHOLE / row["path"]).duration
    return chosen


def held_out(folder: Path) -> Path:
    return folder / "held_out.csv"


def measure(run: Path, asr: Path) -> dict[str, float]:
    """Return the figures of a run, by the keys of FIGURES."""
    unseen = evaluate(run, asr, UNSEEN)
    figures = evaluate(run, asr, HELD_OUT) | {f"unseen_{key}": value for key, value in unseen.items()}
    return figures | {"speaker_accuracy_unseen": unseen["speaker_accuracy_unseen"]} | training_figures(run)


def evaluate(run: Path, asr: Path, folder: Path) -> dict[str, float]:
    file = run / f"score-{folder.name}.json"
    flags = ("--run", str(run), "--data", str(held_out(folder)), "--utterances", str(UTTERANCES), "--asr", str(asr))
    run_script("utilities/evaluate.py", *flags, "--json", str(file))
    metrics = json.loads(file.read_text(encoding="utf-8"))["metrics"]
    return {key: metric["synthesized"] for key, metric in metrics.items() if metric["synthesized"] is not None}


def print_figures(figures: dict[str, list[dict]]) -> None:
    """Print the medians over the seeds, and whether the targets are reached."""
    print(f"\n| | {' | '.join(figures)} |\n|---{'|---' * len(figures)}|")
    for key, (name, unit, factor) in FIGURES.items():
        cells = [f"{factor * middle(runs, key):.4g}{unit}" for runs in figures.values()]
        print(f"| {name} | {' | '.join(cells)} |")
    without, taught = (figures[f"{FEW} min, {kind}"] for kind in KINDS)
    distortion = [middle(runs, "mel_cepstral_distortion_ratio") for runs in (without, taught)]
    rates = [100 * middle(runs, "character_error_rate") for runs in (without, taught)]
    reduction, skipped = 1 - distortion[1] / distortion[0], middle(taught, "utterances_with_deletions")
    targets = {
        f"distortion lower by ≥ {MIN_REDUCTION:.0%}": (f"{reduction:.1%}", reduction >= MIN_REDUCTION),
        "character error rate lower": (f"{rates[1]:.2f} against {rates[0]:.2f} %", rates[1] < rates[0]),
        f"skipped of {UTTERANCES}: 0": (f"{skipped:g}", skipped == 0),
    }
    print(f"\n| with a teacher, {FEW} minutes of recordings | result | reached |\n|---|---|---|")
    for target, (result, reached) in targets.items():
        print(f"| {target} | {result} | {'yes' if reached else 'no'} |")


def middle(runs: Sequence[dict], key: str) -> float:
    return median(run[key] for run in runs)


if __name__ == "__main__":
    sys.exit(report_errors(main))
