"""The job token: a secret that the workers of a job share, so that no other program takes part in
their rendezvous.

It comes from an environment variable, which `myxtts launch` sets for its workers from a file. A
flag with the secret itself would show it to every user of the machine, in the list of processes.
"""

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from myxtts.errors import ConfigError

VARIABLE = "MYXTTS_JOB_TOKEN"
LEAST_CHARACTERS = 16  # who records a rendezvous can try short secrets one after the other
_HOW = f"Make one with `openssl rand -hex 32`; it needs {LEAST_CHARACTERS} characters at least."


def token_of(environ: Mapping[str, str]) -> str:
    """Return the job token of this process; empty if it has none.

    Args:
        environ: such as `os.environ`.

    Raises:
        ConfigError: the token is empty or short.
    """
    return _checked(environ[VARIABLE], VARIABLE) if VARIABLE in environ else ""


def read_token(path: Path) -> str:
    """Read a job token from a file that only its owner can read.

    No message repeats the path if there is no such file: it may be the secret, given by mistake.

    Raises:
        ConfigError: there is no such file, others can read it, or the token is empty or short.
    """
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(
                    f"--job-token {path} can be used by other users (mode {mode:o}), so it is no"
                    f" secret. Run `chmod 600 {path}`."
                )
            return _checked(file.read(4096).strip(), f"--job-token {path}")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"--job-token must name a file that contains the secret ({reason}). {_HOW}"
        ) from None


def new_token() -> str:
    """Return a random job token."""
    return secrets.token_hex(32)


def _checked(token: str, source: str) -> str:
    if len(token) < LEAST_CHARACTERS:
        raise ConfigError(f"{source} has a job token of {len(token)} characters. {_HOW}")
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{source} has a job token with other characters than printable ASCII. {_HOW}"
        )
    return token
