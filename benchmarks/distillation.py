"""Train small voices without and with a teacher, from 5 and from 45 minutes of recordings, and
compare them.

    python benchmarks/distillation.py one
    python benchmarks/distillation.py many --minutes 25 --teacher-minutes 60 --recordings 5
    python benchmarks/distillation.py one --recordings 5 --only measure
    python benchmarks/distillation.py many --teacher-utterances 4800 --sentences 8000 --only corpora

`one` is an espeak-ng voice of English, `many` are eight of them. The teacher, of --model-size
small, learns from 45 minutes of the corpus, or from a larger one of its own; the students, tiny,
from the same 45 minutes or from their first
5. A student with a teacher also hears it speak sentences of which nobody has a recording. All
students train for the same time, in dual placement, with each device held to one core (see
benchmarks/_one_core.py): a student without a teacher leaves most of the data device idle, and one
with a teacher takes fewer steps only where speaking a batch takes longer than learning it. They are
measured on 50 sentences that are neither in the corpus nor among these, by a recogniser that
learned from the whole corpus; and those of many speakers also with two others.

Existing results are reused: the corpora under data/, and the runs under runs/, which continue where
they were stopped. A probe run gives the number of steps, as in benchmarks/voice.py. Arguments after
-- are passed to train_main.py for the students with a teacher, and only to new ones.
"""

import argparse
import csv
import itertools
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    settings_of,
    train_for,
    training_figures,
    write_figures,
)
from myxtts.base.console import report_errors
from myxtts.config.parser import bounded
from myxtts.corpus.demo_corpus import load_grammar

ROOT = Path(__file__).resolve().parents[1]
FEW, MANY = 5, 45  # minutes of recordings
WAYS = "without", "with"  # a teacher
PROBE_STEPS = 60
ONE_CORE = "benchmarks/_one_core.py"
MEASURED, SENTENCES = 50, 2000  # measured, and for the teacher
ASR_STEPS = 900
MIN_REDUCTION = 0.2  # of the distortion
FIGURES = {  # key of evaluate.py, or of `measure`: (name, unit, factor)
    "mel_cepstral_distortion": ("mel-cepstral distortion", " dB", 1),
    "character_error_rate": ("character error rate", " %", 100),
    "word_error_rate": ("word error rate", " %", 100),
    "speaker_accuracy_seen": ("speaker accuracy, speakers of the corpus", " %", 100),
    "speaker_accuracy_unseen": ("speaker accuracy, two others", " %", 100),
    "unseen_mel_cepstral_distortion": ("mel-cepstral distortion, two others", " dB", 1),
    "unseen_character_error_rate": ("character error rate, two others", " %", 100),
    "steps": ("steps", "", 1),
    "training_minutes": ("time of the steps", " min", 1),
}


@dataclass(frozen=True)
class Kind:
    """A corpus, what is measured of its speakers, and the sentences that a teacher speaks.

    Attributes:
        speakers, unseen: number of speakers of the corpus, and of others.
        flags: settings of the training beyond those of `config`.
    """

    name: str
    config: str
    speakers: int
    unseen: int
    flags: tuple[str, ...] = ()

    @property
    def corpus(self) -> Path:
        return Path("data") / f"distillation_{self.name}"

    @property
    def teacher_corpus(self) -> Path:
        return self.corpus.with_name(f"{self.corpus.name}_teacher")

    def texts(self, sentences: int) -> Path:
        """Return the file of so many sentences for the teacher to speak."""
        return self.corpus / ("texts.txt" if sentences == SENTENCES else f"texts_{sentences}.txt")

    @property
    def measured(self) -> dict[str, Path]:
        """Metadata of the sentences to measure, by the first part of the names of their figures."""
        folders = {"": self.corpus.with_name(f"{self.corpus.name}_held_out")}
        if self.unseen:
            folders["unseen_"] = self.corpus.with_name(f"{self.corpus.name}_unseen")
        return {prefix: folder / "held_out.csv" for prefix, folder in folders.items()}

    def recordings(self, minutes: int) -> Path:
        """Return the metadata of the first minutes of the corpus."""
        return self.corpus / f"{minutes}min.csv"

    def make(self, teacher_utterances: int, sentences: int) -> None:
        """Make the corpora, the texts, and the metadata of their parts.

        Args:
            teacher_utterances: of a corpus for the teacher; 0 makes none.
            sentences: for the teacher to speak.
        """
        measured = [metadata.parent for metadata in self.measured.values()]
        seen, unseen = ("--speakers", str(self.speakers)), ("--speakers", str(self.unseen))
        make_corpus(self.corpus, "1400", *seen)
        make_corpus(measured[0], "200", *seen, "--seed", "1")
        if self.unseen:
            others = ("--first-speaker", str(self.speakers), "--seed", "1")
            make_corpus(measured[1], "240", *unseen, *others)
        rows = rows_of(self.corpus / "corpus.csv")
        for minutes in (FEW, MANY):
            write_rows(self.recordings(minutes), first_minutes(rows, minutes, self.corpus))
        texts = load_grammar("en").draw(SENTENCES, random.Random(2))
        known, measured_texts = {*texts, *(row["text"] for row in rows)}, set()
        for metadata in self.measured.values():
            drawn = rows_of(metadata.with_name("corpus.csv"))
            held_out = [row for row in drawn if row["text"] not in known]
            write_rows(metadata, held_out)
            measured_texts.update(row["text"] for row in held_out)
        # What is measured does not depend on the sizes below, so that teachers of all sizes can be
        # compared.
        if sentences != SENTENCES:
            drawn = load_grammar("en").draw(sentences, random.Random(7))
            texts = [text for text in drawn if text not in measured_texts]
        self.texts(sentences).write_text("\n".join(texts) + "\n", encoding="utf-8")
        if teacher_utterances:
            make_corpus(self.teacher_corpus, str(teacher_utterances), *seen, "--seed", "3")
            spoken = rows_of(self.teacher_corpus / "corpus.csv")
            others = [row for row in spoken if row["text"] not in measured_texts]
            write_rows(self.teacher_corpus / "others.csv", others)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("one", "configs/voice.yaml", 1, 0),
        # Batches and rate of configs/voice.yaml, so that the steps of both kinds can be compared.
        Kind("many", "configs/voices.yaml", 8, 2, ("--batch-size", "8", "--learning-rate", "2e-3")),
    )
}


def main() -> int:
    options = parse()
    os.chdir(ROOT)  # the corpora, the runs and the paths in a run's settings are relative to it
    kind = KINDS[options.kind]
    name = options.name or f"distillation-{kind.name}"
    taught = f"-teacher-{options.teacher_minutes:g}min"
    length = f"{options.minutes:g}min"
    if options.teacher_utterances or options.sentences != SENTENCES:
        taught += f"-{options.teacher_utterances}-{options.sentences}"
    teacher, asr = RUNS / f"{name}{taught}", RUNS / f"{name}-asr"
    teachers = {"without": "", "with": taught}
    students = {}
    for minutes, way in itertools.product(options.recordings, WAYS):
        prefix = f"{name}-{minutes}-{way}{teachers[way]}-{length}"
        students[minutes, way] = [RUNS / f"{prefix}-seed{seed}" for seed in options.seeds]
    with_teacher = [run for (_, way), runs in students.items() if way == "with" for run in runs]
    check_unused_flags(with_teacher, options.train_flags)
    if options.only != "measure":
        kind.make(options.teacher_utterances, options.sentences)
    if options.only not in ("measure", "corpora"):
        train(kind, options, teacher, asr, students)
    if options.only in ("train", "corpora"):
        return 0
    figures = {"teacher": [measure(kind, teacher, asr)]}
    for (minutes, way), runs in students.items():
        figures[f"{minutes} min, {way}"] = [measure(kind, run, asr) for run in runs]
    print_figures(figures)
    write_figures(figures, options.json or RUNS / f"{name}-{options.minutes:g}min.json")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("kind", choices=KINDS, help="one speaker, or many")
    minutes, count = bounded(float, 0.1, 1e5), bounded(int, 0, 100_000)
    add("--minutes", type=minutes, default=10.0, help="of steps of each student (default 10)")
    add("--teacher-minutes", type=minutes, default=25.0, help="of the teacher (default 25)")
    lengths = {"type": int, "choices": (FEW, MANY), "default": [FEW, MANY]}
    add("--recordings", nargs="+", help="minutes for the students (default: both)", **lengths)
    corpus = "utterances of a corpus for the teacher (default 0: the 45 minutes)"
    add("--teacher-utterances", type=count, default=0, help=corpus)
    texts = f"for the teacher to speak (default {SENTENCES})"
    add("--sentences", type=count, default=SENTENCES, help=texts)
    add("--name", help="first part of the names of the runs (default: distillation- and the kind)")
    return parse_options(parser, ("corpora",))


def train(
    kind: Kind,
    options: argparse.Namespace,
    teacher: Path,
    asr: Path,
    students: dict[tuple[int, str], list[Path]],
) -> None:
    common = ("--config", kind.config, *kind.flags, *DUAL)
    heard = kind.recordings(MANY)
    if options.teacher_utterances:
        heard = kind.teacher_corpus / "others.csv"
    large = ("--train-data", str(heard), "--model-size", "small", "--learning-rate", "1e-3")
    train_for(teacher, options.teacher_minutes, PROBE_STEPS, (*common, *large))
    if settings_of(asr).exists():
        # Ends at once if all steps are done.
        run_script("train_main.py", "--resume", "--run", asr.name)
    else:
        flags = f"--config configs/asr_voice.yaml --train-data {kind.corpus}/corpus.csv"
        length = f"--max-steps {ASR_STEPS} --validate-every 0 --sample-every 0"
        run_script("train_main.py", *f"{flags} --run {asr.name} {length}".split())
    texts = str(kind.texts(options.sentences))
    with_teacher = ("--teacher", str(teacher), "--texts", texts, *options.train_flags)
    for number, seed in enumerate(options.seeds):
        for (minutes, way), runs in students.items():
            flags = ("--train-data", str(kind.recordings(minutes)), "--seed", str(seed))
            if way == "with":
                flags += with_teacher
            train_for(runs[number], options.minutes, PROBE_STEPS, (*common, *flags), ONE_CORE)


def make_corpus(folder: Path, utterances: str, *arguments: str) -> None:
    flags = ("--out", str(folder), "--utterances", utterances, *arguments)
    run_script("-m", "myxtts", "corpus", *flags)


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def first_minutes(
    rows: Iterable[dict[str, str]], minutes: float, folder: Path
) -> list[dict[str, str]]:
    """Return as many rows as the minutes need."""
    chosen, seconds = [], 0.0
    for row in rows:
        if seconds >= 60 * minutes:
            break
        chosen.append(row)
        seconds += soundfile.info(folder / row["path"]).duration
    return chosen


def measure(kind: Kind, run: Path, asr: Path) -> dict[str, float]:
    """Return the figures of a run, by the keys of FIGURES."""
    figures = training_figures(run)
    for prefix, metadata in kind.measured.items():
        file = run / f"score-{metadata.parent.name}.json"
        flags = f"--run {run} --data {metadata} --utterances {MEASURED} --asr {asr} --json {file}"
        run_script("-m", "myxtts", "evaluate", *flags.split())
        for key, metric in json.loads(file.read_text(encoding="utf-8"))["metrics"].items():
            if metric["synthesized"] is not None:
                figures[key if key.endswith("_unseen") else prefix + key] = metric["synthesized"]
    return figures


def print_figures(figures: dict[str, list[dict]]) -> None:
    """Print the medians over the seeds, and whether the targets are reached."""
    print(f"\n| | {' | '.join(figures)} |\n|---{'|---' * len(figures)}|")
    for key, (name, unit, factor) in FIGURES.items():
        if all(key in run for runs in figures.values() for run in runs):
            cells = [f"{factor * middle(runs, key):.4g}{unit}" for runs in figures.values()]
            print(f"| {name} | {' | '.join(cells)} |")
    for minutes in (FEW, MANY):
        pair = [figures.get(f"{minutes} min, {way}") for way in WAYS]
        if all(pair):
            print_targets(minutes, *pair)


def print_targets(minutes: int, without: list[dict], taught: list[dict]) -> None:
    distortion = [middle(runs, "mel_cepstral_distortion") for runs in (without, taught)]
    rates = [100 * middle(runs, "character_error_rate") for runs in (without, taught)]
    reduction = 1 - distortion[1] / distortion[0]
    compared = f"{rates[1]:.2f} against {rates[0]:.2f} %"
    lower = f"distortion lower by ≥ {MIN_REDUCTION:.0%}"
    targets = (
        (lower, f"{reduction:.1%}", reduction >= MIN_REDUCTION),
        ("character error rate lower", compared, rates[1] < rates[0]),
    )
    print(f"\n| with a teacher, {minutes} minutes of recordings | result | reached |")
    print("|---|---|---|")
    for target, result, reached in targets:
        print(f"| {target} | {result} | {'yes' if reached else 'no'} |")


def middle(runs: Sequence[dict], key: str) -> float:
    return median(run[key] for run in runs)


if __name__ == "__main__":
    sys.exit(report_errors(main))
