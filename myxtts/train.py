"""One run on one page: devices, corpus, state, hooks, feed, loop, last lines.

`train` tells what a run does and in which order. What each part is stands in the modules it calls:
`training.setup` opens a run, `training.loop` trains it, `training.step` is one step.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from myxtts.base.clock import Clock, step_variation
from myxtts.base.errors import ConfigError
from myxtts.base.files import write_json, write_whole
from myxtts.batches.corpora import DEMO_FOLDER
from myxtts.batches.plan import Pass
from myxtts.config.checks import check_worker_count
from myxtts.config.load import dump
from myxtts.config.schema import Config
from myxtts.devicefeed.handover import HANDED_OVER_AHEAD
from myxtts.devicefeed.times import Timeline
from myxtts.distributed.cluster import Cluster, find_cluster
from myxtts.local_sgd.sync import WeightSync
from myxtts.placement.devices import describe_threads
from myxtts.report.alignment import AlignmentWarning
from myxtts.report.metrics import FIGURES
from myxtts.report.page import PageThread, RunPage
from myxtts.report.reporter import Reporter, RunLog, time_line
from myxtts.tasks.base import Evaluator
from myxtts.throughput.assess import InputBoundWarning, assess_run
from myxtts.training import description, loop
from myxtts.training.checkpoint_files import checkpoint_of
from myxtts.training.checkpoints import Checkpoints, save_nothing
from myxtts.training.hooks import CheckDevices, Hook, Observe, Report, StepEnd, worker_report
from myxtts.training.observation import HeldOutWork, Observer, Snapshot, Throttle, vocoder_loader
from myxtts.training.runs import RunFolder
from myxtts.training.schedule import Observation, due_parts, periods_of, without
from myxtts.training.setup import TrainingSetup, open_run, resolve_start
from myxtts.training.shares import DealShares
from myxtts.training.stop_request import StopRequest, stop_on_signals

log = logging.getLogger(__name__)


def train(config: Config, request: StopRequest | None = None, more: Iterable[Hook] = ()) -> int:
    """Train, with `more` hooks; `request` may stop it. Return the exit code. Raises UserError."""
    started_s = time.perf_counter()
    cluster = find_cluster(os.environ)
    check_workers_settings(config, cluster)
    folder = RunFolder(config.run.folder)
    with ExitStack() as run_resources:
        # Devices. A run folder is locked before anything is read or written, so that of two starts
        # one trains. Several workers lock theirs when they have met: whatever is wrong with one of
        # them, all of them then learn of it.
        if cluster is None:
            run_resources.enter_context(folder.locked(config.run.lock))
            folder.check_not_existing(config.run.resume)
        run_log = run_resources.enter_context(RunLog())
        run = run_resources.enter_context(open_run(resolve_start(config, folder), cluster))
        run_resources.enter_context(description.translate_oom(run))
        config, start, replicas = run.config, run.start, run.replicas
        resources = run_resources.enter_context(ExitStack())
        if replicas.is_distributed:
            resources.enter_context(run.folder.locked(config.run.lock))
            if replicas.is_chief:
                folder.check_not_existing(config.run.resume)

        # Corpus. The log file comes after it, so that a run that cannot start leaves no folder.
        corpora = run.read_corpora()
        run_log.open(run.folder.path / "log.txt")

        # State: from the seed, a pretrained run or the run's own checkpoint. A finished run is done
        # here, unless it was stopped in its last sync or observation.
        setup = run.set_up(corpora)
        description.log_start(setup)
        state, schedule, step = setup.state, setup.schedule, setup.make_step()
        owes_sync = config.local_sgd.sync_every and state.audio_s_since_sync > 0
        is_pending = owes_sync or state.pending_observations
        if start.resumed and state.step >= schedule.total_steps and not is_pending:
            flag, _ = description.ending_setting(config.training, schedule.total_steps).split()
            line = "nothing to do  run %s has its %d steps; train longer with a higher %s"
            log.info(line, config.run.run, state.step, flag)
            return 0

        # Hooks, in the order in which the loop calls them between two steps. The check of devices
        # is for the first step alone. Then a sync, since it changes the weights; the report before
        # the observation, so that a step has its line if its validation fails. Of several workers
        # the chief writes the run folder, and the others write only their metrics.
        timeline = Timeline()
        write_json(run.folder.path / "run.json", description.describe_run(setup))
        hooks: list[Hook] = [CheckDevices(started_s), *more]
        alignment = AlignmentWarning()
        save: loop.Save = save_nothing
        observer: Observer | None = None
        request = request or StopRequest()
        request.stop_requested = step.stop_requested if replicas.is_distributed else None
        if replicas.is_chief:
            settings = f"# threads on this machine: {describe_threads()}\n{dump(config)}"
            write_whole(folder.config, settings.encode())
            checkpoints = resources.enter_context(
                Checkpoints(folder.checkpoints, config.run.keep_checkpoints, setup.record)
            )
            if checkpoints.is_patience_over:
                # Even if an observation is pending: the run would not have begun it.
                line = "nothing to do  --patience ended run %s; give a higher one. The best is %s"
                log.info(line, config.run.run, checkpoints.best_line)
                return 0
            save = checkpoints.save
            if config.local_sgd.sync_every:
                weight_sync = WeightSync(setup.record, schedule.total_steps)
                weight_sync.prepare(state, new_run=start.resumed is None, resumes=config.run.resume)
                finish_pending_sync(weight_sync, setup, checkpoints, request)
                if request.requested:
                    line = "stopped        by %s at step %d; resume with --resume"
                    log.info(line, request.name, state.step)
                    return request.exit_code
                hooks.append(SyncWeights(weight_sync, checkpoints))
            reporter = resources.enter_context(
                Reporter(folder.metrics, folder.tensorboard, state.step, schedule.total_steps)
            )
            hooks.append(Report(reporter.write, input_bound_warning_of(setup), alignment))
            if corpora.held_out is not None and config.run.uses_held_out:
                observer, snapshot = resources.enter_context(
                    open_observer(setup, checkpoints, reporter, timeline, request)
                )
                hooks.append(Observe(periods_of(config.run), observer, snapshot))
            else:
                state.pending_observations = ()
            page = resources.enter_context(PageThread(RunPage(folder.path, config, timeline)))
        else:
            hooks.append(resources.enter_context(worker_report(run.folder.metrics, state.step)))
        if not schedule.total_steps:
            # --stop-at-step 0 is for the common start of several jobs.
            save(state)
            if replicas.is_chief:
                checkpoints.finish()
            log.info("first weights  saved in %s, without a step", folder.checkpoints)
            return 0

        # Feed. Synchronizing times producing apart from the hand-over. It costs nothing between two
        # devices, where the hand-over would wait for the produced batch anyway.
        stop = resources.enter_context(stop_on_signals(request))
        pipeline = setup.training_pipeline(synchronize=setup.between_devices)
        feed = resources.enter_context(pipeline.open_feed(Pass(state.position)))
        feed.stop_waiting_when(stop.due)
        if observer is not None:
            observer.watch(feed)
        delay_s = config.data.model_start_delay
        waited_s = feed.wait_until_full(delay_s, lambda: stop.requested)
        log.info("feed           %s", description.describe_fill(*feed.fill, waited_s, delay_s))

        # Loop. The last checkpoint is on the disk before the run says how it went.
        clock = Clock(
            producers=len(pipeline.producers), replicas=len(replicas.routes), timeline=timeline
        )
        if config.data.batch_shares == "auto":
            # First, so that the others know of the checkpoint that it asks for.
            hooks.insert(0, DealShares(setup, step, clock, pipeline, feed))
        with description.translate_training_errors(setup):
            loop.train(state, step, feed, schedule, hooks, save, clock, stop, observer)
        if observer is not None:
            observer.close()
        if replicas.is_chief:
            with clock.pause(loop.CHECKPOINTS):
                checkpoints.finish()
            if checkpoints.best is not None:
                log.info("best           %s", checkpoints.best_line)
            log_times(setup, clock, started_s, hooks, step.traced_s)
            if alignment.line:
                log.info("alignment      %s", alignment.line)

        # Last lines, after the feed, the progress bar and the handlers of signals are closed.
        resources.close()
        if skipped := int(state.skipped_updates.numpy()):
            log.info("float16        %d updates were skipped, as gradients overflowed", skipped)
        log.info("traces         %d of the training step", step.traces)
        if replicas.is_chief:
            outcome = f"stopped by {stop.name}" if stop.due() else "finished"
            log.info("report         %s", page.end(outcome))
        if stop.due():
            log_stop(stop, state.step)
        return stop.exit_code


def check_workers_settings(config: Config, cluster: Cluster | None) -> None:
    """Raise ConfigError where several workers cannot do what the settings ask for."""
    if cluster is None:
        return
    if config.data.train_data is None and not DEMO_FOLDER.exists():
        raise ConfigError(
            f"{cluster.count} workers were started without --train-data, and there is no"
            f" {DEMO_FOLDER}. Run `myxtts corpus` on every host first, or give a corpus."
        )
    check_worker_count(config, cluster.count)


class SyncWeights:
    """Averages the weights with those of other jobs (local SGD) and asks for a checkpoint of the
    result.
    """

    pause_kind = "syncs"

    def __init__(self, weight_sync: WeightSync, checkpoints: Checkpoints):
        self._weight_sync, self._checkpoints = weight_sync, checkpoints

    def is_due(self, end: StepEnd) -> bool:
        return self._weight_sync.is_due(end.state)

    def __call__(self, end: StepEnd) -> None:
        # A sync removes the previous contributions, which a job needs that is killed and resumes
        # from a previous checkpoint.
        self._checkpoints.wait()
        end.owes_sync = not self._weight_sync.sync(end.state, end.stop.due)
        end.save |= not end.owes_sync


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


def input_bound_warning_of(setup: TrainingSetup) -> InputBoundWarning:
    """Return what advises on long waits for batches."""
    routes = setup.replicas.routes
    # Advice to use another GPU is for one replica: several replicas use their GPUs already.
    gpu_count = setup.gpu_count if len(routes) == 1 else 1
    step, data, is_single = setup.state.step, setup.config.data, not setup.between_devices
    return InputBoundWarning(step, data, is_single, gpu_count, len(routes[0].data_devices))


@contextmanager
def open_observer(
    setup: TrainingSetup,
    checkpoints: Checkpoints,
    reporter: Reporter,
    timeline: Timeline,
    request: StopRequest,
) -> Iterator[tuple[Observer, Snapshot]]:
    """Open the observer of a run, which may end it, and the snapshot that it works on."""
    config, folder, device = setup.config, setup.run.start.folder, setup.observer
    figure = FIGURES[config.run.select_by].metric
    began_s, in_thread = time.perf_counter(), bool(setup.replicas.observer)
    snapshot = Snapshot.of_run(setup)
    load = vocoder_loader(setup, device, folder)
    evaluator: Evaluator | None = None
    if config.run.evaluate_every:
        # It imports every evaluator, which takes 0.4 s, and few runs need it.
        from myxtts.evaluation.evaluate import open_evaluator

        evaluator = open_evaluator(setup, snapshot.network, device, folder, load)
    work = HeldOutWork(setup, snapshot, reporter.tensorboard, load, evaluator)
    if in_thread:
        # Keras and tracing are for the main thread alone, and TensorFlow prepares a function at its
        # first call.
        work.trace()
        snapshot.take()
        log.info("observer       traced for %s in %.1f s", device, time.perf_counter() - began_s)

    def observe(observation: Observation, throttle: Throttle | None) -> dict[str, float]:
        # If the run is killed before a checkpoint knows the result, the resumed run repeats the
        # observation, and writes an equal result once more.
        metrics = work.observe(observation, throttle)
        # All results before this one are recorded, whichever thread this is.
        if figure in metrics and (best := checkpoints.best_with(observation.step, metrics[figure])):
            metrics[f"best_step_by_{config.run.select_by}"] = best.step
        if metrics:
            reporter.write(observation.step, metrics)
        return metrics

    def record(observation: Observation, metrics: dict[str, float]) -> None:
        checkpoints.record(setup.state, observation.step, metrics.get(figure))
        request.is_early = checkpoints.is_patience_over

    def may_record() -> bool:
        return not checkpoints.is_writing

    with Observer(observe, record, in_thread, may_record, timeline) as observer:
        repeat_pending(setup, observer, snapshot, request)
        yield observer, snapshot


def repeat_pending(
    setup: TrainingSetup, observer: Observer, snapshot: Snapshot, request: StopRequest
) -> None:
    """Redo the observations that the checkpoint does not know; the last may run during training."""
    state, checkpoints = setup.state, setup.run.start.folder.checkpoints
    for observation in state.pending_observations:
        checkpoint = checkpoint_of(checkpoints, observation.step)
        if not checkpoint.exists():
            log.warning("%s: lost, since the checkpoint of that step is gone", observation)
            state.pending_observations = without(state.pending_observations, observation.step)
            continue
        observer.wait(lambda: False)
        if request.is_early:
            return
        snapshot.load(checkpoint)
        observer.begin(observation)


def log_stop(stop: StopRequest, step: int) -> None:
    """Log why a run stopped, and how it goes on."""
    if not step:
        log.info("stopped        by %s before the first step: nothing was saved", stop.name)
        return
    longer = " and a higher --patience" if stop.is_early else ""
    resume = f"resume with --resume{longer}"
    log.info("stopped        by %s at step %d, after a checkpoint; %s", stop.name, step, resume)


def log_times(
    setup: TrainingSetup, clock: Clock, started_s: float, hooks: Iterable[Hook], traced_s: float
) -> None:
    """Log where the time of the run went, and how its placement was used."""
    total = clock.total()
    elapsed_s = time.perf_counter() - started_s
    log.info("time           %s", time_line(elapsed_s, total, clock.pauses_s))
    # The first step is in no interval, so a run of one step has nothing to grade.
    if total.steps:
        can_replicate = setup.config.training.compile != "xla"
        replicas, gpu_count = setup.replicas.count, setup.gpu_count
        assessment = assess_run(total, setup.run.placement, replicas, gpu_count, can_replicate)
        bounds_s = [hook.bound_s for hook in hooks if isinstance(hook, DealShares)]
        assessment = replace(assessment, bound_s=next(iter(bounds_s), None))
        # Between GPUs a copy keeps the host in time: that for a step waits for the step three
        # before. On a single GPU nothing does, and the times of calls are not those of steps.
        on_gpu = setup.run.placement.on_gpu
        if setup.between_devices or not on_gpu:
            ahead = HANDED_OVER_AHEAD + 1 if on_gpu else 0
            variation = step_variation(clock.timeline.newest(), traced_s, ahead)
            assessment = replace(assessment, step_variation=variation)
        log.info("grade          %s", assessment.line)
