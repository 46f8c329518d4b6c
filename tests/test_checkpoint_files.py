"""Checkpoints are written whole or not at all; damaged ones are rejected by name."""

import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import ClassVar

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from myxtts.base.errors import CheckpointError
from myxtts.base.progress import Observation, Position
from myxtts.checkpoints import files as files
from myxtts.checkpoints.files import Checkpoint, archive_of, checkpoint_of, read_record
from myxtts.config.schema import Config, TrainingConfig
from tests.fixtures import make_record, rewrite_state, temporary_folder
from tests.kill_points import FullDisk, Killed, KillPoints, RealKillPoints
from tests.long import long

ROOT = Path(__file__).parents[1]
BEFORE = {5: 1.0, 10: 2.0}  # step -> value of the weights
NEW = 3.0
STEPS = (20, 10)  # of the checkpoint that is cut off: a new one, and one that exists
GROUPS = ("model", "optimizer")
FILES = ["model.safetensors", "optimizer.safetensors", "state.json"]


def write(folder: Path, step: int, value: float) -> None:
    """Write a checkpoint whose weights all have one value, as a run does."""
    arrays = [("w", np.full(3, value, np.float32))]
    groups = [("model", arrays), ("optimizer", arrays)]
    files.write_checkpoint(
        checkpoint_of(folder, step), groups, make_record(step=step), replace=True
    )


def read_arrays(checkpoint: Path, group: str) -> dict[str, np.ndarray]:
    return Checkpoint.read(checkpoint).arrays(group)


def kill_at(at: int, folder: str, step: int) -> None:
    """Kill this process at a point of a write."""
    with RealKillPoints(at).active():
        write(Path(folder), step, NEW)


class Case(unittest.TestCase):
    def setUp(self):
        workspace = temporary_folder(self.addCleanup)
        self.folder, self.prepared = (workspace / name for name in ("checkpoints", "prepared"))
        for step, value in BEFORE.items():
            write(self.prepared, step, value)
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def prepare(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.prepared, self.folder)

    def is_cut_off(self, points, step):
        """Write a checkpoint; return whether the points ended that."""
        self.prepare()
        with points.active():
            try:
                write(self.folder, step, NEW)
            except (Killed, OSError):
                return True
        return False

    def restarted(self):
        """Return the value of each checkpoint by its step, as the next start finds them."""
        files.recover_interrupted_replace(self.folder)
        newest = files.latest(self.folder)
        files.remove_partial_checkpoints(self.folder)
        found = {}
        for checkpoint in self.folder.iterdir():
            arrays = [read_arrays(checkpoint, group)["w"] for group in GROUPS]
            (found[read_record(checkpoint).step],) = {float(x) for array in arrays for x in array}
            self.assertEqual(sorted(path.name for path in checkpoint.iterdir()), FILES)
        self.assertEqual(newest, checkpoint_of(self.folder, max(found)))
        return found


class InterruptedWrites(Case):
    def test_a_kill_at_any_change_of_the_disk_leaves_each_checkpoint_whole(self):
        for step in STEPS:
            seen = set()
            for at in itertools.count():
                points = KillPoints(at)
                if not self.is_cut_off(points, step):
                    break
                seen.add(re.sub(r"\.[0-9-]+\.partial", ".partial", points.names[at]))
                with self.subTest(step=step, at=points.names[at]):
                    self.assertIn(self.restarted(), (BEFORE, BEFORE | {step: NEW}))
            self.assertEqual(self.restarted(), BEFORE | {step: NEW})
            partial = f".partial-step-0000{step}"
            expected = {f"{call} {partial}" for call in ("mkdir", "fsync", "rename")}
            expected |= {f"write {name}" for name in FILES[:2]}
            expected |= {f"fsync {name}" for name in FILES[:2]} | {"replace .state.json.partial"}
            if step in BEFORE:
                expected.add(f"rename step-0000{step}")
            self.assertLess(expected, seen)

    def test_a_full_disk_at_any_write_leaves_the_checkpoints_before_and_no_part_of_a_new_one(self):
        for step in STEPS:
            for at in itertools.count():
                points = FullDisk(at)
                is_refused = self.is_cut_off(points, step)
                if len(points.names) <= at:
                    break
                with self.subTest(step=step, at=points.names[at]):
                    paths = set(self.folder.iterdir())
                    found = self.restarted()
                    self.assertEqual(paths, {checkpoint_of(self.folder, step) for step in found})
                    later = ("rename", "fsync checkpoints", "unlink", "rmdir")
                    is_named = points.names[at].startswith(later)
                    self.assertEqual(found, BEFORE | {step: NEW} if is_named else BEFORE)
                    self.assertTrue(is_refused)

    @long
    def test_a_process_killed_at_any_change_of_the_disk_leaves_each_checkpoint_whole(self):
        for step in STEPS:
            for at in itertools.count():
                self.prepare()
                call = "from tests.test_checkpoint_files import kill_at;"
                call += f" kill_at({at}, {str(self.folder)!r}, {step})"
                code = subprocess.run([sys.executable, "-c", call], cwd=ROOT).returncode
                with self.subTest(step=step, at=at):
                    self.assertIn(self.restarted(), (BEFORE, BEFORE | {step: NEW}))
                if code == 0:
                    break
                self.assertEqual(code, -signal.SIGKILL)
            self.assertGreater(at, 10)


class Archives(Case):
    """The files of arrays."""

    ARRAYS: ClassVar = {
        "weights": np.arange(12, dtype=np.float32).reshape(3, 4),
        "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "every second": np.arange(8, dtype=np.int16)[::2],
        "none": np.zeros((0, 3), np.float32),
        "iteration": np.array(7, np.int64),
        "is frozen": np.array(True),
        "mask": np.array([True, False, True]),
        "half": np.array([[0.5, -2.0]], np.float16),
        "brain": np.array([1.0, 3.0], ml_dtypes.bfloat16),
        'ლ "quoted"': np.array([np.nan, np.inf, -0.0]),
    }

    def setUp(self):
        super().setUp()
        self.checkpoint = checkpoint_of(self.folder, 1)
        groups = [("model", self.ARRAYS.items()), ("empty", [])]
        files.write_checkpoint(self.checkpoint, groups, make_record())

    def assert_same_arrays(self, arrays):
        self.assertEqual(arrays.keys(), self.ARRAYS.keys())
        for name, array in self.ARRAYS.items():
            self.assertEqual((arrays[name].dtype, arrays[name].shape), (array.dtype, array.shape))
            self.assertEqual(arrays[name].tobytes(), array.tobytes(), name)

    def test_every_type_shape_and_order_is_read_bit_for_bit_and_can_be_changed(self):
        arrays = read_arrays(self.checkpoint, "model")
        self.assert_same_arrays(arrays)
        for array in arrays.values():
            array[...] = 0
        with Checkpoint.read(self.checkpoint).opened("model") as opened:
            self.assert_same_arrays(opened)
        self.assertEqual(read_arrays(self.checkpoint, "empty"), {})

    def test_another_program_reads_the_file_with_the_library_alone(self):
        self.assert_same_arrays(load_file(archive_of(self.checkpoint, "model")))

    def test_a_file_is_readable_for_whom_the_umask_allows(self):
        old = os.umask(0o027)
        self.addCleanup(os.umask, old)
        checkpoint = checkpoint_of(self.folder, 2)
        files.write_checkpoint(checkpoint, [("model", self.ARRAYS.items())], make_record())
        self.assertEqual(archive_of(checkpoint, "model").stat().st_mode & 0o777, 0o640)

    def test_no_flipped_bit_of_an_archive_changes_what_is_read(self):
        archive = archive_of(self.checkpoint, "model")
        whole = archive.read_bytes()
        harmless = 0
        for bit in range(0, len(whole) * 8, 3):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            archive.write_bytes(damaged)
            try:
                self.assert_same_arrays(read_arrays(self.checkpoint, "model"))
                harmless += 1
            except CheckpointError as error:
                self.assertIn(f"{archive} cannot be read", str(error))
        self.assertLess(harmless, 10)  # in the padding of the header

    def test_an_archive_of_another_checkpoint_is_rejected(self):
        other = checkpoint_of(self.folder, 2)
        files.write_checkpoint(other, [("model", {"weights": np.ones(3)}.items())], make_record())
        shutil.copy(archive_of(other, "model"), archive_of(self.checkpoint, "model"))
        with self.assertRaisesRegex(CheckpointError, "not those that state.json records"):
            read_arrays(self.checkpoint, "model")


class Damaged(Case):
    """Damaged files, or files made by another program: one message each."""

    def setUp(self):
        super().setUp()
        self.prepare()
        self.checkpoint = checkpoint_of(self.folder, 10)
        self.state = self.checkpoint / "state.json"

    def message(self, read, *arguments):
        with self.assertRaises(CheckpointError) as raised:
            read(*arguments)
        return str(raised.exception)

    def test_a_value_that_this_version_does_not_know_is_named_and_is_no_damage(self):
        for key, value, place in (
            ("step", "ten", "step"),
            ("position", ["first"], "position.0"),
            ("audio_s", None, "audio_s"),
            ("best", [5], "best.1"),
            ("symbols", [1], "symbols.0"),
            ("ancestor", {"symbols": "all"}, "ancestor.run"),
            ("participants", [1], "participants.0"),
            ("settings", {"data": {"echo": 1}}, "settings.data.echo: Extra"),
        ):
            self.prepare()
            rewrite_state(
                self.checkpoint, lambda state, key=key, value=value: state.update({key: value})
            )
            with self.subTest(key=key):
                expected = rf"^{self.state} cannot be read: {place}.*Use the version .* wrote it\.$"
                self.assertRegex(self.message(read_record, self.checkpoint), expected)
        self.prepare()
        rewrite_state(self.checkpoint, lambda state: state.pop("symbols"))
        self.assertIn("symbols: Field required. ", self.message(read_record, self.checkpoint))

    def test_removed_settings_are_ignored_unless_the_run_used_them(self):
        unused = {"discriminators": False, "adversarial_weight": 0.1}
        record = read_record(self.checkpoint)
        rewrite_state(self.checkpoint, lambda state: state["settings"]["vocoder"].update(unused))
        self.assertEqual(read_record(self.checkpoint), record)
        used = {"discriminators": True}
        rewrite_state(self.checkpoint, lambda state: state["settings"]["vocoder"].update(used))
        message = self.message(read_record, self.checkpoint)
        self.assertIn("settings.vocoder.discriminators: Extra inputs", message)

    def test_every_value_of_a_record_is_read_as_it_was_written(self):
        record = make_record(
            settings=Config(training=TrainingConfig(freeze=("decoder",), init_from="x")),
            symbols=("ა", "\u200b", "b"),
            held_out="d",
            ancestor=files.Ancestor(
                run="r", step=1, weights="w", symbols=2, languages=1, speakers=0
            ),
            teacher=files.Source(run="t", step=2, weights="v"),
            position=Position(1, 2, ((2, 3),)),
            best=files.Best(5, 0.1),
            audio_s=1 / 3,
            pending_observations=(Observation(4, ("validation", "samples")),),
            participants=(files.Participant(job=1, audio_s=2.0, coefficient=0.5),),
            missed_syncs={1: 2},
            merge_inputs=(files.MergedInput(checkpoint="c", step=3, audio_s=0.0, coefficient=1.0),),
        )
        files.write_record(self.checkpoint, record)
        self.assertEqual(read_record(self.checkpoint), record)

    def test_no_flipped_bit_of_the_record_changes_what_is_read(self):
        whole = self.state.read_bytes()
        self.assertLess(len(whole), 6000)
        # Every second byte, with another bit each: reading all bits takes 10 s.
        for at in range(0, len(whole), 2):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at // 2 % 8
            self.state.write_bytes(damaged)
            self.message(read_record, self.checkpoint)

    def test_a_record_without_checksum_is_rejected(self):
        self.state.write_text(json.dumps(json.loads(self.state.read_bytes())))
        message = self.message(read_record, self.checkpoint)
        self.assertIn("is not the checksum of the lines", message)

    def test_a_checkpoint_of_an_older_version_is_named_with_what_to_do(self):
        self.state.write_text(json.dumps({"format": 6}))
        message = self.message(read_arrays, self.checkpoint, "model")
        self.assertIn("it has format 6, but this version of MyXTTS reads format 7", message)
        self.assertTrue(message.endswith("Use the version of MyXTTS that wrote it."), message)

    def test_a_damaged_or_missing_file_is_named_with_what_to_remove(self):
        for content in (b"damaged", None):
            archive_of(self.checkpoint, "optimizer").unlink()
            if content:
                archive_of(self.checkpoint, "optimizer").write_bytes(content)
            message = self.message(read_arrays, self.checkpoint, "optimizer")
            self.assertIn(f"{archive_of(self.checkpoint, 'optimizer')} cannot be read", message)
            self.assertIn("If a run removed it meanwhile, start the command again.", message)
            self.assertTrue(message.endswith(f"without it, remove {self.checkpoint}."), message)
