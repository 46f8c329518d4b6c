"""Section 6: the contents of the corpora."""

import csv
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import DataConfig
from myxtts.data.manifest import Manifest
from myxtts.preflight.checks import Check, recommended, required
from myxtts.text.frontend import Frontend, normalise_text, symbols_of
from myxtts.training.setup import RunCorpora

MAX_PADDING = 0.2
EXAMPLES = 3  # rejected rows and unknown characters that are listed


def check_corpus(data: DataConfig, corpora: RunCorpora) -> Iterator[Check]:
    manifests = [corpus.manifest for corpus in (corpora.training, corpora.held_out) if corpus]
    yield check_rejected(
        corpora.folder / "rejected.csv", data.max_rejected, sum(map(len, manifests))
    )
    yield check_durations(manifests, data.min_seconds, data.max_seconds)
    if corpora.vocabulary.symbols.symbols:  # a vocoder needs no texts
        yield check_characters(manifests, corpora.vocabulary.languages, data.text_frontend)
    plan = corpora.training.plan
    yield recommended(
        plan.padding <= MAX_PADDING,
        "padding",
        f"at most {100 * MAX_PADDING:.0f} % of all samples in batches",
        f"{100 * plan.padding:.1f} % in {len(plan.bounds)} buckets",
        "Raise --buckets to pad less; a smaller --batch-size leaves fewer empty rows in the last"
        " batch.",
    )


def check_rejected(listing: Path, max_rejected: float, usable: int | None = None) -> Check:
    """Summarise rejected.csv.

    Args:
        max_rejected: a run aborts above this fraction of unusable rows.
        usable: number of usable utterances, if known.
    """
    with open(listing, encoding="utf-8", errors="surrogateescape", newline="") as file:
        rejected = list(csv.DictReader(file))
    reasons = Counter(row["reason"] for row in rejected)
    found = f"{len(rejected)}" + (f" of {usable + len(rejected)}" if usable is not None else "")
    if rejected:
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        examples = "; ".join(
            f"line {row['line']} {row['audio']}: {row['detail'] or row['reason']}"
            for row in rejected[:EXAMPLES]
        )
        found += f" ({counts}). The first: {examples}"
    return recommended(
        not rejected,
        "rejected utterances",
        f"none; a run accepts up to {100 * max_rejected:g} %",
        found,
        "Fix or remove these rows. A run lists all of them in rejected.csv in its folder.",
    )


def check_durations(manifests: list[Manifest], min_s: float, max_s: float) -> Check:
    seconds = np.concatenate([manifest.samples for manifest in manifests]) / SAMPLE_RATE_HZ
    return required(
        True,
        "durations",
        f"{min_s:g} to {max_s:g} s",
        f"{len(seconds)} utterances of {seconds.min():.2f} to {seconds.max():.2f} s, "
        f"median {np.median(seconds):.2f} s, {seconds.sum() / 3600:.2f} hours in total",
    )


def check_characters(
    manifests: list[Manifest], languages: tuple[str, ...], frontend: Frontend
) -> Check:
    ignored = ignored_characters(manifests, languages, frontend)
    examples = ", ".join(
        f"{c!r} (U+{ord(c):04X}) in {count} texts" for c, count in ignored.most_common(EXAMPLES)
    )
    more = f" and {len(ignored) - EXAMPLES} more" if len(ignored) > EXAMPLES else ""
    return recommended(
        not ignored,
        "characters without symbols",
        f"none: the text front end '{frontend}' makes symbols of all characters",
        f"{examples}{more}" if ignored else "none",
        "The model does not learn these characters: spell them as they are spoken, or correct the"
        " texts.",
    )


def ignored_characters(
    manifests: list[Manifest], languages: tuple[str, ...], frontend: Frontend
) -> Counter[str]:
    """Count the texts with each character that does not change the symbols of a text.

    Punctuation, quotes, spaces and combining marks are not counted.
    """
    texts_with: Counter[tuple[str, str]] = Counter()
    for manifest in manifests:
        for text, language in zip(manifest.texts, manifest.language, strict=True):
            texts_with.update(
                (character, languages[language]) for character in set(normalise_text(text))
            )
    ignored: Counter[str] = Counter()
    for (character, language), count in texts_with.items():
        is_letter_or_symbol = unicodedata.category(character)[0] not in "PZM"
        with_character, without = (
            symbols_of(text, language, frontend) for text in (f"a {character} a", "a a")
        )
        if is_letter_or_symbol and with_character == without:
            ignored[character] += count
    return ignored
