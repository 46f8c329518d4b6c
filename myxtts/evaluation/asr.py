"""Error rates of a recogniser: by language and speaker, in noise and in rooms.

The noises and rooms are fixed, and of other kinds than those of training.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.manifest import Manifest
from myxtts.evaluation.held_out import evenly_spaced, load_measured, read_row
from myxtts.evaluation.options import EvaluationOptions
from myxtts.evaluation.table import ScoreWeights, metrics_by_group
from myxtts.placement.routes import Route
from myxtts.recognition.transcriber import NetworkTranscriber, Transcriber
from myxtts.text.edit_distance import error_rates
from myxtts.training.observation import LoadVocoder, Throttle, no_throttle
from myxtts.training.runs import RunFolder, TrainedRun
from myxtts.training.setup import TrainingSetup

SEED = 20_20
# None of them is a kind that training adds: a score must not be of noise that training showed.
KINDS = ("blue", "speech-shaped", "modulated", "hum")
# Speech has about 4 syllables a second.
MODULATION_HZ = 4.0
# Reflections of a room arrive 3 to 50 ms after the sound itself.
EARLY_S = (0.003, 0.05)
REFLECTIONS = 12

Distortion = Callable[[np.ndarray, int], np.ndarray]
"""(wave, index of the utterance) -> distorted wave of the same length; float32 [samples]."""


def distortions(snrs_db: Sequence[float], rt60s_s: Sequence[float]) -> dict[str, Distortion]:
    """Return the distortions of a measurement by name: rooms without noise, noise without rooms."""
    rooms = {f"room, RT60 {rt60_s:g} s": _in_room(rt60_s) for rt60_s in rt60s_s}
    return rooms | {f"noise, SNR {snr_db:g} dB": _with_noise(snr_db) for snr_db in snrs_db}


def _in_room(rt60_s: float) -> Distortion:
    return lambda wave, index: convolve(wave, room_response(rt60_s, index))


def _with_noise(snr_db: float) -> Distortion:
    return lambda wave, index: add_noise(wave, noise(len(wave), index), snr_db)


def add_noise(wave: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """Add noise at a signal-to-noise ratio over the whole wave."""
    ratio = np.sum(np.square(wave, dtype=np.float64)) / np.sum(np.square(noise, dtype=np.float64))
    return (wave + noise * np.sqrt(ratio * 10.0 ** (-snr_db / 10.0))).astype(np.float32)


def noise(samples: int, index: int) -> np.ndarray:
    """Return the noise of an utterance, float64 [samples] of any level. KINDS take turns.

    Training has stationary noise whose amplitude falls with frequency, by 6 dB an octave at most,
    and babble. Here blue noise rises by 3 dB an octave; speech-shaped noise falls by 9 dB above 500
    Hz; pink noise is modulated; and a hum has the harmonics of 70 to 200 Hz.
    """
    random = np.random.default_rng([SEED, index])
    kind = KINDS[index % len(KINDS)]
    time_s = np.arange(samples) / SAMPLE_RATE_HZ
    if kind == "hum":
        order = np.arange(1, 30)[:, None]
        phases = random.uniform(0.0, 2.0 * np.pi, order.shape)
        turns = random.uniform(70.0, 200.0) * order * time_s
        return np.sum(np.sin(2.0 * np.pi * turns + phases) / order, axis=0)
    spectrum = np.fft.rfft(random.standard_normal(samples))
    # At least 20 Hz, since pink noise divides by the frequency, which is 0 in the first bin.
    hz = np.maximum(np.fft.rfftfreq(samples, 1.0 / SAMPLE_RATE_HZ), 20.0)
    if kind == "blue":
        return np.fft.irfft(spectrum * np.sqrt(hz), samples)
    if kind == "speech-shaped":
        return np.fft.irfft(spectrum * np.maximum(hz / 500.0, 1.0) ** -1.5, samples)
    pink = np.fft.irfft(spectrum / np.sqrt(hz), samples)
    phase = random.uniform(0.0, 2.0 * np.pi)
    return pink * (1.0 + np.cos(2.0 * np.pi * MODULATION_HZ * time_s + phase))


def room_response(rt60_s: float, index: int) -> np.ndarray:
    """Return the impulse response of an utterance's room, float64 [samples].

    Training has tails of noise that begin at once. Here some single reflections come first, and the
    tail, which begins after them, loses its high frequencies. Direct sound and reflections with
    tail have equal energies.
    """
    random = np.random.default_rng([SEED + 1, index])
    samples = round(max(rt60_s, 2.0 * EARLY_S[1]) * SAMPLE_RATE_HZ)
    time_s = np.arange(samples) / SAMPLE_RATE_HZ
    tail = np.convolve(random.standard_normal(samples), [0.25, 0.5, 0.25], "same")
    tail *= time_s >= EARLY_S[1]
    at = (random.uniform(*EARLY_S, REFLECTIONS) * SAMPLE_RATE_HZ).astype(int)
    tail[at] += random.choice([-3.0, 3.0], REFLECTIONS)
    tail *= 10.0 ** (-3.0 * time_s / rt60_s)
    tail /= np.sqrt(np.sum(np.square(tail)))
    tail[0] += 1.0
    return tail


def convolve(wave: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Return a wave in a room, cut to its length."""
    length = len(wave) + len(response)
    spectrum = np.fft.rfft(wave, length) * np.fft.rfft(response, length)
    return np.fft.irfft(spectrum, length)[: len(wave)].astype(np.float32)


class Transcript(NamedTuple):
    """The true text of an utterance and the recogniser's text; both as normalised by the run's
    front end.
    """

    id: str
    speaker: str
    language: str
    reference: str
    hypothesis: str


@dataclass(frozen=True)
class ErrorRates:
    """Edits over the length of the references, in characters and in words."""

    utterances: int
    character_error_rate: float
    word_error_rate: float


@dataclass(frozen=True)
class ASRScore:
    """The metrics of a recogniser's checkpoint.

    Attributes:
        languages, speakers: error rates of each, if there are several.
        distorted: error rates in noise and in rooms, by what they are.
        real_time_factor: None if the time was not measured.
        notes: the conditions of the measurement.
    """

    run: str
    checkpoint: str
    overall: ErrorRates
    languages: dict[str, ErrorRates]
    speakers: dict[str, ErrorRates]
    distorted: dict[str, ErrorRates]
    real_time_factor: float | None
    notes: tuple[str, ...]
    transcripts: tuple[Transcript, ...]

    def table(self) -> str:
        """Return a Markdown table."""
        rows = {"all": self.overall}
        rows |= {f"language {name}": rates for name, rates in self.languages.items()}
        rows |= {f"speaker {name}": rates for name, rates in self.speakers.items()}
        rows |= self.distorted
        lines = [
            "| | utterances | character error rate, % | word error rate, % |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {rates.utterances} | {100 * rates.character_error_rate:.2f} | "
            f"{100 * rates.word_error_rate:.2f} |"
            for name, rates in rows.items()
        ]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])

    def figures(self) -> dict[str, float]:
        """Return the error rates over all utterances by name."""
        return {
            "character_error_rate": self.overall.character_error_rate,
            "word_error_rate": self.overall.word_error_rate,
        }

    def console_line(self) -> str:
        """Return `character error rate 3.1 % | word error rate 9.0 %`."""
        return " | ".join(
            f"{name.replace('_', ' ')} {100 * rate:.1f} %" for name, rate in self.figures().items()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the same and all transcripts, with rates as fractions."""
        return asdict(self) | {
            "transcripts": [transcript._asdict() for transcript in self.transcripts]
        }


def score_asr(run: TrainedRun, options: EvaluationOptions, route: Route, folder: Path) -> ASRScore:
    """Measure a checkpoint.

    Args:
        folder: gets rejected.csv.

    Raises:
        UserError: the checkpoint, a corpus or a file cannot be used.
    """
    name = run.checkpoint.path.name
    transcriber = Transcriber(run.path, route.model, name, options.beam_width)
    corpus = load_measured(run, options, folder)
    return measure_error_rates(
        transcriber,
        name,
        corpus.manifest,
        corpus.vocabulary.speakers,
        options.utterances or len(corpus.manifest),
        corpus.source,
        distortions(options.noise_snr_db or (), options.rt60 or ()),
    )


def score_in_run(
    setup: TrainingSetup, network: keras.Model, device: str, folder: RunFolder, load: LoadVocoder
) -> ScoreWeights:
    """Return what measures a network during its run."""
    held_out = setup.corpora.held_out
    count = setup.config.run.evaluate_utterances
    assert held_out is not None
    transcriber = NetworkTranscriber(folder.path, setup.record, network, device)
    speakers = setup.corpora.vocabulary.speakers

    def score(checkpoint: str, throttle: Throttle) -> ASRScore:
        return measure_error_rates(
            transcriber,
            checkpoint,
            held_out.manifest,
            speakers,
            count,
            "held-out utterances",
            {},
            throttle,
            timed=False,
        )

    return score


def measure_error_rates(
    transcriber: NetworkTranscriber,
    checkpoint: str,
    manifest: Manifest,
    speakers: Sequence[str],
    count: int,
    source: str,
    distorted: Mapping[str, Distortion],
    throttle: Throttle = no_throttle,
    timed: bool = True,
) -> ASRScore:
    """Measure at most `count` utterances, evenly spaced in a manifest.

    Args:
        checkpoint: name of the one that has the weights of the transcriber.
        manifest: has the languages of the transcriber.
        speakers: names of the manifest's speakers.
        source: description of the utterances, for the notes.
        distorted: distortions to also measure them in, by name.
        timed: also measure the real-time factor.

    Raises:
        DataError: a file cannot be read.
    """
    # A corpus may be sorted by speaker or language, and its first rows would be of one of them.
    rows = evenly_spaced(np.arange(len(manifest)), count).tolist()
    started_s = time.perf_counter()
    hypotheses = list(transcriber.transcribe((read_row(manifest, row) for row in rows), throttle))
    elapsed_s = time.perf_counter() - started_s
    audio_s = float(manifest.samples[rows].sum()) / SAMPLE_RATE_HZ
    transcripts = []
    for row, hypothesis in zip(rows, hypotheses, strict=True):
        language = transcriber.vocabulary.languages[manifest.language[row]]
        reference = transcriber.normalise_reference(manifest.texts[row], language)
        speaker = speakers[manifest.speaker[row]]
        transcripts.append(Transcript(manifest.ids[row], speaker, language, reference, hypothesis))

    def distorted_rates(distort: Distortion) -> ErrorRates:
        waves = (distort(read_row(manifest, row), index) for index, row in enumerate(rows))
        results = zip(transcripts, transcriber.transcribe(waves, throttle), strict=True)
        distorted_texts = [transcript._replace(hypothesis=text) for transcript, text in results]
        return error_rates_of(distorted_texts)

    notes = [f"{len(rows)} {source}, {audio_s:.1f} s of speech, {transcriber.decoding}"]
    if timed:
        notes.append(
            f"{elapsed_s:.2f} s from file to text on {transcriber.device}, after a warm-up: "
            f"real-time factor {elapsed_s / audio_s:.4f}"
        )
    return ASRScore(
        run=str(transcriber.run),
        checkpoint=checkpoint,
        overall=error_rates_of(transcripts),
        languages=error_rates_by("language", transcripts),
        speakers=error_rates_by("speaker", transcripts),
        distorted={name: distorted_rates(distort) for name, distort in distorted.items()},
        real_time_factor=elapsed_s / audio_s if timed else None,
        notes=tuple(notes),
        transcripts=tuple(transcripts),
    )


def error_rates_by(field: str, transcripts: Sequence[Transcript]) -> dict[str, ErrorRates]:
    """Return the error rates of each `language` or `speaker` by name; empty for a single one."""
    return metrics_by_group(
        [getattr(transcript, field) for transcript in transcripts],
        lambda rows: error_rates_of([transcripts[row] for row in rows]),
    )


def error_rates_of(transcripts: Sequence[Transcript]) -> ErrorRates:
    references = [transcript.reference for transcript in transcripts]
    hypotheses = [transcript.hypothesis for transcript in transcripts]
    return ErrorRates(len(transcripts), **error_rates(references, hypotheses))
