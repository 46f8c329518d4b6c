"""Errors of a model's alignment against the times that a synthesizer reports for its own speech."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from myxtts.evaluation.boundaries import (
    Phoneme,
    aligned_s,
    boundaries,
    boundary_metrics,
    read_alignments,
)
from myxtts.evaluation.held_out import Utterance
from myxtts.evaluation.report import Metrics
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable


def alignments_of(folder: Path) -> dict[str, list[Phoneme]]:
    """Return the phoneme times that a corpus provides; empty if it has no alignments.jsonl."""
    file = folder / "alignments.jsonl"
    return read_alignments(file) if file.exists() else {}


def alignment_metrics(
    utterances: Sequence[Utterance], alignments: dict[str, list[Phoneme]], symbols: SymbolTable
) -> tuple[Metrics, str]:
    """Return the errors of the model's alignment against reliable times of the synthesizer, and a
    note.
    """
    if not alignments:
        return {}, "phoneme boundaries are left out: the corpus has no alignments.jsonl"
    errors_ms: dict[str, list[float]] = defaultdict(list)
    unreliable, different = 0, 0
    for utterance in utterances:
        true_boundaries = boundaries(
            token_symbols(utterance, symbols), alignments.get(Path(utterance.id).stem, ())
        )
        different += true_boundaries is None
        for boundary in true_boundaries or ():
            unreliable += not boundary.is_reliable
            if boundary.is_reliable:
                error_ms = 1000.0 * (aligned_s(utterance.path, boundary) - boundary.true_s)
                errors_ms["boundary"].append(error_ms)
                errors_ms[f"boundary_{boundary.kind}"].append(error_ms)
    metrics: Metrics = {}
    for prefix, errors in errors_ms.items():
        metrics |= {
            key: {"synthesized": value} for key, value in boundary_metrics(prefix, errors).items()
        }
    counts = Counter(
        {prefix.removeprefix("boundary_"): len(errors) for prefix, errors in errors_ms.items()}
    )
    note = (
        f"{counts.pop('boundary', 0)} phoneme boundaries"
        f" ({', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}), without"
        f" {unreliable} whose true times are unreliable, and without {different} recordings whose"
        " text and phonemes differ"
    )
    return metrics, note


def token_symbols(utterance: Utterance, symbols: SymbolTable) -> list[str]:
    """Return the symbol of each token, "" for the begin and end tokens."""
    inner = (symbols.symbols[token - FIRST_SYMBOL_ID] for token in utterance.tokens[1:-1])
    return ["", *inner, ""]
