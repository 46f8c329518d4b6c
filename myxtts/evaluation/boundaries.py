"""Phoneme boundaries that the alignment search found against those that a synthesiser knows. Free of TensorFlow."""

import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.errors import DataError
from myxtts.text.frontend import PUNCTUATION, STRESS_AND_LENGTH

NEAR_MS = 20.0
LENGTH = "ː"  # Persian vowels have it in the text's phonemes and not in the synthesiser's events
AFFRICATES = "tʃ", "dʒ", "ts", "dz", "tɕ", "dʑ"
CLASSES = {
    "stop": "pbtdkɡgqɢcɟʔʈɖ",
    "fricative": "fvθðszʃʒxɣhɦχʁçʝħʕɕʑβɸ",
    "nasal": "mnŋɲɳɱɴ",
    "approximant": "lɹrjwɾʋɫɭʎɻɰ",
}
# Between two sounds: those of which 85 % or more are seen within 10 ms of their told times, both in 1,200 utterances of
# 8 voices in 3 languages and in 400 of one voice (benchmarks/phoneme_times.py; docs/reference/evaluation.md).
SOUND_BETWEEN = {
    "vowel": ("stop", "affricate", "fricative", "nasal"),
    "fricative": ("vowel", "stop", "fricative", "nasal", "approximant"),
    "nasal": ("stop", "affricate", "fricative", "nasal", "approximant"),
    "stop": ("stop",),
    "approximant": ("fricative",),
}
KINDS = "onset", "offset", "between"


class Phoneme(NamedTuple):
    """What is heard from `start_s` to `end_s`; "" is silence and " " the gap between two words."""

    symbol: str
    start_s: float
    end_s: float


class Boundary(NamedTuple):
    """Where a phoneme or silence ends and the next begins.

    Attributes:
        left, right: their classes, see `class_of`.
        true_s: by the synthesiser.
        token, behind: the first token after it in the text, or where `behind` the one that ends with it.
    """

    left: str
    right: str
    true_s: float
    token: int
    behind: bool

    @property
    def kind(self) -> str:
        """One of KINDS: a sound after silence, silence after a sound, or a sound after another."""
        return "onset" if self.left == "silence" else "offset" if self.right == "silence" else "between"

    @property
    def sound(self) -> bool:
        """Whether the synthesiser's time has been shown to be right. The closure of a stop is silent, too."""
        if self.kind == "between":
            return self.right in SOUND_BETWEEN.get(self.left, ())
        return self.left != "stop"


def read_alignments(file: Path) -> dict[str, list[Phoneme]]:
    """The phonemes of each utterance.

    Args:
        file: JSON lines of the form {"id": …, "phonemes": [[symbol, start_s, end_s], …]}, gapless.

    Raises:
        DataError: the file cannot be read, or a line is not of this form or no UTF-8.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}. Name a corpus that has it.") from error
    alignments = {}
    for number, line in enumerate(lines, 1):
        try:
            utterance = json.loads(line)
            phonemes = [Phoneme(str(symbol), float(start), float(end)) for symbol, start, end in utterance["phonemes"]]
            alignments[str(utterance["id"])] = phonemes
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f'{file}, line {number}: {{"id": …, "phonemes": [[symbol, start_s, end_s], …]}} is needed, but '
                f"it cannot be read so ({error!r}). Mend it, or take the file away to leave boundaries out."
            ) from error
    return alignments


def class_of(symbol: str) -> str:
    """silence, vowel, affricate, or a key of CLASSES."""
    letters = symbol.strip(STRESS_AND_LENGTH + " ")
    if not letters:
        return "silence"
    if letters.startswith(AFFRICATES):
        return "affricate"
    return next((name for name, members in CLASSES.items() if letters[0] in members), "vowel")


def word_spans(phonemes: Sequence[Phoneme]) -> list[tuple[float, float]]:
    """Where each word begins and ends, in seconds."""
    spans: list[tuple[float, float]] = []
    inside = False
    for symbol, start_s, end_s in phonemes:
        if inside and symbol.strip():
            spans[-1] = spans[-1][0], end_s
        elif symbol.strip():
            spans.append((start_s, end_s))
        inside = bool(symbol.strip())
    return spans


def boundaries(spelling: Sequence[str], phonemes: Sequence[Phoneme]) -> list[Boundary] | None:
    """The boundaries of which the text has one, too; None where it does not spell these phonemes.

    Left out are phonemes of 0 s, which the synthesiser merges with a neighbour, and gaps of 0 s between words, whose
    token lasts a frame at least.

    Args:
        spelling: the symbol of each token, "" for the begin and the end.
        phonemes: of the recording.
    """
    heard = [phoneme for phoneme in phonemes if phoneme.symbol.strip()]
    tokens = _tokens_of(spelling, [phoneme.symbol for phoneme in heard])
    return None if tokens is None or not heard else list(_boundaries(heard, tokens))


def found_s(path: np.ndarray, boundary: Boundary) -> float:
    """Where the search puts a boundary; `path` is int [frames], ascending: the token of each frame."""
    return np.searchsorted(path, boundary.token + boundary.behind) * HOP_SAMPLES / SAMPLE_RATE_HZ


def boundary_figures(name: str, errors_ms: Sequence[float]) -> dict[str, float]:
    """Signed and absolute median and share within 20 ms of errors, found minus true; at least one."""
    return {
        f"{name}_signed_median": float(np.median(errors_ms)),
        f"{name}_absolute_median": float(np.median(np.abs(errors_ms))),
        f"{name}_within_20_ms": float(np.mean(np.abs(errors_ms) <= NEAR_MS)),
    }


def _tokens_of(spelling: Sequence[str], symbols: Sequence[str]) -> list[tuple[int, int]] | None:
    """First and last token of each symbol; None where the letters differ."""
    letters = [
        (letter, token)
        for token, symbol in enumerate(spelling)
        if symbol not in PUNCTUATION
        for letter in symbol
        if letter not in (" ", LENGTH)
    ]
    parts = [unicodedata.normalize("NFC", symbol).replace(LENGTH, "") for symbol in symbols]
    if "".join(letter for letter, _ in letters) != "".join(parts) or not all(parts):
        return None
    ends = np.cumsum([len(part) for part in parts])
    spans = [(letters[end - len(part)][1], letters[end - 1][1]) for end, part in zip(ends, parts, strict=True)]
    return [(first, last + (spelling[last + 1] == LENGTH)) for first, last in spans]


def _boundaries(heard: Sequence[Phoneme], tokens: Sequence[tuple[int, int]]) -> Iterator[Boundary]:
    classes = [class_of(phoneme.symbol) for phoneme in heard]
    yield Boundary("silence", classes[0], heard[0].start_s, tokens[0][0], False)
    for at in range(len(heard) - 1):
        left, right = heard[at], heard[at + 1]
        if left.end_s == left.start_s or right.end_s == right.start_s:
            continue
        adjoin = tokens[at][1] + 1 == tokens[at + 1][0]
        if adjoin and right.start_s == left.end_s:
            yield Boundary(classes[at], classes[at + 1], right.start_s, tokens[at + 1][0], False)
        elif not adjoin and right.start_s > left.end_s:
            yield Boundary(classes[at], "silence", left.end_s, tokens[at][1], True)
            yield Boundary("silence", classes[at + 1], right.start_s, tokens[at + 1][0], False)
    yield Boundary(classes[-1], "silence", heard[-1].end_s, tokens[-1][1], True)
