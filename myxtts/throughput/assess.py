"""The grade of a placement, and what would be faster: is the model device fed, is a second device
worth having, which settings may help? No TensorFlow.

Profiles and runs share these figures. P, T, C and A are the seconds of a step to produce, transfer
and train on (consume) its batches, and to all-reduce its gradient, as in
docs/reference/placement.md.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from myxtts.clock import NO_WAIT, Interval, format_duration
from myxtts.config.flags import SETTINGS, command_line
from myxtts.config.schema import DataConfig
from myxtts.machine import core_count
from myxtts.placement.routes import Placement, Route
from myxtts.throughput.model import analytic_bound, ring_all_reduce_s

log = logging.getLogger(__name__)


class Target(NamedTuple):
    """Least utilisation of the model device, and greatest variation of the step's time, for a
    grade.
    """

    grade: str
    model_busy: float
    step_variation: float


TARGETS = (
    Target("excellent", 0.90, 0.20),
    Target("good", 0.85, 0.30),
    Target("minimum", 0.80, 0.40),
)

# Of the data device: below, it gains little; above, long batches make the model wait.
DATA_BUSY = (0.40, 0.60)

# Above, the producer hardly ever finds the feed full.
ALWAYS_BUSY = 0.95

# Of dual over single placement; below, the second device does more in a run of its own.
MIN_GAIN = 1.10

# Of two times, the other is longer if this fraction of it is; a smaller difference changes no
# advice.
TIE = 0.99

SHARED_CORES = "these devices share the cores of one CPU, so two GPUs may gain more or less"
SHARED_GPU = "these devices share one GPU, so two GPUs may gain more or less"

PROFILER = command_line("profile")

# A run that waits for longer than this fraction of the time, for so many steps, is warned about.
WAIT_SHARE = 0.10
WAIT_STEPS = 200

# Of a step: if the producer is also blocked for so long, stages are not slow but uneven.
UNEVEN_SHARE = 0.05


def grade(model_busy: float, step_variation: float = 0.0) -> str:
    """Return the best grade whose two limits are met; a run does not know the variation."""
    for target in TARGETS:
        if model_busy >= target.model_busy and step_variation < target.step_variation:
            return target.grade
    return "below minimum"


@dataclass(frozen=True)
class Assessment:
    """A placement with one replica, compared with the others on as many equal devices. Fractions
    are from 0 to 1.

    Attributes:
        interval_s: from the end of a step to the end of the next.
        mean_s: seconds of a step by stage, to read by all readers of a data device together (0
            where it is not known to limit); empty where a stage is unknown.
        model_busy: utilisation of the model device.
        data_busy: utilisation of the data device, or the mean of several; None where one device
            makes batches and trains.
        step_variation: coefficient of variation of the step's time; 0 where it is unknown.
        all_reduce_s: A of two replicas; None where it was not measured.
        gpus: numbers of the data GPUs and the model GPU, or in single placement of the GPU and
            another one.
        second_device: there is another device that a single placement could use.
        can_replicate: the settings allow replicas.
        augmentation: flag that gives the data device more work; empty if the task has none.
        unknown: why `mean_s` is empty.
        note: what limits the meaning of the figures.
    """

    interval_s: float
    mean_s: Mapping[str, float]
    model_busy: float
    data_busy: float | None
    step_variation: float = 0.0
    all_reduce_s: float | None = None
    gpus: tuple[int, ...] = (0, 1)
    second_device: bool = True
    can_replicate: bool = True
    augmentation: str = ""
    unknown: str = ""
    note: str = ""

    @property
    def grade(self) -> str:
        """How well the model device is fed."""
        return grade(self.model_busy, self.step_variation)

    @property
    def grade_text(self) -> str:
        """The grade, with the variation of the steps where they limit it."""
        if self.grade == grade(self.model_busy):
            return self.grade
        return f"{self.grade}, since steps vary by {100 * self.step_variation:.0f} %"

    @property
    def is_dual(self) -> bool:
        return self.data_busy is not None

    @property
    def _producers(self) -> int:
        """Number of data devices."""
        return len(self.gpus) - 1 if self.is_dual else 1

    @property
    def _present(self) -> str:
        """The name of the present placement in `_routes`."""
        return "dual" if self.is_dual else "single"

    @cached_property
    def _routes(self) -> dict[str, list[Route]]:
        """The placements that are compared: on one of the devices, with one that trains, and with a
        replica on each.
        """
        *data, model = map(str, self.gpus)
        return {
            "single": [Route(model, model)],
            "dual": [Route(data[0], model, tuple(data[1:]))],
            "replicas": [Route(device, device) for device in dict.fromkeys((*data, model))],
        }

    def _arithmetic_s(self, name: str, without: str = "") -> float:
        """Return the seconds of a step in a placement by arithmetic.

        Args:
            without: a stage that takes no time, or A.
        """
        routes = self._routes[name]
        mean_s = {**self.mean_s, without: 0.0}
        all_reduce_s = ring_all_reduce_s(self.all_reduce_s or 0.0, len(routes))
        return analytic_bound(routes, mean_s, 1, 0.0 if without == "A" else all_reduce_s)[1]

    @cached_property
    def placements_s(self) -> dict[str, float]:
        """Seconds of a step in each placement: of the present one as measured, of the others in
        proportion.

        The proportions are those of the arithmetic on the times of the stages. A measured step is
        longer than by arithmetic where stages vary or share hardware, and so would be a step of the
        others. `replicas` is a share of a step of replicas on the same devices, which trains on a
        batch for each. Without a measured all-reduce it is a lower bound.
        """
        if not self.mean_s:
            return {}
        measured_ratio = self.interval_s / self._arithmetic_s(self._present)
        return {name: self._arithmetic_s(name) * measured_ratio for name in self._routes}

    @property
    def gains(self) -> dict[str, float]:
        """Throughput of dual placement over that of the other two; in single placement, of the
        other two over it.
        """
        gains = {}
        for name, seconds in self.placements_s.items():
            if name != self._present:
                ratio = seconds / self.interval_s
                gains[name] = ratio if self.is_dual else 1.0 / ratio
        return gains

    @property
    def break_even_s(self) -> float:
        """The all-reduce of a step, of all replicas, with which they are as fast as the present
        placement.
        """
        difference_s = self._arithmetic_s(self._present) - self._arithmetic_s("replicas", "A")
        return max(len(self._routes["replicas"]) * difference_s, 0.0)

    @property
    def recommended(self) -> list[str]:
        """Placements and changes that use two devices better; empty where the present one is right,
        or unknown.
        """
        if not self.mean_s:
            return []
        without_reading_s = self._arithmetic_s(self._present, without="read")
        if self.mean_s["read"] / self._producers > TIE * without_reading_s:
            return ["faster reading first, such as a higher --num-workers, or --cache-dataset"]
        return self._better_than_dual() if self.is_dual else self._better_than_single()

    def _better_than_dual(self) -> list[str]:
        changes = []
        replicate = self.second_device and self.can_replicate
        if replicate and self.placements_s["replicas"] < TIE * self.interval_s:
            gpus = " ".join(map(str, dict.fromkeys(self.gpus)))
            changes.append(f"--model-gpus {gpus}{self._if_all_reduce}")
        if self.gains["single"] < MIN_GAIN:
            changes.append("single placement, nearly as fast on one device")
        batch_s = max(self.mean_s["produce"] / self._producers, self.mean_s["transfer"])
        if TIE * batch_s > self.mean_s["step"]:
            changes.append(
                "a larger --model-size, which is free until its step takes as long as making a"
                " batch"
            )
        elif self.augmentation and (self.data_busy or 0.0) < DATA_BUSY[0]:
            changes.append(f"more work for the data device, such as {self.augmentation}")
        return changes

    def _better_than_single(self) -> list[str]:
        gpu, other = self.gpus
        changes: list[str] = []
        if self.second_device and self.can_replicate:
            changes.append(f"--model-gpus {gpu} {other}{self._if_all_reduce}")
        if self.second_device and self.gains["dual"] >= MIN_GAIN:
            changes.append(f"--data-gpu {gpu} --model-gpu {other}")
        return changes

    @property
    def _if_all_reduce(self) -> str:
        if self.all_reduce_s is not None:
            return ""
        limit_s = self.break_even_s
        limit = f"{1e3 * limit_s:.3g} ms" if limit_s < 0.9995 else format_duration(limit_s)
        return f" if the all-reduce of its step takes less than {limit}"

    @property
    def comparison(self) -> str:
        """What the second device gains, in words."""
        if not self.mean_s:
            return f"gain of a second device unknown: {self.unknown}"
        known = self.all_reduce_s is not None
        if self.is_dual:
            count = len(self._routes["replicas"])
            replicas = {2: "two", 3: "three"}.get(count, str(count))
            without = "" if known else " without their all-reduce"
            return (
                f"{self.gains['single']:.2f} x single, {self.gains['replicas']:.2f} x {replicas}"
                f" replicas{without}"
            )
        without = "" if known else " without the all-reduce"
        return (
            f"a second device would bring at most {self.gains['dual']:.2f} x as data device, "
            f"{self.gains['replicas']:.2f} x as a replica{without}"
        )

    @property
    def line(self) -> str:
        """The grade in one line, for the end of a profile and of a run."""
        text = f"model device busy {100 * self.model_busy:.0f} % ({self.grade_text})"
        if self.data_busy is not None:
            devices = "data device" if self._producers == 1 else f"{self._producers} data devices"
            target = data_busy_text(self.data_busy)
            text += f", {devices} busy {100 * self.data_busy:.0f} % ({target})"
        text += f"; {self.comparison}."
        if self.recommended:
            text += f" Recommended: {'; or '.join(self.recommended)}."
        elif self.mean_s and self.is_dual:
            text += " Recommended: this placement."
        if self.note:
            text += f" Note: {self.note}."
        return text

    def to_json(self) -> dict[str, Any]:
        return {
            "interval_s": self.interval_s,
            "model_utilisation": self.model_busy,
            "data_utilisation": self.data_busy,
            "placements_s": self.placements_s,
            "gains": self.gains,
            "all_reduce_s": self.all_reduce_s,
            "recommended": self.recommended,
            "note": self.note,
        }


def data_busy_text(data_busy: float) -> str:
    """Return where a utilisation of the data device lies: `target`, or below or above it."""
    low, high = DATA_BUSY
    place = "in"
    if data_busy < low:
        place = "below"
    elif data_busy > high:
        place = "above"
    return f"{place} the target, {100 * low:.0f} to {100 * high:.0f} %"


def assess_run(
    total: Interval,
    placement: Placement,
    replicas: int,
    devices: int,
    can_replicate: bool,
    augmentation: str = "",
) -> Assessment:
    """Assess a run from what its clock measured, without its first step.

    The loop waits for a batch only when the device has finished, so the rest of an interval is the
    step's time. It includes what a transfer takes longer than the step. On a GPU, the call of a
    step can wait unseen for a producer that never pauses; then the step's time is unknown. In
    single placement on a GPU the producer does not synchronize, and its time is unknown.

    Args:
        total: of at least one step.
        replicas: of all processes.
        devices: GPUs, real or simulated, that a placement may use.
        can_replicate, augmentation: see `Assessment`.
    """
    route = placement.routes[0]
    producers = len(route.data_devices)
    steps = max(total.steps, 1)
    interval_s = total.busy_s / steps
    # The clock's times of producers that take turns are means over them, and each makes a part of
    # the batches.
    produce_s = producers * total.produce_s / steps
    waited_s = producers * total.read_s / steps
    data_busy = None
    # One device does one after the other.
    step_s = max(interval_s - produce_s, 0.0)
    if route.is_between_devices:
        data_busy = min(produce_s / producers / interval_s, 1.0) if interval_s else None
        step_s = interval_s - total.wait_s / steps
    unknown = _unknown_reason(replicas, placement.on_gpu, data_busy, total.wait_share)
    read_s = waited_s + produce_s if total.bottleneck == "read" else 0.0
    means = {"read": read_s, "produce": produce_s, "transfer": 0.0, "step": step_s}
    return Assessment(
        interval_s=interval_s,
        mean_s={} if unknown else means,
        model_busy=1.0 - total.wait_share,
        data_busy=data_busy,
        gpus=gpus_of(placement),
        second_device=devices > 1,
        can_replicate=can_replicate,
        augmentation=augmentation,
        unknown=unknown,
        note=shared_hardware(placement),
    )


def _unknown_reason(replicas: int, on_gpu: bool, data_busy: float | None, wait_share: float) -> str:
    """Return why a run does not know the times of its stages; "" where it does."""
    if replicas > 1:
        return f"the run has {replicas} replicas, and `{command_line('plan')}` compares placements"
    if on_gpu and data_busy is None:
        return f"a run on one GPU does not time its producer, but `{PROFILER}` does"
    if on_gpu and wait_share < NO_WAIT and (data_busy or 0.0) > ALWAYS_BUSY:
        return (
            "the data GPU is always busy, and the call of a step may wait for it unseen; "
            f"`{PROFILER}` measures both"
        )
    return ""


def gpus_of(placement: Placement) -> tuple[int, ...]:
    """Return the numbers of the data GPUs and the model GPU, or in single placement of the GPU and
    another one.
    """
    physical = {device.name: device.physical or 0 for device in placement.devices}
    route = placement.routes[0]
    *data, model = (physical[name] for name in (*route.data_devices, route.model))
    if data != [model]:
        return *data, model
    return (model, 0) if model else (model, 1)


def shared_hardware(placement: Placement) -> str:
    """Return a note where the devices of a route share hardware, so that neither has its full
    speed.
    """
    if not placement.on_gpu:
        return SHARED_CORES
    is_split = placement.routes[0].is_between_devices and not has_two_devices(placement)
    return SHARED_GPU if is_split else ""


def has_two_devices(placement: Placement) -> bool:
    """Whether batches travel between two GPUs, real or simulated, and not between two parts of one
    GPU.
    """
    physical = {device.name: device.physical for device in placement.devices}
    return physical[placement.routes[0].data] != physical[placement.routes[0].model]


def candidates(
    stage: str, data: DataConfig, single: bool, devices: int, producers: int = 1
) -> list[dict[str, Any]]:
    """Return changes of settings that may help, each on its own; the profiler measures what they
    gain.

    Args:
        stage: `read`, `produce`, `transfer` (known to a profile only), `step`, or `variation` if
            stages wait for each other by turns.
        data: the present settings.
        single: whether batches are made on the device that trains.
        devices: GPUs, real or simulated, that a placement with one replica may use.
        producers: data devices of the present placement.
    """
    changes: list[dict[str, Any]] = []
    match stage:
        case "read":
            workers = min(2 * data.num_workers, core_count())
            if workers > data.num_workers:
                changes.append({"num_workers": workers})
            if not data.cache_dataset:
                changes.append({"cache_dataset": True})
            if not data.use_tf_native_loading:
                changes.append({"use_tf_native_loading": True})
        case "produce" if single and devices > 1:
            changes.append({"data_gpu": 0, "model_gpu": 1})
        case "produce" if not single and devices > producers + 1:
            changes.append({"data_gpus": tuple(range(producers + 1)), "model_gpu": producers + 1})
        case "transfer" if not single:
            changes.append({"data_gpu": 0, "model_gpu": 0})
        case "step":
            if not data.enable_static_shapes:
                changes.append({"enable_static_shapes": True})
            if not data.batch_seconds:
                changes.append({"batch_size": 2 * data.batch_size})
        case "variation":
            changes.append({"prefetch_buffer_size": 2 * data.prefetch_buffer_size})
            changes.append({"buffer_size": 2 * data.buffer_size})
    return changes


def flags_of(change: dict[str, Any]) -> str:
    """Return settings as the command line takes them: `--num-workers 4`, `--cache-dataset`,
    `--data-gpus 0 1`.
    """
    words: list[str] = []
    for name, value in change.items():
        words.append(SETTINGS[name].flag)
        if value is not True:
            words += map(str, value if isinstance(value, tuple) else (value,))
    return " ".join(words)


class InputBoundWarning:
    """Warns once, with advice, when a run has waited for its batches for long.

    Args:
        step: steps done before.
        data: the settings of reading.
        single, devices, producers: see `candidates`.
    """

    def __init__(self, step: int, data: DataConfig, single: bool, devices: int, producers: int = 1):
        self._step = step
        self._settings = data, single, devices, producers
        self._waited_steps = 0
        self._has_warned = False

    def __call__(self, step: int, metrics: dict[str, Any]) -> None:
        """Look at a report of the steps up to `step`."""
        if self._has_warned or "accelerator_utilisation" not in metrics:
            return
        wait_share = 1.0 - metrics["accelerator_utilisation"]
        if wait_share > WAIT_SHARE:
            self._waited_steps += step - self._step
        else:
            self._waited_steps = 0
        self._step = step
        if self._waited_steps >= WAIT_STEPS:
            self._has_warned = True
            log.warning("%s", self._advice(wait_share, metrics))

    def _advice(self, wait_share: float, metrics: dict[str, Any]) -> str:
        slowest = metrics["bottleneck"]
        reason = f"because the slowest stage is {slowest}"
        if metrics["blocked_s"] > UNEVEN_SHARE * metrics["step_s"]:
            slowest = "variation"
            reason = "because times vary: the producer also waits"
        changes = candidates(slowest, *self._settings)
        do = f"Only a faster device is known to help; {PROFILER} shows all stages."
        if changes:
            flags = "; ".join(map(flags_of, changes))
            do = f"Try, one at a time: {flags}; {PROFILER} measures the gain of each."
        return (
            f"long waits     for {self._waited_steps} steps the model has waited for batches more"
            f" than {100 * WAIT_SHARE:.0f} % of the time, now {100 * wait_share:.0f} %, {reason}."
            f" {do}"
        )
