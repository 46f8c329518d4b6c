"""Dual placement, by running it on two logical devices: batches are made on one, the model trains on the other.

    python -m unittest tests.test_dual_gpu_device_placement -v

Soft placement is off, so an operation or a tensor that strays is an error and not a silent copy.
"""

import tempfile
import unittest
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import tensorflow as tf
from tensorflow.python.eager import context

from myxtts.config.schema import DataConfig
from myxtts.config.schema import PlacementConfig as Settings
from myxtts.data.features import tts_extractor
from myxtts.data.pipeline import Pipeline
from myxtts.data.plan_iterator import Position
from myxtts.errors import PlacementError
from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route, plan_routes
from myxtts.training.hooks import check_devices
from myxtts.training.loop import batches_of, next_microbatches
from myxtts.training.state import TrainingState, make_optimizer
from myxtts.training.step import Step
from tests.sine_corpus import planned_corpus, write_corpus
from tests.tiny import (
    BARE,
    SECONDS,
    Workplace,
    build_model,
    build_toy,
    features,
    on_device,
    replicas_on,
    training_state,
)
from tests.two_devices import DATA, MODEL, SIMULATED

READING = DataConfig(batch_size=3, buckets=2)
ADVICE = "This is a defect of the program or of a custom model: build and call it inside tf.device."


def device_of(value) -> str:
    spec = tf.DeviceSpec.from_string(value.device)
    return f"/{spec.device_type}:{spec.device_index}"


@contextmanager
def placed_functions():
    """Collects the functions that TensorFlow makes ready in its scope: of each its operations and their devices."""
    found = []
    context.context().enable_run_metadata()
    try:
        yield found
        for function in context.context().export_run_metadata().function_graphs:
            devices_of = {}
            for node in function.post_optimization_graph.node:
                devices_of.setdefault(node.op, set()).add(device_of(node))
            found.append(devices_of)
    finally:
        context.context().disable_run_metadata()


class Run(unittest.TestCase):
    """One step of the real pipeline, model and optimizer: the network's on one route, the toy's on the other."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.manifest = write_corpus(Path(folder.name), SECONDS)

    def step(self, model, route, accumulation):
        """(state, gradient sums, rounds of one full step, outcome, functions that ran)."""
        corpus = planned_corpus(self.manifest, READING, accumulation=accumulation)
        state = training_state(model, device=route.model)
        step = Step(state, 1.0, accumulation, static_shapes=False, compile_xla=False)
        with placed_functions() as functions:
            pipeline = Pipeline(corpus, [route], tts_extractor(), READING, seed=0, cache_folder=Path("unused"))
            with pipeline.open_feed(Position()) as feed:
                rounds = next_microbatches(feed)
                while len(rounds) < accumulation:  # one step of an epoch is incomplete
                    rounds = next_microbatches(feed)
            outcome = step(batches_of(rounds), 1, 1e-3, 0.9)
        return state, step._sums, rounds, outcome, functions

    def assert_on(self, device, values):
        self.assertEqual({device_of(value) for value in values}, {device})

    def assert_everything_is_where_the_route_says(self, model, route, accumulation, operations):
        """`operations` are some of the step's; the last is in no other function."""
        state, sums, rounds, outcome, functions = self.step(model, route, accumulation)
        self.assertEqual((len(rounds), bool(sums)), (accumulation, accumulation > 1))
        self.assert_on(route.model, [outcome, *sums])
        for variables in state.variables().values():  # weights, optimizer, averages
            self.assert_on(route.model, variables.values())
        self.assert_on(route.model, [tensor for (delivery,) in rounds for tensor in delivery.batch.values()])
        check_devices(state, rounds, outcome)

        steps = [devices_of for devices_of in functions if operations[-1] in devices_of]
        self.assertEqual(len(steps), 2 if accumulation > 1 else 1)
        for devices_of in steps:
            for operation in operations:
                self.assertEqual(devices_of[operation], {route.model}, operation)
        producers = [devices_of for devices_of in functions if "RFFT" in devices_of]
        self.assertGreaterEqual(len(producers), 1)
        for devices_of in producers:
            for operation in ("RFFT", "Log", "GatherV2"):
                self.assertEqual(devices_of[operation], {route.data}, operation)

    def test_of_the_network_is_where_the_route_says(self):
        operations = ("Conv2D", "MatMul", "BatchMatMulV2", "Square", "Conv2DBackpropFilter")
        network = build_model(size=BARE, device=MODEL)
        self.assert_everything_is_where_the_route_says(network, Route(DATA, MODEL), 2, operations)

    def test_on_the_opposite_route_is_there_too(self):
        operations = ("MatMul", "Square", "AssignSubVariableOp")
        self.assert_everything_is_where_the_route_says(build_toy(device=DATA), Route(MODEL, DATA), 1, operations)


class Violations(unittest.TestCase):
    """What strays is named before it costs a run."""

    def assert_refused(self, message, function, *arguments, **options):
        with self.assertRaises(PlacementError) as caught:
            function(*arguments, **options)
        self.assertIn(message, str(caught.exception))
        self.assertIn(ADVICE, str(caught.exception))

    def test_model_on_the_other_device(self):
        self.assert_refused(
            f"{MODEL} was promised, but found toy/embedding/embeddings on {DATA}",
            training_state,
            build_toy(device=DATA),
        )

    def test_optimizer_built_outside_of_the_scope(self):
        toy = build_toy()
        self.assert_refused(
            f"{MODEL} was promised, but found adamw/iteration on {DATA}",
            lambda: TrainingState(toy, make_optimizer(0.01, "float32"), averaged=False, replicas=replicas_on(MODEL)),
        )

    def test_first_step_looks_at_batches_losses_and_optimizer(self):
        class Delivered(NamedTuple):
            batch: dict

        state = training_state(build_toy())
        batch, stray = on_device(features([(5, 13)])), on_device(features([(5, 13)]), DATA)
        good, bad = batch["step_frames"], stray["step_frames"]
        look = check_devices
        look(state, [[Delivered(batch)]], good)
        self.assert_refused(f"losses on {DATA}", look, state, [[Delivered(batch)]], bad)
        mixed = batch | {"mel": stray["mel"]}
        self.assert_refused(f"found mel on {DATA}", look, state, [[Delivered(batch)], [Delivered(mixed)]], good)
        state.optimizer = training_state(build_toy(device=DATA), device=DATA).optimizer
        self.assert_refused(f"adamw/iteration on {DATA}", look, state, [[Delivered(batch)]], good)

    def test_more_than_five_are_counted(self):
        stray = on_device(features([(5, 13)]), DATA)
        with self.assertRaisesRegex(PlacementError, f" and {len(stray) - 5} more"):
            require_device(MODEL, stray.items())

    def test_a_run_whose_model_strays_ends_with_exit_code_2(self):
        with tempfile.TemporaryDirectory() as folder:
            place = Workplace(Path(folder))
            with mock.patch("myxtts.tasks.tts.build_xtts", return_value=build_toy(device=DATA)):
                finished = place.train("stray", "--data-gpu", "0", "--model-gpu", "1")
            self.assertEqual(finished.code, 2, finished)
            self.assertIn(f"error: {MODEL} was promised, but found toy/", finished.err)

    def test_a_device_that_does_not_exist_is_an_error_and_not_another_device(self):
        with self.assertRaises((RuntimeError, tf.errors.InvalidArgumentError)), tf.device("/GPU:3"):
            tf.constant([1.0]) + 1.0


class Devices(unittest.TestCase):
    def test_the_same_devices_may_be_configured_again(self):
        for asked in ({}, {"data_gpu": 0, "model_gpu": 1}, {"data_gpu": 1, "model_gpu": 0}):
            devices.configure(plan_routes(Settings(simulate_gpus=SIMULATED, **asked), 0))

    def test_other_devices_are_refused_once_tensorflow_has_started(self):
        tf.constant(1.0)
        with self.assertRaises(PlacementError) as caught:
            devices.configure(plan_routes(Settings(simulate_gpus=3), 0))
        self.assertRegex(
            str(caught.exception),
            r"^the devices of this run \(single\) were to be set, but TensorFlow had already started: .*"
            r"restart the process or notebook kernel\.$",
        )

    def test_the_log_says_which_gpu_became_which_device(self):
        asked = Settings(data_gpu=3, model_gpu=1, data_gpu_memory=4096, model_gpu_memory=8192)
        self.assertEqual(
            devices.describe(plan_routes(asked, 4)),
            [
                "placement      dual",
                "  device       GPU 1 is /GPU:0, at most 8192 MiB",
                "  device       GPU 3 is /GPU:1, at most 4096 MiB",
                "  route        batches made on /GPU:1, trained on /GPU:0",
            ],
        )
        simulated = Settings(simulate_gpus=2, data_gpu=1, model_gpu=0, data_gpu_memory=4096)
        self.assertEqual(
            devices.describe(plan_routes(simulated, 0)),
            [
                "placement      dual (GPUs simulated on the CPU)",
                "  device       simulated GPU 0 is /CPU:0, at most 16384 MiB (not applied: the device is simulated)",
                "  device       simulated GPU 1 is /CPU:1, at most 4096 MiB (not applied: the device is simulated)",
                "  route        batches made on /CPU:1, trained on /CPU:0",
            ],
        )
        self.assertEqual(
            devices.describe(plan_routes(Settings(), 0)),
            [
                "placement      single",
                "  device       CPU is /CPU:0, memory grows as needed",
                "  route        batches made on /CPU:0, trained on /CPU:0",
            ],
        )


if __name__ == "__main__":
    unittest.main()
