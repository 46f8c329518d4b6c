"""A run of the real training loop, feed, clock and advice on emulated GPUs, in virtual time.

An emulated GPU behaves as TensorFlow drives a real one (in tensorflow/core:
common_runtime/gpu/gpu_util.cc and gpu_device.cc, nccl/nccl_manager.cc):

- A launch returns at once. One compute stream does the work of a device in the order of launches.
- A copy to another device waits for all that is queued, when it is issued, on the compute streams
  of *both* devices (`GPUUtil::DeviceToDeviceCopy`).
- The copies that a device sends to others share one stream (`num_dev_to_dev_copy_streams` is 1).
- A compiled function returns when its kernels are launched and its copies are done. It launches
  what follows an all-reduce by NCCL when that is done (`NcclManager::LoopKernelLaunches`).

The emulation assumes that a thread issues a copy as soon as the loop has begun it.
"""

import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from myxtts.clock import Clock, Times
from myxtts.config.schema import DataConfig
from myxtts.data.feed import Feed
from myxtts.data.pipeline import ProducedBatch, ReplicaFeed
from myxtts.report.reporter import console_line
from myxtts.throughput.assess import InputBoundWarning
from myxtts.training import loop
from myxtts.training.checkpoints import save_nothing
from myxtts.training.hooks import Observe, Report
from myxtts.training.observation import Observer
from myxtts.training.schedule import VALIDATION, Observation, Schedule, without
from myxtts.training.stop_request import StopRequest

KERNELS = 20  # of a step and of a batch; real ones have hundreds to thousands
START_DELAY_S = 2.0  # in which a run lets its feed fill up: the default of --model-start-delay
LOG_EVERY = 50


@dataclass(frozen=True)
class Workload:
    """What is emulated. Times in seconds."""

    produce_s: float  # P, C and T of a batch
    step_s: float
    transfer_s: float = 0.0
    launch_s: float = 0.0  # the host launches the kernels of a step
    produce_launch_s: float = 0.0  # and of a batch
    dispatch_s: float = 0.0  # the host calls a step, until its first kernel is launched
    replicas: int = 1  # each on a device of its own, besides the data devices
    producers: int = 1  # data devices, which take turns
    is_single: bool = False  # the data device trains, as the only one
    depth: int = 3  # of the feed

    @classmethod
    def of_ms(cls, produce_ms: float, step_ms: float, transfer_ms: float, **counts) -> "Workload":
        """Return a workload whose launches take 20 % of a step and a batch, and a call 0.5 ms."""
        times_s = produce_ms / 1e3, step_ms / 1e3, transfer_ms / 1e3
        launches_s = 0.2 * step_ms / 1e3, 0.2 * produce_ms / 1e3
        return cls(*times_s, *launches_s, 0.5e-3, **counts)

    @property
    def ideal_s(self) -> float:
        """Seconds of a step by arithmetic."""
        if self.is_single:
            return self.produce_s + self.step_s
        producer_s = self.replicas * self.produce_s / self.producers
        return max(producer_s, self.replicas * self.transfer_s, self.step_s)


class HeldOut(NamedTuple):
    """Validations of an emulated run. Times in seconds."""

    every: int  # steps between two validations
    batches: int  # of a validation
    batch_s: float  # to make a batch and to compute its losses; launching takes 20 % of it
    copy_s: float  # of the snapshot, from the model device
    place: str  # of the observer: "data" or "other" device; "model" pauses training


class Outcome(NamedTuple):
    """Figures of a run without its first step."""

    step_s: float  # mean of a step of all replicas, without pauses
    wait_share: float  # as the run reports it
    idle_share: float  # fraction of the time in which the model devices compute nothing
    bottleneck: str
    lines: list[str]  # of the console
    advice: list[str]  # warnings
    pause_share: float  # of the time from the first to the last step


class VirtualTime:
    """Seconds that pass only while all threads wait. One thread runs at a time, so a run is the
    same on every machine.

    If several threads can go on, the one that made this is the first. So a step is called before
    the producer, whose place in the feed it has freed, begins a batch: Python's interpreter lock
    has the same effect. `threads` will wait here, with this one.
    """

    def __init__(self, threads: int):
        self._lock, self._running, self._stopped = threading.Lock(), threads, False
        self._waits: list[_Wait] = []
        self._first = threading.current_thread()
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleep_until(self.now_s + seconds)

    def sleep_until(self, end_s: float) -> None:
        if end_s > self.now_s:
            self.wait(lambda: self.now_s >= end_s, end_s)

    def wait(self, is_over: Callable[[], bool], end_s: float = math.inf) -> None:
        """Wait until `is_over` returns true; it is called whenever all threads wait, and at
        `end_s`. Raises RuntimeError if all threads wait for each other.
        """
        thread = threading.current_thread()
        wait = _Wait((thread is not self._first, thread.name), is_over, end_s)
        with self._lock:
            if self._stopped:
                return
            self._waits.append(wait)
            self._running -= 1
            if not self._running:
                self._resume_next()
        wait.turn.wait()
        if wait.is_deadlock:
            raise RuntimeError("all threads of an emulation wait for each other")

    def _resume_next(self) -> None:
        while not (over := [wait for wait in self._waits if wait.is_over()]):
            self.now_s = min(wait.end_s for wait in self._waits)
            if self.now_s == math.inf:
                return self._release(is_deadlock=True)
        first = min(over, key=lambda wait: wait.rank)
        self._waits.remove(first)
        self._running = 1
        first.turn.set()

    def stop(self) -> None:
        """Let all threads go on, and never wait again."""
        with self._lock:
            self._release()

    def _release(self, is_deadlock: bool = False) -> None:
        self._stopped = True
        for wait in self._waits:
            wait.is_deadlock = is_deadlock
            wait.turn.set()


@dataclass(eq=False)
class _Wait:
    rank: tuple[bool, str]
    is_over: Callable[[], bool]
    end_s: float
    is_deadlock: bool = False
    turn: threading.Event = field(default_factory=threading.Event)


class VirtualQueue(queue.Queue):
    """A queue whose threads wait in virtual time."""

    def __init__(self, maxsize: int, time: VirtualTime):
        super().__init__(maxsize)
        self._time = time

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if block:
            self._time.wait(lambda: not self.full())
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            self._time.wait(lambda: not self.empty())
        return super().get(block, timeout)


class ObserverQueue(queue.Queue):
    """A queue between loop and observer, whose threads wait in virtual time until it is stopped."""

    def __init__(self, maxsize: int, time: VirtualTime):
        super().__init__(maxsize)
        self._time = time

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self._time.wait(lambda: not self.empty())
        return super().get()


class Gpu:
    """The streams of a device."""

    def __init__(self, time: VirtualTime):
        self._time = time
        self._kernels: list[tuple[float, float, float]] = []  # when launched, begun and done
        self._sent_s = 0.0

    def launch(self, seconds: float, launch_s: float = 0.0) -> None:
        """Queue kernels that take `seconds` from now on, the last one after `launch_s`."""
        done_s = self._kernels[-1][2] if self._kernels else 0.0
        for number in range(1, KERNELS + 1):
            launched_s = self._time.now() + launch_s * number / KERNELS
            begun_s = max(launched_s, done_s)
            done_s = begun_s + seconds / KERNELS
            self._kernels.append((launched_s, begun_s, done_s))

    @property
    def queued_s(self) -> float:
        """When the device will be done with the kernels that are launched now."""
        now_s = self._time.now()
        launched = (kernel for kernel in reversed(self._kernels) if kernel[0] <= now_s)
        return next(launched, (0.0, 0.0, 0.0))[2]

    def send(self, receiver: "Gpu", seconds: float) -> float:
        """Queue a copy to a device; return its end. On one device there is nothing to copy."""
        if receiver is self:
            return self._time.now()
        start_s = max(self._time.now(), self._sent_s, self.queued_s, receiver.queued_s)
        self._sent_s = start_s + seconds
        return self._sent_s

    def synchronize(self) -> None:
        self._time.sleep_until(self.queued_s)

    def busy_s(self, start_s: float, end_s: float) -> float:
        """Return for how long it computes between two moments."""
        parts = (min(done, end_s) - max(begun, start_s) for _, begun, done in self._kernels)
        return sum(part for part in parts if part > 0.0)


class Machine(NamedTuple):
    """A workload on its devices."""

    workload: Workload
    time: VirtualTime
    data: Sequence[Gpu]
    models: Sequence[Gpu]

    @classmethod
    def of(cls, workload: Workload, further_threads: int = 0) -> "Machine":
        time = VirtualTime(threads=1 + workload.producers + further_threads)
        data = [Gpu(time) for _ in range(workload.producers)]
        models = data if workload.is_single else [Gpu(time) for _ in range(workload.replicas)]
        return cls(workload, time, data, models)

    def launch_step(self) -> None:
        """Launch a step on all replicas, each by its own thread, and their all-reduce, which takes
        no time of its own.
        """
        for model in self.models:
            model.launch(self.workload.step_s, self.workload.launch_s)
        self.time.sleep(self.workload.launch_s)
        if len(self.models) > 1:
            self.models[0].synchronize()

    def produced(self, data: Gpu) -> Iterator[tuple]:
        """Make the batches of step after step, as a Producer; the features are the device."""
        time, workload = self.time, self.workload
        position = SimpleNamespace(epoch=0)
        step = SimpleNamespace(audio_s=1.0, padded_s=1.0, bucket=0, position=position)
        planned = SimpleNamespace(step=step, last=True)
        while True:
            batches = []
            for _ in self.models:
                began_s = time.now()
                data.launch(workload.produce_s, workload.produce_launch_s)
                time.sleep(workload.produce_launch_s)
                if not workload.is_single:
                    data.synchronize()
                times = Times(began_s, began_s, time.now(), f"data {self.data.index(data)}")
                batches.append(ProducedBatch(planned, data, times))
            yield tuple(batches)

    def idle_share(self, seconds: float) -> float:
        """Return the fraction of the last seconds in which a model device computed nothing."""
        end_s = self.time.now()
        busy_s = sum(model.busy_s(end_s - seconds, end_s) for model in self.models)
        return 1.0 - busy_s / seconds / len(self.models)


class EmulatedStep:
    """Takes the place of `training.step.Step` and of its `hand_over`."""

    def __init__(self, machine: Machine):
        self._machine, self.hand_over = machine, self

    def begin(self, features):
        """Issue copies; the result of what is returned waits for them."""
        handed_s = self._send(features)
        return SimpleNamespace(result=lambda: self._machine.time.sleep_until(handed_s))

    def __call__(self, microbatches, number, rates, stop):
        machine = self._machine
        for _ in microbatches:
            machine.time.sleep(machine.workload.dispatch_s)
            machine.launch_step()
        return machine.models[0].queued_s

    def _send(self, senders: Sequence[Gpu]) -> float:
        transfer_s = self._machine.workload.transfer_s
        pairs = zip(senders, self._machine.models, strict=True)
        return max(data.send(model, transfer_s) for data, model in pairs)

    def synchronize(self, outcome):
        self._machine.time.sleep_until(outcome)

    def read(self, outcome):
        self.synchronize(outcome)
        return {"loss": 1.0}


class EmulatedState:
    """The part of a TrainingState that the loop uses; reading it waits for the device."""

    def __init__(self, model: Gpu):
        self.step, self._model, self.pending_observations = 0, model, ()
        self.bad_step = SimpleNamespace(numpy=self._read_zero)

    def _read_zero(self) -> int:
        self._model.synchronize()
        return 0

    def advance(self, planned_step) -> None:
        self.step += 1


class Validations:
    """The validations of an emulated run: a hook of the loop, and its observer."""

    def __init__(self, held_out: HeldOut, machine: Machine, state: EmulatedState):
        self._held_out, self._machine, self._state = held_out, machine, state
        model, time = machine.models[0], machine.time
        self._device = {"model": model, "data": machine.data[0], "other": Gpu(time)}[held_out.place]
        virtual = {"in_thread": held_out.place != "model", "now": time.now, "sleep": time.sleep}
        make_queue = partial(ObserverQueue, time=time)
        with mock.patch("myxtts.training.observation.Queue", make_queue):
            self.observer = Observer(self._observe, self._record, **virtual)
        self.hook = Observe({VALIDATION: held_out.every}, self.observer, self, lambda step: None)

    def take(self) -> None:
        """Copy the weights to the observer's device."""
        model = self._machine.models[0]
        self._machine.time.sleep_until(model.send(self._device, self._held_out.copy_s))

    def _observe(self, _: Observation, throttle: Callable[[], None] | None) -> dict[str, float]:
        seconds, launch_s = self._held_out.batch_s, 0.2 * self._held_out.batch_s
        for _ in range(self._held_out.batches):
            if throttle is not None:
                throttle()
            self._device.launch(seconds, launch_s)
            self._machine.time.sleep(launch_s)
            self._device.synchronize()
        return {}

    def _record(self, observation: Observation, metrics: dict[str, float]) -> None:
        state = self._state
        state.pending_observations = without(state.pending_observations, observation.step)


def train(workload: Workload, steps: int = 400, held_out: HeldOut | None = None) -> Outcome:
    """Train with the project's loop."""
    has_thread = held_out is not None and held_out.place != "model"
    machine = Machine.of(workload, further_threads=int(has_thread))
    clock, reports, advice = Clock(machine.time.now, workload.producers), [], []
    reporter = SimpleNamespace(write=lambda step, metrics: reports.append((step, metrics)))
    warning = InputBoundWarning(0, DataConfig(), workload.is_single, devices=2)
    hooks = [Report(reporter.write, warning)]
    schedule = Schedule(steps, LOG_EVERY, 0, lambda step: 1.0, lambda step: 0.9)
    state, step = EmulatedState(machine.models[0]), EmulatedStep(machine)
    observer = None
    with ExitStack() as stack:
        if held_out is not None:
            validations = Validations(held_out, machine, state)
            observer, hooks = validations.observer, [validations.hook, *hooks]
            stack.enter_context(observer)  # closed after the virtual time is stopped
        feed = open_feed(stack, machine, [machine.produced(data) for data in machine.data])
        if held_out is not None and held_out.place == "data":
            observer.watch(feed)
        stack.enter_context(collected_advice(advice))
        loop.train(state, step, feed, schedule, hooks, save_nothing, clock, StopRequest(), observer)
        total = clock.total()
        idle_share = machine.idle_share(total.busy_s)
    lines = [console_line(step, metrics) for step, metrics in reports]
    pause_s = sum(metrics["pause_s"] for _, metrics in reports)
    pause_share = pause_s / (pause_s + sum(metrics["step_s"] for _, metrics in reports))
    shares = total.wait_share, idle_share, total.bottleneck
    step_s = total.busy_s / total.steps
    return Outcome(step_s, *shares, lines, advice, pause_share)


def open_feed(
    stack: ExitStack, machine: Machine, producers: Sequence[Iterator[tuple]]
) -> ReplicaFeed:
    """Return a feed of a machine's producers that had time to fill up; `stack` closes it."""
    make_queue = partial(VirtualQueue, time=machine.time)
    depth = machine.workload.depth
    with mock.patch("myxtts.data.feed.Queue", make_queue):
        feeds = [Feed(batches, depth, f"producer {i}") for i, batches in enumerate(producers)]
    replica_feed = stack.enter_context(ReplicaFeed([feeds], [range(machine.workload.replicas)]))
    stack.callback(machine.time.stop)
    machine.time.sleep(START_DELAY_S)
    return replica_feed


@contextmanager
def collected_advice(messages: list[str]) -> Iterator[None]:
    """Collect the warnings of a run, which are not printed."""
    handler = logging.Handler(logging.WARNING)
    logger = logging.getLogger("myxtts.throughput.assess")
    handler.emit = lambda record: messages.append(record.getMessage())
    with mock.patch.multiple(logger, handlers=[handler], propagate=False):
        yield
