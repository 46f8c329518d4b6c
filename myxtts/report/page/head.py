"""The head of the page: is the run learning, is a device starving, how much longer, and what is it.
No TensorFlow.
"""

from collections.abc import Mapping, Sequence
from html import escape
from time import localtime, strftime
from typing import Any, NamedTuple

from myxtts.clock import format_duration
from myxtts.report.page.charts import number
from myxtts.report.page.history import History, Point
from myxtts.throughput.advice import WAIT_SHARE
from myxtts.throughput.assess import grade

FLAT = 0.005  # a relative change of the mean loss below this is none
PATIENCE = 3  # validations without a better loss before the answer is no
RECENT = 8  # points whose mean is compared


class Answer(NamedTuple):
    """A question with its answer; `state` is good, fair, bad or unknown."""

    question: str
    state: str
    answer: str
    detail: str = ""


def is_learning(history: History) -> Answer:
    """Answer by the newest validation losses where there are several, else by the trend of the
    training loss.
    """
    question = "Is it learning?"
    loss = history.series.get("loss")
    if loss is None or loss.newest is None:
        return Answer(question, "unknown", "no report yet")
    if loss.not_finite[1] and loss.not_finite[0] >= loss.newest[0]:
        return Answer(
            question, "bad", "no: the loss is not finite", f"at step {number(loss.not_finite[0])}"
        )
    validation = history.series.get("validation_loss")
    trend, change = _trend(loss.points)
    falling = f"training loss {number(loss.newest[1])}, {change}"
    if validation is None or validation.least is None or validation.before_newest is None:
        state, answer = {
            -1: ("good", "yes"),
            0: ("fair", "hardly"),
            1: ("bad", "no"),
            None: ("unknown", "too early"),
        }[trend]
        return Answer(
            question, state, f"{answer}: {falling}" if trend is not None else f"{answer}, {falling}"
        )
    since = validation.since_least
    best = (
        f"best validation loss {number(validation.least[1])} at step {number(validation.least[0])}"
    )
    if since == 0:
        return Answer(question, "good", f"yes: {best}, the newest", falling)
    if since <= PATIENCE:
        return Answer(question, "fair", f"yes, but not in every validation: {best}", falling)
    reason = "it overfits" if trend == -1 else "the loss no longer falls"
    return Answer(
        question,
        "bad",
        f"no: {since} validations without a better one, {reason}",
        f"{best}; {falling}",
    )


def _trend(points: Sequence[Point]) -> tuple[int | None, str]:
    """Return -1, 0 or 1 where the mean loss falls, stays or rises, or None, and that in words."""
    count = min(RECENT, len(points) // 2)
    if count < 2:
        return None, "of few reports"
    newest, before = points[-count:], points[-2 * count : -count]
    mean, mean_before = (sum(point.mean for point in part) / count for part in (newest, before))
    change = (mean - mean_before) / max(abs(mean_before), 1e-12)
    steps = number(newest[-1].last - before[-1].last)
    if abs(change) < FLAT:
        return 0, f"unchanged over {steps} steps"
    verb = "down" if change < 0 else "up"
    return (-1 if change < 0 else 1), f"{verb} {100 * abs(change):.1f} % over {steps} steps"


def is_starving(history: History) -> Answer:
    """Answer by the wait share of the newest reports."""
    question = "Is a device starving?"
    report = history.newest
    if "accelerator_utilisation" not in report:
        return Answer(question, "unknown", "no report yet")
    recent = history.points("accelerator_utilisation")[-RECENT:]
    busy = sum(point.mean for point in recent) / len(recent)
    seconds = report["step_s"] + report["pause_s"]
    pause = (
        f"pauses took {100 * report['pause_s'] / max(seconds, 1e-9):.1f} % of the newest interval"
    )
    making = report["read_s"] + report["produce_s"]
    producer = f"producers worked {100 * report['produce_s'] / max(report['step_s'], 1e-9):.0f} %"
    if report["read_s"] > 0.2 * making:
        producer += (
            f" and waited for samples {100 * report['read_s'] / max(report['step_s'], 1e-9):.0f} %"
        )
    detail = f"{producer} of a step's time; {pause}"
    if 1.0 - busy < WAIT_SHARE:
        return Answer(
            question,
            "good",
            f"no: the model device is busy {100 * busy:.1f} % ({grade(busy)})",
            detail,
        )
    stage = report["bottleneck"] if report["bottleneck"] != "step" else "batches"
    state = "fair" if 1.0 - busy < 2 * WAIT_SHARE else "bad"
    return Answer(
        question,
        state,
        f"yes: the model device waits {100 * (1 - busy):.0f} % of its time, for {stage}",
        detail,
    )


def how_long(history: History, facts: Mapping[str, Any], ended: str, now_s: float) -> Answer:
    """Answer in time, steps and utterances; the facts are those of run.json."""
    question, step, total = "How much longer?", history.step, facts.get("total_steps")
    of = f"step {number(step)} of {number(total)}" if total else f"step {number(step)}"
    if total and facts.get("steps_per_epoch"):
        utterances = (total - step) * facts["utterances"] / facts["steps_per_epoch"]
        left = f"{number(total - step)} steps, about {number(round(utterances))} utterances"
    else:
        left = ""
    if ended:
        return Answer(question, "good" if total == step or not total else "fair", ended, of)
    remaining_s = history.newest.get("remaining_s")
    if remaining_s is None:
        return Answer(question, "unknown", "no report yet", of)
    until = strftime("%a %H:%M", localtime(now_s + remaining_s))
    return Answer(
        question,
        "good",
        f"{format_duration(remaining_s)}, until about {until}",
        f"{of}; {left} left" if left else of,
    )


def answers(given: Sequence[Answer]) -> str:
    """Return the answers as tiles."""
    tiles = (
        f'<div class="tile {answer.state}"><h2>{escape(answer.question)}</h2>'
        f'<p class="answer">{_in_lines(answer.answer)}</p>'
        + (f'<p class="small">{_in_lines(answer.detail)}</p>' if answer.detail else "")
        + "</div>"
        for answer in given
    )
    return f'<section class="tiles" aria-label="at a glance">{"".join(tiles)}</section>'


def _in_lines(text: str) -> str:
    """Return a text as HTML that breaks no line between a number and its percent sign."""
    return escape(text).replace(" %", "\N{NO-BREAK SPACE}%")


def description(facts: Mapping[str, Any], changed: Mapping[str, str]) -> str:
    """Return what the run is: the lines of its log, devices, versions and commit, and settings
    other than the defaults.

    Args:
        facts: content of run.json; empty for a run of an older version.
        changed: settings that are not the default, as flag -> value.
    """
    numbers = dict(facts.get("numbers", {}))
    rows = {name: numbers.pop(name) for name in ("corpus", "model") if name in numbers}
    if devices := facts.get("devices"):
        rows["devices"] = "; ".join(devices)
    if versions := facts.get("versions"):
        rows["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    rows |= {name: str(facts[name]) for name in ("commit", "host") if facts.get(name)}
    if "started" in facts:
        rows["started"] = strftime("%Y-%m-%d %H:%M", localtime(facts["started"]))
    settings = " ".join(
        f'<span class="flag">{escape(flag)}</span> {escape(text)}' for flag, text in changed.items()
    )
    wide = f'<div class="all"><dt>settings</dt><dd>{settings}</dd></div>' if changed else ""
    more = (
        f"<details id='numbers'><summary>Derived numbers</summary>{_list(numbers)}</details>"
        if numbers
        else ""
    )
    return (_list(rows, wide) if rows or wide else "") + more


def _list(rows: Mapping[str, str], more: str = "") -> str:
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in rows.items()
    )
    return f'<dl class="facts">{items}{more}</dl>'
