"""Checks that tensors are on the right device, and finds in compiled functions the operations that
no GPU can run, and the copies between host and GPU memory as a GPU would make them.

Most GPU kernels on int32 keep their values in host memory, since they compute shapes. Where such a
value meets a tensor in GPU memory, TensorFlow copies it. A copy to the host waits for the GPU, and
the kernels that depend on it are launched only then.
"""

import itertools
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts import tf_internals
from myxtts.errors import PlacementError
from myxtts.portable_ops import runs_on_host

# TensorFlow uses a DEFAULT kernel if the device has no kernel that fits.
GPU = ("GPU", "DEFAULT")
XLA = ("XLA_GPU_JIT",)
# tf.py_function: its DEFAULT kernel runs Python on the host.
PYTHON = {"EagerPyFunc"}
PACKAGE = str(Path(__file__).parents[1])
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
ALWAYS_ON_HOST = (tf.string, tf.resource)
CALLS = {"PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient"}
CALLS |= {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"}

Output = tuple[str, int]  # node and index


def require_device(device: str, named: Iterable[tuple[str, object]]) -> None:
    """Check that tensors and variables are on a device, or raise PlacementError: TensorFlow
    silently copies tensors and moves operations.

    NumPy arrays are in host memory and not checked. int32 tensors may be in host memory:
    TensorFlow's functions return them there.

    Args:
        device: such as `/GPU:1`, or with job and task.
        named: pairs of a name for the message and a tensor, `tf.Variable` or Keras variable.
    """
    expected = tf.DeviceSpec.from_string(device)
    misplaced = []
    for name, value in named:
        if isinstance(value, np.ndarray | np.generic):
            continue
        spec = _device(value)
        is_host_integer = getattr(value, "dtype", None) == tf.int32 and spec.device_type == "CPU"
        if isinstance(value, tf.Tensor) and is_host_integer:
            continue
        wanted = expected
        # This process, also in a cluster: tf.data does not know its job and task.
        if spec.job == "localhost":
            wanted = expected.replace(job=None, replica=None, task=None)
        if spec.make_merged_spec(wanted) != spec:
            place = f"/{spec.device_type}:{spec.device_index}"
            if expected.job:
                place = spec.to_string()
            misplaced.append(f"{name} on {place}")
    if misplaced:
        raise PlacementError(
            f"all values must be on {device}, but found {', '.join(misplaced[:5])}"
            f" ({len(misplaced)} in all). This is a defect of the program or of a custom model:"
            " build and call it inside tf.device."
        )


def _device(value) -> tf.DeviceSpec:
    # `device` would be that of the function call that returned the tensor.
    if isinstance(value, tf.Tensor):
        return tf.DeviceSpec.from_string(value.backing_device)
    variable = getattr(value, "value", value)
    return tf.DeviceSpec.from_string(
        variable.device if isinstance(variable, tf.Variable) else value.device
    )


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


def audit(function) -> Audit:
    """Look up every operation of a concrete function in TensorFlow's kernel registry.

    Covers all functions it calls: branches, loops, calls, gradients. An operation needs a GPU
    kernel whose type constraints its attributes meet, or XLA's GPU kernel in a function that XLA
    compiles. The audit does not tell where an operation runs. Without `has_gpu_kernels`, nearly all
    operations lack one.
    """
    _register_xla_kernels()
    library = _gpu_variants(function.graph.as_graph_def().library)
    entry = function.function_def
    operations = 0
    host_only = []
    for body, compiled in _bodies(entry, library | {entry.signature.name: entry}):
        operations += len(body.node_def)
        kernels = XLA if compiled else GPU
        missing = "XLA kernel" if compiled else "GPU kernel"
        for node in body.node_def:
            if node.op not in library and _find_kernel(node, kernels) is None:
                place = (node.op, node.name, body.signature.name, _type_attributes(node))
                host_only.append(HostOperation(*place, missing))
    return Audit(operations, tuple(host_only))


def _gpu_variants(library) -> dict:
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


def has_gpu_kernels() -> bool:
    """Whether this build of TensorFlow has GPU kernels (tensorflow-cpu has not); needs no GPU."""
    return any(kernel.device_type == "GPU" for kernel in tf_internals.registered_kernels("MatMul"))


def _find_kernel(node, device_types: tuple[str, ...]):
    """Return the KernelDef that TensorFlow chooses for a NodeDef, or None."""
    label = node.attr["_kernel"].s.decode()
    for kernel, constraints in _kernels(node.op, device_types):
        if kernel.label == label and all(
            allowed.issuperset(_values(_attribute(node, name))) for name, allowed in constraints
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


def _attribute(node, name: str):
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
    return [getattr(value, kind)] if kind else []


class Copy(NamedTuple):
    """A tensor that is copied between host and GPU, once for all its consumers there."""

    to_host: bool  # which waits for the GPU; else to the GPU
    tensor: str  # node that makes it and its output, such as `xtts/Maximum:0`
    type: str  # operation of this node
    dtype: str
    consumer: str  # operation of the first that needs the copy; `output` for a result
    in_loop: bool  # whether it is copied once in each iteration of a loop
    source: str  # Python line that made it, such as `models/xtts.py:252`, or empty


def find_copies(function) -> list[Copy]:
    """Return the copies of one call of a concrete function, those within loops once.

    Follows TensorFlow's own steps: Grappler inlines functions, lowers loops and removes duplicates;
    each endpoint of a node is in host or GPU memory as `MemoryTypesForNode`
    (core/framework/memory_types.cc) says, by the kernel's `host_memory_arg`, or by the type where
    there is no kernel; and an edge between the two is a copy, one for each tensor and destination
    (`NeedSameDeviceSendRecv` and `DupRecvKey`, core/graph/graph_partition.cc). A function that XLA
    compiles is one node, whose int32 arguments and results are in GPU memory. int32 arguments and
    results of the function itself are in host memory.

    Logical CPU devices take the place of GPUs, but not for operations within `on_host`. Needs
    `has_gpu_kernels`.
    """
    nodes = _optimized_nodes(function)
    in_loops = _in_loops(nodes)
    arguments = {tensor.op.name for tensor in function.inputs}
    inputs, outputs = {}, {}
    for name, node in nodes.items():
        inputs[name], outputs[name] = _endpoints(node, is_argument=name in arguments)
    edges: list[tuple[str, Output, bool]] = []
    for name, node in nodes.items():
        tensors = (_output(tensor) for tensor in node.input if not tensor.startswith("^"))
        for tensor, (_, on_host) in zip(tensors, inputs[name], strict=True):
            edges.append((node.op, tensor, on_host))
    for result in function.outputs:
        edges.append(("output", _output(result.name), result.dtype == tf.int32))
    copies: dict[tuple[Output, bool], Copy] = {}
    for consumer, (name, index), in_host in edges:
        dtype, on_host = outputs[name][index]
        if on_host != in_host and dtype not in ALWAYS_ON_HOST:
            made = f"{name}:{index}", nodes[name].op, dtype.name
            copy = Copy(in_host, *made, consumer, name in in_loops, _source(nodes[name], function))
            copies.setdefault(((name, index), in_host), copy)
    return list(copies.values())


def _optimized_nodes(function) -> dict:
    """Return the nodes of a concrete function as GPUs run it, by name."""
    graph_def = _prepared(function.graph.as_graph_def())
    fetches = [tensor.name for tensor in (*function.inputs, *function.outputs)]
    indices = (tf.DeviceSpec.from_string(node.device).device_index for node in graph_def.node)
    graph_def = tf_internals.optimize_graph(graph_def, fetches, 1 + max(i or 0 for i in indices))
    return {node.name: node for node in graph_def.node}


def _endpoints(node, is_argument: bool) -> list[list[tuple[tf.DType, bool]]]:
    """Return type and whether it is in host memory of each input and of each output of a node."""
    definition = tf_internals.operation_definition(node.op)
    kernel = None if node.op in CALLS else _find_kernel(node, GPU)
    by_type = node.op in CALLS or is_argument
    device_type = tf.DeviceSpec.from_string(node.device).device_type
    on_cpu = not by_type and (kernel is None or device_type == "CPU")
    int32_on_host = by_type and not node.attr["_XlaMustCompile"].b
    endpoints = []
    for arguments in (definition.input_arg, definition.output_arg):
        ends = []
        for argument in arguments:
            in_kernel = kernel is not None and argument.name in kernel.host_memory_arg
            for dtype in _dtypes(node, argument):
                by_dtype = dtype in ALWAYS_ON_HOST or (int32_on_host and dtype == tf.int32)
                ends.append((dtype, on_cpu or in_kernel or by_dtype))
        endpoints.append(ends)
    return endpoints


def _source(node, function) -> str:
    """Return the line of this package that made a node, or an empty string."""
    origin = node.experimental_debug_info
    name = origin.original_node_names[0] if origin.original_node_names else node.name
    graph = function.graph
    try:
        if origin.original_func_names:
            graph = tf_internals.called_graph(graph, origin.original_func_names[0])
        traceback = graph.get_operation_by_name(name).traceback
    except (KeyError, AttributeError):
        # An operation that TensorFlow's optimizer made has no line.
        return ""
    lines = [frame for frame in traceback if frame.filename.startswith(PACKAGE)]
    return f"{lines[-1].filename.removeprefix(PACKAGE)[1:]}:{lines[-1].lineno}" if lines else ""


def _prepared(graph_def):
    """Turn logical CPUs and functions into those of GPUs; let all functions be inlined."""
    on_gpu = any("GPU" in node.device for node in graph_def.node)
    definitions = _gpu_variants(graph_def.library)
    for definition in graph_def.library.function:
        name = definition.signature.name
        definition.CopyFrom(definitions[name])
        definition.signature.name = name
        for hindrance in {"api_implements", "_noinline"} & set(definition.attr):
            if "_XlaMustCompile" not in definition.attr:
                del definition.attr[hindrance]
    bodies = (definition.node_def for definition in graph_def.library.function)
    for node in itertools.chain(graph_def.node, *bodies):
        if not on_gpu:
            node.device = HOST if runs_on_host(node.name) else node.device.replace("CPU:", "GPU:")
    return graph_def


def _output(tensor: str) -> Output:
    name, _, index = tensor.partition(":")
    return name, int(index or 0)


def _dtypes(node, argument) -> list[tf.DType]:
    """Return the types of an argument of an operation, which may be a list of tensors."""
    if argument.type_list_attr:
        numbers = _attribute(node, argument.type_list_attr).list.type
    else:
        number = argument.type or _attribute(node, argument.type_attr).type
        count = _attribute(node, argument.number_attr).i if argument.number_attr else 1
        numbers = [number] * count
    return [tf.dtypes.as_dtype(number) for number in numbers]


def _in_loops(nodes: dict) -> set[str]:
    """Return the nodes between the Enter and Exit operations of a loop."""
    consumers: dict[str, list[str]] = {}
    for node in nodes.values():
        for tensor in node.input:
            consumers.setdefault(_output(tensor.removeprefix("^"))[0], []).append(node.name)
    pending = [name for name, node in nodes.items() if node.op == "Enter"]
    inside: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in inside and nodes[name].op != "Exit":
            inside.add(name)
            pending += consumers.get(name, ())
    return inside
