"""The network: what may change an output and what may not, sizes, randomness, number formats."""

import unittest
from functools import cache

import keras
import numpy as np
import tensorflow as tf

from myxtts.models.build import build_xtts
from myxtts.models.layers import parameter_count
from tests.tiny import build_model, features, on_device, rows_of
from tests.two_devices import MODEL

ROWS = [(5, 13), (8, 24), (1, 1)]  # tokens and frames


@cache
def shaken_model():
    """A model with all weights random: fresh ones hold zeros, through which nothing passes."""
    model, random = build_model(dropout=0.5), np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable.value + random.normal(0.0, 0.2, variable.shape).astype(np.float32))
    return model


def numpy_of(tree):
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), tree)


class Network(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = shaken_model()

    def call(self, batch, **options):
        with tf.device(MODEL):
            return numpy_of(self.model(on_device(batch), **options))

    def speak(self, batch, speed=0.25):
        """(mel, frames, path); at this speed an untrained model gives some frames to each token."""
        names = ("tokens", "token_count", "language", "reference", "reference_frames")
        batch = on_device(batch)
        with tf.device(MODEL):
            return numpy_of(self.model.speak(*(batch[name] for name in names), tf.constant(speed)))

    def assert_same_outputs(self, left, right, rows=ROWS):
        """Losses and real frames of two calls are equal, but for rounding."""
        for name, loss in left[0].items():
            np.testing.assert_allclose(loss, right[0][name], rtol=1e-4, err_msg=name)
        for row, (_, frames) in enumerate(rows):
            np.testing.assert_array_equal(left[1]["path"][row, :frames], right[1]["path"][row, :frames])
            np.testing.assert_allclose(left[1]["mel"][row, :frames], right[1]["mel"][row, :frames], atol=2e-3)


class Padding(Network):
    def test_more_of_it_never_changes_an_output(self):
        outputs = self.call(features(ROWS))
        for padded, reference in (((9, 24), (20, 24)), ((8, 25), (20, 24)), ((8, 24), (20, 27)), ((13, 40), (20, 20))):
            with self.subTest(padded=padded, reference=reference):
                self.assert_same_outputs(outputs, self.call(features(ROWS, padded, reference)))

    def test_what_it_holds_never_changes_an_output(self):
        batch = features(ROWS)
        for name, count in (("tokens", "token_count"), ("mel", "frames"), ("reference", "reference_frames")):
            padding = np.arange(batch[name].shape[1])[None, :] >= batch[count][:, None]
            other = batch[name].copy()
            other[padding] = 3
            with self.subTest(name=name):
                self.assertTrue(padding.any())
                self.assert_same_outputs(self.call(batch), self.call(batch | {name: other}))

    def test_a_row_is_the_same_alone_as_in_a_batch(self):
        batch = features(ROWS)
        outputs = self.call(batch)[1]
        for row, (_, frames) in enumerate(ROWS):
            alone = self.call(rows_of(batch, slice(row, row + 1)))[1]
            np.testing.assert_array_equal(alone["path"][0, :frames], outputs["path"][row, :frames])
            np.testing.assert_allclose(alone["mel"][0, :frames], outputs["mel"][row, :frames], atol=2e-3)

    def test_losses_of_the_parts_of_a_step_add_up_to_those_of_the_whole(self):
        batch = features([*ROWS, (8, 9)])
        whole, _ = self.call(batch)
        parts = [self.call(rows_of(batch, part))[0] for part in (slice(0, 1), slice(1, 4))]
        for name, loss in whole.items():
            np.testing.assert_allclose(sum(part[name] for part in parts), loss, rtol=1e-4, err_msg=name)

    def test_an_empty_row_adds_nothing_and_is_finite(self):
        batch = features(ROWS)
        losses, outputs = self.call(features([*ROWS, (0, 0)]))
        self.assert_same_outputs(self.call(batch), (losses, outputs))
        self.assertTrue(np.isfinite(outputs["mel"]).all())
        self.assertTrue((outputs["path"][3] == -1).all())

    def test_speech_does_not_depend_on_it(self):
        mel, frames, path = self.speak(features(ROWS))
        for padded, reference in (((9, 24), (20, 27)), ((15, 24), (20, 20))):
            mel_again, frames_again, path_again = self.speak(features(ROWS, padded, reference))
            np.testing.assert_array_equal(frames, frames_again)
            np.testing.assert_array_equal(path, path_again)
            np.testing.assert_allclose(mel, mel_again, atol=2e-3)


class Inputs(Network):
    def assert_changes(self, name, change):
        """A change of one input changes the mel of its own row, and of no other."""
        batch = features(ROWS)
        changed = batch[name].copy()
        change(changed)
        before, after = self.call(batch)[1]["mel"], self.call(batch | {name: changed})[1]["mel"]
        differs = [
            float(np.abs(before[row, :frames] - after[row, :frames]).max()) for row, (_, frames) in enumerate(ROWS)
        ]
        self.assertGreater(differs[1], 0.01)
        self.assertLess(max(differs[0], differs[2]), 2e-3)

    def test_every_real_token_is_heard(self):
        for position in range(8):

            def change(tokens, position=position):
                tokens[1, position] = tokens[1, position] % 12 + 1

            with self.subTest(position=position):
                self.assert_changes("tokens", change)

    def test_reference_and_language_are_heard(self):
        def louder(reference):
            reference[1, 3] += 2.0

        def other(language):
            language[1] = 1 - language[1]

        self.assert_changes("reference", louder)
        self.assert_changes("language", other)

    def test_the_target_is_not_seen_but_through_the_alignment(self):
        batch = features([(1, 13), (1, 24)])  # one token: the alignment is given
        other = batch["mel"].copy()
        other[1] += np.random.default_rng(1).normal(0.0, 1.0, other[1].shape)
        before, after = self.call(batch), self.call(batch | {"mel": other})
        np.testing.assert_array_equal(before[1]["mel"], after[1]["mel"])
        self.assertNotAlmostEqual(float(before[0]["mel"]), float(after[0]["mel"]), 3)

    def test_speech_hears_text_reference_and_language(self):
        batch = features(ROWS)
        mel, _, _ = self.speak(batch)
        for name, other in (
            ("tokens", batch["tokens"] % 12 + 1),
            ("reference", batch["reference"] + 1),
            ("language", 1 - batch["language"]),
        ):
            changed, _, _ = self.speak(batch | {name: other})
            frames = min(mel.shape[1], changed.shape[1])
            self.assertGreater(np.abs(mel[:, :frames] - changed[:, :frames]).max(), 0.1, name)


class Dropout(Network):
    def losses(self, batch, **options):
        return [float(loss) for loss in self.call(batch, **options)[0].values()]

    def test_happens_only_in_training(self):
        batch = features(ROWS)
        quiet = self.losses(batch)
        self.assertEqual(quiet, self.losses(batch | {"seed": np.array([1, 2], np.int32)}))
        self.assertNotEqual(quiet, self.losses(batch, training=True))

    def test_is_a_function_of_the_seed(self):
        batch = features(ROWS)
        first = self.losses(batch, training=True)
        self.assertEqual(first, self.losses(batch, training=True))
        self.assertNotEqual(first, self.losses(batch | {"seed": np.array([1, 2], np.int32)}, training=True))

    def test_differs_between_layers(self):
        salts = [layer.salt for layer in self.model._flatten_layers() if hasattr(layer, "salt")]
        self.assertGreater(len(salts), 3)
        self.assertEqual(len(salts), len(set(salts)))


class Speech(Network):
    @classmethod
    def setUpClass(cls):
        cls.model = build_model()

    def test_half_the_speed_doubles_every_duration(self):
        batch = features([(5, 1), (8, 1)])
        _, fast, _ = self.speak(batch, 1 / 8)
        mel, slow, path = self.speak(batch, 1 / 16)
        self.assertGreater(fast.min(), 10)
        np.testing.assert_allclose(slow, 2 * fast, atol=1.5)  # two ends are rounded
        self.assertEqual(mel.shape, (2, slow.max(), 80))
        for row in range(2):
            real = path[row, : slow[row]]
            self.assertTrue(np.all(np.diff(real) >= 0))
            self.assertEqual(sorted(set(real.tolist())), list(range(batch["token_count"][row])))
            self.assertTrue(np.all(path[row, slow[row] :] == -1))

    def test_every_token_has_a_frame_however_fast(self):
        _, frames, path = self.speak(features(ROWS), 1000.0)
        self.assertEqual(frames.tolist(), [5, 8, 1])
        self.assertEqual(path[1].tolist(), list(range(8)))

    def test_an_empty_row_says_nothing(self):
        mel, frames, path = self.speak(features([(5, 1), (0, 0)]))
        self.assertEqual(frames[1], 0)
        self.assertTrue(np.all(path[1] == -1))
        np.testing.assert_allclose(mel[1], np.log(1e-5), rtol=1e-6)


class NumberFormats(unittest.TestCase):
    def test_losses_in_mixed_precision_are_near_those_of_float32(self):
        batch = on_device(features(ROWS))
        with tf.device(MODEL):
            expected = numpy_of(build_model(0.0)(batch)[0])
            for precision in ("mixed_bfloat16", "mixed_float16"):
                model = build_model(0.0, precision)
                losses, outputs = model(batch)
                with self.subTest(precision=precision):
                    for name, loss in losses.items():
                        self.assertEqual(loss.dtype, "float32")
                        np.testing.assert_allclose(loss, expected[name], rtol=0.03, err_msg=name)
                    self.assertTrue(np.isfinite(outputs["mel"].numpy()).all())
                    self.assertEqual({v.dtype for v in model.variables}, {"float32"})
                    computed = {layer.compute_dtype for layer in model._flatten_layers(include_self=False)}
                    self.assertEqual(computed, {precision.removeprefix("mixed_")})

    def test_a_model_of_one_precision_leaves_the_next_ones_alone(self):
        build_model(precision="mixed_bfloat16")
        self.assertEqual(keras.config.dtype_policy().name, "float32")


class Sizes(unittest.TestCase):
    def test_are_those_of_the_documentation(self):
        for size, least, most in (
            ("tiny", 1e6, 3e6),
            ("small", 9e6, 11e6),
            ("normal", 22.5e6, 27.5e6),
            ("big", 72e6, 88e6),
        ):
            with self.subTest(size=size), tf.device(MODEL):
                count = parameter_count(build_xtts(size, 0.1, 200, 1, "float32"))
                self.assertTrue(least <= count <= most, count)


if __name__ == "__main__":
    unittest.main()
