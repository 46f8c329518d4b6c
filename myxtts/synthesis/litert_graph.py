"""A traced TensorFlow function as LiteRT, by TensorFlow's converter and without its own kernels.

The operations of the trace are traced again, with others in place of those that LiteRT lacks: see
`onnx_functions`. float64 becomes float32, but for sums.
"""

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.synthesis import onnx_functions
from myxtts.synthesis.onnx_functions import Complex
from myxtts.synthesis.onnx_graph import COMPLEX, REPLACED, UNCHANGED, inputs_of, known_values

KINDS = ("float32", "float16", "int8")
FIXED_POINT = float(2**40)  # of cycles of a phase: F0 has up to ten bits more
HALF_WORD = 1 << 16


def litert_models(traced, output: str) -> dict[str, bytes]:
    """Return the models of a traced function of one tensor, which they call `output`, by KINDS."""
    module = tf.Module()
    module.call = replayed(traced, output)
    models = {}
    with tempfile.TemporaryDirectory(prefix="myxtts-") as folder:
        tf.saved_model.save(module, folder, module.call.get_concrete_function())
        for kind in KINDS:
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            if kind != "float32":
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if kind == "float16":
                converter.target_spec.supported_types = [tf.float16]
            models[kind] = converter.convert()
    return models


def replayed(traced, output: str):
    """Return a tf.function of the operations of a traced one, for LiteRT."""
    inputs = inputs_of(traced)
    known = known_values(traced)
    constants: dict[Any, tf.Tensor] = {}

    def tensor(value: Any) -> Any:
        """Return a value as a tensor or a Complex; the same array as the same constant."""
        if not isinstance(value, np.ndarray | np.generic):
            return value
        if np.iscomplexobj(value):
            return Complex(tensor(value.real), tensor(value.imag))
        array = value.astype(np.float32) if value.dtype == np.float64 else value
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in constants:
            constants[key] = tf.constant(array)
        return constants[key]

    def call(*tensors):
        constants.clear()
        values: dict[Any, Any] = {**known}
        values.update(zip((x.ref() for x in inputs), tensors, strict=True))
        changing = {x.ref() for x in inputs}
        for operation in traced.graph.get_operations():
            if changing.intersection(x.ref() for x in operation.inputs):
                given = [values[x.ref()] for x in operation.inputs]
                results = _translated(operation, given, tensor)
                changing.update(x.ref() for x in operation.outputs)
                values.update(zip((x.ref() for x in operation.outputs), results, strict=True))
        return {output: values[traced.outputs[0].ref()]}

    signature = [tf.TensorSpec(x.shape, x.dtype, x.op.name) for x in inputs]
    return tf.function(call, input_signature=signature, autograph=False)


def _translated(operation: tf.Operation, given: list[Any], tensor: Callable) -> list[Any]:
    kind = operation.type
    if kind in UNCHANGED:
        return given
    if kind in _REPLACED:
        return [_REPLACED[kind](*given)]
    inputs = [*map(tensor, given)]
    if any(isinstance(x, Complex) for x in inputs):
        return [_COMPLEX[kind](*inputs)]
    dtype = operation.inputs[0].dtype if inputs else None
    if (kind, dtype) in _REPLACED_OF_TYPE:
        return [_REPLACED_OF_TYPE[kind, dtype](*inputs)]
    if kind == "StridedSlice" and (added := _added_axes(operation, given[3])):
        for axis in added:
            inputs[0] = tf.expand_dims(inputs[0], axis)
        return inputs[:1]
    attributes = {
        name: value for name, value in operation.node_def.attr.items() if not name.startswith("_")
    }
    for value in attributes.values():
        if value.type == tf.float64.as_datatype_enum:
            value.type = tf.float32.as_datatype_enum
    graph = tf.compat.v1.get_default_graph()
    types = [_TYPES.get(x.dtype, x.dtype) for x in operation.outputs]
    new = graph.create_op(kind, inputs, types, attrs=attributes, op_def=operation.op_def)
    for result, former in zip(new.outputs, operation.outputs, strict=True):
        result.set_shape(former.shape)
    return list(new.outputs)


def _added_axes(operation: tf.Operation, strides: np.ndarray) -> list[int]:
    """Return the axes that a slice adds, if it does nothing else. LiteRT does not add the last."""
    masks = {name: operation.get_attr(f"{name}_mask") for name in ("begin", "end", "new_axis")}
    is_whole = (masks["begin"] & masks["end"]) | masks["new_axis"] == (1 << len(strides)) - 1
    if not is_whole or operation.get_attr("shrink_axis_mask") or np.any(strides != 1):
        return []
    return [i for i in range(len(strides)) if masks["new_axis"] >> i & 1]


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


_TYPES = {tf.float64: tf.float32}
_REPLACED: dict[str, Callable] = {
    **{kind: function for kind, function in REPLACED.items() if kind != "Conv2D"},
    "StatelessRandomNormal": lambda shape, seed: onnx_functions.normal_numbers(
        shape, seed, tf.int32, product
    ),
    "Complex": Complex,
    "Erf": error_function,
    "Erfc": lambda x: 1.0 - error_function(x),
}
_REPLACED_OF_TYPE: dict[tuple[str, tf.DType], Callable] = {
    ("Cumsum", tf.float64): fraction_of_sum,
    ("Abs", tf.int64): lambda x: tf.maximum(x, -x),
}
_COMPLEX: dict[str, Callable] = {
    **COMPLEX,
    "Shape": lambda x: tf.shape(x.real),
    "Real": lambda x: x.real,
    "Imag": lambda x: x.imag,
    "AddV2": lambda a, b: Complex(a.real + b.real, a.imag + b.imag),
}
