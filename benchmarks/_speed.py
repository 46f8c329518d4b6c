"""How fast a run's network trains and speaks here: what benchmarks/voice.py asks for. Run by it, in one process."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import Config, Placement
from myxtts.data.dataset import Corpus
from myxtts.data.pipeline import Pipeline
from myxtts.data.plan_iterator import Position
from myxtts.data.producer import Delivery
from myxtts.evaluation.held_out import Utterance, load_again, read_utterances
from myxtts.evaluation.speech import speak
from myxtts.placement import devices
from myxtts.placement.replicas import make_replicas
from myxtts.placement.routes import Placement as Devices
from myxtts.placement.routes import Route, plan_routes
from myxtts.profiling.flops import matmul_rate, step_flops
from myxtts.run import build_state
from myxtts.training.checkpoint_files import read_about
from myxtts.training.load_model import load_network
from myxtts.training.select_checkpoint import choose_checkpoint, tables_of
from myxtts.training.step import Step
from myxtts.training.task import task_of
from myxtts.training.tts_samples import manner_of


def speed_of(run: Path, utterances: int, iterations: int, steps: int) -> dict[str, float]:
    """Real-time factors of held-out texts, and what the training step makes of the machine.

    Args:
        utterances: texts that are spoken.
        iterations: of Griffin-Lim.
        steps: of training that are timed.
    """
    placement = plan_routes(Placement(), devices.gpu_count())
    devices.configure(placement)
    route = placement.routes[0]
    checkpoint = choose_checkpoint(run)
    about = read_about(checkpoint)
    config, corpus, held_out = load_again(checkpoint, about, run)
    with tf.device(route.model):
        rate = matmul_rate()
    figures = step_speed(config, corpus, about, placement, run, steps)
    figures |= {"rate_share": figures["step_flops_per_s"] / rate, "matmul_gflops": rate / 1e9}
    return figures | speaking_speed(config, held_out, checkpoint, about, route, run, utterances, iterations)


def step_speed(
    config: Config, corpus: Corpus, about: dict, placement: Devices, run: Path, steps: int
) -> dict[str, float]:
    """Time and matrix products of the training step on one batch of a middle length, taken again and again."""
    state = build_state(config, tables_of(about), make_replicas(placement.routes))
    training = config.training
    step = Step(
        state, training.gradient_clip, 1, config.data.enable_static_shapes, compile_xla=training.compile == "xla"
    )
    batch = middle_batch(config, corpus, placement.routes[0], run).batch
    times_s = []
    for number in range(1, steps + 3):
        started_s = time.perf_counter()
        step([[batch]], number, 1e-6, 0.999).numpy()
        times_s.append(time.perf_counter() - started_s)
    step_s = median(times_s[2:])  # the first two trace and warm up
    flops = step_flops(state, batch)
    return {"step_gflop": flops / 1e9, "step_s": step_s, "step_flops_per_s": flops / step_s}


def middle_batch(config: Config, corpus: Corpus, route: Route, run: Path) -> Delivery:
    """The first batch of the bucket in the middle."""
    middle = len(corpus.plan.bounds) // 2
    recipe = task_of(config).recipe(config, training=False)
    pipeline = Pipeline(corpus, [route], config.data, config.training.seed, run, recipe)
    with pipeline.open_feed(Position(), epochs=1) as feed:
        return next(delivery for (delivery,) in feed if delivery.planned.step.bucket == middle)


def speaking_speed(
    config: Config,
    held_out: Corpus,
    checkpoint: Path,
    about: dict,
    route: Route,
    run: Path,
    utterances: int,
    iterations: int,
) -> dict[str, float]:
    """Seconds of computing for a second of speech, from text to wave, after all of it was said once."""
    network = load_network(checkpoint, about, route.model)
    found = read_utterances(network, held_out.manifest, config, route, run, utterances)
    manner = manner_of(config.model)

    def say(part: Sequence[Utterance]) -> float:
        """Seconds of speech."""
        texts, languages = [one.text for one in part], [one.language for one in part]
        references = [one.reference for one in part]
        waves = speak(network, about, texts, languages, references, manner, route.model, iterations)
        return sum(map(len, waves)) / SAMPLE_RATE_HZ

    figures = {}
    for name, parts in (("single", [[one] for one in found]), ("batch", [found])):
        factors = []
        for _ in range(2):  # the first warms up
            started_s = time.perf_counter()
            speech_s = sum(map(say, parts))
            factors.append((time.perf_counter() - started_s) / speech_s)
        figures[f"real_time_factor_{name}"] = factors[-1]
    return figures
