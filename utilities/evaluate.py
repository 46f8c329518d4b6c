"""Measure the quality of a trained run on its held-out utterances or on another corpus.

python utilities/evaluate.py --run runs/demo --json score.json
python utilities/evaluate.py --run runs/voices --data data/voices_unseen/corpus.csv
python utilities/evaluate.py --run runs/demo --asr runs/asr
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import evaluate
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(evaluate))
