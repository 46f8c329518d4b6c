"""Evaluation of a run by the scores of its task: of a checkpoint, or at some of a run's steps."""

import logging
from pathlib import Path

from myxtts.base.files import check_writable, make_folder, write_json, write_whole
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.placement import devices
from myxtts.report.samples import SCORES
from myxtts.tasks.evaluation import held_out
from myxtts.tasks.evaluation.held_out import Evaluation, EvaluationOptions
from myxtts.tasks.registry import evaluation_of

log = logging.getLogger(__name__)


# Options and outputs are checked first, then the corpus is loaded, and only then the task measures,
# which takes minutes. The table is printed before it is written, so that a full disk cannot take
# it.
def evaluate_run(run: Path, checkpoint: str | None, options: EvaluationOptions) -> None:
    """Measure a run on GPU 0 or else on the CPU; print a table, and write JSON and plots.

    Raises UserError if the run, its vocoder, a corpus, an output or an option cannot be used.
    """
    trained = TrainedRun.open_for_use(run, checkpoint)

    held_out.check_options(run, trained.task, options)
    check_writable("--json", options.json_file)
    folder = held_out.output_folder(run, trained.checkpoint.path, options)
    make_folder(folder, "--out")
    route = devices.configure_default().routes[0]
    corpus = held_out.load_measured(trained, options, folder)
    log.info("evaluation     %s", trained.checkpoint.path)
    evaluation = Evaluation(run, trained.record, corpus, options, route)
    score = evaluation_of(trained.task).score_run(trained, evaluation, folder)
    print(score.table())
    if options.json_file is not None:
        write_json(options.json_file, score.to_json())
    # report.html of the run shows it.
    write_whole(folder / SCORES, (score.table() + "\n").encode())
