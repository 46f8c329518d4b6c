"""The schema as a flat table, for flags, error messages and the documentation."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from myxtts.config.needs import Needs, flag_of
from myxtts.config.schema import Config, Section

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
    """One setting. `kind` is the type of the value, or of each item where `many` values make a
    list.
    """

    section: str
    name: str
    kind: type
    many: bool
    choices: tuple[str, ...]
    nullable: bool
    allowed: str  # in words, to follow "must be"
    default: Any
    description: str
    needs: Needs

    @property
    def flag(self) -> str:
        return flag_of(self.name)

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
    if "anyOf" in form:  # first the form of the value, then words that stand for one: null, auto
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
        return (
            f"a list, each item {_allowed(item)}"
            if "enum" in item
            else f"a list of {_NOUNS[item['type']]}s{_bounds(item)}"
        )
    return f"a {_NOUNS[form['type']]}{_bounds(form)}"


def _setting(section: str, name: str, form: dict[str, Any], default: Any, needs: Needs) -> Setting:
    value = form["anyOf"][0] if "anyOf" in form else form
    item = value.get("items", value)
    return Setting(
        section=section,
        name=name,
        kind=_KINDS[item["type"]],
        many=value["type"] == "array",
        choices=tuple(map(str, item.get("enum", ()))),
        nullable={"type": "null"} in form.get("anyOf", ()),
        allowed=_allowed(form),
        default=default,
        description=" ".join(form["description"].split()),
        needs=needs,
    )


def _needs(schema: type[Section], name: str) -> Needs:
    """Return what a setting and its section need."""
    of_setting = (part for part in schema.model_fields[name].metadata if isinstance(part, Needs))
    return reduce(and_, of_setting, schema.all_need)


_SCHEMAS: dict[str, type[Section]] = {name: type(section) for name, section in Config()}

SECTIONS: dict[str, str] = {
    name: " ".join((schema.__doc__ or "").split()) for name, schema in _SCHEMAS.items()
}
"""Description of each section, by its name."""

SETTINGS: dict[str, Setting] = {
    name: _setting(section, name, form, schema.model_fields[name].default, _needs(schema, name))
    for section, schema in _SCHEMAS.items()
    for name, form in schema.model_json_schema()["properties"].items()
}
"""Every setting by its name, in the order of the schema."""


def in_section(section: str) -> list[Setting]:
    """Return the settings of one section, in the order of the schema."""
    return [setting for setting in SETTINGS.values() if setting.section == section]


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the word of `words` that is closest to `word`, or None if none is close."""
    return next(iter(difflib.get_close_matches(word.lower(), words, n=1)), None)
