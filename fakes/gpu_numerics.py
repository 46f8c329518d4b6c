"""What a GPU does differently, emulated on a CPU: cuDNN's CTC and the rounding to TF32."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts import tf_internals


@contextmanager
def on_emulated_gpu() -> Iterator[None]:
    """Let code choose what it does on a GPU."""
    with mock.patch.object(tf_internals, "device_type_in_scope", return_value="GPU"):
        yield


@contextmanager
def cudnn_ctc_loss(garbage: float = np.nan) -> Iterator[None]:
    """Give `tf.nn.ctc_loss` cuDNN's limits: 255 labels, `garbage` as gradient behind its end."""
    with mock.patch.object(tf.nn, "ctc_loss", _cudnn_ctc_loss(tf.nn.ctc_loss, garbage)):
        yield


def _cudnn_ctc_loss(kernel, garbage):
    def loss(labels, logits, label_length, logit_length, blank_index):
        counts = tf.math.bincount(tf.cast(labels.indices[:, 0], tf.int32))
        tf.debugging.Assert(tf.reduce_max(counts) < 256, ["cuDNN CTCLoss launch failure"])
        real = tf.transpose(tf.sequence_mask(logit_length, tf.shape(logits)[0]))[:, :, None]

        @tf.custom_gradient
        def with_garbage(logits):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                losses = kernel(labels, logits, label_length, logit_length, blank_index=blank_index)
            gradient = tf.where(real, tape.gradient(losses, logits), garbage)
            return losses, lambda upstream: gradient * upstream[None, :, None]

        return with_garbage(logits)

    return loss


@contextmanager
def tf32_products() -> Iterator[None]:
    """Round the float32 factors of `tf.matmul` to TF32, as GPUs since Ampere do."""
    product = tf.matmul

    def rounded_product(a, b, **transposed):
        return product(_tf32(a), _tf32(b), **transposed)

    with mock.patch.object(tf, "matmul", rounded_product):
        yield


def _tf32(values):
    """Round float32 to 10 bits of mantissa, to nearest, ties to even."""
    values = tf.convert_to_tensor(values)
    if values.dtype != tf.float32:
        return values
    bits = tf.bitcast(values, tf.int32)
    odd = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 13), 1)
    return tf.bitcast(tf.bitwise.bitwise_and(bits + 0xFFF + odd, ~0x1FFF), tf.float32)
