"""`--placement auto`: the placement that measured times make the fastest, before a run begins."""

import logging
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from myxtts.config.schema import Config
from myxtts.distributed.cluster import find_cluster
from myxtts.errors import PlacementError, TrainingError, UserError
from myxtts.placement import devices
from myxtts.planner.planner import Forecast, candidates, fastest_first, forecast, resampled, table
from myxtts.planner.simulator import STAGES, Depths, Stages
from myxtts.profiling.measure import StageTimes, measure_stage_times
from myxtts.training.run_folder import RunFolder

STEPS = 40  # that are measured: some seconds of a large model
ROUNDS = 1000  # that are simulated: filling the queues is at most 1 % of them

log = logging.getLogger(__name__)


def choose_placement(config: Config) -> Config:
    """The same settings, with the placement of which most batches a second are predicted in place of `auto`.

    Raises:
        PlacementError: a placement was named as well, or this is one of several workers.
        UserError: a run with these settings could not start, or not go on.
    """
    asked = config.placement
    check_no_named_gpus(asked)
    check_no_workers()
    RunFolder(Path(config.run.runs_dir) / config.run.run).check_not_existing(config.run.resume)
    gpus = asked.simulate_gpus or devices.gpu_count()
    if gpus < 2:
        log.info("placement auto there is one device: nothing to choose")
        return placed(config, {})
    log.info("placement auto %d steps are measured, batches made on GPU 0 and trained on GPU 1", STEPS)
    alone = measure_apart(placed(config, {"data_gpu": 0, "model_gpu": 1}))
    ranked = rank(alone, gpus, config)
    for line in (told(alone, config), *table(ranked, [])):
        log.info("  %s", line)
    best = ranked[0].candidate
    if best.replicas > 1:
        log.info(
            "placement auto a step of %d replicas has %d times the utterances: --batch-size is for each of them",
            *(best.replicas,) * 2,
        )
    return placed(config, {"data_gpu": best.settings.data_gpu, "model_gpus": best.settings.model_gpus})


def check_no_named_gpus(asked) -> None:
    named = [
        f"--{name.replace('_', '-')}"
        for name in ("data_gpu", "model_gpu", "model_gpus", "data_gpu_memory")
        if getattr(asked, name) not in (None, ())
    ]
    if named:
        raise PlacementError(
            f"--placement auto was asked for, and {' and '.join(named)} as well. Leave out one or the "
            "other, on the command line and in the file of --config."
        )


def check_no_workers() -> None:
    cluster = find_cluster(os.environ)
    if cluster is not None:
        raise PlacementError(
            f"--placement auto was asked for by {cluster.name()} of {cluster.count}, but it knows one machine, and "
            "each worker would choose by itself. Name the same placement for all by --data-gpu, --model-gpu or "
            "--model-gpus."
        )


def placed(config: Config, settings: dict) -> Config:
    placement = config.placement.model_copy(update={"placement": "manual", **settings})
    return config.model_copy(update={"placement": placement})


def rank(alone: StageTimes, gpus: int, config: Config) -> list[Forecast]:
    """What is predicted for each placement that can train with these settings, the fastest first."""
    stages = stages_of(alone, config)
    reduce_s = alone.all_reduce_s / config.training.gradient_accumulation  # once a step, shared by its rounds
    most = 1 if config.training.compile == "xla" else gpus  # replicas
    return fastest_first(
        forecast(one, resampled(stages, alone.bucket, one.replicas, ROUNDS), Depths.of(config.data), reduce_s)
        for one in candidates(gpus)
        if one.replicas <= most
    )


def stages_of(alone: StageTimes, config: Config) -> Stages:
    """The measured batches; of reading the mean, by one reader."""
    # Batches arrive in bursts, as several workers read: of reading only the pace is known.
    read_s = alone.stages_s["read"]
    return Stages(
        read_s=np.full_like(read_s, config.data.num_workers * read_s.mean()),
        **{f"{stage}_s": alone.stages_s[stage] for stage in STAGES if stage != "read"},
    )


def told(alone: StageTimes, config: Config) -> str:
    """What was measured, by the letters of the table."""
    stages = stages_of(alone, config)
    mean_s = {letter: getattr(stages, f"{stage}_s").mean() for letter, stage in zip("RPTC", STAGES, strict=True)}
    mean_s["A"] = alone.all_reduce_s / config.training.gradient_accumulation
    figures = ", ".join(f"{letter} {1e3 * seconds:.4g}" for letter, seconds in mean_s.items())
    return f"milliseconds of a batch: {figures}, the all-reduce of two replicas"


def measure_apart(config: Config) -> StageTimes:
    """What `times_alone` gives, from another process, which leaves no device set up and no memory taken.

    Raises:
        UserError: as `times_alone`.
        TrainingError: the process died.
    """
    context = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, config), daemon=True)
    process.start()
    sender.close()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`: no process is left behind
    try:
        found = receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode > 0:  # a defect, whose traceback it has printed
            raise RuntimeError(f"measuring for --placement auto ended with exit code {process.exitcode}") from None
        raise TrainingError(
            f"--placement auto was measuring when its process died (exit code {process.exitcode}): the machine may be "
            "out of memory. Lower --batch-size, or name a placement by --data-gpu and --model-gpu."
        ) from None
    finally:
        process.kill()
        process.join()
        signal.signal(signal.SIGTERM, before)
    if isinstance(found, UserError):
        raise found
    return found


def _measure(sender: Connection, config: Config) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run that waits for this process ends it
    try:
        found = measure_stage_times(config, STEPS)
    except UserError as error:
        found = error
    sender.send(found)
