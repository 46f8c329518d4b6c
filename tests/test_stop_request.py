"""Signals that ask a run to stop: which ones, how often, and what comes after the first."""

import os
import signal
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

from myxtts.base.processes import REPEAT_S, StopSignals
from myxtts.run.stop_request import StopRequest, stop_on_signals


class Ended(Exception):
    """Stands for the end of the process."""


def end(number, _frame):
    raise Ended(number)


class StopOnSignals(unittest.TestCase):
    def setUp(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.addCleanup(signal.signal, number, signal.signal(number, end))

    def send(self, number: int, delay_s: float = 0.0) -> None:
        if not delay_s:
            os.kill(os.getpid(), number)
            return
        timer = threading.Timer(delay_s, os.kill, (os.getpid(), number))
        timer.start()
        self.addCleanup(timer.join)

    def test_a_signal_that_comes_twice_at_once_is_one_request(self):
        with stop_on_signals(StopRequest()) as request:
            self.send(signal.SIGTERM, delay_s=REPEAT_S / 4)
            self.send(signal.SIGTERM)  # its handler waits for the other
            self.assertEqual((request.signal, request.exit_code), (signal.SIGTERM, 143))

    def test_a_second_request_ends_the_program(self):
        with stop_on_signals(StopRequest()):
            self.send(signal.SIGTERM)
            with self.assertRaises(Ended):
                self.send(signal.SIGTERM)

    def test_a_lost_terminal_is_a_request_however_often_it_is_said(self):
        with stop_on_signals(StopRequest()) as request:
            for _ in range(2):
                self.send(signal.SIGHUP)
            self.assertEqual((request.signal, request.exit_code), (signal.SIGHUP, 129))
        self.assertIs(signal.getsignal(signal.SIGHUP), end)

    def test_in_a_thread_an_object_requests_the_stop_and_signals_stay_those_of_the_program(self):
        def stopped() -> StopRequest:
            with stop_on_signals(StopRequest()) as request, StopSignals():
                self.assertIs(signal.getsignal(signal.SIGTERM), end)
                self.assertFalse(request.due())
                request.stop()
                return request

        with ThreadPoolExecutor(1) as pool:
            request = pool.submit(stopped).result()
        self.assertEqual((request.due(), request.name, request.exit_code), (True, "SIGTERM", 143))

    def test_under_nohup_a_lost_terminal_is_ignored(self):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_on_signals(StopRequest()) as request:
            self.send(signal.SIGHUP)
        self.assertFalse(request.requested)
