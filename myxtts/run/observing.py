"""Opens the observer of a run, and repeats observations that an earlier process left unfinished.

What comes in are the set-up of a run and what its results go to: checkpoints, reports, the request
to stop early. The main thread builds a second network for the snapshot, traces all that the
observer's thread will call, and begins the pending observations. What goes out are the observer and
its snapshot, for the hook `Observe`.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keras
import tensorflow as tf

from myxtts.audio.vocoder import LoadVocoder
from myxtts.base.errors import check_packages
from myxtts.base.files import tolerate_full_disk, write_whole
from myxtts.base.progress import Observation, without
from myxtts.checkpoints.files import checkpoint_of
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.devicefeed.routes import Route
from myxtts.devicefeed.times import Timeline
from myxtts.report.metrics import FIGURES
from myxtts.report.reporter import Reporter
from myxtts.report.samples import EVALUATION_FOLDER, SCORES
from myxtts.run.observation import HeldOutWork, Observer, Snapshot, vocoder_loader
from myxtts.run.saving import Checkpoints
from myxtts.run.setup import TrainingSetup
from myxtts.run.stop_request import StopRequest
from myxtts.tasks.base import Evaluator, Throttle, computes_as_evaluated, no_throttle
from myxtts.tasks.evaluation import held_out, metrics
from myxtts.tasks.evaluation.held_out import Evaluation, EvaluationOptions
from myxtts.tasks.evaluation.table import ScoreWeights
from myxtts.tasks.registry import evaluation_of

log = logging.getLogger(__name__)


# First come the second network and the work on it. Its functions are traced here, on the main
# thread, even if another thread calls them. Then two functions tie the work to the run. `observe`
# runs in the observer's thread, if there is one: it measures, and writes the metrics at once.
# `record` runs in the main thread between two steps: it notes the result in the state and the
# checkpoints, and may end the run. So a result is applied while the state is at rest.
@contextmanager
def open_observer(
    setup: TrainingSetup,
    checkpoints: Checkpoints,
    reporter: Reporter,
    timeline: Timeline,
    request: StopRequest,
) -> Iterator[tuple[Observer, Snapshot]]:
    """Open the observer of a run, which may end it, and the snapshot that it works on."""
    config, folder, device = setup.config, setup.run.start.folder, setup.observer
    figure = FIGURES[config.run.select_by].metric
    began_s, in_thread = time.perf_counter(), bool(setup.replicas.observer)
    snapshot = Snapshot.of_run(setup)
    load = vocoder_loader(setup, device, folder)
    evaluator: Evaluator | None = None
    if config.run.evaluate_every:
        # Opening it imports every evaluator, which takes 0.4 s, and few runs need it.
        evaluator = open_evaluator(setup, snapshot.network, device, folder, load)
    work = HeldOutWork(setup, snapshot, reporter.tensorboard, load, evaluator)
    if in_thread:
        # Keras and tracing are for the main thread alone, and TensorFlow prepares a function at its
        # first call. So everything is called once here.
        work.trace()
        snapshot.take()
        log.info("observer       traced for %s in %.1f s", device, time.perf_counter() - began_s)

    def observe(observation: Observation, throttle: Throttle | None) -> dict[str, float]:
        # If the run is killed before a checkpoint knows the result, the resumed run repeats the
        # observation, and writes an equal result once more.
        metrics = work.observe(observation, throttle)
        # All earlier results are recorded by now, since there is one observation at a time.
        if figure in metrics and (best := checkpoints.best_with(observation.step, metrics[figure])):
            metrics[f"best_step_by_{config.run.select_by}"] = best.step
        if metrics:
            reporter.write(observation.step, metrics)
        return metrics

    def record(observation: Observation, metrics: dict[str, float]) -> None:
        checkpoints.record(setup.state, observation.step, metrics.get(figure))
        request.is_early = checkpoints.is_patience_over

    def may_record() -> bool:
        return not checkpoints.is_writing

    with Observer(observe, record, in_thread, may_record, timeline) as observer:
        repeat_pending(setup, observer, snapshot, request)
        yield observer, snapshot


def repeat_pending(
    setup: TrainingSetup, observer: Observer, snapshot: Snapshot, request: StopRequest
) -> None:
    """Redo observations whose results the checkpoint lacks; the last may run during training."""
    state, checkpoints = setup.state, setup.run.start.folder.checkpoints
    for observation in state.pending_observations:
        checkpoint = checkpoint_of(checkpoints, observation.step)
        if not checkpoint.exists():
            log.warning("%s: lost, since the checkpoint of that step is gone", observation)
            state.pending_observations = without(state.pending_observations, observation.step)
            continue
        observer.wait(lambda: False)
        if request.is_early:
            return
        snapshot.load(checkpoint)
        observer.begin(observation)


def open_evaluator(
    setup: TrainingSetup, source: keras.Model, device: str, folder: RunFolder, load: LoadVocoder
) -> Evaluator:
    """Return the evaluator of a run, which also writes `evaluation/CHECKPOINT/scores.md`.

    It measures the weights of `source`, a network on the device. Raises UserError.
    """
    started_s = time.perf_counter()
    if setup.config.run.select_by == "dnsmos":
        check_packages("--select-by dnsmos", *metrics.PACKAGES["dnsmos_p808"])
    network = source
    snapshot = None
    # A run must find the same scores as `myxtts evaluate`. Most runs have a network that computes
    # as `evaluate` does. The others hold one more in float32.
    if not computes_as_evaluated(setup.config):
        local = setup.replicas.local_results
        sources = {v.path: local(v.value)[0] for v in source.variables}
        vocabulary = setup.corpora.vocabulary
        with tf.device(device):
            network = setup.task.build(setup.config, vocabulary, "float32", sources)
        snapshot = Snapshot(network, sources, device)
        # TensorFlow prepares a function at its first call.
        snapshot.take()
    run = setup.config.run
    options = EvaluationOptions(
        utterances=run.evaluate_utterances,
        asr=Path(run.evaluate_asr) if run.evaluate_asr else None,
        # One seed, since a run compares the figures of different steps, all with the same noise.
        # A voice has perceptual scores for copies only, which are the same at all steps.
        seeds=(0,),
        perceptual=run.evaluate_pesq,
    )
    corpora, config = setup.corpora, held_out.for_evaluation(setup.config)
    assert corpora.held_out is not None
    corpus = held_out.held_out_corpus(
        corpora.training, corpora.held_out, corpora.vocabulary, config
    )
    evaluation = Evaluation(folder.path, setup.record, corpus, options, Route(device, device))
    measure: ScoreWeights = evaluation_of(setup.task.name).score_in_run(evaluation, network, load)
    log.info("evaluation     prepared for %s in %.1f s", device, time.perf_counter() - started_s)

    def evaluate(step: int, throttle: Throttle | None) -> dict[str, float]:
        if snapshot is not None:
            snapshot.take()
        checkpoint = checkpoint_of(folder.checkpoints, step).name
        score = measure(checkpoint, throttle or no_throttle)
        # A full disk must not end a run that has trained for days, only because of a table.
        with tolerate_full_disk(f"the scores of step {step}"):
            scores = folder.path / EVALUATION_FOLDER / checkpoint
            scores.mkdir(parents=True, exist_ok=True)
            write_whole(scores / SCORES, (score.table() + "\n").encode())
        log.info("step %6d | %s", step, score.console_line())
        return {f"evaluation_{name}": value for name, value in score.figures().items()}

    return evaluate
