"""Evaluation of a run at some of its steps: what `evaluate` measures of a checkpoint, without what
takes long.
"""

import logging
import time
from collections.abc import Callable

import keras
import tensorflow as tf

from myxtts.evaluation.table import ScoreWeights, write_table
from myxtts.files import tolerate_full_disk
from myxtts.models.loss_groups import network_variables
from myxtts.report.samples import EVALUATION_FOLDER
from myxtts.tasks.base import computes_as_evaluated
from myxtts.tasks.registry import task_of
from myxtts.training.checkpoint_files import checkpoint_of
from myxtts.training.observation import LoadVocoder, Snapshot, no_throttle
from myxtts.training.runs import RunFolder
from myxtts.training.setup import TrainingSetup

log = logging.getLogger(__name__)


class InRunEvaluator:
    """Measures the weights of a network during its run; see `tasks.base.Evaluator`.

    Args:
        snapshot: a further network, which gets the weights; None to measure the network itself.
        score: measures a network.
        folder: gets `evaluation/CHECKPOINT/scores.md`, as from `evaluate`.
    """

    def __init__(self, snapshot: Snapshot | None, score: ScoreWeights, folder: RunFolder):
        self._snapshot, self._score, self._folder = snapshot, score, folder

    def __call__(self, step: int, throttle: Callable[[], None] | None) -> dict[str, float]:
        if self._snapshot is not None:
            self._snapshot.take()
        checkpoint = checkpoint_of(self._folder.checkpoints, step).name
        score = self._score(checkpoint, throttle or no_throttle)
        with tolerate_full_disk(f"the scores of step {step}"):
            folder = self._folder.path / EVALUATION_FOLDER / checkpoint
            folder.mkdir(parents=True, exist_ok=True)
            write_table(score, folder)
        log.info("step %6d | %s", step, score.console_line())
        return {f"evaluation_{name}": value for name, value in score.figures().items()}


def open_evaluator(
    setup: TrainingSetup, source: keras.Model, device: str, folder: RunFolder, load: LoadVocoder
) -> InRunEvaluator:
    """Return the evaluator of a run.

    Args:
        source: the network on the device whose weights are measured.
        load: loads the vocoder of a voice.

    Raises:
        UserError: the recogniser or the vocoder cannot be used, or a file cannot be read.
    """
    # Imported here, because it imports every evaluator, which few runs need.
    from myxtts.evaluation.evaluate import EVALUATORS

    started_s, config = time.perf_counter(), setup.config
    task, network, snapshot = task_of(config), source, None
    # The scores are to be those of `evaluate`. Most runs have a network that computes as it does,
    # and hold no further one.
    if not computes_as_evaluated(config):
        with tf.device(device):
            network = task.build(config, setup.corpora.vocabulary, training=False)
        local = setup.replicas.local_results
        sources = {v.path: local(v.value)[0] for v in network_variables(source)}
        snapshot = Snapshot(network, sources, device)
        # TensorFlow prepares a function at its first call.
        snapshot.take()
    score = EVALUATORS[task.name].in_run(setup, network, device, folder, load)
    log.info("evaluation     prepared for %s in %.1f s", device, time.perf_counter() - started_s)
    return InRunEvaluator(snapshot, score, folder)
