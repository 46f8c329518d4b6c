"""The audit names what is on another device."""

import unittest

from .devices import DATA, MODEL

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.devicefeed import PlacementError, require_device


class AuditTest(unittest.TestCase):
    def test_integers_may_be_in_host_memory(self):
        with tf.device(DATA):
            frames, mel = tf.constant([1, 2]), tf.constant([1.0])
        for device in ("/GPU:0", MODEL):
            require_device(device, [("frames", frames), ("tokens", np.ones(3, np.int32))])
        with self.assertRaisesRegex(PlacementError, r"but found mel on /CPU:0 \(1 in all\)\. "):
            require_device("/GPU:0", [("frames", frames), ("mel", mel)])

    def test_tensors_and_variables_elsewhere_are_named_and_counted(self):
        with tf.device(MODEL):
            values = [(f"value {number}", tf.constant([1.0])) for number in range(6)]
            variable = tf.Variable([1.0])
        require_device(MODEL, [*values, ("weights", variable)])
        with self.assertRaisesRegex(PlacementError, rf"value 0 on {MODEL}, .* \(7 in all\)\. "):
            require_device(DATA, [*values, ("weights", variable)])
