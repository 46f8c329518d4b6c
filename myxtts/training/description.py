"""What a run says of itself: at its start, in run.json, and when training cannot go on."""

import logging
import platform
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import Config, TrainingConfig
from myxtts.data.batch_plan import Position, planned_steps
from myxtts.data.dataset import Corpus, batch_exceeds_corpus_warning
from myxtts.errors import TrainingError
from myxtts.models.layers import parameter_count, weight_count
from myxtts.placement.devices import describe
from myxtts.placement.routes import Placement
from myxtts.tasks.registry import task_of
from myxtts.training.loop import NonFiniteLoss, StepOutOfMemory
from myxtts.training.setup import RunCorpora, TrainingSetup
from myxtts.training.state import TrainingState

SOURCE_TREE = Path(__file__).parents[2]
GIT_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


def log_start(setup: TrainingSetup) -> None:
    """Log where the weights come from, and the derived numbers of the run."""
    start = setup.run.start
    if start.resumed is not None:
        log.info("resumed        %s", start.resumed.checkpoint.path)
    elif setup.config.run.resume:
        folder = Path(setup.config.run.runs_dir, setup.config.run.run)
        log.info(
            "new run        --resume finds no checkpoint in %s, so training starts at step 0",
            folder,
        )
    if start.pretrained is not None:
        groups = [group.name for group in setup.state.groups[1:]]
        log.info("start          %s", start.pretrained.describe(setup.corpora.vocabulary, groups))
    if setup.replicas.is_chief:
        if small := batch_exceeds_corpus_warning(setup.corpora.training):
            log.warning("%s", small)
        if long := segment_exceeds_utterances_warning(setup.config, setup.corpora.training):
            log.warning("%s", long)
        for name, text in derived_numbers(setup).items():
            log.info("%-14s %s", name, text)


def derived_numbers(setup: TrainingSetup) -> dict[str, str]:
    """Return the numbers that follow from the settings and the corpus, as lines of the log."""
    config, schedule, plan = setup.config, setup.schedule, setup.corpora.training.plan
    training, total = config.training, schedule.total_steps
    precision = training.precision if training.tf32 else f"{training.precision} without TF32"
    peak = schedule.learning_rate(max(min(training.warmup_steps, total) - 1, 0))
    steps = plan.steps_per_epoch
    return {
        "corpus": _describe_corpora(setup.corpora),
        "buckets": " ".join(f"{bound / SAMPLE_RATE_HZ:.2f}" for bound in plan.bounds) + " s",
        "padding": f"{100 * plan.padding:.1f} %",
        "model": (
            f"{task_of(config).describe(config)}, {parameters_line(setup.state)}, {precision}"
        ),
        **setup.implementation_notes,
        "step": _describe_step(setup),
        "host memory": f"about {setup.memory}",
        "learning rate": (
            f"{schedule.learning_rate(0):.2g} at first, {peak:.2g} at most, "
            f"{schedule.learning_rate(total - 1):.2g} at the end"
        ),
        "length": (
            f"{total} steps of {steps} an epoch ({total / steps:.1f} epochs), from step"
            f" {setup.state.step} until {ending_setting(training, total)}"
        ),
        "buffers": _describe_buffers(config),
    }


def _describe_corpora(corpora: RunCorpora) -> str:
    samples, vocabulary = corpora.training.manifest.samples, corpora.vocabulary
    minutes = float(samples.sum(dtype=np.int64)) / SAMPLE_RATE_HZ / 60
    held_out = f", {len(corpora.held_out.manifest)} held out" if corpora.held_out else ""
    count = len(vocabulary.speakers)
    speakers = "1 speaker" if count == 1 else f"{count} speakers"
    texts = "texts are not used"
    if vocabulary.symbols.symbols:
        languages = " ".join(vocabulary.languages)
        texts = f"{len(vocabulary.symbols)} symbols, languages {languages}"
    return f"{len(samples)} utterances{held_out}, {minutes:.1f} min, {speakers}, {texts}"


def _describe_step(setup: TrainingSetup) -> str:
    """Return the size of a step: `51.2 utterances and 204.3 audio seconds in 1 x 64 rows`."""
    plan, replicas = setup.corpora.training.plan, setup.replicas.count
    samples, sizes = setup.corpora.training.manifest.samples, plan.batch_sizes
    utterances = len(samples) / plan.steps_per_epoch
    audio_s = float(samples.sum(dtype=np.int64)) / SAMPLE_RATE_HZ / plan.steps_per_epoch
    rows = f"{sizes.min()} to {sizes.max()}" if sizes.min() < sizes.max() else f"{sizes.max()}"
    share = ""
    if replicas > 1:
        share = (
            f"{replicas} replicas with {utterances / replicas:.1f} and {audio_s / replicas:.1f},"
            " each "
        )
    accumulation = setup.config.training.gradient_accumulation
    return (
        f"{utterances:.1f} utterances and {audio_s:.1f} audio seconds in {share}{accumulation} x"
        f" {rows} rows{segments_of(setup.config)}"
    )


def _describe_buffers(config: Config) -> str:
    """Return how many batches wait where."""
    data, accumulation = config.data, config.training.gradient_accumulation
    depth = data.prefetch_buffer_size
    # One batch is about to enter the feed. A step takes its microbatches, and the first one of the
    # next step.
    in_flight = accumulation + 2
    on_model = 2 if accumulation == 1 else 3
    return (
        f"host {data.buffer_size} (--buffer-size); data device {depth} audio + {depth} features"
        f" (--prefetch-buffer-size) + {in_flight} in flight; model device {on_model}"
    )


def segments_of(config: Config) -> str:
    """Return what a step takes of each utterance, to be appended to the size of a step; empty for
    whole utterances.
    """
    seconds = task_of(config).segment_s(config)
    return "" if seconds is None else f", of each utterance a segment of {seconds:g} s"


def segment_exceeds_utterances_warning(config: Config, corpus: Corpus) -> str:
    """Return a warning if most utterances are shorter than the segments of the task, else ""."""
    segment_s = task_of(config).segment_s(config)
    median_s = float(np.median(corpus.manifest.samples)) / SAMPLE_RATE_HZ
    if segment_s is None or segment_s <= median_s:
        return ""
    return (
        f"each step takes segments of {segment_s:g} s, but half of the utterances are shorter than"
        f" {median_s:.2g} s, and the rest of their segments is silence. Lower"
        " --vocoder-segment-seconds."
    )


def parameters_line(state: TrainingState) -> str:
    """Return `2,714,305 parameters`, and those of the groups that only training needs."""
    count = parameter_count(state.model)
    further = {group.name: weight_count(group.spec.variables) for group in state.groups[1:]}
    network = f"{count - sum(further.values()):,} parameters"
    return ", ".join([network, *(f"{count:,} of the {name}" for name, count in further.items())])


def ending_setting(training: TrainingConfig, total_steps: int) -> str:
    """Return the setting that ends a run of `total_steps` steps, as a flag with its value."""
    limits = {"--stop-at-step": training.stop_at_step, "--max-steps": training.max_steps}
    by_steps = (f"{flag} {total_steps}" for flag, limit in limits.items() if limit == total_steps)
    return next(by_steps, f"--epochs {training.epochs}")


def describe_run(setup: TrainingSetup) -> dict[str, Any]:
    """Return the content of run.json."""
    config, plan, replicas = setup.config, setup.corpora.training.plan, setup.replicas
    placement_line, *devices = (" ".join(line.split()) for line in describe(setup.run.placement))
    return {
        "task": f"{config.model.task} {config.model.model_size}",
        "placement": placement_line.removeprefix("placement "),
        "devices": [line.removeprefix("device ").removeprefix("route ") for line in devices],
        "routes": [[list(route.data_devices), route.model] for route in replicas.routes],
        "first_replica": replicas.first,
        "total_steps": setup.schedule.total_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "utterances": len(plan.samples),
        "numbers": derived_numbers(setup),
        "buckets": [
            {
                "seconds": bound / SAMPLE_RATE_HZ,
                "rows": rows,
                "utterances": utterances,
                "padding": padding,
            }
            for bound, rows, utterances, padding in plan.buckets
        ],
        "versions": versions(),
        "commit": source_commit(),
        "host": socket.gethostname(),
        "started": time.time(),
    }


def versions() -> dict[str, str]:
    return {
        "Python": platform.python_version(),
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "NumPy": np.__version__,
    }


def source_commit(root: Path = SOURCE_TREE) -> str:
    """Return the commit of a git checkout, with `-dirty` if files were changed.

    Empty for a folder that is no checkout, and where git is missing or takes too long.
    """
    # An installed package may lie within the checkout of another project.
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        git = subprocess.run(
            [*command, "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return git.stdout.strip()


@contextmanager
def translate_training_errors(setup: TrainingSetup) -> Iterator[None]:
    """Raise what ends the loop as a TrainingError that says at which utterances, and what to do."""
    corpus, state = setup.corpora.training, setup.state
    checkpoints = setup.run.start.folder.checkpoints
    try:
        yield
    except NonFiniteLoss as error:
        raise TrainingError(
            explain_non_finite(error, corpus, checkpoints, *state.session_start)
        ) from error
    except StepOutOfMemory as error:
        batch = describe_batch(error, corpus)
        raise TrainingError(
            explain_out_of_memory(error.cause, setup.run.placement, batch)
        ) from error


@contextmanager
def translate_oom(placement: Placement, can_resume: bool = True) -> Iterator[None]:
    """Raise an out-of-memory error as a TrainingError with the limits and what to do."""
    try:
        yield
    except StepOutOfMemory as error:
        raise TrainingError(
            explain_out_of_memory(error.cause, placement, can_resume=can_resume)
        ) from error
    except tf.errors.ResourceExhaustedError as error:
        raise TrainingError(
            explain_out_of_memory(error, placement, can_resume=can_resume)
        ) from error


def explain_non_finite(
    error: NonFiniteLoss, corpus: Corpus, checkpoints: Path, began_step: int, began: Position
) -> str:
    """Return the message of a non-finite loss, with the utterances of its step.

    Args:
        checkpoints: folder of the run's checkpoints.
        began_step, began: a step before it and its position, from which the plan was followed
            without a jump.
    """
    steps = error.step - 1 - began_step
    _, step = next(islice(planned_steps(corpus.plan, began), steps, None))
    names = ", ".join(f"'{corpus.manifest.ids[row]}'" for row in step.utterances[:32])
    epoch = step.position.epoch + 1
    return (
        f"the loss or its gradient was not finite at step {error.step} (epoch {epoch}, utterances"
        f" {names}). The checkpoints in {checkpoints} are of earlier steps and intact. Listen to"
        " these utterances. Resume with --resume and a lower --learning-rate or --gradient-clip,"
        " or start another run with --precision float32."
    )


def describe_batch(error: StepOutOfMemory, corpus: Corpus) -> str:
    """Return the step and shape of the batch that did not fit, as a part of a message."""
    rows, samples, tokens = corpus.plan.shape(error.bucket)
    texts = f" and {tokens} tokens" if tokens else ""
    return (
        f" at step {error.step}, with a batch of {rows} utterances of up to"
        f" {samples / SAMPLE_RATE_HZ:.1f} s{texts} (bucket {error.bucket + 1} of"
        f" {len(corpus.plan.bounds)})"
    )


def explain_out_of_memory(
    error: tf.errors.ResourceExhaustedError,
    placement: Placement,
    batch: str = "",
    can_resume: bool = True,
) -> str:
    """Return the message of an out-of-memory error, with the limits of the devices.

    Args:
        batch: as from `describe_batch`.
        can_resume: the run has a folder to resume from; a profile or a preflight has none.
    """
    again = "Resume with --resume and" if can_resume else "Repeat the command with"
    otherwise = "start another run with" if can_resume else "with"
    limits = "; ".join(f"{d.name} {d.memory_mib or 'unlimited'} MiB" for d in placement.devices)
    return (
        f"out of memory{batch}: {error.message.splitlines()[0]} (the model is on"
        f" {placement.routes[0].model}; limits: {limits}). {again} a higher --model-gpu-memory or"
        f" --data-gpu-memory; or {otherwise} a lower --batch-size (and a higher"
        " --gradient-accumulation, which keeps the step's size), a lower --max-seconds (for a"
        " vocoder --vocoder-segment-seconds) or a smaller --model-size, or with --precision"
        " mixed_bfloat16 or (not for speech recognition) --gradient-checkpointing."
    )
