"""Tests of MyXTTS. Programs that they start import the package from this checkout, too."""

import os
from pathlib import Path

_ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
