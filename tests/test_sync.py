"""Local SGD: which jobs a sync waits for, what all jobs continue from, and the effect of stops and
late jobs.

Two jobs run in one thread: while one waits, the other one works.
"""

import contextlib
import logging
import os
import shutil
import signal
import unittest
from collections.abc import Iterator
from copy import copy
from functools import cache
from itertools import count
from pathlib import Path
from unittest import mock

import numpy as np

from myxtts.base.errors import CheckpointError, ConfigError, PeerLost
from myxtts.checkpoints.files import latest, read_record
from myxtts.config.checks import check_settings
from myxtts.config.schema import Config, LocalSGDConfig, TrainingConfig
from myxtts.extras.jobs.sync import TAKEOVER_S, WeightSync
from myxtts.report.metrics import read_metrics
from myxtts.run.state import TrainingState
from tests.fixtures import make_record, temporary_folder
from tests.tiny import Workspace, arrays_of, build_toy, training_state

TIMEOUT_S = 60.0


@cache
def built(place: int) -> tuple[TrainingState, list[np.ndarray]]:
    """Return a state and its first values. Building one takes 0.3 s, so all tests share them."""
    state = training_state(build_toy(seed=0))
    return state, [variable.numpy() for variable in all_variables(state)]


def all_variables(state: TrainingState) -> list:
    counters = state.bad_step, state.skipped_updates
    return [*state.model.variables, *state.optimizer.variables, *state.averages, *counters]


class Job:
    """A job whose training adds a number to each weight."""

    places: Iterator[int]  # of the states of the next jobs of a test

    def __init__(self, folder: Path, number: int, new_run=True, total_steps=35, **options):
        state, first_values = built(next(Job.places))
        self.state = copy(state)
        for variable, value in zip(all_variables(state), first_values, strict=True):
            variable.assign(value)
        self.now_s = 0.0
        self.while_waiting = lambda: None
        self.stopped = False
        values = {name: options.pop(name) for name in ("start", "symbols") if name in options}
        settings = {"jobs": 2, "sync_optimizer": "keep", "sync_timeout": TIMEOUT_S}
        settings |= {"sync_quorum": 1} | options
        local_sgd = LocalSGDConfig(sync_dir=str(folder), job=number, sync_every=10, **settings)
        record = make_record(**{"start": "same", "settings": Config(local_sgd=local_sgd)} | values)
        self.weight_sync = WeightSync(record, total_steps, lambda: self.now_s, self.sleep)
        self.weight_sync.prepare(self.state, new_run)

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.while_waiting()

    def train(self, to_step: int, change: float, audio_s: float = 1.0) -> "Job":
        self.state.step = to_step
        self.state.audio_s += audio_s
        self.state.audio_s_since_sync += audio_s
        for variable in self.state.trained:
            variable.assign_add(np.full(variable.shape, change, np.float32))
        return self

    def sync(self) -> bool:
        return self.weight_sync.sync(self.state, lambda: self.stopped)

    @property
    def weights(self) -> list[np.ndarray]:
        return [v.numpy() for v in self.state.trained]

    @property
    def change(self) -> float:
        """The change of the weights since the start, which is the same for all."""
        pairs = zip(self.weights, START, strict=True)
        changes = np.concatenate([np.ravel(now - then) for now, then in pairs])
        (change,) = set(np.round(changes.astype(float), 4))
        return change


START = [v.numpy() for v in build_toy(seed=0).trainable_variables]


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sync_both(first: Job, second: Job) -> None:
    """Both jobs reach a sync at the same time."""
    first.while_waiting = lambda: second.weight_sync.is_due(second.state) and second.sync()
    first.sync()


class Case(unittest.TestCase):
    def setUp(self):
        Job.places = count()
        self.folder = temporary_folder(self.addCleanup) / "syncs"
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def pair(self, **options) -> tuple[Job, Job]:
        return Job(self.folder, 0, **options), Job(self.folder, 1, **options)


class Syncs(Case):
    def test_jobs_continue_from_the_mean_weighted_by_audio(self):
        first, second = self.pair()
        sync_both(first.train(10, 1.0, audio_s=30.0), second.train(10, 2.0, audio_s=10.0))
        self.assertEqual((first.change, second.change), (1.25, 1.25))
        self.assertEqual(first.state.audio_s, 30.0)
        self.assertEqual([job.state.audio_s_since_sync for job in (first, second)], [0.0, 0.0])
        participants = read_record(self.folder / "sync-000010/averaged").participants
        shares = [(entry.job, entry.coefficient) for entry in participants]
        self.assertEqual(shares, [(0, 0.75), (1, 0.25)])
        sync_both(first.train(20, 1.0), second.train(20, 0.0))
        self.assertEqual((first.change, second.change), (1.75, 1.75))

    def test_moving_averages_are_averaged_like_the_weights(self):
        first, second = self.pair()
        for job, value in ((first, 1.0), (second, 3.0)):
            for average in job.train(10, 0.0).state.averages:
                average.assign(np.full(average.shape, value, np.float32))
        sync_both(first, second)
        for average in (*first.state.averages, *second.state.averages):
            self.assertEqual(np.unique(average.numpy()).tolist(), [2.0])

    def test_a_sync_is_due_once_at_each_multiple_and_at_the_last_step(self):
        job = Job(self.folder, 0)
        due = []
        for step in range(1, 36):
            job.train(step, 0.0)
            if job.weight_sync.is_due(job.state):
                due.append(step)
                job.state.audio_s_since_sync = 0.0  # as a sync leaves it
        self.assertEqual(due, [10, 20, 30, 35])
        self.assertFalse(job.weight_sync.is_due(job.state))

    def test_folders_of_past_syncs_are_removed(self):
        first, second = self.pair(total_steps=100)
        for step in range(10, 100, 10):
            sync_both(first.train(step, 0.0), second.train(step, 0.0))
        self.assertEqual(names_of(self.folder), ["sync-000070", "sync-000080", "sync-000090"])
        given = [path.parent.name for path in self.folder.glob("sync-*/job-*")]
        self.assertEqual(given, ["sync-000090", "sync-000090"])

    def test_the_first_participant_removes_them_even_if_it_is_alone(self):
        job = Job(self.folder, 0, total_steps=100)
        for step in range(10, 60, 10):
            job.train(step, 0.0).sync()
        self.assertEqual([name[-2:] for name in names_of(self.folder)], ["30", "40", "50"])


class LateAndLostJobs(Case):
    def test_an_absent_job_is_waited_for_once_and_up_to_the_timeout(self):
        first = Job(self.folder, 0)
        first.train(10, 1.0).sync()
        self.assertAlmostEqual(first.now_s, TIMEOUT_S, delta=1.0)
        self.assertEqual(first.change, 1.0)
        first.train(20, 1.0).sync()
        self.assertAlmostEqual(first.now_s, TIMEOUT_S, delta=1.0)

    def test_jobs_that_do_not_see_each_other_end_instead_of_training_apart(self):
        logging.disable(logging.NOTSET)
        for number in (0, 1):
            job = Job(self.folder / str(number), number, sync_quorum=None)
            with (
                self.assertLogs("myxtts", "WARNING") as logs,
                self.assertRaisesRegex(PeerLost, "1 of 2 jobs .* quorum of 2 .* within 60 s"),
            ):
                job.train(10, 1.0).sync()
            self.assertEqual((len(logs.records), round(job.now_s)), (1, TIMEOUT_S))
            # It can be started again, and owes the sync.
            self.assertTrue(job.weight_sync.is_due(job.state))

    def test_more_than_half_of_the_jobs_go_on_without_the_others(self):
        for number, expected in ((3, 2), (4, 3)):
            job = Job(self.folder, 0, jobs=number, sync_quorum=None)
            self.assertEqual(job.weight_sync._quorum, expected)
        sync = LocalSGDConfig(sync_every=1, sync_dir="a", jobs=2, sync_quorum=3)
        with self.assertRaisesRegex(ConfigError, "sync_quorum is 3 of 2 jobs"):
            check_settings(Config(local_sgd=sync))

    def test_a_late_job_continues_from_the_newest_average_and_is_waited_for_again(self):
        first, second = self.pair()
        first.train(10, 1.0).sync()
        first.train(20, 1.0).sync()
        second.train(10, 5.0).sync()
        state = second.state
        self.assertEqual((second.change, state.step, state.audio_s_since_sync), (2.0, 20, 0.0))
        first.now_s = 0.0
        second.train(30, 2.0)
        sync_both(first.train(30, 0.0), second)
        self.assertLess(first.now_s, 1.0)
        self.assertEqual((first.change, second.change), (3.0, 3.0))

    def test_the_next_job_averages_if_the_first_one_does_not(self):
        first, second = self.pair()
        first.train(10, 1.0).stopped = True
        self.assertFalse(first.sync())  # has contributed
        second.train(10, 3.0).sync()
        self.assertAlmostEqual(second.now_s, TAKEOVER_S, delta=1.0)
        self.assertEqual(second.change, 2.0)

    def test_an_average_that_another_job_published_first_is_loaded(self):
        first, second = self.pair()
        first.train(10, 1.0)
        second.train(10, 3.0)
        second_average = second.weight_sync._average

        def both(*arguments):
            first.weight_sync._average(*arguments)
            averaged = self.folder / "sync-000010/averaged"
            published = averaged.stat().st_ino
            second_average(*arguments)
            # Not replaced: the other job may be loading it.
            self.assertEqual(averaged.stat().st_ino, published)

        second.weight_sync._average = both
        first.stopped = True
        first.sync()
        second.sync()
        self.assertEqual(second.change, 2.0)
        self.assertEqual([path.name for path in (self.folder / "sync-000010").glob(".*")], [])

    def test_a_damaged_contribution_is_left_out_as_if_its_job_were_absent(self):
        first, second = self.pair()
        second.train(10, 9.0).stopped = True
        second.sync()
        archive = self.folder / "sync-000010/job-001/model.safetensors"
        archive.write_bytes(archive.read_bytes()[:-100])
        first.train(10, 1.0).sync()
        self.assertEqual(first.change, 1.0)
        record = read_record(self.folder / "sync-000010/averaged")
        jobs = [entry.job for entry in record.participants]
        self.assertEqual((jobs, record.missed_syncs), ([0], {1: 1}))

    def test_missed_syncs_are_counted_per_job(self):
        first, second = self.pair(total_steps=100)
        for step in (10, 20):
            first.train(step, 0.0).sync()
        second.train(10, 0.0).sync()
        sync_both(first.train(30, 0.0), second.train(30, 0.0))
        self.assertEqual(read_record(self.folder / "sync-000030/averaged").missed_syncs, {1: 2})


class StoppedJobs(Case):
    def test_a_sync_stopped_while_waiting_stays_due_and_keeps_its_contribution(self):
        first, second = self.pair()
        first.train(10, 1.0).while_waiting = lambda: setattr(first, "stopped", True)
        self.assertFalse(first.sync())
        self.assertEqual((first.change, first.state.audio_s_since_sync), (1.0, 1.0))
        self.assertTrue(first.weight_sync.is_due(first.state))
        first.stopped = False
        sync_both(first, second.train(10, 3.0))
        self.assertEqual((first.change, second.change), (2.0, 2.0))

    def test_a_job_killed_while_it_published_its_first_weights_starts_again(self):
        (self.folder / "sync-000000/.partial-averaged-job-000").mkdir(parents=True)
        Job(self.folder, 0, outer_learning_rate=0.5)
        self.assertEqual(names_of(self.folder / "sync-000000"), ["averaged"])

    def test_a_partial_contribution_is_written_again(self):
        first, second = self.pair()
        partial = self.folder / "sync-000010/.partial-job-000"
        partial.mkdir(parents=True)
        (partial / "model.safetensors").write_text("half")
        (partial.parent / ".partial-averaged-job-000").mkdir()
        sync_both(first.train(10, 1.0), second.train(10, 3.0))
        self.assertEqual((first.change, second.change), (2.0, 2.0))


class Optimizers(Case):
    def test_inner_optimizers_are_kept_averaged_or_reset(self):
        for optimizer, expected in (("keep", (1, 1.0)), ("average", (3, 2.0)), ("reset", (0, 0.0))):
            with self.subTest(optimizer):
                self.setUp()
                first, second = self.pair(sync_optimizer=optimizer)
                for job, value in ((first, 1.0), (second, 3.0)):
                    for variable in job.train(10, 0.0).state.optimizer.variables:
                        variable.assign(np.full(variable.shape, value, variable.dtype))
                sync_both(first, second)
                moments = {v.path: np.ravel(v.numpy())[0] for v in first.state.optimizer.variables}
                found = [
                    next(value for path, value in moments.items() if path.endswith(name))
                    for name in ("iteration", "momentum")
                ]
                self.assertEqual((*found,), expected)

    def test_the_outer_optimizer_applies_nesterov_momentum_to_the_mean_change(self):
        first, second = self.pair(outer_learning_rate=0.5, outer_momentum=0.5)
        # Mean change 2: momentum 2, step 0.5 * (2 + 1).
        sync_both(first.train(10, 1.0), second.train(10, 3.0))
        self.assertEqual((first.change, second.change), (1.5, 1.5))
        # Mean change 1: momentum 2, step 0.5 * (1 + 1).
        sync_both(first.train(20, 1.0), second.train(20, 1.0))
        self.assertEqual((first.change, second.change), (2.5, 2.5))

    def test_the_outer_optimizer_moves_averages_as_far_as_the_weights(self):
        first, second = self.pair(outer_learning_rate=0.5)
        before = [v.numpy() for v in first.state.averages]
        sync_both(first.train(10, 2.0), second.train(10, 2.0))
        for now, then in zip(first.state.averages, before, strict=True):
            # Half of the change of 2 is applied.
            np.testing.assert_allclose(now.numpy(), then - 1.0, atol=1e-6)


class Settings(unittest.TestCase):
    def test_jobs_that_sync_have_steps_and_not_epochs(self):
        """Epochs of different shards would end at different steps, where each job waits."""
        local_sgd = LocalSGDConfig(sync_every=10, sync_dir="syncs", jobs=2)
        config = Config(training=TrainingConfig(epochs=3), local_sgd=local_sgd)
        reason = "sync_every.* Give .*--epochs 0"
        with self.assertRaisesRegex(ConfigError, reason):
            check_settings(config)
        check_settings(Config(training=TrainingConfig(max_steps=30), local_sgd=local_sgd))


class Rejected(Case):
    def test_jobs_with_other_initial_weights_symbols_or_sync_settings_are_rejected(self):
        for name, value in (("start", "other"), ("symbols", ("b",)), ("jobs", 3)):
            with self.subTest(name):
                folder = self.folder / name
                first, second = Job(folder, 0), Job(folder, 1, **{name: value})
                first.train(10, 1.0).stopped = True
                first.sync()
                reason = f"job-000 and this run cannot be averaged: they differ in {name}"
                with self.assertRaisesRegex(CheckpointError, reason):
                    second.train(10, 1.0).sync()

    def test_a_new_run_takes_no_weights_of_another_one_even_with_resume(self):
        first, second = self.pair()
        sync_both(first.train(10, 1.0), second.train(10, 1.0))
        new = Job(self.folder / "other", 0)
        new.weight_sync._sync_dir = self.folder
        # It may have been killed in its first sync.
        new.weight_sync.prepare(new.state, new_run=True, resumes=True)
        sync_both(first.train(20, 1.0), second.train(20, 1.0))
        for resumes in (False, True):
            reason = "was given to a new run, but it holds .* of another run"
            with self.assertRaisesRegex(ConfigError, reason):
                new.weight_sync.prepare(new.state, new_run=True, resumes=resumes)

    def test_an_average_of_another_group_is_rejected(self):
        first, second = self.pair()
        sync_both(first.train(10, 1.0), second.train(10, 1.0))
        late = Job(self.folder, 1, start="other", new_run=False)
        reason = "averaged and this run cannot be averaged: they differ in start"
        with self.assertRaisesRegex(CheckpointError, reason):
            late.train(10, 1.0).sync()

    def test_a_non_finite_contribution_is_named(self):
        first, second = self.pair()
        second.train(10, np.inf).stopped = True
        second.sync()
        with self.assertRaisesRegex(CheckpointError, r"job-001/model.safetensors is not finite"):
            first.train(10, 1.0).sync()

    def test_a_sync_dir_that_another_run_used_is_rejected(self):
        first, second = self.pair()
        sync_both(first.train(10, 1.0), second.train(10, 1.0))
        with self.assertRaisesRegex(ConfigError, "was given to a new run"):
            Job(self.folder, 0)


@contextlib.contextmanager
def stopped_while_waiting(at_step: int):
    """Send SIGTERM to a run that waits for the sync at this step."""
    wait = WeightSync._wait_for_average

    def stopped_first(self, step, trained, stop_requested):
        if step == at_step:
            os.kill(os.getpid(), signal.SIGTERM)
        return wait(self, step, trained, stop_requested)

    with mock.patch.object(WeightSync, "_wait_for_average", stopped_first):
        yield


class Run(unittest.TestCase):
    """Runs of the toy model by the command line."""

    @classmethod
    def setUpClass(cls):
        cls.workspace = Workspace.with_toy_models(cls.addClassCleanup)
        cls.whole = cls.workspace.train("whole")

    def train(self, name: str, *flags: str, code: int = 0):
        run = self.workspace.train(name, *flags)
        self.assertEqual((run.code, run.err), (code, ""))
        return run

    def newest(self, name: str) -> Path:
        return latest(self.workspace.run_dir(name) / "checkpoints")

    def final(self, name: str) -> dict[str, bytes]:
        return {key: array.tobytes() for key, array in arrays_of(self.newest(name))}

    def jobs(self, sync_dir: str, *flags: str) -> tuple[str, ...]:
        """Return the flags of a job whose peer never appears."""
        fixed = f"--sync-every 3 --sync-dir {self.workspace.folder / sync_dir}"
        return (
            *fixed.split(),
            *"--jobs 2 --job 1 --sync-timeout 0.1 --sync-quorum 1".split(),
            *flags,
        )

    def test_a_job_whose_peers_never_appear_trains_like_a_single_run(self):
        alone = self.train("alone", *self.jobs("syncs"))
        self.assertEqual(alone.out.count("sync           average of jobs 1 at step "), 3)
        self.assertEqual(self.final("alone"), self.final("whole"))
        steps = names_of(self.workspace.run_dir("alone") / "checkpoints")
        self.assertEqual(steps, ["step-000003", "step-000006", "step-000008"])

    def test_a_job_stopped_while_waiting_resumes_with_that_sync(self):
        for at in (3, 8):  # halfway, and at the last step
            with self.subTest(at=at):
                name = f"stopped-{at}"
                flags = self.jobs(f"syncs-{at}")
                with stopped_while_waiting(at):
                    self.train(name, *flags, code=143)
                self.assertEqual(self.newest(name).name, f"step-{at:06d}")
                self.assertGreater(read_record(self.newest(name)).audio_s_since_sync, 0)
                with stopped_while_waiting(at):
                    again = self.train(name, *flags, "--resume", code=143)
                stop = f"stopped        by SIGTERM at step {at}; resume with --resume"
                self.assertIn(stop, again.out)
                self.assertNotIn("feed  ", again.out)
                resumed = self.train(name, *flags, "--resume")
                self.assertIn(f"jobs 1 at step {at}, ", resumed.out)
                self.assertEqual(self.final(name), self.final("whole"))
                self.assertEqual(read_record(self.newest(name)).audio_s_since_sync, 0)

    def test_a_step_whose_sync_was_owed_is_observed_with_the_average(self):
        flags = ("--validate-every", "3", "--outer-learning-rate", "0.5")
        self.train("validated", *self.jobs("syncs-validated", *flags))
        with stopped_while_waiting(3):
            self.train("owing", *self.jobs("syncs-owing", *flags), code=143)
        self.train("owing", *self.jobs("syncs-owing", *flags), "--resume")
        losses = []
        for name in ("validated", "owing"):
            lines = read_metrics(self.workspace.run_dir(name) / "metrics.jsonl")
            values = {line["step"]: line.get("validation_loss") for line in lines}
            losses.append({step: loss for step, loss in values.items() if loss is not None})
        self.assertEqual(list(losses[0]), [3, 6, 8])
        self.assertEqual(*losses)
        bests = [read_record(self.newest(name)).best for name in ("validated", "owing")]
        self.assertEqual(*bests)

    def test_a_job_killed_in_its_first_sync_repeats_it_without_a_checkpoint(self):
        flags = self.jobs("syncs-killed")
        with stopped_while_waiting(3):
            self.train("killed", *flags, code=143)
        shutil.rmtree(self.workspace.run_dir("killed") / "checkpoints")
        self.train("killed", *flags, "--resume")
        self.assertEqual(self.final("killed"), self.final("whole"))

    def test_a_longer_run_trains_on_after_a_short_last_interval(self):
        flags = self.jobs("longer")
        self.train("longer", *flags, "--max-steps", "7")
        seventh = self.final("longer")
        self.train("longer", *flags, "--max-steps", "9", "--resume")
        self.assertEqual(self.newest("longer").name, "step-000009")
        kernel = next(
            name for name in seventh if name.startswith("model/") and name.endswith("kernel")
        )
        self.assertNotEqual(self.final("longer")[kernel], seventh[kernel])

    def test_a_run_paused_even_before_its_first_step_equals_an_uninterrupted_one(self):
        for step in (4, 0):
            name = f"paused-{step}"
            self.train(name, "--stop-at-step", str(step))
            self.assertEqual(self.newest(name).name, f"step-00000{step}")
            self.train(name, "--resume")
            self.assertEqual(self.final(name), self.final("whole"))
            starts = [read_record(self.newest(run)).start for run in (name, "whole")]
            self.assertEqual(*starts)
