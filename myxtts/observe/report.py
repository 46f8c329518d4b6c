"""One report of a run, to the console, metrics.jsonl and TensorBoard."""

import logging
from pathlib import Path

from tqdm import tqdm

from myxtts.observe.metrics import MetricsFile, TensorBoard

log = logging.getLogger(__name__)


class Reporter:
    """Writes reports for as long as it is open; a context manager.

    Args:
        metrics_path: metrics.jsonl.
        tensorboard_folder: event files.
        step: steps done before.
        total_steps: length of the run, for the progress bar, which is drawn on a terminal only.
    """

    def __init__(self, metrics_path: Path, tensorboard_folder: Path, step: int, total_steps: int):
        self.tensorboard = TensorBoard(tensorboard_folder)
        self._file = MetricsFile(metrics_path, step)
        self._bar = tqdm(total=total_steps, initial=step, unit="step", disable=None, dynamic_ncols=True)

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()
        self._file.close()
        self.tensorboard.close()

    def write(self, step: int, metrics: dict[str, float | str]) -> None:
        """One line in metrics.jsonl, with what was measured at a step: training, validation or both."""
        self._file.write({"step": step, **metrics})
        self.tensorboard.scalars(step, metrics)
        self._bar.update(step - self._bar.n)
        if "loss" in metrics:
            log.info("%s", console_line(step, metrics))
        if "validation_loss" in metrics:
            log.info("step %6d | validation loss %.3f%s", step, metrics["validation_loss"], console_rates(metrics))


def console_rates(metrics: dict[str, float | str]) -> str:
    """` | character error rate 1.2 %`, for each rate that a validation has found."""
    rates = {name.removeprefix("validation_"): value for name, value in metrics.items() if name.endswith("_rate")}
    rates.pop("learning_rate", None)
    return "".join(f" | {name.replace('_', ' ')} {100 * value:.1f} %" for name, value in rates.items())


def console_line(step: int, metrics: dict[str, float | str]) -> str:
    """`step   1200 | loss 2.310 | 8.3 steps/s | wait 0.4 % | AU 99.6 % | bottleneck step`"""
    utilisation = metrics["accelerator_utilisation"]
    return (
        f"step {step:6d} | loss {metrics['loss']:.3f} | {metrics['steps_per_s']:.1f} steps/s | "
        f"wait {100 * (1.0 - utilisation):.1f} % | AU {100 * utilisation:.1f} % | bottleneck {metrics['bottleneck']}"
    )
