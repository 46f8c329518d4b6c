"""The corpus: loaded as a run loads it; and section 6, what is in it."""

import csv
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import Config
from myxtts.data.dataset import load_corpora
from myxtts.data.manifest import Manifest
from myxtts.preflight.checks import Check, check, remark
from myxtts.tasks.length_rules import length_rule_of
from myxtts.text.frontend import normalise_text, symbols_of
from myxtts.training.setup import RunCorpora, check_validation_data
from myxtts.training.start import Start

MUCH_PADDING = 0.2
SHOWN = 3  # rejected rows and unknown characters that are named


@dataclass(frozen=True)
class Loaded:
    """A corpus with all that it was loaded by. `folder` has its rejected.csv."""

    config: Config
    start: Start
    corpora: RunCorpora


def load(config: Config, start: Start, folder: Path, replicas: int = 1) -> Loaded:
    """Raises UserError where no run could start on this corpus."""
    corpora = RunCorpora(*load_corpora(config, folder, length_rule_of(config), start.vocabulary, replicas), folder)
    check_validation_data(config, corpora)
    return Loaded(config, start, corpora)


def check_corpus(loaded: Loaded) -> Iterator[Check]:
    manifests = [one.manifest for one in (loaded.corpora.training, loaded.corpora.held_out) if one]
    data = loaded.config.data
    yield check_rejected(loaded.corpora.folder / "rejected.csv", data.max_rejected, sum(map(len, manifests)))
    yield check_durations(manifests, data.min_seconds, data.max_seconds)
    yield check_characters(manifests, loaded.corpora.vocabulary.languages, data.text_frontend)
    padding = loaded.corpora.training.plan.padding
    yield remark(
        padding <= MUCH_PADDING,
        "padding",
        f"at most {100 * MUCH_PADDING:.0f} % of what is computed",
        f"{100 * padding:.1f} % in {len(loaded.corpora.training.plan.bounds)} buckets",
        "More --buckets pad less; a smaller --batch-size leaves fewer rows of the last batch empty.",
    )


def check_rejected(listing: Path, most: float, usable: int | None = None) -> Check:
    """What a run writes into rejected.csv, in a line.

    Args:
        most: share with which a run still starts.
        usable: the other utterances, where they are known.
    """
    with open(listing, encoding="utf-8", errors="surrogateescape", newline="") as file:
        rejected = list(csv.DictReader(file))
    reasons = Counter(row["reason"] for row in rejected)
    found = f"{len(rejected)}" + (f" of {usable + len(rejected)}" if usable is not None else "")
    if rejected:
        first = "; ".join(
            f"line {row['line']} {row['audio']}: {row['detail'] or row['reason']}" for row in rejected[:SHOWN]
        )
        found += f" ({', '.join(f'{count} {reason}' for reason, count in reasons.most_common())}). The first: {first}"
    expected = f"none; a run starts with up to {100 * most:g} %"
    do = "Mend these rows, or take them out; rejected.csv in the run folder will list them all."
    return remark(not rejected, "rejected utterances", expected, found, do)


def check_durations(manifests: list[Manifest], shortest_s: float, longest_s: float) -> Check:
    seconds = np.concatenate([manifest.samples for manifest in manifests]) / SAMPLE_RATE_HZ
    return check(
        True,
        "durations",
        f"{shortest_s:g} to {longest_s:g} s",
        f"{len(seconds)} utterances of {seconds.min():.2f} to {seconds.max():.2f} s, "
        f"median {np.median(seconds):.2f} s, {seconds.sum() / 3600:.2f} hours in all",
    )


def check_characters(manifests: list[Manifest], languages: tuple[str, ...], frontend: str) -> Check:
    unknown = silent_characters(manifests, languages, frontend)
    named = ", ".join(f"{c!r} (U+{ord(c):04X}) in {count} texts" for c, count in unknown.most_common(SHOWN))
    more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
    return remark(
        not unknown,
        "characters unknown to the text front end",
        f"none: the front end '{frontend}' makes symbols of all",
        f"{named}{more}" if unknown else "none",
        "They are left out of what is learnt: spell them as they are spoken, or correct the texts.",
    )


def silent_characters(manifests: list[Manifest], languages: tuple[str, ...], frontend: str) -> Counter:
    """Texts that hold each character that changes nothing in what the front end makes of a text.

    Punctuation, quotes, spaces and combining marks are left aside.
    """
    texts_with: Counter = Counter()
    for manifest in manifests:
        for text, language in zip(manifest.texts, manifest.language, strict=True):
            texts_with.update((character, languages[language]) for character in set(normalise_text(text)))
    silent: Counter = Counter()
    for (character, language), count in texts_with.items():
        counts = unicodedata.category(character)[0] not in "PZM"
        if counts and symbols_of(f"a {character} a", language, frontend) == symbols_of("a a", language, frontend):
            silent[character] += count
    return silent
