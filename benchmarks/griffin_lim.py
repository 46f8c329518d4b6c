"""Time and error of copy synthesis by Griffin-Lim, for several numbers of iterations.

    python benchmarks/griffin_lim.py
    python benchmarks/griffin_lim.py --waves data/voice/wavs --iterations 10 100

The mel-cepstral distortion compares equal frames, without warping; the other error is the mean
error of the log-mel above -61 dB. Times are wall time and processor time per second of speech, the
minimum of three.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._recordings import recordings
from myxtts.audio.format import DECIBELS_PER_NEPER, HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.evaluation.acoustic_metrics import MCD_FACTOR, mel_cepstrum

REPEATS = 3
AUDIBLE = -7.0  # natural logarithm of the mel magnitude


def main() -> int:
    options = parse()
    from myxtts.audio.griffin_lim import GriffinLim  # this and the next imports load TensorFlow
    from myxtts.audio.mel import log_mel
    from myxtts.audio.vocoder import vocode

    mels = [
        log_mel(wave[None])[0].numpy() for wave in recordings(options.waves, options.utterances)
    ]
    frames = sum(map(len, mels))
    speech_s = frames * HOP_SAMPLES / SAMPLE_RATE_HZ
    print(f"{len(mels)} recordings, {speech_s:.0f} s")
    print("iterations   wall s/s   processor s/s   mel-cepstral distortion dB   log-mel error dB")
    for iterations in options.iterations:
        clocks = []
        for _ in range(REPEATS):
            started = np.array([time.perf_counter(), time.process_time()])
            copies = [vocode(GriffinLim(iterations), mel[None], [len(mel)])[0] for mel in mels]
            clocks.append(np.array([time.perf_counter(), time.process_time()]) - started)
        wall, processor = np.min(clocks, axis=0) / speech_s
        copied = [log_mel(copy[None])[0].numpy() for copy in copies]
        distortion, error = compare(np.concatenate(mels), np.concatenate(copied))
        print(
            f"{iterations:10d}   {wall:8.4f}   {processor:13.4f}   {distortion:26.3f}  "
            f" {error:16.3f}",
            flush=True,
        )
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--waves", type=Path, default=Path("data/demo/wavs"), help="folder of recordings"
    )
    parser.add_argument(
        "--utterances",
        type=bounded(int, 1),
        default=24,
        help="number of recordings, the first by name",
    )
    parser.add_argument(
        "--iterations",
        type=bounded(int, 1),
        nargs="+",
        default=[10, 20, 30, 60],
        help="numbers of iterations to compare",
    )
    return parser.parse_args()


def compare(recorded: np.ndarray, copied: np.ndarray) -> tuple[float, float]:
    """Return distortion and mean error in dB between two log-mels, [T, 80] each."""
    distortion = (
        MCD_FACTOR * np.linalg.norm(mel_cepstrum(recorded) - mel_cepstrum(copied), axis=1).mean()
    )
    error = DECIBELS_PER_NEPER * np.abs(recorded - copied)[recorded > AUDIBLE].mean()
    return float(distortion), float(error)


if __name__ == "__main__":
    sys.exit(report_errors(main))
