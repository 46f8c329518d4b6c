"""Dual placement on two logical devices: one makes batches, the other trains the model.

    python -m unittest tests.test_dual_gpu_device_placement -v

Soft placement is off: a misplaced operation or tensor is an error, not a silent copy. The devices
are real GPUs where there are any: see `tests.two_devices`.
"""

from tests import real_gpus  # noqa: F401 - before tests.two_devices

# isort: split

import itertools
import tempfile
import unittest
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import tensorflow as tf
from tensorflow.python.eager import context

from myxtts.batches.pipeline import Pipeline, step_batches
from myxtts.batches.plan import Pass
from myxtts.config.schema import DataConfig
from myxtts.config.schema import PlacementConfig as Settings
from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.routes import Route
from myxtts.placement import devices
from myxtts.placement.settings import plan_routes
from myxtts.run.hooks import check_devices
from myxtts.run.optimizer import make_optimizer
from myxtts.run.schedule import ConstantRates
from myxtts.run.state import TrainingState
from myxtts.run.step import Step
from myxtts.tasks.asr.features import asr_extractor
from myxtts.tasks.asr.network import build_asr
from myxtts.tasks.tts.features import tts_extractor
from tests import tiny
from tests.fixtures import temporary_folder
from tests.long import long
from tests.sine_corpus import planned_corpus, write_corpus
from tests.tiny import build_toy, features, on_device, training_state
from tests.tiny_asr import small_asr_models
from tests.two_devices import DATA, GPUS, MODEL, SETTINGS, SIMULATED, TWO

READING = DataConfig(batch_size=3, buckets=2)
ADVICE = "This is a defect of the program or of a custom model: build and call it inside tf.device."


def flags_of(settings: Settings) -> list[str]:
    values = {"simulate_gpus": 0} | settings.model_dump(exclude_defaults=True)
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items()]
    return list(itertools.chain(*pairs))


def device_of(value) -> str:
    name = value.backing_device if isinstance(value, tf.Tensor) else value.device
    spec = tf.DeviceSpec.from_string(name)
    return f"/{spec.device_type}:{spec.device_index}"


@contextmanager
def placed_functions():
    """Yield a list of operations and devices of each function that TensorFlow makes."""
    functions = []
    context.context().enable_run_metadata()
    try:
        yield functions
        for function in context.context().export_run_metadata().function_graphs:
            devices_of = {}
            for node in function.post_optimization_graph.node:
                devices_of.setdefault(node.op, set()).add(device_of(node))
            functions.append(devices_of)
    finally:
        context.context().disable_run_metadata()


class RouteOfAStepTest(unittest.TestCase):
    """A step of the real pipeline, model and optimizer; a toy on the opposite route."""

    @classmethod
    def setUpClass(cls):
        folder = temporary_folder(cls.addClassCleanup)
        cls.manifest = write_corpus(folder, tiny.SECONDS)

    def step(self, model, route, accumulation, extractor):
        """Take a full step; return state, sums, microbatches, outcome and functions."""
        corpus = planned_corpus(self.manifest, READING, accumulation=accumulation)
        state = training_state(model, device=route.model)
        step = Step(state, 1.0, accumulation, static_shapes=False, compile_xla=False)
        with placed_functions() as functions:
            options = {"seed": 0, "cache_folder": Path("unused")}
            pipeline = Pipeline(corpus, [route], extractor, READING, **options)
            with pipeline.open_feed(Pass()) as feed:
                # One step of an epoch is incomplete.
                taken = next(each for each in step_batches(feed) if len(each) == accumulation)
            features = [[batch.features for batch in batches] for batches in taken]
            for (batch,) in features:
                require_device(route.data, batch.items())
            handed = [*map(step.hand_over, features)]
            outcome = step(handed, 1, ConstantRates(1e-3, 0.9))
        return state, step._sums, handed, outcome, functions

    def assert_on(self, device, values):
        self.assertEqual({device_of(value) for value in values}, {device})

    def assert_on_route(self, model, route, accumulation, operations, extractor):
        """Check the devices of some operations of the step. Only a step has the last operation."""
        state, sums, microbatches, outcome, functions = self.step(
            model, route, accumulation, extractor
        )
        self.assertEqual(bool(sums), accumulation > 1)
        self.assert_on(route.model, [outcome, *sums])
        for variables in state.variables().values():  # weights, optimizer, averages
            self.assert_on(route.model, variables.values())
        for (batch,) in microbatches:
            require_device(route.model, batch.items())
        check_devices(state, microbatches[-1], outcome)

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

    def test_step_of_the_network_is_on_its_route(self):
        """The recogniser is traced in a fifth of the time of the voice."""
        with small_asr_models(), tiny.replicas_on(MODEL).scope():
            network = build_asr("tiny", tiny.SYMBOLS, "lmu", subsampling=2)
        operations = ("Conv2D", "MatMul", "Conv2DBackpropFilter")
        self.assert_on_route(network, Route(DATA, MODEL), 1, operations, asr_extractor())

    @long
    def test_step_of_the_voice_is_on_its_route(self):
        operations = ("Conv2D", "MatMul", "BatchMatMulV2", "Square", "Conv2DBackpropFilter")
        network = tiny.build_model(device=MODEL)
        self.assert_on_route(network, Route(DATA, MODEL), 2, operations, tts_extractor())

    def test_step_of_the_toy_model_is_on_the_opposite_route(self):
        operations = ("MatMul", "Square", "AssignVariableOp")
        model, route = build_toy(device=DATA), Route(MODEL, DATA)
        self.assert_on_route(model, route, 1, operations, tts_extractor())


class MisplacedValueTest(unittest.TestCase):
    """Misplaced values are named in an error."""

    def assert_rejected(self, message, function, *arguments, **options):
        with self.assertRaises(PlacementError) as caught:
            function(*arguments, **options)
        self.assertIn(message, str(caught.exception))
        self.assertIn(ADVICE, str(caught.exception))

    def test_model_on_another_device_is_rejected(self):
        message = f"all values must be on {MODEL}, but found toy/embedding/embeddings on {DATA}"
        self.assert_rejected(message, training_state, build_toy(device=DATA))

    def test_optimizer_built_outside_the_scope_is_rejected(self):
        toy = build_toy()
        optimizer = make_optimizer(0.01, "float32")
        options = {"averaged": False, "replicas": tiny.replicas_on(MODEL)}
        message = f"all values must be on {MODEL}, but found adamw/iteration on {DATA}"
        self.assert_rejected(message, TrainingState, toy, optimizer, **options)

    def test_first_step_checks_batches_losses_and_optimizer(self):
        state = training_state(build_toy())
        batch, misplaced = on_device(features([(5, 13)])), on_device(features([(5, 13)]), DATA)
        good, bad = batch["step_frames"], misplaced["step_frames"]
        check_devices(state, [batch], good)
        self.assert_rejected(f"losses on {DATA}", check_devices, state, [batch], bad)
        mixed = batch | {"mel": misplaced["mel"]}
        self.assert_rejected(f"found mel on {DATA}", check_devices, state, [mixed], good)
        state.optimizer = training_state(build_toy(device=DATA), device=DATA).optimizer
        self.assert_rejected(f"adamw/iteration on {DATA}", check_devices, state, [batch], good)

    def test_more_than_five_misplaced_values_are_counted(self):
        misplaced = on_device(features([(5, 13)]), DATA)
        with self.assertRaisesRegex(PlacementError, "10 in all"):
            require_device(MODEL, [("mel", misplaced["mel"])] * 10)

    def test_the_devices_of_a_worker_are_those_of_its_process(self):
        """tf.data's tensors are on a device of the job `localhost`; a worker's routes differ."""
        worker = "/job:worker/replica:0/task:1/device:"
        batch = on_device(features([(5, 13)]))
        require_device(worker + MODEL[1:], batch.items())
        self.assert_rejected("found mel on ", require_device, worker + DATA[1:], batch.items())

    def test_run_with_a_misplaced_model_ends_with_exit_code_2(self):
        with tempfile.TemporaryDirectory() as folder:
            workspace = tiny.Workspace(Path(folder))
            with mock.patch(
                "myxtts.tasks.tts.task.build_xtts", return_value=build_toy(device=DATA)
            ):
                finished = workspace.train("misplaced", *flags_of(SETTINGS))
            self.assertEqual(finished.code, 2, finished)
            self.assertIn(f"error: all values must be on {MODEL}, but found toy/", finished.err)

    def test_missing_device_is_an_error(self):
        missing = self.assertRaises((RuntimeError, tf.errors.InvalidArgumentError))
        with missing, tf.device(f"{MODEL}9"):
            tf.constant([1.0]) + 1.0


class ConfigureTest(unittest.TestCase):
    def test_same_devices_can_be_configured_again(self):
        other_way = {"data_gpu": SETTINGS.model_gpu, "model_gpu": SETTINGS.data_gpu}
        swapped = SETTINGS.model_copy(update=other_way)
        for requested in (SETTINGS, swapped):
            devices.configure(plan_routes(requested, GPUS))

    @unittest.skipUnless(TWO.simulated, "a real GPU that no route uses stays hidden")
    def test_all_placements_on_simulated_gpus_have_the_same_devices(self):
        devices.configure(plan_routes(Settings(simulate_gpus=SIMULATED), GPUS))

    def test_other_devices_are_rejected_after_tensorflow_has_started(self):
        tf.constant(1.0)
        with self.assertRaises(PlacementError) as caught:
            devices.configure(plan_routes(Settings(simulate_gpus=3), 0))
        message = str(caught.exception)
        self.assertIn("(single) cannot be configured: TensorFlow has already started: ", message)
        self.assertTrue(message.endswith("Restart the process or notebook kernel."), message)


if __name__ == "__main__":
    unittest.main()
