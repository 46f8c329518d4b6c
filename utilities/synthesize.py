"""Synthesize speech from a text with a trained run.

python utilities/synthesize.py --run runs/demo --text "…" --reference some.wav --out hello.wav
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import synthesize
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(synthesize))
