"""Edit distance and error rates, checked by hand."""

import unittest
from functools import cache

import numpy as np

from myxtts.text.edit_distance import edit_distance, error_rate


def recursive_edit_distance(left, right):
    @cache
    def distance(i, j):
        if not i or not j:
            return i + j
        substituted = distance(i - 1, j - 1) + (left[i - 1] != right[j - 1])
        return min(substituted, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(left), len(right))


class EditDistance(unittest.TestCase):
    def test_known_pairs_have_the_known_distances(self):
        for reference, hypothesis, edits in (
            *(("kitten", "sitting", 3), ("", "", 0), ("", "abc", 3), ("abc", "", 3)),
            *(("abc", "abc", 0), ("ab", "ba", 2), ("სახლი", "სახელი", 1)),
            (["a", "cat"], ["the", "cat", "sat"], 2),
        ):
            with self.subTest(reference=reference, hypothesis=hypothesis):
                self.assertEqual(edit_distance(reference, hypothesis), edits)

    def test_matches_the_recursive_definition(self):
        random = np.random.default_rng(0)
        for _ in range(100):
            left, right = (
                "".join(random.choice(list("abc"), random.integers(0, 9))) for _ in range(2)
            )
            actual = edit_distance(left, right)
            self.assertEqual(actual, recursive_edit_distance(left, right), (left, right))


class ErrorRate(unittest.TestCase):
    def test_edits_and_lengths_are_summed_over_all_pairs(self):
        for pairs, expected in (
            ([("a", "b"), ("abcdefghi", "abcdefghi")], 0.1),
            ([(["one", "two", "three", "four"], ["one", "too", "three"])], 0.5),
            ([("a", "bcd")], 3.0),
        ):
            self.assertEqual(error_rate(pairs), expected)

    def test_empty_references_are_an_error(self):
        for pairs in ([], [("", "abc")]):
            with self.assertRaises(ValueError):
                error_rate(pairs)
