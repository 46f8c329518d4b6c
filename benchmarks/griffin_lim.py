"""What each number of Griffin-Lim iterations costs, and how near it comes: copy synthesis of recordings.

    python benchmarks/griffin_lim.py
    python benchmarks/griffin_lim.py --waves data/voice/wavs --iterations 10 100

The mel-cepstral distortion is of equal frames, without warping; the other figure is the mean error of the log-mel
above -61 dB. Time is wall time and processor time, the least of three, for each second of speech.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.format import DECIBELS_PER_NEPER, HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.data.audio_file import read_wave
from myxtts.errors import DataError
from myxtts.evaluation.acoustic_metrics import MCD_FACTOR, mel_cepstrum

REPEATS = 3
AUDIBLE = -7.0  # natural logarithm of the mel magnitude


def main() -> int:
    asked = parse()
    from myxtts.audio.griffin_lim import griffin_lim_waves  # this and the next import TensorFlow, which takes seconds
    from myxtts.audio.mel import log_mel

    mels = [log_mel(wave[None])[0].numpy() for wave in recordings(asked.waves, asked.utterances)]
    frames = sum(map(len, mels))
    speech_s = frames * HOP_SAMPLES / SAMPLE_RATE_HZ
    print(f"{len(mels)} recordings, {speech_s:.0f} s")
    print("iterations   wall s/s   processor s/s   mel-cepstral distortion dB   log-mel error dB")
    for iterations in asked.iterations:
        clocks = []
        for _ in range(REPEATS):
            begin = np.array([time.perf_counter(), time.process_time()])
            copies = [griffin_lim_waves(mel[None], [len(mel)], iterations=iterations)[0] for mel in mels]
            clocks.append(np.array([time.perf_counter(), time.process_time()]) - begin)
        wall, processor = np.min(clocks, axis=0) / speech_s
        found = [log_mel(copy[None])[0].numpy() for copy in copies]
        distortion, error = compare(np.concatenate(mels), np.concatenate(found))
        print(f"{iterations:10d}   {wall:8.4f}   {processor:13.4f}   {distortion:26.3f}   {error:16.3f}", flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waves", type=Path, default=Path("data/demo/wavs"), help="folder of recordings")
    parser.add_argument("--utterances", type=bounded(int, 1), default=24, help="how many of them, the first by name")
    parser.add_argument(
        "--iterations", type=bounded(int, 1), nargs="+", default=[10, 20, 30, 60], help="numbers to try"
    )
    return parser.parse_args()


def recordings(folder: Path, count: int) -> list[np.ndarray]:
    """float32 [samples] of the first waves of a folder, in whole frames."""
    paths = sorted(folder.glob("*.wav"))[:count]
    if not paths:
        raise DataError(f"{folder} was asked for, but has no .wav. Make one by utilities/make_demo_corpus.py.")
    waves = [read_wave(path) for path in paths]
    return [wave[: len(wave) // HOP_SAMPLES * HOP_SAMPLES] for wave in waves]


def compare(recorded: np.ndarray, copied: np.ndarray) -> tuple[float, float]:
    """Distortion and mean error in dB of two log-mels, [T, 80] both."""
    distortion = MCD_FACTOR * np.linalg.norm(mel_cepstrum(recorded) - mel_cepstrum(copied), axis=1).mean()
    error = DECIBELS_PER_NEPER * np.abs(recorded - copied)[recorded > AUDIBLE].mean()
    return float(distortion), float(error)


if __name__ == "__main__":
    sys.exit(report_errors(main))
