"""The folder of a run, and what other runs take from it: settings, vocabulary, networks.

`RunFolder` has the paths of a run. `TrainedRun` is one that has a checkpoint: what resumes it,
starts from it, learns from it as a teacher, or uses its network. Without TensorFlow, which takes
seconds to import, until a network is loaded.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from myxtts.audio.format import AUDIO_FORMAT
from myxtts.config.checks import inactive_settings, reset_inactive
from myxtts.config.flags import (
    Setting,
    command_line,
    join_names,
    marked,
    nearest,
    values_of,
    with_values,
)
from myxtts.config.schema import FIXED, FROM_TEACHER, INHERITED, Config
from myxtts.data.manifest import Vocabulary
from myxtts.errors import CheckpointError, ConfigError
from myxtts.files import (
    PARTIAL_FILES,
    is_being_written,
    locked_file,
    make_folder,
    write_json,
    write_whole,
)
from myxtts.training.checkpoint_files import (
    Checkpoint,
    Record,
    Source,
    checkpoint_of,
    latest,
    list_checkpoints,
)

if TYPE_CHECKING:
    import keras

    from myxtts.audio.vocoder import NetworkVocoder, VocoderProtocol
    from myxtts.models.teacher import TeacherModel

# Instead of the folder of a vocoder's run.
GRIFFIN_LIM = "griffin-lim"
VOCODER_ADVICE = (
    f"Give the run of a vocoder with --vocoder, or use Griffin-Lim with --vocoder {GRIFFIN_LIM}."
)
RUNS = Path("runs")
MAX_LISTED = 12

log = logging.getLogger(__name__)


LOCK = ".lock"


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

    def folder_for(self, process: int) -> Path:
        """Return the folder for caches and the log of a process; the chief is process 0."""
        return self.path / f"worker-{process}" if process else self.path

    def write_config(self, text: str) -> None:
        write_whole(self.config, text.encode())

    def write_description(self, description: Mapping[str, Any]) -> None:
        """Write run.json."""
        write_json(self.path / "run.json", description)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of this run for as long as the scope or the process lasts.

        Makes the folder, removes what killed processes left of files that they wrote, and removes
        the folder again if nothing was written to it.

        Raises:
            ConfigError: another process trains this run, or the folder cannot be made.
        """
        with ExitStack() as scope:
            try:
                make_folder(self.path, "--runs-dir")
                scope.enter_context(locked_file(self.path / LOCK, wait=False))
            except (
                BlockingIOError,
                FileNotFoundError,
            ) as error:  # or it has just failed, and removed the folder
                raise ConfigError(
                    f"run '{self.path.name}' cannot be trained: another process is training it in"
                    f" {self.path}. Wait for it or stop it, or choose another name with --run."
                ) from error
            for partial in self.path.glob(PARTIAL_FILES):
                if not is_being_written(partial):
                    partial.unlink(missing_ok=True)
            scope.callback(self._remove_if_empty)
            yield

    def _remove_if_empty(self) -> None:
        if [path.name for path in self.path.iterdir()] == [LOCK]:
            with suppress(OSError):  # another start has made files since
                (self.path / LOCK).unlink()
                self.path.rmdir()


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run that has a checkpoint, and the one of its checkpoints that is used.

    Attributes:
        path: folder of the run, as it was given.
    """

    path: Path
    checkpoint: Checkpoint

    @classmethod
    def open(cls, path: Path, name: str | None = None) -> "TrainedRun":
        """Open a run at a checkpoint such as step-002000; by default at the best, or the newest.

        Raises:
            CheckpointError: the run has no checkpoint, or none of this name, or it is damaged.
        """
        newest = latest(path / "checkpoints")
        if newest is None:
            raise CheckpointError(f"{path} has no checkpoint: {_reason_for_none(path)}")
        if name is not None:
            return cls(path, Checkpoint.read(_named_checkpoint(path, name)))
        checkpoint = Checkpoint.read(newest)
        best = checkpoint.record.best
        if best is None or best.step == checkpoint.record.step:
            return cls(path, checkpoint)
        best_path = checkpoint_of(newest.parent, best.step)
        if not best_path.exists():
            log.warning("the best checkpoint %s no longer exists: using the newest", best_path)
            return cls(path, checkpoint)
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
        return Source(
            run=str(self.path), step=self.record.step, weights=self.checkpoint.weights_digest
        )

    @property
    def inheritable_vocabulary(self) -> Vocabulary:
        """Symbols and languages. Speakers have no weights: each run names its own."""
        return replace(self.record.vocabulary, speakers=())

    def check_task(self, task: str) -> None:
        """Raise CheckpointError if the run was not trained for the task that is needed."""
        if self.task == task:
            return
        advice = f"Give a run that was trained with --task {task}"
        if task == "tts" and self.task == "vocoder":
            advice = (
                "A vocoder needs a voice in front of it: give the run of a voice, and this run with"
                " --vocoder"
            )
        raise CheckpointError(
            f"{self.checkpoint.path} cannot be used for the task {task}: it was trained for"
            f" {self.task}. {advice}."
        )

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights that inference uses: the averaged ones if the run has them."""
        return self.checkpoint.arrays(self.record.weights_group)

    def parameter_count(self) -> int:
        """Return the number of weights that inference uses; reads them."""
        return sum(array.size for array in self.weights().values())

    def load_network(self, device: str, task: str, precision: str = "float32") -> "keras.Model":
        """Build the network of the run on a device, with the weights that inference uses.

        Args:
            task: the task that the network must have.
            precision: Keras dtype policy of the computation; variables are float32.

        Raises:
            CheckpointError: the weights are damaged, or belong to another task or architecture.
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
        """Load the network of a teacher, with the options of its own run.

        Args:
            config: of the run that is taught.
            sizes: named dimensions of a typical batch, by which an alignment search is chosen for
                the device.

        Raises:
            CheckpointError: as `load_network`.
            PlacementError: a variable of the network is on another device.
            ConfigError: XLA is required for the alignment search, and does not work on the device.
        """
        settings = self.record.settings
        precision = config.teacher.produce_precision
        network = self.load_network(device, "tts", precision)
        from myxtts.models.layers import parameter_count
        from myxtts.models.teacher import TeacherModel
        from myxtts.placement.audit import require_device
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
        record = self.record
        return select_vocoder(
            self.path, record.settings, record.audio_format, requested, iterations
        )


def _named_checkpoint(run: Path, name: str) -> Path:
    checkpoints = list_checkpoints(run / "checkpoints")
    for checkpoint in checkpoints:
        if checkpoint.name == name:
            return checkpoint
    raise CheckpointError(
        f"checkpoint '{name}' was requested, but {run} has"
        f" {', '.join(path.name for path in checkpoints)}. Give one of these."
    )


def _reason_for_none(run: Path) -> str:
    """Say why a folder is no run with a checkpoint, and what to give or to do instead."""
    for parent in run.parents:
        if checkpoints := list_checkpoints(parent / "checkpoints"):
            names = ", ".join(path.name for path in checkpoints[-MAX_LISTED:])
            return f"it is a path inside the run {parent}, which has {names}. Give {parent}."
    if run.is_file():
        return (
            "it is a file. Give the folder of a run of MyXTTS; weights of other programs cannot be"
            " read."
        )
    if (run / "config.yaml").is_file():
        return "the run ended before its first. Resume it with --resume."
    sentence = "it is not the folder of a run." if run.is_dir() else "there is no such folder."
    sentences = [sentence]
    folder = RUNS
    runs = _runs_in(run.parent)
    if runs:
        folder = run.parent
    else:
        runs = _runs_in(RUNS)
    if near := nearest(run.name, runs):
        sentences.append(f"Did you mean {folder / near}?")
    if runs:
        sentences.append(f"Runs in {folder}: {join_names(runs, MAX_LISTED)}.")
    else:
        sentences.append(f"`{command_line('train')}` trains a run.")
    return " ".join(sentences)


def _runs_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if latest(path / "checkpoints"))
    except OSError:
        return []


class VocoderChoice(NamedTuple):
    """The vocoder to load.

    Attributes:
        trained: None is Griffin-Lim.
        iterations: of Griffin-Lim; None is its default.
        note: what the log adds to the description.
    """

    trained: TrainedRun | None = None
    iterations: int | None = None
    note: str = ""

    def load(self, device: str) -> "VocoderProtocol":
        """Load the vocoder on a device, and log which one it is.

        Raises:
            CheckpointError: the weights are damaged, or are no vocoder's.
        """
        from myxtts.audio.vocoder import ITERATIONS, GriffinLim

        vocoder: VocoderProtocol
        if self.trained:
            vocoder = self.trained.load_vocoder(device)
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

    Args:
        voice: folder of the voice's run.
        settings, audio_format: of the voice.
        requested: folder of a vocoder's run, relative to the working folder, or "griffin-lim".
        iterations: requested iterations of Griffin-Lim.

    Raises:
        CheckpointError: the run is missing, has no checkpoint, is no vocoder, or its audio format
            is not the voice's.
        ConfigError: iterations were requested for another vocoder than Griffin-Lim.
    """
    vocoder = settings.model.vocoder if requested is None else str(requested)
    if vocoder is None:
        return VocoderChoice(iterations=iterations, note=" (no --vocoder was given)")
    if vocoder == GRIFFIN_LIM:
        return VocoderChoice(iterations=iterations)
    source = f"--vocoder {vocoder} was given"
    if requested is None:
        source = f"{voice} has the setting vocoder {vocoder}"
    if iterations is not None:
        raise ConfigError(
            f"--iterations {iterations} was given, which is for Griffin-Lim, but {source}. Leave"
            f" out --iterations, or add --vocoder {GRIFFIN_LIM}."
        )
    run = Path(vocoder)
    if latest(run / "checkpoints") is None:
        raise CheckpointError(f"{source}, but {_describe_missing_vocoder(run, voice)}")
    trained = TrainedRun.open(run)
    if trained.task != "vocoder":
        raise CheckpointError(
            f"{source}, but that run was trained with --task {trained.task}, and is no vocoder."
            f" {VOCODER_ADVICE}"
        )
    takes = trained.record.audio_format
    names = [name for name in takes | audio_format if takes.get(name) != audio_format.get(name)]
    if names:
        raise CheckpointError(
            f"{source}, which takes mels with {_format_of(takes, names)}, but the voice makes mels"
            f" with {_format_of(audio_format, names)}. {VOCODER_ADVICE}"
        )
    return VocoderChoice(trained)


def _format_of(audio_format: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {audio_format.get(name)}" for name in names)


def _describe_missing_vocoder(run: Path, voice: Path) -> str:
    neighbour = voice.parent / run.name
    if not run.is_absolute() and latest(neighbour / "checkpoints"):
        return (
            f"there is no such run in the working folder {Path.cwd()}. Did you mean --vocoder"
            f" {neighbour}? Paths of runs are relative to the working folder."
        )
    return (
        f"{run} has no checkpoint: {_reason_for_none(run)} Griffin-Lim needs no run: --vocoder"
        f" {GRIFFIN_LIM}."
    )


def open_teacher(config: Config, resumed: TrainedRun | None) -> TrainedRun | None:
    """Open the teacher that the settings name, if they name one.

    A run that resumes takes the checkpoint that it has had, also if the teacher's run has a better
    one by now.

    Args:
        resumed: the run itself, if it resumes.

    Raises:
        CheckpointError: the teacher is missing, damaged, no voice or of another audio format, or it
            is not the one that the resumed run has had.
    """
    recorded = resumed.record.teacher if resumed else None
    path = config.teacher.teacher
    if resumed and (recorded is None) != (path is None):
        had = f"--teacher {recorded.run}" if recorded else "none"
        given = "no --teacher" if recorded else f"--teacher {path}"
        raise CheckpointError(
            f"{given} was given, but {resumed.checkpoint.path} was trained with {had}, and this"
            " cannot change within a run. Take all settings from the run with --config, or start"
            " another run with --run."
        )
    if path is None:
        return None
    if resumed is not None:
        teacher = _open_recorded_teacher(Path(path), resumed)
    else:
        teacher = TrainedRun.open(Path(path))
    teacher.check_task("tts")
    if teacher.record.audio_format != AUDIO_FORMAT:
        raise CheckpointError(
            f"--teacher {path} was given, but {teacher.checkpoint.path} was trained on mels of"
            " another format than this version makes. Train it again with this version."
        )
    return teacher


def _open_recorded_teacher(path: Path, resumed: TrainedRun) -> TrainedRun:
    """Open the teacher of a run at the checkpoint that the run was trained with."""
    recorded = resumed.record.teacher
    assert recorded is not None
    folder = path / "checkpoints"
    checkpoint = checkpoint_of(folder, recorded.step)
    if latest(folder) is not None and not checkpoint.exists():
        raise CheckpointError(
            f"--teacher {path} was given, but it has no {checkpoint.name}, with which"
            f" {resumed.checkpoint.path} was trained. Restore that checkpoint, or start another"
            " run with --run."
        )
    teacher = TrainedRun.open(path, checkpoint.name)
    if teacher.checkpoint.weights_digest != recorded.weights:
        raise CheckpointError(
            f"{checkpoint} has other weights than the teacher of {resumed.checkpoint.path}. Restore"
            " that teacher, or start another run with --run."
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
    """Return the configuration with the settings that the weights of a checkpoint fix.

    Args:
        source: the pretrained run, or the run itself, which resumes.

    Raises:
        ConfigError: the configuration names another value of such a setting.
    """
    fixed = reset_inactive(source.record.settings)
    if source.path == Path(config.run.runs_dir, config.run.run):
        verb = "resumes"
        advice = "start another run with --run"
    else:
        verb = "starts"
        advice = "give another --init-from"
    origin = f"the run {verb} from {source.checkpoint.path}, which"
    # A vocoder has no symbols: its text_frontend is that of its teacher.
    has_symbols = fixed.model.task != "vocoder"
    inherited = [
        setting for setting in marked(INHERITED) if has_symbols or FROM_TEACHER not in setting.marks
    ]
    config = _with_fixed(config, fixed, inherited, origin, advice)
    if config.model.task == "vocoder" and fixed.teacher.teacher and not config.teacher.teacher:
        raise ConfigError(
            f"no --teacher was given, but {origin} learned from the mels of the voice"
            f" {fixed.teacher.teacher}. Give --teacher with this or another voice, or {advice}."
        )
    return config


def apply_teacher_settings(config: Config, teacher: TrainedRun) -> Config:
    """Return the configuration with the settings that a teacher fixes.

    Raises:
        ConfigError: the configuration names another value of such a setting.
    """
    settings = teacher.record.settings
    origin = f"the teacher {teacher.path}"
    return _with_fixed(config, settings, marked(FROM_TEACHER), origin, "give another --teacher")


def with_inherited_settings(config: Config) -> Config:
    """Return the settings with all that --teacher and --init-from fix, as a new run will have it.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
        ConfigError: the configuration names another value of such a setting.
    """
    if config.teacher.teacher is not None:
        config = apply_teacher_settings(config, TrainedRun.open(Path(config.teacher.teacher)))
    if config.training.init_from is not None:
        config = inherit_settings(config, TrainedRun.open(Path(config.training.init_from)))
    return config


def _with_fixed(
    config: Config, fixed: Config, settings: Sequence[Setting], origin: str, advice: str
) -> Config:
    """Return the configuration with some settings of another one.

    Args:
        origin: subject of the message about another value; advice: end of the message.
    """
    for setting in settings:
        section = getattr(config, setting.section)
        given = setting.of(config)
        value = setting.of(fixed)
        if setting.name in section.model_fields_set and given != value:
            raise ConfigError(
                f"{setting.name} {given} was given, but {origin} has {value}. Leave"
                f" {setting.name} out, or {advice}."
            )
    return with_values(config, {setting.name: setting.of(fixed) for setting in settings})


def check_same_settings(checkpoint: Checkpoint, requested: Config) -> None:
    """Raise CheckpointError if a run is to resume with another value of a fixed setting.

    Settings that have no effect may differ.
    """
    saved = checkpoint.record.settings
    useless = set()
    for config in (saved, requested):
        useless |= {setting.name for setting in inactive_settings(values_of(config))}
    for setting in marked(FIXED):
        before = setting.of(saved)
        now = setting.of(requested)
        if setting.name not in useless and _without_order(before) != _without_order(now):
            raise CheckpointError(
                f"{setting.section}.{setting.name} is {_shown(now)}, but {checkpoint.path} was"
                f" written with {_shown(before)}, and it cannot change within a run. Set it to"
                f" {_shown(before)}, or take all settings from the run with --config"
                f" {checkpoint.path.parents[1] / 'config.yaml'}, or start another run with --run."
            )


def _shown(value: Any) -> str:
    """Return a value as a flag takes it."""
    if isinstance(value, tuple):
        return " ".join(value) or "nothing"
    return "null" if value is None else str(value)


def _without_order(value: Any) -> Any:
    """Return a value to compare: the only list among the FIXED settings, `freeze`, has no order."""
    return set(value) if isinstance(value, tuple) else value


def check_same_corpus(checkpoint: Checkpoint, vocabulary: Vocabulary, corpus: str) -> None:
    """Raise CheckpointError if a checkpoint was trained on another corpus or vocabulary.

    Args:
        corpus: fingerprint of the corpus that is trained or evaluated on now.
    """
    record = checkpoint.record
    differences = []
    # The weights of a vocoder know no symbols and no languages.
    if vocabulary.symbols.symbols:
        differences += [
            ("symbols", record.symbols != vocabulary.symbols.symbols),
            ("languages", record.languages != vocabulary.languages),
        ]
    # A fork or merge has no corpus of its own yet.
    differences.append(("corpus", record.corpus not in (None, corpus)))
    for name, is_different in differences:
        if is_different:
            raise CheckpointError(
                f"{checkpoint.path} was trained on another corpus (different {name}). Give the"
                " corpus that the run was started with, or start another run with --run."
            )


def check_same_texts(checkpoint: Checkpoint, texts: str | None) -> None:
    """Raise CheckpointError if --texts differs from that of the checkpoint."""
    if checkpoint.record.texts != texts:
        raise CheckpointError(
            f"{checkpoint.path} was trained on other texts without recordings. Give the --texts"
            " that the run was started with, or start another run with --run."
        )
