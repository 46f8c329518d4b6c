"""Metrics of a vocoder's run: its copies next to Griffin-Lim's and the recordings themselves."""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import keras
import librosa
import numpy as np

from myxtts.audio.format import (
    DECIBELS_PER_NEPER,
    FFT_SAMPLES,
    HOP_SAMPLES,
    SAMPLE_RATE_HZ,
    frame_count,
)
from myxtts.audio.vocoder import GriffinLim, VocoderProtocol
from myxtts.data.audio_file import write_wav
from myxtts.data.manifest import Manifest, Vocabulary
from myxtts.data.metadata_file import DEFAULT_SPEAKER
from myxtts.evaluation.held_out import evenly_spaced, load_measured, read_row, speakers_of
from myxtts.evaluation.metrics import (
    CopyMetrics,
    installed_scores,
    mean_copy_metrics,
    measure_copies,
    score_notes,
    with_common_scores,
    without_perceptual,
)
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.speech import acoustic_features, vocode_mels, waves_in_16_bits
from myxtts.evaluation.table import (
    COLUMNS,
    ColumnScore,
    Metric,
    Metrics,
    ScoreWeights,
    metrics_by_group,
)
from myxtts.files import numbered_name
from myxtts.machine import core_count
from myxtts.placement.routes import Route
from myxtts.report.plots import png_bytes, spectra
from myxtts.training.observation import LoadVocoder, Throttle, no_throttle
from myxtts.training.runs import RunFolder, TrainedRun
from myxtts.training.setup import TrainingSetup

# Each is copied by two vocoders with each of 3 seeds, one at a time: 300 copies.
MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
# Noise changes each figure a little. The median of three is not moved by one draw.
SEEDS = (0, 1, 2)
QUARTILES = (25, 50, 75)
# The picture has the recording at the top, so that the copies lie below it.
PICTURED = ("recordings", "neural", "griffin_lim")

Means = dict[str, float | None]
"""Means of `CopyMetrics` by name; None where nothing was measured."""

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
    """What a vocoder makes of recordings.

    Attributes:
        waves: of the first seed.
        metrics: of each seed, of each recording.
        real_time_factors: seconds of computing for a second of speech, one for each seed and
            recording.
    """

    waves: list[np.ndarray]
    metrics: list[list[CopyMetrics]]
    real_time_factors: list[float]


def score_vocoder(
    run: TrainedRun, options: EvaluationOptions, route: Route, folder: Path
) -> ColumnScore:
    """Measure a checkpoint, and write sounds and pictures.

    Raises:
        UserError: the checkpoint, a corpus or a file cannot be used.
    """
    device = route.model
    vocoder = run.load_vocoder(device)
    corpus = load_measured(run, options, folder)
    count = options.utterances or MAX_UTTERANCES
    recordings = recordings_of(corpus.manifest, corpus.vocabulary, count)
    log.info("evaluation     %s, %d utterances", run.checkpoint.path, len(recordings))
    evaluator = VocoderEvaluator(
        recordings,
        corpus.trained_speakers,
        options.seeds or SEEDS,
        corpus.source,
        device,
        options.perceptual,
    )
    evaluator.warm_up(vocoder)
    copies = evaluator.copies_by(vocoder)
    for row, recording in enumerate(recordings[:PLOTTED_UTTERANCES]):
        name = numbered_name(row + 1, recording.id)
        write_example(folder, name, {column: of.waves[row] for column, of in copies.items()})
    log.info("pictures       %s", folder)
    score = evaluator.score(run.path, run.checkpoint.path.name, copies)
    cores = core_count()
    named_cores = "1 core" if cores == 1 else f"{cores} cores"
    note = (
        f"the real-time factor is the median of {len(recordings) * len(evaluator.seeds)} times from"
        f" mel to wave, one utterance at a time, on {device} with {named_cores}, after a warm-up"
    )
    factors: Metric = {
        name: median(of.real_time_factors) for name, of in copies.items() if of.real_time_factors
    }
    return replace(
        score,
        metrics=score.metrics | {"real_time_factor": factors},
        notes=(*score.notes, note),
        details={"cores": cores, **score.details},
    )


class VocoderEvaluator:
    """Measures the copies of recordings that a vocoder makes, any number of times.

    Griffin-Lim's are measured once.

    Args:
        recordings: what is copied.
        trained_speakers: names of the speakers that the run was trained on.
        seeds: of the noise.
        source: description of the recordings, for the notes.
        perceptual: also measure PESQ and STOI, if their packages are installed.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        trained_speakers: set[str],
        seeds: Sequence[int],
        source: str,
        device: str,
        perceptual: bool,
    ):
        self._recordings = recordings
        self._trained_speakers = trained_speakers
        self.seeds = seeds
        self._source = source
        self._device = device
        self._is_perceptual = perceptual
        self._perceptual = installed_scores() if perceptual else {}
        waves = [recording.wave for recording in recordings]
        self._mels = [features.mel for features in acoustic_features(waves, device)]
        self._rounded = waves_in_16_bits(waves, device)
        own_metrics = measure_copies(self._rounded, self._rounded, self._perceptual)
        griffin_lim = GriffinLim()
        # The first call traces, which takes seconds, and would count in the real-time factor.
        self.warm_up(griffin_lim)
        self._fixed = {
            "griffin_lim": self._copies_by(griffin_lim, no_throttle),
            "recordings": Copies(waves, [own_metrics], []),
        }

    def warm_up(self, vocoder: VocoderProtocol) -> None:
        """Trace a vocoder and compute once, so that the first time is like the others."""
        vocode_mels(vocoder, self._mels[:1], self._device)

    def copies_by(
        self, vocoder: VocoderProtocol, throttle: Throttle = no_throttle
    ) -> dict[str, Copies]:
        """Return the copies by column: by a vocoder, and those that are fixed."""
        return {"neural": self._copies_by(vocoder, throttle), **self._fixed}

    def score(self, run: Path, checkpoint: str, copies: Mapping[str, Copies]) -> ColumnScore:
        """Return the metrics of copies by a checkpoint."""
        recordings = self._recordings
        metrics = common_metrics(copies)

        def measure(rows: Sequence[int]) -> Metrics:
            of_rows = metrics_of_rows(metrics, rows)
            return of_rows if self._is_perceptual else without_perceptual(of_rows)

        languages = [recording.language for recording in recordings]
        familiarity = [self._familiarity(recording) for recording in recordings]
        notes = self._notes(familiarity)
        if self._is_perceptual:
            notes += score_notes(metrics["recordings"][0])
        by_seed = {
            name: [mean_copy_metrics(of_seed) for of_seed in of] for name, of in metrics.items()
        }
        return ColumnScore(
            run=str(run),
            checkpoint=checkpoint,
            utterances=len(recordings),
            columns=tuple(copies),
            metrics=measure(range(len(recordings))),
            groups={
                "languages": metrics_by_group(languages, measure),
                "speakers": metrics_by_group(familiarity, measure),
            },
            notes=tuple(notes),
            details={
                "seeds": list(self.seeds),
                "by_seed": by_seed,
                **utterance_details(recordings, metrics),
            },
        )

    def _familiarity(self, recording: Recording) -> str:
        return "seen" if recording.speaker in self._trained_speakers else "unseen"

    def _copies_by(self, vocoder: VocoderProtocol, throttle: Throttle) -> Copies:
        """Return the copies with each seed, made one at a time, and the time that each took."""
        first: list[np.ndarray] = []
        metrics = []
        factors = []
        for seed in self.seeds:
            copies: list[np.ndarray] = []
            # One utterance at a time, as a user hears it: batches would hide the latency of a call.
            for mel in self._mels:
                throttle()
                started_s = time.perf_counter()
                copies += vocode_mels(vocoder, [mel], self._device, (seed, 0))
                elapsed_s = time.perf_counter() - started_s
                factors.append(elapsed_s * SAMPLE_RATE_HZ / len(copies[-1]))
            copied = waves_in_16_bits(copies, self._device, throttle)
            metrics.append(measure_copies(self._rounded, copied, self._perceptual, throttle))
            first = first or copies
        return Copies(first, metrics, factors)

    def _notes(self, familiarity: Sequence[str]) -> list[str]:
        """Return notes on what was measured, how, and of which speakers."""
        recordings = self._recordings
        audio_s = sum(len(recording.wave) for recording in recordings) / SAMPLE_RATE_HZ
        seen = familiarity.count("seen")
        # A corpus without speakers has one of the default name, which says nothing of who it is.
        speakers = (
            f"{seen} utterances are of speakers seen in training, {len(familiarity) - seen} of"
            " other speakers"
        )
        if not seen and any(recording.speaker == DEFAULT_SPEAKER for recording in recordings):
            speakers = (
                "the corpus does not name its speakers, so speakers seen in training are not"
                " distinguished"
            )
        return [
            f"{len(recordings)} {self._source}, {audio_s:.1f} s of speech; each figure is the"
            f" median over the seeds {', '.join(map(str, self.seeds))} of the mean over utterances",
            "the vocoders copy the recordings from their log-mels; the column recordings is their"
            " own 16-bit samples",
            speakers,
        ]


def score_in_run(
    setup: TrainingSetup, network: keras.Model, device: str, folder: RunFolder, load: LoadVocoder
) -> ScoreWeights:
    """Return what measures a network during its run, with everything compiled."""
    corpora = setup.corpora
    settings = setup.config.run
    assert corpora.held_out is not None
    recordings = recordings_of(
        corpora.held_out.manifest, corpora.vocabulary, settings.evaluate_utterances
    )
    evaluator = VocoderEvaluator(
        recordings,
        speakers_of(corpora.training.manifest, corpora.vocabulary),
        # One seed: in a run the figures of different steps are compared, all with the same noise.
        SEEDS[:1],
        "held-out utterances",
        device,
        settings.evaluate_pesq,
    )
    evaluator.warm_up(network)
    return lambda checkpoint, throttle: evaluator.score(
        folder.path, checkpoint, evaluator.copies_by(network, throttle)
    )


def recordings_of(manifest: Manifest, vocabulary: Vocabulary, count: int) -> list[Recording]:
    """Read at most `count` utterances, evenly spaced in their corpus."""
    recordings = []
    for row in evenly_spaced(np.arange(len(manifest)), count).tolist():
        wave = read_row(manifest, row)
        recordings.append(
            Recording(
                manifest.ids[row],
                wave[: frame_count(len(wave)) * HOP_SAMPLES],
                vocabulary.speakers[manifest.speaker[row]],
                vocabulary.languages[manifest.language[row]],
            )
        )
    return recordings


def common_metrics(copies: Mapping[str, Copies]) -> dict[str, list[list[CopyMetrics]]]:
    """Return the metrics of each column and seed, with scores only where all of these have them."""
    columns: dict[tuple[str, int], list[CopyMetrics]] = {}
    for name, of in copies.items():
        # A mean over other utterances in each column would compare sentences instead of vocoders.
        columns |= {(name, seed): metrics for seed, metrics in enumerate(of.metrics)}
    common = with_common_scores(columns)
    return {
        name: [common[name, seed] for seed in range(len(of.metrics))] for name, of in copies.items()
    }


def metrics_of_rows(
    metrics: Mapping[str, Sequence[Sequence[CopyMetrics]]], rows: Sequence[int]
) -> Metrics:
    """Return, for each column, the median over seeds of the means over some utterances."""
    by_column = {
        column: medians([mean_copy_metrics([of_seed[row] for row in rows]) for of_seed in seeds])
        for column, seeds in metrics.items()
    }
    return {
        key: {column: values[key] for column, values in by_column.items()}
        for key in by_column["neural"]
    }


def measured_values(items: Sequence[Means]) -> dict[str, list[float]]:
    """Return the values of each key that has some, without None."""
    values: dict[str, list[float]] = defaultdict(list)
    for item in items:
        for key, value in item.items():
            if value is not None:
                values[key].append(value)
    return values


def medians(items: Sequence[Means]) -> Means:
    """Return the median of each key; None where no item has a value."""
    return dict.fromkeys(items[0]) | {
        key: median(values) for key, values in measured_values(items).items()
    }


def quartiles(items: Sequence[Means]) -> dict[str, list[float] | None]:
    """Return the 25th, 50th and 75th percentile of each key."""
    return dict.fromkeys(items[0]) | {
        key: np.percentile(values, QUARTILES).tolist()
        for key, values in measured_values(items).items()
    }


def utterance_details(
    recordings: Sequence[Recording], metrics: Mapping[str, Sequence[Sequence[CopyMetrics]]]
) -> dict[str, Any]:
    """Return the medians over seeds of every utterance by column, and their quartiles."""
    by_utterance: dict[str, list[Means]] = {}
    for column, seeds in metrics.items():
        by_utterance[column] = [
            medians([mean_copy_metrics([copy]) for copy in of_seeds])
            for of_seeds in zip(*seeds, strict=True)
        ]
    return {
        "quartiles": {column: quartiles(values) for column, values in by_utterance.items()},
        "utterance_metrics": [
            {"id": recording.id, "speaker": recording.speaker, "language": recording.language}
            | {column: values[row] for column, values in by_utterance.items()}
            for row, recording in enumerate(recordings)
        ],
    }


def write_example(folder: Path, name: str, waves: Mapping[str, np.ndarray]) -> None:
    """Write NAME.COLUMN.wav for each column, and their spectra as one picture."""
    for column, wave in waves.items():
        write_wav(folder / f"{name}.{column}.wav", wave)
    levels = {COLUMNS[column]: level_db(waves[column]) for column in PICTURED}
    (folder / f"{name}.png").write_bytes(png_bytes(spectra(levels, name)))


def level_db(wave: np.ndarray) -> np.ndarray:
    """Return the level of each bin of the STFT, float32 [frames, 513], at least -200 dB."""
    magnitude = np.abs(librosa.stft(wave, n_fft=FFT_SAMPLES, hop_length=HOP_SAMPLES))
    return DECIBELS_PER_NEPER * np.log(np.maximum(magnitude.T, 1e-10))
