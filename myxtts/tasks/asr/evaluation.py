"""Error rates of a recogniser: by language and speaker, in noise and in rooms."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from myxtts.audio.format import sample_rate_hz
from myxtts.audio.vocoder import LoadVocoder
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.corpus.sound import read_row
from myxtts.tasks.asr.transcriber import NetworkTranscriber, Transcriber
from myxtts.tasks.base import Throttle, no_throttle
from myxtts.tasks.evaluation.held_out import Evaluation, evenly_spaced
from myxtts.tasks.evaluation.table import ScoreWeights, metrics_by_group
from myxtts.text.error_rates import error_rates

SEED = 20_20
# Training adds none of these: it has stationary noise whose amplitude falls with frequency, by 6 dB
# an octave at most, and babble. The rooms of training have tails that begin at once.
KINDS = ("blue", "speech-shaped", "modulated", "hum")
# Speech has about 4 syllables a second.
MODULATION_HZ = 4.0
# Reflections of a room arrive 3 to 50 ms after the sound itself.
EARLY_S = (0.003, 0.05)
REFLECTIONS = 12

RATES = ("character_error_rate", "word_error_rate")

ErrorRates = dict[str, float]
"""RATES, and the number of utterances."""

Transcript = dict[str, str]
"""id, speaker, language, reference and hypothesis of an utterance."""

Distortion = Callable[[np.ndarray, int], np.ndarray]
"""(wave, index of the utterance) -> distorted wave of the same length; float32 [samples]."""


def distortions(snrs_db: Sequence[float], rt60s_s: Sequence[float]) -> dict[str, Distortion]:
    """Return the distortions of a measurement by name: rooms without noise, noise without rooms."""
    rooms = {f"room, RT60 {rt60_s:g} s": partial(in_room, rt60_s) for rt60_s in rt60s_s}
    return rooms | {f"noise, SNR {snr_db:g} dB": partial(add_noise, snr_db) for snr_db in snrs_db}


def in_room(rt60_s: float, wave: np.ndarray, index: int) -> np.ndarray:
    return convolve(wave, room_response(rt60_s, index))


def add_noise(snr_db: float, wave: np.ndarray, index: int) -> np.ndarray:
    """Add the noise of an utterance at a signal-to-noise ratio over the whole wave."""
    added = noise(len(wave), index)
    ratio = np.sum(np.square(wave, dtype=np.float64)) / np.sum(np.square(added, dtype=np.float64))
    return (wave + added * np.sqrt(ratio * 10.0 ** (-snr_db / 10.0))).astype(np.float32)


def noise(samples: int, index: int) -> np.ndarray:
    """Return the noise of an utterance, float64 [samples] of any level. KINDS take turns.

    Blue noise rises by 3 dB an octave; speech-shaped noise falls by 9 dB above 500 Hz; pink noise
    is modulated; and a hum has the harmonics of 70 to 200 Hz.
    """
    random = np.random.default_rng([SEED, index])
    kind = KINDS[index % len(KINDS)]
    time_s = np.arange(samples) / sample_rate_hz()
    if kind == "hum":
        order = np.arange(1, 30)[:, None]
        phases = random.uniform(0.0, 2.0 * np.pi, order.shape)
        turns = random.uniform(70.0, 200.0) * order * time_s
        return np.sum(np.sin(2.0 * np.pi * turns + phases) / order, axis=0)
    spectrum = np.fft.rfft(random.standard_normal(samples))
    # At least 20 Hz, since pink noise divides by the frequency, which is 0 in the first bin.
    hz = np.maximum(np.fft.rfftfreq(samples, 1.0 / sample_rate_hz()), 20.0)
    if kind == "blue":
        return np.fft.irfft(spectrum * np.sqrt(hz), samples)
    if kind == "speech-shaped":
        return np.fft.irfft(spectrum * np.maximum(hz / 500.0, 1.0) ** -1.5, samples)
    pink = np.fft.irfft(spectrum / np.sqrt(hz), samples)
    phase = random.uniform(0.0, 2.0 * np.pi)
    return pink * (1.0 + np.cos(2.0 * np.pi * MODULATION_HZ * time_s + phase))


def room_response(rt60_s: float, index: int) -> np.ndarray:
    """Return the impulse response of an utterance's room, float64 [samples].

    Some single reflections come before the tail, which loses its high frequencies. Direct sound and
    reflections with tail have equal energies.
    """
    random = np.random.default_rng([SEED + 1, index])
    samples = round(max(rt60_s, 2.0 * EARLY_S[1]) * sample_rate_hz())
    time_s = np.arange(samples) / sample_rate_hz()
    tail = np.convolve(random.standard_normal(samples), [0.25, 0.5, 0.25], "same")
    tail *= time_s >= EARLY_S[1]
    at = (random.uniform(EARLY_S[0], EARLY_S[1], REFLECTIONS) * sample_rate_hz()).astype(int)
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


class ASRScore(NamedTuple):
    """The metrics of a recogniser's checkpoint, as the JSON has them: rates are fractions."""

    document: dict[str, Any]

    def table(self) -> str:
        """Return a Markdown table."""
        rows = {"all": self.document["overall"]}
        for kind in ("language", "speaker"):
            groups = self.document[f"{kind}s"]
            rows |= {f"{kind} {name}": rates for name, rates in groups.items()}
        lines = ["| | utterances | character error rate, % | word error rate, % |"]
        lines.append("|---|---|---|---|")
        for name, rates in (rows | self.document["distorted"]).items():
            percentages = " | ".join(f"{100 * rates[rate]:.2f}" for rate in RATES)
            lines.append(f"| {name} | {rates['utterances']} | {percentages} |")
        return "\n".join([*lines, "", *(f"- {note}" for note in self.document["notes"])])

    def figures(self) -> dict[str, float]:
        """Return the error rates over all utterances by name."""
        return {rate: self.document["overall"][rate] for rate in RATES}

    def console_line(self) -> str:
        """Return `character error rate 3.1 % | word error rate 9.0 %`."""
        figures = self.figures().items()
        return " | ".join(f"{name.replace('_', ' ')} {100 * rate:.1f} %" for name, rate in figures)

    def to_json(self) -> dict[str, Any]:
        return self.document


def score_run(run: TrainedRun, evaluation: Evaluation, folder: Path) -> ASRScore:
    """Measure a checkpoint."""
    name = run.checkpoint.path.name
    beam_width = evaluation.options.beam_width or 0
    transcriber = Transcriber(run.path, evaluation.route.model, name, beam_width)
    return measure_error_rates(evaluation, transcriber, name)


def score_in_run(evaluation: Evaluation, network: keras.Model, load: LoadVocoder) -> ScoreWeights:
    """Return what measures a network during its run."""
    run, record, *_, route = evaluation
    transcriber = NetworkTranscriber(run, record, network, route.model)
    return partial(measure_error_rates, evaluation, transcriber, timed=False)


# First all utterances are transcribed as they are, which is also what the real-time factor times.
# Then each distortion is applied to the same utterances, and they are transcribed again. References
# pass the same front end as the texts of training, so a spelling is no error. Rates are computed
# over all utterances, by language, by speaker and by distortion.
def measure_error_rates(
    evaluation: Evaluation,
    transcriber: NetworkTranscriber,
    checkpoint: str,
    throttle: Throttle = no_throttle,
    timed: bool = True,
) -> ASRScore:
    """Measure the weights that a transcriber has now; `checkpoint` is their name in the score."""
    corpus, options = evaluation.corpus, evaluation.options
    manifest = corpus.manifest
    # A corpus may be sorted by speaker or language, and its first rows would be of one of them.
    count = options.utterances or len(manifest)
    rows = evenly_spaced(np.arange(len(manifest)), count).tolist()
    started_s = time.perf_counter()
    hypotheses = list(transcriber.transcribe((read_row(manifest, row) for row in rows), throttle))
    elapsed_s = time.perf_counter() - started_s
    audio_s = float(manifest.samples[rows].sum()) / sample_rate_hz()
    transcripts = []
    for row, hypothesis in zip(rows, hypotheses, strict=True):
        names = corpus.names_of(row)
        reference = transcriber.normalise_reference(manifest.texts[row], names["language"])
        transcripts.append(names | {"reference": reference, "hypothesis": hypothesis})
    distorted = {}
    for name, distort in distortions(options.noise_snr_db or (), options.rt60 or ()).items():
        waves = (distort(read_row(manifest, row), index) for index, row in enumerate(rows))
        texts = zip(transcripts, transcriber.transcribe(waves, throttle), strict=True)
        distorted[name] = error_rates_of([of | {"hypothesis": text} for of, text in texts])
    notes = [f"{len(rows)} {corpus.source}, {audio_s:.1f} s of speech, {transcriber.decoding}"]
    real_time_factor = elapsed_s / audio_s if timed else None
    if timed:
        notes.append(
            f"{elapsed_s:.2f} s from file to text on {transcriber.device}, after a warm-up: "
            f"real-time factor {real_time_factor:.4f}"
        )
    document = {
        "run": str(transcriber.run),
        "checkpoint": checkpoint,
        "overall": error_rates_of(transcripts),
        "languages": error_rates_by("language", transcripts),
        "speakers": error_rates_by("speaker", transcripts),
        "distorted": distorted,
        "real_time_factor": real_time_factor,
        "notes": notes,
        "transcripts": transcripts,
    }
    return ASRScore(document)


def error_rates_by(field: str, transcripts: Sequence[Transcript]) -> dict[str, ErrorRates]:
    """Return the error rates of each `language` or `speaker` by name; empty for a single one."""
    return metrics_by_group(
        [transcript[field] for transcript in transcripts],
        lambda rows: error_rates_of([transcripts[row] for row in rows]),
    )


def error_rates_of(transcripts: Sequence[Transcript]) -> ErrorRates:
    references = [transcript["reference"] for transcript in transcripts]
    hypotheses = [transcript["hypothesis"] for transcript in transcripts]
    return {"utterances": len(transcripts), **error_rates(references, hypotheses)}
