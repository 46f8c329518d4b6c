"""Rejected rows by reason, and padding by bucket. No TensorFlow."""

import csv
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

EXAMPLES = 3  # rows named for each reason


def rejected(listing: Path) -> str:
    """Return a table of the rows in rejected.csv by reason; empty if none was rejected."""
    if not listing.exists():
        return ""
    counts: Counter[str] = Counter()
    examples: defaultdict[str, list[str]] = defaultdict(list)
    with open(listing, encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            reason = row.get("reason") or "unknown"
            counts[reason] += 1
            if len(examples[reason]) < EXAMPLES:
                examples[reason].append(
                    f"line {row.get('line')}: {row.get('audio')} {row.get('detail') or ''}".strip()
                )
    if not counts:
        return "<p>No row of the corpus was rejected.</p>"
    rows = "".join(
        f"<tr><td>{escape(reason)}</td><td"
        f" class='n'>{count}</td><td>{escape('; '.join(examples[reason]))}</td>"
        for reason, count in counts.most_common()
    )
    head = (
        '<th scope="col">reason</th><th scope="col" class="n">rows</th><th scope="col">such as</th>'
    )
    return (
        f"<p>Rejected rows of the corpus: {counts.total():,}; rejected.csv lists them.</p>"
        f'<div class="scroll"><table><tr>{head}{rows}</table></div>'
    )


def padding_by_bucket(buckets: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the buckets: the content of run.json's `buckets`; empty if there
    are none.
    """
    if not buckets:
        return ""
    rows = []
    for bucket in buckets:
        percent = 100 * bucket["padding"]
        label = f"{percent:.1f} % of the bucket of {bucket['seconds']:.2f} s is padding"
        bar = (
            '<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" role="img"'
            f' aria-label="{label}"><rect class="a0" width="{100 - percent:.1f}" height="10"/><rect'
            f' class="a5" x="{100 - percent:.1f}" width="{percent:.1f}" height="10"/></svg>'
        )
        rows.append(
            f"<tr><td class='n'>{bucket['seconds']:.2f}</td><td"
            f" class='n'>{bucket['utterances']:,}</td><td class='n'>{bucket['rows']}</td><td"
            f" class='n'>{percent:.1f}</td><td>{bar}</td>"
        )
    titles = ("up to, s", "utterances", "rows of a batch", "padding, %")
    head = (
        "".join(f'<th scope="col" class="n">{title}</th>' for title in titles)
        + '<th scope="col">speech, padding</th>'
    )
    return f'<div class="scroll"><table><tr>{head}{"".join(rows)}</table></div>'
