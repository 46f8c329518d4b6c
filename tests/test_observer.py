"""The observer: one observation at a time, in order, producers first, and its end."""

import threading
import unittest

from myxtts.base.errors import DataError
from myxtts.base.progress import Observation, without
from myxtts.devicefeed.errors import PlacementError
from myxtts.run.observation import Observer, ObserverFailed
from myxtts.run.schedule import EVALUATION, SAMPLES, VALIDATION
from tests.devicefeed.feeds import TIMEOUT_S, wait_until
from tests.fixtures import entered
from tests.test_routes import plan


def never() -> bool:
    return False


class FilledFeed:
    """A feed that is full from a moment on."""

    def __init__(self):
        self.filled, self.looks = threading.Event(), threading.Semaphore(0)

    @property
    def is_full(self):
        self.looks.release()
        return self.filled.is_set()


class ObserverTest(unittest.TestCase):
    """An observer whose work is done when the test lets it, with the step as its loss."""

    def setUp(self):
        self.recorded, self.batches, self.allowed = [], [], threading.Semaphore(0)
        self.error, self.now_s = None, 0.0
        self.observer = Observer(self.observe, self.record, now=lambda: self.now_s)
        entered(self.addCleanup, self.observer)

    def observe(self, observation, throttle):
        for number in range(2):
            throttle()
            self.batches.append((observation.step, number))
        self.assertTrue(self.allowed.acquire(timeout=TIMEOUT_S))
        if self.error is not None:
            raise self.error
        return {"loss": float(observation.step)}

    def record(self, observation, metrics):
        self.recorded.append((observation.step, metrics["loss"], threading.current_thread()))

    def begin(self, step):
        self.observer.begin(Observation(step, (VALIDATION,)))

    def test_a_result_is_recorded_with_its_step_by_the_main_thread(self):
        self.begin(7)
        self.observer.poll()
        self.assertEqual(self.recorded, [])
        self.allowed.release()
        wait_until(lambda: self.observer.poll() or self.recorded)  # as the loop does between steps
        self.assertEqual(self.recorded, [(7, 7.0, threading.main_thread())])
        self.observer.poll()
        self.assertEqual(len(self.recorded), 1)

    def test_waiting_gives_results_in_the_order_of_the_observations_and_warns_once(self):
        def waiting() -> bool:
            self.now_s += 10.0
            self.allowed.release()
            return False

        with self.assertLogs("myxtts.run.observation", "WARNING") as logs:
            for step in (2, 4, 6):
                self.assertTrue(self.observer.wait(waiting, step))
                self.begin(step)
                self.now_s += 1.0
            self.assertTrue(self.observer.wait(waiting))
        self.assertEqual([step for step, *_ in self.recorded], [2, 4, 6])
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], "validation of step 2 took .* training waited (10|20) s")
        # Two steps later, after 1 s.
        self.assertRegex(logs.output[0], "the 2 steps to .* --validate-every of at least (22|42),")

    def test_an_error_is_raised_between_two_steps_and_a_defect_keeps_its_cause(self):
        for error, expected in (
            (DataError("held-out file"), DataError),
            # Of a disk: exit code 2.
            (PermissionError(13, "Permission denied", "samples"), PermissionError),
            (KeyError("a"), ObserverFailed),
        ):
            self.error = error
            self.begin(3)
            self.allowed.release()
            with self.assertRaises(expected) as raised:
                self.observer.wait(never)
            self.assertIn(error, (raised.exception, raised.exception.__cause__))
        self.assertEqual(self.recorded, [])

    def test_a_stop_does_not_wait_for_an_observation_and_closing_abandons_it(self):
        feed = FilledFeed()
        self.observer.watch(feed)
        self.begin(5)
        self.assertFalse(self.observer.wait(lambda: True, 9))
        self.allowed.release()
        self.observer.close()
        self.assertEqual(self.recorded, [])
        self.assertNotIn("myxtts-observer", [thread.name for thread in threading.enumerate()])

    def test_producers_go_first_unless_training_waits(self):
        feed = FilledFeed()
        self.observer.watch(feed)
        self.begin(1)
        for _ in range(3):
            self.assertTrue(feed.looks.acquire(timeout=TIMEOUT_S))
        self.assertEqual(self.batches, [])
        feed.filled.set()
        self.allowed.release()
        wait_until(lambda: self.observer.poll() or self.recorded)
        self.assertEqual(self.batches, [(1, 0), (1, 1)])
        feed.filled.clear()
        self.begin(2)
        self.allowed.release()
        self.assertTrue(self.observer.wait(never))
        self.assertEqual(self.recorded[-1][0], 2)

    def test_closing_twice_or_without_work_is_safe(self):
        self.observer.close()
        self.observer.close()


class ObservationTest(unittest.TestCase):
    def test_a_checkpoint_lists_those_without_a_result(self):
        pending = (Observation(4, (VALIDATION,)), Observation(6, (VALIDATION, SAMPLES)))
        self.assertEqual(without(pending, 4), pending[1:])
        parts = (VALIDATION, SAMPLES, EVALUATION)
        texts = ["validation", "validation and samples", "validation, samples and evaluation"]
        for count, text in enumerate(texts, 1):
            self.assertEqual(str(Observation(6, parts[:count])), f"{text} of step 6")


class PlacementTest(unittest.TestCase):
    def observer(self, gpus=4, **settings):
        return plan(gpus, **settings).observer

    def test_by_default_a_data_gpu_that_does_not_train_observes(self):
        self.assertEqual(self.observer(data_gpu=1, model_gpu=0), "/GPU:1")
        self.assertEqual(self.observer(data_gpus=(2, 1), model_gpus=(0, 3)), "/GPU:2")
        replicas = {"data_gpu": 0, "model_gpus": (1, 0)}
        for settings in ({}, {"model_gpus": (0, 1)}, replicas, {"simulate_gpus": 2}):
            self.assertEqual(self.observer(**settings), "", settings)
        self.assertEqual(self.observer(0), "")

    def test_a_device_is_named_by_its_role_or_its_physical_index(self):
        dual = {"data_gpu": 0, "model_gpu": 2}
        roles = {"data": "/GPU:0", "model": "", "cpu": "/CPU:0"}
        for observer, device in {**roles, 0: "/GPU:0", 2: "", 3: "/GPU:2", 1: "/GPU:1"}.items():
            self.assertEqual(self.observer(**dual, observer=observer), device, observer)
        placement = plan(4, **dual, observer=1)
        self.assertEqual([device.physical for device in placement.devices], [0, 1, 2])
        self.assertEqual(placement.routes[0].model, "/GPU:2")
        self.assertEqual(self.observer(2, observer=1), "/GPU:1")
        self.assertEqual(self.observer(2, observer="data"), "")

    def test_with_limits_the_observer_shares_the_part_of_the_producer(self):
        split = {"data_gpu": 0, "model_gpu": 0, "data_gpu_memory": 2048, "model_gpu_memory": 4096}
        self.assertEqual(self.observer(1, **split), "/GPU:0")
        self.assertEqual(self.observer(1, **split, observer=0), "/GPU:0")
        devices = plan(3, **split, observer=2).devices
        self.assertEqual({d.physical: d.memory_mib for d in devices}[2], 4096)

    def test_a_gpu_that_does_not_exist_and_the_cpu_of_simulated_gpus_are_rejected(self):
        for gpus, settings, message in (
            (4, {"observer": 5}, "observer GPU 5 was requested, but TensorFlow sees 4 "),
            (0, {"observer": 0}, "observer GPU 0 was requested, but TensorFlow sees no GPU"),
            (
                0,
                {"simulate_gpus": 2, "observer": "cpu"},
                "--observer cpu was given with --simulate",
            ),
        ):
            with self.assertRaisesRegex(PlacementError, message):
                plan(gpus, **settings)
