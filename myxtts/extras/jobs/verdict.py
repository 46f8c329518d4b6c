"""Validation of merged weights: whether the mean is as good as the best input of a merge."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from myxtts.batches.corpora import single_bucket_corpus
from myxtts.batches.pipeline import held_out_pipeline
from myxtts.batches.plan import HELD_OUT_PASS
from myxtts.checkpoints.files import MODEL
from myxtts.checkpoints.inherited import open_teacher
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.checkpoints.variables import load_variables
from myxtts.config.schema import Config
from myxtts.config.synthesis import SynthesisOptions
from myxtts.corpus.manifest import Manifest
from myxtts.devicefeed.routes import Route
from myxtts.extras.jobs.mean import weighted_mean, weights_group
from myxtts.placement import devices
from myxtts.run.observation import Validation
from myxtts.run.setup import typical_sizes
from myxtts.tasks import loading
from myxtts.tasks.contract import first_rows
from myxtts.tasks.evaluation.held_out import for_evaluation
from myxtts.tasks.evaluation.metrics import align
from myxtts.tasks.registry import task_of
from myxtts.tasks.tts.contract import TTS_FEATURES
from myxtts.tasks.tts.network import TEXT_INPUTS
from myxtts.tasks.tts.task import synthesis_options
from myxtts.tasks.tts.teacher import teacher_loader

MAX_SYNTHESIZED = 16
# A mean counts as equal to an input if it is worse by less than this fraction: three merges of TTS
# runs were worse by 0.06, 0.14 and 0.23 % on 16 utterances, and the best of several inputs is also
# the best by chance.
TOLERANCE = 0.01

log = logging.getLogger(__name__)


class Criterion(NamedTuple):
    """The metric that decides for a task, by its key in a validation's result; lower is better."""

    key: str
    label: str
    note: str = ""


CRITERIA = {
    "tts": Criterion(
        "mel_cepstral_distortion",
        "mel-cepstral distortion, dB",
        f"; the distortion is of the synthesized mels of the first {MAX_SYNTHESIZED}, after dynamic"
        " time warping",
    ),
    "asr": Criterion("character_error_rate", "character error rate"),
    "vocoder": Criterion(
        "log_mel_error_db", "log-mel error, dB", "; segments in their middle, with their own F0"
    ),
}


class Measurement(NamedTuple):
    """The task's metric, which decides, and the loss of some weights. Infinite where not finite."""

    metric: float
    loss: float


def judge(
    inputs: Sequence[TrainedRun],
    weights: Sequence[float],
    held_out: Manifest,
    config: Config,
    folder: Path,
) -> int | None:
    """Measure the inputs and their mean on GPU 0 or else the CPU, and print the measurements.

    Settings and folder belong to the merged run. Returns the index of an input that is better than
    the mean, if one is.
    """
    route = devices.configure_default().routes[0]
    evaluate = make_evaluator(inputs, held_out, config, route, folder)
    names = [str(source.checkpoint.path) for source in inputs]
    measured = dict(zip(names, map(evaluate, np.eye(len(inputs)).tolist()), strict=True))
    measured["merged"] = evaluate(weights)
    criterion = CRITERIA[config.model.task]
    print(f"| weights | {criterion.label} | loss |\n|---|---|---|")
    for name, (metric, loss) in measured.items():
        print(f"| {name} | {metric:.3f} | {loss:.4f} |")
    utterances = f"{len(held_out)} utterances of {config.data.val_data}"
    print(f"\n- {utterances}, with the weights that inference uses{criterion.note}\n")
    better, sentence = better_input(measured, criterion.label)
    level = logging.INFO if better is None else logging.WARNING
    log.log(level, "verdict        %s", sentence)
    return better


def better_input(measured: Mapping[str, Measurement], label: str) -> tuple[int | None, str]:
    """Return the index of an input that is better than the mean, the last one, and a sentence."""
    *names, _ = measured
    *measurements, mean = measured.values()
    best = measurements.index(min(measurements))
    # Metrics of few utterances may be the same; the loss then decides.
    column = int(mean.metric == measurements[best].metric)
    merged, lowest = mean[column], measurements[best][column]
    pair = mean, measurements[best]
    values = [f"{label} {metric:.3f}, loss {loss:.4f}" for metric, loss in pair]
    found = f"those of {names[best]} ({' against '.join(values)})"
    if merged > lowest + TOLERANCE * abs(lowest):
        return best, f"the merged weights are worse than {found}, which are kept instead"
    return None, f"the merged weights are as good as {found}"


# One network of the first input is built, and the held-out utterances get one pipeline. For each
# set of weights, the mean is loaded into that network and the same validation runs, so that all
# figures are comparable.
def make_evaluator(
    inputs: Sequence[TrainedRun], held_out: Manifest, config: Config, route: Route, folder: Path
) -> Callable[[Sequence[float]], Measurement]:
    """Return a function that measures the mean of the inputs by a weight of each; 0 omits one."""
    task = task_of(config)
    device = route.model
    network = loading.load_network(inputs[0], device, task.name)
    corpus = single_bucket_corpus(held_out, config)
    config = for_evaluation(config)
    extractor = task.extractor(config, False)
    # A vocoder refines its teacher's mels.
    if extractor.features.keys() != network.BATCH_FIELDS.keys():
        teacher = open_teacher(config.teacher.teacher, inputs[0])
        load_teacher = teacher_loader(teacher, config, typical_sizes(corpus.plan))
        extractor = task.extractor(config, False, load_teacher)
    pipeline = held_out_pipeline(corpus, route, extractor, config, folder)
    make_metric = task.metric(inputs[0].record.vocabulary)
    if make_metric is None:
        make_metric = partial(MelDistortion, network, synthesis_options(config.model))
    validation = Validation(network, device, lambda: pipeline.open_feed(HELD_OUT_PASS), make_metric)
    variables = {variable.path: variable.value for variable in network.variables}
    names = (CRITERIA[task.name].key, "loss")

    def evaluate(weights: Sequence[float]) -> Measurement:
        pairs = zip(map(weights_group, inputs), weights, strict=True)
        groups, used = zip(*(pair for pair in pairs if pair[1]), strict=True)
        mean = dict(weighted_mean(groups, used))
        load_variables(inputs[0].checkpoint, {MODEL: variables}, {MODEL: mean})
        results = validation.evaluate()
        metric_and_loss = np.array([results[name] for name in names])
        metric_and_loss[~np.isfinite(metric_and_loss)] = math.inf
        return Measurement._make(metric_and_loss.tolist())

    return evaluate


class MelDistortion:
    """Mel-cepstral distortion of the first utterances' synthesized mels, each with its reference.

    The mels are compared without a vocoder, which would affect all weights equally; see
    `tasks.base.Metric`.
    """

    def __init__(self, network: keras.Model, options: SynthesisOptions):
        self._network = network
        self._options = options
        self._distortions_db: list[float] = []

    @staticmethod
    def measure(batch: dict, outputs: dict) -> dict:
        return {}

    def update(self, batch: dict, measured: dict) -> None:
        rows = int(np.count_nonzero(batch["frames"]))
        rows = min(rows, MAX_SYNTHESIZED - len(self._distortions_db))
        if rows <= 0:
            return
        features = first_rows(batch, TTS_FEATURES, rows)
        mels, frames, _ = self._network.synthesize(
            *(features[name] for name in TEXT_INPUTS), self._options
        )
        recordings = zip(features["mel"].numpy(), features["frames"].numpy(), strict=True)
        spoken = zip(mels.numpy(), frames.numpy(), strict=True)
        for (recorded, length), (mel, mel_length) in zip(recordings, spoken, strict=True):
            self._distortions_db.append(distortion_db(recorded[:length], mel[:mel_length]))

    def result(self) -> dict[str, float]:
        return {"mel_cepstral_distortion": float(np.mean(self._distortions_db))}


def distortion_db(recorded: np.ndarray, synthesized: np.ndarray) -> float:
    """Return the distortion of two log-mels, float32 [T, 80] and [U, 80]; inf if not finite."""
    if not np.isfinite(synthesized).all():
        return math.inf
    _, pair_distortion_db = align(recorded, synthesized)
    return float(pair_distortion_db.mean())
