"""Checks that tensors are on the right device, and finds in compiled functions the operations that
no GPU can run.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import tensorflow as tf

from myxtts.base import tf_internals

# TensorFlow uses a DEFAULT kernel if the device has no kernel that fits.
GPU: tuple[str, ...] = ("GPU", "DEFAULT")
XLA: tuple[str, ...] = ("XLA_GPU_JIT",)
# tf.py_function: its DEFAULT kernel runs Python on the host.
PYTHON = {"EagerPyFunc"}


class HostOperation(NamedTuple):
    """An operation that a GPU cannot run: its type, such as `StringJoin`, and name, the function
    that contains it, its type attributes, such as `T=string`, and what is missing: `GPU kernel`, or
    `XLA kernel` in a function that XLA compiles.
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


# The definition of the function and of all that it calls is walked, once as XLA compiles it and
# once as TensorFlow runs it, where both occur. Each node is looked up among the registered kernels
# of that kind. What is found nowhere is listed with its function, so that a developer finds the
# line.
def audit(function) -> Audit:
    """Look up every operation of a concrete function, and of what it calls, in the registry.

    An operation needs a GPU kernel whose type constraints its attributes meet, or XLA's in a
    function that XLA compiles. The audit needs no GPU, and does not tell where an operation runs.
    """
    _register_xla_kernels()
    library = gpu_variants(function.graph.as_graph_def().library)
    entry = function.function_def
    operations = 0
    host_only = []
    for body, compiled in _bodies(entry, library | {entry.signature.name: entry}):
        operations += len(body.node_def)
        kernels, missing = GPU, "GPU kernel"
        if compiled:
            kernels, missing = XLA, "XLA kernel"
        function_name = body.signature.name
        for node in body.node_def:
            if node.op not in library and find_kernel(node, kernels) is None:
                types = _type_attributes(node)
                found = HostOperation(node.op, node.name, function_name, types, missing)
                host_only.append(found)
    return Audit(operations, tuple(host_only))


def gpu_variants(library) -> dict:
    """Return name -> definition of each function of a FunctionDefLibrary as a GPU runs it.

    Several functions can implement the same API, as in `tf.nn.ctc_loss`. TensorFlow calls the one
    for the device, whichever was traced.
    """
    interfaces = {}
    variants = {}
    for definition in library.function:
        interface: tuple = (definition.signature.name,)
        if "api_implements" in definition.attr:
            gradients = ("backward_function_name", "forward_function_name")
            passes = [name in definition.attr for name in gradients]
            interface = (definition.attr["api_implements"].s, *passes)
        interfaces[definition.signature.name] = interface
        if definition.attr["api_preferred_device"].s == b"GPU":
            variants[interface] = definition
    return {
        definition.signature.name: variants.get(interfaces[definition.signature.name], definition)
        for definition in library.function
    }


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
    yield node.op
    for value in node.attr.values():
        yield value.func.name
        yield from (function.name for function in value.list.func)


def _type_attributes(node) -> str:
    types = {
        name: [tf.dtypes.as_dtype(number).name for number in value.list.type or [value.type]]
        for name, value in sorted(node.attr.items())
        if value.type or value.list.type
    }
    return ", ".join(f"{name}={' '.join(names)}" for name, names in types.items())


def find_kernel(node, device_types: tuple[str, ...]):
    """Return the KernelDef that TensorFlow chooses for a NodeDef, or None."""
    label = node.attr["_kernel"].s.decode()
    for kernel, constraints in _kernels(node.op, device_types):
        if kernel.label == label and all(
            allowed.issuperset(_values(attribute_of(node, name))) for name, allowed in constraints
        ):
            return kernel
    return None


@cache
def _kernels(operation: str, device_types: tuple[str, ...]) -> list[tuple]:
    """Return the kernels, each with its constraints: pairs of attribute and allowed values."""
    if operation in PYTHON:
        return []
    registered = tf_internals.registered_kernels(operation)
    kernels = [kernel for kernel in registered if kernel.device_type in device_types]
    kernels.sort(key=lambda kernel: (device_types.index(kernel.device_type), -kernel.priority))
    return [
        (
            kernel,
            [(rule.name, frozenset(_values(rule.allowed_values))) for rule in kernel.constraint],
        )
        for kernel in kernels
    ]


def attribute_of(node, name: str):
    """Return an attribute of a node; nodes may leave out attributes with default values."""
    if name in node.attr:
        return node.attr[name]
    attributes = tf_internals.operation_definition(node.op).attr
    return next(attribute.default_value for attribute in attributes if attribute.name == name)


def _values(value) -> list:
    """Return the values of an attribute, which may be a list."""
    kind = value.WhichOneof("value")
    if kind == "list":
        return [*value.list.type, *value.list.s, *value.list.i, *value.list.b]
    if kind is None:
        return []
    return [getattr(value, kind)]
