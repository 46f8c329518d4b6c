"""Step, wait and pause times, by a clock that is passed in."""

import unittest

from myxtts.clock import Clock, Interval


class Time:
    """Stands still until it is moved."""

    def __init__(self):
        self.s = 1_000.0

    def __call__(self) -> float:
        return self.s

    def pass_(self, seconds: float) -> None:
        self.s += seconds


class ClockTest(unittest.TestCase):
    def setUp(self):
        self.time = Time()
        self.clock = Clock(self.time)

    def step(self, wait_s=0.0, work_s=1.0, audio_s=3.0, padded_s=4.0):
        with self.clock.wait():
            self.time.pass_(wait_s)
        self.time.pass_(work_s)
        self.clock.finish_step(audio_s, padded_s)

    def test_an_interval_holds_steps_waits_and_audio(self):
        for _ in range(4):
            self.step(wait_s=0.25, work_s=0.75)
        self.assertEqual(self.clock.report(), Interval(steps=4, busy_s=4.0, wait_s=1.0, audio_s=12.0, padded_s=16.0))

    def test_pauses_are_part_of_no_step(self):
        self.step()
        with self.clock.pause():
            self.time.pass_(100.0)
        self.step()
        self.assertEqual(self.clock.report().busy_s, 2.0)

    def test_each_report_starts_anew(self):
        self.step(wait_s=0.5)
        with self.clock.pause():
            self.time.pass_(9.0)
        self.clock.report()
        self.step(work_s=2.0)
        self.assertEqual(self.clock.report(), Interval(1, 2.0, 0.0, 3.0, 4.0))

    def test_a_pause_after_a_report_belongs_to_the_next_interval_and_is_left_out_of_it(self):
        self.step()
        self.clock.report()
        with self.clock.pause():
            self.time.pass_(50.0)
        self.step()
        self.assertEqual(self.clock.report().busy_s, 1.0)

    def test_metrics_are_means_over_the_interval(self):
        for _ in range(4):
            self.step(wait_s=0.25, work_s=0.25)
        self.assertEqual(
            self.clock.report().metrics(),
            {"step_s": 0.5, "wait_s": 0.25, "steps_per_s": 2.0, "audio_seconds_per_s": 6.0, "padding": 0.25},
        )

    def test_waits_and_work_add_up_to_the_interval(self):
        for wait_s, work_s in ((0.5, 0.125), (0.0, 2.0), (0.25, 0.0)):
            self.step(wait_s, work_s)
        interval = self.clock.report()
        self.assertEqual((interval.wait_s, interval.busy_s), (0.75, 2.875))

    def test_an_empty_interval_has_metrics_without_dividing_by_zero(self):
        metrics = self.clock.report().metrics()
        self.assertEqual((metrics["steps_per_s"], metrics["wait_s"], metrics["padding"]), (0.0, 0.0, 0.0))

    def test_by_itself_it_follows_a_clock_that_runs(self):
        clock = Clock()
        with clock.wait():
            sum(range(1_000))
        clock.finish_step(1.0, 1.0)
        interval = clock.report()
        self.assertTrue(0.0 < interval.wait_s <= interval.busy_s)


if __name__ == "__main__":
    unittest.main()
