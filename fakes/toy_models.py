"""Runs of this process that train a toy. Importing this module imports no TensorFlow."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def toy_models() -> Iterator[None]:
    """Let runs of this process train a toy, which cannot synthesize: 0.5 s for each instead of 8.

    They share the traces of producers and of the step.
    """
    # TensorFlow takes seconds to import, and most users of this module may never enter the context.
    from fakes.toy import build_toy, shared_steps, shared_traces

    with mock.patch("myxtts.tasks.tts.task.build_xtts", build_toy), shared_traces(), shared_steps():
        yield
