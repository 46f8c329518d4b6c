"""A profile of stages that only sleep, to check the analysis and the hand-over between stages. No
TensorFlow.
"""

import time
from typing import Any

import numpy as np

from myxtts.config.schema import Config
from myxtts.errors import ConfigError
from myxtts.placement.routes import Placement, named_gpus, plan_routes, single_route
from myxtts.planner.emulator import EmulatedRun, emulate, precise_sleep
from myxtts.planner.simulator import QueueDepths
from myxtts.planner.stage_times import STAGES, StageTimes
from myxtts.profiling.analysis import Measurement, TracedRun
from myxtts.report.assessment import gpus_of

RUNS = 2
SLEEPS = 20
SEED = 0


def measure_emulation(
    stage_times: dict[str, Any], config: Config, steps: int
) -> tuple[Measurement, Placement]:
    """Run batches through the feed of a run, with stages that sleep; depths and workers come from
    the settings.

    Args:
        stage_times: as `parse_emulation` returns them.
        config: its placement may name devices that do not exist; without one, the placement is
            dual.
        steps: number of batches after the warm-up.

    Raises:
        ConfigError: so few batches cannot vary so much.
        PlacementError: the placement has several replicas or contradicts itself.
    """
    placement, data = emulated_placement(config), config.data
    route = placement.routes[0]
    depths = QueueDepths.from_settings(
        data.prefetch_buffer_size, data.buffer_size, data.num_workers
    )
    warm_up = warm_up_batches(depths, len(route.data_devices))
    try:
        times = StageTimes.constant(warm_up + steps, **stage_times, seed=SEED)
    except ValueError as error:
        raise ConfigError(
            f"{error}. Raise --num-steps, or lower variation= in --emulate."
        ) from error
    single_device = not route.is_between_devices
    isolated = StageTimes(
        read_s=measure_sleep(times.read_s[warm_up:]) / data.num_workers,
        produce_s=measure_sleep(times.produce_s[warm_up:]),
        transfer_s=np.zeros(steps) if single_device else measure_sleep(times.transfer_s[warm_up:]),
        step_s=measure_sleep(times.step_s[warm_up:]),
    )
    measurement = Measurement(
        work=np.ones(steps),
        padded_work=np.ones(steps),
        isolated=isolated,
        untraced_s=[],
        traced=[
            without_warm_up(emulate([route], times, depths), warm_up, len(route.data_devices))
            for _ in range(RUNS)
        ],
        step_bucket=np.zeros(steps, int),
        single_device=single_device,
        devices=len({device.physical for device in placement.devices}),
        gpus=gpus_of(placement),
    )
    return measurement, placement


def warm_up_batches(depths: QueueDepths, producers: int = 1) -> int:
    """Return how many batches fill the queues and the stages of one route; the host holds
    one more.
    """
    return (
        producers * (depths.host + depths.uploaded + depths.feed + depths.workers + len(STAGES)) + 1
    )


def emulated_placement(config: Config) -> Placement:
    settings = config.placement
    named = named_gpus(settings)
    gpus = max(settings.simulate_gpus, 2, *(gpu + 1 for gpu in named))
    dual = {} if named else {"data_gpu": 0, "model_gpu": 1}
    # Emulated stages validate nothing, so the device of an observer need not exist.
    emulated = {"simulate_gpus": gpus, "observer": "auto", **dual}
    placement = plan_routes(settings.model_copy(update=emulated), gpu_count=0)
    single_route(placement, "a profile")
    return placement


def measure_sleep(seconds: np.ndarray) -> np.ndarray:
    """Return the actual durations of these sleeps on this machine: each plus the median delay of
    some of them.
    """
    if not seconds.any():
        return seconds
    delays_s = []
    for asked_s in seconds[:SLEEPS].tolist():
        start_s = time.perf_counter()
        precise_sleep(asked_s)
        delays_s.append(time.perf_counter() - start_s - asked_s)
    return seconds + np.median(delays_s)


def without_warm_up(run: EmulatedRun, warm_up: int, producers: int = 1) -> TracedRun:
    """Return an emulated run on one route without its first `warm_up` batches."""
    steps = sorted(
        (span for span in run.spans if span.stage == "step"), key=lambda span: span.batch
    )
    start_s, end_s = np.array([(span.start_s, span.end_s) for span in steps]).T
    origin_s = end_s[warm_up - 1]
    duration_s = end_s[-1] - origin_s
    busy_s = (end_s - start_s)[warm_up:].sum()
    return TracedRun(
        duration_s=float(duration_s),
        wait_s=float(duration_s - busy_s),
        blocked_s=sum(max(0.0, end - max(start, origin_s)) for start, end in run.blocked)
        / producers,
        busy_s=float(busy_s),
        step_s=np.diff(end_s[warm_up - 1 :]),
        spans=[span for span in run.spans if span.batch >= warm_up],
    )
