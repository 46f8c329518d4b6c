"""Write a voice as a folder for others: weights, ONNX, samples and a model card.

python utilities/publish_voice.py --run runs/demo --out demo_voice --text 'Hello there.'
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import publish
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(publish))
