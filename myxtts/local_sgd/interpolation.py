"""What merged weights are worth on held-out utterances: the parts, their mean, and what lies on the line between."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from myxtts.batch import TTS_FEATURES, first_rows
from myxtts.config.schema import Config, PlacementConfig
from myxtts.data.batch_plan import bucket_bounds
from myxtts.data.dataset import Corpus, make_plan
from myxtts.data.manifest import Manifest
from myxtts.data.pipeline import Pipeline
from myxtts.data.plan_iterator import Position
from myxtts.evaluation.acoustic_metrics import Sound, compare
from myxtts.local_sgd.averaging import weighted_mean
from myxtts.local_sgd.merge_inputs import MergeInput
from myxtts.models.xtts import SynthesisOptions
from myxtts.placement import devices
from myxtts.placement.routes import Route, plan_routes
from myxtts.tasks.registry import task_of
from myxtts.tasks.tts_samples import synthesis_options
from myxtts.training.load_model import load_model
from myxtts.training.select_checkpoint import vocabulary_of
from myxtts.training.validation import Validation

PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_SPOKEN = 16
# A mean that is worse by a smaller share than this is as good as the part: three merges of voices were worse by 0.06,
# 0.14 and 0.23 % on 16 utterances, and the best of several parts is the best by chance, too.
CHANCE = 0.01

Shares = tuple[float, ...]  # how much of each part is in a mean


class Figure(NamedTuple):
    """What a task is judged by, less being better: its key, its name and unit, and the factor to that unit."""

    key: str
    name: str
    factor: float


FIGURES = {
    "tts": Figure("mel_cepstral_distortion", "mel-cepstral distortion, dB", 1.0),
    "asr": Figure("character_error_rate", "character error rate, %", 100.0),
}


class Measured(NamedTuple):
    """The task's figure and the loss of some weights, of which the first decides; infinite where not finite."""

    figure: float
    loss: float


@dataclass(frozen=True)
class InterpolationLine:
    """The parts, their mean and the points between.

    Attributes:
        names: of the parts.
        merged: shares of the mean.
        ends: shares of where the line begins and ends.
        measured: by shares.
        figure: of the task.
        note: what was measured on.
    """

    names: Sequence[str]
    merged: Shares
    ends: tuple[Shares, Shares]
    measured: Mapping[Shares, Measured]
    figure: Figure
    note: str

    @property
    def best(self) -> int:
        """Place of the best part."""
        return min(range(len(self.names)), key=lambda place: self.measured[only(place, len(self.names))])

    @property
    def better(self) -> int | None:
        """Place of the best part where it is better than the mean, and by more than chance."""
        best, merged = self.measured[only(self.best, len(self.names))], self.measured[self.merged]
        pair = (best.loss, merged.loss) if best.figure == merged.figure else (best.figure, merged.figure)
        return self.best if pair[1] > pair[0] + CHANCE * abs(pair[0]) else None

    def verdict(self) -> str:
        """In words."""
        best, merged = self.measured[only(self.best, len(self.names))], self.measured[self.merged]
        by_loss = best.figure == merged.figure
        name = f"loss, as the {self.figure.name.partition(',')[0]} is the same" if by_loss else self.figure.name
        mean, part = (self._shown(one)[by_loss] for one in (merged, best))
        found = f"({mean} against {part}; {name})"
        if self.better is None:
            return f"the merged weights are as good as those of {self.names[self.best]} {found}"
        return f"the merged weights are worse than those of {self.names[self.best]}, which are kept instead {found}"

    def table(self) -> str:
        """Markdown, in the order of the line."""
        head = f"| on the line | weights | {self.figure.name} | loss |"
        lines = [head, "|---|---|---|---|"]
        for shares, one in sorted(self.measured.items(), key=lambda item: self._place(item[0])):
            place = self._place(shares)
            figure, loss = self._shown(one)
            on_line = "–" if place < 0 else f"{place:.4g}"
            lines.append(f"| {on_line} | {' = '.join(self._named(shares))} | {figure} | {loss} |")
        return "\n".join([*lines, "", f"- {self.note}", ""])

    def _place(self, shares: Shares) -> float:
        """On the line, from 0 to 1; -1 for what is beside it."""
        begin, end = map(np.array, self.ends)
        way, gone = end - begin, np.array(shares) - begin
        place = float(gone @ way / (way @ way)) if way.any() else 0.0
        return place if np.allclose(begin + place * way, shares) else -1.0

    def _named(self, shares: Shares) -> Iterator[str]:
        yield from (name for place, name in enumerate(self.names) if shares == only(place, len(self.names)))
        if shares == self.merged:
            yield "merged"

    def _shown(self, one: Measured) -> tuple[str, str]:
        return f"{self.figure.factor * one.figure:.3f}", f"{one.loss:.4f}"


def only(place: int, parts: int) -> Shares:
    """Those of one part alone."""
    return tuple(float(place == other) for other in range(parts))


def between(begin: Shares, end: Shares, place: float) -> Shares:
    return tuple((1.0 - place) * one + place * other for one, other in zip(begin, end, strict=True))


def measure(
    parts: Sequence[MergeInput], merged: Shares, held_out: Manifest, config: Config, folder: Path
) -> InterpolationLine:
    """Measure on GPU 0 or, without one, on the CPU; no weights twice.

    The line goes from the first part to the second where there are two, else from the best one to the mean
    (Goodfellow et al. 2015, "Qualitatively characterizing neural network optimization problems").

    Args:
        merged: shares of the mean.
        held_out: utterances with the tables of the parts.
        config: of the merged run.
        folder: of the run.
    """
    placement = plan_routes(PlacementConfig(), devices.gpu_count())
    devices.configure(placement)
    evaluate = evaluation(parts, held_out, config, placement.routes[0], folder)
    ones = [only(place, len(parts)) for place in range(len(parts))]
    measured = {shares: evaluate(shares) for shares in (*ones, merged)}
    ends = (ones[0], ones[1]) if len(parts) == 2 else (min(ones, key=measured.__getitem__), merged)
    for shares in (between(*ends, place) for place in PLACES):
        if not any(np.allclose(shares, known, atol=0.01) for known in measured):
            measured[shares] = evaluate(shares)
    figure = FIGURES[config.model.task]
    spoken = min(MOST_SPOKEN, len(held_out))
    note = f"{len(held_out)} utterances of {config.data.val_data}, with the weights that a run is used with" + (
        f"; the distortion is that of {spoken} spoken mels along the best warping path" * (config.model.task == "tts")
    )
    return InterpolationLine([str(part.checkpoint) for part in parts], merged, ends, measured, figure, note)


def evaluation(
    parts: Sequence[MergeInput], held_out: Manifest, config: Config, route: Route, folder: Path
) -> Callable[[Shares], Measured]:
    """What measures a mean of the parts, with one network for all."""
    task, device, metadata = task_of(config), route.model, parts[0].metadata
    network = load_model(parts[0].checkpoint, metadata, device, config.model.task)
    # One bucket: what is traced for a shape is traced once, and the first batches hold utterances of all lengths.
    plan = make_plan(held_out, bucket_bounds(held_out.samples, 1), config)
    data = config.data.model_copy(update={"data_service": None, "cache_dataset": False})
    extractor = task.extractor(config, training=False)
    pipeline = Pipeline(
        Corpus(held_out, plan), [route], extractor, data, seed=config.training.seed, cache_folder=folder
    )
    validation = Validation(
        network,
        lambda: pipeline.open_feed(Position(), epochs=1, mean_over="epoch"),
        task.metric(vocabulary_of(metadata)) or partial(Distortion, network, synthesis_options(config.model)),
    )
    variables, key = {v.path: v.value for v in network.variables}, FIGURES[config.model.task].key

    def evaluate(shares: Shares) -> Measured:
        taken = [(part.used, share) for part, share in zip(parts, shares, strict=True) if share]
        for name, array in weighted_mean(*zip(*taken, strict=True)):
            variables[name].assign(array)
        figures = validation(Loaded(device))
        return Measured(*(figures[name] if math.isfinite(figures[name]) else math.inf for name in (key, "loss")))

    return evaluate


class Loaded(NamedTuple):
    """What a validation asks of a run's state, where the weights in the model are those to measure."""

    device: str

    def averaged_weights(self) -> nullcontext:
        return nullcontext()


class Distortion:
    """Mel-cepstral distortion of what a voice says of the first utterances, each in its own reference's voice.

    It is of the network's mels: what a vocoder does to them is the same for all weights.
    """

    def __init__(self, network: keras.Model, options: SynthesisOptions):
        self._network, self._manner = network, options
        self._distances_db: list[float] = []

    def update(self, batch: dict, outputs: dict) -> None:
        rows = min(int(np.count_nonzero(batch["frames"])), MOST_SPOKEN - len(self._distances_db))
        if rows > 0:
            own = first_rows(batch, TTS_FEATURES, rows)
            names = ("tokens", "token_count", "language", "reference", "reference_frames")
            spoken = self._network.synthesize(*(own[name] for name in names), self._manner)[:2]
            columns = [value.numpy() for value in (own["mel"], own["frames"], *spoken)]
            self._distances_db += [distortion_db(a[:n], b[:m]) for a, n, b, m in zip(*columns, strict=True)]

    def result(self) -> dict[str, float]:
        return {"mel_cepstral_distortion": float(np.mean(self._distances_db))}


def distortion_db(recorded: np.ndarray, spoken: np.ndarray) -> float:
    """Of two log-mels, float32 [T, 80] and [U, 80]; see `compare`. Infinite where the second is not finite."""
    if not np.isfinite(spoken).all():
        return math.inf
    sounds = [Sound(mel, np.zeros(len(mel), np.float32), np.zeros(len(mel), bool)) for mel in (recorded, spoken)]
    return compare(*sounds).distortion_db
