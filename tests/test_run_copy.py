"""A run in an object store: what another machine finds there after each step of the copying."""

import os
from pathlib import Path
from unittest import mock

import numpy as np

from myxtts import stores
from myxtts.config.schema import Config, PlacementConfig, RunConfig
from myxtts.errors import ConfigError, DataError
from myxtts.stores import local_path
from myxtts.throughput.auto import choose_placement
from myxtts.training.checkpoint_files import Checkpoint, checkpoint_of, write_checkpoint
from myxtts.training.run_copy import RunCopy, run_copy
from myxtts.training.runs import RunFolder
from tests.fixtures import FolderCase, files_below, make_record
from tests.test_packed import buckets_in

URL = "s3://bucket/runs"


class RunCopyTest(FolderCase):
    def setUp(self):
        super().setUp()
        buckets_in(self.folder, self)
        (self.folder / "bucket/runs/voice").mkdir(parents=True)

    def machine(self, name: str) -> RunFolder:
        """Return the local folder of the run, as it is on a machine."""
        cache = {"XDG_CACHE_HOME": str(self.folder / name)}
        with mock.patch.dict(os.environ, cache):
            return RunFolder(local_path(URL, "voice"))

    def copy(self, folder: RunFolder) -> RunCopy:
        return RunCopy(f"{URL}/voice", folder)

    def save(self, folder: RunFolder, step: int, **values) -> Path:
        weights = {"w": np.full(3, step, np.float32)}
        record = make_record(step=step, **values)
        target = checkpoint_of(folder.checkpoints, step)
        write_checkpoint(target, [("model", weights.items())], record)
        return target

    def stored(self) -> dict[str, bytes]:
        return files_below(self.folder / "bucket/runs/voice")

    def test_another_machine_gets_the_complete_checkpoints_and_the_other_files(self):
        first = self.machine("a")
        copy = self.copy(first)
        for step in (1, 2, 3):
            self.save(first, step)
        (first.path / "metrics.jsonl").write_text("{}\n")
        for name in (".lock", "manifest-train.npz", "pcm-1.int16", "worker-1/log.txt"):
            (first.path / name).parent.mkdir(exist_ok=True)
            (first.path / name).write_text("stays")
        copy.update()
        self.assertNotIn("stays", map(bytes.decode, filter(bytes.isascii, self.stored().values())))
        second = self.machine("b")
        self.copy(second).fetch()
        self.assertEqual(files_below(second.path), self.stored())
        np.testing.assert_array_equal(
            Checkpoint.read(checkpoint_of(second.checkpoints, 3)).arrays("model")["w"], [3, 3, 3]
        )

    def test_half_a_checkpoint_counts_as_none(self):
        first = self.machine("a")
        copy = self.copy(first)
        self.save(first, 1)
        copy.update()
        self.save(first, 2)
        put = stores.Store.put

        def fail_at_state(store, name, path):
            if name.endswith("step-000002/state.json"):
                raise DataError("the server is gone")
            put(store, name, path)

        with mock.patch.object(stores.Store, "put", fail_at_state), self.assertRaises(DataError):
            copy.update()
        self.assertIn("checkpoints/step-000002/model.safetensors", self.stored())
        second = self.machine("b")
        self.copy(second).fetch()
        self.assertEqual([path.name for path in second.checkpoints.iterdir()], ["step-000001"])
        copy.update()
        third = self.machine("c")
        self.copy(third).fetch()
        self.assertTrue(checkpoint_of(third.checkpoints, 2).exists())

    def test_only_changes_are_copied_and_removed_checkpoints_go(self):
        first = self.machine("a")
        copy = self.copy(first)
        one = self.save(first, 1)
        two = self.save(first, 2)
        copy.update()
        with mock.patch.object(stores.Store, "put") as put:
            copy.update()
            self.copy(first).fetch()
        put.assert_not_called()
        Checkpoint.read(two).update(since_best=4)
        for path in one.iterdir():
            path.unlink()
        one.rmdir()
        with mock.patch.object(
            stores.Store, "put", autospec=True, side_effect=stores.Store.put
        ) as put:
            copy.update()
        names = [call.args[1] for call in put.call_args_list]
        self.assertEqual(names, ["checkpoints/step-000002/state.json"])
        self.assertFalse([name for name in self.stored() if "step-000001" in name])

    def test_a_machine_that_is_ahead_keeps_its_own(self):
        first = self.machine("a")
        self.save(first, 1)
        self.copy(first).update()
        own = self.save(first, 2)
        copy = self.copy(first)
        copy.fetch()
        self.assertTrue(own.exists())
        copy.update()
        self.assertTrue([name for name in self.stored() if "step-000002" in name])

    def test_a_run_of_the_same_name_is_refused_without_resume(self):
        config = RunConfig(run="voice", runs_dir=URL)
        with run_copy(config, self.machine("a")) as update:
            self.save(self.machine("a"), 1)
            update()
        refused = self.assertRaisesRegex(ConfigError, "s3://bucket/runs/voice already holds one")
        with refused, run_copy(config, self.machine("b")):
            pass
        resumed = config.model_copy(update={"resume": True})
        with run_copy(resumed, self.machine("b")):
            self.assertTrue(checkpoint_of(self.machine("b").checkpoints, 1).exists())

    def test_automatic_placement_is_that_of_a_run_that_only_the_store_has(self):
        placed = Config(placement=PlacementConfig(simulate_gpus=2, data_gpu=1, model_gpu=0))
        first = self.machine("a")
        self.save(first, 1, settings=placed)
        self.copy(first).update()
        config = Config(
            run=RunConfig(run="voice", runs_dir=URL, resume=True),
            placement=PlacementConfig(placement="auto", simulate_gpus=2),
        )
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "b")):
            chosen = choose_placement(config, mock.Mock(side_effect=AssertionError))
        self.assertEqual((chosen.placement.data_gpu, chosen.placement.model_gpu), (1, 0))
