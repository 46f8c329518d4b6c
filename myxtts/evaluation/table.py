"""The metrics of a checkpoint as a table and as JSON."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from myxtts.files import write_whole
from myxtts.report.samples import SCORES
from myxtts.training.observation import Throttle

Metric = dict[str, float | None]
"""Values by column; None where the metric does not apply or nothing was measured."""

Metrics = dict[str, Metric]
"""By the keys of METRICS."""

Measurement = TypeVar("Measurement")

# Titles in the table.
COLUMNS = {
    "synthesized": "synthesized",
    "copy_synthesis": "copy synthesis",
    "shuffled_texts": "shuffled texts",
    "synthesized_griffin_lim": "synthesized, Griffin-Lim",
    "copy_synthesis_griffin_lim": "copy synthesis, Griffin-Lim",
    "neural": "neural",
    "griffin_lim": "Griffin-Lim",
    "recordings": "recordings",
}
# What the table writes before a metric of a group.
GROUPS = {"languages": "{}: ", "speakers": "{} speakers: "}


class MetricFormat(NamedTuple):
    """How the table shows a metric: name, unit, factor to that unit, and decimals."""

    label: str
    unit: str
    factor: int
    decimals: int


# In the order of the table.
METRICS = {
    "pesq_wb": MetricFormat("PESQ-WB", "MOS-LQO", 1, 2),
    "stoi": MetricFormat("STOI", "0 to 1", 1, 4),
    "log_mel_error": MetricFormat("log-mel error", "dB", 1, 2),
    "mel_cepstral_distortion": MetricFormat("mel-cepstral distortion", "dB", 1, 2),
    "mel_cepstral_distortion_ratio": MetricFormat(
        "mel-cepstral distortion, times copy synthesis", "×", 1, 2
    ),
    "log_f0_rmse": MetricFormat("log-F0 RMSE", "ln Hz", 1, 3),
    "voicing_error": MetricFormat("voicing error", "%", 100, 1),
    "duration_ratio": MetricFormat("duration ratio, mean", "s/s", 1, 3),
    "duration_within_bounds": MetricFormat("duration ratio within 0.95–1.05", "%", 100, 0),
    "utterances_with_deletions": MetricFormat("utterances with deletions", "count", 1, 0),
    "utterances_with_insertions": MetricFormat("utterances with insertions", "count", 1, 0),
    "character_error_rate": MetricFormat("character error rate, by the recogniser", "%", 100, 1),
    "word_error_rate": MetricFormat("word error rate, by the recogniser", "%", 100, 1),
    "speaker_accuracy_seen": MetricFormat(
        "speaker accuracy, speakers seen in training", "%", 100, 0
    ),
    "speaker_accuracy_unseen": MetricFormat("speaker accuracy, unseen speakers", "%", 100, 0),
    "real_time_factor": MetricFormat("real-time factor", "s/s", 1, 4),
}
for key, boundary in (
    ("boundary", "phoneme boundaries"),
    ("boundary_onset", "… where silence ends"),
    ("boundary_offset", "… where silence begins"),
    ("boundary_between", "… between two sounds"),
):
    METRICS |= {
        f"{key}_signed_median": MetricFormat(f"{boundary}, signed median error", "ms", 1, 1),
        f"{key}_absolute_median": MetricFormat(f"{boundary}, absolute median error", "ms", 1, 1),
        f"{key}_within_20_ms": MetricFormat(f"{boundary}, within 20 ms", "%", 100, 0),
    }

# In a line of the console.
# Five of 28 figures fit one line of the console; the table has the others.
SHOWN = (
    "log_mel_error",
    "mel_cepstral_distortion",
    "log_f0_rmse",
    "voicing_error",
    "character_error_rate",
)


@dataclass(frozen=True)
class ColumnScore:
    """The metrics of a checkpoint, in columns that are measured in the same way.

    Attributes:
        columns: keys of COLUMNS in the order of the table.
        metrics: by the keys of METRICS; metrics that do not apply to this corpus are missing.
        groups: the same for each language, and for other groups of GROUPS, if there are several.
        notes: the conditions of the measurement, and what was left out.
        details: more figures for the JSON.
    """

    run: str
    checkpoint: str
    utterances: int
    columns: tuple[str, ...]
    metrics: Metrics
    groups: dict[str, dict[str, Metrics]]
    notes: tuple[str, ...]
    details: dict[str, Any] = field(default_factory=dict)

    def table(self) -> str:
        """Return a Markdown table."""
        titles = (COLUMNS[column] for column in self.columns)
        lines = [
            f"| metric | {' | '.join(titles)} | unit |",
            "|---" * (len(self.columns) + 2) + "|",
        ]
        lines += self._rows("", self.metrics)
        for kind, groups in self.groups.items():
            for name, metrics in groups.items():
                lines += self._rows(GROUPS[kind].format(name), metrics)
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])

    def figures(self) -> dict[str, float]:
        """Return the metrics of the first column by name, without those that do not apply."""
        values = {key: metric.get(self.columns[0]) for key, metric in self.metrics.items()}
        return {key: float(value) for key, value in values.items() if value is not None}

    def console_line(self) -> str:
        """Return `mel-cepstral distortion 7.31 dB | voicing error 8.1 %` of the first column."""
        figures = self.figures()
        return " | ".join(
            f"{METRICS[key].label} {_cell(key, figures[key])} {METRICS[key].unit}"
            for key in SHOWN
            if key in figures
        )

    def to_json(self) -> dict[str, Any]:
        """Return the same with the unit of each metric; percentages are fractions."""
        figures = {"run": self.run, "checkpoint": self.checkpoint, "utterances": self.utterances}
        figures["metrics"] = self._with_units(self.metrics)
        for kind, groups in self.groups.items():
            figures[kind] = {name: self._with_units(metrics) for name, metrics in groups.items()}
        return figures | {"notes": list(self.notes)} | self.details

    def _rows(self, group: str, metrics: Metrics) -> list[str]:
        return [
            f"| {group}{METRICS[key].label} | {' | '.join(self._cells(key, metrics[key]))} |"
            f" {METRICS[key].unit} |"
            for key in METRICS
            if key in metrics
        ]

    def _cells(self, key: str, metric: Metric) -> Iterator[str]:
        for value in map(metric.get, self.columns):
            yield "–" if value is None else _cell(key, value)

    def _with_units(self, metrics: Metrics) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for key in METRICS:
            if key in metrics:
                figures[key] = {column: metrics[key].get(column) for column in self.columns}
                # JSON is for programs, which expect fractions; the table has percentages.
                is_fraction = METRICS[key].factor == 100
                figures[key]["unit"] = "fraction" if is_fraction else METRICS[key].unit
        return figures


def _cell(key: str, value: float) -> str:
    return f"{METRICS[key].factor * value:.{METRICS[key].decimals}f}"


def metrics_by_group(
    names: Sequence[str], measure: Callable[[Sequence[int]], Measurement]
) -> dict[str, Measurement]:
    """Return what is measured of each group of utterances by name; empty if there is only one.

    Args:
        names: the group of each utterance.
        measure: measures the utterances with these indices.
    """
    rows = defaultdict(list)
    for row, name in enumerate(names):
        rows[name].append(row)
    # The metrics of a single group are those of all utterances, and would be a second equal row.
    if len(rows) < 2:
        return {}
    return {name: measure(group) for name, group in sorted(rows.items())}


class Score(Protocol):
    """The metrics of a checkpoint; see `ColumnScore`."""

    def figures(self) -> dict[str, float]: ...

    def console_line(self) -> str: ...

    def table(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


ScoreWeights = Callable[[str, Throttle], Score]
"""(checkpoint, throttle): measures the weights of a network, which are those of a checkpoint.

`throttle` is called before each batch; nothing is queued on the device then.
"""


def write_table(score: Score, folder: Path) -> None:
    """Write the table to a folder that exists, for report.html of the run."""
    write_whole(folder / SCORES, (score.table() + "\n").encode())
