"""Private functions of TensorFlow that the feed needs, each with the reason."""

import ctypes

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

# Parameters of mallopt(3), and values: the most that glibc takes for the first.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
MMAP_THRESHOLD_BYTES, TRIM_THRESHOLD_BYTES = 32 << 20, 256 << 20


def has_started() -> bool:
    """Whether TensorFlow has initialised its devices; the public functions that tell start it."""
    return context.context()._context_handle is not None


def reuse_freed_memory() -> None:
    """Let tensors take the memory that others freed; call it after each `prefetch_to_device`.

    The first kernel of GeneratorDataset, which that makes, has the C library map all memory of 128
    KiB or more for itself (`ApplyPython311MemoryPatch`, against growth with Python 3.11). The
    kernel then clears each page of each tensor: half of the processor time of a step on the CPU.
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    library.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def run_operations_as_kernels(on: bool = True) -> None:
    """Run each eager operation by its kernel, instead of as a function of this one operation.

    All these functions share one rendezvous. In one of an operation on a GPU that takes or returns
    host memory, the CPU sends the tensor to the GPU's part. Two threads that run the same operation
    send under the same key, so each may receive what the other one sent
    (`reuse_rendezvous_for_functions` in tensorflow/core/common_runtime/eager/execute.cc).

    Private because the public functions have no setting for it. Starts TensorFlow.
    """
    context.context().ensure_initialized()
    pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(context.context()._handle, not on)
