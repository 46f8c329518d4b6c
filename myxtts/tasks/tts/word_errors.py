"""Words that speech leaves out or says again, found by forced alignment to its text."""

from collections.abc import Sequence

import numpy as np

from myxtts.text.symbols import BLANK_ID
from myxtts.text.words import words_of_symbols

# Least gains, in nats, for a word to count as left out, and as repeated. What both find and miss is
# in docs/experiments/evaluation_metrics.md.
MIN_GAINS = (10.0, 40.0)
NO_PATH = -1e30


def split_words(symbols: Sequence[str], tokens: np.ndarray) -> list[np.ndarray]:
    """Return the tokens of each word, with the spaces and marks behind it, of a text's symbols.

    Words of one sound are joined to the next one: an "a" lasts 50 ms, and nobody can tell whether a
    Russian "s" was said before another s. The first and the last item are the tokens of begin and
    end, int [N]; the others have a word.
    """
    starts, sounds = [0], 0
    for word in words_of_symbols(symbols):
        if sounds > 1:
            starts.append(word.phonemes[0].first)
            sounds = 0
        sounds += len(word.phonemes)
    # A last word of one sound is joined to the one before.
    if sounds < 2 and len(starts) > 1:
        starts.pop()
    return np.split(tokens, [*(1 + start for start in starts), len(tokens) - 1])


# The text is changed until no change fits the speech better: the word whose removal or repetition
# gains most beyond its threshold is removed or doubled, and all gains are computed again.
def count_word_errors(log_probs: np.ndarray, words: Sequence[np.ndarray]) -> tuple[int, int]:
    """Return how many words speech leaves out, and how many it repeats.

    Arguments as in `word_gains`. Speech with fewer frames than tokens says nothing.
    """
    if sum(map(len, words)) > len(log_probs):
        return len(words) - 2, 0
    words, counts = list(words), [0, 0]
    # One change at a time: the neighbours of a word that is left out seem to be left out as well.
    while len(words) > 2:
        excess = word_gains(log_probs, words) - np.array(MIN_GAINS)[:, None]
        repeats, index = np.unravel_index(excess.argmax(), excess.shape)
        if excess[repeats, index] <= 0.0:
            break
        words[index + 1 : index + 2] = [words[index + 1]] * int(2 * repeats)
        counts[repeats] += 1
    return counts[0], counts[1]


def word_gains(log_probs: np.ndarray, words: Sequence[np.ndarray]) -> np.ndarray:
    """Return by how many nats speech fits its text better without each word, and with it twice.

    Log-probabilities of tokens in frames, [T, columns], where column BLANK_ID is of what may stand
    between any two of them, and the columns of each word, int [N], see `split_words` -> float [2,
    words between the first and the last item].
    """
    until, since = word_paths(log_probs, words)
    # The words before a cut, then those behind it.
    total = (until + since).max(axis=0).max()
    left_out = (until[:, 1:-2] + since[:, 2:-1]).max(axis=0)
    repeated = (until[:, 2:-1] + since[:, 1:-2]).max(axis=0)
    return np.stack([left_out, repeated]) - total


def word_paths(log_probs: np.ndarray, words: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return `path_log_probs` of the words until each, and from each on; [T + 1, words + 1]."""
    until = path_log_probs(log_probs, words)
    since = path_log_probs(log_probs[::-1], [word[::-1] for word in words[::-1]])
    return until, since[::-1, ::-1]


# States are the tokens of all words, with a blank before each and behind the last. `score` has the
# best path to each state, behind two columns: nothing, and the start. In each frame a path stays,
# advances, or skips a blank. After each frame, the better of the two states at the end of each word
# is kept: its last token, or the blank behind.
def path_log_probs(log_probs: np.ndarray, words: Sequence[np.ndarray]) -> np.ndarray:
    """Return the log-probability of the first words in the first frames, [T + 1, words + 1].

    Of the likeliest path, as CTC has them (Graves et al. 2006), by the recursion of Viterbi (1967);
    NO_PATH or less where the words need more frames. Arguments as in `word_gains`.
    """
    labels = np.concatenate([np.zeros(0, int), *words])
    states = np.full(2 * len(labels) + 1, BLANK_ID)
    states[1::2] = labels
    # A path may skip the first blank, and the blank between two different labels.
    may_skip = np.full(len(states), False)
    may_skip[1::2] = np.diff(labels, prepend=BLANK_ID) != 0

    score = np.full(len(states) + 2, NO_PATH)
    score[1] = 0.0
    ends = 2 * np.cumsum([0, *map(len, words)])
    until = [np.maximum(score[ends + 2], score[ends + 1])]
    for frame in log_probs:
        skipped = np.where(may_skip, score[:-2], NO_PATH)
        score[2:] = np.maximum(np.maximum(score[2:], score[1:-1]), skipped) + frame[states]
        score[1] = NO_PATH
        until.append(np.maximum(score[ends + 2], score[ends + 1]))
    return np.stack(until)
