"""Train on the features of a frozen network that works on the other device.

python examples/device_feed.py               # GPU 0 makes the features, GPU 1 trains
python examples/device_feed.py --simulate    # two parts of the CPU instead of GPUs
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf

from myxtts import devicefeed

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--simulate", action="store_true", help="split the CPU instead of using GPUs")
options = parser.parse_args()
data, model = ("/CPU:0", "/CPU:1") if options.simulate else ("/GPU:0", "/GPU:1")
if options.simulate:
    parts = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)

with tf.device(data):
    shape = {"input_shape": (96, 96, 3), "alpha": 0.35, "pooling": "avg"}
    encoder = keras.applications.MobileNetV2(include_top=False, weights=None, **shape)
with tf.device(model):
    layers = keras.layers.Dense(2_048, "relu"), keras.layers.Dense(10, "softmax")
    network = keras.Sequential([keras.Input(encoder.output_shape[1:]), *layers])
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.build(network.trainable_variables)


def produce(images, labels):
    # Augmentation and encoder: the work that moves away from the model device.
    images = tf.image.random_flip_left_right(tf.cast(images, tf.float32) / 127.5 - 1.0)
    return {"features": encoder(images, training=False), "labels": labels}


@tf.function(autograph=False)
def step(features, labels):
    # Entered here: a scope around the tracing does not reach the operations.
    with tf.device(model):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(labels, network(features))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply(gradients, network.trainable_variables)
        return loss


images = np.random.default_rng(0).integers(0, 256, (1_024, 96, 96, 3), np.uint8)
dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(1_024) % 10)).repeat().batch(32)
with devicefeed.DeviceFeed(dataset, produce, data, model) as feed:
    for _, batch in zip(range(200), feed, strict=False):
        feed.running = step(**batch)
    print(f"loss {feed.running.numpy():.3f} | {feed.summary()}")
