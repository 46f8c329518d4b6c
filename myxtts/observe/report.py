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

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """One line in metrics.jsonl, with what was measured at a step: training, validation or both."""
        self._file.write({"step": step, **metrics})
        self.tensorboard.scalars(step, metrics)
        self._bar.update(step - self._bar.n)
        if "loss" in metrics:
            log.info("%s", console_line(step, metrics))
        if "validation_loss" in metrics:
            log.info("step %6d | validation loss %.3f", step, metrics["validation_loss"])


def console_line(step: int, metrics: dict[str, float]) -> str:
    """`step   1200 | loss 2.31 | 8.3 steps/s | wait 0.4 %`"""
    wait_share = metrics["wait_s"] / metrics["step_s"] if metrics["step_s"] else 0.0
    return (
        f"step {step:6d} | loss {metrics['loss']:.3f} | "
        f"{metrics['steps_per_s']:.1f} steps/s | wait {100 * wait_share:.1f} %"
    )
