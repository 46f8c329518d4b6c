"""Tests of MyXTTS. Programs that they start import the package from this checkout, too."""

import os
from pathlib import Path

from tests.long import LONG

_ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
# With oneDNN, TensorFlow looks for its kernels at each node of each function: a third of the time
# of a run of the toy. `make test-long` has it. Programs that tests start have the same kernels.
if not LONG:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
