"""Jobs that merge their weights by files: who is waited for, what all go on from, what a stop or a late one does.

Two jobs run in one thread: while one waits, it lets the other one work.
"""

import contextlib
import logging
import os
import signal
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

from myxtts.errors import CheckpointError, ConfigError
from myxtts.local_sgd.sync import STAND_IN_S, OuterOptimizer, SyncGroup, WeightSync
from myxtts.training.checkpoint_files import latest, read_metadata
from myxtts.training.state import TrainingState
from tests.tiny import Workplace, arrays_of, build_toy, state_of

TIMEOUT_S = 60.0
OF_MERGES = ("sync_every", "jobs", "outer_learning_rate", "outer_momentum", "merge_optimizer")


class Job:
    """A job, whose training is to add a number to each weight."""

    def __init__(
        self, folder: Path, number: int, jobs: int = 2, start: str = "same", changed=None, fresh=True, **options
    ):
        self.state: TrainingState = state_of(build_toy(seed=0))
        self.now_s = 0.0
        self.meanwhile = lambda: None
        self.stopped = False
        peers = SyncGroup(folder, number, jobs, every=10, timeout_s=TIMEOUT_S)
        options = {"outer": OuterOptimizer(), "optimizer": "keep", "total_steps": 35} | options
        settings = {"local_sgd": {name: None for name in OF_MERGES} | {"jobs": jobs}}
        metadata = {"start": start, "symbols": ["a"], "languages": ("en",), "settings": settings} | (changed or {})
        self.exchange = WeightSync(peers, metadata=metadata, clock_s=lambda: self.now_s, sleep=self.sleep, **options)
        self.exchange.begin(self.state, fresh)

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.meanwhile()

    def train(self, to_step: int, change: float, audio_s: float = 1.0) -> "Job":
        self.state.step = to_step
        self.state.audio_s += audio_s
        self.state.unmerged_s += audio_s
        for variable in self.state.trained:
            variable.assign_add(np.full(variable.shape, change, np.float32))
        return self

    def merge(self) -> bool:
        return self.exchange.merge(self.state, lambda: self.stopped)

    @property
    def weights(self) -> list[np.ndarray]:
        return [v.numpy() for v in self.state.trained]

    @property
    def change(self) -> float:
        """Of its weights since the start, where that is the same for all."""
        (found,) = {
            round(float(x), 4) for now, then in zip(self.weights, START, strict=True) for x in np.ravel(now - then)
        }
        return found


START = [v.numpy() for v in build_toy(seed=0).trainable_variables]


def merge_both(one: Job, other: Job) -> None:
    """Both come to the end of a round at the same time."""
    one.meanwhile = lambda: other.exchange.is_due(other.state) and other.merge()
    one.merge()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "rounds"
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def pair(self, **options) -> tuple[Job, Job]:
        return Job(self.folder, 0, **options), Job(self.folder, 1, **options)


class Rounds(Case):
    def test_jobs_go_on_from_the_mean_by_the_audio_that_each_has_heard(self):
        one, other = self.pair()
        one.train(10, 1.0, audio_s=30.0)
        other.train(10, 2.0, audio_s=10.0)
        merge_both(one, other)
        self.assertEqual((one.change, other.change), (1.25, 1.25))
        self.assertEqual((one.state.audio_s, one.state.unmerged_s, other.state.unmerged_s), (30.0, 0.0, 0.0))
        parts = read_metadata(self.folder / "sync-000010/merged")["parts"]
        self.assertEqual([(part["job"], part["share"]) for part in parts], [(0, 0.75), (1, 0.25)])
        merge_both(one.train(20, 1.0), other.train(20, 0.0))
        self.assertEqual((one.change, other.change), (1.75, 1.75))

    def test_averages_are_merged_as_the_weights_are(self):
        one, other = self.pair()
        for job, value in ((one, 1.0), (other, 3.0)):
            job.train(10, 0.0)
            for average in job.state.averages:
                average.assign(np.full(average.shape, value, np.float32))
        merge_both(one, other)
        for job in (one, other):
            self.assertEqual({float(x) for v in job.state.averages for x in np.ravel(v.numpy())}, {2.0})

    def test_a_round_ends_at_each_multiple_and_at_the_last_step_and_once(self):
        job = Job(self.folder, 0)
        due = []
        for step in range(1, 36):
            job.train(step, 0.0)
            if job.exchange.is_due(job.state):
                due.append(step)
                job.state.unmerged_s = 0.0  # as a merge leaves it
        self.assertEqual(due, [10, 20, 30, 35])
        self.assertFalse(job.exchange.is_due(job.state))

    def test_files_of_past_rounds_do_not_pile_up(self):
        one, other = self.pair(total_steps=100)
        for step in range(10, 100, 10):
            merge_both(one.train(step, 0.0), other.train(step, 0.0))
        kept = sorted(path.name for path in self.folder.iterdir())
        self.assertEqual(kept, ["sync-000070", "sync-000080", "sync-000090"])
        given = sorted(path.parent.name for path in self.folder.glob("sync-*/job-*"))
        self.assertEqual(given, ["sync-000090", "sync-000090"])


class Lost(Case):
    def test_one_that_does_not_come_is_waited_for_once_and_no_longer_than_the_limit(self):
        one = Job(self.folder, 0)
        one.train(10, 1.0).merge()
        self.assertAlmostEqual(one.now_s, TIMEOUT_S, delta=1.0)
        self.assertEqual(one.change, 1.0)
        one.train(20, 1.0).merge()
        self.assertAlmostEqual(one.now_s, TIMEOUT_S, delta=1.0)

    def test_one_that_comes_late_goes_on_from_the_newest_merge_and_is_waited_for_again(self):
        one, other = self.pair()
        one.train(10, 1.0).merge()
        one.train(20, 1.0).merge()
        other.train(10, 5.0).merge()
        self.assertEqual((other.change, other.state.step, other.state.unmerged_s), (2.0, 20, 0.0))
        one.now_s = 0.0
        other.train(30, 2.0)
        merge_both(one.train(30, 0.0), other)
        self.assertLess(one.now_s, 1.0)
        self.assertEqual((one.change, other.change), (3.0, 3.0))

    def test_another_merges_where_the_first_one_stays_away_from_its_turn(self):
        one, other = self.pair()
        one.train(10, 1.0).stopped = True
        self.assertFalse(one.merge())  # has given
        other.train(10, 3.0).merge()
        self.assertAlmostEqual(other.now_s, STAND_IN_S, delta=1.0)
        self.assertEqual(other.change, 2.0)

    def test_a_merge_that_another_has_published_meanwhile_is_taken(self):
        one, other = self.pair()
        one.train(10, 1.0)
        other.train(10, 3.0)
        merged_by_other = other.exchange._merge

        def both(*arguments):
            one.exchange._merge(*arguments)
            theirs = dict(arrays_of(self.folder / "sync-000010/merged"))
            merged_by_other(*arguments)
            self.assertEqual(theirs.keys(), dict(arrays_of(self.folder / "sync-000010/merged")).keys())

        other.exchange._merge = both
        one.stopped = True
        one.merge()
        other.merge()
        self.assertEqual(other.change, 2.0)
        self.assertEqual([path.name for path in (self.folder / "sync-000010").glob(".*")], [])

    def test_what_is_damaged_is_left_out_as_if_its_job_had_not_come(self):
        one, other = self.pair()
        other.train(10, 9.0).stopped = True
        other.merge()
        archive = self.folder / "sync-000010/job-001/model.npz"
        archive.write_bytes(archive.read_bytes()[:-100])
        one.train(10, 1.0).merge()
        self.assertEqual(one.change, 1.0)
        metadata = read_metadata(self.folder / "sync-000010/merged")
        self.assertEqual(([part["job"] for part in metadata["parts"]], metadata["missed"]), ([0], {"1": 1}))

    def test_the_rounds_that_each_has_missed_are_counted(self):
        one, other = self.pair(total_steps=100)
        for step in (10, 20):
            one.train(step, 0.0).merge()
        other.train(10, 0.0).merge()
        merge_both(one.train(30, 0.0), other.train(30, 0.0))
        self.assertEqual(read_metadata(self.folder / "sync-000030/merged")["missed"], {"1": 2})


class Stopped(Case):
    def test_one_that_is_stopped_while_it_waits_is_still_due_and_gives_the_same(self):
        one, other = self.pair()
        one.train(10, 1.0).meanwhile = lambda: setattr(one, "stopped", True)
        self.assertFalse(one.merge())
        self.assertEqual((one.change, one.state.unmerged_s), (1.0, 1.0))
        self.assertTrue(one.exchange.is_due(one.state))
        one.stopped = False
        merge_both(one, other.train(10, 3.0))
        self.assertEqual((one.change, other.change), (2.0, 2.0))

    def test_a_file_that_a_kill_left_is_written_again(self):
        one, other = self.pair()
        (self.folder / "sync-000010/.partial-job-000").mkdir(parents=True)
        (self.folder / "sync-000010/.partial-job-000/model.npz").write_text("half")
        (self.folder / "sync-000010/.partial-merged-job-000").mkdir()
        merge_both(one.train(10, 1.0), other.train(10, 3.0))
        self.assertEqual((one.change, other.change), (2.0, 2.0))


class Optimizers(Case):
    def moments(self, job: Job) -> dict[str, float]:
        return {v.path.split("/")[-1]: float(np.ravel(v.numpy())[0]) for v in job.state.optimizer.variables}

    def merged(self, optimizer: str) -> Job:
        one, other = self.pair(optimizer=optimizer)
        for job, value in ((one, 1.0), (other, 3.0)):
            job.train(10, 0.0)
            for variable in job.state.optimizer.variables:
                variable.assign(np.full(variable.shape, value, variable.dtype))
        merge_both(one, other)
        return one

    def test_are_kept_averaged_or_reset(self):
        for optimizer, expected in (("keep", (1, 1.0)), ("average", (3, 2.0)), ("reset", (0, 0.0))):
            with self.subTest(optimizer):
                self.setUp()
                found = self.moments(self.merged(optimizer))
                momentum = next(value for name, value in found.items() if name.endswith("momentum"))
                self.assertEqual((found["iteration"], momentum), expected)

    def test_the_outer_one_steps_by_nesterov_on_the_mean_change(self):
        one, other = self.pair(outer=OuterOptimizer(rate=0.5, momentum=0.5))
        merge_both(one.train(10, 1.0), other.train(10, 3.0))  # mean change 2: momentum 2, step 0.5 * (2 + 1)
        self.assertEqual((one.change, other.change), (1.5, 1.5))
        merge_both(one.train(20, 1.0), other.train(20, 1.0))  # mean change 1: momentum 2, step 0.5 * (1 + 1)
        self.assertEqual((one.change, other.change), (2.5, 2.5))

    def test_the_outer_one_moves_averages_as_far_as_the_weights(self):
        one, other = self.pair(outer=OuterOptimizer(rate=0.5))
        before = [v.numpy() for v in one.state.averages]
        merge_both(one.train(10, 2.0), other.train(10, 2.0))
        for now, then in zip(one.state.averages, before, strict=True):
            np.testing.assert_allclose(now.numpy(), then - 1.0, atol=1e-6)  # half of 2 is not taken over


class Refused(Case):
    def test_jobs_of_another_start_other_rows_or_other_merges_are_named(self):
        others = {
            "start": {"start": "other"},
            "symbols": {"symbols": ["b"]},
            "jobs": {"settings": {"local_sgd": {name: None for name in OF_MERGES} | {"jobs": 3}}},
        }
        for name, changed in others.items():
            with self.subTest(name):
                folder = self.folder / name
                one, other = Job(folder, 0), Job(folder, 1, changed=changed)
                one.train(10, 1.0).stopped = True
                one.merge()
                with self.assertRaisesRegex(CheckpointError, f"job-000 and this run .* have not the same {name}"):
                    other.train(10, 1.0).merge()

    def test_a_merge_of_other_jobs_is_not_taken(self):
        one, other = self.pair()
        merge_both(one.train(10, 1.0), other.train(10, 1.0))
        late = Job(self.folder, 1, start="other", fresh=False)
        with self.assertRaisesRegex(CheckpointError, "merged and this run cannot be merged.* the same start"):
            late.train(10, 1.0).merge()

    def test_weights_that_are_not_finite_are_named(self):
        one, other = self.pair()
        other.train(10, np.inf).stopped = True
        other.merge()
        with self.assertRaisesRegex(CheckpointError, r"job-001/model.npz is not finite"):
            one.train(10, 1.0).merge()

    def test_a_folder_that_another_run_has_used_is_refused(self):
        one, other = self.pair()
        merge_both(one.train(10, 1.0), other.train(10, 1.0))
        with self.assertRaisesRegex(ConfigError, "was given to a new run"):
            Job(self.folder, 0)


@contextlib.contextmanager
def stopped_in_wait(step: int):
    """In its scope a run that waits at a step is asked to stop, by SIGTERM, before it may merge."""
    wait = WeightSync._wait

    def stopped_first(self, end, trained, stopped):
        if end == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return wait(self, end, trained, stopped)

    with mock.patch.object(WeightSync, "_wait", stopped_first):
        yield


class Run(unittest.TestCase):
    """Runs of the toy by the command line."""

    @classmethod
    def setUpClass(cls):
        cls.place = Workplace.of_toys(cls.addClassCleanup)
        cls.whole = cls.place.train("whole")

    def final(self, name: str) -> dict[str, bytes]:
        return {key: array.tobytes() for key, array in arrays_of(latest(self.place.run(name) / "checkpoints"))}

    def test_whose_others_never_come_trains_as_if_it_were_alone(self):
        exchange = ("--sync-dir", str(self.place.folder / "rounds"), "--jobs", "2", "--job", "1")
        alone = self.place.train("alone", "--sync-every", "3", *exchange, "--sync-timeout", "0.1")
        self.assertEqual((alone.code, alone.err), (0, ""))
        self.assertEqual(alone.out.count("merged         the weights of jobs 1 at step "), 3)
        self.assertEqual(self.final("alone"), self.final("whole"))
        steps = sorted(path.name for path in (self.place.run("alone") / "checkpoints").iterdir())
        self.assertEqual(steps, ["step-000003", "step-000006", "step-000008"])

    def jobs(self, exchange: str, *flags: str) -> tuple[str, ...]:
        fixed = f"--sync-every 3 --sync-dir {self.place.folder / exchange} --jobs 2 --job 1 --sync-timeout"
        return (*fixed.split(), *flags)

    def test_that_is_stopped_while_it_waits_goes_on_with_that_merge(self):
        for at in (3, 8):  # in the midst, and at the last step
            with self.subTest(at=at):
                name, others = f"stopped-{at}", stopped_in_wait(at)
                with others:
                    stopped = self.place.train(name, *self.jobs(f"rounds-{at}", "0.1"))
                self.assertEqual(stopped.code, 143, stopped.err)
                self.assertEqual(latest(self.place.run(name) / "checkpoints").name, f"step-{at:06d}")
                self.assertGreater(read_metadata(latest(self.place.run(name) / "checkpoints"))["unmerged_s"], 0)
                resumed = self.place.train(name, *self.jobs(f"rounds-{at}", "0.1"), "--resume")
                self.assertEqual((resumed.code, resumed.err), (0, ""))
                self.assertIn(f"jobs 1 at step {at}, ", resumed.out)
                self.assertEqual(self.final(name), self.final("whole"))
                self.assertEqual(read_metadata(latest(self.place.run(name) / "checkpoints"))["unmerged_s"], 0)

    def test_that_is_made_longer_trains_on_where_a_round_was_short(self):
        flags = self.jobs("longer", "0.1")
        self.assertEqual(self.place.train("longer", *flags, "--max-steps", "7").code, 0)
        seventh = self.final("longer")
        self.assertEqual(self.place.train("longer", *flags, "--max-steps", "9", "--resume").code, 0)
        self.assertEqual(latest(self.place.run("longer") / "checkpoints").name, "step-000009")
        kernel = next(name for name in seventh if name.startswith("model/") and name.endswith("kernel"))
        self.assertNotEqual(self.final("longer")[kernel], seventh[kernel])

    def test_that_pauses_at_a_step_and_goes_on_equals_one_that_did_not(self):
        paused = self.place.train("paused", "--stop-at-step", "4")
        self.assertEqual((paused.code, paused.err), (0, ""))
        self.assertEqual(latest(self.place.run("paused") / "checkpoints").name, "step-000004")
        self.assertEqual(self.place.train("paused", "--resume").code, 0)
        self.assertEqual(self.final("paused"), self.final("whole"))

    def test_that_pauses_before_its_first_step_keeps_its_first_weights_and_goes_on_from_them(self):
        begun = self.place.train("begun", "--stop-at-step", "0")
        self.assertEqual((begun.code, begun.err), (0, ""))
        self.assertEqual(os.listdir(self.place.run("begun") / "checkpoints"), ["step-000000"])
        self.assertEqual(self.place.train("begun", "--resume").code, 0)
        self.assertEqual(self.final("begun"), self.final("whole"))
        starts = {read_metadata(latest(self.place.run(name) / "checkpoints"))["start"] for name in ("begun", "whole")}
        self.assertEqual(len(starts), 1)


if __name__ == "__main__":
    unittest.main()
