"""From log-mels to waves by a vocoder, trained or not."""

from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class VocoderProtocol(Protocol):
    """Computes waves from log-mels: `GriffinLim`, or a trained run.

    Attributes:
        description: for the log, such as "runs/vocoder, step 4000".
        metadata: for JSON files, such as {"run": "runs/vocoder", "step": 4000}.
        variables: the weights that `synthesize` reads.
    """

    description: str
    metadata: dict[str, Any]
    variables: list[tf.Variable]

    def synthesize(self, log_mel, seed):
        """Compute waves on the current device, eagerly or as a part of a graph.

        Args:
            log_mel: float32 [batch, frames, 80].
            seed: int32 [2], of all randomness.

        Returns:
            float32 [batch, frames * 256] in [-1, 1].
        """
        ...


class NetworkVocoder:
    """A trained network as a vocoder, see `VocoderProtocol`.

    Args:
        network: has a compiled method `synthesize`.
    """

    def __init__(self, network: Any, description: str, metadata: dict[str, Any]):
        # A tf.function holds no reference to the object that it is a method of.
        self._network = network
        self.description = description
        self.metadata = metadata
        # Those that it reads: discriminators are not part of an export.
        self.variables = list(network.synthesize.get_concrete_function().variables)
        self.synthesize = network.synthesize


def vocode(
    vocoder: VocoderProtocol, log_mel, frames, seed: tuple[int, int] = (0, 0)
) -> list[np.ndarray]:
    """Return the waves of a batch of mels as NumPy arrays.

    Each row is computed alone, without its padding, so padding changes no sample.

    Args:
        log_mel: float32 [batch, frames, 80].
        frames: int32 [batch], the length of each row.
        seed: the same for all rows.

    Returns:
        For each row, float32 [frames * 256].
    """
    seed_of_rows = np.array(seed, np.int32)
    return [
        vocoder.synthesize(row[None, :length], seed_of_rows).numpy()[0]
        for row, length in zip(np.asarray(log_mel), np.asarray(frames), strict=True)
    ]
