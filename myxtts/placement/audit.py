"""Checks that tensors are on the right device, and finds operations that no GPU can run."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import tensorflow as tf

from myxtts import tf_internals
from myxtts.errors import PlacementError

GPU = ("GPU", "DEFAULT")  # TensorFlow uses a DEFAULT kernel if the device has no kernel that fits
XLA = ("XLA_GPU_JIT",)
PYTHON = {"EagerPyFunc"}  # tf.py_function: its DEFAULT kernel runs Python on the host


def require_device(device: str, named: Iterable[tuple[str, object]]) -> None:
    """Check that tensors and variables are on a device. TensorFlow silently copies tensors and moves operations.

    Args:
        device: such as `/GPU:1`, or with job and task.
        named: pairs of a name for the message and a tensor, `tf.Variable` or Keras variable.

    Raises:
        PlacementError: names up to five values on other devices.
    """
    expected = tf.DeviceSpec.from_string(device)
    actual = ((name, _device(value)) for name, value in named)
    misplaced = [
        f"{name} on {_short_name(spec, expected)}" for name, spec in actual if spec.make_merged_spec(expected) != spec
    ]
    if misplaced:
        more = f" and {len(misplaced) - 5} more" if len(misplaced) > 5 else ""
        raise PlacementError(
            f"all values must be on {device}, but found {', '.join(misplaced[:5])}{more}. This is a defect of the "
            "program or of a custom model: build and call it inside tf.device."
        )


def _short_name(spec: tf.DeviceSpec, expected: tf.DeviceSpec) -> str:
    return spec.to_string() if expected.job else f"/{spec.device_type}:{spec.device_index}"


def _device(value) -> tf.DeviceSpec:
    tensor = getattr(value, "value", value)
    return tf.DeviceSpec.from_string(tensor.device if isinstance(tensor, tf.Variable | tf.Tensor) else value.device)


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


def has_gpu_kernels() -> bool:
    """Return whether this build of TensorFlow has GPU kernels; it needs no GPU. tensorflow-cpu has none."""
    return any(kernel.device_type == "GPU" for kernel in tf_internals.registered_kernels("MatMul"))


def audit(function) -> Audit:
    """Look up every operation of a concrete function in TensorFlow's kernel registry.

    Covers the function and all functions it calls: branches, loops, calls, gradients. An operation needs a GPU kernel
    whose type constraints its attributes meet, or XLA's GPU kernel in a function that XLA compiles. The audit does not
    tell where an operation runs, or whether a kernel keeps its arguments in host memory. Without `has_gpu_kernels`,
    nearly all operations lack one.

    Args:
        function: as `get_concrete_function` returns it.
    """
    _register_xla_kernels()
    library = _gpu_variants(
        {definition.signature.name: definition for definition in function.graph.as_graph_def().library.function}
    )
    entry = function.function_def
    bodies = list(_bodies(entry, library | {entry.signature.name: entry}))
    host_only = [
        HostOperation(
            node.op, node.name, body.signature.name, _dtypes(node), "XLA kernel" if compiled else "GPU kernel"
        )
        for body, compiled in bodies
        for node in body.node_def
        if node.op not in library and not _has_kernel(node, XLA if compiled else GPU)
    ]
    return Audit(sum(len(body.node_def) for body, _ in bodies), tuple(host_only))


def _gpu_variants(library: dict) -> dict:
    """Return name -> definition of each function as a GPU runs it.

    Several functions can implement the same API, as in `tf.nn.ctc_loss`. TensorFlow calls the one for the device,
    whichever was traced.
    """
    apis = {name: definition.attr["api_implements"].s for name, definition in library.items()}
    variants = {
        apis[name]: definition
        for name, definition in library.items()
        if definition.attr["api_preferred_device"].s == b"GPU"
    }
    return {
        name: variants.get(apis[name], definition) if apis[name] else definition for name, definition in library.items()
    }


@cache
def _register_xla_kernels() -> None:
    """Compile a function: TensorFlow registers XLA's kernels when a process compiles its first one."""
    with tf.device("/CPU:0"):
        tf.function(lambda: tf.constant(1.0) + 1.0, jit_compile=True)()


def _bodies(entry, library: dict) -> Iterator[tuple]:
    """Yield (definition, whether XLA compiles it) of each reachable function, once for each case."""
    pending, seen = [(entry.signature.name, False)], set()
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


def _has_kernel(node, device_types: tuple[str, ...]) -> bool:
    label = node.attr["_kernel"].s.decode()
    return any(
        label == kernel_label
        and all(allowed.issuperset(_values(_attribute(node, name))) for name, allowed in constraints)
        for kernel_label, constraints in _kernels(node.op, device_types)
    )


@cache
def _kernels(operation: str, device_types: tuple[str, ...]) -> list[tuple[str, list[tuple[str, frozenset]]]]:
    """Return label and constraints (pairs of attribute and allowed values) of each kernel for these device types."""
    if operation in PYTHON:
        return []
    return [
        (kernel.label, [(rule.name, frozenset(_list_values(rule.allowed_values.list))) for rule in kernel.constraint])
        for kernel in tf_internals.registered_kernels(operation)
        if kernel.device_type in device_types
    ]


def _attribute(node, name: str):
    """Return an attribute of a node; nodes may leave out attributes with default values."""
    if name in node.attr:
        return node.attr[name]
    return tf_internals.default_attribute(node.op, name)


def _values(attribute) -> list:
    """Return the values of an attribute, which may be a list."""
    kind = attribute.WhichOneof("value")
    if kind == "list":
        return _list_values(attribute.list)
    return [getattr(attribute, kind)] if kind else []


def _list_values(values) -> list:
    return [value for field in ("type", "s", "i", "b") for value in getattr(values, field)]


def _dtypes(node) -> str:
    """Return the type attributes of a node as text."""
    types = {
        name: [tf.dtypes.as_dtype(number).name for number in (value.list.type or [value.type])]
        for name, value in sorted(node.attr.items())
        if value.type or value.list.type
    }
    return ", ".join(f"{name}={' '.join(names)}" for name, names in types.items())
