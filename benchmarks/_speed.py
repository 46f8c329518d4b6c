"""Speed of a run's network in training and synthesis on this machine, for benchmarks/voice.py."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import tensorflow as tf

from benchmarks._flops import matmul_flops_per_s, step_flops
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.vocoder import GriffinLim
from myxtts.batches.corpora import Corpus
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.schema import Config
from myxtts.devicefeed.producer import ProducedBatch
from myxtts.devicefeed.routes import Placement, Route
from myxtts.placement.replicas import make_replicas
from myxtts.run.schedule import ConstantRates
from myxtts.run.setup import build_state, configure_devices, make_step, tune
from myxtts.tasks import loading
from myxtts.tasks.evaluation.held_out import MeasuredCorpus, Utterance, load_held_out
from myxtts.tasks.evaluation.speech import vocode_mels
from myxtts.tasks.registry import task_of
from myxtts.tasks.tts.task import synthesis_options
from myxtts.tasks.tts.utterances import load_utterances, predict_mels


def speed_of(run: Path, utterances: int, iterations: int, steps: int) -> dict[str, float]:
    """Return real-time factors of held-out texts and the training step's share of the machine's
    matrix-product rate.

    Args:
        utterances: number of texts to synthesize.
        iterations: Griffin-Lim iterations.
        steps: number of training steps to time.
    """
    placement = configure_devices(Config())
    route = placement.routes[0]
    trained = TrainedRun.open_for_use(run)
    measured = load_held_out(trained, run)
    config = measured.config
    assert measured.training is not None
    with tf.device(route.model):
        rate = matmul_flops_per_s()
    figures = step_speed(config, measured.training, trained, placement, run, steps)
    figures |= {"rate_share": figures["step_flops_per_s"] / rate, "matmul_gflops": rate / 1e9}
    return figures | synthesis_speed(measured, trained, route, utterances, iterations)


def step_speed(
    config: Config, corpus: Corpus, trained: TrainedRun, placement: Placement, run: Path, steps: int
) -> dict[str, float]:
    """Return time and matrix products of the training step on one batch of medium length."""
    training = config.training.model_copy(update={"gradient_accumulation": 1})
    config = config.model_copy(update={"training": training})
    replicas, weights = make_replicas(placement.routes), trained.weights()
    state = build_state(config, trained.record.vocabulary, replicas, weights=weights)
    tune(config, state, corpus.plan)
    step = make_step(config, state)
    features = medium_batch(config, corpus, placement.routes[0], run).features
    rates, batches = ConstantRates(1e-6, 0.999), step.hand_over([features])
    times_s = []
    for number in range(1, steps + 3):
        started_s = time.perf_counter()
        outcome = step([batches], number, rates)
        step.synchronize(outcome)
        times_s.append(time.perf_counter() - started_s)
    step_s = median(times_s[2:])  # the first two trace and warm up
    flops = step_flops(state, batches[0])
    return {"step_gflop": flops / 1e9, "step_s": step_s, "step_flops_per_s": flops / step_s}


def medium_batch(config: Config, corpus: Corpus, route: Route, run: Path) -> ProducedBatch:
    """Return the first batch of the bucket in the middle."""
    middle = len(corpus.plan.bounds) // 2
    extractor = task_of(config).extractor(config, training=False)
    pipeline = Pipeline(
        corpus, [route], extractor, config.data, seed=config.training.seed, cache_folder=run
    )
    with pipeline.open_feed(Pass(epochs=1)) as feed:
        return next(batch for (batch,) in feed if batch.tag.step.bucket == middle)


def synthesis_speed(
    measured: MeasuredCorpus, trained: TrainedRun, route: Route, utterances: int, iterations: int
) -> dict[str, float]:
    """Return the seconds of computation per second of speech, after one warm-up pass."""
    network = loading.load_network(trained, route.model, "tts")
    loaded = load_utterances(network, measured, route, trained.path, utterances)
    options = synthesis_options(measured.config.model)

    def synthesize_batch(batch: Sequence[Utterance]) -> float:
        """Synthesize a batch and return the seconds of speech."""
        vocoder = GriffinLim(iterations)
        mels = predict_mels(network, trained.record, batch, options, route.model)
        waves = vocode_mels(vocoder, mels, route.model)
        return sum(map(len, waves)) / sample_rate_hz()

    figures = {}
    for name, batches in (("single", [[utterance] for utterance in loaded]), ("batch", [loaded])):
        factors = []
        for _ in range(2):  # the first pass is the warm-up
            started_s = time.perf_counter()
            speech_s = sum(map(synthesize_batch, batches))
            factors.append((time.perf_counter() - started_s) / speech_s)
        figures[f"real_time_factor_{name}"] = factors[-1]
    return figures
