"""Plots of mels, alignments and timelines, as images."""

import io
import textwrap

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from myxtts.audio.format import HOP_SAMPLES, MEL_BANDS, SAMPLE_RATE_HZ

FRAME_S = HOP_SAMPLES / SAMPLE_RATE_HZ


def mel_and_alignment(
    recorded: np.ndarray, synthesized: np.ndarray, path: np.ndarray, title: str
) -> np.ndarray:
    """Draw the recorded mel, the synthesized mel and the alignment of the recording below each
    other.

    Args:
        recorded, synthesized: float32 [frames, 80] log-mels.
        path: int32 [frames of the recording], token of each frame.

    Returns:
        uint8 [height, width, 3].
    """
    figure = Figure(figsize=(9, 8), dpi=80, layout="constrained")
    axes = figure.subplots(3, 1)
    longest_s = max(len(recorded), len(synthesized)) * FRAME_S
    for axis, mel, name in ((axes[0], recorded, "recorded"), (axes[1], synthesized, "synthesized")):
        extent = (0, len(mel) * FRAME_S, 0, mel.shape[1])
        axis.imshow(mel.T, origin="lower", aspect="auto", extent=extent, vmin=-11.5, vmax=1.0)
        axis.set(xlim=(0, longest_s), ylabel="mel band", title=name)
    axes[2].step(np.arange(len(path)) * FRAME_S, path, where="post")
    axes[2].set(xlim=(0, longest_s), xlabel="s", ylabel="token", title="alignment of the recording")
    _set_title(figure, title)
    return _render(figure)


def mels(log_mels: dict[str, np.ndarray], title: str) -> np.ndarray:
    """Draw log-mels below each other.

    Args:
        log_mels: name -> float32 [frames, 80].

    Returns:
        uint8 [height, width, 3].
    """
    return _below_each_other(log_mels, title, MEL_BANDS, "mel band", (-11.5, 1.0))


def spectra(levels_db: dict[str, np.ndarray], title: str) -> np.ndarray:
    """Draw spectrograms below each other, on a common scale of 80 dB.

    Args:
        levels_db: name -> float [frames, bins], from 0 Hz to half the sample rate.

    Returns:
        uint8 [height, width, 3].
    """
    loudest = max(levels.max() for levels in levels_db.values())
    return _below_each_other(
        levels_db, title, SAMPLE_RATE_HZ / 2000, "kHz", (loudest - 80.0, loudest)
    )


def _below_each_other(
    images: dict[str, np.ndarray], title: str, height: float, unit: str, limits: tuple[float, float]
) -> np.ndarray:
    """Draw images over time, float [frames, rows] each, whose rows are 0 to `height` of a unit."""
    figure = Figure(figsize=(9, 2.7 * len(images)), dpi=80, layout="constrained")
    axes = figure.subplots(len(images), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, image) in zip(axes, images.items(), strict=True):
        extent = (0, len(image) * FRAME_S, 0, height)
        axis.imshow(
            image.T, origin="lower", aspect="auto", extent=extent, vmin=limits[0], vmax=limits[1]
        )
        axis.set(ylabel=unit, title=name)
    axes[-1].set(xlabel="s")
    _set_title(figure, title)
    return _render(figure)


def mel_and_posteriors(
    mel: np.ndarray, posteriors: dict[str, np.ndarray], title: str
) -> np.ndarray:
    """Draw a mel above the symbol probabilities of a recogniser.

    Args:
        mel: float32 [frames, 80] log-mel.
        posteriors: name of a symbol -> its probabilities, float [steps].

    Returns:
        uint8 [height, width, 3].
    """
    figure = Figure(figsize=(9, 7), dpi=80, layout="constrained")
    axes = figure.subplots(2, 1)
    seconds = len(mel) * FRAME_S
    axes[0].imshow(
        mel.T,
        origin="lower",
        aspect="auto",
        extent=(0, seconds, 0, mel.shape[1]),
        vmin=-11.5,
        vmax=1.0,
    )
    axes[0].set(ylabel="mel band", title="mel")
    extent = (0, seconds, len(posteriors) - 0.5, -0.5)
    axes[1].imshow(
        np.array(list(posteriors.values())), aspect="auto", extent=extent, vmin=0.0, vmax=1.0
    )
    axes[1].set(xlabel="s", title="probability of each symbol")
    axes[1].set_yticks(range(len(posteriors)), list(posteriors))
    _set_title(figure, title)
    return _render(figure)


def f0_curves(f0_hz: dict[str, np.ndarray], title: str) -> np.ndarray:
    """Draw F0 of several sounds over time, with gaps where it is NaN.

    Args:
        f0_hz: name -> float [frames].

    Returns:
        uint8 [height, width, 3].
    """
    figure = Figure(figsize=(9, 3), dpi=80, layout="constrained")
    axis = figure.subplots()
    for name, values in f0_hz.items():
        axis.plot(
            (np.arange(len(values)) + 0.5) * FRAME_S, values, label=name, marker=".", markersize=3
        )
    axis.set(xlabel="s", ylabel="F0, Hz")
    axis.legend()
    _set_title(figure, title)
    return _render(figure)


def png_bytes(image: np.ndarray) -> bytes:
    """Return the bytes of a PNG file of an image, uint8 [height, width, 3]."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return file.getvalue()


def _set_title(figure: Figure, title: str) -> None:
    # matplotlib's own wrapping and parsing would read text between two dollars as a formula.
    figure.suptitle(
        textwrap.fill(title, 110, max_lines=3, placeholder=" …"), fontsize=9, parse_math=False
    )


def _render(figure: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)  # not pyplot, which keeps every figure in a global list
    canvas.draw()
    image = np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
    # The parts of a figure refer to each other, so Python frees them late: 2.7 MiB of each, and 0.2
    # MiB after this.
    figure.clear()
    canvas.renderer = None
    return image
