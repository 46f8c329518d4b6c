"""Checkpoints are written whole or not at all, whatever ends the write. No TensorFlow."""

import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

from myxtts.training.checkpoint_files import (
    checkpoint_of,
    latest,
    put_back_former,
    read_arrays,
    read_metadata,
    remove_remains,
    write_checkpoint,
)
from tests.kill_points import FullDisk, Killed, KillPoints
from tests.long import long

ROOT = Path(__file__).parents[1]
BEFORE = {5: 1.0, 10: 2.0}  # step -> value of the weights
NEW = 3.0
STEPS = (20, 10)  # of the checkpoint that is cut off: a new one, and one that exists
FILES = ["model.npz", "optimizer.npz", "state.json"]


class RealKillPoints(KillPoints):
    def end(self, call, path):
        os.kill(os.getpid(), signal.SIGKILL)


def write(folder: Path, step: int, value: float) -> None:
    """Write a checkpoint whose weights all have one value, as a run does."""
    arrays = [("w", np.full(3, value, np.float32))]
    groups = [("model", arrays), ("optimizer", arrays)]
    write_checkpoint(checkpoint_of(folder, step), groups, {"step": step, "best": None}, replace=True)


def kill_at(at: int, folder: str, step: int) -> None:
    """Kill this process at a point of a write."""
    with RealKillPoints(at).active():
        write(Path(folder), step, NEW)


class Case(unittest.TestCase):
    def setUp(self):
        workspace = tempfile.TemporaryDirectory()
        self.addCleanup(workspace.cleanup)
        self.folder, self.prepared = (Path(workspace.name, name) for name in ("checkpoints", "prepared"))
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
        """Return the value of each checkpoint by its step, as the next start of the run finds them."""
        put_back_former(self.folder)
        newest = latest(self.folder)
        remove_remains(self.folder)
        found = {}
        for checkpoint in self.folder.iterdir():
            arrays = [read_arrays(checkpoint / name)["w"] for name in FILES[:2]]
            (found[read_metadata(checkpoint)["step"]],) = {float(x) for array in arrays for x in array}
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
                seen.add(points.names[at])
                with self.subTest(step=step, at=points.names[at]):
                    self.assertIn(self.restarted(), (BEFORE, BEFORE | {step: NEW}))
            self.assertEqual(self.restarted(), BEFORE | {step: NEW})
            partial = f".partial-step-0000{step}"
            expected = {f"{call} {name}" for call in ("write", "fsync") for name in FILES[:2]}
            expected |= {f"mkdir {partial}", f"fsync {partial}", f"rename {partial}", "replace .state.json.partial"}
            self.assertLess(expected | ({f"rename step-0000{step}"} if step in BEFORE else set()), seen)

    def test_a_full_disk_at_any_write_leaves_the_checkpoints_before_and_no_part_of_the_new_one(self):
        for step in STEPS:
            for at in itertools.count():
                points = FullDisk(at)
                is_refused = self.is_cut_off(points, step)
                if len(points.names) <= at:
                    break
                with self.subTest(step=step, at=points.names[at]):
                    names = {path.name for path in self.folder.iterdir()}
                    found = self.restarted()
                    self.assertEqual(names, {checkpoint_of(self.folder, step).name for step in found})
                    is_named = points.names[at].startswith(("rename", "fsync checkpoints", "unlink", "rmdir"))
                    self.assertEqual(found, BEFORE | {step: NEW} if is_named else BEFORE)
                    self.assertTrue(is_refused)

    @long
    def test_a_process_killed_at_any_change_of_the_disk_leaves_each_checkpoint_whole(self):
        for step in STEPS:
            for at in itertools.count():
                self.prepare()
                call = f"from tests.test_checkpoint_files import kill_at; kill_at({at}, {str(self.folder)!r}, {step})"
                code = subprocess.run([sys.executable, "-c", call], cwd=ROOT).returncode
                with self.subTest(step=step, at=at):
                    self.assertIn(self.restarted(), (BEFORE, BEFORE | {step: NEW}))
                if code == 0:
                    break
                self.assertEqual(code, -signal.SIGKILL)
            self.assertGreater(at, 20)


if __name__ == "__main__":
    unittest.main()
