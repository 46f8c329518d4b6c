"""Operations that run on the host within a function for a GPU."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import tensorflow as tf

from myxtts import tf_internals

SCOPE = "on_host"


@contextmanager
def on_host() -> Iterator[None]:
    """Return a context whose operations run on the host, also in a function for a GPU.

    For small values that the host needs: their kernels on a GPU would let the host wait for it. In
    a scope of a CPU the operations stay on its device, which is the host. XLA ignores the context.
    """
    device = tf.device("/CPU:0") if tf_internals.device_type_in_scope() == "GPU" else nullcontext()
    with tf.name_scope(SCOPE), device:
        yield


def runs_on_host(operation_name: str) -> bool:
    """Return whether an operation was made within `on_host`, by its name; for audits
    without a GPU.
    """
    return re.search(rf"(^|/){SCOPE}(_\d+)?/", operation_name) is not None
