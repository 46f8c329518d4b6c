"""The CTC network: dependence on inputs and padding, loss, sizes, precision, replicas."""

import unittest
from functools import cache
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from fakes.copies import find_copies
from myxtts.tasks.asr.network import ENCODERS, SIZES, ASRSize, build_asr, ctc_labels
from myxtts.tasks.contract import ASR_FEATURES
from myxtts.tasks.layers import parameter_count
from myxtts.text.symbols import subsampled_length
from myxtts.trial.preflight.kernels import audit
from tests import tiny
from tests.tiny import SYMBOLS, features, numpy_of, on_device, rows_of
from tests.two_devices import MODEL

SMALLEST = ASRSize(channels=16, blocks=2, memory=4, order=4)
SPECS = {name: tf.TensorSpec(field.shape, field.dtype) for name, field in ASR_FEATURES.items()}
ROWS = [(5, 13), (8, 24), (3, 1)]  # tokens, with begin and end, and frames


def asr_features(*arguments):
    """Return ASR_FEATURES of random content, see `features`."""
    return {name: value for name, value in features(*arguments).items() if name in ASR_FEATURES}


def build(
    encoder="lmu", precision="float32", size=SMALLEST, symbols=SYMBOLS, subsampling=2, **settings
):
    keras.utils.set_random_seed(0)
    with tf.device(MODEL), mock.patch.dict(SIZES, tiny=size):
        return build_asr("tiny", symbols, encoder, subsampling, precision=precision, **settings)


@cache
def model_of(encoder, dropout=0.5):
    return build(encoder, dropout=dropout)


def call(model, batch, **options):
    with tf.device(MODEL):
        return numpy_of(model(on_device(batch), **options))


@cache
def step_of(encoder):
    """Return a training step of a fresh model."""
    model, optimizer = build(encoder), keras.optimizers.Adam(0.01)
    variables = [v.value for v in model.trainable_variables]
    with tf.device(MODEL):
        optimizer.build(model.trainable_variables)

    @tf.function(input_signature=[SPECS])
    def step(batch):
        with tf.GradientTape() as tape:
            loss = model(batch, training=True)[0]["ctc"]
        optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)
        return loss

    return step


def gradients_of(model, batch):
    variables = [v.value for v in model.trainable_variables]
    with tf.device(MODEL), tf.GradientTape() as tape:
        loss = model(on_device(batch), training=True)[0]["ctc"]
    return float(loss), [np.array(tf.convert_to_tensor(g)) for g in tape.gradient(loss, variables)]


class Padding(unittest.TestCase):
    def assert_same(self, left, right, frames):
        np.testing.assert_allclose(left[0]["ctc"], right[0]["ctc"], rtol=1e-5)
        for row, real in enumerate(subsampled_length(np.array(frames), 2)):
            logits, again = (outputs["logits"][row, :real] for _, outputs in (left, right))
            np.testing.assert_allclose(logits, again, atol=1e-5)

    def test_amount_of_padding_never_changes_an_output(self):
        for encoder in ENCODERS:
            outputs = call(model_of(encoder), asr_features(ROWS))
            for padded in ((9, 24), (8, 25), (13, 40)):
                with self.subTest(encoder=encoder, padded=padded):
                    again = call(model_of(encoder), asr_features(ROWS, padded))
                    self.assert_same(outputs, again, (13, 24, 1))

    def test_content_of_padding_never_changes_an_output(self):
        batch = asr_features(ROWS)
        for encoder in ENCODERS:
            outputs = call(model_of(encoder), batch)
            for name, count in (("tokens", "token_count"), ("mel", "frames")):
                changed = batch[name].copy()
                changed[np.arange(changed.shape[1])[None, :] >= batch[count][:, None]] = 3
                with self.subTest(encoder=encoder, name=name):
                    again = call(model_of(encoder), batch | {name: changed})
                    self.assert_same(outputs, again, (13, 24, 1))

    def test_microbatch_losses_add_up_to_the_loss_of_the_whole_batch(self):
        batch = asr_features([*ROWS, (8, 19)])
        for encoder in ENCODERS:
            parts = batch, rows_of(batch, slice(0, 1)), rows_of(batch, slice(1, 4))
            whole, *losses = (call(model_of(encoder), part)[0]["ctc"] for part in parts)
            np.testing.assert_allclose(sum(losses), whole, rtol=1e-5)

    def test_every_logit_depends_on_the_first_and_last_frame(self):
        batch = asr_features([(8, 24)])
        for encoder in ("lmu", "gru"):
            before = call(model_of(encoder), batch)[1]["logits"]
            for frame in (0, 23):
                changed = batch["mel"].copy()
                changed[0, frame] += 5.0
                after = call(model_of(encoder), batch | {"mel": changed})[1]["logits"]
                differs = np.abs(after - before).max(axis=(0, 2))
                self.assertGreater(differs.min(), 1e-6, (encoder, frame))


class EmptyRows(unittest.TestCase):
    def test_empty_rows_add_nothing_to_losses_and_gradients(self):
        for encoder in ENCODERS:
            (loss, gradients), (again, again_gradients) = (
                gradients_of(model_of(encoder, 0.0), asr_features(rows))
                for rows in (ROWS, [*ROWS, (0, 0), (0, 0)])
            )
            with self.subTest(encoder=encoder):
                self.assertAlmostEqual(loss, again, places=5)
                for left, right in zip(gradients, again_gradients, strict=True):
                    np.testing.assert_allclose(left, right, atol=1e-5)

    def test_a_batch_of_empty_rows_has_zero_loss_and_gradients(self):
        for encoder in ENCODERS:
            batch = asr_features([(0, 0), (0, 0)]) | {"step_tokens": np.float32(7)}
            loss, gradients = gradients_of(model_of(encoder, 0.0), batch)
            self.assertEqual(loss, 0.0)
            self.assertFalse(any(gradient.any() for gradient in gradients))

    def test_rows_without_labels_add_nothing(self):
        model = model_of("lmu")
        self.assertEqual(call(model, asr_features([(2, 9), (1, 4)]))[0]["ctc"], 0.0)


class Loss(unittest.TestCase):
    def test_labels_exclude_begin_and_end(self):
        tokens = tf.constant([[1, 5, 6, 2, 0], [1, 2, 0, 0, 0], [1, 5, 6, 7, 2], [0, 0, 0, 0, 0]])
        labels, count = ctc_labels(tokens, tf.constant([4, 2, 5, 0]))
        np.testing.assert_array_equal(labels, [[5, 6, 0], [0, 0, 0], [5, 6, 7], [0, 0, 0]])
        np.testing.assert_array_equal(count, [2, 0, 3, 0])

    def test_more_labels_than_frames_is_an_error(self):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "Not enough time"):
            call(model_of("lmu"), asr_features([(8, 9)]))

    def test_loss_is_divided_by_the_tokens_of_the_whole_step(self):
        batch = asr_features(ROWS)
        steps = (batch | {"step_tokens": tokens} for tokens in np.float32([16, 32]))
        once, half = (call(model_of("lmu"), step)[0]["ctc"] for step in steps)
        self.assertAlmostEqual(once, 2 * half, places=5)


class Subsampling(unittest.TestCase):
    def test_frames_match_the_length_rule(self):
        batch = asr_features([(3, 13), (3, 24), (3, 1), (0, 0)])
        for subsampling in (1, 2, 4):
            _, outputs = call(build(subsampling=subsampling), batch)
            frames = subsampled_length(batch["frames"], subsampling)
            np.testing.assert_array_equal(outputs["frames"], frames)
            self.assertEqual(outputs["logits"].shape, (4, frames.max(), SYMBOLS))


class Training(unittest.TestCase):
    def test_dropout_is_a_function_of_the_seed_and_active_only_in_training(self):
        batch = asr_features(ROWS)
        reseeded = batch | {"seed": np.array([1, 2], np.int32)}
        for encoder in ENCODERS:

            def loss(batch, training, encoder=encoder):
                return call(model_of(encoder), batch, training=training)[0]["ctc"]

            self.assertEqual(loss(batch, True), loss(batch, True))
            self.assertNotEqual(loss(batch, True), loss(reseeded, True))
            self.assertNotEqual(loss(batch, True), loss(batch, False))
            self.assertEqual(loss(batch, False), loss(reseeded, False))

    def test_dropout_differs_between_layers(self):
        names = tiny.dropout_names(model_of("lmu"))
        self.assertEqual((len(names), len(set(names))), (2, 2))

    def test_each_layer_is_in_one_component(self):
        for encoder in ENCODERS:
            tiny.check_components(self, model_of(encoder))

    def test_variable_names_do_not_depend_on_earlier_models(self):
        for encoder in ENCODERS:
            models = model_of(encoder, 0.0), model_of(encoder, 0.5)
            self.assertEqual(*([v.path for v in model.variables] for model in models))

    def test_overfits_two_batches_with_one_trace(self):
        for encoder in ENCODERS:
            step = step_of(encoder)
            batches = [on_device(asr_features(ROWS, padded)) for padded in ((8, 24), (9, 30))]
            with tf.device(MODEL):
                losses = [float(step(batches[number % 2])) for number in range(50)]
            with self.subTest(encoder=encoder):
                self.assertLess(losses[-1], 0.2 * losses[0])
                self.assertEqual(step.experimental_get_tracing_count(), 1)


class Placement(unittest.TestCase):
    def test_all_operations_but_the_loss_have_gpu_kernels(self):
        """On a GPU TensorFlow substitutes CTCLossV2, cuDNN's kernel, for CTCLoss."""
        for encoder in ENCODERS:
            function = step_of(encoder).get_concrete_function(SPECS)
            self.assertEqual(audit(function).host_only, (), encoder)
            if encoder == "lmu":
                to_host = [copy.to_host for copy in find_copies(function)]
                self.assertLessEqual(sum(to_host), 1)  # within tf.nn.ctc_loss
                self.assertLessEqual(len(to_host), 75)


class Precision(unittest.TestCase):
    def test_mixed_precision_losses_are_close_to_float32_losses(self):
        batch = asr_features(ROWS)
        for encoder in ENCODERS:
            expected = call(model_of(encoder, 0.0), batch)[0]["ctc"]
            for precision in ("mixed_bfloat16", "mixed_float16"):
                model = build(encoder, precision)
                losses, outputs = call(model, batch)
                with self.subTest(encoder=encoder, precision=precision):
                    np.testing.assert_allclose(losses["ctc"], expected, rtol=0.03)
                    self.assertEqual(losses["ctc"].dtype, np.float32)
                    self.assertEqual(outputs["logits"].dtype, np.float32)
                    self.assertEqual({v.dtype for v in model.variables}, {"float32"})
                    _, gradients = gradients_of(model, batch)
                    self.assertTrue(all(np.isfinite(gradient).all() for gradient in gradients))


class Sizes(unittest.TestCase):
    def test_parameter_counts_match_the_documentation(self):
        for size, parameters, delta in (("tiny", 1.25e6, 0.25e6), ("normal", 7.16e6, 0.14e6)):
            count = parameter_count(build(size=SIZES[size], symbols=40))
            self.assertAlmostEqual(count, parameters, delta=delta)

    def test_blocks_of_all_encoders_have_equally_many_parameters(self):
        size, counts = SIZES["tiny"], []
        for encoder, kind in ENCODERS.items():
            block = kind(size, 0.0, name=encoder)
            block(tf.zeros([1, 1, size.channels]), tf.ones([1, 1, 1]), tf.constant([1]))
            counts.append(parameter_count(block))
        np.testing.assert_allclose(counts, counts[0], rtol=0.02)
