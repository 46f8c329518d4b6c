"""How sound a synthesiser's phoneme times are: each boundary against what the samples show.

    python utilities/make_demo_corpus.py --out data/voices --utterances 1200 --languages en ka fa --speakers 8
    python benchmarks/phoneme_times.py data/voices

Beside silence that is the first or last sample of the longest run of zeros within 30 ms. Between two sounds it is the
place within 30 ms where the spectrum changes most: the largest distance of two log-mel spectra 12 ms apart, of windows
of 10 ms. That proves a time where it is near; where it is far, the change may be gradual, or the time wrong.
"""

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import librosa
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.data.audio_file import read_wave
from myxtts.evaluation.boundaries import Phoneme, phoneme_class, read_alignments

AROUND_MS = 30
MILLISECOND = SAMPLE_RATE_HZ // 1000
WINDOW_SAMPLES = 10 * MILLISECOND
APART_MS = 6  # each of the two windows from the place between them
NEAR_MS = 10.0
BANDS = 24


def main() -> int:
    asked = parse()
    offsets_ms = defaultdict(list)
    for number, (name, phonemes) in enumerate(read_alignments(asked.corpus / "alignments.jsonl").items()):
        if number == asked.utterances:
            break
        wave = read_wave(asked.corpus / "wavs" / f"{name}.wav")
        for pair, offset_ms in offsets(wave, phonemes):
            offsets_ms[pair].append(offset_ms)
    print("| boundary | count | median, ms | middle half, ms | within 10 ms |")
    print("|---|---|---|---|---|")
    for (left, right), found in sorted(offsets_ms.items(), key=lambda item: -len(item[1])):
        if len(found) >= asked.least:
            low, middle, high = np.percentile(found, [25, 50, 75])
            near = np.mean(np.abs(found) <= NEAR_MS)
            print(f"| {left} → {right} | {len(found)} | {middle:+.1f} | {low:+.1f} to {high:+.1f} | {near:.0%} |")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="folder with wavs/ and alignments.jsonl")
    parser.add_argument("--utterances", type=bounded(int, 1), default=1200, help="the most to look at")
    parser.add_argument("--least", type=bounded(int, 1), default=100, help="boundaries of a kind that is shown")
    return parser.parse_args()


def offsets(wave: np.ndarray, phonemes: list[Phoneme]) -> Iterator[tuple[tuple[str, str], float]]:
    """((class, class), milliseconds from the told time to the seen one) of each boundary between what lasts."""
    lasting = [phoneme for phoneme in phonemes if phoneme.end_s > phoneme.start_s]
    spectra = log_spectra(wave)
    for left, right in itertools.pairwise(lasting):
        pair = phoneme_class(left.symbol), phoneme_class(right.symbol)
        if pair == ("silence", "silence"):
            continue
        if "silence" in pair:
            seen_ms = edge_of_silence_ms(wave, right.start_s, pair[0] == "silence")
        else:
            seen_ms = largest_change_ms(spectra, right.start_s)
        if seen_ms is not None:
            yield pair, seen_ms - 1000 * right.start_s


def edge_of_silence_ms(wave: np.ndarray, told_s: float, ends: bool) -> float | None:
    """Where the longest run of zeros around a time ends or begins; None where no sample is 0."""
    begin = max(round(told_s * SAMPLE_RATE_HZ) - AROUND_MS * MILLISECOND, 0)
    part = wave[begin : begin + 2 * AROUND_MS * MILLISECOND]
    changes = np.flatnonzero(np.diff(np.concatenate([[False], part == 0, [False]]).astype(int)))
    starts, stops = changes[::2], changes[1::2]
    if not len(starts):
        return None
    longest = np.argmax(stops - starts)
    return 1000 * (begin + (stops if ends else starts)[longest]) / SAMPLE_RATE_HZ


def largest_change_ms(spectra: np.ndarray, told_s: float) -> float | None:
    """Where the spectrum changes most around a time; None too near to an end of the wave."""
    places = np.arange(-AROUND_MS, AROUND_MS + 1) + round(1000 * told_s)
    if places[0] < APART_MS or places[-1] >= len(spectra) - APART_MS:
        return None
    change = np.linalg.norm(spectra[places + APART_MS] - spectra[places - APART_MS], axis=1)
    return float(places[change.argmax()]) * MILLISECOND * 1000 / SAMPLE_RATE_HZ


def log_spectra(wave: np.ndarray) -> np.ndarray:
    """Log-mel of a window around each millisecond, [milliseconds, BANDS]."""
    bank = librosa.filters.mel(sr=SAMPLE_RATE_HZ, n_fft=256, n_mels=BANDS, fmax=8000)
    padded = np.pad(wave, WINDOW_SAMPLES // 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW_SAMPLES)[::MILLISECOND]
    magnitude = np.abs(np.fft.rfft(windows * np.hanning(WINDOW_SAMPLES), 256))
    return np.log(np.maximum(magnitude @ bank.T, 1e-4))


if __name__ == "__main__":
    sys.exit(report_errors(main))
