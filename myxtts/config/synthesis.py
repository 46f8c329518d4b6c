"""The options of synthesis, and their bounds for flags, settings and requests."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from myxtts.base.errors import ConfigError

ODE_STEPS = 3  # with 2, DNSMOS rates a voice 0.09 lower
BOUNDS: dict[str, tuple[type[int] | type[float], float, float]] = {
    "accent_strength": (float, 0.0, 10.0),
    "speed": (float, 0.25, 4.0),
    "pitch_semitones": (float, -12.0, 12.0),
    "energy_db": (float, -12.0, 12.0),
    "variety": (float, 0.0, 2.0),
    "ode_steps": (int, 1, 1000),
    "guidance": (float, 0.0, 10.0),
    "seed": (int, 0, 2**31 - 1),
    "iterations": (int, 1, 1000),  # of Griffin-Lim
}
"""Kind, lowest and highest value of each option."""
_KINDS: dict[type, tuple[type, str]] = {int: (Integral, "whole number"), float: (Real, "number")}


def bounds_of(name: str) -> Any:
    """Return the bounds of an option as pydantic takes them."""
    from pydantic import Field

    _, low, high = BOUNDS[name]
    return Field(ge=low, le=high)


def check_options(**values: Any) -> None:
    """Raise ConfigError at the first value that is no number within the bounds of its option."""
    for name, value in values.items():
        kind, low, high = BOUNDS[name]
        number, noun = _KINDS[kind]
        is_number = isinstance(value, number)
        if not is_number or not low <= value <= high:
            raise ConfigError(
                f"{name} is {value!r}, but must be a {noun} from {low:.15g} to {high:.15g}."
            )


@dataclass(frozen=True)
class SynthesisOptions:
    """Options of synthesis; raises ConfigError for a value beyond BOUNDS.

    The energy that is added to each token also changes its timbre, as in a louder voice.
    """

    accent_strength: float = 1.0  # of a language embedding: its distance from the mean of all
    speed: float = 1.0  # 2 halves every duration
    pitch_semitones: float = 0.0
    energy_db: float = 0.0
    # How much pitch and energy vary, as a fraction of how much they vary in people; durations vary
    # by half of it. 0 speaks the means, without noise in the mel.
    variety: float = 0.5
    ode_steps: int = ODE_STEPS  # Euler steps of the flow, from noise to mel
    guidance: float = 1.0  # scale of classifier-free guidance (Ho & Salimans 2021); 1 is off
    seed: int = 0  # of the initial noise

    def __post_init__(self) -> None:
        check_options(**vars(self))
