"""On which other settings it depends whether a setting has an effect; part of its declaration in
the schema.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Any


class Presence(Enum):
    """What a setting must be, where its value does not matter. Off is null, false, 0, and an empty
    list.
    """

    SET = "with"
    UNSET = "without"


SET = Presence.SET
UNSET = Presence.UNSET
Condition = Presence | tuple[Any, ...]
"""A tuple has the values of which one is needed."""


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Needs:
    """Conditions on other settings, of which one must hold as a whole. `a & b` needs both, `a | b`
    one of them.

    Attributes:
        alternatives: each has a condition by the name of a setting.
    """

    alternatives: tuple[Mapping[str, Condition], ...] = ({},)

    def __and__(self, other: "Needs") -> "Needs":
        return Needs(
            tuple(_joined(a, b) for a, b in product(self.alternatives, other.alternatives))
        )

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(self.alternatives + other.alternatives)

    @property
    def names(self) -> set[str]:
        """The settings that the conditions are about; none if a setting always has an effect."""
        return set().union(*self.alternatives)

    @property
    def text(self) -> str:
        """The conditions in words, to follow `only`: `with --task tts and without --val-data`."""
        texts = (
            " and ".join(map(_text, conditions, conditions.values()))
            for conditions in self.alternatives
        )
        return ", or ".join(texts)

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Whether the conditions hold for the values of all settings, by name."""
        return any(not set(_unmet(conditions, values)) for conditions in self.alternatives)

    def unmet(self, values: Mapping[str, Any]) -> list[str]:
        """Return the settings whose values are in the way, in the alternative with the fewest of
        them.
        """
        return min((list(_unmet(conditions, values)) for conditions in self.alternatives), key=len)


def needs(**conditions: Any) -> Needs:
    """Return conditions that must hold together: `needs(task=("tts", "asr"), encoder="gru",
    teacher=SET)`.
    """
    for name, condition in conditions.items():
        if not isinstance(condition, Presence | tuple):
            conditions[name] = (condition,)
    return Needs((conditions,))


def _joined(some: Mapping[str, Condition], others: Mapping[str, Condition]) -> dict[str, Condition]:
    joined = {**some, **others}
    for name in some.keys() & others.keys():
        one = some[name]
        other = others[name]
        if isinstance(one, tuple) and isinstance(other, tuple):
            joined[name] = tuple(value for value in one if value in other)
    return joined


def _text(name: str, condition: Condition) -> str:
    if isinstance(condition, tuple):
        return f"with {flag_of(name)} {' or '.join(map(str, condition))}"
    return f"{condition.value} {flag_of(name)}"


def _unmet(conditions: Mapping[str, Condition], values: Mapping[str, Any]) -> Iterator[str]:
    for name, condition in conditions.items():
        value = values[name]
        if isinstance(condition, tuple):
            is_met = value in condition
        else:
            is_met = bool(value) is (condition is SET)
        if not is_met:
            yield name
