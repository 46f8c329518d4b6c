"""What an evaluation of a task begins with: its checkpoint, its output and its device."""

from pathlib import Path
from typing import NamedTuple

from myxtts.evaluation.options import EvaluationOptions, check_options
from myxtts.evaluation.report import output_folder
from myxtts.files import check_writable, make_folder
from myxtts.placement import devices
from myxtts.placement.routes import Route
from myxtts.training.runs import select_checkpoint


class Target(NamedTuple):
    """What is measured, where, and the folder for files of the evaluation."""

    checkpoint: Path
    folder: Path
    route: Route


def open_target(run: Path, checkpoint: str | None, task: str, options: EvaluationOptions) -> Target:
    """Select the checkpoint of a run of this task, make the folder of the outputs, and configure
    GPU 0 or else the CPU.

    Raises:
        UserError: the run, an output or an option cannot be used.
    """
    check_options(run, task, options)
    selected = select_checkpoint(run, checkpoint)
    check_writable("--json", options.json_file)
    folder = output_folder(run, selected, options)
    make_folder(folder, "--out")
    return Target(selected, folder, devices.configure_default().routes[0])
