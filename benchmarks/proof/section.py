"""A section of the GPU proof: what it is given and what it returns. No TensorFlow."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from myxtts.base.files import write_whole

Verdict = Literal["met", "not met", "not shown"]
RESULT_FILE = "result.json"


class Section(NamedTuple):
    """A module with a function `run(scope: Scope) -> SectionResult`, and its share of the time.

    Attributes:
        module: full name of the module.
        title: until the section has returned its own.
        share: of the time of all sections; time that a section leaves goes to those after it.
    """

    number: int
    module: str
    title: str
    share: float


@dataclass(frozen=True)
class Scope:
    """What a section runs on.

    Attributes:
        gpus: number of GPUs, real, virtual or simulated.
        simulated: whether the GPUs are logical devices of the CPU. What needs a real GPU is "not
            shown" then.
        small: use the smallest models, batches and numbers of steps, to test the section itself.
        budget_s: seconds after which the section should have returned; it is killed a little later.
        out: folder of this section, for logs and whatever else it writes.
        corpus: folder of the demo corpus.
        virtual: whether the GPUs are those of `tests.virtual_gpu`, whose kernels are the CPU's.
    """

    gpus: int
    simulated: bool
    small: bool
    budget_s: float
    out: Path
    corpus: Path
    virtual: bool = False
    started_s: float = field(default_factory=time.monotonic, compare=False)

    @property
    def is_real(self) -> bool:
        """Whether times, software and memory limits are those of a GPU."""
        return not (self.simulated or self.virtual)

    @property
    def left_s(self) -> float:
        """Seconds left of the budget; negative behind its end."""
        return self.started_s + self.budget_s - time.monotonic()

    def record(self, result: "SectionResult", complete: bool = False) -> None:
        """Write the result so far, which is reported if the section fails or runs out of time."""
        write_json(self.out / RESULT_FILE, asdict(result) | {"complete": complete})


@dataclass(frozen=True)
class Figure:
    """A row of the last table: a claim, its figure here, the figure expected, and the verdict."""

    claim: str
    here: str
    expected: str
    verdict: Verdict

    @classmethod
    def of(cls, claim: str, here: str, expected: str, met: bool | None) -> "Figure":
        """Return the figure of a claim that is met or not; None is not shown."""
        return cls(
            claim, here, expected, "not shown" if met is None else "met" if met else "not met"
        )


@dataclass
class SectionResult:
    """The result of a section, which grows while it runs.

    Attributes:
        lines: of the page, in Markdown.
        figures: its claims.
        data: every figure, for JSON.
    """

    title: str
    lines: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def add(self, claim: str, here: str, expected: str, met: bool | None) -> None:
        """Add the figure of a claim that is met or not; None is not shown."""
        self.figures.append(Figure.of(claim, here, expected, met))


def table(header: str | Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table, with an empty line on both sides.

    Args:
        header: names of the columns, or one text with " | " between them.
    """
    if isinstance(header, str):
        header = header.split(" | ")
    cells = [
        [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in (header, *rows)
    ]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return ["", lines[0], "|---" * len(header) + "|", *lines[1:], ""]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole; arrays become lists, and numbers that are not finite become text."""
    write_whole(path, (json.dumps(_plain(content), indent=1, ensure_ascii=False) + "\n").encode())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy
        return _plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
