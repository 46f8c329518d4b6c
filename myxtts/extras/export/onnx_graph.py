"""A traced TensorFlow function as ONNX: for each operation one of ONNX, or a few.

What ONNX lacks is replaced first: see `portable_graph`. int32 becomes int64, in which ONNX has
shapes and indices.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.extras.export.portable_functions import convolution, normal_numbers, sigmoid
from myxtts.extras.export.portable_graph import (
    REPLACED,
    evaluated,
    inputs_of,
    known_values,
    portable_function,
)

OPSET, IR_VERSION = 18, 8  # the first with bitwise operations
MAX_INT64 = np.iinfo(np.int64).max

_SAME = {
    **{name: name for name in "Sub Mul Neg Exp Log Sqrt Sin Cos Abs Floor Round".split()},
    **{name: name for name in "Tanh Erf Atan Softplus Pow Less Greater Equal Relu Softmax".split()},
    **{name: name for name in "BitwiseXor BitwiseAnd Reshape Tile Range Identity Shape".split()},
    **{"AddV2": "Add", "BiasAdd": "Add", "AddN": "Sum", "RealDiv": "Div", "GatherNd": "GatherND"},
    **{"Maximum": "Max", "Minimum": "Min", "FloorMod": "Mod"},
    **{"LessEqual": "LessOrEqual", "GreaterEqual": "GreaterOrEqual", "LogicalAnd": "And"},
    **{"LogicalOr": "Or", "LogicalNot": "Not", "SelectV2": "Where", "BroadcastTo": "Expand"},
}
_REPLACED: dict[str, Callable] = {
    **REPLACED,
    "StatelessRandomNormal": lambda _, shape, seed: normal_numbers(shape, seed),
    "Sigmoid": lambda _, x: sigmoid(x),
    "Erfc": lambda _, x: 1.0 - tf.math.erf(x),
    "Conv2D": lambda operation, x, kernel: convolution(x, kernel, operation.get_attr("padding")),
    "Atan2": lambda _, y, x: _angle(y, x),
    # ONNX's own OneHot takes -1 for the last class, and TensorFlow's for none.
    "OneHot": lambda _, index, depth, on, off: tf.where(
        tf.equal(tf.expand_dims(index, -1), tf.range(depth)), on, off
    ),
    "ZerosLike": lambda _, x: tf.zeros(tf.shape(x), x.dtype),
    "OnesLike": lambda _, x: tf.ones(tf.shape(x), x.dtype),
}
_REDUCTIONS = {name: f"Reduce{name}" for name in "Mean Sum Max Min Prod".split()}


# A traced function comes in. Its operations without a counterpart are rewritten in TensorFlow
# first. Then each operation is translated in the order of the trace; shapes and constants are
# folded on the way, since ONNX runtimes want them as constants. Last, nodes that no output needs
# are dropped, and the rest becomes a model with named inputs.
def onnx_graph(traced, name: str, names: Sequence[str], metadata: dict[str, str]):
    """Return the ONNX model of a traced function; `names` are those of its outputs."""
    from onnx import helper

    traced = portable_function(traced, names, _REPLACED).get_concrete_function()
    builder = _Builder()
    tensors = inputs_of(traced)
    results = builder.function(traced, [tensor.op.name for tensor in tensors])
    outputs = []
    # TensorFlow sorts named outputs.
    for output, result, tensor in zip(sorted(names), results, traced.outputs, strict=True):
        builder.nodes.append(helper.make_node("Identity", [result], [output]))
        outputs.append(_value_info(output, tensor))
    outputs.sort(key=lambda info: names.index(info.name))
    nodes, initializers = builder.needed_for(names)
    inputs = [_value_info(tensor.op.name, tensor) for tensor in tensors]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    imports = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    model.producer_name = "myxtts"
    helper.set_model_props(model, metadata)
    return model


def _value_info(name: str, tensor):
    from onnx import helper

    shape = [size or f"{name}_{axis}" for axis, size in enumerate(tensor.shape)]
    return helper.make_tensor_value_info(name, _kind(tensor.dtype), shape)


def _kind(dtype: tf.DType) -> int:
    from onnx import helper

    dtype = tf.int64 if dtype == tf.int32 else dtype
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype.as_numpy_dtype))


def _angle(y, x):
    return tf.atan(y / x) + tf.where(x < 0.0, tf.where(y < 0.0, -np.pi, np.pi), 0.0)


class _Builder:
    """Nodes and constants of a graph, in which a tensor is a name."""

    def __init__(self):
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._known: dict[Any, str] = {}
        # The scalars of vectors that are made of them, since slices need them one by one.
        self._scalars: dict[str, Sequence[str]] = {}

    def function(self, traced, inputs: Sequence[Any]) -> list[Any]:
        """Translate a function that calls no other one; return its outputs."""

        def translated(operation: tf.Operation, given: Sequence[Any]) -> Sequence[str]:
            return self.translate(operation, [*map(self.named, given)])

        return [*map(self.named, evaluated(traced, inputs, known_values(traced), translated))]

    def named(self, value: Any) -> str:
        if isinstance(value, np.ndarray | np.generic):
            return self.constant(value)
        return value

    def translate(self, operation: tf.Operation, inputs: list[str]) -> list[str]:
        kind = operation.type
        results: str | list[str]
        if kind in _SAME:
            results = self.add(_SAME[kind], *inputs)
        elif kind in _REDUCTIONS:
            axes = self.constant(self.constants[inputs[1]].reshape(-1))
            keep = int(operation.get_attr("keep_dims"))
            results = self.add(_REDUCTIONS[kind], inputs[0], axes, keepdims=keep)
        else:
            results = _OTHER[kind](self, operation, *inputs)
        return [results] if isinstance(results, str) else results

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output; return its name."""
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Return the name of a constant, the same for equal ones; integers are int64."""
        array = np.asarray(value)
        if array.dtype == np.int32:
            array = array.astype(np.int64)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._known:
            self._known[key] = f"constant_{len(self._known)}"
            self.constants[self._known[key]] = array
        return self._known[key]

    def needed_for(self, outputs: Iterable[str]) -> tuple[list[Any], list[Any]]:
        """Return the nodes and the initializers that outputs depend on."""
        from onnx import numpy_helper

        needed, nodes = {*outputs}, []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                nodes.append(node)
                needed.update(node.input)
        constants = self.constants.items()
        found = [numpy_helper.from_array(x, name) for name, x in constants if name in needed]
        return nodes[::-1], found

    def pack(self, operation: tf.Operation, *inputs: str) -> str:
        axis = operation.get_attr("axis")
        if all(x in self.constants for x in inputs):
            return self.constant(np.stack([self.constants[x] for x in inputs], axis))
        parts = [self.add("Unsqueeze", x, self.constant([axis])) for x in inputs]
        name = self.add("Concat", *parts, axis=axis)
        if operation.inputs[0].shape.rank == 0:
            self._scalars[name] = parts
        return name

    def element(self, vector: str, index: int) -> str:
        """Return a vector of one element of a vector."""
        if vector in self.constants:
            return self.constant(self.constants[vector][index : index + 1])
        if vector in self._scalars:
            return self._scalars[vector][index]
        return self.add("Gather", vector, self.constant([index]), axis=0)

    # One TensorFlow slice can do four things. The axes are walked once: an ellipsis skips some, a
    # new axis and a shrunken one are noted for later, and a range becomes a Slice unless it takes
    # everything. Afterwards shrunken axes are gathered, from the last to the first so that earlier
    # numbers stay right, and new axes are inserted.
    def strided_slice(
        self, operation: tf.Operation, x: str, begin: str, end: str, step: str
    ) -> str:
        """Slice by each axis in turn; then remove and add axes."""
        masks = {
            name: operation.get_attr(f"{name}_mask")
            for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
        }
        steps = self.constants[step]
        named = [
            i for i in range(len(steps)) if not (masks["ellipsis"] | masks["new_axis"]) >> i & 1
        ]
        rest = operation.inputs[0].shape.rank - len(named)
        axis, place, removed, added = 0, 0, [], []
        for i, stride in enumerate(steps.tolist()):
            has = {name: mask >> i & 1 for name, mask in masks.items()}
            if has["ellipsis"]:
                axis, place = axis + rest, place + rest
            elif has["new_axis"]:
                added.append(place)
                place += 1
            elif has["shrink_axis"]:
                removed.append((axis, self.element(begin, i)))
                axis += 1
            else:
                if not (has["begin"] and has["end"] and stride == 1):
                    # The first and the last element of an axis, in either direction.
                    first, last = (0, MAX_INT64) if stride > 0 else (MAX_INT64, -MAX_INT64)
                    start = self.constant([first]) if has["begin"] else self.element(begin, i)
                    stop = self.constant([last]) if has["end"] else self.element(end, i)
                    along, by = self.constant([axis]), self.constant([stride])
                    x = self.add("Slice", x, start, stop, along, by)
                axis, place = axis + 1, place + 1
        for axis, index in reversed(removed):
            scalar = self.add("Squeeze", index, self.constant([0]))
            if index in self.constants:
                scalar = self.constant(self.constants[index][0])
            x = self.add("Gather", x, scalar, axis=axis)
        if not added:
            return x
        return self.add("Unsqueeze", x, self.constant(added))

    def product(self, operation: tf.Operation, a: str, b: str) -> str:
        """Multiply matrices, of which either may be transposed."""
        names = ("adj_x", "adj_y")
        if operation.type == "MatMul":
            names = ("transpose_a", "transpose_b")
        factors = []
        for factor, tensor, name in zip((a, b), operation.inputs, names, strict=True):
            if operation.get_attr(name):
                order = [*range(tensor.shape.rank)]
                order[-2:] = order[:-3:-1]
                if factor in self.constants:
                    factor = self.constant(self.constants[factor].transpose(order))
                else:
                    factor = self.add("Transpose", factor, perm=order)
            factors.append(factor)
        left, right = factors
        return self.add("MatMul", left, right)

    def pad(self, operation: tf.Operation, x: str, paddings: str, value: str = "") -> str:
        if paddings in self.constants:
            pads = self.constant(self.constants[paddings].T.reshape(-1))
        else:
            pads = self.add("Transpose", paddings, perm=[1, 0])
            pads = self.add("Reshape", pads, self.constant([-1]))
        if operation.type == "MirrorPad":
            return self.add("Pad", x, pads, mode=operation.get_attr("mode").decode().lower())
        return self.add("Pad", x, pads, *filter(None, [value]))

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        ends = [self.constant([end]) for end in np.cumsum([0, *sizes])]
        along = self.constant([axis])
        return [self.add("Slice", x, start, end, along) for start, end in pairwise(ends)]

    def gather(self, operation: tf.Operation, x: str, index: str, axis: str) -> str:
        batch = operation.get_attr("batch_dims")
        if not batch:
            return self.add("Gather", x, index, axis=int(self.constants[axis]))
        assert batch == int(self.constants[axis]), operation
        index = self.add("Unsqueeze", index, self.constant([-1]))
        return self.add("GatherND", x, index, batch_dims=batch)


def _split(b: _Builder, operation: tf.Operation, axis: str, x: str) -> list[str]:
    index = int(b.constants[axis])
    size = operation.inputs[1].shape[index] // operation.get_attr("num_split")
    return b.split(x, index, [size] * operation.get_attr("num_split"))


_OTHER: dict[str, Callable] = {
    "Pack": _Builder.pack,
    "StridedSlice": _Builder.strided_slice,
    "MatMul": _Builder.product,
    "BatchMatMulV2": _Builder.product,
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _Builder.pad),
    "GatherV2": _Builder.gather,
    "Cumsum": lambda b, operation, x, axis: b.add(
        "CumSum", x, axis, **{k: int(operation.get_attr(k)) for k in ("exclusive", "reverse")}
    ),
    "Split": _split,
    "SplitV": lambda b, _, x, sizes, axis: b.split(x, int(b.constants[axis]), b.constants[sizes]),
    "Unpack": lambda b, operation, x: [
        b.add("Gather", x, b.constant(np.int64(i)), axis=operation.get_attr("axis"))
        for i in range(operation.get_attr("num"))
    ],
    "ScatterNd": lambda b, _, index, updates, shape: b.add(
        "ScatterND", b.add("Expand", b.constant(np.float32(0)), shape), index, updates
    ),
    "Squeeze": lambda b, operation, x: b.add(
        "Squeeze", x, b.constant(operation.get_attr("squeeze_dims"))
    ),
    "ConcatV2": lambda b, _, *xs: b.add("Concat", *xs[:-1], axis=int(b.constants[xs[-1]])),
    "ExpandDims": lambda b, _, x, axis: b.add(
        "Unsqueeze", x, b.constant(b.constants[axis].reshape(-1))
    ),
    "Transpose": lambda b, _, x, order: b.add("Transpose", x, perm=b.constants[order].tolist()),
    "Cast": lambda b, operation, x: b.add("Cast", x, to=_kind(operation.outputs[0].dtype)),
    "ArgMax": lambda b, _, x, axis: b.add("ArgMax", x, axis=int(b.constants[axis]), keepdims=0),
    "Fill": lambda b, _, shape, value: b.add("Expand", value, shape),
    "Where": lambda b, _, x: b.add("Transpose", b.add("NonZero", x), perm=[1, 0]),
    "NotEqual": lambda b, _, x, y: b.add("Not", b.add("Equal", x, y)),
    "FloorDiv": lambda b, _, x, y: b.add("Div", x, y),  # of numbers from 0
    "Square": lambda b, _, x: b.add("Mul", x, x),
    "Rsqrt": lambda b, _, x: b.add("Reciprocal", b.add("Sqrt", x)),
    "Log1p": lambda b, _, x: b.add("Log", b.add("Add", x, b.constant(np.float32(1)))),
    "SquaredDifference": lambda b, _, x, y: _OTHER["Square"](b, _, b.add("Sub", x, y)),
    "RightShift": lambda b, _, x, places: b.add("BitShift", x, places, direction="RIGHT"),
}
