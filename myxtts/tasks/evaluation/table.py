"""The metrics of a checkpoint as a table and as JSON."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

Metric = dict[str, float | None]
"""Values by column; None where the metric does not apply or nothing was measured."""

Metrics = dict[str, Metric]
"""By the keys of METRICS."""

Means = dict[str, float | None]
"""The values of a column by the keys of METRICS."""

ScoreWeights = Callable[[str, Callable[[], None]], Any]
"""(checkpoint, throttle) -> the score of a network that has the weights of a checkpoint."""

Measurement = TypeVar("Measurement")

GROUPS = {"languages": "{}: ", "speakers": "{} speakers: "}  # written before a metric of a group


class MetricFormat(NamedTuple):
    """How the table shows a metric; "%" is the unit of a fraction."""

    label: str
    unit: str
    decimals: int

    def show(self, value: float | None) -> str:
        if value is None:
            return "–"
        factor = 100 if self.unit == "%" else 1
        return f"{factor * value:.{self.decimals}f}"


METRICS = {
    "pesq_wb": MetricFormat("PESQ-WB", "MOS-LQO", 2),
    "stoi": MetricFormat("STOI", "0 to 1", 4),
    "log_mel_error": MetricFormat("log-mel error", "dB", 2),
    "mel_cepstral_distortion": MetricFormat("mel-cepstral distortion", "dB", 2),
    "log_f0_rmse": MetricFormat("log-F0 RMSE", "ln Hz", 3),
    "log_f0_correlation": MetricFormat("log-F0 correlation", "−1 to 1", 2),
    "log_f0_difference": MetricFormat("log-F0, difference of means", "ln Hz", 3),
    "log_f0_spread_ratio": MetricFormat("log-F0, ratio of spreads", "×", 2),
    "voicing_error": MetricFormat("voicing error", "%", 1),
    "duration_ratio": MetricFormat("length ratio, of the sums", "s/s", 3),
    "duration_ratio_mean": MetricFormat("length ratio, mean", "s/s", 3),
    "duration_ratio_deviation": MetricFormat("length ratio, standard deviation", "s/s", 3),
    "duration_within_bounds": MetricFormat("length ratio within 0.9–1.1", "%", 0),
    "dnsmos_p808": MetricFormat("DNSMOS P.808", "1 to 5", 2),
    "dnsmos_overall": MetricFormat("DNSMOS P.835, overall", "1 to 5", 2),
    "dnsmos_mean": MetricFormat("DNSMOS, mean of both", "1 to 5", 2),
    "character_error_rate": MetricFormat("character error rate, by the recogniser", "%", 1),
    "word_error_rate": MetricFormat("word error rate, by the recogniser", "%", 1),
    "words_left_out": MetricFormat("words left out", "count", 0),
    "words_repeated": MetricFormat("words repeated", "count", 0),
    "speaker_cosine": MetricFormat("speaker cosine", "−1 to 1", 3),
    "speaker_accuracy_seen": MetricFormat("speaker accuracy, speakers seen in training", "%", 0),
    "speaker_accuracy_unseen": MetricFormat("speaker accuracy, unseen speakers", "%", 0),
    "real_time_factor": MetricFormat("real-time factor", "s/s", 4),
}

# Seven of 24 figures fit one line of the console; the table has the others.
SHOWN = (
    *("log_mel_error", "mel_cepstral_distortion", "log_f0_rmse", "voicing_error"),
    *("duration_ratio", "dnsmos_p808", "character_error_rate"),
)


@dataclass(frozen=True)
class ColumnScore:
    """The metrics of a checkpoint, in columns that are measured in the same way."""

    run: str
    checkpoint: str
    utterances: int
    columns: tuple[str, ...]  # in the order of the table
    metrics: Metrics  # without those that do not apply to this corpus
    groups: dict[str, dict[str, Metrics]]  # of each group by name, by the keys of GROUPS
    notes: tuple[str, ...]  # the conditions of the measurement, and what was left out
    details: dict[str, Any] = field(default_factory=dict)  # more figures for the JSON

    def table(self) -> str:
        """Return a Markdown table."""
        titles = " | ".join(map(title, self.columns))
        lines = [f"| metric | {titles} | unit |", "|---" * (len(self.columns) + 2) + "|"]
        lines += self._rows("", self.metrics)
        for kind, groups in self.groups.items():
            for name, metrics in groups.items():
                lines += self._rows(GROUPS[kind].format(name), metrics)
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])

    def _rows(self, group: str, metrics: Metrics) -> list[str]:
        rows = []
        for key, shown in METRICS.items():
            if key in metrics:
                cells = " | ".join(shown.show(metrics[key].get(name)) for name in self.columns)
                rows.append(f"| {group}{shown.label} | {cells} | {shown.unit} |")
        return rows

    def figures(self) -> dict[str, float]:
        """Return the metrics of the first column by name, without those that do not apply."""
        values = {key: metric.get(self.columns[0]) for key, metric in self.metrics.items()}
        return {key: float(value) for key, value in values.items() if value is not None}

    def console_line(self) -> str:
        """Return `mel-cepstral distortion 7.31 dB | voicing error 8.1 %` of the first column."""
        shown = [(METRICS[key], value) for key, value in self.figures().items() if key in SHOWN]
        parts = [f"{of.label} {of.show(value)} {of.unit}" for of, value in shown]
        # A scale is no unit that could follow its figure.
        return " | ".join(parts).replace("1 to 5", "of 5")

    def to_json(self) -> dict[str, Any]:
        """Return the same with the unit of each metric; percentages are fractions."""
        figures = {"run": self.run, "checkpoint": self.checkpoint, "utterances": self.utterances}
        figures["metrics"] = self._with_units(self.metrics)
        for kind, groups in self.groups.items():
            figures[kind] = {name: self._with_units(metrics) for name, metrics in groups.items()}
        return figures | {"notes": list(self.notes)} | self.details

    def _with_units(self, metrics: Metrics) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for key, shown in METRICS.items():
            if key in metrics:
                figures[key] = {column: metrics[key].get(column) for column in self.columns}
                # JSON is for programs, which expect fractions; the table has percentages.
                figures[key]["unit"] = "fraction" if shown.unit == "%" else shown.unit
        return figures


def title(column: str) -> str:
    """Return the title of a column: copy_synthesis_griffin_lim → copy synthesis, Griffin-Lim."""
    words = column.replace("_griffin_lim", ", Griffin-Lim").replace("griffin_lim", "Griffin-Lim")
    return words.replace("_", " ")


def by_metric(columns: Mapping[str, Means]) -> Metrics:
    """Return the values of columns by metric, None where a column lacks the metric."""
    metrics: Metrics = {}
    for column, values in columns.items():
        for key, value in values.items():
            metrics.setdefault(key, dict.fromkeys(columns))[column] = value
    return metrics


def metrics_by_group(
    names: Sequence[str], measure: Callable[[Sequence[int]], Measurement]
) -> dict[str, Measurement]:
    """Return what is measured of the rows of each group; `names` has the group of each row."""
    rows = defaultdict(list)
    for row, name in enumerate(names):
        rows[name].append(row)
    # The metrics of a single group are those of all utterances, and would be a second equal row.
    if len(rows) < 2:
        return {}
    return {name: measure(group) for name, group in sorted(rows.items())}
