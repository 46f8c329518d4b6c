"""The schema as a flat table: the flag of each setting, its form in words, and its marks.

Command lines, error messages and the documentation are made from this table. The name of a setting
is unique, so a flag does not name the section.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from myxtts.config.needs import Needs, flag_of
from myxtts.config.schema import Config, Mark, Section

_KINDS = {"integer": int, "number": float, "boolean": bool, "string": str}
_NOUNS = {"integer": "whole number", "number": "number"}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


@dataclass(frozen=True)
class Setting:
    """One setting of the schema.

    Attributes:
        kind: type of the value, or of each item where `many` values make a list.
        allowed: the allowed values in words, to follow "must be".
    """

    section: str
    name: str
    kind: type
    many: bool
    choices: tuple[str, ...]
    nullable: bool
    allowed: str
    default: Any
    description: str
    needs: Needs
    marks: frozenset[Mark]

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def off(self) -> Any:
        """The value that turns the setting off: null, false or 0."""
        return None if self.nullable else self.kind(0)

    def of(self, config: Config) -> Any:
        """Return the value in a configuration."""
        return getattr(getattr(config, self.section), self.name)

    @property
    def meaning(self) -> str:
        """The description, with what the setting needs to have an effect."""
        return (
            f"{self.description} Only {self.needs.text}." if self.needs.names else self.description
        )

    @property
    def default_text(self) -> str:
        """The default in YAML."""
        return self.default if isinstance(self.default, str) else json.dumps(self.default)


def _bounds(form: dict[str, Any]) -> str:
    if "minimum" in form and "maximum" in form:
        return f" from {form['minimum']:.15g} to {form['maximum']:.15g}"
    words = [f" {word} {form[key]:.15g}" for key, word in _BOUNDS.items() if key in form]
    return " and".join(words)


def _allowed(form: dict[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    if "anyOf" in form:
        # The form of the value comes first, then words that stand for one: null, auto.
        return ", or ".join(map(_allowed, form["anyOf"]))
    if "const" in form:
        return form["const"]
    if "enum" in form:
        return "one of " + ", ".join(map(str, form["enum"]))
    if form["type"] == "null":
        return "null"
    if form["type"] == "boolean":
        return "true or false"
    if form["type"] == "string":
        return f"text that matches {form['pattern']}" if "pattern" in form else "text"
    if form["type"] == "array":
        item = form["items"]
        if "enum" in item:
            return f"a list, each item {_allowed(item)}"
        return f"a list of {_NOUNS[item['type']]}s{_bounds(item)}"
    return f"a {_NOUNS[form['type']]}{_bounds(form)}"


def _setting(section: str, name: str, form: dict[str, Any], schema: type[Section]) -> Setting:
    field = schema.model_fields[name]
    value = form["anyOf"][0] if "anyOf" in form else form
    item = value.get("items", value)
    own_needs = (part for part in field.metadata if isinstance(part, Needs))
    own_marks = (part for part in field.metadata if isinstance(part, Mark))
    return Setting(
        section=section,
        name=name,
        kind=_KINDS[item["type"]],
        many=value["type"] == "array",
        choices=tuple(map(str, item.get("enum", ()))),
        nullable={"type": "null"} in form.get("anyOf", ()),
        allowed=_allowed(form),
        default=field.default,
        description=" ".join(form["description"].split()),
        needs=reduce(and_, own_needs, schema.all_need),
        marks=frozenset([*own_marks, *schema.all_marks]),
    )


# Pydantic's JSON schema has the bounds and choices of a type in one form, whether they come from a
# Literal, a Field or an alias of both.
def _settings() -> Iterator[Setting]:
    for section, schema in _SCHEMAS.items():
        for name, form in schema.model_json_schema()["properties"].items():
            yield _setting(section, name, form, schema)


_SCHEMAS: dict[str, type[Section]] = {name: type(section) for name, section in Config()}

SECTIONS: dict[str, str] = {
    name: " ".join((schema.__doc__ or "").split()) for name, schema in _SCHEMAS.items()
}
"""Description of each section, by its name."""

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _settings()}
"""Every setting by its name, in the order of the schema."""


def in_section(section: str) -> list[Setting]:
    """Return the settings of one section, in the order of the schema."""
    return [setting for setting in SETTINGS.values() if setting.section == section]


def marked(mark: Mark) -> list[Setting]:
    """Return the settings with a mark, in the order of the schema."""
    return [setting for setting in SETTINGS.values() if mark in setting.marks]


def values_of(config: Config) -> dict[str, Any]:
    """Return the value of each setting by its name."""
    return {name: setting.of(config) for name, setting in SETTINGS.items()}


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the settings with other values of some, by name; nothing is checked."""
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        changes.setdefault(SETTINGS[name].section, {})[name] = value
    sections = {
        section: getattr(config, section).model_copy(update=change)
        for section, change in changes.items()
    }
    return config.model_copy(update=sections)


def turned_off(config: Config, mark: Mark) -> Config:
    """Return the settings with those of a mark turned off, such as OFF_IN_EVALUATION."""
    return with_values(config, {setting.name: setting.off for setting in marked(mark)})
