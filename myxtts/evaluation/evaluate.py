"""Evaluation of a run by the scores of its task: of a checkpoint, or at some of a run's steps."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from myxtts.evaluation import asr, tts, vocoder
from myxtts.evaluation.held_out import output_folder
from myxtts.evaluation.options import EvaluationOptions, check_options
from myxtts.evaluation.table import Score, ScoreWeights, write_table
from myxtts.files import check_writable, make_folder, tolerate_full_disk, write_json
from myxtts.models.loss_groups import network_variables
from myxtts.placement import devices
from myxtts.placement.routes import Route
from myxtts.report.samples import EVALUATION_FOLDER
from myxtts.tasks.base import computes_as_evaluated
from myxtts.tasks.registry import task_of
from myxtts.training.checkpoint_files import checkpoint_of
from myxtts.training.observation import LoadVocoder, Snapshot, Throttle, no_throttle
from myxtts.training.runs import RunFolder, TrainedRun
from myxtts.training.setup import TrainingSetup

log = logging.getLogger(__name__)


class TaskEvaluators(NamedTuple):
    """The functions that measure a run of a task.

    Attributes:
        of_run: (run, options, route, folder) -> the score of a checkpoint; writes plots and sounds.
        in_run: (setup, network, device, folder, load_vocoder) -> what measures a network during its
            run, with everything compiled.
    """

    of_run: Callable[[TrainedRun, EvaluationOptions, Route, Path], Score]
    in_run: Callable[[TrainingSetup, keras.Model, str, RunFolder, LoadVocoder], ScoreWeights]


EVALUATORS = {
    "tts": TaskEvaluators(tts.score_tts, tts.score_in_run),
    "asr": TaskEvaluators(asr.score_asr, asr.score_in_run),
    "vocoder": TaskEvaluators(vocoder.score_vocoder, vocoder.score_in_run),
}


def evaluate_run(
    run: Path, checkpoint: str | None, options: EvaluationOptions, task: str | None = None
) -> None:
    """Measure a run on GPU 0 or else on the CPU; print a table, and write JSON and plots.

    Args:
        task: the task that the run must have; None for any.

    Raises:
        UserError: the run, its vocoder, a corpus, an output or an option cannot be used.
    """
    trained = TrainedRun.open(run, checkpoint)
    if task is not None:
        trained.check_task(task)
    # A measurement takes minutes, so whatever can be wrong with its outputs is found before it.
    check_options(run, trained.task, options)
    check_writable("--json", options.json_file)
    folder = output_folder(run, trained.checkpoint.path, options)
    make_folder(folder, "--out")
    route = devices.configure_default().routes[0]
    score = EVALUATORS[trained.task].of_run(trained, options, route, folder)
    print(score.table())
    if options.json_file is not None:
        write_json(options.json_file, score.to_json())
    write_table(score, folder)


class InRunEvaluator:
    """Measures the weights of a network during its run; see `tasks.base.Evaluator`.

    Args:
        snapshot: a further network, which gets the weights; None to measure the network itself.
        score: measures a network.
        folder: gets `evaluation/CHECKPOINT/scores.md`, as from `evaluate`.
    """

    def __init__(self, snapshot: Snapshot | None, score: ScoreWeights, folder: RunFolder):
        self._snapshot = snapshot
        self._score = score
        self._folder = folder

    def __call__(self, step: int, throttle: Throttle | None) -> dict[str, float]:
        if self._snapshot is not None:
            self._snapshot.take()
        checkpoint = checkpoint_of(self._folder.checkpoints, step).name
        score = self._score(checkpoint, throttle or no_throttle)
        # A full disk must not end a run that may have trained for days, only for a table.
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
    started_s = time.perf_counter()
    task = task_of(setup.config)
    network = source
    snapshot = None
    # The scores are to be those of `evaluate`. Most runs have a network that computes as it does,
    # and hold no further one.
    if not computes_as_evaluated(setup.config):
        with tf.device(device):
            network = task.build(setup.config, setup.corpora.vocabulary, training=False)
        local = setup.replicas.local_results
        sources = {v.path: local(v.value)[0] for v in network_variables(source)}
        snapshot = Snapshot(network, sources, device)
        # TensorFlow prepares a function at its first call.
        snapshot.take()
    score = EVALUATORS[task.name].in_run(setup, network, device, folder, load)
    log.info("evaluation     prepared for %s in %.1f s", device, time.perf_counter() - started_s)
    return InRunEvaluator(snapshot, score, folder)
