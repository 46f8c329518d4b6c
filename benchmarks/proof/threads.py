"""Section 5: every batch that reaches the model against the same batch made by one thread alone;
operations that several threads run at once on one GPU.

The producer's thread makes batches while the main thread trains on them. The checksum of each batch
is computed where the batch is, kept there, and read at the end, so that it does not wait for the
devices in between. Then one thread makes the same batches again, and all checksums must agree.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.proof.placements import SPLIT_MIB
from benchmarks.proof.runs import NO_TIME, placement_flags, run_flags
from benchmarks.proof.section import Figure, Scope, SectionResult, table
from fakes.threads import THREADS, mixed_up
from fakes.toy_models import toy_models
from myxtts.base.clock import Clock
from myxtts.batches.corpora import load_corpora
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass
from myxtts.commands import train
from myxtts.config.schema import Config
from myxtts.devicefeed.contract import Batch, Field, tensor_specs
from myxtts.devicefeed.handover import HANDED_OVER_AHEAD
from myxtts.devicefeed.producer import Producer
from myxtts.devicefeed.routes import Placement, Route
from myxtts.placement.replicas import make_replicas
from myxtts.run import loop
from myxtts.run.saving import save_nothing
from myxtts.run.setup import build_state, configure_devices, make_schedule, make_step
from myxtts.run.step import Step
from myxtts.run.stop_request import StopRequest
from myxtts.tasks.registry import length_rule_of, task_of

TITLE = "Threads"
MAX_STEPS, SMALL_STEPS = 20_000, 4
LEAST_S = 10.0  # a route is not checked with less time
THREADED_SHARE = 0.6  # of a route's time; then the batches are made once more, alone
# Of an index along each axis; a sum is then different if elements trade places.
FACTORS = (1, 1_000_003, 998_244_353)
ROUNDS = 150  # of operations that threads run at once
PLACES = ("as produced", "handed over by a thread", "handed over alone")


@dataclass
class RouteCheck:
    """Batches of a route that were compared.

    Attributes:
        compared: number of checksums in each of PLACES.
        different: descriptions of the batches that differ.
        steps: that were trained.
        start_s: seconds until the end of the first step, which is traced.
    """

    name: str
    route: Route
    steps: int = 0
    start_s: float = 0.0
    compared: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))
    different: list[str] = field(default_factory=list)


def run(scope: Scope) -> SectionResult:
    checks: list[RouteCheck] = []
    config, _ = train.parse(flags_of(scope))
    with toy_models() if scope.small else nullcontext():
        placement = configure_devices(config)
        routes = routes_of(scope, placement)
        operations = operations_of_threads(scope, routes[0][1].model)
        for number, (name, route) in enumerate(routes):
            start_s = max((check.start_s for check in checks), default=0.0)
            if scope.left_s < LEAST_S + start_s and not scope.small:
                checks.append(RouteCheck(name, route))
                continue
            end_s = time.monotonic() + scope.left_s / (len(routes) - number)
            steps = SMALL_STEPS if scope.small else MAX_STEPS
            checks.append(check_route(name, route, config, end_s, steps))
            scope.record(result_of(scope, checks, operations))
    return result_of(scope, checks, operations)


def flags_of(scope: Scope) -> list[str]:
    """Return flags that make all devices of the routes: two parts of GPU 0, and GPU 1."""
    flags = run_flags(scope, "threads", "tiny", 1_000_000, 50)
    if not scope.is_real:
        return [*flags, *placement_flags(scope)]
    models = map(str, range(min(2, scope.gpus)))
    flags += ["--deterministic", "--data-gpu", "0", "--model-gpus", *models]
    for name, mib in SPLIT_MIB.items():
        flags += [f"--{name.replace('_', '-')}", str(mib)]
    return flags


def routes_of(scope: Scope, placement: Placement) -> list[tuple[str, Route]]:
    """Return the routes to check: on one GPU, between its parts, between two GPUs both ways."""
    names = [device.name for device in placement.devices]
    if not scope.is_real:
        pairs = [("one device", 0, 0), ("two devices", 0, 1)][: len(names)]
        pairs = pairs[-1:] if scope.small else pairs
    else:
        pairs = [("two GPUs", 1, 2)] if len(names) > 2 else []  # first, since time may run out
        pairs += [("one GPU", 1, 1), ("one GPU split in two", 0, 1)]
        pairs += [("two GPUs, the other way round", 2, 1)] if len(names) > 2 else []
    return [(name, Route(names[data], names[model])) for name, data, model in pairs]


def check_route(
    name: str, route: Route, config: Config, end_s: float, max_steps: int
) -> RouteCheck:
    """Train on a route for a part of its time, make its batches once more, and compare them."""
    check, began_s, stop = RouteCheck(name, route), time.monotonic(), StopAt(end_s, max_steps)
    folder = Path(config.run.runs_dir)
    corpus, _, vocabulary = load_corpora(config, folder, length_rule_of(config), replicas=1)
    state = build_state(config, vocabulary, make_replicas((route,)))
    extractor = task_of(config).extractor(config, training=True)
    reading = {"seed": config.training.seed, "cache_folder": folder}
    pipeline = Pipeline(corpus, [route], extractor, config.data, **reading)
    step = CheckedStep(make_step(config, state), route, Checksums(extractor.features))
    schedule = replace(make_schedule(config, corpus, state), log_every=0, checkpoint_every=0)
    with pipeline.open_feed(Pass()) as feed:
        loop.train(state, step, feed, schedule, [], save_nothing, Clock(), stop)
    check.steps, check.start_s = state.step, stop.first_step_s - began_s
    threaded = step.read_checksums()
    batches = state.step + HANDED_OVER_AHEAD
    alone = checksums_alone(pipeline.producers[0], step.checksums, end_s, batches)
    compare(check, threaded, list(alone), sorted(extractor.features))
    return check


class StopAt(StopRequest):
    """A request to stop when a share of the time after the first step is over, or after a number of
    steps.

    Args:
        end_s: end of the whole time, of `time.monotonic`.
        steps: largest number of steps.

    Attributes:
        first_step_s: end of the first step.
    """

    def __init__(self, end_s: float, steps: int):
        super().__init__()
        self._end_s, self._left = end_s, steps
        self.first_step_s = self._stop_s = float("inf")

    def due(self) -> bool:
        return self._left == 0 or time.monotonic() >= self._stop_s

    def observe(self, outcome: tf.Tensor) -> None:
        self._left -= 1
        if self.first_step_s == float("inf"):
            self.first_step_s = time.monotonic()
            left_s = max(0.0, self._end_s - self.first_step_s)
            self._stop_s = self.first_step_s + THREADED_SHARE * left_s


class Checksums:
    """Computes checksums of batches where the batches are.

    A checksum is a sum of the bits of all elements, each times an odd weight of its place, modulo
    2^64. It does not depend on the order in which a device adds, and differs for any single wrong
    element.

    Args:
        fields: contract of the batches.
    """

    def __init__(self, fields: dict[str, Field]):
        self._compute = tf.function(self._checksums, input_signature=[tensor_specs(fields)])

    def __call__(self, batch: Batch, device: str) -> tf.Tensor:
        """Return the checksums of all fields by name, int64 [fields], without waiting."""
        with tf.device(device):
            return self._compute(batch)

    @staticmethod
    def _checksums(batch: Batch) -> tf.Tensor:
        return tf.stack([checksum(batch[name]) for name in sorted(batch)])


def checksum(tensor: tf.Tensor) -> tf.Tensor:
    """Return the checksum of a tensor of up to three dimensions, int64 []; to be traced."""
    integers = {2: tf.int16, 4: tf.int32, 8: tf.int64}[tensor.dtype.size]
    bits = tf.cast(tf.bitcast(tensor, integers), tf.int64)
    for axis in reversed(range(len(tensor.shape))):
        # int32 shapes stay on the host, int64 would not.
        index = tf.cast(tf.range(tf.shape(bits)[axis]), tf.int64)
        weights = 2 * FACTORS[axis] * index + 1
        bits = tf.reduce_sum(bits * weights, axis=-1)
    return bits


class CheckedStep:
    """A step that records the checksums of the batches that it takes and hands over.

    Attributes:
        checksums: how they are computed.
    """

    def __init__(self, step: Step, route: Route, checksums: Checksums):
        self._step, self._route, self.checksums = step, route, checksums
        self.hand_over = self
        self._produced: list[tf.Tensor] = []
        self._entered: list[tf.Tensor] = []  # the batch of each step
        # The same batch as produced, copied by the main thread.
        self._handed_over: list[tf.Tensor] = []

    def begin(self, features: Sequence[Batch]) -> Future[list[Batch]]:
        data, model = self._route.data, self._route.model
        self._produced.append(self.checksums(features[0], data))
        self._handed_over.append(self.checksums(self._step.hand_over(features)[0], model))
        return self._step.hand_over.begin(features)

    def __call__(self, microbatches: Iterable[Sequence[Batch]], *arguments: Any) -> tf.Tensor:
        taken = list(microbatches)
        self._entered.append(self.checksums(taken[0][0], self._route.model))
        return self._step(taken, *arguments)

    def left_unchanged(self) -> bool:
        return self._step.left_unchanged()

    def synchronize(self, outcome: tf.Tensor) -> None:
        self._step.synchronize(outcome)

    def read(self, outcome: tf.Tensor) -> dict[str, float]:
        return self._step.read(outcome)

    def read_checksums(self) -> dict[str, dict[int, np.ndarray]]:
        """Return the checksums by place and number of the batch; waits for the devices."""
        recorded = self._produced, self._entered, self._handed_over
        arrays = ({i: value.numpy() for i, value in enumerate(values)} for values in recorded)
        return dict(zip(PLACES, arrays, strict=True))


def checksums_alone(
    producer: Producer, checksums: Checksums, end_s: float, batches: int
) -> Iterator[np.ndarray]:
    """Make the first batches of the plan in this thread; yield the checksums of each."""
    with closing(producer.replica_batches(Pass())) as made:
        for (batch,) in islice(made, batches):
            yield checksums(batch.features, producer.device).numpy()
            if time.monotonic() >= end_s:
                return


def compare(
    check: RouteCheck,
    threaded: dict[str, dict[int, np.ndarray]],
    alone: list[np.ndarray],
    names: list[str],
) -> None:
    """Compare the checksums of all batches that were made twice."""
    for place, by_number in threaded.items():
        for number, values in by_number.items():
            if number < len(alone):
                check.compared[place] += 1
                pairs = zip(names, values == alone[number], strict=True)
                if wrong := [name for name, same in pairs if not same]:
                    check.different.append(f"batch {number}, {place}: {', '.join(wrong)}")


def operations_of_threads(scope: Scope, device: str) -> Figure:
    """Let threads run the same operation, as TensorFlow does it by default and as MyXTTS does."""
    rounds = 5 if scope.small else ROUNDS
    by_default, with_setting = (mixed_up(device, rounds, kernels) for kernels in (False, True))
    found = f"{with_setting} of {rounds * THREADS}; {by_default} by TensorFlow's default"
    claim = f"{THREADS} threads that open pipelines for {device} at once get their own"
    met = False if with_setting else None if scope.simulated else True
    return Figure.of(claim, found, "0 by MyXTTS's setting", met)


def result_of(scope: Scope, checks: list[RouteCheck], operations: Figure) -> SectionResult:
    rows = []
    for check in checks:
        route = f"{check.route.data} → {check.route.model}"
        counts = *check.compared.values(), len(check.different)
        rows.append([check.name, route, check.steps or NO_TIME, *counts])
    lines = [
        "Checksums of every batch that the producer's thread made while the main thread"
        " trained, against those of the same batch made by one thread alone:",
        *table(("on", "route", "steps", *PLACES, "different"), rows),
        *[f"- {check.name}: {text}" for check in checks for text in check.different[:10]],
    ]
    compared = sum(sum(check.compared.values()) for check in checks)
    different = sum(len(check.different) for check in checks)
    met = False if different else None if scope.simulated or not compared else True
    claim = "every batch that reaches the model is the one that one thread alone makes"
    figure = Figure.of(claim, f"{different} of {compared} checksums differ", "0 differ", met)
    data = {"checks": [asdict(check) for check in checks]}
    return SectionResult(TITLE, lines, [figure, operations], data)
