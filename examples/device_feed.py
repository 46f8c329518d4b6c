"""Train on the features of a frozen network that works on the other device.

python examples/device_feed.py               # GPU 0 makes the features, GPU 1 trains
python examples/device_feed.py --simulate 2  # two parts of the CPU instead of GPUs
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf

from myxtts.devicefeed import DeviceFeed


def parse() -> tuple[str, str, int]:
    """Return the data device, the model device and the number of steps."""
    parser = argparse.ArgumentParser(description="Train on the features of a frozen network.")
    for name, default in {"data-gpu": 0, "model-gpu": 1, "simulate": 0, "steps": 200}.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    options = parser.parse_args()
    if options.simulate:
        parts = [tf.config.LogicalDeviceConfiguration()] * options.simulate
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    kind = "CPU" if options.simulate else "GPU"
    return f"/{kind}:{options.data_gpu}", f"/{kind}:{options.model_gpu}", options.steps


def make(data: str, model: str, pixels: int = 96, units: int = 2_048):
    """Return a dataset on the host, `produce` for the data and `step` for the model device."""
    keras.utils.set_random_seed(0)
    with tf.device(data):
        shape = {"input_shape": (pixels, pixels, 3), "alpha": 0.35, "pooling": "avg"}
        encoder = keras.applications.MobileNetV2(include_top=False, weights=None, **shape)
    with tf.device(model):
        layers = keras.layers.Dense(units, "relu"), keras.layers.Dense(10, "softmax")
        network = keras.Sequential([keras.Input(encoder.output_shape[1:]), *layers])
        optimizer = keras.optimizers.AdamW(1e-3)
        optimizer.build(network.trainable_variables)

    def produce(images, labels):
        # Augmentation and encoder: the work that moves away from the model device.
        images = tf.image.random_flip_left_right(tf.cast(images, tf.float32), seed=0)
        return {"features": encoder(images / 127.5 - 1.0, training=False), "labels": labels}

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

    images = np.random.default_rng(0).integers(0, 256, (1_024, pixels, pixels, 3), np.uint8)
    images[::2] //= 2
    dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(1_024) % 2))
    return dataset.repeat().batch(32, drop_remainder=True), produce, step


def main() -> None:
    data, model, steps = parse()
    dataset, produce, step = make(data, model)
    with DeviceFeed(dataset, produce, data, model) as feed:
        for _, batch in zip(range(steps), feed, strict=False):
            feed.running = step(**batch)
        print(f"loss {feed.running.numpy():.3f} | {feed.summary()}")


if __name__ == "__main__":
    main()
