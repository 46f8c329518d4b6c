"""Transcribe recordings with a trained recogniser.

python utilities/transcribe.py --run runs/asr one.wav two.flac
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import transcribe
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(transcribe))
