"""run.json: what a run is, for its page and for other programs."""

import platform
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.placement.devices import describe
from myxtts.training.diagnostics import derived_numbers
from myxtts.training.setup import TrainingSetup

SOURCE_TREE = Path(__file__).parents[2]
GIT_TIMEOUT_S = 5.0


def describe_run(setup: TrainingSetup) -> dict[str, Any]:
    """Return what the page of a run shows of it beside its metrics; JSON."""
    config, plan, replicas = setup.config, setup.corpora.training.plan, setup.replicas
    placement_line, *devices = (" ".join(line.split()) for line in describe(setup.run.placement))
    return {
        "task": f"{config.model.task} {config.model.model_size}",
        "placement": placement_line.removeprefix("placement "),
        "devices": [line.removeprefix("device ").removeprefix("route ") for line in devices],
        "routes": [[list(route.data_devices), route.model] for route in replicas.routes],
        "first_replica": replicas.first,
        "total_steps": setup.schedule.total_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "utterances": len(plan.samples),
        "numbers": derived_numbers(setup),
        "buckets": [
            {
                "seconds": bound / SAMPLE_RATE_HZ,
                "rows": rows,
                "utterances": utterances,
                "padding": padding,
            }
            for bound, rows, utterances, padding in plan.buckets
        ],
        "versions": versions(),
        "commit": source_commit(),
        "host": socket.gethostname(),
        "started": time.time(),
    }


def versions() -> dict[str, str]:
    return {
        "Python": platform.python_version(),
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "NumPy": np.__version__,
    }


def source_commit(root: Path = SOURCE_TREE) -> str:
    """Return the commit of a git checkout, with `-dirty` if files were changed.

    Empty for a folder that is no checkout, and where git is missing or takes too long.
    """
    # An installed package may lie within the checkout of another project.
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        git = subprocess.run(
            [*command, "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return git.stdout.strip()
