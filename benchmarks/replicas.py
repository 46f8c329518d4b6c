"""Compare replicas with a single device that accumulates the same batches.

    python benchmarks/replicas.py
    python benchmarks/replicas.py --tasks asr --replicas 2 --precisions mixed_bfloat16
    python benchmarks/replicas.py --gpus --replicas 2 --deterministic
    python benchmarks/replicas.py --replicas 2 --accumulations 1 --steps 50 --shares 1 2

Trains 20 steps of each case on the demo corpus, on simulated GPUs or real ones, and prints the
largest differences of weights, averages and losses. The corpus is so small that some steps are
incomplete: some of their batches are shorter or empty. Exit code 1 if float32 weights differ by
more than 1e-5.
"""

import argparse
import itertools
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.batches.plan import Pass
from myxtts.config.load import load
from myxtts.config.schema import Config

STEPS = 20
TOLERANCE = 1e-5
BATCH_SIZE = 3
MAX_SECONDS = 2.6  # keeps 84 utterances of the demo corpus, which are 2 to 14 steps per epoch


def parse(arguments: list[str] | None) -> argparse.Namespace:
    description = "Compare replicas with a single device on the same batches."
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=("tts", "asr"), default=("tts", "asr"))
    add("--replicas", nargs="+", type=int, choices=range(2, 9), default=(2, 4))
    precisions = "float32", "mixed_bfloat16", "mixed_float16"
    add("--precisions", nargs="+", choices=precisions, default=precisions[:1])
    add("--accumulations", nargs="+", type=int, default=(1, 2))
    add("--shares", nargs="+", type=float, default=(), help="of the replicas")
    add("--steps", type=int, default=STEPS)
    add("--train-data", metavar="CORPUS", help="another corpus than the demo corpus")
    add("--gpus", action="store_true", help="use real GPUs")
    simulated = "number of them (default: one for each replica)"
    add("--simulate-gpus", metavar="N", type=int, help=simulated)
    add("--deterministic", action="store_true", help="use deterministic kernels only")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    logging.getLogger("myxtts").setLevel(logging.ERROR)
    models = configure(max(options.replicas), options)
    header = "task | replicas | accumulation | precision | weights | averages | loss"
    print(f"| {header} |\n{'|---' * 7}|")
    failed = False
    lists = options.tasks, options.replicas, options.accumulations, options.precisions
    for case in itertools.product(*lists):
        task, replicas, accumulation, precision = case
        config = settings(task, accumulation, precision, options.train_data)
        arguments = config, models[:replicas], options.steps, options.shares
        weights, averages, loss = differences(*arguments)
        found = f"{weights:.1e} | {averages:.1e} | {loss:.1e}"
        print(f"| {' | '.join(map(str, case))} | {found} |", flush=True)
        failed |= precision == "float32" and not weights <= TOLERANCE  # NaN fails, too
    return int(failed)


def configure(replicas: int, options: argparse.Namespace) -> list[str]:
    """Set up TensorFlow's devices; return those of the replicas."""
    import tensorflow as tf

    from myxtts.config.schema import PlacementConfig
    from myxtts.placement import devices
    from myxtts.placement.settings import plan_routes

    simulated = {} if options.gpus else {"simulate_gpus": options.simulate_gpus or replicas}
    settings = PlacementConfig(model_gpus=tuple(range(replicas)), **simulated)
    placement = plan_routes(settings, devices.gpu_count())
    devices.configure(placement)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    return [route.model for route in placement.routes]


def differences(
    config: Config, models: Sequence[str], steps: int, shares: Sequence[float]
) -> tuple[float, float, float]:
    """Return the largest differences of weights, averages and losses after so many steps.

    Args:
        models: device of each replica; the first is also the single device.
    """
    several = train(config, models, steps, shares, together=True)
    single = train(config, models, steps, shares, together=False)
    largest = []
    for values, expected in zip(several, single, strict=True):
        pairs = zip(values, expected, strict=True)
        # NumPy's maximum keeps NaN.
        largest.append(float(np.max([np.abs(a - b).max() for a, b in pairs])))
    weights, averages, losses = largest
    return weights, averages, losses


def settings(task: str, accumulation: int, precision: str, corpus: str | None) -> Config:
    given: dict[str, Any] = {"task": task, "train_data": corpus, "precision": precision}
    given |= {"model_size": "tiny"}
    given |= {"text_frontend": "characters", "batch_size": BATCH_SIZE, "buckets": 2}
    given |= {"prefetch_buffer_size": 1, "gradient_accumulation": accumulation}
    # With a warm-up of 5 steps, TTS training is unstable: a difference in the last bit grew to
    # 2.8e-4 in three steps.
    given |= {"warmup_steps": 40, "ema_decay": 0.9}
    if not corpus:
        given |= {"max_seconds": MAX_SECONDS, "max_rejected": 1.0}
    return load(None, given)


def train(
    config: Config, models: Sequence[str], steps: int, shares: Sequence[float], together: bool
) -> tuple[list[np.ndarray], ...]:
    """Train some steps of a plan for several replicas; return weights, averages and losses.

    Args:
        together: use one device for each replica; otherwise one device accumulates the batches of
            all replicas.
    """
    from myxtts.batches.corpora import load_corpora
    from myxtts.batches.pipeline import Pipeline, step_batches
    from myxtts.devicefeed.routes import Route
    from myxtts.placement.replicas import make_replicas
    from myxtts.run.setup import build_state, make_schedule, make_step, tune
    from myxtts.tasks.registry import length_rule_of, task_of

    routes = tuple(Route(model, model) for model in models)
    if not together:
        routes = routes[:1] * len(models)
    with tempfile.TemporaryDirectory() as folder:
        corpus, _, vocabulary = load_corpora(
            config, Path(folder), length_rule_of(config), replicas=len(models), shares=shares
        )
        state = build_state(config, vocabulary, make_replicas(routes if together else routes[:1]))
        tune(config, state, corpus.plan)
        if not together:  # every batch of a step is a microbatch
            accumulated = config.training.model_copy(update={"gradient_accumulation": 2})
            step = make_step(config.model_copy(update={"training": accumulated}), state)
        else:
            step = make_step(config, state)
        schedule, losses = make_schedule(config, corpus, state), []
        extractor = task_of(config).extractor(config, training=True)
        reading = {"seed": 0, "cache_folder": Path(folder)}
        pipeline = Pipeline(corpus, routes, extractor, config.data, **reading)
        with pipeline.open_feed(Pass()) as feed:
            for number, microbatches in enumerate(itertools.islice(step_batches(feed), steps), 1):
                features = [[batch.features for batch in batches] for batches in microbatches]
                if not together:  # replica by replica
                    of_replicas = zip(*features, strict=True)
                    features = [[batch] for batch in itertools.chain(*of_replicas)]
                outcome = step([*map(step.hand_over, features)], number, schedule)
                losses.append(np.array(step.read(outcome)["loss"]))
    weights = [state.replicas.local_results(v.value)[-1].numpy() for v in state.trained]
    return weights, [state.replicas.local_results(v)[-1].numpy() for v in state.averages], losses


if __name__ == "__main__":
    sys.exit(report_errors(main))
