"""YAML and flags → Config, and Config → YAML.

A file is composed into nodes, which have line numbers, and never constructed into objects. Its only
valid form is a mapping of sections, of settings, of plain values or flat lists. Values are
validated once, after flags have replaced values of the file.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ValidationError

from myxtts.config.checks import (
    check_settings,
    inactive_setting_error,
    inactive_settings,
    turns_off,
)
from myxtts.config.flags import SECTIONS, SETTINGS, Setting, in_section, marked, values_of
from myxtts.config.names import advice_on_key, advice_on_value, former_names, join_names, nearest
from myxtts.config.schema import NAMES_GPUS, Config
from myxtts.errors import ConfigError

SHOWN_CHARACTERS = 60
"""Length of a value in a message."""
SHIPPED = Path("configs")
RUN_CONFIG = "config.yaml"
"""Name of the file in which a run records its settings."""
DEFAULTS = "defaults"
"""A key beside the sections: the files that a file builds on."""

_TAG = "tag:yaml.org,2002:"
_SCALARS: dict[str, Callable[[str], Any]] = {
    _TAG + "null": lambda text: None,
    _TAG + "bool": lambda text: {"true": True, "false": False}[text.lower()],
    _TAG + "int": int,
    _TAG + "float": float,
    _TAG + "str": str,
}
_DIGITS = "[0-9](?:_?[0-9])*"
_EXPONENT = "[eE][-+]?[0-9]+"
_PLAIN = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": f"[-+]?{_DIGITS}",
    "float": (
        rf"[-+]?(?:{_DIGITS}\.(?:{_DIGITS})?(?:{_EXPONENT})?|\.{_DIGITS}(?:{_EXPONENT})?"
        rf"|{_DIGITS}{_EXPONENT})"
    ),
}
"""Pattern of a plain scalar of each type."""


class _Loader(yaml.SafeLoader):
    """Plain scalars as in YAML 1.2: 1e-4 is a number; no, 1:30, 2026-01-31 and .nan are text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list]] = {}


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or `_Loader` would read as another type."""

    def represent_str(self, text: str) -> yaml.Node:
        # In other styles PyYAML turns U+0085 into a line break.
        style = None if text.isprintable() else '"'
        return self.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)

for _name, _pattern in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})\\Z"), None)
    _Dumper.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})\\Z"), None)


@dataclass(frozen=True)
class _Given:
    """A value from the user, and its place for messages."""

    value: Any
    where: str


def load(
    path: Path | None = None, overrides: Mapping[str, Any] | None = None, own: Collection[str] = ()
) -> Config:
    """Return the defaults of the schema, overridden by a YAML file, overridden by flags.

    Args:
        overrides: values of flags by the name of the setting; lists are tuples.
        own: settings that the caller sets later, so that it is not known yet whether others need
            them.

    Raises:
        ConfigError: names the file and line or the flag, what was found and what is allowed.
    """
    given = _read(path) if path else {}
    flags = {name: _Given(value, SETTINGS[name].flag) for name, value in (overrides or {}).items()}
    is_of_run = path is not None and _is_config_of_run(path)
    if is_of_run:
        given = _without_replaced_gpus(given, flags)
    merged = given | flags | _without_default_length(given, flags)
    for value in merged.values():
        _check_text(value)
    config = _validated(merged)
    inactive = set(_inactive(config, given, flags, own, is_of_run))
    if inactive:
        config = _validated({name: value for name, value in merged.items() if name not in inactive})
    check_settings(config)
    return config


def dump(config: Config) -> str:
    """Return all settings as YAML; `load` returns an equal Config."""
    return yaml.dump(
        config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True
    )


def format_value(value: Any) -> str:
    """Return a value for a message: escaped, and cut."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def check_storable(text: str, where: str) -> None:
    """Raise ConfigError for a text that the JSON files of a run cannot hold.

    The name of a file that is not UTF-8 has surrogates in Python.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{where} is {ascii(text)[:SHOWN_CHARACTERS]}, which has bytes that are not UTF-8."
            " Rename the file or the folder, or give a link to it."
        ) from None


def config_of_run(run: str, runs_dir: str) -> Path | None:
    """Return the settings that a run has recorded; None if it has none."""
    file = Path(runs_dir, run, RUN_CONFIG)
    return file if file.is_file() else None


def has_similar_run(run: str, runs_dir: str) -> bool:
    """Whether there is no folder of a run, but a run with a similar name."""
    return not Path(runs_dir, run).exists() and nearest(run, _runs(runs_dir)) is not None


def missing_run_error(run: str, runs_dir: str) -> str:
    """Return why a run cannot be resumed by its name alone, and what to give instead."""
    runs = _runs(runs_dir)
    near = nearest(run, runs)
    hint = f"Did you mean --run {near}? " if near else ""
    return (
        "--resume was given without the settings of a run, but there is no"
        f" {Path(runs_dir, run, RUN_CONFIG)} to read. {hint}Runs in {runs_dir}:"
        f" {join_names(runs) or 'none'}. Name a run with --run and --runs-dir, or give the settings"
        " of a new one."
    )


def _runs(runs_dir: str) -> list[str]:
    return sorted(file.parent.name for file in Path(runs_dir).glob(f"*/{RUN_CONFIG}"))


def _is_config_of_run(path: Path) -> bool:
    """Whether a configuration is that of a run, which the run has written itself."""
    traces = (path.parent / name for name in (".lock", "checkpoints"))
    return path.name == RUN_CONFIG and any(trace.exists() for trace in traces)


def _without_replaced_gpus(
    given: Mapping[str, _Given], flags: Mapping[str, _Given]
) -> dict[str, _Given]:
    """Return the settings of a run without its GPUs if a flag names others.

    The memory limit of the data GPU goes with it, unless there is another data GPU.
    """
    gpus = {"placement", *(setting.name for setting in marked(NAMES_GPUS))}
    if not gpus.intersection(flags):
        return dict(given)
    data_gpus = [flags[name].value for name in ("data_gpu", "data_gpus") if name in flags]
    if all(value in (None, ()) for value in data_gpus):
        gpus.add("data_gpu_memory")
    return {name: value for name, value in given.items() if name not in gpus}


def _without_default_length(
    given: Mapping[str, _Given], flags: Mapping[str, _Given]
) -> dict[str, _Given]:
    """Return `max_steps` 0 if `epochs` is set and `max_steps` is not: a default ends no run.

    A flag --epochs also replaces the default that a file has, as the config.yaml of every run does.
    """
    epochs = flags.get("epochs") or given.get("epochs")
    if epochs is None or not epochs.value or "max_steps" in flags:
        return {}
    if "max_steps" in given:
        is_default = given["max_steps"].value == SETTINGS["max_steps"].default
        if not is_default or "epochs" not in flags:
            return {}
    return {"max_steps": _Given(0, epochs.where)}


def _inactive(
    config: Config,
    given: Mapping[str, _Given],
    flags: Mapping[str, _Given],
    own: Collection[str],
    is_of_run: bool,
) -> Iterator[str]:
    """Yield the settings of files that have no effect: which a flag has replaced, or which an old
    run has recorded.

    Raises:
        ConfigError: the user gave a setting that has no effect.
    """
    values = values_of(config)
    of_files = {
        name: given[name].value if name in given else setting.default
        for name, setting in SETTINGS.items()
    }
    for setting in inactive_settings(values):
        name = setting.name
        value = values[name]
        if name in own or setting.needs.names.intersection(own):
            continue
        if name in flags:
            is_mistake = not turns_off(setting, value)
        else:
            # A file is wrong on its own account only if its values contradict each other.
            is_wrong_alone = not setting.needs.is_met(of_files)
            is_mistake = value != setting.default and not is_of_run and is_wrong_alone
        if is_mistake:
            where = (flags if name in flags else given)[name].where
            raise ConfigError(inactive_setting_error(setting, where, format_value(value), values))
        if name in given and name not in flags:
            yield name


def _check_text(given: _Given) -> None:
    """Raise ConfigError for a text, or one of several, that is empty or begins with ~."""
    texts = given.value if isinstance(given.value, (list, tuple)) else [given.value]
    for text in texts:
        if not isinstance(text, str):
            continue
        if text == "":
            raise ConfigError(f"{given.where} is an empty text. Leave it out, or give a value.")
        if text == "~" or text.startswith("~/"):
            raise ConfigError(
                f"{given.where} is {format_value(text)}, but only a shell expands ~, and only at"
                f" the start of a word. Write {os.path.expanduser(text)}."
            )
        check_storable(text, given.where)


def _read(path: Path, through: tuple[Path, ...] = ()) -> dict[str, _Given]:
    """Return what a file and the files that it lists set, by name; later files replace earlier.

    Args:
        through: the files that list this one, from the first.
    """
    bases, settings = _parsed(path, _text(path))
    through = (*through, path)
    given: dict[str, _Given] = {}
    for name, where in bases.items():
        suffix = "" if name.endswith((".yaml", ".yml")) else ".yaml"
        base = path.parent / f"{name}{suffix}"
        if base in through:
            cycle = " → ".join(file.name for file in (*through[through.index(base) :], base))
            raise ConfigError(f"{where}, which makes a cycle: {cycle}. Remove one of them.")
        if not base.is_file():
            raise ConfigError(f"{where}, but there is no file {_missing_base(base, path)}")
        given |= _read(base, through)
    return given | settings


def _missing_base(base: Path, path: Path) -> str:
    """Return the name of a file that `path` lists, with its folder and what to list instead."""
    files = sorted({file.stem for file in base.parent.glob("*.y*ml")} - {path.stem})
    near = nearest(base.stem, files)
    hint = f"Available files: {join_names(files) or 'none'}."
    if near is not None:
        hint = f"Did you mean {near!r}?"
    return f"{base.name!r} in {base.parent}. {hint}"


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: the configuration cannot be read: {_unreadable(path, error)}"
        ) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8. Save as UTF-8."
        ) from None


def _unreadable(path: Path, error: OSError) -> str:
    """Return why a configuration cannot be read, and what to give instead."""
    if isinstance(error, IsADirectoryError):
        return f"it is a folder. {_available(path / RUN_CONFIG, path)}"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"there is no such file. {_available(path, path.parent)}"
    if isinstance(error, PermissionError):
        return f"{error.strerror}. Fix the permissions of the file or of its folder."
    return f"{error.strerror}. Give another file."


def _available(path: Path, folder: Path) -> str:
    """Return the configurations of a folder, or those of configs/ if it has none, and the nearest
    to a path.
    """
    files = {file.stem: file for file in sorted(folder.glob("*.y*ml"))}
    if not files:
        folder = SHIPPED
        files = {file.stem: file for file in sorted(folder.glob("*.y*ml"))}
    if not files:
        return f"Paths are relative to {Path.cwd()}."
    near = nearest(path.stem.strip(), files)
    hint = f"Did you mean {files[near]}? " if near else ""
    return f"{hint}Files in {folder}: {join_names([file.name for file in files.values()])}."


def _parsed(path: Path, text: str) -> tuple[dict[str, str], dict[str, _Given]]:
    """Return the places of the files that one file lists, by name, and the settings that it sets
    itself.
    """
    bases: dict[str, str] = {}
    given: dict[str, _Given] = {}
    unknown: list[str] = []
    for section, section_line, section_node in _entries(_composed(path, text), path, 1, "the file"):
        if section == DEFAULTS:
            bases = _bases(section_node, path, section_line)
            continue
        if section not in SECTIONS:
            unknown.append(f"{path}, line {section_line}: {_unknown(section, None)}")
            continue
        name_of_section = f"the section {section!r}"
        for name, line, node in _entries(section_node, path, section_line, name_of_section):
            if name not in SETTINGS or SETTINGS[name].section != section:
                unknown.append(f"{path}, line {line}: {_unknown(name, section)}")
                continue
            where = f"{path}, line {line}: {name}"
            given[name] = _Given(_value(node, where, SETTINGS[name].allowed), where)
    if unknown:
        raise ConfigError("\n".join(unknown))
    return bases, given


def _bases(node: yaml.Node, path: Path, line: int) -> dict[str, str]:
    """Return the place of each listed file by its name, in the order of the list."""
    allowed = "a list of files in the same folder, such as [default, dual_gpu]"
    names = _value(node, f"{path}, line {line}: {DEFAULTS}", allowed)
    if names is None:
        return {}
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(f"{path}, line {line}: {DEFAULTS} is a plain value, not {allowed}.")
    places = {}
    for item in node.value:
        place = f"{path}, line {item.start_mark.line + 1}"
        places[item.value] = f"{place}: {DEFAULTS} names {item.value!r}"
    return places


def _composed(path: Path, text: str) -> yaml.Node | None:
    """Return the node tree of the file's only document; None for an empty file."""
    try:
        return _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(
            f"{path}, line {error.problem_mark.line + 1}: broken YAML: {problem}."
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{path}, line {line}: YAML forbids U+{error.character:04X}. Remove it."
        ) from None
    except (ValueError, OverflowError) as error:
        # From chr(): an escape such as "\\U00110000" is no character.
        raise ConfigError(f"{path}: broken YAML: {error}. Correct the escape.") from None


def _entries(
    node: yaml.Node | None, path: Path, line: int, name: str
) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield (key, its line, value) of the mapping `name`, which starts at `line`; nothing if it is
    empty.
    """
    if node is None or node.tag == _TAG + "null":
        return
    if not isinstance(node, yaml.MappingNode) or node.tag != _TAG + "map":
        raise ConfigError(
            f"{path}, line {line}: {name} must hold lines of the form 'name: value', not"
            f" {_kind(node)}."
        )
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(
                f"{path}, line {line}: a name must precede the colon, not {_kind(key)}."
            )
        if key.value in lines:
            given = f"{format_value(key.value)} was already given in line {lines[key.value]}"
            raise ConfigError(f"{path}, line {line}: {given}. Keep one of them.")
        lines[key.value] = line
        yield key.value, line, value


def _value(node: yaml.Node, where: str, allowed: str) -> Any:
    """Return a plain value or a tuple of plain values."""
    if isinstance(node, yaml.SequenceNode):
        return tuple(_scalar(item, where, allowed) for item in node.value)
    return _scalar(node, where, allowed)


def _scalar(node: yaml.Node, where: str, allowed: str) -> Any:
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
        raise ConfigError(f"{where} holds {_kind(node)}, but must be {allowed}.")
    try:
        return _SCALARS[node.tag](node.value)
    except (ValueError, KeyError):
        # An explicit tag on something else, such as !!int x, is text, which validation rejects.
        return node.value


def _kind(node: yaml.Node) -> str:
    """Describe a node of an unexpected kind."""
    kinds = {_TAG + "map": "a mapping", _TAG + "seq": "a list"}
    if node.tag in _SCALARS:
        return "a plain value"
    return kinds.get(node.tag, f"a value tagged {node.tag}")


def _unknown(name: str, section: str | None) -> str:
    """Return the message for an unknown name in `section` (None: the top level)."""
    if name in SETTINGS:
        return f"{name!r} belongs under '{SETTINGS[name].section}:'."
    if section is None and name in former_names()["sections"]:
        return f"{name!r} was renamed to {former_names()['sections'][name]!r}."
    advice = advice_on_key(name)
    if advice is not None:
        return f"{name!r} is unknown{advice}"
    if section is None:
        here = [DEFAULTS, *SECTIONS]
    else:
        here = [setting.name for setting in in_section(section)]
    near = nearest(name, here)
    if near is not None:
        return f"{format_value(name)} is unknown. Did you mean {near!r}?"
    near = nearest(name, SETTINGS)
    if near is not None:
        under = SETTINGS[near].section
        return f"{format_value(name)} is unknown. Did you mean {near!r} under '{under}:'?"
    return f"{format_value(name)} is unknown. Known names: {', '.join(here)}."


def _validated(given: Mapping[str, _Given]) -> Config:
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, setting in given.items():
        sections[SETTINGS[name].section][name] = setting.value
    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        invalid = {detail["loc"][1] for detail in error.errors()}
        lines = [_invalid(SETTINGS[name], given[name]) for name in given if name in invalid]
        raise ConfigError("\n".join(lines)) from None


def _invalid(setting: Setting, given: _Given) -> str:
    """Return the message about a value that is not allowed, with what to give instead."""
    message = f"{given.where} is {format_value(given.value)}, but must be {setting.allowed}."
    if setting.kind is str and isinstance(given.value, bool | int | float):
        return f"{message} Put it in quotes."
    values = given.value if isinstance(given.value, tuple) else (given.value,)
    for value in values:
        advice = advice_on_value(setting, value)
        if advice is not None:
            return f"{message} {advice}"
        near = nearest(str(value), setting.choices)
        if near is not None and near != str(value):
            return f"{message} Did you mean {near}?"
    return message
