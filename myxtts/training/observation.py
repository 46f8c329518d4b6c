"""The pace of work on held-out utterances. No TensorFlow."""

from collections.abc import Callable

Pace = Callable[[], None]
"""Waits until the feed is full; to be called between two batches, when nothing is queued on the
device.
"""


def no_pace() -> None:
    """Stands in for a pace where nothing else uses the device."""
