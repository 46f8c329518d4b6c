"""Reports of a run, to the console, metrics.jsonl and TensorBoard."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from myxtts.clock import FIRST_STEP, Interval, format_duration
from myxtts.files import going_on_if_full
from myxtts.report.metrics import MetricsFile, TensorBoard
from myxtts.report.metrics_reader import validation_scores

LEAST_SHOWN_S = 0.05  # a shorter pause is left out of the summary

log = logging.getLogger(__name__)


class Reporter:
    """Writes reports for as long as it is open; a context manager.

    Args:
        metrics_path: metrics.jsonl.
        tensorboard_folder: event files.
        step: steps done before.
        total_steps: length of the run, for the progress bar, which appears on a terminal only.
    """

    def __init__(self, metrics_path: Path, tensorboard_folder: Path, step: int, total_steps: int):
        self.tensorboard = TensorBoard(tensorboard_folder)
        self._file = MetricsFile(metrics_path, step)
        self._bar = tqdm(
            total=total_steps, initial=step, unit="step", disable=None, dynamic_ncols=True
        )

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()
        for file in (self._file, self.tensorboard):
            with going_on_if_full("the last metrics"):
                file.close()

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Write metrics of a step, of training, validation or both, as a line of metrics.jsonl.

        Any thread may call it. An observation during training ends after later steps were reported.
        """
        with going_on_if_full(f"the metrics of step {step}"):
            self._file.write({"step": step, **metrics})
        with going_on_if_full(f"the scalars of step {step}"):
            self.tensorboard.scalars(step, metrics)
        self._bar.update(max(step - self._bar.n, 0))
        if "loss" in metrics:
            log.info("%s", console_line(step, metrics))
        self._show_validation(step, metrics)

    def _show_validation(self, step: int, metrics: dict[str, Any]) -> None:
        if "validation_loss" in metrics:
            figures = [
                f"validation loss {metrics['validation_loss']:.3f}",
                *validation_scores(metrics),
            ]
            log.info("step %6d | %s", step, " | ".join(figures))


def console_line(step: int, metrics: dict[str, Any]) -> str:
    """Return `step   1200 | loss 2.310 | 8.3 steps/s | wait 0.4 % | pause 3.1 % | 12 min left |
    feed keeps up`.
    """
    further = [
        name for name in metrics if name.startswith("loss_")
    ]  # of groups such as discriminators
    losses = " | ".join(
        f"{name.replace('_', ' ')} {metrics[name]:.3f}" for name in ("loss", *further)
    )
    skipped = (
        f" | {metrics['skipped_updates']:.0f} updates skipped"
        if metrics.get("skipped_updates")
        else ""
    )
    wait_share = 1.0 - metrics["accelerator_utilisation"]
    pause_share = metrics["pause_s"] / max(metrics["step_s"] + metrics["pause_s"], 1e-9)
    return (
        f"step {step:6d} | {losses} | {metrics['steps_per_s']:.1f} steps/s | "
        f"wait {100 * wait_share:.1f} % | pause {100 * pause_share:.1f} % | "
        f"{format_duration(metrics['remaining_s'])} left | {console_bottleneck(metrics)}{skipped}"
    )


def time_line(elapsed_s: float, total: Interval, pauses_s: Mapping[str, float]) -> str:
    """Return where the time of a run went: `8.9 min: start and first step 21 s, training 8.2 min,
    …, pauses 17 s (…)`.

    Args:
        elapsed_s: from the start of the program.
        total: of all steps but the first.
        pauses_s: by kind. What is in none of these is the start: everything before the second step.
    """
    pauses = {
        kind: seconds
        for kind, seconds in pauses_s.items()
        if kind != FIRST_STEP and seconds >= LEAST_SHOWN_S
    }
    start_s = elapsed_s - total.busy_s - sum(pauses_s.values()) + pauses_s.get(FIRST_STEP, 0.0)
    kinds = ", ".join(f"{kind} {format_duration(seconds)}" for kind, seconds in pauses.items())
    return (
        f"{format_duration(elapsed_s)}: start and first step {format_duration(start_s)}, training"
        f" {format_duration(total.busy_s - total.wait_s)}, waiting for batches"
        f" {format_duration(total.wait_s)}, pauses {format_duration(sum(pauses.values()))}"
        + f" ({kinds})"
        * bool(kinds)
    )


def console_bottleneck(metrics: dict[str, Any]) -> str:
    """Return `feed keeps up`, or the stage that the model waits for: `bottleneck read, 71 % of
    making a batch`.
    """
    stage = metrics["bottleneck"]
    if stage == "step":
        return "feed keeps up"
    making_s = sum(metrics[f"{name}_s"] for name in ("read", "produce"))
    share = metrics[f"{stage}_s"] / making_s if making_s else 1.0
    return f"bottleneck {stage}, {100 * share:.0f} % of making a batch"
