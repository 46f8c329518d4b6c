"""Checks of the preflight as data, and the report that prints them."""

import re
from collections.abc import Generator, Iterator
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeVar

import tensorflow as tf

from myxtts.base.console import printable
from myxtts.devicefeed.errors import UserError

MARKS = {"passed": "✅", "failed": "❌", "warning": "⚠️"}

Result = TypeVar("Result")


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        status: `warning` means that the check could not be made, or that its result is worth
            knowing; it fails nothing.
        to_do: what the user can do about it; empty if there is nothing to do.
    """

    status: Literal["passed", "failed", "warning"]
    name: str
    expected: str
    found: str
    to_do: str = ""


def required(condition: bool, name: str, expected: str, found: str, to_do: str = "") -> Check:
    """Return a check that fails unless the condition is true."""
    if condition:
        return Check("passed", name, expected, found)
    return Check("failed", name, expected, found, to_do)


def recommended(condition: bool, name: str, expected: str, found: str, to_do: str = "") -> Check:
    """Return a check that is a warning unless the condition is true."""
    if condition:
        return Check("passed", name, expected, found)
    return Check("warning", name, expected, found, to_do)


def failed_by(error: Exception, name: str, expected: str) -> Check:
    """Return a failed check: an error first says what was found, and then what to do."""
    found, *to_do = re.split(r"(?<=[.:]) (?=[A-Z])", " ".join(str(error).split()), maxsplit=1)
    return Check("failed", name, expected, found.rstrip("."), "".join(to_do))


class Report:
    """Runs sections of checks, prints each check when it is made, and keeps them by title."""

    def __init__(self) -> None:
        self.sections: dict[str, list[Check]] = {}

    def run(
        self, title: str, checks: Iterator[Check] | Generator[Check, None, Result]
    ) -> Result | None:
        """Run a section; return its result, or None if an error, its last check, ended it."""
        # Checks are printed as the generator yields them, so that a slow section shows where it is.
        self.sections[title] = []
        print(f"\n{len(self.sections)}  {title}", flush=True)
        try:
            while True:
                self._add(title, next(checks))
        except StopIteration as end:
            return end.value
        except (UserError, tf.errors.OpError) as error:
            self._add(title, failed_by(error, "section completed", "no error"))
            return None

    def skip(self, title: str, reason: str) -> None:
        """Add a section that cannot run."""
        expected, to_do = "the earlier sections pass", "Fix the failed checks above."
        self.run(title, iter([Check("warning", "section skipped", expected, reason, to_do)]))

    def _add(self, title: str, check: Check) -> None:
        self.sections[title].append(check)
        print(printable("\n".join(check_lines(check))), flush=True)

    def with_status(self, status: str) -> list[Check]:
        checks = chain.from_iterable(self.sections.values())
        return [check for check in checks if check.status == status]

    @property
    def passed(self) -> bool:
        return not self.with_status("failed")

    def summary(self) -> str:
        """Return the last line of the report."""
        result = "all checks passed"
        if failed := self.with_status("failed"):
            result = f"{len(failed)} failed: start with '{failed[0].name}'"
        counts = (f"{len(self.with_status(status))} {mark}" for status, mark in MARKS.items())
        return f"{result} ({', '.join(counts)})"

    def to_json(self) -> dict[str, Any]:
        sections = [
            {"number": number, "title": title, "checks": [check._asdict() for check in checks]}
            for number, (title, checks) in enumerate(self.sections.items(), 1)
        ]
        return {"passed": self.passed, "summary": self.summary(), "sections": sections}


def check_lines(check: Check) -> Iterator[str]:
    """Format a check for the console."""
    yield f"   {MARKS[check.status]} {check.name}: {check.found}"
    yield f"      expected: {check.expected}"
    if check.to_do:
        yield f"      to do: {check.to_do}"
