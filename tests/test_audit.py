"""The audit finds no operation without a GPU kernel here, and finds planted ones anywhere."""

import unittest

import numpy as np
import tensorflow as tf

from fakes.toy import traced_once
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.vocoder import GriffinLim
from myxtts.data.features import tts_extractor
from myxtts.errors import PlacementError
from myxtts.placement.audit import Audit, audit, has_gpu_kernels, require_device
from myxtts.synthesis.export import synthesis_module
from myxtts.training.step import Step
from tests.long import long
from tests.tiny import build_model, build_toy, features, on_device, take_step, training_state
from tests.two_devices import DATA, MODEL

NEEDS_KERNELS = unittest.skipUnless(
    has_gpu_kernels(), "this build of TensorFlow has no GPU kernels to look up"
)
TEXTS = tf.TensorSpec([None], tf.string)
NUMBERS = tf.TensorSpec([None], tf.float32)
WHOLE = tf.TensorSpec([4, 4], tf.int32)


def audit_of(function, *specs: tf.TensorSpec, xla: bool = False) -> Audit:
    compiled = tf.function(function, jit_compile=True if xla else None)
    return audit(compiled.get_concrete_function(*specs))


def missing_kernels(function, *specs: tf.TensorSpec, xla: bool = False) -> list[tuple[str, str]]:
    found = audit_of(function, *specs, xla=xla).host_only
    return [(operation.type, operation.missing) for operation in found]


def square(x):
    return tf.matmul(x, x)


def length(text):
    """Return the length of a text: the operation has a CPU kernel, but no GPU or XLA kernel."""
    return tf.cast(tf.strings.length(text), tf.float32)


class HostFieldsTest(unittest.TestCase):
    def test_integers_may_be_in_host_memory(self):
        with tf.device(DATA):
            frames, mel = tf.constant([1, 2]), tf.constant([1.0])
        for device in ("/GPU:0", MODEL):
            require_device(device, [("frames", frames), ("tokens", np.ones(3, np.int32))])
        with self.assertRaisesRegex(PlacementError, r"but found mel on /CPU:0 \(1 in all\)\. "):
            require_device("/GPU:0", [("frames", frames), ("mel", mel)])


@NEEDS_KERNELS
class ProjectTest(unittest.TestCase):
    def assert_clean(self, function, least: int):
        result = audit(function)
        self.assertEqual(result.host_only, ())
        # Fewer if the audit had skipped called functions.
        self.assertGreater(result.operations, least)

    def test_producer_passes_the_audit(self):
        for vtlp in (0.0, 0.1):
            with self.subTest(vtlp=vtlp):
                self.assert_clean(traced_once(DATA, tts_extractor(vtlp)), 200)

    def assert_step_clean(self, model, precision, accumulation, least, xla=False):
        state = training_state(model, precision)
        step = Step(state, 1.0, accumulation, static_shapes=xla, compile_xla=xla)
        functions = step.functions([on_device(features([(5, 13), (8, 24)]))])
        self.assertEqual(len(functions), 1 if accumulation == 1 else 2)
        for function in functions:
            self.assert_clean(function, least)

    # The tests of the preflight audit the step in float32.

    @long
    def test_accumulating_bfloat16_step_passes_the_audit(self):
        self.assert_step_clean(build_model("mixed_bfloat16"), "mixed_bfloat16", 2, 3000)

    @long
    def test_float16_step_with_gradient_checkpointing_passes_the_audit(self):
        model = build_model("mixed_float16", gradient_checkpointing=True)
        self.assert_step_clean(model, "mixed_float16", 1, 3000)

    def test_xla_compiled_step_passes_the_audit(self):
        self.assert_step_clean(build_toy(), "float32", 1, 100, xla=True)

    def test_audit_of_a_step_does_not_retrace(self):
        step = Step(training_state(build_toy()), 1.0, 1, static_shapes=False, compile_xla=False)
        batch = on_device(features([(5, 13), (8, 24)]))
        first = step.functions([batch])
        take_step(step, [[batch]], 1, 1e-3, 0.9)
        self.assertIs(step.functions([batch])[0], first[0])
        self.assertEqual(step.traces, 1)

    def test_exported_model_with_griffin_lim_passes_the_audit(self):
        module = synthesis_module(build_model(), GriffinLim(2), SAMPLE_RATE_HZ)
        self.assert_clean(module.synthesize.get_concrete_function(), 2000)
        self.assert_clean(module.reference_mel.get_concrete_function(), 50)


@NEEDS_KERNELS
class PlantedOperationTest(unittest.TestCase):
    def test_string_operation_is_found(self):
        (operation,) = audit_of(length, TEXTS).host_only
        self.assertEqual((operation.type, operation.name), ("StringLength", "StringLength"))
        self.assertIn("length", operation.function)

    def test_kernel_must_match_types(self):
        (operation,) = audit_of(square, WHOLE).host_only
        found = operation.type, operation.missing, operation.dtypes
        self.assertEqual(found, ("MatMul", "GPU kernel", "T=int32"))
        self.assertEqual(missing_kernels(square, tf.TensorSpec([4, 4], tf.float32)), [])

    def test_default_kernel_with_host_arguments_counts(self):
        self.assertEqual(missing_kernels(lambda text: tf.unique(text)[0], TEXTS), [])
        call = tf.function(lambda text, x: (text, x))  # its types are a list
        self.assertEqual(missing_kernels(lambda text, x: call(text, x)[1], TEXTS, NUMBERS), [])

    def test_python_functions_are_found_despite_their_default_kernel(self):
        for call, name in ((tf.numpy_function, "PyFunc"), (tf.py_function, "EagerPyFunc")):
            found = missing_kernels(lambda x, call=call: call(abs, [x], tf.float32), NUMBERS)
            self.assertEqual(found[0][0], name)

    def test_reading_and_decoding_are_found(self):
        def read(path):
            return tf.audio.decode_wav(tf.io.read_file(path))[0]

        types = [name for name, _ in missing_kernels(read, tf.TensorSpec([], tf.string))]
        self.assertEqual(types, ["ReadFile", "DecodeWav"])

    def test_operation_in_a_loop_body_or_condition_is_found(self):
        def loop(text):
            return tf.while_loop(
                lambda i, total: tf.reduce_sum(length(text)) > total,
                lambda i, total: (i + 1, total + 1.0),
                (0, 0.0),
            )

        self.assertEqual(missing_kernels(loop, TEXTS), [("StringLength", "GPU kernel")])
        body = tf.function(lambda text: tf.map_fn(length, text, fn_output_signature=tf.float32))
        self.assertEqual(missing_kernels(body, TEXTS)[-1], ("StringLength", "GPU kernel"))

    def test_operation_in_an_untaken_branch_is_found(self):
        def branch(text, x):
            return tf.cond(x[0] > 0.0, lambda: x[0], lambda: length(text)[0])

        self.assertIn(("StringLength", "GPU kernel"), missing_kernels(branch, TEXTS, NUMBERS))

    def test_operation_in_a_nested_function_is_found(self):
        inner = tf.function(length)
        outer = tf.function(lambda text: inner(text) + 1.0)
        (operation,) = audit_of(lambda text: outer(text) + 1.0, TEXTS).host_only
        self.assertEqual(operation.type, "StringLength")
        self.assertIn("length", operation.function)

    def test_operation_that_occurs_only_in_a_gradient_is_found(self):
        @tf.custom_gradient
        def scaled(x):
            return 2.0 * x, lambda upstream: tf.numpy_function(abs, [upstream], tf.float32)

        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(scaled(x))
            return tape.gradient(y, x)

        self.assertEqual(missing_kernels(scaled, NUMBERS), [])
        self.assertEqual(missing_kernels(gradient, NUMBERS), [("PyFunc", "GPU kernel")])

    def test_function_compiled_by_xla_needs_xla_kernels_only(self):
        product, plain = tf.function(square, jit_compile=True), tf.function(square)
        missing = [("MatMul", "GPU kernel")]
        for function, xla, expected in (
            (product, False, []),
            (lambda x: product(x) + 1, False, []),
            (lambda x: tf.matmul(product(x), x), False, missing),
            # Compiled if its caller is, but not by itself.
            (lambda x: plain(x) + 1, True, []),
            (lambda x: plain(x) + 1, False, missing),
        ):
            self.assertEqual(missing_kernels(function, WHOLE, xla=xla), expected)
        self.assertEqual(missing_kernels(length, TEXTS, xla=True), [("StringLength", "XLA kernel")])
