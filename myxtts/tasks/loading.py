"""Builds the networks of trained runs on a device, with the weights that inference uses."""

import logging

import keras
import tensorflow as tf

from myxtts.audio.format import use_sample_rate
from myxtts.audio.vocoder import (
    ITERATIONS,
    GriffinLim,
    NetworkVocoder,
    OnnxVocoder,
    VocoderProtocol,
)
from myxtts.checkpoints.trained_run import TrainedRun, VocoderChoice
from myxtts.checkpoints.variables import load_variables
from myxtts.tasks.registry import task_named

log = logging.getLogger(__name__)


def load_network(
    run: TrainedRun, device: str, task: str, precision: str = "float32"
) -> keras.Model:
    """Build the network of a run on a device, with the weights that inference uses.

    Raises CheckpointError if they are damaged, or belong to another task or architecture.
    `precision` is the Keras dtype policy of the computation; variables are float32.
    """
    run.check_task(task)
    record = run.record
    use_sample_rate(record.settings.data.sample_rate, str(run.path))
    weights = run.weights()
    with tf.device(device):
        network = task_named(task).build(record.settings, record.vocabulary, precision, weights)
    group, variables = record.weights_group, {v.path: v.value for v in network.variables}
    load_variables(run.checkpoint, {group: variables}, {group: weights})
    return network


def load_vocoder_network(run: TrainedRun, device: str) -> NetworkVocoder:
    """Load the network of a vocoder's run; raises as `load_network`."""
    network = load_network(run, device, "vocoder")
    step = run.record.step
    origin = {"run": str(run.path), "step": step}
    return NetworkVocoder(network, f"{run.path}, step {step}", origin)


def load_vocoder(choice: VocoderChoice, device: str) -> VocoderProtocol:
    """Load the vocoder on a device, and log which one it is; raise as `load_network`."""
    vocoder: VocoderProtocol
    if choice.trained:
        vocoder = load_vocoder_network(choice.trained, device)
    elif choice.file:
        vocoder = OnnxVocoder(choice.file)
    else:
        vocoder = GriffinLim(choice.iterations or ITERATIONS)
    log.info("vocoder        %s%s", vocoder.description, choice.note)
    return vocoder
