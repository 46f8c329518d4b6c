"""A profile of a run: each stage in isolation, all stages together, and the use of the GPUs."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from myxtts.clock import Span
from myxtts.config.schema import Config
from myxtts.placement.gpu_memory import DriverUnavailable, ask_driver
from myxtts.throughput import measure
from myxtts.throughput.analysis import Measurement, Row, analyze
from myxtts.throughput.assess import has_two_devices

log = logging.getLogger(__name__)

# Runs of each kind, in turn.
RUNS = 2

# The driver averages its own figure over the last 0.17 to 1 s, depending on the GPU.
PERIOD_S = 0.1


def profile(config: Config, steps: int) -> tuple[list[Row], Sequence[Span]]:
    """Measure `steps` steps of a run with these settings, which leaves no files.

    Raises UserError as `open_run`.

    Returns:
        The report, and the spans of the last traced run.
    """
    with measure.open_run(config) as run:
        placement = run.placement
        gpus = [device.physical for device in placement.devices if device.physical is not None]
        sampler = GpuSampler(gpus if placement.on_gpu else [])
        measurement = measure_run(run, steps, sampler)
        traces = run.step.traces
    usage = sampler.usage()
    rows = [
        Row(
            "profile",
            f"{placement.name}, {steps} steps",
            num_workers=config.data.num_workers,
            single_device=not measurement.route.is_between_devices,
        ),
        *analyze(measurement, config.data),
        Row("traces", "{step_traces} of the step", step_traces=traces),
    ]
    for gpu, figures in usage.items():
        text = "{utilisation:.0%} busy, at most {memory_mib:.0f} MiB".format(**figures)
        rows.append(Row(f"GPU {gpu}", text))
    reason = f"no usage from the driver: {sampler.reason}" if sampler.reason else ""
    rows.append(Row("GPUs", reason, gpu_usage=usage, no_usage_reason=sampler.reason))
    note = (
        "these devices share the cores of one CPU. A stage in isolation has all cores, so the"
        " ceiling is higher than all stages together can reach"
    )
    rows.append(Row("note", "" if placement.on_gpu else note, shares_cores=not placement.on_gpu))
    return rows, measurement.traced[-1].spans


def measure_run(run: measure.ProfiledRun, steps: int, sampler: "GpuSampler") -> Measurement:
    """Measure each stage in isolation, and all stages together in untraced and traced runs."""
    setup = run.setup
    pipeline = setup.training_pipeline(synchronize=setup.between_devices)
    window = measure.measurement_window(pipeline, steps)
    log.info("%-14s each stage in isolation; the step is traced first", "measuring")
    isolated, _ = measure.measure_isolated(run, pipeline, window)
    produce_without_teacher_s = measure.time_producing_without_teacher(pipeline, window)
    traced_pipeline = setup.training_pipeline(synchronize=True)
    untraced_s = []
    traced = []
    for number in range(1, RUNS + 1):
        log.info(
            "%-14s all stages together, %d steps, pass %d of %d", "measuring", steps, number, RUNS
        )
        with sampler.sampling():
            untraced_s.append(measure.run_untraced(run, pipeline, steps))
        traced.append(measure.run_traced(run, traced_pipeline, steps))
    return Measurement(
        work=window.audio_s[window.measured],
        padded_work=window.padded_s[window.measured],
        isolated=isolated,
        untraced_s=untraced_s,
        traced=traced,
        step_bucket=window.step_buckets,
        placement=run.placement,
        devices=setup.gpu_count,
        can_replicate=setup.config.training.compile != "xla",
        all_reduce_s=measure.measure_all_reduce(run) if has_two_devices(run.placement) else None,
        produce_without_teacher_s=produce_without_teacher_s,
    )


class GpuSampler:
    """Samples the usage of some GPUs inside the context `sampling`.

    Args:
        gpus: physical indices, as TensorFlow numbers them.

    Attributes:
        samples: by GPU, (fraction of the time in which a kernel ran, MiB used by all programs).
        reason: why nothing can be sampled; otherwise empty.
    """

    def __init__(self, gpus: Sequence[int]):
        self.samples: dict[int, list[tuple[float, float]]] = {}
        self.reason = "" if gpus else "the model is not on a GPU"
        self._readers: list[Callable[[], tuple[float, float]]] = []
        try:
            if gpus:
                self._readers = ask_driver(gpus, _reader)
                self.samples = {gpu: [] for gpu in gpus}
        except DriverUnavailable as error:
            self.reason = str(error)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(
            target=self._sample, args=(stop,), name="myxtts-nvml", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _sample(self, stop: threading.Event) -> None:
        try:
            while self._readers and not stop.wait(PERIOD_S):
                for samples, read in zip(self.samples.values(), self._readers, strict=True):
                    samples.append(read())
        except DriverUnavailable as error:
            # The figures of a part of the time are not those of all of it.
            self.samples.clear()
            self._readers = []
            self.reason = str(error)

    def usage(self) -> dict[int, dict[str, float]]:
        """Return the mean utilisation and the maximum memory in MiB of each GPU with samples."""
        figures = {}
        for gpu, samples in self.samples.items():
            if samples:
                utilisation, memory_mib = np.transpose(samples)
                figures[gpu] = {
                    "utilisation": float(utilisation.mean()),
                    "memory_mib": float(memory_mib.max()),
                }
        return figures


def _reader(nvml: Any, handle: Any) -> Callable[[], tuple[float, float]]:
    """Return a function that reads utilisation and used memory in MiB of a GPU, after one try.

    Raises DriverUnavailable for parts of a GPU (MIG), which have no utilisation; the function
    raises it at any later time.
    """

    def read() -> tuple[float, float]:
        try:
            utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            return utilisation, nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20
        except nvml.NVMLError as error:
            raise DriverUnavailable(f"the driver reports: {error}") from error

    read()
    return read
