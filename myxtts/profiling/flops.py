"""Floating-point operations of the matrix products and convolutions that a function computes."""

import time
from collections.abc import Callable, Iterator
from itertools import chain
from math import prod

import numpy as np
import tensorflow as tf

from myxtts.tf_internals import wrap_function
from myxtts.training.state import TrainingState

PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
LEAST_S, LARGEST = 0.005, 16384  # a hundred times what a call costs; 1 GiB of float32
CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")  # and their two gradients each


def contraction_flops(function: Callable, argument) -> int:
    """2 for each multiplication and addition of matrix products, einsums and convolutions.

    The function is traced and run once, and each product's sizes are taken from that run: in a graph with symbolic
    lengths they are known nowhere else.

    Args:
        function: of tensors; gradients that it takes count.
        argument: a tensor, or a dictionary of tensors.

    Raises:
        ValueError: a product is in a function that the graph calls (a loop, a branch), where it cannot be counted.
    """
    traced = wrap_function(function, [tf.nest.map_structure(tf.TensorSpec.from_tensor, argument)])
    for called in _called(traced.graph):
        if hidden := [operation.name for operation in called.get_operations() if _is_contraction(operation)]:
            raise ValueError(f"{', '.join(hidden)} cannot be counted: they are in {called.name}, which the graph calls")
    found = [operation for operation in traced.graph.get_operations() if _is_contraction(operation)]
    if not found:
        return 0
    with traced.graph.as_default():
        shapes = [[tf.shape(tensor) for tensor in (*one.inputs, one.outputs[0])] for one in found]
    sizes = traced.prune(traced.inputs[: len(tf.nest.flatten(argument))], shapes)(*tf.nest.flatten(argument))
    return sum(
        _flops(operation, [size.numpy().tolist() for size in own]) for operation, own in zip(found, sizes, strict=True)
    )


def step_flops(state: TrainingState, batch: dict[str, tf.Tensor]) -> int:
    """Of the losses of a batch and of their gradients, as `contraction_flops` counts them, and with its errors."""
    variables = [variable.value for variable in state.trained]

    def gradients(batch):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, _ = state.model(batch, training=True)
            total = tf.add_n(list(losses.values()))
        return tape.gradient(total, variables)

    with tf.device(state.device):
        return contraction_flops(gradients, batch)


def matmul_rate(dtype: str = "float32", size: int = 2048, repeats: int = 10) -> float:
    """Operations a second of the best of some matrix products, on the device it is called on.

    A product that is done within LEAST_S tells more of the call than of the device: then a larger one is taken.

    Args:
        dtype: of the factors.
        size: rows and columns of the first factors that are tried.
        repeats: products of each size.
    """
    product = tf.function(tf.matmul)
    rate = 0.0
    while True:
        try:
            one = tf.cast(tf.constant(np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)), dtype)
            product(one, one)[0, 0].numpy()
            best_s = np.inf
            for _ in range(repeats):
                started_s = time.perf_counter()
                product(one, one)[0, 0].numpy()  # one number waits for all, and takes no time to copy
                best_s = min(best_s, time.perf_counter() - started_s)
        except tf.errors.ResourceExhaustedError:
            if not rate:
                raise
            return rate  # of the largest that there was room for
        rate = 2 * size**3 / best_s
        if best_s >= LEAST_S or size >= LARGEST:
            return rate
        size *= 2


def _is_contraction(operation: tf.Operation) -> bool:
    return operation.type in (*PRODUCTS, "Einsum") or operation.type.startswith(CONVOLUTIONS)


def _called(graph: tf.Graph) -> Iterator[tf.Graph]:
    """Graphs of the functions that a graph calls, and of those that they call."""
    for operation in graph.get_operations():
        for attribute in operation.node_def.attr.values():
            if attribute.func.name:
                called = graph._get_function(attribute.func.name).graph
                yield called
                yield from _called(called)


def _flops(operation: tf.Operation, sizes: list[list[int]]) -> int:
    """Of one operation, by the sizes of its inputs and its output."""
    *inputs, output = sizes
    kind = operation.type
    if kind in PRODUCTS:
        transposed = operation.get_attr("transpose_a" if kind == "MatMul" else "adj_x")
        return 2 * inputs[0][-2 if transposed else -1] * prod(output)
    if kind == "Einsum":
        letters = operation.get_attr("equation").decode().split("->")[0].split(",")
        size_of = dict(zip("".join(letters), chain(*inputs), strict=True))
        return 2 * prod(size_of.values()) if len(inputs) == 2 else 0
    # A convolution and its gradients: the places of its output times the weights of one place; channels come last.
    if kind.endswith("BackpropFilter"):
        places, kernel = inputs[2], output
    elif kind.endswith("BackpropInput"):
        places, kernel = inputs[2], inputs[1]
    else:
        places, kernel = output, inputs[1]
    return 2 * prod(places[:-1]) * prod(kernel)
