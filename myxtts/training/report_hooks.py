"""What a run does for its page and its metrics, beside the reports: hooks, and what is recorded of
observations.
"""

import time
from pathlib import Path

from myxtts.clock import Span, Timeline
from myxtts.files import tolerate_full_disk
from myxtts.report.metrics import MetricsFile
from myxtts.report.page import PageThread
from myxtts.report.reporter import Reporter
from myxtts.training.hooks import StepEnd
from myxtts.training.observation import Pace
from myxtts.training.observer import OBSERVER, ObserveFunction
from myxtts.training.schedule import Observation, join_and


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


def recorded(observe: ObserveFunction, timeline: Timeline) -> ObserveFunction:
    """Return a function that does an observation, and adds the time that it takes to a timeline."""

    def observe_and_record(observation: Observation, pace: Pace | None) -> dict[str, float]:
        start_s = time.perf_counter()
        try:
            return observe(observation, pace)
        finally:
            timeline.add(
                Span(
                    OBSERVER,
                    join_and(observation.parts),
                    start_s,
                    time.perf_counter(),
                    observation.step,
                )
            )

    return observe_and_record


def with_report(observe: ObserveFunction, reporter: Reporter) -> ObserveFunction:
    """Return a function that does an observation, and writes the result where the hooks between two
    steps write it.

    If the run is killed before a checkpoint knows the result, the resumed run repeats the
    observation, and replaces the result by an equal one.
    """

    def observe_and_report(observation: Observation, pace: Pace | None) -> dict[str, float]:
        metrics = observe(observation, pace)
        if metrics:
            reporter.write(observation.step, metrics)
        return metrics

    return observe_and_report
