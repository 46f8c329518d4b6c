"""Stages D and E of a batch's life: features on the data device, handed to the model device."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import MEL_BANDS, frame_count
from myxtts.audio.mel import log_mel, moved_filter_bank
from myxtts.audio.pitch import f0
from myxtts.batch import FEATURES, TEXT, WAVES, check
from myxtts.clock import Times
from myxtts.data.planned import PlannedBatch
from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route
from myxtts.seed import own_seed

CURVES = 9  # cosines over the mel bands, the first of them flat: speakers of a language differ by such curves


class Delivery(NamedTuple):
    """A batch on the model device, with the plan that it came from."""

    planned: PlannedBatch
    batch: dict[str, tf.Tensor]
    times: Times


def produce(waves: dict, voice_augmentation: float = 0.0) -> dict:
    """WAVES -> FEATURES: PCM to float to log-mel and F0.

    Args:
        voice_augmentation: see `other_voices`; 0 is off.
    """
    target, reference = (tf.cast(waves[name], tf.float32) / 32768.0 for name in ("pcm", "reference_pcm"))
    f0_hz, _ = f0(target, waves["samples"])
    filters = None
    if voice_augmentation:
        factor, filters = other_voices(waves["seed"], tf.shape(target)[0], voice_augmentation)
        f0_hz *= factor[:, None]
    return {name: waves[name] for name in TEXT} | {
        "mel": log_mel(target, waves["samples"], filters),
        "frames": frame_count(waves["samples"]),
        "f0_hz": f0_hz,
        "reference": log_mel(reference, waves["reference_samples"], filters),
        "reference_frames": frame_count(waves["reference_samples"]),
    }


def other_voices(seed, rows, most):
    """A voice for each row: a factor of all frequencies, float32 [rows], and mel filters [rows, bins, bands].

    The factor is from exp(-most) to exp(most). The spectrum is raised and lowered by a smooth curve, a sum of CURVES
    cosines over the bands, each of up to 2 * most nepers. All numbers are uniform and drawn by the batch's seed.
    """
    factor = tf.exp(tf.random.stateless_uniform([rows], own_seed(seed, "frequencies"), -most, most))
    heights = tf.random.stateless_uniform([rows, CURVES], own_seed(seed, "spectrum"), -2.0 * most, 2.0 * most)
    phase = np.pi * np.arange(CURVES)[:, None] * (np.arange(MEL_BANDS) + 0.5) / MEL_BANDS
    gain = tf.exp(tf.matmul(heights, tf.constant(np.cos(phase), tf.float32)))
    return factor, moved_filter_bank(factor) * gain[:, None, :]


def trace_produce(device: str, voice_augmentation: float = 0.0) -> Callable[[dict], dict]:
    """`produce` as a compiled function that runs on a device, traced once with symbolic dimensions.

    Tracing belongs to the main thread; the function that it gives may be called from any.
    """

    def produce_on_device(waves: dict) -> dict:
        with tf.device(device):  # one around the tracing would leave no mark on the operations
            return produce(waves, voice_augmentation)

    spec = {name: tf.TensorSpec(field.shape, field.dtype, name=name) for name, field in WAVES.items()}
    return tf.function(produce_on_device).get_concrete_function(spec)


def waves_of_plan(
    planned: Iterable[PlannedBatch],
    waves: Iterable[dict],
    explain: Callable[[PlannedBatch, Exception], Exception],
) -> Iterator[tuple[PlannedBatch, dict]]:
    """Each planned batch with its WAVES.

    Args:
        planned: the plan of each element of `waves`.
        waves: WAVES on the data device.
        explain: turns TensorFlow's error at a batch into one that names the utterance.
    """
    source = iter(waves)
    for plan in planned:
        try:
            wave = next(source)
        except tf.errors.ResourceExhaustedError:
            raise  # of the data device: no utterance is at fault
        except tf.errors.OpError as error:
            raise explain(plan, error) from error
        yield plan, wave


def hand_over(features: dict, device: str) -> dict[str, tf.Tensor]:
    """FEATURES on a device."""
    with tf.device(device):
        return {name: tf.identity(features[name]) for name in FEATURES}


def deliveries(
    planned: Iterable[PlannedBatch],
    waves: Iterable[dict],
    route: Route,
    produce_on_device: Callable[[dict], dict],
    explain: Callable[[PlannedBatch, Exception], Exception],
    settle: bool = False,
) -> Iterator[Delivery]:
    """Produce each batch and hand it over; runs in the feed's thread.

    Args:
        planned, waves, explain: see `waves_of_plan`.
        route: the devices.
        produce_on_device: what `trace_produce` gives for `route.data`.
        settle: wait until the data device has made each batch, for times of what was done.

    Raises:
        TypeError, PlacementError: the first batch breaks the contract or is on another device.
    """
    began_s = time.perf_counter()
    for number, (plan, wave) in enumerate(waves_of_plan(planned, waves, explain)):
        read_s = time.perf_counter()
        with tf.device(route.data):  # decides where results lie; tf.device is per thread
            features = produce_on_device(wave)
        if settle:
            devices.settle(features["mel"])
        produced_s = time.perf_counter()
        batch = hand_over(features, route.model)
        times = Times(began_s, read_s, produced_s, time.perf_counter())
        if number == 0:
            check(wave, WAVES, "reading")
            check(batch, FEATURES, "producing")
            require_device(route.data, wave.items())
            require_device(route.data, features.items())
            require_device(route.model, batch.items())
        yield Delivery(plan, batch, times)
        began_s = time.perf_counter()
