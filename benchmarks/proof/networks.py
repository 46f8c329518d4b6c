"""Networks of the proof: the same weights on each device."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import keras
import numpy as np

from benchmarks.proof import configs
from benchmarks.proof.section import Scope
from myxtts.config.schema import Config
from myxtts.corpus.manifest import Vocabulary
from myxtts.devicefeed.routes import Route
from myxtts.placement.replicas import make_replicas
from myxtts.tasks.asr import network as asr
from myxtts.tasks.registry import task_of
from myxtts.tasks.tts import network as xtts
from myxtts.tasks.tts.network import build_xtts
from myxtts.tasks.tts.teacher import TeacherModel
from myxtts.tasks.vocoder import network as vocoder

ODE_STEPS, GUIDANCE = 2, 1.5  # of a teacher; 1 and 1.0 evaluate the flow once


def sizes(scope: Scope) -> AbstractContextManager:
    """Return a context in which all models have the width of `tiny` and one block of each kind.

    These have every kernel of larger models, and take a third of the time to trace.
    """
    if scope.small:
        return configs.models(scope)
    tts = replace(xtts.SIZES["tiny"], encoder_blocks=1, decoder_blocks=1, flow_blocks=1)
    vocoding = replace(vocoder.SIZES["tiny"], blocks=1, pitch_blocks=1)
    return configs.sized(tts, replace(asr.SIZES["tiny"], blocks=1), vocoding)


class Networks:
    """Copies of a network, one on each device, all with the weights of the first."""

    def __init__(self, scope: Scope, build: Callable[[], keras.Model]):
        self._scope, self._build = scope, build
        self._networks: dict[str, keras.Model] = {}

    def on(self, device: str) -> keras.Model:
        if device not in self._networks:
            keras.utils.set_random_seed(0)
            with sizes(self._scope), make_replicas((Route(device, device),)).scope():
                network = self._build()
            first = next(iter(self._networks.values()), network)
            for variable, value in zip(
                network.variables, [v.numpy() for v in first.variables], strict=True
            ):
                variable.assign(value)
            self._networks[device] = network
        return self._networks[device]


class Voices(Networks):
    """Copies of a voice with random weights.

    Args:
        features: of the batches that it is used on.
    """

    def __init__(
        self, scope: Scope, config: Config, vocabulary: Vocabulary, features: dict[str, np.ndarray]
    ):
        symbols, languages = len(vocabulary.symbols), len(vocabulary.languages)
        super().__init__(scope, lambda: build_xtts("tiny", symbols, languages))
        self._config, self._features = config, features

    def frozen(self, device: str) -> TeacherModel:
        """Return the network on a device as a producer calls it, with the search of a run."""
        network = self.on(device)
        (rows, frames, _), (_, tokens) = self._features["mel"].shape, self._features["tokens"].shape
        task_of(self._config).tune(
            self._config, network, device, {"batch": rows, "frames": frames, "tokens": tokens}
        )
        return TeacherModel(network, *((1, 1.0) if self._scope.small else (ODE_STEPS, GUIDANCE)))
