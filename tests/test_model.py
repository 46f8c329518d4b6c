"""The XTTS network: dependence on inputs and padding, randomness, sizes, precision."""

import math
import unittest
from functools import cache
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.base.portable_ops import FRAMES_GRID
from myxtts.config.synthesis import BOUNDS, SynthesisOptions
from myxtts.tasks.layers import (
    Attention,
    Dense,
    Embedding,
    ReferenceEncoder,
    SeededDropout,
    apply_rotary,
    long_term_spectrum,
    parameter_count,
    spectral_statistics,
)
from myxtts.tasks.tts import network as xtts
from myxtts.tasks.tts.network import TEXT_INPUTS, XTTS, FlowCondition, keep_mask, option_tensors
from tests import tiny
from tests.long import long
from tests.tiny import ONE_BLOCK, build_model, features, numpy_of, on_device, rows_of
from tests.two_devices import MODEL

ROWS = [(5, 13), (8, 24), (1, 1)]  # tokens and frames


@cache
def random_model():
    """Return a model with random weights: zero-initialised layers would block every signal."""
    model = build_model(dropout=0.5, reference_dropout=0.5, segment_frames=8, size=ONE_BLOCK)
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable.value + random.normal(0.0, 0.2, variable.shape).astype(np.float32))
    return model


class Network(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = random_model()
        cls.batch = features(ROWS)

    def call(self, batch, **options):
        with tf.device(MODEL):
            return numpy_of(self.model(on_device(batch), **options))

    def synthesize(self, batch, speed=0.25, ode_steps=2, variety=0.0, **options):
        """Return (mel, frames, path) at a speed that gives each token several frames."""
        fixed = {"speed": speed, "ode_steps": ode_steps, "variety": variety}
        # The network takes any speed.
        with mock.patch.dict(BOUNDS, speed=(float, 0.0, math.inf)):
            options = SynthesisOptions(**fixed, **options)
        texts = [on_device(batch)[name] for name in TEXT_INPUTS]
        with tf.device(MODEL):
            return numpy_of(self.model.synthesize(*texts, options))

    def assert_same_outputs(self, left, right):
        """Check that losses and paths of two calls are equal up to rounding."""
        for name, loss in left[0].items():
            np.testing.assert_allclose(loss, right[0][name], rtol=2e-4, err_msg=name)
        for row, (_, n) in enumerate(ROWS):
            np.testing.assert_array_equal(left[1]["path"][row, :n], right[1]["path"][row, :n])


class Padding(Network):
    def test_amount_of_padding_never_changes_an_output(self):
        outputs = self.call(self.batch)
        cases = ((9, 24), (20, 24)), ((8, 25), (20, 24)), ((8, 24), (20, 27)), ((13, 40), (20, 20))
        for padded, reference in cases:
            with self.subTest(padded=padded, reference=reference):
                self.assert_same_outputs(outputs, self.call(features(ROWS, padded, reference)))

    def test_content_of_padding_never_changes_an_output(self):
        batch = self.batch
        counts = {"tokens": "token_count", "reference": "reference_frames"}
        for name in ("tokens", "mel", "f0_hz", "reference"):
            count = batch[counts.get(name, "frames")]
            padding = np.arange(batch[name].shape[1])[None, :] >= count[:, None]
            changed = batch[name].copy()
            changed[padding] = 3
            with self.subTest(name=name):
                self.assertTrue(padding.any())
                self.assert_same_outputs(self.call(batch), self.call(batch | {name: changed}))

    def test_a_row_is_synthesized_the_same_alone_and_in_a_batch(self):
        mel, frames, path = self.synthesize(self.batch)
        for row, real in enumerate(frames):
            alone = self.synthesize(rows_of(self.batch, slice(row, row + 1)))
            mel_alone, frames_alone, path_alone = (output[0] for output in alone)
            self.assertEqual(frames_alone, real)
            np.testing.assert_array_equal(path_alone[:real], path[row, :real])
            np.testing.assert_allclose(mel_alone[:real], mel[row, :real], atol=2e-3)

    def test_microbatch_losses_add_up_to_the_losses_of_the_whole_batch(self):
        batch = features([*ROWS, (8, 9)])
        whole, _ = self.call(batch)
        first, second = (self.call(rows_of(batch, slice(*ends)))[0] for ends in ((0, 1), (1, 4)))
        for name, loss in whole.items():
            np.testing.assert_allclose(first[name] + second[name], loss, rtol=1e-4, err_msg=name)

    def test_an_empty_row_adds_nothing_and_is_finite(self):
        with_empty = features([*ROWS, (0, 0)])
        outputs = self.call(with_empty)
        self.assert_same_outputs(self.call(self.batch), outputs)
        self.assertTrue((outputs[1]["path"][3] == -1).all())
        losses, _ = self.call(with_empty, training=True)
        self.assertTrue(np.isfinite(list(losses.values())).all())

    def test_mels_of_many_lengths_are_decoded_in_few_shapes(self):
        # Untrained, whose tokens last equally long.
        model, batch = build_model(), on_device(features([(8, 1)]))
        lengths, decoded = set(), set()
        texts = [batch[name] for name in TEXT_INPUTS]

        def solve(network, condition, noise, *options):
            decoded.add(noise.shape[1])
            return noise

        synthesize = XTTS.synthesize_mel.python_function
        with mock.patch.object(XTTS, "solve_flow", solve), tf.device(MODEL):
            for speed in (1.0, 0.9, 0.8, 0.7, 0.6):
                options = option_tensors(SynthesisOptions(speed=speed))
                mel, _, path = synthesize(model, *texts, *options)
                self.assertEqual(mel.shape[1], path.shape[1])
                lengths.add(mel.shape[1])
        self.assertEqual(len(lengths), 5)
        self.assertEqual({frames % FRAMES_GRID for frames in decoded}, {0})
        self.assertLess(len(decoded), 5)

    def test_synthesis_does_not_depend_on_padding(self):
        mel, *counts = self.synthesize(self.batch)
        for padded, reference in (((9, 24), (20, 27)), ((15, 24), (20, 20))):
            mel_again, *counts_again = self.synthesize(features(ROWS, padded, reference))
            np.testing.assert_equal(counts, counts_again)
            np.testing.assert_allclose(mel, mel_again, atol=2e-3)


class Inputs(Network):
    def assert_changes(self, name, index, value):
        """Check that a change of row 1 in one input changes the mel of row 1 and no other."""
        changed = self.batch[name].copy()
        changed[index] = value
        before, frames, _ = self.synthesize(self.batch)
        after, frames_after, _ = self.synthesize(self.batch | {name: changed})
        both = np.minimum(frames, frames_after)
        differs = [np.abs(before[row, :n] - after[row, :n]).max() for row, n in enumerate(both)]
        self.assertGreater(differs[1], 0.01)
        self.assertLess(max(differs[0], differs[2]), 2e-3)

    def test_every_real_token_changes_the_mel(self):
        for position, token in enumerate(self.batch["tokens"][1]):
            with self.subTest(position=position):
                self.assert_changes("tokens", (1, position), token % 12 + 1)

    def test_reference_and_language_change_the_mel(self):
        louder = self.batch["reference"][1, 3] + 2.0
        self.assert_changes("reference", (1, 3), louder)
        self.assert_changes("reference_frames", 1, 0)
        self.assert_changes("language", 1, 1 - self.batch["language"][1])

    def test_a_reference_without_frames_is_ignored(self):
        batch = self.batch | {"reference_frames": np.zeros(3, np.int32)}
        changed = batch | {"reference": batch["reference"] + 1}
        np.testing.assert_array_equal(self.synthesize(batch)[0], self.synthesize(changed)[0])

    def test_a_speaker_has_one_range_of_pitches_in_each_language_and_text(self):
        def ranges(batch):
            with tf.device(MODEL):
                speaker, encoded, _, mask = self.model.encode_texts(on_device(batch))
                predicted = self.model.predict_prosody(encoded, speaker, mask)
                return tf.concat([predicted.lowest_pitch, predicted.highest_pitch], axis=1).numpy()

        before, batch = ranges(self.batch), self.batch
        other = {"language": 1 - batch["language"], "tokens": batch["tokens"][:, ::-1]}
        np.testing.assert_array_equal(before, ranges(batch | other))
        changed = ranges(batch | {"reference": batch["reference"] + 1})
        self.assertGreater(np.abs(before - changed).max(), 1e-2)

    def test_f0_changes_the_pitch_loss_and_the_decoders_mel_only(self):
        before, _ = self.call(self.batch)
        after, _ = self.call(self.batch | {"f0_hz": self.batch["f0_hz"] * 2})
        self.assertGreater(abs(after["pitch"] - before["pitch"]), 1e-2)
        self.assertGreater(abs(after["mel"] - before["mel"]), 1e-3)
        for name in ("prior", "duration", "energy"):
            self.assertEqual(before[name], after[name], name)

    def test_pitch_and_energy_options_change_the_mel_and_no_duration(self):
        mel, frames, _ = self.synthesize(self.batch)
        for options in ({"pitch_semitones": 4.0}, {"energy_db": 6.0}):
            changed_mel, same_frames, _ = self.synthesize(self.batch, **options)
            np.testing.assert_array_equal(frames, same_frames)
            self.assertGreater(np.abs(mel - changed_mel).max(), 0.05, options)

    def test_guidance_extrapolates_linearly_from_the_unconditional_estimate_but_for_the_level(self):
        options = ({"ode_steps": 1, "guidance": scale} for scale in (0.0, 1.0, 2.0))
        (unconditional, *_), (plain, frames, _), (double, *_) = (
            self.synthesize(self.batch, **o) for o in options
        )
        self.assertGreater(np.abs(plain - unconditional).max(), 0.1)
        for *mels, count in zip(unconditional, plain, double, frames, strict=True):
            low, middle, high = (mel[:count].astype(np.float64) for mel in mels)
            shift = high - (2 * middle - low)
            np.testing.assert_allclose(shift, shift.mean(), atol=5e-3)
            levels = [np.logaddexp.reduce(mel, axis=None) for mel in (low, middle, high)]
            np.testing.assert_allclose(levels, levels[0], atol=1e-3)

    def test_an_accent_is_a_language_further_from_the_mean_of_all(self):
        embeddings = self.model.language_embedding.embeddings
        trained = embeddings.numpy()
        exaggerated, _, _ = self.synthesize(self.batch, accent_strength=1.5)
        self.addCleanup(embeddings.assign, trained)
        embeddings.assign(1.5 * trained - 0.5 * trained.mean(axis=0))
        expected, _, _ = self.synthesize(self.batch)
        np.testing.assert_allclose(exaggerated, expected, atol=1e-4)
        embeddings.assign(trained)
        self.assertFalse(np.array_equal(exaggerated, self.synthesize(self.batch)[0]))

    def test_the_noise_is_a_function_of_the_seed(self):
        def mels(variety):
            seeds = (0, 0, 1)
            return [self.synthesize(self.batch, variety=variety, seed=seed)[0] for seed in seeds]

        first, again, other = mels(1.0)
        np.testing.assert_array_equal(first, again)
        self.assertFalse(np.array_equal(first, other))
        for mel in (mean := mels(0.0))[1:]:
            np.testing.assert_array_equal(mel, mean[0], "there is no noise in the mean")

    def test_variety_draws_durations_and_pitch_from_the_seed(self):
        frames = [self.synthesize(self.batch, variety=1.0, seed=seed)[1] for seed in (0, 0, 1)]
        np.testing.assert_array_equal(*frames[:2])
        self.assertNotEqual(frames[0].tolist(), frames[2].tolist())
        self.assertNotEqual(frames[0].tolist(), self.synthesize(self.batch)[1].tolist())


class LayersTest(unittest.TestCase):
    def test_layers_equal_those_of_keras_bit_for_bit(self):
        x = tf.constant(np.random.default_rng(0).normal(size=(2, 5, 7)), tf.float32)
        rows = tf.constant([[2, 0, 1], [1, 1, 2]])
        dense, embedding = (Dense, keras.layers.Dense), (Embedding, keras.layers.Embedding)
        activated = {"units": 4, "activation": "silu", "bias_initializer": "ones"}
        for precision in ("float32", "mixed_bfloat16"):
            for kinds, settings, inputs in (
                (dense, activated, x),
                (dense, {"units": 4, "use_bias": False}, x[0]),
                (embedding, {"input_dim": 3, "output_dim": 4}, rows),
            ):
                layer, expected = (kind(dtype=precision, **settings) for kind in kinds)
                layer(inputs), expected(inputs)
                expected.set_weights(layer.get_weights())
                self.assertEqual(layer(inputs).dtype, expected(inputs).dtype)
                np.testing.assert_array_equal(layer(inputs), expected(inputs))

    def test_dropout_keeps_the_mean_and_is_a_function_of_seed_and_name(self):
        seed, other = tf.constant([3, 4]), tf.constant([3, 5])
        for precision, channels in (("float32", 40), ("mixed_bfloat16", 42)):
            x = tf.ones([50, 60, channels], precision.removeprefix("mixed_"))
            drop = SeededDropout(0.3, "name", dtype=precision)
            dropped = tf.cast(drop(x, seed), tf.float32).numpy()
            values, counts = np.unique(dropped, return_counts=True)
            np.testing.assert_allclose(values, [0.0, 1 / 0.7], rtol=0.005)
            self.assertAlmostEqual(counts[0] / x.shape.num_elements(), 0.3, delta=0.005)
            # Neighbours, whose bytes are of one number, are dropped independently.
            self.assertLess(
                abs(np.corrcoef(dropped[..., 0].ravel(), dropped[..., 1].ravel())[0, 1]), 0.05
            )
            np.testing.assert_array_equal(drop(x, seed), dropped)
            for changed in (drop(x, other), SeededDropout(0.3, "b", dtype=precision)(x, seed)):
                self.assertTrue((tf.cast(changed, tf.float32).numpy() != dropped).any())

    def test_only_rotary_attention_depends_on_the_order_of_the_context(self):
        x, context = np.random.default_rng(0).normal(size=(2, 1, 5, 8)).astype(np.float32)
        mask = np.ones((1, 5, 1), np.float32)
        for rotary in (False, True):
            attention = Attention(8, 2, rotary)
            outputs = [attention(x, ordered, mask) for ordered in (context, context[:, ::-1])]
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
    def means(self, batch, average_spectrum=0.0):
        batch = on_device(batch)
        with tf.device(MODEL):
            speaker = self.model.speaker_condition(batch, tf.ones([3]))
            spectrum = speaker.average_spectrum + average_spectrum
            speaker = speaker._replace(average_spectrum=spectrum)
            return self.model._encode(batch, speaker)[1].numpy()

    def test_mean_mel_of_a_token_depends_on_that_token_only(self):
        changed = self.batch["tokens"].copy()
        changed[1, 4] = changed[1, 4] % 12 + 1
        before, after = self.means(self.batch), self.means(self.batch | {"tokens": changed})
        differs = np.abs(after - before).max(axis=2)
        self.assertGreater(differs[1, 4], 0.01)
        differs[1, 4] = 0.0
        self.assertEqual(differs.max(), 0.0)

    def test_average_spectrum_is_the_mean_of_the_loud_frames(self):
        # In units of 2.1 nepers: silence, 50 dB below the loudest frame.
        mel = np.full([3, 6, 80], -3.0, np.float32)
        mel[0, 1], mel[0, 3], mel[0, 4:] = -0.2, 0.0, 7.0
        mel[1, 0] = np.linspace(-1, 1, 80)
        mean, deviation = long_term_spectrum(tf.constant(mel), tf.constant([4, 1, 0]))
        expected = np.stack([np.full(80, -0.1), mel[1, 0], np.zeros(80)])
        np.testing.assert_allclose(mean, expected, atol=1e-6)
        np.testing.assert_allclose(deviation, np.repeat([[0.1], [0.0], [0.0]], 80, 1), atol=0.011)

    # What the convolutions learn may collapse to one point. The statistics of the spectrum remain.
    def test_the_spectrum_of_a_reference_reaches_its_embedding_without_the_level(self):
        encoder = ReferenceEncoder(16, 2, 2, name="encoder")
        loud = np.random.default_rng(0).normal(size=[1, 50, 80]).astype(np.float32)
        mels = np.concatenate([loud, loud + 1.0, loud * np.linspace(0.5, 1.0, 80), loud[:, ::-1]])
        mels = mels.astype(np.float32)

        def embeddings():
            frames = tf.fill([4], 50)
            statistics = spectral_statistics(*long_term_spectrum(mels, frames))
            return encoder(mels, frames, statistics, tf.ones([4]))[0].numpy()

        embeddings()  # makes the variables
        encoder.out.kernel.assign(tf.zeros_like(encoder.out.kernel))
        same, level, tilt, reverse = embeddings()
        np.testing.assert_allclose(level, same, atol=1e-3)
        np.testing.assert_allclose(reverse, same, atol=1e-4)
        self.assertGreater(np.linalg.norm(tilt - same), 0.1)

    def test_average_spectrum_is_added_to_the_mean_mel_with_a_weight_for_each_token(self):
        weight = self.means(self.batch, 1.0) - self.means(self.batch)
        np.testing.assert_allclose(weight, weight[:, :, :1] + np.zeros(80), atol=1e-5)
        self.assertTrue((weight[1] > 0.0).all() and (weight[1] < 1.0).all())
        self.assertGreater(np.ptp(weight[1, :, 0]), 0.01)  # weights differ between tokens

    def test_average_spectrum_is_zero_if_the_reference_is_dropped(self):
        keep = tf.constant([1.0, 0.0, 1.0])
        spectrum = self.model.speaker_condition(on_device(self.batch), keep).average_spectrum
        self.assertEqual((np.abs(spectrum).max(axis=1) > 0.0).tolist(), [True, False, True])


class Training(Network):
    def test_losses_of_segments_are_unbiased(self):
        """Check that the mean loss of segments over seeds is close to that of utterances."""
        model = build_model(segment_frames=8, size=ONE_BLOCK)
        batch = on_device(features([(5, 24), (8, 20), (3, 6)]))

        @tf.function(autograph=False)
        def loss(seed):
            return model(batch | {"seed": seed}, training=True)[0]["mel"]

        with tf.device(MODEL):
            segments = [float(loss(tf.constant([number, 0]))) for number in range(12)]
            whole = float(model(batch, training=False)[0]["mel"])
            self.assertGreater(np.std(segments), 0.0)
            self.assertAlmostEqual(np.mean(segments) / whole, 1.0, delta=0.03)

    def test_a_dropped_reference_is_ignored(self):
        changed = self.batch | {"reference": self.batch["reference"] + 1}
        for rate, matters in ((0.999, False), (0.0, True)):
            with mock.patch.object(self.model, "reference_dropout", rate):
                batches = self.batch, changed
                losses = [self.call(batch, training=True)[0]["prior"] for batch in batches]
            self.assertEqual(losses[0] != losses[1], matters)

    def test_a_dropped_condition_is_hidden_from_the_flow(self):
        shapes = [2, 4, 16], [2, 16], [2, 8, 80], [2]
        condition = FlowCondition(*map(tf.ones, shapes), tf.ones([2, 8], bool))
        with tf.device(MODEL):
            dropped = self.model._drop_condition(condition, tf.constant([0.0, 1.0]))
        for name in ("hidden", "voice", "mel"):
            dropped_row, full_row = getattr(dropped, name).numpy()
            self.assertEqual(float(np.ptp(full_row)), 0.0, name)
            self.assertFalse(np.array_equal(dropped_row, full_row), name)
        self.assertEqual(np.abs(dropped.hidden[0]).max() + np.abs(dropped.mel[0]).max(), 0.0)
        self.assertEqual(dropped.mel_std.numpy().tolist(), [1.0, 1.0])
        target, seed = tf.random.stateless_normal([2, 8, 80], [1, 2]), tf.constant([3, 4])
        unconditional = build_model(cfg_dropout=0.999, size=ONE_BLOCK)
        conditions = condition, condition._replace(mel=2.0 * condition.mel)
        with tf.device(MODEL):
            errors = [unconditional._flow_errors(target, c, seed, seed) for c in conditions]
        np.testing.assert_array_equal(*errors)

    def test_keep_mask_drops_the_given_fraction(self):
        rows, seed = tf.ones([10_000]), tf.constant([1, 2])
        self.assertAlmostEqual(np.mean(keep_mask(rows, 0.1, seed, "3")), 0.9, delta=0.01)
        self.assertEqual(np.mean(keep_mask(rows, 0.1, None, "3")), 1.0)
        np.testing.assert_array_equal(keep_mask(tf.constant([3, 0]), 0.0, seed, "3"), [1.0, 0.0])
        by_name = [keep_mask(rows, 0.5, seed, name).numpy().tolist() for name in "34"]
        self.assertNotEqual(*by_name)

    def test_the_flow_loss_has_no_gradient_before_the_flow(self):
        variables = self.model.trainable_variables
        with tf.device(MODEL), tf.GradientTape() as tape:
            loss = self.model(on_device(self.batch), training=True)[0]["flow"]
        gradients = tape.gradient(loss, [v.value for v in variables])
        trained = [v for v, g in zip(variables, gradients, strict=True) if g is not None]
        layers = {v.path.split("/")[1].split("_")[0] for v in trained}
        self.assertEqual(layers, {"flow", "noisy", "time", "unconditional"})

    def test_prosody_reaches_the_reference_encoder_and_not_the_text_encoder(self):
        components = self.model.component_layers()
        text = [self.model.symbol_embedding, *self.model.encoder_convs]
        with tf.GradientTape(persistent=True) as tape:
            losses, _ = self.model(self.batch, training=True)
        for loss in ("duration", "pitch", "energy"):
            for layers, reaches in ((components["reference_encoder"], True), (text, False)):
                variables = [v for layer in layers for v in layer.trainable_variables]
                gradients = tape.gradient(losses[loss], [v.value for v in variables])
                norm = sum(float(tf.norm(g)) for g in gradients if g is not None)
                self.assertEqual(norm > 0.0, reaches, loss)

    def test_a_speaker_embedding_begins_with_a_norm_near_one(self):
        speaker = build_model().speaker_condition(self.batch, tf.ones([len(self.batch["frames"])]))
        norms = np.linalg.norm(speaker.voice.numpy(), axis=1)
        self.assertTrue(((norms > 0.3) & (norms < 3.0)).all(), norms)

    @long
    def test_gradient_checkpointing_keeps_losses_and_gradients(self):
        batch, results = on_device(self.batch), []
        for checkpointing in (False, True):
            model = build_model(dropout=0.2, gradient_checkpointing=checkpointing, size=ONE_BLOCK)
            with tf.device(MODEL):

                @tf.function
                def gradients(model=model):
                    with tf.GradientTape() as tape:
                        loss = tf.add_n(list(model(batch, training=True)[0].values()))
                    variables = [v.value for v in model.trainable_variables]
                    return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

                graph = gradients.get_concrete_function().graph.as_graph_def()
                functions = [function.node_def for function in graph.library.function]
                operations = [node.op for nodes in (graph.node, *functions) for node in nodes]
                results.append((operations.count("Conv2D"), numpy_of(gradients())))
        (plain_convolutions, plain), (recomputed_convolutions, recomputed) = results
        self.assertGreater(recomputed_convolutions, plain_convolutions)
        np.testing.assert_allclose(plain[0], recomputed[0], rtol=1e-5)
        for left, right in zip(plain[1], recomputed[1], strict=True):
            np.testing.assert_allclose(left, right, atol=1e-4)

    def test_each_layer_is_in_one_component(self):
        tiny.check_components(self, self.model)


class Dropout(Network):
    def losses(self, seed=0, **options):
        losses, _ = self.call(self.batch | {"seed": np.array([seed, 7], np.int32)}, **options)
        return {name: float(loss) for name, loss in losses.items()}

    def test_dropout_is_active_only_in_training_and_a_function_of_the_seed(self):
        first, reseeded = self.losses(), self.losses(1)
        changed = [name for name, loss in first.items() if loss != reseeded[name]]
        self.assertEqual(changed, ["flow"])  # by its noise
        self.assertEqual(first, self.losses())
        trained = self.losses(training=True)
        self.assertNotEqual(first, trained)
        self.assertEqual(trained, self.losses(training=True))
        self.assertNotEqual(trained, self.losses(1, training=True))

    def test_dropout_differs_between_layers(self):
        names = tiny.dropout_names(self.model)
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
        for row, frames, tokens in zip(path, slow, batch["token_count"], strict=True):
            self.assertTrue(np.all(np.diff(row[:frames]) >= 0))
            self.assertEqual(sorted(set(row[:frames].tolist())), list(range(tokens)))
            self.assertTrue(np.all(row[frames:] == -1))

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
                    computed = {}
                    for layer in model._flatten_layers(include_self=False):
                        computed.setdefault(layer.compute_dtype, []).append(layer.path)
                    aligner = computed.pop("float32")
                    self.assertTrue(all(path.startswith("xtts/aligner") for path in aligner))
                    self.assertEqual(set(computed), {precision.removeprefix("mixed_")})
        # Building a model restores the policy.
        self.assertEqual(keras.config.dtype_policy().name, "float32")


class Sizes(unittest.TestCase):
    def assert_size(self, size, parameters, tolerance):
        with self.subTest(size=size), tf.device(MODEL):
            count = parameter_count(xtts.build_xtts(size, 200, 1))
            self.assertAlmostEqual(count, parameters, delta=tolerance * parameters)

    def test_the_smallest_model_has_the_parameters_that_the_documentation_says(self):
        self.assert_size("tiny", 3e6, 0.1)

    @long
    def test_parameter_counts_match_the_documentation(self):
        for size, parameters in (("small", 10e6), ("normal", 25e6), ("big", 80e6)):
            self.assert_size(size, parameters, 0.1)
