"""A voice of two speakers with random weights, exported as ONNX by the program."""

import gc
import unittest
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.audio.audio_file import write_wav
from myxtts.audio.format import audio_format
from myxtts.config.schema import Config
from myxtts.extras.export import export, player_files
from myxtts.extras.export import export_command as export_model
from myxtts.speak import chunks as spoken_text
from myxtts.speak.chunks import voice_inputs
from myxtts.tasks.vocoder.network import PITCH_BINS
from tests import tiny_vocoder
from tests.fixtures import make_record, reported
from tests.sine_corpus import sine
from tests.tiny import ONE_BLOCK, build_model, save_checkpoint, small_models, training_state

SCALES = {"default": spoken_text.SCALES, "quiet": (0.0, 1.3, 0.0)}
SPEAKERS = {"low": 110.0, "high": 220.0}
F0_BIN = 15  # 86.3 Hz, 1.002 cycles in a frame


def write_runs(
    folder: Path, symbols: Sequence[str], languages: Sequence[str], sample_rate: int = 22_050
) -> list[str]:
    """Write the runs of a voice and a vocoder and recordings; return the flags of an export."""
    model, data = {"model_size": "tiny", "ode_steps": 2}, {"sample_rate": sample_rate}
    vocabulary = {"symbols": tuple(symbols), "languages": tuple(languages), "speakers": ("s",)}
    voice = build_model(size=ONE_BLOCK, symbols=len(symbols) + 3, languages=len(languages))
    _write(folder / "run", voice, settings=Config(model=model, data=data), **vocabulary)
    settings = Config(model={"task": "vocoder", "model_size": "tiny"}, data=data)
    nothing = {"symbols": (), "languages": (), "speakers": ()}
    _write(folder / "vocoder", tiny_vocoder.build(), settings=settings, **nothing)
    flags = ["--vocoder", str(folder / "vocoder"), "--language", languages[0]]
    for name, hz in SPEAKERS.items():
        path = folder / f"{name}.wav"
        tone = sine(hz, 1.0)
        # A steady sinusoid has flat peaks, as a clipped recording.
        write_wav(path, (tone * np.hanning(len(tone))).astype(np.float32))
        flags += ["--reference", f"{name}={path}"]
    return flags


def _write(folder: Path, network, **record) -> None:
    rate_hz = record["settings"].data.sample_rate
    state, record = training_state(network), record | {"audio_format": audio_format(rate_hz)}
    random = np.random.default_rng(0)
    for average in state.averages:
        average.assign_add(random.normal(0.0, 0.05, average.shape))
        # One likeliest bin of F0, with a whole number of cycles in a frame, and one phase: random
        # ones are nearly equal, or cancel each other, and rounding would choose.
        if average.shape == [PITCH_BINS + 3]:
            average.assign_add(20.0 * np.eye(1, PITCH_BINS + 3, F0_BIN)[0])
            average.assign_add(3.0 * np.eye(1, PITCH_BINS + 3, PITCH_BINS + 1)[0])
    save_checkpoint(folder, make_record(**record), state)


@contextmanager
def small_networks() -> Iterator[None]:
    """Build networks as those of the runs; each projection of a vocoder takes a second to trace."""
    with small_models(ONE_BLOCK), tiny_vocoder.small_vocoders():
        yield


@contextmanager
def remembered_graphs() -> Iterator[list[player_files.Graph]]:
    """Yield a list of the graphs of voices that are exported, which take seconds to trace."""
    graphs = []
    make_graph = player_files.voice_graph

    def voice_graph(*arguments):
        graph, document = make_graph(*arguments)
        gc.collect()  # the networks, if nothing holds their variables
        graphs.append(graph)
        return graph, document

    with mock.patch.object(player_files, "voice_graph", voice_graph):
        yield graphs


def check_waves(test: unittest.TestCase, graph, speak, symbols: int) -> None:
    """Check that waves of 20 texts are TensorFlow's: whole ones, from one token to 400.

    With the default noise and with none; `speak` returns the wave of the inputs.
    """
    random = np.random.default_rng(0)
    lengths = [1, 400, *random.integers(2, 90, 18)]
    for number, length in enumerate(lengths):
        ids = [1, *random.integers(3, symbols + 3, length), 2]
        for name, scales in SCALES.items():
            with test.subTest(tokens=length, scales=name):
                inputs = voice_inputs(ids, 2, scales, number % 2)
                wave = speak(inputs)
                expected = graph.traced(*map(tf.constant, inputs.values()))[0].numpy()
                test.assertEqual(wave.shape, expected.shape)
                error = np.sqrt(np.mean(np.square(wave - expected)))
                test.assertLess(error, 1e-3 * np.sqrt(np.mean(np.square(expected))))


def program(*flags: str, form: str = "onnx") -> tuple[int, str]:
    """Return the exit code and the error message of an export."""
    argv = ["--format", form, *flags]
    # This process has configured its devices.
    with mock.patch.object(export.devices, "configure"), small_networks():
        return reported(lambda: export_model.main(argv))


def export_voice(out: Path, symbols: Sequence[str], languages: Sequence[str]) -> None:
    """Export such a voice of the first language."""
    flags = write_runs(out.parent, symbols, languages)
    result = program("--run", str(out.parent / "run"), "--out", str(out), *flags)
    assert result == (0, ""), result
