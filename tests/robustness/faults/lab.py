"""The corpus, the settings and the undisturbed run with which all others are compared."""

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from myxtts.base.clock import Interval
from myxtts.checkpoints.files import list_checkpoints, step_of
from myxtts.report.metrics import read_metrics
from tests.robustness.faults.children import Prepare

SCRIPT = "train_main.py"
UTTERANCES, RATE_HZ = 13, 22_050
STEPS, CHECKPOINT_EVERY = 12, 3
REFERENCE = "reference"
LIMIT_S = 240.0  # of one program; an undisturbed run takes seconds
# In a line of metrics.jsonl: what differs between two equal runs.
TIMES = {*Interval().metrics(), "remaining_s"}
SMALLEST = (
    "--text-frontend characters --model-size tiny --batch-size 2 --buckets 2 --validation-fraction"
    " 0.07 --simulate-gpus 2 --data-gpu 0 --model-gpus 0 1 --batch-shares 1 3 --num-workers 1"
    f" --buffer-size 1 --prefetch-buffer-size 1 --model-start-delay 0 --max-steps {STEPS}"
    f" --warmup-steps 2 --log-every 1 --checkpoint-every {CHECKPOINT_EVERY} --validate-every 0"
    " --sample-every 0"
).split()


def write_corpus(folder: Path) -> Path:
    """Write sinusoids of 0.4 to 0.8 s as utterances of two speakers; return the metadata file."""
    folder.mkdir(parents=True)
    lines = ["path,text,speaker"]
    for i in range(UTTERANCES):
        seconds = np.arange(round((0.4 + 0.03 * i) * RATE_HZ)) / RATE_HZ
        wave = 0.5 * np.sin(2 * np.pi * (300 + 40 * i) * seconds)
        soundfile.write(folder / f"u{i}.wav", wave, RATE_HZ)
        lines.append(f"u{i}.wav,{'abcdefghij'[: i % 8 + 1]},s{i % 2}")
    (folder / "corpus.csv").write_text("\n".join(lines))
    return folder / "corpus.csv"


@dataclass
class Lab:
    """The folder of all runs of a chaos test."""

    folder: Path
    launcher: Any  # the module `children`, or what takes its place
    # Step -> line of metrics.jsonl without its times.
    losses: dict[int, dict[str, Any]] = field(default_factory=dict)
    weights: dict[int, dict[str, str]] = field(default_factory=dict)  # step -> archive -> SHA-256
    seconds: float = 0.0  # of the undisturbed run
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
        """Write the corpus and train the undisturbed run."""
        write_corpus(self.corpus.parent)
        self._train_undisturbed(REFERENCE, *prepare)
        self.losses, self.weights = losses_of(self.template), weights_of(self.template)

    def repeat(self) -> None:
        """Train the undisturbed run again for its time; it must not differ."""
        self._train_undisturbed("again")
        differences = self.differences(self.folder / "runs" / "again")
        assert not differences, f"two undisturbed runs differ: {'; '.join(differences)}"

    def _train_undisturbed(self, name: str, *prepare: Prepare) -> None:
        argv = [SCRIPT, *self.flags(self.folder / "runs", name), "--cache-dataset"]
        command = [*argv, "--keep-checkpoints", "9"]
        child = self.launcher.start(command, self.folder, name, prepare)
        ended = child.wait(LIMIT_S)
        child.kill()
        self.seconds, self.cpu_s = time.monotonic() - child.started_s, child.cpu_s
        output = f"{child.output()}{child.errors()}"
        assert ended and not child.code, f"the undisturbed run ended with {child.code}: {output}"

    def differences(self, run: Path, may_lack_lines: bool = False, since: int = 0) -> list[str]:
        """Return how a finished run differs from the undisturbed one, bit for bit.

        Args:
            may_lack_lines: lines of metrics.jsonl may be missing.
            since: step up to which they may be others.
        """
        found = []
        weights, losses = weights_of(run), losses_of(run)
        if weights.get(STEPS) != self.weights[STEPS]:
            newest = max(weights, default=None)
            found.append(f"the weights of step {STEPS} differ (newest checkpoint: {newest})")
        for step, line in losses.items():
            if line != self.losses.get(step) and step > since:
                found.append(f"the losses of step {step} differ")
        lacking = sorted(set(self.losses) - set(losses))
        if lacking and not may_lack_lines:
            found.append(f"metrics.jsonl lacks the steps {lacking}")
        return found


def losses_of(run: Path) -> dict[int, dict[str, Any]]:
    """Return the lines of metrics.jsonl by step, without times, validation and damaged lines."""
    losses = {}
    if (run / "metrics.jsonl").is_file():
        for report in read_metrics(run / "metrics.jsonl"):
            names = [n for n in report if n not in TIMES and not n.startswith("validation")]
            if "loss" in report:
                losses[report["step"]] = {name: report[name] for name in names}
    return losses


def weights_of(run: Path) -> dict[int, dict[str, str]]:
    """Return the SHA-256 of each archive of each complete checkpoint."""
    weights = {}
    for folder in filter(Path.is_dir, list_checkpoints(run / "checkpoints")):
        # A folder may be in the place of a file.
        files = filter(Path.is_file, folder.glob("*.safetensors"))
        weights[step_of(folder)] = {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files
        }
    return weights


def newest_step(run: Path) -> int:
    """Return the step of the newest complete checkpoint; 0 if there is none."""
    return max(map(step_of, list_checkpoints(run / "checkpoints")), default=0)
