"""One run in five moves: devices, corpus, state, feed, loop."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.clock import Clock
from myxtts.config.load import dump
from myxtts.config.schema import Config
from myxtts.data.dataset import DEMO_FOLDER, Corpus, load_corpora
from myxtts.data.manifest import Vocabulary
from myxtts.data.pipeline import Pipeline, ReplicaBatches
from myxtts.data.plan_iterator import Position, planned_steps, steps_left
from myxtts.distributed.cluster import Cluster, find_cluster
from myxtts.errors import CheckpointError, ConfigError, DataError, PlacementError, TrainingError
from myxtts.local_sgd.sync import OuterOptimizer, SyncGroup, WeightSync
from myxtts.models.layers import parameter_count
from myxtts.observe.advice import LongWait
from myxtts.observe.html_report import write_report
from myxtts.observe.report import Reporter
from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.replicas import Replicas, open_replicas
from myxtts.placement.routes import Placement, plan_routes
from myxtts.tasks.length_rules import length_rule_of
from myxtts.tasks.registry import task_of
from myxtts.training import loop, schedule
from myxtts.training.checkpoint import Checkpoints, restore
from myxtts.training.checkpoint_files import digest_of, latest, read_metadata
from myxtts.training.init_from import (
    Pretrained,
    check_freeze,
    inherit_settings,
    inherited_vocabulary,
    load_pretrained,
    read_pretrained,
)
from myxtts.training.run_folder import RunFolder, check_same_corpus, check_same_settings
from myxtts.training.select_checkpoint import settings_of
from myxtts.training.state import TrainingState, make_optimizer
from myxtts.training.step import Step
from myxtts.training.stop_request import SharedStopRequest, StopRequest, stop_on_signals
from myxtts.training.validation import Validation

OWN_OF_A_MACHINE = {  # paths, and how batches are read
    *("train_data", "val_data", "audio_root", "num_workers", "use_tf_native_loading", "data_service"),
    *("buffer_size", "prefetch_buffer_size", "cache_dataset", "model_start_delay"),
}

log = logging.getLogger(__name__)


def train(config: Config) -> int:
    """Train as the configuration says; gives the exit code.

    Raises:
        UserError: something that the user can mend.
    """
    started_s = time.perf_counter()
    run, cluster = config.run, find_cluster(os.environ)
    folder = RunFolder(Path(run.runs_dir) / run.run)
    if cluster is None:
        folder.check_not_existing(run.resume)
    if cluster is not None and config.data.train_data is None and not DEMO_FOLDER.exists():
        raise ConfigError(
            f"{cluster.count} workers were started without --train-data, and there is no {DEMO_FOLDER}, which one "
            f"process has to make. Run `python utilities/make_demo_corpus.py --out {DEMO_FOLDER}` on every host first, "
            "or give a corpus."
        )
    if cluster is not None and config.local_sgd.sync_every:
        raise ConfigError(
            f"--sync-every was asked for with {cluster.count} workers, which take each step together already. "
            "Leave out one of the two."
        )
    config, start = find_start(config, folder)
    placement = configure_devices(config, cluster)
    try:
        with open_replicas(placement, cluster, shared_settings(config, start)) as replicas:
            return train_on(placement, replicas, config, folder, start, started_s)
    except tf.errors.ResourceExhaustedError as error:
        raise TrainingError(explain_out_of_memory(error, placement)) from error


def shared_settings(config: Config, start: "Start") -> dict[str, str]:
    """What all workers of a job have in common: the settings that a step depends on, and where they start."""
    left_out = {"placement": True, "data": OWN_OF_A_MACHINE, "training": {"init_from"}, "run": {"runs_dir"}}
    sections = config.model_dump(mode="json", exclude=left_out)
    settings = {f"{section}.{name}": str(value) for section, own in sections.items() for name, value in own.items()}
    return settings | {"checkpoint": start.checkpoint.name if start.checkpoint else "none"}


@dataclass(frozen=True)
class Start:
    """Where a run's first weights come from: its own checkpoint, the base, or the seed where there is neither.

    Attributes:
        known: rows that its tables begin with.
        ancestor: what its checkpoints keep of its base.
        digest: of its first weights, where it has a checkpoint.
    """

    checkpoint: Path | None = None
    base: Pretrained | None = None
    known: Vocabulary | None = None
    ancestor: dict[str, Any] | None = None
    digest: str | None = None


def find_start(config: Config, folder: RunFolder) -> tuple[Config, Start]:
    """The start of a run, and its settings with those that a base fixes.

    Reads no corpus, so a mistake is found at once; and no base where the run has a checkpoint of its own.
    """
    training = config.training
    checkpoint = latest(folder.checkpoints) if config.run.resume else None
    base = None
    if training.init_from is not None:
        base = None if checkpoint else read_pretrained(Path(training.init_from), folder.path)
        config = inherit_settings(config, base.checkpoint if base else checkpoint)
    if checkpoint is not None:
        metadata = read_metadata(checkpoint)
        check_same_settings(checkpoint, settings_of(checkpoint, metadata), config)
        check_freeze(config)
        return config, Start(checkpoint, None, inherited_vocabulary(metadata), metadata["ancestor"], metadata["start"])
    check_freeze(config)
    return config, Start(None, base, base.vocabulary, base.ancestor()) if base else Start()


def train_on(
    placement: Placement, replicas: Replicas, config: Config, folder: RunFolder, start: Start, started_s: float
) -> int:
    """Corpus, state, feed and loop, on devices that are set up; files are written by the chief of several workers."""
    run, data = config.run, config.data
    caches = folder.path if replicas.is_chief else folder.path / f"worker-{replicas.first // len(replicas.devices)}"
    if replicas.is_distributed and replicas.is_chief:  # only now, so that the others are told
        folder.check_not_existing(run.resume)
    with ExitStack() as opened:
        corpus, held_out, vocabulary = load_corpora(config, caches, length_rule_of(config), start.known, replicas.count)
        check_validation_data(config, corpus, held_out)
        check_workers_corpus(replicas, corpus)
        if replicas.is_chief:
            opened.enter_context(folder.locked())

        state = build_state(config, vocabulary, replicas, start.base)
        metadata = about_run(
            config, corpus, vocabulary, start.ancestor, start.digest or digest_of(dict(state.arrays("model")))
        )
        if start.checkpoint is not None:
            check_same_corpus(start.checkpoint, metadata)
            restore(start.checkpoint, state)
            log.info("resumed        %s", start.checkpoint)
        elif start.base is not None:
            log.info("start          %s", start.base.describe(vocabulary))
        check_workers_weights(replicas, state)
        plan = make_schedule(config, corpus, state)
        if replicas.is_chief:
            describe(config, corpus, held_out, vocabulary, state, plan)
        # A run that was stopped while it waited for the last sync has all its steps, but not that sync.
        owes_sync = config.local_sgd.sync_every and state.audio_s_since_sync > 0
        if state.step >= plan.total_steps and start.checkpoint is not None and not owes_sync:
            log.info("nothing to do: run %s has its %d steps; --max-steps makes it longer", run.run, state.step)
            return 0
        step, first_step, dual = make_step(config, state), FirstStep(started_s), is_dual(placement)
        if replicas.is_chief:
            folder.write_config(dump(config))
            reporter = opened.enter_context(Reporter(folder.metrics, folder.tensorboard, state.step, plan.total_steps))
            held = held_out_actions(config, held_out, vocabulary, state, folder, reporter)
            checkpoints = Checkpoints(folder.checkpoints, run.keep_checkpoints, metadata)
            long_wait = LongWait(state.step, data, not dual, config.placement.simulate_gpus or devices.gpu_count())
            periods = loop.Periods(run.log_every, run.validate_every, run.sample_every, run.checkpoint_every)
            actions = chief_actions(first_step, reporter, long_wait, checkpoints, held)
            if config.local_sgd.sync_every:
                actions = with_merges(actions, config, plan.total_steps, metadata, state, start.checkpoint is None)
            if not plan.total_steps:
                log.info("first weights  %s, and no step", checkpoints.save(state))
                return 0
        else:
            periods, actions = loop.Periods(run.log_every, 0, 0, 0), loop.only_steps(first_step)
        # Between two devices the hand-over waits for what was produced in any case; settling tells the two apart.
        pipeline = make_pipeline(config, corpus, replicas, caches, synchronize=dual)
        feed = opened.enter_context(pipeline.open_feed(state.position))
        request = SharedStopRequest(step.asked_to_stop) if replicas.is_distributed else StopRequest()
        stop = opened.enter_context(stop_on_signals(request))
        log.info("feed           filled in %.1f s", feed.wait_until_full(data.model_start_delay))
        try:
            loop.train(state, step, feed, plan, periods, actions, Clock(), stop)
        except loop.NonFiniteLoss as error:
            raise TrainingError(explain_non_finite(error, corpus, folder, *state.began)) from error
        except loop.StepOutOfMemory as error:
            batch = describe_batch(error, corpus)
            raise TrainingError(explain_out_of_memory(error.cause, placement, batch)) from error
    log.info("traces         %d of the training step", step.traces)
    if replicas.is_chief:
        log.info("report         %s", write_report(folder.path))
    if stop.due():
        log.info("stopped by %s at step %d, after a checkpoint; --resume goes on", stop.name, state.step)
    return stop.exit_code


def configure_devices(config: Config, cluster: Cluster | None = None) -> Placement:
    placement = plan_routes(config.placement, devices.gpu_count())
    replicas = len(placement.routes) * (cluster.count if cluster else 1)
    if replicas > 1 and config.training.compile == "xla":
        raise PlacementError(
            f"--compile xla was asked for with {replicas} replicas ({placement.name}), but XLA compiles "
            "for one device. Leave out --compile, or give one GPU by --model-gpu."
        )
    if config.model.task == "asr" and config.training.compile == "xla":
        raise ConfigError("--compile xla was asked for, but XLA cannot compile the loss of a recogniser. Leave it out.")
    devices.configure(placement)
    if config.training.deterministic:
        tf.config.experimental.enable_op_determinism()
    return placement


def check_workers_corpus(replicas: Replicas, corpus: Corpus) -> None:
    """Raises DataError where the workers have not all read the same utterances: their shares would not fit."""
    if not replicas.all_equal(corpus.manifest.fingerprint):
        raise DataError(
            f"all workers have to read the same corpus, but not all of them found the {len(corpus.manifest)} usable "
            "utterances that this one did. Give every host the same files; rejected.csv of each says what it left out."
        )


def check_workers_weights(replicas: Replicas, state: TrainingState) -> None:
    """Raises CheckpointError where the workers begin with different weights: nothing would bring them together."""
    if replicas.is_distributed and not replicas.all_equal(digest_of(dict(state.arrays("model")))):
        raise CheckpointError(
            "all workers have to begin with the same weights, but they do not. Give all of them the same run folder, "
            "or the same --init-from: a copy on one host may be of another attempt."
        )


def check_validation_data(config: Config, corpus: Corpus, held_out: Corpus | None) -> None:
    run = config.run
    if held_out is None and (run.validate_every or run.sample_every):
        raise ConfigError(
            f"validation and samples were asked for, but none of the {len(corpus.manifest)} utterances is held out "
            f"(validation_fraction is {config.data.validation_fraction}). Give --val-data or a larger "
            "--validation-fraction, or turn them off by --validate-every 0 --sample-every 0."
        )


def build_state(
    config: Config, vocabulary: Vocabulary, replicas: Replicas, base: Pretrained | None = None
) -> TrainingState:
    """The model with its first weights, of its base where it has one, its optimizer and averages, on every replica."""
    training = config.training
    keras.utils.set_random_seed(training.seed)
    with replicas.scope():
        network = task_of(config).build(config, vocabulary)
        if base is not None:
            load_pretrained(base, network, vocabulary, training.freeze)
        optimizer = make_optimizer(training.weight_decay, training.precision)
        return TrainingState(
            network, optimizer, averaged=training.ema_decay > 0, replicas=replicas, frozen=training.freeze
        )


def make_pipeline(
    config: Config, corpus: Corpus, replicas: Replicas, cache_folder: Path, synchronize: bool
) -> Pipeline:
    """The training batches of this process; see Pipeline."""
    extractor, seed = task_of(config).extractor(config, training=True), config.training.seed
    return Pipeline(
        corpus,
        replicas.routes,
        extractor,
        config.data,
        seed=seed,
        cache_folder=cache_folder,
        synchronize=synchronize,
        first_replica=replicas.first,
    )


def make_step(config: Config, state: TrainingState) -> Step:
    training = config.training
    return Step(
        state,
        training.gradient_clip,
        training.gradient_accumulation,
        config.data.enable_static_shapes,
        compile_xla=training.compile == "xla",
    )


def about_run(
    config: Config, corpus: Corpus, vocabulary: Vocabulary, ancestor: dict[str, Any] | None, start: str
) -> dict[str, Any]:
    """What a checkpoint keeps beside the weights: enough to resume, to speak and to merge.

    Args:
        start: SHA-256 of the weights that the run began with, or the one that it was forked from.
    """
    return {
        "settings": config.model_dump(mode="json"),
        "symbols": vocabulary.symbols.to_list(),
        "languages": vocabulary.languages,
        "speakers": vocabulary.speakers,
        "corpus": corpus.manifest.fingerprint,
        "ancestor": ancestor,
        "start": start,
    }


def make_schedule(config: Config, corpus: Corpus, state: TrainingState) -> loop.Schedule:
    training, replicas = config.training, state.replicas.count
    by_epochs = state.step + steps_left(corpus.plan, state.position, training.epochs) if training.epochs else 0
    total = schedule.total_steps(training.max_steps, by_epochs)
    peak = training.learning_rate * (replicas if training.scale_learning_rate else 1)
    return loop.Schedule(
        total_steps=total if training.stop_at_step is None else min(total, training.stop_at_step),
        learning_rate=lambda step: schedule.learning_rate(
            step, total, peak, training.warmup_steps, training.final_lr_ratio
        ),
        ema_decay=lambda step: schedule.ema_decay(step, training.ema_decay),
    )


def is_dual(placement: Placement) -> bool:
    """Whether batches travel from one device to another."""
    return any(route.data != route.model for route in placement.routes)


def chief_actions(first_step, reporter, long_wait, checkpoints, held: dict) -> loop.Actions:
    """What the loop does between steps where files are written."""

    def report(state: TrainingState, metrics: dict[str, float | str]) -> None:
        reporter.write(state.step, metrics)
        long_wait(state.step, metrics)

    return loop.Actions(
        first_step=first_step, report=report, save=checkpoints.save, improves=checkpoints.improves, **held
    )


def with_merges(
    actions: loop.Actions, config: Config, total_steps: int, metadata: dict[str, Any], state: TrainingState, fresh: bool
) -> loop.Actions:
    """The actions of a run that is one of several jobs."""
    local_sgd = config.local_sgd
    group = SyncGroup(
        Path(local_sgd.sync_dir),
        local_sgd.job,
        local_sgd.jobs,
        local_sgd.sync_every,
        local_sgd.sync_timeout,
    )
    outer_optimizer = OuterOptimizer(local_sgd.outer_learning_rate, local_sgd.outer_momentum)
    weight_sync = WeightSync(group, outer_optimizer, local_sgd.sync_optimizer, total_steps, metadata)
    weight_sync.prepare(state, fresh)
    return replace(actions, merge_is_due=weight_sync.is_due, merge=weight_sync.sync)


def held_out_actions(config, held_out, vocabulary, state, folder, reporter) -> dict:
    """Validation and samples: what the loop does with held-out utterances, on the first replica alone."""
    if held_out is None or not (config.run.validate_every or config.run.sample_every):
        return {"validate": None, "sample": None}  # neither is ever due
    task = task_of(config)
    extractor = task.extractor(config, training=False)
    pipeline = Pipeline(
        held_out,
        state.replicas.routes[:1],
        extractor,
        config.data,
        seed=config.training.seed,
        cache_folder=folder.path,
    )
    validation = Validation(
        state.model,
        lambda: pipeline.open_feed(Position(), epochs=1, mean_over="epoch"),
        task.metric(vocabulary),
    )
    with pipeline.open_feed(Position(), epochs=1) as feed:
        ((planned, batch, _),) = next(feed)
    ids = [held_out.manifest.ids[row] for row in planned.rows]
    texts = [held_out.manifest.texts[row] for row in planned.rows]
    sampler = task.sampler(config, vocabulary, folder.samples, batch, ids, texts, reporter.tensorboard)

    def sample(state: TrainingState) -> None:
        with state.averaged_weights(), tf.device(state.device):
            sampler(state.model, state.step)
        write_report(folder.path)

    return {"validate": validation, "sample": sample}


class FirstStep:
    """Looks at the devices of the first step, and says how long it took to get there."""

    def __init__(self, started_s: float):
        self._started_s = started_s

    def __call__(self, state: TrainingState, rounds: Sequence[ReplicaBatches], outcome: tf.Tensor) -> None:
        """Raises PlacementError where a tensor or variable is not on the device of its replica."""
        state.require_devices()
        require_device(state.device, [("losses", outcome)])
        for one in rounds:
            for device, delivery in zip(state.replicas.devices, one, strict=True):
                require_device(device, delivery.batch.items())
        outcome.numpy()
        log.info("first step     %.1f s after the start", time.perf_counter() - self._started_s)


def describe(config, corpus, held_out, vocabulary, state, plan) -> None:
    """Every derived number of the run, by name."""
    training, data, replicas = config.training, config.data, state.replicas.count
    samples = corpus.manifest.samples
    audio_s = float(samples.sum(dtype=np.int64)) / SAMPLE_RATE_HZ
    steps = corpus.plan.steps_per_epoch
    sizes = corpus.plan.batch_sizes
    rows = f"{sizes.min()} to {sizes.max()}" if data.batch_seconds else data.batch_size
    peak = plan.learning_rate(max(min(training.warmup_steps, plan.total_steps) - 1, 0))
    held = f", {len(held_out.manifest)} held out" if held_out else ""
    utterances, seconds = len(samples) / steps, audio_s / steps
    shared = f"{replicas} replicas with {utterances / replicas:.1f} and {seconds / replicas:.1f}, each " * (
        replicas > 1
    )
    lines = {
        "corpus": f"{len(samples)} utterances{held}, {audio_s / 60:.1f} min, {len(vocabulary.speakers)} speakers, "
        f"{len(vocabulary.symbols)} symbols, languages {' '.join(vocabulary.languages)}",
        "buckets": " ".join(f"{bound / SAMPLE_RATE_HZ:.2f}" for bound in corpus.plan.bounds) + " s",
        "padding": f"{100 * corpus.plan.padding:.1f} %",
        "model": f"{task_of(config).describe(config)}, {parameter_count(state.model):,} parameters, "
        f"{training.precision}",
        "step": f"{utterances:.1f} utterances and {seconds:.1f} audio seconds in {shared}"
        f"{training.gradient_accumulation} x {rows} rows",
        "learning rate": f"{plan.learning_rate(0):.2g} at first, {peak:.2g} at most, "
        f"{plan.learning_rate(plan.total_steps - 1):.2g} at the end",
        "length": f"{plan.total_steps} steps of {steps} an epoch ({plan.total_steps / steps:.1f} epochs), "
        f"from step {state.step}",
    }
    for name, text in lines.items():
        log.info("%-14s %s", name, text)


def explain_non_finite(
    error: loop.NonFiniteLoss, corpus: Corpus, folder: RunFolder, began_step: int, began: Position
) -> str:
    taken = error.step - 1 - began_step
    _, _, step = next(islice(planned_steps(corpus.plan, began), taken, None))
    names = ", ".join(f"'{corpus.manifest.ids[row]}'" for row in step.utterances[:32])
    epoch = step.position.epoch + 1
    return (
        f"the loss or its gradient was not finite at step {error.step} (epoch {epoch}, utterances {names}). "
        f"The checkpoints in {folder.checkpoints} are of earlier steps and intact. Listen to these utterances, and "
        "--resume with a lower --learning-rate or --gradient-clip; or start another run with --precision float32."
    )


def describe_batch(error: loop.StepOutOfMemory, corpus: Corpus) -> str:
    rows, samples, tokens = corpus.plan.shape(error.bucket)
    return (
        f" at step {error.step}, with a batch of {rows} utterances of up to {samples / SAMPLE_RATE_HZ:.1f} s and "
        f"{tokens} tokens (bucket {error.bucket + 1} of {len(corpus.plan.bounds)})"
    )


def explain_out_of_memory(error: tf.errors.ResourceExhaustedError, placement: Placement, batch: str = "") -> str:
    limits = "; ".join(f"{d.name} {d.memory_mib or 'unlimited'} MiB" for d in placement.devices)
    return (
        f"out of memory{batch}: {error.message.splitlines()[0]} (the model is on {placement.routes[0].model}; limits: "
        f"{limits}). --resume with a higher --model-gpu-memory or --data-gpu-memory; or start another run with a lower "
        "--batch-size (and a higher --gradient-accumulation, which keeps the step's size), --max-seconds or "
        "--model-size, or with --precision mixed_bfloat16 or (a voice) --gradient-checkpointing."
    )
