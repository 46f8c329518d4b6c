"""Graphs without complex numbers, transforms and random numbers, for runtimes that lack them.

`portable_function` traces a function, and traces its operations again with others in their place:

- a complex tensor is a pair of real ones;
- a real Fourier transform of N = n1 · n2 samples is two products of matrices with twiddle factors
  between them (Cooley & Tukey 1965), an eighth of the multiplications of one matrix;
- normal noise is TensorFlow's own, by Philox (Salmon et al. 2011) in int64;
- what depends on no input is computed once, now, and variables are constants.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
PHILOX_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
LOW_32 = 0xFFFFFFFF
MANTISSA = 1 << 23
# Of TensorFlow's Box-Muller transform.
MIN_UNIFORM = 1e-7


class Complex(NamedTuple):
    """A complex tensor: two float32 tensors of its shape."""

    real: Any
    imag: Any


def portable_function(traced):
    """Return a tf.function that computes the tensor of a traced one by portable operations.

    The traced function calls no other one.
    """
    replay = _Replay(traced)
    signature = [tf.TensorSpec(x.shape, x.dtype, x.op.name) for x in replay.inputs]
    return tf.function(
        lambda *inputs: replay.run(inputs), input_signature=signature, autograph=False
    )


class _Replay:
    """Runs the operations of a trace again. Values known without inputs are numpy arrays."""

    def __init__(self, traced):
        self._traced = traced
        variables = {id(variable.handle): variable.numpy() for variable in traced.variables}
        captured = zip(traced.captured_inputs, traced.graph.internal_captures, strict=True)
        self._captured = {inner.ref(): variables.get(id(outer)) for outer, inner in captured}
        self.inputs = [x for x in traced.graph.inputs if x.ref() not in self._captured]
        self._constants: dict[Any, tf.Tensor] = {}

    def run(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        graph = self._traced.graph
        values: dict[Any, Any] = dict(self._captured)
        values.update({x.ref(): value for x, value in zip(self.inputs, inputs, strict=True)})
        for operation in graph.get_operations():
            if operation.type not in ("Placeholder", "NoOp"):
                results = self._replayed(operation, [values[x.ref()] for x in operation.inputs])
                outputs = [x.ref() for x in operation.outputs]
                values.update(zip(outputs, results, strict=True))
        return self._tensor(values[self._traced.outputs[0].ref()])

    def _replayed(self, operation: tf.Operation, inputs: list[Any]) -> list[Any]:
        kind = operation.type
        if kind in _SAME:
            return inputs
        if kind == "Const":
            return [_pair(tf.make_ndarray(operation.get_attr("value")))]
        if any(isinstance(x, Complex) for x in inputs):
            return [_COMPLEX[kind](*map(self._tensor, inputs))]
        if all(isinstance(x, np.ndarray) for x in inputs):
            with tf.init_scope():
                return [_pair(np.asarray(x)) for x in _run(operation, inputs)]
        if kind == "Conv2D":
            return [self._convolution(operation, *inputs)]
        if kind in _REAL:
            return [_REAL[kind](*map(self._tensor, inputs))]
        return _run(operation, [self._tensor(x) for x in inputs])

    def _tensor(self, value: Any) -> Any:
        """Return a value as a tensor; the same array as the same constant."""
        if isinstance(value, Complex):
            return Complex(*map(self._tensor, value))
        if not isinstance(value, np.ndarray):
            return value
        key = value.dtype.str, value.shape, value.tobytes()
        if key not in self._constants:
            self._constants[key] = tf.constant(value)
        return self._constants[key]

    def _convolution(self, operation: tf.Operation, x, kernel: np.ndarray):
        """Compute a convolution over time as one product: [B, 1, T, C], [1, K, C, D].

        Runtimes multiply matrices of 8 bits fast, and convolve them slowly.
        """
        taps = kernel.shape[1]
        if operation.get_attr("padding") == b"SAME":
            before = (taps - 1) // 2
            x = tf.pad(x, [[0, 0], [0, 0], [before, taps - 1 - before], [0, 0]])
        length = tf.shape(x)[2] - (taps - 1)
        windows = tf.concat([x[:, :, i : i + length] for i in range(taps)], axis=3)
        return tf.matmul(windows, self._tensor(kernel.reshape(-1, kernel.shape[3])))


def _pair(array: np.ndarray) -> Any:
    if array.dtype != np.complex64:
        return array
    return Complex(np.ascontiguousarray(array.real), np.ascontiguousarray(array.imag))


def _run(operation: tf.Operation, inputs: Sequence[Any]) -> list[Any]:
    """Call the public function of an operation, in `tf.raw_ops`, with its attributes."""
    definition = operation.op_def
    function = getattr(tf.raw_ops, operation.type)
    arguments: dict[str, Any] = {}
    left = list(inputs)
    inferred = set()
    for argument in definition.input_arg:
        inferred |= {argument.type_attr, argument.number_attr}
        if argument.number_attr:
            count = operation.get_attr(argument.number_attr)
            arguments[argument.name], left = left[:count], left[count:]
        else:
            arguments[argument.name] = left.pop(0)
    for attribute in definition.attr:
        if attribute.name not in inferred:
            arguments[attribute.name] = operation.get_attr(attribute.name)
    # The public name of at most one argument is another one.
    new = [name for name in _parameters(operation.type) if name not in (*arguments, "name")]
    old = [name for name in arguments if name not in _parameters(operation.type)]
    arguments.update(zip(new, map(arguments.pop, old), strict=True))
    results = function(**arguments)
    return [results] if tf.is_tensor(results) else list(results or [])


@cache
def _parameters(kind: str) -> Collection[str]:
    return inspect.signature(getattr(tf.raw_ops, kind)).parameters


def _complex_product(a: Complex, b: Complex) -> Complex:
    return Complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def _complex_quotient(a: Complex, b: Complex) -> Complex:
    power = b.real * b.real + b.imag * b.imag
    return _complex_product(a, Complex(b.real / power, -b.imag / power))


@cache
def _transform(samples: int) -> tuple[np.ndarray, ...]:
    """Return the factors of a real transform of n1 · n2 samples, n2 ≥ n1.

    With k = k1 + n1 · k2 and n = n2 · a + b: the cosines and sines over a, float32 [2 · n1, n1];
    the twiddle factors, real and imaginary, [n1, n2]; and the complex product over b as one of real
    numbers, [2 · n2, 2 · (n2 / 2 + 1)].
    """
    n1 = 1 << (samples.bit_length() - 1) // 2
    n2 = samples // n1

    def turns(rows, columns, length):
        return np.exp(-2j * np.pi * np.outer(np.arange(rows), np.arange(columns)) / length)

    first, twiddle, second = turns(n1, n1, n1), turns(n1, n2, samples), turns(n2, n2 // 2 + 1, n2)
    blocks = np.block([[second.real, second.imag], [-second.imag, second.real]])
    parts = np.concatenate([first.real, first.imag]), twiddle.real, twiddle.imag, blocks
    return tuple(part.astype(np.float32) for part in parts)


def real_transform(frames) -> Complex:
    """Compute `tf.signal.rfft`: float32 [B, T, N] -> [B, T, N / 2 + 1]."""
    samples = int(frames.shape[-1])
    first, cosine, sine, second = _transform(samples)
    n1, n2 = cosine.shape
    outer = tf.shape(frames)[:2]
    by_rows = tf.matmul(first, tf.reshape(frames, [-1, n1, n2]))  # over a
    real, imag = by_rows[:, :n1], by_rows[:, n1:]
    turned = tf.concat([real * cosine - imag * sine, real * sine + imag * cosine], axis=2)
    spectrum = tf.reshape(tf.matmul(turned, second), [-1, n1, 2, n2 // 2 + 1])
    by_bin = tf.reshape(tf.transpose(spectrum, [0, 2, 3, 1]), [-1, 2, n1 * (n2 // 2 + 1)])
    bins = samples // 2 + 1
    shape = tf.concat([outer, [bins]], axis=0)
    parts = [tf.reshape(by_bin[:, part, :bins], shape) for part in (0, 1)]
    for part in parts:
        part.set_shape([*frames.shape[:-1], bins])
    return Complex(*parts)


def inverse_real_transform(spectrum: Complex):
    """Compute `tf.signal.irfft`: [B, T, N / 2 + 1] -> float32 [B, T, N]. The transposed product."""
    bins = int(spectrum.real.shape[-1])
    samples = 2 * (bins - 1)
    first, cosine, sine, second = _transform(samples)
    n1, n2 = cosine.shape
    outer = tf.shape(spectrum.real)[:2]
    weight = np.full(bins, 2.0 / samples, np.float32)  # conjugated bins are those twice
    weight[[0, -1]] = 1.0 / samples
    padding = [[0, 0], [0, n1 * (n2 // 2 + 1) - bins]]
    parts = [tf.pad(tf.reshape(x, [-1, bins]) * weight, padding) for x in spectrum]
    by_bin = tf.reshape(tf.stack(parts, axis=1), [-1, 2, n2 // 2 + 1, n1])
    rows = tf.reshape(tf.transpose(by_bin, [0, 3, 1, 2]), [-1, n1, 2 * (n2 // 2 + 1)])
    turned = tf.matmul(rows, second, transpose_b=True)
    real, imag = turned[:, :, :n2], turned[:, :, n2:]
    parts = [real * cosine + imag * sine, imag * cosine - real * sine]
    frames = tf.matmul(first, tf.concat(parts, axis=1), transpose_a=True)
    result = tf.reshape(frames, tf.concat([outer, [samples]], axis=0))
    result.set_shape([*spectrum.real.shape[:-1], samples])
    return result


def normal_numbers(shape, seed):
    """Compute `tf.random.stateless_normal` as on a CPU; the seed is known."""
    with tf.init_scope():
        seed = tf.get_static_value(seed)
        key, counter = map(np.asarray, tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed))
    count = tf.reduce_prod(shape)
    # Each draw of four words is of the counter after that of the previous one.
    first = tf.cast(tf.range((count + 3) // 4), tf.uint64)
    words = [first, *(tf.zeros_like(first) + int(word) for word in _words(counter)[1:])]
    keys = _words(key)
    for _ in range(PHILOX_ROUNDS):
        (high_0, low_0), (high_2, low_2) = map(_product, words[::2], PHILOX_MULTIPLIERS)
        xor = tf.bitwise.bitwise_xor
        words = [
            xor(xor(high_2, words[1]), keys[0]),
            low_2,
            xor(xor(high_0, words[3]), keys[1]),
            low_0,
        ]
        keys = [(k + step) & LOW_32 for k, step in zip(keys, PHILOX_KEY_STEPS, strict=True)]
    uniform = [
        tf.cast(tf.cast(tf.bitwise.bitwise_and(word, MANTISSA - 1), tf.int64), tf.float32)
        / MANTISSA
        for word in words
    ]
    normals = []
    for radius, turn in (uniform[:2], uniform[2:]):
        length = tf.sqrt(-2.0 * tf.math.log(tf.maximum(radius, MIN_UNIFORM)))
        normals += [length * tf.sin(2.0 * np.pi * turn), length * tf.cos(2.0 * np.pi * turn)]
    return tf.reshape(tf.reshape(tf.stack(normals, axis=1), [-1])[:count], shape)


def _words(numbers: np.ndarray) -> list[int]:
    """Split uint64 into uint32, the lower one first."""
    return np.frombuffer(np.asarray(numbers, "<u8").tobytes(), "<u4").tolist()


def _product(word, factor: int):
    """Multiply words of 32 bits in int64; return the upper and lower 32 bits, uint64."""
    product = tf.cast(tf.cast(word, tf.int64) * factor, tf.uint64)
    return tf.bitwise.right_shift(product, np.uint64(32)), tf.bitwise.bitwise_and(
        product, np.uint64(LOW_32)
    )


_SAME = {"Identity", "IdentityN", "StopGradient", "PreventGradient", "ReadVariableOp"}
_COMPLEX: dict[str, Callable] = {
    "Shape": lambda x: tf.shape(x.real),
    "Real": lambda x: x.real,
    "Imag": lambda x: x.imag,
    "ComplexAbs": lambda x: tf.sqrt(x.real * x.real + x.imag * x.imag),
    "AddV2": lambda a, b: Complex(a.real + b.real, a.imag + b.imag),
    "Mul": _complex_product,
    "RealDiv": _complex_quotient,
    "IRFFT": lambda spectrum, length: inverse_real_transform(spectrum),
}
_REAL: dict[str, Callable] = {
    "Complex": Complex,
    "RFFT": lambda frames, length: real_transform(frames),
    "StatelessRandomNormal": normal_numbers,
    "UpperBound": lambda rows, values: tf.reduce_sum(
        tf.cast(values[:, :, None] >= rows[:, None, :], tf.int32), axis=2
    ),
    "Erfc": lambda x: 1.0 - tf.math.erf(x),
}
