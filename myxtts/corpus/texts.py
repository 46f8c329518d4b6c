"""Texts without recordings for a teacher to speak, and the rows that it speaks. No TensorFlow.

What comes in is a file of sentences, read once at the start of a run. Then, in the threads that
make the arrays of planned batches, `TeacherRows.replace` overwrites the last rows of each batch:
another voice, and perhaps another text of similar length. What goes out are the changed arrays.
"""

import hashlib
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.base.errors import DataError
from myxtts.base.files import decode_text
from myxtts.corpus.build import MAX_TEXT_CHARACTERS
from myxtts.corpus.manifest import Manifest, Vocabulary
from myxtts.text.frontend import TextFrontend
from myxtts.text.languages import choose_language

MAX_LENGTH_RATIO = 1.25

log = logging.getLogger(__name__)


def teacher_row_count(rows: Any, fraction: float) -> Any:
    """Return how many of the last rows of a batch a teacher speaks: number or int32 tensor."""
    # Thousandths are whole numbers, which a GPU's kernels take from the host. Fractions would be
    # in its own memory.
    return rows * round(1000 * fraction) // 1000


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, sorted by their number of tokens, with begin and end: int32.

    Text i has the tokens from start[i] to start[i + 1], int64 [N + 1].
    """

    tokens: np.ndarray
    start: np.ndarray
    language: int

    def __len__(self) -> int:
        return len(self.start) - 1

    @cached_property
    def counts(self) -> np.ndarray:
        return np.diff(self.start).astype(np.int32)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of tokens and language."""
        digest = hashlib.sha256(self.tokens.tobytes() + self.start.tobytes())
        digest.update(str(self.language).encode())
        return digest.hexdigest()

    # The texts are sorted by length, so the texts that fit are a stretch of them. It ends with the
    # longest that has at most MAX_LENGTH_RATIO times the tokens and fits into the batch. It begins
    # at the same ratio below the utterance, or, if all texts there are shorter, below the longest.
    # `uniform` chooses a place in the stretch.
    def near(self, counts: np.ndarray, longest: int, uniform: np.ndarray) -> np.ndarray:
        """Choose a text for the place of each utterance with so many tokens: int64 [places].

        -1 if none fits. `uniform`, from 0 to 1, chooses one of the texts that fit.
        """
        last = np.searchsorted(
            self.counts, np.minimum(np.floor(counts * MAX_LENGTH_RATIO), longest), side="right"
        )
        nearest = self.counts[np.maximum(last - 1, 0)]
        first = np.searchsorted(
            self.counts,
            np.where(nearest < counts / MAX_LENGTH_RATIO, nearest, counts) / MAX_LENGTH_RATIO,
        )
        return np.where(last > 0, first + np.floor(uniform * (last - first)).astype(np.int64), -1)


@dataclass(frozen=True, eq=False)
class TeacherRows:
    """The fraction of the rows of a batch that a teacher speaks: `texts`, or the utterances'."""

    fraction: float
    texts: Texts | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the texts; empty without further texts."""
        return self.texts.fingerprint if self.texts else ""

    def replace(
        self,
        arrays: dict[str, np.ndarray],
        rows: int,
        manifest: Manifest,
        reference_samples: int,
        random: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Return the arrays of a batch of so many utterances whose last rows are spoken.

        Their voices are drawn; a reference has at most `reference_samples`.
        """
        size = len(arrays["row"])
        places = np.arange(size - teacher_row_count(size, self.fraction), rows)
        arrays = {name: array.copy() for name, array in arrays.items()}
        reference = random.integers(0, len(manifest), len(places))
        length = np.minimum(manifest.samples[reference], reference_samples)
        start = random.random(len(places)) * (manifest.samples[reference] - length + 1)
        arrays["samples"][places] = 0
        arrays["reference_row"][places], arrays["reference_samples"][places] = reference, length
        arrays["reference_start"][places] = start.astype(np.int32)
        if self.texts is None:
            return arrays
        chosen = self.texts.near(
            arrays["token_count"][places], arrays["tokens"].shape[1], random.random(len(places))
        )
        for place, text in zip(places[chosen >= 0], chosen[chosen >= 0], strict=True):
            tokens = self.texts.tokens[self.texts.start[text] : self.texts.start[text + 1]]
            arrays["tokens"][place] = 0
            arrays["tokens"][place, : len(tokens)] = tokens
            arrays["token_count"][place] = len(tokens)
            arrays["language"][place] = self.texts.language
        return arrays


def _symbols(line: str, language: str, frontend: TextFrontend) -> list[str]:
    """Return the symbols of a sentence, none if it is too long or cannot be read."""
    if len(line) > MAX_TEXT_CHARACTERS:
        return []
    try:
        return frontend.stages(line, language).symbols
    except DataError:
        return []


def read_texts(
    path: Path, language: str, frontend: TextFrontend, vocabulary: Vocabulary, longest: int
) -> Texts:
    """Read sentences, one in a line, for places of at most `longest` tokens.

    Longer ones, and those with symbols that the vocabulary lacks, are left out and counted. Raises
    DataError if the file has no usable sentence, or the vocabulary lacks the language.
    """
    language = choose_language(language, vocabulary.languages, "--language, that of --texts")
    lines = read_lines(path)
    symbols = (_symbols(line, language, frontend) for line in lines)
    known = [text for text in symbols if text and not vocabulary.symbols.unknown(text)]
    tokens = sorted((vocabulary.symbols.encode(text) for text in known), key=len)
    fitting = sum(len(text) <= longest for text in tokens)
    if not fitting:
        raise DataError(
            f"--texts {path} has {len(lines)} sentences, but none of them has at most {longest - 2}"
            " symbols, as the longest text of the corpus, and can be spoken in"
            f" '{language}' with the teacher's symbols. Give shorter ones in such a language."
        )
    start = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    number = vocabulary.languages.index(language)
    texts = Texts(np.concatenate(tokens).astype(np.int32), start, number)
    left_out = (
        f"{len(lines) - fitting} left out (too long or not readable, or no or unknown symbols)"
    )
    found = f"{fitting} sentences without recordings in {path}, {left_out}"
    log.info("%-14s %s", "texts", found)
    return texts


def read_lines(path: Path) -> list[str]:
    """Return the sentences of a file of texts; raise DataError if it cannot be read."""
    content = decode_text(path.read_bytes, f"--texts {path}")
    return [line.strip() for line in content.splitlines() if line.strip()]
