"""Settings that can make a stage of the pipeline faster, and the warning of a run that waits for
its batches.
"""

import logging
from typing import Any

from myxtts.config.flags import SETTINGS
from myxtts.config.names import command_line
from myxtts.config.schema import DataConfig
from myxtts.machine import core_count

log = logging.getLogger(__name__)

PROFILER = command_line("profile")
WAIT_SHARE = 0.10
WAIT_STEPS = 200
UNEVEN_SHARE = (
    0.05  # of a step: if the producer is blocked so long, too, stages are not slow but uneven
)


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
    further = {"data_gpus": tuple(range(producers + 1)), "model_gpu": producers + 1}
    workers = min(2 * data.num_workers, core_count())
    changes: dict[str, list[dict[str, Any]]] = {
        "read": [
            {"num_workers": workers} if workers > data.num_workers else {},
            {} if data.cache_dataset else {"cache_dataset": True},
            {} if data.use_tf_native_loading else {"use_tf_native_loading": True},
        ],
        "produce": [
            {"data_gpu": 0, "model_gpu": 1} if single and devices > 1 else {},
            further if not single and devices > producers + 1 else {},
        ],
        "transfer": [{} if single else {"data_gpu": 0, "model_gpu": 0}],
        "step": [
            {} if data.enable_static_shapes else {"enable_static_shapes": True},
            {} if data.batch_seconds else {"batch_size": 2 * data.batch_size},
        ],
        "variation": [
            {"prefetch_buffer_size": 2 * data.prefetch_buffer_size},
            {"buffer_size": 2 * data.buffer_size},
        ],
    }
    return [change for change in changes[stage] if change]


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


class LongWait:
    """Warns once, with advice, when a run has waited for its batches for long.

    Args:
        step: steps done before.
        data: the settings of reading.
        single, devices, producers: see `candidates`.
    """

    def __init__(self, step: int, data: DataConfig, single: bool, devices: int, producers: int = 1):
        self._step = step
        self._settings = data, single, devices, producers
        self._waited_steps, self._has_warned = 0, False

    def __call__(self, step: int, metrics: dict[str, Any]) -> None:
        """Look at a report of the steps up to `step`."""
        if self._has_warned or "accelerator_utilisation" not in metrics:
            return
        steps, self._step = step - self._step, step
        wait_share = 1.0 - metrics["accelerator_utilisation"]
        self._waited_steps = self._waited_steps + steps if wait_share > WAIT_SHARE else 0
        if self._waited_steps >= WAIT_STEPS:
            self._has_warned = True
            log.warning("%s", self._advice(wait_share, metrics))

    def _advice(self, wait_share: float, metrics: dict[str, Any]) -> str:
        stage = metrics["bottleneck"]
        uneven = metrics["blocked_s"] > UNEVEN_SHARE * metrics["step_s"]
        changes = candidates("variation" if uneven else stage, *self._settings)
        reason = (
            "because times vary: the producer waits, too"
            if uneven
            else f"because the slowest stage is {stage}"
        )
        if changes:
            do = (
                f"Try, one at a time: {'; '.join(map(flags_of, changes))}; {PROFILER} measures the"
                " gain of each."
            )
        else:
            do = f"Only a faster device is known to help; {PROFILER} shows all stages."
        return (
            f"long waits     for {self._waited_steps} steps the model has waited for batches more"
            f" than {100 * WAIT_SHARE:.0f} % of the time, now {100 * wait_share:.0f} %, {reason}."
            f" {do}"
        )
