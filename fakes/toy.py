"""A model with nothing beyond what the training step needs, so that tracing it takes a second."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import keras
import tensorflow as tf

from myxtts.batches.pipeline import make_reader
from myxtts.batches.reading import Reader
from myxtts.config.schema import DataConfig
from myxtts.corpus.manifest import Manifest
from myxtts.devicefeed.contract import FeatureExtractor
from myxtts.devicefeed.producer import ProduceFunction, trace_produce
from myxtts.tasks.contract import empty_batch
from myxtts.tasks.layers import sum_over
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
    key = device, produce.func, produce.args, *sorted(produce.keywords.items())
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
