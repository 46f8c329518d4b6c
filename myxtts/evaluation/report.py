"""The metrics of a TTS checkpoint as a table, as JSON and as plots."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from myxtts.data.dataset import corpus_folder
from myxtts.errors import ConfigError
from myxtts.evaluation.acoustic_metrics import AcousticFeatures
from myxtts.evaluation.held_out import Utterance
from myxtts.evaluation.options import EvaluationOptions
from myxtts.files import write_whole
from myxtts.observe.plots import f0_curves, mel_and_alignment, png_bytes

COLUMNS = "synthesized", "copy_synthesis", "shuffled_texts"


@dataclass(frozen=True)
class Metric:
    """A metric, its best value and its worst value; None if it does not apply or nothing was measured."""

    synthesized: float | None
    copy_synthesis: float | None = None
    shuffled_texts: float | None = None


class MetricFormat(NamedTuple):
    """How the table shows a metric: name, unit, factor to that unit, and decimals."""

    label: str
    unit: str
    factor: int
    decimals: int


METRICS = {  # in the order of the table
    "mel_cepstral_distortion": MetricFormat("mel-cepstral distortion", "dB", 1, 2),
    "mel_cepstral_distortion_ratio": MetricFormat("mel-cepstral distortion, times copy synthesis", "×", 1, 2),
    "log_f0_rmse": MetricFormat("log-F0 RMSE", "ln Hz", 1, 3),
    "voicing_error": MetricFormat("voicing error", "%", 100, 1),
    "duration_ratio": MetricFormat("duration ratio, mean", "s/s", 1, 3),
    "duration_within_bounds": MetricFormat("duration ratio within 0.95–1.05", "%", 100, 0),
    "utterances_with_deletions": MetricFormat("utterances with deletions", "count", 1, 0),
    "utterances_with_insertions": MetricFormat("utterances with insertions", "count", 1, 0),
    "character_error_rate": MetricFormat("character error rate, by the recogniser", "%", 100, 1),
    "word_error_rate": MetricFormat("word error rate, by the recogniser", "%", 100, 1),
    "speaker_accuracy_seen": MetricFormat("speaker accuracy, speakers seen in training", "%", 100, 0),
    "speaker_accuracy_unseen": MetricFormat("speaker accuracy, unseen speakers", "%", 100, 0),
    "real_time_factor": MetricFormat("real-time factor, text to wave", "s/s", 1, 3),
} | {
    f"{key}_{statistic}": MetricFormat(f"{boundary}, {name}", unit, factor, decimals)
    for key, boundary in (
        ("boundary", "phoneme boundaries"),
        ("boundary_onset", "… where silence ends"),
        ("boundary_offset", "… where silence begins"),
        ("boundary_between", "… between two sounds"),
    )
    for statistic, name, unit, factor, decimals in (
        ("signed_median", "signed median error", "ms", 1, 1),
        ("absolute_median", "absolute median error", "ms", 1, 1),
        ("within_20_ms", "within 20 ms", "%", 100, 0),
    )
}


@dataclass(frozen=True)
class TTSScore:
    """The metrics of a TTS checkpoint.

    Attributes:
        metrics: by the keys of METRICS; metrics that do not apply to this corpus are missing.
        languages: the same for each language, if there are several.
        notes: the conditions of the measurement, and what was left out.
    """

    run: str
    checkpoint: str
    utterances: int
    metrics: dict[str, Metric]
    languages: dict[str, dict[str, Metric]]
    notes: tuple[str, ...]

    def table(self) -> str:
        """Return a Markdown table."""
        lines = ["| metric | synthesized | copy synthesis | shuffled texts | unit |", "|---|---|---|---|---|"]
        lines += [_table_row(key, metric) for key, metric in self.metrics.items()]
        for language, metrics in self.languages.items():
            lines += [_table_row(key, metric, f"{language}: ") for key, metric in metrics.items()]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return the same with the unit of each metric; percentages are fractions."""
        languages = {language: _with_units(metrics) for language, metrics in self.languages.items()}
        return asdict(self) | {"metrics": _with_units(self.metrics), "languages": languages}


class Score(Protocol):
    """The metrics of a checkpoint."""

    def table(self) -> str:
        """Return a Markdown table."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        ...


def print_score(score: Score, json_file: Path | None) -> None:
    """Print the table, and write the JSON if a file is given."""
    print(score.table())
    if json_file is not None:
        write_whole(json_file, json.dumps(score.to_json(), ensure_ascii=False, indent=1).encode())


def output_folder(run: Path, checkpoint: Path, options: EvaluationOptions) -> Path:
    """Return the folder for files of an evaluation: --out, or a folder of the run for this checkpoint and corpus.

    Raises:
        ConfigError: it is a file.
    """
    suffix = f"-{corpus_folder(options.data).name}" if options.data else ""
    folder = options.out or run / "evaluation" / f"{checkpoint.name}{suffix}"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} was given, but that is a file. Name a folder.")
    return folder


def _table_row(key: str, metric: Metric, language: str = "") -> str:
    label, unit, factor, decimals = METRICS[key]
    values = (getattr(metric, column) for column in COLUMNS)
    cells = ("–" if value is None else f"{factor * value:.{decimals}f}" for value in values)
    return f"| {language}{label} | {' | '.join(cells)} | {unit} |"


def _with_units(metrics: dict[str, Metric]) -> dict[str, Any]:
    units = {key: "fraction" if spec.factor == 100 else spec.unit for key, spec in METRICS.items()}
    return {key: asdict(metric) | {"unit": units[key]} for key, metric in metrics.items()}


def write_plots(
    folder: Path,
    utterances: Sequence[Utterance],
    recorded: Sequence[AcousticFeatures],
    synthesized: Sequence[AcousticFeatures],
) -> None:
    """Write `<number>-<id>-mel.png` and `<number>-<id>-f0.png` for each utterance; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (utterance, recording, synthesis) in enumerate(zip(utterances, recorded, synthesized, strict=True), 1):
        name = f"{number}-{Path(utterance.id).stem}"
        picture = mel_and_alignment(recording.mel, synthesis.mel, utterance.path, utterance.text)
        (folder / f"{name}-mel.png").write_bytes(png_bytes(picture))
        curves = {"recorded": recording.voiced_f0_hz, "synthesized": synthesis.voiced_f0_hz}
        (folder / f"{name}-f0.png").write_bytes(png_bytes(f0_curves(curves, utterance.text)))
