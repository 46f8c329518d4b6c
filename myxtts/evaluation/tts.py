"""Metrics of a TTS run, between copy synthesis (their best) and shuffled texts (their worst)."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.vocoder import GriffinLim, VocoderProtocol
from myxtts.config.schema import Config
from myxtts.data.dataset import corpus_folder
from myxtts.evaluation.boundaries import alignment_metrics, alignments_of, planted_errors_note
from myxtts.evaluation.held_out import (
    HeldOut,
    Utterance,
    align_utterances,
    for_evaluation,
    load_measured,
    load_utterances,
)
from myxtts.evaluation.metrics import (
    AcousticFeatures,
    CopyMetrics,
    UtteranceMetrics,
    Waves,
    corpus_metrics,
    installed_scores,
    mean_copy_metrics,
    measure_copies,
    score_notes,
    utterance_metrics,
    with_common_scores,
    without_perceptual,
)
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.speech import (
    BATCH_UTTERANCES,
    acoustic_features,
    predict_mels,
    speaker_accuracy,
    vocode_mels,
)
from myxtts.evaluation.table import ColumnScore, Metric, Metrics, ScoreWeights, metrics_by_group
from myxtts.files import numbered_name
from myxtts.models.xtts import XTTS, SynthesisOptions
from myxtts.placement.routes import Route
from myxtts.recognition.transcriber import Transcriber
from myxtts.report.plots import f0_curves, mel_and_alignment, png_bytes
from myxtts.tasks.tts import synthesis_options
from myxtts.text.edit_distance import error_rates
from myxtts.training.checkpoint_files import Record
from myxtts.training.observation import LoadVocoder, Throttle, no_throttle
from myxtts.training.runs import RunFolder, TrainedRun
from myxtts.training.setup import TrainingSetup

# With copies and shuffled texts these are 150 waves to make and to compare.
MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
COLUMNS = ("synthesized", "copy_synthesis", "shuffled_texts")
# A trained vocoder is compared with Griffin-Lim in columns of this suffix.
GRIFFIN_LIM_SUFFIX = "_griffin_lim"
# Only copy synthesis has the same times as the recording.
COPY_METRICS = ("pesq_wb", "stoi", "log_mel_error")

log = logging.getLogger(__name__)


def score_tts(
    run: TrainedRun, options: EvaluationOptions, route: Route, folder: Path
) -> ColumnScore:
    """Measure a checkpoint, and write plots.

    Raises:
        UserError: the checkpoint, the vocoder, a corpus or a file cannot be used.
    """
    device = route.model
    choice = run.select_vocoder(options.vocoder)
    corpus = load_measured(run, options, folder, needs_training=True)
    network = run.load_network(device, "tts")
    vocoder = choice.load(device)
    vocoders = {"": vocoder}
    if choice.trained:
        vocoders[GRIFFIN_LIM_SUFFIX] = GriffinLim()
    transcriber = Transcriber(options.asr_run, device) if options.asr_run else None
    count = options.utterances or MAX_UTTERANCES
    held_out = load_utterances(network, corpus.manifest, corpus.config, route, run.path, count)
    evaluator = TTSEvaluator(
        network, run.record, corpus.config, held_out, vocoders, transcriber, options, device
    )
    log.info("evaluation     %s, %d utterances", run.checkpoint.path, len(held_out.utterances))
    measured = evaluator.measure()
    recorded = evaluator.recorded
    plotted = slice(PLOTTED_UTTERANCES)
    write_plots(
        folder,
        measured.utterances[plotted],
        recorded[plotted],
        measured.columns["synthesized"].features[plotted],
    )
    score = evaluator.score(run.path, run.checkpoint.path.name, measured)
    features = {name: column.features for name, column in measured.columns.items()}
    assert corpus.training is not None
    speakers, speaker_note = speaker_accuracy(
        corpus.training.manifest,
        corpus.manifest,
        measured.utterances,
        {"recorded": recorded, **features},
        device,
    )
    # A detector of errors is worth as much as it finds of planted ones.
    planted_note = planted_errors_note(
        measured.utterances,
        recorded,
        measured.columns["copy_synthesis"].waves,
        evaluator.alignments,
        device,
    )
    timing_note = (
        f"the real-time factor is from text to wave on {device}, with mels in batches of"
        f" {BATCH_UTTERANCES}, after a warm-up"
    )
    return replace(
        score,
        metrics=score.metrics | {"real_time_factor": measured.real_time_factors} | speakers,
        notes=(*score.notes, timing_note, planted_note, speaker_note),
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
        record: of a checkpoint of its run.
        config: of the run.
        held_out: the utterances to measure.
        vocoders: by the suffix of their columns. That of "" also makes shuffled texts.
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
        record: Record,
        config: Config,
        held_out: HeldOut,
        vocoders: Mapping[str, VocoderProtocol],
        transcriber: Transcriber | None,
        options: EvaluationOptions,
        device: str,
        in_run: bool = False,
    ):
        self._network = network
        self._record = record
        self._held_out = held_out
        self._device = device
        self._vocoders = vocoders
        self._transcriber = transcriber
        self._in_run = in_run
        self._synthesis = override(synthesis_options(config.model), options)
        utterances = held_out.utterances
        self._languages = [record.languages[utterance.language] for utterance in utterances]
        self._references: list[str] = []
        if transcriber:
            self._references = [
                transcriber.normalise_reference(utterance.text, language)
                for utterance, language in zip(utterances, self._languages, strict=True)
            ]
        run_data = config.data.audio_root or config.data.val_data or config.data.train_data
        corpus = options.audio_root or options.data or run_data
        self.alignments = alignments_of(corpus_folder(corpus))
        recordings = [utterance.wave for utterance in utterances]
        mels = [utterance.mel for utterance in utterances]
        self.recorded = acoustic_features(recordings, device)
        self._fixed = {
            f"copy_synthesis{suffix}": self._column(vocode_mels(vocoder, mels, device), no_throttle)
            for suffix, vocoder in vocoders.items()
        }
        self._is_perceptual = options.perceptual
        perceptual = installed_scores() if options.perceptual else {}
        copies = {
            name: measure_copies(
                Waves(recordings, self.recorded), Waves(column.waves, column.features), perceptual
            )
            for name, column in self._fixed.items()
        }
        self._copies = with_common_scores(copies)
        self._notes = self._condition_notes(options)

    def measure(self, throttle: Throttle = no_throttle) -> Measured:
        """Measure the weights that the network has."""
        utterances = self._held_out.utterances
        # In a run, an alignment is needed for boundaries alone, since there are no plots.
        if not self._in_run or self.alignments:
            utterances = align_utterances(self._network, self._held_out, self._device, throttle)
        waves, factors = self._synthesize(utterances, throttle)
        columns = {name: self._column(of_column, throttle) for name, of_column in waves.items()}
        return Measured(utterances, self._fixed | columns, factors)

    def score(self, run: Path, checkpoint: str, measured: Measured) -> ColumnScore:
        """Return the metrics of what was measured of a checkpoint."""

        def measure(rows: Iterable[int]) -> Metrics:
            metrics = column_metrics(rows, measured.columns, self._copies, self._references)
            return metrics if self._is_perceptual else without_perceptual(metrics)

        symbols = self._record.vocabulary.symbols
        boundaries, boundary_note = alignment_metrics(measured.utterances, self.alignments, symbols)
        columns: tuple[str, ...] = COLUMNS[:2] if self._in_run else COLUMNS
        for suffix in filter(None, self._vocoders):
            columns += tuple(column + suffix for column in COLUMNS[:2])
        return ColumnScore(
            run=str(run),
            checkpoint=checkpoint,
            utterances=len(measured.utterances),
            columns=columns,
            metrics=measure(range(len(measured.utterances))) | boundaries,
            groups={"languages": metrics_by_group(self._languages, measure)},
            notes=(*self._notes, boundary_note),
        )

    def _synthesize(
        self, utterances: Sequence[Utterance], throttle: Throttle
    ) -> tuple[dict[str, list[np.ndarray]], Metric]:
        """Return the waves of each column of synthesized speech, and their real-time factors."""
        # They come first, since they are also the warm-up of the synthesis that is timed.
        shuffled_mels: list[np.ndarray] = []
        if not self._in_run:
            shuffled_mels = self._predict(shuffle_texts(utterances), utterances, throttle)
        started_s = time.perf_counter()
        mels = self._predict(utterances, utterances, throttle)
        predicting_s = time.perf_counter() - started_s
        waves: dict[str, list[np.ndarray]] = {}
        factors: Metric = {}
        for suffix, vocoder in self._vocoders.items():
            name = f"synthesized{suffix}"
            started_s = time.perf_counter()
            waves[name] = vocode_mels(vocoder, mels, self._device, throttle=throttle)
            elapsed_s = predicting_s + time.perf_counter() - started_s
            factors[name] = elapsed_s * SAMPLE_RATE_HZ / sum(map(len, waves[name]))
        # A single utterance has no other text.
        if shuffled_mels and len(utterances) > 1:
            vocoder = self._vocoders[""]
            waves["shuffled_texts"] = vocode_mels(
                vocoder, shuffled_mels, self._device, throttle=throttle
            )
        return waves, factors

    def _predict(
        self, sources: Sequence[Utterance], utterances: Sequence[Utterance], throttle: Throttle
    ) -> list[np.ndarray]:
        """Synthesize the text of each source with the reference of the utterance of its index."""
        return predict_mels(
            self._network,
            self._record,
            [source.text for source in sources],
            [source.language for source in sources],
            [utterance.reference for utterance in utterances],
            self._synthesis,
            self._device,
            throttle,
        )

    def _column(self, waves: list[np.ndarray], throttle: Throttle) -> Column:
        features = acoustic_features(waves, self._device, throttle)
        compared = []
        for recorded, measured in zip(self.recorded, features, strict=True):
            throttle()
            compared.append(utterance_metrics(recorded, measured))
        texts = list(self._transcriber.transcribe(waves, throttle)) if self._transcriber else []
        return Column(waves, features, compared, texts)

    def _condition_notes(self, options: EvaluationOptions) -> list[str]:
        """Return notes on what is measured, and how."""
        utterances = self._held_out.utterances
        audio_s = sum(len(utterance.wave) for utterance in utterances) / SAMPLE_RATE_HZ
        source = f"utterances of {options.data}" if options.data else "held-out utterances"
        waves = f"the waves are by {self._vocoders[''].description}"
        for suffix, vocoder in self._vocoders.items():
            if suffix:
                waves += f", and in columns of their own by {vocoder.description}"
        compared = "log-mel error compares"
        if options.perceptual:
            compared = "PESQ-WB, STOI and log-mel error compare"
        notes = [
            f"{len(utterances)} {source}, {audio_s:.1f} s of speech; {self._synthesis.ode_steps}"
            f" ODE steps, guidance {self._synthesis.guidance:g}",
            waves,
            f"{compared} the same times of two waves, which only copy synthesis has in common with"
            " the recording",
        ]
        if len(utterances) == 1 and not self._in_run:
            notes.append("shuffled texts are left out: a single utterance has no other text")
        if options.perceptual:
            notes += score_notes(self._copies["copy_synthesis"])
        if self._transcriber:
            # They show what a perfect synthesis would reach.
            texts = list(self._transcriber.transcribe(utterance.wave for utterance in utterances))
            rates = error_rates(self._references, texts)
            notes += [
                f"the recogniser is {self._transcriber.run}, {self._transcriber.checkpoint.name};"
                f" on the recordings it has a character error rate of"
                f" {rates['character_error_rate']:.1%} and a word error rate of"
                f" {rates['word_error_rate']:.1%}",
                "its error rates are optimistic if it was trained on the same corpus or on speech"
                " of the same synthesizer: compare TTS runs only with the same recogniser",
            ]
        return notes


def score_in_run(
    setup: TrainingSetup, network: XTTS, device: str, folder: RunFolder, load: LoadVocoder
) -> ScoreWeights:
    """Return what measures a network during its run, with everything compiled."""
    held_out = setup.corpora.held_out
    run = setup.config.run
    assert held_out is not None
    config = for_evaluation(setup.config)
    transcriber = Transcriber(Path(run.evaluate_asr), device) if run.evaluate_asr else None
    loaded = load_utterances(
        network,
        held_out.manifest,
        config,
        Route(device, device),
        folder.path,
        run.evaluate_utterances,
    )
    # Copies are the same at all steps, and so would their perceptual scores be.
    options = EvaluationOptions(perceptual=False)
    evaluator = TTSEvaluator(
        network,
        setup.record,
        config,
        loaded,
        {"": load()},
        transcriber,
        options,
        device,
        in_run=True,
    )
    # Tracing is for the main thread alone, and the observer's thread measures.
    network.synthesize_mel.get_concrete_function()
    if evaluator.alignments:
        network.compiled_align.get_concrete_function()
    return lambda checkpoint, throttle: evaluator.score(
        folder.path, checkpoint, evaluator.measure(throttle)
    )


def override(run_options: SynthesisOptions, options: EvaluationOptions) -> SynthesisOptions:
    """Return the run's synthesis options with those that were given instead."""
    ode_steps = run_options.ode_steps if options.ode_steps is None else options.ode_steps
    guidance = run_options.guidance if options.guidance is None else options.guidance
    return replace(run_options, ode_steps=ode_steps, guidance=guidance)


def shuffle_texts(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return another utterance for each one, of the same language where possible."""
    by_language: dict[int, list[int]] = {}
    for index, utterance in enumerate(utterances):
        by_language.setdefault(utterance.language, []).append(index)
    groups = [indices for indices in by_language.values() if len(indices) > 1]
    # Utterances that are alone in their language also take turns.
    alone = [indices[0] for indices in by_language.values() if len(indices) == 1]
    shuffled = list(utterances)
    for indices in (*groups, alone):
        for index, other_index in zip(indices, indices[1:] + indices[:1], strict=True):
            shuffled[index] = utterances[other_index]
    if len(alone) == 1:
        shuffled[alone[0]] = utterances[alone[0] - 1]
    return shuffled


def column_metrics(
    rows: Iterable[int],
    columns: Mapping[str, Column],
    copies: Mapping[str, Sequence[CopyMetrics]],
    references: Sequence[str],
) -> Metrics:
    """Return the acoustic metrics of some utterances, and error rates if there are references."""
    rows = list(rows)
    by_column: dict[str, dict[str, float | None]] = {
        name: corpus_metrics([column.compared[row] for row in rows])
        for name, column in columns.items()
    }
    for name, values in by_column.items():
        # The vocoder bounds what a voice can reach: a column is compared with its copies.
        suffix = GRIFFIN_LIM_SUFFIX if name.endswith(GRIFFIN_LIM_SUFFIX) else ""
        best = by_column[f"copy_synthesis{suffix}"]["mel_cepstral_distortion"]
        distortion = values["mel_cepstral_distortion"]
        values["mel_cepstral_distortion_ratio"] = None
        if distortion is not None and best:
            values["mel_cepstral_distortion_ratio"] = distortion / best
    for name, copied in copies.items():
        means = mean_copy_metrics([copied[row] for row in rows])
        by_column[name] |= {key: means[key] for key in COPY_METRICS}
    if references:
        for name, column in columns.items():
            texts = [column.texts[row] for row in rows]
            by_column[name] |= error_rates([references[row] for row in rows], texts)
    metrics: Metrics = {}
    for column_name, values in by_column.items():
        for key, value in values.items():
            metrics.setdefault(key, dict.fromkeys(by_column))[column_name] = value
    return metrics


def write_plots(
    folder: Path,
    utterances: Sequence[Utterance],
    recorded: Sequence[AcousticFeatures],
    synthesized: Sequence[AcousticFeatures],
) -> None:
    """Write `<number>-<id>-mel.png` and `<number>-<id>-f0.png` for each utterance."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (utterance, recording, synthesis) in enumerate(
        zip(utterances, recorded, synthesized, strict=True), 1
    ):
        name = numbered_name(number, utterance.id)
        picture = mel_and_alignment(recording.mel, synthesis.mel, utterance.path, utterance.text)
        (folder / f"{name}-mel.png").write_bytes(png_bytes(picture))
        curves = {"recorded": recording.voiced_f0_hz, "synthesized": synthesis.voiced_f0_hz}
        (folder / f"{name}-f0.png").write_bytes(png_bytes(f0_curves(curves, utterance.text)))
    log.info("plots          %s", folder)
