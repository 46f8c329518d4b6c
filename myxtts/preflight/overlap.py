"""Section 5: batches go through the real route; whether one is made while another is trained on; and the audit."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from myxtts.clock import Clock, Interval
from myxtts.data.plan_iterator import Position
from myxtts.placement.audit import audit, has_gpu_kernels
from myxtts.preflight.checks import Check, check, remark
from myxtts.preflight.model import Bench, take_step
from myxtts.training import loop

LEAST_STEPS = 4
LONGEST_S = 60.0  # no further step is begun after it
LEAST_HIDDEN = 0.5  # of the shorter of making and training, in dual placement
LEAST_EFFICIENCY = 0.9
MOST_WAITING = 0.1

Stretch = tuple[float, float]  # seconds at which something began and ended


@dataclass(frozen=True)
class Flow:
    """What happened when, from the beginning of the first step.

    Attributes:
        made: of each batch of the first producer, from asking for its samples until it lay on the model device: the
            producer's thread.
        worked: of each of these, from having its samples on: the data device.
        trained: of each step, until its losses were read.
        interval: of all steps after the first.
        traced: steps that traced a new shape, which takes far longer than the step.
    """

    made: list[Stretch]
    worked: list[Stretch]
    trained: list[Stretch]
    losses: list[float]
    interval: Interval
    traced: int = 0

    @property
    def window_s(self) -> float:
        return self.trained[-1][1] - self.trained[0][0]

    @property
    def made_s(self) -> float:
        """Seconds of making within the steps' time."""
        return overlap_s(self.made, [(self.trained[0][0], self.trained[-1][1])])

    @property
    def trained_s(self) -> float:
        return sum(end - begin for begin, end in self.trained)

    @property
    def hidden_s(self) -> float:
        """Seconds in which a step ran and a later batch was being made: a step has its own batches before it."""
        return overlap_s(self.worked, self.trained)

    @property
    def steps_beside(self) -> int:
        """Steps during which a later batch was being made."""
        return sum(overlap_s(self.worked, [step]) > 0 for step in self.trained)

    @property
    def worked_s(self) -> float:
        """Seconds of the data device's work within the steps' time."""
        return overlap_s(self.worked, [(self.trained[0][0], self.trained[-1][1])])

    @property
    def efficiency(self) -> float:
        """Time of the slower of making and training over the time of both together."""
        return max(self.made_s, self.trained_s) / self.window_s


def overlap_s(left: Sequence[Stretch], right: Sequence[Stretch]) -> float:
    """Seconds that two lists of stretches have in common; those of one list do not overlap each other."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in left for b in right)


def check_flow(bench: Bench, steps: int) -> Iterator[Check]:
    flow = run_flow(bench, steps)
    dual = bench.setup.between_devices
    finite = all(map(math.isfinite, flow.losses))
    yield check(
        finite,
        "batches of the corpus",
        "go through the route, with finite losses",
        f"{len(flow.made)} batches, {len(flow.trained)} steps, last loss {flow.losses[-1]:.3g}"
        + (f"; {flow.traced} steps traced a new shape, which is in the times below" if flow.traced else ""),
        "train_main.py names the utterances of a batch whose loss is not finite.",
    )
    yield check_overlap(flow, dual)
    yield remark(
        flow.efficiency >= LEAST_EFFICIENCY or not dual,
        "efficiency",
        f"{100 * LEAST_EFFICIENCY:.0f} % of the slower stage's own rate" if dual else "any: one device does both",
        f"{100 * flow.efficiency:.0f} %: {flow.made_s:.2f} s of making and {flow.trained_s:.2f} s of training took "
        f"{flow.window_s:.2f} s",
        "Stages wait for each other by turns: try --prefetch-buffer-size 8, or more --buckets.",
    )
    yield remark(
        flow.interval.wait_share <= MOST_WAITING,
        "waiting",
        f"the model waits at most {100 * MOST_WAITING:.0f} % of the time",
        f"{100 * flow.interval.wait_share:.1f} %; the slowest stage is {flow.interval.bottleneck}",
        "utilities/dual_gpu_bottleneck_profiler.py measures each stage and says what to change.",
    )
    yield check_operations("audit of the producer", [producer.produce for producer in bench.pipeline.producers])
    yield check_operations("audit of the step", bench.step.functions(bench.batches))


def check_overlap(flow: Flow, dual: bool) -> Check:
    shorter_s = min(flow.worked_s, flow.trained_s)
    least = LEAST_HIDDEN * shorter_s if dual else 0.0
    expected = "batch n+1 is made while step n runs"
    expected += f", at least {100 * LEAST_HIDDEN:.0f} % of the shorter of both times" if dual else ""
    hidden = flow.hidden_s / flow.worked_s if flow.worked_s else 0.0
    return check(
        flow.hidden_s > least,
        "overlap",
        expected,
        f"in {flow.steps_beside} of {len(flow.trained)} steps; {flow.hidden_s:.2f} s, "
        f"which hides {100 * hidden:.0f} % of the time of making",
        "utilities/dual_gpu_bottleneck_profiler.py draws what ran when.",
    )


def run_flow(bench: Bench, steps: int) -> Flow:
    """Steps as a run takes them, from the beginning of the plan, each until its losses are read."""
    schedule = bench.setup.schedule
    made, worked, trained, losses = [], [], [], []
    clock, traces = Clock(), bench.step.traces
    with bench.pipeline.open_feed(Position()) as feed:
        for number in range(steps):
            if number >= LEAST_STEPS and time.perf_counter() > trained[0][0] + LONGEST_S:
                break
            with clock.wait():
                rounds = loop.next_microbatches(feed)
            if not trained:
                clock.forget()  # the time in which the first batch of all was read
            began_s = time.perf_counter()
            losses.append(take_step(bench.setup.state, bench.step, rounds, schedule)["loss"])
            trained.append((began_s, time.perf_counter()))
            planned, times = rounds[0][0].planned.step, [one.times for own in rounds for one in own]
            clock.finish_step(planned.audio_s, planned.padded_s, times)
            own = [one for one in times if one.producer == bench.pipeline.producers[0].device]
            made += [(one.began_s, one.handed_s) for one in own]
            worked += [(one.read_s, one.handed_s) for one in own]
    return Flow(made, worked, trained, losses, clock.report(), bench.step.traces - traces)


def check_operations(name: str, functions: Sequence) -> Check:
    """No operation of some concrete functions lacks a GPU kernel."""
    expected = "every operation has a GPU kernel for its types"
    if not has_gpu_kernels():
        return Check("unknown", name, expected, "this build of TensorFlow has no GPU kernels to look up", "")
    audits = [audit(function) for function in functions]
    lacking = [operation for one in audits for operation in one.host_only]
    named = "; ".join(f"{one.type} '{one.name}' in {one.function} ({one.dtypes})" for one in lacking[:5])
    count = f"{len(lacking)} of {sum(one.operations for one in audits):,} operations lack one"
    do = "Replace them: with soft placement off a GPU refuses them."
    return check(not lacking, name, expected, f"{count}: {named}" if lacking else count, do)
