"""Export a trained run as a TensorFlow SavedModel.

python utilities/export_model.py --run runs/demo --out demo_voice
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import export
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(export))
