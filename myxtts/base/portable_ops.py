"""Operations that give the same numbers, in the same way, on CPUs and GPUs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from zlib import crc32

import tensorflow as tf

from myxtts.base import tf_internals

# A tenth more work for a sentence of 4 s, and 16 shapes for all sentences below 12 s.
FRAMES_GRID = 64
HOST_SCOPE = "on_host"
# 64 bytes of float32: TensorFlow takes whole rows out of a tensor without a copy.
ROW_VALUES = 16


@contextmanager
def on_host() -> Iterator[None]:
    """Run operations on the host, also within a function for a GPU; XLA ignores this.

    For small values that the host needs: with kernels on a GPU the host would wait for it.
    """
    device = tf.device("/CPU:0") if tf_internals.device_type_in_scope() == "GPU" else nullcontext()
    with tf.name_scope(HOST_SCOPE), device:
        yield


def fold_in(seed, name: str):
    """Derive a new seed from a seed and a name: int32 [2] -> int32 [2]. Use each name once.

    A seed gives the same numbers on CPU and GPU, but different ones in a function compiled by XLA.
    Seeds are drawn on the host, where TensorFlow wants them: the kernels of a step would wait for a
    seed that is drawn on its GPU.
    """
    with on_host():
        return tf.random.experimental.stateless_fold_in(seed, crc32(name.encode()) & 0x7FFFFFFF)


def stateless_uniform(shape, seed, low=0.0, high=1.0):
    """Return the numbers of `tf.random.stateless_uniform`, by the kernel that it had before.

    That one takes the seed from the host's memory. The newer one takes a key and a counter from the
    GPU's: two copies in each draw, which wait for all that is queued on the GPU.
    """
    uniform = tf.raw_ops.StatelessRandomUniform(shape=shape, seed=seed, dtype=tf.float32)
    if (low, high) == (0.0, 1.0):
        return uniform
    return uniform * (high - low) + low


def stateless_bytes(like, seed):
    """Return uniform uint8 in the shape of a tensor, whose last dimension is known.

    Four of them take one random number, which costs a CPU more than all else in a dropout.
    """
    outer, channels = tf.shape(like)[:-1], like.shape[-1]
    words = -(-channels // 4)
    numbers = tf.raw_ops.StatelessRandomUniformFullInt(
        shape=tf.concat([outer, [words]], axis=0), seed=seed, dtype=tf.int32
    )
    shape = tf.concat([outer, [4 * words]], axis=0)
    return tf.reshape(tf.bitcast(numbers, tf.uint8), shape)[..., :channels]


def stateless_normal(shape, seed):
    """Return the numbers of `tf.random.stateless_normal`; see `stateless_uniform`."""
    return tf.raw_ops.StatelessRandomNormal(shape=shape, seed=seed)


def indices(count, first=0):
    """Return the integers from `first` on, int64 [count]; both are int32 scalars.

    On a GPU, int32 is computed on the host and then copied to the GPU, behind all that is queued
    there. This kernel takes its arguments from the host's memory and writes to the GPU's.
    """
    with on_host():
        first, limit, step = (tf.cast(number, tf.int64) for number in (first, first + count, 1))
    return tf.raw_ops.Range(start=first, limit=limit, delta=step)


def float32_matmul(a, b, **transposed):
    """Multiply float32 matrices as `tf.matmul` does, but never in TF32.

    GPUs since Ampere round the factors of a float32 product to TF32, with 10 bits of mantissa
    instead of 23. So on a GPU this product is computed in float64, unless TF32 is turned off. The
    device scope counts in which the product is traced: see `function_per_device_type`.
    """
    may_round = tf.config.experimental.tensor_float_32_execution_enabled()
    if not may_round or tf_internals.device_type_in_scope() != "GPU":
        return tf.matmul(a, b, **transposed)
    product = tf.matmul(tf.cast(a, tf.float64), tf.cast(b, tf.float64), **transposed)
    return tf.cast(product, tf.float32)


def by_rows(function: Callable, tensors: Sequence, of_row: tf.TensorSpec):
    """Apply a function to batches [B, …]: on a CPU to one row at a time, which stays in its caches.

    On a GPU it is applied to all rows at once. `of_row` is a row of its result.
    """
    if tf_internals.device_type_in_scope() == "GPU":
        return function(*tensors)

    count = tf.shape(tensors[0])[0]
    results = tf.TensorArray(of_row.dtype, count, element_shape=of_row.shape)

    def body(row, results):
        return row + 1, results.write(row, function(*(x[row : row + 1] for x in tensors))[0])

    # Not tf.map_fn, whose condition a GPU would copy to the host: simulated ones are audited so.
    return tf.while_loop(lambda row, _: row < count, body, [0, results])[1].stack()


def packed(tensors) -> tuple[tf.Tensor, Callable[[tf.Tensor], list]]:
    """Return float32 tensors of known shapes as one, and a function that takes it apart again."""
    counts = [tensor.shape.num_elements() for tensor in tensors]
    rows = [-(-count // ROW_VALUES) for count in counts]
    parts = []
    for tensor, count, filled in zip(tensors, counts, rows, strict=True):
        parts += [tf.reshape(tensor, [-1]), tf.zeros([filled * ROW_VALUES - count])]

    def unpack(packed):
        flat = [tf.reshape(x, [-1]) for x in tf.split(packed, rows)]
        return [
            tf.reshape(x[:count] if count % ROW_VALUES else x, tensor.shape)
            for x, count, tensor in zip(flat, counts, tensors, strict=True)
        ]

    return tf.reshape(tf.concat(parts, axis=0), [-1, ROW_VALUES]), unpack


def packed_on_gpu(tensors) -> tuple[list, Callable[[Sequence], list]]:
    """Do the same as `packed` if we are on a GPU, in a list of one; else return the tensors.

    For operations that treat every element alike. Small tensors take a GPU less time than a launch,
    of which there is then one instead of one for each. A CPU has them in its caches, and keeps them
    apart.
    """
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if tf_internals.device_type_in_scope() != "GPU":
        return tensors, list
    together, unpack = packed(tensors)
    return [together], lambda values: unpack(values[0])


def assign_elementwise(function: Callable[..., tuple], lists, further=()) -> None:
    """Set each variable of some lists by a function of single elements, on a GPU all at once.

    It takes the tensors at one place of `lists` and of `further` lists, and returns a tuple of the
    new values at that place of `lists`; see `packed_on_gpu`.
    """
    tensors, unpack = zip(*map(packed_on_gpu, (*lists, *further)), strict=True)
    results = zip(*(function(*place) for place in zip(*tensors, strict=True)), strict=True)
    for variables, values, unpack_values in zip(lists, results, unpack, strict=False):
        for variable, value in zip(variables, unpack_values(values), strict=True):
            variable.assign(value)


def grid_padding(frames):
    """Return the frames, int32 scalar, that fill up a length to a multiple of FRAMES_GRID.

    For lengths that are new with each input. On a CPU, oneDNN keeps what it has prepared for each
    shape of a product: 0.1 to 0.8 MB for each length.
    """
    return -frames % FRAMES_GRID


def function_per_device_type(*signature: tf.TensorSpec) -> Callable[[Callable], Callable]:
    """Return a decorator like `tf.function` that traces a function for CPUs and GPUs apart.

    `tf.function` alone calls the trace for the first device on all devices.
    """

    def compile_function(function: Callable) -> Callable:
        compiled = {
            kind: tf.function(function, input_signature=signature, autograph=False)
            for kind in ("CPU", "GPU")
        }
        return wraps(function)(lambda *args: compiled[tf_internals.device_type_in_scope()](*args))

    return compile_function
