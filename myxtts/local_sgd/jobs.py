"""Independent jobs in one command: split, common start, one run on each GPU, merge. No TensorFlow.

runs/NAME/
    independent.json      the launcher, and what became of its processes
    parts/                the corpus in as many parts as there are jobs
    start.yaml  start/    the common start: a run
    gpu0.yaml  gpu0/  …   the jobs: a run each, which goes on from the newest checkpoint of the start
    rounds/               what jobs exchange, where they merge on the way
    logs/                 start_training.log, gpu0_training.log, …, merge.log
    merged/               the result: a run

Each stage finds by the files what is done, so that a launcher that was killed goes on where it was.
"""

import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar, NamedTuple

from myxtts.config.load import dump, load, shown
from myxtts.config.schema import Config
from myxtts.distributed.processes import (
    ChildProcess,
    StopRequests,
    gpu_environ,
    stop_requests,
    usable_cores,
    visible_gpus,
)
from myxtts.distributed.supervisor import Exit, Outcome, ProgramSpec, Supervisor, SupervisorEvents
from myxtts.errors import ConfigError, DataError, PlacementError
from myxtts.files import write_whole
from myxtts.local_sgd.fork import fork
from myxtts.local_sgd.job_settings import OF_THE_SPLIT, of_job, of_start
from myxtts.local_sgd.launcher_state import (
    FixedSettings,
    LauncherState,
    Merged,
    Process,
    Shards,
    new_record,
    read_record,
)
from myxtts.local_sgd.progress import Display, progress_of, rows_of, table
from myxtts.local_sgd.shards import split_corpus
from myxtts.local_sgd.sync_folder import newest_average, sync_folders
from myxtts.training.checkpoint_files import latest, read_metadata, step_of
from myxtts.training.run_folder import RunFolder


class Device(NamedTuple):
    """What a job is given to compute on: GPUs as `CUDA_VISIBLE_DEVICES` names them, and cores of its own."""

    gpus: tuple[str, ...]
    cores: frozenset[int] | None = None

    @property
    def environ(self) -> dict[str, str]:
        return gpu_environ(self.gpus)

    def told(self) -> str:
        if self.gpus:
            return f"GPU {' '.join(self.gpus)}"
        return f"cores {' '.join(map(str, sorted(self.cores)))}" if self.cores else "all cores"


@dataclass(frozen=True)
class Job:
    """One of the jobs.

    Attributes:
        name: of its run, such as gpu0.
        config: as the user gave it for this job.
    """

    name: str
    config: Config
    device: Device


@dataclass(frozen=True)
class Work:
    """All that is to be done.

    Attributes:
        folder: of everything.
        config: as the user gave it for all jobs.
        gpus: number of the GPU of each job.
        warmstart_steps: that the common start takes.
        sync_every: steps of a round; 0 merges at the end only.
        max_restarts: of a job.
        trainer, merger: commands of train_main.py and utilities/merge_checkpoints.py, without flags.
    """

    folder: Path
    config: Config
    jobs: tuple[Job, ...]
    gpus: tuple[int, ...]
    warmstart_steps: int
    sync_every: int
    max_restarts: int
    trainer: tuple[str, ...]
    merger: tuple[str, ...]

    @property
    def common_device(self) -> Device:
        """For what runs alone: the first GPU; all of the CPU where GPUs are simulated."""
        return self.jobs[0].device._replace(cores=None)

    @property
    def total_steps(self) -> int:
        return self.config.training.max_steps

    def fixed(self) -> FixedSettings:
        values = {name: value for own in self.config.model_dump(mode="json").values() for name, value in own.items()}
        corpus = {name: values[name] for name in OF_THE_SPLIT}
        return FixedSettings(
            gpus=list(self.gpus), warmstart_steps=self.warmstart_steps, sync_every=self.sync_every, corpus=corpus
        )


def devices_of(gpus: Sequence[int], simulated: int) -> list[Device]:
    """The device of each job.

    Args:
        gpus: numbers of the GPUs, as train_main.py counts those that this process sees.
        simulated: how many shares of the CPU stand for GPUs; 0 takes real ones. A share has cores of its own where
            there are enough.

    Raises:
        PlacementError: a GPU is not there, or named twice, or there is one alone.
    """
    found = [str(gpu) for gpu in range(simulated)] if simulated else visible_gpus()
    asked = f"--gpus {' '.join(map(str, gpus))}"
    if len(gpus) < 2 or len(set(gpus)) < len(gpus):
        raise PlacementError(
            f"{asked} was given, but each job needs a GPU of its own, and there is nothing to merge of one. Name two "
            "different GPUs or more; train_main.py trains on one."
        )
    if max(gpus) >= len(found):
        seen = f"--simulate-gpus {simulated} makes" if simulated else "this process sees"
        numbers = {0: "no GPU", 1: "GPU 0 alone"}.get(len(found), f"GPUs 0 to {len(found) - 1}")
        raise PlacementError(
            f"{asked} was given, but {seen} {numbers}. Name some of these, or try it on the CPU with "
            f"--simulate-gpus {max(gpus) + 1}."
        )
    if not simulated:
        return [Device((found[gpu],)) for gpu in gpus]
    cores = usable_cores()
    each = len(cores) // simulated
    return [Device((), frozenset(cores[gpu * each : (gpu + 1) * each]) or None) for gpu in gpus]


def existing_record(folder: Path, resume: bool) -> LauncherState | None:
    """The record of a run that is to be gone on with, if there is one.

    Raises:
        ConfigError: there is a run here, and it is not to be, or cannot be, gone on with.
    """
    record = read_record(folder)
    others = [path for path in (folder / name for name in ("config.yaml", "checkpoints", "start")) if path.exists()]
    if record is None and others:
        raise ConfigError(
            f"independent jobs '{folder.name}' were to be started, but {others[0]} is there, of something else. "
            "Give another name by --run."
        )
    if record is not None and not resume and record.split is not None:
        raise ConfigError(
            f"run '{folder.name}' was to be started, but {folder} already holds independent jobs. "
            "Go on with them by --resume, or give another name by --run."
        )
    return record


def train_jobs(work: Work, display: Display) -> int:
    """Do what is left of the work; gives the exit code.

    0 when the merge holds all jobs and is no worse than the best of them; 1 where it is, or where a job or the merge
    was lost; 2 where a run refused its settings, so that there is no merge; 130 or 143 when stopped, after checkpoints.

    Raises:
        UserError: something that the user can mend.
    """
    folder = work.folder
    _make_folder(folder / "logs")
    with RunFolder(folder).locked():
        record = _begin(work)
        if record.split is None:
            shutil.rmtree(folder / "parts", ignore_errors=True)  # of another number of jobs
            record.split = Shards.of(split_corpus(work.config, folder / "parts", len(work.jobs)))
        display.say(record.split.table)
        for job in work.jobs:
            display.say(f"{job.name:<14} on {job.device.told()}; see {_log_of(work, job.name)}")
        runs = _write_settings(work, record.split)
        record.processes = {name: Process(state="done" if _is_done(work, name) else "waiting") for name in runs}
        record.write(folder)
        with stop_requests() as stop:
            code = _run_stages(work, record, runs, stop, display)
        record.write(folder)
        if stop.count:
            display.say(f"stopped by {stop.signal_name} at: {record.stage}; the same command with --resume goes on")
            return stop.exit_code
        return code


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be made: {error.strerror}. Choose another --runs-dir.") from error


def _begin(work: Work) -> LauncherState:
    """The record of this launcher, with what an earlier one left to it.

    Raises:
        ConfigError: the run is not to be gone on with, or not in this way.
    """
    before = existing_record(work.folder, work.config.run.resume)
    record = new_record(work.total_steps, work.fixed())
    difference = before.fixed.difference(record.fixed) if before else None
    if difference and latest(work.folder / "start" / "checkpoints") is not None:
        name, kept, asked = difference
        raise ConfigError(
            f"{name} is {shown(asked)}, but the jobs in {work.folder} were started with {shown(kept)}, and keep it. "
            "Set it to that, or start another run by --run."
        )
    if before is not None and not difference:
        record.split, record.merged = before.split, before.merged
    record.write(work.folder)
    return record


def _write_settings(work: Work, split: Shards) -> dict[str, Config]:
    """The settings of each run, by its name, in a file of their own."""
    folder = work.folder
    sync_dir = work.config.local_sgd.sync_dir or str(folder / "rounds")
    merges = {"jobs": len(work.jobs), "sync_every": work.sync_every, "sync_dir": sync_dir}
    runs = {"start": of_start(work.config, folder, split, work.warmstart_steps)}
    for number, job in enumerate(work.jobs):
        runs[job.name] = of_job(job.config, folder, split, job.name, number, merges)
    for name, config in runs.items():
        write_whole(_settings_of(work, name), dump(config).encode())
        runs[name] = load(_settings_of(work, name))  # which refuses what no run could have, before any is started
    return runs


def _settings_of(work: Work, name: str) -> Path:
    return work.folder / f"{name}.yaml"


def _is_done(work: Work, name: str) -> bool:
    newest = latest(work.folder / name / "checkpoints")
    if name == "start":
        return newest is not None and step_of(newest) >= work.warmstart_steps
    # One that was stopped while it waited for the last merge has all its steps, but not that.
    return (
        newest is not None
        and step_of(newest) >= work.total_steps
        and not (work.sync_every and read_metadata(newest)["audio_s_since_sync"])
    )


def _run_stages(
    work: Work, record: LauncherState, runs: dict[str, Config], stop: StopRequests, display: Display
) -> int:
    """Start, jobs and merge; gives the exit code, where nobody asked to stop."""
    folder, names = work.folder, [job.name for job in work.jobs]
    events = _JobEvents(folder, record, display)
    supervisor = Supervisor(stop, events, stop_signal=signal.SIGTERM)
    record.stage = "start"
    if not _is_done(work, "start"):
        exits = supervisor.run([_training(work, "start", work.common_device)])
        if not _is_done(work, "start"):
            return 2 if any(exit.code == 2 for exit in exits) else 1
    start = latest(folder / "start" / "checkpoints")
    record.stage = "jobs"
    sync_dir = Path(runs[names[0]].local_sgd.sync_dir)
    if work.sync_every and not any(latest(folder / name / "checkpoints") for name in names):
        _check_unused(sync_dir)
    for name in names:
        fork(start, folder / name, runs[name])
    exits = supervisor.run([_training(work, job.name, job.device) for job in work.jobs if not _is_done(work, job.name)])
    events.show_table()
    if stop.count:
        return 0
    there = [name for name in names if _is_done(work, name)]
    lost = [name for name in names if name not in there]
    for name in lost:
        step = progress_of(folder / name).step
        display.say(
            f"error: the merge lacks {name}: it was lost at step {step} of {work.total_steps}, and with it part "
            f"{names.index(name)} of the corpus ({record.split.holds(names.index(name))}). The same command with "
            "--resume goes on with it.",
            error=True,
        )
    missed = _missed_rounds(work, sync_dir)
    for name, rounds in missed.items():
        display.say(
            f"error: {rounds} merges on the way lack {name}, which came late or was lost: what it had learnt for them "
            "is not in the result. A longer --sync-timeout waits longer.",
            error=True,
        )
    if len(there) < 2:
        alone = f", only {there[0]} is done: {folder / there[0]}" if there else ""
        display.say(f"error: there is nothing to merge{alone}", error=True)
        return 2 if any(exit.code == 2 for exit in exits) and not there else 1
    record.stage = "merge"
    code = _merge(work, record, there, stop, display)
    if not lost and record.merged is not None:
        record.stage = "done"
    return code or (1 if lost or missed else 0)


def _check_unused(sync_dir: Path) -> None:
    """Raises ConfigError where jobs of another run have merged in a folder: their weights would be taken for ours."""
    if rounds := sync_folders(sync_dir):
        raise ConfigError(
            f"--sync-dir {sync_dir} was given to new jobs, but {rounds[-1]} is there, of others. Give an empty folder."
        )


def _missed_rounds(work: Work, sync_dir: Path) -> dict[str, int]:
    """How many merges on the way lack each job, by its name; of those alone that some do."""
    merged = newest_average(sync_dir) if work.sync_every else None
    counts = read_metadata(merged)["missed_syncs"] if merged else {}
    return {work.jobs[int(number)].name: count for number, count in counts.items()}


def _training(work: Work, name: str, device: Device) -> ProgramSpec:
    command = (*work.trainer, "--config", str(_settings_of(work, name)), "--resume")
    log = _log_of(work, name)
    return ProgramSpec(name, command, log, environ=device.environ, cores=device.cores, max_restarts=work.max_restarts)


def _log_of(work: Work, name: str) -> Path:
    return work.folder / "logs" / f"{name}_training.log"


def _merge(work: Work, record: LauncherState, names: Sequence[str], stop: StopRequests, display: Display) -> int:
    """One model out of the newest checkpoints of these jobs; gives the exit code."""
    parts = {name: latest(work.folder / name / "checkpoints") for name in names}
    steps, merged = {name: step_of(path) for name, path in parts.items()}, work.folder / "merged"
    if record.merged is not None and record.merged.steps == steps and merged.exists():
        display.say(f"nothing to do: {record.merged.told(merged)}")
        return record.merged.code
    record.merged = None
    _set_aside(merged, display)
    split = record.split
    command = [*work.merger, "--checkpoints", *map(str, parts.values()), "--output", str(merged)]
    command += ["--train-data", split.train, "--audio-root", split.audio_root]
    command += ["--val-data", split.held_out] if split.held_out else []
    device = work.common_device
    log = work.folder / "logs" / "merge.log"
    program = ProgramSpec("merge", tuple(command), log, environ=device.environ, cores=device.cores)
    events = _JobEvents(work.folder, record, display, show_output=True)
    code = next((exit.code for exit in Supervisor(stop, events, stop_signal=signal.SIGTERM).run([program])), 1)
    if code in (0, 1) and merged.exists():
        record.merged = Merged(steps=steps, code=code)
        display.say(record.merged.told(merged))
        return code
    return 2 if code == 2 else 1


def _set_aside(merged: Path, display: Display) -> None:
    """Rename an earlier result: somebody may have trained on from it."""
    if merged.exists():
        names = (merged.with_name(f"{merged.name}-{number}") for number in count(1))
        aside = next(path for path in names if not path.exists())
        merged.rename(aside)
        display.say(f"{merged} is of an earlier merge: it is {aside} now")


class _JobEvents(SupervisorEvents):
    """Records what becomes of each program in the launcher's state file, and shows it.

    Args:
        show_output: show the programs' output instead of a table of their progress.
    """

    STATES: ClassVar[dict[Outcome, str]] = {
        "done": "done",
        "stopped": "stopped",
        "rejected": "refused",
        "failed": "lost",
    }

    def __init__(self, folder: Path, record: LauncherState, display: Display, show_output: bool = False):
        self._folder, self._record, self._display, self._show_output = folder, record, display, show_output

    def on_start(self, program: ProgramSpec, pid: int, restarts: int) -> None:
        self._write(program.name, Process.running(pid, restarts))

    def on_line(self, program: ProgramSpec, line: str) -> None:
        if self._show_output:
            self._display.say(line)

    def on_restart(self, program: ProgramSpec, process: ChildProcess, restarts: int) -> None:
        self._display.say(
            f"{program.name} {process.exit_reason()} ({program.log}); it restarts from its newest checkpoint "
            f"(restart {restarts} of {program.max_restarts})"
        )

    def on_exit(self, exit: Exit) -> None:
        name, process = exit.program.name, exit.process
        if exit.outcome in ("rejected", "failed") and not self._show_output:
            text = process.error_message() if exit.outcome == "rejected" else process.failure_report()
            self._display.say(f"error: {name}: {text}", error=True)
        self._write(name, self._record.processes[name].model_copy(update={"state": self.STATES[exit.outcome]}))

    def on_stop(self, stop: StopRequests) -> None:
        consequence = "all runs are killed" if stop.count > 1 else "all runs save and end; a second Ctrl-C kills them"
        self._display.say(f"{stop.signal_name}: {consequence}")

    def on_poll(self) -> None:
        if self._display.is_due() and not self._show_output:
            self.show_table()

    def show_table(self) -> None:
        self._display.show(table(rows_of(self._folder, self._record)))

    def _write(self, name: str, process: Process) -> None:
        self._record.processes[name] = process
        self._record.write(self._folder)
