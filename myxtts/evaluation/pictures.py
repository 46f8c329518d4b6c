"""Pictures of synthesized speech and of copies beside their recordings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import librosa
import numpy as np

from myxtts.audio.format import DECIBELS_PER_NEPER, FFT_SAMPLES, HOP_SAMPLES
from myxtts.evaluation.acoustic_metrics import AcousticFeatures
from myxtts.evaluation.held_out import Utterance
from myxtts.files import numbered_name
from myxtts.report.plots import f0_curves, mel_and_alignment, png_bytes, spectra


def write_plots(
    folder: Path,
    utterances: Sequence[Utterance],
    recorded: Sequence[AcousticFeatures],
    synthesized: Sequence[AcousticFeatures],
) -> None:
    """Write `<number>-<id>-mel.png` and `<number>-<id>-f0.png` for each utterance; the folder is
    made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, (utterance, recording, synthesis) in enumerate(
        zip(utterances, recorded, synthesized, strict=True), 1
    ):
        name = numbered_name(number, utterance.id)
        picture = mel_and_alignment(recording.mel, synthesis.mel, utterance.path, utterance.text)
        (folder / f"{name}-mel.png").write_bytes(png_bytes(picture))
        curves = {"recorded": recording.voiced_f0_hz, "synthesized": synthesis.voiced_f0_hz}
        (folder / f"{name}-f0.png").write_bytes(png_bytes(f0_curves(curves, utterance.text)))


def write_spectra(file: Path, waves: Mapping[str, np.ndarray], title: str) -> None:
    """Draw the spectrograms of waves, float32 [samples] each, into a PNG file."""
    file.write_bytes(
        png_bytes(spectra({name: level_db(wave) for name, wave in waves.items()}, title))
    )


def level_db(wave: np.ndarray) -> np.ndarray:
    """Return the level of each bin of the STFT, float32 [frames, 513], at least -200 dB."""
    magnitude = np.abs(librosa.stft(wave, n_fft=FFT_SAMPLES, hop_length=HOP_SAMPLES))
    return DECIBELS_PER_NEPER * np.log(np.maximum(magnitude.T, 1e-10))
