"""Forks a run: writes the first checkpoint of a job that continues from the warm start. No
TensorFlow.
"""

from pathlib import Path

from myxtts.config.schema import Config
from myxtts.training.checkpoint_files import (
    checkpoint_of,
    digest_of,
    groups_of,
    latest,
    opened_arrays,
    put_back_former,
    read_arrays,
    read_metadata,
    write_checkpoint,
)

MERGE_KEYS = (
    "merge_inputs",
    "kept_input",
)  # metadata of a merged checkpoint, which a fork does not inherit


def fork(start: Path, run: Path, config: Config) -> Path:
    """Start a run from the weights, optimizer and step of a checkpoint, at the beginning of the
    run's own corpus.

    Does nothing if the run already has a checkpoint.

    Args:
        start: a checkpoint whose vocabulary has all symbols, languages and speakers of the run's
            corpus.
        run: folder of the new run, which `--resume` then trains.
        config: of the new run.

    Returns:
        the newest checkpoint of the run.

    Raises:
        CheckpointError: `start` is damaged.
    """
    checkpoints = run / "checkpoints"
    put_back_former(checkpoints)
    if newest := latest(checkpoints):
        return newest
    metadata = read_metadata(start)
    with opened_arrays(start, "model") as weights:
        digest = digest_of(weights)
    changed = {
        "settings": config.model_dump(mode="json"),
        "corpus": None,
        "position": [0, 0, []],
        "audio_s": 0.0,
        "audio_s_since_sync": 0.0,
        "best": None,
        "observing": [],  # the warm start's own
        "provisional": False,
        "ancestor": {
            "run": str(start.parents[1]),
            "step": metadata["step"],
            "weights": digest,
            **{name: len(metadata[name]) for name in ("symbols", "languages", "speakers")},
        },
    }
    inherited = {name: value for name, value in metadata.items() if name not in MERGE_KEYS}
    target = checkpoint_of(checkpoints, metadata["step"])
    write_checkpoint(
        target,
        ((group, read_arrays(start, group).items()) for group in groups_of(start)),
        inherited | changed,
    )
    return target
