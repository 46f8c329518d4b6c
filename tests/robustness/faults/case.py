"""The scenarios, and the case that a seed and a number make. No TensorFlow."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

# Of a test: settings, environment, seconds, and `cases`, each with number, scenario, steps,
# failures and counts.
Result = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """A kind of case, which `module.function` of this package runs."""

    name: str
    weight: int  # how often it is drawn
    function: str

    @cached_property
    def run(self) -> Any:
        module, function = self.function.split(".")
        return getattr(import_module(f"tests.robustness.faults.{module}"), function)

    def line(self) -> str:
        return f"{self.name:<15} {(self.run.__doc__ or '').splitlines()[0]}"


SCENARIOS = (
    Scenario("interrupts", 8, "scenarios.interrupts"),
    Scenario("damaged-run", 8, "scenarios.damaged_run"),
    Scenario("full-disk", 4, "scenarios.full_disk"),
    Scenario("read-only", 3, "scenarios.read_only"),
    Scenario("io-errors", 4, "scenarios.input_output_errors"),
    Scenario("bad-audio", 4, "scenarios.bad_audio"),
    Scenario("clock", 1, "scenarios.clock_jumps"),
    Scenario("planted-defect", 1, "scenarios.planted_defect"),
    Scenario("two-starts", 2, "scenarios.two_starts"),
    Scenario("workers", 2, "several.workers"),
    Scenario("jobs", 1, "several.jobs"),
)


class Settings(NamedTuple):
    """The settings of a test."""

    seed: int
    folder: Path
    scenarios: Sequence[str]
    minutes: float  # after the undisturbed runs, no case begins later
    cases: int  # number of cases; 0 is no limit
    repeat: int | None  # the number of the only case, if there is one
    jobs: int  # cases at a time


def draw(seed: int, number: int) -> tuple[Scenario, random.Random]:
    """Return the scenario of a case, and the random numbers from which it chooses all else."""
    source = random.Random(f"{seed}/{number}")
    return source.choices(SCENARIOS, [scenario.weight for scenario in SCENARIOS])[0], source
