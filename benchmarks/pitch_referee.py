"""Compare F0 by YIN, as the project has it, with F0 by the network swift-f0, on recordings.

    pip install swift-f0
    python benchmarks/pitch_referee.py data/human/festvox-ru/metadata_eval.csv

Where both find a voiced frame, a gross error is a difference of more than 20 %, and an octave error
one near half or double the pitch. A network may err as well, but in other places.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.base.console import report_errors
from myxtts.config.parser import bounded
from myxtts.corpus.layouts import read_corpus
from myxtts.devicefeed.errors import UserError

GROSS = 0.2
VOICED = 0.5  # confidence from which swift-f0 calls a frame voiced


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("corpora", type=Path, nargs="+", help="metadata files or folders")
    parser.add_argument("--recordings", type=bounded(int, 1), default=100, help="of each, at most")
    options = parser.parse_args()
    try:
        from swift_f0 import SwiftF0
    except ImportError as error:
        message = "the referee is swift-f0, which is not installed: pip install swift-f0"
        raise UserError(message) from error
    from myxtts.audio.pitch import F0_MAX_HZ, F0_MIN_HZ  # imports TensorFlow
    from myxtts.tasks.evaluation.speech import acoustic_features

    referee = SwiftF0()
    print(
        "| corpus | voiced by swift-f0 | missed by YIN | voiced by YIN alone | gross | octave |",
        end="",
    )
    print(" median of the others |\n|---|---|---|---|---|---|---|")
    for corpus in options.corpora:
        read = read_corpus(corpus, "en")
        waves = [read_wave(read.folder / row.audio) for row in read.rows[: options.recordings]]
        pairs = []
        for features in acoustic_features(waves, "/CPU:0"):
            result = referee.detect(features.wave, SAMPLE_RATE_HZ, F0_MIN_HZ, F0_MAX_HZ)
            # The middle of each frame of the mel.
            times_s = (np.arange(len(features.f0_hz)) + 0.5) * HOP_SAMPLES / SAMPLE_RATE_HZ
            nearest = np.abs(result.timestamps - times_s[:, None]).argmin(axis=1)
            hz = np.where(result.confidence >= VOICED, result.pitch_hz, 0.0)[nearest]
            pairs.append(np.stack([features.f0_hz, hz]))
        print_row(corpus, *np.concatenate(pairs, axis=1))
    return 0


def print_row(corpus: Path, yin_hz: np.ndarray, referee_hz: np.ndarray) -> None:
    voiced, by_yin = referee_hz > 0.0, yin_hz > 0.0
    both = voiced & by_yin
    ratio = yin_hz[both] / referee_hz[both]
    gross = np.abs(ratio - 1.0) > GROSS
    octave = gross & (np.abs(np.abs(np.log2(ratio)) - 1.0) < np.log2(1.0 + GROSS))
    semitones = 12.0 * np.abs(np.log2(ratio[~gross]))
    missed, alone = (voiced & ~by_yin).sum() / voiced.sum(), (by_yin & ~voiced).sum() / by_yin.sum()
    print(
        f"| {corpus.parent.name} | {voiced.mean():.1%} | {missed:.1%} | {alone:.1%} |"
        f" {gross.mean():.2%} | {octave.mean():.2%} | {np.median(semitones):.2f} semitones |"
    )


if __name__ == "__main__":
    sys.exit(report_errors(main))
