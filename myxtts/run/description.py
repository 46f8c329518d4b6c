"""What a run says of itself: at its start, in run.json, and when training cannot go on.

What comes in is a run that was set up, or an error of its loop. In the main thread, the numbers
that follow from the settings become lines of the log and the content of run.json. Errors that the
device or the loop raised become messages that say at which utterances or batch, and which flags
help. Nothing here changes a run.
"""

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

from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import OutOfMemory, TrainingError, lacking_memory
from myxtts.batches.corpora import Corpus, batch_exceeds_corpus_warning
from myxtts.batches.plan import Plan, planned_steps
from myxtts.config.checks import inactive_settings
from myxtts.config.flags import values_of
from myxtts.config.schema import TrainingConfig, flag_of
from myxtts.corpus.ancestry import read_ancestry
from myxtts.devicefeed.handover import HANDED_OVER_AHEAD
from myxtts.placement.devices import describe
from myxtts.run.loop import NonFiniteLoss, StepOutOfMemory
from myxtts.run.setup import OpenRun, TrainingSetup
from myxtts.tasks.layers import parameter_count
from myxtts.text import normalisers
from myxtts.text.readers import reader_of

SOURCE_TREE = Path(__file__).parents[2]
GIT_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


def log_start(setup: TrainingSetup) -> None:
    """Log where the weights come from, and the derived numbers of the run."""
    start, config, corpus = setup.run.start, setup.config, setup.corpora.training
    if start.resumed is not None:
        log.info("resumed        %s", start.resumed.checkpoint.path)
    elif config.run.resume:
        folder = start.folder.path
        log.info("new run        --resume finds no checkpoint in %s: training starts", folder)
    if start.pretrained is not None:
        log.info("start          %s", start.pretrained.describe(setup.corpora.vocabulary))
    if setup.replicas.is_chief:
        warnings = (
            batch_exceeds_corpus_warning(corpus),
            segment_exceeds_utterances_warning(setup.task.segment_s(config), corpus),
        )
        for warning in filter(None, warnings):
            log.warning("%s", warning)
        for name, text in derived_numbers(setup).items():
            log.info("%-14s %s", name, text)


def derived_numbers(setup: TrainingSetup) -> dict[str, str]:
    """Return the numbers that follow from the settings and the corpus, as lines of the log."""
    config, state, schedule = setup.config, setup.state, setup.schedule
    training, plan = config.training, setup.corpora.training.plan
    total, steps = schedule.total_steps, plan.steps_per_epoch
    precision: str = training.precision
    if not training.tf32:
        precision += " without TF32"
    peak = schedule.learning_rate(max(min(training.warmup_steps, total) - 1, 0))
    # The batches in flight: one is about to enter the feed, a step takes its microbatches, and
    # further ones are handed over ahead. They leave the data device as soon as they are copied.
    in_flight = training.gradient_accumulation + HANDED_OVER_AHEAD + 1
    on_model = 1 + HANDED_OVER_AHEAD
    depth = config.data.prefetch_buffer_size
    scaling = ""
    if (replicas := setup.replicas.count) > 1:
        scaling = f" (not scaled for {replicas} replicas: --scale-learning-rate)"
        if training.scale_learning_rate:
            scaling = f" (scaled for {replicas} replicas)"
    return {
        "corpus": _describe_corpora(setup),
        "buckets": " ".join(f"{bound / sample_rate_hz():.2f}" for bound in plan.bounds) + " s",
        "padding": f"{100 * plan.padding:.1f} %",
        "model": (
            f"{setup.task.describe(config)}, {parameter_count(state.model):,} parameters,"
            f" {precision} on {' and '.join(setup.replicas.devices)}"
        ),
        **setup.implementation_notes,
        "step": _describe_step(setup),
        "host memory": f"about {setup.memory}",
        "learning rate": (
            f"{schedule.learning_rate(0):.2g} at first, {peak:.2g} at most, "
            f"{schedule.learning_rate(total - 1):.2g} at the end{scaling}"
        ),
        "length": (
            f"{total} steps of {steps} an epoch ({total / steps:.1f} epochs), from step"
            f" {state.step} until {ending_setting(training, total)}"
        ),
        "buffers": (
            f"host {config.data.buffer_size} (--buffer-size); data device {depth} audio + {depth}"
            f" features (--prefetch-buffer-size) + {in_flight} in flight; model device {on_model}"
        ),
    }


def _describe_corpora(setup: TrainingSetup) -> str:
    corpora, vocabulary = setup.corpora, setup.corpora.vocabulary
    samples = corpora.training.manifest.samples
    parts = [f"{len(samples)} utterances"]
    if corpora.held_out:
        parts.append(f"{len(corpora.held_out.manifest)} held out")
    parts.append(f"{float(samples.sum(dtype=np.int64)) / sample_rate_hz() / 60:.1f} min")
    count = len(vocabulary.speakers)
    parts.append("1 speaker" if count == 1 else f"{count} speakers")
    if vocabulary.symbols.symbols:
        languages = " ".join(vocabulary.languages)
        parts += [f"{len(vocabulary.symbols)} symbols", f"languages {languages}"]
    return ", ".join(parts)


def _describe_step(setup: TrainingSetup) -> str:
    """Describe the size of a step: `51.2 utterances and 204.3 audio seconds in 1 x 64 rows`."""
    plan, replicas = setup.corpora.training.plan, setup.replicas.count
    samples = setup.corpora.training.manifest.samples
    utterances = len(samples) / plan.steps_per_epoch
    audio_s = float(samples.sum(dtype=np.int64)) / sample_rate_hz() / plan.steps_per_epoch
    share, rows, of_each = "", plan.describe_rows(), ""
    if not plan.shares and replicas > 1:
        share, rows = f"{replicas} replicas x ", rows.partition(" + ")[0]
        of_each = " (--batch-size is of each replica)"
    elif replicas > 1:
        rows = f"({rows})"
    accumulation = setup.config.training.gradient_accumulation
    seconds = setup.task.segment_s(setup.config)
    segments = ""
    if seconds is not None:
        segments = f", of each utterance a segment of {seconds:g} s"
    return (
        f"{utterances:.1f} utterances and {audio_s:.1f} audio seconds in {share}{accumulation} x"
        f" {rows} rows{of_each}{segments}"
    )


def segment_exceeds_utterances_warning(segment_s: float | None, corpus: Corpus) -> str:
    """Return a warning if most utterances are shorter than the segments of the task, else ""."""
    median_s = float(np.median(corpus.manifest.samples)) / sample_rate_hz()
    if segment_s is None or segment_s <= median_s:
        return ""
    return (
        f"each step takes segments of {segment_s:g} s, but half of the utterances are shorter than"
        f" {median_s:.2g} s. Lower --vocoder-segment-seconds."
    )


def ending_setting(training: TrainingConfig, total_steps: int) -> str:
    """Return the setting that ends a run of `total_steps` steps, as a flag with its value."""
    if training.stop_at_step == total_steps:
        return f"--stop-at-step {total_steps}"
    if training.max_steps == total_steps:
        return f"--max-steps {total_steps}"
    return f"--epochs {training.epochs}"


def describe_run(setup: TrainingSetup) -> dict[str, Any]:
    """Return the content of run.json."""
    config, plan, replicas = setup.config, setup.corpora.training.plan, setup.replicas
    placement_line, *devices = (" ".join(line.split()) for line in describe(setup.run.placement))
    buckets = []
    for bound, rows, utterances, padding in plan.buckets:
        seconds = bound / sample_rate_hz()
        buckets.append(dict(seconds=seconds, rows=rows, utterances=utterances, padding=padding))
    return {
        "task": f"{config.model.task} {config.model.model_size}",
        "placement": placement_line.removeprefix("placement "),
        "devices": [line.removeprefix("device ").removeprefix("route ") for line in devices],
        "routes": [[list(route.data_devices), route.model] for route in replicas.routes],
        "first_replica": replicas.first,
        "total_steps": setup.schedule.total_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "utterances": len(plan.samples),
        "ancestry": read_ancestry(config.data.train_data),
        "numbers": derived_numbers(setup),
        "buckets": buckets,
        "versions": {
            "Python": platform.python_version(),
            "TensorFlow": tf.__version__,
            "Keras": keras.__version__,
            "NumPy": np.__version__,
            **text_versions(setup),
        },
        "commit": source_commit(),
        "host": socket.gethostname(),
        "started": time.time(),
    }


def text_versions(setup: TrainingSetup) -> dict[str, str]:
    """Return the versions of the libraries that read the texts of a run."""
    data, corpora = setup.config.data, setup.corpora
    reader = reader_of(data.text_frontend)
    if not corpora.vocabulary.symbols.symbols or not reader.package:
        return {}
    libraries = {}
    if reader.normalises and data.text_normaliser != "none":
        libraries = normalisers.installed_versions(corpora.vocabulary.languages)
    return {reader.package: reader.version, **libraries}


def source_commit(root: Path = SOURCE_TREE) -> str:
    """Return the commit of a git checkout, with `-dirty` for changed files; "" if unknown."""
    # An installed package may lie within the checkout of another project.
    if not (root / ".git").exists():
        return ""
    flags = ("--always", "--dirty", "--abbrev=12", "--exclude", "*")
    command = ["git", "-C", str(root), "describe", *flags]
    try:
        git = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return git.stdout.strip()


@contextmanager
def translate_training_errors(setup: TrainingSetup) -> Iterator[None]:
    """Raise errors of the loop as a TrainingError that names the utterances, and what to do."""
    corpus = setup.corpora.training
    # The loop knows the number of the step at fault. Its utterances are found by following the plan
    # from a step whose position is known, which needs steps without a gap.
    began_step, began = setup.state.session_start
    try:
        yield
    except NonFiniteLoss as error:
        _, step = next(islice(planned_steps(corpus.plan, began), error.step - 1 - began_step, None))
        names = ", ".join(f"'{corpus.manifest.ids[row]}'" for row in step.utterances[:32])
        raise TrainingError(
            f"the loss or its gradient was not finite at step {error.step} (epoch"
            f" {step.position.epoch + 1}, utterances {names}). Listen to these. Earlier checkpoints"
            " are intact: resume with --resume and a lower --learning-rate or --gradient-clip, or"
            " start another run with --precision float32."
        ) from error
    except tf.errors.ResourceExhaustedError as error:
        batch = ""
        if isinstance(error, StepOutOfMemory):
            batch = describe_batch(corpus.plan, error.step, error.bucket)
        raise out_of_memory(error, setup.run, batch, setup.state.step > 0) from error


@contextmanager
def translate_oom(run: OpenRun) -> Iterator[None]:
    """Raise an out-of-memory error as an OutOfMemory error with the limits and what to do."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise out_of_memory(error, run, is_saved=run.start.resumed is not None) from error


def describe_batch(plan: Plan, step: int, bucket: int) -> str:
    """Return the step and shape of a batch that did not fit, as a part of a message."""
    rows, samples, tokens = plan.shape(bucket)
    return (
        f" at step {step}, with a batch of {rows} utterances of up to"
        f" {samples / sample_rate_hz():.1f} s and {tokens} tokens (bucket {bucket + 1} of"
        f" {len(plan.bounds)})"
    )


# The message lists what lowers the need for memory, as far as the task has such settings and the
# user has not chosen them already. A higher limit comes first, if the devices have limits.
def out_of_memory(
    error: tf.errors.ResourceExhaustedError, run: OpenRun, batch: str = "", is_saved: bool = False
) -> OutOfMemory:
    """Return the error with the flags that help; `batch` is a result of `describe_batch`."""
    placement, training = run.placement, run.config.training
    inactive = {setting.name for setting in inactive_settings(values_of(run.config))}
    lower = ["batch_size", "max_seconds", "vocoder_segment_seconds", "model_size"]
    lower = [flag_of(name) for name in lower if name not in inactive]
    ways = [f"a lower {', '.join(lower[:-1])} or {lower[-1]}"]
    if training.precision == "float32":
        ways.append("--precision mixed_bfloat16")
    if not (run.config.model.gradient_checkpointing or "gradient_checkpointing" in inactive):
        ways.append("--gradient-checkpointing")
    remedy = f"start another run with {', or '.join(ways)}."
    limits = [f"{d.name} {d.memory_mib} MiB" for d in placement.devices if d.memory_mib]
    if limits:
        higher = "a higher --model-gpu-memory or --data-gpu-memory"
        begin = "resume" if is_saved else "start again"
        remedy = f"{begin} with {higher}; or {remedy}"
    shares = ""
    if len(placement.routes) > 1:
        shares = " Give a GPU of less memory a smaller share with --batch-shares."
    where = "; limits: ".join(filter(None, (placement.routes[0].model, "; ".join(limits))))
    return OutOfMemory(
        f"out of memory{batch}: {lacking_memory(error)} (the model is on {where})."
        f" {remedy.capitalize()}{shares}"
    )


def describe_fill(ready: int, depth: int, waited_s: float, timeout_s: float) -> str:
    """Describe how many of `depth` batches are ready after a wait for all of them."""
    if ready == depth:
        return f"filled in {waited_s:.1f} s"
    text = f"{ready} of {depth} batches after {waited_s:.1f} s"
    if waited_s >= timeout_s:
        text += " (--model-start-delay)"
    return text
