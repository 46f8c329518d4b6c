"""A traced TensorFlow function without what other runtimes lack, such as complex numbers.

The operations of the trace are traced again, with others in place of some: a complex tensor is a
pair of real ones, variables are constants, and what depends on no input is computed once, now.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.extras.export import portable_functions
from myxtts.extras.export.portable_functions import Complex

_UNCHANGED = {"Identity", "IdentityN", "StopGradient", "PreventGradient"}
REPLACED: dict[str, Callable] = {
    "Complex": lambda _, real, imaginary: Complex(real, imaginary),
    "RFFT": lambda _, frames, length: portable_functions.real_transform(frames),
    "IRFFT": lambda _, spectrum, length: portable_functions.inverse_real_transform(spectrum),
    "UpperBound": lambda _, rows, values: portable_functions.upper_bound(rows, values),
}
_OF_COMPLEX: dict[str, Callable] = {
    "Shape": lambda x: tf.shape(x.real),
    "Real": lambda x: x.real,
    "Imag": lambda x: x.imag,
    "ComplexAbs": lambda x: tf.sqrt(x.real * x.real + x.imag * x.imag),
    "AddV2": lambda a, b: Complex(a.real + b.real, a.imag + b.imag),
    "Mul": portable_functions.complex_product,
    "RealDiv": portable_functions.complex_quotient,
}


# The operations of the trace are visited in order with the values that their inputs became. Each is
# replaced, applied to the two parts of a complex tensor, or copied into the new graph with other
# inputs. Values that no input changes were computed before and enter as constants, each only once.
def portable_function(
    traced,
    names: Sequence[str],
    replaced: Mapping[str, Callable],
    types: Mapping[tf.DType, tf.DType] = {},
):
    """Return a tf.function that returns the first tensors of a traced one, by names.

    The traced function calls no other one.

    Args:
        replaced: by the kind of an operation, a function of it and of its inputs, which are arrays
            if they are known. It returns a tensor or a Complex, or None to replace nothing.
        types: what to compute in another type.
    """
    inputs, known = inputs_of(traced), known_values(traced)
    constants: dict[Any, tf.Tensor] = {}

    def tensor(value: Any) -> Any:
        """Return a value as a tensor or a Complex; the same array as the same constant."""
        if not isinstance(value, np.ndarray | np.generic):
            return value
        if np.iscomplexobj(value):
            return Complex(tensor(value.real), tensor(value.imag))
        dtype = tf.as_dtype(value.dtype)
        array = value.astype(types.get(dtype, dtype).as_numpy_dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in constants:
            constants[key] = tf.constant(array)
        return constants[key]

    def translated(operation: tf.Operation, given: list[Any]) -> list[Any]:
        if operation.type in _UNCHANGED:
            return given
        if operation.type in replaced:
            result = replaced[operation.type](operation, *given)
            if result is not None:
                return [result]
        tensors = [*map(tensor, given)]
        if any(isinstance(x, Complex) for x in tensors):
            return [_OF_COMPLEX[operation.type](*tensors)]
        return _copied(operation, tensors, types)

    def call(*tensors):
        constants.clear()
        return dict(zip(names, evaluated(traced, tensors, known, translated), strict=False))

    signature = [tf.TensorSpec(x.shape, x.dtype, x.op.name) for x in inputs]
    return tf.function(call, input_signature=signature, autograph=False)


def _copied(
    operation: tf.Operation, inputs: list[tf.Tensor], types: Mapping[tf.DType, tf.DType]
) -> list[tf.Tensor]:
    """Return the outputs of the same operation with other inputs, in the current graph."""
    attributes = operation.node_def.attr
    attributes = {name: attributes[name] for name in attributes if not name.startswith("_")}
    enums = {old.as_datatype_enum: new.as_datatype_enum for old, new in types.items()}
    for value in attributes.values():
        if value.type in enums:
            value.type = enums[value.type]
    kinds = [types.get(x.dtype, x.dtype) for x in operation.outputs]
    options = {"attrs": attributes, "op_def": operation.op_def}
    graph = tf.compat.v1.get_default_graph()
    return list(graph.create_op(operation.type, inputs, kinds, **options).outputs)


def evaluated(
    traced, given: Sequence[Any], known: Mapping[Any, np.ndarray], translate: Callable
) -> list[Any]:
    """Return what the outputs of a traced function become, from what its inputs become.

    `translate` returns what the outputs of an operation become, from what its inputs become;
    `known` are values that do not change, see `known_values`.
    """
    inputs = [x.ref() for x in inputs_of(traced)]
    values, changing = {**known, **dict(zip(inputs, given, strict=True))}, set(inputs)
    for operation in traced.graph.get_operations():
        if changing.intersection(x.ref() for x in operation.inputs):
            results = translate(operation, [values[x.ref()] for x in operation.inputs])
            outputs = [x.ref() for x in operation.outputs]
            changing.update(outputs)
            values.update(zip(outputs, results, strict=True))
    return [values[x.ref()] for x in traced.outputs]


def inputs_of(traced) -> list[tf.Tensor]:
    captured = {x.ref() for x in traced.graph.internal_captures}
    return [x for x in traced.inputs if x.ref() not in captured]


# An operation changes if any of its inputs does. The other values that changing operations take are
# computed in one session, with the values of the variables in place of their handles.
def known_values(traced) -> dict[Any, np.ndarray]:
    """Return the values that operations take, or the function returns, and no input changes."""
    changing = {x.ref() for x in inputs_of(traced)}
    taken = {x.ref() for x in traced.outputs}
    for operation in traced.graph.get_operations():
        if changing.intersection(x.ref() for x in operation.inputs):
            changing.update(x.ref() for x in operation.outputs)
            taken.update(x.ref() for x in operation.inputs)
    variables = {id(variable.handle): variable.numpy() for variable in traced.variables}
    captured = zip(traced.graph.internal_captures, traced.captured_inputs, strict=True)
    handles = {inner.ref(): variables.get(id(outer)) for inner, outer in captured}
    given = {
        operation.outputs[0].name: handles[operation.inputs[0].ref()]
        for operation in traced.graph.get_operations()
        if operation.type == "ReadVariableOp"
    }
    known = [x.deref() for x in taken - changing]
    options = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    with tf.compat.v1.Session(graph=traced.graph, config=options) as session:
        values = session.run(known, given)
    return {x.ref(): value for x, value in zip(known, values, strict=True)}
