"""The hooks of the process that writes the run folder, and its observer."""

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from myxtts.clock import Timeline
from myxtts.report.reporter import Reporter
from myxtts.throughput.assess import InputBoundWarning
from myxtts.training.checkpoint_files import checkpoint_of, read_arrays, read_metadata
from myxtts.training.checkpoints import Checkpoints
from myxtts.training.held_out import OpenEvaluator, held_out_work
from myxtts.training.hooks import (
    Evaluate,
    Hook,
    NoteDue,
    Observe,
    Report,
    SyncWeights,
    Validate,
    WeightSyncProtocol,
    WriteSamples,
    periods_of,
)
from myxtts.training.observer import NoObserver, Observer
from myxtts.training.report_hooks import recorded, with_report
from myxtts.training.runs import RunFolder, weights_group
from myxtts.training.schedule import Observation, without
from myxtts.training.setup import TrainingSetup
from myxtts.training.snapshot import Snapshot

log = logging.getLogger(__name__)


@contextmanager
def chief_hooks(
    setup: TrainingSetup,
    folder: RunFolder,
    checkpoints: Checkpoints,
    weight_sync: WeightSyncProtocol | None,
    timeline: Timeline,
    open_evaluator: OpenEvaluator,
) -> Iterator[tuple[list[Hook], NoObserver]]:
    """Open the reporter and the observer of a run; return its hooks in the order of their calls,
    and it.

    Observations that the checkpoint does not know the results of are repeated first.
    """
    config, state = setup.config, setup.state
    routes = setup.replicas.routes
    devices = (
        setup.gpu_count if len(routes) == 1 else 1
    )  # advice is for one replica: replicas use their GPUs
    producers = len(routes[0].data_devices)
    input_bound_warning = InputBoundWarning(
        state.step, config.data, not setup.between_devices, devices, producers
    )
    with (
        Reporter(
            folder.metrics, folder.tensorboard, state.step, setup.schedule.total_steps
        ) as reporter,
        ExitStack() as opened,
    ):
        sync = [] if weight_sync is None else [SyncWeights(weight_sync, checkpoints.wait)]
        report, run = Report(reporter, input_bound_warning), config.run
        periods = periods_of(run)
        if setup.corpora.held_out is None or not run.uses_held_out:
            state.pending_observations = ()  # the settings have turned it off
            yield [*sync, report], NoObserver()
            return
        if setup.replicas.observer:
            observer, snapshot = open_observer(
                setup, folder, checkpoints, reporter, opened, timeline, open_evaluator
            )
            begin = Observe(periods, observer, snapshot, checkpoints.add_provisional)
            yield [*sync, report, begin], observer  # its error leaves no step without a report
            return
        work = held_out_work(
            setup,
            state.model,
            state.device,
            folder,
            reporter.tensorboard,
            open_evaluator,
            buffered=True,
        )
        observe = with_report(work.observe, reporter)
        for observation in repeatable(setup, folder):
            with state.other_weights(
                inference_arrays(checkpoint_of(folder.checkpoints, observation.step))
            ):
                metrics = observe(observation, None)
            checkpoints.record(state, observation.step, metrics.get("validation_loss"))
        validate = Validate(run.validate_every, work.validation, checkpoints.improves, report)
        evaluate = [Evaluate(run.evaluate_every, work.evaluator, report)] if work.evaluator else []
        sample = [WriteSamples(run.sample_every, work.write_samples)] if work.sampler else []
        yield [*sync, NoteDue(periods), validate, *evaluate, report, *sample], NoObserver()


def open_observer(
    setup: TrainingSetup,
    folder: RunFolder,
    checkpoints: Checkpoints,
    reporter: Reporter,
    opened: ExitStack,
    timeline: Timeline,
    open_evaluator: OpenEvaluator,
) -> tuple[Observer, Snapshot]:
    """Return the observer of a run, which `opened` closes, and the snapshot that it works on."""
    start_s, device = time.perf_counter(), setup.replicas.observer
    snapshot = setup.build_snapshot()
    work = held_out_work(
        setup, snapshot.network, device, folder, reporter.tensorboard, open_evaluator, False
    )
    work.trace()
    snapshot.take()  # TensorFlow prepares a function at its first call
    log.info("observer       traced for %s in %.1f s", device, time.perf_counter() - start_s)
    observe = with_report(recorded(work.observe, timeline), reporter)

    def record(observation: Observation, metrics: dict[str, float]) -> None:
        checkpoints.record(setup.state, observation.step, metrics.get("validation_loss"))

    observer = opened.enter_context(Observer(observe, record, lambda: not checkpoints.is_writing))
    repeat(setup, folder, observer, snapshot)
    return observer, snapshot


def repeat(setup: TrainingSetup, folder: RunFolder, observer: Observer, snapshot: Snapshot) -> None:
    """Begin the observations whose results the checkpoint does not know; the last one runs during
    training.
    """
    for observation in repeatable(setup, folder):
        observer.wait(lambda: False)
        snapshot.load(checkpoint_of(folder.checkpoints, observation.step))
        observer.begin(observation)


def repeatable(setup: TrainingSetup, folder: RunFolder) -> list[Observation]:
    """Return the observations of the state that can be repeated; the others are removed from it,
    with a warning.
    """
    state = setup.state
    for observation in state.pending_observations:
        if not checkpoint_of(folder.checkpoints, observation.step).exists():
            log.warning(
                "%s: lost, because the run ended before it was done, and the checkpoint of that"
                " step is gone",
                observation,
            )
            state.pending_observations = without(state.pending_observations, observation.step)
    return list(state.pending_observations)


def inference_arrays(checkpoint: Path) -> dict[str, np.ndarray]:
    """Return the weights of a checkpoint that inference uses."""
    return read_arrays(checkpoint, weights_group(read_metadata(checkpoint)))
