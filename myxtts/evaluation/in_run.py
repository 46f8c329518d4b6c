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
from myxtts.tasks.registry import task_of
from myxtts.training.checkpoint_files import checkpoint_of
from myxtts.training.held_out import LoadVocoder
from myxtts.training.observation import no_pace
from myxtts.training.runs import RunFolder
from myxtts.training.setup import TrainingSetup
from myxtts.training.snapshot import Snapshot

log = logging.getLogger(__name__)


class InRunEvaluator:
    """Measures the weights of a network during its run; see `tasks.base.Evaluator`.

    They are copied to a network for inference, such as `evaluate` loads: it computes in float32,
    has no discriminators, and aligns without a teacher.

    Args:
        snapshot: the network for inference, and where its weights come from.
        score: measures it.
        folder: gets `evaluation/CHECKPOINT/scores.md`, as from `evaluate`.
    """

    def __init__(self, snapshot: Snapshot, score: ScoreWeights, folder: RunFolder):
        self._snapshot, self._score, self._folder = snapshot, score, folder

    def __call__(self, step: int, pace: Callable[[], None] | None) -> dict[str, float]:
        self._snapshot.take()
        checkpoint = checkpoint_of(self._folder.checkpoints, step).name
        score = self._score(checkpoint, pace or no_pace)
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
    from myxtts.evaluation.evaluate import EVALUATORS  # only where it is needed: it imports much

    started_s, task = time.perf_counter(), task_of(setup.config)
    with tf.device(device):
        network = task.build(setup.config, setup.corpora.vocabulary, training=False)
    local = setup.replicas.local_results
    sources = {variable.path: local(variable.value)[0] for variable in network_variables(source)}
    snapshot = Snapshot(network, sources, device)
    snapshot.take()  # TensorFlow prepares a function at its first call
    score = EVALUATORS[task.name].in_run(setup, network, device, folder, load)
    log.info("evaluation     prepared for %s in %.1f s", device, time.perf_counter() - started_s)
    return InRunEvaluator(snapshot, score, folder)
