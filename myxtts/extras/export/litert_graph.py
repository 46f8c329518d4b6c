"""A traced TensorFlow function as LiteRT, by TensorFlow's converter and without its own kernels.

What LiteRT lacks is replaced: see `portable_graph`. float64 becomes float32, but for sums.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from myxtts.extras.export.portable_functions import normal_numbers
from myxtts.extras.export.portable_graph import REPLACED, portable_function

# Fixed-point steps in a cycle of phase. The sum over 20 s of 150 Hz is 3,000 cycles, 12 bits more.
FIXED_POINT = float(2**40)
HALF_WORD = 1 << 16


# The traced function is rewritten without what LiteRT lacks, saved once, and converted for each
# precision: as it is, with weights of 16 bits, and with weights of 8 bits.
def litert_models(traced, outputs: Sequence[str], precisions: Iterable[str]) -> dict[str, bytes]:
    """Return the models of a traced function by their precision; they have its first output."""
    module = tf.Module()
    module.call = portable(traced, outputs[0])
    models = {}
    with tempfile.TemporaryDirectory(prefix="myxtts-") as folder:
        tf.saved_model.save(module, folder, module.call.get_concrete_function())
        for kind in precisions:
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            if kind != "float32":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if kind == "float16":
                converter.target_spec.supported_types = [tf.float16]
            models[kind] = converter.convert()
    return models


def portable(traced, output: str):
    """Return a tf.function that LiteRT can compute; see `portable_function`."""
    return portable_function(traced, [output], _REPLACED, {tf.float64: tf.float32})


def _with_axes(operation: tf.Operation, x, begin, end, strides):
    """Add axes by other operations than a slice, unless it does more."""
    masks = {name: operation.get_attr(f"{name}_mask") for name in ("begin", "end", "new_axis")}
    is_whole = (masks["begin"] & masks["end"]) | masks["new_axis"] == (1 << len(strides)) - 1
    if not is_whole or operation.get_attr("shrink_axis_mask") or np.any(strides != 1):
        return None
    for axis in range(len(strides)):
        if masks["new_axis"] >> axis & 1:
            x = tf.expand_dims(x, axis)
    return x


def fraction_of_sum(x, axis):
    """Return a cumulative sum without its whole part, which is exact in 64 bits of fixed point."""
    total = tf.cumsum(tf.cast(x * FIXED_POINT, tf.int64), axis)
    return tf.cast(tf.math.floormod(total, np.int64(FIXED_POINT)), tf.float32) / FIXED_POINT


def error_function(x):
    """Return the error function within 1.5e-7 (Abramowitz & Stegun 1964, 7.1.26)."""
    t = 1.0 / (1.0 + 0.3275911 * tf.abs(x))
    factors = 1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592
    polynomial = 0.0
    for factor in factors:
        polynomial = (polynomial + factor) * t
    return tf.sign(x) * (1.0 - polynomial * tf.exp(-x * x))


def product(word, factor: int):
    """Multiply words of 32 bits by their halves; return the upper and lower 32 bits, int32."""

    def lower(x):
        return tf.math.floormod(x, HALF_WORD)

    def upper(x):
        return lower(tf.bitwise.right_shift(x, 16))

    factors = divmod(factor, HALF_WORD)
    low, middle_0 = lower(word) * factors[1], lower(word) * factors[0]
    middle_1, high = upper(word) * factors[1], upper(word) * factors[0]
    carry = upper(low) + lower(middle_0) + lower(middle_1)
    carry = tf.bitwise.right_shift(carry, 16)
    whole = word * np.array(factor, np.uint32).astype(np.int32)
    return high + upper(middle_0) + upper(middle_1) + carry, whole


# Cumulative sums in float64 are phases, and only their fractions are used.
def _cumulative(operation: tf.Operation, x, axis):
    if operation.inputs[0].dtype != tf.float64:
        return None
    assert not operation.get_attr("exclusive") and not operation.get_attr("reverse")
    return fraction_of_sum(x, axis)


def _absolute(operation: tf.Operation, x):
    if operation.inputs[0].dtype != tf.int64:
        return None
    return tf.maximum(x, -x)


_REPLACED: dict[str, Callable] = {
    **REPLACED,
    "StatelessRandomNormal": lambda _, shape, seed: normal_numbers(shape, seed, tf.int32, product),
    "Erf": lambda _, x: error_function(x),
    "Erfc": lambda _, x: 1.0 - error_function(x),
    "Abs": _absolute,
    "Cumsum": _cumulative,
    "StridedSlice": _with_axes,
}
