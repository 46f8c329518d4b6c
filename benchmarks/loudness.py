"""Compare --loudness with pyloudnorm, and time --loudness and --trim, on recordings of corpora.

python benchmarks/loudness.py data/demo …
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pyloudnorm
import soxr
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.k_weighting import OFFSET_DB
from myxtts.audio.loudness import gated_power, with_loudness
from myxtts.config.schema import DataConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.sound import read_row

RECORDINGS = 40  # of each corpus
RATE_HZ = 48_000  # of the filters in the standard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", nargs="+", type=Path)
    waves = []
    for corpus in parser.parse_args().corpora:
        rows = read_corpus(corpus, "en", needs_text=False)
        for trim in (None, 40.0):
            began_s = time.process_time()
            manifest, *_ = build_manifest(rows, DataConfig(trim=trim), None)
            took_s = time.process_time() - began_s
            minutes = manifest.samples.sum() / SAMPLE_RATE_HZ / 60
            print(f"{corpus}, --trim {trim}: {minutes:.1f} minutes, {took_s:.1f} s of CPU time")
        chosen = np.random.default_rng(0).choice(len(manifest), RECORDINGS)
        waves += [read_row(manifest, row) for row in chosen.tolist()]
    power = [gated_power(wave[None], np.array([len(wave)]))[0] for wave in waves]
    found = OFFSET_DB + 10.0 * np.log10(power)
    at_48_khz = [soxr.resample(wave, SAMPLE_RATE_HZ, RATE_HZ) for wave in waves]
    for rate_hz, filters in ((SAMPLE_RATE_HZ, "K-weighting"), (RATE_HZ, "DeMan")):
        meter = pyloudnorm.Meter(rate_hz, filter_class=filters)
        read = waves if rate_hz == SAMPLE_RATE_HZ else at_48_khz
        differences = found - [meter.integrated_loudness(wave) for wave in read]
        worst = np.abs(differences).max()
        print(f"pyloudnorm, {filters}, {rate_hz} Hz: differences of up to {worst:.4f} LU")
    batch = tf.constant(np.stack([np.resize(wave, 4 * SAMPLE_RATE_HZ) for wave in waves[:16]]))
    scale = tf.function(lambda wave: with_loudness(wave, -23.0), autograph=False)
    scale(batch)
    began_s = time.process_time()
    for _ in range(10):
        scale(batch).numpy()
    print(f"{1000 * (time.process_time() - began_s) / 10:.0f} ms of CPU time for 16 x 4 s")


if __name__ == "__main__":
    main()
