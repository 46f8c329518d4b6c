"""The audit: this project has no operation that a GPU cannot run, and a planted one is found wherever it hides."""

import unittest

import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.features import tts_extractor
from myxtts.data.producer import trace_produce
from myxtts.placement.audit import Audit, audit, knows_gpu_kernels
from myxtts.synthesis.export import synthesis_module
from myxtts.training.step import Step
from tests.long import long
from tests.tiny import build_model, build_toy, features, on_device, training_state
from tests.two_devices import DATA

TEXTS = tf.TensorSpec([None], tf.string)
NUMBERS = tf.TensorSpec([None], tf.float32)
WHOLE = tf.TensorSpec([4, 4], tf.int32)


def audit_of(function, *specs: tf.TensorSpec, xla: bool = False) -> Audit:
    return audit(tf.function(function, jit_compile=True if xla else None).get_concrete_function(*specs))


def found_in(function, *specs: tf.TensorSpec, xla: bool = False) -> list[tuple[str, str]]:
    return [(one.type, one.lacks) for one in audit_of(function, *specs, xla=xla).host_only]


def length(text):
    """An operation on strings: it has a kernel for the CPU only, and none of XLA's."""
    return tf.cast(tf.strings.length(text), tf.float32)


@unittest.skipUnless(knows_gpu_kernels(), "this build of TensorFlow has no GPU kernels to look up")
class Project(unittest.TestCase):
    def assert_clean(self, function, least: int):
        found = audit(function)
        self.assertEqual(found.host_only, ())
        self.assertGreater(found.operations, least)  # or the walk has not gone into the functions that are called

    def test_producer(self):
        for vtlp in (0.0, 0.15):
            with self.subTest(vtlp=vtlp):
                self.assert_clean(trace_produce(DATA, tts_extractor(vtlp)), 200)

    def assert_step_clean(self, model, precision: str, accumulation: int, least: int, xla: bool = False):
        step = Step(training_state(model, precision), 1.0, accumulation, static_shapes=xla, compile_xla=xla)
        functions = step.functions([on_device(features([(5, 13), (8, 24)]))])
        self.assertEqual(len(functions), 1 if accumulation == 1 else 2)
        for function in functions:
            self.assert_clean(function, least)

    # The step in float32 is audited where the preflight is tested.

    @long
    def test_accumulating_step_in_bfloat16(self):
        self.assert_step_clean(build_model("mixed_bfloat16"), "mixed_bfloat16", 2, 3000)

    @long
    def test_step_in_float16_that_computes_activations_again(self):
        self.assert_step_clean(build_model("mixed_float16", gradient_checkpointing=True), "mixed_float16", 1, 3000)

    def test_step_compiled_by_xla(self):
        self.assert_step_clean(build_toy(), "float32", 1, 100, xla=True)

    def test_audit_of_a_step_traces_nothing_twice(self):
        step = Step(training_state(build_toy()), 1.0, 1, static_shapes=False, compile_xla=False)
        batch = on_device(features([(5, 13), (8, 24)]))
        first = step.functions([batch])
        step([[batch]], 1, 1e-3, 0.9)
        self.assertIs(step.functions([batch])[0], first[0])
        self.assertEqual(step.traces, 1)

    def test_what_is_exported_with_griffin_lim(self):
        module = synthesis_module(build_model(), 2, SAMPLE_RATE_HZ)
        self.assert_clean(module.synthesize.get_concrete_function(), 2000)
        self.assert_clean(module.hear.get_concrete_function(), 50)


@unittest.skipUnless(knows_gpu_kernels(), "this build of TensorFlow has no GPU kernels to look up")
class Planted(unittest.TestCase):
    def test_operation_on_strings(self):
        found = audit_of(length, TEXTS)
        self.assertEqual([one.type for one in found.host_only], ["StringLength"])
        self.assertIn("length", found.host_only[0].function)
        self.assertEqual(found.host_only[0].name, "StringLength")

    def test_types_decide(self):
        self.assertEqual(found_in(lambda x: tf.matmul(x, x), WHOLE), [("MatMul", "GPU kernel")])
        self.assertEqual(found_in(lambda x: tf.matmul(x, x), tf.TensorSpec([4, 4], tf.float32)), [])
        self.assertEqual(audit_of(lambda x: tf.matmul(x, x), WHOLE).host_only[0].dtypes, "T=int32")

    def test_kernel_of_all_devices_that_keeps_its_arguments_on_the_host_will_do(self):
        self.assertEqual(found_in(lambda text: tf.unique(text)[0], TEXTS), [])
        call = tf.function(lambda text, x: (text, x))  # its types are a list
        self.assertEqual(found_in(lambda text, x: call(text, x)[1], TEXTS, NUMBERS), [])

    def test_python_is_found_though_it_has_a_kernel_for_all_devices(self):
        self.assertEqual(found_in(lambda x: tf.numpy_function(abs, [x], tf.float32), NUMBERS)[0][0], "PyFunc")
        self.assertEqual(found_in(lambda x: tf.py_function(abs, [x], tf.float32), NUMBERS)[0][0], "EagerPyFunc")

    def test_reading_and_decoding_are_found(self):
        path = tf.TensorSpec([], tf.string)
        types = [name for name, _ in found_in(lambda path: tf.audio.decode_wav(tf.io.read_file(path))[0], path)]
        self.assertEqual(types, ["ReadFile", "DecodeWav"])

    def test_in_the_body_of_a_loop_and_its_condition(self):
        def loop(text):
            return tf.while_loop(
                lambda i, total: tf.reduce_sum(length(text)) > total, lambda i, total: (i + 1, total + 1.0), (0, 0.0)
            )

        self.assertEqual(found_in(loop, TEXTS), [("StringLength", "GPU kernel")])
        body = tf.function(lambda text: tf.map_fn(length, text, fn_output_signature=tf.float32))
        self.assertEqual(found_in(body, TEXTS)[-1], ("StringLength", "GPU kernel"))

    def test_in_a_branch_that_is_not_taken(self):
        def branch(text, x):
            return tf.cond(x[0] > 0.0, lambda: x[0], lambda: length(text)[0])

        self.assertIn(("StringLength", "GPU kernel"), found_in(branch, TEXTS, NUMBERS))

    def test_in_a_function_that_a_function_calls(self):
        inner = tf.function(length)
        outer = tf.function(lambda text: inner(text) + 1.0)
        found = audit_of(lambda text: outer(text) + 1.0, TEXTS).host_only
        self.assertEqual([one.type for one in found], ["StringLength"])
        self.assertIn("length", found[0].function)

    def test_in_the_gradient_alone(self):
        @tf.custom_gradient
        def scaled(x):
            return 2.0 * x, lambda upstream: tf.numpy_function(abs, [upstream], tf.float32)

        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(scaled(x))
            return tape.gradient(y, x)

        self.assertEqual(found_in(scaled, NUMBERS), [])
        self.assertEqual(found_in(gradient, NUMBERS), [("PyFunc", "GPU kernel")])

    def test_what_xla_compiles_needs_its_kernels_and_no_others(self):
        product = tf.function(lambda x: tf.matmul(x, x), jit_compile=True)
        self.assertEqual(found_in(product, WHOLE), [])
        self.assertEqual(found_in(lambda x: product(x) + 1, WHOLE), [])
        self.assertEqual(found_in(lambda x: tf.matmul(product(x), x), WHOLE), [("MatMul", "GPU kernel")])
        plain = tf.function(lambda x: tf.matmul(x, x))  # compiled with what calls it, and not alone
        self.assertEqual(found_in(lambda x: plain(x) + 1, WHOLE, xla=True), [])
        self.assertEqual(found_in(lambda x: plain(x) + 1, WHOLE), [("MatMul", "GPU kernel")])
        self.assertEqual(found_in(length, TEXTS, xla=True), [("StringLength", "XLA kernel")])


if __name__ == "__main__":
    unittest.main()
