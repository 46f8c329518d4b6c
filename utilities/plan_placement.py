"""Predict the throughput of every placement from the times of the stages.

python utilities/plan_placement.py --gpus 2 --produce-ms 20 --transfer-ms 2 --step-ms 20
python utilities/plan_placement.py --gpus 4 --profile profile.json --json placements.json
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import plan
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(plan))
