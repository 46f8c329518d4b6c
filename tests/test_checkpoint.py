"""Checkpoints are atomic and complete, and errors name damaged files."""

import json
import shutil
import threading
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.base.errors import CheckpointError
from myxtts.base.progress import Observation, Position
from myxtts.checkpoints import files as checkpoint_files
from myxtts.checkpoints.files import (
    Checkpoint,
    archive_of,
    latest,
    list_checkpoints,
    read_record,
    remove_partial_checkpoints,
)
from myxtts.config.schema import Config, RunConfig, TrainingConfig
from myxtts.run.saving import Checkpoints, copy_arrays, restore
from myxtts.run.schedule import VALIDATION
from tests.devicefeed.feeds import TIMEOUT_S
from tests.fixtures import make_record, replace_arrays, temporary_folder
from tests.kill_points import FullDisk
from tests.tiny import build_model, build_toy, training_state

REFUSED = PermissionError(13, "Permission denied", "model")


def variables_of(state):
    groups = state.variables().items()
    return {(group, name): v for group, named in groups for name, v in named.items()}


def values(state):
    return {key: variable.numpy() for key, variable in variables_of(state).items()}


def randomise(state, seed=0):
    """Assign random values to every variable of a state; return them by group and name."""
    random = np.random.default_rng(seed)
    for variable in variables_of(state).values():
        integers = random.integers(0, 1000, variable.shape)
        variable.assign(integers.astype(variable.dtype.as_numpy_dtype))
    return values(state)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder(self.addCleanup) / "checkpoints"

    def checkpoints(self, keep=3, **values):
        return Checkpoints(self.folder, keep, make_record(symbols=("ა", "b"), **values))

    def save(self, state, loss=None, checkpoints=None):
        """Save a state, and wait until the thread has written it and the loss of its validation."""
        with checkpoints or self.checkpoints() as checkpoints:
            saved = checkpoints.save(state)
            if loss is not None:
                checkpoints.record(state, state.step, loss)
        return saved

    def save_steps(self, checkpoints, *steps, loss=None):
        for self.state.step in steps:
            self.save(self.state, loss, checkpoints)

    def assert_equal_values(self, left, right):
        self.assertEqual(left.keys(), right.keys())
        for key, value in left.items():
            np.testing.assert_array_equal(value, right[key], err_msg=str(key))

    def steps(self):
        return [int(path.name[5:]) for path in list_checkpoints(self.folder)]


class RoundTrip(Case):
    def test_restores_every_variable_and_the_position(self):
        for make, precision in ((build_model, "float32"), (build_toy, "mixed_float16")):
            with self.subTest(precision=precision):
                state = training_state(make(precision=precision), precision)
                everything = [v.value for v in (*state.model.variables, *state.optimizer.variables)]
                everything += state.averages
                of_checkpoint = map(id, variables_of(state).values())
                self.assertEqual(set(map(id, everything)), set(of_checkpoint))
                before = randomise(state)
                state.step, state.position = 41, Position(2, 5)
                saved = self.save(state)
                randomise(state, seed=1)
                state.step, state.position = 0, Position()
                restore(Checkpoint.read(saved), state)
                self.assert_equal_values(values(state), before)
                self.assertEqual((state.step, state.position), (41, Position(2, 5)))
                self.folder = self.folder.with_name("other")

    def test_saving_does_not_change_the_state(self):
        state = training_state(build_toy())
        before = randomise(state)
        state.step, state.position = 7, Position(1, 3)
        self.save(state, 1.0)
        self.assert_equal_values(values(state), before)
        self.assertEqual((state.step, state.position), (7, Position(1, 3)))

    def test_the_record_of_the_run_is_stored(self):
        state = training_state(build_toy())
        state.step, state.position = 3, Position(1, 2, ((2, 1),))
        state.pending_observations = (Observation(2, (VALIDATION,)),)
        record = read_record(self.save(state, 0.5))
        self.assertEqual(
            (record.settings, record.symbols, record.step, record.position, record.best),
            (Config(), ("ა", "b"), 3, state.position, (3, 0.5)),
        )
        self.assertEqual(record.pending_observations, state.pending_observations)


class Retention(Case):
    @classmethod
    def setUpClass(cls):
        cls.state = training_state(build_toy(), averaged=False)

    def pend(self, step):
        self.state.pending_observations = (Observation(step, (VALIDATION,)),)
        self.addCleanup(setattr, self.state, "pending_observations", ())

    def test_newest_and_best_checkpoints_are_kept(self):
        checkpoints = self.checkpoints(keep=2)
        self.save_steps(checkpoints, 10, 20, loss=0.5)  # the second is not better than the first
        self.save_steps(checkpoints, 999_990, 1_000_000, 1_000_010)
        self.assertEqual(self.steps(), [10, 1_000_000, 1_000_010])
        self.assertEqual(latest(self.folder).name, "step-1000010")
        self.save_steps(checkpoints, 1_000_020, loss=0.4)
        self.assertEqual(self.steps(), [1_000_010, 1_000_020])

    def test_a_checkpoint_that_cannot_be_removed_ends_no_run(self):
        checkpoints = self.checkpoints(keep=1)
        self.save_steps(checkpoints, 10)
        with (
            mock.patch("shutil.rmtree", side_effect=REFUSED),
            self.assertLogs("myxtts", "WARNING") as logs,
        ):
            self.save_steps(checkpoints, 20)
        self.assertIn("step-000010 cannot be removed: model: Permission denied", logs.output[0])
        self.save_steps(checkpoints, 30)
        self.assertEqual(self.steps(), [30])

    def test_remains_that_cannot_be_removed_end_no_run(self):
        (self.folder / ".partial-step-000010").mkdir(parents=True)
        with (
            mock.patch("shutil.rmtree", side_effect=REFUSED),
            self.assertLogs("myxtts", "WARNING") as logs,
        ):
            remove_partial_checkpoints(self.folder)
        self.assertIn(".partial-step-000010 cannot be removed: model: Permission", logs.output[0])

    def test_a_protected_checkpoint_keeps_its_name_and_is_named_once(self):
        checkpoints = self.checkpoints(keep=1)
        self.save_steps(checkpoints, 10)
        with (
            # Root may write everywhere.
            mock.patch("os.access", lambda path, _: path.name != "step-000010"),
            self.assertLogs("myxtts", "WARNING") as logs,
        ):
            self.save_steps(checkpoints, 20, 30)
        self.assertEqual(self.steps(), [10, 30])
        self.assertEqual(len(logs.output), 1)
        self.assertIn("step-000010 cannot be removed", logs.output[0])

    def test_a_repeated_validation_is_of_the_utterances_held_out_now(self):
        self.pend(20)
        self.save_steps(self.checkpoints(held_out="a"), 20)
        with self.checkpoints(held_out="b") as after:
            after.record(self.state, 20, 0.5)
        self.assertEqual(self.checkpoints(held_out="b").best, (20, 0.5))

    def test_an_observation_is_recorded_beside_a_damaged_checkpoint(self):
        checkpoints = self.checkpoints(keep=3)
        self.pend(20)
        self.save_steps(checkpoints, 20, 30, 40)
        (self.folder / "step-000030" / "state.json").write_bytes(b"{")
        with self.assertLogs("myxtts", "ERROR"):
            checkpoints.record(self.state, 20, 0.5)
            checkpoints.wait()
        for step in (20, 40):
            self.assertEqual(read_record(self.folder / f"step-0000{step}").best, (20, 0.5))

    def test_best_checkpoint_is_known_after_a_restart(self):
        self.save_steps(self.checkpoints(keep=1), 10, loss=0.5)
        self.save_steps(self.checkpoints(keep=1), 20)
        again = self.checkpoints(keep=1)
        self.assertEqual(again.best, (10, 0.5))
        self.save_steps(again, 30)
        self.assertEqual(self.steps(), [10, 30])
        self.assertEqual(read_record(latest(self.folder)).best, (10, 0.5))

    def test_losses_of_other_held_out_utterances_are_never_compared(self):
        self.save_steps(self.checkpoints(held_out="a"), 10, loss=0.5)
        for metadata in ({"held_out": "a"}, {"held_out": None}, {}):
            self.assertEqual(self.checkpoints(**metadata).best, (10, 0.5))
        with self.assertLogs("myxtts", "WARNING") as logs:
            self.assertIsNone(self.checkpoints(held_out="b").best)
        self.assertIn("validation uses other utterances than before", logs.output[0])

    def test_the_best_is_selected_by_the_figure_and_never_by_figures_of_another_kind(self):
        def settings(select_by, **training):
            run = RunConfig(select_by=select_by, evaluate_every=10)
            return {"settings": Config(run=run, training=TrainingConfig(**training))}

        for select_by, values, best in (("dnsmos", (3.1, 3.4, 3.2), 20), ("cer", (2, 3, 1), 30)):
            checkpoints = self.checkpoints(selected_by=select_by, **settings(select_by))
            for step, value in zip((10, 20, 30), values, strict=True):
                self.save_steps(checkpoints, step, loss=value)
            self.assertEqual(checkpoints.best, (best, values[best // 10 - 1]))
            shutil.rmtree(self.folder)
        dnsmos = settings("dnsmos", patience=2)
        checkpoints = self.checkpoints(selected_by="dnsmos a", **dnsmos)
        for step, value in ((10, 3.4), (20, 3.1)):
            self.save_steps(checkpoints, step, loss=value)
        again = self.checkpoints(selected_by="dnsmos a", **dnsmos)
        self.assertFalse(again.is_patience_over)
        self.save_steps(again, 30, loss=3.4)
        again = self.checkpoints(selected_by="dnsmos a", **dnsmos)
        self.assertTrue(again.is_patience_over)
        self.assertEqual(again.best_line, "step-000010, DNSMOS 3.4; then 2 no better")
        with self.assertLogs("myxtts", "WARNING") as logs:
            other = self.checkpoints(selected_by="dnsmos b", **dnsmos)
        self.assertIn("selected by dnsmos b, and before by dnsmos a: any", logs.output[0])
        self.assertEqual((other.best, other.is_patience_over), (None, False))

    def test_a_checkpoint_with_a_non_finite_loss_is_never_the_best(self):
        checkpoints = self.checkpoints()
        for step, loss in ((10, float("nan")), (20, float("inf"))):
            self.save_steps(checkpoints, step, loss=loss)
            self.assertIsNone(checkpoints.best)
        self.save_steps(checkpoints, 30, loss=2.0)
        self.assertEqual(checkpoints.best, (30, 2.0))

    def test_an_empty_folder_has_no_newest_or_best_checkpoint(self):
        self.assertIsNone(latest(self.folder))
        self.assertIsNone(self.checkpoints().best)

    def test_a_partly_removed_folder_is_not_a_checkpoint(self):
        checkpoints = self.checkpoints(keep=1)
        self.save_steps(checkpoints, 10)
        with (
            mock.patch("shutil.rmtree", side_effect=KeyboardInterrupt),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.save_steps(checkpoints, 20)
        self.assertEqual(self.steps(), [20])

    def test_folders_with_other_names_are_ignored(self):
        self.save_steps(self.checkpoints(), 10)
        for name in ("step-000020 (copy)", "step-", "step-99.bak", "notes"):
            (self.folder / name).mkdir()
        self.save_steps(self.checkpoints(keep=1), 30)
        self.assertEqual(self.steps(), [30])
        self.assertEqual(len(list(self.folder.iterdir())), 5)


class Background(Case):
    """Checkpoints that a thread writes while the state changes."""

    def setUp(self):
        super().setUp()
        self.state = training_state(build_toy())
        self.saved_values = randomise(self.state)

    def gated(self):
        """Return an event that a write waits for; all writes go on in the end."""
        gate, write = threading.Event(), checkpoint_files.write_checkpoint

        def write_later(*args, **kwargs):
            gate.wait(TIMEOUT_S)
            write(*args, **kwargs)

        patch = mock.patch("myxtts.checkpoints.files.write_checkpoint", write_later)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(gate.set)
        return gate

    def save_at(self, checkpoints, step):
        self.state.step = step
        return checkpoints.save(self.state)

    def test_a_checkpoint_has_the_state_of_its_step_whatever_is_trained_while_it_is_written(self):
        gate = self.gated()
        with self.checkpoints() as checkpoints:
            self.state.position = Position(2, 5)
            saved = self.save_at(checkpoints, 10)
            for variable in variables_of(self.state).values():
                variable.assign_add(tf.ones_like(variable))
            self.state.step, self.state.position = 11, Position(2, 6)
            self.assertFalse(saved.exists())
            gate.set()
        restore(Checkpoint.read(saved), self.state)
        self.assert_equal_values(values(self.state), self.saved_values)
        self.assertEqual((self.state.step, self.state.position), (10, Position(2, 5)))

    def test_nothing_that_changes_a_variable_changes_a_copy(self):
        variables = list(variables_of(self.state).values())

        def train():
            for variable in variables:
                variable.assign_sub(tf.ones_like(variable))
                variable.assign(2 * variable)

        def scatter():
            table = next(variable for variable in variables if variable.shape.rank == 2)
            table.scatter_sub(tf.IndexedSlices(tf.ones_like(table)[:1], tf.constant([1])))

        for change in (train, tf.function(train), tf.function(train, jit_compile=True), scatter):
            with tf.device(self.state.device):
                change()  # traced, compiled
                before, copy = values(self.state), copy_arrays(self.state)
                change()
                change()
            for key, value in before.items():
                np.testing.assert_array_equal(copy[key[0]][key[1]], value, err_msg=str(key))
            after = values(self.state)
            self.assertTrue(any(np.any(after[key] != value) for key, value in before.items()))
        with self.assertRaises(ValueError):  # the memory may be that of the variable
            copy["optimizer"].popitem()[1][...] = 0

    def test_the_next_checkpoint_waits_for_the_one_before_and_says_so(self):
        gate = self.gated()
        with self.checkpoints() as checkpoints:
            self.save_at(checkpoints, 10)
            wait = checkpoints.wait
            with (
                mock.patch.object(checkpoints, "wait", lambda: (gate.set(), wait())),
                mock.patch("myxtts.run.saving.MIN_LOGGED_WAIT_S", 0.0),
                self.assertLogs("myxtts", "WARNING") as logs,
            ):
                self.save_at(checkpoints, 20)
            self.assertTrue((self.folder / "step-000010").exists())
            self.assertRegex(
                logs.output[0], r"training waited \d+\.\d s at step 20 for the one before"
            )
        self.assertEqual(self.steps(), [10, 20])

    def test_a_full_disk_is_reported_at_each_attempt_and_raised_only_for_the_last_checkpoint(self):
        checkpoints = self.checkpoints()
        self.save_steps(checkpoints, 10, loss=3.0)
        with self.assertLogs("myxtts", "ERROR") as logs:
            for step in (20, 30):
                with FullDisk(5).active():
                    self.save_at(checkpoints, step)
                    checkpoints.wait()
                checkpoints.record(self.state, step, 2.0)
                checkpoints.wait()
                self.assertEqual([path.name for path in self.folder.iterdir()], ["step-000010"])
                self.assertEqual(checkpoints.best, (10, 3.0))
        needed_mb = sum(value.nbytes for value in self.saved_values.values()) / 1e6
        for step, line in zip((20, 30), logs.output, strict=True):
            file = f"{self.folder}/.partial-step-0000{step}/model.safetensors"
            place = (
                rf"the checkpoint of step {step} was not written: {file}: No space left on device"
            )
            self.assertRegex(line, place + r" \(\S+ MB are needed, \S+ MB are free\)\. If the run")
            self.assertAlmostEqual(float(line.partition("(")[2].split()[0]), needed_mb, delta=0.1)
        with self.assertRaisesRegex(CheckpointError, "It is the last .* then resume with --resume"):
            checkpoints.finish()
        self.save_at(checkpoints, 40)
        checkpoints.finish()
        self.assertEqual(self.steps(), [10, 40])

    def test_a_last_checkpoint_that_another_error_hides_is_logged(self):
        with (
            self.assertLogs("myxtts", "ERROR") as logs,
            self.assertRaisesRegex(ZeroDivisionError, "feed"),
            FullDisk(5).active(),
            self.checkpoints() as checkpoints,
        ):
            self.save_at(checkpoints, 20)
            raise ZeroDivisionError("feed")
        self.assertIn("It is the last one of the run. Free some disk space", logs.output[-1])

    def test_a_defect_of_the_writing_thread_is_raised_in_training(self):
        checkpoints, defect = self.checkpoints(), ValueError("defect")
        with mock.patch("myxtts.checkpoints.files.write_checkpoint", side_effect=defect):
            self.save_at(checkpoints, 10)
            with self.assertRaisesRegex(ValueError, "defect"):
                self.save_at(checkpoints, 20)


class Damaged(Case):
    @classmethod
    def setUpClass(cls):
        cls.state = training_state(build_toy())

    def setUp(self):
        super().setUp()
        self.saved_values = randomise(self.state)
        self.state.step = 5
        self.saved = self.save(self.state)

    def restore_error(self):
        with self.assertRaises(CheckpointError) as caught:
            restore(Checkpoint.read(self.saved), self.state)
        return str(caught.exception)

    def test_truncated_missing_or_empty_archive_is_rejected_by_name(self):
        for group in ("model", "optimizer", "averages"):
            path = archive_of(self.saved, group)
            whole = path.read_bytes()
            for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
                path.write_bytes(whole[:length])
                with self.subTest(group=group, length=length):
                    message = self.restore_error()
                    self.assertTrue(message.startswith(f"{path} cannot be read: "), message)
                    self.assertIn(f"remove {self.saved}", message)
            path.unlink()
            self.assertIn(f"{path} cannot be read", self.restore_error())
            path.write_bytes(whole)
        restore(Checkpoint.read(self.saved), self.state)

    def test_a_damaged_archive_changes_no_variable(self):
        before = randomise(self.state, seed=1)
        path = archive_of(self.saved, "model")
        whole = bytearray(path.read_bytes())
        whole[len(whole) // 2] ^= 1
        path.write_bytes(whole)
        self.restore_error()
        self.assert_equal_values(values(self.state), before)

    def test_damaged_missing_or_differently_formatted_state_is_rejected(self):
        path = self.saved / "state.json"
        whole = path.read_text()
        for text in ("", whole[: len(whole) // 2], "[]", "null", "\0"):
            path.write_text(text)
            with self.subTest(text=text[:10]):
                self.assertIn(f"{path} cannot be read", self.restore_error())
        path.unlink()
        self.assertIn(f"{path} cannot be read", self.restore_error())
        path.write_text(json.dumps(json.loads(whole) | {"format": 6}))
        self.assertIn("it has format 6, but", self.restore_error())

    def test_error_for_another_architecture_names_the_first_difference(self):
        path = archive_of(self.saved, "model")
        arrays = Checkpoint.read(self.saved).arrays("model")
        kernel = next(name for name in arrays if name.endswith("kernel"))
        of_model = "but the model has float32 (80, 80)"
        fewer = {name: array for name, array in arrays.items() if name != kernel}
        for changed, message in (
            (
                arrays | {kernel: np.zeros((2, 3), np.float32)},
                f"'{kernel}' is float32 (2, 3), {of_model}",
            ),
            (
                arrays | {kernel: np.zeros((80, 80), np.int8)},
                f"'{kernel}' is int8 (80, 80), {of_model}",
            ),
            (arrays | {"other": np.zeros(1)}, "'other' is float64 (1,), but the model has nothing"),
            (fewer, f"'{kernel}' is nothing, {of_model}"),
        ):
            replace_arrays(self.saved, "model", changed)
            self.assertTrue(self.restore_error().startswith(f"{path}: {message}. Use the settings"))
        self.saved = self.save(training_state(build_model()))
        self.assertIn("is nothing, but the model has", self.restore_error())
