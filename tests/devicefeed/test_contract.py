"""The contract of a batch: valid batches pass, and every violation is named."""

import unittest

from .devices import DATA

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.devicefeed.contract import Field, check_batch, tensor_specs

FIELDS = {
    "samples": Field("int16", ("batch", "length")),
    "features": Field("float32", ("batch", "frames", 80)),
    "frames": Field("int32", ("batch",)),
    "seed": Field("int32", (2,)),
}
SIZES = {"batch": 2, "length": 2_560, "frames": 10}


def batch_of(**changes) -> dict[str, np.ndarray]:
    """Return zeros that satisfy the contract, with changes; None removes a field."""
    batch = {name: np.zeros(field.sized(SIZES), field.dtype) for name, field in FIELDS.items()}
    return {name: value for name, value in (batch | changes).items() if value is not None}


class CheckTest(unittest.TestCase):
    def assert_rejected(self, message, **changes):
        with self.assertRaisesRegex(TypeError, message):
            check_batch(batch_of(**changes), FIELDS, "test")

    def test_valid_arrays_tensors_and_symbolic_tensors_pass(self):
        batch = batch_of()
        tensors = {name: tf.constant(array) for name, array in batch.items()}
        for valid in (batch, tensors, tensor_specs(FIELDS)):
            check_batch(valid, FIELDS, "test")

    def test_missing_field_is_rejected(self):
        for name in FIELDS:
            self.assert_rejected(f"^batch after test: {name} is missing$", **{name: None})

    def test_unknown_field_is_rejected(self):
        self.assert_rejected("pitch is unknown", pitch=np.zeros(2))

    def test_wrong_dtype_is_named(self):
        for name, field in FIELDS.items():
            value = batch_of()[name].astype(np.float64)
            self.assert_rejected(f"{name} is float64, not {field.dtype}", **{name: value})
        features = tf.zeros([2, 10, 80], tf.bfloat16)
        self.assert_rejected("features is bfloat16, not float32", features=features)

    def test_wrong_rank_is_named(self):
        for name, value in batch_of().items():
            self.assert_rejected(f"{name} has shape", **{name: value[None]})

    def test_a_named_dimension_must_have_one_size_in_all_fields(self):
        self.assert_rejected("has [23] batch, not [23]", frames=np.zeros(3, np.int32))

    def test_a_fixed_dimension_must_have_its_size(self):
        for size in (79, 81):
            value = np.zeros((2, 10, size), np.float32)
            self.assert_rejected(f"features has {size} 80, not 80", features=value)

    def test_all_violations_are_listed_in_one_error(self):
        message = "features is missing; samples is float32, not int16; seed has 3 2, not 2"
        samples, seed = np.zeros((2, 3), np.float32), np.zeros(3, np.int32)
        self.assert_rejected(message, features=None, samples=samples, seed=seed)

    def test_values_are_not_checked(self):
        with tf.device(DATA):
            sevens = {name: tf.fill(a.shape, a.dtype.type(7)) for name, a in batch_of().items()}
            check_batch(sevens, FIELDS, "")
