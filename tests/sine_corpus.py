"""Signals and corpora of sinusoids. Its pitch shows which utterance was read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.batches.corpora import Corpus, make_plan
from myxtts.batches.plan import bucket_bounds
from myxtts.config.schema import Config, DataConfig, TrainingConfig
from myxtts.corpus.build import build_manifest
from myxtts.corpus.layouts import read_corpus
from myxtts.corpus.manifest import LengthRule, Manifest

LETTERS = "abcdefghij"


def sine(
    hz: float, seconds: float, rate_hz: int = SAMPLE_RATE_HZ, level: float = 0.5
) -> np.ndarray:
    """Return a sinusoid, float64 [seconds * rate_hz]."""
    return level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)


def frequency(wave: np.ndarray) -> float:
    """Return the frequency in Hz of the strongest bin of the spectrum of a wave at 22,050 Hz."""
    return float(np.abs(np.fft.rfft(wave)).argmax() * SAMPLE_RATE_HZ / len(wave))


def pitch_of(number: int) -> float:
    return 300.0 + 40.0 * number


def write_sound(
    path: Path, wave: np.ndarray, rate_hz: int = SAMPLE_RATE_HZ, subtype: str | None = None
) -> None:
    """Write a sound file to any path, including paths that soundfile cannot encode."""
    with open(path, "wb") as file:
        soundfile.write(file, wave, rate_hz, subtype=subtype, format=path.suffix[1:])


def write_corpus(
    folder: Path, seconds: Sequence[float], speakers: int = 2, suffixes: Sequence[str] = (".wav",)
) -> Manifest:
    """Write sinusoids: utterance `u<i>` has `pitch_of(i)` Hz, speaker i modulo `speakers`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["path,text,speaker"]
    for i, length_s in enumerate(seconds):
        path = f"u{i}{suffixes[i % len(suffixes)]}"
        write_sound(folder / path, sine(pitch_of(i), length_s))
        lines.append(f"{path},{LETTERS[: i % 8 + 1]},s{i % speakers}")
    (folder / "corpus.csv").write_text("\n".join(lines), encoding="utf-8")
    return manifest_of(folder / "corpus.csv")


def manifest_of(metadata: Path) -> Manifest:
    """Return the manifest of a corpus with letters as symbols; all rows must be usable."""
    data = DataConfig(min_seconds=0.05, max_seconds=60.0, text_frontend="characters")
    manifest, _, rejected = build_manifest(read_corpus(metadata, "en"), data, LengthRule())
    assert not rejected, rejected
    return replace(manifest, ids=tuple(Path(name).stem for name in manifest.ids))


def planned_corpus(
    manifest: Manifest, data: DataConfig, seed: int = 0, accumulation: int = 1, replicas: int = 1
) -> Corpus:
    bounds = bucket_bounds(manifest.samples, data.buckets)
    config = Config(data=data, training=TrainingConfig(seed=seed))
    sharing = {"accumulation": accumulation, "replicas": replicas}
    return Corpus(manifest, make_plan(manifest, bounds, config, **sharing))


def noise(samples: int, level: float) -> np.ndarray:
    return np.random.default_rng(0).normal(0.0, level, samples)


def vowels(seconds: float = 1.5) -> np.ndarray:
    """Return a vowel from 100 to 140 Hz and back whose timbre changes, with noise; float32."""
    position = np.arange(round(seconds * SAMPLE_RATE_HZ)) / (seconds * SAMPLE_RATE_HZ)
    phase = 2 * np.pi * np.cumsum(100 + 40 * np.sin(np.pi * position)) / SAMPLE_RATE_HZ
    wave = sum(
        np.sin(k * phase) * np.exp(-((k - 4 - 6 * position) ** 2) / 20) for k in range(1, 21)
    )
    return (0.05 * wave + noise(len(wave), 0.005)).astype(np.float32)


def tones(seed: int = 0, padded: int = 10_240) -> dict[str, np.ndarray]:
    """Return TTS_INPUTS with three tones of 200 Hz and an empty row; references have 300 Hz."""
    target, reference = (np.zeros((4, samples), np.int16) for samples in (padded, 5_120))
    for wave, hz in ((target, 200.0), (reference, 300.0)):
        wave[:3] = 32_768 * sine(hz, wave.shape[1] / 22_050)
    lengths = {"samples": [10_240, 8_000, 6_000, 0], "reference_samples": [5_120, 5_120, 4_000, 0]}
    lengths = {name: np.array(samples, np.int32) for name, samples in lengths.items()}
    whole = {
        "seed": np.array([seed, 1], np.int32),
        "step_frames": np.float32(95),
        "step_tokens": np.float32(20),
    }
    text = {
        "tokens": np.zeros((4, 5), np.int32),
        "token_count": np.zeros(4, np.int32),
        "language": np.zeros(4, np.int32),
    }
    return text | whole | lengths | {"pcm": target, "reference_pcm": reference}


def signals() -> dict[str, np.ndarray]:
    """Return signals of half a second. Loud tones are hardest: some bands stay at the floor."""
    random, tone = np.random.default_rng(0), sine(300, 0.5, level=1.0)
    middle = np.zeros(len(tone))
    middle[4_000:8_000] = 1.0
    return {
        "digital silence": np.zeros(len(tone)),
        "a tone in digital silence": tone * middle,
        "low tone": sine(60, 0.5, level=1.0),
        "high tone": sine(5_000, 0.5, level=1.0),
        "above all bands": sine(10_500, 0.5, level=1.0),
        "chirp": np.sin(
            2 * np.pi * (50 + 8_000 * np.arange(len(tone)) / SAMPLE_RATE_HZ) ** 2 / 16_000
        ),
        "square": np.sign(tone),
        "click": np.eye(1, len(tone), 5_000)[0],
        "constant": np.ones(len(tone)),
        "white noise": random.uniform(-1, 1, len(tone)),
        "the last bit": np.where(random.random(len(tone)) < 0.01, 1 / 32768, 0.0),
    }


def librosa_log_mel(wave: np.ndarray) -> np.ndarray:
    """Return the log-mel spectrogram by librosa alone, float64 [samples // 256, 80]."""
    import librosa  # slow, and most tests do without

    wave = np.pad(wave.astype(np.float64), 384, mode="reflect")
    magnitude = np.abs(
        librosa.stft(wave, n_fft=1024, hop_length=256, center=False, dtype=np.complex128)
    )
    bank = librosa.filters.mel(
        sr=SAMPLE_RATE_HZ, n_fft=1024, n_mels=80, fmin=0, fmax=8000, dtype=np.float64
    )
    return np.log(np.maximum(bank @ magnitude, 1e-5)).T
