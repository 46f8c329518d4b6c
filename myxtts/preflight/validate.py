"""The preflight: runs every part of training once on a small scale, and reports each result as a
check.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from myxtts.config.schema import Config
from myxtts.errors import PlacementError, UserError
from myxtts.placement.routes import named_gpus, plan_routes
from myxtts.preflight.checks import Check, Report, failed_by
from myxtts.preflight.corpus import check_corpus, check_rejected
from myxtts.preflight.model import check_model
from myxtts.preflight.overlap import check_pipeline
from myxtts.preflight.placement import check_placement
from myxtts.preflight.prerequisites import check_prerequisites
from myxtts.preflight.transfer import check_transfer
from myxtts.training.runs import RunFolder
from myxtts.training.setup import OpenRun, RunCorpora, Start, read_corpora, resolve_start

DEFAULT_ROUTES = (
    " Where no GPU is named, the preflight tries GPUs 0 and 1; on one GPU give --data-gpu 0"
    " --model-gpu 0."
)
MAX_GPUS = 1024  # no machine has more, so settings that need more are mistakes


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
    report.run("Transfer", check_transfer(trial, run.placement))
    report.run("Pipeline and audit", check_pipeline(trial, steps))


def with_default_routes(config: Config) -> Config:
    """Return the settings, with batches on GPU 0 and the model on GPU 1 if they name no GPU."""
    placement = config.placement
    if named_gpus(placement):
        return config
    return config.model_copy(
        update={"placement": placement.model_copy(update={"data_gpu": 0, "model_gpu": 1})}
    )


def try_load(start: Start, run: OpenRun | None) -> tuple[RunCorpora | None, list[Check]]:
    """Load the corpora, or return the checks that failed."""
    try:
        return read_corpora(start, start.folder.path, run.replicas.count if run else 1), []
    except UserError as error:
        listing = start.folder.path / "rejected.csv"
        message = str(error).replace(
            str(listing), "rejected.csv of the run folder"
        )  # the listing here is temporary
        checks = [failed_by(UserError(message), "corpus", "a corpus that a run accepts")]
        return None, checks + (
            [check_rejected(listing, start.config.data.max_rejected)] if listing.exists() else []
        )
