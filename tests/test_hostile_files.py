"""A few hostile audio files and checkpoints of benchmarks/hostile_input.py, which needs TensorFlow
for these.
"""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import tensorflow as tf

from benchmarks.hostile import case
from benchmarks.hostile.case import run_case

CASES = {"audio": 20, "checkpoints": 20}


class Cases(unittest.TestCase):
    def test_cases_end_in_success_or_in_one_message(self):
        tf.zeros([])  # what TensorFlow reads as it starts is not opened by a case
        with tempfile.TemporaryDirectory() as folder:
            for kind, count in CASES.items():
                for number in range(count):
                    slow = mock.patch.multiple(
                        case, LIMIT_S=30.0, HANG_S=120.0
                    )  # of what took minutes
                    with self.subTest(f"--repeat {kind}:{number}"), slow:
                        self.assertEqual(run_case(kind, number, 0, Path(folder)).faults, [])


if __name__ == "__main__":
    unittest.main()
