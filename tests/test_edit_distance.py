"""Edit distance and error rates, by hand."""

import unittest
from functools import cache

import numpy as np

from myxtts.text.edit_distance import edit_distance, error_rate


def by_recursion(left, right):
    @cache
    def distance(i, j):
        if not i or not j:
            return i + j
        substituted = distance(i - 1, j - 1) + (left[i - 1] != right[j - 1])
        return min(substituted, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(left), len(right))


class EditDistance(unittest.TestCase):
    def test_of_known_pairs(self):
        for reference, heard, edits in (
            ("kitten", "sitting", 3),
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("ab", "ba", 2),
            ("სახლი", "სახელი", 1),
            (["a", "cat"], ["the", "cat", "sat"], 2),
        ):
            with self.subTest(reference=reference, heard=heard):
                self.assertEqual(edit_distance(reference, heard), edits)

    def test_is_that_of_the_definition(self):
        random = np.random.default_rng(0)
        for _ in range(100):
            left, right = ("".join(random.choice(list("abc"), random.integers(0, 9))) for _ in range(2))
            self.assertEqual(edit_distance(left, right), by_recursion(left, right), (left, right))


class ErrorRate(unittest.TestCase):
    def test_is_over_the_whole_corpus_and_not_a_mean_of_rates(self):
        self.assertEqual(error_rate([("a", "b"), ("abcdefghi", "abcdefghi")]), 0.1)

    def test_of_words(self):
        self.assertEqual(error_rate([(["one", "two", "three", "four"], ["one", "too", "three"])]), 0.5)

    def test_may_be_more_than_1(self):
        self.assertEqual(error_rate([("a", "bcd")]), 3.0)

    def test_needs_a_reference(self):
        for pairs in ([], [("", "abc")]):
            with self.assertRaises(ValueError):
                error_rate(pairs)


if __name__ == "__main__":
    unittest.main()
