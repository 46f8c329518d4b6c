"""Runs, batches and networks of the smallest vocoder."""

import atexit
import contextlib
import shutil
from collections.abc import Sequence
from functools import cache
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.mel import SILENCE
from myxtts.tasks.vocoder.network import SIZES, Vocoder, VocoderSize, build_vocoder
from tests.fixtures import temporary_folder
from tests.tiny import WholeRun, Workspace, replicas_on
from tests.two_devices import MODEL

SMALLEST = VocoderSize(channels=8, blocks=1, pitch_channels=8, pitch_blocks=1)
SEGMENT_FRAMES = 24  # with context
SEGMENT = 12  # frames, without context
FRAMES = (40, 9, 0, 26)  # of the rows of `vocoder_inputs`


def small_vocoders() -> contextlib.AbstractContextManager:
    """Return a context in which the size `tiny` of vocoders is SMALLEST, also for runs."""
    return mock.patch.dict(SIZES, tiny=SMALLEST)


def build(precision: str = "float32", device: str = MODEL, seed: int = 0, **settings) -> Vocoder:
    keras.utils.set_random_seed(seed)
    with small_vocoders(), replicas_on(device).scope():
        return build_vocoder("tiny", precision=precision, **settings)


@cache
def vocoder() -> Vocoder:
    """Return a vocoder with its initial weights, traced once for all tests of a process."""
    return build()


def vocoder_features(utterance_frames: Sequence[int], seed: int = 0) -> dict[str, np.ndarray]:
    """Return VOCODER_FEATURES of random content for so many frames a row; 0 is an empty row."""
    random = np.random.default_rng(seed)
    shape, frames = (len(utterance_frames), SEGMENT_FRAMES), np.array(utterance_frames, np.int32)
    real = (frames > 0)[:, None]
    samples = random.normal(0.0, 0.1, (len(frames), SEGMENT_FRAMES * HOP_SAMPLES))
    f0_hz = np.where(real, random.choice([0.0, 120.0, 180.0], shape), 0.0).astype(np.float32)
    angle = random.uniform(0.0, 2.0 * np.pi, shape)
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=2)
    phasor = np.where((f0_hz > 0.0)[:, :, None], direction, 0.0)
    mel = np.where(real[:, :, None], random.normal(-5.5, 2.1, (*shape, 80)), SILENCE)
    return {
        "mel": mel.astype(np.float32),
        "f0_hz": f0_hz,
        "pulse_phasor": phasor.astype(np.float32),
        "wave": np.where(real, samples, 0.0).astype(np.float32),
        "frames": frames,
        "seed": np.array([seed, 7], np.int32),
        "step_frames": np.float32(max(frames.sum(), 1)),
    }


@cache
def vocoder_run() -> WholeRun:
    """Train a vocoder once for all tests of a process, in 12 s; the run is named `whole`. Change
    only copies of it.

    Its corpus is a folder of audio without metadata. It has 4 steps, checkpoints after 2 and 4,
    validation and samples after 4, and 3 of 13 utterances held out.
    """
    workspace = Workspace(temporary_folder(atexit.register))
    audio, ignored = workspace.folder / "audio", shutil.ignore_patterns("*.csv")
    shutil.copytree(workspace.corpus.parent, audio, ignore=ignored)
    flags = "--task vocoder --validation-fraction 0.25 --data-gpu 0 --model-gpu 1 --max-steps 4"
    flags += f" --vocoder-segment-seconds 0.2 --train-data {audio}"
    flags += " --validate-every 4 --sample-every 4 --checkpoint-every 2"
    flags = tuple(flags.split())
    with small_vocoders():
        return WholeRun(workspace, flags, workspace.train("whole", *flags))


def vocoder_inputs(frames=FRAMES, padded=44, seed=0):
    """Return VOCODER_INPUTS of voiced sounds that glide, with a partial hop at their end."""
    random = np.random.default_rng(1)
    samples = np.array([n and n * HOP_SAMPLES + 17 for n in frames], np.int32)
    pcm = np.zeros((len(frames), padded * HOP_SAMPLES), np.int16)
    for row, count in enumerate(samples):
        phase = np.cumsum(np.linspace(110.0, 260.0, count)) / SAMPLE_RATE_HZ
        tone = sum(np.sin(2 * np.pi * k * phase) / k for k in range(1, 12))
        pcm[row, :count] = 5e3 * tone + random.normal(0.0, 300.0, count)
    return {
        "pcm": tf.constant(pcm),
        "samples": tf.constant(samples),
        "seed": tf.constant([seed, 3]),
        "step_frames": tf.constant(75.0),
    }
