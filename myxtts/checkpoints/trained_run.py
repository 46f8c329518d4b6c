"""The folder of a run, and what other runs take from it: settings, vocabulary, networks.

TensorFlow, which takes seconds to import, is not needed until a network is loaded.

runs/<name>/
    config.yaml       resolved settings; loads back
    run.json          corpus, buckets, devices, versions and commit
    metrics.jsonl     one object per report
    timeline.json     what the threads did in the last seconds
    log.txt           the lines of the console, with timestamps
    checkpoints/      see files.py
    samples/          step-000500/*.wav and *.png
    evaluation/       step-000500/scores.md
    tensorboard/
    report.html       how the run is doing, on one page; ../index.html has all runs
    rejected.csv      unusable rows of the corpus
    manifest-*.npz    cached manifests
    pcm-*.int16       the decoded corpus, with --cache-dataset
    .lock             held by the process that trains the run
    worker-N/         caches, metrics and log of worker N of several
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.audio.format import use_sample_rate
from myxtts.base.errors import CheckpointError, ConfigError
from myxtts.checkpoints.files import (
    Checkpoint,
    Record,
    Source,
    checkpoint_of,
    latest,
    list_checkpoints,
)
from myxtts.config.advice import advice_on_run
from myxtts.config.synthesis import check_options
from myxtts.corpus.manifest import Manifest, Vocabulary, difference
from myxtts.speak.voices import run_folder

GRIFFIN_LIM = "griffin-lim"  # instead of the folder of a vocoder's run

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run and the checkpoint of it that a resume, another run or inference uses.

    run = TrainedRun.open(Path("runs/my_voice"))
    weights = run.weights()
    """

    path: Path
    checkpoint: Checkpoint

    # Only the newest record knows which checkpoint is the best, so it is read first. If the best
    # checkpoint was removed, the newest is used.
    @classmethod
    def open(cls, path: Path, name: str | None = None) -> "TrainedRun":
        """Open a run at its best checkpoint, or at one by name; raises CheckpointError."""
        path = run_folder(path)
        checkpoints = list_checkpoints(path / "checkpoints")
        if not checkpoints:
            found = "has no checkpoint"
            if any(path.glob("*.onnx")):
                found = "is an exported voice, which `myxtts serve --voice` takes"
            raise CheckpointError(
                f"{path} {found}. Give the folder of a run that has one, such as"
                " runs/my_voice; a run writes one every --checkpoint-every steps and at its end."
                f"{advice_on_run(path)}"
            )
        if name is not None:
            names = [checkpoint.name for checkpoint in checkpoints]
            if name not in names:
                raise CheckpointError(
                    f"checkpoint '{name}' was requested, but {path} has {', '.join(names)}. Give"
                    " one of these."
                )
            return cls(path, Checkpoint.read(checkpoints[names.index(name)]))
        newest = Checkpoint.read(checkpoints[-1])
        best = newest.record.best
        if best is None or best.step == newest.record.step:
            return cls(path, newest)
        best_path = checkpoint_of(path / "checkpoints", best.step)
        if not best_path.exists():
            log.warning("the best checkpoint %s no longer exists: using the newest", best_path)
            return cls(path, newest)
        return cls(path, Checkpoint.read(best_path))

    @classmethod
    def newest(cls, path: Path) -> "TrainedRun | None":
        """Open a run at its newest checkpoint; None if it has no checkpoint."""
        newest = latest(path / "checkpoints")
        if newest is None:
            return None
        return cls(path, Checkpoint.read(newest))

    @property
    def record(self) -> Record:
        return self.checkpoint.record

    @property
    def task(self) -> str:
        return self.record.settings.model.task

    @property
    def source(self) -> Source:
        """The entry for this run in the checkpoints of other runs."""
        weights = self.checkpoint.weights_digest
        return Source(run=str(self.path), step=self.record.step, weights=weights)

    @property
    def inheritable_vocabulary(self) -> Vocabulary:
        """Symbols and languages. Speakers have no weights: each run names its own."""
        return replace(self.record.vocabulary, speakers=())

    @classmethod
    def open_for_use(
        cls, path: Path, name: str | None = None, task: str | None = None
    ) -> "TrainedRun":
        """Open a run of a task, and work at its sample rate; raises ConfigError at another one."""
        run = cls.open(path, name)
        if task is not None:
            run.check_task(task)
        use_sample_rate(run.record.settings.data.sample_rate, str(path))
        return run

    def check_task(self, task: str) -> None:
        """Raise CheckpointError if the run was not trained for the task that is needed."""
        if self.task != task:
            raise CheckpointError(
                f"{self.checkpoint.path} cannot be used for the task {task}: it was trained with"
                f" --task {self.task}. Give a run of --task {task}; a vocoder goes with --vocoder."
            )

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights that inference uses: the averaged ones if the run has them."""
        return self.checkpoint.arrays(self.record.weights_group)

    def select_vocoder(
        self, requested: str | Path | None = None, iterations: int | None = None
    ) -> "VocoderChoice":
        """Choose the vocoder of a voice; see `select_vocoder`."""
        named, audio_format = self.record.settings.model.vocoder, self.record.audio_format
        return select_vocoder(self.path, named, audio_format, requested, iterations)


class VocoderChoice(NamedTuple):
    """The vocoder to load: a run, a file, or Griffin-Lim's iterations; and a note for the log."""

    trained: TrainedRun | None = None
    file: Path | None = None
    iterations: int | None = None
    note: str = ""


# The requested vocoder wins over the one of the voice's settings, and without either it is
# Griffin-Lim. A file *.onnx only has to exist. A run has to be a vocoder, and to take mels of the
# format that the voice makes. Each message says whether the user or the settings named the vocoder.
def select_vocoder(
    voice: Path,
    named: str | None,
    audio_format: dict[str, Any],
    requested: str | Path | None = None,
    iterations: int | None = None,
) -> VocoderChoice:
    """Choose the vocoder: as requested, else by the settings, else its own, else Griffin-Lim.

    Raises CheckpointError if the run has no checkpoint, is no vocoder, or its audio format is not
    the voice's; ConfigError if iterations were requested for another vocoder than Griffin-Lim.

    Args:
        voice: folder of the voice's run, whose settings name a vocoder or None.
        requested: folder of a vocoder's run, a file *.onnx, or "griffin-lim".
    """
    if iterations is not None:
        check_options(iterations=iterations)
    vocoder = named if requested is None else str(requested)
    own = voice / "vocoder"  # of a published voice
    if vocoder is None and own.is_dir():
        vocoder = str(own)
    if vocoder is None:
        return VocoderChoice(iterations=iterations, note=" (no --vocoder was given)")
    if vocoder == GRIFFIN_LIM:
        return VocoderChoice(iterations=iterations)
    source = f"--vocoder {vocoder} was given"
    if requested is None:
        source = f"{voice} has the setting vocoder {vocoder}"
    advice = (
        "Give the run of a vocoder or a file *.onnx with --vocoder, or use"
        f" Griffin-Lim with --vocoder {GRIFFIN_LIM}."
    )
    if iterations is not None:
        raise ConfigError(
            f"--iterations {iterations} was given, which is for Griffin-Lim, but {source}. Leave"
            f" out --iterations, or add --vocoder {GRIFFIN_LIM}."
        )
    if Path(vocoder).suffix == ".onnx":
        if not Path(vocoder).is_file():
            raise CheckpointError(f"{source}, but there is no such file. {advice}")
        return VocoderChoice(file=Path(vocoder))
    try:
        trained = TrainedRun.open(Path(vocoder))
        trained.check_task("vocoder")
    except CheckpointError as error:
        raise CheckpointError(f"{source}, but {error} {advice}") from error
    takes = trained.record.audio_format
    differences = [
        f"{name} {takes.get(name)} instead of {audio_format.get(name)}"
        for name in takes | audio_format
        if takes.get(name) != audio_format.get(name)
    ]
    if differences:
        raise CheckpointError(
            f"{source}, which takes other mels than the voice makes: {', '.join(differences)}."
            f" {advice}"
        )
    return VocoderChoice(trained)


def check_same_corpus(
    checkpoint: Checkpoint, vocabulary: Vocabulary, corpus: Manifest, texts: str | None
) -> None:
    """Raise CheckpointError if a checkpoint had another vocabulary, corpus or --texts."""
    record = checkpoint.record
    # A fork or merge has no corpus of its own yet.
    is_other = record.corpus not in (None, corpus.fingerprint)
    differences = {"corpus": is_other, "texts": record.texts != texts}
    # The weights of a vocoder know no symbols and no languages.
    if vocabulary.symbols.symbols:
        differences["symbols"] = record.symbols != vocabulary.symbols.symbols
        differences["languages"] = record.languages != vocabulary.languages
    names = ", ".join(name for name, is_different in differences.items() if is_different)
    if names:
        if record.corpus and names != "texts":
            cache = checkpoint.path.parents[1] / "manifest-train.npz"
            names += difference(cache, record.corpus, corpus)
        raise CheckpointError(
            f"{checkpoint.path} was trained on another corpus (different {names}). Give"
            " the corpus that the run was started with, or start another run with --run."
        )
