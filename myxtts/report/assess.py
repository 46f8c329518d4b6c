"""The grade of a placement, and what would be faster: is the model device fed, is a second device
worth having, which settings may help? No TensorFlow.

What comes in are mean times of the stages of a step, from a profile or from the clock of a run. An
Assessment compares the placements by them, and says in words which one is best and which settings
may help. P, T, C and A are the seconds of a step to produce, transfer and train on (consume) its
batches, and to all-reduce its gradient, as in docs/reference/placement.md.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from myxtts.base.clock import NO_WAIT, Interval
from myxtts.base.machine import core_count
from myxtts.config.flags import SETTINGS, command_line, items_of
from myxtts.config.schema import DataConfig
from myxtts.devicefeed.routes import Placement, Route
from myxtts.placement.bound import analytic_bound, ring_all_reduce_s

log = logging.getLogger(__name__)

TARGETS = (("excellent", 0.9, 0.6, 0.2), ("good", 0.8, 0.5, 0.3), ("minimum", 0.7, 0.4, 0.4))
"""Grade, what the model device's and the data device's utilisation exceed, limit of variation."""
BELOW = "below minimum"
GRADED = {"model_busy": "model device busy", "data_busy": "data device busy"}
GRADED["step_variation"] = "steps vary by"

# A producer that is busier than this hardly ever finds the feed full.
ALWAYS_BUSY = 0.95

# Dual placement is recommended if it is so much faster than single placement. With a smaller gain
# the second device does more in a run of its own.
MIN_GAIN = 1.10

# Times within 1 % count as equal: they change no advice.
TIE = 0.99

SHARED = "these devices share one CPU or GPU, so two GPUs may gain more or less"
PROFILER = command_line("profile")

WAIT_SHARE = 0.10
WAIT_STEPS = 200

# Stages are uneven, not slow, if the producer is also blocked for more than this share of a step.
UNEVEN_SHARE = 0.05


def grade(
    model_busy: float = 1.0, data_busy: float | None = None, step_variation: float | None = None
) -> str:
    """Return the best grade whose limits are all met; a figure of None has no limit."""
    for name, model_above, data_above, variation_below in TARGETS:
        is_fed = model_busy > model_above and (data_busy is None or data_busy > data_above)
        if is_fed and (step_variation is None or step_variation < variation_below):
            return name
    return BELOW


@dataclass(frozen=True)
class Assessment:
    """A placement with one replica, compared with the others on as many equal devices.

        print(assess_run(clock.total(), placement, replicas, devices, can_replicate=True).line)

    Attributes:
        interval_s: time from the end of a step to the end of the next.
        mean_s: seconds of a step by stage, to read by all readers of a data device together (0
            where it is not known to limit); empty where a stage is unknown.
        model_busy, data_busy: fraction of the time in which the devices work, of several data
            devices the mean; None where one device makes batches and trains.
        step_variation: coefficient of variation of the step's time; None where it is unknown.
        all_reduce_s: A of two replicas; None where it was not measured.
        gpus: as `gpus_of` returns them.
        second_device: there is another device that a single placement could use.
        can_replicate: the settings allow replicas.
        note: what limits the meaning of the figures.
        bound_s: least seconds of a step on these devices, if none ever waited; None if unknown.
    """

    interval_s: float
    mean_s: Mapping[str, float]
    model_busy: float
    data_busy: float | None
    step_variation: float | None = None
    all_reduce_s: float | None = None
    gpus: tuple[int, ...] = (0, 1)
    second_device: bool = True
    can_replicate: bool = True
    note: str = ""
    bound_s: float | None = None

    @property
    def grade(self) -> str:
        """How well both devices are used."""
        return grade(self.model_busy, self.data_busy, self.step_variation)

    @cached_property
    def _routes(self) -> dict[str, list[Route]]:
        """The placements to compare, the present one first; `single` is on the model device."""
        *data, model = map(str, self.gpus)
        single = [Route(model, model)]
        dual = [Route(data[0], model, tuple(data[1:]))]
        replicas = [Route(device, device) for device in dict.fromkeys((*data, model))]
        if self.data_busy is None:
            return {"single": single, "dual": dual, "replicas": replicas}
        return {"dual": dual, "single": single, "replicas": replicas}

    @cached_property
    def placements_s(self) -> dict[str, float]:
        """Seconds of a step in each placement: the present one, as measured, and the others.

        They are in proportion to arithmetic on the times of the stages: a step is longer than that
        where stages vary or share hardware. `replicas` is a share of a step of replicas on the same
        devices, a lower bound where no all-reduce was measured.
        """
        if not self.mean_s:
            return {}
        arithmetic_s = {}
        for name, routes in self._routes.items():
            all_reduce_s = ring_all_reduce_s(self.all_reduce_s or 0.0, len(routes))
            arithmetic_s[name] = analytic_bound(routes, self.mean_s, 1, all_reduce_s)[1]
        present_s = next(iter(arithmetic_s.values()))
        return {n: seconds * self.interval_s / present_s for n, seconds in arithmetic_s.items()}

    @property
    def gains(self) -> dict[str, float]:
        """Ratios of throughput: dual placement to the other two; or the other two to single."""
        others = [*self.placements_s.items()][1:]
        if self.data_busy is None:
            return {name: self.interval_s / seconds for name, seconds in others}
        return {name: seconds / self.interval_s for name, seconds in others}

    # If reading is the bottleneck, no placement helps, so faster reading is the only advice.
    # Otherwise replicas are recommended if their step is shorter. In single placement a data device
    # is recommended if it gains enough. In dual placement it is said whether one device would do,
    # and which device has time to spare: the model device for a larger model, or the data device.
    @property
    def recommended(self) -> list[str]:
        """Placements and changes that use two devices better; empty if none does, or unknown."""
        if not self.mean_s:
            return []
        producers = len(self.gpus) - 1
        present = next(iter(self._routes.values()))
        without_reading_s = analytic_bound(present, {**self.mean_s, "read": 0.0}, 1)[1]
        if self.mean_s["read"] / producers > TIE * without_reading_s:
            return ["faster reading first, such as a higher --num-workers, or --cache-dataset"]
        changes = []
        is_faster = self.placements_s["replicas"] < TIE * self.interval_s
        if self.second_device and self.can_replicate and is_faster:
            gpus = " ".join(map(str, dict.fromkeys(self.gpus)))
            known = "" if self.all_reduce_s is not None else ", if its all-reduce is short"
            changes.append(f"--model-gpus {gpus}{known}")
        if self.data_busy is None:
            if self.second_device and self.gains["dual"] >= MIN_GAIN:
                changes.append(f"--data-gpu {self.gpus[0]} --model-gpu {self.gpus[1]}")
            return changes
        if self.gains["single"] < MIN_GAIN:
            changes.append("single placement, nearly as fast on one device")
        batch_s = max(self.mean_s["produce"] / producers, self.mean_s["transfer"])
        if TIE * batch_s > self.mean_s["step"]:
            changes.append("a larger --model-size, which is free until its step takes as long")
        elif grade(data_busy=self.data_busy) == BELOW:
            changes.append("more work for the data device, such as augmentation")
        return changes

    @property
    def comparison(self) -> str:
        """The gain of the second device, in words."""
        if not self.mean_s:
            return (
                "gain of a second device unknown, since a run does not time all stages of this"
                f" placement: `{PROFILER}` and `{command_line('plan')}` compare it"
            )
        without = "" if self.all_reduce_s is not None else " without their all-reduce"
        gains = self.gains
        if self.data_busy is None:
            return (
                f"a second device would bring at most {gains['dual']:.2f} x as data device,"
                f" {gains['replicas']:.2f} x in two replicas{without}"
            )
        count = len(self._routes["replicas"])
        return (
            f"{gains['single']:.2f} x single, {gains['replicas']:.2f} x {count} replicas{without}"
        )

    @property
    def line(self) -> str:
        """The grade in one line, for the end of a profile and of a run; each figure has its own."""
        graded = [
            f"{words} {100 * value:.0f} % ({grade(**{name: value})})"
            for name, words in GRADED.items()
            if (value := getattr(self, name)) is not None
        ]
        text = f"{self.grade}: {', '.join(graded)}"
        if self.bound_s is not None:
            reached = f"{self.bound_s / self.interval_s:.0%}"
            text += f", {reached} of what these devices would do if none ever waited"
        text += f"; {self.comparison}."
        if self.recommended:
            text += f" Recommended: {'; or '.join(self.recommended)}."
        elif self.mean_s and self.data_busy is not None:
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


def assess_run(
    total: Interval, placement: Placement, replicas: int, devices: int, can_replicate: bool
) -> Assessment:
    """Assess a run by the times of its clock, without its first step; it has a step or more.

    The loop waits for a batch only when the device has finished, so the rest of an interval is the
    step's time, with what a transfer takes longer. The step's time is unknown on a GPU whose
    producer never pauses, since its call can wait unseen; so is the producer's time in single
    placement on a GPU. `replicas` counts all processes, and a placement may use `devices`.
    """
    route = placement.routes[0]
    producers = len(route.data_devices)
    interval_s = total.busy_s / total.steps
    # The clock has means over the producers that take turns. Each makes a part of the batches, so
    # their number times the mean is the time for all batches.
    produce_s = producers * total.produce_s / total.steps
    waited_s = producers * total.read_s / total.steps
    data_busy = None
    # One device does one after the other.
    step_s = max(interval_s - produce_s, 0.0)
    is_unseen = placement.on_gpu
    if route.is_between_devices:
        data_busy = min(produce_s / producers / interval_s, 1.0)
        step_s = interval_s - total.wait_s / total.steps
        is_unseen &= total.wait_share < NO_WAIT and data_busy > ALWAYS_BUSY
    read_s = 0.0
    if total.bottleneck == "read":
        read_s = waited_s + produce_s
    means = {"read": read_s, "produce": produce_s, "transfer": 0.0, "step": step_s}
    return Assessment(
        interval_s=interval_s,
        mean_s={} if is_unseen or replicas > 1 else means,
        model_busy=1.0 - total.wait_share,
        data_busy=data_busy,
        gpus=gpus_of(placement),
        second_device=devices > 1,
        can_replicate=can_replicate,
        note=shared_hardware(placement),
    )


def gpus_of(placement: Placement) -> tuple[int, ...]:
    """Return the numbers of the data GPUs and the model GPU; if these are one, with another."""
    physical = {device.name: device.physical or 0 for device in placement.devices}
    route = placement.routes[0]
    *data, model = (physical[name] for name in (*route.data_devices, route.model))
    if data != [model]:
        return *data, model
    return (model, 0) if model else (model, 1)


def shared_hardware(placement: Placement) -> str:
    """Return a note if the devices of a route share hardware: neither has its full speed then."""
    is_split = placement.routes[0].is_between_devices and not has_two_devices(placement)
    return SHARED if is_split or not placement.on_gpu else ""


def has_two_devices(placement: Placement) -> bool:
    """Whether batches travel between two GPUs, real or simulated, not between parts of one GPU."""
    physical = {device.name: device.physical for device in placement.devices}
    return physical[placement.routes[0].data] != physical[placement.routes[0].model]


def candidates(
    stage: str, data: DataConfig, single: bool, devices: int, producers: int = 1
) -> list[dict[str, Any]]:
    """Return changes of settings that may help, each alone; the profiler predicts what they gain.

    Args:
        stage: a stage, or `variation` if stages wait for each other by turns.
        single: whether batches are made on the device that trains.
        devices: GPUs that a placement with one replica may use; `producers` make batches now.
    """
    # Each slowest stage has its own remedies, cheap ones first.
    changes: list[dict[str, Any]] = []
    match stage:
        case "read":
            workers = min(2 * data.num_workers, core_count())
            if workers > data.num_workers:
                changes.append({"num_workers": workers})
            if not data.cache_dataset:
                changes.append({"cache_dataset": True})
        case "produce" if single and devices > 1:
            changes.append({"data_gpu": 0, "model_gpu": 1})
        case "produce" if not single and devices > producers + 1:
            changes.append({"data_gpus": tuple(range(producers + 1)), "model_gpu": producers + 1})
        case "transfer" if not single:
            changes.append({"data_gpu": 0, "model_gpu": 0})
        case "variation":
            changes.append({"prefetch_buffer_size": 2 * data.prefetch_buffer_size})
            changes.append({"buffer_size": 2 * data.buffer_size})
    return changes


def flags_of(change: dict[str, Any]) -> str:
    """Return settings as flags: `--num-workers 4`, `--cache-dataset`, `--data-gpus 0 1`."""
    words: list[str] = []
    for name, value in change.items():
        words.append(SETTINGS[name].flag)
        if value is not True:
            words += map(str, items_of(value))
    return " ".join(words)


class InputBoundWarning:
    """Warns once, with advice, when a run has waited for its batches for long.

    `step` are the steps done before; for the other arguments see `candidates`.
    """

    def __init__(self, step: int, data: DataConfig, single: bool, devices: int, producers: int = 1):
        self._step = step
        self._candidates = partial(
            candidates, data=data, single=single, devices=devices, producers=producers
        )
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
        if self._waited_steps < WAIT_STEPS:
            return
        self._has_warned = True
        slowest = metrics["bottleneck"]
        if metrics["blocked_s"] > UNEVEN_SHARE * metrics["step_s"]:
            slowest = "variation"
        changes = self._candidates(slowest)
        log.warning(
            "long waits     for %d steps the model has waited for batches more than %.0f %% of the"
            " time, now %.0f %% (bottleneck: %s). Try, one at a time: %s; %s shows all stages.",
            self._waited_steps,
            100 * WAIT_SHARE,
            100 * wait_share,
            slowest,
            "; ".join(map(flags_of, changes)) or "a faster device",
            PROFILER,
        )
