"""The copies between host and GPU memory in compiled functions, as a GPU would make them.

Most GPU kernels on int32 keep their values in host memory, since they compute shapes. Where such a
value meets a tensor in GPU memory, TensorFlow copies it. A copy to the host waits for the GPU, and
the kernels that depend on it are launched only then.

Like `myxtts.base.tf_internals`, this module uses private APIs of TensorFlow. On virtual GPUs the
copies of a whole run are counted instead: `tests/robustness/steady_copies.py`.
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties, NamedDevice
from tensorflow.python.grappler import cluster, tf_optimizer

import myxtts
from myxtts.base.portable_ops import HOST_SCOPE
from myxtts.base.tf_internals import operation_definition
from myxtts.trial.preflight.kernels import GPU, attribute_of, find_kernel, gpu_variants

PACKAGE = str(Path(myxtts.__file__).parent)
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
ALWAYS_ON_HOST = (tf.string, tf.resource)
CALLS = {"PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient"}
CALLS |= {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"}

Output = tuple[str, int]  # node and index


class Copy(NamedTuple):
    """A tensor that is copied between host and GPU, once for all its consumers there."""

    to_host: bool  # which waits for the GPU; else to the GPU
    tensor: str  # node that makes it and its output, such as `xtts/Maximum:0`
    type: str  # operation of this node
    dtype: str
    consumer: str  # operation of the first that needs the copy; `output` for a result
    in_loop: bool  # whether it is copied once in each iteration of a loop
    source: str  # Python line that made it, such as `tasks/tts/network.py:252`, or empty


def find_copies(function) -> list[Copy]:
    """Return the copies of one call of a concrete function, those within loops once.

    Follows TensorFlow's own steps: Grappler inlines functions, lowers loops and removes duplicates;
    each endpoint of a node is in host or GPU memory as `MemoryTypesForNode`
    (core/framework/memory_types.cc) says, by the kernel's `host_memory_arg`, or by the type where
    there is no kernel; and an edge between the two is a copy, one for each tensor and destination
    (`NeedSameDeviceSendRecv` and `DupRecvKey`, core/graph/graph_partition.cc). A function that XLA
    compiles is one node, whose int32 arguments and results are in GPU memory. int32 arguments and
    results of the function itself are in host memory.

    Logical CPU devices take the place of GPUs, but not for operations within `on_host`.
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
    graph_def = optimize_graph(graph_def, fetches, 1 + max(i or 0 for i in indices))
    return {node.name: node for node in graph_def.node}


def _endpoints(node, is_argument: bool) -> list[list[tuple[tf.DType, bool]]]:
    """Return type and whether it is in host memory of each input and of each output of a node."""
    definition = operation_definition(node.op)
    kernel = None if node.op in CALLS else find_kernel(node, GPU)
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
            graph = called_graph(graph, origin.original_func_names[0])
        traceback = graph.get_operation_by_name(name).traceback
    except (KeyError, AttributeError):
        # An operation that TensorFlow's optimizer made has no line.
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
            node.device = HOST if _runs_on_host(node.name) else node.device.replace("CPU:", "GPU:")
    return graph_def


def _runs_on_host(operation_name: str) -> bool:
    """Return whether an operation of this name was made in `portable_ops.on_host`."""
    return re.search(rf"(^|/){HOST_SCOPE}(_\d+)?/", operation_name) is not None


def _output(tensor: str) -> Output:
    name, _, index = tensor.partition(":")
    return name, int(index or 0)


def _dtypes(node, argument) -> list[tf.DType]:
    """Return the types of an argument of an operation, which may be a list of tensors."""
    if argument.type_list_attr:
        numbers = attribute_of(node, argument.type_list_attr).list.type
    else:
        number = argument.type or attribute_of(node, argument.type_attr).type
        count = attribute_of(node, argument.number_attr).i if argument.number_attr else 1
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


def optimize_graph(graph_def, fetches: Sequence[str], gpus: int):
    """Return a GraphDef as Grappler leaves it for a machine with some GPUs; it needs none.

    Called functions are inlined, and loops and branches become their low-level operations; the
    fetches, names of the inputs and outputs, stay. Private because Grappler has no public API.
    """
    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(fetches)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1  # also of small graphs
    properties = {"type": "GPU", "frequency": 1000, "num_cores": 100}
    gpu = DeviceProperties(**properties, environment={"architecture": "8.0"})
    devices = {"CPU:0": DeviceProperties(type="CPU", frequency=1000, num_cores=1)}
    devices |= {f"GPU:{index}": gpu for index in range(gpus)}
    machine = cluster.Cluster(
        devices=[
            NamedDevice(name=f"/job:localhost/replica:0/task:0/device:{name}", properties=device)
            for name, device in devices.items()
        ]
    )
    return tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=machine)


def called_graph(graph: tf.Graph, name: str) -> tf.Graph:
    """Return the graph of a called function; graphs list them as protos only."""
    return graph._get_function(name).graph
