"""One run in five moves: devices, corpus, state, feed, loop."""

import logging
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.clock import Clock
from myxtts.config.load import dump
from myxtts.config.schema import Config
from myxtts.config.settings import SETTINGS
from myxtts.data.corpora import Corpus, load_corpora
from myxtts.data.manifest import Tables
from myxtts.data.pipeline import Pipeline
from myxtts.data.planned import Position
from myxtts.errors import ConfigError, PlacementError, TrainingError
from myxtts.models.build import build_xtts
from myxtts.models.layers import parameter_count
from myxtts.models.xtts import SIZES
from myxtts.observe.advice import LongWait
from myxtts.observe.html import write_report
from myxtts.observe.report import Reporter
from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Placement, plan_routes
from myxtts.training import loop, schedule
from myxtts.training.base import Base, inherit, known_tables, read_base, refuse_useless_freeze, start_from
from myxtts.training.checkpoint import Checkpoints, latest, read_about, restore
from myxtts.training.run_folder import RunFolder, refuse_other_corpus, refuse_other_settings
from myxtts.training.samples import Samples
from myxtts.training.state import TrainingState, make_optimizer
from myxtts.training.step import Step
from myxtts.training.stop import stop_on_signals
from myxtts.training.trained import manner_of
from myxtts.training.validate import Validation

log = logging.getLogger(__name__)


def train(config: Config) -> int:
    """Train as the configuration says; gives the exit code.

    Raises:
        UserError: something that the user can mend.
    """
    started_s = time.perf_counter()
    run = config.run
    folder = RunFolder(Path(run.runs_dir) / run.run)
    folder.refuse_existing(run.resume)
    refuse_useless_freeze(config, SETTINGS["freeze"].choices)
    config, start = find_start(config, folder)
    placement = configure_devices(config)
    try:
        return train_on(placement, config, folder, start, started_s)
    except tf.errors.ResourceExhaustedError as error:
        raise TrainingError(explain_out_of_memory(error, placement)) from error


@dataclass(frozen=True)
class Start:
    """Where a run's first weights come from: its own checkpoint, the base, or the seed where there is neither.

    Attributes:
        known: rows that its tables begin with.
        ancestor: what its checkpoints keep of its base.
    """

    checkpoint: Path | None = None
    base: Base | None = None
    known: Tables | None = None
    ancestor: dict[str, Any] | None = None


def find_start(config: Config, folder: RunFolder) -> tuple[Config, Start]:
    """The start of a run, and its settings with those that a base fixes.

    Reads no corpus, so a mistake is found at once; and no base where the run has a checkpoint of its own.
    """
    training = config.training
    checkpoint = latest(folder.checkpoints) if config.run.resume else None
    base = None
    if training.init_from is not None:
        base = None if checkpoint else read_base(Path(training.init_from), folder.path)
        config = inherit(config, base.checkpoint if base else checkpoint)
    if checkpoint is not None:
        about = read_about(checkpoint)
        refuse_other_settings(checkpoint, about["settings"], config.model_dump(mode="json"))
        return config, Start(checkpoint, None, known_tables(about), about.get("ancestor"))
    return config, Start(None, base, base.tables, base.ancestor()) if base else Start()


def train_on(placement: Placement, config: Config, folder: RunFolder, start: Start, started_s: float) -> int:
    """Corpus, state, feed and loop, on devices that are set up."""
    run, data, training = config.run, config.data, config.training
    route = placement.routes[0]
    with ExitStack() as opened:
        corpus, held_out, tables = load_corpora(
            data, training.seed, training.gradient_accumulation, folder.path, start.known
        )
        refuse_missing_validation(config, corpus, held_out)
        opened.enter_context(folder.locked())

        state = build_state(config, tables, route.model, start.base)
        about = about_run(config, corpus, tables, start.ancestor)
        if start.checkpoint is not None:
            refuse_other_corpus(start.checkpoint, about)
            restore(start.checkpoint, state)
            log.info("resumed        %s", start.checkpoint)
        elif start.base is not None:
            log.info("start          %s", start.base.describe(tables))
        plan = make_schedule(config, corpus)
        describe(config, corpus, held_out, tables, state, plan)
        if state.step >= plan.total_steps:
            log.info("nothing to do: run %s has its %d steps; --max-steps makes it longer", run.run, state.step)
            return 0
        folder.write_config(dump(config))

        step = make_step(config, state)
        reporter = opened.enter_context(Reporter(folder.metrics, folder.tensorboard, state.step, plan.total_steps))
        dual = route.data != route.model
        long_wait = LongWait(state.step, data, not dual, config.placement.simulate_gpus or devices.gpu_count())

        def report(state: TrainingState, metrics: dict[str, float | str]) -> None:
            reporter.write(state.step, metrics)
            long_wait(state.step, metrics)

        checkpoints = Checkpoints(folder.checkpoints, run.keep_checkpoints, about)
        actions = loop.Actions(
            first_step=FirstStep(route.model, started_s),
            report=report,
            save=checkpoints.save,
            improves=checkpoints.improves,
            **held_out_actions(config, held_out, state, route, folder, reporter),
        )
        # Between two devices the hand-over waits for what was produced in any case; settling tells the two apart.
        pipeline = Pipeline(corpus, route, data, training.seed, folder.path, data.voice_augmentation, settle=dual)
        feed = opened.enter_context(pipeline.open_feed(state.position))
        stop = opened.enter_context(stop_on_signals())
        log.info("feed           filled in %.1f s", feed.wait_until_full(data.model_start_delay))
        periods = loop.Periods(run.log_every, run.validate_every, run.sample_every, run.checkpoint_every)
        try:
            loop.train(state, step, feed, plan, periods, actions, Clock(), stop)
        except loop.NonFiniteLoss as error:
            raise TrainingError(explain_non_finite(error, corpus, folder)) from error
        except loop.StepOutOfMemory as error:
            batch = describe_batch(error, corpus)
            raise TrainingError(explain_out_of_memory(error.cause, placement, batch)) from error
    log.info("traces         %d of the training step", step.traces)
    log.info("report         %s", write_report(folder.path))
    if stop.signal is not None:
        log.info("stopped by %s at step %d, after a checkpoint; --resume goes on", stop.name, state.step)
    return stop.exit_code


def configure_devices(config: Config) -> Placement:
    placement = plan_routes(config.placement, devices.gpu_count())
    if len(placement.routes) > 1:
        raise PlacementError(
            f"{len(placement.routes)} replicas were asked for ({placement.name}); this version trains one. "
            "Give one GPU by --model-gpu or --model-gpus."
        )
    devices.configure(placement)
    if config.training.deterministic:
        tf.config.experimental.enable_op_determinism()
    return placement


def refuse_missing_validation(config: Config, corpus: Corpus, held_out: Corpus | None) -> None:
    run = config.run
    if held_out is None and (run.validate_every or run.sample_every):
        raise ConfigError(
            f"validation and samples were asked for, but none of the {len(corpus.manifest)} utterances is held out "
            f"(validation_share is {config.data.validation_share}). Give --val-data or a larger --validation-share, or "
            "turn them off by --validate-every 0 --sample-every 0."
        )


def build_state(config: Config, tables: Tables, device: str, base: Base | None = None) -> TrainingState:
    """The model with its first weights, of its base where it has one, its optimizer and averages, all on a device."""
    model, training = config.model, config.training
    keras.utils.set_random_seed(training.seed)
    with tf.device(device):
        network = build_xtts(
            model.model_size,
            len(tables.symbols),
            len(tables.languages),
            training.precision,
            dropout=model.dropout,
            reference_dropout=model.reference_dropout,
            condition_dropout=model.condition_dropout,
            segment_frames=round(model.segment_seconds * SAMPLE_RATE_HZ / HOP_SAMPLES),
            recompute=model.recompute_activations,
        )
        if base is not None:
            start_from(base, network, tables, training.freeze)
        optimizer = make_optimizer(training.weight_decay, training.precision)
        return TrainingState(network, optimizer, averaged=training.ema > 0, device=device, frozen=training.freeze)


def make_step(config: Config, state: TrainingState) -> Step:
    training = config.training
    return Step(
        state,
        training.gradient_clip,
        training.gradient_accumulation,
        config.data.enable_static_shapes,
        compile_xla=training.compile == "xla",
    )


def about_run(config: Config, corpus: Corpus, tables: Tables, ancestor: dict[str, Any] | None = None) -> dict:
    """What a checkpoint keeps beside the weights: enough to resume, to speak and to merge."""
    return {
        "settings": config.model_dump(mode="json"),
        "symbols": tables.symbols.to_list(),
        "languages": tables.languages,
        "speakers": tables.speakers,
        "corpus": corpus.manifest.fingerprint,
        "ancestor": ancestor,
    }


def make_schedule(config: Config, corpus: Corpus) -> loop.Schedule:
    training = config.training
    total = schedule.total_steps(training.max_steps, training.epochs, corpus.plan.steps_per_epoch)
    return loop.Schedule(
        total_steps=total,
        learning_rate=lambda step: schedule.learning_rate(
            step, total, training.learning_rate, training.warmup_steps, training.final_learning_rate
        ),
        ema_decay=lambda step: schedule.ema_decay(step, training.ema),
    )


def held_out_actions(config, held_out, state, route, folder, reporter) -> dict:
    """Validation and samples: what the loop does with held-out utterances."""
    if held_out is None or not (config.run.validate_every or config.run.sample_every):
        return {"validate": None, "sample": None}  # neither is ever due
    pipeline = Pipeline(held_out, route, config.data, config.training.seed, folder.path)
    validation = Validation(state.model, lambda: pipeline.open_feed(Position(), epochs=1, mean_over="epoch"))
    with pipeline.open_feed(Position(), epochs=1) as feed:
        planned, batch, _ = next(feed)
    names = [held_out.manifest.ids[row] for row in planned.rows]
    texts = [held_out.manifest.texts[row] for row in planned.rows]
    manner = manner_of(config.model)
    samples = Samples(folder.samples, batch, names, texts, manner, reporter.tensorboard)

    def sample(state: TrainingState) -> None:
        samples(state)
        write_report(folder.path)

    return {"validate": validation, "sample": sample}


class FirstStep:
    """Looks at the devices of the first step, and says how long it took to get there."""

    def __init__(self, device: str, started_s: float):
        self._device = device
        self._started_s = started_s

    def __call__(self, state: TrainingState, batches, outcome: tf.Tensor) -> None:
        """Raises PlacementError where a tensor or variable is not on the model device."""
        named = [("losses", outcome), *((v.path, v) for v in state.optimizer.variables)]
        for delivery in batches:
            named += delivery.batch.items()
        require_device(self._device, named)
        outcome.numpy()
        log.info("first step     %.1f s after the start", time.perf_counter() - self._started_s)


def describe(config, corpus, held_out, tables, state, plan) -> None:
    """Every derived number of the run, by name."""
    training, data, size = config.training, config.data, config.model.model_size
    samples = corpus.manifest.samples
    audio_s = float(samples.sum(dtype=np.int64)) / SAMPLE_RATE_HZ
    steps = corpus.plan.steps_per_epoch
    sizes = corpus.plan.batch_sizes
    rows = f"{sizes.min()} to {sizes.max()}" if data.batch_seconds else data.batch_size
    peak = plan.learning_rate(max(min(training.warmup_steps, plan.total_steps) - 1, 0))
    held = f", {len(held_out.manifest)} held out" if held_out else ""
    lines = {
        "corpus": f"{len(samples)} utterances{held}, {audio_s / 60:.1f} min, {len(tables.speakers)} speakers, "
        f"{len(tables.symbols)} symbols, languages {' '.join(tables.languages)}",
        "buckets": " ".join(f"{bound / SAMPLE_RATE_HZ:.2f}" for bound in corpus.plan.bounds) + " s",
        "padding": f"{100 * corpus.plan.padding:.1f} %",
        "model": f"{size}, {parameter_count(state.model):,} parameters, {training.precision}: "
        + ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in asdict(SIZES[size]).items()),
        "step": f"{len(samples) / steps:.1f} utterances and {audio_s / steps:.1f} audio seconds "
        f"in {training.gradient_accumulation} x {rows} rows",
        "learning rate": f"{plan.learning_rate(0):.2g} at first, {peak:.2g} at most, "
        f"{plan.learning_rate(plan.total_steps - 1):.2g} at the end",
        "length": f"{plan.total_steps} steps of {steps} an epoch ({plan.total_steps / steps:.1f} epochs), "
        f"from step {state.step}",
    }
    for name, text in lines.items():
        log.info("%-14s %s", name, text)


def explain_non_finite(error: loop.NonFiniteLoss, corpus: Corpus, folder: RunFolder) -> str:
    epoch, step = divmod(error.step - 1, corpus.plan.steps_per_epoch)
    rows = corpus.plan.epoch(epoch).utterances(step)
    names = ", ".join(f"'{corpus.manifest.ids[row]}'" for row in rows[:32])
    return (
        f"the loss or its gradient was not finite at step {error.step} (epoch {epoch + 1}, utterances {names}). "
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
        "--model-size, or with --recompute-activations or --precision mixed_bfloat16."
    )
