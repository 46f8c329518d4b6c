"""A run of the smallest CTC network with its initial weights, which transcribes any wave."""

import atexit
import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import keras

from myxtts.batches.corpora import load_corpora
from myxtts.checkpoints.files import digest_of
from myxtts.config.schema import Config, DataConfig, ModelConfig
from myxtts.run.setup import run_record
from myxtts.tasks.asr.network import SIZES, ASRSize
from myxtts.tasks.asr.transcriber import Transcriber
from myxtts.tasks.registry import length_rule_of, task_of
from tests.fixtures import temporary_folder
from tests.tiny import Workspace, replicas_on, save_checkpoint, training_state
from tests.two_devices import MODEL

SMALLEST = ASRSize(channels=16, blocks=1, memory=4, order=4)


def small_asr_models() -> contextlib.AbstractContextManager:
    """Return a context in which the size `tiny` of CTC networks is SMALLEST, also for runs."""
    return mock.patch.dict(SIZES, tiny=SMALLEST)


class ASRRun(NamedTuple):
    workspace: Workspace
    folder: Path


@cache
def asr_run() -> ASRRun:
    """Create the run once for all tests of a process; 3 of 13 utterances are held out."""
    workspace = Workspace(temporary_folder(atexit.register))
    run = workspace.run_dir("asr")
    corpus, form = str(workspace.corpus), "characters"
    data = DataConfig(train_data=corpus, text_frontend=form, validation_fraction=0.25)
    config = Config(data=data, model=ModelConfig(task="asr", model_size="tiny"))
    corpus, _, vocabulary = load_corpora(config, run, length_rule_of(config))
    keras.utils.set_random_seed(3)
    with small_asr_models(), replicas_on(MODEL).scope():
        network = task_of(config).build(config, vocabulary)
    network.out.kernel.assign(20.0 * network.out.kernel)  # confident predictions of several symbols
    digest = digest_of({v.path: v.numpy() for v in network.variables})
    record = run_record(config, corpus, vocabulary, start=digest)
    save_checkpoint(run, record, training_state(network))
    return ASRRun(workspace, run)


def cached_transcriber(run: Path, beam_width: int = 0) -> Transcriber:
    """Load and trace a transcriber once for all tests of a process."""
    return _loaded(run, beam_width)


@cache
def _loaded(run: Path, beam_width: int) -> Transcriber:
    with small_asr_models():
        return Transcriber(run, MODEL, beam_width=beam_width)


@contextlib.contextmanager
def cached_transcribers(*modules: str) -> Iterator[None]:
    """Return a context in which these modules create transcribers by `cached_transcriber`."""

    def load(run, device, checkpoint=None, width=0):
        return cached_transcriber(run, width)

    with contextlib.ExitStack() as patched:
        for module in modules:
            patched.enter_context(mock.patch(f"{module}.Transcriber", load))
        yield
