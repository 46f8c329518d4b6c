"""Words left out and repeated: likeliest paths against all paths, and speech with known errors."""

import itertools
import unittest
from unittest import mock

import numpy as np

from myxtts.tasks.tts.word_errors import NO_PATH, count_word_errors, path_log_probs, split_words

TEXT = "ab cd, bef gab."
BEGIN = 1
IDS = {symbol: number for number, symbol in enumerate(dict.fromkeys(TEXT), start=2)}
END = len(IDS) + 2


def tokens_of(text: str) -> np.ndarray:
    """Return the columns of begin, symbols and end."""
    return np.array([BEGIN, *(IDS[symbol] for symbol in text), END])


def speak(text: str) -> np.ndarray:
    """Return log-probabilities by a recogniser that is sure of each symbol and of blanks."""
    random = np.random.default_rng(0)
    tokens = tokens_of(text)
    ids = np.zeros(4 * len(tokens) + 1, int)
    ids[1::4] = tokens
    logits = random.normal(0.0, 0.5, (len(ids), END + 1))
    logits[np.arange(len(ids)), ids] += 8.0
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


class PathTest(unittest.TestCase):
    def test_the_likeliest_path_is_that_of_all_paths(self):
        log_probs = np.log(np.random.default_rng(0).dirichlet(np.ones(3), 4))
        by_text = {}
        for path in itertools.product(range(3), repeat=4):
            text = tuple(symbol for symbol, _ in itertools.groupby(path) if symbol)
            value = sum(log_probs[frame, symbol] for frame, symbol in enumerate(path))
            by_text[text] = max(value, by_text.get(text, NO_PATH))
        for text, expected in by_text.items():
            (last,) = path_log_probs(log_probs, [np.array(text, int)])[-1, 1:]
            self.assertAlmostEqual(last, expected, msg=str(text))
        (impossible,) = path_log_probs(log_probs, [np.array([1, 1, 1])])[-1, 1:]
        self.assertLessEqual(impossible, NO_PATH)


class WordErrorTest(unittest.TestCase):
    def test_spaces_and_words_of_one_sound_belong_to_a_neighbour(self):
        for text, lengths in (
            *((TEXT, [3, 4, 4, 4]), ("ab", [2]), (",ab cd", [4, 2]), ("a", [1])),
            *(("ab c de g.", [3, 7]), ("ab c", [4])),
        ):
            words = split_words(text, tokens_of(text))
            self.assertEqual(list(map(len, words)), [1, *lengths, 1])

    @mock.patch("myxtts.tasks.tts.word_errors.MIN_GAINS", (10.0, 10.0))
    def test_words_left_out_and_repeated_are_counted(self):
        words = split_words(TEXT, tokens_of(TEXT))
        for spoken, expected in (
            *((TEXT, (0, 0)), ("ab bef gab.", (1, 0)), ("cd, bef gab.", (1, 0))),
            *(("ab cd, bef.", (1, 0)), ("ab gab.", (2, 0)), ("gab.", (3, 0))),
            *(("ab cd, bef bef gab.", (0, 1)), ("ab ab cd, bef gab gab.", (0, 2))),
            ("", (4, 0)),
        ):
            with self.subTest(spoken=spoken):
                self.assertEqual(count_word_errors(speak(spoken), words), expected)
