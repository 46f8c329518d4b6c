"""The contract between a run and what it trains. A run asks its task, and not which task it is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Protocol

import keras

from myxtts.audio.vocoder import VocoderProtocol
from myxtts.batch import Field, first_rows
from myxtts.config.schema import Config
from myxtts.data.features import FeatureExtractor, LoadFrozen
from myxtts.data.manifest import Vocabulary
from myxtts.report.reporter import TensorBoard

# Arrays of its own size that a block keeps for its gradient. Measured: 16.8 MiB a row of 4 s
# (`normal`) and 5.2 MiB a row of 3 s (`tiny`), where this number gives 16.2 and 3.4.
KEPT_ARRAYS = 9

SAMPLED_UTTERANCES = 4


class Examples(NamedTuple):
    """The held-out utterances to write samples of.

    Attributes:
        batch: features on the device of the network that they are for: the observer, or the first
            replica.
        ids, texts, files: of its rows; the files are the recordings.
    """

    batch: dict
    ids: list[str]
    texts: list[str]
    files: list[str]

    def sampled(self, fields: dict[str, Field]) -> "Examples":
        """Return the first ones, of which samples are written.

        Args:
            fields: the contract of the batch.
        """
        count = min(SAMPLED_UTTERANCES, len(self.ids))
        batch = first_rows(self.batch, fields, count)
        return Examples(batch, self.ids[:count], self.texts[:count], self.files[:count])


class Sampler(Protocol):
    """Writes the output of a network for some held-out utterances to files and TensorBoard.

    The caller has set the weights and entered the network's device. All that a call computes is
    compiled by `trace`, on the main thread, so that any thread may call.
    """

    def trace(self) -> None:
        """Compile what a call computes; called once, before the first call."""
        ...

    def __call__(self, step: int) -> None:
        """Write the samples of a step."""
        ...


class Metric(Protocol):
    """A figure of merit over one pass of the held-out utterances, besides the losses."""

    @staticmethod
    def measure(batch: dict, outputs: dict) -> dict:
        """Return what `update` needs of the model's outputs, as tensors by name.

        It is a part of a compiled function.
        """
        ...

    def update(self, batch: dict, measured: dict) -> None:
        """Add one batch and what was measured of it.

        Computes nothing on the device: any thread may call.
        """
        ...

    def result(self) -> dict[str, float]:
        """Return the figures by name."""
        ...


class Evaluator(Protocol):
    """Measures a network by the scores of its task.

    `evaluation.evaluate`, which stands above this module, has it. All that a call computes is
    compiled when it is made, on the main thread, so that any thread may call.
    """

    def __call__(self, step: int, throttle: Callable[[], None] | None) -> dict[str, float]:
        """Measure the weights that the network has.

        Args:
            throttle: called before each batch or utterance; nothing is queued on the device then.

        Returns:
            Figures by name, each with the prefix `evaluation_`.
        """
        ...


class Task(ABC):
    """What a run trains: batches, network, metric and samples.

    Each task also has a length rule in length_rules.py.

    Attributes:
        name: value of the setting `task`.
        components: groups of layers that --freeze names; the network's `component_layers` has the
            layers.
        supports_xla: whether XLA compiles the training step.
    """

    name: str
    components: tuple[str, ...]
    supports_xla: bool

    def has_small_operations(self, config: Config) -> bool:
        """Return whether training on 2 cores is faster with one thread for each operation.

        The losses must not depend on it, in any bit.
        """
        return False

    @abstractmethod
    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        """Return the batch contracts and the function from waves to features.

        Augmentation is for training only.

        Args:
            load_teacher: loads the teacher that the settings name. Without it, features are those
                of the recordings.
        """
        ...

    def segment_s(self, config: Config) -> float | None:
        """Return the duration of the segment of each utterance that a step takes.

        None if it takes whole utterances.
        """
        return None

    def sample_extractor(
        self, config: Config, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor | None:
        """Return the extractor of the sampler's examples; None for that of validation.

        See `extractor`.
        """
        return None

    @abstractmethod
    def build(
        self,
        config: Config,
        vocabulary: Vocabulary,
        training: bool = True,
        precision: str = "float32",
    ) -> keras.Model:
        """Build the network with its initial weights.

        Without `training` it computes in `precision` and has no dropout.
        Its call returns (losses by name, outputs); `BATCH_FIELDS` is the contract of its input,
        `LOSS_NAMES` the names of the losses.
        """
        ...

    def tune(
        self, config: Config, network: keras.Model, device: str, sizes: dict[str, int]
    ) -> dict[str, str]:
        """Choose among implementations of a network to train, which give the same results.

        Args:
            device: of the model.
            sizes: the named dimensions of the batch contracts, for a typical batch.

        Returns:
            Lines of the log by name.

        Raises:
            ConfigError: the settings name an implementation that the device cannot run.
        """
        return {}

    @abstractmethod
    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        """Return a lower estimate of the bytes that a step keeps of a batch for its gradient.

        Args:
            sizes: the named dimensions of the batch contracts.
        """
        ...

    @abstractmethod
    def describe(self, config: Config) -> str:
        """Return the network's dimensions as one line of the log."""
        ...

    def metric(self, vocabulary: Vocabulary) -> Callable[[], Metric] | None:
        """Return what makes a metric for each validation; None without one."""
        return None

    @abstractmethod
    def sampler(
        self,
        config: Config,
        vocabulary: Vocabulary,
        network: keras.Model,
        examples: Examples,
        folder: Path,
        tensorboard: TensorBoard,
        load_vocoder: Callable[[], VocoderProtocol],
    ) -> Sampler:
        """Return the sampler of a network for some held-out utterances.

        Args:
            folder: gets the samples.
            load_vocoder: loads the vocoder that the settings name.
        """
        ...


def dimensions(task: str, config: Config, sizes: Mapping) -> str:
    """Return a line such as "tts, tiny, 144 channels, 3 encoder blocks"."""
    size = config.model.model_size
    numbers = (f"{number} {name.replace('_', ' ')}" for name, number in asdict(sizes[size]).items())
    return ", ".join((task, size, *numbers))


def computes_as_evaluated(config: Config) -> bool:
    """Whether the network of a run computes what `evaluate` measures of its weights: in float32,
    without discriminators, and with an alignment without a teacher.
    """
    # Any other network has other variables or outputs than the one that `evaluate` builds.
    return (
        config.training.precision == "float32"
        and config.teacher.teacher is None
        and not config.vocoder.discriminators
    )


def kept_bytes(config: Config) -> int:
    """Return the bytes of a kept value."""
    return 4 if config.training.precision == "float32" else 2
