"""Stages D and E of a batch's life: features on the data device, handed to the model device."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import tensorflow as tf

from myxtts.audio.format import frame_count
from myxtts.audio.mel import log_mel
from myxtts.audio.pitch import f0
from myxtts.batch import FEATURES, TEXT, WAVES, check
from myxtts.data.planned import PlannedBatch
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route

VOICE_SALT = 1_000_000  # a number that the network, which draws by the same seed, does not use


class Delivery(NamedTuple):
    """A batch on the model device, with the plan that it came from."""

    planned: PlannedBatch
    batch: dict[str, tf.Tensor]


def produce(waves: dict, voice_augmentation: float = 0.0) -> dict:
    """WAVES -> FEATURES: PCM to float to log-mel and F0.

    Args:
        voice_augmentation: x > 0 moves all frequencies of each utterance and of its reference to a times what they
            are, with an a of its own from exp(-x) to exp(x), drawn by the batch's seed.
    """
    target, reference = (tf.cast(waves[name], tf.float32) / 32768.0 for name in ("pcm", "reference_pcm"))
    f0_hz, _ = f0(target, waves["samples"])
    factor = None
    if voice_augmentation:
        factor = _frequency_factor(waves["seed"], tf.shape(target)[0], voice_augmentation)
        f0_hz *= factor[:, None]
    return {name: waves[name] for name in TEXT} | {
        "mel": log_mel(target, waves["samples"], factor),
        "frames": frame_count(waves["samples"]),
        "f0_hz": f0_hz,
        "reference": log_mel(reference, waves["reference_samples"], factor),
        "reference_frames": frame_count(waves["reference_samples"]),
    }


def _frequency_factor(seed, rows, most):
    """float32 [rows], exp of uniform numbers from -most to most."""
    own = tf.random.experimental.stateless_fold_in(seed, VOICE_SALT)
    return tf.exp(tf.random.stateless_uniform([rows], own, -most, most))


def trace_produce(device: str, voice_augmentation: float = 0.0) -> Callable[[dict], dict]:
    """`produce` as a compiled function that runs on a device, traced once with symbolic dimensions.

    Tracing belongs to the main thread; the function that it gives may be called from any.
    """

    def produce_on_device(waves: dict) -> dict:
        with tf.device(device):  # one around the tracing would leave no mark on the operations
            return produce(waves, voice_augmentation)

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
