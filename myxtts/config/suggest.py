"""What to use instead of a name that is not ours: by its meaning in other programs, or else by its spelling."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable

from myxtts.config.foreign_names import SECTIONS as FOREIGN_SECTIONS
from myxtts.config.foreign_names import SETTINGS as FOREIGN_SETTINGS
from myxtts.config.foreign_names import VALUES as FOREIGN_VALUES
from myxtts.config.foreign_names import Names
from myxtts.config.scripts import SCRIPTS, command_line
from myxtts.config.settings import SETTINGS

_FIELD = re.compile(r"\{([^}]*)\}")


def by_name(table: Names) -> dict[str, str]:
    """Return the text of each name of a table."""
    return {name: text for names, text in table for name in names.split()}


def fields(text: str) -> list[str]:
    """Return the fields of a text of a table, without braces and values: "batch_size", "launch --workers", "data:"."""
    return [field.partition("=")[0] for field in _FIELD.findall(text)]


def foreign_flag(name: str, flags: Collection[str], own: Names = ()) -> str | None:
    """Return what follows "… is not a flag" for a flag of another program, or for a name that is spelled like one.

    Args:
        name: with _ for -, without leading hyphens.
        flags: of the command.
        own: names of flags of the command alone.
    """
    texts = {name: text for name, text in by_name(FOREIGN_SETTINGS).items() if _is_usable(text, flags)} | by_name(own)
    text = texts.get(name) or texts.get(_closer(name, texts, [flag.strip("-").replace("-", "_") for flag in flags]))
    return text and _sentence(text, lambda field: _shown_as_flag(field, flags))


def foreign_key(name: str, ours: Iterable[str]) -> str | None:
    """Return what follows "… is unknown" for a YAML key of another program; `ours` are the names that we have."""
    texts = by_name(FOREIGN_SETTINGS)
    text = texts.get(name) or texts.get(_closer(name, texts, ours))
    return text and _sentence(text, _shown_as_key)


def foreign_section(name: str) -> str | None:
    """Return what follows "… is unknown" for a section of a YAML file of another program."""
    text = by_name(FOREIGN_SECTIONS).get(name)
    return text and _sentence(text, _shown_as_key)


def intended_value(setting: str, value: str) -> str | None:
    """Return the choice of a setting that a value means."""
    text = value.strip().lower()
    meant = by_name(FOREIGN_VALUES.get(setting, ())).get(text)
    return meant or next(iter(difflib.get_close_matches(text, SETTINGS[setting].choices, n=1)), None)


def _is_usable(text: str, flags: Collection[str]) -> bool:
    """Return whether a command has all our settings that a text names."""
    return all(SETTINGS[field].flag in flags for field in fields(text) if field in SETTINGS)


def _closer(name: str, names: Collection[str], ours: Iterable[str]) -> str:
    """Return the name of another program that is spelled more like `name` than any of ours, or an empty text."""
    ours = list(ours)
    closest = difflib.get_close_matches(name, [*ours, *names], n=1, cutoff=0.85)
    return closest[0] if closest and closest[0] not in ours else ""


def _sentence(text: str, show: Callable[[str], str]) -> str:
    shown = _FIELD.sub(lambda match: show(match[1]), text)
    return f". Use {shown}." if text.startswith("{") else f": {shown}."


def _shown_as_flag(field: str, flags: Collection[str]) -> str:
    name, _, value = field.partition("=")
    command, _, flag = name.rpartition(" ")
    if name in SETTINGS:
        return f"{SETTINGS[name].flag} {value}".strip()
    if flag in SCRIPTS:
        return f"`{command_line(flag)}`"
    shown = f"{flag} {value}".strip()
    return shown if flag in flags else f"`{command_line(command or 'train')} {shown}`"


def _shown_as_key(field: str) -> str:
    name, _, value = field.partition("=")
    if name.endswith(":"):
        return f"the section {name.removesuffix(':')!r}"
    if name not in SETTINGS:
        return _shown_as_flag(field, ())
    setting = SETTINGS[name]
    value = f"[{', '.join(value.split())}]" if setting.many and value else value
    return f"'{name}{': ' if value else ''}{value}' under '{setting.section}:'"
