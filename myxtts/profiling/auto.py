"""`--placement auto`: the placement that measured times make the fastest, before a run begins."""

import logging
import multiprocessing
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from myxtts.config.schema import Config, Data
from myxtts.errors import PlacementError, TrainingError, UserError
from myxtts.placement import devices
from myxtts.profiling.measure import times_alone
from myxtts.profiling.planner import REPLICAS, Forecast, candidates, forecasts, resampled, table
from myxtts.profiling.queue import Depths, Stages
from myxtts.training.run_folder import RunFolder

STEPS = 40  # that are measured: some seconds of a large model
BATCHES = 1000  # that are simulated: filling the queues is at most 1 % of them

log = logging.getLogger(__name__)


def choose_placement(config: Config) -> Config:
    """The same settings, with the placement of which most batches a second are predicted in place of `auto`.

    Raises:
        PlacementError: a placement was named as well.
        UserError: a run with these settings could not start, or not go on.
    """
    asked = config.placement
    refuse_named(asked)
    RunFolder(Path(config.run.runs_dir) / config.run.run).refuse_existing(config.run.resume)
    gpus = asked.simulate_gpus or devices.gpu_count()
    if gpus < 2:
        log.info("placement auto there is one device: nothing to choose")
        return placed(config, {})
    log.info("placement auto %d steps are measured, batches made on GPU 0 and trained on GPU 1", STEPS)
    alone_s = measure_apart(placed(config, {"data_gpu": 0, "model_gpu": 1}))
    ranked = rank(alone_s, gpus, config.data)
    for line in table(ranked, []):
        log.info("  %s", line)
    best = ranked[0].candidate.settings
    return placed(config, {"data_gpu": best.data_gpu, "model_gpus": best.model_gpus})


def refuse_named(asked) -> None:
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


def placed(config: Config, settings: dict) -> Config:
    placement = config.placement.model_copy(update={"placement": "manual", **settings})
    return config.model_copy(update={"placement": placement})


def rank(alone_s: dict[str, np.ndarray], gpus: int, data: Data) -> list[Forecast]:
    """What is predicted for each placement that this version trains, the fastest first.

    Args:
        alone_s: seconds of each batch by stage; of reading by all workers together.
    """
    # Batches arrive in bursts, as several workers read: of reading only the pace is known.
    one_reader_s = np.full_like(alone_s["read"], data.num_workers * alone_s["read"].mean())
    stages = Stages(one_reader_s, alone_s["produce"], alone_s["transfer"], alone_s["step"])
    trained = [one for one in candidates(gpus) if one.replicas <= REPLICAS]
    return forecasts(trained, resampled(stages, BATCHES), Depths.of(data))


def measure_apart(config: Config) -> dict[str, np.ndarray]:
    """Seconds of each batch by stage, measured in another process, which leaves no device set up and no memory taken.

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
        found = times_alone(config, STEPS)
    except UserError as error:
        found = error
    sender.send(found)
