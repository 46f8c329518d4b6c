"""The preflight: everything that a run does, once and on a small scale, each thing as a line that holds or does not."""

import tempfile
from pathlib import Path

from myxtts.config.schema import Config
from myxtts.errors import UserError
from myxtts.placement.routes import Placement, plan_routes
from myxtts.preflight.checks import Check, Report, refused
from myxtts.preflight.corpus import Loaded, check_corpus, check_rejected, load
from myxtts.preflight.model import check_model
from myxtts.preflight.overlap import check_flow
from myxtts.preflight.placement import check_placement
from myxtts.preflight.prerequisites import check_prerequisites
from myxtts.preflight.transfer import check_transfer
from myxtts.training.run_folder import RunFolder
from myxtts.training.start import Start, resolve_start

MOST_GPUS = 1024  # an index is below it


def validate(config: Config, steps: int) -> Report:
    """Check a run with these settings, printing as it goes. Nothing that it writes stays, but for the demo corpus.

    Args:
        config: a placement without GPUs asks for `dual`, batches on GPU 0 and the model on GPU 1.
        steps: the most to send through the pipeline.

    Raises:
        UserError: settings that no machine and no corpus could mend.
    """
    config = with_dual(config)
    plan_routes(config.placement, MOST_GPUS)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="myxtts-preflight-") as name:
        config, start = resolve_start(config, RunFolder(Path(name)))
        report.run("Prerequisites", check_prerequisites(config))
        placement = report.run("Placement", check_placement(config))
        missing = "" if placement else "the placement cannot be had"

        asked = config.data.train_data is not None
        loaded, faults = try_load(config, start, Path(name), placement) if placement or asked else (None, [])
        missing = missing or ("" if loaded else "the corpus cannot be used")
        bench = report.run("Model", check_model(loaded, placement), missing)
        missing = missing or ("" if bench else "the model could not be trained")
        report.run("Transfer", check_transfer(bench, placement), missing)
        report.run("Pipeline and audit", check_flow(bench, steps), missing)
        if faults:
            report.run("Corpus", iter(faults))
        elif asked:
            report.run("Corpus", check_corpus(loaded))
    return report


def with_dual(config: Config) -> Config:
    """The settings with GPUs 0 and 1 where they name none."""
    asked = config.placement
    if (asked.data_gpu, asked.model_gpu, asked.model_gpus) != (None, None, ()):
        return config
    return config.model_copy(update={"placement": asked.model_copy(update={"data_gpu": 0, "model_gpu": 1})})


def try_load(
    config: Config, start: Start, folder: Path, placement: Placement | None
) -> tuple[Loaded | None, list[Check]]:
    """The corpus, or what is wrong with it."""
    try:
        return load(config, start, folder, len(placement.routes) if placement else 1), []
    except UserError as error:
        listing = folder / "rejected.csv"
        told = str(error).replace(f"; {listing} lists them", "")  # it does not stay
        faults = [refused("corpus", "one that a run could start on", UserError(told))]
        return None, faults + ([check_rejected(listing, config.data.max_rejected)] if listing.exists() else [])
