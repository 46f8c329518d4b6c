"""Observations: validation, samples and evaluation of the weights that a run has after a step.

An observation works on a snapshot: a second network with a copy of the averaged weights. It runs on
the first model device between two steps, or in a thread on another device while training goes on.
Both ways share all code, and both ways the main thread applies the result between two steps.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from queue import Empty, Queue
from typing import NamedTuple, Protocol

import keras
import tensorflow as tf

from myxtts.audio.format import AUDIO_FORMAT
from myxtts.audio.vocoder import LoadVocoder
from myxtts.batch import Batch, tensor_specs
from myxtts.clock import Span, Timeline, format_duration
from myxtts.data.batch_plan import HELD_OUT_PASS, Pass
from myxtts.data.pipeline import Pipeline, ProducedBatch, compile_hand_over
from myxtts.errors import TrainingError, UserError
from myxtts.models.loss_groups import NETWORK, loss_groups_of
from myxtts.placement.audit import require_device
from myxtts.report.reporter import TensorBoard
from myxtts.tasks.base import Evaluator, Examples, Metric, Sampler
from myxtts.tasks.registry import task_of
from myxtts.training.checkpoint_files import Checkpoint
from myxtts.training.checkpoints import load_variables
from myxtts.training.runs import RunFolder, select_vocoder
from myxtts.training.schedule import EVALUATION, SAMPLES, VALIDATION, Observation, join_and
from myxtts.training.setup import TrainingSetup, typical_sizes

# The kind of the pauses for the observer, and the lane of its spans.
OBSERVER = "observer"

# The observer looks at the feed so often, and the waiting main thread at the request to stop.
POLL_S = 0.002
STOP_POLL_S = 0.1

# Training may wait for this fraction of the time between two observations without a warning.
TOLERATED_WAIT = 0.005


Throttle = Callable[[], None]
"""Waits until the feed is full; to be called between two batches, when nothing is queued on the
device.
"""

ObserveFunction = Callable[[Observation, Throttle | None], dict[str, float]]
"""(observation, throttle or None) -> metrics by name; empty for samples alone."""

log = logging.getLogger(__name__)


def no_throttle() -> None:
    """Stand in for a throttle where nothing else uses the device."""


class Snapshot:
    """A network with a copy of the weights that other variables have at some time.

    Args:
        network: built on the device. The copy is traced here, on the main thread.
        sources: what is copied, by the names of the variables that inference uses.
        device: of the network.

    Raises:
        PlacementError: a variable of the network is on another device.
    """

    def __init__(self, network: keras.Model, sources: Mapping[str, tf.Variable], device: str):
        variables = {v.path: v.value for v in loss_groups_of(network)[NETWORK].variables}
        if variables.keys() != sources.keys():
            raise RuntimeError(
                f"the snapshot has other variables: {sorted(variables.keys() ^ sources.keys())[:3]}"
            )
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
        with tf.device(device):
            network = task_of(config).build(config, setup.corpora.vocabulary)
        task_of(config).tune(config, network, device, typical_sizes(setup.corpora.training.plan))
        return cls(network, setup.state.inference_variables(), device)

    def take(self) -> None:
        """Copy the weights as they are after the last step that was queued: from device to device,
        in one call.
        """
        self._copy()

    def load(self, checkpoint: Path) -> None:
        """Set the weights from a checkpoint; raises CheckpointError if it is damaged."""
        read = Checkpoint.read(checkpoint)
        load_variables(read, {read.record.weights_group: self._variables})


class Validation:
    """Mean losses over a held-out corpus.

    Args:
        model: its call returns (losses, outputs).
        device: of the model.
        open_feed: opens the batches of one pass; their losses are shares of the mean over the whole
            corpus.
        make_metric: makes the task's metric for each pass, if the task has one.
    """

    def __init__(
        self,
        model,
        device: str,
        open_feed: Callable[[], AbstractContextManager[Iterable[tuple[ProducedBatch, ...]]]],
        make_metric: Callable[[], Metric] | None = None,
    ):
        def losses_of(batch):
            by_name, outputs = model(batch, training=False)
            measured = make_metric().measure(batch, outputs) if make_metric else {}
            return tf.stack([by_name[name] for name in model.LOSS_NAMES]), measured

        self._names, self._device = model.LOSS_NAMES, device
        self._losses = tf.function(
            losses_of, input_signature=[tensor_specs(model.BATCH_FIELDS)], autograph=False
        )
        self._hand_over = compile_hand_over(model.BATCH_FIELDS, [device])
        self._open_feed = open_feed
        self._make_metric = make_metric

    def trace(self) -> None:
        """Compile what a pass computes, so that another thread may call `evaluate`."""
        self._losses.get_concrete_function()

    def measure(self, features: Batch) -> tuple[Batch, tf.Tensor, Batch]:
        """Return a batch on the model's device, its losses in the order of the model's names, and
        the metric's tensors.

        Args:
            features: of one batch, on any device.
        """
        (batch,) = self._hand_over([features])
        return batch, *self._losses(batch)

    def evaluate(self, throttle: Throttle | None = None) -> dict[str, float]:
        """Return each loss for the weights that the model has, their sum as `loss`, and the figures
        of the metric.

        Args:
            throttle: called before each batch; nothing is queued on the device then.
        """
        metric = self._make_metric() if self._make_metric else None
        shares = []
        # No scope around the loop: without a feed, this thread reads, and operations of tf.data
        # have CPU kernels only.
        with self._open_feed() as feed:
            batches = feed if throttle is None else throttled(feed, throttle)
            for (produced,) in batches:
                with tf.device(self._device):
                    batch, share, measured = self.measure(produced.features)
                    shares.append(share)
                    if throttle is not None:
                        # Wait, so that the device has nothing queued when the throttle is called.
                        share.numpy()
                    if metric:
                        metric.update(batch, measured)
            with tf.device(self._device):
                total = tf.add_n(shares)
        losses = dict(zip(self._names, total.numpy().tolist(), strict=True))
        losses["loss"] = sum(losses.values())
        return losses | metric.result() if metric else losses


def throttled(
    batches: Iterable[tuple[ProducedBatch, ...]], throttle: Throttle
) -> Iterator[tuple[ProducedBatch, ...]]:
    """Yield the batches; call `throttle` before each is made."""
    iterator = iter(batches)
    while True:
        throttle()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        yield batch


@dataclass(frozen=True)
class HeldOutWork:
    """What is done with held-out utterances and the weights that a network has.

    Attributes:
        device: of the network.
        sampler: None if the run writes no samples.
        evaluator: None if the run is not evaluated.
    """

    device: str
    validation: Validation
    sampler: Sampler | None
    evaluator: Evaluator | None

    def trace(self) -> None:
        """Compile everything on the main thread, so that another thread may call `observe`."""
        with tf.device(self.device):
            self.validation.trace()
            if self.sampler:
                self.sampler.trace()

    def observe(
        self, observation: Observation, throttle: Throttle | None = None
    ) -> dict[str, float]:
        """Do the parts of an observation; return metrics by name: `validation_loss`,
        `evaluation_voicing_error`.

        Args:
            throttle: see `Validation.evaluate`.

        Raises:
            TrainingError: the device is out of memory.
        """
        metrics: dict[str, float] = {}
        try:
            if VALIDATION in observation.parts:
                for name, value in self.validation.evaluate(throttle).items():
                    metrics[f"validation_{name}"] = value
            if self.sampler and SAMPLES in observation.parts:
                if throttle is not None:
                    throttle()
                with tf.device(self.device):
                    self.sampler(observation.step)
            if self.evaluator and EVALUATION in observation.parts:
                metrics |= self.evaluator(observation.step, throttle)
        except tf.errors.ResourceExhaustedError as error:
            raise TrainingError(
                f"{observation}: out of memory on {self.device}: {error.message.splitlines()[0]}."
                " Resume with --resume and --observer on another device (model, cpu, or the index"
                " of a GPU), or with --sample-every 0 or --evaluate-every 0."
            ) from error
        return metrics


def held_out_work(
    setup: TrainingSetup,
    snapshot: Snapshot,
    tensorboard: TensorBoard,
    load: LoadVocoder,
    evaluator: Evaluator | None,
) -> HeldOutWork:
    """Return the work on the held-out utterances of a run.

    Args:
        load: loads the vocoder of a voice.
    """
    config, network, device = setup.config, snapshot.network, snapshot.device
    pipeline = setup.validation_pipeline()

    # An observer's thread makes its batches itself, since its throttle holds between two batches.
    # Where training waits, a thread of their own makes them ahead.
    def open_batches() -> AbstractContextManager:
        open_ = pipeline.open_unbuffered if setup.replicas.observer else pipeline.open_feed
        return open_(HELD_OUT_PASS)

    metric = task_of(config).metric(setup.corpora.vocabulary)
    sampler = None
    if config.run.sample_every:
        folder = setup.run.start.folder
        sampler = make_sampler(setup, network, device, pipeline, folder, tensorboard, load)
    return HeldOutWork(
        device, Validation(network, device, open_batches, metric), sampler, evaluator
    )


def vocoder_loader(setup: TrainingSetup, device: str, folder: RunFolder) -> LoadVocoder:
    """Return what loads the vocoder that the settings of a run name, once for all calls."""
    return cache(lambda: select_vocoder(folder.path, setup.config, AUDIO_FORMAT).load(device))


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
    config, held_out = setup.config, setup.corpora.held_out
    assert held_out is not None
    with (setup.sample_pipeline() or pipeline).open_feed(Pass(epochs=1)) as feed:
        (first,) = next(feed)
    (batch,) = compile_hand_over(network.BATCH_FIELDS, [device])([first.features])
    rows, manifest = first.planned.rows, held_out.manifest
    columns = (
        [column[row] for row in rows] for column in (manifest.ids, manifest.texts, manifest.paths)
    )
    with tf.device(device):
        make = task_of(config).sampler(config, setup.corpora.vocabulary, load)
        return make(network, Examples(batch, *columns), folder.samples, tensorboard)


class FeedStatus(Protocol):
    """The part of a `ReplicaFeed` that the observer looks at."""

    @property
    def is_full(self) -> bool:
        """Whether the producers have nothing to do."""
        ...


class ObserverFailed(RuntimeError):
    """An observation raised an unexpected exception (see `__cause__`)."""


class _Abandoned(Exception):
    """The run ends: what is left of the observation is repeated when the run is resumed."""


class Result(NamedTuple):
    """What came of an observation.

    Attributes:
        metrics: by name; empty without a validation and an evaluation.
        duration_s: from its beginning to its end.
        paused_s: of these, the time in which the producers went first.
        error: raised instead of a result.
    """

    observation: Observation
    metrics: dict[str, float]
    duration_s: float
    paused_s: float
    error: BaseException | None = None


class Observer:
    """Runs one observation at a time; a context manager. All methods are for the main thread.

    Args:
        observe: does the work.
        record: (observation, metrics): applies a result; called in the main thread, in the order of
            the observations.
        in_thread: run observations in a thread while training goes on; otherwise `begin` does the
            work.
        may_record: whether a result can be applied at once.
        timeline: gets the spans of the thread.
        now, sleep: seconds, and waiting for them.
    """

    def __init__(
        self,
        observe: ObserveFunction,
        record: Callable[[Observation, dict[str, float]], None],
        in_thread: bool = True,
        may_record: Callable[[], bool] = lambda: True,
        timeline: Timeline | None = None,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._observe, self._record, self._may_record = observe, record, may_record
        self._timeline = timeline or Timeline()
        self._now, self._sleep = now, sleep
        self._feed: FeedStatus | None = None
        self._begun: Queue[Observation | None] = Queue(1)
        self._results: Queue[Result] = Queue(1)
        self._running: Observation | None = None
        self._began_s = 0.0
        self._paused_s = 0.0
        self._awaited = threading.Event()
        self._closing = threading.Event()
        self._has_warned = False
        self._thread: threading.Thread | None = None
        if in_thread:
            self._thread = threading.Thread(target=self._run, name="myxtts-observer", daemon=True)

    def __enter__(self) -> "Observer":
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abandon the observation that is running after its batch, and end the thread."""
        if self._thread is None:
            return
        if not self._closing.is_set():
            self._closing.set()
            self._begun.put(None)
        self._thread.join()

    def watch(self, feed: FeedStatus) -> None:
        """Let the producers of a feed go first from now on."""
        self._feed = feed

    def begin(self, observation: Observation) -> None:
        """Begin an observation of the snapshot; none may be running.

        Without a thread, errors of the work are raised here.
        """
        assert self._running is None, "two observations at a time"
        self._began_s = self._now()
        if self._thread is None:
            metrics = self._observe(observation, None)
            self._results.put(Result(observation, metrics, self._now() - self._began_s, 0.0))
        else:
            self._begun.put(observation)
        self._running = observation

    def poll(self) -> None:
        """Apply the result of the observation that is running, if it is there and `may_record`.

        Raises:
            UserError: the observation failed.
            ObserverFailed: it raised an unexpected exception.
        """
        if self._running is not None and not self._results.empty() and self._may_record():
            self._finish(self._results.get())

    def wait(self, is_stopped: Callable[[], bool], due_step: int | None = None) -> bool:
        """Wait for the observation that is running and apply its result; return whether none is
        running now.

        Args:
            is_stopped: whether the run has a request to stop, for which an observation is left
                unfinished.
            due_step: step of the next observation, which waits for this one; None at the end of the
                run.

        Raises:
            as `poll`.
        """
        if self._running is None:
            return True
        step, began_s, start_s = self._running.step, self._began_s, self._now()
        self._awaited.set()
        try:
            while (result := self._next_result()) is None:
                if is_stopped():
                    return False
        finally:
            self._awaited.clear()
        waited_s, between_s = self._now() - start_s, start_s - began_s
        is_slow = waited_s > TOLERATED_WAIT * between_s
        if due_step is not None and is_slow and not self._has_warned:
            self._has_warned = True
            log.warning("%s", slow_observer(result, waited_s, between_s, due_step - step))
        self._finish(result)
        return True

    def _next_result(self) -> Result | None:
        try:
            return self._results.get(timeout=STOP_POLL_S)
        except Empty:
            return None

    def _finish(self, result: Result) -> None:
        self._running = None
        # An OSError is one of the disk and names its file; such errors need no traceback.
        if isinstance(result.error, (UserError, OSError)):
            raise result.error
        if result.error is not None:
            raise ObserverFailed(
                f"the observation of step {result.observation.step} failed"
            ) from result.error
        self._record(result.observation, result.metrics)

    def _run(self) -> None:
        while (observation := self._begun.get()) is not None:
            try:
                result = self._observe_in_thread(observation)
            except _Abandoned:
                return
            self._results.put(result)

    def _observe_in_thread(self, observation: Observation) -> Result:
        start_s, self._paused_s = self._now(), 0.0
        metrics: dict[str, float] = {}
        error = None
        try:
            metrics = self._observe(observation, self._throttle)
        except _Abandoned:
            raise
        except BaseException as raised:
            # The main thread raises it, whatever it is.
            error = raised
        end_s = self._now()
        kind = join_and(observation.parts)
        self._timeline.add(Span(OBSERVER, kind, start_s, end_s, observation.step))
        return Result(observation, metrics, end_s - start_s, self._paused_s, error)

    def _throttle(self) -> None:
        """Wait until the feed is full, or the main thread waits for the observer."""
        start_s = self._now()
        while not (
            self._closing.is_set()
            or self._awaited.is_set()
            or self._feed is None
            or self._feed.is_full
        ):
            self._sleep(POLL_S)
        self._paused_s += self._now() - start_s
        if self._closing.is_set():
            raise _Abandoned


def slow_observer(result: Result, waited_s: float, between_s: float, steps: int) -> str:
    """Return the warning that training waited for an observation, and how much rarer observations
    must be.

    Args:
        waited_s: that training waited.
        between_s: the observation began so long before that.
        steps: from its step to that of the next observation.
    """
    enough = ceil(steps * (between_s + waited_s) / max(between_s, 1e-9))
    paused = ""
    if result.paused_s > 0.1 * result.duration_s:
        paused = f" ({format_duration(result.paused_s)} of them for the producers, which go first)"
    return (
        f"training waited {format_duration(waited_s)} for the observer: its work on the weights of"
        f" step {result.observation.step} took {format_duration(result.duration_s)}{paused}, but"
        f" the {steps} steps until it is due again take {format_duration(between_s)}. Every"
        f" {enough} steps would be rare enough (--validate-every, --sample-every,"
        " --evaluate-every); or choose another device with --observer."
    )
