"""The measurement of stages that only sleep, for checks of what is made of one. No TensorFlow."""

import time
from typing import Any

import numpy as np

from myxtts.config.schema import Config
from myxtts.errors import ConfigError
from myxtts.placement.routes import Placement, only_route, plan_routes
from myxtts.planner.emulator import EmulatedRun, emulate, precise_sleep
from myxtts.planner.simulator import QueueDepths
from myxtts.planner.stage_times import StageTimes
from myxtts.profiling.analysis import Measurement, TracedRun

WARM_UP = 20  # batches: the queues of a route hold 14, and one more is in each stage
PASSES = 2
SLEEPS = 20
SEED = 0


def measure_emulation(times: dict[str, Any], config: Config, steps: int) -> tuple[Measurement, Placement]:
    """Run batches through the feed of a run, with stages that sleep; depths and workers are those of the settings.

    Args:
        times: as `parse_emulation` gives them.
        config: its placement is taken for devices that need not be there; without any it is dual.
        steps: batches, after those of a warm-up.

    Raises:
        ConfigError: so few batches cannot vary so much.
        PlacementError: several replicas were asked for, or the placement contradicts itself.
    """
    placement = emulated_placement(config)
    route = placement.routes[0]
    try:
        stages = StageTimes.constant(WARM_UP + steps, **times, seed=SEED)
    except ValueError as error:
        raise ConfigError(f"{error}. Raise --num-steps, or lower variation= in --emulate.") from error
    data = config.data
    depths = QueueDepths.from_settings(data)
    single = route.data == route.model
    alone_s = {
        "read": measured_sleep_s(stages.read_s[WARM_UP:]) / data.num_workers,
        "produce": measured_sleep_s(stages.produce_s[WARM_UP:]),
        "transfer": np.zeros(steps) if single else measured_sleep_s(stages.transfer_s[WARM_UP:]),
        "step": measured_sleep_s(stages.step_s[WARM_UP:]),
    }
    passes = [traced_run_of(emulate([(route.data, route.model)], stages, depths)) for _ in range(PASSES)]
    measurement = Measurement(
        work=np.ones(steps),
        padded=np.ones(steps),
        alone_s=alone_s,
        plain_s=[],
        watched=passes,
        lengths=np.zeros(steps, int),
        single=single,
        devices=len(placement.devices),
    )
    return measurement, placement


def emulated_placement(config: Config) -> Placement:
    asked = config.placement
    named = [gpu for gpu in (asked.data_gpu, asked.model_gpu, *asked.model_gpus) if gpu is not None]
    there = max(asked.simulate_gpus, 2, *(gpu + 1 for gpu in named))
    dual = {} if named else {"data_gpu": 0, "model_gpu": 1}
    placement = plan_routes(asked.model_copy(update={"simulate_gpus": there, **dual}), gpu_count=0)
    only_route(placement, "a profile")
    return placement


def measured_sleep_s(seconds: np.ndarray) -> np.ndarray:
    """What sleeping so long takes on this machine: each with the median of by how much some sleeps are late."""
    if not seconds.any():
        return seconds
    late_s = []
    for one in seconds[:SLEEPS].tolist():
        began_s = time.perf_counter()
        precise_sleep(one)
        late_s.append(time.perf_counter() - began_s - one)
    return seconds + np.median(late_s)


def traced_run_of(run: EmulatedRun) -> TracedRun:
    """A run on one route, from the end of the warm-up on."""
    steps = sorted((span for span in run.spans if span.stage == "step"), key=lambda span: span.batch)
    begin_s, end_s = np.array([(span.start_s, span.end_s) for span in steps]).T
    seconds = end_s[-1] - end_s[WARM_UP - 1]
    busy_s = (end_s - begin_s)[WARM_UP:].sum()
    return TracedRun(
        seconds=float(seconds),
        wait_s=float(seconds - busy_s),
        blocked_s=sum(max(0.0, end - max(start, end_s[WARM_UP - 1])) for start, end in run.blocked),
        busy_s=float(busy_s),
        step_s=np.diff(end_s[WARM_UP - 1 :]),
        spans=[span for span in run.spans if span.batch >= WARM_UP],
    )
