"""Observations: validation, samples and evaluation of the weights that a run has after a step.

What comes in is a snapshot of the averaged weights after a step, in a second network. The main
thread copies it from device to device. Then the parts of the observation that are due run on it:
losses over the held-out corpus, samples, scores. They run on the first model device between two
steps, or in the observer's thread on another device while training goes on. What goes out are
metrics by name. Both ways share all code, and the main thread applies the result between two steps.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import islice
from math import ceil
from pathlib import Path

import keras
import tensorflow as tf

from myxtts.audio.format import audio_format, sample_rate_hz
from myxtts.audio.vocoder import LoadVocoder
from myxtts.base.clock import format_duration
from myxtts.base.errors import TrainingError, lacking_memory
from myxtts.base.progress import Observation, join_and
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import HELD_OUT_PASS, Pass
from myxtts.checkpoints.files import Checkpoint
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.checkpoints.trained_run import select_vocoder
from myxtts.checkpoints.variables import load_variables
from myxtts.corpus.sound import read_row
from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.contract import tensor_specs
from myxtts.devicefeed.errors import UserError
from myxtts.devicefeed.handover import HandOver
from myxtts.devicefeed.producer import ProducedBatch, ReplicaFeed, launch_lock
from myxtts.devicefeed.times import Span, Timeline
from myxtts.report.reporter import TensorBoard
from myxtts.run.schedule import EVALUATION, FLAGS, SAMPLES, VALIDATION
from myxtts.run.setup import TrainingSetup, typical_sizes
from myxtts.tasks import loading
from myxtts.tasks.base import (
    SAMPLED_UTTERANCES,
    Evaluator,
    Examples,
    Metric,
    Sampler,
    Throttle,
    no_throttle,
)
from myxtts.tasks.layers import loss_names

OBSERVER = "observer"  # kind of the pauses for it, and lane of its spans

POLL_S = 0.002  # the waiting observer looks at the feed so often
STOP_POLL_S = 0.1  # the waiting main thread looks for a request to stop so often

TOLERATED_WAIT = 0.005  # fraction of the time between two observations that needs no warning

Batches = Iterable[tuple[ProducedBatch, ...]]

log = logging.getLogger(__name__)


class Snapshot:
    """A network with a copy of the weights that other variables have at some time.

        snapshot = Snapshot.of_run(setup)
        snapshot.take()
        losses, outputs = snapshot.network(batch)

    Sources have the names of the network's variables. The copy is traced here, on the main thread.
    """

    def __init__(self, network: keras.Model, sources: Mapping[str, tf.Variable], device: str):
        variables = {v.path: v.value for v in network.variables}
        assert variables.keys() == sources.keys()
        require_device(device, variables.items())
        self.network, self.device = network, device
        self._variables = variables

        def copy() -> None:
            for name, variable in variables.items():
                with tf.device(sources[name].device):
                    weights = sources[name].read_value()
                with tf.device(device):
                    variable.assign(weights)

        self._copy = tf.function(copy, autograph=False).get_concrete_function()

    @classmethod
    def of_run(cls, setup: TrainingSetup) -> "Snapshot":
        """Build the network that a run observes, on the device of its observer."""
        config, device = setup.config, setup.observer
        sources = setup.state.inference_variables()
        with tf.device(device):
            network = setup.task.build(config, setup.corpora.vocabulary, weights=sources)
        setup.task.tune(config, network, device, typical_sizes(setup.corpora.training.plan))
        return cls(network, sources, device)

    def take(self) -> None:
        """Copy the weights as the last queued step leaves them, from device to device."""
        with launch_lock(self.device):
            self._copy()

    def load(self, checkpoint: Path) -> None:
        """Set the weights from a checkpoint; raises CheckpointError if it is damaged."""
        read = Checkpoint.read(checkpoint)
        load_variables(read, {read.record.weights_group: self._variables})


class Validation:
    """Mean losses over a held-out corpus.

        losses = validation.evaluate()
        losses["loss"]

    Args:
        model: its call returns (losses, outputs).
        open_feed: opens a pass; the losses of its batches are shares of the mean.
        make_metric: makes the task's metric for each pass, if the task has one.
    """

    def __init__(
        self,
        model,
        device: str,
        open_feed: Callable[[], AbstractContextManager[Batches]],
        make_metric: Callable[[], Metric] | None = None,
    ):
        def losses_of(batch):
            by_name, outputs = model(batch, training=False)
            measured = {}
            if make_metric:
                measured = make_metric().measure(batch, outputs)
            return tf.stack([by_name[name] for name in self._names]), measured

        self._minimised, self._device = model.LOSS_NAMES, device
        self._names = loss_names(model)
        self._losses = tf.function(
            losses_of, input_signature=[tensor_specs(model.BATCH_FIELDS)], autograph=False
        )
        self._hand_over = HandOver(model.BATCH_FIELDS, [device])
        self._open_feed = open_feed
        self._make_metric = make_metric

    def trace(self) -> None:
        """Compile what a pass computes, so that another thread may call `evaluate`."""
        self._losses.get_concrete_function()

    def evaluate(self, throttle: Throttle | None = None) -> dict[str, float]:
        """Return each loss, their sum as `loss`, and the figures of the metric.

        `throttle` is called before each batch; nothing is queued on the device then.
        """
        metric = self._make_metric() if self._make_metric else None
        shares = []
        # The loop has no device scope: without a feed, this thread also reads, and operations of
        # tf.data have CPU kernels only. The loss of each batch stays on the device until the end.
        with self._open_feed() as feed:
            for (produced,) in throttled(feed, throttle or no_throttle):
                with tf.device(self._device):
                    with launch_lock(self._device):
                        (batch,) = self._hand_over([produced.features])
                        share, measured = self._losses(batch)
                    shares.append(share)
                    if throttle is not None:
                        # Without this wait, batches would be queued when the throttle is called.
                        share.numpy()
                    if metric:
                        metric.update(batch, measured)
            with tf.device(self._device):
                total = tf.add_n(shares)
        losses = dict(zip(self._names, total.numpy().tolist(), strict=True))
        losses["loss"] = sum(losses[name] for name in self._minimised)
        if metric:
            losses |= metric.result()
        return losses


def make_validation(
    setup: TrainingSetup,
    snapshot: Snapshot,
    pipeline: Pipeline,
    corpus_pass: Pass = HELD_OUT_PASS,
    count: int | None = None,
) -> Validation:
    """Return the validation of a run, on all held-out batches of a pass or on the first ones."""

    # An observer's thread makes its batches itself, since its throttle holds between two batches.
    # If training waits for the observation, a feed makes them ahead in a thread of its own.
    @contextmanager
    def open_batches() -> Iterator[Batches]:
        open_ = pipeline.open_unbuffered if setup.replicas.observer else pipeline.open_feed
        with open_(corpus_pass) as batches:
            yield islice(batches, count)

    metric = setup.task.metric(setup.corpora.vocabulary)
    return Validation(snapshot.network, snapshot.device, open_batches, metric)


def throttled(batches: Batches, throttle: Throttle) -> Iterator[tuple[ProducedBatch, ...]]:
    """Yield the batches; call `throttle` before each is made."""
    iterator = iter(batches)
    throttle()
    for batch in iterator:
        yield batch
        throttle()


class HeldOutWork:
    """The parts of an observation: validation, samples and evaluation of a snapshot."""

    def __init__(
        self,
        setup: TrainingSetup,
        snapshot: Snapshot,
        tensorboard: TensorBoard,
        load: LoadVocoder,
        evaluator: Evaluator | None,
    ):
        config, network, folder = setup.config, snapshot.network, setup.run.start.folder
        self._device, self._evaluator = snapshot.device, evaluator
        pipeline = setup.validation_pipeline()
        self._sampler: Sampler | None = None
        if config.run.sample_every:
            self._sampler = make_sampler(
                setup, network, self._device, pipeline, folder, tensorboard, load
            )
        self._validation = make_validation(setup, snapshot, pipeline)

    def trace(self) -> None:
        """Compile everything on the main thread, so that another thread may call `observe`."""
        with tf.device(self._device):
            self._validation.trace()
            if self._sampler:
                self._sampler.trace()

    def observe(self, observation: Observation, throttle: Throttle | None) -> dict[str, float]:
        """Do the parts of an observation; return metrics such as `validation_loss` by name.

        Raises TrainingError if the device is out of memory. `throttle`: see `Validation.evaluate`.
        """
        metrics: dict[str, float] = {}
        try:
            if VALIDATION in observation.parts:
                for name, value in self._validation.evaluate(throttle).items():
                    metrics[f"validation_{name}"] = value
            if self._sampler and SAMPLES in observation.parts:
                if throttle is not None:
                    throttle()
                with tf.device(self._device):
                    self._sampler(observation.step)
            if self._evaluator and EVALUATION in observation.parts:
                metrics |= self._evaluator(observation.step, throttle)
        except tf.errors.ResourceExhaustedError as error:
            raise TrainingError(
                f"{observation}: out of memory on {self._device}: {lacking_memory(error)}."
                " Resume with another --observer, or with --sample-every 0 or --evaluate-every 0."
            ) from error
        return metrics


def vocoder_loader(setup: TrainingSetup, device: str, folder: RunFolder) -> LoadVocoder:
    """Return a function that loads the vocoder of a run's settings, once for all calls."""
    named = setup.config.model.vocoder
    choose = partial(select_vocoder, folder.path, named, audio_format(sample_rate_hz()))
    return cache(lambda: loading.load_vocoder(choose(), device))


def make_sampler(
    setup: TrainingSetup,
    network: keras.Model,
    device: str,
    pipeline: Pipeline,
    folder: RunFolder,
    tensorboard: TensorBoard,
    load: LoadVocoder,
) -> Sampler:
    """Return the sampler of the first held-out batch."""
    config, corpora = setup.config, setup.corpora
    assert corpora.held_out is not None
    extractor = setup.task.sample_extractor(config, setup.load_teacher)
    if extractor is not None:
        pipeline = setup.validation_pipeline(extractor)
    with pipeline.open_feed(Pass(epochs=1)) as feed:
        (first,) = next(feed)
    (batch,) = HandOver(network.BATCH_FIELDS, [device])([first.features])
    rows, manifest = first.tag.rows[:SAMPLED_UTTERANCES], corpora.held_out.manifest
    ids, texts = ([column[row] for row in rows] for column in (manifest.ids, manifest.texts))
    recordings = [read_row(manifest, row, config.data.loudness) for row in rows]
    examples = Examples(batch, ids, texts, recordings)
    with tf.device(device):
        make = setup.task.sampler(config, corpora.vocabulary, load)
        return make(network, examples, folder.samples, tensorboard)


class ObserverFailed(RuntimeError):
    """An observation raised an unexpected exception (see `__cause__`)."""


class _Abandoned(Exception):
    """The run ends. A resumed run repeats the observation from its beginning."""


# `begin` starts a thread for the observation, which sets its result. The main thread takes the
# result in `poll`, between two steps, or in `wait`, if the next observation is due. Before each
# batch the thread calls `_throttle`: as long as the feeds are not full, producers need the device
# and the host more, and the observer sleeps, unless training waits for it. Without a thread,
# `begin` does the work, and only keeps the result until `poll`.
class Observer:
    """Runs one observation at a time. All methods are for the main thread.

        with Observer(observe, record) as observer:
            observer.begin(observation)
            observer.poll()

    Args:
        observe: (observation, throttle or None) does the work and returns metrics by name.
        record: (observation, metrics) applies a result, in the order of the observations.
        in_thread: observe in a thread while training goes on; otherwise `begin` does the work.
        may_record: whether a result can be applied at once.
    """

    def __init__(
        self,
        observe: Callable[[Observation, Throttle | None], dict[str, float]],
        record: Callable[[Observation, dict[str, float]], None],
        in_thread: bool = True,
        may_record: Callable[[], bool] = lambda: True,
        timeline: Timeline | None = None,
        now: Callable[[], float] = time.perf_counter,
    ):
        self._observe, self._record, self._may_record = observe, record, may_record
        self._in_thread, self._now = in_thread, now
        self._timeline = timeline or Timeline()
        self._feed: ReplicaFeed | None = None
        self._running: Observation | None = None
        self._result: Future[dict[str, float]] = Future()
        self._began_s = 0.0
        self._awaited = threading.Event()
        self._closing = threading.Event()
        self._has_warned = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Observer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abandon the observation that is running after its batch, and end the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def watch(self, feed: ReplicaFeed) -> None:
        """Let the producers of a feed go first from now on."""
        self._feed = feed

    def begin(self, observation: Observation) -> None:
        """Begin an observation of the snapshot; without a thread, raise errors of the work."""
        assert self._running is None, "two observations at a time"
        self._began_s, self._result = self._now(), Future()
        if self._in_thread:
            work = partial(self._run, observation, self._result)
            self._thread = threading.Thread(target=work, name="myxtts-observer", daemon=True)
            self._thread.start()
        else:
            self._result.set_result(self._observe(observation, None))
        self._running = observation

    def poll(self) -> None:
        """Apply the result of the observation that is running, if it is there and `may_record`.

        Raises the UserError of the observation, or ObserverFailed for another exception.
        """
        if self._running is not None and self._result.done() and self._may_record():
            self._finish(self._running)

    def wait(self, is_stopped: Callable[[], bool], due_step: int | None = None) -> bool:
        """Wait for the result of the running observation; return whether none is running now.

        The observation of `due_step` waits for it. A request to stop leaves it unfinished.
        """
        observation = self._running
        if observation is None:
            return True
        start_s = self._now()
        self._awaited.set()
        try:
            while not futures.wait([self._result], STOP_POLL_S).done:
                if is_stopped():
                    return False
        finally:
            self._awaited.clear()
        waited_s, between_s = self._now() - start_s, start_s - self._began_s
        is_slow = waited_s > TOLERATED_WAIT * between_s
        if due_step is not None and is_slow and not self._has_warned:
            self._has_warned = True
            steps = due_step - observation.step
            rare_enough = ceil(steps * (1 + waited_s / max(between_s, 1e-9)))
            log.warning(
                "%s took longer than the %d steps to the next observation, and training waited %s."
                " Use %s of at least %d, or another --observer.",
                observation,
                steps,
                format_duration(waited_s),
                join_and([FLAGS[part] for part in observation.parts]),
                rare_enough,
            )
        self._finish(observation)
        return True

    def _finish(self, observation: Observation) -> None:
        self._running, error = None, self._result.exception()
        # An OSError comes from the disk and names its file. Such errors need no traceback.
        if isinstance(error, (UserError, OSError)):
            raise error
        if error is not None:
            raise ObserverFailed(f"the {observation} failed") from error
        self._record(observation, self._result.result())

    def _run(self, observation: Observation, result: Future[dict[str, float]]) -> None:
        start_s, error, metrics = self._now(), None, {}
        try:
            metrics = self._observe(observation, self._throttle)
        except _Abandoned:
            return
        except BaseException as raised:
            # The main thread raises any error when it takes the result.
            error = raised
        kind = join_and(observation.parts)
        self._timeline.add(Span(OBSERVER, kind, start_s, self._now(), observation.step))
        if error is None:
            result.set_result(metrics)
        else:
            result.set_exception(error)

    def _throttle(self) -> None:
        """Wait until the feed is full, or the main thread waits for the observer."""
        while not (
            self._closing.is_set()
            or self._awaited.is_set()
            or self._feed is None
            or self._feed.is_full
        ):
            time.sleep(POLL_S)
        if self._closing.is_set():
            raise _Abandoned
