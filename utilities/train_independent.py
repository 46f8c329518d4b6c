"""Train independent jobs, one on each GPU, and merge their weights (local SGD).

python utilities/train_independent.py --config configs/local_sgd.yaml --gpus 0 1 --run NAME
python utilities/train_independent.py --train-data CORPUS --gpus 0 1 2 --num-syncs 5 --run NAME
python utilities/train_independent.py --run NAME --status
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import jobs
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(jobs))
