"""The head of a page: is the run learning, is a device starving, and how much longer.

No TensorFlow.
"""

from collections.abc import Mapping, Sequence
from time import localtime, strftime
from typing import Any, NamedTuple

from myxtts.clock import format_duration
from myxtts.report.history import History, Point
from myxtts.throughput.assess import WAIT_SHARE, grade

# A change of the mean loss by less than 0.5 % is none.
FLAT = 0.005
# After 3 validations without a better loss the answer is no.
PATIENCE = 3
# The mean of 8 points is compared with that of the previous 8.
RECENT = 8


class Answer(NamedTuple):
    """A question with its answer; `state` is good, fair, bad or unknown."""

    question: str
    state: str
    answer: str
    detail: str = ""


def number(value: float) -> str:
    """Return a value for people: `0.8342`, `12,300`, `2e-05`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def is_learning(history: History) -> Answer:
    """Answer by the newest validations where there are several, else by the training loss."""
    question = "Is it learning?"
    loss = history.series.get("loss")
    if loss is None or loss.newest is None:
        return Answer(question, "unknown", "no report yet")
    if loss.not_finite[0] >= loss.newest[0]:
        at = f"at step {number(loss.not_finite[0])}"
        return Answer(question, "bad", "no: the loss is not finite", at)
    trend, change = _trend(loss.points)
    training = f"training loss {number(loss.newest[1])}, {change}"
    validation = history.series.get("validation_loss")
    if validation is None or validation.least is None or len(validation.points) < 2:
        if trend is None:
            return Answer(question, "unknown", f"too early, {training}")
        state, answer = {-1: ("good", "yes"), 0: ("fair", "hardly"), 1: ("bad", "no")}[trend]
        return Answer(question, state, f"{answer}: {training}")
    least_step, least = validation.least
    best = f"best validation loss {number(least)} at step {number(least_step)}"
    since = validation.since_least
    if since == 0:
        return Answer(question, "good", f"yes: {best}, the newest", training)
    if since <= PATIENCE:
        return Answer(question, "fair", f"yes, but not in every validation: {best}", training)
    reason = "it overfits" if trend == -1 else "the loss no longer falls"
    answer = f"no: {since} validations without a better one, {reason}"
    return Answer(question, "bad", answer, f"{best}; {training}")


def _trend(points: Sequence[Point]) -> tuple[int | None, str]:
    """Return -1, 0 or 1 where the mean loss falls, stays or rises, or None, and that in words."""
    count = min(RECENT, len(points) // 2)
    if count < 2:
        return None, "of few reports"
    newest = points[-count:]
    previous = points[-2 * count : -count]
    mean = sum(point.mean for point in newest) / count
    previous_mean = sum(point.mean for point in previous) / count
    change = (mean - previous_mean) / max(abs(previous_mean), 1e-12)
    steps = number(newest[-1].step - previous[-1].step)
    if abs(change) < FLAT:
        return 0, f"unchanged over {steps} steps"
    if change < 0:
        return -1, f"down {-100 * change:.1f} % over {steps} steps"
    return 1, f"up {100 * change:.1f} % over {steps} steps"


def is_starving(history: History) -> Answer:
    """Answer by the wait share of the newest reports."""
    question = "Is a device starving?"
    report = history.newest
    if "accelerator_utilisation" not in report:
        return Answer(question, "unknown", "no report yet")
    recent = history.points("accelerator_utilisation")[-RECENT:]
    busy = sum(point.mean for point in recent) / len(recent)
    step_s = max(report["step_s"], 1e-9)
    detail = f"producers worked {100 * report['produce_s'] / step_s:.0f} %"
    if report["read_s"] > 0.2 * (report["read_s"] + report["produce_s"]):
        detail += f" and waited for samples {100 * report['read_s'] / step_s:.0f} %"
    pause_share = report["pause_s"] / (step_s + report["pause_s"])
    detail += f" of a step's time; pauses took {100 * pause_share:.1f} % of the newest interval"
    if 1.0 - busy < WAIT_SHARE:
        answer = f"no: the model device is busy {100 * busy:.1f} % ({grade(busy)})"
        return Answer(question, "good", answer, detail)
    stage = "batches" if report["bottleneck"] == "step" else report["bottleneck"]
    state = "fair" if 1.0 - busy < 2 * WAIT_SHARE else "bad"
    answer = f"yes: the model device waits {100 * (1 - busy):.0f} % of its time, for {stage}"
    return Answer(question, state, answer, detail)


def how_long(history: History, facts: Mapping[str, Any], ended: str, now_s: float) -> Answer:
    """Answer in time, steps and utterances; the facts are those of run.json."""
    question = "How much longer?"
    step = history.step
    total = facts.get("total_steps")
    progress = f"step {number(step)} of {number(total)}" if total else f"step {number(step)}"
    if ended:
        state = "good" if total == step or not total else "fair"
        return Answer(question, state, ended, progress)
    remaining_s = history.newest.get("remaining_s")
    if remaining_s is None:
        return Answer(question, "unknown", "no report yet", progress)
    if total and facts.get("steps_per_epoch"):
        utterances = round((total - step) * facts["utterances"] / facts["steps_per_epoch"])
        progress += f"; {number(total - step)} steps, about {number(utterances)} utterances left"
    until = strftime("%a %H:%M", localtime(now_s + remaining_s))
    answer = f"{format_duration(remaining_s)}, until about {until}"
    return Answer(question, "good", answer, progress)
