"""Checks that tensors are on the right device, and finds operations that no GPU can run."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts import tf_internals
from myxtts.errors import PlacementError

# TensorFlow uses a DEFAULT kernel if the device has no kernel that fits.
GPU = ("GPU", "DEFAULT")
XLA = ("XLA_GPU_JIT",)
# tf.py_function: its DEFAULT kernel runs Python on the host.
PYTHON = {"EagerPyFunc"}


def require_device(device: str, named: Iterable[tuple[str, object]]) -> None:
    """Check that tensors and variables are on a device.

    TensorFlow silently copies tensors and moves operations.

    NumPy arrays are in host memory and not checked. int32 tensors may be in host memory:
    TensorFlow's functions return them there.

    Args:
        device: such as `/GPU:1`, or with job and task.
        named: pairs of a name for the message and a tensor, `tf.Variable` or Keras variable.

    Raises:
        PlacementError: names up to five values on other devices.
    """
    expected = tf.DeviceSpec.from_string(device)
    actual = (
        (name, _device(value))
        for name, value in named
        if not (isinstance(value, np.ndarray | np.generic) or _is_host_integer(value))
    )
    misplaced = [
        f"{name} on {_short_name(spec, expected)}"
        for name, spec in actual
        if not _is_part_of(spec, expected)
    ]
    if misplaced:
        more = f" and {len(misplaced) - 5} more" if len(misplaced) > 5 else ""
        raise PlacementError(
            f"all values must be on {device}, but found {', '.join(misplaced[:5])}{more}. This is a"
            " defect of the program or of a custom model: build and call it inside tf.device."
        )


def _is_part_of(spec: tf.DeviceSpec, expected: tf.DeviceSpec) -> bool:
    """Return whether a device has all parts of a name."""
    # This process, also in a cluster: tf.data does not know its job and task.
    if spec.job == "localhost":
        expected = expected.replace(job=None, replica=None, task=None)
    return spec.make_merged_spec(expected) == spec


def _is_host_integer(value) -> bool:
    return (
        isinstance(value, tf.Tensor)
        and value.dtype == tf.int32
        and _device(value).device_type == "CPU"
    )


def _short_name(spec: tf.DeviceSpec, expected: tf.DeviceSpec) -> str:
    return spec.to_string() if expected.job else f"/{spec.device_type}:{spec.device_index}"


def _device(value) -> tf.DeviceSpec:
    """Return the device that holds a value."""
    # `device` would be that of the function call that returned the tensor.
    if isinstance(value, tf.Tensor):
        return tf.DeviceSpec.from_string(value.backing_device)
    variable = getattr(value, "value", value)
    return tf.DeviceSpec.from_string(
        variable.device if isinstance(variable, tf.Variable) else value.device
    )


class HostOperation(NamedTuple):
    """An operation that a GPU cannot run.

    Attributes:
        type: such as `StringJoin`.
        name: of the node.
        function: that contains the operation.
        dtypes: type attributes, such as `T=string`.
        missing: `GPU kernel`, or `XLA kernel` in a function that XLA compiles.
    """

    type: str
    name: str
    function: str
    dtypes: str
    missing: str


class Audit(NamedTuple):
    """Number of operations that were audited, and those that a GPU cannot run."""

    operations: int
    host_only: tuple[HostOperation, ...]


def audit(function) -> Audit:
    """Look up every operation of a concrete function in TensorFlow's kernel registry.

    Covers the function and all functions it calls: branches, loops, calls, gradients. An operation
    needs a GPU kernel whose type constraints its attributes meet, or XLA's GPU kernel in a function
    that XLA compiles. The audit does not tell where an operation runs; `copies.find_copies` tells
    which kernels keep their arguments in host memory. Without `has_gpu_kernels`, nearly all
    operations lack one.

    Args:
        function: as `get_concrete_function` returns it.
    """
    _register_xla_kernels()
    library = gpu_variants(function.graph.as_graph_def().library)
    entry = function.function_def
    operations = 0
    host_only = []
    for body, compiled in _bodies(entry, library | {entry.signature.name: entry}):
        operations += len(body.node_def)
        kernels = XLA if compiled else GPU
        missing = "XLA kernel" if compiled else "GPU kernel"
        for node in body.node_def:
            if node.op not in library and find_kernel(node, kernels) is None:
                place = (node.op, node.name, body.signature.name, _dtypes(node))
                host_only.append(HostOperation(*place, missing))
    return Audit(operations, tuple(host_only))


def gpu_variants(library) -> dict:
    """Return name -> definition of each function of a FunctionDefLibrary as a GPU runs it.

    Several functions can implement the same API, as in `tf.nn.ctc_loss`. TensorFlow calls the one
    for the device, whichever was traced.
    """
    interfaces = {
        definition.signature.name: _interface(definition) for definition in library.function
    }
    variants = {
        interfaces[definition.signature.name]: definition
        for definition in library.function
        if definition.attr["api_preferred_device"].s == b"GPU"
    }
    return {
        definition.signature.name: variants.get(interfaces[definition.signature.name], definition)
        for definition in library.function
    }


def _interface(definition) -> tuple:
    """Return what functions share that can replace each other: their API, or else the name."""
    if "api_implements" not in definition.attr:
        return (definition.signature.name,)
    passes = [
        name in definition.attr for name in ("backward_function_name", "forward_function_name")
    ]
    return (definition.attr["api_implements"].s, *passes)


@cache
def _register_xla_kernels() -> None:
    """Compile a function, so that TensorFlow registers XLA's kernels."""
    with tf.device("/CPU:0"):
        tf.function(lambda: tf.constant(1.0) + 1.0, jit_compile=True, autograph=False)()


def _bodies(entry, library: dict) -> Iterator[tuple]:
    """Yield each reachable function with whether XLA compiles it, once for each case."""
    pending = [(entry.signature.name, False)]
    seen = set()
    while pending:
        name, compiled = pending.pop()
        body = library[name]
        compiled = compiled or body.attr["_XlaMustCompile"].b
        if (name, compiled) in seen:
            continue
        seen.add((name, compiled))
        yield body, compiled
        for node in body.node_def:
            inside = compiled or node.attr["_XlaMustCompile"].b
            pending += [(called, inside) for called in _called(node) if called in library]


def _called(node) -> Iterator[str]:
    """Yield the functions that a node calls: by its type, an attribute, or a list attribute."""
    yield node.op
    for value in node.attr.values():
        yield value.func.name
        yield from (function.name for function in value.list.func)


def _dtypes(node) -> str:
    """Return the type attributes of a node as text."""
    types = {
        name: [tf.dtypes.as_dtype(number).name for number in value.list.type or [value.type]]
        for name, value in sorted(node.attr.items())
        if value.type or value.list.type
    }
    return ", ".join(f"{name}={' '.join(names)}" for name, names in types.items())


def has_gpu_kernels() -> bool:
    """Whether this build of TensorFlow has GPU kernels (tensorflow-cpu has not); needs no GPU."""
    return any(kernel.device_type == "GPU" for kernel in tf_internals.registered_kernels("MatMul"))


def find_kernel(node, device_types: tuple[str, ...]):
    """Return the KernelDef that TensorFlow chooses for a NodeDef, or None.

    Args:
        device_types: in the order in which TensorFlow tries them.
    """
    label = node.attr["_kernel"].s.decode()
    for kernel, constraints in _kernels(node.op, device_types):
        if kernel.label == label and all(
            allowed.issuperset(_values(attribute(node, name))) for name, allowed in constraints
        ):
            return kernel
    return None


@cache
def _kernels(operation: str, device_types: tuple[str, ...]) -> list[tuple]:
    """Return the kernels, each with its constraints: pairs of attribute and allowed values."""
    if operation in PYTHON:
        return []
    kernels = [
        kernel
        for kernel in tf_internals.registered_kernels(operation)
        if kernel.device_type in device_types
    ]
    kernels.sort(key=lambda kernel: (device_types.index(kernel.device_type), -kernel.priority))
    return [
        (
            kernel,
            [
                (rule.name, frozenset(_list_values(rule.allowed_values.list)))
                for rule in kernel.constraint
            ],
        )
        for kernel in kernels
    ]


def attribute(node, name: str):
    """Return an attribute of a node; nodes may leave out attributes with default values."""
    if name in node.attr:
        return node.attr[name]
    return tf_internals.default_attribute(node.op, name)


def _values(value) -> list:
    """Return the values of an attribute, which may be a list."""
    kind = value.WhichOneof("value")
    if kind == "list":
        return _list_values(value.list)
    return [getattr(value, kind)] if kind else []


def _list_values(values) -> list:
    return [*values.type, *values.s, *values.i, *values.b]
