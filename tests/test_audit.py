"""The audit finds no operation without a GPU kernel here, and finds planted ones anywhere; and the
copies between host and GPU memory are those that a GPU makes, once for each tensor.
"""

import unittest
from contextlib import nullcontext

import tensorflow as tf

from fakes.copies import Copy, find_copies
from fakes.toy import traced_once
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.vocoder import GriffinLim
from myxtts.base.portable_ops import indices, on_host, stateless_normal
from myxtts.config.schema import Config
from myxtts.extras.export.export import synthesis_module
from myxtts.run.step import Step
from myxtts.tasks.asr.task import ASRTask
from myxtts.tasks.layers import Dense, SeededDropout, mean_of_rows
from myxtts.tasks.tts.features import tts_extractor
from myxtts.trial.preflight.kernels import Audit, audit
from tests.long import long
from tests.tiny import build_model, build_toy, features, on_device, take_step, training_state
from tests.two_devices import DATA

TEXTS = tf.TensorSpec([None], tf.string)
NUMBERS = tf.TensorSpec([None], tf.float32)
WHOLE = tf.TensorSpec([4, 4], tf.int32)
ROWS = tf.TensorSpec([None, None], tf.float32)
INDICES = tf.TensorSpec([None], tf.int32)


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


def copies_of(function, *specs: tf.TensorSpec) -> list[Copy]:
    return find_copies(tf.function(function).get_concrete_function(*specs))


def summary(function, *specs: tf.TensorSpec) -> list[tuple[str, str, str]]:
    return [
        ("to host" if copy.to_host else "to GPU", copy.type, copy.consumer)
        for copy in copies_of(function, *specs)
    ]


class CopiesTest(unittest.TestCase):
    def test_floats_and_shapes_alone_need_no_copy(self):
        self.assertEqual(summary(lambda x: tf.reshape(x * 2.0, [-1, tf.shape(x)[0] + 1]), ROWS), [])

    def test_a_shape_among_floats_is_copied_to_the_gpu(self):
        actual = summary(lambda x: x * tf.cast(tf.shape(x)[0], tf.float32), ROWS)
        self.assertEqual(actual, [("to GPU", "StridedSlice", "Cast")])

    def test_a_value_as_shape_is_copied_to_the_host(self):
        actual = summary(lambda x: tf.zeros(tf.cast(x[0], tf.int32)), ROWS)
        self.assertEqual(actual, [("to host", "Cast", "Fill")])

    def test_consumers_in_the_same_memory_share_a_copy(self):
        def two_consumers(x, number):
            return tf.gather(x, number), tf.cast(number, tf.float32)

        self.assertEqual(summary(two_consumers, ROWS, INDICES), [("to GPU", "Placeholder", "Cast")])

    def test_integer_results_return_to_the_host(self):
        actual = summary(lambda x: tf.cast(x, tf.int32), ROWS)
        self.assertEqual(actual, [("to host", "Cast", "Identity")])
        self.assertEqual(summary(lambda x: tf.cast(x, tf.int64), ROWS), [])

    def test_copies_in_called_functions_are_found_with_their_lines(self):
        inner = tf.function(lambda x: x * tf.cast(tf.shape(x)[1], tf.float32))
        actual = summary(lambda x: inner(x) + 1.0, ROWS)
        self.assertEqual(actual, [("to GPU", "StridedSlice", "Cast")])
        copy, *_ = find_copies(traced_once(DATA, tts_extractor()))
        self.assertRegex(copy.source, r"^\w+/\w+\.py:\d+$")

    def test_copies_of_an_iteration_are_marked(self):
        def loop(x):
            return tf.while_loop(
                lambda x: tf.reduce_sum(x) < 9.0,
                lambda x: x * tf.cast(tf.shape(x)[0], x.dtype),
                [x],
            )

        self.assertTrue(all(copy.in_loop for copy in copies_of(loop, ROWS)))
        self.assertIn(("to host", "Less", "LoopCond"), summary(loop, ROWS))

    def test_xla_keeps_integers_on_the_gpu(self):
        compiled = tf.function(lambda x, number: tf.gather(x, number + 1), jit_compile=True)
        actual = summary(lambda x, number: compiled(x, number), ROWS, INDICES)
        self.assertEqual(actual, [("to GPU", "Placeholder", "PartitionedCall")])

    def test_the_product_of_an_unknown_shape_waits_for_the_gpu(self):
        # A matrix product as of Keras' Dense with a tensor of unknown shape.
        copies = copies_of(lambda x: tf.tensordot(tf.stack([x, x]), tf.ones([3, 4]), 1), ROWS)
        self.assertTrue(any(copy.to_host for copy in copies))

    def test_own_dense_layer_does_not_wait_for_the_gpu(self):
        dense = Dense(4)
        dense.build([None, None, 3])
        self.assertEqual(summary(dense, tf.TensorSpec([None, None, 3], tf.float32)), [])

    def test_own_operations_copy_nothing_to_the_gpu(self):
        dropout = SeededDropout(0.1, "name")

        def gradient(x, seed):
            draws = stateless_normal(tf.shape(x), seed)
            place = tf.cast(indices(tf.shape(x)[1]), tf.float32)[:, None]
            return tf.gradients(mean_of_rows(dropout(x + draws, seed) * place), x)

        specs = tf.TensorSpec([None, None, 4]), tf.TensorSpec([2], tf.int32)
        self.assertEqual(summary(gradient, *specs), [])

    def test_what_runs_on_the_host_is_not_copied(self):
        def shape(x, seed, on_host):
            with on_host():
                size = tf.random.stateless_uniform([], seed, 0, 8, tf.int32)
            return tf.zeros(size) * x[0, 0]

        seed = tf.TensorSpec([2], tf.int32)
        copies = copies_of(lambda x, seed: shape(x, seed, nullcontext), ROWS, seed)
        self.assertTrue(any(copy.to_host for copy in copies))
        self.assertEqual(summary(lambda x, seed: shape(x, seed, on_host), ROWS, seed), [])

    def test_the_producer_does_not_wait_for_the_gpu(self):
        # In single placement it would wait for the steps that are queued on the same GPU.
        asr_extractor = ASRTask().extractor(Config(), training=True)
        for extractor, to_gpu in ((tts_extractor(0.1), 11), (asr_extractor, 8)):
            copies = find_copies(traced_once(DATA, extractor))
            self.assertEqual([copy for copy in copies if copy.to_host], [])
            self.assertLessEqual(len(copies), to_gpu)
