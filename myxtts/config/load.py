"""YAML and flags → Config, and Config → YAML.

A file is composed into nodes, which have line numbers, and never constructed into objects. Its only
valid form is a mapping of sections, of settings, of plain values or flat lists. Values are
validated once, after flags have replaced values of the file.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ValidationError

from myxtts.config.checks import check_settings
from myxtts.config.config_files import describe, is_config_of_run
from myxtts.config.effects import describe_useless, is_off, values_of, without_effect
from myxtts.config.names import advice_on_key, advice_on_value, former_names
from myxtts.config.schema import GPU_SETTINGS, Config
from myxtts.config.settings import SECTIONS, SETTINGS, Setting, in_section, nearest
from myxtts.errors import ConfigError
from myxtts.files import read_file

MAX_BYTES = (
    64 * 1024
)  # of all files of a configuration; all settings take 1.5 KiB, and PyYAML needs 1 s for 64 KiB
MAX_FILES = 16
_DEFAULT_STEPS = SETTINGS["max_steps"].default
SHOWN_CHARACTERS = 60  # of a value in a message
DEFAULTS = "defaults"  # a key beside the sections
GPUS = {"placement", *GPU_SETTINGS}  # a flag for one replaces those of a run

_TAG = "tag:yaml.org,2002:"
_SCALARS: dict[str, Callable[[str], Any]] = {
    _TAG + "null": lambda text: None,
    _TAG + "bool": lambda text: {"true": True, "false": False}[text.lower()],
    _TAG + "int": int,
    _TAG + "float": float,
    _TAG + "str": str,
}
_FILE_NAME = re.compile(
    r"[^./\\:\0][^/\\:\0]{0,59}"
)  # in the same folder, not hidden, under 256 bytes
_DIGITS = "[0-9](?:_?[0-9]){0,99}"  # Python's int() rejects more than 4300 digits
_EXPONENT = "[eE][-+]?[0-9]+"
_PLAIN = {  # tag of a plain scalar → its pattern and possible first characters
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": ("true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (f"[-+]?{_DIGITS}", list("-+0123456789")),
    "float": (
        rf"[-+]?(?:{_DIGITS}\.(?:{_DIGITS})?(?:{_EXPONENT})?|\.{_DIGITS}(?:{_EXPONENT})?|{_DIGITS}{_EXPONENT})",
        list("-+.0123456789"),
    ),
}


class _Loader(yaml.SafeLoader):
    """Plain scalars as in YAML 1.2: 1e-4 is a number; no, 1:30, 2026-01-31 and .nan are text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list]] = {}


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or `_Loader` would read as another type."""

    def represent_str(self, text: str) -> yaml.Node:
        style = (
            None if text.isprintable() else '"'
        )  # in other styles PyYAML turns U+0085 into a line break
        return self.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)

for _name, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})\\Z"), _first)
    _Dumper.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})\\Z"), _first)


@dataclass(frozen=True)
class _Given:
    """A value from the user, and its place for messages."""

    value: Any
    where: str


def load(
    path: Path | None = None, overrides: Mapping[str, Any] | None = None, own: Collection[str] = ()
) -> Config:
    """Return the defaults of the schema, overridden by the YAML file at `path`, overridden by
    `overrides`.

    The file may list other files of its folder as `defaults`: later files override earlier ones,
    and the file overrides them all. Listed files may list further files.

    Args:
        overrides: values of flags by the name of the setting; lists are tuples.
        own: settings that the caller sets later, so that it is not known yet whether others need
            them.

    Raises:
        ConfigError: names the file and line or the flag, what was found and what is allowed.
    """
    given = _Files().read(path) if path else {}
    flags = {name: _Given(value, SETTINGS[name].flag) for name, value in (overrides or {}).items()}
    is_of_run = path is not None and is_config_of_run(path)
    if is_of_run and GPUS.intersection(flags):
        names_data = any(
            flags[name].value not in (None, ())
            for name in ("data_gpu", "data_gpus")
            if name in flags
        )
        dropped = GPUS if names_data else GPUS | {"data_gpu_memory"}
        given = {name: value for name, value in given.items() if name not in dropped}
    given_and_flags = given | flags | _without_default_length(given, flags)
    for value in given_and_flags.values():
        _check_text(value)
    config = _validated(given_and_flags)
    if useless := set(_useless(config, given, flags, own, is_of_run)):
        config = _validated(
            {name: value for name, value in given_and_flags.items() if name not in useless}
        )
    check_settings(config)
    return config


def _check_text(given: _Given) -> None:
    """Raise ConfigError for a text, or one of several, that is empty or begins with ~, or that no
    path or JSON has.
    """
    texts = given.value if isinstance(given.value, (list, tuple)) else [given.value]
    for text in texts:
        if text == "":
            raise ConfigError(f"{given.where} is an empty text. Leave it out, or give a value.")
        if isinstance(text, str) and (text == "~" or text.startswith("~/")):
            raise ConfigError(
                f"{given.where} is {shown(text)}, but only a shell expands ~, and only at the start"
                f" of a word. Write {os.path.expanduser(text)}."
            )
        if isinstance(text, str):
            check_storable(text, given.where)


def check_storable(text: str, where: str) -> None:
    """Raise ConfigError for a text that no JSON file of a run can hold, or that no path has."""
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(
            f"{where} is {ascii(text)[:SHOWN_CHARACTERS]}, which has bytes that are not UTF-8, or a"
            " NUL. Rename the file or the folder, or give a link to it."
        )


def _useless(
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
    for setting in without_effect(values):
        name, value = setting.name, values[setting.name]
        if name in own or setting.needs.names.intersection(own):
            continue
        if name in flags:
            is_mistake = not is_off(setting, value)
        else:
            is_mistake = (
                value != setting.default and not is_of_run and not setting.needs.is_met(of_files)
            )
        if is_mistake:
            where = (flags if name in flags else given)[name].where
            raise ConfigError(describe_useless(setting, where, shown(value), values))
        if name in given and name not in flags:
            yield name


def _without_default_length(
    given: Mapping[str, _Given], flags: Mapping[str, _Given]
) -> dict[str, _Given]:
    """Return `max_steps` 0 if `epochs` is set, and `max_steps` is not, so that the default does not
    end the run.

    A flag --epochs also replaces the default that a file has, as the config.yaml of every run does.
    """
    epochs = flags.get("epochs") or given.get("epochs")
    is_default = "max_steps" not in given or (
        "epochs" in flags and given["max_steps"].value == _DEFAULT_STEPS
    )
    if epochs is None or not epochs.value or "max_steps" in flags or not is_default:
        return {}
    return {"max_steps": _Given(0, epochs.where)}


def dump(config: Config) -> str:
    """Return all settings as YAML; `load` returns an equal Config."""
    return yaml.dump(
        config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True
    )


def shown(value: Any) -> str:
    """Return a value for a message: escaped, and cut."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


class _Files:
    """The files of one configuration, each read once."""

    def __init__(self) -> None:
        self._read: dict[Path, dict[str, _Given]] = {}
        self._bytes_left = MAX_BYTES

    def read(self, path: Path, through: tuple[Path, ...] = ()) -> dict[str, _Given]:
        """Return what a file and the files that it lists set, by name; `through` are the listing
        files.
        """
        if path not in self._read:
            data = _content(path, self._bytes_left)
            self._bytes_left -= len(data)
            bases, settings = _parsed(path, _text(path, data))
            through = (*through, path)
            given: dict[str, _Given] = {}
            for name, where in bases.items():
                given |= self.read(self._beside(name, where, through), through)
            self._read[path] = given | settings
        return self._read[path]

    def _beside(self, name: str, where: str, through: tuple[Path, ...]) -> Path:
        """Return the file that the last of `through` lists as `name`."""
        base = through[-1].with_name(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
        if base in through:
            cycle = " → ".join(file.name for file in (*through[through.index(base) :], base))
            raise ConfigError(f"{where}, which makes a cycle: {cycle}. Remove one of them.")
        if not base.is_file():  # a named pipe would block forever
            files = sorted({file.stem for file in base.parent.glob("*.y*ml")} - {through[-1].stem})
            near = nearest(name, files)
            hint = (
                f"Did you mean {shown(near)}?"
                if near
                else f"Available files: {', '.join(files[:12]) or 'none'}."
            )
            raise ConfigError(
                f"{where}, but there is no file {shown(base.name)} in {base.parent}. {hint}"
            )
        target = os.path.realpath(base)
        if not target.startswith(os.path.join(os.path.realpath(base.parent), "")):
            raise ConfigError(
                f"{where}, but that is a link to {target}, outside of {base.parent}. Copy the file"
                " there."
            )
        if base not in self._read and len({*self._read, *through}) >= MAX_FILES:
            raise ConfigError(
                f"{where}, but a configuration has at most {MAX_FILES} files. Merge some of them."
            )
        return base


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
        for name, line, node in _entries(
            section_node, path, section_line, f"the section {section!r}"
        ):
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
    if node.tag == _TAG + "null":
        return {}
    allowed = "a list of files in the same folder, such as [default, dual_gpu]"
    if not isinstance(node, yaml.SequenceNode) or node.tag != _TAG + "seq":
        raise ConfigError(
            f"{path}, line {line}: {DEFAULTS} holds {_kind(node)}, but must be {allowed}."
        )
    places: dict[str, str] = {}
    for item in node.value:
        where = f"{path}, line {item.start_mark.line + 1}: {DEFAULTS}"
        if not isinstance(item, yaml.ScalarNode) or item.tag not in _SCALARS:
            raise ConfigError(f"{where} lists {_kind(item)}, but must be {allowed}.")
        where = f"{where} names {shown(item.value)}"
        if not _FILE_NAME.fullmatch(item.value):
            raise ConfigError(f"{where}, but must be {allowed}.")
        if item.value in places:
            raise ConfigError(f"{where} twice. Keep one of them.")
        places[item.value] = where
    return places


def _content(path: Path, max_bytes: int) -> bytes:
    try:
        return read_file(path, max_bytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            size = (
                f"over {MAX_BYTES // 1024}"
                f" KiB{', with the files that it lists' * (max_bytes < MAX_BYTES)}"
            )
            raise ConfigError(
                f"{path}: too large for a configuration ({size}). Give another."
            ) from None
        raise ConfigError(
            f"{path}: the configuration cannot be read: {describe(path, error)}"
        ) from None


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8. Save as UTF-8."
        ) from None


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
    except RecursionError:
        raise ConfigError(
            f"{path}: nested too deeply. A file has sections, which have settings."
        ) from None
    except (
        ValueError,
        OverflowError,
    ) as error:  # from chr() and int(): "\\U00110000", %YAML with 5,000 digits
        raise ConfigError(
            f"{path}: broken YAML: {error}. Correct the escape or the number."
        ) from None


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
            given = f"{shown(key.value)} was already given in line {lines[key.value]}"
            raise ConfigError(f"{path}, line {line}: {given}. Keep one of them.")
        lines[key.value] = line
        yield key.value, line, value


def _value(node: yaml.Node, where: str, allowed: str) -> Any:
    """Return a plain value or a tuple of plain values; deeper nesting is rejected before it is
    built.
    """
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        return tuple(_scalar(item, where, allowed) for item in node.value)
    return _scalar(node, where, allowed)


def _scalar(node: yaml.Node, where: str, allowed: str) -> Any:
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
        raise ConfigError(f"{where} holds {_kind(node)}, but must be {allowed}.")
    try:
        return _SCALARS[node.tag](node.value)
    except (ValueError, KeyError):  # an explicit tag on something else: !!int x, !!bool yes
        return node.value  # text, which validation rejects


def _kind(node: yaml.Node) -> str:
    """Describe a node of an unexpected kind."""
    kinds = {
        yaml.MappingNode: "a mapping",
        yaml.SequenceNode: "a list",
        yaml.ScalarNode: "a plain value",
    }
    plain = node.tag in (*_SCALARS, _TAG + "map", _TAG + "seq")
    return kinds[type(node)] if plain else f"a value tagged {shown(node.tag)}"


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
        return f"{shown(name)} is unknown. Did you mean {near!r}?"
    near = nearest(name, SETTINGS)
    if near is not None:
        under = SETTINGS[near].section
        return f"{shown(name)} is unknown. Did you mean {near!r} under '{under}:'?"
    return f"{shown(name)} is unknown. Known names: {', '.join(here)}."


def _validated(given: Mapping[str, _Given]) -> Config:
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, setting in given.items():
        sections[SETTINGS[name].section][name] = setting.value
    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        invalid = {detail["loc"][1] for detail in error.errors()}
        raise ConfigError(
            "\n".join(_invalid(name, given[name]) for name in given if name in invalid)
        ) from None


def _invalid(name: str, given: _Given) -> str:
    setting = SETTINGS[name]
    return (
        f"{given.where} is {shown(given.value)}, but must be"
        f" {setting.allowed}.{_hint(setting, given)}"
    )


def _hint(setting: Setting, given: _Given) -> str:
    """Return what to give instead of a value that is not allowed; starts with a space."""
    if setting.kind is str and isinstance(given.value, bool | int | float):
        return " Put it in quotes."
    values = given.value if isinstance(given.value, tuple) else (given.value,)
    for value in values:
        advice = advice_on_value(setting, value)
        if advice is not None:
            return f" {advice}"
        near = nearest(str(value), setting.choices)
        if near is not None and near != str(value):
            return f" Did you mean {near}?"
    return ""
