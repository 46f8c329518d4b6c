"""A score as a table, as JSON and as pictures."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from myxtts.data.dataset import corpus_folder
from myxtts.errors import ConfigError
from myxtts.evaluation.acoustic_metrics import AcousticFeatures
from myxtts.evaluation.held_out import Utterance
from myxtts.files import write_whole
from myxtts.observe.plots import f0_curves, mel_and_alignment, png_bytes

COLUMNS = "voice", "copy_synthesis", "shuffled_texts"


@dataclass(frozen=True)
class Metric:
    """One figure between its ceiling and its floor; None where it has no meaning or nothing was measured."""

    voice: float | None
    copy_synthesis: float | None = None
    shuffled_texts: float | None = None


# key: name in the table, unit, factor to that unit, digits behind the point
SHOWN = {
    "mel_cepstral_distortion": ("mel-cepstral distortion", "dB", 1, 2),
    "relative_distortion": ("mel-cepstral distortion, times copy synthesis", "×", 1, 2),
    "log_f0_rmse": ("log-F0 RMSE", "ln Hz", 1, 3),
    "voicing_error": ("voicing error", "%", 100, 1),
    "duration_ratio": ("duration ratio, mean", "s/s", 1, 3),
    "duration_within_bounds": ("duration ratio within 0.95–1.05", "%", 100, 0),
    "utterances_with_deletions": ("utterances with deletions", "count", 1, 0),
    "utterances_with_insertions": ("utterances with insertions", "count", 1, 0),
    "character_error_rate": ("character error rate, by the recogniser", "%", 100, 1),
    "word_error_rate": ("word error rate, by the recogniser", "%", 100, 1),
    "speaker_accuracy_seen": ("speaker accuracy, speakers of the training corpus", "%", 100, 0),
    "speaker_accuracy_unseen": ("speaker accuracy, speakers never heard", "%", 100, 0),
    "real_time_factor": ("real-time factor, text to wave", "s/s", 1, 3),
} | {
    f"{key}_{figure}": (f"{boundary}, {name}", unit, factor, digits)
    for key, boundary in (
        ("boundary", "phoneme boundaries"),
        ("boundary_onset", "… where silence ends"),
        ("boundary_offset", "… where silence begins"),
        ("boundary_between", "… between two sounds"),
    )
    for figure, name, unit, factor, digits in (
        ("signed_median", "signed median error", "ms", 1, 1),
        ("absolute_median", "absolute median error", "ms", 1, 1),
        ("within_20_ms", "within 20 ms", "%", 100, 0),
    )
}


@dataclass(frozen=True)
class Score:
    """What was measured of a checkpoint.

    Attributes:
        metrics: by the keys of SHOWN; those without meaning for this corpus are missing.
        languages: the same of each language, where there are several.
        notes: what the figures rest on, and what was left out and why.
    """

    run: str
    checkpoint: str
    utterances: int
    metrics: dict[str, Metric]
    languages: dict[str, dict[str, Metric]]
    notes: tuple[str, ...]

    def table(self) -> str:
        """Markdown."""
        lines = ["| metric | voice | copy synthesis | shuffled texts | unit |", "|---|---|---|---|---|"]
        lines += [_line(key, metric) for key, metric in self.metrics.items()]
        for language, metrics in self.languages.items():
            lines += [_line(key, metric, f"{language}: ") for key, metric in metrics.items()]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """The same, with the unit of each metric; percentages as shares."""
        languages = {language: _with_units(metrics) for language, metrics in self.languages.items()}
        return asdict(self) | {"metrics": _with_units(self.metrics), "languages": languages}


class Told(Protocol):
    """What can be told of a checkpoint."""

    def table(self) -> str:
        """Markdown."""

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""


def tell(score: Told, json_file: Path | None) -> None:
    """Print the table, and write the JSON where a file is named."""
    print(score.table())
    if json_file is not None:
        write_whole(json_file, json.dumps(score.to_json(), ensure_ascii=False, indent=1).encode())


def folder_for(run: Path, checkpoint: Path, data: Path | None, out: Path | None) -> Path:
    """Where the files of an evaluation go: `out`, or a folder of the run for this checkpoint and corpus.

    Raises:
        ConfigError: it is a file.
    """
    part = f"-{corpus_folder(data).name}" if data else ""
    folder = out or run / "evaluation" / f"{checkpoint.name}{part}"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} was asked for, but that is a file. Name a folder.")
    return folder


def _line(key: str, metric: Metric, language: str = "") -> str:
    """A line of the table."""
    name, unit, factor, digits = SHOWN[key]
    values = (getattr(metric, column) for column in COLUMNS)
    shown = ("–" if value is None else f"{factor * value:.{digits}f}" for value in values)
    return f"| {language}{name} | {' | '.join(shown)} | {unit} |"


def _with_units(metrics: dict[str, Metric]) -> dict[str, Any]:
    units = {key: "share" if factor == 100 else unit for key, (_, unit, factor, _) in SHOWN.items()}
    return {key: asdict(metric) | {"unit": units[key]} for key, metric in metrics.items()}


def draw(
    folder: Path,
    utterances: Sequence[Utterance],
    recorded: Sequence[AcousticFeatures],
    spoken: Sequence[AcousticFeatures],
) -> None:
    """For each utterance `<number>-<id>-mel.png` and `<number>-<id>-f0.png`; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (one, record, voice) in enumerate(zip(utterances, recorded, spoken, strict=True), 1):
        name = f"{number}-{Path(one.id).stem}"
        picture = mel_and_alignment(record.mel, voice.mel, one.path, one.text)
        (folder / f"{name}-mel.png").write_bytes(png_bytes(picture))
        curves = {"recorded": record.voiced_f0_hz, "voice": voice.voiced_f0_hz}
        (folder / f"{name}-f0.png").write_bytes(png_bytes(f0_curves(curves, one.text)))
