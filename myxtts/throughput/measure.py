"""A profile of a run on its own corpus, model and devices: each stage in isolation, and all stages
together.
"""

import logging

import tensorflow as tf

from myxtts.config.schema import Config
from myxtts.placement.routes import Placement
from myxtts.tasks.registry import task_of
from myxtts.throughput.analysis import Measurement
from myxtts.throughput.assess import gpus_of, has_two_devices, shared_hardware
from myxtts.throughput.flops import matmul_flops_per_s, step_flops
from myxtts.throughput.isolated_stages import (
    SampleBatches,
    measure_all_reduce,
    measure_isolated,
    time_producing_without_teacher,
)
from myxtts.throughput.model import StageTimes
from myxtts.throughput.nvml import GpuSampler
from myxtts.throughput.pipeline_runs import run_traced, run_untraced
from myxtts.throughput.profiled_run import (
    MeasurementWindow,
    ProfiledRun,
    measurement_window,
    open_run,
)
from myxtts.throughput.report import DeviceMetrics
from myxtts.throughput.trials import try_settings

log = logging.getLogger(__name__)

RUNS = 2  # of each kind, in turn
MATMUL_TYPES = {"float32": "float32", "mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}


def profile(config: Config, steps: int) -> tuple[Measurement, DeviceMetrics, Placement]:
    """Measure `steps` steps of a run with these settings; the run leaves no files.

    Raises:
        UserError: as `open_run`.
    """
    with open_run(config) as run:
        return *measure(run, steps), run.placement


def measure(run: ProfiledRun, steps: int) -> tuple[Measurement, DeviceMetrics]:
    """Measure each stage in isolation, then all stages together in untraced and traced runs."""
    pipeline = run.setup.training_pipeline(synchronize=run.setup.between_devices)
    window = measurement_window(pipeline, steps)
    log.info("%-14s each stage in isolation; the step is traced first", "measuring")
    isolated, samples = measure_isolated(run, pipeline, window)
    untaught_produce_s = time_producing_without_teacher(pipeline, window)
    log.info("%-14s other settings of the slowest stages", "measuring")
    trials = try_settings(run, window, samples, isolated)

    gpus = [device.physical for device in run.placement.devices if device.physical is not None]
    sampler = GpuSampler(gpus if run.placement.on_gpu else [])
    traced_pipeline = run.setup.training_pipeline(synchronize=True)
    untraced_s, traced = [], []
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
        untaught_produce_s=untaught_produce_s,
        augmentation=task_of(run.setup.config).augmentation,
        note=shared_hardware(run.placement),
    )
    return measurement, measure_devices(run, window, samples, isolated, sampler)


def measure_devices(
    run: ProfiledRun,
    window: MeasurementWindow,
    samples: SampleBatches,
    isolated: StageTimes,
    sampler: GpuSampler,
) -> DeviceMetrics:
    """Measure the rate of matrix products, and collect the other metrics of the devices."""
    model_flops_per_s, not_counted_reason = measure_model_flops(run, window, samples, isolated)
    with tf.device(run.route.model):
        matmul_rate = matmul_flops_per_s(MATMUL_TYPES[run.setup.config.training.precision])
    return DeviceMetrics(
        step_traces=run.step.traces,
        model_flops_per_s=model_flops_per_s,
        not_counted_reason=not_counted_reason,
        matmul_flops_per_s=matmul_rate,
        gpu_usage={gpu: usage.to_json() for gpu, usage in sampler.usage.items()},
        no_usage_reason=sampler.reason,
        shares_cores=not run.placement.on_gpu,
    )


def measure_model_flops(
    run: ProfiledRun, window: MeasurementWindow, samples: SampleBatches, isolated: StageTimes
) -> tuple[float | None, str]:
    """Return the operations per second of the model's matrix products, or the reason why they
    cannot be counted.

    The rate is measured on a step of the most frequent bucket.
    """
    bucket = window.most_frequent_bucket
    step_s = isolated.step_s[window.measured_buckets == bucket].mean()
    try:
        return float(step_flops(run.setup.state, samples[bucket][0]) / step_s), ""
    except ValueError as error:
        return None, str(error)
