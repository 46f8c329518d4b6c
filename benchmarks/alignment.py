"""Time, loop iterations and kernels of implementations of the alignment search, which all find the
same path.

    python benchmarks/alignment.py
    python benchmarks/alignment.py --shapes 16x600x90 --repeats 51

Each implementation must find the paths of the first one on random scores, or the program ends with
an error. All take turns (A B A B) in one process; times are medians of processor time in
milliseconds, with their ratio to the first implementation. Kernels are the instructions of the
program that XLA optimised for this CPU, times the iterations of their loops: the program for a GPU
fuses differently, so they indicate launches there and do not count them. `host reads` are
iterations of loops whose number XLA does not know: a GPU returns the condition to the host in each
of these.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.base.errors import TrainingError
from myxtts.config.parser import bounded

SHAPES = ("16x300x40", "16x600x90", "16x900x160")
NO_LAUNCH = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all"}
ASSOCIATION_ROWS = 1600


def main() -> int:
    options = parse()
    import tensorflow as tf

    searches = implementations(tf)
    print(
        "shape         implementation              ms  ratio  first s  iterations  kernels  host"
        " reads"
    )
    for shape in options.shapes:
        arguments = random_rows(tf, *map(int, shape.split("x")), seed=0)
        times_ms, first_s = measure(searches, arguments, options.repeats)
        reference = next(iter(times_ms.values()))
        for name, search in searches.items():
            line = (
                f"{shape:12}  {name:22} {times_ms[name]:7.2f} {times_ms[name] / reference:6.2f}"
                f" {first_s[name]:8.2f}"
            )
            print(line, launches(search, arguments) if "XLA" in name else "", flush=True)
    print(other_order(tf))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--shapes",
        type=shape,
        nargs="+",
        default=SHAPES,
        metavar="ROWSxFRAMESxTOKENS",
        help="batches to search",
    )
    add("--repeats", type=bounded(int, 1), default=21, help="turns of each implementation")
    return parser.parse_args()


def shape(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text):
        raise argparse.ArgumentTypeError(f"is {text!r}, but must be such as 16x600x90")
    return text


def implementations(tf) -> dict[str, Callable]:
    """Return the implementations by name; the first is the reference."""
    from myxtts.tasks.tts import alignment

    def by_blocks(frames):
        def search(*arguments):
            # Read while the function is traced.
            with mock.patch.object(alignment, "BLOCK_FRAMES", frames):
                return alignment.search_by_blocks(*arguments)

        return tf.function(search, jit_compile=True, autograph=False)

    def in_python(search):
        return tf.function(
            lambda *arguments: tf.numpy_function(search, arguments, tf.int32), autograph=False
        )

    def by_frames(xla):
        return tf.function(alignment.search_by_frames, jit_compile=xla, autograph=False)

    return {
        "frames, XLA": by_frames(xla=True),
        "frames, XLA, before": tf.function(
            lambda *a: former_search(tf, *a), jit_compile=True, autograph=False
        ),
        **{f"blocks of {frames}, XLA": by_blocks(frames) for frames in (2, 4, 8, 16)},
        "frames, TensorFlow": by_frames(xla=None),
        "numpy": in_python(numpy_search),
        "numba": in_python(numba_search()),
    }


def random_rows(tf, rows: int, frames: int, tokens: int, seed: int) -> tuple:
    """Return scores as of a half-trained model, with tokens and frames; the first row is full."""
    random = np.random.default_rng(seed)
    frame_count = random.integers(frames * 3 // 4, frames + 1, rows).astype(np.int32)
    token_count = np.minimum(
        random.integers(tokens * 3 // 4, tokens + 1, rows), frame_count
    ).astype(np.int32)
    frame_count[0], token_count[0] = frames, min(tokens, frames)
    score = -np.log1p(random.normal(0.0, 10.0, (rows, frames, tokens)) ** 2).astype(np.float32)
    return tf.constant(score), tf.constant(token_count), tf.constant(frame_count)


def measure(
    searches: dict, arguments: tuple, repeats: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return median milliseconds of processor time, and the processor seconds of the first call,
    which compiles.

    Raises:
        TrainingError: an implementation finds another path.
    """
    times_ms, first_s, expected = {name: [] for name in searches}, {}, None
    for name, search in searches.items():
        started_s = time.process_time()
        path = search(*arguments).numpy()
        first_s[name] = time.process_time() - started_s
        expected = path if expected is None else expected
        if not np.array_equal(path, expected):
            raise TrainingError(
                f"'{name}' finds other paths than the first implementation. This is a defect."
            )
    for _ in range(repeats):
        for name, search in searches.items():
            started_s = time.process_time()
            search(*arguments).numpy()
            times_ms[name].append(1e3 * (time.process_time() - started_s))
    return {name: median(values) for name, values in times_ms.items()}, first_s


def launches(search, arguments: tuple) -> str:
    """Return the columns iterations, kernels and host reads."""
    text = search.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
    bodies = {
        name: re.findall(r"^  (?:ROOT )?%\S+ = .*? ([a-z][a-z-]*)\((.*)$", lines, re.MULTILINE)
        for name, lines in re.findall(
            r"^(?:ENTRY )?%(\S+) \(.*\{\n((?:  .*\n)*)\}", text, re.MULTILINE
        )
    }
    entry = re.search(r"^ENTRY %(\S+) ", text, re.MULTILINE).group(1)
    frames = arguments[0].shape[1]
    return "{:11d} {:8d} {:11d}".format(*counted(bodies, entry, frames))


def counted(bodies: dict, name: str, frames: int) -> np.ndarray:
    """Return iterations, kernels and host reads; an unknown loop runs once for each frame."""
    total = np.zeros(3, int)
    for operation, rest in bodies[name]:
        if operation == "while":
            known = re.search(r'"known_trip_count":\{"n":"(\d+)"', rest)
            count = int(known.group(1)) if known else frames
            inner = counted(bodies, re.search(r"body=%([^\s,]+)", rest).group(1), frames)
            total += count * (inner + np.array([1, 0, not known]))
        elif operation == "call":
            total += counted(bodies, re.search(r"to_apply=%([^\s,]+)", rest).group(1), frames)
        else:
            total[1] += operation not in NO_LAUNCH
    return total


def other_order(tf) -> str:
    """Count the paths that differ if scores are summed from the end, as scans in blocks do."""
    from myxtts.tasks.tts.alignment import search_by_frames

    search = tf.function(search_by_frames, jit_compile=True)
    score, _, _ = random_rows(tf, ASSOCIATION_ROWS, 600, 90, seed=1)
    full = tf.fill([ASSOCIATION_ROWS], 90), tf.fill([ASSOCIATION_ROWS], 600)
    path = search(score, *full).numpy()
    backwards = 89 - search(score[:, ::-1, ::-1], *full).numpy()[:, ::-1]
    differing = int((path != backwards).any(axis=1).sum())
    return (
        f"summed from the end: {differing} of {ASSOCIATION_ROWS} rows of 600 frames and 90 tokens"
        " have another path"
    )


def former_search(tf, score, token_count, frames):
    """The former search: a loop over the frames counts down; XLA does not know its iterations."""
    impossible = -1e9
    batch, padded_frames, tokens = tf.unstack(tf.shape(score))
    token = tf.range(tokens)[None, :]
    score = tf.where((token < token_count[:, None])[:, None, :], score, impossible)
    frame_major = tf.transpose(score, [1, 0, 2])

    def forward(t, best, advanced):
        stay = best
        advance = tf.concat([tf.fill([batch, 1], impossible), best[:, :-1]], axis=1)
        advance = tf.where((t == 0) & (token == 0), 0.0, advance)
        stay = tf.where(t == 0, impossible, stay)
        advances = tf.cast(advance > stay, tf.int32)
        best = tf.maximum(stay, advance) + frame_major[t]
        return t + 1, best, tf.tensor_scatter_nd_update(advanced, [[t]], advances[None])

    def backward(t, current, path):
        inside = t < frames
        path = tf.tensor_scatter_nd_update(path, [[t]], tf.where(inside, current, -1)[None])
        step = tf.gather(advanced[t], tf.maximum(current, 0), batch_dims=1)
        return t - 1, tf.where(inside, current - step, current), path

    advanced = tf.zeros([padded_frames, batch, tokens], tf.int32)
    start = 0, tf.fill([batch, tokens], impossible), advanced
    _, _, advanced = tf.while_loop(lambda t, *_: t < padded_frames, forward, start)
    path = tf.zeros([padded_frames, batch], tf.int32)
    _, _, path = tf.while_loop(
        lambda t, *_: t >= 0, backward, (padded_frames - 1, token_count - 1, path)
    )
    return tf.transpose(path)


def numpy_search(score, token_count, frames):
    """Vectorised over rows and tokens."""
    rows, padded_frames, tokens = score.shape
    real = np.arange(tokens) < token_count[:, None]
    score = np.where(real[:, None], score, np.float32(-1e9)).transpose(1, 0, 2).copy()
    totals = np.full((padded_frames, rows, tokens + 1), -1e9, np.float32)
    totals[0, :, 1] = 0.0
    totals[0, :, 1:] += score[0]
    for t in range(1, padded_frames):
        now = totals[t, :, 1:]
        np.maximum(totals[t - 1, :, 1:], totals[t - 1, :, :-1], out=now)
        now += score[t]
    advances = totals[:, :, :-1] > totals[:, :, 1:]
    path, current = np.full((padded_frames, rows), -1, np.int32), token_count - 1
    for t in range(padded_frames - 1, -1, -1):
        inside = t < frames
        path[t] = np.where(inside, current, -1)
        if t:
            current = current - (advances[t - 1, np.arange(rows), current] & inside)
    return path.T


def numba_search():
    """Return a search that numba compiles, row by row, without Python's lock."""
    import numba

    @numba.njit(nogil=True)
    def search(score, token_count, frames):
        rows, padded_frames, tokens = score.shape
        path = np.full((rows, padded_frames), -1, np.int32)
        totals = np.empty((padded_frames, tokens + 1), np.float32)
        for row in range(rows):
            totals[:, 0] = np.float32(-1e9)
            totals[0, 1:] = np.float32(-1e9)
            if frames[row]:
                totals[0, 1] = score[row, 0, 0]
            for t in range(1, frames[row]):
                for n in range(token_count[row]):
                    totals[t, n + 1] = (
                        max(totals[t - 1, n + 1], totals[t - 1, n]) + score[row, t, n]
                    )
            n = token_count[row] - 1
            for t in range(frames[row] - 1, -1, -1):
                path[row, t] = n
                if t and totals[t - 1, n] > totals[t - 1, n + 1]:
                    n -= 1
        return path

    return search


if __name__ == "__main__":
    sys.exit(report_errors(main))
