"""Metrics of a TTS run, beside those of the recordings and of their copies."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.format import sample_rate_hz
from myxtts.audio.vocoder import GriffinLim, LoadVocoder, VocoderProtocol
from myxtts.base.errors import DataError
from myxtts.base.files import numbered_name
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.synthesis import SynthesisOptions
from myxtts.report.plots import f0_curves, mel_and_alignment, png_bytes
from myxtts.tasks import loading
from myxtts.tasks.base import Throttle, no_throttle
from myxtts.tasks.evaluation import metrics, speech, table
from myxtts.tasks.evaluation.held_out import Evaluation, EvaluationOptions, Utterance
from myxtts.tasks.evaluation.metrics import AcousticFeatures, CopyMetrics, UtteranceMetrics
from myxtts.tasks.evaluation.recognisers import open_recogniser
from myxtts.tasks.evaluation.table import ColumnScore, Means, Metric, Metrics, ScoreWeights
from myxtts.tasks.tts import word_errors
from myxtts.tasks.tts.network import XTTS
from myxtts.tasks.tts.task import synthesis_options
from myxtts.tasks.tts.utterances import load_utterances, predict_mels, token_log_probs
from myxtts.text.error_rates import error_rates

# With copies these are 100 waves to make and to compare.
MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
COLUMNS = ("synthesized", "copy_synthesis", "recordings")
GRIFFIN_LIM_SUFFIX = "_griffin_lim"  # of columns that a trained vocoder is compared with
# Only copy synthesis has the same times as the recording.
COPY_METRICS = ("pesq_wb", "stoi", "log_mel_error")

log = logging.getLogger(__name__)


def score_run(run: TrainedRun, evaluation: Evaluation, folder: Path) -> ColumnScore:
    """Measure a checkpoint, and write plots; raises UserError if the vocoder cannot be used."""
    device = evaluation.route.model
    choice = run.select_vocoder(evaluation.options.vocoder)
    network = loading.load_network(run, device, "tts")
    vocoder = loading.load_vocoder(choice, device)
    vocoders = {"": vocoder}
    if choice.trained:
        vocoders[GRIFFIN_LIM_SUFFIX] = GriffinLim()
    evaluator = TTSEvaluator(evaluation, network, vocoders)
    score = evaluator.score(run.checkpoint.path.name)
    write_plots(folder, evaluator)
    features = {name: of.features for name, of in evaluator.columns.items()}
    speakers, speaker_note = speech.speaker_metrics(
        evaluation.corpus, evaluator.utterances, features, device
    )
    timing_note = (
        f"the real-time factor is from text to wave on {device}, with mels in batches of"
        f" {speech.BATCH_UTTERANCES}, after a warm-up"
    )
    return replace(
        score,
        metrics=score.metrics | {"real_time_factor": evaluator.real_time_factors} | speakers,
        notes=(*score.notes, timing_note, speaker_note),
        details={"vocoder": vocoder.metadata},
    )


def score_in_run(evaluation: Evaluation, network: XTTS, load: LoadVocoder) -> ScoreWeights:
    """Return what measures a network during its run, with everything compiled."""
    evaluator = TTSEvaluator(evaluation, network, {"": load()}, in_run=True)
    # Tracing is for the main thread alone, and the observer's thread measures.
    network.synthesize_mel.get_concrete_function()
    return evaluator.score


class Column(NamedTuple):
    """What a column of the table measures: an item for each utterance."""

    features: list[AcousticFeatures]
    compared: list[UtteranceMetrics]  # with the recordings; empty for these themselves
    texts: list[str]  # of the recogniser; empty without one
    opinions: list[Means]  # DNSMOS
    word_errors: list[tuple[int, int]]  # words left out and repeated; empty in a run


class TTSEvaluator:
    """Measures the weights that a network has, any number of times, and what does not depend on
    them once. Raises UserError if the recogniser cannot be used, or does not know a language.

    Vocoders are by the suffix of their columns; `in_run` leaves out what a run has no time for.

    Attributes:
        references: texts as the recogniser spells them, "" if it cannot; empty without one.
        columns, real_time_factors: of the last `score`.
    """

    # Made once: the options, the utterances, the references as the recogniser spells them, the
    # features of the recordings, and their copies by each vocoder with PESQ and STOI. None of these
    # depends on the weights of the voice. `score` then synthesizes with the weights of the moment
    # and measures the new columns only.
    def __init__(
        self,
        evaluation: Evaluation,
        network: XTTS,
        vocoders: Mapping[str, VocoderProtocol],
        in_run: bool = False,
    ):
        corpus, options, device = evaluation.corpus, evaluation.options, evaluation.route.model
        self._evaluation, self._network, self._device = evaluation, network, device
        self._vocoders, self._in_run, self._throttle = vocoders, in_run, no_throttle
        self._transcriber = open_recogniser(options.asr, device) if options.asr else None
        self._synthesis = override(synthesis_options(corpus.config.model), options)
        count = options.utterances or MAX_UTTERANCES
        # A measurement during a run has no plots, which need alignments.
        self.utterances = load_utterances(
            network, corpus, evaluation.route, evaluation.run, count, aligned=not in_run
        )
        languages = evaluation.record.languages
        self._languages = [languages[utterance.language] for utterance in self.utterances]
        self.references: list[str] = []
        if self._transcriber:
            for utterance, language in zip(self.utterances, self._languages, strict=True):
                text = self._transcriber.normalise_reference(utterance.text, language)
                self.references.append(text)
            if not any(self.references):
                raise DataError(
                    f"{self._transcriber.run} is to transcribe the synthesized speech, but it knows"
                    " English without digits alone, which none of the texts is. Give the run of a"
                    " recogniser of their language with --asr."
                )
        waves = [utterance.wave for utterance in self.utterances]
        mels = [utterance.mel for utterance in self.utterances]
        self.recorded = speech.acoustic_features(waves, device)
        self._trimmed = [metrics.trimmed(features) for features in self.recorded]
        self._fixed = {"recordings": self._heard(self.recorded, [])}
        copies = {}
        for suffix, vocoder in vocoders.items():
            name = f"copy_synthesis{suffix}"
            copied = speech.vocode_mels(vocoder, mels, device, recorded=True)
            self._fixed[name] = column = self.column(copied)
            measured = metrics.measure_copies(self.recorded, column.features, options.perceptual)
            copies[name] = [measured]
        common = metrics.with_common_scores(copies)
        self._copies = {name: measured for name, (measured,) in common.items()}
        self._notes = self._condition_notes()

    def score(self, checkpoint: str, throttle: Throttle = no_throttle) -> ColumnScore:
        """Measure the weights that the network has now; `checkpoint` is their name in the score."""
        self._throttle = throttle
        waves, self.real_time_factors = self._synthesize()
        columns = {name: self.column(of_column) for name, of_column in waves.items()}
        self.columns = columns = self._fixed | columns
        measure = partial(
            column_metrics, columns=columns, copies=self._copies, references=self.references
        )
        names: tuple[str, ...] = COLUMNS
        for suffix in filter(None, self._vocoders):
            names += tuple(column + suffix for column in COLUMNS[:2])
        return ColumnScore(
            run=str(self._evaluation.run),
            checkpoint=checkpoint,
            utterances=len(self.utterances),
            columns=names,
            metrics=measure(range(len(self.utterances))),
            groups={"languages": table.metrics_by_group(self._languages, measure)},
            notes=tuple(self._notes),
        )

    def _synthesize(self) -> tuple[dict[str, list[np.ndarray]], Metric]:
        """Return the waves of each column of synthesized speech, and their real-time factors."""
        # The first time warms up; in a run the real-time factor is not shown.
        if not self._in_run:
            self.predict(self.utterances)
        started_s = time.perf_counter()
        mels = self.predict(self.utterances)
        predicting_s = time.perf_counter() - started_s
        waves: dict[str, list[np.ndarray]] = {}
        factors: Metric = {}
        for suffix, vocoder in self._vocoders.items():
            name = f"synthesized{suffix}"
            started_s = time.perf_counter()
            waves[name] = speech.vocode_mels(vocoder, mels, self._device, throttle=self._throttle)
            elapsed_s = predicting_s + time.perf_counter() - started_s
            factors[name] = elapsed_s * sample_rate_hz() / sum(map(len, waves[name]))
        return waves, factors

    def predict(self, utterances: Sequence[Utterance]) -> list[np.ndarray]:
        """Return log-mels of utterances with the options of the evaluation, [frames, 80]."""
        record, options = self._evaluation.record, self._synthesis
        return predict_mels(
            self._network, record, utterances, options, self._device, self._throttle
        )

    def column(self, waves: list[np.ndarray]) -> Column:
        """Measure waves, one for each utterance, float32 [samples]."""
        features = speech.acoustic_features(waves, self._device, self._throttle)
        compared = []
        for recorded, measured in zip(self._trimmed, features, strict=True):
            self._throttle()
            compared.append(metrics.utterance_metrics(recorded, metrics.trimmed(measured)))
        return self._heard(features, compared)

    def _heard(self, features: list[AcousticFeatures], compared: list[UtteranceMetrics]) -> Column:
        """Return a column with what a recogniser and DNSMOS say of its waves."""
        waves = [of_wave.wave for of_wave in features]
        texts: list[str] = []
        if self._transcriber:
            texts = list(self._transcriber.transcribe(waves, self._throttle))
        opinions = []
        for wave in waves:
            self._throttle()
            opinions.append(metrics.dnsmos(wave))
        return Column(features, compared, texts, opinions, self._word_errors(features))

    def _word_errors(self, features: list[AcousticFeatures]) -> list[tuple[int, int]]:
        """Return how many words of its text each wave leaves out, and how many it repeats."""
        # In a run, the recordings are measured before the aligner has learnt anything.
        if self._in_run:
            return []
        symbols = self._evaluation.record.vocabulary.symbols
        counts = []
        for utterance, of_wave in zip(self.utterances, features, strict=True):
            self._throttle()
            tokens = utterance.tokens
            spelt = symbols.decode(tokens)
            words = word_errors.split_words(spelt, 1 + np.arange(len(tokens)))
            log_probs = token_log_probs(self._network, of_wave.mel, spelt, tokens, self._device)
            counts.append(word_errors.count_word_errors(log_probs, words))
        return counts

    def _condition_notes(self) -> list[str]:
        """Return notes on what is measured, and how."""
        utterances, options = self.utterances, self._evaluation.options
        audio_s = sum(len(utterance.wave) for utterance in utterances) / sample_rate_hz()
        vocoders = [vocoder.description for vocoder in self._vocoders.values()]
        notes = [
            f"{len(utterances)} {self._evaluation.corpus.source}, {audio_s:.1f} s of speech;"
            f" {self._synthesis.ode_steps} ODE steps, guidance {self._synthesis.guidance:g},"
            f" variety {self._synthesis.variety:g}",
            f"the waves are by {', and in columns of their own by '.join(vocoders)}",
            "PESQ-WB, STOI and log-mel error are of copy synthesis, since they compare waves at the"
            " same times",
        ]
        if options.perceptual:
            notes += metrics.missing_packages(metrics.PACKAGES)
            notes += metrics.score_notes(self._copies["copy_synthesis"])
        if self._transcriber:
            heard = sum(map(bool, self.references))
            notes += [
                f"the recogniser is {self._transcriber.run}, {self._transcriber.checkpoint.name};"
                f" it knows the language and the symbols of {heard} of {len(utterances)} texts",
                "its error rates are optimistic if it was trained on the same corpus or on speech"
                " of the same synthesizer: compare TTS runs only with the same recogniser",
            ]
        return notes


def override(run_options: SynthesisOptions, options: EvaluationOptions) -> SynthesisOptions:
    """Return the run's synthesis options with those that were given instead."""
    given = {name: getattr(options, name) for name in ("ode_steps", "guidance", "variety")}
    return replace(
        run_options, **{name: value for name, value in given.items() if value is not None}
    )


def column_metrics(
    rows: Sequence[int],
    columns: Mapping[str, Column],
    copies: Mapping[str, Sequence[CopyMetrics]],
    references: Sequence[str],
) -> Metrics:
    """Return the metrics of some utterances; error rates of those that have a reference."""
    by_column: dict[str, Means] = {name: {} for name in columns}
    spoken = [row for row in rows if references and references[row]]
    for name, column in columns.items():
        if column.compared:
            by_column[name] |= metrics.corpus_metrics([column.compared[row] for row in rows])
        ratings = [column.opinions[row] for row in rows]
        by_column[name] |= {key: float(np.mean([of[key] for of in ratings])) for key in ratings[0]}
        if spoken:
            texts = [column.texts[row] for row in spoken]
            by_column[name] |= error_rates([references[row] for row in spoken], texts)
        if column.word_errors:
            left_out, repeated = np.sum([column.word_errors[row] for row in rows], axis=0)
            by_column[name] |= {"words_left_out": int(left_out), "words_repeated": int(repeated)}
    for name, copied in copies.items():
        means = metrics.mean_copy_metrics([copied[row] for row in rows])
        by_column[name] |= {key: means[key] for key in COPY_METRICS if key in means}
    return table.by_metric(by_column)


def write_plots(folder: Path, evaluator: TTSEvaluator) -> None:
    """Write `<number>-<id>-mel.png` and `<number>-<id>-f0.png` for the first utterances."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = zip(evaluator.recorded, evaluator.columns["synthesized"].features, strict=True)
    for number, (recorded, synthesized) in enumerate(islice(rows, PLOTTED_UTTERANCES)):
        utterance = evaluator.utterances[number]
        sounds = {"recorded": recorded, "synthesized": synthesized}
        f0_hz = {name: np.where(of.voiced, of.f0_hz, np.nan) for name, of in sounds.items()}
        mels = mel_and_alignment(recorded.mel, synthesized.mel, utterance.path, utterance.text)
        name = numbered_name(number + 1, utterance.id)
        (folder / f"{name}-mel.png").write_bytes(png_bytes(mels))
        (folder / f"{name}-f0.png").write_bytes(png_bytes(f0_curves(f0_hz, utterance.text)))
    log.info("plots          %s", folder)
