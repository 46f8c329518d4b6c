"""Split a corpus into disjoint shards of about equal duration.

python utilities/split_dataset.py --input data/processed/train.csv --shards 2 --out data/shards
python utilities/split_dataset.py --input corpora/LJSpeech-1.1 --shards 4 --out data/shards
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.main import run_script
from myxtts.extras.jobs import shard_command

if __name__ == "__main__":
    sys.exit(run_script(shard_command))
