"""Speak held-out sentences of a voice with one part after the other predicted instead of recorded,
and rate each rung: where the rating falls most, most is to be won.

    python benchmarks/ladder.py --run runs/human
    python benchmarks/ladder.py --run runs/human --set variety=0.5 ode_steps=2,guidance=1

Differences are of pairs of the same sentence, with their t: of a rung to the one above it, and of
`--set`, other options of synthesis, to the voice as it is. DNSMOS is that of `myxtts evaluate`, of
one window; DistillMOS is NaN unless its package is installed (`pip install distillmos`, with
PyTorch). `variance` is that of the bands over time, as a ratio to the recordings', the median of
the bands: a smooth mel has less. `spread` is the same of the standard deviation of log-F0. The last
line has the pitch of voiced tokens at recorded durations, without the mean of each sentence.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.config.parser import bounded

WINDOW_S = 9.02  # that DNSMOS hears
JUDGES = "P.808", "overall", "DistillMOS"
LOUD_NEPERS = 5.0  # below the loudest frame


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--run", type=Path, required=True)
    add("--vocoder", help="a run; that of the run by default")
    add("--utterances", type=bounded(int, 2), default=50)
    add("--set", nargs="*", default=[], metavar="NAME=NUMBER,...", help="further options")
    options = parser.parse_args()
    ladder = Ladder(options)
    for rows, batch in ladder.batches(options.utterances):
        ladder.climb(rows, batch)
    names = " | ".join(f"{judge} | difference (t)" for judge in JUDGES)
    print(f"| rung | {names} | variance | spread |")
    print("|---|" + "---:|---|" * len(JUDGES) + "---:|---:|")
    recorded = shape_of(ladder.waves["recordings"])
    above = None
    for name, waves in ladder.waves.items():
        ratings = np.array([rated(wave) for wave in waves])
        cells = [
            f"{ratings[:, judge].mean():.3f} | {pairs(above, ratings, judge)}"
            for judge in (0, 1, 2)
        ]
        variance, spread = (
            np.median(a / b) for a, b in zip(shape_of(waves), recorded, strict=True)
        )
        print(f"| {name} | {' | '.join(cells)} | {variance:.2f} | {spread:.2f} |", flush=True)
        if name not in options.set:
            above = ratings
    true, own = np.concatenate(ladder.pitches, axis=1)
    error = np.sqrt(np.mean(np.square(true - own)))
    r = np.corrcoef(true, own)[0, 1]
    print(f"\npitch of tokens: r {r:.3f}, RMSE of log F0 {error:.3f}")
    return 0


class Ladder:
    """Makes the waves of all rungs, and pairs of token pitches, recorded and predicted."""

    def __init__(self, options: argparse.Namespace):
        from myxtts.checkpoints.trained_run import TrainedRun
        from myxtts.placement.devices import configure_default
        from myxtts.tasks import loading
        from myxtts.tasks.evaluation.held_out import load_held_out
        from myxtts.tasks.tts.task import synthesis_options
        from myxtts.tasks.tts.teacher import TeacherModel

        self.run = TrainedRun.open_for_use(options.run)
        self.route = configure_default().routes[0]
        device = self.route.model
        self.network = loading.load_network(self.run, device, "tts")
        self.vocoder = loading.load_vocoder(self.run.select_vocoder(options.vocoder), device)
        self.corpus = load_held_out(self.run, options.run)
        own = synthesis_options(self.corpus.config.model)
        self.teacher = TeacherModel(self.network, own.ode_steps, own.guidance)
        self.spoken = {"predicted durations, variety 0": replace(own, variety=0.0), "voice": own}
        for text in options.set:
            given = dict(pair.split("=") for pair in text.split(","))
            values = {name: type(getattr(own, name))(float(given[name])) for name in given}
            self.spoken[text] = replace(own, **values)
        self.waves: dict[str, list[np.ndarray]] = {}
        self.pitches: list[np.ndarray] = []

    def batches(self, count: int) -> Iterator[tuple[Sequence[int], dict]]:
        """Yield rows of the manifest with their features on the model device."""
        import tensorflow as tf

        from myxtts.batches import corpora
        from myxtts.batches.pipeline import held_out_pipeline
        from myxtts.batches.plan import Pass
        from myxtts.devicefeed.handover import HandOver
        from myxtts.tasks.registry import task_of

        config, route = self.corpus.config, self.route
        bucket = corpora.single_bucket_corpus(self.corpus.manifest, config)
        extractor = task_of(config).extractor(config, training=False)
        pipeline = held_out_pipeline(bucket, route, extractor, config, self.run.path)
        hand_over = HandOver(self.network.BATCH_FIELDS, [route.model])
        with pipeline.open_feed(Pass(epochs=1)) as feed, tf.device(route.model):
            for ((planned, features, _),) in feed:
                (batch,) = hand_over([features])
                yield planned.rows, batch
                count -= len(planned.rows)
                if count <= 0:
                    return

    # Each rung makes mels with one part more of its own instead of the recording's, and one vocoder
    # makes all waves.
    def climb(self, rows: Sequence[int], batch: dict[str, Any]) -> None:
        """Add the waves of a batch to all rungs."""
        from myxtts.corpus.sound import read_row
        from myxtts.tasks.tts.network import TEXT_INPUTS
        from myxtts.tasks.tts.prosody import pitch_hz

        network, config = self.network, self.corpus.config
        for row in rows:
            wave = read_row(self.corpus.manifest, row, config.data.loudness)
            self.waves.setdefault("recordings", []).append(wave)
        frames = batch["frames"]
        self.add("copies", len(rows), batch["mel"], frames, recorded=True)
        self.add("copies, projected as a voice's mel", len(rows), batch["mel"], frames)
        speaker, encoded, mean, mask = network.encode_texts(batch)
        path = network.align(batch)
        recorded, durations = network.recorded_prosody(batch, path, speaker)
        predicted = network.predict_prosody(encoded, speaker, mask).average()
        for name, prosody in (
            ("recorded prosody", recorded),
            ("predicted pitch, energy", predicted),
        ):
            mel = self.teacher.mel_of(batch, speaker, encoded, mean, prosody, durations, path)
            self.add(name, len(rows), mel, frames)
        for name, options in self.spoken.items():
            mel, lengths, _ = network.synthesize(*(batch[key] for key in TEXT_INPUTS), options)
            self.add(name, len(rows), mel, lengths)
        is_voiced = (recorded.voiced.numpy() > 0.5) & (mask.numpy()[:, :, 0] > 0)
        log_hz = np.log(pitch_hz(np.stack([recorded.pitch, predicted.pitch])))
        for row, voiced in enumerate(is_voiced[: len(rows)]):
            both = log_hz[:, row, voiced]
            self.pitches.append(both - both.mean(axis=1, keepdims=True))

    def add(self, name: str, count: int, mels, frames, **options) -> None:
        """Vocode the first rows of a batch, without those that fill it up."""
        from myxtts.audio.vocoder import vocode

        waves = vocode(self.vocoder, mels[:count], frames[:count], **options)
        self.waves.setdefault(name, []).extend(waves)


def rated(wave: np.ndarray) -> tuple[float, float, float]:
    """Return the ratings of JUDGES.

    DNSMOS hears one window, the beginning, or the wave repeated: `evaluate` hears ten of most.
    """
    import soxr

    from myxtts.audio.format import sample_rate_hz
    from myxtts.tasks.evaluation.metrics import dnsmos

    p808, overall, _ = dnsmos(np.resize(wave, int(WINDOW_S * sample_rate_hz()))).values()
    at_16_khz = soxr.resample(wave, sample_rate_hz(), 16000)
    return p808, overall, distillmos()(at_16_khz.astype(np.float32))


@cache
def distillmos():
    """Return what rates a wave at 16 kHz."""
    try:
        import torch
        from distillmos import ConvTransformerSQAModel
    except ImportError:
        return lambda wave: float("nan")
    judge = ConvTransformerSQAModel().eval()

    def rate(wave: np.ndarray) -> float:
        with torch.no_grad():
            return float(judge(torch.from_numpy(wave[None]))[0, 0])

    return rate


def pairs(above: np.ndarray | None, ratings: np.ndarray, judge: int) -> str:
    """Return the mean of the paired differences, and its t."""
    if above is None:
        return ""
    difference = ratings[:, judge] - above[:, judge]
    t = difference.mean() / (difference.std(ddof=1) / len(difference) ** 0.5 + 1e-9)
    return f"{difference.mean():+.3f} ({t:+.1f})"


def shape_of(waves: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance of each band over loud frames, and the spread of log-F0 of each wave."""
    from myxtts.tasks.evaluation.speech import acoustic_features

    features = acoustic_features(waves, "/CPU:0")
    mels = np.concatenate([of.mel for of in features]).astype(np.float64)
    level = mels.mean(axis=1)
    spread = [np.log(of.f0_hz[of.voiced]).std() for of in features]
    return mels[level > level.max() - LOUD_NEPERS].var(axis=0), np.array(spread)


if __name__ == "__main__":
    sys.exit(report_errors(main))
