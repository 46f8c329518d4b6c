"""What a checkpoint records beside its arrays, with types that are checked when it is read. No
TensorFlow.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from myxtts.errors import CheckpointError

LARGEST = 2**53  # of a number in JSON that every program reads alike

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]


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
    position: tuple[Count, Count, list[tuple[Positive, Count]]] = (0, 0, [])
    replicas: Positive = 1
    audio_s: FiniteFloat = 0.0
    audio_s_since_sync: FiniteFloat = 0.0
    best: tuple[Count, FiniteFloat] | None = None
    settings: dict[str, dict[str, Any]] = {}
    symbols: list[str] = []
    languages: list[str] = []
    speakers: list[str] = []
    start: str = ""
    ancestor: _Source | None = None
    teacher: _Source | None = None
    observing: list[tuple[Count, list[str]]] = []
    provisional: bool = False
    participants: list[_Participant] = []
    missed_syncs: dict[str, Count] = {}
    digests: dict[str, str] = {}


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
