"""CTC: feasible labels, the loss on CPU and GPU, greedy and beam search decoding."""

import unittest
from itertools import groupby

import numpy as np
import tensorflow as tf

from fakes.copies import find_copies
from myxtts.corpus.manifest import LengthRule
from myxtts.tasks.asr import ctc
from myxtts.tasks.asr.ctc import beam_search_decode, decoded_texts, emissions, greedy_decode
from myxtts.text.symbols import SymbolTable, subsampled_length
from myxtts.trial.preflight.kernels import audit
from tests.two_devices import MODEL

TABLE = SymbolTable(("a", "b", "c"))  # ids 3, 4, 5
BLANK = 0


def logits_of(*rows, symbols=6):
    """Return logits whose most likely symbols are `rows`."""
    padded = max(map(len, rows))
    logits = np.zeros([len(rows), padded, symbols], np.float32)
    for row, path in enumerate(rows):
        logits[row, np.arange(len(path)), path] = 5.0
    return tf.constant(logits), tf.constant([len(path) for path in rows])


def decoded(decode, logits, frames, **options):
    with tf.device(MODEL):
        ids, counts = decode(logits, frames, **options)
    return [row[:count].tolist() for row, count in zip(ids.numpy(), counts.numpy(), strict=True)]


def loss_of(labels, frames):
    """Return the CTC loss; infinite where labels do not fit or TensorFlow raises an error."""
    sparse = tf.sparse.from_dense(np.array([labels], np.int32))
    try:
        return tf.nn.ctc_loss(sparse, tf.zeros([9, 1, 6]), None, [frames], blank_index=0).numpy()[0]
    except tf.errors.InvalidArgumentError:
        return np.inf


class Feasibility(unittest.TestCase):
    def test_frames_needed_are_one_per_label_plus_one_between_equal_labels(self):
        cases = {(): 0, (3,): 1, (3, 4): 2, (3, 3): 3, (3, 3, 3, 4, 4): 8, (3, 4, 3): 3}
        for labels, frames in cases.items():
            self.assertEqual(LengthRule(ctc=True).frames_needed(labels), frames, labels)

    def test_the_loss_is_finite_with_at_least_the_frames_needed(self):
        for labels in ([3], [3, 3], [3, 4, 4, 4]):
            fewest = int(LengthRule(ctc=True).frames_needed(labels))
            self.assertTrue(np.isfinite(loss_of(labels, fewest)), labels)
            self.assertFalse(np.isfinite(loss_of(labels, fewest - 1)), labels)

    def test_subsampled_length_is_rounded_up(self):
        self.assertEqual([subsampled_length(frames, 2) for frames in (0, 1, 2, 3)], [0, 1, 1, 2])
        by_4 = subsampled_length(tf.range(20), 4)
        np.testing.assert_array_equal(by_4[:9], [0, 1, 1, 1, 1, 2, 2, 2, 2])
        by_2 = subsampled_length(tf.range(20), 2)
        np.testing.assert_array_equal(subsampled_length(by_2, 2), by_4)
        self.assertEqual(subsampled_length(7, 1), 7)


def long_rows(*counts, frames=340, symbols=20):
    """Return random logits, frames, labels and counts: the first row has fewer frames."""
    rng, rows = np.random.default_rng(0), len(counts)
    labels = rng.integers(1, symbols, (rows, max(counts)))
    labels[np.arange(max(counts)) >= np.array(counts)[:, None]] = BLANK
    logits = tf.constant(rng.normal(0, 3, (rows, frames, symbols)), tf.float32)
    real_frames = tf.constant([frames - 20] + [frames] * (rows - 1))
    return logits, real_frames, tf.constant(labels, tf.int32), tf.constant(counts)


def losses_and_gradient(function, logits, *rest):
    @tf.function
    def compute(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = function(logits, *rest)
        return losses, tape.gradient(losses, logits)

    with tf.device(MODEL):
        losses, gradient = compute(logits)
    return losses.numpy(), tf.convert_to_tensor(gradient).numpy()


class Loss(unittest.TestCase):
    def test_recursion_equals_the_kernel(self):
        rows = long_rows(30, 1, 17, frames=60)
        losses, gradient = losses_and_gradient(ctc.ctc_losses, *rows)
        again, again_gradient = losses_and_gradient(ctc.ctc_losses_by_recursion, *rows)
        np.testing.assert_allclose(again, losses, rtol=1e-5)
        np.testing.assert_allclose(again_gradient, gradient, atol=1e-3)
        self.assertTrue(np.all(again_gradient[0, 40:] == 0.0))

    def test_losses_sum_over_all_paths(self):
        """Two frames, 4 equal symbols: `a` has the paths a-, -a, aa: 3/16; `ab` has ab: 1/16."""
        rows = tf.constant([2, 2]), tf.constant([[3, 0], [3, 2]]), tf.constant([1, 2])
        for function in (ctc.ctc_losses, ctc.ctc_losses_by_recursion):
            losses = function(tf.zeros([2, 2, 4]), *rows)
            np.testing.assert_allclose(losses, -np.log([3 / 16, 1 / 16]), rtol=1e-6)

    def test_on_a_gpu_all_operations_have_kernels_and_the_host_waits_once(self):
        def gradient(*rows):
            with tf.device("/GPU:0"), tf.GradientTape() as tape:
                tape.watch(rows[0])
                losses = ctc.ctc_losses(*rows)
            return losses, tf.convert_to_tensor(tape.gradient(losses, rows[0]))

        counts, labels = (tf.TensorSpec([None] * rank, tf.int32) for rank in (1, 2))
        logits = tf.TensorSpec([None, None, 20])
        function = tf.function(gradient).get_concrete_function(logits, counts, labels, counts)
        self.assertEqual(audit(function).host_only, ())
        to_host = [copy for copy in find_copies(function) if copy.to_host]
        # TensorFlow's own.
        self.assertLessEqual(len([copy for copy in to_host if "cond/" not in copy.tensor]), 1)
        self.assertEqual({copy.consumer for copy in to_host if copy.in_loop}, {"LoopCond"})


class Greedy(unittest.TestCase):
    def test_repeats_are_merged_and_blanks_removed(self):
        logits, frames = logits_of([3, 3, 0, 3, 4, 4, 5], [0, 0, 5], [0])
        self.assertEqual(decoded(greedy_decode, logits, frames), [[3, 3, 4, 5], [5], []])

    def test_frames_after_the_end_are_ignored(self):
        logits, _ = logits_of([3, 4, 5, 5], [3, 4, 0, 5])
        self.assertEqual(decoded(greedy_decode, logits, tf.constant([2, 0])), [[3, 4], []])

    def test_a_symbol_begins_in_its_first_frame(self):
        logits, _ = logits_of([3, 3, 0, 3, 4, 4, 5, 5])
        begins = emissions(logits, tf.constant([7]))[1].numpy()
        self.assertEqual(np.flatnonzero(begins).tolist(), [0, 3, 4, 6])

    def test_greedy_decoding_matches_the_definition(self):
        random = np.random.default_rng(0)
        paths = random.integers(0, 6, (20, 30))
        logits, _ = logits_of(*paths.tolist())
        frames = random.integers(0, 31, 20).astype(np.int32)
        merged = [groupby(path[:n]) for path, n in zip(paths.tolist(), frames, strict=True)]
        expected = [[symbol for symbol, _ in row if symbol != BLANK] for row in merged]
        self.assertEqual(decoded(greedy_decode, logits, tf.constant(frames)), expected)

    def test_no_rows_and_no_frames_have_no_symbols(self):
        self.assertEqual(decoded(greedy_decode, tf.zeros([0, 7, 6]), tf.zeros([0], tf.int32)), [])
        actual = decoded(greedy_decode, tf.zeros([2, 0, 6]), tf.zeros([2], tf.int32))
        self.assertEqual(actual, [[], []])

    def test_is_traced_once_for_all_lengths(self):
        specs = tf.TensorSpec([None, None, 6]), tf.TensorSpec([None], tf.int32)
        function = tf.function(greedy_decode, input_signature=specs)
        for paths in (([3, 4],), ([3, 0, 3], [4, 4, 4])):
            actual = decoded(function, *logits_of(*paths))
            self.assertEqual(actual, decoded(greedy_decode, *logits_of(*paths)))
        self.assertEqual(function.experimental_get_tracing_count(), 1)


class Beam(unittest.TestCase):
    def test_confident_logits_decode_as_in_greedy_decoding(self):
        logits, frames = logits_of([3, 3, 0, 3, 4, 4, 5], [0, 0, 5], [0])
        actual = decoded(beam_search_decode, logits, frames, width=4)
        self.assertEqual(actual, decoded(greedy_decode, logits, frames))

    def test_probabilities_of_all_paths_of_a_text_are_added(self):
        """Two frames, P(blank) = 0.6, P(a) = 0.4: silence 0.36, `a` 0.64 (Graves 2012)."""
        probability = np.full([1, 2, 6], 1e-9, np.float32)
        probability[..., [0, 3]] = 0.6, 0.4
        logits, frames = tf.constant(np.log(probability)), tf.constant([2])
        self.assertEqual(decoded(greedy_decode, logits, frames), [[]])
        self.assertEqual(decoded(beam_search_decode, logits, frames, width=4), [[3]])

    def test_frames_after_the_end_are_ignored(self):
        logits, _ = logits_of([3, 4, 5, 5], [3, 4, 0, 5])
        actual = decoded(beam_search_decode, logits, tf.constant([2, 0]), width=4)
        self.assertEqual(actual, [[3, 4], []])


class Texts(unittest.TestCase):
    def test_begin_end_and_padding_are_left_out(self):
        ids = tf.constant([[1, 3, 4, 2], [5, 5, 0, 3], [0, 0, 0, 0]])
        self.assertEqual(decoded_texts(ids, tf.constant([4, 2, 0]), TABLE), ["ab", "cc", ""])
