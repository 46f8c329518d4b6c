"""A model with nothing beyond what the training step needs, so that tracing it takes a second."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import sample_rate_hz
from myxtts.batches.pipeline import make_reader
from myxtts.batches.reading import Reader
from myxtts.config.schema import Config, DataConfig
from myxtts.corpus.manifest import Manifest, Vocabulary
from myxtts.devicefeed.contract import FeatureExtractor
from myxtts.devicefeed.producer import ProduceFunction, trace_produce
from myxtts.placement.replicas import Replicas
from myxtts.run.setup import build_state, make_step
from myxtts.run.state import TrainingState
from myxtts.run.step import Controls, Step
from myxtts.run.warm_start import Pretrained
from myxtts.tasks.contract import empty_batch
from myxtts.tasks.layers import sum_over
from myxtts.tasks.tts import task
from myxtts.tasks.tts.contract import TTS_FEATURES


class Toy(keras.Model):
    """Text → one frame."""

    LOSS_NAMES = ("mel", "duration")
    BATCH_FIELDS = TTS_FEATURES

    def __init__(self, symbols: int):
        super().__init__(name="toy", autocast=False)
        self.embedding = keras.layers.Embedding(symbols, 80, name="embedding")
        self.dense = keras.layers.Dense(80, name="dense")

    def call(self, batch, training=False):
        length = tf.shape(batch["tokens"])[1]
        real_token = tf.sequence_mask(batch["token_count"], length, tf.float32)[:, :, None]
        embedded = tf.cast(self.embedding(batch["tokens"]), tf.float32)
        text = sum_over(embedded * real_token, [1])
        frame = tf.cast(self.dense(text), tf.float32)[:, None, :]
        real = tf.sequence_mask(batch["frames"], tf.shape(batch["mel"])[1], tf.float32)[:, :, None]
        losses = {
            "mel": tf.reduce_sum(tf.square(frame - batch["mel"]) * real) / batch["step_frames"],
            "duration": tf.reduce_sum(tf.square(text)) / batch["step_tokens"],
        }
        return losses, {}


def build_toy(
    size: str, symbols: int, languages: int, precision: str = "float32", **settings
) -> Toy:
    """Replace `build_xtts`."""
    policy_before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        toy = Toy(symbols)
        toy(empty_batch(TTS_FEATURES))
    finally:
        keras.config.set_dtype_policy(policy_before)
    return toy


@contextmanager
def shared_traces() -> Iterator[None]:
    """Let runs share the functions of producers and readers: `traced_once`, `read_by_one`."""
    with (
        mock.patch("myxtts.devicefeed.producer.trace_produce", traced_once),
        mock.patch("myxtts.batches.pipeline.make_reader", read_by_one),
    ):
        yield


def traced_once(device: str, extractor: FeatureExtractor) -> ProduceFunction:
    """Return `trace_produce`, cached unless the extractor has a frozen network."""
    if extractor.load_frozen is not None:
        return trace_produce(device, extractor)
    produce = partial(extractor.produce)
    of_task = produce.func, produce.args, *sorted(produce.keywords.items())
    key = device, sample_rate_hz(), *of_task
    if key not in _TRACES:
        _TRACES[key] = trace_produce(device, extractor)
    return _TRACES[key]


def read_by_one(
    manifest: Manifest, fields: dict, reference_samples: int, data: DataConfig, cache_folder: Path
) -> Reader:
    """Return `make_reader`, with the function of the first reader of the same files."""
    reader = make_reader(manifest, fields, reference_samples, data, cache_folder)
    if not data.cache_dataset:
        columns = manifest.samples.tobytes(), manifest.native.tobytes(), data.use_tf_native_loading
        key = manifest.paths, *columns, *fields.items(), reference_samples
        uploader = reader.uploader
        uploader.read_on_host = _READ_ON_HOST.setdefault(key, uploader.read_on_host)
    return reader


_TRACES: dict[tuple, ProduceFunction] = {}
_READ_ON_HOST: dict[tuple, Callable] = {}


class SharedState(NamedTuple):
    """A state that no run changes but for its variables, their first values, and its step."""

    of_step: tuple  # the settings of the step
    state: TrainingState
    values: list[np.ndarray]
    step: Step


@contextmanager
def shared_steps() -> Iterator[None]:
    """Let runs of the toy on one device share its variables, and so the traced step: half of the
    time of a run. Each run begins with the first values. What a test patches in the optimizer or
    the step has no effect once the step is traced.
    """
    with (
        mock.patch("myxtts.run.setup.build_state", state_once),
        mock.patch("myxtts.run.setup.make_step", step_once),
    ):
        yield


def state_once(
    config: Config,
    vocabulary: Vocabulary,
    replicas: Replicas,
    pretrained: Pretrained | None = None,
    weights: Collection[str] = (),
) -> TrainingState:
    """Return `build_state`, cached for one replica and weights of its own."""
    if replicas.count > 1 or pretrained is not None or config.model.task != "tts":
        return build_state(config, vocabulary, replicas, pretrained, weights)
    training = config.training
    of_state = training.seed, training.precision, training.weight_decay, training.ema_decay > 0
    of_step = _step_settings(config)
    symbols = len(vocabulary.symbols)
    # Tests may replace the functions.
    key = of_state, of_step, training.freeze, symbols, replicas.device, Toy.call, task.build_xtts
    if key not in _STATES:
        state = build_state(config, vocabulary, replicas)
        step = make_step(config, state)
        values = [v.numpy() for v in _variables(state, step)]
        _STATES[key] = SharedState(of_step, state, values, step)
    shared = _STATES[key]
    for variable, value in zip(_variables(shared.state, shared.step), shared.values, strict=True):
        variable.assign(value)
    keras.utils.set_random_seed(training.seed)
    state = copy(shared.state)
    state.replicas = replace(replicas, strategy=shared.state.replicas.strategy)
    return state


def step_once(config: Config, state: TrainingState) -> Step:
    """Return `make_step`, with the functions of the first one of a shared state and settings."""
    for shared in _STATES.values():
        if shared.state.model is state.model and shared.of_step == _step_settings(config):
            step = copy(shared.step)
            step._state, step._controls, step._traced = state, Controls(state.device), {}
            return step
    return make_step(config, state)


def _step_settings(config: Config) -> tuple:
    training, data = config.training, config.data
    of_training = training.gradient_clip, training.gradient_accumulation, training.compile
    return *of_training, data.enable_static_shapes, data.batch_shares


def _variables(state: TrainingState, step: Step) -> list:
    of_step = [step._updating, step._outcome, *step._sums]
    if step._idle_s is not None:
        of_step.append(step._idle_s)
    counters = state.bad_step, state.skipped_updates
    of_state = [*state.model.variables, *state.optimizer.variables, *state.averages]
    return [*of_state, *counters, *of_step]


_STATES: dict[tuple, SharedState] = {}
