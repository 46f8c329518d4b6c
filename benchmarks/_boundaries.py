"""Boundaries of phonemes whose times a synthesizer reports, and how far a run's alignment is off.

Only corpora that espeak-ng has spoken have such times, in alignments.jsonl.
"""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.base.errors import DataError
from myxtts.batches.corpora import corpus_folder
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.placement.devices import configure_default
from myxtts.tasks import loading
from myxtts.tasks.evaluation.held_out import Utterance, load_held_out
from myxtts.tasks.tts.utterances import load_utterances
from myxtts.text.frontend import PUNCTUATION, STRESS_AND_LENGTH
from myxtts.text.symbols import SymbolTable

TOLERANCE_MS = 20.0
# Persian vowels have it in the phonemes of the text, but not in the synthesizer's events.
LENGTH_MARK = "ː"
AFFRICATES = "tʃ", "dʒ", "ts", "dz", "tɕ", "dʑ"
CLASSES = {
    "stop": "pbtdkɡgqɢcɟʔʈɖ",
    "fricative": "fvθðszʃʒxɣhɦχʁçʝħʕɕʑβɸ",
    "nasal": "mnŋɲɳɱɴ",
    "approximant": "lɹrjwɾʋɫɭʎɻɰ",
}
# Boundaries between two sounds with reliable times: 85 % or more of them lie within 10 ms of the
# change in the signal, both in 1,200 utterances of 8 speakers in 3 languages and in 400 utterances
# of one speaker (benchmarks/phoneme_times.py; docs/experiments/evaluation_metrics.md).
RELIABLE_BETWEEN = {
    "vowel": ("stop", "affricate", "fricative", "nasal"),
    "fricative": ("vowel", "stop", "fricative", "nasal", "approximant"),
    "nasal": ("stop", "affricate", "fricative", "nasal", "approximant"),
    "stop": ("stop",),
    "approximant": ("fricative",),
}


class Phoneme(NamedTuple):
    """A phoneme from `start_s` to `end_s`; "" is silence and " " the gap between two words."""

    symbol: str
    start_s: float
    end_s: float


Alignments = Mapping[str, Sequence[Phoneme]]
"""The phonemes of each recording by its name without suffix."""


class Boundary(NamedTuple):
    """The time at which a phoneme or silence ends and the next one begins."""

    left: str  # as right, see `phoneme_class`
    right: str
    true_s: float  # time that the synthesizer reports
    token: int  # the first after the boundary or, if `after_token`, the last before it
    after_token: bool

    @property
    def kind(self) -> str:
        """onset (a sound after silence), offset (silence after a sound) or between (two sounds)."""
        if self.left == "silence":
            return "onset"
        return "offset" if self.right == "silence" else "between"

    @property
    def is_reliable(self) -> bool:
        """Whether times of this kind were shown to be right."""
        # The closure of a stop is silent as well, so its end is not.
        if self.kind == "between":
            return self.right in RELIABLE_BETWEEN.get(self.left, ())
        return self.left != "stop"


def read_alignments(file: Path) -> dict[str, list[Phoneme]]:
    """Read alignments.jsonl of a corpus, as `demo_corpus` writes it; empty if there is none."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else ()
    utterances = map(json.loads, lines)
    return {of["id"]: [Phoneme(*phoneme) for phoneme in of["phonemes"]] for of in utterances}


def phoneme_class(symbol: str) -> str:
    """Return silence, vowel, affricate, or a key of CLASSES."""
    letters = symbol.strip(STRESS_AND_LENGTH + " ")
    if not letters:
        return "silence"
    if letters.startswith(AFFRICATES):
        return "affricate"
    return next((name for name, members in CLASSES.items() if letters[0] in members), "vowel")


def boundaries(token_symbols: Sequence[str], phonemes: Sequence[Phoneme]) -> list[Boundary] | None:
    """Return the boundaries that the text also has; None if it does not spell these phonemes.

    Left out are phonemes of 0 s, which the synthesizer merges with a neighbour, and gaps of 0 s
    between words, whose token lasts at least one frame. Begin and end tokens have the symbol "".
    """
    sounds = [phoneme for phoneme in phonemes if phoneme.symbol.strip()]
    tokens = _token_spans(token_symbols, [phoneme.symbol for phoneme in sounds])
    if not tokens:
        return None
    classes = [phoneme_class(phoneme.symbol) for phoneme in sounds]
    found = [Boundary("silence", classes[0], sounds[0].start_s, tokens[0][0], False)]
    for index, (left, right) in enumerate(pairwise(sounds)):
        if left.end_s == left.start_s or right.end_s == right.start_s:
            continue
        left_class, right_class = classes[index : index + 2]
        last_token, next_token = tokens[index][1], tokens[index + 1][0]
        is_adjacent = last_token + 1 == next_token
        if is_adjacent and right.start_s == left.end_s:
            found.append(Boundary(left_class, right_class, right.start_s, next_token, False))
        elif not is_adjacent and right.start_s > left.end_s:
            found.append(Boundary(left_class, "silence", left.end_s, last_token, True))
            found.append(Boundary("silence", right_class, right.start_s, next_token, False))
    found.append(Boundary(classes[-1], "silence", sounds[-1].end_s, tokens[-1][1], True))
    return found


def _token_spans(token_symbols: Sequence[str], phonemes: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first and the last token of each phoneme; empty if the letters differ."""
    letters: list[str] = []
    tokens: list[int] = []
    for token, symbol in enumerate(token_symbols):
        if symbol not in PUNCTUATION:
            kept = symbol.replace(" ", "").replace(LENGTH_MARK, "")
            letters += kept
            tokens += [token] * len(kept)
    spellings = [
        unicodedata.normalize("NFC", phoneme).replace(LENGTH_MARK, "") for phoneme in phonemes
    ]
    if letters != list("".join(spellings)) or not all(spellings):
        return []
    spans = []
    start = 0
    for spelling in spellings:
        end = start + len(spelling)
        last = tokens[end - 1]
        if token_symbols[last + 1] == LENGTH_MARK:
            last += 1
        spans.append((tokens[start], last))
        start = end
    return spans


def aligned_s(path: np.ndarray, boundary: Boundary) -> float:
    """Return the time of a boundary in an alignment, int [frames]: the token of each frame."""
    frame = np.searchsorted(path, boundary.token + boundary.after_token)
    return float(frame) * HOP_SAMPLES / SAMPLE_RATE_HZ


def run_figures(run: Path, count: int) -> tuple[dict[str, float], str]:
    """Return the errors of a run's alignment of at most `count` held-out utterances, and a note.

    Raises DataError if nothing was held out, or the corpus has no times of phonemes.
    """
    trained = TrainedRun.open_for_use(run)
    corpus = load_held_out(trained, run)
    data = corpus.config.data
    file = corpus_folder(data.audio_root or data.val_data or data.train_data) / "alignments.jsonl"
    alignments = read_alignments(file)
    if not alignments:
        raise DataError(
            f"{file} does not exist, which has the true times of the phonemes. Measure a run on a"
            " corpus of `myxtts corpus`."
        )
    route = configure_default().routes[0]
    network = loading.load_network(trained, route.model, "tts")
    utterances = load_utterances(network, corpus, route, run, count, aligned=True)
    return alignment_figures(utterances, alignments, trained.record.vocabulary.symbols)


def boundary_figures(prefix: str, errors_ms: Sequence[float]) -> dict[str, float]:
    """Return medians of errors (aligned minus true), and the fraction within 20 ms."""
    return {
        f"{prefix}_signed_median": float(np.median(errors_ms)),
        f"{prefix}_absolute_median": float(np.median(np.abs(errors_ms))),
        f"{prefix}_within_20_ms": float(np.mean(np.abs(errors_ms) <= TOLERANCE_MS)),
    }


def alignment_figures(
    utterances: Sequence[Utterance], alignments: Alignments, symbols: SymbolTable
) -> tuple[dict[str, float], str]:
    """Return the errors of an alignment against reliable times of the synthesizer, and a note."""
    errors_ms: dict[str, list[float]] = defaultdict(list)
    unreliable = 0
    different = 0
    for utterance in utterances:
        inner = symbols.decode(utterance.tokens)
        phonemes = alignments.get(Path(utterance.id).stem, ())
        true_boundaries = boundaries(["", *inner, ""], phonemes)
        different += true_boundaries is None
        for boundary in true_boundaries or ():
            if not boundary.is_reliable:
                unreliable += 1
                continue
            error_ms = 1000.0 * (aligned_s(utterance.path, boundary) - boundary.true_s)
            errors_ms["boundary"].append(error_ms)
            errors_ms[f"boundary_{boundary.kind}"].append(error_ms)
    figures: dict[str, float] = {}
    for prefix, errors in errors_ms.items():
        figures |= boundary_figures(prefix, errors)
    total = len(errors_ms.pop("boundary", ()))
    kinds = ", ".join(
        f"{len(errors)} {prefix.removeprefix('boundary_')}"
        for prefix, errors in sorted(errors_ms.items())
    )
    return figures, (
        f"{total} phoneme boundaries ({kinds}), without {unreliable} whose true times are"
        f" unreliable, and without {different} recordings whose text and phonemes differ"
    )
