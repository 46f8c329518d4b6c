"""The preflight: runs every part of training once on a small scale, and reports each result as a
check.
"""

import csv
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.flags import with_values
from myxtts.config.schema import Config, DataConfig
from myxtts.data.manifest import Manifest
from myxtts.errors import PlacementError, UserError
from myxtts.placement.routes import Route, named_gpus, plan_routes
from myxtts.preflight.checks import Check, Report, failed_by, recommended, required
from myxtts.preflight.devices import check_copies, check_placement
from myxtts.preflight.prerequisites import check_prerequisites
from myxtts.preflight.trial import Trial, check_model, check_pipeline
from myxtts.text.frontend import Frontend, normalise_text, symbols_of
from myxtts.training.runs import RunFolder
from myxtts.training.setup import OpenRun, RunCorpora, Start, read_corpora, resolve_start

DEFAULT_ROUTES = (
    " Where no GPU is named, the preflight tries GPUs 0 and 1; on one GPU give --data-gpu 0"
    " --model-gpu 0."
)
# No machine has more, so settings that need more are mistakes.
MAX_GPUS = 1024

MAX_PADDING = 0.2

# Rejected rows and unknown characters that are listed.
EXAMPLES = 3


def validate(config: Config, steps: int) -> Report:
    """Check a run with these settings and print the checks. Nothing written remains, except the
    demo corpus.

    Args:
        config: settings of a run. If they name no GPU, batches are made on GPU 0 and the model is
            on GPU 1.
        steps: largest number of steps to send through the pipeline.

    Raises:
        UserError: the settings are wrong for any machine and any corpus.
    """
    advice = "" if named_gpus(config.placement) else DEFAULT_ROUTES
    config = with_default_routes(config)
    try:
        plan_routes(config.placement, MAX_GPUS)
    except PlacementError as error:
        raise PlacementError(f"{error}{advice}") from error
    report = Report()
    with ExitStack() as resources:
        name = resources.enter_context(tempfile.TemporaryDirectory(prefix="myxtts-preflight-"))
        start = resolve_start(config, RunFolder(Path(name)))
        config = start.config
        report.run("Prerequisites", check_prerequisites(config))
        run = report.run("Placement", check_placement(start, resources, advice))

        # A corpus of the user's own is checked also without its devices; the demo corpus is not.
        has_corpus = config.data.train_data is not None
        corpora = None
        corpus_errors: list[Check] = []
        if has_corpus or run is not None:
            corpora, corpus_errors = try_load(start, run)
        train_briefly(report, run, corpora, steps)
        if corpus_errors:
            report.run("Corpus", iter(corpus_errors))
        elif has_corpus and corpora:
            report.run("Corpus", check_corpus(config.data, corpora))
    return report


def train_briefly(
    report: Report, run: OpenRun | None, corpora: RunCorpora | None, steps: int
) -> None:
    """Run the sections that need devices and a corpus, or skip them."""
    if run is None or corpora is None:
        for title in ("Model", "Transfer", "Pipeline and audit"):
            report.skip(
                title,
                "the corpus is unusable" if run else "the requested devices are not available",
            )
        return
    trial = report.run("Model", check_model(run, corpora))
    if trial is None:
        for title in ("Transfer", "Pipeline and audit"):
            report.skip(title, "the model could not be trained")
        return
    report.run("Transfer", check_transfer(trial))
    report.run("Pipeline and audit", check_pipeline(trial, steps))


def check_transfer(trial: Trial) -> Iterator[Check]:
    placement = trial.setup.run.placement
    for route, batch in zip(placement.routes, trial.batches, strict=True):
        for data in route.data_devices:
            yield from check_copies(Route(data, route.model), batch, trial.step_s, placement)


def with_default_routes(config: Config) -> Config:
    """Return the settings, with batches on GPU 0 and the model on GPU 1 if they name no GPU."""
    if named_gpus(config.placement):
        return config
    return with_values(config, {"data_gpu": 0, "model_gpu": 1})


def try_load(start: Start, run: OpenRun | None) -> tuple[RunCorpora | None, list[Check]]:
    """Load the corpora, or return the checks that failed."""
    try:
        return read_corpora(start, start.folder.path, run.replicas.count if run else 1), []
    except UserError as error:
        listing = start.folder.path / "rejected.csv"
        # The listing here is temporary.
        message = str(error).replace(str(listing), "rejected.csv of the run folder")
        checks = [failed_by(UserError(message), "corpus", "a corpus that a run accepts")]
        if listing.exists():
            checks.append(check_rejected(listing, start.config.data.max_rejected))
        return None, checks


def check_corpus(data: DataConfig, corpora: RunCorpora) -> Iterator[Check]:
    manifests = [corpus.manifest for corpus in (corpora.training, corpora.held_out) if corpus]
    yield check_rejected(
        corpora.folder / "rejected.csv", data.max_rejected, sum(map(len, manifests))
    )
    yield check_durations(manifests, data.min_seconds, data.max_seconds)
    # A vocoder needs no texts.
    if corpora.vocabulary.symbols.symbols:
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
    found = f"{len(rejected)}"
    if usable is not None:
        found += f" of {usable + len(rejected)}"
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
