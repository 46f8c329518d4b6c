"""Forced alignment of a corpus by the aligner of a voice: when each word of its texts is spoken.

An utterance whose text does not fit is found by its evidence, also in an inspection of a corpus,
and shifted subtitles by the stretch of the recording, a little earlier or later, that their text
does fit.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from myxtts.audio.audio_file import WHOLE, read_wave, resampled_length
from myxtts.audio.format import HOP_SAMPLES, frame_count, sample_rate_hz
from myxtts.audio.loudness import with_loudness
from myxtts.audio.mel import log_mel
from myxtts.audio.sound_header import read_header
from myxtts.base.files import make_folder, write_csv
from myxtts.checkpoints.files import Record
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.corpus.manifest import Manifest
from myxtts.corpus.sound import read_row
from myxtts.placement import devices
from myxtts.report.alignment import LEAST_EVIDENCE
from myxtts.tasks import loading
from myxtts.tasks.evaluation.held_out import load_other
from myxtts.tasks.evaluation.speech import BATCH_UTTERANCES, pad_rows
from myxtts.tasks.tts import alignment
from myxtts.tasks.tts.network import XTTS
from myxtts.text.symbols import PADDING_ID
from myxtts.text.times import TimedWord, time_words, times_files, write_times
from myxtts.text.words import words_of_text

# Subtitles are searched up to 3 s from their times, in steps of 0.25 s.
MOST_SHIFT_S = 3.0
SHIFT_STEP_S = 0.25
# A text is moved if this much more evidence is elsewhere. An utterance between two pauses fits as
# well a quarter of a second away.
LEAST_GAIN = 0.1
SHOWN = 10

log = logging.getLogger(__name__)


class Fit(NamedTuple):
    """An alignment: the token of each frame, int [T]; what the recording tells of it, at most 1,
    see `models.alignment.evidence`; and how far it is from where it was said to be.
    """

    path: np.ndarray
    evidence: float
    shift_s: float = 0.0


# The corpus is read as for training, and its unusable rows are listed. All utterances are aligned,
# those of one recording are collected, and each recording gets one file of times. Texts that do not
# fit get no times; alignment.csv lists them first.
def align_corpus(
    run: Path,
    train_data: Path,
    out: Path,
    times: str = "TextGrid",
    checkpoint: str | None = None,
    language: str | None = None,
    **reading,
) -> None:
    """Write the times of the words of each recording, in a form of `times.FORMS`.

    `language` is for rows without one, by default the run's; `reading` has other options of
    `read_corpus`. Raises UserError if the run, the corpus or the folder is unusable.
    """
    trained = TrainedRun.open_for_use(run, checkpoint, "tts")
    record = trained.record
    if language is None and len(record.languages) == 1:
        language = record.languages[0]
    make_folder(out, "--out")
    rows, manifest, _ = load_other(
        trained, train_data, out, 1.0, record.vocabulary, language, **reading
    )
    recordings = tuple(dict.fromkeys(manifest.paths))
    files = times_files(recordings, times, out, rows.folder)
    device = devices.configure_default().routes[0].model
    loudness = record.settings.data.loudness
    fits = fit_corpus(
        Aligner(loading.load_network(trained, device, "tts"), device, loudness), manifest
    )
    sentences = defaultdict(list)
    for row, fit in enumerate(fits):
        if fit.evidence >= LEAST_EVIDENCE:
            sentences[manifest.paths[row]].append(timed_words(manifest, row, fit, record))
    for path, file in zip(recordings, files, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        header = read_header(path)
        duration_s = resampled_length(header.samples, header.rate_hz) / sample_rate_hz()
        write_times(file, sorted(sentences[path], key=lambda words: words[0].start_s), duration_s)
    report_fits(manifest, fits, out / "alignment.csv")


class Aligner:
    """The aligner of a voice on a device, and the loudness that it was trained with.

        aligner = Aligner(network, "/CPU:0")
        path, evidence, _ = aligner([wave], [tokens], np.array([0]))[0]

    It is compiled once, for any lengths.
    """

    def __init__(self, network: XTTS, device: str, loudness: float | None = None):
        def align(wave, samples, tokens, token_count, language):
            with tf.device(device):
                batch = {"tokens": tokens, "token_count": token_count, "language": language}
                mel = log_mel(with_loudness(wave, loudness, samples), samples)
                frames = frame_count(samples)
                # Each utterance is its own reference, which knows its voice and its room best.
                batch |= {"mel": mel, "frames": frames}
                batch |= {"reference": mel, "reference_frames": frames}
                scores, prior = network.score_tokens(batch)
                *_, mean, _ = network.encode_texts(batch)
                path = network.search_path(batch, scores, mean)
                return path, alignment.evidence(scores, prior, path)

        rows, lengths = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
        signature = [tf.TensorSpec([None, None]), lengths, rows, lengths, lengths]
        self._align = tf.function(align, input_signature=signature, autograph=False)

    def __call__(
        self, waves: Sequence[np.ndarray], tokens: Sequence[np.ndarray], languages: np.ndarray
    ) -> list[Fit]:
        """Align waves, float32 [samples], with the tokens of their texts, int32 [N].

        `languages` are rows of the vocabulary's languages, integers [B].
        """
        wave_rows, samples = pad_rows(waves, 0.0)
        token_rows, counts = pad_rows(tokens, PADDING_ID)
        paths, evidence = self._align(
            wave_rows, samples, token_rows, counts, languages.astype(np.int32)
        )
        rows = zip(paths.numpy(), evidence.numpy(), waves, strict=True)
        return [Fit(path[: frame_count(len(wave))], float(gain)) for path, gain, wave in rows]


# First each utterance is aligned where the corpus says it is, in batches of similar length. Only
# then is the median evidence known, by which a stretch of a longer recording counts as suspicious.
# Such a text is searched nearby, which takes as long as 25 alignments, and moved if it fits clearly
# better.
def fit_corpus(aligner: Aligner, manifest: Manifest) -> list[Fit]:
    """Return the alignment of each utterance, where its text is if it is not far."""
    tokens = [manifest.tokens_of(row) for row in range(len(manifest))]
    fits: dict[int, Fit] = {}
    by_length = np.argsort(manifest.samples, kind="stable")
    firsts = range(0, len(manifest), BATCH_UTTERANCES)
    for first in tqdm(firsts, desc="alignment", leave=False, disable=None):
        rows = by_length[first : first + BATCH_UTTERANCES].tolist()
        waves = [read_row(manifest, row) for row in rows]
        found = aligner(waves, [tokens[row] for row in rows], manifest.language[rows])
        fits |= zip(rows, found, strict=True)
    suspicious = max(LEAST_EVIDENCE, np.median([fit.evidence for fit in fits.values()]))
    for row in np.flatnonzero(manifest.starts != WHOLE).tolist():
        if fits[row].evidence < suspicious:
            nearby = search_nearby(aligner, manifest, row, tokens[row])
            if nearby.evidence > fits[row].evidence + LEAST_GAIN:
                fits[row] = nearby
    return [fits[row] for row in range(len(manifest))]


def search_nearby(aligner: Aligner, manifest: Manifest, row: int, tokens: np.ndarray) -> Fit:
    """Return the alignment of a text with the stretch that it fits best, at most 3 s away."""
    start, samples, path = manifest.starts[row], int(manifest.samples[row]), manifest.paths[row]
    margin, step = round(MOST_SHIFT_S * sample_rate_hz()), round(SHIFT_STEP_S * sample_rate_hz())
    header = read_header(path)
    length = resampled_length(header.samples, header.rate_hz)
    first, end = max(int(start) - margin, 0), min(int(start) + samples + margin, int(length))
    wave = read_wave(path, end - first, start=first)
    places = range(0, len(wave) - samples + 1, step)
    waves = [wave[of : of + samples] for of in places]
    fits = aligner(waves, [tokens] * len(waves), np.repeat(manifest.language[row], len(waves)))
    best = int(np.argmax([fit.evidence for fit in fits]))
    return fits[best]._replace(shift_s=float(first + places[best] - start) / sample_rate_hz())


# The path has a token for each frame. The first frame of each token is the time at which it begins.
def timed_words(manifest: Manifest, row: int, fit: Fit, record: Record) -> list[TimedWord]:
    """Return the words of an utterance with their times in its recording."""
    tokens = manifest.tokens_of(row)
    symbols = record.vocabulary.symbols.decode(tokens)
    language = record.languages[manifest.language[row]]
    words = words_of_text(manifest.texts[row], language, record.frontend, symbols)
    frames = np.searchsorted(fit.path, np.arange(1, len(tokens)))
    start_s = max(manifest.starts[row], 0) / sample_rate_hz() + fit.shift_s
    return time_words(words, start_s + HOP_SAMPLES * frames / sample_rate_hz())


def report_fits(manifest: Manifest, fits: Sequence[Fit], listing: Path) -> None:
    """List how well each text fits, the worst first, and log those that do not."""
    rows = [["id", "evidence", "shift_s", "text"]]
    poor, shifted = [], []
    faults = [(of.evidence >= LEAST_EVIDENCE, of.shift_s == 0, of.evidence) for of in fits]
    for row in sorted(range(len(fits)), key=faults.__getitem__):
        name, fit = manifest.ids[row], fits[row]
        columns = [name, f"{fit.evidence:.2f}", f"{fit.shift_s:.2f}", manifest.texts[row]]
        rows.append(columns)
        if fit.evidence < LEAST_EVIDENCE:
            poor.append(f"no fit         {name}, evidence {fit.evidence:.2f}: {columns[3][:60]!r}")
        elif fit.shift_s:
            shifted.append(f"moved          {name} is spoken {fit.shift_s:+.2f} s from there")
    write_csv(listing, rows)
    for line in [*poor[:SHOWN], *shifted[:SHOWN]]:
        log.warning("%s", line)
    median = np.median([fit.evidence for fit in fits])
    counts = f"{len(shifted)} spoken at other times, {len(poor)} that do not fit and have no times"
    line = "alignment      %d utterances, evidence %.2f in the median, %s; %s lists them"
    log.info(line, len(fits), median, counts, listing)
