"""Settings that have no effect in a run, because other settings do not ask for what they set.

Which settings these are stands in the schema, where each setting declares what it needs. What the
user gave without effect is an error. There are two exceptions: what a flag makes useless in a file
was replaced by the flag, and the config.yaml of a run may have been written by a version that did
not know what a setting needs. Both are set back to their defaults.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from myxtts.config.needs import flag_of
from myxtts.config.schema import Config
from myxtts.config.settings import SETTINGS, Setting


def values_of(config: Config) -> dict[str, Any]:
    """Return the value of each setting by its name."""
    return {
        name: getattr(getattr(config, setting.section), name) for name, setting in SETTINGS.items()
    }


def without_effect(values: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings that have no effect.

    Args:
        values: of all settings, by name.
    """
    return (setting for setting in SETTINGS.values() if not setting.needs.is_met(values))


def is_off(setting: Setting, value: Any) -> bool:
    """Whether a flag only turns off what is off by default, such as `--vtlp 0`: that is no mistake
    anywhere.
    """
    return value == setting.default and not value


def describe_useless(
    setting: Setting, where: str, shown_value: str, values: Mapping[str, Any]
) -> str:
    """Return the message about a setting that has no effect.

    Args:
        where: place of the setting: a flag, or a file and line.
        shown_value: the value as messages show it.
        values: of all settings, by name.
    """
    found = " and ".join(_state(name, values[name]) for name in setting.needs.unmet(values))
    return (
        f"{where} is {shown_value}, but it has an effect only {setting.needs.text}, and {found}. "
        "Leave it out, or change what it needs."
    )


def _state(name: str, value: Any) -> str:
    if value in (None, (), 0) and value is not False:
        return f"{flag_of(name)} is not given" if value in (None, ()) else f"{flag_of(name)} is 0"
    return (
        f"{flag_of(name)} is {value if not isinstance(value, bool) else 'on' if value else 'off'}"
    )


def without_useless(config: Config) -> Config:
    """Return the settings with the default of each that has no effect, to compare and to write
    them.
    """
    changed: dict[str, dict[str, Any]] = {}
    values = values_of(config)
    for setting in without_effect(values):
        if values[setting.name] != setting.default:
            changed.setdefault(setting.section, {})[setting.name] = setting.default
    return config.model_copy(
        update={
            section: getattr(config, section).model_copy(update=update)
            for section, update in changed.items()
        }
    )
