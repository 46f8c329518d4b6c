"""report.html: how a run is doing, on one page that needs no server and no network.

What comes in are the files of a run: metrics, samples, scores and timeline. A thread reads what is
new in them every few seconds, answers some questions about the run, and puts all of it as JSON into
a copy of page.html, whose script draws it in the browser. No TensorFlow.
"""

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.base.clock import MODEL, format_duration
from myxtts.base.files import write_whole
from myxtts.config.flags import SETTINGS
from myxtts.config.load import dump
from myxtts.config.schema import OF_FOLDER, Config
from myxtts.devicefeed.times import Span, Timeline
from myxtts.report.alignment import CHECKED_STEP, EVIDENCE, SHORT, judge_alignment
from myxtts.report.assess import WAIT_SHARE, flags_of, grade
from myxtts.report.metrics import FIGURES, History, Point, read_last_report
from myxtts.report.overview import document, number, read_facts, sync_marks, write_overview
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
# New sounds and pictures get so much processor time in a refresh: 2 % of a core at REFRESH_S.
COMPRESS_S = 0.1
# A change of the mean loss by less than 0.5 % is none. The mean of 8 points is compared with that
# of the previous 8. After 3 results without a better one a run does not learn.
FLAT = 0.005
RECENT = 8
PATIENCE = 3

log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """A question with its answer; `state` is good, fair, bad or unknown."""

    question: str
    state: str
    answer: str
    detail: str = ""


def is_learning(history: History, select_by: str = "loss") -> Answer:
    """Answer by two or more results that choose the best checkpoint, else by the training loss."""
    question = "Is it learning?"
    loss = history.series.get("loss")
    if loss is None or loss.newest is None:
        return Answer(question, "unknown", "no report yet")
    if loss.not_finite[0] >= loss.newest[0]:
        at = f"at step {number(loss.not_finite[0])}"
        return Answer(question, "bad", "no: the loss is not finite", at)
    state, answer, change = _trend(loss.points)
    training = f"training loss {number(loss.newest[1])}, {change}"
    figure = FIGURES[select_by]
    results = history.series.get(figure.metric)
    if results is None or results.best is None or len(results.points) < 2:
        return Answer(question, state, f"{answer}: {training}")
    best_step, value = results.best
    best = f"best {figure.label} {number(value)} at step {number(best_step)}"
    since = results.since_best
    measurement = "validation" if select_by == "loss" else "evaluation"
    if since == 0:
        return Answer(question, "good", f"yes: {best}, the newest", training)
    if since <= PATIENCE:
        return Answer(question, "fair", f"yes, but not in every {measurement}: {best}", training)
    reason = "it overfits" if state == "good" else "the loss no longer falls"
    answer = f"no: {since} {measurement}s without a better one, {reason}"
    return Answer(question, "bad", answer, f"{best}; {training}")


def _trend(points: Sequence[Point]) -> tuple[str, str, str]:
    """Return a state, an answer and the change of the mean loss in words."""
    count = min(RECENT, len(points) // 2)
    if count < 2:
        return "unknown", "too early", "of few reports"
    newest, previous = points[-count:], points[-2 * count : -count]
    mean = sum(point.mean for point in newest) / count
    previous_mean = sum(point.mean for point in previous) / count
    change = (mean - previous_mean) / max(abs(previous_mean), 1e-12)
    words = f"{100 * change:+.1f} % over {number(newest[-1].step - previous[-1].step)} steps"
    if abs(change) < FLAT:
        return "fair", "hardly", words
    if change < 0:
        return "good", "yes", words
    return "bad", "no", words


def is_starving(history: History) -> Answer:
    """Answer by the wait share of the newest reports."""
    question = "Is a device starving?"
    report = history.newest
    if "accelerator_utilisation" not in report:
        return Answer(question, "unknown", "no report yet")
    recent = history.points("accelerator_utilisation")[-RECENT:]
    busy = sum(point.mean for point in recent) / len(recent)
    step_s, pause_s = max(report["step_s"], 1e-9), report["pause_s"]
    producing = f"producers worked {100 * report['produce_s'] / step_s:.0f} % of a step's time"
    detail = f"{producing}; pauses took {100 * pause_s / (step_s + pause_s):.1f} %"
    if 1.0 - busy < WAIT_SHARE:
        answer = f"no: the model device is busy {100 * busy:.1f} % ({grade(busy)})"
        return Answer(question, "good", answer, detail)
    stage = "batches" if report["bottleneck"] == "step" else report["bottleneck"]
    state = "fair" if 1.0 - busy < 2 * WAIT_SHARE else "bad"
    answer = f"yes: the model device waits {100 * (1 - busy):.0f} % of its time, for {stage}"
    return Answer(question, state, answer, detail)


def is_aligned(history: History) -> Answer:
    """Answer by the newest reports of a voice."""
    question = "Does it know which sound is which?"
    evidence, short = (history.points(name)[-RECENT:] for name in (EVIDENCE, SHORT))
    if not evidence or not short or history.step < CHECKED_STEP:
        return Answer(question, "unknown", "too early")
    grade, words = judge_alignment(
        [point.mean for point in evidence], [point.mean for point in short]
    )
    answer = {"good": "yes", "fair": "partly", "bad": "no"}[grade]
    return Answer(question, grade, f"{answer}: {words}")


def how_long(history: History, facts: Mapping[str, Any], ended: str) -> Answer:
    """Answer in time, steps and utterances; `facts` is the content of run.json."""
    question = "How much longer?"
    step, total = history.step, facts.get("total_steps")
    progress = f"step {number(step)}"
    if total:
        progress += f" of {number(total)}"
    if ended:
        state = "good" if total == step or not total else "fair"
        return Answer(question, state, ended, progress)
    remaining_s = history.newest.get("remaining_s")
    if remaining_s is None:
        return Answer(question, "unknown", "no report yet", progress)
    if total and facts.get("steps_per_epoch"):
        utterances = round((total - step) * facts["utterances"] / facts["steps_per_epoch"])
        progress += f"; {number(total - step)} steps, about {number(utterances)} utterances left"
    until = time.strftime("%a %H:%M", time.localtime(time.time() + remaining_s))
    answer = f"{format_duration(remaining_s)}, until about {until}"
    return Answer(question, "good", answer, progress)


class RunPage:
    """The page of a run, which is written again and again while the run trains.

    Its time does not depend on the length of the run, since only new lines are read.
    """

    def __init__(self, folder: Path, config: Config, timeline: Timeline):
        self._folder = folder
        self._config = config
        # It takes 20 ms.
        self._settings_text = dump(config)
        self._timeline = timeline
        self._history = History(folder / "metrics.jsonl")
        self._samples = Samples(folder)
        self._overview_s = -OVERVIEW_S
        # The page of one of several jobs is below the launcher's page.
        self._is_job = (folder.parent / "launcher.json").exists()

    def read_news(self) -> bool:
        """Read what the run has reported; return whether there is anything new."""
        return self._history.update()

    def write(self, ended: str = "") -> Path:
        """Write report.html, and from time to time index.html of all runs; return its path.

        `ended` says how the run ended. Raises OSError, and leaves the previous page intact.
        """
        self._history.update()
        write_whole(self._folder / "report.html", self._page(ended))
        now_s = time.monotonic()
        if not self._is_job and (ended or now_s - self._overview_s >= OVERVIEW_S):
            self._overview_s = now_s
            with suppress(OSError):
                # The folder of all runs may be another user's.
                write_overview(self._folder.parent)
        return self._folder / "report.html"

    def _page(self, ended: str) -> bytes:
        history, folder = self._history, self._folder
        facts = read_facts(folder)
        if spans := excerpt(self._timeline.newest()):
            write_whole(folder / TIMELINE, json.dumps(spans).encode())
        elif ended and (folder / TIMELINE).exists():
            # Written again after the run, such as with the scores of an evaluation.
            spans = json.loads((folder / TIMELINE).read_text("utf-8"))
        learning = is_learning(history, self._config.run.select_by)
        answers = [learning, is_starving(history), how_long(history, facts, ended)]
        if EVIDENCE in history.series:
            answers.insert(1, is_aligned(history))
        page = {
            "name": folder.name,
            "is_job": self._is_job,
            "step": history.step,
            "answers": [answer._asdict() for answer in answers],
            "facts": facts,
            "changed": changed_settings(self._config),
            "series": {name: series.points for name, series in history.series.items()},
            "marks": sync_marks(self._config.local_sgd.sync_every, history.step),
            "seconds": history.seconds,
            "spans": spans,
            "workers": workers(folder, history.newest, facts),
            "samples": self._samples.read(60.0 if ended else COMPRESS_S),
            "scores": read_scores(folder),
            "settings": self._settings_text,
        }
        if ended:
            return document("run", page, ENDED_RELOAD_S)
        # Slow steps make reports rare, so their page counts as stale later.
        step_s = history.newest.get("step_s", 0.0) + history.newest.get("pause_s", 0.0)
        report_s = history.interval_steps * step_s
        return document("run", page, RELOAD_S, max(STALE_S, STALE_REPORTS * report_s))


def changed_settings(config: Config) -> dict[str, str]:
    """Return the settings that are not the defaults, as flag -> value."""
    changed = {}
    for setting in SETTINGS.values():
        value = setting.of(config)
        if value != setting.default and OF_FOLDER not in setting.marks:
            changed[setting.flag] = flags_of({setting.name: value}).partition(" ")[2]
    return changed


def workers(
    folder: Path, chief: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the newest reports, with hosts, of the chief and of workers whose folders are here."""
    reports = {"worker 0 (chief)": {**chief, "host": facts.get("host")}}
    for path in sorted(folder.glob("worker-*"), key=lambda path: (len(path.name), path.name)):
        if report := read_last_report(path / "metrics.jsonl"):
            host = read_facts(path).get("host")
            reports[path.name.replace("-", " ")] = {**report, "host": host}
    return reports


# Steps are collected until a long pause, which begins a new collection. If the newest one is too
# short, because the run has just paused, the steps before the pause are shown if they are more.
# Then all spans that overlap the chosen steps are cut to them, in all lanes.
def excerpt(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the newest steps, cut to them, with times from 0."""
    steps: list[Span] = []
    before: list[Span] = []
    for span in spans:
        if span.lane == MODEL and span.kind == "step":
            steps.append(span)
        elif span.lane == MODEL and span.end_s - span.start_s > LONG_PAUSE_S:
            before, steps = steps or before, []
    if len(steps) < ENOUGH_STEPS:
        steps = max(before, steps, key=len)
    if not steps:
        return []
    start_s = steps[-STEPS:][0].start_s
    end_s = steps[-1].end_s
    return [
        span._replace(
            start_s=max(span.start_s, start_s) - start_s, end_s=min(span.end_s, end_s) - start_s
        )
        for span in spans
        if span.end_s > start_s and span.start_s < end_s
    ]


class PageThread:
    """Writes the page of a run where there is a new report, every `refresh_s`; a context manager.

    A page that cannot be written, as on a full disk, is warned of once; the training goes on.
    """

    def __init__(self, page: RunPage, refresh_s: float = REFRESH_S):
        self._page = page
        self._refresh_s = refresh_s
        self._closing = threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="myxtts-report", daemon=True)

    def __enter__(self) -> "PageThread":
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._close()
        if error is not None:
            self._write(f"ended by {type(error).__name__}: {error}")

    def end(self, how: str) -> Path | str:
        """Write the last page, which says how the run ended; return its path, or `not written`."""
        self._close()
        return self._write(how) or "not written"

    def _close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._refresh_s):
            self._write(only_news=True)

    def _write(self, ended: str = "", only_news: bool = False) -> Path | None:
        try:
            if only_news and not self._page.read_news():
                return None
            return self._page.write(ended)
        except OSError as error:
            if not self._has_warned:
                log.warning("report.html cannot be written: %s. The training goes on.", error)
            self._has_warned = True
            return None
