"""The folder of a run, and what other runs take from it: settings, vocabulary, networks.

Without TensorFlow, which takes seconds to import, until a network is loaded.

runs/<name>/
    config.yaml       resolved settings; loads back
    run.json          corpus, buckets, devices, versions and commit
    metrics.jsonl     one object per report
    timeline.json     what the threads did in the last seconds
    log.txt           the lines of the console, with timestamps
    checkpoints/      see checkpoint_files.py
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from myxtts.audio.format import AUDIO_FORMAT
from myxtts.base import files
from myxtts.base.errors import CheckpointError, ConfigError
from myxtts.config.advice import advice_on_run
from myxtts.config.checks import inactive_settings, reset_inactive
from myxtts.config.flags import SETTINGS, Setting, marked, values_of, with_values
from myxtts.config.schema import FIXED, FROM_TEACHER, INHERITED, Config
from myxtts.config.synthesis import check_options
from myxtts.corpus.manifest import Manifest, Vocabulary, difference
from myxtts.training.checkpoint_files import (
    Checkpoint,
    Record,
    Source,
    checkpoint_of,
    latest,
    list_checkpoints,
)
from myxtts.training.published import local_run

if TYPE_CHECKING:
    import keras

    from myxtts.audio.vocoder import NetworkVocoder, VocoderProtocol
    from myxtts.models.teacher import TeacherModel

GRIFFIN_LIM = "griffin-lim"  # instead of the folder of a vocoder's run
LOCK = ".lock"

log = logging.getLogger(__name__)


class RunFolder:
    """Paths of a run, and the lock on it."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.samples = path / "samples"
        self.tensorboard = path / "tensorboard"

    def check_not_existing(self, resume: bool) -> None:
        """Raise ConfigError if there is a run in this folder, unless `resume` is on."""
        if not resume and (self.config.exists() or self.checkpoints.exists()):
            raise ConfigError(
                f"run '{self.path.name}' cannot be started: {self.path} already holds a run. "
                "Resume it with --resume, or choose another name with --run."
            )

    @contextmanager
    def locked(self, lock: bool = True) -> Iterator[None]:
        """Keep other processes out of this run for as long as the scope or the process lasts.

        Makes the folder, removes what killed processes left of files that they wrote, and removes
        the folder again if nothing was written to it. Raises ConfigError if another process has it,
        or the file system has no locks. Without `lock` other processes stay unknown.
        """
        with ExitStack() as scope:
            try:
                files.make_folder(self.path, "--runs-dir")
                scope.enter_context(files.locked_file(self.path / LOCK, wait=False, lock=lock))
            # FileNotFoundError: the other process has just failed, and removed the folder.
            except (BlockingIOError, FileNotFoundError) as error:
                raise ConfigError(
                    f"run '{self.path.name}' cannot be trained: another process is training it in"
                    f" {self.path}. Wait for it or stop it, or choose another name with --run."
                ) from error
            except OSError as error:
                if error.errno not in files.NO_LOCKS:
                    raise
                raise ConfigError(
                    f"{self.path / LOCK} cannot be locked: {error.strerror}. Mount it with locks"
                    " (Lustre: -o flock), or give --no-lock, and start the run only once."
                ) from error
            files.remove_partial_files(self.path)
            try:
                yield
            finally:
                if [path.name for path in self.path.iterdir()] == [LOCK]:
                    # Another start may have made files since.
                    with suppress(OSError):
                        (self.path / LOCK).unlink()
                        self.path.rmdir()


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run and the one of its checkpoints that is used: by a resume, another run, or inference."""

    path: Path
    checkpoint: Checkpoint

    @classmethod
    def open(cls, path: Path, name: str | None = None) -> "TrainedRun":
        """Open a run at a checkpoint such as step-002000; by default at the best, or the newest.

        Raises CheckpointError if it does not exist or is damaged.
        """
        checkpoints = list_checkpoints(path / "checkpoints")
        if not checkpoints:
            found = "has no checkpoint"
            if any(path.glob("*.onnx")):
                found = "is an exported voice, which `myxtts serve --model` takes"
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
        return None if newest is None else cls(path, Checkpoint.read(newest))

    @property
    def record(self) -> Record:
        return self.checkpoint.record

    @property
    def task(self) -> str:
        return self.record.settings.model.task

    @property
    def source(self) -> Source:
        """What checkpoints of other runs record of this one."""
        weights = self.checkpoint.weights_digest
        return Source(run=str(self.path), step=self.record.step, weights=weights)

    @property
    def inheritable_vocabulary(self) -> Vocabulary:
        """Symbols and languages. Speakers have no weights: each run names its own."""
        return replace(self.record.vocabulary, speakers=())

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

    def load_network(self, device: str, task: str, precision: str = "float32") -> "keras.Model":
        """Build the network of the run on a device, with the weights that inference uses.

        Raises CheckpointError if they are damaged, or belong to another task or architecture.
        `precision` is the Keras dtype policy of the computation; variables are float32.
        """
        self.check_task(task)
        import tensorflow as tf

        from myxtts.tasks.registry import task_named
        from myxtts.training.checkpoints import load_variables

        record = self.record
        with tf.device(device):
            network = task_named(task).build(record.settings, record.vocabulary, precision)
        variables = {v.path: v.value for v in network.variables}
        load_variables(self.checkpoint, {record.weights_group: variables})
        return network

    def load_vocoder(self, device: str) -> "NetworkVocoder":
        """Load the network of a vocoder's run; raises as `load_network`."""
        network = self.load_network(device, "vocoder")
        from myxtts.audio.vocoder import NetworkVocoder

        step = self.record.step
        return NetworkVocoder(
            network, f"{self.path}, step {step}", {"run": str(self.path), "step": step}
        )

    def load_teacher(self, config: Config, sizes: dict[str, int], device: str) -> "TeacherModel":
        """Load the network of a teacher, with the options of its own run; raise as `load_network`.

        Also raises PlacementError and ConfigError if the device is another, or cannot run the
        alignment search that is chosen for batches of the named `sizes`.
        """
        settings = self.record.settings
        precision = config.teacher.produce_precision
        network = self.load_network(device, "tts", precision)
        from myxtts.devicefeed.audit import require_device
        from myxtts.models.layers import parameter_count
        from myxtts.models.teacher import TeacherModel
        from myxtts.tasks.registry import task_of

        require_device(device, ((v.path, v.value) for v in network.variables))
        task = task_of(settings)
        task.tune(settings.model_copy(update={"training": config.training}), network, device, sizes)
        log.info(
            "teacher        %s, step %d, on %s: %s, %s parameters, %s",
            *(self.path, self.record.step, device, task.describe(settings)),
            *(f"{parameter_count(network):,}", precision),
        )
        return TeacherModel(network, settings.model.ode_steps, settings.model.guidance)

    def select_vocoder(
        self, requested: str | Path | None = None, iterations: int | None = None
    ) -> "VocoderChoice":
        """Choose the vocoder of a voice; see `select_vocoder`."""
        settings, audio_format = self.record.settings, self.record.audio_format
        return select_vocoder(self.path, settings, audio_format, requested, iterations)


class VocoderChoice(NamedTuple):
    """The vocoder to load: a run, a file, or Griffin-Lim's iterations; and a note for the log."""

    trained: TrainedRun | None = None
    file: Path | None = None
    iterations: int | None = None
    note: str = ""

    def load(self, device: str) -> "VocoderProtocol":
        """Load the vocoder on a device, and log which one it is; raise as `load_network`."""
        from myxtts.audio.vocoder import ITERATIONS, GriffinLim, OnnxVocoder

        vocoder: VocoderProtocol
        if self.trained:
            vocoder = self.trained.load_vocoder(device)
        elif self.file:
            vocoder = OnnxVocoder(self.file)
        else:
            vocoder = GriffinLim(self.iterations or ITERATIONS)
        log.info("vocoder        %s%s", vocoder.description, self.note)
        return vocoder


def select_vocoder(
    voice: Path,
    settings: Config,
    audio_format: dict[str, Any],
    requested: str | Path | None = None,
    iterations: int | None = None,
) -> VocoderChoice:
    """Choose the vocoder of a voice: the requested one, else that of its settings or Griffin-Lim.

    Raises CheckpointError if the run has no checkpoint, is no vocoder, or its audio format is not
    the voice's; ConfigError if iterations were requested for another vocoder than Griffin-Lim.

    Args:
        voice: folder of the voice's run; settings and audio format are the voice's.
        requested: folder of a vocoder's run or a file *.onnx, relative to the working folder, or
            "griffin-lim".
    """
    if iterations is not None:
        check_options(iterations=iterations)
    vocoder = settings.model.vocoder if requested is None else str(requested)
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


def open_teacher(config: Config, resumed: TrainedRun | None) -> TrainedRun | None:
    """Open the teacher that the settings name, if they name one; raise CheckpointError if unfit.

    A run that resumes takes the checkpoint that it has had, also if the teacher's run has a better
    one by now.
    """
    recorded = resumed.record.teacher if resumed else None
    path = config.teacher.teacher
    if resumed and (recorded is None) != (path is None):
        had = f"--teacher {recorded.run}" if recorded else "none"
        raise CheckpointError(
            f"--teacher {path} was given, but {resumed.checkpoint.path} was trained with {had}."
            " Take all settings from the run with --config, or start another one with --run."
        )
    if path is None:
        return None
    name = None
    if recorded is not None:
        checkpoint = checkpoint_of(Path(path) / "checkpoints", recorded.step)
        name = checkpoint.name if checkpoint.exists() else None
    teacher = TrainedRun.open(Path(path), name)
    if resumed and recorded and teacher.checkpoint.weights_digest != recorded.weights:
        raise CheckpointError(
            f"{teacher.checkpoint.path} has other weights than the teacher of"
            f" {resumed.checkpoint.path}, {recorded.run} step {recorded.step}. Restore that"
            " teacher, or start another run with --run."
        )
    teacher.check_task("tts")
    if teacher.record.audio_format != AUDIO_FORMAT:
        raise CheckpointError(
            f"--teacher {path} was given, but {teacher.checkpoint.path} was trained on mels of"
            " another format than this version makes. Train it again with this version."
        )
    return teacher


def teacher_loader(
    teacher: TrainedRun | None, config: Config, sizes: dict[str, int]
) -> Callable[[str], Any] | None:
    """Return what loads the teacher on a device, once for each; None without a teacher."""
    if teacher is None:
        return None
    return cache(lambda device: teacher.load_teacher(config, sizes, device))


def inherit_settings(config: Config, source: TrainedRun) -> Config:
    """Return the configuration with the settings that the weights of the source fix.

    The source is a pretrained run or the run itself. Raises ConfigError for another value of one.
    """
    fixed = reset_inactive(source.record.settings)
    advice = "give another --init-from, or start another run with --run"
    origin = f"the run starts from {source.checkpoint.path}, which"
    # What a vocoder has from its teacher, it has from the one that it has now.
    is_taught = fixed.model.task == "vocoder" and config.teacher.teacher is not None
    inherited = [
        setting
        for setting in marked(INHERITED)
        if not (is_taught and FROM_TEACHER in setting.marks)
    ]
    config = _with_fixed(config, fixed, inherited, origin, advice)
    if config.model.task == "vocoder" and fixed.teacher.teacher and not config.teacher.teacher:
        raise ConfigError(
            f"no --teacher was given, but {origin} learned from the mels of the voice"
            f" {fixed.teacher.teacher}. Give --teacher with this or another voice, or {advice}."
        )
    return config


def apply_teacher_settings(config: Config, teacher: TrainedRun) -> Config:
    """Return the configuration with the settings that a teacher fixes; raise ConfigError."""
    settings = teacher.record.settings
    origin = f"the teacher {teacher.path}"
    return _with_fixed(config, settings, marked(FROM_TEACHER), origin, "give another --teacher")


def keep_normaliser(config: Config, resumed: TrainedRun) -> Config:
    """Return the configuration with the normaliser that a run has had.

    Runs from before there was one do not name it in config.yaml. Raises ConfigError for another.
    """
    saved, setting = resumed.record.settings, SETTINGS["text_normaliser"]
    origin = f"{resumed.checkpoint.path}, which the run resumes,"
    return _with_fixed(config, saved, [setting], origin, "start another run with --run")


def with_inherited_settings(config: Config) -> Config:
    """Return the settings with all that --teacher and --init-from fix, as a new run has it."""
    if config.teacher.teacher is not None:
        config = apply_teacher_settings(config, TrainedRun.open(Path(config.teacher.teacher)))
    if config.training.init_from is not None:
        config = inherit_settings(config, TrainedRun.open(local_run(config.training.init_from)))
    return config


def _with_fixed(
    config: Config, fixed: Config, settings: Sequence[Setting], origin: str, advice: str
) -> Config:
    """Return the configuration with some settings of another one."""
    for setting in settings:
        given, value = setting.of(config), setting.of(fixed)
        is_given = setting.name in getattr(config, setting.section).model_fields_set
        if is_given and given != value:
            raise ConfigError(
                f"{setting.name} {given} was given, but {origin} has {value}. Leave"
                f" {setting.name} out, or {advice}."
            )
    return with_values(config, {setting.name: setting.of(fixed) for setting in settings})


def check_same_settings(checkpoint: Checkpoint, requested: Config) -> None:
    """Raise CheckpointError if a run is to resume with another value of an active FIXED setting."""
    saved = checkpoint.record.settings
    useless = set()
    for config in (saved, requested):
        useless |= {setting.name for setting in inactive_settings(values_of(config))}
    for setting in marked(FIXED):
        before, now = setting.of(saved), setting.of(requested)
        # The only list among them, `freeze`, has no order.
        if isinstance(before, tuple) and isinstance(now, tuple):
            before, now = (" ".join(sorted(names)) or "nothing" for names in (before, now))
        if setting.name not in useless and before != now:
            raise CheckpointError(
                f"{setting.section}.{setting.name} is {now}, but {checkpoint.path} was written with"
                f" {before}, and it cannot change within a run. Set it to {before}, or take all"
                f" settings from the run with --config {checkpoint.path.parents[1] / 'config.yaml'}"
                ", or start another run with --run."
            )


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
