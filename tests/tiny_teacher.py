"""Teachers without training, as networks and as a run, and what a producer makes with one."""

import unittest
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from fakes.copies import find_copies
from fakes.toy import traced_once
from myxtts.batches.corpora import load_corpora
from myxtts.checkpoints.files import digest_of
from myxtts.commands import train
from myxtts.devicefeed.contract import FeatureExtractor
from myxtts.devicefeed.producer import ProduceFunction
from myxtts.extras.jobs.merge import read_input
from myxtts.extras.jobs.verdict import Measurement, make_evaluator
from myxtts.run.setup import run_record
from myxtts.tasks.registry import length_rule_of, task_of
from myxtts.tasks.tts.alignment_choice import search_of
from myxtts.tasks.tts.teacher import TeacherModel
from myxtts.trial.preflight.kernels import audit
from tests.tiny import (
    Workspace,
    build_model,
    replicas_on,
    save_checkpoint,
    small_models,
    training_state,
)
from tests.tiny_vocoder import vocoder_inputs
from tests.two_devices import MODEL


def untrained_teacher(device: str, ode_steps: int = 2, guidance: float = 1.0) -> TeacherModel:
    """Return a teacher that aligns as on a GPU, so that what it is traced in can be audited."""
    network = build_model(device=device)
    network.alignment_search = search_of("xla", "/GPU:0")
    return TeacherModel(network, ode_steps, guidance)


def check_operations(case: unittest.TestCase, function) -> None:
    """Check that every operation has a GPU kernel, and no value returns to the host."""
    case.assertEqual(audit(function).host_only, ())
    case.assertEqual([copy for copy in find_copies(function) if copy.to_host], [])


def write_voice(workspace: Workspace) -> Path:
    """Write the run `voice`, with its initial weights in a checkpoint of step 0."""
    config, _ = train.parse(workspace.argv("voice", "--ode-steps 1"))
    run = workspace.run_dir("voice")
    corpus, _, vocabulary = load_corpora(config, run, length_rule_of(config))
    keras.utils.set_random_seed(0)
    with small_models(), replicas_on(MODEL).scope():
        network = task_of(config).build(config, vocabulary)
    digest = digest_of({v.path: v.numpy() for v in network.variables})
    record = run_record(config, corpus, vocabulary, start=digest)
    save_checkpoint(run, record, training_state(network))
    return run


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


def merge_evaluator(run: Path) -> Callable[[Sequence[float]], Measurement]:
    """Return what measures merges of the checkpoints of a run after 2 and 4 steps."""
    inputs = [read_input(run / f"checkpoints/step-00000{step}") for step in (2, 4)]
    config, known = inputs[0].record.settings, inputs[0].record.inherited_vocabulary
    _, held_out, _ = load_corpora(config, run, length_rule_of(config), known)
    with small_models():
        return make_evaluator(inputs, held_out.manifest, config, replicas_on(MODEL).routes[0], run)


def produced(
    device: str, extractor: FeatureExtractor, batch: dict, produce: ProduceFunction | None = None
) -> dict[str, np.ndarray]:
    """Return the features that a producer makes of a batch, which may have more fields."""
    produce = produce or traced_once(device, extractor)
    with tf.device(device):
        batch = {name: tf.identity(batch[name]) for name in extractor.inputs}
    return {name: value.numpy() for name, value in produce(batch)[0].items()}
