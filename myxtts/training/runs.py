"""The folder of a run: its layout, and whether a run may start or resume in it.

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

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from myxtts.audio.format import AUDIO_FORMAT, UNRECORDED_FORMAT
from myxtts.config.checks import inactive_settings, reset_inactive
from myxtts.config.flags import Setting, marked, values_of, with_values
from myxtts.config.load import SHIPPED, load
from myxtts.config.names import command_line, join_names, nearest
from myxtts.config.schema import FIXED, FROM_TEACHER, INHERITED, Config, ModelConfig
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
from myxtts.text.symbols import SymbolTable
from myxtts.training.checkpoint_files import (
    checkpoint_of,
    digest_of,
    latest,
    list_checkpoints,
    read_arrays,
    read_best,
    read_metadata,
)

log = logging.getLogger(__name__)


def inherit_settings(config: Config, checkpoint: Path) -> Config:
    """Return the configuration with the settings that the weights of a checkpoint fix.

    Args:
        checkpoint: of the pretrained run, or of the run itself, which resumes from it.

    Raises:
        ConfigError: the configuration names another value of such a setting.
    """
    fixed = reset_inactive(settings_of(checkpoint, read_metadata(checkpoint)))
    resumes = checkpoint.is_relative_to(Path(config.run.runs_dir, config.run.run))
    verb, advice = (
        ("resumes", "start another run with --run")
        if resumes
        else ("starts", "give another --init-from")
    )
    # A vocoder has no symbols: its text_frontend is that of its teacher.
    has_symbols = fixed.model.task != "vocoder"
    inherited = [
        setting for setting in marked(INHERITED) if has_symbols or FROM_TEACHER not in setting.marks
    ]
    origin = f"the run {verb} from {checkpoint}, which"
    config = _with_fixed(config, fixed, inherited, origin, advice)
    if config.model.task == "vocoder" and fixed.teacher.teacher and not config.teacher.teacher:
        raise ConfigError(
            f"no --teacher was given, but the run {verb} from {checkpoint}, which learned from the"
            f" mels of the voice {fixed.teacher.teacher}. Give --teacher with this or another"
            f" voice, or {advice}."
        )
    return config


def taught_settings(config: Config, teacher: Path, settings: Config) -> Config:
    """Return the configuration with the settings that a teacher fixes.

    Args:
        teacher: folder of its run.
        settings: of its checkpoint.

    Raises:
        ConfigError: the configuration names another value of such a setting.
    """
    origin = f"the teacher {teacher}"
    advice = "give another --teacher"
    return _with_fixed(config, settings, marked(FROM_TEACHER), origin, advice)


def with_inherited_settings(config: Config) -> Config:
    """Return the configuration with all that its --teacher and its --init-from fix, as a new run
    will have it.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
        ConfigError: the configuration names another value of such a setting.
    """
    if config.teacher.teacher is not None:
        run = Path(config.teacher.teacher)
        checkpoint = select_checkpoint(run)
        config = taught_settings(config, run, settings_of(checkpoint, read_metadata(checkpoint)))
    if config.training.init_from is not None:
        config = inherit_settings(config, select_checkpoint(Path(config.training.init_from)))
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

    def of_process(self, process: int) -> Path:
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


def check_same_settings(checkpoint: Path, saved: Config, requested: Config) -> None:
    """Raise CheckpointError if a run is to resume with another value of a fixed setting that has an
    effect.
    """
    useless = {
        setting.name
        for config in (saved, requested)
        for setting in inactive_settings(values_of(config))
    }
    for setting in marked(FIXED):
        before = setting.of(saved)
        now = setting.of(requested)
        if setting.name not in useless and _without_order(before) != _without_order(now):
            raise CheckpointError(
                f"{setting.section}.{setting.name} is {_shown(now)}, but {checkpoint} was written"
                f" with {_shown(before)}, and it cannot change within a run. Set it to"
                f" {_shown(before)}, or take all settings from the run with --config"
                f" {checkpoint.parents[1] / 'config.yaml'}, or start another run with --run."
            )


def _shown(value: Any) -> str:
    """Return a value as a flag takes it."""
    return (
        (" ".join(value) or "nothing")
        if isinstance(value, tuple)
        else "null"
        if value is None
        else str(value)
    )


def _without_order(value: Any) -> Any:
    """Return a value to compare: the only list among the FIXED settings, `freeze`, has no order."""
    return set(value) if isinstance(value, tuple) else value


def check_same_texts(checkpoint: Path, metadata: dict[str, Any]) -> None:
    """Raise CheckpointError if the teacher of a run would speak other texts; the arguments are as
    below.
    """
    if read_metadata(checkpoint).get("texts") != metadata["texts"]:
        raise CheckpointError(
            f"{checkpoint} was trained on other texts without recordings. Give the --texts that the"
            " run was started with, or start another run with --run."
        )


def check_same_corpus(checkpoint: Path, metadata: dict[str, Any]) -> None:
    """Raise CheckpointError if a checkpoint was trained on another corpus, or with other symbols or
    languages.

    Args:
        metadata: of the checkpoints that the run would write now.
    """
    saved, current = read_metadata(checkpoint), json.loads(json.dumps(metadata))
    vocabulary = (
        ("symbols", "languages") if current["symbols"] else ()
    )  # a vocoder's weights know no languages
    for name in (*vocabulary, "corpus"):
        if (
            saved[name] != current[name] and saved[name] is not None
        ):  # a fork or merge has no corpus of its own yet
            raise CheckpointError(
                f"{checkpoint} was trained on another corpus (different {name}). "
                "Give the corpus that the run was started with, or start another run with --run."
            )


MAX_LISTED = 12
RUNS = Path("runs")
_CORPUS_COMMAND = re.compile(
    r"^# (python utilities/make_demo_corpus\.py .*)$", re.MULTILINE
)  # in a shipped file


def describe_missing(run: Path) -> str:
    """Return the message that a run has no checkpoint."""
    return f"{run} has no checkpoint: {_reason(run)}"


def _reason(run: Path) -> str:
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
        return f"the run ended before its first. Resume it with `{_resume(run)}`."
    state = "it is not the folder of a run." if run.is_dir() else "there is no such folder."
    folder = run.parent if _runs_in(run.parent) else RUNS
    advice = [*_listed(run.name, folder, _runs_in(folder)), *_commands(run)]
    return " ".join([state, *(advice or [f"`{command_line('train')}` trains a run."])])


def _listed(name: str, folder: Path, runs: list[str]) -> Iterator[str]:
    """Yield sentences about the runs in a folder, and the nearest to a name."""
    near = nearest(name, runs)
    if near:
        yield f"Did you mean {folder / near}?"
    if runs:
        yield f"Runs in {folder}: {join_names(runs, MAX_LISTED)}."


def _runs_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if latest(path / "checkpoints"))
    except OSError:
        return []


def _commands(run: Path) -> Iterator[str]:
    """Yield the commands of each shipped configuration that trains a run of this name."""
    for file in sorted(SHIPPED.glob("*.yaml")):
        try:
            config = load(file)
        except ConfigError:
            continue  # a file of the user's own, which nobody asked for
        if config.run.run == run.name:
            yield "\n  ".join(
                ["These commands train it:", *_corpus_commands(file, config), _train(file)]
            )


def _corpus_commands(file: Path, config: Config) -> list[str]:
    """Return the command that makes the corpus of a shipped configuration, if the corpus is
    missing.
    """
    corpus = config.data.train_data
    has_corpus = corpus is None or Path(corpus).exists()
    return [] if has_corpus else _CORPUS_COMMAND.findall(file.read_text(encoding="utf-8"))[:1]


def _resume(run: Path) -> str:
    runs_dir = "" if run.parent == RUNS else f" --runs-dir {run.parent}"
    return f"{command_line('train')} --resume --run {run.name}{runs_dir}"


def _train(file: Path) -> str:
    return f"{command_line('train')} --config {file}"


def select_checkpoint(run: Path, name: str | None = None) -> Path:
    """Return a checkpoint of a run by its name, such as step-002000; by default the best, or else
    the newest.

    Raises:
        CheckpointError: the run has no checkpoint, or none of this name.
    """
    newest = latest(run / "checkpoints")
    if newest is None:
        raise CheckpointError(describe_missing(run))
    if name is not None:
        return _by_name(run, name)
    best = read_best(newest)
    if best is None:
        return newest
    checkpoint = checkpoint_of(newest.parent, best.step)
    if not checkpoint.exists():
        log.warning("the best checkpoint %s no longer exists: using the newest", checkpoint)
        return newest
    return checkpoint


def _by_name(run: Path, name: str) -> Path:
    checkpoints = list_checkpoints(run / "checkpoints")
    for checkpoint in checkpoints:
        if checkpoint.name == name:
            return checkpoint
    raise CheckpointError(
        f"checkpoint '{name}' was requested, but {run} has"
        f" {', '.join(path.name for path in checkpoints)}. Give one of these."
    )


def settings_of(checkpoint: Path, metadata: dict[str, Any]) -> Config:
    """Return the settings of a run; raise CheckpointError if this version does not have them."""
    try:
        return Config.model_validate_json(json.dumps(metadata["settings"]))
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(
            f"the settings in {checkpoint} cannot be used: {'.'.join(map(str, first['loc']))}:"
            f" {first['msg']}. Use the version of MyXTTS that wrote it."
        ) from error


def vocabulary_of(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary of a run from the metadata of one of its checkpoints."""
    return Vocabulary(
        SymbolTable.from_list(metadata["symbols"]),
        tuple(metadata["speakers"]),
        tuple(metadata["languages"]),
    )


def audio_format_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the audio format of a checkpoint. Versions that did not record it had a single one."""
    recorded = metadata.get("audio_format", UNRECORDED_FORMAT)
    return recorded if isinstance(recorded, dict) else {}


def check_task(checkpoint: Path, trained: str, task: str) -> None:
    """Raise CheckpointError if the task that a checkpoint was trained for is not the one that is
    needed.
    """
    if trained == task:
        return
    if task == "tts" and trained == "vocoder":
        advice = (
            "A vocoder needs a voice in front of it: give the run of a voice, and this run with"
            " --vocoder"
        )
    else:
        advice = f"Give a run that was trained with --task {task}"
    raise CheckpointError(
        f"{checkpoint} cannot be used for the task {task}: it was trained for {trained}. {advice}."
    )


def weights_group(metadata: Mapping[str, Any]) -> str:
    """Return the group of the weights to use: the averaged ones if the run has them."""
    return "averages" if metadata["settings"]["training"]["ema_decay"] else "model"


GRIFFIN_LIM = "griffin-lim"  # in place of a run folder
_ADVICE = (
    f"Give the run of a vocoder with --vocoder, or use Griffin-Lim with --vocoder {GRIFFIN_LIM}."
)


class VocoderRun(NamedTuple):
    """A checkpoint of a vocoder, with its metadata; `run` is the folder of its run as it
    was given.
    """

    run: Path
    checkpoint: Path
    metadata: dict[str, Any]


class VocoderChoice(NamedTuple):
    """The vocoder to load.

    Attributes:
        trained: None is Griffin-Lim.
        iterations: of Griffin-Lim; None is its default.
        note: what the log adds to the description.
    """

    trained: VocoderRun | None = None
    iterations: int | None = None
    note: str = ""


def select_vocoder(
    voice: Path,
    metadata: Mapping[str, Any],
    requested: str | Path | None = None,
    iterations: int | None = None,
) -> VocoderChoice:
    """Choose the vocoder of a voice: the requested one, or else the one that its settings name, or
    else Griffin-Lim.

    Args:
        voice: folder of the voice's run.
        metadata: `settings` and `audio_format` of the voice, as in its checkpoints.
        requested: folder of a vocoder's run, relative to the working folder, or "griffin-lim".
        iterations: requested iterations of Griffin-Lim.

    Raises:
        CheckpointError: the run is missing, has no checkpoint, is no vocoder, or its audio format
            is not the voice's.
        ConfigError: iterations were requested for another vocoder than Griffin-Lim.
    """
    model = ModelConfig(**metadata["settings"]["model"])
    vocoder = model.vocoder if requested is None else str(requested)
    if vocoder is None or vocoder == GRIFFIN_LIM:
        return VocoderChoice(
            iterations=iterations, note="" if vocoder else " (no --vocoder was given)"
        )
    source = (
        f"{voice} has the setting vocoder {vocoder}"
        if requested is None
        else f"--vocoder {vocoder} was given"
    )
    if iterations is not None:
        raise ConfigError(
            f"--iterations {iterations} was given, which is for Griffin-Lim, but {source}. Leave"
            f" out --iterations, or add --vocoder {GRIFFIN_LIM}."
        )
    run = Path(vocoder)
    if latest(run / "checkpoints") is None:
        raise CheckpointError(f"{source}, but {_describe_missing(run, voice)}")
    trained = read_vocoder_run(run)
    task = settings_of(trained.checkpoint, trained.metadata).model.task
    if task != "vocoder":
        raise CheckpointError(
            f"{source}, but that run was trained with --task {task}, and is no vocoder. {_ADVICE}"
        )
    _check_format(source, audio_format_of(trained.metadata), audio_format_of(metadata))
    return VocoderChoice(trained)


def read_vocoder_run(run: Path, checkpoint: str | None = None) -> VocoderRun:
    """Return the named checkpoint of a run, by default its best; raises CheckpointError as
    `select_checkpoint` does.
    """
    selected = select_checkpoint(run, checkpoint)
    return VocoderRun(run, selected, read_metadata(selected))


def _check_format(source: str, of_vocoder: dict[str, Any], of_voice: dict[str, Any]) -> None:
    names = [name for name in of_voice | of_vocoder if of_vocoder.get(name) != of_voice.get(name)]
    if names:
        takes, makes = (
            ", ".join(f"{name} {values.get(name)}" for name in names)
            for values in (of_vocoder, of_voice)
        )
        raise CheckpointError(
            f"{source}, which takes mels with {takes}, but the voice makes mels with {makes}."
            f" {_ADVICE}"
        )


def _describe_missing(run: Path, voice: Path) -> str:
    beside = voice.parent / run.name
    if not run.is_absolute() and latest(beside / "checkpoints"):
        return (
            f"there is no such run in the working folder {Path.cwd()}. Did you mean --vocoder"
            f" {beside}? Paths of runs are relative to the working folder."
        )
    return f"{describe_missing(run)} Griffin-Lim needs no run: --vocoder {GRIFFIN_LIM}."


@dataclass(frozen=True, eq=False)
class Teacher:
    """A checkpoint of a voice.

    Attributes:
        run: folder of its run, as --teacher gives it.
        digest: SHA-256 of the weights to use.
        parameters: number of these weights.
    """

    run: Path
    checkpoint: Path
    metadata: dict[str, Any]
    digest: str
    parameters: int

    @property
    def settings(self) -> Config:
        return settings_of(self.checkpoint, self.metadata)

    @property
    def vocabulary(self) -> Vocabulary:
        """Symbols and languages that the teacher knows: the run has the same, and no others."""
        return replace(vocabulary_of(self.metadata), speakers=())

    def record(self) -> dict[str, Any]:
        """Return what the run's checkpoints record of the teacher."""
        return {"run": str(self.run), "step": self.metadata["step"], "weights": self.digest}


def read_teacher(config: Config, own_checkpoint: Path | None) -> Teacher | None:
    """Return the teacher that the settings name, if they name one.

    A run that resumes takes the checkpoint that it has had, also if the teacher's run has a better
    one by now.

    Args:
        own_checkpoint: from which the run resumes.

    Raises:
        CheckpointError: the teacher is missing, damaged, no voice or of another audio format, or it
            is not the one that the resumed run has had.
    """
    recorded = read_metadata(own_checkpoint).get("teacher") if own_checkpoint else None
    path = config.teacher.teacher
    if own_checkpoint and (recorded is None) != (path is None):
        had, given = (
            (f"--teacher {recorded['run']}", "no --teacher")
            if recorded
            else ("none", f"--teacher {path}")
        )
        raise CheckpointError(
            f"{given} was given, but {own_checkpoint} was trained with {had}, and this cannot"
            " change within a run. Take all settings from the run with --config, or start another"
            " run with --run."
        )
    if path is None:
        return None
    run = Path(path)
    checkpoint = select_checkpoint(run)
    if recorded:
        checkpoint = checkpoint_of(checkpoint.parent, recorded["step"])
    if not checkpoint.exists():
        raise CheckpointError(
            f"--teacher {run} was given, but it has no {checkpoint.name}, with which"
            f" {own_checkpoint} was trained. Restore that checkpoint, or start another run with"
            " --run."
        )
    metadata = read_metadata(checkpoint)
    check_task(checkpoint, settings_of(checkpoint, metadata).model.task, "tts")
    if audio_format_of(metadata) != AUDIO_FORMAT:
        raise CheckpointError(
            f"--teacher {run} was given, but {checkpoint} was trained on mels of another format"
            " than this version makes. Train it again with this version."
        )
    weights = read_arrays(checkpoint, weights_group(metadata))
    digest = digest_of(weights)
    if recorded and recorded["weights"] != digest:
        raise CheckpointError(
            f"{checkpoint} has other weights than the teacher of {own_checkpoint}. Restore that"
            " teacher, or start another run with --run."
        )
    return Teacher(run, checkpoint, metadata, digest, sum(array.size for array in weights.values()))
