"""The work on held-out utterances: validation, samples and evaluation of one network on one
device.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import keras
import tensorflow as tf

from myxtts.audio.vocoder import VocoderProtocol
from myxtts.data.batch_plan import HELD_OUT_PASS, Pass
from myxtts.data.hand_over import compile_hand_over
from myxtts.data.pipeline import Pipeline
from myxtts.errors import TrainingError
from myxtts.report.reporter import TensorBoard
from myxtts.tasks.base import Evaluator, Examples, Sampler
from myxtts.tasks.registry import task_of
from myxtts.training.load_vocoder import load_vocoder
from myxtts.training.runs import RunFolder, select_vocoder
from myxtts.training.schedule import EVALUATION, SAMPLES, VALIDATION, Observation
from myxtts.training.setup import TrainingSetup
from myxtts.training.validation import Validation, validation_metrics

LoadVocoder = Callable[[], VocoderProtocol]
OpenEvaluator = Callable[[TrainingSetup, keras.Model, str, RunFolder, LoadVocoder], Evaluator]
"""(setup, network, its device, folder, load_vocoder) -> its evaluator; see `evaluation.in_run`."""


@dataclass(frozen=True)
class HeldOutWork:
    """What is done with held-out utterances and the weights that the network has.

    Attributes:
        device: of the network.
        sampler: None if the run writes no samples.
        evaluator: None if the run is not evaluated.
    """

    device: str
    validation: Validation
    sampler: Sampler | None
    evaluator: Evaluator | None

    def trace(self) -> None:
        """Compile all of it, on the main thread, so that another thread may call `observe`."""
        with tf.device(self.device):
            self.validation.trace()
            if self.sampler:
                self.sampler.trace()

    def observe(
        self, observation: Observation, pace: Callable[[], None] | None = None
    ) -> dict[str, float]:
        """Do the parts of an observation; return metrics by name: `validation_loss`,
        `evaluation_voicing_error`.

        Args:
            pace: see `Validation.evaluate`.

        Raises:
            TrainingError: the device is out of memory.
        """
        try:
            metrics: dict[str, float] = {}
            if VALIDATION in observation.parts:
                metrics |= validation_metrics(self.validation.evaluate(pace))
            if self.sampler and SAMPLES in observation.parts:
                if pace is not None:
                    pace()
                self.write_samples(observation.step)
            if self.evaluator and EVALUATION in observation.parts:
                metrics |= self.evaluator(observation.step, pace)
        except tf.errors.ResourceExhaustedError as error:
            raise TrainingError(
                f"{observation}: out of memory on {self.device}: {error.message.splitlines()[0]}."
                " Resume with --resume and --observer on another device (model, cpu, or the index"
                " of a GPU), or with --sample-every 0 or --evaluate-every 0."
            ) from error
        return metrics

    def write_samples(self, step: int) -> None:
        """Write the samples of a step."""
        assert self.sampler is not None
        with tf.device(self.device):
            self.sampler(step)


def held_out_work(
    setup: TrainingSetup,
    network: keras.Model,
    device: str,
    folder: RunFolder,
    tensorboard: TensorBoard,
    open_evaluator: OpenEvaluator,
    buffered: bool,
) -> HeldOutWork:
    """Return the work on the held-out utterances of a run.

    Args:
        network, device: whose results they are; the pipelines of the setup are for that device.
        buffered: make batches ahead, in a thread of their own.
    """
    pipeline = setup.validation_pipeline()

    def open_batches() -> AbstractContextManager:
        open_ = pipeline.open_feed if buffered else pipeline.open_unbuffered
        return open_(HELD_OUT_PASS)

    validation = Validation(
        network, device, open_batches, task_of(setup.config).metric(setup.corpora.vocabulary)
    )
    sampler, evaluator, load = None, None, vocoder_loader(setup, device, folder)
    if setup.config.run.sample_every:
        sampler = make_sampler(setup, network, device, pipeline, folder, tensorboard, load)
    if setup.config.run.evaluate_every:
        evaluator = open_evaluator(setup, network, device, folder, load)
    return HeldOutWork(device, validation, sampler, evaluator)


def vocoder_loader(setup: TrainingSetup, device: str, folder: RunFolder) -> LoadVocoder:
    """Return what loads the vocoder that the settings of a run name, once for all calls."""
    return cache(lambda: load_vocoder(select_vocoder(folder.path, setup.metadata), device))


def make_sampler(
    setup: TrainingSetup,
    network: keras.Model,
    device: str,
    pipeline: Pipeline,
    folder: RunFolder,
    tensorboard: TensorBoard,
    load: LoadVocoder,
) -> Sampler:
    """Return the sampler of the first held-out batch."""
    config, held_out = setup.config, setup.corpora.held_out
    assert held_out is not None
    with (setup.sample_pipeline() or pipeline).open_feed(Pass(epochs=1)) as feed:
        (first,) = next(feed)
    (batch,) = compile_hand_over(network.BATCH_FIELDS, [device])([first.features])
    rows, manifest = first.planned.rows, held_out.manifest
    columns = (
        [column[row] for row in rows] for column in (manifest.ids, manifest.texts, manifest.paths)
    )
    with tf.device(device):
        return task_of(config).sampler(
            config,
            setup.corpora.vocabulary,
            network,
            Examples(batch, *columns),
            folder.samples,
            tensorboard,
            load,
        )
