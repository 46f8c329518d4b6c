"""What to use instead of a name that is not ours: by its meaning in other programs, or else by its
spelling.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from myxtts.config.foreign_names import SECTIONS as FOREIGN_SECTIONS
from myxtts.config.foreign_names import SETTINGS as FOREIGN_SETTINGS
from myxtts.config.foreign_names import VALUES as FOREIGN_VALUES
from myxtts.config.foreign_names import Names
from myxtts.config.schema import Config
from myxtts.config.scripts import SCRIPTS, command_line
from myxtts.config.settings import SETTINGS, Setting

_FIELD = re.compile(r"\{([^}]*)\}")
_GPU = re.compile(r"/?(?:device:)?(?:cuda|gpu)[: ]?([0-9]{1,4})")  # cuda:0, /GPU:0
_NUMBER = re.compile(r"([-+]?[0-9][0-9.,_]{0,20}(?:e[-+]?[0-9]{1,2})?) ?([a-z%]*)")
_UNITS = {"": 1, "k": 1e3, "m": 1e6, "%": 0.01, "s": 1, "sec": 1, "ms": 1e-3, "min": 60}
_MIB_UNITS = {"": 1, "m": 1, "mb": 1, "mib": 1, "g": 1024, "gb": 1024, "gib": 1024}


def by_name(table: Names) -> dict[str, str]:
    """Return the text of each name of a table."""
    return {name: text for names, text in table for name in names.split()}


def fields(text: str) -> list[str]:
    """Return the fields of a text of a table, without braces and values: "batch_size", "launch
    --workers", "data:".
    """
    return [field.partition("=")[0] for field in _FIELD.findall(text)]


def foreign_flag(name: str, flags: Collection[str], own: Names = ()) -> str | None:
    """Return what follows "… is not a flag" for a flag of another program, or for a name that is
    spelled like one.

    Args:
        name: with _ for -, without leading hyphens.
        flags: of the command.
        own: names of flags of the command alone.
    """
    texts = {
        name: text for name, text in by_name(FOREIGN_SETTINGS).items() if _is_usable(text, flags)
    } | by_name(own)
    text = texts.get(name) or texts.get(
        _closer(name, texts, [flag.strip("-").replace("-", "_") for flag in flags])
    )
    return text and _sentence(text, lambda field: _shown_as_flag(field, flags))


def foreign_key(name: str, ours: Iterable[str]) -> str | None:
    """Return what follows "… is unknown" for a YAML key of another program; `ours` are the names
    that we have.
    """
    texts = by_name(FOREIGN_SETTINGS)
    text = texts.get(name) or texts.get(_closer(name, texts, ours))
    return text and _sentence(text, _shown_as_key)


def foreign_section(name: str) -> str | None:
    """Return what follows "… is unknown" for a section of a YAML file of another program."""
    text = by_name(FOREIGN_SECTIONS).get(name)
    return text and _sentence(text, _shown_as_key)


def intended_value(setting: Setting, value: Any) -> Any | None:
    """Return the allowed value that one of another form means: 8192 for 8G of memory, 0 for cuda:0,
    (0, 1) for 0,1.
    """
    if setting.many:
        words = [
            word for item in _items(value) for word in re.split(r"[\s,\[\]]+", str(item)) if word
        ]
        meant: Any = tuple(_intended_item(setting, word) for word in words) or None
    else:
        meant = _intended_item(setting, str(value).strip())
    return meant if _is_allowed(setting, meant) else None


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, tuple) else (value,)


def _intended_item(setting: Setting, text: str) -> Any:
    word = text.lower()
    if setting.choices:
        meant = by_name(FOREIGN_VALUES.get(setting.name, ())).get(word)
        choice = meant or next(iter(difflib.get_close_matches(word, setting.choices, n=1)), None)
        return int(choice) if choice and setting.kind is int else choice
    if setting.kind is bool:
        return {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}.get(word)
    if setting.kind is str:  # only a name is restricted
        return re.sub(r"[^A-Za-z0-9._-]+", "_", PurePath(text).name)
    gpu = _GPU.fullmatch(word) if setting.name.startswith(("data_gpu", "model_gpu")) else None
    return _intended_number(setting, gpu[1] if gpu else word)


def _intended_number(setting: Setting, word: str) -> int | float | None:
    """Return the number that a word means: 100000 for 1e5, 100k or 100,000, and 0.05 for 5% or
    0,05.
    """
    match = _NUMBER.fullmatch(word)
    units = _MIB_UNITS if setting.name.endswith("_memory") else _UNITS
    if match is None or match[2] not in units:
        return None
    digits = (
        re.sub(r",(?=[0-9]{3}\b)", "", match[1])
        if setting.kind is int
        else match[1].replace(",", ".")
    )
    try:
        number = float(digits) * units[match[2]]
    except ValueError:
        return None
    return int(number) if setting.kind is int and number == int(number) else number


def _is_allowed(setting: Setting, value: Any) -> bool:
    try:
        Config.model_validate({setting.section: {setting.name: value}})
    except ValidationError:
        return False
    return value is not None


def _is_usable(text: str, flags: Collection[str]) -> bool:
    """Return whether a command has all our settings that a text names."""
    return all(SETTINGS[field].flag in flags for field in fields(text) if field in SETTINGS)


def _closer(name: str, names: Collection[str], ours: Iterable[str]) -> str:
    """Return the name of another program that is spelled more like `name` than any of ours, or an
    empty text.
    """
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
