"""report.html: how a run is doing, on one page that needs no server and no network."""

import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import yaml

from myxtts.clock import Span, Timeline
from myxtts.config.settings import SETTINGS
from myxtts.files import write_whole
from myxtts.report.page import columns, corpus, head
from myxtts.report.page.charts import Line, line_chart, share_bar, stacked_chart, sync_marks
from myxtts.report.page.history import History
from myxtts.report.page.lanes import excerpt, lanes
from myxtts.report.page.overview import write_overview
from myxtts.report.page.samples import Samples, scores
from myxtts.report.page.style import document

TIMELINE = "timeline.json"
RELOAD_S = 10.0  # an open page of a run reloads itself at this age, ...
ENDED_RELOAD_S = 120.0  # ... and one of a run that has ended at this one, since it may be resumed
STALE_REPORTS = 5  # without news for the time of so many reports, the page says so, ...
STALE_S = 120.0  # ... but not before this age
OVERVIEW_S = 60.0  # between two index.html
_WRITING = threading.Lock()  # one page at a time, since all have the same temporary name
UNSHOWN = ("run", "runs_dir", "resume")  # settings that say nothing of how the run trains
# of a processor in a refresh, for new sounds and pictures; the others follow with the next ones
COMPRESS_S = 0.1

log = logging.getLogger(__name__)


class RunPage:
    """The page of a run, which is written again and again while the run trains.

    A refresh reads what was written since the one before, so its time does not depend on the length
    of the run. Any thread may call it.

    Args:
        folder: of the run.
        timeline: what its threads did; None reads the newest from timeline.json.
    """

    def __init__(self, folder: Path, timeline: Timeline | None = None):
        self._folder, self._timeline = folder, timeline
        self._history = History(folder / "metrics.jsonl")
        self._samples = Samples(folder)
        self._overview_s = -OVERVIEW_S

    def write(self, ended: str = "") -> Path:
        """Write report.html, and from time to time index.html of all runs beside it; return the
        path of report.html.

        Args:
            ended: how the run has ended, such as `finished`; empty while it trains.

        Raises:
            OSError: the disk is full, for example; the page before is intact.
        """
        with _WRITING:
            self._history.update()
            page = self._page(ended)
            write_whole(self._folder / "report.html", page.encode())
            now_s = time.monotonic()
            if not self._in_jobs and (ended or now_s - self._overview_s >= OVERVIEW_S):
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
    def _in_jobs(self) -> bool:
        """Whether the run is one of several jobs, for which the launcher has a page, and lists them
        beside all runs.
        """
        return (self._folder.parent / "launcher.json").exists()

    def _page(self, ended: str) -> str:
        history, folder, now_s = self._history, self._folder, time.time()
        facts, spans = columns.read_facts(folder), self._spans()
        others = (
            "<a href='../report.html'>All jobs</a>"
            if self._in_jobs
            else "<a href='../index.html'>All runs</a>"
        )
        answers = [
            head.is_learning(history),
            head.is_starving(history),
            head.how_long(history, facts, ended, now_s),
        ]
        body = [
            f"<h1>{escape(folder.name)}</h1>",
            f"<p class='small'>Step {history.step:,}, <span id='age'></span>. <span"
            f" id='stale'></span>{others}</p>",
            head.answers(answers),
            head.description(facts, changed_settings(self._settings)),
            self._curves(),
            self._times(spans),
            columns.replicas(facts, spans),
            columns.workers(folder, history.newest, facts),
            self._samples.section(60.0 if ended else COMPRESS_S),
            scores(folder),
            self._corpus(facts),
            "<details id='settings'><summary>Settings</summary>"
            f"<pre>{escape(self._settings_text)}</pre></details>",
        ]
        stale_s = 0.0 if ended else max(STALE_S, STALE_REPORTS * self._report_s())
        reload_s = ENDED_RELOAD_S if ended else RELOAD_S
        return document(folder.name, "\n".join(filter(None, body)), now_s, reload_s, stale_s)

    def _report_s(self) -> float:
        """Return the seconds between the two newest reports, as their steps take them."""
        loss, report = self._history.series.get("loss"), self._history.newest
        if (
            loss is None
            or loss.newest is None
            or loss.before_newest is None
            or "step_s" not in report
        ):
            return 0.0
        return (loss.newest[0] - loss.before_newest) * (report["step_s"] + report["pause_s"])

    def _spans(self) -> list[Span]:
        """Return the newest spans, which timeline.json then has, too."""
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

    @property
    def _sync_every(self) -> int:
        return (self._settings.get("local_sgd") or {}).get("sync_every") or 0

    def _curves(self) -> str:
        history, marks = self._history, sync_marks(self._sync_every, self._history.step)
        charts = [
            line_chart("Loss", self._with_validation("loss"), log=True, marks=marks, wide=True)
        ]
        charts += [
            line_chart(name, self._with_validation(name), log=True) for name in history.losses
        ]
        for name in history.scores:
            title = name.removeprefix("validation_").replace("_", " ")
            charts.append(
                line_chart(title, [Line("held out", history.points(name), 1)], from_zero=True)
            )
        single = {
            "gradient_norm": ("Gradient norm", "", True),
            "learning_rate": ("Learning rate", "", False),
            "steps_per_s": ("Throughput", "steps/s", False),
            "audio_seconds_per_s": ("Audio throughput", "s of speech/s", False),
        }
        for name, (title, unit, log) in single.items():
            lines = [Line(title.lower(), history.points(name), 0)]
            charts.append(line_chart(title, lines, unit=unit, log=log, from_zero=not log))
        drawn = "".join(charts)
        return (
            f'<section><h2>Training</h2><div class="charts">{drawn}</div></section>'
            if drawn
            else ""
        )

    def _with_validation(self, name: str) -> list[Line]:
        history = self._history
        return [
            Line("training", history.points(name), 0),
            Line("validation", history.points(f"validation_{name}"), 1),
        ]

    def _times(self, spans: list[Span]) -> str:
        history, points = self._history, self._history.points
        model = {
            "step": (points("busy_s"), 0),
            "wait": (points("wait_s"), 5),
            "pause": (points("pause_s"), 6),
        }
        data = {
            "produce": (points("produce_s"), 2),
            "read": (points("read_s"), 3),
            "blocked": (points("blocked_s"), 4),
        }
        charts = [
            stacked_chart(
                "Model device",
                model,
                "The hand-over of a batch is a part of the step before; pauses are validation, "
                "samples, evaluation, checkpoints and syncs.",
            ),
            stacked_chart(
                "Data device",
                data,
                "Read: the producer waits for samples. Blocked: the feed is full, so the data"
                " device could do more.",
            ),
        ]
        if not any(charts):
            return ""
        total = history.seconds
        bar = share_bar(
            {name: (total[name], style) for name, style in (("step", 0), ("wait", 5), ("pause", 6))}
        )
        parts = [
            f"<section><h2>Where the time goes</h2>{bar}<div class='charts'>{''.join(charts)}</div>"
        ]
        if drawn := lanes(spans):
            parts.append(f"<h3>The last seconds</h3>{drawn}")
        return "".join(parts) + "</section>"

    def _corpus(self, facts: Mapping[str, Any]) -> str:
        found = corpus.rejected(self._folder / "rejected.csv") + corpus.padding_by_bucket(
            facts.get("buckets", [])
        )
        return f"<section><h2>Corpus</h2>{found}</section>" if found else ""


def read_spans(file: Path) -> list[Span]:
    """Return the spans of a timeline.json; none if there is no file that can be read."""
    try:
        return [Span(*span) for span in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []


def changed_settings(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a config.yaml that are not the defaults, as flag -> value."""
    changed = {}
    for section in sections.values():
        for name, value in (section if isinstance(section, dict) else {}).items():
            setting = SETTINGS.get(name)
            if setting is None or name in UNSHOWN or value in (None, [], setting.default):
                continue
            texts = "" if value is True else value if isinstance(value, list) else [value]
            changed[setting.flag] = " ".join(map(str, texts))
    return changed
