"""The order of hooks, reports and checkpoints, with a state and a step that only count."""

import signal
import unittest
from collections.abc import Collection
from types import SimpleNamespace
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.base.clock import Clock
from myxtts.base.errors import DataError
from myxtts.base.progress import Observation, without
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.feed import StopArrived
from myxtts.devicefeed.producer import ProducedBatch
from myxtts.run import loop
from myxtts.run.hooks import Observe, Report
from myxtts.run.observation import Observer, ObserverFailed
from myxtts.run.schedule import SAMPLES, VALIDATION, Schedule
from myxtts.run.stop_request import StopRequest
from tests.fixtures import ManualTime


class HostValue(np.ndarray):
    def numpy(self):
        return self


class CountingState:
    """The part of a TrainingState that the loop uses."""

    batch_shares = ()

    def __init__(self, bad_step=0):
        self.step, self.pending_observations = 0, ()
        self.bad_step = np.array(bad_step).view(HostValue)

    def advance(self, planned):
        self.step += 1


class Recorder:
    """A hook that appends its name and the step to a list."""

    pause_kind = "other hooks"

    def __init__(self, every, name, calls, error=None):
        self._every = every
        self._name, self._calls, self._error = name, calls, error

    def is_due(self, end):
        return end.is_due(self._every)

    def __call__(self, end):
        self._calls.append((self._name, end.step))
        if self._error is not None:
            raise self._error


class CountingFeed:
    """One replica's batches, named by their numbers from 1, in steps of `microbatches`.

    Raises `error` after `fail_after` batches. It is ready but for the batches in `late`.
    """

    error: Exception = DataError("utterance 'a' cannot be read")

    def __init__(self, fail_after=None, microbatches=1, late: Collection[int] = ()):
        self.taken = 0
        self._fail_after, self._microbatches, self._late = fail_after, microbatches, late

    @property
    def is_ready(self):
        return self.taken + 1 not in self._late

    def __next__(self):
        if self.taken == self._fail_after:
            raise self.error
        self.taken += 1
        position = SimpleNamespace(epoch=0)
        step = SimpleNamespace(audio_s=1.0, padded_s=2.0, bucket=0, position=position)
        planned = SimpleNamespace(step=step, last=self.taken % self._microbatches == 0)
        return (ProducedBatch(planned, self.taken, None),)


class CountingStep:
    """A step whose outcome is its number, and what hands batches over; it records all calls."""

    def __init__(self):
        self.calls, self.hand_over = [], self

    def begin(self, features):
        self.calls.append(("begin", *features))
        return SimpleNamespace(result=lambda: features)

    def __call__(self, microbatches, number, rates, stop):
        for batches in microbatches:
            self.calls.append((number, *batches))
        return number

    def synchronize(self, outcome):
        self.calls.append(("synchronize", outcome))

    def read(self, outcome):
        return {"loss": float(outcome)}


class DelayedObserver:
    """An observer, and its snapshot, whose results are there some steps later."""

    def __init__(self, state, delay, calls, error=None):
        self._state, self._delay, self._calls, self._error = state, delay, calls, error
        self.begun, self._running = [], None

    def take(self):
        self._calls.append(("snapshot", self._state.step))

    def begin(self, observation):
        self.begun.append(observation)
        self._running = observation

    def poll(self):
        if self._running is not None and self._state.step >= self._running.step + self._delay:
            self.wait(lambda: False)

    def wait(self, is_stopped, due_step=None):
        if self._running is not None:
            step, self._running = self._running.step, None
            if self._error is not None:
                raise self._error
            self._calls.append((f"result of {step}", self._state.step))
            self._state.pending_observations = without(self._state.pending_observations, step)
        return True


class NoTimes(Clock):
    def finish_step(self, audio_s, padded_s, batches):
        super().finish_step(audio_s, padded_s, ())


class LoopTest(unittest.TestCase):
    def setUp(self):
        self.state, self.step, self.calls, self.saved = CountingState(), CountingStep(), [], []

    def train(self, hooks, steps=4, log_every=100, checkpoint_every=0, **options):
        schedule = Schedule(steps, log_every, checkpoint_every, lambda step: 1.0, lambda step: 0.9)

        def save(state):
            self.calls.append(("save", state.step))
            self.saved.append(state.step)

        clock, feed = options.get("clock") or NoTimes(), options.get("feed") or CountingFeed()
        stop, observer = options.get("stop") or StopRequest(), options.get("observer")
        loop.train(self.state, self.step, feed, schedule, hooks, save, clock, stop, observer)
        return clock

    def observe(self, observer, periods, steps, **options):
        hook = Observe(periods, observer, observer)
        self.train([hook], steps=steps, observer=observer, **options)

    def recorder(self, every, name, error=None):
        return Recorder(every, name, self.calls, error)

    def test_hooks_run_in_the_order_of_the_list_and_the_checkpoint_comes_last(self):
        self.train([self.recorder(2, "b"), self.recorder(1, "a")], steps=2, checkpoint_every=1)
        self.assertEqual(self.calls, [("a", 1), ("save", 1), ("b", 2), ("a", 2), ("save", 2)])

    def test_a_hook_is_called_after_the_last_step_unless_its_period_is_0(self):
        self.train([self.recorder(3, "third"), self.recorder(0, "off")], steps=5)
        actual = [call for call in self.calls if call[0] != "save"]
        self.assertEqual(actual, [("third", 3), ("third", 5)])

    def test_pauses_are_counted_by_kind(self):
        clock = self.train([self.recorder(1, "a")], steps=2)
        pauses_s = set(clock.pauses_s)
        self.assertEqual(pauses_s, {"other hooks", "checkpoints", "observer", "first step"})
        self.assertEqual(clock.total().steps, 1)  # the first step is none of them

    def observe_between_steps(self, observe, periods, **options):
        """Train for 5 steps with an observer without a thread, and report every 2 steps."""
        reports, state = [], self.state

        def record(observation, metrics):
            self.calls.append((f"result of {observation.step}", state.step, metrics))
            state.pending_observations = without(state.pending_observations, observation.step)

        reporter = SimpleNamespace(write=lambda step, metrics: reports.append(step))
        observer = Observer(observe, record, in_thread=False)
        snapshot = SimpleNamespace(take=lambda: self.calls.append(("snapshot", state.step)))
        hooks = [Report(reporter.write), Observe(periods, observer, snapshot)]
        try:
            self.train(hooks, steps=5, log_every=2, observer=observer, **options)
        finally:
            self.assertEqual(reports, [step for step in (2, 4, 5) if step <= state.step])

    def test_an_observation_between_two_steps_has_a_checkpoint_and_a_result_as_in_a_thread(self):
        loss = {"loss": 2.0}
        self.observe_between_steps(lambda *_: loss, {VALIDATION: 4})
        first = [("snapshot", 4), ("save", 4), ("result of 4", 4, loss)]
        second = [("snapshot", 5), ("save", 5), ("result of 5", 5, loss)]
        self.assertEqual(self.calls, [*first, *second])
        self.assertEqual(self.state.pending_observations, ())

    def test_a_failed_observation_is_repeated_and_leaves_no_step_without_a_report(self):
        def fail(observation, throttle):
            raise DataError("a held-out file is gone")

        with self.assertRaisesRegex(DataError, "a held-out file is gone"):
            self.observe_between_steps(fail, {VALIDATION: 2, SAMPLES: 4})
        self.assertEqual(self.saved, [2])
        self.assertEqual(self.state.pending_observations, (Observation(2, (VALIDATION,)),))

    def test_a_report_includes_the_metrics_of_earlier_hooks(self):
        class Measure(Recorder):
            def __call__(self, end):
                end.metrics["size"] = 7.0

        reports = []
        report = Report(lambda step, metrics: reports.append((step, dict(metrics))))
        self.train([Measure(2, "size", []), report], steps=3, log_every=3)
        self.assertEqual([step for step, _ in reports], [2, 3])
        self.assertEqual(reports[0][1], {"size": 7.0})
        self.assertEqual((reports[1][1]["loss"], reports[1][1]["size"]), (3.0, 7.0))

    def test_a_report_counts_the_updates_that_were_skipped_since_the_one_before(self):
        reports, skipped = [], {2: 1.0, 4: 1.0, 6: 4.0}
        self.step.read = lambda outcome: {"loss": 1.0, "skipped_updates": skipped[outcome]}
        report = Report(lambda step, metrics: reports.append(metrics["skipped_updates"]))
        self.train([report], steps=6, log_every=2)
        self.assertEqual(reports, [1.0, 0.0, 3.0])

    def test_time_after_a_report_is_a_pause_of_the_next_one(self):
        class Pausing(Recorder):
            def __call__(self, end):
                time.s += 10.0

        time, reports = ManualTime(), []
        report = Report(lambda step, metrics: reports.append(metrics))
        self.train([report, Pausing(3, "pausing", [])], steps=5, log_every=1, clock=NoTimes(time))
        self.assertEqual([metrics["pause_s"] for metrics in reports], [0.0, 0.0, 0.0, 10.0, 0.0])
        # The first step counts in no mean.
        remaining_s = [metrics["remaining_s"] for metrics in reports]
        self.assertEqual(remaining_s, [0.0, 0.0, 0.0, 10.0 / 3.0, 0.0])

    def test_an_observation_has_a_checkpoint_and_its_result_belongs_to_its_step(self):
        observer = DelayedObserver(self.state, 3, self.calls)
        self.observe(observer, {VALIDATION: 4}, steps=9)
        first = [("snapshot", 4), ("save", 4), ("result of 4", 7)]
        second = [("snapshot", 8), ("save", 8), ("result of 8", 9)]  # for which the third one waits
        calls = self.calls
        self.assertEqual(calls, [*first, *second, ("snapshot", 9), ("save", 9), ("result of 9", 9)])
        self.assertEqual(self.state.pending_observations, ())

    def test_no_observation_begins_after_the_result_that_ends_the_run_early(self):
        class Ending(DelayedObserver):
            def wait(self, is_stopped, due_step=None):
                super().wait(is_stopped, due_step)
                stop.is_early |= "result of 6" in dict(self._calls)
                return True

        # The result is there before the next observation is due, or that one waits for it.
        for delay, step in ((1, 7), (9, 9)):
            self.setUp()
            stop = StopRequest()
            observer = Ending(self.state, delay, self.calls)
            self.observe(observer, {VALIDATION: 3}, steps=20, stop=stop)
            self.assertEqual([observation.step for observation in observer.begun], [3, 6])
            self.assertEqual((self.state.step, self.saved[-1]), (step, step))
            # A resumed run with a higher --patience repeats it.
            pending = [observation.step for observation in self.state.pending_observations]
            self.assertEqual(pending, [9] if step == 9 else [])
            self.assertEqual((stop.due(), stop.exit_code, stop.name), (True, 0, "--patience"))

    def test_an_error_of_the_observer_ends_the_run_and_leaves_the_observation_to_repeat(self):
        for error in (DataError("held-out file"), ObserverFailed("defect")):
            self.setUp()
            observer = DelayedObserver(self.state, 2, self.calls, error)
            with self.assertRaises(type(error)):
                self.observe(observer, {VALIDATION: 3}, steps=9)
            self.assertEqual(self.calls, [("snapshot", 3), ("save", 3), ("save", 5)])
            self.assertEqual(self.state.pending_observations, (Observation(3, (VALIDATION,)),))

    def test_workers_look_for_a_stop_after_the_same_steps_whatever_the_chief_observes(self):
        class AskingObserver(DelayedObserver):
            def wait(self, is_stopped, due_step=None):
                is_asked = any(is_stopped() for _ in range(5))
                return not is_asked and super().wait(is_stopped, due_step)

        reads = {}
        for is_chief in (True, False):
            self.setUp()
            steps = reads[is_chief] = []
            stop = StopRequest(lambda outcome, steps=steps: steps.append(self.state.step))
            if is_chief:
                observer = AskingObserver(self.state, 3, self.calls)
                self.observe(observer, {VALIDATION: 2}, steps=9, stop=stop)
            else:
                self.train([], steps=9, stop=stop)
        self.assertEqual(reads, {True: [4, 8], False: [4, 8]})

    def test_a_request_that_ends_the_last_observation_stops_the_run_of_several_workers(self):
        for is_asked, code in ((True, 143), (False, 0)):
            self.setUp()
            stop = StopRequest(lambda outcome: False)

            class Interrupted(DelayedObserver):
                def wait(self, is_stopped, due_step=None, stop=stop, is_asked=is_asked):
                    stop.signal = signal.SIGTERM if is_asked else None
                    return not is_stopped()

            observer = Interrupted(self.state, 9, self.calls)
            self.train([], steps=2, observer=observer, stop=stop)
            self.assertEqual(stop.exit_code, code)

    def test_validation_and_samples_of_a_step_are_one_observation(self):
        observer = DelayedObserver(self.state, 9, self.calls)
        self.observe(observer, {VALIDATION: 2, SAMPLES: 4}, steps=5)
        both = VALIDATION, SAMPLES
        expected = [Observation(2, (VALIDATION,)), Observation(4, both), Observation(5, both)]
        self.assertEqual(observer.begun, expected)

    def test_an_error_of_a_batch_or_a_hook_saves_the_steps_before_it(self):
        with self.assertRaisesRegex(DataError, "utterance 'a'"):
            self.train([], feed=CountingFeed(fail_after=3))
        self.assertEqual(self.saved, [3])
        with self.assertRaisesRegex(DataError, "held-out"):
            self.train([self.recorder(5, "validation", DataError("held-out file"))], steps=9)
        self.assertEqual(self.saved, [3, 5])

    def test_a_data_device_out_of_memory_or_a_defect_saves_the_steps_before_it(self):
        feed = CountingFeed(fail_after=3)
        feed.error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        with self.assertRaises(tf.errors.ResourceExhaustedError):
            self.train([], feed=feed)
        with self.assertRaises(KeyError):
            self.train([self.recorder(5, "samples", KeyError("defect"))], steps=9)
        self.assertEqual(self.saved, [3, 5])

    def test_an_error_within_an_update_saves_nothing(self):
        full = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        for error, raised in ((full, loop.StepOutOfMemory), (ValueError("defect"), ValueError)):
            self.step = mock.Mock(wraps=self.step, side_effect=[1, error])
            self.step.left_unchanged = mock.Mock(return_value=False)
            with self.assertRaises(raised):
                self.train([])
        self.assertEqual(self.saved, [])

    def test_an_error_within_a_step_before_its_update_costs_no_step(self):
        lost = tf.errors.AbortedError(None, None, "<<worker 1 (b:2) gave up: no such file>>")
        full = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        for error in (lost, full):
            self.setUp()
            self.step = mock.Mock(wraps=self.step, side_effect=[1, 2, error])
            self.step.left_unchanged = mock.Mock(return_value=True)
            with self.assertRaises(type(error)):
                self.train([])
            self.assertEqual(self.saved, [2])

    def test_a_non_finite_loss_or_a_misplaced_variable_saves_nothing(self):
        self.state = CountingState(bad_step=2)
        with self.assertRaises(loop.NonFiniteLoss) as raised:
            self.train([self.recorder(2, "validation")])
        self.assertEqual((raised.exception.step, self.calls), (2, []))
        self.state = CountingState()
        with self.assertRaises(PlacementError):
            self.train([self.recorder(1, "devices", PlacementError("stray"))])
        self.assertEqual(self.saved, [])

    def test_a_stop_while_the_loop_waits_for_a_batch_saves_the_steps_before(self):
        class StuckFeed(CountingFeed):
            @property
            def error(self):
                request.signal = signal.SIGTERM
                return StopArrived()

        for batches, saved in ((0, []), (3, [2])):
            self.setUp()
            request = StopRequest()
            self.train([], feed=StuckFeed(fail_after=batches), stop=request)
            # The loop is two batches ahead, and takes the step that it has begun to prepare.
            self.assertEqual(self.saved, saved)

    def test_an_error_of_the_feed_is_raised_after_exactly_the_steps_before_it(self):
        for microbatches, batches, saved in (
            *((1, 5, [5]), (1, 0, []), (2, 4, [2])),
            *((2, 5, [2]), (3, 5, [1])),
        ):
            with self.subTest(microbatches=microbatches, batches=batches):
                self.setUp()
                with self.assertRaisesRegex(DataError, "utterance 'a'"):
                    self.train([], steps=9, feed=CountingFeed(batches, microbatches))
                self.assertEqual(self.state.step, sum(saved))
                self.assertEqual(self.saved, saved)

    def test_a_batch_that_is_late_is_waited_for_after_the_device_is_done(self):
        class SlowStep(CountingStep):
            def synchronize(self, outcome):
                super().synchronize(outcome)
                time.s += 5.0  # of the device, which is no wait

        class LateFeed(CountingFeed):
            def __next__(self):
                time.s += 0.0 if self.is_ready else 2.0
                return super().__next__()

        time, self.step = ManualTime(), SlowStep()
        clock = self.train([], steps=5, feed=LateFeed(late=(1, 4)), clock=NoTimes(time))
        ahead = [("begin", 1), ("begin", 2), ("begin", 3), (1, 1), ("synchronize", 1)]
        expected = [*ahead, ("begin", 4), (2, 2), ("begin", 5), (3, 3), (4, 4), (5, 5)]
        self.assertEqual(self.step.calls, expected)
        # The first step is not counted.
        self.assertEqual((clock.total().wait_s, clock.total().busy_s), (2.0, 7.0))
