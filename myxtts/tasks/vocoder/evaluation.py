"""Metrics of a vocoder's run: its copies next to Griffin-Lim's and the recordings themselves."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import librosa
import numpy as np

from myxtts.audio.audio_file import write_wav
from myxtts.audio.format import (
    DECIBELS_PER_NEPER,
    FFT_SAMPLES,
    HOP_SAMPLES,
    frame_count,
    sample_rate_hz,
)
from myxtts.audio.vocoder import GriffinLim, LoadVocoder, VocoderProtocol
from myxtts.base.files import numbered_name
from myxtts.base.machine import core_count
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.corpus.rows import DEFAULT_SPEAKER
from myxtts.corpus.sound import read_row
from myxtts.report.plots import png_bytes, spectra
from myxtts.tasks import loading
from myxtts.tasks.base import Throttle, no_throttle
from myxtts.tasks.evaluation import held_out, metrics, speech, table
from myxtts.tasks.evaluation.held_out import Evaluation
from myxtts.tasks.evaluation.metrics import CopyMetrics
from myxtts.tasks.evaluation.table import ColumnScore, Means, Metric, Metrics, ScoreWeights

# Each is copied by two vocoders with each of 3 seeds, one at a time: 300 copies.
MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
# Noise changes each figure a little. The median of three is not moved by one draw.
SEEDS = (0, 1, 2)

log = logging.getLogger(__name__)


class Copies(NamedTuple):
    """What a vocoder makes of recordings."""

    waves: list[np.ndarray]  # of the first seed
    metrics: list[list[CopyMetrics]]  # of each seed, of each recording
    real_time_factors: list[float]  # one for each seed and recording


def score_run(run: TrainedRun, evaluation: Evaluation, folder: Path) -> ColumnScore:
    """Measure a checkpoint, and write sounds and pictures."""
    device = evaluation.route.model
    evaluator = VocoderEvaluator(evaluation, loading.load_vocoder_network(run, device))
    score = evaluator.score(run.checkpoint.path.name)
    for row, utterance in enumerate(evaluator.utterances[:PLOTTED_UTTERANCES]):
        name = numbered_name(row + 1, utterance["id"])
        levels_db = {}
        for column, of_column in evaluator.columns.items():
            wave = of_column.waves[row]
            write_wav(folder / f"{name}.{column}.wav", wave)
            magnitude = np.abs(librosa.stft(wave, n_fft=FFT_SAMPLES, hop_length=HOP_SAMPLES))
            level_db = DECIBELS_PER_NEPER * np.log(np.maximum(magnitude.T, 1e-10))
            levels_db[table.title(column)] = level_db
        # With the recording at the top, so that the copies lie below it.
        levels_db = {"recordings": levels_db.pop("recordings"), **levels_db}
        (folder / f"{name}.png").write_bytes(png_bytes(spectra(levels_db, name)))
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
    """Measures the copies of recordings that a vocoder makes, any number of times, and
    Griffin-Lim's once. `columns` are of the last `score`.
    """

    # Made once: recordings cut to whole frames, their mels, their 16-bit samples as the ideal copy,
    # and the copies by Griffin-Lim. `score` then copies with the weights of the moment.
    def __init__(self, evaluation: Evaluation, vocoder: VocoderProtocol):
        self._evaluation, self._vocoder = evaluation, vocoder
        corpus, options, device = evaluation.corpus, evaluation.options, evaluation.route.model
        self._seeds = options.seeds or SEEDS
        count = options.utterances or MAX_UTTERANCES
        self.utterances: list[dict[str, str]] = []
        waves = []
        for row in held_out.evenly_spaced(np.arange(len(corpus.manifest)), count).tolist():
            wave = read_row(corpus.manifest, row, corpus.config.data.loudness)
            waves.append(wave[: frame_count(len(wave)) * HOP_SAMPLES])
            self.utterances.append(corpus.names_of(row))
        seen = dict.fromkeys(corpus.trained_speakers, "seen")
        self._familiarity = [seen.get(of["speaker"], "unseen") for of in self.utterances]
        self._mels = [features.mel for features in speech.acoustic_features(waves, device)]
        self._rounded = speech.features_in_16_bits(waves, device)
        griffin_lim = GriffinLim()
        # The first call traces, which takes seconds, and would count in the real-time factor.
        for traced in (griffin_lim, vocoder):
            speech.vocode_mels(traced, self._mels[:1], device, recorded=True)
        own = metrics.measure_copies(self._rounded, self._rounded, options.perceptual)
        self._fixed = {
            "griffin_lim": self._copies_by(griffin_lim, no_throttle),
            "recordings": Copies(waves, [own], []),
        }

    def score(self, checkpoint: str, throttle: Throttle = no_throttle) -> ColumnScore:
        """Measure the weights that the vocoder has now; `checkpoint` is their name in the score."""
        self.columns = {"neural": self._copies_by(self._vocoder, throttle)} | self._fixed
        columns = {name: copies.metrics for name, copies in self.columns.items()}
        common = metrics.with_common_scores(columns)
        measure = partial(metrics_of_rows, common)
        notes = self._notes()
        if self._evaluation.options.perceptual:
            notes += metrics.missing_packages(metrics.SCORES)
            notes += metrics.score_notes(common["recordings"][0])
        by_seed = {
            name: [metrics.mean_copy_metrics(of_seed) for of_seed in seeds]
            for name, seeds in common.items()
        }
        languages = [utterance["language"] for utterance in self.utterances]
        return ColumnScore(
            run=str(self._evaluation.run),
            checkpoint=checkpoint,
            utterances=len(self.utterances),
            columns=tuple(self.columns),
            metrics=measure(range(len(self.utterances))),
            groups={
                "languages": table.metrics_by_group(languages, measure),
                "speakers": table.metrics_by_group(self._familiarity, measure),
            },
            notes=tuple(notes),
            details={"seeds": list(self._seeds), "by_seed": by_seed},
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
                copies += speech.vocode_mels(vocoder, [mel], device, (seed, 0), recorded=True)
                elapsed_s = time.perf_counter() - started_s
                factors.append(elapsed_s * sample_rate_hz() / len(copies[-1]))
            copied = speech.features_in_16_bits(copies, device, throttle)
            measured.append(metrics.measure_copies(self._rounded, copied, perceptual, throttle))
            first = first or copies
        return Copies(first, measured, factors)

    def _notes(self) -> list[str]:
        """Return notes on what is measured, how, and of which speakers."""
        count = len(self.utterances)
        speech_s = sum(map(len, self._fixed["recordings"].waves)) / sample_rate_hz()
        seeds = ", ".join(map(str, self._seeds))
        seen = self._familiarity.count("seen")
        speakers = (
            f"{seen} utterances are of speakers seen in training, {count - seen} of other speakers"
        )
        # A corpus without speakers has one of the default name, which says nothing of who it is.
        if not seen and any(of["speaker"] == DEFAULT_SPEAKER for of in self.utterances):
            speakers = (
                "the corpus does not name its speakers, so speakers seen in training are not"
                " distinguished"
            )
        return [
            f"{count} {self._evaluation.corpus.source}, {speech_s:.1f} s of speech; each"
            f" figure is the median over the seeds {seeds} of the mean over utterances",
            "the vocoders copy the recordings from their log-mels; the column recordings is their"
            " own 16-bit samples",
            speakers,
        ]


def metrics_of_rows(
    columns: Mapping[str, Sequence[Sequence[CopyMetrics]]], rows: Sequence[int]
) -> Metrics:
    """Return, for each column, the median over seeds of the means over some utterances."""
    by_column = {}
    for name, seeds in columns.items():
        means = [metrics.mean_copy_metrics([of_seed[row] for row in rows]) for of_seed in seeds]
        by_column[name] = medians(means)
    return table.by_metric(by_column)


def medians(items: Sequence[Means]) -> Means:
    """Return the median of the values of each key, without None; None where there are none."""
    found: Means = {}
    for key in items[0]:
        values = [value for item in items if (value := item[key]) is not None]
        found[key] = median(values) if values else None
    return found
