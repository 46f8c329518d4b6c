"""Looks up the GPU kernels of operations in TensorFlow's registry; it needs no GPU."""

from functools import cache

from myxtts import tf_internals

# TensorFlow uses a DEFAULT kernel if the device has no kernel that fits.
GPU = ("GPU", "DEFAULT")
XLA = ("XLA_GPU_JIT",)
# tf.py_function: its DEFAULT kernel runs Python on the host.
PYTHON = {"EagerPyFunc"}


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
