"""The schema as a flat table, from which command lines, messages and the documentation are made.

At import, pydantic's JSON schema of each section is read, and each of its properties becomes a
Setting. So a setting is written once, in `config.schema`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

from myxtts.base.files import table_beside
from myxtts.config.schema import Config, Mark, Needs, Section, flag_of

_KINDS = {"integer": int, "number": float, "boolean": bool, "string": str}
_NOUNS = {"integer": "whole number", "number": "number"}
_BOUNDS = {"minimum": "of at least", "exclusiveMinimum": "above"}
_BOUNDS |= {"maximum": "at most", "exclusiveMaximum": "below"}

SCRIPTS: dict[str, str] = table_beside(__file__, "scripts.yaml")
"""Scripts of a checkout, by the name of their command."""


@dataclass(frozen=True)
class Setting:
    """One setting, as the schema has it.

    If `many` values make a list, `kind` is the type of an item. `allowed` has the values in words,
    and `word` is a text that is allowed instead of a list or a number.
    """

    section: str
    name: str
    kind: type
    many: bool
    choices: tuple[str, ...]
    nullable: bool
    word: str
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
        """The value that turns the setting off: null, (), false or 0."""
        if self.many:
            return ()
        return None if self.nullable else self.kind(0)

    def of(self, config: Config) -> Any:
        return getattr(getattr(config, self.section), self.name)

    @property
    def meaning(self) -> str:
        if not self.needs.names:
            return self.description
        return f"{self.description} Only {self.needs.text}."

    @property
    def default_text(self) -> str:
        return self.default if isinstance(self.default, str) else json.dumps(self.default)


def _allowed(form: dict[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    if "anyOf" in form:
        return ", or ".join(map(_allowed, form["anyOf"]))
    if "const" in form:
        return form["const"]
    if "enum" in form:
        return "one of " + ", ".join(map(str, form["enum"]))
    if form["type"] == "array":
        item = form["items"]
        if "enum" in item:
            return f"a list, each item {_allowed(item)}"
        return f"a list of {_NOUNS[item['type']]}s{_bounds(item)}"
    if form["type"] in _NOUNS:
        return f"a {_NOUNS[form['type']]}{_bounds(form)}"
    text = "text"
    if "pattern" in form:
        text += f" that matches {form['pattern']}"
    return {"null": "null", "boolean": "true or false", "string": text}[form["type"]]


def _bounds(form: dict[str, Any]) -> str:
    if "minimum" in form and "maximum" in form:
        return f" from {form['minimum']:.15g} to {form['maximum']:.15g}"
    return " and".join(f" {word} {form[key]:.15g}" for key, word in _BOUNDS.items() if key in form)


# Pydantic's JSON schema has the bounds and choices of a type in one form, whether they come from a
# Literal, a Field or an alias of both.
def _setting(section: str, name: str, form: dict[str, Any], schema: type[Section]) -> Setting:
    field = schema.model_fields[name]
    value = form.get("anyOf", [form])[0]
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
        word=next((each["const"] for each in form.get("anyOf", ()) if "const" in each), ""),
        allowed=_allowed(form),
        default=field.default,
        description=" ".join(form["description"].split()),
        needs=reduce(and_, own_needs, schema.all_need),
        marks=frozenset([*own_marks, *schema.all_marks]),
    )


SECTIONS: dict[str, str] = {}
SETTINGS: dict[str, Setting] = {}

for _section, _value in Config():
    _schema = type(_value)
    SECTIONS[_section] = " ".join((_schema.__doc__ or "").split())
    for _name, _form in _schema.model_json_schema()["properties"].items():
        SETTINGS[_name] = _setting(_section, _name, _form, _schema)


def in_section(section: str) -> list[Setting]:
    return [setting for setting in SETTINGS.values() if setting.section == section]


def marked(mark: Mark) -> list[Setting]:
    return [setting for setting in SETTINGS.values() if mark in setting.marks]


def values_of(config: Config) -> dict[str, Any]:
    """Return the value of each setting by its name."""
    return {name: setting.of(config) for name, setting in SETTINGS.items()}


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the settings with other values of some, by name; nothing is checked."""
    sections = dict(config)
    for name, value in values.items():
        section = SETTINGS[name].section
        sections[section] = sections[section].model_copy(update={name: value})
    return config.model_copy(update=sections)


def turned_off(config: Config, mark: Mark) -> Config:
    """Return the settings, with all settings of a mark turned off, such as OFF_IN_EVALUATION."""
    return with_values(config, {setting.name: setting.off for setting in marked(mark)})


def command_line(command: str) -> str:
    """Return the command line of a command: in a checkout its script or `python -m myxtts NAME`."""
    if not (Path(__file__).parents[2] / SCRIPTS["train"]).is_file():
        return f"myxtts {command}"
    return f"python {SCRIPTS.get(command, f'-m myxtts {command}')}"


def join_names(names: Sequence[str]) -> str:
    """Return the first 16 names for a message, with a mark if there are more."""
    shown = [*names[:16]]
    if len(names) > 16:
        shown.append("…")
    return ", ".join(shown)


def items_of(value: Any) -> Sequence[Any]:
    """Return the items of a list; a single value is one item."""
    return value if isinstance(value, list | tuple) else (value,)
