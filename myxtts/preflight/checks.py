"""Checks of the preflight as data, and the report that prints them."""

import re
from collections.abc import Generator, Iterator
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeVar

import tensorflow as tf

from myxtts.errors import UserError
from myxtts.terminal import printable

Status = Literal["passed", "failed", "warning"]
MARKS = {"passed": "✅", "failed": "❌", "warning": "⚠️"}

Result = TypeVar("Result")


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        status: `warning` means that the check could not be made, or that its result is worth
            knowing; it fails nothing.
        to_do: what the user can do about it; empty if there is nothing to do.
    """

    status: Status
    name: str
    expected: str
    found: str
    to_do: str = ""


def required(condition: bool, name: str, expected: str, found: str, to_do: str = "") -> Check:
    """Return a check that fails unless the condition is true."""
    status: Status = "passed" if condition else "failed"
    return Check(status, name, expected, found, "" if condition else to_do)


def recommended(condition: bool, name: str, expected: str, found: str, to_do: str = "") -> Check:
    """Return a check that is a warning unless the condition is true."""
    status: Status = "passed" if condition else "warning"
    return Check(status, name, expected, found, "" if condition else to_do)


def failed_by(error: Exception, name: str, expected: str) -> Check:
    """Return a failed check for an error: its first sentence is what was found, the rest is what to
    do.
    """
    found, *to_do = re.split(r"(?<=[.:]) (?=[A-Z])", " ".join(str(error).split()), maxsplit=1)
    return Check("failed", name, expected, found.rstrip("."), to_do[0] if to_do else "")


class Section(NamedTuple):
    title: str
    checks: list[Check]


class Report:
    """Runs sections of checks, prints each check when it is made, and collects all of them."""

    def __init__(self) -> None:
        self.sections: list[Section] = []

    def run(
        self, title: str, checks: Iterator[Check] | Generator[Check, None, Result]
    ) -> Result | None:
        """Run a section; return its result, or None if an error ended it. The error becomes the
        last check.
        """
        self._begin(title)
        try:
            while True:
                self._add(next(checks))
        except StopIteration as end:
            return end.value
        except (UserError, tf.errors.OpError) as error:
            self._add(failed_by(error, "section completed", "no error"))
            return None

    def skip(self, title: str, reason: str) -> None:
        """Add a section that cannot run."""
        expected = "the earlier sections pass"
        to_do = "Fix the failed checks above."
        self._begin(title)
        self._add(Check("warning", "section skipped", expected, reason, to_do))

    def _begin(self, title: str) -> None:
        self.sections.append(Section(title, []))
        print(f"\n{len(self.sections)}  {title}", flush=True)

    def _add(self, check: Check) -> None:
        self.sections[-1].checks.append(check)
        for line in check_lines(check):
            print(printable(line), flush=True)

    @property
    def checks(self) -> list[Check]:
        return [*chain.from_iterable(section.checks for section in self.sections)]

    def count(self, status: Status) -> int:
        return sum(check.status == status for check in self.checks)

    @property
    def passed(self) -> bool:
        return self.count("failed") == 0

    def summary(self) -> str:
        """Return the last line of the report."""
        result = "all checks passed"
        if not self.passed:
            first = next(check for check in self.checks if check.status == "failed")
            result = f"{self.count('failed')} failed: start with '{first.name}'"
        return (
            f"{result} ({self.count('passed')} ✅, {self.count('failed')} ❌,"
            f" {self.count('warning')} ⚠️)"
        )

    def to_json(self) -> dict[str, Any]:
        sections = [
            {
                "number": number,
                "title": section.title,
                "checks": [check._asdict() for check in section.checks],
            }
            for number, section in enumerate(self.sections, 1)
        ]
        return {"passed": self.passed, "summary": self.summary(), "sections": sections}


def check_lines(check: Check) -> Iterator[str]:
    """Format a check for the console."""
    yield f"   {MARKS[check.status]} {check.name}: {check.found}"
    yield f"      expected: {check.expected}"
    if check.to_do:
        yield f"      to do: {check.to_do}"
