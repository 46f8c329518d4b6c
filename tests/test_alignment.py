"""Monotonic alignment search against a plain reference implementation, and durations."""

import re
import unittest
from functools import cache

import numpy as np
import tensorflow as tf

from myxtts.tasks.tts import alignment
from myxtts.tasks.tts.alignment import gather_rows, search_by_blocks, search_by_frames
from tests.tiny import alignment_rows
from tests.two_devices import DATA, MODEL

SHAPES = ((1, 1), (6, 6), (9, 4), (40, 13), (57, 57))  # frames and tokens


def reference_path(score):
    """Return the best monotonic path through float [frames, tokens], by float64 programming."""
    frames, tokens = score.shape
    best = np.full((frames, tokens), -np.inf)
    best[0, 0] = score[0, 0]
    for t in range(1, frames):
        for n in range(tokens):
            advance = best[t - 1, n - 1] if n else -np.inf
            best[t, n] = max(best[t - 1, n], advance) + score[t, n]
    path, n = np.zeros(frames, int), tokens - 1
    for t in range(frames - 1, -1, -1):
        path[t] = n
        if t and n and best[t - 1, n - 1] > best[t - 1, n]:
            n -= 1
    return path


def search(score, token_count, frames, device=MODEL, function=search_by_frames):
    with tf.device(device):
        return function(tf.constant(score), tf.constant(token_count), tf.constant(frames)).numpy()


@cache
def compiled(function):
    return tf.function(function, jit_compile=True)


class Path(unittest.TestCase):
    def test_matches_the_reference_implementation_for_random_shapes(self):
        for seed, shape in enumerate(SHAPES):
            score, token_count, frames = alignment_rows(seed, *shape, ties=seed % 2 == 1)
            path = search(score, token_count, frames)
            for row in range(15):
                with self.subTest(shape=shape, row=row):
                    real = score[row, : frames[row], : token_count[row]].astype(np.float64)
                    np.testing.assert_array_equal(path[row, : frames[row]], reference_path(real))
                    np.testing.assert_array_equal(path[row, frames[row] :], -1)
            np.testing.assert_array_equal(path[15], -1)

    def test_searching_by_blocks_finds_the_same_path_bit_for_bit(self):
        # Blocks have 8 frames.
        for seed, shape in enumerate((*SHAPES, (8, 3), (9, 3), (10, 3), (90, 40))):
            with self.subTest(shape=shape):
                rows = alignment_rows(seed, *shape, ties=seed % 2 == 0)
                path = search(*rows, function=search_by_blocks)
                np.testing.assert_array_equal(path, search(*rows))

    def test_searches_that_xla_compiles_find_the_same_path_bit_for_bit(self):
        for ties in (False, True):
            rows = alignment_rows(7, 150, 4, ties)
            for function in (search_by_frames, search_by_blocks):
                with self.subTest(function=function.__name__, ties=ties):
                    path = search(*rows, function=compiled(function))
                    np.testing.assert_array_equal(path, search(*rows))

    def test_xla_knows_how_often_each_loop_runs(self):
        """Otherwise each iteration waits for the host. XLA tries up to 128 of any loop."""
        for function, loops in ((search_by_frames, [149, 150]), (search_by_blocks, [8, 19])):
            with self.subTest(function=function.__name__):
                arguments = [tf.constant(rows) for rows in alignment_rows(0, 150, 4)]
                intermediate = compiled(function).experimental_get_compiler_ir(*arguments)
                program = intermediate(stage="optimized_hlo")
                self.assertEqual(len(re.findall(r" while\(", program)), 2)
                counts = re.findall(r'"known_trip_count":{"n":"(\d+)"', program)
                self.assertEqual(sorted(map(int, counts)), loops)

    def test_matches_a_path_worked_out_by_hand(self):
        likely = [0, 0, 1, 1, 1, 2]
        score = np.full((1, 6, 3), -1.0, np.float32)
        score[0, range(6), likely] = 0.0
        self.assertEqual(search(score, [3], [6]).tolist(), [likely])

    def test_no_token_is_skipped_even_if_it_is_unlikely(self):
        score = np.zeros((1, 5, 3), np.float32)
        score[0, :, 1] = -1e6
        durations = np.bincount(search(score, [3], [5])[0])
        self.assertEqual((durations[1], durations.sum()), (1, 5))

    def test_neither_padding_nor_the_device_changes_the_path(self):
        score = np.random.default_rng(0).normal(size=(2, 10, 6)).astype(np.float32)
        changed, counts = score.copy(), ([4, 3], [7, 10])
        changed[0, 7:] = changed[0, :, 4:] = changed[1, 10:] = changed[1, :, 3:] = 1e4
        np.testing.assert_array_equal(search(score, *counts), search(changed, *counts))
        np.testing.assert_array_equal(search(score, *counts), search(score, *counts, DATA))


class Durations(unittest.TestCase):
    def test_durations_count_the_frames_of_each_token(self):
        path = tf.constant([[0, 0, 1, 2, 2, 2], [0, 1, -1, -1, -1, -1], [-1, -1, -1, -1, -1, -1]])
        actual = alignment.durations_of_path(path, 4).numpy().tolist()
        self.assertEqual(actual, [[2, 1, 3, 0], [1, 1, 0, 0], [0, 0, 0, 0]])


class Frames(unittest.TestCase):
    def test_path_from_ends_inverts_durations(self):
        path = alignment.path_from_ends(
            tf.constant([[2, 3, 3], [1, 2, 5]]), tf.constant([2, 3]), 6
        ).numpy()
        self.assertEqual(path.tolist(), [[0, 0, 1, -1, -1, -1], [0, 1, 2, 2, 2, -1]])
        actual = alignment.durations_of_path(path, 3).numpy().tolist()
        self.assertEqual(actual, [[2.0, 1.0, 0.0], [1.0, 1.0, 3.0]])

    def test_gathered_rows_are_zero_at_index_minus_1(self):
        rows = gather_rows(tf.constant([[[1.0], [2.0]]]), tf.constant([[1, 1, 0, -1]])).numpy()
        self.assertEqual(rows[0, :, 0].tolist(), [2.0, 2.0, 1.0, 0.0])

    def test_gathered_rows_have_the_gradient_of_tensorflow_bit_for_bit(self):
        random = np.random.default_rng(0)
        values = tf.constant(random.normal(size=(3, 5, 7)), tf.float32)
        index = tf.constant(random.integers(-1, 5, (3, 40)))
        weights = tf.constant(random.normal(size=(3, 40, 7)), tf.float32)

        def reference(x, i):
            real = tf.cast(i >= 0, tf.float32)[:, :, None]
            return tf.gather(x, tf.maximum(i, 0), batch_dims=1) * real

        gradients = []
        for gather in (gather_rows, reference):
            with tf.GradientTape() as tape:
                tape.watch(values)
                result = gather(values, index) * weights
            gradients.append(
                [result.numpy(), np.array(tf.convert_to_tensor(tape.gradient(result, values)))]
            )
        np.testing.assert_equal(*gradients)

    def test_positions_in_a_segment_equal_positions_in_the_whole_utterance(self):
        path, frame = tf.constant([[0, 0, 1, 1, 1, 1, 2, -1]]), tf.range(8)[None]
        durations = alignment.durations_of_path(path, 3)
        whole = alignment.position_in_token(path, frame, durations).numpy()
        elapsed = [0.25, 0.75, 0.125, 0.375, 0.625, 0.875, 0.5, 0.0]
        np.testing.assert_allclose(whole[0, :, 0], elapsed)
        np.testing.assert_allclose(whole[0, :, 1], np.log([2, 2, 4, 4, 4, 4, 1, 1]), rtol=1e-6)
        segment = alignment.position_in_token(path[:, 3:6], frame[:, 3:6], durations)
        np.testing.assert_array_equal(segment, whole[:, 3:6])

    def test_a_random_segment_has_real_frames_and_any_start(self):
        frames, starts = tf.constant([24, 6, 0]), set()
        for seed in range(200):
            frame = alignment.random_segment(frames, 24, 8, tf.constant([seed, 0])).numpy()
            starts.add(int(frame[0, 0]))
            self.assertEqual((frame[0] - frame[0, 0]).tolist(), list(range(8)))
            self.assertEqual(frame[1:].tolist(), [[0, 1, 2, 3, 4, 5, -1, -1], [-1] * 8])
        self.assertEqual(starts, set(range(17)))
        self.assertEqual(alignment.random_segment(frames, 5, 8, tf.constant([0, 0])).shape, (3, 5))
