"""Start the workers of a distributed run, and stop all of them when one fails.

python utilities/launch_workers.py --workers 2 -- train_main.py --config configs/demo.yaml
python utilities/launch_workers.py --nodes A:2222,B:2222 --node-rank 0 -- train_main.py ...
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import launch
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(launch))
