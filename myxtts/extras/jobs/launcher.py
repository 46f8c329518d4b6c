"""Independent jobs in one command: shard the corpus, warm start, train a run on each GPU, merge.

Each stage determines from the files, which docs/guides/local_sgd.md shows, what is done, so that a
launcher that was killed can continue. No TensorFlow.
"""

import json
import logging
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.base import processes
from myxtts.base.console import detach_stdout
from myxtts.base.errors import ConfigError, format_value
from myxtts.base.files import locked_file, make_folder, write_whole
from myxtts.base.machine import usable_cores
from myxtts.base.processes import ChildProcess, ProgramSpec, StopSignals
from myxtts.checkpoints import files as checkpoint_files
from myxtts.checkpoints.files import Checkpoint, latest, read_record, step_of
from myxtts.checkpoints.run_folder import LOCK, RunFolder
from myxtts.config.checks import reset_inactive
from myxtts.config.flags import command_line, marked, with_values
from myxtts.config.load import dump, load
from myxtts.config.schema import IN_ALL_JOBS, IN_SHARDS, Config, PlacementConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.extras.jobs import status
from myxtts.extras.jobs.merge import ancestor_of, fresh_record, newest_average
from myxtts.extras.jobs.shards import HELD_OUT, TRAIN, shard_file, split_corpus
from myxtts.extras.jobs.status import WARMSTART, JobsPage, LauncherState, MergeResult, ProcessState
from myxtts.placement.settings import flags_of_gpus

log = logging.getLogger(__name__)


class JobDevice(NamedTuple):
    """The device of a job: GPUs as CUDA_VISIBLE_DEVICES names them, and cores to pin the job to."""

    gpus: tuple[str, ...]
    cores: frozenset[int] | None = None


@dataclass(frozen=True)
class JobsSpec:
    """All jobs of a run, by names such as gpu0, and the commands that train and merge them.

    The settings are those before the launcher adds its own. Without `sync_every` jobs only merge.
    """

    folder: Path
    config: Config
    job_configs: dict[str, Config]
    gpus: tuple[int, ...]
    devices: tuple[JobDevice, ...]
    warmstart_steps: int
    sync_every: int
    max_restarts: int
    trainer: tuple[str, ...]
    merger: tuple[str, ...]

    @property
    def shards(self) -> Path:
        return self.folder / "shards"

    @property
    def sync_dir(self) -> Path:
        return Path(self.config.local_sgd.sync_dir or self.folder / "sync")

    def config_file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def newest_checkpoint(self, name: str) -> Path | None:
        return latest(self.folder / name / "checkpoints")

    def is_done(self, name: str) -> bool:
        """Return whether a run has all its steps and syncs."""
        newest = self.newest_checkpoint(name)
        if newest is None or name == WARMSTART:
            return newest is not None and step_of(newest) >= self.warmstart_steps
        lacks_sync = self.sync_every and read_record(newest).audio_s_since_sync > 0
        return step_of(newest) >= self.config.training.max_steps and not lacks_sync

    def has_work(self, name: str) -> bool:
        """Return whether a run lacks steps, a sync or an observation, which it repeats."""
        newest = self.newest_checkpoint(name)
        if newest is None or not self.is_done(name):
            return True
        return bool(read_record(newest).pending_observations)


def check_launcher_settings(config: Config) -> None:
    """Raise PlacementError for settings that several jobs cannot have."""
    training = config.training
    given = [(flag, "--gpus") for flag in flags_of_gpus(config.placement)]
    others = (
        ("--placement auto", "--gpus", config.placement.placement == "auto"),
        ("--epochs", "--max-steps", training.epochs or not training.max_steps),
        ("--stop-at-step", "--warmstart-steps", training.stop_at_step is not None),
        ("--patience", "--max-steps", training.patience),
        ("--jobs or --job", "--gpus", config.local_sgd.jobs > 1 or config.local_sgd.job),
    )
    given += [(flag, instead) for flag, instead, is_given in others if is_given]
    if given:
        flag, instead = given[0]
        raise PlacementError(
            f"{flag} was given (or is in the --config file), but independent jobs have one GPU each"
            f" and the same number of steps. Give {instead} instead."
        )


def check_job_settings(shared: Config, job: Config, file: Path) -> None:
    """Raise ConfigError if the file of one job changes a setting that all jobs must share."""
    for setting in marked(IN_ALL_JOBS):
        if setting.of(shared) != setting.of(job):
            raise ConfigError(
                f"{file} sets {setting.name} to {setting.of(job)} for one job, but the others have"
                f" {setting.of(shared)}. Set it in the file of all jobs, or with a flag."
            )


def sync_interval(total_steps: int, warmstart_steps: int, num_syncs: int) -> int:
    """Return the fewest steps between two syncs for which there are at most `num_syncs`.

    Jobs synchronize at each multiple of the interval and at the last step. So the interval is a
    little longer than the steps divided by the syncs if the warm start ends between two multiples.
    """
    every = -(-(total_steps - warmstart_steps) // num_syncs)
    while -(-total_steps // every) - warmstart_steps // every > num_syncs:
        every += 1
    return every


def job_devices(gpus: Sequence[int], simulated: int) -> tuple[JobDevice, ...]:
    """Return the device of each job, by the indices of GPUs among those that this process sees.

    Raises PlacementError unless there is a GPU for each of two jobs or more.
    """
    existing = [str(gpu) for gpu in range(simulated)] if simulated else processes.visible_gpus()
    requested = f"jobs on the GPUs {' '.join(map(str, gpus))} were requested"
    if len(set(gpus)) < max(2, len(gpus)):
        raise PlacementError(
            f"{requested}, but each job needs its own GPU, and a merge needs two jobs. Name at"
            " least two different GPUs with --gpus."
        )
    if max(gpus) >= len(existing):
        raise PlacementError(
            f"{requested}, but there are {len(existing)}. Name others with --gpus, make more"
            f" visible, or try it on the CPU with --simulate-gpus {max(gpus) + 1}."
        )
    if not simulated:
        return tuple(JobDevice((existing[gpu],)) for gpu in gpus)
    # A simulated GPU is an equal share of the cores if there are enough.
    cores = usable_cores()
    size = len(cores) // simulated
    shares = [frozenset(cores[gpu * size : (gpu + 1) * size]) for gpu in gpus]
    return tuple(JobDevice((), share or None) for share in shares)


def previous_state(folder: Path, resume: bool) -> LauncherState | None:
    """Return the state of a run that is to be resumed, if there is one.

    Raises ConfigError if the folder holds a run that is not resumed, or cannot be.
    """
    state = status.read_state(folder)
    if state is None:
        names = ("config.yaml", "checkpoints", WARMSTART)
        is_used = any((folder / name).exists() for name in names)
    else:
        is_used = state.shards is not None and not resume
    if is_used:
        raise ConfigError(
            f"independent jobs cannot be started in {folder}, which already holds a run. Give"
            " another name with --run, or resume independent jobs with --resume."
        )
    return state


def say(line: str) -> None:
    """Print a line; a closed terminal must not keep the jobs from saving."""
    try:
        print(line, flush=True)
    except OSError as reason:
        detach_stdout(reason, "The jobs go on")


def say_error(message: str) -> None:
    with suppress(OSError):
        print(f"error: {message}", flush=True, file=sys.stderr)


def train_jobs(spec: JobsSpec) -> int:
    """Run all stages that are not done yet; return the command's exit code. Raises UserError."""
    make_folder(spec.folder / "logs", "--runs-dir")
    with RunFolder(spec.folder).locked(spec.config.run.lock), status.launcher_lock(spec.folder):
        state = _restore_state(spec)
        if state.shards is None:
            # Those of another number of jobs may be there.
            shutil.rmtree(spec.shards, ignore_errors=True)
            state.shards = split_corpus(spec.config, spec.shards, len(spec.gpus))
        say(state.shards.table)
        run = shlex.join(["--run", spec.config.run.run, "--runs-dir", spec.config.run.runs_dir])
        stops = f"Ctrl-C, or `{command_line('jobs')} --stop {run}`, stops all jobs"
        say(f"launcher       process {os.getpid()}; {stops}")
        corpora = {"train_data": str(spec.shards / TRAIN)}
        corpora["audio_root"] = str(state.shards.audio_root)
        if (spec.shards / HELD_OUT).exists():
            corpora["val_data"] = str(spec.shards / HELD_OUT)
        _write_configs(spec, corpora)
        state.processes = {
            name: ProcessState(state="pending" if spec.has_work(name) else "done")
            for name in (WARMSTART, *spec.job_configs)
        }
        state.write(spec.folder)
        with StopSignals() as stop:
            launcher = _Launcher(spec, state, corpora, stop)
            code = launcher.run_stages()
        state.write(spec.folder)
        say(f"report: {launcher.page.write()}")
        if not stop.count:
            return code
        say(f"stopped by {stop.signal_name} in stage {state.stage}; resume with --resume")
        return stop.exit_code


def _restore_state(spec: JobsSpec) -> LauncherState:
    """Return the state of this launcher, with the shards and the merge of a previous one."""
    previous = previous_state(spec.folder, spec.config.run.resume)
    corpus = {setting.name: setting.of(spec.config) for setting in marked(IN_SHARDS)}
    immutable = status.ImmutableSettings(
        gpus=list(spec.gpus),
        warmstart_steps=spec.warmstart_steps,
        sync_every=spec.sync_every,
        # Lists instead of tuples, as in the file.
        corpus=json.loads(json.dumps(corpus)),
    )
    total_steps = spec.config.training.max_steps
    state = LauncherState(host=socket.gethostname(), immutable=immutable, total_steps=total_steps)
    if previous is not None and previous.immutable == immutable:
        state.merge = previous.merge
        state.shards = previous.shards
    elif previous is not None and spec.newest_checkpoint(WARMSTART) is not None:
        old, new = ({**dict(each), **each.corpus} for each in (previous.immutable, immutable))
        name = next(name for name in new if name != "corpus" and old.get(name) != new[name])
        raise ConfigError(
            f"{name} is {format_value(new[name])}, but the jobs in {spec.folder} were started with"
            f" {format_value(old.get(name))}. Set it to that, or start another run with --run."
        )
    state.write(spec.folder)
    return state


def _write_configs(spec: JobsSpec, corpora: dict[str, str]) -> None:
    """Write the settings of each run to a file: of the warm start, and of each job on its shard."""
    common: dict[str, Any] = {"val_data": None, "runs_dir": str(spec.folder), "resume": False}
    # The shards lack what it names.
    common |= {"exclude": None} | corpora
    own: dict[str, Any] = {"stop_at_step": spec.warmstart_steps, "sync_every": 0}
    configs = {WARMSTART: with_values(spec.config, common | own)}
    for job, (name, config) in enumerate(spec.job_configs.items()):
        own = {"seed": config.training.seed + job, "train_data": str(spec.shards / shard_file(job))}
        own |= {"jobs": len(spec.gpus), "job": job, "sync_every": spec.sync_every}
        # The launcher knows which jobs have failed: those that are left go on.
        own |= {"sync_dir": str(spec.sync_dir), "sync_quorum": config.local_sgd.sync_quorum or 1}
        configs[name] = with_values(config, common | own)
    for name, config in configs.items():
        if config.placement.simulate_gpus:
            # A job on a simulated GPU sees its cores as the whole CPU.
            placement = PlacementConfig(
                intra_op_threads=config.placement.intra_op_threads,
                inter_op_threads=config.placement.inter_op_threads,
            )
            config = config.model_copy(update={"placement": placement})
        config = reset_inactive(with_values(config, {"run": name}))
        write_whole(spec.config_file(name), dump(config).encode())
        # This rejects invalid settings before any run starts.
        load(spec.config_file(name))


class _Launcher(processes.Supervisor):
    """Runs warm start, jobs and merge; writes the state of each program, and shows it."""

    def __init__(
        self, spec: JobsSpec, state: LauncherState, corpora: dict[str, str], stop: StopSignals
    ):
        super().__init__(stop, end_together=False)
        self._spec = spec
        self._state = state
        self._corpora = corpora
        self.page = JobsPage(spec.folder, state)

    def run_stages(self) -> int:
        """Return the exit code; meaningless after a request to stop."""
        spec = self._spec
        names = list(spec.job_configs)
        self._state.stage = "warmstart"
        if spec.has_work(WARMSTART):
            # It runs alone, so on a simulated GPU it has the whole CPU; the merge as well.
            self.run([self._training(WARMSTART, spec.devices[0]._replace(cores=None))])
        warm_start = spec.newest_checkpoint(WARMSTART)
        if warm_start is None or not spec.is_done(WARMSTART):
            return self._code_without_merge()
        self._state.stage = "jobs"
        self._train(warm_start)
        if self._stop.count:
            return 0
        done = [name for name in names if spec.is_done(name)]
        missed_syncs = self._report_missing(done)
        if len(done) < 2:
            say_error(f"there is nothing to merge; {' '.join(done) or 'no job'} has finished")
            return self._code_without_merge()
        self._state.stage = "merge"
        code = self._merge(done)
        if done == names and self._state.merge is not None:
            self._state.stage = "done"
        return code or int(done != names or missed_syncs)

    def _code_without_merge(self) -> int:
        states = [process.state for process in self._state.processes.values()]
        return 2 if "rejected" in states and "done" not in states[1:] else 1

    def _train(self, warm_start: Path) -> None:
        spec = self._spec
        jobs = dict(zip(spec.job_configs, spec.devices, strict=True))
        # The weights of another run would be averaged with those of new jobs.
        is_new = not any(map(spec.newest_checkpoint, jobs))
        if spec.sync_every and is_new and any(spec.sync_dir.glob("sync-*")):
            raise ConfigError(
                f"--sync-dir {spec.sync_dir} was given to new jobs, but it has syncs of others."
                " Give an empty folder."
            )
        for name in jobs:
            fork(warm_start, spec.folder / name, load(spec.config_file(name)))
        pending = [name for name in jobs if spec.has_work(name)]
        self.run([self._training(name, jobs[name]) for name in pending])

    def _training(self, name: str, device: JobDevice) -> ProgramSpec:
        spec = self._spec
        command = (*spec.trainer, "--config", str(spec.config_file(name)), "--resume")
        log = spec.folder / "logs" / f"{name}_training.log"
        environ = processes.gpu_environ(device.gpus)
        return ProgramSpec(name, command, log, environ, device.cores, spec.max_restarts)

    def _report_missing(self, done: Sequence[str]) -> bool:
        """Report the jobs and the syncs that the merge lacks; return whether it lacks syncs."""
        spec = self._spec
        names = list(spec.job_configs)
        for shard, name in enumerate(names):
            if name not in done:
                say_error(
                    f"the merge lacks {name}, which failed at step"
                    f" {status.read_progress(spec.folder / name)['step']} of"
                    f" {spec.config.training.max_steps}, and with it shard {shard} of the corpus."
                    " Resume it with the same command and --resume."
                )
        average = newest_average(spec.sync_dir) if spec.sync_every else None
        missed_syncs = read_record(average).missed_syncs if average else {}
        for index, syncs in missed_syncs.items():
            say_error(
                f"{names[index]} missed {syncs} syncs because it was late or failed: its updates"
                " for them are not in the result. Raise --sync-timeout to wait longer."
            )
        return bool(missed_syncs)

    def _merge(self, names: Sequence[str]) -> int:
        """Merge the newest checkpoints of these jobs; return the exit code."""
        spec = self._spec
        state = self._state
        merged = spec.folder / "merged"
        checkpoints = [path for path in map(spec.newest_checkpoint, names) if path]
        job_steps = dict(zip(names, map(step_of, checkpoints), strict=True))
        if state.merge is not None and state.merge.job_steps == job_steps and merged.exists():
            say(f"nothing to do: {state.merge.describe(merged)}")
            return state.merge.exit_code
        state.merge = None
        _rename_previous(merged)
        command = [*spec.merger, "--checkpoints", *map(str, checkpoints), "--output", str(merged)]
        for name, path in self._corpora.items():
            command += [f"--{name.replace('_', '-')}", path]
        log = spec.folder / "logs" / "merge.log"
        environ = processes.gpu_environ(spec.devices[0].gpus)
        ended = self.run([ProgramSpec("merge", tuple(command), log, environ)])
        code = ended[0].code if ended else 1
        if code in (0, 1) and merged.exists():
            state.merge = MergeResult(job_steps=job_steps, exit_code=code)
            say(state.merge.describe(merged))
            return code
        return 2 if code == 2 else 1

    def on_start(self, process: ChildProcess, restarts: int) -> None:
        name = process.program.name
        say(f"{name:<14} process {process.pid}; its log is {process.program.log}")
        self._set_process(name, ProcessState(state="running", pid=process.pid, restarts=restarts))

    def on_line(self, process: ChildProcess, line: str) -> None:
        # A training has its own log, and the page shows its progress.
        if process.program.name == "merge":
            say(line)

    def on_restart(self, process: ChildProcess, restarts: int) -> None:
        name, most = process.program.name, process.program.max_restarts
        say(f"{name} {process.exit_reason()}; restart {restarts} of {most}")

    def on_exit(self, process: ChildProcess) -> None:
        name = process.program.name
        if name != "merge" and process.outcome in ("rejected", "failed"):
            say_error(f"{name} {process.failure_report()}")
        state = self._state.processes[name]
        self._set_process(name, state.model_copy(update={"state": process.outcome}))

    def on_stop(self, stop: StopSignals) -> None:
        consequence = "all runs write a checkpoint and end; a second Ctrl-C kills them"
        if stop.count > 1:
            consequence = "all runs are killed"
        say(f"{stop.signal_name}: {consequence}")

    def on_poll(self) -> None:
        self.page.refresh()

    def _set_process(self, name: str, state: ProcessState) -> None:
        self._state.processes[name] = state
        try:
            self._state.write(self._spec.folder)
        except OSError as error:
            log.error("%s cannot be written: %s. The jobs go on.", error.filename, error.strerror)


def _rename_previous(merged: Path) -> None:
    """Rename a previous result, which may have been trained further."""
    if not merged.exists():
        return
    names = (merged.with_name(f"{merged.name}-{number}") for number in count(1))
    target = next(path for path in names if not path.exists())
    try:
        with locked_file(merged / LOCK, wait=False):
            merged.rename(target)
    except BlockingIOError as error:
        raise ConfigError(
            f"{merged} cannot be renamed: another process is training it. Stop it first."
        ) from error
    say(f"renamed {merged} of an earlier merge to {target}")


def fork(start: Path, run: Path, config: Config) -> None:
    """Start a run from a checkpoint's weights, optimizer and step, at the start of its own corpus.

    Does nothing if the run has a checkpoint. `start` has the vocabulary of the new run's corpus.
    """
    checkpoints = run / "checkpoints"
    checkpoint_files.recover_interrupted_replace(checkpoints)
    if latest(checkpoints):
        return
    source = Checkpoint.read(start)
    record = source.record
    ancestor = ancestor_of(record, start.parents[1], record.digests[checkpoint_files.MODEL])
    record = fresh_record(record, settings=config, ancestor=ancestor)
    groups = ((group, source.arrays(group).items()) for group in source.groups)
    target = checkpoint_files.checkpoint_of(checkpoints, record.step)
    checkpoint_files.write_checkpoint(target, groups, record)
