"""Metrics of a TTS run, each between copy synthesis (its best value) and shuffled texts (its worst value)."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.griffin_lim import GriffinLim
from myxtts.audio.vocoder import VocoderProtocol
from myxtts.data.dataset import corpus_folder
from myxtts.evaluation.acoustic_metrics import AcousticFeatures, corpus_metrics, utterance_metrics
from myxtts.evaluation.boundary_score import alignment_metrics, alignments_of
from myxtts.evaluation.copy_metrics import (
    CopyMetrics,
    copy_metrics,
    mean_copy_metrics,
    score_notes,
    with_common_scores,
)
from myxtts.evaluation.held_out import (
    Utterance,
    load_other_corpus,
    load_run_corpora,
    load_training_corpus,
    load_utterances,
)
from myxtts.evaluation.options import EvaluationOptions, check_options
from myxtts.evaluation.pictures import write_plots
from myxtts.evaluation.planted_errors import planted_errors_note
from myxtts.evaluation.report import ColumnScore, Metric, Metrics, metrics_by_group, output_folder, print_score
from myxtts.evaluation.speaker_accuracy import speaker_accuracy
from myxtts.evaluation.speech import BATCH_UTTERANCES, acoustic_features, predict_mels, vocode_mels
from myxtts.files import check_writable
from myxtts.models.xtts import XTTS, SynthesisOptions
from myxtts.placement import devices
from myxtts.placement.routes import Route
from myxtts.recognition.transcriber import Transcriber
from myxtts.tasks.tts_samples import synthesis_options
from myxtts.text.edit_distance import error_rates
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.load_model import load_model
from myxtts.training.load_vocoder import load_vocoder
from myxtts.training.select_checkpoint import select_checkpoint, vocabulary_of
from myxtts.training.select_vocoder import select_vocoder

MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
COLUMNS = ("synthesized", "copy_synthesis", "shuffled_texts")
GRIFFIN_LIM_SUFFIX = "_griffin_lim"  # of columns beside those of a trained vocoder
COPY_METRICS = ("pesq_wb", "stoi", "log_mel_error")  # of copy synthesis only

Item = TypeVar("Item")
Columns = Mapping[str, Sequence[Item]]  # by the columns of the table: an item for each utterance

log = logging.getLogger(__name__)


def evaluate_tts(run: Path, checkpoint: str | None, options: EvaluationOptions) -> None:
    """Measure a TTS run on GPU 0 or else on the CPU; print a table, and write JSON and plots.

    Raises:
        UserError: the run, its vocoder, a corpus, an output or an option cannot be used.
    """
    check_options(run, "tts", options)
    selected = select_checkpoint(run, checkpoint)
    check_writable("--json", options.json_file)
    folder = output_folder(run, selected, options)
    placement = devices.configure_default()
    print_score(score_tts(run, selected, options, placement.routes[0], folder), folder, options.json_file)
    log.info("plots          %s", folder)


def score_tts(run: Path, checkpoint: Path, options: EvaluationOptions, route: Route, folder: Path) -> ColumnScore:
    """Measure a checkpoint, and write plots.

    Raises:
        CheckpointError: the checkpoint or the vocoder cannot be used, or the corpus has changed since.
        DataError: a corpus is missing or cannot be used, nothing was held out, or a file cannot be read.
    """
    metadata, device = read_metadata(checkpoint), route.model
    choice = select_vocoder(run, metadata, options.vocoder)
    if options.data is None:
        config, corpus, manifest = load_run_corpora(checkpoint, metadata, run)
    else:
        config, corpus = load_training_corpus(checkpoint, metadata, run)
        manifest, _ = load_other_corpus(options.data, options.audio_root, config, metadata, folder)
    network = load_model(checkpoint, metadata, device, task="tts")
    vocoder = load_vocoder(choice, device)
    synthesis = override(synthesis_options(config.model), options)
    transcriber = Transcriber(options.asr_run, device) if options.asr_run else None
    utterances = load_utterances(network, manifest, config, route, run, options.utterances or MAX_UTTERANCES)
    languages = [metadata["languages"][utterance.language] for utterance in utterances]
    references = normalised_texts(transcriber, utterances, languages) if transcriber else []
    log.info("evaluation     %s, %d utterances", checkpoint, len(utterances))
    vocoders = {"": vocoder} | ({GRIFFIN_LIM_SUFFIX: GriffinLim()} if choice.trained else {})
    waves, factors = synthesize_columns(network, utterances, metadata, synthesis, vocoders, device)
    source = f"utterances of {options.data}" if options.data else "held-out utterances"
    notes = condition_notes(utterances, source, synthesis, vocoders, device)
    if "shuffled_texts" not in waves:
        notes.append("shuffled texts are left out: a single utterance has no other text")

    recorded = acoustic_features([utterance.wave for utterance in utterances], device)
    features = {column: acoustic_features(column_waves, device) for column, column_waves in waves.items()}
    copies = copies_of(utterances, waves, recorded, features)
    notes += score_notes(copies["copy_synthesis"])
    plotted = slice(PLOTTED_UTTERANCES)
    write_plots(folder, utterances[plotted], recorded[plotted], features["synthesized"][plotted])
    hypotheses: dict[str, list[str]] = {}
    if transcriber:
        hypotheses = {column: list(transcriber.transcribe(column_waves)) for column, column_waves in waves.items()}
        notes += recogniser_notes(transcriber, references, utterances)

    def measure(rows: Iterable[int]) -> Metrics:
        return column_metrics(rows, recorded, features, copies, references, hypotheses)

    metrics = measure(range(len(utterances))) | {"real_time_factor": factors}
    run_data = config.data.audio_root or config.data.val_data or config.data.train_data
    alignments = alignments_of(corpus_folder(options.data or run_data))
    notes.append(planted_errors_note(utterances, recorded, waves["copy_synthesis"], alignments, device))
    for more, note in (
        speaker_accuracy(corpus.manifest, manifest, utterances, {"recorded": recorded, **features}, device),
        alignment_metrics(utterances, alignments, vocabulary_of(metadata).symbols),
    ):
        metrics |= more
        notes.append(note)
    return ColumnScore(
        run=str(run),
        checkpoint=checkpoint.name,
        utterances=len(utterances),
        columns=COLUMNS + tuple(column + GRIFFIN_LIM_SUFFIX for column in COLUMNS[:2] if choice.trained),
        metrics=metrics,
        groups={"languages": metrics_by_group(languages, measure)},
        notes=tuple(notes),
        details={"vocoder": vocoder.metadata},
    )


def normalised_texts(transcriber: Transcriber, utterances: Sequence[Utterance], languages: Sequence[str]) -> list[str]:
    """Return the texts as the recogniser writes texts. Raises DataError if it does not know a language or symbol."""
    pairs = zip(utterances, languages, strict=True)
    return [transcriber.normalise_reference(utterance.text, language) for utterance, language in pairs]


def condition_notes(
    utterances: Sequence[Utterance],
    source: str,
    synthesis: SynthesisOptions,
    vocoders: Mapping[str, VocoderProtocol],
    device: str,
) -> list[str]:
    """Return notes on what was measured, and how."""
    audio_s = sum(len(utterance.wave) for utterance in utterances) / SAMPLE_RATE_HZ
    others = (f", and in columns of their own by {v.description}" for suffix, v in vocoders.items() if suffix)
    return [
        f"{len(utterances)} {source}, {audio_s:.1f} s of speech; {synthesis.ode_steps} ODE steps, "
        f"guidance {synthesis.guidance:g}",
        f"the waves are by {vocoders[''].description}{''.join(others)}",
        f"the real-time factor is from text to wave on {device}, with mels in batches of {BATCH_UTTERANCES}, after a "
        "warm-up",
        "PESQ-WB, STOI and log-mel error compare the same times of two waves, which only copy synthesis has in common "
        "with the recording",
    ]


def override(run_options: SynthesisOptions, options: EvaluationOptions) -> SynthesisOptions:
    """Return the run's synthesis options with those that were given in their place."""
    ode_steps = run_options.ode_steps if options.ode_steps is None else options.ode_steps
    guidance = run_options.guidance if options.guidance is None else options.guidance
    return replace(run_options, ode_steps=ode_steps, guidance=guidance)


def synthesize_columns(
    network: XTTS,
    utterances: Sequence[Utterance],
    metadata: dict[str, Any],
    options: SynthesisOptions,
    vocoders: Mapping[str, VocoderProtocol],
    device: str,
) -> tuple[dict[str, list[np.ndarray]], Metric]:
    """Return the waves of each column, and the real-time factors of the columns of synthesized speech.

    A single utterance has no shuffled texts.

    Args:
        vocoders: by the suffix of their columns. That of "" makes shuffled texts, too.
    """
    references = [utterance.reference for utterance in utterances]

    def predict(sources: Sequence[Utterance]) -> list[np.ndarray]:
        """Synthesize the text of each source with the reference of the utterance at the same index."""
        texts, languages = [source.text for source in sources], [source.language for source in sources]
        return predict_mels(network, metadata, texts, languages, references, options, device)

    shuffled = predict(shuffle_texts(utterances))  # also the warm-up of the timed synthesis
    started_s = time.perf_counter()
    mels = predict(utterances)
    predicting_s = time.perf_counter() - started_s
    waves: dict[str, list[np.ndarray]] = {}
    factors: Metric = {}
    for suffix, vocoder in vocoders.items():
        waves[f"copy_synthesis{suffix}"] = vocode_mels(vocoder, [utterance.mel for utterance in utterances], device)
        started_s = time.perf_counter()
        synthesized = waves[f"synthesized{suffix}"] = vocode_mels(vocoder, mels, device)
        elapsed_s = predicting_s + time.perf_counter() - started_s
        factors[f"synthesized{suffix}"] = elapsed_s * SAMPLE_RATE_HZ / sum(map(len, synthesized))
    if len(utterances) > 1:
        waves["shuffled_texts"] = vocode_mels(vocoders[""], shuffled, device)
    return waves, factors


def shuffle_texts(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return another utterance for each one, of the same language where possible."""
    by_language = sorted(range(len(utterances)), key=lambda index: utterances[index].language)
    shuffled = list(utterances)
    for index, other_index in zip(by_language, by_language[1:] + by_language[:1], strict=True):
        shuffled[index] = utterances[other_index]
    return shuffled


def copies_of(
    utterances: Sequence[Utterance],
    waves: Columns[np.ndarray],
    recorded: Sequence[AcousticFeatures],
    features: Columns[AcousticFeatures],
) -> dict[str, list[CopyMetrics]]:
    """Return the metrics of the columns of copy synthesis."""
    recordings = [utterance.wave for utterance in utterances]
    columns = [column for column in waves if column.startswith("copy_synthesis")]
    return with_common_scores(
        {column: list(map(copy_metrics, recordings, waves[column], recorded, features[column])) for column in columns}
    )


def column_metrics(
    rows: Iterable[int],
    recorded: Sequence[AcousticFeatures],
    features: Columns[AcousticFeatures],
    copies: Columns[CopyMetrics],
    references: Sequence[str],
    hypotheses: Columns[str],
) -> Metrics:
    """Return the acoustic metrics of some utterances and, if there are hypotheses, their error rates."""
    rows = list(rows)
    by_column: dict[str, dict[str, float | None]] = {}
    for column, synthesized in features.items():
        pairs = ((recorded[row], synthesized[row]) for row in rows)
        by_column[column] = corpus_metrics([utterance_metrics(*pair) for pair in pairs])
    for column, values in by_column.items():
        is_by_griffin_lim = column.endswith(GRIFFIN_LIM_SUFFIX)
        best = by_column["copy_synthesis" + GRIFFIN_LIM_SUFFIX * is_by_griffin_lim]["mel_cepstral_distortion"]
        distortion = values["mel_cepstral_distortion"]
        values["mel_cepstral_distortion_ratio"] = distortion / best if distortion is not None and best else None
    for column, copied in copies.items():
        means = mean_copy_metrics([copied[row] for row in rows])
        by_column[column] |= {key: means[key] for key in COPY_METRICS}
    for column, texts in hypotheses.items():
        by_column[column] |= error_rates([references[row] for row in rows], [texts[row] for row in rows])
    keys = dict.fromkeys(key for values in by_column.values() for key in values)
    return {key: {column: values.get(key) for column, values in by_column.items()} for key in keys}


def recogniser_notes(transcriber: Transcriber, references: Sequence[str], utterances: Sequence[Utterance]) -> list[str]:
    """Return notes on the recogniser, its error rates on the recordings, and its bias."""
    rates = error_rates(references, list(transcriber.transcribe(utterance.wave for utterance in utterances)))
    characters, words = rates["character_error_rate"], rates["word_error_rate"]
    return [
        f"the recogniser is {transcriber.run}, {transcriber.checkpoint.name}; on the recordings it has a character "
        f"error rate of {characters:.1%} and a word error rate of {words:.1%}",
        "its error rates are optimistic if it was trained on the same corpus or on speech of the same synthesizer: "
        "compare TTS runs only with the same recogniser",
    ]
