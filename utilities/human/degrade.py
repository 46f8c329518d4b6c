"""Degrade a corpus: shouting, rooms and echo, music, noise, and 32 kbit/s Opus.

    python utilities/human/degrade.py data/human/festvox-ru data/human/festvox-ru-degraded

Such is speech of films and games. The output has the tables of the corpus, with FLAC files of the
same lengths. The name of a file decides what happens to it: one in five is raised by 2 to 5
semitones and clipped softly, as if shouted; all are in a room with a reverberation time of up to
0.9 s, one in three with an echo too; half have music 10 to 20 dB below; all have noise 15 to 25 dB
below. A file that exists is not made again.
"""

import argparse
import io
import os
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import librosa
import numpy as np
import soundfile
import soxr

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import sample_rate_hz
from myxtts.base.console import report_errors
from myxtts.config.schema import AugmentationConfig
from utilities.human.corpora import read_tables, write_tables

SHOUTED, SHOUT_SEMITONES = 0.2, (2.0, 5.0)
ROOM = AugmentationConfig(reverb_probability=1, reverb_max_rt60=0.9)
NOISE = AugmentationConfig(noise_probability=1, noise_min_snr_db=15, noise_max_snr_db=25)
ECHOED, ECHO_S, ECHO_GAIN = 0.33, (0.15, 0.3), 0.3
WITH_MUSIC, MUSIC_DB = 0.5, (10.0, 20.0)
PEAK = 0.7
OPUS_RATE_HZ, OPUS_BITS_PER_S = 24_000, 32_000
# libsndfile maps the levels 1 to 0 to 6,000 to 256,000 bits a second and channel.
OPUS_LEVEL = 1 - (OPUS_BITS_PER_S - 6_000) / 250_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=Path, help="a folder of utilities/human/corpora.py")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    (options.out / "wavs").mkdir(parents=True, exist_ok=True)
    tables = read_tables(options.corpus)
    for row in (row for rows in tables.values() for row in rows):
        # With its subfolder: digits/at and letters/at are two prompts.
        name = "_".join(Path(row["path"]).with_suffix("").parts[1:])
        path = Path("wavs") / f"{name}.flac"
        if not (options.out / path).exists():
            wave = degrade(read_wave(options.corpus / row["path"]), name)
            part = options.out / path.with_suffix(".part")
            soundfile.write(part, wave, sample_rate_hz(), format="FLAC")
            part.rename(options.out / path)
        row["path"] = str(path)
    write_tables(options.out, tables)
    return 0


def degrade(wave: np.ndarray, name: str) -> np.ndarray:
    """Degrade a wave, float32 [samples] at sample_rate_hz(), as its name decides; same length."""
    source = np.random.default_rng(zlib.crc32(name.encode()))
    # All are drawn, so that what happens to one does not change the others.
    shouted, echoed, with_music = source.random(3) < (SHOUTED, ECHOED, WITH_MUSIC)
    semitones, delay_s = source.uniform(*SHOUT_SEMITONES), source.uniform(*ECHO_S)
    music_db = source.uniform(*MUSIC_DB)
    if shouted:
        wave = librosa.effects.pitch_shift(wave, sr=sample_rate_hz(), n_steps=semitones)
        wave = np.tanh(4 * wave / peak(wave))
    wave = augmented(wave, ROOM, source)
    if echoed:
        wave = echo(wave, round(delay_s * sample_rate_hz()))
    if with_music:
        tune = music(source, len(wave))
        wave = wave + tune * level(wave) / level(tune) * 10 ** (-music_db / 20)
    wave = augmented(wave, NOISE, source)
    return opus(PEAK * wave / peak(wave))


def augmented(wave: np.ndarray, settings: AugmentationConfig, source) -> np.ndarray:
    """Distort a wave as training does, by numbers that `source` draws."""
    import tensorflow as tf

    from myxtts.tasks.augmentation import augment

    seed = tf.constant(source.integers(2**31, size=2), tf.int32)
    row = tf.constant(wave[None], tf.float32)
    return augment(row, tf.constant([len(wave)], tf.int32), seed, settings)[0].numpy()


def echo(wave: np.ndarray, delay: int) -> np.ndarray:
    """Add three repetitions, each weaker than the one before."""
    result = wave.copy()
    for repetition in (1, 2, 3):
        result[repetition * delay :] += ECHO_GAIN**repetition * wave[: -repetition * delay]
    return result


def music(source, samples: int) -> np.ndarray:
    """Make a melody of chords and a drum, float64 [samples]."""
    beat = round(source.uniform(0.3, 0.6) * sample_rate_hz())
    root_hz = source.uniform(100, 200)
    time_s = np.arange(3 * beat // 2) / sample_rate_hz()
    decay, drum_decay = np.exp(-time_s * sample_rate_hz() / beat), np.exp(-time_s / 0.01)
    tune = np.zeros(samples + len(time_s))
    for start in range(0, samples, beat):
        degree, third = source.choice((0, 3, 4, 5, 7, 9)), source.choice((3, 4))
        for interval in (0, third, 7, 12):
            hz = root_hz * 2 ** ((degree + interval) / 12)
            for harmonic in range(1, 6):
                phase = 2 * np.pi * hz * harmonic * time_s + source.uniform(0, 2 * np.pi)
                tune[start : start + len(time_s)] += decay * np.sin(phase) / harmonic**1.5
        drum = 2 * drum_decay * source.standard_normal(len(time_s))
        tune[start : start + len(time_s)] += drum
    return tune[:samples]


def opus(wave: np.ndarray) -> np.ndarray:
    """Encode and decode a wave; same length."""
    file = io.BytesIO()
    resampled = soxr.resample(wave, sample_rate_hz(), OPUS_RATE_HZ)
    options = {"format": "OGG", "subtype": "OPUS", "compression_level": OPUS_LEVEL}
    soundfile.write(file, resampled, OPUS_RATE_HZ, **options)
    file.seek(0)
    decoded, rate_hz = soundfile.read(file, dtype="float32")
    decoded = soxr.resample(decoded, rate_hz, sample_rate_hz())[: len(wave)]
    return np.pad(decoded, (0, len(wave) - len(decoded)))


def peak(wave: np.ndarray) -> float:
    return max(float(np.abs(wave).max()), 1e-9)


def level(wave: np.ndarray) -> float:
    return max(float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))), 1e-9)


if __name__ == "__main__":
    sys.exit(report_errors(main))
