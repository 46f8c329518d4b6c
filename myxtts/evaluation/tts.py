"""Metrics of a TTS run, between the recordings and their copies, and other sentences."""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.vocoder import GriffinLim, VocoderProtocol
from myxtts.config.synthesis import SynthesisOptions
from myxtts.errors import DataError
from myxtts.evaluation import held_out, metrics, speech, table, word_errors
from myxtts.evaluation.held_out import Evaluation, EvaluationOptions, Utterance
from myxtts.evaluation.metrics import AcousticFeatures, CopyMetrics, UtteranceMetrics
from myxtts.evaluation.recognisers import open_recogniser
from myxtts.evaluation.table import ColumnScore, Means, Metric, Metrics, ScoreWeights
from myxtts.files import numbered_name
from myxtts.models.xtts import XTTS
from myxtts.report.plots import f0_curves, mel_and_alignment, png_bytes
from myxtts.tasks.tts import synthesis_options
from myxtts.text.error_rates import error_rates
from myxtts.training.observation import LoadVocoder, Throttle, no_throttle
from myxtts.training.runs import TrainedRun

# With copies and shuffled texts these are 150 waves to make and to compare.
MAX_UTTERANCES = 50
PLOTTED_UTTERANCES = 4
COLUMNS = ("synthesized", "copy_synthesis", "recordings", "shuffled_texts", "another_sentence")
IN_RUN = COLUMNS[:3]
GRIFFIN_LIM_SUFFIX = "_griffin_lim"  # of columns that a trained vocoder is compared with
# Only copy synthesis has the same times as the recording.
COPY_METRICS = ("pesq_wb", "stoi", "log_mel_error")

log = logging.getLogger(__name__)


def score_run(run: TrainedRun, evaluation: Evaluation, folder: Path) -> ColumnScore:
    """Measure a checkpoint, and write plots; raises UserError if the vocoder cannot be used."""
    device = evaluation.route.model
    choice = run.select_vocoder(evaluation.options.vocoder)
    network = run.load_network(device, "tts")
    vocoder = choice.load(device)
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

    Args:
        vocoders: by the suffix of their columns. That of "" also makes shuffled texts.
        in_run: leave out shuffled texts, which take as long as the synthesis itself.

    Attributes:
        recorded: features of the recordings.
        utterances: with their alignments, but for `in_run`.
        columns, real_time_factors: of the last `score`.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        network: XTTS,
        vocoders: Mapping[str, VocoderProtocol],
        in_run: bool = False,
    ):
        corpus, options, device = evaluation.corpus, evaluation.options, evaluation.route.model
        self._evaluation, self._network, self._device = evaluation, network, device
        self._vocoders, self._in_run = vocoders, in_run
        self._transcriber = open_recogniser(options.asr, device) if options.asr else None
        self._synthesis = override(synthesis_options(corpus.config.model), options)
        count = options.utterances or MAX_UTTERANCES
        self.utterances, batches = held_out.load_utterances(
            network, corpus, evaluation.route, evaluation.run, count
        )
        # A run has no plots of alignments.
        if not in_run:
            self.utterances = held_out.align_utterances(network, self.utterances, batches, device)
        names = evaluation.record.languages
        self._languages = [names[utterance.language] for utterance in self.utterances]
        self._references: list[str] = []
        if self._transcriber:
            for utterance, language in zip(self.utterances, self._languages, strict=True):
                text = self._transcriber.normalise_reference(utterance.text, language)
                self._references.append(text)
            if not any(self._references):
                raise DataError(
                    f"{self._transcriber.run} is to transcribe the synthesized speech, but it knows"
                    " English without digits alone, which none of the texts is. Give the run of a"
                    " recogniser of their language with --asr."
                )
        waves = [utterance.wave for utterance in self.utterances]
        mels = [utterance.mel for utterance in self.utterances]
        self.recorded = speech.acoustic_features(waves, device)
        self._trimmed = [metrics.trimmed(features) for features in self.recorded]
        self._fixed = {"recordings": self._heard(self.recorded, [], no_throttle)}
        copies = {}
        for suffix, vocoder in vocoders.items():
            name = f"copy_synthesis{suffix}"
            column = self._column(speech.vocode_mels(vocoder, mels, device), no_throttle)
            self._fixed[name] = column
            measured = metrics.measure_copies(self.recorded, column.features, options.perceptual)
            copies[name] = [measured]
        common = metrics.with_common_scores(copies)
        self._copies = {name: measured for name, (measured,) in common.items()}
        self._notes = self._condition_notes()

    def score(self, checkpoint: str, throttle: Throttle = no_throttle) -> ColumnScore:
        """Measure the weights that the network has, which are those of a checkpoint."""
        waves, self.real_time_factors = self._synthesize(throttle)
        columns = {
            # The same voice with other texts sounds as well, and DNSMOS takes long.
            name: self._column(of_column, throttle, is_rated=name != "shuffled_texts")
            for name, of_column in waves.items()
        }
        self.columns = columns = self._fixed | columns
        another_db = [] if self._in_run else self._another_sentence_db()

        def measure(rows: Sequence[int]) -> Metrics:
            return column_metrics(rows, columns, self._copies, self._references, another_db)

        names: tuple[str, ...] = IN_RUN if self._in_run else COLUMNS
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

    def _synthesize(self, throttle: Throttle) -> tuple[dict[str, list[np.ndarray]], Metric]:
        """Return the waves of each column of synthesized speech, and their real-time factors."""

        def predict(texts: Sequence[Utterance]) -> list[np.ndarray]:
            record, options = self._evaluation.record, self._synthesis
            return speech.predict_mels(
                self._network, record, texts, self.utterances, options, self._device, throttle
            )

        def vocode(vocoder: VocoderProtocol, mels: Sequence[np.ndarray]) -> list[np.ndarray]:
            return speech.vocode_mels(vocoder, mels, self._device, throttle=throttle)

        # They come first, since they are also the warm-up of the synthesis that is timed.
        shuffled_mels: list[np.ndarray] = []
        if not self._in_run:
            shuffled_mels = predict(shuffle_texts(self.utterances))
        started_s = time.perf_counter()
        mels = predict(self.utterances)
        predicting_s = time.perf_counter() - started_s
        waves: dict[str, list[np.ndarray]] = {}
        factors: Metric = {}
        for suffix, vocoder in self._vocoders.items():
            name = f"synthesized{suffix}"
            started_s = time.perf_counter()
            waves[name] = vocode(vocoder, mels)
            elapsed_s = predicting_s + time.perf_counter() - started_s
            factors[name] = elapsed_s * SAMPLE_RATE_HZ / sum(map(len, waves[name]))
        # A single utterance has no other text.
        if shuffled_mels and len(self.utterances) > 1:
            waves["shuffled_texts"] = vocode(self._vocoders[""], shuffled_mels)
        return waves, factors

    def _column(self, waves: list[np.ndarray], throttle: Throttle, is_rated: bool = True) -> Column:
        features = speech.acoustic_features(waves, self._device, throttle)
        compared = []
        for recorded, measured in zip(self._trimmed, features, strict=True):
            throttle()
            compared.append(metrics.utterance_metrics(recorded, metrics.trimmed(measured)))
        return self._heard(features, compared, throttle, is_rated)

    def _heard(
        self,
        features: list[AcousticFeatures],
        compared: list[UtteranceMetrics],
        throttle: Throttle,
        is_rated: bool = True,
    ) -> Column:
        """Return a column with what a recogniser and DNSMOS say of its waves."""
        waves = [of_wave.wave for of_wave in features]
        texts = list(self._transcriber.transcribe(waves, throttle)) if self._transcriber else []
        opinions = []
        if is_rated:
            for wave in waves:
                throttle()
                opinions.append(metrics.dnsmos(wave))
        return Column(features, compared, texts, opinions, self._word_errors(features, throttle))

    def _word_errors(
        self, features: list[AcousticFeatures], throttle: Throttle
    ) -> list[tuple[int, int]]:
        """Return how many words of its text each wave leaves out, and how many it repeats."""
        # In a run, the recordings are measured before the aligner has learnt anything.
        if self._in_run:
            return []
        symbols = self._evaluation.record.vocabulary.symbols
        counts = []
        for utterance, of_wave in zip(self.utterances, features, strict=True):
            throttle()
            tokens = utterance.tokens
            spelt = symbols.decode(tokens)
            words = word_errors.split_words(spelt, 1 + np.arange(len(tokens)))
            log_probs = speech.token_log_probs(
                self._network, of_wave.mel, spelt, tokens, self._device
            )
            counts.append(word_errors.count_word_errors(log_probs, words))
        return counts

    def _another_sentence_db(self) -> list[float | None]:
        """Return each recording's distortion by the next one of its speaker, None if there is none.

        Whatever comes near it has nothing of the sentence but the voice.
        """
        by_speaker = defaultdict(list)
        for row, utterance in enumerate(self.utterances):
            by_speaker[utterance.speaker].append(row)
        another_db: list[float | None] = [None] * len(self.utterances)
        for rows in by_speaker.values():
            for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
                if row != other:
                    mels = self._trimmed[row].mel, self._trimmed[other].mel
                    another_db[row] = float(metrics.align(*mels)[1].mean())
        return another_db

    def _condition_notes(self) -> list[str]:
        """Return notes on what is measured, and how."""
        utterances, options = self.utterances, self._evaluation.options
        audio_s = sum(len(utterance.wave) for utterance in utterances) / SAMPLE_RATE_HZ
        vocoders = [vocoder.description for vocoder in self._vocoders.values()]
        notes = [
            f"{len(utterances)} {self._evaluation.corpus.source}, {audio_s:.1f} s of speech;"
            f" {self._synthesis.ode_steps} ODE steps, guidance {self._synthesis.guidance:g},"
            f" variety {self._synthesis.variety:g}",
            f"the waves are by {', and in columns of their own by '.join(vocoders)}",
            "PESQ-WB, STOI and log-mel error are of copy synthesis, since they compare waves at the"
            " same times",
        ]
        if len(utterances) == 1 and not self._in_run:
            notes.append("shuffled texts are left out: a single utterance has no other text")
        if options.perceptual:
            notes += metrics.missing_packages(metrics.PACKAGES)
            notes += metrics.score_notes(self._copies["copy_synthesis"])
        if self._transcriber:
            heard = sum(map(bool, self._references))
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


def shuffle_texts(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return another utterance for each one, of the same language where possible."""
    by_language: dict[int, list[int]] = defaultdict(list)
    for index, utterance in enumerate(utterances):
        by_language[utterance.language].append(index)
    # Utterances that are alone in their language take turns rather than keep their texts.
    alone = [indices[0] for indices in by_language.values() if len(indices) == 1]
    shuffled = list(utterances)
    for indices in (*by_language.values(), alone):
        for index, other_index in zip(indices, indices[1:] + indices[:1], strict=True):
            shuffled[index] = utterances[other_index]
    if len(alone) == 1:
        shuffled[alone[0]] = utterances[alone[0] - 1]
    return shuffled


def column_metrics(
    rows: Sequence[int],
    columns: Mapping[str, Column],
    copies: Mapping[str, Sequence[CopyMetrics]],
    references: Sequence[str],
    another_db: Sequence[float | None],
) -> Metrics:
    """Return the metrics of some utterances; error rates of those that have a reference."""
    by_column: dict[str, Means] = {name: {} for name in columns}
    spoken = [row for row in rows if references and references[row]]
    for name, column in columns.items():
        if column.compared:
            by_column[name] |= metrics.corpus_metrics([column.compared[row] for row in rows])
        if column.opinions:
            by_column[name] |= mean_values([column.opinions[row] for row in rows])
        if spoken:
            texts = [column.texts[row] for row in spoken]
            by_column[name] |= error_rates([references[row] for row in spoken], texts)
        if column.word_errors:
            left_out, repeated = np.sum([column.word_errors[row] for row in rows], axis=0)
            by_column[name] |= {"words_left_out": int(left_out), "words_repeated": int(repeated)}
    for name, copied in copies.items():
        means = metrics.mean_copy_metrics([copied[row] for row in rows])
        by_column[name] |= {key: means[key] for key in COPY_METRICS if key in means}
    others_db = [db for row in rows if another_db and (db := another_db[row]) is not None]
    if others_db:
        by_column["another_sentence"] = {"mel_cepstral_distortion": float(np.mean(others_db))}
    return table.by_metric(by_column)


def mean_values(opinions: Sequence[Means]) -> Means:
    """Return the mean of each value over utterances."""
    return {key: float(np.mean([of[key] for of in opinions])) for key in opinions[0]}


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
