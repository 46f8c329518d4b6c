"""One run in five stages: devices, corpus, state, feed, loop."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from myxtts.clock import Clock, Timeline
from myxtts.config.checks import check_worker_count
from myxtts.config.load import dump
from myxtts.config.schema import Config
from myxtts.data.batch_plan import Pass
from myxtts.data.dataset import DEMO_FOLDER
from myxtts.distributed.cluster import Cluster, find_cluster
from myxtts.errors import ConfigError
from myxtts.evaluation.in_run import open_evaluator
from myxtts.local_sgd.averaging import owes_sync
from myxtts.local_sgd.sync import WeightSync
from myxtts.placement.devices import describe_threads
from myxtts.report.page import PageThread, RunPage
from myxtts.report.reporter import Reporter, RunLog, time_line
from myxtts.tasks.base import Evaluator
from myxtts.tasks.registry import task_of
from myxtts.throughput.assess import InputBoundWarning, assess_run
from myxtts.training import loop
from myxtts.training.checkpoint_files import checkpoint_of
from myxtts.training.checkpoints import Checkpoints, save_nothing
from myxtts.training.description import describe_run
from myxtts.training.diagnostics import (
    ending_setting,
    explained,
    explained_out_of_memory,
    log_start,
)
from myxtts.training.hooks import CheckDevices, Hook, Observe, Report, SyncWeights
from myxtts.training.observation import Observer, Pace, Snapshot, held_out_work, vocoder_loader
from myxtts.training.report_hooks import RecordMetrics, RefreshPage
from myxtts.training.runs import RunFolder
from myxtts.training.schedule import Observation, due_parts, periods_of, without
from myxtts.training.setup import OpenRun, TrainingSetup, open_run, resolve_start
from myxtts.training.stop_request import SharedStopRequest, StopRequest, stop_on_signals

log = logging.getLogger(__name__)


def train(config: Config) -> int:
    """Train as the settings say; return the exit code.

    Raises:
        UserError: something that the user can fix.
    """
    started_s = time.perf_counter()
    cluster = find_cluster(os.environ)
    folder = RunFolder(Path(config.run.runs_dir) / config.run.run)
    check_workers_settings(config, cluster)
    with ExitStack() as resources:
        # Before anything is read or written, so that of two starts one trains.
        if cluster is None:
            resources.enter_context(folder.locked())
            folder.check_not_existing(config.run.resume)
        run_log = resources.enter_context(RunLog())
        run = resources.enter_context(open_run(resolve_start(config, folder), cluster))
        with explained_out_of_memory(run.placement):
            return train_on(run, run_log, started_s)


def check_workers_settings(config: Config, cluster: Cluster | None) -> None:
    """Raise ConfigError where several workers cannot do what the settings ask for."""
    if cluster is None:
        return
    if config.data.train_data is None and not DEMO_FOLDER.exists():
        raise ConfigError(
            f"{cluster.count} workers were started without --train-data, and there is no"
            f" {DEMO_FOLDER}, which a single process must make. Run `myxtts corpus --out"
            f" {DEMO_FOLDER}` on every host first, or give a corpus."
        )
    check_worker_count(config, cluster.count)


def finish_pending_sync(
    weight_sync: WeightSync, setup: TrainingSetup, checkpoints: Checkpoints, request: StopRequest
) -> None:
    """Do the sync that a stopped run owes, if it owes one; the average is then observed."""
    state, owed_step = setup.state, setup.state.step
    with stop_on_signals(request):
        if not weight_sync.is_due(state) or not weight_sync.sync(state, request.due):
            return
    is_last = state.step >= setup.schedule.total_steps
    state.pending_observations = without(state.pending_observations, owed_step)
    if parts := due_parts(periods_of(setup.config.run), owed_step, is_last):
        state.pending_observations += (Observation(state.step, parts),)
    checkpoints.save(state)
    checkpoints.wait()


def train_on(run: OpenRun, run_log: RunLog, started_s: float) -> int:
    """Corpus, state, feed and loop, on devices that are set up. Of several workers the chief writes
    the run folder.
    """
    placement, replicas, config, start = run.placement, run.replicas, run.config, run.start
    folder = start.folder
    with ExitStack() as resources:
        # Only now, so that the other workers learn of the error.
        if replicas.is_distributed:
            resources.enter_context(run.folder.locked())
        if replicas.is_distributed and replicas.is_chief:
            folder.check_not_existing(config.run.resume)
        corpora = run.read_corpora()
        run_log.open(corpora.folder / "log.txt")

        setup = run.set_up(corpora)
        log_start(setup)
        state, schedule, step = setup.state, setup.schedule, setup.make_step()
        weight_sync = WeightSync.of_run(config, schedule.total_steps, setup.metadata)
        is_owing = owes_sync(config.local_sgd.sync_every, state.audio_s_since_sync)
        is_done = state.step >= schedule.total_steps and not (
            is_owing or state.pending_observations
        )
        if is_done and start.checkpoint is not None:
            log.info(
                "nothing to do  run %s has its %d steps; train longer with a higher %s",
                config.run.run,
                state.step,
                ending_setting(config.training, schedule.total_steps).split()[0],
            )
            return 0

        timeline, description = Timeline(), describe_run(setup)
        hooks: list[Hook] = [CheckDevices(started_s)]
        # The chief saves for all workers.
        save: loop.Save = save_nothing
        observer: Observer | None = None
        request = (
            SharedStopRequest(step.stop_requested) if replicas.is_distributed else StopRequest()
        )
        if replicas.is_chief:
            folder.write_config(f"# threads on this machine: {describe_threads()}\n{dump(config)}")
            keep = config.run.keep_checkpoints
            checkpoints = resources.enter_context(
                Checkpoints(folder.checkpoints, keep, setup.metadata)
            )
            if weight_sync is not None:
                weight_sync.prepare(
                    state, new_run=start.checkpoint is None, resumes=config.run.resume
                )
                finish_pending_sync(weight_sync, setup, checkpoints, request)
                if request.requested:
                    log.info(
                        "stopped        by %s at step %d; resume with --resume",
                        request.name,
                        state.step,
                    )
                    return request.exit_code
            reporter = resources.enter_context(
                Reporter(folder.metrics, folder.tensorboard, state.step, schedule.total_steps)
            )
            if weight_sync is not None:
                hooks.append(SyncWeights(weight_sync, checkpoints.wait))
            hooks.append(Report(reporter, input_bound_warning_of(setup)))
            if corpora.held_out is not None and config.run.uses_held_out:
                observer, snapshot = resources.enter_context(
                    open_observer(setup, checkpoints, reporter, timeline)
                )
                periods = periods_of(config.run)
                hooks.append(Observe(periods, observer, snapshot, checkpoints.add_provisional))
            else:
                state.pending_observations = ()
            save = checkpoints.save
            folder.write_description(description)
            page = resources.enter_context(PageThread(RunPage(folder.path, timeline)))
            hooks.append(RefreshPage(page))
        else:
            run.folder.write_description(description)
            hooks.append(resources.enter_context(RecordMetrics(run.folder.metrics, state.step)))
        if not schedule.total_steps:  # --stop-at-step 0
            save(state)
            if replicas.is_chief:
                checkpoints.finish()
            log.info("first weights  saved in %s, without a step", folder.checkpoints)
            return 0

        stop = resources.enter_context(stop_on_signals(request))
        # Synchronizing times producing apart from the hand-over. It costs nothing between two
        # devices, where the hand-over would wait for the produced batch anyway.
        pipeline = setup.training_pipeline(synchronize=setup.between_devices)
        feed = resources.enter_context(pipeline.open_feed(Pass(state.position)))
        feed.stop_waiting_when(stop.due)
        if observer is not None:
            observer.watch(feed)
        filled_s = feed.wait_until_full(config.data.model_start_delay, lambda: stop.requested)
        log.info("feed           filled in %.1f s", filled_s)

        clock = Clock(
            producers=len(pipeline.producers), replicas=len(replicas.routes), timeline=timeline
        )
        with explained(setup):
            loop.train(state, step, feed, schedule, hooks, save, clock, stop, observer)
        if observer is not None:
            observer.close()
        if replicas.is_chief:
            with clock.pause(loop.CHECKPOINTS):
                checkpoints.finish()
            elapsed_s = time.perf_counter() - started_s
            total = clock.total()
            log.info("time           %s", time_line(elapsed_s, total, clock.pauses_s))
            if total.steps:  # more than the first step
                augmentation = task_of(config).augmentation
                assessment = assess_run(
                    total,
                    placement,
                    replicas.count,
                    setup.gpu_count,
                    setup.can_replicate,
                    augmentation,
                )
                log.info("grade          %s", assessment.line)
    if skipped := int(state.skipped_updates.numpy()):
        log.info(
            "float16        %d updates were skipped since this process started, because their"
            " gradients overflowed",
            skipped,
        )
    log.info("traces         %d of the training step", step.traces)
    if replicas.is_chief:
        log.info(
            "report         %s", page.end(f"stopped by {stop.name}" if stop.due() else "finished")
        )
    if stop.due():
        if state.step:
            log.info(
                "stopped        by %s at step %d, after a checkpoint; resume with --resume",
                stop.name,
                state.step,
            )
        else:
            log.info("stopped        by %s before the first step: nothing was saved", stop.name)
    return stop.exit_code


def input_bound_warning_of(setup: TrainingSetup) -> InputBoundWarning:
    """Return what advises on long waits for batches."""
    routes = setup.replicas.routes
    # Advice to use another GPU is for one replica: several replicas use their GPUs already.
    gpu_count = setup.gpu_count if len(routes) == 1 else 1
    return InputBoundWarning(
        setup.state.step,
        setup.config.data,
        not setup.between_devices,
        gpu_count,
        len(routes[0].data_devices),
    )


@contextmanager
def open_observer(
    setup: TrainingSetup, checkpoints: Checkpoints, reporter: Reporter, timeline: Timeline
) -> Iterator[tuple[Observer, Snapshot]]:
    """Open the observer of a run, and the snapshot that it works on."""
    config, folder, device = setup.config, setup.run.start.folder, setup.observer
    began_s, in_thread = time.perf_counter(), bool(setup.replicas.observer)
    snapshot, load = Snapshot.of_run(setup), vocoder_loader(setup, device, folder)
    evaluator: Evaluator | None = None
    if config.run.evaluate_every:
        evaluator = open_evaluator(setup, snapshot.network, device, folder, load)
    work = held_out_work(setup, snapshot, reporter.tensorboard, load, evaluator)
    if in_thread:
        # Keras and tracing are for the main thread alone, and TensorFlow prepares a function at its
        # first call.
        work.trace()
        snapshot.take()
        log.info("observer       traced for %s in %.1f s", device, time.perf_counter() - began_s)

    def observe(observation: Observation, pace: Pace | None) -> dict[str, float]:
        # If the run is killed before a checkpoint knows the result, the resumed run repeats the
        # observation, and writes an equal result once more.
        metrics = work.observe(observation, pace)
        if metrics:
            reporter.write(observation.step, metrics)
        return metrics

    def record(observation: Observation, metrics: dict[str, float]) -> None:
        checkpoints.record(setup.state, observation.step, metrics.get("validation_loss"))

    def may_record() -> bool:
        return not checkpoints.is_writing

    with Observer(observe, record, in_thread, may_record, timeline) as observer:
        repeat_pending(setup, observer, snapshot)
        yield observer, snapshot


def repeat_pending(setup: TrainingSetup, observer: Observer, snapshot: Snapshot) -> None:
    """Redo the observations whose results the checkpoint does not know; with a thread, the last one
    runs during training.
    """
    state, checkpoints = setup.state, setup.run.start.folder.checkpoints
    for observation in state.pending_observations:
        checkpoint = checkpoint_of(checkpoints, observation.step)
        if not checkpoint.exists():
            log.warning(
                "%s: lost, because the run ended before it was done, and the checkpoint of that"
                " step is gone",
                observation,
            )
            state.pending_observations = without(state.pending_observations, observation.step)
            continue
        observer.wait(lambda: False)
        snapshot.load(checkpoint)
        observer.begin(observation)
