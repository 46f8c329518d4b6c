"""What TensorBoard is given, and what the process keeps of it."""

import gc
import unittest

import numpy as np

from myxtts.report.reporter import TensorBoard
from tests.fixtures import temporary_folder
from tests.robustness.heap import bytes_in_use

CALLS = 250
IMAGE, WAVE = np.zeros((4, 4, 3), np.uint8), np.zeros(100, np.float32)


class Memory(unittest.TestCase):
    def setUp(self):
        self.board = TensorBoard(temporary_folder(self.addCleanup))
        self.addCleanup(self.board.close)

    def test_no_memory_is_kept_of_what_was_written(self):
        writers = {
            "scalars": lambda step: self.board.scalars(step, {"loss": float(step)}),
            "pictures": lambda step: self.board.picture(step, "p", IMAGE),
            "sounds": lambda step: self.board.sound(step, "s", WAVE),
        }
        for first, (kind, write) in enumerate(writers.items()):
            with self.subTest(kind):
                kept = []
                for begin in (10_000 * first, 10_000 * first + CALLS):
                    gc.collect()
                    before = bytes_in_use()
                    for step in range(begin, begin + CALLS):
                        write(step)
                    gc.collect()
                    kept.append((bytes_in_use() - before) / CALLS)
                # Bytes of each call; a tensor of its step takes 600.
                self.assertLess(kept[1], 200.0)
