"""Metrics of a vocoder's run: its copies of recordings beside Griffin-Lim's and the recordings
themselves.
"""

import logging
import time
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
from myxtts.audio.griffin_lim import GriffinLim
from myxtts.audio.vocoder import VocoderProtocol
from myxtts.audio.wav import write_wav
from myxtts.data.manifest import Manifest, Vocabulary
from myxtts.data.metadata_file import DEFAULT_SPEAKER
from myxtts.evaluation.held_out import (
    evenly_spaced,
    load_held_out,
    load_other_corpus,
    open_target,
    read_row,
)
from myxtts.evaluation.metrics import (
    CopyMetrics,
    installed_scores,
    mean_copy_metrics,
    score_notes,
    with_common_scores,
    without_perceptual,
)
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.speech import (
    acoustic_features,
    measure_copies,
    vocode_mels,
    waves_in_16_bits,
)
from myxtts.evaluation.table import (
    COLUMNS,
    ColumnScore,
    Metric,
    Metrics,
    ScoreWeights,
    metrics_by_group,
    print_score,
)
from myxtts.files import numbered_name
from myxtts.machine import core_count
from myxtts.report.plots import png_bytes, spectra
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.held_out import LoadVocoder
from myxtts.training.load_vocoder import TrainedVocoder
from myxtts.training.observation import Pace, no_pace
from myxtts.training.runs import RunFolder, read_vocoder_run, settings_of, vocabulary_of
from myxtts.training.setup import TrainingSetup

MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
SEEDS = (0, 1, 2)
QUARTILES = (25, 50, 75)
PICTURED = ("recordings", "neural", "griffin_lim")  # from the top down

log = logging.getLogger(__name__)


class Recording(NamedTuple):
    """An utterance in whole frames: float32 [samples] at 22,050 Hz, with the names of its speaker
    and its language.
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


def evaluate_vocoder(run: Path, checkpoint: str | None, options: EvaluationOptions) -> None:
    """Measure a vocoder on GPU 0 or else on the CPU; print a table, and write JSON, sounds and
    pictures.

    Raises:
        UserError: the run, a corpus, an output or an option cannot be used.
    """
    selected, folder, route = open_target(run, checkpoint, "vocoder", options)
    print_score(
        score_vocoder(run, selected, options, route.model, folder), folder, options.json_file
    )
    log.info("pictures       %s", folder)


def score_vocoder(
    run: Path, checkpoint: Path, options: EvaluationOptions, device: str, folder: Path
) -> ColumnScore:
    """Measure a checkpoint, and write sounds and pictures.

    Raises:
        CheckpointError: the checkpoint is damaged, or its corpus has changed since.
        DataError: a corpus is missing or cannot be used, nothing was held out, or a file cannot be
            read.
    """
    vocoder = TrainedVocoder(read_vocoder_run(run, checkpoint.name), device)
    held_out = load_recordings(run, checkpoint, options, folder)
    log.info("evaluation     %s, %d utterances", checkpoint, len(held_out.recordings))
    source = f"utterances of {options.data}" if options.data else "held-out utterances"
    evaluator = VocoderEvaluator(
        held_out, options.seeds or SEEDS, source, device, options.perceptual
    )
    evaluator.warm_up(vocoder)
    copies = evaluator.copies_by(vocoder)
    for number, recording in enumerate(held_out.recordings[:PLOTTED_UTTERANCES]):
        waves = {name: of.waves[number] for name, of in copies.items()}
        write_example(folder, number + 1, recording.id, waves)
    score = evaluator.score(run, checkpoint.name, copies)
    factors: Metric = {
        name: median(of.real_time_factors) for name, of in copies.items() if of.real_time_factors
    }
    return replace(
        score,
        metrics=score.metrics | {"real_time_factor": factors},
        notes=(*score.notes, timing_note(len(held_out.recordings) * len(evaluator.seeds), device)),
        details={"cores": core_count(), **score.details},
    )


class HeldOutRecordings(NamedTuple):
    """Recordings to measure, and the names of the speakers that the run was trained on."""

    recordings: list[Recording]
    known_speakers: set[str]


class VocoderEvaluator:
    """Measures the copies of recordings that a vocoder makes, any number of times; Griffin-Lim's
    are measured once.

    Args:
        held_out: what is copied.
        seeds: of the noise.
        source: description of the recordings, for the notes.
        perceptual: measure PESQ and STOI, too, if their packages are installed.
    """

    def __init__(
        self,
        held_out: HeldOutRecordings,
        seeds: Sequence[int],
        source: str,
        device: str,
        perceptual: bool,
    ):
        self._held_out, self.seeds, self._source, self._device = held_out, seeds, source, device
        self._is_perceptual, self._perceptual = perceptual, installed_scores() if perceptual else {}
        waves = [recording.wave for recording in held_out.recordings]
        self._mels = [features.mel for features in acoustic_features(waves, device)]
        self._recordings = waves_in_16_bits(waves, device)
        own_metrics = measure_copies(self._recordings, waves, device, self._perceptual)
        griffin_lim = GriffinLim()
        self.warm_up(griffin_lim)
        self._fixed = {
            "griffin_lim": self._copies_by(griffin_lim, no_pace),
            "recordings": Copies(waves, [own_metrics], []),
        }

    def warm_up(self, vocoder: VocoderProtocol) -> None:
        """Trace a vocoder and let it compute once, so that the first time of `copies_by` is like
        the others.
        """
        vocode_mels(vocoder, self._mels[:1], self._device)

    def copies_by(self, vocoder: VocoderProtocol, pace: Pace = no_pace) -> dict[str, Copies]:
        """Return the copies by column: by a vocoder, and those that are fixed.

        Args:
            pace: see `Pace`.
        """
        return {"neural": self._copies_by(vocoder, pace), **self._fixed}

    def score(self, run: Path, checkpoint: str, copies: Mapping[str, Copies]) -> ColumnScore:
        """Return the metrics of copies by a checkpoint."""
        recordings, known_speakers = self._held_out
        metrics = common_metrics(copies)

        def measure(rows: Sequence[int]) -> Metrics:
            of_rows = metrics_of_rows(metrics, rows)
            return of_rows if self._is_perceptual else without_perceptual(of_rows)

        groups = {
            "languages": metrics_by_group([recording.language for recording in recordings], measure)
        }
        familiarity = [
            "seen" if recording.speaker in known_speakers else "unseen" for recording in recordings
        ]
        groups["speakers"] = metrics_by_group(familiarity, measure)
        return ColumnScore(
            run=str(run),
            checkpoint=checkpoint,
            utterances=len(recordings),
            columns=tuple(copies),
            metrics=measure(range(len(recordings))),
            groups=groups,
            notes=(
                *condition_notes(recordings, self._source, self.seeds),
                speaker_note(familiarity, recordings),
                *(score_notes(metrics["recordings"][0]) if self._is_perceptual else ()),
            ),
            details={
                "seeds": list(self.seeds),
                "by_seed": {
                    name: [mean_copy_metrics(of_seed) for of_seed in of]
                    for name, of in metrics.items()
                },
                **utterance_details(recordings, metrics),
            },
        )

    def _copies_by(self, vocoder: VocoderProtocol, pace: Pace) -> Copies:
        """Return the copies with each seed, made one at a time, and the time that each took."""
        first: list[np.ndarray] = []
        metrics, factors = [], []
        for seed in self.seeds:
            copies = []
            for mel in self._mels:
                pace()
                started_s = time.perf_counter()
                copies += vocode_mels(vocoder, [mel], self._device, (seed, 0))
                factors.append((time.perf_counter() - started_s) * SAMPLE_RATE_HZ / len(copies[-1]))
            metrics.append(
                measure_copies(self._recordings, copies, self._device, self._perceptual, pace)
            )
            first = first or copies
        return Copies(first, metrics, factors)


def score_in_run(
    setup: TrainingSetup, network: keras.Model, device: str, folder: RunFolder, load: LoadVocoder
) -> ScoreWeights:
    """Return what measures a network during its run, with everything compiled; see
    `ScoreWeights`.
    """
    corpora, settings = setup.corpora, setup.config.run
    assert corpora.held_out is not None
    known_speakers = speakers_of(corpora.training.manifest, corpora.vocabulary)
    manifest, count = corpora.held_out.manifest, settings.evaluate_utterances
    held_out = recordings_of(manifest, corpora.vocabulary, count, known_speakers)
    evaluator = VocoderEvaluator(
        held_out, SEEDS[:1], "held-out utterances", device, settings.evaluate_pesq
    )
    evaluator.warm_up(network)
    return lambda checkpoint, pace: evaluator.score(
        folder.path, checkpoint, evaluator.copies_by(network, pace)
    )


def load_recordings(
    run: Path, checkpoint: Path, options: EvaluationOptions, folder: Path
) -> HeldOutRecordings:
    """Return the utterances to measure, evenly spaced in their corpus."""
    metadata = read_metadata(checkpoint)
    if options.data is None:
        corpora, manifest = load_held_out(checkpoint, metadata, run, folder)
        vocabulary = corpora.vocabulary
        known_speakers = speakers_of(corpora.training.manifest, vocabulary)
    else:
        config = settings_of(checkpoint, metadata)
        known = vocabulary_of(metadata)
        manifest, vocabulary = load_other_corpus(options, config, known, folder)
        known_speakers = set(metadata["speakers"]) - {DEFAULT_SPEAKER}
    return recordings_of(manifest, vocabulary, options.utterances or MAX_UTTERANCES, known_speakers)


def speakers_of(manifest: Manifest, vocabulary: Vocabulary) -> set[str]:
    return {vocabulary.speakers[speaker] for speaker in np.unique(manifest.speaker)}


def recordings_of(
    manifest: Manifest, vocabulary: Vocabulary, count: int, known_speakers: set[str]
) -> HeldOutRecordings:
    rows = evenly_spaced(np.arange(len(manifest)), count)
    return HeldOutRecordings(
        [recording_of(manifest, vocabulary, row) for row in rows.tolist()], known_speakers
    )


def recording_of(manifest: Manifest, vocabulary: Vocabulary, row: int) -> Recording:
    wave = read_row(manifest, row)
    speaker, language = (
        vocabulary.speakers[manifest.speaker[row]],
        vocabulary.languages[manifest.language[row]],
    )
    return Recording(
        manifest.ids[row], wave[: frame_count(len(wave)) * HOP_SAMPLES], speaker, language
    )


def common_metrics(copies: Mapping[str, Copies]) -> dict[str, list[list[CopyMetrics]]]:
    """Return the metrics of each column and seed, with scores only where all of these have them."""
    flat = {
        (name, seed): metrics
        for name, of in copies.items()
        for seed, metrics in enumerate(of.metrics)
    }
    common = with_common_scores(flat)
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


def medians(items: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the median of each key; None where no item has a value."""
    values = {
        key: [value for item in items if (value := item[key]) is not None] for key in items[0]
    }
    return {key: median(of_key) if of_key else None for key, of_key in values.items()}


def utterance_details(
    recordings: Sequence[Recording], metrics: Mapping[str, Sequence[Sequence[CopyMetrics]]]
) -> dict[str, Any]:
    """Return the medians over seeds of every utterance, and their quartiles over utterances, by
    column.
    """
    by_utterance = {
        column: [
            medians([mean_copy_metrics([copy]) for copy in of_seeds])
            for of_seeds in zip(*seeds, strict=True)
        ]
        for column, seeds in metrics.items()
    }
    return {
        "quartiles": {column: quartiles(values) for column, values in by_utterance.items()},
        "utterance_metrics": [
            {"id": recording.id, "speaker": recording.speaker, "language": recording.language}
            | {column: values[row] for column, values in by_utterance.items()}
            for row, recording in enumerate(recordings)
        ],
    }


def quartiles(items: Sequence[Mapping[str, float | None]]) -> dict[str, list[float] | None]:
    """Return the 25th, 50th and 75th percentile of each key."""
    values = {
        key: [value for item in items if (value := item[key]) is not None] for key in items[0]
    }
    return {
        key: np.percentile(of_key, QUARTILES).tolist() if of_key else None
        for key, of_key in values.items()
    }


def condition_notes(
    recordings: Sequence[Recording], source: str, seeds: Sequence[int]
) -> list[str]:
    """Return notes on what was measured, and how."""
    audio_s = sum(len(recording.wave) for recording in recordings) / SAMPLE_RATE_HZ
    return [
        f"{len(recordings)} {source}, {audio_s:.1f} s of speech; each figure is the median over"
        f" the seeds {', '.join(map(str, seeds))} of the mean over utterances",
        "the vocoders copy the recordings from their log-mels; the column recordings is their"
        " own 16-bit samples",
    ]


def timing_note(times: int, device: str) -> str:
    """Return a note on how the real-time factor was measured."""
    cores = core_count()
    return (
        f"the real-time factor is the median of {times} times from mel to wave, one utterance at a"
        f" time, on {device} with {cores} core{'s' * (cores > 1)}, after a warm-up"
    )


def speaker_note(familiarity: Sequence[str], recordings: Sequence[Recording]) -> str:
    """Return a note on how many utterances are of speakers seen in training."""
    seen = familiarity.count("seen")
    if any(recording.speaker == DEFAULT_SPEAKER for recording in recordings) and not seen:
        return (
            "the corpus does not name its speakers, so speakers seen in training are not"
            " distinguished"
        )
    return (
        f"{seen} utterances are of speakers seen in training, {len(familiarity) - seen} of other"
        " speakers"
    )


def write_example(
    folder: Path, number: int, identity: str, waves: Mapping[str, np.ndarray]
) -> None:
    """Write `<number>-<id>.<column>.wav` for each column, and their spectra as one picture."""
    folder.mkdir(parents=True, exist_ok=True)
    name = numbered_name(number, identity)
    for column, wave in waves.items():
        write_wav(folder / f"{name}.{column}.wav", wave)
    write_spectra(
        folder / f"{name}.png", {COLUMNS[column]: waves[column] for column in PICTURED}, name
    )


def write_spectra(file: Path, waves: Mapping[str, np.ndarray], title: str) -> None:
    """Draw the spectrograms of waves, float32 [samples] each, into a PNG file."""
    file.write_bytes(
        png_bytes(spectra({name: level_db(wave) for name, wave in waves.items()}, title))
    )


def level_db(wave: np.ndarray) -> np.ndarray:
    """Return the level of each bin of the STFT, float32 [frames, 513], at least -200 dB."""
    magnitude = np.abs(librosa.stft(wave, n_fft=FFT_SAMPLES, hop_length=HOP_SAMPLES))
    return DECIBELS_PER_NEPER * np.log(np.maximum(magnitude.T, 1e-10))
