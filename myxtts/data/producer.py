"""Stages D and E of a batch's life: features on the data device, handed to the model device."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import MEL_BANDS, frame_count
from myxtts.audio.mel import log_mel, moved_filter_bank
from myxtts.audio.pitch import f0
from myxtts.batch import FEATURES, HEARD_FEATURES, HEARD_WAVES, TEXT, WAVES, Field, check, specs
from myxtts.clock import Times
from myxtts.data.plan_iterator import PlannedBatch
from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route
from myxtts.seeds import own_seed

CURVES = 9  # cosines over the mel bands, the first of them flat: speakers of a language differ by such curves


class Delivery(NamedTuple):
    """A batch on the model device, with the plan that it came from."""

    planned: PlannedBatch
    batch: dict[str, tf.Tensor]
    times: Times


@dataclass(frozen=True)
class Recipe:
    """How a task's batches are made.

    Attributes:
        waves, features: contracts of what is read and of what is produced.
        produce: waves -> features, in TensorFlow.
    """

    waves: dict[str, Field]
    features: dict[str, Field]
    produce: Callable[[dict], dict]


def voice_recipe(voice_augmentation: float = 0.0) -> Recipe:
    """Batches of a voice; see `produce_voice`."""
    return Recipe(WAVES, FEATURES, partial(produce_voice, voice_augmentation=voice_augmentation))


def recogniser_recipe(hide: Callable | None = None) -> Recipe:
    """Batches of a recogniser; see `produce_heard`."""
    return Recipe(HEARD_WAVES, HEARD_FEATURES, partial(produce_heard, hide=hide))


def produce_heard(waves: dict, hide: Callable | None = None) -> dict:
    """HEARD_WAVES -> HEARD_FEATURES: PCM to float to log-mel.

    Args:
        hide: (mel, frames, seed) -> mel of which some is hidden, as `spec_augment` does.
    """
    frames = frame_count(waves["samples"])
    mel = log_mel(tf.cast(waves["pcm"], tf.float32) / 32768.0, waves["samples"])
    if hide is not None:
        mel = hide(mel, frames, waves["seed"])
    return {name: waves[name] for name in TEXT} | {"mel": mel, "frames": frames}


def produce_voice(waves: dict, voice_augmentation: float = 0.0) -> dict:
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


def trace_produce(device: str, recipe: Recipe) -> Callable[[dict], dict]:
    """`recipe.produce` as a compiled function that runs on a device, traced once with symbolic dimensions.

    Tracing belongs to the main thread; the function that it gives may be called from any.
    """

    def produce_on_device(waves: dict) -> dict:
        with tf.device(device):  # one around the tracing would leave no mark on the operations
            return recipe.produce(waves)

    return tf.function(produce_on_device).get_concrete_function(specs(recipe.waves))


def waves_of_plan(
    planned: Iterable[PlannedBatch],
    waves: Iterable[dict],
    explain: Callable[[PlannedBatch, Exception], Exception],
) -> Iterator[tuple[PlannedBatch, dict]]:
    """Each planned batch with its waves.

    Args:
        planned: the plan of each element of `waves`.
        waves: on the data device.
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
    """Features on a device."""
    with tf.device(device):
        return {name: tf.identity(value) for name, value in features.items()}


def deliveries(
    planned: Iterable[PlannedBatch],
    waves: Iterable[dict],
    routes: Sequence[Route],
    recipe: Recipe,
    produce_on_device: Callable[[dict], dict],
    explain: Callable[[PlannedBatch, Exception], Exception],
    settle: bool = False,
) -> Iterator[Delivery]:
    """Produce each batch and hand it over; runs in the feed's thread.

    Args:
        planned, waves, explain: see `waves_of_plan`.
        routes: from one data device, taken by turns.
        recipe: whose contracts the batches have.
        produce_on_device: what `trace_produce` gives for it on the data device.
        settle: wait until the data device has made each batch, for times of what was done.

    Raises:
        TypeError, PlacementError: the first batch of a route breaks the contract or is on another device.
    """
    began_s = time.perf_counter()
    turns = zip(cycle(routes), waves_of_plan(planned, waves, explain), strict=False)
    for number, (route, (plan, wave)) in enumerate(turns):
        read_s = time.perf_counter()
        with tf.device(route.data):  # decides where results lie; tf.device is per thread
            features = produce_on_device(wave)
        if settle:
            devices.settle(features["mel"])
        produced_s = time.perf_counter()
        batch = hand_over(features, route.model)
        times = Times(began_s, read_s, produced_s, time.perf_counter(), route.data)
        if number < len(routes):
            check(wave, recipe.waves, "reading")
            check(batch, recipe.features, "producing")
            require_device(route.data, wave.items())
            require_device(route.data, features.items())
            require_device(route.model, batch.items())
        yield Delivery(plan, batch, times)
        began_s = time.perf_counter()
