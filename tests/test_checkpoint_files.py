"""Checkpoints are written whole or not at all, and damaged ones are rejected by name. No
TensorFlow.
"""

import contextlib
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
import zipfile
import zlib
from pathlib import Path
from unittest import mock

import numpy as np
from pydantic import ValidationError

from myxtts.errors import CheckpointError
from myxtts.training.checkpoint_files import (
    FORMAT,
    checkpoint_of,
    latest,
    put_back_former,
    read_arrays,
    read_best,
    read_metadata,
    remove_remains,
    write_arrays,
    write_checkpoint,
)
from myxtts.training.checkpoint_metadata import check_types
from tests.fixtures import temporary_folder
from tests.kill_points import FullDisk, Killed, KillPoints, RealKillPoints
from tests.long import long

ROOT = Path(__file__).parents[1]
BEFORE = {5: 1.0, 10: 2.0}  # step -> value of the weights
NEW = 3.0
STEPS = (20, 10)  # of the checkpoint that is cut off: a new one, and one that exists
METADATA = {"format": FORMAT, "step": 10}
FILES = ["model.npz", "optimizer.npz", "state.json"]


def write(folder: Path, step: int, value: float) -> None:
    """Write a checkpoint whose weights all have one value, as a run does."""
    arrays = [("w", np.full(3, value, np.float32))]
    groups = [("model", arrays), ("optimizer", arrays)]
    write_checkpoint(
        checkpoint_of(folder, step), groups, {"step": step, "best": None}, replace=True
    )


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
        """Return the value of each checkpoint by its step, as the next start of the run
        finds them.
        """
        put_back_former(self.folder)
        newest = latest(self.folder)
        remove_remains(self.folder)
        found = {}
        for checkpoint in self.folder.iterdir():
            arrays = [read_arrays(checkpoint / name)["w"] for name in FILES[:2]]
            (found[read_metadata(checkpoint)["step"]],) = {
                float(x) for array in arrays for x in array
            }
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
            expected = {f"{call} {name}" for call in ("write", "fsync") for name in FILES[:2]}
            expected |= {
                f"mkdir {partial}",
                f"fsync {partial}",
                f"rename {partial}",
                "replace .state.json.partial",
            }
            self.assertLess(
                expected | ({f"rename step-0000{step}"} if step in BEFORE else set()), seen
            )

    def test_a_full_disk_at_any_write_leaves_the_checkpoints_before_and_no_part_of_the_new_one(
        self,
    ):
        for step in STEPS:
            for at in itertools.count():
                points = FullDisk(at)
                is_refused = self.is_cut_off(points, step)
                if len(points.names) <= at:
                    break
                with self.subTest(step=step, at=points.names[at]):
                    names = {path.name for path in self.folder.iterdir()}
                    found = self.restarted()
                    self.assertEqual(
                        names, {checkpoint_of(self.folder, step).name for step in found}
                    )
                    is_named = points.names[at].startswith(
                        ("rename", "fsync checkpoints", "unlink", "rmdir")
                    )
                    self.assertEqual(found, BEFORE | {step: NEW} if is_named else BEFORE)
                    self.assertTrue(is_refused)

    @long
    def test_a_process_killed_at_any_change_of_the_disk_leaves_each_checkpoint_whole(self):
        for step in STEPS:
            for at in itertools.count():
                self.prepare()
                call = (
                    f"from tests.test_checkpoint_files import kill_at; kill_at({at},"
                    f" {str(self.folder)!r}, {step})"
                )
                code = subprocess.run([sys.executable, "-c", call], cwd=ROOT).returncode
                with self.subTest(step=step, at=at):
                    self.assertIn(self.restarted(), (BEFORE, BEFORE | {step: NEW}))
                if code == 0:
                    break
                self.assertEqual(code, -signal.SIGKILL)
            self.assertGreater(at, 20)


class Hostile(Case):
    """Damaged files, or files made by another program: one message each, and no memory for what
    they promise.
    """

    def setUp(self):
        super().setUp()
        self.prepare()
        self.checkpoint = checkpoint_of(self.folder, 10)
        self.state, self.archive = self.checkpoint / "state.json", self.checkpoint / "model.npz"

    def message(self, read, *arguments):
        with self.assertRaises(CheckpointError) as raised:
            read(*arguments)
        return str(raised.exception)

    def write_member(self, header: bytes, content: bytes, **options):
        """Write an archive with one array, whose header may promise what it does not have."""
        with zipfile.ZipFile(self.archive, "w") as archive:
            member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content
            archive.writestr("w.npy", member, **options)

    def test_an_archive_that_promises_terabytes_is_rejected_before_memory_is_taken(self):
        for shape, dtype in (
            ((10**13,), "<f4"),
            ((-1,), "<f4"),
            ((2, 10**30), "<f4"),
            ((3,), "|O"),
            ((3,), "<U4"),
        ):
            header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
            self.write_member(header, bytes(12))
            with self.subTest(shape=shape, dtype=dtype):
                self.assertRegex(
                    self.message(read_arrays, self.archive),
                    "^" + str(self.archive) + " cannot be read: w.npy ",
                )
        self.write_member(b"(" * 9000, b"")
        self.assertIn("cannot be read", self.message(read_arrays, self.archive))
        self.write_member(b"", bytes(1 << 24), compress_type=zipfile.ZIP_DEFLATED)
        self.assertIn("it is compressed", self.message(read_arrays, self.archive))

    def test_arrays_are_read_in_one_pass_that_finds_every_damaged_one(self):
        write_arrays(
            self.archive,
            [("w", np.zeros(1 << 18, np.float32)), ("none", np.zeros(0)), ("n", np.arange(9))],
        )
        with mock.patch("zipfile.crc32", wraps=zlib.crc32) as crc32:
            arrays = read_arrays(self.archive)
        self.assertEqual([arrays[name].size for name in ("w", "none", "n")], [1 << 18, 0, 9])
        self.assertLess(
            sum(len(call.args[0]) for call in crc32.call_args_list),
            1.1 * self.archive.stat().st_size,
        )
        whole = self.archive.read_bytes()
        for at in (
            whole.index(b"\0" * 1000),
            whole.index(b"(0,)"),
            whole.index(np.arange(9).tobytes()) + 71,
        ):
            self.archive.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            self.assertIn("cannot be read", self.message(read_arrays, self.archive))

    def test_a_pipe_or_a_folder_in_place_of_a_file_is_rejected_without_waiting(self):
        for path, read in (
            (self.archive, read_arrays),
            (self.state, lambda _: read_metadata(self.checkpoint)),
        ):
            path.unlink()
            os.mkfifo(path)
            self.assertIn(
                f"{path} cannot be read: it is not a regular file", self.message(read, path)
            )

    def test_a_value_of_another_type_in_the_metadata_is_named(self):
        for key, value in (
            ("step", "ten"),
            ("step", -1),
            ("step", 10**30),
            ("position", [0]),
            ("replicas", 0),
            ("audio_s", None),
            ("best", [5]),
            ("settings", []),
            ("symbols", [1]),
            ("ancestor", {"symbols": "all"}),
            ("participants", [1]),
        ):
            self.state.write_text(json.dumps(METADATA | {key: value}))
            with self.subTest(key=key, value=value):
                message = self.message(read_metadata, self.checkpoint)
                self.assertRegex(
                    message,
                    rf"^{self.state} cannot be read: {key}[\w.]*: .*The newest intact"
                    r" checkpoint is ",
                )
        for text in ("[" * 100_000, "9" * 5_000):
            self.state.write_text(text)
            self.assertIn(
                f"{self.state} cannot be read", self.message(read_metadata, self.checkpoint)
            )

    def test_a_long_name_in_an_archive_is_not_quoted_whole(self):
        with zipfile.ZipFile(self.archive, "w") as archive:
            archive.writestr("x" * 60_000, b"no array")
        with self.assertRaises(CheckpointError) as caught:
            read_arrays(self.archive)
        self.assertLess(len(str(caught.exception)), 1_000)

    def test_a_long_format_is_not_quoted_whole(self):
        self.state.write_text(json.dumps({"format": "x" * 60_000}))
        with self.assertRaises(CheckpointError) as caught:
            read_metadata(self.checkpoint)
        self.assertLess(len(str(caught.exception)), 1_000)

    def test_of_many_values_of_another_type_one_is_an_error(self):
        for values in (
            '"symbols": [[], []]',
            '"observing": [[1, [1, 1]], 1]',
            '"position": [0, 0, [1, 1]]',
        ):
            with self.assertRaises(ValidationError) as caught:
                check_types(f"{{{values}}}")
            self.assertEqual(caught.exception.error_count(), 1, values)
        with self.assertRaisesRegex(ValidationError, "it has 10,001 entries"):
            check_types(json.dumps({"missed_syncs": {str(number): "" for number in range(10_001)}}))

    def test_no_flipped_bit_of_the_metadata_changes_what_is_read(self):
        write(self.folder, 20, NEW)
        checkpoint = checkpoint_of(self.folder, 20)
        expected, whole = read_metadata(checkpoint), (checkpoint / "state.json").read_bytes()
        self.assertEqual(expected, {"format": FORMAT, "step": 20, "best": None})
        for bit in range(len(whole) * 8):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            (checkpoint / "state.json").write_bytes(damaged)
            with contextlib.suppress(
                CheckpointError
            ):  # else it is a bit of the line of the checksum
                self.assertEqual(
                    {**read_metadata(checkpoint), **expected}, read_metadata(checkpoint), bit
                )

    def test_metadata_without_checksum_are_read(self):
        self.state.write_text(json.dumps(METADATA))
        self.assertEqual(read_metadata(self.checkpoint), METADATA)

    def test_a_missing_key_of_the_metadata_is_named(self):
        self.state.write_text(json.dumps(METADATA | {"settings": {"training": {}}}))
        metadata = read_metadata(self.checkpoint)
        self.assertIn(f"{self.state} lacks 'best'. ", self.message(read_best, self.checkpoint))
        missing = self.message(lambda: metadata["settings"]["training"]["ema_decay"])
        self.assertIn(f"{self.state} lacks 'settings.training.ema_decay'. ", missing)

    def test_a_damaged_checkpoint_names_the_newest_intact_one_and_how_to_take_it(self):
        for step in (20, 30):
            write(self.folder, step, NEW)
            (checkpoint_of(self.folder, step) / "optimizer.npz").write_bytes(b"damaged")
        broken = self.folder / "step-000030"
        damaged = self.message(read_arrays, broken / "optimizer.npz")
        self.assertIn(
            f"The newest intact checkpoint is {self.checkpoint}. To use it, remove {broken} and "
            f"{self.folder / 'step-000020'}.",
            damaged,
        )
        for checkpoint in self.folder.iterdir():
            (checkpoint / "model.npz").unlink()
        self.assertIn(
            f"No other checkpoint in {self.folder} is intact: start another run with --run.",
            self.message(read_arrays, broken / "model.npz"),
        )

    def test_a_checkpoint_that_a_run_removed_meanwhile_is_not_called_damaged(self):
        removed = checkpoint_of(self.checkpoint.parent, 99)
        with self.assertRaisesRegex(CheckpointError, "was removed meanwhile") as raised:
            read_arrays(removed / "model.npz")
        self.assertNotIn("To use it, remove", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
