"""What a corpus says of how it was made: corpus.json, beside its metadata."""

import json
import logging
from pathlib import Path
from typing import Any

ANCESTRY = "corpus.json"

log = logging.getLogger(__name__)


def read_ancestry(train_data: str | None) -> dict[str, Any]:
    """Return corpus.json of a corpus on this machine: its speakers, or its recordings; or empty."""
    corpus = Path(train_data or "")
    folder = corpus if corpus.is_dir() else corpus.parent
    file = folder / ANCESTRY
    if train_data is None or not file.is_file():
        return {}
    try:
        document = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        log.warning("%s is left out, so the model card will not have it: %s", file, error)
        return {}
    known = isinstance(document, dict) and {"speakers", "recordings"} & document.keys()
    return document if known else {}
