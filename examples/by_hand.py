"""The first example with TensorFlow's own words alone: tf.device, prefetch_to_device, tf.identity.

python examples/by_hand.py --data-gpu 0 --model-gpu 1
python examples/by_hand.py --simulate 2              # two parts of the CPU instead of GPUs

It trains with the same losses. What goes wrong with it on GPUs is in myxtts/devicefeed/README.md.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tensorflow as tf

from examples.device_feed import make, parse


def batches(dataset: tf.data.Dataset, produce: Callable, data: str, model: str) -> Iterator[dict]:
    """Yield what `produce` makes of each element on the data device, on the model device."""

    @tf.function(autograph=False)
    def produce_there(*element):
        with tf.device(data):
            return produce(*element)

    upload = tf.data.experimental.prefetch_to_device(data, buffer_size=3)
    for element in dataset.apply(upload):
        made = produce_there(*element)
        with tf.device(model):
            copies = {name: tf.identity(value) for name, value in made.items()}
        yield copies


def main() -> None:
    data, model, steps = parse()
    dataset, produce, step = make(data, model)
    for _, batch in zip(range(steps), batches(dataset, produce, data, model), strict=False):
        loss = step(**batch)
    print(f"loss {loss.numpy():.3f}")


if __name__ == "__main__":
    main()
