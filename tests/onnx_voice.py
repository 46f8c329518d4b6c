"""A voice of two speakers with random weights, exported as ONNX by the program."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from myxtts.commands import export as export_model
from myxtts.config.schema import Config
from myxtts.data.audio_file import write_wav
from myxtts.models import vocoder
from myxtts.models.vocoder import PITCH_BINS
from myxtts.synthesis import export
from tests import tiny_vocoder
from tests.fixtures import make_record, reported
from tests.sine_corpus import sine
from tests.tiny import ONE_BLOCK, build_model, save_checkpoint, small_models, training_state

SPEAKERS = {"low": 110.0, "high": 220.0}


def write_runs(folder: Path, symbols: Sequence[str], languages: Sequence[str]) -> list[str]:
    """Write the runs of a voice and a vocoder and recordings; return the flags of an export."""
    model = {"model_size": "tiny", "ode_steps": 2}
    vocabulary = {"symbols": tuple(symbols), "languages": tuple(languages), "speakers": ("s",)}
    voice = build_model(size=ONE_BLOCK, symbols=len(symbols) + 3, languages=len(languages))
    _write(folder / "run", voice, settings=Config(model=model), **vocabulary)
    settings = Config(model={"task": "vocoder", "model_size": "tiny"})
    nothing = {"symbols": (), "languages": (), "speakers": ()}
    _write(folder / "vocoder", tiny_vocoder.build(), settings=settings, **nothing)
    flags = ["--vocoder", str(folder / "vocoder"), "--language", languages[0]]
    for name, hz in SPEAKERS.items():
        path = folder / f"{name}.wav"
        write_wav(path, sine(hz, 1.0).astype(np.float32))
        flags += ["--reference", f"{name}={path}"]
    return flags


def _write(folder: Path, network, **record) -> None:
    state = training_state(network)
    random = np.random.default_rng(0)
    for average in state.averages:
        average.assign_add(random.normal(0.0, 0.05, average.shape))
        # One likeliest bin of F0: random ones are nearly equal, and rounding would choose.
        if average.shape == [PITCH_BINS + 3]:
            average.assign_add(20.0 * np.eye(1, PITCH_BINS + 3, 40)[0])
    save_checkpoint(folder, make_record(**record), state)


@contextmanager
def small_networks() -> Iterator[None]:
    """Build networks as those of the runs; each projection of a vocoder takes a second to trace."""
    with (
        small_models(ONE_BLOCK),
        tiny_vocoder.small_vocoders(),
        mock.patch.object(vocoder, "PROJECTIONS", 2),
    ):
        yield


def program(*flags: str) -> tuple[int, str]:
    """Return the exit code and the error message of an export as ONNX."""
    argv = ["--format", "onnx", *flags]
    # This process has configured its devices.
    with mock.patch.object(export.devices, "configure"), small_networks():
        return reported(lambda: export_model.main(argv))


def export_voice(out: Path, symbols: Sequence[str], languages: Sequence[str]) -> None:
    """Export such a voice of the first language."""
    flags = write_runs(out.parent, symbols, languages)
    result = program("--run", str(out.parent / "run"), "--out", str(out), *flags)
    assert result == (0, ""), result
