"""The corpus, the settings and the undisturbed run with which all others are compared."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import soundfile

from myxtts.clock import Interval
from myxtts.report.metrics import read_metrics
from myxtts.training.checkpoint_files import list_checkpoints, step_of
from tests.robustness.faults.children import Child, Prepare

SCRIPT = "train_main.py"
UTTERANCES, HELD_OUT, RATE_HZ = 13, 1, 22_050
STEPS, STEPS_PER_EPOCH, CHECKPOINT_EVERY = 12, 3, 3
REFERENCE = "reference"
LIMIT_S = 240.0  # of one program; an undisturbed run takes seconds
# In a line of metrics.jsonl: what differs between two equal runs.
TIMES = {*Interval().metrics(), "remaining_s"}
SMALLEST = (
    "--text-frontend characters --model-size tiny --batch-size 4 --buckets 2 --validation-fraction"
    " 0.07 --simulate-gpus 2 --data-gpu 0 --model-gpu 1 --num-workers 1 --buffer-size 1"
    f" --prefetch-buffer-size 1 --model-start-delay 0 --max-steps {STEPS} --warmup-steps 2"
    f" --log-every 1 --checkpoint-every {CHECKPOINT_EVERY} --validate-every 0 --sample-every 0"
).split()


def write_corpus(folder: Path) -> Path:
    """Write sinusoids of 0.4 to 0.8 s as utterances of two speakers; return the metadata file."""
    folder.mkdir(parents=True)
    lines = ["path,text,speaker"]
    for i in range(UTTERANCES):
        seconds = np.arange(round((0.4 + 0.03 * i) * RATE_HZ)) / RATE_HZ
        soundfile.write(
            folder / f"u{i}.wav", 0.5 * np.sin(2 * np.pi * (300 + 40 * i) * seconds), RATE_HZ
        )
        lines.append(f"u{i}.wav,{'abcdefghij'[: i % 8 + 1]},s{i % 2}")
    (folder / "corpus.csv").write_text("\n".join(lines))
    return folder / "corpus.csv"


class Launcher(Protocol):
    """`children.Forks`, or what takes its place."""

    def start(
        self,
        command: Sequence[str],
        folder: Path,
        name: str,
        prepare: Sequence[Prepare],
        **keywords: Any,
    ) -> Child: ...

    def end_orphans(self, known: Sequence[int]) -> list[str]: ...


@dataclass
class Lab:
    """The folder of all runs of a chaos test.

    Attributes:
        launcher: of all programs.
        losses: step -> the undisturbed line of metrics.jsonl without its times.
        weights: step -> archive -> SHA-256, of the undisturbed checkpoints.
        seconds, cpu_s: of the undisturbed run.
    """

    folder: Path
    launcher: Launcher
    losses: dict[int, dict[str, Any]] = field(default_factory=dict)
    weights: dict[int, dict[str, str]] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_s: float = 0.0

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus" / "corpus.csv"

    @property
    def template(self) -> Path:
        """The folder of the undisturbed run, which damaged ones are copies of."""
        return self.folder / "runs" / REFERENCE

    def flags(self, runs: Path, run: str, corpus: Path | None = None) -> list[str]:
        places = ["--run", run, "--runs-dir", str(runs), "--train-data", str(corpus or self.corpus)]
        return [*places, *SMALLEST]

    def open(self, *prepare: Prepare) -> None:
        """Write the corpus and train the undisturbed run.

        Raises:
            RuntimeError: the run fails.
        """
        write_corpus(self.corpus.parent)
        self._train_undisturbed(REFERENCE, *prepare)
        self.losses, self.weights = losses_of(self.template), weights_of(self.template)

    def repeat(self) -> None:
        """Train the undisturbed run again for its time; RuntimeError if it fails or differs."""
        self._train_undisturbed("again")
        if differences := self.differences(self.folder / "runs" / "again"):
            raise RuntimeError(f"two undisturbed runs differ: {'; '.join(differences)}")

    def _train_undisturbed(self, name: str, *prepare: Prepare) -> None:
        argv = [
            SCRIPT,
            *self.flags(self.folder / "runs", name),
            "--cache-dataset",
            "--keep-checkpoints",
            "9",
        ]
        child = self.launcher.start(argv, self.folder, name, prepare)
        ended = child.wait(LIMIT_S)
        child.kill()
        self.seconds, self.cpu_s = time.monotonic() - child.started_s, child.cpu_s
        if not ended or child.code:
            raise RuntimeError(
                f"the undisturbed run ended with {child.code}: {child.output()}{child.errors()}"
            )

    def differences(self, run: Path, may_lack_lines: bool = False, since: int = 0) -> list[str]:
        """Return how a finished run differs from the undisturbed one, bit for bit.

        Args:
            may_lack_lines: lines of metrics.jsonl may be missing.
            since: step up to which they may be others.
        """
        found = []
        if weights_of(run).get(STEPS) != self.weights[STEPS]:
            newest = max(weights_of(run), default=None)
            found.append(f"the weights of step {STEPS} differ (newest checkpoint: {newest})")
        losses = losses_of(run)
        found += [
            f"the losses of step {step} differ"
            for step in losses
            if losses[step] != self.losses.get(step) and step > since
        ]
        lacking = sorted(set(self.losses) - set(losses))
        if lacking and not may_lack_lines:
            found.append(f"metrics.jsonl lacks the steps {lacking}")
        return found


def losses_of(run: Path) -> dict[int, dict[str, Any]]:
    """Return the lines of metrics.jsonl by step, without times, validation and damaged lines."""
    try:
        reports = read_metrics(run / "metrics.jsonl")
    except OSError:
        return {}
    return {report["step"]: _of_training(report) for report in reports if "loss" in report}


def _of_training(line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in line.items()
        if name not in TIMES and not name.startswith("validation")
    }


def weights_of(run: Path) -> dict[int, dict[str, str]]:
    """Return the SHA-256 of each archive of each complete checkpoint."""
    return {
        step_of(folder): {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in folder.glob("*.safetensors")
            if file.is_file()  # and not a folder in its place
        }
        for folder in list_checkpoints(run / "checkpoints")
        if folder.is_dir()
    }


def newest_step(run: Path) -> int:
    """Return the step of the newest complete checkpoint; 0 if there is none."""
    return max(map(step_of, list_checkpoints(run / "checkpoints")), default=0)
