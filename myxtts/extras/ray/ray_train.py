"""Training by Ray Train, which starts the workers, restarts them and changes their number.

Needs Ray: `pip install .[ray]`. Ray restarts all workers if one is lost, and they resume from the
run's last checkpoint.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import ControllerError, Result, RunConfig, ScalingConfig, UserCallback
from ray.train.tensorflow import TensorflowTrainer

from myxtts.base.console import log_to_console, set_environment
from myxtts.base.errors import ConfigError, PeerLost
from myxtts.base.members import is_url
from myxtts.config.schema import Config
from myxtts.config.settings_parser import read_settings, settings_parser
from myxtts.devicefeed.errors import UserError
from myxtts.trial.auto import train_placed

if TYPE_CHECKING:
    from myxtts.run.hooks import StepEnd


def fit(
    argv: Sequence[str], scaling_config: ScalingConfig, run_config: RunConfig | None = None
) -> Result:
    """Train with Ray's workers; return Ray's result, whose `return_value` is the last report.

    The run begins, or resumes if it has a checkpoint. Raises UserError for what the user can fix,
    and Ray's `TrainingFailedError` if its `FailureConfig` allows no further restart.

    Args:
        argv: flags of `train_main.py`.
    """
    config = _config_of_workers(argv)
    run_config = run_config or RunConfig()
    run_config.callbacks.append(EndAtUserError())
    trainer = TensorflowTrainer(
        train_worker,
        train_loop_config={"config": config},
        scaling_config=scaling_config,
        run_config=run_config,
    )
    try:
        return trainer.fit()
    except ControllerError as error:
        if isinstance(error.controller_failure, UserError):
            raise error.controller_failure from None
        raise


def _config_of_workers(argv: Sequence[str]) -> Config:
    config, _ = read_settings(settings_parser("ray_train.fit", "Train."), [*argv, "--resume"])
    paths = {"--runs-dir": config.run.runs_dir, "--train-data": config.data.train_data}
    for flag, path in paths.items():
        if path is None or not (is_url(path) or Path(path).is_absolute()):
            raise ConfigError(
                f"{flag} is {path}, but Ray's workers run on other machines and in other folders."
                " Give an absolute path to a folder that all of them share."
            )
    return config


def train_worker(settings: dict[str, Any]) -> dict[str, Any]:
    """Train as one of Ray's workers, in a thread of its process; return the last report."""
    # Ray asks for Keras 2, which is not installed.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    set_environment()
    log_to_console()
    report = ReportToRay()
    train_placed(settings["config"], more=[report])
    return report.metrics


class ReportToRay:
    """Hands each report of the run to Ray, and saves when Ray is about to lose a machine.

    Both wait for the other workers, which have their reports after the same steps.
    """

    pause_kind = "ray"

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def is_due(self, end: "StepEnd") -> bool:
        return bool(end.metrics)

    def __call__(self, end: "StepEnd") -> None:
        self.metrics = {"step": end.state.step, **end.metrics}
        ray.train.report(self.metrics)
        # Ray takes a run that stops for a finished one, and restarts one whose machine is gone.
        end.save |= ray.train.get_preemption_info() is not None


class EndAtUserError(UserCallback):
    """Ends the run, without a restart, if the error of a worker is one that the user can fix."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for error in worker_exceptions.values():
            # The worker's error, in Ray's wrapper with its traceback. The error of a callback ends
            # the run.
            cause = getattr(error, "_base_exc", error)
            if isinstance(cause, UserError) and not isinstance(cause, PeerLost):
                raise cause
