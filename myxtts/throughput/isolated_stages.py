"""Times of each stage in isolation, on a run's own corpus, model and devices; and of an
all-reduce.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.batch import Batch
from myxtts.config.schema import Config
from myxtts.data.batch_plan import Pass
from myxtts.data.pipeline import Pipeline, ProduceFunction, trace_produce
from myxtts.evaluation.in_run import open_evaluator
from myxtts.placement import devices
from myxtts.placement.replicas import make_replicas
from myxtts.placement.routes import Route
from myxtts.report.reporter import TensorBoard
from myxtts.throughput.model import StageTimes
from myxtts.throughput.profiled_run import (
    MeasurementWindow,
    ProfiledRun,
    measurement_window,
    open_run,
)
from myxtts.throughput.stage_times import StageProfile
from myxtts.training.held_out import make_sampler, vocoder_loader
from myxtts.training.load_teacher import NoVoice
from myxtts.training.runs import RunFolder
from myxtts.training.setup import TrainingSetup
from myxtts.training.step import Step

SAMPLES_PER_BUCKET = 2  # batches that the stages are measured on, which bounds the memory
ALL_REDUCES = 20

SampleBatches = dict[int, list[Batch]]  # by bucket


def measure_stage_times(config: Config, steps: int) -> StageProfile:
    """Measure the stages of one replica on `steps` steps, a set of samples, an evaluation, and an
    all-reduce.

    Raises:
        UserError: as `open_run`.
    """
    with open_run(config) as run:
        pipeline = run.setup.training_pipeline(synchronize=run.setup.between_devices)
        window = measurement_window(pipeline, steps)
        times, _ = measure_isolated(run, pipeline, window)
        held_out = run.setup.corpora.held_out
        held_out_batches = held_out.plan.steps_per_epoch if held_out else 0
        samples_s = time_samples(run.setup) if held_out and config.run.sample_every else 0.0
        evaluation_s = time_evaluation(run.setup) if held_out and config.run.evaluate_every else 0.0
        all_reduce_s = measure_all_reduce(run)
        return StageProfile(
            times, window.measured_buckets, all_reduce_s, held_out_batches, samples_s, evaluation_s
        )


def measure_isolated(
    run: ProfiledRun, pipeline: Pipeline, window: MeasurementWindow
) -> tuple[StageTimes, SampleBatches]:
    """Return the times of the measured batches, each stage in isolation, and sample features on the
    data device.
    """
    read_s, waves = time_reading(pipeline, window)
    produce_s, features = time_stage(
        window, waves, produce_on(run.route.data, pipeline.producers[0].produce)
    )
    transfer_s, _ = time_stage(window, features, lambda batch: transfer(run.step, batch))
    step_s = time_steps(run.setup, run.step, window, features)
    return StageTimes(read_s, produce_s, transfer_s, step_s), features


def time_reading(pipeline: Pipeline, window: MeasurementWindow) -> tuple[np.ndarray, SampleBatches]:
    """Return the seconds between batches on the data device, float [measured batches], and sample
    batches.
    """
    times_s: list[float] = []
    samples: SampleBatches = {}
    with closing(pipeline.producers[0].read(Pass())) as batches:
        for bucket, (_, waves) in zip(window.bucket.tolist(), batches, strict=False):
            devices.synchronize(waves["pcm"])
            times_s.append(time.perf_counter())
            if len(samples.setdefault(bucket, [])) < SAMPLES_PER_BUCKET:
                samples[bucket].append(waves)
    return np.diff(times_s)[window.measured[1:]], samples


def time_stage(
    window: MeasurementWindow, samples: SampleBatches, stage: Callable[[Batch], Batch]
) -> tuple[np.ndarray, SampleBatches]:
    """Return the seconds of a stage for each measured batch, timed on samples of its bucket, and
    the results.
    """
    results = {
        bucket: [stage(batch) for batch in batches] for bucket, batches in samples.items()
    }  # warms up
    times_s = []
    for number, bucket in enumerate(window.measured_buckets.tolist()):
        batch = samples[bucket][number % len(samples[bucket])]
        started_s = time.perf_counter()
        stage(batch)
        times_s.append(time.perf_counter() - started_s)
    return np.array(times_s), results


def produce_on(device: str, produce: ProduceFunction) -> Callable[[Batch], Batch]:
    """Return a function that computes features and waits for the device."""

    def produce_and_wait(waves: Batch) -> Batch:
        with tf.device(device):
            features, element = produce(waves)
        element.numpy()
        return features

    return produce_and_wait


def time_producing_without_teacher(
    pipeline: Pipeline, window: MeasurementWindow
) -> np.ndarray | None:
    """Return the seconds to produce each measured batch without the teacher's network, float
    [measured batches].

    The same batches are produced by a function in which `NoVoice` takes the network's place.

    Returns:
        None if the run has no teacher.
    """
    producer = pipeline.producers[0]
    if producer.extractor.load_frozen is None:
        return None
    extractor = replace(producer.extractor, load_frozen=lambda _: NoVoice())
    _, waves = time_reading(pipeline, window)
    return time_stage(
        window, waves, produce_on(producer.device, trace_produce(producer.device, extractor))
    )[0]


def transfer(step: Step, features: Batch) -> Batch:
    """Copy features to the model device and wait for it."""
    (batch,) = step.hand_over([features])
    devices.synchronize(batch["mel"])
    return batch


def profile_learning_rate(steps_done: int) -> float:
    """Return a rate that leaves the weights as they are, and finite, at any step."""
    return 1e-8


def time_steps(
    setup: TrainingSetup, step: Step, window: MeasurementWindow, samples: SampleBatches
) -> np.ndarray:
    """Return the seconds of the step, shared evenly by its batches: float [measured batches]."""
    microbatches = min(
        2, setup.config.training.gradient_accumulation
    )  # the last batch of a step has its own trace
    for bucket in samples:
        time_step(setup, step, samples[bucket][:1] * microbatches)  # traces and warms up
    steps, buckets = window.step[window.measured], window.measured_buckets
    times_s: list[float] = []
    for number in dict.fromkeys(steps.tolist()):
        step_buckets = buckets[steps == number].tolist()
        batches = [
            samples[bucket][i % len(samples[bucket])]
            for i, bucket in enumerate(step_buckets, number)
        ]
        step_s = time_step(setup, step, batches)
        times_s += [step_s / len(batches)] * len(batches)
    return np.array(times_s)


def time_step(setup: TrainingSetup, step: Step, features: Sequence[Batch]) -> float:
    """Take a step on features of its microbatches; return its seconds, until the device has
    finished.

    The first microbatch is on the model device before; as in training, the step hands over another
    one.
    """
    first = [transfer(step, features[0])]
    following = [[batch] for batch in (*features[1:], features[0])]
    state, rates = setup.state, replace(setup.schedule, learning_rate=profile_learning_rate)
    started_s = time.perf_counter()
    outcome, _ = step(first, following, state.step + 1, rates)
    step.synchronize(outcome)
    seconds = time.perf_counter() - started_s
    state.step += 1  # the next step continues the numbers on the device
    return seconds


def time_samples(setup: TrainingSetup) -> float:
    """Return the seconds in which the model device and the host write a set of samples."""
    state = setup.state
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        with closing(TensorBoard(folder.tensorboard)) as tensorboard:
            pipeline = setup.validation_pipeline()
            load = vocoder_loader(setup, state.device, folder)
            sampler = make_sampler(
                setup, state.model, state.device, pipeline, folder, tensorboard, load
            )
            with tf.device(state.device):
                sampler.trace()
                for step in range(2):  # the first call prepares pictures and functions
                    started_s = time.perf_counter()
                    sampler(step)
            return time.perf_counter() - started_s


def time_evaluation(setup: TrainingSetup) -> float:
    """Return the seconds in which the model device and the host measure the scores of held-out
    utterances.
    """
    state = setup.state
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        load = vocoder_loader(setup, state.device, folder)
        evaluator = open_evaluator(setup, state.model, state.device, folder, load)
        for step in range(2):  # the first call prepares functions
            started_s = time.perf_counter()
            evaluator(step, None)
        return time.perf_counter() - started_s


def measure_all_reduce(run: ProfiledRun) -> float:
    """Return the seconds in which replicas on the two devices of a run reduce the gradients of a
    step.
    """
    gradients = [(variable.shape, variable.dtype) for variable in run.setup.state.trained]
    return time_all_reduce((run.route.data, run.route.model), gradients)


def time_all_reduce(models: Sequence[str], gradients: Sequence[tuple[Sequence[int], str]]) -> float:
    """Return the median seconds in which replicas on these devices reduce gradients, as `Step`
    does.

    Call it in a process without another strategy of several devices: TensorFlow would take both for
    parts of one all-reduce.

    Args:
        gradients: shape and dtype of each.
    """
    replicas = make_replicas(tuple(Route(model, model) for model in models))
    by_device = []
    for model in models:
        with tf.device(model):
            by_device.append([tf.zeros(*gradient) for gradient in gradients])

    @tf.function(autograph=False)
    def all_reduce(by_device):
        summed = replicas.strategy.run(
            lambda gradients: tf.distribute.get_replica_context().all_reduce("SUM", gradients),
            (replicas.per_replica(by_device),),
        )
        return [replicas.local_results(gradient) for gradient in summed]

    times_s = []
    for _ in range(ALL_REDUCES + 1):
        started_s = time.perf_counter()
        for copy in all_reduce(by_device)[-1]:
            devices.synchronize(copy)
        times_s.append(time.perf_counter() - started_s)
    return float(np.median(times_s[1:]))  # the first call traces
