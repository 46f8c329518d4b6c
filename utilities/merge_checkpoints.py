"""Average the weights of runs that began with the same weights.

python utilities/merge_checkpoints.py --checkpoints runs/gpu0 runs/gpu1 --output runs/merged
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.main import run_script
from myxtts.extras.jobs import merge_command

if __name__ == "__main__":
    sys.exit(run_script(merge_command))
