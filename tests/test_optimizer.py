"""AdamW over all weights at once, and packed tensors."""

import unittest
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.base import portable_ops
from myxtts.base.portable_ops import ROW_VALUES, assign_elementwise
from myxtts.run.optimizer import UNDECAYED, make_optimizer
from myxtts.tasks.layers import LayerNormalization

# Some fill whole rows of a packed tensor, others do not.
SHAPES = {
    "kernel": (5, 16, 7),
    "bias": (7,),
    "embeddings": (3, 80),
    "out/kernel": (32,),
    "beta": (),
}


def on_gpu(is_gpu):
    """Let operations think that they are on a GPU, or not."""
    kind = "GPU" if is_gpu else "CPU"
    return mock.patch.object(portable_ops.tf_internals, "device_type_in_scope", lambda: kind)


def keras_own():
    options = {"weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.99, "name": "adamw"}
    optimizer = keras.optimizers.AdamW(1e-3, **options)
    optimizer.exclude_from_weight_decay(var_names=UNDECAYED)
    return optimizer


def trained(optimizer, is_gpu=False):
    """Return the weights and the optimizer's variables after five updates, by name."""
    random = np.random.default_rng(0)
    weights = [
        keras.Variable(random.normal(size=shape).astype("float32"), name=name.split("/")[-1])
        for name, shape in SHAPES.items()
    ]
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step(gradients):
        optimizer.apply(gradients, weights)

    with on_gpu(is_gpu):
        for number in range(5):
            optimizer.learning_rate = 1e-2 / (number + 1)
            step([tf.constant(random.normal(size=v.shape), tf.float32) for v in weights])
    values = [v.numpy() for v in weights]
    return values, {v.path: v.numpy() for v in optimizer.variables}


class AdamWTest(unittest.TestCase):
    def test_weights_and_variables_are_those_of_keras_bit_for_bit_packed_or_not(self):
        expected, expected_variables = trained(keras_own())
        for is_gpu in (False, True):
            weights, variables = trained(make_optimizer(0.01, "float32"), is_gpu)
            np.testing.assert_equal(weights, expected)
            np.testing.assert_equal(variables, expected_variables)


class PackedTest(unittest.TestCase):
    def test_a_function_is_called_once_on_a_gpu_and_for_each_place_on_a_cpu(self):
        random = np.random.default_rng(0)
        x, y = ([random.normal(size=s).astype("f") for s in SHAPES.values()] for _ in range(2))
        for is_gpu in (False, True):
            called = []
            variables = [tf.Variable(value) for value in x]

            def total(x, y, called=called):
                called.append(x.shape)
                return (x + y,)

            with on_gpu(is_gpu):
                assign_elementwise(total, [variables], [y])
            self.assertEqual(len(called), 1 if is_gpu else len(SHAPES))
            self.assertEqual(called[0][-1], ROW_VALUES if is_gpu else 7)
            for variable, *values in zip(variables, x, y, strict=True):
                np.testing.assert_array_equal(variable, sum(values))


class LayerNormalizationTest(unittest.TestCase):
    def test_values_and_gradients_are_those_of_keras(self):
        random = np.random.default_rng(0)
        x, upstream = (tf.constant(random.normal(size=(3, 5, 24)), tf.float32) for _ in range(2))
        results = []
        for make in (keras.layers.LayerNormalization, LayerNormalization):
            layer = make(name="norm")
            layer.build(x.shape)
            layer.gamma.assign(tf.linspace(0.5, 2.0, 24))
            layer.beta.assign(tf.linspace(-1.0, 1.0, 24))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(3.0 * x + 1.0)
            sources = [x, *(v.value for v in layer.trainable_variables)]
            results.append([y, *tape.gradient(y, sources, output_gradients=upstream)])
        for own, of_keras in zip(*reversed(results), strict=True):
            np.testing.assert_allclose(own, of_keras, rtol=1e-4, atol=1e-5)
