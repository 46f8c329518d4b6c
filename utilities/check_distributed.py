"""Check that several workers compute what one worker computes, and how fast they are together.

python utilities/check_distributed.py                                    two workers on this machine
python utilities/check_distributed.py --nodes A:2222,B:2222 --node-rank 0     on each machine
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import check_distributed
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(check_distributed))
