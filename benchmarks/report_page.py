"""Time and size of report.html after a long run: of a synthetic run with samples, refreshed as a
run does.

python benchmarks/report_page.py
python benchmarks/report_page.py --steps 100000 --log-every 50 --sample-every 500
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.clock import MODEL, Span, Timeline
from myxtts.commands.parser import bounded
from myxtts.report.page.samples import LABELS, sound_file
from myxtts.report.plots import mel_and_alignment, png_bytes
from myxtts.report.run_page import RunPage

PARTS = ("mel", "flow", "prior", "duration", "pitch", "energy")
UTTERANCES, SECONDS, RATE_HZ = 4, 4.0, 22_050
REFRESHES = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=bounded(int, 1), default=100_000)
    parser.add_argument("--log-every", type=bounded(int, 1), default=1)
    parser.add_argument("--sample-every", type=bounded(int, 1), default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name) / "run", options.steps, options.log_every, options.sample_every)


def measure(folder: Path, steps: int, log_every: int, sample_every: int) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text("model:\n  task: tts\n")
    metrics, timeline = folder / "metrics.jsonl", Timeline()
    reports = range(log_every, steps + 1, log_every)
    metrics.write_text("".join(line(step) for step in reports))
    write_samples(folder, range(sample_every, steps + 1, sample_every))
    add_spans(timeline)
    print(
        f"{len(reports):,} reports, {metrics.stat().st_size / 1e6:.1f} MB; samples of"
        f" {steps // sample_every} steps"
    )

    report = RunPage(folder, timeline)
    print(f"first page of a process    {refresh(report)}")
    print(f"last page of a process     {refresh(report, ended='finished')}")
    reports = iter(range(steps + log_every, steps + (2 * REFRESHES + 1) * log_every, log_every))

    def print_refreshes(what: str) -> None:
        refreshes = []
        for step in itertools.islice(reports, REFRESHES):
            with open(metrics, "a") as file:
                file.write(line(step))
            refreshes.append(refresh(report))
        for name, pick in (("median", statistics.median_low), ("longest", max)):
            print(f"{what + name:<26} {pick(refreshes)}")

    print_refreshes("refresh, ")
    write_samples(folder, range(steps + sample_every, steps + sample_every + 1))
    print_refreshes("after new samples, ")
    with open(metrics, "a") as file:
        file.write(
            json.dumps({"step": steps + REFRESHES * log_every, "validation_loss": 1.0}) + "\n"
        )
    print(f"refresh after a validation {refresh(report)}")
    print(f"report.html                {(folder / 'report.html').stat().st_size / 1e6:.2f} MB")


class Seconds(NamedTuple):
    """Of a thread: time on a processor, which other programs do not change much, and on the
    wall.
    """

    busy: float
    wall: float

    def __str__(self) -> str:
        return f"{self.busy:.3f} s of a processor, {self.wall:.3f} s"


def refresh(report: RunPage, ended: str = "") -> Seconds:
    start_s, busy_s = time.perf_counter(), time.thread_time()
    report.write(ended)
    return Seconds(time.thread_time() - busy_s, time.perf_counter() - start_s)


def line(step: int) -> str:
    """Return a line of metrics.jsonl with noisy values that fall."""
    noise = 1 + 0.3 * math.sin(step * 12.9898)
    losses = {name: noise * (i + 1) * step**-0.3 for i, name in enumerate(PARTS)}
    times = {
        "step_s": 0.11 * noise,
        "wait_s": 1e-4,
        "pause_s": 0.002,
        "read_s": 0.002,
        "produce_s": 0.05 * noise,
    }
    rates = {
        "steps_per_s": 9 / noise,
        "audio_seconds_per_s": 200.0,
        "padding": 0.06,
        "blocked_s": 0.06,
    }
    rates |= {"accelerator_utilisation": 0.999, "remaining_s": 100.0}
    losses |= {"loss": sum(losses.values()), "gradient_norm": noise}
    report = (
        {"step": step, "epoch": 1}
        | losses
        | {"learning_rate": 1e-3}
        | rates
        | times
        | {"bottleneck": "step"}
    )
    if step % 500 == 0:
        report |= {f"validation_{name}": 1.1 * losses[name] for name in (*PARTS, "loss")}
    return json.dumps(report) + "\n"


def write_samples(folder: Path, steps: range) -> None:
    """Write the same pictures for all steps, and sounds for the newest, since those of the others
    are links.
    """
    random = np.random.default_rng(0)
    wave = (0.3 * random.normal(size=int(SECONDS * RATE_HZ))).astype(np.float32)
    mel = random.normal(-5, 2, (int(SECONDS * 86), 80)).astype(np.float32)
    picture = png_bytes(mel_and_alignment(mel, mel, np.arange(len(mel)) // 5, "synthetic"))
    (shared := folder / "picture.png").write_bytes(picture)
    for step in steps:
        target = folder / "samples" / f"step-{step:06d}"
        target.mkdir(parents=True)
        for row in range(UTTERANCES):
            name = f"{row + 1}-utterance"
            (target / f"{name}.png").hardlink_to(shared)
            for number, kind in enumerate(LABELS):
                file = target / sound_file(name, kind)
                if step == steps[-1]:
                    soundfile.write(file, np.roll(wave, 10 * row + number + step), RATE_HZ)
                else:
                    file.touch()


def add_spans(timeline: Timeline) -> None:
    for number in range(400):
        at_s = 0.1 * number
        timeline.add(
            Span(MODEL, "step", at_s, at_s + 0.099, number),
            Span(MODEL, "wait", at_s + 0.099, at_s + 0.1),
        )
        timeline.add(Span("/GPU:0", "read", at_s, at_s + 0.01, number))
        timeline.add(Span("/GPU:0", "produce", at_s + 0.01, at_s + 0.06, number))
        timeline.add(Span("/GPU:0", "feed", at_s + 0.06, at_s + 0.36, number))


if __name__ == "__main__":
    main()
