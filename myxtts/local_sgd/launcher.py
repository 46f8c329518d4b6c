"""Independent jobs in one command: shard the corpus, warm start, train a run on each GPU, merge.

No TensorFlow.

    runs/NAME/
        launcher.json                 state of the launcher and its processes
        launcher.pid                  its PID; locked while it runs
        shards/                       the corpus, one shard for each job
        warmstart.yaml  warmstart/    the warm start: a run
        gpu0.yaml  gpu0/  …           the jobs: runs that continue from its newest checkpoint
        sync/                         checkpoints that the jobs exchange if they synchronize
        logs/                         warmstart_training.log, gpu0_training.log, …, merge.log
        merged/                       the result: a run
        report.html                   the jobs next to each other

Each stage determines from the files what is done, so that a launcher that was killed can continue.
"""

import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from myxtts.config.checks import reset_inactive
from myxtts.config.flags import command_line, marked
from myxtts.config.load import dump, format_value, load
from myxtts.config.schema import IN_SHARDS, Config
from myxtts.data.batch_plan import Position
from myxtts.distributed.processes import (
    Exit,
    ProgramSpec,
    StopSignals,
    Supervisor,
    SupervisorEvents,
    gpu_environ,
    visible_gpus,
)
from myxtts.errors import ConfigError, PlacementError
from myxtts.files import locked_file, make_folder, write_whole
from myxtts.local_sgd.averaging import has_pending_sync, newest_average, sync_folders
from myxtts.local_sgd.job_settings import WARMSTART, job_config, warmstart_config
from myxtts.local_sgd.shards import CorpusShards, split_corpus
from myxtts.local_sgd.status import (
    Display,
    ImmutableSettings,
    LauncherState,
    MergeResult,
    ProcessState,
    format_table,
    launcher_lock,
    new_state,
    read_progress,
    read_state,
)
from myxtts.machine import usable_cores
from myxtts.report.overview import JobsPage
from myxtts.training.checkpoint_files import (
    MODEL,
    Ancestor,
    Checkpoint,
    checkpoint_of,
    latest,
    read_record,
    recover_interrupted_replace,
    step_of,
    write_checkpoint,
)
from myxtts.training.runs import LOCK, RunFolder

# Name of the folder of the split corpus.
SHARDS = "shards"

log = logging.getLogger(__name__)


class JobDevice(NamedTuple):
    """The device of a job: GPUs as CUDA_VISIBLE_DEVICES names them, and cores to pin the job to."""

    gpus: tuple[str, ...]
    cores: frozenset[int] | None = None

    @property
    def environ(self) -> dict[str, str]:
        return gpu_environ(self.gpus)

    def describe(self) -> str:
        if self.gpus:
            return f"GPU {' '.join(self.gpus)}"
        return f"cores {' '.join(map(str, sorted(self.cores)))}" if self.cores else "all cores"


@dataclass(frozen=True)
class JobSpec:
    """One job.

    Attributes:
        name: of its run, such as gpu0.
        config: of this job, before the launcher adds its own settings.
    """

    name: str
    config: Config
    device: JobDevice


@dataclass(frozen=True)
class JobsSpec:
    """All jobs of a run, and the programs that train and merge them.

    Attributes:
        folder: of the whole run.
        config: of all jobs, before the launcher adds its own settings.
        gpus: GPU index of each job.
        warmstart_steps: length of the warm start.
        sync_every: steps between two syncs; 0 only merges at the end.
        max_restarts: of each job.
        trainer, merger: commands that train and merge, without flags, such as `python -m myxtts
            train` and `merge`.
    """

    folder: Path
    config: Config
    jobs: tuple[JobSpec, ...]
    gpus: tuple[int, ...]
    warmstart_steps: int
    sync_every: int
    max_restarts: int
    trainer: tuple[str, ...]
    merger: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [job.name for job in self.jobs]

    @property
    def shared_device(self) -> JobDevice:
        """Device of programs that run alone: the first GPU, or the whole CPU if simulated."""
        return self.jobs[0].device._replace(cores=None)

    @property
    def total_steps(self) -> int:
        return self.config.training.max_steps

    @property
    def sync_dir(self) -> Path:
        return Path(self.config.local_sgd.sync_dir or self.folder / "sync")

    def immutable(self) -> ImmutableSettings:
        values: dict = {}
        for section in self.config.model_dump(mode="json").values():
            values |= section
        return ImmutableSettings(
            gpus=list(self.gpus),
            warmstart_steps=self.warmstart_steps,
            sync_every=self.sync_every,
            corpus={setting.name: values[setting.name] for setting in marked(IN_SHARDS)},
        )

    def config_file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def log_file(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}_training.log"

    def newest_checkpoint(self, name: str) -> Path | None:
        return latest(self.folder / name / "checkpoints")

    def is_done(self, name: str) -> bool:
        """Return whether a run has all its steps and syncs."""
        newest = self.newest_checkpoint(name)
        if newest is None:
            return False
        if name == WARMSTART:
            return step_of(newest) >= self.warmstart_steps
        audio_s = read_record(newest).audio_s_since_sync
        return step_of(newest) >= self.total_steps and not has_pending_sync(
            self.sync_every, audio_s
        )

    def has_work(self, name: str) -> bool:
        """Return whether a run lacks steps, a sync or an observation, which it repeats."""
        newest = self.newest_checkpoint(name)
        if newest is None or not self.is_done(name):
            return True
        return bool(read_record(newest).pending_observations)


def job_devices(gpus: Sequence[int], simulated: int, resumed: str | None = None) -> list[JobDevice]:
    """Return the device of each job.

    Args:
        gpus: indices among the GPUs that this process sees.
        simulated: number of simulated GPUs, each an equal share of the cores if there are enough; 0
            uses real GPUs.
        resumed: name of the run whose jobs have these GPUs; None if the command names them.

    Raises:
        PlacementError: there are fewer than two GPUs, or one is named twice or does not exist.
    """
    existing = [str(gpu) for gpu in range(simulated)] if simulated else visible_gpus()
    numbers = " ".join(map(str, gpus))
    requested = f"--gpus {numbers} was given"
    if resumed is not None:
        requested = f"run '{resumed}' has jobs on GPUs {numbers}"
    if len(gpus) < 2 or len(set(gpus)) < len(gpus):
        raise PlacementError(
            f"{requested}, but each job needs its own GPU, and a merge needs at least two jobs."
            f" Name two different GPUs or more; `{command_line('train')}` trains on one."
        )
    if max(gpus) >= len(existing):
        source = f"--simulate-gpus {simulated} makes" if simulated else "this process sees"
        found = {0: "no GPU", 1: "only GPU 0"}.get(len(existing), f"GPUs 0 to {len(existing) - 1}")
        to_do = "Name some of these" if existing else "Make some visible"
        if resumed is not None:
            to_do = "A resumed run keeps its GPUs: make them visible"
        raise PlacementError(
            f"{requested}, but {source} {found}. {to_do}, or try it on the CPU with --simulate-gpus"
            f" {max(gpus) + 1}."
        )
    if not simulated:
        return [JobDevice((existing[gpu],)) for gpu in gpus]
    cores = usable_cores()
    size = len(cores) // simulated
    return [JobDevice((), frozenset(cores[gpu * size : (gpu + 1) * size]) or None) for gpu in gpus]


def previous_state(folder: Path, resume: bool) -> LauncherState | None:
    """Return the state of a run that is to be resumed, if there is one.

    Raises:
        ConfigError: the folder holds a run and `resume` is false, or the run cannot be resumed.
    """
    state = read_state(folder)
    paths = (folder / name for name in ("config.yaml", "checkpoints", WARMSTART))
    existing = next((path for path in paths if path.exists()), None)
    if state is None and existing is not None:
        raise ConfigError(
            f"independent jobs '{folder.name}' cannot be started: {existing} belongs to"
            " something else. Give another name with --run."
        )
    if state is not None and not resume and state.shards is not None:
        raise ConfigError(
            f"run '{folder.name}' cannot be started: {folder} already holds independent jobs. "
            "Resume them with --resume, or choose another name with --run."
        )
    return state


def train_jobs(spec: JobsSpec, display: Display) -> int:
    """Run all stages that are not done yet.

    Returns:
        the exit code: 0 if the merge has all jobs and is no worse than the best of them; 1 if it is
            worse, if a job missed syncs, or if the warm start, a job or the merge failed; 2 if a
            run rejected its settings and nothing could be merged; 130 or 143 when stopped, after
            checkpoints.

    Raises:
        UserError: the user can fix it.
    """
    make_folder(spec.folder / "logs", "--runs-dir")
    with RunFolder(spec.folder).locked(), launcher_lock(spec.folder):
        state = _restore_state(spec)
        if state.shards is None:
            # Those of another number of jobs may be there.
            shutil.rmtree(spec.folder / SHARDS, ignore_errors=True)
            state.shards = split_corpus(spec.config, spec.folder / SHARDS, len(spec.jobs))
        display.print(state.shards.table)
        for job in spec.jobs:
            display.print(
                f"{job.name:<14} on {job.device.describe()}; log: {spec.log_file(job.name)}"
            )
        configs = _write_configs(spec, state.shards)
        state.processes = {
            name: ProcessState(state="pending" if spec.has_work(name) else "done")
            for name in configs
        }
        state.write(spec.folder)
        with StopSignals() as stop:
            code = _Launcher(spec, state, state.shards, stop, display).run(configs)
        state.write(spec.folder)
        display.print(f"report: {JobsPage(spec.folder).write()}")
        if not stop.count:
            return code
        display.print(
            f"stopped by {stop.signal_name} in stage {state.stage}; resume with the same"
            " command and --resume"
        )
        return stop.exit_code


def _restore_state(spec: JobsSpec) -> LauncherState:
    """Return the state of this launcher, with the shards and the merge of a previous one.

    Raises:
        ConfigError: the run cannot be resumed, or not with these settings.
    """
    previous = previous_state(spec.folder, spec.config.run.resume)
    state = new_state(spec.total_steps, spec.immutable())
    difference = previous.immutable.first_difference(state.immutable) if previous else None
    if difference and spec.newest_checkpoint(WARMSTART) is not None:
        name, old, new = difference
        raise ConfigError(
            f"{name} is {format_value(new)}, but the jobs in {spec.folder} were started with"
            f" {format_value(old)}, which cannot change. Set it to that, or start another run with"
            " --run."
        )
    if previous is not None and not difference:
        state.merge = previous.merge
        # The run may have been moved.
        if previous.shards is not None:
            state.shards = previous.shards.in_folder(spec.folder / SHARDS)
    state.write(spec.folder)
    return state


def _write_configs(spec: JobsSpec, shards: CorpusShards) -> dict[str, Config]:
    """Write the settings of each run to a file, and return them by name."""
    local_sgd = {
        "jobs": len(spec.jobs),
        "sync_every": spec.sync_every,
        "sync_dir": str(spec.sync_dir),
    }
    configs = {WARMSTART: warmstart_config(spec.config, spec.folder, shards, spec.warmstart_steps)}
    for index, job in enumerate(spec.jobs):
        configs[job.name] = job_config(job.config, spec.folder, shards, job.name, index, local_sgd)
    for name, config in configs.items():
        write_whole(spec.config_file(name), dump(reset_inactive(config)).encode())
        # This rejects invalid settings before any run starts.
        configs[name] = load(spec.config_file(name))
    return configs


class _Launcher(SupervisorEvents):
    """Runs warm start, jobs and merge; writes the state of each program, and shows it."""

    def __init__(
        self,
        spec: JobsSpec,
        state: LauncherState,
        shards: CorpusShards,
        stop: StopSignals,
        display: Display,
    ):
        self._spec = spec
        self._state = state
        self._shards = shards
        self._stop = stop
        self._display = display
        self._page = JobsPage(spec.folder)
        # Of a merge the output is shown, of trainings a table of their progress.
        self._shows_output = False

    def run(self, configs: dict[str, Config]) -> int:
        """Return the exit code; meaningless after a request to stop."""
        spec = self._spec
        self._state.stage = "warmstart"
        exits = []
        if spec.has_work(WARMSTART):
            exits = self._supervise([self._training(WARMSTART, spec.shared_device)])
        warm_start = spec.newest_checkpoint(WARMSTART)
        if warm_start is None or not spec.is_done(WARMSTART):
            return 2 if any(exit.code == 2 for exit in exits) else 1
        self._state.stage = "jobs"
        exits = self._train(warm_start, configs)
        if self._stop.count:
            return 0
        done = [name for name in spec.names if spec.is_done(name)]
        is_complete = self._report_missing(done)
        if len(done) < 2:
            single = f"; only {done[0]} has finished: {spec.folder / done[0]}" if done else ""
            self._error(f"there is nothing to merge{single}")
            return 2 if not done and any(exit.code == 2 for exit in exits) else 1
        self._state.stage = "merge"
        code = self._merge(done)
        if len(done) == len(spec.jobs) and self._state.merge is not None:
            self._state.stage = "done"
        return code or int(not is_complete)

    def _train(self, warm_start: Path, configs: dict[str, Config]) -> list[Exit]:
        spec = self._spec
        # The weights of another run would be averaged with those of new jobs.
        is_new = not any(map(spec.newest_checkpoint, spec.names))
        folders = sync_folders(spec.sync_dir) if spec.sync_every and is_new else []
        if folders:
            raise ConfigError(
                f"--sync-dir {spec.sync_dir} was given to new jobs, but {folders[-1]} belongs to"
                " others. Give an empty folder."
            )
        for name in spec.names:
            fork(warm_start, spec.folder / name, configs[name])
        exits = self._supervise(
            [self._training(job.name, job.device) for job in spec.jobs if spec.has_work(job.name)]
        )
        self._display.show_table(format_table(spec.folder, self._state))
        return exits

    def _supervise(self, programs: Sequence[ProgramSpec]) -> list[Exit]:
        return Supervisor(self._stop, self, end_together=False).run(programs)

    def _training(self, name: str, device: JobDevice) -> ProgramSpec:
        spec = self._spec
        return ProgramSpec(
            name=name,
            command=(*spec.trainer, "--config", str(spec.config_file(name)), "--resume"),
            log=spec.log_file(name),
            environ=device.environ,
            cores=device.cores,
            max_restarts=spec.max_restarts,
        )

    def _report_missing(self, done: Sequence[str]) -> bool:
        """Report the jobs and the syncs that the merge lacks; return whether there are none."""
        spec = self._spec
        for shard, name in enumerate(spec.names):
            if name not in done:
                self._error(
                    f"the merge lacks {name}, which failed at step"
                    f" {read_progress(spec.folder / name).step} of {spec.total_steps}, and with it"
                    f" shard {shard} of the corpus ({self._shards.describe(shard)}). Resume it with"
                    " the same command and --resume."
                )
        average = newest_average(spec.sync_dir) if spec.sync_every else None
        missed_syncs = read_record(average).missed_syncs if average else {}
        for index, syncs in missed_syncs.items():
            self._error(
                f"{spec.names[index]} missed {syncs} syncs because it was late or failed: its"
                " updates for them are not in the result. Raise --sync-timeout to wait longer."
            )
        return len(done) == len(spec.jobs) and not missed_syncs

    def _merge(self, names: Sequence[str]) -> int:
        """Merge the newest checkpoints of these jobs; return the exit code."""
        spec = self._spec
        state = self._state
        merged = spec.folder / "merged"
        checkpoints = [path for path in map(spec.newest_checkpoint, names) if path]
        job_steps = dict(zip(names, map(step_of, checkpoints), strict=True))
        if state.merge is not None and state.merge.job_steps == job_steps and merged.exists():
            self._display.print(f"nothing to do: {state.merge.describe(merged)}")
            return state.merge.exit_code
        state.merge = None
        self._rename_previous(merged)
        command = [*spec.merger, "--checkpoints", *map(str, checkpoints), "--output", str(merged)]
        command += ["--train-data", str(self._shards.train)]
        command += ["--audio-root", str(self._shards.audio_root)]
        if self._shards.held_out:
            command += ["--val-data", str(self._shards.held_out)]
        program = ProgramSpec(
            name="merge",
            command=tuple(command),
            log=spec.folder / "logs" / "merge.log",
            environ=spec.shared_device.environ,
            cores=spec.shared_device.cores,
        )
        self._shows_output = True
        code = next((exit.code for exit in self._supervise([program])), 1)
        if code in (0, 1) and merged.exists():
            state.merge = MergeResult(job_steps=job_steps, exit_code=code)
            self._display.print(state.merge.describe(merged))
            return code
        return 2 if code == 2 else 1

    def _rename_previous(self, merged: Path) -> None:
        """Rename a previous result, which may have been trained further."""
        if merged.exists():
            names = (merged.with_name(f"{merged.name}-{number}") for number in count(1))
            target = next(path for path in names if not path.exists())
            try:
                with locked_file(merged / LOCK, wait=False):
                    merged.rename(target)
            except BlockingIOError as error:
                raise ConfigError(
                    f"{merged} cannot be renamed: another process is training it. Stop it, then use"
                    " --resume."
                ) from error
            self._display.print(f"renamed {merged} of an earlier merge to {target}")

    def _error(self, message: str) -> None:
        self._display.print(f"error: {message}", error=True)

    def on_start(self, program: ProgramSpec, pid: int, restarts: int) -> None:
        self._set_process(program.name, ProcessState(state="running", pid=pid, restarts=restarts))

    def on_line(self, program: ProgramSpec, line: str) -> None:
        if self._shows_output:
            self._display.print(line)

    def on_restart(self, exit: Exit, restarts: int) -> None:
        program = exit.program
        self._display.print(
            f"{program.name} {exit.process.exit_reason()} ({program.log}); it restarts from its"
            f" newest checkpoint (restart {restarts} of {program.max_restarts})"
        )

    def on_exit(self, exit: Exit) -> None:
        name = exit.program.name
        if not self._shows_output and exit.outcome in ("rejected", "failed"):
            self._error(f"{name} {exit.process.failure_report()}")
        process = self._state.processes[name].model_copy(update={"state": exit.outcome})
        self._set_process(name, process)

    def on_stop(self, stop: StopSignals) -> None:
        consequence = "all runs write a checkpoint and end; a second Ctrl-C kills them"
        if stop.count > 1:
            consequence = "all runs are killed"
        self._display.print(f"{stop.signal_name}: {consequence}")

    def on_poll(self) -> None:
        if self._display.is_due() and not self._shows_output:
            # The jobs go on if the file system fails.
            with suppress(OSError):
                self._display.show_table(format_table(self._spec.folder, self._state))
        self._page.refresh()

    def _set_process(self, name: str, process: ProcessState) -> None:
        self._state.processes[name] = process
        try:
            self._state.write(self._spec.folder)
        except OSError as error:
            log.error("%s cannot be written: %s. The jobs go on.", error.filename, error.strerror)


def fork(start: Path, run: Path, config: Config) -> None:
    """Start a run from a checkpoint's weights, optimizer and step, at the start of its own corpus.

    Does nothing if the run already has a checkpoint.

    Args:
        start: a checkpoint whose vocabulary has all symbols, languages and speakers of the run's
            corpus.
        run: folder of the new run, which `--resume` then trains.
        config: of the new run.

    Raises:
        CheckpointError: `start` is damaged.
    """
    checkpoints = run / "checkpoints"
    recover_interrupted_replace(checkpoints)
    if latest(checkpoints):
        return
    source = Checkpoint.read(start)
    record = source.record
    ancestor = Ancestor(
        run=str(start.parents[1]),
        step=record.step,
        weights=record.digests[MODEL],
        symbols=len(record.symbols),
        languages=len(record.languages),
        speakers=len(record.speakers),
    )
    # What the run has not done itself is not inherited: its corpus, progress and observations, and
    # what it was merged from.
    record = record.model_copy(
        update={
            "settings": config,
            "corpus": None,
            "position": Position(),
            "audio_s": 0.0,
            "audio_s_since_sync": 0.0,
            "best": None,
            "pending_observations": (),
            "provisional": False,
            "ancestor": ancestor,
            "merge_inputs": (),
            "kept_input": None,
        }
    )
    groups = ((group, source.arrays(group).items()) for group in source.groups)
    write_checkpoint(checkpoint_of(checkpoints, record.step), groups, record)
