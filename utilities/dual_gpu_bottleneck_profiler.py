"""Measure where the time of a training run goes, and recommend faster settings.

python utilities/dual_gpu_bottleneck_profiler.py --batch-size 16 --num-steps 100 --data-gpu 0
--model-gpu 1 python utilities/dual_gpu_bottleneck_profiler.py --config configs/demo.yaml
--num-steps 50 --picture lanes.png python utilities/dual_gpu_bottleneck_profiler.py --emulate
produce=0.020,transfer=0.002,step=0.020
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import profile
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(profile))
