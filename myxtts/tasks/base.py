"""The contract between a run and what it trains. A run asks its task, and not which task it is."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np

from myxtts.audio.vocoder import LoadVocoder
from myxtts.base.files import new_folder, numbered_name, tolerate_full_disk
from myxtts.config.schema import Config
from myxtts.corpus.manifest import Vocabulary
from myxtts.devicefeed.contract import FeatureExtractor, Field, LoadFrozen
from myxtts.report.plots import png_bytes
from myxtts.report.reporter import TensorBoard
from myxtts.tasks.contract import first_rows

# Arrays of its own size that a block keeps for its gradient. Measured: 16.8 MiB a row of 4 s
# (`normal`) and 5.2 MiB a row of 3 s (`tiny`), where this number gives 16.2 and 3.4.
KEPT_ARRAYS = 9

SAMPLED_UTTERANCES = 4

Evaluator = Callable[[int, Callable[[], None] | None], dict[str, float]]
"""(step, throttle) -> figures `evaluation_NAME` of the weights that a network has. All that it
computes is compiled before, so that any thread may call.
"""


class Examples(NamedTuple):
    """The held-out utterances to write samples of."""

    batch: dict  # features on the device of the network that they are for
    ids: list[str]
    texts: list[str]
    recordings: list[np.ndarray]  # float32 [samples] in [-1, 1] each


class Sampler(ABC):
    """Writes what a network makes of the first held-out utterances to files and TensorBoard.

    The caller has set the weights and entered the network's device. Any thread may call after
    `trace`. The folder gets `step-000500/` with a picture of each utterance, such as `1-NAME.png`,
    and what else the task writes. FIELDS is the contract of the examples.
    """

    FIELDS: dict[str, Field]

    def __init__(self, network: Any, examples: Examples, folder: Path, tensorboard: TensorBoard):
        count = min(SAMPLED_UTTERANCES, len(examples.ids))
        self._network = network
        self._batch = first_rows(examples.batch, self.FIELDS, count)
        self._ids, self._texts = examples.ids[:count], examples.texts[:count]
        self._recordings = examples.recordings[:count]
        # Files of several folders may have the same stem.
        self._names = [numbered_name(i, name) for i, name in enumerate(self._ids, 1)]
        self._folder = folder
        self._tensorboard = tensorboard

    @abstractmethod
    def trace(self) -> None:
        """Compile what a call computes; called once, before the first call."""

    @abstractmethod
    def write(self, step: int, folder: Path) -> None: ...

    def __call__(self, step: int) -> None:
        """Write the samples of a step."""
        # The folder gets its name when it is complete. A run that is killed here leaves no half
        # folder, which the page would show as samples.
        target = self._folder / f"step-{step:06d}"
        with tolerate_full_disk(f"the samples of step {step}"), new_folder(target) as folder:
            self.write(step, folder)
            # A run that repeats a step replaces its samples.
            shutil.rmtree(target, ignore_errors=True)

    def write_picture(self, step: int, file: Path, tag: str, picture: np.ndarray) -> None:
        file.write_bytes(png_bytes(picture))
        self._tensorboard.picture(step, tag, picture)


class Metric(Protocol):
    """A figure of merit over one pass of the held-out utterances, besides the losses."""

    @staticmethod
    def measure(batch: dict, outputs: dict) -> dict:
        """Return what `update` needs of the model's outputs, within a compiled function."""

    def update(self, batch: dict, measured: dict) -> None:
        """Add a batch; any thread may call, as nothing is computed on the device."""

    def result(self) -> dict[str, float]: ...


class Task(ABC):
    """What a run trains: batches, network, metric and samples."""

    name: str  # value of the setting `task`
    product: str  # what a run of it makes, in words
    options: tuple[str, ...]  # of its evaluation alone; see `EvaluationOptions`
    sizes: Mapping[str, Any]  # dimensions of the network by the setting `model_size`
    components: tuple[str, ...]  # of layers, by their names in `component_layers`
    supports_xla: bool = False  # whether XLA compiles the training step

    def has_small_operations(self, config: Config) -> bool:
        """Return whether training on 2 cores is faster with one thread for each operation."""
        return False

    @abstractmethod
    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        """Return the batch contracts and the function from waves to features.

        Augmentation is for training only. Without a teacher, features are those of the recordings.
        """

    def segment_s(self, config: Config) -> float | None:
        """Return the duration of the segments that a step takes; None for whole utterances."""
        return None

    def sample_extractor(
        self, config: Config, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor | None:
        """Return the extractor of the sampler's examples; None: the extractor of validation."""
        return None

    @abstractmethod
    def build(
        self, config: Config, vocabulary: Vocabulary, inference="", weights: Collection[str] = ()
    ) -> keras.Model:
        """Build the network with its initial weights.

        `inference` is the precision of a network without dropout; by default it is one to train.
        `weights` are the paths of those that it will be given, and of a run from nothing none: a
        layer that only some voices have is made for these alone.
        Its call returns (losses by name, outputs) of a batch of its `BATCH_FIELDS`.
        """

    def tune(
        self, config: Config, network: keras.Model, device: str, sizes: dict[str, int]
    ) -> dict[str, str]:
        """Choose among implementations of equal results, for batches of the named sizes.

        Returns lines of the log. Raises ConfigError if the device cannot run the one that is named.
        """
        return {}

    @abstractmethod
    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        """Return a lower estimate of the bytes that a step keeps of a batch for its gradient."""

    def describe(self, config: Config) -> str:
        """Return a line of the log, such as "tts, tiny, 144 channels, 3 encoder blocks"."""
        size = config.model.model_size
        numbers = asdict(self.sizes[size]).items()
        dimensions = (f"{number} {name.replace('_', ' ')}" for name, number in numbers)
        return ", ".join((self.name, size, *dimensions))

    def metric(self, vocabulary: Vocabulary) -> Callable[[], Metric] | None:
        """Return what makes a metric for each validation; None without one."""
        return None

    @abstractmethod
    def sampler(
        self, config: Config, vocabulary: Vocabulary, load_vocoder: LoadVocoder
    ) -> Callable[[keras.Model, Examples, Path, TensorBoard], Sampler]:
        """Return what makes the sampler of a network."""


def computes_as_evaluated(config: Config) -> bool:
    """Whether the network of a run computes what `evaluate` measures of its weights."""
    return config.training.precision == "float32" and config.teacher.teacher is None


def kept_bytes(config: Config) -> int:
    """Return the bytes of a kept value."""
    return 4 if config.training.precision == "float32" else 2


Throttle = Callable[[], None]
"""Waits until the feed is full; called between two batches, with nothing queued on the device."""


def no_throttle() -> None:
    """Stand in for a throttle where nothing else uses the device."""
