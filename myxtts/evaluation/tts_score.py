"""Metrics of a TTS run, each between copy synthesis (its best value) and shuffled texts (its worst value)."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.dataset import corpus_folder
from myxtts.data.manifest import Manifest
from myxtts.evaluation.acoustic_metrics import AcousticFeatures, corpus_metrics, utterance_metrics
from myxtts.evaluation.boundaries import (
    Phoneme,
    aligned_s,
    boundaries,
    boundary_metrics,
    read_alignments,
    word_spans,
)
from myxtts.evaluation.held_out import (
    Utterance,
    load_other_corpus,
    load_run_corpora,
    load_training_corpus,
    load_utterances,
    speaker_recordings,
)
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.planted_errors import plant_errors
from myxtts.evaluation.report import METRICS, Metric, TTSScore, output_folder, print_score, write_plots
from myxtts.evaluation.speakers import SpeakerClassifier, speaker_embedding
from myxtts.evaluation.speech import BATCH_UTTERANCES, acoustic_features, copy_synthesis, synthesize
from myxtts.files import check_writable
from myxtts.models.xtts import XTTS, SynthesisOptions
from myxtts.placement import devices
from myxtts.placement.routes import Route
from myxtts.recognition.transcriber import Transcriber
from myxtts.tasks.tts_samples import synthesis_options
from myxtts.text.edit_distance import error_rates
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.load_model import load_model
from myxtts.training.select_checkpoint import select_checkpoint, vocabulary_of

MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
RECORDINGS_PER_SPEAKER = 20  # for its centroid

Item = TypeVar("Item")
Columns = Mapping[str, Sequence[Item]]  # by the columns of the table: an item for each utterance
Metrics = dict[str, Metric]

log = logging.getLogger(__name__)


def evaluate_tts(run: Path, checkpoint: str | None, options: EvaluationOptions) -> None:
    """Measure a TTS run on GPU 0 or else on the CPU; print a table, and write JSON and plots.

    Raises:
        UserError: the run, a corpus or an output cannot be used.
    """
    selected = select_checkpoint(run, checkpoint)
    check_writable("--json", options.json_file)
    folder = output_folder(run, selected, options)
    placement = devices.configure_default()
    print_score(score_tts(run, selected, options, placement.routes[0], folder), options.json_file)
    log.info("plots          %s", folder)


def score_tts(run: Path, checkpoint: Path, options: EvaluationOptions, route: Route, folder: Path) -> TTSScore:
    """Measure a checkpoint, and write plots.

    Raises:
        CheckpointError: the checkpoint is damaged, or its corpus has changed since.
        DataError: a corpus is missing or cannot be used, nothing was held out, or a file cannot be read.
    """
    metadata, device = read_metadata(checkpoint), route.model
    if options.data is None:
        config, corpus, manifest = load_run_corpora(checkpoint, metadata, run)
    else:
        config, corpus = load_training_corpus(checkpoint, metadata, run)
        manifest, _ = load_other_corpus(options.data, options.audio_root, config, metadata, folder)
    network = load_model(checkpoint, metadata, device, task="tts")
    synthesis = override(synthesis_options(config.model), options)
    transcriber = Transcriber(options.asr_run, device) if options.asr_run else None
    utterances = load_utterances(network, manifest, config, route, run, options.utterances or MAX_UTTERANCES)
    languages = [metadata["languages"][utterance.language] for utterance in utterances]
    references = normalised_texts(transcriber, utterances, languages) if transcriber else []
    log.info("evaluation     %s, %d utterances", checkpoint, len(utterances))
    waves, real_time_factor = synthesize_columns(network, utterances, metadata, synthesis, device)
    source = f"utterances of {options.data}" if options.data else "held-out utterances"
    notes = condition_notes(utterances, source, synthesis, device)
    if "shuffled_texts" not in waves:
        notes.append("shuffled texts are left out: a single utterance has no other text")

    recorded = acoustic_features([utterance.wave for utterance in utterances], device)
    features = {column: acoustic_features(column_waves, device) for column, column_waves in waves.items()}
    plotted = slice(PLOTTED_UTTERANCES)
    write_plots(folder, utterances[plotted], recorded[plotted], features["synthesized"][plotted])
    hypotheses: dict[str, list[str]] = {}
    if transcriber:
        hypotheses = {column: list(transcriber.transcribe(column_waves)) for column, column_waves in waves.items()}
        notes += recogniser_notes(transcriber, references, utterances)

    def measure(rows: Iterable[int]) -> Metrics:
        return column_metrics(rows, recorded, features, references, hypotheses)

    metrics = measure(range(len(utterances))) | {"real_time_factor": Metric(real_time_factor)}
    run_data = config.data.audio_root or config.data.val_data or config.data.train_data
    alignments = alignments_of(corpus_folder(options.data or run_data))
    notes.append(planted_errors_note(utterances, recorded, waves["copy_synthesis"], alignments, device))
    for more, note in (
        speaker_accuracy(corpus.manifest, manifest, utterances, {"recorded": recorded, **features}, device),
        alignment_metrics(utterances, alignments, vocabulary_of(metadata).symbols),
    ):
        metrics |= more
        notes.append(note)
    by_language = metrics_by_language(languages, measure)
    return TTSScore(str(run), checkpoint.name, len(utterances), in_table_order(metrics), by_language, tuple(notes))


def normalised_texts(transcriber: Transcriber, utterances: Sequence[Utterance], languages: Sequence[str]) -> list[str]:
    """Return the texts as the recogniser writes texts. Raises DataError if it does not know a language or symbol."""
    pairs = zip(utterances, languages, strict=True)
    return [transcriber.normalise_reference(utterance.text, language) for utterance, language in pairs]


def condition_notes(
    utterances: Sequence[Utterance], source: str, synthesis: SynthesisOptions, device: str
) -> list[str]:
    """Return notes on what was measured, and how."""
    audio_s = sum(len(utterance.wave) for utterance in utterances) / SAMPLE_RATE_HZ
    return [
        f"{len(utterances)} {source}, {audio_s:.1f} s of speech; {synthesis.ode_steps} ODE steps, "
        f"guidance {synthesis.guidance:g}",
        f"the real-time factor is for batches of {BATCH_UTTERANCES} on {device}, after a warm-up",
    ]


def override(run_options: SynthesisOptions, options: EvaluationOptions) -> SynthesisOptions:
    """Return the run's synthesis options with those that were given in their place."""
    ode_steps = run_options.ode_steps if options.ode_steps is None else options.ode_steps
    guidance = run_options.guidance if options.guidance is None else options.guidance
    return replace(run_options, ode_steps=ode_steps, guidance=guidance)


def synthesize_columns(
    network: XTTS, utterances: Sequence[Utterance], metadata: dict[str, Any], options: SynthesisOptions, device: str
) -> tuple[dict[str, list[np.ndarray]], float]:
    """Return the waves of each column, and the real-time factor of synthesis.

    A single utterance has no shuffled texts.
    """
    references = [utterance.reference for utterance in utterances]

    def synthesize_texts(sources: Sequence[Utterance]) -> list[np.ndarray]:
        """Synthesize the text of each source with the reference of the utterance at the same index."""
        texts, languages = [source.text for source in sources], [source.language for source in sources]
        return synthesize(network, metadata, texts, languages, references, options, device)

    waves = {"shuffled_texts": synthesize_texts(shuffle_texts(utterances))}  # also the warm-up of the timed synthesis
    started_s = time.perf_counter()
    waves["synthesized"] = synthesize_texts(utterances)
    elapsed_s = time.perf_counter() - started_s
    waves["copy_synthesis"] = copy_synthesis([utterance.mel for utterance in utterances], device)
    if len(utterances) == 1:
        del waves["shuffled_texts"]
    return waves, elapsed_s * SAMPLE_RATE_HZ / sum(map(len, waves["synthesized"]))


def in_table_order(metrics: Metrics) -> Metrics:
    return {key: metrics[key] for key in METRICS if key in metrics}


def shuffle_texts(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return another utterance for each one, of the same language where possible."""
    by_language = sorted(range(len(utterances)), key=lambda index: utterances[index].language)
    shuffled = list(utterances)
    for index, other_index in zip(by_language, by_language[1:] + by_language[:1], strict=True):
        shuffled[index] = utterances[other_index]
    return shuffled


def column_metrics(
    rows: Iterable[int],
    recorded: Sequence[AcousticFeatures],
    features: Columns[AcousticFeatures],
    references: Sequence[str],
    hypotheses: Columns[str],
) -> Metrics:
    """Return the acoustic metrics of some utterances and, if there are hypotheses, their error rates."""
    rows = list(rows)
    by_column: dict[str, dict[str, float | None]] = {}
    for column, synthesized in features.items():
        pairs = ((recorded[row], synthesized[row]) for row in rows)
        by_column[column] = corpus_metrics([utterance_metrics(*pair) for pair in pairs])
    best = by_column["copy_synthesis"]["mel_cepstral_distortion"]
    for values in by_column.values():
        distortion = values["mel_cepstral_distortion"]
        values["mel_cepstral_distortion_ratio"] = distortion / best if distortion is not None and best else None
    for column, texts in hypotheses.items():
        by_column[column] |= error_rates([references[row] for row in rows], [texts[row] for row in rows])
    return {
        key: Metric(**{column: values[key] for column, values in by_column.items()}) for key in by_column["synthesized"]
    }


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


def metrics_by_language(languages: Sequence[str], measure: Callable[[Iterable[int]], Metrics]) -> dict[str, Metrics]:
    """Return the metrics of each language; empty if there is only one.

    Args:
        languages: of each utterance.
        measure: returns the metrics of the utterances with these indices.
    """
    rows = defaultdict(list)
    for row, language in enumerate(languages):
        rows[language].append(row)
    if len(rows) < 2:
        return {}
    return {language: in_table_order(measure(own_rows)) for language, own_rows in sorted(rows.items())}


def alignments_of(folder: Path) -> dict[str, list[Phoneme]]:
    """Return the phoneme times that a corpus provides; empty if it has no alignments.jsonl."""
    file = folder / "alignments.jsonl"
    return read_alignments(file) if file.exists() else {}


def planted_errors_note(
    utterances: Sequence[Utterance],
    recorded: Sequence[AcousticFeatures],
    copies: Sequence[np.ndarray],
    alignments: dict[str, list[Phoneme]],
    device: str,
) -> str:
    """Return a note on how many words deleted from copy synthesis, or inserted into it, are detected."""
    phonemes = [alignments.get(Path(utterance.id).stem, []) for utterance in utterances]
    rows = [row for row, utterance_phonemes in enumerate(phonemes) if word_spans(utterance_phonemes)]
    if not rows:
        return "the detection of deletions and insertions is not tested: no alignments.jsonl has the times of words"
    deleted, inserted = (
        acoustic_features(waves, device)
        for waves in plant_errors([copies[row] for row in rows], [phonemes[row] for row in rows])
    )
    deletions, insertions = (
        [utterance_metrics(recorded[row], features) for row, features in zip(rows, column, strict=True)]
        for column in (deleted, inserted)
    )
    return (
        f"detected are {sum(metrics.has_deletion for metrics in deletions)} of {len(rows)} copies with a word deleted, "
        f"and {sum(metrics.has_insertion for metrics in insertions)} of {len(rows)} with a word inserted"
    )


def speaker_accuracy(
    training: Manifest,
    measured: Manifest,
    utterances: Sequence[Utterance],
    features: Columns[AcousticFeatures],
    device: str,
) -> tuple[Metrics, str]:
    """Return the fraction of utterances that are classified as their speaker, and a note; needs several speakers.

    Args:
        training: has the recordings of the speakers seen in training.
        measured: has the recordings of the other speakers; those of `utterances` are left out.
        features: of `utterances` by column, with the column "recorded".
    """
    unseen = ~np.isin(measured.speaker, training.speaker)
    unseen &= ~np.isin(measured.ids, [utterance.id for utterance in utterances])
    seen_waves, seen_speakers = speaker_recordings(training, np.arange(len(training)), RECORDINGS_PER_SPEAKER)
    unseen_waves, unseen_speakers = speaker_recordings(measured, np.flatnonzero(unseen), RECORDINGS_PER_SPEAKER)
    speakers = np.concatenate([seen_speakers, unseen_speakers])
    count = len(np.unique(speakers))
    if count < 2:
        return {}, "speaker accuracy is left out: there is only one speaker"
    recordings = acoustic_features(seen_waves + unseen_waves, device)
    classifier = SpeakerClassifier(np.stack([speaker_embedding(recording.mel) for recording in recordings]), speakers)
    metrics, groups = {}, []
    for group, members in (("seen", np.unique(training.speaker)), ("unseen", np.unique(unseen_speakers))):
        rows = [row for row, utterance in enumerate(utterances) if utterance.speaker in members]
        if rows:
            targets = [utterances[row].speaker for row in rows]
            accuracy = {
                column: classifier.accuracy([column_features[row].mel for row in rows], targets)
                for column, column_features in features.items()
            }
            recorded = accuracy.pop("recorded")
            groups.append(f"{len(rows)} utterances of {group} speakers ({recorded:.0%} of their recordings)")
            metrics[f"speaker_accuracy_{group}"] = Metric(**accuracy)
    if not groups:
        return {}, "speaker accuracy is left out: there are no other recordings of the utterances' speakers"
    note = f"speaker accuracy is among {count} speakers (chance {1 / count:.1%}), for {' and '.join(groups)}"
    return metrics, note


def alignment_metrics(
    utterances: Sequence[Utterance], alignments: dict[str, list[Phoneme]], symbols: SymbolTable
) -> tuple[Metrics, str]:
    """Return the errors of the model's alignment against reliable times of the synthesizer, and a note."""
    if not alignments:
        return {}, "phoneme boundaries are left out: the corpus has no alignments.jsonl"
    errors_ms: dict[str, list[float]] = defaultdict(list)
    unreliable, different = 0, 0
    for utterance in utterances:
        true_boundaries = boundaries(token_symbols(utterance, symbols), alignments.get(Path(utterance.id).stem, ()))
        different += true_boundaries is None
        for boundary in true_boundaries or ():
            unreliable += not boundary.is_reliable
            if boundary.is_reliable:
                error_ms = 1000.0 * (aligned_s(utterance.path, boundary) - boundary.true_s)
                errors_ms["boundary"].append(error_ms)
                errors_ms[f"boundary_{boundary.kind}"].append(error_ms)
    metrics: Metrics = {}
    for prefix, errors in errors_ms.items():
        metrics |= {key: Metric(value) for key, value in boundary_metrics(prefix, errors).items()}
    counts = Counter({prefix.removeprefix("boundary_"): len(errors) for prefix, errors in errors_ms.items()})
    note = (
        f"{counts.pop('boundary', 0)} phoneme boundaries "
        f"({', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}), without {unreliable} whose "
        f"true times are unreliable, and without {different} recordings whose text and phonemes differ"
    )
    return metrics, note


def token_symbols(utterance: Utterance, symbols: SymbolTable) -> list[str]:
    """Return the symbol of each token, "" for the begin and end tokens."""
    inner = (symbols.symbols[token - FIRST_SYMBOL_ID] for token in utterance.tokens[1:-1])
    return ["", *inner, ""]
