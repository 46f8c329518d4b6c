"""A check of the preflight as data, and the one way in which checks are shown."""

import re
from collections.abc import Generator, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

import tensorflow as tf

from myxtts.errors import UserError

State = Literal["holds", "fails", "unknown"]
MARKS = {"holds": "✅", "fails": "❌", "unknown": "⚠️"}

Result = TypeVar("Result")


class Check(NamedTuple):
    """One line of the preflight.

    Attributes:
        state: `unknown` is what could not be looked at, or should be known; it fails nothing.
        do: what mends it; empty where nothing is to do.
    """

    state: State
    name: str
    expected: str
    found: str
    do: str = ""


def check(holds: bool, name: str, expected: str, found: str, do: str = "") -> Check:
    """A check that has to hold."""
    return Check("holds", name, expected, found) if holds else Check("fails", name, expected, found, do)


def remark(fine: bool, name: str, expected: str, found: str, do: str = "") -> Check:
    """A check that stops no run where it does not hold."""
    return Check("holds", name, expected, found) if fine else Check("unknown", name, expected, found, do)


def refused(name: str, expected: str, error: Exception) -> Check:
    """An error as a check that failed. Those of the user say first what was found, and then what to do."""
    found, *do = re.split(r"(?<=[.:]) (?=[A-Z])", " ".join(str(error).split()), maxsplit=1)
    return Check("fails", name, expected, found.rstrip("."), do[0] if do else "")


class Section(NamedTuple):
    title: str
    checks: list[Check]


class Report:
    """Runs sections one after the other, prints each check as soon as it is made, and keeps all of them."""

    def __init__(self):
        self.sections: list[Section] = []

    def run(
        self, title: str, checks: Iterator[Check] | Generator[Check, None, Result], missing: str = ""
    ) -> Result | None:
        """What a section returns; None where an error ended it, which becomes its last check.

        Args:
            missing: why it cannot be run at all; `checks` is then left alone.
        """
        self.sections.append(Section(title, []))
        print(f"\n{len(self.sections)}  {title}", flush=True)
        if missing:
            self._add(Check("unknown", "not run", "to be run", missing, "Mend what failed."))
            return None
        try:
            while True:
                self._add(next(checks))
        except StopIteration as end:
            return end.value
        except (UserError, tf.errors.OpError) as error:
            self._add(refused("done to its end", "no error", error))
            return None

    def _add(self, made: Check) -> None:
        self.sections[-1].checks.append(made)
        for line in lines(made):
            print(line, flush=True)

    def count(self, state: State) -> int:
        return sum(made.state == state for section in self.sections for made in section.checks)

    @property
    def holds(self) -> bool:
        return self.count("fails") == 0

    def summary(self) -> str:
        """The last line."""
        if not self.holds:
            first = next(made for section in self.sections for made in section.checks if made.state == "fails")
            verdict = f"does not hold: begin with '{first.name}'"
        else:
            verdict = "all holds"
        counts = f"{self.count('holds')} ✅, {self.count('fails')} ❌, {self.count('unknown')} ⚠️"
        return f"{verdict} ({counts})"

    def to_json(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "summary": self.summary(),
            "sections": [
                {"number": number, "title": section.title, "checks": [made._asdict() for made in section.checks]}
                for number, section in enumerate(self.sections, 1)
            ],
        }


def lines(made: Check) -> Iterator[str]:
    """A check as it is printed."""
    yield f"   {MARKS[made.state]} {made.name}: {made.found}"
    yield f"      expected: {made.expected}"
    if made.do:
        yield f"      do: {made.do}"
