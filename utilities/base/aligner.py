"""Let the aligner of a voice hear rooms, echo, music and noise, for voices that start from it.

    python utilities/base/aligner.py runs/base data/base runs/base_rooms

The voice aligns each recording of the corpus as it is. Its aligner learns to find the same path in
a degraded copy, another one each time; the other weights stay. The output is a run with these
weights, which `myxtts publish` takes.
"""

import argparse
import sys
from collections.abc import Iterable
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import tensorflow as tf

from myxtts.audio.format import sample_rate_hz
from myxtts.audio.mel import log_mel
from myxtts.base.console import report_errors
from myxtts.base.files import new_folder
from myxtts.base.portable_ops import fold_in, stateless_uniform
from myxtts.batches.contract import TTS_INPUTS
from myxtts.batches.corpora import load_corpora
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass
from myxtts.checkpoints.files import write_checkpoint
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.flags import with_values
from myxtts.config.parser import bounded
from myxtts.config.schema import AugmentationConfig
from myxtts.devicefeed.contract import FeatureExtractor
from myxtts.devicefeed.routes import Route
from myxtts.extras.export.export import check_new_folder
from myxtts.placement.devices import configure_default
from myxtts.tasks.augmentation import augment
from myxtts.tasks.features import tts_features, vtlp_warp
from myxtts.tasks.layers import normalised_mel
from myxtts.tasks.loading import load_network
from myxtts.tasks.registry import length_rule_of
from myxtts.tasks.tts.aligner import Aligner
from myxtts.tasks.tts.alignment import path_losses, sum_over_paths
from myxtts.tasks.tts.alignment_choice import compiled, search_of
from myxtts.tasks.tts.contract import TTS_FEATURES
from myxtts.tasks.tts.network import XTTS, build_xtts
from utilities.human.degrade import ECHO_GAIN, ECHO_S, ECHOED, level, music

ROOM = AugmentationConfig(
    reverb_probability=0.85,
    reverb_max_rt60=0.9,
    equaliser_probability=0.5,
    band_limit_probability=0.15,
)
NOISE = AugmentationConfig(noise_probability=0.85, noise_min_snr_db=3, noise_max_snr_db=28)
WITH_MUSIC, MUSIC_DB = 0.6, (6.0, 20.0)
TUNES, TUNE_S = 60, 12
AS_IS = 0.15  # of the batches: the aligner goes on hearing clean speech too
WARP = 0.15  # of the frequencies, see `vtlp_warp`
LEARNING_RATE, FINAL_LR_RATIO = 1e-3, 0.02
REPORTED = 250  # steps that a line has the means of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="run of a voice, or a published voice")
    parser.add_argument("corpus", type=Path, help="as --train-data takes it")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=bounded(int, 1), default=4500)
    options = parser.parse_args()
    check_new_folder(options.out)
    run = TrainedRun.open_for_use(options.run)
    route = configure_default().routes[0]
    aligned_by = load_network(run, route.model, "tts")
    network = with_contexts(run, aligned_by, route.model)
    aligned_by.alignment_search = search_of("xla", route.model)
    with degraded_batches(run, options.corpus, route) as batches:
        learn(batches, network.aligner, aligned_by, options.steps)
    with new_folder(options.out) as folder:
        taught = RunFolder(folder)
        taught.checkpoints.mkdir()
        taught.config.write_bytes(RunFolder(run.path).config.read_bytes())
        weights = ((v.path, v.value.numpy()) for v in network.variables)
        target = taught.checkpoints / run.checkpoint.path.name
        write_checkpoint(target, [(run.record.weights_group, weights)], run.record)
    return 0


def with_contexts(run: TrainedRun, network: XTTS, device: str) -> XTTS:
    """Return a copy of a run's network, in whose aligner `Context` is added if it has none."""
    size, vocabulary = run.record.settings.model.model_size, run.record.vocabulary
    symbols, languages = len(vocabulary.symbols), len(vocabulary.languages)
    with tf.device(device):
        copy = build_xtts(size, symbols, languages, contexts=True)
    weights = {v.path: v.value for v in network.variables}
    for variable in copy.variables:
        if variable.path in weights:
            variable.assign(weights[variable.path])
    return copy


@contextmanager
def degraded_batches(run: TrainedRun, corpus_path: Path, route: Route):
    """Yield an iterator without end over batches of a corpus, with the settings of a run.

    They have TTS_FEATURES and `heard`, see `features`.
    """
    values = {"train_data": str(corpus_path), "exclude": None, "cache_dataset": False}
    config = with_values(run.record.settings, values)
    known = run.record.inherited_vocabulary
    tunes = tf.constant(np.stack([tune(seed) for seed in range(TUNES)]))
    fields = TTS_FEATURES | {"heard": TTS_FEATURES["mel"]}
    extractor = FeatureExtractor(TTS_INPUTS, fields, partial(features, tunes=tunes))
    with TemporaryDirectory() as folder:
        corpus, *_ = load_corpora(config, Path(folder), length_rule_of(config), known)
        options: dict[str, Any] = {"seed": config.training.seed, "cache_folder": Path(folder)}
        pipeline = Pipeline(corpus, [route], extractor, config.data, **options)
        with pipeline.open_feed(Pass()) as feed:
            yield (batch for ((_, batch, _),) in feed)


# The path of the recording is what the aligner learns to say of its degraded copy, frame by frame.
# The forward-sum loss, with which a voice trains it on, is added, so that what it says stays what
# this loss needs.
def learn(batches: Iterable[dict], aligner: Aligner, aligned_by: XTTS, steps: int) -> None:
    """Train an aligner on what batches have as `heard`, aligned by another network as `mel`."""
    variables = [v.value for v in aligner.variables]  # `Context` too, which training leaves
    rate = tf.keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps, FINAL_LR_RATIO)
    optimizer = tf.keras.optimizers.Adam(rate, beta_2=0.98)
    optimizer.build(aligner.variables)

    @tf.function(reduce_retracing=True, autograph=False)
    def step(batch):
        path = aligned_by.align(batch)
        real = tf.cast(path >= 0, tf.float32)
        mel, tokens, count = normalised_mel(batch["heard"]), batch["tokens"], batch["token_count"]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            scores, _ = aligner(mel, real, tokens, count)
            of_path = tf.gather(scores, tf.maximum(path, 0), batch_dims=2)
            sums = path_losses(scores, real, count, compiled(sum_over_paths))
            losses = tf.stack([-tf.reduce_sum(of_path * real), tf.reduce_sum(sums)])
            losses /= tf.reduce_sum(real)
            loss = tf.reduce_sum(losses)
        optimizer.apply(tape.gradient(loss, variables), aligner.variables)
        return losses

    means = np.zeros(2)
    for number, batch in enumerate(islice(batches, steps), 1):
        means += (step(batch).numpy() - means) / (1 + (number - 1) % REPORTED)
        if number % REPORTED == 0:
            print(f"step {number:6} | path {means[0]:.3f} | sum {means[1]:.3f}", flush=True)


def features(waves: dict, tunes) -> dict:
    """Compute TTS_FEATURES from TTS_INPUTS, and `heard`, the mel of degraded copies."""
    seed, samples = fold_in(waves["seed"], "rooms"), waves["samples"]
    wave = tf.cast(waves["pcm"], tf.float32) / 32768.0
    as_is = stateless_uniform([], fold_in(seed, "as is")) < AS_IS
    wave = tf.cond(as_is, lambda: wave, lambda: worsened(wave, samples, tunes, seed))
    _, filters = vtlp_warp(seed, tf.shape(wave)[0], WARP)
    return tts_features(waves) | {"heard": log_mel(wave, samples, filters)}


def worsened(wave, samples, tunes, seed):
    """Degrade waves, float32 [B, S], as utilities/human/degrade.py does; the same shape."""

    def uniform(name: str, bounds=(0.0, 1.0)):
        return stateless_uniform([tf.shape(wave)[0]], fold_in(seed, name), *bounds)

    wave = augment(wave, samples, fold_in(seed, "room"), ROOM)
    delays = tf.cast(uniform("delay", ECHO_S) * sample_rate_hz(), tf.int32)
    gains = tf.where(uniform("echo") < ECHOED, ECHO_GAIN, 0.0)
    wave = tf.map_fn(echoed, (wave, delays, gains), fn_output_signature=tf.float32)
    number = tf.cast(uniform("tune") * TUNES, tf.int32)
    music_gain = tf.where(uniform("music") < WITH_MUSIC, 10 ** (-uniform("dB", MUSIC_DB) / 20), 0.0)
    energy = tf.reduce_sum(tf.square(wave), 1) / tf.maximum(tf.cast(samples, tf.float32), 1.0)
    samples_in_all = tf.shape(wave)[1]
    again = tf.tile(tf.gather(tunes, number), [1, 1 + samples_in_all // tf.shape(tunes)[1]])
    wave += again[:, :samples_in_all] * (music_gain * energy**0.5)[:, None]
    return augment(wave, samples, fold_in(seed, "noise"), NOISE)


def echoed(row):
    """Add the echoes of utilities/human/degrade.py: a wave [S], a delay in samples, and a gain."""
    wave, delay, gain = row
    length = tf.shape(wave)[0]
    later = (gain**n * tf.pad(wave, [[n * delay, 0]])[:length] for n in (1, 2, 3))
    return tf.add_n([wave, *later])


def tune(seed: int) -> np.ndarray:
    """Make a tune of level 1, float32 [samples]."""
    wave = music(np.random.default_rng(seed), TUNE_S * sample_rate_hz())
    return (wave / level(wave)).astype(np.float32)


if __name__ == "__main__":
    sys.exit(report_errors(main))
