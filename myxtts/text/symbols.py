"""The symbols that a model knows, and their ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from myxtts.errors import DataError

PADDING_ID = 0
BEGIN_ID = 1
END_ID = 2
FIRST_SYMBOL_ID = 3


@dataclass(frozen=True)
class SymbolTable:
    """Symbol i has id 3 + i; 0 is padding, 1 the begin and 2 the end of a text. `len` counts all ids."""

    symbols: tuple[str, ...]

    def __post_init__(self):
        if len(set(self.symbols)) != len(self.symbols) or not all(isinstance(s, str) and s for s in self.symbols):
            raise DataError(
                "A symbol table needs distinct, non-empty symbols, but was given "
                f"{list(self.symbols)[:20]}. Take the table from an undamaged checkpoint."
            )

    @classmethod
    def from_sequences(cls, sequences: Iterable[Iterable[str]]) -> "SymbolTable":
        """Table of all symbols in `sequences`, in code point order."""
        return cls(tuple(sorted(set().union(*sequences))))

    @classmethod
    def from_list(cls, symbols: Sequence[str]) -> "SymbolTable":
        """Inverse of `to_list`."""
        return cls(tuple(symbols))

    def to_list(self) -> list[str]:
        """Symbols in the order of their ids, for JSON."""
        return list(self.symbols)

    def __len__(self) -> int:
        return FIRST_SYMBOL_ID + len(self.symbols)

    def encode(self, symbols: Sequence[str]) -> np.ndarray:
        """int32 ids, shape [len(symbols) + 2]: begin, symbols, end. Raises DataError on an unknown symbol."""
        if unknown := self.unknown(symbols):
            named = ", ".join(f"{s!r} ({' '.join(f'U+{ord(c):04X}' for c in s)})" for s in unknown)
            raise DataError(
                f"A text holds symbols that the model was not trained with: {named}. It knows {len(self.symbols)}: "
                f"{' '.join(self.symbols)}. Change the text or its language, or train on a corpus that has them."
            )
        ids = [self._ids[symbol] for symbol in symbols]
        return np.array([BEGIN_ID, *ids, END_ID], dtype=np.int32)

    def unknown(self, symbols: Iterable[str]) -> list[str]:
        """Symbols without an id, each once, in order of appearance."""
        return [symbol for symbol in dict.fromkeys(symbols) if symbol not in self._ids]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: FIRST_SYMBOL_ID + index for index, symbol in enumerate(self.symbols)}
