"""`--placement auto`: measure the stages before a run begins, and choose the fastest placement.

Each GPU makes batches and trains for some steps, in a process of its own. The placements of these
times are ranked by their bounds; where the best two are close, both are measured.
"""

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from myxtts.base.errors import OutOfMemory, TrainingError
from myxtts.base.processes import child_setup, exit_at_sigterm
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.flags import marked, with_values
from myxtts.config.schema import NAMES_GPUS, Config
from myxtts.devicefeed.errors import PlacementError, UserError
from myxtts.distributed.cluster import find_cluster
from myxtts.placement.bound import LETTERS, Speeds
from myxtts.placement.settings import flags_of_gpus, named_gpus
from myxtts.report.assess import SHARED
from myxtts.trial import candidates
from myxtts.trial.candidates import Candidate, Estimate
from myxtts.trial.stages import StageProfile

if TYPE_CHECKING:
    from myxtts.run.hooks import Hook

# Enough for a stable mean; with a large model they take some seconds.
MEASURED_STEPS = 40

# Bounds that differ by less than this factor decide nothing: stages vary and share hardware.
CLOSE = 1.1

# After SIGTERM the measuring process has so long to remove its temporary folder.
END_S = 10.0

# GPUs whose measured speeds differ by less count as equal.
EQUAL_SPEEDS = 1.06

# Share of a training step that validation repeats: the gradient takes twice as long as the losses.
FORWARD = 1 / 3

Measured = TypeVar("Measured")
Measure = Callable[[Config, int], Measured]
"""(settings, steps) -> result; a function of a module, since another process calls it."""

log = logging.getLogger(__name__)


# Settings without GPUs come in, and the same settings with GPUs and shares go out. Four cases leave
# nothing to measure: GPUs are named already (an error), there are several workers (an error), there
# is one device, or the run resumes with the placement that it had. Otherwise each GPU is measured
# in a process of its own, all placements are ranked by their bounds, and the best two are timed if
# their bounds are close.
def choose_placement(
    config: Config, measure: Measure[StageProfile], time_batches: Measure[float]
) -> Config:
    """Return the settings with the fastest placement.

    `measure` measures the stages of a run, and `time_batches` its seconds per batch. Raises
    PlacementError if the settings also name a placement or this process is one of several workers,
    and UserError if a run with them could not start or continue.
    """
    named = flags_of_gpus(config.placement)
    # A run that resumes has the shares of its own placement in its settings.
    if config.data.batch_shares not in ((), "auto") and not config.run.resume:
        named.append("--batch-shares")
    check_not_named(named)
    cluster = find_cluster(os.environ)
    if cluster is not None:
        raise PlacementError(
            f"--placement auto was given to {cluster.name()} of {cluster.count}, but it plans for"
            " one machine. Give all workers the same placement with --data-gpu, --model-gpu or"
            " --model-gpus."
        )
    folder = RunFolder(config.run.folder)
    folder.check_not_existing(config.run.resume)
    gpus = config.placement.simulate_gpus
    if not gpus:
        # Imports TensorFlow, which takes seconds.
        from myxtts.placement import devices

        gpus = devices.gpu_count()
    if gpus < 2:
        log.info("placement auto only one device, so there is nothing to choose")
        return with_placement(config, batch_shares=())
    if (recorded := recorded_placement(config, gpus)) is not None:
        log.info("placement auto the run goes on with its placement")
        return with_placement(config, **recorded)
    check_not_named(["--batch-shares"] if config.data.batch_shares not in ((), "auto") else [])
    profile, speeds = measure_gpus(measure, config, gpus)
    ranked = rank_placements(profile, speeds, config)
    bound_s = speeds.bound_s(profile.times.mean_s())
    for line in (*candidates.format_table(ranked), candidates.describe_bound(ranked, bound_s)):
        log.info("  %s", line)
    if config.placement.simulate_gpus:
        log.info("placement auto %s", SHARED)
    best = faster(ranked[:2], time_batches, config)
    if best.replicas > 1:
        log.info(
            "placement auto a step of %d replicas has %d times the utterances: --batch-size is per"
            " replica",
            best.replicas,
            best.replicas,
        )
    placed = settings_of(best, config)
    if config.data.batch_shares == "auto" and best.replicas > 1:
        return with_values(placed, {"batch_shares": "auto"})
    return placed


def check_not_named(flags: Sequence[str]) -> None:
    """Raise PlacementError if flags name what is to be chosen."""
    if flags:
        raise PlacementError(
            f"--placement auto was given together with {' and '.join(flags)}. Remove one or the"
            " other from the command line and from the --config file."
        )


def settings_of(candidate: Candidate, config: Config) -> Config:
    """Return the settings with a placement and its shares."""
    gpus = {each.name: getattr(candidate.settings, each.name) for each in marked(NAMES_GPUS)}
    shares = tuple(map(float, candidate.shares))
    return with_placement(config, **gpus, batch_shares=shares)


def faster(best: Sequence[Estimate], time_batches: Measure[float], config: Config) -> Candidate:
    """Return the faster of the best two placements, measured where their bounds are close."""
    if best[-1].batch_s > CLOSE * best[0].batch_s:
        return best[0].candidate
    timed = []
    for estimate in best:
        candidate = estimate.candidate
        line = "placement auto measuring %d steps of %s (%s)"
        log.info(line, MEASURED_STEPS, candidate.name, candidate.flags)
        batch_s = in_subprocess(time_batches, settings_of(candidate, config)) / candidate.replicas
        log.info("  %.2f batches/s", 1.0 / batch_s)
        timed.append(estimate._replace(batch_s=batch_s))
    return candidates.rank(timed)[0].candidate


# GPU n makes the batches on which GPU n + 1 trains, the last one for the first, so each GPU is
# measured once in each role. A GPU without enough memory for a step keeps its speed of producing,
# and gets an endless step, so that no placement trains on it. The times of the first GPU that can
# train become the profile, and the others are expressed as speeds relative to it. Speeds within
# EQUAL_SPEEDS become exactly equal, so that noise does not prefer one of equal GPUs.
def measure_gpus(
    measure: Measure[StageProfile], config: Config, gpus: int
) -> tuple[StageProfile, Speeds]:
    """Return a profile, with the longest all-reduce, and the speeds of all GPUs relative to it."""

    def measured(data: int, model: int) -> StageProfile:
        line = "placement auto measuring %d steps: GPU %d makes the batches, GPU %d trains"
        log.info(line, MEASURED_STEPS, data, model)
        placed = with_placement(config, data_gpu=data, model_gpu=model, batch_shares=())
        profile = in_subprocess(measure, placed)
        log.info("  %s", format_means(profile, config))
        return profile

    produced: dict[int, StageProfile] = {}
    trained: dict[int, StageProfile] = {}
    count = 1 if config.placement.simulate_gpus else gpus
    for data in range(count):
        model = (data + 1) % gpus
        try:
            produced[data] = trained[model % count] = measured(data, model)
        except OutOfMemory as error:
            log.warning("placement auto GPU %d is left out of training: %s", model, error)
            produced[data] = alone = measured(data, data)
            never = replace(alone.times, step_s=np.full(len(alone.times), np.inf))
            trained[model % count] = alone._replace(times=never, all_reduce_s=0.0)
    first = next(each for each in trained.values() if np.isfinite(each.times.step_s).all())
    first = first._replace(all_reduce_s=max(each.all_reduce_s for each in trained.values()))
    mean_s = first.times.mean_s()
    produce, step = (
        tuple(mean_s[stage] / max(each[n].times[stage].mean(), 1e-9) for n in range(count))
        for stage, each in (("produce", produced), ("step", trained))
    )
    if all(max(stage) <= EQUAL_SPEEDS * min(stage) for stage in (produce, step)):
        return first, Speeds.of([1.0] * gpus, first.fixed)
    return first, Speeds(produce, step, tuple(trained[n].fixed for n in range(gpus)))


def recorded_placement(config: Config, gpus: int) -> dict[str, Any] | None:
    """Return the GPUs of a run that resumes, if they are here: others change the size of a step."""
    if not config.run.resume:
        return None
    resumed = TrainedRun.newest(config.run.folder)
    if resumed is None:
        return None
    placement = resumed.record.settings.placement
    is_same_machine = placement.simulate_gpus == config.placement.simulate_gpus
    if not is_same_machine or max(named_gpus(placement), default=0) >= gpus:
        return None
    recorded = {setting.name: getattr(placement, setting.name) for setting in marked(NAMES_GPUS)}
    shares, given = resumed.record.settings.data.batch_shares, config.data.batch_shares
    if given not in ((), "auto", shares):
        check_not_named(["--batch-shares"])
    if given != "auto" or len(placement.model_gpus) < 2:
        recorded["batch_shares"] = shares
    return recorded


def with_placement(config: Config, **settings: Any) -> Config:
    return with_values(config, {"placement": "manual", **settings})


def rank_placements(profile: StageProfile, speeds: Speeds, config: Config) -> list[Estimate]:
    """Return the bounds of placements that can train with the settings, the fastest first."""
    workers, accumulation = config.data.num_workers, config.training.gradient_accumulation
    mean_s = profile.times.mean_s(workers)
    # A batch of the bound is a microbatch.
    reduce_s = profile.all_reduce_s / accumulation
    found = candidates.candidate_placements(
        speeds, mean_s, profile.batch_rows, workers, reduce_s, config.placement.observer
    )
    # XLA compiles the step of one device.
    if config.training.compile == "xla":
        found = [candidate for candidate in found if candidate.replicas == 1]
    observe_s = observe_per_step_s(profile, config) / accumulation
    bounds = (each.bound(mean_s, workers, reduce_s, observe_s) for each in found)
    return candidates.rank(bounds)


def observe_per_step_s(profile: StageProfile, config: Config) -> float:
    """Return the seconds that validation, samples and evaluation take of each step."""
    mean_s = profile.times.mean_s()
    run = config.run
    validation_s = profile.held_out_batches * (mean_s["produce"] + FORWARD * mean_s["step"])
    periods = (
        (validation_s, run.validate_every),
        (profile.samples_s, run.sample_every),
        (profile.evaluation_s, run.evaluate_every),
    )
    return sum(seconds / every for seconds, every in periods if every)


def format_means(profile: StageProfile, config: Config) -> str:
    """Return the measured means, under the letters of the table."""
    mean_s = profile.times.mean_s(config.data.num_workers)
    by_letter = {letter: mean_s[stage] for stage, letter in LETTERS.items()}
    by_letter["A"] = profile.all_reduce_s / config.training.gradient_accumulation
    by_letter["V"] = observe_per_step_s(profile, config)
    figures = (f"{letter} {1e3 * seconds:.4g}" for letter, seconds in by_letter.items())
    notes = f"V: of a step; {profile.fixed:.0%} of C do not depend on the rows"
    return f"milliseconds per batch: {', '.join(figures)} ({notes})"


# The child gets the function, the settings and one end of a pipe. It sends its result, or the error
# that the user has to see; if it dies, the pipe ends without a message. Whatever happens, it is
# ended before this function returns: first by SIGTERM, so that it can remove its temporary folder.
def in_subprocess(measure: Measure[Measured], config: Config) -> Measured:
    """Call `measure` in another process, so that this one configures no device and takes no memory.

    Raises UserError, OSError or MemoryError as `measure` does; TrainingError if it died.
    """
    # TensorFlow does not survive a fork.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_send_result, args=(sender, measure, config, os.getpid()), daemon=True
    )
    with exit_at_sigterm():
        try:
            process.start()
            sender.close()
            result = receiver.recv()
        except EOFError:
            process.join()
            raise TrainingError(
                "the process that measured for --placement auto died (exit code"
                f" {process.exitcode}). If no traceback above has the reason, the machine may be"
                " out of memory: lower --batch-size, or name a placement with --data-gpu and"
                " --model-gpu."
            ) from None
        finally:
            if process.pid is not None:
                # It removes its temporary folder at SIGTERM, if there is time for that; no second
                # Ctrl-C leaves it behind.
                process.terminate()
                try:
                    process.join(END_S)
                finally:
                    process.kill()
                    process.join()
    if isinstance(result, Exception):
        raise result
    return result


def _send_result(sender: Connection, measure: Measure, config: Config, parent: int) -> None:
    # Warnings of a run are logged once, when the run itself begins, so they are silent here.
    # This process dies with its parent, which ends it at Ctrl-C.
    child_setup(parent)()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("myxtts").setLevel(logging.ERROR)
    result: object
    try:
        with exit_at_sigterm():
            result = measure(config, MEASURED_STEPS)
    except (UserError, OSError, MemoryError) as error:
        result = error
    sender.send(result)


def train_placed(config: Config, more: Iterable["Hook"] = ()) -> int:
    """Train in the fastest placement, if the settings leave it open; return the exit code."""
    # Imported here, because TensorFlow takes seconds.
    from myxtts.run.page import train

    if config.placement.placement == "auto":
        from myxtts.trial.steps import measure_stage_times, time_batches

        config = choose_placement(config, measure_stage_times, time_batches)
    return train(config, more=more)
