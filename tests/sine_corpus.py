"""Corpora of sinusoids. Every utterance has its own pitch, which shows which utterance was read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import Config, DataConfig, TrainingConfig
from myxtts.data.batch_plan import bucket_bounds
from myxtts.data.dataset import Corpus, make_plan
from myxtts.data.manifest import LengthRule, Manifest, build_manifest
from myxtts.data.metadata_file import read_corpus

LETTERS = "abcdefghij"


def sine(hz: float, seconds: float, rate_hz: int = SAMPLE_RATE_HZ, level: float = 0.5) -> np.ndarray:
    """Return a sinusoid, float64 [seconds * rate_hz]."""
    return level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)


def frequency(wave: np.ndarray) -> float:
    """Return the frequency in Hz of the strongest bin in the Fourier transform of a wave at 22,050 Hz."""
    return float(np.abs(np.fft.rfft(wave)).argmax() * SAMPLE_RATE_HZ / len(wave))


def pitch_of(number: int) -> float:
    return 300.0 + 40.0 * number


def write_sound(path: Path, wave: np.ndarray, rate_hz: int = SAMPLE_RATE_HZ, subtype: str | None = None) -> None:
    """Write a sound file to any path, including paths that soundfile cannot encode."""
    with open(path, "wb") as file:
        soundfile.write(file, wave, rate_hz, subtype=subtype, format=path.suffix[1:])


def write_corpus(
    folder: Path, seconds: Sequence[float], speakers: int = 2, suffixes: Sequence[str] = (".wav",)
) -> Manifest:
    """Write sinusoids: utterance `u<i>` has `pitch_of(i)` Hz, 1 to 8 letters and speaker i modulo `speakers`."""
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
    manifest, _, rejected = build_manifest(
        read_corpus(metadata, "en"),
        min_seconds=0.05,
        max_seconds=60.0,
        frontend="characters",
        symbols_of=lambda text, language, frontend: list(text),
        length_rule=LengthRule(),
    )
    assert not rejected, rejected
    return replace(manifest, ids=tuple(Path(name).stem for name in manifest.ids))


def planned_corpus(
    manifest: Manifest, data: DataConfig, seed: int = 0, accumulation: int = 1, replicas: int = 1
) -> Corpus:
    bounds = bucket_bounds(manifest.samples, data.buckets)
    config = Config(data=data, training=TrainingConfig(seed=seed))
    return Corpus(manifest, make_plan(manifest, bounds, config, accumulation, replicas))
