"""Evaluation of a run by the evaluator of its task."""

from pathlib import Path

from myxtts.evaluation.asr_score import evaluate_asr
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.tts_score import evaluate_tts
from myxtts.evaluation.vocoder_score import evaluate_vocoder
from myxtts.tasks.registry import task_of
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.select_checkpoint import select_checkpoint, settings_of

EVALUATORS = {"tts": evaluate_tts, "asr": evaluate_asr, "vocoder": evaluate_vocoder}  # by task


def evaluate_run(run: Path, checkpoint: str | None, options: EvaluationOptions) -> None:
    """Measure a run on GPU 0 or else on the CPU; print a table, and write JSON and plots.

    Raises:
        UserError: the run, a corpus or an output cannot be used.
    """
    selected = select_checkpoint(run, checkpoint)
    task = task_of(settings_of(selected, read_metadata(selected)))
    EVALUATORS[task.name](run, selected.name, options)
