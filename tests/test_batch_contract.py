"""The batch contract: what is held to it passes, and every single breach is named."""

import unittest

from tests.two_devices import DATA

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.audio.format import MEL_BANDS
from myxtts.batch import FEATURES, TEXT, WAVES, check
from myxtts.data.producer import produce, trace_produce

SIZES = {"batch": 2, "tokens": 5, "samples": 2_560, "reference_samples": 1_280, "frames": 10, "reference_frames": 5}


def batch_of(fields) -> dict[str, np.ndarray]:
    """Zeros that keep the contract."""
    return {name: np.zeros([SIZES.get(dim, dim) for dim in field.dims], field.dtype) for name, field in fields.items()}


class CheckTest(unittest.TestCase):
    def test_arrays_tensors_and_symbolic_tensors_that_keep_it_pass(self):
        for fields in (WAVES, FEATURES):
            check(batch_of(fields), fields, "test")
            check({name: tf.constant(array) for name, array in batch_of(fields).items()}, fields, "test")
            check({name: tf.TensorSpec(field.shape, field.dtype) for name, field in fields.items()}, fields, "test")

    def test_every_field_is_required(self):
        for name in FEATURES:
            batch = batch_of(FEATURES)
            del batch[name]
            with self.assertRaisesRegex(TypeError, f"^batch after test: {name} is missing$"):
                check(batch, FEATURES, "test")

    def test_no_other_field_is_allowed(self):
        with self.assertRaisesRegex(TypeError, "pitch is unknown"):
            check(batch_of(FEATURES) | {"pitch": np.zeros(2)}, FEATURES, "test")

    def test_another_type_is_named(self):
        for name, field in FEATURES.items():
            batch = batch_of(FEATURES)
            batch[name] = batch[name].astype(np.float64)
            with self.assertRaisesRegex(TypeError, f"{name} is float64, not {field.dtype}"):
                check(batch, FEATURES, "test")
        with self.assertRaisesRegex(TypeError, "mel is bfloat16, not float32"):
            check(batch_of(FEATURES) | {"mel": tf.zeros([2, 10, MEL_BANDS], tf.bfloat16)}, FEATURES, "test")

    def test_another_rank_is_named(self):
        for name in FEATURES:
            batch = batch_of(FEATURES)
            batch[name] = batch[name][None]
            with self.assertRaisesRegex(TypeError, f"{name} has shape"):
                check(batch, FEATURES, "test")

    def test_a_dimension_must_be_the_same_in_all_fields(self):
        with self.assertRaisesRegex(TypeError, "has [23] batch, not [23]"):
            check(batch_of(FEATURES) | {"frames": np.zeros(3, np.int32)}, FEATURES, "test")

    def test_a_fixed_dimension_is_held_to_its_number(self):
        for name, shape in (("mel", (2, 10, 79)), ("reference", (2, 5, 81))):
            with self.assertRaisesRegex(TypeError, f"{name} has {shape[2]} 80, not 80"):
                check(batch_of(FEATURES) | {name: np.zeros(shape, np.float32)}, FEATURES, "test")

    def test_all_breaches_are_named_at_once(self):
        batch = batch_of(WAVES) | {"pcm": np.zeros((2, 3), np.float32), "seed": np.zeros(3, np.int32)}
        del batch["tokens"]
        with self.assertRaisesRegex(TypeError, "pcm is float32, not int16; seed has 3 2, not 2; tokens is missing"):
            check(batch, WAVES, "test")

    def test_values_are_not_looked_at(self):
        with tf.device(DATA):
            check(
                {name: tf.fill(array.shape, array.dtype.type(7)) for name, array in batch_of(WAVES).items()}, WAVES, ""
            )


class StagesTest(unittest.TestCase):
    def test_producing_turns_waves_into_features_and_passes_the_text_on(self):
        waves = batch_of(WAVES) | {"tokens": np.arange(10, dtype=np.int32).reshape(2, 5)}
        features = produce({name: tf.constant(array) for name, array in waves.items()})
        check(features, FEATURES, "producing")
        for name in TEXT:
            np.testing.assert_array_equal(features[name], waves[name])

    def test_the_traced_function_takes_and_gives_what_the_contract_says(self):
        outputs = trace_produce(DATA).structured_outputs
        check(outputs, FEATURES, "producing")
        for name, field in FEATURES.items():
            self.assertEqual(outputs[name].shape.as_list(), field.shape, name)


if __name__ == "__main__":
    unittest.main()
