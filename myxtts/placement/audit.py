"""Where tensors are, against where they were promised to be; and which operations no GPU can run."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import tensorflow as tf

from myxtts import tf_internals
from myxtts.errors import PlacementError

GPU = ("GPU", "DEFAULT")  # TensorFlow takes a DEFAULT kernel where a device has none of its own that fits
XLA = ("XLA_GPU_JIT",)
PYTHON = {"EagerPyFunc"}  # tf.py_function: has a DEFAULT kernel, which runs Python on the host


def require_device(device: str, named: Iterable[tuple[str, object]]) -> None:
    """Check that tensors and variables live on a device.

    TensorFlow copies between devices and moves operations in silence; this makes it speak.

    Args:
        device: such as `/GPU:1`, or with job and task.
        named: pairs of a name for the message and a tensor, `tf.Variable` or Keras variable.

    Raises:
        PlacementError: naming up to five that are elsewhere.
    """
    asked = tf.DeviceSpec.from_string(device)
    found = ((name, _device(value)) for name, value in named)
    strays = [f"{name} on {_shown(one, asked)}" for name, one in found if one.make_merged_spec(asked) != one]
    if strays:
        more = f" and {len(strays) - 5} more" if len(strays) > 5 else ""
        raise PlacementError(
            f"{device} was promised, but found {', '.join(strays[:5])}{more}. This is a defect of the program "
            "or of a custom model: build and call it inside tf.device."
        )


def _shown(found: tf.DeviceSpec, asked: tf.DeviceSpec) -> str:
    return found.to_string() if asked.job else f"/{found.device_type}:{found.device_index}"


def _device(value) -> tf.DeviceSpec:
    tensor = getattr(value, "value", value)
    return tf.DeviceSpec.from_string(tensor.device if isinstance(tensor, tf.Variable | tf.Tensor) else value.device)


class HostOperation(NamedTuple):
    """An operation that a GPU cannot run.

    Attributes:
        type: such as `StringJoin`.
        name: of the node.
        function: that it stands in.
        dtypes: its type attributes, such as `T=string`.
        lacks: `GPU kernel`, or `XLA kernel` in a function that is compiled as a whole.
    """

    type: str
    name: str
    function: str
    dtypes: str
    lacks: str


class Audit(NamedTuple):
    """What an audit found, and among how many operations."""

    operations: int
    host_only: tuple[HostOperation, ...]


def knows_gpu_kernels() -> bool:
    """Whether this build of TensorFlow has GPU kernels, which does not need a GPU; tensorflow-cpu has none."""
    return any(kernel.device_type == "GPU" for kernel in tf_internals.registered_kernels("MatMul"))


def audit(function) -> Audit:
    """Look every operation of a concrete function up in TensorFlow's kernel registry.

    Walks its body and those of all functions it calls: branches, loops, calls, gradients. An operation needs a kernel
    for a GPU whose type constraints its attributes meet; in a function that XLA compiles, one that XLA has for GPUs.
    Says nothing of where an operation runs, nor of a kernel that keeps its arguments in the host's memory. Where
    `knows_gpu_kernels` is false, nearly all operations are found.

    Args:
        function: as `get_concrete_function` gives it.
    """
    _register_xla_kernels()
    library = _on_gpus({one.signature.name: one for one in function.graph.as_graph_def().library.function})
    entry = function.function_def
    bodies = list(_bodies(entry, library | {entry.signature.name: entry}))
    found = [
        HostOperation(
            node.op, node.name, body.signature.name, _dtypes(node), "XLA kernel" if compiled else "GPU kernel"
        )
        for body, compiled in bodies
        for node in body.node_def
        if node.op not in library and not _has_kernel(node, XLA if compiled else GPU)
    ]
    return Audit(sum(len(body.node_def) for body, _ in bodies), tuple(found))


def _on_gpus(library: dict) -> dict:
    """Name -> definition, as a GPU has them.

    Of functions that implement one API, as those of `tf.nn.ctc_loss` do, TensorFlow calls the one for the device at
    hand, whichever was traced.
    """
    apis = {name: one.attr["api_implements"].s for name, one in library.items()}
    own = {apis[name]: one for name, one in library.items() if one.attr["api_preferred_device"].s == b"GPU"}
    return {name: own.get(apis[name], one) if apis[name] else one for name, one in library.items()}


@cache
def _register_xla_kernels() -> None:
    """TensorFlow registers them when the first function of a process is compiled."""
    with tf.device("/CPU:0"):
        tf.function(lambda: tf.constant(1.0) + 1.0, jit_compile=True)()


def _bodies(entry, library: dict) -> Iterator[tuple]:
    """(definition, whether XLA compiles it) of each function that is reached, once for each of the two ways."""
    waiting, seen = [(entry.signature.name, False)], set()
    while waiting:
        name, compiled = waiting.pop()
        body = library[name]
        compiled = compiled or body.attr["_XlaMustCompile"].b
        if (name, compiled) in seen:
            continue
        seen.add((name, compiled))
        yield body, compiled
        for node in body.node_def:
            inside = compiled or node.attr["_XlaMustCompile"].b
            waiting += [(called, inside) for called in _called(node) if called in library]


def _called(node) -> Iterator[str]:
    """Names of the functions that a node calls: as its type, as an attribute, or in a list of them."""
    yield node.op
    for value in node.attr.values():
        yield value.func.name
        yield from (function.name for function in value.list.func)


def _has_kernel(node, device_types: tuple[str, ...]) -> bool:
    label = node.attr["_kernel"].s.decode()
    return any(
        label == labelled and all(allowed.issuperset(_values(_attribute(node, name))) for name, allowed in constraints)
        for labelled, constraints in _registered(node.op, device_types)
    )


@cache
def _registered(operation: str, device_types: tuple[str, ...]) -> list[tuple[str, list[tuple[str, frozenset]]]]:
    """Label and constraints, as pairs of an attribute and its allowed values, of each kernel that counts."""
    if operation in PYTHON:
        return []
    return [
        (kernel.label, [(one.name, frozenset(_listed(one.allowed_values.list))) for one in kernel.constraint])
        for kernel in tf_internals.registered_kernels(operation)
        if kernel.device_type in device_types
    ]


def _attribute(node, name: str):
    """An attribute of a node, or its default, which nodes may leave out."""
    if name in node.attr:
        return node.attr[name]
    return tf_internals.default_attribute(node.op, name)


def _values(attribute) -> list:
    """The value of an attribute, or the values of its list."""
    kind = attribute.WhichOneof("value")
    if kind == "list":
        return _listed(attribute.list)
    return [getattr(attribute, kind)] if kind else []


def _listed(values) -> list:
    return [value for field in ("type", "s", "i", "b") for value in getattr(values, field)]


def _dtypes(node) -> str:
    """Its type attributes in words."""
    named = {
        name: [tf.dtypes.as_dtype(number).name for number in (value.list.type or [value.type])]
        for name, value in sorted(node.attr.items())
        if value.type or value.list.type
    }
    return ", ".join(f"{name}={' '.join(words)}" for name, words in named.items())
