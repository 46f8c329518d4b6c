"""Metrics of a vocoder's run: its copies next to Griffin-Lim's and the recordings themselves."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import librosa
import numpy as np

from myxtts.audio import format as audio
from myxtts.audio.vocoder import GriffinLim, VocoderProtocol
from myxtts.data.audio_file import write_wav
from myxtts.data.metadata_file import DEFAULT_SPEAKER
from myxtts.evaluation import held_out, metrics, speech, table
from myxtts.evaluation.held_out import Evaluation, MeasuredCorpus
from myxtts.evaluation.metrics import CopyMetrics
from myxtts.evaluation.table import ColumnScore, Means, Metric, Metrics, ScoreWeights
from myxtts.files import numbered_name
from myxtts.machine import core_count
from myxtts.report.plots import png_bytes, spectra
from myxtts.training.observation import LoadVocoder, Throttle, no_throttle
from myxtts.training.runs import TrainedRun

# Each is copied by two vocoders with each of 3 seeds, one at a time: 300 copies.
MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
# Noise changes each figure a little. The median of three is not moved by one draw.
SEEDS = (0, 1, 2)
QUARTILES = (25, 50, 75)
# The picture has the recording at the top, so that the copies lie below it.
PICTURED = ("recordings", "neural", "griffin_lim")

log = logging.getLogger(__name__)


class Recording(NamedTuple):
    """An utterance in whole frames, float32 [samples] at 22,050 Hz, with names of its speaker and
    language.
    """

    id: str
    wave: np.ndarray
    speaker: str
    language: str


class Copies(NamedTuple):
    """What a vocoder makes of recordings."""

    waves: list[np.ndarray]  # of the first seed
    metrics: list[list[CopyMetrics]]  # of each seed, of each recording
    real_time_factors: list[float]  # one for each seed and recording


def score_run(run: TrainedRun, evaluation: Evaluation, folder: Path) -> ColumnScore:
    """Measure a checkpoint, and write sounds and pictures."""
    device = evaluation.route.model
    evaluator = VocoderEvaluator(evaluation, run.load_vocoder(device))
    score = evaluator.score(run.checkpoint.path.name)
    for row, recording in enumerate(evaluator.recordings[:PLOTTED_UTTERANCES]):
        name = numbered_name(row + 1, recording.id)
        waves = {column: of.waves[row] for column, of in evaluator.columns.items()}
        write_example(folder, name, waves)
    log.info("pictures       %s", folder)
    cores = core_count()
    times = {name: of.real_time_factors for name, of in evaluator.columns.items()}
    note = (
        f"the real-time factor is the median of {len(times['neural'])} times from mel to wave, one"
        f" utterance at a time, on {device}, CPU cores: {cores}, after a warm-up"
    )
    factors: Metric = {name: median(of_column) for name, of_column in times.items() if of_column}
    return replace(
        score,
        metrics=score.metrics | {"real_time_factor": factors},
        notes=(*score.notes, note),
        details={"cores": cores, **score.details},
    )


def score_in_run(
    evaluation: Evaluation, network: VocoderProtocol, load: LoadVocoder
) -> ScoreWeights:
    """Return what measures a network during its run, with everything compiled."""
    return VocoderEvaluator(evaluation, network).score


class VocoderEvaluator:
    """Measures the copies of recordings that a vocoder makes, any number of times.

    Griffin-Lim's are measured once.

    Attributes:
        columns: of the last `score`.
    """

    def __init__(self, evaluation: Evaluation, vocoder: VocoderProtocol):
        self._evaluation, self._vocoder = evaluation, vocoder
        corpus, options, device = evaluation.corpus, evaluation.options, evaluation.route.model
        self._seeds = options.seeds or SEEDS
        self.recordings = recordings_of(corpus, options.utterances or MAX_UTTERANCES)
        seen = dict.fromkeys(corpus.trained_speakers, "seen")
        self._familiarity = [seen.get(of.speaker, "unseen") for of in self.recordings]
        waves = [recording.wave for recording in self.recordings]
        self._mels = [features.mel for features in speech.acoustic_features(waves, device)]
        self._rounded = speech.features_in_16_bits(waves, device)
        griffin_lim = GriffinLim()
        # The first call traces, which takes seconds, and would count in the real-time factor.
        for traced in (griffin_lim, vocoder):
            speech.vocode_mels(traced, self._mels[:1], device)
        own = metrics.measure_copies(self._rounded, self._rounded, options.perceptual)
        self._fixed = {
            "griffin_lim": self._copies_by(griffin_lim, no_throttle),
            "recordings": Copies(waves, [own], []),
        }

    def score(self, checkpoint: str, throttle: Throttle = no_throttle) -> ColumnScore:
        """Measure the weights that the vocoder has, which are those of a checkpoint."""
        self.columns = {"neural": self._copies_by(self._vocoder, throttle)} | self._fixed
        columns = {name: copies.metrics for name, copies in self.columns.items()}
        common = metrics.with_common_scores(columns)

        def measure(rows: Sequence[int]) -> Metrics:
            return metrics_of_rows(common, rows)

        notes = self._notes()
        if self._evaluation.options.perceptual:
            notes += metrics.score_notes(common["recordings"][0])
        by_seed = {
            name: [metrics.mean_copy_metrics(of_seed) for of_seed in seeds]
            for name, seeds in common.items()
        }
        languages = [recording.language for recording in self.recordings]
        details = {"seeds": list(self._seeds), "by_seed": by_seed}
        return ColumnScore(
            run=str(self._evaluation.run),
            checkpoint=checkpoint,
            utterances=len(self.recordings),
            columns=tuple(self.columns),
            metrics=measure(range(len(self.recordings))),
            groups={
                "languages": table.metrics_by_group(languages, measure),
                "speakers": table.metrics_by_group(self._familiarity, measure),
            },
            notes=tuple(notes),
            details=details | utterance_details(self.recordings, common),
        )

    def _copies_by(self, vocoder: VocoderProtocol, throttle: Throttle) -> Copies:
        device, perceptual = self._evaluation.route.model, self._evaluation.options.perceptual
        first: list[np.ndarray] = []
        measured = []
        factors = []
        for seed in self._seeds:
            copies: list[np.ndarray] = []
            # One utterance at a time, as a user hears it: batches would hide the latency of a call.
            for mel in self._mels:
                throttle()
                started_s = time.perf_counter()
                copies += speech.vocode_mels(vocoder, [mel], device, (seed, 0))
                elapsed_s = time.perf_counter() - started_s
                factors.append(elapsed_s * audio.SAMPLE_RATE_HZ / len(copies[-1]))
            copied = speech.features_in_16_bits(copies, device, throttle)
            measured.append(metrics.measure_copies(self._rounded, copied, perceptual, throttle))
            first = first or copies
        return Copies(first, measured, factors)

    def _notes(self) -> list[str]:
        """Return notes on what was measured, how, and of which speakers."""
        recordings = self.recordings
        speech_s = sum(len(recording.wave) for recording in recordings) / audio.SAMPLE_RATE_HZ
        seeds = ", ".join(map(str, self._seeds))
        seen = self._familiarity.count("seen")
        speakers = (
            f"{seen} utterances are of speakers seen in training, {len(recordings) - seen} of"
            " other speakers"
        )
        # A corpus without speakers has one of the default name, which says nothing of who it is.
        if not seen and any(recording.speaker == DEFAULT_SPEAKER for recording in recordings):
            speakers = (
                "the corpus does not name its speakers, so speakers seen in training are not"
                " distinguished"
            )
        return [
            f"{len(recordings)} {self._evaluation.corpus.source}, {speech_s:.1f} s of speech; each"
            f" figure is the median over the seeds {seeds} of the mean over utterances",
            "the vocoders copy the recordings from their log-mels; the column recordings is their"
            " own 16-bit samples",
            speakers,
        ]


def recordings_of(corpus: MeasuredCorpus, count: int) -> list[Recording]:
    """Read at most `count` utterances, evenly spaced in their corpus."""
    manifest, vocabulary = corpus.manifest, corpus.vocabulary
    recordings = []
    for row in held_out.evenly_spaced(np.arange(len(manifest)), count).tolist():
        wave = held_out.read_row(manifest, row)
        whole_frames = wave[: audio.frame_count(len(wave)) * audio.HOP_SAMPLES]
        speaker = vocabulary.speakers[manifest.speaker[row]]
        language = vocabulary.languages[manifest.language[row]]
        recordings.append(Recording(manifest.ids[row], whole_frames, speaker, language))
    return recordings


def metrics_of_rows(
    columns: Mapping[str, Sequence[Sequence[CopyMetrics]]], rows: Sequence[int]
) -> Metrics:
    """Return, for each column, the median over seeds of the means over some utterances."""
    by_column = {}
    for name, seeds in columns.items():
        means = [metrics.mean_copy_metrics([of_seed[row] for row in rows]) for of_seed in seeds]
        by_column[name] = summary(means, median)
    return table.by_metric(by_column)


def summary(items: Sequence[Means], function: Callable[[list[float]], Any]) -> dict[str, Any]:
    """Return a function of the values of each key, without None; None where there are none."""
    summarized = {}
    for key in items[0]:
        values = [value for item in items if (value := item[key]) is not None]
        summarized[key] = function(values) if values else None
    return summarized


def quartiles(values: list[float]) -> list[float]:
    return np.percentile(values, QUARTILES).tolist()


def utterance_details(
    recordings: Sequence[Recording], columns: Mapping[str, Sequence[Sequence[CopyMetrics]]]
) -> dict[str, Any]:
    """Return the medians over seeds of every utterance by column, and their quartiles."""
    utterances: list[dict[str, Any]] = [
        {"id": recording.id, "speaker": recording.speaker, "language": recording.language}
        for recording in recordings
    ]
    of_columns = {}
    for column, seeds in columns.items():
        for row, utterance in enumerate(utterances):
            means = [metrics.mean_copy_metrics([of_seed[row]]) for of_seed in seeds]
            utterance[column] = summary(means, median)
        of_columns[column] = summary([utterance[column] for utterance in utterances], quartiles)
    return {"quartiles": of_columns, "utterance_metrics": utterances}


def write_example(folder: Path, name: str, waves: Mapping[str, np.ndarray]) -> None:
    """Write NAME.COLUMN.wav for each column, and their spectra as one picture."""
    for column, wave in waves.items():
        write_wav(folder / f"{name}.{column}.wav", wave)
    levels = {table.title(column): level_db(waves[column]) for column in PICTURED}
    (folder / f"{name}.png").write_bytes(png_bytes(spectra(levels, name)))


def level_db(wave: np.ndarray) -> np.ndarray:
    """Return the level of each bin of the STFT, float32 [frames, 513], at least -200 dB."""
    magnitude = np.abs(librosa.stft(wave, n_fft=audio.FFT_SAMPLES, hop_length=audio.HOP_SAMPLES))
    return audio.DECIBELS_PER_NEPER * np.log(np.maximum(magnitude.T, 1e-10))
