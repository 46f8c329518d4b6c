"""Metrics of a TTS run, each between copy synthesis (its best value) and shuffled texts (its worst
value).
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.griffin_lim import GriffinLim
from myxtts.audio.vocoder import VocoderProtocol
from myxtts.config.schema import Config
from myxtts.data.dataset import corpus_folder
from myxtts.data.manifest import Manifest
from myxtts.evaluation.boundaries import alignment_metrics, alignments_of, planted_errors_note
from myxtts.evaluation.held_out import (
    HeldOut,
    Utterance,
    align_utterances,
    for_evaluation,
    load_checkpoint_corpora,
    load_held_out,
    load_other_corpus,
    load_utterances,
    open_target,
    read_row,
    rows_of_each_speaker,
)
from myxtts.evaluation.metrics import (
    AcousticFeatures,
    CopyMetrics,
    PerceptualScores,
    UtteranceMetrics,
    copy_metrics,
    corpus_metrics,
    installed_scores,
    mean_copy_metrics,
    mel_cepstrum,
    score_notes,
    utterance_metrics,
    with_common_scores,
    without_perceptual,
)
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.speech import (
    BATCH_UTTERANCES,
    acoustic_features,
    log_mels,
    predict_mels,
    vocode_mels,
)
from myxtts.evaluation.table import (
    ColumnScore,
    Metric,
    Metrics,
    ScoreWeights,
    metrics_by_group,
    print_score,
)
from myxtts.files import numbered_name
from myxtts.models.xtts import XTTS, SynthesisOptions
from myxtts.placement.routes import Route
from myxtts.recognition.transcriber import Transcriber
from myxtts.report.plots import f0_curves, mel_and_alignment, png_bytes
from myxtts.tasks.tts import synthesis_options
from myxtts.text.edit_distance import error_rates
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.held_out import LoadVocoder
from myxtts.training.load_model import load_model
from myxtts.training.load_vocoder import load_vocoder
from myxtts.training.observation import Pace, no_pace
from myxtts.training.runs import RunFolder, select_vocoder, vocabulary_of
from myxtts.training.setup import TrainingSetup

MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
COLUMNS = ("synthesized", "copy_synthesis", "shuffled_texts")
GRIFFIN_LIM_SUFFIX = "_griffin_lim"  # of columns beside those of a trained vocoder
COPY_METRICS = ("pesq_wb", "stoi", "log_mel_error")  # of copy synthesis only

log = logging.getLogger(__name__)


def evaluate_tts(run: Path, checkpoint: str | None, options: EvaluationOptions) -> None:
    """Measure a TTS run on GPU 0 or else on the CPU; print a table, and write JSON and plots.

    Raises:
        UserError: the run, its vocoder, a corpus, an output or an option cannot be used.
    """
    selected, folder, route = open_target(run, checkpoint, "tts", options)
    print_score(score_tts(run, selected, options, route, folder), folder, options.json_file)
    log.info("plots          %s", folder)


def score_tts(
    run: Path, checkpoint: Path, options: EvaluationOptions, route: Route, folder: Path
) -> ColumnScore:
    """Measure a checkpoint, and write plots.

    Raises:
        CheckpointError: the checkpoint or the vocoder cannot be used, or the corpus has changed
            since.
        DataError: a corpus is missing or cannot be used, nothing was held out, or a file cannot be
            read.
    """
    metadata, device = read_metadata(checkpoint), route.model
    choice = select_vocoder(run, metadata, options.vocoder)
    if options.data is None:
        corpora, manifest = load_held_out(checkpoint, metadata, run, folder)
    else:
        corpora = load_checkpoint_corpora(checkpoint, metadata, run, folder)
        known = corpora.vocabulary
        manifest, _ = load_other_corpus(options, corpora.config, known, folder)
    config = corpora.config
    network = load_model(checkpoint, metadata, device, task="tts")
    vocoder = load_vocoder(choice, device)
    vocoders = {"": vocoder} | ({GRIFFIN_LIM_SUFFIX: GriffinLim()} if choice.trained else {})
    transcriber = Transcriber(options.asr_run, device) if options.asr_run else None
    held_out = load_utterances(
        network, manifest, config, route, run, options.utterances or MAX_UTTERANCES
    )
    evaluator = TTSEvaluator(
        network, metadata, config, held_out, vocoders, transcriber, options, device
    )
    log.info("evaluation     %s, %d utterances", checkpoint, len(held_out.utterances))
    measured = evaluator.measure()
    plotted = slice(PLOTTED_UTTERANCES)
    utterances, columns, recorded = measured.utterances, measured.columns, evaluator.recorded
    write_plots(
        folder, utterances[plotted], recorded[plotted], columns["synthesized"].features[plotted]
    )
    score = evaluator.score(run, checkpoint.name, measured)
    of_columns = {"recorded": recorded} | {
        name: column.features for name, column in columns.items()
    }
    speakers, speaker_note = speaker_accuracy(
        corpora.training.manifest, manifest, utterances, of_columns, device
    )
    copies = columns["copy_synthesis"].waves
    planted = planted_errors_note(utterances, recorded, copies, evaluator.alignments, device)
    factors: Metrics = {"real_time_factor": measured.real_time_factors}
    return replace(
        score,
        metrics=score.metrics | factors | speakers,
        notes=(*score.notes, timing_note(device), planted, speaker_note),
        details={"vocoder": vocoder.metadata},
    )


class Column(NamedTuple):
    """What a column of the table measures: an item for each utterance.

    Attributes:
        compared: with the recordings.
        texts: of the recogniser; empty without one.
    """

    waves: list[np.ndarray]
    features: list[AcousticFeatures]
    compared: list[UtteranceMetrics]
    texts: list[str]


class Measured(NamedTuple):
    """What `TTSEvaluator` measured of a network's weights.

    Attributes:
        utterances: with the alignments of the network.
        columns: by the columns of the table.
        real_time_factors: of the columns of synthesized speech.
    """

    utterances: list[Utterance]
    columns: dict[str, Column]
    real_time_factors: Metric


class TTSEvaluator:
    """Measures the weights that a network has, any number of times.

    What does not depend on them is measured once, when the object is made.

    Args:
        network: an `XTTS` for inference, on the device.
        metadata: of a checkpoint of its run.
        config: of the run.
        held_out: the utterances to measure.
        vocoders: by the suffix of their columns. That of "" makes shuffled texts, too.
        transcriber: a recogniser for error rates; None without.
        options: what to measure, and how.
        in_run: leave out shuffled texts, which take as long as the synthesis itself.

    Attributes:
        recorded: features of the recordings.
        alignments: phonemes by the name of a recording, from the corpus; empty if it has none.

    Raises:
        DataError: the recogniser does not know a language or symbol, or a file cannot be read.
    """

    def __init__(
        self,
        network: XTTS,
        metadata: Mapping[str, Any],
        config: Config,
        held_out: HeldOut,
        vocoders: Mapping[str, VocoderProtocol],
        transcriber: Transcriber | None,
        options: EvaluationOptions,
        device: str,
        in_run: bool = False,
    ):
        self._network, self._metadata, self._held_out, self._device = (
            network,
            metadata,
            held_out,
            device,
        )
        self._vocoders, self._transcriber, self._in_run = vocoders, transcriber, in_run
        self._synthesis = override(synthesis_options(config.model), options)
        utterances = held_out.utterances
        self._languages = [metadata["languages"][utterance.language] for utterance in utterances]
        self._references = (
            normalised_texts(transcriber, utterances, self._languages) if transcriber else []
        )
        run_data = config.data.audio_root or config.data.val_data or config.data.train_data
        self.alignments = alignments_of(
            corpus_folder(options.audio_root or options.data or run_data)
        )
        recordings, mels = (
            [getattr(utterance, name) for utterance in utterances] for name in ("wave", "mel")
        )
        self.recorded = acoustic_features(recordings, device)
        self._fixed = {
            f"copy_synthesis{suffix}": self._column(vocode_mels(vocoder, mels, device), no_pace)
            for suffix, vocoder in vocoders.items()
        }
        self._is_perceptual = options.perceptual
        perceptual = installed_scores() if options.perceptual else {}
        self._copies = copies_of(recordings, self.recorded, self._fixed, perceptual)
        source = f"utterances of {options.data}" if options.data else "held-out utterances"
        self._notes = condition_notes(
            utterances, source, self._synthesis, vocoders, options.perceptual
        )
        if len(utterances) == 1 and not in_run:
            self._notes.append("shuffled texts are left out: a single utterance has no other text")
        if options.perceptual:
            self._notes += score_notes(self._copies["copy_synthesis"])
        if transcriber:
            self._notes += recogniser_notes(transcriber, self._references, utterances)

    def measure(self, pace: Pace = no_pace) -> Measured:
        """Measure the weights that the network has.

        Args:
            pace: see `Pace`.
        """
        utterances = self._held_out.utterances
        if not self._in_run or self.alignments:
            utterances = align_utterances(self._network, self._held_out, self._device, pace)
        waves, factors = synthesize_columns(
            self._network,
            utterances,
            self._metadata,
            self._synthesis,
            self._vocoders,
            self._device,
            shuffled=not self._in_run,
            pace=pace,
        )
        columns = {name: self._column(column_waves, pace) for name, column_waves in waves.items()}
        return Measured(utterances, self._fixed | columns, factors)

    def score(self, run: Path, checkpoint: str, measured: Measured) -> ColumnScore:
        """Return the metrics of what was measured of a checkpoint."""

        def measure(rows: Iterable[int]) -> Metrics:
            metrics = column_metrics(rows, measured.columns, self._copies, self._references)
            return metrics if self._is_perceptual else without_perceptual(metrics)

        symbols = vocabulary_of(self._metadata).symbols
        boundaries, boundary_note = alignment_metrics(measured.utterances, self.alignments, symbols)
        further = tuple(
            column + suffix for suffix in self._vocoders if suffix for column in COLUMNS[:2]
        )
        return ColumnScore(
            run=str(run),
            checkpoint=checkpoint,
            utterances=len(measured.utterances),
            columns=COLUMNS[: 2 if self._in_run else 3] + further,
            metrics=measure(range(len(measured.utterances))) | boundaries,
            groups={"languages": metrics_by_group(self._languages, measure)},
            notes=(*self._notes, boundary_note),
        )

    def _column(self, waves: list[np.ndarray], pace: Pace) -> Column:
        features, compared = acoustic_features(waves, self._device, pace), []
        for pair in zip(self.recorded, features, strict=True):
            pace()
            compared.append(utterance_metrics(*pair))
        texts = list(self._transcriber.transcribe(waves, pace)) if self._transcriber else []
        return Column(waves, features, compared, texts)


def score_in_run(
    setup: TrainingSetup, network: XTTS, device: str, folder: RunFolder, load: LoadVocoder
) -> ScoreWeights:
    """Return what measures a network during its run, with everything compiled; see
    `ScoreWeights`.
    """
    held_out, run, metadata = setup.corpora.held_out, setup.config.run, setup.metadata
    assert held_out is not None
    config, route = for_evaluation(setup.config), Route(device, device)
    transcriber = Transcriber(Path(run.evaluate_asr), device) if run.evaluate_asr else None
    loaded = load_utterances(
        network, held_out.manifest, config, route, folder.path, run.evaluate_utterances
    )
    vocoders, options = (
        {"": load()},
        EvaluationOptions(perceptual=False),
    )  # copies are the same at all steps
    evaluator = TTSEvaluator(
        network, metadata, config, loaded, vocoders, transcriber, options, device, in_run=True
    )
    network.synthesize_mel.get_concrete_function()
    if evaluator.alignments:
        network.compiled_align.get_concrete_function()
    return lambda checkpoint, pace: evaluator.score(
        folder.path, checkpoint, evaluator.measure(pace)
    )


def normalised_texts(
    transcriber: Transcriber, utterances: Sequence[Utterance], languages: Sequence[str]
) -> list[str]:
    """Return the texts as the recogniser writes texts. Raises DataError if it does not know a
    language or symbol.
    """
    pairs = zip(utterances, languages, strict=True)
    return [
        transcriber.normalise_reference(utterance.text, language) for utterance, language in pairs
    ]


def condition_notes(
    utterances: Sequence[Utterance],
    source: str,
    synthesis: SynthesisOptions,
    vocoders: Mapping[str, VocoderProtocol],
    perceptual: bool,
) -> list[str]:
    """Return notes on what was measured, and how."""
    audio_s = sum(len(utterance.wave) for utterance in utterances) / SAMPLE_RATE_HZ
    others = (
        f", and in columns of their own by {v.description}"
        for suffix, v in vocoders.items()
        if suffix
    )
    return [
        f"{len(utterances)} {source}, {audio_s:.1f} s of speech; {synthesis.ode_steps} ODE"
        f" steps, guidance {synthesis.guidance:g}",
        f"the waves are by {vocoders[''].description}{''.join(others)}",
        f"{'PESQ-WB, STOI and log-mel error compare' if perceptual else 'log-mel error compares'}"
        " the same times of two waves, which only copy synthesis has in common with the"
        " recording",
    ]


def timing_note(device: str) -> str:
    """Return a note on how the real-time factor was measured."""
    return (
        f"the real-time factor is from text to wave on {device}, with mels in batches of"
        f" {BATCH_UTTERANCES}, after a warm-up"
    )


def override(run_options: SynthesisOptions, options: EvaluationOptions) -> SynthesisOptions:
    """Return the run's synthesis options with those that were given in their place."""
    ode_steps = run_options.ode_steps if options.ode_steps is None else options.ode_steps
    guidance = run_options.guidance if options.guidance is None else options.guidance
    return replace(run_options, ode_steps=ode_steps, guidance=guidance)


def synthesize_columns(
    network: XTTS,
    utterances: Sequence[Utterance],
    metadata: Mapping[str, Any],
    options: SynthesisOptions,
    vocoders: Mapping[str, VocoderProtocol],
    device: str,
    shuffled: bool,
    pace: Pace,
) -> tuple[dict[str, list[np.ndarray]], Metric]:
    """Return the waves of each column of synthesized speech, and their real-time factors.

    Args:
        shuffled: also synthesize shuffled texts, which a single utterance does not have.
    """
    references = [utterance.reference for utterance in utterances]

    def predict(sources: Sequence[Utterance]) -> list[np.ndarray]:
        """Synthesize the text of each source with the reference of the utterance at the
        same index.
        """
        texts, languages = (
            [source.text for source in sources],
            [source.language for source in sources],
        )
        return predict_mels(network, metadata, texts, languages, references, options, device, pace)

    shuffled_mels = (
        predict(shuffle_texts(utterances)) if shuffled else []
    )  # also the warm-up of the timed synthesis
    started_s = time.perf_counter()
    mels = predict(utterances)
    predicting_s = time.perf_counter() - started_s
    waves: dict[str, list[np.ndarray]] = {}
    factors: Metric = {}
    for suffix, vocoder in vocoders.items():
        started_s = time.perf_counter()
        synthesized = waves[f"synthesized{suffix}"] = vocode_mels(vocoder, mels, device, pace=pace)
        elapsed_s = predicting_s + time.perf_counter() - started_s
        factors[f"synthesized{suffix}"] = elapsed_s * SAMPLE_RATE_HZ / sum(map(len, synthesized))
    if shuffled and len(utterances) > 1:
        waves["shuffled_texts"] = vocode_mels(vocoders[""], shuffled_mels, device, pace=pace)
    return waves, factors


def shuffle_texts(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return another utterance for each one, of the same language where possible."""
    by_language: dict[int, list[int]] = {}
    for index, utterance in enumerate(utterances):
        by_language.setdefault(utterance.language, []).append(index)
    alone = [indices[0] for indices in by_language.values() if len(indices) == 1]
    shuffled = list(utterances)
    for indices in (*(indices for indices in by_language.values() if len(indices) > 1), alone):
        for index, other_index in zip(indices, indices[1:] + indices[:1], strict=True):
            shuffled[index] = utterances[other_index]
    if len(alone) == 1:
        shuffled[alone[0]] = utterances[alone[0] - 1]
    return shuffled


def copies_of(
    recordings: Sequence[np.ndarray],
    recorded: Sequence[AcousticFeatures],
    columns: Mapping[str, Column],
    perceptual: PerceptualScores,
) -> dict[str, list[CopyMetrics]]:
    """Return the metrics of the columns of copy synthesis."""
    return with_common_scores(
        {
            name: [
                copy_metrics(*waves_and_features, perceptual)
                for waves_and_features in zip(
                    recordings, column.waves, recorded, column.features, strict=True
                )
            ]
            for name, column in columns.items()
        }
    )


def column_metrics(
    rows: Iterable[int],
    columns: Mapping[str, Column],
    copies: Mapping[str, Sequence[CopyMetrics]],
    references: Sequence[str],
) -> Metrics:
    """Return the acoustic metrics of some utterances and, if there are references, their error
    rates.
    """
    rows = list(rows)
    by_column: dict[str, dict[str, float | None]] = {
        name: corpus_metrics([column.compared[row] for row in rows])
        for name, column in columns.items()
    }
    for name, values in by_column.items():
        is_by_griffin_lim = name.endswith(GRIFFIN_LIM_SUFFIX)
        best = by_column["copy_synthesis" + GRIFFIN_LIM_SUFFIX * is_by_griffin_lim][
            "mel_cepstral_distortion"
        ]
        distortion = values["mel_cepstral_distortion"]
        values["mel_cepstral_distortion_ratio"] = (
            distortion / best if distortion is not None and best else None
        )
    for name, copied in copies.items():
        means = mean_copy_metrics([copied[row] for row in rows])
        by_column[name] |= {key: means[key] for key in COPY_METRICS}
    for name, column in columns.items() if references else ():
        texts = [column.texts[row] for row in rows]
        by_column[name] |= error_rates([references[row] for row in rows], texts)
    keys = dict.fromkeys(key for values in by_column.values() for key in values)
    return {key: {column: values.get(key) for column, values in by_column.items()} for key in keys}


def recogniser_notes(
    transcriber: Transcriber, references: Sequence[str], utterances: Sequence[Utterance]
) -> list[str]:
    """Return notes on the recogniser, its error rates on the recordings, and its bias."""
    rates = error_rates(
        references, list(transcriber.transcribe(utterance.wave for utterance in utterances))
    )
    characters, words = rates["character_error_rate"], rates["word_error_rate"]
    return [
        f"the recogniser is {transcriber.run}, {transcriber.checkpoint.name}; on the recordings"
        f" it has a character error rate of {characters:.1%} and a word error rate of"
        f" {words:.1%}",
        "its error rates are optimistic if it was trained on the same corpus or on speech of"
        " the same synthesizer: compare TTS runs only with the same recogniser",
    ]


RECORDINGS_PER_SPEAKER = 20  # for its centroid


def speaker_accuracy(
    training: Manifest,
    measured: Manifest,
    utterances: Sequence[Utterance],
    features: Mapping[str, Sequence[AcousticFeatures]],
    device: str,
) -> tuple[Metrics, str]:
    """Return the fraction of utterances that are classified as their speaker, and a note; needs
    several speakers.

    Args:
        training: has the recordings of the speakers seen in training.
        measured: has the recordings of the other speakers; those of `utterances` are left out.
        features: of `utterances` by column, with the column "recorded".
    """
    unseen = ~np.isin(measured.speaker, training.speaker)
    unseen &= ~np.isin(measured.ids, [utterance.id for utterance in utterances])
    seen_rows = rows_of_each_speaker(training, np.arange(len(training)), RECORDINGS_PER_SPEAKER)
    unseen_rows = rows_of_each_speaker(measured, np.flatnonzero(unseen), RECORDINGS_PER_SPEAKER)
    unseen_speakers = measured.speaker[unseen_rows]
    speakers = np.concatenate([training.speaker[seen_rows], unseen_speakers])
    count = len(np.unique(speakers))
    if count < 2:
        return {}, "speaker accuracy is left out: there is only one speaker"
    # One after the other: the recordings of 2,000 speakers would take 20 GB.
    waves = chain(
        (read_row(training, row) for row in seen_rows.tolist()),
        (read_row(measured, row) for row in unseen_rows.tolist()),
    )
    classifier = SpeakerClassifier(
        np.stack([*map(speaker_embedding, log_mels(waves, device))]), speakers
    )
    metrics: Metrics = {}
    groups = []
    for group, members in (
        ("seen", np.unique(training.speaker)),
        ("unseen", np.unique(unseen_speakers)),
    ):
        rows = [row for row, utterance in enumerate(utterances) if utterance.speaker in members]
        if rows:
            targets = [utterances[row].speaker for row in rows]
            accuracy: dict[str, float] = {
                column: classifier.accuracy([column_features[row].mel for row in rows], targets)
                for column, column_features in features.items()
            }
            recorded = accuracy.pop("recorded")
            groups.append(
                f"{len(rows)} utterances of {group} speakers ({recorded:.0%} of their recordings)"
            )
            metrics[f"speaker_accuracy_{group}"] = {**accuracy}
    if not groups:
        return (
            {},
            "speaker accuracy is left out: there are no other recordings of the utterances'"
            " speakers",
        )
    note = (
        f"speaker accuracy is among {count} speakers (chance {1 / count:.1%}), for"
        f" {' and '.join(groups)}"
    )
    return metrics, note


COEFFICIENTS = 19


def speaker_embedding(log_mel: np.ndarray) -> np.ndarray:
    """Return the mean and standard deviation over frames of cepstra 1 to 19: [T, 80] -> [38]."""
    coefficients = mel_cepstrum(log_mel, 1, COEFFICIENTS)
    return np.concatenate([coefficients.mean(axis=0), coefficients.std(axis=0)])


class SpeakerClassifier:
    """Classifies speech by the nearest centroid of its speakers' recordings.

    Args:
        embeddings: [U, 38], of recordings.
        speakers: int [U], speaker of each recording.
    """

    def __init__(self, embeddings: np.ndarray, speakers: np.ndarray):
        self._scale = np.maximum(embeddings.std(axis=0), 1e-6)
        self._speakers = np.unique(speakers)
        centroids = np.stack(
            [embeddings[speakers == speaker].mean(axis=0) for speaker in self._speakers]
        )
        self._centroids = centroids / self._scale

    def predict(self, log_mel: np.ndarray) -> int:
        distances = np.linalg.norm(
            self._centroids - speaker_embedding(log_mel) / self._scale, axis=1
        )
        return int(self._speakers[distances.argmin()])

    def accuracy(self, log_mels: Sequence[np.ndarray], speakers: Sequence[int]) -> float:
        """Return the fraction of utterances whose speaker is predicted."""
        pairs = zip(log_mels, speakers, strict=True)
        return float(np.mean([self.predict(log_mel) == speaker for log_mel, speaker in pairs]))


def write_plots(
    folder: Path,
    utterances: Sequence[Utterance],
    recorded: Sequence[AcousticFeatures],
    synthesized: Sequence[AcousticFeatures],
) -> None:
    """Write `<number>-<id>-mel.png` and `<number>-<id>-f0.png` for each utterance; the folder is
    made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, (utterance, recording, synthesis) in enumerate(
        zip(utterances, recorded, synthesized, strict=True), 1
    ):
        name = numbered_name(number, utterance.id)
        picture = mel_and_alignment(recording.mel, synthesis.mel, utterance.path, utterance.text)
        (folder / f"{name}-mel.png").write_bytes(png_bytes(picture))
        curves = {"recorded": recording.voiced_f0_hz, "synthesized": synthesis.voiced_f0_hz}
        (folder / f"{name}-f0.png").write_bytes(png_bytes(f0_curves(curves, utterance.text)))
