"""Plots of log-mels (float32 [frames, 80]), alignments, spectrograms and F0, as images uint8
[height, width, 3].
"""

import io
import textwrap
import warnings

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from myxtts.audio.format import HOP_SAMPLES, mel_bands, sample_rate_hz

# Silence, log(1e-5), has the darkest colour, and loud speech the lightest.
MEL_LIMITS = (-11.5, 1.0)


def mel_and_alignment(
    recorded: np.ndarray, synthesized: np.ndarray, path: np.ndarray, title: str
) -> np.ndarray:
    """Draw two log-mels, and the token of each frame of the recording, int32 [frames]."""
    figure, axes = _figure(3, 8)
    _draw_rows(axes[0], recorded, "recorded")
    _draw_rows(axes[1], synthesized, "synthesized")
    axes[2].step(np.arange(len(path)) * _frame_s(), path, where="post")
    axes[2].set(xlabel="s", ylabel="token", title="alignment of the recording")
    for axis in axes:
        axis.set(xlim=(0, max(len(recorded), len(synthesized)) * _frame_s()))
    return _render(figure, title)


def mels(log_mels: dict[str, np.ndarray], title: str) -> np.ndarray:
    """Draw log-mels below each other, by name."""
    return _below_each_other(log_mels, title, mel_bands(), "mel band", MEL_LIMITS)


def spectra(levels_db: dict[str, np.ndarray], title: str) -> np.ndarray:
    """Draw spectrograms below each other on a scale of 80 dB: name -> float [frames, bins]."""
    loudest = max(levels.max() for levels in levels_db.values())
    limits = (loudest - 80.0, loudest)
    return _below_each_other(levels_db, title, sample_rate_hz() / 2000, "kHz", limits)


def _below_each_other(
    images: dict[str, np.ndarray], title: str, height: float, unit: str, limits: tuple[float, float]
) -> np.ndarray:
    figure, axes = _figure(len(images), 2.7 * len(images), share_x=True)
    for axis, (name, image) in zip(axes, images.items(), strict=True):
        _draw_rows(axis, image, name, height, unit, limits)
    axes[-1].set(xlabel="s")
    return _render(figure, title)


def mel_and_posteriors(
    mel: np.ndarray, posteriors: dict[str, np.ndarray], title: str
) -> np.ndarray:
    """Draw a log-mel above the probabilities of symbols, float [steps], by their names."""
    figure, axes = _figure(2, 7)
    _draw_rows(axes[0], mel, "mel")
    extent = (0, len(mel) * _frame_s(), len(posteriors) - 0.5, -0.5)
    rows = np.array(list(posteriors.values()))
    axes[1].imshow(rows, aspect="auto", extent=extent, vmin=0.0, vmax=1.0)
    axes[1].set(xlabel="s", title="probability of each symbol")
    axes[1].set_yticks(range(len(posteriors)), list(posteriors))
    return _render(figure, title)


def f0_curves(f0_hz: dict[str, np.ndarray], title: str) -> np.ndarray:
    """Draw F0 of several sounds over time, with gaps where it is NaN: name -> float [frames]."""
    figure, (axis,) = _figure(1, 3)
    for name, values in f0_hz.items():
        times_s = (np.arange(len(values)) + 0.5) * _frame_s()
        axis.plot(times_s, values, label=name, marker=".", markersize=3)
    axis.set(xlabel="s", ylabel="F0, Hz")
    axis.legend()
    return _render(figure, title)


def png_bytes(image: np.ndarray) -> bytes:
    """Return the bytes of a PNG file of an image."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return file.getvalue()


def _figure(rows: int, height: float, share_x: bool = False) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(9, height), dpi=80, layout="constrained")
    return figure, list(figure.subplots(rows, 1, sharex=share_x, squeeze=False)[:, 0])


def _draw_rows(
    axis: Axes,
    image: np.ndarray,
    name: str,
    height: float | None = None,
    unit: str = "mel band",
    limits: tuple[float, float] = MEL_LIMITS,
) -> None:
    """Draw an image over time, float [frames, rows]; rows are 0 to `height`, or bands of a mel."""
    extent = (0, len(image) * _frame_s(), 0, height or mel_bands())
    low, high = limits
    axis.imshow(image.T, origin="lower", aspect="auto", extent=extent, vmin=low, vmax=high)
    axis.set(ylabel=unit, title=name)


def _frame_s() -> float:
    return HOP_SAMPLES / sample_rate_hz()


def _render(figure: Figure, title: str) -> np.ndarray:
    # matplotlib's own wrapping and parsing would read text between two dollars as a formula.
    lines = textwrap.fill(title, 110, max_lines=3, placeholder=" …")
    figure.suptitle(lines, fontsize=9, parse_math=False)
    # Not pyplot, which keeps every figure in a global list.
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        # Letters without a font are boxes, each with a warning. The report has them as text.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        canvas.draw()
    image = np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
    # The parts of a figure refer to each other, so Python frees them late: 2.7 MiB of each, and 0.2
    # MiB after this.
    figure.clear()
    canvas.renderer = None
    return image
