"""One run on one page: devices, corpus, state, hooks, feed, loop, last lines.

What comes in are the settings. `train` tells what a run does and in which order, all in the main
thread. It starts the other threads of a run: the feeds, the writer of checkpoints, the page, and
perhaps an observer. What goes out are the run folder and the exit code. The modules that it calls
explain the parts: `run.setup` opens a run, `run.loop` trains it, and `run.step` is one step.
"""

import logging
import os
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import replace

from myxtts.base import plugins
from myxtts.base.clock import Clock, step_variation
from myxtts.base.errors import ConfigError
from myxtts.base.files import write_json, write_whole
from myxtts.batches.corpora import DEMO_FOLDER
from myxtts.batches.plan import Pass
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.config.checks import check_worker_count
from myxtts.config.load import dump
from myxtts.config.schema import Config
from myxtts.devicefeed.handover import HANDED_OVER_AHEAD
from myxtts.devicefeed.times import Timeline
from myxtts.distributed.cluster import Cluster, find_cluster
from myxtts.placement.devices import describe_threads
from myxtts.report.alignment import AlignmentWarning
from myxtts.report.assess import InputBoundWarning, assess_run
from myxtts.report.metrics import MetricsFile
from myxtts.report.page import PageThread, RunPage
from myxtts.report.reporter import Reporter, RunLog, time_line
from myxtts.run import description, loop
from myxtts.run.hooks import CheckDevices, Hook, Observe, Report
from myxtts.run.observation import Observer
from myxtts.run.observing import open_observer
from myxtts.run.saving import Checkpoints, save_nothing
from myxtts.run.schedule import periods_of
from myxtts.run.setup import TrainingSetup, open_run
from myxtts.run.shares import DealShares
from myxtts.run.start import resolve_start
from myxtts.run.stop_request import StopRequest, stop_on_signals

log = logging.getLogger(__name__)


def train(config: Config, request: StopRequest | None = None, more: Iterable[Hook] = ()) -> int:
    """Train, with `more` hooks; `request` may stop it. Return the exit code. Raises UserError."""
    started_s = time.perf_counter()
    cluster = find_cluster(os.environ)
    check_workers_settings(config, cluster)
    folder = RunFolder(config.run.folder)
    with ExitStack() as run_resources:
        # Devices. A run folder is locked before anything is read or written: if two processes start
        # the same run, one trains. Several workers lock their folders after they have met, so that
        # all of them learn of a fault of one.
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

        # State: from the seed, a pretrained run or the run's own checkpoint. A finished run ends
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

        # Hooks, in the order in which the loop calls them between two steps. First comes the check
        # of devices, after the first step only. Then a sync, since it changes the weights. Then the
        # report, before the observation, so that a step has its line even if its validation fails.
        # Among several workers the chief writes the run folder; the others only write metrics.
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
                # A pending observation changes nothing: the run would not have begun it.
                line = "nothing to do  --patience ended run %s; give a higher one. The best is %s"
                log.info(line, config.run.run, checkpoints.best_line)
                return 0
            save = checkpoints.save
            made = (make(setup, checkpoints, request) for make in plugins.load("hooks"))
            hooks += filter(None, made)
            if request.requested:
                line = "stopped        by %s at step %d; resume with --resume"
                log.info(line, request.name, state.step)
                return request.exit_code
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
            # The page of the run shows these metrics.
            file = resources.enter_context(closing(MetricsFile(run.folder.metrics, state.step)))
            hooks.append(Report(lambda step, metrics: file.write({"step": step, **metrics})))
        if not schedule.total_steps:
            # --stop-at-step 0 makes the common start of several jobs.
            save(state)
            if replicas.is_chief:
                checkpoints.finish()
            log.info("first weights  saved in %s, without a step", folder.checkpoints)
            return 0

        # Feed. It fills before the first step, as long as --model-start-delay allows. Synchronizing
        # times producing apart from the hand-over. It costs nothing between two devices, where the
        # hand-over would wait for the produced batch anyway.
        stop = resources.enter_context(stop_on_signals(request))
        pipeline = setup.training_pipeline(synchronize=setup.between_devices)
        feed = resources.enter_context(pipeline.open_feed(Pass(state.position)))
        feed.stop_waiting_when(stop.due)
        if observer is not None:
            observer.watch(feed)
        delay_s = config.data.model_start_delay
        waited_s = feed.wait_until_full(delay_s, lambda: stop.requested)
        ready, depth = feed.fill
        log.info("feed           %s", description.describe_fill(ready, depth, waited_s, delay_s))

        # Loop. The last checkpoint is on the disk before the run logs its times.
        clock = Clock(
            producers=len(pipeline.producers), replicas=len(replicas.routes), timeline=timeline
        )
        if config.data.batch_shares == "auto":
            # It comes first, so that later hooks know of the checkpoint that it asks for.
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


def input_bound_warning_of(setup: TrainingSetup) -> InputBoundWarning:
    """Return the report that advises on long waits for batches."""
    routes = setup.replicas.routes
    # Advice to use another GPU is for one replica: several replicas use their GPUs already.
    gpu_count = 1
    if len(routes) == 1:
        gpu_count = setup.gpu_count
    step, data, is_single = setup.state.step, setup.config.data, not setup.between_devices
    return InputBoundWarning(step, data, is_single, gpu_count, len(routes[0].data_devices))


def log_stop(stop: StopRequest, step: int) -> None:
    """Log why a run stopped, and how it goes on."""
    if not step:
        log.info("stopped        by %s before the first step: nothing was saved", stop.name)
        return
    resume = "resume with --resume"
    if stop.is_early:
        resume += " and a higher --patience"
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
        # Between GPUs the copies keep the host in time: the copy for step n waits for step n - 3.
        # On a single GPU nothing does, so the times of calls say nothing about the times of steps.
        on_gpu = setup.run.placement.on_gpu
        if setup.between_devices or not on_gpu:
            ahead = 0
            if on_gpu:
                ahead = HANDED_OVER_AHEAD + 1
            variation = step_variation(clock.timeline.newest(), traced_s, ahead)
            assessment = replace(assessment, step_variation=variation)
        log.info("grade          %s", assessment.line)
