"""Counts the copies between host and GPU memory inside a compiled function, as a GPU would run it.

Most GPU kernels on int32 keep their values in host memory, since they compute shapes. Where such a
value meets a tensor in GPU memory, TensorFlow copies it. A copy to the host waits for the GPU, and
the kernels that depend on it are launched only then.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from myxtts import tf_internals
from myxtts.placement.audit import GPU, attribute, find_kernel, gpu_variants
from myxtts.portable_ops import runs_on_host

PACKAGE = str(Path(__file__).parents[1])
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
ALWAYS_ON_HOST = (tf.string, tf.resource)
CALLS = {
    "PartitionedCall",
    "StatefulPartitionedCall",
    "SymbolicGradient",
    "While",
    "StatelessWhile",
}
CALLS |= {"If", "StatelessIf", "Case", "StatelessCase"}

Output = tuple[str, int]  # node and index


class Copy(NamedTuple):
    """A tensor that is copied between host and GPU, once for all its consumers there.

    Attributes:
        to_host: from the GPU to the host, which waits for the GPU; else from the host to the GPU.
        tensor: name of the node that makes it and its output, such as `xtts/Maximum:0`.
        type: operation of this node.
        dtype: of the tensor.
        consumer: operation of the first node that needs the copy; `output` for a result of the
            function.
        in_loop: whether it is copied once in each iteration of a loop.
        source: Python line that made the tensor, such as `models/xtts.py:252`; empty if it is
            unknown.
    """

    to_host: bool
    tensor: str
    type: str
    dtype: str
    consumer: str
    in_loop: bool
    source: str


def find_copies(function) -> list[Copy]:
    """Return the copies of one call of a concrete function, those within loops once.

    Follows TensorFlow's own steps: Grappler inlines functions, lowers loops and removes duplicates;
    each endpoint of a node is in host or GPU memory as `MemoryTypesForNode`
    (core/framework/memory_types.cc) says, by the kernel's `host_memory_arg`, or by the type where
    there is no kernel; and an edge between the two is a copy, one for each tensor and destination
    (`NeedSameDeviceSendRecv` and `DupRecvKey`, core/graph/graph_partition.cc). A function that XLA
    compiles is one node, whose int32 arguments and results are in GPU memory. int32 arguments and
    results of the function itself are in host memory.

    Logical CPU devices take the place of GPUs, but not for operations within `host.on_host`. Needs
    `audit.has_gpu_kernels`.
    """
    graph = _Graph(function)
    copies: dict[tuple[Output, bool], str] = {}
    for consumer, destination, in_host in graph.edges():
        tensor = graph.endpoint(destination)
        if tensor.on_host != in_host and tensor.dtype not in ALWAYS_ON_HOST:
            copies.setdefault((destination, in_host), consumer)
    return [
        Copy(
            in_host,
            f"{name}:{index}",
            graph.nodes[name].op,
            graph.endpoint((name, index)).dtype.name,
            consumer,
            name in graph.in_loops,
            graph.source(name),
        )
        for ((name, index), in_host), consumer in copies.items()
    ]


class _Endpoint(NamedTuple):
    dtype: tf.DType
    on_host: bool


class _Graph:
    """The optimized graph of a concrete function on GPUs.

    Attributes:
        nodes: NodeDef by name.
        in_loops: names of the nodes that run once in each iteration of a loop.
    """

    def __init__(self, function):
        self._function = function
        graph_def = _prepared(function.graph.as_graph_def())
        self._arguments = {tensor.op.name for tensor in function.inputs}
        self._results = [tensor.name for tensor in function.outputs]
        fetches = [tensor.name for tensor in (*function.inputs, *function.outputs)]
        gpus = 1 + max(
            (tf.DeviceSpec.from_string(node.device).device_index or 0) for node in graph_def.node
        )
        graph_def = tf_internals.optimize_graph(graph_def, fetches, gpus)
        self.nodes = {node.name: node for node in graph_def.node}
        self._endpoints = {node.name: self._endpoints_of(node) for node in graph_def.node}
        self.in_loops = _in_loops(self.nodes)

    def endpoint(self, output: Output) -> _Endpoint:
        """Return type and memory of an output of a node."""
        name, index = output
        return self._endpoints[name][1][index]

    def edges(self) -> Iterator[tuple[str, Output, bool]]:
        """Yield (operation of the consumer, output that it consumes, needed in host memory)."""
        for node in self.nodes.values():
            tensors = (tensor for tensor in node.input if not tensor.startswith("^"))
            for tensor, endpoint in zip(tensors, self._endpoints[node.name][0], strict=True):
                yield node.op, _output(tensor), endpoint.on_host
        for tensor in self._results:
            yield "output", _output(tensor), self.endpoint(_output(tensor)).dtype == tf.int32

    def _endpoints_of(self, node) -> tuple[list[_Endpoint], list[_Endpoint]]:
        """Return the inputs and outputs of a node."""
        definition = tf_internals.operation_definition(node.op)
        kernel = None if node.op in CALLS else find_kernel(node, GPU)
        by_type = node.op in CALLS or node.name in self._arguments
        on_cpu = not by_type and (
            kernel is None or tf.DeviceSpec.from_string(node.device).device_type == "CPU"
        )
        int32_on_host = by_type and not (
            "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b
        )

        def endpoints(arguments) -> list[_Endpoint]:
            found = []
            for argument in arguments:
                in_kernel = kernel is not None and argument.name in kernel.host_memory_arg
                for dtype in _dtypes(node, argument):
                    by_dtype = dtype in ALWAYS_ON_HOST or (int32_on_host and dtype == tf.int32)
                    found.append(_Endpoint(dtype, on_cpu or in_kernel or by_dtype))
            return found

        return endpoints(definition.input_arg), endpoints(definition.output_arg)

    def source(self, name: str) -> str:
        """Return the line of this package that made a node, or an empty string."""
        node = self.nodes[name]
        origin = node.experimental_debug_info
        name = origin.original_node_names[0] if origin.original_node_names else name
        graph = self._function.graph
        try:
            if origin.original_func_names:
                graph = tf_internals.called_graph(graph, origin.original_func_names[0])
            traceback = graph.get_operation_by_name(name).traceback
        except (KeyError, AttributeError):
            # Made by the optimizer.
            return ""
        lines = [frame for frame in traceback if frame.filename.startswith(PACKAGE)]
        return f"{lines[-1].filename.removeprefix(PACKAGE)[1:]}:{lines[-1].lineno}" if lines else ""


def _prepared(graph_def):
    """Turn logical CPUs and functions into those of GPUs; let all functions be inlined."""
    on_gpu = any("GPU" in node.device for node in graph_def.node)
    definitions = gpu_variants(graph_def.library)
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
        numbers = attribute(node, argument.type_list_attr).list.type
    else:
        number = argument.type or attribute(node, argument.type_attr).type
        count = attribute(node, argument.number_attr).i if argument.number_attr else 1
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
