"""The grade of a placement: is the model device fed, and is a second device worth having? No
TensorFlow.

Profiles and runs share these figures. P, T, C and A are the seconds of a step to produce, transfer
and train on (consume) its batches, and to all-reduce its gradient, as in
docs/reference/placement.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from myxtts.clock import NO_WAIT, Interval, format_duration
from myxtts.config.names import command_line
from myxtts.placement.routes import Placement, Route
from myxtts.throughput.model import analytic_bound, ring_all_reduce_s


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
DATA_BUSY = (
    0.40,
    0.60,
)  # of the data device: below, it gains little; above, long batches make the model wait
ALWAYS_BUSY = 0.95  # above, the producer hardly ever finds the feed full
MIN_GAIN = (
    1.10  # of dual over single placement; below, the second device does more in a run of its own
)
# of two times, the other is longer if this fraction of it is; a smaller difference changes no
# advice
TIE = 0.99

SHARED_CORES = "these devices share the cores of one CPU, so two GPUs may gain more or less"
SHARED_GPU = "these devices share one GPU, so two GPUs may gain more or less"


def grade(model_busy: float, step_variation: float = 0.0) -> str:
    """Return the best grade whose two limits are met; a run does not know the variation."""
    met = (
        name
        for name, busy, variation in TARGETS
        if model_busy >= busy and step_variation < variation
    )
    return next(met, "below minimum")


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
        limits = self.grade != grade(self.model_busy)
        return self.grade + f", since steps vary by {100 * self.step_variation:.0f} %" * limits

    @property
    def is_dual(self) -> bool:
        return self.data_busy is not None

    @cached_property
    def placements_s(self) -> dict[str, float]:
        """Seconds of a step in each placement: of the present one as measured, of the others in
        proportion.

        The proportions are those of the arithmetic on the times of the stages. A measured step is
        longer than by arithmetic, where stages vary or share hardware, and so would be a step of
        the others. `replicas` is a share of a step of replicas on the same devices, which trains on
        a batch for each. Without a measured all-reduce it is a lower bound.
        """
        if not self.mean_s:
            return {}
        measured_ratio = self.interval_s / self._arithmetic_s(self._present)
        return {name: self._arithmetic_s(name) * measured_ratio for name in self._routes}

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
            without: a stage that takes no time.
        """
        routes, mean_s = (
            self._routes[name],
            {s: seconds * (s != without) for s, seconds in self.mean_s.items()},
        )
        return analytic_bound(
            routes, mean_s, 1, ring_all_reduce_s(self.all_reduce_s or 0.0, len(routes))
        )[1]

    @property
    def gains(self) -> dict[str, float]:
        """Throughput of dual placement over that of the other two; in single placement, of the
        other two over it.
        """
        if self.is_dual:
            return {
                name: s / self.interval_s for name, s in self.placements_s.items() if name != "dual"
            }
        return {
            name: self.interval_s / s for name, s in self.placements_s.items() if name != "single"
        }

    @property
    def break_even_s(self) -> float:
        """The all-reduce of a step, of all replicas, with which they are as fast as the present
        placement.
        """
        replicas_s = analytic_bound(self._routes["replicas"], self.mean_s, 1)[1]
        return max(
            len(self._routes["replicas"]) * (self._arithmetic_s(self._present) - replicas_s), 0.0
        )

    @property
    def recommended(self) -> list[str]:
        """Placements and changes that use two devices better; empty where the present one is right,
        or unknown.
        """
        if not self.mean_s:
            return []
        if self.mean_s["read"] / self._producers > TIE * self._arithmetic_s(
            self._present, without="read"
        ):
            return ["faster reading first, such as a higher --num-workers, or --cache-dataset"]
        return self._instead_of_dual() if self.is_dual else self._instead_of_single()

    def _instead_of_dual(self) -> list[str]:
        changes = []
        if (
            self.second_device
            and self.can_replicate
            and self.placements_s["replicas"] < TIE * self.interval_s
        ):
            changes.append(
                f"--model-gpus {' '.join(map(str, dict.fromkeys(self.gpus)))}{self._if_all_reduce}"
            )
        if self.gains["single"] < MIN_GAIN:
            changes.append("single placement, nearly as fast on one device")
        if (
            TIE * max(self.mean_s["produce"] / self._producers, self.mean_s["transfer"])
            > self.mean_s["step"]
        ):
            changes.append(
                "a larger --model-size, which is free until its step takes as long as making a"
                " batch"
            )
        elif self.augmentation and (self.data_busy or 0.0) < DATA_BUSY[0]:
            changes.append(f"more work for the data device, such as {self.augmentation}")
        return changes

    @property
    def _producers(self) -> int:
        """Number of data devices."""
        return len(self.gpus) - 1 if self.is_dual else 1

    def _instead_of_single(self) -> list[str]:
        gpu, other = self.gpus
        if not self.second_device:
            return []
        changes = []
        if self.can_replicate:
            changes.append(f"--model-gpus {gpu} {other}{self._if_all_reduce}")
        if self.gains["dual"] >= MIN_GAIN:
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
        without = "" if self.all_reduce_s is not None else " without their all-reduce"
        if self.is_dual:
            count = len(self._routes["replicas"])
            replicas = {2: "two", 3: "three"}.get(count, str(count))
            return (
                f"{self.gains['single']:.2f} x single, {self.gains['replicas']:.2f} x {replicas}"
                f" replicas{without}"
            )
        return (
            f"a second device would bring at most {self.gains['dual']:.2f} x as data device, "
            f"{self.gains['replicas']:.2f} x as a replica{without.replace('their', 'the')}"
        )

    @property
    def line(self) -> str:
        """The grade in one line, for the end of a profile and of a run."""
        busy = [f"model device busy {100 * self.model_busy:.0f} % ({self.grade_text})"]
        if self.data_busy is not None:
            devices = "data device" if self._producers == 1 else f"{self._producers} data devices"
            busy.append(
                f"{devices} busy {100 * self.data_busy:.0f} % ({data_busy_text(self.data_busy)})"
            )
        text = f"{', '.join(busy)}; {self.comparison}."
        if self.recommended:
            text += f" Recommended: {'; or '.join(self.recommended)}."
        elif self.mean_s and self.is_dual:
            text += " Recommended: this placement."
        return text + f" Note: {self.note}." * bool(self.note)

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
    target = f"{100 * low:.0f} to {100 * high:.0f} %"
    return (
        f"{'below' if data_busy < low else 'above' if data_busy > high else 'in'} the target,"
        f" {target}"
    )


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
    steps, is_dual, producers = (
        max(total.steps, 1),
        route.is_between_devices,
        len(route.data_devices),
    )
    interval_s, wait_s = total.busy_s / steps, total.wait_s / steps
    # The clock's times of producers that take turns are means over them, and each makes a part of
    # the batches.
    produce_s, waited_s = producers * total.produce_s / steps, producers * total.read_s / steps
    data_busy = min(produce_s / producers / interval_s, 1.0) if is_dual and interval_s else None
    unknown = _unknown_reason(replicas, placement.on_gpu, data_busy, total.wait_share)
    read_s = waited_s + produce_s if total.bottleneck == "read" else 0.0
    step_s = (
        interval_s - wait_s if is_dual else max(interval_s - produce_s, 0.0)
    )  # one device does one after the other
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
        return f"a run on one GPU does not time its producer, but `{command_line('profile')}` does"
    if on_gpu and wait_share < NO_WAIT and (data_busy or 0.0) > ALWAYS_BUSY:
        return (
            "the data GPU is always busy, and the call of a step may wait for it unseen; "
            f"`{command_line('profile')}` measures both"
        )
    return ""


def gpus_of(placement: Placement) -> tuple[int, ...]:
    """Return the numbers of the data GPUs and the model GPU, or in single placement of the GPU and
    another one.
    """
    physical = {device.name: device.physical or 0 for device in placement.devices}
    route = placement.routes[0]
    *data, model = (physical[name] for name in (*route.data_devices, route.model))
    return (*data, model) if data != [model] else (model, 0 if model else 1)


def shared_hardware(placement: Placement) -> str:
    """Return a note where the devices of a route share hardware, so that neither has its full
    speed.
    """
    if not placement.on_gpu:
        return SHARED_CORES
    return (
        SHARED_GPU
        if placement.routes[0].is_between_devices and not has_two_devices(placement)
        else ""
    )


def has_two_devices(placement: Placement) -> bool:
    """Whether batches travel between two GPUs, real or simulated, and not between two parts of one
    GPU.
    """
    physical = {device.name: device.physical for device in placement.devices}
    return physical[placement.routes[0].data] != physical[placement.routes[0].model]
