"""Measure the reliability of a synthesizer's phoneme times against changes in the signal.

    python -m myxtts corpus --out data/voices --utterances 1200 \\
        --languages en ka fa --speakers 8
    python benchmarks/phoneme_times.py data/voices

Next to silence, the change is the first or last sample of the longest run of zeros within 30 ms.
Between two sounds, it is the position within 30 ms with the largest spectral change: the distance
of two log-mel spectra 12 ms apart, with windows of 10 ms. A reported time near the change is right.
If it is not near, the change may be gradual or the time wrong.
"""

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import librosa
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.console import report_errors
from myxtts.config.parser import bounded

if TYPE_CHECKING:
    from benchmarks._boundaries import Phoneme

SEARCH_MS = 30
MILLISECOND = SAMPLE_RATE_HZ // 1000
WINDOW_SAMPLES = 10 * MILLISECOND
WINDOW_OFFSET_MS = 6  # from the position to each of the two windows
TOLERANCE_MS = 10.0
BANDS = 24


def main() -> int:
    options = parse()
    # Imports TensorFlow, which takes seconds; --help does not need it.
    from benchmarks._boundaries import read_alignments

    offsets_ms = defaultdict(list)
    for number, (name, phonemes) in enumerate(
        read_alignments(options.corpus / "alignments.jsonl").items()
    ):
        if number == options.utterances:
            break
        wave = read_wave(options.corpus / "wavs" / f"{name}.wav")
        for pair, offset_ms in offsets(wave, phonemes):
            offsets_ms[pair].append(offset_ms)
    print("| boundary | count | median, ms | middle half, ms | within 10 ms |")
    print("|---|---|---|---|---|")
    for (left, right), values in sorted(offsets_ms.items(), key=lambda item: -len(item[1])):
        if len(values) >= options.min_boundaries:
            low, middle, high = np.percentile(values, [25, 50, 75])
            near = np.mean(np.abs(values) <= TOLERANCE_MS)
            print(
                f"| {left} → {right} | {len(values)} | {middle:+.1f} | {low:+.1f} to {high:+.1f} |"
                f" {near:.0%} |"
            )
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="folder with wavs/ and alignments.jsonl")
    parser.add_argument(
        "--utterances",
        type=bounded(int, 1),
        default=1200,
        help="maximum number of utterances to measure",
    )
    parser.add_argument(
        "--min-boundaries",
        type=bounded(int, 1),
        default=100,
        help="show classes with at least this many boundaries",
    )
    return parser.parse_args()


def offsets(wave: np.ndarray, phonemes: "list[Phoneme]") -> Iterator[tuple[tuple[str, str], float]]:
    """Yield ((class, class), milliseconds from the reported time to the change) of each boundary.

    Phonemes of 0 s are left out.
    """
    from benchmarks._boundaries import phoneme_class

    nonempty = [phoneme for phoneme in phonemes if phoneme.end_s > phoneme.start_s]
    spectra = log_spectra(wave)
    for left, right in itertools.pairwise(nonempty):
        pair = phoneme_class(left.symbol), phoneme_class(right.symbol)
        if pair == ("silence", "silence"):
            continue
        if "silence" in pair:
            change_ms = silence_edge_ms(wave, right.start_s, pair[0] == "silence")
        else:
            change_ms = largest_change_ms(spectra, right.start_s)
        if change_ms is not None:
            yield pair, change_ms - 1000 * right.start_s


def silence_edge_ms(wave: np.ndarray, time_s: float, at_end: bool) -> float | None:
    """Return where the longest run of zeros around a time ends or begins; None without zeros."""
    begin = max(round(time_s * SAMPLE_RATE_HZ) - SEARCH_MS * MILLISECOND, 0)
    part = wave[begin : begin + 2 * SEARCH_MS * MILLISECOND]
    changes = np.flatnonzero(np.diff(np.concatenate([[False], part == 0, [False]]).astype(int)))
    starts, stops = changes[::2], changes[1::2]
    if not len(starts):
        return None
    longest = np.argmax(stops - starts)
    return 1000 * (begin + (stops if at_end else starts)[longest]) / SAMPLE_RATE_HZ


def largest_change_ms(spectra: np.ndarray, time_s: float) -> float | None:
    """Return where the spectrum changes most around a time; None close to an end of the wave."""
    # rows.
    positions = np.arange(-SEARCH_MS, SEARCH_MS + 1) + round(time_s * SAMPLE_RATE_HZ / MILLISECOND)
    if positions[0] < WINDOW_OFFSET_MS or positions[-1] >= len(spectra) - WINDOW_OFFSET_MS:
        return None
    change = np.linalg.norm(
        spectra[positions + WINDOW_OFFSET_MS] - spectra[positions - WINDOW_OFFSET_MS], axis=1
    )
    return float(positions[change.argmax()]) * MILLISECOND * 1000 / SAMPLE_RATE_HZ


def log_spectra(wave: np.ndarray) -> np.ndarray:
    """Return the log-mel of a window around each millisecond, [milliseconds, BANDS]."""
    bank = librosa.filters.mel(sr=SAMPLE_RATE_HZ, n_fft=256, n_mels=BANDS, fmax=8000)
    padded = np.pad(wave, WINDOW_SAMPLES // 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW_SAMPLES)[::MILLISECOND]
    magnitude = np.abs(np.fft.rfft(windows * np.hanning(WINDOW_SAMPLES), 256))
    return np.log(np.maximum(magnitude @ bank.T, 1e-4))


if __name__ == "__main__":
    sys.exit(report_errors(main))
