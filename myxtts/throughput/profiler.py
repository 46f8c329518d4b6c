"""A profile of a run: each stage in isolation, all stages together, and trials of other settings
for the slowest stage.
"""

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from myxtts.batch import Batch, first_rows
from myxtts.clock import Span
from myxtts.config.flags import with_values
from myxtts.config.schema import Config
from myxtts.tasks.registry import task_of
from myxtts.throughput.analysis import Measurement, Row, Trials, analyze
from myxtts.throughput.assess import candidates, gpus_of, has_two_devices, shared_hardware
from myxtts.throughput.hardware import GpuSampler, matmul_flops_per_s, step_flops
from myxtts.throughput.measure import (
    MeasurementWindow,
    ProfiledRun,
    SampleBatches,
    measure_all_reduce,
    measure_isolated,
    measurement_window,
    open_run,
    run_traced,
    run_untraced,
    time_producing_without_teacher,
    time_reading,
    time_step,
)
from myxtts.throughput.model import StageTimes
from myxtts.training.setup import make_step

log = logging.getLogger(__name__)

# Runs of each kind, in turn.
RUNS = 2

# A stage is tried with other settings if it takes this fraction of the slowest stage's time.
TRIAL_THRESHOLD = 0.9
REPEATS = 5

MATMUL_TYPES = {"float32": "float32", "mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}


def profile(config: Config, steps: int) -> tuple[list[Row], Sequence[Span]]:
    """Measure `steps` steps of a run with these settings, which leaves no files.

    Returns:
        The report, and the spans of the last traced run.

    Raises:
        UserError: as `open_run`.
    """
    with open_run(config) as run:
        title = f"{run.placement.name}, {steps} steps"
        measurement, on_devices = measure(run, steps)
    figures = {
        "profile": title,
        "num_workers": config.data.num_workers,
        "single_device": measurement.single_device,
    }
    rows = [Row("profile", title, figures), *analyze(measurement, config.data), *on_devices]
    return rows, measurement.traced[-1].spans


def measure(run: ProfiledRun, steps: int) -> tuple[Measurement, list[Row]]:
    """Measure each stage in isolation, all stages together in untraced and traced runs, and the
    devices.
    """
    pipeline = run.setup.training_pipeline(synchronize=run.setup.between_devices)
    window = measurement_window(pipeline, steps)
    log.info("%-14s each stage in isolation; the step is traced first", "measuring")
    isolated, samples = measure_isolated(run, pipeline, window)
    produce_without_teacher_s = time_producing_without_teacher(pipeline, window)
    log.info("%-14s other settings of the slowest stages", "measuring")
    trials = try_settings(run, window, samples, isolated)

    gpus = [device.physical for device in run.placement.devices if device.physical is not None]
    sampler = GpuSampler(gpus if run.placement.on_gpu else [])
    traced_pipeline = run.setup.training_pipeline(synchronize=True)
    untraced_s = []
    traced = []
    for number in range(1, RUNS + 1):
        log.info(
            "%-14s all stages together, %d steps, pass %d of %d", "measuring", steps, number, RUNS
        )
        with sampler.sampling():
            untraced_s.append(run_untraced(run, pipeline, steps))
        traced.append(run_traced(run, traced_pipeline, steps))

    measurement = Measurement(
        work=window.audio_s[window.measured],
        padded_work=window.padded_s[window.measured],
        isolated=isolated,
        untraced_s=untraced_s,
        traced=traced,
        step_bucket=window.step_buckets,
        single_device=not run.setup.between_devices,
        devices=run.setup.gpu_count,
        trials=trials,
        gpus=gpus_of(run.placement),
        all_reduce_s=measure_all_reduce(run) if has_two_devices(run.placement) else None,
        can_replicate=run.setup.can_replicate,
        produce_without_teacher_s=produce_without_teacher_s,
        augmentation=task_of(run.setup.config).augmentation,
        note=shared_hardware(run.placement),
    )
    return measurement, [*device_rows(run, window, samples, isolated, sampler)]


def device_rows(
    run: ProfiledRun,
    window: MeasurementWindow,
    samples: SampleBatches,
    isolated: StageTimes,
    sampler: GpuSampler,
) -> Iterator[Row]:
    """Yield the use of the devices: traces, the model's matrix products, and the GPUs' own figures.

    The model's rate is that of a step of the most frequent bucket. MFU (model FLOPs utilisation) is
    this rate, divided by the rate of one large matrix product on the same device.
    """
    traces = run.step.traces
    yield Row("traces", f"{traces} of the step", {"step_traces": traces})
    with tf.device(run.route.model):
        matmul_rate = matmul_flops_per_s(MATMUL_TYPES[run.setup.config.training.precision])
    bucket = window.most_frequent_bucket
    step_s = isolated.step_s[window.measured_buckets == bucket].mean()
    rate = None
    utilisation = None
    reason = ""
    try:
        rate = float(step_flops(run.setup.state, samples[bucket][0]) / step_s)
    except ValueError as error:
        reason = str(error)
        text = f"not counted: {reason}"
    else:
        utilisation = rate / matmul_rate
        text = (
            f"{utilisation:.1%}: {rate / 1e9:.1f} GFLOP/s in the model's matrix products,"
            f" {matmul_rate / 1e9:.1f} in one large matrix product"
        )
    figures = {"model_flops_per_s": rate, "not_counted_reason": reason}
    figures |= {"matmul_flops_per_s": matmul_rate, "model_flops_utilisation": utilisation}
    yield Row("MFU", text, figures)
    usages = sampler.usage()
    for gpu, usage in usages.items():
        text = (
            f"{usage['utilisation']:.0%} busy (variation {usage['utilisation_variation']:.0%}),"
            f" at most {usage['memory_mib']:.0f} MiB"
        )
        yield Row(f"GPU {gpu}", text)
    text = f"no usage from the driver: {sampler.reason}" if sampler.reason else ""
    yield Row("GPUs", text, {"gpu_usage": usages, "no_usage_reason": sampler.reason})
    shares_cores = not run.placement.on_gpu
    text = ""
    if shares_cores:
        text = (
            "these devices share the cores of one CPU. A stage in isolation has all cores, so"
            " the ceiling and the ideal speedup are higher than all stages together can reach"
        )
    yield Row("note", text, {"shares_cores": shares_cores})


def try_settings(
    run: ProfiledRun, window: MeasurementWindow, samples: SampleBatches, isolated: StageTimes
) -> Trials:
    """Measure other settings of the slowest stages."""
    data = run.setup.config.data
    slow_s = TRIAL_THRESHOLD * max(isolated.mean_s().values())
    trials = Trials()
    if isolated.step_s.mean() > slow_s and not data.enable_static_shapes:
        trials = try_steps(run, samples[window.most_frequent_bucket][0])
    if isolated.read_s.mean() > slow_s:
        single = not run.setup.between_devices
        for change in candidates("read", data, single, run.setup.gpu_count):
            if "num_workers" in change:
                seconds = try_workers(run, window, isolated, change["num_workers"])
                trials = trials._replace(more_workers_s=seconds)
    return trials


def try_workers(
    run: ProfiledRun, window: MeasurementWindow, isolated: StageTimes, num_workers: int
) -> float:
    """Return the seconds between two batches with another number of workers."""
    # The first pass has brought the files into the host's memory. Both passes here read them from
    # there.
    current_s, changed_s = (
        time_reading(run.setup.training_pipeline(synchronize=True, **change), window)[0].mean()
        for change in ({}, {"num_workers": num_workers})
    )
    return float(isolated.read_s.mean() * changed_s / current_s)


def try_steps(run: ProfiledRun, batch: Batch) -> Trials:
    """Measure steps with static shapes and steps on half the rows, alternating with steps of the
    run.
    """
    setup = run.setup
    static = with_values(setup.config, {"enable_static_shapes": True})
    static_step = make_step(static, setup.state)
    rows = len(batch["frames"])
    half = batch
    if rows > 1:
        with tf.device(run.route.data):
            half = first_rows(batch, setup.state.model.BATCH_FIELDS, rows // 2)
    variants = [(run.step, batch), (static_step, batch), (run.step, half)]
    times_s = [
        [time_step(setup, step, [variant]) for step, variant in variants]
        for _ in range(REPEATS + 1)
    ]
    # The first calls trace. Of the others the fastest counts: other programs can only add time.
    full_s, static_s, half_s = np.min(times_s[1:], axis=0)
    row_s = (full_s - half_s) / (rows - rows // 2)
    fixed_fraction = float(np.clip(1.0 - row_s * rows / full_s, 0.0, 1.0)) if rows > 1 else None
    return Trials(static_shapes_ratio=float(static_s / full_s), fixed_fraction=fixed_fraction)
