"""Check with a short trial whether a training run will work; takes its settings.

python validate_dual_gpu_pipeline.py --data-gpu 0 --model-gpu 1      on two GPUs
python validate_dual_gpu_pipeline.py --simulate-gpus 2               on a machine without a GPU
python validate_dual_gpu_pipeline.py --config FILE --json FILE       a report for programs

Exit codes: 0 all checks passed, 1 a check failed, 2 a mistake that the message explains.
"""

import sys

from myxtts.commands import preflight
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(preflight))
