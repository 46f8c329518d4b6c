"""The XTTS network: dependence on inputs and padding, randomness, sizes, precision."""

import unittest
from functools import cache
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.models.layers import Attention, Dense, Embedding, apply_rotary, parameter_count
from myxtts.models.xtts import (
    TEXT_INPUTS,
    XTTS,
    FlowCondition,
    SynthesisOptions,
    build_xtts,
    keep_mask,
    long_term_average_spectrum,
)
from myxtts.portable_ops import FRAMES_GRID
from tests.long import long
from tests.tiny import ONE_BLOCK, build_model, features, on_device, rows_of
from tests.two_devices import MODEL

ROWS = [(5, 13), (8, 24), (1, 1)]  # tokens and frames


@cache
def random_model():
    """Return a model with random weights: zero-initialised layers would block every signal."""
    model, random = (
        build_model(dropout=0.5, reference_dropout=0.5, segment_frames=8, size=ONE_BLOCK),
        np.random.default_rng(0),
    )
    for variable in model.trainable_variables:
        variable.assign(variable.value + random.normal(0.0, 0.2, variable.shape).astype(np.float32))
    return model


def numpy_of(tree):
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), tree)


class Network(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = random_model()

    def call(self, batch, **options):
        with tf.device(MODEL):
            return numpy_of(self.model(on_device(batch), **options))

    def synthesize(self, batch, speed=0.25, ode_steps=2, **options):
        """Return (mel, frames, path) at a speed that gives each token several frames."""
        batch = on_device(batch)
        with tf.device(MODEL):
            outputs = self.model.synthesize(
                *(batch[name] for name in TEXT_INPUTS),
                SynthesisOptions(speed=speed, ode_steps=ode_steps, **options),
            )
        return numpy_of(outputs)

    def assert_same_outputs(self, left, right, rows=ROWS):
        """Check that losses and paths of two calls are equal up to rounding."""
        for name, loss in left[0].items():
            np.testing.assert_allclose(loss, right[0][name], rtol=2e-4, err_msg=name)
        for row, (_, frames) in enumerate(rows):
            np.testing.assert_array_equal(
                left[1]["path"][row, :frames], right[1]["path"][row, :frames]
            )


class Padding(Network):
    def test_amount_of_padding_never_changes_an_output(self):
        outputs = self.call(features(ROWS))
        for padded, reference in (
            ((9, 24), (20, 24)),
            ((8, 25), (20, 24)),
            ((8, 24), (20, 27)),
            ((13, 40), (20, 20)),
        ):
            with self.subTest(padded=padded, reference=reference):
                self.assert_same_outputs(outputs, self.call(features(ROWS, padded, reference)))

    def test_content_of_padding_never_changes_an_output(self):
        batch = features(ROWS)
        for name, count in (
            ("tokens", "token_count"),
            ("mel", "frames"),
            ("f0_hz", "frames"),
            ("reference", "reference_frames"),
        ):
            padding = np.arange(batch[name].shape[1])[None, :] >= batch[count][:, None]
            changed = batch[name].copy()
            changed[padding] = 3
            with self.subTest(name=name):
                self.assertTrue(padding.any())
                self.assert_same_outputs(self.call(batch), self.call(batch | {name: changed}))

    def test_a_row_is_synthesized_the_same_alone_and_in_a_batch(self):
        batch = features(ROWS)
        mel, frames, path = self.synthesize(batch)
        for row in range(len(ROWS)):
            mel_alone, frames_alone, path_alone = self.synthesize(
                rows_of(batch, slice(row, row + 1))
            )
            real = frames[row]
            self.assertEqual(frames_alone[0], real)
            np.testing.assert_array_equal(path_alone[0, :real], path[row, :real])
            np.testing.assert_allclose(mel_alone[0, :real], mel[row, :real], atol=2e-3)

    def test_microbatch_losses_add_up_to_the_losses_of_the_whole_batch(self):
        batch = features([*ROWS, (8, 9)])
        whole, _ = self.call(batch)
        microbatches = [self.call(rows_of(batch, rows))[0] for rows in (slice(0, 1), slice(1, 4))]
        for name, loss in whole.items():
            np.testing.assert_allclose(
                sum(losses[name] for losses in microbatches), loss, rtol=1e-4, err_msg=name
            )

    def test_an_empty_row_adds_nothing_and_is_finite(self):
        batch = features(ROWS)
        losses, outputs = self.call(features([*ROWS, (0, 0)]))
        self.assert_same_outputs(self.call(batch), (losses, outputs))
        self.assertTrue((outputs["path"][3] == -1).all())
        with_empty, _ = self.call(features([*ROWS, (0, 0)]), training=True)
        self.assertTrue(np.isfinite(list(with_empty.values())).all())

    def test_mels_of_many_lengths_are_decoded_in_few_shapes(self):
        lengths, decoded, batch = set(), set(), on_device(features([(8, 1)]))
        texts = [batch[name] for name in TEXT_INPUTS]

        def solve(network, condition, noise, *options):
            decoded.add(noise.shape[1])
            return noise

        with mock.patch.object(XTTS, "solve_flow", solve), tf.device(MODEL):
            for speed in (1 / 2, 1 / 5, 1 / 11, 1 / 16, 1 / 19):
                mel, _, path = XTTS.synthesize_mel.python_function(
                    self.model, *texts, *SynthesisOptions(speed=speed).tensors()
                )
                self.assertEqual(mel.shape[1], path.shape[1])
                lengths.add(mel.shape[1])
        self.assertEqual(len(lengths), 5)
        self.assertEqual({frames % FRAMES_GRID for frames in decoded}, {0})
        self.assertLess(len(decoded), 5)

    def test_synthesis_does_not_depend_on_padding(self):
        mel, frames, path = self.synthesize(features(ROWS))
        for padded, reference in (((9, 24), (20, 27)), ((15, 24), (20, 20))):
            mel_again, frames_again, path_again = self.synthesize(features(ROWS, padded, reference))
            np.testing.assert_array_equal(frames, frames_again)
            np.testing.assert_array_equal(path, path_again)
            np.testing.assert_allclose(mel, mel_again, atol=2e-3)


class Inputs(Network):
    def assert_changes(self, name, change):
        """Check that a change of row 1 in one input changes the mel of row 1 and no other."""
        batch = features(ROWS)
        changed = batch[name].copy()
        change(changed)
        (before, frames, _), (after, frames_after, _) = (
            self.synthesize(batch),
            self.synthesize(batch | {name: changed}),
        )
        both = np.minimum(frames, frames_after)
        differs = [
            float(np.abs(before[row, :n] - after[row, :n]).max()) for row, n in enumerate(both)
        ]
        self.assertGreater(differs[1], 0.01)
        self.assertLess(max(differs[0], differs[2]), 2e-3)

    def test_every_real_token_changes_the_mel(self):
        for position in range(8):

            def change(tokens, position=position):
                tokens[1, position] = tokens[1, position] % 12 + 1

            with self.subTest(position=position):
                self.assert_changes("tokens", change)

    def test_reference_and_language_change_the_mel(self):
        def louder(reference):
            reference[1, 3] += 2.0

        def no_frames(reference_frames):
            reference_frames[1] = 0

        def switched(language):
            language[1] = 1 - language[1]

        self.assert_changes("reference", louder)
        self.assert_changes("reference_frames", no_frames)
        self.assert_changes("language", switched)

    def test_a_reference_without_frames_is_ignored(self):
        batch = features(ROWS)
        batch["reference_frames"][:] = 0
        mel, _, _ = self.synthesize(batch)
        np.testing.assert_array_equal(
            mel, self.synthesize(batch | {"reference": batch["reference"] + 1})[0]
        )

    def test_f0_changes_the_pitch_loss_and_the_decoders_mel_only(self):
        batch = features(ROWS)
        before, _ = self.call(batch)
        after, _ = self.call(batch | {"f0_hz": batch["f0_hz"] * 2})
        self.assertGreater(abs(after["pitch"] - before["pitch"]), 1e-2)
        self.assertGreater(abs(after["mel"] - before["mel"]), 1e-3)
        for name in ("prior", "duration", "energy"):
            self.assertEqual(before[name], after[name], name)

    def test_pitch_and_energy_options_change_the_mel_and_no_duration(self):
        mel, frames, _ = self.synthesize(features(ROWS))
        for options in ({"pitch_semitones": 4.0}, {"energy_db": 6.0}):
            changed_mel, same_frames, _ = self.synthesize(features(ROWS), **options)
            np.testing.assert_array_equal(frames, same_frames)
            self.assertGreater(np.abs(mel - changed_mel).max(), 0.05, options)

    def test_guidance_extrapolates_linearly_from_the_unconditional_estimate(self):
        batch = features(ROWS)
        unconditional, plain, double = (
            self.synthesize(batch, ode_steps=1, guidance=guidance)[0]
            for guidance in (0.0, 1.0, 2.0)
        )
        self.assertGreater(np.abs(plain - unconditional).max(), 0.1)
        np.testing.assert_allclose(double, 2 * plain - unconditional, atol=5e-3)

    def test_the_noise_is_a_function_of_the_seed(self):
        batch = features(ROWS)
        mel, _, _ = self.synthesize(batch)
        np.testing.assert_array_equal(mel, self.synthesize(batch)[0])
        self.assertGreater(np.abs(mel - self.synthesize(batch, seed=1)[0]).max(), 0.05)


class LayersTest(unittest.TestCase):
    def test_layers_equal_those_of_keras_bit_for_bit(self):
        x = tf.constant(np.random.default_rng(0).normal(size=(2, 5, 7)), tf.float32)
        rows = tf.constant([[2, 0, 1], [1, 1, 2]])
        for precision in ("float32", "mixed_bfloat16"):
            for ours, keras_layer, settings, inputs in (
                (
                    Dense,
                    keras.layers.Dense,
                    {"units": 4, "activation": "silu", "bias_initializer": "ones"},
                    x,
                ),
                (Dense, keras.layers.Dense, {"units": 4, "use_bias": False}, x[0]),
                (Embedding, keras.layers.Embedding, {"input_dim": 3, "output_dim": 4}, rows),
            ):
                layer, expected = (
                    kind(dtype=precision, **settings) for kind in (ours, keras_layer)
                )
                layer(inputs), expected(inputs)
                expected.set_weights(layer.get_weights())
                self.assertEqual(layer(inputs).dtype, expected(inputs).dtype)
                np.testing.assert_array_equal(layer(inputs), expected(inputs))


class AttentionTest(unittest.TestCase):
    def test_only_rotary_attention_depends_on_the_order_of_the_context(self):
        x, context = np.random.default_rng(0).normal(size=(2, 1, 5, 8)).astype(np.float32)
        for rotary in (False, True):
            attention = Attention(8, 2, rotary)
            outputs = [
                attention(x, ordered, np.ones((1, 5, 1), np.float32))
                for ordered in (context, context[:, ::-1])
            ]
            self.assertEqual(np.allclose(*outputs, atol=1e-5), not rotary)

    def test_rotary_scores_are_the_cosine_of_the_distance_at_the_frequency_of_the_pair(self):
        for channel, frequency in ((0, 1.0), (1, 0.01)):  # 10000^0, 10000^(-2/4)
            x = np.zeros((1, 1, 6, 4), np.float32)
            x[..., channel] = 1.0
            rotated = apply_rotary(tf.constant(x))
            distance = np.arange(6)[:, None] - np.arange(6)
            scores = tf.matmul(rotated, rotated, transpose_b=True)[0, 0]
            np.testing.assert_allclose(scores, np.cos(frequency * distance), atol=1e-6)


class MeanMel(Network):
    def test_mean_mel_of_a_token_depends_on_that_token_only(self):
        batch = features(ROWS)

        def means(tokens):
            with tf.device(MODEL):
                inputs = on_device(batch | {"tokens": tokens})
                speaker = self.model._speaker_condition(inputs, tf.ones([3]))
                return self.model._encode(inputs, speaker)[1].numpy()

        changed = batch["tokens"].copy()
        changed[1, 4] = changed[1, 4] % 12 + 1
        differs = np.abs(means(changed) - means(batch["tokens"])).max(axis=2)
        self.assertGreater(differs[1, 4], 0.01)
        differs[1, 4] = 0.0
        self.assertEqual(differs.max(), 0.0)


class AverageSpectrum(Network):
    def test_average_spectrum_is_the_mean_of_the_loud_frames(self):
        # In units of 2.1 nepers: silence, 50 dB below the loudest frame.
        mel = np.full([3, 6, 80], -3.0, np.float32)
        mel[0, 1], mel[0, 3], mel[0, 4:] = -0.2, 0.0, 7.0
        mel[1, 0] = np.linspace(-1, 1, 80)
        spectrum = long_term_average_spectrum(tf.constant(mel), tf.constant([4, 1, 0])).numpy()
        np.testing.assert_allclose(spectrum[0], -0.1, atol=1e-6)
        np.testing.assert_allclose(spectrum[1], mel[1, 0], atol=1e-6)
        np.testing.assert_array_equal(spectrum[2], 0.0)

    def test_average_spectrum_is_added_to_the_mean_mel_with_a_weight_for_each_token(self):
        batch = on_device(features(ROWS))
        with tf.device(MODEL):
            speaker = self.model._speaker_condition(batch, tf.ones([3]))
            raised = speaker._replace(average_spectrum=speaker.average_spectrum + 1.0)
            before, after = (
                self.model._encode(batch, condition)[1].numpy() for condition in (speaker, raised)
            )
        weight = after - before
        np.testing.assert_allclose(weight, weight[:, :, :1] + np.zeros(80), atol=1e-5)
        self.assertTrue((weight[1] > 0.0).all() and (weight[1] < 1.0).all())
        self.assertGreater(np.ptp(weight[1, :, 0]), 0.01)  # weights differ between tokens

    def test_average_spectrum_is_zero_if_the_reference_is_dropped(self):
        batch = on_device(features(ROWS))
        speaker = self.model._speaker_condition(batch, tf.constant([1.0, 0.0, 1.0]))
        self.assertGreater(np.abs(speaker.average_spectrum[0]).max(), 0.0)
        np.testing.assert_array_equal(speaker.average_spectrum[1], 0.0)


class Training(Network):
    def test_losses_of_segments_are_unbiased(self):
        """Check that the mean loss of segments over seeds is close to that of utterances."""
        model, batch = (
            build_model(segment_frames=8, size=ONE_BLOCK),
            features([(5, 24), (8, 20), (3, 6)]),
        )
        with tf.device(MODEL):
            whole = float(model(on_device(batch))[0]["mel"])
            seeds = [np.array([number, 0], np.int32) for number in range(12)]
            segments = [
                float(model(on_device(batch | {"seed": seed}), training=True)[0]["mel"])
                for seed in seeds
            ]
        self.assertGreater(np.std(segments), 0.0)
        self.assertAlmostEqual(np.mean(segments) / whole, 1.0, delta=0.03)

    def test_a_dropped_reference_is_ignored(self):
        batch = features(ROWS)
        changed = batch | {"reference": batch["reference"] + 1}
        for rate, matters in ((0.999, False), (0.0, True)):
            with mock.patch.object(self.model, "reference_dropout", rate):
                before, after = (
                    self.call(inputs, training=True)[0]["prior"] for inputs in (batch, changed)
                )
            self.assertEqual(before != after, matters)

    def test_a_dropped_condition_is_hidden_from_the_flow(self):
        model = self.model
        condition = FlowCondition(
            *(tf.ones(shape) for shape in ([2, 4, 16], [2, 16], [2, 8, 80], [2])),
            tf.ones([2, 8], bool),
        )
        with tf.device(MODEL):
            dropped = model._drop_condition(condition, tf.constant([0.0, 1.0]))
        for name in ("hidden", "style", "mel"):
            dropped_row, full_row = getattr(dropped, name).numpy()
            self.assertEqual(float(np.ptp(full_row)), 0.0, name)
            self.assertFalse(np.array_equal(dropped_row, full_row), name)
        self.assertEqual(np.abs(dropped.hidden[0]).max() + np.abs(dropped.mel[0]).max(), 0.0)
        self.assertEqual(dropped.mel_std.numpy().tolist(), [1.0, 1.0])
        target, seed = tf.random.stateless_normal([2, 8, 80], [1, 2]), tf.constant([3, 4])
        unconditional = build_model(cfg_dropout=0.999, size=ONE_BLOCK)
        with tf.device(MODEL):
            errors = [
                unconditional._flow_errors(
                    target, condition._replace(mel=condition.mel * scale), seed, seed
                ).numpy()
                for scale in (1.0, 2.0)
            ]
        np.testing.assert_array_equal(*errors)

    def test_keep_mask_drops_the_given_fraction(self):
        rows, seed = tf.ones([10_000]), tf.constant([1, 2])
        self.assertAlmostEqual(
            float(tf.reduce_mean(keep_mask(rows, 0.1, seed, "3"))), 0.9, delta=0.01
        )
        self.assertEqual(float(tf.reduce_mean(keep_mask(rows, 0.1, None, "3"))), 1.0)
        np.testing.assert_array_equal(keep_mask(tf.constant([3, 0]), 0.0, seed, "3"), [1.0, 0.0])
        actual = keep_mask(rows, 0.5, seed, "3").numpy().tolist()
        self.assertNotEqual(actual, keep_mask(rows, 0.5, seed, "4").numpy().tolist())

    def test_the_flow_loss_has_no_gradient_before_the_flow(self):
        batch, model = on_device(features(ROWS)), self.model
        with tf.device(MODEL), tf.GradientTape() as tape:
            loss = model(batch, training=True)[0]["flow"]
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        trained = {
            v.path.split("/")[1].split("_")[0]
            for v, g in zip(model.trainable_variables, gradients, strict=True)
            if g is not None
        }
        self.assertEqual(trained, {"flow", "noisy", "time", "unconditional"})

    @long
    def test_gradient_checkpointing_keeps_losses_and_gradients(self):
        batch, results = on_device(features(ROWS)), []
        for checkpointing in (False, True):
            model = build_model(dropout=0.2, gradient_checkpointing=checkpointing, size=ONE_BLOCK)
            with tf.device(MODEL):

                @tf.function
                def gradients(model=model):
                    with tf.GradientTape() as tape:
                        loss = tf.add_n(list(model(batch, training=True)[0].values()))
                    variables = [v.value for v in model.trainable_variables]
                    return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

                convolutions = [
                    node.op
                    for graph in (gradients.get_concrete_function().graph.as_graph_def(),)
                    for nodes in (
                        graph.node,
                        *(function.node_def for function in graph.library.function),
                    )
                    for node in nodes
                ].count("Conv2D")
                results.append((convolutions, numpy_of(gradients())))
        (plain_convolutions, plain), (recomputed_convolutions, recomputed) = results
        self.assertGreater(recomputed_convolutions, plain_convolutions)
        np.testing.assert_allclose(plain[0], recomputed[0], rtol=1e-5)
        for left, right in zip(plain[1], recomputed[1], strict=True):
            np.testing.assert_allclose(left, right, atol=1e-4)

    def test_each_layer_is_in_one_component(self):
        paths = [
            v.path
            for part in self.model.component_layers().values()
            for layer in part
            for v in layer.trainable_variables
        ]
        self.assertEqual(sorted(paths), sorted(v.path for v in self.model.trainable_variables))


class Dropout(Network):
    def losses(self, batch, **options):
        return [float(loss) for loss in self.call(batch, **options)[0].values()]

    def test_dropout_is_active_only_in_training(self):
        batch = features(ROWS)
        first = self.losses(batch)
        reseeded = self.losses(batch | {"seed": np.array([1, 2], np.int32)})
        changed = [
            name
            for name, left, right in zip(XTTS.LOSS_NAMES, first, reseeded, strict=True)
            if left != right
        ]
        self.assertEqual(changed, ["flow"])  # by its noise
        self.assertEqual(first, self.losses(batch))
        self.assertNotEqual(first, self.losses(batch, training=True))

    def test_dropout_is_a_function_of_the_seed(self):
        batch = features(ROWS)
        first = self.losses(batch, training=True)
        self.assertEqual(first, self.losses(batch, training=True))
        self.assertNotEqual(
            first, self.losses(batch | {"seed": np.array([1, 2], np.int32)}, training=True)
        )

    def test_dropout_differs_between_layers(self):
        names = [
            layer.seed_name for layer in self.model._flatten_layers() if hasattr(layer, "seed_name")
        ]
        self.assertGreater(len(names), 3)
        self.assertEqual(len(names), len(set(names)))


class Synthesis(Network):
    @classmethod
    def setUpClass(cls):
        cls.model = build_model(size=ONE_BLOCK)

    def test_half_the_speed_doubles_every_duration(self):
        batch = features([(5, 1), (8, 1)])
        _, fast, _ = self.synthesize(batch, 1 / 8)
        mel, slow, path = self.synthesize(batch, 1 / 16)
        self.assertGreater(fast.min(), 10)
        np.testing.assert_allclose(slow, 2 * fast, atol=1.5)  # two ends are rounded
        self.assertEqual(mel.shape, (2, slow.max(), 80))
        for row in range(2):
            real = path[row, : slow[row]]
            self.assertTrue(np.all(np.diff(real) >= 0))
            self.assertEqual(sorted(set(real.tolist())), list(range(batch["token_count"][row])))
            self.assertTrue(np.all(path[row, slow[row] :] == -1))

    def test_every_token_has_a_frame_at_any_speed(self):
        _, frames, path = self.synthesize(features(ROWS), 1000.0)
        self.assertEqual(frames.tolist(), [5, 8, 1])
        self.assertEqual(path[1].tolist(), list(range(8)))

    def test_an_empty_row_is_silent(self):
        mel, frames, path = self.synthesize(features([(5, 1), (0, 0)]))
        self.assertEqual(frames[1], 0)
        self.assertTrue(np.all(path[1] == -1))
        np.testing.assert_allclose(mel[1], np.log(1e-5), rtol=1e-6)


class Precision(unittest.TestCase):
    def test_mixed_precision_losses_are_close_to_float32_losses(self):
        batch = on_device(features(ROWS))
        with tf.device(MODEL):
            expected = numpy_of(build_model(size=ONE_BLOCK)(batch)[0])
            for precision in ("mixed_bfloat16", "mixed_float16"):
                model = build_model(precision, size=ONE_BLOCK)
                losses, _ = model(batch)
                with self.subTest(precision=precision):
                    for name, loss in losses.items():
                        self.assertEqual(loss.dtype, "float32")
                        np.testing.assert_allclose(loss, expected[name], rtol=0.03, err_msg=name)
                    self.assertEqual({v.dtype for v in model.variables}, {"float32"})
                    computed = {
                        layer.compute_dtype for layer in model._flatten_layers(include_self=False)
                    }
                    self.assertEqual(computed, {precision.removeprefix("mixed_")})

    def test_building_a_model_restores_the_dtype_policy(self):
        build_model(precision="mixed_bfloat16", size=ONE_BLOCK)
        self.assertEqual(keras.config.dtype_policy().name, "float32")


class Sizes(unittest.TestCase):
    def assert_size(self, size, smallest, largest):
        with self.subTest(size=size), tf.device(MODEL):
            count = parameter_count(build_xtts(size, 200, 1))
            self.assertTrue(smallest <= count <= largest, count)

    def test_the_smallest_model_has_the_parameters_that_the_documentation_says(self):
        self.assert_size("tiny", 2e6, 3e6)

    @long
    def test_parameter_counts_match_the_documentation(self):
        for size, smallest, largest in (
            ("small", 9e6, 11e6),
            ("normal", 22.5e6, 27.5e6),
            ("big", 72e6, 88e6),
        ):
            self.assert_size(size, smallest, largest)
