"""The preflight: runs every part of training once on a small scale, and reports each result as a
check.
"""

import csv
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from myxtts.audio.format import sample_rate_hz
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.config.flags import with_values
from myxtts.config.schema import Config
from myxtts.devicefeed.errors import PlacementError, UserError
from myxtts.devicefeed.routes import Route
from myxtts.placement.settings import named_gpus, plan_routes
from myxtts.run.setup import OpenRun, RunCorpora, load_run_corpora
from myxtts.run.start import Start, resolve_start
from myxtts.trial.preflight.checks import Check, Report, failed_by, recommended, required
from myxtts.trial.preflight.devices import check_copies, check_placement
from myxtts.trial.preflight.first_steps import Trial, check_model, check_pipeline
from myxtts.trial.preflight.prerequisites import check_prerequisites

DEFAULT_ROUTES = (
    " Where no GPU is named, the preflight tries GPUs 0 and 1; on one GPU give --data-gpu 0"
    " --model-gpu 0."
)
# No machine has more, so settings that need more are mistakes.
MAX_GPUS = 1024

MAX_PADDING = 0.2

EXAMPLES = 3


# Sections run in this order: prerequisites, placement, model, transfer, pipeline, corpus. A section
# that fails ends itself only; those that depend on it are skipped with the reason. The corpus is
# loaded before the model trains, which needs it; its checks are printed last. All files go to a
# temporary folder.
def validate(config: Config, steps: int) -> Report:
    """Check a run with these settings and print the checks; only a demo corpus remains.

    At most so many steps go through the pipeline. If the settings name no GPU, batches are made on
    GPU 0 and the model is on GPU 1. Raises UserError if they are wrong for any machine and corpus.
    """
    advice = ""
    if not named_gpus(config.placement):
        advice = DEFAULT_ROUTES
        config = with_values(config, {"data_gpu": 0, "model_gpu": 1})
    try:
        plan_routes(config.placement, MAX_GPUS)
    except PlacementError as error:
        raise PlacementError(f"{error}{advice}") from error
    report = Report()
    with ExitStack() as resources:
        name = resources.enter_context(tempfile.TemporaryDirectory(prefix="myxtts-preflight-"))
        start = resolve_start(config, RunFolder(Path(name)))
        report.run("Prerequisites", check_prerequisites(start.config))
        run = report.run("Placement", check_placement(start, resources, advice))
        # A corpus of the user's own is checked also without its devices; the demo corpus is not.
        has_corpus = start.config.data.train_data is not None
        corpora = None
        corpus_checks: Iterator[Check] = iter(())
        if has_corpus or run is not None:
            try:
                replicas = run.replicas.count if run else 1
                corpora = load_run_corpora(start, start.folder.path, replicas)
                corpus_checks = check_corpus(start, corpora)
            except UserError as error:
                corpus_checks = unusable_corpus(error, start)
        train_briefly(report, run, corpora, steps)
        if has_corpus or (run and corpora is None):
            report.run("Corpus", corpus_checks)
    return report


def train_briefly(
    report: Report, run: OpenRun | None, corpora: RunCorpora | None, steps: int
) -> None:
    """Run the sections that need devices and a corpus, or skip them."""
    titles = ["Model", "Transfer", "Pipeline and audit"]
    reason = "the requested devices are not available"
    if run is not None:
        reason = "the corpus is unusable"
    if run is not None and corpora is not None:
        trial = report.run(titles.pop(0), check_model(run, corpora))
        reason = "the model could not be trained"
        if trial is not None:
            report.run(titles.pop(0), check_transfer(trial))
            report.run(titles.pop(0), check_pipeline(trial, steps))
    for title in titles:
        report.skip(title, reason)


def check_transfer(trial: Trial) -> Iterator[Check]:
    placement = trial.setup.run.placement
    for route, batch in zip(placement.routes, trial.batches, strict=True):
        for data in route.data_devices:
            yield from check_copies(Route(data, route.model), batch, trial.step_s)


def unusable_corpus(error: UserError, start: Start) -> Iterator[Check]:
    listing = start.folder.path / "rejected.csv"
    # The listing here is temporary.
    message = str(error).replace(str(listing), "rejected.csv of the run folder")
    yield failed_by(UserError(message), "corpus", "a corpus that a run accepts")
    if listing.exists():
        yield check_rejected(listing, start.config.data.max_rejected)


def check_corpus(start: Start, corpora: RunCorpora) -> Iterator[Check]:
    data = start.config.data
    manifests = [corpus.manifest for corpus in (corpora.training, corpora.held_out) if corpus]
    yield check_rejected(corpora.folder / "rejected.csv", data.max_rejected)
    seconds = np.concatenate([manifest.samples for manifest in manifests]) / sample_rate_hz()
    yield required(
        True,
        "durations",
        f"{data.min_seconds:g} to {data.max_seconds:g} s",
        f"{len(seconds)} utterances of {seconds.min():.2f} to {seconds.max():.2f} s, "
        f"median {np.median(seconds):.2f} s, {seconds.sum() / 3600:.2f} hours in total",
    )
    plan = corpora.training.plan
    yield recommended(
        plan.padding <= MAX_PADDING,
        "padding",
        f"at most {100 * MAX_PADDING:.0f} % of all samples in batches",
        f"{100 * plan.padding:.1f} % in {len(plan.bounds)} buckets",
        "Raise --buckets, or lower --batch-size, which leaves fewer empty rows in the last batch.",
    )


def check_rejected(listing: Path, max_rejected: float) -> Check:
    """Summarise rejected.csv; a run aborts above a fraction of unusable rows."""
    with open(listing, encoding="utf-8", errors="surrogateescape", newline="") as file:
        rejected = list(csv.DictReader(file))
    reasons = Counter(row["reason"] for row in rejected).most_common()
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons)
    examples = "; ".join(
        f"line {row['line']} {row['audio']}: {row['detail'] or row['reason']}"
        for row in rejected[:EXAMPLES]
    )
    found = "none"
    if rejected:
        found = f"{len(rejected)} ({counts}). The first: {examples}"
    return recommended(
        not rejected,
        "rejected utterances",
        f"none; a run accepts up to {100 * max_rejected:g} %",
        found,
        "Fix or remove these rows. A run lists all of them in rejected.csv in its folder.",
    )
