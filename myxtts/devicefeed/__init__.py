"""Batches made on one device while another trains; see README.md.

The names are imported when they are used: routes and errors need no TensorFlow.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "DeviceFeed": "device_feed",
    "FeedTimes": "device_feed",
    "gain": "device_feed",
    "PlacementError": "errors",
    "UserError": "errors",
    "require_device": "audit",
    "synchronize": "devices",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
