"""Symbols of a model and their ids. No TensorFlow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from myxtts.base.errors import DataError

PADDING_ID, BEGIN_ID, END_ID, FIRST_SYMBOL_ID = range(4)
# As CTC's blank, padding can serve: it is never a label.
BLANK_ID = 0


@dataclass(frozen=True)
class SymbolTable:
    """Symbols of a model. Symbol i has id 3 + i, after padding, begin and end; `len` counts all."""

    symbols: tuple[str, ...]

    @classmethod
    def from_sequences(cls, sequences: Iterable[Iterable[str]]) -> "SymbolTable":
        """Return the table of all symbols in `sequences`, in code point order."""
        return cls(tuple(sorted(set(chain.from_iterable(sequences)))))

    def __len__(self) -> int:
        return FIRST_SYMBOL_ID + len(self.symbols)

    def encode(self, symbols: Sequence[str]) -> np.ndarray:
        """Return the int32 ids of begin, symbols and end; raise DataError for unknown symbols."""
        if unknown := self.unknown(symbols):
            raise DataError(
                f"the text contains symbols that the model was not trained on:"
                f" {', '.join(map(ascii, unknown))} ({' '.join(unknown)}). Change the text or its"
                " language, or train on a corpus that has them."
            )
        ids = [self._ids[symbol] for symbol in symbols]
        return np.array([BEGIN_ID, *ids, END_ID], dtype=np.int32)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the symbols of ids, without padding, begin and end."""
        return [self.symbols[id_ - FIRST_SYMBOL_ID] for id_ in ids if id_ >= FIRST_SYMBOL_ID]

    def unknown(self, symbols: Iterable[str]) -> list[str]:
        """Return the symbols without an id, each once, in order of appearance."""
        return [symbol for symbol in dict.fromkeys(symbols) if symbol not in self._ids]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: FIRST_SYMBOL_ID + index for index, symbol in enumerate(self.symbols)}


def subsampled_length(frames, subsampling: int):
    """Return how many of `frames` remain if one of each `subsampling` is kept."""
    return (frames + subsampling - 1) // subsampling
