"""Precision and time of the CTC loss, the log-mel in float64, and products in TF32, on the CPU.

    python benchmarks/numerics.py ctc
    python benchmarks/numerics.py mel --waves data/demo/wavs
    python -m tests.virtual_gpu --tf32 --memory-mib 1024 -- \\
        benchmarks/numerics.py tf32 --waves data/demo/wavs

Alternatives take turns in one process (A B A B); times are processor time, the least of --repeats.
`ctc` compares sparse labels (TensorFlow's kernel), dense labels, and the recursion for rows that
cuDNN rejects, by loss and gradient; errors are those from the recursion in float64. `mel` compares
the log-mel with librosa's in float64, and estimates the times of a GPU from nominal rates. `tf32`
needs a virtual GPU, which rounds as GPUs since Ampere do.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.audio.audio_file import read_wave
from myxtts.audio.format import HOP_SAMPLES
from myxtts.base.console import report_errors
from myxtts.base.errors import DataError
from myxtts.config.parser import bounded

# rows, frames, labels, symbols: 5 s, and 19 s of fast speech.
CTC_SHAPES = ((16, 215, 60, 60), (8, 818, 310, 60))
# Nominal rates in 1e12 operations/s (NVIDIA's data sheets, without sparsity): float32, float64,
# TF32; and GB/s.
GPUS = {
    "RTX 3060": (12.7, 0.199, 25.5, 360),
    "RTX 4090": (82.6, 1.29, 82.6, 1008),
    "A100": (19.5, 9.7, 156.0, 1555),
    "H100": (67.0, 34.0, 495.0, 3350),
}
FFT_RATE, PRODUCT_RATE, STEP_RATE = 0.3, 0.8, 0.3  # assumed shares of the nominal rate
STEP_ROWS, STEP_SECONDS, STEP_TOKENS = 8, 3.0, 45


def main() -> int:
    options = parse()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    {"ctc": ctc, "mel": mel, "tf32": tf32}[options.part](options)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("part", choices=("ctc", "mel", "tf32"))
    add("--waves", type=Path, default=Path("data/demo/wavs"), help="folder of recordings")
    add(
        "--utterances", type=bounded(int, 1), default=24, help="number of recordings, first by name"
    )
    add("--repeats", type=bounded(int, 1), default=5, help="measurements of each alternative")
    return parser.parse_args()


def recordings(folder: Path, count: int) -> list[np.ndarray]:
    """Read the first waves of a folder, float32 [samples], in whole frames.

    Raises:
        DataError: there is none.
    """
    paths = sorted(folder.glob("*.wav"))[:count]
    if not paths:
        raise DataError(f"--waves {folder} has no .wav file. Make a corpus with `myxtts corpus`.")
    waves = [read_wave(path) for path in paths]
    return [wave[: len(wave) // HOP_SAMPLES * HOP_SAMPLES] for wave in waves]


def processor_seconds(
    alternatives: dict[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
    """Return the least processor time of each alternative; they take turns, after a warm-up."""
    for run in alternatives.values():
        run()
    best = dict.fromkeys(alternatives, np.inf)
    for _ in range(repeats):
        for name, run in alternatives.items():
            started_s = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - started_s)
    return best


# --- CTC


def ctc(options: argparse.Namespace) -> None:
    import tensorflow as tf

    from myxtts.tasks.asr.ctc import ctc_losses, ctc_losses_by_recursion

    def dense(logits, frames, labels, count):
        return tf.nn.ctc_loss(labels, tf.transpose(logits, [1, 0, 2]), count, frames, blank_index=0)

    functions = {"sparse": ctc_losses, "dense": dense, "recursion": ctc_losses_by_recursion}
    print("rows frames labels | labels      ms    times   error of loss   of gradient (largest 1)")
    for shape in CTC_SHAPES:
        logits, *rest = _ctc_rows(*shape)
        compiled = {name: _loss_and_gradient(function) for name, function in functions.items()}
        exact_loss, exact_gradient = map(
            np.asarray, compiled["recursion"](tf.cast(logits, tf.float64), *rest)
        )
        runs = {name: partial(run, logits, *rest) for name, run in compiled.items()}
        times_s = processor_seconds(runs, options.repeats)
        for name, run in compiled.items():
            loss, gradient = map(np.asarray, run(logits, *rest))
            errors = loss / exact_loss - 1, gradient - exact_gradient
            of_loss, of_gradient = (np.abs(error).max() for error in errors)
            times = f"{1e3 * times_s[name]:8.1f} {times_s[name] / times_s['sparse']:7.1f}"
            size = f"{shape[0]:4d} {shape[1]:6d} {shape[2]:6d} | {name:9s}"
            print(f"{size} {times}   {of_loss:13.1e}   {of_gradient:11.1e}", flush=True)


def _ctc_rows(rows: int, frames: int, labels: int, symbols: int) -> tuple:
    import tensorflow as tf

    random = np.random.default_rng(0)
    count = random.integers(labels // 2, labels, rows, endpoint=True)
    drawn = random.integers(1, symbols, (rows, labels))
    text = np.where(np.arange(labels) < count[:, None], drawn, 0)
    real = random.integers(9 * frames // 10, frames, rows, endpoint=True)
    logits = tf.constant(random.normal(0, 3, (rows, frames, symbols)), tf.float32)
    return logits, *(tf.constant(values, tf.int32) for values in (real, text, count))


def _loss_and_gradient(function):
    import tensorflow as tf

    @tf.function
    def compute(logits, *rest):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = function(logits, *rest)
        return losses, tf.convert_to_tensor(tape.gradient(losses, logits))

    return compute


# --- Log-mel


def mel(options: argparse.Namespace) -> None:
    import tensorflow as tf

    from benchmarks._mel import log_mel_float32
    from myxtts.audio.format import FFT_SAMPLES, HOP_SAMPLES, SAMPLE_RATE_HZ, mel_bands
    from myxtts.audio.mel import log_mel
    from myxtts.devicefeed.internals import reuse_freed_memory

    functions = {"float64": tf.function(log_mel), "float32": tf.function(log_mel_float32)}
    print("signal                     | largest error of the log-mel in float64, in float32")
    for name, waves in _signals(recordings(options.waves, options.utterances)).items():
        errors = [
            max(mel_error(run(wave[None])[0].numpy(), wave) for wave in waves)
            for run in functions.values()
        ]
        print(f"{name:26s} | {errors[0]:.1e}  {errors[1]:.1e}", flush=True)
    reuse_freed_memory()  # as in a run
    functions["float64, all rows at once"] = tf.function(lambda rows: log_mel(rows))
    for seconds in (1.0, STEP_SECONDS, 2 * STEP_SECONDS):
        shape = STEP_ROWS, round(seconds * SAMPLE_RATE_HZ)
        rows = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        with mock.patch("myxtts.audio.mel.by_rows", lambda function, rows, _: function(*rows)):
            functions["float64, all rows at once"](rows)
        runs = {name: partial(run, rows) for name, run in functions.items()}
        times_s = processor_seconds(runs, 5 * options.repeats)
        by_name = ", ".join(f"{name} {1e3 * spent_s:.1f}" for name, spent_s in times_s.items())
        print(f"processor ms for {STEP_ROWS} rows of {seconds:g} s: {by_name}")

    frames = SAMPLE_RATE_HZ / HOP_SAMPLES
    transform = frames * (2.5 * FFT_SAMPLES * np.log2(FFT_SAMPLES) + FFT_SAMPLES)
    product = frames * 2 * (FFT_SAMPLES // 2 + 1) * mel_bands()
    networks = itertools.product(("tts", "asr"), ("tiny", "normal"))
    steps = {f"{task} {size}": step_flops(task, size) for task, size in networks}
    of_steps = ", ".join(f"{name} {flops / 1e6:,.0f}" for name, flops in steps.items())
    print("\n1e6 operations per audio second")
    print(f"transform {transform / 1e6:.2f}, mel product {product / 1e6:.2f};", end=" ")
    print(f"products and convolutions of a step: {of_steps}")
    print("\nestimated microseconds per audio second, with the step's in TF32")
    names = " | ".join(f"{name:10s}" for name in steps)
    print(f"GPU        | log-mel in float64, float32 | {names}")
    for gpu, (rate32, rate64, rate_tf32, gb_per_s) in GPUS.items():
        # Framing, window and transform each read and write a frame; float64 adds a conversion at
        # either end.
        wide = max(transform / FFT_RATE / rate64, frames * FFT_SAMPLES * 48 * 1e3 / gb_per_s)
        narrow = max(transform / FFT_RATE / rate32, frames * FFT_SAMPLES * 24 * 1e3 / gb_per_s)
        wide += product / PRODUCT_RATE / rate64
        narrow += product / PRODUCT_RATE / rate32
        of_steps = (flops / STEP_RATE / rate_tf32 / 1e6 for flops in steps.values())
        shares = " | ".join(f"{microseconds:10.0f}" for microseconds in of_steps)
        print(f"{gpu:10s} | {wide / 1e6:18.1f} {narrow / 1e6:8.1f} | {shares}", flush=True)


def _signals(recorded: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    from myxtts.audio.format import SAMPLE_RATE_HZ

    time_s = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    all_hz = 60, 300, 1_000, 5_000, 10_500
    tones = [np.sin(2 * np.pi * hz * time_s).astype(np.float32) for hz in all_hz]
    half = (np.arange(SAMPLE_RATE_HZ) < SAMPLE_RATE_HZ // 2).astype(np.float32)
    return {
        "speech": recorded,
        "speech, peak at full scale": [wave / np.abs(wave).max() for wave in recorded],
        "speech in digital silence": [np.pad(wave, SAMPLE_RATE_HZ // 2) for wave in recorded],
        "full-scale tones": tones,
        "tones in digital silence": [tone * half for tone in tones],
    }


def mel_error(result: np.ndarray, wave: np.ndarray) -> float:
    """Return the largest difference from the log-mel by librosa alone, in float64."""
    from benchmarks._mel import mel_by_librosa

    return float(np.abs(result - mel_by_librosa(wave)).max())


def step_flops(task: str, size: str) -> float:
    """Count the operations of a step's products and convolutions, per audio second."""
    import tensorflow as tf

    from benchmarks._flops import contraction_flops
    from myxtts.tasks.asr.network import build_asr
    from myxtts.tasks.tts.network import build_xtts

    frames = round(STEP_SECONDS * 22_050 / 256)
    # Only shapes count.
    counts = np.full(STEP_ROWS, STEP_TOKENS, np.int32), np.full(STEP_ROWS, frames, np.int32)
    mel = np.zeros((STEP_ROWS, frames, 80), np.float32)
    batch = {
        **{"tokens": np.ones((STEP_ROWS, STEP_TOKENS), np.int32), "token_count": counts[0]},
        **{"mel": mel, "f0_hz": mel[:, :, 0], "frames": counts[1]},
        **{"reference": mel, "reference_frames": counts[1]},
        **{"language": np.zeros(STEP_ROWS, np.int32), "seed": np.zeros(2, np.int32)},
        "step_frames": np.float32(STEP_ROWS * frames),
        "step_tokens": np.float32(STEP_ROWS * STEP_TOKENS),
    }
    model = build_xtts(size, 60, 2) if task == "tts" else build_asr(size, 60, "lmu", 2)
    batch = {name: tf.constant(batch[name]) for name in model.BATCH_FIELDS}
    model(batch)
    variables = [variable.value for variable in model.trainable_variables]

    def gradients(batch):
        with tf.GradientTape() as tape:
            losses, _ = model(batch, training=True)
            total = tf.add_n(list(losses.values()))
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(total, variables)]

    return contraction_flops(gradients, batch) / (STEP_ROWS * STEP_SECONDS)


# --- TF32


def tf32(options: argparse.Namespace) -> None:
    import tensorflow as tf

    from myxtts.base import tf_internals

    waves = recordings(options.waves, options.utterances)
    # Where operations run, and for which type of device they are chosen.
    cases = ("CPU", "CPU", "CPU"), ("TF32", "GPU", "CPU"), ("TF32, as on a GPU", "GPU", "GPU")
    expected = None
    difference = "difference from the CPU: pitch, energy, F0 in Hz"
    print(f"products          | log-mel against librosa | {difference}")
    for name, device, type_ in cases:
        chosen = mock.patch.object(tf_internals, "device_type_in_scope", return_value=type_)
        with tf.device(f"/{device}:0"), chosen:
            error, values = _features_and_targets(waves)
        expected = expected or values
        pairs = zip(values, expected, strict=True)
        differences = ", ".join(f"{np.abs(value - other).max():.1e}" for value, other in pairs)
        print(f"{name:17s} | {error:23.1e} | {differences}", flush=True)


def _features_and_targets(waves: list[np.ndarray]) -> tuple[float, list[np.ndarray]]:
    """Return the error of the log-mel, and pitch and energy of tokens, and F0."""
    import tensorflow as tf

    from myxtts.audio.mel import log_mel
    from myxtts.audio.pitch import f0
    from myxtts.tasks.layers import MEL_MEAN, MEL_STD
    from myxtts.tasks.tts.prosody import target_prosody

    mels = [log_mel(wave[None]) for wave in waves]
    error = max(mel_error(mel[0].numpy(), wave) for mel, wave in zip(mels, waves, strict=True))
    results = []
    for wave, mel in zip(waves, mels, strict=True):
        target = (mel - MEL_MEAN) / MEL_STD
        hz, _ = f0(wave[None], tf.constant([len(wave)]))
        path = tf.range(tf.shape(target)[1])[None] // 6
        prosody, _ = target_prosody(target, hz, path, tf.reduce_max(path) + 1)
        values = prosody.pitch, prosody.energy, hz
        results.append([value.numpy().ravel() for value in values])
    return error, [np.concatenate(column) for column in zip(*results, strict=True)]


if __name__ == "__main__":
    sys.exit(report_errors(main))
