"""CTC: feasible pairs of labels and frames, greedy and beam search decoding."""

import unittest
from itertools import groupby

import numpy as np
import tensorflow as tf

from myxtts.models.ctc_decoding import beam_search_decode, decoded_texts, greedy_decode
from myxtts.text.ctc_feasibility import frames_needed, subsampled_length
from myxtts.text.symbols import SymbolTable
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
    """Return the CTC loss; infinite where the labels do not fit, also where TensorFlow raises an error."""
    sparse = tf.sparse.from_dense(np.array([labels], np.int32))
    try:
        return tf.nn.ctc_loss(sparse, tf.zeros([9, 1, 6]), None, [frames], blank_index=0).numpy()[0]
    except tf.errors.InvalidArgumentError:
        return np.inf


class Feasibility(unittest.TestCase):
    def test_frames_needed_are_one_per_label_plus_one_between_equal_labels(self):
        for labels, frames in (([], 0), ([3], 1), ([3, 4], 2), ([3, 3], 3), ([3, 3, 3, 4, 4], 8), ([3, 4, 3], 3)):
            self.assertEqual(frames_needed(np.array(labels, np.int32)), frames, labels)

    def test_the_loss_is_finite_with_at_least_the_frames_needed(self):
        for labels in ([3], [3, 3], [3, 4, 4, 4]):
            fewest = frames_needed(np.array(labels))
            self.assertTrue(np.isfinite(loss_of(labels, fewest)), labels)
            self.assertFalse(np.isfinite(loss_of(labels, fewest - 1)), labels)

    def test_subsampled_length_is_rounded_up(self):
        self.assertEqual([subsampled_length(frames, 2) for frames in (0, 1, 2, 3)], [0, 1, 1, 2])
        np.testing.assert_array_equal(subsampled_length(np.arange(9), 4), [0, 1, 1, 1, 1, 2, 2, 2, 2])
        np.testing.assert_array_equal(
            subsampled_length(subsampled_length(tf.range(20), 2), 2), subsampled_length(tf.range(20), 4)
        )
        self.assertEqual(subsampled_length(7, 1), 7)


class Greedy(unittest.TestCase):
    def test_repeats_are_merged_and_blanks_removed(self):
        logits, frames = logits_of([3, 3, 0, 3, 4, 4, 5], [0, 0, 5], [0])
        self.assertEqual(decoded(greedy_decode, logits, frames), [[3, 3, 4, 5], [5], []])

    def test_frames_after_the_end_are_ignored(self):
        logits, _ = logits_of([3, 4, 5, 5], [3, 4, 0, 5])
        self.assertEqual(decoded(greedy_decode, logits, tf.constant([2, 0])), [[3, 4], []])

    def test_greedy_decoding_matches_the_definition(self):
        random = np.random.default_rng(0)
        paths = random.integers(0, 6, (20, 30))
        logits, _ = logits_of(*paths.tolist())
        frames = random.integers(0, 31, 20).astype(np.int32)
        expected = [
            [symbol for symbol, _ in groupby(path[:n]) if symbol != BLANK]
            for path, n in zip(paths.tolist(), frames, strict=True)
        ]
        self.assertEqual(decoded(greedy_decode, logits, tf.constant(frames)), expected)

    def test_no_rows_and_no_frames_have_no_symbols(self):
        self.assertEqual(decoded(greedy_decode, tf.zeros([0, 7, 6]), tf.zeros([0], tf.int32)), [])
        self.assertEqual(decoded(greedy_decode, tf.zeros([2, 0, 6]), tf.zeros([2], tf.int32)), [[], []])

    def test_is_traced_once_for_all_lengths(self):
        function = tf.function(
            greedy_decode, input_signature=[tf.TensorSpec([None, None, 6]), tf.TensorSpec([None], tf.int32)]
        )
        for paths in (([3, 4],), ([3, 0, 3], [4, 4, 4])):
            self.assertEqual(decoded(function, *logits_of(*paths)), decoded(greedy_decode, *logits_of(*paths)))
        self.assertEqual(function.experimental_get_tracing_count(), 1)


class Beam(unittest.TestCase):
    def test_confident_logits_decode_as_in_greedy_decoding(self):
        logits, frames = logits_of([3, 3, 0, 3, 4, 4, 5], [0, 0, 5], [0])
        self.assertEqual(decoded(beam_search_decode, logits, frames, width=4), decoded(greedy_decode, logits, frames))

    def test_probabilities_of_all_paths_of_a_text_are_added(self):
        """Two frames with P(blank) = 0.6 and P(a) = 0.4: silence has 0.36, `a` 0.64 by three paths (Graves 2012)."""
        probability = np.full([1, 2, 6], 1e-9, np.float32)
        probability[..., [0, 3]] = 0.6, 0.4
        logits, frames = tf.constant(np.log(probability)), tf.constant([2])
        self.assertEqual(decoded(greedy_decode, logits, frames), [[]])
        self.assertEqual(decoded(beam_search_decode, logits, frames, width=4), [[3]])

    def test_frames_after_the_end_are_ignored(self):
        logits, _ = logits_of([3, 4, 5, 5], [3, 4, 0, 5])
        self.assertEqual(decoded(beam_search_decode, logits, tf.constant([2, 0]), width=4), [[3, 4], []])


class Texts(unittest.TestCase):
    def test_begin_end_and_padding_are_left_out(self):
        ids, counts = tf.constant([[1, 3, 4, 2], [5, 5, 0, 3], [0, 0, 0, 0]]), tf.constant([4, 2, 0])
        self.assertEqual(decoded_texts(ids, counts, TABLE), ["ab", "cc", ""])


if __name__ == "__main__":
    unittest.main()
