"""Pack a corpus into tar shards and one index, from which training starts at once.

python utilities/pack_corpus.py --train-data corpora/LJSpeech-1.1 --out data/packed
python utilities/pack_corpus.py --train-data corpora/LJSpeech-1.1 --out s3://bucket/lj --slice 3/16
python utilities/pack_corpus.py --out s3://bucket/lj --join
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import pack
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(pack))
