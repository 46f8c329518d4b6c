"""Stages D and E of a batch's life: features on the data device, handed to the model device."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import tensorflow as tf

from myxtts.audio.format import frame_count
from myxtts.audio.mel import log_mel
from myxtts.batch import FEATURES, TEXT, WAVES, check
from myxtts.data.planned import PlannedBatch
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route


class Delivery(NamedTuple):
    """A batch on the model device, with the plan that it came from."""

    planned: PlannedBatch
    batch: dict[str, tf.Tensor]


def produce(waves: dict) -> dict:
    """WAVES -> FEATURES: PCM to float to log-mel."""
    features = {name: waves[name] for name in TEXT}
    for wave, length, mel, frames in (
        ("pcm", "samples", "mel", "frames"),
        ("reference_pcm", "reference_samples", "reference", "reference_frames"),
    ):
        features[mel] = log_mel(tf.cast(waves[wave], tf.float32) / 32768.0, waves[length])
        features[frames] = frame_count(waves[length])
    return features


def trace_produce(device: str) -> Callable[[dict], dict]:
    """`produce` as a compiled function that runs on a device, traced once with symbolic dimensions.

    Tracing belongs to the main thread; the function that it gives may be called from any.
    """

    def produce_on_device(waves: dict) -> dict:
        with tf.device(device):  # one around the tracing would leave no mark on the operations
            return produce(waves)

    spec = {name: tf.TensorSpec(field.shape, field.dtype, name=name) for name, field in WAVES.items()}
    return tf.function(produce_on_device).get_concrete_function(spec)


def deliveries(
    planned: Iterable[PlannedBatch],
    waves: Iterable[dict],
    route: Route,
    produce_on_device: Callable[[dict], dict],
    explain: Callable[[PlannedBatch, Exception], Exception],
) -> Iterator[Delivery]:
    """Produce each batch and hand it over; runs in the feed's thread.

    Args:
        planned: the plan of each element of `waves`.
        waves: WAVES on the data device.
        route: the devices.
        produce_on_device: what `trace_produce` gives for `route.data`.
        explain: turns TensorFlow's error at a batch into one that names the utterance.

    Raises:
        TypeError, PlacementError: the first batch breaks the contract or is on another device.
    """
    source = iter(waves)
    for number, plan in enumerate(planned):
        try:
            wave = next(source)
        except tf.errors.ResourceExhaustedError:
            raise  # of the data device: no utterance is at fault
        except tf.errors.OpError as error:
            raise explain(plan, error) from error
        with tf.device(route.data):  # decides where results lie; tf.device is per thread
            features = produce_on_device(wave)
        with tf.device(route.model):
            batch = {name: tf.identity(features[name]) for name in FEATURES}
        if number == 0:
            check(wave, WAVES, "reading")
            check(batch, FEATURES, "producing")
            require_device(route.data, wave.items())
            require_device(route.data, features.items())
            require_device(route.model, batch.items())
        yield Delivery(plan, batch)
