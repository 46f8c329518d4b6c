"""Load the vocoder of a voice."""

import logging

from myxtts.audio.griffin_lim import ITERATIONS, GriffinLim
from myxtts.audio.vocoder import VocoderProtocol
from myxtts.training.load_model import load_model
from myxtts.training.runs import VocoderChoice, VocoderRun

log = logging.getLogger(__name__)


class TrainedVocoder:
    """The network of a vocoder's run as a vocoder, see `audio.vocoder.VocoderProtocol`.

    Raises:
        CheckpointError: the weights are damaged, or are no vocoder's.
    """

    def __init__(self, source: VocoderRun, device: str):
        # Kept, because a tf.function holds no reference to the object that it is a method of.
        self._network = network = load_model(
            source.checkpoint, source.metadata, device, task="vocoder"
        )
        step = source.metadata["step"]
        self.description = f"{source.run}, step {step}"
        self.metadata = {"run": str(source.run), "step": step}
        # Those that it reads: discriminators are not part of an export.
        self.variables = list(network.synthesize.get_concrete_function().variables)
        self.synthesize = network.synthesize


def load_vocoder(choice: VocoderChoice, device: str) -> VocoderProtocol:
    """Load the chosen vocoder on a device, and log which one it is; raises CheckpointError as
    `TrainedVocoder` does.
    """
    vocoder: VocoderProtocol = (
        TrainedVocoder(choice.trained, device)
        if choice.trained
        else GriffinLim(choice.iterations or ITERATIONS)
    )
    log.info("vocoder        %s%s", vocoder.description, choice.note)
    return vocoder
