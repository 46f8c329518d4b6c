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
from myxtts.audio.mel import log_mel, warped_mel_filters
from myxtts.audio.pitch import f0
from myxtts.batch import ASR_FEATURES, ASR_INPUTS, TEXT, TTS_FEATURES, TTS_INPUTS, Field, check, specs
from myxtts.clock import Times
from myxtts.data.plan_iterator import PlannedBatch
from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route
from myxtts.seeds import fold_in

CURVES = 9  # cosines over the mel bands, the first of them flat: speakers of a language differ by such curves


class DeviceBatch(NamedTuple):
    """A batch on the model device, with the plan that it came from."""

    planned: PlannedBatch
    batch: dict[str, tf.Tensor]
    times: Times


@dataclass(frozen=True)
class FeatureExtractor:
    """How a task's batches are made.

    Attributes:
        waves, features: contracts of what is read and of what is produced.
        produce: waves -> features, in TensorFlow.
    """

    waves: dict[str, Field]
    features: dict[str, Field]
    produce: Callable[[dict], dict]


def tts_extractor(vtlp: float = 0.0) -> FeatureExtractor:
    """Batches of a voice; see `tts_features`."""
    return FeatureExtractor(TTS_INPUTS, TTS_FEATURES, partial(tts_features, vtlp=vtlp))


def asr_extractor(hide: Callable | None = None) -> FeatureExtractor:
    """Batches of a recogniser; see `asr_features`."""
    return FeatureExtractor(ASR_INPUTS, ASR_FEATURES, partial(asr_features, hide=hide))


def asr_features(waves: dict, hide: Callable | None = None) -> dict:
    """ASR_INPUTS -> ASR_FEATURES: PCM to float to log-mel.

    Args:
        hide: (mel, frames, seed) -> mel of which some is hidden, as `spec_augment` does.
    """
    frames = frame_count(waves["samples"])
    mel = log_mel(tf.cast(waves["pcm"], tf.float32) / 32768.0, waves["samples"])
    if hide is not None:
        mel = hide(mel, frames, waves["seed"])
    return {name: waves[name] for name in TEXT} | {"mel": mel, "frames": frames}


def tts_features(waves: dict, vtlp: float = 0.0) -> dict:
    """TTS_INPUTS -> TTS_FEATURES: PCM to float to log-mel and F0.

    Args:
        vtlp: see `vtlp_warp`; 0 is off.
    """
    target, reference = (tf.cast(waves[name], tf.float32) / 32768.0 for name in ("pcm", "reference_pcm"))
    f0_hz, _ = f0(target, waves["samples"])
    filters = None
    if vtlp:
        factor, filters = vtlp_warp(waves["seed"], tf.shape(target)[0], vtlp)
        f0_hz *= factor[:, None]
    return {name: waves[name] for name in TEXT} | {
        "mel": log_mel(target, waves["samples"], filters),
        "frames": frame_count(waves["samples"]),
        "f0_hz": f0_hz,
        "reference": log_mel(reference, waves["reference_samples"], filters),
        "reference_frames": frame_count(waves["reference_samples"]),
    }


def vtlp_warp(seed, rows, most):
    """A voice for each row: a factor of all frequencies, float32 [rows], and mel filters [rows, bins, bands].

    The factor is from exp(-most) to exp(most). The spectrum is raised and lowered by a smooth curve, a sum of CURVES
    cosines over the bands, each of up to 2 * most nepers. All numbers are uniform and drawn by the batch's seed.
    """
    factor = tf.exp(tf.random.stateless_uniform([rows], fold_in(seed, "frequencies"), -most, most))
    heights = tf.random.stateless_uniform([rows, CURVES], fold_in(seed, "spectrum"), -2.0 * most, 2.0 * most)
    phase = np.pi * np.arange(CURVES)[:, None] * (np.arange(MEL_BANDS) + 0.5) / MEL_BANDS
    gain = tf.exp(tf.matmul(heights, tf.constant(np.cos(phase), tf.float32)))
    return factor, warped_mel_filters(factor) * gain[:, None, :]


def trace_produce(device: str, extractor: FeatureExtractor) -> Callable[[dict], dict]:
    """`recipe.produce` as a compiled function that runs on a device, traced once with symbolic dimensions.

    Tracing belongs to the main thread; the function that it gives may be called from any.
    """

    def produce_on_device(waves: dict) -> dict:
        with tf.device(device):  # one around the tracing would leave no mark on the operations
            return extractor.produce(waves)

    return tf.function(produce_on_device).get_concrete_function(specs(extractor.waves))


def with_waves(
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


def device_batches(
    planned: Iterable[PlannedBatch],
    waves: Iterable[dict],
    routes: Sequence[Route],
    extractor: FeatureExtractor,
    produce_on_device: Callable[[dict], dict],
    explain: Callable[[PlannedBatch, Exception], Exception],
    synchronize: bool = False,
) -> Iterator[DeviceBatch]:
    """Produce each batch and hand it over; runs in the feed's thread.

    Args:
        planned, waves, explain: see `with_waves`.
        routes: from one data device, taken by turns.
        recipe: whose contracts the batches have.
        produce_on_device: what `trace_produce` gives for it on the data device.
        settle: wait until the data device has made each batch, for times of what was done.

    Raises:
        TypeError, PlacementError: the first batch of a route breaks the contract or is on another device.
    """
    began_s = time.perf_counter()
    turns = zip(cycle(routes), with_waves(planned, waves, explain), strict=False)
    for number, (route, (plan, wave)) in enumerate(turns):
        read_s = time.perf_counter()
        with tf.device(route.data):  # decides where results lie; tf.device is per thread
            features = produce_on_device(wave)
        if synchronize:
            devices.synchronize(features["mel"])
        produced_s = time.perf_counter()
        batch = hand_over(features, route.model)
        times = Times(began_s, read_s, produced_s, time.perf_counter(), route.data)
        if number < len(routes):
            check(wave, extractor.waves, "reading")
            check(batch, extractor.features, "producing")
            require_device(route.data, wave.items())
            require_device(route.data, features.items())
            require_device(route.model, batch.items())
        yield DeviceBatch(plan, batch, times)
        began_s = time.perf_counter()
