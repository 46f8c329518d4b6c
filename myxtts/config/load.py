"""YAML and flags → Config, and Config → YAML.

A file is composed into nodes, which have line numbers, and never constructed into objects. Values
are validated once, after flags have replaced values of the file.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml
from pydantic import ValidationError

from myxtts.base.errors import SHOWN_CHARACTERS, ConfigError, format_value
from myxtts.base.members import check_local
from myxtts.config import flags
from myxtts.config.advice import advice_on_file, advice_on_key, nearest, other_names
from myxtts.config.checks import check_settings, inactive_settings
from myxtts.config.flags import SECTIONS, SETTINGS, Setting
from myxtts.config.schema import NAMES_GPUS, Config, flag_of

RUN_CONFIG = "config.yaml"
# Settings that may be URLs.
URLS = ("train_data", "val_data", "init_from")
DEFAULTS = "defaults"  # key of the files that a file builds on
_TAG = "tag:yaml.org,2002:"
_DIGITS = "[0-9](?:_?[0-9])*"
_EXPONENT = "(?:[eE][-+]?[0-9]+)?"
_PLAIN_SCALARS = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": f"[-+]?{_DIGITS}",
    "float": rf"[-+]?(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS}|{_DIGITS}(?=[eE])){_EXPONENT}",
}


class _Mapping(dict[str, Any]):
    """A mapping of a file, with the line of each name."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


class _Loader(yaml.SafeLoader):
    """Plain scalars as in YAML 1.2: 1e-4 is a number; no, 1:30, 2026-01-31 and .nan are text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list]] = {}

    def mapping(self, node: yaml.MappingNode) -> _Mapping:
        mapping = _Mapping()
        for key, value in node.value:
            name, problem = key.value, ""
            if not isinstance(key, yaml.ScalarNode):
                problem = "a name must precede the colon"
            elif name in mapping:
                problem = f"{name!r} was already given in line {mapping.lines[name]}"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            mapping.lines[name] = key.start_mark.line + 1
            mapping[name] = self.construct_object(value, deep=True)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or `_Loader` would read as another type."""

    def represent_str(self, text: str) -> yaml.Node:
        # In other styles PyYAML turns U+0085 into a line break.
        style = None if text.isprintable() else '"'
        return self.represent_scalar(_TAG + "str", text, style=style)


_Loader.add_constructor(_TAG + "map", _Loader.mapping)
# In YAML 1.1, and in PyYAML, 010 is 8.
_Loader.add_constructor(_TAG + "int", lambda _, node: int(node.value))
_Dumper.add_representer(str, _Dumper.represent_str)

# None: the pattern is tried on each scalar, whatever its first character.
for _name, _pattern in _PLAIN_SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})\\Z"), None)
    _Dumper.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})\\Z"), None)


class _Given(NamedTuple):
    """A value from the user, and its place for messages."""

    value: Any
    where: str


_Source = dict[str, _Given]


# Three sources are merged by the name of a setting: the file of --config with the files that it
# builds on, then the flags, then what follows from them. Only then the values are validated, so a
# flag can replace a wrong value of a file. What is inactive with these values gets its default, so
# that two runs that train alike have equal settings. Giving it is an error, unless a flag or an
# older version has made it inactive.
def load(
    path: Path | None = None, overrides: Mapping[str, Any] | None = None, own: Collection[str] = ()
) -> Config:
    """Return the defaults of the schema, overridden by a YAML file, overridden by flags.

    Raises ConfigError, which names the file and line or the flag.

    Args:
        overrides: values of flags by the name of the setting; lists are tuples.
        own: settings that the caller sets later, so that others may need them.
    """
    by_flag = {name: _Given(value, flag_of(name)) for name, value in (overrides or {}).items()}
    # A run's config.yaml holds every setting, so it may name GPUs that a flag now replaces, and
    # settings that were inactive.
    in_file: _Source = {}
    is_of_run = False
    if path:
        in_file = _read(path)
        traces = (path.with_name(name) for name in (".lock", "checkpoints"))
        is_of_run = path.name == RUN_CONFIG and any(map(Path.exists, traces))
    if is_of_run:
        in_file = _without_replaced_gpus(in_file, by_flag)
    merged = in_file | by_flag | _without_default_length(in_file, by_flag)
    for name, given in merged.items():
        _check_text(given)
        if name not in URLS:
            check_local(given.value, given.where)
    config = _validated(merged)
    # Needs are about validated values, so these are validated before and after.
    inactive = set(_inactive(config, in_file, by_flag, own, is_of_run))
    if inactive:
        config = _validated({name: given for name, given in merged.items() if name not in inactive})
    check_settings(config, own)
    return config


def dump(config: Config) -> str:
    """Return all settings as YAML; `load` returns an equal Config."""
    content = config.model_dump(mode="json")
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a file that `load` reads."""
    schema = Config.model_json_schema()
    meaning = "Files next to this one, which it builds on; later ones replace earlier ones."
    names = {"type": "array", "items": {"type": "string"}, "description": meaning}
    schema["properties"][DEFAULTS] = names
    return schema


def check_storable(text: str, where: str) -> None:
    """Raise ConfigError for the name of a file that is not UTF-8, which JSON cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{where} is {ascii(text)[:SHOWN_CHARACTERS]}, which has bytes that are not UTF-8."
            " Rename the file or the folder, or give a link to it."
        ) from None


def config_of_run(run: str, runs_dir: str, may_be_new: bool) -> Path | None:
    """Return the settings that a run has recorded; None for a run that may be new.

    Raises ConfigError if there is no such run, unless it may be new and has a name of its own.
    """
    check_local(runs_dir, "--runs-dir")
    file = Path(runs_dir, run, RUN_CONFIG)
    if file.is_file():
        return file
    near = nearest(run, [each.parent.name for each in file.parents[1].glob(f"*/{RUN_CONFIG}")])
    if may_be_new and (near is None or file.parent.exists()):
        return None
    hint = f"Did you mean --run {near}?" if near else "Name a run with --run and --runs-dir."
    raise ConfigError(
        f"--resume was given without the settings of a run, but there is no {file} to read. {hint}"
    )


def _without_replaced_gpus(in_file: _Source, by_flag: _Source) -> _Source:
    """Return the settings of a run without its GPUs if a flag names others."""
    gpus = {"placement", *(setting.name for setting in flags.marked(NAMES_GPUS))}
    if not gpus.intersection(by_flag):
        return in_file
    # The memory limit of the data GPU goes with it, unless there is another data GPU.
    if not any(by_flag[name].value not in (None, ()) for name in by_flag if "data_gpu" in name):
        gpus.add("data_gpu_memory")
    return {name: given for name, given in in_file.items() if name not in gpus}


def _without_default_length(in_file: _Source, by_flag: _Source) -> _Source:
    """Return `max_steps` 0 if `epochs` is set and `max_steps` is not: a default ends no run."""
    epochs = by_flag.get("epochs") or in_file.get("epochs")
    steps = in_file.get("max_steps")
    # A flag also replaces the default that a file has, as the config.yaml of every run does.
    is_default = steps is not None and steps.value == SETTINGS["max_steps"].default
    may_replace = steps is None or ("epochs" in by_flag and is_default)
    if epochs is None or not epochs.value or "max_steps" in by_flag or not may_replace:
        return {}
    return {"max_steps": _Given(0, epochs.where)}


# A setting without what it needs has no effect. This is a mistake of the user if a flag gives it
# another value than the default, or if a file gives it and contradicts itself. It is no mistake if
# a flag has changed what the setting of a file needs, or an older version wrote the file of a run.
# Then the setting is yielded, to get its default.
def _inactive(
    config: Config, in_file: _Source, by_flag: _Source, own: Collection[str], is_of_run: bool
) -> Iterator[str]:
    """Yield the settings of files that have no effect since a flag or an old run made it so.

    Raises ConfigError if the user gave a setting that has no effect.
    """
    values = flags.values_of(config)
    of_files = {name: setting.default for name, setting in SETTINGS.items()}
    of_files |= {name: given.value for name, given in in_file.items()}
    for setting in inactive_settings(values):
        name, value = setting.name, values[setting.name]
        if name in own or setting.needs.names.intersection(own):
            continue
        if name in by_flag:
            # A flag that turns off a setting that is off by default is never a mistake: `--vtlp 0`.
            is_mistake = value != setting.default or bool(value)
        else:
            # A file is wrong on its own account only if its values contradict each other.
            is_wrong_alone = not setting.needs.is_met(of_files)
            is_mistake = value != setting.default and not is_of_run and is_wrong_alone
        if is_mistake:
            given = by_flag.get(name) or in_file[name]
            shown = {need: format_value(values[need]) for need in setting.needs.unmet(values)}
            found = " and ".join(f"{flag_of(need)} is {state}" for need, state in shown.items())
            raise ConfigError(
                f"{given.where} is {format_value(value)}, but it has an effect only"
                f" {setting.needs.text}, and {found}. Leave it out, or change what it needs."
            )
        if name in in_file and name not in by_flag:
            yield name


def _check_text(given: _Given) -> None:
    """Raise ConfigError for a text, or one of several, that is empty or begins with ~."""
    for text in flags.items_of(given.value):
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


# The files that a file lists are read first, each with its own list. `through` has the files on the
# way here, so that a cycle is found. All unknown names of a file are reported together, with lines.
def _read(path: Path, through: tuple[Path, ...] = ()) -> _Source:
    """Return what a file and the files that it lists set, by name; later files replace earlier."""
    content = _content(path)
    through = (*through, path)
    given: _Source = {}
    where = f"{path}, line {content.lines.get(DEFAULTS)}: {DEFAULTS}"
    bases = content.pop(DEFAULTS, None) or []
    if not isinstance(bases, list):
        raise ConfigError(f"{where} must be a list of files, such as [default, dual_gpu].")
    for name in map(str, bases):
        suffix = "" if name.endswith((".yaml", ".yml")) else ".yaml"
        base = path.parent / f"{name}{suffix}"
        if base in through:
            raise ConfigError(f"{where} names {name!r}, which makes a cycle. Remove one of them.")
        if not base.is_file():
            hint = advice_on_file(base)
            raise ConfigError(f"{where} names {name!r}, but there is no file {base}.{hint}")
        given |= _read(base, through)
    unknown: list[str] = []
    for section, settings in content.items():
        where = f"{path}, line {content.lines[section]}: "
        if section not in SECTIONS:
            unknown.append(where + _unknown(section, None))
            continue
        settings = _lines(settings, f"{where}the section {section!r}")
        for name, value in settings.items():
            where = f"{path}, line {settings.lines[name]}: "
            if name in SETTINGS and SETTINGS[name].section == section:
                value = tuple(value) if isinstance(value, list) else value
                given[name] = _Given(value, where + name)
            elif (name, value) not in other_names()["unused"].items():
                unknown.append(where + _unknown(name, section))
    if unknown:
        raise ConfigError("\n".join(unknown))
    return given


def _content(path: Path) -> _Mapping:
    """Return the sections of a file, with their lines."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
    except OSError as error:
        hint = advice_on_file(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(
            f"{path}: the configuration cannot be read: {error.strerror}. Give another file; paths"
            f" are relative to {Path.cwd()}.{hint}"
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # ValueError: bytes that are not UTF-8, an escape of no character, !!int on a text.
        mark = getattr(error, "problem_mark", None)
        place = str(path)
        if mark:
            place += f", line {mark.line + 1}"
        parts = getattr(error, "context", None), getattr(error, "problem", None)
        problem = ", ".join(filter(None, parts)) or " ".join(str(error).split())
        advice = "Save it as UTF-8." if isinstance(error, UnicodeError) else "Correct it."
        raise ConfigError(f"{place}: broken YAML: {problem}. {advice}") from None
    return _lines(content, f"{path}, line 1: the file")


def _lines(content: Any, where: str) -> _Mapping:
    if content is not None and not isinstance(content, _Mapping):
        raise ConfigError(f"{where} must hold lines of the form 'name: value'.")
    return content or _Mapping()


def _unknown(name: str, section: str | None) -> str:
    """Return the message for an unknown name in `section` (None: the top level)."""
    if name in SETTINGS:
        return f"{name!r} belongs under '{SETTINGS[name].section}:'."
    renamed = other_names()["sections"].get(name)
    if section is None and renamed:
        return f"{name!r} was renamed to {renamed!r}."
    advice = advice_on_key(name)
    if advice is not None:
        return f"{name!r} is unknown{advice}"
    here = [each.name for each in flags.in_section(section)] if section else [DEFAULTS, *SECTIONS]
    near = nearest(name, here) or nearest(name, SETTINGS)
    if near is None:
        return f"{format_value(name)} is unknown. Known names: {', '.join(here)}."
    under = "" if near in here else f" under '{SETTINGS[near].section}:'"
    return f"{format_value(name)} is unknown. Did you mean {near!r}{under}?"


def _validated(given: _Source) -> Config:
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
    former = other_names()["values"].get(setting.name, {})
    for value in map(str, flags.items_of(given.value)):
        near = nearest(value, setting.choices)
        if value in former:
            return f"{message} {former[value]}"
        if near is not None and near != value:
            return f"{message} Did you mean {near}?"
    return message
