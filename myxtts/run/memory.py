"""Forecast of the host memory that a run takes, from its settings and its plan alone.

What comes in are the settings, the plan and the routes. Before the first step, the main thread adds
up what is on the host at the same time: batches in buffers, the step and the observer if their
devices are CPUs, and the copy for a checkpoint. What goes out is a sum by parts. The run ends with
a message if the sum is more than the host has.
"""

from collections.abc import Sequence
from itertools import chain
from math import ceil
from typing import NamedTuple

from myxtts.audio.format import SAMPLE_RATE_HZ, frame_count, sample_rate_hz
from myxtts.base.errors import ConfigError
from myxtts.base.machine import available_memory_mib
from myxtts.batches.contract import batch_bytes
from myxtts.batches.pipeline import reference_samples_of
from myxtts.batches.plan import Plan
from myxtts.config.schema import Config, DataConfig
from myxtts.devicefeed.contract import FeatureExtractor
from myxtts.devicefeed.handover import HANDED_OVER_AHEAD
from myxtts.devicefeed.routes import Route
from myxtts.tasks.base import KEPT_ARRAYS, computes_as_evaluated
from myxtts.tasks.registry import task_of

# Bytes to make the features of a second at SAMPLE_RATE_HZ: frames and spectra of log-mel in
# float64, and F0. Measured: 218 MiB for 32 utterances and references of 3 s each.
PRODUCE_BYTES = 1_200_000

# An evaluation computes features of so many utterances at a time (`evaluation.speech`). For each
# sample it holds three waves (recording, copy, synthesized) of 4 bytes, and two mels of each wave,
# of 1.25 bytes.
EVALUATED_ROWS = 8
EVALUATED_BYTES = 20


class MemoryForecast(NamedTuple):
    """Host memory in MiB in addition to what the process has when its model is built.

    `rows` and `seconds` are the size of the largest batch. Evaluations are on the observer.
    """

    parts_mib: dict[str, float]
    rows: int
    seconds: float
    evaluation_mib: float = 0.0

    @property
    def total_mib(self) -> float:
        return sum(self.parts_mib.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{mib:,.0f} {name}" for name, mib in self.parts_mib.items())
        return f"{self.total_mib:,.0f} MiB ({parts})"


# All parts are counted for the largest batch, since its bucket may come at any time. First its
# bytes: waves, features, and the work to make one from the other. Then how many such batches wait
# where: audio on the host while tf.data reads ahead, and features in the feeds and the hand-over of
# devices that are CPUs. Then the step with its activations, the observer, and the checkpoint. The
# names of the parts become the log line, so a reader can see which setting to lower.
def forecast_memory(
    config: Config,
    plan: Plan,
    routes: Sequence[Route],
    parameters: int,
    extractor: FeatureExtractor,
    teacher_parameters: int = 0,
    observer: str = "",
) -> MemoryForecast:
    """Forecast how much of the host's memory training takes, without small or short allocations.

    `observer` is empty if validation takes turns with the step.
    """
    data, accumulation = config.data, config.training.gradient_accumulation
    sizes = [_sizes(data, plan, bucket, extractor) for bucket in range(len(plan.bounds))]
    largest = max(sizes, key=lambda size: batch_bytes(extractor.inputs, size))
    wave_bytes = batch_bytes(extractor.inputs, largest)
    feature_bytes = batch_bytes(extractor.features, largest)
    # A teacher takes whole utterances, even if segments are cut out of them afterwards.
    waves = largest["samples"]
    if not extractor.load_frozen:
        waves = extractor.sizes.get("segment_samples", waves)
    waves += ("reference_pcm" in extractor.inputs) * largest["reference_samples"]
    making = largest["batch"] * waves / SAMPLE_RATE_HZ * PRODUCE_BYTES
    activations = max(task_of(config).activation_bytes(config, size) for size in sizes)
    evaluating = _evaluation_bytes(config, parameters, largest["samples"])
    data_devices = set(chain.from_iterable(route.data_devices for route in routes))
    host_producers = sum("CPU:" in device for device in data_devices)
    host_models = [route for route in routes if "CPU:" in route.model]
    # Batches of audio wait on the host while they are read ahead, for each data device. They also
    # wait on a data device that is the host.
    read_ahead = data.num_workers + data.buffer_size
    audio = len(data_devices) * read_ahead + host_producers * data.prefetch_buffer_size
    # Without an observer, validation takes turns with the step, and only adds a snapshot.
    observing = 4 * parameters if config.run.uses_held_out else 0.0
    if observer:
        audio += read_ahead
        observing += making + activations / KEPT_ARRAYS
        observing += data.prefetch_buffer_size * wave_bytes + feature_bytes + evaluating
    # Copies on the CPU share their memory, so a batch of features counts once.
    features = len(host_models) * (accumulation + HANDED_OVER_AHEAD)
    for route in host_models:
        features += len(route.data_devices) * (data.prefetch_buffer_size + 1)
    takes_turns = bool(host_models) and not observer
    parts = {
        f"for {audio} batches of audio": audio * wave_bytes,
        "to make a batch": host_producers * making,
        "for the teacher": host_producers * 4 * teacher_parameters,
        f"for {features} batches of features": features * feature_bytes,
        "for the step": len(host_models) * (4 * parameters * min(accumulation, 2) + activations),
        "for the observer": ("CPU:" in observer) * observing,
        "for the snapshot": takes_turns * observing,
        "for the evaluation": takes_turns * evaluating,
        # The copy that is written has weights, the two moments of AdamW, and averages.
        "to write a checkpoint": 4 * parameters * (3 + bool(config.training.ema_decay)),
    }
    parts_mib = {name: size / 2**20 for name, size in parts.items() if size}
    seconds = largest["samples"] / sample_rate_hz()
    return MemoryForecast(parts_mib, largest["batch"], seconds, evaluating / 2**20)


def check_memory(forecast: MemoryForecast) -> None:
    """Raise ConfigError if the forecast is more than the host has."""
    available_mib = available_memory_mib()
    if forecast.total_mib <= available_mib:
        return
    raise ConfigError(
        f"the run needs about {forecast} of host memory, but {available_mib:,.0f} MiB are"
        f" available. Its largest batch has {forecast.rows} rows of up to {forecast.seconds:.1f} s."
        " Lower --batch-size or --batch-seconds (a higher --gradient-accumulation keeps the"
        " utterances of a step), --max-seconds, --buffer-size, --num-workers or"
        " --prefetch-buffer-size."
    )


def _evaluation_bytes(config: Config, parameters: int, samples: int) -> float:
    """Return the extra bytes of an evaluation: one more network, and waves of `samples` each."""
    run = config.run
    if not run.evaluate_every:
        return 0.0
    rows = run.evaluate_utterances
    network = 0 if computes_as_evaluated(config) else 4 * parameters
    features = min(rows, EVALUATED_ROWS) * samples / SAMPLE_RATE_HZ * PRODUCE_BYTES
    return network + rows * samples * EVALUATED_BYTES + features


def _sizes(
    data: DataConfig, plan: Plan, bucket: int, extractor: FeatureExtractor
) -> dict[str, int]:
    """Return the named dimensions of the batch contracts for the batches of a bucket."""
    rows, samples, tokens = plan.shape(bucket)
    reference_samples = reference_samples_of(data)
    sizes = {
        "batch": rows,
        "samples": samples,
        "tokens": tokens,
        "frames": frame_count(ceil(samples * extractor.max_stretch)),
        "reference_samples": reference_samples,
        "reference_frames": frame_count(reference_samples),
    }
    return sizes | dict(extractor.sizes)
