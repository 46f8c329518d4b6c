"""Section 5: training steps through the real pipeline, the overlap of its stages, and the audit of
their operations.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from myxtts.clock import Clock, Interval
from myxtts.data.batch_plan import Pass
from myxtts.placement.audit import audit, has_gpu_kernels
from myxtts.placement.copies import find_copies
from myxtts.preflight.checks import Check, recommended, required
from myxtts.preflight.model import Trial, initial_rates, take_step
from myxtts.training import loop

MIN_STEPS = 4
MAX_S = 60.0  # no further step starts after this time
MIN_OVERLAP = 0.5  # of the shorter of producing and training, in dual placement
MIN_EFFICIENCY = 0.9
MAX_WAIT_SHARE = 0.1

Period = tuple[float, float]  # start and end in seconds


@dataclass(frozen=True)
class TrialTimes:
    """The times of batches and steps.

    Attributes:
        making: for each batch of the first producer, the time from the request for its samples
            until its features are on the data device. This is the time of the producer thread.
        producing: the same without reading: from the arrival of the samples. This is the time of
            the data device.
        training: for each step, the time until its losses are read.
        interval: the times of all steps after the first.
        traces: number of steps that traced a new shape, which takes far longer than the step.
    """

    making: list[Period]
    producing: list[Period]
    training: list[Period]
    losses: list[float]
    interval: Interval
    traces: int = 0

    @property
    def window(self) -> Period:
        """The time from the first step to the last."""
        return self.training[0][0], self.training[-1][1]

    @property
    def window_s(self) -> float:
        return self.window[1] - self.window[0]

    @property
    def making_s(self) -> float:
        return overlap_s(self.making, [self.window])

    @property
    def producing_s(self) -> float:
        return overlap_s(self.producing, [self.window])

    @property
    def training_s(self) -> float:
        return sum(end - start for start, end in self.training)

    @property
    def hidden_s(self) -> float:
        """Seconds in which a step runs and a later batch is produced: the batches of a step are
        ready before it.
        """
        return overlap_s(self.producing, self.training)

    @property
    def overlapped_steps(self) -> int:
        """Number of steps during which a later batch is produced."""
        return sum(overlap_s(self.producing, [step]) > 0 for step in self.training)

    @property
    def efficiency(self) -> float:
        """Time of the slower of making and training, divided by the time of both together."""
        return max(self.making_s, self.training_s) / self.window_s


def overlap_s(left: Sequence[Period], right: Sequence[Period]) -> float:
    """Return the seconds that two lists of periods have in common; the periods of one list must not
    overlap.
    """
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in left for b in right)


def check_pipeline(trial: Trial, steps: int) -> Iterator[Check]:
    timeline = record_timeline(trial, steps)
    dual = trial.setup.between_devices
    traces = (
        f"; {timeline.traces} steps traced a new shape, which the times below include"
        if timeline.traces
        else ""
    )
    yield required(
        all(map(math.isfinite, timeline.losses)),
        "training steps",
        "batches of the corpus pass through the pipeline, and all losses are finite",
        f"{len(timeline.training)} steps, last loss {timeline.losses[-1]:.3g}{traces}",
        "Start the run: `myxtts train` names the utterances of a batch whose loss is not finite.",
    )
    yield check_overlap(timeline, dual)
    yield recommended(
        timeline.efficiency >= MIN_EFFICIENCY or not dual,
        "efficiency",
        (
            f"at least {100 * MIN_EFFICIENCY:.0f} % of the slower stage's rate"
            if dual
            else "any: one device does both"
        ),
        f"{100 * timeline.efficiency:.0f} %: {timeline.making_s:.2f} s of making batches and "
        f"{timeline.training_s:.2f} s of training took {timeline.window_s:.2f} s",
        "The stages wait for each other in turn: try --prefetch-buffer-size 8, or more --buckets.",
    )
    wait_share, bottleneck = timeline.interval.wait_share, timeline.interval.bottleneck
    slowest = (
        "batches are made fast enough"
        if bottleneck == "step"
        else f"the slowest stage is {bottleneck}"
    )
    yield recommended(
        wait_share <= MAX_WAIT_SHARE,
        "wait for batches",
        f"the model device waits at most {100 * MAX_WAIT_SHARE:.0f} % of the time",
        f"{100 * wait_share:.1f} %; {slowest}",
        "`myxtts profile` measures each stage and recommends changes.",
    )
    producers = [producer.produce for producer in trial.pipeline.producers]
    step_functions = trial.step.functions(trial.batches)
    yield check_operations("audit of the producer", producers)
    yield check_operations("audit of the step", step_functions)
    if has_gpu_kernels():
        yield check_copies("copies in the producer", producers[:1])
        yield check_copies("copies in the step", step_functions)


def check_overlap(timeline: TrialTimes, dual: bool) -> Check:
    shorter_s = min(timeline.producing_s, timeline.training_s)
    min_hidden_s = MIN_OVERLAP * shorter_s if dual else 0.0
    minimum = (
        f", for at least {100 * MIN_OVERLAP:.0f} % of the shorter of the two times" if dual else ""
    )
    hidden = timeline.hidden_s / timeline.producing_s if timeline.producing_s else 0.0
    if timeline.interval.bottleneck == "read":
        check, to_do = (
            recommended,
            "Reading is the slowest stage: raise --num-workers, or use --cache-dataset.",
        )
    else:
        check, to_do = required, "`myxtts profile --trace FILE` writes a timeline of all stages."
    return check(
        timeline.hidden_s > min_hidden_s,
        "overlap",
        f"batch n+1 is produced during step n{minimum}",
        f"in {timeline.overlapped_steps} of {len(timeline.training)} steps; {timeline.hidden_s:.2f}"
        f" s, which hides {100 * hidden:.0f} % of the time of producing",
        to_do,
    )


def record_timeline(trial: Trial, steps: int) -> TrialTimes:
    """Take steps from the start of the plan, each until its losses are read."""
    state, rates = trial.setup.state, initial_rates(trial.setup.schedule)
    making: list[Period] = []
    producing: list[Period] = []
    training: list[Period] = []
    losses = []
    producers = trial.pipeline.producers
    clock, traces_before = Clock(producers=len(producers)), trial.step.traces
    with trial.pipeline.open_feed(Pass()) as feed:
        ahead, first = loop.LookAhead(feed, trial.step, clock), None
        for number in range(steps):
            if number >= MIN_STEPS and time.perf_counter() > training[0][0] + MAX_S:
                break
            taken = ahead.take(running=None, is_last=False)  # each step is done before the next one
            if not training:
                clock.forget()  # the time until the very first batch
            first = first or trial.step.hand_over(taken.features[0])
            started_s = time.perf_counter()
            metrics, first = take_step(state, trial.step, first, taken, rates)
            training.append((started_s, time.perf_counter()))
            losses.append(metrics["loss"])
            planned = taken.microbatches[0][0].planned.step
            clock.finish_step(planned.audio_s, planned.padded_s, taken.times)
            first_producer = [
                batch for batch in taken.times if batch.producer == producers[0].device
            ]
            making += [(batch.began_s, batch.produced_s) for batch in first_producer]
            producing += [(batch.read_s, batch.produced_s) for batch in first_producer]
    return TrialTimes(
        making, producing, training, losses, clock.report(), trial.step.traces - traces_before
    )


def check_operations(name: str, functions: Sequence) -> Check:
    """Check that all operations of concrete functions have GPU kernels."""
    expected = "every operation has a GPU kernel for its types"
    if not has_gpu_kernels():
        found = "unknown: this build of TensorFlow has no list of GPU kernels"
        return recommended(
            False, name, expected, found, "Install the package tensorflow (not tensorflow-cpu)."
        )
    audits = [audit(function) for function in functions]
    host_only = [operation for result in audits for operation in result.host_only]
    examples = "; ".join(
        f"{operation.type} '{operation.name}' in {operation.function} ({operation.dtypes})"
        for operation in host_only[:5]
    )
    count = (
        f"{len(host_only)} of {sum(result.operations for result in audits):,} operations have no"
        " GPU kernel"
    )
    found = f"{count}: {examples}" if host_only else count
    return required(
        not host_only, name, expected, found, "Replace these operations: a GPU cannot run them."
    )


def check_copies(name: str, functions: Sequence) -> Check:
    """Count the copies between host and GPU memory in one call of each concrete function."""
    copies = [copy for function in functions for copy in find_copies(function)]
    in_loops = [copy for copy in copies if copy.to_host and copy.in_loop]
    counts = (
        f"{sum(copy.to_host for copy in copies)} to the host,"
        f" {sum(not copy.to_host for copy in copies)} to the GPU"
    )
    lines = ", ".join(sorted({copy.source or copy.tensor for copy in in_loops})[:5])
    return recommended(
        not in_loops,
        name,
        "no loop copies from the GPU to the host, which would wait for the GPU in each iteration",
        counts
        + (
            f"; {len(in_loops)} to the host in each iteration of a loop: {lines}"
            if in_loops
            else ""
        ),
        "A GPU is slow at such loops: choose another network, such as --encoder lmu in place of"
        " gru.",
    )
