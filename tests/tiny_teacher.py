"""A teacher without training, and what a producer makes with it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from fakes.toy import traced_once
from myxtts.data.dataset import load_corpora
from myxtts.data.features import FeatureExtractor
from myxtts.local_sgd.interpolation import Coefficients, Measurement, make_evaluator
from myxtts.local_sgd.merge import read_input
from myxtts.models.teacher import TeacherModel
from myxtts.tasks.registry import length_rule_of
from tests.tiny import build_model, replicas_on, small_models
from tests.tiny_vocoder import vocoder_inputs
from tests.two_devices import MODEL


def untrained_teacher(device: str, ode_steps: int = 2, guidance: float = 1.0) -> TeacherModel:
    return TeacherModel(build_model(device=device), ode_steps, guidance)


def spoken_inputs() -> dict:
    """Return TTS_INPUTS of `tests.tiny_vocoder.vocoder_inputs`, references of other rows."""
    waves = vocoder_inputs()
    count = tf.constant([4, 3, 0, 5])
    texts = {"tokens": tf.tile(tf.constant([[1, 4, 5, 6, 2]]), [4, 1]), "token_count": count}
    reference = {"reference_pcm": waves["pcm"][::-1], "reference_samples": waves["samples"][::-1]}
    return (
        waves
        | texts
        | reference
        | {"language": tf.constant([0, 1, 0, 0]), "step_tokens": tf.constant(12.0)}
    )


def merge_evaluator(run: Path) -> Callable[[Coefficients], Measurement]:
    """Return what measures merges of the checkpoints of a run after 2 and 4 steps."""
    inputs = [read_input(run / f"checkpoints/step-00000{step}") for step in (2, 4)]
    config, known = inputs[0].record.settings, inputs[0].record.inherited_vocabulary
    _, held_out, _ = load_corpora(config, run, length_rule_of(config), known)
    with small_models():
        return make_evaluator(inputs, held_out.manifest, config, replicas_on(MODEL).routes[0], run)


def produced(device: str, extractor: FeatureExtractor, batch: dict) -> dict[str, np.ndarray]:
    """Return the features that a producer makes of a batch, which may have more fields."""
    with tf.device(device):
        batch = {name: tf.identity(batch[name]) for name in extractor.inputs}
    return {name: value.numpy() for name, value in traced_once(device, extractor)(batch)[0].items()}
