"""A stdout that ends before the program: a closed terminal, a full disk, a reader such as
`head`.
"""

import os
import sys
from contextlib import suppress
from io import UnsupportedOperation


def discard_stdout() -> None:
    """Write stdout to nowhere, with what it still has, or Python reports its error again at its
    exit.
    """
    with suppress(UnsupportedOperation):  # of a stdout that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def go_on_without_stdout(error: OSError, who: str) -> None:
    """Discard stdout after an error, and say so on stderr.

    Args:
        who: goes on all the same, with the verb, such as "The program goes on".
    """
    discard_stdout()
    with suppress(OSError):  # of a terminal, which has both
        print(f"warning: stdout ends here: {error.strerror}. {who}.", file=sys.stderr)
