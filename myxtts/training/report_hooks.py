"""What a run does for its page and its metrics, beside the reports: hooks, and what is recorded of
observations.
"""

from pathlib import Path

from myxtts.files import tolerate_full_disk
from myxtts.report.metrics import MetricsFile
from myxtts.report.page import PageThread
from myxtts.training.hooks import StepEnd


class RefreshPage:
    """Asks for a new report.html after each report."""

    pause_kind = "reports"

    def __init__(self, page: PageThread):
        self._page = page

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        self._page.request()


class RecordMetrics:
    """Writes the metrics of a worker other than the chief to its own metrics.jsonl, for the page of
    the run.

    Args:
        path: of the file.
        step: steps done before.
    """

    pause_kind = "reports"

    def __init__(self, path: Path, step: int):
        self._file = MetricsFile(path, step)

    def __enter__(self) -> "RecordMetrics":
        return self

    def __exit__(self, *_) -> None:
        with tolerate_full_disk("the last metrics"):
            self._file.close()

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        with tolerate_full_disk(f"the metrics of step {end.step}"):
            self._file.write({"step": end.step, **end.metrics})
