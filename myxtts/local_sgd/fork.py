"""The first checkpoint of a job that goes on from a common start. No TensorFlow."""

from pathlib import Path

from myxtts.config.schema import Config
from myxtts.training.checkpoint_files import (
    checkpoint_of,
    digest_of,
    latest,
    opened_arrays,
    read_metadata,
    write_checkpoint,
)

OF_A_MERGE = ("merge_inputs", "kept_input")  # what a merged start says of itself


def fork(start: Path, run: Path, config: Config) -> Path:
    """Let a run begin with the weights, optimizer and step of a checkpoint, and at the beginning of its own corpus.

    Does nothing where the run has a checkpoint already.

    Args:
        start: a checkpoint, whose tables have all symbols, languages and speakers of the run's corpus.
        run: folder of the new run, which `--resume` then trains.
        config: of the new run.

    Returns:
        its newest checkpoint.

    Raises:
        CheckpointError: the start is damaged.
    """
    checkpoints = run / "checkpoints"
    if newest := latest(checkpoints):
        return newest
    metadata = read_metadata(start)
    with opened_arrays(start / "model.npz") as weights:
        digest = digest_of(weights)
    changed = {
        "settings": config.model_dump(mode="json"),
        "corpus": None,
        "position": [0, 0, []],
        "audio_s": 0.0,
        "audio_s_since_sync": 0.0,
        "best": None,
        "ancestor": {
            "run": str(start.parents[1]),
            "step": metadata["step"],
            "weights": digest,
            **{table: len(metadata[table]) for table in ("symbols", "languages", "speakers")},
        },
    }
    kept = {name: value for name, value in metadata.items() if name not in OF_A_MERGE}
    target = checkpoint_of(checkpoints, metadata["step"])
    write_checkpoint(target, ((path.stem, _arrays(path)) for path in sorted(start.glob("*.npz"))), kept | changed)
    return target


def _arrays(path: Path):
    with opened_arrays(path) as arrays:
        yield from arrays.items()
