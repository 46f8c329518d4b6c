"""A profile of a run: each stage in isolation, all stages together, and the use of the GPUs."""

import logging
from collections.abc import Sequence
from typing import Any

from myxtts.clock import Span
from myxtts.config.schema import Config
from myxtts.placement.gpu_memory import DriverUnavailable, ask_driver
from myxtts.throughput import measure
from myxtts.throughput.analysis import Measurement, Row, analyze
from myxtts.throughput.assess import has_two_devices

log = logging.getLogger(__name__)

# Runs of each kind, in turn.
RUNS = 2


def profile(config: Config, steps: int) -> tuple[list[Row], Sequence[Span]]:
    """Measure `steps` steps of a run with these settings, which leaves no files; return the report,
    and the spans of the last traced run. Raises UserError as `open_run`.
    """
    with measure.open_run(config) as run:
        measurement, device_rows = measure_run(run, steps)
    title = Row(
        "profile",
        f"{run.placement.name}, {steps} steps",
        num_workers=config.data.num_workers,
        single_device=not measurement.route.is_between_devices,
    )
    rows = [title, *analyze(measurement, config.data), *device_rows]
    return rows, measurement.traced[-1].spans


def measure_run(run: measure.ProfiledRun, steps: int) -> tuple[Measurement, list[Row]]:
    """Measure each stage in isolation, all stages together in untraced and traced runs, and the use
    of the devices.
    """
    setup = run.setup
    pipeline = setup.training_pipeline(synchronize=setup.between_devices)
    window = measure.measurement_window(pipeline, steps)
    log.info("%-14s each stage in isolation; the step is traced first", "measuring")
    isolated, _ = measure.measure_isolated(run, pipeline, window)
    produce_without_teacher_s = measure.time_producing_without_teacher(pipeline, window)
    traced_pipeline = setup.training_pipeline(synchronize=True)
    on_gpu = run.placement.on_gpu
    gpus = [device.physical for device in run.placement.devices if device.physical is not None]
    untraced_s = []
    traced = []
    for number in range(1, RUNS + 1):
        log.info(
            "%-14s all stages together, %d steps, pass %d of %d", "measuring", steps, number, RUNS
        )
        untraced_s.append(measure.run_untraced(run, pipeline, steps))
        usage, reason = gpu_usage(gpus if on_gpu else [])
        traced.append(measure.run_traced(run, traced_pipeline, steps))
    measurement = Measurement(
        work=window.audio_s[window.measured],
        padded_work=window.padded_s[window.measured],
        isolated=isolated,
        untraced_s=untraced_s,
        traced=traced,
        placement=run.placement,
        devices=setup.gpu_count,
        can_replicate=setup.config.training.compile != "xla",
        all_reduce_s=measure.measure_all_reduce(run) if has_two_devices(run.placement) else None,
        produce_without_teacher_s=produce_without_teacher_s,
    )
    rows = [Row("traces", "{step_traces} of the step", step_traces=run.step.traces)]
    for gpu, figures in usage.items():
        text = "{utilisation:.0%} busy at the end of a pass, {memory_mib:.0f} MiB"
        rows.append(Row(f"GPU {gpu}", text.format(**figures)))
    text = f"no usage from the driver: {reason}" if reason else ""
    rows.append(Row("GPUs", text, gpu_usage=usage, no_usage_reason=reason))
    note = (
        "these devices share the cores of one CPU. A stage in isolation has all cores, so the"
        " ceiling is higher than all stages together can reach"
    )
    return measurement, [*rows, Row("note", "" if on_gpu else note, shares_cores=not on_gpu)]


def gpu_usage(gpus: Sequence[int]) -> tuple[dict[int, dict[str, float]], str]:
    """Return how busy each GPU was in the last second or less and its used memory in MiB, by the
    driver (NVML); or nothing, and why.

    Args:
        gpus: physical indices, as TensorFlow numbers them.
    """

    def usage(nvml: Any, handle: Any) -> dict[str, float]:
        utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        memory_mib = nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20
        return {"utilisation": utilisation, "memory_mib": memory_mib}

    if not gpus:
        return {}, "the model is not on a GPU"
    try:
        return dict(zip(gpus, ask_driver(gpus, usage), strict=True)), ""
    except DriverUnavailable as error:
        return {}, str(error)
