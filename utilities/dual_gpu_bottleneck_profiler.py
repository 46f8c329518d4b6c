"""Measure where the time of a training run goes, and recommend faster settings.

python utilities/dual_gpu_bottleneck_profiler.py --data-gpu 0 --model-gpu 1 --num-steps 100
python utilities/dual_gpu_bottleneck_profiler.py --config configs/demo.yaml --trace trace.json
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import profile
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(profile))
