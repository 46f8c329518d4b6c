"""Operations of matrix products and convolutions, of a model and of a device."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from math import prod

import numpy as np
import tensorflow as tf

from fakes.copies import called_graph
from myxtts.run.state import TrainingState

MATRIX_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")

# And their two gradients each.
CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")

RENAMES = {"Const", "Identity", "IdentityN", "Placeholder", "ReadVariableOp", "Reshape", "Shape"}
RENAMES |= {"ExpandDims", "NoOp", "Size", "Squeeze", "StopGradient", "PreventGradient"}

# A hundred times the cost of a call; a factor of the largest size has 1 GiB of float32.
MIN_PRODUCT_S = 0.005
MAX_SIZE = 16384


def contraction_flops(function: Callable, argument) -> int:
    """Count 2 for each multiply-add of matrix products, einsums and convolutions.

    The function is traced and run once, and the sizes of each product are taken from that run: a
    graph with symbolic lengths contains them nowhere else.

    Args:
        function: of tensors; the gradients that it computes count.
        argument: a tensor, or a dictionary of tensors.

    Raises:
        ValueError: a product is in a function that the graph calls (a loop, a branch), where it
            cannot be counted.
    """
    signature = [tf.nest.map_structure(tf.TensorSpec.from_tensor, argument)]
    traced = tf.compat.v1.wrap_function(function, signature)
    for called in _called_graphs(traced.graph):
        hidden = [operation.name for operation in _contractions(called)]
        if hidden:
            raise ValueError(
                f"{', '.join(hidden)} cannot be counted: they are in {called.name}, which the graph"
                " calls"
            )
    contractions = _contractions(traced.graph)
    if not contractions:
        return 0
    with traced.graph.as_default():
        shapes = [
            [tf.shape(tensor) for tensor in (*operation.inputs, operation.outputs[0])]
            for operation in contractions
        ]
    arguments = tf.nest.flatten(argument)
    sizes = traced.prune(traced.inputs[: len(arguments)], shapes)(*arguments)
    return sum(
        _operation_flops(operation, [size.numpy().tolist() for size in operation_sizes])
        for operation, operation_sizes in zip(contractions, sizes, strict=True)
    )


def moved_bytes(function: Callable, argument) -> int:
    """Count the bytes of floating-point tensors that operations read and write.

    Arguments as those of `contraction_flops`. What only renames a tensor moves nothing. A function
    that the graph calls, such as one that XLA compiles, counts by what goes in and comes out.
    """
    signature = [tf.nest.map_structure(tf.TensorSpec.from_tensor, argument)]
    traced = tf.compat.v1.wrap_function(function, signature)
    moved: Counter = Counter()
    for operation in traced.graph.get_operations():
        if operation.type not in RENAMES:
            for tensor in {each.ref() for each in (*operation.inputs, *operation.outputs)}:
                dtype = tensor.deref().dtype
                if dtype.is_floating or dtype.is_complex:
                    moved[tensor] += dtype.size
    with traced.graph.as_default():
        sizes = [tf.size(tensor.deref(), tf.int64) * size for tensor, size in moved.items()]
        total = tf.add_n(sizes)
    arguments = tf.nest.flatten(argument)
    return int(traced.prune(traced.inputs[: len(arguments)], total)(*arguments))


def step_flops(state: TrainingState, batch: dict[str, tf.Tensor]) -> int:
    """Count the operations of a batch's losses and their gradients; raises as
    `contraction_flops`.
    """
    with tf.device(state.device):
        return contraction_flops(_gradients_of(state), batch)


def step_bytes(state: TrainingState, batch: dict[str, tf.Tensor]) -> int:
    """Return `moved_bytes` of a batch's losses and their gradients."""
    with tf.device(state.device):
        return moved_bytes(_gradients_of(state), batch)


def _gradients_of(state: TrainingState) -> Callable:
    variables = [v.value for v in state.trained]

    def gradients(batch):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, _ = state.model(batch, training=True)
            total = tf.add_n([losses[name] for name in state.model.LOSS_NAMES])
        return tape.gradient(total, variables)

    return gradients


def matmul_flops_per_s(dtype: str = "float32", size: int = 2048, repeats: int = 10) -> float:
    """Return the operations per second of the fastest of some matrix products, on the current
    device.

    The time of a product shorter than MIN_PRODUCT_S is mostly that of the call, so a larger product
    is tried, as long as it fits.

    Args:
        dtype: of the factors.
        size: rows and columns of the first factors.
        repeats: products of each size.
    """
    product = tf.function(tf.matmul, autograph=False)
    rate = 0.0
    while True:
        try:
            normal = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
            factor = tf.cast(tf.constant(normal), dtype)
            product(factor, factor)[0, 0].numpy()
            best_s = np.inf
            for _ in range(repeats):
                started_s = time.perf_counter()
                # One number waits for the whole product and is cheap to copy.
                product(factor, factor)[0, 0].numpy()
                best_s = min(best_s, time.perf_counter() - started_s)
        except tf.errors.ResourceExhaustedError:
            if not rate:
                raise
            return rate
        rate = 2 * size**3 / best_s
        if best_s >= MIN_PRODUCT_S or size >= MAX_SIZE:
            return rate
        size *= 2


def _contractions(graph: tf.Graph) -> list[tf.Operation]:
    types = (*MATRIX_PRODUCTS, "Einsum")
    return [
        operation
        for operation in graph.get_operations()
        if operation.type in types or operation.type.startswith(CONVOLUTIONS)
    ]


def _called_graphs(graph: tf.Graph) -> Iterator[tf.Graph]:
    """Yield the graphs of all functions that a graph calls, directly or indirectly."""
    for operation in graph.get_operations():
        for attribute in operation.node_def.attr.values():
            if attribute.func.name:
                called = called_graph(graph, attribute.func.name)
                yield called
                yield from _called_graphs(called)


def _operation_flops(operation: tf.Operation, sizes: list[list[int]]) -> int:
    """Count one operation, given the sizes of its inputs and its output."""
    *inputs, output = sizes
    kind = operation.type
    if kind in MATRIX_PRODUCTS:
        transposed = operation.get_attr("transpose_a" if kind == "MatMul" else "adj_x")
        inner = inputs[0][-2] if transposed else inputs[0][-1]
        return 2 * inner * prod(output)
    if kind == "Einsum":
        subscripts = operation.get_attr("equation").decode().split("->")[0].split(",")
        size_of = dict(zip("".join(subscripts), chain(*inputs), strict=True))
        return 2 * prod(size_of.values()) if len(inputs) == 2 else 0
    # A convolution or its gradient: positions of its output times the weights of one position;
    # channels come last.
    positions = output
    kernel = inputs[1]
    if kind.endswith("BackpropFilter"):
        positions = inputs[2]
        kernel = output
    elif kind.endswith("BackpropInput"):
        positions = inputs[2]
    return 2 * prod(positions[:-1]) * prod(kernel)
