"""Evaluation of a run by the evaluator of its task."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras

from myxtts.evaluation import asr, tts, vocoder
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.table import ScoreWeights
from myxtts.training.observation import LoadVocoder
from myxtts.training.runs import RunFolder, TrainedRun
from myxtts.training.setup import TrainingSetup


class TaskEvaluators(NamedTuple):
    """The functions that measure a run of a task.

    Attributes:
        of_run: measures a checkpoint; see `evaluate_run`.
        in_run: (setup, network, device, folder, load_vocoder) -> what measures a network during its
            run.
    """

    of_run: Callable[[Path, str | None, EvaluationOptions], None]
    in_run: Callable[[TrainingSetup, keras.Model, str, RunFolder, LoadVocoder], ScoreWeights]


EVALUATORS = {
    "tts": TaskEvaluators(tts.evaluate_tts, tts.score_in_run),
    "asr": TaskEvaluators(asr.evaluate_asr, asr.score_in_run),
    "vocoder": TaskEvaluators(vocoder.evaluate_vocoder, vocoder.score_in_run),
}


def evaluate_run(run: Path, checkpoint: str | None, options: EvaluationOptions) -> None:
    """Measure a run on GPU 0 or else on the CPU; print a table, and write JSON and plots.

    Raises:
        UserError: the run, a corpus or an output cannot be used.
    """
    trained = TrainedRun.open(run, checkpoint)
    EVALUATORS[trained.task].of_run(run, trained.checkpoint.path.name, options)
