"""What a checkpoint records beside its arrays, with types that are checked when it is read. No
TensorFlow.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    FiniteFloat,
    ValidationError,
)

from myxtts.errors import CheckpointError

LARGEST = 2**53  # of a number in JSON that every program reads alike

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]

MAX_ENTRIES = 10_000


def _check_entries(values: Any) -> Any:
    if isinstance(values, dict) and len(values) > MAX_ENTRIES:
        raise ValueError(f"it has {len(values):,} entries, more than {MAX_ENTRIES:,}")
    return values


# pydantic makes an error of 250 bytes for each value of another type: a list ends at the first, a
# dictionary is short.
Names = Annotated[list[str], FailFast()]
Short = BeforeValidator(_check_entries)


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Source(_Section):
    """Another run that this one began with."""

    run: str = ""
    step: Count = 0
    weights: str = ""
    symbols: Count = 0
    languages: Count = 0
    speakers: Count = 0


class _Participant(_Section):
    """A job of an average."""

    job: Count = 0
    audio_s: FiniteFloat = 0.0


class MetadataTypes(_Section):
    """The types of what the program reads of a state.json. Checkpoints of runs, forks and syncs
    have different keys.
    """

    step: Count = 0
    position: tuple[Count, Count, Annotated[list[tuple[Positive, Count]], FailFast()]] = (0, 0, [])
    replicas: Positive = 1
    audio_s: FiniteFloat = 0.0
    audio_s_since_sync: FiniteFloat = 0.0
    best: tuple[Count, FiniteFloat] | None = None
    settings: Annotated[dict[str, dict[str, Any]], Short] = {}
    symbols: Names = []
    languages: Names = []
    speakers: Names = []
    start: str = ""
    ancestor: _Source | None = None
    teacher: _Source | None = None
    observing: Annotated[list[tuple[Count, Names]], FailFast()] = []
    provisional: bool = False
    participants: Annotated[list[_Participant], FailFast()] = []
    missed_syncs: Annotated[dict[str, Count], Short] = {}


def check_types(text: str) -> None:
    """Raise pydantic's ValidationError if a value in a state.json has another type."""
    MetadataTypes.model_validate_json(text)


def describe_types(error: ValidationError) -> str:
    """Return the first value of another type: `best.1: Input should be a valid number`."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


class Metadata(dict[str, Any]):
    """The metadata of a checkpoint; to take a key that it lacks is a CheckpointError.

    Args:
        source: file of the metadata.
        advice: returns what to do about a damaged checkpoint.
        within: names of the keys that lead to these values, each with a dot.
    """

    def __init__(
        self, values: Mapping[str, Any], source: Path, advice: Callable[[], str], within: str = ""
    ):
        super().__init__(
            (
                name,
                (
                    Metadata(value, source, advice, f"{within}{name}.")
                    if isinstance(value, dict)
                    else value
                ),
            )
            for name, value in values.items()
        )
        self._source, self._advice, self._within = source, advice, within

    def __missing__(self, name: str) -> Any:
        raise CheckpointError(f"{self._source} lacks '{self._within}{name}'. {self._advice()}")
