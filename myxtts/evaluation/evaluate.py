"""Evaluation of a run by the scores of its task: of a checkpoint, or at some of a run's steps."""

import logging
import time
from pathlib import Path

import keras
import tensorflow as tf

from myxtts.base.errors import check_packages
from myxtts.base.files import (
    check_writable,
    make_folder,
    tolerate_full_disk,
    write_json,
    write_whole,
)
from myxtts.devicefeed.routes import Route
from myxtts.evaluation import asr, held_out, metrics, tts, vocoder
from myxtts.evaluation.held_out import Evaluation, EvaluationOptions
from myxtts.evaluation.table import ColumnScore, ScoreWeights
from myxtts.placement import devices
from myxtts.report.samples import EVALUATION_FOLDER, SCORES
from myxtts.tasks.base import Evaluator, computes_as_evaluated
from myxtts.tasks.registry import task_of
from myxtts.training.checkpoint_files import checkpoint_of
from myxtts.training.observation import LoadVocoder, Snapshot, Throttle, no_throttle
from myxtts.training.runs import RunFolder, TrainedRun
from myxtts.training.setup import TrainingSetup

Score = ColumnScore | asr.ASRScore

log = logging.getLogger(__name__)


EVALUATORS = {"tts": tts, "asr": asr, "vocoder": vocoder}
"""Each module has `score_run`, which measures a checkpoint and writes plots and sounds, and
`score_in_run`, which returns what measures a network during its run.
"""


def evaluate_run(run: Path, checkpoint: str | None, options: EvaluationOptions) -> None:
    """Measure a run on GPU 0 or else on the CPU; print a table, and write JSON and plots.

    Raises UserError if the run, its vocoder, a corpus, an output or an option cannot be used.
    """
    trained = TrainedRun.open(run, checkpoint)
    # A measurement takes minutes, so whatever can be wrong with its outputs is found before it.
    held_out.check_options(run, trained.task, options)
    check_writable("--json", options.json_file)
    folder = held_out.output_folder(run, trained.checkpoint.path, options)
    make_folder(folder, "--out")
    route = devices.configure_default().routes[0]
    corpus = held_out.load_measured(trained, options, folder)
    log.info("evaluation     %s", trained.checkpoint.path)
    evaluation = Evaluation(run, trained.record, corpus, options, route)
    score: Score = EVALUATORS[trained.task].score_run(trained, evaluation, folder)
    print(score.table())
    if options.json_file is not None:
        write_json(options.json_file, score.to_json())
    # report.html of the run shows it.
    write_whole(folder / SCORES, (score.table() + "\n").encode())


def open_evaluator(
    setup: TrainingSetup, source: keras.Model, device: str, folder: RunFolder, load: LoadVocoder
) -> Evaluator:
    """Return the evaluator of a run, which also writes `evaluation/CHECKPOINT/scores.md`.

    It measures the weights of the network `source`, which is on the device. Raises UserError if the
    recogniser or the vocoder cannot be used, or a file cannot be read.
    """
    started_s = time.perf_counter()
    if setup.config.run.select_by == "dnsmos":
        check_packages("--select-by dnsmos", *metrics.PACKAGES["dnsmos_p808"])
    task = task_of(setup.config)
    network = source
    snapshot = None
    # The scores are to be those of `evaluate`. Most runs have a network that computes as it does,
    # and hold no further one.
    if not computes_as_evaluated(setup.config):
        with tf.device(device):
            network = task.build(setup.config, setup.corpora.vocabulary, "float32")
        local = setup.replicas.local_results
        sources = {v.path: local(v.value)[0] for v in source.variables}
        snapshot = Snapshot(network, sources, device)
        # TensorFlow prepares a function at its first call.
        snapshot.take()
    run = setup.config.run
    options = EvaluationOptions(
        utterances=run.evaluate_utterances,
        asr=Path(run.evaluate_asr) if run.evaluate_asr else None,
        # In a run the figures of different steps are compared, all with the same noise. Copies are
        # the same at all steps, and so would the perceptual scores of a voice be.
        seeds=(0,),
        perceptual=run.evaluate_pesq,
    )
    corpora, config = setup.corpora, held_out.for_evaluation(setup.config)
    assert corpora.held_out is not None
    corpus = held_out.held_out_corpus(
        corpora.training, corpora.held_out, corpora.vocabulary, config
    )
    evaluation = Evaluation(folder.path, setup.record, corpus, options, Route(device, device))
    measure: ScoreWeights = EVALUATORS[task.name].score_in_run(evaluation, network, load)
    log.info("evaluation     prepared for %s in %.1f s", device, time.perf_counter() - started_s)

    def evaluate(step: int, throttle: Throttle | None) -> dict[str, float]:
        if snapshot is not None:
            snapshot.take()
        checkpoint = checkpoint_of(folder.checkpoints, step).name
        score = measure(checkpoint, throttle or no_throttle)
        # A full disk must not end a run that may have trained for days, only for a table.
        with tolerate_full_disk(f"the scores of step {step}"):
            scores = folder.path / EVALUATION_FOLDER / checkpoint
            scores.mkdir(parents=True, exist_ok=True)
            write_whole(scores / SCORES, (score.table() + "\n").encode())
        log.info("step %6d | %s", step, score.console_line())
        return {f"evaluation_{name}": value for name, value in score.figures().items()}

    return evaluate
