"""User-fixable errors: each is printed as its message alone, which says what was requested, what
was found and what to do (exit code 2, or 138 where the same command may succeed).

Any other error is a defect: it keeps its traceback and exits with code 1.
"""

import json
import re
from importlib.util import find_spec
from typing import Any

from myxtts.devicefeed.errors import UserError

SHOWN_CHARACTERS = 60  # of a value in a message
_DOES_NOT_FIT = re.compile("(OOM when allocating|(failed|unable|trying) to allocate).*")


class ConfigError(UserError):
    """A flag, a YAML file or a combination of settings."""


class DataError(UserError):
    """A corpus, an utterance or a text cannot be used."""


class CheckpointError(UserError):
    """A run folder or a checkpoint is missing, damaged or of the wrong kind."""


class TrainingError(UserError):
    """Training cannot continue: a non-finite loss, or out of memory."""


class OutOfMemory(TrainingError):
    """A step does not fit into the memory of its device."""


class PeerLost(UserError):
    """Another worker or job died or did not arrive: the same command, started again, continues.

    The exit code is the one that Kubeflow retries as a user's, so that whatever restarts processes
    can tell it from a mistake.
    """

    exit_code = 138


def format_value(value: Any) -> str:
    """Return a value for a message: escaped, and cut."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    if len(text) > SHOWN_CHARACTERS:
        text = text[: SHOWN_CHARACTERS - 3] + "..."
    return text


def lacking_memory(error: Exception) -> str:
    """Return the line of an out-of-memory error that says what did not fit, and where.

    An error in a compiled function begins with the lines of Python that made the operation, or with
    the number of operations that had one.
    """
    message = getattr(error, "message", str(error))
    found = _DOES_NOT_FIT.search(message)
    line = found[0] if found else message.partition("\n")[0]
    return line.rstrip(".")


OF_PYPI = {
    "hibari": "hibari-tts",
    "onnx_asr": "onnx-asr",
    "pyopenjtalk": "pyopenjtalk-plus",
}  # names of packages there, unlike those in Python


def check_packages(purpose: str, *packages: str) -> None:
    """Raise ConfigError if packages are missing that a purpose, such as a flag, needs."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{purpose} needs {' and '.join(missing)}, which this Python does not have. Run: pip"
            f" install {' '.join(OF_PYPI.get(name, name) for name in missing)}"
        )
