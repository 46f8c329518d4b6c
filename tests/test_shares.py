"""`--batch-shares auto`: who waits, what is dealt then, and that a resumed run repeats it."""

import unittest
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import numpy as np

from myxtts.base.clock import Interval
from myxtts.base.progress import Position
from myxtts.batches.plan import Plan
from myxtts.config.schema import PlacementConfig
from myxtts.placement.gpu_memory import GpuMemory
from myxtts.placement.settings import plan_routes
from myxtts.run import shares
from myxtts.run.shares import MEASURED_STEPS, WARM_UP_STEPS, DealShares, memory_room
from myxtts.run.step import IDLE_STEPS, Step
from tests.test_replicas import FULL, built, on, replicas_of, toy
from tests.tiny import Workspace, assert_same_arrays, features, take_step

LENGTHS = np.full(400, 256, np.int32)
DEAL_STEP = WARM_UP_STEPS + MEASURED_STEPS


class DealTest(unittest.TestCase):
    """Steps of one second, in which two replicas share 32 rows."""

    def setUp(self):
        columns = LENGTHS, LENGTHS // 20, LENGTHS * 0
        self.plan = Plan(*columns, bounds=np.array([256]), batch_size=16, seed=0, replicas=2)
        devices = SimpleNamespace(devices=("/GPU:0", "/GPU:1"))
        self.state = SimpleNamespace(batch_shares=(), replicas=devices, position=Position())
        self.steps, self.idle_s, self.feed = 0, np.zeros(2), mock.Mock()
        clock = SimpleNamespace(total=lambda: Interval(steps=self.steps, busy_s=1.0 * self.steps))
        step = self.step = SimpleNamespace(idle_s=lambda: self.idle_s.copy(), measures_idle=False)
        setup = mock.Mock(state=mock.Mock(step=0, batch_shares=()))
        setup.run.placement.devices = ()
        setup.run.placement.on_gpu = False
        setup.corpora.training.plan = self.plan
        self.plan.__dict__["steps_per_epoch"] = 2 * DEAL_STEP + 1
        self.hook = DealShares(setup, step, clock, mock.Mock(), self.feed)

    @property
    def restarts(self) -> int:
        return self.feed.replace.call_count

    def take(self, steps: int, speeds=(1.0, 1.0), ends_epoch=False, fixed=(0.0, 0.0)):
        """Take steps on devices of these speeds; return the last step as the hook left it."""
        for number in range(1, steps + 1):
            self.steps += 1
            if self.steps % IDLE_STEPS == 0 and self.step.measures_idle:
                times = self.plan.batch_sizes[0] / speeds + fixed
                self.idle_s += 1.0 - times / times.max()
            position = Position(1) if ends_epoch and number == steps else Position(0, self.steps)
            planned = SimpleNamespace(next_position=position)
            end = SimpleNamespace(step=self.steps, state=self.state, planned=planned, is_last=False)
            end.save = end.is_redealt = False
            if self.hook.is_due(end):
                self.hook(end)
        return end

    def test_rows_are_dealt_by_speed_once_after_the_first_steps(self):
        self.assertFalse(self.take(DEAL_STEP - 1, speeds=(1.0, 0.5)).is_redealt)
        with self.assertLogs("myxtts.run.shares") as logs:
            end = self.take(1, speeds=(1.0, 0.5))
        self.assertTrue(end.is_redealt and end.save)
        self.assertEqual(self.plan.batch_sizes.tolist(), [[21, 11]])
        # 16 rows in half a second, and 16 in a whole one.
        self.assertAlmostEqual(self.hook.bound_s, 32 / 48)
        self.assertEqual((self.state.batch_shares, self.restarts), (self.plan.shares, 1))
        words = "/GPU:0 waited for the others for 50 % of a step: 21 + 11 rows from step"
        self.assertIn(f"{words} {DEAL_STEP + 1} on, 16 + 16 before", logs.output[0])
        self.take(2 * DEAL_STEP, speeds=(1.0, 0.5))
        self.assertEqual(self.restarts, 1)

    def test_a_device_that_becomes_slower_gets_fewer_rows_at_the_end_of_the_epoch(self):
        self.take(DEAL_STEP)
        self.assertEqual(self.restarts, 0)
        self.assertFalse(self.take(DEAL_STEP, speeds=(0.5, 1.0)).is_redealt)
        self.assertTrue(self.take(1, speeds=(0.5, 1.0), ends_epoch=True).is_redealt)
        self.assertEqual(self.plan.batch_sizes.tolist(), [[11, 21]])

    def test_a_device_that_becomes_slower_within_a_measurement_is_measured_again(self):
        self.take(DEAL_STEP)
        self.take(DEAL_STEP - MEASURED_STEPS // 2)
        end = self.take(MEASURED_STEPS // 2 + 1, speeds=(0.5, 1.0), ends_epoch=True)
        self.assertTrue(end.is_redealt)
        self.assertEqual(self.plan.batch_sizes.tolist(), [[14, 18]])
        self.assertTrue(self.take(DEAL_STEP, speeds=(0.5, 1.0)).is_redealt)
        self.assertEqual(self.plan.batch_sizes.tolist(), [[11, 21]])

    def test_what_depends_on_no_row_is_corrected_by_further_deals_at_the_start(self):
        # 10 rows' worth of fixed time on the slow device.
        for _ in range(4):
            self.take(DEAL_STEP - 1, speeds=(1.0, 0.5), fixed=(0.0, 10.0))
            self.take(1, speeds=(1.0, 0.5), fixed=(0.0, 10.0))
        self.assertEqual(self.plan.batch_sizes.tolist(), [[24, 8]])
        self.assertGreaterEqual(self.restarts, 2)

    def test_a_wait_of_less_than_5_percent_changes_nothing(self):
        self.take(DEAL_STEP, speeds=(1.0, 0.96))
        self.take(2 * DEAL_STEP, speeds=(1.0, 0.96), ends_epoch=True)
        self.assertEqual((self.plan.shares, self.restarts), ((), 0))

    def test_waits_that_whole_rows_cannot_end_change_nothing(self):
        self.plan.deal((10, 1))  # 29 and 3 rows
        self.state.batch_shares = self.plan.shares
        self.take(DEAL_STEP, speeds=(10.0, 1.0), ends_epoch=True)
        self.assertEqual((self.plan.shares, self.restarts), ((10, 1), 0))

    def test_the_slowest_device_keeps_a_row(self):
        self.take(DEAL_STEP, speeds=(1.0, 1e-3))
        self.assertEqual(self.plan.batch_sizes.tolist(), [[31, 1]])

    def test_only_the_last_steps_of_a_long_epoch_are_measured(self):
        self.plan.__dict__["steps_per_epoch"] = 1000
        self.take(DEAL_STEP)
        self.take(1000 - DEAL_STEP - MEASURED_STEPS - 1)
        self.assertFalse(self.step.measures_idle)
        self.take(1)
        self.assertTrue(self.step.measures_idle)
        self.assertTrue(self.take(MEASURED_STEPS, (1.0, 0.5), ends_epoch=True).is_redealt)

    def test_fewer_steps_than_a_measurement_takes_are_not_measured(self):
        self.take(DEAL_STEP)
        self.plan.__dict__["steps_per_epoch"] = DEAL_STEP + MEASURED_STEPS
        self.take(MEASURED_STEPS - 1)
        self.assertFalse(self.step.measures_idle)

    def test_the_end_of_a_short_epoch_is_not_measured(self):
        self.take(WARM_UP_STEPS + 2, speeds=(1.0, 0.5), ends_epoch=True)
        self.assertEqual(self.restarts, 0)


class MemoryTest(unittest.TestCase):
    def test_room_is_the_limit_or_what_the_driver_says_is_free(self):
        memory = {1: GpuMemory("card", total_mib=8000, free_mib=3000, capability=8)}
        for flags, expected in (({"model_gpu_memory": 4000}, 4.0), ({}, 4.0)):
            placement = plan_routes(PlacementConfig(model_gpus=(1,), **flags), 2)
            with (
                mock.patch.object(shares, "read_memory", return_value=memory),
                mock.patch.object(
                    shares.tf.config.experimental, "get_memory_info", lambda _: {"peak": 1000 << 20}
                ),
            ):
                room = memory_room(placement, [placement.routes[0].model])
            self.assertEqual(room.tolist(), [expected])
        simulated = plan_routes(PlacementConfig(model_gpus=(0, 1), simulate_gpus=2), 0)
        self.assertEqual(memory_room(simulated, ["/CPU:0"]).tolist(), [np.inf])


class MeasureTest(unittest.TestCase):
    def test_the_replica_with_fewer_rows_waits_for_the_other(self):
        replicas = replicas_of(2)
        state, _ = built(toy, replicas)
        step = Step(state, 1.0, 1, static_shapes=False, compile_xla=False, can_measure_idle=True)
        fields = state.model.BATCH_FIELDS
        sizes = FULL[:1], FULL * 200
        batches = [features(rows, (8, 40), seed=i) for i, rows in enumerate(sizes)]
        pairs = zip(replicas.devices, batches, strict=True)
        placed = [on(device, batch, fields) for device, batch in pairs]
        for number in range(1, 2 * IDLE_STEPS):
            step.measures_idle = number >= IDLE_STEPS
            take_step(step, [placed], number, 1e-3, 0.9)
        few, many = step.idle_s()
        self.assertGreater(few, 0.0)
        self.assertEqual(many, 0.0)
        before, step.measures_idle = step.idle_s(), False
        take_step(step, [placed], 2 * IDLE_STEPS, 1e-3, 0.9)
        np.testing.assert_array_equal(step.idle_s(), before)


class RunTest(unittest.TestCase):
    def test_a_run_that_resumes_after_a_deal_equals_one_that_went_on(self):
        workspace = Workspace.with_toy_models(self.addCleanup)
        flags = "--model-gpus 0 1 --batch-size 2 --batch-shares auto --log-every 1".split()
        # Each call finds that replica 1 has waited for another 1,000 s.
        waits = [np.array([0.0, 1e3 * call]) for call in range(20)]
        with ExitStack() as stack:
            for name, value in (("WARM_UP_STEPS", 1), ("MEASURED_STEPS", 4)):
                stack.enter_context(mock.patch.object(shares, name, value))
            stack.enter_context(mock.patch.object(Step, "idle_s", side_effect=waits))
            begun = workspace.train("auto", *flags)
            self.assertEqual(begun.code, 0, begun.err)
        self.assertIn("waited for the others for 99 % of a step: 1 + 3 rows from step 6", begun.out)
        self.assertIn("in 2 replicas x 1 x 2 rows", begun.out)
        folder = workspace.copy_run("auto", "again", self.addCleanup)
        for number in (6, 8):
            name = folder / "checkpoints" / f"step-{number:06d}"
            if name.exists():
                for file in name.iterdir():
                    file.unlink()
                name.rmdir()
        resumed = workspace.train("again", *flags, "--resume")
        self.assertEqual(resumed.code, 0, resumed.err)
        self.assertIn("in 1 x (1 + 3) rows", resumed.out)
        last = "checkpoints/step-000008"
        assert_same_arrays(workspace.run_dir("auto") / last, folder / last)
