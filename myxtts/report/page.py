"""report.html: how a run is doing, on one page that needs no server and no network.

The page is page.html, whose script draws it from the JSON that this module puts into it.
No TensorFlow.
"""

import csv
import json
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from myxtts.clock import MODEL, Span, Timeline
from myxtts.config.flags import SETTINGS
from myxtts.config.schema import OF_FOLDER
from myxtts.files import FULL, write_whole
from myxtts.report.answers import how_long, is_learning, is_starving
from myxtts.report.history import History
from myxtts.report.metrics import read_last_report
from myxtts.report.overview import document, read_facts, sync_marks, write_overview
from myxtts.report.samples import Samples, read_scores

TIMELINE = "timeline.json"
# The lanes show the newest 24 steps: a bar of more is too thin on a phone. After a pause of more
# than 1 s the 8 steps that follow are enough, because the pause would leave no room for them.
STEPS = 24
ENOUGH_STEPS = 8
LONG_PAUSE_S = 1.0
# An open page reloads itself at the age of 10 s; after the end of a run at 120 s, since it may be
# resumed.
RELOAD_S = 10.0
ENDED_RELOAD_S = 120.0
# A page without news says so after the time of 5 reports, but not before 120 s.
STALE_REPORTS = 5
STALE_S = 120.0
# A page is written every 5 s at most, since a person does not look more often, and index.html of
# all runs every 60 s.
REFRESH_S = 5.0
OVERVIEW_S = 60.0
# Processor time of a refresh for new sounds and pictures; the others follow with the next ones.
COMPRESS_S = 0.1
EXAMPLES = 3
# One page is written at a time, since all have the same temporary name.
_WRITING = threading.Lock()

log = logging.getLogger(__name__)


class RunPage:
    """The page of a run, which is written again and again while the run trains.

    A refresh reads what was written since the previous one, so its time does not depend on the
    length of the run. Any thread may call it.

    Args:
        folder: of the run.
        timeline: what its threads did; None reads the newest from timeline.json.
    """

    def __init__(self, folder: Path, timeline: Timeline | None = None):
        self._folder = folder
        self._timeline = timeline
        self._history = History(folder / "metrics.jsonl")
        self._samples = Samples(folder)
        self._overview_s = -OVERVIEW_S

    def write(self, ended: str = "") -> Path:
        """Write report.html, and from time to time index.html of all runs; return its path.

        Args:
            ended: how the run has ended, such as `finished`; empty while it trains.

        Raises:
            OSError: the disk is full, for example; the previous page is intact.
        """
        with _WRITING:
            self._history.update()
            write_whole(self._folder / "report.html", self._page(ended))
            now_s = time.monotonic()
            if not self._is_job and (ended or now_s - self._overview_s >= OVERVIEW_S):
                self._overview_s = now_s
                try:
                    write_overview(self._folder.parent)
                except OSError as error:
                    self._overview_s = math.inf
                    log.warning(
                        "index.html of %s cannot be written: %s. It is not tried again.",
                        self._folder.parent,
                        error,
                    )
        return self._folder / "report.html"

    @property
    def _is_job(self) -> bool:
        """Whether the run is one of several jobs, whose page the launcher writes."""
        return (self._folder.parent / "launcher.json").exists()

    def _page(self, ended: str) -> bytes:
        history = self._history
        folder = self._folder
        now_s = time.time()
        facts = read_facts(folder)
        answers = [
            is_learning(history),
            is_starving(history),
            how_long(history, facts, ended, now_s),
        ]
        sync_every = (self._settings.get("local_sgd") or {}).get("sync_every") or 0
        return document(
            "run",
            {
                "name": folder.name,
                "is_job": self._is_job,
                "step": history.step,
                "answers": [answer._asdict() for answer in answers],
                "facts": facts,
                "changed": changed_settings(self._settings),
                "series": {name: series.points for name, series in history.series.items()},
                "marks": sync_marks(sync_every, history.step),
                "seconds": history.seconds,
                "spans": self._spans(),
                "workers": workers(folder, history.newest, facts),
                "samples": self._samples.read(60.0 if ended else COMPRESS_S),
                "scores": read_scores(folder),
                "rejected": rejected_rows(folder / "rejected.csv"),
                "settings": self._settings_text,
            },
            written_s=now_s,
            reload_s=ENDED_RELOAD_S if ended else RELOAD_S,
            stale_s=0.0 if ended else max(STALE_S, STALE_REPORTS * self._report_s()),
        )

    def _report_s(self) -> float:
        """Return the seconds between the two newest reports, as their steps take them."""
        report = self._history.newest
        step_s = report.get("step_s", 0.0) + report.get("pause_s", 0.0)
        return self._history.interval_steps * step_s

    def _spans(self) -> list[Span]:
        """Return the newest spans, and write them to timeline.json."""
        file = self._folder / TIMELINE
        if self._timeline is None:
            return read_spans(file)
        spans = excerpt(self._timeline.newest())
        if spans:
            write_whole(file, json.dumps(spans).encode())
        return spans

    @cached_property
    def _settings_text(self) -> str:
        return (self._folder / "config.yaml").read_text(encoding="utf-8")

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return yaml.safe_load(self._settings_text) or {}


def changed_settings(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a config.yaml that are not the defaults, as flag -> value."""
    changed = {}
    for section in filter(None, sections.values()):
        for name, value in section.items():
            setting = SETTINGS.get(name)
            if setting is None or OF_FOLDER in setting.marks:
                continue
            if value in (None, [], setting.default):
                continue
            if isinstance(value, list):
                changed[setting.flag] = " ".join(map(str, value))
            else:
                changed[setting.flag] = "" if value is True else str(value)
    return changed


def workers(
    folder: Path, chief: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the newest reports of the chief and of the workers whose folders are here, with hosts.

    Args:
        chief: its newest report.
        facts: its run.json.
    """
    reports = {"worker 0 (chief)": {**chief, "host": facts.get("host")}}
    for path in sorted(folder.glob("worker-*"), key=lambda path: (len(path.name), path.name)):
        if report := read_last_report(path / "metrics.jsonl"):
            host = read_facts(path).get("host")
            reports[path.name.replace("-", " ")] = {**report, "host": host}
    return reports


def rejected_rows(listing: Path) -> dict[str, dict[str, Any]] | None:
    """Return number and examples of the rows in rejected.csv by reason; None without a file."""
    if not listing.exists():
        return None
    reasons: dict[str, dict[str, Any]] = {}
    with open(listing, encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            reason = reasons.setdefault(row.get("reason") or "unknown", {"rows": 0, "examples": []})
            reason["rows"] += 1
            if reason["rows"] <= EXAMPLES:
                text = f"line {row.get('line')}: {row.get('audio')} {row.get('detail') or ''}"
                reason["examples"].append(text.strip())
    return reasons


def excerpt(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the newest steps, cut to these steps, with times from 0."""
    stretch = _newest_stretch([span for span in spans if span.lane == MODEL])
    steps = [span for span in stretch if span.kind == "step"][-STEPS:]
    if not steps:
        return []
    start_s = steps[0].start_s
    end_s = steps[-1].end_s
    return [
        span._replace(
            start_s=max(span.start_s, start_s) - start_s, end_s=min(span.end_s, end_s) - start_s
        )
        for span in spans
        if span.end_s > start_s and span.start_s < end_s
    ]


def _newest_stretch(spans: Sequence[Span]) -> list[Span]:
    """Return the spans after the newest long pause; previous ones if these are few steps.

    A long pause would leave no room for the steps.
    """
    stretches: list[list[Span]] = [[]]
    for span in spans:
        if span.kind != "step" and span.end_s - span.start_s > LONG_PAUSE_S:
            stretches.append([])
        else:
            stretches[-1].append(span)
    counts = [sum(span.kind == "step" for span in stretch) for stretch in stretches]
    for count, stretch in zip(reversed(counts), reversed(stretches), strict=True):
        if count >= min(ENOUGH_STEPS, max(counts)):
            return stretch
    return []


def read_spans(file: Path) -> list[Span]:
    """Return the spans of a timeline.json; none if there is no file that can be read."""
    try:
        return [Span(*span) for span in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []


class PageThread:
    """Writes the page of a run after each report, at most every REFRESH_S; a context manager.

    A page that cannot be written, as on a full disk, is warned of once; the training goes on.

    Args:
        page: what to write.
        refresh_s: seconds between two pages.
    """

    def __init__(self, page: RunPage, refresh_s: float = REFRESH_S):
        self._page = page
        self._refresh_s = refresh_s
        self._requested = threading.Event()
        self._closing = threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="myxtts-report", daemon=True)

    def __enter__(self) -> "PageThread":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        if error is not None:
            self._write(f"ended by {type(error).__name__}: {error}")

    def request(self) -> None:
        """Ask for a page with the newest report; returns at once."""
        self._requested.set()

    def end(self, how: str) -> Path | str:
        """Write the last page, and end the thread; return the path of the page, or `not written`.

        Args:
            how: the run has ended, such as `finished`.
        """
        self._close()
        return self._write(how) or "not written"

    def _close(self) -> None:
        self._closing.set()
        self._requested.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._refresh_s):
            self._requested.wait()
            self._requested.clear()
            if not self._closing.is_set():
                self._write()

    def _write(self, ended: str = "") -> Path | None:
        start_s = time.perf_counter()
        try:
            path = self._page.write(ended)
        except OSError as error:
            if not self._has_warned:
                advice = "The training goes on"
                if error.errno in FULL:
                    advice = "Free some disk space; the training goes on"
                log.warning("report.html cannot be written: %s. %s.", error, advice)
            self._has_warned = True
            return None
        log.debug("report.html took %.3f s", time.perf_counter() - start_s)
        return path
