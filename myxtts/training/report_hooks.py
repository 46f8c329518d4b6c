"""Hooks beside the reports of the chief: a new page, and the metrics of the other workers."""

from pathlib import Path

from myxtts.observe.metrics import MetricsFile
from myxtts.observe.report_thread import ReportThread
from myxtts.training.hooks import StepEnd


class RefreshPage:
    """Asks for a new report.html after each report."""

    pause_kind = "reports"

    def __init__(self, page: ReportThread):
        self._page = page

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        self._page.request()


class RecordMetrics:
    """Writes the metrics of a worker other than the chief to its own metrics.jsonl, for the page of the run.

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
        self._file.close()

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        self._file.write({"step": end.step, **end.metrics})
