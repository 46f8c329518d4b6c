"""The smallest models, states, batches and runs that have every feature of large ones."""

import atexit
import contextlib
import io
import multiprocessing
import shutil
import sys
import unittest
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from fakes.toy import Toy, shared_traces
from fakes.toy import build_toy as build_toy_for_run
from fakes.toy_models import toy_models
from myxtts.audio.mel import SILENCE
from myxtts.base.console import report_errors
from myxtts.checkpoints.files import Checkpoint, Record
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.commands import train
from myxtts.devicefeed.producer import ProducedBatch
from myxtts.devicefeed.routes import Route
from myxtts.placement.replicas import Replicas, make_replicas
from myxtts.run.optimizer import make_optimizer
from myxtts.run.saving import Checkpoints
from myxtts.run.schedule import ConstantRates
from myxtts.run.state import TrainingState
from myxtts.run.step import Step
from myxtts.tasks import loading
from myxtts.tasks.evaluation.held_out import Utterance
from myxtts.tasks.tts.network import SIZES, XTTS, XTTSSize, build_xtts
from tests.fixtures import temporary_folder
from tests.kill_points import KillPoints
from tests.sine_corpus import write_corpus
from tests.two_devices import MODEL, SIMULATED

ONE_BLOCK = XTTSSize(16, encoder_blocks=1, decoder_blocks=1, flow_blocks=1, heads=2, latents=2)
# Still has every kind of layer, in the flow.
SMALLEST = replace(ONE_BLOCK, encoder_blocks=0, decoder_blocks=0)
SYMBOLS = 13
SECONDS = tuple(0.4 + 0.03 * i for i in range(13))  # 12 to train on, 1 held out


def small_models(size: XTTSSize = SMALLEST) -> contextlib.AbstractContextManager:
    """Return a context in which the size `tiny` is `size`, also for runs."""
    return mock.patch.dict(SIZES, tiny=size)


def build_model(
    precision: str = "float32",
    device: str = MODEL,
    seed: int = 0,
    size=SMALLEST,
    symbols: int = SYMBOLS,
    languages: int = 2,
    **settings,
) -> XTTS:
    keras.utils.set_random_seed(seed)
    with small_models(size), replicas_on(device).scope():
        return build_xtts("tiny", symbols, languages, precision=precision, **settings)


@cache
def replicas_on(device: str) -> Replicas:
    """Return one cached replica: variables belong to the strategy in whose scope they are."""
    return make_replicas((Route(device, device),))


def training_state(
    model: keras.Model, precision: str = "float32", averaged: bool = True, device: str = MODEL
):
    replicas = replicas_on(device)
    with replicas.scope():
        return TrainingState(model, make_optimizer(0.01, precision), averaged, replicas)


def save_checkpoint(run: Path, record: Record, state: TrainingState) -> Path:
    """Write the only checkpoint of a run; return its folder."""
    with Checkpoints(run / "checkpoints", 1, record) as checkpoints:
        return checkpoints.save(state)


def build_toy(precision: str = "float32", device: str = MODEL, seed: int = 0) -> Toy:
    keras.utils.set_random_seed(seed)
    with replicas_on(device).scope():
        return build_toy_for_run("tiny", SYMBOLS, 1, precision=precision)


def features(
    rows: Sequence[tuple[int, int]],
    padded: tuple[int, int] = (8, 24),
    reference: tuple[int, int] = (20, 24),
    seed=0,
) -> dict[str, np.ndarray]:
    """Return TTS_FEATURES of random content that does not depend on the padding.

    `rows` are tokens and frames of each utterance, `padded` of all, and `reference` real and padded
    frames of each reference.
    """
    random = np.random.default_rng(seed)
    batch = {
        "tokens": np.zeros((len(rows), padded[0]), np.int32),
        "mel": np.full((len(rows), padded[1], 80), SILENCE, np.float32),
        "f0_hz": np.zeros((len(rows), padded[1]), np.float32),
        "reference": np.full((len(rows), reference[1], 80), SILENCE, np.float32),
        "token_count": np.array([tokens for tokens, _ in rows], np.int32),
        "frames": np.array([frames for _, frames in rows], np.int32),
        "reference_frames": np.full(len(rows), reference[0], np.int32),
        "language": np.arange(len(rows), dtype=np.int32) % 2,
        "seed": np.array([seed, 7], np.int32),
        "step_frames": np.float32(sum(frames for _, frames in rows)),
        "step_tokens": np.float32(sum(tokens for tokens, _ in rows)),
    }
    for row, (tokens, frames) in enumerate(rows):
        batch["tokens"][row, :tokens] = random.integers(1, SYMBOLS, tokens)
        batch["mel"][row, :frames] = random.normal(-5.5, 2.1, (frames, 80))
        batch["f0_hz"][row, :frames] = random.choice([0.0, 120.0, 180.0], frames)
        batch["reference"][row, : reference[0]] = random.normal(-5.5, 2.1, (reference[0], 80))
    return batch


def check_components(case: unittest.TestCase, model: keras.Model) -> None:
    """Check that each layer with trainable variables is in one component."""
    layers = [layer for part in model.component_layers().values() for layer in part]
    paths = sorted(v.path for layer in layers for v in layer.trainable_variables)
    case.assertEqual(paths, sorted(v.path for v in model.trainable_variables))


def dropout_names(model: keras.Model) -> list[str]:
    """Return the names from which the layers of dropout fold their seeds."""
    layers = model._flatten_layers()
    return [layer.seed_name for layer in layers if hasattr(layer, "seed_name")]


def numpy_of(tree):
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), tree)


def rows_of(batch: dict, rows: slice) -> dict:
    """Return some rows of TTS_FEATURES, as a microbatch of the same step."""
    whole = ("seed", "step_frames", "step_tokens")
    return {name: value if name in whole else value[rows] for name, value in batch.items()}


def on_device(batch: dict, device: str = MODEL) -> dict[str, tf.Tensor]:
    with tf.device(device):
        return {name: tf.identity(value) for name, value in batch.items()}


def take_step(
    step: Step,
    microbatches: Sequence[Sequence[dict]],
    number: int,
    learning_rate: float,
    ema_decay: float,
) -> tf.Tensor:
    """Take a step on microbatches with a batch for each replica; return its outcome."""
    rates = ConstantRates(learning_rate, ema_decay)
    return step([*map(step.hand_over, microbatches)], number, rates)


class FeedOf:
    """The batches of some steps as a feed of the loop that is always ready."""

    is_ready = True

    def __init__(self, steps: Sequence[Sequence[Sequence[dict]]]):
        self._batches: list[tuple[ProducedBatch, ...]] = []
        for microbatches in steps:
            for number, batches in enumerate(microbatches, 1):
                planned = SimpleNamespace(step=None, last=number == len(microbatches))
                self._batches.append(tuple(ProducedBatch(planned, each, None) for each in batches))

    def __next__(self) -> tuple[ProducedBatch, ...]:
        return self._batches.pop(0)


class Finished(NamedTuple):
    code: int
    out: str
    err: str


class Workspace:
    """A folder with a corpus and runs, which are started through the command line in this process.

    The flags are of all runs.
    """

    def __init__(self, folder: Path, flags: Sequence[str] = ()):
        self.folder, self._flags = folder, flags
        self.corpus = folder / "corpus" / "corpus.csv"
        write_corpus(self.corpus.parent, SECONDS)

    @classmethod
    def temporary(cls, add_cleanup: Callable, flags: Sequence[str] = ()) -> "Workspace":
        """Create a workspace in a temporary folder, which `add_cleanup` removes."""
        return cls(temporary_folder(add_cleanup), flags)

    @classmethod
    def with_toy_models(cls, add_cleanup: Callable) -> "Workspace":
        """Create a temporary workspace whose runs train the toy, with references of 0.5 s."""
        models = toy_models()
        models.__enter__()
        add_cleanup(models.__exit__, None, None, None)
        return cls.temporary(add_cleanup, flags=("--reference-seconds", "0.5"))

    def argv(self, name: str, *flags: str) -> list[str]:
        """Return flags for 8 steps in epochs of 3 without observations; `flags` override them.

        Several flags with their values may be one text.
        """
        words = [*self._flags]
        for flag in flags:
            words += flag.split() if flag.startswith("--") else [flag]
        fixed = f"--run {name} --runs-dir {self.folder / 'runs'} --train-data {self.corpus}"
        fixed += f" --simulate-gpus {SIMULATED} --model-size tiny --batch-size 4 --buckets 2"
        fixed += " --validation-fraction 0.07 --validate-every=0 --sample-every=0 --log-every 1"
        fixed += " --max-steps 8 --warmup-steps 2 --checkpoint-every 3 --keep-checkpoints 9"
        if "vocoder" not in words or "--teacher" in words:  # a vocoder alone reads no texts
            fixed += " --text-frontend characters"
        return [*fixed.split(), *words]

    def train(self, name: str, *flags: str) -> Finished:
        return self.main(*self.argv(name, *flags))

    def main(self, *argv: str) -> Finished:
        out, err = io.StringIO(), io.StringIO()
        redirected = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with small_models(), shared_traces(), redirected[0], redirected[1]:
            code = report_errors(lambda: train.main(argv))
        return Finished(code, out.getvalue(), err.getvalue())

    def run_dir(self, name: str) -> Path:
        return self.folder / "runs" / name

    def copy_run(self, run: str, name: str, add_cleanup: Callable) -> Path:
        """Copy a run for a test that changes it; the cleanup removes the copy."""
        add_cleanup(shutil.rmtree, self.run_dir(name))
        return Path(shutil.copytree(self.run_dir(run), self.run_dir(name)))


def assert_same_arrays(left: Path, right: Path) -> None:
    """Check that two checkpoints have the same arrays bit for bit."""
    first, second = dict(arrays_of(left)), dict(arrays_of(right))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name].tobytes() != second[name].tobytes()] == []


def train_in_fork(points: KillPoints, argv: Sequence[str]) -> int:
    """Train the toy in a process of its own that the points end; return its exit code, -9 if it was
    killed.

    One server imports the modules, which takes seconds, and forks each process before TensorFlow
    starts.
    """
    context = multiprocessing.get_context("forkserver")
    # tests.two_devices starts TensorFlow.
    context.set_forkserver_preload(["myxtts.run.page", "fakes.toy"])
    process = context.Process(target=_train_in_fork, args=(points, argv))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _train_in_fork(points: KillPoints, argv: Sequence[str]) -> None:
    with toy_models(), points.active(), contextlib.redirect_stdout(io.StringIO()):
        sys.exit(report_errors(lambda: train.main(argv)))


class WholeRun(NamedTuple):
    workspace: Workspace
    flags: tuple[str, ...]
    finished: Finished

    @property
    def folder(self) -> Path:
        return self.workspace.run_dir("whole")


@cache
def whole_run() -> WholeRun:
    """Train the network once for all tests of a process, in 20 s; the run is named `whole`. Change
    only copies of it.

    It has 8 steps, checkpoints after 5 and 8, validation and samples after 4 and 8, and 3 of 13
    utterances held out.
    """
    workspace = Workspace(temporary_folder(atexit.register))
    flags = "--validation-fraction 0.25 --ode-steps 2 --data-gpu 0 --model-gpu 1"
    flags += " --validate-every 4 --sample-every 4 --checkpoint-every 5 --keep-checkpoints 2"
    flags = tuple(flags.split())
    # On a fast machine, some pauses are not worth a word.
    with mock.patch("myxtts.report.reporter.MIN_SHOWN_PAUSE_S", 0.0):
        return WholeRun(workspace, flags, workspace.train("whole", *flags))


LOAD_NETWORK = loading.load_network


@cache
def cached_network(checkpoint: Path, device: str) -> XTTS:
    """Load the network of a checkpoint once for all tests of a process, which takes 4 s."""
    with small_models():
        return LOAD_NETWORK(run_at(checkpoint), device, "tts")


def run_at(checkpoint: Path) -> TrainedRun:
    return TrainedRun(checkpoint.parents[1], Checkpoint.read(checkpoint))


@contextlib.contextmanager
def cached_networks() -> Iterator[None]:
    """Let voices load their networks with `cached_network`, and share the traces of producers."""

    def load_network(run, device, task, precision="float32"):
        if (task, precision) == ("tts", "float32"):
            run.check_task(task)
            return cached_network(run.checkpoint.path, device)
        return LOAD_NETWORK(run, device, task, precision)

    with mock.patch.object(loading, "load_network", load_network), shared_traces():
        yield


def arrays_of(checkpoint: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every array of a checkpoint by group and name."""
    read = Checkpoint.read(checkpoint)
    for group in read.groups:
        arrays = read.arrays(group)
        yield from ((f"{group}/{name}", arrays[name]) for name in sorted(arrays))


def alignment_rows(seed, padded_frames, padded_tokens, ties=False):
    """Return 16 rows of scores, tokens and frames: 4 with one path, an empty and a full one."""
    random = np.random.default_rng(seed)
    token_count = random.integers(1, padded_tokens + 1, 16).astype(np.int32)
    frames = random.integers(token_count, padded_frames + 1).astype(np.int32)
    frames[1:5] = token_count[1:5]
    token_count[15] = frames[15] = 0
    token_count[0], frames[0] = padded_tokens, padded_frames
    shape = (16, padded_frames, padded_tokens)
    score = -random.integers(0, 3, shape) if ties else random.normal(-100.0, 30.0, shape)
    return score.astype(np.float32), token_count, frames


def utterance(name: str, tokens: np.ndarray, path: np.ndarray) -> Utterance:
    mel = np.full((len(path), 80), SILENCE, np.float32)
    return Utterance(name, "a a", 0, 0, tokens, np.zeros(0, np.float32), mel, mel, path)
