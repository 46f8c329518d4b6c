"""Replicas match training on one device; resuming with others loses no utterance."""

import itertools
import json
import unittest
from functools import cache
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.base.progress import Position
from myxtts.batches.plan import Plan, bucket_bounds, planned_steps, steps_left
from myxtts.config.schema import TrainingConfig
from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.handover import LookAhead
from myxtts.devicefeed.routes import Route
from myxtts.placement.replicas import Replicas, make_replicas
from myxtts.report.metrics import read_metrics
from myxtts.run.optimizer import make_optimizer
from myxtts.run.schedule import ConstantRates
from myxtts.run.state import TrainingState
from myxtts.run.step import Step
from myxtts.tasks.asr import network as recogniser
from myxtts.tasks.tts.network import build_xtts
from tests import tiny
from tests.long import long
from tests.tiny import SYMBOLS, FeedOf, Workspace, arrays_of, features, take_step
from tests.two_devices import FOUR

FULL = [(5, 30), (6, 38), (4, 20)]  # tokens and frames
SHORT = [(5, 25), (0, 0), (0, 0)]
EMPTY = [(0, 0)] * 3
LENGTHS = [(5, 30), (6, 38), (4, 20), (7, 33)]
SMALL = recogniser.ASRSize(channels=16, blocks=1, memory=4, order=4)


@cache
def replicas_of(count: int) -> Replicas:
    return make_replicas(tuple(Route(device.name, device.name) for device in FOUR.devices[:count]))


def built(build, replicas: Replicas, precision="float32", accumulation=1):
    """Return a state and a step of these replicas."""
    keras.utils.set_random_seed(0)
    with replicas.scope():
        model = build(precision)
        state = TrainingState(model, make_optimizer(0.01, precision), True, replicas)
    return state, Step(state, 1.0, accumulation, static_shapes=False, compile_xla=False)


@cache
def built_once(*arguments):
    """Return a state and a step, which is traced once, and a function that begins anew."""
    state, step = built(*arguments)
    variables = [*state.model.variables, *state.optimizer.variables, *state.averages]
    first = [v.numpy() for v in variables]

    def begin_anew() -> None:
        for variable, value in zip(variables, first, strict=True):
            variable.assign(value)

    return state, step, begin_anew


def toy(precision: str) -> keras.Model:
    return tiny.build_toy_for_run("tiny", SYMBOLS, 1, precision=precision)


def voice(precision: str) -> keras.Model:
    with tiny.small_models():
        return build_xtts("tiny", SYMBOLS, 2, precision=precision, dropout=0.1)


def transcriber(precision: str) -> keras.Model:
    with mock.patch.dict(recogniser.SIZES, tiny=SMALL):
        return recogniser.build_asr("tiny", SYMBOLS, "lmu", 2, precision, dropout=0.1)


def steps_of(batches: int, steps: int) -> list[list[dict]]:
    """Return the batches of several steps, of which some have short or empty batches."""
    made = []
    for step in range(steps):
        shapes = [FULL] * batches
        if step % 4 == 1:
            shapes = [*shapes[:-1], SHORT]
        elif step % 4 == 2:
            shapes = [*shapes[:-1], EMPTY]
        elif step % 4 == 3:
            shapes = [SHORT, *[EMPTY] * (batches - 1)]
        tokens, frames = np.sum([np.sum(shape, axis=0) for shape in shapes], axis=0)
        whole = {"step_tokens": np.float32(tokens), "step_frames": np.float32(frames)}
        parts = [features(rows, (8, 40), seed=10 * step + i) for i, rows in enumerate(shapes)]
        made.append([part | whole for part in parts])
    return made


def trained(build, count: int, steps: list[list[dict]], accumulation=1, precision="float32"):
    """Train; return state, step and losses. One replica takes all batches of a step in turn."""
    replicas = replicas_of(count)
    summed = accumulation if count > 1 else 2
    state, step, begin_anew = built_once(build, replicas, precision, summed)
    begin_anew()
    losses = []
    for number, batches in enumerate(steps, 1):
        in_turn = len(batches) if count == 1 else accumulation
        placed = []
        for index, batch in enumerate(batches):
            placed.append(on(replicas.devices[index // in_turn], batch, state.model.BATCH_FIELDS))
        microbatches = [placed[index::in_turn] for index in range(in_turn)]
        losses.append(step.read(take_step(step, microbatches, number, 1e-2, 0.9))["loss"])
    return state, step, losses


def on(device: str, batch: dict, fields: dict) -> dict:
    with tf.device(device):
        return {name: tf.identity(batch[name]) for name in fields}


def values(state: TrainingState, replica: int = 0) -> list[np.ndarray]:
    """Return weights, optimizer variables and averages of one replica."""
    variables = [v.value for v in (*state.model.variables, *state.optimizer.variables)]
    return [state.replicas.local_results(v)[replica].numpy() for v in (*variables, *state.averages)]


class EquivalenceTest(unittest.TestCase):
    def assert_same(self, build, count, steps=20, accumulation=1, tolerance=1e-5, **precision):
        batches = steps_of(count * accumulation, steps)
        replicated, step, losses = trained(build, count, batches, accumulation, **precision)
        single, _, expected = trained(build, 1, batches, accumulation, **precision)
        np.testing.assert_allclose(losses, expected, rtol=tolerance)
        for pair in zip(values(replicated), values(single), strict=True):
            np.testing.assert_allclose(*pair, atol=tolerance)
        for replica in range(1, count):
            for pair in zip(values(replicated), values(replicated, replica), strict=True):
                np.testing.assert_array_equal(*pair, "replicas differ")
        self.assertEqual(step.traces, 1)

    def test_two_replicas_match_one_device_with_short_and_empty_batches(self):
        self.assert_same(toy, 2)

    def test_four_replicas_with_accumulation_match_one_device(self):
        self.assert_same(toy, 4, accumulation=2)

    def test_replicas_match_one_device_in_mixed_precision(self):
        self.assert_same(toy, 2, precision="mixed_bfloat16", tolerance=1e-3)
        self.assert_same(toy, 2, accumulation=2, precision="mixed_float16", tolerance=1e-3)

    @long
    def test_both_tasks_match_one_device(self):
        for build in (voice, transcriber):
            with self.subTest(task=build.__name__):
                self.assert_same(build, 2, steps=4)


class SharesTest(unittest.TestCase):
    """Replicas with unequal batches, against one device that takes the same batches in turn."""

    def steps(self, sizes: tuple[int, ...], steps: int) -> list[list[dict]]:
        made = []
        for step in range(steps):
            shapes = [[LENGTHS[(step + row) % 4] for row in range(size)] for size in sizes]
            tokens, frames = np.sum([pair for rows in shapes for pair in rows], axis=0)
            whole = {"step_tokens": np.float32(tokens), "step_frames": np.float32(frames)}
            parts = [features(rows, (8, 40), seed=9 * step + i) for i, rows in enumerate(shapes)]
            made.append([part | whole for part in parts])
        return made

    def difference(self, sizes: tuple[int, ...], build=toy, steps=50) -> float:
        batches = self.steps(sizes, steps)
        replicated, step, losses = trained(build, len(sizes), batches)
        single, _, expected = trained(build, 1, batches)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        self.assertEqual(step.traces, 1)
        pairs = zip(values(replicated), values(single), strict=True)
        return max(float(np.abs(a - b).max(initial=0.0)) for a, b in pairs)

    def test_unequal_shares_are_as_close_to_one_device_as_equal_ones(self):
        equal = self.difference((2, 2))
        for sizes in ((1, 2), (3, 1), (1, 3)):
            self.assertLessEqual(self.difference(sizes), 2 * equal, sizes)

    @long
    def test_a_voice_with_unequal_shares_is_as_close_to_one_device(self):
        equal = self.difference((2, 2), voice)
        for sizes in ((1, 2), (3, 1)):
            self.assertLessEqual(self.difference(sizes, voice), 2 * equal, sizes)


class HandOverTest(unittest.TestCase):
    def test_the_batches_of_all_replicas_are_handed_over_ahead(self):
        """The batches start at a third device, with the results of batches already there."""
        steps, data = steps_of(2, 3), FOUR.devices[3].name
        expected, _, losses = trained(toy, 2, steps)
        state, step = built(toy, replicas_of(2))
        fields = state.model.BATCH_FIELDS
        batches = [[on(data, batch, fields) for batch in of_step] for of_step in steps]
        ahead = LookAhead(FeedOf([[of_step] for of_step in batches]), step.hand_over)
        outcomes = []
        for number in range(1, 4):
            taken = ahead.take(None, steps_left=4 - number)
            outcome = step(taken, number, ConstantRates(1e-2, 0.9))
            outcomes.append(step.read(outcome)["loss"])
            for device, batch in zip(state.replicas.devices, taken.newest, strict=True):
                require_device(device, batch.items())
        self.assertEqual((outcomes, step.traces), (losses, 1))
        for replica in (0, 1):
            np.testing.assert_equal(values(state, replica), values(expected, replica))


class DeviceTest(unittest.TestCase):
    def batches(self, state: TrainingState) -> list[dict]:
        batch, fields = steps_of(1, 1)[0][0], state.model.BATCH_FIELDS
        return [on(device, batch, fields) for device in state.replicas.devices]

    def test_matrix_products_of_each_replica_are_on_its_device(self):
        state, step = built(toy, replicas_of(2), accumulation=2)
        for function in step.functions(self.batches(state)):
            operations = function.graph.get_operations()
            devices = [operation.device for operation in operations if operation.type == "MatMul"]
            self.assertGreater(len(devices), 0)
            for name in state.replicas.devices:
                count = sum(device.endswith(name[1:]) for device in devices)
                self.assertEqual(count, len(devices) / 2)
            # The first device would wait for the other one's updates, on which a result depends.
            self.assertEqual(function.outputs, [])

    def test_outcome_is_on_the_first_device(self):
        state, step, _ = built_once(toy, replicas_of(2), "float32", 1)
        batches = self.batches(state)
        self.assertTrue(take_step(step, [batches], 1, 1e-2, 0.9).device.endswith("CPU:0"))

    def test_all_equal_with_one_process(self):
        self.assertTrue(replicas_of(2).all_equal("ab12cd34ef"))


class RestOfEpochTest(unittest.TestCase):
    """An epoch of 200 utterances that starts and ends with different numbers of replicas."""

    def setUp(self):
        random = np.random.default_rng(0)
        self.samples = random.integers(20_000, 90_000, 200).astype(np.int32)

    def plan(self, replicas, accumulation=1):
        columns = self.samples, self.samples // 1000, np.zeros(200, np.int32)
        shares = {"accumulation": accumulation, "replicas": replicas}
        bounds = bucket_bounds(self.samples, 4, 4)
        return Plan(*columns, bounds=bounds, batch_size=4, seed=3, **shares)

    def take(self, replicas, start, steps, accumulation=1):
        """Return the utterances of steps from a position on, and the position after them."""
        endless = planned_steps(self.plan(replicas, accumulation), start)
        planned = [step for _, step in itertools.islice(endless, steps)]
        return np.concatenate([step.utterances for step in planned]), planned[-1].next_position

    def test_each_utterance_is_used_once(self):
        for accumulation in (1, 2):
            first, position = self.take(2, Position(epoch=1), 5, accumulation)
            second, position = self.take(3, position.after_resize(2), 3, accumulation)
            position = position.after_resize(3)
            left = steps_left(self.plan(1, accumulation), position, epochs=2)
            third, position = self.take(1, position, left, accumulation)
            used = np.sort(np.concatenate([first, second, third]))
            np.testing.assert_array_equal(used, np.arange(200))
            self.assertEqual(position, Position(2))

    def test_rest_is_a_function_of_the_steps_taken(self):
        start = Position(1, 0, ((2, 5), (3, 3)))
        taken = self.take(1, start, 9)[0]
        np.testing.assert_array_equal(taken, self.take(1, start, 9)[0])
        others = self.take(1, Position(1, 0, ((2, 5),)), 9)[0]
        self.assertFalse(np.array_equal(taken, others))

    def test_epoch_without_a_step_is_unchanged(self):
        self.assertEqual(Position(4).after_resize(2), Position(4))

    def test_rest_can_be_resumed_at_any_step(self):
        start = Position(0, 0, ((2, 5),))
        whole, _ = self.take(4, start, 6)
        begun, position = self.take(4, start, 2)
        rest, _ = self.take(4, position, 4)
        np.testing.assert_array_equal(whole, np.concatenate([begun, rest]))

    def test_replicas_have_equally_many_batches_of_each_step(self):
        epoch = self.plan(3, accumulation=2).epoch(0)
        for step in range(epoch.steps):
            shares = [epoch.batches(step, replica) for replica in range(3)]
            self.assertEqual({len(share) for share in shares}, {epoch.microbatches[step]})
            rows = np.concatenate([rows for share in shares for rows, _ in share])
            np.testing.assert_array_equal(rows, epoch.utterances(step))


class RunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.with_toy_models(cls.addClassCleanup)

    def checkpoint(self, run, step):
        return self.workspace.run_dir(run) / f"checkpoints/step-{step:06d}"

    def metadata(self, run, step):
        return json.loads((self.checkpoint(run, step) / "state.json").read_text())

    def test_run_of_two_replicas_resumes_with_one_and_uses_each_utterance_once(self):
        flags = "--model-gpus 0 1 --batch-size 2 --max-steps 2"
        begun = self.workspace.train("shared", *flags.split())
        self.assertEqual(begun.code, 0, begun.err)
        self.assertIn("replicated", begun.out)
        for line in (
            r"model  .* float32 on /CPU:0 and /CPU:1",
            r"step  .* in 2 replicas x 1 x 2 rows \(--batch-size is of each replica\)",
            r"learning rate .* \(not scaled for 2 replicas: --scale-learning-rate\)",
            r"tracing        the step on /CPU:0 and /CPU:1: .*",
        ):
            self.assertRegex(begun.out, rf"\n{line}\n")
        metadata = self.metadata("shared", 2)
        self.assertEqual((metadata["position"], metadata["replicas"]), ([0, 2, []], 2))
        ended = self.workspace.train("shared", "--batch-size", "2", "--max-steps", "4", "--resume")
        self.assertEqual(ended.code, 0, ended.err)
        self.assertIn("1 now, 2 before", ended.out)
        # 12 utterances: 2 x 4, then 2 x 2.
        self.assertEqual(self.metadata("shared", 4)["position"], [1, 0, []])

    def test_any_producers_make_the_same_batches_and_validations(self):
        flags = "--batch-size 2 --max-steps 3 --validate-every 1"
        validations, arrays = {}, {}
        for name, placement, is_observed in (
            ("own", "--model-gpus 1 2", False),
            ("fed", "--data-gpu 0 --model-gpus 1 2", True),
            ("turns", "--data-gpus 0 1 --model-gpus 2 3", True),
        ):
            finished = self.workspace.train(name, *f"{placement} {flags}".split())
            self.assertEqual(finished.code, 0, finished.err)
            self.assertEqual("during training" in finished.out, is_observed)
            lines = read_metrics(self.workspace.run_dir(name) / "metrics.jsonl")
            validations[name] = [line["validation_loss"] for line in lines]
            arrays[name] = dict(arrays_of(self.checkpoint(name, 3)))
        for other in ("fed", "turns"):
            self.assertEqual(validations["own"], validations[other])
            for name, array in arrays["own"].items():
                np.testing.assert_array_equal(array, arrays[other][name], f"{name} of {other}")

    def test_shares_are_printed_recorded_and_may_change_at_a_resume(self):
        flags = "--model-gpus 0 1 --batch-size 2 --gradient-accumulation 2".split()
        shares = "--batch-shares", "1", "3"
        shared = self.workspace.train("sh", *flags, "--max-steps", "1", *shares)
        self.assertEqual(shared.code, 0, shared.err)
        self.assertIn("in 2 x (1 + 3) rows", shared.out)
        self.assertEqual(self.metadata("sh", 1)["batch_shares"], [1.0, 3.0])
        first = read_metrics(self.workspace.run_dir("sh") / "metrics.jsonl")[0]
        self.assertEqual((first["batch_share_0"], first["batch_share_1"]), (0.25, 0.75))
        other = ["--max-steps", "2", "--resume", "--batch-shares", "1", "1"]
        resumed = self.workspace.train("sh", *flags, *other)
        self.assertEqual(resumed.code, 0, resumed.err)
        # The rest of the epoch is not shuffled anew, as with another number of replicas.
        self.assertEqual(self.metadata("sh", 2)["position"][2], [])
        kept = self.workspace.train("kept", *flags, "--max-steps", "2", *shares)
        self.assertEqual(kept.code, 0, kept.err)
        arrays = dict(arrays_of(self.checkpoint("kept", 2)))
        # The toy draws no random numbers.
        for name, array in arrays_of(self.checkpoint("sh", 2)):
            np.testing.assert_allclose(array, arrays[name], rtol=0, atol=1e-6, err_msg=name)

    def test_shares_that_do_not_fit_the_replicas_are_refused(self):
        for flags, words in (
            ("--model-gpus 0 1 --batch-shares 1 2 3", "each replica (2), but has 3. Give one for"),
            ("--batch-shares 1 2", "each replica (1), but has 2."),
            ("--batch-shares auto", "was given to a single replica"),
        ):
            refused = self.workspace.train("refused", *flags.split())
            self.assertEqual(refused.code, 2)
            self.assertIn(words, refused.err)

    def test_scale_learning_rate_multiplies_the_rate_by_the_replicas(self):
        flags = "--model-gpus 0 1 --batch-size 2 --max-steps 2 --warmup-steps 0"
        scaled = self.workspace.train("scaled", *flags.split(), "--scale-learning-rate")
        self.assertEqual(scaled.code, 0)
        first = read_metrics(self.workspace.run_dir("scaled") / "metrics.jsonl")[0]
        self.assertAlmostEqual(first["learning_rate"], 2 * TrainingConfig().learning_rate)
        self.assertRegex(scaled.out, r"\nlearning rate .* \(scaled for 2 replicas\)\n")
