"""The training loop, feed, clock and advice on emulated GPUs: the hand-over overlaps the step, and
waits are true.

P, C and T are in milliseconds. The host needs a fifth of the time of a step or batch to launch it,
and 0.5 ms to call a step.
"""

import itertools
import unittest
from dataclasses import replace
from functools import cache

from fakes.emulated_gpu import Gpu, HeldOut, Outcome, VirtualTime, Workload, train

C_MS = 100.0
STEPS = 250  # InputBoundWarning warns after 200


@cache
def outcome(
    produce_ms: float, transfer_ms: float = 0.0, replicas: int = 1, is_single: bool = False
) -> Outcome:
    """Return the outcome of a run with C = 100 ms; all tests of a workload share one run."""
    counts = {"replicas": replicas, "is_single": is_single}
    return train(Workload.of_ms(produce_ms, C_MS, transfer_ms, **counts), STEPS)


ONE = list(itertools.product((30.0, 98.0, 102.0, 150.0), (0.0, 5.0)))
THREE = list(itertools.product((10.0, 33.0, 50.0), (0.0, 5.0), (3,)))
SINGLE = [(produce_ms, 0.0, 1, True) for produce_ms in (30.0, 150.0)]


class HandOverTest(unittest.TestCase):
    def test_one_replica_takes_as_long_as_the_slower_of_producer_and_step(self):
        for produce_ms, transfer_ms in ONE:
            with self.subTest(P=produce_ms, T=transfer_ms):
                step_s = outcome(produce_ms, transfer_ms).step_s
                self.assertLessEqual(step_s, 1.02 * max(produce_ms, C_MS) / 1e3)

    def test_a_device_with_a_faster_producer_is_never_idle_while_its_steps_are_launched(self):
        for produce_ms, transfer_ms in ((30.0, 5.0), (98.0, 5.0)):
            self.assertLess(outcome(produce_ms, transfer_ms).idle_share, 0.003)

    def test_one_producer_feeds_three_replicas_as_fast_as_it_produces_or_they_train(self):
        for produce_ms, transfer_ms, _ in THREE:
            with self.subTest(P=produce_ms, T=transfer_ms):
                step_s = outcome(produce_ms, transfer_ms, 3).step_s
                self.assertLessEqual(step_s, 1.05 * max(3 * produce_ms, C_MS) / 1e3)

    def test_two_producers_halve_the_time_of_producing_however_fast_they_are_launched(self):
        """Even if a whole batch is launched at once, for which a copy of its device would wait."""
        for produce_ms in (150.0, 200.0, 300.0):
            launched = Workload.of_ms(produce_ms, C_MS, 5.0, producers=2)
            for launch_s in (launched.produce_launch_s, 0.0):
                with self.subTest(P=produce_ms, launch=launch_s):
                    run = train(replace(launched, produce_launch_s=launch_s), STEPS)
                    self.assertLessEqual(run.step_s, 1.04 * launched.ideal_s)

    def test_one_device_takes_the_sum(self):
        for produce_ms, *_ in SINGLE:
            step_s = outcome(produce_ms, 0.0, 1, True).step_s
            self.assertLessEqual(step_s, 1.02 * (produce_ms + C_MS) / 1e3)

    def test_reported_wait_is_the_idle_time_of_the_model_devices_within_two_points(self):
        for case in ONE + THREE + SINGLE:
            with self.subTest(case=case):
                run = outcome(*case)
                self.assertAlmostEqual(run.wait_share, run.idle_share, delta=0.02)

    def test_advice_is_given_exactly_where_the_model_devices_are_idle(self):
        for case in ONE + THREE + SINGLE:
            with self.subTest(case=case):
                run = outcome(*case)
                self.assertEqual(len(run.advice), run.idle_share > 0.1, run.advice)
                self.assertEqual(run.bottleneck, "produce" if run.idle_share > 0.1 else "step")
        self.assertIn("feed keeps up", outcome(30.0).lines[-1])
        starved = r"wait 3[23]\.\d % .* bottleneck produce, 100 % of making a batch"
        self.assertRegex(outcome(150.0).lines[-1], starved)
        self.assertIn("(bottleneck: produce)", *outcome(150.0).advice)

    def test_a_transfer_longer_than_the_step_sets_the_rate(self):
        self.assertAlmostEqual(outcome(30.0, 130.0).step_s, 0.130, delta=0.003)
        # One stream sends all three.
        self.assertAlmostEqual(outcome(10.0, 50.0, 3).step_s, 0.150, delta=0.003)

    def test_wait_is_true_where_batches_are_launched_faster_than_steps(self):
        """A copy waits for the next batch on the data device, long before a step needs it."""
        for produce_ms in (30.0, 102.0, 150.0):
            fast = replace(Workload.of_ms(produce_ms, C_MS, 5.0), produce_launch_s=0.0)
            run = train(fast, STEPS)
            self.assertLessEqual(run.step_s, 1.02 * fast.ideal_s)
            self.assertAlmostEqual(run.wait_share, run.idle_share, delta=0.02)


class ObserverTest(unittest.TestCase):
    """Every 100 steps a snapshot is copied (10 ms) and validated in 20 batches of 40 ms."""

    def validated(self, produce_ms: float, place: str) -> Outcome:
        held_out = HeldOut(100, 20, 0.04, 0.01, place)
        return train(Workload.of_ms(produce_ms, C_MS, 5.0), STEPS, held_out)

    def test_a_step_takes_as_long_as_without_an_observer_and_no_batch_is_late(self):
        for place in ("data", "other"):
            run, without = self.validated(30.0, place), outcome(30.0, 5.0)
            self.assertLessEqual(run.step_s, 1.01 * without.step_s)
            self.assertLessEqual(run.wait_share, 0.01)
            self.assertLessEqual(run.pause_share, 0.005)
        self.assertGreater(self.validated(30.0, "model").pause_share, 0.05)

    def test_producers_without_time_to_spare_go_first(self):
        """The observer gets no time, so training waits when it is due again, never for a batch."""
        run = self.validated(98.0, "data")
        self.assertLessEqual(run.wait_share, 0.01)
        self.assertLessEqual(run.step_s, 1.02 * C_MS / 1e3)
        self.assertGreater(run.pause_share, 0.02)


class GpuTest(unittest.TestCase):
    """The emulated device, by hand."""

    def setUp(self):
        self.time = VirtualTime(threads=1)
        self.data, self.model = Gpu(self.time), Gpu(self.time)

    def test_a_launch_returns_at_once_and_kernels_run_in_order(self):
        self.model.launch(2.0)
        self.model.launch(3.0)
        self.assertEqual(self.time.now(), 0.0)
        self.model.synchronize()
        self.assertAlmostEqual(self.time.now(), 5.0)
        self.assertAlmostEqual(self.model.busy_s(1.0, 9.0), 4.0)

    def test_a_copy_waits_for_what_is_queued_on_both_devices_when_it_is_issued(self):
        self.data.launch(2.0)
        self.model.launch(3.0)
        self.assertAlmostEqual(self.data.send(self.model, 1.0), 4.0)
        self.model.launch(9.0)
        self.assertAlmostEqual(self.model.queued_s, 12.0)  # computes while the copy runs
        self.data.launch(9.0)
        self.assertAlmostEqual(self.data.send(Gpu(self.time), 1.0), 12.0)

    def test_a_device_sends_one_copy_at_a_time_and_none_to_itself(self):
        self.assertEqual([self.data.send(Gpu(self.time), 2.0) for _ in range(3)], [2.0, 4.0, 6.0])
        self.data.launch(9.0)
        self.assertEqual(self.data.send(self.data, 2.0), 0.0)

    def test_a_kernel_runs_no_sooner_than_it_is_launched(self):
        self.model.launch(1.0, launch_s=4.0)
        self.assertEqual(self.model.queued_s, 0.0)  # nothing is launched yet
        self.time.sleep(4.0)
        self.assertAlmostEqual(self.model.queued_s, 4.0 + 1.0 / 20)

    def test_threads_that_wait_for_each_other_are_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "wait for each other"):
            self.time.wait(lambda: False)
